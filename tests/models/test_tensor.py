"""Tensor parallelism: collectives and volumes as published, and when the link decides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import tensor
from shardlab.models.collectives import ring_allreduce_sent_bytes, ring_allreduce_time_s


def test_collectives_per_layer() -> None:
    """4 all-reduces, 6 with full recomputation; sequence parallelism: as many pairs of all-gather and reduce-scatter."""
    assert tensor.layer_collectives().all_reduce == 4
    assert tensor.layer_collectives(recompute="selective").all_reduce == 4
    assert tensor.layer_collectives(recompute="full").all_reduce == 6
    split = tensor.layer_collectives(sequence_parallel=True)
    assert (split.all_reduce, split.all_gather, split.reduce_scatter, split.regather) == (0, 4, 4, 2)
    assert tensor.layer_collectives(True, "full").all_gather == 6


@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_volume_of_sc21_and_zero(t: int) -> None:
    """8 b s h (t-1)/t elements per layer (SC21, section 3.2); 12 s h with recomputation as t grows (ZeRO, section 8)."""
    bsh = 2 * 2048 * 4096
    assert tensor.layer_sent_bytes(2048, 2, 4096, t) == pytest.approx(8 * bsh * (t - 1) / t * 2)
    full = tensor.layer_sent_bytes(2048, 2, 4096, t, "full")
    assert full == pytest.approx(12 * bsh * (t - 1) / t * 2)


@settings(deadline=None, max_examples=50)
@given(
    s=st.integers(1, 8192),
    b=st.integers(1, 8),
    h=st.integers(1, 16384),
    t=st.integers(1, 64),
    e=st.sampled_from([1.0, 2.0, 4.0]),
)
def test_volume_is_so_many_ring_all_reduces(s: int, b: int, h: int, t: int, e: float) -> None:
    one = ring_allreduce_sent_bytes(s * b * h * e, t)
    assert tensor.layer_sent_bytes(s, b, h, t, element_bytes=e) == pytest.approx(4 * one)
    assert tensor.forward_sent_bytes(s, b, h, 3, t, e) == pytest.approx(3 * 2 * one)


@settings(deadline=None, max_examples=50)
@given(t=st.integers(1, 64), recompute=st.sampled_from(["none", "full"]), latency=st.floats(0, 1e-3))
def test_time_is_so_many_ring_all_reduces(t: int, recompute: str, latency: float) -> None:
    step = tensor.layer_time(512, 1, 1024, t, 50e9, latency, recompute)
    calls = 0 if t == 1 else 6 if recompute == "full" else 4
    assert step.collectives == calls
    assert step.communication_s == pytest.approx(
        calls * ring_allreduce_time_s(512 * 1024 * 2, t, 50e9, latency)
    )


def test_context_parallelism_divides_the_tokens() -> None:
    whole = tensor.layer_sent_bytes(4096, 1, 1024, 8)
    assert tensor.layer_sent_bytes(4096, 1, 1024, 8, context_parallel=4) == pytest.approx(whole / 4)


def test_share_of_communication() -> None:
    """175B layer on 8 A100 with NVLink: 72 b s h² (1 + s/6h) FLOPs; the ratio rule and the times agree."""
    s, h, t, rate, speed = 2048, 12288, 8, 312e12, 300e9
    flops = 72 * s * h * h * (1 + s / (6 * h))
    step = tensor.layer_time(s, 1, h, t, speed, layer_flops=flops, flops_per_s=rate)
    ratio = tensor.communication_compute_ratio(h, s, t, rate, speed)
    assert step.communication_s / step.compute_s == pytest.approx(ratio)
    assert step.communication_share == pytest.approx(ratio / (1 + ratio))
    full = tensor.layer_time(
        s, 1, h, t, speed, recompute="full", layer_flops=flops * 96 / 72, flops_per_s=rate
    )
    assert full.communication_s / full.compute_s == pytest.approx(
        tensor.communication_compute_ratio(h, s, t, rate, speed, "full")
    )


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("t", "speed"), [(8, 300e9), (8, 25e9), (2, 300e9), (64, 50e9)])
def test_break_even_width(recompute: str, t: int, speed: float) -> None:
    h = tensor.break_even_hidden(2048, t, 312e12, speed, recompute)
    assert tensor.communication_compute_ratio(h, 2048, t, 312e12, speed, recompute) <= 1 + 1e-12
    if h > 1:
        assert tensor.communication_compute_ratio(h - 1, 2048, t, 312e12, speed, recompute) > 1


def test_break_even_width_says_keep_it_in_the_node() -> None:
    """8 A100: about 1,300 on NVLink, about 19,000 through a 25 GB/s card (the docstring's figures)."""
    assert tensor.break_even_hidden(2048, 8, 312e12, 300e9) == pytest.approx(1300, rel=0.02)
    assert tensor.break_even_hidden(2048, 8, 312e12, 25e9) == pytest.approx(19000, rel=0.01)
    assert tensor.break_even_hidden(2048, 1, 312e12, 25e9) == 1


def test_vocabulary() -> None:
    """GPT-2's vocabulary on 8 ranks; logits do not travel, three numbers per token do."""
    assert tensor.padded_vocabulary(50257, 8) == 51200
    assert tensor.padded_vocabulary(50257) == 50304
    assert tensor.padded_vocabulary(128, 1) == 128
    sent = tensor.vocabulary_sent_bytes(2048, 1, 4096, 8)
    assert sent == pytest.approx(2 * 7 / 8 * 2048 * (2 * 4096 * 2 + 12))


def test_key_value_heads_may_be_copied() -> None:
    assert tensor.check_split(16, 64, 8, 28672, 128256) == 16
    assert tensor.check_split(4, 64, 8, ranks_per_node=8) == 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tensor.check_split(8, 12), "heads must be divisible by tensor_parallel = 8 .*, not 12"),
        (
            lambda: tensor.check_split(6, 48, 8),
            "kv_heads must be divisible by tensor_parallel = 6, or divide it",
        ),
        (lambda: tensor.check_split(8, 64, ffn=100), "ffn must be divisible by tensor_parallel = 8, not 100"),
        (
            lambda: tensor.check_split(8, 64, vocabulary=50257),
            "vocabulary must be divisible .*padded_vocabulary.*50257",
        ),
        (
            lambda: tensor.check_split(16, 64, ranks_per_node=8),
            "tensor_parallel must be at most ranks_per_node = 8",
        ),
        (lambda: tensor.layer_sent_bytes(2048, 1, 64, 8, "half"), "recompute must be one of"),
        (
            lambda: tensor.layer_sent_bytes(2050, 1, 64, 8, context_parallel=4),
            "sequence must be divisible by context_parallel = 4",
        ),
        (lambda: tensor.layer_time(2048, 1, 64, 8, 0), "bandwidth must be a finite number above 0 bytes/s"),
        (lambda: tensor.layer_time(2048, 1, 64, 8, 1e9, -1), "latency_s"),
        (lambda: tensor.break_even_hidden(2048, 0, 1e12, 1e9), "tensor_parallel"),
        (lambda: tensor.padded_vocabulary(0), "vocabulary"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
