"""``python -m shardlab.labs.record ddp``: run a lab here and now, and keep it as the run that comes with the book.

Readers without torch see this run, marked with the machine and the date. Record on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import sys

from shardlab import labs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m shardlab.labs.record", description=__doc__)
    parser.add_argument("names", nargs="+", choices=labs.LAB_NAMES, metavar="lab")
    for lab in [lab for lab in labs.LABS if lab.name in parser.parse_args().names]:
        # The measuring function itself: a recording must never be made of a recording.
        run = lab.function()
        failed = run.failed_checks()
        if failed:
            print(f"{lab.name} was not recorded:", *failed, sep="\n", file=sys.stderr)
            return 1
        lab.recording.parent.mkdir(exist_ok=True)
        # Whole or not at all.
        draft = lab.recording.with_suffix(".tmp")
        draft.write_text(run.to_json() + "\n", encoding="utf-8")
        os.replace(draft, lab.recording)
        print(run, f"Recorded in {lab.recording}", sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
