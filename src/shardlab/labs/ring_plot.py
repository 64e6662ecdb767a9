"""The ring lab's picture; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.ring import TimeRow
from shardlab.palette import color


def time_figure(rows: Sequence[TimeRow], dark: bool = False) -> Any:
    """Time against size, one line per number of ranks: measured solid, predicted dashed."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    everyone = sorted({row.ranks for row in rows})
    for index, ranks in enumerate(everyone):
        line = sorted([row for row in rows if row.ranks == ranks], key=lambda row: row.n_bytes)
        sizes = [row.n_bytes for row in line]
        shade, marker = color(("muted", "communication")[index % 2], dark), "osD^"[index % 4]
        axes.plot(sizes, [1e3 * row.seconds for row in line], marker=marker, color=shade)
        axes.plot(sizes, [1e3 * (row.predicted_s or 0.0) for row in line], "--", color=shade, linewidth=1)
        axes.annotate(
            f"{ranks} ranks",
            (sizes[-1], 1e3 * line[-1].seconds),
            xytext=(8, -3),
            textcoords="offset points",
            color=color("text", dark),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0.16)
    axes.set_xlabel("buffer of one rank, bytes")
    axes.set_ylabel("time of one ring all-reduce, ms")
    title = f"solid: measured, dashed: predicted from {everyone[0]} ranks"
    axes.set_title(title, loc="left", fontsize="medium", color=color("text", dark))
    dress(figure, axes, dark)
    return figure


def dress(figure: Any, axes: Any, dark: bool) -> None:
    """The book's look for one picture of a lab, light or dark; and close it, or a notebook shows it twice."""
    text = color("text", dark)
    axes.minorticks_off()
    axes.xaxis.label.set_color(text)
    axes.yaxis.label.set_color(text)
    axes.tick_params(colors=text)
    axes.spines[["top", "right"]].set_visible(False)
    for surface in (figure.patch, axes.patch):
        surface.set_facecolor(color("surface", dark))
    plt.close(figure)
