"""What a pipeline run tells: its bubble, what every rank holds in memory, and on request all the rest.

Only sums over ranks are worked out when a schedule is run; the rest is built when it is first asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import non_negative
from shardlab.models.pipeline_executor import Timeline
from shardlab.models.pipeline_explain import (
    IdleGap,
    Operation,
    critical_path,
    entry_operations,
    idle_gaps,
    operations,
    ratio_text,
    time_text,
)
from shardlab.models.pipeline_schedules import KINDS, B, F


@dataclass(frozen=True)
class PipelineRun:
    """One training step of a pipeline, start to end. Seconds throughout; idle includes imbalance between stages.

    Attributes:
        schedule: its name, ``"custom"`` for a list of your own.
        stages: pipeline ranks p.
        micro_batches: ``m``.
        chunks: model chunks per rank v.
        makespan_s: from the first start to the last end over all ranks.
        busy_s: seconds of work per rank.
        longest_stage_span_s: the longest time between one rank's own first start and last end: what the Zero Bubble
            paper calls the cost. Below the makespan when ranks start and stop late, as in zb-h2 and zb-v.
        bubble_of_longest_span: that paper's bubble rate, (cost - work) / cost, of the rank with the longest span.
        warnings: sentences about sizes that don't suit the schedule.
        timeline: sizes, times, orders and starts as the executor used and found them.
    """

    schedule: str
    stages: int
    micro_batches: int
    chunks: int
    makespan_s: float
    busy_s: tuple[float, ...]
    longest_stage_span_s: float
    bubble_of_longest_span: float
    warnings: tuple[str, ...]
    timeline: Timeline

    def __repr__(self) -> str:
        return (
            f"PipelineRun({self.schedule}, stages={self.stages}, micro_batches={self.micro_batches}, "
            f"chunks={self.chunks}: makespan {time_text(self.makespan_s)}, "
            f"idle/total {ratio_text(self.bubble_of_total)}, idle/ideal {ratio_text(self.bubble_of_ideal)})"
        )

    @property
    def idle_s(self) -> tuple[float, ...]:
        """Seconds without work per rank, within the makespan."""
        return tuple([max(self.makespan_s - busy, 0.0) for busy in self.busy_s])

    @property
    def bubble_of_total(self) -> float:
        """Idle time over total time, all ranks together: (p-1)/(m+p-1) for gpipe and 1f1b with equal stages."""
        return _total(self.idle_s) / (self.stages * self.makespan_s)

    @property
    def bubble_of_ideal(self) -> float:
        """Idle time over working time, all ranks together: (p-1)/m for gpipe and 1f1b with equal stages."""
        return _total(self.idle_s) / _total(self.busy_s)

    @property
    def in_flight_peak(self) -> tuple[float, ...]:
        """Most micro-batches whose activations a rank holds at once, from the start of F to the end of W.

        A rank with v chunks counts each as 1/v of a micro-batch, so that schedules compare; whole numbers for v = 1.
        Multiply by the activation bytes of one micro-batch on one rank.
        """
        return self.activation_peak(1)

    def activation_peak(self, for_backward: float, for_weights: float | None = None) -> tuple[float, ...]:
        """Peak per rank in the unit of the arguments; see :meth:`activation_timeline` for the convention.

        With the Zero Bubble paper's M_B and M_W, in bytes, this is its peak activation memory.
        """
        held_for_b, held_for_w = _held_amounts(for_backward, for_weights)
        peaks = []
        for order in self.timeline.orders:
            peak: float = 0
            # One rank runs one operation at a time, so the order alone decides.
            for for_b, for_w in _held_counts([slot // self.chunks for entry in order for slot, _ in entry]):
                peak = max(peak, for_b * held_for_b + for_w * held_for_w)
            peaks.append(peak if self.chunks == 1 else peak / self.chunks)
        return tuple(peaks)

    def activation_timeline(
        self, rank: int, for_backward: float = 1, for_weights: float | None = None
    ) -> list[tuple[float, float]]:
        """What a rank holds over time: ``(seconds, amount from then on)`` at every change.

        Convention: a micro-batch costs ``for_backward`` (M_B) from the start of its F to the end of its B. From then
        to the end of its W it costs ``for_weights`` (M_W: the part that the weight gradient still needs), by default
        all of M_B. A chunk costs 1/v of that. What is freed at the instant of a start is freed first.

        Args:
            rank: 0 to p-1.
            for_backward: M_B of one micro-batch on one rank, say in bytes; 1 counts micro-batches.
            for_weights: M_W, at most M_B in practice.

        Raises:
            ValueError: no such rank, or an amount that is negative or not a number.
        """
        if not 0 <= rank < self.stages:
            raise ValueError(f"rank must be a whole number from 0 to {self.stages - 1}, not {rank!r}")
        held_for_b, held_for_w = _held_amounts(for_backward, for_weights)
        ran = []
        for position in range(len(self.timeline.orders[rank])):
            ran.extend(entry_operations(self.timeline, rank, position))
        counts = _held_counts([KINDS.index(operation.kind) for operation in ran])
        changes: list[tuple[float, float]] = []
        for operation, (for_b, for_w) in zip(ran, counts):
            when = operation.start_s if operation.kind == "F" else operation.end_s
            if changes and changes[-1][0] == when:
                changes.pop()
            amount = for_b * held_for_b + for_w * held_for_w
            changes.append((when, amount if self.chunks == 1 else amount / self.chunks))
        return changes

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Every operation, rank by rank in the order run: 3·p·v·m of them."""
        found: tuple[Operation, ...] = self._kept("operations", operations)
        return found

    @property
    def critical_path(self) -> tuple[Operation, ...]:
        """A chain of operations, first to last, that fixes the makespan: make one longer and the training step grows.

        Neighbours on one rank follow at once; neighbours on different ranks are one transfer apart.
        """
        path: tuple[Operation, ...] = self._kept("critical_path", critical_path)
        return path

    @property
    def idle_gaps(self) -> tuple[IdleGap, ...]:
        """Every gap with the reason for it, rank by rank in order of time."""
        gaps: tuple[IdleGap, ...] = self._kept("idle_gaps", idle_gaps)
        return gaps

    def _kept(self, name: str, build: Any) -> Any:
        """Built from the timeline once, then kept there."""
        built = self.timeline.built
        if name not in built:
            built[name] = build(self.timeline)
        return built[name]


def _total(values: Any) -> float:
    result = 0.0
    for value in values:
        result += value
    return result


def _held_amounts(for_backward: float, for_weights: float | None) -> tuple[float, float]:
    """M_B and M_W, checked; whole numbers stay whole."""
    non_negative("for_backward", for_backward)
    if for_weights is None:
        return for_backward, for_backward
    non_negative("for_weights", for_weights)
    return for_backward, for_weights


def _held_counts(kinds: list[int]) -> list[tuple[int, int]]:
    """After every operation of one rank: how many activations wait for their B, and how many for their W only.

    F's own activation counts from F's start, so the entry of an F holds already while it runs.
    """
    for_b = for_w = 0
    counts = []
    for kind in kinds:
        if kind == F:
            for_b += 1
        elif kind == B:
            for_b -= 1
            for_w += 1
        else:
            for_w -= 1
        counts.append((for_b, for_w))
    return counts
