"""What every rank of the expert-parallel lab runs: a mixture of experts over ranks, checked, counted and trained.

The code to read is :func:`mixture`, with :func:`through_experts`. The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.expert_parallel_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "tokens": 512, "experts": 8, "top_k": 2, "skew": 1.0, "factors": [1.0, 1.25, 2.0],
          "steps": 40, "balance_weight": 0.1}'
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from shardlab.labs.alltoall import all_to_all_rows
from shardlab.labs.expert_parallel import HIDDEN
from shardlab.labs.measure import (
    Stage,
    count_sent,
    largest_gap,
    members,
    relative_gap,
    run_stages,
    worst,
)
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words
from shardlab.models.expert import expert_capacity

EXPERT_FFN = 2 * HIDDEN
# How much stronger a token's part in its expert's direction is than the noise around it.
SIGNAL = 20.0
# An output that differs by more has lost an expert's result; rounding stays far below.
TOUCHED = 1e-5
LEARNING_RATE = 3e-3
# How strongly the untrained router of the training stage leans towards the first experts.
LEANING = 2.0


# ---- the layer ----


@dataclass(frozen=True)
class Layer:
    """A mixture of experts.

    Attributes:
        router: ``[h, E]``, on every rank.
        up, down: the experts on this rank, ``[E / N, h, f]`` and ``[E / N, f, h]``.
    """

    router: Tensor
    up: Tensor
    down: Tensor

    @property
    def weights(self) -> list[Tensor]:
        """All of them."""
        return [self.router, self.up, self.down]

    def share(self, rank: int, n: int) -> Layer:
        """What rank ``rank`` of ``n`` holds, as new tensors with room for gradients."""
        held = (self.router, self.up.chunk(n)[rank], self.down.chunk(n)[rank])
        return Layer(*[weight.detach().clone().requires_grad_() for weight in held])


@dataclass(frozen=True)
class Routing:
    """Where tokens go.

    Attributes:
        gates: ``[T, k]``, what each chosen expert's result counts.
        chosen: ``[T, k]``, the experts.
        probabilities: ``[T, E]``, the router's softmax.
    """

    gates: Tensor
    chosen: Tensor
    probabilities: Tensor


def route(x: Tensor, router: Tensor, top_k: int) -> Routing:
    """Choose each token's ``top_k`` most likely experts.

    x: [tokens, hidden]; router: [hidden, experts].
    """
    probabilities = torch.softmax(x @ router, dim=-1)
    gates, chosen = probabilities.topk(top_k)
    if top_k > 1:
        # The chosen ones share 1; a single one keeps its probability,
        # or the router would have no gradient.
        gates = gates / gates.sum(-1, keepdim=True)
    return Routing(gates, chosen, probabilities)


def mixture(
    x: Tensor,
    layer: Layer,
    routing: Routing,
    group: Any,
    capacity: int | None,
) -> Tensor:
    """A mixture of experts that live on the ranks of a group.

    x: [tokens, hidden]. Without a capacity every token travels; with one,
    each expert gets that many slots from this rank, full or not, and what
    doesn't fit is dropped: it adds nothing to the output.
    """
    top_k = routing.chosen.shape[1]
    order = routing.chosen.flatten().argsort(stable=True)  # expert by expert
    sizes = tokens_per_expert(routing, layer.router.shape[1])
    rows = x[order // top_k]  # [tokens * top_k, hidden]
    gates = routing.gates.flatten()[order, None]
    if capacity is not None:
        kept, slots = fitting(sizes, capacity)
        order, gates = order[kept], gates[kept]
        padded = rows.new_zeros(len(sizes) * capacity, rows.shape[1])
        rows = padded.index_copy(0, slots, rows[kept])
        sizes = torch.full_like(sizes, capacity)
    results = through_experts(rows, sizes, layer, group)
    if capacity is not None:
        results = results[slots]
    return torch.zeros_like(x).index_add(0, order // top_k, gates * results)


def through_experts(
    rows: Tensor,
    sizes: Tensor,
    layer: Layer,
    group: Any,
) -> Tensor:
    """Rows to their experts' ranks (dispatch), results back (combine).

    rows: [sum(sizes), hidden], expert by expert; sizes: [experts].
    """
    coming = exchange_sizes(sizes, group)  # [ranks, experts here]
    send = sizes.view_as(coming).sum(1).tolist()
    receive = coming.sum(1).tolist()
    arrived = all_to_all_rows(rows, send, receive, group)
    # From each rank come rows for each expert here.
    blocks = list(arrived.split(coming.flatten().tolist()))
    for expert, (up, down) in enumerate(zip(layer.up, layer.down, strict=True)):
        for block in range(expert, len(blocks), len(layer.up)):
            blocks[block] = F.gelu(blocks[block] @ up) @ down
    return all_to_all_rows(torch.cat(blocks), receive, send, group)


def exchange_sizes(sizes: Tensor, group: Any) -> Tensor:
    """How many rows come from each rank for each expert here: ``[ranks, E / ranks]``."""
    coming = torch.empty_like(sizes)
    dist.all_to_all_single(coming, sizes, group=group)
    return coming.view(dist.get_world_size(group), -1)


def tokens_per_expert(routing: Routing, experts: int) -> Tensor:
    """How many of this rank's tokens want each expert: ``[E]``."""
    return torch.bincount(routing.chosen.flatten(), minlength=experts)


def fitting(sizes: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Which of the rows, expert by expert, find a slot, and which slot of ``E * capacity``."""
    expert = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    place = torch.arange(len(expert), device=sizes.device) - (sizes.cumsum(0) - sizes)[expert]
    kept = place < capacity
    return kept, (expert * capacity + place)[kept]


def dense_mixture(x: Tensor, layer: Layer, routing: Routing) -> Tensor:
    """The same layer the plain way, on one process: every expert computes every token, the gates choose."""
    weights = torch.zeros_like(routing.probabilities).scatter(1, routing.chosen, routing.gates)  # [T, E]
    outputs = torch.stack([F.gelu(x @ up) @ down for up, down in zip(layer.up, layer.down, strict=True)], 1)
    return (weights[..., None] * outputs).sum(1)


def balance_loss(routing: Routing) -> Tensor:
    """The router's extra loss: 1 if balanced, E if all goes to one expert.

    E * sum over experts of (share of tokens) * (mean probability): Fedus
    et al. 2021, equations 4 to 6, over all chosen experts.
    """
    experts = routing.probabilities.shape[1]
    share = tokens_per_expert(routing, experts) / routing.chosen.numel()
    return experts * (share * routing.probabilities.mean(0)).sum()


# ---- tokens whose experts are known ----


def build_layer(ctx: Context) -> Layer:
    """The whole layer; the seed gives every rank the same. Expert i's direction in token space is column i."""
    torch.manual_seed(0)
    experts = ctx.params["experts"]
    directions, _ = torch.linalg.qr(torch.randn(HIDDEN, experts))
    up = torch.randn(experts, HIDDEN, EXPERT_FFN) / HIDDEN**0.5
    down = torch.randn(experts, EXPERT_FFN, HIDDEN) / EXPERT_FFN**0.5
    return Layer(*[weight.to(ctx.device) for weight in (directions, up, down)])


def make_tokens(ctx: Context, layer: Layer, n: int, router: str, top_k: int) -> list[Tensor]:
    """Each of ``n`` ranks' tokens, ``[T, h]``, the same on every rank, made so that the router sends them as asked.

    router: ``"even"``: each expert gets equally many from each rank. ``"uniform"``: at random, all alike.
    ``"skewed"``: at random, expert i with weight ``(i + 1) ** -skew``.
    """
    generator = torch.Generator().manual_seed(1)
    tokens, experts = ctx.params["tokens"], ctx.params["experts"]
    skew = ctx.params["skew"] if router == "skewed" else 0.0
    weights = (torch.arange(experts) + 1.0) ** -skew
    batches = []
    for _ in range(n):
        if router == "even":
            wanted = (torch.arange(tokens)[:, None] * top_k + torch.arange(top_k)) % experts
        else:
            wanted = torch.multinomial(weights.expand(tokens, -1), top_k, generator=generator)
        pull = torch.zeros(tokens, experts).scatter(1, wanted, SIGNAL)
        noise = torch.randn(tokens, HIDDEN, generator=generator)
        batches.append(noise.to(ctx.device) + pull.to(ctx.device) @ layer.router.mT)
    return batches


# ---- the measurements ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    settings = ctx.params
    teams, most, top_k = settings["teams"], settings["teams"][-1], settings["top_k"]
    stages = [
        *[
            Stage(
                "equality", f"top-{k} compared with one process, {ranks_words(n)}", partial(check, ctx, n, k)
            )
            for n in teams
            for k in sorted({1, top_k})
        ],
        *[
            Stage(
                "traffic", f"bytes, {router} router, {ranks_words(n)}", partial(count_bytes, ctx, n, router)
            )
            for n in teams
            for router in ("even", "uniform", "skewed")
        ],
        *[
            Stage(
                "capacity",
                f"capacity factor {factor:g}, {router} router",
                partial(drop, ctx, most, router, factor),
            )
            for router in ("uniform", "skewed")
            for factor in settings["factors"]
        ],
        *[
            Stage("training", f"training, balance loss times {weight:g}", partial(train, ctx, most, weight))
            for weight in (0.0, settings["balance_weight"])
        ],
    ]
    return run_stages(ctx, stages)


def check(ctx: Context, n: int, top_k: int) -> list[dict[str, Any]]:
    """Output and gradients on ``n`` ranks against :func:`dense_mixture` on all tokens; nothing is dropped."""
    group, tokens = ctx.team(n), ctx.params["tokens"]
    rows = []
    for dispatch, capacity in (("dropless", None), ("padded", tokens)):
        mine = None
        if group is not None:
            whole = build_layer(ctx)
            batches = make_tokens(ctx, whole, n, "skewed", top_k)
            slope = torch.randn(n * tokens, HIDDEN, generator=torch.Generator().manual_seed(2)).to(ctx.device)
            whole = whole.share(0, 1)
            everyone = torch.cat(batches).requires_grad_()
            wanted = dense_mixture(everyone, whole, route(everyone, whole.router, top_k))
            grads = torch.autograd.grad(wanted, [everyone, *whole.weights], slope)

            own = slice(ctx.rank * tokens, (ctx.rank + 1) * tokens)
            layer, x = whole.share(ctx.rank, n), everyone.detach()[own].requires_grad_()
            found = mixture(x, layer, route(x, layer.router, top_k), group, capacity)
            own_grads = torch.autograd.grad(found, [x, *layer.weights], slope[own])
            # Every rank has a router, and its tokens' part of the gradient; an expert's ranks have brought it all.
            dist.all_reduce(own_grads[1], group=group)
            wanted_grads = [grads[0][own], grads[1], *[grad.chunk(n)[ctx.rank] for grad in grads[2:]]]
            mine = [
                largest_gap([found], [wanted[own]]),
                # Gradients of weights sum over many tokens: against the largest of each.
                worst([relative_gap([a], [b]) for a, b in zip(own_grads, wanted_grads, strict=True)]),
            ]
        outputs, gradients = zip(*members(ctx, mine), strict=True)
        gaps = {"output_gap": worst(list(outputs)), "gradient_gap": worst(list(gradients))}
        rows.append({"ranks": n, "top_k": top_k, "dispatch": dispatch, **gaps})
    return rows


def count_bytes(ctx: Context, n: int, router: str) -> list[dict[str, Any]]:
    """Tokens on each of ``n`` ranks, and bytes that each sends in a forward and in a backward pass, dropless."""
    group, top_k = ctx.team(n), ctx.params["top_k"]
    mine, actions = None, {}
    if group is not None:
        whole = build_layer(ctx)
        x = make_tokens(ctx, whole, n, router, top_k)[ctx.rank].requires_grad_()
        layer = whole.share(ctx.rank, n)
        routing = route(x, layer.router, top_k)
        sizes = tokens_per_expert(routing, ctx.params["experts"])
        mine = {"sizes": sizes, "here": exchange_sizes(sizes, group).sum()}
        forward = partial(mixture, x, layer, routing, group, None)
        y = forward()
        backward = partial(torch.autograd.grad, y, [x, *layer.weights], torch.ones_like(y), retain_graph=True)
        backward()
        actions = {"forward": forward, "backward": backward}
    found = members(ctx, mine)
    rows = []
    for part in ("forward", "backward"):
        sent = count_sent(ctx, actions.get(part))
        rows.append(
            {
                "ranks": n,
                "router": router,
                "part": part,
                "sizes": [row["sizes"] for row in found],
                "here": [row["here"] for row in found],
                "kernel": sent and sent[:n],
            }
        )
    return rows


def drop(ctx: Context, n: int, router: str, factor: float) -> list[dict[str, Any]]:
    """What a capacity drops, what it sends, and that tokens that were not dropped are as without it."""
    group, top_k, experts = ctx.team(n), ctx.params["top_k"], ctx.params["experts"]
    capacity = expert_capacity(ctx.params["tokens"], experts, top_k, factor)
    mine, forward = None, None
    if group is not None:
        whole = build_layer(ctx)
        x = make_tokens(ctx, whole, n, router, top_k)[ctx.rank]
        layer = whole.share(ctx.rank, n)
        routing = route(x, layer.router, top_k)
        with torch.no_grad():
            complete = mixture(x, layer, routing, group, None)
            limited = mixture(x, layer, routing, group, capacity)
        # Found where it shows: in the output.
        touched = (complete - limited).abs().amax(1) > TOUCHED
        sizes = tokens_per_expert(routing, experts)
        order = routing.chosen.flatten().argsort(stable=True)
        kept, _ = fitting(sizes, capacity)
        dropped = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        dropped[order[~kept] // top_k] = True
        mine = {
            "sizes": sizes,
            "dropped": (~kept).sum(),
            "touched_tokens": touched.sum(),
            "dropped_tokens": dropped.sum(),
            "kept_gap": largest_gap([complete[~dropped]], [limited[~dropped]]) if not dropped.all() else 0.0,
        }
        forward = partial(mixture, x, layer, routing, group, capacity)
    found = members(ctx, mine)
    sent = count_sent(ctx, forward)
    row = {
        "ranks": n,
        "router": router,
        "factor": factor,
        "capacity": capacity,
        "sizes": [row["sizes"] for row in found],
        **{key: sum(row[key] for row in found) for key in ("dropped", "dropped_tokens", "touched_tokens")},
        "kept_gap": worst([row["kept_gap"] for row in found]),
        "kernel": sent and sent[:n],
    }
    return [row]


def train(ctx: Context, n: int, weight: float) -> list[dict[str, Any]]:
    """Train the layer from a router that leans to the first experts; what each rank gets, step by step."""
    group, top_k, experts = ctx.team(n), ctx.params["top_k"], ctx.params["experts"]
    whole = build_layer(ctx)
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(HIDDEN, generator=generator)
    lean = LEANING * (experts - torch.arange(experts, dtype=torch.float32)) / experts
    leaning = (common / common.norm() ** 2)[:, None] * lean
    noise = torch.randn(HIDDEN, experts, generator=generator) / HIDDEN**0.5
    layer = Layer((leaning + noise).to(ctx.device), whole.up, whole.down).share(ctx.rank, n)
    optimizer = torch.optim.Adam(layer.weights, lr=LEARNING_RATE)
    steps = []
    for _ in range(ctx.params["steps"]):
        x = torch.randn(n, ctx.params["tokens"], HIDDEN, generator=generator)[ctx.rank] + common
        x = x.to(ctx.device)
        routing = route(x, layer.router, top_k)
        task = F.mse_loss(mixture(x, layer, routing, group, None), torch.tanh(x.roll(1, dims=1)))
        (task + weight * balance_loss(routing)).backward()
        # Data parallelism: the mean over the ranks' tokens. An expert has summed over all ranks already.
        dist.all_reduce(layer.router.grad, group=group)
        for parameter in layer.weights:
            parameter.grad /= n
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"loss": task.item(), "sizes": tokens_per_expert(routing, experts)})
    # [step, rank]
    found = zip(*members(ctx, steps), strict=True)
    return [
        {
            "weight": weight,
            "step": step,
            "loss": sum(row["loss"] for row in rows) / n,
            "sizes": [sum(column) for column in zip(*[row["sizes"] for row in rows], strict=True)],
        }
        for step, rows in enumerate(found)
    ]
