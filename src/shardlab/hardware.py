"""Accelerators, links, nodes and clusters: each number with its unit, its source and the date it was read.

Peaks are bf16, dense. Bandwidths are bytes/s per direction. NVLink's advertised figures count both directions,
and tensor-core figures on data sheets often assume 2:4 sparsity: both are refused with a message here.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import choice, count, fraction, non_negative, positive
from shardlab.units import GB

_SHEET = "NVIDIA data sheet, as tabled in ml-engineering (S. Bekman), read 2026-08"
_MAMF = "; matmul_flops: ml-engineering, maximum achievable matmul FLOPS (mamf-finder), read 2026-08"


@dataclass(frozen=True)
class Accelerator:
    """One device.

    Attributes:
        name: a label.
        peak_flops: bf16 tensor-core peak without sparsity, FLOP/s: the denominator of MFU.
        matmul_flops: the best that large matrix products were measured to reach, FLOP/s.
        sustained: share of ``matmul_flops`` that training holds for long (power limits), 0 to 1. 1 for the A100, on
            which the kernel constants were fitted.
        memory_bytes: HBM, bytes (GB on the sheet, 10**9).
        memory_bandwidth: bytes/s.
        source: where the numbers come from, and when they were read.
    """

    name: str
    peak_flops: float
    matmul_flops: float
    sustained: float
    memory_bytes: float
    memory_bandwidth: float
    source: str


@dataclass(frozen=True)
class Link:
    """One kind of connection, seen from one port.

    Attributes:
        name: a label.
        bandwidth: bytes/s per direction at line rate.
        latency_s: fixed cost of one message or collective, seconds.
        efficiency: share of the line rate that large collectives reach, 0 to 1.
        source: where the numbers come from.
    """

    name: str
    bandwidth: float
    latency_s: float
    efficiency: float
    source: str

    @property
    def achievable_bandwidth(self) -> float:
        """``bandwidth * efficiency``, bytes/s per direction."""
        return self.bandwidth * self.efficiency


@dataclass(frozen=True)
class Node:
    """One server: devices joined by a fast link, and network ports that they share.

    Attributes:
        name: a label.
        accelerator: the device.
        gpus: devices in the node (in the NVLink domain, for rack-scale systems).
        intra: the link between them; its bandwidth is per device and direction.
        nics: network ports for training traffic.
        nic: one port.
        source: where the shape comes from.
    """

    name: str
    accelerator: Accelerator
    gpus: int
    intra: Link
    nics: int
    nic: Link
    source: str

    @property
    def network_bandwidth(self) -> float:
        """All ports together, bytes/s per direction at line rate."""
        return self.nics * self.nic.bandwidth

    @property
    def network_bandwidth_per_gpu(self) -> float:
        """One device's share of the ports when all send, bytes/s per direction."""
        return self.network_bandwidth / self.gpus


@dataclass(frozen=True)
class Cluster:
    """Equal nodes and the devices used on them.

    Attributes:
        name: a label.
        node: the node.
        gpus: devices in use; a multiple of ``node.gpus``, or fewer than one node has.
    """

    name: str
    node: Node
    gpus: int

    @property
    def nodes(self) -> int:
        """Nodes in use."""
        return (self.gpus + self.node.gpus - 1) // self.node.gpus

    @property
    def peak_flops(self) -> float:
        """Dense bf16 peak of all devices, FLOP/s."""
        return self.gpus * self.node.accelerator.peak_flops


_HOPPER = "; sustained: from one measured step, Llama 3 405B on 8,192 H100 at 430 TFLOP/s (arXiv 2407.21783, Table 4, row 1)"
_BLACKWELL = "; sustained: assumed as on the H100"


def _accelerator(
    name: str,
    peak: float,
    best: float,
    sustained: float,
    memory_gb: float,
    terabytes_s: float,
    source: str,
) -> Accelerator:
    return Accelerator(
        name=name,
        peak_flops=peak * 1e12,
        matmul_flops=best * 1e12,
        sustained=sustained,
        memory_bytes=memory_gb * GB,
        memory_bandwidth=terabytes_s * 1e12,
        source=source,
    )


_ACCELERATORS = (
    # name, peak TFLOP/s, measured matmul TFLOP/s, sustained, HBM GB, HBM TB/s
    _accelerator("A100-40GB", 312, 271.2, 1.0, 40, 1.555, _SHEET + _MAMF + " (on the 80 GB card, same chip)"),
    _accelerator("A100-80GB", 312, 271.2, 1.0, 80, 2.0, _SHEET + _MAMF),
    _accelerator("H100-80GB", 989, 794.5, 0.85, 80, 3.35, _SHEET + _MAMF + _HOPPER),
    _accelerator(
        "H200-141GB", 989, 794.5, 0.85, 141, 4.8, _SHEET + _MAMF + " (of the H100, same chip)" + _HOPPER
    ),
    _accelerator(
        "B200-180GB",
        2250,
        1745,
        0.85,
        180,
        8.0,
        _SHEET + _MAMF + _BLACKWELL + "; the chip's sheet says 192 GB",
    ),
    _accelerator("GB200-186GB", 2500, 1822, 0.85, 186, 8.0, _SHEET + _MAMF + _BLACKWELL),
)

ACCELERATORS = tuple([item.name for item in _ACCELERATORS])

_NVLINK = "NVIDIA data sheet, half of the advertised sum of both directions"
_NVLINK_FIT = "; efficiency and latency: fitted to the all-reduce times of 2, 4 and 8 A100 that vTrain publishes (trace/a100, MIT)"
# Measured: 8 x A100 229 of 300 GB/s at 1 GiB (vTrain, ml-engineering); H200 without in-switch reduction 368 of 450.
_NVLINK_EFFICIENCY = 0.81
_NVLINK_LATENCY_S = 50e-6
_NIC = "line rate; what collectives reach of it: network_efficiency and gradient_efficiency in shardlab.models.kernels"

_LINKS = (
    Link(
        name="NVLink3",
        bandwidth=300e9,
        latency_s=_NVLINK_LATENCY_S,
        efficiency=_NVLINK_EFFICIENCY,
        source=_NVLINK + _NVLINK_FIT,
    ),
    Link(
        name="NVLink4",
        bandwidth=450e9,
        latency_s=_NVLINK_LATENCY_S,
        efficiency=_NVLINK_EFFICIENCY,
        source=_NVLINK + _NVLINK_FIT + ", taken over for this generation",
    ),
    Link(
        name="NVLink5",
        bandwidth=900e9,
        latency_s=_NVLINK_LATENCY_S,
        efficiency=_NVLINK_EFFICIENCY,
        source=_NVLINK + _NVLINK_FIT + ", taken over for this generation",
    ),
    Link(
        name="PCIe4-x16",
        bandwidth=31e9,
        latency_s=50e-6,
        efficiency=0.8,
        source="ml-engineering, read 2026-08; efficiency assumed",
    ),
    Link(
        name="PCIe5-x16",
        bandwidth=63e9,
        latency_s=50e-6,
        efficiency=0.87,
        source="ml-engineering, read 2026-08; 55 of 63 GB/s measured there",
    ),
    Link(
        name="HDR-200Gb/s",
        bandwidth=25e9,
        latency_s=20e-6,
        efficiency=1.0,
        source="InfiniBand HDR 4x, 200 Gb/s: " + _NIC,
    ),
    Link(
        name="NDR-400Gb/s",
        bandwidth=50e9,
        latency_s=20e-6,
        efficiency=1.0,
        source="InfiniBand NDR 4x or 400 GbE, 400 Gb/s: " + _NIC,
    ),
    Link(
        name="XDR-800Gb/s",
        bandwidth=100e9,
        latency_s=20e-6,
        efficiency=1.0,
        source="InfiniBand XDR 4x, 800 Gb/s: " + _NIC,
    ),
    Link(
        name="EFA-100Gb/s",
        bandwidth=12.5e9,
        latency_s=30e-6,
        efficiency=1.0,
        source="AWS EFA, one 100 Gb/s card: " + _NIC,
    ),
    Link(
        name="Ethernet-100Gb/s", bandwidth=12.5e9, latency_s=50e-6, efficiency=1.0, source="100 Gb/s: " + _NIC
    ),
    Link(
        name="Ethernet-25Gb/s", bandwidth=3.125e9, latency_s=50e-6, efficiency=1.0, source="25 Gb/s: " + _NIC
    ),
    Link(
        name="Ethernet-10Gb/s", bandwidth=1.25e9, latency_s=50e-6, efficiency=1.0, source="10 Gb/s: " + _NIC
    ),
)

LINKS = tuple([item.name for item in _LINKS])

_NODES = (
    # name, accelerator, gpus, intra, nics, nic, source
    ("dgx-a100", "A100-80GB", 8, "NVLink3", 8, "HDR-200Gb/s", "SC21 (arXiv 2104.04473), section 5: 8 HDR ports per DGX A100"),
    ("a100-4xhdr", "A100-80GB", 8, "NVLink3", 4, "HDR-200Gb/s", "vTrain (arXiv 2312.12391): 8 A100 and 800 Gb/s per node"),
    ("p4d", "A100-40GB", 8, "NVLink3", 4, "EFA-100Gb/s", "AWS p4d.24xlarge: 8 A100 40 GB, 400 Gb/s"),
    ("a100-pcie", "A100-80GB", 8, "PCIe4-x16", 1, "HDR-200Gb/s", "a common server without NVLink, one port"),
    ("dgx-h100", "H100-80GB", 8, "NVLink4", 8, "NDR-400Gb/s", "NVIDIA DGX H100 data sheet: 8 ports of 400 Gb/s"),
    ("dgx-h200", "H200-141GB", 8, "NVLink4", 8, "NDR-400Gb/s", "NVIDIA DGX H200 data sheet: 8 ports of 400 Gb/s"),
    ("dgx-b200", "B200-180GB", 8, "NVLink5", 8, "NDR-400Gb/s", "NVIDIA DGX B200 data sheet: 8 ports of 400 Gb/s"),
    ("gb200-nvl72", "GB200-186GB", 72, "NVLink5", 72, "NDR-400Gb/s", "NVIDIA GB200 NVL72: 72 GPUs in one NVLink domain, a port each"),
)  # fmt: skip

NODES = tuple([row[0] for row in _NODES])


def accelerator(name: str) -> Accelerator:
    """A known device by name, one of :data:`ACCELERATORS`.

    Raises:
        ValueError: no device has that name.
    """
    return _ACCELERATORS[ACCELERATORS.index(choice("name", name, ACCELERATORS))]


def link(name: str) -> Link:
    """A known link by name, one of :data:`LINKS`.

    Raises:
        ValueError: no link has that name.
    """
    return _LINKS[LINKS.index(choice("name", name, LINKS))]


def node(name: str) -> Node:
    """A known node by name, one of :data:`NODES`.

    Raises:
        ValueError: no node has that name.
    """
    key = choice("name", name, NODES)
    label, chip, gpus, intra, nics, nic, source = _NODES[NODES.index(key)]
    return Node(
        name=label,
        accelerator=accelerator(chip),
        gpus=gpus,
        intra=link(intra),
        nics=nics,
        nic=link(nic),
        source=source,
    )


def cluster(node_name: str, gpus: int) -> Cluster:
    """``gpus`` devices on nodes of a known kind, filled one after the other.

    Raises:
        ValueError: no node has that name, or the last node would be partly filled.
    """
    return cluster_of(node(node_name), gpus)


def cluster_of(kind: Node, gpus: int) -> Cluster:
    """``gpus`` devices on nodes of the given kind.

    Raises:
        ValueError: more than one node and the last would be partly filled.
    """
    size = count("gpus", gpus)
    if size > kind.gpus and size % kind.gpus:
        raise ValueError(f"gpus must fill whole nodes of {kind.gpus}, or stay within one, not {size}")
    return Cluster(name=f"{size} x {kind.accelerator.name} ({kind.name})", node=kind, gpus=size)


# ---------------------------------------------------------------- your own numbers


def dense_peak_flops(value: float, name: str = "peak_flops") -> float:
    """``value`` if it is plausible as a dense bf16 peak in FLOP/s.

    Raises:
        ValueError: it looks like TFLOP/s, or it is twice a known dense peak: a figure with 2:4 sparsity (or fp8).
    """
    number = positive(name, value, "FLOP/s")
    if number < 1e9:
        raise ValueError(f"{name} must be in FLOP/s, not {value!r}: for TFLOP/s multiply by 1e12")
    for item in _ACCELERATORS:
        sparse = 2 * item.peak_flops
        if abs(number - sparse) < 0.012 * sparse:
            raise ValueError(
                f"{name} must be the dense bf16 peak: {number / 1e12:g} TFLOP/s is twice the {item.name}'s "
                f"{item.peak_flops / 1e12:g}, the figure with 2:4 sparsity (or in fp8), which dense training does not reach"
            )
    return number


def custom_accelerator(
    name: str,
    peak_flops: float,
    memory_bytes: float,
    memory_bandwidth: float,
    matmul_flops: float | None = None,
    sustained: float = 1.0,
) -> Accelerator:
    """A device from your own numbers, in SI units.

    Args:
        peak_flops: dense bf16 peak, FLOP/s.
        memory_bytes: bytes.
        memory_bandwidth: bytes/s.
        matmul_flops: measured best of large matrix products; 85 % of the peak when not given (A100 87 %, H100 80 %).
        sustained: share of it that long training holds.

    Raises:
        ValueError: a number is out of range, looks like another unit, or like a sparse peak.
    """
    peak = dense_peak_flops(peak_flops)
    memory = positive("memory_bytes", memory_bytes, "bytes")
    if memory < 1e8:
        raise ValueError(f"memory_bytes must be in bytes, not {memory_bytes!r}: 80 GB is 80e9")
    speed = positive("memory_bandwidth", memory_bandwidth, "bytes/s")
    if speed < 1e9:
        raise ValueError(f"memory_bandwidth must be in bytes/s, not {memory_bandwidth!r}: 2 TB/s is 2e12")
    best = 0.85 * peak if matmul_flops is None else positive("matmul_flops", matmul_flops, "FLOP/s")
    if best > peak:
        raise ValueError(f"matmul_flops must be at most peak_flops = {peak:g} FLOP/s, not {matmul_flops!r}")
    return Accelerator(
        name=name,
        peak_flops=peak,
        matmul_flops=best,
        sustained=positive("sustained", fraction("sustained", sustained)),
        memory_bytes=memory,
        memory_bandwidth=speed,
        source="the caller",
    )


def custom_link(name: str, bandwidth: float, latency_s: float = 20e-6, efficiency: float = 1.0) -> Link:
    """A link from your own numbers: bytes/s per direction, not bits, and not the sum of both directions.

    Raises:
        ValueError: a number is out of range or looks like Gb/s or GB/s.
    """
    speed = positive("bandwidth", bandwidth, "bytes/s")
    if speed < 1e6:
        raise ValueError(
            f"bandwidth must be in bytes/s, not {bandwidth!r}: 25 GB/s is 25e9, and 200 Gb/s is 200e9 / 8 = 25e9"
        )
    share = fraction("efficiency", efficiency)
    positive("efficiency", share)
    return Link(
        name=name,
        bandwidth=speed,
        latency_s=non_negative("latency_s", latency_s, "seconds"),
        efficiency=share,
        source="the caller",
    )


def nvlink_per_direction(advertised: float) -> float:
    """Bytes/s per direction from NVLink's advertised figure, which adds both directions: 900 GB/s is 450 each way.

    Raises:
        ValueError: not a positive number.
    """
    return positive("advertised", advertised, "bytes/s") / 2


def custom_node(name: str, device: Accelerator, gpus: int, intra: Link, nics: int, nic: Link) -> Node:
    """A server from your own numbers.

    Raises:
        ValueError: a count is not a whole number from 1.
    """
    return Node(
        name=name,
        accelerator=device,
        gpus=count("gpus", gpus),
        intra=intra,
        nics=count("nics", nics),
        nic=nic,
        source="the caller",
    )
