"""The DeepSpeed lab: ZeRO stages 0 to 3 as DeepSpeed does them, bytes per parameter beside the formula.

>>> from shardlab import labs
>>> run = labs.deepspeed_zero(ranks=4)
>>> run.table("memory")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import lab
from shardlab.labs.rank import launched_elsewhere
from shardlab.labs.result import LabRun, common, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, LabError, Outcome, require, run
from shardlab.labs.table import Table
from shardlab.models.memory import deepspeed_bucket_bytes, model_states
from shardlab.units import format_bytes, significant

WORKER = "shardlab.labs.deepspeed_zero_worker:worker"
RECIPE = "mixed-adam-16"
STAGES = (0, 1, 2, 3)
BETAS = (0.9, 0.999)
# The length of Adam's first step when it takes it for the second one, over what it should be:
# (1 - b1) / (1 - b1**2) of the first moment over the square root of the same of the second.
FIRST_STEP = math.sqrt(1 + BETAS[1]) / (1 + BETAS[0])

# bf16 keeps 8 bits: a few steps of differently rounded sums move the loss by less. Adam's steps counted one off move it
# by 5 % and more.
SAME_LOSS = 0.02
# Stages 1 to 3 add the same numbers.
SAME_STAGE = 1e-3
# Flat buffers are padded to a multiple of the ranks.
PADDING = 1e-3


@dataclass(frozen=True)
class HeldStates:
    """Bytes on one rank after a backward pass, by kind; ``buckets`` are DeepSpeed's buffers."""

    parameters: float
    gradients: float
    optimizer: float
    buckets: float = 0.0

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return self.parameters + self.gradients + self.optimizer + self.buckets


@dataclass(frozen=True)
class StageRow:
    """One ZeRO stage on ``ranks`` ranks.

    Attributes:
        stage: 0 to 3.
        ranks: N.
        losses: the global batch's loss before each step.
        alone: the same of one process without DeepSpeed; for stage 0 with Adam's count one step ahead, as DeepSpeed's.
        held: bytes on each rank after the last backward pass.
        formula: the ZeRO paper's.
        expected: the formula, with gradients that stage 1 drops although it may keep them.
    """

    stage: int
    ranks: int
    losses: tuple[float, ...]
    alone: tuple[float, ...]
    held: tuple[HeldStates, ...]
    formula: HeldStates
    expected: HeldStates

    @property
    def fullest(self) -> HeldStates:
        """The rank that holds most."""
        return max(self.held, key=lambda held: held.total_bytes)

    @property
    def loss_gap(self) -> float:
        """Largest difference of a loss from the one process's, over that; NaN if one is NaN."""
        return _largest_gap(self.losses, self.alone)


def _largest_gap(ones: Sequence[float], others: Sequence[float]) -> float:
    gaps = [abs(one / other - 1) for one, other in zip(ones, others, strict=True)]
    return float("nan") if any(gap != gap for gap in gaps) else max(gaps)


@dataclass(frozen=True, kw_only=True)
class DeepspeedRun(LabRun):
    """A finished DeepSpeed lab.

    Attributes:
        deepspeed: its version.
        parameters: of the model. largest_tensor: parameters of its largest tensor, which is never cut before stage 3.
        stages: the measurements, row by row.
    """

    lab: ClassVar[str] = "deepspeed_zero"

    deepspeed: str
    parameters: int
    largest_tensor: int
    stages: tuple[StageRow, ...]

    # ---- reading it ----

    def stage(self, stage: int, ranks: int | None = None) -> StageRow:
        """The row of :attr:`stages` for this stage on so many ranks, by default on the most."""
        return only(self.stages, "stages", stage=stage, ranks=self._most if ranks is None else ranks)

    @property
    def _most(self) -> int:
        return max(row.ranks for row in self.stages)

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        failed = []
        for row in self.stages:
            where = f"stage {row.stage}, {ranks_words(row.ranks)}"
            # Written so that a NaN fails.
            if not row.loss_gap <= SAME_LOSS:
                failed.append(
                    f"{where}: losses are off by {row.loss_gap:.1%} of one process's (allowed {SAME_LOSS:.0%})"
                )
            if not row.losses[-1] < row.losses[0]:
                failed.append(f"{where}: the loss did not fall ({row.losses[0]:.4g} to {row.losses[-1]:.4g})")
            failed += [f"{where}: {words}" for words in self._misweighed(row)]
        for row in [row for row in self.stages if row.stage > 1]:
            gap = _largest_gap(row.losses, self.stage(1, row.ranks).losses)
            if not gap <= SAME_STAGE:
                failed.append(
                    f"stage {row.stage}, {ranks_words(row.ranks)}: losses are off by {gap:.1%} of stage 1's "
                    f"(allowed {SAME_STAGE:.1%})"
                )
        return failed

    def _misweighed(self, row: StageRow) -> list[str]:
        kinds = ("parameters", "gradients", "optimizer")
        wrong = []
        for kind in kinds:
            measured, expected = float(getattr(row.fullest, kind)), float(getattr(row.expected, kind))
            # Before stage 3 a tensor that straddles two shards keeps its whole gradient on both ranks.
            whole = 2.0 * self.largest_tensor if kind == "gradients" and row.stage in (1, 2) else 0.0
            allowed = PADDING * expected
            if not -allowed <= measured - expected <= allowed + 2 * whole * self._cut(row.ranks):
                wrong.append(f"{measured:,.0f} B of {kind} on a rank, not {expected:,.0f} B")
        return wrong

    def _cut(self, ranks: int) -> bool:
        """Whether shards end inside tensors; the model's are all of one size."""
        return bool(self.parameters // self.largest_tensor % ranks)

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"memory"``, ``"losses"``."""
        return {"memory": self._memory_table, "losses": self._losses_table}

    def _memory_table(self) -> Table:
        rows = []
        for row in self.stages:
            held, total, formula = row.fullest, row.fullest.total_bytes, row.formula.total_bytes
            kinds = [held.parameters, held.gradients, held.optimizer, held.buckets, total, formula]
            off = (total - formula) / self.parameters
            rows.append(
                (
                    str(row.stage),
                    str(row.ranks),
                    *[self._per_parameter(size) for size in kinds],
                    f"{off:+.2f}",
                )
            )
        return Table(
            caption=f"DeepSpeed {self.deepspeed}, bf16 and Adam: bytes per parameter on the fullest rank after a "
            f"backward pass; {self.parameters:,} parameters",
            columns=(
                "ZeRO stage",
                "Ranks",
                "Parameters",
                "Gradients",
                "Optimizer",
                "Buckets",
                "Total",
                "Formula",
                "Total - formula",
            ),
            rows=tuple(rows),
            notes=(
                "Counted over all tensors that are alive, each stretch of memory once. Optimizer: fp32 master weights and "
                "two moments. Formula: 2 + 2 + 12 bytes per parameter, those that the stage shards over N. Step counters "
                "and activations are left out.",
            ),
            label_columns=2,
        )

    def _per_parameter(self, n_bytes: float) -> str:
        return f"{n_bytes / self.parameters:.2f}"

    def _losses_table(self) -> Table:
        rows = [
            (
                str(row.stage),
                str(row.ranks),
                f"{row.losses[0]:.4f}",
                f"{row.losses[-1]:.4f}",
                f"{row.alone[-1]:.4f}",
                f"{row.loss_gap:.2%}",
            )
            for row in self.stages
        ]
        return Table(
            caption=f"The global batch's loss over {len(self.stages[0].losses) - 1} steps, and one process without DeepSpeed",
            columns=("ZeRO stage", "Ranks", "First", "Last", "Last, one process", "Largest difference"),
            rows=tuple(rows),
            notes=(
                "Stage 0 is compared with a process whose Adam has counted one step before the first: see the words below.",
            ),
            label_columns=2,
        )

    # ---- in words ----

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        return [self._stage1_words(), self._stage3_words(), self._loss_words(), self._limits_words()]

    def _stage1_words(self) -> str:
        one, two = self.stage(1), self.stage(2)
        return (
            f"On {ranks_words(self._most)}, stage 1 holds {self._per_parameter(one.fullest.gradients)} bytes of gradients "
            f"per parameter, where the formula has {self._per_parameter(one.formula.gradients)}: after the reduction "
            "DeepSpeed drops what other ranks own, though stage 1 would let it stay. At this moment stages 1 and 2 hold the "
            f"same ({self._per_parameter(one.fullest.total_bytes)} and {self._per_parameter(two.fullest.total_bytes)}); "
            "during the backward pass and while gradients accumulate they differ."
        )

    def _stage3_words(self) -> str:
        row = self.stage(3)
        return (
            f"Stage 3 holds {self._per_parameter(row.fullest.total_bytes)} bytes per parameter for a formula of "
            f"{self._per_parameter(row.formula.total_bytes)}: the rest, {self._per_parameter(row.fullest.buckets)}, is the "
            f"bucket in which gradients are reduced ({row.fullest.buckets:,.0f} B). A bucket's size is a setting: by default it "
            f"is {format_bytes(deepspeed_bucket_bytes())}, however small the model."
        )

    def _loss_words(self) -> str:
        zero, one = self.stage(0), self.stage(1)
        return (
            f"Stages 1 to 3 train alike: the loss falls from {one.losses[0]:.4f} to {one.losses[-1]:.4f}, within "
            f"{significant(100 * one.loss_gap, 2)} % of one process's. Stage 0 ends at {zero.losses[-1]:.4f}. It is no "
            "rounding: with bf16, DeepSpeed's stage 0 steps on zero gradients when it is set up. That moves nothing, but Adam "
            f"counts it: its bias corrections are one step ahead, and the first step is {FIRST_STEP:.2f} times as long. One "
            f"process that does the same ends at {zero.alone[-1]:.4f}."
        )

    @staticmethod
    def _limits_words() -> str:
        return (
            "The model is small so that the run is short, and its buckets are set to match. What an allocator reserves, "
            "activations and DeepSpeed's temporary fp32 gradients in the optimizer step come on top."
        )


@lab(
    title="DeepSpeed's ZeRO stages 0 to 3 on real processes: bytes per parameter beside the formula, equal losses",
    seconds=40,
    needs="deepspeed",
    options={
        "ranks": "Largest number of ranks; 2, 4, ... up to it are measured.",
        "limit_s": "Time limit for each number of ranks, seconds.",
        "start": "How ranks start: auto, fork or spawn.",
    },
    worker_file="deepspeed_zero_worker.py",
    shown=("config", "train"),
    result=DeepspeedRun,
)
def deepspeed_zero(
    ranks: int = 4,
    *,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> DeepspeedRun:
    """Train one small model in bf16 with DeepSpeed's ZeRO stages 0 to 3 on 2, 4, ... ``ranks`` processes.

    (a) Bytes of parameters, gradients, optimizer states and buckets that are alive on each rank after a backward pass,
    beside the formula ``2 + 2 + 12`` and what each stage shards of it. (b) Losses of all stages against one process
    that trains without DeepSpeed.

    Args:
        ranks: largest number of ranks, 2 to 64.
        limit_s: time limit for each number of ranks, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without DeepSpeed it says so and returns the run that was recorded for the book (``recorded`` is then True). It
    needs no compiler: DeepSpeed's compiled collectives and optimizer are switched off. With a GPU for each rank it uses
    NCCL; that path was not run for this book.
    """
    n_ranks = count("ranks", ranks, least=2, most=MOST_RANKS)
    limit = positive("limit_s", limit_s, "seconds")
    require("deepspeed", "extras")
    # A cluster's launcher has started exactly so many.
    sizes = [n_ranks] if launched_elsewhere() else teams(n_ranks)[1:]
    outcomes: dict[int, Outcome] = {}
    for n in sizes:
        try:
            outcomes[n] = run(WORKER, n, {"stages": list(STAGES)}, limit_s=limit, start=start, show=show)
        except LabError as error:
            error.partial.update(
                {f"{ranks_words(done)}": outcome.results[0]["stages"] for done, outcome in outcomes.items()}
            )
            raise
    return _evaluate(
        {n: outcome.results[0] for n, outcome in outcomes.items()},
        {"ranks": n_ranks},
        sum(outcome.elapsed_s for outcome in outcomes.values()),
    )


# ---- from raw measurements to the result ----


def _evaluate(
    measured: dict[int, dict[str, Any]], settings: dict[str, Any], elapsed_s: float
) -> DeepspeedRun:
    most = measured[max(measured)]
    return DeepspeedRun(
        **common(most, settings, elapsed_s),
        deepspeed=most["deepspeed"],
        parameters=most["parameters"],
        largest_tensor=most["largest_tensor"],
        stages=tuple(
            [_stage_row(cell, n, facts) for n, facts in measured.items() for cell in facts["stages"]]
        ),
    )


def _stage_row(cell: dict[str, Any], ranks: int, facts: dict[str, Any]) -> StageRow:
    stage = cell["stage"]
    formula = _states(facts["parameters"], ranks, stage)
    # Stage 1 needs no gradient that stage 2 drops.
    gradients = _states(facts["parameters"], ranks, 2 if stage == 1 else stage).gradients
    return StageRow(
        stage=stage,
        ranks=ranks,
        losses=tuple(cell["losses"]),
        alone=tuple(facts["alone_late" if stage == 0 else "alone"]),
        held=tuple([HeldStates(**held) for held in cell["held"]]),
        formula=formula,
        expected=HeldStates(formula.parameters, gradients, formula.optimizer),
    )


def _states(parameters: int, ranks: int, stage: int) -> HeldStates:
    states = model_states(parameters, ranks, stage, RECIPE)
    return HeldStates(states.parameters, states.gradients, states.master_weights + states.optimizer)
