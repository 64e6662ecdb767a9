"""The straggler lab: a synchronous step takes as long as its slowest rank, predicted and measured.

>>> from shardlab import labs
>>> run = labs.straggler(ranks=4)
>>> run.table()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.table import Table
from shardlab.models.stragglers import (
    JitterStep,
    exponential_jitter_step,
    normal_jitter_step,
    slow_rank_step,
    straggler_from_collectives,
    without_slow_ranks_speedup,
)

WORKER = "shardlab.labs.straggler_worker:worker"

# fp32 keeps 7 digits; averaging over a few ranks stays far below this.
SAME = 1e-5


@dataclass(frozen=True)
class StepsRow:
    """Steps of one kind, means over the steps.

    Attributes:
        ranks: N that took part.
        steps: how many.
        step_s: wall time of a step.
        compute_s: per rank, until it arrives at the all-reduce.
        collective_s: per rank, in the all-reduce: waiting for the last rank, and the all-reduce itself.
        asked_s: per rank, how long it was told to compute.
        asked_max_s: of the slowest rank of each step, as told: what the very draws predict.
        gradient_gap: largest difference of an averaged gradient to that of one process on the global batch.
    """

    ranks: int
    steps: int
    step_s: float
    compute_s: tuple[float, ...]
    collective_s: tuple[float, ...]
    asked_s: tuple[float, ...]
    asked_max_s: float
    gradient_gap: float


@dataclass(frozen=True)
class SlowRow(StepsRow):
    """The last rank is slower by ``delay_s`` in every step."""

    delay_s: float

    @property
    def shortest_in_collective(self) -> int | None:
        """The rank that the collectives accuse: it waits least. None for a single rank."""
        return straggler_from_collectives(list(self.collective_s)) if self.ranks > 1 else None


@dataclass(frozen=True)
class JitterRow(StepsRow):
    """Every rank draws its time anew in every step: ``kind`` is ``"normal"`` or ``"exponential"``."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class StragglerRun(LabRun):
    """A finished straggler lab.

    Attributes:
        slow: one rank slower by each delay; the first has delay 0.
        without: the same work with the slow rank left out; empty for one rank.
        jitter: random times on all ranks, by kind and N.
    """

    lab: ClassVar[str] = "straggler"

    slow: tuple[SlowRow, ...]
    without: tuple[StepsRow, ...]
    jitter: tuple[JitterRow, ...]

    # ---- reading it ----

    def slow_row(self, delay_s: float) -> SlowRow:
        """The row of :attr:`slow` with this delay."""
        return only(self.slow, "slow", delay_s=delay_s)

    def jitter_row(self, kind: str, ranks: int) -> JitterRow:
        """The row of :attr:`jitter` with these settings."""
        return only(self.jitter, "jitter", kind=kind, ranks=ranks)

    @property
    def overhead_s(self) -> float:
        """What a step takes beside the computing, with all ranks alike: the one thing that is fitted, on one row."""
        return self.slow_row(0.0).step_s - float(self.settings["base_s"])

    def predicted_slow_s(self, row: SlowRow) -> float:
        """The slow rank's time, and the overhead."""
        base = self.settings["base_s"]
        step = slow_rank_step(base, (base + row.delay_s) / base, row.ranks)
        return step.expected_step_s + self.overhead_s

    def predicted_jitter(self, row: JitterRow) -> JitterStep:
        """The expected slowest of N draws, without overhead."""
        base, spread = self.settings["base_s"], self.settings["jitter_s"]
        if row.kind == "normal":
            return normal_jitter_step(base, spread, row.ranks)
        return exponential_jitter_step(base, spread, row.ranks)

    def jitter_overhead_s(self, row: JitterRow) -> float:
        """What a step of this kind takes beside the computing, from the row of one rank."""
        alone = self.jitter_row(row.kind, 1)
        return alone.step_s - alone.asked_max_s

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        rows = [
            *[(f"slower by {row.delay_s * 1e3:g} ms", row) for row in self.slow],
            *[("slow rank left out", row) for row in self.without],
            *[(f"{row.kind} jitter", row) for row in self.jitter],
        ]
        return [
            f"{words}, {ranks_words(row.ranks)}: the averaged gradients are not those of one process "
            f"({row.gradient_gap:.1e}, allowed {SAME:.0e})"
            for words, row in rows
            # Written so that a NaN fails.
            if not row.gradient_gap <= SAME
        ]

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"slow"``, ``"waiting"``, ``"jitter"``."""
        return {"slow": self._slow_table, "waiting": self._waiting_table, "jitter": self._jitter_table}

    def _slow_table(self) -> Table:
        rows = []
        for row in self.slow:
            predicted = self.predicted_slow_s(row)
            against = "fitted" if row.delay_s == 0 else f"{row.step_s / predicted - 1:+.1%}"
            rows.append((f"{row.delay_s * 1e3:g}", _ms(predicted), _ms(row.step_s), against))
        return Table(
            caption=f"A step of {ranks_words(self.settings['ranks'])}, each computing "
            f"{self.settings['base_s'] * 1e3:g} ms, the last one longer",
            columns=(
                "Last rank slower by, ms",
                "Predicted, ms",
                "Measured, ms",
                "Measured against predicted",
            ),
            rows=tuple(rows),
            notes=(
                f"Predicted: the slow rank's time plus {_ms(self.overhead_s)} ms of all-reduce and program, fitted on "
                "the first row.",
            ),
        )

    def _waiting_table(self) -> Table:
        ranks = range(self.settings["ranks"])
        rows = []
        for row in self.slow:
            accused = row.shortest_in_collective
            words = "-" if accused is None else f"rank {accused}"
            rows.append((f"{row.delay_s * 1e3:g}", *[_ms(seconds) for seconds in row.collective_s], words))
        return Table(
            caption="Where the time is seen: each rank's time in the all-reduce, ms per step",
            columns=("Last rank slower by, ms", *[f"Rank {rank}" for rank in ranks], "Shortest"),
            rows=tuple(rows),
            notes=(
                "The rank with the shortest time arrived last. Where all ranks are alike, the shortest means nothing.",
            ),
        )

    def _jitter_table(self) -> Table:
        rows = []
        for row in self.jitter:
            overhead = self.jitter_overhead_s(row)
            expected = self.predicted_jitter(row).expected_step_s + overhead
            drawn = row.asked_max_s + overhead
            against = "fitted" if row.ranks == 1 else f"{row.step_s / drawn - 1:+.1%}"
            rows.append((row.kind, str(row.ranks), _ms(expected), _ms(drawn), _ms(row.step_s), against))
        return Table(
            caption=f"Jitter on all ranks, {self.settings['base_s'] * 1e3:g} ms and a random part of "
            f"{self.settings['jitter_s'] * 1e3:g} ms: a step takes the slowest draw",
            columns=(
                "Jitter",
                "Ranks",
                "Expected maximum, ms",
                "Maximum of the draws, ms",
                "Measured, ms",
                "Measured against the draws",
            ),
            rows=tuple(rows),
            notes=(
                "normal: the random part is the standard deviation; exponential: the mean of a delay on top. The "
                f"draws are seeded, {self.settings['steps']} steps each; the overhead, fitted on one rank, is in all "
                "columns.",
            ),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if self.settings["ranks"] == 1:
            return ["One rank waits for nobody: run the lab with more ranks."]
        return [
            self._slow_words(),
            self._waiting_words(),
            self._without_words(),
            self._jitter_words(),
            self._miss_words(),
        ]

    def _slow_words(self) -> str:
        worst, healthy = self.slow[-1], self.slow_row(0.0)
        return (
            f"One of {worst.ranks} ranks that is slower by {worst.delay_s * 1e3:g} ms makes every step take "
            f"{_ms(worst.step_s)} ms instead of {_ms(healthy.step_s)} ms: all of its delay, on all ranks. Every rank "
            "shows the same step time, so step times can't tell which one it is."
        )

    def _waiting_words(self) -> str:
        worst = self.slow[-1]
        fast = worst.collective_s[:-1]
        return (
            f"The time in the all-reduce can: the fast ranks spend {_ms(min(fast))} to {_ms(max(fast))} ms in it, "
            f"waiting, and the slow one {_ms(worst.collective_s[-1])} ms. Long collectives accuse the wrong ranks; "
            f"the shortest is rank {worst.shortest_in_collective}'s, and rank {worst.ranks - 1} is the slow one."
        )

    def _without_words(self) -> str:
        worst, without = self.slow[-1], self.without[0]
        base = self.settings["base_s"]
        predicted = without_slow_ranks_speedup((base + worst.delay_s) / base, worst.ranks)
        measured = (without.ranks / without.step_s) / (worst.ranks / worst.step_s)
        verdict = "faster" if measured > 1 else "slower"
        return (
            f"Left out, its share of the samples is gone too: {ranks_words(without.ranks)} take "
            f"{_ms(without.step_s)} ms a step, {measured:.2f} times the samples per second (predicted "
            f"{predicted:.2f} without overhead): {verdict} without it, each rank keeping its batch (weak scaling)."
        )

    def _jitter_words(self) -> str:
        most = self.settings["ranks"]
        parts = []
        for kind in ("normal", "exponential"):
            row, alone = self.jitter_row(kind, most), self.jitter_row(kind, 1)
            parts.append(
                f"with {kind} jitter {ranks_words(most)} take {_ms(row.step_s)} ms where one takes {_ms(alone.step_s)} ms "
                f"(the models: {self.predicted_jitter(row).slowdown:.2f} times as long, measured "
                f"{row.step_s / alone.step_s:.2f})"
            )
        return (
            f"No rank need be worse than another: {' and '.join(parts)}. The maximum of more draws is larger; with a "
            "long tail it keeps growing with every doubling of the ranks, and on many ranks that costs more."
        )

    def _miss_words(self) -> str:
        worst = max(self.jitter, key=lambda row: abs(self._sampling_gap(row)))
        return (
            f"The expected maximum holds for endless steps; in these {worst.steps} the draws themselves are off by up "
            f"to {abs(self._sampling_gap(worst)):.1%} ({worst.kind}, {ranks_words(worst.ranks)}). What is left between "
            "the draws and the measurement is waking up from a sleep, the all-reduce, and whatever else the machine "
            "is doing; on loopback nothing of it says how long a network takes."
        )

    def _sampling_gap(self, row: JitterRow) -> float:
        return row.asked_max_s / self.predicted_jitter(row).expected_step_s - 1


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


@lab(
    title="Stragglers on real processes: one slow rank, jitter on all, and who is to blame",
    seconds=25,
    needs="torch",
    options={
        "ranks": "Number of ranks; jitter is measured on 1, 2, 4, ... up to it.",
        "base_s": "Seconds that a rank computes in a step.",
        "delays_s": "Seconds by which the last rank is slower; each is measured.",
        "jitter_s": "Size of the random part, seconds.",
        "steps": "Steps with jitter for each kind and number of ranks.",
        "seed": "Seed of the jitter.",
        **RUN_OPTIONS,
    },
    worker_file="straggler_worker.py",
    shown=("training_step",),
    result=StragglerRun,
)
def straggler(
    ranks: int = 4,
    *,
    base_s: float = 0.05,
    delays_s: Sequence[float] = (0.05, 0.2),
    jitter_s: float = 0.01,
    steps: int = 30,
    seed: int = 0,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> StragglerRun:
    """Time data-parallel steps with one slow rank and with jitter on all ranks, beside the models of stragglers.

    (a) The last rank computes longer than the others: step time, and each rank's time in the all-reduce. (b) The slow
    rank left out. (c) Every rank draws its time anew in every step, from a normal and an exponential distribution, on
    1, 2, 4, ... ranks: measured beside the maximum of the very draws and beside its expectation.

    Args:
        ranks: N, 1 to 64.
        base_s: seconds that a rank computes in a step (it sleeps for most of that).
        delays_s: by how much the last rank is slower, seconds; a run without delay is always measured first.
        jitter_s: standard deviation (normal) and mean (exponential) of the random part, at most a third of ``base_s``.
        steps: steps for each kind of jitter and number of ranks, 2 or more; a third as many without jitter.
        seed: of the draws.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL, whose calls return before the collective is done: the times in the all-reduce
    would then need the device to be waited for. That path was not run for this book.
    """
    n_ranks = count("ranks", ranks, most=MOST_RANKS)
    base = positive("base_s", base_s, "seconds")
    spread = positive("jitter_s", jitter_s, "seconds")
    if spread > base / 3:
        raise ValueError(f"jitter_s must be at most a third of base_s = {base_s!r}, not {jitter_s!r}")
    n_steps = count("steps", steps, least=2)
    settings: dict[str, Any] = {
        "ranks": n_ranks,
        "base_s": base,
        "delays_s": _delays(delays_s),
        "jitter_s": spread,
        "steps": n_steps,
        "seed": count("seed", seed, least=0),
    }
    params = {
        **settings,
        "delays_s": [0.0, *settings["delays_s"]],
        "steady_steps": max(2, n_steps // 3),
        "teams": teams(n_ranks),
    }
    limit = positive("limit_s", limit_s, "seconds")
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    measured = outcome.results[0]
    return StragglerRun(
        **common(measured, settings, outcome.elapsed_s),
        slow=tuple([SlowRow(**_tuples(row)) for row in measured["slow"]]),
        without=tuple([StepsRow(**_tuples(row)) for row in measured.get("without", [])]),
        jitter=tuple([JitterRow(**_tuples(row)) for row in measured["jitter"]]),
    )


def _delays(delays_s: Sequence[float]) -> list[float]:
    if isinstance(delays_s, str) or not isinstance(delays_s, Sequence) or not delays_s:
        raise ValueError(f"delays_s must be a list of seconds, not {delays_s!r}")
    delays = [positive("each of delays_s", delay, "seconds") for delay in delays_s]
    return sorted(set(delays))


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
