"""The restart lab: a rank of a training under torchrun is killed; what it loses, and whether it goes on exactly.

>>> from shardlab import labs
>>> run = labs.restart(ranks=2)
>>> run.table()
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs import machine
from shardlab.labs.lab import lab
from shardlab.labs.rank import launched_elsewhere
from shardlab.labs.result import LabRun, only
from shardlab.labs.run import MOST_RANKS, LabError, run
from shardlab.labs.table import Table
from shardlab.models.checkpoint import Recovery, checkpoint_cost, optimal_interval_s, recovery
from shardlab.units import format_time

TRAINING = "shardlab.labs.restart_worker:worker"
AGENT = "shardlab.labs.restart_agent:worker"
MAX_RESTARTS = 1
# How often torchrun looks whether its ranks still run: its own default.
MONITOR_S = 0.1
HOUR_S = 3600.0


@dataclass(frozen=True)
class Attempt:
    """What one rank did between a start and its end.

    Attributes:
        rank, attempt: the attempt is 0 before the kill and 1 after the restart.
        born_s: when its program began, seconds after the kill; None in the run without interruption.
        joined_s, loaded_s: when its process group was there, and the checkpoint read.
        first_step: steps done when it began, as its checkpoint says.
        losses: its loss of every step it did.
        done_s: when each of these steps was done.
        saved_s: how long each checkpoint took.
        digest: a hash of its parameters at the end; empty if it was ended.
    """

    rank: int
    attempt: int
    born_s: float | None
    joined_s: float
    loaded_s: float
    first_step: int
    losses: tuple[float, ...]
    done_s: tuple[float, ...]
    saved_s: tuple[float, ...]
    digest: str

    @property
    def last_step(self) -> int:
        """Steps done when it ended."""
        return self.first_step + len(self.losses)

    def loss(self, step: int) -> float | None:
        """The loss of step ``step`` (the first is 1); None if this attempt didn't do it."""
        index = step - self.first_step - 1
        return self.losses[index] if 0 <= index < len(self.losses) else None


@dataclass(frozen=True, kw_only=True)
class RestartRun(LabRun):
    """A finished restart lab.

    Attributes:
        attempts: under torchrun, every rank and attempt.
        uninterrupted: the same training without a kill, every rank.
    """

    lab: ClassVar[str] = "restart"

    attempts: tuple[Attempt, ...]
    uninterrupted: tuple[Attempt, ...]

    # ---- reading it ----

    def attempt(self, rank: int, attempt: int) -> Attempt:
        """What one rank did in one attempt."""
        return only(self.attempts, "attempts", rank=rank, attempt=attempt)

    def _all(self, attempt: int) -> list[Attempt]:
        return [row for row in self.attempts if row.attempt == attempt]

    @property
    def last_attempt(self) -> int:
        """0 without a restart."""
        return max([row.attempt for row in self.attempts])

    @property
    def killed_after(self) -> int:
        """Steps done before the kill."""
        return max([row.last_step for row in self._all(0)])

    @property
    def resumed_from(self) -> int:
        """Steps done according to the checkpoint that the restart found."""
        return min([row.first_step for row in self._all(self.last_attempt)])

    @property
    def lost_steps(self) -> int:
        """Steps that were done and had to be done again."""
        return self.killed_after - self.resumed_from

    @property
    def step_s(self) -> float:
        """Seconds of a step before the kill, median."""
        done = self.attempt(0, 0).done_s
        return statistics.median([after - before for before, after in itertools.pairwise(done)])

    @property
    def write_s(self) -> float:
        """Seconds of a checkpoint before the kill, median of the slowest rank's."""
        return statistics.median(max([row.saved_s for row in self._all(0)], key=sum))

    def start_s(self, attempt: int) -> float:
        """From the program's first line on the last rank to the process group on all."""
        rows = self._all(attempt)
        return max([row.joined_s for row in rows]) - max([row.born_s or 0.0 for row in rows])

    def measured_phases_s(self) -> dict[str, float]:
        """Seconds of each part of the recovery, by the names that the model has for them."""
        rows = self._all(self.last_attempt)
        loaded = max([row.loaded_s for row in rows])
        back = [row.done_s[self.lost_steps - 1] for row in rows] if self.lost_steps else [loaded]
        return {
            "detect": max([row.born_s or 0.0 for row in rows]),
            "restart": self.start_s(self.last_attempt),
            "load": loaded - max([row.joined_s for row in rows]),
            "redo": max(back) - loaded,
        }

    def predicted(self) -> Recovery:
        """The same from what was known before the kill."""
        return recovery(
            detect_s=MONITOR_S,
            restart_s=self.start_s(0),
            load_s=self.write_s,
            interval_s=self.settings["every"] * self.step_s,
            write_s=self.write_s,
        )

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        if self.last_attempt != MAX_RESTARTS:
            return [f"the ranks were started {self.last_attempt + 1} times, not {MAX_RESTARTS + 1}"]
        failed = []
        every = self.settings["every"]
        if self.resumed_from % every or not 0 <= self.lost_steps <= every:
            failed.append(
                f"training went on from step {self.resumed_from} after {self.killed_after} steps, with a checkpoint "
                f"every {every}: it must lose 0 to {every} steps"
            )
        for whole in self.uninterrupted:
            for attempt in range(self.last_attempt + 1):
                mine = self.attempt(whole.rank, attempt)
                others = whole.losses[mine.first_step : mine.last_step]
                # Bit for bit: a NaN differs from itself.
                wrong = [
                    mine.first_step + index + 1
                    for index, (one, other) in enumerate(zip(mine.losses, others, strict=True))
                    if one != other
                ]
                if wrong:
                    failed.append(
                        f"rank {whole.rank}, start {attempt + 1}: the losses of steps {wrong} differ from those "
                        "without interruption"
                    )
            after = self.attempt(whole.rank, self.last_attempt)
            if after.last_step != whole.last_step or not after.digest or after.digest != whole.digest:
                failed.append(
                    f"rank {whole.rank}: the parameters at the end differ from those without interruption"
                )
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"losses"``, ``"recovery"``."""
        return {"losses": self._losses_table, "recovery": self._recovery_table}

    def _losses_table(self) -> Table:
        (whole,) = [row for row in self.uninterrupted if row.rank == 0]
        before, after = self.attempt(0, 0), self.attempt(0, self.last_attempt)
        rows = []
        for step in range(1, whole.last_step + 1):
            found = [row.loss(step) for row in (whole, before, after)]
            last = found[2] if found[2] is not None else found[1]
            same = "yes" if last == found[0] else "no"
            rows.append((str(step), *["-" if loss is None else f"{loss:.9f}" for loss in found], same))
        return Table(
            caption=f"Loss on rank 0, {self.settings['ranks']} ranks, a checkpoint every {self.settings['every']} steps; "
            f"rank {self.settings['ranks'] - 1} is killed after step {self.killed_after}",
            columns=(
                "Step",
                "Without interruption",
                "Before the kill",
                "After the restart",
                "Equal, every bit",
            ),
            rows=tuple(rows),
            notes=(
                "The checkpoint holds the model, Adam, the scheduler, the step and each rank's random numbers.",
            ),
        )

    def _recovery_table(self) -> Table:
        predicted, measured = self.predicted(), self.measured_phases_s()
        every, step = self.settings["every"], format_time(self.step_s, 3)
        origins = {
            "detect": f"torchrun looks every {MONITOR_S:g} s",
            "restart": "the first start",
            "load": "writing a checkpoint",
            "redo": f"half of {every} steps of {step} and a write",
        }
        rows = []
        for label, seconds in predicted.items:
            name = label.partition(" ")[0]
            rows.append((label, origins[name], f"{seconds:.2f}", f"{measured[name]:.2f}"))
        total = sum(measured.values())
        rows.append(("back where it was", "", f"{predicted.back_where_it_was_s:.2f}", f"{total:.2f}"))
        return Table(
            caption="From the kill to where training was before it",
            columns=("Phase", "Predicted from", "Predicted, s", "Measured, s"),
            rows=tuple(rows),
            notes=(
                "detect: from the kill to the first line of the new programs. restart: from there to the process group. "
                "redo: the lost steps.",
            ),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        return [self._exact_words(), self._lost_words(), self._recovery_words(), self._interval_words()]

    def _exact_words(self) -> str:
        if self.failed_checks():
            return "The restarted training is not the one without interruption: see failed_checks()."
        return (
            f"Rank {self.settings['ranks'] - 1} was killed after step {self.killed_after}. torchrun ended the other "
            f"ranks and started all anew; they read the checkpoint of step {self.resumed_from}, and every loss from "
            "there to the end, and every parameter at the end, is the same to the last bit as without interruption."
        )

    def _lost_words(self) -> str:
        every = self.settings["every"]
        return (
            f"{self.lost_steps} {'step was' if self.lost_steps == 1 else 'steps were'} done twice. With a checkpoint "
            f"every {every} steps it can be 0 to {every}, {every / 2:g} on average over many failures; the model's "
            "mean is no prediction for one of them."
        )

    def _recovery_words(self) -> str:
        measured, predicted = self.measured_phases_s(), self.predicted()
        slowest = max(measured, key=lambda name: measured[name])
        return (
            f"Training was back where it was after {sum(measured.values()):.2f} s, predicted "
            f"{predicted.back_where_it_was_s:.2f} s, at worst {predicted.worst_s:.2f} s. Most of it is "
            f"{slowest} ({measured[slowest]:.2f} s); redoing the lost steps took {measured['redo']:.2f} s. A start "
            "costs Python, torch and a rendezvous, however little is lost. The model takes detection for one look; "
            "torchrun also ends the ranks that still live, meets for a new rendezvous and starts processes before any "
            "of them runs a line."
        )

    def _interval_words(self) -> str:
        restart_s = sum([seconds for name, seconds in self.measured_phases_s().items() if name != "redo"])
        best = optimal_interval_s(self.write_s, HOUR_S)
        cost = checkpoint_cost(best, self.write_s, HOUR_S, restart_s)
        return (
            f"With this write ({format_time(self.write_s, 2)}) and this restart ({format_time(restart_s, 2)}), and a "
            f"failure every hour, the best interval is {format_time(best, 2)} and {cost.waste_fraction:.2%} of the time "
            "is wasted. Here everything is small: a real job writes gigabytes, and waits for a new node."
        )


@lab(
    title="Kill a rank under torchrun: restart from the checkpoint, equal to the last bit, and what it costs",
    seconds=35,
    needs="torch",
    options={
        "ranks": "Number of ranks; the last one is killed.",
        "steps": "Training steps.",
        "every": "Steps between checkpoints.",
        "kill_after": "Steps done when the rank is killed.",
        "step_s": "Seconds added to each step.",
        "limit_s": "Time limit of each of the two trainings, seconds.",
    },
    worker_file="restart_worker.py",
    shown=("train", "save", "load"),
    result=RestartRun,
)
def restart(
    ranks: int = 2,
    *,
    steps: int = 12,
    every: int = 4,
    kill_after: int = 6,
    step_s: float = 0.1,
    limit_s: float = 300.0,
    show: bool = True,
) -> RestartRun:
    """Train under torchrun, kill the last rank with SIGKILL, let torchrun restart all; compare with no interruption.

    The training is DDP with Adam, a scheduler and dropout. It runs twice: without interruption, and under
    ``torchrun --max-restarts 1``, where a rank is killed by its process id.

    Args:
        ranks: 1 to 64; each start imports torch once per rank.
        steps: of the whole training.
        every: steps between checkpoints, 1 or more.
        kill_after: steps that are done when the kill comes: at least ``every`` and 2, fewer than ``steps``. A further
            step may be done before it strikes.
        step_s: seconds that each step sleeps, so that the kill falls into one, not behind the last.
        limit_s: time limit of each of the two trainings, seconds.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a training failed or reached its limit.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True); so it
    does on Windows, which has no SIGKILL. With a GPU for each rank it uses NCCL; that path was not run for this book.
    The clock is one machine's.
    """
    n_ranks = count("ranks", ranks, most=MOST_RANKS)
    n_steps, interval = count("steps", steps, least=3), count("every", every)
    # A step time needs two steps.
    least = max(interval, 2)
    if least >= n_steps:
        raise ValueError(f"every must be below steps = {n_steps}, not {every!r}")
    settings: dict[str, Any] = {
        "ranks": n_ranks,
        "steps": n_steps,
        "every": interval,
        "kill_after": count("kill_after", kill_after, least=least, most=n_steps - 1),
        "step_s": positive("step_s", step_s, "seconds"),
    }
    limit = positive("limit_s", limit_s, "seconds")
    _stop_where_it_cant_run()
    whole = run(TRAINING, n_ranks, settings, limit_s=limit, threads=1, show=show)
    params = {
        **settings,
        "victim": n_ranks - 1,
        "max_restarts": MAX_RESTARTS,
        "monitor_s": MONITOR_S,
        "limit_s": limit,
    }
    broken = run(AGENT, 1, params, limit_s=limit, start="spawn", show=show)
    seen = broken.results[0]
    attempts = [
        _attempt(rank, number, entries, seen["killed_at"])
        for rank, journals in enumerate(seen["journals"])
        for number, entries in enumerate(journals)
    ]
    made = RestartRun(
        settings=settings,
        stamp=machine.stamp(),
        backend=seen["backend"],
        reading=None,
        threads=1,
        elapsed_s=whole.elapsed_s + broken.elapsed_s,
        attempts=tuple(attempts),
        uninterrupted=tuple(
            [_attempt(rank, 0, entries, entries[0]["at"]) for rank, entries in enumerate(whole.results)]
        ),
    )
    if made.last_attempt == 0:
        raise LabError(
            "the kill came after the last step, so nothing was restarted; give step_s or steps a larger value",
            cause="measurement",
            partial=seen,
        )
    return made


def _stop_where_it_cant_run() -> None:
    if sys.platform == "win32":
        raise LabError("this lab kills a rank with SIGKILL, which Windows doesn't have.", cause="missing")
    if launched_elsewhere():
        raise LabError(
            "this lab starts torchrun itself: call it from a process that no launcher started.", cause="start"
        )


def _attempt(rank: int, number: int, entries: list[dict[str, Any]], zero: float) -> Attempt:
    """A journal as a row; times count from ``zero``."""
    when = {entry["event"]: entry["at"] - zero for entry in entries}
    steps = [entry for entry in entries if entry["event"] == "step"]
    loaded = [entry["step"] for entry in entries if entry["event"] == "loaded"]
    return Attempt(
        rank=rank,
        attempt=number,
        born_s=when.get("born"),
        joined_s=when["joined"],
        loaded_s=when["loaded"],
        first_step=loaded[0],
        losses=tuple([entry["loss"] for entry in steps]),
        done_s=tuple([entry["at"] - zero for entry in steps]),
        saved_s=tuple([entry["seconds"] for entry in entries if entry["event"] == "saved"]),
        digest=next((entry["digest"] for entry in entries if entry["event"] == "done"), ""),
    )
