"""Latency, bandwidth and gamma from measured times: exact data, noise, refusals and warnings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab import measured
from shardlab.models import collectives as c
from shardlab.models import fit

UNTIMED = settings(deadline=None)
SIZES = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)


def samples(
    latency, bandwidth, gamma=0.0, sizes=SIZES, ranks=(8,), kinds=(("all-reduce", "ring"),), noise=None
):
    made = []
    for n_ranks in ranks:
        for collective, name in kinds:
            for size in sizes:
                time = c.collective_time_s(collective, name, size, n_ranks, bandwidth, latency, gamma)
                time *= 1 + (noise.uniform(-0.05, 0.05) if noise else 0)
                made.append(fit.sample(size, time, n_ranks, collective, name))
    return made


@UNTIMED
@given(
    latency=st.floats(min_value=1e-7, max_value=1e-3),
    bandwidth=st.floats(min_value=1e7, max_value=1e12),
    ranks=st.lists(st.integers(min_value=2, max_value=128), min_size=1, max_size=3),
    kind=st.sampled_from(
        [("all-reduce", "ring"), ("all-gather", "bruck"), ("all-reduce", "recursive doubling")]
    ),
)
def test_exact_times_give_the_link_back(latency, bandwidth, ranks, kind):
    crossing = latency * bandwidth
    sizes = [crossing * factor for factor in (0.1, 1, 10, 100, 1000)]
    link = fit.fit_link(samples(latency, bandwidth, sizes=sizes, ranks=ranks, kinds=(kind,)))
    assert link.latency_s == pytest.approx(latency, rel=1e-6)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-6)
    assert link.reduce_s_per_byte == 0
    assert link.max_relative_error < 1e-6
    assert link.time_s(sizes[2], ranks[0], *kind) == pytest.approx(
        c.collective_time_s(*kind, sizes[2], ranks[0], bandwidth, latency), rel=1e-6
    )


@UNTIMED
@given(
    latency=st.floats(min_value=1e-6, max_value=1e-4),
    bandwidth=st.floats(min_value=1e8, max_value=1e11),
    share=st.floats(min_value=0.3, max_value=5),
)
def test_gamma_comes_back_where_adding_and_sending_differ(latency, bandwidth, share):
    gamma = share / bandwidth
    kinds = (("all-gather", "ring"), ("reduce-scatter", "ring"))
    link = fit.fit_link(samples(latency, bandwidth, gamma, kinds=kinds), with_reduction=True)
    assert link.reduce_s_per_byte == pytest.approx(gamma, rel=1e-5)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-5)
    assert link.latency_s == pytest.approx(latency, rel=1e-5)


@UNTIMED
@given(seed=st.integers(0, 10**6))
def test_no_small_change_of_the_link_fits_noisy_times_better(seed):
    noisy = samples(20e-6, 5e9, ranks=(4, 16), noise=random.Random(seed))
    link = fit.fit_link(noisy)

    def misfit(latency, bandwidth):
        total = 0.0
        for one in noisy:
            time = c.collective_time_s(
                one.collective, one.algorithm, one.n_bytes, one.n_ranks, bandwidth, latency
            )
            total += (time / one.time_s - 1) ** 2
        return total

    best = misfit(link.latency_s, link.bandwidth)
    assert best == pytest.approx(len(noisy) * link.rms_relative_error**2)
    for step in (0.999, 1.001):
        assert misfit(link.latency_s * step, link.bandwidth) > best
        assert misfit(link.latency_s, link.bandwidth * step) > best
    assert link.latency_s == pytest.approx(20e-6, rel=0.06)
    assert link.bandwidth == pytest.approx(5e9, rel=0.06)
    assert not link.warnings


def test_relative_errors_weigh_small_and_large_alike():
    # One large buffer 20 % slow: plain least squares would move the latency by much more than this.
    points = samples(10e-6, 1e9)
    slow = [*points[:-1], fit.sample(1e9, points[-1].time_s * 1.2, 8)]
    assert fit.fit_link(slow).latency_s == pytest.approx(10e-6, rel=0.05)


def test_gamma_cannot_be_told_from_rings_alone():
    with pytest.raises(ValueError, match="an all-gather beside a reduce-scatter"):
        fit.fit_link(samples(1e-5, 1e9, 1e-10), with_reduction=True)


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="at least 3 measurements for 2 unknowns, not 2"):
        fit.fit_link(samples(1e-5, 1e9)[:2])
    with pytest.raises(ValueError, match="at least 4 measurements for 3 unknowns, not 3"):
        fit.fit_link(samples(1e-5, 1e9)[:3], with_reduction=True)


def test_one_size_is_refused():
    with pytest.raises(ValueError, match=r"at least two different sizes .* not only 1 MB"):
        fit.fit_link([fit.sample(1e6, time, 8) for time in (1e-3, 1.1e-3, 0.9e-3)])


def test_one_size_on_several_ranks_tells_latency_from_bandwidth():
    link = fit.fit_link(samples(1e-4, 1e9, sizes=(1e6,), ranks=(2, 8, 32)))
    assert link.bandwidth == pytest.approx(1e9)


@pytest.mark.parametrize("times", [(1e-3, 1e-3, 1e-3), (3e-3, 2e-3, 1e-3)])
def test_times_that_do_not_grow_are_refused(times):
    points = [fit.sample(size, time, 8) for size, time in zip((1e3, 1e6, 1e9), times, strict=True)]
    with pytest.raises(ValueError, match="a time that grows with the size; from 1 kB to 1 GB it does not"):
        fit.fit_link(points)


def test_a_latency_below_zero_becomes_zero_and_is_said():
    # Times that grow faster than the size: the straight line would start below zero.
    points = [
        fit.sample(size, time, 8) for size, time in ((1e6, 1e-4), (1e7, 1.5e-3), (1e8, 2e-2), (1e9, 0.25))
    ]
    link = fit.fit_link(points)
    assert link.latency_s == 0
    assert any("latency is not determined" in warning for warning in link.warnings)


def test_large_buffers_only_warn_about_the_latency():
    link = fit.fit_link(samples(1e-6, 1e9, sizes=(1e8, 5e8, 1e9)))
    assert any("latency is not determined" in warning for warning in link.warnings)


def test_small_buffers_only_warn_about_the_bandwidth():
    link = fit.fit_link(samples(1e-4, 1e10, sizes=(8, 1e5, 2e6)))
    assert any("bandwidth is a guess" in warning for warning in link.warnings)


def test_a_protocol_switch_is_seen():
    points = samples(5e-6, 1e9, sizes=(1e4, 1e5, 1e6)) + samples(5e-6, 10e9, sizes=(1e7, 1e8, 1e9))
    link = fit.fit_link(points)
    assert any("do not describe these times" in warning for warning in link.warnings)
    assert link.max_relative_error > fit.GOOD_MAX_ERROR
    assert "warning: one latency" in link.text()


@pytest.mark.parametrize("table", measured.ALL_REDUCE, ids=lambda table: table.machine)
def test_measured_machines_fit_within_a_fifth(table):
    points = [
        fit.sample(size, size * c.busbw_factor("all-reduce", table.n_ranks) / rate, table.n_ranks)
        for size, rate in zip(table.n_bytes, table.busbw, strict=True)
    ]
    link = fit.fit_link(points)
    assert link.max_relative_error < 0.20
    assert 0.85 * table.busbw[-1] < link.bandwidth < 1.1 * table.busbw[-1]
    assert 1e-6 < link.latency_s < 20e-6
    assert "root mean square" in link.text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1e-3, 8), "n_bytes must be a finite number above 0 bytes, not 0"),
        ((1e6, 0, 8), "time_s must be a finite number above 0 seconds, not 0"),
        ((1e6, 1e-3, 1), "n_ranks must be a whole number of at least 2, not 1"),
        (
            (1e6, 1e-3, 6, "all-gather", "recursive doubling"),
            "n_ranks must be a power of two for recursive doubling",
        ),
        ((1e6, 1e-3, 8, "all-reduce", "magic"), "algorithm of all-reduce must be one of"),
    ],
)
def test_bad_samples_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit.sample(*arguments)
