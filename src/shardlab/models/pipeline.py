"""Pipeline parallelism: run a schedule, or a list of operations of your own, and see what it costs.

A pipeline of p ranks works on m micro-batches. A schedule is nothing but a list of operations per rank
(:mod:`shardlab.models.pipeline_schedules`); one executor runs any such lists
(:mod:`shardlab.models.pipeline_executor`), and what came of it can be asked for bubble, memory, critical path and
the reason of every idle gap (:mod:`shardlab.models.pipeline_result`). This module is the one to import.
"""

from __future__ import annotations

from typing import Any

from shardlab.checks import choice, count, non_negative
from shardlab.models.pipeline_executor import PipelineModel, deadlock_words, pipeline_model, run_orders
from shardlab.models.pipeline_explain import IdleGap, Operation
from shardlab.models.pipeline_formulas import (
    bubble_of_ideal,
    bubble_of_total,
    micro_batches_for_bubble,
    p2p_sent_bytes,
    published_bubble_s,
    published_in_flight_peak,
)
from shardlab.models.pipeline_orders import ScheduleError, order_problems, read_orders, with_whole_backwards
from shardlab.models.pipeline_result import PipelineRun
from shardlab.models.pipeline_schedules import (
    PLACEMENTS,
    SCHEDULES,
    checked_sizes,
    placement_of,
    rank_orders,
    schedule_operations,
    schedule_warnings,
)
from shardlab.models.pipeline_trace import chrome_trace

__all__ = [
    "PLACEMENTS",
    "SCHEDULES",
    "IdleGap",
    "Operation",
    "PipelineRun",
    "ScheduleError",
    "bubble_of_ideal",
    "bubble_of_total",
    "chrome_trace",
    "execute",
    "makespan_s",
    "micro_batches_for_bubble",
    "p2p_sent_bytes",
    "published_bubble_s",
    "published_in_flight_peak",
    "schedule_operations",
    "schedule_problems",
    "simulate",
]


def simulate(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward_s: Any,
    backward_input_s: Any,
    backward_weight_s: Any,
    transfer_s: Any = 0.0,
    chunks: int = 1,
) -> PipelineRun:
    """Run one training step of a named schedule.

    Args:
        schedule: ``gpipe``, ``1f1b``, ``interleaved-1f1b``, ``zb-h1``, ``zb-h2``, ``zb-v`` or ``dualpipe-v``.
        stages: pipeline ranks p.
        micro_batches: ``m``. Below p is allowed, with a warning; interleaved-1f1b needs a multiple of p.
        forward_s: seconds of one micro-batch's forward on one rank. One number for all, or p numbers (one per rank),
            or, with chunks, p·v numbers (one per chunk in model order). A rank's time is shared equally by its chunks,
            so that the same arguments mean the same model under every schedule.
        backward_input_s: the same for the input gradient (about as long as the forward, without recomputation).
        backward_weight_s: the same for the weight gradient. gpipe, 1f1b and interleaved-1f1b run it in one go with
            the input gradient and pass the gradient on when both are done.
        transfer_s: seconds from the end of an operation on one rank to the moment its result can be used on the next.
            One number, or one per hop of the model (p·v-1). It holds up neither rank, and hops don't contend.
        chunks: model chunks per rank v, for interleaved-1f1b. zb-v and dualpipe-v have two anyway.

    Raises:
        ValueError: an argument is out of range or doesn't suit the schedule.

    The step runs to the last operation of the last rank; the optimizer is not in it. dualpipe-v's overlapped pairs
    take the sum of their parts: what they hide of the communication is not in the times either.
    Sources: as in :func:`schedule_operations`; transfer as it reproduces Table 5 of Zero Bubble (arXiv 2401.10241).
    """
    name, ranks, batches, per_rank = checked_sizes(schedule, stages, micro_batches, chunks)
    times = (forward_s, backward_input_s, backward_weight_s)
    model = pipeline_model(ranks, batches, per_rank, placement_of(name), times, transfer_s)
    warnings = schedule_warnings(name, ranks, batches, per_rank)
    return _run(name, rank_orders(name, ranks, batches, per_rank), model, warnings)


def execute(
    orders: Any,
    times: tuple[Any, Any, Any],
    transfer_s: Any = 0.0,
    chunks: int = 1,
    placement: str = "loop",
    micro_batches: int | None = None,
) -> PipelineRun:
    """Run your own schedule: one list of operations per rank.

    ``execute(["F0 F1 B0 B1", "F0 B0 F1 B1"], (1, 1, 1))`` is 1f1b on two ranks.

    Args:
        orders: per rank a list of entries, or one text with spaces. An entry is ``'F3'``, ``'B3'``, ``'W3'`` (with
            chunks ``'F3.1'``), a tuple ``('F', 3)`` or ``('F', 3, 1)``, or several joined, ``'B3+W3'``, which run back
            to back and whose results leave together. If there is no ``W`` at all, every ``B`` is the whole backward.
        times: ``(forward_s, backward_input_s, backward_weight_s)``, each as in :func:`simulate`.
        transfer_s, chunks: as in :func:`simulate`.
        placement: where the model's chunks are: ``"loop"`` (chunk c of rank r is c·p + r) or ``"v"`` (two chunks,
            down the ranks and back up).
        micro_batches: how many there are; by default as many as the lists mention.

    Raises:
        ScheduleError: a ``ValueError`` whose ``problems`` say what is missing, double, unknown or in the wrong
            order, or which ranks wait for each other in a circle.
        ValueError: another argument is out of range.
    """
    entries, model, problems = _read(orders, times, transfer_s, chunks, placement, micro_batches)
    if problems or model is None:
        raise ScheduleError(problems)
    return _run(
        "custom", entries, model, schedule_warnings("custom", model.stages, model.micro_batches, model.chunks)
    )


def schedule_problems(
    orders: Any, chunks: int = 1, placement: str = "loop", micro_batches: int | None = None
) -> list[str]:
    """What keeps your own schedule from running, one sentence each; empty if it is legal. Times don't matter.

    Args and errors as in :func:`execute`, except that faults of the lists are returned.
    """
    entries, model, problems = _read(orders, (1.0, 1.0, 1.0), 0.0, chunks, placement, micro_batches)
    if problems or model is None:
        return problems
    words = deadlock_words(run_orders(entries, model))
    return [words] if words else []


def makespan_s(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward_s: Any,
    backward_input_s: Any,
    backward_weight_s: Any,
    transfer_s: Any = 0.0,
    chunks: int = 1,
) -> float:
    """The makespan alone: by formula where stages are equal and a formula is exact, by the executor elsewhere.

    With T = F+B+W, c the transfer and p ranks (no transfer for p = 1):
    gpipe ``(m+p-1) T + 2(p-1) c``; 1f1b ``(m+p-1) T + 2 c floor((p-1)(m+p-1)/p)``, as every p micro-batches pay the
    round trip again; interleaved-1f1b ``(m + (p-1)/v) T + 2 (p v - 1) c`` while c is at most F/v and (B+W)/v;
    zb-h1 ``m T + (p-1)(F+B) - min(p-1, m-1) W`` while W is at most F and B, and c is 0.
    The transfer terms are derived here and tested against the executor.

    Args and errors as in :func:`simulate`.
    """
    name, ranks, batches, per_rank = checked_sizes(schedule, stages, micro_batches, chunks)
    times = (forward_s, backward_input_s, backward_weight_s)
    if isinstance(transfer_s, (int, float)) and all(isinstance(value, (int, float)) for value in times):
        known = _exact_makespan_s(name, ranks, batches, per_rank, times, transfer_s)
        if known is not None:
            return known
    return simulate(
        name, ranks, batches, forward_s, backward_input_s, backward_weight_s, transfer_s, per_rank
    ).makespan_s


def _exact_makespan_s(
    name: str, ranks: int, batches: int, per_rank: int, times: tuple[float, float, float], transfer_s: float
) -> float | None:
    """The formulas of :func:`makespan_s`; None where none of them holds."""
    forward = non_negative("forward_s", times[0], "seconds")
    backward = non_negative("backward_input_s", times[1], "seconds")
    weight = non_negative("backward_weight_s", times[2], "seconds")
    hop = non_negative("transfer_s", transfer_s, "seconds") if ranks > 1 else 0.0
    total = forward + backward + weight
    if total == 0:
        return None
    if name == "gpipe":
        return (batches + ranks - 1) * total + 2 * (ranks - 1) * hop
    if name == "1f1b" or (name == "interleaved-1f1b" and per_rank == 1):
        return (batches + ranks - 1) * total + 2 * hop * ((ranks - 1) * (batches + ranks - 1) // ranks)
    if name == "interleaved-1f1b" and hop * per_rank <= min(forward, backward + weight):
        return (batches + (ranks - 1) / per_rank) * total + 2 * (ranks * per_rank - 1) * hop
    if name == "zb-h1" and hop == 0 and weight <= min(forward, backward):
        return batches * total + (ranks - 1) * (forward + backward) - min(ranks - 1, batches - 1) * weight
    return None


def _read(
    orders: Any,
    times: tuple[Any, Any, Any],
    transfer_s: Any,
    chunks: int,
    placement: str,
    micro_batches: int | None,
) -> tuple[list[list[Any]], PipelineModel | None, list[str]]:
    """Entries, model and problems of lists that somebody wrote; no model if there are problems."""
    per_rank = count("chunks", chunks)
    where = choice("placement", placement, PLACEMENTS)
    if where == "v" and per_rank != 2:
        raise ValueError(f"chunks must be 2 for placement='v', not {chunks!r}")
    if isinstance(orders, str) or not orders:
        raise ValueError(f"orders must be a list with one list of operations per rank, not {orders!r}")
    if not isinstance(times, (tuple, list)) or len(times) != 3:
        raise ValueError(f"times must be (forward_s, backward_input_s, backward_weight_s), not {times!r}")
    ranks = len(orders)
    entries, mentioned, problems = read_orders(orders, per_rank)
    operations = max([len([pair for entry in order for pair in entry]) for order in entries])
    if mentioned > operations:
        problems.append(
            f"micro-batch {mentioned - 1} is mentioned, but no rank lists more than {operations} operations: "
            "number the micro-batches from 0 without gaps"
        )
    batches = mentioned if micro_batches is None else count("micro_batches", micro_batches)
    if not mentioned and not problems:
        problems.append("there are no operations")
    if not problems:
        problems = order_problems(entries, batches, per_rank)
    if problems:
        return entries, None, problems
    model = pipeline_model(ranks, batches, per_rank, where, times, transfer_s)
    return with_whole_backwards(entries, per_rank), model, []


def _run(name: str, orders: list[list[Any]], model: PipelineModel, warnings: tuple[str, ...]) -> PipelineRun:
    timeline = run_orders(orders, model)
    deadlock = deadlock_words(timeline)
    if deadlock:
        raise ScheduleError([deadlock])
    busy = []
    for rank in range(model.stages):
        per_micro_batch = 0.0
        for stage in model.stages_of[rank]:
            for seconds in model.durations_s:
                per_micro_batch += seconds[stage]
        busy.append(model.micro_batches * per_micro_batch)
    spans = [end - starts[0] for starts, end in zip(timeline.starts, timeline.ends)]
    longest = spans.index(max(spans))
    return PipelineRun(
        schedule=name,
        stages=model.stages,
        micro_batches=model.micro_batches,
        chunks=model.chunks,
        makespan_s=timeline.makespan_s,
        busy_s=tuple(busy),
        longest_stage_span_s=spans[longest],
        bubble_of_longest_span=max(1 - busy[longest] / spans[longest], 0.0),
        warnings=warnings,
        timeline=timeline,
    )
