"""The report says of public cases what was found there, and its sentences turn where the numbers turn."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine

NAME = "scaling-report"


def preset(name: str, **changed: Any) -> dict[str, Any]:
    found = next(item for item in engine.load(NAME).presets if item.name == name)
    return engine.run(NAME, {**found.values, **changed})


def readout(answer: dict[str, Any], label: str) -> str:
    return str(next(item["value"] for item in answer["readouts"] if item["label"] == label))


def delivered(answer: dict[str, Any]) -> list[float]:
    """Bandwidth by the all-reduce alone, by the step with everything hidden, and with nothing hidden."""
    return list(answer["panels"][0]["stacks"][0]["values"])


def test_two_numbers_without_the_batch_mean_two_things() -> None:
    assert readout(preset("two-t4"), "efficiency") == "83.6\u00a0% or 41.8\u00a0%"
    assert readout(preset("two-t4", scaling="strong"), "efficiency") == "41.8\u00a0%"
    assert readout(preset("two-t4", scaling="weak"), "efficiency") == "83.6\u00a0%"
    assert delivered(preset("two-t4"))[0] == pytest.approx(16e6 / 11.24e-3)


def test_vgg_reaches_a_tenth_of_its_link() -> None:
    """2 * 15/16 * 553.4 MB over 0.936 s, and over what two nodes take longer: 8.9 to 10.8 Gb/s."""
    answer = preset("vgg")
    _, hidden, exposed = delivered(answer)
    assert hidden * 8e-9 == pytest.approx(8.9, rel=0.01)
    assert exposed * 8e-9 == pytest.approx(10.8, rel=0.01)
    assert readout(answer, "of the link") == "8.9\u00a0% to 10.8\u00a0%"


def test_a_gigabit_link_explains_its_step_and_forty_do_not() -> None:
    slow, fast = preset("gigabit"), preset("bert")
    assert slow["words"][0].startswith("Network-bound")
    assert delivered(slow)[2] == pytest.approx(153.3e6 / (9 * 32 / 171), rel=0.01)
    assert not fast["words"][0].startswith("Network-bound")
    assert delivered(fast)[2] == pytest.approx(0.22e9, rel=0.01)


@pytest.mark.parametrize(
    ("step_s", "sentence"), [(0.149, "inside"), (0.4, "are neither"), (0.08, "do not belong together")]
)
def test_the_step_is_held_against_its_bracket(step_s: float, sentence: str) -> None:
    answer = engine.run(NAME, {"base_step_s": 0.1, "all_reduce_s": 0.05, "step_s": step_s})
    assert [text for text in answer["words"] if sentence in text]


def test_more_ranks_are_predicted_on_the_measured_link() -> None:
    """Weak: C / (C + T) and C / max(C, T), with T = 2 (N-1)/N P / B and no model in it."""
    given = {"ranks": 8, "base_step_s": 0.1, "all_reduce_s": 0.05, "gradient_bytes": 1e9}
    curve = {n: (slow, fast) for n, slow, fast in engine.run(NAME, given)["panels"][1]["bands"][0]["points"]}
    bandwidth = 1.75e9 / 0.05
    for ranks in (2, 8, 512):
        sent_s = 2 * (ranks - 1) / ranks * 1e9 / bandwidth
        assert curve[ranks] == pytest.approx((0.1 / (0.1 + sent_s), 0.1 / max(0.1, sent_s)))


def test_more_base_ranks_than_ranks_is_taken_as_one_less() -> None:
    assert engine.run(NAME, {"ranks": 4, "base_ranks": 32}) == engine.run(NAME, {"ranks": 4, "base_ranks": 3})
