"""Assignment 02: the numbers that are drawn, and what the checks say to known slips."""

from __future__ import annotations

from typing import Any

import pytest
from submissions.collective import ALL_TO_ALL, BROADCAST, COSTS, DOUBLING, TWO_PHASE

from shardlab.classroom import NotWritten, collective_checks
from shardlab.classroom.collective_checks import Trial
from shardlab.models import collectives

CLASS = [f"s{number:03}" for number in range(300)]
STUDENT: dict[str, Any] = {}
exec(ALL_TO_ALL + BROADCAST + DOUBLING + TWO_PHASE + COSTS, STUDENT)
CLEAN = Trial(None, None, None)
LATENCY, BANDWIDTH = 10e-6, 1.25e9


# ---- by hand ----


def test_the_drawn_numbers_of_a_class_are_plausible():
    drawn = [collective_checks.by_hand_numbers(student) for student in CLASS]
    for numbers in drawn:
        # Latency is neither all of the time nor none.
        for quantity in ("doubling_s", "ring_s"):
            cost = numbers._cost(quantity)
            assert 0.02 < cost.rounds * numbers.latency_s / numbers.key(quantity) < 0.99
        assert numbers.key("doubling_s") < numbers.key("ring_s")
        assert numbers.n_bytes < numbers.key("crossover_bytes")
        # A measurement is never faster than the link.
        assert 0.49 < numbers.key("busbw") / numbers.bandwidth < 0.92


def test_the_keys_are_the_chapters_formulas():
    for student in CLASS[:50]:
        n = collective_checks.by_hand_numbers(student)
        steps, bandwidth = n.n_ranks.bit_length() - 1, n.link_bits_per_s / 8
        doubling = steps * (n.latency_s + n.n_bytes / bandwidth)
        assert n.key("doubling_s") == pytest.approx(doubling)
        ring = 2 * (n.n_ranks - 1) * (n.latency_s + n.n_bytes / n.n_ranks / bandwidth)
        assert n.key("ring_s") == pytest.approx(ring)
        size = n.key("crossover_bytes")
        both = [
            collectives.collective_time_s("all-reduce", name, size, n.n_ranks, bandwidth, n.latency_s)
            for name in ("ring", "recursive doubling")
        ]
        assert both[0] == pytest.approx(both[1])
        assert n.key("half_bytes") / bandwidth == pytest.approx(n.latency_s)


# ---- trials ----


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 6, 11, 16])
def test_right_programs_have_no_fault(n_ranks):
    assert collective_checks.try_broadcast(STUDENT["tree_broadcast"], n_ranks) == CLEAN
    assert collective_checks.try_doubling(STUDENT["doubling_allreduce"], n_ranks) == CLEAN
    assert collective_checks.try_all_to_all(STUDENT["all_to_all"], n_ranks) == CLEAN
    assert collective_checks.try_two_phase(STUDENT["two_phase_allreduce"], n_ranks, 4 * n_ranks) == CLEAN
    assert collective_checks.try_two_phase(STUDENT["two_phase_allreduce"], n_ranks, 21).result is None
    sizes = [3, *[1] * (n_ranks - 1)]
    assert collective_checks.try_all_to_all(STUDENT["all_to_all"], n_ranks, sizes).messages is None


def test_programs_that_do_nothing_earn_nothing():
    assert collective_checks.try_broadcast(lambda net, buffer: buffer).faults == 3
    assert collective_checks.try_doubling(lambda net, buffer: buffer).faults == 3
    assert collective_checks.try_all_to_all(lambda net, parts: parts).faults == 3
    trial = collective_checks.try_two_phase(lambda net, buffer: buffer)
    assert trial.result is not None
    assert trial.messages is not None


def test_all_to_alls_may_send_everything_before_they_receive():
    def sends_first(net, parts):
        n, rank = net.n_ranks, net.rank
        for step in range(1, n):
            net.send((rank + step) % n, parts[(rank + step) % n])
        return [parts[rank] if source == rank else net.recv(source) for source in range(n)]

    assert collective_checks.try_all_to_all(sends_first, 8) == CLEAN


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (7, "is 7, not a list of numbers"),
        ([1], "has 1 numbers, not 3"),
        ([1, 2, 3], "is not the buffer of rank 0"),
    ],
)
def test_what_is_no_buffer_is_said(result, words):
    fault = collective_checks.try_broadcast(lambda net, buffer: result).result
    assert words in fault


def test_slips_of_an_all_to_all_are_told_apart():
    def with_result(change):
        def program(net, parts):
            return change(STUDENT["all_to_all"](net, parts), net)

        return collective_checks.try_all_to_all(program).result

    assert "must return a list of 4 parts" in with_result(lambda found, net: found[:3])
    assert "holds the part of rank 3 for rank 0, not that of rank 0" in with_result(
        lambda found, net: found[::-1]
    )
    assert "has its numbers in another order" in with_result(
        lambda found, net: [part[::-1] for part in found]
    )
    assert "has 1 numbers, not 2" in with_result(lambda found, net: [part[:1] for part in found])
    assert "not a list of numbers" in with_result(lambda found, net: [None] * 4)
    assert "has numbers that are no rank's" in with_result(lambda found, net: [[0.5, 0.5]] * 4)


def test_a_message_too_many_is_a_fault():
    def one_too_many(net, buffer):
        total = STUDENT["doubling_allreduce"](net, buffer)
        if net.rank == 0:
            net.send(1, buffer)
        return total

    trial = collective_checks.try_doubling(one_too_many)
    assert trial.result is None
    assert "rank 0 sent 4 messages" in trial.messages


def test_a_message_that_nobody_reads_is_a_fault_even_if_it_takes_no_longer():
    def one_too_many(net, buffer):
        if net.rank == 7:
            net.send(6, buffer)
        return STUDENT["tree_broadcast"](net, buffer)

    trial = collective_checks.try_broadcast(lambda net, buffer: one_too_many(net, buffer or [1, 2, 3]))
    assert "rank 6 of 8 was sent 2 messages" in trial.messages
    assert "rank 6 never received a message that rank 7 sent it" in trial.rounds


def test_a_mistake_in_the_all_to_all_is_not_paid_for_again():
    own: dict[str, Any] = {}
    exec("def all_to_all(net, parts):\n    return parts\n" + TWO_PHASE, own)
    carry = {"all_to_all": STUDENT["all_to_all"]}
    assert collective_checks.try_two_phase(own["two_phase_allreduce"]).faults
    assert collective_checks.try_two_phase(own["two_phase_allreduce"], carry=carry) == CLEAN
    # An all-reduce that fits only its author's own all-to-all.
    odd: dict[str, Any] = {}
    exec(
        ALL_TO_ALL.replace("def all_to_all", "def sent")
        + "def all_to_all(net, parts):\n    return {'parts': sent(net, parts)}\n"
        + TWO_PHASE.replace("all_to_all(net, parts)", "all_to_all(net, parts)['parts']").replace(
            "[mine for _ in range(n)])", "[mine for _ in range(n)])['parts']"
        ),
        odd,
    )
    assert collective_checks.try_two_phase(odd["two_phase_allreduce"], carry=carry) == CLEAN


def test_what_is_not_written_is_no_fault():
    def empty(net, buffer):
        raise NotImplementedError

    with pytest.raises(NotWritten, match="empty is not written yet"):
        collective_checks.try_doubling(empty)


def test_sizes_must_fit_the_ranks():
    with pytest.raises(ValueError, match="sizes must hold 4 sizes, one for each rank"):
        collective_checks.try_all_to_all(STUDENT["all_to_all"], 4, [1, 2])


# ---- costs ----


def test_right_costs_have_no_fault():
    sizes = (1, 2, 3, 4, 6, 8, 48, 64, 1000)
    cases = [(size, n) for size in (0.0, 1e3, 1e9) for n in sizes]
    assert collective_checks.time_fault(STUDENT["doubling_time_s"], "doubling", cases) is None
    assert collective_checks.time_fault(STUDENT["two_phase_time_s"], "two phases", cases) is None
    assert collective_checks.crossover_fault(STUDENT["crossover_bytes"], sizes) is None


@pytest.mark.parametrize(
    ("algorithm", "answer", "words"),
    [
        ("doubling", lambda p, n, a, b: 3 * p / b, "leaves out the latency"),
        ("doubling", lambda p, n, a, b: 3 * a, "leaves out the bytes"),
        ("doubling", lambda p, n, a, b: 6 * (a + p / b), "has no way back"),
        ("doubling", lambda p, n, a, b: "soon", "must return a number of seconds, not 'soon'"),
        ("two phases", lambda p, n, a, b: 7 * (a + p / n / b), "that is one phase; there are two"),
        ("two phases", lambda p, n, a, b: 14 * (a + p / b), "carries P/N, not P"),
        ("two phases", lambda p, n, a, b: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_wrong_time_is_told_apart(algorithm, answer, words):
    assert words in collective_checks.time_fault(answer, algorithm, [(1e6, 8)])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda n, a, b: -11 * a * b / 1.25, "a size is positive"),
        (lambda n, a, b: 11 * a * b / 1.25 / 8, "not of a part"),
        (lambda n, a, b: a * b, "put both times equal"),
        (lambda n, a, b: None, "must return a number of bytes, not None"),
    ],
)
def test_a_wrong_crossover_is_told_apart(answer, words):
    assert words in collective_checks.crossover_fault(answer, [8])


def test_two_ranks_have_no_crossover():
    assert "return None" in collective_checks.crossover_fault(lambda n, a, b: 0.0, [2])


# ---- what there is to explain ----


def test_the_numbers_of_the_model_answer():
    table = collective_checks.comparison(STUDENT["doubling_allreduce"], STUDENT["two_phase_allreduce"])
    faster = [("doubling" if "doubling" in line else "two phases") for line in table.splitlines()[1:]]
    assert faster == ["doubling"] * 3 + ["two phases"] * 3
    assert STUDENT["crossover_bytes"](8, LATENCY, BANDWIDTH) == pytest.approx(110e3)
    first, *_, last = table.splitlines()[1:]
    assert "31 µs" in first
    # Less than two per cent of the link, and all of it.
    assert float(first.split()[-2]) * 1e6 / BANDWIDTH == pytest.approx(0.018, abs=0.001)
    assert last.split()[-2:] == ["1.25", "GB/s"]
    costs = [
        cost(1.0, 8)
        for cost in (collectives.recursive_doubling_allreduce_cost, collectives.ring_allreduce_cost)
    ]
    assert [(cost.rounds, cost.wire_bytes) for cost in costs] == [(3, 3.0), (14, 1.75)]
    # Nodes of two ranks: distances 2 and 4 leave the node, one buffer from each of its ranks.
    leaving = sum(1 for distance in (1, 2, 4) for rank in (0, 1) if (rank ^ distance) // 2 != 0)
    assert leaving == 4


def test_the_measured_table_shows_the_slowest_rank():
    results = [[[0.001, 0.003]], [[0.002, 0.001]]]
    line = collective_checks.measured_table(results, (10,)).splitlines()[1]
    assert line.split() == ["10", "40", "B", "2", "ms", "3", "ms", "1.50"]
