"""Where the ranks of a mesh sit: one rank's groups over the nodes, and which of its traffic leaves the node."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider
from shardlab.hardware import node
from shardlab.models.communication import layout_traffic
from shardlab.models.mesh import Mesh, mesh
from shardlab.transformer import parameters, preset

MOST_RANKS = 64
# More rows would be too low for what is written in them.
MOST_ROWS = 8
MODEL = "gpt3-175b"
GLOBAL_BATCH = 256
SEQUENCE = 2048
# NVLink and one port of 400 Gb/s a GPU, whatever the size of the node.
NODE = "dgx-h100"

ORDERS = {
    "tcdp": ("tensor", "context", "data", "pipeline"),
    "tcpd": ("tensor", "context", "pipeline", "data"),
    "dpct": ("data", "pipeline", "context", "tensor"),
}
"""Fastest axis first."""

AXES = ("tensor", "context", "pipeline", "data")
# Gradients are added up over all ranks that hold the same weights, and context ranks do.
_ALONG = {
    "tensor": ("tensor",),
    "context": ("context",),
    "pipeline": ("pipeline",),
    "data": ("data", "context"),
}
_LETTERS = {"tensor": "T", "context": "C", "pipeline": "P", "data": "D"}


def _power(value: int, most: int) -> int:
    """The largest power of two up to a value and a limit: what divides the model's 96 heads and layers here."""
    found = 1
    while 2 * found <= min(value, most):
        found *= 2
    return found


class _Axis:
    """One axis, seen by the chosen rank: its group, its bytes, and what the links give it."""

    def __init__(self, name: str, laid: Mesh, rank: int, n_bytes: float) -> None:
        kind = node(NODE)
        along = _ALONG[name]
        self.name = name
        self.ranks = laid.group(rank, along)
        self.crosses = laid.crosses(rank, along)
        self.n_bytes = n_bytes
        self.bandwidth = laid.ring_bandwidth(
            along, kind.intra.bandwidth, laid.node_gpus * kind.network_bandwidth_per_gpu
        )
        self.seconds = n_bytes / self.bandwidth


def picture(
    order: str, tensor: int, context: int, pipeline: int, data: int, node_gpus: str, rank: int
) -> dict[str, Any]:
    """The nodes with one rank's groups marked, and the time of its traffic along each axis."""
    t = _power(tensor, 16)
    c = _power(context, MOST_RANKS // t)
    p = _power(pipeline, MOST_RANKS // (t * c))
    d = _power(data, MOST_RANKS // (t * c * p))
    sizes = {"tensor": t, "context": c, "pipeline": p, "data": d}
    laid = mesh(tuple([(name, sizes[name]) for name in ORDERS[order]]), int(node_gpus))
    own = min(rank, laid.ranks - 1)
    sent = dict(_traffic(t, c, p, d))
    axes = [_Axis(name, laid, own, sent[name]) for name in AXES if sent[name] > 0]
    return chart.chart(
        panels=[_map_panel(laid, own, axes), _time_panel(own, axes)],
        words=_sentences(laid, own, sizes, axes),
        readouts=_readouts(laid, axes),
        bounds={
            "context": {"most": min(4, MOST_RANKS // t)},
            "pipeline": {"most": min(16, MOST_RANKS // (t * c))},
            "data": {"most": MOST_RANKS // (t * c * p)},
            "rank": {"most": laid.ranks - 1},
        },
    )


def _traffic(t: int, c: int, p: int, d: int) -> tuple[tuple[str, float], ...]:
    model = preset(MODEL)
    return layout_traffic(
        parameters(model),
        model.layers,
        SEQUENCE,
        1,
        model.hidden,
        model.heads,
        GLOBAL_BATCH // d,
        data_parallel=d,
        tensor_parallel=t,
        pipeline_parallel=p,
        context_parallel=c,
        zero_stage=1,
        sequence_parallel=t > 1,
    ).items


def _letters(rank: int, own: int, axes: list[_Axis]) -> str:
    return "" if rank == own else "".join([_LETTERS[axis.name] for axis in axes if rank in axis.ranks])


def _map_panel(laid: Mesh, own: int, axes: list[_Axis]) -> dict[str, Any]:
    texts, levels, marks = [], [], []
    paired = laid.nodes > MOST_ROWS
    nodes_in_row = 2 if paired else 1
    width = nodes_in_row * laid.node_gpus
    for row in range(laid.nodes // nodes_in_row):
        cells, fills = [], []
        for column in range(width):
            rank = row * width + column
            letters = _letters(rank, own, axes)
            cells.append("" if rank >= laid.ranks else f"{rank}{letters}" if letters else str(rank))
            fills.append(1.0 if rank == own else 0.55 if letters else 0.0)
            if rank == own:
                marks.append((row, column, "from"))
            elif letters:
                marks.append((row, column, "to"))
        texts.append(cells)
        levels.append(fills)
    told = "; ".join([f"{axis.name} {_listed(axis.ranks)}" for axis in axes]) or "none"
    return chart.matrix(
        title=f"Rank {own} and its groups",
        columns=[str(column % laid.node_gpus) for column in range(width)],
        rows=[str(node) for node in range(0, laid.nodes, nodes_in_row)],
        column_label="GPU of node n, then of node n + 1" if paired else "GPU of the node",
        row_label="node n" if paired else "node",
        texts=texts,
        levels=levels,
        role="communication",
        marks=marks,
        alt=f"{words.plural(laid.ranks, 'rank')} on {words.plural(laid.nodes, 'node')}. Groups of rank {own}: {told}.",
    )


def _listed(ranks: tuple[int, ...]) -> str:
    """``0 to 7``, ``3, 11, 19`` or ``3, 11, ... 59``."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    if len(ranks) <= 4:
        return ", ".join([str(rank) for rank in ranks])
    return f"{ranks[0]}, {ranks[1]}, … {ranks[-1]}"


def _time_panel(own: int, axes: list[_Axis]) -> dict[str, Any]:
    shown = axes or []
    most = max([axis.seconds for axis in shown]) if shown else 1.0
    told = "; ".join(
        [
            f"{axis.name} {words.n_bytes(axis.n_bytes)} in {words.seconds(axis.seconds)}, "
            + ("across nodes" if axis.crosses else "inside the node")
            for axis in shown
        ]
    )
    return chart.bars(
        title="Sent in a step, at line rate",
        categories=[axis.name for axis in shown] or ["nothing"],
        value=chart.time_axis("time", 1.9 * most),
        stacks=[
            chart.stack(
                "inside the node",
                "communication",
                [0.0 if axis.crosses else axis.seconds for axis in shown] or [0.0],
                texture="light",
            ),
            chart.stack(
                "across nodes",
                "communication",
                [axis.seconds if axis.crosses else 0.0 for axis in shown] or [0.0],
            ),
        ],
        texts=[words.n_bytes(axis.n_bytes) + (", across" if axis.crosses else ", inside") for axis in shown]
        or [""],
        alt=f"Bars: {told}." if told else "No bars: one rank sends nothing.",
    )


def _readouts(laid: Mesh, axes: list[_Axis]) -> list[dict[str, Any]]:
    total, across, seconds = 0.0, 0.0, 0.0
    for axis in axes:
        total += axis.n_bytes
        seconds += axis.seconds
        if axis.crosses:
            across += axis.n_bytes
    return [
        chart.readout("ranks", str(laid.ranks), f"on {words.plural(laid.nodes, 'node')}"),
        chart.readout("a rank sends", words.n_bytes(total), "in one step", "communication-text"),
        chart.readout(
            "in groups across nodes",
            words.percent(across / total if total else 0.0),
            words.n_bytes(across),
            "communication-text",
        ),
        chart.readout("line-rate time", words.seconds(seconds), "all axes, one after the other"),
    ]


def _sentences(laid: Mesh, own: int, sizes: dict[str, int], axes: list[_Axis]) -> list[str]:
    if not axes:
        return ["One rank has no groups and sends nothing."]
    place = laid.place(own)
    where = ", ".join([f"{name} {place[laid.axes.index(name)]} of {sizes[name]}" for name in AXES])
    return [
        _point(axes),
        f"Rank {own} sits on node {laid.node_of(own)} at {where} (counted from 0). The letters are its groups: T tensor, "
        "C context, P pipeline, D data.",
        " ".join([_axis_words(axis) for axis in axes]),
        f"GPT-3 175B, ZeRO-1, micro-batch 1, {GLOBAL_BATCH} sequences of {SEQUENCE} tokens a step. Links as in a DGX H100: "
        f"{words.bandwidth(node(NODE).intra.bandwidth)} inside, {words.bandwidth(node(NODE).network_bandwidth_per_gpu)} of "
        "network per GPU. No latency, nothing overlapped, each axis alone on the links.",
    ]


def _point(axes: list[_Axis]) -> str:
    heavy = axes[0]
    for axis in axes:
        if axis.n_bytes > heavy.n_bytes:
            heavy = axis
    amount = words.n_bytes(heavy.n_bytes)
    took = words.seconds(heavy.seconds)
    if not heavy.crosses:
        return f"The heaviest traffic, {heavy.name} with {amount}, stays inside the node: {took}."
    inside = heavy.n_bytes / node(NODE).intra.bandwidth
    return (
        f"The heaviest traffic, {heavy.name} with {amount}, crosses nodes: {took} at {words.bandwidth(heavy.bandwidth)}; "
        f"inside one node it would take {words.seconds(inside)}."
    )


def _axis_words(axis: _Axis) -> str:
    where = "across nodes" if axis.crosses else "in one node"
    return f"{axis.name[0].upper() + axis.name[1:]}: ranks {_listed(axis.ranks)}, {where}."


EXPERIMENT = Experiment(
    name="mesh-map",
    title="Mesh map",
    question="Which ranks does a rank talk to, and which of that traffic has to leave the node?",
    controls=(
        choice(
            "order",
            "Numbering, fastest axis first",
            (
                ("tcdp", "tensor, context, data, pipeline"),
                ("tcpd", "tensor, context, pipeline, data"),
                ("dpct", "data, pipeline, context, tensor"),
            ),
            "tcdp",
        ),
        slider("tensor", "Tensor parallel", (1, 2, 4, 8, 16), 8, whole=True),
        slider("context", "Context parallel", (1, 2, 4), 1, whole=True),
        slider("pipeline", "Pipeline parallel", (1, 2, 4, 8, 16), 4, whole=True),
        slider("data", "Data parallel", (1, 2, 4, 8, 16, 32, 64), 2, whole=True),
        choice("node_gpus", "GPUs in a node", (("4", "4"), ("8", "8")), "8"),
        slider("rank", "Rank", (0, 1, 5, 8, 13, 21, 34, 55, 63), 13, whole=True),
    ),
    presets=(
        Preset(
            name="megatron",
            label="Megatron's order",
            values={"order": "tcdp", "tensor": 8, "pipeline": 4, "data": 2, "rank": 13},
            source="Order: Megatron-core's default, tp-cp-ep-dp-pp. Tensor parallel 8 on nodes of 8: SC21 "
            "(arXiv 2104.04473), takeaway 1.",
        ),
        Preset(
            name="reversed",
            label="The order turned round",
            values={"order": "dpct", "tensor": 8, "pipeline": 4, "data": 2, "rank": 13},
            source="The same degrees on the same nodes, numbered with tensor slowest.",
        ),
        Preset(
            name="two-nodes",
            label="Tensor over two nodes",
            values={"tensor": 16, "pipeline": 4, "data": 1, "rank": 13},
            source="Tensor parallel 16 on nodes of 8, as vTrain's rows measured it on A100 (arXiv 2312.12391).",
        ),
        Preset(
            name="llama3",
            label="A corner of Llama 3",
            values={"order": "tcpd", "tensor": 8, "context": 1, "pipeline": 8, "data": 1, "rank": 21},
            source="Llama 3 405B put tensor 8, context, pipeline 16 and data in this order, fastest first "
            "(arXiv 2407.21783, section 3.3.2); here 8 of its 16 stages, with GPT-3's sizes.",
        ),
    ),
    picture=picture,
)
