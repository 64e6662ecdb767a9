"""The restart lab: a rank is killed under real torchrun, and training goes on to the last bit."""

import dataclasses
import json
import math
import signal
import socket
import subprocess
import sys
import time

import pytest

from shardlab.labs import restart_agent
from shardlab.labs.restart import RestartRun, restart
from shardlab.labs.run import LabError
from shardlab.models.checkpoint import recovery

PYTHON = sys.executable

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    # Steps so long that a busy machine kills before the last one, and not after it.
    return restart(2, steps=6, every=2, kill_after=3, step_s=0.5, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return restart.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_training_goes_on_to_the_last_bit(measured):
    assert measured.failed_checks() == []
    assert measured.last_attempt == 1
    for whole in measured.uninterrupted:
        before, after = (measured.attempt(whole.rank, attempt) for attempt in (0, 1))
        assert whole.losses[: before.last_step] == before.losses
        assert whole.losses[after.first_step :] == after.losses
        assert after.last_step == whole.last_step == 6
        assert after.digest == whole.digest != ""
        assert before.digest == ""
    # Dropout and data differ from rank to rank; the parameters don't.
    one, other = measured.uninterrupted
    assert one.losses != other.losses
    assert one.digest == other.digest


@pytest.mark.torch
def test_it_lost_what_came_after_the_checkpoint(measured):
    assert measured.killed_after >= 3
    assert measured.resumed_from in (2, 4)
    assert 0 <= measured.lost_steps <= 2
    assert all(row.first_step == measured.resumed_from for row in measured.attempts if row.attempt == 1)
    # Everything of the second attempt is later than the kill, and in this order.
    for rank in (0, 1):
        row = measured.attempt(rank, 1)
        assert 0 < row.born_s < row.joined_s < row.loaded_s < row.done_s[0]


@pytest.mark.torch
def test_a_run_survives_json(measured):
    assert RestartRun.from_json(measured.to_json()) == measured
    assert str(measured.table("recovery")).count("detect") >= 1


# Stays in its first attempt until it is killed itself.
ENDLESS = (
    "from shardlab.labs.restart import restart\n"
    "restart(1, steps=4000, every=2, kill_after=3999, step_s=1.0, limit_s=600, show=False)"
)


@pytest.mark.torch
def test_torchrun_leaves_nothing_when_the_lab_is_killed(family, temporary_folders):
    # Without the run that is not interrupted, which would take its time first.
    code = ENDLESS.replace(
        "restart(1",
        "import sys\nlab = sys.modules['shardlab.labs.restart']\nreal = lab.run\n"
        "lab.run = lambda worker, *a, **k: None if worker == lab.TRAINING else real(worker, *a, **k)\n"
        "lab.restart(1",
    )
    with subprocess.Popen([PYTHON, "-c", code], start_new_session=True) as caller:
        deadline = time.monotonic() + 200

        def ranks():
            lines = [line.partition("restart_agent ")[2] for line in family.living()]
            return [line for line in lines if line.startswith("rank ")]

        while not ranks() and caller.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert ranks()
        # The caller, the launcher, the rank that watches, torchrun and its rank.
        assert len(family.living()) >= 5
        caller.send_signal(signal.SIGKILL)
    family.assert_all_gone()
    assert list(temporary_folders.glob("shardlab-*")) == []


# ---- what the watching rank does, piece by piece ----


def test_only_whole_lines_of_a_journal_are_read(tmp_path):
    assert restart_agent.read_journal(tmp_path, 0, 0) == []
    path = tmp_path / "rank0-attempt0.jsonl"
    path.write_text('{"event": "joined"}\n{"event": "st')
    assert restart_agent.read_journal(tmp_path, 0, 0) == [{"event": "joined"}]
    (tmp_path / "rank0-attempt1.jsonl").write_text('{"event": "born"}\n')
    assert [len(entries) for entries in restart_agent.read_attempts(tmp_path, 0)] == [1, 1]


def test_a_torchrun_that_fails_is_told_with_the_end_of_its_log(tmp_path):
    log = tmp_path / "torchrun.log"
    log.write_text("first\n" * 30 + "the last line\n")
    with (
        subprocess.Popen([PYTHON, "-c", "raise SystemExit(3)"]) as process,
        pytest.raises(RuntimeError, match="ended with exit status 3 before step 5 was done") as caught,
    ):
        restart_agent.wait_for_step(tmp_path, 0, 5, process, log)
    assert str(caught.value).endswith("the last line")
    assert len(str(caught.value).splitlines()) <= 1 + restart_agent.LOG_LINES


def test_the_process_to_kill_is_the_one_that_has_done_the_step(tmp_path):
    lines = [{"event": "joined", "pid": 7}, *[{"event": "step", "step": n, "pid": 7} for n in (1, 2, 3)]]
    (tmp_path / "rank1-attempt0.jsonl").write_text("".join([json.dumps(line) + "\n" for line in lines]))
    with subprocess.Popen([PYTHON, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert restart_agent.wait_for_step(tmp_path, 1, 3, process, tmp_path / "none") == 7
        process.kill()


def test_ports_that_are_taken_are_not_chosen(monkeypatch):
    first = restart_agent.free_ports(2)
    assert 20000 <= first < 32000
    with socket.socket() as taken:
        taken.bind(("", first + 1))
        monkeypatch.setattr(restart_agent.random, "sample", lambda *_: [first])
        with pytest.raises(RuntimeError, match="no free port from 20000 to 32000"):
            restart_agent.free_ports(2)
    assert restart_agent.free_ports(2) == first


def test_torchrun_is_not_told_of_the_rank_that_starts_it(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    ours = restart_agent.environment()
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & set(ours)
    assert ours["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


# ---- what can be said of any result ----


def test_the_recorded_run(recorded):
    assert recorded.recorded
    assert recorded.failed_checks() == []
    text = str(recorded)
    for words in (
        "back where it was",
        "Equal, every bit",
        "same to the last bit",
        "redo (mean)",
        "failure every hour",
    ):
        assert words in text
    assert recorded._repr_html_().count("<table") == 2
    assert "no" not in [row[-1] for row in recorded.table("losses").tables[0].rows]


def test_phases_add_up_and_predictions_are_the_models(recorded):
    phases = recorded.measured_phases_s()
    ends = [recorded.attempt(rank, 1) for rank in range(recorded.settings["ranks"])]
    back = max([row.done_s[recorded.lost_steps - 1] if recorded.lost_steps else row.loaded_s for row in ends])
    assert sum(phases.values()) == pytest.approx(back)
    model = recovery(0.1, recorded.start_s(0), recorded.write_s, 4 * recorded.step_s, recorded.write_s)
    assert recorded.predicted() == model


def _with(run, attempt, **changes):
    rows = [
        dataclasses.replace(row, **changes) if (row.rank, row.attempt) == (0, attempt) else row
        for row in run.attempts
    ]
    return dataclasses.replace(run, attempts=tuple(rows))


@pytest.mark.parametrize("bad", [math.nan, 0.25])
def test_a_loss_that_differs_in_one_bit_or_is_no_number_fails(recorded, bad):
    after = recorded.attempt(0, 1)
    value = bad if math.isnan(bad) else math.nextafter(after.losses[-1], 9)
    failed = _with(recorded, 1, losses=(*after.losses[:-1], value)).failed_checks()
    assert failed == ["rank 0, start 2: the losses of steps [12] differ from those without interruption"]
    assert "see failed_checks" in _with(recorded, 1, losses=(*after.losses[:-1], value)).explanation()[0]


def test_other_checks_can_fail(recorded):
    assert _with(recorded, 1, digest="").failed_checks() == [
        "rank 0: the parameters at the end differ from those without interruption"
    ]
    never = dataclasses.replace(
        recorded, attempts=tuple([row for row in recorded.attempts if row.attempt == 0])
    )
    assert never.failed_checks() == ["the ranks were started 1 times, not 2"]
    settings = {**recorded.settings, "every": 1}
    failed = dataclasses.replace(recorded, settings=settings).failed_checks()
    assert failed[0].endswith("it must lose 0 to 1 steps")
    with pytest.raises(ValueError, match="attempts must be asked for one of"):
        recorded.attempt(9, 0)


# ---- bad input, and where it can't run ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"steps": 2}, "steps must be a whole number of at least 3, not 2"),
        ({"every": 12}, "every must be below steps = 12, not 12"),
        ({"kill_after": 3}, "kill_after must be a whole number from 4 to 11, not 3"),
        ({"kill_after": 12}, "kill_after must be a whole number from 4 to 11, not 12"),
        ({"step_s": 0}, "step_s must be a finite number above 0 seconds, not 0"),
        ({"limit_s": "1"}, "limit_s must be a finite number above 0 seconds, not '1'"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        restart(**arguments)
    assert message in str(caught.value)


def test_inside_a_launcher_it_says_so(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(LabError, match="this lab starts torchrun itself"):
        restart()


def test_on_windows_it_shows_the_recorded_run(monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["shardlab.labs.restart"].sys, "platform", "win32")
    run = restart()
    assert run.recorded
    assert "Windows" in capsys.readouterr().err


def test_the_code_to_read_is_short():
    source = str(restart.source())
    for name in ("train", "save", "load"):
        assert len(str(restart.source(name)).splitlines()) <= 25
        assert str(restart.source(name)) in source
    assert max(len(line) for line in source.splitlines()) <= 80
