"""Diagnoses of runs whose truth is known, because they were made from it; bad input; and what people are told."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab import measured
from shardlab.models import diagnose as d
from shardlab.models import scaling
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.diagnose_common import percent

UNTIMED = settings(deadline=None)


def made(n, compute, n_bytes, bandwidth, latency=0.0, kind="weak", overlap=0.0):
    """Base step and step of a run with this truth."""
    return compute, scaling.data_parallel(n, compute, n_bytes, bandwidth, latency, kind, overlap).step_time_s


# The numbers ------------------------------------------------------------------------------------------------------


@UNTIMED
@given(
    n=st.integers(min_value=2, max_value=512),
    compute=st.floats(min_value=1e-3, max_value=10),
    n_bytes=st.floats(min_value=1e6, max_value=1e11),
    bandwidth=st.floats(min_value=1e8, max_value=1e12),
    kind=st.sampled_from(scaling.SCALINGS),
    overlap=st.floats(min_value=0, max_value=1),
)
def test_the_bracket_holds_the_true_bandwidth(n, compute, n_bytes, bandwidth, kind, overlap):
    base, step = made(n, compute, n_bytes, bandwidth, 0.0, kind, overlap)
    found = d.data_parallel(base, step, n, scaling=kind, gradient_bytes=n_bytes)
    low, high = found.implied_bandwidth
    assert low <= bandwidth * (1 + 1e-9)
    if high is not None:
        assert high >= bandwidth * (1 - 1e-9)
        if overlap == 0:
            assert high == pytest.approx(bandwidth)


@UNTIMED
@given(
    n=st.integers(min_value=2, max_value=512),
    base=st.integers(min_value=1, max_value=8),
    one=st.floats(min_value=1e-3, max_value=100),
    many=st.floats(min_value=1e-3, max_value=100),
)
def test_weak_and_strong_differ_by_the_ratio_of_ranks(n, base, one, many):
    if n <= base:
        return
    found = d.data_parallel(one, many, n, base)
    assert found.weak_speedup == pytest.approx(found.strong_speedup * n / base)
    assert found.weak_efficiency == pytest.approx(found.strong_speedup)
    assert found.strong_efficiency == pytest.approx(found.strong_speedup * base / n)
    assert found.verdict.text
    assert found.text().startswith("Data parallel")
    assert (found.question == "") == (found.scaling is not None)


@UNTIMED
@given(
    compute=st.floats(min_value=0.01, max_value=1),
    n_bytes=st.floats(min_value=1e7, max_value=1e10),
    bandwidth=st.floats(min_value=1e8, max_value=1e11),
)
def test_ranks_to_beat_one_rank_is_the_break_even(compute, n_bytes, bandwidth):
    base, step = made(16, compute, n_bytes, bandwidth)
    found = d.data_parallel(base, step, 16, scaling="weak", gradient_bytes=n_bytes)
    if found.implied_bandwidth[1] is not None:
        exact = scaling.break_even_ranks(compute, n_bytes, found.implied_bandwidth[1])
        assert found.ranks_to_beat_base in (exact, exact + 1, exact - 1)


def test_predictions_at_the_nominal_speed():
    found = d.data_parallel(
        0.1, 0.3, 8, scaling="weak", gradient_bytes=1e9, nominal_bandwidth="10 GB/s", batch_per_rank=4
    )
    assert found.communication_at_nominal_s == pytest.approx(0.175)
    assert found.predicted_step_s == (pytest.approx(0.175), pytest.approx(0.275))
    assert found.predicted_samples_per_s == (pytest.approx(32 / 0.275), pytest.approx(32 / 0.175))
    assert found.alternative_step_s == (pytest.approx(1.4), pytest.approx(1.5))
    assert found.observed_over_predicted == pytest.approx(0.3 / 0.275)


def test_throughputs_and_batches_tell_the_scaling():
    rates = {"base_samples_per_s": 100.0, "samples_per_s": 300.0, "n_ranks": 4}
    weak = d.data_parallel(batch_per_rank=32, **rates)
    assert (weak.scaling, weak.base_step_s, weak.step_s) == (
        "weak",
        pytest.approx(0.32),
        pytest.approx(128 / 300),
    )
    assert weak.speedup == pytest.approx(3)
    strong = d.data_parallel(batch_per_rank=8, base_batch_per_rank=32, **rates)
    assert (strong.scaling, strong.base_step_s, strong.step_s) == (
        "strong",
        pytest.approx(0.32),
        pytest.approx(32 / 300),
    )
    assert strong.speedup == pytest.approx(3)
    other = d.data_parallel(batch_per_rank=16, base_batch_per_rank=32, **rates)
    assert other.scaling == "other"
    assert other.speedup == pytest.approx(3)
    assert d.data_parallel(batch_per_rank=8, scaling="strong", **rates).base_step_s == pytest.approx(0.32)
    assert d.step_time_s(546.9, 32, 16) == pytest.approx(0.936, rel=1e-3)


def test_epochs_become_steps():
    by_steps = d.data_parallel(
        n_ranks=4, base_epoch_s=49, epoch_s=82, base_steps_per_epoch=250, steps_per_epoch=250
    )
    assert (by_steps.base_step_s, by_steps.step_s) == (pytest.approx(0.196), pytest.approx(0.328))
    assert by_steps.verdict.code == "step-counting"
    assert "Unless you kept the global batch" in by_steps.verdict.text
    by_batch = d.data_parallel(
        n_ranks=4, base_epoch_s=49, epoch_s="20 s", dataset_samples=10000, batch_per_rank=16
    )
    assert by_batch.base_step_s == pytest.approx(49 / 625)
    assert by_batch.step_s == pytest.approx(20 / 157)
    assert by_batch.scaling == "weak"
    assert by_batch.speedup == pytest.approx(49 / 20, rel=0.01)


def test_mfu_padding_and_units_as_text():
    found = d.data_parallel(
        "100 ms",
        "110 ms",
        8,
        n_params="1B",
        tokens_per_step=8 * 4096,
        peak_flops=989e12,
        dataset_samples=1001,
        scaling="weak",
    )
    assert found.mfu == pytest.approx(6e9 * 8 * 4096 / (0.11 * 8 * 989e12))
    assert (found.padded_samples, found.duplicate_samples) == (1008, 7)
    assert any("7 samples of 1008" in note for note in found.notes)
    over = d.data_parallel(0.1, 0.11, 2, flops_per_step=1e15, peak_flops=1e15, scaling="weak")
    assert over.mfu > 1
    assert any("more than the hardware has" in note for note in over.notes)


# Scenarios made from their causes ---------------------------------------------------------------------------------

GPT2 = 124e6 * 4


def scenario(expected, base, step, n, says=(), **known):
    return pytest.param(
        base, step, n, expected, says, known, id=f"{expected}: {base:.3g} to {step:.3g} s on {n}"
    )


SCENARIOS = [
    scenario(
        "network-bound",
        *made(16, 0.3, GPT2, 0.9 * 1.25e9),
        16,
        n_params="124M",
        nominal_bandwidth="10 Gb/s",
        n_nodes=2,
    ),
    scenario(
        "network-bound",
        *made(32, 1.5, 14e9, 0.85 * 3.125e9, overlap=0.6),
        32,
        n_params="7B",
        bytes_per_param=2,
        nominal_bandwidth="25 Gb/s",
        n_nodes=4,
    ),
    scenario(
        "scales-well",
        *made(16, 1.0, 2.8e9, 45e9, overlap=0.66),
        16,
        n_params="1.4B",
        bytes_per_param=2,
        nominal_bandwidth="400 Gb/s",
        n_nodes=2,
    ),
    scenario(
        "communication-exposed",
        *made(16, 0.5, 5.6e9, 40e9),
        16,
        n_params="1.4B",
        nominal_bandwidth="400 Gb/s",
        n_nodes=2,
    ),
    # NCCL over TCP sockets on a 100 Gb/s fabric.
    scenario(
        "below-nominal",
        *made(16, 0.25, 1.4e9, 2.2e9),
        16,
        ("NET/Socket", "100 Gb/s"),
        n_params="350M",
        nominal_bandwidth="100 Gb/s",
        n_nodes=2,
    ),
    scenario(
        "below-nominal",
        *made(16, 0.25, 1.4e9, 2.9e9),
        16,
        ("25 Gb/s path",),
        n_params="350M",
        nominal_bandwidth="100 Gb/s",
        n_nodes=2,
    ),
    # Consumer GPUs in one box, peer to peer switched off.
    scenario(
        "below-nominal",
        *made(4, 0.2, 1.4e9, 4e9),
        4,
        ("through the CPU's memory", "P2P"),
        n_params="350M",
        nominal_bandwidth="31.5 GB/s",
        n_nodes=1,
    ),
    scenario("slow-inside-the-box", *made(4, 0.2, 1.4e9, 4e9), 4, ("P2P",), n_params="350M", n_nodes=1),
    scenario(
        "communication-bound",
        *made(16, 0.3, GPT2, 1.2e9),
        16,
        ("10 Gb/s network",),
        n_params="124M",
        n_nodes=2,
    ),
    # All ranks share one loader: the same samples per second as one.
    scenario(
        "shared-resource",
        0.25,
        1.0,
        4,
        ("data loading",),
        n_params="25M",
        nominal_bandwidth="300 GB/s",
        n_nodes=1,
    ),
    scenario("shared-resource", 0.25, 1.02, 4, ("synthetic data",)),
    scenario("data-loading", 0.25, 0.7, 4, n_params="25M", nominal_bandwidth="300 GB/s", data_s=0.4),
    # A small model, a short step: starting collectives is what costs.
    scenario(
        "latency-bound",
        0.010,
        0.025,
        8,
        ("does not shorten it",),
        n_params="11M",
        nominal_bandwidth="300 GB/s",
        n_nodes=1,
    ),
    scenario("latency-bound", 0.006, 0.012, 4, n_params="2M", n_nodes=1),
    # Eight micro-steps, each with its all-reduce.
    scenario(
        "sync-every-micro-step",
        2.0,
        2.0 + 8 * ring_allreduce_time_s(1.4e9, 16, 10e9),
        16,
        ("each of the 8 micro-steps",),
        n_params="350M",
        nominal_bandwidth="100 Gb/s",
        n_nodes=2,
        accumulation_steps=8,
    ),
    # The same, said: the link then does what it should.
    scenario(
        "communication-exposed",
        2.0,
        2.0 + 8 * ring_allreduce_time_s(1.4e9, 16, 10e9),
        16,
        n_params="350M",
        nominal_bandwidth="100 Gb/s",
        n_nodes=2,
        accumulation_steps=8,
        syncs_per_step=8,
    ),
    # "10 GB/s" that are 10 Gb/s.
    scenario(
        "unit-confusion",
        *made(16, 0.3, GPT2, 1.2e9),
        16,
        ("10 Gb/s",),
        n_params="124M",
        nominal_bandwidth="10 GB/s",
        n_nodes=2,
    ),
    # The same factor of eight on a link named in bits is no slip of units.
    scenario(
        "below-nominal",
        *made(16, 0.3, GPT2, 1.2e9),
        16,
        n_params="124M",
        nominal_bandwidth="80 Gb/s",
        n_nodes=2,
    ),
    # bf16 gradients taken for fp32: the step is too short for the bytes.
    scenario(
        "faster-than-link",
        *made(16, 0.1, GPT2 / 2, 1.2e9),
        16,
        ("bf16 is 2",),
        n_params="124M",
        nominal_bandwidth="10 Gb/s",
        n_nodes=2,
    ),
    # Strong scaling of a batch with a fixed cost per step: t(b) = 0.2 + 0.8 b.
    scenario(
        "batch-too-small",
        1.0,
        0.2 + 0.8 / 8,
        8,
        ("200 ms",),
        scaling="strong",
        n_params="25M",
        nominal_bandwidth="300 GB/s",
        n_nodes=1,
    ),
    scenario(
        "oversubscribed-cores",
        0.1,
        0.5,
        8,
        ("8 ranks share 2 cores",),
        n_params="1M",
        backend="gloo",
        n_nodes=1,
        cores_per_node=2,
    ),
    scenario(
        "cpu-bound-transport",
        *made(4, 0.3, 4e8, 0.6e9),
        4,
        n_params="100M",
        nominal_bandwidth="25 Gb/s",
        backend="gloo",
        n_nodes=4,
    ),
    # No sampler: every rank reads everything.
    scenario(
        "step-counting", 0.1, 0.102, 8, ("125 would cover",), steps_per_epoch=1000, base_steps_per_epoch=1000
    ),
    scenario("scales-well", 0.1, 0.102, 8, steps_per_epoch=125, base_steps_per_epoch=1000),
    scenario("not-communication", 0.1, 0.3, 8, ("something else",), communication_s=0.02, n_params="25M"),
    scenario("does-not-compare", 0.5, 0.3, 4, scaling="weak"),
    scenario("not-explained-by-link", 0.1, 5.0, 16, n_params="25M", nominal_bandwidth="200 Gb/s", n_nodes=2),
]


@pytest.mark.parametrize(("base", "step", "n", "expected", "says", "known"), SCENARIOS)
def test_scenarios(base, step, n, expected, says, known):
    known = {"scaling": "weak"} | known
    found = d.data_parallel(base, step, n, **known)
    assert found.verdict.code == expected, found.text()
    for words in says:
        assert words in found.text()


@pytest.mark.parametrize(
    ("link", "code"),
    [
        ("25 GB/s", "unit-confusion"),
        # 25e9 bytes/s may well be a 200 Gb/s port, converted: an eighth of it is a bad transport.
        (25e9, "below-nominal"),
        ("200 Gb/s", "below-nominal"),
        # No port is sold with this figure, in bits or bytes.
        ("24.6 GB/s", "below-nominal"),
        (24.6e9, "below-nominal"),
    ],
)
def test_an_eighth_of_a_link_is_a_slip_of_units_only_where_one_is_likely(link, code):
    base, step = made(16, 0.1, GPT2, 3.1e9)
    found = d.data_parallel(
        base, step, 16, scaling="weak", n_params="124M", nominal_bandwidth=link, n_nodes=2
    )
    assert found.verdict.code == code, found.text()


def test_a_shorter_step_without_a_word_on_the_batch_is_taken_for_strong_scaling():
    found = d.data_parallel(1.0, 0.3, 8, n_params="25M", nominal_bandwidth="300 GB/s", n_nodes=1)
    assert (found.scaling, found.assumed_scaling) == (None, "strong")
    assert found.question
    assert found.verdict.code == "batch-too-small"
    assert any("global batch (the step got shorter)" in note for note in found.notes)


def test_a_bad_transport_under_strong_scaling_stays_a_bad_transport():
    base, step = made(2, 1.0, 1.4e9, 1.25e9, 0.0, "strong")
    found = d.data_parallel(
        base, step, 16, 8, scaling="strong", n_params="350M", nominal_bandwidth="100 Gb/s", n_nodes=2
    )
    assert found.verdict.code == "below-nominal", found.text()


def test_a_bad_transport_on_a_link_too_slow_anyway_says_both():
    base, step = made(16, 0.1, GPT2, 0.3e9)
    found = d.data_parallel(
        base, step, 16, scaling="weak", n_params="124M", nominal_bandwidth="10 Gb/s", n_nodes=2
    )
    assert found.verdict.code == "below-nominal"
    assert "network-bound besides" in found.verdict.text
    assert "2.5 Gb/s path" in found.verdict.text


def test_two_nodes_are_told_that_a_tree_sends_less():
    step = made(16, 0.3, GPT2, 1.2e9)[1]
    two = d.data_parallel(
        0.3, step, 16, scaling="weak", n_params="124M", nominal_bandwidth="10 Gb/s", n_nodes=2
    )
    assert any("sends 53 % of these bytes" in note for note in two.notes)
    many = d.data_parallel(
        0.3, step, 128, scaling="weak", n_params="124M", nominal_bandwidth="10 Gb/s", n_nodes=16
    )
    assert not any("of these bytes" in note for note in many.notes)


# With a benchmark's log -------------------------------------------------------------------------------------------


def log(busbw, n=16, hosts=2, latency_us=30):
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += [
        f"#  Rank {r} Group 0 Pid {r} on node-{r * hosts // n} device {r} [0x00] NVIDIA A100"
        for r in range(n)
    ]
    for size in (8, 1 << 20, 1 << 25, 1 << 30):
        us = latency_us + 2 * (n - 1) / n * size / busbw * 1e6
        lines.append(
            f"{size} {size // 4} float sum -1 {us:.1f} {size / us / 1e3:.2f} {size / us / 1e3 * 2 * (n - 1) / n:.2f} 0"
        )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("expected", "truth", "bench"),
    [
        ("network-bound", 1.1e9, 1.1e9),
        ("communication-exposed", 11e9, 11e9),
        ("not-the-collective", 2e9, 11e9),
        ("below-nominal", 2e9, 2.1e9),
    ],
)
def test_a_log_separates_the_network_from_the_program(expected, truth, bench):
    nominal = "10 Gb/s" if expected == "network-bound" else "100 Gb/s"
    base, step = made(16, 0.3, 1.4e9, truth)
    found = d.data_parallel(
        base, step, 16, scaling="weak", n_params="350M", nominal_bandwidth=nominal, n_nodes=2, log=log(bench)
    )
    assert found.verdict.code == expected, found.text()
    assert found.benchmark_busbw == pytest.approx(bench, rel=0.02)
    assert found.benchmark_s[0] == pytest.approx(1.875 * 1.4e9 / bench, rel=0.05)
    if expected == "below-nominal":
        assert "The benchmark is as slow" in found.verdict.text


def test_a_benchmark_slower_than_the_whole_step_is_not_of_this_run():
    base, step = made(16, 0.3, 1.4e9, 11e9)
    found = d.data_parallel(base, step, 16, scaling="weak", n_params="350M", n_nodes=2, log=log(1e9))
    assert step < found.benchmark_s[0]
    assert found.verdict.code == "does-not-compare"
    assert "do not belong together" in found.verdict.text


def test_a_log_of_other_ranks_or_another_collective_is_refused():
    with pytest.raises(ValueError, match="log must be of the same 8 ranks as the run, not 16"):
        d.data_parallel(0.1, 0.2, 8, n_params="1M", log=log(1e9))
    with pytest.raises(ValueError, match="log must be of an all-reduce"):
        d.data_parallel(
            0.1, 0.2, 16, n_params="1M", log=log(1e9).replace("all_reduce_perf", "all_gather_perf")
        )


def test_a_benchmark_alone():
    good = d.benchmark(log(22e9), "200 Gb/s")
    assert good.verdict.code == "near-nominal"
    assert good.fit.bandwidth == pytest.approx(22e9, rel=0.02)
    assert good.fit.latency_s == pytest.approx(1e-6, rel=0.05)
    assert good.busbw == pytest.approx(22e9, rel=0.02)
    assert d.benchmark(log(2e9), "200 Gb/s").verdict.code == "below-nominal"
    assert d.benchmark(log(45e9), "200 Gb/s").verdict.code == "above-link"
    assert "No algorithm sends less than half" not in d.benchmark(log(45e9), "200 Gb/s").verdict.text
    assert "No algorithm sends less than half" in d.benchmark(log(45e9), "100 Gb/s").verdict.text
    assert d.benchmark(log(45e9)).verdict.code == "no-link-named"
    with pytest.raises(ValueError, match="log must be of at least 2 ranks, not 1"):
        d.benchmark(log(22e9, n=1, hosts=1))


# The other diagnoses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", measured.H100_BY_NODES, ids=lambda table: table.collective)
def test_a_real_cluster_falls_with_nodes(table):
    found = d.collective_by_nodes(list(zip(table.n_nodes, table.busbw, strict=True)), "8x400 Gb/s")
    assert found.verdict.code == "falls-with-nodes"
    assert found.n_nodes == table.n_nodes


@pytest.mark.parametrize(
    ("points", "code"),
    [
        ([(2, 95e9), (3, 90e9), (4, 88e9), (16, 86e9)], "flat"),
        ([(3, 30e9), (8, 29e9)], "flat-but-low"),
        ([(1, 230e9), (2, 95e9)], "too-few-points"),
        ([(3, 90e9), (64, 20e9)], "falls-with-nodes"),
    ],
)
def test_shapes_over_nodes(points, code):
    assert d.collective_by_nodes(points, "8x100 Gb/s").verdict.code == code


def test_a_slow_box_is_told_to_look_at_its_slots():
    found = d.collective(2**27, 0.05, 8, nominal_bandwidth="31.5 GB/s", n_nodes=1)
    assert found.verdict.code == "below-nominal"
    assert "P2P" in found.verdict.checks[0]
    apart = d.collective(2**27, 0.2, 8, nominal_bandwidth="100 Gb/s", n_nodes=4)
    assert "10 Gb/s path" in apart.verdict.text
    assert "NET/Socket" in apart.verdict.checks[0]


def test_latency_of_a_small_buffer_is_no_bandwidth():
    assert d.collective(4096, 30e-6, 16, nominal_bandwidth="200 Gb/s").verdict.code == "latency-bound"


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"step_s": 1.0, "communication_s": 0.05}, "compute-bound"),
        ({"step_s": 1.0, "communication_s": 0.3, "compute_s": 0.7}, "communication-exposed"),
        ({"step_s": 1.0, "communication_s": 0.6, "compute_s": 0.4}, "communication-bound"),
        ({"step_s": 1.0, "communication_s": 0.2, "compute_s": 0.3, "data_s": 0.5}, "data-loading"),
        ({"step_s": 0.02, "communication_s": 0.015, "compute_s": 0.005, "sent_bytes": 4e6}, "latency-bound"),
        # As short a step, but the bytes do explain it.
        (
            {
                "step_s": 0.02,
                "communication_s": 0.015,
                "compute_s": 0.005,
                "sent_bytes": 15e6,
                "nominal_bandwidth": "10 Gb/s",
            },
            "communication-bound",
        ),
    ],
)
def test_breakdowns(parts, code):
    assert d.breakdown(**parts).verdict.code == code


@UNTIMED
@given(
    compute=st.floats(min_value=0.01, max_value=10),
    sync=st.floats(min_value=0.01, max_value=10),
    k=st.integers(min_value=2, max_value=64),
)
def test_accumulation_made_from_its_truth(compute, sync, k):
    one = compute + sync
    fixed, broken = k * compute + sync, k * one
    found = d.accumulation(one, fixed, k, compute_s=compute)
    assert found.if_skipped_s == pytest.approx(fixed)
    assert found.throughput_gain == pytest.approx(broken / fixed)
    assert found.throughput_gain <= found.limit_gain * (1 + 1e-12)
    worth = 1 - fixed / broken
    if worth > 0.051:
        assert found.verdict.code == "skipping"
        assert d.accumulation(one, broken, k, compute_s=compute).verdict.code == "not-skipping"
        assert d.accumulation(one, broken, k, sync_s=sync).verdict.code == "not-skipping"
        assert d.accumulation(one, broken, k).verdict.code == "not-skipping"
        assert d.accumulation(one, fixed, k).micro_step_s == pytest.approx(compute)
    elif worth < 0.049:
        assert found.verdict.code == "nothing-to-skip"


def test_accumulation_that_costs_extra():
    assert d.accumulation(1.0, 6.0, 4).verdict.code == "slower-than-single-steps"


def test_sharding_verdicts():
    assert (
        d.sharded(16, "7B", base_step_s=10, step_s=11, nominal_bandwidth="8x400 Gb/s").verdict.code
        == "traffic"
    )
    slow = d.sharded(16, "7B", base_step_s=10, step_s=15, nominal_bandwidth="8x400 Gb/s")
    assert slow.verdict.code == "below-nominal"
    assert d.sharded(8, full_throughput=100, hybrid_throughput=101).verdict.code == "full-sharding-is-fine"
    assert (
        d.sharded(8, full_throughput=100, replicated_throughput=102).verdict.code == "full-sharding-is-fine"
    )
    # Fully trained, no accumulation: 3 against 2.
    assert d.sharded(64, "7B").traffic_ratio == pytest.approx(1.5)


def test_pipeline_verdicts():
    assert d.pipeline([(4, 16, 80)], 100).verdict.code == "bubble-explains"
    assert d.pipeline([(4, 16, 50)], 100).verdict.code == "more-than-the-bubble"
    assert d.pipeline([(4, 16, None)]).verdict.code == "bubble-only"
    interleaved = d.pipeline([(4, 8, None)], chunks=2)
    assert interleaved.bubbles[0] == pytest.approx(3 / 19)


def test_tensor_verdicts():
    assert d.tensor(1e4, 32, 4096, 2, 1900, 1000).verdict.code == "pays"
    wide = d.tensor(1e5, 32, 4096, 2, 60000, 50000, nominal_bandwidth="31.5 GB/s")
    assert wide.verdict.code in ("bus-bound", "too-narrow")
    assert d.tensor(1e5, 32, 4096, 2, 60000, 50000, training=True).sent_bytes == 2 * wide.sent_bytes
    assert d.tensor(1e6, 80, 8192, 8, 1000, 10000, nominal_bandwidth="31.5 GB/s").verdict.code == "bus-bound"


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"step_s": 1, "n_ranks": 8},
            r"base_step_s must be given \(seconds of one step\), or base_samples_per_s",
        ),
        ({"base_step_s": 1, "n_ranks": 8}, r"step_s must be given"),
        ({"base_step_s": 1, "step_s": 1}, "n_ranks must be a whole number of at least 2, not 0"),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 4, "base_ranks": 4},
            "n_ranks must be a whole number of at least 5, not 4",
        ),
        (
            {"base_step_s": 0, "step_s": 1, "n_ranks": 2},
            "base_step_s must be a finite number above 0 seconds, not 0",
        ),
        (
            {"base_step_s": "1 parsec", "step_s": 1, "n_ranks": 2},
            "base_step_s '1 parsec': the unit must be one of s, ms",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "scaling": "linear"},
            "scaling must be one of 'weak', 'strong', not 'linear'",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "samples_per_s": 3},
            "give step_s or samples_per_s, not both",
        ),
        ({"base_step_s": 1, "samples_per_s": 3, "n_ranks": 2}, "samples_per_s needs batch_per_rank"),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "nominal_bandwidth": "40 gb/s"},
            "could be bits or bytes",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "nominal_bandwidth": 40},
            "'40 Gb/s' .bits. or '40 GB/s' .bytes.",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "gradient_bytes": "4 Gb"},
            "'Gb' is bits and sizes here are bytes",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "n_nodes": 3},
            "n_nodes must be a whole number from 1 to 2, not 3",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "peak_flops": 1e15},
            "peak_flops needs flops_per_step, or tokens_per_step",
        ),
        ({"base_step_s": 1, "step_s": 1, "n_ranks": 2, "flops_per_step": 1e15}, "peak_flops must be given"),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "backend": "tcp"},
            "backend must be one of 'nccl', 'gloo', 'mpi', not 'tcp'",
        ),
        (
            {
                "base_step_s": 1,
                "step_s": 1,
                "n_ranks": 2,
                "scaling": "weak",
                "batch_per_rank": 4,
                "base_batch_per_rank": 8,
            },
            "scaling 'weak' contradicts the batches: 4 samples a rank on 2 ranks against 8 on 1 rank is strong scaling",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "n_ranks": 2, "cores_per_node": 4},
            "cores_per_node needs n_nodes: how many ranks share",
        ),
        (
            {"base_epoch_s": 1, "epoch_s": 1, "n_ranks": 2},
            "base_epoch_s needs base_steps_per_epoch, or dataset_samples with base_batch_per_rank",
        ),
        (
            {"base_step_s": 1, "step_s": 1, "epoch_s": 1, "n_ranks": 2, "steps_per_epoch": 9},
            "give step_s or epoch_s, not both",
        ),
    ],
)
def test_bad_input_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        d.data_parallel(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: d.breakdown(1.0, 2.0), "communication_s must not exceed step_s 1 s, not 2 s"),
        (lambda: d.accumulation(1.0, 2.0, 1), "k must be a whole number of at least 2, not 1"),
        (lambda: d.accumulation(1.0, 2.0, 2, compute_s=3), "compute_s must not exceed step_1_s 1 s, not 3 s"),
        (
            lambda: d.sharded(4, global_batch=10, micro_batch=3),
            "global_batch must be a multiple of micro_batch times n_ranks = 12, not 10",
        ),
        (lambda: d.sharded(4, global_batch=8), "global_batch and micro_batch must be given together"),
        (lambda: d.sharded(4, "1M", trainable_params="2M"), "trainable_params must not exceed n_params"),
        (lambda: d.sharded(4, full_throughput=3, one_node_throughput=1), "one_node_throughput needs n_nodes"),
        (lambda: d.pipeline([]), "runs must hold"),
        (lambda: d.pipeline([(4, 8)]), "runs must hold"),
        (lambda: d.tensor(10, 2, 4, 1, 1, 1), "n_ranks must be a whole number of at least 2, not 1"),
        (lambda: d.collective(1e6, 1e-3, 1), "n_ranks must be a whole number of at least 2, not 1"),
        (lambda: d.collective_by_nodes([]), "points must hold at least one pair"),
        (lambda: d.collective_by_nodes([(2, 1e9), (2, 2e9)]), "not 2 twice"),
    ],
)
def test_bad_input_of_the_other_diagnoses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_results_are_frozen():
    found = d.data_parallel(1.0, 1.5, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.step_s = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.verdict.code = "fine"


def test_a_share_too_small_to_read_is_bounded():
    assert (percent(7.6e-8), percent(0.0), percent(0.044)) == ("under 0.01 %", "0 %", "4.4 %")
