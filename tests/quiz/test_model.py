"""Questions as data: what is refused, and how close two numbers may be."""

from __future__ import annotations

import math

import pytest

from shardlab.quiz import model
from shardlab.quiz.model import Item, Mistake, Table, Trap, right, wrong

STEPS = ("one step",)
OPTIONS = (right("yes", "yes", "because"), wrong("no", "no", "flat-step"))
ITEMS = tuple([Item(id=name, text=name, note="1") for name in ("a", "b", "c")])


def number(**changes):
    fields = {"id": "n", "prompt": "How much?", "key": 100.0, "unit": "ms", "solution": STEPS}
    return model.number(**{**fields, **changes})


def order(**changes):
    fields = {
        "id": "o",
        "prompt": "Order",
        "first": "most",
        "last": "least",
        "items": ITEMS,
        "start": ("b", "a", "c"),
    }
    return model.order(**{**fields, **changes})


def variant(**changes):
    fields = {
        "id": "v",
        "title": "T",
        "scenario": "With {N} ranks",
        "parts": (number(),),
        "values": {"N": "8"},
    }
    return model.variant(**{**fields, **changes})


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: number(id="Not A Slug"), "id must be lower-case"),
        (lambda: number(prompt=" "), r"n\.prompt must be a text"),
        (lambda: number(key=math.nan), r"n\.key must be a finite number"),
        (lambda: number(key=True), r"n\.key must be a finite number"),
        (lambda: number(unit=""), r"n\.unit must be a text"),
        (lambda: number(relative=-0.1), r"n\.relative must be .* at least 0"),
        (lambda: number(key=1.5, relative=0.0), r"n\.relative must be above 0"),
        (lambda: number(digits=0), r"n\.digits must be a whole number from 1 to 6"),
        (
            lambda: number(key=0.1975, digits=2),
            r"n\.digits must show the key 0.1975 within its tolerance, not as 0.2",
        ),
        (lambda: number(solution=()), r"n\.solution must be a tuple of at least 1"),
        (
            lambda: number(mistakes=(Mistake(value=100.5, misconception="full-2p", why=""),)),
            r"n\.mistakes\[0\]\.value must be further than the tolerance from 100",
        ),
        (
            lambda: number(
                mistakes=(
                    Mistake(value=200.0, misconception="full-2p", why=""),
                    Mistake(value=201.0, misconception="no-latency", why=""),
                )
            ),
            r"n\.mistakes\[1\]\.value must be further",
        ),
        (
            lambda: number(mistakes=(Mistake(value=200.0, misconception="unheard-of", why=""),)),
            r"n\.mistakes\[0\]\.misconception must be a name in MISCONCEPTIONS",
        ),
        (lambda: model.choice("c", "Which?", OPTIONS[:1]), r"c\.options must be a tuple of 2 to 8"),
        (lambda: model.choice("c", "Which?", (OPTIONS[0], OPTIONS[0])), r"c\.options' ids must all differ"),
        (
            lambda: model.choice("c", "Which?", (OPTIONS[0], right("si", "si", "because"))),
            r"c\.options must have exactly 1 right option, not 2",
        ),
        (
            lambda: model.several("s", "Which?", (OPTIONS[0], right("si", "si", "because"))),
            r"s\.options must have right and wrong options",
        ),
        (
            lambda: model.choice("c", "Which?", (OPTIONS[0], wrong("no", "no", ""))),
            r"c\.options\[1\]\.misconception",
        ),
        (lambda: model.choice("c", "Which?", (right("yes", "yes", ""), OPTIONS[1])), r"c\.options\[0\]\.why"),
        (lambda: order(items=ITEMS[:2]), r"o\.items must be a tuple of 3 to 8"),
        (lambda: order(start=("a", "b", "c")), r"o\.start must be .* in another order"),
        (lambda: order(start=("a", "b", "b")), r"o\.start must be"),
        (
            lambda: order(traps=(Trap(above="a", below="b", misconception="flat-step", why=""),)),
            r"o\.traps\[0\] must name two items the wrong way round",
        ),
        (lambda: model.open_question("p", "Why?", "", ("a",)), r"p\.answer must be a text"),
        (lambda: model.open_question("p", "Why?", "because", ()), r"p\.points must be a tuple of at least 1"),
        (lambda: variant(values={}), r"v\.scenario: text must use only .* as placeholders"),
        (lambda: variant(parts=()), r"v\.parts must be a tuple of 1 to 12"),
        (lambda: variant(parts=(number(), number())), r"v\.parts' ids must all differ"),
        (lambda: variant(values={"N": ""}), r"v\.values\['N'\] must be a text"),
        (
            lambda: variant(table=Table(caption="c", columns=("a", "b"), rows=(("1",),))),
            r"v\.table\.rows\[0\] must have 2 cells",
        ),
        (lambda: model.quiz_of("q", "T", "Q", (), {}, 1), r"q\.variants must be a tuple of 1 to 20"),
        (lambda: model.quiz_of("q", "T {x}", "Q", (variant(),), {}, 1), "placeholders"),
    ],
)
def test_a_malformed_question_is_refused_by_the_name_of_its_field(build, field):
    with pytest.raises(ValueError, match=field):
        build()


def test_a_well_formed_question_of_every_kind_is_accepted():
    parts = (
        number(),
        model.choice("c", "Which?", OPTIONS),
        model.several("s", "Which?", OPTIONS),
        order(),
        model.open_question("p", "Why?", "because", ("a point",)),
    )
    built = variant(parts=parts)
    assert [part.kind for part in built.parts] == ["number", "choice", "several", "order", "open"]
    with pytest.raises(AttributeError):
        built.title = "other"


def test_a_whole_number_may_be_asked_for_exactly():
    assert number(key=11, relative=0.0).key == 11


def test_slips_keep_what_can_be_told_apart_and_the_first_name():
    found = model.slips(
        100.0,
        [
            (100.9, "no-latency"),  # within the tolerance of the key
            (200.0, "full-2p", "why it is 200"),
            (201.0, "whole-cluster"),  # within the tolerance of the one before
            (math.inf, "bits-for-bytes"),
            (50.0, "one-phase"),
        ],
    )
    assert [(mistake.value, mistake.misconception, mistake.why) for mistake in found] == [
        (200.0, "full-2p", "why it is 200"),
        (50.0, "one-phase", ""),
    ]


@pytest.mark.parametrize(
    ("relative", "absolute", "key", "expected"), [(0.01, 0, -50, 0.5), (0.01, 2, 50, 2), (0, 0, 7, 0)]
)
def test_tolerance_is_the_larger_of_the_two(relative, absolute, key, expected):
    assert model.tolerance(relative, absolute, key) == expected
