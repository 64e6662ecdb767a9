"""Pictures of chapter 06: numbered timelines of pipeline schedules, and both bubbles over the micro-batches."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from shardlab.experiments import figure, style
from shardlab.models.pipeline import (
    PipelineRun,
    bubble_of_ideal,
    bubble_of_total,
    micro_batches_for_bubble,
    simulate,
)
from shardlab.models.pipeline_schedules import F, W
from shardlab.palette import color

# Three shades of the colour of compute: forward, input gradient (or the whole backward), weight gradient.
_SHADES = (1.0, 0.42, 0.18)
_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved 1F1B",
    "zb-h1": "Zero bubble H1",
    "zb-h2": "Zero bubble H2",
    "zb-v": "Zero bubble V",
}


def pipeline_timelines(cases: tuple[tuple[str, int, int], ...], n_stages: int = 4, caption: str = "") -> Any:
    """Timelines of several schedules on one time axis; the number in a bar is its micro-batch.

    Args:
        cases: (schedule, micro-batches, chunks per rank) of each timeline, top to bottom. Forward, input gradient and
            weight gradient of one micro-batch take one unit each on every rank.
        n_stages: pipeline ranks p.
        caption: the line beneath; it should carry the point.
    """
    runs = [
        simulate(name, n_stages, batches, 1.0, 1.0, 1.0, chunks=chunks) for name, batches, chunks in cases
    ]
    longest = max(run.makespan_s for run in runs)

    def drawn(width: float, lines: int, letters: float, space: str) -> Canvas:
        height = (0.28 * n_stages + 0.45) * len(runs) * lines + 0.5
        canvas = Canvas(figsize=(width, height), layout="constrained")
        rows = canvas.subplots(len(runs) * lines, 1, sharex=lines == 1, squeeze=False)
        length = longest if lines == 1 else math.ceil(longest / lines)
        for index, (axes,) in enumerate(rows):
            run, line = runs[index // lines], index % lines
            _draw_run(axes, run, line * length, (line + 1) * length, letters)
            if line == 0:
                axes.set_title(f"{_name(run)}:{space}{_result(run)}", loc="left", fontsize=9.5)
            if lines > 1 or index == len(runs) - 1:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        rows[-1][0].set_xlabel("time, in forwards of one micro-batch")
        return canvas

    # A timeline is cut into lines where its shortest bars would be narrower than their numbers.
    lines = math.ceil(longest * max(run.chunks for run in runs) * 0.1 / 3.7)
    with style():
        wide, narrow = drawn(7.2, 1, 8, " "), drawn(4.4, lines, 8.8, "\n")
    return figure(wide, narrow=narrow, alt=" ".join([_alt(run) for run in runs]), caption=caption)


def _draw_run(axes: Any, run: PipelineRun, left: float, right: float, letters: float) -> None:
    """What a run does between two moments."""
    axes.barh(
        range(run.stages),
        [run.makespan_s] * run.stages,
        height=0.86,
        color=color("idle"),
        alpha=0.45,
        linewidth=0,
    )
    for rank in range(run.stages):
        for position, entry in enumerate(run.timeline.orders[rank]):
            start = run.timeline.starts[rank][position]
            end = run.timeline.entry_end_s(rank, position)
            if start < right and end > left:
                _draw_bar(axes, rank, max(start, left), min(end, right), entry, run.chunks, letters)
    axes.set_yticks(range(run.stages), [f"rank {rank}" for rank in range(run.stages)], fontsize=letters + 0.5)
    axes.set_ylim(run.stages - 0.5, -0.5)
    axes.set_xlim(left, right)
    axes.grid(visible=False)


def _draw_bar(
    axes: Any, rank: int, start: float, end: float, entry: Any, chunks: int, letters: float
) -> None:
    """One operation, or a backward in one go, with the number of its micro-batch."""
    (slot, batch), kind = entry[0], entry[0][0] // chunks
    place = {"y": rank, "width": end - start, "left": start, "height": 0.86}
    # The shades are see-through: without a ground the idle grey would show.
    axes.barh(**place, color=color("surface"), linewidth=0)
    axes.barh(**place, color=color("compute"), alpha=_SHADES[kind], edgecolor=color("surface"), linewidth=0.8)
    # A rank's second chunk is set in italics.
    look = {"fontsize": letters, "style": "italic" if slot % chunks else "normal"}
    ink = color("surface") if kind == F else color("text")
    if end - start >= 0.45:
        axes.text((start + end) / 2, rank, str(batch), ha="center", va="center", color=ink, **look)


def _name(run: PipelineRun) -> str:
    chunks = f", {run.chunks} chunks a rank" if run.chunks > 1 else ""
    return f"{_NAMES[run.schedule]}, m = {run.micro_batches}{chunks}"


def _result(run: PipelineRun) -> str:
    return f"{run.makespan_s:g} units, idle/total {100 * run.bubble_of_total:.1f} %"


def _alt(run: PipelineRun) -> str:
    split = any(
        len(entry) == 1 and entry[0][0] // run.chunks == W for order in run.timeline.orders for entry in order
    )
    kinds = "forwards, input gradients and weight gradients" if split else "forwards and backwards"
    peaks = ", ".join([f"{peak:g}" for peak in run.in_flight_peak])
    return (
        f"Timeline of {_name(run)}: {run.stages} ranks run their {kinds} in {run.makespan_s:g} units of time, "
        f"{100 * run.bubble_of_total:.1f} % of it idle; in flight at the peak are {peaks} micro-batches, rank by rank."
    )


def bubble_curves(n_stages: int = 8, target: float = 0.1, most: int = 96) -> Any:
    """Idle over total and idle over ideal time against the micro-batches, and where the first reaches ``target``."""
    batches = range(1, most + 1)
    ratios = (
        ("idle/total", bubble_of_total, "-"),
        ("idle/ideal", bubble_of_ideal, (0, (4, 3))),
    )
    needed = micro_batches_for_bubble(n_stages, target)

    def drawn(width: float, beneath: tuple[float, float]) -> Canvas:
        canvas = Canvas(figsize=(width, 2.9), layout="constrained")
        axes = canvas.subplots()
        for name, ratio, line in ratios:
            values = [100 * ratio(n_stages, m) for m in batches]
            axes.plot(batches, values, color=color("idle-text"), linestyle=line, linewidth=2)
            shown = next(m for m in batches if ratio(n_stages, m) < (0.62 if name == "idle/ideal" else 0.23))
            axes.annotate(
                name,
                (shown, 100 * ratio(n_stages, shown)),
                (6, 6) if name == "idle/ideal" else beneath,
                textcoords="offset points",
                color=color("idle-text"),
                ha="left" if name == "idle/ideal" else "right",
            )
        axes.axhline(100 * target, color=color("limit"), linewidth=0.75)
        axes.plot([needed], [100 * target], "o", color=color("text"), markersize=7)
        axes.annotate(
            f"m = {needed}", (needed, 100 * target), (0, 9), textcoords="offset points", ha="center"
        )
        axes.axvline(n_stages, color=color("limit"), linewidth=0.75)
        axes.annotate(f"m = p = {n_stages}", (n_stages, 100), (5, -4), textcoords="offset points", va="top")
        axes.set(xlim=(0, most), ylim=(0, 100))
        axes.set_yticks(sorted({*range(0, 101, 20), round(100 * target)}))
        axes.set_xlabel("micro-batches m")
        axes.set_ylabel("bubble, %")
        return canvas

    with style():
        wide, narrow = drawn(7.2, (-2, -11)), drawn(4.4, (9.5, -14.5))
    total, ideal = bubble_of_total(n_stages, n_stages), bubble_of_ideal(n_stages, n_stages)
    return figure(
        wide,
        narrow=narrow,
        alt=f"Two falling curves against the micro-batches on {n_stages} stages. At m = {n_stages} idle over total is "
        f"{100 * total:.1f} % and idle over ideal {100 * ideal:.1f} %; idle over total reaches {100 * target:.0f} % at "
        f"m = {needed}, where the curves have nearly met.",
        caption=f"One pipeline of {n_stages} stages, two ratios with one name. They differ most where the bubble is "
        f"large; {100 * target:.0f} % of the total time takes {needed} micro-batches.",
    )
