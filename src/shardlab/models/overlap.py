"""How much of the gradient all-reduce hides under the backward pass, bucket by bucket, as DDP does it."""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import count, non_negative, positive
from shardlab.models.collectives import ring_allreduce_time_s

DDP_BUCKET_BYTES = 25 * 2**20
"""PyTorch DDP's default bucket, 25 MiB (``bucket_cap_mb=25``)."""


@dataclass(frozen=True)
class Bucket:
    """One bucket of gradients: when its last gradient is there, and when its all-reduce runs (seconds)."""

    n_bytes: float
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class BucketedStep:
    """One data-parallel step whose all-reduce is cut into buckets.

    Attributes:
        forward_s, backward_s: compute of one rank, seconds.
        buckets: in the order in which they are sent.
        step_time_s: from the start of the forward pass to the end of the last all-reduce.
        communication_s: sum of the all-reduce times.
        exposed_communication_s: the part that runs after the backward pass has ended.
    """

    forward_s: float
    backward_s: float
    buckets: list[Bucket]
    step_time_s: float
    communication_s: float
    exposed_communication_s: float


def bucketed_step(
    n_ranks: int,
    forward_s: float,
    backward_s: float,
    n_bytes: float,
    bandwidth: float,
    latency_s: float = 0.0,
    bucket_bytes: float = DDP_BUCKET_BYTES,
) -> BucketedStep:
    """Play one step: gradients appear evenly during the backward pass, full buckets are all-reduced in turn.

    Args:
        n_ranks: number of ranks.
        forward_s, backward_s: compute of one rank, seconds.
        n_bytes: all gradients, bytes.
        bandwidth: bytes/s per rank and direction.
        latency_s: seconds per hop of the ring; every bucket pays it anew.
        bucket_bytes: size of a bucket, bytes; the last one holds what is left.

    Raises:
        ValueError: an argument is out of range, or the buckets are so small that there are over 100,000.

    Assumes that compute and communication do not slow each other down, and one all-reduce at a time.
    Source: Li et al., "PyTorch Distributed", VLDB 2020 (arXiv 2006.15704), sections 3.2.2 and 3.2.3.
    """
    ranks = count("n_ranks", n_ranks)
    forward = non_negative("forward_s", forward_s, "seconds")
    backward = positive("backward_s", backward_s, "seconds")
    total = non_negative("n_bytes", n_bytes, "bytes")
    cap = positive("bucket_bytes", bucket_bytes, "bytes")
    if total > 1e5 * cap:
        raise ValueError(
            f"bucket_bytes must be at least n_bytes / 100000 = {total / 1e5} bytes, not {bucket_bytes!r}"
        )
    compute_end = forward + backward
    buckets: list[Bucket] = []
    sent = busy = 0.0
    link_free = 0.0
    while sent < total:
        size = min(cap, total - sent)
        sent += size
        ready = forward + backward * sent / total
        start = max(ready, link_free)
        duration = ring_allreduce_time_s(size, ranks, bandwidth, latency_s)
        link_free = start + duration
        busy += duration
        buckets.append(Bucket(n_bytes=size, ready_s=ready, start_s=start, end_s=link_free))
    step = max(compute_end, link_free)
    return BucketedStep(
        forward_s=forward,
        backward_s=backward,
        buckets=buckets,
        step_time_s=step,
        communication_s=busy,
        exposed_communication_s=step - compute_end,
    )
