"""Marks for Moodle and Canvas, with the headings that their imports know."""

from __future__ import annotations

import csv
import shutil

import pytest
from course_folder import RING, Course
from submission import REPOSITORY


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Course:
    """Three submissions that nothing has to be run for: they can't be graded."""
    root = tmp_path_factory.mktemp("lms")
    shutil.copytree(REPOSITORY / "exercises" / "source" / RING.name, root / "source" / RING.name)
    course = Course(root)
    assert course.run("release").returncode == 0
    for student in ("ada", "bob@example.org", "u3"):
        course.hand_in(student, {}).write_text("no notebook\n")
    course.run("grade")
    # Marks as after grading; the export reads them from the records and the gradebook, these are all zero.
    assert {row["total"] for row in course.rows().values()} == {"0"}
    return course


def lines(course: Course, name: str) -> list[str]:
    return (course.root / name).read_text().splitlines()


def test_moodle_without_a_list_of_students(course):
    done = course.run("export", "--lms", "moodle")
    assert done.returncode == 0, done.stderr
    assert lines(course, "moodle.csv") == [
        "First name,Last name,ID number,Email address,03_ring_allreduce",
        "ada,,ada,,0",
        "bob@example.org,,bob@example.org,,0",
        "u3,,u3,,0",
    ]


def test_moodle_with_its_own_export(course, tmp_path):
    roster = tmp_path / "students.csv"
    roster.write_text(
        "First name,Last name,ID number,Email address,Assignment: other (Real)\n"
        "Ada,Lovelace,ada,ada@example.org,\nBob,Ross,7,bob@example.org,\n"
    )
    done = course.run("export", "--lms", "moodle", "--students", roster)
    assert done.returncode == 1
    assert f"not in {roster}: u3" in done.stderr
    assert lines(course, "moodle.csv") == [
        "First name,Last name,ID number,Email address,03_ring_allreduce",
        "Ada,Lovelace,ada,ada@example.org,0",
        "Bob,Ross,7,bob@example.org,0",
    ]


def test_canvas_without_a_list_of_students(course):
    assert course.run("export", "--lms", "canvas").returncode == 0
    assert lines(course, "canvas.csv") == [
        "Student,ID,SIS User ID,SIS Login ID,Section,03_ring_allreduce",
        "    Points Possible,,,,,30",
        "ada,,,ada,,0",
        "bob@example.org,,,bob@example.org,,0",
        "u3,,,u3,,0",
    ]


def test_canvas_with_its_own_export(course, tmp_path):
    roster, output = tmp_path / "students.csv", tmp_path / "marks.csv"
    with roster.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(
            [
                ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "03_ring_allreduce (812)"],
                ["    Points Possible", "", "", "", "", "30"],
                ["Lovelace, Ada", "101", "s1", "ADA", "Group A", ""],
                ["Ross, Bob", "102", "s2", "bob@example.org", "Group A", ""],
                ["Three, U", "103", "u3", "three", "Group B", ""],
            ]
        )
    done = course.run("export", "--lms", "canvas", "--students", roster, "--output", output)
    assert done.returncode == 0, done.stderr
    assert output.read_text().splitlines() == [
        "Student,ID,SIS User ID,SIS Login ID,Section,03_ring_allreduce (812)",
        "    Points Possible,,,,,30",
        '"Lovelace, Ada",101,s1,ADA,Group A,0',
        '"Ross, Bob",102,s2,bob@example.org,Group A,0',
        '"Three, U",103,u3,three,Group B,0',
    ]


def test_a_list_without_ids_is_an_error_that_says_what_it_needs(course, tmp_path):
    roster = tmp_path / "students.csv"
    roster.write_text("Name,Group\nAda,A\n")
    done = course.run("export", "--lms", "canvas", "--students", roster)
    assert done.returncode == 1
    assert "no column tells which folder is whose" in done.stderr
    assert "found: Name, Group" in done.stderr


def test_a_list_that_a_spreadsheet_saved_with_semicolons(course, tmp_path):
    roster = tmp_path / "students.csv"
    roster.write_bytes(
        "First name;Last name;ID number;Email address\r\n"
        "Ada;Lovelace;ada;\r\nBob;Ross;;bob@example.org\r\nU;Three;u3;\r\n".encode("utf-8-sig")
    )
    done = course.run("export", "--lms", "moodle", "--students", roster)
    assert done.returncode == 0, done.stderr
    assert lines(course, "moodle.csv")[1:] == [
        "Ada,Lovelace,ada,,0",
        "Bob,Ross,,bob@example.org,0",
        "U,Three,u3,,0",
    ]
    roster.write_bytes("First name,Last name,ID number\nJürgen,Müller,ada\n".encode("cp1252"))
    done = course.run("export", "--lms", "moodle", "--students", roster)
    assert done.returncode == 1
    assert f"{roster} is not UTF-8. Save it as “CSV UTF-8” in the spreadsheet" in done.stderr
