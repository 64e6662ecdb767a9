"""An examination paper with numbers of its own: the same seed prints the same paper, and its key.

::

    python -m shardlab.classroom.exam --seed 7              # the paper, as Markdown
    python -m shardlab.classroom.exam --seed 7 --key        # the key, with mark schemes and what wrong numbers show
    python -m shardlab.classroom.exam --seed 7 --chapters 1-6

The questions are one fresh variant from each of the quizzes Q1 to Q7 (not the one that the chapter shows) and those of
:mod:`shardlab.classroom.exam_questions`. Keys are computed by ``shardlab.models``. Whoever knows the seed can print
the key: choose one that nobody guesses, and keep it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardlab.checks import count
from shardlab.classroom.exam_questions import QUESTIONS
from shardlab.quiz import registry
from shardlab.quiz.draw import Draw
from shardlab.quiz.misconceptions import MISCONCEPTIONS
from shardlab.quiz.model import Number, Open, Order, Selection, Variant, decimal, fill
from shardlab.quiz.text import to_plain

Part = Number | Selection | Order | Open

CHAPTERS = 13
# The quizzes that a paper draws on, with the chapter that each belongs to: the source's seven questions. The quizzes of
# the other chapters (c05, ...) are left out on purpose. For those chapters exam_questions has questions of its own,
# which no page shows; and a seed goes on printing the paper that it printed before those quizzes were there.
QUIZ_CHAPTERS = {"q1": 1, "q2": 2, "q3": 3, "q4": 3, "q5": 4, "q6": 6, "q7": 10}
# The variant that a chapter shows first, with its answers beside it.
SHOWN_FIRST = "chapter"
# A quiz asks on and on about one case; in an exam two parts of it are enough, and the first two need no others.
PARTS_OF_A_QUIZ = 2
MARKS = {"number": 3, "choice": 1, "several": 2, "order": 2, "open": 4}
MINUTES = {"number": 4, "choice": 1, "several": 3, "order": 3, "open": 8}


@dataclass(frozen=True)
class Question:
    """One question of a paper.

    Attributes:
        chapter: its number.
        variant: scenario and values.
        parts: what is asked, in order.
        source: the quiz that it is a variant of, or an empty text.
    """

    chapter: int
    variant: Variant
    parts: tuple[Part, ...]
    source: str

    @property
    def marks(self) -> int:
        """Marks of all parts."""
        return sum(MARKS[part.kind] for part in self.parts)

    @property
    def minutes(self) -> int:
        """Minutes for all parts."""
        return sum(MINUTES[part.kind] for part in self.parts)


@dataclass(frozen=True)
class Paper:
    """A paper: its questions in the order of the chapters."""

    seed: int
    questions: tuple[Question, ...]

    @property
    def marks(self) -> int:
        """Marks of all questions."""
        return sum(question.marks for question in self.questions)

    @property
    def minutes(self) -> int:
        """Minutes for all questions."""
        return sum(question.minutes for question in self.questions)


def make_paper(seed: int, chapters: Sequence[int] | None = None) -> Paper:
    """The paper of a seed.

    Args:
        seed: a whole number from 0 to 2**32 - 1.
        chapters: numbers of the chapters that are asked about; all of them without it.

    Raises:
        ValueError: an argument is out of range.
    """
    number = count("seed", seed, least=0, most=2**32 - 1)
    wanted = {count("chapters", chapter, most=CHAPTERS) for chapter in (chapters or range(1, CHAPTERS + 1))}
    questions = []
    for name, chapter in QUIZ_CHAPTERS.items():
        if chapter not in wanted:
            continue
        draw = Draw(number, f"exam/{name}")
        fresh = [variant for variant in registry.load(name, number).variants if variant.id != SHOWN_FIRST]
        variant = draw.pick(fresh)
        questions.append(
            Question(
                chapter=chapter,
                variant=variant,
                parts=variant.parts[:PARTS_OF_A_QUIZ],
                source=name,
            )
        )
    for chapter, build in QUESTIONS:
        if chapter in wanted:
            variant = build(number)
            questions.append(Question(chapter=chapter, variant=variant, parts=variant.parts, source=""))
    return Paper(seed=number, questions=tuple(sorted(questions, key=lambda question: question.chapter)))


# ---- as text ----


def _options(paper: Paper, question: Question, part: Selection) -> list[tuple[str, str]]:
    """(letter, option's id) in a drawn order: in a bank the right one may always stand first."""
    draw = Draw(paper.seed, f"exam/options/{question.variant.id}/{part.id}")
    return list(zip("ABCDEFGH", draw.shuffled([option.id for option in part.options]), strict=False))


def _count(amount: int, word: str) -> str:
    return f"{amount} {word}" + ("" if amount == 1 else "s")


def _heading(paper: Paper, title: str) -> list[str]:
    chapters = ", ".join(f"{chapter:02}" for chapter in sorted({each.chapter for each in paper.questions}))
    return [
        f"# {title}",
        "",
        f"Seed {paper.seed}; {len(paper.questions)} questions, {paper.marks} marks, about {paper.minutes} minutes. "
        f"Chapters {chapters}.",
        "",
    ]


def paper_lines(paper: Paper, write: Callable[[str], str] = to_plain) -> list[str]:
    """The paper as lines of Markdown, without an answer.

    Args:
        paper: from :func:`make_paper`.
        write: turns a text with marks into what is printed (:func:`shardlab.quiz.text.to_html` for a page).
    """
    lines = _heading(paper, "Examination")
    lines += ["A calculator is allowed. Show how you get to a number; GB and Gb/s are powers of ten.", ""]
    for number, question in enumerate(paper.questions, start=1):

        def say(template: str, values: dict[str, str] = question.variant.values) -> str:
            return write(fill(template, values))

        variant = question.variant
        lines += [
            f"## {number}. {say(variant.title)} (chapter {question.chapter:02}, {_count(question.marks, 'mark')})",
            "",
            say(variant.scenario),
            "",
        ]
        lines += [f"- {write(each.symbol)}, {say(each.meaning)}: {say(each.value)}" for each in variant.given]
        lines += [""] if variant.given else []
        if variant.table is not None:
            rows = [tuple(say(column) for column in variant.table.columns)]
            rows += [tuple("---" for _ in variant.table.columns), *variant.table.rows]
            lines += [say(variant.table.caption) + ":", ""]
            lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
        for letter, part in zip("abcdefgh", question.parts, strict=False):
            unit = f" Answer in {say(part.unit)}." if isinstance(part, Number) and part.unit[0] != "(" else ""
            lines += [
                f"**{number}{letter}** ({_count(MARKS[part.kind], 'mark')}) {say(part.prompt)}{unit}",
                "",
            ]
            if isinstance(part, Selection):
                texts = {option.id: say(option.text) for option in part.options}
                lines += [f"- {mark}: {texts[name]}" for mark, name in _options(paper, question, part)] + [""]
            elif isinstance(part, Order):
                texts = {item.id: say(item.text) for item in part.items}
                lines += [f"{say(part.first)} … {say(part.last)}:", ""]
                lines += [f"- {texts[name]}" for name in part.start] + [""]
    return lines


def key_lines(paper: Paper, write: Callable[[str], str] = to_plain) -> list[str]:
    """The key as lines of Markdown: answers, steps, mark schemes, and which mistake a wrong number shows.

    Args:
        paper, write: as for :func:`paper_lines`.
    """
    lines = _heading(paper, "Key")
    for number, question in enumerate(paper.questions, start=1):
        values = question.variant.values
        lines += [
            f"## {number}. {write(fill(question.variant.title, values))} (chapter {question.chapter:02})",
            "",
        ]
        for letter, part in zip("abcdefgh", question.parts, strict=False):
            answer, details = _answer(paper, question, part, write)
            lines += [f"**{number}{letter}** ({_count(MARKS[part.kind], 'mark')}) {answer}", ""]
            lines += [f"- {detail}" for detail in details] + ([""] if details else [])
    return lines


def _shown(part: Number, value: float) -> str:
    """A number as an answer to this part; one that must be met exactly is shown whole."""
    exact = part.relative == 0 and part.absolute == 0
    return f"{value:.10g}" if exact else decimal(value, part.digits)


def _answer(
    paper: Paper, question: Question, part: Part, write: Callable[[str], str]
) -> tuple[str, list[str]]:
    """The answer to one part, and what stands below it."""

    def say(template: str) -> str:
        return write(fill(template, question.variant.values))

    if isinstance(part, Open):
        share = MARKS["open"] / len(part.points)
        return say(part.answer), [f"({share:g}) {say(point)}" for point in part.points]
    if isinstance(part, Number):
        unit = "" if part.unit[0] == "(" else f" {say(part.unit)}"
        within = (
            f"within {part.relative * 100:g} %"
            if part.relative
            else f"within {part.absolute:g}" + (" percentage points" if part.unit == "%" else "")
            if part.absolute
            else "exactly"
        )
        details = [say(step) for step in part.solution]
        details += [
            f"Whoever has {_shown(part, each.value)}: {say(each.why or MISCONCEPTIONS[each.misconception][1])}"
            for each in part.mistakes
        ]
        return f"{_shown(part, part.key)}{unit} ({within})", details
    if isinstance(part, Order):
        names = [f"{say(item.text)} ({say(item.note)})" for item in part.items]
        return " → ".join(names), [say(step) for step in part.solution]
    options = {option.id: option for option in part.options}
    marked = _options(paper, question, part)
    details = []
    for mark, name in marked:
        option = options[name]
        why = option.why or MISCONCEPTIONS[option.misconception][1]
        details.append(f"{mark}, {'right' if option.correct else 'wrong'}: {say(why)}")
    return ", ".join(mark for mark, name in marked if options[name].correct), [
        *details,
        *[say(step) for step in part.solution],
    ]


# ---- the command ----


def _chapters(text: str) -> list[int]:
    """``1-6,10`` as numbers of chapters."""
    found: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        try:
            found += range(int(first), int(last or first) + 1)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"chapters must be numbers and ranges such as 1-6,10, not {text!r}"
            ) from None
    if not found or not all(1 <= chapter <= CHAPTERS for chapter in found):
        raise argparse.ArgumentTypeError(f"chapters must be from 1 to {CHAPTERS}, not {text!r}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a paper or its key; wrong usage ends with status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m shardlab.classroom.exam",
        description="Print an examination paper, or its key, as Markdown. The same seed gives the same paper.",
    )
    parser.add_argument("--seed", type=int, required=True, help="a whole number from 0 to 2**32 - 1")
    parser.add_argument("--chapters", type=_chapters, help="such as 1-6,10 (default: all)")
    parser.add_argument("--key", action="store_true", help="print the answers, not the questions")
    options = parser.parse_args(arguments)
    try:
        paper = make_paper(options.seed, options.chapters)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(key_lines(paper) if options.key else paper_lines(paper)).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
