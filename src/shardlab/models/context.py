"""Context parallelism: one long sequence over c ranks, by ring attention or by all-to-all (Ulysses).

Everything in a layer but attention works token by token. For attention, ring attention keeps the queries and
passes keys and values around a ring; Ulysses turns the split by tokens into a split by heads and back.
Volumes are bytes that ONE rank sends (and receives). Symbols: s sequence, b micro-batch, a query heads, g
key/value heads, d head width, c context-parallel ranks, e bytes per element.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import choice, count, non_negative, positive

SPLITS = ("contiguous", "zigzag", "striped")


def tokens_per_rank(sequence: int, context_parallel: int = 1) -> int:
    """Tokens of one sequence on one context-parallel rank, ``s / c``, or what does not divide.

    Raises:
        ValueError: a size is not a whole number from 1, or c does not divide s.
    """
    length = count("sequence", sequence)
    ranks = count("context_parallel", context_parallel)
    if length % ranks:
        raise ValueError(
            f"sequence must be divisible by context_parallel = {ranks} so that ranks get equal parts, not {length}"
        )
    return length // ranks


def local_kv_heads(kv_heads: int, tensor_parallel: int = 1) -> int:
    """Key/value heads on one tensor-parallel rank: g / t, or one copied head where there are fewer than ranks.

    Raises:
        ValueError: neither number divides the other.
    """
    groups = count("kv_heads", kv_heads)
    ranks = count("tensor_parallel", tensor_parallel)
    if groups % ranks and ranks % groups:
        raise ValueError(
            f"kv_heads must be divisible by tensor_parallel = {ranks}, or divide it so that each rank keeps a "
            f"copy of one, not {groups}"
        )
    return max(groups // ranks, 1)


def _chunk(sequence: int, context_parallel: int, split: str = "contiguous") -> tuple[int, int, int]:
    length = count("sequence", sequence)
    ranks = count("context_parallel", context_parallel)
    size = tokens_per_rank(length, ranks)
    if split == "zigzag" and ranks > 1 and size % 2:
        raise ValueError(
            f"sequence must be divisible by 2 x context_parallel = {2 * ranks} for a zigzag split, not {length}"
        )
    return length, ranks, size


def rank_tokens(
    sequence: int, context_parallel: int, rank: int, split: str = "contiguous"
) -> list[tuple[int, int, int]]:
    """The tokens of one rank as ranges ``(start, stop, step)``.

    contiguous: the r-th of c parts. zigzag: the r-th and the r-th from the end of 2c parts. striped: every
    c-th token from r.

    Raises:
        ValueError: a size is out of range or does not divide, or ``split`` is unknown.

    Source: zigzag: Llama 3 (arXiv 2407.21783), section 3.3.2, and Megatron-LM; striped: Brandon et al. (arXiv
    2311.09431).
    """
    kind = choice("split", split, SPLITS)
    length, ranks, size = _chunk(sequence, context_parallel, kind)
    place = count("rank", rank, least=0, most=ranks - 1)
    if kind == "striped":
        return [(place, length, ranks)]
    if kind == "contiguous" or ranks == 1:
        return [(place * size, (place + 1) * size, 1)]
    half = size // 2
    back = 2 * ranks - 1 - place
    return [(place * half, (place + 1) * half, 1), (back * half, (back + 1) * half, 1)]


def _block_pairs(query_chunk: int, key_chunk: int, size: int) -> int:
    """Unmasked (query, key) pairs between two equal chunks of a causal sequence."""
    if key_chunk < query_chunk:
        return size * size
    return size * (size + 1) // 2 if key_chunk == query_chunk else 0


def _causal_pairs(split: str, ranks: int, size: int, mine: int, theirs: int) -> int:
    if split == "striped":
        # Query i of rank r is token i c + r: it sees keys 0..i of ranks up to r, 0..i-1 of the others.
        return size * (size + 1) // 2 if theirs <= mine else size * (size - 1) // 2
    if split == "contiguous" or ranks == 1:
        return _block_pairs(mine, theirs, size)
    half = size // 2
    total = 0
    for query_chunk in (mine, 2 * ranks - 1 - mine):
        for key_chunk in (theirs, 2 * ranks - 1 - theirs):
            total += _block_pairs(query_chunk, key_chunk, half)
    return total


def causal_pairs(sequence: int, context_parallel: int, query_rank: int, key_rank: int, split: str) -> int:
    """Unmasked (query, key) pairs of one rank's queries with another rank's keys under a causal mask.

    Raises:
        ValueError: as in :func:`rank_tokens`.
    """
    kind = choice("split", split, SPLITS)
    _, ranks, size = _chunk(sequence, context_parallel, kind)
    mine = count("query_rank", query_rank, least=0, most=ranks - 1)
    theirs = count("key_rank", key_rank, least=0, most=ranks - 1)
    return _causal_pairs(kind, ranks, size, mine, theirs)


@dataclass(frozen=True)
class RingWork:
    """Attention work of ring attention, in (query, key) pairs; one pair costs 4 a d FLOPs forward.

    Attributes:
        context_parallel: ``c``.
        split: how the tokens are dealt.
        pairs: c lists, one per ring step, of the pairs that each of the c ranks computes in that step.
        per_rank: pairs of each rank over all steps.
        critical_pairs: the sum over steps of the busiest rank: what the ring waits for.
        balanced_pairs: pairs per rank if work were equal: (all pairs) / c.
    """

    context_parallel: int
    split: str
    pairs: list[list[int]]
    per_rank: list[int]
    critical_pairs: int
    balanced_pairs: float

    @property
    def slowdown(self) -> float:
        """``critical_pairs / balanced_pairs``: 1 is perfect; a contiguous causal split tends to 2."""
        return self.critical_pairs / self.balanced_pairs

    @property
    def rank_imbalance(self) -> float:
        """The busiest rank's total work over the mean, ``(2c - 1)/c`` for a long contiguous causal split."""
        return max(self.per_rank) / self.balanced_pairs


def ring_work(sequence: int, context_parallel: int, split: str = "zigzag", causal: bool = True) -> RingWork:
    """Who computes how much in each step of ring attention.

    In step k rank r holds the keys of rank ``(r - k) mod c``; ranks pass them on together, so a step takes as
    long as its busiest rank. With a causal mask and contiguous parts, rank 0 idles in every step but the first
    while rank c-1 is always busy; zigzag gives every rank the same work in every step.

    Args:
        sequence: s, divisible by c (by 2c for zigzag).
        context_parallel: c, up to 1024.
        split: ``"contiguous"``, ``"zigzag"`` or ``"striped"``.
        causal: False counts all pairs.

    Raises:
        ValueError: a size is out of range or does not divide, or ``split`` is unknown.

    Source: Liu et al., Ring Attention (arXiv 2310.01889), section 3; imbalance: Brandon et al., Striped
    Attention (arXiv 2311.09431), section 2; zigzag: Llama 3 (arXiv 2407.21783), section 3.3.2.
    """
    kind = choice("split", split, SPLITS)
    # The answer holds c x c numbers.
    _, ranks, size = _chunk(sequence, count("context_parallel", context_parallel, most=1024), kind)
    pairs: list[list[int]] = []
    per_rank = [0] * ranks
    critical = 0
    total = 0
    for step in range(ranks):
        row = [
            _causal_pairs(kind, ranks, size, rank, (rank - step) % ranks) if causal else size * size
            for rank in range(ranks)
        ]
        pairs.append(row)
        critical += max(row)
        for rank in range(ranks):
            per_rank[rank] += row[rank]
            total += row[rank]
    return RingWork(
        context_parallel=ranks,
        split=kind,
        pairs=pairs,
        per_rank=per_rank,
        critical_pairs=critical,
        balanced_pairs=total / ranks,
    )


def key_value_bytes(
    sequence: int, micro_batch: int, kv_heads: int, head_dim: int, element_bytes: float = 2.0
) -> float:
    """Bytes of all keys and values of one layer and micro-batch: ``2 s b g d e``.

    Raises:
        ValueError: a size is out of range.
    """
    elements = count("sequence", sequence) * count("micro_batch", micro_batch)
    width = count("kv_heads", kv_heads) * count("head_dim", head_dim)
    return 2.0 * elements * width * positive("element_bytes", element_bytes, "bytes")


@dataclass(frozen=True)
class ContextTraffic:
    """Bytes that one rank sends per layer and micro-batch for attention over a split sequence.

    Attributes:
        forward_bytes, backward_bytes: the two passes (a recomputed forward pass sends ``forward_bytes`` again).
        messages: point-to-point sends or all-to-all calls, both passes.
    """

    forward_bytes: float
    backward_bytes: float
    messages: int

    @property
    def total_bytes(self) -> float:
        """Forward and backward."""
        return self.forward_bytes + self.backward_bytes


def ring_sent_bytes_core(
    key_value: float, context_parallel: float, gradient_ratio: float
) -> tuple[float, float]:
    """Bytes sent by ring attention (forward, backward), unchecked.

    ``key_value`` is all keys and values of the layer, bytes; ``gradient_ratio`` is gradient bytes per key/value byte.
    """
    if context_parallel == 1:
        return 0.0, 0.0
    block = key_value / context_parallel
    forward = (context_parallel - 1.0) * block
    return forward, forward + context_parallel * block * gradient_ratio


def ring_traffic(
    sequence: int,
    micro_batch: int,
    kv_heads: int,
    head_dim: int,
    context_parallel: int,
    element_bytes: float = 2.0,
    gradient_element_bytes: float = 4.0,
    tensor_parallel: int = 1,
) -> ContextTraffic:
    """Bytes of ring attention: keys and values go c-1 hops forward; backward again, and their gradients c hops.

    Forward ``(c-1)/c * 2 s b g d e``; backward the same plus ``2 s b g d`` elements of gradients, which end
    where they began and are summed in fp32. Grouped-query attention shrinks all of it. With tensor
    parallelism a rank sends the keys and values of its own heads.

    Raises:
        ValueError: a size is out of range, or the sequence does not divide.

    Source: Liu et al., Ring Attention (arXiv 2310.01889), section 3; hop counts and fp32 gradients as in
    zhuzilin/ring-flash-attention, zigzag_ring_flash_attn.py.
    """
    length, ranks, _ = _chunk(sequence, context_parallel)
    groups = local_kv_heads(kv_heads, tensor_parallel)
    size = key_value_bytes(length, micro_batch, groups, head_dim, element_bytes)
    ratio = positive("gradient_element_bytes", gradient_element_bytes, "bytes") / element_bytes
    forward, backward = ring_sent_bytes_core(size, ranks, ratio)
    messages = 2 * (ranks - 1) + ranks if ranks > 1 else 0
    return ContextTraffic(forward_bytes=forward, backward_bytes=backward, messages=messages)


def all_gather_traffic(
    sequence: int,
    micro_batch: int,
    kv_heads: int,
    head_dim: int,
    context_parallel: int,
    element_bytes: float = 2.0,
    tensor_parallel: int = 1,
) -> ContextTraffic:
    """Bytes when keys and values are all-gathered, as Llama 3 does: forward AG, backward AG and reduce-scatter.

    Each is ``(c-1)/c * 2 s b g d e``. Nothing hides it behind attention blocks, but masks of any shape work.

    Raises:
        ValueError: a size is out of range, or the sequence does not divide.

    Source: Llama 3 (arXiv 2407.21783), section 3.3.2; AG forward, AG and RS backward as in Megatron Core's
    context parallelism overview.
    """
    length, ranks, _ = _chunk(sequence, context_parallel)
    size = key_value_bytes(
        length, micro_batch, local_kv_heads(kv_heads, tensor_parallel), head_dim, element_bytes
    )
    one = (ranks - 1) / ranks * size
    return ContextTraffic(forward_bytes=one, backward_bytes=2 * one, messages=3 if ranks > 1 else 0)


def ulysses_traffic(
    sequence: int,
    micro_batch: int,
    heads: int,
    head_dim: int,
    context_parallel: int,
    kv_heads: int | None = None,
    element_bytes: float = 2.0,
    tensor_parallel: int = 1,
) -> ContextTraffic:
    """Bytes of Ulysses: all-to-all of q, k, v before attention and of its output after it; twice that with backward.

    Forward ``(c-1)/c * (2a + 2g) d s b e / c``, that is ``4 s b h / c`` elements for g = a: per rank it falls
    as ranks are added, while the ring's stays. The heads must divide over the ranks; fewer key/value heads than
    ranks are copied up to one per rank.

    Raises:
        ValueError: heads or sequence that the ranks do not divide.

    Source: Jacobs et al., DeepSpeed-Ulysses (arXiv 2309.14509), section 3.2.
    """
    _, ranks, size = _chunk(sequence, context_parallel)
    n_heads = count("heads", heads)
    shards = ranks * count("tensor_parallel", tensor_parallel)
    if n_heads % shards:
        raise ValueError(
            f"heads must be divisible by context_parallel x tensor_parallel = {shards}: Ulysses deals whole "
            f"heads to ranks, not {n_heads}"
        )
    n_kv = n_heads if kv_heads is None else count("kv_heads", kv_heads, most=n_heads)
    if n_kv % shards and shards % n_kv:
        raise ValueError(
            f"kv_heads must be divisible by context_parallel x tensor_parallel = {shards}, or divide it, not {n_kv}"
        )
    moved = (2 * n_heads + 2 * max(n_kv, shards)) / tensor_parallel * count("head_dim", head_dim)
    tokens = size * count("micro_batch", micro_batch)
    one = (ranks - 1) / ranks * tokens * moved * positive("element_bytes", element_bytes, "bytes")
    return ContextTraffic(forward_bytes=one, backward_bytes=one, messages=8 if ranks > 1 else 0)


def break_even_block_tokens(
    flops_per_s: float,
    bandwidth: float,
    heads: int = 1,
    kv_heads: int | None = None,
    causal: bool = False,
    element_bytes: float = 2.0,
) -> float:
    """Tokens per rank from which a ring step computes at least as long as it sends: ``(e/2) (F/B) (g/a)``.

    A block of n queries and n keys costs ``4 n² a d`` FLOPs and moves ``2 n g d e`` bytes. A balanced causal
    mask halves the work, which doubles the answer; grouped-query attention divides it by a/g.

    Args:
        flops_per_s: F, what attention achieves.
        bandwidth: B, bytes/s per rank and direction.
        heads, kv_heads: a and g; equal by default.
        causal: True for a causal mask with a zigzag split.

    Raises:
        ValueError: an argument is out of range.

    Source: Liu et al., Ring Attention (arXiv 2310.01889), section 3 and Table 2 (c = F/B at 2 bytes).
    """
    rate = positive("flops_per_s", flops_per_s, "FLOP/s")
    speed = positive("bandwidth", bandwidth, "bytes/s")
    n_heads = count("heads", heads)
    n_kv = n_heads if kv_heads is None else count("kv_heads", kv_heads, most=n_heads)
    tokens = positive("element_bytes", element_bytes, "bytes") / 2 * rate / speed * n_kv / n_heads
    return 2 * tokens if causal else tokens


@dataclass(frozen=True)
class RingStep:
    """One forward pass of ring attention in time, seconds.

    Attributes:
        compute_s: attention of the busiest rank, all steps.
        communication_s: all sends, hidden or not.
        exposed_s: the part of the sends that compute does not cover.
        step_time_s: compute plus exposed communication.
        hidden: True when every send ends before its step's attention.
    """

    compute_s: float
    communication_s: float
    exposed_s: float
    step_time_s: float
    hidden: bool


def ring_time(
    sequence: int,
    micro_batch: int,
    heads: int,
    head_dim: int,
    context_parallel: int,
    flops_per_s: float,
    bandwidth: float,
    latency_s: float = 0.0,
    kv_heads: int | None = None,
    split: str = "zigzag",
    causal: bool = True,
    element_bytes: float = 2.0,
) -> RingStep:
    """Forward time of ring attention for one layer: each step's attention overlaps the send of the next block.

    A step takes ``max(4 pairs b a d / F, 2 n b g d e / B + latency)`` for its busiest rank, with n = s/c; the
    last step has nothing to send. Under tensor parallelism pass the heads of one rank.

    Raises:
        ValueError: an argument is out of range or does not divide.
    """
    work = ring_work(sequence, context_parallel, split, causal)
    n_heads = count("heads", heads)
    n_kv = n_heads if kv_heads is None else count("kv_heads", kv_heads, most=n_heads)
    ranks = work.context_parallel
    block = key_value_bytes(sequence, micro_batch, n_kv, head_dim, element_bytes) / ranks
    send = block / positive("bandwidth", bandwidth, "bytes/s") + non_negative(
        "latency_s", latency_s, "seconds"
    )
    per_pair = 4.0 * micro_batch * n_heads * head_dim / positive("flops_per_s", flops_per_s, "FLOP/s")
    compute = communication = exposed = 0.0
    for step, row in enumerate(work.pairs):
        busy = max(row) * per_pair
        compute += busy
        if step < ranks - 1:
            communication += send
            exposed += max(send - busy, 0.0)
    return RingStep(
        compute_s=compute,
        communication_s=communication,
        exposed_s=exposed,
        step_time_s=compute + exposed,
        hidden=exposed == 0,
    )
