"""The tensor-parallel lab's picture; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

from shardlab.palette import color

if TYPE_CHECKING:
    from shardlab.labs.tensor_parallel import LayerRow


def activations_figure(rows: Sequence[LayerRow], dark: bool = False) -> Any:
    """Kept bytes of one layer against ranks, cut by hand: points measured, lines predicted."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    text = color("text", dark)
    for layout, role, marker in (
        ("tensor", "memory-gradients", "o"),
        ("sequence", "memory-parameters", "s"),
    ):
        line = sorted(
            [row for row in rows if (row.how, row.layout) == ("by hand", layout)], key=lambda row: row.ranks
        )
        ranks, shade = [row.ranks for row in line], color(role, dark)
        axes.plot(ranks, [row.saved_bytes / 1e6 for row in line], marker, color=shade)
        axes.plot(ranks, [row.predicted_saved_bytes / 1e6 for row in line], "--", color=shade, linewidth=1)
        axes.annotate(
            f"{layout} parallel",
            (ranks[-1], line[-1].saved_bytes / 1e6),
            xytext=(8, -3),
            textcoords="offset points",
            color=text,
        )
    everyone = sorted({row.ranks for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(everyone, [str(n) for n in everyone])
    axes.set_xlim(everyone[0] * 0.8, everyone[-1] * 2.2)
    axes.set_ylim(bottom=0)
    axes.minorticks_off()
    axes.set_xlabel("ranks", color=text)
    axes.set_ylabel("kept for the backward pass, MB per rank", color=text)
    axes.set_title("points: measured, dashed: predicted", loc="left", fontsize="medium", color=text)
    axes.tick_params(colors=text)
    axes.spines[["top", "right"]].set_visible(False)
    for surface in (figure.patch, axes.patch):
        surface.set_facecolor(color("surface", dark))
    # A notebook would show an open figure a second time.
    plt.close(figure)
    return figure
