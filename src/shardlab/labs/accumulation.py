"""The accumulation lab: one optimizer step over several micro-batches under DDP, done right and in the wrong ways.

>>> from shardlab import labs
>>> run = labs.accumulation(ranks=4)
>>> run.table()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.ddp import WireRow
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, only, ranks_words
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import WIRE_TOLERANCE
from shardlab.labs.table import Table
from shardlab.models.batch import weighted_loss
from shardlab.models.communication import data_traffic
from shardlab.units import format_bytes

WORKER = "shardlab.labs.accumulation_worker:worker"
FP32_BYTES = 4

# fp32 keeps 7 digits: sums in another order agree to this, relative to the gradient's length or the loss.
SAME = 1e-5
# Parameters after a few steps, relative to the way they moved; Adam divides by small numbers on that way.
SAME_PARAMETERS = 1e-4

WAYS = {
    "no_sync": "no_sync, all but the last micro-batch",
    "every": "without no_sync",
    "backward_only": "no_sync around backward only",
    "clip_once": "clip once, after the last",
    "flag_late": "sync flag set after forward",
    "undivided": "loss not divided by M",
    "clip_every": "clip after every micro-batch",
    "step_every": "optimizer step every micro-batch",
    "step_quiet": "the same, with no_sync kept",
}
RIGHT_WAYS = ("no_sync", "every", "backward_only", "clip_once")

# Whether DDP all-reduces after every micro-batch; the others do it once.
SYNC_EVERY = {"no_sync": False, "every": True, "backward_only": True, "flag_late": False}
SYNC = {"no_sync": "last", "every": "every", "backward_only": "every", "flag_late": "first"}

WEIGHTINGS = {
    "global_tokens": "sum × N / tokens of all ranks",
    "mean_of_means": "mean of each micro-batch's mean",
    "rank_tokens": "sum / tokens of this rank",
    "world_missing": "sum / tokens of all ranks, no × N",
}


@dataclass(frozen=True)
class WayRow:
    """A way to accumulate, against one process that takes the whole batch at once.

    Gradients are those of the first step, just before the optimizer uses them. Distances are 2-norms; of several
    ranks, the worst. "Moved" is how far the single process's parameters are from where they started.

    Attributes:
        way: one of :data:`WAYS`.
        gradient_factor: how many times the right gradient is in the one held by rank 0; None where the gradient that
            is left is of the last micro-batch alone.
        gradient_error: distance to the right gradient / its length.
        predicted_error: the same by :func:`shardlab.models.batch.ddp_gradients`, on every 61st parameter.
        prediction_gap: distance between the gradient that each rank holds and the model's, / length of the right
            one, on those parameters; None (as above) where the model says nothing.
        sgd_error, adam_error: distance of the parameters to the single process's after the last step / moved.
        sgd_apart, adam_apart: distance of the ranks' parameters to rank 0's / moved.
    """

    way: str
    gradient_factor: float | None
    gradient_error: float | None
    predicted_error: float | None
    prediction_gap: float | None
    sgd_error: float
    sgd_apart: float
    adam_error: float
    adam_apart: float


@dataclass(frozen=True)
class WayWire(WireRow):
    """Bytes of one optimizer step; as in the DDP lab, and ``sync`` may also be ``"first"``.

    Attributes:
        way: one of :data:`WAYS`.
    """

    way: str


@dataclass(frozen=True)
class TokenRow:
    """A weighting of micro-batches of unequal token counts, against one process with all tokens in one batch.

    Attributes:
        weighting: one of :data:`WEIGHTINGS`.
        loss: of the first step, as each rank adds it up, mean over the ranks.
        predicted_loss: by :func:`shardlab.models.batch.weighted_loss`, from each micro-batch's mean loss.
        gradient_factor, gradient_error, predicted_error, prediction_gap: as in :class:`WayRow`.
        error, apart: parameters after the last step of SGD, as in :class:`WayRow`.
    """

    weighting: str
    loss: float
    predicted_loss: float
    gradient_factor: float
    gradient_error: float
    predicted_error: float
    prediction_gap: float
    error: float
    apart: float


@dataclass(frozen=True, kw_only=True)
class AccumulationRun(LabRun):
    """A finished accumulation lab.

    Attributes:
        parameters: of the model; ``n_bytes`` of its gradients in fp32.
        max_norm: the threshold where gradients are clipped: half the length of the first step's.
        text_tokens: tokens of each micro-batch of each rank: ``[rank][micro-batch]``; ``text_losses`` their mean losses.
        ways, wire, tokens: the measurements, row by row.
    """

    lab: ClassVar[str] = "accumulation"

    parameters: int
    n_bytes: int
    max_norm: float
    text_tokens: tuple[tuple[int, ...], ...]
    text_losses: tuple[tuple[float, ...], ...]
    ways: tuple[WayRow, ...]
    wire: tuple[WayWire, ...]
    tokens: tuple[TokenRow, ...]

    # ---- reading it ----

    def way(self, name: str) -> WayRow:
        """The row of :attr:`ways` with this name."""
        return only(self.ways, "way", way=name)

    def wire_row(self, way: str) -> WayWire:
        """The row of :attr:`wire` of this way."""
        return only(self.wire, "wire", way=way)

    def weighting(self, name: str) -> TokenRow:
        """The row of :attr:`tokens` with this name."""
        return only(self.tokens, "weighting", weighting=name)

    @property
    def ranks(self) -> int:
        """N."""
        return int(self.settings["ranks"])

    @property
    def micro_steps(self) -> int:
        """M, micro-batches of one rank per optimizer step."""
        return int(self.settings["micro_steps"])

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        return [*self._failed_ways(), *self._failed_wire(), *self._failed_tokens()]

    def _failed_ways(self) -> list[str]:
        failed = []
        for row in self.ways:
            words = WAYS[row.way]
            parameters = (row.sgd_error, row.adam_error, row.sgd_apart, row.adam_apart)
            # Written so that a NaN fails.
            equal = row.gradient_error is not None and row.gradient_error <= SAME
            if row.way in RIGHT_WAYS and not equal:
                failed.append(
                    f"{words}: the gradient is not one process's (off by {_optional(row.gradient_error, '.1e')} of its length, "
                    f"allowed {SAME:.0e})"
                )
            if row.way in RIGHT_WAYS and not all(gap <= SAME_PARAMETERS for gap in parameters):
                failed.append(
                    f"{words}: the parameters are not one process's, or not the same on all ranks (SGD "
                    f"{row.sgd_error:.1e} and {row.sgd_apart:.1e}, Adam {row.adam_error:.1e} and {row.adam_apart:.1e}, "
                    f"allowed {SAME_PARAMETERS:.0e})"
                )
            failed += _failed_prediction(words, row.prediction_gap)
        return failed

    def _failed_wire(self) -> list[str]:
        failed = []
        for row in self.wire:
            wanted = self.n_bytes * (self.micro_steps if SYNC_EVERY[row.way] else 1)
            if row.payload_bytes != wanted:
                failed.append(
                    f"{WAYS[row.way]}: DDP hands {row.payload_bytes:,.0f} B to all-reduce per optimizer step, "
                    f"not {wanted:,} B"
                )
            if row.gap is not None and not abs(row.gap) <= WIRE_TOLERANCE:
                failed.append(
                    f"{WAYS[row.way]}: each rank sends {row.gap:+.2%} against the prediction "
                    f"(allowed {WIRE_TOLERANCE:.0%})"
                )
        return failed

    def _failed_tokens(self) -> list[str]:
        failed = []
        for row in self.tokens:
            words = WEIGHTINGS[row.weighting]
            right = row.weighting == "global_tokens"
            equal = (
                row.gradient_error <= SAME and row.error <= SAME_PARAMETERS and row.apart <= SAME_PARAMETERS
            )
            if right and not equal:
                failed.append(
                    f"{words}: not equal to one process with all tokens (gradient off by {row.gradient_error:.1e}, "
                    f"allowed {SAME:.0e}; parameters {row.error:.1e}, apart {row.apart:.1e}, allowed "
                    f"{SAME_PARAMETERS:.0e})"
                )
            if not abs(row.loss / row.predicted_loss - 1) <= SAME:
                failed.append(f"{words}: the loss is {row.loss:.6f}, predicted {row.predicted_loss:.6f}")
            failed += _failed_prediction(words, row.prediction_gap)
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"ways"``, ``"wire"``, ``"tokens"``."""
        return {"ways": self._ways_table, "wire": self._wire_table, "tokens": self._tokens_table}

    def _size_words(self) -> str:
        return f"{ranks_words(self.ranks)}, M = {self.micro_steps} micro-batches each"

    def _ways_table(self) -> Table:
        rows = [
            (
                WAYS[row.way],
                _optional(row.gradient_factor, ".2f"),
                _share(row.predicted_error),
                _share(row.gradient_error),
                _share(row.sgd_error),
                _share(row.sgd_apart),
                _share(row.adam_error),
                _share(row.adam_apart),
            )
            for row in self.ways
        ]
        return Table(
            caption=f"Accumulation against one process with the whole batch; {self._size_words()}",
            columns=(
                "Way",
                "Times the right gradient",
                "Gradient off, predicted",
                "Gradient off, measured",
                "SGD: parameters off",
                "SGD: ranks apart",
                "Adam: parameters off",
                "Adam: ranks apart",
            ),
            rows=tuple(rows),
            notes=(
                f"With several ranks, only the first {len(RIGHT_WAYS)} give the right result. Gradient: of the first step, "
                "relative to the right one's length, worst rank; predicted from every micro-batch's own gradient, on "
                f"every 61st parameter. Parameters: after {self.settings['steps']} steps, relative to the way that one "
                f"process moved. Clipped at norm {self.max_norm:.3g}, and compared with one process that clips once.",
            ),
        )

    def _wire_table(self) -> Table:
        rows = []
        for row in self.wire:
            counts = (f"{row.payload_bytes:,.0f}", f"{row.predicted_bytes:,.0f}", f"{row.sent_bytes:,.0f}")
            gap = "-" if row.gap is None else f"{row.gap:+.2%}"
            rows.append((WAYS[row.way], row.sync, *counts, gap))
        sent = "Payload × 2(N-1)/N, B" if self.reading is None else "Sent (kernel), B"
        note = (
            "The kernel's count of sent bytes can't be read here: what you see instead is the payload times the "
            "textbook factor."
            if self.reading is None
            else f"Sent: the kernel's counters of the ranks' TCP connections ({self.reading}), mean over the ranks."
        )
        return Table(
            caption=f"Bytes that one rank sends per optimizer step; {self._size_words()}, P = {self.n_bytes:,} B",
            columns=(
                "Way",
                "All-reduce after",
                "Payload, B",
                "Predicted, B",
                sent,
                "Against predicted",
            ),
            rows=tuple(rows),
            notes=(f"Payload: the buckets that DDP hands to all-reduce, summed. {note}",),
            label_columns=2,
        )

    def _tokens_table(self) -> Table:
        rows = [
            (
                WEIGHTINGS[row.weighting],
                f"{row.predicted_loss:.4f}",
                f"{row.loss:.4f}",
                f"{row.gradient_factor:.2f}",
                _share(row.predicted_error),
                _share(row.gradient_error),
                _share(row.error),
            )
            for row in self.tokens
        ]
        sizes = [size for mine in self.text_tokens for size in mine]
        return Table(
            caption=f"Unequal micro-batches, {min(sizes)} to {max(sizes)} tokens, {sum(sizes):,} in all; "
            f"{self._size_words()}",
            columns=(
                "Each micro-batch's loss",
                "Loss, predicted",
                "Loss, measured",
                "Times the right gradient",
                "Gradient off, predicted",
                "Gradient off, measured",
                "SGD: parameters off",
            ),
            rows=tuple(rows),
            notes=(
                "Against one process with all tokens in one batch; with several ranks only the first row equals it. DDP divides by N "
                "in every row. Short texts follow another rule than long ones.",
            ),
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        words = [self._right_words()]
        if self.ranks == 1:
            words.append(
                "With one rank nothing is averaged: the flag and no_sync change nothing. Run the lab with more ranks."
            )
        else:
            words += [self._backward_words(), self._flag_words()]
        return [*words, self._divided_words(), self._clip_words(), self._step_words(), self._token_words()]

    def _right_words(self) -> str:
        right, every = self.wire_row("no_sync"), self.wire_row("every")
        row = self.way("no_sync")
        words = (
            f"Done right, {self.micro_steps} micro-batches on {ranks_words(self.ranks)} are one large batch: the "
            f"gradient differs from one process's by {row.gradient_error:.0e} of its length"
        )
        if self.ranks == 1:
            return words + "."
        return (
            f"{words}, and each rank sends {format_bytes(right.sent_bytes)} per optimizer step. Without no_sync the "
            f"result is as good and each rank sends {format_bytes(every.sent_bytes)}, "
            f"{every.sent_bytes / right.sent_bytes:.2f} times as much.{_header_words(right)}"
        )

    def _backward_words(self) -> str:
        row = self.wire_row("backward_only")
        return (
            f"no_sync around backward alone saves nothing ({format_bytes(row.sent_bytes)}): DDP decides at the end of "
            "forward whether the backward pass to come will all-reduce."
        )

    def _flag_words(self) -> str:
        row, wire, right = self.way("flag_late"), self.wire_row("flag_late"), self.wire_row("no_sync")
        return (
            "The sync flag set between forward and backward raises no error and sends "
            f"{format_bytes(wire.sent_bytes)} against {format_bytes(right.sent_bytes)} done right, so the traffic does "
            "not show it. Forward reads the flag as the micro-batch before left it: the first of the step finds True, "
            "and the last finds False. So DDP averages the first micro-batch and no other. The gradient of the worst "
            f"rank is off by {row.gradient_error:.0%} (predicted {row.predicted_error:.0%}), and after "
            f"{self.settings['steps']} steps of SGD the ranks are {row.sgd_apart:.0%} of the way moved apart, each "
            "with a model of its own."
        )

    def _divided_words(self) -> str:
        row = self.way("undivided")
        return (
            f"A loss that is not divided by M makes the gradient {row.gradient_factor:.2f} times as long: with SGD, "
            f"{self.micro_steps} times the learning rate, and parameters off by {row.sgd_error:.0%}. Adam divides the "
            f"gradient by its own size, so there the slip hides: {row.adam_error:.1%}. It comes back with clipping, "
            "which then strikes too early."
        )

    def _clip_words(self) -> str:
        once, every = self.way("clip_once"), self.way("clip_every")
        return (
            "Clipping once, when the gradient is complete, equals one process "
            f"({once.gradient_error:.0e}). Clipping after every micro-batch cuts unfinished sums, and before the "
            "all-reduce each rank by a factor of its own: what early micro-batches found weighs less than what late "
            f"ones find, and the gradient is off by {every.gradient_error:.0%}."
        )

    def _step_words(self) -> str:
        every, quiet = self.way("step_every"), self.way("step_quiet")
        words = (
            f"An optimizer step after every micro-batch is {self.micro_steps} small steps instead of one. SGD with "
            f"the divided loss hardly notices ({every.sgd_error:.1%}), because short gradients make short steps. "
            f"Adam's steps don't shrink with the gradient: {every.adam_error:.0%}."
        )
        if self.ranks == 1:
            return words
        return (
            f"{words} With no_sync kept, ranks step on gradients of their own and part: SGD {quiet.sgd_apart:.0%}, "
            f"Adam {quiet.adam_apart:.0%} of the way moved."
        )

    def _token_words(self) -> str:
        means, mine = self.weighting("mean_of_means"), self.weighting("rank_tokens")
        missing, right = self.weighting("world_missing"), self.weighting("global_tokens")
        words = (
            "With unequal token counts, the mean of the micro-batches' means is not the mean over tokens: the loss "
            f"differs by {means.loss / right.loss - 1:+.1%}, which nobody sees, and the gradient is off by "
            f"{means.gradient_error:.0%}. Adding up losses, dividing by the tokens of all ranks and multiplying by N "
            f"(DDP divides by N) equals one process to {right.gradient_error:.0e}."
        )
        if self.ranks == 1:
            return words
        return (
            f"{words} Half a fix leaves half the mistake: with each rank's own token count the gradient is off by "
            f"{mine.gradient_error:.0%}, and without the × N it is {missing.gradient_factor:.3g} times as long as it "
            "should be."
        )


def _failed_prediction(words: str, gap: float | None) -> list[str]:
    if gap is None or gap <= SAME:
        return []
    return [
        f"{words}: the ranks don't hold the gradient that the model of DDP predicts (off by {gap:.1e}, allowed {SAME:.0e})"
    ]


def _header_words(row: WayWire) -> str:
    if row.kernel_bytes is None or row.gap is None or row.gap < 0:
        return ""
    return f" That is {row.gap:.2%} above the prediction: gloo's message headers."


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _share(value: float | None) -> str:
    """A fraction as a percentage; what is only rounding as a power of ten."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{value:.0e}" if value < SAME_PARAMETERS else f"{value:.1%}"


@lab(
    title="Gradient accumulation: equal to one large batch, and the ways in which it silently is not",
    seconds=15,
    needs="torch",
    options={
        "ranks": "Number of ranks.",
        "micro_steps": "Micro-batches of one rank per optimizer step.",
        "steps": "Optimizer steps after which parameters are compared.",
        **RUN_OPTIONS,
    },
    worker_file="accumulation_worker.py",
    shown=("accumulate", "flag_late", "token_step", "weights_global_tokens"),
    result=AccumulationRun,
)
def accumulation(
    ranks: int = 4,
    *,
    micro_steps: int = 4,
    steps: int = 3,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> AccumulationRun:
    """Accumulate gradients over micro-batches with DDP, right and wrong, beside one process with the whole batch.

    (a) Gradient, parameters and agreement of the ranks for ``no_sync``, for the sync flag set too late, a loss that is
    not divided, clipping and stepping after every micro-batch; with SGD and Adam. (b) Bytes per optimizer step.
    (c) Micro-batches of unequal token counts, weighted in four ways.

    Args:
        ranks: number of ranks, 1 to 64.
        micro_steps: micro-batches of one rank per optimizer step, 2 or more.
        steps: optimizer steps.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL, and the kernel then has no bytes to count; that path was not run for this book.
    """
    settings = {
        "ranks": count("ranks", ranks, least=1, most=MOST_RANKS),
        "micro_steps": count("micro_steps", micro_steps, least=2),
        "steps": count("steps", steps),
    }
    limit = positive("limit_s", limit_s, "seconds")
    # Nothing is timed: one thread per rank leaves a busy machine's cores alone.
    outcome = run(WORKER, settings["ranks"], settings, limit_s=limit, start=start, threads=1, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, int], elapsed_s: float) -> AccumulationRun:
    sizes, losses = measured["text_tokens"], measured["text_losses"]
    return AccumulationRun(
        **common(measured, settings, elapsed_s),
        parameters=measured["parameters"],
        n_bytes=FP32_BYTES * measured["parameters"],
        max_norm=measured["max_norm"],
        text_tokens=tuple([tuple(mine) for mine in sizes]),
        text_losses=tuple([tuple(mine) for mine in losses]),
        ways=tuple([WayRow(**row) for row in measured["ways"]]),
        wire=tuple([_wire_row(row, measured["parameters"], settings) for row in measured["wire"]]),
        tokens=tuple(
            [
                TokenRow(**row, predicted_loss=weighted_loss(sizes, losses, row["weighting"]))
                for row in measured["tokens"]
            ]
        ),
    )


def _wire_row(row: dict[str, Any], parameters: int, settings: dict[str, int]) -> WayWire:
    traffic = data_traffic(
        parameters,
        settings["ranks"],
        micro_batches=settings["micro_steps"],
        weight_bytes=FP32_BYTES,
        gradient_bytes=FP32_BYTES,
        sync_every_micro_batch=SYNC_EVERY[row["way"]],
    )
    return WayWire(
        way=row["way"],
        ranks=settings["ranks"],
        micro_steps=settings["micro_steps"],
        sync=SYNC[row["way"]],
        payload_bytes=row["payload"],
        predicted_bytes=traffic.total_bytes,
        kernel_bytes=None if row["kernel"] is None else tuple(row["kernel"]),
    )
