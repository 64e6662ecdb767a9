"""The student release: generated, without solutions, and helpful before anything is solved."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from course_folder import ASSIGNMENT, NOTEBOOK, REPOSITORY, new_course
from nbclient import NotebookClient
from ring_submissions import REFERENCE

SOURCE = REPOSITORY / "exercises" / "source" / ASSIGNMENT / NOTEBOOK
MUST_BE_WRITTEN = (
    "task-1-answer",
    "task-2-try",
    "task-2-check",
    "task-3-check",
    "task-4-check",
    "task-5-check",
)


def secrets(kind: str) -> set[str]:
    """The lines that stand in regions of this kind and nowhere else in the source: neither in a hint nor in given code."""
    hidden, public, other = set(), set(), set()
    for cell in nbformat.read(SOURCE, as_version=4).cells:
        where = public
        for line in map(str.strip, cell.source.splitlines()):
            if re.match(r"### (BEGIN|END) ", line):
                begins = line.startswith("### BEGIN")
                where = (hidden if line == f"### BEGIN {kind}" else other) if begins else public
            elif line:
                where.add(line)
    return hidden - public


def outputs(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """What each cell printed or raised, as text without colours."""
    found = {}
    for cell in notebook.cells:
        texts = []
        for output in cell.get("outputs", []):
            texts.append(output.get("text") or "\n".join(output.get("traceback", [])))
            texts.append(output.get("data", {}).get("text/plain", ""))
        found[cell.id] = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(texts))
    return found


def run(path, cells: dict[str, str] | None = None) -> nbformat.NotebookNode:
    """Run a notebook as JupyterLab's "Run All Cells" does: only cells tagged for it may raise."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = (cells or {}).get(cell.id, cell.source)
    return NotebookClient(notebook, timeout=120, kernel_name="python3").execute()


@pytest.mark.parametrize("kind", ["SOLUTION", "HIDDEN TESTS"])
def test_nothing_that_students_must_not_see_is_released(released, kind):
    lines = [
        line
        for cell in nbformat.read(released.release, as_version=4).cells
        for line in cell.source.splitlines()
    ]
    secret = secrets(kind)
    assert len(secret) > 15
    assert not secret & {line.strip() for line in lines}
    assert not [line for line in lines if f"BEGIN {kind}" in line or f"END {kind}" in line]


def test_the_release_keeps_every_cell_and_its_id(released):
    source, release = (nbformat.read(path, as_version=4) for path in (SOURCE, released.release))
    assert [cell.id for cell in release.cells] == [cell.id for cell in source.cells]
    assert all(
        cell.id == cell.metadata["nbgrader"]["grade_id"]
        for cell in source.cells
        if "nbgrader" in cell.metadata
    )
    assert not any(cell.get("outputs") for cell in [*source.cells, *release.cells])


def test_each_task_has_three_hints_marks_minutes_and_a_check(released):
    cells = {cell.id: cell for cell in nbformat.read(released.release, as_version=4).cells}
    points = {
        number: next(
            cell.metadata["nbgrader"]["points"]
            for name, cell in cells.items()
            if name.startswith(f"task-{number}-") and cell.metadata.get("nbgrader", {}).get("grade")
        )
        for number in range(1, 7)
    }
    assert sum(points.values()) == 30
    for number, marks in points.items():
        heading = cells[f"task-{number}"].source.splitlines()[0]
        assert re.search(rf"\({marks} marks, \d+ minutes\)", heading)
        assert f"| {marks} |" in cells["title"].source
        assert cells[f"task-{number}"].source.count("<details>") == (0 if number == 6 else 3)
    assert "notebooks/03_data_parallel.ipynb" in cells["title"].source


def test_unsolved_it_runs_to_the_end_and_says_what_is_to_do(released):
    said = outputs(run(released.release))
    for name in MUST_BE_WRITTEN:
        assert "NotImplementedError" in said[name], name
    assert "NotImplementedError: ring_reduce_scatter is not written yet" in said["task-2-check"]
    assert "NotImplementedError: ring_allreduce is not written yet" in said["task-4-check"]
    assert "NotImplementedError: count_sent_bytes is not written yet" in said["task-5-check"]
    assert "sent_bytes has no answer yet" in said["task-1-check"]
    assert "Numbers of 'self-study'" in said["task-1-numbers"]
    # No student has to read the library's own frames.
    assert not [
        name for name, text in said.items() if "site-packages" in text or "shardlab/classroom" in text
    ]


def test_solved_it_earns_every_visible_mark_and_shows_the_table(released):
    said = outputs(run(released.release, REFERENCE))
    last = {name: said[name].strip().splitlines()[-1] for name in said if name.endswith("-check")}
    assert last == {
        "task-1-check": "4.0",
        "task-2-check": "4.0",
        "task-3-check": "3.0",
        "task-4-check": "4.0",
        "task-5-check": "3.0",
    }
    assert "4 of 4 marks here; grading checks more, for 2 more" in said["task-2-check"]
    assert "right on every rank: True" in said["processes"]
    assert re.search(r"32 +1\.9375 P +1\.9375 P +62 +31 P +62 P +62 P", said["task-6-table"])


def test_an_edited_release_is_generated_anew_and_the_edited_copy_kept(released, tmp_path):
    course = new_course(tmp_path / "course")
    shutil.copytree(released.root / "release", course.root / "release")
    shutil.copy(released.root / "gradebook.db", course.root / "gradebook.db")
    assert course.run("release").returncode == 0
    assert not (course.root / "work").exists()
    course.release.write_text(course.release.read_text().replace("self-study", "ada"))
    done = course.run("release")
    assert done.returncode == 0
    kept = course.root / "work" / f"{ASSIGNMENT}-edited-1"
    assert f"the edited copy is {kept}" in done.stdout
    assert "ada" in (kept / NOTEBOOK).read_text()
    assert course.release.read_bytes() == released.release.read_bytes()


def test_work_that_was_started_is_never_touched_again(released):
    assert released.run("start").returncode == 0
    mine = released.root / "work" / ASSIGNMENT / NOTEBOOK
    assert mine.read_bytes() == released.release.read_bytes()
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
        timeout=60,
    )
    assert done.returncode == 1
    assert "make release" in done.stderr
