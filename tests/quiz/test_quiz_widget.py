"""The quiz as an ipywidget: what a cell stores, and what a teacher reads."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from shardlab import quiz as quizzes
from shardlab.palette import ROLES
from shardlab.quiz import widget

VIEW = "application/vnd.jupyter.widget-view+json"


def test_a_cell_stores_the_element_and_no_random_identifier(monkeypatch):
    bundles = []
    for _ in range(2):  # two kernels
        monkeypatch.setattr(widget, "_serial", iter(range(1, 9)))
        shown = quizzes.quiz("q3")
        bundles.append(shown._repr_mimebundle_()[0])
        shown.close()
    assert bundles[0] == bundles[1]
    assert bundles[0].keys() == {"text/plain", "text/html", VIEW}
    assert bundles[0]["text/html"] == quizzes.html("q3")
    assert bundles[0]["text/plain"].startswith("Quiz q3: Why do 8 ranks give 2.91×, not 8×?")
    assert bundles[0][VIEW]["model_id"] == "shardlab-quiz-q3-1"


def test_a_quiz_that_is_shown_twice_is_two_models():
    one, two = quizzes.quiz("q3"), quizzes.quiz("q3")
    assert one.model_id != two.model_id
    one.close()
    assert two.comm is not None


def test_the_script_is_an_es_module_and_the_colours_know_dark_notebooks():
    shown = quizzes.quiz("q4")
    assert shown._esm.rstrip().endswith("export default shardlabQuiz.default;")
    for theme in ('html[data-theme="dark"]', '[data-jp-theme-light="false"]', "body.vscode-dark"):
        assert re.search(re.escape(theme) + r"[^{}]*\{[^{}]*" + ROLES["bad-text"][1], shown._css)


def test_a_teacher_reads_progress_from_the_answers():
    shown = quizzes.quiz("q3")
    total = len(shown.quiz["variants"][0]["parts"])
    assert shown.progress()["chapter"] == widget.Progress(right=0, tried=0, total=total)
    shown.answers = {
        "chapter/ring-time": {"response": "200", "right": False, "tries": 2, "misconception": "full-2p"},
        "chapter/speedup": {"response": "2.91", "right": True, "tries": 1, "misconception": None},
        "chapter/reason": {"response": ["wait"], "tries": 0},
    }
    assert shown.progress()["chapter"] == widget.Progress(right=1, tried=2, total=total)


def test_another_seed_is_another_set_of_numbers():
    keys = {}
    for seed in (None, 7):
        variant = quizzes.quiz("q3", seed=seed).quiz["variants"][2]
        keys[seed] = [part["key"] for part in variant["parts"] if part["kind"] == "number"]
    assert keys[None] != keys[7]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="name must be one of"):
        quizzes.quiz("q0")
    with pytest.raises(ValueError, match="language must be one of"):
        quizzes.quiz("q3", language="tlh")


def test_without_anywidget_the_page_still_works_and_the_notebook_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "shardlab.quiz.widget")
    with pytest.raises(ImportError, match=r"pip install 'shardlab\[notebook\]'"):
        quizzes.quiz("q3")
    assert quizzes.html("q3").startswith("<book-quiz")
    monkeypatch.undo()
    importlib.import_module("shardlab.quiz.widget")
