"""The student release is generated, and nobody's work is ever lost."""

from __future__ import annotations

import shutil
import subprocess
import sys

from course_folder import REPOSITORY, RING, new_course

ASSIGNMENT, NOTEBOOK = RING.name, RING.notebook


def test_an_edited_release_is_generated_anew_and_the_edited_copy_kept(released, tmp_path):
    course = new_course(tmp_path / "course")
    shutil.copytree(released.root / "release", course.root / "release")
    shutil.copy(released.root / "gradebook.db", course.root / "gradebook.db")
    assert course.run("release").returncode == 0
    assert not (course.root / "work").exists()
    course.release().write_text(course.release().read_text().replace("self-study", "ada"))
    done = course.run("release")
    assert done.returncode == 0
    kept = course.root / "work" / f"{ASSIGNMENT}-edited-1"
    assert f"the edited copy is {kept}" in done.stdout
    assert "ada" in (kept / NOTEBOOK).read_text()
    assert course.release().read_bytes() == released.release().read_bytes()


def test_work_that_was_started_is_never_touched_again(released):
    assert released.run("start").returncode == 0
    mine = released.root / "work" / ASSIGNMENT / NOTEBOOK
    assert mine.read_bytes() == released.release().read_bytes()
    mine.write_text("my work")
    done = released.run("start")
    assert "it stays as it is" in done.stdout
    assert mine.read_text() == "my work"


def test_without_nbgrader_the_command_says_what_to_run(released, monkeypatch):
    monkeypatch.setenv("SHARDLAB_GRADE_PYTHON", "/nowhere/python")
    # This Python has no nbgrader, so the command has to change over.
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / "exercises.py"), "release"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert "make release" in done.stderr
