"""Timed runs: the clock of a simulated network agrees with the book's formulas, algorithm by algorithm."""

from __future__ import annotations

import math
from typing import Any

import pytest
from submissions.collective import ALL_TO_ALL, BROADCAST, DOUBLING, TWO_PHASE
from submissions.ring import ALL_GATHER, ALLREDUCE, REDUCE_SCATTER

from shardlab.classroom import Deadlock
from shardlab.classroom.timed import run_timed
from shardlab.models import collectives

STUDENT: dict[str, Any] = {}
exec(ALL_TO_ALL + BROADCAST + DOUBLING + TWO_PHASE + REDUCE_SCATTER + ALL_GATHER + ALLREDUCE, STUDENT)
LATENCY, BANDWIDTH = 10e-6, 1.25e9
PROGRAMS = {
    "ring_allreduce": collectives.ring_allreduce_cost,
    "two_phase_allreduce": collectives.ring_allreduce_cost,
    "doubling_allreduce": collectives.recursive_doubling_allreduce_cost,
    "tree_broadcast": collectives.binomial_tree_broadcast_cost,
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_a_run_takes_what_the_formula_says(program, n_ranks):
    n_elements = 5 * n_ranks
    timed = run_timed(STUDENT[program], [[1] * n_elements] * n_ranks)
    cost = PROGRAMS[program](4 * n_elements, n_ranks)
    assert timed.rounds == cost.rounds
    assert timed.time_s(LATENCY, BANDWIDTH) == pytest.approx(cost.time_s(BANDWIDTH, LATENCY))
    assert timed.time_s(0, BANDWIDTH) == pytest.approx(cost.wire_bytes / BANDWIDTH)


@pytest.mark.parametrize("n_ranks", [2, 3, 5, 8])
def test_an_all_to_all_takes_a_round_for_every_other_rank(n_ranks):
    timed = run_timed(STUDENT["all_to_all"], [[[1, 2]] * n_ranks] * n_ranks)
    assert timed.rounds == collectives.direct_alltoall_cost(1, n_ranks).rounds


def test_a_rank_sends_and_receives_one_message_at_a_time():
    def everyone_to_0(net, value):
        if net.rank:
            net.send(0, value)
            return None
        return [net.recv(source) for source in range(1, net.n_ranks)]

    def from_0_to_everyone(net, value):
        if net.rank:
            return net.recv(0)
        for destination in range(1, net.n_ranks):
            net.send(destination, value)
        return value

    for program in (everyone_to_0, from_0_to_everyone):
        timed = run_timed(program, [[1, 2, 3]] * 5)
        assert timed.rounds == 4
        assert timed.time_s(1.0, 12.0) == pytest.approx(4 * 2.0)


def test_what_a_rank_waits_for_goes_before_what_comes_at_the_same_time():
    def program(net, value):
        if net.rank == 0:
            net.recv(2)
            net.send(3, value)
            net.recv(1)
        elif net.rank < 3:
            net.send(0, value)
        else:
            net.recv(0)

    assert run_timed(program, [[1]] * 4).rounds == 2


def test_messages_of_a_pair_keep_their_order_and_a_run_its_results():
    def program(net, value):
        if net.rank == 0:
            for number in range(4):
                net.send(1, [number] * (4 - number))
            return None
        return [net.recv(0) for _ in range(4)]

    timed = run_timed(program, [None, None])
    assert timed.run.results[1] == [[0] * 4, [1] * 3, [2] * 2, [3]]
    assert timed.run.sent_bytes == [40, 0]
    assert timed.time_s(0.5, 4.0) == pytest.approx(4 * 0.5 + 10)
    assert timed.time_s(0.0, math.inf) == 0


def test_messages_that_nobody_reads_take_their_time_too():
    timed = run_timed(lambda net, value: net.send(1 - net.rank, [1]), [0, 0])
    assert timed.rounds == 1
    assert len(timed.run.unread) == 2


def test_a_width_of_numbers_scales_the_bytes():
    narrow, wide = (
        run_timed(STUDENT["tree_broadcast"], [[1] * 10, None], element_bytes=width) for width in (1, 100)
    )
    assert wide.time_s(0, 1e3) == pytest.approx(100 * narrow.time_s(0, 1e3))


def test_errors_are_those_of_a_run():
    with pytest.raises(Deadlock):
        run_timed(lambda net, value: net.recv(1 - net.rank), [0, 0])
    timed = run_timed(lambda net, value: value, [0])
    assert timed.time_s(1, 1) == 0
    with pytest.raises(ValueError, match="latency_s must be a finite number of at least 0 seconds"):
        timed.time_s(-1, 1)
    with pytest.raises(ValueError, match="bandwidth must be a finite number above 0 bytes/s"):
        timed.time_s(0, 0)
