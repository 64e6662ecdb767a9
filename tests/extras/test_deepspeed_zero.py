"""The DeepSpeed lab: bytes per parameter by ZeRO stage, losses that agree, no compiler needed; checks that can fail."""

import dataclasses
import os
import sys

import pytest

from shardlab import labs
from shardlab.labs.deepspeed_zero import BETAS, FIRST_STEP, DeepspeedRun, HeldStates
from shardlab.labs.machine import installed
from shardlab.labs.run import LabError

PARAMETERS = 16 * 256 * 256
NEEDS_DEEPSPEED = pytest.mark.skipif(not installed("deepspeed"), reason="DeepSpeed is not installed")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One run on two ranks, where no compiler and no ninja can be found."""
    empty, extensions = tmp_path_factory.mktemp("path"), tmp_path_factory.mktemp("extensions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(empty))
        patch.setenv("TORCH_EXTENSIONS_DIR", str(extensions))
        run = labs.deepspeed_zero(ranks=2, limit_s=280, show=False)
    assert os.listdir(extensions) == []
    return run


@pytest.fixture(scope="module")
def recorded():
    return labs.deepspeed_zero.load_recording()


def per_parameter(held):
    return [round(size / PARAMETERS, 2) for size in (held.parameters, held.gradients, held.optimizer)]


@pytest.mark.torch
@NEEDS_DEEPSPEED
def test_bytes_per_parameter_on_two_ranks_without_a_compiler(measured):
    assert not measured.recorded
    assert measured.failed_checks() == []
    assert [row.stage for row in measured.stages] == [0, 1, 2, 3]
    states = {row.stage: [per_parameter(held) for held in row.held] for row in measured.stages}
    assert states == {0: [[2, 2, 12]] * 2, 1: [[2, 1, 6]] * 2, 2: [[2, 1, 6]] * 2, 3: [[1, 1, 6]] * 2}
    assert DeepspeedRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
@NEEDS_DEEPSPEED
def test_nothing_is_left_running(family):
    with pytest.raises(LabError, match="the limit of 4 s") as caught:
        labs.deepspeed_zero(ranks=2, limit_s=4, show=False)
    assert caught.value.cause in ("limit", "start")
    family.assert_all_gone()


def test_the_recorded_run_is_sound(recorded):
    assert recorded.recorded
    assert recorded.failed_checks() == []
    assert recorded.parameters == PARAMETERS
    assert [(row.ranks, row.stage) for row in recorded.stages] == [(n, s) for n in (2, 4) for s in range(4)]
    formula = [row.formula.total_bytes / PARAMETERS for row in recorded.stages]
    assert formula == [16, 10, 9, 8, 16, 7, 5.5, 4]
    expected = [row.expected.total_bytes / PARAMETERS for row in recorded.stages]
    assert expected == [16, 9, 9, 8, 16, 5.5, 5.5, 4]


def test_stages_train_alike_and_stage_0_a_step_ahead(recorded):
    for ranks in (2, 4):
        zero, one = recorded.stage(0, ranks), recorded.stage(1, ranks)
        assert recorded.stage(2, ranks).losses == pytest.approx(one.losses, rel=1e-3)
        assert recorded.stage(3, ranks).losses == pytest.approx(one.losses, rel=1e-3)
        assert zero.losses == pytest.approx(zero.alone, rel=0.02)
        # The tolerance can tell the two apart.
        assert zero.losses[-1] > 1.04 * one.losses[-1]
    # Adam's first two bias corrections, by its own formula: update 1 divided by 1 - b**2 instead of 1 - b.
    first, second = [(1 - b) / (1 - b**2) for b in BETAS]
    assert pytest.approx(first / second**0.5) == FIRST_STEP


@pytest.mark.parametrize("name", ["memory", "losses"])
def test_each_table_says_where_its_numbers_are_from(recorded, name):
    assert recorded.provenance() in str(recorded.table(name))


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    row = recorded.stage(3)
    assert f"Stage 3 holds {row.fullest.total_bytes / PARAMETERS:.2f} bytes per parameter" in words
    assert "stage 1 holds 0.50 bytes of gradients per parameter, where the formula has 2.00" in words
    assert "the first step is 0.74 times as long" in words
    assert "by default it is 1 GB" in words


def with_stage(run, stage, **changes):
    last = run.stage(stage)
    rows = [dataclasses.replace(row, **changes) if row is last else row for row in run.stages]
    return dataclasses.replace(run, stages=tuple(rows))


NAN = float("nan")
WHOLE = HeldStates(2.0 * PARAMETERS, 2.0 * PARAMETERS, 12.0 * PARAMETERS)


@pytest.mark.parametrize(
    ("stage", "changes", "messages"),
    [
        (
            3,
            {"held": (WHOLE,)},
            [
                f"stage 3, 4 ranks: {2 * PARAMETERS:,} B of parameters on a rank, not {PARAMETERS // 2:,} B",
                "B of gradients on a rank",
                "B of optimizer on a rank",
            ],
        ),
        (1, {"held": (HeldStates(2.0 * PARAMETERS, NAN, 3.0 * PARAMETERS),)}, ["nan B of gradients"]),
        (0, {"losses": (1.5, 1.4, 1.3, 1.2, NAN)}, ["losses are off by nan%", "the loss did not fall"]),
    ],
)
def test_checks_can_fail(recorded, stage, changes, messages):
    failed = with_stage(recorded, stage, **changes).failed_checks()
    assert len(failed) == len(messages)
    for sentence, message in zip(failed, messages, strict=True):
        assert message in sentence


def test_a_stage_that_trains_differently_is_seen(recorded):
    row = recorded.stage(2)
    slightly = tuple([loss * (1 + 0.003 * (step > 0)) for step, loss in enumerate(row.losses)])
    failed = with_stage(recorded, 2, losses=slightly).failed_checks()
    assert failed == ["stage 2, 4 ranks: losses are off by 0.3% of stage 1's (allowed 0.1%)"]
    # Stage 0 against a process whose Adam has not counted the idle step.
    failed = with_stage(recorded, 0, alone=recorded.stage(1).alone).failed_checks()
    assert len(failed) == 1
    assert "of one process's (allowed 2%)" in failed[0]


def test_without_deepspeed_the_recorded_run_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("shardlab.labs.machine.installed", lambda module: module != "deepspeed")
    run = labs.deepspeed_zero(ranks=2)
    assert run.recorded
    said = capsys.readouterr().err
    assert "deepspeed is not installed, so no process was started" in said
    assert "pip install 'shardlab[extras]'" in said


def test_what_was_measured_before_a_failure_is_kept(monkeypatch):
    front = sys.modules["shardlab.labs.deepspeed_zero"]

    def fails_on_four(worker, n, params, **_):
        if n == 4:
            raise LabError("rank 1 fell", cause="died", rank=1)
        return labs.Outcome(results=[{"stages": ["two"]}], elapsed_s=1.0, start="fork")

    monkeypatch.setattr(front, "require", lambda *_: None)
    monkeypatch.setattr(front, "run", fails_on_four)
    with pytest.raises(LabError, match="rank 1 fell") as caught:
        labs.deepspeed_zero()
    assert caught.value.partial == {"2 ranks": ["two"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 1}, "ranks must be a whole number from 2 to 64, not 1"),
        ({"ranks": "2"}, "ranks must be a whole number from 2 to 64, not '2'"),
        ({"limit_s": -1}, "limit_s must be a finite number above 0 seconds, not -1"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.deepspeed_zero(**arguments)
    assert message in str(caught.value)


def test_the_source_shown_is_short_and_narrow():
    assert str(labs.deepspeed_zero.source()).startswith("def config(")
    for name in ("config", "train"):
        lines = str(labs.deepspeed_zero.source(name)).splitlines()
        assert len(lines) <= 40
        assert max(len(line) for line in lines) <= 80
