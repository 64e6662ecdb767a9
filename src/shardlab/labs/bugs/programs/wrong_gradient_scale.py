"""Gradient accumulation: several micro-batches a rank, one all-reduce."""

import torch
import torch.distributed as dist
from torch import Tensor


def accumulated_gradient(
    weight: Tensor,
    micro_batches: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """Gradient of the mean squared error over the whole global batch.

    weight         [out, in]   the same on every rank
    micro_batches  pairs x [samples, in], y [samples, out]: this rank's; all of
                   one size, and every rank has equally many
    """
    total = torch.zeros_like(weight)
    for x, y in micro_batches:
        error = x @ weight.T - y
        # d mean(error**2) / d weight
        total += 2 * error.T @ x / error.numel()

    dist.all_reduce(total)
    return total / dist.get_world_size()
