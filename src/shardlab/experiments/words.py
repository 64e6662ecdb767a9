"""Numbers as words say them: the same text in Python, on the page and in a test."""

from __future__ import annotations

from shardlab.units import format_bandwidth, format_bytes, format_time


def settled(value: float) -> float:
    """The value, moved off any half-way case: CPython rounds 0.125 to 0.12 and MicroPython to 0.13."""
    return value * (1 + 1e-13)


def amount(value: float, digits: int = 3) -> str:
    """A number with ``digits`` significant digits and no exponent: ``2.91``, ``165``, ``1073``."""
    size = abs(value)
    if size == 0:
        return "0"
    whole_digits, limit = 1, 10.0
    while size >= limit * (1 - 0.5 * 10.0**-digits) and whole_digits < 15:
        whole_digits += 1
        limit *= 10
    places = max(digits - whole_digits, 0)
    while size < 1 and places < 12:
        size *= 10
        places += 1
    return f"{settled(value):.{places}f}"


def plain_number(value: float) -> str:
    """A number as a person writes it: six significant digits at most, no exponent, no trailing zeros."""
    if value == int(value):
        return str(int(value))
    places = 5
    size = abs(value)
    while size < 1 and places < 15:
        size *= 10
        places += 1
    return f"{settled(value):.{places}f}".rstrip("0").rstrip(".")


def ratio(value: float) -> str:
    """A speedup: ``2.91×``, ``0.82×``, ``165×``."""
    text = f"{settled(value):.2f}" if 0.1 <= value < 10 else amount(value)
    return text + "×"


def percent(fraction: float) -> str:
    """A share: ``36.3 %``."""
    return f"{settled(100 * fraction):.1f}\u00a0%"


def seconds(value: float) -> str:
    """A time: ``275.1 ms``."""
    return format_time(settled(value)).replace(" ", "\u00a0")


def n_bytes(value: float) -> str:
    """A size: ``1.75 GB``."""
    return format_bytes(settled(value)).replace(" ", "\u00a0")


def bandwidth(value: float) -> str:
    """A speed: ``10 GB/s``."""
    return format_bandwidth(settled(value)).replace(" ", "\u00a0")


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``8 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
