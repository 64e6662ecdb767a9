"""The DDP lab: data parallelism on real processes, predicted beside measured.

>>> from shardlab import labs
>>> run = labs.ddp(ranks=4)
>>> run.table()
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs import machine
from shardlab.labs.fit import Line, fit_line
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, cores_words, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, LabError, run
from shardlab.labs.sent import WIRE_TOLERANCE
from shardlab.labs.table import Table
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.fit import LinkFit, fit_link, sample
from shardlab.units import format_bandwidth, format_bytes, format_time

WORKER = "shardlab.labs.ddp_worker:worker"
FP32_BYTES = 4

# fp32 keeps 7 digits; a few steps of differently ordered sums stay far below this.
SAME = 1e-5


@dataclass(frozen=True)
class EqualityRow:
    """DDP on ``ranks`` ranks against one process on the same global batches.

    Attributes:
        ranks: N.
        steps: optimizer steps.
        loss_gap: largest absolute difference of a step's loss.
        parameter_gap: largest absolute difference of any parameter on any rank, after the last step.
        silent_gap: the same when the ranks never all-reduce: what DDP prevents.
    """

    ranks: int
    steps: int
    loss_gap: float
    parameter_gap: float
    silent_gap: float


@dataclass(frozen=True)
class WireRow:
    """Bytes that one rank sends for one optimizer step.

    Attributes:
        ranks: N.
        micro_steps: micro-batches per optimizer step.
        sync: ``"last"`` (all-reduce after the last micro-batch: ``no_sync`` before) or ``"every"``.
        payload_bytes: what DDP handed to all-reduce, counted bucket by bucket; the same on every rank.
        predicted_bytes: ``2 (N-1)/N * P`` for each all-reduce of the model's P bytes of gradients.
        kernel_bytes: what the kernel sent, one number per rank; None where it can't be read.
    """

    ranks: int
    micro_steps: int
    sync: str
    payload_bytes: float
    predicted_bytes: float
    kernel_bytes: tuple[float, ...] | None

    @property
    def sent_bytes(self) -> float:
        """The kernel's reading, mean over the ranks; without one, the payload times ``2 (N-1)/N``."""
        if self.kernel_bytes is None:
            return ring_allreduce_sent_bytes(self.payload_bytes, self.ranks)
        return statistics.fmean(self.kernel_bytes)

    @property
    def gap(self) -> float | None:
        """``sent_bytes`` against the prediction, of the rank that is farthest off, as a fraction; None if nothing is sent."""
        if not self.predicted_bytes:
            return None
        sent = self.kernel_bytes or (self.sent_bytes,)
        return max([n_bytes / self.predicted_bytes - 1 for n_bytes in sent], key=abs)


@dataclass(frozen=True)
class ScalingRow:
    """Strong scaling: one step of a fixed global batch on ``ranks`` ranks.

    Attributes:
        batch: samples in the global batch.
        ranks: N.
        step_s: measured, median over the steps.
        predicted_s: compute of a share of the batch plus the ring all-reduce, on the cores there are.
        one_core_each_s: the same if every rank had the cores that it has alone.
        speedup, predicted_speedup: one rank's time over this one's, measured and predicted.
    """

    batch: int
    ranks: int
    step_s: float
    predicted_s: float
    one_core_each_s: float
    speedup: float
    predicted_speedup: float


@dataclass(frozen=True, kw_only=True)
class DdpRun(LabRun):
    """A finished DDP lab.

    Attributes:
        parameters: of the model; ``n_bytes`` of its gradients in fp32.
        buckets: bytes of each of DDP's buckets.
        equality, wire, scaling: the measurements, row by row.
        accumulation_gap: largest parameter difference between accumulating with and without ``no_sync``, over all N.
        compute: fitted on one rank: seconds of a step against samples.
        link: fitted on an all-reduce alone on two ranks, whose times are its ``samples``; None for one rank.
    """

    lab: ClassVar[str] = "ddp"

    parameters: int
    n_bytes: int
    buckets: tuple[int, ...]
    equality: tuple[EqualityRow, ...]
    wire: tuple[WireRow, ...]
    accumulation_gap: float
    compute: Line
    link: LinkFit | None
    scaling: tuple[ScalingRow, ...]

    # ---- reading it ----

    def wire_row(self, ranks: int, micro_steps: int = 1, sync: str = "last") -> WireRow:
        """The row of :attr:`wire` with these settings."""
        return only(self.wire, "wire", ranks=ranks, micro_steps=micro_steps, sync=sync)

    def scaling_row(self, batch: int, ranks: int) -> ScalingRow:
        """The row of :attr:`scaling` with these settings."""
        return only(self.scaling, "scaling", batch=batch, ranks=ranks)

    @property
    def no_sync_factor(self) -> float:
        """How many times more DDP all-reduces per optimizer step without ``no_sync``: exactly the micro-batches."""
        ranks, several = max(row.ranks for row in self.wire), self.settings["micro_steps"]
        every, last = (self.wire_row(ranks, several, sync) for sync in ("every", "last"))
        return every.payload_bytes / last.payload_bytes

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        failed = [
            f"{ranks_words(row.ranks)}: DDP is not equal to one process (loss {row.loss_gap:.1e}, "
            f"parameters {row.parameter_gap:.1e}, allowed {SAME:.0e})"
            for row in self.equality
            # Written so that a NaN fails.
            if not (row.loss_gap <= SAME and row.parameter_gap <= SAME)
        ]
        failed += [
            f"{ranks_words(row.ranks)}, {row.micro_steps} micro-batches, all-reduce after {row.sync}: each rank sends "
            f"{row.gap:+.2%} against the prediction (allowed {WIRE_TOLERANCE:.0%})"
            for row in self.wire
            if row.gap is not None and not abs(row.gap) <= WIRE_TOLERANCE
        ]
        if self.no_sync_factor != self.settings["micro_steps"]:
            failed.append(
                f"no_sync saves a factor of {self.no_sync_factor}, not {self.settings['micro_steps']}"
            )
        if not self.accumulation_gap <= SAME:
            failed.append(f"no_sync changes the result (parameters differ by {self.accumulation_gap:.1e})")
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"equality"``, ``"wire"``, ``"scaling"``."""
        return {"equality": self._equality_table, "wire": self._wire_table, "scaling": self._scaling_table}

    def _equality_table(self) -> Table:
        rows = [
            (str(row.ranks), f"{row.loss_gap:.1e}", f"{row.parameter_gap:.1e}", f"{row.silent_gap:.1e}")
            for row in self.equality
        ]
        return Table(
            caption=f"DDP against one process on the same global batches, {self.equality[0].steps} steps: largest difference",
            columns=("Ranks", "Loss", "Parameters", "Parameters without all-reduce"),
            rows=tuple(rows),
        )

    def _wire_table(self) -> Table:
        rows = []
        for row in self.wire:
            sync = "every" if row.sync == "every" else ("last (no_sync)" if row.micro_steps > 1 else "last")
            counts = (f"{row.payload_bytes:,.0f}", f"{row.predicted_bytes:,.0f}", f"{row.sent_bytes:,.0f}")
            gap = "-" if row.gap is None else f"{row.gap:+.2%}"
            rows.append((str(row.ranks), str(row.micro_steps), sync, *counts, gap))
        sent = "Payload × 2(N-1)/N, B" if self.reading is None else "Sent (kernel), B"
        return Table(
            caption=f"Bytes that one rank sends per optimizer step; P = {self.n_bytes:,} B of gradients",
            columns=(
                "Ranks",
                "Micro-batches",
                "All-reduce after",
                "Payload, B",
                "Predicted 2(N-1)/N·P, B",
                sent,
                "Against predicted",
            ),
            rows=tuple(rows),
            notes=(self._reading_words(),),
            label_columns=3,
        )

    def _reading_words(self) -> str:
        payload = "Payload: the buckets that DDP hands to all-reduce, summed."
        if self.reading is None:
            return (
                f"{payload} The kernel's count of sent bytes can't be read here: what you see instead is the payload "
                "times the textbook factor."
            )
        return (
            f"{payload} Sent: the kernel's counters of the ranks' TCP connections ({self.reading}), mean over the "
            "ranks; the last column is of the rank farthest off."
        )

    def _scaling_table(self) -> Table:
        rows = [
            (
                str(row.batch),
                str(row.ranks),
                f"{row.step_s * 1e3:.1f}",
                f"{row.predicted_s * 1e3:.1f}",
                "fitted" if row.ranks == 1 else f"{row.step_s / row.predicted_s - 1:+.0%}",
                f"{row.speedup:.2f}",
                f"{row.predicted_speedup:.2f}",
                f"{row.one_core_each_s * 1e3:.1f}",
            )
            for row in self.scaling
        ]
        return Table(
            caption="Strong scaling: one step of a fixed global batch, predicted and measured",
            columns=(
                "Global batch",
                "Ranks",
                "Measured, ms",
                "Predicted, ms",
                "Measured against predicted",
                "Speedup measured",
                "Speedup predicted",
                "Predicted if no core were shared, ms",
            ),
            rows=tuple(rows),
            notes=(self._model_words(),),
            label_columns=2,
        )

    def _model_words(self) -> str:
        words = (
            f"Prediction: {format_time(self.compute.fixed_s, 3)} + {format_time(self.compute.per_unit_s, 3)} per sample "
            "of compute, fitted on one rank"
        )
        if self.link is None:
            return words + "."
        return (
            f"{words}; a ring all-reduce of {format_bytes(self.n_bytes, 3)} in {len(self.buckets)} buckets at "
            f"{format_bandwidth(self.link.bandwidth, 3)} and {format_time(self.link.latency_s, 3)} per hop, fitted on "
            f"an all-reduce alone on {self._teams()[1]} ranks; nothing overlaps. Where ranks outnumber the "
            f"{cores_words(self.stamp.cores)}, all of it takes N/cores times as long."
        )

    def _teams(self) -> list[int]:
        return [row.ranks for row in self.equality]

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if self.link is None:
            return ["With one rank there is nothing to send: run the lab with more ranks."]
        words = [self._wire_words(), *[self._batch_words(batch) for batch in self.settings["batches"]]]
        if self._core_share(max(self._teams())) > 1:
            words.append(self._core_words())
        return [*words, self._miss_words()]

    def _wire_words(self) -> str:
        row = self.wire_row(max(self._teams()))
        words = (
            f"On {ranks_words(row.ranks)} each rank sends {format_bytes(row.sent_bytes)} per step for "
            f"{format_bytes(row.payload_bytes)} of gradients: 2(N-1)/N times as much"
        )
        if row.kernel_bytes is not None:
            extra = row.sent_bytes - row.predicted_bytes
            words += f"; gloo's message headers add {format_bytes(extra, 3)}" if extra >= 0 else ""
        return (
            f"{words}. Over {self.settings['micro_steps']} micro-batches, no_sync all-reduces once and so sends "
            f"{self.no_sync_factor:g} times less; the parameters stay the same to {self.accumulation_gap:.0e}."
        )

    def _batch_words(self, batch: int) -> str:
        one, most = self.scaling_row(batch, 1), self.scaling_row(batch, max(self._teams()))
        best = min([row for row in self.scaling if row.batch == batch], key=lambda row: row.step_s)
        share = self._core_share(most.ranks)
        compute, ring = (
            share * self.compute.at(batch / most.ranks),
            share * _ring_s(self.buckets, most.ranks, self.link),
        )
        verdict = "more ranks are slower" if most.step_s > one.step_s else "more ranks are faster"
        return (
            f"Global batch {batch}: {ranks_words(most.ranks)} take {format_time(most.step_s, 3)} per step and one takes "
            f"{format_time(one.step_s, 3)}, a speedup of {most.speedup:.2f}: {verdict}. "
            f"Predicted for {ranks_words(most.ranks)}: {format_time(compute, 3)} of compute and {format_time(ring, 3)} of "
            f"all-reduce. The fastest measured is {ranks_words(best.ranks)}."
        )

    def _core_words(self) -> str:
        most = max(self._teams())
        return (
            f"{ranks_words(most)} share {cores_words(self.stamp.cores)} here, so compute and all-reduce both take "
            f"{self._core_share(most):g} times as long as with a core for each. On loopback the cores are also the "
            "wire: every byte is copied and added up by a core that could have computed. So a model of a network "
            "fails here until the cores are counted, and nothing here says how fast a real link is."
        )

    def _miss_words(self) -> str:
        worst = max(self.scaling, key=lambda row: abs(row.step_s / row.predicted_s - 1))
        return (
            f"The prediction is off by at most {abs(worst.step_s / worst.predicted_s - 1):.0%} "
            f"(global batch {worst.batch}, {ranks_words(worst.ranks)}). What it leaves out: caches that a smaller share "
            "fits better, the scheduler, whatever else the machine is doing, and compute that hides part of the all-reduce."
        )

    def _core_share(self, ranks: int) -> float:
        return _core_share(self.backend, ranks, self.threads, self.stamp.cores)

    def plot(self, dark: bool = False) -> Any:
        """Speedup against ranks, measured (solid) and predicted (dashed), one line per global batch; a figure."""
        from shardlab.labs.ddp_plot import speedup_figure

        return speedup_figure(self.scaling, dark)


@lab(
    title="Data parallelism on real processes: equal results, bytes on the wire, no_sync, strong scaling",
    seconds=20,
    needs="torch",
    options={
        "ranks": "Largest number of ranks; 1, 2, 4, ... up to it are measured.",
        "batches": "Global batch sizes for strong scaling.",
        "steps": "Timed steps for each number of ranks and batch.",
        "micro_steps": "Micro-batches per optimizer step where accumulation is counted.",
        **RUN_OPTIONS,
    },
    worker_file="ddp_worker.py",
    shown=("training_step",),
    result=DdpRun,
)
def ddp(
    ranks: int = 4,
    *,
    batches: Sequence[int] = (64, 512),
    steps: int = 12,
    micro_steps: int = 4,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> DdpRun:
    """Train a small model with torch DDP on 1, 2, 4, ... ``ranks`` processes; check, count, time and predict.

    (a) Losses and parameters against one process on the same global batches. (b) Bytes on the wire per rank and
    step, by the kernel, beside ``2 (N-1)/N * P``. (c) The same with gradient accumulation, with and without
    ``no_sync``. (d) Strong scaling: measured step times beside a prediction fitted on one rank and on an all-reduce
    alone.

    Args:
        ranks: largest number of ranks, 1 to 64.
        batches: two or more different global batch sizes, samples; every number of ranks must divide each of them.
        steps: timed steps for each batch and number of ranks.
        micro_steps: micro-batches per optimizer step in (c), 2 or more.
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
    sizes = _batch_sizes(batches, n_ranks)
    settings = {
        "ranks": n_ranks,
        "batches": sizes,
        "steps": count("steps", steps),
        "micro_steps": count("micro_steps", micro_steps, least=2),
    }
    limit = positive("limit_s", limit_s, "seconds")
    params = {**settings, "teams": teams(n_ranks)}
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _batch_sizes(batches: Sequence[int], ranks: int) -> list[int]:
    if isinstance(batches, (str, bytes)) or not isinstance(batches, Sequence):
        raise ValueError(f"batches must be a list of global batch sizes, not {batches!r}")
    sizes = [count("each of batches", size) for size in batches]
    if len(set(sizes)) != len(sizes) or len(sizes) < 2:
        raise ValueError(f"batches must hold at least two sizes, all different, not {batches!r}")
    for size in sizes:
        for n in teams(ranks):
            if size % n:
                raise ValueError(
                    f"batches must be divisible by each number of ranks ({teams(ranks)}), not {size}"
                )
    return sizes


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> DdpRun:
    where = machine.stamp()
    medians = {
        (cell["batch"], cell["ranks"]): statistics.median(cell["seconds"]) for cell in measured["steps"]
    }
    compute = fit_line([(batch, seconds) for (batch, ranks), seconds in medians.items() if ranks == 1])
    samples = [
        sample(point["n_bytes"], point["seconds"], point["ranks"]) for point in measured.get("allreduce", [])
    ]
    try:
        link = fit_link(samples) if samples else None
    except ValueError as error:
        # Not the caller's mistake: the machine was too busy.
        raise LabError(
            f"no prediction can be fitted: {error}", cause="measurement", partial=measured
        ) from None
    buckets = tuple(next(cell for cell in measured["wire"] if cell["micro_steps"] == 1)["buckets"])
    scaling = []
    for (batch, ranks), step_s in medians.items():
        alone = compute.at(batch)
        apart = compute.at(batch / ranks) + _ring_s(buckets, ranks, link)
        predicted = apart * _core_share(measured["backend"], ranks, measured["threads"], where.cores)
        scaling.append(
            ScalingRow(
                batch=batch,
                ranks=ranks,
                step_s=step_s,
                predicted_s=predicted,
                one_core_each_s=apart,
                speedup=medians[batch, 1] / step_s,
                predicted_speedup=alone / predicted,
            )
        )
    return DdpRun(
        settings=settings,
        stamp=where,
        backend=measured["backend"],
        reading=measured["reading"],
        threads=measured["threads"],
        parameters=measured["parameters"],
        n_bytes=FP32_BYTES * measured["parameters"],
        buckets=buckets,
        elapsed_s=elapsed_s,
        equality=tuple([EqualityRow(**row) for row in measured["equality"]]),
        wire=tuple([_wire_row(cell, FP32_BYTES * measured["parameters"]) for cell in measured["wire"]]),
        accumulation_gap=max(cell["gap_to_every"] for cell in measured["wire"] if "gap_to_every" in cell),
        compute=compute,
        link=link,
        scaling=tuple(scaling),
    )


def _ring_s(buckets: Sequence[int], ranks: int, link: LinkFit | None) -> float:
    """One all-reduce per bucket, one after the other."""
    if ranks == 1 or link is None:
        return 0.0
    return sum(link.time_s(size, ranks) for size in buckets)


def _core_share(backend: str, ranks: int, threads: int, cores: int) -> float:
    """How many times slower everything runs when ``ranks * threads`` threads share ``cores``; GPUs are not shared."""
    return 1.0 if backend == "nccl" else max(1.0, ranks * threads / cores)


def _wire_row(cell: dict[str, Any], n_bytes: int) -> WireRow:
    allreduces = cell["micro_steps"] if cell["sync"] == "every" else 1
    return WireRow(
        ranks=cell["ranks"],
        micro_steps=cell["micro_steps"],
        sync=cell["sync"],
        payload_bytes=max(cell["payload"]) / cell["steps"],
        predicted_bytes=allreduces * ring_allreduce_sent_bytes(n_bytes, cell["ranks"]),
        kernel_bytes=None
        if cell["kernel"] is None
        else tuple([sent / cell["steps"] for sent in cell["kernel"]]),
    )
