"""What the labs' workers share: stages with progress, bytes by the kernel, times, largest gaps. Runs on every rank.

Every rank must call these, in the same order: most of them meet the other ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.labs import wire
from shardlab.labs.rank import Context

# torch 2.13's names for what older versions call ..._tensor.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Stage:
    """A part of a lab.

    Attributes:
        name: where its rows go in the result; stages of one name add up.
        text: what the progress line says.
        measure: called on every rank; returns the stage's rows, the same on all ranks (or what rank 0 returns counts).
    """

    name: str
    text: str
    measure: Callable[[], list[dict[str, Any]]]


def run_stages(ctx: Context, stages: Sequence[Stage], **facts: Any) -> dict[str, Any] | None:
    """Measure stage by stage, hand over what is ready at once; rank 0 returns everything, with ``facts`` beside it.

    The result always has ``backend``, ``threads`` and ``reading``, as :class:`shardlab.labs.result.LabRun` wants them.
    """
    measured: dict[str, Any] = {
        "backend": ctx.backend,
        "threads": ctx.threads,
        "reading": reading_method(ctx),
        **facts,
    }
    for done, stage in enumerate(stages):
        ctx.progress(stage.text, done, len(stages))
        ctx.barrier()
        measured.setdefault(stage.name, []).extend(stage.measure())
        if ctx.rank == 0:
            ctx.keep(stage.name, measured[stage.name])
    ctx.progress("all measured", len(stages), len(stages))
    return measured if ctx.rank == 0 else None


def reading_method(ctx: Context) -> str | None:
    """How the kernel's count is read; None if TCP doesn't carry the data."""
    return wire.reading_method() if ctx.backend == "gloo" else None


def sent_bytes(ctx: Context) -> int | None:
    """The kernel's count for this process so far, the rendezvous left out; None where there is none."""
    method = reading_method(ctx)
    return wire.sent_bytes(method, ctx.rendezvous_port) if method else None


def count_sent(ctx: Context, action: Callable[[], object] | None) -> list[int] | None:
    """Bytes that each rank sends while all of them run ``action`` (None: this rank only waits), in the order of ranks.

    Run it once beforehand: connections open, and libraries settle, on first use. None where nothing can be counted.
    """
    ctx.barrier()
    before = sent_bytes(ctx)
    # Every rank has read its counter before any of them sends.
    ctx.barrier()
    if action is not None:
        action()
        finish(ctx)
    # When every rank has finished, everything that it sent has arrived.
    ctx.barrier()
    after = sent_bytes(ctx)
    sent = ctx.gather(None if before is None or after is None else after - before)
    return None if None in sent else sent


def members(ctx: Context, mine: Any) -> list[Any]:
    """Every team member's value, on all ranks; those outside the team give None."""
    return [value for value in ctx.gather(mine) if value is not None]


def finish(ctx: Context) -> None:
    """Wait for the device: a GPU's work goes on after the call returns."""
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()


def median_time_s(
    ctx: Context, action: Callable[[], object], *, repeats: int, warm_up: int = 2, group: Any = None
) -> float:
    """Median seconds of ``action`` on this rank, all ranks of ``group`` (None: of the run) starting together."""
    times = []
    for _ in range(warm_up + repeats):
        dist.barrier(group=group)
        began = time.perf_counter()
        action()
        finish(ctx)
        times.append(time.perf_counter() - began)
    return statistics.median(times[warm_up:])


def worst(gaps: Iterable[float]) -> float:
    """The largest gap; NaN if any is NaN, which max() may drop: a comparison with one must fail."""
    return max(gaps, key=lambda gap: (gap != gap, gap))


def largest_gap(ones: Iterable[Tensor], others: Iterable[Tensor]) -> float:
    """The largest absolute difference between two lists of tensors of the same shapes; NaN if any differs by NaN."""
    return worst(
        [float((a.detach() - b.detach()).abs().max().item()) for a, b in zip(ones, others, strict=True)]
    )


def relative_gap(ones: Iterable[Tensor], others: Iterable[Tensor]) -> float:
    """:func:`largest_gap` as a fraction of the largest entry of ``others``.

    One scale serves all tensors: one that should be zero, such as a key bias' gradient, has none of its own.
    """
    expected = list(others)
    scale = max([float(tensor.detach().abs().max()) for tensor in expected])
    return largest_gap(ones, expected) / scale


def worst_of_ranks(ctx: Context, gaps: dict[str, float]) -> dict[str, float]:
    """The largest of each gap over all ranks; NaN if any rank has one."""
    return worst_of_rows(ctx.gather(gaps))


def worst_of_rows(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The largest of each gap over the rows; NaN if any has one."""
    return {name: worst([row[name] for row in rows]) for name in rows[0]}
