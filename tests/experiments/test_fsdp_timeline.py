"""The FSDP timeline keeps its own rules, adds up to the models' bytes, and says what it shows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery.fsdp_timeline import Event, most_held, schedule
from shardlab.models.communication import data_traffic
from shardlab.models.memory import unsharded_bytes

CASES = [
    (layers, gather, reduce, ahead, reshard)
    for layers in (2, 6, 16)
    for gather, reduce in ((0.25, 0.25), (1.0, 1.0), (5.0, 7.0))
    for ahead in (0, 1, 3)
    for reshard in (True, False)
]


def run(**given: Any) -> dict[str, Any]:
    return engine.run("fsdp-timeline", given)


def of(events: list[Event], *kinds: str) -> list[Event]:
    return sorted([event for event in events if event.kind in kinds], key=lambda event: event.start)


def end(events: list[Event]) -> float:
    return max(event.end for event in events)


@pytest.mark.parametrize(("layers", "gather", "reduce", "ahead", "reshard"), CASES)
def test_the_schedule_keeps_the_rules(
    layers: int, gather: float, reduce: float, ahead: int, reshard: bool
) -> None:
    events = schedule(layers, gather, 1.0, reduce, ahead, reshard)
    link, work = of(events, "gather", "reduce"), of(events, "forward", "backward")
    # One thing at a time on the link and in the compute units, and everything that there is to do.
    for lane in (link, work):
        assert all(later.start >= earlier.end for earlier, later in pairwise(lane))
    assert [event.layer for event in work] == [*range(layers), *reversed(range(layers))]
    assert len(of(events, "gather")) == (2 if reshard else 1) * layers
    assert [event.layer for event in of(events, "reduce")] == [*reversed(range(layers))]
    # Weights before their pass, gradients after it.
    gathers, turn = of(events, "gather"), work[layers - 1].end
    passes = work if reshard else work[:layers]
    for before, after in zip(gathers, passes, strict=True):
        assert before.layer == after.layer
        assert before.end <= after.start
    for backward, reduction in zip(work[layers:], of(events, "reduce"), strict=True):
        assert reduction.start >= backward.end
    # Never more than `ahead` layers gathered or under way before their turn.
    for index, one in enumerate(gathers):
        first = 0 if index < layers else layers
        waiting_for = index - 1 - ahead
        if waiting_for >= first:
            assert one.start >= work[waiting_for].end
        elif first:
            assert one.start >= turn


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("gather", [0.25, 5.0])
def test_time_is_between_the_longer_lane_and_the_sum(ahead: int, gather: float) -> None:
    events = schedule(8, gather, 1.0, gather, ahead, True)
    link, compute = 3 * 8 * gather, 3.0 * 8
    assert max(link, compute) < end(events) <= link + compute


def test_nothing_ahead_hides_nothing() -> None:
    """Every layer: gather, forward; gather, backward, reduce-scatter; one after the other."""
    assert end(schedule(6, 0.5, 1.0, 0.25, 0, True)) == 6 * (0.5 + 1.0) + 6 * (0.5 + 2.0 + 0.25)


def test_one_ahead_leaves_the_ends_exposed() -> None:
    """A fast link: the first gather of each pass and the last reduce-scatter have nothing to hide under."""
    assert end(schedule(6, 0.25, 1.0, 0.25, 1, True)) == 0.25 + 6 + 0.25 + 12 + 0.25


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_memory_is_the_models(ahead: int) -> None:
    """One layer at work, those gathered ahead, and the gradients of one."""
    held = most_held(schedule(12, 0.5, 1.0, 0.5, ahead, True), True)
    assert held * 2.0 == unsharded_bytes(1.0, 2.0, 2.0, prefetched_units=ahead)


def test_kept_weights_pile_up() -> None:
    assert most_held(schedule(12, 0.5, 1.0, 0.5, 1, False), False) == 13


@pytest.mark.parametrize("reshard", [True, False])
def test_the_link_sends_what_the_model_says(reshard: bool) -> None:
    answer = run(layers=6, millions=218, ranks=8, reshard=reshard)
    expected = data_traffic(6 * 218e6, 8, 3, reshard_after_forward=reshard).total_bytes
    note = next(item["note"] for item in answer["readouts"] if item["label"] == "link works")
    assert note == f"{expected / 1e9:.4g}\u00a0GB"


def test_the_presets_say_what_they_are_there_for() -> None:
    fast, none, slow = [run(preset=name) for name in ("llama-8b-node", "llama-8b-none-ahead", "ethernet-10")]
    assert "6.6\u00a0% of the 69.58\u00a0ms" in fast["words"][0]
    assert "the first gather of each pass and the last reduce-scatter have nothing" in fast["words"][0]
    assert "nothing is gathered ahead" in none["words"][0]
    assert "no prefetch can change" in slow["words"][0]
    freed, kept = run(preset="llama-70b-8-nodes"), run(preset="llama-70b-kept")
    assert "3 layers' worth" in freed["words"][2]
    assert "9 layers' worth" in kept["words"][2]
    assert "the first gather and the last reduce-scatter have nothing" in kept["words"][0]
    # A gather of 1.19 forward passes: the link keeps up with the backward pass only.
    halting = run(preset="llama-70b-kept", bandwidth=50e9)
    assert "a gather takes longer than a layer's forward pass" in halting["words"][0]


def test_the_picture_draws_the_schedule() -> None:
    answer = run(layers=4, ahead=2)
    spans = answer["panels"][0]["spans"]
    assert [len([span for span in spans if span["lane"] == lane]) for lane in range(3)] == [8, 8, 4]
    times, memory = answer["panels"][1], answer["panels"][2]
    assert times["categories"] == memory["categories"] == ["none", "1", "2 ◂", "3"]
    whole = [sum(parts) for parts in zip(*[stack["values"] for stack in times["stacks"]], strict=True)]
    assert whole == sorted(whole, reverse=True)
    assert whole[2] == pytest.approx(max(span["end"] for span in spans))
