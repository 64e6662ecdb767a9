"""The tensor-parallel lab: one transformer layer cut over ranks, by hand and by DTensor, predicted beside measured.

>>> from shardlab import labs
>>> run = labs.tensor_parallel(ranks=4)
>>> run.table()
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import SENT_COLUMNS, Sent, reading_words
from shardlab.labs.table import Table
from shardlab.models.collectives import (
    ring_allgather_cost,
    ring_allreduce_sent_bytes,
    ring_reduce_scatter_cost,
)
from shardlab.models.memory_activations import LayerActivations, layer_activations
from shardlab.models.tensor import check_split, layer_collectives
from shardlab.units import format_bytes, significant

WORKER = "shardlab.labs.tensor_parallel_worker:worker"
FP32_BYTES = 4

# Largest difference over largest entry: fp32 keeps 7 digits, and differently ordered sums lose one or two.
SAME = 1e-5
# A wrong cut is off by a part of the result, not by rounding.
WRONG = 1e-2
# gloo cuts what it passes on in each of a ring's steps into two messages, so that adding and sending overlap.
MESSAGES_PER_STEP = 2
ACTIVATION_TOLERANCE = 0.01
# What the formula leaves out: each of the two norms keeps a mean and a deviation per token, fp32.
NORM_BYTES_PER_TOKEN = 16
BY_HAND, DTENSOR, UNPREPARED = "by hand", "DTensor", "DTensor, inputs not prepared"


@dataclass(frozen=True)
class Calls:
    """Collective calls of one rank in one forward and backward pass of the layer.

    Attributes:
        all_reduce, all_gather, reduce_scatter: calls of each kind; ``other`` of any other.
    """

    all_reduce: int = 0
    all_gather: int = 0
    reduce_scatter: int = 0
    other: int = 0

    def sent_bytes(self, n_bytes: float, ranks: int, scatter_reduces_all: bool = False) -> float:
        """What one rank sends for these calls on buffers of ``n_bytes``, by the textbook.

        With ``scatter_reduces_all`` a reduce-scatter sends as much as an all-reduce: gloo's does.
        """
        whole = ring_allreduce_sent_bytes(n_bytes, ranks)
        scatter = whole if scatter_reduces_all else ring_reduce_scatter_cost(n_bytes, ranks).sent_bytes
        gather = ring_allgather_cost(n_bytes, ranks).sent_bytes
        return self.all_reduce * whole + self.all_gather * gather + self.reduce_scatter * scatter

    def messages(self, ranks: int) -> int:
        """Messages that one rank sends for these calls on gloo: each call is one or two rounds of a ring."""
        rounds = 2 * self.all_reduce + self.all_gather + 2 * self.reduce_scatter
        return rounds * (ranks - 1) * MESSAGES_PER_STEP


@dataclass(frozen=True, kw_only=True)
class LayerRow(Sent):
    """The layer cut in one way, forward and backward; bytes are predicted as this backend sends.

    Attributes:
        ranks: N.
        how: ``"by hand"``, ``"DTensor"``, or ``"DTensor, inputs not prepared"``.
        layout: ``"tensor"`` or ``"sequence"`` parallel.
        output_gap, input_gap, weight_gap: largest difference of the output, of the input's gradient and of the
            parameters' gradients from the uncut layer's, on any rank, over the largest entry.
        calls, predicted_calls: collectives, counted and by the model.
        textbook_bytes: sent per rank if a reduce-scatter sent what the textbook says.
        saved_bytes: kept from forward to backward on one rank, dropout on, parameters left out.
        predicted_saved_bytes: by :func:`shardlab.models.memory_activations.layer_activations`.
    """

    ranks: int
    how: str
    layout: str
    output_gap: float
    input_gap: float
    weight_gap: float
    calls: Calls
    predicted_calls: Calls
    textbook_bytes: float
    saved_bytes: int
    predicted_saved_bytes: float

    @property
    def saved_gap(self) -> float:
        """Kept bytes against the prediction, as a fraction."""
        return self.saved_bytes / self.predicted_saved_bytes - 1


@dataclass(frozen=True, kw_only=True)
class OrderRow(Sent):
    """The MLP alone, its two matrices cut in one order, forward and backward.

    Attributes:
        ranks: N.
        order: in words.
        output_gap, input_gap: as in :class:`LayerRow`.
        right_output, right_input: whether they should be equal to the uncut MLP's.
    """

    ranks: int
    order: str
    output_gap: float
    input_gap: float
    right_output: bool
    right_input: bool


@dataclass(frozen=True)
class DropoutRow:
    """Dropout in the layer cut by hand, under one choice of seeds.

    Attributes:
        ranks: N.
        seeds: in words; ``whole`` and ``split`` are ``"shared"`` or ``"own"``, outside and inside the split part.
        apart: largest difference between the ranks' copies of the output, over its largest entry.
        alike: share of the attention scores' entries that a rank drops or keeps as rank 0 does.
        predicted_alike: 1 with the same seed; ``p^2 + (1-p)^2`` for independent draws.
        entries: how many entries ``alike`` is counted over.
    """

    ranks: int
    seeds: str
    whole: str
    split: str
    apart: float
    alike: float
    predicted_alike: float
    entries: int

    @property
    def alike_tolerance(self) -> float:
        """Six standard deviations of a share of independent draws."""
        share = self.predicted_alike
        return 6 * math.sqrt(share * (1 - share) / self.entries)


@dataclass(frozen=True, kw_only=True)
class LossRow(Sent):
    """Cross-entropy over logits cut by the vocabulary.

    Attributes:
        ranks: N.
        tokens, vocabulary: sizes of the logits.
        loss_gap, gradient_gap: largest difference from the uncut loss and logit gradient, over the largest entry.
        gather_bytes: what one rank would send to gather the logits instead.
    """

    ranks: int
    tokens: int
    vocabulary: int
    loss_gap: float
    gradient_gap: float
    gather_bytes: float


@dataclass(frozen=True, kw_only=True)
class TensorParallelRun(LabRun):
    """A finished tensor-parallel lab.

    Attributes:
        n_bytes: of the activations between two layers, ``s b h`` in fp32: what each collective works on.
        dropout_rate: p.
        layers, orders, dropout, loss: the measurements, row by row; the last three are empty for one rank.
    """

    lab: ClassVar[str] = "tensor_parallel"

    n_bytes: int
    dropout_rate: float
    layers: tuple[LayerRow, ...]
    orders: tuple[OrderRow, ...]
    dropout: tuple[DropoutRow, ...]
    loss: tuple[LossRow, ...]

    # ---- reading it ----

    def layer(self, ranks: int, how: str = BY_HAND, layout: str = "tensor") -> LayerRow:
        """The row of :attr:`layers` with these settings."""
        return only(self.layers, "layers", ranks=ranks, how=how, layout=layout)

    def order(self, ranks: int, order: str) -> OrderRow:
        """The row of :attr:`orders` with these settings."""
        return only(self.orders, "orders", ranks=ranks, order=order)

    @property
    def norm_bytes(self) -> int:
        """What the norms keep of all tokens and the formula leaves out."""
        return NORM_BYTES_PER_TOKEN * int(self.settings["sequence"]) * int(self.settings["micro_batch"])

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        return [
            *[words for row in self.layers for words in _layer_failures(row, self.norm_bytes)],
            *[words for row in self.orders for words in _order_failures(row)],
            *[words for row in self.dropout for words in _dropout_failures(row)],
            *[words for row in self.loss for words in _loss_failures(row)],
        ]

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"equality"`` and ``"activations"``; with several ranks also ``"wire"``, ``"orders"``, ``"dropout"``, ``"loss"``."""
        several = {
            "wire": self._wire_table,
            "orders": self._orders_table,
            "dropout": self._dropout_table,
            "loss": self._loss_table,
        }
        return {
            "equality": self._equality_table,
            "activations": self._activations_table,
            **(several if self.orders else {}),
        }

    def _equality_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                row.layout,
                row.how,
                f"{row.output_gap:.1e}",
                f"{row.input_gap:.1e}",
                f"{row.weight_gap:.1e}",
            )
            for row in self.layers
        ]
        return Table(
            caption="One transformer layer cut over ranks against the uncut layer: largest difference, over the largest entry",
            columns=("Ranks", "Parallel", "How", "Output", "Input's gradient", "Weights' gradients"),
            rows=tuple(rows),
            label_columns=3,
        )

    def _activations_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                row.layout,
                row.how,
                f"{row.saved_bytes:,}",
                f"{row.predicted_saved_bytes:,.0f}",
                f"{row.saved_gap:+.2%}",
                f"{row.saved_bytes / self.layer(1).saved_bytes:.3f}",
            )
            for row in self.layers
        ]
        return Table(
            caption="Bytes that one rank keeps from the forward to the backward pass of one layer, dropout on, fp32",
            columns=(
                "Ranks",
                "Parallel",
                "How",
                "Kept, B",
                "Predicted, B",
                "Against predicted",
                "Of one rank's",
            ),
            rows=tuple(rows),
            notes=(
                "Kept: the storages of the tensors that autograd saves, each once, parameters left out. Predicted: "
                "the formula of Korthikanti et al., with 4 bytes per element; it leaves out each norm's mean and "
                "deviation, two numbers per token.",
            ),
            label_columns=3,
        )

    def _wire_table(self) -> Table:
        rows = []
        for row in self.layers:
            if row.ranks > 1:
                counted, model = row.calls, row.predicted_calls
                pairs = zip(_kinds(counted), _kinds(model), strict=True)
                calls = [f"{ours} ({theirs})" for ours, theirs in pairs]
                textbook = f"{row.textbook_bytes:,.0f}"
                rows.append((str(row.ranks), row.layout, row.how, *calls, textbook, *row.cells))
        return Table(
            caption=(
                "Collectives of one layer, forward and backward, counted (by the model), and bytes that one rank "
                f"sends; each works on s·b·h = {self.n_bytes:,} B"
            ),
            columns=(
                "Ranks",
                "Parallel",
                "How",
                "All-reduce",
                "All-gather",
                "Reduce-scatter",
                "Textbook, B",
                *SENT_COLUMNS,
            ),
            rows=tuple(rows),
            notes=(
                f"Counted with torch's CommDebugMode, which sees calls, not bytes. Predicted: as {self.backend} "
                f"sends. {reading_words(self.reading)}",
            ),
            label_columns=3,
        )

    def _orders_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                row.order,
                f"{row.output_gap:.1e}",
                f"{row.input_gap:.1e}",
                "yes" if row.right_output and row.right_input else "no",
                *row.cells,
            )
            for row in self.orders
        ]
        return Table(
            caption="The MLP, its two matrices cut in right and wrong orders, forward and backward",
            columns=(
                "Ranks",
                "Order",
                "Output off by",
                "Input's gradient off by",
                "Right",
                *SENT_COLUMNS,
            ),
            rows=tuple(rows),
            label_columns=2,
        )

    def _dropout_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                row.seeds,
                f"{row.apart:.1e}",
                f"{row.alike:.4f}",
                f"{row.predicted_alike:.4f}",
            )
            for row in self.dropout
        ]
        return Table(
            caption=f"Dropout at {self.dropout_rate:g} in the layer cut by hand: which ranks share a seed where",
            columns=(
                "Ranks",
                "Seeds, outside and inside the split part",
                "Ranks' outputs apart",
                "Scores dropped alike",
                "Predicted",
            ),
            rows=tuple(rows),
            label_columns=2,
        )

    def _loss_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                f"{row.loss_gap:.1e}",
                f"{row.gradient_gap:.1e}",
                *row.cells,
                f"{row.gather_bytes:,.0f}",
            )
            for row in self.loss
        ]
        first = self.loss[0]
        return Table(
            caption=f"Cross-entropy over split logits, {first.tokens:,} tokens and about {first.vocabulary} words: one maximum and two sums",
            columns=(
                "Ranks",
                "Loss off by",
                "Gradient off by",
                *SENT_COLUMNS,
                "Gathering the logits, B",
            ),
            rows=tuple(rows),
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if not self.orders:
            return ["With one rank nothing is cut: run the lab with more ranks."]
        most = max(row.ranks for row in self.layers)
        return [
            self._equality_words(),
            self._calls_words(most),
            self._sequence_words(most),
            self._activation_words(most),
            self._order_words(most),
            self._dropout_words(most),
            self._loss_words(most),
            "No time is shown: on loopback the cores are the wire, and what a call costs there says nothing of a "
            "link. Counts and bytes are the same on any machine that uses the same backend.",
        ]

    def _equality_words(self) -> str:
        gap = max(max(row.output_gap, row.input_gap, row.weight_gap) for row in self.layers)
        return (
            f"Every cut gives the uncut layer's output and gradients; the largest difference is {gap:.0e} of the "
            "largest entry, from sums in another order."
        )

    def _calls_words(self, ranks: int) -> str:
        row, apart = self.layer(ranks), self.layer(ranks, UNPREPARED)
        return (
            f"Tensor parallel, a layer all-reduces {row.calls.all_reduce} times: at the end of attention and of the "
            f"MLP, and in the backward pass at the start of each. On {ranks_words(ranks)} each rank sends "
            f"{format_bytes(_sent(row))}. DTensor does the same once q, k and v share one prepared input; "
            f"without that each of the three sums its own input gradient: {apart.calls.all_reduce} all-reduces and "
            f"{format_bytes(_sent(apart))}."
        )

    def _sequence_words(self, ranks: int) -> str:
        plain, row, other = (
            self.layer(ranks),
            self.layer(ranks, layout="sequence"),
            self.layer(ranks, DTENSOR, "sequence"),
        )
        words = (
            f"Sequence parallel, each all-reduce becomes an all-gather and a reduce-scatter, and the textbook volume "
            f"stays {format_bytes(other.textbook_bytes)}, as with {plain.calls.all_reduce} all-reduces. By hand it "
            f"makes {row.calls.all_gather - other.calls.all_gather} all-gathers more, in the backward pass, because "
            f"it keeps a rank's own tokens only: {format_bytes(row.textbook_bytes)}."
        )
        if self.backend != "gloo":
            return words
        headers = (
            ""
            if row.sent is None
            else f", and {(row.sent - row.predicted) / row.messages:.0f} B of header for each message"
        )
        return (
            f"{words} gloo sends {format_bytes(_sent(other))} and {format_bytes(_sent(row))}: its reduce-scatter is "
            f"an all-reduce whose result is cut afterwards{headers}. The name of a call doesn't say what it sends."
        )

    def _activation_words(self, ranks: int) -> str:
        one, tensor, sequence = self.layer(1), self.layer(ranks), self.layer(ranks, layout="sequence")
        kept = self.layer(ranks, DTENSOR, "sequence")
        return (
            f"One rank keeps {format_bytes(one.saved_bytes)} for the backward pass. On {ranks_words(ranks)} tensor "
            f"parallelism keeps {format_bytes(tensor.saved_bytes)}, more than 1/{ranks}, because norms, residuals "
            f"and layer inputs stay whole; sequence parallelism keeps {format_bytes(sequence.saved_bytes)}, "
            f"{sequence.saved_bytes / one.saved_bytes:.3f} of it. DTensor's plan keeps the gathered inputs too and "
            f"so {format_bytes(kept.saved_bytes)}: {format_bytes(kept.saved_bytes - sequence.saved_bytes, 3)} more, "
            "for two all-gathers less."
        )

    def _order_words(self, ranks: int) -> str:
        right, forgot, reverse, wrong = (self.order(ranks, order) for order in ORDERS)
        return (
            f"Cut by rows first, the MLP is right too but sends {_sent(reverse) / _sent(right):.1f} times as "
            "much: it must sum the wide tensor and gather the output. GELU before that sum is wrong by "
            f"{wrong.output_gap:.0%} of the largest output. Without f the output is right, which hides that the "
            f"input's gradient is off by {forgot.input_gap:.0%}."
        )

    def _dropout_words(self, ranks: int) -> str:
        good, shared, own = (only(self.dropout, "dropout", ranks=ranks, seeds=seeds) for seeds in SEEDS)
        return (
            "Outside the split part all ranks hold the same tokens and must drop the same entries; with seeds of "
            f"their own their copies of the output come apart by {own.apart:.0%}. Inside, each rank holds other "
            f"heads and must draw its own: then {good.alike:.1%} of the entries agree by chance, while one shared "
            f"seed drops {shared.alike:.0%} alike. Nothing fails when that happens: only the mask tells."
        )

    def _loss_words(self, ranks: int) -> str:
        row = only(self.loss, "loss", ranks=ranks)
        return (
            f"The loss over split logits sends {format_bytes(_sent(row))} per rank, three numbers per token; "
            f"gathering the logits would send {format_bytes(row.gather_bytes)}, "
            f"{significant(row.gather_bytes / row.predicted, 3)} times as much, and more with every word of "
            "the vocabulary."
        )

    def plot(self, dark: bool = False) -> Any:
        """Kept activations against ranks, tensor and sequence parallel, measured and predicted; a figure."""
        from shardlab.labs.tensor_parallel_plot import activations_figure

        return activations_figure(self.layers, dark)


def _kinds(calls: Calls) -> tuple[int, int, int]:
    return calls.all_reduce, calls.all_gather, calls.reduce_scatter


def _sent(row: Sent) -> float:
    """The kernel's count, or the prediction where there is none."""
    return row.predicted if row.sent is None else row.sent


def _all_same(*gaps: float) -> bool:
    # Written so that a NaN fails.
    return all(gap <= SAME for gap in gaps)


def _layer_failures(row: LayerRow, norm_bytes: int) -> list[str]:
    name = f"{ranks_words(row.ranks)}, layer {row.how}, {row.layout} parallel"
    failed = []
    if not _all_same(row.output_gap, row.input_gap, row.weight_gap):
        failed.append(
            f"{name}: not equal to the uncut layer (output {row.output_gap:.1e}, input's gradient "
            f"{row.input_gap:.1e}, weights' gradients {row.weight_gap:.1e}, allowed {SAME:.0e})"
        )
    if row.ranks > 1 and row.calls != row.predicted_calls:
        failed.append(f"{name}: {row.calls} collectives counted, {row.predicted_calls} predicted")
    allowed = ACTIVATION_TOLERANCE + norm_bytes / row.predicted_saved_bytes
    if not abs(row.saved_gap) <= allowed:
        failed.append(f"{name}: keeps {row.saved_gap:+.2%} against the prediction (allowed {allowed:.2%})")
    return [*failed, *row.complaint(name)]


def _order_failures(row: OrderRow) -> list[str]:
    parts = (
        ("output", row.output_gap, row.right_output),
        ("input's gradient", row.input_gap, row.right_input),
    )
    failed = []
    for what, gap, right in parts:
        name = f"{ranks_words(row.ranks)}, MLP {row.order}: the {what}"
        if right and not gap <= SAME:
            failed.append(f"{name} is not equal to the uncut MLP's ({gap:.1e}, allowed {SAME:.0e})")
        if not right and not gap >= WRONG:
            failed.append(f"{name} should be visibly wrong and is off by {gap:.1e} only")
    return [*failed, *row.complaint(f"{ranks_words(row.ranks)}, MLP {row.order}")]


def _dropout_failures(row: DropoutRow) -> list[str]:
    name = f"{ranks_words(row.ranks)}, dropout with seeds {row.seeds}"
    failed = []
    if row.whole == "shared" and not row.apart <= SAME:
        failed.append(f"{name}: the ranks' outputs are apart by {row.apart:.1e} (allowed {SAME:.0e})")
    if row.whole == "own" and not row.apart >= WRONG:
        failed.append(f"{name}: the ranks' outputs should come apart and do by {row.apart:.1e} only")
    if not abs(row.alike - row.predicted_alike) <= row.alike_tolerance:
        failed.append(
            f"{name}: {row.alike:.4f} of the scores are dropped alike, not {row.predicted_alike:.4f} "
            f"(allowed ± {row.alike_tolerance:.4f})"
        )
    return failed


def _loss_failures(row: LossRow) -> list[str]:
    name = f"{ranks_words(row.ranks)}, split cross-entropy"
    failed = []
    if not _all_same(row.loss_gap, row.gradient_gap):
        failed.append(
            f"{name}: not equal to the uncut one (loss {row.loss_gap:.1e}, gradient {row.gradient_gap:.1e}, "
            f"allowed {SAME:.0e})"
        )
    return [*failed, *row.complaint(name)]


@lab(
    title="Tensor and sequence parallelism: one layer cut by hand and by DTensor, its collectives, bytes and activations",
    seconds=20,
    needs="torch",
    options={
        "ranks": "Largest number of ranks; 1, 2, 4, ... up to it are measured.",
        "hidden": "Width of the layer.",
        "heads": "Attention heads; every number of ranks must divide them.",
        "sequence": "Tokens of one sequence; every number of ranks must divide them.",
        "micro_batch": "Sequences of one micro-batch.",
        **RUN_OPTIONS,
    },
    worker_file="tensor_parallel_worker.py",
    shown=("CopyIn", "AddUp", "SplitLayer"),
    result=TensorParallelRun,
)
def tensor_parallel(
    ranks: int = 4,
    *,
    hidden: int = 256,
    heads: int = 8,
    sequence: int = 256,
    micro_batch: int = 4,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> TensorParallelRun:
    """Cut one transformer layer over 1, 2, 4, ... ``ranks`` processes, by hand and by DTensor; check, count, predict.

    (a) Output and gradients against the uncut layer, tensor parallel and sequence parallel. (b) Bytes kept for the
    backward pass beside the formula. (c) Collectives per layer, counted, and bytes on the wire, by the kernel.
    (d) The MLP's matrices cut in the wrong order. (e) Dropout's seeds. (f) Cross-entropy over split logits.

    Args:
        ranks: largest number of ranks, 1 to 64.
        hidden: h; the MLP is 4 h wide.
        heads: a; must divide ``hidden``, and every number of ranks must divide it.
        sequence: s, tokens; every number of ranks must divide it.
        micro_batch: b, sequences.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL, and the kernel then has no bytes to count; that path was not run for this book.
    """
    sizes = _checked_sizes(ranks, hidden, heads, sequence, micro_batch)
    limit = positive("limit_s", limit_s, "seconds")
    params = {**sizes, "teams": teams(sizes["ranks"])}
    outcome = run(WORKER, sizes["ranks"], params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], sizes, outcome.elapsed_s)


def _checked_sizes(ranks: int, hidden: int, heads: int, sequence: int, micro_batch: int) -> dict[str, int]:
    sizes = {
        "ranks": count("ranks", ranks, most=MOST_RANKS),
        "hidden": count("hidden", hidden),
        "heads": count("heads", heads),
        "sequence": count("sequence", sequence),
        "micro_batch": count("micro_batch", micro_batch),
    }
    if sizes["hidden"] % sizes["heads"]:
        raise ValueError(f"hidden must be divisible by heads = {heads}, not {hidden}")
    for n in teams(sizes["ranks"]):
        check_split(n, sizes["heads"], ffn=4 * sizes["hidden"])
        for name in ("hidden", "sequence"):
            if sizes[name] % n:
                raise ValueError(
                    f"{name} must be divisible by each number of ranks ({teams(sizes['ranks'])}), not {sizes[name]}"
                )
    return sizes


# ---- from raw measurements to the result ----

# order: all-reduces of s·b·h and of the wide s·b·4h, all-gathers of s·b·h; output and input's gradient right or not
ORDERS: dict[str, tuple[Calls, Calls, bool, bool]] = {
    "columns, then rows": (Calls(all_reduce=2), Calls(), True, True),
    "columns, then rows, without f": (Calls(all_reduce=1), Calls(), True, False),
    "rows, then columns": (Calls(all_gather=2), Calls(all_reduce=2), True, True),
    "rows, then columns, GELU before the sum": (Calls(all_gather=2), Calls(all_reduce=2), False, False),
}
SEEDS = ("shared outside, own inside", "shared everywhere", "own everywhere")


def _evaluate(measured: dict[str, Any], settings: dict[str, int], elapsed_s: float) -> TensorParallelRun:
    n_bytes = FP32_BYTES * settings["sequence"] * settings["micro_batch"] * settings["hidden"]
    backend, rate = measured["backend"], measured["dropout_rate"]
    return TensorParallelRun(
        **common(measured, settings, elapsed_s),
        n_bytes=n_bytes,
        dropout_rate=rate,
        layers=tuple([_layer_row(row, settings, n_bytes, backend) for row in measured["layers"]]),
        orders=tuple([_order_row(row, n_bytes) for row in measured.get("orders", [])]),
        dropout=tuple([_dropout_row(row, rate) for row in measured.get("dropout", [])]),
        loss=tuple([_loss_row(row) for row in measured.get("loss", [])]),
    )


def _sent_fields(raw: dict[str, Any], predicted_bytes: float, messages: int) -> dict[str, Any]:
    """What a row says of its bytes: every rank of a ring sends as much as the others."""
    return {
        "ranks": raw["ranks"],
        "messages": messages,
        "predicted_bytes": (predicted_bytes,) * raw["ranks"],
        "kernel_bytes": None if raw["kernel"] is None else tuple(raw["kernel"]),
    }


def _layer_row(raw: dict[str, Any], settings: dict[str, int], n_bytes: int, backend: str) -> LayerRow:
    calls = _predicted_calls(raw["how"], raw["layout"])
    predicted = calls.sent_bytes(n_bytes, raw["ranks"], scatter_reduces_all=backend == "gloo")
    return LayerRow(
        **_sent_fields(raw, predicted, calls.messages(raw["ranks"])),
        how=raw["how"],
        layout=raw["layout"],
        output_gap=raw["output_gap"],
        input_gap=raw["input_gap"],
        weight_gap=raw["weight_gap"],
        calls=Calls(**raw["calls"]),
        predicted_calls=calls,
        textbook_bytes=calls.sent_bytes(n_bytes, raw["ranks"]),
        saved_bytes=raw["saved"],
        predicted_saved_bytes=_predicted_saved_bytes(raw["ranks"], raw["how"], raw["layout"], settings),
    )


def _predicted_calls(how: str, layout: str) -> Calls:
    """The model's collectives of a layer, and what a way of writing it adds or spares."""
    model = layer_collectives(sequence_parallel=layout == "sequence")
    # q, k and v have one input: unprepared, DTensor sums the gradient of each on its own.
    apart = 2 if how == UNPREPARED else 0
    # DTensor keeps the gathered inputs instead of gathering them again.
    again = model.regather if how == BY_HAND else 0
    return Calls(
        all_reduce=model.all_reduce + apart,
        all_gather=model.all_gather + again,
        reduce_scatter=model.reduce_scatter,
    )


def _predicted_saved_bytes(ranks: int, how: str, layout: str, settings: dict[str, int]) -> float:
    sequence = _activations(ranks, True, settings)
    tensor = _activations(ranks, False, settings)
    if layout == "tensor":
        return tensor.kept_bytes
    if how == BY_HAND:
        return sequence.kept_bytes
    # The inputs of attention and MLP stay gathered: whole, as with tensor parallelism alone.
    gathered = tensor.attention_input - sequence.attention_input + tensor.mlp - sequence.mlp
    return sequence.kept_bytes + gathered


def _activations(ranks: int, sequence_parallel: bool, settings: dict[str, int]) -> LayerActivations:
    return layer_activations(
        settings["sequence"],
        settings["micro_batch"],
        settings["hidden"],
        settings["heads"],
        tensor_parallel=ranks,
        sequence_parallel=sequence_parallel,
        element_bytes=FP32_BYTES,
    )


def _order_row(raw: dict[str, Any], n_bytes: int) -> OrderRow:
    narrow, wide, right_output, right_input = ORDERS[raw["order"]]
    ranks = raw["ranks"]
    predicted = narrow.sent_bytes(n_bytes, ranks) + wide.sent_bytes(4 * n_bytes, ranks)
    return OrderRow(
        **_sent_fields(raw, predicted, narrow.messages(ranks) + wide.messages(ranks)),
        order=raw["order"],
        output_gap=raw["output_gap"],
        input_gap=raw["input_gap"],
        right_output=right_output,
        right_input=right_input,
    )


def _dropout_row(raw: dict[str, Any], rate: float) -> DropoutRow:
    alike = 1.0 if raw["split"] == "shared" else rate**2 + (1 - rate) ** 2
    return DropoutRow(**raw, predicted_alike=alike)


def _loss_row(raw: dict[str, Any]) -> LossRow:
    tokens, vocabulary, ranks = raw["tokens"], raw["vocabulary"], raw["ranks"]
    per_word, calls = FP32_BYTES * tokens, Calls(all_reduce=3)
    return LossRow(
        **_sent_fields(raw, calls.sent_bytes(per_word, ranks), calls.messages(ranks)),
        tokens=tokens,
        vocabulary=vocabulary,
        loss_gap=raw["loss_gap"],
        gradient_gap=raw["gradient_gap"],
        gather_bytes=ring_allgather_cost(per_word * vocabulary, ranks).sent_bytes,
    )
