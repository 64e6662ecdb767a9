"""Build the teacher's edition into _build/teacher: everything that students must not see, beside the book they see.

    python tools/teacher_edition.py              the exam's seed is drawn once and kept in _build/teacher/seed.txt
    python tools/teacher_edition.py --seed 7     another exam

Solutions, hidden checks and model answers come from exercises/source, the typical wrong submissions from the tests
that grade them, the exam from shardlab.classroom.exam. The student's site, _build/html, is copied in whole, and
references to chapters lead there. `make teacher` builds that first.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import secrets
import shutil
import sys
from pathlib import Path

import yaml
from build_book import build_pages

from shardlab.classroom.assignments import Assignment, notebooks_in, read_assignment, read_cells, source_of
from shardlab.classroom.course import read_course
from shardlab.classroom.exam import key_lines, make_paper, paper_lines
from shardlab.quiz.text import to_html

ROOT = Path(__file__).resolve().parent.parent
STUDENT_SITE = ROOT / "_build" / "html"
TEACHER = ROOT / "_build" / "teacher"
SUBMISSIONS = ROOT / "tests" / "exercises"
LIMIT_S = 600
# What the student's book calls its bibliography: the pages cite.
BIBLIOGRAPHY = "book/bibliography"
PUBLIC = ("syllabus", "goals", "running")


# ---- solutions ----


def solution_page(assignment: Assignment, labels: dict[str, str], mistakes: list[str]) -> str:
    """A source notebook as a page, with all that the release leaves out.

    Args:
        assignment: from exercises/source.
        labels: of the chapters, by name.
        mistakes: lines of Markdown for the end.
    """
    lines: list[str] = []
    for cell in read_cells(assignment.path):
        source = source_of(cell)
        if cell["cell_type"] == "code":
            lines += ["```python", source, "```", ""]
        else:
            lines += [_answers_marked(_linked(source, labels)), ""]
    return "\n".join([*lines, *mistakes]) + "\n"


def _linked(source: str, labels: dict[str, str]) -> str:
    """Links to chapters as references; what else lies outside this edition becomes plain text."""

    def reference(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        chapter = re.search(r"notebooks/(\w+)\.ipynb", target)
        if chapter and chapter[1] in labels:
            return f"{{ref}}`{words} <{labels[chapter[1]]}>`"
        return words

    return re.sub(r"\[([^\]]+)\]\((\.\.?/[^)]*)\)", reference, source)


def _answers_marked(source: str) -> str:
    """A written answer's region as a box: its marks would read as headings in Markdown."""
    source = re.sub(
        r"^### BEGIN SOLUTION$", ":::{admonition} Model answer, with marks\n:class: tip", source, flags=re.M
    )
    return re.sub(r"^### END SOLUTION$", ":::", source, flags=re.M)


# ---- typical wrong submissions ----


def comments_above_keys(path: Path) -> dict[str, str]:
    """For each text that is a key of a dictionary in this file: the comment right above it."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.walk(ast.parse(text)):
        for key in node.keys if isinstance(node, ast.Dict) else []:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                above: list[str] = []
                number = key.lineno - 2
                while number >= 0 and lines[number].strip().startswith("#"):
                    above.insert(0, lines[number].strip().lstrip("# "))
                    number -= 1
                if above:
                    found[key.value] = " ".join(above)
    return found


def mistakes_section(name: str) -> list[str]:
    """The wrong submissions of an assignment, with the marks that the tests grant each, as Markdown.

    Raises:
        SystemExit: the tests know no submissions of this assignment.
    """
    sys.path.insert(0, str(SUBMISSIONS))
    try:
        from submission import assignments

        known = assignments()
    finally:
        sys.path.remove(str(SUBMISSIONS))
    if name not in known:
        raise SystemExit(
            f"{name} has no submissions in {SUBMISSIONS / 'submissions'}: its tests are missing."
        )
    graded = known[name]
    comments: dict[str, str] = {}
    for path in sorted((SUBMISSIONS / "submissions").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f'"{name}"' in text:
            comments.update(comments_above_keys(path))
    tasks = [str(number) for number in range(1, len(graded.full) + 1)]
    lines = ["## Typical wrong submissions", ""]
    lines += [
        "Each is graded by the tests, with exactly these marks; bold is where it loses some. "
        "What a person marks counts 0 here.",
        "",
    ]
    lines += ["| Submission | " + " | ".join(tasks) + " | Sum |"]
    lines += ["| --- |" + " --: |" * (len(tasks) + 1)]
    full = " | ".join(str(mark) for mark in graded.full)
    lines += [f"| right | {full} | {sum(graded.full)} |"]
    for student, one in graded.wrong.items():
        marks = [
            f"**{mark}**" if mark < whole else str(mark)
            for mark, whole in zip(one.marks, graded.full, strict=True)
        ]
        lines += [f"| `{student}` | {' | '.join(marks)} | {sum(one.marks)} |"]
    lines += [""]
    for student, one in graded.wrong.items():
        lines += [f"**`{student}`.** {comments.get(student, '')}".rstrip(), ""]
        lines += [f"- says: {_plain(words)}" for words in one.says]
        lines += [f"- reported: {_plain(one.error)}"] if one.error else []
        lines += [""]
    return lines


def _plain(words: str) -> str:
    return "`" + words.replace("`", "'") + "`"


# ---- the edition ----


def write_source(folder: Path, seed: int) -> None:
    """Write everything that the edition is built from into ``folder``."""
    course = read_course(ROOT)
    labels = {chapter.name: chapter.label for chapter in course.chapters.values()}
    pages = folder / "book" / "instructor"
    pages.mkdir(parents=True, exist_ok=True)
    for name in PUBLIC:
        shutil.copy(ROOT / "book" / "instructor" / f"{name}.md", pages)
    shutil.copy(ROOT / "book" / "instructor" / "teacher" / "index.md", folder / "index.md")
    shutil.copy(ROOT / "book" / "instructor" / "teacher" / "mistakes.md", pages)
    shutil.copy(ROOT / f"{BIBLIOGRAPHY}.md", folder / "book")
    shutil.copy(ROOT / "book" / "references.bib", folder / "book")
    shutil.copytree(ROOT / "book" / "assets", folder / "book" / "assets", dirs_exist_ok=True)
    solutions = folder / "solutions"
    shutil.rmtree(solutions, ignore_errors=True)
    solutions.mkdir()
    found = [read_assignment(path) for path in notebooks_in(ROOT / "exercises" / "source")]
    for assignment in found:
        page = solution_page(assignment, labels, mistakes_section(assignment.name))
        (solutions / f"{assignment.name}.md").write_text(page, encoding="utf-8")
    paper = make_paper(seed)
    for name, lines in (("exam", paper_lines(paper, to_html)), ("exam_key", key_lines(paper, to_html))):
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "_config.yml").write_text(_config(), encoding="utf-8")
    (folder / "_toc.yml").write_text(_toc([each.name for each in found]), encoding="utf-8")


def _config() -> str:
    """The book's own settings, with another title, references into the student's site, and this repository's data."""
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    settings["title"] += ": teacher's edition"
    sphinx = settings["sphinx"]["config"]
    sphinx["extensions"].append("sphinx.ext.intersphinx")
    sphinx["intersphinx_mapping"] = {"book": ["book", str(STUDENT_SITE / "objects.inv")]}
    sphinx["course_root"] = str(ROOT)
    sphinx["html_theme_options"]["logo"] = {"text": settings["title"]}
    text: str = yaml.safe_dump(settings, allow_unicode=True, sort_keys=False)
    return text


def _toc(assignments: list[str]) -> str:
    pages = [f"book/instructor/{name}" for name in PUBLIC]
    parts = {
        "Solutions": [f"solutions/{name}" for name in assignments],
        "Exam": ["exam", "exam_key"],
        "Teaching": [*pages, "book/instructor/mistakes"],
        "Reference": [BIBLIOGRAPHY],
    }
    toc = {
        "format": "jb-book",
        "root": "index",
        "parts": [
            {"caption": caption, "chapters": [{"file": name} for name in names]}
            for caption, names in parts.items()
        ],
    }
    text: str = yaml.safe_dump(toc, sort_keys=False)
    return text


def build(source: Path, target: Path) -> None:
    """Build the pages, copy the student's site beside them; warnings are errors.

    Raises:
        SystemExit: with the warnings, when anything is wrong.
    """
    build_pages(
        source, "build the teacher's edition", TEACHER / "build.log", everything=True, limit_s=LIMIT_S
    )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source / "_build" / "html", target)
    shutil.copytree(STUDENT_SITE, target / "book", copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """The site's files are only read: another name for the same file costs nothing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def kept_seed(given: int | None) -> int:
    """The seed that was given, or the one of the last build, or one drawn now; kept for the next build."""
    kept = TEACHER / "seed.txt"
    if given is None:
        given = int(kept.read_text()) if kept.exists() else secrets.randbelow(2**32)
    kept.write_text(f"{given}\n")
    return given


def main() -> None:
    """Build the edition."""
    parser = argparse.ArgumentParser(
        prog="teacher_edition.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="of the exam")
    options = parser.parse_args()
    if not (STUDENT_SITE / "objects.inv").exists():
        raise SystemExit("The student's site is not built: make teacher builds it first.")
    TEACHER.mkdir(parents=True, exist_ok=True)
    source = TEACHER / "source"
    try:
        write_source(source, kept_seed(options.seed))
    except ValueError as error:
        raise SystemExit(f"teacher_edition: {error}") from None
    build(source, TEACHER / "html")
    print(f"The teacher's edition, not to be published: {TEACHER / 'html' / 'index.html'}")


if __name__ == "__main__":
    main()
