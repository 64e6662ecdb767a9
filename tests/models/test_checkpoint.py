"""Checkpoints: published sizes, Young, Daly and the exact optimum, checked by search and by simulated failures."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import checkpoint
from shardlab.units import GB, GIB, TB

# ---------------------------------------------------------------- sizes and times


def test_bloom_checkpoint() -> None:
    """BLOOM-176B: 2.3 TB: 14 bytes for each of 176.2B parameters are 2,297 GiB (2.47 decimal TB)."""
    size = checkpoint.checkpoint_bytes(176.2e9)
    assert size / GIB == pytest.approx(2300, rel=0.005)
    assert size / TB == pytest.approx(2.3, rel=0.08)


def test_trillion_parameter_checkpoint() -> None:
    """SC21, section 5.10: 13.8 TB for 1,008B parameters: 13.7 bytes each; read at 1 TB/s, written at 273 GB/s."""
    assert checkpoint.checkpoint_bytes(1008e9) / TB == pytest.approx(13.8, rel=0.025)
    assert checkpoint.transfer_time_s(13.8e12, 273e9) == pytest.approx(50.5, abs=0.1)
    assert checkpoint.transfer_time_s(13.8e12, 1e12) == pytest.approx(13.8)


@pytest.mark.parametrize(
    ("params", "contents", "expected"),
    [
        (7e9, "adam-14", 98e9),
        (70e9, "adam-14", 0.98e12),
        (405e9, "adam-12", 4.86e12),
        (8e9, "weights-16bit", 16e9),
    ],
)
def test_sizes(params: float, contents: str, expected: float) -> None:
    """7B about 0.1 TB, 70B about 1 TB, Llama 3 405B 4.9 TB at 12 bytes."""
    assert checkpoint.checkpoint_bytes(params, contents) == pytest.approx(expected)


def test_writers_or_storage_whichever_is_slower() -> None:
    assert checkpoint.transfer_time_s(100 * GB, 10 * GB, 8, 0.5 * GB) == 25
    assert checkpoint.transfer_time_s(100 * GB, 10 * GB, 64, 0.5 * GB) == 10


def test_write_tail() -> None:
    tail = checkpoint.write_tail([5.0, 7.0, 10.0, 6.0])
    assert (tail.last_rank, tail.tail_s, tail.save_s) == (2, 3.0, 10.0)
    assert tail.tail_share == pytest.approx(0.3)


# ---------------------------------------------------------------- intervals


def test_llama_3_young() -> None:
    """419 unexpected interruptions in 54 days: one per 3.09 h; a 60 s checkpoint then wants 19.3 minutes."""
    mtbf = checkpoint.observed_mtbf_s(54 * 86400, 419)
    assert mtbf / 3600 == pytest.approx(3.09, abs=0.005)
    assert checkpoint.young_interval_s(60, mtbf) / 60 == pytest.approx(19.3, abs=0.05)
    # Higher order and exact take a checkpoint's length off, and agree to a second in a thousand.
    assert checkpoint.daly_interval_s(60, mtbf) == pytest.approx(
        checkpoint.optimal_interval_s(60, mtbf), rel=1e-4
    )


def test_llama_3_table_5_counts() -> None:
    """The causes listed in Table 5 add up to 419; the 148 faulty GPUs are 35.3 % of them, not the printed 30.1 %."""
    causes = [148, 72, 54, 35, 32, 19, 17, 7, 7, 6, 6, 3, 3, 2, 2, 2, 2, 2]
    assert sum(causes) == 419
    gpu = checkpoint.observed_mtbf_s(54 * 86400, causes[0])
    assert checkpoint.observed_mtbf_s(54 * 86400, 419) / gpu == pytest.approx(0.353, abs=0.0005)


def test_bloom_overhead() -> None:
    """40 s every 3 hours: 0.37 %."""
    assert checkpoint.checkpoint_cost(3 * 3600, 40, 86400.0).overhead_fraction == pytest.approx(
        0.0037, abs=5e-5
    )


def test_daly_formulas_by_hand() -> None:
    """Equation 37 at δ = 2, M = 100: sqrt(400) (1 + 0.1/3 + 0.01/9) - 2 = 18.6889; and M from δ = 2M on."""
    assert checkpoint.daly_interval_s(2, 100) == pytest.approx(20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert checkpoint.daly_interval_s(200, 100) == 100
    assert checkpoint.daly_first_order_interval_s(2, 100, 44) == pytest.approx(math.sqrt(2 * 2 * 144))
    assert checkpoint.daly_first_order_interval_s(2, 100) == checkpoint.young_interval_s(2, 100)


@settings(deadline=None, max_examples=200)
@given(ratio=st.floats(1e-9, 600), mtbf=st.floats(1, 1e7))
def test_optimum_solves_its_equation(ratio: float, mtbf: float) -> None:
    """(1 - x) exp(x) = exp(-δ/M) with x = τ/M, in logarithms, which keep the digits."""
    x = checkpoint.optimal_interval_s(ratio * mtbf, mtbf) / mtbf
    assert 0 < x <= 1
    if ratio < 10:  # above, 1 - x is too close to 0 for its logarithm to keep digits
        gap = -(x + math.log1p(-x))
        assert gap == pytest.approx(ratio, rel=1e-6 if x > 1e-3 else 1e-3)
    assert x <= math.sqrt(2 * ratio) * (1 + 1e-12)


@pytest.mark.parametrize("write", [0.001, 1.0, 60.0, 2000.0, 30000.0])
def test_no_other_interval_wastes_less(write: float) -> None:
    """A scan of 2,000 intervals around the optimum finds none better; Young and Daly lie at or above its waste."""
    mtbf, restart = 11135.0, 300.0
    best = checkpoint.optimal_interval_s(write, mtbf)
    least = checkpoint.checkpoint_cost(best, write, mtbf, restart).waste_fraction
    for step in range(1, 2000):
        other = best * step / 500
        waste = checkpoint.checkpoint_cost(other, write, mtbf, restart).waste_fraction
        assert waste >= least - 1e-12
    for rule in (checkpoint.young_interval_s, checkpoint.daly_interval_s):
        assert (
            checkpoint.checkpoint_cost(rule(write, mtbf), write, mtbf, restart).waste_fraction
            >= least - 1e-12
        )


def test_restart_time_does_not_move_the_optimum() -> None:
    best = checkpoint.optimal_interval_s(60, 10000)
    for restart in (0, 600, 6000):
        here = checkpoint.checkpoint_cost(best, 60, 10000, restart).waste_fraction
        for other in (0.97 * best, 1.03 * best):
            assert checkpoint.checkpoint_cost(other, 60, 10000, restart).waste_fraction > here


# ---------------------------------------------------------------- cost


def _simulated_segment(
    interval: float, write: float, mtbf: float, restart: float, runs: int
) -> tuple[float, float]:
    """Mean wall time of a segment over ``runs`` simulations with exponential failures, and its standard error."""
    generator = random.Random(20240731)
    times = []
    for _ in range(runs):
        clock, left = 0.0, interval + write
        while True:
            failure = generator.expovariate(1 / mtbf)
            if failure >= left:
                clock += left
                break
            clock += failure
            while (again := generator.expovariate(1 / mtbf)) < restart:
                clock += again
            clock += restart
        times.append(clock)
    mean = math.fsum(times) / runs
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in times) / (runs - 1))
    return mean, spread / math.sqrt(runs)


@pytest.mark.parametrize(
    ("interval", "write", "mtbf", "restart"), [(1200, 60, 11135, 300), (600, 120, 900, 100)]
)
def test_expected_segment_time_against_simulated_failures(
    interval: float, write: float, mtbf: float, restart: float
) -> None:
    mean, error = _simulated_segment(interval, write, mtbf, restart, 20000)
    assert checkpoint.expected_segment_time_s(interval, write, mtbf, restart) == pytest.approx(
        mean, abs=4 * error
    )


def test_cost_of_one_interval() -> None:
    cost = checkpoint.checkpoint_cost(1200, 60, 11135, 300)
    assert cost.overhead_fraction == pytest.approx(60 / 1260)
    assert cost.first_order_waste == pytest.approx(60 / 1200 + (600 + 300) / 11135)
    assert cost.waste_fraction == pytest.approx(cost.first_order_waste, rel=0.15)
    assert cost.goodput_fraction == pytest.approx(1 - cost.waste_fraction)
    assert cost.lost_work_s == 630
    assert cost.failures_per_day == pytest.approx(86400 / 11135)
    assert checkpoint.expected_run_time_s(1e6, 1200, 60, 11135, 300) == pytest.approx(
        1e6 / cost.goodput_fraction
    )


def test_first_order_waste_is_exact_in_the_limit() -> None:
    cost = checkpoint.checkpoint_cost(100, 0.01, 1e7, 1)
    assert cost.waste_fraction == pytest.approx(cost.first_order_waste, rel=1e-3)


def test_hopeless_settings_are_infinite_not_an_error() -> None:
    assert checkpoint.expected_segment_time_s(1e6, 60, 1000) == math.inf
    assert checkpoint.checkpoint_cost(1e6, 60, 1000).waste_fraction == 1


def test_small_segments_keep_their_digits() -> None:
    """exp(x) - 1 at x = 1e-9 must not cancel: segment = τ + δ + (τ+δ)²/2M."""
    segment = checkpoint.expected_segment_time_s(1e-3, 0, 1e6)
    assert segment == pytest.approx(math.expm1(1e-9) * 1e6, rel=1e-14)


def test_failures_scale_with_the_cluster() -> None:
    """A component that fails every 5 years: 16,384 of them fail every 2.7 hours."""
    assert checkpoint.cluster_mtbf_s(5 * 365.25 * 86400, 16384) / 3600 == pytest.approx(2.675, abs=0.001)


def test_needed_mtbf_gives_the_target() -> None:
    mtbf = checkpoint.availability_needed_mtbf_s(60, 300, 0.05)
    best = checkpoint.optimal_interval_s(60, mtbf)
    assert checkpoint.checkpoint_cost(best, 60, mtbf, 300).waste_fraction == pytest.approx(0.05, rel=1e-6)


# ---------------------------------------------------------------- asynchronous, recovery


def _simulated_lost_work(period: float, durable: float, runs: int) -> float:
    """Mean age of the newest durable snapshot at a uniformly random moment; snapshots at multiples of the period."""
    total = 0.0
    for index in range(runs):
        moment = 10 * period + period * (index + 0.5) / runs
        newest = math.floor((moment - durable) / period) * period
        total += moment - newest
    return total / runs


@pytest.mark.parametrize(("blocked", "durable", "interval"), [(0.5, 60, 300), (0.5, 290, 300), (5, 0, 100)])
def test_async_lost_work_against_a_clock(blocked: float, durable: float, interval: float) -> None:
    cost = checkpoint.async_checkpoint(blocked, durable, 11135, interval_s=interval)
    period = interval + blocked
    assert cost.lost_work_s == pytest.approx(_simulated_lost_work(period, durable, 20000), rel=1e-3)
    assert cost.overhead_fraction == pytest.approx(blocked / period)
    assert cost.worst_lost_work_s == period + durable


def test_async_interval_never_outruns_the_write() -> None:
    assert checkpoint.async_checkpoint(0.01, 600, 11135).interval_s == 600
    assert checkpoint.async_checkpoint(10, 60, 11135).interval_s == pytest.approx(math.sqrt(2 * 10 * 11135))


def test_recovery() -> None:
    back = checkpoint.recovery(60, 240, 50, 1200, 60)
    assert back.rto_s == 350
    assert back.rpo_s == 630
    assert back.back_where_it_was_s == 980 == sum(seconds for _, seconds in back.items)
    assert back.worst_s == 350 + 1260


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: checkpoint.checkpoint_bytes(1e9, "all"), "contents must be one of 'weights-16bit'"),
        (lambda: checkpoint.checkpoint_bytes(0), "params"),
        (lambda: checkpoint.transfer_time_s(1e9, 0), "storage_bandwidth"),
        (lambda: checkpoint.write_tail([1.0]), "at least two ranks"),
        (
            lambda: checkpoint.young_interval_s(-1, 100),
            "write_s must be a finite number of at least 0 seconds",
        ),
        (lambda: checkpoint.optimal_interval_s(1, 0), "mtbf_s must be a finite number above 0 seconds"),
        (lambda: checkpoint.expected_segment_time_s(0, 1, 1), "interval_s"),
        (
            lambda: checkpoint.async_checkpoint(1, 600, 1e4, interval_s=300),
            "interval_s must be at least durable_s - blocked_s = 599",
        ),
        (
            lambda: checkpoint.availability_needed_mtbf_s(60, 0, 1.0),
            "target_waste must lie strictly between 0 and 1",
        ),
        (lambda: checkpoint.observed_mtbf_s(86400, 0), "failures"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]


@settings(deadline=None, max_examples=60)
@given(
    interval=st.floats(1, 1e5), write=st.floats(0, 1e3), mtbf=st.floats(1e3, 1e7), restart=st.floats(0, 1e3)
)
def test_waste_is_a_fraction_and_grows_with_every_cost(
    interval: float, write: float, mtbf: float, restart: float
) -> None:
    waste = checkpoint.checkpoint_cost(interval, write, mtbf, restart).waste_fraction
    assert 0 <= waste <= 1
    assert checkpoint.checkpoint_cost(interval, write + 1, mtbf, restart).waste_fraction >= waste
    assert checkpoint.checkpoint_cost(interval, write, mtbf, restart + 1).waste_fraction >= waste
    assert checkpoint.checkpoint_cost(interval, write, 2 * mtbf, restart).waste_fraction <= waste
