"""The picture of the data-parallel lab; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

from shardlab.labs.plot import Pair, draw_speedups, dress, rank_axis
from shardlab.palette import color

if TYPE_CHECKING:
    from shardlab.labs.ddp import ScalingRow


def speedup_figure(rows: Sequence[ScalingRow], dark: bool = False) -> Any:
    """Strong-scaling speedup against ranks, one line per batch: measured solid, predicted dashed."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    pairs = []
    for batch in sorted({row.batch for row in rows}):
        line = sorted([row for row in rows if row.batch == batch], key=lambda row: row.ranks)
        pairs.append(
            Pair(
                f"batch {batch}",
                [row.ranks for row in line],
                [row.speedup for row in line],
                [row.predicted_speedup for row in line],
            )
        )
    draw_speedups(axes, pairs, dark)
    axes.annotate(
        "one rank", (1, 1), xytext=(-6, 4), textcoords="offset points", color=color("text", dark), ha="right"
    )
    axes.set_xscale("log", base=2)
    rank_axis(axes, [row.ranks for row in rows], 0.75, 1.5)
    dress(figure, dark)
    return figure
