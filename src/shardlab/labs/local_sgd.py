"""The local-SGD lab: averaging parameters now and then instead of gradients always; what it saves and what it loses.

>>> from shardlab import labs
>>> run = labs.local_sgd(ranks=4)
>>> run.table("training")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, non_negative, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, only, ranks_words
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import allowed_gap_bytes
from shardlab.labs.table import Table
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.units import format_bytes

WORKER = "shardlab.labs.local_sgd_worker:worker"
FP32_BYTES = 4
# fp32 keeps 7 digits; a few steps of differently ordered sums stay far below this.
SAME = 1e-5
# The same over some hundred steps, in the loss.
SAME_LOSS = 1e-3
SHARDS = ("mixed", "sorted")

PAIRS = {
    "one process": "synchronous SGD and one process on the global batch",
    "local, H = 1": "local SGD with H = 1 and synchronous SGD",
    "plain outer step": "DiLoCo with plain SGD inside and outside (rate 1) and local SGD",
    "local, H > 1": "local SGD with H = 4 and synchronous SGD",
}
# The last pair is there to differ: it shows that the comparison can tell.
DIFFERENT = "local, H > 1"


@dataclass(frozen=True)
class EqualityRow:
    """Two ways to train that should (or should not) end with the same parameters.

    Attributes:
        pair: a key of :data:`PAIRS`.
        steps: steps trained.
        parameter_gap: largest absolute difference of any parameter on any rank.
    """

    pair: str
    steps: int
    parameter_gap: float


@dataclass(frozen=True)
class TrainingRow:
    """One training from the common start.

    Attributes:
        method: such as ``"local SGD"``.
        every: H, steps from one averaging to the next; 0 if the ranks never speak.
        shards: ``"mixed"`` (each rank sees all classes) or ``"sorted"`` (each sees few).
        steps: T.
        predicted_bytes: of one rank in a step, on average.
        kernel_bytes: the same, counted, by rank; None where it can't be read.
        losses: (step, held-out loss) on the way, the loss a mean over the ranks' models.
    """

    method: str
    every: int
    shards: str
    steps: int
    predicted_bytes: float
    kernel_bytes: tuple[float, ...] | None
    losses: tuple[tuple[int, float], ...]

    @property
    def loss(self) -> float:
        """Held-out loss after the last step."""
        return self.losses[-1][1]

    @property
    def sent_bytes(self) -> float:
        """What the busiest rank sends in a step, by the kernel; without a reading, as predicted."""
        return max(self.kernel_bytes) if self.kernel_bytes else self.predicted_bytes

    @property
    def label(self) -> str:
        """Method and H."""
        return f"{self.method}, H = {self.every}" if self.every > 1 else self.method


@dataclass(frozen=True, kw_only=True)
class LocalSgdRun(LabRun):
    """A finished local-SGD lab.

    Attributes:
        parameters: of the model; ``n_bytes`` of them in fp32, P.
        samples_per_step: global batch.
        equality, training: the measurements, row by row.
    """

    lab: ClassVar[str] = "local_sgd"

    parameters: int
    n_bytes: int
    samples_per_step: int
    equality: tuple[EqualityRow, ...]
    training: tuple[TrainingRow, ...]

    # ---- reading it ----

    def row(self, method: str, every: int, shards: str = "mixed") -> TrainingRow:
        """The row of :attr:`training` with these settings."""
        return only(self.training, "training", method=method, every=every, shards=shards)

    @property
    def _ranks(self) -> int:
        return int(self.settings["ranks"])

    @property
    def _longest(self) -> int:
        return int(max(self.settings["intervals"]))

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Losses are never judged."""
        failed = [
            f"{PAIRS[row.pair]} are not equal (parameters differ by {row.parameter_gap:.1e}, allowed {SAME:.0e})"
            for row in self.equality
            # Written so that a NaN fails.
            if row.pair != DIFFERENT and not row.parameter_gap <= SAME
        ]
        failed += [
            f"{PAIRS[row.pair]} do not differ: the comparison can't tell"
            for row in self.equality
            if row.pair == DIFFERENT and self._ranks > 1 and not row.parameter_gap > SAME
        ]
        failed += [
            f"{row.label}, {row.shards} shards: a rank sends {row.sent_bytes:,.0f} bytes per step, predicted are "
            f"{row.predicted_bytes:,.0f}"
            for row in self.training
            if not self._as_predicted(row)
        ]
        failed += [
            f"{row.label}, {row.shards} shards: the loss is {row.loss}"
            for row in self.training
            if not all(math.isfinite(loss) for _, loss in row.losses)
        ]
        mixed, by_class = (self.row("synchronous SGD", 1, shards) for shards in SHARDS)
        if not abs(mixed.loss - by_class.loss) <= SAME_LOSS:
            failed.append(
                "synchronous SGD ends at different losses with mixed and sorted shards of the same global batches "
                f"({mixed.loss:.5f} and {by_class.loss:.5f})"
            )
        return failed

    def _as_predicted(self, row: TrainingRow) -> bool:
        sends = 2 * (self._ranks - 1) / row.every if row.every else 0
        allowed = allowed_gap_bytes(row.predicted_bytes, sends)
        return all(abs(sent - row.predicted_bytes) <= allowed for sent in row.kernel_bytes or ())

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"equality"``, ``"training"``."""
        return {"equality": self._equality_table, "training": self._training_table}

    def _equality_table(self) -> Table:
        rows = [
            (
                PAIRS[row.pair],
                f"{row.parameter_gap:.1e}",
                "differ" if row.pair == DIFFERENT else f"≤ {SAME:.0e}",
            )
            for row in self.equality
        ]
        return Table(
            caption=f"Trained both ways for {self.equality[0].steps} steps on sorted shards: largest parameter difference",
            columns=("What is compared", "Difference", "Should be"),
            rows=tuple(rows),
        )

    def _training_table(self) -> Table:
        rows = []
        for row in [row for row in self.training if row.shards == "mixed"]:
            by_class = self.row(row.method, row.every, "sorted")
            gap = f"{row.sent_bytes / row.predicted_bytes - 1:+.2%}" if row.predicted_bytes else "-"
            rows.append(
                (
                    row.method,
                    str(row.every or "never"),
                    f"{row.predicted_bytes:,.0f}",
                    f"{row.sent_bytes:,.0f}",
                    gap,
                    f"{row.loss:.3f}",
                    f"{by_class.loss:.3f}",
                )
            )
        samples = self.training[0].steps * self.samples_per_step
        sent = "Predicted again (no reading)" if self.reading is None else "Sent (kernel)"
        return Table(
            caption=f"{ranks_words(self._ranks)}, {self.training[0].steps} steps, {samples:,} samples each once, "
            f"P = {self.n_bytes:,} B of parameters: bytes of one rank per step, and held-out loss at the end",
            columns=(
                "Training",
                "H",
                "Predicted 2(N-1)/N·P/H, B",
                f"{sent}, B",
                "Against predicted",
                "Loss, mixed shards",
                "Loss, sorted shards",
            ),
            rows=tuple(rows),
            notes=(self._reading_note(),),
            label_columns=2,
        )

    def _reading_note(self) -> str:
        words = (
            "Mixed: each rank draws from all classes. Sorted: each step's samples are dealt out by class, so that a rank "
            "sees few of them. "
        )
        if self.reading is None:
            return f"{words}The kernel's count of sent bytes can't be read here."
        return f"{words}Sent: the kernel's counters ({self.reading}) over the whole training, of the busiest rank."

    # ---- in words ----

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if self._ranks == 1:
            return ["With one rank there is nothing to send: run the lab with more ranks."]
        return [
            self._byte_words(),
            self._loss_words("mixed"),
            self._loss_words("sorted"),
            self._diloco_words(),
            self._limit_words(),
        ]

    def _byte_words(self) -> str:
        every, some = self.row("synchronous SGD", 1), self.row("local SGD", self._longest)
        return (
            f"Synchronous SGD sends {format_bytes(every.sent_bytes)} per rank and step, averaging once in "
            f"{self._longest} steps {format_bytes(some.sent_bytes)}: {every.sent_bytes / some.sent_bytes:.4g} times less. "
            "DiLoCo sends the same as local SGD with its H. Parameters and gradients are equally many, so H alone counts."
        )

    def _loss_words(self, shards: str) -> str:
        together, alone = self.row("synchronous SGD", 1, shards), self.row("alone, SGD", 0, shards)
        parts = [
            f"{row.loss:.3f} with H = {row.every}"
            for row in self.training
            if row.method == "local SGD" and row.shards == shards
        ]
        ending = {
            "mixed": "The ranks' samples are alike, so between two averagings they drift little.",
            "sorted": "Each rank walks towards its own classes, and the mean of models that far apart is no good model: "
            "here talking less has a price.",
        }[shards]
        return (
            f"Loss after the same samples, {shards} shards: {together.loss:.3f} synchronous, {', '.join(parts)}, "
            f"{alone.loss:.3f} if the ranks never speak. {ending}"
        )

    def _diloco_words(self) -> str:
        rounds, momentum = self.training[0].steps // self._longest, self.settings["outer_momentum"]
        parts = [
            f"{row.loss:.3f} ({row.shards}, H = {row.every})"
            for row in self.training
            if row.method == "DiLoCo"
        ]
        mixed, by_class = (self.row("synchronous AdamW", 1, shards).loss for shards in SHARDS)
        return (
            f"DiLoCo ends at {', '.join(parts)}; synchronous AdamW at {mixed:.3f} and {by_class:.3f}. Its outer step is "
            f"Nesterov's with rate {self.settings['outer_lr']:g} and momentum {momentum:g}, which looks back over about "
            f"{1 / (1 - momentum):.0f} rounds: H = {self._longest} leaves it {rounds} in all. It also keeps two more "
            f"copies of the parameters on each rank, {format_bytes(2 * self.n_bytes)}."
        )

    def _limit_words(self) -> str:
        return (
            f"This is a small classifier, trained for {self.training[0].steps} steps. The published result, 8 workers that "
            "match synchronous training with 500 times less communication, is of language models (Douillard et "
            "al. 2023); nothing here proves or refutes it. The bytes do carry over: they depend on P, N and H alone. No "
            "time is shown: on loopback, communication costs cores instead of a link."
        )

    def plot(self, dark: bool = False) -> Any:
        """Held-out loss against bytes sent so far, for mixed and for sorted shards; a figure."""
        from shardlab.labs.local_sgd_plot import loss_figure

        return loss_figure(self.training, dark)


@lab(
    title="Local SGD and DiLoCo: average once in H steps, count the bytes saved and the loss it costs",
    seconds=40,
    needs="torch",
    options={
        "ranks": "Number of ranks.",
        "intervals": "H: steps from one averaging of the parameters to the next.",
        "steps": "Training steps; a multiple of each H.",
        "outer_lr": "DiLoCo's outer learning rate.",
        "outer_momentum": "DiLoCo's outer Nesterov momentum.",
        **RUN_OPTIONS,
    },
    worker_file="local_sgd_worker.py",
    shown=("synchronous", "local_sgd", "diloco", "average"),
    result=LocalSgdRun,
)
def local_sgd(
    ranks: int = 4,
    *,
    intervals: Sequence[int] = (8, 64),
    steps: int = 256,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> LocalSgdRun:
    """Train one model on ``ranks`` processes that average every step, once in H steps, or never; count and compare.

    Synchronous SGD averages gradients in each step. Local SGD averages parameters once in H steps (Stich 2019).
    DiLoCo trains with AdamW inside, and takes the ranks' mean move over H steps as the gradient of an outer Nesterov
    step (Douillard et al. 2023, arXiv:2311.08105, algorithm 1; its outer rate and momentum are the defaults).

    Args:
        ranks: number of ranks N.
        intervals: values of H, each 2 or more, all different.
        steps: training steps T; a multiple of each H, so that every training ends just averaged.
        outer_lr: DiLoCo's outer rate, above 0.
        outer_momentum: DiLoCo's outer momentum, from 0 to below 1; 0 means plain SGD.
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
    n_steps = count("steps", steps)
    momentum = non_negative("outer_momentum", outer_momentum)
    if momentum >= 1:
        raise ValueError(f"outer_momentum must be from 0 to below 1, not {outer_momentum!r}")
    settings = {
        "ranks": n_ranks,
        "intervals": _intervals(intervals, n_steps),
        "steps": n_steps,
        "outer_lr": positive("outer_lr", outer_lr),
        "outer_momentum": momentum,
    }
    limit = positive("limit_s", limit_s, "seconds")
    outcome = run(WORKER, n_ranks, settings, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _intervals(intervals: Sequence[int], steps: int) -> list[int]:
    if isinstance(intervals, (str, bytes)) or not isinstance(intervals, Sequence):
        raise ValueError(f"intervals must be a list of whole numbers of steps, not {intervals!r}")
    checked = sorted([count("each of intervals", every, least=2) for every in intervals])
    if len(set(checked)) != len(checked) or not checked:
        raise ValueError(f"intervals must hold at least one H, all different, not {list(intervals)!r}")
    for every in checked:
        if steps % every:
            raise ValueError(f"steps must be a multiple of each of intervals, {checked}, not {steps}")
    return checked


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> LocalSgdRun:
    n_bytes = FP32_BYTES * measured["parameters"]
    return LocalSgdRun(
        **common(measured, settings, elapsed_s),
        parameters=measured["parameters"],
        n_bytes=n_bytes,
        samples_per_step=measured["samples_per_step"],
        equality=tuple([EqualityRow(**row) for row in measured["equality"]]),
        training=tuple([_training_row(row, n_bytes, settings) for row in measured["training"]]),
    )


def _training_row(row: dict[str, Any], n_bytes: int, settings: dict[str, Any]) -> TrainingRow:
    every, steps, kernel = row["every"], settings["steps"], row["kernel_bytes"]
    one = ring_allreduce_sent_bytes(n_bytes, settings["ranks"])
    return TrainingRow(
        method=row["method"],
        every=every,
        shards=row["shards"],
        steps=steps,
        predicted_bytes=one / every if every else 0.0,
        kernel_bytes=None if kernel is None else tuple([sent / steps for sent in kernel]),
        losses=tuple([(step, loss) for step, loss in row["losses"]]),
    )
