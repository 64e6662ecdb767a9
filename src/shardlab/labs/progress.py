"""Progress of a run: a bar in a terminal, one line that renews itself in a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from shardlab.labs.machine import in_notebook


class View(Protocol):
    """Something that shows progress."""

    def update(self, text: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` parts are finished and ``text`` is under way (total 0: unknown)."""

    def write(self, line: str) -> None:
        """Show a line for good: what a rank printed."""


@contextlib.contextmanager
def display(title: str, show: bool = True) -> Iterator[View]:
    """The view that suits where we are. Progress goes to the standard error, or into the notebook's cell."""
    if not show:
        yield _Silent()
    elif in_notebook():
        yield from _in_notebook(title)
    elif sys.stderr.isatty():
        yield from _in_terminal(title)
    else:
        yield _Lines(title)


def say(text: str) -> None:
    """Tell the reader something that must not be missed: in the cell, or on the standard error."""
    print(text, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


class _Silent:
    def update(self, text: str, done: int, total: int) -> None:
        pass

    def write(self, line: str) -> None:
        pass


class _Lines:
    def __init__(self, title: str) -> None:
        self._title = title

    def update(self, text: str, done: int, total: int) -> None:
        print(_line(self._title, text, done, total), file=sys.stderr, flush=True)

    def write(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def _line(title: str, text: str, done: int, total: int) -> str:
    return f"{title} [{done}/{total}] {text}" if total else f"{title}: {text}"


def _in_terminal(title: str) -> Iterator[View]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{title}: starting", total=None)

        class Bar:
            def update(self, text: str, done: int, total: int) -> None:
                bar.update(task, description=f"{title}: {text}", completed=done, total=total or None)

            def write(self, line: str) -> None:
                bar.console.print(line, markup=False, highlight=False)

        yield Bar()


def _in_notebook(title: str) -> Iterator[View]:
    from IPython import display as notebook

    class Words:
        def __init__(self, text: str) -> None:
            self._text = text

        def __repr__(self) -> str:
            return self._text

    show_in_cell: Any = notebook.display
    handle = show_in_cell(Words(f"{title}: starting"), display_id=True)

    class Cell:
        def update(self, text: str, done: int, total: int) -> None:
            handle.update(Words(_line(title, text, done, total)))

        def write(self, line: str) -> None:
            print(line)

    try:
        yield Cell()
    except BaseException:
        handle.update(Words(f"{title}: stopped"))
        raise
    handle.update(Words(f"{title}: finished"))
