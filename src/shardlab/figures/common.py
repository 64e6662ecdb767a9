"""What several pictures share."""

from __future__ import annotations

from typing import Any

from shardlab.palette import color

# Fixed, not a role: for fills that stay light enough for dark letters on the dark page too.
INK = "#1b1e22"


def ink_on(role: str) -> str:
    """The colour of letters on a fill of that role, legible on the light and on the dark page."""
    if role in ("compute", "memory-parameters", "memory-gradients"):
        return color("surface")  # dark fills that become light ones on the dark page
    if role in ("idle", "memory-activations"):
        return color("text")  # light fills that become dark ones
    return INK


def labelled_bar(
    axes: Any, row: float, start: float, end: float, role: str, label: str = "", height: float = 0.62
) -> None:
    """A horizontal bar from ``start`` to ``end`` with its name in it."""
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
        axes.text((start + end) / 2, row, label, ha="center", va="center", fontsize=9, color=ink_on(role))


def waiting_bar(axes: Any, row: float, start: float, end: float, label: str) -> None:
    """Idle time from ``start`` to ``end``: hatched, with its name on a plain ground in the middle."""
    axes.barh(
        row,
        end - start,
        left=start,
        height=0.62,
        color=color("idle"),
        edgecolor=color("idle-text"),
        hatch="//",
        linewidth=0,
    )
    pad = {"facecolor": color("idle"), "edgecolor": "none", "pad": 1.5}
    middle = (start + end) / 2
    axes.text(middle, row, label, ha="center", va="center", fontsize=9, color=color("text"), bbox=pad)
