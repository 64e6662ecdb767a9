"""``python -m shardlab.labs module:worker --ranks 4``: run a worker of your own and print its results as JSON.

Under ``torchrun -m shardlab.labs module:worker`` this process is one rank, and rank 0 prints. The other two ways in
are the runner's own: ``--job`` is its launcher, ``--job --rank`` a spawned rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m shardlab.labs", description=__doc__)
    parser.add_argument("worker", nargs="?", help="module:function")
    parser.add_argument("--ranks", type=int, default=int(os.environ.get("WORLD_SIZE", "2")))
    parser.add_argument("--params", type=json.loads, default={}, help="settings for the worker, JSON")
    parser.add_argument("--limit", type=float, default=60.0, help="time limit, seconds")
    parser.add_argument("--start", default="auto", help="auto, fork or spawn")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        from shardlab.labs import launcher

        job = launcher.read_job(given.job)
        if given.rank is not None:
            launcher.main_of_spawned_rank(job, given.rank)
        return launcher.main(job)
    if given.worker is None:
        parser.error("which worker? Give one as module:function")
    from shardlab.labs.run import LabError, run

    try:
        outcome = run(given.worker, given.ranks, given.params, limit_s=given.limit, start=given.start)
    except ValueError as error:
        parser.error(str(error))
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(error, file=sys.stderr)
        return 130
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(outcome.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
