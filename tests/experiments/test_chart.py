"""Small decisions that both drawers rely on: ticks, places, texts."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from shardlab.experiments import chart, words
from shardlab.experiments.controls import decades, slider


@pytest.mark.parametrize("most", [1.0, 0.34, 2.3e9, 7.0, 12.5, 99, 1e-3, 0.344])
def test_ticks_are_round_even_and_few(most: float) -> None:
    ticks = chart.even_ticks(most)
    values = [value for value, _ in ticks]
    assert values[0] == 0
    assert values[-1] <= most * (1 + 1e-6)
    assert 2 <= len(ticks) <= 6
    steps = {round((after - before) / values[1], 9) for before, after in pairwise(values)}
    assert steps == {1.0}
    assert len({text for _, text in ticks}) == len(ticks)


def test_time_and_size_axes_choose_the_unit() -> None:
    assert chart.time_axis("time", 0.35)["label"] == "time (ms)"
    assert chart.time_axis("time", 1.2)["label"] == "time (s)"
    assert chart.size_axis("sent", 2.3e9)["label"] == "sent (GB)"
    assert chart.size_axis("sent", 92)["label"] == "sent (B)"
    assert [text for _, text in chart.time_axis("time", 0.35)["ticks"]] == ["0", "100", "200", "300"]


def test_log_ticks_are_powers_of_ten() -> None:
    assert chart.log_ticks(0.1, 4096) == [
        (0.1, "0.1"),
        (1.0, "1"),
        (10.0, "10"),
        (100.0, "100"),
        (1000.0, "1000"),
    ]


def test_labels_that_would_meet_move_apart() -> None:
    moved = chart.spread([0.5, 0.51, 0.99, 1.0], 0.1)
    assert moved == sorted(moved)
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(moved))
    assert max(moved) <= 1
    assert chart.spread([0.2, 0.8], 0.1) == [0.2, 0.8]
    assert chart.spread([0.8, 0.2], 0.1) == [0.8, 0.2]


def test_ring_places_start_at_the_top_and_go_clockwise() -> None:
    places = chart.ring_places(4)
    assert places[0] == pytest.approx((0, 1))
    assert places[1] == pytest.approx((1, 0))
    assert all(math.hypot(x, y) == pytest.approx(1) for x, y in places)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.9076, "2.91×"),
        (0.8204, "0.82×"),
        (165.25, "165×"),
        (1072.7, "1073×"),
        (0.125, "0.13×"),
        (9.996, "10.00×"),
    ],
)
def test_ratios(value: float, text: str) -> None:
    assert words.ratio(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.875, "1.88"),
        (0.0123, "0.0123"),
        (12345.6, "12346"),
        (9.996, "10.0"),
        (99.96, "100"),
        (-2.5, "-2.50"),
    ],
)
def test_amounts_never_have_an_exponent(value: float, text: str) -> None:
    assert words.amount(value) == text


def test_half_way_cases_go_up_in_every_engine() -> None:
    assert words.seconds(0.15625) == "156.3\u00a0ms"
    assert words.percent(0.0625 / 2) == "3.1\u00a0%"
    assert words.percent(0.0625) == "6.3\u00a0%"
    assert words.plain_number(0.05) == "0.05"
    assert words.plain_number(4096.0) == "4096"


def test_decades_hold_exact_numbers() -> None:
    assert decades(1e-7, 1e-5) == (1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5)
    control = slider("x", "X", decades(1e8, 1e10), 1e9, "bytes/s")
    assert control.labels[:4] == ("100 MB/s", "200 MB/s", "500 MB/s", "1 GB/s")
