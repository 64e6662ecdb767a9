"""Checks of assignment 08, "who talks to whom": places on a mesh, what crosses the nodes, groups on real ranks.

Keys come from :mod:`shardlab.models.mesh` and :mod:`shardlab.models.plan`. The functions that end in ``_trial`` run on
every gloo rank beside the student's functions; nothing else here needs PyTorch.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from shardlab.checks import choice, count
from shardlab.classroom.attempt import Carry, attempt, first_fault, name_of
from shardlab.classroom.by_hand import ByHand, close
from shardlab.classroom.network import NotWritten, describe, text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.torch_ranks import tensors_near, try_on_ranks
from shardlab.hardware import Cluster, cluster
from shardlab.labs.rank import Context
from shardlab.models import plan
from shardlab.models.mesh import Mesh, mesh
from shardlab.transformer import Transformer, preset
from shardlab.units import format_bandwidth, format_bytes, format_time

ASSIGNMENT = "08_mesh"
# Gradients that are the same up to the order of sums.
ATOL = 1e-5
QUANTITIES = ("data_place", "next_stage", "leaving_ranks", "data_s")
N_RANKS = 4
# A correct trial takes two seconds on an idle machine, and ten times as long on a crowded one.
TIME_LIMIT_S = 40.0

Order = tuple[tuple[str, int], ...]


def order_words(order: Order) -> str:
    """``tensor 2, data 4``, the fastest axis first."""
    return ", ".join(f"{axis} {size}" for axis, size in order)


def groups_of(order: Order) -> dict[str, list[tuple[int, ...]]]:
    """All groups of each axis of a mesh, as ranks."""
    laid = mesh(order)
    return {axis: list(laid.groups((axis,))) for axis in laid.axes}


def _backwards(order: Order) -> Mesh:
    """The mesh with the same axes, the last of them fastest: what reading the digits from the wrong end gives."""
    return mesh(tuple(reversed(order)))


# ---- task 1: by hand ----


@dataclass(frozen=True)
class MeshNumbers(ByHand):
    """One student's numbers for task 1.

    Attributes:
        order: (axis, size) pairs, the fastest axis first.
        node_gpus: GPUs of a node; nodes are filled in the order of the ranks.
        rank: the rank that the first two questions are about.
        n_bytes: what each rank sends to its neighbour along the data axis in a step, bytes.
        inside_bandwidth: of one GPU inside a node, bytes/s per direction.
        n_ports: network ports of a node.
        port_bits_per_s: bandwidth of one port in each direction, **bits** per second.
    """

    order: Order
    node_gpus: int
    rank: int
    n_bytes: float
    inside_bandwidth: float
    n_ports: int
    port_bits_per_s: float

    @property
    def laid(self) -> Mesh:
        """The mesh on its nodes."""
        return mesh(self.order, self.node_gpus)

    @property
    def network_bandwidth(self) -> float:
        """All ports of a node together, bytes/s per direction."""
        return self.n_ports * self.port_bits_per_s / 8

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"mesh   {order_words(self.order)}: the first axis is the fastest; {self.laid.ranks} ranks",
            f"nodes  {self.node_gpus} GPUs each, filled in the order of the ranks",
            f"rank   {self.rank}",
            f"S      {self.n_bytes / 1e9:g} GB that each rank sends along the data axis in a step",
            f"B_in   {self.inside_bandwidth / 1e9:g} GB/s for each GPU inside a node, in each direction",
            f"ports  {self.n_ports} per node, {self.port_bits_per_s / 1e9:g} Gb/s each, in each direction",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        kind = choice("quantity", quantity, QUANTITIES)
        if kind == "data_place":
            return float(_on(self.laid, self.rank, "data"))
        if kind == "next_stage":
            return float(_next_stage(self.laid, self.rank))
        if kind == "leaving_ranks":
            return float(self.laid.leaving(("data",)))
        return self.n_bytes / self.laid.ring_bandwidth(
            ("data",), self.inside_bandwidth, self.network_bandwidth
        )

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        laid, sizes = self.laid, dict(self.order)
        other_end = _backwards(self.order)
        if quantity == "data_place":
            return [
                (_on(laid, self.rank, "data") + 1, "coordinates count from 0"),
                (_on(other_end, self.rank, "data"), "that reads the digits from the slowest axis"),
                (self.rank % sizes["data"], "that takes data for the fastest axis"),
                (_on(laid, self.rank, "pipeline"), "that is the coordinate on the pipeline axis"),
            ]
        if quantity == "next_stage":
            return [
                (self.rank + 1, "that is the neighbour on the fastest axis"),
                (
                    _next_stage(other_end, self.rank),
                    "that takes the last axis of the order for the fastest",
                ),
                (
                    self.rank + sizes["pipeline"],
                    "that steps by the size of the pipeline axis, not by its stride",
                ),
                (self.rank + self.node_gpus, "that is the same place in the next node"),
                (2 * self.rank - _next_stage(laid, self.rank), "that is the stage before"),
            ]
        if quantity == "leaving_ranks":
            per_node = self.node_gpus // _stride(self.order, "data")
            return [
                (self.node_gpus, "that is every GPU of the node; some have their neighbour in the same node"),
                (1, "that is one ring; the rings of all data groups leave the node at the same time"),
                (
                    laid.leaving(("data",)) * laid.nodes,
                    "that is all nodes together; the question is about one",
                ),
                (per_node, "that is how many ranks of one data group share the node"),
                (
                    (per_node - 1) * _stride(self.order, "data"),
                    "those are the ranks whose neighbour is in the same node",
                ),
            ]
        inside, network = self.n_bytes / self.inside_bandwidth, self.n_bytes / self.network_bandwidth
        return [
            (
                inside,
                "that is the bandwidth inside a node; some hops leave it, and the ports are given in bits per second",
            ),
            (network, "that gives one ring all ports of the node; how many leave at the same time?"),
            (network * self.node_gpus, "that shares the ports among all GPUs; not all of them send out"),
            (self.key("data_s") / 8, "the ports are given in bits per second; a byte has 8 bits"),
            (self.key("data_s") * self.n_ports, "that is one port; a node has several"),
            (self.key("data_s") * 1e3, "that is in milliseconds; the answer is in seconds"),
        ]


def _on(laid: Mesh, rank: int, axis: str) -> int:
    return laid.place(rank)[laid.axes.index(axis)]


def _stride(order: Order, axis: str) -> int:
    """How far apart two neighbours on an axis are."""
    names = [name for name, _ in order]
    return math.prod(size for _, size in order[: names.index(axis)])


def _next_stage(laid: Mesh, rank: int) -> int:
    """The rank with the same coordinates on the next pipeline stage; of the last stage, the first."""
    group = laid.group(rank, ("pipeline",))
    return group[(group.index(rank) + 1) % len(group)]


def by_hand_numbers(student: str) -> MeshNumbers:
    """A student's numbers for task 1: several data rings leave a node, but not every rank's hop does."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")

    def propose() -> MeshNumbers:
        tensor, pipeline, data = (
            draw.pick((2, 3, 4, 6, 8)),
            draw.pick((2, 3, 4)),
            draw.pick((4, 6, 8, 12, 16)),
        )
        order = draw.pick(
            (
                (("tensor", tensor), ("data", data), ("pipeline", pipeline)),
                (("tensor", tensor), ("pipeline", pipeline), ("data", data)),
            )
        )
        return MeshNumbers(
            student=name,
            complaint=complaint,
            order=order,
            node_gpus=draw.pick((6, 8, 12, 16)),
            rank=draw.below(tensor * pipeline * data),
            n_bytes=(20 + draw.below(61)) * 1e8,
            inside_bandwidth=draw.pick((300e9, 450e9)),
            n_ports=draw.pick((2, 4)),
            port_bits_per_s=draw.pick((100e9, 200e9, 400e9)),
        )

    drawn: MeshNumbers = draw.until(propose, _teaches)
    return drawn


def _teaches(numbers: MeshNumbers) -> bool:
    laid, sizes = numbers.laid, dict(numbers.order)
    leaving = laid.leaving(("data",))
    # Within 0.5 % is right: among more than 128 ranks, the next rank would be too.
    if laid.ranks > 128 or not 1 < leaving < numbers.node_gpus:
        return False
    # All nodes alike.
    if _stride(numbers.order, "data") * sizes["data"] % numbers.node_gpus:
        return False
    if not _on(laid, numbers.rank, "data") or _on(laid, numbers.rank, "pipeline") == sizes["pipeline"] - 1:
        return False
    return not any(
        close(wrong, numbers.key(quantity))
        for quantity in QUANTITIES
        for wrong, _ in numbers.misconceptions(quantity)
    )


# ---- task 2: places and groups ----


def place_fault(place: Callable[..., Any], order: Order) -> str | None:
    """What is wrong with ``place(rank, order)``, the coordinates by axis, on any rank; None if nothing is."""
    laid = mesh(order)
    for rank in range(laid.ranks):
        answer = attempt(place, rank, order)
        if answer.fault:
            return answer.fault
        wanted = dict(zip(laid.axes, laid.place(rank), strict=True))
        if answer.value == wanted:
            continue
        words = f"{name_of(place)}({rank}, order) on the mesh {order_words(order)}"
        if not isinstance(answer.value, dict) or set(answer.value) != set(laid.axes):
            return f"{words} must be a dict such as {wanted}, not {reprlib.repr(answer.value)}"
        turned = _backwards(order)
        if answer.value == dict(zip(turned.axes, turned.place(rank), strict=True)):
            return f"{words} is {answer.value}: the first axis of the order is the fastest, not the last"
        axis = next(axis for axis in laid.axes if answer.value[axis] != wanted[axis])
        return f"{words}: the coordinate on {axis} is {wanted[axis]}, not {reprlib.repr(answer.value[axis])}"
    return None


def rank_fault(rank_at: Callable[..., Any], order: Order) -> str | None:
    """What is wrong with ``rank_at(place, order)``, the rank with these coordinates; None if nothing is."""
    laid = mesh(order)
    for rank in range(laid.ranks):
        where = dict(zip(laid.axes, laid.place(rank), strict=True))
        # The order of a dict means nothing.
        given = {axis: where[axis] for axis in sorted(where)}
        answer = attempt(rank_at, given, order)
        if answer.fault:
            return answer.fault
        if answer.value == rank and not isinstance(answer.value, bool):
            continue
        words = f"{name_of(rank_at)}({given}, order) on the mesh {order_words(order)} is {rank}"
        turned = _backwards(order)
        if any(answer.value == other and _same(turned, other, where) for other in range(turned.ranks)):
            return f"{words}, not {answer.value}: the first axis of the order is the fastest, not the last"
        return f"{words}, not {reprlib.repr(answer.value)}"
    return None


def _same(laid: Mesh, rank: int, where: dict[str, int]) -> bool:
    return dict(zip(laid.axes, laid.place(rank), strict=True)) == where


def group_fault(
    group: Callable[..., Any], order: Order, along: tuple[str, ...], carry: Carry | None = None
) -> str | None:
    """What is wrong with ``group(rank, along, order)``, a rank's group along some axes; None if nothing is."""
    laid = mesh(order)
    for rank in range(laid.ranks):
        answer = attempt(group, rank, along, order, carry=carry)
        if answer.fault:
            return answer.fault
        wanted = laid.group(rank, along)
        words = f"the group of rank {rank} along {' and '.join(along)} on the mesh {order_words(order)}"
        try:
            found = tuple(answer.value)
        except TypeError:
            return f"{words} must be a tuple of ranks, not {reprlib.repr(answer.value)}"
        if found == wanted:
            continue
        if sorted(found, key=str) == sorted(wanted, key=str):
            return f"{words} must be in the order of the ranks: {wanted}, not {found}"
        if rank not in found:
            return f"{words} is {wanted}: a rank is in its own group, and it is not in {reprlib.repr(found)}"
        stray = next((other for other in found if other not in wanted), None)
        if stray is not None:
            return f"{words} is {wanted}; rank {stray} differs from rank {rank} on another axis too"
        return f"{words} is {wanted}; {found} is not all of it"
    return None


# ---- task 3: what crosses the border of a node ----


def leaving_fault(
    leaving: Callable[..., Any],
    order: Order,
    along: tuple[str, ...],
    node_gpus: int,
    carry: Carry | None = None,
) -> str | None:
    """What is wrong with ``leaving(order, along, node_gpus)``, the ranks of the busiest node that send to another."""
    laid = mesh(order, node_gpus)
    answer = attempt(leaving, order, along, node_gpus, carry=carry)
    if answer.fault:
        return answer.fault
    wanted = laid.leaving(along)
    if answer.value == wanted and not isinstance(answer.value, bool):
        return None
    words = (
        f"{order_words(order)} on nodes of {node_gpus}, along {' and '.join(along)}: {wanted} ranks of a node send to "
        f"another one, not {reprlib.repr(answer.value)}"
    )
    hops = [
        (rank, ring[(place + 1) % len(ring)])
        for ring in laid.groups(along)
        for place, rank in enumerate(ring)
    ]
    # In the order of the ranks only the last hop of a ring goes back.
    onward = [
        _node(laid, one) for one, other in hops if _node(laid, one) != _node(laid, other) and other > one
    ]
    out = [_node(laid, one) for one, other in hops if _node(laid, one) != _node(laid, other)]
    if answer.value == len(out):
        return f"{words}: that is all nodes together; the busiest one counts"
    if answer.value == max([onward.count(node) for node in set(onward)], default=0):
        return f"{words}: a ring is closed, the last rank of a group sends to the first"
    if answer.value == len(
        [ring for ring in laid.groups(along) if _node(laid, ring[0]) != _node(laid, ring[-1])]
    ):
        return (
            f"{words}: that counts groups that span several nodes; count the ranks of one node that send out"
        )
    return words


def _node(laid: Mesh, rank: int) -> int:
    return laid.node_of(rank)


def ring_time_fault(
    ring_time_s: Callable[..., Any],
    order: Order,
    along: tuple[str, ...],
    node_gpus: int,
    carry: Carry | None = None,
) -> str | None:
    """What is wrong with ``ring_time_s(n_bytes, order, along, node_gpus, inside, network)``, in seconds."""
    n_bytes, inside, network = 12e9, 300e9, 200e9
    laid = mesh(order, node_gpus)
    answer = attempt(ring_time_s, n_bytes, order, along, node_gpus, inside, network, carry=carry)
    if answer.fault:
        return answer.fault
    wanted = n_bytes / laid.ring_bandwidth(along, inside, network)
    words = (
        f"{order_words(order)} on nodes of {node_gpus}, along {' and '.join(along)}: {format_bytes(n_bytes)} take "
        f"{format_time(wanted)} with {format_bandwidth(inside)} inside and {format_bandwidth(network)} for a node's ports"
    )
    try:
        value = float(answer.value)
    except (TypeError, ValueError):
        return f"{words}, not {reprlib.repr(answer.value)}"
    if close(value, wanted):
        return None
    words = f"{words}, not {format_time(value) if value >= 0 else f'{value:g} s'}"
    if laid.leaving(along) and close(value, n_bytes / network):
        return f"{words}: the ports are shared by all ranks that send out at the same time"
    if close(value, n_bytes / inside):
        return f"{words}: a ring is as slow as its slowest hop"
    return words


# ---- task 4: choose a layout ----


@dataclass(frozen=True)
class Question:
    """A model to train on a cluster; the layout is asked for.

    Attributes:
        model, cluster: what to train, and on what.
        global_batch: sequences per optimizer step.
        sequence: tokens per sequence.
        complaint: None, or why this isn't the question of the person named in the notebook.
    """

    model: Transformer
    cluster: Cluster
    global_batch: int
    sequence: int
    complaint: str | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the cluster: the product of the degrees."""
        return self.cluster.gpus

    @property
    def text(self) -> str:
        """The question in one line."""
        return (
            f"{self.model.name} on {self.gpus} GPUs ({self.cluster.node.name}, "
            f"{self.cluster.node.gpus} in a node), {self.global_batch} sequences of {self.sequence} tokens a step"
        )

    def predict(self, data: int, tensor: int, pipeline: int) -> plan.Prediction:
        """Step time and memory of one layout, with ZeRO-1, one sequence in a micro-batch, 1F1B, no recomputation.

        Raises:
            ValueError: the layout can't run: the degrees don't multiply to the GPUs, or something doesn't divide.
        """
        layout = plan.layout(data=data, tensor=tensor, pipeline=pipeline, zero_stage=1)
        return plan.predict(self.model, self.cluster, layout, self.global_batch, self.sequence)

    def best(self) -> plan.Prediction | None:
        """The fastest layout that fits, by the book's search; None if none fits."""
        degrees = tuple(n for n in range(1, self.gpus + 1) if self.gpus % n == 0)
        found = plan.search(
            self.model,
            self.cluster,
            self.global_batch,
            self.sequence,
            tensor=degrees,
            pipeline=degrees,
            zero_stages=(1,),
            micro_batches=(1,),
            recomputations=("none",),
            schedules=("1f1b",),
            sequence_parallel=(True,),
            top=1,
        )
        return found.predictions[0] if found.predictions else None


def question(model: str, node: str, gpus: int, global_batch: int, sequence: int = 4096) -> Question:
    """A question by names: a preset of :mod:`shardlab.transformer` on nodes of :mod:`shardlab.hardware`."""
    return Question(preset(model), cluster(node, gpus), global_batch, count("sequence", sequence))


def drawn_question(student: str) -> Question:
    """A student's own question: plain data parallelism doesn't fit, and neither more splitting nor less memory wins."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "layout")

    def propose() -> Question:
        asked = question(
            draw.pick(
                ("llama2-13b", "llama3-8b", "llama2-7b", "llama3-70b", "llama2-70b", "korthikanti-22b")
            ),
            draw.pick(("dgx-a100", "p4d", "a100-pcie", "dgx-h100")),
            draw.pick((16, 32, 64)),
            draw.pick((64, 96, 128, 192, 256)),
            draw.pick((2048, 4096)),
        )
        return Question(asked.model, asked.cluster, asked.global_batch, asked.sequence, complaint)

    drawn: Question = draw.until(propose, _asks)
    return drawn


def _asks(asked: Question) -> bool:
    """Whether the question has one clear answer that no shortcut finds."""
    best = asked.best()
    if best is None:
        return False
    layouts = _layouts(asked)
    fitting = sorted(made.step_time_s for made in layouts if made.fits)
    leanest = min(layouts, key=lambda made: made.memory.total_bytes)
    fastest = min(layouts, key=lambda made: made.step_time_s)
    return (
        len(fitting) >= 3
        and fitting[1] > 1.01 * fitting[0]
        and not fastest.fits
        and leanest.step_time_s > 1.05 * best.step_time_s
    )


def _layouts(asked: Question) -> list[plan.Prediction]:
    """Every layout that can run, whether it fits or not."""
    found = []
    for tensor in range(1, asked.gpus + 1):
        for pipeline in range(1, asked.gpus // tensor + 1):
            with contextlib.suppress(ValueError):
                found.append(asked.predict(asked.gpus // (tensor * pipeline), tensor, pipeline))
    return found


@dataclass(frozen=True)
class Choice:
    """A chosen layout; each attribute is None, or says what is wrong.

    Attributes:
        fits: can it run, and does it fit in memory?
        fastest: is no other layout that fits faster?
    """

    fits: str | None
    fastest: str | None


def try_choose(choose: Callable[..., Any], asked: Question) -> Choice:
    """Judge ``choose(question)``, which returns ``(data, tensor, pipeline)``, or None if nothing fits."""
    if asked.complaint:
        return Choice(asked.complaint, asked.complaint)
    answer = attempt(choose, asked)
    best, where = asked.best(), f"{name_of(choose)} for {asked.text}"
    if answer.fault:
        return Choice(answer.fault, "there is no layout to judge")
    if answer.value is None or best is None:
        if answer.value is None and best is None:
            return Choice(None, None)
        if best is None:
            words = f"{where}: no layout fits, so the answer is None, not {reprlib.repr(answer.value)}"
        else:
            words = f"{where}: there is a layout that fits, and the answer is None"
        return Choice(words, words)
    if not isinstance(answer.value, (tuple, list)) or len(answer.value) != 3:
        words = f"{where}: the answer must be (data, tensor, pipeline), not {reprlib.repr(answer.value)}"
        return Choice(words, words)
    data, tensor, pipeline = answer.value
    try:
        made = asked.predict(data, tensor, pipeline)
    except ValueError as error:
        words = f"{where}: {error}"
        return Choice(words, words)
    shown = f"{where}: data {data}, tensor {tensor}, pipeline {pipeline}"
    if not made.fits:
        capacity = made.memory.capacity_bytes or 0.0
        words = (
            f"{shown} needs {format_bytes(made.memory.total_bytes)}, and a GPU has {format_bytes(capacity)}"
        )
        return Choice(words, "the layout doesn't fit")
    if made.step_time_s > 1.001 * best.step_time_s:
        words = f"{shown} takes {format_time(made.step_time_s)} a step; another that fits takes {format_time(best.step_time_s)}"
        if tensor > asked.cluster.node.gpus:
            words += f", with tensor parallelism inside a node of {asked.cluster.node.gpus}"
        return Choice(None, words)
    return Choice(None, None)


# ---- task 5: groups on real ranks ----


@dataclass(frozen=True)
class GroupTrial:
    """What came of one mesh; each attribute is None, or says what is wrong.

    Attributes:
        groups: does each rank have the right group on each axis?
        average: are the gradients those of one process with the whole batch?
        norm: is the norm that of the whole gradient, on every rank?
    """

    groups: str | None
    average: str | None
    norm: str | None


def try_on_mesh(
    make_groups: Callable[..., Any],
    average_gradients: Callable[..., Any],
    gradient_norm: Callable[..., Any],
    orders: Sequence[Order],
) -> list[GroupTrial]:
    """Try the three functions of task 5 on four gloo ranks, on one mesh after another.

    ``make_groups`` gets all groups of each axis as ranks, ``{"data": [(0, 2), (1, 3)], …}``; the other two get working
    process groups, whatever ``make_groups`` makes.

    Raises:
        NotWritten: none of the three is written yet.
    """
    functions = (make_groups, average_gradients, gradient_norm)
    outcome = try_on_ranks(
        f"{__name__}:group_trial",
        functions,
        N_RANKS,
        {"orders": orders, "names": [name_of(one) for one in functions]},
        time_limit_s=TIME_LIMIT_S,
    )
    if outcome.fault:
        return [GroupTrial(outcome.fault, "the run did not finish", "the run did not finish")] * len(orders)
    found = []
    for index in range(len(orders)):
        rows = [rank[index] for rank in outcome.results]
        faults = [
            next((row[part] for row in rows if row[part]), None) for part in ("groups", "average", "norm")
        ]
        found.append(GroupTrial(*faults))
    missing = [f"{name_of(one)} is not written yet" for one in functions]
    if [found[0].groups, found[0].average, found[0].norm] == missing:
        raise NotWritten(missing[0])
    return found


def group_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> list[dict[str, str | None]]:
    """One rank of :func:`try_on_mesh`."""
    make_groups, average_gradients, gradient_norm = (functions[name] for name in params["names"])
    rows = []
    for pairs in params["orders"]:
        order = tuple((axis, size) for axis, size in pairs)
        where = f"{order_words(order)}, rank {ctx.rank}"
        groups = _right_groups(ctx, order)
        parts: dict[str, Callable[[], str | None]] = {
            "groups": partial(_groups_fault, ctx, make_groups, order),
            "average": partial(_average_fault, ctx, average_gradients, order, groups),
            "norm": partial(_norm_fault, ctx, gradient_norm, order, groups),
        }
        row: dict[str, str | None] = {}
        for part, find in parts.items():
            try:
                fault = find()
                row[part] = f"{where}: {fault}" if fault else None
            except NotImplementedError as error:
                row[part] = str(NotWritten.from_error(error))
            except Exception as error:
                # As a rule all ranks raise it; if not, the others wait until the time limit.
                row[part] = f"{where}: stopped with {describe(error)}"
        rows.append(row)
    return rows


def _right_groups(ctx: Context, order: Order) -> dict[str, Any]:
    """The groups as torch's device mesh makes them; its last axis is the fastest."""
    from torch.distributed.device_mesh import init_device_mesh

    axes, sizes = zip(*reversed(order), strict=True)
    device_mesh = init_device_mesh(ctx.device.type, sizes, mesh_dim_names=axes)
    return {axis: device_mesh.get_group(axis) for axis in axes}


class _DifferentCalls(RuntimeError):
    """The ranks don't make the same groups in the same order."""


@contextlib.contextmanager
def _same_calls(ctx: Context, function: Callable[..., Any]) -> Iterator[None]:
    """Compare what the ranks ask of ``new_group``, call by call: where they differ, gloo would wait for ever or mix up."""
    import torch.distributed as dist

    real = dist.new_group

    def compare(asked: list[int] | None) -> None:
        everyone = ctx.gather(asked)
        if all(one == everyone[0] for one in everyone):
            return
        rank = next(rank for rank, one in enumerate(everyone) if one != everyone[0])
        first, other = (
            "makes no more groups" if one is None else f"makes {one}" for one in (everyone[0], everyone[rank])
        )
        raise _DifferentCalls(
            f"rank 0 {first} while rank {rank} {other}: every rank must make every group, in the same order, "
            "also those that it isn't in"
        )

    def new_group(ranks: Any = None, *args: Any, **settings: Any) -> Any:
        if not settings.get("use_local_synchronization"):
            compare(list(range(ctx.ranks)) if ranks is None else [int(rank) for rank in ranks])
        return real(ranks, *args, **settings)

    names = getattr(function, "__globals__", {})
    direct = {name: new_group for name, value in names.items() if value is real}
    with patch.object(dist, "new_group", new_group), patch.dict(names, direct):
        yield
        compare(None)


def _groups_fault(ctx: Context, make_groups: Callable[..., Any], order: Order) -> str | None:
    import torch.distributed as dist

    laid = mesh(order)
    try:
        with _same_calls(ctx, make_groups):
            groups = make_groups(groups_of(order))
    except _DifferentCalls as error:
        return str(error)
    if not isinstance(groups, dict) or not set(laid.axes) <= set(groups):
        return f"{name_of(make_groups)} must return a dict with {', '.join(laid.axes)}, not {reprlib.repr(groups)}"
    for axis in laid.axes:
        wanted = laid.group(ctx.rank, (axis,))
        if groups[axis] is dist.GroupMember.NON_GROUP_MEMBER:
            return f"groups[{axis!r}] must be the process group of ranks {wanted}; it is one that this rank isn't in"
        try:
            ranks = tuple(sorted(dist.get_process_group_ranks(groups[axis])))
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError):
            return f"groups[{axis!r}] must be a process group, not {reprlib.repr(groups[axis])}"
        if ranks != wanted:
            return f"groups[{axis!r}] holds ranks {ranks}, and along {axis} it is {wanted}"
    return None


def _whole_gradients(data: int) -> tuple[Any, Any]:
    """The gradient that the replica ``data`` has of a split weight, ``[8, 3]``, and of a shared one, ``[5]``."""
    import torch

    generator = torch.Generator().manual_seed(100 + data)
    return torch.randn(8, 3, generator=generator), torch.randn(5, generator=generator)


def _part(whole: Any, laid: Mesh, rank: int) -> Any:
    """A rank's rows of a split weight."""
    tensor = _on(laid, rank, "tensor")
    return whole.chunk(laid.sizes[laid.axes.index("tensor")])[tensor].clone()


def _own_gradients(laid: Mesh, rank: int) -> list[Any]:
    """What a rank holds after its backward pass: its rows of the split weight's gradient, and the shared one's."""
    split, shared = _whole_gradients(_on(laid, rank, "data"))
    return [_part(split, laid, rank), shared]


def _mean_over(laid: Mesh, ranks: Sequence[int], divisor: int | None = None) -> list[Any]:
    """The mean of the gradients of some ranks, as an all-reduce over them makes it."""
    held = [_own_gradients(laid, rank) for rank in ranks]
    return [sum(column) / (divisor or len(ranks)) for column in zip(*held, strict=True)]


def _average_fault(
    ctx: Context, average_gradients: Callable[..., Any], order: Order, groups: dict[str, Any]
) -> str | None:
    laid = mesh(order)
    before, mine = _own_gradients(laid, ctx.rank), _own_gradients(laid, ctx.rank)
    average_gradients(mine, groups)
    along = laid.group(ctx.rank, ("data",))
    wanted = _mean_over(laid, along)
    if tensors_near(mine, wanted, ATOL):
        return None
    if tensors_near(mine, before, ATOL):
        return "the gradients are as they were: change the tensors in place"
    everyone = range(laid.ranks)
    guesses = (
        (_mean_over(laid, along, 1), "that is the sum over the data group: divide by its size"),
        (_mean_over(laid, along, laid.ranks), "that is divided by the number of all ranks, not by the data group's size"),
        (_mean_over(laid, laid.group(ctx.rank, ("tensor",))), "that is averaged over the tensor group, which holds other slices of the weights"),
        (_mean_over(laid, everyone), "that is averaged over all ranks, also over those that hold other slices of the weights"),
    )  # fmt: skip
    for guess, words in guesses:
        if tensors_near(mine, guess, ATOL):
            return f"the gradients are not those of one process with the whole batch: {words}"
    return "the gradients are not those of one process with the whole batch"


def _norm_fault(
    ctx: Context, gradient_norm: Callable[..., Any], order: Order, groups: dict[str, Any]
) -> str | None:
    laid = mesh(order)
    split, shared = _mean_over(laid, laid.group(ctx.rank, ("data",)))
    answer = gradient_norm([split.clone()], [shared.clone()], groups)
    try:
        value = float(answer)
    except (TypeError, ValueError):
        return f"{name_of(gradient_norm)} must return a number, not {reprlib.repr(answer)}"
    copies = laid.group(ctx.rank, ("tensor",))
    squares = [
        float((part**2).sum())
        for rank in copies
        for part in _mean_over(laid, laid.group(rank, ("data",)))[:1]
    ]
    once, own, sizes = float((shared**2).sum()), float((split**2).sum()), dict(order)
    wanted = math.sqrt(sum(squares) + once)
    if close(value, wanted):
        return None
    words = f"the norm of the whole gradient is {wanted:.4f}, not {value:.4f}"
    guesses = (
        (
            math.sqrt(own + once),
            "that is this rank's own part: the ranks of a tensor group hold other slices",
        ),
        (
            math.sqrt(sum(squares) + len(copies) * once),
            "that counts the shared gradient once for each tensor rank",
        ),
        (sum(squares) + once, "that is its square"),
        (math.sqrt(sum(squares)), "that leaves out the shared gradient"),
        (
            math.sqrt(sizes["data"] * (sum(squares) + len(copies) * once)),
            "that adds up all ranks; the data ranks hold copies",
        ),
    )
    return next((f"{words}: {hint}" for guess, hint in guesses if close(value, guess)), words)


# ---- task 6: what there is to explain ----

_STEPS = 3
_ORDER: Order = (("tensor", 2), ("pipeline", 1), ("data", 2))
# What the gradients are averaged over, and the words of the table.
_OVER = {"data": "the data group", "tensor": "the tensor group", "all": "all ranks"}


def wrong_groups(make_groups: Callable[..., Any]) -> str:
    """Train the mesh lab's transformer on four ranks with a student's groups, right and wrong; two tables as text.

    Raises:
        NotWritten: ``make_groups`` isn't written yet.
    """
    outcome = try_on_ranks(
        f"{__name__}:wrong_groups_trial",
        [make_groups],
        N_RANKS,
        {"name": name_of(make_groups)},
        time_limit_s=TIME_LIMIT_S,
    )
    fault = outcome.fault or first_fault(rank.get("fault") for rank in outcome.results)
    if fault:
        return f"These groups can't be used: {fault}"
    first = outcome.results[0]
    losses = [
        ["gradients averaged over", *[f"loss {step + 1}" for step in range(_STEPS)], "gap to one process"]
    ]
    losses.append(["(one process)", *[f"{loss:.4f}" for loss in first["alone"]], ""])
    for row in first["rows"]:
        numbers = [f"{loss:.4f}" for loss in row["losses"]]
        losses.append([_OVER[row["over"]], *numbers, f"{row['gap']:.1e}"])
    traffic = [["axis", "sent by a rank in a step", "all-reduces"]]
    for axis in first["traffic"]:
        sent = "not counted" if axis["sent"] is None else format_bytes(axis["sent"])
        traffic.append([axis["axis"], sent, str(axis["calls"])])
    return (
        f"{_STEPS} steps on the mesh {order_words((_ORDER[0], _ORDER[2]))}, four gloo ranks\n"
        f"{text_table(losses)}\n\nwhat each axis sends, the other silent\n{text_table(traffic)}"
    )


class _StudentMesh:
    """The part of a device mesh that the mesh lab uses, with a student's groups; the axis ``"all"`` is everyone."""

    def __init__(self, groups: dict[str, Any], laid: Mesh, rank: int) -> None:
        self._groups, self._laid, self._rank = groups, laid, rank

    def get_local_rank(self, axis: str) -> int:
        return _on(self._laid, self._rank, axis)

    def __getitem__(self, axis: str) -> _Axis:
        return _Axis(self._laid.ranks if axis == "all" else self._laid.sizes[self._laid.axes.index(axis)])

    def get_group(self, axis: str) -> Any:
        import torch.distributed as dist

        return dist.group.WORLD if axis == "all" else self._groups[axis]


@dataclass(frozen=True)
class _Axis:
    n_ranks: int

    def size(self) -> int:
        return self.n_ranks


def wrong_groups_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> dict[str, Any]:
    """One rank of :func:`wrong_groups`."""
    import torch.distributed as dist

    from shardlab.labs import mesh_worker as lab
    from shardlab.labs.measure import count_sent, largest_gap, worst
    from shardlab.labs.mesh import AXES

    make_groups = functions[params["name"]]
    fault = _groups_fault(ctx, make_groups, _ORDER)
    if any(ctx.gather(fault)):
        return {"fault": fault}
    groups = make_groups(groups_of(_ORDER))
    own = _StudentMesh(groups, mesh(_ORDER), ctx.rank)

    def step(layers: Any, talk: Any, index: int) -> float:
        batch = lab.make_batch(index, ctx.device)
        return lab.training_step(layers, lab.own_micro_batches(talk, batch), talk)

    alone = lab.Alone()
    whole = lab.own_layers(alone, ctx.device)
    # One rank is enough to train alone; the others get its weights.
    losses_alone = [step(whole, alone, index) for index in range(_STEPS)] if ctx.rank == 0 else []
    for weights in whole:
        for weight in weights.values():
            dist.broadcast(weight.data, src=0)
    rows = []
    for over in _OVER:
        talk = lab.Talk(own, instead={"data": over})
        layers = lab.own_layers(talk, ctx.device)
        losses = [step(layers, talk, index) for index in range(_STEPS)]
        shares = [lab.share(weights, talk.place("tensor"), talk.size("tensor")) for weights in whole]
        gap = worst(
            [largest_gap(mine.values(), wanted.values()) for mine, wanted in zip(layers, shares, strict=True)]
        )
        everyone = ctx.gather([losses, gap])
        # A rank's loss is that of its own part of the batch: the mean over the ranks is the batch's.
        means = [sum(column) / ctx.ranks for column in zip(*[one[0] for one in everyone], strict=True)]
        rows.append({"over": over, "losses": means, "gap": worst([one[1] for one in everyone])})
    traffic = []
    for axis in ("tensor", "data"):
        talk = lab.Talk(own, silent=frozenset(AXES) - {axis})
        layers = lab.own_layers(talk, ctx.device)
        step(layers, talk, 0)
        with _counted() as calls:
            sent = count_sent(ctx, partial(step, layers, talk, 0))
        traffic.append({"axis": axis, "sent": sent and max(sent), "calls": len(calls)})
    return {"alone": losses_alone, "rows": rows, "traffic": traffic}


@contextlib.contextmanager
def _counted() -> Iterator[list[int]]:
    """The sizes of all tensors that are all-reduced meanwhile, in numbers."""
    import torch.distributed as dist

    real, calls = dist.all_reduce, []

    def all_reduce(tensor: Any, *args: Any, **settings: Any) -> Any:
        calls.append(tensor.numel())
        return real(tensor, *args, **settings)

    with patch.object(dist, "all_reduce", all_reduce):
        yield calls
