"""What several pictures share."""

from __future__ import annotations

from typing import Any

from shardlab.palette import color


def labelled_bar(
    axes: Any, row: float, start: float, end: float, role: str, label: str = "", height: float = 0.62
) -> None:
    """A horizontal bar from ``start`` to ``end`` with its name in it."""
    dark_fill = role == "compute"
    axes.barh(
        row,
        end - start,
        left=start,
        height=height,
        color=color(role),
        edgecolor=color("surface"),
        linewidth=0.8,
    )
    if label:
        # Fixed, not a role: the fill stays light enough for dark letters on the dark page too.
        ink = color("surface") if dark_fill else "#1b1e22"
        axes.text((start + end) / 2, row, label, ha="center", va="center", fontsize=9, color=ink)
