"""Measurements and constants of others, as data: each table with its source and date. Nothing here computes.

Rates are bytes/s, sizes bytes, times seconds, unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

_GB = 1e9
_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True)
class MeasuredCollective:
    """One table of measured bus bandwidths.

    Attributes:
        machine: what ran.
        collective: as in :data:`shardlab.models.collectives.COLLECTIVES`.
        n_ranks, n_nodes: ranks and nodes of the run.
        link_bandwidth: nominal bytes/s per GPU and direction of the slowest level: NVLink, or the NIC if several nodes.
        n_bytes: buffer sizes, bytes.
        busbw: bus bandwidths, bytes/s, one per size.
        source, date: where the numbers come from, and when that was written.
    """

    machine: str
    collective: str
    n_ranks: int
    n_nodes: int
    link_bandwidth: float
    n_bytes: tuple[int, ...]
    busbw: tuple[float, ...]
    source: str
    date: str


_ML_ENGINEERING = "stas00/ml-engineering, network chapter, all_reduce benchmark"
_SIZES = (_MIB, 16 * _MIB, 128 * _MIB, _GIB, 4 * _GIB, 16 * _GIB)


def _all_reduce(
    machine: str, ranks: int, nodes: int, link: float, busbw: tuple[float, ...]
) -> MeasuredCollective:
    return MeasuredCollective(
        machine=machine,
        collective="all-reduce",
        n_ranks=ranks,
        n_nodes=nodes,
        link_bandwidth=link * _GB,
        n_bytes=_SIZES,
        busbw=tuple([rate * _GB for rate in busbw]),
        source=_ML_ENGINEERING,
        date="2026-08",
    )


ALL_REDUCE = (
    _all_reduce("8×A100 (NVLink 3)", 8, 1, 300, (18.0, 106.2, 176.9, 229.0, 233.9, 234.9)),
    _all_reduce("8×H200 (NVLink 4)", 8, 1, 450, (39.93, 219.89, 401.93, 463.58, 473.10, 482.26)),
    _all_reduce("8×B200 (NVLink 5)", 8, 1, 900, (36.06, 254.96, 568.38, 723.34, 740.64, 845.67)),
    _all_reduce("4 nodes of 8×B200 (EFA)", 32, 4, 50, (5.37, 64.43, 197.94, 361.99, 377.34, 381.80)),
)
"""All-reduce by buffer size. The single-node H200 and B200 runs reduce inside NVSwitch (NVLS): their bus bandwidth
may exceed the link, since it assumes point-to-point transfers."""

A100_ALL_REDUCE_TIMES_S = ((_MIB, 101.9e-6), (_GIB, 8.20e-3))
"""Times printed beside the 8×A100 rows, (bytes, seconds). vTrain's A100 table has 8.193 ms for the second."""

H200_RING_ALL_REDUCE_BUSBW = 367.6 * _GB
"""8×H200 with NVLS switched off: 82 % of the 450 GB/s link (same source)."""


@dataclass(frozen=True)
class BusBandwidthByNodes:
    """Median bus bandwidth of one collective by number of 8-GPU nodes, bytes/s."""

    machine: str
    collective: str
    n_nodes: tuple[int, ...]
    busbw: tuple[float, ...]
    source: str
    date: str


def _by_nodes(collective: str, busbw: tuple[float, ...]) -> BusBandwidthByNodes:
    return BusBandwidthByNodes(
        machine="nodes of 8×H100",
        collective=collective,
        n_nodes=(1, 2, 4, 8, 16, 32, 64),
        busbw=tuple([rate * _GB for rate in busbw]),
        source="Hugging Face, The Ultra-Scale Playbook, collective benchmarks (x-axis read as log2 of the nodes)",
        date="2025-02",
    )


H100_BY_NODES = (
    _by_nodes("all-reduce", (436.0, 361.7, 160.1, 99.6, 84.7, 64.9, 32.9)),
    _by_nodes("all-gather", (249.8, 184.6, 119.0, 69.0, 55.0, 28.0, 11.0)),
    _by_nodes("reduce-scatter", (249.7, 181.6, 115.8, 68.6, 54.5, 27.9, 11.1)),
)
"""How bus bandwidth falls with nodes on a real cluster."""


@dataclass(frozen=True)
class NcclTuning:
    """Constants of NCCL's tuning model; triples are for the protocols LL, LL128 and Simple, microseconds."""

    ring_base_us: tuple[float, float, float]
    tree_base_us: tuple[float, float, float]
    ring_latency_us: dict[str, tuple[float, float, float]]
    tree_latency_us: dict[str, tuple[float, float, float]]
    ll_inter_node_factor: float
    ring_plateau_factor: float
    source: str


NCCL_TUNING = NcclTuning(
    ring_base_us=(3.6, 10.0, 8.4),
    tree_base_us=(4.4, 4.4, 0.0),
    ring_latency_us={"NVLink": (0.47, 1.9, 3.4), "PCI": (1.0, 2.5, 5.7), "network": (2.7, 4.0, 9.6)},
    tree_latency_us={"NVLink": (0.52, 1.2, 28.0), "PCI": (1.0, 1.9, 28.0), "network": (5.0, 8.5, 50.0)},
    ll_inter_node_factor=1.8,
    ring_plateau_factor=1.9,
    source="NVIDIA/nccl, src/graph/tuning.cc, commit 01afd20a77b5804e0ecf1042509dd9d20ebf9e93 (about v2.8)",
)
"""The model NCCL chooses its algorithm with. Later versions changed the constants."""

DDP_OVERLAP_SPEEDUP = {
    ("ResNet-50", "NCCL"): 0.380,
    ("BERT", "NCCL"): 0.352,
    ("ResNet-50", "gloo"): 0.268,
    ("BERT", "gloo"): 0.215,
}
"""The speed-up that overlapping the all-reduce with the backward pass brought in DDP, as its authors report it.

Source: Li et al., "PyTorch Distributed", VLDB 2020 (arXiv 2006.15704), section 5.1.
"""
