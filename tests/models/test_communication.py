"""Traffic per optimizer step: ZeRO's volumes, accumulation, hybrid sharding, ZeRO++, and whole layouts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import communication as comm
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.pipeline_formulas import p2p_sent_bytes

# ---------------------------------------------------------------- ZeRO, section 7


@pytest.mark.parametrize(("stage", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_section_7(stage: int, volume: int) -> None:
    """2Ψ, 2Ψ, 2Ψ, 3Ψ elements per process (the ring sends (N-1)/N of each)."""
    step = comm.data_traffic(1e9, 64, stage)
    assert step.total_bytes == pytest.approx(volume * 1e9 * 2 * 63 / 64)


@pytest.mark.parametrize("g", [1, 2, 8, 32])
def test_accumulation(g: int) -> None:
    """With G micro-batches: 2, 2, G + 1, 3G, and 2G when weights are kept after the forward pass."""
    unit = 1e9 * 2 * 7 / 8
    volumes = [comm.data_traffic(1e9, 8, stage, g).total_bytes / unit for stage in range(4)]
    assert volumes == pytest.approx([2, 2, g + 1, 3 * g])
    kept = comm.data_traffic(1e9, 8, 3, g, reshard_after_forward=False)
    assert kept.total_bytes / unit == pytest.approx(2 * g)
    every = comm.data_traffic(1e9, 8, 0, g, sync_every_micro_batch=True)
    assert every.total_bytes / unit == pytest.approx(2 * g)
    assert comm.zero_volume_ratio(2, g) == pytest.approx((g + 1) / 2)
    assert comm.zero_volume_ratio(3, g, reshard_after_forward=False) == pytest.approx(g)


def test_weights_kept_after_the_backward_pass() -> None:
    """Gathered once, weights serve all micro-batches; freed after forward passes only, G + 1 gathers remain."""
    never = comm.data_traffic(1e9, 8, 3, 4, reshard_after_forward=False, reshard_after_backward=False)
    assert (never.weight_gathers, never.gradient_reductions) == (1, 4)
    forward = comm.data_traffic(1e9, 8, 3, 4, reshard_after_backward=False)
    assert forward.weight_gathers == 5
    no_sync = comm.data_traffic(1e9, 8, 3, 4, sync_every_micro_batch=False)
    assert (no_sync.weight_gathers, no_sync.gradient_reductions) == (8, 1)


@settings(deadline=None, max_examples=60)
@given(params=st.floats(1, 1e12), ranks=st.integers(1, 4096), width=st.sampled_from([2.0, 4.0]))
def test_plain_data_parallelism_is_the_ring_all_reduce(params: float, ranks: int, width: float) -> None:
    step = comm.data_traffic(params, ranks, 0, gradient_bytes=width)
    assert step.total_bytes == pytest.approx(ring_allreduce_sent_bytes(params * width, ranks))
    assert step.all_gather_bytes == step.reduce_scatter_bytes == 0


@settings(deadline=None, max_examples=60)
@given(ranks=st.integers(2, 512), g=st.integers(1, 64), stage=st.integers(0, 3))
def test_volume_never_falls_with_the_stage_and_saturates_with_ranks(ranks: int, g: int, stage: int) -> None:
    here = comm.data_traffic(1e9, ranks, stage, g).total_bytes
    assert here <= comm.data_traffic(1e9, ranks, min(stage + 1, 3), g).total_bytes * (1 + 1e-12)
    more = comm.data_traffic(1e9, 2 * ranks, stage, g).total_bytes
    assert here < more <= here * ranks / (ranks - 1)


def test_different_widths_on_the_wire() -> None:
    """fp32 gradients beside 16-bit weights (Llama 3): reduce-scatter 4 bytes, all-gathers 2 bytes."""
    step = comm.data_traffic(405e9, 8, 3, gradient_bytes=4, reshard_after_forward=False)
    assert step.reduce_scatter_bytes == pytest.approx(2 * step.all_gather_bytes)


def test_one_rank_sends_nothing() -> None:
    for stage in range(4):
        assert comm.data_traffic(1e9, 1, stage, 4).total_bytes == 0


# ---------------------------------------------------------------- FSDP


def test_fsdp_paper_formulas() -> None:
    """2M(W-1)/W, 3M(W-1)/W, 2M(W-1)/(GW)."""
    m, w, g = 2e9, 512, 8
    for strategy, expected in (
        ("NO_SHARD", 2 * m * (w - 1) / w),
        ("FULL_SHARD", 3 * m * (w - 1) / w),
        ("HYBRID_SHARD", 2 * m * (w - 1) / (g * w)),
    ):
        assert comm.fsdp_cross_host_bytes(strategy, m, w, g) == pytest.approx(expected)


@pytest.mark.parametrize(("nodes", "paper_over_exact"), [(2, 15 / 8), (4, 31 / 24), (64, 511 / 504)])
def test_hybrid_formula_of_the_paper_is_an_upper_bound(nodes: int, paper_over_exact: float) -> None:
    """The all-reduce runs over W/G replicas, so the exact volume is 2M(W-G)/(GW): the paper's is (W-1)/(W-G) of it."""
    ranks = 8 * nodes
    exact = comm.hybrid_shard_traffic(1e9, ranks, 8).across_bytes
    assert exact == pytest.approx(2 * 2e9 * (ranks - 8) / (8 * ranks))
    assert comm.fsdp_cross_host_bytes("HYBRID_SHARD", 2e9, ranks, 8) / exact == pytest.approx(
        paper_over_exact
    )


def test_hybrid_ends_are_full_sharding_and_replication() -> None:
    whole = comm.hybrid_shard_traffic(1e9, 8, 8)
    assert whole.across_bytes == 0
    assert whole.inside_bytes == pytest.approx(comm.data_traffic(1e9, 8, 3).total_bytes)
    alone = comm.hybrid_shard_traffic(1e9, 8, 1)
    assert alone.inside_bytes == 0
    assert alone.total_bytes == pytest.approx(comm.data_traffic(1e9, 8, 0).total_bytes)


def test_hybrid_accumulation_postpones_the_slow_network_only() -> None:
    one, four = (comm.hybrid_shard_traffic(1e9, 64, 8, micro_batches=g) for g in (1, 4))
    assert four.inside_bytes == pytest.approx(4 * one.inside_bytes)
    assert four.across_bytes == one.across_bytes
    every = comm.hybrid_shard_traffic(1e9, 64, 8, micro_batches=4, all_reduce_every_micro_batch=True)
    assert every.across_bytes == pytest.approx(4 * one.across_bytes)


def test_zero_plus_plus() -> None:
    """3M becomes 0.75M: 0.5 + 0 + 0.25 (arXiv 2306.10209)."""
    assert comm.zero_plus_plus().total == 0.75
    plain = comm.zero_plus_plus(8, False, False, False)
    assert plain.total == 3
    assert plain.extra_bytes_per_param == 0
    assert comm.zero_plus_plus(8, hierarchical_partition=False).total == 0.5 + 0.5 + 0.25
    assert comm.zero_plus_plus(8).extra_bytes_per_param == 0.25


# ---------------------------------------------------------------- pipeline and layouts


def test_boundary() -> None:
    """b s h elements each way; 1/t of it with scatter/gather."""
    assert comm.boundary_bytes(2048, 1, 12288) == 2 * 2048 * 12288
    assert comm.boundary_bytes(2048, 1, 12288, 8, scatter_gather=True) == 2 * 2048 * 12288 / 8
    assert comm.boundary_bytes(2048, 1, 12288, 8) == 2 * 2048 * 12288
    assert comm.boundary_bytes(2048, 1, 12288, context_parallel=4) == 2 * 512 * 12288


GPT3 = {"params": 175e9, "layers": 96, "sequence": 2048, "micro_batch": 1, "hidden": 12288, "heads": 96}


def test_gpt3_layout_by_hand() -> None:
    """t 8, p 8, d 8, 24 micro-batches, 12 layers a stage, checked axis by axis."""
    step = comm.layout_traffic(
        **GPT3,  # type: ignore[arg-type]
        micro_batches=24,
        data_parallel=8,
        tensor_parallel=8,
        pipeline_parallel=8,
        zero_stage=1,
    )
    bsh = 2048 * 12288 * 2
    assert step.data == pytest.approx(2 * 7 / 8 * 2 * 175e9 / 64)
    assert step.tensor == pytest.approx(24 * 12 * 8 * bsh * 7 / 8)
    assert step.pipeline == pytest.approx(2 * 24 * bsh)
    assert step.context == step.expert == 0
    assert step.total_bytes == pytest.approx(sum(size for _, size in step.items))


def test_interleaving_multiplies_pipeline_traffic_by_chunks() -> None:
    flat = comm.layout_traffic(**GPT3, micro_batches=24, pipeline_parallel=8)  # type: ignore[arg-type]
    woven = comm.layout_traffic(
        **GPT3,  # type: ignore[arg-type]
        micro_batches=24,
        pipeline_parallel=8,
        schedule="interleaved-1f1b",
        chunks=3,
    )
    assert woven.pipeline == pytest.approx(3 * flat.pipeline)
    assert woven.pipeline == max(p2p_sent_bytes("interleaved-1f1b", 8, 24, 2048 * 12288 * 2, 3))


def test_full_recomputation_repeats_forward_communication() -> None:
    options = {"micro_batches": 4, "tensor_parallel": 8, "context_parallel": 4}
    plain = comm.layout_traffic(**GPT3, **options)  # type: ignore[arg-type]
    full = comm.layout_traffic(**GPT3, **options, recompute="full")  # type: ignore[arg-type]
    assert full.tensor == pytest.approx(1.5 * plain.tensor)
    ring_forward = 4 * 96 * 3 / 4 * 2 * 2048 * 12288 / 8 * 2
    assert full.context - plain.context == pytest.approx(ring_forward)
    assert full.pipeline == plain.pipeline


def test_context_methods_and_experts() -> None:
    llama = {"params": 70e9, "layers": 80, "sequence": 8192, "micro_batch": 1, "hidden": 8192, "heads": 64}
    sizes = {"micro_batches": 1, "kv_heads": 8, "context_parallel": 4}
    ring, gather, ulysses = (
        comm.layout_traffic(**llama, **sizes, context_method=name).context  # type: ignore[arg-type]
        for name in comm.CONTEXT_METHODS
    )
    kv = 2 * 8192 * 8 * 128 * 2
    assert gather == pytest.approx(80 * 3 * 3 / 4 * kv)
    assert ring == pytest.approx(80 * (2 * 3 / 4 * kv + 2 * kv))
    assert ulysses == pytest.approx(80 * 2 * 3 / 4 * 8192 / 4 * (2 * 64 + 2 * 8) * 128 * 2)
    routed = comm.layout_traffic(
        **llama, micro_batches=2, data_parallel=8, experts=8, top_k=2, expert_parallel=8
    )  # type: ignore[arg-type]
    assert routed.expert == pytest.approx(2 * 80 * 4 * 8192 * 2 * 8192 * 2 * 7 / 8)


def test_gradients_of_experts_are_averaged_over_fewer_ranks() -> None:
    """Mixtral-like: 45B of 47B parameters in experts, 8 of which live on 8 of 32 ranks: each is averaged over 4."""
    sizes = {
        "layers": 32,
        "sequence": 4096,
        "micro_batch": 1,
        "hidden": 4096,
        "heads": 32,
        "micro_batches": 1,
    }
    options = {"data_parallel": 32, "experts": 8, "top_k": 2, "expert_parallel": 8}
    step = comm.layout_traffic(params=47e9, **sizes, **options, expert_params=45e9)  # type: ignore[arg-type]
    assert step.data == pytest.approx(2 * 2 * (31 / 32 * 2e9 + 3 / 4 * 45e9 / 8))


def test_throughput_efficiency() -> None:
    assert comm.throughput_efficiency(30.0, 4, 10.0) == 0.75


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: comm.data_traffic(0, 8), "params must be a finite number above 0"),
        (lambda: comm.data_traffic(1e9, 0), "ranks must be a whole number of at least 1"),
        (lambda: comm.data_traffic(1e9, 8, 5), "zero_stage must be a whole number from 0 to 3"),
        (lambda: comm.data_traffic(1e9, 8, 2, 0), "micro_batches"),
        (
            lambda: comm.data_traffic(1e9, 8, 3, trainable_params=2e9),
            "trainable_params must be at most params",
        ),
        (lambda: comm.hybrid_shard_traffic(1e9, 12, 8), "shard_ranks must divide data_parallel = 12"),
        (lambda: comm.hybrid_shard_traffic(1e9, 16, 8, 1), "zero_stage must be a whole number from 2 to 3"),
        (lambda: comm.fsdp_cross_host_bytes("DDP", 1e9, 8, 8), "strategy must be one of 'NO_SHARD'"),
        (
            lambda: comm.boundary_bytes(2050, 1, 64, context_parallel=4),
            "sequence must be divisible by context_parallel = 4",
        ),
        (
            lambda: comm.layout_traffic(**GPT3, micro_batches=1, tensor_parallel=5),
            "heads must be divisible by tensor_parallel = 5",
        ),  # type: ignore[arg-type]
        (
            lambda: comm.layout_traffic(**GPT3, micro_batches=1, pipeline_parallel=7),
            "layers must be divisible",
        ),  # type: ignore[arg-type]
        (
            lambda: comm.layout_traffic(**GPT3, micro_batches=1, context_method="tree"),
            "context_method must be one of",
        ),  # type: ignore[arg-type]
        (
            lambda: comm.layout_traffic(**{**GPT3, "heads": 100}, micro_batches=1),
            "hidden must be divisible by heads = 100",
        ),  # type: ignore[arg-type]
        (
            lambda: comm.layout_traffic(**GPT3, micro_batches=1, expert_parallel=2),  # type: ignore[arg-type]
            "experts must be at least 1",
        ),
        (
            lambda: comm.layout_traffic(**GPT3, micro_batches=1, experts=8, top_k=2, expert_parallel=8),  # type: ignore[arg-type]
            "data_parallel must be divisible by expert_parallel = 8",
        ),
        (
            lambda: comm.layout_traffic(**GPT3, micro_batches=1, experts=8, top_k=2, expert_params=2e11),  # type: ignore[arg-type]
            "expert_params must be below params",
        ),
        (lambda: comm.throughput_efficiency(1, 0, 1), "units"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
