"""What every rank of the pipeline lab runs: torch's schedules and two loops by hand, timed on one clock.

The code to read is :class:`HandStage` with :func:`gpipe_step` and :func:`one_f_one_b_step`: two whole pipelines.
The model is the same everywhere: two blocks per rank, so that a rank can hold one stage of two blocks, or two of one.

Every operation is stretched to a given length by sleeping. Two cores can't compute four stages at once, but any
number of ranks can sleep at once, and an order of operations costs the same idle time whatever fills them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from shardlab.labs.measure import Stage, largest_gap, members, run_stages
from shardlab.labs.rank import Context
from shardlab.models.pipeline_schedules import KINDS, operation_text, stage_of

FEATURES = 64
SAMPLES = 4  # in one micro-batch
BLOCKS_PER_RANK = 2
DEADLOCK_RANKS = 2
PATIENCE_S = 2.0  # some thousand times what the messages take

Batch = tuple[Tensor, Tensor]


# ---- the code to read ----


class HandStage:
    """One rank of a pipeline: it computes, and talks to its neighbours."""

    def __init__(
        self,
        module: nn.Module,
        rank: int,
        ranks: int,
        batches: list[Batch],  # the micro-batches: inputs, targets
        diary: Diary,
    ) -> None:
        self.module, self.rank, self.diary = module, rank, diary
        self.first, self.last = rank == 0, rank == ranks - 1
        self.batches = batches
        self.share = torch.tensor(1 / len(batches))  # the loss is the mean
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}
        self.sends: list[tuple[Any, Tensor]] = []
        self.losses: list[float] = []

    def forward(self, i: int) -> None:
        x, target = self.batches[i]
        if not self.first:
            x = self.receive(x, self.rank - 1).requires_grad_()
        with self.diary.operation("F", i):
            out = self.module(x)
        if self.last:
            out = F.mse_loss(out, target)
            self.losses.append(out.item())
        else:
            self.send(out.detach(), self.rank + 1)
        self.saved[i] = x, out  # kept until the backward
        self.diary.holds(len(self.saved))

    def backward(self, i: int) -> None:
        x, out = self.saved.pop(i)
        grad = self.share if self.last else self.receive(out, self.rank + 1)
        with self.diary.operation("BW", i):
            out.backward(grad.to(out.device))
        if not self.first:
            self.send(x.grad, self.rank - 1)

    def receive(self, like: Tensor, sender: int) -> Tensor:
        tensor = torch.empty_like(like)
        dist.recv(tensor, sender)
        return tensor

    def send(self, tensor: Tensor, receiver: int) -> None:
        # Doesn't wait; the tensor must live until it is gone.
        self.sends.append((dist.isend(tensor, receiver), tensor))


class PatientStage(HandStage):
    """The same, but its sends wait until they are received."""

    sent, stands = 0, "at its start"

    def send(self, tensor: Tensor, receiver: int) -> None:
        self.sent += 1
        self.stands = f"in send number {self.sent}, to rank {receiver}"
        dist.send(tensor, receiver)
        self.stands = "between two sends"


def gpipe_step(stage: HandStage, rank: int, ranks: int, m: int) -> None:
    """GPipe: all forwards, then all backwards; m micro-batches saved."""
    for i in range(m):
        stage.forward(i)
    for i in range(m):
        stage.backward(i)


def one_f_one_b_step(stage: HandStage, rank: int, ranks: int, m: int) -> None:
    """1F1B: fill the pipeline, then take turns; ranks - rank saved."""
    ahead = min(ranks - 1 - rank, m)
    for i in range(ahead):
        stage.forward(i)
    for i in range(m - ahead):
        stage.forward(ahead + i)
        stage.backward(i)
    for i in range(m - ahead, m):
        stage.backward(i)


# ---- what a rank did, and when ----


class Diary:
    """Stretches operations to their length and notes their begin and end.

    Args:
        rank, ranks: of the pipeline.
        chunks: stages per rank.
        seconds: of one stage's ``"F"``, ``"B"`` (input gradient) and ``"W"`` (weight gradient).
    """

    def __init__(self, rank: int, ranks: int, chunks: int, seconds: dict[str, float]) -> None:
        self.ranks, self.chunks, self.seconds = ranks, chunks, seconds
        self.rank = rank
        self.entries: list[tuple[str, float, float]] = []
        self.most_held = 0

    @contextlib.contextmanager
    def operation(self, kinds: str, batch: int, chunk: int = 0) -> Iterator[None]:
        """One operation, or ``"BW"``: both gradients in one go."""
        # The system's clock since it started: the same for all processes of one machine.
        began = time.monotonic()
        yield
        rest = began + sum([self.seconds[kind] for kind in kinds]) - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        slots = [KINDS.index(kind) * self.chunks + chunk for kind in kinds]
        text = "+".join([operation_text(slot, batch, self.chunks) for slot in slots])
        self.entries.append((text, began, time.monotonic()))

    def holds(self, n: int) -> None:
        """Note that ``n`` stage inputs and outputs wait for their backward now."""
        self.most_held = max(self.most_held, n)


class TimedStage(PipelineStage):  # type: ignore[misc]  # torch is untyped to mypy
    """torch's own stage, with a diary: it computes and talks as ever."""

    def __init__(self, module: nn.Module, index: int, total: int, ctx: Context, diary: Diary, chunk: int):
        super().__init__(module, index, total, ctx.device)
        self.diary, self.chunk = diary, chunk
        self.mates: Sequence[TimedStage] = (self,)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.diary.operation("F", fwd_chunk_id, self.chunk):
            out = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self.diary.holds(sum([len(mate.fwd_cache) + len(mate.backward_state) for mate in self.mates]))
        return out

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        kinds = "BW" if kwargs.get("full_backward", True) else "B"
        with self.diary.operation(kinds, bwd_chunk_id, self.chunk):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self.diary.operation("W", bwd_chunk_id, self.chunk):
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


# ---- the lab ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """Every schedule asked for, one after the other; rank 0 returns what each rank did and when."""
    stages = [
        Stage("schedules", row["name"], partial(measure_schedule, ctx, **row))
        for row in ctx.params["schedules"]
    ]
    if ctx.params["deadlock"]:
        # The last: two ranks will be stuck in it for good.
        stages.append(Stage("deadlock", "1F1B with sends that wait", partial(find_deadlock, ctx)))
    return run_stages(ctx, stages)


def find_deadlock(ctx: Context) -> list[dict[str, Any]]:
    """1F1B on ranks 0 and 1 with sends that wait: where both stand when nothing has moved for a while."""
    mine = None
    if ctx.rank < DEADLOCK_RANKS:
        batches = make_batches(ctx)[:DEADLOCK_RANKS]
        module = build_blocks(blocks_of(ctx.rank, 1)).to(ctx.device)
        diary = Diary(ctx.rank, DEADLOCK_RANKS, 1, dict.fromkeys(KINDS, 0.0))
        stage = PatientStage(module, ctx.rank, DEADLOCK_RANKS, batches, diary)
        # In a thread of its own, so that this one can look on; it ends with the process.
        step = partial(one_f_one_b_step, stage, ctx.rank, DEADLOCK_RANKS, len(batches))
        thread = threading.Thread(target=step, daemon=True)
        thread.start()
        mine = {"stands": where_it_stays(thread, stage)}
    return members(ctx, mine)


def where_it_stays(thread: threading.Thread, stage: PatientStage) -> str:
    """Where a stage stands that hasn't moved for :data:`PATIENCE_S`, or that it has finished."""
    stands, since = stage.stands, time.monotonic()
    while thread.is_alive() and time.monotonic() < since + PATIENCE_S:
        thread.join(0.05)
        if stage.stands != stands:
            stands, since = stage.stands, time.monotonic()
    return stands if thread.is_alive() else "finished"


def measure_schedule(
    ctx: Context, name: str, torch_class: str | None, chunks: int, placement: str
) -> list[dict[str, Any]]:
    """One step of a schedule: its diary on every rank, and how far it is from the unsplit model."""
    batches = make_batches(ctx)
    seconds = {kind: ctx.params["seconds"][kind] / chunks for kind in KINDS}
    diary = Diary(ctx.rank, ctx.ranks, chunks, dict.fromkeys(KINDS, 0.0))
    indices = [stage_of(ctx.rank, chunk, ctx.ranks, placement) for chunk in range(chunks)]
    modules = [build_blocks(blocks_of(index, chunks)).to(ctx.device) for index in indices]
    step = (
        partial(hand_step, ctx, name, modules[0], batches, diary)
        if torch_class is None
        else torch_step(ctx, torch_class, modules, indices, batches, diary)
    )
    # Connections open and torch learns the shapes on the first step, which takes no time to speak of.
    step()
    for module in modules:
        module.zero_grad()
    diary.entries.clear()
    diary.most_held, diary.seconds = 0, seconds
    ctx.barrier()
    losses = step()
    mine = {
        "losses": losses,
        "gap": gradient_gap(ctx, modules, indices, chunks, batches),
        "order": " ".join([text for text, _, _ in diary.entries]),
        "times": [(begin, end) for _, begin, end in diary.entries],
        "held": diary.most_held,
    }
    return [joined(ctx.gather(mine), name, chunks, unsplit_losses(ctx, batches))]


def hand_step(ctx: Context, name: str, module: nn.Module, batches: list[Batch], diary: Diary) -> list[float]:
    """One step of a loop written by hand; the losses, on the last rank."""
    stage = HandStage(module, ctx.rank, ctx.ranks, batches, diary)
    loop = {"gpipe-by-hand": gpipe_step, "1f1b-by-hand": one_f_one_b_step}[name]
    loop(stage, ctx.rank, ctx.ranks, len(batches))
    for work, _ in stage.sends:
        work.wait()
    return stage.losses


def torch_step(
    ctx: Context,
    torch_class: str,
    modules: list[nn.Module],
    indices: list[int],
    batches: list[Batch],
    diary: Diary,
) -> Callable[[], list[float]]:
    """One step of torch's schedule as a function; it returns the losses, on the rank that holds the model's end."""
    total = ctx.ranks * len(modules)
    stages = [
        TimedStage(module, index, total, ctx, diary, chunk)
        for chunk, (module, index) in enumerate(zip(modules, indices, strict=True))
    ]
    for stage in stages:
        stage.mates = stages
    several = torch_class not in ("ScheduleGPipe", "Schedule1F1B")
    schedule = getattr(pipelining, torch_class)(
        stages if several else stages[0], n_microbatches=len(batches), loss_fn=F.mse_loss
    )
    x = torch.cat([x for x, _ in batches])
    y = torch.cat([y for _, y in batches])

    def step() -> list[float]:
        losses: list[Tensor] = []
        inputs = (x,) if 0 in indices else ()
        ends = {"target": y, "losses": losses} if total - 1 in indices else {}
        schedule.step(*inputs, **ends, return_outputs=False)
        return [loss.item() for loss in losses]

    return step


def joined(rows: list[dict[str, Any]], name: str, chunks: int, alone: list[float]) -> dict[str, Any]:
    """All ranks' diaries as one row; time 0 is the first operation's begin."""
    zero = min([begin for row in rows for begin, _ in row["times"]])
    losses = next(row["losses"] for row in rows if row["losses"])
    return {
        "name": name,
        "chunks": chunks,
        "orders": [row["order"] for row in rows],
        "starts_s": [[round(begin - zero, 6) for begin, _ in row["times"]] for row in rows],
        "ends_s": [[round(end - zero, 6) for _, end in row["times"]] for row in rows],
        "in_flight": [row["held"] / chunks for row in rows],
        "loss_gap": largest_gap([torch.tensor(losses)], [torch.tensor(alone)]),
        # max() may drop a NaN.
        "gradient_gap": largest_gap([torch.tensor([row["gap"] for row in rows])], [torch.zeros(len(rows))]),
    }


# ---- the model, split and whole ----


def build_blocks(numbers: Iterable[int]) -> nn.Sequential:
    """These blocks of the model, one after the other; a block is the same wherever it is built."""
    blocks = []
    for number in numbers:
        torch.manual_seed(number)
        blocks.append(nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh()))
    return nn.Sequential(*blocks)


def blocks_of(stage: int, chunks: int) -> range:
    """The blocks of one stage where a rank holds ``chunks`` stages."""
    size = BLOCKS_PER_RANK // chunks
    return range(stage * size, (stage + 1) * size)


def make_batches(ctx: Context) -> list[Batch]:
    """The micro-batches, the same on every rank: inputs and targets, ``[SAMPLES, FEATURES]`` each."""
    batches = []
    for seed in range(ctx.params["micro_batches"]):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(SAMPLES, FEATURES, generator=generator).to(ctx.device)
        batches.append((x, torch.tanh(x.roll(1, dims=1))))
    return batches


def whole_model(ctx: Context) -> nn.Module:
    """All blocks in one process."""
    return build_blocks(range(ctx.ranks * BLOCKS_PER_RANK)).to(ctx.device)


def unsplit_losses(ctx: Context, batches: list[Batch]) -> list[float]:
    """Each micro-batch's loss in the unsplit model."""
    model = whole_model(ctx)
    with torch.no_grad():
        return [F.mse_loss(model(x), y).item() for x, y in batches]


def gradient_gap(
    ctx: Context,
    modules: list[nn.Module],
    indices: list[int],
    chunks: int,
    batches: list[Batch],
) -> float:
    """How far this rank's gradients are from those of the unsplit model on the global batch in one go."""
    model = whole_model(ctx)
    F.mse_loss(model(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])).backward()
    own = [parameter.grad for module in modules for parameter in module.parameters()]
    blocks = [model[number] for index in indices for number in blocks_of(index, chunks)]
    return largest_gap(own, [parameter.grad for block in blocks for parameter in block.parameters()])
