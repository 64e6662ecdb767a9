"""The pipeline lab: every schedule that torch runs on this machine, its idle time and memory predicted and measured.

>>> from shardlab import labs
>>> run = labs.pipeline(ranks=4)
>>> run.table("bubble")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import choice, count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.rank import launched_elsewhere
from shardlab.labs.result import LabRun, common, ranks_words
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.table import Table
from shardlab.models.pipeline import PipelineRun, bubble_of_total, execute, simulate
from shardlab.models.pipeline_schedules import KINDS, operation_text
from shardlab.units import format_time

WORKER = "shardlab.labs.pipeline_worker:worker"

# fp32 keeps 7 digits; sums over a few micro-batches in another order stay far below this.
SAME = 1e-5


@dataclass(frozen=True)
class Kind:
    """A schedule that the lab can run.

    Attributes:
        torch_class: in ``torch.distributed.pipelining``; None for the loops written by hand.
        model: what :func:`shardlab.models.pipeline.simulate` calls it; None if it has no name there.
        chunks: stages per rank.
        placement: ``"loop"`` or ``"v"``: which stages a rank holds.
    """

    torch_class: str | None
    model: str | None
    chunks: int
    placement: str


SCHEDULES = {
    "gpipe-by-hand": Kind(None, "gpipe", 1, "loop"),
    "1f1b-by-hand": Kind(None, "1f1b", 1, "loop"),
    "GPipe": Kind("ScheduleGPipe", "gpipe", 1, "loop"),
    "1F1B": Kind("Schedule1F1B", "1f1b", 1, "loop"),
    "Interleaved1F1B": Kind("ScheduleInterleaved1F1B", "interleaved-1f1b", 2, "loop"),
    "LoopedBFS": Kind("ScheduleLoopedBFS", None, 2, "loop"),
    "InterleavedZeroBubble": Kind("ScheduleInterleavedZeroBubble", None, 2, "loop"),
    "ZBVZeroBubble": Kind("ScheduleZBVZeroBubble", "zb-v", 2, "v"),
    "DualPipeV": Kind("ScheduleDualPipeV", "dualpipe-v", 2, "v"),
}
DEFAULT = ("gpipe-by-hand", "1f1b-by-hand", "GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble")


@dataclass(frozen=True)
class ScheduleRow:
    """One training step under one schedule, as it happened.

    Attributes:
        name: of :data:`SCHEDULES`.
        chunks: stages per rank v.
        orders: per rank what it ran, in order, as :func:`shardlab.models.pipeline.execute` reads it.
        starts_s, ends_s: per rank the begin and end of each entry, seconds since the first begin of all.
        in_flight: per rank the most micro-batches that waited for their backward; a stage's counts 1/v.
        loss_gap: largest difference of a micro-batch's loss to the unsplit model.
        gradient_gap: largest difference of any gradient on any rank to the unsplit model on the global batch.
    """

    name: str
    chunks: int
    orders: tuple[str, ...]
    starts_s: tuple[tuple[float, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]
    in_flight: tuple[float, ...]
    loss_gap: float
    gradient_gap: float

    @property
    def makespan_s(self) -> float:
        """From the first begin to the last end."""
        return max([end for ends in self.ends_s for end in ends])

    @property
    def busy_s(self) -> float:
        """Working time, all ranks together."""
        return sum(
            [
                end - start
                for starts, ends in zip(self.starts_s, self.ends_s, strict=True)
                for start, end in zip(starts, ends, strict=True)
            ]
        )

    @property
    def bubble_of_total(self) -> float:
        """Idle time over total time, all ranks together."""
        return 1 - self.busy_s / (len(self.orders) * self.makespan_s)

    @property
    def bubble_of_ideal(self) -> float:
        """Idle time over working time, all ranks together."""
        return len(self.orders) * self.makespan_s / self.busy_s - 1


@dataclass(frozen=True, kw_only=True)
class PipelineLabRun(LabRun):
    """A finished pipeline lab.

    Attributes:
        schedules: one training step each.
        deadlock: for ranks 0 and 1 where they stood two seconds long in 1F1B with sends that wait, or
            ``"finished"``; empty if that was not tried.
    """

    lab: ClassVar[str] = "pipeline"

    schedules: tuple[ScheduleRow, ...]
    deadlock: tuple[str, ...]

    # ---- reading it ----

    def row(self, name: str) -> ScheduleRow:
        """The measured step of one schedule."""
        for row in self.schedules:
            if row.name == name:
                return row
        known = ", ".join([row.name for row in self.schedules])
        raise ValueError(f"name must be one of {known}, not {name!r}")

    def prediction(self, name: str) -> PipelineRun:
        """The same step by the executor: same ranks, micro-batches, stages per rank and times, free transfers.

        A schedule without a name in the models is predicted from the order that torch ran, read from the row.
        """
        row, kind = self.row(name), SCHEDULES[name]
        ranks, batches = self.settings["ranks"], self.settings["micro_batches"]
        forward_s, input_s, weight_s = self._seconds()
        if kind.model is None:
            times = (forward_s, input_s, weight_s)
            return execute(row.orders, times, 0.0, kind.chunks, kind.placement, batches)
        # A schedule with a fixed number of stages per rank takes no other argument than 1.
        chunks = kind.chunks if kind.model == "interleaved-1f1b" else 1
        return simulate(kind.model, ranks, batches, forward_s, input_s, weight_s, chunks=chunks)

    def _seconds(self) -> tuple[float, float, float]:
        """Of a micro-batch's forward, input gradient and weight gradient on one rank."""
        return (
            self.settings["forward_s"],
            self.settings["backward_input_s"],
            self.settings["backward_weight_s"],
        )

    def runs_as_published(self, name: str) -> bool:
        """Whether every rank ran the operations in the order that the models have for this schedule."""
        predicted = self.prediction(name)
        orders: list[list[str]] = [[] for _ in range(predicted.stages)]
        for done in predicted.operations:
            slot = KINDS.index(done.kind) * predicted.chunks + done.chunk
            orders[done.rank].append(operation_text(slot, done.micro_batch, predicted.chunks))
        return [order.replace("+", " ").split() for order in self.row(name).orders] == orders

    @property
    def overrun_s(self) -> float:
        """How much longer an operation took than it was asked to, mean over all."""
        asked = sum([sum(self.prediction(row.name).busy_s) for row in self.schedules])
        entries = sum([len(starts) for row in self.schedules for starts in row.starts_s])
        return (sum([row.busy_s for row in self.schedules]) - asked) / entries

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        failed = []
        for row in self.schedules:
            # Written so that a NaN fails.
            if not (row.loss_gap <= SAME and row.gradient_gap <= SAME):
                failed.append(
                    f"{row.name}: not equal to the unsplit model (loss {row.loss_gap:.1e}, gradients "
                    f"{row.gradient_gap:.1e}, allowed {SAME:.0e})"
                )
            if not self.runs_as_published(row.name):
                failed.append(f"{row.name}: the ranks ran another order than the published one")
            predicted = self.prediction(row.name).in_flight_peak
            if list(row.in_flight) != list(predicted):
                failed.append(
                    f"{row.name}: in flight are {_list(row.in_flight)} micro-batches, predicted {_list(predicted)}"
                )
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"bubble"``, ``"memory"``, ``"equality"``, and ``"deadlock"`` where one was looked for."""
        tables = {
            "bubble": self._bubble_table,
            "memory": self._memory_table,
            "equality": self._equality_table,
        }
        return {**tables, "deadlock": self._deadlock_table} if self.deadlock else tables

    def _bubble_table(self) -> Table:
        rows = []
        for row in self.schedules:
            predicted = self.prediction(row.name)
            rows.append(
                (
                    row.name,
                    str(row.chunks),
                    f"{predicted.makespan_s * 1e3:.0f}",
                    f"{row.makespan_s * 1e3:.0f}",
                    f"{predicted.bubble_of_total:.3f}",
                    f"{row.bubble_of_total:.3f}",
                    f"{predicted.bubble_of_ideal:.3f}",
                    f"{row.bubble_of_ideal:.3f}",
                )
            )
        return Table(
            caption=f"Idle time of one training step, {self._sizes()}",
            columns=(
                "Schedule",
                "Stages per rank",
                "Step predicted, ms",
                "Step measured, ms",
                "Idle/total predicted",
                "Idle/total measured",
                "Idle/ideal predicted",
                "Idle/ideal measured",
            ),
            rows=tuple(rows),
            notes=(
                "Predicted: the executor of shardlab.models.pipeline with these times and free transfers"
                f"{self._ordered_words()}. Every operation is stretched to its time by sleeping.",
            ),
        )

    def _sizes(self) -> str:
        times = [seconds * 1e3 for seconds in self._seconds()]
        return (
            f"{ranks_words(self.settings['ranks'])}, {self.settings['micro_batches']} micro-batches, per rank and "
            f"micro-batch {times[0]:g} ms forward, {times[1]:g} ms input gradient, {times[2]:g} ms weight gradient"
        )

    def _ordered_words(self) -> str:
        names = [row.name for row in self.schedules if SCHEDULES[row.name].model is None]
        return f"; for {' and '.join(names)} from the order that torch ran" if names else ""

    def _memory_table(self) -> Table:
        rows = [
            (row.name, _list(self.prediction(row.name).in_flight_peak), _list(row.in_flight))
            for row in self.schedules
        ]
        return Table(
            caption="Most micro-batches in flight, rank by rank: their activations are kept for the backward",
            columns=("Schedule", "Predicted", "Measured"),
            rows=tuple(rows),
            notes=(
                "Measured: entries in torch's own caches (by hand: in the loop's), counted after every forward. "
                "One of v stages counts 1/v.",
            ),
        )

    def _equality_table(self) -> Table:
        rows = []
        for row in self.schedules:
            named = SCHEDULES[row.name].model is not None
            order = ("yes" if self.runs_as_published(row.name) else "no") if named else "torch's own"
            rows.append((row.name, f"{row.loss_gap:.1e}", f"{row.gradient_gap:.1e}", order))
        return Table(
            caption="Split against unsplit: largest difference, and whether the order run is the published one",
            columns=("Schedule", "Loss of a micro-batch", "Gradient", "Order as published"),
            rows=tuple(rows),
        )

    def _deadlock_table(self) -> Table:
        return Table(
            caption="1F1B on two ranks with sends that wait to be received: where each stands after two seconds",
            columns=("Rank", "Stands at"),
            rows=tuple([(str(rank), place) for rank, place in enumerate(self.deadlock)]),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if self.settings["ranks"] == 1:
            return ["One rank has nobody to wait for: run the lab with more ranks."]
        words = [
            self._same_bubble_words(),
            self._smaller_bubble_words(),
            self._miss_words(),
            self._deadlock_words(),
        ]
        return [text for text in words if text]

    def _pair(self, *pairs: tuple[str, str]) -> tuple[ScheduleRow, ScheduleRow] | None:
        """The first pair of schedules that were both measured."""
        names = [row.name for row in self.schedules]
        for one, other in pairs:
            if one in names and other in names:
                return self.row(one), self.row(other)
        return None

    def _same_bubble_words(self) -> str:
        pair = self._pair(("GPipe", "1F1B"), ("gpipe-by-hand", "1f1b-by-hand"))
        if pair is None:
            return ""
        gpipe, alternating = pair
        ranks, batches = self.settings["ranks"], self.settings["micro_batches"]
        return (
            f"{gpipe.name} idles {gpipe.bubble_of_total:.3f} of the total time and {alternating.name} "
            f"{alternating.bubble_of_total:.3f}; (p-1)/(m+p-1) is {bubble_of_total(ranks, batches):.3f} for both. "
            f"What 1F1B saves is memory: rank 0 keeps {alternating.in_flight[0]:g} micro-batches instead of "
            f"{gpipe.in_flight[0]:g}, and it stays at that however many micro-batches there are."
        )

    def _smaller_bubble_words(self) -> str:
        names = [row for row in self.schedules if row.chunks > 1]
        if not names:
            return ""
        best = min(names, key=lambda row: self.prediction(row.name).bubble_of_total)
        predicted = self.prediction(best.name)
        return (
            f"Of the schedules with {best.chunks} stages per rank, {best.name} should idle least: "
            f"{predicted.bubble_of_total:.3f} of the total time, measured {best.bubble_of_total:.3f}. Smaller stages "
            "fill the pipeline sooner, and a weight gradient, which nobody waits for, can fill a gap; the price is "
            f"more messages and, on rank 0, {best.in_flight[0]:g} micro-batches in flight."
        )

    def _miss_words(self) -> str:
        worst = max(self.schedules, key=lambda row: abs(row.bubble_of_total - self._predicted_total(row)))
        return (
            f"The measured idle/total is farthest from the prediction for {worst.name}: {worst.bubble_of_total:.3f} "
            f"against {self._predicted_total(worst):.3f}. An operation took {format_time(self.overrun_s, 2)} longer "
            "than it was asked to on average; messages, waking up from a sleep and torch's own work between "
            "operations are in the idle time, and count for more the shorter the stages are. Sleeping stands in for "
            f"computing, because {ranks_words(self.settings['ranks'])} can't compute at once on "
            f"{self.stamp.cores} cores: the order's idle time is real, the speed of a device is not shown."
        )

    def _predicted_total(self, row: ScheduleRow) -> float:
        return self.prediction(row.name).bubble_of_total

    def _deadlock_words(self) -> str:
        if not self.deadlock:
            return ""
        if "finished" in self.deadlock:
            return "1F1B with sends that wait came to its end here: this backend buffers such small messages."
        return (
            "With sends that wait until they are received, 1F1B stops for good: one rank sends an activation down "
            "while its neighbour sends a gradient up, and neither comes to its receive. Sending without waiting "
            "(isend) breaks the circle, and so does posting both at once, as torch's 1F1B does."
        )

    def plot(self, dark: bool = False, name: str | None = None) -> Any:
        """Timelines of one schedule (by default the first), predicted above measured; a figure."""
        from shardlab.labs.pipeline_plot import timeline_figure

        chosen = self.schedules[0].name if name is None else name
        return timeline_figure(self.row(chosen), self.prediction(chosen), dark)


def _list(values: Sequence[float]) -> str:
    return ", ".join([f"{value:g}" for value in values])


@lab(
    title="Pipeline parallelism on real processes: seven schedules and two by hand, bubble, in-flight memory, deadlock",
    seconds=22,
    needs="torch",
    options={
        "ranks": "Number of ranks p.",
        "micro_batches": "Micro-batches m, a multiple of the ranks; by default twice the ranks.",
        "schedules": f"Which to run: {', '.join(SCHEDULES)}, or all.",
        "forward_s": "Seconds of one micro-batch's forward on one rank.",
        "backward_input_s": "Seconds of its input gradient.",
        "backward_weight_s": "Seconds of its weight gradient.",
        "deadlock": "Also let 1F1B with sends that wait get stuck.",
        **RUN_OPTIONS,
    },
    worker_file="pipeline_worker.py",
    shown=("HandStage", "gpipe_step", "one_f_one_b_step", "PatientStage"),
    result=PipelineLabRun,
)
def pipeline(
    ranks: int = 4,
    *,
    micro_batches: int | None = None,
    schedules: Sequence[str] = DEFAULT,
    forward_s: float = 0.06,
    backward_input_s: float = 0.06,
    backward_weight_s: float = 0.06,
    deadlock: bool = True,
    limit_s: float = 150.0,
    start: str = "auto",
    show: bool = True,
) -> PipelineLabRun:
    """Run one training step under several pipeline schedules; compare idle time, memory and results with prediction.

    Each schedule runs twice: once to open connections, once measured. A rank notes the begin and end of every
    forward, input gradient and weight gradient on the clock that all processes of a machine share. Each of them is
    stretched to the given time by sleeping, because a few cores can't compute all stages at once.

    Args:
        ranks: pipeline ranks p, 1 to 64.
        micro_batches: m, a multiple of ``ranks``, and at least twice that for DualPipeV; None is twice that.
        schedules: names from :data:`SCHEDULES`, or ``["all"]``.
        forward_s, backward_input_s, backward_weight_s: seconds of one micro-batch on one rank, all its stages
            together; with two stages per rank take at least 0.04, or what torch does between two operations shows.
        deadlock: at the end, also run 1F1B on two ranks with sends that wait, and see where it gets stuck.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL; that path was not run for this book. The clock is one machine's: several
    machines would need theirs compared first.
    """
    n_ranks = count("ranks", ranks, most=MOST_RANKS)
    names = _names(schedules)
    settings = {
        "ranks": n_ranks,
        "micro_batches": _micro_batches(micro_batches, n_ranks, names),
        "schedules": names,
        "forward_s": positive("forward_s", forward_s, "seconds"),
        "backward_input_s": positive("backward_input_s", backward_input_s, "seconds"),
        "backward_weight_s": positive("backward_weight_s", backward_weight_s, "seconds"),
        # Ranks that a launcher started must end in order, and a stuck one doesn't.
        "deadlock": bool(deadlock) and n_ranks > 1 and not launched_elsewhere(),
    }
    limit = positive("limit_s", limit_s, "seconds")
    params = {
        "micro_batches": settings["micro_batches"],
        "deadlock": settings["deadlock"],
        "schedules": [{"name": name, **_kind(name)} for name in names],
        "seconds": {
            "F": settings["forward_s"],
            "B": settings["backward_input_s"],
            "W": settings["backward_weight_s"],
        },
    }
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    measured = outcome.results[0]
    return PipelineLabRun(
        **common(measured, settings, outcome.elapsed_s),
        schedules=tuple([_row(row) for row in measured["schedules"]]),
        deadlock=tuple([row["stands"] for row in measured.get("deadlock", [])]),
    )


def _names(schedules: Sequence[str]) -> list[str]:
    if isinstance(schedules, str) or not isinstance(schedules, Sequence) or not schedules:
        raise ValueError(f"schedules must be a list of names, not {schedules!r}")
    names = [choice("each of schedules", name, (*SCHEDULES, "all")) for name in schedules]
    return list(SCHEDULES) if "all" in names else list(dict.fromkeys(names))


def _micro_batches(micro_batches: int | None, ranks: int, names: list[str]) -> int:
    if micro_batches is None:
        return 2 * ranks
    batches = count("micro_batches", micro_batches)
    least = 2 * ranks if "DualPipeV" in names else ranks
    if batches % ranks or batches < least:
        raise ValueError(
            f"micro_batches must be a multiple of the {ranks_words(ranks)} and at least {least} for these schedules, "
            f"not {micro_batches!r}"
        )
    return batches


def _kind(name: str) -> dict[str, Any]:
    kind = SCHEDULES[name]
    return {"torch_class": kind.torch_class, "chunks": kind.chunks, "placement": kind.placement}


def _row(measured: dict[str, Any]) -> ScheduleRow:
    return ScheduleRow(
        name=measured["name"],
        chunks=measured["chunks"],
        orders=tuple(measured["orders"]),
        starts_s=tuple([tuple(starts) for starts in measured["starts_s"]]),
        ends_s=tuple([tuple(ends) for ends in measured["ends_s"]]),
        in_flight=tuple(measured["in_flight"]),
        loss_gap=measured["loss_gap"],
        gradient_gap=measured["gradient_gap"],
    )
