"""Checkpoints and failures: how large, how long, how often, and what the answer costs.

Symbols: δ time that a checkpoint stops training, τ useful computing between checkpoints, M mean time between
failures of the whole job, R restart time after a failure. Sizes are bytes, times seconds. Failures are taken
as a Poisson process (exponential gaps, no memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.checks import choice, count, fraction, non_negative, positive

# ---------------------------------------------------------------- size and time

CONTENTS = (
    ("weights-16bit", 2.0, "16-bit weights only: enough to serve the model, not to resume"),
    ("weights-fp32", 4.0, "fp32 weights only: enough to serve or fine-tune, not to resume"),
    ("adam-12", 12.0, "fp32 weights and two fp32 moments: enough to resume; 16-bit weights are cast anew"),
    ("adam-14", 14.0, "16-bit weights beside fp32 weights and moments, as Megatron and DeepSpeed write them"),
)
"""Rows (name, bytes per parameter, what it is)."""

CONTENT_NAMES = tuple([row[0] for row in CONTENTS])


def checkpoint_bytes(params: float, contents: str = "adam-14") -> float:
    """Bytes of one checkpoint: parameters x bytes per parameter of ``CONTENTS``.

    A checkpoint that resumes exactly also needs step, scheduler, data position, random states and loss scale:
    kilobytes per rank, left out here.

    Raises:
        ValueError: ``params`` is not above 0 or the contents are unknown.

    Source: BLOOM-176B wrote 2.3 TB (Stas Bekman, ml-engineering): 14 bytes per parameter are 2,297 GiB;
    the 1T model of Narayanan et al. (arXiv 2104.04473), section 5.10, wrote 13.8 TB: 13.7 bytes.
    """
    size = positive("params", params, "parameters")
    name = choice("contents", contents, CONTENT_NAMES)
    return size * CONTENTS[CONTENT_NAMES.index(name)][1]


def transfer_time_s(
    n_bytes: float, storage_bandwidth: float, writers: int = 1, writer_bandwidth: float | None = None
) -> float:
    """Seconds to write (or read) a checkpoint: the storage or the writers, whichever is slower.

    ``max(n_bytes / storage_bandwidth, n_bytes / writers / writer_bandwidth)``.

    Args:
        n_bytes: the whole checkpoint.
        storage_bandwidth: bytes/s of the file system for all writers together.
        writers: ranks (or nodes) that write at once.
        writer_bandwidth: bytes/s of one; None is no limit.

    Raises:
        ValueError: an argument is out of range.
    """
    size = non_negative("n_bytes", n_bytes, "bytes")
    shared = size / positive("storage_bandwidth", storage_bandwidth, "bytes/s")
    n_writers = count("writers", writers)
    if writer_bandwidth is None:
        return shared
    return max(shared, size / n_writers / positive("writer_bandwidth", writer_bandwidth, "bytes/s"))


@dataclass(frozen=True)
class WriteTail:
    """When ranks finish writing one checkpoint.

    Attributes:
        last_rank: who finishes last.
        tail_s: how long it writes alone, after the second to last.
        tail_share: tail_s / the whole save.
        save_s: the whole save.
    """

    last_rank: int
    tail_s: float
    tail_share: float
    save_s: float


def write_tail(finished_s: list[float]) -> WriteTail:
    """Find the rank that writes alone at the end, from each rank's finishing time (seconds after the start).

    File timestamps are enough to see rank-0-only work: metadata, gathering, export.

    Raises:
        ValueError: fewer than two ranks, or a time that is negative or all zero.
    """
    if len(finished_s) < 2:
        raise ValueError(f"finished_s must hold at least two ranks, not {len(finished_s)}")
    times = [non_negative(f"finished_s[{rank}]", value, "seconds") for rank, value in enumerate(finished_s)]
    ordered = sorted(times)
    save = positive("the latest of finished_s", ordered[-1], "seconds")
    tail = save - ordered[-2]
    return WriteTail(last_rank=times.index(save), tail_s=tail, tail_share=tail / save, save_s=save)


def cluster_mtbf_s(component_mtbf_s: float, components: int) -> float:
    """Mean time between failures of a job that any one of its components stops: ``M / n``.

    Raises:
        ValueError: an argument is out of range.
    """
    return positive("component_mtbf_s", component_mtbf_s, "seconds") / count("components", components)


def observed_mtbf_s(period_s: float, failures: int) -> float:
    """Mean time between failures from a log: period / failures (54 days and 419 in Llama 3: 3.09 hours).

    Raises:
        ValueError: an argument is out of range.
    """
    return positive("period_s", period_s, "seconds") / count("failures", failures)


# ---------------------------------------------------------------- how often


def young_interval_s(write_s: float, mtbf_s: float) -> float:
    """Young's interval: ``sqrt(2 δ M)`` of computing between checkpoints; good for δ far below M.

    Raises:
        ValueError: an argument is out of range.

    Source: Young, Communications of the ACM 17(9), 1974.
    """
    return math.sqrt(2 * non_negative("write_s", write_s, "seconds") * positive("mtbf_s", mtbf_s, "seconds"))


def daly_first_order_interval_s(write_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Daly's first-order interval: ``sqrt(2 δ (M + R))``.

    The restart term belongs to his first derivation; in the exact model R moves the cost, not the optimum.

    Raises:
        ValueError: an argument is out of range.

    Source: Daly, ICCS 2003, LNCS 2660.
    """
    return young_interval_s(
        write_s, positive("mtbf_s", mtbf_s, "seconds") + non_negative("restart_s", restart_s, "seconds")
    )


def daly_interval_s(write_s: float, mtbf_s: float) -> float:
    """Daly's higher-order interval: ``sqrt(2δM) (1 + sqrt(δ/2M)/3 + (δ/2M)/9) - δ`` for δ < 2M, else M.

    Raises:
        ValueError: an argument is out of range.

    Source: Daly, Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    write = non_negative("write_s", write_s, "seconds")
    mtbf = positive("mtbf_s", mtbf_s, "seconds")
    ratio = write / (2 * mtbf)
    if ratio >= 1:
        return mtbf
    return math.sqrt(2 * write * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write


def _log_gap(x: float) -> float:
    """``-(x + log(1 - x))`` for 0 <= x < 1, without cancellation: x**2/2 + x**3/3 + ..."""
    if x > 0.1:
        return -(x + math.log(1 - x))
    total, power = 0.0, x
    for term in range(2, 26):
        power *= x
        total += power / term
    return total


def optimal_interval_s(write_s: float, mtbf_s: float) -> float:
    """The interval that minimises expected time per useful second, exactly: ``M (1 + W(-exp(-1 - δ/M)))``.

    W is Lambert's function (principal branch). It solves ``(1 - τ/M) exp(τ/M) = exp(-δ/M)``, the zero of the
    derivative of :func:`expected_segment_time_s` / τ; R cancels. Always below M.

    Args:
        write_s: δ; 0 gives 0 (checkpoint all the time).
        mtbf_s: ``M``.

    Raises:
        ValueError: an argument is out of range.

    Source: Daly (2006), section 4, gives the exact cost; the closed form follows by substitution.
    """
    write = non_negative("write_s", write_s, "seconds")
    mtbf = positive("mtbf_s", mtbf_s, "seconds")
    target = write / mtbf
    if target == 0:
        return 0.0
    # Solve -(x + log(1-x)) = δ/M by Newton's method, kept between bounds that always hold the root.
    low, high = 0.0, 1.0
    x = min(math.sqrt(2 * target), 1 - math.exp(-1 - target))
    for _ in range(80):
        if x >= 1.0:
            return mtbf
        gap = _log_gap(x) - target
        if gap > 0:
            high = x
        else:
            low = x
        new = x - gap * (1 - x) / x
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - x) <= 1e-15 * x:
            return new * mtbf
        x = new
    return x * mtbf


def expected_segment_time_s(
    interval_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Expected wall time until τ of computing and its checkpoint are done, failures included.

    ``M exp(R/M) (exp((τ+δ)/M) - 1)``: every failure throws the segment back to its start and costs a restart,
    which can fail as well. Infinite where the exponent leaves the range of a float.

    Raises:
        ValueError: an argument is out of range.

    Source: Daly, Future Generation Computer Systems 22(3), 2006, section 4.
    """
    interval = positive("interval_s", interval_s, "seconds")
    write = non_negative("write_s", write_s, "seconds")
    mtbf = positive("mtbf_s", mtbf_s, "seconds")
    restart = non_negative("restart_s", restart_s, "seconds")
    work = (interval + write) / mtbf
    if work + restart / mtbf > 700:
        return math.inf
    # exp(x) - 1 by its series where subtraction would cancel.
    grown = work * (1 + work / 2 * (1 + work / 3 * (1 + work / 4))) if work < 1e-4 else math.exp(work) - 1
    return mtbf * math.exp(restart / mtbf) * grown


@dataclass(frozen=True)
class CheckpointCost:
    """What one choice of interval costs.

    Attributes:
        interval_s: τ.
        overhead_fraction: δ / (τ + δ): training stopped for writing, no failures counted.
        waste_fraction: 1 - τ / expected segment time: writing, lost work and restarts, exactly.
        first_order_waste: ``δ/τ + (τ/2 + R)/M``: the textbook sum, good while it is small.
        goodput_fraction: 1 - waste.
        lost_work_s: mean work lost per failure, first order: (τ + δ) / 2.
        failures_per_day: 86400 / M.
    """

    interval_s: float
    overhead_fraction: float
    waste_fraction: float
    first_order_waste: float
    goodput_fraction: float
    lost_work_s: float
    failures_per_day: float


def checkpoint_cost(
    interval_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0
) -> CheckpointCost:
    """Waste of one checkpoint interval, exact and first-order; see :class:`CheckpointCost`.

    Raises:
        ValueError: an argument is out of range.

    Source: Daly (2006); first order: Young (1974).
    """
    segment = expected_segment_time_s(interval_s, write_s, mtbf_s, restart_s)
    waste = 1.0 if math.isinf(segment) else 1 - interval_s / segment
    return CheckpointCost(
        interval_s=float(interval_s),
        overhead_fraction=write_s / (interval_s + write_s),
        waste_fraction=waste,
        first_order_waste=write_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s,
        goodput_fraction=1 - waste,
        lost_work_s=(interval_s + write_s) / 2,
        failures_per_day=86400 / mtbf_s,
    )


# ---------------------------------------------------------------- asynchronous checkpoints and recovery


@dataclass(frozen=True)
class AsyncCheckpoint:
    """An asynchronous checkpoint: training stops for the copy, the write goes on behind it.

    Attributes:
        interval_s: τ, at least the time to durability (or writes would queue up).
        overhead_fraction: blocked time / (τ + blocked time).
        lost_work_s: mean work lost per failure: half a period, plus the time for which the newest checkpoint
            is not yet durable.
        first_order_waste: ``blocked/τ + (lost work + R)/M``.
        worst_lost_work_s: a failure just before a checkpoint becomes durable.
    """

    interval_s: float
    overhead_fraction: float
    lost_work_s: float
    first_order_waste: float
    worst_lost_work_s: float


def async_checkpoint(
    blocked_s: float, durable_s: float, mtbf_s: float, restart_s: float = 0.0, interval_s: float | None = None
) -> AsyncCheckpoint:
    """Cost of asynchronous checkpoints: quote the blocked time AND the time until the data is safe.

    A failure falls back to the newest durable checkpoint. With period P = τ + blocked and durability D after the
    snapshot, the work lost is P/2 on average, and P more in the share D/P of the time in which the newest one is still
    being written: ``P/2 + D``. The snapshot needs host memory for one more copy of the shard.

    Args:
        blocked_s: training stops this long.
        durable_s: from snapshot to safely written.
        interval_s: τ; by default Young's for the blocked time, but never below ``durable_s``.

    Raises:
        ValueError: an argument is out of range, or an interval shorter than the write.
    """
    blocked = non_negative("blocked_s", blocked_s, "seconds")
    durable = non_negative("durable_s", durable_s, "seconds")
    mtbf = positive("mtbf_s", mtbf_s, "seconds")
    restart = non_negative("restart_s", restart_s, "seconds")
    if interval_s is None:
        interval = positive("interval_s", max(young_interval_s(blocked, mtbf), durable), "seconds")
    else:
        interval = positive("interval_s", interval_s, "seconds")
    if interval + blocked < durable:
        raise ValueError(
            f"interval_s must be at least durable_s - blocked_s = {durable - blocked:.6g} seconds, or writes "
            f"queue up behind each other, not {interval_s!r}"
        )
    period = interval + blocked
    lost = period / 2 + durable
    return AsyncCheckpoint(
        interval_s=interval,
        overhead_fraction=blocked / period,
        lost_work_s=lost,
        first_order_waste=blocked / interval + (lost + restart) / mtbf,
        worst_lost_work_s=period + durable,
    )


@dataclass(frozen=True)
class Recovery:
    """From a failure to where the job was before it, seconds.

    Attributes:
        items: pairs (label, seconds): detect, replace and restart, load, redo (mean).
        rto_s: recovery time until training runs again: detect + restart + load.
        rpo_s: mean work to redo (the recovery point).
        back_where_it_was_s: rto_s + rpo_s.
        worst_s: with the longest possible redo.
    """

    items: tuple[tuple[str, float], ...]
    rto_s: float
    rpo_s: float
    back_where_it_was_s: float
    worst_s: float


def recovery(
    detect_s: float, restart_s: float, load_s: float, interval_s: float, write_s: float = 0.0
) -> Recovery:
    """Recovery time after one failure: detection, restart, loading the checkpoint, and the work done again.

    Args:
        detect_s: until somebody notices: a collective's timeout, or a watchdog.
        restart_s: replace the node, start processes, build the model.
        load_s: read the checkpoint.
        interval_s: τ.
        write_s: δ.

    Raises:
        ValueError: an argument is out of range.
    """
    detect = non_negative("detect_s", detect_s, "seconds")
    restart = non_negative("restart_s", restart_s, "seconds")
    load = non_negative("load_s", load_s, "seconds")
    longest = positive("interval_s", interval_s, "seconds") + non_negative("write_s", write_s, "seconds")
    ready = detect + restart + load
    return Recovery(
        items=(("detect", detect), ("restart", restart), ("load", load), ("redo (mean)", longest / 2)),
        rto_s=ready,
        rpo_s=longest / 2,
        back_where_it_was_s=ready + longest / 2,
        worst_s=ready + longest,
    )


def expected_run_time_s(
    useful_s: float, interval_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Expected wall time of a run with ``useful_s`` of computing: segments of τ, each as expected with failures.

    Raises:
        ValueError: an argument is out of range.
    """
    segments = positive("useful_s", useful_s, "seconds") / positive("interval_s", interval_s, "seconds")
    return segments * expected_segment_time_s(interval_s, write_s, mtbf_s, restart_s)


def availability_needed_mtbf_s(write_s: float, restart_s: float, target_waste: float) -> float:
    """The mean time between failures from which the best interval wastes at most ``target_waste``.

    Found by bisection on the exact waste at :func:`optimal_interval_s`.

    Raises:
        ValueError: a time is negative, both are 0, or the target is not between 0 and 1 (both excluded).
    """
    write = non_negative("write_s", write_s, "seconds")
    restart = non_negative("restart_s", restart_s, "seconds")
    scale = positive("write_s + restart_s", write + restart, "seconds")
    target = fraction("target_waste", target_waste)
    if target in (0, 1):
        raise ValueError(f"target_waste must lie strictly between 0 and 1, not {target_waste!r}")
    low, high = scale * 1e-3, scale * 1e12
    for _ in range(200):
        # The answer may span many decades: halve the range in the logarithm.
        middle = math.sqrt(low * high)
        interval = max(optimal_interval_s(write, middle), middle * 1e-9)
        if checkpoint_cost(interval, write, middle, restart).waste_fraction > target:
            low = middle
        else:
            high = middle
    return high
