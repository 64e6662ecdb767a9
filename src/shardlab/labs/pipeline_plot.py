"""The picture of the pipeline lab: who works when, predicted above measured. Imports matplotlib."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.pipeline import ScheduleRow
from shardlab.labs.plot import dress, head
from shardlab.models.pipeline import PipelineRun
from shardlab.palette import color

# Three shades of the colour of compute, from dark to light: they stay apart in grey.
SHADE = {"F": 1.0, "B": 0.6, "W": 0.3}
WORDS = {"F": "forward", "B": "input gradient", "W": "weight gradient"}

# (rank, kind, micro-batch, start, end), seconds
Bar = tuple[int, str, str, float, float]


def timeline_figure(row: ScheduleRow, prediction: PipelineRun, dark: bool = False) -> Any:
    """One timeline per rank, once as predicted and once as measured, on the same axis of time."""
    ranks = len(row.orders)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9.0, 1.6 + 0.75 * ranks), sharex=True, layout="constrained"
    )
    ideas = (
        (above, predicted_bars(prediction), "predicted", prediction.makespan_s, prediction.bubble_of_total),
        (below, measured_bars(row), "measured", row.makespan_s, row.bubble_of_total),
    )
    for axes, bars, word, makespan_s, bubble in ideas:
        _draw(axes, bars, ranks, makespan_s, dark)
        head(axes, f"{row.name}, {word}: {makespan_s * 1e3:.0f} ms, idle/total {bubble:.3f}")
    below.set_xlabel("time, ms")
    _legend(figure, below, {kind for bars in (ideas[0][1], ideas[1][1]) for _, kind, *_ in bars}, dark)
    dress(figure, dark)
    return figure


def predicted_bars(prediction: PipelineRun) -> list[Bar]:
    """The executor's operations."""
    return [
        (done.rank, done.kind, str(done.micro_batch), done.start_s, done.end_s)
        for done in prediction.operations
    ]


def measured_bars(row: ScheduleRow) -> list[Bar]:
    """What the ranks noted; both gradients in one go are drawn as two halves."""
    bars = []
    for rank, order in enumerate(row.orders):
        for entry, start, end in zip(order.split(), row.starts_s[rank], row.ends_s[rank], strict=True):
            parts = entry.split("+")
            part_s = (end - start) / len(parts)
            for index, part in enumerate(parts):
                began = start + index * part_s
                bars.append((rank, part[0], part[1:].partition(".")[0], began, began + part_s))
    return bars


def _draw(axes: Any, bars: list[Bar], ranks: int, makespan_s: float, dark: bool) -> None:
    blue, text = color("compute", dark), color("text", dark)
    axes.barh(
        range(ranks),
        [makespan_s * 1e3] * ranks,
        height=0.8,
        color=color("idle", dark),
        hatch="///",
        edgecolor=color("surface", dark),
        linewidth=0,
    )
    surface = color("surface", dark)
    for kind, shade in SHADE.items():
        mine = [bar for bar in bars if bar[1] == kind]
        place = {
            "y": [rank for rank, *_ in mine],
            "width": [(end - start) * 1e3 for *_, start, end in mine],
            "left": [start * 1e3 for *_, start, _ in mine],
            "height": 0.8,
        }
        # The shade is see-through: without a ground the hatch would show.
        axes.barh(**place, color=surface)
        axes.barh(**place, color=blue, alpha=shade, edgecolor=surface, linewidth=0.6)
    for rank, kind, batch, start, end in bars:
        shade_of_text = surface if kind == "F" and not dark else text
        middle = (start + end) / 2 * 1e3
        axes.text(middle, rank, batch, ha="center", va="center", fontsize=10, color=shade_of_text)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.invert_yaxis()
    axes.set_xlim(0, makespan_s * 1e3)


def _legend(figure: Any, axes: Any, kinds: set[str], dark: bool) -> None:
    for kind in [kind for kind in WORDS if kind in kinds]:
        axes.bar([0], [0], color=color("compute", dark), alpha=SHADE[kind], label=WORDS[kind])
    axes.bar([0], [0], color=color("idle", dark), hatch="///", edgecolor=color("surface", dark), label="idle")
    text = color("text", dark)
    figure.legend(loc="outside lower center", ncols=4, fontsize="medium", frameon=False, labelcolor=text)
