"""From measured times back to a link: latency, bandwidth and, where it shows, the cost of adding.

The alpha-beta-gamma model says that a collective takes ``rounds * alpha + wire_bytes * beta + reduced_bytes * gamma``
(:class:`shardlab.models.collectives.Cost`), which is linear in the three unknowns, so least squares finds them. The
errors that are squared are *relative*: times span decades, and the largest would otherwise decide alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardlab.checks import count, positive
from shardlab.models.collectives import Cost, algorithm
from shardlab.units import format_bandwidth, format_bytes, format_time

# A mean error of this size is what protocol switches of a healthy library leave; beyond it, or with one point this
# far off, a single latency and a single bandwidth do not describe the link.
GOOD_RMS_ERROR = 0.15
GOOD_MAX_ERROR = 0.35
# A term that makes up less of every measured time than this cannot be told from noise.
VISIBLE_SHARE = 0.1
# Below this share of the largest time the bandwidth is not in the samples at all.
_LEAST_WIRE_SHARE = 0.01
# Two columns of the fit closer than this (sine of the angle between them) are one column.
_LEAST_SINE = 1e-4


@dataclass(frozen=True)
class Sample:
    """One measurement: a collective over ``n_ranks`` ranks on a buffer of ``n_bytes`` took ``time_s``."""

    n_bytes: float
    time_s: float
    n_ranks: int
    collective: str
    algorithm: str


def sample(
    n_bytes: float, time_s: float, n_ranks: int, collective: str = "all-reduce", algorithm_name: str = "ring"
) -> Sample:
    """A checked :class:`Sample`.

    Args:
        n_bytes: buffer of one rank, bytes, above 0.
        time_s: seconds, above 0.
        n_ranks: 2 or more.
        collective, algorithm_name: as in :data:`shardlab.models.collectives.ALGORITHMS`; the algorithm is an
            assumption when the library does not say which one it used.

    Raises:
        ValueError: an argument is out of range or a name is unknown.
    """
    ranks = count("n_ranks", n_ranks, least=2)
    entry = algorithm(collective, algorithm_name)
    if not entry.runs_on(ranks, in_network=True):
        raise ValueError(f"n_ranks must be a power of two for {algorithm_name}, not {n_ranks!r}")
    return Sample(
        n_bytes=positive("n_bytes", n_bytes, "bytes"),
        time_s=positive("time_s", time_s, "seconds"),
        n_ranks=ranks,
        collective=collective,
        algorithm=algorithm_name,
    )


@dataclass(frozen=True)
class LinkFit:
    """A fitted link and how well it describes the samples.

    Attributes:
        latency_s: alpha, seconds per message; 0 where the samples show none.
        bandwidth: 1/beta, bytes/s per rank and direction.
        reduce_s_per_byte: gamma, seconds per byte added; 0 unless asked for and visible.
        samples: what was fitted.
        predicted_s: the model's time for each.
        relative_errors: ``predicted / measured - 1`` for each.
        rms_relative_error, max_relative_error: of those, as fractions of the measured times.
        warnings: where the model does not hold or a number is not determined by the samples; empty if all is well.
    """

    latency_s: float
    bandwidth: float
    reduce_s_per_byte: float
    samples: list[Sample]
    predicted_s: list[float]
    relative_errors: list[float]
    rms_relative_error: float
    max_relative_error: float
    warnings: list[str]

    def time_s(
        self, n_bytes: float, n_ranks: int, collective: str = "all-reduce", name: str = "ring"
    ) -> float:
        """Predicted seconds of a collective on this link."""
        cost = algorithm(collective, name).cost(n_bytes, n_ranks)
        return cost.time_s(self.bandwidth, self.latency_s, self.reduce_s_per_byte)

    def text(self) -> str:
        """The fit in a few lines for people."""
        lines = [
            f"latency    {format_time(self.latency_s, 3)} per message",
            f"bandwidth  {format_bandwidth(self.bandwidth, 3)} per rank and direction",
        ]
        if self.reduce_s_per_byte:
            lines.append(f"adding     {format_bandwidth(1 / self.reduce_s_per_byte, 3)}")
        lines.append(
            f"error      {100 * self.rms_relative_error:.1f} % root mean square, "
            f"{100 * self.max_relative_error:.1f} % at most, over {len(self.samples)} samples"
        )
        return "\n".join(lines + ["warning: " + warning for warning in self.warnings])


def fit_link(samples: Any, with_reduction: bool = False) -> LinkFit:
    """Latency and bandwidth (and gamma, if asked for) that describe the samples with the least relative error.

    Minimises ``sum (predicted / measured - 1)**2`` over alpha, beta and gamma that are not negative.

    Args:
        samples: a list of :class:`Sample`, of one or of several sizes, numbers of ranks and collectives.
        with_reduction: also fit gamma. That needs samples in which adding and sending differ, such as all-gathers
            beside reduce-scatters: in rings alone the one is always half of the other.

    Raises:
        ValueError: fewer samples than unknowns plus one; samples that cannot tell the unknowns apart (one size
            only); or times that do not grow with the size.

    Source: the model as in :mod:`shardlab.models.collectives`; weighted linear least squares by Gram-Schmidt.
    """
    points = list(samples)
    unknowns = 3 if with_reduction else 2
    if len(points) < unknowns + 1:
        raise ValueError(
            f"samples must hold at least {unknowns + 1} measurements for {unknowns} unknowns, not {len(points)}: "
            "with fewer, any numbers fit exactly and say nothing"
        )
    costs = [
        algorithm(point.collective, point.algorithm).cost(point.n_bytes, point.n_ranks) for point in points
    ]
    columns = _columns(points, costs, unknowns)
    if _least_sine(columns) < _LEAST_SINE:
        raise ValueError(_degenerate(points, with_reduction))
    solution = _non_negative_solution(columns)
    if solution is None:
        sizes = f"{format_bytes(min([p.n_bytes for p in points]))} to {format_bytes(max([p.n_bytes for p in points]))}"
        raise ValueError(f"samples must show a time that grows with the size; from {sizes} it does not")
    predicted = [
        solution[0] * cost.rounds + solution[1] * cost.wire_bytes + solution[2] * cost.reduced_bytes
        for cost in costs
    ]
    errors = [time / point.time_s - 1 for time, point in zip(predicted, points)]
    squares = 0.0
    for error in errors:
        squares += error * error
    rms = math.sqrt(squares / len(errors))
    return LinkFit(
        latency_s=solution[0],
        bandwidth=1 / solution[1],
        reduce_s_per_byte=solution[2],
        samples=points,
        predicted_s=predicted,
        relative_errors=errors,
        rms_relative_error=rms,
        max_relative_error=max([abs(error) for error in errors]),
        warnings=_warnings(points, costs, solution, errors, rms),
    )


def _columns(points: list[Sample], costs: list[Cost], unknowns: int) -> list[list[float]]:
    """One column per unknown, each entry divided by the measured time: the right-hand side is then all ones."""
    columns = [
        [cost.rounds / point.time_s for cost, point in zip(costs, points)],
        [cost.wire_bytes / point.time_s for cost, point in zip(costs, points)],
        [cost.reduced_bytes / point.time_s for cost, point in zip(costs, points)],
    ]
    return columns[:unknowns]


def _dot(one: list[float], two: list[float]) -> float:
    total = 0.0
    for a, b in zip(one, two):
        total += a * b
    return total


def _orthogonalised(columns: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    """Gram-Schmidt: unit columns Q and the triangle R with ``columns = Q R``. A column in the span of those before
    it comes out with a diagonal of about zero."""
    units: list[list[float]] = []
    triangle: list[list[float]] = []
    for column in columns:
        rest = list(column)
        row = [0.0] * len(columns)
        # Twice: the second pass removes what rounding left of the first.
        for _ in range(2):
            for place in range(len(units)):
                along = _dot(units[place], rest)
                row[place] += along
                rest = [value - along * unit for value, unit in zip(rest, units[place])]
        length = math.sqrt(_dot(rest, rest))
        row[len(units)] = length
        units.append([value / length for value in rest] if length > 0 else rest)
        triangle.append(row)
    return units, triangle


def _least_sine(columns: list[list[float]]) -> float:
    """How far, at the least, a column sticks out of the span of the others: 0 parallel, 1 at right angles."""
    least = 1.0
    for last in range(len(columns)):
        ordered = columns[:last] + columns[last + 1 :] + [columns[last]]
        length = math.sqrt(_dot(columns[last], columns[last]))
        triangle = _orthogonalised(ordered)[1]
        least = min(least, triangle[-1][len(columns) - 1] / length if length > 0 else 0.0)
    return least


def _solve(columns: list[list[float]]) -> list[float]:
    """Least squares of ``columns @ x = 1``."""
    units, triangle = _orthogonalised(columns)
    ones = [1.0] * len(columns[0])
    solution = [0.0] * len(columns)
    for place in range(len(columns) - 1, -1, -1):
        value = _dot(units[place], ones)
        for later in range(place + 1, len(columns)):
            value -= triangle[later][place] * solution[later]
        solution[place] = value / triangle[place][place]
    return solution


def _non_negative_solution(columns: list[list[float]]) -> list[float] | None:
    """The best (alpha, beta, gamma) with none negative and beta above 0: the best over all sets of visible terms."""
    best: list[float] | None = None
    least = math.inf
    subsets = [[0, 1], [1]] if len(columns) == 2 else [[0, 1, 2], [0, 1], [1, 2], [1]]
    for subset in subsets:
        values = _solve([columns[place] for place in subset])
        if min(values) < 0:
            continue
        solution = [0.0, 0.0, 0.0]
        for place, value in zip(subset, values):
            solution[place] = value
        misfit = 0.0
        for row in range(len(columns[0])):
            error = _dot(solution[: len(columns)], [column[row] for column in columns]) - 1
            misfit += error * error
        if solution[1] > 0 and misfit < least:
            best, least = solution, misfit
    # A constant that does as well, or a bandwidth term of no size, means that the times do not show the link.
    constant = _solve([columns[0]])[0]
    flat = 0.0
    for value in columns[0]:
        flat += (constant * value - 1) * (constant * value - 1)
    if best is None or flat <= least or max([best[1] * value for value in columns[1]]) < _LEAST_WIRE_SHARE:
        return None
    return best


def _degenerate(points: list[Sample], with_reduction: bool) -> str:
    sizes = []
    for point in points:
        if point.n_bytes not in sizes:
            sizes.append(point.n_bytes)
    if len(sizes) == 1:
        return (
            f"samples must hold at least two different sizes to tell latency from bandwidth, not only "
            f"{format_bytes(sizes[0])}"
        )
    if with_reduction:
        return (
            "samples must hold collectives in which adding and sending differ to tell gamma from 1/bandwidth, "
            "such as an all-gather beside a reduce-scatter; in these the one is a fixed share of the other"
        )
    return (
        "samples must hold sizes far enough apart to tell latency from bandwidth; in these they look the same"
    )


def _warnings(
    points: list[Sample], costs: list[Cost], solution: list[float], errors: list[float], rms: float
) -> list[str]:
    warnings = []
    worst = 0
    latency_share, wire_share, reduce_share = 0.0, 0.0, 0.0
    for place in range(len(points)):
        if abs(errors[place]) > abs(errors[worst]):
            worst = place
        measured = points[place].time_s
        latency_share = max(latency_share, solution[0] * costs[place].rounds / measured)
        wire_share = max(wire_share, solution[1] * costs[place].wire_bytes / measured)
        reduce_share = max(reduce_share, solution[2] * costs[place].reduced_bytes / measured)
    if rms > GOOD_RMS_ERROR or abs(errors[worst]) > GOOD_MAX_ERROR:
        side = "above" if errors[worst] > 0 else "below"
        warnings.append(
            "one latency and one bandwidth do not describe these times: the model is "
            f"{100 * abs(errors[worst]):.0f} % {side} the measurement at {format_bytes(points[worst].n_bytes)} on "
            f"{points[worst].n_ranks} ranks. Libraries change algorithm and protocol with the size; fit the sizes "
            "you need by themselves"
        )
    if latency_share < VISIBLE_SHARE:
        warnings.append(
            "the latency is not determined: even the smallest buffer is bound by bandwidth; add smaller ones"
        )
    if wire_share < 0.5:
        warnings.append(
            "the bandwidth is a guess: latency makes up most of the time even of the largest buffer; add larger ones"
        )
    if len(solution) > 2 and solution[2] > 0 and reduce_share < VISIBLE_SHARE:
        warnings.append("the cost of adding is not determined: it is a small part of every time")
    return warnings
