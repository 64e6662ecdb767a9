"""Tensor and data parallelism together: ranks form a grid.

With 2-way tensor parallelism, ranks 0 and 1 hold the two halves of one
replica of the model, ranks 2 and 3 those of the next, and so on.
"""

from typing import Any

import torch.distributed as dist


def gradient_group(tensor_parallel: int) -> Any:
    """The process group over which this rank averages its gradients.

    tensor_parallel   ranks that share one replica; divides the world size
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = None
    # Every rank must make every group, in the same order.
    for first in range(0, world, tensor_parallel):
        members = list(range(first, first + tensor_parallel))
        group = dist.new_group(members)
        if rank in members:
            mine = group
    return mine
