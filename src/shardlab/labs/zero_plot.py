"""The picture of the ZeRO lab; imports matplotlib, so nothing imports this before a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

from shardlab.labs.plot import dress
from shardlab.palette import color

if TYPE_CHECKING:
    from shardlab.labs.zero import WayRow


def memory_figure(rows: Sequence[WayRow], parameters: int, dark: bool = False) -> Any:
    """One bar for each way: bytes per parameter on its fullest rank, by kind; a thin line is the formula's total."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    text, limit = color("text", dark), color("limit", dark)
    places = range(len(rows))
    left = [0.0] * len(rows)
    for kind in ("parameters", "gradients", "optimizer"):
        widths = [getattr(row.fullest, kind) / parameters for row in rows]
        axes.barh(places, widths, left=left, color=color(f"memory-{kind}", dark), label=kind, height=0.6)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    formula = [row.predicted.total_bytes / parameters for row in rows]
    low, high = [[place + half for place in places] for half in (-0.42, 0.42)]
    axes.vlines(formula, low, high, color=limit, linewidth=1.2, label="formula")
    axes.set_yticks(list(places), [row.title for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"bytes per parameter on the fullest of {rows[0].ranks} ranks")
    axes.legend(frameon=False, labelcolor=text, loc="lower right")
    dress(figure, dark)
    return figure
