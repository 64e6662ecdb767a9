"""What every rank of the straggler lab runs: data-parallel steps whose ranks arrive at the all-reduce at different times.

The code to read is :func:`training_step`. Computing is stretched by sleeping: four ranks on two cores would slow
each other down by themselves, and the slowness here is to be the one that was asked for.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.labs.measure import Stage, finish, largest_gap, members, run_stages
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words

FEATURES = 256
SAMPLES_PER_RANK = 8
# Connections open on the first step.
WARM_UP_STEPS = 2

Batch = tuple[Tensor, Tensor]


def training_step(
    model: nn.Module,
    batch: Batch,
    work_s: float,
    group: Any,
    n: int,
) -> tuple[float, float]:
    """Compute this rank's share, average the gradients; seconds of both."""
    began = time.perf_counter()
    x, y = batch
    model.zero_grad()
    F.mse_loss(model(x), y).backward()
    time.sleep(max(0.0, began + work_s - time.perf_counter()))
    arrived = time.perf_counter()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)  # waits for the last rank
        parameter.grad /= n
    ended = time.perf_counter()
    return arrived - began, ended - arrived


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    given = ctx.params
    stages = [
        Stage(
            "slow",
            f"rank {ctx.ranks - 1} slower by {delay * 1e3:g} ms",
            partial(measure, ctx, ctx.ranks, constant_work(given, ctx.ranks, delay), {"delay_s": delay}),
        )
        for delay in given["delays_s"]
    ]
    if ctx.ranks > 1:
        healthy = ctx.ranks - 1
        stages.append(
            Stage(
                "without",
                "the slow rank left out",
                partial(measure, ctx, healthy, constant_work(given, healthy, 0.0), {}),
            )
        )
    stages += [
        Stage(
            "jitter",
            f"{kind} jitter, {ranks_words(n)}",
            partial(measure, ctx, n, jittered_work(given, n, kind), {"kind": kind}),
        )
        for kind in ("normal", "exponential")
        for n in given["teams"]
    ]
    return run_stages(ctx, stages)


# ---- how long each rank computes in each step: [step][rank], seconds ----


def constant_work(given: dict[str, Any], n: int, delay_s: float) -> list[list[float]]:
    """The same in every step; the last rank takes ``delay_s`` longer."""
    times = [given["base_s"]] * (n - 1) + [given["base_s"] + delay_s]
    return [times] * given["steady_steps"]


def jittered_work(given: dict[str, Any], n: int, kind: str) -> list[list[float]]:
    """Every rank and step a draw of its own; the same draws on every rank, from the seed."""
    base, spread = given["base_s"], given["jitter_s"]
    # Rank r's draws are the same however many ranks there are.
    draws = [random.Random(f"{given['seed']} {kind} {rank}") for rank in range(n)]
    rows = []
    for _ in range(given["steps"]):
        if kind == "normal":
            rows.append([max(0.0, draw.gauss(base, spread)) for draw in draws])
        else:
            rows.append([base + draw.expovariate(1 / spread) for draw in draws])
    return rows


# ---- one run of steps ----


def measure(
    ctx: Context, n: int, work: Sequence[Sequence[float]], facts: dict[str, Any]
) -> list[dict[str, Any]]:
    """Steps on the first ``n`` ranks; per rank the mean seconds of computing and of the all-reduce, and the gap."""
    group = ctx.team(n)
    mine = None
    if group is not None:
        model = build_model(ctx)
        batch = share(ctx, ctx.rank, n)
        for _ in range(WARM_UP_STEPS):
            training_step(model, batch, 0.0, group, n)
        dist.barrier(group=group)
        began = time.perf_counter()
        times = [training_step(model, batch, step[ctx.rank], group, n) for step in work]
        finish(ctx)
        mine = {
            "step_s": (time.perf_counter() - began) / len(work),
            "compute_s": sum([compute for compute, _ in times]) / len(work),
            "collective_s": sum([wait for _, wait in times]) / len(work),
            "gap": gap_to_unsplit(ctx, model, n),
        }
    rows = members(ctx, mine)
    asked = [sum([step[rank] for step in work]) / len(work) for rank in range(n)]
    row = {
        **facts,
        "ranks": n,
        "steps": len(work),
        # The last rank to finish ends the run.
        "step_s": max([row["step_s"] for row in rows]),
        "compute_s": [row["compute_s"] for row in rows],
        "collective_s": [row["collective_s"] for row in rows],
        "asked_s": asked,
        "asked_max_s": sum([max(step) for step in work]) / len(work),
        # max() may drop a NaN.
        "gradient_gap": largest_gap([torch.tensor([row["gap"] for row in rows])], [torch.zeros(n)]),
    }
    return [row]


def build_model(ctx: Context) -> nn.Module:
    """A small MLP, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES)).to(
        ctx.device
    )


def share(ctx: Context, rank: int, n: int) -> Batch:
    """Rank ``rank``'s equal part of the global batch of ``n`` ranks: ``[SAMPLES_PER_RANK, FEATURES]`` each."""
    x, y = global_batch(ctx, n)
    return x.chunk(n)[rank], y.chunk(n)[rank]


def global_batch(ctx: Context, n: int) -> Batch:
    """Inputs and targets, ``[n * SAMPLES_PER_RANK, FEATURES]`` each."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n * SAMPLES_PER_RANK, FEATURES, generator=generator).to(ctx.device)
    return x, torch.tanh(x.roll(1, dims=1))


def gap_to_unsplit(ctx: Context, model: nn.Module, n: int) -> float:
    """How far the averaged gradients are from those of one process on the global batch."""
    alone = build_model(ctx)
    x, y = global_batch(ctx, n)
    F.mse_loss(alone(x), y).backward()
    return largest_gap(
        [parameter.grad for parameter in model.parameters()],
        [parameter.grad for parameter in alone.parameters()],
    )
