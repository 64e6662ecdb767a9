"""The experiment shows the papers' seconds, the planner's predictions, and keeps the answer until it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery.published_runs import PAPERS, steps_of
from shardlab.models.plan import predict_published


def run(**given: Any) -> dict[str, Any]:
    return engine.run("published-runs", given)


def bar(answer: dict[str, Any], index: int) -> float:
    """Length of one bar of the first panel, seconds."""
    return sum(stack["values"][index] for stack in answer["panels"][0]["stacks"])


def readout(answer: dict[str, Any], label: str) -> str:
    return str(next(item["value"] for item in answer["readouts"] if item["label"] == label))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_is_the_papers_and_the_planners(paper: str) -> None:
    for place, step in enumerate(steps_of(paper)):
        answer = run(paper=paper, row=place + 1)
        assert bar(answer, 1) == step.step_s
        assert bar(answer, 2) == pytest.approx(predict_published(step).step_time_s, rel=1e-12)
        causes = [
            sum(column) for column in zip(*(s["values"] for s in answer["panels"][1]["stacks"]), strict=True)
        ]
        assert sum(causes) == pytest.approx(bar(answer, 2))
        assert step.source in " ".join(answer["words"])


def test_printed_seconds_and_shares() -> None:
    """Korthikanti, Table 5: 1T with selective recomputation, 71.49 s and 56.3 % MFU; MT-NLG 60.1 s."""
    answer = run(preset="trillion")
    assert bar(answer, 1) == 71.49
    assert readout(answer, "measured MFU") == "56.3\u00a0%"
    assert bar(run(preset="miss"), 1) == 60.1
    # SC21, Table 1: 148 TFLOP/s with recomputation, of which three quarters or so are the model's.
    assert readout(run(preset="gpt3-scale"), "measured MFU") == "35.6\u00a0%"


def test_a_guess_is_a_step_time() -> None:
    measured = run(preset="megascale")
    share = float(readout(measured, "measured MFU").split("\u00a0")[0]) / 100
    assert bar(run(preset="megascale", guess=share), 0) == pytest.approx(8.57, rel=2e-3)
    close, far = run(preset="miss", guess=0.3), run(preset="miss", guess=0.7)
    assert "Your guess is closer" in close["words"][0]
    assert "The model is closer" in far["words"][0]


def test_a_row_beyond_the_table_is_the_last_row() -> None:
    answer = run(paper="llama3", row=9)
    assert answer["values"]["row"] == 2 == answer["bounds"]["row"]["most"]
    assert bar(answer, 1) == bar(run(paper="llama3", row=2), 1)


@pytest.mark.parametrize("change", ["matmul rate", "memory bandwidth", "link in the node", "network"])
def test_twice_a_resource_is_shorter_and_leaves_the_measurement(change: str) -> None:
    before, after = run(preset="gpt3-scale"), run(preset="gpt3-scale", change=change)
    assert bar(after, 2) < bar(before, 2)
    assert bar(after, 1) == bar(before, 1)
    assert after["words"][0] == before["words"][0]
    assert "shorter" in after["words"][1]


def test_misses_are_named() -> None:
    for paper in ("mt-nlg", "zero3"):
        assert "A known miss" in " ".join(run(paper=paper, row=1)["words"])
    assert "A known miss" not in " ".join(run(paper="sc21", row=1)["words"])


def test_the_answer_stays_hidden() -> None:
    shown, hidden = run(preset="trillion"), run(preset="trillion", reveal=False)
    assert bar(hidden, 1) == 0
    assert set(hidden["panels"][1]["texts"]) == {"?"}
    assert hidden["panels"][0]["texts"][1:] == ["?", "?"]
    text = str(hidden)
    for secret in ("71.5", readout(shown, "error"), readout(shown, "predicted MFU")):
        assert secret not in text


def test_seconds_stand_on_the_axis_as_they_do_beside_the_bars() -> None:
    answer = run(paper="sc21", row=10)
    assert [panel["value"]["label"] for panel in answer["panels"]] == ["time (s)", "time (s)"]


def test_the_miss_costs_a_fifth_more_gpu_time_than_sc21_needs() -> None:
    def gpu_seconds(step: Any) -> float:
        return float(step.cluster.gpus * step.step_s / step.global_batch)

    sc21 = [step for step in steps_of("sc21") + steps_of("sc21-strong") if "mt-nlg" in step.label]
    least = min(gpu_seconds(step) for step in steps_of("mt-nlg"))
    assert {(step.tensor, step.pipeline) for step in sc21 + list(steps_of("mt-nlg"))} == {(8, 35)}
    assert all(gpu_seconds(step) < 0.8 * least for step in sc21)
    assert "at least a fifth less GPU time" in run(preset="miss")["words"][2]
