"""Labs: real ``torch.distributed`` programs on this machine's processes, predicted beside measured.

>>> from shardlab import labs
>>> run = labs.ddp(ranks=4)

Every lab is called like a function; ``labs.ddp.source()`` shows the code that its ranks run. :func:`run` runs a
worker of your own. Importing this package doesn't import torch: the ranks do, in processes of their own.
"""

from __future__ import annotations

from typing import Any

from shardlab.labs.accumulation import accumulation
from shardlab.labs.checkpoint import checkpoint
from shardlab.labs.context_parallel import context_parallel
from shardlab.labs.data_order import data_order
from shardlab.labs.ddp import ddp
from shardlab.labs.deepspeed_zero import deepspeed_zero
from shardlab.labs.expert_parallel import expert_parallel
from shardlab.labs.find_the_bug import find_the_bug
from shardlab.labs.lab import Lab
from shardlab.labs.local_sgd import local_sgd
from shardlab.labs.megatron import megatron
from shardlab.labs.mesh import mesh
from shardlab.labs.pipeline import pipeline
from shardlab.labs.ray_train import ray_train
from shardlab.labs.restart import restart
from shardlab.labs.ring import ring
from shardlab.labs.run import LabError, LabInterrupted, Outcome, run
from shardlab.labs.slow_network import slow_network
from shardlab.labs.straggler import straggler
from shardlab.labs.tensor_parallel import tensor_parallel
from shardlab.labs.zero import zero

# In the order of the book; then those that need more than torch.
LABS: tuple[Lab[Any, Any], ...] = (
    ring,
    ddp,
    accumulation,
    data_order,
    local_sgd,
    zero,
    tensor_parallel,
    pipeline,
    context_parallel,
    expert_parallel,
    mesh,
    straggler,
    checkpoint,
    restart,
    find_the_bug,
    slow_network,
    deepspeed_zero,
    megatron,
    ray_train,
)

__all__ = [
    "LABS",
    "Lab",
    "LabError",
    "LabInterrupted",
    "Outcome",
    "accumulation",
    "checkpoint",
    "context_parallel",
    "data_order",
    "ddp",
    "deepspeed_zero",
    "expert_parallel",
    "find_the_bug",
    "local_sgd",
    "megatron",
    "mesh",
    "pipeline",
    "ray_train",
    "restart",
    "ring",
    "run",
    "slow_network",
    "straggler",
    "tensor_parallel",
    "zero",
]
