"""The context-parallel lab: one sequence over several ranks, by ring attention and by Ulysses.

>>> from shardlab import labs
>>> run = labs.context_parallel(ranks=4)
>>> run.table()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import (
    Equality,
    LabRun,
    common,
    cores_words,
    equality_table,
    only,
    ranks_words,
    teams,
)
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import SENT_COLUMNS, Sent, reading_words
from shardlab.labs.table import Table
from shardlab.models.context import key_value_bytes, ring_traffic, ring_work, ulysses_traffic
from shardlab.units import format_bytes, format_time

WORKER = "shardlab.labs.context_parallel_worker:worker"
# The attention's sizes, shared with the worker.
BATCH = 1
HEAD_DIM = 32
FP32_BYTES = 4

SPLITS = ("contiguous", "zigzag")
# fp32 keeps 7 digits; outputs and gradients are a few units large.
SAME = 2e-5


@dataclass(frozen=True)
class EqualityRow(Equality):
    """Split attention against the whole sequence on one process.

    Attributes:
        ranks: N.
        method: ``"ring"`` or ``"ulysses"``. split: how the tokens are dealt.
        output_gap: largest absolute difference of the output on any rank; gradient_gap: of the gradients of q, k, v.
        silent_gap: of the output when ranks see their own tokens only.
    """

    gaps: ClassVar[Mapping[str, str]] = {"output_gap": "output", "gradient_gap": "gradients"}
    controls: ClassVar[tuple[str, ...]] = ("silent_gap",)

    ranks: int
    method: str
    split: str
    output_gap: float
    gradient_gap: float
    silent_gap: float


@dataclass(frozen=True)
class WorkRow:
    """What one rank computes in a forward pass of ring attention, in (query, key) pairs, one number per ring step.

    Attributes:
        ranks: N. split: how the tokens are dealt. rank: which of the N.
        predicted: pairs that the causal mask leaves, from the model.
        counted: the same, counted while computing.
        computed: pairs in the tiles that were computed: those on the diagonal are computed whole.
        seconds: median time of the whole pass on this rank.
    """

    ranks: int
    split: str
    rank: int
    predicted: tuple[int, ...]
    counted: tuple[int, ...]
    computed: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TrafficRow(Sent):
    """Bytes that one rank sends for attention.

    Attributes:
        ranks: N. method: ``"ring"`` or ``"ulysses"``. part: ``"one hop"``, ``"forward"`` or ``"backward"``.
    """

    ranks: int
    method: str
    part: str


@dataclass(frozen=True)
class Balance:
    """A causal ring over N ranks as a whole.

    Attributes:
        ranks: N. split: how the tokens are dealt.
        slowdown: pairs on the critical path over pairs per rank if all had the same, counted.
        predicted_slowdown: the same from the model.
        seconds: the slowest rank's time of a forward pass.
        least_s: the least it can take here, from one rank's time: by the critical path and by the cores.
        core_bound: the cores set that bound, not the critical path.
    """

    ranks: int
    split: str
    slowdown: float
    predicted_slowdown: float
    seconds: float
    least_s: float
    core_bound: bool


@dataclass(frozen=True, kw_only=True)
class ContextParallelRun(LabRun):
    """A finished context-parallel lab.

    Attributes:
        equality, work, traffic: the measurements, row by row.
    """

    lab: ClassVar[str] = "context_parallel"

    equality: tuple[EqualityRow, ...]
    work: tuple[WorkRow, ...]
    traffic: tuple[TrafficRow, ...]

    # ---- reading it ----

    def traffic_row(self, ranks: int, method: str, part: str) -> TrafficRow:
        """The row of :attr:`traffic` with these settings."""
        return only(self.traffic, "traffic", ranks=ranks, method=method, part=part)

    def work_rows(self, ranks: int, split: str) -> list[WorkRow]:
        """The rows of :attr:`work` of all ranks of one ring."""
        return [row for row in self.work if (row.ranks, row.split) == (ranks, split)]

    def balance(self, ranks: int, split: str) -> Balance:
        """One ring's rows of :attr:`work` put together."""
        rows = self.work_rows(ranks, split)
        one = only(self.work, "work", ranks=1, split=split)
        counted = [row.counted for row in rows]
        everything = sum(map(sum, counted))
        critical = sum(map(max, zip(*counted, strict=True)))
        # Ranks beyond the cores wait for each other's cores: what an idle rank leaves free, another takes.
        cores = ranks if self.backend == "nccl" else min(ranks, max(1, self.stamp.cores // self.threads))
        shares = critical / everything, 1 / cores
        return Balance(
            ranks=ranks,
            split=split,
            slowdown=critical / everything * ranks,
            predicted_slowdown=ring_work(self.settings["sequence"], ranks, split).slowdown,
            seconds=max(row.seconds for row in rows),
            least_s=one.seconds * max(shares),
            core_bound=shares[1] >= shares[0],
        )

    def _most(self) -> int:
        return max(row.ranks for row in self.equality)

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        failed = []
        for row in self.equality:
            failed += row.complaint(f"{ranks_words(row.ranks)}, {row.method}, {row.split}", SAME)
        failed += [
            f"rank {work.rank} of {work.ranks}, {work.split}: computed {list(work.counted)} pairs, predicted "
            f"{list(work.predicted)}"
            for work in self.work
            if work.counted != work.predicted
        ]
        for sent in self.traffic:
            failed += sent.complaint(f"{ranks_words(sent.ranks)}, {sent.method}, {sent.part}")
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"equality"``, ``"work"``, ``"balance"``, ``"traffic"``."""
        return {
            "equality": self._equality_table,
            "work": self._work_table,
            "balance": self._balance_table,
            "traffic": self._traffic_table,
        }

    def _equality_table(self) -> Table:
        return equality_table(
            "Split causal attention against one process on the whole sequence: largest difference",
            ("Ranks", "Method", "Split of tokens"),
            ("Output", "Gradients of q, k, v", "Output if each rank sees its own tokens only"),
            [((str(row.ranks), row.method, row.split), row) for row in self.equality],
        )

    def _work_table(self) -> Table:
        flops = 4 * BATCH * self.settings["heads"] * HEAD_DIM
        rows = [
            (
                split,
                str(row.rank),
                f"{sum(row.predicted):,}",
                f"{sum(row.counted):,}",
                f"{sum(row.computed):,}",
                f"{flops * sum(row.computed) / 1e6:,.1f}",
                str(sum(1 for pairs in row.counted if not pairs)),
            )
            for split in SPLITS
            for row in self.work_rows(self._most(), split)
        ]
        return Table(
            caption=f"Causal ring attention on {ranks_words(self._most())}: work of each rank in a forward pass",
            columns=(
                "Split of tokens",
                "Rank",
                "Predicted pairs (query, key)",
                "Counted pairs",
                "Pairs in computed tiles",
                "MFLOP of those tiles",
                "Ring steps without work",
            ),
            rows=tuple(rows),
            notes=(
                "Pairs: those that the causal mask leaves. A tile that the mask hides whole is skipped; one on the "
                "diagonal is computed whole. A pair costs 4 FLOP per head and unit of its width.",
            ),
            label_columns=2,
        )

    def _balance_table(self) -> Table:
        balances = [self.balance(n, split) for n in teams(self.settings["ranks"]) for split in SPLITS]
        rows = [
            (
                str(row.ranks),
                row.split,
                f"{row.predicted_slowdown:.3f}",
                f"{row.slowdown:.3f}",
                f"{row.least_s * 1e3:.1f}",
                f"{row.seconds * 1e3:.1f}",
            )
            for row in balances
        ]
        return Table(
            caption="Causal ring attention: what the ring waits for, over a fair share of the work; and a forward pass's time",
            columns=(
                "Ranks",
                "Split of tokens",
                "Slowdown predicted",
                "Slowdown counted",
                "At least, ms",
                "Measured, ms",
            ),
            rows=tuple(rows),
            notes=(
                "Slowdown: the busiest rank's pairs, summed over the ring steps, over all pairs / N. At least: one "
                "rank's time, times the larger of the critical path's share of the pairs and 1 / cores in use.",
            ),
            label_columns=2,
        )

    def _traffic_table(self) -> Table:
        rows = [(str(row.ranks), row.method, row.part, *row.cells) for row in self.traffic]
        return Table(
            caption="Bytes that one rank sends for the attention of one layer",
            columns=("Ranks", "Method", "Part", *SENT_COLUMNS),
            rows=tuple(rows),
            notes=(
                "Predicted, ring: a hop is K and V of one rank's tokens; N-1 hops forward; backward as many, and N "
                "hops of their gradients. Ulysses: (N-1)/N of q, k, v and the output, each way.",
                reading_words(self.reading),
            ),
            label_columns=3,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if self._most() == 1:
            return ["With one rank nothing is split: run the lab with more ranks."]
        return [self._balance_words(), self._traffic_words(), self._ulysses_words(), self._time_words()]

    def _balance_words(self) -> str:
        n = self._most()
        plain, zigzag = (self.balance(n, split) for split in SPLITS)
        most, least = (
            choose(sum(row.counted) for row in self.work_rows(n, SPLITS[0])) for choose in (max, min)
        )
        zigzagged = self.work_rows(n, SPLITS[1])[0]
        return (
            f"Dealt out in order over {ranks_words(n)}, the last rank computes {most:,} pairs and the first {least:,}: "
            f"{most / least:.1f} times as many. Every step waits for its busiest rank, so the ring takes "
            f"{plain.slowdown:.2f} times as long as fair shares would. Dealt out in a zigzag, each rank has one early and "
            f"one late piece: the same work in every step, a slowdown of {zigzag.slowdown:.2f}. The count meets the model "
            f"pair by pair. What is computed is {sum(zigzagged.computed) / sum(zigzagged.counted):.2f} times as much in the "
            "zigzag: tiles on the diagonal are half hidden."
        )

    def _traffic_words(self) -> str:
        n = self._most()
        hop, forward, backward = (
            self.traffic_row(n, "ring", part) for part in ("one hop", "forward", "backward")
        )
        words = (
            f"On {ranks_words(n)} each hop moves {format_bytes(hop.predicted)} of K and V; {n - 1} hops make a forward pass "
            f"of {format_bytes(forward.predicted)}, and the backward pass sends {format_bytes(backward.predicted)}, "
            f"{backward.predicted / forward.predicted:.2f} times as much, since the gradients go all the way home"
        )
        if hop.sent is None:
            return words + "."
        return (
            f"{words}. The kernel counts {hop.sent - hop.predicted:.0f} B more per hop: gloo's header. How the tokens are "
            "dealt out changes who computes, not what travels."
        )

    def _ulysses_words(self) -> str:
        n, heads = self._most(), self.settings["heads"]
        limit = f"Whole heads are dealt to ranks, so its ranks must divide the {heads} heads"
        if heads % n:
            return f"{limit}: Ulysses can't run on {ranks_words(n)} here, and the ring can."
        ring, swapped = (
            sum(self.traffic_row(n, method, part).predicted for part in ("forward", "backward"))
            for method in ("ring", "ulysses")
        )
        return (
            f"Ulysses sends {format_bytes(swapped)} where the ring sends {format_bytes(ring)}: {ring / swapped:.1f} times less "
            f"on {ranks_words(n)}, and the more ranks, the less. {limit}: more than {ranks_words(heads)} are impossible."
        )

    def _time_words(self) -> str:
        n = min(self._most(), max(2, self.stamp.cores))
        two = [self.balance(n if n in teams(self.settings["ranks"]) else 2, split) for split in SPLITS]
        words = (
            f"A forward pass on {ranks_words(two[0].ranks)} takes {format_time(two[0].seconds, 3)} in order and "
            f"{format_time(two[1].seconds, 3)} in a zigzag, where one rank's time and the pairs say about "
            f"{format_time(two[0].least_s, 3)} and {format_time(two[1].least_s, 3)}. "
        )
        if self.balance(self._most(), SPLITS[0]).core_bound:
            words += (
                f"{ranks_words(self._most())} on {cores_words(self.stamp.cores)} hide the imbalance: a rank that idles leaves "
                "its core to another. "
            )
        return words + (
            "What comes on top: starting each tile from Python, copies through loopback, whatever else the machine does. "
            "Nothing here says how fast a real link is."
        )

    def plot(self, dark: bool = False) -> Any:
        """Each rank's work in each ring step, in order and in a zigzag, with what waits in grey; a figure."""
        from shardlab.labs.context_parallel_plot import work_figure

        return work_figure([self.work_rows(self._most(), split) for split in SPLITS], dark)


@lab(
    title="Context parallelism by hand: ring attention, causal balance, Ulysses, bytes of each",
    seconds=15,
    needs="torch",
    options={
        "ranks": "Largest number of ranks; 1, 2, 4, ... up to it are measured.",
        "sequence": "Tokens of the sequence.",
        "heads": "Attention heads; Ulysses runs on the numbers of ranks that divide them.",
        "repeats": "Timed forward passes for each ring.",
        **RUN_OPTIONS,
    },
    worker_file="context_parallel_worker.py",
    shown=("ring_forward", "add_keys"),
    result=ContextParallelRun,
)
def context_parallel(
    ranks: int = 4,
    *,
    sequence: int = 1536,
    heads: int = 8,
    repeats: int = 5,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> ContextParallelRun:
    """Split one sequence's causal attention over 1, 2, 4, ... ``ranks`` processes; check, count and predict.

    (a) Ring attention with tokens dealt in order and in a zigzag, and Ulysses: output and gradients against one
    process. (b) Work of each rank in (query, key) pairs, counted while computing. (c) What the ring waits for, and
    its time. (d) Bytes on the wire per rank for a hop, a forward and a backward pass, by the kernel, beside the
    model.

    Args:
        ranks: largest number of ranks, 1 to 64.
        sequence: tokens; twice each number of ranks must divide it (a zigzag has two pieces per rank).
        heads: attention heads of width 32.
        repeats: timed forward passes for each ring.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL, and the kernel then has no bytes to count; that path was not run for this book.
    """
    n_ranks = count("ranks", ranks, least=1, most=MOST_RANKS)
    settings = {
        "ranks": n_ranks,
        "sequence": _sequence(sequence, n_ranks),
        "heads": count("heads", heads),
        "repeats": count("repeats", repeats),
    }
    limit = positive("limit_s", limit_s, "seconds")
    params = {**settings, "teams": teams(n_ranks), "splits": SPLITS}
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _sequence(sequence: int, ranks: int) -> int:
    tokens = count("sequence", sequence)
    for n in teams(ranks):
        if tokens % (2 * n):
            raise ValueError(
                f"sequence must be divisible by twice each number of ranks ({[2 * n for n in teams(ranks)]}), not {tokens}"
            )
    return tokens


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> ContextParallelRun:
    return ContextParallelRun(
        **common(measured, settings, elapsed_s),
        equality=tuple([EqualityRow(**row) for row in measured["equality"]]),
        work=tuple([_work_row(row, settings["sequence"]) for row in measured["work"]]),
        traffic=tuple([_traffic_row(row, settings) for row in measured["traffic"]]),
    )


def _work_row(row: dict[str, Any], sequence: int) -> WorkRow:
    model = ring_work(sequence, row["ranks"], row["split"])
    return WorkRow(
        ranks=row["ranks"],
        split=row["split"],
        rank=row["rank"],
        predicted=tuple([step[row["rank"]] for step in model.pairs]),
        counted=tuple(row["unmasked"]),
        computed=tuple(row["computed"]),
        seconds=row["seconds"],
    )


def _traffic_row(row: dict[str, Any], settings: dict[str, Any]) -> TrafficRow:
    n, method, part = row["ranks"], row["method"], row["part"]
    sequence, heads = settings["sequence"], settings["heads"]
    model = ring_traffic if method == "ring" else ulysses_traffic
    traffic = model(sequence, BATCH, heads, HEAD_DIM, n, element_bytes=FP32_BYTES)
    one_way = {
        ("ring", "one hop"): (1, key_value_bytes(sequence, BATCH, heads, HEAD_DIM, FP32_BYTES) / n),
        ("ring", "forward"): (n - 1, traffic.forward_bytes),
        ("ring", "backward"): (traffic.messages - (n - 1), traffic.backward_bytes),
        # An all-to-all is a message to each other rank.
        ("ulysses", "forward"): (traffic.messages // 2 * (n - 1), traffic.forward_bytes),
        ("ulysses", "backward"): (traffic.messages // 2 * (n - 1), traffic.backward_bytes),
    }
    messages, predicted = one_way[method, part]
    return TrafficRow(
        ranks=n,
        method=method,
        part=part,
        messages=messages,
        predicted_bytes=(predicted,) * n,
        kernel_bytes=None if row["kernel"] is None else tuple(row["kernel"]),
    )
