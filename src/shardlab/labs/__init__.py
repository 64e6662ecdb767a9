"""Labs: real ``torch.distributed`` programs on this machine's processes, predicted beside measured.

>>> from shardlab import labs
>>> run = labs.ddp(ranks=4)

Every lab is called like a function; ``labs.ddp.source()`` shows the code that its ranks run. :func:`run` runs a
worker of your own. Importing this package doesn't import torch: the ranks do, in processes of their own. Nor does it
import a lab that isn't used: every rank of every run imports this package, and the labs together take half a second.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardlab.labs.lab import Lab
from shardlab.labs.run import LabError, LabInterrupted, Outcome, run

if TYPE_CHECKING:
    from shardlab.labs.accumulation import accumulation
    from shardlab.labs.checkpoint import checkpoint
    from shardlab.labs.context_parallel import context_parallel
    from shardlab.labs.data_order import data_order
    from shardlab.labs.ddp import ddp
    from shardlab.labs.deepspeed_zero import deepspeed_zero
    from shardlab.labs.expert_parallel import expert_parallel
    from shardlab.labs.find_the_bug import find_the_bug
    from shardlab.labs.local_sgd import local_sgd
    from shardlab.labs.megatron import megatron
    from shardlab.labs.mesh import mesh
    from shardlab.labs.pipeline import pipeline
    from shardlab.labs.ray_train import ray_train
    from shardlab.labs.restart import restart
    from shardlab.labs.ring import ring
    from shardlab.labs.slow_network import slow_network
    from shardlab.labs.straggler import straggler
    from shardlab.labs.tensor_parallel import tensor_parallel
    from shardlab.labs.zero import zero

# Each is a lab in the file of its name. In the order of the book; then those that need more than torch.
LAB_NAMES = (
    "ring",
    "ddp",
    "accumulation",
    "data_order",
    "local_sgd",
    "zero",
    "tensor_parallel",
    "pipeline",
    "context_parallel",
    "expert_parallel",
    "mesh",
    "straggler",
    "checkpoint",
    "restart",
    "find_the_bug",
    "slow_network",
    "deepspeed_zero",
    "megatron",
    "ray_train",
)

# All labs in that order; the first look at it imports them.
LABS: tuple[Lab[Any, Any], ...]

__all__ = [
    "LABS",
    "LAB_NAMES",
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


class _Labs(ModuleType):
    """This package: it imports a lab when its name is first used, and the name means the lab, not its file."""

    def __getattr__(self, name: str) -> Any:
        if name in LAB_NAMES:
            return getattr(importlib.import_module(f"{__name__}.{name}"), name)
        if name == "LABS":
            return tuple([getattr(self, lab) for lab in LAB_NAMES])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Python hangs every imported file on its package under the file's name.
        if name in LAB_NAMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Labs
