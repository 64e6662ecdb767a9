"""What all diagnoses share: reading quantities with their units, saying numbers in words, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardlab.checks import count, positive
from shardlab.units import (
    GB,
    format_bandwidth,
    format_bit_rate,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_time,
    significant,
    written_in_bits,
)

if TYPE_CHECKING:  # MicroPython has neither
    from collections.abc import Callable
    from typing import TypeVar

    _Checked = TypeVar("_Checked")

# Judgement calls, each made in one place. Reports of transports that work show 60 to 95 % of the nominal speed, of
# misconfigured ones 4 to 15 %; the middle is drawn here.
HEALTHY_EFFICIENCY = 0.9
"""Scaling efficiency from which there is nothing to repair."""
WELL_USED = 0.5
"""A transport that reaches this share of its nominal speed is set up properly; what is slow then is the link."""
ETHERNET_GBIT_S = (0.1, 1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800)
"""Speeds that network ports are sold with, Gb/s."""
PCIE3_X16 = 12 * GB
"""What a PCIe 3.0 x16 slot carries in practice, bytes/s: the least that GPUs of one box have between them."""
SMALL_BUFFER = 64e6
"""Buffers up to here spend a good part of their time on starting the collective rather than on bytes."""
SHORT_STEP_S = 0.05
"""Steps up to here are the size of what launching kernels and collectives costs."""


BOX_CHECKS = (
    "nvidia-smi topo -m, and NCCL_DEBUG=INFO: 'via P2P' or 'via SHM'? Consumer GPUs may have P2P switched off",
    "ACS and IOMMU switched off, slots with all 16 lanes, GPUs under one CPU socket",
)
"""What to look at when GPUs of one box exchange slowly."""


@dataclass(frozen=True)
class Verdict:
    """What the numbers say.

    Attributes:
        code: a short name for programs.
        text: the verdict in words.
        checks: what to look at next, the most likely first.
    """

    code: str
    text: str
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Nominal:
    """A link as someone named it: bytes/s, and whether they counted bits (None: a plain number of bytes/s)."""

    bytes_per_s: float
    in_bits: bool | None

    def __str__(self) -> str:
        return rate(self.bytes_per_s)


def checks(*items: str) -> tuple[str, ...]:
    """What to check, as a tuple. (A function, since MicroPython has no ``(a, *b)``.)"""
    return items


def nominal_link(name: str, value: object) -> Nominal:
    """A link from text with a unit (``'100 Gb/s'``) or a number of bytes/s.

    Raises:
        ValueError: no unit, an unclear one, or a number so small that a unit was forgotten.
    """
    if isinstance(value, str):
        speed = positive(name, parse_bandwidth(value, name), "bytes/s")
        return Nominal(bytes_per_s=speed, in_bits=written_in_bits(value))
    speed = positive(name, value, "bytes/s")
    if speed < 1e5:
        raise ValueError(
            f"{name} {value!r} would be {format_bandwidth(speed)}: a number counts bytes/s. Write the unit, "
            f"'{speed:g} Gb/s' (bits) or '{speed:g} GB/s' (bytes)"
        )
    return Nominal(bytes_per_s=speed, in_bits=None)


def seconds(name: str, value: object) -> float:
    """Seconds above 0, from a number or from text with a unit (``'22 ms'``)."""
    return positive(name, parse_time(value, name) if isinstance(value, str) else value, "seconds")


def size_bytes(name: str, value: object) -> float:
    """Bytes above 0, from a number or from text with a unit (``'440 MB'``)."""
    return positive(name, parse_bytes(value, name) if isinstance(value, str) else value, "bytes")


def optional(check: Callable[[str, Any], _Checked], name: str, value: object) -> _Checked | None:
    """``check(name, value)``, or None where nothing was given."""
    return None if value is None else check(name, value)


def whole(name: str, value: object) -> int:
    """A whole number from 1."""
    return count(name, value)


def how_many(name: str, value: object) -> float:
    """A count above 0, from a number or from text (``'110M'``)."""
    return positive(name, parse_count(value, name) if isinstance(value, str) else value)


def rate(bytes_per_s: float) -> str:
    """A bandwidth in both units, since people mix them: ``1.11 GB/s (8.87 Gb/s)``."""
    return f"{format_bandwidth(bytes_per_s, 3)} ({format_bit_rate(bytes_per_s, 3)})"


def rates(low: float, high: float | None) -> str:
    """A bracket of bandwidths in both units; ``high`` None means that nothing bounds it."""
    if high is None:
        return f"at least {rate(low)}"
    if high - low <= 0.005 * high:
        return rate(high)
    return (
        f"{format_bandwidth(low, 3)} to {format_bandwidth(high, 3)} "
        f"({format_bit_rate(low, 3)} to {format_bit_rate(high, 3)})"
    )


def percent(fraction: float) -> str:
    """A share with two digits: ``4.4 %``, ``62 %``, ``114 %``; ``under 0.01 %`` where the digits say nothing."""
    if 0 < fraction < 1e-4:
        return "under 0.01 %"
    return f"{significant(100 * fraction, 2)} %"


def percents(low: float, high: float | None) -> str:
    """A bracket of shares."""
    if high is None:
        return f"at least {percent(low)}"
    one, two = percent(low), percent(high)
    return one if one == two else f"{one[:-2]} to {two}"


def times(ratio: float) -> str:
    """A ratio: ``2.27x``."""
    return f"{significant(ratio, 3)}x"


def plural(number: int, noun: str) -> str:
    """``1 rank``, ``8 ranks``, ``2 micro-batches``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def nearest_port(low: float, high: float) -> float | None:
    """The port speed, Gb/s, that a bracket of bytes/s fits: it reaches 80 to 100 % of that speed.

    None also where the bracket is too wide to tell.
    """
    if high > 1.6 * low:
        return None
    for port in ETHERNET_GBIT_S:
        speed = port * GB / 8
        if low <= speed and high >= 0.8 * speed:
            return port
    return None


def report(
    title: str, rows: list[tuple[str, str]], verdict: Verdict, notes: tuple[str, ...] = (), question: str = ""
) -> str:
    """The lines of a diagnosis: a title, a table, what to answer first, the verdict, what to check, and notes."""
    width = max([len(label) for label, _ in rows]) if rows else 0
    lines = [title]
    lines += ["  " + label + " " * (width - len(label) + 2) + value for label, value in rows]
    if question:
        lines.append("First: " + question)
    lines.append("Verdict: " + verdict.text)
    if verdict.checks:
        lines.append("Check next:")
        lines += [f"  {place + 1}. {verdict.checks[place]}" for place in range(len(verdict.checks))]
    lines += ["Note: " + note for note in notes]
    return "\n".join(lines)
