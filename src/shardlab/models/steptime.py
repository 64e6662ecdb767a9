"""One training step under one layout, as plain numbers: seconds by cause and bytes by kind, for one device.

:class:`Evaluator` holds what does not change between layouts and remembers layer times, so that a search can try
tens of thousands. It checks nothing: :mod:`shardlab.models.plan` does, and turns the numbers into dataclasses.

Rank order, innermost first: tensor, context, data (with expert ranks inside), pipeline.
"""

from __future__ import annotations

from typing import Any

from shardlab.hardware import Cluster
from shardlab.models.communication import zero_passes_core
from shardlab.models.kernels import (
    Constants,
    group_bandwidth,
    head_time,
    layer_time,
    p2p_time_s,
    rates,
    ring_latency_s,
)
from shardlab.models.memory import (
    CUDA_CONTEXT_BYTES,
    Recipe,
    head_core,
    in_flight_core,
    layer_core,
    mlp_saved_width,
    routing_bytes,
    states_core,
    unsharded_bytes,
)
from shardlab.models.software import Software
from shardlab.transformer import (
    Transformer,
    embedding_params,
    hardware_flops,
    head_params,
    layer_params,
    model_flops,
)

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")
V_SCHEDULES = ("zb-v", "dualpipe-v")

TIME_LABELS = (
    "layers",
    "recomputation",
    "output head",
    "tensor-parallel communication",
    "context-parallel communication",
    "expert-parallel communication",
    "pipeline bubble",
    "pipeline transfers",
    "data-parallel communication",
    "optimizer",
    "fixed overhead",
    "shared-node slowdown",
)
"""The causes that :meth:`Evaluator.times` splits a step into, in this order; they add up to the step."""

MEMORY_LABELS = (
    "parameters",
    "gradients",
    "optimizer and master weights",
    "activations of layers",
    "one recomputed layer",
    "embedding and output head",
    "unsharded layer",
    "CUDA context",
)
"""What :meth:`Evaluator.memory` returns, in this order."""


def bubble_core(
    schedule: str,
    stages: int,
    micro_batches: int,
    chunks: int,
    forward: float,
    backward: float,
    weight: float,
) -> float:
    """Seconds a pipeline rank idles in one step with equal stages and free transfers, unchecked.

    Times are of one micro-batch through one rank's layers. gpipe, 1f1b ``(p-1)(F+B+W)``, interleaved-1f1b 1/v of it,
    zb-h1 ``(p-1)(F+B-W)``, zb-h2 ``(p-1)(F+B-2W)``; where a closed form does not hold (W above F or B, V schedules)
    the executor is asked with at most 4p micro-batches, as the bubble does not grow beyond.

    Source: Narayanan et al. (arXiv 2104.04473), section 2.2; Qi et al., Zero Bubble (arXiv 2401.10241), Table 2.
    """
    if stages == 1:
        return 0.0
    total = forward + backward + weight
    if schedule in ("gpipe", "1f1b"):
        return (stages - 1) * total
    if schedule == "interleaved-1f1b":
        return (stages - 1) * total / chunks
    if micro_batches >= 2 * stages and weight <= forward and weight <= backward:
        if schedule == "zb-h1":
            return (stages - 1) * (forward + backward - weight)
        if schedule == "zb-h2":
            return (stages - 1) * max(forward + backward - 2.0 * weight, 0.0)
    # Imported when needed: the executor is half of this module's import time, and most searches do without.
    from shardlab.models.pipeline import simulate

    few = min(micro_batches, 4 * stages)
    made = simulate(schedule, stages, few, forward, backward, weight)
    return max(made.makespan_s - few * total, 0.0)


class Evaluator:
    """Step time and memory of any layout of one model, cluster, software, batch and sequence.

    Args:
        model, cluster, software, recipe, constants: as in :func:`shardlab.models.plan.predict`.
        global_batch: B, sequences per step over all ranks.
        sequence: s, tokens.
    """

    def __init__(
        self,
        model: Transformer,
        cluster: Cluster,
        software: Software,
        recipe: Recipe,
        constants: Constants,
        global_batch: int,
        sequence: int,
    ) -> None:
        self.model = model
        self.cluster = cluster
        self.software = software
        self.recipe = recipe
        self.constants = constants
        self.global_batch = global_batch
        self.sequence = sequence
        self.capacity = cluster.node.accelerator.memory_bytes
        self.peak = cluster.peak_flops
        self.model_flops = model_flops(model, sequence, global_batch)
        # Flash attention repeats the scores inside its backward kernel; that is not counted as recomputation.
        self.hardware_flops = {
            "none": self.model_flops,
            "selective": self.model_flops
            if software.flash_attention
            else hardware_flops(model, sequence, global_batch, "selective"),
            "full": hardware_flops(model, sequence, global_batch, "full"),
        }
        into = 3 if model.gated else 2
        self.expert_params = float(model.experts * into * model.hidden * model.expert_ffn)
        self.dense_params = layer_params(model) - self.expert_params
        self.embedding_params = float(embedding_params(model))
        # A tied head on another stage than the embedding is a second copy.
        self.head_params = float(head_params(model)) or float(model.vocabulary * model.hidden)
        self.untied_params = float(head_params(model))
        self.mlp_saved = mlp_saved_width(model.ffn, model.gated, model.experts, model.top_k, model.expert_ffn)
        self.routing = routing_bytes(model.hidden, model.experts, model.top_k) if model.experts else 0.0
        self.memory_rate = rates(cluster, constants).memory
        self.optimizer_bytes = 2.0 * (recipe.gradients + recipe.stage1_bytes) + recipe.parameters
        self._layers: dict[Any, Any] = {}
        self._kept: dict[Any, Any] = {}
        self._states: dict[Any, Any] = {}
        self._flights: dict[Any, Any] = {}
        self._traffic: dict[Any, Any] = {}
        self._hops: dict[Any, float] = {}
        self._bubbles: dict[Any, float] = {}

    # ------------------------------------------------------------ cached parts

    def layer(
        self,
        tensor: int,
        context: int,
        expert: int,
        micro_batch: int,
        sequence_parallel: bool,
        recompute: str,
    ) -> Any:
        """Seconds of one layer for one micro-batch as a tuple; see the names where it is unpacked."""
        key = (tensor, context, expert, micro_batch, sequence_parallel, recompute)
        found = self._layers.get(key)
        if found is None:
            one = layer_time(
                self.model,
                self.cluster,
                self.software,
                self.sequence,
                micro_batch,
                tensor,
                context,
                expert,
                sequence_parallel,
                recompute,
                self.constants,
            )
            head_forward, head_backward = head_time(
                self.model, self.cluster, self.sequence, micro_batch, tensor, context, self.constants
            )
            compute = one.forward + one.backward_input + one.backward_weight
            tensor_all = one.tensor_forward + one.tensor_backward
            context_all = one.context_forward + one.context_backward
            expert_all = one.expert_forward + one.expert_backward
            # Hidden context traffic is booked on the backward pass: the split between passes moves only the bubble.
            forward = one.forward + one.tensor_forward + one.context_forward + one.expert_forward
            backward = one.backward_input + one.recompute + one.tensor_backward - one.tensor_hidden
            backward += one.context_backward - one.context_hidden + one.expert_backward
            found = (
                forward,
                backward,
                one.backward_weight,
                compute,
                one.recompute,
                tensor_all - one.tensor_hidden,
                context_all - one.context_hidden,
                expert_all,
                head_forward + head_backward,
                tensor_all,
                context_all,
            )
            self._layers[key] = found
        return found

    def kept(
        self, tensor: int, context: int, micro_batch: int, sequence_parallel: bool, recompute: str
    ) -> Any:
        """(kept bytes of one layer, recomputed bytes, embedding mask bytes, head bytes) for one micro-batch."""
        key = (tensor, context, micro_batch, sequence_parallel, recompute)
        found = self._kept.get(key)
        if found is None:
            model = self.model
            tokens = micro_batch * self.sequence / context
            kept, remade = layer_core(
                tokens,
                float(self.sequence),
                float(model.hidden),
                float(model.query_width),
                float(max(model.kv_heads, tensor) * model.head_dim),
                self.mlp_saved,
                float(model.heads),
                tensor,
                sequence_parallel,
                self.software.flash_attention,
                model.dropout,
                2.0,
                self.routing,
                recompute,
            )
            whole = tokens / tensor if sequence_parallel else tokens
            mask = whole * model.hidden if model.dropout else 0.0
            head = head_core(
                tokens, float(model.hidden), float(model.vocabulary), tensor, sequence_parallel, 4.0
            )
            found = (kept, remade, mask, head)
            self._kept[key] = found
        return found

    def _bubble(
        self,
        schedule: str,
        stages: int,
        batches: int,
        chunks: int,
        forward: float,
        backward: float,
        weight: float,
    ) -> float:
        if schedule in ("1f1b", "interleaved-1f1b", "gpipe"):
            return (stages - 1) * (forward + backward + weight) / chunks
        # The bubble scales with the times: work it out once per ratio of them, to four digits.
        total = forward + backward + weight
        first, last = int(1e4 * forward / total), int(1e4 * weight / total)
        key = (schedule, stages, min(batches, 4 * stages), first, last)
        found = self._bubbles.get(key)
        if found is None:
            found = bubble_core(
                schedule, stages, key[2], chunks, first / 1e4, 1 - (first + last) / 1e4, last / 1e4
            )
            self._bubbles[key] = found
        return found * total

    # ------------------------------------------------------------ memory

    def params_on_rank(self, tensor: int, pipeline: int, expert: int) -> tuple[float, float]:
        """(dense, expert) parameters of the fullest pipeline rank."""
        layers = self.model.layers / pipeline
        ends = (
            self.embedding_params + self.untied_params
            if pipeline == 1
            else max(self.embedding_params, self.head_params)
        )
        return (layers * self.dense_params + ends) / tensor, layers * self.expert_params / (tensor * expert)

    def memory(
        self,
        data: int,
        tensor: int,
        pipeline: int,
        context: int,
        expert: int,
        zero: int,
        micro_batch: int,
        recompute: str,
        sequence_parallel: bool,
        schedule: str,
        chunks: int,
    ) -> tuple[float, float, float, float, float, float, float, float]:
        """Bytes on the fullest device, as in :data:`MEMORY_LABELS`.

        Activations are those of the first or the last pipeline rank, whichever holds more.
        """
        weights, gradients, optimizer, unsharded = self._model_states(
            data * context, tensor, pipeline, expert, zero
        )
        kept, remade, mask, head = self.kept(tensor, context, micro_batch, sequence_parallel, recompute)
        batches = self.global_batch // (data * micro_batch)
        layers = self.model.layers / pipeline
        key = (schedule, pipeline, batches, chunks)
        flight = self._flights.get(key)
        if flight is None:
            flight = (
                in_flight_core(schedule, pipeline, 0, batches, chunks),
                in_flight_core(schedule, pipeline, pipeline - 1, batches, chunks),
            )
            self._flights[key] = flight
        first, last = flight
        heads = head * (last if schedule == "gpipe" else 1.0)
        at_first, at_last = mask * first, heads
        if pipeline == 1 or schedule in V_SCHEDULES:
            at_first += heads
            at_last = 0.0
        if first * layers * kept + at_first >= last * layers * kept + at_last:
            stored, ends = first * layers * kept, at_first
        else:
            stored, ends = last * layers * kept, at_last
        return weights, gradients, optimizer, stored, remade, ends, unsharded, CUDA_CONTEXT_BYTES

    def _model_states(self, shards: int, tensor: int, pipeline: int, expert: int, zero: int) -> Any:
        """Bytes of (weights, gradients, optimizer and master copies, unsharded layer)."""
        key = (shards, tensor, pipeline, expert, zero)
        found = self._states.get(key)
        if found is None:
            recipe = self.recipe
            dense, routed = self.params_on_rank(tensor, pipeline, expert)
            weights = gradients = optimizer = unsharded = 0.0
            for params, parts in ((dense, float(shards)), (routed, shards / expert)):
                weights += states_core(params, parts, zero, recipe.parameters, 0.0, 0.0)
                gradients += states_core(params, parts, zero, 0.0, recipe.gradients, 0.0)
                optimizer += states_core(params, parts, zero, 0.0, 0.0, recipe.stage1_bytes)
            if zero == 3:
                largest = (self.dense_params + self.expert_params / expert) / tensor
                unsharded = unsharded_bytes(largest, 2.0, 2.0, 1)
            found = (weights, gradients, optimizer, unsharded)
            self._states[key] = found
        return found

    # ------------------------------------------------------------ time

    def times(
        self,
        data: int,
        tensor: int,
        pipeline: int,
        context: int,
        expert: int,
        zero: int,
        micro_batch: int,
        recompute: str,
        sequence_parallel: bool,
        schedule: str,
        chunks: int,
    ) -> tuple[Any, ...]:
        """Seconds of one step: (total, low, high, then one number per :data:`TIME_LABELS`).

        ``low`` hides all communication behind compute or the other way round; ``high`` hides none.
        """
        (
            forward,
            backward,
            weight,
            compute,
            repeated,
            tensor_s,
            context_s,
            expert_s,
            head,
            tensor_all,
            context_all,
        ) = self.layer(tensor, context, expert, micro_batch, sequence_parallel, recompute)
        software = self.software
        batches = self.global_batch // (data * micro_batch)
        layers = self.model.layers / pipeline
        uses = batches * layers
        slot_forward, slot_backward, slot_weight = layers * forward, layers * backward, layers * weight

        # Pipeline: bubble of the slowest order of events, and what transfers add to every slot.
        bubble = transfers = transfers_all = 0.0
        bubble_compute = bubble_all = 0.0
        if pipeline > 1:
            hop = self._hop(data, tensor, context, micro_batch, sequence_parallel)
            bubble = self._bubble(
                schedule, pipeline, batches, chunks, slot_forward, slot_backward, slot_weight
            )
            slot = slot_forward + slot_backward + slot_weight
            bubble_compute = bubble * layers * (compute + repeated) / slot
            exposed_all = layers * (tensor_all - tensor_s + context_all - context_s)
            bubble_all = bubble * (slot + exposed_all) / slot
            loops = 2 if schedule in V_SCHEDULES else chunks
            fill = 2.0 * (pipeline * loops - 1) * hop if loops > 1 else 2.0 * (pipeline - 1) * hop
            if loops > 1:
                # Every chunk sends and receives; software either waits for that or computes another chunk meanwhile.
                per_slot = 2.0 * hop * loops
                waits = 0.0 if software.overlaps_pipeline else per_slot
            else:
                # A round trip per p micro-batches, which the ranks before the last spend waiting for its output head
                # anyway.
                per_slot = 2.0 * hop * (pipeline - 1) / pipeline
                waits = max(per_slot - head * (pipeline - 1) / pipeline, 0.0)
            transfers_all = fill + batches * per_slot
            transfers = fill + batches * waits

        everything, gather, reduce, reductions, shared, optimizer = self._sync(
            data, tensor, pipeline, context, expert, zero, batches
        )
        data_s = everything
        if software.overlaps_gradients and everything:
            data_s -= _hidden_sync(
                zero, batches, gather, reduce, reductions, slot_forward, slot_backward + slot_weight
            )
            if data_s < shared:
                data_s = shared
        data_all = everything
        overhead = self.constants.step_overhead_s

        parts = (
            uses * compute,
            uses * repeated,
            batches * head,
            uses * tensor_s,
            uses * context_s,
            uses * expert_s,
            bubble,
            transfers,
            data_s,
            optimizer,
            overhead,
        )
        total = 0.0
        for part in parts:
            total += part
        slowdown = 0.0
        if pipeline > 1 and 1 < tensor < self.cluster.node.gpus:
            slowdown = total * software.shared_node_slowdown
            total += slowdown

        busy = uses * (compute + repeated) + batches * head
        low = busy + bubble_compute + optimizer + overhead
        for traffic in (uses * tensor_all, uses * context_all, uses * expert_s, data_all):
            if traffic > low:
                low = traffic
        high = busy + bubble_all + uses * (tensor_all + context_all + expert_s) + transfers_all
        high += data_all + optimizer + overhead + slowdown
        bracket = (total, min(low, total), max(high, total))
        return bracket + parts + (slowdown,)

    def _hop(self, data: int, tensor: int, context: int, micro_batch: int, sequence_parallel: bool) -> float:
        """Seconds to hand one micro-batch to the next pipeline rank."""
        key = (data, tensor, context, micro_batch, sequence_parallel)
        found = self._hops.get(key)
        if found is None:
            efficiency = self.constants.network_efficiency
            message = 2.0 * micro_batch * self.sequence / context * self.model.hidden / tensor
            found = p2p_time_s(self.cluster, message, tensor * context * data, efficiency)
            if tensor > 1 and not sequence_parallel:
                # Scatter/gather: each tensor rank sends its part, the receivers put it together over the node's link.
                inside, latency = group_bandwidth(self.cluster, tensor, 1, efficiency)
                found += message * (tensor - 1) / inside + 0.4 * latency
            self._hops[key] = found
        return found

    def _sync(
        self, data: int, tensor: int, pipeline: int, context: int, expert: int, zero: int, batches: int
    ) -> Any:
        """Seconds of data-parallel traffic in one step: (all of it, one gather, one reduction, reductions, tied
        embedding, optimizer update)."""
        key = (data, tensor, pipeline, context, expert, zero, batches if zero > 1 else 1)
        found = self._traffic.get(key)
        if found is not None:
            return found
        software, efficiency = self.software, self.constants.gradient_efficiency
        dense, routed = self.params_on_rank(tensor, pipeline, expert)
        gathers, reductions = zero_passes_core(zero, batches, True, True, zero >= 2)
        # Stage 0 gathers summed gradients (the all-reduce's second half), the others updated 16-bit weights.
        weight_bytes = 2.0 if zero else software.gradient_bytes
        gather = reduce = 0.0
        ranks = data * context
        per_layer = software.gather_calls_per_layer if zero == 3 else software.sync_calls_per_layer
        calls = max(per_layer * self.model.layers / pipeline, 1.0)
        for params, group, stride in (
            (dense, ranks, tensor),
            (routed, ranks // expert, tensor * expert),
        ):
            if group > 1 and params:
                speed, _ = group_bandwidth(self.cluster, group, stride, efficiency)
                share = (group - 1) / group * params / speed
                latency = calls * ring_latency_s(self.cluster, group, stride)
                gather += share * weight_bytes + latency
                reduce += share * software.gradient_bytes + latency
        shared = 0.0
        if pipeline > 1 and self.model.tied:
            # First and last rank add up the gradients of the embedding that both hold.
            size = self.model.vocabulary * self.model.hidden / tensor * software.gradient_bytes
            shared = p2p_time_s(self.cluster, size, tensor * context * data, efficiency)
        shards = ranks if zero else 1
        touched = dense / shards + routed / max(shards / expert, 1.0)
        found = (
            gathers * gather + reductions * reduce + shared,
            gather,
            reduce,
            reductions,
            shared,
            touched * self.optimizer_bytes / self.memory_rate,
        )
        self._traffic[key] = found
        return found


def _hidden_sync(
    zero: int, batches: int, gather: float, reduce: float, reductions: int, forward: float, backward: float
) -> float:
    """Seconds of data-parallel traffic beside compute: reductions beside their micro-batch's backward pass, the gather
    of updated weights beside the next forward pass; at stage 3 gathers beside every pass."""
    if zero == 3:
        return batches * (min(gather, forward) + min(gather + reduce, backward))
    if zero:
        return reductions * min(reduce, backward) + min(gather, forward)
    return min(reduce + gather, backward)
