"""The sandbox: what it needs, what it says without it, what it gives, and what is left of a run that is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from course_folder import RING, Course, grading_python
from descendants import after_patience, watched
from submission import REPOSITORY

from shardlab.labs.machine import torch_installed

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def one_assignment(tmp_path_factory) -> Path:
    """A released course with one assignment."""
    root = tmp_path_factory.mktemp("isolation") / "course"
    shutil.copytree(REPOSITORY / "exercises" / "source" / RING.name, root / "source" / RING.name)
    assert Course(root).run("release").returncode == 0
    return root


@pytest.fixture
def course(one_assignment, tmp_path) -> Course:
    """A copy of it."""
    return Course(Path(shutil.copytree(one_assignment, tmp_path / "course")))


def grade(course: Course, *options: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The grade command in another environment."""
    command = [grading_python(), str(REPOSITORY / "tools" / "exercises.py"), "grade", *map(str, options)]
    return subprocess.run(
        [*command, "--root", str(course.root)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )


@pytest.fixture
def programs():
    """A folder for a PATH of its own, which anybody may read: root gives up its rights before it runs bwrap."""
    with tempfile.TemporaryDirectory(prefix="exercises-path-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for program in ("sh", "true", "uname"):
            found = shutil.which(program)
            assert found
            (folder / program).symlink_to(found)
        yield folder


def test_without_bubblewrap_nothing_is_graded(course, programs):
    course.hand_in("ada", RING.reference)
    done = grade(course, PATH=str(programs))
    assert done.returncode == 1
    assert "there is no bwrap here" in done.stderr
    assert "apt install bubblewrap" in done.stderr
    assert "--no-isolation" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (course.root / "autograded").exists()


def test_where_user_namespaces_are_forbidden_it_says_so(course, programs):
    course.hand_in("ada", RING.reference)
    program = programs / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    done = grade(course, PATH=str(programs))
    assert done.returncode == 1
    assert "No permissions to create new namespace" in done.stderr
    assert "user namespaces are forbidden" in done.stderr


def test_without_isolation_there_is_a_warning_and_the_same_marks(course, programs):
    course.hand_in("ada", RING.reference)
    course.hand_in("eve", {**RING.reference, "task-2-code": "Checklist.total = lambda self: 6"})
    done = grade(course, "--no-isolation", PATH=str(programs))
    assert done.returncode == 0, done.stderr
    assert "submissions run with your rights" in done.stderr
    assert course.marks("ada") == RING.full
    assert "Checklist.total was replaced" in course.rows()["eve"]["error"]


def test_a_python_without_what_it_takes_is_refused(course, tmp_path):
    course.hand_in("ada", RING.reference)
    bare = tmp_path / "bare"
    subprocess.run([grading_python(), "-m", "venv", "--without-pip", str(bare)], check=True, timeout=200)
    done = grade(course, "--kernel-python", bare / "bin" / "python")
    assert done.returncode == 1
    assert "has no IPython and no shardlab" in done.stderr


@pytest.mark.skipif(not torch_installed(), reason="needs torch")
@pytest.mark.torch
def test_a_python_below_tmp_would_be_hidden_inside_and_is_refused(course, programs):
    course.hand_in("ada", RING.reference)
    python = programs / "python"
    told = {"found": {"torch": True, "IPython": True, "shardlab": True}, "folders": [str(programs)]}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    python.chmod(0o755)
    done = grade(course, "--kernel-python", python)
    assert done.returncode == 1
    assert f"{python} needs {programs}, and inside of the sandbox /tmp is" in done.stderr


def test_gloo_ranks_run_in_the_sandbox(course):
    shows = 'import torch\nprint("threads", torch.get_num_threads(), torch.ones(2).sum().item())\n'
    course.hand_in("ada", {**RING.reference, "task-5-code": shows + RING.reference["task-5-code"]})
    course.hand_in("bob", RING.reference)
    assert course.run("grade").returncode == 0
    assert course.marks("ada") == course.marks("bob") == RING.full
    assert "gloo ranks right on every rank: True" in course.output("ada")
    # Nothing in the assignment's checks needs torch, so a submission that doesn't ask for it is spared the wait.
    assert "simulated ranks right on every rank: True" in course.output("bob")


def test_an_assignment_that_needs_torch_says_so(course):
    path = course.root / "source" / RING.name / RING.notebook
    notebook = json.loads(path.read_text())
    notebook["metadata"]["shardlab"] = {"needs_torch": True}
    path.write_text(json.dumps(notebook))
    course.hand_in("ada", RING.reference)
    done = grade(course, "--kernel-python", grading_python())
    assert done.returncode == 1
    assert "03_ring_allreduce runs ranks on PyTorch" in done.stderr
    assert "--kernel-python" in done.stderr
    # It isn't the student's fault: no marks, and no record either.
    assert course.rows() == {}


def test_one_submission_finds_nothing_of_another(course):
    leaves = """
import os, subprocess
from pathlib import Path
print("FOUND", sorted(Path("/tmp/work").iterdir()), list(Path("/dev/shm").iterdir()), Path("/tmp/here").exists())
Path("/tmp/here").write_text("mine")
Path("/dev/shm/here").write_text("mine")
subprocess.Popen(["sleep", "27182"])
print("PROCESSES", sorted(int(one) for one in os.listdir("/proc") if one.isdigit())[-1] < 20)
"""
    for student in ("ada", "bob", "eve"):
        path = course.hand_in(
            student, {**RING.reference, "task-1-answer": leaves + RING.reference["task-1-answer"]}
        )
    (path.parent / "data.txt").write_text("my own file")
    assert course.run("grade", "--jobs", 1).returncode == 0
    for student in ("ada", "bob"):
        assert "FOUND [] [] False" in course.output(student)
        assert "PROCESSES True" in course.output(student)
    assert "FOUND [PosixPath('/tmp/work/data.txt')] [] False" in course.output("eve")
    assert all(course.marks(student) == RING.full for student in ("ada", "bob", "eve"))


@pytest.fixture
def descendants():
    """Finds what this test has started; other tests that grade at the same time are not among them."""
    with watched() as living:
        yield living


def test_a_run_that_is_killed_goes_on_where_it_stopped(course, descendants):
    students = [f"student{number:02}" for number in range(8)]
    # The last two are still at work when we come to kill the run, however slowly we look.
    slow = {
        **RING.reference,
        "task-1-answer": f"import time\ntime.sleep(40)\n{RING.reference['task-1-answer']}",
    }
    for student in students:
        course.hand_in(student, slow if student in students[-2:] else RING.reference)
    script = str(REPOSITORY / "tools" / "exercises.py")
    run = subprocess.Popen(
        [grading_python(), script, "grade", "--root", str(course.root), "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    records = course.root / "autograded" / ".records" / RING.name
    sandboxed, deadline = False, time.monotonic() + 300
    while time.monotonic() < deadline and run.poll() is None:
        sandboxed = any("exercises_kernel" in command for command in descendants())
        if sandboxed and len(list(records.glob("*.json"))) >= 3:
            break
        time.sleep(0.02)
    assert sandboxed
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert after_patience(descendants) == []
    for student in students[-2:]:
        course.hand_in(student, RING.reference)
    kept = {path.stem: path.read_bytes() for path in records.glob("*.json")}
    assert 3 <= len(kept) < len(students)
    done = course.run("grade")
    assert done.returncode == 0, done.stderr
    unchanged = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(": unchanged")]
    assert sorted(unchanged) == sorted(kept)
    assert all((records / f"{student}.json").read_bytes() == text for student, text in kept.items())
    assert all(course.marks(student) == RING.full for student in students)
