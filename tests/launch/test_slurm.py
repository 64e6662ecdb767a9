"""The shipped sbatch file on a real, temporary Slurm of two nodes: a lab runs; a training run is stopped and resumes."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

from shardlab.labs.ddp import DdpRun

sys.path.insert(0, str(Path(__file__).parent / "slurm"))
import cluster as slurm

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing())),
]


@pytest.fixture
def cluster(family, launch_environment):
    with slurm.running() as made:
        yield made


def submit(cluster, launch, log, *arguments, options=()):
    """Submit the shipped file; the job's number."""
    command = ["sbatch", "--parsable", f"--output={log}", *options, str(launch / "slurm.sbatch"), *arguments]
    return int(cluster.ask(*command))


def wait_for_line(cluster, log, pattern, patience_s=400.0):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = log.exists() and re.findall(pattern, log.read_text())
        if found:
            return found
        time.sleep(0.3)
    queue = cluster.ask("scontrol", "show", "job") + cluster.ask("scontrol", "show", "node")
    text = log.read_text() if log.exists() else "no log"
    raise AssertionError(f"no line with {pattern!r} in:\n{text}\n{queue}\n{cluster.logs()}")


def test_the_sbatch_file_runs_the_ddp_lab_on_two_nodes(cluster, launch, tmp_path):
    log, result = tmp_path / "job.log", tmp_path / "ddp.json"
    lab = ["-m", "shardlab", "lab", "ddp", "--ranks", "4", "--steps", "1", "--json", str(result)]
    job = submit(cluster, launch, log, *lab)
    state = cluster.wait_for(job, ("COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT"), patience_s=600)
    assert state == "COMPLETED", log.read_text()
    assert cluster.job(job)["NumNodes"] == "2"
    run = DdpRun.from_json(result.read_text())
    assert run.failed_checks() == []
    assert [row.ranks for row in run.equality] == [1, 2, 4]


def test_a_job_that_is_asked_to_stop_saves_requeues_and_resumes(cluster, launch, tmp_path, uninterrupted):
    log, folder = tmp_path / "job.log", tmp_path / "run"
    # Checkpoints far apart: what it resumes from is what the signal made it save.
    train = [str(launch / "train.py"), "--folder", str(folder), "--steps", "24", "--every", "1000"]
    job = submit(cluster, launch, log, *train, "--pause-s", "0.5")
    wait_for_line(cluster, log, "starts at step 0 of 24 on 4 ranks")
    # As Slurm does it itself, 90 s before the time limit.
    cluster.ask("scancel", "--signal=USR1", "--batch", str(job))
    wait_for_line(cluster, log, "slurm.sbatch: requeued")
    saved = int(wait_for_line(cluster, log, r"was asked to stop: saved at step (\d+)")[0])
    assert 0 < saved < 24
    # Slurm lets a requeued job rest for two minutes. In the very second of the requeue it couldn't start: slurmd takes
    # its new credential for the revoked one.
    cluster.wait_for(job, ("PENDING",), patience_s=60)
    assert cluster.job(job)["Restarts"] == "1"
    time.sleep(3)
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for_line(cluster, log, f"starts at step {saved} of 24 on 4 ranks")
    state = cluster.wait_for(job, ("COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT"), patience_s=300)
    assert state == "COMPLETED", log.read_text()
    assert re.findall(r"starts at step (\d+) of 24", log.read_text()) == ["0", str(saved)]
    assert json.loads((folder / "losses.json").read_text()) == pytest.approx(uninterrupted(24), rel=1e-5)


def test_a_job_that_fails_is_a_failed_job(cluster, launch, tmp_path):
    log = tmp_path / "job.log"
    job = submit(cluster, launch, log, "-m", "shardlab", "lab", "ddp", "--ranks", "3")
    state = cluster.wait_for(job, ("COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT"), patience_s=600)
    assert state == "FAILED"
    assert "batches must be divisible by each number of ranks" in log.read_text()
