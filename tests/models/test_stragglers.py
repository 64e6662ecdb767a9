"""Stragglers: expected maxima against closed forms and simulation, and what reports say."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import stragglers

ROOT_PI = math.sqrt(math.pi)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, 0.0),
        (2, 1 / ROOT_PI),
        (3, 1.5 / ROOT_PI),
        (4, 6 / (math.pi * ROOT_PI) * math.atan(math.sqrt(2))),
        (5, 5 / (2 * ROOT_PI) * (0.5 + 3 / math.pi * math.asin(1 / 3))),
    ],
)
def test_expected_maximum_in_closed_form(n: int, expected: float) -> None:
    assert stragglers.expected_max_standard_normal(n) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("n", "expected"), [(10, 1.53875), (100, 2.50759), (1000, 3.24144)])
def test_expected_maximum_in_published_tables(n: int, expected: float) -> None:
    """Normal order statistics as tabulated by Harter (1961)."""
    assert stragglers.expected_max_standard_normal(n) == pytest.approx(expected, abs=6e-6)


@pytest.mark.parametrize("n", [10, 1000, 10**6])
def test_expected_maximum_does_not_depend_on_the_grid(n: int) -> None:
    """The same integral by Simpson's rule on another grid, with log1p: equal to 1e-8, as the docstring says."""

    def below(x: float) -> float:
        tail = 0.5 * math.erfc(x / math.sqrt(2))
        return math.exp(n * math.log1p(-tail)) if tail < 1 else 0.0

    def simpson(function: object, low: float, high: float, pieces: int) -> float:
        width = (high - low) / pieces
        terms = [
            function(low + k * width) * (1 if k in (0, pieces) else 4 if k % 2 else 2)
            for k in range(pieces + 1)
        ]  # type: ignore[operator]
        return math.fsum(terms) * width / 3

    expected = simpson(lambda x: 1 - below(x), 0, 13, 13000) - simpson(below, -13, 0, 13000)
    assert stragglers.expected_max_standard_normal(n) == pytest.approx(expected, abs=1e-8)


def test_harmonic_numbers() -> None:
    assert stragglers.harmonic_number(1) == 1
    assert stragglers.harmonic_number(4) == pytest.approx(25 / 12)
    for n in (99, 100, 101, 1000):
        assert stragglers.harmonic_number(n) == pytest.approx(
            math.fsum(1 / k for k in range(1, n + 1)), rel=1e-14
        )


def _simulated_max(draw: object, ranks: int, runs: int) -> tuple[float, float]:
    maxima = [max(draw() for _ in range(ranks)) for _ in range(runs)]  # type: ignore[operator]
    mean = math.fsum(maxima) / runs
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in maxima) / (runs - 1))
    return mean, spread / math.sqrt(runs)


def test_jitter_against_simulation() -> None:
    generator = random.Random(7)
    mean, error = _simulated_max(lambda: generator.gauss(100.0, 5.0), 64, 4000)
    step = stragglers.normal_jitter_step(100.0, 5.0, 64)
    assert step.expected_step_s == pytest.approx(mean, abs=4 * error)
    mean, error = _simulated_max(lambda: 100.0 + generator.expovariate(1 / 5.0), 64, 4000)
    tail = stragglers.exponential_jitter_step(100.0, 5.0, 64)
    assert tail.expected_step_s == pytest.approx(mean, abs=4 * error)
    # The same standard deviation, but a heavy tail: the step suffers more.
    assert tail.expected_step_s - 105 > step.expected_step_s - 100


def test_waiting_k_times_costs_root_k() -> None:
    once = stragglers.normal_jitter_step(1.0, 0.02, 8)
    often = stragglers.normal_jitter_step(1.0, 0.02, 8, sync_points=64)
    assert often.expected_step_s - 1 == pytest.approx(8 * (once.expected_step_s - 1))


def test_sync_points_against_simulation() -> None:
    generator = random.Random(11)
    parts, ranks, runs = 16, 4, 3000
    totals = [
        math.fsum(
            max(generator.gauss(1 / parts, 0.1 / math.sqrt(parts)) for _ in range(ranks))
            for _ in range(parts)
        )
        for _ in range(runs)
    ]
    mean = math.fsum(totals) / runs
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in totals)) / runs
    assert stragglers.normal_jitter_step(1.0, 0.1, ranks, parts).expected_step_s == pytest.approx(
        mean, abs=4 * error
    )


def test_rare_stalls() -> None:
    """A 1 s stall in one step of a thousand: at 1,024 ranks 64 % of all steps stall, aligned 0.1 % do."""
    apart = stragglers.rare_stall_step(10.0, 1.0, 1e-3, 1024)
    assert apart.expected_step_s - 10 == pytest.approx(1 - 0.999**1024)
    together = stragglers.rare_stall_step(10.0, 1.0, 1e-3, 1024, aligned=True)
    assert together.expected_step_s == pytest.approx(10.001)
    assert together.lost_fraction == pytest.approx(0)


def test_one_slow_rank() -> None:
    """50 ms on one of 4 ranks of 58.6 ms slows every step; the more ranks, the more rank time is lost."""
    step = stragglers.slow_rank_step(0.0586, 108.6 / 58.6, 4)
    assert step.expected_step_s == pytest.approx(0.1086)
    assert step.mean_s == pytest.approx(0.0586 + 0.05 / 4)
    many = stragglers.slow_rank_step(0.0586, 108.6 / 58.6, 1024)
    assert many.expected_step_s == step.expected_step_s
    assert many.lost_fraction > step.lost_fraction
    assert stragglers.slow_rank_step(1.0, 1.5, 8, 0).expected_step_s == 1.0
    assert stragglers.without_slow_ranks_speedup(1.2, 16) == pytest.approx(1.2 * 15 / 16)
    assert stragglers.without_slow_ranks_speedup(1.05, 16) < 1


def test_report() -> None:
    report = stragglers.straggler_report([1.0, 1.02, 1.5, 0.9, 1.01])
    assert (report.slowest_rank, report.fastest_rank) == (2, 3)
    assert report.slow_ranks == [2]
    assert report.median_s == 1.01
    assert report.waiting_s == pytest.approx([0.5, 0.48, 0, 0.6, 0.49])
    assert report.ratios.max_over_mean == pytest.approx(1.5 / (5.43 / 5))
    assert stragglers.straggler_report([2.0, 1.0]).median_s == 1.5


@settings(deadline=None, max_examples=60)
@given(times=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=64))
def test_lost_time_is_what_ranks_wait(times: list[float]) -> None:
    report = stragglers.straggler_report(times)
    assert min(report.waiting_s) == 0
    waiting = math.fsum(report.waiting_s)
    assert report.ratios.lost_s * len(times) == pytest.approx(waiting, abs=1e-9 * max(times) * len(times))
    assert 0 <= report.ratios.lost_fraction < 1


@settings(deadline=None, max_examples=30)
@given(ranks=st.integers(1, 10**6), sd=st.floats(0, 0.1))
def test_more_ranks_never_make_the_step_shorter(ranks: int, sd: float) -> None:
    for model in (stragglers.normal_jitter_step, stragglers.exponential_jitter_step):
        here = model(1.0, sd, ranks)
        assert model(1.0, sd, 2 * ranks).expected_step_s >= here.expected_step_s - 1e-12
        assert here.expected_step_s >= here.mean_s - 1e-12


def test_shortest_collective_names_the_straggler() -> None:
    assert stragglers.straggler_from_collectives([0.3, 0.31, 0.02, 0.29]) == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stragglers.expected_max_standard_normal(0), "n must be a whole number from 1"),
        (lambda: stragglers.normal_jitter_step(0, 1, 8), "mean_s"),
        (lambda: stragglers.normal_jitter_step(1, -1, 8), "sd_s"),
        (lambda: stragglers.exponential_jitter_step(0, 0, 8), "base_s . tail_s"),
        (lambda: stragglers.rare_stall_step(1, 1, 2, 8), "probability must be a number from 0 to 1"),
        (lambda: stragglers.slow_rank_step(1, 0.5, 8), "slowdown must be at least 1"),
        (lambda: stragglers.slow_rank_step(1, 2, 8, 9), "slow_ranks must be a whole number from 0 to 8"),
        (
            lambda: stragglers.without_slow_ranks_speedup(2, 4, 4),
            "slow_ranks must be a whole number from 1 to 3",
        ),
        (lambda: stragglers.straggler_ratios(1, 3, 2), "mean_s must lie between"),
        (lambda: stragglers.straggler_report([]), "one time per rank"),
        (lambda: stragglers.straggler_report([1.0, 0.0]), r"times_s\[1\]"),
        (lambda: stragglers.straggler_from_collectives([1.0]), "at least two ranks"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
