"""What a finished lab returns: rows of measurements, tables of predicted beside measured, and the way to keep them."""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

from shardlab.labs import machine
from shardlab.labs.machine import Stamp
from shardlab.labs.table import Table, Tables

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class LabRun(ABC):
    """A finished lab; each lab adds its own measurements as fields.

    Fields are made of numbers, text, tuples, mappings and frozen dataclasses of those: then :meth:`to_json` and
    :meth:`from_json` need no code of their own.

    Attributes:
        settings: the arguments.
        stamp: when and on what.
        backend: ``"gloo"`` or ``"nccl"``.
        reading: how the kernel's bytes were read: ``"ss"``, ``"TCP_INFO"``, or None (not read, or not readable).
        threads: threads of one rank.
        elapsed_s: seconds of the whole lab.
        recorded: read from the recording that comes with the book, not measured now.
    """

    lab: ClassVar[str]

    settings: Mapping[str, Any]
    stamp: Stamp
    backend: str
    reading: str | None
    threads: int
    elapsed_s: float
    recorded: bool = False

    # ---- what each lab says of itself ----

    @abstractmethod
    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """The lab's tables by name, in the order of reading."""

    @abstractmethod
    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers; one paragraph each."""

    @abstractmethod
    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""

    # ---- showing it ----

    def table(self, name: str | None = None) -> Tables:
        """All tables, or the one with this name; prints as text, shows as HTML."""
        tables = self.make_tables()
        if name is not None and name not in tables:
            raise ValueError(f"name must be one of {', '.join(tables)}, not {name!r}")
        *others, last = [make() for key, make in tables.items() if name in (None, key)]
        return Tables((*others, replace(last, notes=(*last.notes, self.provenance()))))

    def __str__(self) -> str:
        return "\n\n".join([str(self.table()), *self.explanation()])

    __repr__ = __str__

    def __init_subclass__(cls) -> None:
        # @dataclass writes a repr of its own into a class that has none: a wall of numbers where a table should be.
        cls.__repr__ = LabRun.__str__  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + "".join(
            [f"<p>{html.escape(words)}</p>" for words in self.explanation()]
        )

    def provenance(self) -> str:
        """Where the numbers come from: measured now, or recorded; when and on what."""
        verb = "Recorded earlier, not measured here:" if self.recorded else "Measured"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{verb} {self.stamp}; {self.backend}, {threads} per rank."

    # ---- keeping it ----

    def to_json(self) -> str:
        """Everything, as JSON."""
        fields = {name: value for name, value in vars(self).items() if name != "settings"}
        plain = json.loads(json.dumps(fields, default=asdict))
        return json.dumps(
            {"lab": self.lab, "complete": True, "settings": dict(self.settings), **plain}, indent=1
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: ``text`` is not the JSON of a complete run of this lab.
        """
        # Only read here: a lab that is measured doesn't pay for the import.
        import cattrs

        data = json.loads(text)
        if data.pop("lab", None) != cls.lab or not data.pop("complete", False):
            raise ValueError(f"text must be the JSON of a complete {cls.lab} lab")
        return cattrs.Converter(forbid_extra_keys=True).structure(data, cls)


def common(measured: Mapping[str, Any], settings: Mapping[str, Any], elapsed_s: float) -> dict[str, Any]:
    """The fields that every run has, taken here and now.

    Args:
        measured: what :func:`shardlab.labs.measure.run_stages` returned.
        settings: the lab's arguments.
        elapsed_s: seconds of the whole lab.
    """
    facts = {name: measured[name] for name in ("backend", "reading", "threads")}
    return {"settings": settings, "stamp": machine.stamp(), "elapsed_s": elapsed_s, **facts}


@dataclass(frozen=True)
class Equality:
    """A row that compares with one process; each lab adds what was compared, and the differences as fields.

    Attributes:
        gaps: fields with differences that should vanish, and how sentences name them.
        controls: fields with differences of something wrong on purpose, which should not vanish.
    """

    gaps: ClassVar[Mapping[str, str]]
    controls: ClassVar[tuple[str, ...]] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """All differences as a table shows them: :attr:`gaps`, then :attr:`controls`."""
        return tuple([f"{getattr(self, name):.1e}" for name in (*self.gaps, *self.controls)])

    def complaint(self, what: str, allowed: float) -> list[str]:
        """A sentence if a difference that should vanish is above ``allowed``; ``what`` says which row this is."""
        # Written so that a NaN fails.
        if all(getattr(self, name) <= allowed for name in self.gaps):
            return []
        found = ", ".join([f"{words} {getattr(self, name):.1e}" for name, words in self.gaps.items()])
        return [f"{what}: not equal to one process ({found}, allowed {allowed:.0e})"]


def equality_table(
    caption: str,
    labels: tuple[str, ...],
    differences: tuple[str, ...],
    rows: Iterable[tuple[tuple[str, ...], Equality]],
) -> Table:
    """The table of a lab's :class:`Equality` rows.

    Args:
        caption: what was compared; ends in "largest difference".
        labels: headings of the columns that say which row it is. differences: headings of the differences.
        rows: the text for each label, and the row.
    """
    return Table(
        caption=caption,
        columns=(*labels, *differences),
        rows=tuple([(*texts, *row.cells) for texts, row in rows]),
        label_columns=len(labels),
    )


def only(rows: Sequence[Row], name: str, **wanted: Any) -> Row:
    """The row whose attributes are ``wanted``.

    Raises:
        ValueError: there is none; says which there are.
    """
    for row in rows:
        if all(getattr(row, key) == value for key, value in wanted.items()):
            return row
    known = ", ".join([str({key: getattr(row, key) for key in wanted}) for row in rows])
    raise ValueError(f"{name} must be asked for one of {known}, not {wanted}")


def ranks_words(n: int) -> str:
    """``1 rank``, ``2 ranks``."""
    return "1 rank" if n == 1 else f"{n} ranks"


def cores_words(n: int) -> str:
    """``1 core``, ``2 cores``."""
    return "1 core" if n == 1 else f"{n} cores"


def teams(ranks: int) -> list[int]:
    """1, 2, 4, ... and ``ranks``: the numbers of ranks that a lab measures."""
    return [*[2**power for power in range(ranks.bit_length()) if 2**power < ranks], ranks]
