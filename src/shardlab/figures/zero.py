"""Pictures of chapter 04: who holds which part of the training state at each stage."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from shardlab.experiments import figure, style
from shardlab.models.memory import model_states, recipe_named
from shardlab.palette import color

_SHARDED = ("nothing sharded", "+ optimizer", "+ gradients", "+ parameters")


def zero_stages(n_ranks: int = 4) -> Any:
    """Parameters, gradients and optimizer state on every rank, stage by stage; a rank's shard is its slice of the block."""
    recipe = recipe_named("mixed-adam-16")
    # From below: kind, bytes per parameter, the first stage that shards it.
    blocks = (
        ("parameters", recipe.parameters, 3),
        ("gradients", recipe.gradients, 2),
        ("optimizer", recipe.stage1_bytes, 1),
    )
    totals = [model_states(1.0, n_ranks, stage).bytes_per_parameter for stage in range(4)]

    def drawn(width: float, height: float, rows: int) -> Canvas:
        canvas = Canvas(figsize=(width, height), layout="constrained")
        for stage, axes in enumerate(canvas.subplots(rows, 4 // rows, sharey=True).flat):
            for rank in range(n_ranks):
                bottom = 0.0
                for kind, height, first in blocks:
                    _block(axes, rank, bottom, height, f"memory-{kind}", n_ranks if stage >= first else 1)
                    bottom += height
            axes.set_title(
                f"stage {stage}\n{_SHARDED[stage]}\n{totals[stage]:g} B/parameter", fontsize=9, loc="left"
            )
            axes.set_xticks(range(n_ranks))
            axes.set_xlabel("rank")
            axes.set_xlim(-0.55, n_ranks - 0.45)
            axes.set_ylim(0, 16.6)
            axes.set_yticks([1, 3, 10], [kind for kind, _, _ in blocks])
            axes.tick_params(axis="both", length=0)
            axes.spines[["left", "bottom"]].set_visible(False)
            axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.4, 3.9, rows=1), drawn(4.4, 6.6, rows=2)
    figures = ", ".join([f"stage {stage} {total:g}" for stage, total in enumerate(totals)])
    return figure(
        wide,
        narrow=narrow,
        alt=f"Four panels, one for each stage, with {n_ranks} ranks each. At stage 0 every rank holds whole blocks of "
        f"parameters, gradients and optimizer state. Each stage replaces one more block by a slice of 1/{n_ranks}, another "
        f"on every rank, the optimizer first. Bytes per parameter on each rank: {figures}.",
        caption=f"Who holds what on {n_ranks} ranks, to scale: 2 + 2 + 12 bytes per parameter. Outlined: what other ranks "
        f"hold in a rank's stead. The slices of all ranks together are one whole copy.",
    )


def _block(axes: Any, rank: int, bottom: float, height: float, role: str, shards: int) -> None:
    """One copy on one rank: filled whole, or filled in the rank's own slice and outlined elsewhere."""
    left, width = rank - 0.4, 0.8
    axes.add_patch(
        Rectangle((left, bottom), width, height, facecolor="none", edgecolor=color("idle"), linewidth=0.6)
    )
    share = height / shards
    start = bottom + (rank * share if shards > 1 else 0.0)
    axes.add_patch(
        Rectangle(
            (left, start), width, share, facecolor=color(role), edgecolor=color("surface"), linewidth=0.4
        )
    )
