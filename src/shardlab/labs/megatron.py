"""The Megatron-core lab: the library's own tensor and pipeline parallelism on CPUs, one GPT under several layouts.

>>> from shardlab import labs
>>> run = labs.megatron(ranks=4)
>>> run.table()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, only, teams
from shardlab.labs.run import MOST_RANKS, require, run
from shardlab.labs.sent import SENT_COLUMNS, Sent, reading_words
from shardlab.labs.table import Table
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.communication import boundary_bytes
from shardlab.models.pipeline_formulas import p2p_sent_bytes
from shardlab.models.tensor import (
    check_split,
    layer_collectives,
    layer_sent_bytes,
    vocabulary_sent_bytes,
)
from shardlab.units import format_bytes

WORKER = "shardlab.labs.megatron_worker:worker"
FP32_BYTES = 4
MICRO_BATCHES = 4
# Four heads and four layers: up to four ranks can share either.
SIZES = {
    "layers": 4,
    "hidden": 128,
    "heads": 4,
    "sequence": 64,
    "vocabulary": 256,
    "micro_batch": 4,
    "micro_batches": MICRO_BATCHES,
}
# Largest difference over largest entry: a few steps of differently ordered fp32 sums.
SAME = 1e-5
# gloo sends two messages in each of the 2 (N-1) rounds of an all-reduce.
MESSAGES_PER_ROUND = 2


@dataclass(frozen=True)
class LinearRow:
    """ColumnParallelLinear, GELU, RowParallelLinear against the same two matrices whole.

    Attributes:
        tensor: t, ranks that share them.
        output_gap, input_gap, weight_gap: largest difference of the output, the input's gradient and the parameters'
            gradients on any rank, over the largest entry.
    """

    tensor: int
    output_gap: float
    input_gap: float
    weight_gap: float


@dataclass(frozen=True, kw_only=True)
class LayoutRow(Sent):
    """The GPT under one layout; bytes are of one optimizer step.

    Attributes:
        tensor, pipeline: t and p.
        losses: of each optimizer step, mean over the micro-batches.
        loss_gap: largest relative difference of a loss from the one-rank layout's.
        parameter_gap: largest difference of a parameter on any rank after the last step, over the largest.
        own_gap: relative difference of the first loss when the model keeps the weights that Megatron gives it.
        layers: how many of the layers each rank holds.
        parameters: of each rank.
    """

    tensor: int
    pipeline: int
    losses: tuple[float, ...]
    loss_gap: float
    parameter_gap: float
    own_gap: float
    layers: tuple[int, ...]
    parameters: tuple[int, ...]

    @property
    def name(self) -> str:
        """``TP2×PP2``, or ``one rank``."""
        parts = [f"{axis}{n}" for axis, n in (("TP", self.tensor), ("PP", self.pipeline)) if n > 1]
        return "×".join(parts) or "one rank"


@dataclass(frozen=True, kw_only=True)
class MegatronRun(LabRun):
    """A finished Megatron-core lab.

    Attributes:
        version: of Megatron-core.
        linears, layouts: the measurements, row by row; the first layout is one rank alone.
    """

    lab: ClassVar[str] = "megatron"

    version: str
    linears: tuple[LinearRow, ...]
    layouts: tuple[LayoutRow, ...]

    # ---- reading it ----

    def layout(self, tensor: int, pipeline: int) -> LayoutRow:
        """The row of :attr:`layouts` with these settings."""
        return only(self.layouts, "layouts", tensor=tensor, pipeline=pipeline)

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        return [
            *[
                f"tensor parallel {row.tensor}: Megatron's linears are not equal to whole ones (output "
                f"{row.output_gap:.1e}, input's gradient {row.input_gap:.1e}, weights' gradients "
                f"{row.weight_gap:.1e}, allowed {SAME:.0e})"
                for row in self.linears
                # Written so that a NaN fails.
                if not all(gap <= SAME for gap in (row.output_gap, row.input_gap, row.weight_gap))
            ],
            *[words for row in self.layouts for words in _layout_failures(row)],
        ]

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"linears"``, ``"layouts"`` and, with several ranks, ``"wire"``."""
        wire = {"wire": self._wire_table} if len(self.layouts) > 1 else {}
        return {"linears": self._linears_table, "layouts": self._layouts_table, **wire}

    def _linears_table(self) -> Table:
        rows = [
            (str(row.tensor), *[f"{gap:.1e}" for gap in (row.output_gap, row.input_gap, row.weight_gap)])
            for row in self.linears
        ]
        return Table(
            caption=f"Megatron-core {self.version}: ColumnParallelLinear, GELU, RowParallelLinear against whole matrices, largest difference",
            columns=("Tensor parallel", "Output", "Input's gradient", "Weights' gradients"),
            rows=tuple(rows),
        )

    def _layouts_table(self) -> Table:
        rows = [
            (
                row.name,
                "-".join([str(n) for n in row.layers]),
                f"{max(row.parameters):,}",
                f"{row.losses[0]:.6f}",
                f"{row.losses[-1]:.6f}",
                f"{row.loss_gap:.1e}",
                f"{row.parameter_gap:.1e}",
                f"{row.own_gap:.1e}",
            )
            for row in self.layouts
        ]
        return Table(
            caption=f"One GPT, {self.settings['steps']} optimizer steps of {MICRO_BATCHES} micro-batches, from the same weights under each layout",
            columns=(
                "Layout",
                "Layers on each rank",
                "Parameters of a rank, most",
                "First loss",
                "Last loss",
                "Losses off by",
                "Parameters off by",
                "First loss from Megatron's own weights off by",
            ),
            rows=tuple(rows),
            notes=(
                "Off by: against one rank. Ranks that a layout leaves over train copies, which do not speak.",
            ),
        )

    def _wire_table(self) -> Table:
        rows = [(row.name, *row.cells) for row in self.layouts if row.predicted]
        return Table(
            caption="Bytes that one rank sends per optimizer step, mean over the ranks",
            columns=("Layout", *SENT_COLUMNS),
            rows=tuple(rows),
            notes=(reading_words(self.reading),),
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if len(self.layouts) == 1:
            return ["With one rank there is one layout: run the lab with more ranks."]
        return [
            self._equality_words(),
            self._start_words(),
            self._wire_words(),
            "Megatron-core was written for GPUs. Here it runs on CPUs behind three replaced names: its schedules' "
            "counters on the CPU, a device that is the CPU, and no dropout streams. What it fuses or overlaps on a "
            "GPU is not seen here, and no time is shown.",
        ]

    def _equality_words(self) -> str:
        losses = max(row.loss_gap for row in self.layouts)
        parameters = max(row.parameter_gap for row in self.layouts)
        last = self.layouts[0].losses[-1]
        exact = all(row.parameter_gap == 0 for row in self.layouts if row.tensor == 1)
        pipeline = "A pipeline alone changes no bit" if exact else "A pipeline changes the order of no sum"
        return (
            f"All {len(self.layouts)} layouts train the same model: after {self.settings['steps']} steps the loss is "
            f"{last:.6f} in each, within {losses:.0e}, and no parameter is off by more than {parameters:.0e} of the "
            f"largest. {pipeline}; tensor parallelism adds up in another order."
        )

    def _start_words(self) -> str:
        tensor = [row.own_gap for row in self.layouts if row.pipeline == 1 and row.tensor > 1]
        pipeline = [row.own_gap for row in self.layouts if row.pipeline > 1]
        return (
            "That needs a start from the same weights. Megatron's own start on CPUs draws each matrix whole and "
            f"keeps a part, so tensor parallelism doesn't change it (off by {max(tensor):.0e}); a pipeline stage "
            f"draws its own layers only, and so another model comes out (off by {max(pipeline):.0e}). "
            "Comparing losses of two layouts proves nothing until the start is the same."
        )

    def _wire_words(self) -> str:
        tensor, pipeline = self.layout(2, 1), self.layout(1, 2)
        sent = [format_bytes(row.predicted if row.sent is None else row.sent) for row in (tensor, pipeline)]
        return (
            f"For one step TP2 sends {sent[0]} per rank and PP2 {sent[1]}, {tensor.predicted / pipeline.predicted:.1f} "
            "times less: every layer's sums travel in the one, one activation and one gradient per micro-batch in "
            "the other. The pipeline pays with idle time instead."
        )


def _layout_failures(row: LayoutRow) -> list[str]:
    failed = []
    if not (row.loss_gap <= SAME and row.parameter_gap <= SAME):
        failed.append(
            f"{row.name}: not equal to one rank (losses {row.loss_gap:.1e}, parameters {row.parameter_gap:.1e}, "
            f"allowed {SAME:.0e})"
        )
    if row.pipeline == 1 and not row.own_gap <= SAME:
        failed.append(
            f"{row.name}: Megatron's own start depends on tensor parallelism (first loss {row.own_gap:.1e})"
        )
    return [*failed, *row.complaint(row.name)]


@lab(
    title="Megatron-core on CPUs: its parallel linears, and one GPT under tensor, pipeline and both",
    seconds=25,
    needs="torch and megatron-core",
    options={
        "ranks": "Ranks; all layouts of tensor and pipeline parallelism that divide them are measured.",
        "steps": "Optimizer steps under each layout.",
        **RUN_OPTIONS,
    },
    worker_file="megatron_worker.py",
    shown=("train_step", "forward_step", "set_weights"),
    result=MegatronRun,
)
def megatron(
    ranks: int = 4,
    *,
    steps: int = 3,
    limit_s: float = 240.0,
    start: str = "auto",
    show: bool = True,
) -> MegatronRun:
    """Run Megatron-core's parallel linears and a small GPT under every layout of ``ranks``; check, count, predict.

    (a) Column- and row-parallel linears against whole ones. (b) The GPT's losses and parameters under each layout
    against one rank, from the same weights. (c) Bytes on the wire per optimizer step, by the kernel, beside the
    models of tensor and pipeline parallelism.

    Args:
        ranks: 1, 2 or 4: the model has four heads and four layers.
        steps: optimizer steps under each layout.
        limit_s: time limit of the whole lab, seconds; importing Megatron-core alone takes about 10.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without Megatron-core it says so and returns the run that was recorded for the book (``recorded`` is then True).
    With a GPU for each rank it uses NCCL, and the kernel then has no bytes to count; that path was not run for this
    book.
    """
    n_ranks = count("ranks", ranks, most=MOST_RANKS)
    if n_ranks not in (1, 2, 4):
        raise ValueError(f"ranks must be 1, 2 or 4 (the model has four heads and four layers), not {ranks}")
    settings = {
        "ranks": n_ranks,
        "steps": count("steps", steps),
        **SIZES,
    }
    limit = positive("limit_s", limit_s, "seconds")
    require("megatron-core", "extras", "megatron.core")
    params = {**settings, "layouts": _layouts(n_ranks)}
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _layouts(ranks: int) -> list[tuple[int, int]]:
    """Pairs (tensor, pipeline), one rank first, then by how many ranks they use."""
    pairs = [(t, p) for t in teams(ranks) for p in teams(ranks) if t * p <= ranks]
    for tensor, _ in pairs:
        check_split(tensor, SIZES["heads"], ffn=4 * SIZES["hidden"], vocabulary=SIZES["vocabulary"])
    return sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1]))


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, int], elapsed_s: float) -> MegatronRun:
    alone = measured["layouts"][0]
    return MegatronRun(
        **common(measured, settings, elapsed_s),
        version=measured["version"],
        linears=tuple([LinearRow(**row) for row in measured["linears"]]),
        layouts=tuple([_layout_row(row, alone) for row in measured["layouts"]]),
    )


def _layout_row(raw: dict[str, Any], alone: dict[str, Any]) -> LayoutRow:
    tensor, pipeline, stages = raw["tensor"], raw["pipeline"], raw["stages"]
    sent = [_stage_sent_bytes(tensor, pipeline, stage) for stage in range(pipeline)]
    gaps = [_relative(*pair) for pair in zip(raw["losses"], alone["losses"], strict=True)]
    return LayoutRow(
        messages=max(_stage_messages(tensor, pipeline, stage) for stage in range(pipeline)),
        predicted_bytes=tuple([sent[stage] for stage in stages]),
        kernel_bytes=None if raw["kernel"] is None else tuple(raw["kernel"]),
        tensor=tensor,
        pipeline=pipeline,
        losses=tuple(raw["losses"]),
        loss_gap=max(gaps, key=lambda gap: (gap != gap, gap)),
        parameter_gap=raw["parameter_gap"],
        own_gap=_relative(raw["own_loss"], alone["own_loss"]),
        layers=tuple([len(layers) for layers in raw["layers"]]),
        parameters=tuple(raw["parameters"]),
    )


def _relative(one: float, other: float) -> float:
    return abs(one - other) / abs(other)


def _stage_sent_bytes(tensor: int, pipeline: int, stage: int) -> float:
    """What a rank of this stage sends in one optimizer step, by the models."""
    sizes = SIZES["sequence"], SIZES["micro_batch"], SIZES["hidden"]
    layers = SIZES["layers"] // pipeline * layer_sent_bytes(*sizes, tensor, element_bytes=FP32_BYTES)
    hop = boundary_bytes(*sizes, tensor, element_bytes=FP32_BYTES)
    both_ends = vocabulary_sent_bytes(*sizes, tensor, element_bytes=FP32_BYTES)
    # The embedding's all-reduce belongs to the first stage; the rest of the vocabulary's to the last.
    embedding = ring_allreduce_sent_bytes(hop, tensor)
    ends = (embedding if stage == 0 else 0.0) + (both_ends - embedding if stage == pipeline - 1 else 0.0)
    over_stages = p2p_sent_bytes("1f1b", pipeline, MICRO_BATCHES, hop)[stage]
    return MICRO_BATCHES * (layers + ends) + over_stages


def _stage_messages(tensor: int, pipeline: int, stage: int) -> int:
    """How many messages carry them on gloo."""
    all_reduces = SIZES["layers"] // pipeline * layer_collectives().all_reduce
    # One after the embedding; one of the output layer's input gradient and three of the split loss.
    all_reduces += (1 if stage == 0 else 0) + (4 if stage == pipeline - 1 else 0)
    hops = (1 if stage > 0 else 0) + (1 if stage < pipeline - 1 else 0)
    return MICRO_BATCHES * (all_reduces * 2 * (tensor - 1) * MESSAGES_PER_ROUND + hops)
