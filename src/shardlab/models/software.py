"""What the training software does that the hardware does not decide: fusions, overlap, precision of gradients.

These are facts about released code, not fitted numbers; the two exceptions say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import choice


@dataclass(frozen=True)
class Software:
    """One training stack.

    Attributes:
        name: a name of :data:`SOFTWARE`.
        flash_attention: attention scores never reach memory, and masked blocks are skipped.
        gradient_bytes: bytes per parameter of the gradients that data parallelism sums.
        accumulation_bytes: memory traffic per parameter and micro-batch that accumulating a weight gradient adds
            to the matrix product's own 16-bit result: 6 with fp32 accumulation fused into the product, or with
            16-bit accumulation by autograd; 10 with a separate fp32 addition.
        overlaps_tensor: in the backward pass, tensor-parallel collectives run beside weight-gradient products.
        overlaps_gradients: gradient reduction runs beside the last micro-batch's backward pass, and the
            all-gather of updated weights beside the next forward pass.
        overlaps_pipeline: sends and receives of the interleaved schedule run beside compute.
        sync_calls_per_layer: collectives per layer that reduce gradients (and gather updated weights) at stages 0 to 2; 0
            for one call on one contiguous buffer.
        gather_calls_per_layer: collectives per layer and pass at stage 3: 1 when a layer is one flat unit, 12 when
            every weight, bias and norm of a GPT layer goes alone.
        recipe: bytes per parameter, a name of :data:`shardlab.models.memory.RECIPES`.
        layer_overhead_s: host time per layer and micro-batch that kernels do not hide, seconds (fitted where not 0).
        shared_node_slowdown: relative slowdown of pipelines whose tensor-parallel groups share a node
            (1 < tensor parallel < GPUs per node); observed and fitted where not 0, not explained.
        source: who says so.
    """

    name: str
    flash_attention: bool
    gradient_bytes: float
    accumulation_bytes: float
    overlaps_tensor: bool
    overlaps_gradients: bool
    overlaps_pipeline: bool
    sync_calls_per_layer: int
    gather_calls_per_layer: int
    recipe: str
    layer_overhead_s: float
    shared_node_slowdown: float
    source: str


_SOFTWARE = (
    Software(
        name="megatron-core",
        flash_attention=True,
        gradient_bytes=4.0,
        accumulation_bytes=6.0,
        overlaps_tensor=True,
        overlaps_gradients=True,
        overlaps_pipeline=True,
        sync_calls_per_layer=1,
        gather_calls_per_layer=1,
        recipe="megatron-18",
        layer_overhead_s=0.0,
        shared_node_slowdown=0.0,
        source="Megatron Core with bf16, flash attention, --overlap-grad-reduce, --overlap-param-gather and "
        "--overlap-p2p-communication; fp32 gradient accumulation fused into the weight-gradient product",
    ),
    Software(
        name="megatron-2022",
        flash_attention=False,
        gradient_bytes=4.0,
        accumulation_bytes=6.0,
        overlaps_tensor=True,
        overlaps_gradients=False,
        overlaps_pipeline=False,
        sync_calls_per_layer=0,
        gather_calls_per_layer=1,
        recipe="megatron-18",
        layer_overhead_s=0.0,
        shared_node_slowdown=0.0,
        source="Korthikanti et al. (arXiv 2205.05198), sections 6.2 and 6.3: backward all-reduce overlapped with "
        "weight gradients, gradient all-reduce not overlapped. Also the Megatron-LM baseline of MegaScale "
        "(arXiv 2402.15627), whose attention kernel is not stated",
    ),
    Software(
        name="megatron-2021",
        flash_attention=False,
        gradient_bytes=4.0,
        accumulation_bytes=10.0,
        overlaps_tensor=False,
        overlaps_gradients=False,
        overlaps_pipeline=False,
        sync_calls_per_layer=0,
        gather_calls_per_layer=1,
        recipe="megatron-18",
        layer_overhead_s=0.0,
        shared_node_slowdown=0.0,
        source="SC21 (arXiv 2104.04473), section 4: fused softmax, bias+GeLU and bias+dropout+add; no overlap named. "
        "fp32 gradients added by a separate kernel: assumed from the code of that time",
    ),
    Software(
        name="megatron-deepspeed",
        flash_attention=False,
        gradient_bytes=2.0,
        accumulation_bytes=6.0,
        overlaps_tensor=False,
        overlaps_gradients=False,
        overlaps_pipeline=False,
        sync_calls_per_layer=0,
        gather_calls_per_layer=12,
        recipe="deepspeed-20",
        layer_overhead_s=1.28e-3,
        shared_node_slowdown=0.091,
        source="vTrain (arXiv 2312.12391) and its code: Megatron-DeepSpeed on A100 in fp16, full recomputation, 1F1B. "
        "layer_overhead_s and shared_node_slowdown: tools/fit_constants.py",
    ),
)

SOFTWARE = tuple([item.name for item in _SOFTWARE])
DEFAULT_SOFTWARE = "megatron-core"


def software_named(software: str | Software) -> Software:
    """The :class:`Software` of that name; a Software is handed through.

    Raises:
        ValueError: no software has that name.
    """
    if isinstance(software, Software):
        return software
    return _SOFTWARE[SOFTWARE.index(choice("software", software, SOFTWARE))]
