"""Schedules that a reader builds: legal or not as the executor says, and the published ones among them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import build_a_schedule
from shardlab.models.pipeline import execute, schedule_operations, schedule_problems, simulate

WEIGHTS = ("whole", "at-once", "rank", "twice", "end")


def run(**given: Any) -> dict[str, Any]:
    return engine.run("build-a-schedule", given)


def read(answer: dict[str, Any], label: str) -> dict[str, Any]:
    return next(item for item in answer["readouts"] if item["label"] == label)


def orders(batches: int, firsts: Any, takes: str = "oldest", weights: str = "whole") -> list[list[str]]:
    return [
        build_a_schedule.rank_order(rank, batches, min(first, batches), takes, weights)
        for rank, first in enumerate(firsts)
    ]


@pytest.mark.parametrize("batches", [4, 8, 12])
@pytest.mark.parametrize(
    ("name", "firsts", "weights"),
    [
        ("gpipe", (12, 12, 12, 12), "whole"),
        ("1f1b", (4, 3, 2, 1), "whole"),
        ("zb-h1", (4, 3, 2, 1), "rank"),
        ("zb-h2", (7, 5, 3, 1), "twice"),
    ],
)
def test_published_schedules_can_be_built(name: str, firsts: Any, weights: str, batches: int) -> None:
    assert orders(batches, firsts, weights=weights) == schedule_operations(name, 4, batches)
    values = {f"first{rank}": first for rank, first in enumerate(firsts)}
    answer = run(micro_batches=batches, weights=weights, **values)
    known = simulate(name, 4, batches, 0.01, 0.01, 0.01)
    assert read(answer, "your schedule")["note"].lower().replace(" ", "") == name
    held = [span["label"] for span in answer["panels"][0]["spans"] if span["label"]]
    assert [int(text.split(",")[0]) for text in held] == list(known.in_flight_peak)
    assert answer["panels"][1]["rows"][0][3] == str(int(known.in_flight_peak[0]))
    assert answer["panels"][0]["limits"][0]["value"] == pytest.approx(known.makespan_s)


def test_it_deadlocks_exactly_when_a_rank_is_more_eager_than_the_one_before() -> None:
    for firsts in itertools.product((1, 2, 4), repeat=4):
        legal = all(before >= after for before, after in itertools.pairwise(firsts))
        assert (schedule_problems(orders(4, firsts)) == []) == legal, firsts


def test_a_deadlock_is_shown_as_far_as_it_came() -> None:
    answer = run(preset="deadlock")
    assert read(answer, "your schedule")["value"] == "deadlock"
    assert "waits for the B0 that rank 1 lists only after its F3" in answer["words"][0]
    assert answer["panels"][0]["limits"][0]["label"] == "deadlock"
    assert [span for span in answer["panels"][0]["spans"] if span["role"] == "compute"]
    assert answer["panels"][1]["rows"][0] == ["▸ yours", "–", "–", "–"]


@pytest.mark.parametrize("takes", ["oldest", "newest"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_list_is_complete_and_its_memory_is_the_executors(takes: str, weights: str) -> None:
    for batches in (4, 10):
        built = orders(batches, (6, 5, 2, 1), takes, weights)
        for order in built:
            assert len(order) == len(set(order)) == (2 if weights == "whole" else 3) * batches
        if not schedule_problems(built):
            run = execute(built, (0.01, 0.01, 0.01))
            peaks = [build_a_schedule._peak(order) for order in run.timeline.orders]
            assert peaks == list(run.in_flight_peak)


def test_the_question_has_an_answer() -> None:
    answer = run(weights="at-once")
    assert "no rank holds more than under 1F1B" in answer["words"][2]
    assert read(answer, "step")["value"] == "300\u00a0ms"
    answer = run(weights="rank")
    assert "no rank holds more than 1F1B's first" in answer["words"][2]
    assert read(answer, "step")["value"] == "270\u00a0ms"
    answer = run(first0=7, first1=5, weights="twice")
    assert "bubble was bought with memory" in answer["words"][2]
    # With whole backwards nobody beats it: every legal count, and a larger one costs memory only.
    for firsts in itertools.combinations_with_replacement((8, 4, 3, 2, 1), 4):
        assert execute(orders(8, firsts), (0.01, 0.01, 0.01)).makespan_s >= 0.33 - 1e-9


def test_the_budget_is_judged() -> None:
    assert read(run(preset="gpipe"), "your schedule")["value"] == "over budget"
    assert "ranks 0, 1, 2, 3 would run out of memory with 4" in run(preset="gpipe")["words"][1]
    assert read(run(preset="gpipe", budget=8), "your schedule")["value"] == "runs"
    short = run(budget=3)
    assert "rank 0 would run out" in short["words"][1]
    texts = [(span["label"], span["text_role"]) for span in short["panels"][0]["spans"] if span["label"]]
    assert texts[:2] == [("4, too many", "bad-text"), ("3", "memory-text")]


def test_more_forwards_than_micro_batches_are_all_of_them() -> None:
    assert run(micro_batches=4, first0=12)["values"]["first0"] == 4
