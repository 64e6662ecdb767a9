"""What every rank of the DeepSpeed lab runs: one small model in bf16 under ZeRO stages 0 to 3, weighed after backward.

The code to read is :func:`config` and :func:`train`. The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.deepspeed_zero_worker:worker --ranks 2 --params '{"stages": [0, 1, 2, 3]}'
"""

from __future__ import annotations

import gc
import os
import statistics
from functools import partial
from typing import Any

import torch
import torch._dynamo  # DeepSpeed imports it on first use, over a second: here all ranks share that
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

# Without it DeepSpeed warns that it found no other accelerator.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops
import deepspeed.runtime.fp16.unfused_optimizer
import deepspeed.runtime.zero.muon.original_muon
import deepspeed.runtime.zero.stage3
import deepspeed.runtime.zero.stage_1_and_2

from shardlab.labs.deepspeed_zero import BETAS
from shardlab.labs.measure import Stage, run_stages
from shardlab.labs.rank import Context

WIDTH = 256
LAYERS = 16  # equal ones: 2, 4, 8 and 16 ranks cut the model between layers
SAMPLES_PER_RANK = 8
STEPS = 5
LEARNING_RATE = 1e-4
EPSILON = 1e-8
BUCKET_ELEMENTS = 5 * WIDTH * WIDTH // 4  # no tensor's size: a bucket can be told from a gradient
COUNTER_BYTES = 64

# DeepSpeed would compile its shared-memory collectives on first use: half a minute, a compiler, and a lock file that a
# killed build leaves behind for the next one to wait on. torch's collectives do the same work.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


# ---- the code to read ----


def config(stage: int) -> dict[str, Any]:
    """DeepSpeed's settings. Only ``stage`` differs between the runs."""
    adam = {
        "lr": LEARNING_RATE,
        "betas": list(BETAS),
        "eps": EPSILON,
        "torch_adam": True,  # DeepSpeed's own Adam needs a compiler
        "adam_w_mode": False,
    }
    return {
        "train_micro_batch_size_per_gpu": SAMPLES_PER_RANK,
        "optimizer": {"type": "Adam", "params": adam},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            # Small, so that buckets don't hide what sharding saves.
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            # Stage 3 would keep small tensors whole, and gather ahead.
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        },
        "steps_per_print": 10**9,
    }


def train(engine: Any, x: Tensor, y: Tensor) -> list[float]:
    """A few steps on one batch; the last ends after its backward pass, for
    that is when a rank holds most. Returns the losses.

    x, y: this rank's share, [SAMPLES_PER_RANK, WIDTH].
    """
    losses = []
    for step in range(STEPS):
        loss = F.mse_loss(engine(x).float(), y)
        engine.backward(loss)  # averages gradients, to their owners
        losses.append(loss.item())
        if step < STEPS - 1:
            engine.step()  # updates 1/N of the weights from stage 1 on
    return losses


# ---- model, data, and the unsplit computation ----


def build_model() -> nn.Sequential:
    """Equal layers without biases, each near the identity; the seed gives every rank the same start."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    for layer in model:
        with torch.no_grad():
            layer.weight.mul_(0.1).add_(torch.eye(WIDTH))
    return model


def global_batch(ctx: Context) -> tuple[Tensor, Tensor]:
    """Inputs (bf16) and targets (fp32), ``[SAMPLES_PER_RANK * N, WIDTH]``, the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES_PER_RANK * ctx.ranks, WIDTH, generator=generator)
    y = torch.tanh(x.roll(1, dims=1))
    return x.to(ctx.device, torch.bfloat16), y.to(ctx.device)


def train_alone(ctx: Context, steps_before: int = 0) -> list[float]:
    """The same training on one process without DeepSpeed: bf16 weights, fp32 master weights, Adam. Returns the losses.

    ``steps_before``: Adam steps on zero gradients before the first: they move nothing, but Adam counts them.
    """
    model = build_model().to(ctx.device, torch.bfloat16)
    masters = [parameter.detach().float() for parameter in model.parameters()]
    adam = torch.optim.Adam(masters, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    x, y = global_batch(ctx)
    for master in masters:
        master.grad = torch.zeros_like(master)
    for _ in range(steps_before):
        adam.step()
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        losses.append(loss.item())
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        adam.step()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            parameter.data.copy_(master)
    return losses


# ---- the stages ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one ZeRO stage after another; rank 0 returns them."""
    stages = [
        Stage("stages", f"ZeRO stage {stage}", partial(measure_stage, ctx, stage))
        for stage in ctx.params["stages"]
    ]
    return run_stages(
        ctx,
        stages,
        parameters=LAYERS * WIDTH * WIDTH,
        largest_tensor=WIDTH * WIDTH,
        alone=train_alone(ctx),
        alone_late=train_alone(ctx, steps_before=1),
        deepspeed=deepspeed.__version__,
    )


def measure_stage(ctx: Context, stage: int) -> list[dict[str, Any]]:
    """Train under one ZeRO stage, then weigh what is alive on each rank: bytes by kind."""
    before = live_tensors()
    x, y = global_batch(ctx)
    mine = [part.chunk(ctx.ranks)[ctx.rank].clone() for part in (x, y)]
    del x, y
    engine, *_ = deepspeed.initialize(
        model=build_model().to(ctx.device), config=config(stage), dist_init_required=False
    )
    losses = train(engine, *mine)
    let_go(ctx)
    held = held_bytes(engine, {**before, **{_place(part): part for part in mine}})
    rows = ctx.gather({"losses": losses, "held": held})
    del engine
    gc.collect()
    # Equal shares: the global batch's loss is the mean of the ranks' losses.
    means = [statistics.fmean(losses) for losses in zip(*[row["losses"] for row in rows], strict=True)]
    return [{"stage": stage, "losses": means, "held": [row["held"] for row in rows]}]


def let_go(ctx: Context) -> None:
    """Let the backend's threads drop the last buffers that they worked on: they may hold on to them until later work."""
    for _ in range(4):
        dist.all_reduce(torch.zeros(1, device=ctx.device))
    ctx.barrier()


def live_tensors() -> dict[int, Tensor]:
    """One tensor for each stretch of memory that any tensor of this process uses, by its address."""
    gc.collect()
    # Not isinstance(): some objects import half a library when asked for their class.
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    # A gradient that no Python code has looked at is no Python object yet.
    tensors += [one.grad for one in tensors if one.is_leaf and one.grad is not None]
    # DeepSpeed keeps meta tensors, which have a size and no memory: their address is 0.
    return {_place(one): one for one in tensors if _place(one)}


def held_bytes(engine: Any, before: dict[int, Tensor]) -> dict[str, int]:
    """Bytes of what came alive since ``before``, by kind.

    Weights are known by name. Of the rest, fp32 is master weights and moments, and bf16 gradients, or a bucket if it has
    exactly a bucket's size. Adam's step counters and DeepSpeed's flags are left out.
    """
    weights = list(engine.module.parameters())
    # Stage 3 leaves an empty tensor in the module and keeps the rank's part beside it.
    named = {_place(weight.ds_tensor if hasattr(weight, "ds_tensor") else weight) for weight in weights}
    held = {"parameters": 0, "gradients": 0, "optimizer": 0, "buckets": 0}
    for place, tensor in live_tensors().items():
        n_bytes = tensor.untyped_storage().nbytes()
        if place not in before and n_bytes > COUNTER_BYTES:
            held["parameters" if place in named else _kind(tensor)] += n_bytes
    return held


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.float32:
        return "optimizer"
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return "buckets" if size == BUCKET_ELEMENTS else "gradients"


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
