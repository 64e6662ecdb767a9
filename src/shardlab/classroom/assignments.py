"""What an assignment's notebook says about itself: its chapter, its tasks with marks and minutes, and what it hides.

Everything is read from the notebook, with the standard library alone: the table of tasks in its first cell, and the
regions between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` (or ``HIDDEN TESTS``) that the student release leaves
out. So no page and no syllabus repeats a number that a notebook holds.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.checks import choice

SECRETS = ("SOLUTION", "HIDDEN TESTS")
_ROW = re.compile(r"\|\s*(\d+)\s*\|(.*)\|\s*([\d.]+)\s*\|\s*(\d+)\s*\|")
_CHAPTER = re.compile(r"notebooks/(\w+)\.ipynb")


class NotebookError(ValueError):
    """A file that can't be read as a notebook or as an assignment. The message names the file and what is wrong."""


class NotAssignmentError(NotebookError):
    """A notebook that can be read and is no assignment."""


@dataclass(frozen=True)
class Task:
    """One row of the table in an assignment's first cell."""

    number: int
    title: str
    marks: float
    minutes: int


@dataclass(frozen=True)
class Assignment:
    """One assignment as its notebook describes it.

    Attributes:
        name: its folder, such as ``03_ring_allreduce``.
        title: its heading, without the number.
        goals: what one can do after it.
        chapters: names of the chapters that its first cell links to, such as ``03_data_parallel``.
        tasks: in order.
        path: the notebook.
    """

    name: str
    title: str
    goals: tuple[str, ...]
    chapters: tuple[str, ...]
    tasks: tuple[Task, ...]
    path: Path

    @property
    def marks(self) -> float:
        """Marks of all tasks."""
        return sum(task.marks for task in self.tasks)

    @property
    def minutes(self) -> int:
        """Minutes of all tasks."""
        return sum(task.minutes for task in self.tasks)


def source_of(cell: dict[str, Any]) -> str:
    """A cell's text; notebooks store it as one text or as a list of lines."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook.

    Raises:
        NotebookError: it can't be read, isn't JSON, or isn't a notebook of format 4.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotebookError(f"{path} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise NotebookError(f"{path} is no notebook: it isn't text in UTF-8") from None
    except ValueError as error:
        raise NotebookError(f"{path} is no notebook: it isn't JSON ({error})") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise NotebookError(f"{path} is no notebook of format 4: it has no list of cells")
    return cells


def bullets(text: str) -> tuple[str, ...]:
    """The first list of a Markdown text, without its marks and closing semicolons."""
    found = re.search(r"(?:^- .*\n?)+", text, re.MULTILINE)
    return tuple(line[2:].strip().rstrip(";.") for line in found[0].splitlines()) if found else ()


def read_assignment(path: Path) -> Assignment:
    """The assignment in a notebook: in source, in a release or in somebody's work.

    Raises:
        NotAssignmentError: its first cell has no heading or no table of tasks.
        NotebookError: it can't be read.
    """
    cells = read_cells(path)
    opening = source_of(cells[0]) if cells else ""
    heading = re.match(r"# Assignment \d+: (.+)", opening)
    rows = [_ROW.fullmatch(line.strip()) for line in opening.splitlines()]
    tasks = tuple(
        Task(number=int(row[1]), title=row[2].strip(), marks=float(row[3]), minutes=int(row[4]))
        for row in rows
        if row
    )
    if not heading or not tasks:
        raise NotAssignmentError(
            f"{path} is no assignment: its first cell must hold '# Assignment NN: …' and the table of tasks"
        )
    return Assignment(
        name=path.parent.name,
        title=heading[1].strip(),
        goals=bullets(opening),
        chapters=tuple(dict.fromkeys(_CHAPTER.findall(opening))),
        tasks=tasks,
        path=path,
    )


def notebooks_in(folder: Path) -> list[Path]:
    """The notebooks of a course folder such as ``exercises/source``: ``folder/ASSIGNMENT/*.ipynb``, in order."""
    return [path for path in sorted(folder.glob("*/*.ipynb")) if not path.parent.name.startswith(".")]


def read_assignments(folder: Path) -> tuple[Assignment, ...]:
    """All assignments of a course folder.

    Raises:
        NotebookError: as in :func:`read_assignment`.
    """
    return tuple(read_assignment(path) for path in notebooks_in(folder))


def regions(source: str, kind: str) -> list[list[str]]:
    """The lines of each region of this kind in a cell, as they are; none for a cell without one.

    Args:
        source: a cell's text.
        kind: one of :data:`SECRETS`.

    Raises:
        ValueError: no such kind.
    """
    begin, end = f"### BEGIN {choice('kind', kind, SECRETS)}", f"### END {kind}"
    found: list[list[str]] = []
    inside = False
    for line in source.splitlines():
        mark = line.strip()
        if mark == begin:
            found.append([])
            inside = True
        elif mark == end:
            inside = False
        elif inside:
            found[-1].append(line)
    return found


def shown(source: str) -> str:
    """A cell's text without its secret regions."""
    kinds = "|".join(SECRETS)
    pattern = rf"^[ \t]*### BEGIN ({kinds})$.*?^[ \t]*### END \1$"
    return re.sub(pattern, "", source, flags=re.MULTILINE | re.DOTALL)


def secret_lines(path: Path) -> set[str]:
    """The lines that a notebook hides from students and shows nowhere else, without their indent.

    A line that also stands outside the regions, in a hint or in code that is given, is no secret.

    Raises:
        NotebookError: it can't be read.
    """
    sources = [source_of(cell) for cell in read_cells(path)]
    inside = (
        line for source in sources for kind in SECRETS for region in regions(source, kind) for line in region
    )
    outside = "\n".join(shown(source) for source in sources)
    return {line for line in map(str.strip, inside) if line and line not in outside}
