"""The launch files: torchrun on one node, on two "nodes" of this machine, and the training script that resumes."""

import json
import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest

from shardlab.labs.ddp import DdpRun
from tests.launch.conftest import free_ports

pytestmark = pytest.mark.timeout(1200)
LAB = ["-m", "shardlab", "lab", "ddp", "--ranks", "4", "--steps", "1"]


@pytest.fixture
def start(launch, launch_environment, family):
    """Start a script of the launch folder; at the test's end it is ended if it still runs."""
    started = []

    def run(script, *arguments, **settings):
        environment = {
            **os.environ,
            "LIMIT_S": "380",
            **{name: str(value) for name, value in settings.items()},
        }
        process = subprocess.Popen(
            [str(launch / script), *[str(argument) for argument in arguments]],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)


def finish(*processes):
    """What each printed, after all have ended well."""
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)
    return outputs


# ---- one lab, the same command everywhere ----


@pytest.mark.torch
def test_one_node_runs_the_lab(start, tmp_path):
    finish(start("one_node.sh", *LAB, "--json", tmp_path / "ddp.json", RANKS=4))
    check_lab(tmp_path / "ddp.json")


@pytest.mark.torch
def test_two_nodes_with_fixed_ranks_run_the_lab(start, tmp_path):
    settings = {"HEAD": "127.0.0.1", "PORT": free_ports(1)[0], "RANKS": 2}
    nodes = [
        start("two_nodes_static.sh", *LAB, "--json", tmp_path / "ddp.json", NODE=node, **settings)
        for node in (0, 1)
    ]
    first, second = finish(*nodes)
    check_lab(tmp_path / "ddp.json")
    # Rank 0 speaks for all.
    assert "Strong scaling" in first
    assert "Strong scaling" not in second


def check_lab(file):
    run = DdpRun.from_json(file.read_text())
    assert run.failed_checks() == []
    assert [row.ranks for row in run.equality] == [1, 2, 4]


@pytest.mark.torch
def test_two_nodes_that_find_each_other_train_and_resume(start, launch, tmp_path, uninterrupted):
    settings = {"HEAD": "127.0.0.1", "RANKS": 2}
    train = [launch / "train.py", "--folder", tmp_path / "run", "--every", 4]
    nodes = [
        start("two_nodes_c10d.sh", *train, "--steps", 6, PORT=port, **settings) for port in free_ports(1) * 2
    ]
    assert "starts at step 0 of 6 on 4 ranks" in "".join(finish(*nodes))
    # On as many ranks as there are: the checkpoint is of the whole model.
    (output,) = finish(start("one_node.sh", *train, "--steps", 10, RANKS=1))
    assert "starts at step 6 of 10 on 1 ranks" in output
    losses = json.loads((tmp_path / "run" / "losses.json").read_text())
    assert losses == pytest.approx(uninterrupted(10), rel=1e-5)


@pytest.mark.torch
def test_a_signal_saves_and_ends_with_its_own_status(start, launch, tmp_path):
    train = [
        launch / "train.py",
        "--folder",
        tmp_path / "run",
        "--steps",
        1000,
        "--every",
        1000,
        "--pause-s",
        0.2,
    ]
    process = start("one_node.sh", *train, RANKS=1)
    line = next(text for text in process.stdout if "train.py:" in text)
    assert "starts at step 0 of 1000" in line
    signal_ranks(process, signal.SIGUSR1)
    output, _ = process.communicate(timeout=300)
    assert "was asked to stop: saved at step" in output
    assert "exitcode  : 85" in output
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert not (tmp_path / "run" / "checkpoint.tmp").exists()


def signal_ranks(process, number):
    """To each process that torchrun has started for this script."""
    # By its arguments as the kernel holds them: ps cuts them off at $COLUMNS.
    ranks = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "-u" in child.cmdline() and any(word.endswith("train.py") for word in child.cmdline())
    ]
    assert ranks
    for rank in ranks:
        rank.send_signal(number)


@pytest.mark.torch
def test_after_a_crash_torchrun_restarts_from_the_checkpoint(start, launch, tmp_path, uninterrupted):
    train = [launch / "train.py", "--folder", tmp_path / "run", "--steps", 12, "--every", 3, "--pause-s", 0.5]
    process = start("one_node.sh", *train, RANKS=2, RESTARTS=1)
    lines = []
    for text in process.stdout:
        lines.append(text)
        if "starts at step" in text and len([line for line in lines if "starts at step" in line]) == 1:
            wait_for(tmp_path / "run" / "checkpoint.pt")
            signal_ranks(process, signal.SIGKILL)
    assert process.wait(200) == 0, "".join(lines)
    starts = [line for line in lines if "starts at step" in line]
    assert len(starts) == 2
    assert "starts at step 0 of 12" not in starts[1]
    losses = json.loads((tmp_path / "run" / "losses.json").read_text())
    assert losses == pytest.approx(uninterrupted(12), rel=1e-5)


def wait_for(file, patience_s=120):
    deadline = time.monotonic() + patience_s
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# ---- the scripts themselves ----


def scripts(launch):
    return sorted([*launch.glob("*.sh"), *launch.glob("*.sbatch")])


def test_the_scripts_are_strict_and_limited(launch):
    assert [script.name for script in scripts(launch)] == [
        "one_node.sh", "ray_job.sh", "slurm.sbatch", "two_nodes_c10d.sh", "two_nodes_static.sh",
    ]  # fmt: skip
    for script in scripts(launch):
        text = script.read_text()
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "\nset -euo pipefail\n" in text
        assert "timeout --kill-after" in text or "#SBATCH --time" in text
        assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(launch):
    done = subprocess.run(
        ["shellcheck", *[str(script) for script in scripts(launch)]], capture_output=True, text=True
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("script", "settings", "message"),
    [
        (
            "two_nodes_static.sh",
            {"HEAD": "127.0.0.1"},
            "NODE must be 0 on the first node and 1 on the second",
        ),
        ("two_nodes_static.sh", {"NODE": 0}, "HEAD must be the address of node 0"),
        ("two_nodes_c10d.sh", {}, "HEAD must be the address of one of the two nodes"),
    ],
)
def test_a_missing_setting_is_named(start, script, settings, message):
    process = start(script, *LAB, **settings)
    assert message in process.communicate(timeout=200)[0]
    assert process.returncode != 0


@pytest.mark.torch
def test_a_limit_ends_everything(start, launch, tmp_path):
    process = start(
        "one_node.sh", launch / "train.py", "--folder", tmp_path, "--pause-s", 1000, RANKS=1, LIMIT_S=5
    )
    process.communicate(timeout=300)
    assert process.returncode == 124


def test_the_page_names_every_file(launch):
    page = (launch / "README.md").read_text()
    for file in launch.iterdir():
        if file.name not in ("README.md", "__pycache__"):
            assert f"`{file.name}`" in page, file.name
