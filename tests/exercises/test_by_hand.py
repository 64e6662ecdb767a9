"""The tasks to calculate by hand, of all assignments: numbers of one's own, right answers taken, wrong ones named.

What is an assignment's own (its formulas, how its numbers must lie) is tested beside its other checks.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil

import pytest

from shardlab import classroom
from shardlab.classroom import by_hand

CLASS = [f"s{number:03}" for number in range(300)]
QUANTITIES = {
    "attention": ("hop_bytes", "forward_bytes", "rank_pairs", "zigzag_pairs", "slowdown"),
    "bucket": ("bucket_s", "exposed_s", "sent_bytes", "token_loss"),
    "bug": ("efficiency", "sent_bytes", "low_bandwidth", "high_bandwidth"),
    "collective": ("half_bytes", "doubling_s", "ring_s", "crossover_bytes", "busbw"),
    "mesh": ("data_place", "next_stage", "leaving_ranks", "data_s"),
    "resume": ("size_bytes", "mtbf_s", "interval_s", "lost_fraction"),
    "ring": ("sent_bytes", "n_messages", "rank0_bytes", "time_s"),
    "schedule": ("step_s", "idle_of_total", "idle_of_ideal", "held_bytes", "micro_batches"),
    "sharded": (
        "stage_1_bytes",
        "stage_2_bytes",
        "stage_3_bytes",
        "lowest_stage",
        "sent_1_bytes",
        "sent_2_bytes",
    ),
    "step": ("state_bytes", "activation_bytes", "step_flop", "attention_flop", "run_s"),
    "tensor": ("weight_bytes", "sent_bytes", "kept_bytes", "kept_sequence_bytes", "ratio"),
}
ASKED = [(name, quantity) for name, quantities in QUANTITIES.items() for quantity in quantities]
# Where every wrong way leads to an answer of its own.
TOLD_APART = [
    (name, quantity)
    for name, quantity in ASKED
    if name in ("collective", "resume", "step") and quantity != "state_bytes"
]


def numbers_of(name, student):
    return importlib.import_module(f"shardlab.classroom.{name}_checks").by_hand_numbers(student)


@pytest.fixture(scope="module")
def drawn():
    return {name: [numbers_of(name, student) for student in CLASS] for name in QUANTITIES}


def test_every_assignment_that_draws_numbers_is_tested_here():
    modules = [
        info.name for info in pkgutil.iter_modules(classroom.__path__) if info.name.endswith("_checks")
    ]
    drawing = [
        name
        for name in modules
        if hasattr(importlib.import_module(f"shardlab.classroom.{name}"), "by_hand_numbers")
    ]
    assert drawing == [f"{name}_checks" for name in sorted(QUANTITIES)]


@pytest.mark.parametrize("name", QUANTITIES)
def test_nearly_nobody_in_a_class_of_300_can_copy(drawn, name):
    keys = [tuple(one.key(quantity) for quantity in QUANTITIES[name]) for one in drawn[name]]
    assert len(set(keys)) > 290
    assert len({tuple(one.lines()) for one in drawn[name]}) > 298


@pytest.mark.parametrize("name", QUANTITIES)
def test_one_student_has_the_same_numbers_always(drawn, name):
    assert numbers_of(name, "  S000 ") == drawn[name][0]
    assert "Numbers of 's000'" in drawn[name][0].text


@pytest.mark.parametrize(("name", "quantity"), ASKED)
def test_the_right_answer_is_taken_with_its_rounding_and_no_wrong_way_leads_to_it(drawn, name, quantity):
    for one in drawn[name]:
        key = one.key(quantity)
        assert one.fault(quantity, key) is None
        assert one.fault(quantity, key * 1.004) is None
        assert one.fault(quantity, key * 1.006) is not None
        wrong = one.misconceptions(quantity)
        assert wrong
        for value, words in wrong:
            if words.startswith("16 bytes is another recipe") and one.recipe == "mixed-adam-16":
                # For whoever has that recipe it is right.
                assert one.fault(quantity, value) is None
                continue
            assert not by_hand.close(value, key), (one.student, words)
            # Two ways may meet in one answer: then the first one's words are shown.
            assert any(others in one.fault(quantity, value) for _, others in wrong), (one.student, words)


@pytest.mark.parametrize(("name", "quantity"), TOLD_APART)
def test_where_wrong_ways_lead_apart_each_has_its_own_words(drawn, name, quantity):
    for one in drawn[name]:
        wrong = one.misconceptions(quantity)
        for value, words in wrong:
            assert words in one.fault(quantity, value), one.student
        for (first, _), (second, _) in itertools.combinations(wrong, 2):
            assert not by_hand.close(first, second), one.student


@pytest.mark.parametrize(("name", "quantity"), ASKED)
@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "no answer yet"), (..., "no answer yet"), ("73 MB", "be a number"), (True, "be a number")],
)
def test_an_answer_that_is_no_number(name, quantity, answer, words):
    assert words in numbers_of(name, "ada").fault(quantity, answer)


@pytest.mark.parametrize("name", QUANTITIES)
def test_a_quantity_that_is_not_asked_for_is_refused(name):
    with pytest.raises(ValueError, match=r"quantity must be one of .*, not "):
        numbers_of(name, "ada").key("bytes")


# ---- answers in a dict ----


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ({"A": "slow"}, None),
        ("slow", "verdicts must be a dict from reports to verdicts, not 'slow'"),
        ({}, "verdicts['A'] has no answer yet"),
        ({"A": ...}, "verdicts['A'] has no answer yet"),
        ({"A": None}, "verdicts['A'] has no answer yet"),
        ({"A": "good"}, "verdicts['A'] must be one of 'fast', 'slow', not 'good'"),
        ({"A": ["slow"]}, "verdicts['A'] must be one of 'fast', 'slow', not ['slow']"),
    ],
)
def test_an_entry_is_looked_up_or_the_words_say_why_not(answers, fault):
    found = by_hand.entry("verdicts", "reports to verdicts", answers, "A", ("fast", "slow"))
    assert found == by_hand.Answer(value="slow" if fault is None else None, fault=fault)


def test_an_entry_of_any_kind_is_taken_where_no_words_are_given():
    assert by_hand.entry("caught", "checks to sets", {"A": {"x"}}, "A").value == {"x"}
