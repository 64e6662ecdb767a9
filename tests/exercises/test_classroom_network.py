"""The simulated network: what it delivers, what it counts, and what it says when a program goes wrong."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from submissions.ring import ALL_GATHER, ALLREDUCE, REDUCE_SCATTER

from shardlab.classroom import Deadlock, NotWritten, RankFailed, TooLong, run_ranks
from shardlab.models.collectives import simulate_ring_allreduce

RING: dict = {}
exec(REDUCE_SCATTER + ALL_GATHER + ALLREDUCE, RING)


def to_the_right(net, value):
    net.send((net.rank + 1) % net.n_ranks, [value])
    return net.recv((net.rank - 1) % net.n_ranks)


def test_who_sent_what_to_whom():
    run = run_ranks(to_the_right, [10, 20, 30])
    assert run.results == [[30], [10], [20]]
    assert [(m.source, m.destination, m.n_bytes, m.index, m.payload) for m in run.messages] == [
        (0, 1, 4, 0, (10,)),
        (1, 2, 4, 0, (20,)),
        (2, 0, 4, 0, (30,)),
    ]
    assert run.sent_bytes == run.received_bytes == [4, 4, 4]
    assert run.link_bytes(0, 1) == 4
    assert run.link_bytes(1, 0) == 0
    assert run.table().splitlines()[1].split() == ["rank", "0", "·", "4", "·", "4"]
    assert run.unread == []


def test_an_element_has_the_size_it_is_given():
    assert run_ranks(to_the_right, [1, 2], element_bytes=2).sent_bytes == [2, 2]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(n_ranks=st.integers(1, 12), n_elements=st.integers(0, 40))
def test_a_ring_on_it_sends_what_the_models_say(n_ranks, n_elements):
    buffers = [[rank * 100 + place for place in range(n_elements)] for rank in range(n_ranks)]
    run, model = run_ranks(RING["ring_allreduce"], buffers), simulate_ring_allreduce(buffers)
    assert run.results == model.results
    assert run.sent_bytes == model.sent_bytes
    assert run.received_bytes == model.received_bytes


def test_the_same_run_twice_is_the_same():
    runs = [run_ranks(RING["ring_allreduce"], [[1, 2, 3, 4, 5]] * 4) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_message_is_a_copy_and_a_program_cannot_change_its_callers_data():
    def program(net, value):
        if net.rank == 0:
            net.send(1, value)
            value[0] = 99
            return value
        return net.recv(0)

    mine = [1, 2]
    assert run_ranks(program, [mine, mine]).results == [[99, 2], [1, 2]]
    assert mine == [1, 2]


def test_messages_of_one_rank_arrive_in_order_and_may_wait():
    def program(net, _):
        if net.rank == 0:
            for number in range(5):
                net.send(1, [number])
            return None
        return [net.recv(0)[0] for _ in range(5)]

    assert run_ranks(program, [None, None]).results[1] == [0, 1, 2, 3, 4]


def test_messages_that_nobody_receives_are_listed():
    run = run_ranks(lambda net, _: net.send(1 - net.rank, [1, 2]), [None, None])
    assert [(m.source, m.destination, m.payload) for m in run.unread] == [(0, 1, (1, 2)), (1, 0, (1, 2))]


def test_a_deadlock_is_found_at_once_and_told_in_full():
    def program(net, _):
        net.send((net.rank + 2) % 4, [1])
        net.recv((net.rank - 1) % 4)

    began = time.monotonic()
    with pytest.raises(Deadlock) as caught:
        run_ranks(program, [None] * 4, time_limit_s=1000)
    assert time.monotonic() - began < 60
    assert "rank 0 waits for rank 3, which waits for rank 2" in str(caught.value)
    assert "rank 0 sent to rank 2, which never received it" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 9


def test_waiting_for_a_rank_that_has_finished_is_a_deadlock():
    with pytest.raises(Deadlock, match="rank 1 waits for rank 0, which has finished"):
        run_ranks(lambda net, _: net.recv(0) if net.rank else None, [None, None])


def test_a_failing_rank_is_named_with_its_line():
    def program(net, value):
        if net.rank == 2:
            return value[7]
        return net.recv((net.rank - 1) % 4)

    with pytest.raises(RankFailed) as caught:
        run_ranks(program, [[1]] * 4)
    assert "rank 2 stopped with IndexError" in str(caught.value)
    assert "of program: return value[7]" in str(caught.value)
    assert isinstance(caught.value.__cause__, IndexError)
    shown = "\n".join(caught.value._render_traceback_())
    assert "return value[7]" in shown
    assert "shardlab" not in shown


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda net: net.send(2, [1]), "destination must be a whole number from 0 to 1, not 2"),
        (lambda net: net.send(-1, [1]), "destination must be a whole number from 0 to 1, not -1"),
        (lambda net: net.recv(net.rank), "source must be another rank, not 0: that is this rank itself"),
        (lambda net: net.send(1, 7), "payload must be a list of numbers, such as chunks[0], not 7"),
        (lambda net: net.send(1, [[1, 2], [3]]), "it holds [1, 2]"),
        (lambda net: net.send(1, "12"), "payload must be a list of numbers"),
    ],
)
def test_a_wrong_call_says_what_is_allowed(call, words):
    with pytest.raises(RankFailed) as caught:
        run_ranks(lambda net, _: call(net), [None, None])
    assert words in str(caught.value)


def test_what_is_not_written_is_told_by_name():
    def mine(net, value):
        raise NotImplementedError("not written yet")

    with pytest.raises(NotWritten, match="mine is not written yet"):
        run_ranks(lambda net, value: mine(net, value), [1, 2])


def test_a_loop_without_end_is_stopped_and_leaves_no_thread():
    def program(net, _):
        while True:
            # As students write it: it catches everything, the order to stop as well.
            with contextlib.suppress(BaseException):
                net.rank += 0

    with pytest.raises(TooLong, match="does a loop never end\\? Rank 0 was busy"):
        run_ranks(program, [None, None], time_limit_s=0.2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_a_flood_of_messages_is_stopped():
    def program(net, _):
        while True:
            net.send(1 - net.rank, [1])

    with pytest.raises(TooLong, match="50,000 messages"):
        run_ranks(program, [None, None])


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        ([], {}, "number of inputs must be a whole number from 1 to 256, not 0"),
        ([1], {"element_bytes": 0}, "element_bytes must be"),
        ([1], {"time_limit_s": -1}, "time_limit_s must be"),
    ],
)
def test_bad_arguments(inputs, options, words):
    with pytest.raises(ValueError, match=words):
        run_ranks(to_the_right, inputs, **options)
