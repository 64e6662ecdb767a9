"""The picture of the checkpoint lab; imports matplotlib, so only ``CheckpointRun.plot`` imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.checkpoint import ResumeRow
from shardlab.labs.plot import dress
from shardlab.palette import color

# No colour of the book's: a part of a checkpoint is neither compute, communication nor idle time.
STYLES = (("text", "o"), ("muted", "s"), ("text", "^"), ("muted", "D"))


def omission_figure(rows: Sequence[ResumeRow], dark: bool = False) -> Any:
    """Loss gap (left) and parameter gap (right) against the step after resuming, a line for each part left out."""
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.8), layout="constrained")
    left_out = [row for row in rows if row.missing]
    for row, (shade, marker) in zip(left_out, STYLES, strict=True):
        style = {"color": color(shade, dark), "marker": marker, "markersize": 4, "linewidth": 1}
        steps = list(range(1, len(row.loss_gaps) + 1))
        panels[0].plot(steps, row.loss_gaps, label=f"without {row.missing}", **style)
        panels[1].plot(steps, [100 * gap for gap in row.parameter_gaps], **style)
    for axes, words in zip(panels, ("loss gap", "parameter gap, % of the norm"), strict=True):
        axes.set_xlabel("step after resuming")
        axes.set_ylabel(words)
        axes.set_ylim(bottom=0)
    # One part's gap is a hundred times another's, and the first ones are 0.
    panels[0].set_yscale("symlog", linthresh=1e-3)
    # The lines cross: names at their ends would cover each other.
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=color("text", dark))
    dress(figure, dark)
    return figure
