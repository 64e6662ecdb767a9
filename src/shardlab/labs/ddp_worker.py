"""What every rank of the DDP lab runs: real torch DDP, checked, counted and timed on 1, 2, 4, ... ranks.

The step to read is :func:`training_step`. The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.ddp_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "batches": [64, 512], "steps": 12, "micro_steps": 4}'
"""

# Without "from __future__ import annotations": DDP compares a hook's annotations with the types themselves.
import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo  # DDP imports it on first use, over a second: here all ranks share that
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab.labs.measure import (
    Stage,
    count_sent,
    finish,
    largest_gap,
    median_time_s,
    members,
    run_stages,
)
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words

Batch = tuple[Tensor, Tensor]

FEATURES = 1024
LEARNING_RATE = 0.5
EQUALITY_STEPS = 5
SAMPLES_PER_RANK = 8
# DDP orders its buckets anew after its first step, and tells the ranks: neither count nor time that.
WARM_UP_STEPS = 2
COUNTED_STEPS = 3
ALLREDUCE_SIZES = (2**16, 2**18, 2**20, 2**22, 2**23)
ALLREDUCE_REPEATS = 12


def build_model() -> nn.Module:
    """A small MLP; the seed gives every rank the same start."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))


def make_batch(seed: int, size: int) -> Batch:
    """The global batch of one step, the same on every rank: inputs and targets, ``[size, FEATURES]`` each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=generator)
    return x, torch.tanh(x.roll(1, dims=1))


def shard(batch: Batch, rank: int, n_ranks: int) -> Batch:
    """One rank's equal share of a batch: ``[size / n_ranks, FEATURES]`` each."""
    x, y = batch
    return x.chunk(n_ranks)[rank], y.chunk(n_ranks)[rank]


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: list[Batch],
    sync: str = "last",
) -> float:
    """One optimizer step.

    DDP all-reduces after the ``"last"`` micro-batch, after ``"every"`` one,
    or ``"never"``.
    """
    optimizer.zero_grad()
    total = 0.0
    for index, (x, y) in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        quiet = sync == "never" or (sync == "last" and not last)
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = F.mse_loss(model(x), y) / len(micro_batches)
            # In here DDP averages gradients over the ranks, bucket by bucket.
            loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    teams = ctx.params["teams"]
    stages = [
        *[
            Stage("equality", f"compared with one process, {ranks_words(n)}", partial(check_equality, ctx, n))
            for n in teams
        ],
        *[Stage("wire", f"bytes on the wire, {ranks_words(n)}", partial(count_bytes, ctx, n)) for n in teams],
        *[
            Stage("allreduce", f"all-reduce alone, {ranks_words(n)}", partial(time_allreduce, ctx, n))
            for n in teams[1:2]
        ],
        *[
            Stage(
                "steps",
                f"step time, global batch {batch}, {ranks_words(n)}",
                partial(time_steps, ctx, n, batch),
            )
            for batch in ctx.params["batches"]
            for n in teams
        ],
    ]
    return run_stages(
        ctx, stages, parameters=sum(parameter.numel() for parameter in build_model().parameters())
    )


def check_equality(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Train on ``n`` ranks with DDP, on one process, and on ``n`` ranks that never speak; compare."""
    group = ctx.team(n)
    mine = None
    if group is not None:
        whole = [global_batch(ctx, seed, SAMPLES_PER_RANK * n) for seed in range(EQUALITY_STEPS)]
        shares = [shard(batch, ctx.rank, n) for batch in whole]
        alone = build_model().to(ctx.device)
        alone_losses = train(alone, whole)
        together, silent = replica(ctx, group), replica(ctx, group)
        losses = train(together, shares)
        train(silent, shares, sync="never")
        gaps = parameter_gap(together, alone), parameter_gap(silent, alone)
        mine = {"losses": losses, "alone": alone_losses, "gap": gaps[0], "silent_gap": gaps[1]}
    rows = members(ctx, mine)
    # Equal shards: the global batch's loss is the mean of the ranks' losses.
    means = [statistics.fmean(losses) for losses in zip(*[row["losses"] for row in rows], strict=True)]
    row = {
        "ranks": n,
        "steps": EQUALITY_STEPS,
        "loss_gap": max(abs(mean - alone) for mean, alone in zip(means, rows[0]["alone"], strict=True)),
        "parameter_gap": max(row["gap"] for row in rows),
        "silent_gap": max(row["silent_gap"] for row in rows),
    }
    return [row]


def train(model: nn.Module, batches: list[Batch], sync: str = "last") -> list[float]:
    """One plain SGD step per batch; returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    return [training_step(model, optimizer, [batch], sync) for batch in batches]


def parameter_gap(one: nn.Module, other: nn.Module) -> float:
    """The largest absolute difference between two models' parameters."""
    return largest_gap(one.parameters(), other.parameters())


def count_bytes(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Bytes that each rank sends per optimizer step: for one micro-batch, and for several without and with ``no_sync``.

    The last row also tells how far the parameters with ``no_sync`` are from those without.
    """
    several = ctx.params["micro_steps"]
    rows, models = [], []
    for micro_steps, sync in ((1, "last"), (several, "every"), (several, "last")):
        row, model = _count(ctx, n, micro_steps, sync)
        rows.append(row)
        models.append(model)
    _, every, last = models
    gaps = members(ctx, parameter_gap(every, last) if every is not None and last is not None else None)
    rows[-1]["gap_to_every"] = max(gaps)
    return rows


def _count(ctx: Context, n: int, micro_steps: int, sync: str) -> tuple[dict[str, Any], DDP | None]:
    group = ctx.team(n)
    payload: list[int] = []

    def count_and_average(process_group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        payload.append(bucket.buffer().nbytes)
        return allreduce_hook(process_group, bucket)

    model, steps, mine = None, None, None
    if group is not None:
        model = replica(ctx, group)
        model.register_comm_hook(group, count_and_average)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        whole = [global_batch(ctx, seed, SAMPLES_PER_RANK * n) for seed in range(micro_steps)]
        step = partial(training_step, model, optimizer, [shard(batch, ctx.rank, n) for batch in whole], sync)
        for _ in range(WARM_UP_STEPS):
            step()
        payload.clear()
        steps = partial(repeat, step, COUNTED_STEPS)
    sent = count_sent(ctx, steps)
    if group is not None:
        mine = payload
    rows = members(ctx, mine)
    row = {
        "ranks": n,
        "micro_steps": micro_steps,
        "sync": sync,
        "steps": COUNTED_STEPS,
        "buckets": rows[0][: len(rows[0]) // COUNTED_STEPS],
        "payload": [sum(row) for row in rows],
        "kernel": sent and sent[:n],
    }
    return row, model


def time_allreduce(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Median time of an all-reduce alone on ``n`` ranks, by size."""
    group = ctx.team(n)
    points = []
    for size in ALLREDUCE_SIZES:
        ctx.barrier()
        if group is None:
            continue
        buffer = torch.zeros(size // 4, device=ctx.device)
        reduce = partial(dist.all_reduce, buffer, group=group)
        seconds = median_time_s(ctx, reduce, repeats=ALLREDUCE_REPEATS, group=group)
        points.append({"ranks": n, "n_bytes": size, "seconds": seconds})
    return points


def time_steps(ctx: Context, n: int, batch: int) -> list[dict[str, Any]]:
    """Times of DDP steps on ``n`` ranks that share one global batch, as rank 0 sees them."""
    group = ctx.team(n)
    times: list[float] = []
    if group is not None:
        model = replica(ctx, group)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        share = shard(global_batch(ctx, 0, batch), ctx.rank, n)
        for _ in range(WARM_UP_STEPS + ctx.params["steps"]):
            began = time.perf_counter()
            training_step(model, optimizer, [share])
            finish(ctx)
            times.append(time.perf_counter() - began)
    return [{"ranks": n, "batch": batch, "seconds": times[WARM_UP_STEPS:]}]


# ---- shared by the stages ----


def replica(ctx: Context, group: Any) -> DDP:
    """A fresh model wrapped by DDP over ``group``."""
    return DDP(build_model().to(ctx.device), process_group=group)


def global_batch(ctx: Context, seed: int, size: int) -> Batch:
    """:func:`make_batch` on this rank's device."""
    x, y = make_batch(seed, size)
    return x.to(ctx.device), y.to(ctx.device)


def repeat(step: Callable[[], object], times: int) -> None:
    """Call ``step`` so many times."""
    for _ in range(times):
        step()
