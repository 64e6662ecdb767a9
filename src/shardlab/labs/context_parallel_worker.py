"""What every rank of the context-parallel lab runs: ring attention by hand, Ulysses, checked, counted and timed.

The code to read is :func:`ring_forward`, with :func:`add_keys`, and :func:`ulysses`. The raw measurements, without
the lab's tables::

    python -m shardlab.labs shardlab.labs.context_parallel_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "sequence": 1536, "heads": 8, "repeats": 5, "splits": ["contiguous", "zigzag"]}'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from shardlab.labs.alltoall import all_to_all_rows
from shardlab.labs.context_parallel import BATCH, HEAD_DIM
from shardlab.labs.measure import (
    Stage,
    count_sent,
    largest_gap,
    median_time_s,
    members,
    run_stages,
    worst_of_rows,
)
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words
from shardlab.models.context import rank_tokens

# Attention goes tile by tile, as fused kernels do: a tile that the mask hides whole costs nothing.
TILE = 64

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
State = tuple[Tensor, Tensor, Tensor]
# True where a query sees a key; None: everywhere.
Mask: TypeAlias = Tensor | None


# ---- the ring ----


@dataclass
class Ring:
    """The ranks that share a sequence, seen from one of them.

    Attributes:
        group: their process group.
        rank, ranks: this one, and how many.
        places: each rank's tokens: their numbers in the sequence, in order.
        unmasked, computed: (query, key) pairs of each ring step of the last forward pass: those that the mask leaves,
            and those in tiles that were computed.
    """

    group: Any
    rank: int
    ranks: int
    places: list[list[int]]
    unmasked: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)

    def owner(self, step: int) -> int:
        """Whose keys and values are here in this step."""
        return (self.rank - step) % self.ranks

    def tiles(self, step: int) -> Iterator[tuple[slice, slice, Mask]]:
        """The tiles of (queries, keys) that the causal mask doesn't hide, each with its mask."""
        mine, theirs = self.places[self.rank], self.places[self.owner(step)]
        for first in range(0, len(mine), TILE):
            queries = mine[first : first + TILE]
            for start in range(0, len(theirs), TILE):
                keys = theirs[start : start + TILE]
                if keys[0] <= queries[-1]:
                    mask: Mask = None
                    if keys[-1] > queries[0]:
                        mask = torch.tensor(queries)[:, None] >= torch.tensor(keys)
                    yield slice(first, first + TILE), slice(start, start + TILE), mask

    def counted_tiles(self, step: int) -> Iterator[tuple[slice, slice, Mask]]:
        """:meth:`tiles`, with their pairs counted where the work is done."""
        if step == 0:
            self.unmasked, self.computed = [0] * self.ranks, [0] * self.ranks
        for rows, columns, mask in self.tiles(step):
            size = len(self.places[self.rank][rows]) * len(self.places[self.owner(step)][columns])
            self.computed[step] += size
            self.unmasked[step] += size if mask is None else int(mask.sum())
            yield rows, columns, mask

    def pass_on(self, block: Tensor) -> Callable[[], Tensor]:
        """Start sending ``block`` to the next rank; returns a function that waits for the previous rank's."""
        arriving = torch.empty_like(block)
        onwards, back = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        messages = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, block, group=self.group, group_peer=onwards),
                dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=back),
            ]
        )

        def wait() -> Tensor:
            for message in messages:
                message.wait()
            return arriving

        return wait


def add_keys(state: State, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
    """Add one tile of keys and values to a softmax that is under way.

    state: the largest score so far and the sum of exp(score - largest), both
    [batch, heads, queries, 1], and the output, [batch, heads, queries, width].
    """
    top, total, out = state
    scores = hide(q @ k.mT / q.shape[-1] ** 0.5, mask)
    higher = torch.maximum(top, scores.amax(-1, keepdim=True))
    fade = torch.exp(top - higher)  # what was summed under the old top
    weights = torch.exp(scores - higher)
    total.mul_(fade).add_(weights.sum(-1, keepdim=True))
    out.mul_(fade).add_(weights @ v)
    top.copy_(higher)


def ring_forward(q: Tensor, kv: Tensor, ring: Ring) -> tuple[Tensor, Tensor]:
    """Attention of this rank's queries to the keys of every rank.

    q: [batch, heads, tokens, width]; kv: [2, batch, heads, tokens, width].
    Returns the output, like q, and log(sum(exp(scores))) per query.
    """
    out = torch.zeros_like(q)
    total = q.new_zeros(*q.shape[:-1], 1)
    top = torch.full_like(total, float("-inf"))
    for step in range(ring.ranks):
        last = step == ring.ranks - 1
        # The next keys and values travel while these are used.
        arrival = None if last else ring.pass_on(kv)
        for rows, columns, mask in ring.counted_tiles(step):
            k, v = kv[..., columns, :]
            state = top[..., rows, :], total[..., rows, :], out[..., rows, :]
            add_keys(state, q[..., rows, :], k, v, mask)
        if arrival is not None:
            kv = arrival()
    return out / total, top + total.log()


def ring_backward(
    q: Tensor, kv: Tensor, out: Tensor, log_total: Tensor, grad: Tensor, ring: Ring
) -> tuple[Tensor, Tensor]:
    """Gradients of q and of this rank's kv, from that of the output.

    The gradient of a block of keys and values is summed up on its way
    around the ring, beside the block, and ends where it began.
    """
    dq, dkv = torch.zeros_like(q), torch.zeros_like(kv)
    shift = (grad * out).sum(-1, keepdim=True)
    for step in range(ring.ranks):
        last = step == ring.ranks - 1
        arrival = None if last else ring.pass_on(kv)
        for rows, columns, mask in ring.tiles(step):
            here = q[..., rows, :], log_total[..., rows, :]
            slopes = grad[..., rows, :], shift[..., rows, :]
            there = kv[..., columns, :], mask
            to_q, to_kv = tile_gradients(*here, *slopes, *there)
            dq[..., rows, :] += to_q
            dkv[..., columns, :] += to_kv
        if ring.ranks > 1:
            dkv = ring.pass_on(dkv)()  # one hop more than kv: home
        if arrival is not None:
            kv = arrival()
    return dq, dkv


def tile_gradients(
    q: Tensor, log_total: Tensor, grad: Tensor, shift: Tensor, kv: Tensor, mask: Mask
) -> tuple[Tensor, Tensor]:
    """What one tile adds to the gradients of its queries, and of its keys and values (stacked)."""
    k, v = kv
    scale = q.shape[-1] ** -0.5
    weights = torch.exp(hide(q @ k.mT * scale, mask) - log_total)  # the softmax, now with its final sum
    slopes = weights * (grad @ v.mT - shift) * scale
    return slopes @ k, torch.stack((slopes.mT @ q, weights.mT @ grad))


def hide(scores: Tensor, mask: Mask) -> Tensor:
    """Minus infinity where the mask is False."""
    return scores if mask is None else scores.masked_fill(~mask.to(scores.device), float("-inf"))


class RingAttention(torch.autograd.Function):  # type: ignore[misc]
    """Causal attention over a ring, for autograd: :func:`ring_forward` and :func:`ring_backward`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: Ring) -> Tensor:
        kv = torch.stack((k, v))
        out, log_total = ring_forward(q, kv, ring)
        ctx.save_for_backward(q, kv, out, log_total)
        ctx.ring = ring
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, out, log_total = ctx.saved_tensors
        dq, (dk, dv) = ring_backward(q, kv, out, log_total, grad, ctx.ring)
        return dq, dk, dv, None


# ---- Ulysses ----


def ulysses(q: Tensor, k: Tensor, v: Tensor, group: Any) -> Tensor:
    """Attention with whole heads: three all-to-alls before it, one after.

    q, k, v: [batch, heads, tokens of this rank, width], tokens in order.
    """
    q, k, v = [tokens_to_heads(x, group) for x in (q, k, v)]
    # [batch, heads / ranks, all tokens, width]: any attention will do.
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return heads_to_tokens(out, group)


def tokens_to_heads(x: Tensor, group: Any) -> Tensor:
    """``[b, a, s/N, d]``, a part of the tokens, to ``[b, a/N, s, d]``, a part of the heads."""
    n = dist.get_world_size(group)
    heads = x.transpose(0, 1)  # rank r gets the r-th part of the rows: heads
    share = [len(heads) // n] * n
    arrived = all_to_all_rows(heads, share, share, group).unflatten(0, (n, -1))
    # [source, a/N, b, s/N, d]: the source rank is the place in the sequence.
    return arrived.permute(2, 1, 0, 3, 4).flatten(2, 3)


def heads_to_tokens(x: Tensor, group: Any) -> Tensor:
    """The way back of :func:`tokens_to_heads`."""
    n = dist.get_world_size(group)
    parts = x.unflatten(2, (n, -1)).permute(2, 1, 0, 3, 4)  # [destination, a/N, b, s/N, d]
    arrived = all_to_all_rows(parts, [1] * n, [1] * n, group)
    return arrived.flatten(0, 1).transpose(0, 1)


# ---- the measurements ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    teams, splits = ctx.params["teams"], ctx.params["splits"]
    stages = [
        *[
            Stage("equality", f"compared with one process, {ranks_words(n)}", partial(check_equality, ctx, n))
            for n in teams
        ],
        *[
            Stage("work", f"work of each rank, {split}, {ranks_words(n)}", partial(count_work, ctx, n, split))
            for n in teams
            for split in splits
        ],
        *[
            Stage("traffic", f"bytes on the wire, {ranks_words(n)}", partial(count_bytes, ctx, n))
            for n in teams
        ],
    ]
    return run_stages(ctx, stages)


def whole_sequence(ctx: Context) -> list[Tensor]:
    """q, k, v and the gradient of the output, ``[b, a, s, d]`` each, the same on every rank."""
    shape = (4, BATCH, ctx.params["heads"], ctx.params["sequence"], HEAD_DIM)
    return list(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(ctx.device))


def make_ring(ctx: Context, n: int, split: str) -> Ring:
    """The first ``n`` ranks with the sequence dealt out by ``split``."""
    places = [
        [place for part in rank_tokens(ctx.params["sequence"], n, rank, split) for place in range(*part)]
        for rank in range(n)
    ]
    return Ring(ctx.team(n), ctx.rank, n, places)


def leaves(ring: Ring, tensors: list[Tensor]) -> list[Tensor]:
    """This rank's tokens of q, k and v, with room for gradients."""
    return [x[:, :, ring.places[ring.rank]].requires_grad_() for x in tensors]


def methods(ctx: Context, n: int) -> list[tuple[str, str]]:
    """(method, split of the tokens) to compare on ``n`` ranks; Ulysses only where the heads divide."""
    rings = [("ring", split) for split in ctx.params["splits"]]
    return [*rings, ("ulysses", "contiguous")] if ctx.params["heads"] % n == 0 else rings


def attention(method: str, ring: Ring) -> Attention:
    """The attention over this ring's ranks by that method."""
    if method == "ulysses":
        return partial(ulysses, group=ring.group)

    def over_ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = RingAttention.apply(q, k, v, ring)
        return out

    return over_ring


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Torch's own, on one process."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def with_gradients(attend: Attention, qkv: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    out = attend(*qkv)
    return [out, *torch.autograd.grad(out, qkv, grad)]


def check_equality(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Each method on ``n`` ranks against the whole sequence on one process; and ranks that never pass keys on."""
    *qkv, grad = whole_sequence(ctx)
    whole = with_gradients(causal_attention, [x.requires_grad_() for x in qkv], grad)
    rows = []
    for method, split in methods(ctx, n):
        ring = make_ring(ctx, n, split)
        mine = None
        if ring.group is not None:
            own = ring.places[ring.rank]
            wanted = [x[:, :, own] for x in whole]
            parts = leaves(ring, [x.detach() for x in qkv])
            found = with_gradients(attention(method, ring), parts, grad[:, :, own])
            silent = causal_attention(*parts)
            mine = {
                "output_gap": largest_gap(found[:1], wanted[:1]),
                "gradient_gap": largest_gap(found[1:], wanted[1:]),
                "silent_gap": largest_gap([silent], wanted[:1]),
            }
        rows.append({"ranks": n, "method": method, "split": split, **worst_of_rows(members(ctx, mine))})
    return rows


def count_work(ctx: Context, n: int, split: str) -> list[dict[str, Any]]:
    """What each of ``n`` ranks computes in each ring step of a forward pass, and how long the pass takes."""
    ring = make_ring(ctx, n, split)
    mine = None
    if ring.group is not None:
        q, k, v, _ = [x[:, :, ring.places[ring.rank]] for x in whole_sequence(ctx)]
        forward = partial(ring_forward, q, torch.stack((k, v)), ring)
        seconds = median_time_s(ctx, forward, repeats=ctx.params["repeats"], group=ring.group)
        mine = {"unmasked": ring.unmasked, "computed": ring.computed, "seconds": seconds}
    return [
        {"ranks": n, "split": split, "rank": rank, **found} for rank, found in enumerate(members(ctx, mine))
    ]


def count_bytes(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Bytes that each of ``n`` ranks sends: one hop of the ring, and each method's forward and backward pass."""
    rows = []
    # How the tokens are dealt changes who computes, not what travels: one of the rings will do.
    for method, split in methods(ctx, n)[1:]:
        ring = make_ring(ctx, n, split)
        parts = (
            ["forward", "backward"] if method == "ulysses" or n == 1 else ["one hop", "forward", "backward"]
        )
        actions = {} if ring.group is None else passes(ctx, method, ring)
        for part in parts:
            if part in actions:
                # Connections open on first use.
                actions[part]()
            sent = count_sent(ctx, actions.get(part))
            rows.append({"ranks": n, "method": method, "part": part, "kernel": sent and sent[:n]})
    return rows


def passes(ctx: Context, method: str, ring: Ring) -> dict[str, Callable[[], object]]:
    """What is counted: one hop of keys and values, the forward pass, the backward pass."""
    *qkv, grad = whole_sequence(ctx)
    parts = leaves(ring, qkv)
    attend = attention(method, ring)
    out = attend(*parts)
    own = grad[:, :, ring.places[ring.rank]]
    kv = torch.stack([x.detach() for x in parts[1:]])

    def hop() -> Tensor:
        return ring.pass_on(kv)()

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*parts)

    def backward() -> object:
        return torch.autograd.grad(out, parts, own, retain_graph=True)

    return {"one hop": hop, "forward": forward, "backward": backward}
