"""Closed forms for pipelines with equal stages: bubble, in-flight micro-batches, messages, micro-batches needed.

Two ratios are called "bubble": idle time over total time and idle time over ideal (working) time. Every function
here says in its name which one it means. The executor in :mod:`shardlab.models.pipeline` needs none of these.
"""

from __future__ import annotations

from shardlab.checks import choice, count, non_negative, positive
from shardlab.models.memory_activations import in_flight_core
from shardlab.models.pipeline_executor import pipeline_model
from shardlab.models.pipeline_schedules import checked_sizes, placement_of


def bubble_of_total(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle over total time of gpipe, 1f1b and interleaved-1f1b: ``(p-1) / (v m + p - 1)``.

    Args:
        stages: p, 1 or more.
        micro_batches: m, 1 or more.
        chunks: v, model chunks per rank; 1 for gpipe and 1f1b, which have the same bubble.

    Raises:
        ValueError: a size is not a whole number from 1.

    Assumes equal stages and free transfers. Any times for forward and backward give the same ratio.
    Sources: Huang et al. (arXiv 1811.06965), section 2.3; Narayanan et al. (arXiv 2104.04473), section 2.2.
    """
    ranks, batches, per_rank = (
        count("stages", stages),
        count("micro_batches", micro_batches),
        count("chunks", chunks),
    )
    return (ranks - 1) / (per_rank * batches + ranks - 1)


def bubble_of_ideal(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle over ideal time of gpipe, 1f1b and interleaved-1f1b: ``(p-1) / (v m)``.

    The ratio that the Megatron papers quote and that Llama 3 gives for its own schedule.

    Args and errors as in :func:`bubble_of_total`.
    Sources: Narayanan et al. (arXiv 2104.04473), section 2.2; Llama 3 (arXiv 2407.21783), section 3.3.2.
    """
    ranks, batches, per_rank = (
        count("stages", stages),
        count("micro_batches", micro_batches),
        count("chunks", chunks),
    )
    return (ranks - 1) / (per_rank * batches)


def micro_batches_for_bubble(stages: int, target: float, chunks: int = 1, ratio: str = "total") -> int:
    """The fewest micro-batches with a bubble of at most ``target``.

    ``m = (p-1)(1-t) / (t v)`` for idle over total, ``(p-1) / (t v)`` for idle over ideal, rounded up; with chunks,
    rounded up to a multiple of p, which interleaved-1f1b needs. 8 stages and 10 % of total time need 63.

    Args:
        stages: ``p``.
        target: above 0; below 1 for ``"total"``.
        chunks: ``v``.
        ratio: ``"total"`` or ``"ideal"``: which ratio ``target`` means.

    Raises:
        ValueError: an argument is out of range.
    """
    ranks, per_rank = count("stages", stages), count("chunks", chunks)
    kind = choice("ratio", ratio, ("total", "ideal"))
    limit = positive("target", target)
    if kind == "total" and limit >= 1:
        raise ValueError(f"target must be below 1 for ratio='total', not {target!r}")
    wanted = (ranks - 1) * (1 - limit if kind == "total" else 1.0) / (limit * per_rank)
    step = ranks if per_rank > 1 else 1
    # A whole-number answer may come out a few bits too high.
    steps = int(wanted * (1 - 1e-12) / step)
    while steps < 1 or steps * step < wanted * (1 - 1e-12):
        steps += 1
    return steps * step


def published_bubble_s(
    schedule: str,
    stages: int,
    forward_s: float,
    backward_input_s: float,
    backward_weight_s: float,
    chunks: int = 1,
) -> float:
    """Seconds that one rank idles in a step, by the formula that each schedule was published with.

    With F, B, W the seconds of one micro-batch on one rank (all its chunks): gpipe and 1f1b ``(p-1)(F+B+W)``,
    interleaved-1f1b that over v, zb-h1 ``(p-1)(F+B-W)``, zb-h2 ``(p-1)(F+B-2W)``, zb-v 0, dualpipe-v
    ``(p-1)(F+2B-W)/2``: its published ``(PP/2-1)(F&B + B - 3W)`` is per chunk, counts PP = 2p stages, takes a whole
    backward as B, and the overlapped pair F&B here takes the sum of its parts.

    Args:
        schedule: one of ``SCHEDULES``.
        stages: ``p``.
        forward_s, backward_input_s, backward_weight_s: seconds, one number each.
        chunks: v for interleaved-1f1b.

    Raises:
        ValueError: an argument is out of range, or times for which the formula was not meant: W above F or B for
            zb-h1 and zb-h2, unequal F, B, W for zb-v.

    gpipe, 1f1b, interleaved-1f1b and zb-h1 idle that long within the makespan; zb-h2 and zb-v within the longest span
    of one rank, as ranks start and stop late. dualpipe-v's formula is exact for F = B = W, else an estimate.
    Sources: as in :func:`shardlab.models.pipeline.schedule_operations`; Zero Bubble, Table 2; DualPipe README.
    """
    # Any number of micro-batches will do: p suits every schedule.
    name, ranks, _, per_rank = checked_sizes(schedule, stages, count("stages", stages), chunks)
    forward = non_negative("forward_s", forward_s, "seconds")
    backward = non_negative("backward_input_s", backward_input_s, "seconds")
    weight = non_negative("backward_weight_s", backward_weight_s, "seconds")
    if name in ("gpipe", "1f1b", "interleaved-1f1b"):
        return (ranks - 1) * (forward + backward + weight) / per_rank
    if name == "zb-v":
        if not forward == backward == weight:
            raise ValueError(
                "forward_s, backward_input_s and backward_weight_s must be equal for zb-v's published bubble (0), "
                f"not {forward_s!r}, {backward_input_s!r}, {backward_weight_s!r}; simulate it instead"
            )
        return 0.0
    if name == "dualpipe-v":
        return (ranks - 1) * (forward + 2 * backward - weight) / 2
    hidden = 1 if name == "zb-h1" else 2
    if weight > min(forward, backward):
        raise ValueError(
            f"backward_weight_s must be at most forward_s and backward_input_s for {name}'s published bubble, "
            f"not {backward_weight_s!r}; simulate it instead"
        )
    return (ranks - 1) * (forward + backward - hidden * weight)


def published_in_flight_peak(
    schedule: str, stages: int, micro_batches: int, chunks: int = 1
) -> tuple[float, ...]:
    """Most micro-batches in flight per rank r, from the start of F to the end of W (a chunk counts 1/v).

    gpipe m; 1f1b p-r; interleaved-1f1b ((v-1)p + 2(p-1-r) + 1)/v, which is p + (p-1)/v on rank 0; zb-h1 p; zb-h2 2p-1;
    zb-v p; dualpipe-v p + 1/2. Never more than m.

    Args and errors as in :func:`shardlab.models.pipeline.schedule_operations`.
    Sources: Narayanan et al. (arXiv 2104.04473), section 2.2; Korthikanti et al. (arXiv 2205.05198), section 4.2.3;
    Zero Bubble (arXiv 2401.10241), Table 2 and section 6; DualPipe README (PP+1 chunks with PP = 2p).
    """
    name, ranks, batches, per_rank = checked_sizes(schedule, stages, micro_batches, chunks)
    return tuple([in_flight_core(name, ranks, rank, batches, per_rank) for rank in range(ranks)])


def p2p_sent_bytes(
    schedule: str, stages: int, micro_batches: int, message_bytes: float, chunks: int = 1
) -> tuple[float, ...]:
    """Bytes that each rank sends in one step: an activation onwards and a gradient back over every hop it sits on.

    Over all ranks ``2 m (p-1)`` messages with one chunk, ``2 m (p v - 1)`` interleaved (v times the traffic), and
    ``2 m * 2 (p-1)`` in a V, whose turn stays on the last rank.

    Args:
        schedule, stages, micro_batches, chunks: as in :func:`shardlab.models.pipeline.schedule_operations`.
        message_bytes: one activation, bytes: batch · sequence · hidden · bytes per element, divided by the tensor
            parallel degree if it is scattered before the send.

    Raises:
        ValueError: an argument is out of range.

    Source: Narayanan et al. (arXiv 2104.04473), sections 2.2.2, 3.2 and 4.1.
    """
    name, ranks, batches, per_rank = checked_sizes(schedule, stages, micro_batches, chunks)
    size = non_negative("message_bytes", message_bytes, "bytes")
    model = pipeline_model(ranks, batches, per_rank, placement_of(name), (1.0, 1.0, 1.0), 0.0)
    messages = [0] * ranks
    for stage in range(ranks * per_rank - 1):
        near, far = model.rank_of[stage], model.rank_of[stage + 1]
        if near != far:
            messages[near] += batches
            messages[far] += batches
    return tuple([number * size for number in messages])
