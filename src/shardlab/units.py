"""Units: SI in code (bytes, bytes/s, seconds, FLOP); this module reads and writes them for people.

GB is 10**9 bytes, GiB is 2**30 bytes, Gb/s is 10**9 bits per second: they are never mixed silently.
"""

from __future__ import annotations

from shardlab.checks import non_negative

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MS, US = 1e-3, 1e-6

_SIZES = {"B": 1.0, "kB": KB, "KB": KB, "MB": MB, "GB": GB, "TB": TB, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_BIT_RATES = {"b/s": 1 / 8, "kb/s": KB / 8, "Mb/s": MB / 8, "Gb/s": GB / 8, "Tb/s": TB / 8}
_BIT_RATES.update({"bit/s": 1 / 8, "kbit/s": KB / 8, "Mbit/s": MB / 8, "Gbit/s": GB / 8, "Tbit/s": TB / 8})
_TIMES = {"s": 1.0, "ms": MS, "us": US, "µs": US, "μs": US, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _split(text: str) -> tuple[float, str]:
    stripped = text.strip()
    end = len(stripped)
    while end > 0 and stripped[end - 1] not in "0123456789.":
        end -= 1
    try:
        return float(stripped[:end].replace("_", "")), stripped[end:].strip()
    except ValueError:
        raise ValueError(f"text must be a number and a unit, such as '10 GB', not {text!r}") from None


def _parse(name: str, text: str, table: dict[str, float], example: str) -> float:
    number, unit = _split(text)
    if unit not in table:
        raise ValueError(f"{name} must end in one of {', '.join(table)} (for example {example!r}), not {text!r}")
    return non_negative(name, number * table[unit])


def parse_bytes(text: str) -> float:
    """Bytes from text such as ``'1 GB'`` or ``'25 MiB'``; bits are refused."""
    return _parse("size", text, _SIZES, "1 GB")


def parse_bandwidth(text: str) -> float:
    """Bytes per second from text: ``'10 GB/s'`` is bytes, ``'100 Gb/s'`` and ``'100 Gbit/s'`` are bits."""
    table = {unit + "/s": factor for unit, factor in _SIZES.items()}
    table.update(_BIT_RATES)
    return _parse("bandwidth", text, table, "100 Gb/s")


def parse_time(text: str) -> float:
    """Seconds from text such as ``'10 us'`` or ``'100 ms'``."""
    return _parse("time", text, _TIMES, "100 ms")


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    size = abs(value)
    for factor, name in steps:
        if size >= factor * 0.9995:
            return f"{value / factor:.{digits}g} {name}" if size < 1e3 * factor else f"{value / factor:.0f} {name}"
    factor, name = steps[-1]
    return f"{value / factor:.{digits}g} {name}"


def format_bytes(n_bytes: float, digits: int = 4) -> str:
    """Bytes as decimal text (kB, MB, GB, TB)."""
    return _scaled(n_bytes, ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"), (1.0, "B")), digits)


def format_bandwidth(bytes_per_s: float, digits: int = 4) -> str:
    """Bytes per second as decimal text (MB/s, GB/s)."""
    return format_bytes(bytes_per_s, digits) + "/s"


def format_time(seconds: float, digits: int = 4) -> str:
    """Seconds as text with the unit that suits the size (ns to days)."""
    return _scaled(seconds, ((86400.0, "d"), (3600.0, "h"), (1.0, "s"), (MS, "ms"), (US, "µs"), (1e-9, "ns")), digits)
