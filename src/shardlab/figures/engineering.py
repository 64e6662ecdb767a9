"""Pictures of chapter 09: everybody waits for the slowest, and how a sampler deals samples to ranks."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from shardlab.experiments import figure, style
from shardlab.figures.common import labelled_bar, waiting_bar
from shardlab.models.batch import rank_samples, shard_plan
from shardlab.models.stragglers import straggler_report
from shardlab.palette import color


def waiting_for_the_slowest(times_ms: tuple[float, ...] = (50, 54, 47, 75), all_reduce_ms: float = 12) -> Any:
    """One step of ranks with these compute times: compute, wait, all-reduce together."""
    report = straggler_report(list(times_ms))
    slowest, last = report.slowest_rank, max(times_ms)

    def drawn(width: float, height: float, above: bool) -> Canvas:
        canvas = Canvas(figsize=(width, height), layout="constrained")
        axes = canvas.subplots()
        for rank, time in enumerate(times_ms):
            labelled_bar(axes, rank, 0, time, "compute", f"{time:.0f} ms")
            if rank != slowest:
                waiting_bar(axes, rank, time, last, "waits")
            name = "" if above else "all-reduce"
            labelled_bar(axes, rank, last, last + all_reduce_ms, "communication", name)
        if above:
            axes.text(
                last + all_reduce_ms,
                -0.42,
                "all-reduce",
                ha="right",
                va="bottom",
                fontsize=9,
                color=color("communication-text"),
            )
        axes.set_yticks(range(len(times_ms)), [f"rank {rank}" for rank in range(len(times_ms))])
        axes.set_ylim(len(times_ms) - 0.4, -0.9 if above else -0.6)
        axes.set_xlim(0, last + all_reduce_ms + 1)
        axes.set_xlabel("time in the step, ms")
        axes.grid(visible=False)
        return canvas

    with style():
        # A narrow bar has no room for the name.
        rows = 0.5 * len(times_ms)
        wide, narrow = drawn(7.2, rows + 0.7, above=False), drawn(4.4, rows + 0.8, above=True)
    waiting = [time for rank, time in enumerate(report.waiting_s) if rank != slowest]
    return figure(
        wide,
        narrow=narrow,
        alt=f"Timeline of one step on {len(times_ms)} ranks that compute for "
        f"{', '.join([f'{time:.0f}' for time in times_ms])} ms. All but rank {slowest} wait, {min(waiting):.0f} to "
        f"{max(waiting):.0f} ms, until rank {slowest} is done; then all run one all-reduce.",
        caption=f"Rank {slowest} is slow, and the others pay: they wait inside the all-reduce, so a profiler shows "
        "a long all-reduce on the fast ranks and a short one on the slow one.",
    )


def dealt_samples(samples: int = 10, ranks: int = 4) -> Any:
    """Who reads which sample when a sampler deals an unshuffled order to ranks and pads it."""
    plan = shard_plan(samples, ranks)
    order = list(range(samples))

    def drawn(width: float) -> Canvas:
        canvas = Canvas(figsize=(width, 0.45 * ranks + 0.8), layout="constrained")
        axes = canvas.subplots()
        for rank in range(ranks):
            for position, sample in enumerate(rank_samples(order, ranks, rank)):
                again = position * ranks + rank >= samples
                axes.add_patch(
                    Rectangle(
                        (position + 0.04, rank - 0.4),
                        0.92,
                        0.8,
                        facecolor=color("communication" if again else "panel"),
                        edgecolor=color("grid"),
                    )
                )
                # Fixed on orange, which stays light enough for dark letters on the dark page too.
                ink = "#1b1e22" if again else color("text")
                text = f"{sample} again" if again else str(sample)
                axes.text(position + 0.5, rank, text, ha="center", va="center", fontsize=9, color=ink)
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set_ylim(ranks - 0.4, -0.6)
        axes.set_xlim(0, plan.per_rank)
        axes.set_xticks(
            [position + 0.5 for position in range(plan.per_rank)],
            [str(step + 1) for step in range(plan.per_rank)],
        )
        axes.set_xlabel("step of the epoch (local batch of one sample)")
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(6.0), drawn(4.4)
    return figure(
        wide,
        narrow=narrow,
        alt=f"{samples} samples dealt to {ranks} ranks one by one, like cards: {plan.per_rank} each, the last "
        f"{plan.duplicates} are the first samples again.",
        caption=f"{samples} samples on {ranks} ranks: the sampler deals them one by one, and repeats the first "
        f"{plan.duplicates} so that all ranks run the same number of steps.",
    )
