"""The stage chooser shows the models' bytes, the papers' figures, and a verdict that holds."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.models.communication import data_traffic
from shardlab.models.memory import model_states

GB = 1e9
# Rajbhandari et al., ZeRO (arXiv 1910.02054), Table 1, 7.5B: ranks to GB of stages 1, 2, 3.
TABLE_1 = {4: (52.5, 41.3, 30), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88), 1024: (30.1, 15.1, 0.12)}


def run(**given: Any) -> dict[str, Any]:
    return engine.run("zero-stage-chooser", given)


def stacks(answer: dict[str, Any], panel: int) -> dict[str, list[float]]:
    return {stack["label"]: stack["values"] for stack in answer["panels"][panel]["stacks"]}


def held(answer: dict[str, Any]) -> list[float]:
    parts = [values for label, values in stacks(answer, 0).items() if label != "free"]
    return [sum(column) for column in zip(*parts, strict=True)]


def readout(answer: dict[str, Any], label: str) -> str:
    return next(item["value"] for item in answer["readouts"] if item["label"] == label)


@pytest.mark.parametrize("ranks", TABLE_1)
def test_memory_is_the_papers_table(ranks: int) -> None:
    bars = held(run(billions=7.5, ranks=ranks, card="B200-180GB", other_bytes=0.0))
    assert bars[0] == pytest.approx(120 * GB)
    for stage, expected in zip((1, 2, 3), TABLE_1[ranks], strict=True):
        assert bars[stage] / GB == pytest.approx(expected, abs=0.051 if expected > 2 else 0.0051)


@pytest.mark.parametrize("micro_batches", [1, 8])
@pytest.mark.parametrize("keep", [False, True])
def test_volumes_are_the_models(micro_batches: int, keep: bool) -> None:
    answer = run(billions=13, ranks=16, micro_batches=micro_batches, keep_weights=keep)
    sent = [sum(parts) for parts in zip(*stacks(answer, 1).values(), strict=True)]
    passes = [2, 2, micro_batches + 1, (2 if keep else 3) * micro_batches]
    assert sent == pytest.approx([count * 15 / 16 * 13e9 * 2 for count in passes])
    assert sent[3] == data_traffic(13e9, 16, 3, micro_batches, reshard_after_forward=not keep).total_bytes
    seconds = stacks(answer, 2)["communication"]
    assert seconds == pytest.approx([value / 25e9 for value in sent])


def test_compute_is_six_flops_per_parameter_and_token_at_half_of_the_peak() -> None:
    answer = run(billions=8, tokens=4096, micro_batches=2, card="H100-80GB")
    assert stacks(answer, 2)["compute"] == pytest.approx([2 * 6 * 8e9 * 4096 / (0.5 * 989e12)] * 4)


@pytest.mark.parametrize("billions", [1, 7.5, 30, 175, 1000])
@pytest.mark.parametrize("ranks", [2, 64, 1024])
def test_the_verdict_is_the_lowest_stage_that_fits(billions: float, ranks: int) -> None:
    answer = run(billions=billions, ranks=ranks, card="A100-80GB", other_bytes=10e9)
    fits = [model_states(billions * 1e9, ranks, stage).total_bytes + 10e9 <= 80e9 for stage in range(4)]
    expected = str(fits.index(True)) if any(fits) else "none"
    assert readout(answer, "cheapest stage that fits") == expected
    opening = answer["words"][0]
    assert opening.startswith(f"Stage {expected} is" if any(fits) else "No stage fits")


def test_the_way_out_names_enough_ranks_and_no_more() -> None:
    answer = run(billions=1000, ranks=8, card="A100-80GB", other_bytes=20e9)
    assert "It would take 267 ranks" in answer["words"][0]
    for ranks, expected in ((266, "none"), (267, "3")):
        found = run(billions=1000, ranks=ranks, card="A100-80GB", other_bytes=20e9)
        assert readout(found, "cheapest stage that fits") == expected


def test_bars_are_cut_but_their_texts_are_whole() -> None:
    answer = run(billions=1000, ranks=64, card="A100-40GB")
    assert max(held(answer)) == pytest.approx(2.4 * 40e9)
    assert answer["panels"][0]["texts"][0] == "16.0\u00a0TB"
    assert answer["panels"][0]["value"]["domain"][1] > max(held(answer))


def test_kept_weights_take_memory_and_cost_a_gather_less() -> None:
    freed, kept = run(billions=30, ranks=64), run(billions=30, ranks=64, keep_weights=True)
    assert held(kept)[3] - held(freed)[3] == pytest.approx(60e9)
    assert held(kept)[:3] == held(freed)[:3]
    assert "1.50× that, as it gathers the weights twice" in freed["words"][1]
    assert "1.00× that, as it gathers the weights once" in kept["words"][1]


def test_the_break_even_is_where_traffic_and_compute_are_equal() -> None:
    """6 Ψ tokens / F = 6 bytes Ψ (N-1)/N / B: the model's size cancels."""
    for billions in (1, 175):
        answer = run(billions=billions, ranks=8, bandwidth=250e9, card="H100-80GB")
        assert readout(answer, "stage 3 can hide from") == "1731 tokens"
    break_even = 7 / 8 * 0.5 * 989e12 / 250e9
    assert break_even == pytest.approx(1731, abs=0.5)
    for tokens, words in ((1730, ", longer than"), (1732, "can hide under")):
        assert words in run(ranks=8, bandwidth=250e9, card="H100-80GB", tokens=tokens)["words"][2]


def test_one_rank_shards_nothing() -> None:
    answer = run(billions=1, ranks=1, keep_weights=True)
    assert held(answer) == pytest.approx([26e9] * 4)
    assert stacks(answer, 1)["all-gather"] == [0.0] * 4
    assert "nobody to share with" in answer["words"][1]


def test_the_accumulated_preset_is_the_reported_case() -> None:
    """allenai/OLMo 762: 1B fits, and stage 3 sends 48 times what plain data parallelism sends."""
    answer = run(preset="accumulated-1b")
    assert readout(answer, "cheapest stage that fits") == "0"
    assert "48.0× that" in answer["words"][1]


def test_the_gpt3_preset_is_where_its_step_time_came_from() -> None:
    """SC21, Table 2: 44 TFLOP/s are 67 s a step; the bandwidth is what those imply."""
    assert "takes 66.84\u00a0s at 15.7\u00a0GB/s" in run(preset="gpt3-1536")["words"][2]
