"""Gradient clipping where each rank holds a shard of the gradient (ZeRO)."""

import torch
import torch.distributed as dist
from torch import Tensor


def clip_gradient(shards: list[Tensor], max_norm: float) -> Tensor:
    """Scale the gradient down, in place, if its norm exceeds ``max_norm``.

    shards   this rank's parts of the gradients; the parts of all ranks together
             are the gradient, and no element is in two of them
    returns the norm before clipping, a scalar, the same on every rank
    """
    norm = torch.stack([shard.square().sum() for shard in shards]).sum().sqrt()
    scale = (max_norm / norm).clamp(max=1)
    for shard in shards:
        shard *= scale

    shown = norm.clone()
    dist.all_reduce(shown, op=dist.ReduceOp.MAX)
    return shown
