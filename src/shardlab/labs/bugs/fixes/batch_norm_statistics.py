"""Batch normalisation needs the statistics of the whole batch."""

import torch
import torch.distributed as dist
from torch import Tensor


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel over the global batch.

    x  [samples, channels]   ranks may have differently many samples
    returns mean and variance, [channels] each, the same on every rank
    """
    count = torch.tensor(float(len(x)), device=x.device)
    total = x.sum(0)
    dist.all_reduce(count)
    dist.all_reduce(total)
    mean = total / count
    # Around the global mean: a difference of large sums would lose digits.
    squares = (x - mean).square().sum(0)
    dist.all_reduce(squares)
    return mean, squares / count
