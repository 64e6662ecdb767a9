"""What every rank of the ZeRO lab runs: ZeRO-1 by hand, torch's ZeRO-1 and FSDP2, checked, weighed and counted.

The step to read is :func:`zero1_step`. The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.zero_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "micro_steps": 4}'
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo  # DDP imports it on first use, over a second: here all ranks share that
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab.labs.measure import (
    Stage,
    all_gather_single,
    count_sent,
    largest_gap,
    members,
    reduce_scatter_single,
    run_stages,
)
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words

Batch = tuple[Tensor, Tensor]

FEATURES = 384  # 2, 3, 4, 6, 8, ... ranks divide it
EQUALITY_STEPS = 4
SAMPLES_PER_RANK = 8
COUNTED_STEPS = 2
LEARNING_RATE = 1e-3
# Not Adam's usual 1e-8: that makes whole steps of gradients that are zero but for rounding, and hides a mean that is
# N times too large, because Adam divides by the gradient's size.
EPSILON = 1e-3


# ---- the code to read ----


def zero1_step(
    weights: Tensor,
    gradients: Tensor,
    adam: torch.optim.Adam,
    group: Any,
) -> None:
    """One step of ZeRO-1. The rank holds whole weights and gradients, and
    Adam's moments for 1/N of them.

    weights, gradients: [P], flat, the same P on every rank.
    adam: an optimizer of one parameter, this rank's shard of weights, [P/N].
    """
    n = dist.get_world_size(group)
    [shard] = adam.param_groups[0]["params"]
    # 1. Everyone sends the owner of each shard what it found for that shard.
    shard.grad = torch.empty_like(shard)  # [P/N]
    reduce_scatter_by_all_to_all(shard.grad, gradients, group)
    shard.grad /= n  # the mean over the ranks
    # 2. Adam, for 1/N of the weights.
    adam.step()
    # 3. Everyone gets everyone's new weights.
    all_gather_single(weights, shard.detach().clone(), group=group)


def reduce_scatter_by_all_to_all(
    output: Tensor,
    source: Tensor,
    group: Any,
) -> None:
    """What a reduce-scatter does: rank r gets the sum of all ranks' part r.

    gloo's own sends as much as an all-reduce; this sends (N-1)/N of ``source``.

    output: [P/N]. source: [P], N parts one after the other.
    """
    parts = torch.empty_like(source)
    dist.all_to_all_single(parts, source, group=group)
    n = dist.get_world_size(group)
    torch.sum(parts.view(n, -1), dim=0, out=output)  # [N, P/N] -> [P/N]


class MendedReduceScatter:
    """FSDP2 calls this instead of gloo's reduce-scatter."""

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        reduce_scatter_by_all_to_all(output_tensor, input_tensor, group)
        if op == dist.ReduceOp.AVG:
            # Hybrid sharding's all-reduce divides by the replicas later.
            output_tensor /= dist.get_world_size(group)


def shard_with_fsdp(
    model: nn.Sequential,
    mesh: DeviceMesh,
    reshard: bool,
    mended: bool,
) -> None:
    """FSDP2: every layer of the model becomes a unit, sharded over the mesh.

    reshard: free a unit's whole weights after its forward pass (ZeRO-3), or
    keep them until its backward pass.
    """
    for unit in [*model, model]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
    if mended:
        for unit in model:
            unit.set_custom_reduce_scatter(MendedReduceScatter())


# ---- the model and its data ----


def build_model() -> nn.Sequential:
    """Three layers of unequal size, F -> 2F -> F -> F; the seed gives every rank the same start."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(FEATURES, 2 * FEATURES), nn.ReLU()),
        nn.Sequential(nn.Linear(2 * FEATURES, FEATURES), nn.ReLU()),
        nn.Linear(FEATURES, FEATURES),
    )


def global_batch(ctx: Context, seed: int, size: int) -> Batch:
    """Inputs and targets of one step, the same on every rank, ``[size, FEATURES]`` each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=generator)
    return x.to(ctx.device), torch.tanh(x.roll(1, dims=1)).to(ctx.device)


def shares(ctx: Context, n: int, steps: int) -> list[Batch]:
    """This rank's share of each of so many global batches."""
    whole = [global_batch(ctx, seed, SAMPLES_PER_RANK * n) for seed in range(steps)]
    return [(x.chunk(n)[ctx.rank], y.chunk(n)[ctx.rank]) for x, y in whole]


def adam_of(parameters: Any) -> torch.optim.Adam:
    """The optimizer of all ways."""
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=EPSILON)


# ---- the ways to train on N ranks ----


@dataclass
class Trainer:
    """A model being trained in one of the ways.

    Attributes:
        model: the bare model; its parameters may be DTensors.
        call: what to call on a batch: the model, or DDP around it.
        step: the optimizer step, communication included.
        states: the optimizer whose states this rank holds.
        gradients: the gradients that the last step used, whole, mean over the ranks; every rank must ask.
    """

    model: nn.Sequential
    call: nn.Module
    step: Callable[[], object]
    states: torch.optim.Optimizer
    gradients: Callable[[], list[Tensor]]


def ddp(ctx: Context, n: int) -> Trainer:
    """Plain DDP: everything whole on every rank."""
    model = build_model().to(ctx.device)
    adam = adam_of(model.parameters())
    return Trainer(model, _replicated(model, ctx.team(n)), adam.step, adam, partial(_whole_gradients, model))


def zero1(ctx: Context, n: int) -> Trainer:
    """ZeRO-1 by hand."""
    group = ctx.team(n)
    model = build_model().to(ctx.device)
    weights, gradients = flatten(model, n)
    shard = nn.Parameter(weights.chunk(n)[ctx.rank])  # a view: it takes no memory of its own
    adam = adam_of([shard])

    def used() -> list[Tensor]:
        assert shard.grad is not None
        flat = torch.empty_like(weights)
        all_gather_single(flat, shard.grad, group=group)
        sizes = [parameter.numel() for parameter in model.parameters()]
        return [
            part.view_as(parameter)
            for part, parameter in zip(flat[: sum(sizes)].split(sizes), model.parameters(), strict=True)
        ]

    return Trainer(model, model, partial(zero1_step, weights, gradients, adam, group), adam, used)


def torch_zero1(ctx: Context, n: int) -> Trainer:
    """torch's ZeroRedundancyOptimizer under DDP: it deals out whole tensors."""
    model = build_model().to(ctx.device)
    call = _replicated(model, ctx.team(n))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, process_group=ctx.team(n), lr=LEARNING_RATE, eps=EPSILON
    )
    return Trainer(model, call, optimizer.step, optimizer.optim, partial(_whole_gradients, model))


def fsdp(ctx: Context, n: int, reshard: bool = True, mended: bool = False) -> Trainer:
    """FSDP2 over the first ``n`` ranks."""
    return _fsdp(ctx, DeviceMesh.from_group(ctx.team(n), ctx.device.type), reshard, mended)


def hybrid(ctx: Context, n: int) -> Trainer:
    """FSDP2 on a mesh of two replicas, each sharded over half of the ranks. All ranks of the run must call it."""
    mesh = init_device_mesh(ctx.device.type, (2, n // 2), mesh_dim_names=("replicate", "shard"))
    return _fsdp(ctx, mesh, reshard=True, mended=True)


WAYS: dict[str, Callable[[Context, int], Trainer]] = {
    "ddp": ddp,
    "zero1": zero1,
    "torch_zero1": torch_zero1,
    "fsdp": fsdp,
    "fsdp_kept": partial(fsdp, reshard=False),
    "fsdp_mended": partial(fsdp, mended=True),
    "hybrid": hybrid,
}


def _replicated(model: nn.Module, group: Any) -> DDP:
    # Gradients live in DDP's buckets: no second copy of them.
    return DDP(model, process_group=group, gradient_as_bucket_view=True)


def _fsdp(ctx: Context, mesh: DeviceMesh, reshard: bool, mended: bool) -> Trainer:
    model = build_model().to(ctx.device)
    shard_with_fsdp(model, mesh, reshard, mended)
    adam = adam_of(model.parameters())
    return Trainer(model, model, adam.step, adam, partial(_whole_gradients, model))


def _whole_gradients(model: nn.Module) -> list[Tensor]:
    return [whole(parameter.grad) for parameter in model.parameters()]


def flatten(model: nn.Module, n: int) -> tuple[Tensor, Tensor]:
    """Move weights and gradients into two flat buffers that ``n`` divides; the model's become views of them."""
    parameters = list(model.parameters())
    size = sum(parameter.numel() for parameter in parameters)
    padded = -(-size // n) * n
    weights = parameters[0].new_zeros(padded, requires_grad=False).detach()
    gradients = torch.zeros_like(weights)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        weights[start:end] = parameter.detach().flatten()
        parameter.data = weights[start:end].view_as(parameter)
        parameter.grad = gradients[start:end].view_as(parameter)
        start = end
    return weights, gradients


# ---- the stages ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    model = build_model()
    stages = [
        Stage("collectives", f"bytes of collectives, {ranks_words(n)}", partial(count_collectives, ctx, n))
        for n in ctx.params["teams"][1:]
    ]
    stages += [
        Stage("ways", f"{way}, {ranks_words(n)}", partial(measure_way, ctx, n, way))
        for n in ctx.params["teams"]
        for way in WAYS
        if way != "hybrid" or (n == ctx.ranks and n >= 4 and n % 2 == 0)
    ]
    stages += [
        Stage("accumulation", f"accumulation, {ranks_words(n)}", partial(accumulate, ctx, n))
        for n in ctx.params["teams"][1:]
    ]
    return run_stages(
        ctx,
        stages,
        parameters=count_elements(model),
        largest_unit=max(count_elements(unit) for unit in model),
        rows=FEATURES,
    )


def count_collectives(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Bytes that each rank sends for one collective over the model's P bytes, and whether its result is right."""
    group = ctx.team(n)
    size = -(-count_elements(build_model()) // n) * n
    rows = []
    for name in ("all_reduce", "reduce_scatter", "reduce_scatter_list", "all_to_all_sum", "all_gather"):
        action, gap, mine = None, None, None
        if group is not None:
            action, gap = _collective(ctx, name, n, size)
            action()
            mine = gap()
        sent = count_sent(ctx, action)
        gaps = members(ctx, mine)
        rows.append(
            {
                "collective": name,
                "ranks": n,
                "n_bytes": 4 * size,
                "gap": largest(gaps),
                "kernel": sent and sent[:n],
            }
        )
    return rows


def _collective(
    ctx: Context, name: str, n: int, size: int
) -> tuple[Callable[[], object], Callable[[], float]]:
    """The action, and the difference of its result from what it should be. Whole numbers: fp32 adds them exactly."""
    group = ctx.team(n)
    source = torch.arange(size, device=ctx.device).remainder(1000).float() + ctx.rank
    total = (source - ctx.rank) * n + sum(range(n))  # [size]: the sum over the ranks
    part = torch.zeros(size // n, device=ctx.device)
    whole_buffer = torch.zeros(size, device=ctx.device)
    mine = total.chunk(n)[ctx.rank]
    if name == "all_reduce":

        def reduce() -> None:
            whole_buffer.copy_(source)
            dist.all_reduce(whole_buffer, group=group)

        return reduce, lambda: largest_gap([whole_buffer], [total])
    if name == "all_gather":
        return (
            partial(all_gather_single, whole_buffer, mine, group=group),
            lambda: largest_gap([whole_buffer], [total]),
        )
    action = {
        "reduce_scatter": partial(reduce_scatter_single, part, source, group=group),
        "reduce_scatter_list": partial(dist.reduce_scatter, part, list(source.chunk(n)), group=group),
        "all_to_all_sum": partial(reduce_scatter_by_all_to_all, part, source, group),
    }[name]
    return action, lambda: largest_gap([part], [mine])


def measure_way(ctx: Context, n: int, way: str) -> list[dict[str, Any]]:
    """One way on ``n`` ranks: against one process, bytes held by kind, whole weights in the forward pass, bytes sent."""
    mine, steps = None, None
    if ctx.team(n) is not None:
        alone = train_alone(ctx, n)
        trainer = WAYS[way](ctx, n)
        batches = shares(ctx, n, EQUALITY_STEPS)
        losses = train(trainer, batches)
        gradients, parameters = trainer.gradients(), whole_parameters(trainer.model)
        mine = {
            "losses": losses,
            "alone": alone.losses,
            "parameter_gap": largest_gap(parameters, alone.parameters),
            "gradient_gap": largest_gap(gradients, alone.gradients) / alone.largest_gradient,
            "moved": largest_gap(parameters, build_model().to(ctx.device).parameters()),
            "held": held_bytes(trainer),
            **whole_while_forward(trainer, batches[0]),
        }
        del gradients, parameters
        steps = partial(train, trainer, batches[:COUNTED_STEPS])
    sent = count_sent(ctx, steps)
    rows = members(ctx, mine)
    # Equal shares: the global batch's loss is the mean of the ranks' losses.
    means = [statistics.fmean(losses) for losses in zip(*[row["losses"] for row in rows], strict=True)]
    row = {
        "way": way,
        "ranks": n,
        "steps": EQUALITY_STEPS,
        "loss_gap": largest([abs(a - b) for a, b in zip(means, rows[0]["alone"], strict=True)]),
        "parameter_gap": largest([row["parameter_gap"] for row in rows]),
        "gradient_gap": largest([row["gradient_gap"] for row in rows]),
        "moved": rows[0]["moved"],
        "held": [row["held"] for row in rows],
        "whole_peak": max(row["whole_peak"] for row in rows),
        "whole_after": max(row["whole_after"] for row in rows),
        "kernel": None if sent is None else [n_bytes / COUNTED_STEPS for n_bytes in sent[:n]],
    }
    return [row]


def accumulate(ctx: Context, n: int) -> list[dict[str, Any]]:
    """FSDP2 over several micro-batches, reducing gradients after every one or after the last: bytes held and sent."""
    micro_steps = ctx.params["micro_steps"]
    rows, finals = [], []
    for sync in ("every", "last"):
        mine, step = None, None
        if ctx.team(n) is not None:
            trainer = fsdp(ctx, n, mended=True)
            batches = shares(ctx, n, micro_steps)
            between: list[int] = []
            training_step(trainer, batches, sync, between=between)
            finals.append(whole_parameters(trainer.model))
            mine = max(between)
            step = partial(training_step, trainer, batches, sync)
        sent = count_sent(ctx, step)
        held = members(ctx, mine)
        rows.append(
            {
                "ranks": n,
                "micro_steps": micro_steps,
                "sync": sync,
                "gradient_bytes": max(held),
                "kernel": sent and sent[:n],
            }
        )
    gaps = members(ctx, largest_gap(*finals) if finals else None)
    return [{**row, "gap_to_every": largest(gaps)} for row in rows]


# ---- shared by the stages ----


def training_step(
    trainer: Trainer, micro_batches: list[Batch], sync: str = "every", between: list[int] | None = None
) -> float:
    """One optimizer step; FSDP2 reduces gradients after ``"every"`` micro-batch, or only after the ``"last"``.

    ``between`` takes the bytes of gradients that this rank holds before each micro-batch but the first.
    """
    for parameter in trainer.model.parameters():
        if isinstance(parameter, DTensor) or parameter.grad is None:
            parameter.grad = None
        else:
            parameter.grad.zero_()  # a view of a bucket or of a flat buffer: it stays one
    total = 0.0
    for index, (x, y) in enumerate(micro_batches):
        if sync == "last":
            trainer.model.set_requires_gradient_sync(index == len(micro_batches) - 1)
        if between is not None and index:
            between.append(gradient_bytes(trainer.model))
        loss = F.mse_loss(trainer.call(x), y) / len(micro_batches)
        loss.backward()
        total += loss.item()
    trainer.step()
    return total


def train(trainer: Trainer, batches: list[Batch]) -> list[float]:
    """One optimizer step per batch; returns the losses."""
    return [training_step(trainer, [batch]) for batch in batches]


@dataclass
class Alone:
    """One process on the global batches: losses, and parameters and gradients after the last step."""

    losses: list[float]
    parameters: list[Tensor]
    gradients: list[Tensor]

    @property
    def largest_gradient(self) -> float:
        """The largest absolute value of any gradient."""
        return float(max(gradient.abs().max().item() for gradient in self.gradients))


_alone: dict[int, Alone] = {}


def train_alone(ctx: Context, n: int) -> Alone:
    """The unsplit computation: plain Adam on the batches that ``n`` ranks share. Kept for the next way."""
    if n not in _alone:
        model = build_model().to(ctx.device)
        adam = adam_of(model.parameters())
        trainer = Trainer(model, model, adam.step, adam, partial(_whole_gradients, model))
        batches = [global_batch(ctx, seed, SAMPLES_PER_RANK * n) for seed in range(EQUALITY_STEPS)]
        losses = train(trainer, batches)
        _alone[n] = Alone(losses, whole_parameters(model), trainer.gradients())
    return _alone[n]


def count_elements(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def whole(tensor: Tensor | None) -> Tensor:
    """The whole of a sharded tensor; all its ranks must ask."""
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_parameters(model: nn.Module) -> list[Tensor]:
    """All parameters, whole, detached."""
    return [whole(parameter).detach() for parameter in model.parameters()]


def local_bytes(tensor: Tensor | None) -> int:
    """Bytes of a tensor on this rank: of a sharded one, its shard."""
    if tensor is None:
        return 0
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel() * local.element_size())


def held_bytes(trainer: Trainer) -> dict[str, int]:
    """Bytes of model states that this rank holds between steps, by kind. Adam's step counters are left out."""
    parameters = list(trainer.model.parameters())
    states = [tensor for state in trainer.states.state.values() for tensor in state.values()]
    return {
        "parameters": sum(local_bytes(parameter) for parameter in parameters),
        "gradients": sum(local_bytes(parameter.grad) for parameter in parameters),
        "optimizer": sum(local_bytes(tensor) for tensor in states if tensor.dim() > 0),
    }


def whole_while_forward(trainer: Trainer, batch: Batch) -> dict[str, int]:
    """Bytes of whole (unsharded) parameters: the most at the end of any layer's forward pass, and after the last."""
    seen: list[int] = []

    def look(*_: Any) -> None:
        # FSDP2 puts a unit's whole weights in the place of its shards while it has them.
        plain = [p for p in trainer.model.parameters() if not isinstance(p, DTensor)]
        seen.append(sum(local_bytes(parameter) for parameter in plain))

    layers = [module for module in trainer.model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    x, y = batch
    loss = F.mse_loss(trainer.call(x), y)
    peak = max(seen)
    look()
    # The backward pass ends what the forward pass began.
    loss.backward()
    for hook in hooks:
        hook.remove()
    return {"whole_peak": peak, "whole_after": seen[-1]}


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of gradients that this rank of FSDP2 holds, sharded or whole."""
    total = sum(local_bytes(parameter.grad) for parameter in model.parameters())
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            # Whole gradients hang on the whole weights, which show up only while those are gathered.
            unit.unshard()
            total += sum(
                local_bytes(p.grad) for p in unit.parameters(recurse=True) if not isinstance(p, DTensor)
            )
            unit.reshard()
    return total


def largest(gaps: list[float]) -> float:
    """The largest of some differences; NaN if one is NaN."""
    return float("nan") if any(gap != gap for gap in gaps) else max(gaps)
