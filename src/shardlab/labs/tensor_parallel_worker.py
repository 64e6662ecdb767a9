"""What every rank of the tensor-parallel lab runs: one transformer layer cut over 1, 2, 4, ... ranks, checked and counted.

Read :class:`CopyIn` and :class:`AddUp` in :mod:`shardlab.labs.tp_operators`, the two operators that all of it rests on,
then :class:`SplitLayer`.
The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.tensor_parallel_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "hidden": 256, "heads": 8, "sequence": 256, "micro_batch": 4}'
"""

# torch is untyped to mypy.
# mypy: allow-subclassing-any

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo  # DTensor imports it on first use, over a second: here all ranks share that
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shardlab.labs.measure import (
    Stage,
    all_gather_single,
    count_sent,
    members,
    reduce_scatter_single,
    relative_gap,
    run_stages,
    worst,
    worst_of_rows,
)
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words
from shardlab.labs.tp_operators import AddUp, CopyIn
from shardlab.models.tensor import padded_vocabulary

DROPOUT = 0.1
LOSS_TOKENS = 16384
VOCABULARY = 512
# (how, layout) of every way that the layer is cut
WAYS = (
    ("by hand", "tensor"),
    ("DTensor", "tensor"),
    ("DTensor, inputs not prepared", "tensor"),
    ("by hand", "sequence"),
    ("DTensor", "sequence"),
)
# (name, whole region's seed, split region's seed): a rank adds its number to a seed of its own
SEEDS = (
    ("shared outside, own inside", "shared", "own"),
    ("shared everywhere", "shared", "shared"),
    ("own everywhere", "own", "own"),
)


# ---- f and g with sequence parallelism: each one's backward is the other one's forward ----


class GatherLinear(torch.autograd.Function):
    """f with sequence parallelism, and the linear behind it in one.

    Forward: all-gather the tokens. It keeps this rank's tokens only, and
    gathers again for the weight gradient. Backward: reduce-scatter.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: Any) -> Tensor:
        ctx.group = group
        ctx.save_for_backward(x, weight)  # x: [s/n, b, h]
        return F.linear(gather_tokens(x, group), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        tokens = gather_tokens(x, ctx.group).flatten(0, 1)  # [s b, h]
        flat = grad.flatten(0, 1)  # [s b, width/n]
        x_grad = scatter_sum(grad @ weight, ctx.group)  # [s/n, b, h]
        return x_grad, flat.t() @ tokens, flat.sum(0), None


class ScatterSum(torch.autograd.Function):
    """g with sequence parallelism. Forward: add the ranks' partial sums
    up, each rank taking its tokens. Backward: all-gather."""

    @staticmethod
    def forward(ctx: Any, partial_sums: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return scatter_sum(partial_sums, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return gather_tokens(grad, ctx.group), None


def gather_tokens(x: Tensor, group: Any) -> Tensor:
    """All-gather along the tokens: ``[s/n, b, h]`` to ``[s, b, h]``."""
    whole = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    all_gather_single(whole, x.contiguous(), group=group)
    return whole


def scatter_sum(x: Tensor, group: Any) -> Tensor:
    """Reduce-scatter along the tokens: ``[s, b, h]`` to ``[s/n, b, h]``."""
    share = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    reduce_scatter_single(share, x.contiguous(), group=group)
    return share


# ---- the layer, whole and cut ----


@dataclass(frozen=True)
class Streams:
    """Where dropout draws from: outside the split part, and inside it. None: no dropout there."""

    whole: torch.Generator | None = None
    split: torch.Generator | None = None


def dropout(x: Tensor, stream: torch.Generator | None) -> Tensor:
    """Dropout from a stream of its own; what it keeps for the backward pass is a mask of one byte per entry."""
    if stream is None:
        return x
    kept = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    kept.bernoulli_(1 - DROPOUT, generator=stream)
    return x * kept / (1 - DROPOUT)


def attend(query: Tensor, key: Tensor, value: Tensor, width: int, streams: Streams) -> Tensor:
    """Attention over whole heads of ``width``: ``[s, b, heads width]`` each, however many heads there are."""
    # [b, heads, s, width]
    query, key, value = [x.unflatten(-1, (-1, width)).permute(1, 2, 0, 3) for x in (query, key, value)]
    scores = (query @ key.transpose(-1, -2) / width**0.5).softmax(-1)
    mixed = dropout(scores, streams.split) @ value
    return mixed.permute(2, 0, 1, 3).flatten(-2)


class Attention(nn.Module):
    """Attention as anyone would write it for one process."""

    def __init__(self, hidden: int, heads: int, streams: Streams) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.o = nn.Linear(hidden, hidden)
        self.width, self.streams = hidden // heads, streams

    def forward(self, x: Tensor) -> Tensor:
        return self.o(attend(self.q(x), self.k(x), self.v(x), self.width, self.streams))


class Mlp(nn.Module):
    """The MLP as anyone would write it for one process."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class WholeLayer(nn.Module):
    """One transformer layer, uncut: what everything is compared with, and what DTensor cuts. x: ``[s, b, h]``."""

    def __init__(self, hidden: int, heads: int, streams: Streams) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.mlp = Attention(hidden, heads, streams), Mlp(hidden)
        self.streams = streams

    def forward(self, x: Tensor) -> Tensor:
        x = x + dropout(self.attention(self.norm1(x)), self.streams.whole)
        return x + dropout(self.mlp(self.norm2(x)), self.streams.whole)


class Parts(nn.Module):
    """What a rank holds of a layer that is cut: its part of each linear, the norms whole."""

    def __init__(self, whole: WholeLayer, group: Any, sequence: bool, streams: Streams) -> None:
        super().__init__()
        self.group, self.sequence, self.streams = group, sequence, streams
        self.width = whole.attention.width
        self.norm1, self.norm2 = copy.deepcopy(whole.norm1), copy.deepcopy(whole.norm2)
        mine = parts(whole, group, torch.detach)
        self.linears = nn.ParameterDict({name: nn.Parameter(mine[name].clone()) for name in mine})

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """This rank's weight and bias of a linear."""
        return self.linears[f"{name}_weight"], self.linears[f"{name}_bias"]

    def shared(self) -> list[nn.Parameter]:
        """The parameters that every rank holds whole."""
        biases = [self.linears["o_bias"], self.linears["down_bias"]]
        return [*self.norm1.parameters(), *self.norm2.parameters(), *biases]


class SplitLayer(Parts):
    """The layer cut by hand: this rank's heads, its part of the MLP.

    x: [s, b, h], the same on every rank; with ``sequence`` [s/n, b, h].
    """

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm1(x))
        x = x + dropout(attended, self.streams.whole)
        return x + dropout(self.mlp(self.norm2(x)), self.streams.whole)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.enter(x, "qkv").chunk(3, dim=-1)  # [s, b, h/n]
        mixed = attend(q, k, v, self.width, self.streams)
        return self.leave(mixed, "o")

    def mlp(self, x: Tensor) -> Tensor:
        wide = F.gelu(self.enter(x, "up"))  # [s, b, 4h/n]
        return self.leave(wide, "down")

    def enter(self, x: Tensor, name: str) -> Tensor:
        """A linear cut by its outputs: the columns of the papers' A."""
        weight, bias = self.part(name)
        if self.sequence:
            return GatherLinear.apply(x, weight, bias, self.group)
        return F.linear(CopyIn.apply(x, self.group), weight, bias)

    def leave(self, x: Tensor, name: str) -> Tensor:
        """A linear cut by its inputs, the rows; the bias comes once."""
        weight, bias = self.part(name)
        add_up = ScatterSum if self.sequence else AddUp
        return add_up.apply(F.linear(x, weight), self.group) + bias


def parts(whole: WholeLayer, group: Any, of: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """This rank's part of each linear's weight and bias, or of what ``of`` takes from them, such as the gradient.

    torch keeps a weight as [outputs, inputs]: the columns of the papers' matrix are the rows of this one.
    """
    rank, n = group.rank(), group.size()
    attention, mlp = whole.attention, whole.mlp
    by_heads = (attention.q, attention.k, attention.v)

    def outputs(tensor: Tensor) -> Tensor:
        return of(tensor).chunk(n, dim=0)[rank]

    def inputs(tensor: Tensor) -> Tensor:
        return of(tensor).chunk(n, dim=1)[rank]

    return {
        "qkv_weight": torch.cat([outputs(layer.weight) for layer in by_heads]),
        "qkv_bias": torch.cat([outputs(layer.bias) for layer in by_heads]),
        "o_weight": inputs(attention.o.weight),
        "o_bias": of(attention.o.bias),
        "up_weight": outputs(mlp.up.weight),
        "up_bias": outputs(mlp.up.bias),
        "down_weight": inputs(mlp.down.weight),
        "down_bias": of(mlp.down.bias),
    }


def dtensor_plan(sequence: bool, prepared: bool) -> dict[str, Any]:
    """The same cut as a plan for ``parallelize_module``: by columns, then by rows; the ranks' tokens between."""
    outside = Shard(0) if sequence else Replicate()
    enter = {"input_layouts": (outside,), "desired_input_layouts": (Replicate(),)}
    plan = {
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(output_layouts=outside),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=outside),
    }
    if sequence:
        plan |= {name: SequenceParallel(sequence_dim=0) for name in ("norm1", "norm2")}
    if prepared:
        plan |= {name: PrepareModuleInput(**enter) for name in ("attention", "mlp")}
    return plan


# ---- the stages ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    bench = Bench(ctx)
    several = [n for n in ctx.params["teams"] if n > 1]
    stages = [
        *[
            Stage(
                "layers",
                f"layer {how}, {layout} parallel, {ranks_words(n)}",
                partial(bench.layer, n, how, layout),
            )
            for n in ctx.params["teams"]
            for how, layout in WAYS
            # On one rank DTensor leaves the layer as it is.
            if n > 1 or how == "by hand"
        ],
        *[
            Stage("orders", f"MLP {order}, {ranks_words(n)}", partial(bench.order, n, order))
            for n in several
            for order in ORDERS
        ],
        *[Stage("dropout", f"dropout's seeds, {ranks_words(n)}", partial(bench.seeds, n)) for n in several],
        *[Stage("loss", f"split cross-entropy, {ranks_words(n)}", partial(bench.loss, n)) for n in several],
    ]
    return run_stages(ctx, stages, dropout_rate=DROPOUT)


class Bench:
    """The uncut layer with its results on this rank, and what is compared with them.

    Every rank builds the same layer, input and output gradient from the same seeds.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx, params = ctx, ctx.params
        self.hidden, self.heads = params["hidden"], params["heads"]
        shape = params["sequence"], params["micro_batch"], self.hidden
        self.whole = self.build_whole(Streams())
        self.x, self.grad = self.random(1, shape), self.random(2, shape)
        x = self.x.clone().requires_grad_()
        y = self.whole(x)
        y.backward(self.grad)
        self.y, self.x_grad = y.detach(), x.grad

    def random(self, seed: int, shape: tuple[int, ...]) -> Tensor:
        """The same numbers on every rank."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.ctx.device)

    def build_whole(self, streams: Streams) -> WholeLayer:
        """The uncut layer; its norms' parameters are drawn too, lest a slip in them hides behind ones and zeros."""
        torch.manual_seed(0)
        layer = WholeLayer(self.hidden, self.heads, streams)
        for parameter in (*layer.norm1.parameters(), *layer.norm2.parameters()):
            nn.init.normal_(parameter, mean=0.5)
        layer.to(self.ctx.device)
        return layer

    def streams(self, group: Any, whole: str, split: str) -> Streams:
        """Dropout's streams with a seed that the ranks share, or one of each rank's own."""
        seeds = {"shared": 1234, "own": 4321 + group.rank()}
        whole_stream, split_stream = (
            torch.Generator(self.ctx.device).manual_seed(seeds[kind]) for kind in (whole, split)
        )
        return Streams(whole_stream, split_stream)

    def cut(self, group: Any, how: str, layout: str, streams: Streams | None = None) -> nn.Module:
        """The layer cut over ``group``."""
        sequence = layout == "sequence"
        if how == "by hand":
            return SplitLayer(self.whole, group, sequence, streams or Streams()).to(self.ctx.device)
        mesh = DeviceMesh.from_group(group, self.ctx.device.type)
        plan = dtensor_plan(sequence, prepared=how == "DTensor")
        return parallelize_module(self.build_whole(streams or Streams()), mesh, plan)

    def layer(self, n: int, how: str, layout: str) -> list[dict[str, Any]]:
        """The layer cut over ``n`` ranks: how far from the uncut one, its collectives, bytes sent, bytes kept."""
        group = self.ctx.team(n)
        step, mine = None, None
        if group is not None:
            model = self.cut(group, how, layout)
            mine_of = _own_tokens(group) if layout == "sequence" else _everything
            x, grad = mine_of(self.x).clone().requires_grad_(), mine_of(self.grad)
            step = partial(_forward_backward, model, x, grad)
            with CommDebugMode() as mode:
                y = step()
            mine = {
                "calls": _calls(mode),
                "output_gap": relative_gap([y], [mine_of(self.y)]),
                "input_gap": relative_gap([x.grad], [mine_of(self.x_grad)]),
                "weight_gap": self.weight_gap(model, group, layout),
                "saved": self.saved_bytes(group, how, layout),
            }
        sent = count_sent(self.ctx, step)
        rows = members(self.ctx, mine)
        gaps = {key: worst([row[key] for row in rows]) for key in rows[0] if key.endswith("_gap")}
        return [
            {
                "ranks": n,
                "how": how,
                "layout": layout,
                **gaps,
                "calls": rows[0]["calls"],
                "kernel": sent and sent[:n],
                "saved": max(row["saved"] for row in rows),
            }
        ]

    def weight_gap(self, model: nn.Module, group: Any, layout: str) -> float:
        """The largest difference of the parameters' gradients from the uncut layer's, against the largest of those."""
        if isinstance(model, SplitLayer):
            if layout == "sequence":
                sum_shared_gradients(model)
            expected = parts(self.whole, group, _gradient)
            norms = [*self.whole.norm1.parameters(), *self.whole.norm2.parameters()]
            mine = [*model.norm1.parameters(), *model.norm2.parameters()]
            pairs = [(model.linears[name].grad, expected[name]) for name in expected]
            pairs += [(one.grad, other.grad) for one, other in zip(mine, norms, strict=True)]
        else:
            # full_tensor() gathers a shard, and adds up the partial sums that SequenceParallel leaves.
            whole = dict(self.whole.named_parameters())
            pairs = [(_full(own.grad), whole[name].grad) for name, own in model.named_parameters()]
        return relative_gap(*zip(*pairs, strict=True))

    def saved_bytes(self, group: Any, how: str, layout: str) -> int:
        """Bytes that the layer keeps from forward to backward on this rank, dropout on."""
        whole_seed = "own" if layout == "sequence" else "shared"
        model = self.cut(group, how, layout, self.streams(group, whole_seed, "own"))
        x = _own_tokens(group)(self.x) if layout == "sequence" else self.x
        kept = saved_tensors(partial(model, x.clone().requires_grad_()))
        weights = {_local(parameter).untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
        return sum(size for address, size in storages.items() if address not in weights)

    def order(self, n: int, order: str) -> list[dict[str, Any]]:
        """The MLP without its biases, cut in one order: how far from the uncut one, and bytes sent."""
        group = self.ctx.team(n)
        step, mine = None, None
        if group is not None:
            up, down = self.whole.mlp.up.weight.detach(), self.whole.mlp.down.weight.detach()
            x, expected = self.x.clone().requires_grad_(), self.x.clone().requires_grad_()
            uncut = F.linear(F.gelu(F.linear(expected, up)), down)
            uncut.backward(self.grad)
            step = partial(
                _forward_backward, partial(ORDERS[order], up=up, down=down, group=group), x, self.grad
            )
            mine = {
                "output_gap": relative_gap([step()], [uncut]),
                "input_gap": relative_gap([x.grad], [expected.grad]),
            }
        sent = count_sent(self.ctx, step)
        rows = members(self.ctx, mine)
        gaps = worst_of_rows(rows)
        return [{"ranks": n, "order": order, **gaps, "kernel": sent and sent[:n]}]

    def seeds(self, n: int) -> list[dict[str, Any]]:
        """Dropout under right and wrong seeds: do the copies of the output agree, do the ranks drop alike?"""
        return [self._seeds(n, *seeds) for seeds in SEEDS]

    def _seeds(self, n: int, name: str, whole: str, split: str) -> dict[str, Any]:
        group = self.ctx.team(n)
        mine = None
        if group is not None:
            model = self.cut(group, "by hand", "tensor", self.streams(group, whole, split))
            outputs: list[Tensor] = []
            kept = saved_tensors(lambda: outputs.append(model(self.x.clone().requires_grad_())))
            # Of the layer's three masks the scores' is the one with four dims.
            mask = next(tensor for tensor in kept if tensor.dtype == torch.bool and tensor.dim() == 4)
            first_y, first_mask = outputs[0].detach().clone(), mask.byte()
            for tensor in (first_y, first_mask):
                dist.broadcast(tensor, src=0, group=group)
            mine = {
                "apart": relative_gap([outputs[0]], [first_y]),
                "alike": (mask.byte() == first_mask).float().mean().item(),
                "entries": mask.numel(),
            }
        rows = members(self.ctx, mine)[1:]
        return {
            "ranks": n,
            "seeds": name,
            "split": split,
            "whole": whole,
            "apart": worst([row["apart"] for row in rows]),
            "alike": sum(row["alike"] for row in rows) / len(rows),
            "entries": sum(row["entries"] for row in rows),
        }

    def loss(self, n: int) -> list[dict[str, Any]]:
        """Cross-entropy over logits cut by the vocabulary: equal to the uncut one, and bytes sent."""
        group = self.ctx.team(n)
        vocabulary = padded_vocabulary(VOCABULARY, n, multiple=64)
        step, mine = None, None
        if group is not None:
            whole = self.random(3, (LOSS_TOKENS, vocabulary)).requires_grad_()
            targets = torch.arange(LOSS_TOKENS, device=self.ctx.device) * 7 % vocabulary
            expected = F.cross_entropy(whole, targets, reduction="none")
            expected.mean().backward()
            cut = partial(torch.chunk, chunks=n, dim=1)
            logits = cut(whole.detach())[group.rank()].clone().requires_grad_()
            step = partial(VocabularyCrossEntropy.apply, logits, targets, group)
            losses = step()
            losses.mean().backward()
            mine = {
                "loss_gap": relative_gap([losses], [expected]),
                "gradient_gap": relative_gap([logits.grad], [cut(_gradient(whole))[group.rank()]]),
            }
        sent = count_sent(self.ctx, step)
        rows = members(self.ctx, mine)
        gaps = worst_of_rows(rows)
        sizes = {"tokens": LOSS_TOKENS, "vocabulary": vocabulary}
        return [{"ranks": n, **sizes, **gaps, "kernel": sent and sent[:n]}]


# ---- the MLP in the right and in the wrong order; x: [s, b, h], up: [4h, h], down: [h, 4h] ----


def columns_then_rows(x: Tensor, up: Tensor, down: Tensor, group: Any) -> Tensor:
    """Megatron-LM's order: nothing travels between the two matrices."""
    wide = F.gelu(F.linear(CopyIn.apply(x, group), share(up, 0, group)))
    return AddUp.apply(F.linear(wide, share(down, 1, group)), group)


def without_copy_in(x: Tensor, up: Tensor, down: Tensor, group: Any) -> Tensor:
    """f forgotten: the output is right, and the gradient of x is a part."""
    wide = F.gelu(F.linear(x, share(up, 0, group)))
    return AddUp.apply(F.linear(wide, share(down, 1, group)), group)


def rows_then_columns(x: Tensor, up: Tensor, down: Tensor, group: Any) -> Tensor:
    """The reverse is right too, and pays for the wide tensor's sums."""
    mine = SliceIn.apply(x, group)  # [s, b, h/n]
    wide = AddUp.apply(F.linear(mine, share(up, 1, group)), group)
    wide = CopyIn.apply(F.gelu(wide), group)  # [s, b, 4h]
    return GatherOut.apply(F.linear(wide, share(down, 0, group)), group)


def gelu_of_partial_sums(x: Tensor, up: Tensor, down: Tensor, group: Any) -> Tensor:
    """GELU before the sum: gelu(a) + gelu(b) is not gelu(a + b)."""
    mine = SliceIn.apply(x, group)
    wide = AddUp.apply(F.gelu(F.linear(mine, share(up, 1, group))), group)
    wide = CopyIn.apply(wide, group)
    return GatherOut.apply(F.linear(wide, share(down, 0, group)), group)


ORDERS: dict[str, Callable[..., Tensor]] = {
    "columns, then rows": columns_then_rows,
    "columns, then rows, without f": without_copy_in,
    "rows, then columns": rows_then_columns,
    "rows, then columns, GELU before the sum": gelu_of_partial_sums,
}


def share(tensor: Tensor, dim: int, group: Any) -> Tensor:
    """This rank's part of a tensor that every rank holds."""
    return tensor.chunk(group.size(), dim=dim)[group.rank()]


def gather_columns(x: Tensor, group: Any) -> Tensor:
    """All-gather along the last dim."""
    pieces = gather_tokens(x, group).chunk(group.size(), dim=0)
    return torch.cat(pieces, dim=-1)


class SliceIn(torch.autograd.Function):
    """Forward: this rank's columns of x. Backward: all-gather them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return share(x, -1, group).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return gather_columns(grad, ctx.group), None


class GatherOut(torch.autograd.Function):
    """Forward: all-gather the ranks' columns. Backward: take one's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return gather_columns(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return share(grad, -1, ctx.group).contiguous(), None


class VocabularyCrossEntropy(torch.autograd.Function):
    """Each token's loss from logits cut by the vocabulary: [T, V/n].

    One maximum and two sums per token travel; the logits never do.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Any) -> Tensor:
        width = logits.shape[1]
        index = targets - group.rank() * width
        mine = (index >= 0) & (index < width)  # targets in our part
        index = index.clamp(0, width - 1)[:, None]
        top = logits.max(dim=1).values
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shifted = logits - top[:, None]
        target = shifted.gather(1, index)[:, 0] * mine
        total = shifted.exp().sum(dim=1)
        dist.all_reduce(target, group=group)
        dist.all_reduce(total, group=group)
        softmax = shifted.exp() / total[:, None]
        ctx.save_for_backward(softmax, index, mine)
        return total.log() - target

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        softmax, index, mine = ctx.saved_tensors
        hit = mine[:, None].to(softmax.dtype)
        hot = torch.zeros_like(softmax).scatter_(1, index, hit)
        return grad[:, None] * (softmax - hot), None, None


# ---- measuring ----


def sum_shared_gradients(layer: SplitLayer) -> None:
    """With sequence parallelism a rank has seen its tokens only: add up the gradients of what all ranks hold."""
    for parameter in layer.shared():
        dist.all_reduce(parameter.grad, group=layer.group)


def saved_tensors(forward: Callable[[], object]) -> list[Tensor]:
    """The tensors that autograd keeps for the backward pass of ``forward``, a DTensor's as this rank's part."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(_local(tensor))
        return tensor

    with saved_tensors_hooks(keep, _everything):
        forward()
    return kept


def _forward_backward(model: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> Tensor:
    """One forward and backward pass; gradients are made anew."""
    for tensor in (x, *(model.parameters() if isinstance(model, nn.Module) else ())):
        tensor.grad = None
    y = model(x)
    y.backward(grad)
    return y


def _calls(mode: CommDebugMode) -> dict[str, int]:
    """Collective calls by kind: DTensor's have other names than ``torch.distributed``'s."""
    names = {
        "all_reduce": ("all_reduce", "allreduce_"),
        "all_gather": ("all_gather_into_tensor", "_allgather_base_"),
        "reduce_scatter": ("reduce_scatter_tensor", "_reduce_scatter_base_"),
    }
    counts = {str(op).rpartition(".")[2]: calls for op, calls in mode.get_comm_counts().items()}
    calls = {kind: sum(counts.get(name, 0) for name in ours) for kind, ours in names.items()}
    return {**calls, "other": sum(counts.values()) - sum(calls.values())}


def _everything(tensor: Tensor) -> Tensor:
    return tensor


def _own_tokens(group: Any) -> Callable[[Tensor], Tensor]:
    return partial(share, dim=0, group=group)


def _gradient(tensor: Tensor) -> Tensor:
    grad: Tensor = tensor.grad
    return grad


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Tensor) -> Tensor:
    local = tensor.detach()
    return local.to_local() if isinstance(local, DTensor) else local
