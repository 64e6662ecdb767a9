"""Pictures of measured labs; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import matplotlib.pyplot as plt

from shardlab.palette import color


class SpeedupRow(Protocol):
    """A measured and a predicted speedup."""

    @property
    def batch(self) -> int:
        """Samples in the global batch."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""

    @property
    def speedup(self) -> float:
        """Measured."""

    @property
    def predicted_speedup(self) -> float:
        """Predicted."""


def speedup_figure(rows: Sequence[SpeedupRow], dark: bool = False) -> Any:
    """Strong-scaling speedup against ranks: measured solid, predicted dashed, break-even as a thin line."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    text, limit = color("text", dark), color("limit", dark)
    axes.axhline(1, color=limit, linewidth=0.8)
    axes.annotate("one rank", (1, 1), xytext=(-6, 4), textcoords="offset points", color=text, ha="right")
    # No colour of the book's: those mean compute, communication and memory, and a batch is none of them.
    for index, batch in enumerate(sorted({row.batch for row in rows})):
        line = sorted([row for row in rows if row.batch == batch], key=lambda row: row.ranks)
        ranks = [row.ranks for row in line]
        shade, marker = color(("text", "muted")[index % 2], dark), "osD^"[index % 4]
        axes.plot(ranks, [row.speedup for row in line], marker=marker, color=shade)
        axes.plot(ranks, [row.predicted_speedup for row in line], "--", color=shade, linewidth=1)
        axes.annotate(
            f"batch {batch}",
            (ranks[-1], line[-1].speedup),
            xytext=(8, -3),
            textcoords="offset points",
            color=text,
        )
    everyone = sorted({row.ranks for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(everyone, [str(n) for n in everyone])
    axes.set_xlim(everyone[0] * 0.75, everyone[-1] * 1.5)
    axes.set_ylim(bottom=0)
    axes.minorticks_off()
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
