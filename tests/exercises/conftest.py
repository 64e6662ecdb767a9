"""One course for all tests: released, handed in and graded once."""

from __future__ import annotations

import pytest
from course_folder import Course, new_course
from ring_submissions import BROKEN, REFERENCE, WRONG

NEVER_STOPS = """
import time
while True:
    try:
        while True:
            time.sleep(0.1)
    except BaseException:
        pass
"""


def pytest_collection_modifyitems(items):
    """Whichever test comes first pays for grading the whole class."""
    for item in items:
        if "graded" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def released(tmp_path_factory) -> Course:
    """A course whose assignments are released."""
    course = new_course(tmp_path_factory.mktemp("course"))
    done = course.run("release")
    assert done.returncode == 0, done.stderr
    return course


@pytest.fixture(scope="session")
def graded(released) -> Course:
    """The course after grading every kind of submission, all of them in one run but the one that takes too long."""
    course = released
    course.hand_in("reference", REFERENCE)
    course.hand_in("empty", {})
    for student, submission in WRONG.items():
        course.hand_in(student, submission.cells, says=submission.student, tags=submission.tags)
    course.hand_in("other_name", REFERENCE, name="my ring.ipynb")
    course.hand_in("no_json", {}).write_text("my work\n")
    course.hand_in("leaves_early", {**REFERENCE, "task-3-code": "import os\nos._exit(0)\n"})
    course.hand_in("never_stops", {"task-1-answer": NEVER_STOPS})
    _grade(course, "--due", "2026-10-01T18:00+02:00", "--cell-timeout", 12, "--jobs", 3)
    course.hand_in("too_slow", {"task-1-answer": "import time\ntime.sleep(100)\n"})
    _grade(course, "--student", "too_slow", "--submission-timeout", 4)
    assert set(BROKEN) | set(WRONG) <= {path.name for path in (course.root / "submitted").iterdir()}
    return course


def _grade(course: Course, *options: object) -> None:
    done = course.run("grade", *options)
    assert done.returncode == 0, done.stdout + done.stderr
