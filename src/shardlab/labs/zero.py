"""The ZeRO lab: optimizer states, gradients and parameters sharded over real processes, weighed and counted.

>>> from shardlab import labs
>>> run = labs.zero(ranks=4)
>>> run.table("memory")
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import WIRE_TOLERANCE
from shardlab.labs.table import Table
from shardlab.models.collectives import (
    direct_alltoall_cost,
    ring_allgather_cost,
    ring_allreduce_sent_bytes,
    ring_reduce_scatter_cost,
)
from shardlab.models.communication import DataTraffic, data_traffic, hybrid_shard_traffic
from shardlab.models.memory import ModelStates, model_states, recipe_named, unsharded_bytes
from shardlab.units import format_bytes, significant

WORKER = "shardlab.labs.zero_worker:worker"
RECIPE = "fp32-adam-16"
FP32_BYTES = 4

# Largest differences allowed after a few steps: fp32 keeps 7 digits, and sums come in another order.
SAME = 1e-6
# Of the largest gradient.
SAME_GRADIENT = 1e-4
# Parameters must have moved far beyond what counts as the same, or the comparison says nothing.
MOVED = 1e-4

KINDS = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Way:
    """One way to train on N ranks: its name for readers, and what the models say of it.

    Attributes:
        title: what the tables call it.
        zero_stage: the ZeRO stage whose memory and traffic it should have.
        kept: whole weights stay from the forward to the backward pass.
        uneven: it deals out whole tensors, so ranks differ.
        mended: its reduce-scatter is an all-to-all and a local sum.
        replicas: copies of the model's states among the ranks; each is sharded over ranks / replicas.
    """

    title: str
    zero_stage: int
    kept: bool = False
    uneven: bool = False
    mended: bool = False
    replicas: int = 1

    def states(self, parameters: int, ranks: int) -> ModelStates:
        """Bytes of model states of one rank, by kind."""
        shards = ranks // self.replicas
        return model_states(parameters, ranks, self.zero_stage, RECIPE, shard_ranks=shards)

    def textbook_bytes(self, parameters: int, ranks: int) -> float:
        """Bytes that a rank sends per step if every collective sends what its name says."""
        if self.replicas > 1:
            return hybrid_shard_traffic(
                parameters, ranks, ranks // self.replicas, 3, 1, FP32_BYTES, FP32_BYTES
            ).total_bytes
        return self._traffic(parameters, ranks).total_bytes

    def expected_bytes(self, parameters: int, ranks: int, backend: str) -> float:
        """The same with what is known of the implementation: see :meth:`ZeroRun.explanation`."""
        textbook = self.textbook_bytes(parameters, ranks)
        traffic = self._traffic(parameters, ranks)
        if self.uneven:
            # DDP all-reduces all the same; the owners' broadcasts take the place of the all-gather.
            whole = data_traffic(parameters, ranks, 0, 1, FP32_BYTES, FP32_BYTES)
            return whole.all_reduce_bytes + traffic.all_gather_bytes
        if self.mended or backend != "gloo":
            return textbook
        return textbook + traffic.reduce_scatter_bytes

    def _traffic(
        self, parameters: int, ranks: int, micro_steps: int = 1, every: bool | None = None
    ) -> DataTraffic:
        return data_traffic(
            parameters,
            ranks,
            self.zero_stage,
            micro_steps,
            FP32_BYTES,
            FP32_BYTES,
            reshard_after_forward=not self.kept,
            sync_every_micro_batch=every,
        )

    def accumulation_bytes(self, parameters: int, ranks: int, micro_steps: int, every: bool) -> float:
        """Bytes that a rank sends per optimizer step of several micro-batches."""
        return self._traffic(parameters, ranks, micro_steps, every).total_bytes


WAYS = {
    "ddp": Way("DDP", 0),
    "zero1": Way("ZeRO-1 by hand", 1, mended=True),
    "torch_zero1": Way("ZeroRedundancyOptimizer", 1, uneven=True),
    "fsdp": Way("FSDP2", 3),
    "fsdp_kept": Way("FSDP2, weights kept after forward", 3, kept=True),
    "fsdp_mended": Way("FSDP2, mended reduce-scatter", 3, mended=True),
    "hybrid": Way("FSDP2 hybrid, 2 replicas, mended", 3, mended=True, replicas=2),
}

# name: (title, the algorithm's bytes on paper, the bytes that gloo's implementation sends)
COLLECTIVES: dict[str, tuple[str, Callable[[float, int], float], Callable[[float, int], float]]] = {
    "all_reduce": ("all-reduce", ring_allreduce_sent_bytes, ring_allreduce_sent_bytes),
    "reduce_scatter": (
        "reduce-scatter of one tensor",
        lambda size, n: ring_reduce_scatter_cost(size, n).sent_bytes,
        ring_allreduce_sent_bytes,
    ),
    "reduce_scatter_list": (
        "reduce-scatter of a list",
        lambda size, n: ring_reduce_scatter_cost(size, n).sent_bytes,
        ring_allreduce_sent_bytes,
    ),
    "all_to_all_sum": (
        "all-to-all, then a local sum",
        lambda size, n: direct_alltoall_cost(size, n).sent_bytes,
        lambda size, n: direct_alltoall_cost(size, n).sent_bytes,
    ),
    "all_gather": (
        "all-gather",
        lambda size, n: ring_allgather_cost(size, n).sent_bytes,
        lambda size, n: ring_allgather_cost(size, n).sent_bytes,
    ),
}


def _against(kernel_bytes: Sequence[float] | None, expected: float, mean: bool = False) -> float | None:
    """The kernel's count against ``expected``, of the rank farthest off or of the mean; None if not to be had."""
    if not kernel_bytes or not expected:
        return None
    sent = [statistics.fmean(kernel_bytes)] if mean else kernel_bytes
    return max([n_bytes / expected - 1 for n_bytes in sent], key=abs)


@dataclass(frozen=True)
class CollectiveRow:
    """One collective over a buffer on each rank.

    Attributes:
        collective: a key of :data:`COLLECTIVES`.
        ranks: N.
        n_bytes: bytes of the buffer: an all-reduce's, a reduce-scatter's input, an all-gather's output.
        gap: largest absolute difference of the result from the exact one.
        textbook_bytes: what the ring algorithm of this name sends per rank.
        expected_bytes: what this backend's sends.
        kernel_bytes: what the kernel sent, one number per rank; None where it can't be read.
    """

    collective: str
    ranks: int
    n_bytes: int
    gap: float
    textbook_bytes: float
    expected_bytes: float
    kernel_bytes: tuple[float, ...] | None

    @property
    def against(self) -> float | None:
        """The kernel's count against ``expected_bytes``, as a fraction, of the rank farthest off."""
        return _against(self.kernel_bytes, self.expected_bytes)


@dataclass(frozen=True)
class Held:
    """Bytes of model states on one rank between steps."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return self.parameters + self.gradients + self.optimizer


@dataclass(frozen=True)
class WayRow:
    """One way to train, on ``ranks`` ranks.

    Attributes:
        way: a key of :data:`WAYS`.
        ranks: N.
        steps: optimizer steps of the comparison with one process.
        loss_gap, parameter_gap: largest absolute differences from one process on the same global batches.
        gradient_gap: the same of the last gradients, over the largest gradient.
        moved: how far the farthest parameter went from its start: what the gap is small against.
        held: bytes on each rank after a step, gradients still there.
        predicted: the model's bytes on each rank.
        whole_peak: most bytes of whole weights at the end of any layer's forward pass.
        whole_after: bytes of whole weights between forward and backward pass.
        predicted_peak, predicted_after: the model's.
        textbook_bytes: what a rank sends per step by the textbook.
        expected_bytes: the same with this implementation's collectives.
        kernel_bytes: what the kernel sent per step, one number per rank; None where it can't be read.
    """

    way: str
    ranks: int
    steps: int
    loss_gap: float
    parameter_gap: float
    gradient_gap: float
    moved: float
    held: tuple[Held, ...]
    predicted: Held
    whole_peak: float
    whole_after: float
    predicted_peak: float
    predicted_after: float
    textbook_bytes: float
    expected_bytes: float
    kernel_bytes: tuple[float, ...] | None

    @property
    def title(self) -> str:
        """What the tables call this way."""
        return WAYS[self.way].title

    @property
    def fullest(self) -> Held:
        """The rank that holds most."""
        return max(self.held, key=lambda held: held.total_bytes)

    @property
    def emptiest(self) -> Held:
        """The rank that holds least."""
        return min(self.held, key=lambda held: held.total_bytes)

    @property
    def sent_bytes(self) -> float | None:
        """The kernel's count, mean over the ranks."""
        return None if self.kernel_bytes is None else statistics.fmean(self.kernel_bytes)

    @property
    def against(self) -> float | None:
        """The kernel's count against ``expected_bytes``: of the rank farthest off, or of the mean where ranks differ."""
        return _against(self.kernel_bytes, self.expected_bytes, mean=WAYS[self.way].uneven)


@dataclass(frozen=True)
class AccumulationRow:
    """FSDP2 (mended) over several micro-batches per optimizer step.

    Attributes:
        ranks: N.
        micro_steps: micro-batches.
        sync: ``"every"`` (gradients reduced after each) or ``"last"`` (``set_requires_gradient_sync(False)`` before).
        gradient_bytes: gradients that a rank holds between micro-batches, the most on any rank.
        predicted_gradient_bytes: the model's.
        expected_bytes: what a rank sends per optimizer step, by the model.
        kernel_bytes: what the kernel sent, one number per rank; None where it can't be read.
        gap_to_every: largest parameter difference between the two ways after a step.
    """

    ranks: int
    micro_steps: int
    sync: str
    gradient_bytes: float
    predicted_gradient_bytes: float
    expected_bytes: float
    kernel_bytes: tuple[float, ...] | None
    gap_to_every: float

    @property
    def against(self) -> float | None:
        """The kernel's count against ``expected_bytes``, as a fraction, of the rank farthest off."""
        return _against(self.kernel_bytes, self.expected_bytes)


@dataclass(frozen=True, kw_only=True)
class ZeroRun(LabRun):
    """A finished ZeRO lab.

    Attributes:
        parameters: of the model. largest_unit: of its largest FSDP unit.
        n_bytes: P, bytes of the weights (and of the gradients) in fp32.
        padding: by how much shards may exceed 1/N because N doesn't divide the model's rows; 0 for 2, 3, 4, 6, 8.
        collectives, ways, accumulation: the measurements, row by row.
    """

    lab: ClassVar[str] = "zero"

    parameters: int
    largest_unit: int
    n_bytes: int
    padding: float
    collectives: tuple[CollectiveRow, ...]
    ways: tuple[WayRow, ...]
    accumulation: tuple[AccumulationRow, ...]

    # ---- reading it ----

    def way(self, way: str, ranks: int | None = None) -> WayRow:
        """The row of :attr:`ways` for this way on so many ranks, by default on all."""
        return only(self.ways, "ways", way=way, ranks=self._most if ranks is None else ranks)

    def collective(self, collective: str, ranks: int | None = None) -> CollectiveRow:
        """The row of :attr:`collectives` for this collective on so many ranks, by default on all."""
        wanted = self._most if ranks is None else ranks
        return only(self.collectives, "collectives", collective=collective, ranks=wanted)

    def accumulated(self, sync: str, ranks: int | None = None) -> AccumulationRow:
        """The row of :attr:`accumulation` for ``"every"`` or ``"last"`` on so many ranks, by default on all."""
        wanted = self._most if ranks is None else ranks
        return only(self.accumulation, "accumulation", sync=sync, ranks=wanted)

    @property
    def _most(self) -> int:
        return max(row.ranks for row in self.ways)

    # ---- what should be equal ----

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        return [*self._unequal(), *self._misweighed(), *self._miscounted(), *self._misaccumulated()]

    def _unequal(self) -> list[str]:
        failed = []
        for row in self.ways:
            # Written so that a NaN fails.
            same = row.loss_gap <= SAME and row.parameter_gap <= SAME and row.gradient_gap <= SAME_GRADIENT
            if not same:
                failed.append(
                    f"{row.title}, {ranks_words(row.ranks)}: not equal to one process (loss {row.loss_gap:.1e}, "
                    f"parameters {row.parameter_gap:.1e}, allowed {SAME:.0e}; gradients {row.gradient_gap:.1e} of the "
                    f"largest, allowed {SAME_GRADIENT:.0e})"
                )
            if not row.moved >= MOVED:
                failed.append(
                    f"{row.title}, {ranks_words(row.ranks)}: the parameters moved by {row.moved:.1e} only; the "
                    "comparison with one process says nothing"
                )
        return failed

    def _misweighed(self) -> list[str]:
        failed = []
        for row in self.ways:
            for kind in KINDS:
                sizes = [float(getattr(held, kind)) for held in row.held]
                predicted = float(getattr(row.predicted, kind))
                # Whole tensors dealt out: only the mean over the ranks is what the formula says.
                one = statistics.fmean(sizes) if WAYS[row.way].uneven else max(sizes)
                if not _close(one, predicted, self.padding):
                    failed.append(
                        f"{row.title}, {ranks_words(row.ranks)}: {one:,.0f} B of {kind} on a rank, "
                        f"not {predicted:,.0f} B"
                    )
            whole = ((row.whole_peak, row.predicted_peak), (row.whole_after, row.predicted_after))
            failed += [
                f"{row.title}, {ranks_words(row.ranks)}: {held:,.0f} B of whole weights in the forward pass, not "
                f"{predicted:,.0f} B"
                for held, predicted in whole
                if held != predicted
            ]
        return failed

    def _miscounted(self) -> list[str]:
        failed = [
            f"{_collective_title(row)}, {ranks_words(row.ranks)}: the result is off by {row.gap:.1e}"
            for row in self.collectives
            if row.gap != 0
        ]
        named: list[tuple[str, CollectiveRow | WayRow | AccumulationRow]] = [
            *[(_collective_title(row), row) for row in self.collectives],
            *[(row.title, row) for row in self.ways],
            *[(f"accumulation, {row.sync}", row) for row in self.accumulation],
        ]
        failed += [
            f"{name}, {ranks_words(row.ranks)}: a rank sends {row.against:+.2%} against what is expected (allowed "
            f"{WIRE_TOLERANCE + self.padding:.1%})"
            for name, row in named
            if row.against is not None and not abs(row.against) <= WIRE_TOLERANCE + self.padding
        ]
        return failed

    def _misaccumulated(self) -> list[str]:
        failed = []
        for row in self.accumulation:
            where = f"accumulation, {ranks_words(row.ranks)}, gradients reduced after {row.sync}"
            if not row.gap_to_every <= SAME:
                failed.append(f"{where}: the parameters differ by {row.gap_to_every:.1e}")
            if not _close(row.gradient_bytes, row.predicted_gradient_bytes, self.padding):
                failed.append(
                    f"{where}: {row.gradient_bytes:,.0f} B of gradients between micro-batches, not "
                    f"{row.predicted_gradient_bytes:,.0f} B"
                )
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"equality"``, ``"memory"``, ``"whole"``, and with more than one rank ``"collectives"``, ``"wire"``, ``"accumulation"``."""
        tables = {
            "equality": self._equality_table,
            "memory": self._memory_table,
            "whole": self._whole_table,
        }
        if self.collectives:
            tables |= {
                "collectives": self._collectives_table,
                "wire": self._wire_table,
                "accumulation": self._accumulation_table,
            }
        return tables

    def _equality_table(self) -> Table:
        rows = [
            (
                row.title,
                str(row.ranks),
                f"{row.loss_gap:.1e}",
                f"{row.gradient_gap:.1e}",
                f"{row.parameter_gap:.1e}",
                f"{row.moved:.1e}",
            )
            for row in self.ways
        ]
        return Table(
            caption=f"Against one process on the same global batches, {self.ways[0].steps} steps of Adam in fp32: "
            "largest difference",
            columns=("Way", "Ranks", "Loss", "Gradients / largest", "Parameters", "Parameters moved by"),
            rows=tuple(rows),
            label_columns=2,
        )

    def _memory_table(self) -> Table:
        rows = []
        for row in self.ways:
            kinds = [self._per_parameter(getattr(row.fullest, kind)) for kind in KINDS]
            totals = [held.total_bytes for held in (row.fullest, row.predicted, row.emptiest)]
            full, predicted, empty = totals
            gap = "exact" if full == predicted else f"{full / predicted - 1:+.1%}"
            shown = [self._per_parameter(total) for total in (full, predicted)]
            rows.append((row.title, str(row.ranks), *kinds, *shown, gap, self._per_parameter(empty)))
        return Table(
            caption=f"Model states on one rank after a step, bytes per parameter; {self.parameters:,} parameters",
            columns=(
                "Way",
                "Ranks",
                "Parameters",
                "Gradients",
                "Optimizer",
                "Total",
                "Formula",
                "Against formula",
                "Total on the emptiest rank",
            ),
            rows=tuple(rows),
            notes=(
                "Counted over the tensors that the rank holds (of a sharded one, its shard), on the fullest rank. "
                "Adam's step counters, 4 bytes per tensor, are left out.",
            ),
            label_columns=2,
        )

    def _per_parameter(self, n_bytes: float) -> str:
        return f"{n_bytes / self.parameters:.2f}"

    def _whole_table(self) -> Table:
        rows = [
            (
                row.title,
                str(row.ranks),
                f"{row.whole_peak:,.0f}",
                f"{row.predicted_peak:,.0f}",
                f"{row.whole_after:,.0f}",
                f"{row.predicted_after:,.0f}",
            )
            for row in self.ways
            if WAYS[row.way].zero_stage == 3
        ]
        return Table(
            caption="Whole weights that a rank holds on top of its shard, bytes",
            columns=(
                "Way",
                "Ranks",
                "Most in the forward pass",
                "Predicted",
                "Between forward and backward",
                "Predicted",
            ),
            rows=tuple(rows),
            notes=(
                f"Predicted: the largest unit, {self.largest_unit:,} parameters, or all {self.parameters:,} where whole "
                "weights are kept. Looked at after each layer's forward pass; the buffers of an all-gather under way "
                "are not in it.",
            ),
            label_columns=2,
        )

    def _collectives_table(self) -> Table:
        rows = [
            (
                _collective_title(row),
                str(row.ranks),
                f"{row.textbook_bytes:,.0f}",
                *self._sent_cells(row.kernel_bytes, row.textbook_bytes),
                f"{row.gap:.0e}",
            )
            for row in self.collectives
        ]
        return Table(
            caption=f"What a collective sends per rank; each over P = {self.n_bytes:,} B",
            columns=(
                "Collective",
                "Ranks",
                "Textbook, B",
                "Sent (kernel), B",
                "Sent / textbook",
                "Result off by",
            ),
            rows=tuple(rows),
            notes=(self._reading_words(),),
            label_columns=2,
        )

    def _wire_table(self) -> Table:
        rows = []
        for row in [row for row in self.ways if row.ranks > 1]:
            share = (row.ranks - 1) / row.ranks * self.n_bytes
            volumes = [row.textbook_bytes, row.expected_bytes]
            shown = [f"{n_bytes:,.0f}" for n_bytes in volumes]
            sent, passes = self._sent_cells(row.kernel_bytes, share)
            gap = "-" if row.against is None else f"{row.against:+.2%}"
            rows.append((row.title, str(row.ranks), *shown, sent, gap, passes))
        return Table(
            caption=f"Bytes that one rank sends per training step; P = {self.n_bytes:,} B",
            columns=(
                "Way",
                "Ranks",
                "Textbook, B",
                "Expected here, B",
                "Sent (kernel), B",
                "Against expected",
                "Sent / ((N-1)/N·P)",
            ),
            rows=tuple(rows),
            notes=(
                f"Expected here: the textbook's, with what {self.backend} really does for a reduce-scatter and what "
                "ZeroRedundancyOptimizer really calls. " + self._reading_words(),
            ),
            label_columns=2,
        )

    def _accumulation_table(self) -> Table:
        rows = []
        for row in self.accumulation:
            sent, _ = self._sent_cells(row.kernel_bytes, row.expected_bytes)
            rows.append(
                (
                    row.sync,
                    str(row.ranks),
                    self._per_parameter(row.gradient_bytes),
                    self._per_parameter(row.predicted_gradient_bytes),
                    f"{row.expected_bytes:,.0f}",
                    sent,
                    "-" if row.against is None else f"{row.against:+.2%}",
                )
            )
        return Table(
            caption=f"FSDP2 (mended) over {self.accumulation[0].micro_steps} micro-batches per optimizer step",
            columns=(
                "Gradients reduced after",
                "Ranks",
                "Gradients held, B/parameter",
                "Formula",
                "Predicted, B",
                "Sent (kernel), B",
                "Against predicted",
            ),
            rows=tuple(rows),
            notes=(self._reading_words(),),
            label_columns=2,
        )

    @staticmethod
    def _sent_cells(kernel_bytes: Sequence[float] | None, over: float) -> tuple[str, str]:
        if kernel_bytes is None:
            return "-", "-"
        sent = statistics.fmean(kernel_bytes)
        return f"{sent:,.0f}", f"{sent / over:.3f}"

    def _reading_words(self) -> str:
        if self.reading is None:
            return "The kernel's count of sent bytes can't be read here."
        return f"Sent: the kernel's counters of the ranks' TCP connections ({self.reading}), mean over the ranks."

    # ---- in words ----

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if not self.collectives:
            return ["With one rank there is nothing to shard or to send: run the lab with more ranks."]
        words = [self._memory_words(), self._whole_words()]
        if self.reading is not None:
            words += [self._collective_words(), self._wire_words()]
        return [*words, self._accumulation_words(), self._limits_words()]

    def _memory_words(self) -> str:
        whole, hand, torch_one, sharded = [self.way(way) for way in ("ddp", "zero1", "torch_zero1", "fsdp")]
        each = [self._per_parameter(row.fullest.total_bytes) for row in (whole, hand, sharded)]
        return (
            f"On {ranks_words(self._most)}, DDP holds {each[0]} bytes per parameter on every rank, ZeRO-1 by hand "
            f"{each[1]} and FSDP2 {each[2]}: 4 + 4 + 8, 4 + 4 + 8/N and 16/N. ZeroRedundancyOptimizer deals out whole "
            f"tensors, so its fullest rank holds {self._per_parameter(torch_one.fullest.optimizer)} bytes of optimizer "
            f"state per parameter and its emptiest {self._per_parameter(torch_one.emptiest.optimizer)}, where equal "
            f"shards would be {self._per_parameter(torch_one.predicted.optimizer)}: memory is what the fullest rank needs."
        )

    def _whole_words(self) -> str:
        freed, kept = self.way("fsdp"), self.way("fsdp_kept")
        return (
            f"While FSDP2 computes it also holds whole weights: at most {format_bytes(freed.whole_peak)} in the forward "
            f"pass, the largest unit, and {format_bytes(freed.whole_after)} after it. With reshard_after_forward=False "
            f"it holds all {format_bytes(kept.whole_after)} from the forward to the backward pass and sends less: "
            "between the passes it is ZeRO-2, between steps ZeRO-3."
        )

    def _collective_words(self) -> str:
        named, mended = self.collective("reduce_scatter"), self.collective("all_to_all_sum")
        sent, less = [statistics.fmean(row.kernel_bytes or [0.0]) for row in (named, mended)]
        return (
            f"gloo's reduce-scatter sends {sent / named.textbook_bytes:.3f} times the textbook's (N-1)/N·P on "
            f"{ranks_words(named.ranks)}: as much as an all-reduce, and it gives the right result, so only a count on the "
            f"wire shows it. An all-to-all and a local sum send {less / mended.textbook_bytes:.3f} times the textbook's. "
            "NCCL has a real reduce-scatter."
        )

    def _wire_words(self) -> str:
        share = (self._most - 1) / self._most * self.n_bytes
        passes = {
            way: f"{(self.way(way).sent_bytes or 0.0) / share:.3f}"
            for way in ("ddp", "zero1", "torch_zero1", "fsdp", "fsdp_kept", "fsdp_mended")
        }
        return (
            f"In passes of (N-1)/N·P on {ranks_words(self._most)}: DDP sends {passes['ddp']} and ZeRO-1 by hand "
            f"{passes['zero1']}, so sharding the optimizer costs nothing on the wire. FSDP2 sends {passes['fsdp']} with "
            f"gloo's reduce-scatter and {passes['fsdp_mended']} with the mended one; the textbook's is 3. Keeping the weights "
            f"after the forward pass saves one all-gather ({passes['fsdp_kept']} with gloo's). ZeroRedundancyOptimizer "
            f"sends {passes['torch_zero1']} on average: DDP under it all-reduces the gradients, and then each owner "
            "broadcasts its tensors. What is above whole numbers is message headers."
        )

    def _accumulation_words(self) -> str:
        every, last = self.accumulated("every"), self.accumulated("last")
        words = (
            f"Over {every.micro_steps} micro-batches, reducing after each keeps gradients sharded, "
            f"{self._per_parameter(every.gradient_bytes)} bytes per parameter between micro-batches. "
            f"set_requires_gradient_sync(False) until the last one keeps them whole, "
            f"{self._per_parameter(last.gradient_bytes)} bytes per parameter on every rank"
        )
        if every.kernel_bytes is None or last.kernel_bytes is None:
            return f"{words}. The parameters are the same."
        saved = 1 - statistics.fmean(last.kernel_bytes) / statistics.fmean(every.kernel_bytes)
        return (
            f"{words}, and sends {saved:.0%} less: the weights are gathered twice for each micro-batch either way. The "
            f"parameters are the same to {significant(last.gap_to_every, 1)}."
        )

    @staticmethod
    def _limits_words() -> str:
        return (
            "Nothing here is a time: on loopback the cores are the wire, and the cost of an all-gather on a network does "
            "not show. Activations, gradients of the unit at work and the allocator's own overhead come on top of the "
            "bytes counted here."
        )

    def plot(self, dark: bool = False) -> Any:
        """Bytes per parameter by kind, one bar for each way on the most ranks, with the formula's total; a figure."""
        from shardlab.labs.zero_plot import memory_figure

        rows = [row for row in self.ways if row.ranks == self._most]
        return memory_figure(rows, self.parameters, dark)


def _close(measured: float, predicted: float, padding: float) -> bool:
    """Equal but for padding; false for NaN."""
    return abs(measured - predicted) <= padding * predicted + 1e-6


def _collective_title(row: CollectiveRow) -> str:
    return COLLECTIVES[row.collective][0]


@lab(
    title="ZeRO and FSDP2 on real processes: equal results, memory by kind, what gloo's reduce-scatter really sends",
    seconds=20,
    needs="torch",
    options={
        "ranks": "Largest number of ranks; 1, 2, 4, ... up to it are measured.",
        "micro_steps": "Micro-batches per optimizer step where accumulation is measured.",
        **RUN_OPTIONS,
    },
    worker_file="zero_worker.py",
    shown=("zero1_step", "reduce_scatter_by_all_to_all", "shard_with_fsdp"),
    result=ZeroRun,
)
def zero(
    ranks: int = 4,
    *,
    micro_steps: int = 4,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> ZeroRun:
    """Train one small model with fp32 Adam in each way of sharding, on 1, 2, 4, ... ``ranks`` processes.

    DDP, ZeRO-1 written by hand, torch's ZeroRedundancyOptimizer, FSDP2 freeing or keeping whole weights after the
    forward pass, FSDP2 with a mended reduce-scatter and, on an even number of ranks from 4, hybrid sharding. (a)
    Losses, gradients and parameters against one process. (b) Bytes of parameters, gradients and optimizer state on each
    rank, beside the ZeRO formulas. (c) Whole weights that FSDP2 holds while it computes. (d) Bytes that collectives and
    steps send, by the kernel, beside the textbook's. (e) Gradients held and bytes sent under accumulation.

    Args:
        ranks: largest number of ranks, 1 to 64.
        micro_steps: micro-batches per optimizer step in (e), 2 or more.
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
    }
    limit = positive("limit_s", limit_s, "seconds")
    params = {**settings, "teams": teams(settings["ranks"])}
    outcome = run(WORKER, settings["ranks"], params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> ZeroRun:
    parameters, backend = measured["parameters"], measured["backend"]
    return ZeroRun(
        **common(measured, settings, elapsed_s),
        parameters=parameters,
        largest_unit=measured["largest_unit"],
        n_bytes=FP32_BYTES * parameters,
        padding=_padding(measured["rows"], teams(settings["ranks"])),
        collectives=tuple([_collective_row(cell, backend) for cell in measured.get("collectives", [])]),
        ways=tuple([_way_row(cell, measured) for cell in measured["ways"]]),
        accumulation=tuple([_accumulation_row(cell, measured) for cell in measured.get("accumulation", [])]),
    )


def _padding(rows: int, ranks: Sequence[int]) -> float:
    """The share by which the largest shard of ``rows`` rows exceeds 1/N, for the worst N."""
    return max(-(-rows // n) * n / rows - 1 for n in ranks)


def _kernel(cell: dict[str, Any]) -> tuple[float, ...] | None:
    return None if cell["kernel"] is None else tuple([float(sent) for sent in cell["kernel"]])


def _collective_row(cell: dict[str, Any], backend: str) -> CollectiveRow:
    _, textbook, on_gloo = COLLECTIVES[cell["collective"]]
    size, ranks = cell["n_bytes"], cell["ranks"]
    return CollectiveRow(
        collective=cell["collective"],
        ranks=ranks,
        n_bytes=size,
        gap=cell["gap"],
        textbook_bytes=textbook(size, ranks),
        expected_bytes=on_gloo(size, ranks) if backend == "gloo" else textbook(size, ranks),
        kernel_bytes=_kernel(cell),
    )


def _way_row(cell: dict[str, Any], measured: dict[str, Any]) -> WayRow:
    way, ranks, parameters = WAYS[cell["way"]], cell["ranks"], measured["parameters"]
    states = way.states(parameters, ranks)
    weight = recipe_named(RECIPE).parameters
    everything = unsharded_bytes(parameters, weight, 0)
    freed = way.zero_stage == 3 and not way.kept
    return WayRow(
        way=cell["way"],
        ranks=ranks,
        steps=cell["steps"],
        loss_gap=cell["loss_gap"],
        parameter_gap=cell["parameter_gap"],
        gradient_gap=cell["gradient_gap"],
        moved=cell["moved"],
        held=tuple([Held(**held) for held in cell["held"]]),
        predicted=Held(states.parameters, states.gradients, states.optimizer),
        whole_peak=cell["whole_peak"],
        whole_after=cell["whole_after"],
        predicted_peak=unsharded_bytes(measured["largest_unit"], weight, 0) if freed else everything,
        predicted_after=0.0 if freed else everything,
        textbook_bytes=way.textbook_bytes(parameters, ranks),
        expected_bytes=way.expected_bytes(parameters, ranks, measured["backend"]),
        kernel_bytes=_kernel(cell),
    )


def _accumulation_row(cell: dict[str, Any], measured: dict[str, Any]) -> AccumulationRow:
    way, parameters, every = WAYS["fsdp_mended"], measured["parameters"], cell["sync"] == "every"
    # Gradients that are not reduced stay whole, as at stage 1.
    stage = 3 if every else 1
    states = model_states(parameters, cell["ranks"], stage, RECIPE)
    return AccumulationRow(
        ranks=cell["ranks"],
        micro_steps=cell["micro_steps"],
        sync=cell["sync"],
        gradient_bytes=cell["gradient_bytes"],
        predicted_gradient_bytes=states.gradients,
        expected_bytes=way.accumulation_bytes(parameters, cell["ranks"], cell["micro_steps"], every),
        kernel_bytes=_kernel(cell),
        gap_to_every=cell["gap_to_every"],
    )
