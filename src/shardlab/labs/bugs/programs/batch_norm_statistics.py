"""Batch normalisation needs the statistics of the whole batch."""

import torch
import torch.distributed as dist
from torch import Tensor


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel over the global batch.

    x  [samples, channels]   ranks may have differently many samples
    returns mean and variance, [channels] each, the same on every rank
    """
    mean = x.mean(0)
    variance = x.var(0, unbiased=False)

    both = torch.stack([mean, variance])
    dist.all_reduce(both)
    mean, variance = both / dist.get_world_size()
    return mean, variance
