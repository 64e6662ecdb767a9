"""Assignment 06: the numbers that are drawn, and the executor as a judge."""

from __future__ import annotations

import pytest
from submissions.schedule import GPIPE, INTERLEAVED, ONE_F_ONE_B

from shardlab.classroom import schedule_checks
from shardlab.models import pipeline

CLASS = [f"s{number:03}" for number in range(300)]
REFERENCE: dict = {}
exec(GPIPE + ONE_F_ONE_B + INTERLEAVED, REFERENCE)


# ---- the numbers of task 1 ----


def test_everybody_has_the_same_work():
    for student in CLASS:
        numbers = schedule_checks.by_hand_numbers(student)
        assert numbers.n_micro_batches >= 2 * numbers.stages
        assert 0 < numbers.rank < numbers.stages - 1
        assert 0.1 < numbers.key("idle_of_total") < 0.35
        # Below 100, one micro-batch too few or too many is told apart.
        assert 20 < numbers.key("micro_batches") < 100
        assert len(numbers.lines()) == 7


def test_the_keys_are_the_executors():
    numbers = schedule_checks.by_hand_numbers("ada")
    half_s = numbers.backward_s / 2
    size = (numbers.stages, numbers.n_micro_batches, numbers.forward_s, half_s, half_s)
    gpipe, alternating = (pipeline.simulate(name, *size) for name in ("gpipe", "1f1b"))
    assert numbers.key("step_s") == pytest.approx(gpipe.makespan_s)
    assert numbers.key("idle_of_total") == pytest.approx(gpipe.bubble_of_total)
    assert numbers.key("idle_of_ideal") == pytest.approx(gpipe.bubble_of_ideal)
    kept = alternating.in_flight_peak[numbers.rank] * numbers.kept_bytes
    assert numbers.key("held_bytes") == pytest.approx(kept)
    m = int(numbers.key("micro_batches"))
    assert pipeline.bubble_of_total(numbers.stages, m) <= numbers.target
    assert pipeline.bubble_of_total(numbers.stages, m - 1) > numbers.target


# ---- schedules ----


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 5), (4, 8), (5, 3), (8, 16)])
def test_the_published_schedules_have_no_fault(p, m):
    for name, fault in (("gpipe", schedule_checks.gpipe_fault), ("1f1b", schedule_checks.one_f_one_b_fault)):
        assert fault(lambda p, m, name=name: pipeline.schedule_operations(name, p, m), [(p, m)]) is None
    for v in (1, 2, 3):

        def published(p, m, v):
            return pipeline.schedule_operations("interleaved-1f1b", p, m, v)

        assert schedule_checks.interleaved_fault(published, [(p, m * p, v)]) is None
        assert schedule_checks.interleaved_fault(REFERENCE["interleaved"], [(p, m * p, v)]) is None


def test_another_order_that_does_what_is_asked_counts():
    def weights_later(p, m):
        """Zero bubble's H1: its backwards are split."""
        return pipeline.schedule_operations("zb-h1", p, m)

    trial = schedule_checks.try_schedule(weights_later, 4, 8)
    assert trial.legal is None
    assert trial.as_fast_as("gpipe") is None
    assert trial.keeps_at_most([4, 4, 4, 4]) is None
    assert "rank 1 keeps 4 micro-batches at one time, and 3 are enough" in trial.keeps_at_most([4, 3, 2, 1])


def test_with_free_sending_half_the_forwards_would_do_and_so_sending_is_not_free():
    fewer = {}
    exec(INTERLEAVED.replace("2 * (p - 1 - rank)", "(p - 1 - rank)"), fewer)
    free = pipeline.execute(fewer["interleaved"](4, 8, 2), schedule_checks.TIMES, 0.0, 2)
    assert free.makespan_s == pytest.approx(
        pipeline.makespan_s("interleaved-1f1b", 4, 8, *schedule_checks.TIMES, chunks=2)
    )
    trial = schedule_checks.try_schedule(fewer["interleaved"], 4, 8, 2)
    assert "the step takes 315 ms; 299 ms are possible" in trial.as_fast_as("interleaved-1f1b")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "must return a list of 2 lists, one for each rank, not None"),
        ([["F0", "B0"]], "must return a list of 2 lists, one for each rank, not 1 of them"),
        ([["F0", "B0"], "F0 B0"], "that of rank 1 is 'F0 B0'"),
        ([["F0", "B0"], [("F", 0)]], "each of texts such as 'F0'"),
        ([["F0", "B0"]] * 2, "rank 0: F1 is missing"),
        ([["F0", "F1", "B0"]] * 2, "rank 0: B1 is missing; rank 1: B1 is missing"),
        ([["F0", "B1", "B0", "F1"]] * 2, "rank 0: B1 stands before F1"),
        ([["f0", "B0"]] * 2, "'f0' is not an operation"),
        ([["F0"] * 30_000] * 2, "gives rank 0 30000 operations"),
    ],
)
def test_what_is_no_schedule_says_what_is_wrong(value, words):
    trial = schedule_checks.try_schedule(lambda p, m: value, 2, 2)
    assert words in trial.legal
    assert trial.run is None
    for fault in (trial.as_fast_as("gpipe"), trial.keeps_at_most([2, 1]), trial.forwards_first()):
        assert fault == "the schedule can't run yet"


# ---- words of the notebook ----


def test_a_timeline_shows_who_works_when():
    assert schedule_checks.timeline([["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]]).splitlines() == [
        "rank 0  F0 F1 .  .  B0 B0 .  B1 B1",
        "rank 1  .  F0 B0 B0 F1 B1 B1 .  .",
        "step 90 ms, idle 33.3% of the total time, in flight at most 2, 1",
    ]
    assert "deadlock" in schedule_checks.timeline([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]])


def test_a_timeline_that_cannot_be_drawn_says_why_in_a_few_lines():
    backwards_first = [[f"{kind}{i}" for kind in "BF" for i in range(5)] for _ in range(4)]
    lines = schedule_checks.timeline(backwards_first).splitlines()
    assert lines[:2] == ["this schedule can't run:", "rank 0: B0 stands before F0"]
    assert lines[-1] == "and 14 more"
    assert len(lines) == 8


def test_the_model_answers_numbers():
    step_ms = 1e3 * pipeline.makespan_s("1f1b", 4, 8, 0.04, 0.04, 0.04)
    assert step_ms == pytest.approx(3 * 40 + 8 * 120 + 3 * 80)
    assert step_ms == pytest.approx(1320)
    assert round(pipeline.bubble_of_total(4, 8), 3) == 0.273
    assert round(pipeline.bubble_of_total(4, 8, 2), 3) == 0.158
    sent = [
        sum(pipeline.p2p_sent_bytes(name, 4, 8, 1.0, v)) for name, v in (("1f1b", 1), ("interleaved-1f1b", 2))
    ]
    assert sent[1] / sent[0] == pytest.approx(7 / 3)
    for m in (8, 64):
        assert pipeline.published_in_flight_peak("1f1b", 4, m) == (4, 3, 2, 1)
        assert pipeline.published_in_flight_peak("gpipe", 4, m) == (m, m, m, m)
    assert pipeline.published_in_flight_peak("interleaved-1f1b", 4, 8, 2) == (5.5, 4.5, 3.5, 2.5)
