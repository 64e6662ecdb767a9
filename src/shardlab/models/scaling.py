"""When do more data-parallel ranks help? Weak and strong scaling with overlap as a bracket.

One step computes for ``C`` seconds and all-reduces ``P`` bytes of gradients over a ring.
Weak scaling: every rank keeps its batch, so compute stays C and a step processes N times the samples.
Strong scaling: the global batch is fixed, so compute is C/N and a step processes the same samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardlab.checks import choice, count, fraction, non_negative, positive
from shardlab.models.collectives import ring_allreduce_time_s, ring_allreduce_times_s

if TYPE_CHECKING:
    from collections.abc import Sequence

SCALINGS = ("weak", "strong")
_MOST_RANKS = 10**12


@dataclass(frozen=True)
class DataParallelStep:
    """One data-parallel step at N ranks; all times in seconds.

    Attributes:
        n_ranks: ``N``.
        scaling: ``"weak"`` or ``"strong"``.
        compute_time_s: compute of one rank in this step (C, or C/N in strong scaling).
        communication_time_s: the ring all-reduce, hidden or not.
        exposed_communication_s: the part of it that nothing hides.
        step_time_s: compute plus exposed communication.
        speedup: samples per second over those of one rank.
        efficiency: speedup / N, 0 to 1.
        communication_share: exposed communication / step time, 0 to 1.
        bottleneck: ``"compute"`` or ``"communication"``, whichever takes longer.
        step_time_bracket_s: step time with everything overlapped, and with nothing overlapped.
    """

    n_ranks: int
    scaling: str
    compute_time_s: float
    communication_time_s: float
    exposed_communication_s: float
    step_time_s: float
    speedup: float
    efficiency: float
    communication_share: float
    bottleneck: str
    step_time_bracket_s: tuple[float, float]


def data_parallel(
    n_ranks: int,
    compute_s: float,
    n_bytes: float,
    bandwidth: float,
    latency_s: float = 0.0,
    scaling: str = "weak",
    overlap: float = 0.0,
) -> DataParallelStep:
    """Predict one step of data parallelism: ``(1-o) C + max(o C, T)`` with ``T`` the ring all-reduce.

    Args:
        n_ranks: number of ranks N.
        compute_s: one rank's forward and backward, seconds: of its own batch (weak), of the whole batch (strong).
        n_bytes: gradients, bytes (4 per parameter in fp32, 2 in bf16).
        bandwidth: bytes/s per rank and direction.
        latency_s: seconds per hop.
        scaling: ``"weak"`` (batch per rank fixed) or ``"strong"`` (global batch fixed).
        overlap: the fraction ``o`` of compute that communication may hide under: 0 none, 1 all;
            2/3 when it hides under a backward pass that takes twice the forward.

    Raises:
        ValueError: an argument is out of range or ``scaling`` is unknown.

    Source: Li et al., "PyTorch Distributed", VLDB 2020 (arXiv 2006.15704), section 3.2.3, for the overlap;
    the ring as in :func:`shardlab.models.collectives.ring_allreduce_time_s`.
    """
    ranks = count("n_ranks", n_ranks)
    base = positive("compute_s", compute_s, "seconds")
    kind = choice("scaling", scaling, SCALINGS)
    hidden_fraction = fraction("overlap", overlap)
    communication = ring_allreduce_time_s(n_bytes, ranks, bandwidth, latency_s)
    compute, exposed = _compute_and_exposed_s(ranks, base, communication, kind, hidden_fraction)
    step = compute + exposed
    samples = ranks if kind == "weak" else 1
    return DataParallelStep(
        n_ranks=ranks,
        scaling=kind,
        compute_time_s=compute,
        communication_time_s=communication,
        exposed_communication_s=exposed,
        step_time_s=step,
        speedup=samples * base / step,
        # The same as speedup / N, but rounding cannot lift it above its cap, nor above 1.
        efficiency=compute / step,
        communication_share=exposed / step,
        bottleneck="communication" if communication > compute else "compute",
        step_time_bracket_s=(max(compute, communication), compute + communication),
    )


def data_parallel_curve(
    ranks: Sequence[int],
    compute_s: float,
    n_bytes: float,
    bandwidth: float,
    latency_s: float = 0.0,
    scaling: str = "weak",
    overlap: float = 0.0,
) -> list[tuple[int, float, float, float, float]]:
    """:func:`data_parallel` over many numbers of ranks, for a curve: the arguments are checked once.

    Returns one tuple for each N: ``(N, speedup, efficiency, speedup without overlap, speedup with full overlap)``.

    Args and errors as in :func:`data_parallel`; ``ranks`` holds the values of ``n_ranks``.
    """
    base = positive("compute_s", compute_s, "seconds")
    kind = choice("scaling", scaling, SCALINGS)
    hidden_fraction = fraction("overlap", overlap)
    points = []
    for n, communication in zip(ranks, ring_allreduce_times_s(n_bytes, ranks, bandwidth, latency_s)):
        compute, exposed = _compute_and_exposed_s(n, base, communication, kind, hidden_fraction)
        work = base * n if kind == "weak" else base
        step = compute + exposed
        slow, fast = work / (compute + communication), work / max(compute, communication)
        points.append((n, work / step, compute / step, slow, fast))
    return points


def _compute_and_exposed_s(
    n_ranks: int, base: float, communication: float, scaling: str, overlap: float
) -> tuple[float, float]:
    """Seconds of one rank's compute, and of the communication that nothing hides."""
    compute = base if scaling == "weak" else base / n_ranks
    return compute, max(communication - overlap * compute, 0.0)


def efficiency_cap(
    compute_s: float, n_bytes: float, bandwidth: float, n_ranks: int | None = None, overlap: float = 0.0
) -> float:
    """The weak-scaling efficiency that no latency-free link beats: ``C / ((1-o) C + max(o C, T))``.

    With ``n_ranks`` it is the cap at that N. Without, it is the limit for many ranks, where
    ``T = 2 n_bytes/bandwidth``; small N lies above that limit, because a small ring sends less.

    Raises:
        ValueError: an argument is out of range.
    """
    compute = positive("compute_s", compute_s, "seconds")
    size = non_negative("n_bytes", n_bytes, "bytes")
    speed = positive("bandwidth", bandwidth, "bytes/s")
    hidden_fraction = fraction("overlap", overlap)
    communication = 2 * size / speed if n_ranks is None else ring_allreduce_time_s(size, n_ranks, speed)
    return compute / (compute + max(communication - hidden_fraction * compute, 0.0))


def strong_speedup_cap(compute_s: float, n_bytes: float, bandwidth: float) -> float:
    """The speedup that strong scaling tends to for many ranks and no latency: ``B C / (2 P)``.

    Infinite when there are no bytes to send. Without overlap a value above 1 is approached from below and
    bounds every N; a value below 1 is approached from above, and one rank is the fastest. Overlap does not move
    the limit, since compute shrinks to nothing, but lets a middling N pass it: that N hides a ring that is still
    short of ``2 P/B``.

    Raises:
        ValueError: an argument is out of range.
    """
    compute = positive("compute_s", compute_s, "seconds")
    size = non_negative("n_bytes", n_bytes, "bytes")
    speed = positive("bandwidth", bandwidth, "bytes/s")
    return speed * compute / (2 * size) if size else math.inf


def break_even_ranks(
    compute_s: float,
    n_bytes: float,
    bandwidth: float,
    latency_s: float = 0.0,
    scaling: str = "weak",
    overlap: float = 0.0,
) -> int | None:
    """The smallest N of at least 2 that is faster than one rank (speedup above 1), or None if there is none.

    Weak scaling gains when ``T < (N-1+o) C``; strong scaling when ``T < C - (1-o) C/N``. Both are quadratics
    in N with a non-negative value at one rank, so the first gain is N = 2 or lies beyond the larger root.
    A break-even beyond 10**12 ranks counts as none.

    Args and errors as in :func:`data_parallel`.
    """
    arguments = (compute_s, n_bytes, bandwidth, latency_s, scaling, overlap)
    if data_parallel(2, *arguments).speedup > 1:
        return 2
    if scaling == "strong":
        # Concave in N and not negative at N = 1: a loss at N = 2 never turns into a gain.
        return None
    # Weak, times N: a N^2 + b N + 2 P/B > 0 with a = C - 2 alpha; without a > 0 it never turns positive again.
    square = float(compute_s) - 2 * float(latency_s)
    if square <= 0:
        return None
    ring = 2 * float(n_bytes) / float(bandwidth)
    linear = float(overlap) * float(compute_s) - square - ring
    root = (-linear + math.sqrt(max(linear * linear - 4 * square * ring, 0.0))) / (2 * square)
    if not root <= _MOST_RANKS:  # beyond it, or beyond what floats can square
        return None
    # Rounding may put the root on the wrong side of a whole number. The few steps are bounded: when latency
    # eats nearly all of the gain, the speedup rounds to 1 over a long stretch past the root.
    first = max(int(root) - 1, 2)
    for ranks in range(first, first + 4):
        if data_parallel(ranks, *arguments).speedup > 1:
            return ranks
    return int(root) + 1
