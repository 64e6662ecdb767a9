"""Every assignment: complete, helpful before anything is solved, and marked as it deserves."""

from __future__ import annotations

import re

import nbformat
import pytest
from conftest import chosen
from nbclient import NotebookClient
from submission import REPOSITORY, assignments

from shardlab.classroom.assignments import read_assignments
from tools.kernels import START_S, through_files

ALL = list(assignments().values())
each = pytest.mark.parametrize("assignment", ALL, ids=str)


def test_every_assignment_has_its_submissions():
    folders = {path.parent.name for path in (REPOSITORY / "exercises" / "source").glob("*/*.ipynb")}
    assert set(assignments()) == folders


def test_the_page_lists_every_assignment_with_its_marks_and_minutes():
    page = (REPOSITORY / "exercises" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)`: (.+?) \| (\d\d) .+? \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert rows == [
        (one.name, one.title, one.chapters[0][:2], f"{one.marks:g}", str(one.minutes))
        for one in read_assignments(REPOSITORY / "exercises" / "source")
    ]


# ---- the release ----


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
    with through_files() as config:
        return NotebookClient(
            notebook, timeout=400, kernel_name="python3", startup_timeout=START_S, config=config
        ).execute()


@each
def test_the_release_keeps_every_cell_and_its_id(released, assignment):
    source, release = (
        nbformat.read(path, as_version=4) for path in (assignment.source, released.release(assignment))
    )
    assert [cell.id for cell in release.cells] == [cell.id for cell in source.cells]
    assert all(
        cell.id == cell.metadata["nbgrader"]["grade_id"]
        for cell in source.cells
        if "nbgrader" in cell.metadata
    )
    assert not any(cell.get("outputs") for cell in [*source.cells, *release.cells])


@each
def test_each_task_has_three_hints_marks_minutes_and_a_check(released, assignment):
    cells = {cell.id: cell for cell in nbformat.read(released.release(assignment), as_version=4).cells}
    graded = {
        int(match[1]): cell.metadata["nbgrader"]
        for name, cell in cells.items()
        if (match := re.match(r"task-(\d+)-", name)) and cell.metadata.get("nbgrader", {}).get("grade")
    }
    assert list(graded) == list(range(1, len(assignment.full) + 1))
    assert 3 <= len(graded) <= 6
    by_hand = 0
    for number, settings in graded.items():
        heading = cells[f"task-{number}"].source.splitlines()[0]
        assert re.search(rf"\({settings['points']} marks, \d+ minutes\)", heading)
        assert f"| {settings['points']} |" in cells["title"].source
        written = settings["solution"]
        by_hand += settings["points"] if written else 0
        assert cells[f"task-{number}"].source.count("<details>") == (0 if written else 3)
        if not written:
            assert "raises-exception" in cells[settings["grade_id"]].metadata["tags"]
            assert settings["points"] == assignment.full[number - 1]
    assert by_hand == assignment.marks_by_hand > 0
    assert f"notebooks/{assignment.chapter}" in cells["title"].source
    assert (REPOSITORY / "notebooks" / assignment.chapter).exists()


@each
@pytest.mark.timeout(900)
def test_unsolved_it_runs_to_the_end_and_says_what_is_to_do(released, assignment):
    said = outputs(run(released.release(assignment)))
    assert assignment.unsolved.keys() == {name for name in said if re.fullmatch(r"task-\d+-check", name)}
    for name, words in assignment.unsolved.items():
        assert words in said[name], name
    assert any("Numbers of 'self-study'" in text for text in said.values())
    # No student has to read the library's own frames.
    assert not [
        name for name, text in said.items() if "site-packages" in text or "shardlab/classroom" in text
    ]


@pytest.mark.timeout(900)
def test_solved_it_earns_every_visible_mark(released, solved):
    assignment = solved
    said = outputs(run(released.release(assignment), assignment.reference))
    for name in assignment.unsolved:
        lines = [line for line in said[name].splitlines() if line.strip()]
        summary = re.fullmatch(
            r"([\d.]+) of ([\d.]+) marks( here; grading checks more, for [\d.]+ more)?", lines[-2]
        )
        assert summary, said[name]
        assert summary[1] == summary[2]
        assert float(lines[-1]) == float(summary[1])
        assert "✗" not in said[name]


# ---- marks ----


@each
def test_the_worked_solution_gets_full_marks(class_of, assignment):
    course = class_of(assignment)
    assert course.marks("reference", assignment) == assignment.full
    row = course.rows(assignment)["reference"]
    assert row["total"] == str(sum(assignment.full))
    assert row["max"] == str(sum(assignment.full) + assignment.marks_by_hand)
    assert row["to_mark"] == str(assignment.marks_by_hand)
    assert row["error"] == ""


@each
def test_an_empty_submission_gets_nothing_and_needs_no_person(class_of, assignment):
    course = class_of(assignment)
    assert set(course.marks("empty", assignment)) == {0}
    row = course.rows(assignment)["empty"]
    assert (row["total"], row["to_mark"], row["error"]) == ("0", "0", "")


@each
def test_there_are_at_least_five_typical_wrong_submissions(assignment):
    wrong = [one for one in assignment.wrong.values() if one.marks != assignment.full]
    assert len(wrong) >= 5


def pytest_generate_tests(metafunc):
    everyone = metafunc.config.getoption("--all-submissions")
    if "solved" in metafunc.fixturenames:
        # Those on real ranks are solved in the grader below; once a week also in a notebook.
        metafunc.parametrize("solved", [one for one in ALL if everyone or not one.needs_torch], ids=str)
    if "student" in metafunc.fixturenames:
        cases = [
            pytest.param(one, student, id=f"{one}-{student}")
            for one in ALL
            for student in chosen(one, everyone)
        ]
        metafunc.parametrize(("assignment", "student"), cases)


def test_a_wrong_submission_loses_exactly_the_marks_it_should(class_of, assignment, student):
    course, submission = class_of(assignment), assignment.wrong[student]
    row = course.rows(assignment)[student]
    assert course.marks(student, assignment) == submission.marks, course.output(student, assignment)
    assert row["total"] == str(sum(submission.marks))
    assert row["error"].startswith(submission.error)
    assert bool(row["error"]) == bool(submission.error)
    for words in submission.says:
        assert words in course.output(student, assignment)
