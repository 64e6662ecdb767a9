"""The ``shardlab`` command, also as ``python -m shardlab`` and under ``torchrun -m shardlab``."""

from __future__ import annotations

import sys


def main() -> None:
    """The command. Ctrl-C ends it with one line even in the half second in which everything is imported."""
    try:
        from shardlab import cli

        cli.main()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
