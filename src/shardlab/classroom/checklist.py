"""A task's criteria, each with its marks, checked one by one so that one mistake costs what it should and no more.

In a notebook a checklist is the last line of a check cell::

    check = Checklist("Task 2: reduce-scatter", marks=6)
    check.add("4 ranks: every rank ends with its finished chunk", 2, fault)
    check.total()

``fault`` is None when the criterion is met, and otherwise a sentence that helps. ``total`` prints the list and
returns the marks earned, which nbgrader reads from the cell's output as partial credit.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from shardlab.checks import positive


@dataclass(frozen=True)
class Criterion:
    """One line of a checklist: what is asked, what it is worth, and what is wrong (None if nothing)."""

    name: str
    marks: float
    fault: str | None

    @property
    def earned(self) -> float:
        """All its marks or none."""
        return self.marks if self.fault is None else 0.0


def _indented(words: str) -> list[str]:
    """Lines of a fault, none wider than a notebook's cell; a line's own indent is kept."""
    lines = []
    for line in words.splitlines():
        indent = " " * (6 + len(line) - len(line.lstrip()))
        lines.extend(textwrap.wrap(line.strip(), 92, initial_indent=indent, subsequent_indent=indent))
    return lines


class Checklist:
    """The criteria of one task.

    Args:
        title: the task's name, shown above the list.
        marks: marks of the whole task, those of the hidden checks included.
    """

    def __init__(self, title: str, marks: float) -> None:
        self.title = title
        self.marks = positive("marks", marks)
        self.criteria: list[Criterion] = []

    def add(self, criterion: str, marks: float, fault: str | None) -> None:
        """Add a criterion; ``fault`` is None when it is met, else what is wrong, in words that help.

        Raises:
            ValueError: the criteria would be worth more than the task.
        """
        worth = positive("marks", marks)
        if self.worth + worth > self.marks:
            raise ValueError(
                f"marks must leave the sum of all criteria at {self.marks:g} or below, not {marks!r}"
            )
        self.criteria.append(Criterion(criterion, worth, fault))

    @property
    def worth(self) -> float:
        """Marks of the criteria so far."""
        return sum(criterion.marks for criterion in self.criteria)

    @property
    def earned(self) -> float:
        """Marks of the criteria that are met."""
        return sum(criterion.earned for criterion in self.criteria)

    def text(self) -> str:
        """The list as text: a tick or a cross, the criterion, its marks, and below it what is wrong."""
        width = max([len(criterion.name) for criterion in self.criteria], default=0)
        lines = [self.title]
        for criterion in self.criteria:
            tick = "✓" if criterion.fault is None else "✗"
            lines.append(
                f"  {tick} {criterion.name.ljust(width)}  {criterion.earned:g} of {criterion.marks:g}"
            )
            if criterion.fault is not None:
                lines.extend(_indented(criterion.fault))
        lines.append(f"{self.earned:g} of {self.worth:g} marks")
        if self.worth < self.marks:
            lines[-1] += f" here; grading checks more, for {self.marks - self.worth:g} more"
        return "\n".join(lines)

    def total(self) -> float:
        """Print the list and return the marks earned."""
        print(self.text())
        return float(self.earned)
