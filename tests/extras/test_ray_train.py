"""The Ray lab on a real Ray: a worker dies, all start again from the checkpoint, and nothing is left running."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.labs.ray_train import RayTrainRun, StepRow, ray_train
from shardlab.labs.run import LabError
from tests.labs.conftest import MARK, Family

MODULE = sys.modules["shardlab.labs.ray_train"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result; what it has started must be gone after it."""
    pytest.importorskip("ray")
    home = Path.home() / ".ray"
    before = home.exists()
    kin = Family()
    os.environ[MARK] = kin.mark
    try:
        run = ray_train.function(2, steps=9, every=3, fail_at=5, limit_s=500, show=False)
    finally:
        del os.environ[MARK]
    kin.assert_all_gone()
    assert home.exists() == before
    return run


@pytest.fixture
def sample():
    """A run made by hand: what can be said of any result."""
    rows = [(1, step) for step in range(8)] + [(2, step) for step in range(5, 16)]
    return RayTrainRun(
        settings={"workers": 2, "steps": 16, "every": 5, "fail_at": 8},
        stamp=MODULE.machine.stamp(),
        backend="gloo",
        reading=None,
        threads=1,
        elapsed_s=60.0,
        steps=tuple([StepRow(life, step, 1 / (step + 1), 1 / (step + 1) + 1e-8) for life, step in rows]),
        starts=(0, 5),
        parameter_gap=1e-8,
        init_s=4.0,
        first_step_s=10.0,
        down_s=12.0,
        step_s=0.1,
        redone_s=0.3,
    )


@pytest.mark.torch
def test_the_losses_go_on_as_if_nothing_had_happened(measured):
    assert measured.failed_checks() == []
    assert measured.starts == (0, 3)
    assert [row.step for row in measured.steps] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8]
    assert [row.life for row in measured.steps] == [1] * 5 + [2] * 6
    assert all(row.gap <= 1e-6 for row in measured.steps)
    assert measured.steps[0].loss > measured.steps[-1].loss
    assert 0 < measured.parameter_gap <= 1e-6
    assert measured.redone == 2


@pytest.mark.torch
def test_a_run_survives_json(measured):
    assert RayTrainRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
def test_the_jobs_entry_runs_by_itself(launch, launch_environment, family, tmp_path, uninterrupted):
    pytest.importorskip("ray")
    folder = tmp_path / "run"
    command = [
        sys.executable,
        str(launch / "ray_job.py"),
        "--folder",
        str(folder),
        "--steps",
        "4",
        "--every",
        "2",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, start_new_session=True)
    assert done.returncode == 0, done.stderr
    assert "ray_job.py: finished 4 steps" in done.stdout
    alone = uninterrupted(4, model_of="shardlab.labs.ray_train_worker")
    assert json.loads((folder / "losses.json").read_text()) == pytest.approx(alone, rel=1e-5)


# ---- what can be said of any result ----


def test_the_recorded_run_is_marked_and_sound():
    recorded = ray_train.load_recording()
    assert recorded.recorded
    assert recorded.failed_checks() == []
    assert recorded.starts == (0, 5)
    assert "Recorded earlier, not measured here" in str(recorded)


def test_tables_and_words_carry_the_numbers(sample):
    assert sample.failed_checks() == []
    text = str(sample)
    assert "one worker killed before step 8" in text
    assert "3 steps were executed twice, 19 in all" in text
    assert "Redo 3 steps" in text
    assert "300 ms" in text
    assert sample.predicted.rto_s == 12.0
    assert sample.predicted.rpo_s == pytest.approx(0.25)
    assert RayTrainRun.from_json(sample.to_json()) == sample


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameter_gap": float("nan")}, "after the last step the parameters differ by nan"),
        ({"starts": (0, 0)}, "training began at steps (0, 0), not at 0 and, from its checkpoint, 5"),
        ({"starts": (0,)}, "training began at steps (0,)"),
    ],
)
def test_checks_can_fail(sample, changes, message):
    (failed,) = dataclasses.replace(sample, **changes).failed_checks()
    assert message in failed


def test_a_wrong_loss_and_a_missing_step_fail(sample):
    wrong = dataclasses.replace(sample.steps[9], loss=float("nan"))
    rows = (*sample.steps[:9], wrong, *sample.steps[10:])
    (failed,) = dataclasses.replace(sample, steps=rows).failed_checks()
    assert "step 6, life 2: the loss is nan from one process's" in failed
    (failed,) = dataclasses.replace(sample, steps=sample.steps[:-1]).failed_checks()
    assert "not every one of the 16 steps was executed" in failed
    (failed,) = dataclasses.replace(sample, steps=(*sample.steps, sample.steps[-1])).failed_checks()
    assert "4 steps were executed twice, not the 3 since the checkpoint" in failed


def test_a_worker_that_did_not_die_is_no_result():
    with pytest.raises(LabError, match="did not") as caught:
        MODULE._evaluate({"events": []}, {}, 1.0)
    assert caught.value.cause == "measurement"


def test_a_step_noted_after_the_death_belongs_to_the_life_that_did_it():
    kinds = [
        ("start", 0),
        ("step", 0),
        ("step", 1),
        ("death", 3),
        ("step", 2),
        ("start", 2),
        ("step", 2),
        ("step", 3),
    ]
    events = [{"kind": kind, "step": step, "time": float(i)} for i, (kind, step) in enumerate(kinds)]
    assert [(life, event["step"]) for life, event in MODULE._lives(events)] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 2),
        (2, 3),
    ]


def test_without_ray_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(MODULE.machine, "torch_installed", lambda: True)
    monkeypatch.setattr(MODULE.machine, "installed", lambda module: module != "ray")
    with pytest.raises(LabError, match=r"ray is not installed.*shardlab\[ray\]") as caught:
        ray_train.function()
    assert caught.value.cause == "missing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 1}, "workers must be a whole number from 2 to 4, not 1"),
        ({"workers": 3}, "workers must divide the global batch of 32, not 3"),
        ({"steps": 2}, "steps must be a whole number of at least 3, not 2"),
        ({"fail_at": 16}, "fail_at must be a whole number from 2 to 15, not 16"),
        ({"every": 8}, "every must be a whole number from 1 to 7, not 8"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        ray_train(**arguments)
    assert message in str(caught.value)


def test_the_source_shown_is_the_code_that_runs():
    source = str(ray_train.source())
    assert source.startswith("def train_loop(")
    assert len(source.splitlines()) <= 27
    assert max(len(line) for line in source.splitlines()) <= 80
