"""Exam papers: the same from the same seed, over all chapters, with keys that another way of reckoning confirms."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from shardlab.classroom import exam, exam_questions
from shardlab.classroom.exam import CHAPTERS, QUIZ_CHAPTERS, key_lines, make_paper, paper_lines
from shardlab.models.antipatterns import ANTI_PATTERNS
from shardlab.quiz import registry
from shardlab.quiz.model import Number, Selection, fill
from shardlab.quiz.text import to_html

SEEDS = range(25)


def asked(build, seed):
    """A question's parts by id, and its values."""
    variant = build(seed)
    return {part.id: part for part in variant.parts}, variant.values


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "shardlab.classroom.exam", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_paper_has_twenty_questions_and_every_chapter():
    paper = make_paper(7)
    assert len(paper.questions) >= 20
    assert {question.chapter for question in paper.questions} == set(range(1, CHAPTERS + 1))
    assert [question.chapter for question in paper.questions] == sorted(q.chapter for q in paper.questions)
    assert tuple(QUIZ_CHAPTERS) == tuple(name for name in registry.names() if name.startswith("q"))
    assert {question.source for question in paper.questions} == {*QUIZ_CHAPTERS, ""}
    ids = [(question.source, question.variant.id) for question in paper.questions]
    assert len(set(ids)) == len(ids)


def test_the_same_seed_gives_the_same_paper_and_another_gives_other_numbers():
    first, again = "\n".join(paper_lines(make_paper(7))), "\n".join(paper_lines(make_paper(7)))
    assert first == again
    papers = {"\n".join(paper_lines(make_paper(seed))) for seed in range(5)}
    assert len(papers) == 5
    keys = {tuple(line for line in key_lines(make_paper(seed)) if line.startswith("**")) for seed in range(5)}
    assert len(keys) == 5


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_marks_add_up_and_the_headings_say_so(seed):
    paper = make_paper(seed)
    text = "\n".join(paper_lines(paper))
    assert f"{paper.marks} marks" in text
    in_parts = [int(found) for found in re.findall(r"^\*\*\d+[a-h]\*\* \((\d+) marks?\)", text, re.MULTILINE)]
    in_titles = [int(found) for found in re.findall(r"^## .*, (\d+) marks?\)$", text, re.MULTILINE)]
    assert sum(in_parts) == sum(in_titles) == paper.marks


@pytest.mark.parametrize("seed", [3, 7])
def test_the_paper_holds_no_answer(seed):
    paper = make_paper(seed)
    text = "\n".join(paper_lines(paper))
    for question in paper.questions:
        for part in question.parts:
            for step in getattr(part, "solution", ()):
                assert fill(step, question.variant.values) not in text
            if isinstance(part, Selection):
                for option in part.options:
                    assert not option.why or fill(option.why, question.variant.values) not in text
            if part.kind == "open":
                assert fill(part.answer, question.variant.values) not in text


def test_a_right_option_may_stand_anywhere():
    letters = set()
    for seed in SEEDS:
        paper = make_paper(seed)
        for question in paper.questions:
            for part in question.parts:
                if part.kind == "choice":
                    right = {option.id for option in part.options if option.correct}
                    letters |= {mark for mark, name in exam._options(paper, question, part) if name in right}
    assert letters == {"A", "B", "C", "D"}


def test_the_key_names_the_letters_of_the_paper():
    paper = make_paper(7)
    key, text = "\n".join(key_lines(paper)), "\n".join(paper_lines(paper))
    for number, question in enumerate(paper.questions, start=1):
        for letter, part in zip("abcdefgh", question.parts, strict=False):
            if part.kind != "choice":
                continue
            mark = re.search(rf"\*\*{number}{letter}\*\* \(1 mark\) ([A-H])\n", key)[1]
            right = next(option for option in part.options if option.correct)
            options = text[text.index(f"**{number}{letter}**") :]
            shown = exam.to_plain(fill(right.text, question.variant.values))
            assert re.search(rf"^- {mark}: (.+)$", options, re.MULTILINE)[1] == shown


def test_chapters_can_be_chosen_and_their_questions_stay_the_same():
    whole, part = make_paper(9), make_paper(9, [5, 7])
    assert {question.chapter for question in part.questions} == {5, 7}
    assert list(part.questions) == [question for question in whole.questions if question.chapter in (5, 7)]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_seed_makes_a_paper_whose_mistakes_can_be_told_apart(seed):
    paper = make_paper(seed)
    for question in paper.questions:
        for part in question.parts:
            if isinstance(part, Number):
                shown = [
                    exam._shown(part, part.key),
                    *[exam._shown(part, each.value) for each in part.mistakes],
                ]
                assert len(set(shown)) == len(shown), (question.variant.id, part.id, shown)
    text = "\n".join([*paper_lines(paper, to_html), *key_lines(paper, to_html)])
    assert "{" not in text.replace("{ref}", "")


# ---- the keys, reckoned in another way ----


@pytest.mark.parametrize("seed", SEEDS)
def test_tensor_parallel_keys(seed):
    parts, values = asked(exam_questions.tensor_bytes, seed)
    t, h, s = (int(values[name]) for name in ("t", "h", "s"))
    bandwidth = float(values["bandwidth"].split()[0]) * 1e9
    sent = 4 * 2 * (t - 1) / t * 2 * s * h
    assert parts["sent"].key == pytest.approx(sent / 1e6)
    assert parts["time"].key == pytest.approx(sent / bandwidth * 1e3)
    parts, values = asked(exam_questions.tensor_link, seed)
    t, h, s = (int(values[name]) for name in ("t", "h", "s"))
    compute = 72 * h * (h + s / 6) / t / (float(values["flops"]) * 1e12)
    assert parts["ratio"].key == pytest.approx(16 * h * (t - 1) / t / 25e9 / compute)


@pytest.mark.parametrize("seed", SEEDS)
def test_context_and_expert_keys(seed):
    parts, values = asked(exam_questions.causal_ring, seed)
    assert parts["factor"].key == pytest.approx(2 - 1 / int(values["c"]), rel=1e-3)
    parts, values = asked(exam_questions.experts, seed)
    number = {name: float(values[name]) for name in ("experts", "ranks", "k", "tokens", "hidden", "factor")}
    slots = number["factor"] * number["k"] * number["tokens"] / number["experts"]
    assert slots <= parts["slots"].key < slots + 1
    stay = (number["ranks"] - 1) / number["ranks"]
    assert parts["sent"].key == pytest.approx(
        2 * number["tokens"] * number["k"] * number["hidden"] * 2 * stay / 1e6
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_mesh_keys(seed):
    parts, values = asked(exam_questions.neighbours, seed)
    t, d, rank = (int(values[name]) for name in ("t", "d", "rank"))
    assert parts["next"].key == rank + t
    leaves = {option.id: option.correct for option in parts["leaves"].options}
    first = rank // (t * d) * (t * d) + rank % t
    assert leaves["data"] == (first // 8 != (first + (d - 1) * t) // 8)
    first = rank // t * t
    assert leaves["tensor"] == (first // 8 != (first + t - 1) // 8)
    parts, values = asked(exam_questions.axes_bytes, seed)
    sizes = [values[item.id] for item in parts["bytes"].items]
    scale = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    in_bytes = [float(size.split()[0]) * scale[size.split()[1]] for size in sizes]
    assert in_bytes == sorted(in_bytes)


@pytest.mark.parametrize("seed", SEEDS)
def test_engineering_keys(seed):
    parts, values = asked(exam_questions.slow_rank, seed)
    n, base, slow = int(values["n"]), float(values["base"]), float(values["slow"])
    assert parts["step"].key == pytest.approx(base * slow)
    assert parts["without"].key == pytest.approx(slow * (n - 1) / n)
    variant = exam_questions.token_weights(seed)
    rows = [(int(tokens), float(loss)) for _, tokens, loss in variant.table.rows]
    tokens, means = variant.parts
    assert tokens.key == pytest.approx(sum(a * b for a, b in rows) / sum(a for a, _ in rows))
    assert means.key == pytest.approx(sum(b for _, b in rows) / 4)
    parts, values = asked(exam_questions.warm_up, seed)
    batches, epochs, k, processes = (int(values[name]) for name in ("batches", "epochs", "k", "processes"))
    assert parts["updates"].key == epochs * batches // k
    assert parts["early"].key == pytest.approx(epochs * batches / k / 10 / processes)


@pytest.mark.parametrize("seed", SEEDS)
def test_production_keys(seed):
    parts, values = asked(exam_questions.hundred_steps, seed)
    n, alone, measured = (float(values[name]) for name in ("n", "alone", "measured"))
    gradients = float(values["gradients"].split()[0]) * {"MB": 1e6, "GB": 1e9}[values["gradients"].split()[1]]
    assert parts["efficiency"].key == pytest.approx(100 * alone / measured, rel=1e-3)
    sent = 2 * (n - 1) / n * gradients
    assert parts["bandwidth"].key == pytest.approx(sent / (measured - alone) * 1e3 / 1e9, rel=0.01)
    parts, values = asked(exam_questions.roll_back, seed)
    ranks, fewer, k = (int(values[name]) for name in ("ranks", "fewer", "k"))
    assert parts["micro"].key == ranks * k // fewer
    step = ranks * k // fewer * float(values["compute"]) + float(values["sync"])
    assert parts["step"].key == pytest.approx(step)


@pytest.mark.parametrize("seed", SEEDS)
def test_capstone_and_antipattern_keys(seed):
    parts, values = asked(exam_questions.synchronised_too_often, seed)
    k, compute, sync = (float(values[name]) for name in ("k", "compute", "sync"))
    assert parts["slower"].key == pytest.approx(k * (compute + sync) / (k * compute + sync))
    parts, values = asked(exam_questions.training_days, seed)
    params, tokens = float(values["params"].split()[0]) * 1e9, float(values["tokens"]) * 1e12
    rate = int(values["ranks"]) * float(values["achieved"]) * 1e12
    assert parts["days"].key == pytest.approx(8 * params * tokens / rate / 86400, rel=1e-6)
    assert parts["mfu"].key == pytest.approx(75 * float(values["achieved"]) / 312)
    parts, values = asked(exam_questions.published, seed)
    number = {name: float(values[name]) for name in ("flops", "step", "gpus", "peak")}
    achieved = number["flops"] * 1e3 / number["step"] / number["gpus"]
    assert parts["achieved"].key == pytest.approx(achieved, rel=2e-3)
    assert parts["mfu"].key == pytest.approx(100 * achieved / number["peak"], rel=2e-3)
    parts, values = asked(exam_questions.missed, seed)
    assert parts["short"].key == pytest.approx(
        100 * (float(values["measured"]) / float(values["predicted"]) - 1), rel=0.01
    )


def test_the_named_mistakes_are_the_clinics():
    seen = set()
    for seed in range(60):
        for build in (exam_questions.named_first, exam_questions.named_second):
            _, values = asked(build, seed)
            pattern = next(each for each in ANTI_PATTERNS if each.title == values["title"])
            assert (values["tell"], values["mend"]) == (pattern.tell, pattern.mend)
            assert pattern.title not in values["symptom"]
            seen.add(pattern.name)
    assert len(seen) >= 12


# ---- the command ----


def test_the_command_prints_the_paper_and_the_key():
    paper, key = (
        command("--seed", "7", "--chapters", "1-3,13"),
        command("--seed", "7", "--chapters", "1-3,13", "--key"),
    )
    assert (paper.returncode, key.returncode) == (0, 0)
    assert paper.stdout.splitlines()[0] == "# Examination"
    assert "Chapters 01, 02, 03, 13." in paper.stdout
    assert key.stdout.splitlines()[0] == "# Key"
    assert "Whoever has" in key.stdout
    assert "Whoever has" not in paper.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--seed"),
        (("--seed", "-1"), "seed must be a whole number from 0"),
        (("--seed", "seven"), "invalid int value"),
        (("--seed", "7", "--chapters", "0-3"), "chapters must be from 1 to 13, not '0-3'"),
        (
            ("--seed", "7", "--chapters", "one"),
            "chapters must be numbers and ranges such as 1-6,10, not 'one'",
        ),
        (("--seed", "7", "--chapters", "3-1"), "chapters must be from 1 to 13, not '3-1'"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(arguments, words):
    done = command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_the_exams_own_questions_are_not_those_of_the_books_quizzes():
    asked = {
        part.prompt
        for name in registry.names()
        for variant in registry.load(name).variants
        for part in variant.parts
    }
    own = [(build(7).id, part.prompt) for _, build in exam_questions.QUESTIONS for part in build(7).parts]
    assert len(own) > 20
    assert [entry for entry in own if entry[1] in asked] == []
