"""The local-SGD lab's picture; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.local_sgd import SHARDS, TrainingRow
from shardlab.labs.plot import dress, head
from shardlab.palette import color

TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10)


def loss_figure(rows: Sequence[TrainingRow], dark: bool = False) -> Any:
    """Held-out loss against bytes sent so far; a panel for mixed and one for sorted shards, a line per training."""
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True, layout="constrained")
    text = color("text", dark)
    for axes, shards in zip(panels, SHARDS, strict=True):
        shown = [row for row in rows if row.shards == shards]
        for row in shown:
            _draw(axes, row, dark)
        for every in sorted({row.every for row in shown if row.sent_bytes}):
            _name_interval(axes, [row for row in shown if row.every == every], text)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.margins(y=0.12)
        axes.set_xlabel("bytes sent by one rank so far")
        head(axes, f"{shards} shards")
    panels[0].set_ylabel("held-out loss")
    losses = [loss for row in rows for _, loss in row.losses]
    panels[0].set_ylim(0.9 * min(losses), 1.2 * max(losses))
    figure.suptitle("solid: SGD, dashed: AdamW (DiLoCo where H is above 1)", fontsize="medium", color=text)
    dress(figure, dark)
    return figure


def _draw(axes: Any, row: TrainingRow, dark: bool) -> None:
    if not row.sent_bytes:
        # Nothing sent has no place on a log axis: a level, for what silence ends at.
        axes.axhline(row.loss, color=color("limit", dark), linewidth=0.8)
        axes.annotate(
            "never averaged",
            (0.99, row.loss),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize="small",
            color=color("text", dark),
        )
        return
    sent = [step * row.sent_bytes for step, _ in row.losses]
    dash = "--" if row.method in ("synchronous AdamW", "DiLoCo") else "-"
    shade = color("communication" if row.every == 1 else "muted", dark)
    axes.plot(sent, [loss for _, loss in row.losses], dash, marker=".", color=shade)


def _name_interval(axes: Any, rows: Sequence[TrainingRow], text: str) -> None:
    """H above the lines that share it."""
    start = min(row.losses[0][0] * row.sent_bytes for row in rows)
    top = max(loss for row in rows for _, loss in row.losses)
    axes.annotate(f"H = {rows[0].every}", (start, top), xytext=(0, 6), textcoords="offset points", color=text)
