"""What the labs' tests share: a mark on every process that a test starts, and patience."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from shardlab.labs.machine import torch_installed

MARK = "SHARDLAB_TEST"


HERE = Path(__file__).parent
# What takes longest, for two workers to start with: then both end at nearly the same time.
LONG = [
    "test_run",
    "test_measure_cluster",
    "test_find_the_bug",
    "test_slow_network",
    "test_restart",
    "test_checkpoint",
    "test_pipeline",
    "test_zero",
    "test_tensor_parallel",
    "test_memory",
    "test_data_order",
    "test_ddp",
    "test_expert_parallel",
    "test_ring",
    "test_mesh",
    "test_accumulation",
    "test_local_sgd",
    "test_context_parallel",
    "test_straggler",
    "test_wire",
    "test_every_lab",
]


def pytest_collection_modifyitems(items):
    items.sort(key=_place)
    for item in items:
        # Labs have limits of their own, which a busy machine needs: 600 s.
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1200))
    if torch_installed():
        return
    skip = pytest.mark.skip(reason="torch is not installed")
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(skip)


def _place(item: pytest.Item) -> int:
    if item.path.parent != HERE:
        return -1
    return LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)


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

    def assert_all_gone(self, patience_s: float = 200.0) -> None:
        deadline = time.monotonic() + patience_s
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []


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
        def wait(n: int, patience_s: float = 200.0) -> list[int]:
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
