"""Marks for a learning platform: CSV files that Moodle and Canvas import.

Moodle (Grades, Import, CSV file) takes any columns; the teacher says which one identifies the user and which grade
item each other one is. The headings are those of Moodle's own export, so the choice is plain: "Email address" or
"ID number" for the user. Sources: https://docs.moodle.org/311/en/Grade_import, sections "CSV grade import" and
"Grade mapping"; column names in grade/export/txt of Moodle's source.

Canvas (Grades, Import) wants the columns of its own export: the student's name, three IDs and the section, then one
column for each assignment, and below the headings a row with the points possible. The column of an assignment that is
in Canvas already is named "Title (its ID)". Sources: https://community.canvaslms.com, Instructor Guide, "How do I
import grades in the Gradebook?", and lib/gradebook_importer.rb of Canvas' source.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exercises_course import ExercisesError, read_csv, write_csv

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
MOODLE = ("First name", "Last name", "ID number", "Email address")
_POINTS = "    Points Possible"
# Where a student's folder may be named in a roster, most explicit first.
_KEYS = (
    "student",
    "SIS Login ID",
    "SIS User ID",
    "ID",
    "ID number",
    "Email address",
    "Username",
    "Identifier",
)


@dataclass(frozen=True)
class Roster:
    """The students of a course, as the platform exports them.

    Attributes:
        columns: headings of the file.
        people: its rows, in order.
    """

    columns: tuple[str, ...]
    people: tuple[dict[str, str], ...]

    def find(self, student: str, keys: tuple[str, ...] = _KEYS) -> int | None:
        """Number of the row that a student's folder belongs to: any of the IDs may be its name."""
        wanted = _alike(student)
        for key in keys:
            for number, row in enumerate(self.people):
                if _alike(row.get(key) or "") == wanted:
                    return number
        return None

    def with_id(self, name: str, keys: tuple[str, ...] | None = None) -> list[str]:
        """What the folder of the student with this ID, in any column or in these, is called: one, or none."""
        place = self.find(name, keys or _KEYS)
        return [] if place is None else [_folder(self.people[place])]

    def with_number(self, number: str) -> list[str]:
        """The folder of the student with this number in Moodle's grading worksheet: one, or none."""
        numbered = re.compile(rf"\D*{number}")
        return [_folder(one) for one in self.people if numbered.fullmatch(one.get("Identifier") or "")]

    def named(self, name: str) -> list[str]:
        """What the folders of all students of this full name are called, in either order of its parts."""
        wanted = _alike(name)
        found = []
        for person in self.people:
            first, last = person.get("First name") or "", person.get("Last name") or ""
            names = (f"{first} {last}", f"{last} {first}", f"{last}{first}", person.get("Full name") or "")
            if wanted in map(_alike, names):
                found.append(_folder(person))
        return found


def _folder(person: dict[str, str]) -> str:
    """A student's own ID out of all that a platform has: the first that isn't empty."""
    found = [person[key].strip() for key in _KEYS if (person.get(key) or "").strip()]
    return found[0] if found else ""


def _alike(name: str) -> str:
    """A name without what is not seen: case, spaces around, and whether ü is one letter or, as on a Mac, two."""
    return unicodedata.normalize("NFC", name).strip().casefold()


def read_roster(path: Path) -> Roster:
    """A CSV with the students: the platform's own export, or any with a column ``student`` for the folder's name.

    Raises:
        ExercisesError: it can't be read, or no column says who is who.
    """
    columns, rows = read_csv(path, "the students")
    if not set(columns) & set(_KEYS):
        raise ExercisesError(
            f"{path}: no column tells which folder is whose; one must be named {', '.join(_KEYS)}; "
            f"found: {', '.join(columns) or 'none'}. In another language rename it, or add a column student"
        )
    people = [row for row in rows if not (row.get("Student") or "").strip().startswith("Points Possible")]
    return Roster(tuple(columns), tuple(people))


def write(path: Path, lms: str, rows: list[dict[str, Any]], roster: Roster | None) -> list[str]:
    """Write the file for one platform, and return the students that the roster doesn't know.

    Args:
        path: where to.
        lms: ``"moodle"`` or ``"canvas"``.
        rows: rows of ``grades.csv``.
        roster: who is who; without one a student's folder is named like the ID number (Moodle) or the login (Canvas).
    """
    if lms not in ("moodle", "canvas"):
        raise ExercisesError(f"lms must be moodle or canvas, not {lms!r}")
    assignments = sorted({row["assignment"] for row in rows})
    maxima = {row["assignment"]: row["max"] for row in rows}
    marks: dict[str, dict[str, Any]] = {}
    for row in rows:
        marks.setdefault(row["student"], {})[row["assignment"]] = row["total"]
    places = {student: roster.find(student) if roster else None for student in marks}
    unknown = [student for student, place in places.items() if roster and place is None]
    known = CANVAS if lms == "canvas" else MOODLE
    login = "SIS Login ID" if lms == "canvas" else "ID number"
    titles = {name: _title(name, lms, roster) for name in assignments}
    out: list[dict[str, Any]] = []
    if lms == "canvas":
        out.append({"Student": _POINTS, **{titles[name]: maxima[name] for name in assignments}})
    for student in sorted(set(marks) - set(unknown)):
        place = places[student]
        person = roster.people[place] if roster and place is not None else {known[0]: student, login: student}
        about = {name: person.get(name) or "" for name in known}
        out.append({**about, **{titles[name]: mark for name, mark in marks[student].items()}})
    write_csv(path, [*known, *titles.values()], out)
    return unknown


def _title(assignment: str, lms: str, roster: Roster | None) -> str:
    """The heading of an assignment's column: as the platform has it, if its export came along."""
    for column in roster.columns if roster else ():
        if column == assignment or (column.startswith(f"{assignment} (") and column.endswith(")")):
            return column
    return assignment
