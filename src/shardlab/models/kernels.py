"""How long one layer takes on one device: matrix products, attention, memory-bound kernels and its collectives.

Every kernel is an additive roofline: arithmetic at the device's measured matmul rate plus bytes moved at its memory
bandwidth plus a launch. Narrow matrices are slow because they move more bytes per FLOP; nothing else is assumed
about their shapes. Bytes are counted from what each fused kernel reads and writes.

Symbols: tokens = b s / c on this rank, h hidden, t tensor, c context, e expert parallel ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.hardware import Cluster, Link
from shardlab.models.context import ring_sent_bytes_core
from shardlab.models.expert import layer_sent_bytes_core as expert_sent_bytes_core
from shardlab.models.software import Software
from shardlab.transformer import Transformer, layer_params


@dataclass(frozen=True)
class Constants:
    """The physical constants that were fitted or taken from measurements; one set for all models and layouts.

    Attributes:
        matmul_efficiency: rate of large products over the accelerator's measured best (mamf). Fitted.
        memory_efficiency: rate of memory-bound kernels over the HBM bandwidth. Fitted.
        launch_s: gap per kernel, seconds. Assumed.
        attention_efficiency: FLOP rate of flash attention over the measured matmul best; FlashAttention-2 reports 50
            to 73 % of the A100's peak (arXiv 2307.08691, abstract).
        sequence_parallel_factor: reduce-scatter plus all-gather over one all-reduce. Korthikanti et al. (section 6.2)
            say it is above 1. Fitted.
        tensor_overlap: share of the backward pass's tensor-parallel time that weight-gradient products hide, where the
            software overlaps. Fitted.
        network_efficiency: share of the ports' line rate in large collectives of groups that fill their nodes, and in
            pipeline sends. Assumed (InfiniBand reaches 0.9 to 0.97 in bandwidth tests).
        gradient_efficiency: share of the line rate that one step's gradient reduction reaches end to end, with its
            copies and waits. Fitted.
        step_overhead_s: per step, whatever else: clipping, logging, loss scaling. Assumed.
    """

    matmul_efficiency: float
    memory_efficiency: float
    launch_s: float
    attention_efficiency: float
    sequence_parallel_factor: float
    tensor_overlap: float
    network_efficiency: float
    gradient_efficiency: float
    step_overhead_s: float


CONSTANTS = Constants(
    matmul_efficiency=0.996,
    memory_efficiency=0.835,
    launch_s=3e-6,
    attention_efficiency=0.55,
    sequence_parallel_factor=1.17,
    tensor_overlap=0.31,
    network_efficiency=0.95,
    gradient_efficiency=0.657,
    step_overhead_s=0.05,
)
"""Fitted by ``tools/fit_constants.py`` on Korthikanti's Table 4, its 2,240-GPU row and every other row of the vTrain
measurements (rows 1, 3, 5, ... of ``measured_iterations.csv``). All other published rows are predictions."""


@dataclass(frozen=True)
class Rates:
    """A device's effective rates, from its data sheet and :class:`Constants`: FLOP/s, bytes/s, seconds."""

    matmul: float
    attention: float
    memory: float
    launch_s: float


def rates(cluster: Cluster, constants: Constants = CONSTANTS) -> Rates:
    """Effective rates of the cluster's devices."""
    device = cluster.node.accelerator
    return Rates(
        matmul=device.matmul_flops * device.sustained * constants.matmul_efficiency,
        attention=device.matmul_flops * device.sustained * constants.attention_efficiency,
        memory=device.memory_bandwidth * constants.memory_efficiency,
        launch_s=constants.launch_s,
    )


def matmul_time_s(rate: Rates, m: float, n: float, k: float, batch: float = 1.0) -> float:
    """Seconds of ``batch`` products of (m, k) by (k, n) in 16 bits: ``2mnk/matmul + 2(mk+kn+mn)/memory + launch``.

    With an A100's 270 TFLOP/s and 1.67 TB/s a product loses ``162 (1/m + 1/n + 1/k)`` of its speed to memory.
    """
    flops = 2.0 * batch * m * n * k
    n_bytes = 2.0 * batch * (m * k + k * n + m * n)
    return flops / rate.matmul + n_bytes / rate.memory + rate.launch_s


# ---------------------------------------------------------------- collectives


def members_per_node(ranks: int, stride: int, gpus_per_node: int) -> int:
    """Ranks of one group on one node, when group members are ``stride`` devices apart."""
    return min(ranks, max(gpus_per_node // stride, 1))


def node_collective_bandwidth(link: Link, ranks: int) -> float:
    """Bytes/s per rank that a collective over the node's link reaches: ``bandwidth * efficiency * N/(N + 1/2)``.

    The last factor is measured: 190, 218 and 229 GB/s for 2, 4 and 8 A100 (vTrain, trace/a100, 100 MB and more).
    """
    return link.achievable_bandwidth * ranks / (ranks + 0.5)


def group_bandwidth(cluster: Cluster, ranks: int, stride: int, efficiency: float) -> tuple[float, float]:
    """(bytes/s per rank, latency in seconds) of a collective over ``ranks`` devices ``stride`` apart.

    Within a node the node's link carries it. Across nodes the ring enters and leaves each node once, and all groups of
    a node share its ports: a group with more members on the node has a larger share.
    """
    node = cluster.node
    local = members_per_node(ranks, stride, node.gpus)
    inside = node_collective_bandwidth(node.intra, local)
    if local >= ranks:
        return inside, node.intra.latency_s
    groups = node.gpus / local
    across = node.network_bandwidth * efficiency / groups
    hops = (ranks + local - 1) // local
    latency = node.intra.latency_s + node.nic.latency_s * 2.0 * math.sqrt(hops - 1)
    return (across if local == 1 or across < inside else inside), latency


NVLINK_HOP_S, NETWORK_HOP_S = 3.4e-6, 9.6e-6
"""Latency of one ring hop inside a node and across the network: NCCL src/graph/tuning.cc (v2.8), ring, Simple protocol."""


def ring_latency_s(cluster: Cluster, ranks: int, stride: int) -> float:
    """Seconds that one all-gather or reduce-scatter over a ring spends on its ``ranks - 1`` hops, whatever its size.

    1,024 ranks on nodes of 8 need 4.3 ms: as much as moving 1 GB, in every call.
    """
    local = members_per_node(ranks, stride, cluster.node.gpus)
    across = (ranks + local - 1) // local - 1
    return across * NETWORK_HOP_S + (ranks - 1 - across) * NVLINK_HOP_S


def p2p_time_s(cluster: Cluster, n_bytes: float, stride: int, efficiency: float) -> float:
    """Seconds to send ``n_bytes`` to the rank ``stride`` devices away while all devices of the node do the same."""
    node = cluster.node
    if stride < node.gpus:
        return node.intra.latency_s * 0.4 + n_bytes / node.intra.achievable_bandwidth
    return node.nic.latency_s + n_bytes / (node.network_bandwidth_per_gpu * efficiency)


# ---------------------------------------------------------------- one layer


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer for one micro-batch on one rank.

    Attributes:
        forward, backward_input, backward_weight: compute of the three passes.
        recompute: compute that the backward pass repeats.
        tensor_forward, tensor_backward: tensor-parallel collectives of the two passes (with re-gathered inputs and,
            for full recomputation, the repeated ones in the backward pass).
        tensor_hidden: the part of ``tensor_backward`` that runs beside weight-gradient products.
        context_forward, context_backward, context_hidden: key/value exchange, and what hides beside attention.
        expert_forward, expert_backward: all-to-alls of routed experts; nothing hides them here.
    """

    forward: float
    backward_input: float
    backward_weight: float
    recompute: float
    tensor_forward: float
    tensor_backward: float
    tensor_hidden: float
    context_forward: float
    context_backward: float
    context_hidden: float
    expert_forward: float
    expert_backward: float


def _attention(
    model: Transformer, tokens: float, sequence: int, tensor: int, context: int, flash: bool, rate: Rates
) -> tuple[float, float]:
    """Seconds of attention proper (forward, backward), without projections."""
    query = model.query_width / tensor
    if flash:
        # Half of the blocks are masked; the backward pass does five products for the forward's two.
        flops = 4.0 * tokens * sequence * query * 0.5
        n_bytes = 2.0 * tokens * (2.0 * query + 2.0 * model.kv_width / tensor)
        forward = flops / rate.attention + n_bytes / rate.memory + rate.launch_s
        return forward, 2.5 * forward
    heads = model.heads / tensor
    rows = sequence / context
    batch = tokens / rows * heads
    scores = batch * rows * sequence
    products = matmul_time_s(rate, rows, sequence, model.head_dim, batch) + matmul_time_s(
        rate, rows, model.head_dim, sequence, batch
    )
    # Per score, bytes: softmax reads 2 and writes 2, dropout reads 2 and writes 2 and a mask of 1; backward alike.
    forward_bytes, backward_bytes = (9.0, 11.0) if model.dropout else (4.0, 6.0)
    return (
        products + forward_bytes * scores / rate.memory,
        2.0 * products + backward_bytes * scores / rate.memory,
    )


def layer_time(
    model: Transformer,
    cluster: Cluster,
    software: Software,
    sequence: int,
    micro_batch: int,
    tensor: int = 1,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    constants: Constants = CONSTANTS,
) -> LayerTime:
    """Seconds of one transformer layer for one micro-batch, pass by pass, compute and collectives apart.

    Args:
        model, cluster, software: what runs, where, and how.
        sequence: s, tokens.
        micro_batch: b, sequences.
        tensor, context, expert: parallel degrees; tensor-parallel ranks are neighbours, then context, then data with
            the expert ranks inside.
        sequence_parallel: norms, residuals and dropout work on 1/t of the tokens.
        recompute: ``"none"``, ``"selective"`` (attention scores) or ``"full"``.
        constants: see :class:`Constants`.

    The caller has checked that the sizes divide. Expert routing is taken as balanced.

    Memory traffic per token and hidden column, bytes: norm 4, dropout and residual 7 (6 without dropout) in the
    forward pass, 8 and 5 + 3 in the backward pass; activation function 4 per inner column (gated 6), backward 6
    (gated 10); layout changes of q, k, v and attention output 4 per column; bias gradients 10.
    """
    rate = rates(cluster, constants)
    tokens = micro_batch * sequence / context
    h, t = float(model.hidden), float(tensor)
    query = model.query_width / t
    key_value = max(model.kv_width / t, float(model.head_dim))
    qkv = query + 2.0 * key_value
    gates = 2 if model.gated else 1
    memory, launch = rate.memory, rate.launch_s

    def product(rows: float, columns: float, inner: float, batch: float = 1.0) -> tuple[float, float, float]:
        """Forward, input-gradient and weight-gradient seconds of a linear layer."""
        return (
            matmul_time_s(rate, rows, columns, inner, batch),
            matmul_time_s(rate, rows, inner, columns, batch),
            matmul_time_s(rate, inner, columns, rows, batch),
        )

    parts = [product(tokens, qkv, h), product(tokens, h, query)]
    inner = 0.0
    if model.ffn:
        f = model.ffn / t
        parts += [product(tokens, gates * f, h), product(tokens, h, f)]
        inner += f
    if model.experts:
        f = model.expert_ffn / t
        local = model.experts / expert
        rows = tokens * model.top_k / local
        parts += [product(tokens, float(model.experts), h)]
        parts += [product(rows, gates * f, h, local), product(rows, h, f, local)]
        inner += f * model.top_k
    forward = backward_input = backward_weight = 0.0
    for one, two, three in parts:
        forward += one
        backward_input += two
        backward_weight += three

    attention_forward, attention_backward = _attention(
        model, tokens, sequence, tensor, context, software.flash_attention, rate
    )
    whole = tokens * h / (t if sequence_parallel else 1.0)
    residual = 7.0 if model.dropout else 6.0
    residual_backward = 8.0 if model.dropout else 3.0
    moved = 2.0 * (4.0 + residual) * whole + tokens * (
        4.0 * (qkv + query) + (6.0 if model.gated else 4.0) * inner
    )
    moved_backward = 2.0 * (8.0 + residual_backward) * whole + tokens * (
        4.0 * (qkv + query)
        + (10.0 if model.gated else 6.0) * inner
        + (10.0 * h / t if model.mlp_bias else 0.0)
    )
    if model.experts:
        # Permuting tokens to experts and back: read and write k copies, twice.
        moved += 8.0 * tokens * model.top_k * h
        moved_backward += 8.0 * tokens * model.top_k * h
    forward += attention_forward + moved / memory + 10 * launch
    backward_input += attention_backward + moved_backward / memory + 16 * launch
    backward_weight += software.accumulation_bytes * _layer_weights(model, tensor, expert) / memory

    repeated = 0.0
    if recompute == "full":
        repeated = forward
    elif recompute == "selective" and not software.flash_attention:
        repeated = attention_forward
    backward_input += software.layer_overhead_s

    tensor_forward, tensor_backward, tensor_hidden = _tensor_collectives(
        cluster, software, tokens * h * 2.0, tensor, sequence_parallel, recompute, constants
    )
    kv_bytes = 2.0 * 2.0 * micro_batch * sequence * key_value
    context_forward, context_backward, context_hidden = _context_exchange(
        cluster, kv_bytes, tensor, context, attention_forward, attention_backward, recompute, constants
    )
    expert_forward = expert_backward = 0.0
    if model.experts and expert > 1:
        speed, latency = group_bandwidth(cluster, expert, tensor * context, constants.network_efficiency)
        sent = expert_sent_bytes_core(tokens, h, float(model.top_k), float(expert), 2.0, 1)
        expert_forward = sent / speed + 2.0 * latency
        expert_backward = expert_forward * (2.0 if recompute == "full" else 1.0)
    return LayerTime(
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        recompute=repeated,
        tensor_forward=tensor_forward,
        tensor_backward=tensor_backward,
        tensor_hidden=tensor_hidden,
        context_forward=context_forward,
        context_backward=context_backward,
        context_hidden=context_hidden,
        expert_forward=expert_forward,
        expert_backward=expert_backward,
    )


def _layer_weights(model: Transformer, tensor: int, expert: int) -> float:
    """Weights of one layer on one rank (norms and biases counted as if split too)."""
    if not model.experts:
        return layer_params(model) / tensor
    into = 3 if model.gated else 2
    routed = float(model.experts * into * model.hidden * model.expert_ffn)
    return (layer_params(model) - routed + routed / expert) / tensor


def _tensor_collectives(
    cluster: Cluster,
    software: Software,
    message: float,
    tensor: int,
    sequence_parallel: bool,
    recompute: str,
    constants: Constants,
) -> tuple[float, float, float]:
    """(forward, backward, hidden) seconds of one layer's tensor-parallel collectives; two per pass."""
    if tensor == 1:
        return 0.0, 0.0, 0.0
    speed, latency = group_bandwidth(cluster, tensor, 1, constants.network_efficiency)
    one = 2.0 * (tensor - 1) / tensor * message / speed + latency
    if sequence_parallel:
        one *= constants.sequence_parallel_factor
    forward = 2.0 * one
    first = 2.0 * one
    hidden = constants.tensor_overlap * first if software.overlaps_tensor else 0.0
    backward = first + (forward if recompute == "full" else 0.0)
    if sequence_parallel:
        # Two inputs are gathered again for their weight gradients, beside the input-gradient products.
        backward += one
        hidden += one
    return forward, backward, hidden


def _context_exchange(
    cluster: Cluster,
    kv_bytes: float,
    tensor: int,
    context: int,
    attention_forward: float,
    attention_backward: float,
    recompute: str,
    constants: Constants,
) -> tuple[float, float, float]:
    """(forward, backward, hidden) seconds of ring attention's key/value exchange; each hop hides beside a block."""
    if context == 1:
        return 0.0, 0.0, 0.0
    speed, latency = group_bandwidth(cluster, context, tensor, constants.network_efficiency)
    forward_bytes, backward_bytes = ring_sent_bytes_core(kv_bytes, float(context), 2.0)
    hops = (context - 1) * latency * 0.4
    forward = forward_bytes / speed + hops
    backward = backward_bytes / speed + hops
    hidden = min(forward, attention_forward) + min(backward, attention_backward)
    if recompute == "full":
        hidden += min(forward, attention_forward)
        backward += forward
    return forward, backward, hidden


def head_time(
    model: Transformer,
    cluster: Cluster,
    sequence: int,
    micro_batch: int,
    tensor: int = 1,
    context: int = 1,
    constants: Constants = CONSTANTS,
) -> tuple[float, float]:
    """(forward, backward) seconds of the output head and cross-entropy for one micro-batch on one rank.

    Three products with the vocabulary matrix, and about 32 bytes of traffic per logit (16-bit logits, fp32 copy,
    exponentials, probabilities and their gradient).
    """
    rate = rates(cluster, constants)
    tokens = micro_batch * sequence / context
    words = model.vocabulary / tensor
    forward = matmul_time_s(rate, tokens, words, model.hidden)
    backward = matmul_time_s(rate, tokens, model.hidden, words) + matmul_time_s(
        rate, model.hidden, words, tokens
    )
    return forward + 20.0 * tokens * words / rate.memory, backward + 12.0 * tokens * words / rate.memory
