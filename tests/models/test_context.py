"""Context parallelism: every causal pair counted by brute force, balance, bytes, and when compute hides the ring."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import context


def _brute_force(sequence: int, ranks: int, split: str) -> list[list[int]]:
    """Pairs[query rank][key rank] by looking at every token."""
    owner = [-1] * sequence
    for rank in range(ranks):
        for start, stop, step in context.rank_tokens(sequence, ranks, rank, split):
            for token in range(start, stop, step):
                assert owner[token] == -1
                owner[token] = rank
    assert -1 not in owner
    pairs = [[0] * ranks for _ in range(ranks)]
    for query in range(sequence):
        for key in range(query + 1):
            pairs[owner[query]][owner[key]] += 1
    return pairs


@pytest.mark.parametrize("split", context.SPLITS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_pairs_against_brute_force(split: str, ranks: int) -> None:
    sequence = 48
    expected = _brute_force(sequence, ranks, split)
    for mine in range(ranks):
        for theirs in range(ranks):
            assert context.causal_pairs(sequence, ranks, mine, theirs, split) == expected[mine][theirs]
    work = context.ring_work(sequence, ranks, split)
    assert work.per_rank == [sum(row) for row in expected]
    assert sum(work.per_rank) == sequence * (sequence + 1) // 2
    for step, row in enumerate(work.pairs):
        assert row == [expected[rank][(rank - step) % ranks] for rank in range(ranks)]


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(1, 16), chunk=st.integers(1, 50), split=st.sampled_from(context.SPLITS))
def test_no_work_is_lost_or_doubled(ranks: int, chunk: int, split: str) -> None:
    sequence = 2 * ranks * chunk
    work = context.ring_work(sequence, ranks, split)
    assert sum(work.per_rank) == sequence * (sequence + 1) // 2
    assert work.critical_pairs >= work.balanced_pairs * (1 - 1e-12)


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(2, 16), chunk=st.integers(1, 50))
def test_zigzag_is_balanced_in_every_step(ranks: int, chunk: int) -> None:
    work = context.ring_work(2 * ranks * chunk, ranks, "zigzag")
    for row in work.pairs:
        assert len(set(row)) == 1
    assert work.slowdown == pytest.approx(1)


def test_contiguous_wastes_half() -> None:
    """8 ranks, long sequence: the ring waits almost 2x as long as balanced work; rank 7 does 15 times rank 0's work."""
    work = context.ring_work(8 * 4096, 8, "contiguous")
    assert work.slowdown == pytest.approx(2 - 1 / 8, rel=1e-3)
    assert work.per_rank[-1] / work.per_rank[0] == pytest.approx(15, rel=1e-3)
    assert work.rank_imbalance == pytest.approx(15 / 8, rel=1e-3)
    striped = context.ring_work(8 * 4096, 8, "striped")
    assert 1 < striped.slowdown < 1.001


def test_without_a_mask_every_split_is_balanced() -> None:
    for split in context.SPLITS:
        work = context.ring_work(64, 4, split, causal=False)
        assert work.per_rank == [64 * 16] * 4
        assert work.slowdown == 1


# ---------------------------------------------------------------- bytes


def test_ring_bytes_by_hand() -> None:
    """32 heads of 128, 8192 tokens, 4 ranks: a block is 2·2048·4096·2 bytes; 3 hops, then 3 hops and 4 of fp32 gradients."""
    block = 2 * 2048 * 4096 * 2
    traffic = context.ring_traffic(8192, 1, 32, 128, 4)
    assert traffic.forward_bytes == 3 * block
    assert traffic.backward_bytes == 3 * block + 4 * 2 * block
    assert traffic.messages == 10
    assert traffic.total_bytes == 14 * block
    grouped = context.ring_traffic(8192, 1, 8, 128, 4)
    assert grouped.total_bytes == pytest.approx(traffic.total_bytes / 4)
    tensor = context.ring_traffic(8192, 1, 32, 128, 4, tensor_parallel=8)
    assert tensor.total_bytes == pytest.approx(traffic.total_bytes / 8)


def test_ulysses_bytes_by_hand() -> None:
    """4 s b h / c elements per all-to-all set and pass, (c-1)/c of which leave the rank (arXiv 2309.14509)."""
    traffic = context.ulysses_traffic(8192, 1, 32, 128, 4)
    assert traffic.forward_bytes == pytest.approx(3 / 4 * 4 * 8192 * 4096 / 4 * 2)
    assert traffic.backward_bytes == traffic.forward_bytes
    assert traffic.messages == 8
    grouped = context.ulysses_traffic(8192, 1, 32, 128, 4, kv_heads=8)
    assert grouped.forward_bytes == pytest.approx(traffic.forward_bytes * (2 + 2 * 8 / 32) / 4)
    # Two key/value heads on four ranks are copied to four.
    copied = context.ulysses_traffic(8192, 1, 32, 128, 4, kv_heads=2)
    assert copied.forward_bytes == pytest.approx(traffic.forward_bytes * (2 + 2 * 4 / 32) / 4)


def test_volume_of_ulysses_is_constant_when_ranks_grow_with_the_sequence() -> None:
    """Tokens per rank fixed: Ulysses stays (but for (c-1)/c), the ring grows with c."""
    ulysses = [
        context.ulysses_traffic(1024 * c, 1, 64, 128, c).total_bytes / ((c - 1) / c) for c in (2, 8, 32)
    ]
    assert ulysses == pytest.approx([ulysses[0]] * 3)
    ring = [context.ring_traffic(1024 * c, 1, 64, 128, c).forward_bytes for c in (2, 8, 32)]
    assert ring == pytest.approx([ring[0] * n for n in (1, 7, 31)])


def test_all_gather_moves_what_a_ring_moves_forward() -> None:
    gather = context.all_gather_traffic(8192, 2, 8, 128, 4)
    ring = context.ring_traffic(8192, 2, 8, 128, 4)
    assert gather.forward_bytes == pytest.approx(ring.forward_bytes)
    assert gather.backward_bytes == pytest.approx(2 * gather.forward_bytes)


def test_one_rank_sends_nothing() -> None:
    for traffic in (
        context.ring_traffic(64, 1, 4, 8, 1),
        context.all_gather_traffic(64, 1, 4, 8, 1),
        context.ulysses_traffic(64, 1, 4, 8, 1),
    ):
        assert (traffic.total_bytes, traffic.messages) == (0, 0)


# ---------------------------------------------------------------- when compute hides the ring


@pytest.mark.parametrize(
    ("tflops", "gb_per_s", "block_thousands"),
    [(312, 300, 1.0), (312, 12.5, 25.0), (123, 112, 1.1), (275, 268, 1.0), (196, 186, 1.1)],
)
def test_ring_attention_table_2(tflops: float, gb_per_s: float, block_thousands: float) -> None:
    """c >= F/B. The paper prints 24.5 for InfiniBand; 312e12 / 12.5e9 is 24,960, and its own 149.5 is 6 x 24.9."""
    tokens = context.break_even_block_tokens(tflops * 1e12, gb_per_s * 1e9)
    assert tokens / 1e3 == pytest.approx(block_thousands, abs=0.05)


def test_block_shrinks_with_grouped_queries_and_doubles_with_a_mask() -> None:
    plain = context.break_even_block_tokens(400e12, 50e9, 32, 32)
    assert context.break_even_block_tokens(400e12, 50e9, 32, 8) == pytest.approx(plain / 4)
    assert context.break_even_block_tokens(400e12, 50e9, 32, 32, causal=True) == pytest.approx(2 * plain)


@pytest.mark.parametrize(("causal", "heads", "kv_heads"), [(False, 8, 8), (True, 8, 8), (True, 32, 8)])
def test_time_crosses_over_at_the_rule(causal: bool, heads: int, kv_heads: int) -> None:
    """Just above the break-even block every send is hidden; at half of it, it is not."""
    rate, speed, ranks = 100e12, 20e9, 4
    block = context.break_even_block_tokens(rate, speed, heads, kv_heads, causal)

    def exposed(tokens: float) -> float:
        sequence = int(tokens / 2 + 1) * 2 * ranks
        return context.ring_time(
            sequence, 1, heads, 128, ranks, rate, speed, kv_heads=kv_heads, causal=causal
        ).exposed_s

    assert exposed(block * 1.001) == 0
    assert exposed(block / 2) > 0


def test_ring_time_by_hand() -> None:
    """2 ranks, 4 tokens, zigzag: 5 pairs each in two steps (3 + 2); one send of 2·2·1·8·2 = 64 bytes."""
    step = context.ring_time(4, 1, 1, 8, 2, flops_per_s=32.0, bandwidth=16.0, latency_s=0.5)
    assert step.compute_s == 5
    assert step.communication_s == 4.5
    assert step.exposed_s == 1.5
    assert step.step_time_s == 6.5
    assert not step.hidden


def test_contiguous_ring_takes_twice_the_zigzag() -> None:
    options = {"flops_per_s": 400e12, "bandwidth": 400e9}
    slow = context.ring_time(131072, 1, 32, 128, 16, split="contiguous", **options)
    fast = context.ring_time(131072, 1, 32, 128, 16, split="zigzag", **options)
    assert slow.compute_s / fast.compute_s == pytest.approx(2 - 1 / 16, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: context.ring_work(104, 8), "sequence must be divisible by 2 x context_parallel = 16"),
        (
            lambda: context.ring_work(100, 8, "contiguous"),
            "sequence must be divisible by context_parallel = 8",
        ),
        (
            lambda: context.ring_work(128, 8, "spiral"),
            "split must be one of 'contiguous', 'zigzag', 'striped'",
        ),
        (lambda: context.rank_tokens(128, 8, 8), "rank must be a whole number from 0 to 7"),
        (
            lambda: context.ulysses_traffic(128, 1, 12, 64, 8),
            "heads must be divisible by context_parallel x tensor_parallel = 8",
        ),
        (
            lambda: context.ulysses_traffic(120, 1, 12, 64, 6, kv_heads=4),
            "kv_heads must be divisible by context_parallel x",
        ),
        (
            lambda: context.ring_traffic(128, 1, 6, 64, 4, tensor_parallel=4),
            "kv_heads must be divisible by tensor_parallel = 4",
        ),
        (lambda: context.break_even_block_tokens(0, 1e9), "flops_per_s"),
        (
            lambda: context.break_even_block_tokens(1e12, 1e9, 8, 16),
            "kv_heads must be a whole number from 1 to 8",
        ),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
