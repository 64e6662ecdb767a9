"""What the labs' pictures share; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt

from shardlab.palette import color

# Lines that are neither compute, communication nor memory, which the book's colours mean.
NEUTRAL = ("text", "muted")


@dataclass(frozen=True)
class Pair:
    """What was measured along a line, and what was predicted.

    Attributes:
        name: written at the line's end.
        x: where: ranks, bytes.
        measured, predicted: a value for each x.
    """

    name: str
    x: Sequence[float]
    measured: Sequence[float]
    predicted: Sequence[float]


def draw_pairs(
    axes: Any,
    pairs: Sequence[Pair],
    dark: bool,
    roles: Sequence[str] = NEUTRAL,
    markers: str = "osD^",
    line: str = "-",
) -> None:
    """Measured with markers, joined by ``line`` ("" for points alone), predicted dashed, the name at the end."""
    for index, pair in enumerate(pairs):
        shade, marker = color(roles[index % len(roles)], dark), markers[index % len(markers)]
        axes.plot(pair.x, pair.measured, marker + line, color=shade)
        axes.plot(pair.x, pair.predicted, "--", color=shade, linewidth=1)
        name_end(axes, pair.name, pair.x[-1], pair.measured[-1], dark)


def draw_speedups(axes: Any, pairs: Sequence[Pair], dark: bool) -> None:
    """Strong-scaling speedup against ranks; break-even is a thin line."""
    axes.axhline(1, color=color("limit", dark), linewidth=0.8)
    draw_pairs(axes, pairs, dark)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("speedup, strong scaling")
    head(axes, "solid: measured, dashed: predicted")


def name_end(axes: Any, name: str, x: float, y: float, dark: bool, gap: float = 8) -> None:
    """A line's name to the right of its last point, ``gap`` points away."""
    axes.annotate(name, (x, y), xytext=(gap, -3), textcoords="offset points", color=color("text", dark))


def rank_axis(axes: Any, ranks: Iterable[int], left: float, right: float) -> None:
    """A tick at each number of ranks; the axis runs from ``left`` times the least to ``right`` times the most."""
    everyone = sorted(set(ranks))
    axes.set_xticks(everyone, [str(n) for n in everyone])
    axes.set_xlim(everyone[0] * left, everyone[-1] * right)
    axes.set_xlabel("ranks")


def head(axes: Any, words: str) -> None:
    """A line above a panel that says how to read it."""
    axes.set_title(words, loc="left", fontsize="medium")


def dress(figure: Any, dark: bool) -> None:
    """The book's look for every panel of a picture, light or dark; the last step of drawing it."""
    text, surface = color("text", dark), color("surface", dark)
    for axes in figure.axes:
        axes.minorticks_off()
        for words in (axes.xaxis.label, axes.yaxis.label):
            words.set_color(text)
        axes.set_title(axes.get_title(loc="left"), loc="left", fontsize="medium", color=text)
        axes.tick_params(colors=text)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_facecolor(surface)
    figure.patch.set_facecolor(surface)
    # A notebook would show an open figure a second time.
    plt.close(figure)
