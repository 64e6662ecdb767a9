"""What the tests of the launch files share with those of the labs, and where the files are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.conftest import (  # noqa: F401
    family,
    pytest_collection_modifyitems,
    temporary_folders,
    up,
)
from tests.launch.slurm.cluster import free_ports  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture
def launch():
    """The folder with the launch files."""
    return ROOT / "launch"


@pytest.fixture
def launch_environment(monkeypatch):
    """What a reader's shell has after activating the environment: its programs first, and ranks that meet on loopback."""
    programs = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([programs, os.environ["PATH"]]))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def uninterrupted():
    """The losses of so many steps of a launch file's training, by one process that nothing stops."""
    # Read here: pytest itself starts without torch.
    code = """
import importlib, json, sys, torch
from shardlab.labs.ddp_worker import make_batch, training_step
build_model = importlib.import_module(sys.argv[2]).build_model
model = build_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
print(json.dumps([training_step(model, optimizer, [make_batch(step, 32)]) for step in range(int(sys.argv[1]))]))
"""

    def losses(steps, model_of="shardlab.labs.ddp_worker"):
        command = [sys.executable, "-c", code, str(steps), model_of]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        return json.loads(done.stdout)

    return losses
