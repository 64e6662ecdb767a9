"""Stragglers on the page: the models' expectations, a slow rank among jitter against draws, and the hidden answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import stragglers as lesson
from shardlab.models.stragglers import exponential_jitter_step, normal_jitter_step, rare_stall_step

NAME = "stragglers"


def run(**given: Any) -> dict[str, Any]:
    return engine.run(NAME, given)


def draw(source: random.Random, kind: str, spread: float, slower: float) -> float:
    if kind == "normal":
        time = source.gauss(1.0, spread)
    elif kind == "exponential":
        time = 1 + source.expovariate(1 / spread)
    else:
        time = 2.0 if source.random() < spread else 1.0
    return slower * time


@pytest.mark.parametrize("ranks", [2, 8, 1024])
def test_ranks_alike_are_the_models(ranks: int) -> None:
    assert lesson.expected_step("normal", 0.1, 1.0, ranks) == pytest.approx(
        normal_jitter_step(1.0, 0.1, ranks).expected_step_s
    )
    assert (
        lesson.expected_step("exponential", 0.1, 1.0, ranks)
        == exponential_jitter_step(1.0, 0.1, ranks).expected_step_s
    )
    assert (
        lesson.expected_step("stall", 0.1, 1.0, ranks)
        == rare_stall_step(1.0, 1.0, 0.1, ranks).expected_step_s
    )


@pytest.mark.parametrize("kind", ["normal", "exponential", "stall"])
@pytest.mark.parametrize("slower", [1.02, 1.2])
def test_a_slow_rank_among_jitter_is_the_mean_of_draws(kind: str, slower: float) -> None:
    source, steps, ranks, spread = random.Random(3), 20000, 6, 0.1
    total = 0.0
    for _ in range(steps):
        times = [draw(source, kind, spread, 1.0) for _ in range(ranks - 1)]
        total += max(*times, draw(source, kind, spread, slower))
    assert lesson.expected_step(kind, spread, slower, ranks) == pytest.approx(total / steps, rel=0.006)


@pytest.mark.parametrize("kind", ["normal", "exponential", "stall"])
def test_the_slow_ranks_integral_meets_the_formula(kind: str) -> None:
    """Hardly slower than the others, it must give what the models give without it."""
    for spread in (0.01, 0.3):
        for ranks in (2, 16384):
            near = lesson.expected_step(kind, spread, 1 + 1e-9, ranks)
            assert near == pytest.approx(lesson.expected_step(kind, spread, 1.0, ranks), rel=2e-3)


def test_the_answer_is_hidden_until_asked_for() -> None:
    hidden, shown = run(), run(show_answer=True)
    assert max(x for x, _ in hidden["panels"][0]["series"][0]["points"]) == 8
    assert max(x for x, _ in shown["panels"][0]["series"][0]["points"]) == 16384
    assert [one["value"] for one in hidden["readouts"]] == ["1.00×", "?"]
    assert [one["label"] for one in hidden["panels"][1]["series"]] == ["one rank"]
    assert "1.32×" in shown["words"][0]
    assert "1.32×" not in " ".join(hidden["words"])


def test_a_step_is_done_when_all_ranks_are() -> None:
    panel = run(show_answer=True, ranks=16, slower=1.1)["panels"][1]
    curves = {one["label"]: dict(map(tuple, one["points"])) for one in panel["series"]}
    for time, done in curves["the step"].items():
        assert done <= curves["one rank"][time]
        one = lesson.share_done("normal", 0.1, 1.0, time)
        assert done == pytest.approx(one**15 * lesson.share_done("normal", 0.1, 1.1, time))


def test_without_the_slow_rank() -> None:
    readouts = {one["label"]: one for one in run(preset="slow-host", show_answer=True)["readouts"]}
    assert readouts["the step"]["value"] == "1.10×"
    alike = normal_jitter_step(1.0, 0.01, 256).expected_step_s
    assert readouts["without the slow rank"]["value"] == f"{alike:.2f}×"


@pytest.mark.parametrize(("ranks", "slower"), [(2, 2.0), (4, 1.5)])
def test_the_slow_rank_does_not_wait(ranks: int, slower: float) -> None:
    """With next to no jitter the step is the slow rank's time, and only the others wait for the difference."""
    answer = run(show_answer=True, ranks=ranks, slower=slower, spread=0.01)
    waiting = next(one["value"] for one in answer["readouts"] if one["label"] == "waiting")
    expected = (ranks - 1) * (slower - 1) / (ranks * slower)
    assert float(waiting.split("\u00a0")[0]) == pytest.approx(100 * expected, abs=0.2)
    assert "faster" in answer["words"][2]


def test_among_much_jitter_one_slow_rank_is_hardly_felt() -> None:
    answer = run(show_answer=True, ranks=1024, slower=1.1)
    assert "hardly less" in answer["words"][2]
