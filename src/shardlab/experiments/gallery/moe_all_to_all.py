"""A mixture of experts over ranks: who gets how many tokens, what is dropped, sent and waited for."""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, decades, slider, toggle
from shardlab.hardware import accelerator
from shardlab.models.expert import ExpertLoad, expert_capacity, expert_load, layer_traffic

TOKENS = 4096
"""Tokens of a micro-batch on each rank."""

HIDDEN = 4096
ELEMENT_BYTES = 2.0
# A gated MLP has three matrices.
MATRICES = 3
DEVICE = "H100-80GB"
# Five preferred numbers per decade.
R5 = (1, 1.6, 2.5, 4, 6.3)

_CAPACITIES = (
    ("none", "no limit"),
    ("1", "1.0"),
    ("1.25", "1.25"),
    ("1.5", "1.5"),
    ("2", "2.0"),
)


def expert_rate() -> float:
    """FLOP/s of the experts' products on one device."""
    return accelerator(DEVICE).matmul_flops * accelerator(DEVICE).sustained


def expected_shares(experts: int, top_k: int, skew: float) -> list[float]:
    """Share of the tokens that choose each expert, when a token draws ``top_k`` different ones.

    Expert i has weight ``(i + 1) ** -skew``, as in :func:`shardlab.models.expert.routed_counts`, without its chance.
    Exact for k up to 2. For more, draws without return are a race of clocks with these rates; the k-th of many alarms
    comes at nearly the same time u for every token, so expert i is among the first k with probability
    ``1 - exp(-weight u)``, where these add up to k. The tests compare with drawn routings.
    """
    if top_k >= experts:
        return [1.0] * experts
    weights = [(expert + 1.0) ** -skew for expert in range(experts)]
    if top_k <= 2:
        return _first_two(weights, top_k)
    # Newton from 0: the sum is concave in u, so every step stays below the root.
    u = 0.0
    for _ in range(100):
        chosen = slope = 0.0
        for weight in weights:
            left = math.exp(-weight * u)
            chosen += 1 - left
            slope += weight * left
        change = (top_k - chosen) / slope
        u += change
        if change < 1e-12 * u:
            break
    return [1 - math.exp(-weight * u) for weight in weights]


def _first_two(weights: list[float], top_k: int) -> list[float]:
    total = 0.0
    for weight in weights:
        total += weight
    first = [weight / total for weight in weights]
    if top_k == 1:
        return first
    # Second after j came first: p_i / (1 - p_j), for all j other than i.
    odds = 0.0
    for chance in first:
        odds += chance / (1 - chance)
    return [chance * (1 + odds - chance / (1 - chance)) for chance in first]


def picture(
    ranks: int,
    experts_per_rank: int,
    top_k: int,
    skew: float,
    capacity: str,
    spread: bool,
    expert_ffn: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Tokens of ranks and experts, and a forward pass of one routed layer in time."""
    state = _Layer(ranks, experts_per_rank, top_k, skew, capacity, spread, expert_ffn, bandwidth)
    return chart.chart(
        panels=[_ranks_panel(state), _experts_panel(state), _time_panel(state)],
        words=_sentences(state),
        readouts=_readouts(state),
        bounds={"top_k": {"most": min(8, state.experts)}},
    )


class _Layer:
    """What the reader has set, and the models' answers to it."""

    def __init__(
        self,
        ranks: int,
        experts_per_rank: int,
        top_k: int,
        skew: float,
        capacity: str,
        spread: bool,
        expert_ffn: int,
        bandwidth: float,
    ) -> None:
        self.ranks = ranks
        self.experts = ranks * experts_per_rank
        self.top_k = min(top_k, self.experts)
        self.factor = None if capacity == "none" else float(capacity)
        tokens = TOKENS * ranks
        shares = expected_shares(self.experts, self.top_k, skew)
        self.counts = [int(share * tokens + 0.5) for share in shares]
        slots = None
        if self.factor is not None:
            slots = expert_capacity(tokens, self.experts, self.top_k, self.factor)
        self.load: ExpertLoad = expert_load(self.counts, slots)
        self.kept = [0] * ranks
        self.dropped = [0] * ranks
        for expert, size in enumerate(self.counts):
            rank = expert % ranks if spread else expert // experts_per_rank
            fits = size if slots is None else min(size, slots)
            self.kept[rank] += fits
            self.dropped[rank] += size - fits
        # Padded buffers are sent and computed full or not.
        self.slots = [0] * ranks if slots is None else [slots * experts_per_rank] * ranks
        self.rows = self.kept if slots is None else self.slots
        self.fair = self.load.assignments / ranks
        self.rank_imbalance = max([kept + lost for kept, lost in zip(self.kept, self.dropped)]) / self.fair
        traffic = layer_traffic(TOKENS, HIDDEN, self.experts, self.top_k, ranks, self.factor, ELEMENT_BYTES)
        # Where the load is uneven, this is the mean of the ranks.
        self.sent_bytes = traffic.dispatch_bytes + traffic.combine_bytes
        self.pass_s = self._pass_s(float(max(self.rows)), expert_ffn, bandwidth)
        self.even_s = self._pass_s(float(TOKENS * self.top_k), expert_ffn, bandwidth)

    def _pass_s(self, rows: float, expert_ffn: int, bandwidth: float) -> tuple[float, float, float]:
        """(dispatch, experts, combine) of a rank that works on ``rows``, of which (N-1)/N come from other ranks."""
        away = rows * (self.ranks - 1) / self.ranks
        # No rank is done before it has sent its own copies, or received what its experts are due.
        moved = max(away, TOKENS * self.top_k * (self.ranks - 1) / self.ranks) * HIDDEN * ELEMENT_BYTES
        compute = 2.0 * MATRICES * rows * HIDDEN * expert_ffn / expert_rate()
        return moved / bandwidth, compute, moved / bandwidth


def _total(parts: tuple[float, float, float]) -> float:
    return parts[0] + parts[1] + parts[2]


def _thousands(value: float) -> str:
    return f"{words.amount(value / 1000)}k"


def _ranks_panel(state: _Layer) -> dict[str, Any]:
    empty = [max(slots - kept, 0) for slots, kept in zip(state.slots, state.kept)]
    ends = [kept + lost + spare for kept, lost, spare in zip(state.kept, state.dropped, empty)]
    most = 1.25 * max(max(ends), 1.2 * state.fair)
    return chart.bars(
        title="Copies of tokens for each rank",
        categories=[str(rank) for rank in range(state.ranks)],
        value=chart.axis("copies (thousands)", (0.0, most), chart.even_ticks(most, 1000.0)),
        stacks=[
            chart.stack("computed", "compute", [float(size) for size in state.kept]),
            chart.stack("empty slots", "idle", [float(size) for size in empty], texture="hatch"),
            chart.stack("dropped", "communication", [float(size) for size in state.dropped], texture="light"),
        ],
        limits=[chart.limit(state.fair, "fair share", align="end")],
        texts=[_thousands(kept + lost) for kept, lost in zip(state.kept, state.dropped)],
        alt=f"Bars: copies of tokens that choose the experts of each of {state.ranks} ranks, the most "
        f"{words.ratio(state.rank_imbalance)} a fair share of {_thousands(state.fair)}; "
        f"{words.percent(state.load.dropped_fraction)} are dropped.",
    )


def _experts_panel(state: _Layer) -> dict[str, Any]:
    mean = state.load.mean
    points = [(expert + 1, size / mean) for expert, size in enumerate(state.counts)]
    most = max(2.5, 1.15 * state.load.imbalance)
    limits = [chart.limit(1.0, "fair share", "below", align="end")]
    if state.factor is not None:
        high = state.factor > 1
        limits = [chart.limit(state.factor, "capacity", "above", align="end")] + (limits if high else [])
    marks = [chart.mark(1, state.load.imbalance, words.ratio(state.load.imbalance), "compute")]
    ticks: list[tuple[float, str]] = [(1, "1"), (state.experts, str(state.experts))]
    if state.experts >= 8:
        ticks.insert(1, (state.experts // 2, str(state.experts // 2)))
    return chart.lines(
        title="Copies for each expert (fair share = 1)",
        x=chart.axis("expert", (1, state.experts), ticks),
        y=chart.axis("", (0.0, most), chart.even_ticks(most)),
        curves=[chart.series("", "compute", points, "strong")],
        limits=limits,
        marks=marks,
        alt=f"Curve over {state.experts} experts: the most popular gets {words.ratio(state.load.imbalance)} a fair share, "
        f"the least {words.ratio(min(state.counts) / mean)}.",
    )


def _time_panel(state: _Layer) -> dict[str, Any]:
    spans = []
    for lane, parts in ((0, state.even_s), (2, state.pass_s)):
        dispatch, compute, combine = parts
        back = dispatch + compute
        spans += [
            chart.span(lane, 0.0, dispatch, "communication"),
            chart.span(lane, back, back + combine, "communication", words.seconds(dispatch + combine)),
            chart.span(lane + 1, dispatch, back, "compute", words.seconds(compute)),
        ]
    even, here = _total(state.even_s), _total(state.pass_s)
    return chart.timeline(
        title="Forward pass of one routed layer: dispatch, experts, combine",
        lanes=["even: all-to-all", "even: experts", "here: all-to-all", "here: experts"],
        time=chart.time_axis("time, nothing overlapped", 1.2 * max(even, here), about=5),
        spans=spans,
        alt=f"Time line: dispatch, experts and combine take {words.seconds(even)} with even routing and "
        f"{words.seconds(here)} on the busiest rank here.",
    )


def _readouts(state: _Layer) -> list[dict[str, Any]]:
    away, total = state.pass_s[0] + state.pass_s[2], _total(state.pass_s)
    return [
        chart.readout(
            "busiest rank", words.ratio(state.rank_imbalance), "a fair share, before drops", "compute-text"
        ),
        chart.readout(
            "busiest expert", words.ratio(state.load.imbalance), f"of {state.experts} experts", "compute-text"
        ),
        chart.readout("dropped", words.percent(state.load.dropped_fraction), "of the copies", "idle-text"),
        chart.readout(
            "sent by a rank",
            words.n_bytes(state.sent_bytes),
            "dispatch and combine, mean",
            "communication-text",
        ),
        chart.readout("forward pass", words.seconds(total), f"{words.percent(away / total)} all-to-all"),
    ]


def _sentences(state: _Layer) -> list[str]:
    return [_load_words(state), _limit_words(state), _network_words(state)]


def _load_words(state: _Layer) -> str:
    ratio = _total(state.pass_s) / _total(state.even_s)
    if state.rank_imbalance < 1.005:
        return (
            f"Every rank gets the same number of copies, {_thousands(state.fair)}; the layer, with {state.experts} experts in "
            f"all, takes {words.ratio(ratio)} the time of even routing without a limit."
        )
    # With a limit it is sent no more than its slots hold.
    what = "is sent" if state.factor is None else "is chosen for"
    return (
        f"The busiest rank {what} {words.ratio(state.rank_imbalance)} a fair share of the copies; the layer takes "
        f"{words.ratio(ratio)} the time of even routing{'' if state.factor is None else ' without a limit'}."
    )


def _limit_words(state: _Layer) -> str:
    if state.factor is None:
        if state.rank_imbalance < 1.005:
            return "No token is dropped, and no rank waits for another."
        return "No token is dropped: all ranks wait for the busiest one."
    kept = f"{words.percent(state.load.empty_slots_fraction)} of the slots travel and are computed empty"
    if state.load.dropped == 0:
        return f"The capacity limit drops nothing here; {kept}."
    return (
        f"The capacity limit drops {words.percent(state.load.dropped_fraction)} of the copies, which skip their expert, and "
        f"{kept}. The time no longer depends on the routing."
    )


def _network_words(state: _Layer) -> str:
    away, compute = state.pass_s[0] + state.pass_s[2], state.pass_s[1]
    what = "the network decides; wider experts or a faster link help" if away > compute else "compute decides"
    return (
        f"The two all-to-alls take {words.seconds(away)}, the experts {words.seconds(compute)}: {what}. "
        "More tokens or a larger k lengthen both alike."
    )


EXPERIMENT = Experiment(
    name="moe-all-to-all",
    title="Experts and the all-to-all",
    question="Tokens travel to the ranks of their experts and back. What do popular experts cost, and what does a limit buy?",
    controls=(
        slider("ranks", "Ranks N", (2, 4, 8, 16), 8, whole=True),
        slider("experts_per_rank", "Experts on each rank", (1, 2, 4, 8, 16), 1, whole=True),
        slider("top_k", "Experts of a token, k", tuple(range(1, 9)), 2, whole=True),
        slider("skew", "Skew of the router", tuple([n / 10 for n in range(16)]), 0.0),
        choice("capacity", "Capacity factor", _CAPACITIES, "none"),
        toggle("spread", "Deal popular experts to different ranks", False),
        slider("expert_ffn", "Width of an expert", (1024, 1408, 2048, 4096, 8192, 14336), 14336, whole=True),
        slider("bandwidth", "Bandwidth of a rank", decades(1e9, 1e12, R5), 400e9, "bytes/s"),
    ),
    presets=(
        Preset(
            name="mixtral",
            label="Mixtral, even",
            values={"ranks": 8, "top_k": 2, "expert_ffn": 14336, "bandwidth": 400e9},
            source="8 experts, 2 a token, width 14,336, hidden 4,096: Mixtral 8x7B (arXiv 2401.04088, Table 1). Bandwidth near "
            "NVLink's 450 GB/s; 4,096 tokens on each rank.",
        ),
        Preset(
            name="skewed",
            label="Popular experts",
            values={"ranks": 8, "top_k": 2, "skew": 1.0, "expert_ffn": 14336, "bandwidth": 400e9},
            source="The same with an untrained router: expert i chosen with weight 1/i (Zipf), our assumption.",
        ),
        Preset(
            name="limited",
            label="With a limit",
            values={
                "ranks": 8,
                "top_k": 2,
                "skew": 1.0,
                "capacity": "1.25",
                "expert_ffn": 14336,
                "bandwidth": 400e9,
            },
            source="Capacity factor 1.25, one of those in Switch Transformer (arXiv 2101.03961, section 2.2).",
        ),
        Preset(
            name="fine-grained",
            label="256 narrow experts",
            values={
                "ranks": 16,
                "experts_per_rank": 16,
                "top_k": 8,
                "expert_ffn": 2048,
                "bandwidth": 50e9,
            },
            source="256 routed experts, 8 a token, width 2,048 as in DeepSeek-V3 (arXiv 2412.19437, section 4.2), which uses "
            "64 ranks, a hidden width of 7,168 and fp8; here 16 ranks, 4,096 and bf16 on 400 Gb/s.",
        ),
    ),
    picture=picture,
)
