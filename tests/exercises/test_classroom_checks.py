"""Checklists, labelled numbers, and the numbers that are drawn for each student."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from submissions.ring import ALL_GATHER, ALLREDUCE, COUNT, PREDICT, REDUCE_SCATTER

from shardlab.classroom import Checklist, NotWritten, attempt, labels, ring_checks, run_ranks
from shardlab.classroom.student import STUDENT_VARIABLE, owner
from shardlab.models.collectives import ring_allreduce_sent_bytes, ring_allreduce_time_s

QUANTITIES = ("sent_bytes", "n_messages", "rank0_bytes", "time_s")
CLASS = [f"s{number:03}" for number in range(300)]
RING: dict = {"run_ranks": run_ranks}
exec(REDUCE_SCATTER + ALL_GATHER + ALLREDUCE + COUNT + PREDICT, RING)


# ---- checklist ----


def test_a_checklist_adds_up_and_says_what_is_left(capsys):
    check = Checklist("Task 9: try", marks=5)
    check.add("first", 2, None)
    check.add("the second", 1, "rank 0 did it\nand rank 1 too")
    assert check.total() == 2.0
    assert capsys.readouterr().out.splitlines() == [
        "Task 9: try",
        "  ✓ first       2 of 2",
        "  ✗ the second  0 of 1",
        "      rank 0 did it",
        "      and rank 1 too",
        "2 of 3 marks here; grading checks more, for 2 more",
    ]


def test_criteria_cannot_be_worth_more_than_the_task():
    check = Checklist("Task 9", marks=2)
    check.add("first", 2, None)
    with pytest.raises(ValueError, match="marks must leave the sum of all criteria at 2"):
        check.add("second", 1, None)


# ---- attempts ----


def test_an_object_that_is_equal_to_everything_is_no_answer():
    class Equal(int):
        __module__ = "builtins"

        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    @dataclass
    class Plain:
        number: int

    for value in (Equal(3), [1, [Equal(3)]], {"a": Equal(3)}, {Equal(3): 1}):
        answer = attempt(lambda value=value: value)
        assert answer.value is None
        assert "returned a Equal that says itself what it is equal to" in answer.fault
    assert not labels.equal(Equal(3), 4)
    for value in (1, 2.0, "text", None, [1, (2, {"a": 3})], range(3), Plain(1), re.compile("a")):
        assert attempt(lambda value=value: value).value == value


# ---- labelled numbers ----


@pytest.mark.parametrize("n_ranks", [1, 2, 5, 16])
def test_a_label_tells_element_and_ranks(n_ranks):
    for element in (0, 3, 39):
        for ranks in ([0], list(range(n_ranks)), [n_ranks - 1, n_ranks - 1]):
            value = labels.labelled_sum(ranks, element, n_ranks)
            times = [ranks.count(rank) for rank in range(n_ranks)]
            assert labels.read_label(value, n_ranks, 40) == (element, times)
            # A student may add floats.
            assert float(value) == value
            assert labels.read_label(float(value), n_ranks, 40) == (element, times)


@pytest.mark.parametrize("value", [0, -3, 0.5, "a", None, float("nan"), float("inf"), [1]])
def test_what_is_no_label_is_told_apart(value):
    assert labels.read_label(value, 4, 12) is None


# ---- trials ----


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 7, 16])
def test_a_right_ring_has_no_fault(n_ranks):
    clean = ring_checks.Trial(None, None, None)
    assert ring_checks.try_reduce_scatter(RING["ring_reduce_scatter"], n_ranks) == clean
    assert ring_checks.try_all_gather(RING["ring_all_gather"], n_ranks) == clean
    assert ring_checks.try_allreduce(RING["ring_allreduce"], n_ranks, 3 * n_ranks + 1) == clean
    sizes = [3, *[1] * (n_ranks - 1)]
    assert ring_checks.try_reduce_scatter(RING["ring_reduce_scatter"], n_ranks, sizes) == clean


def test_a_function_that_does_nothing_earns_nothing():
    for trial in (ring_checks.try_reduce_scatter, ring_checks.try_all_gather):
        assert trial(lambda net, chunks: chunks).faults == 3
    assert ring_checks.try_allreduce(lambda net, buffer: buffer).faults == 3


def test_the_chunks_of_a_reduce_scatter_may_be_changed_in_place_or_returned():
    def in_place(net, chunks):
        RING["ring_reduce_scatter"](net, chunks)

    def returned(net, chunks):
        return tuple(RING["ring_reduce_scatter"](net, [list(chunk) for chunk in chunks]))

    assert ring_checks.try_reduce_scatter(in_place).faults == 0
    assert ring_checks.try_reduce_scatter(returned).faults == 0


class Ambiguous:
    """Compares as an array does."""

    def __eq__(self, other):
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None


@pytest.mark.parametrize(
    "result",
    [
        [[Ambiguous()] * 2] * 4,
        [Ambiguous()] * 12,
        None,
        7,
        [1, 2],
        [[1], [2]],
        "chunks",
        [[], [], [], []],
        {0: []},
    ],
)
def test_a_result_of_another_shape_is_a_fault_and_no_crash(result):
    assert ring_checks.try_reduce_scatter(lambda net, chunks: result).sums is not None
    assert ring_checks.try_allreduce(lambda net, buffer: result).sums is not None


def test_prints_on_either_stream_stay_out_of_the_check(capsys):
    def loud(net, chunks):
        import sys

        print("hello")
        print("hello", file=sys.stderr)
        return RING["ring_reduce_scatter"](net, chunks)

    assert ring_checks.try_reduce_scatter(loud).faults == 0
    assert capsys.readouterr() == ("", "")


def test_an_earlier_mistake_is_carried_forward_only_where_it_helps():
    mine: dict = {}
    exec("def ring_reduce_scatter(net, chunks):\n    return chunks\n" + ALL_GATHER + ALLREDUCE, mine)
    right = {"ring_reduce_scatter": RING["ring_reduce_scatter"]}
    assert ring_checks.try_allreduce(mine["ring_allreduce"]).faults > 0
    assert ring_checks.try_allreduce(mine["ring_allreduce"], carry=right).faults == 0
    # The student's own function is back in its place.
    assert mine["ring_reduce_scatter"](None, [1]) == [1]
    exec("def ring_allreduce(net, buffer):\n    return buffer\n", mine)
    assert ring_checks.try_allreduce(mine["ring_allreduce"], carry=right).faults == 3


def test_an_earlier_task_that_is_not_written_is_carried_forward_too():
    mine: dict = {}
    exec(
        "def ring_reduce_scatter(net, chunks):\n    raise NotImplementedError\n" + ALL_GATHER + ALLREDUCE,
        mine,
    )
    with pytest.raises(NotWritten, match="ring_reduce_scatter is not written yet"):
        ring_checks.try_allreduce(mine["ring_allreduce"])
    right = {"ring_reduce_scatter": RING["ring_reduce_scatter"]}
    assert ring_checks.try_allreduce(mine["ring_allreduce"], carry=right).faults == 0


@pytest.mark.parametrize(("n_ranks", "n_elements"), [(1, 5), (2, 3), (4, 12), (4, 10), (8, 5), (7, 1000)])
def test_right_counts_and_predictions_have_no_fault(n_ranks, n_elements):
    assert ring_checks.count_fault(RING["count_sent_bytes"], n_ranks, n_elements) is None
    assert ring_checks.predict_fault(RING["predict_sent_bytes"], n_ranks, n_elements) is None


def test_a_prediction_must_not_run_anything():
    mine: dict = {"run_ranks": run_ranks, "ring_allreduce": RING["ring_allreduce"]}
    exec(COUNT.replace("count_sent_bytes", "predict_sent_bytes"), mine)
    assert "a prediction comes before the run" in ring_checks.predict_fault(mine["predict_sent_bytes"], 4, 10)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([15, 16, 15, 14], "these are numbers, and each has 4 bytes"),
        ([60.0] * 4, "exact only if N divides the length"),
        ([60, 64, 60, 60], "60 bytes predicted for rank 3, but 56 will be sent"),
        (60, "must return a list of 4 numbers"),
        ([60], "must return a list of 4 numbers"),
    ],
)
def test_a_wrong_prediction_says_what_is_wrong(answer, words):
    def predict(n_ranks, n_elements):
        return answer

    assert words in ring_checks.predict_fault(predict, 4, 10)


# ---- numbers by hand ----


def test_the_key_is_the_models():
    mine = ring_checks.by_hand_numbers("ada")
    size, n = 4 * mine.n_params, mine.n_ranks
    assert mine.key("sent_bytes") == ring_allreduce_sent_bytes(size, n) == 2 * (n - 1) * (size // n)
    assert mine.key("n_messages") == 2 * (n - 1)
    assert mine.key("rank0_bytes") == (n - 1) * size
    assert mine.key("time_s") == ring_allreduce_time_s(size, n, mine.link_bits_per_s / 8, mine.latency_s)


def test_two_students_have_different_numbers_and_one_has_the_same_always():
    ada, bob = (ring_checks.by_hand_numbers(name) for name in ("ada", "bob"))
    assert all(ada.key(quantity) != bob.key(quantity) for quantity in QUANTITIES)
    assert ada == ring_checks.by_hand_numbers("  Ada ")
    # Drawn once and for all: another release of the book must not change a class's numbers in mid-term.
    assert (ada.n_ranks, ada.n_params, ada.link_bits_per_s, ada.latency_s) == (8, 10_480_000, 25e9, 0.25e-3)


def test_everybody_has_the_same_work():
    for student in CLASS:
        numbers = ring_checks.by_hand_numbers(student)
        assert numbers.n_bytes % numbers.n_ranks == 0
        bandwidth_part = numbers.key("sent_bytes") / (numbers.link_bits_per_s / 8)
        assert 0.05 < bandwidth_part / numbers.key("time_s") < 0.99


def test_a_wrong_way_is_named():
    numbers = ring_checks.by_hand_numbers("ada")
    assert "that is one phase" in numbers.fault("sent_bytes", numbers.key("sent_bytes") / 2)
    assert "a byte has 8 bits" in numbers.fault(
        "time_s", numbers.key("sent_bytes") / numbers.link_bits_per_s + 14 * numbers.latency_s
    )
    assert "is not right" in numbers.fault("sent_bytes", 12345)


def test_in_grading_the_numbers_are_those_of_the_folder(monkeypatch):
    monkeypatch.setenv(STUDENT_VARIABLE, "bob")
    copied = ring_checks.by_hand_numbers("ada")
    assert copied.n_params == ring_checks.by_hand_numbers("Bob").n_params
    assert "handed in by 'bob'" in copied.fault("sent_bytes", 73_360_000)
    assert owner("BOB ") == ("bob", None)
    # A folder that a Mac unpacked: e and its dots are two characters.
    monkeypatch.setenv(STUDENT_VARIABLE, "Zoe\u0308")
    assert owner("Zo\u00eb") == ("zo\u00eb", None)


@pytest.mark.parametrize("student", ["", "  ", None, 7])
def test_a_student_needs_an_id(student):
    with pytest.raises(ValueError, match="student must be your ID as text"):
        ring_checks.by_hand_numbers(student)
