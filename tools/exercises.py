"""Assignments from release to marks.

    python3 tools/exercises.py release              write the student release of every assignment
    python3 tools/exercises.py start                copy the releases to exercises/work, to work on them
    python3 tools/exercises.py collect NAME ZIP     sort a download from Moodle or Canvas into exercises/submitted
    python3 tools/exercises.py grade                grade exercises/submitted, write exercises/grades.csv
    python3 tools/exercises.py feedback             write a feedback page for every graded submission
    python3 tools/exercises.py sheet                write exercises/to_mark.csv: the answers that a person has to mark
    python3 tools/exercises.py mark to_mark.csv     enter the marks of a filled sheet, write exercises/grades.csv
    python3 tools/exercises.py export --lms moodle  write exercises/moodle.csv, which Moodle imports (or canvas)

Add the name of an assignment to do only that one. nbgrader lives in a virtual environment of its own
(.venv-grade, or the Python named by SHARDLAB_GRADE_PYTHON): started from another Python, this script changes over.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import multiprocessing.util
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exercises_course import Course

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
# What a submission's marks depend on, beside itself and the source notebook.
CHECKING_CODE = ("classroom", "models", "quiz/draw.py", "checks.py", "units.py")


# ---- submissions ----


@dataclass(frozen=True)
class Submission:
    """One student's folder for one assignment."""

    student: str
    assignment: str
    folder: Path


def find_submissions(course: Course, wanted: list[str]) -> tuple[list[Submission], list[str]]:
    """All submissions of the wanted assignments, and complaints about whatever else lies in the folder."""
    from exercises_intake import is_student

    base = course.root / "submitted"
    found, complaints = [], []
    known = ", ".join(course.assignments)
    for student in sorted(base.iterdir()) if base.is_dir() else []:
        if student.name.startswith("."):
            continue
        if not student.is_dir():
            complaints.append(
                f"{student}: a file; submissions are submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb"
            )
            continue
        if not is_student(student.name):
            complaints.append(
                f"{student}: a student's folder is named with letters, digits, spaces and . , _ @ + - ' only"
            )
            continue
        for folder in sorted(student.iterdir()):
            if folder.name.startswith("."):
                continue
            if not folder.is_dir():
                complaints.append(f"{folder}: a file; put it into submitted/{student.name}/ASSIGNMENT/")
            elif folder.name not in course.assignments:
                complaints.append(f"{folder}: no assignment has this name; there are: {known}")
            elif folder.name in wanted:
                found.append(Submission(student.name, folder.name, folder))
    return found, complaints


def fault(course: Course, submission: Submission) -> str | None:
    """What is wrong with the files of a submission, before any is read for grading."""
    import exercises_intake

    student = submission.folder.parent
    if student.is_symlink():
        return f"{student.name} is a link; hand in the folder itself"
    words = exercises_intake.fault(submission.folder)
    if words:
        return words
    present = sorted(path.stem for path in submission.folder.glob("*.ipynb"))
    for name in course.notebooks(submission.assignment):
        if name not in present:
            instead = (
                f"found {', '.join(f'{other}.ipynb' for other in present)}"
                if present
                else "found no notebook"
            )
            rename = " (if that is the work, rename it and grade again)" if len(present) == 1 else ""
            return f"{name}.ipynb is missing: {instead}{rename}"
    return None


# ---- commands ----


def release(course: Course, options: argparse.Namespace) -> int:
    """Write the student release."""
    for assignment in options.assignments:
        _release(course, assignment)
        print(f"released {course.root / 'release' / assignment}")
    return 0


def _release(course: Course, assignment: str) -> None:
    kept = course.release(assignment)
    if kept is not None:
        print(
            f"{assignment}: the release had been edited, and is only ever generated; the edited copy is {kept}"
        )


def start(course: Course, options: argparse.Namespace) -> int:
    """Copy the releases to a folder to work in; what is there already stays as it is."""
    for assignment in options.assignments:
        _release(course, assignment)
        target = course.root / "work" / assignment
        if target.exists():
            print(f"{target} is there already: it stays as it is")
        else:
            shutil.copytree(course.root / "release" / assignment, target)
            print(f"work in {target}")
    return 0


def collect(course: Course, options: argparse.Namespace) -> int:
    """Sort the submissions that Moodle or Canvas let you download into exercises/submitted."""
    import exercises_collect
    import exercises_lms

    roster = exercises_lms.read_roster(options.students) if options.students else None
    (assignment,) = options.assignments
    done, complaints = exercises_collect.collect(
        course, assignment, options.download, roster, options.replace
    )
    for line in done:
        print(f"collected {line}")
    for line in complaints:
        print(f"not collected: {line}", file=sys.stderr)
    print(f"{len(done)} submissions in {course.root / 'submitted'}")
    return 1 if complaints else 0


def grade(course: Course, options: argparse.Namespace) -> int:
    """Grade what isn't graded yet, or has changed since, and write the marks of all."""
    submissions, complaints = find_submissions(course, options.assignments)
    submissions = [one for one in submissions if not options.student or one.student in options.student]
    if not submissions:
        raise _exercises_error(
            "no submissions found.\n"
            f"Put each one at {course.root / 'submitted'}/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb; "
            f"assignments: {', '.join(options.assignments)}." + "".join(f"\n  {line}" for line in complaints)
        )
    _check_sandbox(options)
    for assignment in sorted({one.assignment for one in submissions}):
        _release(course, assignment)
        if options.due:
            course.set_due(assignment, options.due)
    try:
        _grade_all(course, submissions, options)
    finally:
        # Also after Ctrl-C: what is graded is kept, and the next run goes on from there.
        print(f"marks: {course.write_grades()}")
    waiting = sum(1 for row in course.rows() if row["to_mark"])
    if waiting:
        print(f"{waiting} submissions have answers to mark by hand: python3 tools/exercises.py sheet")
    for line in _left_over(course, submissions):
        print(f"note: {line}", file=sys.stderr)
    for line in complaints:
        print(f"not graded: {line}", file=sys.stderr)
    return 1 if complaints else 0


def _left_over(course: Course, submissions: list[Submission]) -> list[str]:
    """Notebooks beside the graded ones: perhaps the work is in one of them."""
    lines = []
    for one in submissions:
        graded = set(course.notebooks(one.assignment))
        present = {path.stem for path in one.folder.glob("*.ipynb")}
        if graded <= present and present - graded:
            names = ", ".join(f"{name}.ipynb" for name in sorted(present - graded))
            lines.append(f"{one.student} {one.assignment}: {names} is there too, and was not graded")
    return lines


def _check_sandbox(options: argparse.Namespace) -> None:
    """Find out before anything is graded whether submissions can be run, and say how if they can't."""
    from exercises_sandbox import SandboxError, bubblewrap, default_pythons, find_python

    try:
        if not options.no_isolation:
            bubblewrap()
        python = find_python([options.kernel_python] if options.kernel_python else default_pythons())
    except SandboxError as error:
        raise _exercises_error(str(error)) from None
    # The workers need not ask again.
    options.kernel_python = python.path
    if options.no_isolation:
        print(
            "warning: without isolation, submissions run with your rights: they can read and write whatever you can, "
            "and reach the network",
            file=sys.stderr,
        )


def _grade_all(course: Course, submissions: list[Submission], options: argparse.Namespace) -> None:
    """Grade several submissions at a time, each in its own sandbox, and tell how each one went."""
    from exercises_course import ExercisesError

    from shardlab.labs.machine import usable_cores

    todo = {one: course_fingerprint(course, one) for one in submissions}
    for one, print_of in list(todo.items()):
        before = course.records(one.assignment).get(one.student)
        if before and before["fingerprint"] == print_of and not options.force:
            print(f"{one.student} {one.assignment}: unchanged")
            del todo[one]
    if not todo:
        return
    jobs = min(options.jobs or usable_cores(), len(todo))
    with ProcessPoolExecutor(jobs, initializer=_start_worker, initargs=(options,)) as workers:
        running = [workers.submit(_grade_one, one, print_of) for one, print_of in todo.items()]
        try:
            for number, done in enumerate(as_completed(running), start=1):
                print(f"[{number}/{len(todo)}] {done.result()}", flush=True)
        except KeyboardInterrupt:
            print("interrupted: the submissions under way are finished first", file=sys.stderr)
            workers.shutdown(wait=True, cancel_futures=True)
            raise
        except ExercisesError:
            workers.shutdown(wait=True, cancel_futures=True)
            raise
        except BrokenProcessPool:
            raise _exercises_error(
                "a grading process was killed: is the memory full? Run it again to go on, with --jobs 1 if it happens again"
            ) from None


def course_fingerprint(course: Course, submission: Submission) -> str:
    """A digest of all that a submission's marks depend on."""
    from exercises_course import fingerprint

    words = fault(course, submission)
    if words:
        # Files that aren't to be graded aren't to be read either.
        return hashlib.sha256(words.encode()).hexdigest()
    checking = [REPOSITORY / "src" / "shardlab" / name for name in CHECKING_CODE]
    return fingerprint(submission.folder, course.root / "source" / submission.assignment, *checking)


_worker_course: Course | None = None


def _start_worker(options: argparse.Namespace) -> None:
    """Prepare a worker process: Ctrl-C is for the parent alone, but its end is ours."""
    global _worker_course
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _worker_course = _open_course(options)
    import exercises_execute

    multiprocessing.util.Finalize(None, exercises_execute.close_sandboxes, exitpriority=10)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _grade_one(submission: Submission, print_of: str) -> str:
    """Grade one submission in a worker and write down how it went; returns that in words."""
    from exercises_course import reason

    course, began = _worker_course, time.monotonic()
    assert course is not None
    error = fault(course, submission)
    failed = error is not None
    if not failed:
        import exercises_execute

        marked = course.marked_answers(submission.assignment, submission.student)
        result = course.api.autograde(submission.assignment, submission.student, force=True, create=True)
        if exercises_execute.trouble is not None:
            # Nobody's marks suffer from what is wrong with this machine.
            raise _exercises_error(str(exercises_execute.trouble))
        failed = not result["success"]
        error = reason(result) if failed else course.cell_errors(submission.assignment, submission.student)
        if not failed:
            course.keep_marks(submission.assignment, submission.student, marked)
    record = {"student": submission.student, "fingerprint": print_of, "failed": failed, "error": error}
    course.write_record(submission.assignment, record)
    outcome = (
        f"not graded: {error}" if failed else course.score_words(submission.assignment, submission.student)
    )
    return f"{submission.student} {submission.assignment}: {outcome} ({time.monotonic() - began:.1f} s)"


def feedback(course: Course, options: argparse.Namespace) -> int:
    """Write the feedback pages."""
    written = 0
    for assignment in options.assignments:
        for student in sorted(course.records(assignment)):
            if not options.student or student in options.student:
                print(f"feedback: {course.feedback(assignment, student)}", flush=True)
                written += 1
    if not written:
        raise _exercises_error("nothing is graded yet: run the grade command first")
    return 0


def sheet(course: Course, options: argparse.Namespace) -> int:
    """Write the answers that wait for a person, with room for the marks."""
    from exercises_course import write_csv

    rows = [row for row in course.answers_to_mark() if row["assignment"] in options.assignments]
    path = course.root / "to_mark.csv"
    columns = ["student", "assignment", "task", "max", "marks", "comment", "answer", "model_answer"]
    write_csv(path, columns, rows, spreadsheet=True)
    print(f"{len(rows)} answers to mark: {path}")
    return 0


def mark(course: Course, options: argparse.Namespace) -> int:
    """Enter the marks of a filled sheet: every row with something in the column ``marks``."""
    from exercises_course import read_csv

    columns, rows = read_csv(options.sheet, "the sheet")
    missing = [name for name in ("student", "assignment", "task", "marks") if name not in columns]
    if missing:
        raise _exercises_error(
            f"{options.sheet} has no column {missing[0]}; it has: {', '.join(columns) or 'none'}. "
            "The command sheet writes one to fill"
        )
    rows = [row for row in rows if (row.get("marks") or "").strip()]
    for row in rows:
        course.mark(row)
    print(f"{len(rows)} marks entered; all marks: {course.write_grades()}")
    return 0


def export(course: Course, options: argparse.Namespace) -> int:
    """Write the marks as a CSV that a learning platform imports."""
    import exercises_lms

    roster = exercises_lms.read_roster(options.students) if options.students else None
    rows = [row for row in course.rows() if row["assignment"] in options.assignments]
    if not rows:
        raise _exercises_error("nothing is graded yet: run the grade command first")
    path = options.output or course.root / f"{options.lms}.csv"
    unknown = exercises_lms.write(path, options.lms, rows, roster)
    print(f"marks for {options.lms.capitalize()}: {path}")
    waiting = sum(1 for row in rows if row["to_mark"])
    if waiting:
        print(f"{waiting} submissions have answers to mark by hand, which count as 0 until then")
    for student in unknown:
        print(f"not in {options.students}: {student}", file=sys.stderr)
    return 1 if unknown else 0


# ---- the command line ----


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command and its options."""
    parser = argparse.ArgumentParser(
        prog="exercises.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[Course, argparse.Namespace], int]) -> argparse.ArgumentParser:
        words = (run.__doc__ or "").strip()
        command = commands.add_parser(name, help=words, description=words)
        command.set_defaults(run=run)
        command.add_argument("--root", type=Path, default=REPOSITORY / "exercises", help="the course folder")
        return command

    for name, run in (
        ("release", release),
        ("start", start),
        ("grade", grade),
        ("feedback", feedback),
        ("sheet", sheet),
        ("export", export),
    ):
        command = add(name, run)
        command.add_argument("assignments", nargs="*", metavar="ASSIGNMENT", help="all of them without one")
        if name in ("grade", "feedback"):
            command.add_argument("--student", action="append", help="only this student; can be repeated")
        if name == "export":
            command.add_argument(
                "--lms", choices=("moodle", "canvas"), required=True, help="for which platform"
            )
            command.add_argument(
                "--students", type=Path, metavar="CSV", help="who is who: see exercises/README.md"
            )
            command.add_argument(
                "--output", type=Path, metavar="CSV", help="default: moodle.csv or canvas.csv"
            )
        if name == "grade":
            command.add_argument("--force", action="store_true", help="grade unchanged submissions again")
            command.add_argument("--due", type=_due, help="when it was due, such as 2026-10-01T18:00+02:00")
            command.add_argument(
                "--jobs", type=int, metavar="N", help="how many at a time (default: one for each core)"
            )
            command.add_argument(
                "--cell-timeout", type=int, metavar="S", help="seconds that one cell may take"
            )
            command.add_argument("--submission-timeout", type=int, metavar="S", help="seconds in all")
            command.add_argument(
                "--memory-gib",
                type=float,
                metavar="G",
                help="memory of all of a submission's processes (default: 2)",
            )
            command.add_argument(
                "--kernel-python",
                type=Path,
                metavar="PATH",
                help="the Python that runs submissions (default: the book's if it has PyTorch, else the grading one)",
            )
            command.add_argument(
                "--no-isolation",
                action="store_true",
                help="run submissions with your own rights, without bubblewrap",
            )
    command = add("collect", collect)
    command.add_argument("assignments", nargs=1, metavar="ASSIGNMENT", help="the one that was handed in")
    command.add_argument(
        "download", type=Path, metavar="ZIP", help="the download, or the folder it was unpacked to"
    )
    command.add_argument("--students", type=Path, metavar="CSV", help="who is who: see exercises/README.md")
    command.add_argument(
        "--replace", action="store_true", help="let a newer version take the place of what is there"
    )
    command = add("mark", mark)
    command.add_argument("sheet", type=Path, help="the filled sheet, a CSV")
    command.set_defaults(assignments=[])
    return parser.parse_args(arguments)


def _due(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"a date and time such as 2026-10-01T18:00+02:00, not {text!r}"
        ) from None
    # nbgrader compares with the time of handing in, which is UTC; without a zone it is this machine's.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")


def grading_python() -> Path:
    """The Python that has nbgrader."""
    return Path(os.environ.get("SHARDLAB_GRADE_PYTHON") or REPOSITORY / ".venv-grade" / "bin" / "python")


def _change_over() -> None:
    """Start again in nbgrader's environment, if we aren't in it."""
    if importlib.util.find_spec("nbgrader") is not None:
        return
    python = grading_python()
    if not python.exists() or os.environ.get("SHARDLAB_CHANGED_OVER"):
        raise SystemExit(
            f"nbgrader is not installed for {python}. Run: make release (it installs what grading needs)"
        )
    os.environ["SHARDLAB_CHANGED_OVER"] = "1"
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


def _exercises_error(words: str) -> Exception:
    from exercises_course import ExercisesError

    return ExercisesError(words)


def main() -> int:
    """Run one command; problems that the teacher can solve are told without a traceback."""
    options = parse(sys.argv[1:])
    _change_over()
    warnings.filterwarnings("ignore")
    # jsonschema would build a whole grammar for a format that no notebook uses: two seconds at every start.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    from exercises_course import ExercisesError

    try:
        course = _open_course(options)
        unknown = [name for name in options.assignments if name not in course.assignments]
        if unknown:
            raise ExercisesError(
                f"no assignment is named {unknown[0]}; there are: {', '.join(course.assignments)}"
            )
        options.assignments = options.assignments or course.assignments
        return int(options.run(course, options))
    except ExercisesError as error:
        print(f"exercises: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        return 130


def _open_course(options: argparse.Namespace) -> Course:
    from exercises_course import Course
    from traitlets.config import Config

    settings: Any = Config()
    if getattr(options, "cell_timeout", None):
        settings.ExecuteSubmission.timeout = options.cell_timeout
    if getattr(options, "submission_timeout", None):
        settings.ExecuteSubmission.submission_timeout = options.submission_timeout
    if getattr(options, "memory_gib", None):
        settings.ExecuteSubmission.memory_gib = options.memory_gib
    if getattr(options, "kernel_python", None):
        settings.ExecuteSubmission.kernel_python = str(options.kernel_python)
    if getattr(options, "no_isolation", False):
        settings.ExecuteSubmission.isolation = False
    return Course(options.root, settings)


if __name__ == "__main__":
    sys.exit(main())
