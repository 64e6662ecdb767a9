"""Progress of somebody who works alone: read from saved notebooks, without running anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from course_folder import RING
from nbclient import NotebookClient

from shardlab.classroom import progress
from shardlab.classroom.assignments import NotebookError, read_assignment, secret_lines
from tools.kernels import START_S, through_files

STUB = '# YOUR CODE HERE\nraise NotImplementedError("not written yet")'


def released_copy() -> nbformat.NotebookNode:
    """The ring assignment as a student gets it, made here: without the grader and in no time."""
    notebook = nbformat.read(RING.source, as_version=4)
    for cell in notebook.cells:
        answer = STUB if cell.cell_type == "code" else progress.UNTOUCHED
        for kind, instead in (("SOLUTION", answer), ("HIDDEN TESTS", "")):
            cell.source = re.sub(
                rf"(?m)^( *)### BEGIN {kind}$[\s\S]*?^ *### END {kind}$",
                lambda found, instead=instead: "\n".join(
                    found[1] + line if line else line for line in instead.splitlines()
                ),
                cell.source,
            )
    return notebook


def save(notebook: nbformat.NotebookNode, work: Path) -> Path:
    """Save it as the work on the ring assignment."""
    path = work / RING.name / RING.notebook
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def half_done(tmp_path_factory) -> Path:
    """Tasks 1 and 2 right, task 3 with a mistake, task 4 not written, task 5 does not compile, task 6 answered; run once."""
    notebook = released_copy()
    cells = {cell.id: cell for cell in notebook.cells}
    for name in ("task-1-answer", "task-2-code", "task-6-answer"):
        cells[name].source = RING.reference[name]
    cells["task-3-code"].source = RING.reference["task-3-code"].replace("return chunks", "return chunks[:-1]")
    cells["task-5-code"].source = "def count_sent_bytes(n_ranks, n_elements)\n"
    cells["task-5-code"].metadata["tags"] = ["raises-exception"]
    with through_files() as config:
        NotebookClient(
            notebook, timeout=250, kernel_name="python3", startup_timeout=START_S, config=config
        ).execute()
    return save(notebook, tmp_path_factory.mktemp("work"))


@pytest.fixture
def work(half_done, tmp_path) -> Path:
    """A folder with that work, to change."""
    shutil.copytree(half_done.parent.parent, tmp_path / "exercises" / "work")
    return tmp_path / "exercises" / "work"


def edit(work: Path, change) -> None:
    """Change the cells of the saved notebook, given by their ids."""
    path = work / RING.name / RING.notebook
    notebook = nbformat.read(path, as_version=4)
    change({cell.id: cell for cell in notebook.cells})
    nbformat.write(notebook, path)


def states(work: Path) -> list[str]:
    """The state of each task of the saved notebook."""
    return [task.state for task in progress.read_progress(work / RING.name / RING.notebook).tasks]


def test_the_table_of_tasks_is_read_and_adds_up():
    assignment = read_assignment(RING.source)
    points = [
        cell.metadata["nbgrader"]["points"]
        for cell in RING.cells().values()
        if cell.metadata.get("nbgrader", {}).get("grade")
    ]
    assert [task.marks for task in assignment.tasks] == points
    assert assignment.chapters == (RING.chapter.removesuffix(".ipynb"),)
    assert assignment.name == RING.name


def test_saved_work_shows_marks_of_each_task_and_what_is_next(work):
    found = progress.read_progress(work / RING.name / RING.notebook)
    assert states(work) == ["done", "done", "partly", "not written", "stopped", "answered"]
    one, two, three, four, _, six = found.tasks
    assert (one.earned, one.checked, one.more) == (4, 4, 0)
    assert (two.earned, two.checked, two.more) == (4, 4, 2)
    assert three.earned < three.checked == 3
    assert six.more == 5
    assert found.next_task is three
    assert found.minutes_left == sum(task.task.minutes for task in found.tasks[2:5])
    text, broken = progress.report(work)
    assert broken == 0
    assert "✓ 2  Write the reduce-scatter" in text
    assert "4 of 4, grading checks 2 more" in text
    assert f"Next: {RING.name}, task 3, {three.task.title}" in text
    assert f"Together {found.earned:g} of {found.assignment.marks:g} marks" in text
    assert four.text() == "not written yet (6)"


def test_an_untouched_copy_has_no_marks_and_starts_at_task_1(tmp_path):
    save(released_copy(), tmp_path)
    assert set(states(tmp_path)) == {"not checked", "unanswered"}
    text, _ = progress.report(tmp_path)
    assert "Together 0 of 30 marks" in text
    assert f"Next: {RING.name}, task 1," in text


def test_work_that_was_tried_without_a_mark_comes_before_what_was_not_begun(tmp_path):
    path = save(released_copy(), tmp_path)
    (tmp_path / "00_first").mkdir()
    shutil.copy(path, tmp_path / "00_first")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.id == "task-1-check":
            cell.outputs = [nbformat.v4.new_output("stream", text="Task 1: by hand\n0 of 4 marks\n")]
    nbformat.write(notebook, path)
    assert f"Next: {RING.name}, task 1," in progress.report(tmp_path)[0]


def test_work_that_ran_after_its_check_asks_for_the_check(work):
    def later(cells):
        cells["task-2-code"].execution_count = 99

    edit(work, later)
    assert states(work)[1] == "stale"
    assert "run the check again" in progress.report(work)[0]


def test_a_check_that_stopped_says_why(work):
    def stop(cells):
        cells["task-2-check"].outputs = [
            nbformat.v4.new_output("error", ename="NameError", evalue="name 'x'\nmore", traceback=[])
        ]

    edit(work, stop)
    assert "the check stopped: NameError: name 'x' (6)" in progress.report(work)[0]


def test_a_check_that_was_cleared_was_not_run(work):
    def clear(cells):
        cells["task-1-check"].outputs = []

    edit(work, clear)
    assert states(work)[0] == "not checked"


def test_what_somebody_else_prints_is_no_mark(work):
    def boast(cells):
        cells["task-1-check"].outputs = [
            nbformat.v4.new_output("stream", text="I have 4 of 4 marks here\n99 of 4 marks, really\n")
        ]

    edit(work, boast)
    assert states(work)[0] == "not checked"


def test_when_all_is_finished_nothing_is_left(work):
    def finish(cells):
        for number in (3, 4, 5):
            cells[f"task-{number}-check"].outputs = [
                nbformat.v4.new_output("stream", text="Task\n  ✓ it  3 of 3\n3 of 3 marks\n")
            ]
            cells[f"task-{number}-code"].execution_count = 1

    edit(work, finish)
    assert "Nothing is left to do." in progress.report(work)[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"my work\n", "is no notebook: it isn't JSON"),
        (b"\xff\xfe\x00", "is no notebook: it isn't text in UTF-8"),
        (b"[]", "is no notebook of format 4"),
        (b'{"worksheets": []}', "is no notebook of format 4"),
        (b'{"cells": []}', "is no assignment: its first cell must hold"),
        (
            b'{"cells": [{"cell_type": "markdown", "source": ["# Notes\\n"]}]}',
            "is no assignment: its first cell",
        ),
    ],
)
def test_a_bad_notebook_is_named_and_the_others_are_shown(work, content, words):
    bad = work / "04_sharded_optimizer" / "sharded.ipynb"
    bad.parent.mkdir()
    bad.write_bytes(content)
    text, broken = progress.report(work)
    assert broken == 1
    assert f"04_sharded_optimizer: can't be read. {bad} {words}" in text
    assert f"{RING.name}: " in text


def test_a_deleted_check_is_named(work):
    path = work / RING.name / RING.notebook
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id != "task-4-check"]
    nbformat.write(notebook, path)
    with pytest.raises(NotebookError, match="no cell that is marked for task 4: was it deleted"):
        progress.read_progress(path)


def test_the_work_is_found_from_the_notebook_and_from_the_repository(work, monkeypatch):
    for start in (work / RING.name, work.parent.parent):
        monkeypatch.chdir(start)
        assert progress.find_work() == work
    # A student's own machine: the handed-out folder and nothing around it.
    alone = work.parent.parent / "mine"
    shutil.move(work, alone)
    work.parent.rmdir()
    monkeypatch.chdir(alone / RING.name)
    assert progress.find_work() == alone


def test_without_work_it_says_how_to_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"folder must hold assignments.*make start"):
        progress.report()
    with pytest.raises(ValueError, match="folder must be a folder with assignments in it, not '/nowhere'"):
        progress.report(Path("/nowhere"))
    with pytest.raises(ValueError, match="folder must hold assignments"):
        progress.report(tmp_path)


def test_in_a_notebook_it_prints(work, capsys):
    progress.show(str(work))
    assert capsys.readouterr().out.startswith(f"{RING.name}: ")


def test_the_command_shows_it_and_tells_by_its_status(work):
    def run(folder):
        return subprocess.run(
            [sys.executable, "-m", "shardlab", "progress", str(folder)],
            capture_output=True,
            text=True,
            timeout=200,
        )

    done = run(work)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Next: " in done.stdout
    (work / RING.name / "notes.ipynb").write_text("{}")
    assert run(work).returncode == 1
    nowhere = run(work / "nowhere")
    assert nowhere.returncode == 2
    assert "folder must be a folder with assignments" in nowhere.stderr


def test_the_regions_that_are_secret_are_found():
    secret = secret_lines(RING.source)
    assert "def right_reduce_scatter(net, chunks):" in secret
    assert any(line.startswith("1. They are 1 P") for line in secret)
    # Given in a hint, so no secret.
    assert "chunks, start = [], 0" not in secret
