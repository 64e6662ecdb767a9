"""Expert parallelism: bytes by hand, loads against exact counting, drops and capacity."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import expert


def test_capacity() -> None:
    """Switch: tokens / experts x factor, rounded up; top-2 doubles it."""
    assert expert.expert_capacity(4096, 8) == 512
    assert expert.expert_capacity(4096, 8, 1, 1.25) == 640
    assert expert.expert_capacity(4096, 8, 2, 1.25) == 1280
    assert expert.expert_capacity(100, 8) == 13
    assert expert.expert_capacity(100, 10, 1, 1.1) == 11  # 1.1 * 10 is 11.000000000000002 in floats


def test_all_to_all_by_hand() -> None:
    """4096 tokens of width 4096, top 2, 8 ranks: 2·4096·4096·2 bytes to dispatch, 7/8 of which leave."""
    traffic = expert.layer_traffic(4096, 4096, 8, 2, 8)
    one = 2 * 4096 * 4096 * 2 * 7 / 8
    assert traffic.dispatch_bytes == traffic.combine_bytes == pytest.approx(one)
    assert traffic.backward_bytes == pytest.approx(2 * one)
    assert traffic.total_bytes == pytest.approx(4 * one)
    assert traffic.calls == 4
    padded = expert.layer_traffic(4096, 4096, 8, 2, 8, capacity_factor=1.25)
    assert padded.total_bytes == pytest.approx(1.25 * traffic.total_bytes)
    alone = expert.layer_traffic(4096, 4096, 8, 2, 1)
    assert (alone.total_bytes, alone.calls) == (0, 0)


def test_ratio_of_communication_to_compute() -> None:
    """Per routed copy 2·2·h bytes against 2·3·h·f FLOPs: the rule from first principles, at any width and top_k."""
    for hidden, top_k in ((1024, 1), (8192, 4)):
        traffic = expert.layer_traffic(4096, hidden, 64, top_k, 8)
        seconds = (traffic.dispatch_bytes + traffic.combine_bytes) / 50e9
        compute = 4096 * top_k * 2 * 3 * hidden * 2048 / 400e12
        assert expert.communication_compute_ratio(2048, 8, 400e12, 50e9) == pytest.approx(seconds / compute)
    narrow = expert.communication_compute_ratio(2048, 8, 400e12, 50e9)
    assert expert.communication_compute_ratio(14336, 8, 400e12, 50e9) == pytest.approx(narrow * 2048 / 14336)
    assert expert.communication_compute_ratio(2048, 8, 400e12, 50e9, gated=False) == pytest.approx(
        1.5 * narrow
    )


# ---------------------------------------------------------------- loads


def test_routing_counts_every_assignment_once() -> None:
    counts = expert.routed_counts(1000, 8, 2, skew=0.5, seed=3)
    assert sum(counts) == 2000
    assert max(counts) <= 1000  # a token never goes to the same expert twice
    assert counts == expert.routed_counts(1000, 8, 2, skew=0.5, seed=3)
    assert counts != expert.routed_counts(1000, 8, 2, skew=0.5, seed=4)


def test_skew_loads_the_first_experts() -> None:
    """Zipf over 8 experts: expert 0 gets 1 / H_8 = 36.8 % of the tokens, 2.94 times the mean."""
    counts = expert.routed_counts(20000, 8, 1, skew=1.0, seed=1)
    h8 = sum(1 / k for k in range(1, 9))
    for rank, size in enumerate(counts):
        mean = 20000 / h8 / (rank + 1)
        assert abs(size - mean) < 5 * math.sqrt(mean)
    assert expert.expert_load(counts).imbalance == pytest.approx(8 / h8, rel=0.05)


def test_load_with_capacity_by_hand() -> None:
    load = expert.expert_load([10, 2, 4, 0], capacity=5)
    assert (load.assignments, load.mean, load.busiest) == (16, 4, 10)
    assert load.imbalance == 2.5
    assert (load.dropped, load.dropped_fraction) == (5, 5 / 16)
    assert load.empty_slots_fraction == pytest.approx(1 - 11 / 20)
    dropless = expert.expert_load([10, 2, 4, 0])
    assert (dropless.dropped, dropless.empty_slots_fraction) == (0, 0)


def _exact_busiest(n: int, bins: int) -> float:
    """E[max load] of n balls in bins: P(all <= m) = n!/E^n [x^n] (sum_{j<=m} x^j/j!)^E, in fractions."""
    expected = Fraction(0)
    for most in range(n):
        terms = [Fraction(1, math.factorial(j)) for j in range(most + 1)]
        power = [Fraction(1)]
        for _ in range(bins):
            longer = [Fraction(0)] * min(n + 1, len(power) + most)
            for i, left in enumerate(power):
                for j, right in enumerate(terms):
                    if i + j <= n:
                        longer[i + j] += left * right
            power = longer
        inside = power[n] * math.factorial(n) / Fraction(bins) ** n if len(power) > n else Fraction(0)
        expected += 1 - inside
        if inside and 1 - inside < Fraction(1, 10**7):
            break
    return float(expected)


@pytest.mark.parametrize(
    ("n", "bins", "error"),
    [
        (2, 2, 0.031),
        (4, 4, 0.031),
        (8, 8, 0.031),
        (16, 16, 0.031),
        (4, 2, 0.01),
        (8, 4, 0.01),
        (16, 8, 0.01),
        (16, 2, 0.002),
        (64, 2, 0.002),
        (32, 4, 0.002),
        (64, 8, 0.002),
    ],
)
def test_busiest_load_against_exact_counting(n: int, bins: int, error: float) -> None:
    """The errors that the docstring states."""
    assert expert.expected_busiest_load(n, bins) == pytest.approx(_exact_busiest(n, bins), rel=error)


def test_busiest_load_at_the_edges() -> None:
    assert expert.expected_busiest_load(7, 1) == 7
    assert expert.expected_busiest_load(1, 4) == 1
    many = expert.expected_busiest_load(10**7, 64)
    mean = 10**7 / 64
    assert mean < many < mean + 4 * math.sqrt(mean)


def test_simulated_routing_agrees_with_expectation() -> None:
    """200 uniform routings: mean busiest load and mean dropped share, within three standard errors."""
    runs = [expert.routed_counts(512, 8, 1, seed=seed) for seed in range(200)]
    busiest = [max(counts) for counts in runs]
    dropped = [expert.expert_load(counts, 70).dropped_fraction for counts in runs]
    for values, expected in (
        (busiest, expert.expected_busiest_load(512, 8)),
        (dropped, expert.expected_dropped_fraction(512, 8, 70)),
    ):
        mean = sum(values) / 200
        sd = math.sqrt(sum((value - mean) ** 2 for value in values) / 199)
        assert abs(mean - expected) < 3 * sd / math.sqrt(200)


@pytest.mark.parametrize(
    ("n", "bins", "capacity"), [(12, 3, 4), (10, 4, 1), (5, 2, 5), (9, 1, 4), (30, 5, 9)]
)
def test_dropped_fraction_against_exact_sums(n: int, bins: int, capacity: int) -> None:
    exact = Fraction(0)
    for load in range(capacity + 1, n + 1):
        chance = math.comb(n, load) * Fraction(1, bins) ** load * Fraction(bins - 1, bins) ** (n - load)
        exact += chance * (load - capacity)
    assert expert.expected_dropped_fraction(n, bins, capacity) == pytest.approx(
        float(exact * bins / n), abs=1e-12
    )


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 3000), bins=st.integers(1, 64))
def test_busiest_load_lies_between_mean_and_all(n: int, bins: int) -> None:
    assert n / bins <= expert.expected_busiest_load(n, bins) <= n + 1e-9


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 2000), bins=st.integers(1, 32), capacity=st.integers(1, 300))
def test_more_capacity_drops_less(n: int, bins: int, capacity: int) -> None:
    here = expert.expected_dropped_fraction(n, bins, capacity)
    assert 0 <= expert.expected_dropped_fraction(n, bins, capacity + 1) <= here + 1e-12 <= 1 + 1e-9


@settings(deadline=None, max_examples=40)
@given(
    counts=st.lists(st.integers(0, 100), min_size=1, max_size=16).filter(any), capacity=st.integers(1, 120)
)
def test_slots_and_tokens_are_conserved(counts: list[int], capacity: int) -> None:
    load = expert.expert_load(counts, capacity)
    slots = capacity * len(counts)
    kept = load.assignments - load.dropped
    assert kept + load.empty_slots_fraction * slots == pytest.approx(slots)
    assert kept == sum(min(size, capacity) for size in counts)


def test_check_experts() -> None:
    assert expert.check_experts(64, 8, 16) == 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: expert.check_experts(10, 4), "experts must be divisible by expert_parallel = 4"),
        (lambda: expert.check_experts(8, 8, 12), "data_parallel must be divisible by expert_parallel = 8"),
        (lambda: expert.layer_traffic(4096, 64, 6, 2, 4), "experts must be divisible"),
        (lambda: expert.layer_traffic(4096, 64, 8, 9, 4), "top_k must be a whole number from 1 to 8"),
        (lambda: expert.expert_capacity(100, 8, 1, 0), "capacity_factor"),
        (lambda: expert.routed_counts(10**6, 8), "tokens must be a whole number from 1 to 200000"),
        (lambda: expert.routed_counts(10, 8, 1, -1), "skew"),
        (lambda: expert.expert_load([0, 0]), "counts must hold at least one token"),
        (lambda: expert.expected_busiest_load(0, 8), "assignments"),
        (lambda: expert.communication_compute_ratio(0, 8, 1e12, 1e9), "expert_ffn"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
