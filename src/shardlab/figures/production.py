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
    passed = "100 steps pass the check: one rung on"
    failed = "they don't: one rung back, same configuration file"

    def row() -> Canvas:
        canvas = Canvas(figsize=(7.2, 2.0))
        axes = canvas.add_axes((0.09, 0.0, 0.9, 1.0))
        for index, (name, check) in enumerate(_RUNGS):
            labelled_bar(axes, 0, index, index + 0.8, "compute", name, height=0.8)
            axes.text(index + 0.4, 0.95, check, ha="center", va="center", fontsize=8, color=color("text"))
            if index:
                _arrow(axes, (index - 0.18, -0.15), (index - 0.02, -0.15))
                _arrow(axes, (index - 0.02, 0.15), (index - 0.18, 0.15))
        axes.text(
            2.4,
            -0.75,
            f"{passed}    ·    {failed}",
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
        return canvas

    def stairs() -> Canvas:
        canvas = Canvas(figsize=(4.4, 4.1))
        axes = canvas.add_axes((0.0, 0.0, 1.0, 1.0))
        for index, (name, check) in enumerate(_RUNGS):
            left, floor = 0.5 * index, len(_RUNGS) - index
            labelled_bar(axes, floor, left, left + 1.0, "compute", name, height=0.6)
            axes.text(left + 1.1, floor, check, va="center", fontsize=9, color=color("text"))
            if index:
                _arrow(axes, (left + 0.17, floor + 0.66), (left + 0.17, floor + 0.34))
                _arrow(axes, (left + 0.33, floor + 0.34), (left + 0.33, floor + 0.66))
        for line, text in enumerate((passed, failed)):
            axes.text(0.0, 0.02 + 0.3 * line, text, va="center", fontsize=9, color=color("muted"))
        for left, text in ((0.4, "run"), (1.1, "check")):
            axes.text(left, len(_RUNGS) + 0.48, text, va="center", color=color("muted"))
        axes.set(xlim=(-0.02, 4.02), ylim=(len(_RUNGS) + 0.68, -0.2))
        axes.axis("off")
        return canvas

    with style():
        wide, narrow = row(), stairs()
    return figure(
        wide,
        narrow=narrow,
        alt="Five rungs from left to right, with arrows both ways between neighbours. "
        + "; ".join([f"{name}: {check}" for name, check in _RUNGS]).replace("\n", " ")
        + ". A rung is left to the right when 100 steps pass its check, and to the left when they do not.",
        caption="A run grows one rung at a time. Each rung changes one thing, so a check that fails says what to blame, "
        "and the rung before it is known to work.",
    )


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={"arrowstyle": "->", "color": color("text"), "lw": 1.1, "shrinkA": 0, "shrinkB": 0},
    )
