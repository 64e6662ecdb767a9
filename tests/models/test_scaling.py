"""Weak and strong scaling: the source text's tables, break-even, caps, and their properties."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardlab.models import scaling as s

UNTIMED = settings(deadline=None)

COMPUTE = st.floats(min_value=1e-6, max_value=1e3)
SIZES = st.floats(min_value=0, max_value=1e13)
SPEEDS = st.floats(min_value=1e5, max_value=1e13)
LATENCIES = st.floats(min_value=0, max_value=1e-2)
OVERLAPS = st.floats(min_value=0, max_value=1)
RANKS = st.integers(min_value=1, max_value=5000)
KINDS = st.sampled_from(s.SCALINGS)

# The source text's cluster: 1 GB of gradients, 0.01 ms a hop, 100 ms of compute.
SOURCE = {"compute_s": 0.1, "n_bytes": 1e9, "latency_s": 1e-5}


@pytest.mark.parametrize(
    ("ranks", "ring", "step", "speedup", "efficiency", "bottleneck"),
    [
        (1, "0.0", "100.0", "1.00", "100.0", "compute"),
        (8, "175.1", "275.1", "2.91", "36.3", "communication"),
        (64, "198.1", "298.1", "21.47", "33.5", "communication"),
        (512, "209.8", "309.8", "165.25", "32.3", "communication"),
    ],
)
def test_the_source_texts_table_at_10_gb_s(ranks, ring, step, speedup, efficiency, bottleneck):
    run = s.data_parallel(ranks, bandwidth=10e9, **SOURCE)
    assert f"{1e3 * run.communication_time_s:.1f}" == ring
    assert f"{1e3 * run.step_time_s:.1f}" == step
    assert f"{run.speedup:.2f}" == speedup
    assert f"{100 * run.efficiency:.1f}" == efficiency
    assert run.bottleneck == bottleneck


@pytest.mark.parametrize(
    ("ranks", "ring", "step", "speedup", "efficiency"),
    [
        (8, "875.1", "975.1", "0.82", "10.3"),
        (64, "985.6", "1085.6", "5.90", "9.2"),
        (512, "1008.3", "1108.3", "46.20", "9.0"),
    ],
)
def test_the_source_texts_table_at_2_gb_s(ranks, ring, step, speedup, efficiency):
    run = s.data_parallel(ranks, bandwidth=2e9, **SOURCE)
    assert f"{1e3 * run.communication_time_s:.1f}" == ring
    assert f"{1e3 * run.step_time_s:.1f}" == step
    assert f"{run.speedup:.2f}" == speedup
    assert f"{100 * run.efficiency:.1f}" == efficiency


@pytest.mark.parametrize(
    ("bandwidth", "speedups"),
    [(10e9, ["0.53", "0.50", "0.48", "0.35"]), (2e9, ["0.11", "0.10", "0.10", "0.09"])],
)
def test_strong_scaling_of_the_same_cluster(bandwidth, speedups):
    runs = [s.data_parallel(n, bandwidth=bandwidth, scaling="strong", **SOURCE) for n in (8, 64, 512, 4096)]
    assert [f"{run.speedup:.2f}" for run in runs] == speedups


@pytest.mark.parametrize(("overlap", "speedups"), [(1.0, [4.57, 32.3, 244]), (2 / 3, [3.84, 27.7, 210.6])])
def test_overlap_in_weak_scaling(overlap, speedups):
    runs = [s.data_parallel(n, bandwidth=10e9, overlap=overlap, **SOURCE) for n in (8, 64, 512)]
    assert [run.speedup for run in runs] == pytest.approx(speedups, rel=2e-3)


def test_break_even_of_the_source_texts_slow_network():
    assert f"{s.data_parallel(10, bandwidth=2e9, **SOURCE).speedup:.4f}" == "0.9998"
    assert f"{s.data_parallel(11, bandwidth=2e9, **SOURCE).speedup:.2f}" == "1.09"
    assert s.break_even_ranks(bandwidth=2e9, **SOURCE) == 11
    assert s.break_even_ranks(bandwidth=10e9, **SOURCE) == 3, (
        "two ranks at 10 GB/s exactly miss it, by their latency"
    )
    assert s.break_even_ranks(bandwidth=2e9, scaling="strong", **SOURCE) is None


def test_caps_of_the_source_text():
    assert s.efficiency_cap(0.1, 1e9, 10e9) == pytest.approx(1 / 3)
    assert s.efficiency_cap(0.1, 1e9, 2e9) == pytest.approx(1 / 11)
    assert s.strong_speedup_cap(0.1, 1e9, 10e9) == pytest.approx(0.5)
    assert s.strong_speedup_cap(0.1, 1e9, 2e9) == pytest.approx(0.1)
    assert s.strong_speedup_cap(0.1, 0, 2e9) == math.inf


@UNTIMED
@given(RANKS, COMPUTE, SIZES, SPEEDS, LATENCIES, OVERLAPS)
def test_weak_efficiency_never_passes_its_cap(ranks, compute, size, speed, latency, overlap):
    run = s.data_parallel(ranks, compute, size, speed, latency, "weak", overlap)
    assert run.efficiency <= s.efficiency_cap(compute, size, speed, ranks, overlap) <= 1
    assert s.efficiency_cap(compute, size, speed, None, overlap) <= s.efficiency_cap(
        compute, size, speed, ranks, overlap
    )


@UNTIMED
@given(RANKS, COMPUTE, SIZES, SPEEDS, OVERLAPS)
def test_without_latency_the_cap_at_n_is_the_efficiency(ranks, compute, size, speed, overlap):
    run = s.data_parallel(ranks, compute, size, speed, 0.0, "weak", overlap)
    assert run.efficiency == s.efficiency_cap(compute, size, speed, ranks, overlap)


@UNTIMED
@given(RANKS, COMPUTE, SIZES, SPEEDS, LATENCIES, KINDS, OVERLAPS)
def test_a_step_hangs_together(ranks, compute, size, speed, latency, kind, overlap):
    run = s.data_parallel(ranks, compute, size, speed, latency, kind, overlap)
    low, high = run.step_time_bracket_s
    assert low <= run.step_time_s * (1 + 1e-12)
    assert run.step_time_s <= high * (1 + 1e-12)
    assert 0 <= run.communication_share < 1 or run.communication_share == 1
    assert run.exposed_communication_s <= run.communication_time_s
    assert run.efficiency == pytest.approx(run.speedup / ranks)
    assert 0 < run.efficiency <= 1
    assert run.compute_time_s == pytest.approx(compute if kind == "weak" else compute / ranks)


@UNTIMED
@given(COMPUTE, SIZES, SPEEDS, LATENCIES, KINDS, OVERLAPS)
def test_one_rank_computes_and_nothing_else(compute, size, speed, latency, kind, overlap):
    run = s.data_parallel(1, compute, size, speed, latency, kind, overlap)
    assert run.step_time_s == compute
    assert run.speedup == run.efficiency == 1
    assert run.communication_time_s == run.communication_share == 0
    assert run.step_time_bracket_s == (compute, compute)


@UNTIMED
@given(RANKS, COMPUTE, SIZES, SIZES, SPEEDS, LATENCIES, LATENCIES, KINDS, OVERLAPS, OVERLAPS)
def test_the_step_is_monotone(ranks, compute, one, two, speed, fast, slow, kind, less, more):
    small, large = sorted((one, two))
    quick, late = sorted((fast, slow))
    hides_less, hides_more = sorted((less, more))
    better = s.data_parallel(ranks, compute, small, speed, quick, kind, hides_more)
    worse = s.data_parallel(ranks, compute, large, speed, late, kind, hides_less)
    assert better.step_time_s <= worse.step_time_s


@UNTIMED
@given(COMPUTE, SIZES, SPEEDS, RANKS)
def test_strong_speedup_tends_to_its_limit_and_a_limit_above_one_bounds_it(compute, size, speed, ranks):
    cap = s.strong_speedup_cap(compute, size, speed)
    run = s.data_parallel(ranks, compute, size, speed, 0.0, "strong")
    if cap >= 1:
        assert run.speedup <= cap * (1 + 1e-9)
    else:
        assert run.speedup >= cap * (1 - 1e-9)
    if cap < 1e6:
        far = s.data_parallel(10**12, compute, size, speed, 0.0, "strong")
        assert far.speedup == pytest.approx(cap, rel=1e-4)


def test_overlap_passes_the_strong_limit_at_middling_n():
    # C = 100, 2P/B = 10: 11 ranks hide 9.09 under 9.09 and are 11 times as fast, the limit is 10.
    assert s.strong_speedup_cap(100, 5, 1) == 10
    assert s.data_parallel(11, 100, 5, 1, 0.0, "strong", 1.0).speedup == pytest.approx(11)


@UNTIMED
@given(
    compute=st.floats(min_value=1e-3, max_value=10),
    ring_over_compute=st.floats(min_value=0, max_value=60),
    latency_over_compute=st.floats(min_value=0, max_value=0.55),
    kind=KINDS,
    overlap=OVERLAPS,
)
def test_break_even_by_trying_every_number_of_ranks(
    compute, ring_over_compute, latency_over_compute, kind, overlap
):
    speed = 1e9
    size, latency = ring_over_compute * compute * speed / 2, latency_over_compute * compute
    arguments = (compute, size, speed, latency, kind, overlap)
    speedups = [s.data_parallel(n, *arguments).speedup for n in range(2, 1500)]
    # A tie decided by the last bit is no gain and no loss.
    assume(all(abs(speedup - 1) > 1e-9 for speedup in speedups))
    first = next((n for n, speedup in enumerate(speedups, start=2) if speedup > 1), None)
    found = s.break_even_ranks(*arguments)
    if first is not None:
        assert found == first
    else:
        assert found is None or found >= 1500


@pytest.mark.parametrize("excess", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 0.0])
def test_break_even_ends_when_latency_eats_nearly_all(excess):
    # C = 2 alpha (1 + excess): the speedup rounds to 1 over a long stretch; the search must not walk it.
    found = s.break_even_ranks(1.0, 50e9, 1e9, 0.5 / (1 + excess))
    assert found is None or found > 100


@UNTIMED
@given(COMPUTE, SIZES, SPEEDS, LATENCIES, KINDS, OVERLAPS)
def test_break_even_is_none_or_at_least_two(compute, size, speed, latency, kind, overlap):
    found = s.break_even_ranks(compute, size, speed, latency, kind, overlap)
    assert found is None or (isinstance(found, int) and found >= 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_ranks": 0}, "n_ranks must be a whole number of at least 1, not 0"),
        ({"compute_s": 0}, "compute_s must be a finite number above 0 seconds, not 0"),
        ({"n_bytes": -1}, "n_bytes must be a finite number of at least 0 bytes, not -1"),
        ({"n_bytes": math.nan}, "n_bytes must be a finite number of at least 0 bytes, not nan"),
        ({"bandwidth": 0}, "bandwidth must be a finite number above 0 bytes/s, not 0"),
        ({"latency_s": math.inf}, "latency_s must be a finite number of at least 0 seconds, not inf"),
        ({"scaling": "sideways"}, "scaling must be one of 'weak', 'strong', not 'sideways'"),
        ({"overlap": 1.5}, "overlap must be a number from 0 to 1, not 1.5"),
    ],
)
def test_bad_input_names_argument_value_and_what_is_allowed(change, message):
    good = {"n_ranks": 8, "compute_s": 0.1, "n_bytes": 1e9, "bandwidth": 1e9, "latency_s": 0.0}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        s.data_parallel(**(good | change))


@pytest.mark.parametrize("scaling", ["weak", "strong"])
@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_a_curve_is_the_same_steps_checked_once(scaling, overlap):
    ranks = [1, 2, 3, 8, 64, 512]
    curve = s.data_parallel_curve(ranks, 0.1, 1e9, 2e9, 1e-5, scaling, overlap)
    assert [point[0] for point in curve] == ranks
    for n, speedup, efficiency, slow, fast in curve:
        step = s.data_parallel(n, 0.1, 1e9, 2e9, 1e-5, scaling, overlap)
        samples = n if scaling == "weak" else 1
        best, worst = step.step_time_bracket_s
        assert (speedup, efficiency) == pytest.approx((step.speedup, step.efficiency), rel=1e-12)
        assert (slow, fast) == pytest.approx((samples * 0.1 / worst, samples * 0.1 / best), rel=1e-12)


def test_a_curve_names_the_argument_that_is_wrong():
    with pytest.raises(ValueError, match="n_ranks must be a whole number of at least 1, not 0"):
        s.data_parallel_curve([2, 0], 0.1, 1e9, 2e9)
