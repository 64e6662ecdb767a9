"""The checkpoint lab: bitwise resume, what omissions do, resharding, async saves, and what must never be loaded."""

import dataclasses
import importlib
import math
import re

import pytest

from shardlab import labs
from shardlab.labs.checkpoint import CheckpointRun
from shardlab.labs.run import LabError
from shardlab.models.checkpoint import checkpoint_bytes

# The package gives the lab itself under this name.
FRONT = importlib.import_module("shardlab.labs.checkpoint")
OMISSIONS = ("optimizer", "scheduler", "random state", "data position")


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.checkpoint(ranks=2, steps=4, batch=16, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.checkpoint.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_with_everything_the_resumed_run_is_the_uninterrupted_one(measured):
    row = measured.resume_row()
    assert len(measured.losses) == len(row.loss_gaps) == len(row.parameter_gaps) == 4
    assert set(row.loss_gaps) == set(row.parameter_gaps) == {0.0}
    assert all(math.isfinite(loss) for loss in measured.losses)


@pytest.mark.torch
def test_each_omission_shows_in_its_own_way(measured):
    assert [row.missing for row in measured.resumes] == ["", *OMISSIONS]
    # The parameters are right, so the first loss is; then they part.
    for name in ("optimizer", "scheduler"):
        assert measured.resume_row(name).loss_gaps[0] == 0
        assert measured.resume_row(name).parameter_gaps[-1] > 0
    # A lost scheduler shows one step after a lost optimizer: the learning rate of the first step is the optimizer's.
    assert measured.resume_row("optimizer").parameter_gaps[0] > 0
    assert measured.resume_row("scheduler").parameter_gaps[0] == 0
    # Other masks, other batches: the first loss tells.
    assert measured.resume_row("random state").loss_gaps[0] > 0
    assert measured.resume_row("data position").loss_gaps[0] > 0.3


@pytest.mark.torch
def test_it_loads_on_fewer_and_on_more_ranks(measured):
    assert [row.ranks for row in measured.reshards] == [2, 1, 4]
    for row in measured.reshards:
        assert row.exact
        assert max(row.loss_gaps) <= 1e-5
    assert set(measured.reshard_row(2).loss_gaps) == {0.0}


@pytest.mark.torch
def test_the_disk_holds_what_was_predicted(measured):
    assert [row.rank for row in measured.files] == [0, 1]
    share = checkpoint_bytes(measured.saves.parameters, "adam-12") / 2
    for row in measured.files:
        assert row.predicted_bytes == share
        assert 0 <= row.overhead < 0.05


@pytest.mark.torch
def test_async_save_holds_the_state_at_the_call(measured):
    saves = measured.saves
    assert saves.snapshot_exact
    assert saves.blocked_s > 0
    assert saves.durable_s > 0
    assert saves.save_s > 0
    assert saves.steps_meanwhile >= 0


@pytest.mark.torch
def test_damage_is_refused_and_one_kind_of_it_only_by_the_check(measured):
    alone = {row.damage: row.alone for row in measured.damages}
    assert all(row.refused for row in measured.damages)
    assert alone["one bit has flipped"] == "loads something else"
    assert {kind for name, kind in alone.items() if name != "one bit has flipped"} == {"refuses"}
    said = " ".join([row.refused for row in measured.damages])
    assert ".metadata is missing" in said
    assert "__0_0.distcp is missing" in said
    assert re.search(r"__0_0\.distcp has \d+ of \d+ bytes", said)
    assert "checksum" in said


@pytest.mark.torch
def test_a_kill_in_the_middle_of_a_save_leaves_the_last_one(measured):
    crash = measured.crash
    assert crash.latest == "step-10"
    assert crash.left == "step-12.draft"
    assert crash.left_bytes > 0
    assert crash.refused == "step-12.draft: no manifest.json, so its save never ended"


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert CheckpointRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
def test_no_folder_is_left_after_the_limit(family, temporary_folders):
    with pytest.raises(LabError, match="the limit of 3 s"):
        labs.checkpoint(ranks=2, batch=16, limit_s=3, show=False)
    # Of ours; what a library was about to write when it was killed is the library's.
    assert list(temporary_folders.glob("shardlab-*")) == []
    family.assert_all_gone()


@pytest.mark.torch
def test_a_failed_second_run_keeps_what_the_first_measured(monkeypatch, recorded, temporary_folders):
    whole = {"digest": "0", "reshards": [{"losses": [1.0]}]}

    def stand_in(worker, ranks, params, **_):
        if worker.endswith(":worker"):
            assert params["kill"]
            raise LabError("killed", cause="died", partial={"measured": whole})
        assert ranks == 8
        assert params["digest"] == "0"
        raise LabError("no", cause="error", partial={"more": 1})

    monkeypatch.setattr(FRONT, "run", stand_in)
    with pytest.raises(LabError, match="no") as caught:
        labs.checkpoint()
    assert caught.value.partial == {**whole, "more": 1}
    assert list(temporary_folders.iterdir()) == []


@pytest.mark.torch
def test_a_rank_that_dies_before_the_end_is_an_error(monkeypatch):
    def stand_in(*_, **__):
        raise LabError("killed", cause="died", partial={"resumes": []})

    monkeypatch.setattr(FRONT, "run", stand_in)
    with pytest.raises(LabError, match="killed") as caught:
        labs.checkpoint()
    assert caught.value.partial == {"resumes": []}


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.settings["ranks"] == 4
    assert [row.ranks for row in recorded.reshards] == [4, 2, 1, 8]


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    assert f"the parameters are {recorded.resume_row('optimizer').parameter_gaps[-1]:.0%}" in words
    assert f"differs by {recorded.resume_row('data position').loss_gaps[0]:.2f}" in words
    assert "bit by bit" in words
    assert "NOT" not in words
    assert "op.preamble.length <= op.nbytes" in words
    assert "on 8 ranks" in words
    for text in (str(recorded), recorded._repr_html_()):
        assert "step-10" in text
    assert recorded._repr_html_().count("<table") == 5


def _row(rows, index, **changes):
    return (*rows[:index], dataclasses.replace(rows[index], **changes), *rows[index + 1 :])


NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {"resumes": _row(r.resumes, 0, loss_gaps=(0.0, 1e-9))}, "not the uninterrupted one"),
        (lambda r: {"resumes": _row(r.resumes, 0, parameter_gaps=(0.0, NAN))}, "not the uninterrupted one"),
        (
            lambda r: {"resumes": _row(r.resumes, 1, parameter_gaps=(0.0,))},
            "leaving out the optimizer does not show",
        ),
        (
            lambda r: {"resumes": _row(r.resumes, 4, parameter_gaps=(NAN,))},
            "leaving out the data position does not show",
        ),
        (
            lambda r: {"resumes": _row(r.resumes, 2, loss_gaps=(0.1,))},
            "without the scheduler, the first loss is not",
        ),
        (lambda r: {"reshards": _row(r.reshards, 1, exact=False)}, "loaded on 2 ranks, the state is not"),
        (lambda r: {"reshards": _row(r.reshards, 2, loss_gaps=(NAN,))}, "loaded on 1 rank, the first loss"),
        (lambda r: {"files": _row(r.files, 3, disk_bytes=r.files[3].disk_bytes // 2)}, "rank 3 wrote -4"),
        (
            lambda r: {"saves": dataclasses.replace(r.saves, snapshot_exact=False)},
            "async_save wrote something else",
        ),
        (lambda r: {"damages": _row(r.damages, 3, refused=None)}, "not refused: one bit has flipped"),
        (lambda r: {"crash": dataclasses.replace(r.crash, latest="step-12")}, "latest checkpoint is step-12"),
        (
            lambda r: {"crash": dataclasses.replace(r.crash, refused=None)},
            "half-written checkpoint was not refused",
        ),
    ],
)
def test_checks_can_fail(recorded, change, message):
    [sentence] = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert message in sentence


def test_under_a_launcher_there_is_no_crash_to_show(recorded):
    launched = dataclasses.replace(recorded, crash=None, reshards=recorded.reshards[:1])
    assert launched.failed_checks() == []
    assert "killed" not in str(launched)
    assert CheckpointRun.from_json(launched.to_json()) == launched


def test_times_are_never_a_failed_check(recorded):
    slow = dataclasses.replace(recorded.saves, blocked_s=900.0, durable_s=901.0)
    assert dataclasses.replace(recorded, saves=slow).failed_checks() == []


def test_the_picture_names_its_axes_and_lines(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        figure = recorded.plot(dark=dark)
        left, right = figure.axes
        assert left.get_xlabel() == right.get_xlabel() == "step after resuming"
        assert left.get_ylabel() == "loss gap"
        assert right.get_ylabel() == "parameter gap, % of the norm"
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert names == [f"without {name}" for name in OMISSIONS]
        for name, line in zip(OMISSIONS, left.lines, strict=True):
            assert tuple(line.get_ydata()) == recorded.resume_row(name).loss_gaps


# ---- bad input, and the code to read ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 32, not 0"),
        ({"ranks": 33}, "ranks must be a whole number from 1 to 32, not 33"),
        ({"steps": 1}, "steps must be a whole number of at least 2, not 1"),
        ({"batch": 12}, "batch must be a multiple of 2 * ranks = 8, not 12"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.checkpoint(**arguments)
    assert message in str(caught.value)


def test_the_code_to_read_is_short():
    for name in ("state_of", "put_back", "save", "commit", "check_complete", "load"):
        lines = str(labs.checkpoint.source(name)).splitlines()
        assert len(lines) <= 25
        assert max(len(line) for line in lines) <= 80
    assert str(labs.checkpoint.source()).startswith("def state_of(")
