"""Units: SI in code (bytes, bytes/s, seconds, FLOP); this module reads and writes them for people.

GB is 10**9 bytes, GiB is 2**30 bytes, Gb/s is 10**9 bits per second: they are never mixed silently.
Text that could be bits or bytes is refused with a message that shows both readings.
"""

from __future__ import annotations

from shardlab.checks import non_negative

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MS, US = 1e-3, 1e-6

_SIZES = {
    "B": 1.0,
    "kB": KB,
    "KB": KB,
    "MB": MB,
    "GB": GB,
    "TB": TB,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
}
_BITS = {"b": 1 / 8, "kb": KB / 8, "Mb": MB / 8, "Gb": GB / 8, "Tb": TB / 8}
_BITS.update({"bit": 1 / 8, "kbit": KB / 8, "Mbit": MB / 8, "Gbit": GB / 8, "Tbit": TB / 8})
_TIMES = {
    "s": 1.0,
    "ms": MS,
    "us": US,
    "µs": US,
    "μs": US,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_COUNTS.update({"m": 1e6, "b": 1e9})  # as in a model's name, "7b": nothing else is counted in them

_SIZE_EXAMPLES = "'25 MiB', '1 GB'"
_RATE_EXAMPLES = "'100 Gb/s' (bits), '12.5 GB/s' (bytes), '8x400 Gb/s'"
_TIME_EXAMPLES = "'10 us', '100 ms', '1.5 s'"
_COUNT_EXAMPLES = "'110M', '7B', '1.3e9'"


def _split(name: str, text: object, examples: str) -> tuple[float, str]:
    """The number and the unit of ``text``, whatever the unit is."""
    if not isinstance(text, str):
        raise ValueError(f"{name} must be text, a number and a unit such as {examples}, not {text!r}")
    stripped = text.strip()
    end = len(stripped)
    while end > 0 and stripped[end - 1] not in "0123456789.":
        end -= 1
    try:
        number = float(stripped[:end].replace("_", ""))
    except ValueError:
        raise ValueError(f"{name} must be a number and a unit such as {examples}, not {text!r}") from None
    return number, stripped[end:].strip()


def _refuse(name: str, text: object, why: str, examples: str) -> ValueError:
    return ValueError(f"{name} {text!r}: {why}. For example {examples}.")


def _either(number: float, prefix: str) -> str:
    """Both readings of an amount whose unit may be bits or bytes, as rates."""
    return (
        f"'{number:g} {prefix}b/s' is bits ({number / 8:g} {prefix}B/s), "
        f"'{number:g} {prefix}B/s' is bytes ({number * 8:g} {prefix}b/s)"
    )


def parse_bytes(text: str, name: str = "size") -> float:
    """Bytes from text such as ``'1 GB'`` or ``'25 MiB'``; bits are refused.

    Raises:
        ValueError: no number, an unknown unit, or a unit of bits or of bandwidth; the message names ``name``.
    """
    number, unit = _split(name, text, _SIZE_EXAMPLES)
    if unit in _SIZES:
        return non_negative(name, number * _SIZES[unit], "bytes")
    if unit in _BITS:
        size = format_bytes(number * _BITS[unit])
        why = f"'{unit}' is bits and sizes here are bytes; {number:g} {unit} is {size}"
        raise _refuse(name, text, why, _SIZE_EXAMPLES)
    if unit.endswith(("/s", "ps")):
        raise _refuse(name, text, f"'{unit}' is a bandwidth, not a size", _SIZE_EXAMPLES)
    if unit in ("mb", "gb", "tb"):
        why = f"'{unit}' could be bits or bytes: '{unit[0].upper()}B' is bytes, '{unit[0].upper()}b' is bits"
        raise _refuse(name, text, why, _SIZE_EXAMPLES)
    why = "the unit must be one of B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
    raise _refuse(name, text, why, _SIZE_EXAMPLES)


def _rate_base(unit: str) -> str:
    """What a rate counts per second, spelled as in the tables (``'Gb'``, ``'GB'``), or '' if ``unit`` is no rate."""
    for ending in ("/sec", "/s", "ps"):
        if unit.endswith(ending):
            base = unit[: -len(ending)].strip()
            break
    else:
        return ""
    # Spelled-out units say what they are whatever their case: GBit/s is bits, Gbyte/s is bytes.
    low = base.lower()
    for word, letter in (("bits", "b"), ("bit", "b"), ("bytes", "B"), ("byte", "B")):
        if low.endswith(word):
            base = base[: -len(word)] + letter
            break
    return "kb" if base == "Kb" else base


def _rate_trouble(number: float, unit: str) -> str:
    """Why ``unit`` is no bandwidth, with both readings where bits and bytes are easily confused."""
    low = unit.lower()
    if low.startswith("gt/s"):
        return (
            "GT/s counts transfers of one PCIe lane, not bytes; PCIe 3.0, 4.0 and 5.0 x16 carry about "
            "15.8, 31.5 and 63 GB/s per direction"
        )
    if unit in _SIZES or unit in _BITS:
        return f"'{unit}' is an amount, and a bandwidth is per second: {_either(number, unit[:-1].replace('i', ''))}"
    for ending in ("/sec", "/s", "ps"):
        if low.endswith(ending) and low[: -len(ending)].strip() in ("kb", "mb", "gb", "tb"):
            return f"'{unit}' could be bits or bytes: {_either(number, low[0].upper())}"
    return "the unit must be one of b/s, kb/s, Mb/s, Gb/s, Tb/s (bits) or B/s, kB/s, MB/s, GB/s, TB/s (bytes)"


def _read_rate(text: object, name: str) -> tuple[float, bool]:
    """Bytes/s of ``text``, and whether it was written in bits."""
    links, each = 1.0, text
    if isinstance(text, str):
        parts = text.replace("×", "x").split("x")
        if len(parts) == 2 and parts[0].strip().isdigit():
            links, each = float(parts[0]), parts[1]
    number, unit = _split(name, each, _RATE_EXAMPLES)
    base = _rate_base(unit)
    if base in _SIZES:
        return non_negative(name, links * number * _SIZES[base], "bytes/s"), False
    if base in _BITS:
        return non_negative(name, links * number * _BITS[base], "bytes/s"), True
    raise _refuse(name, text, _rate_trouble(number, unit), _RATE_EXAMPLES)


def parse_bandwidth(text: str, name: str = "bandwidth") -> float:
    """Bytes per second from text: ``'10 GB/s'`` is bytes, ``'100 Gb/s'``, ``'100 Gbit/s'`` and ``'100 Gbps'`` are bits.

    ``'8x400 Gb/s'`` is eight links of 400 Gb/s together.

    Raises:
        ValueError: no number, an unknown unit, a size without ``/s``, or a unit that could be bits or bytes
            (``'10 gb/s'``); the message shows both readings.
    """
    return _read_rate(text, name)[0]


def written_in_bits(text: str) -> bool:
    """Whether a bandwidth's text counts bits (``'100 Gb/s'``) rather than bytes (``'12.5 GB/s'``)."""
    return _read_rate(text, "bandwidth")[1]


def parse_time(text: str, name: str = "time") -> float:
    """Seconds from text such as ``'10 us'`` or ``'100 ms'``.

    Raises:
        ValueError: no number or an unknown unit; the message names ``name``.
    """
    number, unit = _split(name, text, _TIME_EXAMPLES)
    if unit not in _TIMES:
        raise _refuse(name, text, "the unit must be one of s, ms, us (or µs), ns, min, h, d", _TIME_EXAMPLES)
    return non_negative(name, number * _TIMES[unit], "seconds")


def parse_count(text: str, name: str = "count") -> float:
    """A count, of parameters or tokens, from text: ``'110M'``, ``'7B'`` or ``'7e9'``; B and G are both 10**9.

    Raises:
        ValueError: no number or an unknown suffix; the message names ``name``.
    """
    number, unit = _split(name, text, _COUNT_EXAMPLES)
    if unit not in _COUNTS:
        why = "a count has no unit, only k, M, B (or G) or T for thousand to trillion"
        raise _refuse(name, text, why, _COUNT_EXAMPLES)
    return non_negative(name, number * _COUNTS[unit])


def significant(value: float, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits, large ones never as a power of ten: 994 in two digits is 994.

    Halves round away from zero. CPython would round them to even and MicroPython up, and the page shows both.
    """
    nudged = value * (1 + 1e-12)
    text = f"{nudged:.{digits}g}"
    return text if "e" not in text or abs(value) < 1 else f"{nudged:.0f}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    # What would round to 1000 of a unit is written as 1 of the next.
    size = abs(value) / (1 - 0.5 * 10.0**-digits)
    for factor, name in steps:
        if size >= factor:
            return f"{significant(value / factor, digits)} {name}"
    factor, name = steps[-1]
    return f"{significant(value / factor, digits)} {name}"


def format_bytes(n_bytes: float, digits: int = 4) -> str:
    """Bytes as decimal text (kB, MB, GB, TB)."""
    return _scaled(n_bytes, ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"), (1.0, "B")), digits)


def format_binary_bytes(n_bytes: float, digits: int = 4) -> str:
    """Bytes as binary text (KiB, MiB, GiB, TiB), as PyTorch and nvidia-smi count memory."""
    return _scaled(n_bytes, ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B")), digits)


def format_bandwidth(bytes_per_s: float, digits: int = 4) -> str:
    """Bytes per second as decimal text (MB/s, GB/s)."""
    return format_bytes(bytes_per_s, digits) + "/s"


def format_bit_rate(bytes_per_s: float, digits: int = 4) -> str:
    """Bytes per second written in bits, as networks are sold: 12.5e9 is ``'100 Gb/s'``."""
    steps = ((TB, "Tb/s"), (GB, "Gb/s"), (MB, "Mb/s"), (KB, "kb/s"), (1.0, "b/s"))
    return _scaled(8 * bytes_per_s, steps, digits)


def format_time(seconds: float, digits: int = 4) -> str:
    """Seconds as text with the unit that suits the size (ns to days)."""
    if seconds == 0:
        return "0 s"
    return _scaled(
        seconds, ((86400.0, "d"), (3600.0, "h"), (1.0, "s"), (MS, "ms"), (US, "µs"), (1e-9, "ns")), digits
    )
