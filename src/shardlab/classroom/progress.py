"""How far somebody's own work on the assignments has come, read from the saved notebooks without running anything.

::

    from shardlab.classroom import progress

    progress.show()      # in a notebook or in Python; in a terminal: shardlab progress

A check cell leaves its marks in its output: the checklist's last line, ``3 of 4 marks here; grading checks more, for
2 more``. That is all that is read, so what counts is what was checked and saved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.classroom.assignments import (
    Assignment,
    NotAssignmentError,
    NotebookError,
    Task,
    notebooks_in,
    read_assignment,
    read_cells,
    source_of,
)

UNTOUCHED = "YOUR ANSWER HERE"
_MARKS = re.compile(
    r"^([\d.]+) of ([\d.]+) marks(?: here; grading checks more, for ([\d.]+) more)?$", re.MULTILINE
)
_GRADED = re.compile(r"task-(\d+)-")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# States of a task that somebody has worked on, marks or no marks.
BEGUN = ("done", "partly", "answered", "stopped", "stale")
# What a task's sign says: all visible marks, some of them, none or unknown, waits for a person.
_SIGNS = {"done": "✓", "partly": "◐", "answered": "✎"}


@dataclass(frozen=True)
class TaskProgress:
    """One task of somebody's work.

    Attributes:
        task: number, title, marks and minutes.
        state: ``"done"`` (every mark that can be checked here), ``"partly"``, ``"not written"``, ``"stopped"`` (the
            check ended in an error), ``"stale"`` (the work ran after its check), ``"not checked"``, ``"answered"``
            (a person marks it) or ``"unanswered"``.
        earned: marks of the criteria that are met.
        checked: marks of all criteria that were looked at.
        more: marks that only grading gives: of hidden checks, and of answers that a person marks.
        note: the error that stopped the check, or an empty text.
    """

    task: Task
    state: str
    earned: float = 0.0
    checked: float = 0.0
    more: float = 0.0
    note: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do here."""
        return self.state in ("done", "answered")

    def text(self) -> str:
        """What there is to say beside the title."""
        if self.state in ("done", "partly"):
            words = f"{self.earned:g} of {self.checked:g}"
            return words + (f", grading checks {self.more:g} more" if self.more else "")
        if self.state == "answered":
            return f"answered; a person marks it, for {self.task.marks:g}"
        words = {
            "unanswered": "no answer yet",
            "not written": "not written yet",
            "stopped": f"the check stopped: {self.note}",
            "stale": "run after its check: run the check again",
            "not checked": "the check was not run",
        }[self.state]
        return f"{words} ({self.task.marks:g})"


@dataclass(frozen=True)
class AssignmentProgress:
    """Somebody's work on one assignment."""

    assignment: Assignment
    tasks: tuple[TaskProgress, ...]

    @property
    def earned(self) -> float:
        """Marks of all criteria that are met."""
        return sum(task.earned for task in self.tasks)

    @property
    def next_task(self) -> TaskProgress | None:
        """The first task that isn't finished."""
        return next((task for task in self.tasks if not task.finished), None)

    @property
    def minutes_left(self) -> int:
        """Minutes of the tasks that aren't finished."""
        return sum(task.task.minutes for task in self.tasks if not task.finished)

    def text(self) -> str:
        """The assignment and its tasks as lines."""
        title = f"{self.assignment.name}: {self.assignment.title}"
        lines = [f"{title}   {self.earned:g} of {self.assignment.marks:g} marks so far"]
        width = max(len(task.task.title) for task in self.tasks)
        for task in self.tasks:
            sign = _SIGNS.get(task.state, "·")
            lines.append(f"  {sign} {task.task.number}  {task.task.title.ljust(width)}  {task.text()}")
        return "\n".join(lines)


def _texts(cell: dict[str, Any]) -> str:
    """All that a cell printed, as one text without colours."""
    found = []
    for output in cell.get("outputs", []):
        text = output.get("text", "") if output.get("output_type") == "stream" else ""
        found.append(text if isinstance(text, str) else "".join(text))
    return _COLOUR.sub("", "".join(found))


def _error(cell: dict[str, Any]) -> tuple[str, str] | None:
    """Name and message of the exception that ended a cell."""
    for output in cell.get("outputs", []):
        if output.get("output_type") == "error":
            return str(output.get("ename", "error")), str(output.get("evalue", ""))
    return None


def _ran_at(cell: dict[str, Any]) -> int:
    count = cell.get("execution_count")
    return count if isinstance(count, int) else 0


def _written_answer(task: Task, cell: dict[str, Any]) -> TaskProgress:
    source = source_of(cell).strip()
    answered = source not in ("", UNTOUCHED) and not source.startswith("# YOUR CODE HERE")
    return TaskProgress(
        task=task, state="answered" if answered else "unanswered", more=task.marks if answered else 0.0
    )


def _checked(task: Task, check: dict[str, Any], work: list[dict[str, Any]]) -> TaskProgress:
    """A task with a check cell: what its output says."""
    error = _error(check)
    if error is not None:
        name, message = error
        if name in ("NotImplementedError", "NotWritten"):
            return TaskProgress(task=task, state="not written")
        first = message.strip().splitlines()[:1]
        return TaskProgress(task=task, state="stopped", note=": ".join([name, *first])[:100])
    marks = _MARKS.findall(_texts(check))
    if not marks:
        return TaskProgress(task=task, state="not checked")
    earned, checked, more = (float(number or 0) for number in marks[-1])
    if any(_ran_at(cell) > _ran_at(check) > 0 for cell in work):
        return TaskProgress(task=task, state="stale")
    return TaskProgress(
        task=task,
        state="done" if earned >= checked else "partly",
        earned=earned,
        checked=checked,
        more=more,
    )


def _task_progress(task: Task, cells: list[dict[str, Any]], path: Path) -> TaskProgress:
    mine = [
        (cell, cell.get("metadata", {}).get("nbgrader", {}))
        for cell in cells
        if (found := _GRADED.match(str(cell.get("id", "")))) and int(found[1]) == task.number
    ]
    # nbgrader marks a cell that it grades; one that is a solution as well holds the answer itself.
    graded = [(cell, about) for cell, about in mine if about.get("grade")]
    if not graded:
        raise NotebookError(f"{path} has no cell that is marked for task {task.number}: was it deleted?")
    parts = [
        _written_answer(task, cell)
        if about.get("solution")
        else _checked(task, cell, [other for other, its in mine if its.get("solution")])
        for cell, about in graded
    ]
    if len(parts) == 1:
        return parts[0]
    # Some of the task is checked and some is marked by a person: what is unfinished speaks.
    loudest = next((part for part in parts if not part.finished), parts[0])
    by_hand = sum(
        float(about.get("points", 0))
        for (_, about), part in zip(graded, parts, strict=True)
        if part.state == "answered"
    )
    return TaskProgress(
        task=task,
        state=loudest.state,
        earned=sum(part.earned for part in parts),
        checked=sum(part.checked for part in parts),
        more=sum(part.more for part in parts if part.state != "answered") + by_hand,
        note=loudest.note,
    )


def read_progress(path: Path) -> AssignmentProgress:
    """How far the work in one saved notebook has come.

    Raises:
        NotebookError: it can't be read, or it is no assignment, or a task's cell is missing.
    """
    assignment = read_assignment(path)
    cells = read_cells(path)
    return AssignmentProgress(
        assignment=assignment,
        tasks=tuple(_task_progress(task, cells, path) for task in assignment.tasks),
    )


def find_work(start: Path | None = None) -> Path:
    """The folder with somebody's work: ``exercises/work`` here or above, or the one around the notebook at ``start``.

    Args:
        start: where to look from; the current folder without it.

    Raises:
        ValueError: there is none.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "exercises" / "work").is_dir():
            return folder / "exercises" / "work"
    for folder in (here, here.parent):
        for path in notebooks_in(folder):
            try:
                read_assignment(path)
            except NotebookError:
                continue
            return folder
    raise ValueError(
        f"folder must hold assignments that were started, as ASSIGNMENT/NOTEBOOK.ipynb, and there are none at "
        f"{str(here)!r}. `make start` copies them to exercises/work"
    )


def report(folder: Path | None = None) -> tuple[str, int]:
    """Everybody's own work as text, and how many notebooks could not be read.

    Args:
        folder: with a folder for each assignment; without it, :func:`find_work` looks for one.

    Raises:
        ValueError: there is no such folder, or no notebook in it.
    """
    if folder is not None and not folder.is_dir():
        raise ValueError(f"folder must be a folder with assignments in it, not {str(folder)!r}")
    place = find_work() if folder is None else folder
    paths = notebooks_in(place)
    if not paths:
        raise ValueError(
            f"folder must hold assignments, as ASSIGNMENT/NOTEBOOK.ipynb; {str(place)!r} has none. "
            "`make start` copies them to exercises/work"
        )
    # Beside a single assignment, in a folder of downloads, other notebooks are nobody's broken work.
    among_others = folder is None and place.parts[-2:] != ("exercises", "work")
    works, broken = [], []
    for path in paths:
        try:
            works.append(read_progress(path))
        except NotebookError as error:
            if not (among_others and isinstance(error, NotAssignmentError)):
                broken.append(f"{path.parent.name}: can't be read. {error}")
    folders = [work.assignment.name for work in works]
    blocks = [
        f"{work.assignment.path.name} in {work.text()}" if folders.count(name) > 1 else work.text()
        for name, work in zip(folders, works, strict=True)
    ]
    blocks += broken
    if works:
        blocks.append(_summary(_one_of_each(works)))
    return "\n\n".join(blocks), len(broken)


def _one_of_each(works: list[AssignmentProgress]) -> list[AssignmentProgress]:
    """Of a notebook and its copies, the one that has come furthest."""
    best: dict[tuple[str, str], AssignmentProgress] = {}
    for work in works:
        which = (work.assignment.name, work.assignment.title)
        known = best.get(which)
        if known is None or (work.earned, -work.minutes_left) > (known.earned, -known.minutes_left):
            best[which] = work
    return list(best.values())


def _summary(works: list[AssignmentProgress]) -> str:
    earned = sum(work.earned for work in works)
    marks = sum(work.assignment.marks for work in works)
    lines = [f"Together {earned:g} of {marks:g} marks, as last saved."]
    # What was begun comes before what wasn't.
    open_works = [work for work in works if work.next_task]
    begun = [work for work in open_works if any(task.state in BEGUN for task in work.tasks)]
    following = (begun or open_works)[:1]
    for work in following:
        task = work.next_task
        assert task is not None
        lines.append(
            f"Next: {work.assignment.name}, task {task.task.number}, {task.task.title} "
            f"(about {task.task.minutes} minutes; {work.minutes_left} for what is left of the assignment)."
        )
    if not following:
        lines.append("Nothing is left to do.")
    return "\n".join(lines)


def show(folder: str | Path | None = None) -> None:
    """Print how far your own work has come, as last saved: save the notebook first.

    Args:
        folder: with a folder for each assignment; without it, ``exercises/work`` here or above is taken.

    Raises:
        ValueError: there is no such folder, or no assignment in it.
    """
    print(report(None if folder is None else Path(folder))[0])
