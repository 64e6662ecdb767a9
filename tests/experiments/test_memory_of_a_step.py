"""The bars are the models' bytes, the papers' recipes come out, and the verdict holds at its edge."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.models.memory import recipe_named, selective_saving
from shardlab.transformer import parameters, preset

GB = 1e9


def run(**given: Any) -> dict[str, Any]:
    return engine.run("memory-of-a-step", given)


def kinds(answer: dict[str, Any]) -> list[float]:
    """Parameters, gradients, optimizer, activations of the first panel, bytes."""
    columns = [stack["values"] for stack in answer["panels"][0]["stacks"]]
    return [sum(parts) for parts in zip(*columns, strict=True)]


def totals(answer: dict[str, Any]) -> list[float]:
    parts = [stack["values"] for stack in answer["panels"][1]["stacks"] if stack["label"] != "free"]
    return [sum(column) for column in zip(*parts, strict=True)]


def readout(answer: dict[str, Any], label: str) -> str:
    return str(next(item["value"] for item in answer["readouts"] if item["label"] == label))


@pytest.mark.parametrize(
    ("recipe", "per_parameter"),
    [("mixed-adam-16", 16), ("megatron-18", 18), ("deepspeed-20", 20), ("bf16-adam-8", 8), ("frozen-2", 2)],
)
def test_states_are_the_recipes_bytes(recipe: str, per_parameter: float) -> None:
    """A public question: how can 6.7B parameters need 80.9, 107.8, 121.3 or 134.8 GB? By recipe."""
    weights, gradients, optimizer, _ = kinds(run(model="llama2-7b", recipe=recipe))
    assert weights + gradients + optimizer == pytest.approx(per_parameter * parameters(preset("llama2-7b")))
    assert weights == recipe_named(recipe).parameters * parameters(preset("llama2-7b"))


def test_gpt3s_activations_are_korthikantis() -> None:
    """s b h L (34 + 5 a s/h), one sequence of 2,048, with embedding mask and head; selective saves 70 % of a layer."""
    model = preset("gpt3-175b")
    s, h, layers, a, v = 2048, model.hidden, model.layers, model.heads, model.vocabulary
    extras = s * h + 4 * s * h * (1 + v / h)
    expected = s * h * layers * (34 + 5 * a * s / h) + extras
    assert kinds(run(model="gpt3-175b", sequence=s, flash=False))[3] == pytest.approx(expected)
    none, selective, _ = totals(run(model="gpt3-175b", sequence=s, flash=False))
    saved = (none - selective) / (s * h * layers * (34 + 5 * a * s / h))
    # The scores of one layer come back while it is recomputed.
    assert saved == pytest.approx(selective_saving(s, h, a) * (1 - 1 / layers))


def test_activations_grow_with_the_micro_batch_and_states_do_not() -> None:
    one, four = kinds(run(micro_batch=1)), kinds(run(micro_batch=4))
    assert four[:3] == one[:3]
    assert four[3] == pytest.approx(4 * one[3])


def test_the_largest_micro_batch_is_the_edge() -> None:
    most = int(readout(run(model="gpt2-xl", sequence=1024), "largest micro-batch"))
    assert most > 8
    for batch, opening in ((most, "It fits"), (most + 1, "It does not fit because of the activations")):
        assert run(model="gpt2-xl", sequence=1024, micro_batch=batch)["words"][0].startswith(opening)


def test_a_states_verdict_names_enough_gpus() -> None:
    answer = run(preset="gpt3")
    assert answer["words"][0].startswith("It does not fit, whatever the batch")
    # 16 bytes of 174.6 billion parameters over 180 GB.
    assert readout(answer, "GPUs for the states") == "16"


def test_lines_cross_no_text() -> None:
    for model in ("gpt2-xl", "llama2-7b", "llama3-405b"):
        for card in ("A100-40GB", "H200-141GB"):
            answer = run(model=model, card=card)
            panel = answer["panels"][1]
            most = panel["value"]["domain"][1]
            capacity = panel["limits"][0]["value"]
            for end in [max(total, capacity) for total in totals(answer)]:
                assert not [line for line in panel["limits"] if end < line["value"] < end + 0.22 * most]


def test_selective_recomputation_has_nothing_to_save_under_flash_attention() -> None:
    none, selective, full = totals(run(flash=True, recompute="selective"))
    assert none == selective > full
    assert "nothing to save" in run(flash=True, recompute="selective")["words"][1]
    assert "nothing to save" not in run(flash=False, recompute="selective")["words"][1]


def test_full_recomputation_is_not_told_to_recompute_more() -> None:
    for recompute, told in (("none", True), ("full", False)):
        answer = run(model="llama3-8b", sequence=131072, recompute=recompute, card="H200-141GB")
        assert "Not one sequence fits" in answer["words"][2]
        assert ("recompute more" in answer["words"][2]) is told
