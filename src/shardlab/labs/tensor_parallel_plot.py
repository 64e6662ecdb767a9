"""The tensor-parallel lab's picture; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

from shardlab.labs.plot import Pair, draw_pairs, dress, head, rank_axis

if TYPE_CHECKING:
    from shardlab.labs.tensor_parallel import LayerRow


def activations_figure(rows: Sequence[LayerRow], dark: bool = False) -> Any:
    """Kept bytes of one layer against ranks, cut by hand: points measured, lines predicted."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    pairs = []
    for layout in ("tensor", "sequence"):
        by_hand = [row for row in rows if (row.how, row.layout) == ("by hand", layout)]
        line = sorted(by_hand, key=lambda row: row.ranks)
        pairs.append(
            Pair(
                f"{layout} parallel",
                [row.ranks for row in line],
                [row.saved_bytes / 1e6 for row in line],
                [row.predicted_saved_bytes / 1e6 for row in line],
            )
        )
    draw_pairs(axes, pairs, dark, roles=("memory-gradients", "memory-parameters"), markers="os", line="")
    axes.set_xscale("log", base=2)
    rank_axis(axes, [row.ranks for row in rows], 0.8, 2.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("kept for the backward pass, MB per rank")
    head(axes, "points: measured, dashed: predicted")
    dress(figure, dark)
    return figure
