"""Labelled numbers: every number tells which element of a buffer it is and which ranks' numbers are summed in it."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.classroom.attempt import false_equal

# Digit r, in base 4, counts how often rank r's number is in a sum; above the digits stands the element's code.
_BASE = 4
_CODES = 9973


def _code(element: int) -> int:
    """A number for an element such that averages of codes are hardly ever codes."""
    return 1 + 7919 * (element + 1) * (element + 1) % _CODES


def label(rank: int, element: int, n_ranks: int) -> int:
    """The number that rank ``rank`` has as element ``element`` of its buffer. Exact as a float up to 16 ranks."""
    return int(_code(element) * _BASE**n_ranks + _BASE**rank)


def labelled_sum(ranks: Iterable[int], element: int, n_ranks: int) -> int:
    """The sum of some ranks' numbers for one element."""
    return sum(label(rank, element, n_ranks) for rank in ranks)


def read_label(value: Any, n_ranks: int, n_elements: int) -> tuple[int, list[int]] | None:
    """Element and how often each rank is in it, or None if ``value`` is no sum of one element's numbers."""
    try:
        number = int(value)
        if number != value:
            return None
    except (TypeError, ValueError, OverflowError):
        return None
    codes, digits = divmod(number, _BASE**n_ranks)
    times = [digits // _BASE**rank % _BASE for rank in range(n_ranks)]
    total = sum(times)
    if total == 0 or codes % total:
        return None
    elements = [element for element in range(n_elements) if _code(element) == codes // total]
    return (elements[0], times) if elements else None


@dataclass(frozen=True)
class Layout:
    """How the buffer of each rank is cut into chunks."""

    sizes: list[int]

    @property
    def n_ranks(self) -> int:
        """One chunk for each rank."""
        return len(self.sizes)

    @property
    def n_elements(self) -> int:
        """Length of the whole buffer."""
        return sum(self.sizes)

    def elements(self, chunk: int) -> range:
        """The elements of one chunk."""
        start = sum(self.sizes[:chunk])
        return range(start, start + self.sizes[chunk])

    def chunk_of(self, element: int) -> int:
        """The chunk that an element lies in."""
        return next(chunk for chunk in range(self.n_ranks) if element in self.elements(chunk))

    def partial(self, chunk: int, ranks: Iterable[int]) -> list[int]:
        """One chunk, summed over some ranks."""
        summed = list(ranks)
        return [labelled_sum(summed, element, self.n_ranks) for element in self.elements(chunk)]

    def full(self, chunk: int) -> list[int]:
        """One chunk, summed over all ranks."""
        return self.partial(chunk, range(self.n_ranks))

    def fault(self, values: Any, elements: Sequence[int]) -> str | None:
        """What is wrong with ``values`` as the sums of ``elements`` over all ranks; None if nothing is."""
        try:
            found = list(values)
        except TypeError:
            return f"is {reprlib.repr(values)}, not a list of numbers"
        if len(found) != len(elements):
            return f"has {len(found)} numbers, not {len(elements)}"
        for value, element in zip(found, elements, strict=True):
            if not equal(value, labelled_sum(range(self.n_ranks), element, self.n_ranks)):
                return self._difference(value, element)
        return None

    def _difference(self, value: Any, element: int) -> str:
        read = read_label(value, self.n_ranks, self.n_elements)
        if read is None:
            return "mixes numbers of different elements: were two different chunks added?"
        origin, times = read
        if origin != element:
            return f"holds numbers of chunk {self.chunk_of(origin)}"
        missing = [rank for rank in range(self.n_ranks) if times[rank] == 0]
        double = [rank for rank in range(self.n_ranks) if times[rank] > 1]
        words = [f"lacks the numbers of {rank_words(missing)}"] if missing else []
        if double:
            words.append(f"counts the numbers of {rank_words(double)} more than once")
        return " and ".join(words)

    def payload_words(self, payload: Sequence[Any]) -> str:
        """What a message carries: ``chunk 1``, ``chunks 0, 1`` or, if it can't be told, how many numbers."""
        reads = [read_label(value, self.n_ranks, self.n_elements) for value in payload]
        chunks = sorted({self.chunk_of(read[0]) for read in reads if read is not None})
        if not chunks or None in reads:
            return f"{len(payload)} numbers"
        return f"chunk {chunks[0]}" if len(chunks) == 1 else f"chunks {', '.join(map(str, chunks))}"


def equal(value: Any, wanted: int) -> bool:
    """Whether a student's value is the wanted number, whatever it is instead."""
    try:
        return false_equal(value) is None and bool(value == wanted)
    # An array in an array's place, or whatever a student's code put there.
    except Exception:
        return False


def rank_words(ranks: Sequence[int]) -> str:
    """``rank 2`` or ``ranks 0, 2``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
