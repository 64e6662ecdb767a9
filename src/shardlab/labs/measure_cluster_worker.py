"""What every rank of ``shardlab measure`` runs: collectives by size, matrix products, memory copies.

Three scopes, as far as the launcher says that there are nodes (``LOCAL_WORLD_SIZE``): ``"node"``, the ranks of each
node among themselves, all nodes at once; ``"across"``, one rank of each node, all such groups at once, so that they
share the node's ports as data parallelism does; ``"all"``, every rank in one group. The raw measurements::

    python -m shardlab.labs shardlab.labs.measure_cluster_worker:worker --ranks 2 --params \
        '{"smallest": 4096, "largest": 1048576, "growth": 4, "repeats": 5, "budget_s": 30, "keep_in": null}'
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.labs import machine
from shardlab.labs.measure import (
    Stage,
    all_gather_single,
    count_sent,
    finish,
    reduce_scatter_single,
    run_stages,
)
from shardlab.labs.measure_result import COLLECTIVES, POINT_TO_POINT
from shardlab.labs.rank import Context

FP32_BYTES = 4
# Ranks agree on a number of calls that fills this long, so that leaving a barrier one by one weighs little.
_BATCH_S = 5e-3
_MOST_CALLS = 20
_FEWEST_REPEATS = 3
_CPU_LARGEST_BYTES, _GPU_LARGEST_BYTES = 2**26, 2**30
# What repeats of one product or copy may take, of all the time: many processors have no bf16 and take seconds.
_DEVICE_SHARE = 0.02
# The buffer whose bytes on the wire are counted: large enough for headers to weigh little.
_COUNTED_BYTES = 2**20
# Rows, inner length and columns: squares, and products as a transformer's layers make them (tokens by width).
_CPU_SHAPES = ((256, 256, 256), (384, 384, 384), (64, 1024, 1024))
_GPU_SHAPES = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 8192, 1024),
    (16384, 8192, 8192),
    (8192, 8192, 28672),
    (8192, 28672, 8192),
)
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_CPU_COPY_BYTES, _GPU_COPY_BYTES = 2**26, 2**30
_SETTING_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_")


@dataclass(frozen=True)
class Team:
    """The group that this rank belongs to in one scope.

    Attributes:
        scope: ``"node"``, ``"across"`` or ``"all"``.
        group: the process group. rank, ranks: this rank's place in it, and its size.
    """

    scope: str
    group: Any
    rank: int
    ranks: int


@dataclass(frozen=True)
class Operation:
    """One collective on buffers of its own.

    Attributes:
        call: runs it once. right: runs it on known numbers and says whether the result is right.
        way: calls of one direction in it; 2 for a message there and back.
    """

    call: Callable[[], object]
    right: Callable[[], bool]
    way: int = 1


class Series:
    """The sizes of one collective in one scope: how much of the time they may take, and when to stop growing.

    Attributes:
        last: the latest size and its seconds.
    """

    def __init__(self, ctx: Context, deadline: float, series_left: int) -> None:
        self._ctx, self._deadline, self._left = ctx, deadline, series_left
        self._ends: float | None = None
        self.last: tuple[int, float] | None = None

    def room_s(self) -> float:
        """Seconds left for this series: its share of what is left of the whole, the same on all ranks."""
        now = time.monotonic()
        if self._ends is None:
            self._ends = now + max(self._deadline - now, 0.0) / self._left
        return -slowest(self._ctx, [now - self._ends])[0]

    def expected_s(self, n_bytes: int) -> float:
        """Seconds that this size will take at the most: a larger buffer takes no more time a byte than the last."""
        if self.last is None:
            return 0.0
        size, seconds = self.last
        return seconds * max(n_bytes / size, 1.0) * (2 + _FEWEST_REPEATS)


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements, one stage after another; rank 0 returns them."""
    deadline = time.monotonic() + ctx.params["budget_s"]
    facts = describe(ctx)
    teams = make_teams(ctx, facts["ranks_per_node"])
    stages = [
        *[
            Stage("matmul", f"matrix products, {dtype}", partial(time_products, ctx, dtype))
            for dtype in _DTYPES
        ],
        Stage("copy", "memory copy", partial(time_copy, ctx)),
        *[
            Stage("wire", f"bytes on the wire, {name}", partial(count_bytes, ctx, teams[-1], name))
            for name in (COLLECTIVES if teams and ctx.backend == "gloo" else ())
        ],
    ]
    kinds = [(team, name) for team in teams for name in COLLECTIVES if worth_timing(team, name, len(teams))]
    for done, (team, name) in enumerate(kinds):
        series = Series(ctx, deadline, len(kinds) - done)
        stages += [
            Stage(
                "timings",
                f"{name}, {team.scope}, {size:,} bytes",
                partial(time_size, ctx, team, name, size, series),
            )
            for size in buffer_sizes(ctx)
        ]
    if ctx.params["keep_in"] and ctx.rank == 0:
        stages = keeping(stages, Path(ctx.params["keep_in"]), facts)
    return run_stages(ctx, stages, **facts)


def worth_timing(team: Team, name: str, teams: int) -> bool:
    """Messages go to the neighbour, who is in the same node: over all ranks they would only repeat that scope."""
    return name != POINT_TO_POINT or team.scope != "all" or teams == 1


def buffer_sizes(ctx: Context) -> list[int]:
    """Bytes, each ``growth`` times the one before; without a largest size, up to what suits the device."""
    fitting = _GPU_LARGEST_BYTES if ctx.device.type == "cuda" else _CPU_LARGEST_BYTES
    sizes = [ctx.params["smallest"]]
    while sizes[-1] * ctx.params["growth"] <= (ctx.params["largest"] or fitting):
        sizes.append(sizes[-1] * ctx.params["growth"])
    return sizes


def keeping(stages: list[Stage], file: Path, facts: dict[str, Any]) -> list[Stage]:
    """The same stages, each writing what is there into ``file``: of ranks that torchrun ends, nothing else is left."""
    kept: dict[str, Any] = {}

    def measure(stage: Stage) -> list[dict[str, Any]]:
        rows = stage.measure()
        kept.setdefault(stage.name, []).extend(rows)
        text = {
            "lab": "measure",
            "complete": False,
            "error": "stopped before its end",
            "partial": {**facts, **kept},
        }
        beside = file.with_name(f"{file.name}.writing")
        beside.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)
        return rows

    return [Stage(stage.name, stage.text, partial(measure, stage)) for stage in stages]


# ---- who is where ----


def describe(ctx: Context) -> dict[str, Any]:
    """Devices, software and nodes, as all ranks see them."""
    mine = {
        "device": device_name(ctx),
        "local_rank": int(os.environ.get("LOCAL_RANK", ctx.rank)),
        "local_ranks": int(os.environ.get("LOCAL_WORLD_SIZE", ctx.ranks)),
    }
    everyone: list[Any] = [None] * ctx.ranks
    dist.all_gather_object(everyone, mine)
    firsts = sorted({rank - facts["local_rank"] for rank, facts in enumerate(everyone)})
    per_node = everyone[0]["local_ranks"]
    even = firsts == list(range(0, ctx.ranks, per_node)) and all(
        facts["local_ranks"] == per_node for facts in everyone
    )
    names = sorted({facts["device"] for facts in everyone})
    on_gpu = ctx.device.type == "cuda"
    return {
        "ranks": ctx.ranks,
        "nodes": len(firsts),
        "ranks_per_node": per_node if even else None,
        "device": {
            "name": mine["device"],
            "kind": ctx.device.type,
            "memory_bytes": device_memory_bytes(ctx),
            "gpus_seen": torch.cuda.device_count(),
            "others": [name for name in names if name != mine["device"]],
        },
        "software": {
            "cuda": torch.version.cuda if on_gpu else None,
            "nccl": ".".join([str(part) for part in torch.cuda.nccl.version()]) if on_gpu else None,
            "settings": {
                name: os.environ[name] for name in sorted(os.environ) if name.startswith(_SETTING_PREFIXES)
            },
        },
    }


def device_name(ctx: Context) -> str:
    """The GPU's name, or the processor's."""
    return (
        str(torch.cuda.get_device_name(ctx.device))
        if ctx.device.type == "cuda"
        else machine.stamp().processor
    )


def device_memory_bytes(ctx: Context) -> int:
    """The GPU's memory, or the machine's; 0 where the system doesn't tell."""
    if ctx.device.type == "cuda":
        return int(torch.cuda.get_device_properties(ctx.device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def make_teams(ctx: Context, per_node: int | None) -> list[Team]:
    """The scopes that these ranks have, the widest last. Every rank makes every group, in the same order."""
    if ctx.ranks == 1:
        return []
    everyone = Team("all", dist.group.WORLD, ctx.rank, ctx.ranks)
    if per_node is None:
        return [everyone]
    if per_node == ctx.ranks:
        return [Team("node", dist.group.WORLD, ctx.rank, ctx.ranks)]
    if per_node == 1:
        return [Team("across", dist.group.WORLD, ctx.rank, ctx.ranks)]
    starts, places = range(0, ctx.ranks, per_node), range(per_node)
    inside = [dist.new_group(list(range(start, start + per_node))) for start in starts]
    across = [dist.new_group(list(range(place, ctx.ranks, per_node))) for place in places]
    node, place = divmod(ctx.rank, per_node)
    return [
        Team("node", inside[node], place, per_node),
        Team("across", across[place], node, len(starts)),
        everyone,
    ]


# ---- collectives ----


def operation(name: str, team: Team, n_bytes: int, device: torch.device) -> Operation:
    """A collective on fp32 buffers; the size is nccl-tests': the whole buffer, not one rank's part."""
    makers = {
        "all-reduce": all_reduce,
        "all-gather": all_gather,
        "reduce-scatter": reduce_scatter,
        "all-to-all": all_to_all,
        POINT_TO_POINT: there_and_back,
    }
    return makers[name](torch.zeros(n_bytes // FP32_BYTES, device=device), team)


def all_reduce(whole: Tensor, team: Team) -> Operation:
    """Rank r brings r + 1 everywhere; all must hold the sum."""

    def call() -> None:
        dist.all_reduce(whole, group=team.group)

    def right() -> bool:
        whole.fill_(team.rank + 1)
        call()
        return holds(whole, team.ranks * (team.ranks + 1) / 2)

    return Operation(call, right)


def all_gather(whole: Tensor, team: Team) -> Operation:
    """Rank r brings r + 1; all must hold 1, 2, ... in the order of ranks."""
    part = torch.zeros(len(whole) // team.ranks, device=whole.device)

    def call() -> None:
        all_gather_single(whole, part, group=team.group)

    def right() -> bool:
        part.fill_(team.rank + 1)
        call()
        return all(holds(chunk, rank + 1) for rank, chunk in enumerate(whole.tensor_split(team.ranks)))

    return Operation(call, right)


def reduce_scatter(whole: Tensor, team: Team) -> Operation:
    """Rank r brings r + 1 everywhere; each must hold the sum in its part."""
    part = torch.zeros(len(whole) // team.ranks, device=whole.device)

    def call() -> None:
        reduce_scatter_single(part, whole, group=team.group)

    def right() -> bool:
        whole.fill_(team.rank + 1)
        call()
        return holds(part, team.ranks * (team.ranks + 1) / 2)

    return Operation(call, right)


def all_to_all(whole: Tensor, team: Team) -> Operation:
    """What rank i sends to rank j says so: i N + j."""
    arrived = torch.zeros_like(whole)

    def call() -> None:
        dist.all_to_all_single(arrived, whole, group=team.group)

    def right() -> bool:
        for rank, chunk in enumerate(whole.tensor_split(team.ranks)):
            chunk.fill_(team.rank * team.ranks + rank)
        call()
        chunks = enumerate(arrived.tensor_split(team.ranks))
        return all(holds(chunk, rank * team.ranks + team.rank) for rank, chunk in chunks)

    return Operation(call, right)


def there_and_back(buffer: Tensor, team: Team) -> Operation:
    """A message to the neighbour and back, one direction at a time; a last rank without a neighbour waits."""
    peer = team.rank ^ 1
    alone, first = peer >= team.ranks, team.rank < peer

    def call() -> None:
        if alone:
            return
        if first:
            dist.send(buffer, group_dst=peer, group=team.group)
            dist.recv(buffer, group_src=peer, group=team.group)
        else:
            dist.recv(buffer, group_src=peer, group=team.group)
            dist.send(buffer, group_dst=peer, group=team.group)

    def right() -> bool:
        # Only the lower rank has the number: it must come to the other, and back.
        buffer.fill_(7.0 if first else 0.0)
        call()
        return alone or holds(buffer, 7.0)

    return Operation(call, right, way=2)


def holds(buffer: Tensor, value: float) -> bool:
    """Whether every element is this number."""
    return bool((buffer == value).all())


def time_size(ctx: Context, team: Team, name: str, size: int, series: Series) -> list[dict[str, Any]]:
    """Median and quartiles of one collective's seconds at one size; a row without seconds if it would take too long."""
    n_bytes = whole_chunks(size, team.ranks)
    row = {"scope": team.scope, "collective": name, "ranks": team.ranks, "n_bytes": n_bytes}
    room = series.room_s()
    if series.expected_s(n_bytes) > room:
        return [{**row, "seconds": None}]
    made = operation(name, team, n_bytes, ctx.device)
    made.call()  # opens the connections
    one, calls = first_calls(ctx, made.call)
    repeats = fitting_repeats(ctx, one * calls, room)
    times = [seconds / made.way for seconds in slowest(ctx, batches(ctx, made.call, calls, repeats))]
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    series.last = n_bytes, middle * made.way
    wrong = slowest(ctx, [0.0 if made.right() else 1.0])[0]
    return [
        {
            **row,
            "seconds": middle,
            "low_s": low,
            "high_s": high,
            "repeats": repeats,
            "calls": calls,
            "correct": wrong == 0,
        }
    ]


def whole_chunks(size: int, ranks: int) -> int:
    """``size`` rounded up to fp32 numbers that divide among the ranks."""
    step = FP32_BYTES * ranks
    return -(-size // step) * step


def first_calls(ctx: Context, action: Callable[[], object]) -> tuple[float, int]:
    """Seconds of one call, the slowest rank's, and how many calls make a batch: the same on all ranks."""
    (one,) = slowest(ctx, batches(ctx, action, 1, 1))
    if one < _BATCH_S:
        # One call may still be warming up; a second costs nothing here.
        one = min(one, *slowest(ctx, batches(ctx, action, 1, 1)))
    return one, max(1, min(_MOST_CALLS, int(_BATCH_S / one)))


def fitting_repeats(ctx: Context, one_s: float, room_s: float) -> int:
    """As many repeats as asked for, fewer if they take longer than there is room, but never so few that they say nothing."""
    return max(_FEWEST_REPEATS, min(int(ctx.params["repeats"]), int(room_s / one_s)))


def batches(ctx: Context, action: Callable[[], object], calls: int, repeats: int) -> list[float]:
    """Seconds of a call on this rank: ``repeats`` batches of ``calls``, each begun by all ranks together."""
    times = []
    devices = [ctx.device.index] if ctx.device.type == "cuda" else None
    for _ in range(repeats):
        dist.barrier(device_ids=devices)
        finish(ctx)
        began = time.perf_counter()
        for _ in range(calls):
            action()
        finish(ctx)
        times.append((time.perf_counter() - began) / calls)
    return times


def slowest(ctx: Context, mine: list[float]) -> list[float]:
    """The largest over all ranks of each number. By the ranks' own network: a store would ask each for each."""
    values = torch.tensor(mine, dtype=torch.float64, device=ctx.device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [float(value) for value in values.tolist()]


def count_bytes(ctx: Context, team: Team, name: str) -> list[dict[str, Any]]:
    """Bytes that each rank sends in one call, by the kernel's count; no row where there is none."""
    n_bytes = whole_chunks(min(_COUNTED_BYTES, buffer_sizes(ctx)[-1]), team.ranks)
    made = operation(name, team, n_bytes, ctx.device)
    made.call()  # opens the connections
    sent = count_sent(ctx, made.call)
    return [] if sent is None else [{"collective": name, "n_bytes": n_bytes, "kernel_bytes": sent}]


# ---- one device ----


def time_products(ctx: Context, dtype: str) -> list[dict[str, Any]]:
    """Seconds of matrix products, all ranks at work at once: of the slowest, the middle and the fastest rank."""
    return [
        {"dtype": dtype, "m": m, "k": k, "n": n, **time_product(ctx, _DTYPES[dtype], m, k, n)}
        for m, k, n in (_GPU_SHAPES if ctx.device.type == "cuda" else _CPU_SHAPES)
    ]


def time_product(ctx: Context, dtype: torch.dtype, m: int, k: int, n: int) -> dict[str, Any]:
    """Seconds of one shape of product."""
    # Numbers, not zeros: a GPU that multiplies zeros draws less power and runs faster than it would in training.
    left = torch.randn(m, k, device=ctx.device).to(dtype)
    right = torch.randn(k, n, device=ctx.device).to(dtype)
    result = torch.empty(m, n, dtype=dtype, device=ctx.device)
    return on_every_rank(ctx, lambda: torch.mm(left, right, out=result))


def time_copy(ctx: Context) -> list[dict[str, Any]]:
    """Seconds to copy a buffer within the device's memory."""
    n_bytes = _GPU_COPY_BYTES if ctx.device.type == "cuda" else _CPU_COPY_BYTES
    source = torch.zeros(n_bytes // FP32_BYTES, device=ctx.device)
    target = torch.ones_like(source)
    return [{"n_bytes": n_bytes, **on_every_rank(ctx, lambda: target.copy_(source))}]


def on_every_rank(ctx: Context, action: Callable[[], object]) -> dict[str, Any]:
    """Median seconds of ``action`` by rank: the slowest with its number, the middle, the fastest."""
    action()
    one, calls = first_calls(ctx, action)
    repeats = fitting_repeats(ctx, one * calls, _DEVICE_SHARE * ctx.params["budget_s"])
    mine = statistics.median(batches(ctx, action, calls, repeats))
    every = torch.empty(ctx.ranks, dtype=torch.float64, device=ctx.device)
    all_gather_single(every, torch.tensor([mine], dtype=torch.float64, device=ctx.device))
    times = every.tolist()
    return {
        "slowest_s": max(times),
        "slowest_rank": times.index(max(times)),
        "middle_s": statistics.median(times),
        "fastest_s": min(times),
    }
