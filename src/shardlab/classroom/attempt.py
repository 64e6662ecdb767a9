"""Call a student's function for a check: quietly, with working versions of what earlier tasks should have given it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar
from unittest.mock import patch

from shardlab.classroom.network import NetworkError, NotWritten, describe

Carry = dict[str, Callable[..., Any]]
# CPython, Include/object.h: Py_TPFLAGS_HEAPTYPE.
_HEAP_TYPE = 1 << 9
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a function returned, or the words that say why it returned nothing."""

    value: Any = None
    fault: str | None = None


def attempt(function: Callable[..., Any], *arguments: Any, carry: Carry | None = None) -> Answer:
    """Call ``function(*arguments)``; an exception becomes a fault that shows the student's own line.

    Args:
        function: the student's.
        arguments: what it is called with.
        carry: working versions of functions from earlier tasks, by name.

    Raises:
        NotWritten: the function, or one that it calls, isn't written yet.
    """
    where = f"{name_of(function)}({', '.join(map(_short, arguments))})"
    try:
        with carried(function, carry or {}), silent():
            value = function(*arguments)
        false = false_equal(value)
        return Answer(fault=f"{where} returned {false}") if false else Answer(value=value)
    except NotWritten:
        raise
    except NotImplementedError as error:
        raise NotWritten.from_error(error) from None
    except NetworkError as error:
        return Answer(fault=f"{where}: {error}")
    except Exception as error:
        return Answer(fault=f"{where} stopped with {describe(error)}")


def with_carry(
    function: Callable[..., Any], carry: Carry | None, trial: Callable[[], T], faults: Callable[[T], int]
) -> T:
    """Try a function with working versions of earlier tasks, and with its author's own if that has faults.

    The better of the two trials counts, so that an earlier mistake is paid for once.

    Args:
        function: the student's.
        carry: working versions by name; without any, there is one trial.
        trial: tries the function.
        faults: how many faults a trial has.
    """
    if not carry:
        return trial()
    with carried(function, carry):
        forward = trial()
    if not faults(forward):
        return forward
    try:
        own = trial()
    except NotWritten:
        return forward
    return own if faults(own) < faults(forward) else forward


def false_equal(value: Any, depth: int = 4) -> str | None:
    """Words for an object of the notebook's own class that decides itself what it is equal to, or None.

    Looked for in ``value`` and, ``depth`` levels deep, in its lists, tuples and dictionaries.
    """
    kind = type(value)
    if not is_dataclass(kind) and any("__eq__" in vars(base) and _is_own(base) for base in kind.__mro__):
        return f"a {kind.__name__} that says itself what it is equal to: return plain numbers and lists"
    if depth and isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if depth and isinstance(value, (list, tuple)):
        return first_fault(false_equal(item, depth - 1) for item in value)
    return None


def _is_own(kind: type) -> bool:
    """Whether a class is made in the notebook, whatever it says of itself."""
    made_by_python = bool(kind.__flags__ & _HEAP_TYPE)
    found = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    return made_by_python and (kind.__module__ == "__main__" or found is not kind)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else "…"


def first_fault(faults: Iterable[str | None]) -> str | None:
    """The first fault that there is. Give it a generator, and nothing is tried after a fault."""
    return next((fault for fault in faults if fault is not None), None)


@contextlib.contextmanager
def carried(function: Callable[..., Any], carry: Carry) -> Iterator[None]:
    """Let ``function`` find the functions of ``carry`` under their names, in place of its author's, for a while."""
    # A callable object has no globals of its own to look names up in.
    with patch.dict(getattr(function, "__globals__", {}), carry):
        yield


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Swallow what a student's code prints: on the error stream it would cost marks, and a flood would drown the list."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def name_of(function: Callable[..., Any]) -> str:
    """The function's name for a sentence."""
    return getattr(function, "__name__", repr(function))
