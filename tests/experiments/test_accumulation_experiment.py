"""Gradient accumulation on the page: batch, learning rate, bytes by stage, and the step on the time line."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.models.communication import data_traffic

NAME = "accumulation"


def run(**given: Any) -> dict[str, Any]:
    return engine.run(NAME, given)


def readouts(answer: dict[str, Any]) -> dict[str, str]:
    return {one["label"]: one["value"] for one in answer["readouts"]}


def sent_gb(answer: dict[str, Any]) -> list[float]:
    """Bytes of DDP, ZeRO-1, 2 and 3, in GB."""
    stacks = answer["panels"][1]["stacks"]
    return [sum(stack["values"][stage] for stack in stacks) / 1e9 for stage in range(4)]


def test_bytes_by_stage() -> None:
    """1 GB on 8 ranks, 4 micro-steps, in units of 7/8 P: 2, 2, G + 1, 3 G."""
    expected = [7 / 8 * passes for passes in (2, 2, 4 + 1, 3 * 4)]
    assert sent_gb(run(accumulation=4)) == pytest.approx(expected)


def test_without_no_sync_accumulation_saves_nothing() -> None:
    assert sent_gb(run(preset="forgotten"))[0] == pytest.approx(4 * sent_gb(run(preset="source"))[0])
    assert "accumulation saves nothing" in run(preset="forgotten")["words"][2]
    assert sent_gb(run(preset="forgotten"))[2:] == sent_gb(run(preset="source"))[2:]


def test_imagenet_in_an_hour() -> None:
    """Goyal et al.: 256 GPUs with 32 images are 8192, and the learning rate times 32."""
    answer = run(preset="goyal")
    assert readouts(answer)["global batch"] == "8192"
    assert readouts(answer)["learning rate"] == "× 32.0"


@pytest.mark.parametrize(("rule", "factor"), [("linear", "× 4.00"), ("sqrt", "× 2.00"), ("none", "× 1.00")])
def test_learning_rate_rules(rule: str, factor: str) -> None:
    assert readouts(run(rule=rule))["learning rate"] == factor


def test_the_same_global_batch_needs_no_rule() -> None:
    answer = run(preset="fixed-batch")
    assert readouts(answer)["learning rate"] == "× 1.00"
    assert "changes nothing about learning" in answer["words"][0]


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
@pytest.mark.parametrize("no_sync", [True, False])
def test_the_time_line_adds_up(stage: str, no_sync: bool) -> None:
    answer = run(stage=stage, no_sync=no_sync, accumulation=8)
    spans = answer["panels"][2]["spans"]
    compute = sum(span["end"] - span["start"] for span in spans if span["lane"] == 0)
    sending = sum(span["end"] - span["start"] for span in spans if span["lane"] == 1)
    traffic = data_traffic(0.5e9, 8, int(stage), 8, sync_every_micro_batch=None if no_sync else True)
    assert compute == pytest.approx(0.8)
    assert sending == pytest.approx(traffic.total_bytes / 10e9)
    assert max(span["end"] for span in spans) == pytest.approx(compute + sending)


def test_stage_1_and_ddp_gain_and_stage_3_does_not() -> None:
    curves = {one["label"]: [y for _, y in one["points"]] for one in run()["panels"][0]["series"]}
    assert curves["DDP"][0] == pytest.approx(0.1 / 0.275)
    assert curves["DDP"][-1] > 0.95
    assert curves["ZeRO-1"] == pytest.approx(curves["DDP"])
    assert curves["ZeRO-3"] == pytest.approx([curves["ZeRO-3"][0]] * 7)


@pytest.mark.parametrize("rule", ["linear", "sqrt", "none"])
def test_a_smaller_batch_takes_more_updates(rule: str) -> None:
    words = run(rule=rule, base_batch=8192)["words"][1]
    assert "very large batches" not in words
    assert "fewer updates" not in words
