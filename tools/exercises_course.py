"""The course folder and nbgrader's gradebook: configuration, release, marks in and marks out."""

from __future__ import annotations

import csv
import functools
import hashlib
import html
import io
import itertools
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import nbformat
import nbgrader.api
import nbgrader.nbgraderformat.common
from bs4 import BeautifulSoup
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config, PyFileConfigLoader

from shardlab.classroom.assignments import read_assignment

CONFIG = Path(__file__).resolve().parents[1] / "exercises" / "nbgrader_config.py"


# Two thirds of nbgrader's own time for a submission go into doing the same again: it opens the database nine times, and
# each engine translates every query to SQL anew; and for each cell it checks its schema before it checks the cell.
nbgrader.api.create_engine = functools.cache(nbgrader.api.create_engine)


class _CheckedSchemas:
    """jsonschema as nbgrader uses it, with each schema checked once."""

    ValidationError = jsonschema.ValidationError

    def __init__(self) -> None:
        self._validators: dict[str, Any] = {}

    def validate(self, instance: Any, schema: dict[str, Any]) -> None:
        """As ``jsonschema.validate``."""
        text = json.dumps(schema)
        if text not in self._validators:
            kind = jsonschema.validators.validator_for(schema)
            kind.check_schema(schema)
            self._validators[text] = kind(schema)
        error = jsonschema.exceptions.best_match(self._validators[text].iter_errors(instance))
        if error is not None:
            raise error


nbgrader.nbgraderformat.common.jsonschema = _CheckedSchemas()


class ExercisesError(Exception):
    """Something that the teacher has to put right; the text says what."""


@dataclass(frozen=True)
class Task:
    """One task of an assignment: its number, and the notebook cells that carry its marks."""

    number: int
    cells: tuple[str, ...]
    max_marks: float
    by_hand: bool


class Course:
    """One course folder.

    Args:
        root: the folder with ``source``, ``submitted`` and the rest.
        settings: nbgrader settings that overrule ``nbgrader_config.py``.
    """

    def __init__(self, root: Path, settings: Config | None = None) -> None:
        self.root = root.resolve()
        if not (self.root / "source").is_dir():
            raise ExercisesError(f"{self.root} is no course folder: it has no folder named source")
        # nbgrader makes a new gradebook with the command alembic, which lies beside its Python.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        config = PyFileConfigLoader(CONFIG.name, path=str(CONFIG.parent)).load_config()
        config.CourseDirectory.root = str(self.root)
        # Several submissions are graded at a time: one waits while another writes.
        config.CourseDirectory.db_url = f"sqlite:///{self.root / 'gradebook.db'}?timeout=60"
        config.merge(settings or Config())
        quiet = logging.getLogger("nbgrader.exercises")
        quiet.propagate = False
        quiet.setLevel(logging.INFO)
        coursedir = CourseDirectory(config=config)
        self.api = NbGraderAPI(coursedir, config=config)
        self.api.log = quiet
        self._database = coursedir.db_url

    # ---- folders ----

    @property
    def assignments(self) -> list[str]:
        """Names of the assignments that have a source notebook."""
        return sorted({path.parent.name for path in (self.root / "source").glob("*/*.ipynb")})

    def notebooks(self, assignment: str) -> list[str]:
        """Names of an assignment's notebooks, without the ending."""
        return sorted(path.stem for path in (self.root / "source" / assignment).glob("*.ipynb"))

    def source(self, assignment: str, notebook: str) -> nbformat.NotebookNode:
        """The source notebook."""
        return nbformat.read(self.root / "source" / assignment / f"{notebook}.ipynb", as_version=4)

    def records(self, assignment: str) -> dict[str, dict[str, Any]]:
        """What grading wrote down about each submission of an assignment that is still there, by student."""
        found = sorted(self.root.joinpath("autograded", ".records", assignment).glob("*.json"))
        records = [json.loads(path.read_text()) for path in found]
        submitted = self.root / "submitted"
        return {one["student"]: one for one in records if (submitted / one["student"] / assignment).is_dir()}

    def write_record(self, assignment: str, record: dict[str, Any]) -> None:
        """Write down how grading one submission went; complete or not at all, whenever we are killed."""
        folder = self.root / "autograded" / ".records" / assignment
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{record['student']}.draft"
        draft.write_text(json.dumps(record, indent=1) + "\n")
        draft.replace(folder / f"{record['student']}.json")

    # ---- release ----

    def release(self, assignment: str) -> Path | None:
        """Generate the student release, and enter the assignment into the gradebook.

        Returns where a release that somebody had edited was put: nobody's work is overwritten.

        Raises:
            ExercisesError: nbgrader refuses.
        """
        folder = self.root / "release" / assignment
        stamp = self.root / "release" / f".{assignment}.json"
        before = json.loads(stamp.read_text()) if stamp.exists() else {}
        source = fingerprint(self.root / "source" / assignment, CONFIG)
        found = fingerprint(folder) if folder.is_dir() else None
        edited = found is not None and found != before.get("release")
        if found is not None and not edited and before["source"] == source and self._is_known(assignment):
            return None
        kept = self._keep(folder) if edited else None
        result = self.api.generate_assignment(assignment, force=True, create=True)
        if not result["success"]:
            raise ExercisesError(f"{assignment} can't be released: {reason(result)}")
        stamp.write_text(json.dumps({"source": source, "release": fingerprint(folder)}) + "\n")
        return kept

    def _keep(self, folder: Path) -> Path:
        """Copy an edited release to a new name among the works."""
        names = (self.root / "work" / f"{folder.name}-edited-{number}" for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        shutil.copytree(folder, kept)
        return kept

    def _is_known(self, assignment: str) -> bool:
        with self.gradebook() as book:
            try:
                return len(book.find_assignment(assignment).notebooks) == len(self.notebooks(assignment))
            except MissingEntry:
                return False

    def set_due(self, assignment: str, due: str) -> None:
        """Set when an assignment is due, for the ``late_s`` column."""
        with self.gradebook() as book:
            book.update_or_create_assignment(assignment, duedate=due)

    def gradebook(self) -> Gradebook:
        """nbgrader's database, as a context manager."""
        return Gradebook(self._database)

    # ---- marks ----

    def tasks(self, assignment: str) -> list[Task]:
        """The tasks of an assignment: cells named ``task-N-…`` that carry marks, in order."""
        cells: dict[int, list[Any]] = {}
        for notebook in self.notebooks(assignment):
            for cell in self.source(assignment, notebook).cells:
                settings = cell.metadata.get("nbgrader", {})
                if not settings.get("grade"):
                    continue
                named = re.match(r"task-(\d+)-", settings["grade_id"])
                if not named:
                    raise ExercisesError(
                        f"{assignment}/{notebook}: a cell with marks must be named task-N-…, not {settings['grade_id']}"
                    )
                cells.setdefault(int(named.group(1)), []).append(settings)
        return [
            Task(
                number=number,
                cells=tuple(cell["grade_id"] for cell in found),
                max_marks=sum(float(cell["points"]) for cell in found),
                by_hand=any(cell["solution"] for cell in found),
            )
            for number, found in sorted(cells.items())
        ]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row of ``grades.csv`` for each graded submission."""
        with self.gradebook() as book:
            for assignment in self.assignments:
                for student, record in sorted(self.records(assignment).items()):
                    yield self._row(book, assignment, student, record)

    def _row(self, book: Gradebook, assignment: str, student: str, record: dict[str, Any]) -> dict[str, Any]:
        tasks = self.tasks(assignment)
        grades: dict[str, Any] = {}
        late = ""
        if not record["failed"]:
            submission = book.find_submission(assignment, student)
            grades = {grade.name: grade for notebook in submission.notebooks for grade in notebook.grades}
            if submission.timestamp is not None and submission.assignment.duedate is not None:
                late = f"{submission.total_seconds_late:.0f}"
        marks = {
            f"task_{task.number}": sum((grades[cell].score or 0.0) for cell in task.cells if cell in grades)
            for task in tasks
        }
        waiting = [
            grades[cell].max_score
            for task in tasks
            for cell in task.cells
            if cell in grades and grades[cell].needs_manual_grade
        ]
        return {
            "student": student,
            "assignment": assignment,
            **marks,
            "total": sum(marks.values()),
            "max": sum(task.max_marks for task in tasks),
            "to_mark": sum(waiting),
            "late_s": late,
            "error": record["error"] or "",
        }

    def score_words(self, assignment: str, student: str) -> str:
        """A submission's marks in a few words."""
        with self.gradebook() as book:
            row = self._row(book, assignment, student, self.records(assignment)[student])
        waiting = f", {row['to_mark']:g} to mark by hand" if row["to_mark"] else ""
        error = f"; {row['error']}" if row["error"] else ""
        return f"{row['total']:g} of {row['max']:g}{waiting}{error}"

    def cell_errors(self, assignment: str, student: str) -> str | None:
        """What went wrong while the cells ran that a student's own code is to blame for, or None.

        A wrong answer is none of it, nor is a task that isn't written: those show in the marks.
        """
        words = []
        for notebook in self.notebooks(assignment):
            for cell in self._graded(assignment, student, notebook).cells:
                faults = [_own_fault(cell, output) for output in cell.get("outputs", [])]
                words.extend([fault for fault in faults if fault][:1])
        return "; ".join(words) or None

    def write_grades(self) -> Path:
        """Write ``grades.csv``: one row for each submission, one column for each task."""
        rows = list(self.rows())
        most = max((len(self.tasks(assignment)) for assignment in self.assignments), default=0)
        columns = ["student", "assignment", *[f"task_{number}" for number in range(1, most + 1)]]
        path = self.root / "grades.csv"
        write_csv(path, [*columns, "total", "max", "to_mark", "late_s", "error"], rows)
        return path

    # ---- marking by hand ----

    def answers_to_mark(self) -> Iterator[dict[str, Any]]:
        """What a person has to mark: the answer, its model answer, and marks and comment as they stand."""
        with self.gradebook() as book:
            for assignment in self.assignments:
                by_hand = {
                    cell: task for task in self.tasks(assignment) if task.by_hand for cell in task.cells
                }
                for student, record in sorted(self.records(assignment).items()):
                    if record["failed"]:
                        continue
                    for notebook in self.notebooks(assignment):
                        answers = self._cells(self._graded(assignment, student, notebook))
                        guides = self._cells(self.source(assignment, notebook))
                        for cell, task in by_hand.items():
                            if cell not in guides:
                                continue
                            grade = book.find_grade(cell, notebook, assignment, student)
                            if not grade.needs_manual_grade and grade.manual_score is None:
                                continue
                            yield {
                                "student": student,
                                "assignment": assignment,
                                "task": task.number,
                                "max": task.max_marks,
                                "marks": "" if grade.manual_score is None else grade.manual_score,
                                "comment": book.find_comment(cell, notebook, assignment, student).comment
                                or "",
                                "answer": answers.get(cell, ""),
                                "model_answer": _without_markers(guides[cell]),
                            }

    def _graded(self, assignment: str, student: str, notebook: str) -> nbformat.NotebookNode:
        return nbformat.read(self._graded_path(assignment, student, notebook), as_version=4)

    def _graded_path(self, assignment: str, student: str, notebook: str) -> Path:
        return self.root / "autograded" / student / assignment / f"{notebook}.ipynb"

    @staticmethod
    def _cells(notebook: nbformat.NotebookNode) -> dict[str, str]:
        return {
            cell.metadata["nbgrader"]["grade_id"]: cell.source
            for cell in notebook.cells
            if cell.metadata.get("nbgrader", {}).get("grade_id")
        }

    def mark(self, row: dict[str, str]) -> None:
        """Enter one row of a marking sheet.

        Raises:
            ExercisesError: there is no such submission or task, or the marks are out of range.
        """
        where = f"{row.get('student')}, {row.get('assignment')}, task {row.get('task')}"
        tasks = {str(task.number): task for task in self.tasks(row["assignment"])} if self._has(row) else {}
        task = tasks.get(row.get("task", ""))
        if task is None or not task.by_hand:
            raise ExercisesError(f"{where}: no task that is marked by hand")
        try:
            # Half of the world's spreadsheets write 4,5.
            marks = float(row["marks"].replace(",", "."))
        except ValueError:
            raise ExercisesError(f"{where}: marks must be a number, not {row['marks']!r}") from None
        if not 0 <= marks <= task.max_marks:
            raise ExercisesError(f"{where}: marks must be from 0 to {task.max_marks:g}, not {marks:g}")
        with self.gradebook() as book:
            for notebook in self.notebooks(row["assignment"]):
                for cell in task.cells:
                    try:
                        grade = book.find_grade(cell, notebook, row["assignment"], row["student"])
                    except MissingEntry:
                        raise ExercisesError(f"{where}: this student has no graded submission") from None
                    grade.manual_score = marks
                    grade.needs_manual_grade = False
                    book.find_comment(cell, notebook, row["assignment"], row["student"]).manual_comment = (
                        _uncell(row.get("comment") or "") or None
                    )
            book.db.commit()

    def marked_answers(self, assignment: str, student: str) -> dict[tuple[str, str], str]:
        """The answers that a person has marked, by notebook and cell, as they were then."""
        found = {}
        with self.gradebook() as book:
            try:
                submission = book.find_submission(assignment, student)
            except MissingEntry:
                return {}
            for notebook in submission.notebooks:
                marked = {
                    grade.name
                    for grade in notebook.grades
                    if grade.manual_score is not None and not grade.needs_manual_grade
                }
                path = self._graded_path(assignment, student, notebook.name)
                if marked and path.exists():
                    cells = self._cells(self._graded(assignment, student, notebook.name))
                    found.update({(notebook.name, cell): cells[cell] for cell in marked & cells.keys()})
        return found

    def keep_marks(self, assignment: str, student: str, before: dict[tuple[str, str], str]) -> None:
        """After grading anew: an answer that is still the same needs no person again; nbgrader asks for every one."""
        with self.gradebook() as book:
            for (notebook, cell), answer in before.items():
                if self._cells(self._graded(assignment, student, notebook)).get(cell) == answer:
                    book.find_grade(cell, notebook, assignment, student).needs_manual_grade = False
            book.db.commit()

    def _has(self, row: dict[str, str]) -> bool:
        return row.get("assignment") in self.assignments

    # ---- feedback ----

    def feedback(self, assignment: str, student: str) -> Path:
        """Write a student's feedback page, and return it.

        Raises:
            ExercisesError: nbgrader refuses.
        """
        folder = self.root / "feedback" / student / assignment
        record = self.records(assignment)[student]
        for page in folder.glob("*.html"):
            page.unlink()
        if record["failed"]:
            folder.mkdir(parents=True, exist_ok=True)
            page = folder / "not_graded.html"
            page.write_text(_failure_page(assignment, student, record["error"]))
            return page
        result = self.api.generate_feedback(assignment, student, force=True)
        if not result["success"]:
            raise ExercisesError(f"no feedback for {student}, {assignment}: {reason(result)}")
        for page in folder.glob("*.html"):
            titles, waiting = self._titles(assignment, page.stem), self._waiting(assignment, student)
            page.write_text(_feedback_page(page.read_text(), titles, waiting))
        return folder / f"{self.notebooks(assignment)[0]}.html"

    def _titles(self, assignment: str, notebook: str) -> dict[int, str]:
        """The titles of a notebook's tasks, by number."""
        path = self.root / "source" / assignment / f"{notebook}.ipynb"
        return {task.number: task.title for task in read_assignment(path).tasks}

    def _waiting(self, assignment: str, student: str) -> set[str]:
        """Cells of a submission that a person has to mark yet."""
        with self.gradebook() as book:
            submission = book.find_submission(assignment, student)
            return {
                grade.name
                for notebook in submission.notebooks
                for grade in notebook.grades
                if grade.needs_manual_grade
            }


# No script, no frame, nothing from elsewhere: whatever a student put into the notebook, the page only shows it.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; font-src data:; form-action 'none'; base-uri 'none'\">"
)


_ACTIVE = ("script", "iframe", "frame", "object", "embed", "form", "base", "link", "applet")
_ADDRESSES = ("href", "src", "action", "formaction", "xlink:href", "data", "srcset", "poster")


# Columns apart, no mark behind each heading, and hints that look as if they unfold.
_STYLE = (
    "<style>td, th { padding: 2px 12px 2px 0; } .anchor-link { display: none; } "
    "summary { display: list-item; cursor: pointer; }</style>"
)


def _feedback_page(page: str, titles: dict[int, str], waiting: set[str]) -> str:
    """nbgrader's page with the tasks' names in its list, and in which nothing runs.

    Args:
        page: HTML.
        titles: of the tasks, by number; nbgrader calls each of them "Test cell".
        waiting: cells that nobody has marked yet; nbgrader shows 0 for them.
    """
    soup = BeautifulSoup(page, "html.parser")
    for link in soup.select("#toc a"):
        cell = str(link.get("href", "")).removeprefix("#")
        named = re.match(r"task-(\d+)-", cell)
        if named and int(named[1]) in titles:
            link.string = f"Task {named[1]}: {titles[int(named[1])]}"
        if cell in waiting and link.next_sibling:
            link.next_sibling.replace_with(" (not marked yet)")
    return _without_scripts(soup)


def _without_scripts(soup: BeautifulSoup) -> str:
    """A page in which nothing runs: no script, no handler, no address but plain ones."""
    for element in soup.find_all(_ACTIVE):
        element.decompose()
    for element in soup.find_all(True):
        for name in list(element.attrs):
            value = re.sub(r"[\s\x00-\x1f]", "", str(element.attrs[name])).lower()
            scheme = re.match(r"([a-z][a-z0-9+.-]*):", value)
            plain = (
                scheme is None or scheme[1] in ("http", "https", "mailto") or value.startswith("data:image/")
            )
            if name.startswith("on") or (name in _ADDRESSES and not plain):
                del element.attrs[name]
    for element in soup.find_all("meta", attrs={"http-equiv": True}):
        element.decompose()
    head, found, rest = str(soup).partition("<head>")
    rest = rest.replace("</head>", f"{_STYLE}</head>", 1)
    return f"{head}{found}{_POLICY}{rest}" if found else f"{_POLICY}{head}"


def _own_fault(cell: nbformat.NotebookNode, output: nbformat.NotebookNode) -> str | None:
    """Words for an output that tells of broken code, and None for any other."""
    if output.output_type != "error":
        return None
    settings = cell.metadata.get("nbgrader", {})
    name = settings.get("grade_id", "a cell of their own")
    # At its limit a cell is interrupted.
    if output.ename in ("CellTimeoutError", "KeyboardInterrupt"):
        return f"{name}: stopped at the time limit"
    if output.ename == "NoResult":
        return f"{name}: {output.evalue}"
    if settings.get("solution") and output.ename != "NotImplementedError":
        return f"{name}: {output.ename}: {output.evalue.splitlines()[0] if output.evalue else ''}"
    return None


def write_csv(path: Path, columns: list[str], rows: list[dict[str, Any]], spreadsheet: bool = False) -> None:
    """Write a CSV that spreadsheets and learning platforms read.

    Args:
        path: where to.
        columns: the headings.
        rows: a value for each column that has one.
        spreadsheet: put a mark in front by which Excel reads UTF-8; a program must be told to skip it.
    """
    with path.open("w", newline="", encoding="utf-8-sig" if spreadsheet else "utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)


def read_csv(path: Path, what: str) -> tuple[list[str], list[dict[str, str]]]:
    """Headings and rows of a CSV as programs and spreadsheets write it: with commas, semicolons or tabs.

    Args:
        path: the file.
        what: what it should be, for the message.

    Raises:
        ExercisesError: it can't be read, or isn't UTF-8.
    """
    try:
        # Excel's "Unicode text" is UTF-16.
        data = path.read_bytes()
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        lines = text.splitlines()
        # A spreadsheet writes what its country separates lists with.
        comma = max(",;\t", key=lines[0].count) if lines else ","
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=comma, restval="")
        rows = [{key: value for key, value in row.items() if key is not None} for row in reader]
    except UnicodeDecodeError:
        raise ExercisesError(
            f"{what} can't be read: {path} is not UTF-8. Save it as “CSV UTF-8” in the spreadsheet"
        ) from None
    except (OSError, csv.Error) as error:
        raise ExercisesError(f"{what} can't be read: {error}") from None
    return list(reader.fieldnames or ()), rows


# With these a spreadsheet takes a cell for a formula: https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def _cell(value: Any) -> Any:
    """A number without a needless ``.0``; text that a spreadsheet can't take for a formula."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and value.lstrip()[:1] in FORMULA:
        return f"'{value}"
    return value


def _uncell(text: str) -> str:
    """What :func:`_cell` wrote, as it was."""
    return text[1:] if text[:1] == "'" and text[1:].lstrip()[:1] in FORMULA else text


def fingerprint(*paths: Path) -> str:
    """A digest of files' names and contents; a folder stands for all files below it."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and not {".ipynb_checkpoints", "__pycache__"} & set(file.parts):
                digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def reason(result: dict[str, Any]) -> str:
    """One line out of nbgrader's log: the last exception's own words."""
    log = re.sub(r"\x1b\[[0-9;]*m", "", result.get("log") or "") + "\n" + (result.get("error") or "")
    found = re.findall(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit)): (.+)$", log, flags=re.MULTILINE)
    ours = [(name, words) for name, words in found if name != "NbGraderException"]
    name, words = (ours or found or [("nbgrader", "failed without a reason; run it with --verbose")])[-1]
    if name == "NotJSONError":
        words = (
            f"the file is no notebook, or was cut off: save it in JupyterLab and hand it in again ({words})"
        )
    return f"{name}: {words[:300]}"


def _without_markers(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not re.match(r"#+ (BEGIN|END) SOLUTION", line))


def _failure_page(assignment: str, student: str, error: str) -> str:
    title, owner, words = html.escape(assignment), html.escape(student), html.escape(error)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<h1>{title}</h1>\n<p>The submission of {owner} could not be graded:</p>\n<pre>{words}</pre>\n</html>\n"
    )
