"""The clinic's picture shows the models' numbers, hides the damage until it is asked for, and finds the excuses."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.figures.antipatterns import damage_overview, lost_share, slow_rank_timeline
from shardlab.models import antipatterns
from shardlab.models.collectives import ring_allreduce_time_s


def run(**given: Any) -> dict[str, Any]:
    return engine.run("antipatterns", given)


def readout(answer: dict[str, Any], label: str) -> str:
    found = next(item for item in answer["readouts"] if item["label"] == label)
    return str(found["value"]).replace("\u00a0", " ")


@pytest.mark.parametrize("pattern", antipatterns.NAMES)
def test_off_shows_the_healthy_run_alone(pattern: str) -> None:
    off, on = run(pattern=pattern, fault=False), run(pattern=pattern, severity=8)
    assert len(off["panels"]) == 1
    assert len(on["panels"]) == 2
    assert readout(off, "broken") == "?"
    assert readout(on, "damage") not in str(off)
    assert not off["bounds"]["severity"]["enabled"]
    assert on["words"][0].startswith("Damage")
    for start, sentence in zip(("Symptom", "How to tell", "The mend"), on["words"][1:], strict=True):
        assert sentence.startswith(start)


@pytest.mark.parametrize("pattern", antipatterns.NAMES)
def test_the_mark_is_the_models_damage(pattern: str) -> None:
    answer = run(pattern=pattern, severity=6)
    expected = antipatterns.compare(pattern, antipatterns.setting(64, 50e9), 6).damage
    [mark] = answer["panels"][1]["marks"]
    assert (mark["x"], mark["y"]) == (6, expected)
    assert mark["label"].replace("\u00a0", " ") == readout(answer, "damage")


def test_the_source_pipeline() -> None:
    answer = run(preset="eight-stages")
    assert readout(answer, "bubble") == "46.7 %"
    assert list(answer["panels"][0]["categories"]) == ["m = 64", "m = 8"]


def test_measured_64_nodes() -> None:
    answer = run(preset="64-nodes")
    run_ = antipatterns.setting(512, 32.9e9)
    ring = ring_allreduce_time_s(run_.gradient_bytes, 512, 32.9e9)
    assert sum(stack["values"][1] for stack in answer["panels"][0]["stacks"]) == run_.compute_s + ring


def test_excuses() -> None:
    fast = run(pattern="needless-zero3", bandwidth=400e9, tokens=65536, severity=8)
    assert "Hardly any damage" in fast["words"][0]
    needed = run(pattern="needless-zero3", model="llama3-70b", ranks=8)
    assert needed["words"][0].startswith("No anti-pattern here")
    assert "does not fit" in str(needed["readouts"])
    assert "half empty" not in " ".join(needed["words"])
    assert "fits into" in str(run(pattern="needless-zero3")["readouts"])


def test_one_batch_too_few_is_not_called_harmless() -> None:
    words = run(pattern="uneven-ranks", severity=1)["words"]
    assert words[0].startswith("A small number")
    assert "hangs" in words[0]


def test_a_unit_holds_at_most_the_models_layers() -> None:
    model = antipatterns.setting(64, 50e9).model
    assert f"layers in a unit: {model.layers})" in run(pattern="one-big-unit", severity=8)["words"][0]


def test_controls_without_effect_are_off_and_on_again() -> None:
    def switched_on(**given: Any) -> set[str]:
        return {name for name, bound in run(**given)["bounds"].items() if bound["enabled"]}

    assert switched_on(pattern="uneven-ranks") == {"severity"}
    assert switched_on(pattern="averaged-away") == {"severity", "ranks", "model", "tokens"}
    assert switched_on(pattern="averaged-away", fault=False) == {"ranks", "model", "tokens"}
    assert len(run()["bounds"]) == 5


def test_the_mean_rises_by_almost_nothing() -> None:
    assert readout(run(pattern="averaged-away", severity=5), "mean compute") == "+0.8 %"


def test_the_meter_says_busy_and_mfu_falls() -> None:
    values = [
        float(readout(run(pattern="busy-is-not-working", severity=s), "MFU").split(" ")[0]) for s in (1, 4, 8)
    ]
    assert values[0] > 2 * values[1] > 4 * values[2]


def test_figures_say_what_they_show() -> None:
    assert "Rank 2 computes for 150 ms" in slow_rank_timeline().alt
    assert lost_share("averaged-away", 4.0) == 0.75
    assert lost_share("own-shuffles", 0.25) == 0.25
    run_ = antipatterns.setting(64, 50e9)
    worst = max(
        (lost_share(name, antipatterns.compare(name, run_, 4).damage), name)
        for name in antipatterns.NAMES
        if antipatterns.anti_pattern(name).damage_kind != "loss"
    )
    overview = damage_overview(run_)
    assert f"{antipatterns.anti_pattern(worst[1]).title}” with {100 * worst[0]:.0f} %" in overview.alt
