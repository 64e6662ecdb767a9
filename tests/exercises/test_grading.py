"""The grader: every submission gets the marks it deserves, and none disturbs another."""

from __future__ import annotations

import csv
import shutil

import pytest
from bs4 import BeautifulSoup
from conftest import BROKEN
from course_folder import RING, new_course
from submission import assignments

ASSIGNMENT, NOTEBOOK = RING.name, RING.notebook


@pytest.mark.parametrize("student", BROKEN)
def test_a_broken_submission_is_reported_and_gets_nothing(graded, student):
    row = graded.rows()[student]
    assert graded.marks(student) == (0, 0, 0, 0, 0, 0)
    assert BROKEN[student] in row["error"]
    assert row["max"] == "30"


def test_the_csv_has_a_row_for_everyone(graded):
    with (graded.root / "grades.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["assignment"] == ASSIGNMENT]
    most = max(len(assignment.full) for assignment in assignments().values())
    tasks = [f"task_{number}" for number in range(1, most + 1)]
    assert list(rows[0]) == ["student", "assignment", *tasks, "total", "max", "to_mark", "late_s", "error"]
    assert [row["student"] for row in rows] == sorted({"reference", "empty", *RING.wrong, *BROKEN})


def test_grading_again_changes_nothing(graded):
    before = (graded.root / "grades.csv").read_bytes()
    done = graded.run("grade", ASSIGNMENT)
    lines = [line for line in done.stdout.splitlines() if line.endswith(": unchanged")]
    assert len(lines) == len(graded.rows())
    assert (graded.root / "grades.csv").read_bytes() == before
    assert graded.run("grade", ASSIGNMENT, "--student", "reference", "--force").returncode == 0
    assert (graded.root / "grades.csv").read_bytes() == before


def test_a_changed_submission_is_graded_again_and_only_that_one(graded):
    graded.hand_in("late", {})
    folder = graded.root / "submitted" / "late" / ASSIGNMENT
    try:
        (folder / "timestamp.txt").write_text("2026-10-01 16:01:40 UTC\n")
        graded.run("grade", ASSIGNMENT, "--student", "late", "--student", "empty")
        assert graded.rows()["late"]["late_s"] == "100"
        (folder / "timestamp.txt").write_text("2026-10-01 15:00:00 UTC\n")
        done = graded.run("grade", ASSIGNMENT, "--student", "late", "--student", "empty")
        assert graded.rows()["late"]["late_s"] == "0"
        assert "empty 03_ring_allreduce: unchanged" in done.stdout
    finally:
        shutil.rmtree(graded.root / "submitted" / "late")
    # A submission that is taken back leaves no row.
    graded.run("grade", ASSIGNMENT)
    assert "late" not in graded.rows()


def test_the_feedback_tells_marks_and_reasons_but_no_solution(graded):
    done = graded.run("feedback", ASSIGNMENT)
    assert done.returncode == 0, done.stderr
    page = (graded.root / "feedback" / "wrong_neighbour" / ASSIGNMENT / "ring_allreduce.html").read_text()
    assert "Score: 16.0 / 30.0" in page
    assert "in the ring it sends only to rank 1" in page
    listed = " ".join(BeautifulSoup(page, "html.parser").select_one("#toc").get_text().split())
    assert listed.startswith(
        "Task 1: Calculate by hand, with numbers of your own (Score: 4.0 / 4.0) Task 2: "
    )
    assert listed.endswith("Task 6: Explain what you see (not marked yet)")
    failed = (graded.root / "feedback" / "no_json" / ASSIGNMENT / "not_graded.html").read_text()
    assert BROKEN["no_json"] in failed
    for path in (graded.root / "feedback").rglob("*.html"):
        text = path.read_text()
        assert "right_reduce_scatter" not in text, path
        assert "HIDDEN TESTS" not in text, path
        assert 'src="http' not in text, path
        assert "@import url(http" not in text, path


def test_a_person_marks_the_written_task_in_a_sheet(graded, tmp_path):
    assert graded.run("sheet", ASSIGNMENT).returncode == 0
    # The mark in front tells Excel that it is UTF-8.
    with (graded.root / "to_mark.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert (graded.root / "to_mark.csv").read_bytes().startswith(b"\xef\xbb\xbfstudent")
    students = {row["student"] for row in rows}
    assert "reference" in students
    assert not {"empty", *BROKEN} & students
    mine = next(row for row in rows if row["student"] == "reference")
    assert "rise towards 2P" in mine["answer"]
    assert "a ceiling that is approached from below" in mine["model_answer"]
    assert (mine["task"], mine["max"], mine["marks"]) == ("6", "5", "")
    before = (graded.root / "grades.csv").read_bytes()

    def fill(marks: str, delimiter: str = ",") -> str:
        sheet = tmp_path / "sheet.csv"
        with sheet.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(mine), delimiter=delimiter)
            writer.writeheader()
            writer.writerow(
                {**mine, "marks": marks, "comment": "the least for point-to-point links is missing"}
            )
        return str(sheet)

    refused = graded.run("mark", fill("5.5"))
    assert refused.returncode == 1
    assert "marks must be from 0 to 5, not 5.5" in refused.stderr
    assert (graded.root / "grades.csv").read_bytes() == before
    no_marks = tmp_path / "other.csv"
    no_marks.write_text("student,mark\nreference,4\n")
    refused = graded.run("mark", no_marks)
    assert refused.returncode == 1
    assert "has no column assignment; it has: student, mark" in refused.stderr
    # As a German Excel saves it: semicolons, and a comma in the number.
    assert graded.run("mark", fill("3,5", delimiter=";")).returncode == 0
    assert graded.rows()["reference"]["task_6"] == "3.5"
    assert graded.run("mark", fill("4")).returncode == 0
    row = graded.rows()["reference"]
    assert (row["task_6"], row["total"], row["to_mark"]) == ("4", "29", "0")
    # The mark outlives another grading run of the same work.
    graded.run("grade", ASSIGNMENT)
    assert graded.rows()["reference"]["total"] == "29"
    # And it needs no person again when a check was mended, as long as the answer is the same.
    graded.run("grade", ASSIGNMENT, "--student", "reference", "--force")
    row = graded.rows()["reference"]
    assert (row["task_6"], row["total"], row["to_mark"]) == ("4", "29", "0")
    graded.hand_in("reference", {**RING.reference, "task-6-answer": "Something else."})
    graded.run("grade", ASSIGNMENT, "--student", "reference")
    assert graded.rows()["reference"]["to_mark"] == "5"
    graded.hand_in("reference", RING.reference)
    graded.run("grade", ASSIGNMENT, "--student", "reference")
    assert graded.run("mark", fill("4")).returncode == 0
    graded.run("feedback", ASSIGNMENT, "--student", "reference")
    page = (graded.root / "feedback" / "reference" / ASSIGNMENT / "ring_allreduce.html").read_text()
    assert "the least for point-to-point links is missing" in page


def test_no_submissions_is_an_error_that_says_where_they_go(tmp_path):
    course = new_course(tmp_path / "course")
    done = course.run("grade")
    assert done.returncode == 1
    assert "no submissions found" in done.stderr
    assert f"{course.root}/submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb" in done.stderr


def test_what_lies_in_the_wrong_place_is_named_and_the_rest_is_graded(released, tmp_path):
    course = new_course(tmp_path / "course")
    for place in ("ada/03_ring_allreduce", "bob/3_ring", "eve[1]/03_ring_allreduce"):
        (course.root / "submitted" / place).mkdir(parents=True)
        shutil.copy(released.release(), course.root / "submitted" / place / NOTEBOOK)
    # People's names, also as a Mac writes them.
    people = ["Müller, Anna", "Zoe\u0308 O'Brien", "王小明"]
    for student in people:
        place = course.root / "submitted" / student / ASSIGNMENT
        place.mkdir(parents=True)
        shutil.copy(released.release(), place / NOTEBOOK)
    shutil.copy(released.release(), course.root / "submitted" / "ada" / ASSIGNMENT / "ring-Copy1.ipynb")
    (course.root / "submitted" / "carol.ipynb").write_text("{}")
    (course.root / "submitted" / "ada" / "notes.txt").write_text("hello")
    done = course.run("grade")
    assert done.returncode == 1
    assert set(course.rows()) == {"ada", *people}
    assert {row["error"] for row in course.rows().values()} == {""}
    assert f"note: ada {ASSIGNMENT}: ring-Copy1.ipynb is there too, and was not graded" in done.stderr
    assert f"bob/3_ring: no assignment has this name; there are: {', '.join(assignments())}" in done.stderr
    assert "eve[1]: a student's folder is named with" in done.stderr
    assert "carol.ipynb: a file; submissions are submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb" in done.stderr
    assert "notes.txt: a file; put it into submitted/ada/ASSIGNMENT/" in done.stderr


def test_an_unknown_assignment_is_an_error_that_lists_the_known_ones(released):
    done = released.run("grade", "3_ring")
    assert done.returncode == 1
    assert f"no assignment is named 3_ring; there are: {', '.join(assignments())}" in done.stderr
