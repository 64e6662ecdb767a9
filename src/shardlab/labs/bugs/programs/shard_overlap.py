"""Which samples a rank sees in an epoch."""

import torch
import torch.distributed as dist


def my_samples(samples: int, epoch: int) -> list[int]:
    """This rank's samples of an epoch, in the order of use.

    Together the ranks see every sample once. Every rank gets equally many, so
    up to ``world size - 1`` samples are left over in each epoch.
    The order is random, and another one in every epoch.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    shuffle = torch.Generator().manual_seed(1000 * epoch + rank)
    order: list[int] = torch.randperm(samples, generator=shuffle).tolist()
    share = samples // world
    return order[rank * share : (rank + 1) * share]
