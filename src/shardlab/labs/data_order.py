"""The data order lab: who reads which sample, what evaluation averages, and what happens when one rank runs out.

>>> from shardlab import labs
>>> run = labs.data_order(ranks=4)
>>> run.table()
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs import progress
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.rank import launched_elsewhere
from shardlab.labs.result import LabRun, common, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, LabError, run
from shardlab.labs.table import Table
from shardlab.models.batch import UnevenSteps, epoch_order, rank_samples, shard_plan, uneven_steps

WORKER = "shardlab.labs.data_order_worker:worker"
HANG_WORKER = "shardlab.labs.data_order_worker:hang_worker"

# fp32 keeps 7 digits; means and a few steps of a small model stay far below this.
SAME = 1e-5
# Counts of chance: further from the expectation than this many standard errors would be no chance.
STANDARD_ERRORS = 5.0
MOST_SAMPLES = 10_000

METRIC_WAYS = {
    "padded": "mean of the ranks' means, padded",
    "drop_last": "mean of the ranks' means, drop_last",
    "weighted": "sums and counts, padding left out",
    "distinct": "each sample once, by its number",
}
EXACT_METRICS = ("weighted", "distinct")

AUGMENTATIONS = {
    "own_generator": "generator made with the dataset",
    "same_torch_seed": "numpy's global state, same torch seed on all ranks",
    "rank_torch_seed": "numpy's global state, a torch seed per rank",
    "seeded_worker": "generator per rank, epoch and worker",
}


# ---- what chance predicts when every rank shuffles with a seed of its own ----


def expected_never_read(samples: int, per_rank: int, ranks: int) -> float:
    """Samples that no rank reads, on average: ``n (1 - k/n)^N``.

    Each of N ranks reads k different samples of n, all choices equally likely, independently of the others: a rank
    misses a given sample with probability 1 - k/n. With k = n/N and many ranks this tends to n/e, 37 %.

    Raises:
        ValueError: a number is not a whole number from 1, or ``per_rank`` is above ``samples``.
    """
    n, share = _share_read(samples, per_rank)
    return n * (1 - share) ** count("ranks", ranks)


def expected_read_repeatedly(samples: int, per_rank: int, ranks: int) -> float:
    """Samples that two or more ranks read, on average: ``n (1 - (1-q)^N - N q (1-q)^(N-1))`` with ``q = k/n``.

    All samples but those that no rank reads and those that exactly one does; chances as in
    :func:`expected_never_read`.

    Raises:
        ValueError: as in :func:`expected_never_read`.
    """
    n, share = _share_read(samples, per_rank)
    world = count("ranks", ranks)
    return n * (1 - (1 - share) ** world - world * share * (1 - share) ** (world - 1))


def never_read_deviation(samples: int, per_rank: int, ranks: int) -> float:
    """Standard deviation of the number of samples that no rank reads, from epoch to epoch.

    The number is a sum of n indicators, so its variance is ``n p + n (n-1) p2 - (n p)^2``, where ``p = (1 - k/n)^N``
    is the chance that a given sample is missed, and ``p2 = ((n-k) (n-k-1) / (n (n-1)))^N`` that two given ones are.

    Raises:
        ValueError: as in :func:`expected_never_read`.
    """
    n, share = _share_read(samples, per_rank)
    world = count("ranks", ranks)
    if n == 1:
        return 0.0
    missed = (1 - share) ** world
    both = ((n - per_rank) * (n - per_rank - 1) / (n * (n - 1))) ** world
    return math.sqrt(max(n * missed + n * (n - 1) * both - (n * missed) ** 2, 0.0))


def _share_read(samples: int, per_rank: int) -> tuple[int, float]:
    n = count("samples", samples)
    return n, count("per_rank", per_rank, most=n) / n


# ---- the measurements ----


@dataclass(frozen=True)
class EpochRow:
    """The orders of several epochs.

    Attributes:
        ranks: N. set_epoch: whether the sampler was told the epoch.
        distinct_orders: different orders of all samples among the epochs; ``predicted_orders`` by
            :func:`shardlab.models.batch.epoch_order`.
        same_position: share of samples at the same place as in the epoch before, mean over the epochs;
            ``expected_same_position``: 1/n for independent orders (one fixed point on average), or 1.
        repeated_batches: share of the first epoch's batches (as sets) that the second epoch has again.
        as_predicted: each rank read exactly the samples, in the order, that
            :func:`shardlab.models.batch.rank_samples` deals out of torch's order.
    """

    ranks: int
    set_epoch: bool
    distinct_orders: int
    predicted_orders: int
    same_position: float
    expected_same_position: float
    repeated_batches: float
    as_predicted: bool


@dataclass(frozen=True)
class PaddingRow:
    """How often each sample of one epoch is read.

    Attributes:
        ranks, samples: N and n. drop_last, shuffle: the sampler's settings.
        once: how many samples are read once.
        more, never: numbers of the samples that are read more than once, and never.
        predicted_more, predicted_never: how many, by :func:`shardlab.models.batch.shard_plan`.
        as_predicted: each rank read exactly the predicted samples, as in :class:`EpochRow`.
    """

    ranks: int
    samples: int
    drop_last: bool
    shuffle: bool
    once: int
    more: tuple[int, ...]
    never: tuple[int, ...]
    predicted_more: int
    predicted_never: int
    as_predicted: bool


@dataclass(frozen=True)
class SeedRow:
    """One epoch when each rank shuffles with a seed of its own, mean over ``epochs`` epochs.

    Attributes:
        ranks: N. per_rank: samples that each rank reads.
        never, more: samples that no rank reads, and that two or more do; ``expected_never``, ``expected_more`` by the
            formulas of this module.
        standard_error: of ``never``, from :func:`never_read_deviation`.
    """

    ranks: int
    epochs: int
    per_rank: int
    never: float
    expected_never: float
    standard_error: float
    more: float
    expected_more: float


@dataclass(frozen=True)
class MetricRow:
    """A mean over the evaluation set, shared by ``ranks`` ranks.

    Attributes:
        way: one of :data:`METRIC_WAYS`.
        mean: measured. predicted: from who reads what. single: of one process.
        bound: the most that repeats can move it (:func:`shardlab.models.batch.shard_plan`); None where none are read.
    """

    ranks: int
    way: str
    mean: float
    predicted: float
    single: float
    bound: float | None


@dataclass(frozen=True)
class JoinRow:
    """Training with ``join`` when ranks have different numbers of batches.

    Attributes:
        divide_by_initial_world_size: DDP's setting.
        active: ranks that still have a batch, step by step.
        divisors: by what the sum of their gradients is divided; ``predicted_divisors`` likewise.
        parameter_gap: largest difference of any rank's parameters to one process that divides so.
    """

    divide_by_initial_world_size: bool
    active: tuple[int, ...]
    divisors: tuple[float, ...]
    predicted_divisors: tuple[int, ...]
    parameter_gap: float


@dataclass(frozen=True)
class Hang:
    """The same without ``join``, stopped at a limit.

    Attributes:
        hung: the limit was reached. limit_s: seconds.
        steps: that each rank finished.
        places: where each rank was at the limit.
    """

    hung: bool
    limit_s: float
    steps: tuple[int, ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class AugmentationRow:
    """Random numbers that loader workers draw.

    Attributes:
        way: one of :data:`AUGMENTATIONS`.
        ranks, workers, epochs: how many draw.
        draws: of all of them together. distinct: different ones; ``predicted_distinct`` likewise.
    """

    way: str
    ranks: int
    workers: int
    epochs: int
    draws: int
    distinct: int
    predicted_distinct: int


@dataclass(frozen=True, kw_only=True)
class DataOrderRun(LabRun):
    """A finished data order lab.

    Attributes:
        epochs, padding, seeds, metric, augmentation, join: the measurements, row by row.
        batches: of each rank, where they differ: for ``join`` and ``hang``.
        hang: what happens without ``join``; None for one rank, and where a launcher started the ranks.
    """

    lab: ClassVar[str] = "data_order"

    epochs: tuple[EpochRow, ...]
    padding: tuple[PaddingRow, ...]
    seeds: tuple[SeedRow, ...]
    metric: tuple[MetricRow, ...]
    augmentation: tuple[AugmentationRow, ...]
    join: tuple[JoinRow, ...]
    batches: tuple[int, ...]
    hang: Hang | None

    # ---- reading it ----

    def epoch_row(self, ranks: int, set_epoch: bool) -> EpochRow:
        """The row of :attr:`epochs` with these settings."""
        return only(self.epochs, "epochs", ranks=ranks, set_epoch=set_epoch)

    def padding_row(
        self, ranks: int, drop_last: bool = False, shuffle: bool = True, samples: int | None = None
    ) -> PaddingRow:
        """The row of :attr:`padding` with these settings; all samples of the lab by default."""
        size = self.settings["samples"] if samples is None else samples
        return only(self.padding, "padding", ranks=ranks, samples=size, drop_last=drop_last, shuffle=shuffle)

    def metric_row(self, ranks: int, way: str) -> MetricRow:
        """The row of :attr:`metric` with these settings."""
        return only(self.metric, "metric", ranks=ranks, way=way)

    def join_row(self, divide_by_initial_world_size: bool) -> JoinRow:
        """The row of :attr:`join` with this setting."""
        return only(self.join, "join", divide_by_initial_world_size=divide_by_initial_world_size)

    @property
    def uneven(self) -> UnevenSteps:
        """What the model says about :attr:`batches`."""
        return uneven_steps(list(self.batches))

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        return [
            *self._failed_reads(),
            *self._failed_seeds(),
            *self._failed_metric(),
            *self._failed_uneven(),
            *[
                f"{AUGMENTATIONS[row.way]}: loader workers drew {row.distinct} different random numbers, predicted "
                f"{row.predicted_distinct}"
                for row in self.augmentation
                if row.distinct != row.predicted_distinct
            ],
        ]

    def _failed_reads(self) -> list[str]:
        failed = [
            f"{ranks_words(row.ranks)}, set_epoch={row.set_epoch}: {row.distinct_orders} different orders, predicted "
            f"{row.predicted_orders}"
            for row in self.epochs
            if row.distinct_orders != row.predicted_orders
        ]
        failed += [
            f"{ranks_words(row.ranks)}, {row.samples} samples, drop_last={row.drop_last}: {len(row.more)} read more "
            f"than once and {len(row.never)} never, predicted {row.predicted_more} and {row.predicted_never}"
            for row in self.padding
            if (len(row.more), len(row.never)) != (row.predicted_more, row.predicted_never)
        ]
        rows: tuple[EpochRow | PaddingRow, ...] = (*self.epochs, *self.padding)
        failed += [
            f"{ranks_words(row.ranks)}: a rank did not read the samples that the model of the sampler deals to it"
            for row in rows
            if not row.as_predicted
        ]
        return failed

    def _failed_seeds(self) -> list[str]:
        return [
            f"{ranks_words(row.ranks)}, a seed per rank: {row.never:.2f} samples are never read, expected "
            f"{row.expected_never:.2f} ± {row.standard_error:.2f}"
            for row in self.seeds
            # Written so that a NaN fails.
            if not abs(row.never - row.expected_never) <= STANDARD_ERRORS * row.standard_error
        ]

    def _failed_metric(self) -> list[str]:
        failed = [
            f"{ranks_words(row.ranks)}, {METRIC_WAYS[row.way]}: {row.mean:.6f}, predicted {row.predicted:.6f}"
            for row in self.metric
            if not abs(row.mean - row.predicted) <= SAME
        ]
        failed += [
            f"{ranks_words(row.ranks)}, {METRIC_WAYS[row.way]}: {row.mean:.6f} is not one process's {row.single:.6f}"
            for row in self.metric
            if row.way in EXACT_METRICS and not abs(row.mean - row.single) <= SAME
        ]
        failed += [
            f"{ranks_words(row.ranks)}, {METRIC_WAYS[row.way]}: off by {abs(row.mean - row.single):.4f}, more than the "
            f"bound of {row.bound:.4f}"
            for row in self.metric
            if row.bound is not None and not abs(row.mean - row.single) <= row.bound + SAME
        ]
        return failed

    def _failed_uneven(self) -> list[str]:
        failed = []
        for row in self.join:
            words = f"join, divide_by_initial_world_size={row.divide_by_initial_world_size}"
            pairs = zip(row.divisors, row.predicted_divisors, strict=True)
            if not all(abs(divisor / predicted - 1) <= SAME for divisor, predicted in pairs):
                failed.append(
                    f"{words}: gradients are divided by {_listed(row.divisors)}, predicted "
                    f"{_listed(row.predicted_divisors)}"
                )
            if not row.parameter_gap <= SAME:
                failed.append(
                    f"{words}: not equal to one process (parameters {row.parameter_gap:.1e}, allowed {SAME:.0e})"
                )
        if self.hang is not None:
            predicted = [self.uneven.safe_steps] * len(self.batches)
            if not self.hang.hung:
                failed.append(f"without join, batches {_listed(self.batches)} should hang and did not")
            elif list(self.hang.steps) != predicted:
                failed.append(
                    f"without join, the ranks finished {_listed(self.hang.steps)} steps, predicted {_listed(predicted)}"
                )
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"epochs"``, ``"padding"``, ``"metric"``, and those that apply of ``"seeds"``, ``"augmentation"``, ``"join"``, ``"hang"``."""
        tables: dict[str, Callable[[], Table]] = {
            "epochs": self._epochs_table,
            "padding": self._padding_table,
        }
        if self.seeds:
            tables["seeds"] = self._seeds_table
        tables["metric"] = self._metric_table
        if self.augmentation:
            tables["augmentation"] = self._augmentation_table
        if self.hang is not None:
            tables["hang"] = self._hang_table
        if self.join:
            tables["join"] = self._join_table
        return tables

    def _epochs_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                "yes" if row.set_epoch else "no",
                str(row.predicted_orders),
                str(row.distinct_orders),
                f"{row.expected_same_position:.1%}",
                f"{row.same_position:.1%}",
                f"{row.repeated_batches:.0%}",
            )
            for row in self.epochs
        ]
        return Table(
            caption=f"DistributedSampler over {self.settings['epochs']} epochs of {self.settings['samples']} samples",
            columns=(
                "Ranks",
                "set_epoch",
                "Orders, predicted",
                "Orders, counted",
                "Same place as before, expected",
                "Same place as before, counted",
                "Batches again in epoch 2",
            ),
            rows=tuple(rows),
            notes=(
                "Expected with set_epoch: a random order leaves one sample in its place on average, 1/n.",
            ),
            label_columns=2,
        )

    def _padding_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                str(row.samples),
                "yes" if row.drop_last else "no",
                "yes" if row.shuffle else "no",
                str(row.once),
                f"{row.predicted_more} / {len(row.more)}",
                f"{row.predicted_never} / {len(row.never)}",
                _some(row.more or row.never),
            )
            for row in self.padding
        ]
        return Table(
            caption="Who reads what in one epoch: predicted / counted",
            columns=(
                "Ranks",
                "Samples",
                "drop_last",
                "shuffle",
                "Read once",
                "Read more than once",
                "Never read",
                "Which",
            ),
            rows=tuple(rows),
            notes=(
                "Predicted: ceil(n/N)·N - n read twice; with drop_last, n - floor(n/N)·N never. Every rank was also "
                "compared sample by sample with the order that torch draws, dealt out one by one.",
            ),
            label_columns=4,
        )

    def _seeds_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                str(row.per_rank),
                f"{row.expected_never:.1f}",
                f"{row.never:.1f} ± {row.standard_error:.1f}",
                f"{row.expected_more:.1f}",
                f"{row.more:.1f}",
            )
            for row in self.seeds
        ]
        return Table(
            caption=f"A seed for each rank: samples of {self.settings['samples']}, mean over {self.seeds[0].epochs} epochs",
            columns=(
                "Ranks",
                "Read by each rank, k",
                "Never read, expected",
                "Never read, counted",
                "Read by several, expected",
                "Read by several, counted",
            ),
            rows=tuple(rows),
            notes=(
                "Expected, with q = k/n: n(1-q)^N never, n(1 - (1-q)^N - Nq(1-q)^(N-1)) by several ranks. "
                "± is the standard error of the mean.",
            ),
        )

    def _metric_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                METRIC_WAYS[row.way],
                f"{row.predicted:.4f}",
                f"{row.mean:.4f}",
                f"{row.mean - row.single:+.4f}",
                "-" if row.bound is None else f"{row.bound:.4f}",
            )
            for row in self.metric
        ]
        size = self.settings["eval_samples"]
        return Table(
            caption=f"Accuracy on {size} samples, hardest first; one process: {self.metric[0].single:.4f}",
            columns=("Ranks", "Average", "Predicted", "Measured", "Off by", "Bound, duplicates / read"),
            rows=tuple(rows),
            notes=("Predicted from who reads what, by the model of the sampler.",),
            label_columns=2,
        )

    def _augmentation_table(self) -> Table:
        rows = [
            (AUGMENTATIONS[row.way], str(row.draws), str(row.predicted_distinct), str(row.distinct))
            for row in self.augmentation
        ]
        first = self.augmentation[0]
        return Table(
            caption=f"Random numbers of loader workers: {ranks_words(first.ranks)}, {first.workers} workers each, "
            f"{first.epochs} epochs",
            columns=("Source", "Drawn", "Different, predicted", "Different, counted"),
            rows=tuple(rows),
        )

    def _hang_table(self) -> Table:
        assert self.hang is not None
        rows = [
            (str(rank), str(self.batches[rank]), str(self.uneven.safe_steps), str(steps), place)
            for rank, (steps, place) in enumerate(zip(self.hang.steps, self.hang.places, strict=True))
        ]
        return Table(
            caption=f"Uneven batches without join: stopped after {self.hang.limit_s:.0f} s",
            columns=("Rank", "Batches", "Steps finished, predicted", "Steps finished", "Where it was"),
            rows=tuple(rows),
            text_columns=1,
        )

    def _join_table(self) -> Table:
        every, active = self.join_row(True), self.join_row(False)
        rows = [
            (
                str(step + 1),
                str(every.active[step]),
                str(every.predicted_divisors[step]),
                f"{every.divisors[step]:.3f}",
                str(active.predicted_divisors[step]),
                f"{active.divisors[step]:.3f}",
            )
            for step in range(len(every.active))
        ]
        return Table(
            caption="Uneven batches with join: by what the sum of gradients is divided",
            columns=(
                "Step",
                "Ranks with a batch",
                "All ranks: predicted",
                "All ranks: measured",
                "Active ranks: predicted",
                "Active ranks: measured",
            ),
            rows=tuple(rows),
            notes=(
                "All ranks: divide_by_initial_world_size=True, the default. Active ranks: False. Parameters against "
                f"one process that divides so: {every.parameter_gap:.0e} and {active.parameter_gap:.0e}.",
            ),
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        words = [self._epoch_words()]
        if self.settings["ranks"] == 1:
            words.append("With one rank nothing is dealt out: run the lab with more ranks.")
        else:
            words += [self._padding_words(), self._seed_words(), self._metric_words()]
        if self.augmentation:
            words.append(self._augmentation_words())
        if self.hang is not None:
            words.append(self._hang_words())
        return [*words, self._join_words()] if self.join else words

    def _epoch_words(self) -> str:
        told, not_told = (self.epoch_row(self.settings["ranks"], set_epoch) for set_epoch in (True, False))
        return (
            f"The sampler shuffles by seed + epoch. Told the epoch, it makes {told.distinct_orders} orders in "
            f"{self.settings['epochs']} epochs; not told, {not_told.distinct_orders}: {not_told.same_position:.0%} of "
            f"the samples come at the same place again, {not_told.repeated_batches:.0%} of the batches are the same. "
            "No error is raised, and the loss still falls."
        )

    def _padding_words(self) -> str:
        ranks, samples = self.settings["ranks"], self.settings["samples"]
        padded, cut = self.padding_row(ranks), self.padding_row(ranks, drop_last=True)
        if not padded.predicted_more:
            return f"{ranks_words(ranks)} divide {samples} samples: each is read exactly once."
        return (
            f"{ranks_words(ranks)} do not divide {samples} samples. The sampler repeats the first{_many(padded.more)} of "
            f"the order ({_some(padded.more)}), or with drop_last leaves out the last{_many(cut.never)} "
            f"({_some(cut.never)}); every other sample is read exactly once. Shuffled anew, that hits other samples "
            "each epoch; without shuffle always the same."
        )

    def _seed_words(self) -> str:
        row = only(self.seeds, "seeds", ranks=self.settings["ranks"])
        return (
            f"With a seed for each rank, the ranks deal from different orders: of {self.settings['samples']} samples, "
            f"{row.never:.1f} are read by none (expected {row.expected_never:.1f}) and {row.more:.1f} by several "
            f"(expected {row.expected_more:.1f}). Each rank alone looks healthy."
        )

    def _metric_words(self) -> str:
        ranks = self.settings["ranks"]
        padded, cut = (self.metric_row(ranks, way) for way in ("padded", "drop_last"))
        return (
            f"In evaluation, repeats count twice: {padded.mean:.1%} instead of {padded.single:.1%} on {ranks_words(ranks)}, "
            f"and drop_last says {cut.mean:.1%}. The smaller the set and the more ranks, the worse; and the number "
            "changes with the number of ranks. Sums and counts without the padding, or each sample once by its "
            "number, give one process's result."
        )

    def _augmentation_words(self) -> str:
        rows = {row.way: row for row in self.augmentation}
        own, same, mended = (rows[way] for way in ("own_generator", "same_torch_seed", "seeded_worker"))
        words = (
            f"Loader workers are copies of their rank. A generator made with the dataset is copied too, anew in each "
            f"epoch: {own.draws} draws hold {own.distinct} different numbers. numpy's global state is seeded by torch in "
            "each worker"
        )
        if same.distinct < same.draws:
            words += (
                ", from the rank's own torch seed; where all ranks set the same one, to start from the same weights, "
                f"they augment alike: {same.distinct} of {same.draws}"
            )
        return (
            f"{words}. A generator seeded with rank, epoch and worker: {mended.distinct} of {mended.draws}."
        )

    def _hang_words(self) -> str:
        assert self.hang is not None
        waiting, finished = self.uneven.waiting_ranks, self.uneven.finished_ranks
        one_done, one_waits = len(finished) == 1, len(waiting) == 1
        return (
            f"Batches {_listed(self.batches)} without join: after {self.uneven.safe_steps} steps "
            f"{'rank' if one_done else 'ranks'} {_listed(finished)} {'is' if one_done else 'are'} done and "
            f"{'rank' if one_waits else 'ranks'} {_listed(waiting)} {'waits' if one_waits else 'wait'} for "
            f"{'it' if one_done else 'them'} in the next all-reduce, for ever. "
            f"Here the lab stopped them after {self.hang.limit_s:.0f} s and says where each was; in production it is "
            "the collective's timeout, minutes later."
        )

    def _join_words(self) -> str:
        every, active = self.join_row(True), self.join_row(False)
        return (
            "join lets a rank that has run out answer the others' all-reduces with zeros. By default the sum is still "
            f"divided by all ranks ({every.divisors[-1]:.0f} in the last step, where {ranks_words(every.active[-1])} still "
            f"{'has' if every.active[-1] == 1 else 'have'} a batch), "
            "so every batch of the epoch weighs the same and late steps are short. With "
            f"divide_by_initial_world_size=False it is divided by those that still have one "
            f"({active.divisors[-1]:.0f}): a mean over the active ranks, and the last batches weigh "
            f"{every.divisors[-1] / active.divisors[-1]:.3g} times as much as the first."
        )


def _listed(values: Sequence[float]) -> str:
    """``0, 2``; ``4, 2, 4, 2``."""
    return ", ".join([f"{value:g}" for value in values])


def _many(numbers: Sequence[int]) -> str:
    """`` 3``, to stand behind "the first"; nothing for a single one."""
    return "" if len(numbers) == 1 else f" {len(numbers)}"


def _some(numbers: Sequence[int], most: int = 4) -> str:
    """The first few."""
    if not numbers:
        return "-"
    return _listed(numbers[:most]) + (f", … ({len(numbers)})" if len(numbers) > most else "")


@lab(
    title="Data order on several ranks: shuffling, padding, seeds, evaluation, uneven batches, loader workers",
    seconds=25,
    needs="torch",
    options={
        "ranks": "Largest number of ranks; 1, 2, 4, ... up to it are measured.",
        "samples": "Samples of the training set.",
        "eval_samples": "Samples of the evaluation set.",
        "epochs": "Epochs whose orders are compared.",
        "hang_limit_s": "Seconds that the run that hangs on purpose is left to hang.",
        **RUN_OPTIONS,
    },
    worker_file="data_order_worker.py",
    shown=("read_epochs", "mean_without_padding", "train_uneven"),
    result=DataOrderRun,
)
def data_order(
    ranks: int = 4,
    *,
    samples: int = 101,
    eval_samples: int = 21,
    epochs: int = 3,
    hang_limit_s: float = 2.0,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> DataOrderRun:
    """Deal samples to 1, 2, 4, ... ``ranks`` processes with torch's sampler, count who reads what, and predict it.

    (a) Orders of epochs with and without ``set_epoch``. (b) Padding and ``drop_last``. (c) A seed for each rank.
    (d) A mean over an evaluation set, biased and exact. (e) Random numbers of loader workers. (f) Uneven batches: the
    hang, stopped at a limit, and ``join``.

    Args:
        ranks: largest number of ranks, 1 to 64.
        samples: of the training set, at least 8 and at least ``ranks``, at most 10,000.
        eval_samples: of the evaluation set, at least ``ranks``, at most 10,000.
        epochs: whose orders are compared, 2 or more.
        hang_limit_s: how long the run that hangs on purpose is left to hang, seconds, starting not counted; where the
            ranks need longer to get there, its limit is doubled and the run repeated.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL; that path was not run for this book.
    """
    n_ranks = count("ranks", ranks, least=1, most=MOST_RANKS)
    settings = {
        "ranks": n_ranks,
        "samples": count("samples", samples, least=max(8, n_ranks), most=MOST_SAMPLES),
        "eval_samples": count("eval_samples", eval_samples, least=n_ranks, most=MOST_SAMPLES),
        "epochs": count("epochs", epochs, least=2),
    }
    hang_limit = positive("hang_limit_s", hang_limit_s, "seconds")
    limit = positive("limit_s", limit_s, "seconds")
    began, called = time.monotonic(), time.time()
    params = {**settings, "teams": teams(n_ranks)}
    # Nothing is timed: one thread per rank leaves a busy machine's cores alone.
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, threads=1, show=show)
    measured = outcome.results[0]
    hang = None
    # Ranks that a launcher started have only this one process group, and would take it with them.
    if n_ranks > 1 and not launched_elsewhere():
        if show:
            progress.say("Now a run that hangs on purpose; it is stopped at its limit.")
        # As long as the first start took, twice over, and then the seconds in which nothing moves.
        first_limit = hang_limit + 2 * max(measured["began"] - called, 0.0)
        hang = _hang(n_ranks, _wanted_steps(measured), first_limit, began + limit, start, measured)
    return _evaluate(measured, settings, time.monotonic() - began, hang)


def _wanted_steps(measured: dict[str, Any]) -> int:
    return uneven_steps(measured["join"][0]["batches"]).safe_steps


def _hang(
    ranks: int, wanted_steps: int, hang_limit_s: float, deadline: float, start: str, measured: dict[str, Any]
) -> Hang:
    """Let the ranks hang, with a longer limit until all have come as far as they can.

    Args:
        ranks: N. wanted_steps: that every rank can finish. hang_limit_s: the first limit, seconds.
        deadline: of the whole lab, on the monotonic clock. start: as in ``run``.
        measured: what is lost if this fails: the error keeps it.

    Raises:
        LabError: a rank failed, or the ranks did not come that far before the deadline.
    """
    limit = hang_limit_s
    while True:
        try:
            run(HANG_WORKER, ranks, limit_s=limit, start=start, threads=1, show=False)
        except LabError as error:
            steps = tuple([int(error.partial.get(f"rank{rank}", 0)) for rank in range(ranks)])
            if error.cause == "limit" and min(steps) >= wanted_steps:
                return Hang(hung=True, limit_s=limit, steps=steps, places=_places(str(error), ranks))
            if error.cause != "limit" or time.monotonic() + 2 * limit > deadline:
                raise LabError(str(error), cause=error.cause, rank=error.rank, partial=measured) from None
        else:
            return Hang(hung=False, limit_s=limit, steps=(), places=())
        limit *= 2


def _places(text: str, ranks: int) -> tuple[str, ...]:
    """Where each rank was, out of the runner's sentence."""
    lines = text.splitlines()
    return tuple(
        [
            next((line.split(": ", 1)[1] for line in lines if line.startswith(f"  rank {rank}: ")), "unknown")
            for rank in range(ranks)
        ]
    )


# ---- from raw measurements to the result ----


def _evaluate(
    measured: dict[str, Any], settings: dict[str, int], elapsed_s: float, hang: Hang | None
) -> DataOrderRun:
    joins = measured.get("join", [])
    return DataOrderRun(
        **common(measured, settings, elapsed_s),
        epochs=tuple([_epoch_row(row, settings) for row in measured["epochs"]]),
        padding=tuple([_padding_row(row) for row in measured["padding"]]),
        seeds=tuple([_seed_row(row, settings["samples"]) for row in measured.get("seeds", [])]),
        metric=tuple([_metric_row(row, measured["hits"]) for row in measured["metric"]]),
        augmentation=tuple([_augmentation_row(row) for row in measured["augmentation"]]),
        join=tuple([_join_row(row) for row in joins]),
        batches=tuple(joins[0]["batches"]) if joins else (),
        hang=hang,
    )


def _epoch_row(row: dict[str, Any], settings: dict[str, int]) -> EpochRow:
    samples = settings["samples"]
    orders = [tuple(epoch_order(samples, 0, epoch, row["set_epoch"])) for epoch in range(settings["epochs"])]
    return EpochRow(
        **row,
        predicted_orders=len(set(orders)),
        expected_same_position=1 / samples if row["set_epoch"] else 1.0,
    )


def _padding_row(row: dict[str, Any]) -> PaddingRow:
    plan = shard_plan(row["samples"], row["ranks"], row["drop_last"])
    lists = {name: tuple(row[name]) for name in ("more", "never")}
    return PaddingRow(**{**row, **lists}, predicted_more=plan.duplicates, predicted_never=plan.dropped)


def _seed_row(row: dict[str, Any], samples: int) -> SeedRow:
    per_rank, ranks = shard_plan(samples, row["ranks"]).per_rank, row["ranks"]
    return SeedRow(
        **row,
        per_rank=per_rank,
        expected_never=expected_never_read(samples, per_rank, ranks),
        standard_error=never_read_deviation(samples, per_rank, ranks) / math.sqrt(row["epochs"]),
        expected_more=expected_read_repeatedly(samples, per_rank, ranks),
    )


def _metric_row(row: dict[str, Any], hits: list[float]) -> MetricRow:
    single = sum(hits) / len(hits)
    dealt = [
        rank_samples(list(range(len(hits))), row["ranks"], rank, row["way"] == "drop_last")
        for rank in range(row["ranks"])
    ]
    means = [sum([hits[index] for index in mine]) / len(mine) for mine in dealt]
    return MetricRow(
        **row,
        predicted=single if row["way"] in EXACT_METRICS else sum(means) / len(means),
        single=single,
        bound=shard_plan(len(hits), row["ranks"]).metric_bias if row["way"] == "padded" else None,
    )


def _augmentation_row(row: dict[str, Any]) -> AugmentationRow:
    workers, epochs = row["workers"], row["epochs"]
    # Who draws the same numbers: all workers in all epochs; the ranks; nobody.
    copies = {"own_generator": row["ranks"] * workers * epochs, "same_torch_seed": row["ranks"]}
    return AugmentationRow(**row, predicted_distinct=row["draws"] // copies.get(row["way"], 1))


def _join_row(row: dict[str, Any]) -> JoinRow:
    batches, every = row["batches"], row["divide_by_initial_world_size"]
    active = tuple([sum([size > step for size in batches]) for step in range(max(batches))])
    return JoinRow(
        divide_by_initial_world_size=every,
        active=active,
        divisors=tuple(row["divisors"]),
        predicted_divisors=tuple([len(batches) if every else n for n in active]),
        parameter_gap=row["parameter_gap"],
    )
