"""What one optimizer step sends: data parallelism and its sharded forms, pipelines, and all axes of a layout.

Volumes are bytes that ONE rank sends per optimizer step (and receives as many) over point-to-point links: the
ring amounts, ``(N-1)/N`` of a buffer for an all-gather or a reduce-scatter, twice that for an all-reduce.
Symbols: Ψ parameters, N data-parallel ranks, G micro-batches per optimizer step (gradient accumulation).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import choice, count, non_negative, positive
from shardlab.models import context, expert, tensor
from shardlab.models.memory import RECOMPUTATIONS, shard_group
from shardlab.models.pipeline_formulas import p2p_sent_bytes
from shardlab.models.pipeline_schedules import checked_sizes

# ---------------------------------------------------------------- data parallelism and ZeRO


def zero_passes_core(
    zero_stage: int,
    micro_batches: int,
    reshard_after_forward: bool,
    reshard_after_backward: bool,
    sync_every: bool,
) -> tuple[int, int]:
    """(all-gathers of the weights, reduce-scatters of the gradients) per optimizer step, unchecked.

    Stage 0 counts the all-reduce as one reduce-scatter and one all-gather OF GRADIENTS. One pass over a buffer of Ψ
    elements sends ``(N-1)/N Ψ``.
    """
    reductions = micro_batches if sync_every else 1
    if zero_stage == 0:
        return reductions, reductions
    if zero_stage < 3:
        return 1, reductions
    if reshard_after_backward:
        gathers = 2 * micro_batches if reshard_after_forward else micro_batches
    else:
        # Weights gathered in a backward pass stay for the next forward pass.
        gathers = micro_batches + 1 if reshard_after_forward else 1
    return gathers, reductions


@dataclass(frozen=True)
class DataTraffic:
    """Data-parallel traffic of one rank in one optimizer step, bytes sent.

    Attributes:
        zero_stage, ranks, micro_batches: stage, N and G.
        weight_gathers: all-gathers of the weights, per step.
        gradient_reductions: reduce-scatters (at stage 0:
            all-reduces) of the gradients, per step.
        all_gather_bytes, reduce_scatter_bytes, all_reduce_bytes: by collective.
    """

    zero_stage: int
    ranks: int
    micro_batches: int
    weight_gathers: int
    gradient_reductions: int
    all_gather_bytes: float
    reduce_scatter_bytes: float
    all_reduce_bytes: float

    @property
    def total_bytes(self) -> float:
        """All collectives together."""
        return self.all_gather_bytes + self.reduce_scatter_bytes + self.all_reduce_bytes


def data_traffic(
    params: float,
    ranks: int,
    zero_stage: int = 0,
    micro_batches: int = 1,
    weight_bytes: float = 2.0,
    gradient_bytes: float = 2.0,
    trainable_params: float | None = None,
    reshard_after_forward: bool = True,
    reshard_after_backward: bool = True,
    sync_every_micro_batch: bool | None = None,
) -> DataTraffic:
    """Bytes per rank and optimizer step of plain data parallelism and ZeRO, with gradient accumulation.

    In units of Ψ (N-1)/N elements, with G micro-batches:

    ==========  =====================================  ===================
    stage       collectives                            volume
    ==========  =====================================  ===================
    0           all-reduce of gradients                2 (2G without no_sync)
    1           reduce-scatter + all-gather            2
    2           G reduce-scatters + all-gather         G + 1
    3           2G all-gathers + G reduce-scatters     3G
    3, kept     G all-gathers + G reduce-scatters      2G
    ==========  =====================================  ===================

    "Kept" is ``reshard_after_forward=False``: weights gathered for the forward pass stay until the backward pass
    has used them (Llama 3 did that). Accumulation therefore amortises stages 0 and 1 only. Frozen weights
    are gathered like all others but have no gradients.

    Args:
        params: Ψ of the data-parallel group's model shard.
        ranks: ``N``.
        zero_stage: 0 to 3.
        micro_batches: ``G``.
        weight_bytes, gradient_bytes: bytes per element on the wire.
        trainable_params: parameters with gradients; all by default (fewer with LoRA).
        reshard_after_forward, reshard_after_backward: stage 3 only: free the gathered weights after the pass.
        sync_every_micro_batch: reduce gradients after every micro-batch. Default: no at stages 0 and 1
            (``no_sync``), yes at 2 and 3. DeepSpeed refuses no at 2 and 3; FSDP allows it, and then keeps
            whole gradients.

    Raises:
        ValueError: an argument is out of range, or more trainable parameters than parameters.

    Source: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 7; with accumulation derived from it and from
    DeepSpeed's refusal of no_sync under gradient partitioning; not resharding: Llama 3 (arXiv 2407.21783), 3.3.2.
    """
    size = positive("params", params, "parameters")
    n = count("ranks", ranks)
    stage = count("zero_stage", zero_stage, least=0, most=3)
    batches = count("micro_batches", micro_batches)
    weights = positive("weight_bytes", weight_bytes, "bytes")
    gradients = positive("gradient_bytes", gradient_bytes, "bytes")
    trainable = (
        size if trainable_params is None else non_negative("trainable_params", trainable_params, "parameters")
    )
    if trainable > size:
        raise ValueError(f"trainable_params must be at most params = {size:.6g}, not {trainable_params!r}")
    every = stage >= 2 if sync_every_micro_batch is None else sync_every_micro_batch
    gathers, reductions = zero_passes_core(
        stage, batches, reshard_after_forward, reshard_after_backward, every
    )
    share = (n - 1) / n
    # Stages 1 and 2 gather what the optimizer changed; stage 3 gathers every weight it needs to compute.
    gathered = size if stage == 3 else trainable
    return DataTraffic(
        zero_stage=stage,
        ranks=n,
        micro_batches=batches,
        weight_gathers=gathers if stage else 0,
        gradient_reductions=reductions,
        all_gather_bytes=gathers * share * gathered * weights if stage else 0.0,
        reduce_scatter_bytes=reductions * share * trainable * gradients if stage else 0.0,
        all_reduce_bytes=0.0 if stage else 2 * reductions * share * trainable * gradients,
    )


def zero_volume_ratio(zero_stage: int, micro_batches: int = 1, reshard_after_forward: bool = True) -> float:
    """Volume of a stage over plain data parallelism with ``no_sync``, equal bytes for weights and gradients.

    1, 1, (G+1)/2, 3G/2 (or G when weights are kept after the forward pass).

    Raises:
        ValueError: an argument is out of range.
    """
    sharded = data_traffic(1.0, 2, zero_stage, micro_batches, reshard_after_forward=reshard_after_forward)
    return sharded.total_bytes / data_traffic(1.0, 2, 0, micro_batches).total_bytes


@dataclass(frozen=True)
class HybridTraffic:
    """Traffic of hybrid sharding in one optimizer step, bytes that one rank sends.

    Attributes:
        inside_bytes: all-gathers and reduce-scatters inside a shard group (a node).
        across_bytes: the all-reduce of one shard across groups: what crosses the slow network.
    """

    inside_bytes: float
    across_bytes: float

    @property
    def total_bytes(self) -> float:
        """Both networks together."""
        return self.inside_bytes + self.across_bytes


def hybrid_shard_traffic(
    params: float,
    ranks: int,
    shard_ranks: int,
    zero_stage: int = 3,
    micro_batches: int = 1,
    weight_bytes: float = 2.0,
    gradient_bytes: float = 2.0,
    reshard_after_forward: bool = True,
    all_reduce_every_micro_batch: bool = False,
) -> HybridTraffic:
    """FSDP's HYBRID_SHARD: shard over groups of F ranks, replicate over W/F groups.

    Inside: as ZeRO over F ranks. Across: an all-reduce of ``Ψ/F`` gradients over R = W/F ranks, ``2 Ψ/F (R-1)/R`` =
    ``2 Ψ (W-F) / (F W)``. The FSDP paper writes ``2M (W-1)/(G W)`` for the latter (:func:`fsdp_cross_host_bytes`),
    which is the same for many nodes and nearly twice as much for two.

    Args:
        params: Ψ.
        ranks: ``W``.
        shard_ranks: F, the ranks of a node as a rule; divides W.
        zero_stage: 3 (HYBRID_SHARD) or 2 (_HYBRID_SHARD_ZERO2).
        all_reduce_every_micro_batch: False when accumulation postpones the step across nodes.

    Raises:
        ValueError: an argument is out of range, or ``shard_ranks`` does not divide ``ranks``.

    Source: Zhao et al., PyTorch FSDP (arXiv 2304.11277), section 3.2.2.
    """
    group = shard_group(ranks, shard_ranks)
    stage = count("zero_stage", zero_stage, least=2, most=3)
    inside = data_traffic(
        params,
        group,
        stage,
        micro_batches,
        weight_bytes,
        gradient_bytes,
        reshard_after_forward=reshard_after_forward,
    )
    reductions = micro_batches if all_reduce_every_micro_batch else 1
    across = data_traffic(params / group, ranks // group, 0, 1, weight_bytes, gradient_bytes)
    return HybridTraffic(inside_bytes=inside.total_bytes, across_bytes=reductions * across.total_bytes)


def fsdp_cross_host_bytes(strategy: str, model_bytes: float, ranks: int, ranks_per_host: int) -> float:
    """Cross-host traffic per GPU as the FSDP paper states it: ``2M(W-1)/W``, ``3M(W-1)/W`` or ``2M(W-1)/(GW)``.

    Args:
        strategy: ``"NO_SHARD"``, ``"FULL_SHARD"`` or ``"HYBRID_SHARD"``.
        model_bytes: ``M``.
        ranks: ``W``.
        ranks_per_host: ``G``.

    Raises:
        ValueError: an argument is out of range.

    Source: Zhao et al., PyTorch FSDP (arXiv 2304.11277), section 3.2.2 (one micro-batch).
    """
    kind = choice("strategy", strategy, ("NO_SHARD", "FULL_SHARD", "HYBRID_SHARD"))
    size = positive("model_bytes", model_bytes, "bytes")
    world = count("ranks", ranks)
    local = shard_group(world, ranks_per_host)
    share = size * (world - 1) / world
    if kind == "HYBRID_SHARD":
        return 2 * share / local
    return share * (2 if kind == "NO_SHARD" else 3)


@dataclass(frozen=True)
class ZeroPlusPlus:
    """Traffic between nodes under ZeRO++, in units of M, the model's 16-bit size, per micro-batch.

    Attributes:
        forward_gather: 1, or 0.5 with 8-bit weights (qwZ).
        backward_gather: 1, or 0 with a second copy of the weights inside the node (hpZ).
        gradient_reduction: 1, or 0.25 with 4-bit gradients (qgZ).
        extra_bytes_per_param: device memory that hpZ costs: ``2 / ranks_per_node``.
    """

    forward_gather: float
    backward_gather: float
    gradient_reduction: float
    extra_bytes_per_param: float

    @property
    def total(self) -> float:
        """3 for ZeRO-3, 0.75 with all three."""
        return self.forward_gather + self.backward_gather + self.gradient_reduction


def zero_plus_plus(
    ranks_per_node: int = 8,
    quantized_weights: bool = True,
    hierarchical_partition: bool = True,
    quantized_gradients: bool = True,
) -> ZeroPlusPlus:
    """ZeRO++: 3M between nodes becomes 0.75M, part by part. Scales of the quantised blocks are left out.

    Raises:
        ValueError: ``ranks_per_node`` is not a whole number from 1.

    Source: Wang et al., ZeRO++ (arXiv 2306.10209), abstract and section 3: 8-bit weights, weights copied inside a
    node for the backward pass, 4-bit gradients.
    """
    local = count("ranks_per_node", ranks_per_node)
    return ZeroPlusPlus(
        forward_gather=0.5 if quantized_weights else 1.0,
        # Without a copy in the node the backward gather crosses nodes like the forward one.
        backward_gather=0.0 if hierarchical_partition else 0.5 if quantized_weights else 1.0,
        gradient_reduction=0.25 if quantized_gradients else 1.0,
        extra_bytes_per_param=2.0 / local if hierarchical_partition else 0.0,
    )


# ---------------------------------------------------------------- pipeline


def boundary_bytes(
    sequence: int,
    micro_batch: int,
    hidden: int,
    tensor_parallel: int = 1,
    scatter_gather: bool = False,
    context_parallel: int = 1,
    element_bytes: float = 2.0,
) -> float:
    """Bytes that one rank sends over one pipeline boundary for one micro-batch, each way: ``b s h e / c``.

    The tensor-parallel ranks of a stage all hold the same output, and each would send it whole. With scatter/gather (or
    sequence parallelism) each sends 1/t and the next stage gathers it over its fast links.

    Raises:
        ValueError: a size is out of range or does not divide.

    Source: Narayanan et al. (arXiv 2104.04473), sections 3.2 and 4.1.
    """
    ranks = count("tensor_parallel", tensor_parallel)
    tokens = context.tokens_per_rank(sequence, context_parallel) * count("micro_batch", micro_batch)
    elements = tokens * count("hidden", hidden)
    whole = elements * positive("element_bytes", element_bytes, "bytes")
    return whole / ranks if scatter_gather else whole


# ---------------------------------------------------------------- a whole layout


@dataclass(frozen=True)
class LayoutTraffic:
    """What one rank (the busiest of its kind) sends per optimizer step on each axis of a layout, bytes.

    Attributes:
        data: gradients and weights over the data-parallel ranks.
        tensor: all-reduces (or all-gathers and reduce-scatters) inside layers.
        pipeline: activations and their gradients over stage boundaries.
        context: keys, values and their gradients, or Ulysses all-to-alls.
        expert: tokens to experts and back.
    """

    data: float
    tensor: float
    pipeline: float
    context: float
    expert: float

    @property
    def items(self) -> tuple[tuple[str, float], ...]:
        """Pairs (axis, bytes)."""
        return (
            ("data", self.data),
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("context", self.context),
            ("expert", self.expert),
        )

    @property
    def total_bytes(self) -> float:
        """All axes together. They use different links, so the sum says little about time."""
        return self.data + self.tensor + self.pipeline + self.context + self.expert


CONTEXT_METHODS = ("ring", "all-gather", "ulysses")


def layout_traffic(
    params: float,
    layers: int,
    sequence: int,
    micro_batch: int,
    hidden: int,
    heads: int,
    micro_batches: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    data_parallel: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    context_parallel: int = 1,
    expert_parallel: int = 1,
    zero_stage: int = 0,
    schedule: str = "1f1b",
    chunks: int = 1,
    recompute: str = "none",
    sequence_parallel: bool = False,
    context_method: str = "ring",
    experts: int = 0,
    top_k: int = 0,
    expert_params: float = 0.0,
    gradient_bytes: float = 2.0,
    element_bytes: float = 2.0,
) -> LayoutTraffic:
    """Bytes per rank and optimizer step on every axis of a layout, for a middle pipeline stage.

    Args:
        params: Ψ of the whole model, experts included.
        layers: L, a multiple of stages x chunks.
        micro_batches: G per data-parallel rank and step.
        data_parallel: replicas; gradients are averaged over ``data_parallel * context_parallel`` ranks.
        context_method: how attention crosses context-parallel ranks.
        experts, top_k: a routed MLP in every layer; 0 is dense.
        expert_params: the part of ``params`` in experts: each is on ``1 / expert_parallel`` of the ranks, so its
            gradients are averaged over as many fewer.
        others: as in :mod:`shardlab.models.memory`.

    Raises:
        ValueError: a size is out of range or does not divide.

    Assumes equal stages; the embedding's and the output head's own collectives are left out.
    """
    depth = count("layers", layers)
    stages = count("pipeline_parallel", pipeline_parallel)
    batches = count("micro_batches", micro_batches)
    kind = choice("recompute", recompute, RECOMPUTATIONS)
    method = choice("context_method", context_method, CONTEXT_METHODS)
    plan, _, _, pieces = checked_sizes(schedule, stages, batches, chunks)
    ranks = tensor.check_split(tensor_parallel, heads, kv_heads)
    if depth % (stages * pieces):
        raise ValueError(
            f"layers must be divisible by pipeline_parallel x chunks = {stages * pieces}, not {depth}"
        )
    width = count("hidden", hidden)
    n_heads = count("heads", heads)
    if head_dim is None and width % n_heads:
        raise ValueError(f"hidden must be divisible by heads = {n_heads}, or give head_dim, not {width}")
    per_head = width // n_heads if head_dim is None else count("head_dim", head_dim)
    n_kv = n_heads if kv_heads is None else kv_heads
    local_layers = depth // stages
    replicas = count("data_parallel", data_parallel) * count("context_parallel", context_parallel)
    size = positive("params", params, "parameters")
    routed_params = non_negative("expert_params", expert_params, "parameters")
    if routed_params >= size:
        raise ValueError(f"expert_params must be below params = {size:.6g}, not {expert_params!r}")
    if experts:
        expert.check_experts(experts, expert_parallel, replicas)
    elif expert_parallel != 1 or routed_params:
        raise ValueError("experts must be at least 1 with expert_parallel above 1 or expert_params, not 0")

    model_parts = ranks * stages
    data = data_traffic(
        (size - routed_params) / model_parts, replicas, zero_stage, batches, gradient_bytes=gradient_bytes
    ).total_bytes
    if routed_params:
        data += data_traffic(
            routed_params / model_parts / expert_parallel,
            replicas // expert_parallel,
            zero_stage,
            batches,
            gradient_bytes=gradient_bytes,
        ).total_bytes
    in_layer = tensor.layer_sent_bytes(
        sequence, micro_batch, width, ranks, kind, element_bytes, context_parallel
    )
    message = boundary_bytes(
        sequence, micro_batch, width, ranks, sequence_parallel, context_parallel, element_bytes
    )
    over_stages = max(p2p_sent_bytes(plan, stages, batches, message, pieces)) if stages > 1 else 0.0
    if method == "ulysses":
        attention = context.ulysses_traffic(
            sequence, micro_batch, n_heads, per_head, context_parallel, n_kv, element_bytes, ranks
        )
    elif method == "all-gather":
        attention = context.all_gather_traffic(
            sequence, micro_batch, n_kv, per_head, context_parallel, element_bytes, ranks
        )
    else:
        attention = context.ring_traffic(
            sequence, micro_batch, n_kv, per_head, context_parallel, element_bytes, tensor_parallel=ranks
        )
    in_attention = attention.total_bytes + (attention.forward_bytes if kind == "full" else 0.0)
    routed = 0.0
    if experts:
        tokens = micro_batch * sequence // context_parallel // (ranks if sequence_parallel else 1)
        one = expert.layer_traffic(tokens, width, experts, top_k, expert_parallel, None, element_bytes)
        routed = one.total_bytes * (1.5 if kind == "full" else 1.0)
    per_step = batches * local_layers
    return LayoutTraffic(
        data=data,
        tensor=per_step * in_layer,
        pipeline=over_stages,
        context=per_step * in_attention,
        expert=per_step * routed,
    )


def throughput_efficiency(throughput: float, units: int, single_throughput: float) -> float:
    """Weak-scaling efficiency of a measurement: ``throughput / (units * single_throughput)``.

    ``units`` are what the single measurement had one of: ranks, or nodes.

    Raises:
        ValueError: an argument is out of range.
    """
    many = positive("throughput", throughput)
    return many / (count("units", units) * positive("single_throughput", single_throughput))
