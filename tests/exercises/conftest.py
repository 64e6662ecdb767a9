"""One course for all tests: released, handed in and graded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from course_folder import RING, Course, new_course
from submission import Assignment, Submission, assignments

from shardlab.classroom.student import STUDENT_VARIABLE
from tests.groups import scheduler

NEVER_STOPS = """
import time
while True:
    try:
        while True:
            time.sleep(0.1)
    except BaseException:
        pass
"""

FEW = 5
HERE = Path(__file__).parent
# What takes longest, for two workers to start with.
LONG = [
    "test_attacks",
    RING.name,
    *[name for name, one in assignments().items() if one.needs_torch],
    "test_isolation",
    *[name for name, one in assignments().items() if one is not RING and not one.needs_torch],
    "test_no_solutions",
    "test_collect",
    "test_lms",
]


@pytest.fixture(autouse=True)
def _on_a_students_machine(monkeypatch):
    monkeypatch.delenv(STUDENT_VARIABLE, raising=False)


@pytest.fixture
def notebook(tmp_path):
    """Runs code as a notebook does: in ``__main__``, with source that can be found again."""

    def run(code: str) -> dict:
        path = tmp_path / "cell.py"
        path.write_text(code)
        names: dict = {"__name__": "__main__"}
        exec(compile(code, str(path), "exec"), names)
        return names

    return run


# Submissions that can't be graded at all, and what the report says.
BROKEN = {
    "no_json": "the file is no notebook, or was cut off: save it in JupyterLab and hand it in again",
    "other_name": "ring_allreduce.ipynb is missing: found my ring.ipynb",
    "leaves_early": "the notebook ended its own kernel",
    "never_stops": "a cell could not be stopped at its limit of 5 s",
    "too_slow": "stopped after 4 s in all",
}


def pytest_addoption(parser):
    parser.addoption(
        "--all-submissions",
        action="store_true",
        help="grade every wrong submission, and run the solved notebooks (once a week)",
    )


def pytest_collection_modifyitems(items):
    """Put the longest groups first, so that two workers end at nearly the same time."""
    places = {}
    for item in items:
        if item.path.parent != HERE:
            continue
        group = group_of(item.nodeid)
        places[item] = (LONG.index(group) if group in LONG else len(LONG), group)
        # Whichever test comes first pays for grading the whole class.
        if {"graded", "class_of"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(1800))
    items.sort(key=lambda item: places.get(item, (-1, "")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Groups, not files: no assignment is graded twice."""
    return scheduler(config, log, group_of)


def group_of(nodeid: str) -> str:
    """What is tested by one worker: all that takes the grading of one assignment, or else a file."""
    path, _, test = nodeid.partition("::")
    file = Path(path).stem
    if file == "test_assignments":
        name = test.partition("[")[2].partition("]")[0].partition("-")[0]
        return name if name in assignments() else file
    # It looks at how that one was graded.
    return RING.name if file == "test_grading" else file


def chosen(assignment: Assignment, everyone: bool) -> dict[str, Submission]:
    """The wrong submissions to grade: of an assignment on real ranks, which take seconds each, a few do for a change."""
    wrong = {name: one for name, one in assignment.wrong.items() if one.marks != assignment.full}
    if everyone or not assignment.needs_torch:
        return assignment.wrong
    return dict(list(wrong.items())[:FEW])


@pytest.fixture(scope="session")
def released(tmp_path_factory) -> Course:
    """A course whose assignments are released."""
    course = new_course(tmp_path_factory.mktemp("course"))
    done = course.run("release")
    assert done.returncode == 0, done.stderr
    return course


@pytest.fixture(scope="session")
def class_of(released, pytestconfig) -> Callable[[Assignment], Course]:
    """The course after grading one assignment: the reference, an empty submission and wrong ones."""
    everyone = pytestconfig.getoption("--all-submissions")
    done = set()

    def grade(assignment: Assignment) -> Course:
        if assignment.name in done:
            return released
        done.add(assignment.name)
        released.hand_in("reference", assignment.reference, assignment)
        released.hand_in("empty", {}, assignment)
        these = chosen(assignment, everyone)
        # Who waits for the limit gets a short one, and everybody else one that a busy machine does not need.
        for limit_s, endless in ((240, False), (12, True)):
            handed_in = {student: one for student, one in these.items() if one.endless is endless}
            for student, one in handed_in.items():
                released.hand_in(student, one.cells, assignment, says=one.student, tags=one.tags)
            if handed_in:
                due = ("--due", "2026-10-01T18:00+02:00")
                limits = ("--cell-timeout", limit_s, "--submission-timeout", 1200)
                _grade(released, assignment.name, *due, *limits)
        return released

    return grade


@pytest.fixture(scope="session")
def graded(class_of) -> Course:
    """The course after grading the ring all-reduce, with submissions that can't be graded."""
    course = class_of(RING)
    if not (course.root / "submitted" / "too_slow").exists():
        _hand_in_broken(course)
        _grade(course, RING.name, "--cell-timeout", 5)
        course.hand_in("too_slow", {"task-1-answer": "import time\ntime.sleep(100)\n"})
        _grade(course, RING.name, "--student", "too_slow", "--submission-timeout", 4)
        assert set(BROKEN) <= {path.name for path in (course.root / "submitted").iterdir()}
    return course


def _hand_in_broken(course: Course) -> None:
    course.hand_in("other_name", RING.reference, name="my ring.ipynb")
    course.hand_in("no_json", {}).write_text("my work\n")
    course.hand_in("leaves_early", {**RING.reference, "task-3-code": "import os\nos._exit(0)\n"})
    course.hand_in("never_stops", {"task-1-answer": NEVER_STOPS})


def _grade(course: Course, *options: object) -> None:
    done = course.run("grade", *options)
    assert done.returncode == 0, done.stdout + done.stderr
