"""Pages for teachers: the public ones hold no answer, the teacher's edition holds them all."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from shardlab.classroom.assignments import read_assignments
from shardlab.classroom.exam import key_lines, make_paper, paper_lines
from shardlab.classroom.exam_questions import QUESTIONS
from tests.leaks import LEAST, ROOT, SOURCE, files, leaks, page_text, public_text, secret_pieces, squeezed

HTML = ROOT / "_build" / "html"
TEACHER = ROOT / "_build" / "teacher" / "html"
PUBLIC = ("syllabus", "goals", "running")


@pytest.fixture(scope="module")
def pieces() -> dict[str, str]:
    """What students must not see, with the assignment that it is from."""
    return secret_pieces()


@pytest.fixture(scope="module")
def seed() -> int:
    """Of the exam in the teacher's edition."""
    kept = ROOT / "_build" / "teacher" / "seed.txt"
    assert kept.exists(), "build the teacher's edition first: make teacher"
    return int(kept.read_text())


@pytest.fixture(scope="module")
def key(seed) -> set[str]:
    """The lines of the exam's key that the book doesn't say anyway."""
    public = public_text() + "".join(map(squeezed, paper_lines(make_paper(seed))))
    found = {
        squeezed(line.removeprefix("- ")) for line in key_lines(make_paper(seed)) if line[:1] not in "#S"
    }
    return {line for line in found if len(line) >= LEAST and line not in public}


@pytest.fixture(scope="module")
def teacher_files() -> list[Path]:
    """The teacher's own pages: those of the student's site lie in a folder of their own."""
    assert TEACHER.exists(), "build the teacher's edition first: make teacher"
    return [
        path for path in files(TEACHER) if path.relative_to(TEACHER).parts[0] not in ("book", "_static")
    ] + [*(TEACHER / "book" / "instructor").glob("*.html")]


# ---- what students see ----


def test_the_student_site_holds_no_solution(pieces):
    found = files(HTML)
    assert len(found) > 50
    assert leaks(found, pieces) == []


def test_the_student_site_holds_no_exam_key(key):
    assert len(key) > 50
    assert leaks(files(HTML), key) == []


def test_the_student_site_holds_no_exam_question():
    """Not only no answers: the texts of the exam's own questions are nowhere either."""
    scenarios = {squeezed(re.sub(r"\{.*?\}", "", build(7).scenario))[:60] for _, build in QUESTIONS}
    titles = {squeezed(text) for text in scenarios if len(text) >= LEAST}
    assert leaks(files(HTML), titles) == []


def test_only_pages_without_answers_are_in_the_student_book():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = {chapter["file"] for part in toc["parts"] for chapter in part["chapters"]}
    pages = {name for name in listed if name.startswith("book/instructor/")}
    assert pages == {f"book/instructor/{name}" for name in PUBLIC}
    assert not list(HTML.rglob("*exam_key*"))
    assert not list(HTML.rglob("*mistakes*"))
    assert not list(HTML.glob("solutions/*"))


def test_what_is_published_is_the_student_site_alone():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    uploaded = [step["with"]["path"] for step in steps if "upload-pages" in step.get("uses", "")]
    assert uploaded == ["_build/html"]
    assert not [step for step in steps if "teacher" in step.get("run", "")]


def test_the_public_pages_show_the_numbers_of_the_notebooks():
    text = page_text(HTML / "book" / "instructor" / "syllabus.html")
    for assignment in read_assignments(SOURCE):
        assert squeezed(f"{assignment.name} ({assignment.minutes} min)") in text
        for task in assignment.tasks:
            assert squeezed(f"{task.title}{task.marks:g}{task.minutes}") in text


# ---- what teachers see: the searches above can fail ----


def test_the_search_finds_every_solution_in_the_teachers_edition(pieces, teacher_files):
    found = {piece for _, piece in leaks(teacher_files, pieces)}
    assert {(pieces[piece], piece) for piece in set(pieces) - found} == set()


def test_the_search_finds_the_exam_key_in_the_teachers_edition(key, teacher_files):
    found = {piece for _, piece in leaks(teacher_files, key)}
    assert key - found == set()


def test_the_teachers_edition_has_a_page_for_every_assignment_with_its_wrong_submissions():
    for assignment in read_assignments(SOURCE):
        text = (TEACHER / "solutions" / f"{assignment.name}.html").read_text()
        assert "Typical wrong submissions" in text
        assert "Model answer, with marks" in text or "SOLUTION" in text


def test_the_marks_of_wrong_submissions_are_those_that_the_tests_grant(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "exercises"))
    from submission import assignments

    for assignment in assignments().values():
        text = page_text(TEACHER / "solutions" / f"{assignment.name}.html")
        for student, one in assignment.wrong.items():
            row = [student, *map(str, one.marks), str(sum(one.marks))]
            assert squeezed("".join(row)) in text, (assignment.name, student)


def test_links_of_the_teachers_edition_lead_somewhere():
    """Also those into the student's book, which lies in it."""
    pages = [path for path in TEACHER.rglob("*.html") if path.relative_to(TEACHER).parts[:1] != ("book",)]
    pages += (TEACHER / "book" / "instructor").glob("*.html")
    into_book, lost = 0, []
    for path in pages:
        for link in re.findall(r"<a\b[^>]*\bhref=\"([^\"]+)\"", path.read_text()):
            parts = urlsplit(link)
            if parts.scheme or link.startswith("#"):
                continue
            target = (path.parent / parts.path).resolve()
            into_book += "notebooks" in target.parts
            if not target.exists():
                lost.append(f"{path.relative_to(TEACHER)} -> {link}")
    assert lost == []
    assert into_book > 20


def test_the_students_book_inside_is_the_students_book():
    page = Path("notebooks") / "03_data_parallel.html"
    assert (TEACHER / "book" / page).read_bytes() == (HTML / page).read_bytes()


def test_a_comment_above_a_submission_becomes_its_description(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import teacher_edition

    file = tmp_path / "some.py"
    file.write_text('X = {\n    # Adds twice,\n    # and once more.\n    "twice": 1,\n    "none": 2,\n}\n')
    assert teacher_edition.comments_above_keys(file) == {"twice": "Adds twice, and once more."}


def test_links_out_of_the_edition_become_references_or_words(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import teacher_edition

    labels = {"03_data_parallel": "ch-data-parallel"}
    source = (
        "[chapter 03](../../../notebooks/03_data_parallel.ipynb), [notes](../notes.md), [site](https://x.org)"
    )
    assert teacher_edition._linked(source, labels) == (
        "{ref}`chapter 03 <ch-data-parallel>`, notes, [site](https://x.org)"
    )
