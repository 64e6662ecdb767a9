"""What every rank of the ring lab runs: an all-reduce written by hand, checked, counted and timed beside torch's.

The functions to read are :func:`ring_allreduce` and :func:`ring_step`. The raw measurements, without the tables::

    python -m shardlab.labs shardlab.labs.ring_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "sizes": [16384, 1048576], "repeats": 12}'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.labs.measure import Stage, count_sent, median_time_s, members, run_stages
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words

Chunks = tuple[Tensor, ...]

FP32_BYTES = 4
# Fewer elements than ranks (chunks of none), a length that divides by nothing, and a large one.
ELEMENTS = (1, 1009, 2**18)
# Chunks that differ by one element on 4 ranks.
STEP_ELEMENTS = 2**18 + 2
# Sums of these over 64 ranks stay far inside 64 bits.
LARGEST_INTEGER = 2**40


def ring_allreduce(buffer: Tensor, group: Any = None) -> int:
    """Sum a contiguous buffer over all ranks, in place; bytes sent."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    # N views into the buffer; their sizes differ by at most one element.
    chunks = buffer.view(-1).tensor_split(n)
    sent = 0
    for step in range(2 * (n - 1)):
        sent += ring_step(chunks, step, rank, group)
    return sent


def ring_step(chunks: Chunks, step: int, rank: int, group: Any = None) -> int:
    """Send one chunk to the right, receive one from the left; bytes sent."""
    n = len(chunks)
    adding = step < n - 1  # first N-1 steps: reduce-scatter, then all-gather
    shift = step if adding else step - n
    outgoing = chunks[(rank - shift) % n]
    incoming = chunks[(rank - shift - 1) % n]
    arriving = torch.empty_like(incoming) if adding else incoming
    right, left = (rank + 1) % n, (rank - 1) % n
    both = [
        dist.P2POp(dist.isend, outgoing, group=group, group_peer=right),
        dist.P2POp(dist.irecv, arriving, group=group, group_peer=left),
    ]
    # All ranks send at once: with a plain send first, all might wait forever.
    for transfer in dist.batch_isend_irecv(both):
        transfer.wait()
    if adding:
        incoming += arriving
    return int(outgoing.nbytes)


def root_allreduce(buffer: Tensor, group: Any = None) -> int:
    """The naive way: all to rank 0, the sum back to all; bytes sent."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank != 0:
        dist.send(buffer, group_dst=0, group=group)
        dist.recv(buffer, group_src=0, group=group)
        return int(buffer.nbytes)
    arriving = torch.empty_like(buffer)
    for other in range(1, n):
        dist.recv(arriving, group_src=other, group=group)
        buffer += arriving
    for other in range(1, n):
        dist.send(buffer, group_dst=other, group=group)
    return int((n - 1) * buffer.nbytes)


def library_allreduce(buffer: Tensor, group: Any = None) -> None:
    """torch's own; it doesn't tell what it sends."""
    dist.all_reduce(buffer, group=group)


METHODS: dict[str, Callable[..., int | None]] = {
    "ring": ring_allreduce,
    "library": library_allreduce,
    "root": root_allreduce,
}


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    teams, sizes = ctx.params["teams"], ctx.params["sizes"]
    stages = [
        *[
            Stage("equality", f"compared with one process, {ranks_words(n)}", partial(check_equality, ctx, n))
            for n in teams
        ],
        Stage("steps", "the ring step by step", partial(count_steps, ctx)),
        *[Stage("wire", f"bytes on the wire, {ranks_words(n)}", partial(count_bytes, ctx, n)) for n in teams],
        *[
            Stage("times", f"times, {ranks_words(n)}, {size:,} bytes", partial(time_size, ctx, n, size))
            for n in teams[1:] or teams
            for size in sizes
        ],
    ]
    return run_stages(ctx, stages, step_elements=STEP_ELEMENTS)


def check_equality(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Every method on ``n`` ranks against the sum on one process, for integers and for floats."""
    group = ctx.team(n)
    return [_compare(ctx, n, group, method, elements) for method in METHODS for elements in ELEMENTS]


def _compare(ctx: Context, n: int, group: Any, method: str, elements: int) -> dict[str, Any]:
    mine = None
    if group is not None:
        integers, floats = whole_inputs(ctx, n, elements)
        summed, added = integers[ctx.rank].clone(), floats[ctx.rank].clone()
        METHODS[method](summed, group)
        sent = METHODS[method](added, group)
        # float64 keeps 29 bits more than float32: its sum stands for the exact one.
        exact, scale = floats.double().sum(0), floats.double().abs().sum(0)
        rank_0 = added.clone()
        dist.broadcast(rank_0, group_src=0, group=group)
        mine = {
            "integer_gap": (summed - integers.sum(0)).abs().max().item(),
            "float_gap": ((added.double() - exact).abs() / scale).max().item(),
            "same_bits": torch.equal(added, rank_0),
            "sent": sent,
        }
    rows = members(ctx, mine)
    payload = [row["sent"] for row in rows]
    return {
        "ranks": n,
        "method": method,
        "elements": elements,
        "integer_gap": max(row["integer_gap"] for row in rows),
        # Python's max() may drop a NaN, torch's doesn't.
        "float_gap": torch.tensor([row["float_gap"] for row in rows], dtype=torch.float64).max().item(),
        "same_bits": all(row["same_bits"] for row in rows),
        "payload_bytes": None if None in payload else payload,
    }


def whole_inputs(ctx: Context, n: int, elements: int) -> tuple[Tensor, Tensor]:
    """Every rank's buffer, integers and floats, ``[n, elements]`` each: the same on all ranks, to add on one process."""
    generator = torch.Generator().manual_seed(elements)
    integers = torch.randint(-LARGEST_INTEGER, LARGEST_INTEGER, (n, elements), generator=generator)
    floats = torch.randn(n, elements, generator=generator)
    return integers.to(ctx.device), floats.to(ctx.device)


def count_steps(ctx: Context) -> list[dict[str, Any]]:
    """Bytes that each rank sends in each step of a ring over all ranks."""
    chunks = torch.zeros(STEP_ELEMENTS, device=ctx.device).tensor_split(ctx.ranks)
    ring_allreduce(torch.zeros(ctx.ranks, device=ctx.device))  # opens the connections
    return [_count_step(ctx, chunks, step) for step in range(2 * (ctx.ranks - 1))]


def _count_step(ctx: Context, chunks: Chunks, step: int) -> dict[str, Any]:
    payload: list[int] = []
    kernel = count_sent(ctx, lambda: payload.append(ring_step(chunks, step, ctx.rank)))
    return {"step": step, "payload_bytes": ctx.gather(payload[0]), "kernel_bytes": kernel}


def count_bytes(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Bytes that each rank sends in one all-reduce on ``n`` ranks, for each size and method."""
    group = ctx.team(n)
    return [_count_one(ctx, n, group, size, method) for size in ctx.params["sizes"] for method in METHODS]


def _count_one(ctx: Context, n: int, group: Any, size: int, method: str) -> dict[str, Any]:
    action, payload = None, []
    if group is not None:
        buffer = torch.zeros(size // FP32_BYTES, device=ctx.device)
        METHODS[method](buffer, group)  # opens the connections
        action = lambda: payload.append(METHODS[method](buffer, group))  # noqa: E731
    kernel = count_sent(ctx, action)
    sent = [row["sent"] for row in members(ctx, {"sent": payload[0]} if payload else None)]
    return {
        "ranks": n,
        "n_bytes": size,
        "method": method,
        "payload_bytes": None if None in sent else sent,
        "kernel_bytes": kernel and kernel[:n],
    }


def time_size(ctx: Context, n: int, size: int) -> list[dict[str, Any]]:
    """Median seconds of one all-reduce on ``n`` ranks by each method, as the slowest rank sees it."""
    group = ctx.team(n)
    return [
        {"ranks": n, "n_bytes": size, "method": method, "seconds": _time_one(ctx, group, size, method)}
        for method in METHODS
    ]


def _time_one(ctx: Context, group: Any, size: int, method: str) -> float:
    mine = None
    if group is not None:
        buffer = torch.zeros(size // FP32_BYTES, device=ctx.device)
        reduce = partial(METHODS[method], buffer, group)
        mine = median_time_s(ctx, reduce, repeats=ctx.params["repeats"], group=group)
    return float(max(members(ctx, mine)))
