"""Cost formulas of collectives against their sources, the ring's contract, and the choice among algorithms."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab import measured
from shardlab.models import collectives as c

UNTIMED = settings(deadline=None)

SIZES = st.floats(min_value=0, max_value=1e13)
RANKS = st.integers(min_value=1, max_value=4096)
SPEEDS = st.floats(min_value=1e6, max_value=1e13)
LATENCIES = st.floats(min_value=0, max_value=1e-2)
ENTRIES = [pytest.param(entry, id=f"{entry.collective}, {entry.name}") for entry in c.ALGORITHMS]


# The ring ---------------------------------------------------------------------------------------------------------


def test_the_ring_of_the_source_text():
    assert c.ring_allreduce_sent_bytes(1e9, 8) == pytest.approx(1.75e9)
    assert c.ring_allreduce_time_s(1e9, 8, 10e9, 1e-5) == pytest.approx(0.17514)
    assert c.ring_allreduce_time_s(1e9, 512, 10e9, 1e-5) == pytest.approx(0.2098294, rel=1e-6)


@UNTIMED
@given(SIZES, SPEEDS, LATENCIES)
def test_one_rank_costs_nothing(size, speed, latency):
    assert c.ring_allreduce_sent_bytes(size, 1) == 0
    assert c.ring_allreduce_time_s(size, 1, speed, latency) == 0
    for entry in c.ALGORITHMS:
        cost = entry.cost(size, 1)
        assert (cost.rounds, cost.wire_bytes, cost.reduced_bytes, cost.sent_bytes, cost.total_bytes) == (
            0,
            0,
            0,
            0,
            0,
        )
        assert cost.time_s(speed, latency, 1e-9) == 0


@UNTIMED
@given(SIZES, RANKS)
def test_twice_the_buffer_is_the_rings_ceiling_and_never_reached(size, ranks):
    sent = c.ring_allreduce_sent_bytes(size, ranks)
    assert sent <= 2 * size
    assert sent <= c.ring_allreduce_sent_bytes(size, ranks + 1)
    if size > 1e-200:
        assert sent < 2 * size


@UNTIMED
@given(SIZES, SIZES, RANKS, SPEEDS, LATENCIES, LATENCIES)
def test_the_ring_is_monotone_in_bytes_and_latency(one, two, ranks, speed, fast, slow):
    low, high = sorted((one, two))
    quick, late = sorted((fast, slow))
    assert c.ring_allreduce_time_s(low, ranks, speed, quick) <= c.ring_allreduce_time_s(
        high, ranks, speed, late
    )
    assert c.ring_allreduce_time_s(high, ranks, speed, late) >= c.ring_allreduce_time_s(
        high, ranks, 2 * speed, late
    )


@UNTIMED
@given(SIZES, RANKS, SPEEDS, LATENCIES)
def test_the_rings_two_forms_agree(size, ranks, speed, latency):
    cost = c.ring_allreduce_cost(size, ranks)
    assert cost.sent_bytes == pytest.approx(c.ring_allreduce_sent_bytes(size, ranks))
    assert cost.time_s(speed, latency) == pytest.approx(c.ring_allreduce_time_s(size, ranks, speed, latency))
    assert cost.total_bytes == pytest.approx(2 * (ranks - 1) * size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1e9, 0, 1e9), "n_ranks must be a whole number of at least 1, not 0"),
        ((1e9, 2.5, 1e9), "n_ranks must be a whole number of at least 1, not 2.5"),
        ((-1, 2, 1e9), "n_bytes must be a finite number of at least 0 bytes, not -1"),
        ((math.nan, 2, 1e9), "n_bytes must be a finite number of at least 0 bytes, not nan"),
        ((1e9, 2, 0), "bandwidth must be a finite number above 0 bytes/s, not 0"),
        ((1e9, 2, 1e9, -1), "latency_s must be a finite number of at least 0 seconds, not -1"),
    ],
)
def test_bad_input_names_argument_value_and_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        c.ring_allreduce_time_s(*arguments)


# Formulas of the literature ---------------------------------------------------------------------------------------


def time_s(entry_name, collective, size, ranks, alpha=3.0, beta=5.0, gamma=7.0):
    return c.collective_time_s(collective, entry_name, size, ranks, 1 / beta, alpha, gamma)


@pytest.mark.parametrize("power", range(1, 11))
def test_powers_of_two_cost_what_the_mpich_comments_say(power):
    p, n, lg = 2**power, 1000.0, power
    a, b, g = 3.0, 5.0, 7.0
    share = (p - 1) / p * n
    assert time_s("recursive doubling", "all-reduce", n, p) == pytest.approx(lg * (a + n * b + n * g))
    assert time_s("rabenseifner", "all-reduce", n, p) == pytest.approx(2 * lg * a + 2 * share * b + share * g)
    assert time_s("binomial tree", "reduce", n, p) == pytest.approx(lg * (a + n * b + n * g))
    assert time_s("binomial tree", "broadcast", n, p) == pytest.approx(lg * (a + n * b))
    assert time_s("scatter all-gather", "broadcast", n, p) == pytest.approx((lg + p - 1) * a + 2 * share * b)
    assert time_s("recursive doubling", "all-gather", n, p) == pytest.approx(lg * a + share * b)
    assert time_s("recursive halving", "reduce-scatter", n, p) == pytest.approx(lg * a + share * (b + g))
    assert time_s("ring", "all-reduce", n, p) == pytest.approx(2 * (p - 1) * a + 2 * share * b + share * g)
    # MPICH's n for all-to-all is what a process sends to the others: (p-1)/p of its buffer.
    assert time_s("direct", "all-to-all", n, p) == pytest.approx((p - 1) * a + share * b)
    assert time_s("bruck", "all-to-all", n, p) == pytest.approx(lg * a + n / 2 * lg * b)


@pytest.mark.parametrize("p", [3, 5, 6, 7, 12, 33, 100, 1000])
def test_other_ranks_fold_to_the_power_below_as_in_mpich(p):
    n, lg = 1000.0, int(math.log2(p))
    below = 2**lg
    a, b, g = 3.0, 5.0, 7.0
    exact = (2 * lg + 2) * a + (2 * (below - 1) / below + 2) * n * b + (1 + (below - 1) / below) * n * g
    assert time_s("rabenseifner", "all-reduce", n, p) == pytest.approx(exact)
    as_printed = (2 * lg + 2) * a + (2 * (p - 1) / p + 2) * n * b + n * (1 + (p - 1) / p) * g
    printed = c.rabenseifner_allreduce_mpich_cost(n, p).time_s(1 / b, a, g)
    assert printed == pytest.approx(as_printed)
    assert exact < printed < 1.2 * exact
    assert time_s("recursive doubling", "all-reduce", n, p) == pytest.approx(
        (lg + 2) * (a + n * b) + (lg + 1) * n * g
    )


@UNTIMED
@given(SIZES, st.integers(min_value=0, max_value=12))
def test_the_mpich_comment_is_exact_for_powers_of_two(size, power):
    assert c.rabenseifner_allreduce_mpich_cost(size, 2**power) == c.rabenseifner_allreduce_cost(
        size, 2**power
    )


def test_the_double_tree_sends_two_buffers_from_four_ranks_on_as_nccl_assumes():
    sent = [c.double_tree_allreduce_cost(1.0, ranks).sent_bytes for ranks in (1, 2, 3, 4, 5, 8, 1000)]
    assert sent == [0, 1, 1.5, 2, 2, 2, 2]
    assert [c.double_tree_allreduce_cost(1.0, n).rounds for n in (2, 4, 5, 1024)] == [2, 4, 6, 20]


@pytest.mark.parametrize("entry", ENTRIES)
@UNTIMED
@given(size=st.floats(min_value=1, max_value=1e12), ranks=st.integers(min_value=2, max_value=600))
def test_no_all_reduce_without_switches_sends_less_than_the_ring(entry, size, ranks):
    if entry.collective == "all-reduce" and entry.runs_on(ranks) and not entry.in_network:
        # On average over the ranks; a tree's busiest rank is above it.
        assert entry.cost(size, ranks).total_bytes / ranks >= c.ring_allreduce_sent_bytes(size, ranks) * (
            1 - 1e-12
        )


@pytest.mark.parametrize("entry", ENTRIES)
@UNTIMED
@given(
    one=SIZES,
    two=SIZES,
    ranks=st.integers(min_value=1, max_value=600),
    speed=SPEEDS,
    latency=LATENCIES,
    more_latency=LATENCIES,
)
def test_every_cost_is_monotone(entry, one, two, ranks, speed, latency, more_latency):
    if not entry.runs_on(ranks, in_network=True):
        with pytest.raises(ValueError, match=f"n_ranks must be a power of two for {entry.name}, not {ranks}"):
            entry.cost(one, ranks)
        return
    low, high = sorted((one, two))
    quick, late = sorted((latency, more_latency))
    assert entry.cost(low, ranks).time_s(speed, quick) <= entry.cost(high, ranks).time_s(speed, late)
    assert entry.cost(low, ranks).time_s(2 * speed, quick) <= entry.cost(low, ranks).time_s(speed, quick)


# Choosing ---------------------------------------------------------------------------------------------------------


def test_names_are_unique_and_found():
    names = [(entry.collective, entry.name) for entry in c.ALGORITHMS]
    assert len(set(names)) == len(names)
    assert {entry.collective for entry in c.ALGORITHMS} == set(c.COLLECTIVES)
    for entry in c.ALGORITHMS:
        assert c.algorithm(entry.collective, entry.name) is entry


def test_unknown_names_list_what_there_is():
    with pytest.raises(ValueError, match=r"algorithm of all-reduce must be one of 'ring', .*, not 'magic'"):
        c.algorithm("all-reduce", "magic")
    with pytest.raises(ValueError, match=r"collective must be one of 'all-reduce', .*, not 'allreduce'"):
        c.algorithms("allreduce")


def test_small_buffers_want_few_messages_and_large_ones_few_bytes():
    assert c.fastest("all-reduce", 8, 512, 10e9, 1e-5).algorithm == "recursive doubling"
    large = c.fastest("all-reduce", 1e9, 512, 10e9, 1e-5)
    assert large.algorithm == "rabenseifner"
    assert c.fastest("all-reduce", 1e9, 500, 10e9, 1e-7).algorithm == "ring"
    assert c.fastest("all-reduce", 1e9, 512, 10e9, 1e-5, in_network=True).algorithm == "switch"
    assert [name for name, _ in large.times_s] == sorted(
        [name for name, _ in large.times_s], key=lambda name: dict(large.times_s)[name]
    )


@UNTIMED
@given(
    collective=st.sampled_from(c.COLLECTIVES),
    size=SIZES,
    ranks=st.integers(min_value=1, max_value=300),
    speed=SPEEDS,
    latency=LATENCIES,
    gamma=st.floats(min_value=0, max_value=1e-9),
    switches=st.booleans(),
)
def test_the_fastest_is_no_slower_than_any(collective, size, ranks, speed, latency, gamma, switches):
    best = c.fastest(collective, size, ranks, speed, latency, gamma, switches)
    for entry in c.algorithms(collective):
        if entry.runs_on(ranks, switches):
            assert best.time_s <= entry.cost(size, ranks).time_s(speed, latency, gamma)


@UNTIMED
@given(
    collective=st.sampled_from(c.COLLECTIVES),
    ranks=st.integers(min_value=1, max_value=300),
    speed=SPEEDS,
    latency=LATENCIES,
    gamma=st.floats(min_value=0, max_value=1e-9),
    switches=st.booleans(),
    sizes=st.lists(st.floats(min_value=1, max_value=1e13), min_size=5, max_size=20),
)
def test_solved_crossovers_agree_with_trying_every_algorithm(
    collective, ranks, speed, latency, gamma, switches, sizes
):
    edges = c.crossovers(collective, ranks, speed, latency, gamma, switches)
    starts = [start for start, _ in edges]
    assert starts[0] == 0
    assert starts == sorted(starts)
    for size in sizes + [1.01 * start for start in starts] + [0.99 * start for start in starts]:
        name = [winner for start, winner in edges if start <= size][-1]
        expected = c.fastest(collective, size, ranks, speed, latency, gamma, switches).time_s
        got = c.collective_time_s(collective, name, size, ranks, speed, latency, gamma)
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_a_crossover_by_hand():
    # Recursive doubling 3 (a + n b) against Rabenseifner 6 a + 7/4 n b on 8 ranks: n = 3 a / (1.25 b).
    size = c.crossover_bytes("all-reduce", "recursive doubling", "rabenseifner", 8, 1e9, 1e-5)
    assert size == pytest.approx(3e-5 / 1.25 * 1e9)
    assert c.crossover_bytes("all-reduce", "rabenseifner", "recursive doubling", 8, 1e9, 1e-5) == size
    # The ring never beats Rabenseifner on a power of two: as many bytes, more messages.
    assert c.crossover_bytes("all-reduce", "ring", "rabenseifner", 8, 1e9, 1e-5) is None
    assert c.crossover_bytes("all-reduce", "ring", "switch", 8, 1e9, 1e-5) is None


# Benchmarks' bandwidths --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8, 1000])
def test_factors_of_nccl_tests(n):
    assert c.busbw_factor("all-reduce", n) == pytest.approx(2 * (n - 1) / n)
    for name in ("reduce-scatter", "all-gather", "all-to-all"):
        assert c.busbw_factor(name, n) == pytest.approx((n - 1) / n)
    for name in ("broadcast", "reduce"):
        assert c.busbw_factor(name, n) == 1
    assert c.busbw_factor("all-reduce", n, in_network=True) == pytest.approx((n - 1) / (n + 1))


def test_the_documents_in_network_factor_is_less_than_any_rank_can_send():
    assert c.in_network_wire_factor(8) == pytest.approx(9 / 8)
    assert c.in_network_wire_factor(1) == 0
    for n in range(2, 100):
        assert c.busbw_factor("all-reduce", n, in_network=True) < 1 <= c.in_network_wire_factor(n)
    with pytest.raises(ValueError, match="in_network has a factor for all-reduce only, not 'all-gather'"):
        c.busbw_factor("all-gather", 8, in_network=True)


@UNTIMED
@given(st.floats(min_value=1, max_value=1e13), st.integers(min_value=2, max_value=5000), SPEEDS)
def test_a_ring_at_full_speed_has_the_links_speed_as_bus_bandwidth(size, ranks, speed):
    for collective in ("all-reduce", "reduce-scatter", "all-gather"):
        time = c.collective_time_s(collective, "ring", size, ranks, speed)
        assert c.busbw(collective, size, time, ranks) == pytest.approx(speed)


@pytest.mark.parametrize("table", measured.ALL_REDUCE, ids=lambda table: table.machine)
def test_measured_tables_are_plausible(table):
    assert len(table.n_bytes) == len(table.busbw) == 6
    assert list(table.n_bytes) == sorted(table.n_bytes)
    assert list(table.busbw) == sorted(table.busbw), "bus bandwidth rises with the buffer in all of them"
    nodes_links = table.link_bandwidth * (8 if table.n_nodes > 1 else 1)
    # Reduction in NVSwitch lets the H200's bus bandwidth pass its link; nothing comes near twice.
    assert table.busbw[-1] < 1.1 * nodes_links


def test_measured_times_and_bandwidths_agree():
    a100 = measured.ALL_REDUCE[0]
    for n_bytes, time in measured.A100_ALL_REDUCE_TIMES_S:
        printed = a100.busbw[a100.n_bytes.index(n_bytes)]
        assert c.busbw("all-reduce", n_bytes, time, 8) == pytest.approx(printed, rel=0.002)
    assert pytest.approx(0.82, abs=0.005) == measured.H200_RING_ALL_REDUCE_BUSBW / 450e9
    assert c.ring_allreduce_time_s(2**30, 8, a100.busbw[3]) == pytest.approx(8.2e-3, rel=0.002)


def test_bus_bandwidth_falls_with_nodes_in_the_measured_table():
    for table in measured.H100_BY_NODES:
        assert len(table.n_nodes) == len(table.busbw) == 7
        assert list(table.busbw) == sorted(table.busbw, reverse=True)


# Two levels -------------------------------------------------------------------------------------------------------


def test_hierarchical_by_hand():
    # 1 GB on 2 nodes of 4: inside 2 * 3/4 GB at 300 GB/s, across 2 * 1/2 * 0.25 GB at a quarter of 2 * 25 GB/s.
    both = c.hierarchical_allreduce(1e9, 4, 2, 300e9, 25e9, nics_per_node=2)
    assert both.intra_time_s == pytest.approx(1.5e9 / 300e9)
    assert both.inter_time_s == pytest.approx(0.25e9 / 12.5e9)
    assert both.time_bracket_s == (pytest.approx(0.02), pytest.approx(0.025))
    assert both.node_sent_bytes == pytest.approx(1e9)
    assert both.busbw_bracket[1] == pytest.approx(1.75e9 / 0.02)


@UNTIMED
@given(
    size=st.floats(min_value=1, max_value=1e12),
    per_node=st.integers(min_value=1, max_value=16),
    nodes=st.integers(min_value=2, max_value=200),
    nics=st.integers(min_value=1, max_value=8),
)
def test_the_wire_rate_follows_from_the_bus_bandwidth(size, per_node, nodes, nics):
    both = c.hierarchical_allreduce(size, per_node, nodes, 1e15, 25e9, nics)
    rate = c.wire_rate_from_busbw(both.busbw_bracket[1], per_node * nodes, nodes)
    assert rate == pytest.approx(25e9 * nics / per_node, rel=1e-3)


@UNTIMED
@given(st.floats(min_value=1, max_value=1e12), st.integers(min_value=1, max_value=64))
def test_one_node_is_a_plain_ring_and_one_rank_per_node_too(size, ranks):
    inside = c.hierarchical_allreduce(size, ranks, 1, 10e9, 1e9, intra_latency_s=1e-6)
    assert inside.time_bracket_s[1] == pytest.approx(c.ring_allreduce_time_s(size, ranks, 10e9, 1e-6))
    across = c.hierarchical_allreduce(size, 1, ranks, 10e9, 1e9, inter_latency_s=1e-6)
    assert across.time_bracket_s[1] == pytest.approx(c.ring_allreduce_time_s(size, ranks, 1e9, 1e-6))


def test_wire_rate_checks_its_input():
    assert c.wire_rate_from_busbw(381.8e9, 32, 4) == pytest.approx(381.8e9 * 3 / 31)
    with pytest.raises(ValueError, match="n_ranks must be a multiple of n_nodes 3, not 8"):
        c.wire_rate_from_busbw(1e9, 8, 3)


# NCCL's model -----------------------------------------------------------------------------------------------------


def test_nccl_latencies_by_hand():
    # Ring, LL, 8 GPUs with NVLink: 3.6 + 14 * 0.47 us.
    assert c.nccl_allreduce_latency_s("ring", "LL", 8) == pytest.approx(10.18e-6)
    # Ring, Simple, 2 nodes of 8: 8.4 + 28 * 3.4 + 2 * 9.6; times 1.9 from 64 KiB on.
    assert c.nccl_allreduce_latency_s("ring", "Simple", 16, 2) == pytest.approx(122.8e-6)
    assert c.nccl_allreduce_latency_s("ring", "Simple", 16, 2, n_bytes=65536) == pytest.approx(1.9 * 122.8e-6)
    # Tree, LL128, 4 nodes of 8: 4.4 + 2 * (7 * 1.2 + 2 * 8.5).
    assert c.nccl_allreduce_latency_s("tree", "LL128", 32, 4) == pytest.approx(55.2e-6)
    # Between nodes LL's inner steps count 1.8 times.
    assert c.nccl_allreduce_latency_s("ring", "LL", 4, 2, "PCI") == pytest.approx(
        (3.6 + 4 * 1.8 + 2 * 2.7) * 1e-6
    )
    assert c.nccl_allreduce_latency_s("tree", "LL", 1) == 0


def test_nccl_prefers_the_tree_for_small_buffers_on_many_nodes():
    many = [c.nccl_allreduce_latency_s(kind, "LL", 2048, 256) for kind in ("ring", "tree")]
    assert many[1] < many[0] / 10
    with pytest.raises(ValueError, match="protocol must be one of 'LL', 'LL128', 'Simple', not 'RDMA'"):
        c.nccl_allreduce_latency_s("ring", "RDMA", 8)
