"""Message-by-message simulations: right results, conserved bytes, and the formulas' numbers, for every algorithm."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import collective_schedules as schedules
from shardlab.models import collectives as c

ENTRIES = [pytest.param(entry, id=f"{entry.collective}, {entry.name}") for entry in c.ALGORITHMS]
WIDTH = 4


def numbers(ranks, length, seed=0):
    """Distinct whole numbers, so that a lost or doubled part changes the sum."""
    return [
        [(7919 * (rank + 1) * (place + 3) + seed) % 100003 for place in range(length)]
        for rank in range(ranks)
    ]


def expected_results(collective, buffers):
    ranks = len(buffers)
    total = [sum(column) for column in zip(*buffers, strict=False)]
    flat = [number for buffer in buffers for number in buffer]
    if collective == "all-reduce":
        return [total] * ranks
    if collective == "reduce":
        return [total] + [[]] * (ranks - 1)
    if collective == "broadcast":
        return [buffers[0]] * ranks
    if collective == "all-gather":
        return [flat] * ranks
    sizes = c.chunk_sizes(len(buffers[0]), ranks)
    starts = [sum(sizes[:place]) for place in range(ranks)]
    if collective == "reduce-scatter":
        return [total[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return [
        [number for buffer in buffers for number in buffer[start : start + size]]
        for start, size in zip(starts, sizes, strict=True)
    ]


@pytest.mark.parametrize("ranks", range(1, 34))
@pytest.mark.parametrize("entry", ENTRIES)
def test_results_bytes_and_rounds_are_the_formulas(entry, ranks):
    if not entry.runs_on(ranks, in_network=True):
        with pytest.raises(ValueError, match="power of two"):
            c.simulate(entry.collective, entry.name, numbers(ranks, ranks), WIDTH)
        return
    pieces = ranks if entry.collective == "all-to-all" else entry.schedule(ranks).n_chunks
    length = 3 if entry.collective == "all-gather" else 3 * pieces
    buffers = numbers(ranks, length)
    simulation = c.simulate(entry.collective, entry.name, buffers, WIDTH)
    assert simulation.results == expected_results(entry.collective, buffers)

    n_bytes = WIDTH * length * (ranks if entry.collective == "all-gather" else 1)
    formula, counted = entry.cost(n_bytes, ranks), c.simulated_cost(simulation)
    assert counted.sent_bytes == pytest.approx(formula.sent_bytes)
    assert counted.total_bytes == pytest.approx(formula.total_bytes)
    if not entry.pipelined:
        assert counted.rounds == formula.rounds
        assert counted.wire_bytes == pytest.approx(formula.wire_bytes)
        assert counted.reduced_bytes == pytest.approx(formula.reduced_bytes)
        assert counted.time_s(3e9, 2e-6, 1e-10) == pytest.approx(formula.time_s(3e9, 2e-6, 1e-10))
    elif not entry.in_network:
        assert max(simulation.reduced_bytes) == pytest.approx(formula.reduced_bytes)


@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(min_value=1, max_value=17),
    length=st.integers(min_value=0, max_value=50),
    seed=st.integers(0, 99),
)
def test_uneven_chunks_give_right_sums_and_conserve_bytes(entry, ranks, length, seed):
    if not entry.runs_on(ranks, in_network=True):
        return
    buffers = numbers(ranks, length, seed)
    simulation = c.simulate(entry.collective, entry.name, buffers, WIDTH)
    assert simulation.results == expected_results(entry.collective, buffers)
    if not entry.in_network:
        # The switch receives every rank's buffer and sends the sum to each: conserved with its own bytes only.
        assert sum(simulation.sent_bytes) == sum(simulation.received_bytes)
    messages = [message for step in simulation.schedule.rounds for message in step.messages]
    by_rank = [0] * (ranks + 1)
    for message in messages:
        by_rank[message.source] += simulation.message_bytes(message)
    assert by_rank[:ranks] == simulation.sent_bytes


def test_all_gather_takes_shards_of_different_lengths():
    simulation = c.simulate("all-gather", "ring", [[1], [2, 3], [], [4, 5, 6]])
    assert simulation.results == [[1, 2, 3, 4, 5, 6]] * 4


def test_no_rank_talks_to_itself_and_every_message_has_one_receiver_per_link():
    for entry in c.ALGORITHMS:
        for ranks in (1, 2, 3, 8, 13):
            if entry.runs_on(ranks, in_network=True):
                for step in entry.schedule(ranks).rounds:
                    pairs = [(message.source, message.destination) for message in step.messages]
                    assert all(source != destination for source, destination in pairs)
                    if not entry.pipelined:
                        assert len(set(pairs)) == len(pairs), "one message per link and round"


# Pipelined algorithms: the formula is the limit ---------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16, 31])
@pytest.mark.parametrize(
    ("collective", "name", "schedule", "wait"),
    [
        (
            "all-reduce",
            "double tree",
            schedules.double_tree_allreduce,
            lambda ranks: 2 * schedules.log2_ceil(ranks) - 1,
        ),
        ("broadcast", "chain", schedules.chain_broadcast, lambda ranks: ranks - 2),
        ("reduce", "chain", schedules.chain_reduce, lambda ranks: ranks - 2),
    ],
)
def test_pipelines_come_down_to_their_formula_as_pieces_get_smaller(collective, name, schedule, wait, ranks):
    times = []
    for pieces in (1, 8, 64):
        plan = schedule(ranks, pieces)
        length = 2 * pieces
        chunks = [[[1.0] * (length // plan.n_chunks) for _ in plan.starts[rank]] for rank in range(ranks)]
        simulation = schedules.run(plan, chunks, 64 // pieces * WIDTH)
        assert simulation.n_rounds == pieces + wait(ranks)
        times.append(c.simulated_cost(simulation).wire_bytes)
        size = sum(simulation.chunk_bytes)
    limit = c.algorithm(collective, name).cost(size, ranks).wire_bytes
    assert times[0] >= times[1] >= times[2] >= limit * (1 - 1e-9)
    assert times[2] <= limit * (1 + 2 * wait(ranks) / 64 + 1e-9)


@pytest.mark.parametrize("ranks", range(1, 40))
def test_ncclss_two_trees(ranks):
    first, second = schedules.double_tree_parents(ranks)
    for parents in (first, second):
        assert parents.count(-1) == 1, "one root"
        children = [parents.count(rank) for rank in range(ranks)]
        assert max(children) <= 2
        for start in range(ranks):
            rank, hops = start, 0
            while parents[rank] >= 0:
                rank, hops = parents[rank], hops + 1
            assert hops <= schedules.log2_ceil(ranks)
    for rank in range(ranks):
        # No rank has children in both trees, but for a root with its single child.
        if first.count(rank) and second.count(rank):
            assert -1 in (first[rank], second[rank])


def test_nccls_tree_of_fourteen():
    # The picture in NCCL's trees.cc.
    parents = schedules.binary_tree_parents(14)
    assert parents == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]


# Two levels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per_node", "nodes"), [(1, 1), (1, 5), (4, 1), (2, 2), (4, 2), (3, 5), (8, 4)])
def test_hierarchical_sums_and_bytes(per_node, nodes):
    ranks = per_node * nodes
    buffers = numbers(ranks, 6 * ranks)
    simulation = c.simulate_hierarchical_allreduce(buffers, per_node, WIDTH)
    assert simulation.results == expected_results("all-reduce", buffers)
    formula = c.hierarchical_allreduce(6 * ranks * WIDTH, per_node, nodes, 10e9, 1e9)
    assert simulation.phase_bytes("intra") == pytest.approx(formula.intra_sent_bytes)
    assert simulation.phase_bytes("inter") == pytest.approx(formula.inter_sent_bytes)
    crossing = 0
    for step in simulation.schedule.rounds:
        for message in step.messages:
            if message.source // per_node != message.destination // per_node:
                assert step.phase.startswith("inter")
                crossing += simulation.message_bytes(message)
    assert crossing == pytest.approx(formula.node_sent_bytes * nodes)
    # Fewer bytes between nodes than a flat ring over all ranks, which crosses every node boundary with all of its volume.
    assert formula.node_sent_bytes <= c.ring_allreduce_sent_bytes(6 * ranks * WIDTH, ranks) * (1 + 1e-12)


@pytest.mark.parametrize(("per_node", "nodes"), [(2, 2), (8, 4), (4, 16), (8, 64)])
def test_rabenseifner_meets_the_neighbour_with_the_largest_piece(per_node, nodes):
    """As MPICH does: distances 1, 2, 4, ... and back, so a node sends no more than the hierarchical way does."""
    n = per_node * nodes

    def leaves(*parts):
        sent = dict.fromkeys(range(nodes), 0.0)
        for schedule in parts:
            for message in [message for step in schedule.rounds for message in step.messages]:
                if message.source // per_node != message.destination // per_node:
                    sent[message.source // per_node] += len(message.chunks) / schedule.n_chunks
        assert len(set(sent.values())) == 1
        return sent[0]

    rounds = schedules.rabenseifner_allreduce(n).rounds
    there = [2**step for step in range(len(rounds) // 2)]
    for step, distance in zip(rounds, there + there[::-1], strict=True):
        assert {message.source ^ message.destination for message in step.messages} == {distance}
    assert leaves(schedules.rabenseifner_allreduce(n)) == pytest.approx(2 * (nodes - 1) / nodes)
    # The two collectives one after the other, each in rank order, begin with the farthest partner instead.
    far = leaves(schedules.recursive_halving_reduce_scatter(n), schedules.recursive_doubling_allgather(n))
    assert far == pytest.approx(2 * per_node * (nodes - 1) / nodes)


def test_hierarchical_refuses_part_nodes():
    with pytest.raises(ValueError, match="number of buffers must be a multiple of ranks_per_node 4, not 6"):
        c.simulate_hierarchical_allreduce(numbers(6, 6), 4)


# The ring's own simulation ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(min_value=1, max_value=20),
    length=st.integers(min_value=0, max_value=70),
    seed=st.integers(0, 99),
)
def test_the_ring_simulation_is_that_of_its_messages(ranks, length, seed):
    buffers = numbers(ranks, length, seed)
    simulation = c.simulate_ring_allreduce(buffers, WIDTH)
    assert simulation.results == expected_results("all-reduce", buffers)
    sent, received = [0] * ranks, [0] * ranks
    state = [[list(chunk) for chunk in _split(buffer, ranks)] for buffer in buffers]
    for step in simulation.steps:
        assert len(step) == ranks
        payloads = [list(state[send.source][send.chunk]) for send in step]
        for send, payload in zip(step, payloads, strict=True):
            sent[send.source] += send.n_bytes
            received[send.destination] += send.n_bytes
            mine = state[send.destination][send.chunk]
            if send.phase == "reduce-scatter":
                payload = [a + b for a, b in zip(mine, payload, strict=True)]
            state[send.destination][send.chunk] = payload
    assert simulation.sent_bytes == sent
    assert simulation.received_bytes == received
    assert simulation.results == [[number for chunk in rank for number in chunk] for rank in state]
    assert simulation.n_steps == len(simulation.steps) == 2 * (ranks - 1)


def _split(buffer, ranks):
    pieces, start = [], 0
    for size in c.chunk_sizes(len(buffer), ranks):
        pieces.append(buffer[start : start + size])
        start += size
    return pieces


@pytest.mark.parametrize(
    ("ranks", "length"), [(1, 5), (2, 3), (64, 1000), (511, 700), (1000, 1001), (1024, 1500), (1024, 10)]
)
def test_large_rings_with_uneven_chunks(ranks, length):
    buffers = [[float(rank + place) for place in range(length)] for rank in range(ranks)]
    simulation = c.simulate_ring_allreduce(buffers, WIDTH)
    column = ranks * (ranks - 1) / 2
    assert simulation.results[0] == [column + ranks * place for place in range(length)]
    assert all(result == simulation.results[0] for result in simulation.results)
    assert sum(simulation.sent_bytes) == sum(simulation.received_bytes) == 2 * (ranks - 1) * length * WIDTH
    average = c.ring_allreduce_sent_bytes(length * WIDTH, ranks)
    assert all(abs(sent - average) <= 2 * WIDTH * 2 for sent in simulation.sent_bytes)


@pytest.mark.parametrize("ranks", range(1, 34))
def test_the_rings_bytes_equal_the_formula_exactly_when_n_divides(ranks):
    simulation = c.simulate_ring_allreduce(numbers(ranks, 4 * ranks), 2)
    assert simulation.sent_bytes == [c.ring_allreduce_sent_bytes(8 * ranks, ranks)] * ranks


def test_chunks_may_be_given_cut():
    cut = [[[1, 2], [3]], [[10, 20], [30]]]
    simulation = c.simulate_ring_allreduce(cut)
    assert simulation.results == [[11, 22, 33]] * 2
    assert simulation.chunk_sizes == [2, 1]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "number of buffers in chunks must be a whole number from 1 to 1024, not 0"),
        ([[1]] * 1025, "number of buffers in chunks must be a whole number from 1 to 1024, not 1025"),
        ([[1, 2], [1]], r"chunks\[1\] must have chunk sizes \[1, 1\] like chunks\[0\], not \[1, 0\]"),
        ([[[1], [2], [3]], [[1], [2], [3]]], r"chunks\[0\] must hold 2 chunks, one per rank, not 3"),
    ],
)
def test_bad_buffers_are_named(chunks, message):
    with pytest.raises(ValueError, match=message):
        c.simulate_ring_allreduce(chunks)


def test_a_step_outside_the_ring_is_refused():
    simulation = c.simulate_ring_allreduce([[1], [2]])
    with pytest.raises(ValueError, match="step must be a whole number from 0 to 1, not 2"):
        simulation.sends(2)


def test_simulate_names_the_buffer_that_differs():
    with pytest.raises(ValueError, match=r"buffers\[2\] must hold 3 numbers like buffers\[0\], not 2"):
        c.simulate("all-reduce", "ring", [[1, 2, 3], [1, 2, 3], [1, 2]])
