"""The loss of a batch of texts, padded to one length."""

import torch.distributed as dist
from torch import Tensor


def mean_loss(losses: Tensor, mask: Tensor) -> Tensor:
    """Mean loss of a token of the global batch, the same on every rank.

    losses  [texts, length]   each token's loss on this rank, padding included
    mask    [texts, length]   1 for a token, 0 for padding
    A rank may hold more tokens than another; one may hold none at all.
    """
    tokens = mask.sum().clamp(min=1)
    mean = (losses * mask).sum() / tokens
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
