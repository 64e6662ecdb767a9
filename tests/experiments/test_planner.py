"""The experiment's ranking is the library's search over the same layouts, and its words are true of the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import planner
from shardlab.hardware import cluster
from shardlab.models.plan import layout, predict, search
from shardlab.transformer import preset


def run(**given: Any) -> dict[str, Any]:
    return engine.run("planner", given)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_the_winner_is_the_searchs() -> None:
    found = search(
        preset("llama3-70b"),
        cluster("dgx-h100", 64),
        256,
        8192,
        planner.SOFTWARE,
        tensor=planner.TENSORS,
        pipeline=planner.PIPELINES,
        zero_stages=(1, 3),
        micro_batches=(1, 2, 4),
        recomputations=("none", "full"),
        schedules=("1f1b",),
        sequence_parallel=(True,),
        memory_fraction=planner.USABLE,
    )
    answer = run()
    best = found.best.layout
    assert answer["panels"][0]["categories"][0] == f"DP{best.data} TP{best.tensor} PP{best.pipeline}"
    assert answer["readouts"][0]["value"] == f"{found.fitting} of {found.tried}"
    total = sum(stack["values"][0] for stack in answer["panels"][0]["stacks"])
    assert total == pytest.approx(found.best.step_time_s)


def test_the_search_stays_small() -> None:
    for name in ("llama3-70b", "gpt-18b", "gpt3", "small"):
        tried = run(preset=name)["readouts"][0]["value"].split(" of ")[1]
        assert 50 < int(tried) < 2000


def test_bars_rise_and_the_guess_is_there() -> None:
    answer = run(preset="gpt-18b")
    sums = [
        sum(values)
        for values in zip(*[stack["values"] for stack in answer["panels"][0]["stacks"]], strict=True)
    ]
    assert sums == sorted(sums)
    assert answer["panels"][0]["categories"][-1] == "DP32 TP8 PP1"
    assert answer["panels"][1]["strong_rows"] == [len(sums) - 1]
    guess = predict(
        preset("sc21-18.4b"),
        cluster("dgx-a100", 256),
        layout(data=32, tensor=8, zero_stage=1, micro_batch=4),
        1024,
        2048,
        planner.SOFTWARE,
    )
    assert sums[-1] == pytest.approx(guess.step_time_s)


def test_a_guess_without_the_answer_shows_only_itself() -> None:
    answer = run(answer=False)
    assert answer["panels"][0]["categories"] == ["DP4 TP8 PP2"]
    assert not any("Fastest" in sentence for sentence in answer["words"])
    assert [item["label"] for item in answer["readouts"]] == ["layouts that fit", "your guess"]


def test_reasons_for_what_does_not_run() -> None:
    assert "needs a multiple of 128 GPUs, and there are 8" in run(gpus=8, tensor=8, pipeline=16)["words"][1]
    assert "at its leanest it needs" in run(model="gpt3-175b", gpus=64, tensor=1, pipeline=2)["words"][1]
    assert "data x micro_batch must divide" in run(batch=100, tensor=1, pipeline=1)["words"][1]
    words = plain(run(model="gpt3-175b", gpus=8)["words"][0])
    assert words.startswith("No layout fits: the leanest needs")
    assert "of the 73.6 GB" in words


def test_a_doubtful_winner_is_called_so() -> None:
    assert "Doubt it" in run(preset="gpt-18b")["words"][0]
    assert "Doubt it" not in run()["words"][0]


def test_what_adds_most_to_a_guess_may_be_more_than_it_is_slower_by() -> None:
    answer = run()
    best, guess = (sum(stack["values"][at] for stack in answer["panels"][0]["stacks"]) for at in (0, -1))
    words = plain(answer["words"][1])
    assert words.endswith(f"{100 * (guess / best - 1):.1f} % slower; tensor traffic adds most, 3.786 s.")
    assert guess - best < 3.786
