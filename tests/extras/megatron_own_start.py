"""The Megatron-core lab's worker without its common start: what the lab must notice."""

from shardlab.labs import megatron_worker


def worker(ctx):
    megatron_worker.set_weights = lambda model: None
    return megatron_worker.worker(ctx)
