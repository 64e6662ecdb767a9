"""The slow-network lab's picture; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.plot import Pair, draw_speedups, dress, rank_axis
from shardlab.labs.slow_network import SlowNetworkRun, rate_words


def rate_figure(run: SlowNetworkRun, dark: bool = False) -> Any:
    """Speedup against ranks, one line per rate: measured solid, predicted dashed, break-even as a thin line."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    pairs = []
    for rate in (None, *run.settings["mbit_s"]):
        rows = [run.step_row(None, 1), *[row for row in run.steps if row.mbit_s == rate and row.ranks > 1]]
        pairs.append(
            Pair(
                rate_words(rate),
                [row.ranks for row in rows],
                [row.speedup for row in rows],
                [row.predicted_speedup for row in rows],
            )
        )
    draw_speedups(axes, pairs, dark)
    rank_axis(axes, [row.ranks for row in run.steps], 0.8, 1.3)
    dress(figure, dark)
    return figure
