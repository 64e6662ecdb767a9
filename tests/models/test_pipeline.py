"""Pipeline schedules against published numbers, closed forms and public cases."""

from __future__ import annotations

import math

import pytest

from shardlab.models import pipeline

# Zero Bubble Pipeline Parallelism (arXiv 2401.10241), Table 5: p, m, T_F, T_B, T_W, T_comm (ms), then the bubble
# rates of 1F1B, interleaved 1F1B, ZB-H1 and ZB-H2. The last number is the chunks per stage of the interleaved run.
ZERO_BUBBLE_TABLE_5 = [
    ("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083, 3),
    ("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837, 3),
    ("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674, 0.0444, 3),
    ("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 0.1323, 0.0698, 4),
    ("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 0.1045, 0.0559, 4),
    ("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 0.0554, 0.0294, 4),
    ("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672, 3),
    ("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088, 0.0516, 3),
    ("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266, 3),
    ("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421, 0.0641, 2),
    ("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106, 0.0490, 2),
    ("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 0.0594, 0.0257, 2),
]
TABLE_5_IDS = [f"{row[0]}-m{row[2]}" for row in ZERO_BUBBLE_TABLE_5]

# Every schedule, with the chunks it takes.
ALL = [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 3)]
ALL += [("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("dualpipe-v", 2)]


@pytest.mark.parametrize("row", ZERO_BUBBLE_TABLE_5, ids=TABLE_5_IDS)
def test_zero_bubble_table_5_to_four_decimals(row):
    _, p, m, forward, backward, weight, transfer, one_f_one_b, _, h1, h2, _ = row
    times = (forward, backward, weight, transfer)
    assert pipeline.simulate("1f1b", p, m, *times).bubble_of_total == pytest.approx(one_f_one_b, abs=5e-5)
    assert pipeline.simulate("zb-h1", p, m, *times).bubble_of_total == pytest.approx(h1, abs=5e-5)
    # The paper's cost is the longest span of one stage: with ZB-H2 stages start and stop late.
    assert pipeline.simulate("zb-h2", p, m, *times).bubble_of_longest_span == pytest.approx(h2, abs=5e-5)
    for schedule in ("1f1b", "zb-h1"):
        run = pipeline.simulate(schedule, p, m, *times)
        assert run.bubble_of_longest_span == pytest.approx(run.bubble_of_total, abs=1e-12)


@pytest.mark.parametrize("row", ZERO_BUBBLE_TABLE_5, ids=TABLE_5_IDS)
def test_zero_bubble_table_5_interleaved_within_0_004_and_above_the_paper(row):
    _, p, m, forward, backward, weight, transfer, _, interleaved, _, _, chunks = row
    run = pipeline.simulate("interleaved-1f1b", p, m, forward, backward, weight, transfer, chunks)
    assert 0 < run.bubble_of_total - interleaved < 0.004
    free = pipeline.simulate("interleaved-1f1b", p, m, forward, backward, weight, chunks=chunks)
    assert free.bubble_of_total == pytest.approx((p - 1) / (chunks * m + p - 1), rel=1e-12)


def test_zb_h2_makespan_is_longer_than_its_longest_stage_span():
    # Printing the makespan's ratio beside the paper's would look like a miss: 0.1003 against 0.0698.
    run = pipeline.simulate("zb-h2", 8, 24, 29.718, 29.444, 19.927, 0.527)
    assert run.bubble_of_total == pytest.approx(0.1003, abs=5e-5)
    assert run.longest_stage_span_s < run.makespan_s


# --- bubble ratios ---


@pytest.mark.parametrize(
    ("stages", "micro_batches", "expected"), [(8, 8, 7 / 15), (8, 32, 7 / 39), (4, 8, 3 / 11)]
)
def test_gpipe_and_1f1b_idle_over_total(stages, micro_batches, expected):
    for schedule in ("gpipe", "1f1b"):
        run = pipeline.simulate(schedule, stages, micro_batches, 1, 1, 1)
        assert run.bubble_of_total == pytest.approx(expected, rel=1e-12)
        assert run.bubble_of_ideal == pytest.approx((stages - 1) / micro_batches, rel=1e-12)


def test_the_two_ratios_at_8_stages_8_micro_batches():
    assert pipeline.bubble_of_total(8, 8) == pytest.approx(0.467, abs=5e-4)
    assert pipeline.bubble_of_ideal(8, 8) == 0.875
    # GPipe calls the bubble negligible from m = 4p; by its own formula it is still 17.9 % of the time.
    assert pipeline.bubble_of_total(8, 32) == pytest.approx(0.179, abs=5e-4)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_executor_equals_the_closed_form(stages, rounds, chunks):
    m = stages * rounds
    run = pipeline.simulate("interleaved-1f1b", stages, m, 0.3, 0.25, 0.2, chunks=chunks)
    assert run.bubble_of_total == pytest.approx(
        pipeline.bubble_of_total(stages, m, chunks), rel=1e-9, abs=1e-12
    )
    assert run.bubble_of_ideal == pytest.approx(
        pipeline.bubble_of_ideal(stages, m, chunks), rel=1e-9, abs=1e-12
    )


def test_measured_schedules_of_torch_pipelining():
    # p = 4, m = 8, 60 ms stages: gloo on CPU measured .271, .301 and .173 (two chunks) on 2 cores.
    for schedule, chunks, predicted, measured in (
        ("gpipe", 1, 0.273, 0.271),
        ("1f1b", 1, 0.273, 0.301),
        ("interleaved-1f1b", 2, 0.158, 0.173),
    ):
        bubble = pipeline.simulate(schedule, 4, 8, 0.06, 0.06, 0.06, chunks=chunks).bubble_of_total
        assert bubble == pytest.approx(predicted, abs=5e-4)
        assert abs(bubble - measured) < 0.03


def test_llama_3_states_idle_over_ideal():
    # (PP-1)/(V M) with 16 stages, the 16 micro-batches of one batch and V chunks: halves with each doubling of V.
    assert pipeline.bubble_of_ideal(16, 16, 1) == 15 / 16
    assert pipeline.bubble_of_ideal(16, 16, 4) == 15 / 64


@pytest.mark.parametrize("times", [(1, 1, 1), (1, 1, 0.6), (2, 1.5, 1), (18.5, 18.1, 9.3)])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 15), (8, 40)])
def test_zero_bubble_formulas_of_table_2(times, stages, micro_batches):
    work = micro_batches * math.fsum(times)
    for schedule in ("1f1b", "zb-h1"):
        run = pipeline.simulate(schedule, stages, micro_batches, *times)
        idle = pipeline.published_bubble_s(schedule, stages, *times)
        assert run.makespan_s - work == pytest.approx(idle, abs=1e-9)
    span = pipeline.simulate("zb-h2", stages, micro_batches, *times).longest_stage_span_s
    assert span - work == pytest.approx(pipeline.published_bubble_s("zb-h2", stages, *times), abs=1e-9)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 7])
def test_zb_v_has_no_bubble_within_a_stage_span_for_equal_times(stages, extra):
    run = pipeline.simulate("zb-v", stages, 2 * stages + extra, 1, 1, 1)
    assert run.bubble_of_longest_span == pytest.approx(0, abs=1e-12)
    # Ranks start one chunk's forward after each other, and nothing else is lost.
    assert run.makespan_s == pytest.approx((2 * stages + extra) * 3 + (stages - 1) * 0.5)
    assert pipeline.published_bubble_s("zb-v", stages, 1, 1, 1) == 0


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 7])
def test_dualpipe_v_has_its_published_bubble_for_equal_times(stages, extra):
    m = 2 * stages + extra
    run = pipeline.simulate("dualpipe-v", stages, m, 1, 1, 1)
    assert run.makespan_s - 3 * m == pytest.approx(
        pipeline.published_bubble_s("dualpipe-v", stages, 1, 1, 1), abs=1e-9
    )


def test_dualpipe_v_formula_as_its_readme_writes_it():
    # (PP/2 - 1)(F&B + B - 3W) per chunk: PP counts 2p stages, B is a whole backward, F&B takes F + B here.
    stages, forward, backward, weight = 4, 1.0, 2.0, 0.5
    f, whole, w = forward / 2, (backward + weight) / 2, weight / 2
    readme = (2 * stages / 2 - 1) * ((f + whole) + whole - 3 * w)
    assert pipeline.published_bubble_s("dualpipe-v", stages, forward, backward, weight) == pytest.approx(
        readme
    )


def test_order_of_the_schedules_by_bubble():
    def bubble(name, chunks=1):
        return pipeline.simulate(name, 8, 32, 1, 1, 1, chunks=chunks).bubble_of_total

    assert bubble("gpipe") == bubble("1f1b")  # 1f1b saves memory, not time
    assert bubble("1f1b") > bubble("interleaved-1f1b", 2) > bubble("interleaved-1f1b", 4)
    assert bubble("1f1b") > bubble("zb-h1") > bubble("zb-v")


# --- memory ---


def test_gpipe_keeps_all_micro_batches_and_1f1b_p_minus_rank():
    for m in (4, 8, 32):
        assert pipeline.simulate("gpipe", 4, m, 1, 1, 1).in_flight_peak == (m,) * 4
        assert pipeline.simulate("1f1b", 4, m, 1, 1, 1).in_flight_peak == (4, 3, 2, 1)


@pytest.mark.parametrize(("schedule", "chunks"), ALL)
@pytest.mark.parametrize("stages", [1, 2, 4, 6])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_in_flight_formula(schedule, chunks, stages, rounds):
    m = 2 * stages * rounds
    found = pipeline.simulate(schedule, stages, m, 1, 2, 0.5, 0.1, chunks).in_flight_peak
    assert found == pytest.approx(pipeline.published_in_flight_peak(schedule, stages, m, chunks), rel=1e-12)


def test_interleaving_costs_the_memory_that_megatron_states():
    # Korthikanti et al.: the first stage holds 1 + (p-1)/(p v) times as much.
    p, v = 8, 3
    peak = pipeline.simulate("interleaved-1f1b", p, 32, 1, 1, 1, chunks=v).in_flight_peak[0]
    assert peak == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_memory_released_at_b_and_at_w():
    m_b, m_w = 10.0, 4.0
    h1 = pipeline.simulate("zb-h1", 4, 12, 1, 1, 1)
    assert h1.in_flight_peak == (4, 4, 4, 4)  # held until W: the same on every stage
    # Stage i holds p-i micro-batches before their B and i after it.
    assert h1.activation_peak(m_b, m_w) == tuple((4 - i) * m_b + i * m_w for i in range(4))
    h2 = pipeline.simulate("zb-h2", 4, 12, 1, 1, 1)
    assert h2.activation_peak(m_b, m_w)[0] == 7 * m_b  # (2p-1) M_B
    assert h2.in_flight_peak == (7, 7, 7, 7)
    assert pipeline.simulate("1f1b", 4, 12, 1, 1, 1).activation_peak(m_b, 0.0) == (40, 30, 20, 10)


def test_activation_timeline_of_a_tiny_run():
    run = pipeline.execute(["F0 F1 B0 W0 B1 W1"], (1.0, 2.0, 0.5))
    assert run.activation_timeline(0, 10.0, 4.0) == [
        (0.0, 10.0),
        (1.0, 20.0),
        (4.0, 14.0),
        (4.5, 10.0),
        (6.5, 4.0),
        (7.0, 0.0),
    ]
    with pytest.raises(ValueError, match="rank must be a whole number from 0 to 0"):
        run.activation_timeline(1)
    with pytest.raises(ValueError, match=r"for_weights must be .* not -1"):
        run.activation_peak(1, -1)


# --- formulas ---


def test_micro_batches_for_a_bubble():
    assert pipeline.micro_batches_for_bubble(8, 0.10) == 63
    assert pipeline.bubble_of_total(8, 63) == pytest.approx(0.1, rel=1e-12)
    assert pipeline.bubble_of_total(8, 64) == pytest.approx(0.0986, abs=5e-5)
    assert pipeline.micro_batches_for_bubble(8, 0.10, ratio="ideal") == 70
    assert pipeline.micro_batches_for_bubble(8, 0.10, chunks=2) == 32  # 31.5, then a multiple of 8
    assert pipeline.micro_batches_for_bubble(1, 0.01) == 1


@pytest.mark.parametrize("stages", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("target", [0.5, 1 / 3, 0.1, 0.07, 0.01])
@pytest.mark.parametrize("ratio", ["total", "ideal"])
def test_micro_batches_for_a_bubble_is_the_fewest(stages, chunks, target, ratio):
    bubble = pipeline.bubble_of_total if ratio == "total" else pipeline.bubble_of_ideal
    m = pipeline.micro_batches_for_bubble(stages, target, chunks, ratio)
    assert bubble(stages, m, chunks) <= target * (1 + 1e-9)
    step = stages if chunks > 1 else 1
    assert m % step == 0
    if m > step:
        assert bubble(stages, m - step, chunks) > target


@pytest.mark.parametrize("transfer", [0.0, 0.2, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 3, 1), (1, 2, 0), (3, 0.5, 0.25)])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
def test_makespan_formulas_equal_the_executor(stages, times, transfer):
    for m in (1, 2, 3, stages, stages + 1, 2 * stages, 3 * stages + 2, 5 * stages):
        for schedule, chunks in ALL:
            if schedule == "interleaved-1f1b" and m % stages:
                continue
            fast = pipeline.makespan_s(schedule, stages, m, *times, transfer, chunks)
            run = pipeline.simulate(schedule, stages, m, *times, transfer, chunks)
            assert fast == pytest.approx(run.makespan_s, rel=1e-12), (schedule, m, chunks)


def test_makespan_of_unequal_stages_takes_the_executor():
    times = ([1, 2, 1, 1], 1, 0.5)
    assert (
        pipeline.makespan_s("1f1b", 4, 8, *times, transfer_s=0.1)
        == pipeline.simulate("1f1b", 4, 8, *times, transfer_s=0.1).makespan_s
    )


def test_point_to_point_bytes():
    one = pipeline.p2p_sent_bytes("1f1b", 4, 8, 100.0)
    assert one == (800, 1600, 1600, 800)  # inner stages send onwards and back
    assert math.fsum(one) == 2 * 8 * 3 * 100
    # Interleaving multiplies the traffic by about v: 2 m (p v - 1) messages.
    assert math.fsum(pipeline.p2p_sent_bytes("interleaved-1f1b", 4, 8, 100.0, 3)) == 2 * 8 * (4 * 3 - 1) * 100
    # In a V the last rank turns round without a message.
    assert math.fsum(pipeline.p2p_sent_bytes("zb-v", 4, 8, 100.0)) == 2 * 8 * 2 * 3 * 100
    assert pipeline.p2p_sent_bytes("gpipe", 1, 8, 100.0) == (0,)


def test_published_bubble_refuses_times_it_was_not_meant_for():
    with pytest.raises(ValueError, match=r"backward_weight_s must be at most .* zb-h1"):
        pipeline.published_bubble_s("zb-h1", 4, 1, 1, 2)
    with pytest.raises(ValueError, match="must be equal for zb-v"):
        pipeline.published_bubble_s("zb-v", 4, 1, 2, 1)


# --- public cases: inputs written here, verdicts derived ---


def test_case_f01_1f1b_cannot_beat_the_flush():
    for schedule, in_flight, memory in (("gpipe", 32, 8960), ("1f1b", 8, 2816)):
        run = pipeline.simulate(schedule, 8, 32, 1, 1, 0)
        assert run.makespan_s == 78  # not 71: 7 slots in, 64 of work, 7 slots out
        assert run.bubble_of_total == pytest.approx(0.1795, abs=5e-5)
        assert run.in_flight_peak[0] == in_flight
        assert 768 + 256 * run.in_flight_peak[0] == memory


def test_case_f02_a_smaller_bubble_that_does_not_help_is_not_the_cause():
    bubbles = [pipeline.bubble_of_total(p, m) for p, m in ((8, 8), (8, 16), (4, 8))]
    assert bubbles == pytest.approx([0.467, 0.304, 0.273], abs=1e-3)
    expected_gain = (1 - bubbles[1]) / (1 - bubbles[0])
    assert expected_gain == pytest.approx(1.3, rel=0.01)
    assert 7987 / 8077 < 1 < expected_gain
    ceilings = [57056 * (1 - bubble) for bubble in bubbles]
    assert ceilings == pytest.approx([30430, 39690, 41500], rel=0.01)


def test_case_f04_one_micro_batch_is_the_worst_a_bubble_can_do():
    efficiency = {m: 1 - pipeline.bubble_of_total(4, m) for m in (1, 4, 16)}
    assert efficiency[1] == 0.25 > 33 / 170
    assert [170 * efficiency[m] for m in (1, 4, 16)] == pytest.approx([42.5, 97.1, 143.2], rel=0.01)


def test_case_f06_fewer_micro_batches_than_stages_warn_and_show_the_true_bubble():
    for schedule in ("gpipe", "1f1b"):
        run = pipeline.simulate(schedule, 4, 2, 1, 1, 1)
        assert run.bubble_of_total == pytest.approx(0.6, rel=1e-12)
        assert "micro_batches (2) is below stages (4)" in run.warnings[0]
    assert pipeline.simulate("1f1b", 4, 4, 1, 1, 1).warnings == ()


def test_case_g03_pipeline_efficiency_rises_with_micro_batches():
    found = [1 - pipeline.simulate("1f1b", 8, m, 1, 1, 1).bubble_of_total for m in (8, 32, 64, 128)]
    assert found == pytest.approx([0.533, 0.821, 0.901, 0.948], abs=5e-4)


# --- unequal stages and hops ---


def test_the_slowest_stage_sets_the_pace():
    uneven = pipeline.simulate("1f1b", 4, 32, [1, 1, 1.5, 1], 1, 1)
    twice = pipeline.simulate("1f1b", 4, 64, [1, 1, 1.5, 1], 1, 1)
    assert twice.makespan_s - uneven.makespan_s == 32 * 3.5
    assert uneven.busy_s == (96, 96, 112, 96)
    assert uneven.idle_s[2] == min(uneven.idle_s)


def test_times_per_model_chunk_and_per_rank_agree():
    per_rank = pipeline.simulate("interleaved-1f1b", 2, 4, [2.0, 4.0], 1, 1, chunks=2)
    per_chunk = pipeline.simulate("interleaved-1f1b", 2, 4, [1.0, 2.0, 1.0, 2.0], 1, 1, chunks=2)
    assert per_rank.makespan_s == per_chunk.makespan_s
    in_v = pipeline.simulate("zb-v", 2, 4, [2.0, 4.0], 1, 1)
    assert [o.duration_s for o in in_v.operations if o.kind == "F" and o.micro_batch == 0] == [1, 1, 2, 2]
    assert in_v.makespan_s == pipeline.simulate("zb-v", 2, 4, [1.0, 2.0, 2.0, 1.0], 1, 1).makespan_s


def test_one_slow_hop():
    slow = pipeline.simulate("gpipe", 4, 8, 1, 1, 1, [0.0, 0.5, 0.0])
    assert slow.makespan_s == pytest.approx(33 + 2 * 0.5)
    # No transfer between two chunks of one rank, whatever is given for it.
    assert (
        pipeline.simulate("zb-v", 2, 4, 1, 1, 1, [0.1, 9.0, 0.1]).makespan_s
        == pipeline.simulate("zb-v", 2, 4, 1, 1, 1, 0.1).makespan_s
    )
    assert pipeline.simulate("interleaved-1f1b", 1, 4, 1, 1, 1, 9.0, 3).makespan_s == pytest.approx(12)


# --- bad input ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2f2b", 4, 8, 1, 1, 1), "schedule must be one of 'gpipe', '1f1b'"),
        (("1f1b", 0, 8, 1, 1, 1), "stages must be a whole number of at least 1, not 0"),
        (("1f1b", 4, 2.5, 1, 1, 1), "micro_batches must be a whole number of at least 1, not 2.5"),
        (("1f1b", 4, 8, -1, 1, 1), "forward_s must be .* not -1"),
        (("1f1b", 4, 8, 1, "1 s", 1), "backward_input_s must be .* not '1 s'"),
        (("1f1b", 4, 8, 1, 1, float("nan")), "backward_weight_s must be .* not nan"),
        (("1f1b", 4, 8, 1, 1, 1, -0.1), "transfer_s must be .* not -0.1"),
        (("1f1b", 4, 8, 1, 1, 1, [0.1] * 4), r"transfer_s must be one number or 3 numbers .* not 4 numbers"),
        (("1f1b", 4, 8, [1, 1, 1], 1, 1), r"forward_s must be one number or 4 numbers .* not 3 numbers"),
        (("zb-v", 4, 8, [1] * 5, 1, 1), r"4 numbers \(one per rank\) or 8 numbers \(one per model chunk"),
        (("1f1b", 4, 8, [1, 1, -2, 1], 1, 1), r"forward_s\[2\] must be .* not -2"),
        (("1f1b", 4, 8, [1, 0, 1, 1], [1, 0, 1, 1], 0), "must not all be 0 .* they are for stage 1"),
        (
            ("1f1b", 4, 8, 1, 1, 1, 0.0, 2),
            "chunks must be 1 for 1f1b, not 2; only interleaved-1f1b takes more",
        ),
        (("zb-v", 4, 8, 1, 1, 1, 0.0, 3), "chunks must be 2 for zb-v"),
        (("interleaved-1f1b", 4, 10, 1, 1, 1, 0.0, 2), r"multiple of stages \(4\) .* not 10: take 8 or 12"),
        (("interleaved-1f1b", 4, 2, 1, 1, 1, 0.0, 2), "take 4 or"),
    ],
)
def test_bad_input_names_the_argument_the_value_and_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        pipeline.simulate(*arguments)


def test_bad_input_of_the_formulas():
    with pytest.raises(ValueError, match="target must be below 1"):
        pipeline.micro_batches_for_bubble(8, 1.0)
    with pytest.raises(ValueError, match="ratio must be one of 'total', 'ideal'"):
        pipeline.micro_batches_for_bubble(8, 0.1, ratio="time")
    with pytest.raises(ValueError, match="message_bytes must be"):
        pipeline.p2p_sent_bytes("1f1b", 4, 8, -1)


def test_warnings_name_what_does_not_suit():
    assert "1 chunk per rank is 1f1b" in pipeline.simulate("interleaved-1f1b", 4, 8, 1, 1, 1).warnings[0]
    assert (
        "at least 2 x stages = 8 micro-batches" in pipeline.simulate("dualpipe-v", 4, 6, 1, 1, 1).warnings[0]
    )
    assert pipeline.simulate("dualpipe-v", 4, 8, 1, 1, 1).warnings == ()


def test_interleaved_with_one_chunk_is_1f1b():
    one = pipeline.schedule_operations("1f1b", 4, 8)
    assert pipeline.schedule_operations("interleaved-1f1b", 4, 8, 1) == one


def test_the_result_shows_itself_in_one_line():
    text = repr(pipeline.simulate("1f1b", 4, 8, 1, 1, 1))
    assert text.startswith("PipelineRun(1f1b, stages=4, micro_batches=8, chunks=1: makespan 33 s")
    assert "idle/total 0.2727, idle/ideal 0.3750" in text
