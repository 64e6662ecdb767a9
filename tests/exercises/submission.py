"""Submissions of an assignment as students hand them in, each with the marks that it deserves, task by task.

Every assignment has a module in ``submissions/`` that holds one ``ASSIGNMENT``: its reference, which fills every
cell rightly, and wrong submissions that change some of its cells.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Submission:
    """What a student changed.

    Attributes:
        cells: source of the cells that are filled in, by cell id.
        marks: marks of each task; one that a person marks counts 0.
        says: words that the checks must say.
        error: how the report of the grader begins; empty if it has nothing to report.
        student: the ID that the notebook names, if it isn't the one it is handed in under.
        tags: tags of cells, by cell id.
        endless: whether some cell runs until it is stopped.
    """

    cells: dict[str, str]
    marks: tuple[int, ...]
    says: tuple[str, ...] = ()
    error: str = ""
    student: str | None = None
    tags: dict[str, list[str]] = field(default_factory=dict)
    endless: bool = False


@dataclass(frozen=True)
class Assignment:
    """One assignment and its submissions.

    Attributes:
        name: its folder in ``exercises/source``.
        notebook: file name of its notebook.
        chapter: file name of the chapter that it belongs to.
        reference: right source of every cell that a student fills in, by cell id; written apart from the solutions.
        full: marks of the reference, task by task; a task that a person marks counts 0.
        wrong: typical wrong submissions, by name of the student.
        unsolved: what each check of an untouched notebook must say, by cell id.
        marks_by_hand: marks of the tasks that a person marks.
        needs_torch: whether some check starts gloo ranks.
    """

    name: str
    notebook: str
    chapter: str
    reference: dict[str, str]
    full: tuple[int, ...]
    wrong: dict[str, Submission]
    unsolved: dict[str, str]
    marks_by_hand: int
    needs_torch: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def source(self) -> Path:
        """The notebook with solutions and hidden checks."""
        return REPOSITORY / "exercises" / "source" / self.name / self.notebook

    def cells(self) -> dict[str, nbformat.NotebookNode]:
        """The source's cells by id."""
        return {cell.id: cell for cell in nbformat.read(self.source, as_version=4).cells}


def changed(reference: dict[str, str], **cells: str) -> dict[str, str]:
    """The reference with other source in some cells, named like ``task_2_code``."""
    return {**reference, **{name.replace("_", "-"): source for name, source in cells.items()}}


def _load() -> dict[str, Assignment]:
    modules = sorted(Path(__file__).with_name("submissions").glob("*.py"))
    found = [importlib.import_module(f"submissions.{path.stem}").ASSIGNMENT for path in modules]
    return {assignment.name: assignment for assignment in sorted(found, key=lambda one: one.name)}


def assignments() -> dict[str, Assignment]:
    """All of them, by name."""
    if not _LOADED:
        _LOADED.update(_load())
    return _LOADED


_LOADED: dict[str, Assignment] = {}
