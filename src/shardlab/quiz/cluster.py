"""A small cluster of data-parallel ranks, its prices by the models, and what typical slips give for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardlab.models.collectives import ring_allreduce_sent_bytes, ring_allreduce_time_s
from shardlab.models.scaling import DataParallelStep, data_parallel
from shardlab.quiz.model import Given, decimal
from shardlab.quiz.parts import ms
from shardlab.units import format_bandwidth, format_bytes, format_time

# DDP hides communication under the backward pass, about two thirds of the compute.
BACKWARD = 2 / 3


@dataclass(frozen=True)
class Cluster:
    """Data-parallel ranks: compute per step in seconds, gradients in bytes, bandwidth in bytes/s, latency in seconds."""

    compute_s: float
    n_bytes: float
    bandwidth: float
    latency_s: float

    def ring_s(self, n_ranks: int) -> float:
        """Seconds of one ring all-reduce."""
        return ring_allreduce_time_s(self.n_bytes, n_ranks, self.bandwidth, self.latency_s)

    def latency_term_s(self, n_ranks: int) -> float:
        """The part of it that the hops cost."""
        return ring_allreduce_time_s(0, n_ranks, self.bandwidth, self.latency_s)

    def sent_bytes(self, n_ranks: int) -> float:
        """Bytes that each rank sends in it."""
        return ring_allreduce_sent_bytes(self.n_bytes, n_ranks)

    def step(self, n_ranks: int, scaling: str = "weak", overlap: float = 0.0) -> DataParallelStep:
        """One step by the scaling model."""
        return data_parallel(
            n_ranks,
            self.compute_s,
            self.n_bytes,
            self.bandwidth,
            self.latency_s,
            scaling=scaling,
            overlap=overlap,
        )

    def changed(
        self, compute: float = 1.0, n_bytes: float = 1.0, bandwidth: float = 1.0, latency: float = 1.0
    ) -> Cluster:
        """The same cluster with quantities multiplied."""
        return Cluster(
            compute_s=self.compute_s * compute,
            n_bytes=self.n_bytes * n_bytes,
            bandwidth=self.bandwidth * bandwidth,
            latency_s=self.latency_s * latency,
        )

    def bandwidth_for(self, n_ranks: int, ring_s: float) -> float:
        """Bytes/s with which the all-reduce takes ``ring_s``; infinite if the hops alone take longer."""
        transfer = ring_s - self.latency_term_s(n_ranks)
        return self.sent_bytes(n_ranks) / transfer if transfer > 0 else math.inf


# The cluster of chapter 03, and the slow one beside it.
CHAPTER = Cluster(compute_s=0.1, n_bytes=1e9, bandwidth=10e9, latency_s=10e-6)
SLOW = CHAPTER.changed(bandwidth=0.2)


def given(
    cluster: Cluster,
    n_ranks: int | None = None,
    compute: str = "compute of one rank per step",
    bandwidth: str = "",
) -> tuple[Given, ...]:
    """The cluster as the list of given quantities; ``bandwidth`` replaces its text (``"?"`` asks for it)."""
    rows = []
    if n_ranks is not None:
        rows.append(Given(symbol="N", meaning="ranks", value=str(n_ranks)))
    rows.append(Given(symbol="C", meaning=compute, value=format_time(cluster.compute_s)))
    rows.append(Given(symbol="P", meaning="gradients", value=format_bytes(cluster.n_bytes)))
    link = bandwidth or format_bandwidth(cluster.bandwidth)
    rows.append(Given(symbol="B", meaning="bandwidth of one rank, each way", value=link))
    rows.append(Given(symbol="α", meaning="latency of one hop", value=format_time(cluster.latency_s)))
    return tuple(rows)


def gigabytes_per_s(bandwidth: float) -> str:
    """A bandwidth in GB/s: ``2.38 GB/s``."""
    return decimal(bandwidth / 1e9) + " GB/s"


def gigabits_per_s(bandwidth: float) -> str:
    """The same in the unit of link speeds: ``19.0 Gb/s``."""
    return decimal(bandwidth * 8 / 1e9) + " Gb/s"


def ring_factor(n_ranks: int) -> str:
    """2 (N-1)/N: ``1.75``."""
    return f"{ring_allreduce_sent_bytes(1, n_ranks):.4g}"


def ring_values(cluster: Cluster, n_ranks: int) -> dict[str, str]:
    """The texts that worked steps of a ring all-reduce need."""
    return {
        "N": str(n_ranks),
        "C": format_time(cluster.compute_s),
        "P": format_bytes(cluster.n_bytes),
        "B": format_bandwidth(cluster.bandwidth),
        "hops": str(2 * (n_ranks - 1)),
        "factor": ring_factor(n_ranks),
        "sent": format_bytes(cluster.sent_bytes(n_ranks)),
        "latency": f"{cluster.latency_term_s(n_ranks) * 1e3:.2f} ms",
        "transfer": ms(cluster.ring_s(n_ranks) - cluster.latency_term_s(n_ranks)),
        "T": ms(cluster.ring_s(n_ranks)),
    }


def ring_slips(cluster: Cluster, n_ranks: int) -> list[tuple[Any, ...]]:
    """What typical slips give for the ring all-reduce, in milliseconds."""
    latency = cluster.latency_term_s(n_ranks)
    transfer = cluster.ring_s(n_ranks) - latency
    one_way = cluster.n_bytes / cluster.bandwidth
    return [
        (1e3 * transfer, "no-latency"),
        (1e3 * (2 * one_way + latency), "full-2p"),
        (1e3 * (transfer + latency) / 2, "one-phase"),
        (1e3 * one_way, "single-copy"),
        (1e3 * transfer * n_ranks, "whole-cluster"),
        (1e3 * (transfer * 8 + latency), "bits-for-bytes"),
        (1e3 * (transfer / 8 + latency), "bits-for-bytes"),
    ]


def speedup_slips(
    cluster: Cluster, n_ranks: int, scaling: str = "weak", overlap: float = 0.0
) -> list[tuple[Any, ...]]:
    """What typical slips give for the speedup."""
    step = cluster.step(n_ranks, scaling, overlap)
    other = "strong" if scaling == "weak" else "weak"
    long_ring = 2 * cluster.n_bytes / cluster.bandwidth + cluster.latency_term_s(n_ranks)
    samples = n_ranks if scaling == "weak" else 1
    slips = [
        (step.efficiency, "efficiency-for-speedup"),
        (cluster.step(n_ranks, other, overlap).speedup, other + "-for-" + scaling),
        (n_ranks, "free-lunch"),
    ]
    if scaling == "weak":
        slips.append((step.step_time_s / cluster.compute_s, "step-inflation"))
    if overlap > 0:
        slips.append((cluster.step(n_ranks, scaling, 0.0).speedup, "no-overlap"))
    if overlap < 1:
        slips.append((cluster.step(n_ranks, scaling, 1.0).speedup, "full-overlap"))
    if overlap == 0:
        slips.append((samples * cluster.compute_s / (step.compute_time_s + long_ring), "full-2p"))
    slips.append((cluster.changed(bandwidth=1 / 8).step(n_ranks, scaling, overlap).speedup, "bits-for-bytes"))
    return slips
