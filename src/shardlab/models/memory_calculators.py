"""Other people's memory calculators, reproduced: DeepSpeed's estimators and Megatron-LM's theoretical footprint.

They answer narrower questions than :mod:`shardlab.models.memory` and disagree with each other; here they are
kept as published so that their numbers can be explained.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import count, positive


@dataclass(frozen=True)
class Estimate:
    """What a published calculator answers: bytes per device, and bytes of CPU memory per node."""

    device_bytes: float
    host_bytes: float


def deepspeed_zero2_estimate(
    params: float,
    gpus_per_node: int = 1,
    nodes: int = 1,
    offload_optimizer: bool = True,
    buffer_factor: float = 1.5,
    corrected: bool = True,
) -> Estimate:
    """DeepSpeed's ZeRO-2 estimator, which prints GiB and calls it GB.

    Device: 2Ψ with optimizer offload; without, ``2Ψ + 18Ψ/N`` since its correction (2 bytes of 16-bit
    gradients, 4 of fp32 gradients, 4 of master weights, 8 of Adam, all sharded) and ``4Ψ + 16Ψ/N`` before,
    which left the gradients whole: that is ZeRO-1. Host: ``4Ψ gpus_per_node * factor`` for initialisation,
    ``Ψ max(4N, 16) * factor`` with offload. It is model states only, no activations.

    Args:
        params: Ψ.
        gpus_per_node, nodes: N is their product.
        corrected: False for the formula that the documentation's worked examples (15.93) still show.

    Raises:
        ValueError: an argument is out of range.

    Source: DeepSpeed, docs/code-docs/source/memory.rst and runtime/zero/stage_1_and_2.py; pull requests 1536
    and 5099.
    """
    size = positive("params", params, "parameters")
    local = count("gpus_per_node", gpus_per_node)
    total = local * count("nodes", nodes)
    factor = positive("buffer_factor", buffer_factor)
    if offload_optimizer:
        return Estimate(device_bytes=2 * size, host_bytes=size * max(4 * total, 16) * factor)
    device = 2 * size + 18 * size / total if corrected else 4 * size + 16 * size / total
    return Estimate(device_bytes=device, host_bytes=size * 4 * local * factor)


def deepspeed_zero3_estimate(
    params: float,
    largest_layer_params: float,
    gpus_per_node: int = 1,
    nodes: int = 1,
    offload_optimizer: bool = True,
    offload_parameters: bool = True,
    zero_init: bool = True,
    buffer_factor: float = 1.5,
) -> Estimate:
    """DeepSpeed's ZeRO-3 estimator, which prints GiB and calls it GB.

    Device: four bytes per parameter of the largest layer, plus ``18Ψ/N`` without offload, ``2Ψ/N`` with
    optimizer offload, nothing with both. Host, per node: ``18Ψ/nodes`` or ``16Ψ/nodes`` times the factor with
    offload; with ``zero_init`` off at least ``4Ψ gpus_per_node`` times the factor while the model is built.

    Raises:
        ValueError: an argument is out of range, or parameters offloaded without the optimizer.

    Source: DeepSpeed, docs/code-docs/source/memory.rst and runtime/zero/stage3.py.
    """
    size = positive("params", params, "parameters")
    largest = positive("largest_layer_params", largest_layer_params, "parameters")
    local = count("gpus_per_node", gpus_per_node)
    n_nodes = count("nodes", nodes)
    factor = positive("buffer_factor", buffer_factor)
    if offload_parameters and not offload_optimizer:
        raise ValueError(
            "offload_parameters must go with offload_optimizer in this estimator, not with False"
        )
    total = local * n_nodes
    whole_model_on_host = 4 * size * local
    if not offload_optimizer:
        built = 4 * largest * local if zero_init else whole_model_on_host
        return Estimate(device_bytes=4 * largest + 18 * size / total, host_bytes=built * factor)
    offloaded = (18 if offload_parameters else 16) * size / n_nodes
    host = offloaded if zero_init else max(whole_model_on_host, offloaded)
    device = 4 * largest + (0.0 if offload_parameters else 2 * size / total)
    return Estimate(device_bytes=device, host_bytes=host * factor)


@dataclass(frozen=True)
class MegatronEstimate:
    """Megatron-LM's own theoretical footprint of its most loaded rank, bytes."""

    params_on_rank: float
    weights_and_optimizer: float
    activations: float

    @property
    def total_bytes(self) -> float:
        """Weights, optimizer and activations together."""
        return self.weights_and_optimizer + self.activations


def megatron_estimate(
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocabulary: int,
    sequence: int,
    micro_batch: int,
    micro_batches: int,
    data_parallel: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    chunks: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = False,
    rms_norm: bool = False,
    untied: bool = False,
    distributed_optimizer: bool = False,
    selective_with_sequence_parallel: bool = True,
) -> MegatronEstimate:
    """What Megatron-LM's ``report_theoretical_memory`` prints for a dense model (it prints MiB and says MB).

    Weights and optimizer: 18 bytes per parameter of the most loaded rank, or ``6 + 12/N`` with the distributed
    optimizer. Activations of the first stage with sequence parallelism and selective recomputation:
    ``s b h (18 + 4 f/h) L / t`` times ``1 + (p-1)/(p v)`` when interleaved, or times ``min(1, m/p)``; without
    them ``s b h (10 + 24/t) L`` and 5 % more. Beside our own :func:`stage_activations` it ignores grouped-query
    attention and gates in the activations, and counts token ids (8 bytes) and the embedding's dropout.

    Args:
        chunks: v, or None when the schedule is not interleaved.
        vocabulary: V, padded as Megatron pads it.
        selective_with_sequence_parallel: False for the tool's second formula.

    Raises:
        ValueError: an argument is out of range.

    Source: Megatron-LM, megatron/training/theoretical_memory_usage.py.
    """
    depth = count("layers", layers)
    width = count("hidden", hidden)
    n_heads = count("heads", heads)
    inner = count("ffn", ffn)
    words = count("vocabulary", vocabulary)
    length = count("sequence", sequence)
    batch = count("micro_batch", micro_batch)
    batches = count("micro_batches", micro_batches)
    replicas = count("data_parallel", data_parallel)
    ranks = count("tensor_parallel", tensor_parallel)
    stages = count("pipeline_parallel", pipeline_parallel)
    n_kv = n_heads if kv_heads is None else count("kv_heads", kv_heads, most=n_heads)
    per_head = width / n_heads if head_dim is None else count("head_dim", head_dim)

    norm = 1 if rms_norm else 2
    attention = 2 * width * width * (1 + n_kv / n_heads) * (per_head * n_heads / width)
    layer_params = attention + 2 * width * (inner * (1.5 if gated else 1.0) + norm)
    block = layer_params * depth + norm * width
    embedding = width * words
    on_rank = (block / stages + embedding + (embedding if untied and stages == 1 else 0)) / ranks
    per_param = 6 + 12 / replicas if distributed_optimizer else 18.0

    tokens = length * batch
    in_flight_inputs = 8 * tokens * stages + tokens * width * stages
    if selective_with_sequence_parallel:
        activations = tokens * width * (18 + 4 * inner / width) * depth + in_flight_inputs
    else:
        activations = tokens * width * (10 + 24 / ranks) * depth + in_flight_inputs
    if chunks is not None:
        activations *= 1 + (stages - 1) / (stages * count("chunks", chunks))
    elif stages > 1:
        activations *= min(1.0, batches / stages)
    if selective_with_sequence_parallel:
        if stages == 1:
            activations += 4 * tokens * width * (1 + words / width)
        activations /= ranks
    else:
        if stages == 1:
            activations += 2 * (tokens * words / ranks + tokens * width)
        activations *= 1.05
    return MegatronEstimate(
        params_on_rank=on_rank, weights_and_optimizer=on_rank * per_param, activations=activations
    )
