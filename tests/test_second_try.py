"""A test on processes or a browser may fail once, which the run then says; what is broken still fails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
from pathlib import Path

import pytest

def fails(times, name):
    file = Path(__file__).with_name(name)
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    assert len(file.read_text()) > times

@pytest.mark.browser
def test_that_chance_fails():
    fails(1, "chance")

@pytest.mark.browser
def test_that_is_broken():
    fails(9, "broken")

def test_of_a_model():
    fails(1, "model")
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])
def test_one_failure_is_forgiven_and_told_where_the_machine_may_be_its_cause(tmp_path, workers):
    (tmp_path / "test_three.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *workers]
    done = subprocess.run(
        [*command, "-c", "pyproject.toml", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1
    assert "2 failed, 1 passed, 2 rerun" in done.stdout
    first = done.stdout.partition("rerun test summary info")[2]
    assert "RERUN test_three.py::test_that_chance_fails" in first
    assert re.search("^E .*assert 1 > 1$", first, re.MULTILINE)
    assert {name: len((tmp_path / name).read_text()) for name in ("chance", "broken", "model")} == {
        "chance": 2,
        "broken": 2,
        "model": 1,
    }
