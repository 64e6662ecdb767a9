"""Each launch file says what to do where its environment is not active."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"
SAID = "torchrun is not on the PATH: activate the environment with torch first, such as . .venv/bin/activate"


def call(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start a launch file with a PATH on which there is nothing."""
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, str(LAUNCH / name), "launch/train.py"],
        env={"PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("one_node.sh", {}),
        ("two_nodes_static.sh", {"NODE": "0", "HEAD": "127.0.0.1"}),
        ("two_nodes_c10d.sh", {"HEAD": "127.0.0.1"}),
        ("slurm.sbatch", {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}),
    ],
)
def test_without_torchrun_it_names_the_environment(tmp_path, name, variables):
    done = call(name, tmp_path, **variables)
    assert done.returncode == 127
    assert done.stderr.splitlines() == [SAID]


def test_the_slurm_file_outside_a_job_says_how_to_submit_it(tmp_path):
    done = call("slurm.sbatch", tmp_path)
    assert done.returncode == 1
    assert "submit this file: sbatch launch/slurm.sbatch" in done.stderr
