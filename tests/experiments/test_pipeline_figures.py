"""The pipeline chapter's still pictures say in words what the executor found."""

from __future__ import annotations

import re

import pytest

from shardlab import figures
from shardlab.models.pipeline import simulate


@pytest.mark.parametrize(
    ("schedule", "chunks", "takes", "held"),
    [("gpipe", 1, "33", "8, 8, 8, 8"), ("1f1b", 1, "33", "4, 3, 2, 1"), ("zb-h1", 1, "27", "4, 4, 4, 4")],
)
def test_a_timeline_names_its_bubble_and_its_memory(
    schedule: str, chunks: int, takes: str, held: str
) -> None:
    picture = figures.pipeline_timelines(((schedule, 8, chunks),))
    run = simulate(schedule, 4, 8, 1, 1, 1, chunks=chunks)
    assert f"in {takes} units of time" in picture.alt
    assert f"{100 * run.bubble_of_total:.1f} % of it idle" in picture.alt
    assert f"are {held} micro-batches" in picture.alt
    assert ("weight gradients" in picture.alt) == (schedule == "zb-h1")


def test_every_operation_carries_the_number_of_its_micro_batch() -> None:
    svg = figures.pipeline_timelines((("1f1b", 4, 1),), n_stages=2).svg()
    shown = re.findall(r">(\d)</text>", svg)
    for batch in "0123":
        assert shown.count(batch) >= 4  # a forward and a backward on each of two ranks


def test_the_curves_mark_where_ten_per_cent_is_reached() -> None:
    picture = figures.bubble_curves()
    assert "46.7 %" in picture.alt
    assert "87.5 %" in picture.alt
    assert "at m = 63" in picture.alt
    assert "m = 63" in picture.svg()
