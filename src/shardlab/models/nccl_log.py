"""Reads what nccl-tests (and rccl-tests) print, from text that someone pasted: tables, headers, launcher prefixes.

``parse(text)`` gives sizes, times and bandwidths in SI, recomputes the bandwidths from the times, and says what in
the log should not be trusted. It opens no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardlab.checks import count
from shardlab.models.collectives import COLLECTIVES, algbw, busbw, busbw_factor
from shardlab.models.fit import Sample, sample
from shardlab.units import format_bandwidth, format_bytes, format_time

_PROGRAMS = (
    ("all_reduce_perf", "all-reduce"),
    ("reduce_scatter_perf", "reduce-scatter"),
    ("all_gather_perf", "all-gather"),
    ("alltoall_perf", "all-to-all"),
    ("broadcast_perf", "broadcast"),
    ("reduce_perf", "reduce"),
)
_OTHER_PROGRAMS = ("sendrecv_perf", "gather_perf", "scatter_perf", "hypercube_perf", "alltoallv_perf")
# Times are printed with about four digits: bandwidths recomputed from them differ in the last one.
_ROUNDING = 0.02


_LEADING = ("size", "count", "type", "redop", "root")
_TYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "half",
    "float",
    "double",
    "bfloat16",
    "f8e4m3",
    "f8e5m2",
    "fp8_e4m3",
    "fp8_e5m2",
)

if TYPE_CHECKING:
    _Measured = tuple[int, str, list[list[float | None]]]


@dataclass(frozen=True)
class Timing:
    """One measurement of a row: seconds, bytes/s, and the number of wrong elements (None if not checked)."""

    time_s: float
    algbw: float
    busbw: float
    n_wrong: int | None


@dataclass(frozen=True)
class Row:
    """One size of the table.

    Attributes:
        n_bytes: buffer size as nccl-tests defines it (whole output of an all-gather, input of a reduce-scatter).
        dtype: element type as printed.
        out_of_place, in_place: the two measurements; either may be missing.
    """

    n_bytes: int
    dtype: str
    out_of_place: Timing | None
    in_place: Timing | None

    @property
    def best(self) -> Timing:
        """The faster of the two measurements."""
        timings = [timing for timing in (self.out_of_place, self.in_place) if timing is not None]
        return timings[-1] if timings[-1].time_s < timings[0].time_s else timings[0]


@dataclass(frozen=True)
class NcclLog:
    """A parsed benchmark.

    Attributes:
        collective: as in :data:`shardlab.models.collectives.COLLECTIVES`.
        n_ranks: ranks of one communicator.
        n_nodes: hosts, or None if the log does not name them.
        rows: by size, rising.
        average_busbw: the last line's average over all sizes, bytes/s, or None. It mixes latency-bound sizes with
            bandwidth-bound ones and is no speed of anything.
        warnings: what the reader should know before trusting the numbers.
    """

    collective: str
    n_ranks: int
    n_nodes: int | None
    rows: list[Row]
    average_busbw: float | None
    warnings: list[str]

    @property
    def peak_busbw(self) -> float:
        """The highest bus bandwidth of any size, bytes/s."""
        return max([row.best.busbw for row in self.rows])

    @property
    def least_time_s(self) -> float:
        """The shortest time of any size: what the latency alone costs, if small sizes were measured."""
        return min([row.best.time_s for row in self.rows])

    def time_s(self, n_bytes: float) -> float:
        """Seconds for a buffer of ``n_bytes``: between rows a straight line, beyond the largest its bandwidth.

        Below the smallest row it is that row's time, since latency does not shrink with the buffer.
        """
        rows = self.rows
        if n_bytes <= rows[0].n_bytes:
            return rows[0].best.time_s
        for place in range(1, len(rows)):
            lower, upper = rows[place - 1], rows[place]
            if n_bytes <= upper.n_bytes:
                along = (n_bytes - lower.n_bytes) / (upper.n_bytes - lower.n_bytes)
                return lower.best.time_s + along * (upper.best.time_s - lower.best.time_s)
        return rows[-1].best.time_s * n_bytes / rows[-1].n_bytes

    def samples(self, algorithm: str = "ring") -> list[Sample]:
        """The rows as samples for :func:`shardlab.models.fit.fit_link`, assuming an algorithm (the log names none)."""
        if self.n_ranks < 2:
            return []
        return [
            sample(row.n_bytes, row.best.time_s, self.n_ranks, self.collective, algorithm)
            for row in self.rows
        ]

    def text(self) -> str:
        """The table in a few lines for people."""
        where = f" on {self.n_nodes} node{'s' if self.n_nodes != 1 else ''}" if self.n_nodes else ""
        title = f"{self.collective}, {self.n_ranks} rank{'s' if self.n_ranks != 1 else ''}{where}"
        lines = [
            f"  {format_bytes(row.n_bytes)}: {format_time(row.best.time_s)}, "
            f"algbw {format_bandwidth(row.best.algbw)}, busbw {format_bandwidth(row.best.busbw)}"
            for row in self.rows
        ]
        return "\n".join([title] + lines + ["warning: " + warning for warning in self.warnings])


def parse(text: str, collective: str | None = None, n_ranks: int | None = None) -> NcclLog:
    """Read one run of an nccl-tests program.

    Args:
        text: what it printed; launcher prefixes (``[1,0]<stdout>:``, ``0:``) and other lines are skipped.
        collective: needed if the text does not name the program.
        n_ranks: needed if the text lists no devices; overrides them if given.

    Raises:
        ValueError: no text, no table rows, several programs in one text, or nothing that tells collective or ranks.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"text must be the output of an nccl-tests program, not {text!r}")
    warnings: list[str] = []
    lines = [_without_prefix(line) for line in text.splitlines()]
    if len(split_runs(text)) > 1 and n_ranks is None and not _all_rank_zero(lines):
        raise ValueError(
            "text must hold one run, and it holds several: parse the parts of split_runs(text) one by one"
        )
    measured = _rows(lines, _columns(lines))
    if not measured:
        raise ValueError(
            "text must contain the table of an nccl-tests program (size, count, type, ..., time, algbw, busbw), "
            "and no such row was found; its JSON output is not read"
        )
    kind = _collective(text, collective, measured)
    ranks, nodes = _ranks(lines, n_ranks, measured, kind, warnings)
    rows = _checked_rows(measured, kind, ranks, warnings)
    _check_results(lines, rows, warnings)
    return NcclLog(
        collective=kind,
        n_ranks=ranks,
        n_nodes=nodes,
        rows=rows,
        average_busbw=_average(lines),
        warnings=warnings,
    )


def split_runs(text: str) -> list[str]:
    """The text cut into one part per run of a program: at each line that starts a run's header."""
    lines = text.splitlines()
    starts = []
    for place in range(len(lines)):
        if "nThread" in lines[place]:
            first = place
            while first > 0 and ("-tests version" in lines[first - 1] or "test starting" in lines[first - 1]):
                first -= 1
            starts.append(first)
    if len(starts) < 2:
        return [text]
    # What stands before the first header, such as the command line, belongs to the first run.
    starts[0] = 0
    starts.append(len(lines))
    return ["\n".join(lines[starts[run] : starts[run + 1]]) for run in range(len(starts) - 1)]


def _rank_of(line: str) -> int | None:
    """The rank in a line of the device list, or None."""
    words = line.replace("#", " ").split()
    if len(words) > 6 and words[0] == "Rank" and words[1].isdigit() and "Pid" in words and "on" in words:
        return int(words[1])
    return None


def _all_rank_zero(lines: list[str]) -> bool:
    """Whether every process took itself for rank 0, as builds without MPI do."""
    ranks = [_rank_of(line) for line in lines]
    listed = [rank for rank in ranks if rank is not None]
    return len(listed) > 1 and max(listed) == 0


def _without_prefix(line: str) -> str:
    """The line without what mpirun (``[1,0]<stdout>:``) or srun (``0: ``) puts before it."""
    stripped = line.strip()
    if stripped.startswith("[") and ">:" in stripped:
        return stripped[stripped.find(">:") + 2 :].strip()
    label = stripped.find(":")
    if 0 < label <= 5 and stripped[:label].isdigit():
        return stripped[label + 1 :].strip()
    return stripped


def _columns(lines: list[str]) -> list[str]:
    """The names of the columns after type, reduction and root: ``time algbw busbw wrong`` once per measurement."""
    for line in lines:
        words = line.replace("#wrong", "wrong").replace("#", " ").split()
        if "size" in words and "busbw" in words and words[words.index("size") + 1 :][:1] == ["count"]:
            return [word for word in words[words.index("size") :] if word not in _LEADING]
    return ["time", "algbw", "busbw", "wrong"] * 2


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _rows(lines: list[str], columns: list[str]) -> list[_Measured]:
    """``(bytes, type, [[time, algbw, busbw, wrong], ...])`` of every line that is a row of the table."""
    rows = []
    for line in lines:
        words = line.split()
        start = _row_start(words)
        if start is None:
            continue
        numbers = words[start + 3 :]
        # The reduction ("sum", "none") is blank in old versions, and so is the root.
        if numbers and _number(numbers[0]) is None:
            numbers = numbers[1:]
        if len(numbers) % len(columns) == 1 or len(numbers) % 4 == 1:
            numbers = numbers[1:]
        groups: list[list[float | None]] = []
        for place in range(min(len(numbers), len(columns))):
            if columns[place] in ("time", "cputime"):
                groups.append([])
            if groups and len(groups[-1]) < 4:
                groups[-1].append(_number(numbers[place]))
        groups = [group for group in groups if len(group) >= 3 and None not in group[:3]]
        if groups and int(words[start]) > 0:
            rows.append((int(words[start]), words[start + 2], groups))
    return rows


def _row_start(words: list[str]) -> int | None:
    """Where a row begins, after whatever a launcher put before it: two whole numbers, then the name of a type."""
    for place in range(len(words) - 5):
        if words[place].isdigit() and words[place + 1].isdigit() and words[place + 2] in _TYPES:
            return place
    return None


def _collective(text: str, given: str | None, rows: list[_Measured]) -> str:
    named = []
    for program, kind in _PROGRAMS:
        # "reduce_perf" is part of "all_reduce_perf": look at what stands before it.
        start = text.find(program)
        while start >= 0:
            if text[start - 1 : start] not in ("_", "l") and kind not in named:
                named.append(kind)
            start = text.find(program, start + 1)
    if given is not None:
        if given not in COLLECTIVES:
            raise ValueError(f"collective must be one of {', '.join(COLLECTIVES)}, not {given!r}")
        return given
    if len(named) > 1:
        raise ValueError(
            f"text must hold the output of one program, and it names {', '.join(named)}: parse them one by one, or "
            "say which it is with collective="
        )
    if named:
        return named[0]
    for program in _OTHER_PROGRAMS:
        if program in text:
            raise ValueError(f"text is the output of {program}, which is none of {', '.join(COLLECTIVES)}")
    # Only an all-reduce has a bus bandwidth above its algorithm bandwidth.
    largest = rows[-1][2][0]
    if largest[1] and largest[2] and largest[2] > largest[1] * (1 + _ROUNDING):
        return "all-reduce"
    raise ValueError(
        "text does not name the program that was run: say which collective it is with "
        f"collective= one of {', '.join(COLLECTIVES)}"
    )


def _ranks(
    lines: list[str],
    given: int | None,
    rows: list[_Measured],
    collective: str,
    warnings: list[str],
) -> tuple[int, int | None]:
    ranks: list[int] = []
    hosts: list[str] = []
    for line in lines:
        rank = _rank_of(line)
        if rank is not None:
            words = line.split()
            ranks.append(rank)
            host = words[words.index("on") + 1]
            if host not in hosts:
                hosts.append(host)
    nodes = len(hosts) if hosts else None
    if given is not None:
        return count("n_ranks", given), nodes
    if ranks:
        distinct = max(ranks) + 1
        if len(ranks) > distinct:
            warnings.append(
                f"{len(ranks)} devices are listed but only {distinct} different rank"
                f"{'s' if distinct != 1 else ''}: the processes ran side by side, each for itself, and did not "
                "communicate. Build nccl-tests with MPI=1"
            )
        return distinct, nodes
    inferred = _ranks_from_ratio(rows, collective)
    if inferred is None:
        raise ValueError("text lists no devices: say how many ranks ran with n_ranks=")
    warnings.append(f"no devices are listed; {inferred} ranks follow from busbw / algbw")
    return inferred, None


def _ranks_from_ratio(rows: list[_Measured], collective: str) -> int | None:
    """n from busbw/algbw = 2(n-1)/n or (n-1)/n of the largest size, if the printed digits allow only one n."""
    if collective in ("broadcast", "reduce"):
        return None
    group = rows[-1][2][0]
    algorithm_rate, bus_rate = group[1], group[2]
    if not algorithm_rate or not bus_rate:
        return None
    found = []
    for ranks in range(1, 4097):
        # Both rates are rounded to two decimals.
        slack = 0.006 / algorithm_rate + 0.006 / bus_rate
        factor = busbw_factor(collective, ranks)
        if abs(bus_rate / algorithm_rate - factor) <= slack * factor:
            found.append(ranks)
    return found[0] if len(found) == 1 else None


def _timing(group: list[float | None], n_bytes: int, collective: str, ranks: int) -> Timing | None:
    microseconds = group[0]
    if microseconds is None or microseconds <= 0:
        return None
    wrong = group[3] if len(group) > 3 else None
    seconds = microseconds * 1e-6
    return Timing(
        time_s=seconds,
        algbw=algbw(n_bytes, seconds),
        busbw=busbw(collective, n_bytes, seconds, ranks),
        n_wrong=None if wrong is None else int(wrong),
    )


def _checked_rows(measured: list[_Measured], collective: str, ranks: int, warnings: list[str]) -> list[Row]:
    """Rows by size, with bandwidths recomputed from the times and held against the printed ones."""
    by_size: dict[int, Row] = {}
    repeated = odd_size = odd_factor = 0
    for n_bytes, dtype, groups in measured:
        timings = [_timing(group, n_bytes, collective, ranks) for group in groups]
        if timings[0] is None and (len(timings) < 2 or timings[1] is None):
            continue
        for timing, group in zip(timings, groups):
            if timing is None:
                continue
            # Small rates are printed with too few digits to compare.
            if group[1] and group[1] >= 1 and abs(timing.algbw / 1e9 / group[1] - 1) > _ROUNDING:
                odd_size = odd_size or n_bytes
            if group[2] and group[2] >= 1 and abs(timing.busbw / 1e9 / group[2] - 1) > _ROUNDING:
                odd_factor = odd_factor or n_bytes
        row = Row(
            n_bytes=n_bytes,
            dtype=dtype,
            out_of_place=timings[0],
            in_place=timings[1] if len(timings) > 1 else None,
        )
        if n_bytes in by_size:
            repeated += 1
            if by_size[n_bytes].best.time_s <= row.best.time_s:
                continue
        by_size[n_bytes] = row
    if not by_size:
        raise ValueError("text must contain rows with a time above 0, and none has")
    if repeated:
        warnings.append(f"{repeated} sizes appear more than once: the fastest is kept")
    if odd_size:
        warnings.append(
            f"the printed algbw is not size over time (at {format_bytes(odd_size)}): times may be in another unit, or "
            "the size may be per rank. The numbers here are recomputed from size and time in microseconds"
        )
    elif odd_factor:
        warnings.append(
            f"the printed busbw is not that of a {collective} on {ranks} ranks (at {format_bytes(odd_factor)}). "
            "The numbers here are recomputed"
        )
    return [by_size[n_bytes] for n_bytes in sorted(by_size)]


def _check_results(lines: list[str], rows: list[Row], warnings: list[str]) -> None:
    wrong = 0
    for row in rows:
        for timing in (row.out_of_place, row.in_place):
            if timing is not None and timing.n_wrong:
                wrong += 1
    failed = [line for line in lines if "Out of bounds values" in line and "OK" not in line]
    if wrong or failed:
        warnings.append(
            "some results are WRONG: the link or the library corrupts data; the speeds mean nothing"
        )
    if rows[-1].n_bytes < 64 * 2**20:
        warnings.append(
            f"the largest buffer is {format_bytes(rows[-1].n_bytes)}: too small to see the bandwidth; run up to 1 GiB or more"
        )


def _average(lines: list[str]) -> float | None:
    for line in lines:
        if "Avg bus bandwidth" in line:
            value = _number(line[line.rfind(":") + 1 :].strip().split(" ")[0])
            return None if value is None else value * 1e9
    return None
