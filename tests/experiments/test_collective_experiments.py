"""The three experiments of chapter 02: winners are the models', bandwidths are the public cases', rounds end complete."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import collective_stepper
from shardlab.experiments.gallery.collective_crossover import Links, Way, ways, winners
from shardlab.models import collectives as c

CROSSOVER, CALCULATOR, STEPPER = "collective-crossover", "busbw-calculator", "collective-stepper"


def run(name: str, **given: Any) -> dict[str, Any]:
    return engine.run(name, given)


def readouts(answer: dict[str, Any]) -> dict[str, str]:
    return {item["label"]: item["value"].replace("\u00a0", " ") for item in answer["readouts"]}


# Which algorithm wins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", c.COLLECTIVES)
@pytest.mark.parametrize("nodes", [2, 6, 64, 512])
def test_on_equal_links_times_and_winners_are_the_models(collective: str, nodes: int) -> None:
    bandwidth, latency = 25e9, 10e-6
    candidates = ways(collective, Links(1, nodes, bandwidth, 450e9, latency), in_network=False)
    for way in candidates:
        name = {"Rabenseifner": "rabenseifner", "Bruck": "bruck"}.get(way.name, way.name)
        for size in (1e3, 1e9):
            model = c.collective_time_s(collective, name, size, nodes, bandwidth, latency)
            # NCCL's tree works between nodes, where the model's N are nodes.
            assert way.time_s(size) == pytest.approx(model)
    expected = c.crossovers(collective, nodes, bandwidth, latency)
    found = winners(candidates)
    assert [size for size, _ in found] == pytest.approx([size for size, _ in expected])
    for (_, way), (_, name) in zip(found, expected, strict=True):
        assert way.name.lower() == name.lower()


def test_a_slower_way_never_wins_and_a_faster_one_does() -> None:
    base = [Way("few rounds", 1.0, 2.0), Way("few bytes", 3.0, 1.0)]
    assert [(size, way.name) for size, way in winners(base)] == [(0.0, "few rounds"), (2.0, "few bytes")]
    assert len(winners([*base, Way("worse", 4.0, 3.0)])) == 2
    assert [way.name for _, way in winners([*base, Way("better", 0.5, 0.5)])] == ["better"]


def test_one_node_uses_its_own_links_only() -> None:
    slow, fast = (run(CROSSOVER, per_node=8, nodes=1, bandwidth=rate) for rate in (1e9, 1e12))
    assert slow["panels"] == fast["panels"]
    assert slow["bounds"]["bandwidth"] == {"enabled": False}
    ring = next(
        way for way in ways("all-reduce", Links(8, 1, 1e9, 300e9, 9.6e-6), False) if way.name == "ring"
    )
    assert ring.time_s(1e9) == pytest.approx(c.ring_allreduce_time_s(1e9, 8, 300e9, 3.4e-6))


def test_a_ring_over_nodes_crosses_the_network_once_a_node() -> None:
    links = Links(8, 64, 50e9, 450e9, 9.6e-6)
    ring = next(way for way in ways("all-reduce", links, False) if way.name == "ring")
    # 2 (k-1) hops between nodes, the rest of the 2 (N-1) inside, and all eight ports at once.
    assert ring.start_s == pytest.approx(126 * 9.6e-6 + (1022 - 126) * 3.4e-6)
    assert ring.s_per_byte == pytest.approx(2 * 511 / 512 / 400e9)
    names = [way.name for way in ways("all-reduce", links, False)]
    assert "hierarchical" in names
    assert "hierarchical" not in [
        way.name for way in ways("all-reduce", Links(8, 1, 50e9, 450e9, 1e-6), False)
    ]


def test_the_hierarchical_way_is_the_models() -> None:
    links = Links(8, 64, 50e9, 450e9, 9.6e-6)
    way = next(way for way in ways("all-reduce", links, False) if way.name == "hierarchical")
    plan = c.hierarchical_allreduce(1e8, 8, 64, 450e9, 50e9, 8, 3.4e-6, 9.6e-6, "rabenseifner")
    assert way.time_s(1e8) == pytest.approx(plan.time_bracket_s[1])


@pytest.mark.parametrize("nodes", [1, 64])
def test_switches_add_only_where_they_are_switched_on(nodes: int) -> None:
    links = Links(8, nodes, 50e9, 450e9, 9.6e-6)
    assert "switch" in [way.name for way in ways("all-reduce", links, True)]
    assert "switch" not in [way.name for way in ways("all-reduce", links, False)]


def test_the_picture_marks_the_winner_and_the_changes() -> None:
    answer = run(CROSSOVER, n_bytes=1e6, per_node=1, nodes=64, bandwidth=25e9, latency_s=10e-6)
    panel = answer["panels"][0]
    strong = [series["label"] for series in panel["series"] if series["weight"] == "strong"]
    assert strong == ["Rabenseifner"] == [readouts(answer)["fastest"]]
    rings = [mark["x"] for mark in panel["marks"] if mark["shape"] == "ring"]
    assert rings == pytest.approx([c.crossovers("all-reduce", 64, 25e9, 10e-6)[1][0]])
    assert "from 372.1\u00a0kB on Rabenseifner wins" in answer["words"][1]
    # Bars: the fastest first, latency and bytes add up to what the text says.
    bars = answer["panels"][1]
    sums = [sum(pair) for pair in zip(*[stack["values"] for stack in bars["stacks"]], strict=True)]
    assert sums == sorted(sums)
    assert sums[0] == pytest.approx(198.75e-6)


def test_one_rank_has_nobody_to_agree_with() -> None:
    assert "nobody" in run(CROSSOVER, per_node=1, nodes=1)["words"][0]


# Bus bandwidth -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "algbw", "busbw", "share", "verdict"),
    [
        ("a100-node", "131.9 GB/s", "230.8 GB/s", "76.9 %", "a transport that works"),
        ("two-boxes", "30.49 GB/s", "57.17 GB/s", "114.3 %", "Judge the wire from three nodes on"),
        ("four-boxes", "15.28 GB/s", "29.61 GB/s", "59.2 %", "a transport that works"),
        ("gloo-core", "1.159 GB/s", "1.159 GB/s", "23.2 %", "bound by the CPU and TCP"),
        ("h200-switch", "264.9 GB/s", "463.6 GB/s", "103.0 %", "Reduction inside the switch"),
    ],
)
def test_presets_are_the_public_figures(
    preset: str, algbw: str, busbw: str, share: str, verdict: str
) -> None:
    answer = run(CALCULATOR, preset=preset)
    read = readouts(answer)
    assert (read["algbw"], read["busbw"], read["of the link"]) == (algbw, busbw, share)
    assert verdict in answer["words"][0]


@pytest.mark.parametrize(
    ("collective", "busbw"),
    [("all-reduce", 175.0), ("all-gather", 87.5), ("reduce-scatter", 87.5), ("broadcast", 100.0)],
)
def test_every_collective_has_its_factor(collective: str, busbw: float) -> None:
    answer = run(CALCULATOR, collective=collective, n_bytes=1e9, ranks=8, time_s=10e-3)
    assert answer["panels"][0]["stacks"][0]["values"] == pytest.approx([100e9, busbw * 1e9])


def test_one_ranks_part_is_n_times_as_much_in_all() -> None:
    setting = {"collective": "all-gather", "ranks": 8, "time_s": 1e-3}
    part = run(CALCULATOR, n_bytes=1e8, size_is="part", **setting)
    whole = run(CALCULATOR, n_bytes=8e8, size_is="whole", **setting)
    assert part["panels"] == whole["panels"]
    # An all-reduce has no parts: the control does nothing and says so.
    same = [run(CALCULATOR, collective="all-reduce", n_bytes=1e8, size_is=kind) for kind in ("part", "whole")]
    assert same[0]["panels"] == same[1]["panels"]
    assert same[0]["bounds"]["size_is"] == {"enabled": False}


def test_a_perfect_link_prints_a_flat_busbw() -> None:
    panel = run(CALCULATOR, collective="all-reduce", ranks=64, link=50e9)["panels"][1]
    perfect = {series["label"]: dict(map(tuple, series["points"])) for series in panel["series"]}
    for ranks, algbw in perfect["its algbw"].items():
        time = c.ring_allreduce_time_s(1e9, ranks, 50e9)
        assert algbw == pytest.approx(c.algbw(1e9, time))
        assert c.busbw("all-reduce", 1e9, time, ranks) == pytest.approx(50e9)
    assert set(perfect["busbw"].values()) == {50e9}


# Round by round ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [way for way, _ in collective_stepper._WAYS])
@pytest.mark.parametrize("ranks", [2, 6, 8, 13, 16])
def test_every_collective_ends_complete_and_sends_what_the_simulation_counts(way: str, ranks: int) -> None:
    answer = run(STEPPER, way=way, ranks=ranks, step=collective_stepper.MOST_ROUNDS)
    read = readouts(answer)
    done, of = read["complete"].split(" of ")
    assert done == of
    collective, name = way.split(" / ")
    n = 1 << (ranks.bit_length() - 1) if "halving" in way else ranks
    rounds = len(c.algorithm(collective, name).schedule(n).rounds)
    assert read["round"] == f"{rounds} of {rounds}"
    assert answer["bounds"]["step"]["most"] == rounds <= collective_stepper.MOST_ROUNDS
    if ranks == 13:
        return  # 240 numbers can't be cut into 13 equal chunks
    # An all-gather's input is a rank's own part.
    length = 240 // n if collective == "all-gather" else 240
    sent = c.simulate(collective, name, [[1.0] * length for _ in range(n)], 1).sent_bytes
    assert answer["panels"][2]["stacks"][0]["values"] == pytest.approx([one / 240 for one in sent])


def test_before_the_first_round_nothing_is_sent() -> None:
    answer = run(STEPPER, way="all-reduce / rabenseifner", step=0)
    assert answer["panels"][0]["arrows"] == []
    assert readouts(answer)["complete"] == "0 of 8"
    assert set(answer["panels"][2]["stacks"][0]["values"]) == {0.0}


def test_a_round_shows_its_messages() -> None:
    answer = run(STEPPER, way="all-reduce / recursive doubling", ranks=8, step=2)
    arrows = {(arrow["source"], arrow["target"]) for arrow in answer["panels"][0]["arrows"]}
    assert arrows == {(rank, rank ^ 2) for rank in range(8)}
    assert {text for row in answer["panels"][1]["texts"] for text in row} == {"4"}


def test_arrows_that_all_carry_the_same_have_it_in_the_title() -> None:
    graph = run(STEPPER, way="all-reduce / rabenseifner", ranks=8, step=3)["panels"][0]
    assert graph["title"] == "Who sends to whom (1/8 P each)"
    assert {arrow["label"] for arrow in graph["arrows"]} == {""}
    graph = run(STEPPER, way="all-to-all / bruck", ranks=6, step=0)["panels"][0]
    assert graph["title"] == "Who sends to whom"


def test_an_all_to_all_spreads_every_ranks_chunks() -> None:
    before, after = (
        run(STEPPER, way="all-to-all / bruck", ranks=5, step=step)["panels"][1] for step in (0, 9)
    )
    assert [before["texts"][rank][rank] for rank in range(5)] == ["5"] * 5
    assert {text for row in after["texts"] for text in row} == {"1"}


def test_what_is_no_power_of_two_is_said() -> None:
    assert "so 8 are shown" in " ".join(
        run(STEPPER, way="reduce-scatter / recursive halving", ranks=13)["words"]
    )
    assert "hand their buffer to a neighbour first" in " ".join(
        run(STEPPER, way="all-reduce / rabenseifner", ranks=6)["words"]
    )
