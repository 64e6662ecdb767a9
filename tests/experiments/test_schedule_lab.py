"""The schedule lab shows the executor's runs: bubbles of the formulas, memory of the papers, a reason for every gap."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.models.pipeline import bubble_of_ideal, bubble_of_total, published_bubble_s, simulate

NAMES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v")


def run(**given: Any) -> dict[str, Any]:
    return engine.run("schedule-lab", given)


def read(answer: dict[str, Any], line: str) -> str:
    """What the table says of the chosen schedule."""
    table = answer["panels"][1]
    chosen = next(texts for texts in table["rows"] if texts[0].startswith("▸"))
    return str(chosen[table["columns"].index(line)])


def end_s(answer: dict[str, Any]) -> float:
    return max(span["end"] for span in answer["panels"][0]["spans"])


def column(answer: dict[str, Any], name: str) -> list[str]:
    """One column of the table: a text for each schedule."""
    table = answer["panels"][1]
    return [line[table["columns"].index(name)] for line in table["rows"]]


def held(answer: dict[str, Any]) -> list[str]:
    """The texts at the end of the lanes."""
    return [span["label"] for span in answer["panels"][0]["spans"] if span["label"]]


def percent(value: float) -> str:
    return f"{100 * value:.1f}\u00a0%"


def worked_s(answer: dict[str, Any]) -> float:
    return sum(
        span["end"] - span["start"] for span in answer["panels"][0]["spans"] if span["role"] == "compute"
    )


def idle_s(answer: dict[str, Any]) -> float:
    return sum(span["end"] - span["start"] for span in answer["panels"][0]["spans"] if span["role"] == "idle")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "batches"), [(4, 8), (8, 8), (8, 32), (4, 2)])
def test_both_bubbles_are_the_formulas(schedule: str, stages: int, batches: int) -> None:
    answer = run(schedule=schedule, stages=stages, micro_batches=batches)
    assert read(answer, "idle/total") == percent(bubble_of_total(stages, batches))
    assert read(answer, "idle/ideal") == percent(bubble_of_ideal(stages, batches))


def test_the_sources_example() -> None:
    answer = run(preset="source")
    assert read(answer, "idle/total") == percent(7 / 15)
    assert read(answer, "idle/ideal") == percent(7 / 8)
    assert "46.7\u00a0% of the total time, 87.5\u00a0% of the ideal" in answer["words"][0]


@pytest.mark.parametrize("schedule", NAMES)
@pytest.mark.parametrize("slow", [1, 1.5])
def test_the_timeline_holds_all_work_and_all_idle_time(schedule: str, slow: float) -> None:
    for batches in (8, 32):
        answer = run(schedule=schedule, micro_batches=batches, slow=slow, transfer_s=0.001)
        seconds = [0.01, 0.01, 0.01, 0.01 * slow]
        pieces = 2 if schedule == "interleaved-1f1b" else 1
        expected = simulate(schedule, 4, batches, seconds, seconds, seconds, 0.001, pieces)
        assert worked_s(answer) == pytest.approx(sum(expected.busy_s))
        assert idle_s(answer) == pytest.approx(sum(expected.idle_s))


def test_bars_of_one_rank_never_overlap() -> None:
    for preset in engine.load("schedule-lab").presets:
        answer = run(preset=preset.name)
        for lane in range(len(answer["panels"][0]["lanes"])):
            spans = [span for span in answer["panels"][0]["spans"] if span["lane"] == lane]
            assert spans[0]["start"] == 0
            for before, after in itertools.pairwise(spans):
                assert after["start"] == pytest.approx(before["end"])


def test_1f1b_saves_memory_and_no_time() -> None:
    answers = [run(schedule=name, stages=8, micro_batches=32) for name in ("gpipe", "1f1b")]
    assert end_s(answers[0]) == pytest.approx(end_s(answers[1]))
    assert read(answers[0], "idle/total") == read(answers[1], "idle/total")
    assert [read(answer, "in flight") for answer in answers] == ["32", "8"]
    assert held(answers[0]) == ["32"] * 8
    assert held(answers[1]) == [str(8 - rank) for rank in range(8)]
    assert "GPipe idles as long and holds all" in answers[1]["words"][1]


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_interleaving_divides_the_idle_time_and_multiplies_the_messages(chunks: int) -> None:
    answer = run(schedule="interleaved-1f1b", chunks=chunks)
    assert idle_s(run()) / idle_s(answer) == pytest.approx(chunks)
    assert read(answer, "idle/total") == percent(bubble_of_total(4, 8, chunks))
    said = "Less idle time for more traffic" if chunks > 1 else "this is 1F1B"
    assert said in answer["words"][1]
    assert f"{2 * 8 * (4 * chunks - 1)} messages" in answer["words"][1]


def test_words_on_other_schedules_hold_where_messages_take_time() -> None:
    given = {"transfer_s": 0.01, "stages": 8, "micro_batches": 32}
    alone = {name: run(schedule=name, chunks=3, **given) for name in ("gpipe", "1f1b", "interleaved-1f1b")}
    assert end_s(alone["gpipe"]) < end_s(alone["1f1b"]) < end_s(alone["interleaved-1f1b"])
    assert "1F1B idles longer with these transfers" in alone["gpipe"]["words"][1]
    assert "GPipe idles less with these transfers" in alone["1f1b"]["words"][1]
    assert alone["interleaved-1f1b"]["words"][1].startswith("More idle time than 1F1B")


@pytest.mark.parametrize(("stages", "batches"), [(4, 8), (8, 8), (8, 24), (2, 6), (4, 2), (1, 3)])
@pytest.mark.parametrize("slow", [1, 1.5])
def test_the_table_is_what_each_schedule_gives_when_chosen(stages: int, batches: int, slow: float) -> None:
    given = {"stages": stages, "micro_batches": batches, "slow": slow}
    table = run(**given)
    for index, name in enumerate(NAMES):
        if name == "interleaved-1f1b" and batches % stages:
            assert column(table, "idle/total")[index] == "–"
            continue
        chosen = run(schedule=name, **given)
        assert column(table, "idle/ideal")[index] == read(chosen, "idle/ideal")
        assert column(table, "idle/total")[index] == read(chosen, "idle/total")
        assert column(table, "in flight")[index] == read(chosen, "in flight")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_every_schedule_idles_as_published(schedule: str) -> None:
    answer = run(stages=8, micro_batches=24, schedule=schedule)
    assert idle_s(answer) / 8 == pytest.approx(published_bubble_s(schedule, 8, 0.01, 0.01, 0.01))


def test_what_does_not_fit_is_said() -> None:
    assert "takes a multiple of p = 4" in " ".join(run(micro_batches=6)["words"])
    answer = run(schedule="interleaved-1f1b", micro_batches=6)
    assert "8 are run instead of 6" in " ".join(answer["words"])
    assert "never fills" in " ".join(run(stages=4, micro_batches=2)["words"])


def test_any_idle_slot_has_a_reason_and_any_other_an_operation() -> None:
    """Ask the middle of every bar and of every gap of every rank."""
    answer = run()
    end = end_s(answer)
    for span in answer["panels"][0]["spans"]:
        words = run(rank=span["lane"], moment=(span["start"] + span["end"]) / 2 / end)["words"][2]
        if span["role"] == "idle":
            assert "waits" in words or "has done its work" in words
        else:
            kind = "forward" if span["texture"] == "solid" else "backward"
            assert f"rank {span['lane']} works on the {kind} of micro-batch" in words


def test_the_reason_names_the_awaited_operation() -> None:
    words = run()["words"][2]
    assert "4 in flight" in words
    assert "stage 0 waits 60 ms for the backward of micro-batch 0 from stage 1" in words


def test_a_slow_rank_makes_all_wait() -> None:
    even, uneven = run(), run(slow=2)
    assert worked_s(uneven) > worked_s(even)
    assert idle_s(uneven) > 2 * idle_s(even)
    assert "all wait for the slower last rank" in uneven["words"][0]


def test_one_stage_has_no_bubble_and_the_rank_asked_exists() -> None:
    answer = run(stages=1, rank=5)
    assert answer["values"]["rank"] == 0
    assert read(answer, "idle/total") == "0.0\u00a0%"
    assert "no bubble" in answer["words"][0]
