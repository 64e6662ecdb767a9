"""C08: which ranks talk to each other on a mesh, what does the numbering cost, and which layout is the best that fits?

The source says when to split a model and warns of three axes at once. The chapter counts what each axis sends,
divides a node's ports among the ranks that send out of it, and holds two published rules of thumb against a search.
"""

from __future__ import annotations

import math
from typing import Any

from shardlab.hardware import cluster, node
from shardlab.models import plan
from shardlab.models.communication import layout_traffic
from shardlab.models.mesh import Mesh, mesh
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Quiz,
    Table,
    Trap,
    Variant,
    choice,
    judged,
    open_question,
    quiz_of,
    right,
    several,
    variant,
    wrong,
)
from shardlab.quiz.parts import billions, figure, ms, percent, ranking, share, times, whole
from shardlab.transformer import Transformer, gpt, parameters, preset
from shardlab.units import format_bandwidth, format_time

SEED = 8
NODE_GPUS = 8


def build(seed: int = SEED) -> Quiz:
    """The chapter's GPT-3 on four nodes first, then four fresh variants drawn from ``seed``."""
    return quiz_of(
        id="c08",
        title="Which split first, and which ranks side by side?",
        question="Who talks to whom, what has to leave the node, and which layout is the best that fits?",
        variants=(_chapter(), _weights(seed), _ports(seed), _links(seed), _bill(seed)),
        values={},
        seed=seed,
    )


def _traffic(
    model: Transformer,
    sequence: int,
    micro_batches: int,
    mesh_sizes: tuple[int, int, int],
    stage: int = 1,
    gradient_bytes: float = 2.0,
) -> dict[str, float]:
    """Bytes that one rank sends in a step along tensor, data and pipeline; a micro-batch is one sequence."""
    tensor, data, pipeline = mesh_sizes
    items = layout_traffic(
        parameters(model),
        model.layers,
        sequence,
        1,
        model.hidden,
        model.heads,
        micro_batches,
        data_parallel=data,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        zero_stage=stage,
        sequence_parallel=True,
        gradient_bytes=gradient_bytes,
    ).items
    return dict(items)


def _grid(sizes: tuple[int, int, int], strewn: bool = False) -> Mesh:
    """Tensor, data, pipeline with tensor fastest, or the other way round."""
    axes = tuple([(name, size) for name, size in zip(("tensor", "data", "pipeline"), sizes)])
    return mesh(tuple(reversed(axes)) if strewn else axes, NODE_GPUS)


def _chapter() -> Variant:
    sizes, m = (8, 2, 2), 64
    gpt3, machine = preset("gpt3-175b"), node("dgx-h100")
    inside, network = machine.intra.bandwidth, machine.network_bandwidth
    sent = _traffic(gpt3, 2048, m, sizes)
    near, far = _grid(sizes), _grid(sizes, strewn=True)

    def seconds(axis: str, grid: Mesh) -> float:
        return sent[axis] / grid.ring_bandwidth((axis,), inside, network)

    def doubles(axis: str, stage: int = 1) -> bool:
        twice, once = [_traffic(gpt3, 2048, each, sizes, stage)[axis] for each in (2 * m, m)]
        return abs(twice / once - 2) < 1e-9

    leaving = far.leaving(("tensor",))
    ring = far.ring_bandwidth(("tensor",), inside, network)
    values = {
        "t": str(sizes[0]),
        "d": str(sizes[1]),
        "p": str(sizes[2]),
        "world": str(near.ranks),
        "m": str(m),
        "inside": format_bandwidth(inside),
        "network": format_bandwidth(network),
        "leaving": str(leaving),
        "ring": format_bandwidth(ring),
        "factor": times(seconds("tensor", far) / seconds("tensor", near), 2),
        "tensor_in": format_time(seconds("tensor", near)),
        "tensor_out": format_time(seconds("tensor", far)),
        "data_out": format_time(seconds("data", near)),
        "data_in": format_time(seconds("data", far)),
        "pipeline_out": format_time(seconds("pipeline", near)),
    }
    return variant(
        id="chapter",
        title="GPT-3 on four nodes",
        scenario="GPT-3 trains on {world} GPUs in nodes of 8: tensor {t}, data {d}, pipeline {p}, ZeRO-1, {m} micro-batches of one sequence for each replica. "
        "Nodes are filled in the order of the numbers. First tensor is the fastest axis, then data, then pipeline.",
        given=(
            Given(symbol="Bᵢ", meaning="bandwidth of one rank inside a node, each way", value="{inside}"),
            Given(symbol="Bₙ", meaning="all ports of a node together, each way", value="{network}"),
        ),
        values=values,
        parts=(
            figure(
                id="strewn",
                prompt="Somebody numbers the ranks the other way round: pipeline fastest, tensor slowest. How many times as long does the tensor traffic take?",
                key=seconds("tensor", far) / seconds("tensor", near),
                unit="×",
                digits=2,
                wrong=[
                    (1, "numbering-is-free"),
                    (inside / (network / NODE_GPUS), "every-rank-leaves"),
                    (inside / network, "port-not-shared"),
                    (
                        near.nodes,
                        "nodes-for-hops",
                        "It depends on how many ranks of a node send out at once, not on the number of nodes.",
                    ),
                    (ring / inside, "inverted", "Turn it over: the new time over the old."),
                ],
                solution=(
                    "A tensor group has two neighbouring members on each node: one of the two sends on inside, the other to the next node.",
                    "So {leaving} ranks of a node share {network}: {ring} in place of {inside}, {factor} the time.",
                ),
            ),
            ranking(
                id="times",
                prompt="Put these in order of the time that one rank's traffic of a step takes at the full rate of its link.",
                first="least time",
                last="most time",
                rows=[
                    (
                        seconds("pipeline", near),
                        "pipeline",
                        "pipeline traffic over the network",
                        "{pipeline_out}",
                    ),
                    (seconds("data", far), "data-in", "data traffic inside a node", "{data_in}"),
                    (seconds("data", near), "data-out", "data traffic over the network", "{data_out}"),
                    (seconds("tensor", near), "tensor-in", "tensor traffic inside a node", "{tensor_in}"),
                    (
                        seconds("tensor", far),
                        "tensor-out",
                        "tensor traffic of the strewn groups",
                        "{tensor_out}",
                    ),
                ],
                start=("tensor-in", "data-out", "tensor-out", "pipeline", "data-in"),
                traps=(Trap(above="tensor-in", below="data-out", misconception="fast-link-is-free", why=""),),
            ),
            several(
                id="double",
                prompt="Someone doubles the global batch by doubling the micro-batches. Along which axes does a rank then send twice as many bytes in a step?",
                options=(
                    judged(
                        "tensor",
                        "tensor",
                        doubles("tensor"),
                        "Each micro-batch has its own activations to add up.",
                    ),
                    wrong(
                        "data",
                        "data, with ZeRO-1",
                        "bytes-per-micro-batch",
                        "With ZeRO-1 gradients are reduced, and weights gathered, once in a step.",
                    ),
                    judged(
                        "pipeline",
                        "pipeline",
                        doubles("pipeline"),
                        "Each micro-batch crosses every boundary.",
                    ),
                    judged(
                        "zero3",
                        "data, with ZeRO-3 in place of ZeRO-1",
                        doubles("data", 3),
                        "ZeRO-3 gathers weights and reduces gradients in every micro-batch.",
                    ),
                ),
            ),
            choice(
                id="wrong-group",
                prompt="By mistake the gradients are averaged over the tensor group, not over the data group. What happens?",
                options=(
                    wrong(
                        "error",
                        "An error: the shapes don't match.",
                        "framework-checks",
                        "Each tensor rank holds a slice of the same shape.",
                    ),
                    wrong(
                        "hang",
                        "The job hangs, because some ranks call no all-reduce.",
                        "framework-checks",
                        "Every rank calls it, each in its tensor group.",
                    ),
                    right(
                        "quiet",
                        "Nothing fails. The loss is a little off, and a comparison with one process shows it.",
                        "Gradients of different weights are averaged, and the replicas drift apart.",
                    ),
                    wrong("same", "The result is the same: a mean is a mean.", "any-group-will-do"),
                ),
            ),
            open_question(
                id="explain",
                prompt="“Tensor parallelism up to the size of a node first, then a pipeline, then data parallelism.” What is right in this rule, where does it fail, and what do you do instead?",
                answer="Right: the tensor traffic is by far the most and the next operation waits for it, so it has to stay inside a node. "
                "Right as well: take the smallest tensor times pipeline that fits, and data parallelism for the rest. "
                "It fails where it says how to share out that product: a model of narrow layers pays much for tensor parallelism, and a pipeline with many micro-batches, or interleaved, "
                "may be faster. So I would let a planner compare the layouts that fit, treat those within a few per cent as equal, and measure them. "
                "And I would check the numbering on the real nodes: the same degrees take {factor} the time for their tensor traffic if the groups are strewn.",
                points=(
                    "Tensor groups stay inside a node: most bytes, and the next operation waits for them.",
                    "The smallest tensor times pipeline that fits; data parallelism for the rest.",
                    "How to share out that product is no rule: compare, then measure what is close.",
                    "Degrees alone say nothing: the numbering decides what leaves the node.",
                ),
            ),
        ),
    )


def _weights(seed: int) -> Variant:
    draw = Draw(seed, "c08/weights")
    t, c, d, p = draw.pick((2, 4)), 2, draw.pick((2, 4)), draw.pick((2, 4))
    grid = mesh((("tensor", t), ("context", c), ("data", d), ("pipeline", p)), NODE_GPUS)
    rank = draw.until(lambda: draw.below(grid.ranks), lambda each: grid.place(each)[3] > 0)
    place = grid.place(rank)
    strides = {"tensor": 1, "context": t, "data": t * c, "pipeline": t * c * d}
    same = grid.group(rank, ("context", "data"))

    def other(axes: tuple[str, ...]) -> int:
        """The rank one further along these axes, or one back at the end of an axis."""
        moved = int(rank)
        for index, axis in enumerate(grid.axes):
            if axis in axes:
                moved += strides[axis] * (1 if place[index] + 1 < grid.sizes[index] else -1)
        return moved

    def option(id: str, why: str, axes: tuple[str, ...]) -> Any:
        values[id] = str(other(axes))
        return judged(id, "{" + id + "}", other(axes) in same, why, "other-weights")

    values = {
        "world": str(grid.ranks),
        "t": str(t),
        "c": str(c),
        "d": str(d),
        "p": str(p),
        "rank": str(rank),
        "place": ", ".join([f"{axis} {at}" for axis, at in zip(grid.axes, place)]),
        "same": ", ".join([str(each) for each in same]),
        "number": str(len(same)),
        "groups": str(len(grid.groups(("tensor",)))),
        "stride": str(strides["pipeline"]),
        "before": str(rank - strides["pipeline"]),
    }
    return variant(
        id="weights",
        title="Who holds the same weights?",
        scenario="{world} ranks are numbered with tensor fastest ({t} ranks), then context ({c}), data ({d}) and pipeline ({p}). Look at rank {rank}. Ranks count from 0.",
        values=values,
        parts=(
            whole(
                id="average",
                prompt="Over how many ranks, itself included, does rank {rank} average its gradients?",
                key=len(same),
                unit="ranks",
                wrong=[
                    (d, "context-forgotten"),
                    (
                        t * d,
                        "other-weights",
                        "Tensor ranks hold other slices: their gradients are of other weights.",
                    ),
                    (c * d * p, "other-weights", "Pipeline ranks hold other layers."),
                    (grid.ranks, "other-weights", "Most ranks hold other weights."),
                ],
                solution=(
                    "Data and context ranks hold the same weights and see other tokens: {d} · {c} = {number}, the ranks {same}.",
                ),
            ),
            several(
                id="same",
                prompt="Which of these ranks hold the same weights as rank {rank}?",
                options=tuple(
                    draw.shuffled(
                        [
                            option("tensor", "It differs along tensor: another slice of them.", ("tensor",)),
                            option("context", "It differs along context only: other tokens.", ("context",)),
                            option("data", "It differs along data only: other samples.", ("data",)),
                            option("stage", "It differs along pipeline: other layers.", ("pipeline",)),
                            option(
                                "both",
                                "It differs along context and data: other tokens of other samples.",
                                ("context", "data"),
                            ),
                            option(
                                "slice",
                                "It differs along data, and along tensor too: another slice of them.",
                                ("tensor", "data"),
                            ),
                        ]
                    )
                ),
                solution=("Rank {rank} is at {place}. Its gradient group is {same}.",),
            ),
            whole(
                id="before",
                prompt="Which rank sends rank {rank} its activations in the forward pass?",
                key=rank - strides["pipeline"],
                unit="rank number",
                wrong=[
                    (rank - 1, "axis-forgotten", "One back is another tensor rank of the same stage."),
                    (rank - t * c, "axis-forgotten", "That many back is a data rank of the same stage."),
                    (rank - t * d, "axis-forgotten", "Context ranks lie between two stages as well."),
                    (rank + strides["pipeline"], "inverted", "That is the stage behind, which it sends to."),
                ],
                solution=(
                    "Stages are {t} · {c} · {d} = {stride} apart: rank {before}, with the same place on every other axis.",
                ),
            ),
            whole(
                id="groups",
                prompt="How many tensor groups does the whole job have?",
                key=len(grid.groups(("tensor",))),
                unit="groups",
                wrong=[
                    (t, "size-for-number"),
                    (
                        grid.nodes,
                        "nodes-for-hops",
                        "A group is no node: {t} ranks make a group, 8 a node.",
                    ),
                    (d * p, "axis-forgotten", "Each context rank has a tensor group of its own."),
                ],
                solution=("Every rank is in exactly one: {world} / {t} = {groups}.",),
            ),
        ),
    )


def _ports(seed: int) -> Variant:
    draw = Draw(seed, "c08/ports")
    t, d, p = draw.until(
        lambda: (draw.pick((4, 8)), draw.pick((1, 2, 4)), draw.pick((1, 2, 4))),
        # Some members of a group share a node, and not all of them.
        lambda drawn: 1 < drawn[1] * drawn[2] < NODE_GPUS < drawn[0] * drawn[1] * drawn[2],
    )
    inside = 1e9 * draw.pick((300, 450, 900))
    network = 1e9 * draw.pick((100, 200))
    far = _grid((t, d, p), strewn=True)
    leaving = far.leaving(("tensor",))
    ring = far.ring_bandwidth(("tensor",), inside, network)
    long = mesh((("tensor", 2 * NODE_GPUS),), NODE_GPUS)
    whole_port = long.ring_bandwidth(("tensor",), inside, network)
    per_node = NODE_GPUS // (d * p)
    values = {
        "world": str(far.ranks),
        "t": str(t),
        "stride": str(d * p),
        "inside": format_bandwidth(inside),
        "network": format_bandwidth(network),
        "leaving": str(leaving),
        "members": str(per_node),
        "ring": format_bandwidth(ring),
        "factor": times(inside / ring),
        "double": str(2 * NODE_GPUS),
        "whole_port": format_bandwidth(whole_port),
        "eighth": format_bandwidth(network / NODE_GPUS),
    }
    return variant(
        id="ports",
        title="A numbering that strews the groups",
        scenario="{world} ranks on nodes of 8 GPUs, filled in the order of the numbers. Tensor is the slowest axis by mistake: the members of a tensor group have numbers that lie {stride} apart. "
        "A group is a ring of {t} ranks, each sending to the next; what leaves a node shares its ports evenly.",
        given=(
            Given(symbol="t", meaning="tensor-parallel ranks", value="{t}"),
            Given(symbol="Bᵢ", meaning="bandwidth of one rank inside a node, each way", value="{inside}"),
            Given(symbol="Bₙ", meaning="all ports of a node together, each way", value="{network}"),
        ),
        values=values,
        parts=(
            whole(
                id="leave",
                prompt="How many ranks of a node send tensor traffic to another node, when all groups talk at once?",
                key=leaving,
                unit="ranks",
                wrong=[
                    (NODE_GPUS, "every-rank-leaves"),
                    (1, "port-not-shared", "One for each group, and a node has members of several groups."),
                    (
                        per_node,
                        "members-for-groups",
                        "That is how many members of one group share a node.",
                    ),
                    (0, "numbering-is-free", "Only with tensor as the fastest axis."),
                ],
                solution=(
                    "Of each group a node holds {members}, so {leaving} groups meet on it. From each of them one rank sends to another node.",
                ),
            ),
            figure(
                id="ring",
                prompt="What bandwidth does each ring get then?",
                key=ring / 1e9,
                unit="GB/s",
                wrong=[
                    (network / 1e9, "port-not-shared"),
                    (network / NODE_GPUS / 1e9, "every-rank-leaves"),
                    (inside / 1e9, "numbering-is-free"),
                    (network / t / 1e9, "size-for-number", "The ports are shared by rings, not by members."),
                ],
                solution=("A ring is as slow as its slowest hop: {network} / {leaving} = {ring}.",),
            ),
            figure(
                id="factor",
                prompt="How many times as long does the tensor traffic take as with tensor as the fastest axis?",
                key=inside / ring,
                unit="×",
                wrong=[
                    (1, "numbering-is-free"),
                    (inside / network, "port-not-shared"),
                    (inside * NODE_GPUS / network, "every-rank-leaves"),
                    (ring / inside, "inverted", "Turn it over: the new time over the old."),
                ],
                solution=("Tensor fastest stays inside: {inside} / {ring} = {factor}.",),
            ),
            choice(
                id="long",
                prompt="Now tensor is the fastest axis and has {double} ranks: one ring over two whole nodes. What does this ring get?",
                options=(
                    right(
                        "ports",
                        "{whole_port}: all ports of the node.",
                        "Only one rank of each node sends out. Latency and the synchronisation over nodes still speak against it.",
                    ),
                    wrong(
                        "eighth",
                        "{eighth}: an eighth of the ports.",
                        "every-rank-leaves",
                        "Seven of the eight hops stay inside the node.",
                    ),
                    wrong(
                        "inside",
                        "{inside}: most hops are inside.",
                        "mean-for-slowest",
                        "A ring goes at the pace of its slowest hop, not of most of them.",
                    ),
                ),
            ),
        ),
    )


def _links(seed: int) -> Variant:
    draw = Draw(seed, "c08/links")
    t, sequence = NODE_GPUS, 2048

    def propose() -> Any:
        return (
            draw.pick(((32, 4096), (40, 5120), (48, 6144), (48, 8192), (80, 8192))),
            draw.pick((1, 2, 4)),
            draw.pick((2, 4, 8)),
            1e9 * draw.pick((300, 450)),
            1e9 * draw.pick((50, 100, 200)),
        )

    def seconds(drawn: Any, gradient_bytes: float = 2.0) -> tuple[float, float]:
        """(tensor of one micro-batch, data of a step)."""
        shape, p, d, inside, network = drawn
        model = gpt(shape[0], shape[1], shape[1] // 128)
        grid = _grid((t, d, p))
        sent = _traffic(model, sequence, 1, (t, d, p), 1, gradient_bytes)
        ring = grid.ring_bandwidth(("data",), inside, network)
        return sent["tensor"] / inside, sent["data"] / ring

    def clear(drawn: Any) -> bool:
        once, all_data = seconds(drawn)
        ratio = all_data / once
        return 3 < ratio < 300 and 0.15 < ratio - int(ratio) < 0.85

    drawn = draw.until(propose, clear)
    (layers, hidden), p, d, inside, network = drawn
    once, all_data = seconds(drawn)
    wide = seconds(drawn, 4.0)[1]
    even = math.ceil(all_data / once)
    params = parameters(gpt(layers, hidden, hidden // 128))
    values = {
        "params": billions(params),
        "layers": str(layers),
        "local": str(layers // p),
        "h": str(hidden),
        "s": str(sequence),
        "t": str(t),
        "p": str(p),
        "d": str(d),
        "inside": format_bandwidth(inside),
        "network": format_bandwidth(network),
        "port": format_bandwidth(network / NODE_GPUS),
        "once": ms(once),
        "data": ms(all_data),
        "wide": ms(wide),
        "even": str(even),
        "ratio": f"{all_data / once:.1f}",
    }
    return variant(
        id="links",
        title="A fast link with much to do, a slow one with little",
        scenario="A model of {params} parameters in {layers} layers of hidden size {h} trains with tensor {t} (one node), data {d} and pipeline {p}, tensor fastest, then data. "
        "ZeRO-1; a micro-batch is one sequence of {s} tokens; every number takes 2 bytes. A layer has four all-reduces per micro-batch, none repeated by recomputation. "
        "In the exchange of gradients and weights all 8 ranks of a node send out at once. No latency.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="L", meaning="layers", value="{layers}"),
            Given(symbol="d", meaning="data-parallel ranks", value="{d}"),
            Given(symbol="p", meaning="pipeline stages", value="{p}"),
            Given(symbol="Bᵢ", meaning="bandwidth of one rank inside a node, each way", value="{inside}"),
            Given(symbol="Bₙ", meaning="all ports of a node together, each way", value="{network}"),
        ),
        values=values,
        parts=(
            figure(
                id="tensor",
                prompt="How long does a rank's tensor traffic of one micro-batch take?",
                key=1e3 * once,
                unit="ms",
                wrong=[
                    (1e3 * once / 2, "one-phase", "An all-reduce is a reduce-scatter and an all-gather."),
                    (1e3 * once * p, "inside-the-stage", "A rank has {local} layers, not all {layers}."),
                    (1e3 * once / (layers // p), "one-layer"),
                    (1e3 * once * t / (t - 1), "own-chunk"),
                    (1e3 * once * inside / network, "other-network", "A tensor group stays inside its node."),
                ],
                solution=(
                    "Each of the {local} layers on a rank sends 4 · 2 · ({t}−1)/{t} of an activation, {s} · {h} · 2 bytes, at {inside}: {once}.",
                ),
            ),
            figure(
                id="data",
                prompt="How long does its data traffic of a step take?",
                key=1e3 * all_data,
                unit="ms",
                relative=0.015,
                wrong=[
                    (1e3 * all_data / NODE_GPUS, "port-not-shared"),
                    (1e3 * all_data / 2, "one-phase"),
                    (1e3 * all_data * t * p, "axis-forgotten", "A rank has Ψ/({t} · {p}) parameters."),
                    (1e3 * all_data * d / (d - 1), "full-2p"),
                    (
                        1e3 * all_data * network / NODE_GPUS / inside,
                        "other-network",
                        "These ranks sit on other nodes.",
                    ),
                ],
                solution=(
                    "2({d}−1)/{d} · 2 bytes for each of Ψ/({t} · {p}) parameters, at {network} / 8 = {port}: {data}.",
                ),
            ),
            whole(
                id="even",
                prompt="From how many micro-batches per step on does the tensor traffic take at least as long as the data traffic?",
                key=even,
                unit="micro-batches",
                wrong=[
                    (even - 1, "rounded-down", "{data} over {once} is {ratio}: round up."),
                    (even + 1, "tie-is-too-much", "{data} over {once} is {ratio}: {even} are enough."),
                    (
                        1,
                        "one-micro-batch",
                        "In one micro-batch the data traffic takes longer, but it comes once a step.",
                    ),
                ],
                solution=(
                    "Tensor traffic comes in every micro-batch, data traffic once a step: {data} / {once} = {ratio}, so {even}.",
                ),
            ),
            figure(
                id="wide",
                prompt="Many programs reduce gradients in fp32, 4 bytes, and gather weights in 2. How long does the data traffic take then?",
                key=1e3 * wide,
                unit="ms",
                relative=0.015,
                wrong=[
                    (1e3 * all_data, "gradient-width"),
                    (
                        2e3 * all_data,
                        "gradient-width",
                        "Only the reduce-scatter doubles; the weights still travel in 2 bytes.",
                    ),
                ],
                solution=(
                    "The reduce-scatter takes twice as long, the all-gather as long as before: 1.5 · {data} = {wide}.",
                ),
            ),
        ),
    )


# Tensor and pipeline degrees that the planner is asked about.
SPLITS = ((2, 2), (4, 2), (8, 1), (2, 8), (4, 4), (8, 2))


def _bill(seed: int) -> Variant:
    draw = Draw(seed, "c08/bill")
    llama = preset("llama3-70b")

    def predicted(drawn: Any) -> list[Any]:
        """(step in s, memory in GB, fits, tensor, pipeline) as the table shows them, for every split."""
        machine, gpus, batch, sequence = drawn
        rows = []
        for t, p in SPLITS:
            degrees = plan.layout(data=gpus // (t * p), tensor=t, pipeline=p, zero_stage=1)
            made = plan.predict(llama, cluster(machine, gpus), degrees, batch, sequence)
            step, memory = float(f"{made.step_time_s:.2f}"), float(f"{made.memory.total_bytes / 1e9:.1f}")
            rows.append((step, memory, made.fits, t, p))
        return rows

    def clear(drawn: Any) -> bool:
        rows = predicted(drawn)
        capacity = node(drawn[0]).accelerator.memory_bytes / 1e9
        fitting = sorted([row for row in rows if row[2]])
        return (
            2 < len(fitting) < len(rows)
            and fitting[1][0] > 1.02 * fitting[0][0]
            and fitting[0][3] != NODE_GPUS
            and fitting[0][1] < 0.95 * capacity
            and all(row[2] == (row[1] <= capacity) and abs(row[1] - capacity) > 0.5 for row in rows)
        )

    drawn = draw.until(
        lambda: (
            draw.pick(("dgx-a100", "dgx-h100")),
            draw.pick((32, 64, 128, 256)),
            draw.pick((128, 256, 512)),
            draw.pick((2048, 4096)),
        ),
        clear,
    )
    machine, gpus, batch, sequence = drawn
    rows = predicted(drawn)
    fitting = sorted([row for row in rows if row[2]])
    best = fitting[0]
    least = min([row[3] * row[4] for row in fitting])
    # Tensor parallelism fills the node, and the pipeline is as short as memory allows.
    filled = min([row for row in fitting if row[3] == NODE_GPUS], key=lambda row: row[4])

    def name(row: Any) -> str:
        return f"{row[3]} × {row[4]}"

    values = {
        "gpus": str(gpus),
        "machine": node(machine).accelerator.name,
        "capacity": f"{node(machine).accelerator.memory_bytes / 1e9:.0f}",
        "batch": str(batch),
        "s": str(sequence),
        "best": name(best),
        "best_s": f"{best[0]:.2f} s",
        "filled": name(filled),
        "filled_s": f"{filled[0]:.2f} s",
        "least": str(least),
        "copies": str(gpus // least),
        "slower": percent(filled[0] / best[0] - 1),
    }
    options = []
    for row in rows:
        id = f"t{row[3]}p{row[4]}"
        values[id] = f"{row[0]:.2f} s" if row[2] else f"{row[1]:.1f} GB"
        text, shown = f"tensor {row[3]} × pipeline {row[4]}", "{" + id + "}"
        if row == best:
            options.append(right(id, text, f"It takes {shown}, less than any other that fits."))
        elif not row[2]:
            options.append(wrong(id, text, "does-not-fit", f"It needs {shown}."))
        else:
            slug = "rule-for-prediction" if row == filled else "slower-layout"
            options.append(wrong(id, text, slug, f"It fits, and takes {shown}."))
    return variant(
        id="bill",
        title="Read what the planner says",
        scenario="The planner predicts memory and time of six layouts for Llama 3 70B: {gpus} GPUs ({machine}, {capacity} GB each) in nodes of 8, a global batch of {batch} sequences of {s} tokens, "
        "ZeRO-1, one sequence in a micro-batch, nothing recomputed. Data parallelism takes the GPUs that tensor and pipeline leave.",
        table=Table(
            caption="Predicted by the planner",
            columns=("tensor", "pipeline", "GB per GPU", "step in s"),
            rows=tuple([(str(row[3]), str(row[4]), f"{row[1]:.1f}", f"{row[0]:.2f}") for row in rows]),
        ),
        values=values,
        parts=(
            whole(
                id="least",
                prompt="Which is the smallest product of tensor and pipeline in the table that fits into {capacity} GB?",
                key=least,
                unit="GPUs",
                wrong=[
                    (
                        min([row[3] * row[4] for row in rows]),
                        "does-not-fit",
                        "No layout of the table with that product fits.",
                    ),
                    (max([row[3] * row[4] for row in rows]), "split-too-far"),
                    (
                        gpus // least,
                        "size-for-number",
                        "That is the number of replicas. The product is the GPUs that hold one.",
                    ),
                ],
                solution=(
                    "{least} GPUs hold one replica, and {copies} replicas share the batch. It is where the search should start.",
                ),
            ),
            choice(
                id="best",
                prompt="Which layout would you run first?",
                options=tuple(options),
            ),
            share(
                id="rule",
                prompt="“Fill the node with tensor parallelism, then take the shortest pipeline that fits.” By how many per cent is that layout's step longer than the step of the fastest that fits?",
                key=filled[0] / best[0] - 1,
                wrong=[
                    (0.0, "rule-for-prediction", "It is not the fastest here."),
                    (
                        1 - best[0] / filled[0],
                        "wrong-whole",
                        "Take the fastest as the whole: longer than that by how much?",
                    ),
                    (filled[0] / best[0], "wrong-whole", "How much longer is what exceeds 100 %."),
                ],
                solution=(
                    "The rule takes {filled}, tensor × pipeline: {filled_s}. The fastest that fits is {best} with {best_s}: the rule costs {slower}.",
                    "Both are predictions: before a long run, measure the first few.",
                ),
            ),
        ),
    )
