"""The picture of a router in training: the busiest expert, without and with the balance loss. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.expert_parallel import TrainingRow
from shardlab.labs.plot import dress, name_end
from shardlab.palette import color


def training_figure(trainings: Mapping[float, Sequence[TrainingRow]], dark: bool = False) -> Any:
    """The busiest expert's tokens over the mean against the step, one line for each weight of the balance loss."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    axes.axhline(1, color=color("limit", dark), linewidth=0.8)
    axes.annotate("balanced", (0, 1), xytext=(2, 4), textcoords="offset points", color=color("text", dark))
    for index, (weight, rows) in enumerate(trainings.items()):
        steps, loads = [row.step for row in rows], [row.imbalance for row in rows]
        axes.plot(
            steps, loads, color=color(("muted", "text")[index % 2], dark), linestyle=("--", "-")[index % 2]
        )
        name = f"balance loss × {weight:g}" if weight else "no balance loss"
        name_end(axes, name, steps[-1], loads[-1], dark, gap=6)
    last = max(row.step for rows in trainings.values() for row in rows)
    axes.set_xlim(0, max(last, 1) * 1.35)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("busiest expert's tokens over the mean")
    dress(figure, dark)
    return figure
