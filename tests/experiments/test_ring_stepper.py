"""The ring stepper plays the very ring of the models, and counts what it sends."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import ring_stepper
from shardlab.models.collectives import ring_allreduce_sent_bytes, simulate_ring_allreduce

RANKS = range(2, 17)


def run(**given: Any) -> dict[str, Any]:
    return engine.run("ring-stepper", given)


def sent(answer: dict[str, Any]) -> list[float]:
    stacks = answer["panels"][2]["stacks"]
    return [sum(parts) for parts in zip(*[stack["values"] for stack in stacks], strict=True)]


@pytest.mark.parametrize("ranks", RANKS)
def test_the_end_is_an_all_reduce(ranks: int) -> None:
    answer = run(ranks=ranks, step=2 * (ranks - 1))
    cells = answer["panels"][1]["texts"]
    assert cells == [[str(ranks)] * ranks] * ranks
    assert all(node["level"] == 1 for node in answer["panels"][0]["nodes"])
    # Chunks of a gigabyte differ by at most one number of four bytes.
    for value in sent(answer):
        assert value == pytest.approx(ring_allreduce_sent_bytes(1e9, ranks), abs=4 * 2 * ranks)
    assert sum(sent(answer)) == 2 * (ranks - 1) * 1e9


@pytest.mark.parametrize("ranks", RANKS)
def test_half_way_each_rank_holds_one_finished_chunk(ranks: int) -> None:
    cells = run(ranks=ranks, step=ranks - 1)["panels"][1]["texts"]
    for rank in range(ranks):
        assert [row[rank] for row in cells].count(str(ranks)) == 1


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_counts_are_what_a_ring_of_real_numbers_sums(ranks: int) -> None:
    """With ones as contributions, the sum a rank holds is the number of contributions in it."""
    for step in range(2 * (ranks - 1) + 1):
        held = ring_stepper._play(ranks, step)
        assert all(1 <= count <= ranks for row in held for count in row)
    simulation = simulate_ring_allreduce([[1.0] * ranks for _ in range(ranks)])
    assert [[int(value) for value in row] for row in simulation.results] == held


@pytest.mark.parametrize("ranks", [2, 4, 7, 16])
def test_every_step_sends_one_chunk_a_rank_to_its_neighbour(ranks: int) -> None:
    before = [0.0] * ranks
    for step in range(1, 2 * (ranks - 1) + 1):
        answer = run(ranks=ranks, step=step)
        arrows = answer["panels"][0]["arrows"]
        assert [(arrow["source"], arrow["target"]) for arrow in arrows] == [
            (rank, (rank + 1) % ranks) for rank in range(ranks)
        ]
        now = sent(answer)
        for grown in [after - earlier for after, earlier in zip(now, before, strict=True)]:
            assert grown == pytest.approx(1e9 / ranks, abs=4)
        before = now
        marks = answer["panels"][1]["marks"]
        assert len([mark for mark in marks if mark[2] == "to"]) == ranks


def test_uneven_chunks_are_counted_and_explained() -> None:
    answer = run(preset="uneven")
    simulation = simulate_ring_allreduce([list(range(10))] * 4)
    assert sent(answer) == simulation.sent_bytes
    assert len(set(sent(answer))) > 1
    assert "4 does not divide 10 numbers" in " ".join(answer["words"])
    assert answer["panels"][2]["limits"][0]["value"] == ring_allreduce_sent_bytes(40, 4)


def test_a_step_beyond_the_end_is_the_end() -> None:
    answer = run(ranks=3, step=30)
    assert answer["bounds"]["step"]["most"] == 4
    assert answer["values"]["step"] == 4
    assert answer["readouts"][0]["value"] == "4 of 4"


def test_the_words_follow_the_phases() -> None:
    assert "nothing is summed yet" in run(step=0)["words"][0]
    assert "added it (reduce-scatter) and now holds the sum of 2 of 4" in run(step=1)["words"][0]
    assert "the reduce-scatter is done" in run(step=3)["words"][0]
    assert "kept it as it is (all-gather)" in run(step=5)["words"][0]
    assert "The all-reduce is done" in run(step=6)["words"][1]
