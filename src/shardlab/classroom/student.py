"""Numbers of one's own: drawn from the student's ID, so that neighbours have the same work and different numbers."""

from __future__ import annotations

import hashlib
import os
import unicodedata

from shardlab.quiz.draw import Draw

# The grader sets it to the name of the folder that a submission came from.
STUDENT_VARIABLE = "SHARDLAB_STUDENT"


def normal_id(student: object) -> str:
    """A student's ID without the differences that don't count: outer spaces, case, and a Mac's two-part ü in a folder.

    Raises:
        ValueError: there is no ID.
    """
    if not isinstance(student, str) or not student.strip():
        raise ValueError(f"student must be your ID as text, such as 'ada', not {student!r}")
    return unicodedata.normalize("NFC", student).strip().casefold()


def student_draw(assignment: str, student: str, stream: str) -> Draw:
    """The generator of a student's numbers in one assignment; each ``stream`` is independent of the others."""
    digest = hashlib.sha256(f"{assignment}/{normal_id(student)}".encode()).digest()
    return Draw(int.from_bytes(digest[:4], "big"), stream)


def owner(student: str) -> tuple[str, str | None]:
    """Whose numbers count, and a complaint if that isn't who the notebook says.

    On a student's own machine it is ``student``. While grading it is the name of the folder that the work was
    handed in under, so that a copied notebook brings its numbers along in vain.
    """
    claimed = normal_id(student)
    folder = os.environ.get(STUDENT_VARIABLE)
    if folder is None or normal_id(folder) == claimed:
        return claimed, None
    return normal_id(folder), (
        f"handed in by {folder!r}, but the notebook says student = {student!r}: the numbers are another person's"
    )
