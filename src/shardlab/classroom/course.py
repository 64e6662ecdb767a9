"""Plans, goals and tables for teachers, written as Markdown from the book itself.

``book/instructor/course.toml`` says what comes in which week and what checks each goal. Marks and minutes come from
the assignments' notebooks, reading times and goals from the chapters' first cells, times of labs from the labs. A
name that leads nowhere is an error, so that the pages can't go stale.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.checks import count
from shardlab.classroom.assignments import (
    Assignment,
    bullets,
    read_assignments,
    read_cells,
    source_of,
)
from shardlab.classroom.exam_questions import QUESTIONS
from shardlab.labs import LAB_NAMES, LABS
from shardlab.quiz import registry


class CourseError(ValueError):
    """Something in ``course.toml`` doesn't fit the book. The message names it and what is allowed."""


@dataclass(frozen=True)
class Chapter:
    """A chapter as its first cell describes it.

    Attributes:
        name: file name without ending, such as ``03_data_parallel``.
        label: where ``{ref}`` leads.
        title: heading.
        minutes: about how long reading takes, without labs.
        goals: what one can do after it.
        cells: id, kind and source of each cell.
        headings: for each cell's id, the heading that it stands under.
    """

    name: str
    label: str
    title: str
    minutes: int
    goals: tuple[str, ...]
    cells: dict[str, tuple[str, str]]
    headings: dict[str, str]

    @property
    def number(self) -> int:
        """1 to 13."""
        return int(self.name[:2])

    @property
    def link(self) -> str:
        """A reference with number and title, in Markdown."""
        return f"{{ref}}`{self.number:02} {self.title.split(':')[0]} <{self.label}>`"


@dataclass(frozen=True)
class Week:
    """One week of a plan; lists of names, and (minutes, what happens) for the meetings."""

    chapters: tuple[str, ...]
    labs: tuple[str, ...]
    assignments: tuple[str, ...]
    read: tuple[str, ...]
    meetings: tuple[tuple[int, str], ...]

    @property
    def class_minutes(self) -> int:
        """Minutes of all meetings."""
        return sum(minutes for minutes, _ in self.meetings)


@dataclass(frozen=True)
class Plan:
    """A plan for so many weeks."""

    weeks: int
    meant_for: str
    content: tuple[Week, ...]


@dataclass(frozen=True)
class CourseBook:
    """Everything that the pages for teachers are written from."""

    chapters: dict[str, Chapter]
    assignments: dict[str, Assignment]
    plans: dict[int, Plan]
    checks: dict[str, dict[str, tuple[str, ...]]]


def read_chapter(path: Path) -> Chapter:
    """What a chapter's first cell says.

    Raises:
        CourseError: label, heading, goals or time are missing.
    """
    cells = read_cells(path)
    opening = source_of(cells[0]) if cells else ""
    label = re.match(r"\(([\w-]+)\)=\n# (.+)", opening)
    minutes = re.search(r"\*Time\*: about (\d+) minutes", opening)
    goals = bullets(opening)
    if not label or not minutes or not goals:
        raise CourseError(f"{path} must begin with a label, a heading, goals and '*Time*: about N minutes'")
    under, heading = {}, label[2]
    for cell in cells:
        found = (
            re.findall(r"^#{1,3} (.+)$", source_of(cell), re.MULTILINE) if cell["cell_type"] != "code" else []
        )
        heading = found[-1] if found else heading
        under[cell["id"]] = heading
    return Chapter(
        name=path.stem,
        label=label[1],
        title=label[2],
        minutes=int(minutes[1]),
        goals=goals,
        cells={cell["id"]: (cell["cell_type"], source_of(cell)) for cell in cells},
        headings=under,
    )


def read_course(root: Path) -> CourseBook:
    """The course of a copy of the book.

    Args:
        root: the repository: with ``book``, ``notebooks`` and ``exercises`` in it.

    Raises:
        CourseError: ``course.toml`` names what isn't there.
        NotebookError: an assignment can't be read.
    """
    chapters = {path.stem: read_chapter(path) for path in sorted((root / "notebooks").glob("*.ipynb"))}
    assignments = {each.name: each for each in read_assignments(root / "exercises" / "source")}
    data = tomllib.loads((root / "book" / "instructor" / "course.toml").read_text(encoding="utf-8"))
    plans = {plan["weeks"]: _plan(plan) for plan in data["plan"]}
    book = CourseBook(
        chapters=chapters,
        assignments=assignments,
        plans=plans,
        checks={
            name: {goal: tuple(checks) for goal, checks in goals.items()}
            for name, goals in data["goals"].items()
        },
    )
    _check_plans(book)
    return book


def _plan(data: dict[str, Any]) -> Plan:
    weeks = tuple(
        Week(
            chapters=tuple(week["chapters"]),
            labs=tuple(week.get("labs", ())),
            assignments=tuple(week.get("assignments", ())),
            read=tuple(week["read"]),
            meetings=tuple((count("class minutes", minutes), what) for minutes, what in week["class"]),
        )
        for week in data["week"]
    )
    if len(weeks) != data["weeks"]:
        raise CourseError(f"a plan for {data['weeks']} weeks must have as many, not {len(weeks)}")
    return Plan(weeks=data["weeks"], meant_for=data["for"], content=weeks)


def _check_plans(book: CourseBook) -> None:
    """Every name leads somewhere, and every chapter comes once in each plan."""
    for plan in book.plans.values():
        for number, week in enumerate(plan.content, start=1):
            where = f"week {number} of {plan.weeks}"
            for kind, names, known in (
                ("chapters", week.chapters, set(book.chapters)),
                ("labs", week.labs, set(LAB_NAMES)),
            ):
                for name in names:
                    if name not in known:
                        raise CourseError(
                            f"{kind} in {where} must be among {', '.join(sorted(known))}, not {name!r}"
                        )
        order = [name for week in plan.content for name in week.chapters]
        if order != sorted(book.chapters):
            raise CourseError(f"the plan for {plan.weeks} weeks must have every chapter once, in order")


# ---- what checks a goal ----


def find_check(book: CourseBook, chapter: Chapter, check: str) -> str:
    """What a check is, in Markdown.

    Args:
        book: the course.
        chapter: the one whose goal is checked.
        check: such as ``cell:params`` or ``quiz:q3/table/speedup``; kinds as in ``course.toml``.

    Raises:
        CourseError: it leads nowhere, or a cell checks nothing.
    """
    kind, _, name = check.partition(":")
    if kind in ("cell", "text"):
        return _cell(book, chapter, kind, name)
    if kind == "quiz":
        return _quiz(name)
    if kind == "task":
        folder, _, number = name.rpartition("/")
        assignment = book.assignments.get(folder)
        tasks = {str(task.number): task for task in assignment.tasks} if assignment else {}
        if number not in tasks:
            raise CourseError(
                f"task in goals.{chapter.name} must be ASSIGNMENT/NUMBER of one that is there, not {name!r}"
            )
        return f"assignment {folder[:2]}, task {number} (*{tasks[number].title}*)"
    if kind == "exam":
        questions = {build.__name__: build for _, build in QUESTIONS}
        if name not in questions:
            raise CourseError(
                f"exam in goals.{chapter.name} must be among {', '.join(questions)}, not {name!r}"
            )
        first_line = (questions[name].__doc__ or "").strip().splitlines()[0]
        return f"exam question *{first_line.rstrip('.')}*"
    if kind == "lab" and name in LAB_NAMES:
        return f"`shardlab lab {name}`"
    raise CourseError(
        f"a check in goals.{chapter.name} must be cell:, text:, quiz:, task:, exam: or lab: and a name that is "
        f"there, not {check!r}"
    )


def _cell(book: CourseBook, chapter: Chapter, kind: str, name: str) -> str:
    cell_id, _, elsewhere = name.partition("@")
    place = book.chapters.get(elsewhere, chapter) if elsewhere else chapter
    found = place.cells.get(cell_id)
    if found is None:
        raise CourseError(f"{kind} in goals.{chapter.name} must be a cell of {place.name}, not {cell_id!r}")
    cell_type, source = found
    if kind == "cell" and not (cell_type == "code" and "assert" in source):
        raise CourseError(f"cell in goals.{chapter.name} must be a code cell that asserts, not {cell_id!r}")
    heading = place.headings[cell_id]
    if kind == "text":
        return (
            f"the task in {place.link}" if place is not chapter else "the chapter's own task, with its points"
        )
    return f"the cell `{cell_id}` under *{heading}*"


def _quiz(name: str) -> str:
    quiz, _, rest = name.partition("/")
    variant_id, _, part_id = rest.partition("/")
    if quiz in registry.names():
        for variant in registry.load(quiz).variants:
            if variant.id == variant_id and part_id in [part.id for part in variant.parts]:
                title = f"quiz of chapter {quiz[1:]}" if quiz.startswith("c") else f"quiz {quiz.upper()}"
                return f"{{ref}}`{title} <review>` (`{variant_id}`, `{part_id}`)"
    raise CourseError(f"quiz must be QUIZ/VARIANT/PART of a question that is there, not {name!r}")


def goal_checks(book: CourseBook, chapter: Chapter) -> list[tuple[str, tuple[str, ...]]]:
    """Each goal of a chapter with what checks it, in Markdown.

    Raises:
        CourseError: a goal has no check, a check fits no goal or leads nowhere.
    """
    given = dict(book.checks.get(chapter.name, {}))
    rows = []
    for goal in chapter.goals:
        fitting = [start for start in given if goal.startswith(start)]
        if len(fitting) != 1 or not given[fitting[0]]:
            raise CourseError(f"goals.{chapter.name} must have one entry with checks for the goal {goal!r}")
        checks = given.pop(fitting[0])
        rows.append((goal, tuple(find_check(book, chapter, check) for check in checks)))
    if given:
        raise CourseError(f"goals.{chapter.name} must name goals of the chapter, not {next(iter(given))!r}")
    return rows


# ---- pages ----


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], align: str) -> list[str]:
    marks = {"l": "---", "r": "--:"}
    lines = [head, [marks[side] for side in align], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def homework(book: CourseBook, week: Week) -> tuple[int, float]:
    """Minutes and marks of a week's assignments, from their notebooks."""
    found = [book.assignments[name] for name in week.assignments if name in book.assignments]
    return sum(each.minutes for each in found), sum(each.marks for each in found)


def syllabus(book: CourseBook, weeks: int) -> str:
    """A plan as Markdown: an overview, then each week.

    Args:
        book: the course.
        weeks: of one of its plans.

    Raises:
        CourseError: there is no such plan.
    """
    plan = book.plans.get(weeks)
    if plan is None:
        raise CourseError(f"weeks must be one of {', '.join(map(str, sorted(book.plans)))}, not {weeks!r}")
    rows: list[tuple[str, ...]] = []
    details: list[str] = []
    totals = [0, 0, 0]
    for number, week in enumerate(plan.content, start=1):
        chapters = [book.chapters[name] for name in week.chapters]
        minutes, marks = homework(book, week)
        reading = sum(chapter.minutes for chapter in chapters)
        totals = [
            total + more for total, more in zip(totals, (week.class_minutes, reading, minutes), strict=True)
        ]
        rows.append(
            (
                str(number),
                ", ".join(chapter.link for chapter in chapters),
                str(week.class_minutes),
                str(reading),
                str(minutes),
            )
        )
        details += _week(book, number, week, marks)
    rows.append(("", "together", *map(str, totals)))
    head = ("Week", "Chapters", "Class", "Read", "Home")  # short: the table has to fit a phone
    return "\n".join([f"For {plan.meant_for}.", "", *_table(head, rows, "rlrrr"), "", *details])


def _week(book: CourseBook, number: int, week: Week, marks: float) -> list[str]:
    seconds = {lab.name: lab.seconds for lab in LABS}
    lines = [f"**Week {number}**", ""]
    lines += [f"- {minutes} min: {what}" for minutes, what in week.meetings]
    if week.labs:
        labs = ", ".join(f"`shardlab lab {name}` (about {seconds[name]} s)" for name in week.labs)
        lines.append(f"- *Labs*: {labs}")
    lines.append(f"- *Read*: the chapters, and {', '.join(f'{{cite:t}}`{key}`' for key in week.read)}")
    named = [
        f"`{name}` ({book.assignments[name].minutes} min)"
        for name in week.assignments
        if name in book.assignments
    ]
    if named:
        lines.append(f"- *Homework*: {', '.join(named)}; {marks:g} marks")
    return [*lines, ""]


def goals_page(book: CourseBook) -> str:
    """Every chapter's goals with what checks them, as Markdown."""
    lines: list[str] = []
    for chapter in book.chapters.values():
        rows = [(goal, "; ".join(checks)) for goal, checks in goal_checks(book, chapter)]
        lines += [f"**{chapter.link}**", "", *_table(("After it you can", "Checked by"), rows, "ll")]
        linked = [f"`{each.name}`" for each in book.assignments.values() if chapter.name in each.chapters[:1]]
        lines += ["", f"Assignments: {', '.join(linked)}." if linked else "No assignment of its own.", ""]
    return "\n".join(lines)


def assignments_table(book: CourseBook) -> str:
    """Every assignment with chapter, marks and minutes, then the time of each task, as Markdown."""
    links = {
        each.name: next(
            (book.chapters[name].link for name in each.chapters if name in book.chapters), "any chapter"
        )
        for each in book.assignments.values()
    }
    rows = [
        (f"`{each.name}`<br>{each.title}", links[each.name], f"{each.marks:g}", str(each.minutes))
        for each in book.assignments.values()
    ]
    rows.append(
        (
            "together",
            "",
            f"{sum(each.marks for each in book.assignments.values()):g}",
            str(sum(each.minutes for each in book.assignments.values())),
        )
    )
    lines = _table(("Assignment", "Chapter", "Marks", "Minutes"), rows, "llrr")
    for each in book.assignments.values():
        tasks = [
            (
                str(task.number),
                task.title,
                f"{task.marks:g}",
                str(task.minutes),
                f"{task.minutes / task.marks:.1f}",
            )
            for task in each.tasks
        ]
        head = ("", "Task", "Marks", "Minutes", "per mark")
        lines += ["", f"**`{each.name}`**", "", *_table(head, tasks, "rlrrr")]
    return "\n".join(lines)
