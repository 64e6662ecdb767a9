"""A ring lab whose ring is wrong: it skips the adding, and sends one chunk too many."""

from __future__ import annotations

import torch.distributed as dist

from shardlab.labs import ring_worker


def careless_ring(buffer, group=None):
    """Overwrites where it should add, and starts with a step that nobody asked for."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = buffer.view(-1).tensor_split(n)
    gathering = range(n - 1, 2 * (n - 1))
    return sum(
        [
            ring_worker.ring_step(chunks, step, rank, group)
            for step in (n - 1, *gathering, *gathering)
            if n > 1
        ]
    )


def worker(ctx):
    ring_worker.METHODS["ring"] = careless_ring
    return ring_worker.worker(ctx)
