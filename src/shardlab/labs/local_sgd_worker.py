"""What every rank of the local-SGD lab runs: the same model and samples, averaged each step, each H steps, or never.

The functions to read are :func:`synchronous`, :func:`local_sgd` and :func:`diloco`. The raw measurements::

    python -m shardlab.labs shardlab.labs.local_sgd_worker:worker --ranks 4 --params \
        '{"intervals": [8, 64], "steps": 128, "outer_lr": 0.7, "outer_momentum": 0.9}'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from shardlab.labs.local_sgd import SHARDS
from shardlab.labs.measure import Stage, count_sent, largest_gap, run_stages
from shardlab.labs.rank import Context

Batch = tuple[Tensor, Tensor]
Batches = Iterable[Batch]
Training = Callable[[nn.Module], Iterator[None]]

FEATURES, HIDDEN, CLASSES = 64, 256, 10
SAMPLES_PER_RANK = 32
HELD_OUT = 2048
SGD_LR, ADAMW_LR = 0.1, 1e-3
EQUALITY_STEPS = 8
EQUALITY_EVERY = 4
# A step's samples have its number as seed; these are no step's.
TEACHER_SEED, START_SEED, HELD_OUT_SEED = 2**40, 2**40 + 1, 2**40 + 2
# The teacher's answers are drawn from its softmax: the sharper it is, the less of the loss is noise.
SHARPNESS = 12.0


# ---- three ways to train; each yields after every step ----


def synchronous(
    model: nn.Module, optimizer: Optimizer, batches: Batches
) -> Iterator[None]:  # fmt: skip
    """Data parallel: average the gradients in every step."""
    for batch in batches:
        backward(model, batch)
        gradients = [parameter.grad for parameter in model.parameters()]
        mean = average(parameters_to_vector(gradients))
        vector_to_parameters(mean, gradients)
        optimizer.step()
        yield


def local_sgd(
    model: nn.Module, optimizer: Optimizer, batches: Batches, every: int
) -> Iterator[None]:  # fmt: skip
    """Step alone; average the parameters once in ``every`` steps."""
    for step, batch in enumerate(batches, start=1):
        backward(model, batch)
        optimizer.step()
        if step % every == 0:
            load(model, average(flat(model)))
        yield


def diloco(
    model: nn.Module, inner: Optimizer, batches: Batches, every: int,
    lr: float, momentum: float
) -> Iterator[None]:  # fmt: skip
    """Step alone; once in ``every`` steps the mean move is a gradient."""
    agreed = flat(model)  # what all ranks set out from; one more copy
    outer = torch.optim.SGD([agreed], lr, momentum, nesterov=momentum > 0)
    for step, batch in enumerate(batches, start=1):
        backward(model, batch)
        inner.step()
        if step % every == 0:
            agreed.grad = average(agreed - flat(model))
            outer.step()
            load(model, agreed)
        yield


def average(vector: Tensor) -> Tensor:
    """The mean over the ranks: one all-reduce, 2 (N-1)/N of its bytes."""
    dist.all_reduce(vector)
    return vector / dist.get_world_size()


# ---- model and data ----


def build_model() -> nn.Module:
    """A small classifier; the seed gives every rank the same start."""
    torch.manual_seed(START_SEED)
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, CLASSES),
    )


def backward(model: nn.Module, batch: Batch) -> None:
    """Fresh gradients of the mean loss of one batch."""
    x, y = batch
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector, a copy."""
    return parameters_to_vector(model.parameters()).detach()


def load(model: nn.Module, vector: Tensor) -> None:
    """Write a vector as by :func:`flat` into the parameters."""
    # The parameters become views of what they are given: a copy leaves the caller's vector alone.
    vector_to_parameters(vector.clone(), model.parameters())


def make_samples(seed: int, size: int) -> Batch:
    """Inputs ``[size, FEATURES]`` and classes ``[size]`` that a fixed random network, the teacher, draws for them."""
    teacher = torch.Generator().manual_seed(TEACHER_SEED)
    first = torch.randn(FEATURES, 48, generator=teacher) / 4
    second = torch.randn(48, CLASSES, generator=teacher) * SHARPNESS / 48**0.5
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=generator)
    chances = torch.softmax(torch.tanh(x @ first) @ second, dim=1)
    return x, torch.multinomial(chances, 1, generator=generator).squeeze(1)


def shard(step: int, rank: int, ranks: int, shards: str) -> Batch:
    """One rank's share of a step's samples: ``"mixed"`` as drawn, or ``"sorted"`` by class, so that ranks see few.

    The global batch is the same either way; each sample is used once.
    """
    x, y = make_samples(step, SAMPLES_PER_RANK * ranks)
    if shards == "sorted":
        order = torch.argsort(y, stable=True)
        x, y = x[order], y[order]
    return x.chunk(ranks)[rank], y.chunk(ranks)[rank]


def shares(ctx: Context, steps: int, shards: str) -> list[Batch]:
    """This rank's samples for each step, on its device."""
    return [on_device(ctx, shard(step, ctx.rank, ctx.ranks, shards)) for step in range(steps)]


def whole(ctx: Context, steps: int) -> list[Batch]:
    """The global batch of each step, on this rank's device."""
    return [on_device(ctx, make_samples(step, SAMPLES_PER_RANK * ctx.ranks)) for step in range(steps)]


def on_device(ctx: Context, batch: Batch) -> Batch:
    """A batch on this rank's device."""
    x, y = batch
    return x.to(ctx.device), y.to(ctx.device)


# ---- measuring ----


def sgd(model: nn.Module, lr: float = SGD_LR) -> Optimizer:
    """Plain SGD, no momentum."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def adamw(model: nn.Module) -> Optimizer:
    """AdamW."""
    return torch.optim.AdamW(model.parameters(), lr=ADAMW_LR)


def trainings(params: dict[str, Any], batches: Batches) -> list[tuple[str, int, Training]]:
    """Method, H (0: never) and how to train on this rank's samples, in the order of the tables."""
    intervals, outer = params["intervals"], (params["outer_lr"], params["outer_momentum"])
    never = params["steps"] + 1

    def local(every: int) -> Training:
        return lambda model: local_sgd(model, sgd(model), batches, every)

    def two_level(every: int) -> Training:
        return lambda model: diloco(model, adamw(model), batches, every, *outer)

    return [
        ("synchronous SGD", 1, lambda model: synchronous(model, sgd(model), batches)),
        *[("local SGD", every, local(every)) for every in intervals],
        ("alone, SGD", 0, local(never)),
        ("synchronous AdamW", 1, lambda model: synchronous(model, adamw(model), batches)),
        *[("DiLoCo", every, two_level(every)) for every in intervals],
    ]


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    average(torch.zeros(1, device=ctx.device))  # opens the connections
    held_out = on_device(ctx, make_samples(HELD_OUT_SEED, HELD_OUT))
    stages = [
        Stage("equality", "compared with the unsplit computation", partial(check_equality, ctx)),
        *[
            Stage(
                "training",
                f"{method}, H = {every or 'never'}, {shards} shards",
                partial(train, ctx, training, held_out, (method, every, shards)),
            )
            for shards in SHARDS
            for method, every, training in trainings(ctx.params, shares(ctx, ctx.params["steps"], shards))
        ],
    ]
    return run_stages(
        ctx, stages, parameters=flat(build_model()).numel(), samples_per_step=SAMPLES_PER_RANK * ctx.ranks
    )


def check_equality(ctx: Context) -> list[dict[str, Any]]:
    """What should be the same training, trained both ways on sorted shards: the largest parameter differences."""
    batches = shares(ctx, EQUALITY_STEPS, "sorted")
    together = _after(ctx, lambda model: synchronous(model, sgd(model), batches))
    alone = _after(ctx, lambda model: unsplit(model, sgd(model), whole(ctx, EQUALITY_STEPS)))
    each = _after(ctx, lambda model: local_sgd(model, sgd(model), batches, 1))
    some = _after(ctx, lambda model: local_sgd(model, sgd(model), batches, EQUALITY_EVERY))
    plain = _after(ctx, lambda model: diloco(model, sgd(model), batches, EQUALITY_EVERY, 1.0, 0.0))
    return [
        _gap(ctx, "one process", together, alone),
        _gap(ctx, "local, H = 1", each, together),
        _gap(ctx, "plain outer step", plain, some),
        _gap(ctx, "local, H > 1", some, together),
    ]


def _gap(ctx: Context, pair: str, one: Tensor, other: Tensor) -> dict[str, Any]:
    gaps = torch.tensor(ctx.gather(largest_gap([one], [other])), dtype=torch.float64)
    # Python's max() may drop a NaN, torch's doesn't.
    return {"pair": pair, "steps": EQUALITY_STEPS, "parameter_gap": gaps.max().item()}


def unsplit(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Iterator[None]:
    """One process, the global batch."""
    for batch in batches:
        backward(model, batch)
        optimizer.step()
        yield


def _after(ctx: Context, training: Training) -> Tensor:
    """The parameters at the end of a training."""
    model = build_model().to(ctx.device)
    for _ in training(model):
        pass
    return flat(model)


def train(
    ctx: Context, training: Training, held_out: Batch, name: tuple[str, int, str]
) -> list[dict[str, Any]]:
    """Train from the common start; bytes sent by each rank, and the held-out loss on the way (mean over the ranks)."""
    model = build_model().to(ctx.device)
    losses: list[tuple[int, float]] = []
    # All ranks agree only where every H has just averaged.
    stride = max(ctx.params["intervals"])

    def run() -> None:
        for step, _ in enumerate(training(model), start=1):
            if step % stride == 0:
                losses.append((step, evaluate(model, held_out)))

    kernel = count_sent(ctx, run)
    means = torch.tensor(ctx.gather([loss for _, loss in losses]), dtype=torch.float64).mean(0)
    return [
        {
            **dict(zip(("method", "every", "shards"), name, strict=True)),
            "losses": list(zip([step for step, _ in losses], means.tolist(), strict=True)),
            "kernel_bytes": kernel,
        }
    ]


def evaluate(model: nn.Module, held_out: Batch) -> float:
    """Mean loss on samples that no rank has trained on."""
    x, y = held_out
    with torch.no_grad():
        return float(F.cross_entropy(model(x), y).item())
