"""Expert parallelism: what routing tokens to experts on other ranks sends, drops and waits for.

A mixture-of-experts layer has E experts; a router sends each token to k of them. The experts live on ``ep``
ranks: an all-to-all brings the tokens there (dispatch), a second one brings results back (combine).
Volumes are bytes that ONE rank sends (and receives, when routing is balanced).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.checks import count, non_negative, positive
from shardlab.models.lehmer import Lehmer


def check_experts(experts: int, expert_parallel: int, data_parallel: int | None = None) -> int:
    """Return the experts on each rank, or say what does not divide.

    Args:
        experts: ``E``.
        expert_parallel: ranks that share them.
        data_parallel: if given, expert parallelism takes its ranks from it and must divide it.

    Raises:
        ValueError: E or the data-parallel ranks that ``expert_parallel`` does not divide.
    """
    n_experts = count("experts", experts)
    ranks = count("expert_parallel", expert_parallel)
    if n_experts % ranks:
        raise ValueError(
            f"experts must be divisible by expert_parallel = {ranks} (each rank holds whole experts), not {n_experts}"
        )
    if data_parallel is not None and count("data_parallel", data_parallel) % ranks:
        raise ValueError(
            f"data_parallel must be divisible by expert_parallel = {ranks}, which lives inside it, not {data_parallel}"
        )
    return n_experts // ranks


def expert_capacity(tokens: int, experts: int, top_k: int = 1, capacity_factor: float = 1.0) -> int:
    """Slots of one expert's buffer: ``ceil(capacity_factor * top_k * tokens / E)``.

    Raises:
        ValueError: a number is out of range.

    Source: Fedus et al., Switch Transformer (arXiv 2101.03961), section 2.2 (top_k = 1); for top_k > 1
    as in GShard (arXiv 2006.16668), section 2.2.
    """
    n_tokens = count("tokens", tokens)
    n_experts = count("experts", experts)
    chosen = count("top_k", top_k, most=n_experts)
    # 1e-9 keeps 1.1 * 10 from becoming 12 slots through rounding.
    return math.ceil(positive("capacity_factor", capacity_factor) * chosen * n_tokens / n_experts - 1e-9)


def layer_sent_bytes_core(
    tokens: float, hidden: float, copies: float, expert_parallel: float, element_bytes: float, passes: int
) -> float:
    """Bytes sent per rank and routed layer, unchecked: ``2 passes * tokens copies h e (ep-1)/ep``.

    ``copies`` is top_k (times the capacity factor when buffers are padded); ``passes`` is 1 forward, 2 with backward,
    3 with full recomputation.
    """
    return 2.0 * passes * tokens * copies * hidden * element_bytes * (expert_parallel - 1.0) / expert_parallel


@dataclass(frozen=True)
class ExpertTraffic:
    """All-to-all traffic of one routed layer for one micro-batch on one rank, bytes.

    Attributes:
        dispatch_bytes: tokens to their experts, forward.
        combine_bytes: results back, forward.
        backward_bytes: gradients of both.
        calls: all-to-alls, forward and backward.
    """

    dispatch_bytes: float
    combine_bytes: float
    backward_bytes: float
    calls: int

    @property
    def total_bytes(self) -> float:
        """Forward and backward."""
        return self.dispatch_bytes + self.combine_bytes + self.backward_bytes


def layer_traffic(
    tokens: int,
    hidden: int,
    experts: int,
    top_k: int,
    expert_parallel: int,
    capacity_factor: float | None = None,
    element_bytes: float = 2.0,
) -> ExpertTraffic:
    """All-to-all bytes of one routed layer: ``k * tokens * h * e * (ep-1)/ep`` to dispatch, as much to combine.

    With a capacity factor the buffers are padded: every expert's slots travel, full or not. Without it
    (dropless) only tokens do, and the figure is the mean under balanced routing.

    Args:
        tokens: tokens of one micro-batch on one rank.
        experts: ``E``.
        top_k: ``k``.
        expert_parallel: ranks that share the experts.

    Raises:
        ValueError: a number is out of range, or ranks do not divide the experts.

    Source: Lepikhin et al., GShard (arXiv 2006.16668): dispatch and combine as all-to-alls; each has a backward one.
    """
    n_tokens = count("tokens", tokens)
    width = count("hidden", hidden)
    check_experts(experts, expert_parallel)
    chosen = count("top_k", top_k, most=experts)
    size = positive("element_bytes", element_bytes, "bytes")
    copies = float(chosen)
    if capacity_factor is not None:
        copies = expert_capacity(n_tokens, experts, chosen, capacity_factor) * experts / n_tokens
    forward = layer_sent_bytes_core(n_tokens, width, copies, expert_parallel, size, 1)
    return ExpertTraffic(
        dispatch_bytes=forward / 2,
        combine_bytes=forward / 2,
        backward_bytes=forward,
        calls=4 if expert_parallel > 1 else 0,
    )


def communication_compute_ratio(
    expert_ffn: int,
    expert_parallel: int,
    flops_per_s: float,
    bandwidth: float,
    gated: bool = True,
    element_bytes: float = 2.0,
) -> float:
    """All-to-all time over expert compute time, without latency: ``e F (ep-1)/ep / (n f B)``.

    A routed copy moves ``2 h e`` bytes and computes ``2 n h f`` FLOPs with n = 3 matrices (gated) or 2: hidden width,
    tokens and top_k cancel. Narrow experts are bound by the network.

    Args:
        expert_ffn: ``f``.
        flops_per_s: F of one rank.
        bandwidth: B, bytes/s per rank and direction.

    Raises:
        ValueError: an argument is out of range.

    Derived here; balanced routing, forward pass (the backward pass doubles the compute and repeats the bytes).
    """
    ranks = count("expert_parallel", expert_parallel)
    matrices = 3 if gated else 2
    moved = positive("element_bytes", element_bytes, "bytes") * (ranks - 1) / ranks
    rate = positive("flops_per_s", flops_per_s, "FLOP/s") / positive("bandwidth", bandwidth, "bytes/s")
    return moved * rate / (matrices * count("expert_ffn", expert_ffn))


def routed_counts(tokens: int, experts: int, top_k: int = 1, skew: float = 0.0, seed: int = 0) -> list[int]:
    """Route tokens at random and count them per expert: expert i is chosen with weight ``(i + 1) ** -skew``.

    Skew 0 is a perfectly trained, uniform router; 1 is Zipf's law. Each token goes to ``top_k`` different experts.

    Args:
        tokens: up to 200,000 assignments (tokens x top_k) in all.
        seed: of :class:`shardlab.models.lehmer.Lehmer`: the same counts in every engine.

    Raises:
        ValueError: a number is out of range.
    """
    n_experts = count("experts", experts)
    chosen = count("top_k", top_k, most=n_experts)
    n_tokens = count("tokens", tokens, most=200000 // chosen)
    power = non_negative("skew", skew)
    edges: list[float] = []
    total = 0.0
    for expert in range(n_experts):
        total += (expert + 1.0) ** -power
        edges.append(total)
    generator = Lehmer(seed)
    counts = [0] * n_experts
    for _ in range(n_tokens):
        picked: list[int] = []
        while len(picked) < chosen:
            expert = _interval(edges, generator.uniform() * total)
            if expert not in picked:
                picked.append(expert)
                counts[expert] += 1
    return counts


def _interval(edges: list[float], value: float) -> int:
    """Index of the first edge above ``value`` (binary search)."""
    low, high = 0, len(edges) - 1
    while low < high:
        middle = (low + high) // 2
        if edges[middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class ExpertLoad:
    """How evenly tokens fell on experts, and what a capacity limit does to them.

    Attributes:
        assignments: tokens x top_k.
        capacity: slots per expert, or None (dropless).
        mean, busiest: assignments per expert.
        imbalance: busiest / mean: dropless, the layer waits for the busiest expert.
        dropped: assignments beyond capacity.
        dropped_fraction: of all assignments.
        empty_slots_fraction: of all slots: compute and bytes spent on padding.
    """

    assignments: int
    capacity: int | None
    mean: float
    busiest: int
    imbalance: float
    dropped: int
    dropped_fraction: float
    empty_slots_fraction: float


def expert_load(counts: list[int], capacity: int | None = None) -> ExpertLoad:
    """Read a list of tokens per expert: imbalance, dropped tokens and padding under ``capacity``.

    Raises:
        ValueError: no experts, a negative count, or no token at all.
    """
    sizes = [count(f"counts[{expert}]", size, least=0) for expert, size in enumerate(counts)]
    assigned = sum(sizes)
    if not assigned:
        raise ValueError(f"counts must hold at least one token, not {counts!r}")
    slots = None if capacity is None else count("capacity", capacity)
    dropped = 0 if slots is None else sum([max(size - slots, 0) for size in sizes])
    mean = assigned / len(sizes)
    return ExpertLoad(
        assignments=assigned,
        capacity=slots,
        mean=mean,
        busiest=max(sizes),
        imbalance=max(sizes) / mean,
        dropped=dropped,
        dropped_fraction=dropped / assigned,
        empty_slots_fraction=0.0 if slots is None else 1 - (assigned - dropped) / (slots * len(sizes)),
    )


def expected_busiest_load(assignments: int, experts: int) -> float:
    """Expected tokens of the busiest of E experts when routing is uniform at random.

    ``sum over m of 1 - P(Poisson(n/E) <= m)**E``: loads taken as independent Poisson variables, and at least
    ``ceil(n/E)``. Against the exact multinomial it errs by less than 0.2 % from 8 assignments per expert, 1 % from
    2, 3.1 % from 1 (the tests compare for E from 2 to 16).
    Uniform is not the same as equal: with few tokens per expert even a perfect router is uneven.

    Raises:
        ValueError: a number is not a whole number from 1.

    Source: balls into bins, Raab and Steger, RANDOM 1998; independent Poisson loads as in Mitzenmacher and Upfal,
    Probability and Computing, chapter 5.
    """
    n = count("assignments", assignments)
    bins = count("experts", experts)
    if bins == 1:
        return float(n)
    mean = n / bins
    # Below this load 1 - P**E is 1 to the last digit.
    start = max(int(mean - 12 * math.sqrt(mean)), 0)
    expected = float(start)
    below = 0.0
    log_mean = math.log(mean)
    for load in range(start, n + 1):
        below = min(below + math.exp(load * log_mean - mean - math.lgamma(load + 1.0)), 1.0)
        beyond = 1.0 - below**bins
        expected += beyond
        if load > mean and beyond < 1e-12:
            break
    return max(expected, float((n + bins - 1) // bins))


def expected_dropped_fraction(assignments: int, experts: int, capacity: int) -> float:
    """Expected share of assignments beyond ``capacity`` when routing is uniform at random.

    ``E/n * E[max(X - C, 0)]`` with X binomial(n, 1/E): exact, since expectations add up.

    Raises:
        ValueError: a number is not a whole number from 1.
    """
    n = count("assignments", assignments)
    bins = count("experts", experts)
    slots = count("capacity", capacity)
    if slots >= n:
        return 0.0
    if bins == 1:
        return (n - slots) / n
    log_p, log_q = math.log(1 / bins), math.log(1 - 1 / bins)
    log_all = math.lgamma(n + 1.0)
    over = 0.0
    mean = n / bins
    first = max(slots + 1, int(mean - 12 * math.sqrt(mean)))
    for load in range(first, n + 1):
        log_ways = log_all - math.lgamma(load + 1.0) - math.lgamma(n - load + 1.0)
        term = math.exp(log_ways + load * log_p + (n - load) * log_q) * (load - slots)
        over += term
        if load > mean and term < 1e-18:
            break
    return over * bins / n
