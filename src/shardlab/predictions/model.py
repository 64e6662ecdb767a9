"""What a reader commits to before a chapter tells: questions with the models' answers, and how far off a guess is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Guess:
    """A question that a number answers.

    Attributes:
        id: its name within the prediction.
        prompt: the question, with the inline marks of :mod:`shardlab.quiz.text`.
        key: the models' answer, in ``unit``.
        unit: of the guess and the key; empty for a plain number.
        why: one sentence that the reader sees with the answer.
        at: where the guess stands in the notebook's dictionary: a key, or a key and an index.
        scale: what a guess in ``unit`` is multiplied with to stand there.
        digits: significant digits of the answer that is shown.
        tick: its name on the chart's x axis, where the prediction has a chart.
    """

    id: str
    prompt: str
    key: float
    unit: str
    why: str
    at: tuple[object, ...]
    scale: float = 1.0
    digits: int = 3
    tick: str = ""


@dataclass(frozen=True)
class Choice:
    """A question that one of several words answers.

    Attributes:
        id, prompt, why, at: as for :class:`Guess`; ``at`` is empty where the notebook's dictionary has no place for it.
        options: (name, text) of each answer; the name is what stands in the notebook's dictionary.
        key: name of the models' answer.
    """

    id: str
    prompt: str
    options: tuple[tuple[str, str], ...]
    key: str
    why: str
    at: tuple[object, ...] = ()


@dataclass(frozen=True)
class Sketch:
    """A chart on which the reader draws a guess: the prediction's ticked guesses, from left to right.

    Attributes:
        x: label of the x axis.
        y: label of the y axis, with unit.
        low, high: range of the y axis.
        scale: ``"log"`` or ``"linear"``.
    """

    x: str
    y: str
    low: float
    high: float
    scale: str = "linear"


@dataclass(frozen=True)
class Prediction:
    """All that a chapter asks before it starts.

    Attributes:
        id: ``"c01"`` to ``"c13"``, the chapter's number.
        items: the questions in the order of the text above them.
        sketch: the chart to draw the ticked guesses on, if there is one.
    """

    id: str
    items: tuple[Guess | Choice, ...]
    sketch: Sketch | None = None
