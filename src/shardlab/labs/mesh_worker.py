"""What every rank of the mesh lab runs: a small transformer under two or three kinds of parallelism at once.

The code to read is :func:`training_step`. The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.mesh_worker:worker --ranks 4 --params \
        '{"layouts": [[2, 1, 2], [2, 2, 1], [1, 2, 2]], "steps": 3}'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardlab.labs.measure import Stage, count_sent, largest_gap, members, run_stages, worst
from shardlab.labs.mesh import AXES, GLOBAL_BATCH, HEADS, HIDDEN, LAYERS, MICRO_BATCHES, SEQUENCE
from shardlab.labs.rank import Context
from shardlab.labs.tp_operators import AddUp, CopyIn, sum_over_ranks

FFN = 4 * HIDDEN
LEARNING_RATE = 0.05

Weights = dict[str, Tensor]
Layers = list[Weights]
Pairs = list[tuple[Tensor, Tensor]]


# ---- who speaks to whom ----


@dataclass(frozen=True)
class Talk:
    """This rank's place on a mesh, and what it says along each axis.

    Attributes:
        mesh: the device mesh, with :data:`AXES`.
        silent: axes along which nothing is sent: what one axis sends is counted while the others are silent.
        instead: axes whose all-reduce goes to another axis' group, by mistake.
    """

    mesh: DeviceMesh
    silent: frozenset[str] = frozenset()
    instead: Mapping[str, str] | None = None

    def place(self, axis: str) -> int:
        """This rank's coordinate."""
        place: int = self.mesh.get_local_rank(axis)
        return place

    def size(self, axis: str) -> int:
        """How many ranks the axis has."""
        size: int = self.mesh[axis].size()
        return size

    def adding(self, axis: str) -> Any:
        """The process group that adds up along the axis; None if nothing is sent there."""
        return None if axis in self.silent else self.mesh.get_group((self.instead or {}).get(axis, axis))

    def average(self, x: Tensor, axis: str) -> Tensor:
        """The mean of ``x`` along the axis."""
        return sum_over_ranks(x, self.adding(axis)) / self.size((self.instead or {}).get(axis, axis))

    def send(self, x: Tensor, axis: str, hop: int) -> None:
        """Send ``x`` to the rank ``hop`` places on."""
        if axis not in self.silent:
            dist.send(x.contiguous(), group=self.mesh.get_group(axis), group_dst=self.place(axis) + hop)

    def receive(self, like: Tensor, axis: str, hop: int) -> Tensor:
        """Wait for what the rank ``hop`` places on sends, a tensor of the same shape as ``like``."""
        x = torch.zeros_like(like)
        if axis not in self.silent:
            dist.recv(x, group=self.mesh.get_group(axis), group_src=self.place(axis) + hop)
        return x


# ---- the model, whole or a share of it ----


def whole_layer(index: int) -> Weights:
    """The weights of layer ``index``: ``qkv`` ``[3, h, h]``, ``out`` ``[h, h]``, ``up`` ``[f, h]``, ``down`` ``[h, f]``."""
    generator = torch.Generator().manual_seed(index)
    shapes = {"qkv": (3, HIDDEN, HIDDEN), "out": (HIDDEN, HIDDEN), "up": (FFN, HIDDEN), "down": (HIDDEN, FFN)}
    return {
        name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()
    }


def share(weights: Weights, rank: int, n: int) -> Weights:
    """One tensor-parallel rank's part: rows of ``qkv`` and ``up`` (whole heads), columns of ``out`` and ``down``."""
    dims = {"qkv": 1, "out": 1, "up": 0, "down": 1}
    return {name: weight.chunk(n, dims[name])[rank] for name, weight in weights.items()}


def layer(x: Tensor, weights: Weights, talk: Talk) -> Tensor:
    """Attention and MLP on this tensor rank's heads and columns.

    x: [batch, sequence, hidden], the same on all ranks of the axis.
    """
    group = talk.adding("tensor")
    inside = CopyIn.apply(F.rms_norm(x, [HIDDEN]), group)
    q, k, v = [split_heads(inside @ weight.mT) for weight in weights["qkv"]]
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    heads = heads.transpose(1, 2).flatten(2)  # [batch, sequence, own part]
    x = x + AddUp.apply(heads @ weights["out"].mT, group)
    inside = CopyIn.apply(F.rms_norm(x, [HIDDEN]), group)
    inner = F.gelu(inside @ weights["up"].mT)
    return x + AddUp.apply(inner @ weights["down"].mT, group)


def split_heads(x: Tensor) -> Tensor:
    """``[b, s, a d]`` to ``[b, a, s, d]``."""
    return x.unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2)


def own_layers(talk: Talk, device: Any) -> Layers:
    """The layers of this rank's pipeline stage, and of those its tensor share, with room for gradients."""
    per_stage = LAYERS // talk.size("pipeline")
    first = talk.place("pipeline") * per_stage
    layers = []
    for index in range(first, first + per_stage):
        parts = share(whole_layer(index), talk.place("tensor"), talk.size("tensor"))
        layers.append({name: part.to(device).clone().requires_grad_() for name, part in parts.items()})
    return layers


def make_batch(seed: int, device: Any) -> tuple[Tensor, Tensor]:
    """The global batch of one step, the same on every rank: inputs and targets, ``[B, s, h]`` each."""
    x = torch.randn(GLOBAL_BATCH, SEQUENCE, HIDDEN, generator=torch.Generator().manual_seed(seed))
    return x.to(device), torch.tanh(x.roll(1, dims=1)).to(device)


# ---- the step ----


def training_step(layers: Layers, batches: Pairs, talk: Talk) -> float:
    """One step on this rank's layers, with its micro-batches.

    All forward, all backward, then the gradients over the data axis. Returns
    the loss, which only the last pipeline stage knows.
    """
    first = talk.place("pipeline") == 0
    last = talk.place("pipeline") == talk.size("pipeline") - 1
    inputs, outputs, total = [], [], 0.0
    for x, y in batches:
        x = x.clone() if first else talk.receive(x, "pipeline", -1)
        inputs.append(x.requires_grad_())  # an embedding would want it too
        for weights in layers:
            x = layer(x, weights, talk)  # adds up over the tensor axis
        if last:
            x = F.mse_loss(x, y) / len(batches)
            total += x.item()
        else:
            talk.send(x.detach(), "pipeline", +1)
        outputs.append(x)
    for x, out in zip(inputs, outputs, strict=True):
        out.backward(None if last else talk.receive(out, "pipeline", +1))
        if not first:
            talk.send(x.grad, "pipeline", -1)
    for weights in layers:
        update(weights, talk)
    return total


def update(weights: Weights, talk: Talk) -> None:
    """Average the gradients over the data axis, and step."""
    for weight in weights.values():
        weight.data -= LEARNING_RATE * talk.average(weight.grad, "data")
        weight.grad = None


def own_micro_batches(talk: Talk, batch: tuple[Tensor, Tensor]) -> Pairs:
    """This data rank's share of a global batch, cut into micro-batches."""
    x, y = (part.chunk(talk.size("data"))[talk.place("data")] for part in batch)
    return list(zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True))


# ---- the measurements ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one layout after another; rank 0 returns them."""
    alone = train_alone(ctx)
    stages = []
    for layout in ctx.params["layouts"]:
        mesh = init_device_mesh(ctx.device.type, tuple(layout), mesh_dim_names=AXES)
        name = " x ".join(map(str, layout))
        stages += [
            Stage("groups", f"{name}: who is with whom", partial(list_groups, ctx, layout, mesh)),
            Stage("equality", f"{name}: compared with one process", partial(check, ctx, layout, mesh, alone)),
            Stage("traffic", f"{name}: bytes of each axis", partial(count_bytes, ctx, layout, mesh)),
        ]
    parameters = sum(weight.numel() for index in range(LAYERS) for weight in whole_layer(index).values())
    return run_stages(ctx, stages, parameters=parameters)


def train_alone(ctx: Context) -> tuple[list[float], Layers]:
    """Losses and weights of the whole model trained on this process alone: every axis has one rank."""
    talk = Alone()
    layers = own_layers(talk, ctx.device)
    return train(layers, talk, ctx), layers


class Alone(Talk):
    """One rank on every axis, and nobody to talk to."""

    def __init__(self) -> None:
        super().__init__(None, frozenset(AXES))

    def place(self, axis: str) -> int:
        return 0

    def size(self, axis: str) -> int:
        return 1


def train(layers: Layers, talk: Talk, ctx: Context) -> list[float]:
    """The losses of all steps."""
    return [
        training_step(layers, own_micro_batches(talk, make_batch(step, ctx.device)), talk)
        for step in range(ctx.params["steps"])
    ]


def list_groups(ctx: Context, layout: list[int], mesh: DeviceMesh) -> list[dict[str, Any]]:
    """Each rank's coordinates, and the ranks of its group on each axis, as the mesh has them."""
    mine = {
        "layout": layout,
        "rank": ctx.rank,
        "place": mesh.get_coordinate(),
        "groups": [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in AXES],
    }
    return members(ctx, mine)


def check(
    ctx: Context, layout: list[int], mesh: DeviceMesh, alone: tuple[list[float], Layers]
) -> list[dict[str, Any]]:
    """Train on the mesh, and again with the gradients all-reduced over the wrong group; compare with one process."""
    losses, weights = alone
    wrong = {"data": "tensor" if layout[2] > 1 else "pipeline"}
    rows = []
    for instead in (None, wrong):
        talk = Talk(mesh, instead=instead)
        layers = own_layers(talk, ctx.device)
        own_losses = train(layers, talk, ctx)
        first = talk.place("pipeline") * len(layers)
        gaps = []
        for index, own in enumerate(layers, first):
            wanted = share(weights[index], talk.place("tensor"), talk.size("tensor"))
            gaps.append(largest_gap(own.values(), wanted.values()))
        last = talk.place("pipeline") == talk.size("pipeline") - 1
        found = members(ctx, {"gap": worst(gaps), "losses": own_losses if last else None})
        # Ranks of the last stage know their replica's loss; the global batch's is the mean over the replicas.
        known = [row["losses"] for row in found if row["losses"]]
        means = [sum(column) / len(known) for column in zip(*known, strict=True)]
        rows.append(
            {
                "layout": layout,
                "reduced_over": (instead or {"data": "data"})["data"],
                "loss_gap": worst([abs(a - b) for a, b in zip(means, losses, strict=True)]),
                "parameter_gap": worst([row["gap"] for row in found]),
                "last_loss": means[-1],
                "alone_loss": losses[-1],
            }
        )
    return rows


def count_bytes(ctx: Context, layout: list[int], mesh: DeviceMesh) -> list[dict[str, Any]]:
    """Bytes that each rank sends in a step along each axis, the other axes silent; and all axes together."""
    rows = []
    for axis in (*AXES, "all"):
        talk = Talk(mesh, frozenset() if axis == "all" else frozenset(AXES) - {axis})
        layers = own_layers(talk, ctx.device)
        micro_batches = own_micro_batches(talk, make_batch(0, ctx.device))
        step: Callable[[], object] = partial(training_step, layers, micro_batches, talk)
        # Connections open on first use.
        step()
        rows.append({"layout": layout, "axis": axis, "kernel": count_sent(ctx, step)})
    return rows
