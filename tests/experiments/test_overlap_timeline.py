"""Overlap, bucket by bucket: the chapter's numbers, the model's buckets on the time line, and the bracket."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.models.overlap import bucketed_step

NAME = "overlap-timeline"
MIB = 2**20


def run(**given: Any) -> dict[str, Any]:
    return engine.run(NAME, given)


def readouts(answer: dict[str, Any]) -> dict[str, str]:
    return {one["label"]: one["value"] for one in answer["readouts"]}


@pytest.mark.parametrize(("bucket", "step"), [(25, "281.1"), (200, "250.5"), (1024, "298.1")])
def test_chapter_3s_numbers(bucket: float, step: str) -> None:
    """64 ranks at 10 GB/s, as chapter 03 prints them."""
    assert readouts(run(bucket_mib=bucket))["step"] == f"{step}\u00a0ms"


def test_one_bucket_hides_nothing() -> None:
    answer = run(preset="one-bucket")
    assert readouts(answer)["hidden"] == "0.0\u00a0%"
    assert "nothing overlaps" in answer["words"][1]


def test_every_bucket_is_drawn_where_the_model_puts_it() -> None:
    answer = run(bucket_mib=128, ranks=8, bandwidth=25e9)
    step = bucketed_step(8, 0.1 / 3, 0.1 - 0.1 / 3, 1e9, 25e9, 10e-6, 128 * MIB)
    spans = [span for span in answer["panels"][0]["spans"] if span["lane"] == 1]
    drawn = [(span["start"], span["end"]) for span in spans]
    assert drawn == [(bucket.start_s, bucket.end_s) for bucket in step.buckets]
    assert spans[-1]["label"] == "8 buckets"


def test_many_buckets_without_a_gap_are_one_bar() -> None:
    answer = run(bucket_mib=8)
    step = bucketed_step(64, 0.1 / 3, 0.1 - 0.1 / 3, 1e9, 10e9, 10e-6, 8 * MIB)
    spans = [span for span in answer["panels"][0]["spans"] if span["lane"] == 1]
    assert len(step.buckets) == 120
    assert len(spans) == 1
    assert (spans[0]["start"], spans[0]["end"]) == (step.buckets[0].start_s, step.buckets[-1].end_s)


@pytest.mark.parametrize("preset", ["source", "h100-nvlink", "h100-8-nodes", "one-bucket"])
def test_the_step_lies_in_the_bracket_but_for_latency(preset: str) -> None:
    panel = run(preset=preset)["panels"][0]
    (bracket,) = panel["brackets"]
    assert bracket["low"] <= bracket["at"] <= bracket["high"] * (1 + 1e-12)


def test_too_many_ranks_leave_the_bracket() -> None:
    answer = run(preset="many-ranks")
    (bracket,) = answer["panels"][0]["brackets"]
    assert bracket["at"] > 5 * bracket["high"]
    assert "the buckets are too small" in answer["words"][1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"preset": "source"}, "longer than the backward pass"),
        ({"preset": "h100-nvlink"}, "only the last bucket"),
        ({"preset": "many-ranks"}, "everything in one"),
    ],
)
def test_what_limits_the_best_bucket(given: dict[str, Any], said: str) -> None:
    assert said in run(**given)["words"][2]


def test_where_only_the_last_bucket_is_left() -> None:
    step = bucketed_step(8, 0.1 / 3, 0.1 - 0.1 / 3, 1e9, 436e9, 3.4e-6, 8 * MIB)
    last = step.buckets[-1]
    assert step.communication_s < step.backward_s
    assert step.exposed_communication_s == pytest.approx(last.end_s - last.start_s)
