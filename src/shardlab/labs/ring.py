"""The ring lab: an all-reduce written by hand, beside torch's and beside the naive one, predicted and measured.

>>> from shardlab import labs
>>> run = labs.ring(ranks=4)
>>> run.table("wire")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import choice, count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, cores_words, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import allowed_gap_bytes
from shardlab.labs.table import Table
from shardlab.models import collective_schedules as schedules
from shardlab.models.collectives import chunk_sizes, ring_allreduce_sent_bytes, ring_sends
from shardlab.models.fit import LinkFit, fit_link, sample
from shardlab.units import format_bandwidth, format_bytes, format_time

WORKER = "shardlab.labs.ring_worker:worker"
FP32_BYTES = 4
# Adding N numbers of 24 bits, in whatever order, errs by less than this times the sum of their absolute values:
# Higham, Accuracy and Stability of Numerical Algorithms (2002), section 4.2.
UNIT_ROUNDOFF = 2.0**-24

METHODS = {"ring": "ring by hand", "library": "all_reduce", "root": "through rank 0"}
# The library may choose its algorithm; gloo's is a ring too, and both are predicted as one.
RINGS = ("ring", "library")
FEWEST_SIZES = 4


@dataclass(frozen=True)
class EqualityRow:
    """One all-reduce against the sum on one process.

    Attributes:
        ranks: N.
        method: one of :data:`METHODS`.
        elements: length of the buffer.
        integer_gap: largest absolute difference of 64-bit integers, over elements and ranks.
        float_gap: largest difference of fp32 numbers, as a fraction of the sum of their absolute values.
        same_bits: whether all ranks hold the same bits.
        payload_bytes: what each rank's program handed to send, fp32; None where the library doesn't tell.
    """

    ranks: int
    method: str
    elements: int
    integer_gap: int
    float_gap: float
    same_bits: bool
    payload_bytes: tuple[int, ...] | None

    @property
    def predicted_bytes(self) -> tuple[int, ...]:
        """What each rank should send, chunk by chunk."""
        return sent_bytes(self.method, self.elements, self.ranks)


@dataclass(frozen=True)
class StepRow:
    """One step of the ring, bytes by rank.

    Attributes:
        step: 0 to 2N-3.
        phase: ``"reduce-scatter"`` or ``"all-gather"``.
        chunks: which chunk each rank sends.
        predicted_bytes: its bytes.
        payload_bytes: what each rank's program handed to send.
        kernel_bytes: what the kernel sent; None where it can't be read.
    """

    step: int
    phase: str
    chunks: tuple[int, ...]
    predicted_bytes: tuple[int, ...]
    payload_bytes: tuple[int, ...]
    kernel_bytes: tuple[int, ...] | None


@dataclass(frozen=True)
class WireRow:
    """Bytes that each rank sends in one all-reduce, in the order of ranks.

    Attributes:
        ranks: N.
        n_bytes: P, the buffer of one rank.
        method: one of :data:`METHODS`.
        predicted_bytes: ``2 (N-1)/N * P``; through rank 0, (N-1) P for it and P for the others.
        payload_bytes: what each rank's program handed to send; None where the library doesn't tell.
        kernel_bytes: what the kernel sent; None where it can't be read.
    """

    ranks: int
    n_bytes: int
    method: str
    predicted_bytes: tuple[float, ...]
    payload_bytes: tuple[int, ...] | None
    kernel_bytes: tuple[int, ...] | None

    @property
    def sent_bytes(self) -> tuple[float, ...]:
        """The kernel's reading; without one what the program sent, or else the payload times the textbook factor."""
        return self.kernel_bytes or self.payload_bytes or self.predicted_bytes

    @property
    def sends(self) -> int:
        """Messages of the busiest rank."""
        return self.ranks - 1 if self.method == "root" else 2 * (self.ranks - 1)

    @property
    def extra_bytes(self) -> float:
        """What the rank that is farthest off sends beyond the prediction."""
        return max(
            [sent - plan for sent, plan in zip(self.sent_bytes, self.predicted_bytes, strict=True)], key=abs
        )


@dataclass(frozen=True)
class TimeRow:
    """One all-reduce, in seconds.

    Attributes:
        ranks: N.
        n_bytes: P, the buffer of one rank.
        method: one of :data:`METHODS`.
        seconds: measured, median, of the slowest rank.
        predicted_s: by the link fitted for this method; None for one rank and through rank 0.
        role: ``"fitted"``, ``"held out"`` (same N, other size), ``"other N"`` or ``"not predicted"``.
    """

    ranks: int
    n_bytes: int
    method: str
    seconds: float
    predicted_s: float | None
    role: str

    @property
    def miss(self) -> float | None:
        """The prediction against the measurement, as a fraction; None if there is no prediction."""
        return None if self.predicted_s is None else self.predicted_s / self.seconds - 1


@dataclass(frozen=True, kw_only=True)
class RingRun(LabRun):
    """A finished ring lab.

    Attributes:
        equality, steps, wire, times: the measurements, row by row.
        links: for each of :data:`RINGS`, fitted on some sizes on the fewest ranks that communicate; empty for one rank.
        unfitted: why a method has no link: times on a busy machine may not grow with the size.
    """

    lab: ClassVar[str] = "ring"

    equality: tuple[EqualityRow, ...]
    steps: tuple[StepRow, ...]
    wire: tuple[WireRow, ...]
    times: tuple[TimeRow, ...]
    links: dict[str, LinkFit]
    unfitted: dict[str, str]

    # ---- reading it ----

    def wire_row(self, ranks: int, n_bytes: int, method: str = "ring") -> WireRow:
        """The row of :attr:`wire` with these settings."""
        return only(self.wire, "wire", ranks=ranks, n_bytes=n_bytes, method=method)

    def time_row(self, ranks: int, n_bytes: int, method: str = "ring") -> TimeRow:
        """The row of :attr:`times` with these settings."""
        return only(self.times, "times", ranks=ranks, n_bytes=n_bytes, method=method)

    def worst_miss(self, role: str, method: str = "ring") -> float | None:
        """The largest miss of the predictions with this role, as a fraction with its sign; None if there are none."""
        choice("role", role, ("fitted", "held out", "other N"))
        rows = [row for row in self.times if (row.role, row.method) == (role, method)]
        return max([row.miss for row in rows if row.miss is not None], key=abs, default=None)

    @property
    def _most(self) -> int:
        return int(self.settings["ranks"])

    @property
    def _communicating(self) -> list[int]:
        """The numbers of ranks to compare: one rank, which sends nothing, only where there is no other."""
        return teams(self._most)[1:] or [1]

    @property
    def _sizes(self) -> list[int]:
        return sorted(self.settings["sizes"])

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        return [
            *[words for row in self.equality for words in _unequal(row)],
            *[words for row in self.steps for words in _step_faults(row)],
            *[words for row in self.wire for words in _wire_faults(row)],
        ]

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"equality"``, ``"steps"`` (not for one rank), ``"wire"``, ``"times"``."""
        steps = {"steps": self._steps_table} if self.steps else {}
        return {
            "equality": self._equality_table,
            **steps,
            "wire": self._wire_table,
            "times": self._times_table,
        }

    def _equality_table(self) -> Table:
        elements = sorted({row.elements for row in self.equality})
        rows = []
        for ranks in teams(self._most):
            for method, name in METHODS.items():
                same = [row for row in self.equality if (row.ranks, row.method) == (ranks, method)]
                rows.append(
                    (
                        str(ranks),
                        name,
                        str(max(row.integer_gap for row in same)),
                        f"{max(row.float_gap for row in same):.1e}",
                        f"{rounding_bound(ranks):.1e}",
                        "yes" if all(row.same_bits for row in same) else "no",
                    )
                )
        return Table(
            caption="Every all-reduce against the sum on one process: largest difference over buffers of "
            f"{', '.join([f'{length:,}' for length in elements])} elements",
            columns=(
                "Ranks",
                "All-reduce",
                "64-bit integers",
                "fp32, of Σ|x|",
                "Rounding allows",
                "Same bits on all ranks",
            ),
            rows=tuple(rows),
            label_columns=2,
        )

    def _steps_table(self) -> Table:
        rows = []
        for row in self.steps:
            sent = row.kernel_bytes or row.payload_bytes
            rows.append(
                (
                    str(row.step),
                    row.phase,
                    str(row.chunks[0]),
                    f"{row.predicted_bytes[0]:,}",
                    f"{row.payload_bytes[0]:,}",
                    f"{sent[0]:,}",
                    f"{sum(sent):,}",
                )
            )
        return Table(
            caption=f"The ring step by step on {ranks_words(self._most)}: what rank 0 sends to rank 1, and all together",
            columns=(
                "Step",
                "Phase",
                "Chunk",
                "Predicted, B",
                "Handed to send, B",
                f"{self._sent_head()}, B",
                "All ranks, B",
            ),
            rows=tuple(rows),
            notes=("The chunks differ by one element: the buffer's length is no multiple of the ranks.",),
            label_columns=2,
        )

    def _sent_head(self) -> str:
        return "Sent (program)" if self.reading is None else "Sent (kernel)"

    def _wire_table(self) -> Table:
        rows = []
        for row in [row for row in self.wire if row.ranks in self._communicating]:
            busiest = max(row.predicted_bytes)
            gap = f"{row.extra_bytes / busiest:+.2%}" if busiest else "-"
            rows.append(
                (
                    str(row.ranks),
                    f"{row.n_bytes:,}",
                    METHODS[row.method],
                    f"{busiest:,.0f}",
                    f"{max(row.sent_bytes):,.0f}",
                    f"{row.extra_bytes:+,.0f}",
                    gap,
                    f"{sum(row.sent_bytes):,.0f}",
                )
            )
        return Table(
            caption="Bytes that the busiest rank sends in one all-reduce of a buffer of P bytes",
            columns=(
                "Ranks",
                "P, B",
                "All-reduce",
                "Predicted, B",
                f"{self._sent_head()}, B",
                "Beyond, B",
                "Of predicted",
                "All ranks together, B",
            ),
            rows=tuple(rows),
            notes=(self._wire_note(),),
            label_columns=3,
        )

    def _wire_note(self) -> str:
        words = (
            "Predicted: 2(N-1)/N·P for the ring and for all_reduce; through rank 0, (N-1)·P for rank 0 and P for the "
            "others. "
        )
        if self.reading is None:
            return (
                f"{words}The kernel's count of sent bytes can't be read here: what you see instead is what the program "
                "handed to send, and for all_reduce, which doesn't tell, the payload times the textbook factor."
            )
        return (
            f"{words}Sent: the kernel's counters of the ranks' TCP connections ({self.reading}). Beyond: of the rank "
            "that is farthest off."
        )

    def _times_table(self) -> Table:
        rows = []
        for ranks in self._communicating:
            for size in self._sizes:
                ring, library, root = (self.time_row(ranks, size, method) for method in METHODS)
                rows.append(
                    (
                        str(ranks),
                        f"{size:,}",
                        ring.role,
                        *_time_cells(ring),
                        *_time_cells(library),
                        f"{root.seconds * 1e3:.2f}",
                    )
                )
        return Table(
            caption="Time of one all-reduce, measured and predicted",
            columns=(
                "Ranks",
                "P, B",
                "Prediction",
                "Ring by hand, ms",
                "Predicted, ms",
                "Off by",
                "all_reduce, ms",
                "Predicted, ms",
                "Off by",
                "Through rank 0, ms",
            ),
            rows=tuple(rows),
            notes=tuple([self._link_note(method) for method in self.links]),
            label_columns=3,
        )

    def _link_note(self, method: str) -> str:
        link = self.links[method]
        return (
            f"{METHODS[method]}: {format_time(link.latency_s, 3)} a step and {format_bandwidth(link.bandwidth, 3)} per "
            f"rank, fitted on {len(link.samples)} sizes on {ranks_words(link.samples[0].n_ranks)}. Median times of the "
            "slowest rank."
        )

    # ---- in words ----

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if self._most == 1:
            return ["With one rank there is nothing to send: run the lab with more ranks."]
        words = [self._share_words(), *self._header_words()]
        if self.links:
            words.append(self._fit_words())
        if self.links and self._communicating[1:]:
            words.append(self._other_n_words())
        words += [
            f"No prediction for {METHODS[method]}: {reason}." for method, reason in self.unfitted.items()
        ]
        return [*words, self._contest_words()]

    def _share_words(self) -> str:
        size = self._sizes[-1]
        ring, root = self.wire_row(self._most, size), self.wire_row(self._most, size, "root")
        return (
            f"On {ranks_words(self._most)} and {format_bytes(size)} each rank of the ring sends "
            f"{format_bytes(max(ring.sent_bytes))}, {max(ring.sent_bytes) / size:.3g} times the buffer, in "
            f"{ring.sends} steps of one chunk. The naive way's rank 0 sends {format_bytes(max(root.sent_bytes))}, "
            f"{max(root.sent_bytes) / max(ring.sent_bytes):.3g} times as much as any rank of the ring. All ranks "
            f"together send {format_bytes(sum(ring.sent_bytes))} and {format_bytes(sum(root.sent_bytes))}: the ring "
            "saves nothing in total, it gives every link the same share."
        )

    def _header_words(self) -> list[str]:
        if self.reading is None:
            return []
        small, large = (self.wire_row(self._most, size) for size in (self._sizes[0], self._sizes[-1]))
        library = self.wire_row(self._most, self._sizes[0], "library")
        return [
            f"The kernel counts more than the prediction because {self.backend} puts headers around its messages: "
            f"{small.extra_bytes / small.sends:.0f} B for each of the hand-written ring's sends and "
            f"{library.extra_bytes / library.sends:.0f} B for each step of all_reduce. Of {format_bytes(small.n_bytes)} "
            f"that is {small.extra_bytes / max(small.predicted_bytes):.1%}, of {format_bytes(large.n_bytes)} "
            f"{large.extra_bytes / max(large.predicted_bytes):.3%}: below some kilobytes the textbook's bytes are not "
            "the wire's."
        ]

    def _fit_words(self) -> str:
        n = self._communicating[0]
        parts = [
            f"{METHODS[method]} {self.links[method].max_relative_error:.0%} and "
            f"{abs(self.worst_miss('held out', method) or 0.0):.0%}"
            for method in self.links
        ]
        return (
            f"One latency and one bandwidth, fitted on {ranks_words(n)}, miss the sizes they were fitted on and the sizes "
            f"held out by at most: {'; '.join(parts)}. That is what such a model is worth between the sizes it has seen."
        )

    def _other_n_words(self) -> str:
        few, most = self._communicating[0], self._most
        size = self._sizes[-1]
        ring, seen = self.wire_row(most, size), self.wire_row(few, size)
        misses = [f"{METHODS[method]} {self.worst_miss('other N', method):+.0%}" for method in self.links]
        words = (
            f"On more ranks than {few} the same numbers miss by at most: {'; '.join(misses)}. The model gives every rank a "
            "link of its own. On loopback the cores are the wire: they copy what all ranks send together, and that is "
            f"{sum(ring.sent_bytes) / sum(seen.sent_bytes):.3g} times as much on {most} ranks as on {few}, where the model "
            f"counts {max(ring.predicted_bytes) / max(seen.predicted_bytes):.3g} times as much per rank"
        )
        if self.backend != "nccl" and most * self.threads > self.stamp.cores:
            words += f". {ranks_words(most)} share {cores_words(self.stamp.cores)} here, and wait for a turn in every step"
        return f"{words}. So nothing here says how fast a real link is, and a fit on {few} ranks doesn't carry over."

    def _contest_words(self) -> str:
        size = self._sizes[-1]
        ring, library, root = (self.time_row(self._most, size, method).seconds for method in METHODS)
        words = (
            f"{format_bytes(size)} on {ranks_words(self._most)} take {format_time(ring, 3)} in the ring by hand, "
            f"{format_time(library, 3)} in all_reduce and {format_time(root, 3)} through rank 0. "
        )
        if self.backend == "gloo":
            words += (
                "gloo's all_reduce cuts each chunk in two and adds one half while the other is under way; the ring by "
                "hand waits for each chunk. "
            )
        return (
            f"{words}All three move the same total, and that is what loopback pays for. With a link for each rank, rank "
            f"0's would carry {self._most / 2:g} times the bytes of a ring's, and all would wait for it."
        )

    def plot(self, dark: bool = False) -> Any:
        """Time against size of the ring by hand, measured (solid) and predicted (dashed), by ranks; a figure."""
        from shardlab.labs.ring_plot import time_figure

        return time_figure([row for row in self.times if row.method == "ring" and row.ranks > 1], dark)


# ---- predictions and checks ----


def rounding_bound(ranks: int) -> float:
    """How far a sum of ``ranks`` fp32 numbers may be off, as a fraction of the sum of their absolute values."""
    return (ranks if ranks > 1 else 0) * UNIT_ROUNDOFF


def sent_bytes(method: str, elements: int, ranks: int) -> tuple[int, ...]:
    """Bytes that each rank sends for a buffer of fp32 elements, chunk by chunk; ``method`` as in :data:`METHODS`."""
    if method == "root":
        return through_root_bytes(FP32_BYTES * elements, ranks)
    steps = _ring_steps(elements, ranks)
    return tuple([sum(sent[rank] for _, sent in steps) for rank in range(ranks)])


def _ring_steps(elements: int, ranks: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each step of the ring the chunk that each rank sends, and its bytes."""
    sizes = [FP32_BYTES * size for size in chunk_sizes(elements, ranks)]
    steps = []
    for step in range(2 * (ranks - 1)):
        # In the order of their sources: ranks 0 to N-1.
        chunks = tuple([chunk for _, _, chunk in ring_sends(step, ranks)])
        steps.append((chunks, tuple([sizes[chunk] for chunk in chunks])))
    return steps


def through_root_bytes(n_bytes: int, ranks: int) -> tuple[int, ...]:
    """Bytes that each rank sends when all send their buffer to rank 0 and it sends the sum back."""
    others = range(1, ranks)
    up = [schedules.Message(source=rank, destination=0, chunks=(0,), reduces=True) for rank in others]
    down = [schedules.Message(source=0, destination=rank, chunks=(0,), reduces=False) for rank in others]
    star = schedules.Schedule(
        n_ranks=ranks,
        n_chunks=1,
        rounds=[schedules.Round("reduce", up), schedules.Round("broadcast", down)],
        starts=[[0]] * ranks,
        ends=[[0]] * ranks,
    )
    # One number of n_bytes bytes: only the count is wanted.
    return tuple(schedules.run(star, [[[0.0]]] * ranks, n_bytes).sent_bytes)


def _unequal(row: EqualityRow) -> list[str]:
    where = f"{ranks_words(row.ranks)}, {METHODS[row.method]}, {row.elements:,} elements"
    bound = rounding_bound(row.ranks)
    failed = []
    if row.integer_gap != 0:
        failed.append(f"{where}: integers differ from the sum on one process by {row.integer_gap}")
    # Written so that a NaN fails.
    if not row.float_gap <= bound:
        failed.append(f"{where}: floats are off by {row.float_gap:.1e} of Σ|x| (rounding allows {bound:.1e})")
    if not row.same_bits:
        failed.append(f"{where}: the ranks don't hold the same bits")
    if row.payload_bytes is not None and row.payload_bytes != row.predicted_bytes:
        failed.append(f"{where}: the ranks send {row.payload_bytes} bytes, not {row.predicted_bytes}")
    return failed


def _step_faults(row: StepRow) -> list[str]:
    failed = []
    if row.payload_bytes != row.predicted_bytes:
        failed.append(f"step {row.step}: the ranks send {row.payload_bytes} bytes, not {row.predicted_bytes}")
    for rank, sent in enumerate(row.kernel_bytes or ()):
        plan = row.predicted_bytes[rank]
        if not abs(sent - plan) <= allowed_gap_bytes(plan, 1):
            failed.append(
                f"step {row.step}: the kernel counts {sent:,} bytes for rank {rank}, predicted are {plan:,}"
            )
    return failed


def _wire_faults(row: WireRow) -> list[str]:
    where = f"{ranks_words(row.ranks)}, {METHODS[row.method]}, P = {row.n_bytes:,} B"
    return [
        f"{where}: rank {rank} sends {sent:,.0f} bytes, predicted are {plan:,.0f}"
        for rank, (sent, plan) in enumerate(zip(row.sent_bytes, row.predicted_bytes, strict=True))
        if not abs(sent - plan) <= allowed_gap_bytes(plan, row.sends)
    ]


def _time_cells(row: TimeRow) -> tuple[str, str, str]:
    measured = f"{row.seconds * 1e3:.2f}"
    if row.predicted_s is None:
        return measured, "-", "-"
    return measured, f"{row.predicted_s * 1e3:.2f}", f"{row.miss:+.0%}"


@lab(
    title="Ring all-reduce by hand: equal sums, bytes on the wire, times predicted and measured",
    seconds=15,
    needs="torch",
    options={
        "ranks": "Largest number of ranks; 1, 2, 4, ... up to it are measured.",
        "sizes": "Buffer sizes, bytes: at least four, for every other one is held out of the fit.",
        "repeats": "Timed all-reduces for each size and number of ranks.",
        **RUN_OPTIONS,
    },
    worker_file="ring_worker.py",
    shown=("ring_allreduce", "ring_step"),
    result=RingRun,
)
def ring(
    ranks: int = 4,
    *,
    sizes: Sequence[int] = (2**14, 2**17, 2**20, 2**22, 2**23),
    repeats: int = 12,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> RingRun:
    """Sum buffers over 1, 2, 4, ... ``ranks`` processes by a ring written by hand, by ``all_reduce`` and through rank 0.

    (a) The sums against one process: integers exactly, floats within rounding. (b) The ring step by step. (c) Bytes
    per rank, by the kernel, beside ``2 (N-1)/N * P`` and ``(N-1) * P``. (d) Times beside an alpha-beta prediction,
    fitted on some sizes on two ranks and tried on the other sizes and on more ranks.

    Args:
        ranks: largest number of ranks N.
        sizes: buffer sizes, bytes: four or more different multiples of 4. In ascending order, the first, the third and
            so on and the largest are fitted, the others held out.
        repeats: timed all-reduces of each size.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL, and the kernel then has no bytes to count; that path was not run for this book.
    """
    n_ranks = count("ranks", ranks, least=1, most=MOST_RANKS)
    settings = {"ranks": n_ranks, "sizes": _sizes(sizes), "repeats": count("repeats", repeats)}
    limit = positive("limit_s", limit_s, "seconds")
    params = {**settings, "teams": teams(n_ranks)}
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _sizes(sizes: Sequence[int]) -> list[int]:
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence):
        raise ValueError(f"sizes must be a list of buffer sizes in bytes, not {sizes!r}")
    checked = sorted([count("each of sizes", size, least=FP32_BYTES, most=2**30) for size in sizes])
    if len(set(checked)) != len(checked) or len(checked) < FEWEST_SIZES:
        raise ValueError(f"sizes must hold at least {FEWEST_SIZES} sizes, all different, not {list(sizes)!r}")
    for size in checked:
        if size % FP32_BYTES:
            raise ValueError(f"sizes must be multiples of {FP32_BYTES} bytes, not {size}")
    return checked


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> RingRun:
    links, unfitted = _fit(measured["times"], settings)
    return RingRun(
        **common(measured, settings, elapsed_s),
        equality=tuple([EqualityRow(**_tupled(row)) for row in measured["equality"]]),
        steps=tuple(
            [_step_row(row, measured["step_elements"], settings["ranks"]) for row in measured["steps"]]
        ),
        wire=tuple([_wire_row(row) for row in measured["wire"]]),
        times=tuple([_time_row(row, links, settings) for row in measured["times"]]),
        links=links,
        unfitted=unfitted,
    )


def _fitted_sizes(settings: dict[str, Any]) -> list[int]:
    """Every other size, and always the largest: the sizes held out then lie between."""
    sizes = settings["sizes"]
    return sorted({*sizes[::2], sizes[-1]})


def _fit(rows: list[dict[str, Any]], settings: dict[str, Any]) -> tuple[dict[str, LinkFit], dict[str, str]]:
    """A link for each method on the fewest ranks that communicate, and the reason where there can be none."""
    links: dict[str, LinkFit] = {}
    unfitted: dict[str, str] = {}
    few, fitted = [*teams(settings["ranks"]), 0][1], _fitted_sizes(settings)
    for method in RINGS if few else ():
        chosen = [
            row for row in rows if (row["ranks"], row["method"]) == (few, method) and row["n_bytes"] in fitted
        ]
        try:
            links[method] = fit_link([sample(row["n_bytes"], row["seconds"], few) for row in chosen])
        except ValueError as error:
            # Nobody's mistake: the machine was too busy. The bytes stand, whatever the times are.
            unfitted[method] = str(error)
    return links, unfitted


def _tupled(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


def _step_row(row: dict[str, Any], elements: int, ranks: int) -> StepRow:
    chunks, plan = _ring_steps(elements, ranks)[row["step"]]
    phase = "reduce-scatter" if row["step"] < ranks - 1 else "all-gather"
    return StepRow(phase=phase, chunks=chunks, predicted_bytes=plan, **_tupled(row))


def _wire_row(row: dict[str, Any]) -> WireRow:
    ranks, size = row["ranks"], row["n_bytes"]
    if row["method"] == "root":
        plan: tuple[float, ...] = through_root_bytes(size, ranks)
    else:
        plan = (ring_allreduce_sent_bytes(size, ranks),) * ranks
    return WireRow(predicted_bytes=plan, **_tupled(row))


def _time_row(row: dict[str, Any], links: dict[str, LinkFit], settings: dict[str, Any]) -> TimeRow:
    link = links.get(row["method"])
    if link is None or row["ranks"] == 1:
        return TimeRow(predicted_s=None, role="not predicted", **row)
    role = "other N"
    if row["ranks"] == link.samples[0].n_ranks:
        role = "fitted" if row["n_bytes"] in _fitted_sizes(settings) else "held out"
    return TimeRow(predicted_s=link.time_s(row["n_bytes"], row["ranks"]), role=role, **row)
