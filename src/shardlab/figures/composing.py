"""Pictures of chapter 08: the same mesh numbered in two orders over nodes, and the degrees that SC21 chose as models grew."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from shardlab.experiments import figure, style
from shardlab.figures.common import ink_on
from shardlab.models.mesh import Mesh, mesh
from shardlab.models.published import sc21_steps
from shardlab.palette import color
from shardlab.transformer import parameters

# Light enough for dark letters on a light and on a dark page.
_ROLES = (("tensor", "communication"), ("data", "memory-gradients"), ("pipeline", "idle"))


def _cells(axes: Any, laid: Mesh, own: int, letters: float) -> None:
    """Every rank as a cell of its node; the groups of one rank in their colours."""
    groups = [(role, laid.group(own, (name,))) for name, role in _ROLES]
    for rank in range(laid.ranks):
        row, column = rank // laid.node_gpus, rank % laid.node_gpus
        role = next((role for role, ranks in groups if rank in ranks and rank != own), "")
        fill = color("compute") if rank == own else color(role) if role else "none"
        ink = color("surface") if rank == own else ink_on(role) if role else color("muted")
        axes.add_patch(
            Rectangle((column, row), 0.92, 0.86, facecolor=fill, edgecolor=color("muted"), linewidth=0.6)
        )
        place = (column + 0.46, row + 0.43)
        axes.text(*place, str(rank), ha="center", va="center", fontsize=letters, color=ink)
    axes.set_xlim(-0.1, laid.node_gpus + 0.1)
    axes.set_ylim(laid.nodes + 0.05, -0.15)
    axes.set_yticks([row + 0.43 for row in range(laid.nodes)], [f"node {row}" for row in range(laid.nodes)])
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(visible=False)


def two_numberings() -> Any:
    """Tensor 8, data 2, pipeline 2 on four nodes of 8, tensor fastest and tensor slowest: the groups of rank 5."""
    sizes = {"tensor": 8, "data": 2, "pipeline": 2}
    orders = (("tensor", "data", "pipeline"), ("pipeline", "data", "tensor"))

    def drawn(width: float, height: float, columns: int, letters: float) -> Canvas:
        canvas = Canvas(figsize=(width, height), layout="constrained")
        panels = canvas.subplots(1, 2)
        for axes, order in zip(panels, orders, strict=True):
            _cells(axes, mesh(tuple([(name, sizes[name]) for name in order])), own=5, letters=letters)
            axes.set_title(f"{order[0]} fastest", fontsize=10, loc="left")
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=color(role), edgecolor=color("muted"))
            for role in ("compute", *[role for _, role in _ROLES])
        ]
        canvas.legend(
            handles,
            ["rank 5", *[f"its {name} group" for name, _ in _ROLES]],
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=9,
        )
        return canvas

    with style():
        wide = drawn(7.2, 2.5, columns=4, letters=8)
        narrow = drawn(4.4, 2.6, columns=2, letters=8.7)
        for axes in narrow.axes:
            axes.tick_params(labelsize=9)
        # The rows are the same nodes: named once, the cells have room for two digits.
        narrow.axes[1].set_yticks([])
    return figure(
        wide,
        narrow=narrow,
        alt="Two grids of 4 nodes with 8 GPUs. Left, tensor fastest: the tensor group of rank 5 is ranks 0 to 7, all of "
        "node 0; its data partner 13 and its pipeline partner 21 are on other nodes. Right, pipeline fastest and tensor "
        "slowest: its tensor group is ranks 1, 5, 9 and on to 29, two on each of the four nodes; its pipeline partner 4 and "
        "its data partner 7 sit on node 0.",
        caption="The same 32 ranks, the same degrees, two ways to number them, and rank 5's groups. Left, the tensor group "
        "fills one node; right, it is strewn over all four, two ranks each.",
    )


def sc21_degrees() -> Any:
    """SC21's ten layouts: each factor of the GPUs as a length on a scale of doublings."""
    parts = (
        ("tensor", "communication", "tensor"),
        ("pipeline", "idle", "pipeline"),
        ("data", "memory-gradients", "data"),
    )
    steps = sc21_steps()

    def drawn(width: float, height: float) -> Canvas:
        canvas = Canvas(figsize=(width, height), layout="constrained")
        axes = canvas.subplots()
        for row, step in enumerate(steps):
            start = 0.0
            for name, role, _ in parts:
                degree = getattr(step, name)
                length = math.log2(degree)
                if degree > 1:
                    axes.barh(
                        row,
                        length,
                        left=start,
                        height=0.7,
                        color=color(role),
                        edgecolor=color("surface"),
                        linewidth=0.8,
                    )
                    axes.text(
                        start + length / 2,
                        row,
                        str(degree),
                        ha="center",
                        va="center",
                        fontsize=9,
                        color=ink_on(role),
                    )
                start += length
        axes.set_yticks(range(len(steps)), [f"{parameters(step.model) / 1e9:.1f}B" for step in steps])
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xticks(range(0, 13, 2), [str(2**power) for power in range(0, 13, 2)])
        axes.set_xlim(0, 12)
        axes.set_xlabel("GPUs; each doubling has the same length")
        axes.grid(visible=False)
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=color(role), edgecolor=color("surface")) for _, role, _ in parts
        ]
        canvas.legend(
            handles,
            [label for _, _, label in parts],
            loc="outside upper center",
            ncols=3,
            frameon=False,
            fontsize=9,
        )
        return canvas

    with style():
        wide, narrow = drawn(7.2, 3.4), drawn(4.4, 3.4)
    told = "; ".join([f"{step.tensor} x {step.pipeline} x {step.data}" for step in steps])
    return figure(
        wide,
        narrow=narrow,
        alt="Ten bars for models of 1.7 to 1008 billion parameters, tensor x pipeline x data: " + told + ".",
        caption="The layouts of SC21's Table 1. Tensor parallelism grows first, up to the 8 GPUs of a node; then the "
        "pipeline grows; data parallelism takes what is left.",
    )
