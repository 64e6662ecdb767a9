"""Self-check questions as data: five kinds of question, each checked when it is built.

A :class:`Quiz` has variants, a :class:`Variant` has parts, a part is a :class:`Number`, :class:`Selection`,
:class:`Order` or :class:`Open`. Every text is a template: ``{name}`` is filled from the variant's ``values``,
so that a translation needs no numbers. Inline marks: ``*x*`` emphasis, ``**x**`` strong, `` `x` `` code,
``~x~`` subscript, ``^x^`` superscript.

Build parts with the functions, not the classes: they refuse what the page could not show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardlab.checks import non_negative
from shardlab.quiz.misconceptions import MISCONCEPTIONS


@dataclass(frozen=True)
class Mistake:
    """A wrong number that readers arrive at, and the misconception that leads there."""

    value: float
    misconception: str
    why: str


@dataclass(frozen=True)
class Number:
    """A number to work out.

    Attributes:
        key: the right value, in ``unit``.
        unit: shown beside the field (``"ms"``, ``"×"``, ``"%"``, ``"GB/s"``, ``"ranks"``).
        relative, absolute: an answer counts if it is within the larger of ``relative * |key|`` and ``absolute``.
        digits: significant digits in which the key is shown.
        mistakes: typical wrong values, none within the tolerance of the key.
        solution: worked steps.
    """

    id: str
    prompt: str
    key: float
    unit: str
    relative: float
    absolute: float
    digits: int
    mistakes: tuple[Mistake, ...]
    solution: tuple[str, ...]

    kind = "number"


@dataclass(frozen=True)
class Option:
    """A choice. A wrong one names its misconception; ``why`` says it with the question's own numbers."""

    id: str
    text: str
    correct: bool
    why: str
    misconception: str


@dataclass(frozen=True)
class Selection:
    """Options to tick: one (``several=False``) or any number (``several=True``)."""

    id: str
    prompt: str
    options: tuple[Option, ...]
    several: bool
    solution: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "several" if self.several else "choice"


@dataclass(frozen=True)
class Item:
    """One line of an :class:`Order`; ``note`` says in the solution what puts it there."""

    id: str
    text: str
    note: str


@dataclass(frozen=True)
class Trap:
    """A misconception that shows when ``above`` stands above ``below``, which is the wrong way round."""

    above: str
    below: str
    misconception: str
    why: str


@dataclass(frozen=True)
class Order:
    """Items to put in order. ``items`` is the right order, ``start`` the ids as first shown; ``first`` and ``last``
    label the two ends."""

    id: str
    prompt: str
    first: str
    last: str
    items: tuple[Item, ...]
    start: tuple[str, ...]
    traps: tuple[Trap, ...]
    solution: tuple[str, ...]

    kind = "order"


@dataclass(frozen=True)
class Open:
    """A question to answer in one's own words, then to compare with ``answer`` point by point."""

    id: str
    prompt: str
    answer: str
    points: tuple[str, ...]

    kind = "open"


@dataclass(frozen=True)
class Given:
    """A quantity of the scenario: symbol, what it is, value with unit."""

    symbol: str
    meaning: str
    value: str


@dataclass(frozen=True)
class Table:
    """Measured or computed figures that the questions refer to; the first column names the rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Variant:
    """One scenario with its questions. ``values`` fill the templates of all its texts."""

    id: str
    title: str
    scenario: str
    given: tuple[Given, ...]
    table: Table | None
    parts: tuple[Number | Selection | Order | Open, ...]
    values: dict[str, str]


@dataclass(frozen=True)
class Quiz:
    """A question of the self-check with its variants; ``seed`` drew the numbers of the fresh ones."""

    id: str
    title: str
    question: str
    variants: tuple[Variant, ...]
    values: dict[str, str]
    seed: int


def tolerance(relative: float, absolute: float, key: float) -> float:
    """How far an answer may be from ``key``: the larger of ``relative * |key|`` and ``absolute``."""
    return max(relative * abs(key), absolute)


def decimal(value: float, digits: int = 3) -> str:
    """The number with ``digits`` significant digits and no exponent: ``975``, ``2.91``, ``0.0998``."""
    if value == 0:
        return "0"
    size = abs(value)
    whole, bound = 0, 1.0
    while size >= bound * 10:
        whole, bound = whole + 1, bound * 10
    while size < bound:
        whole, bound = whole - 1, bound / 10
    places = max(digits - 1 - whole, 0)
    # 9.996 rounds up to 10.0, not to 10.00.
    if places > 0 and float(f"{size:.{places}f}") >= bound * 10:
        places -= 1
    return f"{value:.{places}f}"


def fill(template: str, values: dict[str, str]) -> str:
    """The template with every ``{name}`` replaced by its value.

    Raises:
        ValueError: a name has no value.
    """
    try:
        return template.format(**values)
    except (KeyError, IndexError, ValueError):
        raise ValueError(
            f"text must use only {', '.join(sorted(values))} as placeholders, not {template!r}"
        ) from None


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be a text that is not empty, not {value!r}")
    return value


def _slug(field: str, value: object) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
    if not isinstance(value, str) or not value or [letter for letter in value if letter not in letters]:
        raise ValueError(f"{field} must be lower-case letters, digits and hyphens, not {value!r}")
    return value


def _texts(field: str, values: object, least: int = 1) -> tuple[str, ...]:
    if not isinstance(values, (tuple, list)) or len(values) < least:
        raise ValueError(f"{field} must be a tuple of at least {least} texts, not {values!r}")
    return tuple([_text(f"{field}[{index}]", value) for index, value in enumerate(values)])


def _different(field: str, ids: list[str]) -> None:
    for position, value in enumerate(ids):
        if value in ids[:position]:
            raise ValueError(f"{field} must all differ, not {value!r} twice")


def _number_of(field: str, items: Any, least: int, most: int) -> None:
    if not isinstance(items, (tuple, list)) or not least <= len(items) <= most:
        raise ValueError(f"{field} must be a tuple of {least} to {most}, not {items!r}")


def _finite(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{field} must be a finite number, not {value!r}")
    return float(value)


def _misconception(field: str, slug: object) -> str:
    if slug not in MISCONCEPTIONS:
        raise ValueError(f"{field} must be a name in MISCONCEPTIONS, not {slug!r}")
    return str(slug)


def slips(key: float, candidates: Any, relative: float = 0.01, absolute: float = 0.0) -> tuple[Mistake, ...]:
    """The mistakes whose values can be told apart from ``key`` and from one another, the first named first.

    ``candidates`` are pairs ``(value, misconception)`` or triples with a ``why`` of their own. With some numbers
    two mistakes agree (at N = 8, a byte taken for a bit and a rank for the cluster both cost a factor of 8):
    then the one that stands first is named. A mistake too small to matter, such as a latency that is left out
    where it is negligible, is not one.
    """
    taken = [(key, tolerance(relative, absolute, key))]
    mistakes = []
    for candidate in candidates:
        value = float(candidate[0])
        margin = tolerance(relative, absolute, value)
        if math.isfinite(value) and all(abs(value - other) > margin + reach for other, reach in taken):
            taken.append((value, margin))
            why = candidate[2] if len(candidate) > 2 else ""
            mistakes.append(Mistake(value=value, misconception=candidate[1], why=why))
    return tuple(mistakes)


def number(
    id: str,
    prompt: str,
    key: float,
    unit: str,
    solution: tuple[str, ...],
    mistakes: tuple[Mistake, ...] = (),
    relative: float = 0.01,
    absolute: float = 0.0,
    digits: int = 3,
) -> Number:
    """A :class:`Number`. ``relative=0`` with ``absolute=0`` asks for a whole number exactly.

    Raises:
        ValueError: a field is malformed, or a mistake can't be told apart from the key or from another mistake.
    """
    name = _slug("id", id)
    value = _finite(f"{name}.key", key)
    reach = non_negative(f"{name}.relative", relative)
    margin = non_negative(f"{name}.absolute", absolute)
    if reach == 0 and margin == 0 and value != int(value):
        raise ValueError(
            f"{name}.relative must be above 0 when the key {value!r} is not a whole number, not 0"
        )
    taken = [value]
    for index, mistake in enumerate(mistakes):
        field = f"{name}.mistakes[{index}]"
        wrong = _finite(f"{field}.value", mistake.value)
        for other in taken:
            if abs(wrong - other) <= tolerance(reach, margin, other):
                raise ValueError(
                    f"{field}.value must be further than the tolerance from {other!r}, not {wrong!r}"
                )
        taken.append(wrong)
        _misconception(f"{field}.misconception", mistake.misconception)
    if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= 6:
        raise ValueError(f"{name}.digits must be a whole number from 1 to 6, not {digits!r}")
    shown = float(decimal(value, digits))
    if abs(shown - value) > tolerance(reach, margin, value):
        raise ValueError(f"{name}.digits must show the key {value!r} within its tolerance, not as {shown!r}")
    return Number(
        id=name,
        prompt=_text(f"{name}.prompt", prompt),
        key=value,
        unit=_text(f"{name}.unit", unit),
        relative=reach,
        absolute=margin,
        digits=digits,
        mistakes=tuple(mistakes),
        solution=_texts(f"{name}.solution", solution),
    )


def right(id: str, text: str, why: str) -> Option:
    """A right option, with the reason."""
    return Option(id=id, text=text, correct=True, why=why, misconception="")


def wrong(id: str, text: str, misconception: str, why: str = "") -> Option:
    """A wrong option: the misconception that it stands for, and ``why`` with the question's own numbers."""
    return Option(id=id, text=text, correct=False, why=why, misconception=misconception)


def judged(id: str, text: str, correct: bool, why: str, misconception: str = "") -> Option:
    """An option that the model judges: right or wrong as computed; ``misconception`` is for the wrong case.

    Without one (or, for a wrong option, without ``why``) the option can go one way only: should the model
    decide otherwise one day, the selection refuses it rather than print a reason that no longer holds.
    """
    return Option(id=id, text=text, correct=correct, why=why, misconception="" if correct else misconception)


def _selection(id: str, prompt: str, options: Any, several: bool, solution: Any) -> Selection:
    name = _slug("id", id)
    _number_of(f"{name}.options", options, 2, 8)
    for index, option in enumerate(options):
        field = f"{name}.options[{index}]"
        _slug(f"{field}.id", option.id)
        _text(f"{field}.text", option.text)
        if option.correct:
            _text(f"{field}.why", option.why)
        else:
            _misconception(f"{field}.misconception", option.misconception)
    _different(f"{name}.options' ids", [option.id for option in options])
    n_right = len([option for option in options if option.correct])
    if not several and n_right != 1:
        raise ValueError(f"{name}.options must have exactly 1 right option, not {n_right}")
    if several and not 0 < n_right < len(options):
        raise ValueError(
            f"{name}.options must have right and wrong options, not {n_right} right of {len(options)}"
        )
    return Selection(
        id=name,
        prompt=_text(f"{name}.prompt", prompt),
        options=tuple(options),
        several=several,
        solution=_texts(f"{name}.solution", solution, least=0),
    )


def choice(id: str, prompt: str, options: Any, solution: tuple[str, ...] = ()) -> Selection:
    """A :class:`Selection` with exactly one right option.

    Raises:
        ValueError: a field is malformed.
    """
    return _selection(id, prompt, options, False, solution)


def several(id: str, prompt: str, options: Any, solution: tuple[str, ...] = ()) -> Selection:
    """A :class:`Selection` with at least one right and one wrong option.

    Raises:
        ValueError: a field is malformed.
    """
    return _selection(id, prompt, options, True, solution)


def order(
    id: str,
    prompt: str,
    first: str,
    last: str,
    items: Any,
    start: Any,
    traps: tuple[Trap, ...] = (),
    solution: tuple[str, ...] = (),
) -> Order:
    """An :class:`Order`; ``items`` in the right order, ``start`` their ids as first shown.

    Raises:
        ValueError: a field is malformed, or ``start`` is the right order or not a permutation of it.
    """
    name = _slug("id", id)
    _number_of(f"{name}.items", items, 3, 8)
    for index, item in enumerate(items):
        _slug(f"{name}.items[{index}].id", item.id)
        _text(f"{name}.items[{index}].text", item.text)
        _text(f"{name}.items[{index}].note", item.note)
    ids = [item.id for item in items]
    _different(f"{name}.items' ids", ids)
    if sorted(start) != sorted(ids) or list(start) == ids:
        raise ValueError(f"{name}.start must be {ids!r} in another order, not {list(start)!r}")
    for index, trap in enumerate(traps):
        field = f"{name}.traps[{index}]"
        if trap.above not in ids or trap.below not in ids or ids.index(trap.above) <= ids.index(trap.below):
            raise ValueError(
                f"{field} must name two items the wrong way round, not {trap.above!r}, {trap.below!r}"
            )
        _misconception(f"{field}.misconception", trap.misconception)
    return Order(
        id=name,
        prompt=_text(f"{name}.prompt", prompt),
        first=_text(f"{name}.first", first),
        last=_text(f"{name}.last", last),
        items=tuple(items),
        start=tuple(start),
        traps=tuple(traps),
        solution=_texts(f"{name}.solution", solution, least=0),
    )


def open_question(id: str, prompt: str, answer: str, points: tuple[str, ...]) -> Open:
    """An :class:`Open` question; ``points`` are what a good answer says.

    Raises:
        ValueError: a field is malformed.
    """
    name = _slug("id", id)
    return Open(
        id=name,
        prompt=_text(f"{name}.prompt", prompt),
        answer=_text(f"{name}.answer", answer),
        points=_texts(f"{name}.points", points),
    )


def variant(
    id: str,
    title: str,
    scenario: str,
    parts: Any,
    values: dict[str, str],
    given: Any = (),
    table: Table | None = None,
) -> Variant:
    """A :class:`Variant`, with every text filled once to prove that it can be.

    Raises:
        ValueError: a field is malformed, or a text uses a placeholder that ``values`` lacks.
    """
    name = _slug("id", id)
    _number_of(f"{name}.parts", parts, 1, 12)
    _different(f"{name}.parts' ids", [part.id for part in parts])
    for key in values:
        _text(f"{name}.values[{key!r}]", values[key])
    for index, quantity in enumerate(given):
        _text(f"{name}.given[{index}].symbol", quantity.symbol)
        _text(f"{name}.given[{index}].meaning", quantity.meaning)
        _text(f"{name}.given[{index}].value", quantity.value)
    if table is not None:
        for index, row in enumerate(table.rows):
            if len(row) != len(table.columns):
                raise ValueError(
                    f"{name}.table.rows[{index}] must have {len(table.columns)} cells like its columns, not {len(row)}"
                )
    result = Variant(
        id=name,
        title=_text(f"{name}.title", title),
        scenario=_text(f"{name}.scenario", scenario),
        given=tuple(given),
        table=table,
        parts=tuple(parts),
        values=values,
    )
    for field, template in variant_texts(result):
        try:
            fill(template, values)
        except ValueError as error:
            raise ValueError(f"{name}.{field}: {error}") from None
    return result


def quiz_of(id: str, title: str, question: str, variants: Any, values: dict[str, str], seed: int) -> Quiz:
    """A :class:`Quiz`.

    Raises:
        ValueError: a field is malformed.
    """
    name = _slug("id", id)
    _number_of(f"{name}.variants", variants, 1, 20)
    _different(f"{name}.variants' ids", [each.id for each in variants])
    fill(_text(f"{name}.title", title), values)
    fill(_text(f"{name}.question", question), values)
    return Quiz(id=name, title=title, question=question, variants=tuple(variants), values=values, seed=seed)


def part_texts(part: Any) -> list[tuple[str, str]]:
    """Every template of a part with the path that names it, in a fixed order."""
    texts = [("prompt", part.prompt)]
    if part.kind == "number":
        texts += [("unit", part.unit)]
        texts += [(f"mistakes.{each.misconception}.why", each.why) for each in part.mistakes if each.why]
    elif part.kind in ("choice", "several"):
        for option in part.options:
            texts.append((f"options.{option.id}.text", option.text))
            if option.why:
                texts.append((f"options.{option.id}.why", option.why))
    elif part.kind == "order":
        texts += [("first", part.first), ("last", part.last)]
        for item in part.items:
            texts += [(f"items.{item.id}.text", item.text), (f"items.{item.id}.note", item.note)]
        texts += [(f"traps.{trap.above}.{trap.below}.why", trap.why) for trap in part.traps if trap.why]
    else:
        texts.append(("answer", part.answer))
        texts += [(f"points.{index}", point) for index, point in enumerate(part.points)]
    if part.kind != "open":
        texts += [(f"solution.{index}", step) for index, step in enumerate(part.solution)]
    return texts


def variant_texts(each: Variant) -> list[tuple[str, str]]:
    """Every template of a variant with the path that names it, in a fixed order."""
    texts = [("title", each.title), ("scenario", each.scenario)]
    for index, quantity in enumerate(each.given):
        texts += [(f"given.{index}.meaning", quantity.meaning), (f"given.{index}.value", quantity.value)]
    if each.table is not None:
        texts.append(("table.caption", each.table.caption))
        texts += [(f"table.columns.{index}", column) for index, column in enumerate(each.table.columns)]
    for part in each.parts:
        texts += [(f"{part.id}.{path}", template) for path, template in part_texts(part)]
    return texts
