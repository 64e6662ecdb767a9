"""The picture of chapter 11: a run grows rung by rung, each with a check, and steps back the same way."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas

from shardlab.experiments import figure, style
from shardlab.figures.common import labelled_bar
from shardlab.palette import color

# Rung, and what must hold before the next one.
_RUNGS = (
    ("1 rank", "loss falls,\nstep time noted"),
    ("2 ranks,\n1 node", "the same loss,\nbytes as counted"),
    ("1 node", "step in its bracket,\nMFU noted"),
    ("2 nodes", "link as named,\nresume tested"),
    ("all nodes", "slowest rank,\nalarms set"),
)


def release_ladder() -> Any:
    """From one rank to all nodes, with the check of each rung and the way back."""
    with style():
        canvas = Canvas(figsize=(7.2, 2.0))
        axes = canvas.add_axes((0.09, 0.0, 0.9, 1.0))
        for index, (name, check) in enumerate(_RUNGS):
            labelled_bar(axes, 0, index, index + 0.8, "compute", name, height=0.8)
            axes.text(index + 0.4, 0.95, check, ha="center", va="center", fontsize=8, color=color("text"))
            if index:
                _arrow(axes, index - 0.18, index - 0.02, -0.15)
                _arrow(axes, index - 0.02, index - 0.18, 0.15)
        axes.text(
            2.4,
            -0.75,
            "100 steps pass the check: one rung on    ·    they don't: one rung back, same configuration file",
            ha="center",
            va="center",
            fontsize=8.5,
            color=color("muted"),
        )
        axes.set_xlim(0, 4.8)
        axes.set_ylim(1.45, -1.0)
        axes.set_yticks([0, 0.95], ["run", "check"])
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
    return figure(
        canvas,
        alt="Five rungs from left to right, with arrows both ways between neighbours. "
        + "; ".join([f"{name}: {check}" for name, check in _RUNGS]).replace("\n", " ")
        + ". A rung is left to the right when 100 steps pass its check, and to the left when they do not.",
        caption="A run grows one rung at a time. Each rung changes one thing, so a check that fails says what to blame, "
        "and the rung before it is known to work.",
    )


def _arrow(axes: Any, start: float, end: float, height: float) -> None:
    axes.annotate(
        "",
        xy=(end, height),
        xytext=(start, height),
        arrowprops={"arrowstyle": "->", "color": color("text"), "lw": 1.1, "shrinkA": 0, "shrinkB": 0},
    )
