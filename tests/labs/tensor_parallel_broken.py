"""The tensor-parallel lab's worker with an f that forgets to add the gradients up: what the lab must notice."""

from shardlab.labs import tensor_parallel_worker
from shardlab.labs.tensor_parallel_worker import CopyIn


def worker(ctx):
    CopyIn.backward = staticmethod(lambda ctx, grad: (grad, None))
    return tensor_parallel_worker.worker(ctx)
