"""Plans, goals and tables for teachers: every name leads somewhere, and every number comes from the book."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from shardlab.classroom.course import (
    CourseError,
    assignments_table,
    find_check,
    goal_checks,
    goals_page,
    homework,
    read_chapter,
    read_course,
    syllabus,
)
from shardlab.labs import LABS

ROOT = Path(__file__).resolve().parents[1]
REFERENCES = set(re.findall(r"^@\w+\{([^,]+),", (ROOT / "book" / "references.bib").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def book():
    return read_course(ROOT)


def test_there_is_a_plan_for_6_weeks_and_one_for_12(book):
    assert sorted(book.plans) == [6, 12]


@pytest.mark.parametrize("weeks", [6, 12])
def test_a_plan_has_every_chapter_and_every_assignment_once(book, weeks):
    content = book.plans[weeks].content
    assert [name for week in content for name in week.chapters] == sorted(book.chapters)
    assert [name for week in content for name in week.assignments] == sorted(book.assignments)


@pytest.mark.parametrize("weeks", [6, 12])
def test_an_assignment_comes_with_its_chapter_or_after_it(book, weeks):
    seen: set[str] = set()
    for week in book.plans[weeks].content:
        seen |= set(week.chapters)
        for name in week.assignments:
            if name in book.assignments:
                assert set(book.assignments[name].chapters[:1]) <= seen, name


@pytest.mark.parametrize("weeks", [6, 12])
def test_class_time_is_what_the_plan_says_it_is_meant_for(book, weeks):
    plan = book.plans[weeks]
    meetings, minutes = re.fullmatch(r"(one|two) meetings? of (\d+) minutes a week", plan.meant_for).groups()
    for week in plan.content:
        assert week.class_minutes == {"one": 1, "two": 2}[meetings] * int(minutes)


@pytest.mark.parametrize("weeks", [6, 12])
def test_what_is_to_be_read_is_in_the_bibliography(book, weeks):
    assert {key for week in book.plans[weeks].content for key in week.read} <= REFERENCES


def test_every_lab_that_needs_no_other_system_is_in_both_plans(book):
    # The others need what a class rarely has: DeepSpeed, Megatron-core, Ray, a network to slow down.
    special = {"deepspeed_zero", "megatron", "ray_train", "slow_network", "local_sgd"}
    for plan in book.plans.values():
        assert {name for week in plan.content for name in week.labs} == {lab.name for lab in LABS} - special


@pytest.mark.parametrize("weeks", [6, 12])
def test_the_syllabus_adds_up(book, weeks):
    text = syllabus(book, weeks)
    rows = [
        [int(cell) for cell in row]
        for row in re.findall(r"\| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    ]
    *each, together = rows
    assert len(each) == weeks
    assert [sum(column) for column in zip(*each, strict=True)] == together
    assert together[2] == sum(assignment.minutes for assignment in book.assignments.values())
    for number, week in enumerate(book.plans[weeks].content):
        assert each[number][2] == homework(book, week)[0]


def test_the_table_of_assignments_has_every_task_of_every_notebook(book):
    text = assignments_table(book)
    for assignment in book.assignments.values():
        for task in assignment.tasks:
            assert f"| {task.number} | {task.title} | {task.marks:g} | {task.minutes} |" in text
    assert f"| {sum(each.marks for each in book.assignments.values()):g} |" in text


def test_every_goal_of_every_chapter_has_a_check_that_is_there(book):
    assert len(book.chapters) == 13
    for chapter in book.chapters.values():
        rows = goal_checks(book, chapter)
        assert [goal for goal, _ in rows] == list(chapter.goals)
        assert all(checks for _, checks in rows)
    page = goals_page(book)
    assert all(goal in page for chapter in book.chapters.values() for goal in chapter.goals)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("cell:nothing", "must be a cell of 03_data_parallel, not 'nothing'"),
        ("cell:further", "must be a code cell that asserts, not 'further'"),
        ("quiz:q3/table/nothing", "must be QUIZ/VARIANT/PART"),
        ("quiz:q99/table/speedup", "must be QUIZ/VARIANT/PART"),
        ("task:03_ring_allreduce/99", "must be ASSIGNMENT/NUMBER"),
        ("task:99_nothing/1", "must be ASSIGNMENT/NUMBER"),
        ("exam:nothing", "must be among tensor_bytes"),
        ("lab:nothing", "must be cell:, text:, quiz:, task:, exam: or lab:"),
        ("hope:nothing", "must be cell:, text:, quiz:, task:, exam: or lab:"),
    ],
)
def test_a_check_that_leads_nowhere_is_an_error(book, check, words):
    with pytest.raises(CourseError, match=re.escape(words)):
        find_check(book, book.chapters["03_data_parallel"], check)


def test_a_goal_without_a_check_and_a_check_without_a_goal_are_errors(book):
    chapter = book.chapters["03_data_parallel"]
    more = dataclasses.replace(chapter, goals=(*chapter.goals, "fly"))
    with pytest.raises(CourseError, match="one entry with checks for the goal 'fly'"):
        goal_checks(book, more)
    fewer = dataclasses.replace(chapter, goals=chapter.goals[:-1])
    with pytest.raises(CourseError, match="must name goals of the chapter, not 'name the two things'"):
        goal_checks(book, fewer)


def course_with(tmp_path: Path, change) -> Path:
    """A copy of the book's folders whose course.toml is changed."""
    for name in ("notebooks", "exercises"):
        (tmp_path / name).symlink_to(ROOT / name)
    target = tmp_path / "book" / "instructor"
    target.mkdir(parents=True)
    text = (ROOT / "book" / "instructor" / "course.toml").read_text()
    changed = change(text)
    assert changed != text
    (target / "course.toml").write_text(changed)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('labs = ["ring"]', 'labs = ["nothing"]', "labs in week 1 of 6 must be among"),
        ('chapters = ["13_capstone"]', 'chapters = ["14_more"]', "chapters in week 12 of 12 must be among"),
        ('chapters = ["13_capstone"]', "chapters = []", "must have every chapter once, in order"),
        ("weeks = 6", "weeks = 5", "a plan for 5 weeks must have as many, not 6"),
    ],
)
def test_a_plan_that_does_not_fit_the_book_is_an_error(tmp_path, old, new, words):
    with pytest.raises(CourseError, match=re.escape(words)):
        read_course(course_with(tmp_path, lambda text: text.replace(old, new, 1)))


def test_there_is_no_plan_for_7_weeks(book):
    with pytest.raises(CourseError, match="weeks must be one of 6, 12, not 7"):
        syllabus(book, 7)


def test_a_chapter_must_say_what_it_takes(tmp_path):
    (tmp_path / "01_x.ipynb").write_text(
        '{"cells": [{"id": "a", "cell_type": "markdown", "source": "(ch-x)=\\n# X\\n"}]}'
    )
    with pytest.raises(CourseError, match="must begin with a label, a heading, goals and"):
        read_chapter(tmp_path / "01_x.ipynb")
