"""The pieces under a prediction: kernels and collectives against measurements, and what each software setting does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import hardware
from shardlab.hardware import cluster
from shardlab.models import kernels
from shardlab.models.kernels import CONSTANTS, group_bandwidth, layer_time, matmul_time_s, rates
from shardlab.models.software import SOFTWARE, software_named
from shardlab.transformer import gpt, layer_params, llama, preset, transformer

A100 = cluster("dgx-a100", 512)


@pytest.mark.parametrize(
    ("ranks", "n_bytes", "seconds"),
    [
        (2, 100_663_296, 572.0e-6),
        (2, 301_989_888, 1622.8e-6),
        (4, 100_663_296, 762.7e-6),
        (4, 301_989_888, 2139.4e-6),
        (8, 25_165_824, 265.3e-6),
        (8, 100_663_296, 828.5e-6),
        (8, 301_989_888, 2380.6e-6),
        (8, 1_073_741_824, 8193e-6),
    ],
)
def test_all_reduce_in_a_node_against_measurements(ranks: int, n_bytes: int, seconds: float) -> None:
    """vTrain's NCCL table of 2, 4 and 8 A100 (trace/a100, MIT licence): within 10 %."""
    speed, latency = group_bandwidth(A100, ranks, 1, CONSTANTS.network_efficiency)
    made = 2 * (ranks - 1) / ranks * n_bytes / speed + latency
    assert made == pytest.approx(seconds, rel=0.10)


def test_h200_ring_bandwidth() -> None:
    """8 H200 without in-switch reduction: 367.6 GB/s busbw measured (ml-engineering, 2026-08)."""
    speed, _ = group_bandwidth(cluster("dgx-h200", 8), 8, 1, 1.0)
    assert speed == pytest.approx(367.6e9, rel=0.08)


def test_groups_share_the_ports_of_a_node() -> None:
    """A group with one member per node has 1/8 of the ports, with two members 2/8, and with all eight all of them."""
    one, _ = group_bandwidth(A100, 64, 8, 1.0)
    two, _ = group_bandwidth(A100, 64, 4, 1.0)
    all_of_it, _ = group_bandwidth(A100, 512, 1, 1.0)
    assert one == pytest.approx(25e9)
    assert two == pytest.approx(50e9)
    assert all_of_it == pytest.approx(200e9)
    inside, _ = group_bandwidth(A100, 8, 1, 1.0)
    assert inside > all_of_it
    assert kernels.members_per_node(64, 4, 8) == 2
    assert kernels.members_per_node(64, 16, 8) == 1


def test_rings_pay_per_hop() -> None:
    """1,024 ranks: 127 hops across the network and 896 inside nodes, 4.3 ms; two ranks of one node: 3.4 µs."""
    assert kernels.ring_latency_s(cluster("dgx-h100", 1024), 1024, 1) == pytest.approx(
        127 * 9.6e-6 + 896 * 3.4e-6
    )
    assert kernels.ring_latency_s(A100, 2, 1) == pytest.approx(3.4e-6)
    assert kernels.ring_latency_s(A100, 64, 8) == pytest.approx(63 * 9.6e-6)
    assert kernels.ring_latency_s(A100, 1, 1) == 0


def test_large_products_reach_the_measured_rate_and_small_ones_do_not() -> None:
    """8,192-cubed products: above 90 % of the A100's measured 271 TFLOP/s; 512-cubed: below half of it."""
    rate = rates(A100)
    large = 2 * 8192**3 / matmul_time_s(rate, 8192, 8192, 8192)
    small = 2 * 512**3 / matmul_time_s(rate, 512, 512, 512)
    assert 0.90 * 271e12 < large < 271.2e12
    assert small < 0.5 * 271e12


@given(
    m=st.integers(64, 16_384), n=st.integers(64, 16_384), k=st.integers(64, 16_384), more=st.integers(1, 4096)
)
def test_a_product_is_symmetric_and_grows(m: int, n: int, k: int, more: int) -> None:
    rate = rates(A100)
    base = matmul_time_s(rate, m, n, k)
    assert matmul_time_s(rate, n, k, m) == pytest.approx(base)
    assert matmul_time_s(rate, m + more, n, k) > base
    assert base >= 2 * m * n * k / rate.matmul


@pytest.mark.parametrize("software", SOFTWARE)
@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "mixtral-8x7b"])
def test_a_layer_splits_as_it_should(software: str, name: str) -> None:
    """Tensor parallelism divides compute, adds traffic; recomputation repeats; backward costs about twice forward."""
    model, stack = preset(name), software_named(software)

    def one(tensor: int = 1, recompute: str = "none", sequence_parallel: bool = False) -> kernels.LayerTime:
        return layer_time(
            model,
            A100,
            stack,
            2048,
            1,
            tensor,
            sequence_parallel=sequence_parallel,
            recompute=recompute,
        )

    whole, part = one(), one(8)
    assert whole.tensor_forward == whole.tensor_backward == 0
    assert part.tensor_forward > 0
    assert whole.forward / 8 < part.forward < whole.forward / 4
    assert 1.6 < (whole.backward_input + whole.backward_weight - stack.layer_overhead_s) / whole.forward < 3.2
    full = one(8, "full")
    assert full.recompute == pytest.approx(part.forward)
    assert full.tensor_backward > part.tensor_backward
    assert one(8, "selective").recompute < full.recompute
    split = one(8, sequence_parallel=True)
    assert split.forward < part.forward
    assert split.tensor_forward == pytest.approx(CONSTANTS.sequence_parallel_factor * part.tensor_forward)
    assert 0 <= part.tensor_hidden <= part.tensor_backward
    assert (part.tensor_hidden > 0) == stack.overlaps_tensor


def test_forward_time_is_mostly_its_flops() -> None:
    """A large layer's forward runs at 65 to 95 % of the measured matmul rate, so no kernel dominates by mistake."""
    model = llama(1, 8192, 64, 8, 28_672, 128_256)
    made = layer_time(model, A100, software_named("megatron-core"), 4096, 1)
    flops = 4096 * 2 * layer_params(model)
    assert 0.65 < flops / made.forward / 271.2e12 < 0.95


def test_flash_attention_replaces_score_traffic() -> None:
    model = gpt(1, 4096, 32)
    unfused = layer_time(model, A100, software_named("megatron-2022"), 8192, 1)
    fused = layer_time(model, A100, software_named("megatron-core"), 8192, 1)
    assert fused.forward < 0.6 * unfused.forward


def test_context_exchange_hides_beside_attention_when_blocks_are_long() -> None:
    model, stack = preset("llama3-8b"), software_named("megatron-core")
    long = layer_time(model, A100, stack, 131_072, 1, context=8)
    short = layer_time(model, A100, stack, 1024, 1, context=8)
    assert long.context_forward + long.context_backward == pytest.approx(long.context_hidden)
    assert short.context_forward + short.context_backward > short.context_hidden


def test_routed_layers_compute_what_is_active() -> None:
    """Eight experts of which two are active take about as long as a dense layer twice as wide as one expert."""
    routed = transformer(1, 4096, 32, 1000, gated=True, norm="rmsnorm", experts=8, top_k=2, expert_ffn=8192)
    dense = transformer(1, 4096, 32, 1000, gated=True, norm="rmsnorm", ffn=16_384)
    stack = software_named("megatron-core")
    ratio = layer_time(routed, A100, stack, 4096, 2).forward / layer_time(dense, A100, stack, 4096, 2).forward
    assert 1.0 < ratio < 1.35
    assert layer_time(routed, A100, stack, 4096, 2, expert=8).expert_forward > 0


def test_sustained_rate_slows_the_hopper_only() -> None:
    for name, share in (("dgx-a100", 1.0), ("dgx-h100", 0.85)):
        where = cluster(name, 8)
        chip = where.node.accelerator
        assert rates(where).matmul == pytest.approx(chip.matmul_flops * share * CONSTANTS.matmul_efficiency)
    mine = hardware.custom_accelerator("mine", 400e12, 80e9, 2e12, sustained=0.5)
    assert mine.sustained == 0.5
