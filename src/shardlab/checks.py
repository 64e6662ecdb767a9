"""Argument checks whose messages name the argument, the value and what is allowed.

The usual types are let through first: in the browser, building a message costs more than a model's arithmetic.
"""

from __future__ import annotations

import math

_HUGE = 1e300  # below it every int is a float too


def _number(name: str, value: object, allowed: str) -> float:
    # float() reads text and truth values too; both are slips here, not numbers.
    if isinstance(value, (bool, str, bytes, bytearray)):
        raise ValueError(f"{name} must be {allowed}, not {value!r}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be {allowed}, not {_shown(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be {allowed}, not {_shown(value)}")
    return number


def _shown(value: object) -> str:
    # An integer too long for a float is also too long for a message.
    text = "an integer that no float can hold" if isinstance(value, int) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def positive(name: str, value: object, unit: str = "") -> float:
    """Return ``value`` as a float if it is a finite number above zero."""
    if (type(value) is float or type(value) is int) and 0 < value < _HUGE:
        return float(value)
    allowed = f"a finite number above 0{' ' + unit if unit else ''}"
    number = _number(name, value, allowed)
    if number <= 0:
        raise ValueError(f"{name} must be {allowed}, not {value!r}")
    return number


def non_negative(name: str, value: object, unit: str = "") -> float:
    """Return ``value`` as a float if it is a finite number, zero or above."""
    if (type(value) is float or type(value) is int) and 0 <= value < _HUGE:
        return float(value)
    allowed = f"a finite number of at least 0{' ' + unit if unit else ''}"
    number = _number(name, value, allowed)
    if number < 0:
        raise ValueError(f"{name} must be {allowed}, not {value!r}")
    return number


def fraction(name: str, value: object) -> float:
    """Return ``value`` as a float if it lies between 0 and 1, both included."""
    if (type(value) is float or type(value) is int) and 0 <= value <= 1:
        return float(value)
    allowed = "a number from 0 to 1"
    number = _number(name, value, allowed)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be {allowed}, not {value!r}")
    return number


def count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return ``value`` as an int if it is a whole number from ``least`` (to ``most``, if given)."""
    if type(value) is int and least <= value <= (2**53 if most is None else most):
        return value
    allowed = f"a whole number of at least {least}"
    if most is not None:
        allowed = f"a whole number from {least} to {most}"
    number = _number(name, value, allowed)
    if number != int(number) or number < least or (most is not None and number > most):
        raise ValueError(f"{name} must be {allowed}, not {value!r}")
    return int(value) if isinstance(value, int) else int(number)


def choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join([repr(item) for item in allowed])
        raise ValueError(f"{name} must be one of {names}, not {value!r}")
    return value
