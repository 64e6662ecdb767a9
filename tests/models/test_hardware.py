"""Hardware tables: the published numbers, derived bandwidths, and the mistakes that are refused."""

from __future__ import annotations

import pytest

from shardlab import hardware


@pytest.mark.parametrize(
    ("name", "teraflops", "best", "gigabytes", "terabytes_s"),
    [
        ("A100-40GB", 312, 271.2, 40, 1.555),
        ("A100-80GB", 312, 271.2, 80, 2.0),
        ("H100-80GB", 989, 794.5, 80, 3.35),
        ("H200-141GB", 989, 794.5, 141, 4.8),
        ("B200-180GB", 2250, 1745, 180, 8.0),
        ("GB200-186GB", 2500, 1822, 186, 8.0),
    ],
)
def test_accelerators(name: str, teraflops: float, best: float, gigabytes: float, terabytes_s: float) -> None:
    device = hardware.accelerator(name)
    assert device.peak_flops == teraflops * 1e12
    assert device.matmul_flops == best * 1e12
    assert device.memory_bytes == gigabytes * 1e9
    assert device.memory_bandwidth == pytest.approx(terabytes_s * 1e12)
    assert 0 < device.sustained <= 1
    assert "2026-08" in device.source


def test_every_entry_names_its_source() -> None:
    for name in hardware.NODES:
        node = hardware.node(name)
        assert node.source
        assert node.accelerator.source
        assert node.intra.source
        assert node.nic.source
    for name in hardware.LINKS:
        link = hardware.link(name)
        assert 0 < link.achievable_bandwidth <= link.bandwidth


def test_nodes_share_their_ports() -> None:
    """vTrain's nodes have half of Selene's ports: 800 Gb/s for 8 GPUs."""
    assert hardware.node("a100-4xhdr").network_bandwidth * 8 == pytest.approx(800e9)
    assert hardware.node("dgx-a100").network_bandwidth_per_gpu == pytest.approx(25e9)
    assert hardware.node("a100-4xhdr").network_bandwidth_per_gpu == pytest.approx(12.5e9)
    assert hardware.node("dgx-h100").intra.bandwidth == hardware.nvlink_per_direction(900e9)


def test_clusters_fill_nodes() -> None:
    assert hardware.cluster("dgx-h100", 1024).nodes == 128
    assert hardware.cluster("dgx-h100", 4).nodes == 1
    assert hardware.cluster("dgx-a100", 16).peak_flops == 16 * 312e12
    with pytest.raises(ValueError, match=r"gpus must fill whole nodes of 8, or stay within one, not 12"):
        hardware.cluster("dgx-a100", 12)


@pytest.mark.parametrize("sparse", [624e12, 1979e12, 1978e12, 4500e12, 5000e12])
def test_sparse_peaks_are_refused(sparse: float) -> None:
    with pytest.raises(ValueError, match=r"2:4 sparsity"):
        hardware.custom_accelerator("mine", sparse, 80e9, 3e12)


def test_units_mixed_up_are_refused() -> None:
    with pytest.raises(ValueError, match="FLOP/s, not 989"):
        hardware.dense_peak_flops(989)
    with pytest.raises(ValueError, match="80 GB is 80e9"):
        hardware.custom_accelerator("mine", 989e12, 80, 3.35e12)
    with pytest.raises(ValueError, match="2 TB/s is 2e12"):
        hardware.custom_accelerator("mine", 989e12, 80e9, 3.35)
    with pytest.raises(ValueError, match=r"200 Gb/s is 200e9 / 8"):
        hardware.custom_link("mine", 200)
    with pytest.raises(ValueError, match="matmul_flops must be at most peak_flops"):
        hardware.custom_accelerator("mine", 300e12, 80e9, 2e12, matmul_flops=310e12)
    with pytest.raises(ValueError, match="efficiency must be"):
        hardware.custom_link("mine", 25e9, efficiency=0.0)


def test_your_own_node() -> None:
    chip = hardware.custom_accelerator("mine", 400e12, 96e9, 3e12)
    assert chip.matmul_flops == pytest.approx(340e12)
    fast, slow = hardware.custom_link("in", 200e9), hardware.custom_link("out", 12.5e9)
    node = hardware.custom_node("box", chip, 4, fast, 2, slow)
    assert hardware.cluster_of(node, 16).node.network_bandwidth_per_gpu == pytest.approx(6.25e9)
    for names, read in (
        (hardware.NODES, hardware.node),
        (hardware.LINKS, hardware.link),
        (hardware.ACCELERATORS, hardware.accelerator),
    ):
        assert names
        with pytest.raises(ValueError, match="name must be one of"):
            read("abacus")
