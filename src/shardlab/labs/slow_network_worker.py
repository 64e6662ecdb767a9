"""What every rank of the slow-network lab runs: the DDP lab's training step, on cables of a chosen rate.

The step to read is :func:`shardlab.labs.ddp_worker.training_step`; what differs is here. The raw measurements, without
the lab's tables (as root)::

    python -m shardlab.labs shardlab.labs.slow_network_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "mbit_s": [2000, 200], "batch": 48, "compute_s": 0.3, "steps": 4}'
"""

import functools
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab.labs.ddp_worker import (
    LEARNING_RATE,
    WARM_UP_STEPS,
    Batch,
    make_batch,
    parameter_gap,
    shard,
    training_step,
)
from shardlab.labs.measure import Stage, count_sent, median_time_s, members, run_stages
from shardlab.labs.netns import Network, join_network
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words
from shardlab.labs.slow_network import (
    BACKWARD_SHARE,
    BUCKET_MIB,
    FEATURES,
    LAYERS,
    SIZES,
    link_ranks,
    rate_words,
)

# A pass through a slow cable takes long enough to be timed well by few repeats.
REPEATS = 3


class Accelerator(torch.autograd.Function):  # type: ignore[misc]
    """Takes an accelerator's time, and none of this machine's cores."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        """Wait for the forward share of ``seconds``; hand ``x`` on."""
        ctx.backward_s = seconds * BACKWARD_SHARE
        time.sleep(seconds - ctx.backward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Wait for the rest: the gradients below are ready only then."""
        time.sleep(ctx.backward_s)
        return grads[0], None


class Model(nn.Module):  # type: ignore[misc]
    """Equal layers; together they work ``sample_s`` seconds on a sample."""

    def __init__(self, sample_s: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(layers)
        self.sample_s = sample_s

    def forward(self, x: Tensor) -> Tensor:  # [samples, FEATURES], in and out
        layer_s = self.sample_s * len(x) / LAYERS
        for layer in self.layers:
            x = torch.tanh(layer(x))
            x = Accelerator.apply(x, layer_s)
        return x


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, from the fastest network to the slowest; rank 0 returns them."""
    network = join_network(ctx)
    ends = {n: _end_group(n, ctx) for n in sorted({*ctx.params["teams"], *link_ranks(ctx.ranks)})}
    train = partial(time_training, ctx, ends)
    stages = [
        Stage("steps", f"training, no limit, {ranks_words(n)}", partial(train, n, None))
        for n in ctx.params["teams"]
    ]
    for rate in ctx.params["mbit_s"]:
        words = rate_words(rate)
        stages += [
            Stage("rates", f"cables of {words}", partial(set_rate, ctx, network, rate)),
            *[
                Stage(
                    "link",
                    f"all-reduce alone, {words}, {ranks_words(n)}",
                    partial(time_link, ctx, ends, n, rate),
                )
                for n in link_ranks(ctx.ranks)
            ],
            *[
                Stage("steps", f"training, {words}, {ranks_words(n)}", partial(train, n, rate))
                for n in ctx.params["teams"]
                if n > 1
            ],
        ]
    # Also with GPUs: it is the network between CPUs that is slow here.
    return run_stages(ctx, stages, backend="gloo", parameters=sum(p.numel() for p in Model(0).parameters()))


def _end_group(n: int, ctx: Context) -> Any:
    """The process group of the first ``n`` ranks, through the cables; None on a rank outside it."""
    group = dist.new_group(list(range(n)), backend="gloo")
    return group if ctx.rank < n else None


def set_rate(ctx: Context, network: Network, mbit_s: float) -> list[dict[str, Any]]:
    """Slow every cable down."""
    network.set_rate(mbit_s * 1e6 / 8)
    ctx.barrier()
    return [{"mbit_s": mbit_s}]


def time_link(ctx: Context, groups: dict[int, Any], n: int, mbit_s: float) -> list[dict[str, Any]]:
    """Median time of an all-reduce alone on ``n`` ranks, by size: the slowest rank's."""
    rows = []
    for size in SIZES:
        mine = None
        ctx.barrier()
        if groups[n] is not None:
            reduce = partial(dist.all_reduce, torch.zeros(size // 4), group=groups[n])
            mine = median_time_s(ctx, reduce, repeats=REPEATS, warm_up=1, group=groups[n])
        rows.append({"mbit_s": mbit_s, "ranks": n, "n_bytes": size, "seconds": max(members(ctx, mine))})
    return rows


def time_training(ctx: Context, groups: dict[int, Any], n: int, mbit_s: float | None) -> list[dict[str, Any]]:
    """Time, count and check steps of ``n`` ranks that share one global batch."""
    batch, steps = make_global_batch(ctx), ctx.params["steps"]
    train, model, times = None, None, []
    if groups[n] is not None:
        sample_s = ctx.params["compute_s"] / ctx.params["batch"]
        model = DDP(Model(sample_s), process_group=groups[n], bucket_cap_mb=BUCKET_MIB)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        step = partial(training_step, model, optimizer, [shard(batch, ctx.rank, n)])
        for _ in range(WARM_UP_STEPS):
            step()

        def train() -> None:
            for _ in range(steps):
                began = time.perf_counter()
                step()
                times.append(time.perf_counter() - began)

    sent = count_sent(ctx, train)
    gap = None if model is None else parameter_gap(model, trained_alone(ctx))
    row = {
        "mbit_s": mbit_s,
        "ranks": n,
        "seconds": times,
        "kernel": sent and [n_bytes / steps for n_bytes in sent[:n]],
        "parameter_gap": max(members(ctx, gap)),
    }
    return [row]


def make_global_batch(ctx: Context) -> Batch:
    """The one batch that every step trains on: ``[batch, FEATURES]`` each."""
    x, y = make_batch(0, ctx.params["batch"])
    return x[:, :FEATURES], y[:, :FEATURES]


@functools.cache
def trained_alone(ctx: Context) -> Model:
    """What one process without DDP makes of the same steps, without waiting for an accelerator."""
    model = Model(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(WARM_UP_STEPS + ctx.params["steps"]):
        training_step(model, optimizer, [make_global_batch(ctx)])
    return model
