"""Assignment 11: the drawn reports, what the checks say to strange answers, and what the faults look like."""

from __future__ import annotations

import math

import pytest

from shardlab.classroom import bug_checks
from shardlab.classroom.bug_checks import CASES, PROGRAMS, VERDICTS, by_hand_numbers, reports

QUANTITIES = ("efficiency", "sent_bytes", "low_bandwidth", "high_bandwidth")
CLASS = [f"s{number:03}" for number in range(300)]


# ---- task 1 ----


def test_the_reports_of_a_class_are_sane():
    drawn = [by_hand_numbers(student) for student in CLASS]
    assert {one.scaling for one in drawn} == {"weak", "strong"}
    for one in drawn:
        assert 0.4 < one.key("efficiency") < 0.9
        assert 0 < one.key("low_bandwidth") < one.key("high_bandwidth")


def test_keys_are_the_formulas_of_the_chapter():
    for student in CLASS[:50]:
        one = by_hand_numbers(student)
        computes = one.base_step_s / (one.n_ranks if one.scaling == "strong" else 1)
        sent = 2 * (one.n_ranks - 1) / one.n_ranks * one.n_params * one.gradient_width
        answers = computes / one.step_s, sent, sent / one.step_s, sent / (one.step_s - computes)
        for quantity, answer in zip(QUANTITIES, answers, strict=True):
            assert one.fault(quantity, answer) is None


# ---- task 2 ----


def test_each_student_has_each_verdict_once_and_none_hangs_on_rounding():
    orders = set()
    for student in CLASS:
        mine = reports(student)
        verdicts = tuple(one.verdict for one in mine.reports)
        assert sorted(verdicts) == sorted(VERDICTS)
        orders.add(verdicts)
        assert all(one.clear for one in mine.reports)
        answers = dict(zip("ABCDE", verdicts, strict=True))
        assert all(mine.fault(name, answers) is None for name in answers)
    assert len(orders) > 80


def test_the_verdicts_follow_from_the_rules_in_the_notebook():
    def by_the_table(one):
        lost = one.step_s - one.base_step_s
        sent = 2 * (one.n_ranks - 1) / one.n_ranks * one.gradient_bytes
        link = one.link_bits_per_s / 8
        if one.base_step_s / one.step_s >= 0.9:
            return "scales-well"
        if one.data_s >= lost / 2:
            return "data-loading"
        if sent / lost < link / 2:
            return "below-nominal"
        return "network-bound" if sent / link > one.base_step_s else "communication-exposed"

    for student in CLASS:
        for one in reports(student).reports:
            assert by_the_table(one) == one.verdict


def test_a_wrong_verdict_is_answered_with_a_number_that_speaks_against_it():
    for student in CLASS[:20]:
        mine = reports(student)
        for name, one in zip("ABCDE", mine.reports, strict=True):
            for wrong in set(VERDICTS) - {one.verdict}:
                fault = mine.fault(name, {name: wrong})
                assert fault is not None
                assert fault.startswith(f"report {name} is not {wrong}: ")
                assert any(character.isdigit() for character in fault.split(": ", 1)[1])


def test_what_is_no_verdict_is_told_apart():
    mine = reports("ada")
    assert mine.fault("A", []) == "verdicts must be a dict from reports to verdicts, not []"
    assert mine.fault("B", {}) == "verdicts['B'] has no answer yet"
    assert "must be one of 'scales-well'" in (mine.fault("C", {"C": "slow"}) or "")


# ---- tasks 3 to 5 ----


def test_what_is_no_set_of_programs_is_told_apart():
    fault = bug_checks.check_fault
    assert fault([], "even", 3) == "caught must be a dict from checks to sets of programs, not 3"
    assert fault([], "even", {}) == "caught['even'] has no answer yet"
    assert "must be a set of programs" in (fault([], "even", {"even": "accuracy"}) or "")
    assert "not 'loss'" in (fault([], "even", {"even": {"loss"}}) or "")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["even", "awkward", "edge"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_ranks_are_given_parts_of_the_same_case(name, kind, ranks):
    pytest.importorskip("torch")
    for seed in bug_checks._SEEDS:
        cases = [CASES[name](rank, ranks, bug_checks._Draw(seed), kind) for rank in range(ranks)]
        assert len({case.words for case in cases}) == 1
        for case in cases:
            assert len(case.names) == len(case.wanted)
            for place in case.shared:
                assert case.wanted[place].equal(cases[0].wanted[place])


def test_cases_are_as_awkward_as_they_say():
    pytest.importorskip("torch")
    draws = [bug_checks._Draw(seed) for seed in bug_checks._SEEDS]
    for ranks in (2, 3, 4):
        sizes = {
            kind: [
                CASES["accuracy"](0, ranks, bug_checks._Draw(seed), kind).arguments[1]
                for seed in bug_checks._SEEDS
            ]
            for kind in ("even", "awkward", "edge")
        }
        assert all(size % ranks == 0 for size in sizes["even"])
        assert all(size % ranks for size in sizes["awkward"])
        assert all(size <= ranks for size in sizes["edge"])
    edges = [CASES["gradient_norm"](0, 4, draw, "edge").words for draw in draws]
    assert {words.split(" and ")[0] for words in edges} == {"0 sharded", "2 sharded"}


def test_a_result_that_is_not_a_number_is_no_right_result():
    torch = pytest.importorskip("torch")
    case = CASES["gradient_norm"](0, 2, bug_checks._Draw(5), "even")
    assert bug_checks._result_fault([torch.tensor(math.nan)], case) is not None
    assert bug_checks._result_fault([torch.zeros(2)], case) is not None
    assert bug_checks._result_fault([case.wanted[0].reshape(1)], case) is None
