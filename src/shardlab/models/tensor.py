"""Tensor parallelism: what splitting every matrix costs on the wire, and when the wire is the bottleneck.

A layer's matrices are cut over t ranks, first by columns, then by rows, so that each half of the layer ends in
partial sums that an all-reduce adds up. Symbols as in :mod:`shardlab.models.memory`: s sequence, b micro-batch,
h hidden width, t tensor-parallel ranks, e bytes per element. Volumes are bytes that ONE rank sends (and as many
that it receives) over point-to-point links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.checks import choice, count, non_negative, positive
from shardlab.models.context import local_kv_heads, tokens_per_rank
from shardlab.models.memory import RECOMPUTATIONS


def check_split(
    tensor_parallel: int,
    heads: int,
    kv_heads: int | None = None,
    ffn: int | None = None,
    vocabulary: int | None = None,
    ranks_per_node: int | None = None,
) -> int:
    """Return t if a layer can be cut over t ranks, or say what does not divide.

    Key/value heads must divide over the ranks, or the ranks over them (then heads are copied).

    Args:
        tensor_parallel: ``t``.
        heads, kv_heads, ffn, vocabulary: sizes of the model; None is not checked.
        ranks_per_node: if given, t must stay inside one node: its all-reduces are on the critical path.

    Raises:
        ValueError: a size that t does not divide, or t larger than a node.
    """
    ranks = count("tensor_parallel", tensor_parallel)
    n_heads = count("heads", heads)
    if n_heads % ranks:
        raise ValueError(
            f"heads must be divisible by tensor_parallel = {ranks} (each rank takes whole heads), not {n_heads}"
        )
    if kv_heads is not None:
        local_kv_heads(count("kv_heads", kv_heads, most=n_heads), ranks)
    for name, value in (("ffn", ffn), ("vocabulary", vocabulary)):
        if value is not None and count(name, value) % ranks:
            hint = " (pad it: padded_vocabulary)" if name == "vocabulary" else ""
            raise ValueError(f"{name} must be divisible by tensor_parallel = {ranks}{hint}, not {value}")
    if ranks_per_node is not None and ranks > count("ranks_per_node", ranks_per_node):
        raise ValueError(
            f"tensor_parallel must be at most ranks_per_node = {ranks_per_node}: beyond it every layer waits "
            f"for the network between nodes, not {ranks}"
        )
    return ranks


def padded_vocabulary(vocabulary: int, tensor_parallel: int = 1, multiple: int = 128) -> int:
    """The vocabulary rounded up to ``multiple * t``, so that every rank gets an equal and aligned part.

    GPT-2's 50257 becomes 51200 at t = 8.

    Raises:
        ValueError: a number is not a whole number from 1.

    Source: Megatron-LM, ``--make-vocab-size-divisible-by`` (128).
    """
    words = count("vocabulary", vocabulary)
    step = count("multiple", multiple) * count("tensor_parallel", tensor_parallel)
    return (words + step - 1) // step * step


@dataclass(frozen=True)
class LayerCollectives:
    """Collectives of one layer for one micro-batch, forward, recomputed and backward.

    Each is over a buffer of ``s b h`` elements. An all-reduce costs as much as a reduce-scatter and an
    all-gather together.

    Attributes:
        all_reduce: 4 without sequence parallelism, 6 with full recomputation, 0 with sequence parallelism.
        all_gather, reduce_scatter: 4 and 4 with sequence parallelism (6 and 6 with full recomputation).
        regather: all-gathers of the two split layer inputs in the backward pass, which sequence parallelism
            adds and Megatron hides under the weight-gradient computation: 2, or 0 without it.
    """

    all_reduce: int
    all_gather: int
    reduce_scatter: int
    regather: int


def layer_collectives(sequence_parallel: bool = False, recompute: str = "none") -> LayerCollectives:
    """How many collectives one layer needs: 2 all-reduces forward, 2 backward, 2 more with full recomputation.

    Selective recomputation repeats the attention scores only, which are local to a rank.

    Raises:
        ValueError: an unknown ``recompute``.

    Source: Narayanan et al. (arXiv 2104.04473), section 2.3; Korthikanti et al. (arXiv 2205.05198), section
    4.2.2; with recomputation: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 8.
    """
    passes = 3 if choice("recompute", recompute, RECOMPUTATIONS) == "full" else 2
    if sequence_parallel:
        return LayerCollectives(all_reduce=0, all_gather=2 * passes, reduce_scatter=2 * passes, regather=2)
    return LayerCollectives(all_reduce=2 * passes, all_gather=0, reduce_scatter=0, regather=0)


def layer_sent_bytes_core(
    tokens: float, hidden: float, tensor_parallel: float, element_bytes: float, passes: int
) -> float:
    """Bytes sent per rank, layer and micro-batch, unchecked: ``4 passes * tokens h e (t-1)/t``.

    ``tokens`` is b s / c; ``passes`` is 1 (forward), 2 (forward and backward) or 3 (with full recomputation).
    """
    return 4.0 * passes * tokens * hidden * element_bytes * (tensor_parallel - 1.0) / tensor_parallel


def _tokens(sequence: int, micro_batch: int, context_parallel: int) -> float:
    return float(count("micro_batch", micro_batch) * tokens_per_rank(sequence, context_parallel))


def layer_sent_bytes(
    sequence: int,
    micro_batch: int,
    hidden: int,
    tensor_parallel: int,
    recompute: str = "none",
    element_bytes: float = 2.0,
    context_parallel: int = 1,
) -> float:
    """Bytes that one rank sends per layer and micro-batch: ``8 b s h (t-1)/t`` elements, 12 with full recomputation.

    The same with and without sequence parallelism (whose re-gathered inputs are left out, as in the papers).

    Raises:
        ValueError: a size is out of range.

    Source: Narayanan et al. (arXiv 2104.04473), section 3.2; Korthikanti et al. (arXiv 2205.05198), 4.2.2.
    """
    tokens = _tokens(sequence, micro_batch, context_parallel)
    passes = 3 if choice("recompute", recompute, RECOMPUTATIONS) == "full" else 2
    width = count("hidden", hidden)
    ranks = count("tensor_parallel", tensor_parallel)
    return layer_sent_bytes_core(
        tokens, width, ranks, positive("element_bytes", element_bytes, "bytes"), passes
    )


def forward_sent_bytes(
    sequence: int,
    micro_batch: int,
    hidden: int,
    layers: int,
    tensor_parallel: int,
    element_bytes: float = 2.0,
) -> float:
    """Bytes that one rank sends in a forward pass of all layers: two all-reduces each. Inference prefill too.

    Raises:
        ValueError: a size is out of range.
    """
    tokens = _tokens(sequence, micro_batch, 1)
    width = count("hidden", hidden)
    ranks = count("tensor_parallel", tensor_parallel)
    size = positive("element_bytes", element_bytes, "bytes")
    return count("layers", layers) * layer_sent_bytes_core(tokens, width, ranks, size, 1)


def vocabulary_sent_bytes(
    sequence: int, micro_batch: int, hidden: int, tensor_parallel: int, element_bytes: float = 2.0
) -> float:
    """Bytes that one rank sends per micro-batch for a vocabulary cut over t ranks, first and last stage together.

    One all-reduce of ``s b h`` after the embedding, one of the output layer's input gradient, and three fp32
    numbers per token for the split cross-entropy (maximum, target logit, sum). The logits never travel.

    Raises:
        ValueError: a size is out of range.

    Source: Shoeybi et al., Megatron-LM (arXiv 1909.08053), section 3; three all-reduces as in Megatron-LM's
    vocab_parallel_cross_entropy.
    """
    tokens = _tokens(sequence, micro_batch, 1)
    ranks = count("tensor_parallel", tensor_parallel)
    per_token = 2 * count("hidden", hidden) * positive("element_bytes", element_bytes, "bytes") + 3 * 4
    return 2 * (ranks - 1) / ranks * tokens * per_token


@dataclass(frozen=True)
class TensorStep:
    """Communication of one layer and micro-batch under tensor parallelism, beside its compute.

    Attributes:
        sent_bytes: per rank.
        collectives: all-reduces, or pairs of reduce-scatter and all-gather.
        communication_s: time of those on the link, seconds.
        compute_s: matrix time of the layer on one rank, seconds (0 when no FLOPs were given).
        communication_share: communication / (communication + compute): nothing hides a tensor-parallel
            all-reduce unless the kernel itself is cut up.
    """

    sent_bytes: float
    collectives: int
    communication_s: float
    compute_s: float
    communication_share: float


def layer_time(
    sequence: int,
    micro_batch: int,
    hidden: int,
    tensor_parallel: int,
    bandwidth: float,
    latency_s: float = 0.0,
    recompute: str = "none",
    layer_flops: float = 0.0,
    flops_per_s: float = 1.0,
    element_bytes: float = 2.0,
) -> TensorStep:
    """Time of one layer's tensor-parallel communication for one micro-batch, on a ring.

    ``collectives * (2 (t-1) latency_s) + sent_bytes / bandwidth``.

    Args:
        bandwidth: bytes/s per rank and direction.
        latency_s: seconds per hop.
        layer_flops: FLOPs of the whole layer for the micro-batch in the passes counted (forward + backward, and
            the repeated forward with full recomputation), all ranks together; 0 leaves compute out.
        flops_per_s: what one rank achieves.
        others: as in :func:`layer_sent_bytes`.

    Raises:
        ValueError: an argument is out of range.
    """
    sent = layer_sent_bytes(sequence, micro_batch, hidden, tensor_parallel, recompute, element_bytes)
    calls = layer_collectives(False, recompute).all_reduce if tensor_parallel > 1 else 0
    hop = non_negative("latency_s", latency_s, "seconds")
    communication = calls * 2 * (tensor_parallel - 1) * hop + sent / positive(
        "bandwidth", bandwidth, "bytes/s"
    )
    work = non_negative("layer_flops", layer_flops, "FLOP") / tensor_parallel
    compute = work / positive("flops_per_s", flops_per_s, "FLOP/s")
    both = communication + compute
    return TensorStep(
        sent_bytes=sent,
        collectives=calls,
        communication_s=communication,
        compute_s=compute,
        communication_share=communication / both if both else 0.0,
    )


def communication_compute_ratio(
    hidden: int,
    sequence: int,
    tensor_parallel: int,
    flops_per_s: float,
    bandwidth: float,
    recompute: str = "none",
    element_bytes: float = 2.0,
) -> float:
    """Communication over compute of a GPT layer (f = 4h), without latency: ``e F (t-1) / (9 B (h + s/6))``.

    Per rank and token a layer computes ``72 h (h + s/6) / t`` FLOPs forward and backward and sends
    ``8 h e (t-1)/t`` bytes; with full recomputation ``96`` and ``12``, so that the 9 becomes 8. Batch and depth
    cancel, sequence length hardly matters: only a wider model or a better link helps.

    Args:
        flops_per_s: F, what one rank achieves in matrix products.
        bandwidth: B, bytes/s per rank and direction.

    Raises:
        ValueError: an argument is out of range.

    Derived here from Narayanan et al. (arXiv 2104.04473), section 3.2 and equation 3.
    """
    width = count("hidden", hidden)
    length = count("sequence", sequence)
    ranks = count("tensor_parallel", tensor_parallel)
    rate = positive("flops_per_s", flops_per_s, "FLOP/s")
    speed = positive("bandwidth", bandwidth, "bytes/s")
    size = positive("element_bytes", element_bytes, "bytes")
    divisor = 8 if choice("recompute", recompute, RECOMPUTATIONS) == "full" else 9
    return size * rate * (ranks - 1) / (divisor * speed * (width + length / 6))


def break_even_hidden(
    sequence: int,
    tensor_parallel: int,
    flops_per_s: float,
    bandwidth: float,
    recompute: str = "none",
    element_bytes: float = 2.0,
) -> int:
    """The smallest hidden width at which a GPT layer computes at least as long as it communicates (1 at least).

    ``h >= e F (t-1) / (9 B) - s/6``. For 8 A100 (312 TFLOP/s, 300 GB/s): about 1,300 at s = 2048; over a
    25 GB/s network card: about 19,000.

    Raises:
        ValueError: an argument is out of range.
    """
    at_one = communication_compute_ratio(
        1, sequence, tensor_parallel, flops_per_s, bandwidth, recompute, element_bytes
    )
    # The ratio is constant / (h + s/6): scale it from h = 1 to where it reaches 1.
    width = math.ceil(at_one * (1 + sequence / 6) - sequence / 6)
    return max(width, 1)
