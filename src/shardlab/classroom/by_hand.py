"""Tasks to calculate by hand: a student's own numbers, the right answers, and what a wrong one shows."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.classroom.attempt import Answer
from shardlab.units import format_bytes, format_time

TOLERANCE = 0.005


@dataclass(frozen=True)
class ByHand(ABC):
    """One student's numbers for one task; an assignment's own class adds them as further attributes.

    Attributes:
        student: whose numbers they are.
        complaint: None, or why these aren't the numbers of the person named in the notebook.
    """

    student: str
    complaint: str | None

    @abstractmethod
    def lines(self) -> list[str]:
        """The numbers as a student reads them, one a line."""

    @abstractmethod
    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""

    @abstractmethod
    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""

    @property
    def text(self) -> str:
        """The numbers, with their owner above them."""
        return "\n".join([f"Numbers of {self.student!r}", *[f"  {line}" for line in self.lines()]])

    def fault(self, quantity: str, answer: Any) -> str | None:
        """What is wrong with an answer, or None; right is within 0.5 %.

        A quantity whose name ends in ``_bytes`` or ``_s`` is shown with its unit.
        """
        if answer is None or answer is ...:
            return f"{quantity} has no answer yet"
        value = as_number(answer)
        if value is None:
            return f"{quantity} must be a number, not {reprlib.repr(answer)}"
        if close(value, self.key(quantity)):
            return None
        if self.complaint:
            return self.complaint
        shown = f"{quantity} = {_shown(quantity, value)} is not right"
        for wrong, words in self.misconceptions(quantity):
            if close(value, wrong):
                return f"{shown}: {words}"
        return shown


def entry(name: str, kinds: str, answers: Any, key: str, allowed: Sequence[str] = ()) -> Answer:
    """What a student's dict of answers holds for one key, or the words that say why there is no answer.

    Args:
        name: the dict's, in the notebook.
        kinds: from what to what it leads, such as ``"runs to pieces"``.
        answers: what the student wrote.
        key: whose answer is looked up.
        allowed: answers that there are, where each is one of a few words.
    """
    if not isinstance(answers, dict):
        return Answer(fault=f"{name} must be a dict from {kinds}, not {reprlib.repr(answers)}")
    answer = answers.get(key)
    if answer is None or answer is ...:
        return Answer(fault=f"{name}[{key!r}] has no answer yet")
    if allowed and answer not in allowed:
        words = ", ".join([repr(word) for word in allowed])
        return Answer(fault=f"{name}[{key!r}] must be one of {words}, not {reprlib.repr(answer)}")
    return Answer(value=answer)


def as_number(answer: Any) -> float | None:
    """An answer as a number, or None if it is none; text and truth values are none."""
    if isinstance(answer, (bool, str)) or answer is None:
        return None
    try:
        return float(answer)
    except (TypeError, ValueError, OverflowError):
        return None


def close(value: float, wanted: float) -> bool:
    """Whether a calculated number counts as the wanted one: within 0.5 %."""
    return abs(value - wanted) <= TOLERANCE * abs(wanted)


def _shown(quantity: str, value: float) -> str:
    if quantity.endswith("_bytes") and value >= 0:
        return format_bytes(value)
    if quantity.endswith("_s") and value >= 0:
        return format_time(value)
    return f"{value:g}"
