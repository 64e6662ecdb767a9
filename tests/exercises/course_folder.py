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

REPOSITORY = Path(__file__).resolve().parents[2]
ASSIGNMENT = "03_ring_allreduce"
NOTEBOOK = "ring_allreduce.ipynb"


@dataclass(frozen=True)
class Course:
    """A course folder and the command that works on it."""

    root: Path

    def run(self, *arguments: object, limit_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run tools/exercises.py as ``make`` does; its output is text."""
        script = str(REPOSITORY / "tools" / "exercises.py")
        command = [grading_python(), script, *map(str, arguments), "--root", str(self.root)]
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s)

    @property
    def release(self) -> Path:
        """The released notebook."""
        return self.root / "release" / ASSIGNMENT / NOTEBOOK

    @property
    def rows(self) -> dict[str, dict[str, str]]:
        """grades.csv, by student."""
        with (self.root / "grades.csv").open(newline="") as file:
            return {row["student"]: row for row in csv.DictReader(file)}

    def marks(self, student: str) -> tuple[int, ...]:
        """Marks of tasks 1 to 6."""
        return tuple(int(self.rows[student][f"task_{number}"]) for number in range(1, 7))

    def hand_in(
        self,
        student: str,
        cells: dict[str, str],
        name: str = NOTEBOOK,
        says: str | None = None,
        tags: dict[str, list[str]] | None = None,
    ) -> Path:
        """Fill the released notebook's cells and put it into the student's folder."""
        notebook = nbformat.read(self.release, as_version=4)
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
        folder = self.root / "submitted" / student / ASSIGNMENT
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / name)
        return folder / name

    def output(self, student: str) -> str:
        """All that the graded notebook printed, and its errors, on one line."""
        notebook = nbformat.read(self.root / "autograded" / student / ASSIGNMENT / NOTEBOOK, as_version=4)
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
