"""Where the memory goes: model states under ZeRO and FSDP, buffers, and the whole bill of one device.

Sizes are bytes; a text of this module says GB (10**9) or GiB (2**30). Recipes of bytes per parameter, activations and
the published calculators live in ``memory_recipes``, ``memory_activations`` and ``memory_calculators`` and are
names of this module too. Symbols: Ψ parameters, N data-parallel ranks, K bytes per parameter that ZeRO-1 shards.

:func:`states_core` takes plain numbers, checks nothing and returns a plain number, for search loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.checks import choice, count, non_negative, positive
from shardlab.models.memory_activations import (
    RECOMPUTATIONS,
    LayerActivations,
    StageActivations,
    head_core,
    in_flight_core,
    in_flight_micro_batches,
    layer_activations,
    layer_core,
    layer_parts_core,
    mlp_saved_width,
    routing_bytes,
    selective_saving,
    stage_activations,
)
from shardlab.models.memory_calculators import (
    Estimate,
    MegatronEstimate,
    deepspeed_zero2_estimate,
    deepspeed_zero3_estimate,
    megatron_estimate,
)
from shardlab.models.memory_recipes import (
    DEFAULT_RECIPE,
    RECIPE_NAMES,
    RECIPES,
    Recipe,
    adafactor_optimizer_bytes,
    custom_recipe,
    recipe_named,
)
from shardlab.units import GB, GIB

__all__ = [
    "CATEGORIES",
    "CUDA_CONTEXT_BYTES",
    "DEEPSPEED_BUCKET_ELEMENTS",
    "DEFAULT_RECIPE",
    "FSDP_STRATEGIES",
    "RECIPES",
    "RECIPE_NAMES",
    "RECOMPUTATIONS",
    "Estimate",
    "LayerActivations",
    "MegatronEstimate",
    "MemoryBudget",
    "MemoryItem",
    "ModelStates",
    "Recipe",
    "ShardingReading",
    "StageActivations",
    "adafactor_optimizer_bytes",
    "budget",
    "custom_recipe",
    "ddp_bucket_bytes",
    "deepspeed_bucket_bytes",
    "deepspeed_zero2_estimate",
    "deepspeed_zero3_estimate",
    "fsdp_states",
    "head_core",
    "in_flight_core",
    "in_flight_micro_batches",
    "largest_model_params",
    "layer_activations",
    "layer_core",
    "layer_parts_core",
    "megatron_estimate",
    "mlp_saved_width",
    "model_states",
    "recipe_named",
    "routing_bytes",
    "selective_saving",
    "shard_group",
    "sharding_reading",
    "stage_activations",
    "states_core",
    "unsharded_bytes",
]

# ---------------------------------------------------------------- model states under ZeRO and FSDP


def _zero_stage(value: int) -> int:
    return count("zero_stage", value, least=0, most=3)


def shard_group(data_parallel: int, shard_ranks: int | None = None) -> int:
    """Ranks over which one copy of the states is sharded: all of them, or a group that divides them.

    Raises:
        ValueError: ``shard_ranks`` does not divide ``data_parallel``.
    """
    ranks = count("data_parallel", data_parallel)
    if shard_ranks is None:
        return ranks
    group = count("shard_ranks", shard_ranks, most=ranks)
    if ranks % group:
        raise ValueError(
            f"shard_ranks must divide data_parallel = {ranks} so that every group holds one whole copy, not {group}"
        )
    return group


def states_core(
    params: float, shards: float, zero_stage: int, weights: float, gradients: float, optimizer: float
) -> float:
    """Bytes of model states on one rank, unchecked: weights + gradients + optimizer, sharded as the stage says.

    ``weights``, ``gradients`` and ``optimizer`` are bytes per parameter; ``optimizer`` is
    :attr:`Recipe.stage1_bytes`.
    """
    if zero_stage == 0:
        return params * (weights + gradients + optimizer)
    if zero_stage == 1:
        return params * (weights + gradients + optimizer / shards)
    if zero_stage == 2:
        return params * (weights + (gradients + optimizer) / shards)
    return params * (weights + gradients + optimizer) / shards


@dataclass(frozen=True)
class ModelStates:
    """Model states of one rank, in bytes. The first five sizes are on the device, ``host`` is in CPU memory.

    Attributes:
        params: Ψ, parameters of the (part of the) model that this data-parallel group replicates or shards.
        data_parallel: ``N``.
        shard_ranks: ranks that share one copy; N unless sharding is hybrid.
        zero_stage: 0 (plain data parallel) to 3.
        recipe: the recipe's name.
        parameters: bytes of the weights on the device, as in :class:`Recipe`.
        gradients: bytes of the gradients on the device.
        master_weights: bytes of the weights' fp32 copy on the device.
        master_gradients: bytes of the gradients' fp32 copy on the device.
        optimizer: bytes of the optimizer's state on the device.
        host: pairs (label, bytes per rank) of what was offloaded; empty without offload.
    """

    params: float
    data_parallel: int
    shard_ranks: int
    zero_stage: int
    recipe: str
    parameters: float
    gradients: float
    master_weights: float
    master_gradients: float
    optimizer: float
    host: tuple[tuple[str, float], ...]

    @property
    def items(self) -> tuple[tuple[str, float], ...]:
        """Pairs (label, device bytes), largest copies included even when they are zero."""
        return (
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("master weights", self.master_weights),
            ("master gradients", self.master_gradients),
            ("optimizer", self.optimizer),
        )

    @property
    def total_bytes(self) -> float:
        """Device bytes of all items."""
        return _total(self.items)

    @property
    def host_bytes(self) -> float:
        """CPU memory that this rank's offloaded states take, bytes."""
        return _total(self.host)

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes for each parameter, ``total_bytes / params``: 16 without sharding, towards 16/N at stage 3 (default recipe)."""
        return self.total_bytes / self.params


def _total(items: tuple[tuple[str, float], ...]) -> float:
    total = 0.0
    for _, n_bytes in items:
        total += n_bytes
    return total


def model_states(
    params: float,
    data_parallel: int = 1,
    zero_stage: int = 0,
    recipe: str | Recipe = DEFAULT_RECIPE,
    shard_ranks: int | None = None,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
) -> ModelStates:
    """Bytes of parameters, gradients and optimizer state on one rank.

    With 2 + 2 + K bytes per parameter (K = 12 for mixed-precision Adam) and N ranks: stage 0 ``(4+K) Ψ``,
    stage 1 ``4Ψ + KΨ/N``, stage 2 ``2Ψ + (2+K)Ψ/N``, stage 3 ``(4+K)Ψ/N``.

    Args:
        params: Ψ; under tensor or pipeline parallelism the parameters of one model shard.
        data_parallel: N, ranks that hold the same shard of the model.
        zero_stage: 0 plain data parallel, 1 shards the optimizer, 2 also the gradients, 3 also the parameters.
        recipe: a name in ``RECIPES`` or a :class:`Recipe`.
        shard_ranks: hybrid sharding: shard over groups of this size and replicate across groups (it divides N).
        offload_optimizer: keep gradients, master copies and optimizer state in CPU memory (stage 1 and up).
        offload_parameters: keep the sharded parameters in CPU memory too (stage 3 only).

    Raises:
        ValueError: a size is out of range, ``shard_ranks`` does not divide N, or offload does not suit the stage.

    Shards are taken as equal: real ones are padded by up to N-1 elements per tensor. Gathered layers,
    buckets, activations and the CUDA context come on top (see :func:`budget`).

    Source: Rajbhandari et al., ZeRO (arXiv 1910.02054), sections 3.1 and 5; hybrid sharding: Zhao et al.,
    PyTorch FSDP (arXiv 2304.11277), section 3.2.2; offload: Ren et al., ZeRO-Offload (arXiv 2101.06840)
    (2Ψ on the device, 14Ψ/N per rank on the host with optimizer offload at stage 2).
    """
    size = positive("params", params, "parameters")
    ranks = count("data_parallel", data_parallel)
    stage = _zero_stage(zero_stage)
    per = recipe_named(recipe)
    shards = shard_group(ranks, shard_ranks)
    if offload_optimizer and stage == 0:
        raise ValueError(
            "offload_optimizer must go with zero_stage 1, 2 or 3: stage 0 has no sharded optimizer, not 0"
        )
    if offload_parameters and stage != 3:
        raise ValueError(
            f"offload_parameters must go with zero_stage 3, which shards the parameters, not {stage}"
        )

    parameters = size * per.parameters / (shards if stage == 3 else 1)
    gradients = size * per.gradients / (shards if stage >= 2 else 1)
    divisor = shards if stage >= 1 else 1
    master_weights = size * per.master_weights / divisor
    master_gradients = size * per.master_gradients / divisor
    optimizer = size * per.optimizer / divisor

    host: list[tuple[str, float]] = []
    if offload_parameters:
        host.append(("parameters", parameters))
        parameters = 0.0
    if offload_optimizer:
        host.append(("gradients", size * per.gradients / shards))
        host.append(("master weights", master_weights))
        host.append(("master gradients", master_gradients))
        host.append(("optimizer", optimizer))
        gradients = master_weights = master_gradients = optimizer = 0.0
    return ModelStates(
        params=size,
        data_parallel=ranks,
        shard_ranks=shards,
        zero_stage=stage,
        recipe=per.name,
        parameters=parameters,
        gradients=gradients,
        master_weights=master_weights,
        master_gradients=master_gradients,
        optimizer=optimizer,
        host=tuple(host),
    )


FSDP_STRATEGIES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def fsdp_states(
    params: float, ranks: int, strategy: str, ranks_per_node: int = 8, recipe: str | Recipe = "fp32-adam-16"
) -> ModelStates:
    """Model states of one rank under a PyTorch FSDP sharding strategy.

    FULL_SHARD is ZeRO-3, SHARD_GRAD_OP is ZeRO-2 (there is no FSDP for stage 1), NO_SHARD is plain data
    parallel; the HYBRID ones do the same inside a node of ``ranks_per_node`` and replicate across nodes.
    FSDP's default mixed precision keeps fp32 shards, hence the default recipe; the 16-bit copy exists only
    for the units in use (:func:`unsharded_bytes`).

    Raises:
        ValueError: an unknown strategy, or nodes that ``ranks`` does not fill.

    Source: Zhao et al., PyTorch FSDP (arXiv 2304.11277), sections 3.2 and 4.4.
    """
    kind = choice("strategy", strategy, FSDP_STRATEGIES)
    hybrid = kind in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
    stage = 0 if kind == "NO_SHARD" else 2 if kind in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2") else 3
    return model_states(params, ranks, stage, recipe, shard_ranks=ranks_per_node if hybrid else None)


def largest_model_params(
    memory_bytes: float,
    data_parallel: int = 1,
    zero_stage: int = 0,
    recipe: str | Recipe = DEFAULT_RECIPE,
    model_parallel: int = 1,
) -> float:
    """Parameters whose model states alone fill ``memory_bytes`` on each rank: an upper bound on the model.

    ``model_parallel`` ranks (tensor x pipeline) each hold an equal part of the model.

    Raises:
        ValueError: an argument is out of range.

    Source: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 5.4 and Table 2 (left half).
    """
    memory = positive("memory_bytes", memory_bytes, "bytes")
    parts = count("model_parallel", model_parallel)
    return memory * parts / model_states(1.0, data_parallel, zero_stage, recipe).total_bytes


@dataclass(frozen=True)
class ShardingReading:
    """What measured bytes say about sharding: bytes per parameter at each N, and a verdict.

    Attributes:
        bytes_per_parameter: one number per reading.
        verdict: ``"unsharded 16-bit weights"``, ``"replicated states"``, ``"sharded"`` or ``"unclear"``.
    """

    bytes_per_parameter: tuple[float, ...]
    verdict: str


def sharding_reading(params: float, readings: list[tuple[int, float]]) -> ShardingReading:
    """Read measured device memory at several N: does it fall with N, and which copies would explain it?

    A figure near 2 bytes per parameter that does not move with N is one whole 16-bit copy of the weights
    (loaded whole, gathered, or cached); a figure that halves when N doubles is sharded. Read as ``bytes ~ N**-k``
    between the smallest and the largest N: k above 0.7 is sharded, within 0.15 of 0 is not, the rest is unclear
    (ZeRO-1 and 2, whose replicated part stays, belong there).

    Args:
        params: Ψ.
        readings: pairs (N, bytes measured on one rank), two or more with different N.

    Raises:
        ValueError: fewer than two readings, equal N, or sizes out of range.
    """
    size = positive("params", params, "parameters")
    if len(readings) < 2:
        raise ValueError(f"readings must hold at least two pairs (ranks, bytes), not {len(readings)}")
    pairs = sorted(
        [
            (count("ranks in readings", n), positive("bytes in readings", used, "bytes"))
            for n, used in readings
        ]
    )
    (fewest, most_used), (most, least_used) = pairs[0], pairs[-1]
    if fewest == most:
        raise ValueError(f"readings must have different numbers of ranks, not {fewest} twice")
    slope = math.log(most_used / least_used) / math.log(most / fewest)
    each = tuple([used / size for _, used in pairs])
    if slope > 0.7:
        verdict = "sharded"
    elif abs(slope) < 0.15:
        verdict = "unsharded 16-bit weights" if 1.7 <= each[0] <= 2.6 else "replicated states"
    else:
        verdict = "unclear"
    return ShardingReading(bytes_per_parameter=each, verdict=verdict)


# ---------------------------------------------------------------- buffers

CUDA_CONTEXT_BYTES = 1.0 * GB
"""A round figure for the CUDA context and library workspaces of one process.

They take 0.3 to 1 GB (NAIRR GPU estimation guide); measure yours: the memory in use after the first kernel.
"""

DEEPSPEED_BUCKET_ELEMENTS = 5e8
"""DeepSpeed's default ``reduce_bucket_size`` and ``allgather_bucket_size``, in elements."""


def ddp_bucket_bytes(
    params: float, gradient_bytes: float = 4.0, gradient_as_bucket_view: bool = False
) -> float:
    """Extra bytes of PyTorch DDP's buckets: a second copy of all gradients, or none when they are views.

    Raises:
        ValueError: a size is out of range.

    Source: PyTorch, DistributedDataParallel, ``gradient_as_bucket_view``.
    """
    size = positive("params", params, "parameters")
    width = positive("gradient_bytes", gradient_bytes, "bytes")
    return 0.0 if gradient_as_bucket_view else size * width


def deepspeed_bucket_bytes(
    bucket_elements: float = DEEPSPEED_BUCKET_ELEMENTS, element_bytes: float = 2.0, overlap_comm: bool = False
) -> float:
    """Bytes of one of DeepSpeed's two buckets (reduce, all-gather): ``elements * bytes``, times 4.5 with overlap.

    Two default buckets are 2 GB without ``overlap_comm`` and 9 GB with it: more than ZeRO saves on a model
    below about one billion parameters.

    Raises:
        ValueError: a size is out of range.

    Source: Hugging Face Transformers, DeepSpeed integration, section on ``overlap_comm``.
    """
    size = positive("bucket_elements", bucket_elements, "elements") * positive(
        "element_bytes", element_bytes, "bytes"
    )
    return size * 4.5 if overlap_comm else size


def unsharded_bytes(
    largest_unit_params: float,
    parameter_bytes: float = 2.0,
    gradient_bytes: float = 2.0,
    prefetched_units: int = 0,
) -> float:
    """Bytes of the layer that ZeRO-3 or FSDP holds whole while it computes: weights, gradients, prefetched weights.

    ``largest_unit * (parameter_bytes * (1 + prefetched_units) + gradient_bytes)``; DeepSpeed counts 2 + 2 and
    no prefetch, FSDP's backward prefetch holds one more unit.

    Raises:
        ValueError: a size is out of range.

    Source: DeepSpeed, docs/code-docs/source/memory.rst (4 bytes per parameter of the largest layer); Zhao et
    al., PyTorch FSDP (arXiv 2304.11277), sections 3.2.1 and 3.3.2.
    """
    size = positive("largest_unit_params", largest_unit_params, "parameters")
    weights = non_negative("parameter_bytes", parameter_bytes, "bytes")
    gradients = non_negative("gradient_bytes", gradient_bytes, "bytes")
    ahead = count("prefetched_units", prefetched_units, least=0)
    return size * (weights * (1 + ahead) + gradients)


# ---------------------------------------------------------------- the whole bill

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "other")


@dataclass(frozen=True)
class MemoryItem:
    """One line of the memory bill: a label, one of ``CATEGORIES`` and bytes."""

    label: str
    category: str
    n_bytes: float


@dataclass(frozen=True)
class MemoryBudget:
    """The memory bill of one device.

    Attributes:
        items: the lines, zeros left out.
        capacity_bytes: the device's memory, or None.
    """

    items: tuple[MemoryItem, ...]
    capacity_bytes: float | None

    @property
    def total_bytes(self) -> float:
        """All lines together."""
        return _total(tuple([(item.label, item.n_bytes) for item in self.items]))

    @property
    def headroom_bytes(self) -> float:
        """Capacity less total (negative when it does not fit); infinite without a capacity."""
        return math.inf if self.capacity_bytes is None else self.capacity_bytes - self.total_bytes

    @property
    def fits(self) -> bool:
        """True when the total is within the capacity (or none was given)."""
        return self.headroom_bytes >= 0

    def category_bytes(self, category: str) -> float:
        """Bytes of one of ``CATEGORIES``."""
        kind = choice("category", category, CATEGORIES)
        return _total(tuple([(item.label, item.n_bytes) for item in self.items if item.category == kind]))

    def text(self, unit: str = "GB") -> str:
        """The bill as lines of text in ``"GB"`` (10**9 bytes) or ``"GiB"`` (2**30 bytes)."""
        factor = GB if choice("unit", unit, ("GB", "GiB")) == "GB" else GIB
        lines = [f"{item.label:36s} {item.n_bytes / factor:10.3f} {unit}" for item in self.items]
        lines.append(f"{'total':36s} {self.total_bytes / factor:10.3f} {unit}")
        if self.capacity_bytes is not None:
            word = "fits, spare" if self.fits else "does not fit, short by"
            lines.append(f"{word:36s} {abs(self.headroom_bytes) / factor:10.3f} {unit}")
        return "\n".join(lines)


def budget(
    states: ModelStates,
    activations: StageActivations | None = None,
    bucket_bytes: float = 0.0,
    unsharded_layer_bytes: float = 0.0,
    context_bytes: float = CUDA_CONTEXT_BYTES,
    capacity_bytes: float | None = None,
) -> MemoryBudget:
    """The whole bill of one device: model states, activations, buckets, unsharded layer, CUDA context.

    It adds peaks that need not fall at the same moment, and knows nothing of fragmentation: an upper estimate
    of what tensors need, a lower one of what an allocator reserves.

    Raises:
        ValueError: a size is negative, or the capacity is not above 0.
    """
    lines = [
        MemoryItem(label="parameters", category="parameters", n_bytes=states.parameters),
        MemoryItem(label="gradients", category="gradients", n_bytes=states.gradients),
        MemoryItem(label="master weights", category="optimizer", n_bytes=states.master_weights),
        MemoryItem(label="master gradients", category="gradients", n_bytes=states.master_gradients),
        MemoryItem(label="optimizer state", category="optimizer", n_bytes=states.optimizer),
    ]
    if activations is not None:
        lines += [
            MemoryItem(label="activations: " + label, category="activations", n_bytes=n_bytes)
            for label, n_bytes in activations.items
        ]
    buckets = non_negative("bucket_bytes", bucket_bytes, "bytes")
    unsharded = non_negative("unsharded_layer_bytes", unsharded_layer_bytes, "bytes")
    context = non_negative("context_bytes", context_bytes, "bytes")
    lines += [
        MemoryItem(label="communication buckets", category="other", n_bytes=buckets),
        MemoryItem(label="unsharded layer", category="other", n_bytes=unsharded),
        MemoryItem(label="CUDA context", category="other", n_bytes=context),
    ]
    return MemoryBudget(
        items=tuple([line for line in lines if line.n_bytes > 0]),
        capacity_bytes=None
        if capacity_bytes is None
        else positive("capacity_bytes", capacity_bytes, "bytes"),
    )
