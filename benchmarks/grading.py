"""How fast submissions are graded: sandbox and warm kernels beside plain ``nbgrader autograde``, on the same notebooks.

    python benchmarks/grading.py                     24 submissions, 8 of them with plain nbgrader too
    python benchmarks/grading.py --submissions 100   a large class

It needs the grading environment (``make release`` installs it) and bubblewrap. Plain nbgrader runs one submission
after the other, each in a new kernel and without any isolation; the grader of this course runs one for each core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ASSIGNMENT = "03_ring_allreduce"
NOTEBOOK = "ring_allreduce.ipynb"


def hand_in(root: Path, n_submissions: int) -> list[str]:
    """Submissions that solve everything: the released notebook with the source's solutions."""
    source = json.loads((root / "source" / ASSIGNMENT / NOTEBOOK).read_text())
    released = json.loads((root / "release" / ASSIGNMENT / NOTEBOOK).read_text())
    solved = {
        cell["id"]: cell["source"]
        for cell in source["cells"]
        if cell["metadata"].get("nbgrader", {}).get("solution")
    }
    students = [f"student{number:03}" for number in range(n_submissions)]
    for student in students:
        for cell in released["cells"]:
            cell["source"] = solved.get(cell["id"], cell["source"])
            if cell["id"] == "student":
                cell["source"] = f'student = "{student}"'
        folder = root / "submitted" / student / ASSIGNMENT
        folder.mkdir(parents=True)
        (folder / NOTEBOOK).write_text(json.dumps(released))
    return students


def timed(command: list[str], root: Path) -> tuple[float, float]:
    """Seconds on the clock and of processor time that a command takes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    elapsed, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return elapsed, cpu


def new_course(root: Path, python: str, n_submissions: int) -> list[str]:
    """A course folder with one assignment, released, and submissions."""
    shutil.copytree(REPOSITORY / "exercises" / "source" / ASSIGNMENT, root / "source" / ASSIGNMENT)
    timed([python, str(REPOSITORY / "tools" / "exercises.py"), "release", "--root", str(root)], root)
    return hand_in(root, n_submissions)


def report(name: str, n_submissions: int, elapsed_s: float, cpu_s: float) -> None:
    """One line of the table."""
    print(
        f"{name:<24} {n_submissions:>5} submissions  {60 * n_submissions / elapsed_s:7.1f} a minute  "
        f"{cpu_s / n_submissions:5.2f} s of processor time each"
    )


def main() -> None:
    """Grade both ways and print the ratio."""
    parser = argparse.ArgumentParser(description="How fast submissions are graded.")
    parser.add_argument("--submissions", type=int, default=24)
    parser.add_argument("--plain", type=int, default=8, help="how many of them plain nbgrader grades as well")
    options = parser.parse_args()
    python = os.environ.get("SHARDLAB_GRADE_PYTHON") or str(REPOSITORY / ".venv-grade" / "bin" / "python")
    if not Path(python).exists():
        sys.exit(f"there is no {python}: run make release, which installs what grading needs")
    n_plain = min(options.plain, options.submissions)
    with tempfile.TemporaryDirectory(prefix="grading-") as name:
        ours, plain = Path(name, "ours"), Path(name, "plain")
        new_course(ours, python, options.submissions)
        new_course(plain, python, n_plain)
        elapsed, cpu = timed(
            [python, str(REPOSITORY / "tools" / "exercises.py"), "grade", "--root", str(ours)], ours
        )
        report("sandboxed, warm kernels", options.submissions, elapsed, cpu)
        os.environ["PATH"] = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
        plain_elapsed, plain_cpu = timed(
            [
                python,
                "-m",
                "nbgrader",
                "autograde",
                ASSIGNMENT,
                "--create",
                "--CourseDirectory.root",
                str(plain),
            ],
            plain,
        )
        report("plain nbgrader autograde", n_plain, plain_elapsed, plain_cpu)
        rate = (options.submissions / elapsed) / (n_plain / plain_elapsed)
        per_cpu = (plain_cpu / n_plain) / (cpu / options.submissions)
        print(f"{rate:.1f} times as many a minute, on {1 / per_cpu:.0%} of the processor time each")


if __name__ == "__main__":
    main()
