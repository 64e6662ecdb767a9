"""The line behind a prediction: what a step costs on one rank. Links are fitted by :mod:`shardlab.models.fit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """``seconds = fixed_s + per_unit_s * units``, both at least 0."""

    fixed_s: float
    per_unit_s: float

    def at(self, units: float) -> float:
        """Seconds for ``units``."""
        return self.fixed_s + self.per_unit_s * units


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through ``(units, seconds)`` points with the least squared *relative* error.

    Relative, because times span decades and the largest would otherwise decide alone.

    Raises:
        ValueError: fewer than two different ``units``, or a time that is not above 0.
    """
    if len({units for units, _ in points}) < 2 or any(seconds <= 0 for _, seconds in points):
        raise ValueError(
            f"points must hold at least two different sizes, each with a time above 0, not {points!r}"
        )
    weight = sum(1 / seconds**2 for _, seconds in points)
    mean_units = sum(units / seconds**2 for units, seconds in points) / weight
    mean_seconds = sum(1 / seconds for _, seconds in points) / weight
    spread = sum(((units - mean_units) / seconds) ** 2 for units, seconds in points)
    covariance = sum(
        (units - mean_units) * (seconds - mean_seconds) / seconds**2 for units, seconds in points
    )
    slope = covariance / spread
    fixed = mean_seconds - slope * mean_units
    if slope < 0:
        return Line(mean_seconds, 0.0)
    if fixed < 0:
        # The best line through the origin.
        return Line(0.0, _through_origin(points))
    return Line(fixed, slope)


def _through_origin(points: Sequence[tuple[float, float]]) -> float:
    return sum(units / seconds for units, seconds in points) / sum(
        (units / seconds) ** 2 for units, seconds in points
    )
