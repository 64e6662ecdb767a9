"""What the labs' tests share: a mark on every process that a test starts, and patience."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from shardlab.labs.machine import torch_installed

MARK = "SHARDLAB_TEST"


def pytest_collection_modifyitems(items):
    if torch_installed():
        return
    skip = pytest.mark.skip(reason="torch is not installed")
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(skip)


class Family:
    """Finds the processes that a test has started, by the mark that they inherit through the environment."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def living(self) -> list[str]:
        """``pid command`` of each, zombies left out: they wait for their parent's look, and hold nothing."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes()
                if f"{MARK}={self.mark}".encode() in environment and "Z" not in _state(entry):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(f"{entry.name} {command}")
            except OSError:
                continue
        return found

    def assert_all_gone(self, patience_s: float = 20.0) -> None:
        deadline = time.monotonic() + patience_s
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.living() == []


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def family(monkeypatch):
    """Marks everything that the test starts; at its end nothing of that may be left running."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("looks for leftover processes in /proc")
    kin = Family()
    monkeypatch.setenv(MARK, kin.mark)
    yield kin
    kin.assert_all_gone()


@pytest.fixture
def up(tmp_path):
    """A folder in which ranks announce themselves; ``up.wait(n)`` returns their process ids."""
    folder = tmp_path / "up"
    folder.mkdir()

    class Up:
        path = str(folder)

        @staticmethod
        def wait(n: int, patience_s: float = 150.0) -> list[int]:
            deadline = time.monotonic() + patience_s
            ready: list[Path] = []
            while time.monotonic() < deadline:
                ready = [entry for entry in folder.iterdir() if entry.read_text()]
                if len(ready) == n:
                    return [int(entry.read_text()) for entry in ready]
                time.sleep(0.1)
            raise AssertionError(f"only {len(ready)} of {n} ranks came up in {patience_s} s")

    return Up()


@pytest.fixture
def temporary_folders(tmp_path, monkeypatch):
    """Where runs make their folders; empty again when they have cleaned up."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder
