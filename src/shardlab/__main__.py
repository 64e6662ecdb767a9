"""``python -m shardlab``: the same as the ``shardlab`` command, also under ``torchrun -m shardlab``."""

from __future__ import annotations

from shardlab.cli import main

if __name__ == "__main__":
    main()
