"""What every rank of the checkpoint lab runs: DCP on FSDP2-sharded training, saved, lost, resharded, broken.

To read: :func:`state_of` and :func:`put_back` (what a checkpoint must hold), :func:`save` and :func:`commit` (all or
nothing), :func:`check_complete` (never load a half).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import statistics
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from shardlab.labs.measure import Stage, finish, members, run_stages
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words

PARTS = ("parameters", "optimizer", "scheduler", "random state", "data position")

CLASSES = 256
DROPOUT = 0.1
LEARNING_RATE = 5e-3
DECAY_STEPS = 60
ASYNC_REPEATS = 3
MANIFEST = "manifest.json"


class IncompleteCheckpoint(Exception):
    """A checkpoint that must not be loaded; its text says what is wrong with it."""


@dataclass
class Training:
    """A training run on the ranks of one group: everything that a step reads or writes.

    Attributes:
        model: sharded by FSDP2, or plain if ``mesh`` is None.
        position: batches of the data order that have been used.
        rank, ranks: in the group.
        mesh: of the group's ranks; None for one process by itself.
        device: where the tensors are.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    position: int
    rank: int
    ranks: int
    mesh: Any
    device: Any

    @property
    def group(self) -> Any:
        return self.mesh.get_group()


# ---- the code to read ----


def state_of(training: Training, parts: Collection[str]) -> dict[str, Any]:
    """What goes into a checkpoint. Sharded tensors stay sharded."""
    model, optimizer = training.model, training.optimizer
    state: dict[str, Any] = {}
    if "parameters" in parts:
        state["model"] = get_model_state_dict(model)
    if "optimizer" in parts:  # both moments and the step
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    if "scheduler" in parts:
        state["scheduler"] = training.scheduler.state_dict()
    if "random state" in parts:
        # Each rank has its own. Under one name, DCP would keep one of them.
        own = f"rank {training.rank} of {training.ranks}"
        state["random"] = {own: generator(training).get_rng_state()}
    if "data position" in parts:
        state["position"] = training.position
    return state


def put_back(training: Training, state: dict[str, Any]) -> None:
    """The inverse of ``state_of``."""
    model, optimizer = training.model, training.optimizer
    if "model" in state:
        set_model_state_dict(model, state["model"])
    if "optimizer" in state:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    if "scheduler" in state:
        training.scheduler.load_state_dict(state["scheduler"])
    for own_state in state.get("random", {}).values():
        generator(training).set_rng_state(own_state)
    training.position = state.get("position", training.position)


def save(training: Training, folder: Path) -> None:
    """Write a checkpoint: whole, or not there."""
    name = f"step-{training.position}"
    draft = folder / f"{name}.draft"
    writer = FileSystemWriter(draft)  # every rank writes a file of its own
    state = state_of(training, PARTS)
    dcp.save(state, storage_writer=writer, process_group=training.group)
    if training.rank == 0:
        commit(draft, folder / name)
    dist.barrier(training.group)


def commit(draft: Path, final: Path) -> None:
    """Make a written checkpoint the latest. Every step is atomic."""
    files = sorted(draft.iterdir())
    sums = {file.name: fingerprint(file) for file in files}
    write(draft / MANIFEST, json.dumps(sums))
    draft.replace(final)
    pointer = final.parent / "latest"
    write(pointer.with_suffix(".draft"), final.name)
    pointer.with_suffix(".draft").replace(pointer)


def check_complete(checkpoint: Path) -> None:
    """Raise unless every file is there as it was written."""
    manifest = checkpoint / MANIFEST
    if not manifest.exists():
        wrong = f"no {MANIFEST}, so its save never ended"
        raise IncompleteCheckpoint(f"{checkpoint.name}: {wrong}")
    for name, (size, checksum) in json.loads(manifest.read_text()).items():
        file = checkpoint / name
        if not file.exists():
            wrong = f"{name} is missing"
        elif file.stat().st_size != size:
            wrong = f"{name} has {file.stat().st_size} of {size} bytes"
        elif fingerprint(file)[1] != checksum:
            wrong = f"{name} is not what was written (checksum)"
        else:
            continue
        raise IncompleteCheckpoint(f"{checkpoint.name}: {wrong}")


def load(training: Training, folder: Path, parts: Collection[str]) -> None:
    """Go on from the latest checkpoint, on any number of ranks."""
    checkpoint = folder / (folder / "latest").read_text()
    check_complete(checkpoint)
    state = state_of(training, parts)  # tells DCP which slices this rank wants
    reader = FileSystemReader(checkpoint)
    dcp.load(state, storage_reader=reader, process_group=training.group)
    put_back(training, state)


# ---- training ----


def new_training(ctx: Context, n: int, width: int, *, seed: int, dropout: float = DROPOUT) -> Training | None:
    """A fresh run on ranks 0 to ``n - 1``, sharded over them; None on the other ranks. All ranks must call it."""
    group = ctx.team(n)
    if group is None:
        return None
    mesh = DeviceMesh.from_group(group, ctx.device.type, mesh=list(range(n)), mesh_dim_names=("data",))
    return build(ctx, width, seed, dropout, mesh)


def build(ctx: Context, width: int, seed: int, dropout: float, mesh: Any) -> Training:
    """A fresh run over ``mesh``; on this process alone if that is None."""
    rank, ranks = (mesh.get_local_rank(), mesh.size()) if mesh else (0, 1)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(CLASSES, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, CLASSES),
    ).to(ctx.device)
    if mesh:
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    # From here on each rank draws its own dropout masks.
    torch.manual_seed(1000 * (seed + 1) + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, DECAY_STEPS)
    return Training(model, optimizer, scheduler, 0, rank, ranks, mesh, ctx.device)


def generator(training: Training) -> Any:
    """The module that owns the random state which dropout draws from."""
    return torch.cuda if training.device.type == "cuda" else torch


def global_batch(position: int, size: int) -> tuple[Tensor, Tensor]:
    """Batch number ``position`` of the data order: inputs ``[size, CLASSES]``, labels ``[size]`` to be memorised."""
    draw = torch.Generator().manual_seed(position)
    return (
        torch.randn(size, CLASSES, generator=draw),
        torch.randint(CLASSES, (size,), generator=draw),
    )


def training_step(training: Training, batch: int) -> float:
    """One step on this rank's share of the next global batch; returns this rank's loss."""
    x, y = global_batch(training.position, batch)
    share = batch // training.ranks
    mine = slice(training.rank * share, (training.rank + 1) * share)
    training.optimizer.zero_grad()
    loss = F.cross_entropy(training.model(x[mine].to(training.device)), y[mine].to(training.device))
    loss.backward()
    training.optimizer.step()
    training.scheduler.step()
    training.position += 1
    return float(loss.item())


@dataclass
class Trail:
    """What a run leaves behind on one rank: its loss, and its shard of the parameters, after every step."""

    losses: list[float]
    shards: list[Tensor]


def train(training: Training | None, steps: int, batch: int) -> Trail:
    """So many steps; nothing on a rank outside the group."""
    trail = Trail([], [])
    for _ in range(steps if training else 0):
        assert training is not None
        trail.losses.append(training_step(training, batch))
        trail.shards.append(shard(training))
    return trail


def shard(training: Training) -> Tensor:
    """This rank's part of all parameters, as one vector (a copy)."""
    return torch.cat([local(parameter.detach()).flatten() for parameter in training.model.parameters()])


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def mean_losses(ctx: Context, trail: Trail) -> list[float]:
    """The global batch's loss, step by step: shares are equal, so it is the mean of the ranks' losses."""
    everyone = [losses for losses in ctx.gather(trail.losses) if losses]
    return [statistics.fmean(losses) for losses in zip(*everyone, strict=True)]


def parameter_gaps(ctx: Context, ones: Trail, others: Trail) -> list[float]:
    """``|a - b| / |b|`` of all parameters, step by step, on every rank."""
    mine = [
        [(a - b).double().square().sum().item(), b.double().square().sum().item()]
        for a, b in zip(ones.shards, others.shards, strict=True)
    ]
    return [
        (sum(gap for gap, _ in step) / sum(norm for _, norm in step)) ** 0.5
        for step in zip(*[rows for rows in ctx.gather(mine) if rows], strict=True)
    ]


def digest(training: Training) -> str:
    """A fingerprint of all parameters and optimizer states, put together from all shards: equal if bitwise equal."""
    whole = StateDictOptions(full_state_dict=True)
    state = {
        "model": get_model_state_dict(training.model, options=whole),
        "optimizer": get_optimizer_state_dict(training.model, training.optimizer, options=whole),
    }
    sum_ = hashlib.sha256()
    for name, tensor in sorted(leaves(state), key=lambda leaf: leaf[0]):
        sum_.update(name.encode())
        sum_.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sum_.hexdigest()


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) for each tensor of a nested state."""
    if isinstance(state, Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for name, value in state.items():
            yield from leaves(value, f"{path}/{name}")


# ---- files ----


def write(path: Path, text: str) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def fingerprint(file: Path) -> list[int]:
    """Size in bytes and checksum of a file."""
    content = file.read_bytes()
    return [len(content), zlib.crc32(content)]


def rank_bytes(checkpoint: Path, ranks: int) -> list[int]:
    """Bytes on disk that each rank wrote."""
    return [sum(file.stat().st_size for file in checkpoint.glob(f"__{rank}_*")) for rank in range(ranks)]


# ---- the first run: save, resume, leave out, reshard, write asynchronously, break ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements that this many ranks can make, one stage after another; rank 0 returns them.

    With ``ctx.params["kill"]`` it keeps them instead, under ``"measured"``, and the last rank dies in one more save.
    """
    # Under torchrun every rank brings a folder: the first one's counts.
    folder = Path(ctx.gather(ctx.params["folder"])[0])
    lab = _Lab(ctx, folder)
    lab.begin()
    resumes = [(part, partial(lab.resume_without, part)) for part in ("", *PARTS[1:])]
    stages = [
        *[
            Stage("resumes", f"resume without {part}" if part else "resume with everything", step)
            for part, step in resumes
        ],
        *[
            Stage("reshards", f"go on with {ranks_words(n)}", partial(lab.reshard, n))
            for n in ctx.params["teams"]
        ],
        Stage("saves", "save and async_save", lab.time_saves),
        Stage("damages", "damaged checkpoints", lab.load_damaged),
    ]
    measured = run_stages(ctx, stages, **lab.facts)
    if ctx.params["kill"]:
        if ctx.rank == 0:
            ctx.keep("measured", measured)
        ctx.barrier()
        die_while_saving(ctx, folder)
    return measured


class _Lab:
    """The stages share an uninterrupted run and its checkpoint."""

    def __init__(self, ctx: Context, folder: Path) -> None:
        self.ctx, self.folder = ctx, folder
        self.width, self.batch = ctx.params["width"], ctx.params["batch"]
        self.before, self.after = ctx.params["steps_before"], ctx.params["steps_after"]
        self.still: list[float] = []

    def begin(self) -> None:
        """Train, save, train on: the run that nothing interrupts."""
        self.ctx.progress("the uninterrupted run")
        training = self._fresh(seed=0)
        train(training, self.before, self.batch)
        save(training, self.folder)
        self.saved = digest(training)
        self.trail = train(training, self.after, self.batch)
        self.losses = mean_losses(self.ctx, self.trail)
        self.facts = {
            "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
            "losses": self.losses,
            "digest": self.saved,
        }

    def _fresh(self, seed: int, width: int | None = None) -> Training:
        training = new_training(self.ctx, self.ctx.ranks, width or self.width, seed=seed)
        assert training is not None
        return training

    def resume_without(self, part: str) -> list[dict[str, Any]]:
        """A new process's run (other seeds), which loads all but one part and goes on beside the uninterrupted one."""
        training = self._fresh(seed=1)
        load(training, self.folder, [name for name in PARTS if name != part])
        trail = train(training, self.after, self.batch)
        losses = mean_losses(self.ctx, trail)
        row = {
            "missing": part,
            "losses": losses,
            "loss_gaps": [abs(a - b) for a, b in zip(losses, self.losses, strict=True)],
            "parameter_gaps": parameter_gaps(self.ctx, trail, self.trail),
        }
        return [row]

    def reshard(self, n: int) -> list[dict[str, Any]]:
        """Go on with ``n`` ranks. Dropout is off: random states belong to ranks, and can't be resharded."""
        row = reshard(self.ctx, n, self.folder, self.saved, self.still)
        # The first of them keeps the number of ranks: the others are compared with it.
        self.still = self.still or row["losses"]
        return [row]

    def time_saves(self) -> list[dict[str, Any]]:
        """Save a wider model: waiting for the disk, and with ``async_save`` on a group of its own."""
        training = self._fresh(seed=0, width=self.ctx.params["wide"])
        train(training, 1, self.batch)
        own_group = dist.new_group(backend="gloo")
        places = [
            self.folder / f"{kind}-{turn}" for kind in ("sync", "async") for turn in range(ASYNC_REPEATS)
        ]
        half = ASYNC_REPEATS
        timed = [time_save(self.ctx, training, place) for place in places[:half]]
        timed_async = [
            time_async_save(self.ctx, training, place, own_group, self.batch) for place in places[half:]
        ]
        row = {
            "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
            "rank_bytes": rank_bytes(places[0], self.ctx.ranks),
            "save_s": statistics.median(timed),
            "blocked_s": statistics.median([one["blocked_s"] for one in timed_async]),
            "durable_s": statistics.median([one["durable_s"] for one in timed_async]),
            "steps_meanwhile": min(one["steps"] for one in timed_async),
            "snapshot_exact": all(
                self._holds(place, one["digest"])
                for place, one in zip(places[half:], timed_async, strict=True)
            ),
        }
        self.ctx.barrier()
        if self.ctx.rank == 0:
            for place in places:
                shutil.rmtree(place)
        return [row]

    def _holds(self, place: Path, wanted: str) -> bool:
        """Whether a checkpoint holds the state with this digest, bit by bit."""
        training = self._fresh(seed=2, width=self.ctx.params["wide"])
        state = state_of(training, PARTS[:2])
        dcp.load(state, storage_reader=FileSystemReader(place), process_group=training.group)
        put_back(training, state)
        return digest(training) == wanted

    def load_damaged(self) -> list[dict[str, Any]]:
        """Damage copies of the checkpoint; load each with the check before, and with DCP alone. Rank 0 does it."""
        if self.ctx.rank:
            return []
        return [load_damaged(self.ctx, self.folder, self.saved, name) for name in DAMAGES]


def reshard(ctx: Context, n: int, folder: Path, saved: str, reference: list[float]) -> dict[str, Any]:
    """Load the latest checkpoint on ``n`` ranks and go on, without dropout; ``reference`` losses to compare with."""
    training = new_training(ctx, n, ctx.params["width"], seed=1, dropout=0.0)
    exact = None
    if training is not None:
        load(training, folder, [part for part in PARTS if part != "random state"])
        exact = digest(training) == saved
    losses = mean_losses(ctx, train(training, ctx.params["steps_after"], ctx.params["batch"]))
    return {
        "ranks": n,
        "exact": all(members(ctx, exact)),
        "losses": losses,
        "loss_gaps": [abs(a - b) for a, b in zip(losses, reference or losses, strict=True)],
    }


def time_save(ctx: Context, training: Training, place: Path) -> float:
    """Seconds that ``dcp.save`` stops training: the slowest rank's."""
    state = state_of(training, PARTS)
    ctx.barrier()
    began = time.perf_counter()
    dcp.save(state, storage_writer=FileSystemWriter(place), process_group=training.group)
    return float(max(ctx.gather(time.perf_counter() - began)))


def time_async_save(ctx: Context, training: Training, place: Path, group: Any, batch: int) -> dict[str, Any]:
    """Seconds that ``async_save`` stops training, and seconds until the files are there; trains on in between."""
    before = digest(training)
    state = state_of(training, PARTS)
    ctx.barrier()
    began = time.perf_counter()
    # On the group that training uses, its messages and the step's would meet each other, and gloo aborts.
    future = dcp.async_save(state, storage_writer=FileSystemWriter(place), process_group=group)
    blocked = time.perf_counter() - began
    written: list[float] = []
    future.add_done_callback(lambda _: written.append(time.perf_counter() - began))
    steps = 0
    # All ranks take the same number of steps: they meet in each.
    while not all(ctx.gather(bool(written))):
        training_step(training, batch)
        finish(ctx)
        steps += 1
    future.result()
    return {
        "blocked_s": max(ctx.gather(blocked)),
        "durable_s": max(ctx.gather(written[0])),
        "steps": steps,
        "digest": before,
    }


# ---- damage ----


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _flip(file: Path) -> None:
    """Turn one bit over in the middle of the file: in the middle of a tensor."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "no metadata": (".metadata", Path.unlink),
    "a rank's file is missing": ("__0_0.distcp", Path.unlink),
    "a rank's file is cut in half": ("__0_0.distcp", _cut),
    "one bit has flipped": ("__0_0.distcp", _flip),
}


def load_damaged(ctx: Context, folder: Path, saved: str, name: str) -> dict[str, Any]:
    """What our check says of a damaged copy, and what DCP does with it unasked."""
    copy = folder / "damaged"
    shutil.copytree(folder / (folder / "latest").read_text(), copy)
    file, damage = DAMAGES[name]
    damage(copy / file)
    row = {"damage": name, "refused": refusal(copy), "alone": plain_load(ctx, copy, saved)}
    shutil.rmtree(copy)
    return row


def refusal(checkpoint: Path) -> str | None:
    """Why a checkpoint must not be loaded; None if it may."""
    try:
        check_complete(checkpoint)
    except IncompleteCheckpoint as error:
        return str(error)
    return None


def plain_load(ctx: Context, checkpoint: Path, saved: str) -> str:
    """What DCP does by itself: ``"refuses"``, ``"loads it"``, or ``"loads something else"``."""
    training = build(ctx, ctx.params["width"], 3, 0.0, None)
    state = state_of(training, PARTS[:2])
    try:
        dcp.load(state, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    except (Exception, CheckpointException):
        # DCP wraps whatever stopped it in an exception that is not an Exception.
        return "refuses"
    put_back(training, state)
    return "loads it" if digest(training) == saved else "loads something else"


# ---- the end of the first run: killed while saving ----


def write_half_and_die(writer: FileSystemWriter, plan: Any, planner: Any) -> None:
    """In place of ``FileSystemWriter.write_data``: half of what it should write, and then its process is killed."""
    half = replace(plan, items=plan.items[: len(plan.items) // 2])
    FileSystemWriter.write_data(writer, half, planner).wait()
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_saving(ctx: Context, folder: Path) -> None:
    """Go on from the latest checkpoint, and lose the last rank in the middle of the next save."""
    training = new_training(ctx, ctx.ranks, ctx.params["width"], seed=1)
    assert training is not None
    load(training, folder, PARTS)
    train(training, 2, ctx.params["batch"])
    writer = FileSystemWriter(folder / f"step-{training.position}.draft")
    if ctx.rank == ctx.ranks - 1:
        writer.write_data = partial(write_half_and_die, writer)
    dcp.save(state_of(training, PARTS), storage_writer=writer, process_group=training.group)


# ---- the second run: come back, on more ranks ----


def come_back(ctx: Context) -> dict[str, Any]:
    """Look at what the killed run left, then go on from the latest complete checkpoint with all of these ranks."""
    folder = Path(ctx.params["folder"])
    drafts = sorted(folder.glob("step-*.draft"))
    left = drafts[-1] if drafts else None
    row = reshard(ctx, ctx.ranks, folder, ctx.params["digest"], ctx.params["still"])
    return {
        "latest": (folder / "latest").read_text(),
        "left": left and left.name,
        "left_bytes": sum(file.stat().st_size for file in left.iterdir()) if left else 0,
        "refused": left and refusal(left),
        "reshard": row,
    }
