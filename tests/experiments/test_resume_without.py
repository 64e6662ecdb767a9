"""Resume without: the little training is deterministic, and each part that is left out shows where it should."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import resume_without as lesson
from shardlab.models.batch import resume_coverage

NAME = "resume-without"
WHOLE = dict.fromkeys(lesson.PARTS, True)


def run(**given: Any) -> dict[str, Any]:
    return engine.run(NAME, {**WHOLE, **given})


def curve(answer: dict[str, Any], panel: int, label: str) -> list[float]:
    series = answer["panels"][panel]["series"]
    return [point[1] for one in series if one["label"] == label for point in one["points"]]


def test_with_everything_the_resumed_run_is_the_uninterrupted_one() -> None:
    for step in (4, 24, 40):
        answer = run(resume_step=step)
        for panel in (0, 1):
            assert curve(answer, panel, "resumed") == curve(answer, panel, "uninterrupted")[step:]
        assert set(curve(answer, 2, "resumed")) == {0.0}
        assert "bit by bit" in answer["words"][0]


def test_a_run_in_two_parts_is_a_run_in_one() -> None:
    once = lesson.train(lesson.fresh_state(), lesson.STEPS, 0.1, 0.2)
    first = lesson.train(lesson.fresh_state(), 17, 0.1, 0.2)
    second = lesson.train(first.state, lesson.STEPS - 17, 0.1, 0.2)
    assert first.losses + second.losses == once.losses
    assert second.weights[-1] == once.weights[-1]


@pytest.mark.parametrize("part", ["optimizer", "scheduler"])
def test_a_silent_omission_shows_in_the_parameters_only(part: str) -> None:
    answer = run(**{part: False})
    resumed, whole = curve(answer, 0, "resumed"), curve(answer, 0, "uninterrupted")[24:]
    assert resumed[0] == whole[0]
    assert resumed[1:] != whole[1:]
    assert min(curve(answer, 2, "resumed")[1:]) > 0
    assert "Nothing warns you" in answer["words"][1]


@pytest.mark.parametrize("part", ["random", "position"])
def test_an_omission_that_shows_in_the_first_loss(part: str) -> None:
    answer = run(**{part: False})
    assert curve(answer, 0, "resumed")[0] != curve(answer, 0, "uninterrupted")[24]
    assert "off by" in answer["words"][1]


def test_the_random_state_matters_only_where_something_draws() -> None:
    assert set(curve(run(random=False, dropout=0.0), 2, "resumed")) == {0.0}
    assert max(curve(run(random=False, dropout=0.1), 2, "resumed")) > 0.01


def test_without_moments_the_first_step_is_the_whole_learning_rate() -> None:
    before = lesson.train(lesson.fresh_state(), 24, 0.1, 0.0)
    state = {**before.state, "optimizer": lesson.fresh_state()["optimizer"]}
    after = lesson.train(state, 1, 0.1, 0.0).weights[0]
    rate = lesson.learning_rate(24, 0.1)
    moves = [abs(new - old) for new, old in zip(after, before.state["weights"], strict=True)]
    assert moves == pytest.approx([rate] * lesson.WEIGHTS, rel=1e-4)


def test_the_loss_on_new_data_is_the_expectation() -> None:
    """Against samples drawn anew from the same distribution."""
    weights = lesson.train(lesson.fresh_state(), 20, 0.1, 0.0).weights[-1]
    teacher, generator, count = lesson._data()[0], lesson.Lehmer(99), 6000
    total = 0.0
    for _ in range(count):
        error = 2 * generator.uniform() - 1
        for weight, wanted in zip(weights, teacher, strict=True):
            error += (wanted - weight) * (2 * generator.uniform() - 1)
        total += error * error
    assert total / count == pytest.approx(lesson.new_data_loss(weights), rel=5 / math.sqrt(count))


@pytest.mark.parametrize("step", [4, 24, 40])
def test_the_batches_never_read_are_counted(step: int) -> None:
    never = resume_coverage(lesson.STEPS, step, lesson.STEPS, position_saved=False).never_read
    assert f"{never} of 48 batches are never read" in " ".join(run(position=False, resume_step=step)["words"])


def test_readouts_say_what_it_should_be() -> None:
    readouts = {one["label"]: one for one in run(scheduler=False, peak_lr=0.2)["readouts"]}
    assert (readouts["learning rate"]["value"], readouts["learning rate"]["note"]) == (
        "0.0500",
        "should be 0.100",
    )
