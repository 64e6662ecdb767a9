"""The checkpoint lab: what a checkpoint must hold, on how many ranks it can be loaded, and when it can be trusted.

>>> from shardlab import labs
>>> run = labs.checkpoint(ranks=4)
>>> run.table("resume")
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.rank import launched_elsewhere
from shardlab.labs.result import LabRun, common, only, ranks_words
from shardlab.labs.run import LabError, run
from shardlab.labs.table import Table
from shardlab.models.checkpoint import async_checkpoint, checkpoint_bytes, young_interval_s
from shardlab.units import format_bytes, format_time

MODULE = "shardlab.labs.checkpoint_worker"
CONTENTS = "adam-12"

# The lab loads on twice as many ranks as it saves on.
MOST_SAVERS = 32
WIDTH, WIDE = 256, 1024
STEPS_BEFORE = 10

# Other numbers of ranks order the sums of fp32 otherwise, and no more.
SAME = 1e-5
# DCP's archive around each tensor: a kilobyte or two.
OVERHEAD = 0.05
# The mean time between failures that the explanation reckons with: Llama 3's, on 16,384 GPUs.
MTBF_S = 3.09 * 3600


@dataclass(frozen=True)
class ResumeRow:
    """A run resumed from the checkpoint, beside the run that nothing interrupted.

    Attributes:
        missing: the part that was not loaded; empty if all were.
        loss_gaps: absolute difference of the loss at each step after resuming.
        parameter_gaps: ``|a - b| / |b|`` of all parameters after each of these steps.
    """

    missing: str
    loss_gaps: tuple[float, ...]
    parameter_gaps: tuple[float, ...]


@dataclass(frozen=True)
class ReshardRow:
    """The checkpoint loaded on another number of ranks.

    Attributes:
        ranks: that load it.
        exact: whether parameters and optimizer states, put together, are the saved ones bit by bit.
        loss_gaps: absolute difference of the loss at each step, dropout off, against the number of ranks that saved.
    """

    ranks: int
    exact: bool
    loss_gaps: tuple[float, ...]


@dataclass(frozen=True)
class FileRow:
    """What one rank put on the disk.

    Attributes:
        rank: who wrote.
        predicted_bytes: its share of ``models.checkpoint.checkpoint_bytes``.
        disk_bytes: size of its file.
    """

    rank: int
    predicted_bytes: float
    disk_bytes: int

    @property
    def overhead(self) -> float:
        """``disk_bytes`` over the prediction, less 1."""
        return self.disk_bytes / self.predicted_bytes - 1


@dataclass(frozen=True)
class SaveTimes:
    """Medians over the repeats, of the slowest rank each time.

    Attributes:
        parameters: of the model that was saved.
        save_s: ``dcp.save``: training waits for all of it.
        blocked_s: how long ``async_save`` keeps the caller.
        durable_s: from the call of ``async_save`` until the last file is written.
        steps_meanwhile: the fewest training steps that fitted in between.
        snapshot_exact: whether the files hold the state at the call, bit by bit, although training went on.
    """

    parameters: int
    save_s: float
    blocked_s: float
    durable_s: float
    steps_meanwhile: int
    snapshot_exact: bool


@dataclass(frozen=True)
class DamageRow:
    """A checkpoint damaged after it was complete.

    Attributes:
        damage: what was done to it.
        refused: why the check refused it; None if it did not.
        alone: what DCP does with it unasked: ``"refuses"``, ``"loads it"`` or ``"loads something else"``.
    """

    damage: str
    refused: str | None
    alone: str


@dataclass(frozen=True)
class Crash:
    """A run whose last rank was killed in the middle of a save.

    Attributes:
        left: name of the folder that it left; None if there was none.
        left_bytes: bytes in it.
        refused: why the check refuses that folder; None if it does not.
        latest: the checkpoint that the pointer names afterwards.
    """

    left: str | None
    left_bytes: int
    refused: str | None
    latest: str


@dataclass(frozen=True, kw_only=True)
class CheckpointRun(LabRun):
    """A finished checkpoint lab.

    Attributes:
        parameters: of the model that is trained.
        losses: of the uninterrupted run, at each step after the checkpoint.
        resumes, reshards, files, damages: the measurements, row by row.
        saves: synchronous and asynchronous saving.
        crash: None under torchrun, where the lab starts no ranks of its own.
    """

    lab: ClassVar[str] = "checkpoint"

    parameters: int
    losses: tuple[float, ...]
    resumes: tuple[ResumeRow, ...]
    reshards: tuple[ReshardRow, ...]
    files: tuple[FileRow, ...]
    saves: SaveTimes
    damages: tuple[DamageRow, ...]
    crash: Crash | None

    # ---- reading it ----

    def resume_row(self, missing: str = "") -> ResumeRow:
        """The row of :attr:`resumes` that was resumed without this part."""
        return only(self.resumes, "resumes", missing=missing)

    def reshard_row(self, ranks: int) -> ReshardRow:
        """The row of :attr:`reshards` with this many ranks."""
        return only(self.reshards, "reshards", ranks=ranks)

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        return [
            *[sentence for row in self.resumes for sentence in self._resume_faults(row)],
            *[sentence for row in self.reshards for sentence in _reshard_faults(row)],
            *[
                f"rank {row.rank} wrote {row.overhead:+.1%} against the prediction (allowed 0 to {OVERHEAD:.0%})"
                for row in self.files
                if not 0 <= row.overhead <= OVERHEAD
            ],
            *(
                []
                if self.saves.snapshot_exact
                else ["async_save wrote something else than the state at the call"]
            ),
            *[
                f"a damaged checkpoint was not refused: {row.damage}"
                for row in self.damages
                if row.refused is None
            ],
            *self._crash_faults(),
        ]

    def _resume_faults(self, row: ResumeRow) -> list[str]:
        first, last = row.loss_gaps[0], row.parameter_gaps[-1]
        if not row.missing:
            exact = all(gap == 0 for gap in (*row.loss_gaps, *row.parameter_gaps))
            words = f"loss {max(row.loss_gaps):.1e}, parameters {last:.1e}, allowed 0"
            return [] if exact else [f"the resumed run is not the uninterrupted one ({words})"]
        faults = []
        # Written so that a NaN fails.
        if not last > 0:
            faults.append(f"leaving out the {row.missing} does not show in the parameters ({last:.1e})")
        if row.missing in ("optimizer", "scheduler") and first != 0:
            faults.append(
                f"without the {row.missing}, the first loss is not that of the saved parameters ({first:.1e})"
            )
        return faults

    def _crash_faults(self) -> list[str]:
        if self.crash is None:
            return []
        faults = []
        if self.crash.latest != f"step-{STEPS_BEFORE}":
            faults.append(
                f"after the crash the latest checkpoint is {self.crash.latest}, not step-{STEPS_BEFORE}"
            )
        if self.crash.left is None or self.crash.refused is None:
            faults.append("the half-written checkpoint was not refused")
        return faults

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"resume"``, ``"reshard"``, ``"files"``, ``"saves"``, ``"damage"``."""
        return {
            "resume": self._resume_table,
            "reshard": self._reshard_table,
            "files": self._files_table,
            "saves": self._saves_table,
            "damage": self._damage_table,
        }

    def _resume_table(self) -> Table:
        rows = [
            (
                row.missing or "nothing",
                f"{row.loss_gaps[0]:.1e}",
                f"{max(row.loss_gaps):.1e}",
                f"{row.parameter_gaps[0]:.1e}",
                f"{row.parameter_gaps[-1]:.1%}",
            )
            for row in self.resumes
        ]
        return Table(
            caption=(
                f"Resumed after step {STEPS_BEFORE} on {ranks_words(self.settings['ranks'])}, against the run that "
                "nothing interrupted"
            ),
            columns=(
                "Left out",
                "Loss gap, first step",
                "Largest loss gap",
                "Parameter gap after 1 step",
                f"After {len(self.losses)} steps",
            ),
            rows=tuple(rows),
            notes=(f"The loss at the first step is {self.losses[0]:.2f}. Parameter gap: |a - b| / |b|.",),
        )

    def _reshard_table(self) -> Table:
        rows = [
            (
                f"{self.settings['ranks']} → {row.ranks}",
                "bitwise" if row.exact else "no",
                f"{row.loss_gaps[0]:.1e}",
                f"{max(row.loss_gaps):.1e}",
            )
            for row in self.reshards
        ]
        return Table(
            caption=f"One checkpoint, loaded on other numbers of ranks, then {len(self.losses)} steps",
            columns=("Ranks", "State equal", "Loss gap, first step", "Largest loss gap"),
            rows=tuple(rows),
            notes=("Dropout is off here: a random state belongs to a rank and can't be resharded.",),
        )

    def _files_table(self) -> Table:
        rows = [
            (str(row.rank), f"{row.predicted_bytes:,.0f}", f"{row.disk_bytes:,}", f"{row.overhead:+.2%}")
            for row in self.files
        ]
        return Table(
            caption=f"Bytes on disk, {self.saves.parameters:,} parameters in fp32 with AdamW",
            columns=("Rank", "Predicted 12 B/parameter/N", "On disk", "Against predicted"),
            rows=tuple(rows),
            notes=("Prediction: parameters and two moments; DCP adds an archive's headers for each tensor.",),
        )

    def _saves_table(self) -> Table:
        one, wait = self.saves, f"{self.saves.save_s * 1e3:.0f}"
        return Table(
            caption=f"Saving {format_bytes(sum(row.disk_bytes for row in self.files), 3)}, two ways",
            columns=(
                "Call",
                "Training stops, ms",
                "Durable after, ms",
                "Steps meanwhile",
                "Holds the state at the call",
            ),
            rows=(
                ("save", wait, wait, "0", "yes"),
                (
                    "async_save",
                    f"{one.blocked_s * 1e3:.0f}",
                    f"{one.durable_s * 1e3:.0f}",
                    str(one.steps_meanwhile),
                    "yes" if one.snapshot_exact else "no",
                ),
            ),
        )

    def _damage_table(self) -> Table:
        rows = [(row.damage, row.refused or "accepts it", row.alone) for row in self.damages]
        if self.crash is not None:
            left = f"killed while saving, {format_bytes(self.crash.left_bytes, 3)} written"
            rows.append((left, self.crash.refused or "accepts it", "-"))
        notes = ["DCP alone: dcp.load without the check."]
        if self.crash is not None:
            notes.append(f"After the kill, latest names {self.crash.latest}.")
        return Table(
            caption="A checkpoint that is not whole",
            columns=("What happened", "The check before loading", "DCP alone"),
            rows=tuple(rows),
            notes=(" ".join(notes),),
            label_columns=3,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        return [
            self._resume_words(),
            self._reshard_words(),
            self._file_words(),
            self._save_words(),
            self._damage_words(),
        ]

    def _resume_words(self) -> str:
        whole = self.resume_row()
        silent = [self.resume_row(name) for name in ("optimizer", "scheduler")]
        random, position = self.resume_row("random state"), self.resume_row("data position")
        steps = len(self.losses)
        start = (
            "With everything loaded, the resumed run is the uninterrupted one bit by bit"
            if max(*whole.loss_gaps, *whole.parameter_gaps) == 0
            else "With everything loaded, the resumed run is NOT the uninterrupted one"
        )
        return (
            f"{start}. Without the optimizer or the scheduler the first loss is the same "
            f"(gaps {silent[0].loss_gaps[0]:.0e} and {silent[1].loss_gaps[0]:.0e}): nothing warns, and {steps} steps later "
            f"the parameters are {silent[0].parameter_gaps[-1]:.0%} and {silent[1].parameter_gaps[-1]:.0%} off. Without "
            f"the data position the loss at once differs by {position.loss_gaps[0]:.2f}, because the run meets batches "
            f"that it has seen; without the random states by {random.loss_gaps[0]:.2g}, because other units drop out. So a "
            "resume test compares several steps, not the first loss."
        )

    def _reshard_words(self) -> str:
        others = [row for row in self.reshards if row.ranks != self.settings["ranks"]]
        if not others:
            return "With one rank under a launcher there is no other number of ranks to load on."
        widths = ", ".join([ranks_words(row.ranks) for row in others])
        state = "bit by bit" if all(row.exact for row in others) else "NOT everywhere"
        return (
            f"The checkpoint of {ranks_words(self.settings['ranks'])} loads on {widths}: DCP keeps which slice of which "
            f"tensor lies where. Put together, the state is the saved one {state}. The first loss differs by at most "
            f"{max(row.loss_gaps[0] for row in others):.0e}: fp32 sums in another order, which no checkpoint can prevent."
        )

    def _file_words(self) -> str:
        total = sum(row.disk_bytes for row in self.files)
        worst = max(self.files, key=lambda row: row.overhead)
        return (
            f"{ranks_words(len(self.files))} write {format_bytes(total, 3)}, each about a share of "
            f"{format_bytes(worst.predicted_bytes, 3)}: 12 bytes per parameter over N. What lies above, at most "
            f"{worst.overhead:.1%}, are the headers of DCP's archive, and shrink beside larger tensors."
        )

    def _save_words(self) -> str:
        one = self.saves
        ahead = async_checkpoint(one.blocked_s, one.durable_s, MTBF_S)
        steps = "1 step" if one.steps_meanwhile == 1 else f"{one.steps_meanwhile} steps"
        return (
            f"save stops training for {format_time(one.save_s, 3)}. async_save returns after "
            f"{format_time(one.blocked_s, 3)}, once it has copied the state, but the files are safe only after "
            f"{format_time(one.durable_s, 3)}; at least {steps} ran meanwhile, on cores that the writing shares. It has a "
            "gloo group of its own: on the group that training uses, its messages meet those of a step, and gloo aborts "
            "(op.preamble.length <= op.nbytes). Quote both times: one failure in "
            f"{format_time(MTBF_S, 3)} makes {format_time(young_interval_s(one.save_s, MTBF_S), 3)} the best interval for "
            f"save and {format_time(ahead.interval_s, 3)} for async_save, and a failure then loses "
            f"{format_time(ahead.lost_work_s, 3)} on average. These are times of this machine's disk cache and shared "
            "cores, not of a cluster's storage."
        )

    def _damage_words(self) -> str:
        fooled = [row.damage for row in self.damages if row.alone == "loads something else"]
        words = (
            f"DCP alone loads wrong numbers without a word where {' and '.join(fooled)}: it has no checksum. "
            if fooled
            else ""
        )
        words += (
            "So a save writes to a draft, adds a manifest of sizes and checksums, renames the folder, and moves the "
            "pointer last: each of these happens whole or not at all."
        )
        if self.crash is None:
            return words
        return (
            f"{words} A rank killed in the middle of a save left {self.crash.left} with "
            f"{format_bytes(self.crash.left_bytes, 3)} in it; {self.crash.latest} is still the latest, and the run went "
            f"on from it on {ranks_words(self.reshards[-1].ranks)}."
        )

    def plot(self, dark: bool = False) -> Any:
        """Loss gap and parameter gap, step by step, one line for each part that was left out; a figure."""
        from shardlab.labs.checkpoint_plot import omission_figure

        return omission_figure(self.resumes, dark)


def _reshard_faults(row: ReshardRow) -> list[str]:
    faults = []
    if not row.exact:
        faults.append(f"loaded on {ranks_words(row.ranks)}, the state is not the saved one")
    if not row.loss_gaps[0] <= SAME:
        faults.append(
            f"loaded on {ranks_words(row.ranks)}, the first loss differs by {row.loss_gaps[0]:.1e} (allowed {SAME:.0e})"
        )
    return faults


@lab(
    title="Checkpoints: exact resume, what omissions cost, other numbers of ranks, async saves, half-written files",
    seconds=45,
    needs="torch",
    options={
        "ranks": "Ranks that save; the checkpoint is loaded on as many, half, one and twice as many.",
        "steps": "Steps after the checkpoint that are compared.",
        "batch": "Global batch size, a multiple of twice the ranks.",
        **RUN_OPTIONS,
    },
    worker_file="checkpoint_worker.py",
    shown=("state_of", "put_back", "save", "commit", "check_complete", "load"),
    result=CheckpointRun,
)
def checkpoint(
    ranks: int = 4,
    *,
    steps: int = 20,
    batch: int = 32,
    limit_s: float = 240.0,
    start: str = "auto",
    show: bool = True,
) -> CheckpointRun:
    """Save an FSDP2 training run with DCP, resume it with and without its parts, reshard it, break it.

    (a) Resume with everything: losses and parameters bitwise those of the uninterrupted run; then without optimizer,
    scheduler, random states, data position, one at a time. (b) Load on half, one and twice as many ranks. (c) Bytes on
    disk per rank beside 12 bytes per parameter. (d) ``async_save``: time blocked against time durable. (e) Damaged
    files, and a rank killed in the middle of a save: what is refused, and what is still the latest.

    Args:
        ranks: ranks that save, 1 to 32.
        steps: steps after the checkpoint, 2 or more.
        batch: global batch, samples; a multiple of ``2 * ranks``.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    The checkpoints are in a temporary folder that is removed at the end. Without torch it says so and returns the run
    that was recorded for the book. With a GPU for each rank it uses NCCL; that path was not run for this book. Under
    torchrun it starts no other ranks, and leaves out the kill and the larger number of ranks.
    """
    n_ranks = count("ranks", ranks, least=1, most=MOST_SAVERS)
    settings = {"ranks": n_ranks, "steps": count("steps", steps, least=2), "batch": count("batch", batch)}
    if settings["batch"] % (2 * n_ranks):
        raise ValueError(f"batch must be a multiple of 2 * ranks = {2 * n_ranks}, not {batch!r}")
    limit = positive("limit_s", limit_s, "seconds")
    with tempfile.TemporaryDirectory(prefix="shardlab-checkpoint-", ignore_cleanup_errors=True) as folder:
        runs = _Runs(settings, folder, limit, start, show)
        return runs.evaluate(runs.measure_and_crash(), runs.come_back())


class _Runs:
    """The lab's runs, one after the other in one folder and one time limit."""

    def __init__(self, settings: dict[str, Any], folder: str, limit_s: float, start: str, show: bool) -> None:
        self.settings, self.start, self.show = settings, start, show
        self.began, self.limit_s = time.monotonic(), limit_s
        self.measured: dict[str, Any] = {}
        n = settings["ranks"]
        self.params = {
            "folder": folder,
            "width": WIDTH,
            "wide": WIDE,
            "batch": settings["batch"],
            "steps_before": STEPS_BEFORE,
            "steps_after": settings["steps"],
            # The number that saved comes first: the others are compared with it.
            "teams": list(dict.fromkeys([n, max(1, n // 2), 1])),
        }

    def _run(self, worker: str, ranks: int, **more: Any) -> Any:
        left = self.limit_s - (time.monotonic() - self.began)
        try:
            return run(
                f"{MODULE}:{worker}",
                ranks,
                {**self.params, **more},
                # A limit that has passed still gets the runner's own sentence.
                limit_s=max(round(left, 1), 0.1),
                start=self.start,
                show=self.show,
            )
        except LabError as error:
            error.partial = {**self.measured, **error.partial}
            raise

    def measure_and_crash(self) -> dict[str, Any]:
        """All that the ranks that save can measure; at the end one of them is killed in the middle of a save."""
        if launched_elsewhere():
            # A launcher would take the kill for the end of the job.
            self.measured = self._run("worker", self.settings["ranks"], kill=False).results[0]
            return self.measured
        try:
            self._run("worker", self.settings["ranks"], kill=True)
        except LabError as error:
            if error.cause != "died" or "measured" not in error.partial:
                raise
            self.measured = error.partial["measured"]
            return self.measured
        raise LabError("the rank that should have died did not", cause="measurement")

    def come_back(self) -> dict[str, Any] | None:
        """Look at what the killed rank left, and go on with twice as many ranks. None under a launcher."""
        if launched_elsewhere():
            return None
        known = {"digest": self.measured["digest"], "still": self.measured["reshards"][0]["losses"]}
        back: dict[str, Any] = self._run("come_back", 2 * self.settings["ranks"], **known).results[0]
        return back

    def evaluate(self, measured: dict[str, Any], back: dict[str, Any] | None) -> CheckpointRun:
        """From raw measurements to the result."""
        saves = dict(measured["saves"][0])
        sizes = saves.pop("rank_bytes")
        share = checkpoint_bytes(saves["parameters"], CONTENTS) / len(sizes)
        reshards = [*measured["reshards"], *([back["reshard"]] if back else [])]
        crash = {name: value for name, value in back.items() if name != "reshard"} if back else None
        return CheckpointRun(
            **common(measured, self.settings, time.monotonic() - self.began),
            parameters=measured["parameters"],
            losses=tuple(measured["losses"]),
            resumes=tuple([_resume_row(row) for row in measured["resumes"]]),
            reshards=tuple([_reshard_row(row) for row in reshards]),
            files=tuple([FileRow(rank, share, size) for rank, size in enumerate(sizes)]),
            saves=SaveTimes(**saves),
            damages=tuple([DamageRow(**row) for row in measured["damages"]]),
            crash=Crash(**crash) if crash else None,
        )


def _resume_row(row: dict[str, Any]) -> ResumeRow:
    return ResumeRow(row["missing"], tuple(row["loss_gaps"]), tuple(row["parameter_gaps"]))


def _reshard_row(row: dict[str, Any]) -> ReshardRow:
    return ReshardRow(row["ranks"], row["exact"], tuple(row["loss_gaps"]))
