"""The Ray lab: a worker dies in the middle of a training run; Ray starts the workers again from the last checkpoint.

>>> from shardlab import labs
>>> run = labs.ray_train()
>>> run.table()
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs import machine
from shardlab.labs.lab import lab
from shardlab.labs.result import LabRun
from shardlab.labs.run import LabError, require, run
from shardlab.labs.table import Table
from shardlab.models.checkpoint import Recovery, recovery
from shardlab.units import format_time

WORKER = "shardlab.labs.ray_train_worker:worker"
MOST_WORKERS = 4

# fp32 keeps 7 digits; some twenty steps of differently ordered sums stay far below this.
SAME = 1e-5


@dataclass(frozen=True)
class StepRow:
    """A step as it was executed; after a failure some are executed twice.

    Attributes:
        life: 1 until the failure, 2 after it.
        step: counted from 0.
        loss: of the global batch, as Ray's workers saw it.
        alone_loss: of the same step in one process that nothing stops.
    """

    life: int
    step: int
    loss: float
    alone_loss: float

    @property
    def gap(self) -> float:
        """Absolute difference of the losses."""
        return abs(self.loss - self.alone_loss)


@dataclass(frozen=True, kw_only=True)
class RayTrainRun(LabRun):
    """A finished Ray lab.

    Attributes:
        steps: every executed step, in order.
        starts: the step at which each life began.
        parameter_gap: largest difference from one process after the last step.
        init_s: from nothing to a Ray that answers. first_step_s: from there to the first step.
        down_s: from the worker's death until training ran again.
        step_s: mean of a step, checkpoints included, between the starts and the death.
        redone_s: from training again until it was where the worker died.
    """

    lab: ClassVar[str] = "ray_train"

    steps: tuple[StepRow, ...]
    starts: tuple[int, ...]
    parameter_gap: float
    init_s: float
    first_step_s: float
    down_s: float
    step_s: float
    redone_s: float

    # ---- reading it ----

    @property
    def resumed_at(self) -> int:
        """The step at which the last checkpoint before the death was taken: predicted."""
        return int(self.settings["fail_at"] // self.settings["every"] * self.settings["every"])

    @property
    def redone(self) -> int:
        """Steps that were executed twice."""
        return len(self.steps) - len({row.step for row in self.steps})

    @property
    def predicted(self) -> Recovery:
        """What a failure costs; the time until training runs again is as measured, the work to redo is predicted."""
        return recovery(
            detect_s=0.0, restart_s=self.down_s, load_s=0.0, interval_s=self.settings["every"] * self.step_s
        )

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        failed = [
            f"step {row.step}, life {row.life}: the loss is {row.gap:.1e} from one process's (allowed {SAME:.0e})"
            for row in self.steps
            # Written so that a NaN fails.
            if not row.gap <= SAME
        ]
        if not self.parameter_gap <= SAME:
            failed.append(
                f"after the last step the parameters differ by {self.parameter_gap:.1e} (allowed {SAME:.0e})"
            )
        if self.starts != (0, self.resumed_at):
            failed.append(
                f"training began at steps {self.starts}, not at 0 and, from its checkpoint, {self.resumed_at}"
            )
        if {row.step for row in self.steps} != set(range(self.settings["steps"])):
            failed.append(f"not every one of the {self.settings['steps']} steps was executed")
        if self.redone != self.settings["fail_at"] - self.resumed_at:
            failed.append(
                f"{self.redone} steps were executed twice, not the {self.settings['fail_at'] - self.resumed_at} since the checkpoint"
            )
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"lives"``, ``"recovery"``."""
        return {"lives": self._lives_table, "recovery": self._recovery_table}

    def _lives_table(self) -> Table:
        rows = []
        ends = ("a worker died", "finished")
        for life, (start, end) in enumerate(zip(self.starts, ends, strict=False), start=1):
            own = [row for row in self.steps if row.life == life]
            predicted = 0 if life == 1 else self.resumed_at
            worst = max(row.gap for row in own)
            rows.append((str(life), str(predicted), str(start), str(len(own)), end, f"{worst:.1e}"))
        return Table(
            caption=f"{self.settings['steps']} steps on {self.settings['workers']} Ray workers, a checkpoint every {self.settings['every']}, "
            f"one worker killed before step {self.settings['fail_at']}",
            columns=(
                "Life",
                "Starts at step, predicted",
                "Measured",
                "Steps",
                "Ends",
                "Largest loss difference",
            ),
            rows=tuple(rows),
            notes=(
                f"After the last step the parameters differ from one process's by at most {self.parameter_gap:.1e}.",
            ),
        )

    def _recovery_table(self) -> Table:
        predicted = self.predicted
        lost = self.settings["fail_at"] - self.resumed_at
        rows = [
            ("Ray starts", "-", format_time(self.init_s, 3)),
            ("Workers start, first step", "-", format_time(self.first_step_s, 3)),
            ("Death to training again", "-", format_time(self.down_s, 3)),
            (
                f"Redo {lost} steps",
                f"{format_time(lost * self.step_s, 3)} (mean {format_time(predicted.rpo_s, 3)}, at most "
                f"{format_time(predicted.worst_s - predicted.rto_s, 3)})",
                format_time(self.redone_s, 3),
            ),
        ]
        return Table(
            caption="What the failure costs",
            columns=("Part", "Predicted", "Measured"),
            rows=tuple(rows),
            notes=("Predicted: the steps since the checkpoint at the pace before the death.",),
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        lost = self.settings["fail_at"] - self.resumed_at
        return [
            f"The worker died before step {self.settings['fail_at']}; Ray noticed, started the {self.settings['workers']} workers anew, "
            f"and they went on from step {self.starts[-1]}, where the last checkpoint was. So {lost} steps were "
            f"executed twice, {len(self.steps)} in all, and every loss is the one of a run that nothing stops. Ray notes a "
            "checkpoint only some time after the workers have reported it; here the worker waits for that before it dies. "
            "A death in between goes back one checkpoint more.",
            f"Training stood still for {format_time(self.down_s, 3)}, as long as {self.down_s / self.step_s:,.0f} steps. "
            f"Redoing took {format_time(self.redone_s, 3)}: here the restart is what a failure costs, not the lost "
            "work, and checkpoints could be rarer. With steps of seconds and checkpoints of terabytes it is the other "
            "way round.",
            "All of it is on one machine and its shared cores: Ray's start and restart here say nothing of a "
            "cluster's, where a node has to be found and an image loaded.",
        ]


@lab(
    title="Ray Train: a worker dies, all start again from the checkpoint, the losses go on as if nothing had happened",
    seconds=60,
    needs="torch, ray",
    options={
        "workers": "Ray workers, 2 to 4.",
        "steps": "Steps of the whole run.",
        "every": "Steps between checkpoints.",
        "fail_at": "The step before which the last worker dies.",
        "limit_s": "Time limit of the whole lab, seconds.",
        "start": "How the process that asks Ray starts: auto, fork or spawn.",
    },
    worker_file="ray_train_worker.py",
    shown=("train_loop",),
    result=RayTrainRun,
)
def ray_train(
    workers: int = 2,
    *,
    steps: int = 16,
    every: int = 5,
    fail_at: int = 8,
    limit_s: float = 240.0,
    start: str = "auto",
    show: bool = True,
) -> RayTrainRun:
    """Train the DDP lab's model with Ray Train, kill a worker, and see the run recover from its checkpoint.

    Ray runs on this machine alone in processes of its own, without dashboard or usage report, and ends with the lab.

    Args:
        workers: 2 to 4.
        steps: steps of the whole run.
        every: steps between checkpoints, fewer than ``fail_at``.
        fail_at: the step before which the last worker dies, below ``steps``.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`, for the process that asks Ray.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a worker failed for another reason or the limit was reached.

    Without torch or ray it says so and returns the run that was recorded for the book.
    """
    n_workers = count("workers", workers, least=2, most=MOST_WORKERS)
    n_steps = count("steps", steps, least=3)
    dies = count("fail_at", fail_at, least=2, most=n_steps - 1)
    settings = {
        "workers": n_workers,
        "steps": n_steps,
        "every": count("every", every, least=1, most=dies - 1),
        "fail_at": dies,
    }
    if 32 % n_workers:
        raise ValueError(f"workers must divide the global batch of 32, not {n_workers}")
    limit = positive("limit_s", limit_s, "seconds")
    if machine.torch_installed():
        require("ray", "ray")
    # Ray keeps sockets in its folder, whose path may have 107 characters at most: not below a deep temporary folder.
    with (
        tempfile.TemporaryDirectory(prefix="shardlab-") as folder,
        tempfile.TemporaryDirectory(prefix="slr", dir="/tmp", ignore_cleanup_errors=True) as ray_folder,
    ):
        params = {**settings, "folder": folder, "ray_folder": ray_folder, "patience_s": limit}
        outcome = run(WORKER, 1, params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> RayTrainRun:
    events = measured["events"]
    death = next((event for event in events if event["kind"] == "death"), None)
    if death is None:
        raise LabError("the worker that should have died did not.", cause="measurement", partial=measured)
    starts = [event for event in events if event["kind"] == "start"]
    alone = [row["loss"] for row in measured["alone"]]
    lives = _lives(events)
    again = starts[-1]["time"]
    first_life = [event["time"] for life, event in lives if life == 1]
    # Without a step to redo there is no time of redoing.
    redone = [event["time"] for life, event in lives if life == 2 and event["step"] < settings["fail_at"]]
    return RayTrainRun(
        settings=settings,
        stamp=machine.stamp(),
        backend=measured["backend"],
        reading=None,
        threads=measured["threads"],
        elapsed_s=elapsed_s,
        steps=tuple(
            [StepRow(life, event["step"], event["loss"], alone[event["step"]]) for life, event in lives]
        ),
        starts=tuple([event["step"] for event in starts]),
        parameter_gap=measured["equality"][0]["parameter_gap"],
        init_s=_time_of(events, "ready") - _time_of(events, "init"),
        first_step_s=first_life[0] - _time_of(events, "ready"),
        down_s=again - death["time"],
        step_s=(first_life[-1] - first_life[0]) / (len(first_life) - 1),
        redone_s=max(redone, default=again) - again,
    )


def _lives(events: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Every executed step with its life: how often training had begun by then.

    Not by the time of the death: rank 0 may write down a step just after its neighbour, which has done it too, has died.
    """
    found, life = [], 0
    for event in events:
        life += event["kind"] == "start"
        if event["kind"] == "step":
            found.append((life, event))
    return found


def _time_of(events: list[dict[str, Any]], kind: str) -> float:
    return float(next(event["time"] for event in events if event["kind"] == kind))
