"""The steps by which every bank builds its questions: a figure with its slips, a ranking, and numbers as text.

:mod:`shardlab.quiz.model` checks what a part is made of; the functions here make it from what a bank computes.
"""

from __future__ import annotations

from typing import Any

from shardlab.quiz.draw import Draw
from shardlab.quiz.model import Item, Number, Order, Trap, decimal, number, order, slips
from shardlab.units import significant


def figure(
    id: str,
    prompt: str,
    key: float,
    unit: str,
    wrong: Any,
    solution: tuple[str, ...],
    relative: float = 0.01,
    absolute: float = 0.0,
    digits: int = 3,
) -> Number:
    """A figure to work out, with those of the ``wrong`` values that can be told apart from it.

    Args:
        wrong: pairs ``(value, misconception)`` or triples with a ``why``, as :func:`shardlab.quiz.model.slips`
            takes them, in the unit of the key.
        others: as in :func:`shardlab.quiz.model.number`; the tolerance holds for key and slips alike.

    Raises:
        ValueError: a field is malformed.
    """
    return number(
        id=id,
        prompt=prompt,
        key=key,
        unit=unit,
        relative=relative,
        absolute=absolute,
        digits=digits,
        mistakes=slips(key, wrong, relative=relative, absolute=absolute),
        solution=solution,
    )


def whole(id: str, prompt: str, key: int, unit: str, wrong: Any, solution: tuple[str, ...]) -> Number:
    """A whole number that has to be met exactly, shown with all its digits.

    Args and errors as in :func:`figure`.
    """
    return figure(id, prompt, key, unit, wrong, solution, relative=0.0, digits=len(str(key)))


def share(
    id: str, prompt: str, key: float, wrong: Any, solution: tuple[str, ...], points: float = 0.6
) -> Number:
    """A share in per cent, right within ``points`` percentage points; ``key`` and ``wrong`` are fractions of 1.

    Args and errors as in :func:`figure`.
    """
    in_percent = [tuple([100 * each[0]] + list(each[1:])) for each in wrong]  # noqa: RUF005 (MicroPython)
    return figure(id, prompt, 100 * key, "%", in_percent, solution, relative=0.0, absolute=points)


def ranking(
    id: str,
    prompt: str,
    first: str,
    last: str,
    rows: Any,
    start: Any,
    highest: bool = False,
    traps: tuple[Trap, ...] = (),
    solution: tuple[str, ...] = (),
) -> Order:
    """Lines to put in order of what the model says of them.

    Args:
        rows: ``(value, id, text, note)`` in any order; ``note`` shows the value.
        start: the ids as first shown, or a :class:`Draw` that mixes them.
        highest: the highest value comes first, not the lowest.
        others: as in :func:`shardlab.quiz.model.order`.

    Raises:
        ValueError: a field is malformed, or ``start`` is the right order already.
    """
    ranked = sorted(rows, reverse=highest)
    ids = [row[1] for row in ranked]
    return order(
        id=id,
        prompt=prompt,
        first=first,
        last=last,
        items=tuple([Item(id=row[1], text=row[2], note=row[3]) for row in ranked]),
        start=tuple(start.out_of_order(ids) if isinstance(start, Draw) else start),
        traps=traps,
        solution=solution,
    )


def apart(values: list[float], ratio: float = 1.05) -> bool:
    """Whether no two of the values are closer than a factor of ``ratio``: then their order is no matter of rounding."""
    ordered = sorted(values)
    return all(ordered[index + 1] > ratio * ordered[index] for index in range(len(ordered) - 1))


def ms(seconds: float) -> str:
    """Milliseconds with one decimal, as in the chapter's tables: ``175.1 ms``."""
    return f"{seconds * 1e3:.1f} ms"


def times(ratio: float, digits: int = 3) -> str:
    """A ratio: ``2.91×``."""
    return decimal(ratio, digits) + "×"


def percent(share: float) -> str:
    """A share with one decimal: ``36.3 %``."""
    return f"{share * 100:.1f} %"


def gigabytes(n_bytes: float, digits: int = 3) -> str:
    """A size in GB: ``31.4 GB``."""
    return significant(n_bytes / 1e9, digits) + " GB"


def megabytes(n_bytes: float, digits: int = 4) -> str:
    """A size in MB: ``67.11 MB``."""
    return significant(n_bytes / 1e6, digits) + " MB"


def billions(params: float) -> str:
    """Parameters in words: ``7.5 billion``."""
    return f"{params / 1e9:.4g} billion"
