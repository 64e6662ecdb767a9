"""The pipeline lab: equal results, published orders, micro-batches in flight, bubble, deadlock, timelines."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from shardlab.labs.pipeline import DEFAULT, SCHEDULES, PipelineLabRun, ScheduleRow, pipeline
from shardlab.models.pipeline import published_in_flight_peak, schedule_operations, simulate

SECONDS = {"forward_s": 0.004, "backward_input_s": 0.004, "backward_weight_s": 0.004}


@pytest.fixture(scope="module")
def measured():
    """One run of every schedule for all tests that look at a result."""
    return pipeline(2, micro_batches=4, schedules=["all"], **SECONDS, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return pipeline.load_recording()


def perfect(name, ranks=4, micro_batches=8, seconds=0.03):
    """What the lab would measure if nothing took a moment longer than predicted."""
    kind = SCHEDULES[name]
    chunks = kind.chunks if kind.model == "interleaved-1f1b" else 1
    predicted = simulate(kind.model, ranks, micro_batches, seconds, seconds, seconds, chunks=chunks)
    rows = [[done for done in predicted.operations if done.rank == rank] for rank in range(ranks)]
    suffix = (lambda done: f".{done.chunk}") if predicted.chunks > 1 else (lambda done: "")
    return predicted, ScheduleRow(
        name=name,
        chunks=predicted.chunks,
        orders=tuple(
            [" ".join([f"{done.kind}{done.micro_batch}{suffix(done)}" for done in row]) for row in rows]
        ),
        starts_s=tuple([tuple([done.start_s for done in row]) for row in rows]),
        ends_s=tuple([tuple([done.end_s for done in row]) for row in rows]),
        in_flight=predicted.in_flight_peak,
        loss_gap=0.0,
        gradient_gap=0.0,
    )


# ---- measured here ----


@pytest.mark.torch
def test_every_schedule_equals_the_unsplit_model(measured):
    assert [row.name for row in measured.schedules] == list(SCHEDULES)
    for row in measured.schedules:
        assert row.loss_gap <= 1e-6
        assert row.gradient_gap <= 1e-6
    assert measured.failed_checks() == []


@pytest.mark.torch
def test_torch_and_the_loops_by_hand_run_the_published_orders(measured):
    for name, kind in SCHEDULES.items():
        row = measured.row(name)
        operations = [entry.replace("+", " ").split() for entry in row.orders]
        # Forward, input gradient and weight gradient of every micro-batch and stage, once.
        assert [len(set(mine)) for mine in operations] == [len(mine) for mine in operations]
        assert [len(mine) for mine in operations] == [3 * 4 * kind.chunks] * 2
        assert measured.runs_as_published(name)
    published = schedule_operations("1f1b", 2, 4)
    for name in ("1f1b-by-hand", "1F1B"):
        forwards_and_backwards = [
            [entry.partition("+")[0] for entry in order.split()] for order in measured.row(name).orders
        ]
        assert forwards_and_backwards == published


@pytest.mark.torch
def test_in_flight_are_as_many_as_published(measured):
    for name in ("gpipe-by-hand", "GPipe"):
        assert measured.row(name).in_flight == (4, 4)
    for name in ("1f1b-by-hand", "1F1B"):
        assert measured.row(name).in_flight == (2, 1)
    for name in ("Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"):
        kind = SCHEDULES[name]
        chunks = 2 if kind.model == "interleaved-1f1b" else 1
        assert measured.row(name).in_flight == published_in_flight_peak(kind.model, 2, 4, chunks)


@pytest.mark.torch
def test_the_ranks_share_one_clock(measured):
    for name in ("gpipe-by-hand", "GPipe", "1F1B"):
        row = measured.row(name)
        times = [
            dict(zip(order.split(), zip(starts, ends, strict=True), strict=True))
            for order, starts, ends in zip(row.orders, row.starts_s, row.ends_s, strict=True)
        ]
        for batch in range(4):
            # An effect never comes before its cause, whatever the machine does.
            assert times[1][f"F{batch}"][0] >= times[0][f"F{batch}"][1] - 1e-5
            backward = f"B{batch}+W{batch}"
            assert times[0][backward][0] >= times[1][backward][1] - 1e-5
    for row in measured.schedules:
        assert min(starts[0] for starts in row.starts_s) == 0
        for starts, ends in zip(row.starts_s, row.ends_s, strict=True):
            # One operation at a time, none shorter than asked.
            assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
            asked = 0.004 / row.chunks
            assert all(end - start >= asked - 1e-4 for start, end in zip(starts, ends, strict=True))
        assert 0 <= row.bubble_of_total < 1


@pytest.mark.torch
def test_sends_that_wait_get_stuck(measured):
    # gloo doesn't buffer: an activation on its way down and a gradient on its way up, for good.
    assert measured.deadlock == ("in send number 2, to rank 1", "in send number 1, to rank 0")
    assert "stops for good" in measured.explanation()[-1]
    assert "in send number 2" in str(measured.table("deadlock"))


@pytest.mark.torch
def test_ranks_that_move_slowly_are_not_stuck_yet(monkeypatch):
    from shardlab.labs import pipeline_worker

    clock, moves = [0.0], ["in send number 1", "between two sends", "in send number 2"]
    stage = SimpleNamespace(stands="at its start")

    def move(_):
        clock[0] += 0.75 * pipeline_worker.PATIENCE_S
        stage.stands = moves.pop(0) if moves else stage.stands

    thread = SimpleNamespace(is_alive=lambda: True, join=move)
    monkeypatch.setattr(pipeline_worker, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert pipeline_worker.where_it_stays(thread, stage) == "in send number 2"
    thread.is_alive = lambda: False
    assert pipeline_worker.where_it_stays(thread, stage) == "finished"


@pytest.mark.torch
def test_a_run_survives_json(measured):
    again = PipelineLabRun.from_json(measured.to_json())
    assert again == measured
    assert not measured.recorded


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_nothing_is_left_even_of_stuck_ranks(start, family):
    run = pipeline(2, micro_batches=2, schedules=["1F1B"], **SECONDS, limit_s=600, start=start, show=False)
    assert run.failed_checks() == []
    assert len(run.deadlock) == 2
    family.assert_all_gone()


@pytest.mark.torch
def test_one_rank(family):
    run = pipeline(
        1, schedules=["1F1B", "ZBVZeroBubble", "gpipe-by-hand"], **SECONDS, limit_s=600, show=False
    )
    assert run.failed_checks() == []
    assert run.deadlock == ()
    assert run.explanation() == ["One rank has nobody to wait for: run the lab with more ranks."]
    assert run.prediction("1F1B").bubble_of_total == 0


# ---- what can be said of any result ----


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULES.items() if kind.model])
def test_both_ratios_of_a_perfect_run_are_the_predicted_ones(recorded, name):
    predicted, row = perfect(name)
    assert row.bubble_of_total == pytest.approx(predicted.bubble_of_total, abs=1e-9)
    assert row.bubble_of_ideal == pytest.approx(predicted.bubble_of_ideal, abs=1e-9)
    settings = {
        "ranks": 4,
        "micro_batches": 8,
        "schedules": [name],
        "forward_s": 0.03,
        "backward_input_s": 0.03,
        "backward_weight_s": 0.03,
    }
    run = dataclasses.replace(recorded, settings=settings, schedules=(row,))
    assert run.failed_checks() == []
    assert run.prediction(name).makespan_s == predicted.makespan_s
    assert run.overrun_s == pytest.approx(0, abs=1e-9)


def test_the_recorded_run_has_every_schedule(recorded):
    assert recorded.recorded
    assert recorded.failed_checks() == []
    # Record it with all of them: labs.pipeline.function(schedules=["all"]).
    assert [row.name for row in recorded.schedules] == list(SCHEDULES)
    assert recorded.settings["ranks"] == 4
    assert len(recorded.deadlock) == 2
    text = str(recorded)
    for words in (
        "Idle/total predicted",
        "Idle/ideal measured",
        "4, 3, 2, 1",
        "8, 8, 8, 8",
        "stops for good",
    ):
        assert words in text
    assert recorded._repr_html_().count("<table") == 4
    gpipe, alternating = recorded.row("GPipe"), recorded.row("1F1B")
    assert (
        f"GPipe idles {gpipe.bubble_of_total:.3f} of the total time and 1F1B {alternating.bubble_of_total:.3f}"
        in text
    )


def _broken(run, name, **changes):
    rows = [dataclasses.replace(row, **changes) if row.name == name else row for row in run.schedules]
    return dataclasses.replace(run, schedules=tuple(rows))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("GPipe", {"loss_gap": 1e-3}, "GPipe: not equal to the unsplit model (loss 1.0e-03"),
        ("1F1B", {"gradient_gap": math.nan}, "1F1B: not equal to the unsplit model"),
        (
            "1F1B",
            {"in_flight": (8.0, 8.0, 8.0, 8.0)},
            "in flight are 8, 8, 8, 8 micro-batches, predicted 4, 3, 2, 1",
        ),
    ],
)
def test_checks_can_fail(recorded, name, changes, message):
    failed = _broken(recorded, name, **changes).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_another_order_is_noticed(recorded):
    run = _broken(recorded, "1F1B", orders=recorded.row("GPipe").orders)
    assert not run.runs_as_published("1F1B")
    assert run.failed_checks() == ["1F1B: the ranks ran another order than the published one"]
    assert "no" in str(run.table("equality"))


def test_times_are_never_a_failed_check(recorded):
    row = recorded.row("GPipe")
    late = tuple([tuple([end * 9 for end in ends]) for ends in row.ends_s])
    assert _broken(recorded, "GPipe", ends_s=late).failed_checks() == []


def test_without_a_deadlock_there_is_no_table_of_it(recorded):
    without = dataclasses.replace(recorded, deadlock=())
    assert "deadlock" not in without.make_tables()
    assert "stops for good" not in str(without)
    buffered = dataclasses.replace(recorded, deadlock=("finished", "finished"))
    assert "came to its end here" in buffered.explanation()[-1]


def test_the_words_of_a_few_schedules(recorded):
    one = dataclasses.replace(recorded, schedules=(recorded.row("1F1B"),))
    assert not any("rank 0 keeps" in words for words in one.explanation())
    with pytest.raises(ValueError, match="name must be one of 1F1B, not 'GPipe'"):
        one.row("GPipe")


def test_the_picture_shows_both_timelines(recorded):
    pytest.importorskip("matplotlib")
    for dark, name in ((False, None), (True, "ZBVZeroBubble")):
        above, below = recorded.plot(dark=dark, name=name).axes
        row = recorded.row(name or recorded.schedules[0].name)
        assert "predicted" in above.get_title(loc="left")
        assert f"measured: {row.makespan_s * 1e3:.0f} ms" in below.get_title(loc="left")
        assert below.get_xlabel() == "time, ms"
        operations = 3 * 8 * 4 * row.chunks
        assert len(above.texts) == len(below.texts) == operations


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"schedules": "GPipe"}, "schedules must be a list of names, not 'GPipe'"),
        ({"schedules": []}, "schedules must be a list of names, not []"),
        ({"schedules": ["gpipe"]}, "each of schedules must be one of"),
        ({"micro_batches": 6}, "micro_batches must be a multiple of the 4 ranks and at least 4"),
        ({"micro_batches": 4, "schedules": ["DualPipeV"]}, "and at least 8 for these schedules, not 4"),
        ({"forward_s": 0}, "forward_s must be a finite number above 0 seconds, not 0"),
        ({"backward_weight_s": "1"}, "backward_weight_s must be a finite number above 0 seconds, not '1'"),
        ({"limit_s": -1}, "limit_s must be a finite number above 0 seconds, not -1"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        pipeline(**arguments)
    assert message in str(caught.value)


# ---- the code to read ----


def test_the_code_to_read_is_short():
    source = str(pipeline.source())
    assert source.startswith("class HandStage:")
    for name in ("gpipe_step", "one_f_one_b_step"):
        loop = str(pipeline.source(name))
        assert loop in source
        assert len(loop.splitlines()) <= 20
    assert max(len(line) for line in source.splitlines()) <= 80


def test_the_schedules_of_the_default_run_are_among_those_there_are():
    assert set(DEFAULT) < set(SCHEDULES)
