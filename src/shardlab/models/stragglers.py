"""Stragglers: a synchronous step ends when its slowest rank does.

With N ranks whose step times vary, the step takes the maximum of N draws, and that grows with N even when
no rank is worse than another. Times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.checks import count, fraction, non_negative, positive

_EULER_GAMMA = 0.5772156649015329


def harmonic_number(n: int) -> float:
    """``1 + 1/2 + ... + 1/n``; from 100 on by the asymptotic series, exact to about 1e-15.

    Raises:
        ValueError: ``n`` is not a whole number from 1.
    """
    terms = count("n", n)
    if terms < 100:
        total = 0.0
        for term in range(terms, 0, -1):
            total += 1.0 / term
        return total
    inverse = 1.0 / (terms * terms)
    return math.log(terms) + _EULER_GAMMA + 0.5 / terms - inverse / 12 + inverse * inverse / 120


def expected_max_standard_normal(n: int) -> float:
    """Expected maximum of n independent standard normal variables: 0, 0.5642, 0.8463, 1.0294, ...

    ``E = integral over x > 0 of (1 - Φ(x)**n) - integral over x < 0 of Φ(x)**n``, by the trapezoidal rule with
    step 1/32 from -9 to 12: absolute error below 1e-8 up to n = 10**6 (tests compare with closed forms).

    Raises:
        ValueError: ``n`` is not a whole number from 1, or above 10**9.

    Source: David and Nagaraja, Order Statistics (Wiley, 2003): the mean of an extreme, integrated by parts.
    """
    ranks = count("n", n, most=10**9)
    if ranks == 1:
        return 0.0
    step = 1.0 / 32
    total = 0.0
    for index in range(-9 * 32, 12 * 32 + 1):
        x = index * step
        tail = 0.5 * math.erfc(x / math.sqrt(2))
        # log(1 - tail) loses all digits of a small tail: two terms of its series do not.
        log_below = -tail - 0.5 * tail * tail if tail < 1e-5 else math.log(1.0 - tail) if tail < 1 else -1e9
        exponent = ranks * log_below
        below = math.exp(exponent) if exponent > -700 else 0.0
        if index < 0:
            total -= below
        elif index == 0:
            # The two integrands meet here: half of each, 1 - below and -below.
            total += 0.5 * (1.0 - below) - 0.5 * below
        else:
            total += 1.0 - below
    return total * step


@dataclass(frozen=True)
class JitterStep:
    """A synchronous step over ranks whose times vary.

    Attributes:
        ranks: ``N``.
        mean_s: mean time of one rank: what a single rank would take.
        expected_step_s: expected time of the slowest of N.
        slowdown: expected step / mean.
        lost_fraction: 1 - mean / expected step: the share of all rank-seconds spent waiting.
    """

    ranks: int
    mean_s: float
    expected_step_s: float
    slowdown: float
    lost_fraction: float


def _jitter(ranks: int, mean_s: float, step_s: float) -> JitterStep:
    return JitterStep(
        ranks=ranks,
        mean_s=mean_s,
        expected_step_s=step_s,
        slowdown=step_s / mean_s,
        lost_fraction=1 - mean_s / step_s,
    )


def normal_jitter_step(mean_s: float, sd_s: float, ranks: int, sync_points: int = 1) -> JitterStep:
    """The slowest of N ranks whose times are independent and normal: ``mean + sqrt(k) sd E[max of N]``.

    With ``sync_points`` = k, ranks wait for each other k times in a step (tensor parallelism does so in every
    layer): each part has mean/k and sd/sqrt(k), and the k maxima add up.

    Args:
        mean_s: mean time of one rank.
        sd_s: standard deviation of one rank's whole step.
        ranks: ``N``.
        sync_points: ``k``.

    Raises:
        ValueError: an argument is out of range.

    Assumes that ranks and parts vary independently; times that go negative are not cut off, so keep sd well
    below the mean. Persistent slowness of one rank is :func:`slow_rank_step`.
    """
    mean = positive("mean_s", mean_s, "seconds")
    spread = non_negative("sd_s", sd_s, "seconds")
    n = count("ranks", ranks)
    parts = count("sync_points", sync_points)
    return _jitter(n, mean, mean + math.sqrt(parts) * spread * expected_max_standard_normal(n))


def exponential_jitter_step(base_s: float, tail_s: float, ranks: int) -> JitterStep:
    """The slowest of N ranks that take ``base_s`` plus an exponential delay of mean ``tail_s``: ``base + tail H_N``.

    H_N = 1 + 1/2 + ... + 1/N grows like ln N: a heavy tail costs more with every doubling of the ranks.

    Raises:
        ValueError: an argument is out of range, or both times are 0.

    Source: Rényi's representation of exponential order statistics: the gaps are independent, of mean tail/k.
    """
    base = non_negative("base_s", base_s, "seconds")
    tail = non_negative("tail_s", tail_s, "seconds")
    n = count("ranks", ranks)
    return _jitter(n, positive("base_s + tail_s", base + tail, "seconds"), base + tail * harmonic_number(n))


def rare_stall_step(
    base_s: float, stall_s: float, probability: float, ranks: int, aligned: bool = False
) -> JitterStep:
    """Ranks that now and then stall (garbage collection, a page fault): who waits depends on whether they agree.

    Independent stalls hit a step with probability ``1 - (1-q)**N``; aligned ones, all ranks at the same step, with
    q. That is why garbage collection is switched off and run by hand on all ranks at once.

    Args:
        base_s: step without a stall.
        stall_s: length of one.
        probability: q per rank and step.
        ranks: ``N``.
        aligned: True when all ranks stall in the same steps.

    Raises:
        ValueError: an argument is out of range.

    Source: unaligned garbage collection as a cause of falling MFU: Jiang et al., MegaScale (arXiv 2402.15627).
    """
    base = positive("base_s", base_s, "seconds")
    stall = non_negative("stall_s", stall_s, "seconds")
    chance = fraction("probability", probability)
    n = count("ranks", ranks)
    hit = chance if aligned else 1 - (1 - chance) ** n
    return _jitter(n, base + chance * stall, base + hit * stall)


def slow_rank_step(base_s: float, slowdown: float, ranks: int, slow_ranks: int = 1) -> JitterStep:
    """One rank (or a few) that is always slower: every step takes ``base * slowdown``, whatever N is.

    Args:
        base_s: step of a healthy rank.
        slowdown: time of the slow rank / time of a healthy one, 1 or more.
        ranks: ``N``.
        slow_ranks: how many are slow.

    Raises:
        ValueError: an argument is out of range.
    """
    base = positive("base_s", base_s, "seconds")
    factor = positive("slowdown", slowdown)
    if factor < 1:
        raise ValueError(f"slowdown must be at least 1 (slow time / healthy time), not {slowdown!r}")
    n = count("ranks", ranks)
    slow = count("slow_ranks", slow_ranks, least=0, most=n)
    step = base * factor if slow else base
    return _jitter(n, base * ((n - slow) + slow * factor) / n, step)


def without_slow_ranks_speedup(slowdown: float, ranks: int, slow_ranks: int = 1) -> float:
    """Throughput after removing the slow ranks over throughput with them: ``slowdown * (N - slow) / N``.

    Above 1, training goes on faster without them (weak scaling: every rank keeps its batch).

    Raises:
        ValueError: an argument is out of range, or no healthy rank is left.
    """
    n = count("ranks", ranks, least=2)
    slow = count("slow_ranks", slow_ranks, most=n - 1)
    step = slow_rank_step(1.0, slowdown, n, slow)
    return step.expected_step_s * (n - slow) / n


@dataclass(frozen=True)
class StragglerRatios:
    """What the spread of one step's rank times means.

    Attributes:
        max_over_min: alarming, and of little use: one fast rank makes it large.
        max_over_mean: the slowdown of the step against perfect balance.
        lost_fraction: 1 - mean/max: share of all rank-seconds spent waiting.
        lost_s: rank-seconds lost per step and rank: max - mean.
    """

    max_over_min: float
    max_over_mean: float
    lost_fraction: float
    lost_s: float


def straggler_ratios(min_s: float, mean_s: float, max_s: float) -> StragglerRatios:
    """Slowdown and lost time from the three numbers that most profilers print, in any one unit of time.

    Raises:
        ValueError: not ``0 < min <= mean <= max``.
    """
    fastest = positive("min_s", min_s, "seconds")
    mean = positive("mean_s", mean_s, "seconds")
    slowest = positive("max_s", max_s, "seconds")
    if not fastest <= mean <= slowest:
        raise ValueError(
            f"mean_s must lie between min_s = {min_s!r} and max_s = {max_s!r}, not at {mean_s!r}"
        )
    return StragglerRatios(
        max_over_min=slowest / fastest,
        max_over_mean=slowest / mean,
        lost_fraction=1 - mean / slowest,
        lost_s=slowest - mean,
    )


@dataclass(frozen=True)
class StragglerReport:
    """Rank times of one step, read.

    Attributes:
        ratios: of the step.
        slowest_rank, fastest_rank: their numbers.
        waiting_s: how long each rank waits for the slowest.
        slow_ranks: ranks above ``threshold`` times the median.
        median_s: the median time.
    """

    ratios: StragglerRatios
    slowest_rank: int
    fastest_rank: int
    waiting_s: list[float]
    slow_ranks: list[int]
    median_s: float


def straggler_report(times_s: list[float], threshold: float = 1.05) -> StragglerReport:
    """Who is slow and what it costs, from the compute time of every rank in one step.

    Use compute times, not step times: in synchronous training every rank shows the same step time. The median
    is the yardstick because the stragglers themselves move the mean.

    Args:
        times_s: one compute time per rank.
        threshold: from which multiple of the median a rank counts as slow.

    Raises:
        ValueError: no rank, or a time that is not above 0.
    """
    if not times_s:
        raise ValueError("times_s must hold one time per rank, not none")
    times = [positive(f"times_s[{rank}]", value, "seconds") for rank, value in enumerate(times_s)]
    limit = positive("threshold", threshold)
    total = 0.0
    for value in times:
        total += value
    ordered = sorted(times)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
    slowest = ordered[-1]
    # Rounding may put the mean of equal times a digit outside their range.
    mean = min(max(total / len(times), ordered[0]), slowest)
    return StragglerReport(
        ratios=straggler_ratios(ordered[0], mean, slowest),
        slowest_rank=times.index(slowest),
        fastest_rank=times.index(ordered[0]),
        waiting_s=[slowest - value for value in times],
        slow_ranks=[rank for rank, value in enumerate(times) if value > limit * median],
        median_s=median,
    )


def straggler_from_collectives(collective_s: list[float]) -> int:
    """The rank that arrives last, from the time each rank spends in a collective: the one with the SHORTEST time.

    Waiting shows up as long collectives on the fast ranks.

    Raises:
        ValueError: fewer than two ranks, or a negative time.
    """
    if len(collective_s) < 2:
        raise ValueError(f"collective_s must hold at least two ranks, not {len(collective_s)}")
    times = [
        non_negative(f"collective_s[{rank}]", value, "seconds") for rank, value in enumerate(collective_s)
    ]
    return times.index(min(times))
