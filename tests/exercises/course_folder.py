"""A course folder for the tests: hand in, run the command as make does, read what comes out."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from submission import REPOSITORY, Assignment, assignments

# The one that tests of the grader itself take, where any would do.
RING = assignments()["03_ring_allreduce"]


@dataclass(frozen=True)
class Course:
    """A course folder and the command that works on it."""

    root: Path

    def run(self, *arguments: object, limit_s: float = 1500) -> subprocess.CompletedProcess[str]:
        """Run tools/exercises.py as ``make`` does; its output is text."""
        script = str(REPOSITORY / "tools" / "exercises.py")
        command = [grading_python(), script, *map(str, arguments), "--root", str(self.root)]
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s)

    def release(self, assignment: Assignment = RING) -> Path:
        """A released notebook."""
        return self.root / "release" / assignment.name / assignment.notebook

    def rows(self, assignment: Assignment = RING) -> dict[str, dict[str, str]]:
        """An assignment's rows of grades.csv, by student."""
        with (self.root / "grades.csv").open(newline="") as file:
            return {
                row["student"]: row for row in csv.DictReader(file) if row["assignment"] == assignment.name
            }

    def marks(self, student: str, assignment: Assignment = RING) -> tuple[int, ...]:
        """Marks of each task of an assignment."""
        row = self.rows(assignment)[student]
        return tuple(int(row[f"task_{number}"]) for number in range(1, len(assignment.full) + 1))

    def hand_in(
        self,
        student: str,
        cells: dict[str, str],
        assignment: Assignment = RING,
        name: str | None = None,
        says: str | None = None,
        tags: dict[str, list[str]] | None = None,
    ) -> Path:
        """Fill the released notebook's cells and put it into the student's folder."""
        notebook = nbformat.read(self.release(assignment), as_version=4)
        left = set(cells)
        for cell in notebook.cells:
            if cell.id in cells:
                cell.source = cells[cell.id]
                left.discard(cell.id)
            if cell.id == "student":
                cell.source = f"student = {says or student!r}"
            if tags and cell.id in tags:
                cell.metadata["tags"] = tags[cell.id]
        assert not left, f"the release has no cells {left}"
        folder = self.root / "submitted" / student / assignment.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or assignment.notebook)
        nbformat.write(notebook, path)
        return path

    def output(self, student: str, assignment: Assignment = RING) -> str:
        """All that the graded notebook printed, and its errors, on one line."""
        path = self.root / "autograded" / student / assignment.name / assignment.notebook
        notebook = nbformat.read(path, as_version=4)
        found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        return " ".join(
            " ".join(str(output.get("text") or output.get("evalue") or "") for output in found).split()
        )


def grading_python() -> str:
    """The Python that has nbgrader, or a failure that says how to get it."""
    python = Path(os.environ.get("SHARDLAB_GRADE_PYTHON") or REPOSITORY / ".venv-grade" / "bin" / "python")
    if not python.exists():
        pytest.fail(
            f"grading needs nbgrader, and there is no {python}. `make test-exercises` installs it "
            "(or name its Python in SHARDLAB_GRADE_PYTHON).",
            pytrace=False,
        )
    return str(python)


def new_course(root: Path) -> Course:
    """A folder with nothing but the source."""
    shutil.copytree(REPOSITORY / "exercises" / "source", root / "source")
    return Course(root)
