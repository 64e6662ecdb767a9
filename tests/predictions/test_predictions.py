"""Predict first: answers worked out anew, the places of the notebooks' dictionaries, and what a cell stores."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from shardlab import predictions
from shardlab.predictions import render, widget
from shardlab.predictions.model import Choice, Guess
from shardlab.quiz.text import to_plain

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {f"c{path.name[:2]}": path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
SOURCE_GUESS = {8: 8.0, 64: 64.0, 512: 512.0}


def cells(name):
    return json.loads(NOTEBOOKS[name].read_text("utf-8"))["cells"]


def ring_s(n):
    return 2 * (n - 1) / n * 1e9 / 10e9 + 2 * (n - 1) * 10e-6


# Formulas written down anew; None where only the chapter's own cells say it.
LLAMA2 = 6_738_415_616
EXPECTED = {
    "c01": {
        "state": 16 * LLAMA2 / 1e9,
        "years": 6 * LLAMA2 * 2e12 / (0.4 * 312e12) / 86_400 / 365.25,
        "gpus": 1 + 6 * LLAMA2 * 4e6 / (0.4 * 312e12) / (4 * LLAMA2 / 25e9),
    },
    "c02": {
        # recursive doubling: log2(64) rounds, each with the whole buffer; Rabenseifner: twice as many, 2(N-1)/N of it
        "small": 6 * (10 + 1e3 / 25e9 * 1e6),
        "large": 12 * 0.01 + 2 * 63 / 64 * 1e9 / 25e9 * 1e3,
        "same": "no",
    },
    "c03": {f"n{n}": n * 0.1 / (0.1 + ring_s(n)) for n in (8, 64, 512)},
    "c04": {
        "held1": 7.5 * (4 + 12 / 64),
        "held2": 7.5 * (2 + 14 / 64),
        "held3": 7.5 * 16 / 64,
        "sent1": 1.0,
        "sent2": 1.0,
        "sent3": 1.5,
    },
    "c05": {"near": None, "far": None},
    "c06": {"idle": 100 * 7 / 15, "needed": 63, "gain": 0},
    "c07": {"n2": 2 - 1 / 2, "n4": 2 - 1 / 4, "n16": 2 - 1 / 16},
    "c08": {"axis": "tensor", "times": None, "slower": 450 / 100},
    "c09": {"speedup": 8 * 0.4 / (0.4 + ring_s(8)), "jitter": None, "loss": (10 * 2.0 + 90 * 1.0) / 100},
    "c10": {"size": 12 * 405e9 / 1e12, "interval": None, "lost": None},
    "c11": {"efficiency": 100 * 22.03 / 26.36 / 2, "share": None},
    "c12": {"step": 1.5, "mean": (63 + 1.5) / 64, "loss": 1.0},
    "c13": {"mfu": None, "step": None, "loss": "tensor-parallel communication"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_answers_by_formulas_written_down_anew(name):
    items = predictions.load(name).items
    assert {item.id for item in items} == set(EXPECTED[name])
    for item in items:
        expected = EXPECTED[name][item.id]
        if isinstance(expected, str):
            assert item.key == expected
        elif expected is not None:
            assert item.key == pytest.approx(expected, rel=1e-4, abs=1e-12), item.id


@pytest.mark.parametrize("name", EXPECTED)
def test_the_answers_are_those_that_the_chapter_prints(name):
    printed = "\n".join(
        "".join(output.get("text", [])) for cell in cells(name) for output in cell.get("outputs", [])
    )
    values = [float(found) for found in re.findall(r"\d+(?:\.\d+)?", printed)]
    for item in predictions.load(name).items:
        if isinstance(item, Guess) and item.key:
            near = [
                value
                for value in values
                for scale in (0.001, 1, 100)
                if math.isclose(value * scale, item.key, rel_tol=0.012)
            ]
            assert near, f"no cell of {name} prints about {item.key} for {item.id}"


def test_every_chapter_asks_before_it_tells():
    assert predictions.names() == tuple(NOTEBOOKS) == tuple(EXPECTED)
    for name in predictions.names():
        found = cells(name)
        asked = next(i for i, cell in enumerate(found) if "".join(cell["source"]).startswith("## Predict"))
        guess = found[asked + 1]
        source = "".join(guess["source"])
        assert f'predict("{name}", my_guess)' in source, name
        assert "<book-predict" in "".join(guess["outputs"][0]["data"]["text/html"]), name


@pytest.mark.parametrize("name", EXPECTED)
def test_the_chapters_dictionary_has_a_place_for_every_number(name):
    """The dictionary in the notebook and the prediction's places fit each other, and the examples are its values."""
    source = "".join(
        next(cell for cell in cells(name) if f'predict("{name}"' in "".join(cell["source"]))["source"]
    )
    scope = {"KB": 1e3, "GB": 1e9, "US": 1e-6, "MS": 1e-3, "TB": 1e12}
    exec(source.split("predict(")[0], scope)
    guesses = scope["my_guess"]
    built = predictions.load(name)
    places = [item.at for item in built.items if item.at]
    wanted = [
        (key, *index)
        for key, value in guesses.items()
        for index in ([(i,) for i in range(len(value))] if isinstance(value, tuple) else [()])
    ]
    assert sorted(map(repr, places)) == sorted(map(repr, wanted))
    for item in built.items:
        assert isinstance(item, Choice) or item.at, f"{item.id} has nowhere to go"
        render.place(item, guesses)


def test_what_is_typed_goes_into_the_dictionary():
    mine = dict(SOURCE_GUESS)
    shown = predictions.predict("c03", mine)
    shown.guesses = {"n8": 3.0}
    assert mine == {8: 3.0, 64: 64.0, 512: 512.0}
    times = {1e3: 1e-5, 1e9: 0.04}
    predictions.predict("c02", times).guesses = {"small": 60.0, "large": 79.0, "same": "no", "nothing": 1}
    assert times == pytest.approx({1e3: 60e-6, 1e9: 79e-3})
    stages = {1: (60, 1.0), 2: (30, 2.0), 3: (2, 4.0)}
    predictions.predict("c04", stages).guesses = {"held2": 16.0, "sent3": 1.5}
    assert stages == {1: (60, 1.0), 2: (16.0, 2.0), 3: (2, 1.5)}
    choices = {"heaviest axis": "data", "times the next": 2, "slower by": 4}
    widgets = predictions.predict("c08", choices)
    widgets.guesses = {"axis": "tensor"}
    widgets.guesses = {"axis": "sideways", "times": "many"}
    assert choices == {"heaviest axis": "tensor", "times the next": 2, "slower by": 4}


@pytest.mark.parametrize(
    ("name", "guesses", "message"),
    [
        ("c14", None, "name must be one of 'c01'"),
        ("c03", {8: 8.0}, r"guesses must have a value at \[64\]"),
        ("c04", {1: 60, 2: (1, 1), 3: (1, 1)}, r"guesses must have a value at \[1\]\[0\]"),
        ("c03", {8: "8", 64: 1.0, 512: 1.0}, r"guesses\[8\] must be a number, not '8'"),
        (
            "c08",
            {"heaviest axis": "up", "times the next": 2, "slower by": 4},
            "must be one of data, tensor, pipeline, not 'up'",
        ),
    ],
)
def test_bad_arguments_are_named(name, guesses, message):
    with pytest.raises(ValueError, match=message):
        predictions.html(name, guesses)


def test_examples_are_the_dictionarys_values_in_the_questions_unit():
    items = render.payload(predictions.load("c02"), {1e3: 1e-5, 1e9: 0.04})["items"]
    assert [item.get("example") for item in items] == ["10", "40", None]
    items = render.payload(predictions.load("c05"), {"one server": 0.95, "eight servers": 0.9})["items"]
    assert [item["example"] for item in items] == ["95", "90"]


def test_the_text_version_asks_and_folds_the_answers_away():
    text = predictions.html("c03", SOURCE_GUESS)
    asked, answers = text.split('<div class="predict-static">')[1].split("<details")
    assert "8 GPUs: how many times" in asked
    assert "2.91" not in asked
    assert "2.91×" in answers
    assert "\\u003c" not in asked


@pytest.mark.parametrize("name", EXPECTED)
def test_texts_are_whole(name):
    for item in predictions.load(name).items:
        for text in (item.prompt, item.why):
            assert not re.search(r"[{}$\\]|nan|None|  ", text), text
            assert text.count("*") % 2 == 0, text
            assert to_plain(text)[-1] in ".?", text


def test_a_cell_stores_the_element_and_no_random_identifier(monkeypatch):
    bundles = []
    for _ in range(2):  # two kernels
        monkeypatch.setattr(widget, "_serial", iter(range(1, 9)))
        shown = predictions.predict("c03", dict(SOURCE_GUESS))
        bundles.append(shown._repr_mimebundle_()[0])
        shown.close()
    assert bundles[0] == bundles[1]
    assert bundles[0]["text/html"] == predictions.html("c03", SOURCE_GUESS)
    assert bundles[0]["text/plain"].startswith("Your prediction: 8 GPUs: how many times")
    assert "2.91" not in bundles[0]["text/plain"]


def test_without_anywidget_the_page_still_works_and_the_notebook_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "shardlab.predictions.widget")
    with pytest.raises(ImportError, match=r"pip install 'shardlab\[notebook\]'"):
        predictions.predict("c03")
    assert predictions.html("c03").startswith("<book-predict")


def test_both_languages_say_the_same_things():
    folder = ROOT / "src/shardlab/predictions/locale"
    english, chinese = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("en", "zh_CN"))
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese[key])), key
