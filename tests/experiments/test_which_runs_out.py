"""The three numbers of GPUs are those of the formulas, and the published runs land where they did."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.models.scaling import data_parallel
from shardlab.transformer import parameters, preset

DAY = 86_400.0


def run(**given: Any) -> dict[str, Any]:
    return engine.run("which-runs-out", given)


def readout(answer: dict[str, Any], label: str) -> str:
    return str(next(item["value"] for item in answer["readouts"] if item["label"] == label))


def curve(answer: dict[str, Any]) -> dict[float, float]:
    """GPUs to days, nothing overlapped."""
    return dict(answer["panels"][0]["series"][1]["points"])


def test_the_curve_is_strong_scaling_of_the_whole_batch() -> None:
    params = parameters(preset("llama2-7b"))
    compute = 6 * params * 4e6 / (0.4 * 312e12)
    for gpus, days in curve(run()).items():
        step = data_parallel(int(gpus), compute, 2 * params, 25e9, 0.0, scaling="strong")
        assert days == pytest.approx(500_000 * step.step_time_s / DAY)


def test_one_gpu_takes_two_decades_for_llama_2() -> None:
    """The paper spent 184,320 GPU hours, 21.0 years: 0.4 of the peak is close."""
    assert readout(run(), "one GPU") == "20.5\u00a0years"
    assert pytest.approx(184_320 / 24 / 365.25, rel=0.03) == 20.5


def test_the_deadlines_gpus_are_the_edge() -> None:
    needed = int(readout(run(), "the deadline asks for"))
    for gpus, verdict in ((needed, "in time whatever overlaps"), (needed - 1, "in time if enough overlaps")):
        assert verdict in run(guess=gpus)["words"][1]


def test_at_the_balance_compute_and_all_reduce_are_equal() -> None:
    """N = 1 + 3 T B / (2 F): no model in it."""
    for model in ("gpt2-xl", "llama2-7b", "gpt3-175b"):
        answer = run(model=model, guess=1203)
        assert readout(answer, "the network balances at") == "1203"
        compute = answer["panels"][1]["stacks"][0]["values"][0]
        sent = answer["panels"][1]["stacks"][1]["values"][1]
        assert compute == pytest.approx(sent, rel=1e-3)
    assert pytest.approx(1 + 1.5 * 4e6 * 25e9 / (0.4 * 312e12), abs=0.5) == 1203


def test_every_resource_can_run_out() -> None:
    openings = {
        "llama2-7b": "Time runs out first: the deadline asks for",
        "gpt3-1024": "Time runs out first, and then bandwidth",
        "llama3-405b": "Bandwidth runs out",
        "office": "Bandwidth runs out",
    }
    for name, opening in openings.items():
        assert run(preset=name, reveal=True)["words"][0].startswith(opening)
        assert run(preset=name)["words"][0].startswith("Predict first")
    memory = run(model="gpt3-175b", trillions=0.001, bandwidth=450e9, days=365)
    assert memory["words"][0].startswith("Memory runs out first: the states ask for 35 GPUs")
    nothing = run(model="gpt2-xl", trillions=0.001, days=365)
    assert nothing["words"][0].startswith("Nothing runs out")


def test_hidden_answers_stay_hidden() -> None:
    shown, hidden = run(preset="gpt3-1024", reveal=True), run(preset="gpt3-1024")
    assert {item["value"] for item in hidden["readouts"]} == {"?"}
    panel = hidden["panels"][0]
    assert [[y for _, y in series["points"]] for series in panel["series"]] == [[34.0, 34.0]]
    assert [(mark["x"], mark["y"]) for mark in panel["marks"]] == [(1024, 34.0)]
    assert panel["bands"] == []
    assert hidden["panels"][1]["texts"] == ["?", "?"]
    numbers = [item["value"] for item in shown["readouts"]]
    assert not [number for number in numbers if number in " ".join(hidden["words"])]
