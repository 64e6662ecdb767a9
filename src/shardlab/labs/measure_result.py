"""What ``shardlab measure`` found: times by size, the link behind them, matrix products, copies; shown and kept.

The file that ``--json`` writes is a :class:`MeasuredCluster`; :mod:`shardlab.measured_cluster` reads it for
``shardlab plan`` and ``diagnose``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

from shardlab.checks import choice, count, non_negative, positive
from shardlab.labs.result import LabRun, ranks_words
from shardlab.labs.sent import SENT_COLUMNS, Sent, reading_words
from shardlab.labs.table import Table
from shardlab.models import collectives as models
from shardlab.models.diagnose_common import plural
from shardlab.models.fit import GOOD_MAX_ERROR, GOOD_RMS_ERROR, VISIBLE_SHARE, LinkFit, fit_link, sample
from shardlab.units import format_bandwidth, format_bit_rate, format_bytes, format_time, significant

SCHEMA = 1
POINT_TO_POINT = "point-to-point"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", POINT_TO_POINT)
SCOPES = {
    "node": "inside a node",
    "across": "across nodes, one rank of each",
    "all": "over all ranks",
}
DTYPES = ("bf16", "fp32")
# Sent once from one rank to another: what a broadcast to one other rank costs.
_AS_MODELLED = {
    "all-to-all": ("all-to-all", "direct"),
    POINT_TO_POINT: ("broadcast", "binomial tree"),
}
# A slower device than this, against the middle one, is worth a sentence.
_SLOW_DEVICE = 1.05
# From this much more on the wire than the formula has, the library runs another algorithm.
_OTHER_ALGORITHM = 1.2


@dataclass(frozen=True)
class Timing:
    """One collective at one size; of each repeat the slowest rank of all groups counts.

    Attributes:
        scope: one of :data:`SCOPES`. collective: one of :data:`COLLECTIVES`. ranks: of one group.
        n_bytes: the buffer as nccl-tests counts it: the whole output of an all-gather, the whole input of a
            reduce-scatter, all that one rank sends in an all-to-all (its own part too), one message.
        seconds: median of the repeats. low_s, high_s: their quartiles.
        repeats: how many. calls: calls in a row in each, of which the mean was taken.
        correct: whether a call on known numbers gave the right result afterwards, on every rank.
    """

    scope: str
    collective: str
    ranks: int
    n_bytes: int
    seconds: float
    low_s: float
    high_s: float
    repeats: int
    calls: int
    correct: bool

    def __post_init__(self) -> None:
        _check_row(self)
        for name in ("seconds", "low_s", "high_s"):
            positive(name, getattr(self, name), "seconds")
        count("repeats", self.repeats)
        count("calls", self.calls)

    @property
    def algbw(self) -> float:
        """Size over time, bytes/s."""
        return models.algbw(self.n_bytes, self.seconds)

    @property
    def busbw(self) -> float:
        """What compares with a link, bytes/s: as nccl-tests defines it; of a message, its :attr:`algbw`."""
        if self.collective == POINT_TO_POINT:
            return self.algbw
        return models.busbw(self.collective, self.n_bytes, self.seconds, self.ranks)


@dataclass(frozen=True)
class LeftOut:
    """A size that would have taken too long; fields as in :class:`Timing`."""

    scope: str
    collective: str
    ranks: int
    n_bytes: int

    def __post_init__(self) -> None:
        _check_row(self)


def _check_row(row: Timing | LeftOut) -> None:
    choice("scope", row.scope, tuple(SCOPES))
    choice("collective", row.collective, COLLECTIVES)
    count("ranks", row.ranks, least=2)
    count("n_bytes", row.n_bytes)


@dataclass(frozen=True)
class Wire:
    """What each rank sends in one call of a collective over the widest scope, beside the textbook's bytes.

    Attributes:
        collective, n_bytes: as in :class:`Timing`.
        sent: predicted, and by the kernel's count.
    """

    collective: str
    n_bytes: int
    sent: Sent

    def __post_init__(self) -> None:
        choice("collective", self.collective, COLLECTIVES)
        count("n_bytes", self.n_bytes)


@dataclass(frozen=True, kw_only=True)
class OnDevices:
    """Median seconds of something that every rank did at the same time, by itself.

    Attributes:
        slowest_s, slowest_rank: of the slowest rank. middle_s: of the middle one. fastest_s: of the fastest.
    """

    slowest_s: float
    slowest_rank: int
    middle_s: float
    fastest_s: float

    def __post_init__(self) -> None:
        for name in ("slowest_s", "middle_s", "fastest_s"):
            positive(name, getattr(self, name), "seconds")
        count("slowest_rank", self.slowest_rank, least=0)


@dataclass(frozen=True, kw_only=True)
class Product(OnDevices):
    """A matrix product of ``[m, k]`` by ``[k, n]``; ``dtype`` is one of :data:`DTYPES` (fp32 without TF32)."""

    dtype: str
    m: int
    k: int
    n: int

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("dtype", self.dtype, DTYPES)
        for name in ("m", "k", "n"):
            count(name, getattr(self, name))

    @property
    def flops(self) -> float:
        """FLOP/s of the slowest rank: in training all wait for it."""
        return 2.0 * self.m * self.k * self.n / self.slowest_s


@dataclass(frozen=True, kw_only=True)
class Copy(OnDevices):
    """A copy of ``n_bytes`` within the device's memory."""

    n_bytes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        count("n_bytes", self.n_bytes)

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the slowest rank, read and written bytes both counted."""
        return 2.0 * self.n_bytes / self.slowest_s


@dataclass(frozen=True)
class Device:
    """What a rank computes on.

    Attributes:
        name: of rank 0's GPU, or of its processor.
        kind: ``"cuda"`` or ``"cpu"``.
        memory_bytes: of the GPU, or of the machine; 0 if unknown.
        others: names of other ranks' devices, if they differ.
        gpus_seen: GPUs that rank 0 could see, used or not.
    """

    name: str
    kind: str
    memory_bytes: float
    others: tuple[str, ...]
    gpus_seen: int

    def __post_init__(self) -> None:
        choice("kind", self.kind, ("cpu", "cuda"))
        non_negative("memory_bytes", self.memory_bytes, "bytes")
        count("gpus_seen", self.gpus_seen, least=0)


@dataclass(frozen=True)
class Software:
    """Versions beside those of the stamp (None on CPUs), and the environment's settings of the network libraries."""

    cuda: str | None
    nccl: str | None
    settings: Mapping[str, str]


@dataclass(frozen=True)
class LinkNumbers:
    """A link for the cost models, from the times of one collective in one scope.

    Attributes:
        scope, collective: what was measured. ranks: of one group.
        fixed_s: what one call costs whatever its size, seconds; None if the sizes don't show it.
        bandwidth: bytes/s per rank and direction; None if the sizes don't show it.
        how: where both are from, in words.
    """

    scope: str
    collective: str
    ranks: int
    fixed_s: float | None
    bandwidth: float | None
    how: str


@dataclass(frozen=True, kw_only=True)
class MeasuredCluster(LabRun):
    """A finished measurement.

    Attributes:
        time: when it ended, ISO 8601 (UTC).
        ranks, nodes: of the run. ranks_per_node: on each node; None if the nodes differ.
        device, software: what ran.
        timings: every collective, by scope and size. left_out: sizes that would have taken too long.
        wire: bytes by the kernel's count; empty where it can't count.
        matmul, copy: one device by itself, all at work.
    """

    lab: ClassVar[str] = "measure"

    time: str
    ranks: int
    nodes: int
    ranks_per_node: int | None
    device: Device
    software: Software
    timings: tuple[Timing, ...]
    left_out: tuple[LeftOut, ...]
    wire: tuple[Wire, ...]
    matmul: tuple[Product, ...]
    copy: tuple[Copy, ...]

    def __post_init__(self) -> None:
        choice("backend", self.backend, ("gloo", "nccl"))
        count("ranks", self.ranks)
        count("nodes", self.nodes, most=self.ranks)
        if self.ranks_per_node is not None and self.ranks_per_node * self.nodes != self.ranks:
            raise ValueError(
                f"ranks_per_node must be ranks / nodes = {self.ranks}/{self.nodes}, or null if the nodes differ, not "
                f"{self.ranks_per_node}"
            )
        if not any(row.dtype == "bf16" for row in self.matmul):
            raise ValueError("matmul must hold at least one row of bf16, not none")
        if not self.copy:
            raise ValueError("copy must hold at least one row, not none")

    # ---- reading it ----

    @property
    def scopes(self) -> list[str]:
        """The scopes that were measured, in the order of :data:`SCOPES`."""
        found = {row.scope for row in self.timings}
        return [scope for scope in SCOPES if scope in found]

    def collectives(self, scope: str) -> list[str]:
        """The collectives that were measured in a scope, in the order of :data:`COLLECTIVES`."""
        found = {row.collective for row in self.timings if row.scope == scope}
        return [name for name in COLLECTIVES if name in found]

    def rows(self, scope: str, collective: str) -> list[Timing]:
        """The times of one collective in one scope, by size."""
        found = [row for row in self.timings if (row.scope, row.collective) == (scope, collective)]
        return sorted(found, key=lambda row: row.n_bytes)

    def fit(self, scope: str, collective: str) -> LinkFit:
        """Latency and bandwidth behind the times, as a ring (an all-to-all: directly; a message: one send).

        Raises:
            ValueError: the times don't show a link; says why.
        """
        name, algorithm = _AS_MODELLED.get(collective, (collective, "ring"))
        rows = self.rows(scope, collective)
        return fit_link(
            [
                sample(
                    row.n_bytes,
                    row.seconds,
                    2 if collective == POINT_TO_POINT else row.ranks,
                    name,
                    algorithm,
                )
                for row in rows
            ]
        )

    def link(self, scope: str, collective: str = "all-reduce") -> LinkNumbers | None:
        """What the cost models should take the link of a scope for; None if the collective was not measured there.

        From the fit where it is good (as :mod:`shardlab.models.fit` judges). Otherwise, as a line is then no
        description, the least time of any buffer and the bus bandwidth of the largest: both were measured.
        """
        rows = self.rows(scope, collective)
        if not rows:
            return None
        smallest, largest = rows[0], rows[-1]
        where = f"{collective} on {ranks_words(largest.ranks)}, {SCOPES[scope]}"
        try:
            fitted = self.fit(scope, collective)
        except ValueError:
            fitted = None
        if fitted is None or not _describes(fitted):
            least = min([row.seconds for row in rows])
            return LinkNumbers(
                scope=scope,
                collective=collective,
                ranks=largest.ranks,
                fixed_s=least,
                bandwidth=largest.busbw if largest.seconds > 2 * least else None,
                how=f"{where}: least time of any size, bus bandwidth of {format_bytes(largest.n_bytes)} "
                "(no α–β line describes it)",
            )
        # The line's two parts at its ends; the model's own counts of rounds and bytes are in them.
        slope = (fitted.predicted_s[-1] - fitted.predicted_s[0]) / (largest.n_bytes - smallest.n_bytes)
        fixed = fitted.predicted_s[0] - slope * smallest.n_bytes
        shown = fixed >= VISIBLE_SHARE * smallest.seconds
        return LinkNumbers(
            scope=scope,
            collective=collective,
            ranks=largest.ranks,
            fixed_s=fixed if shown else None,
            bandwidth=fitted.bandwidth if slope * largest.n_bytes >= 0.5 * largest.seconds else None,
            how=f"{where}: α–β fit, {fitted.rms_relative_error:.0%} off on average",
        )

    @property
    def best_matmul(self) -> Product:
        """The fastest bf16 product."""
        return max([row for row in self.matmul if row.dtype == "bf16"], key=lambda row: row.flops)

    def failed_checks(self) -> list[str]:
        """Collectives that gave wrong numbers. Times are never judged."""
        return [
            f"{row.collective}, {SCOPES[row.scope]}, {format_bytes(row.n_bytes)}: a wrong result on at least one rank"
            for row in self.timings
            if not row.correct
        ]

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """One by scope, ``"links"``, ``"wire"`` (where the kernel counts) and ``"devices"``."""
        tables: dict[str, Callable[[], Table]] = {
            scope: partial(self._times_table, scope) for scope in self.scopes
        }
        if self.timings:
            tables["links"] = self._links_table
        if self.wire:
            tables["wire"] = self._wire_table
        return {**tables, "devices": self._devices_table}

    def _times_table(self, scope: str) -> Table:
        cells = []
        for collective in self.collectives(scope):
            rows = self.rows(scope, collective)
            try:
                line: list[float | None] = list(self.fit(scope, collective).predicted_s)
            except ValueError:
                line = [None] * len(rows)
            cells += [_time_cells(row, predicted) for row, predicted in zip(rows, line, strict=True)]
        ranks = ranks_words(self.rows(scope, self.collectives(scope)[0])[0].ranks)
        return Table(
            caption=f"Collectives by size, {ranks}, {SCOPES[scope]}",
            columns=("Collective", "Size", "Time", "Quartiles", "algbw", "busbw", "α–β says", "Off by"),
            rows=tuple(cells),
            notes=()
            if scope != self.scopes[-1]
            else (
                "Time: of the slowest rank, median of the repeats. algbw: size over time. busbw: what compares with a "
                "link, as nccl-tests defines both. α–β: latency and bandwidth that fit all sizes of one collective best.",
            ),
            label_columns=2,
        )

    def _links_table(self) -> Table:
        cells = []
        for scope in self.scopes:
            for collective in self.collectives(scope):
                label = (SCOPES[scope], collective)
                peak = format_bandwidth(max(row.busbw for row in self.rows(scope, collective)), 3)
                try:
                    fitted = self.fit(scope, collective)
                except ValueError:
                    cells.append((*label, "-", "-", peak, "no line", "-"))
                    continue
                cells.append(
                    (
                        *label,
                        format_time(fitted.latency_s, 3),
                        format_bandwidth(fitted.bandwidth, 3),
                        peak,
                        f"{fitted.rms_relative_error:.0%}",
                        f"{fitted.max_relative_error:.0%}",
                    )
                )
        return Table(
            caption="The α–β line of each",
            columns=(
                "Scope",
                "Collective",
                "α a message",
                "Bandwidth 1/β",
                "Best busbw",
                "Error, rms",
                "Largest",
            ),
            rows=tuple(cells),
            label_columns=2,
        )

    def _wire_table(self) -> Table:
        return Table(
            caption=f"Bytes that a rank sends in one call, {SCOPES[self.scopes[-1]]}, beside the textbook's",
            columns=("Collective", "Size", *SENT_COLUMNS),
            rows=tuple([(row.collective, format_bytes(row.n_bytes), *row.sent.cells) for row in self.wire]),
            notes=(reading_words(self.reading),),
            label_columns=2,
        )

    def _devices_table(self) -> Table:
        rows = [
            (
                f"product, {row.dtype}",
                f"{row.m} × {row.k} × {row.n}",
                format_time(row.slowest_s, 3),
                format_flops(row.flops),
                f"{row.slowest_s / row.middle_s - 1:+.0%}, rank {row.slowest_rank}",
            )
            for row in self.matmul
        ]
        rows += [
            (
                "copy",
                format_bytes(row.n_bytes),
                format_time(row.slowest_s, 3),
                format_bandwidth(row.bandwidth, 3),
                f"{row.slowest_s / row.middle_s - 1:+.0%}, rank {row.slowest_rank}",
            )
            for row in self.copy
        ]
        return Table(
            caption=f"One device by itself, {ranks_words(self.ranks)} at work at once: {self.device.name}",
            columns=("What", "Size", "Slowest rank", "Rate", "Against the middle rank"),
            rows=tuple(rows),
            notes=("Rates are the slowest rank's. A copy's counts what is read and what is written.",),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, what they don't, and what to type next."""
        found = [self._link_words(scope) for scope in self.scopes] or [
            "With one rank there is no link to measure: run it with more ranks."
        ]
        return [
            *found,
            *self._misfit_words(),
            *self._wire_words(),
            self._device_words(),
            *self._caution_words(),
            *self._left_out_words(),
            self._next_words(),
        ]

    def _link_words(self, scope: str) -> str:
        link = self.link(scope)
        where = f"{SCOPES[scope]}, {ranks_words(self.rows(scope, 'all-reduce')[0].ranks)}"
        best = max(self.rows(scope, "all-reduce"), key=lambda row: row.busbw)
        words = f"All-reduce {where}: at best {_rate(best.busbw)} of bus bandwidth, at {format_bytes(best.n_bytes)}."
        if link is None or link.fixed_s is None or link.bandwidth is None:
            return f"{words} The sizes do not show both a latency and a bandwidth: measure smaller and larger ones."
        half = link.fixed_s * link.bandwidth / models.busbw_factor("all-reduce", link.ranks)
        return (
            f"{words} A call costs {format_time(link.fixed_s, 3)} whatever its size, and then {_rate(link.bandwidth)} per "
            f"rank and direction. Up to about {format_bytes(half, 2)} the start takes longer than the bytes: gradients "
            "travel best in buckets far above that."
        )

    def _misfit_words(self) -> list[str]:
        misfits, unfitted = [], []
        for scope in self.scopes:
            for collective in self.collectives(scope):
                try:
                    fitted = self.fit(scope, collective)
                except ValueError:
                    unfitted.append(f"{collective} {SCOPES[scope]}")
                    continue
                if not _describes(fitted):
                    worst = max(range(len(fitted.samples)), key=lambda i: abs(fitted.relative_errors[i]))
                    misfits.append(
                        f"{collective} {SCOPES[scope]} ({fitted.relative_errors[worst]:+.0%} at "
                        f"{format_bytes(fitted.samples[worst].n_bytes)})"
                    )
        words = []
        if misfits:
            words.append(
                f"Where one latency and one bandwidth do not describe the times: {'; '.join(misfits)}. Libraries change "
                "algorithm and protocol with the size, and caches and busy cores have sizes of their own. Read such "
                "times off the table instead of the line."
            )
        if unfitted:
            words.append(f"No line at all fits {'; '.join(unfitted)}: the time does not grow with the size.")
        return words

    def _wire_words(self) -> list[str]:
        words = []
        for row in self.wire:
            gap = row.sent.gap
            if gap is not None and 1 + gap > _OTHER_ALGORITHM:
                words.append(
                    f"{self.backend}'s {row.collective} puts {1 + gap:.2f} times the textbook's bytes on the wire: it runs "
                    "another algorithm than its name says, and its bus bandwidth above understates the link as much."
                )
        return words

    def _device_words(self) -> str:
        words = []
        for dtype in DTYPES:
            rates = [row.flops for row in self.matmul if row.dtype == dtype]
            if rates:
                words.append(
                    f"{format_flops(max(rates))} at best in {dtype}, {format_flops(statistics.median(rates))} typically "
                    f"(median of {len(rates)} shapes)"
                )
        text = f"Matrix products reach {'; '.join(words)}. A copy moves {format_bandwidth(self.copy[0].bandwidth, 3)}."
        best = self.best_matmul
        # On CPUs the ranks take turns on the cores, and who waits is chance.
        if self.device.kind == "cuda" and best.slowest_s > _SLOW_DEVICE * best.middle_s:
            text += (
                f" Rank {best.slowest_rank} is {best.slowest_s / best.middle_s - 1:.0%} slower than the middle rank in "
                "the best product: in training all others wait for it. Look at its power, temperature and neighbours."
            )
        return text

    def _caution_words(self) -> list[str]:
        words = []
        if self.device.others:
            words.append(
                f"The devices differ: {self.device.name} and {', '.join(self.device.others)}. All figures are the slowest's."
            )
        if self.device.kind == "cpu" and self.device.gpus_seen:
            words.append(
                f"Rank 0 sees {plural(self.device.gpus_seen, 'GPU')}, but each rank of its node needs to see one of its own, and "
                "all of them: so gloo on CPUs was measured. Start as many ranks a node as it has GPUs, and do not hide GPUs "
                "from ranks (CUDA_VISIBLE_DEVICES, --gpus-per-task)."
            )
        if self.timings and self.ranks_per_node is None:
            words.append(
                "The nodes have different numbers of ranks, so only all ranks together were measured."
            )
        if self.backend == "gloo" and self.nodes == 1 and self.timings:
            words.append(
                "gloo on one machine: here the cores are the wire, and the ranks share them. These numbers describe "
                "this machine and say nothing about GPUs or a network between nodes."
            )
        return words

    def _left_out_words(self) -> list[str]:
        first: dict[tuple[str, str], int] = {}
        for row in self.left_out:
            key = (row.scope, row.collective)
            first[key] = min(first.get(key, row.n_bytes), row.n_bytes)
        if not first:
            return []
        named = [
            f"{name} {SCOPES[scope]} from {format_bytes(size)} on" for (scope, name), size in first.items()
        ]
        return [
            f"Left out, since the time limit would not have held: {'; '.join(named)}. Raise --limit-s for them."
        ]

    def _next_words(self) -> str:
        words = [
            "What to type next, with your own numbers and the file that --json writes:",
            f"  shardlab diagnose --measured FILE --ranks {max(self.ranks, 2)} --step '500 ms' --base-step '300 ms' "
            "--gradients '1 GB' --scaling weak",
        ]
        if self.device.kind == "cuda":
            words.append(
                "  shardlab plan --measured FILE --model llama3-8b --node dgx-h100 --gpus 64 --global-batch 512 "
                "--sequence 8192"
            )
        return "\n".join(words)

    # ---- keeping it ----

    def to_json(self) -> str:
        """Everything, as JSON, with the schema's number; ``links`` is there for other programs and is not read back."""
        links = [
            self.link(scope, collective) for scope in self.scopes for collective in self.collectives(scope)
        ]
        return json.dumps(
            {
                "schema": SCHEMA,
                **json.loads(super().to_json()),
                "links": [vars(link) for link in links if link is not None],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str, name: str = "text") -> Self:
        """The inverse of :meth:`to_json`; ``name`` stands for the text in messages, such as the file's.

        Raises:
            ValueError: not JSON, another program's, an older schema, an unfinished measurement, or a field that is
                missing, unknown, of another type or out of range; names it.
        """
        import cattrs

        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{name} must hold the JSON of `shardlab measure`, and is no JSON: {error}"
            ) from None
        if not isinstance(data, dict) or data.get("lab") != cls.lab:
            raise ValueError(
                f"{name} must hold the JSON of `shardlab measure`: its field lab must be 'measure'"
            )
        if data.get("complete") is not True:
            raise ValueError(
                f"{name}: complete must be true: that measurement did not finish ({data.get('error')}). Measure again"
            )
        if data.get("schema") != SCHEMA:
            raise ValueError(
                f"{name}: schema must be {SCHEMA}, not {data.get('schema')!r}: another version of shardlab wrote it. "
                "Measure again"
            )
        fields = {
            key: value for key, value in data.items() if key not in ("schema", "lab", "complete", "links")
        }
        try:
            return cattrs.Converter(forbid_extra_keys=True).structure(fields, cls)
        except Exception as error:
            found = cattrs.transform_error(error, path=name, format_exception=_problem)
            raise ValueError("; ".join(found[:3])) from None


def _describes(fitted: LinkFit) -> bool:
    """Whether one latency and one bandwidth are a fair description."""
    return fitted.rms_relative_error <= GOOD_RMS_ERROR and fitted.max_relative_error <= GOOD_MAX_ERROR


def _time_cells(row: Timing, predicted: float | None) -> tuple[str, ...]:
    return (
        row.collective,
        format_bytes(row.n_bytes),
        format_time(row.seconds, 3),
        f"{format_time(row.low_s, 3)} – {format_time(row.high_s, 3)}",
        format_bandwidth(row.algbw, 3),
        format_bandwidth(row.busbw, 3),
        "-" if predicted is None else format_time(predicted, 3),
        "-" if predicted is None else f"{predicted / row.seconds - 1:+.0%}",
    )


def _rate(bytes_per_s: float) -> str:
    """Bytes and bits, since people mix them."""
    return f"{format_bandwidth(bytes_per_s, 3)} ({format_bit_rate(bytes_per_s, 3)})"


def format_flops(rate: float) -> str:
    """FLOP/s in GFLOP/s, or in TFLOP/s from there on."""
    if rate >= 1e12:
        return f"{significant(rate / 1e12, 3)} TFLOP/s"
    return f"{significant(rate / 1e9, 3)} GFLOP/s"


def _problem(error: BaseException, expected: type | None) -> str:
    """A sentence for what is wrong with a field: our own checks' as they are, else cattrs'."""
    from cattrs.v import format_exception

    return str(error) if "must" in str(error) else str(format_exception(error, expected))
