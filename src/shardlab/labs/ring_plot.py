"""The ring lab's picture; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.plot import Pair, draw_pairs, dress, head
from shardlab.labs.ring import TimeRow


def time_figure(rows: Sequence[TimeRow], dark: bool = False) -> Any:
    """Time against size, one line per number of ranks: measured solid, predicted dashed."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    everyone = sorted({row.ranks for row in rows})
    pairs = []
    for ranks in everyone:
        line = sorted([row for row in rows if row.ranks == ranks], key=lambda row: row.n_bytes)
        pairs.append(
            Pair(
                f"{ranks} ranks",
                [row.n_bytes for row in line],
                [1e3 * row.seconds for row in line],
                [1e3 * (row.predicted_s or 0.0) for row in line],
            )
        )
    draw_pairs(axes, pairs, dark, roles=("muted", "communication"))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0.16)
    axes.set_xlabel("buffer of one rank, bytes")
    axes.set_ylabel("time of one ring all-reduce, ms")
    head(axes, f"solid: measured, dashed: predicted from {everyone[0]} ranks")
    dress(figure, dark)
    return figure
