"""The slow-network lab's picture; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.slow_network import SlowNetworkRun, rate_words
from shardlab.palette import color


def rate_figure(run: SlowNetworkRun, dark: bool = False) -> Any:
    """Speedup against ranks, one line per rate: measured solid, predicted dashed, break-even as a thin line."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    text = color("text", dark)
    axes.axhline(1, color=color("limit", dark), linewidth=0.8)
    # No colour of the book's: those mean compute, communication and memory, and a rate is none of them.
    for index, rate in enumerate((None, *run.settings["mbit_s"])):
        rows = [run.step_row(None, 1), *[row for row in run.steps if row.mbit_s == rate and row.ranks > 1]]
        ranks = [row.ranks for row in rows]
        shade, marker = color(("text", "muted")[index % 2], dark), "osD^"[index % 4]
        axes.plot(ranks, [row.speedup for row in rows], marker=marker, color=shade)
        axes.plot(ranks, [row.predicted_speedup for row in rows], "--", color=shade, linewidth=1)
        axes.annotate(
            rate_words(rate),
            (ranks[-1], rows[-1].speedup),
            xytext=(8, -3),
            textcoords="offset points",
            color=text,
        )
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.set_xlim(0.8, ranks[-1] * 1.3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks", color=text)
    axes.set_ylabel("speedup, strong scaling", color=text)
    axes.set_title("solid: measured, dashed: predicted", loc="left", fontsize="medium", color=text)
    axes.tick_params(colors=text)
    axes.spines[["top", "right"]].set_visible(False)
    for surface in (figure.patch, axes.patch):
        surface.set_facecolor(color("surface", dark))
    # A notebook would show an open figure a second time.
    plt.close(figure)
    return figure
