"""Train, checkpoint, resume: a run that a scheduler may stop and start again, on any number of ranks.

    torchrun --nproc-per-node 2 launch/train.py --folder run --steps 40

Stop it at any time (SIGUSR1 or SIGTERM: it saves and ends with status 85; a crash: it goes back to the last
checkpoint) and give the same command again: the losses go on as if nothing had happened.
The model, its data and the step are the DDP lab's.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab.labs.ddp_worker import build_model, make_batch, shard, training_step

STOPPED = 85  # saved and ended early: start the same command again
GLOBAL_BATCH = 32


def main() -> int:
    given = arguments()
    stop = StopRequest()
    device = join()
    model = DDP(build_model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = resume(given.folder, model, optimizer, device)
    say(f"starts at step {len(losses)} of {given.steps} on {dist.get_world_size()} ranks")
    while len(losses) < given.steps:
        x, y = make_batch(seed=len(losses), size=GLOBAL_BATCH)  # by step: no data position to keep
        share = shard((x.to(device), y.to(device)), dist.get_rank(), dist.get_world_size())
        loss = training_step(model, optimizer, [share])
        stop.pause(given.pause_s)
        mean, stopping = agree(loss, stop.requested, device)
        losses.append(mean)
        if stopping or len(losses) % given.every == 0 or len(losses) == given.steps:
            save(given.folder, model, optimizer, losses)
            early = stopping and len(losses) < given.steps
            if early:
                say(f"was asked to stop: saved at step {len(losses)}")
            # The first rank to end may take the others' launchers with it: not before all is written and said.
            dist.barrier()
            if early:
                return STOPPED
    say(f"finished {given.steps} steps, loss {losses[-1]:.6f}")
    if dist.get_rank() == 0:
        (given.folder / "losses.json").write_text(json.dumps(losses))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints; every node must see it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument(
        "--pause-s", type=float, default=0.0, help="seconds of waiting per step, to have time to stop it"
    )
    return parser.parse_args()


def join() -> torch.device:
    """Join the ranks that the launcher started: NCCL with a GPU for each, gloo otherwise."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() >= local_ranks:
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        return torch.device("cuda", local_rank)
    dist.init_process_group("gloo")
    return torch.device("cpu")


class StopRequest:
    """Remembers that a signal has come; the loop looks at it between two steps."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._remember)

    def _remember(self, *_: object) -> None:
        self.requested = True

    def pause(self, duration_s: float) -> None:
        """Wait, but not past a request."""
        end = time.monotonic() + duration_s
        while not self.requested and time.monotonic() < end:
            time.sleep(min(0.1, duration_s))


def agree(loss: float, stop: bool, device: torch.device) -> tuple[float, bool]:
    """The mean loss, and whether any rank was asked to stop: all ranks save at the same step, or none does."""
    both = torch.tensor([loss, float(stop)], dtype=torch.float64, device=device)
    dist.all_reduce(both)
    total, stopping = both.tolist()
    return total / dist.get_world_size(), stopping > 0


def save(folder: Path, model: DDP, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    """Rank 0 writes beside the last checkpoint and then takes its place: whole or not at all."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        torch.save(state, folder / "checkpoint.tmp")
        os.replace(folder / "checkpoint.tmp", folder / "checkpoint.pt")


def resume(folder: Path, model: DDP, optimizer: torch.optim.Optimizer, device: torch.device) -> list[float]:
    """Load the last checkpoint if there is one; the losses so far, one for each step done."""
    file = folder / "checkpoint.pt"
    if not file.exists():
        return []
    state = torch.load(file, map_location=device, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    losses: list[float] = state["losses"]
    return losses


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"train.py: {text}", flush=True)


if __name__ == "__main__":
    status = main()
    dist.destroy_process_group()
    sys.exit(status)
