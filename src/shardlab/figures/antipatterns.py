"""Pictures of chapter 12: what a slow rank looks like, and what sixteen faults take from one run."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas

from shardlab.experiments import figure, style
from shardlab.figures.common import labelled_bar, waiting_bar
from shardlab.models import antipatterns, stragglers
from shardlab.palette import color
from shardlab.units import MS


def slow_rank_timeline(
    compute_ms: tuple[float, ...] = (100, 100, 150, 100), all_reduce_ms: float = 20.0
) -> Any:
    """One step on every rank: private compute, the wait for the slowest, the joint all-reduce."""
    report = stragglers.straggler_report([time * MS for time in compute_ms])
    slowest, last = report.slowest_rank, max(compute_ms)
    end = last + all_reduce_ms

    def drawn(width: float) -> Canvas:
        canvas = Canvas(figsize=(width, 0.5 * len(compute_ms) + 1.1), layout="constrained")
        axes = canvas.subplots()
        for rank, compute in enumerate(compute_ms):
            labelled_bar(axes, rank, 0, compute, "compute", f"compute {compute:.0f} ms")
            if compute < last:
                waiting_bar(axes, rank, compute, last, f"wait {last - compute:.0f} ms")
            labelled_bar(axes, rank, last, end, "communication")
        axes.annotate(
            "all-reduce",
            (last + all_reduce_ms / 2, -0.42),
            (0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=color("communication-text"),
        )
        axes.set_yticks(range(len(compute_ms)), [f"rank {rank}" for rank in range(len(compute_ms))])
        axes.set_ylim(len(compute_ms) - 0.4, -1.0)
        axes.set_xlim(0, end * 1.02)
        axes.set_xlabel("time in the step, ms")
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.2), drawn(4.4)
    return figure(
        wide,
        narrow=narrow,
        alt=f"Timeline of one step on {len(compute_ms)} ranks. Rank {slowest} computes for {last:.0f} ms, the others for "
        f"{min(compute_ms):.0f} ms and then wait; all end the step together at {end:.0f} ms.",
        caption=f"Every rank reports a step of {end:.0f} ms. Only compute and wait, taken apart and rank by rank, "
        f"tell that rank {slowest} is the slow one.",
    )


def lost_share(pattern: str, damage: float) -> float:
    """The share of the healthy run's time, memory or data that is lost: ``1 - 1/ratio`` of a ratio, or the share."""
    return 1 - 1 / damage if antipatterns.anti_pattern(pattern).damage_kind == "ratio" else damage


def damage_overview(run: antipatterns.Setting, level: int = 4) -> Any:
    """What each anti-pattern takes from the same run at one level of severity, worst first."""
    names = [name for name in antipatterns.NAMES if antipatterns.anti_pattern(name).damage_kind != "loss"]
    found = [(lost_share(name, antipatterns.compare(name, run, level).damage), name) for name in names]
    found.sort(reverse=True)

    def drawn(width: float) -> Canvas:
        canvas = Canvas(figsize=(width, 0.4 * len(found) + 0.8), layout="constrained")
        axes = canvas.subplots()
        for row, (lost, name) in enumerate(found):
            labelled_bar(axes, row + 0.2, 0, 100 * lost, "muted", height=0.36)
            # Above its bar: beside it, the names would take half of a phone's width.
            words = f"{antipatterns.anti_pattern(name).title}: {100 * lost:.0f} %"
            axes.text(0, row - 0.2, words, va="center", fontsize=9, color=color("text"))
        axes.set_yticks([])
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xlim(0, 108)
        axes.set_xlabel("lost, % of time, memory or data")
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.2), drawn(4.4)
    worst, least = found[0], found[-1]
    return figure(
        wide,
        narrow=narrow,
        alt=f"Bars: what {len(found)} anti-patterns take from the same run at severity {level}. The worst is "
        f"“{antipatterns.anti_pattern(worst[1]).title}” with {100 * worst[0]:.0f} %, the least "
        f"“{antipatterns.anti_pattern(least[1]).title}” with {100 * least[0]:.0f} %.",
        caption=f"One run, {len(found)} faults, severity {level} of {antipatterns.LEVELS}, no overlap. Traffic on a slow "
        "link costs the most; a mistake with data or averages costs less and says nothing.",
    )
