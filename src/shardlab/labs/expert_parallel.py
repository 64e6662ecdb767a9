"""The expert-parallel lab: a mixture of experts over several ranks, balanced and not.

>>> from shardlab import labs
>>> run = labs.expert_parallel(ranks=4)
>>> run.table()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, non_negative, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import Equality, LabRun, common, equality_table, only, ranks_words, teams
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import SENT_COLUMNS, Sent, reading_words
from shardlab.labs.table import Table
from shardlab.models.expert import (
    check_experts,
    expected_busiest_load,
    expected_dropped_fraction,
    expert_load,
    layer_traffic,
    routed_counts,
)
from shardlab.units import format_bytes

WORKER = "shardlab.labs.expert_parallel_worker:worker"
# The layer's width, shared with the worker.
HIDDEN = 64
FP32_BYTES = 4

ROUTERS = ("even", "uniform", "skewed")
# fp32 keeps 7 digits; gradients are compared relative to the largest.
SAME = 1e-5
# What the model of random routing can still walk through.
MOST_ASSIGNMENTS = 200_000
# Predictions of skewed routing are means over so many draws.
DRAWS = 8
# An expert with a smaller share of the tokens has died.
DEAD_SHARE = 0.01


@dataclass(frozen=True)
class EqualityRow(Equality):
    """The mixture on ``ranks`` ranks against the dense one on one process, nothing dropped.

    Attributes:
        ranks: N. top_k: experts of each token.
        dispatch: ``"dropless"`` (only tokens travel) or ``"padded"`` (slots for all tokens).
        output_gap: largest absolute difference of the output on any rank.
        gradient_gap: largest difference of the gradients of tokens, router and experts, over the largest of each.
    """

    gaps: ClassVar[Mapping[str, str]] = {"output_gap": "output", "gradient_gap": "gradients"}

    ranks: int
    top_k: int
    dispatch: str
    output_gap: float
    gradient_gap: float


@dataclass(frozen=True, kw_only=True)
class TrafficRow(Sent):
    """Bytes that each rank sends for one layer without a capacity limit; ``predicted_bytes`` knows the routing.

    Attributes:
        ranks: N. router: one of :data:`ROUTERS`. part: ``"forward"`` or ``"backward"``.
        balanced_bytes: the model's, which takes the routing to be balanced.
    """

    ranks: int
    router: str
    part: str
    balanced_bytes: float


@dataclass(frozen=True)
class LoadRow:
    """How tokens fell on experts and on ranks.

    Attributes:
        ranks: N. router: one of :data:`ROUTERS`.
        experts: tokens of each expert, from all ranks. here: rows that each rank received for its experts.
        expert_imbalance, rank_imbalance: the busiest over the mean, counted.
        predicted_expert_imbalance, predicted_rank_imbalance: the same from the model, before any routing.
    """

    ranks: int
    router: str
    experts: tuple[int, ...]
    here: tuple[int, ...]
    expert_imbalance: float
    rank_imbalance: float
    predicted_expert_imbalance: float
    predicted_rank_imbalance: float


@dataclass(frozen=True, kw_only=True)
class CapacityRow(Sent):
    """What a capacity limit drops, over all ranks; bytes are of a forward pass.

    Attributes:
        ranks: N. router: one of :data:`ROUTERS`. factor: the capacity factor. capacity: slots of each expert per rank.
        assignments: tokens times top-k.
        expected_fraction: dropped share of the assignments, from the model, before any routing.
        model_dropped: dropped assignments, from the model, given how many wanted each expert.
        dropped: dropped assignments, counted in the layer.
        dropped_tokens: tokens that lost at least one of their experts. touched_tokens: whose output is different.
        kept_gap: largest difference that the limit makes to a token that lost nothing.
    """

    ranks: int
    router: str
    factor: float
    capacity: int
    assignments: int
    expected_fraction: float
    model_dropped: int
    dropped: int
    dropped_tokens: int
    touched_tokens: int
    kept_gap: float


@dataclass(frozen=True)
class TrainingRow:
    """One training step.

    Attributes:
        weight: what the balance loss is multiplied by. step: from 0.
        loss: of the task alone, mean over the ranks.
        sizes: tokens of each expert, from all ranks.
    """

    weight: float
    step: int
    loss: float
    sizes: tuple[int, ...]

    @property
    def imbalance(self) -> float:
        """The busiest expert's tokens over the mean."""
        return expert_load(list(self.sizes)).imbalance

    def rank_imbalance(self, ranks: int) -> float:
        """The busiest rank's tokens over the mean."""
        return expert_load(by_rank(self.sizes, ranks)).imbalance

    @property
    def dead(self) -> int:
        """Experts with less than 1 % of the tokens."""
        return sum(1 for size in self.sizes if size < DEAD_SHARE * sum(self.sizes))


def by_rank(sizes: Sequence[int], ranks: int) -> list[int]:
    """Tokens per expert summed up per rank: each rank holds equally many experts, in order."""
    share = check_experts(len(sizes), ranks)
    return [sum(sizes[start : start + share]) for start in range(0, len(sizes), share)]


@dataclass(frozen=True, kw_only=True)
class ExpertParallelRun(LabRun):
    """A finished expert-parallel lab.

    Attributes:
        equality, traffic, load, capacity, training: the measurements, row by row.
    """

    lab: ClassVar[str] = "expert_parallel"

    equality: tuple[EqualityRow, ...]
    traffic: tuple[TrafficRow, ...]
    load: tuple[LoadRow, ...]
    capacity: tuple[CapacityRow, ...]
    training: tuple[TrainingRow, ...]

    # ---- reading it ----

    def traffic_row(self, ranks: int, router: str, part: str = "forward") -> TrafficRow:
        """The row of :attr:`traffic` with these settings."""
        return only(self.traffic, "traffic", ranks=ranks, router=router, part=part)

    def load_row(self, ranks: int, router: str) -> LoadRow:
        """The row of :attr:`load` with these settings."""
        return only(self.load, "load", ranks=ranks, router=router)

    def capacity_row(self, router: str, factor: float) -> CapacityRow:
        """The row of :attr:`capacity` with these settings."""
        return only(self.capacity, "capacity", router=router, factor=factor)

    def training_rows(self, weight: float) -> list[TrainingRow]:
        """All steps with that weight of the balance loss."""
        return [row for row in self.training if row.weight == weight]

    def _most(self) -> int:
        return max(row.ranks for row in self.equality)

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        failed = []
        for row in self.equality:
            failed += row.complaint(f"{ranks_words(row.ranks)}, top-{row.top_k}, {row.dispatch}", SAME)
        for sent in self.traffic:
            failed += sent.complaint(f"{ranks_words(sent.ranks)}, {sent.router} router, {sent.part}")
            if sent.router == "even" and sent.predicted != sent.balanced_bytes:
                failed.append(
                    f"{ranks_words(sent.ranks)}, even router: {sent.predicted:,.0f} B of tokens leave a rank, the model "
                    f"says {sent.balanced_bytes:,.0f} B"
                )
        for load in self.load:
            if list(load.here) != by_rank(load.experts, load.ranks):
                failed.append(
                    f"{ranks_words(load.ranks)}, {load.router} router: ranks got {list(load.here)} tokens"
                )
        for limit in self.capacity:
            what = f"{limit.router} router, capacity factor {limit.factor:g}"
            failed += limit.complaint(what)
            if limit.dropped != limit.model_dropped or limit.touched_tokens != limit.dropped_tokens:
                failed.append(
                    f"{what}: {limit.dropped} assignments of {limit.dropped_tokens} tokens were dropped, the model says "
                    f"{limit.model_dropped}, and {limit.touched_tokens} outputs changed"
                )
            if not limit.kept_gap <= SAME:
                failed.append(f"{what}: tokens that were not dropped change by {limit.kept_gap:.1e}")
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"equality"``, ``"load"``, ``"traffic"``, ``"capacity"``, ``"training"``."""
        return {
            "equality": self._equality_table,
            "load": self._load_table,
            "traffic": self._traffic_table,
            "capacity": self._capacity_table,
            "training": self._training_table,
        }

    def _equality_table(self) -> Table:
        return equality_table(
            "A mixture of experts over ranks against the dense one on one process: largest difference",
            ("Ranks", "Top-k", "Dispatch"),
            ("Output", "Gradients (over the largest)"),
            [((str(row.ranks), str(row.top_k), row.dispatch), row) for row in self.equality],
        )

    def _load_table(self) -> Table:
        rows = [
            (
                str(row.ranks),
                row.router,
                " ".join(map(str, row.here)),
                f"{row.predicted_rank_imbalance:.2f}",
                f"{row.rank_imbalance:.2f}",
                f"{row.predicted_expert_imbalance:.2f}",
                f"{row.expert_imbalance:.2f}",
            )
            for row in self.load
        ]
        skew = self.settings["skew"]
        return Table(
            caption="Tokens that ranks receive for their experts, and the busiest over the mean",
            columns=(
                "Ranks",
                "Router",
                "Tokens on each rank",
                "Ranks, predicted",
                "Ranks, counted",
                "Experts, predicted",
                "Experts, counted",
            ),
            rows=tuple(rows),
            notes=(
                "Even: each expert gets equally many. Uniform: at random, all alike; predicted is the expected busiest "
                f"of as many bins. Skewed: expert i with weight 1/(i + 1){'' if skew == 1 else f'^{skew:g}'}; predicted is the mean "
                f"of {DRAWS} draws.",
            ),
            label_columns=2,
        )

    def _traffic_table(self) -> Table:
        rows = [
            (str(row.ranks), row.router, row.part, f"{row.balanced_bytes:,.0f}", *row.cells, self._span(row))
            for row in self.traffic
        ]
        return Table(
            caption="Bytes that one rank sends for one layer, no token dropped: dispatch and combine",
            columns=("Ranks", "Router", "Pass", "Model, balanced, B", *SENT_COLUMNS, "Least to most, B"),
            rows=tuple(rows),
            notes=(
                "Model: 2 k T h e (N-1)/N. Predicted: the rows that leave each rank by its routing, out and back. Forward, "
                "an all-to-all more tells how many tokens come.",
                reading_words(self.reading),
            ),
            label_columns=3,
        )

    @staticmethod
    def _span(row: TrafficRow) -> str:
        sent = row.kernel_bytes or row.predicted_bytes
        return f"{min(sent):,.0f} to {max(sent):,.0f}"

    def _capacity_table(self) -> Table:
        rows = [
            (
                row.router,
                f"{row.factor:g}",
                str(row.capacity),
                f"{row.expected_fraction:.1%}",
                f"{row.dropped / row.assignments:.1%}",
                f"{row.model_dropped:,}",
                f"{row.dropped:,}",
                f"{row.touched_tokens:,}",
                f"{1 - (row.assignments - row.dropped) / (row.capacity * self.settings['experts'] * row.ranks):.1%}",
                *row.cells[1:],
            )
            for row in self.capacity
        ]
        return Table(
            caption=f"A capacity limit on {ranks_words(self._most())}: what it drops, pads and sends (forward)",
            columns=(
                "Router",
                "Capacity factor",
                "Slots",
                "Dropped, expected",
                "Dropped, counted",
                "Dropped given the routing, model",
                "Dropped, counted (assignments)",
                "Tokens whose output changes",
                "Slots left empty",
                *SENT_COLUMNS[1:],
            ),
            rows=tuple(rows),
            notes=(
                "Slots: of one expert for one rank's tokens. Expected: from the model before any routing; for the uniform "
                "router it lets a token draw an expert twice, so it lies a little high for k above 1. The count is one draw.",
            ),
            label_columns=2,
        )

    def _training_table(self) -> Table:
        steps = self.settings["steps"]
        shown = sorted({0, steps // 4, steps // 2, steps - 1})
        rows = [
            (
                f"{weight:g}",
                str(row.step),
                f"{row.loss:.3f}",
                f"{row.imbalance:.2f}",
                f"{row.rank_imbalance(self._most()):.2f}",
                str(row.dead),
            )
            for weight in sorted({row.weight for row in self.training})
            for row in self.training_rows(weight)
            if row.step in shown
        ]
        return Table(
            caption="Training from a router that leans to the first experts, without and with the balance loss",
            columns=(
                "Balance loss times",
                "Step",
                "Task loss",
                "Busiest expert over mean",
                "Busiest rank over mean",
                "Experts below 1 % of the tokens",
            ),
            rows=tuple(rows),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        words = [self._capacity_words(), self._training_words()]
        if self._most() == 1:
            return ["With one rank there is nothing to send: run the lab with more ranks.", *words]
        return [self._traffic_words(), self._load_words(), *words]

    def _traffic_words(self) -> str:
        n = self._most()
        even, skewed = self.traffic_row(n, "even"), self.traffic_row(n, "skewed")
        words = (
            f"Balanced on {ranks_words(n)}, each rank sends {format_bytes(even.predicted)} forward, as the model says: of "
            f"{self.settings['top_k']} copies of each token, (N-1)/N leave the rank, and their results return. "
        )
        if even.sent is not None:
            words += (
                f"The kernel counts {format_bytes(even.sent - even.predicted, 3)} more: headers of {even.messages} messages, and "
                "the all-to-all that tells how many tokens come. "
            )
        busiest = max(skewed.predicted_bytes)
        return words + (
            f"With the skewed router the mean is {format_bytes(skewed.predicted)}, but the busiest rank sends "
            f"{format_bytes(busiest)}, {busiest / even.predicted:.2f} times the balanced amount: it has everyone's results "
            "to send back, and the others wait for it."
        )

    def _load_words(self) -> str:
        row, uniform = self.load_row(self._most(), "skewed"), self.load_row(self._most(), "uniform")
        return (
            f"The skewed router gives the busiest rank {max(row.here):,} tokens and the mean is "
            f"{sum(row.here) / row.ranks:,.0f}: {row.rank_imbalance:.2f} times, predicted {row.predicted_rank_imbalance:.2f}. The "
            f"layer waits for that rank. Chance alone makes a perfect router uneven too: its busiest expert has "
            f"{uniform.expert_imbalance:.2f} times the mean, predicted {uniform.predicted_expert_imbalance:.2f}."
        )

    def _capacity_words(self) -> str:
        factor = min(self.settings["factors"])
        uniform, skewed = (self.capacity_row(router, factor) for router in ("uniform", "skewed"))
        most = self.capacity_row("skewed", max(self.settings["factors"]))
        return (
            f"With a capacity factor of {factor:g} the uniform router loses {uniform.dropped / uniform.assignments:.1%} of its "
            f"assignments (expected {uniform.expected_fraction:.1%}) and the skewed one {skewed.dropped / skewed.assignments:.1%} "
            f"(expected {skewed.expected_fraction:.1%}). A factor of {most.factor:g} still drops "
            f"{most.dropped / most.assignments:.1%} and sends {most.predicted / (skewed.predicted or 1):.2f} times as much, "
            "since slots travel full or not. Exactly the tokens that lost an expert have another output."
        )

    def _training_words(self) -> str:
        weight = self.settings["balance_weight"]
        plain, balanced = self.training_rows(0.0)[-1], self.training_rows(weight)[-1]
        first = self.training_rows(0.0)[0]
        words = (
            f"The training starts with a busiest expert of {first.imbalance:.2f} times the mean. After {self.settings['steps']} "
            f"steps it is {plain.imbalance:.2f} without the balance loss, with {plain.dead} of {len(plain.sizes)} experts dead, "
            f"and {balanced.imbalance:.2f} with it (times {weight:g}), {balanced.dead} dead. The task loss is {plain.loss:.3f} and "
            f"{balanced.loss:.3f}"
        )
        if balanced.loss > plain.loss:
            return f"{words}: balance is not free, and a task as easy as this one needs few experts."
        return f"{words}."

    def plot(self, dark: bool = False) -> Any:
        """The busiest expert over the mean, step by step, without and with the balance loss; a figure."""
        from shardlab.labs.expert_parallel_plot import training_figure

        return training_figure(
            {weight: self.training_rows(weight) for weight in (0.0, self.settings["balance_weight"])}, dark
        )


@lab(
    title="Expert parallelism: routed tokens by all-to-all, hot experts, capacity, the balance loss",
    seconds=15,
    needs="torch",
    options={
        "ranks": "Largest number of ranks; 1, 2, 4, ... up to it are measured.",
        "tokens": "Tokens of each rank.",
        "experts": "Experts in all; each number of ranks must divide them.",
        "top_k": "Experts of each token.",
        "skew": "Skewed router: expert i is chosen with weight (i + 1) ** -skew.",
        "factors": "Capacity factors.",
        "steps": "Training steps, without and with the balance loss.",
        "balance_weight": "What the balance loss is multiplied by.",
        **RUN_OPTIONS,
    },
    worker_file="expert_parallel_worker.py",
    shown=("mixture", "through_experts"),
    result=ExpertParallelRun,
)
def expert_parallel(
    ranks: int = 4,
    *,
    tokens: int = 512,
    experts: int = 8,
    top_k: int = 2,
    skew: float = 1.0,
    factors: Sequence[float] = (1.0, 1.25, 2.0),
    steps: int = 40,
    balance_weight: float = 0.1,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> ExpertParallelRun:
    """Spread a layer's experts over 1, 2, 4, ... ``ranks`` processes; check, count, overload, drop and train.

    (a) Output and gradients against a dense layer on one process. (b) Tokens per rank and expert for an even, a
    uniform and a skewed router. (c) Bytes on the wire per rank, by the kernel, beside the model. (d) Capacity
    factors: dropped tokens. (e) The balance loss.

    Args:
        ranks: largest number of ranks, 1 to 64.
        tokens: of each rank; a multiple of the experts.
        experts: E, at least 2; each number of ranks must divide them, and they must divide the tokens.
        top_k: experts of each token, up to E.
        skew: of the skewed router, 0 or above.
        factors: one or more different capacity factors.
        steps: training steps.
        balance_weight: of the balance loss.
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
    n_experts = count("experts", experts, least=2, most=HIDDEN)
    for n in teams(n_ranks):
        check_experts(n_experts, n)
    chosen = count("top_k", top_k, most=n_experts)
    settings = {
        "ranks": n_ranks,
        "tokens": _tokens(tokens, n_experts, MOST_ASSIGNMENTS // (n_ranks * chosen)),
        "experts": n_experts,
        "top_k": chosen,
        "skew": non_negative("skew", skew),
        "factors": _factors(factors),
        "steps": count("steps", steps),
        "balance_weight": positive("balance_weight", balance_weight),
    }
    limit = positive("limit_s", limit_s, "seconds")
    params = {**settings, "teams": teams(n_ranks)}
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _tokens(tokens: int, experts: int, most: int) -> int:
    n_tokens = count("tokens", tokens, most=most)
    if n_tokens % experts:
        raise ValueError(
            f"tokens must be divisible by experts = {experts}, for an even router, not {n_tokens}"
        )
    return n_tokens


def _factors(factors: Sequence[float]) -> list[float]:
    if isinstance(factors, (str, bytes)) or not isinstance(factors, Sequence) or not factors:
        raise ValueError(f"factors must be a list of capacity factors, not {factors!r}")
    sizes = [positive("each of factors", factor) for factor in factors]
    if len(set(sizes)) != len(sizes):
        raise ValueError(f"factors must be all different, not {factors!r}")
    return sizes


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> ExpertParallelRun:
    return ExpertParallelRun(
        **common(measured, settings, elapsed_s),
        equality=tuple([EqualityRow(**row) for row in measured["equality"]]),
        traffic=tuple([_traffic_row(row, settings) for row in measured["traffic"]]),
        load=tuple([_load_row(row, settings) for row in measured["traffic"] if row["part"] == "forward"]),
        capacity=tuple([_capacity_row(row, settings) for row in measured["capacity"]]),
        training=tuple(
            [TrainingRow(**{**row, "sizes": tuple(row["sizes"])}) for row in measured["training"]]
        ),
    )


def _traffic_row(row: dict[str, Any], settings: dict[str, Any]) -> TrafficRow:
    n, forward = row["ranks"], row["part"] == "forward"
    model = layer_traffic(
        settings["tokens"], HIDDEN, settings["experts"], settings["top_k"], n, element_bytes=FP32_BYTES
    )
    # [from, to]: rows that go to each rank's experts. They come back as results.
    rows = [by_rank(sizes, n) for sizes in row["sizes"]]
    moved = [sum(rows[rank]) + sum(part[rank] for part in rows) - 2 * rows[rank][rank] for rank in range(n)]
    return TrafficRow(
        ranks=n,
        router=row["router"],
        part=row["part"],
        # Dispatch and combine; forward, the exchange of sizes too.
        messages=(3 if forward else 2) * (n - 1),
        predicted_bytes=tuple([float(rows_moved * HIDDEN * FP32_BYTES) for rows_moved in moved]),
        kernel_bytes=None if row["kernel"] is None else tuple(row["kernel"]),
        balanced_bytes=model.dispatch_bytes + model.combine_bytes if forward else model.backward_bytes,
    )


def _load_row(row: dict[str, Any], settings: dict[str, Any]) -> LoadRow:
    n, router = row["ranks"], row["router"]
    experts = [sum(column) for column in zip(*row["sizes"], strict=True)]
    predicted_experts, predicted_ranks = _predicted_imbalance(n, router, settings)
    return LoadRow(
        ranks=n,
        router=router,
        experts=tuple(experts),
        here=tuple(row["here"]),
        expert_imbalance=expert_load(experts).imbalance,
        rank_imbalance=expert_load(row["here"]).imbalance,
        predicted_expert_imbalance=predicted_experts,
        predicted_rank_imbalance=predicted_ranks,
    )


def _predicted_imbalance(ranks: int, router: str, settings: dict[str, Any]) -> tuple[float, float]:
    """The busiest over the mean that the model expects: of experts, of ranks."""
    if router == "even":
        return 1.0, 1.0
    if router == "uniform":
        assignments = ranks * settings["tokens"] * settings["top_k"]
        expected = [
            expected_busiest_load(assignments, n) * n / assignments for n in (settings["experts"], ranks)
        ]
        return expected[0], expected[1]
    draws = [_drawn(ranks * settings["tokens"], settings, seed) for seed in range(DRAWS)]
    return (
        sum(expert_load(sizes).imbalance for sizes in draws) / DRAWS,
        sum(expert_load(by_rank(sizes, ranks)).imbalance for sizes in draws) / DRAWS,
    )


def _drawn(tokens: int, settings: dict[str, Any], seed: int) -> list[int]:
    return routed_counts(tokens, settings["experts"], settings["top_k"], settings["skew"], seed)


def _capacity_row(row: dict[str, Any], settings: dict[str, Any]) -> CapacityRow:
    n, tokens, capacity = row["ranks"], settings["tokens"], row["capacity"]
    if row["router"] == "uniform":
        expected = expected_dropped_fraction(tokens * settings["top_k"], settings["experts"], capacity)
    else:
        draws = [_drawn(tokens, settings, seed) for seed in range(DRAWS)]
        expected = sum(expert_load(sizes, capacity).dropped_fraction for sizes in draws) / DRAWS
    model = layer_traffic(
        tokens, HIDDEN, settings["experts"], settings["top_k"], n, row["factor"], element_bytes=FP32_BYTES
    )
    return CapacityRow(
        ranks=n,
        router=row["router"],
        factor=row["factor"],
        capacity=capacity,
        assignments=n * tokens * settings["top_k"],
        expected_fraction=expected,
        model_dropped=sum(expert_load(sizes, capacity).dropped for sizes in row["sizes"]),
        dropped=row["dropped"],
        dropped_tokens=row["dropped_tokens"],
        touched_tokens=row["touched_tokens"],
        kept_gap=row["kept_gap"],
        messages=3 * (n - 1),
        predicted_bytes=(model.dispatch_bytes + model.combine_bytes,) * n,
        kernel_bytes=None if row["kernel"] is None else tuple(row["kernel"]),
    )
