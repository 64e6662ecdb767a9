"""Problems that people reported in public, each with its own inputs: the diagnosis must come out of the numbers.

The name in a comment is the case's. Numbers are theirs, arithmetic and words are ours.
"""

from __future__ import annotations

import pytest

from shardlab.models import collectives as c
from shardlab.models import diagnose as d
from shardlab.models import memory, nccl_log, scaling

RESNET50, VGG16 = 25.557e6, 138357544


def near(value, rel):
    return pytest.approx(value, rel=rel)


def gbit(bytes_per_s):
    return 8 * bytes_per_s / 1e9


# Data parallel over a slow network --------------------------------------------------------------------------------


def test_resnet_over_gigabit_ethernet():
    # A01-resnet-1gbe
    alone = 32 / 171
    found = d.data_parallel(
        alone, 10 * alone, 4, scaling="weak", n_params=RESNET50, nominal_bandwidth="1 Gb/s", n_nodes=2
    )
    assert found.sent_bytes == near(153.3e6, 0.1)
    assert found.compute_s == near(0.187, 0.1)
    assert found.communication_at_nominal_s == near(1.227, 0.1)
    assert found.predicted_slowdown == (near(6.6, 0.1), near(8.0, 0.1))
    assert [gbit(rate) for rate in found.implied_bandwidth] == [near(0.66, 0.1), near(0.73, 0.1)]
    assert gbit(found.bandwidth_to_hide) == near(6.6, 0.1)
    assert found.verdict.code == "network-bound"
    assert "More nodes on this link cannot help" in found.text()


def test_vgg_on_a_link_that_never_gets_going():
    # A02-vgg-100g-seen-10g
    found = d.data_parallel(
        base_samples_per_s=1531.9,
        samples_per_s=546.9,
        base_ranks=8,
        n_ranks=16,
        batch_per_rank=32,
        n_params=VGG16,
        nominal_bandwidth="100 Gb/s",
        n_nodes=2,
    )
    assert found.scaling == "weak"
    assert (found.base_step_s, found.step_s) == (near(0.167, 0.05), near(0.936, 0.05))
    assert found.sent_bytes == near(1037.7e6, 0.05)
    assert found.predicted_samples_per_s == (near(2047, 0.05), near(3064, 0.05))
    assert [gbit(rate) for rate in found.implied_bandwidth] == [near(8.9, 0.05), near(10.8, 0.05)]
    assert found.fraction_of_nominal == (near(0.089, 0.05), near(0.108, 0.05))
    assert found.verdict.code == "below-nominal"
    assert "10 Gb/s path" in found.verdict.text
    assert "Repair the transport before" in found.verdict.text


def test_bert_whose_slowdown_no_link_explains():
    # A04-bertbase-40g-not-physics
    found = d.data_parallel(
        0.5,
        4.0,
        8,
        base_ranks=4,
        n_params=110e6,
        nominal_bandwidth="40 Gb/s",
        n_nodes=2,
        smaller_model_helped=False,
    )
    assert found.sent_bytes == near(770e6, 0.1)
    assert found.communication_at_nominal_s == near(0.154, 0.1)
    assert found.predicted_step_s[1] == near(0.654, 0.1)
    assert found.observed_over_predicted == near(6.1, 0.1)
    assert gbit(found.implied_bandwidth[1]) == near(1.76, 0.1)
    assert found.fraction_of_nominal[1] == near(0.044, 0.1)
    assert found.verdict.code == "not-explained-by-link"
    # Without the remark about the smaller model the figures alone say so, too.
    alone = d.data_parallel(0.5, 4.0, 8, base_ranks=4, n_params=110e6, nominal_bandwidth="40 Gb/s", n_nodes=2)
    assert alone.verdict.code == "not-explained-by-link"


def test_a_tiny_net_whose_step_is_mostly_aggregation():
    # A06-tiny-ff
    found = d.breakdown("4.408 ms", "3.133 ms", "0.97 ms", "1.17 ms")
    assert found.communication_share == near(0.71, 0.03)
    assert found.step_without_communication_s == near(1.28e-3, 0.03)
    assert found.communication_to_compute == near(3.2, 0.03)
    assert found.verdict.code == "latency-bound"
    assert "no link upgrade" in found.verdict.text


def test_two_numbers_that_mean_42_or_84_percent():
    # A07-nanogpt-2xT4-efficiency-word
    measured = {"n_params": 4e6, "compute_s": "15.12 ms", "communication_s": "11.24 ms"}
    found = d.data_parallel("22.03 ms", "26.36 ms", 2, **measured)
    assert (found.strong_speedup, found.strong_efficiency) == (near(0.836, 0.01), near(0.418, 0.01))
    assert (found.weak_speedup, found.weak_efficiency) == (near(1.67, 0.01), near(0.836, 0.01))
    assert found.implied_bandwidth == (near(1.42e9, 0.01), near(1.42e9, 0.01))
    assert found.fixed_overhead_s == near(8.2e-3, 0.01)
    assert (found.scaling, found.speedup, found.efficiency, found.outcome) == (None, None, None, "depends")
    assert "Which batch did you keep?" in found.question
    assert found.question in found.text()
    assert found.verdict.code == "latency-bound", "16 MB at 1.4 GB/s is no bandwidth of any slot"
    told = d.data_parallel("22.03 ms", "26.36 ms", 2, scaling="strong", **measured)
    assert (told.question, told.efficiency, told.outcome) == ("", near(0.418, 0.01), "slowdown")


def test_a_longer_step_is_not_always_a_slowdown():
    # A08-steptime-vs-throughput
    rows = ((4, 0.789, 1.39), (2, 1.27, 2.07), (8, 0.11481056257175659, 1.639344262295082))
    found = [d.data_parallel(one, many, n, scaling="weak") for n, one, many in rows]
    assert [run.speedup for run in found] == [near(2.27, 0.01), near(1.23, 0.01), near(0.56, 0.01)]
    assert [run.efficiency for run in found] == [near(0.568, 0.01), near(0.614, 0.01), near(0.07, 0.01)]
    assert [run.outcome for run in found] == ["gain", "gain", "slowdown"]
    assert [run.verdict.code for run in found] == ["poor-efficiency", "poor-efficiency", "slowdown"]
    assert "no slowdown" in found[0].verdict.text
    assert "true slowdown" in found[2].verdict.text


def test_a_network_figure_in_the_wrong_unit():
    # A11-gigabit-or-gigabyte
    for link in ("1 GB/s", 1e9):
        found = d.data_parallel(
            base_samples_per_s=608.38,
            samples_per_s=300.18,
            base_ranks=4,
            n_ranks=8,
            batch_per_rank=64,
            n_params=RESNET50,
            nominal_bandwidth=link,
            n_nodes=2,
        )
        assert (found.base_step_s, found.step_s) == (near(0.421, 0.1), near(1.706, 0.1))
        assert found.sent_bytes == near(178.9e6, 0.1)
        assert found.predicted_samples_per_s == (near(853, 0.1), near(1217, 0.1))
        assert found.alternative_samples_per_s == (near(276, 0.1), near(358, 0.1))
        assert found.verdict.code == "unit-confusion"
        assert "1 Gb/s is 125 MB/s" in found.verdict.text
        assert "1 GB/s is 8 Gb/s" in found.verdict.text


# Benchmarks of collectives ----------------------------------------------------------------------------------------


def test_one_gibibyte_on_one_to_four_boxes():
    # C01-nccl-p4d-rows
    rows = (
        (8, 1, 8142.6, 131.87, 230.77),
        (16, 2, 35215, 30.49, 57.17),
        (24, 3, 64782, 16.57, 31.77),
        (32, 4, 70253, 15.28, 29.61),
    )
    found = []
    for ranks, nodes, us, algbw, busbw in rows:
        link = "300 GB/s" if nodes == 1 else "400 Gb/s"
        run = d.collective(1073741824, us * 1e-6, ranks, nominal_bandwidth=link, n_nodes=nodes)
        assert run.algbw == near(algbw * 1e9, 0.002)
        assert run.busbw == near(busbw * 1e9, 0.002)
        found.append(run)
    assert found[1].verdict.code == "above-link"
    assert "tree" in found[1].verdict.text
    assert found[3].fraction_of_nominal == near(0.59, 0.01)
    # The rows of the log, without its device list, give the same.
    lines = "\n".join(
        f"1073741824 268435456 float sum -1 {us} {algbw} {busbw} 0" for _, _, us, algbw, busbw in rows[1:2]
    )
    table = nccl_log.parse(lines)
    assert table.n_ranks == 16
    assert table.peak_busbw == near(57.17e9, 0.002)


def test_gloo_on_one_core():
    # C05-gloo-one-core
    found = d.collective(20e6, "17.251 ms", 2, nominal_bandwidth="40 Gb/s", backend="gloo", cores_per_rank=1)
    assert found.algbw == found.busbw == near(1.16e9, 0.08)
    assert gbit(found.busbw) == near(9.3, 0.08)
    assert found.fraction_of_nominal == near(0.23, 0.08)
    assert found.verdict.code == "cpu-bound"
    assert "1 core per process" in found.verdict.text
    assert any("NCCL" in note for note in found.notes)


def test_factors_that_other_tools_got_wrong():
    # C06-benchmark-formula-bugs
    size, time, n = 1e9, 10e-3, 8
    assert c.algbw(size, time) == 100e9
    assert c.busbw("all-gather", size, time, n) == 87.5e9
    assert c.busbw("reduce-scatter", size, time, n) == 87.5e9
    assert c.busbw("all-reduce", size, time, n) == 175e9
    assert c.algbw(size, time) * (n - 1) == near(700e9, 1e-12), (
        "what a factor without its divisor would print"
    )
    assert c.algbw(size, 10) == 0.1e9, "what milliseconds read as seconds would print"


def test_bus_bandwidth_that_falls_with_boxes():
    # C07-falls-with-nodes
    found = d.collective_by_nodes([(2, 100e9), (3, 70e9), (4, 58e9), (5, 58e9), (6, 40e9)], "8x100 Gb/s")
    assert found.fractions[-1] == near(0.4, 1e-9)
    assert found.verdict.code == "falls-with-nodes"
    assert found.drop == near(40 / 70, 1e-9)
    assert found.volume_growth < 1.03
    assert "two nodes does not compare" in found.verdict.text
    assert "oversubscribed" in found.verdict.text


# How much a ring moves --------------------------------------------------------------------------------------------


def test_no_rank_sends_ranks_times_the_model():
    # D01-roberta-16GB-myth
    sent = c.ring_allreduce_sent_bytes(125e6 * 4, 16)
    assert sent == near(0.9375e9, 0.01)
    assert sent / (25e9 / 8) == near(0.3, 0.01)
    assert sent / (100e9 / 8) == near(0.075, 0.01)
    assert 16e9 / sent == near(17, 0.01)
    assert c.ring_allreduce_sent_bytes(500e6, 1024) < 2 * 500e6


def test_a_hundred_megabytes_on_four():
    # D02-150MB-right-formula-wrong
    assert c.ring_allreduce_sent_bytes(100e6, 4) == 150e6
    assert (100e6 / 4) * 2 * (3 / 4) == 37.5e6, "with one division by N too many"
    assert c.double_tree_allreduce_cost(100e6, 4).sent_bytes == 200e6
    tree = c.simulate("all-reduce", "double tree", [[float(rank)] * 1600 for rank in range(4)])
    assert tree.sent_bytes[0] == 1600 * 4, "the root sends one buffer"
    assert max(tree.sent_bytes) == 2 * 1600 * 4, "an inner rank two"


# Sharding, accumulation -------------------------------------------------------------------------------------------


def test_adapters_on_a_fully_sharded_model_over_ten_gigabit():
    # E07-lora-zero3-10gbe
    found = d.sharded(
        16, 8.03e9, 2, trainable_params=21e6, base_step_s=4, step_s=90, nominal_bandwidth="10 Gb/s"
    )
    assert found.gathered_bytes == near(30.1e9, 0.1)
    assert found.micro_step_at_nominal_s == near(24.1, 0.1)
    assert found.replicated_bytes == near(79e6, 0.1)
    assert found.replicated_at_nominal_s == near(0.06, 0.1)
    assert found.micro_steps_explained == near(3.6, 0.1)
    assert found.verdict.code == "network-bound"
    assert "frozen ones too" in found.verdict.text
    assert "Replicas" in found.verdict.checks[0]


def test_sharding_inside_the_node():
    # E08-hybrid-shard
    four = d.sharded(32, full_throughput=55.349, hybrid_throughput=74.41, one_node_throughput=21.7, n_nodes=4)
    two = d.sharded(16, hybrid_throughput=40.8, one_node_throughput=21.7, n_nodes=2)
    assert two.hybrid_efficiency == near(0.94, 0.01)
    assert four.hybrid_efficiency == near(0.857, 0.01)
    assert four.full_efficiency == near(0.638, 0.01)
    assert four.hybrid_gain == near(1.34, 0.01)
    assert four.verdict.code == "shard-inside-node"
    assert d.sharded(8, full_throughput=293, hybrid_throughput=392).hybrid_gain == near(1.34, 0.01)


def test_full_sharding_of_a_model_that_fits():
    # E09-fsdp-nowrap-and-accum
    found = d.sharded(4, global_batch=256, micro_batch=2, replicated_throughput=8034, full_throughput=1747)
    assert found.accumulation_steps == 32
    assert found.replicated_gain == near(4.6, 0.01)
    assert found.traffic_ratio == near(48, 0.01)
    assert found.verdict.code == "replicate-instead"


def test_accumulation_that_saves_nothing():
    # H01-accum-saves-nothing-fsdp2
    broken = d.accumulation(22.2, 88.8, 4, compute_s=10.8)
    assert broken.sync_s == near(11.4, 0.01)
    assert broken.if_synced_every_s == near(88.8, 0.01)
    assert broken.if_skipped_s == near(54.6, 0.01)
    assert broken.throughput_gain == near(1.63, 0.01)
    assert broken.limit_gain == near(2.06, 0.01)
    assert broken.verdict.code == "not-skipping"
    for step in (54.3, 54.3, 54.9):
        assert d.accumulation(22.2, step, 4, compute_s=10.8).verdict.code == "skipping"
    assert d.accumulation(110.2, 430.6, 4).verdict.code == "not-skipping"


# Pipelines and tensor parallelism ---------------------------------------------------------------------------------


def test_a_bubble_that_is_not_the_bottleneck():
    # F02-bubble-not-the-bottleneck
    found = d.pipeline([(8, 8, 8077), (8, 16, 7987), (4, 8, 12150)], reference_throughput=57056)
    assert found.bubbles == (near(0.467, 0.01), near(0.304, 0.01), near(0.273, 0.01))
    assert found.expected_gains[1] == near(1.3, 0.01)
    assert found.observed_gains[1] == near(0.99, 0.01)
    assert found.ceilings == (near(30430, 0.01), near(39690, 0.01), near(41500, 0.01))
    assert found.verdict.code == "bubble-is-not-the-cause"


def test_a_pipeline_below_what_any_bubble_leaves():
    # F04-pp4-33-vs-170-tflops
    found = d.pipeline([(4, None, 33)], reference_throughput=170)
    assert found.shares_of_reference == (near(0.194, 0.01),)
    assert found.least_shares == (0.25,)
    assert found.verdict.code == "bubble-cannot-explain"
    alone = d.pipeline([(4, 1, None), (4, 4, None), (4, 16, None)], reference_throughput=170)
    assert alone.ceilings == (near(42.5, 0.01), near(97.1, 0.01), near(143.2, 0.01))


def test_fewer_micro_batches_than_stages():
    # F06-fewer-microbatches-than-stages
    found = d.pipeline([(4, 2, None)])
    assert found.bubbles == (0.6,)
    assert found.verdict.code == "fewer-micro-batches-than-stages"
    assert "last stage" in found.verdict.text


def test_tensor_parallelism_over_a_slow_bus():
    # G02-tp-over-pcie
    found = d.tensor(16384, 80, 8192, 2, tensor_tokens_per_s=378.87, baseline_tokens_per_s=1045.8)
    assert found.sent_bytes_per_token == near(2.62e6, 0.15)
    assert found.sent_bytes == near(42.9e9, 0.15)
    assert (found.tensor_s, found.baseline_s) == (near(43.2, 0.15), near(15.7, 0.15))
    assert found.implied_bandwidth == (near(1.2e9, 0.15), near(1.6e9, 0.15))
    assert found.verdict.code == "bus-bound"


# Numbers that books got wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "mixed", "pure"), [(6.7e9, 107.2, 53.6), (70.55e9, 1128.8, 564.4), (7e9, 112.0, 56.0)]
)
def test_memory_of_a_training_state(params, mixed, pure):
    # E12-books-memory-numbers
    assert memory.model_states(params, 1, 0).total_bytes == near(mixed * 1e9, 0.01)
    assert memory.model_states(params, 1, 0, "bf16-adam-8").total_bytes == near(pure * 1e9, 0.01)


def test_an_inequality_that_was_turned_round():
    # M03-flipped-inequality
    assert near(0.053, 0.01) == 16e9 / 300e9
    assert c.ring_allreduce_time_s(16e9, 8, 300e9) == near(0.093, 0.01)
    assert scaling.data_parallel(8, 0.42, 16e9, 300e9).bottleneck == "compute"


def test_an_all_gather_does_not_get_n_times_cheaper():
    # M04-quiz-keys-wrong
    time = c.collective_time_s("all-gather", "ring", 1e9, 8, 450e9)
    assert time == near(1.94e-3, 0.01)
    wrong = 1e9 / (8 * 450e9)
    assert wrong == near(0.278e-3, 0.01)
    assert time / wrong == near(7.0, 0.01)
