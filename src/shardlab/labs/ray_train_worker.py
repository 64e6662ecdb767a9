"""What the Ray lab runs: one process that asks a Ray of its own to train, and the loop that each of Ray's workers runs.

The loop to read is :func:`train_loop`; its step is the DDP lab's. ``launch/ray_job.py`` gives the same loop to a
cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab.labs.ddp_worker import FEATURES, make_batch, parameter_gap, shard, training_step
from shardlab.labs.measure import Stage, run_stages
from shardlab.labs.rank import Context

GLOBAL_BATCH = 32
# Enough for what Ray keeps in shared memory for a lab: next to nothing.
STORE_BYTES = 80 * 10**6


def train_loop(config: dict[str, Any]) -> None:
    """One of Ray's workers: train, save, go on from the last checkpoint."""
    from ray import train

    rank = train.get_context().get_world_rank()
    n = train.get_context().get_world_size()
    model = DDP(build_model())
    optimizer = new_optimizer(model)
    losses = load(train.get_checkpoint(), model, optimizer)
    note(config, rank, kind="start", step=len(losses))
    for step in range(len(losses), config["steps"]):
        if step == config["fail_at"] and rank == n - 1:
            die_once(config, step)
        share = shard(make_batch(step, GLOBAL_BATCH), rank, n)
        losses.append(mean(training_step(model, optimizer, [share])))
        note(config, rank, kind="step", step=step, loss=losses[-1])
        if len(losses) % config["every"] == 0:
            with saved(rank, model, optimizer, losses) as checkpoint:
                metrics = {"loss": losses[-1]}
                train.report(metrics, checkpoint=checkpoint)
    if rank == 0:
        state = model.module.state_dict()
        torch.save(state, Path(config["folder"], "model.pt"))


def build_model() -> nn.Module:
    """As the DDP lab's, but smooth.

    Sums in another order differ in the last digit. That may turn a ReLU on or off, and after some steps the comparison
    with one process would show that and nothing else.
    """
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum: a checkpoint without its state would not go on as before."""
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def load(checkpoint: Any, model: DDP, optimizer: torch.optim.Optimizer) -> list[float]:
    """Take over a checkpoint, if there is one; the losses so far, one for each step done."""
    if checkpoint is None:
        return []
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, "state.pt"), weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    losses: list[float] = state["losses"]
    return losses


@contextlib.contextmanager
def saved(rank: int, model: DDP, optimizer: torch.optim.Optimizer, losses: list[float]) -> Iterator[Any]:
    """Rank 0's checkpoint in a folder that Ray copies from; None on the other ranks, which report without one."""
    from ray import train

    if rank != 0:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        torch.save(state, Path(folder, "state.pt"))
        yield train.Checkpoint.from_directory(folder)


def mean(loss: float) -> float:
    """The global batch's loss: equal shards, so the mean of the ranks' losses."""
    total = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total.item() / dist.get_world_size())


def die_once(config: dict[str, Any], step: int) -> None:
    """End this process without a word, as a lost node does; not again in the next life.

    Ray notes a checkpoint some time after ``report`` has returned: it waits for that, so that the lab always shows the
    same. A death in between goes back one checkpoint more.
    """
    from ray import train

    with contextlib.suppress(FileExistsError):
        Path(config["folder"], "died").touch(exist_ok=False)
        train.get_all_reported_checkpoints()
        note(config, 0, kind="death", step=step)
        os._exit(1)


def note(config: dict[str, Any], rank: int, **event: Any) -> None:
    """Rank 0 writes down what happens, with the time; a line at once, so that no death loses one."""
    if rank == 0:
        with Path(config["folder"], "events.jsonl").open("a") as file:
            file.write(json.dumps({**event, "time": time.time()}) + "\n")


# ---- the process that asks ----


def fit(config: dict[str, Any], workers: int, limit_s: float) -> None:
    """Let the Ray that is connected train with ``workers`` workers; a lost one costs a restart, three end the run."""
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer

    TorchTrainer(
        train_loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=workers),
        torch_config=TorchConfig(backend="gloo", timeout_s=int(limit_s)),
        run_config=train.RunConfig(
            name="shardlab",
            storage_path=config["folder"],
            failure_config=train.FailureConfig(max_failures=3),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


@contextlib.contextmanager
def own_ray(folder: str, workers: int) -> Iterator[None]:
    """A Ray on this machine alone, without dashboard and without a report to anyone, gone afterwards."""
    # Before the import, which reads them.
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_TRAIN_METRICS_ENABLED="0",
        RAY_TRAIN_V2_ENABLED="1",
        RAY_COLOR_PREFIX="0",
        # Ray listens on this machine's address: a key keeps others out. Our own, else it writes one into the home folder.
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=uuid.uuid4().hex,
    )
    import ray

    ray.init(
        address="local",
        num_cpus=workers + 1,  # one for Ray Train's own controller
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=STORE_BYTES,
        _temp_dir=folder,
    )
    try:
        yield
    finally:
        ray.shutdown()


def worker(ctx: Context) -> dict[str, Any] | None:
    """The whole lab, on the one process that the runner starts; Ray's workers are its grandchildren."""
    stages = [
        Stage("alone", "one process, nothing stops it", lambda: train_alone(ctx)),
        Stage(
            "events",
            f"Ray with {ctx.params['workers']} workers, one of which dies",
            lambda: train_with_ray(ctx),
        ),
        Stage("equality", "compared", lambda: compare(ctx)),
    ]
    return run_stages(ctx, stages)


def train_alone(ctx: Context) -> list[dict[str, Any]]:
    """The losses of the same steps by one process, and its parameters in the run's folder."""
    model = build_model()
    optimizer = new_optimizer(model)
    losses = [
        training_step(model, optimizer, [make_batch(step, GLOBAL_BATCH)])
        for step in range(ctx.params["steps"])
    ]
    torch.save(model.state_dict(), Path(ctx.params["folder"], "alone.pt"))
    return [{"loss": loss} for loss in losses]


def train_with_ray(ctx: Context) -> list[dict[str, Any]]:
    """What happened, event by event."""
    began = time.time()
    with own_ray(ctx.params["ray_folder"], ctx.params["workers"]):
        ready = time.time()
        fit(ctx.params, ctx.params["workers"], ctx.params["patience_s"])
    text = Path(ctx.params["folder"], "events.jsonl").read_text()
    events = [{"kind": "init", "step": 0, "time": began}, {"kind": "ready", "step": 0, "time": ready}]
    return [*events, *[json.loads(line) for line in text.splitlines()]]


def compare(ctx: Context) -> list[dict[str, Any]]:
    """The largest difference of any parameter after the last step."""
    models = []
    for name in ("alone.pt", "model.pt"):
        model = build_model()
        model.load_state_dict(torch.load(Path(ctx.params["folder"], name), weights_only=True))
        models.append(model)
    return [{"parameter_gap": parameter_gap(*models)}]
