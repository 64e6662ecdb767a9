"""The training that the restart lab kills: what every rank runs, under torchrun and once more without interruption.

The code to read is :func:`train`, :func:`save` and :func:`load`: what must be in a checkpoint so that training goes
on exactly, and how it is written so that a kill in the middle does no harm.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP imports it on first use, over a second: that belongs to the start
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab.labs.measure import finish
from shardlab.labs.rank import Context

FEATURES = 64
SAMPLES = 16  # per rank and step


@dataclass
class State:
    """Everything that the next step depends on, beside the random numbers.

    Attributes:
        model, optimizer, scheduler: as torch has them.
        step: steps done; the position in the data follows from it.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    step: int = 0


# ---- the code to read ----


def train(ctx: Context, state: State, folder: Path, journal: Journal) -> None:
    """Train to the last step, from wherever the state is."""
    while state.step < ctx.params["steps"]:
        x, y = make_batch(ctx, state.step)
        state.optimizer.zero_grad()
        loss = F.mse_loss(state.model(x), y)
        loss.backward()  # DDP averages the gradients over the ranks
        state.optimizer.step()
        state.scheduler.step()
        state.step += 1
        time.sleep(ctx.params["step_s"])  # a model that takes longer
        journal.note("step", step=state.step, loss=loss.item())
        if state.step % ctx.params["every"] == 0:
            began = time.monotonic()
            save(state, folder, ctx.rank)
            journal.note("saved", seconds=time.monotonic() - began)


def save(state: State, folder: Path, rank: int) -> None:
    """Every rank writes its part; then rank 0 says that it is whole."""
    part: dict[str, Any] = {"random": torch.get_rng_state()}  # each its own
    if rank == 0:  # the same on all ranks
        part["model"] = state.model.state_dict()
        part["optimizer"] = state.optimizer.state_dict()
        part["scheduler"] = state.scheduler.state_dict()
        part["step"] = state.step
    torch.save(part, folder / f"step{state.step}-rank{rank}.pt")
    dist.barrier()  # all parts are written
    if rank == 0:
        draft = folder / "latest.tmp"
        draft.write_text(f"step{state.step}")
        os.replace(draft, folder / "latest")  # the old one or the new one


def load(state: State, folder: Path, rank: int) -> None:
    """Go on from the latest whole checkpoint, if there is one."""
    latest = folder / "latest"
    if not latest.exists():
        return
    name = latest.read_text()
    shared = torch.load(folder / f"{name}-rank0.pt")
    state.model.load_state_dict(shared["model"])
    state.optimizer.load_state_dict(shared["optimizer"])
    state.scheduler.load_state_dict(shared["scheduler"])
    state.step = shared["step"]
    own = torch.load(folder / f"{name}-rank{rank}.pt")
    torch.set_rng_state(own["random"])


# ---- around it ----


class Journal:
    """What this rank does and when, one JSON line each, readable from outside while it runs."""

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        self._file = (folder / f"rank{rank}-attempt{attempt}.jsonl").open("a", encoding="utf-8")
        self.entries: list[dict[str, Any]] = []

    def note(self, event: str, at: float | None = None, **facts: Any) -> None:
        """Write ``event`` with the clock that all processes of this machine share (or with ``at``)."""
        entry = {"event": event, "at": time.monotonic() if at is None else at, "pid": os.getpid(), **facts}
        self.entries.append(entry)
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def worker(ctx: Context) -> list[dict[str, Any]]:
    """Train, from the latest checkpoint in ``ctx.params["folder"]`` on; returns the journal of this attempt."""
    folder = Path(ctx.params.get("folder") or own_folder(ctx))
    journal = Journal(folder, ctx.rank, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    if "born" in ctx.params:
        journal.note("born", at=ctx.params["born"])
    journal.note("joined")
    state = build_state(ctx)
    load(state, folder, ctx.rank)
    journal.note("loaded", step=state.step)
    train(ctx, state, folder, journal)
    finish(ctx)
    journal.note("done", digest=digest(state.model))
    return journal.entries


def own_folder(ctx: Context) -> Path:
    """The folder that the run keeps its rendezvous in: it goes when the run does, however that ends."""
    return Path(ctx.store.underlying_store.path).parent


def build_state(ctx: Context) -> State:
    """Before the first step: the same model on every rank, other random numbers for its dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Dropout(0.1), nn.Linear(FEATURES, FEATURES)
    )
    wrapped = DDP(model.to(ctx.device))
    torch.manual_seed(1000 + ctx.rank)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-2)
    return State(wrapped, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.95))


def make_batch(ctx: Context, step: int) -> tuple[Tensor, Tensor]:
    """This rank's samples of one step: inputs and targets, ``[SAMPLES, FEATURES]`` each."""
    generator = torch.Generator().manual_seed(step * ctx.ranks + ctx.rank)
    x = torch.randn(SAMPLES, FEATURES, generator=generator).to(ctx.device)
    return x, torch.tanh(x.roll(1, dims=1))


def digest(model: nn.Module) -> str:
    """A hash of all parameters' bytes: equal only if every bit is."""
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().cpu().numpy().tobytes())
    return bits.hexdigest()
