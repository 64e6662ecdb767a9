"""Numbers as a sentence says them: ``six`` rounds, ``a fifth`` of the time."""

from __future__ import annotations

_WHOLE = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_PARTS = (
    "half",
    "a third",
    "a quarter",
    "a fifth",
    "a sixth",
    "a seventh",
    "an eighth",
    "a ninth",
    "a tenth",
)
_NEAR = 0.1


def in_words(number: float) -> str:
    """A whole number from 1 to 12: ``in_words(6)`` is ``"six"``.

    Raises:
        ValueError: ``number`` is no whole number, or has no word here.
    """
    if number not in range(1, len(_WHOLE) + 1):
        raise ValueError(f"number must be a whole number from 1 to {len(_WHOLE)}, not {number!r}")
    return _WHOLE[int(number) - 1]


def part_in_words(share: float) -> str:
    """The nearest of a half, a third, … and a tenth: ``part_in_words(0.19)`` is ``"a fifth"``.

    Raises:
        ValueError: none is within 10 % of ``share``, so the sentence has to give the number itself.
    """
    off = [(abs(share * below - 1), part) for below, part in enumerate(_PARTS, start=2)]
    distance, nearest = min(off)
    if distance > _NEAR:
        raise ValueError(f"share must be within 10 % of one of {', '.join(_PARTS)}, not {share!r}")
    return nearest
