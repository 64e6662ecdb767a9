"""The Ray lab's training loop as a job of a Ray cluster; ``ray_job.sh`` submits it.

    python launch/ray_job.py --folder /shared/run --workers 4

Without a cluster (no RAY_ADDRESS) it starts a Ray of its own on this machine, and ends it. A lost worker costs a
restart from the last checkpoint. The folder must be one that every node sees.
"""

import argparse
import contextlib
import json
import os
import tempfile
from pathlib import Path

from shardlab.labs.ray_train_worker import fit, own_ray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and events")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--limit-s", type=float, default=600.0, help="longest wait for the other workers")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    config = {"folder": str(given.folder), "steps": given.steps, "every": given.every, "fail_at": None}
    with contextlib.ExitStack() as stack:
        if "RAY_ADDRESS" not in os.environ:
            # Ray keeps sockets in its folder: a short path.
            ray_folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="slr", dir="/tmp", ignore_cleanup_errors=True)
            )
            stack.enter_context(own_ray(ray_folder, given.workers))
        fit(config, given.workers, given.limit_s)
    events = [json.loads(line) for line in (given.folder / "events.jsonl").read_text().splitlines()]
    losses = {event["step"]: event["loss"] for event in events if event["kind"] == "step"}
    (given.folder / "losses.json").write_text(json.dumps([losses[step] for step in sorted(losses)]))
    print(f"ray_job.py: finished {len(losses)} steps, loss {losses[max(losses)]:.6f}", flush=True)


if __name__ == "__main__":
    main()
