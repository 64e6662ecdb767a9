"""The scaling explorer shows the source's tables, the models' curves, and says which is which."""

from __future__ import annotations

import re
from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery.scaling_explorer import SOURCE_TABLES
from shardlab.models.scaling import data_parallel, efficiency_cap, strong_speedup_cap

NAME = "scaling-explorer"


def run(**given: Any) -> dict[str, Any]:
    return engine.run(NAME, given)


def curve(answer: dict[str, Any], panel: int, label: str) -> dict[int, float]:
    series = answer["panels"][panel]["series"]
    return {int(x): y for one in series if one["label"] == label for x, y in one["points"]}


@pytest.mark.parametrize("bandwidth", SOURCE_TABLES)
def test_the_sources_points_lie_on_the_weak_curve(bandwidth: float) -> None:
    answer = run(bandwidth=bandwidth)
    speedups, efficiencies = curve(answer, 0, "weak"), curve(answer, 1, "weak")
    for ranks, speedup, efficiency in SOURCE_TABLES[bandwidth]:
        assert speedups[ranks] == pytest.approx(speedup, abs=0.005)
        assert efficiencies[ranks] == pytest.approx(efficiency, abs=0.0005)
    rings = [mark for mark in answer["panels"][0]["marks"] if mark["shape"] == "ring"]
    assert [(mark["x"], mark["y"]) for mark in rings] == [row[:2] for row in SOURCE_TABLES[bandwidth]]
    assert not [mark for mark in run(source_points=False)["panels"][0]["marks"] if mark["shape"] == "ring"]


@pytest.mark.parametrize(
    ("ranks", "ring", "step"), [(8, "175.1", "275.1"), (64, "198.1", "298.1"), (512, "209.8", "309.8")]
)
def test_the_sources_times_are_read_out(ranks: int, ring: str, step: str) -> None:
    readouts = {readout["label"]: readout["value"] for readout in run(ranks=ranks)["readouts"]}
    assert readouts["ring all-reduce"] == f"{ring}\u00a0ms"
    assert readouts["step time"] == f"{step}\u00a0ms"


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_curves_and_band_are_the_models(scaling: str) -> None:
    setting = {"compute_s": 0.2, "bandwidth": 25e9, "latency_s": 5e-6, "overlap": 0.5}
    answer = run(ranks=48, scaling=scaling, gradient_bytes=3e9, **setting)
    for kind in ("weak", "strong"):
        for ranks, value in curve(answer, 0, kind).items():
            step = data_parallel(ranks, n_bytes=3e9, scaling=kind, **setting)
            assert value == step.speedup
            assert curve(answer, 1, kind)[ranks] == step.efficiency
    assert 48 in curve(answer, 0, scaling)
    strong = [series["label"] for series in answer["panels"][0]["series"] if series["weight"] == "strong"]
    assert strong == [scaling]
    for ranks, low, high in answer["panels"][0]["bands"][0]["points"]:
        none, full = [
            data_parallel(int(ranks), n_bytes=3e9, scaling=scaling, **{**setting, "overlap": overlap}).speedup
            for overlap in (0.0, 1.0)
        ]
        assert low == pytest.approx(none)
        assert high == pytest.approx(full)
        assert low * (1 - 1e-12) <= curve(answer, 0, scaling)[int(ranks)] <= high * (1 + 1e-12)


def test_limits_are_named_with_their_value() -> None:
    answer = run()
    efficiency = answer["panels"][1]["limits"]
    assert [item["value"] for item in efficiency] == [efficiency_cap(0.1, 1e9, 10e9)]
    assert efficiency[0]["label"] == "limit of weak 33.3\u00a0%"
    speedup = {item["label"]: item["value"] for item in answer["panels"][0]["limits"]}
    assert speedup == {"one rank": 1.0, "limit of strong 0.50×": strong_speedup_cap(0.1, 1e9, 10e9)}


@pytest.mark.parametrize(("overlap", "step_ms"), [(0.0, 275.14), (2 / 3, 208.47), (1.0, 175.14)])
def test_the_time_line_adds_up(overlap: float, step_ms: float) -> None:
    panel = run(overlap=overlap)["panels"][2]
    compute, communication = panel["spans"]
    assert compute["role"] == "compute"
    assert communication["role"] == "communication"
    assert communication["start"] == pytest.approx((1 - overlap) * 0.1)
    bracket = panel["brackets"][0]
    assert bracket["at"] == pytest.approx(max(compute["end"], communication["end"]))
    assert bracket["at"] * 1e3 == pytest.approx(step_ms, abs=0.01)
    assert (bracket["low"], bracket["high"]) == (pytest.approx(0.17514), pytest.approx(0.27514))


def test_the_words_name_the_bottleneck_and_the_break_even() -> None:
    slow = " ".join(run(preset="source-2gb")["words"])
    assert "Communication is the bottleneck" in slow
    assert "0.82× the speed of one rank (slower)" in slow
    assert "From 11 ranks on it is faster than one rank" in slow
    fast = " ".join(run(preset="h100-nvlink")["words"])
    assert "Compute is the bottleneck" in fast
    assert "(faster)" in fast
    strong = " ".join(run(scaling="strong")["words"])
    assert "With strong scaling no number of ranks is faster than one." in strong
    assert "0.53×" in strong
    assert "of the numbers drawn" in " ".join(run(preset="h100-nvlink", scaling="strong")["words"])
    # Too much latency: what was faster than one rank is slower again.
    late = " ".join(run(preset="h100-nvlink", scaling="strong", latency_s=1e-3)["words"])
    assert "6 is the fastest, and from 64 on it is slower than one again." in late
    assert data_parallel(32, 0.1, 1e9, 436e9, 1e-3, "strong").speedup > 1
    assert data_parallel(64, 0.1, 1e9, 436e9, 1e-3, "strong").speedup < 1
    assert "no communication" in run(ranks=1)["words"][0]


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_the_bandwidth_of_balance_makes_both_take_equally_long(scaling: str) -> None:
    text = " ".join(run(scaling=scaling)["words"])
    found = re.search(r"At ([\d.]+)\u00a0GB/s the two would take equally long", text)
    assert found
    step = data_parallel(8, 0.1, 1e9, float(found.group(1)) * 1e9, 1e-5, scaling)
    assert step.communication_time_s == pytest.approx(step.compute_time_s, rel=1e-3)
    crowded = " ".join(run(ranks=4096, latency_s=1e-3)["words"])
    assert "Latency alone takes at least as long as compute." in crowded


def test_presets_hold_the_facts() -> None:
    values = {preset.name: preset.values for preset in engine.load(NAME).presets}
    assert values["source"]["bandwidth"] == 10e9
    assert values["source-2gb"]["bandwidth"] == 2e9
    assert values["ethernet-10"]["bandwidth"] == 10e9 / 8  # 10 Gb/s are bits
    assert values["h100-nvlink"]["bandwidth"] == 436e9
    # A bus bandwidth is what the ring's formula divides by: 1 GB on 8 ranks in 2·7/8 / 436 s.
    assert data_parallel(8, 0.1, 1e9, 436e9).communication_time_s == pytest.approx(4.0138e-3, rel=1e-4)
