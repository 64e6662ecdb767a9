"""A layout: parallel degrees, sharding, micro-batch, recomputation, schedule; and what does not divide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import choice, count
from shardlab.hardware import Cluster
from shardlab.models.memory import RECOMPUTATIONS
from shardlab.models.steptime import SCHEDULES, V_SCHEDULES
from shardlab.transformer import Transformer


@dataclass(frozen=True)
class Layout:
    """How a training step is split. Build one with :func:`layout`.

    Attributes:
        data, tensor, pipeline, context: degrees; their product is the number of GPUs.
        expert: ranks that share the routed experts, taken from the data-parallel ones.
        zero_stage: 0 to 3, sharding over the data and context ranks.
        micro_batch: sequences per micro-batch and rank.
        recompute: ``"none"``, ``"selective"`` or ``"full"``.
        sequence_parallel: norms and residuals split over the tensor-parallel ranks.
        schedule: a name of :data:`shardlab.models.steptime.SCHEDULES`.
        chunks: model chunks per pipeline rank (interleaved-1f1b; the V schedules have 2).
    """

    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    zero_stage: int
    micro_batch: int
    recompute: str
    sequence_parallel: bool
    schedule: str
    chunks: int

    @property
    def ranks(self) -> int:
        """GPUs that the layout uses."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def model_parallel(self) -> int:
        """GPUs that share one copy of the model: tensor x pipeline x context."""
        return self.tensor * self.pipeline * self.context

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields in the order that :class:`shardlab.models.steptime.Evaluator` takes them."""
        return (
            self.data,
            self.tensor,
            self.pipeline,
            self.context,
            self.expert,
            self.zero_stage,
            self.micro_batch,
            self.recompute,
            self.sequence_parallel,
            self.schedule,
            self.chunks,
        )

    @property
    def text(self) -> str:
        """For example ``DP 16 x TP 8 x PP 8, ZeRO-1, micro-batch 1, SP, no recomputation, interleaved-1f1b (5 chunks)``."""
        parts = [f"DP {self.data}", f"TP {self.tensor}", f"PP {self.pipeline}"]
        if self.context > 1:
            parts.append(f"CP {self.context}")
        words = [" x ".join(parts)]
        if self.expert > 1:
            words.append(f"EP {self.expert}")
        words.append(f"ZeRO-{self.zero_stage}")
        words.append(f"micro-batch {self.micro_batch}")
        if self.sequence_parallel:
            words.append("SP")
        words.append("no recomputation" if self.recompute == "none" else self.recompute + " recomputation")
        if self.pipeline > 1:
            words.append(self.schedule + (f" ({self.chunks} chunks)" if self.chunks > 1 else ""))
        return ", ".join(words)


def layout_of(key: Any) -> Layout:
    """The layout with that :attr:`Layout.key`."""
    (
        data,
        tensor,
        pipeline,
        context,
        expert,
        zero,
        micro_batch,
        recompute,
        sequence_parallel,
        schedule,
        chunks,
    ) = key
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        zero_stage=zero,
        micro_batch=micro_batch,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        schedule=schedule,
        chunks=chunks,
    )


def layout(
    data: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    expert: int = 1,
    zero_stage: int = 0,
    micro_batch: int = 1,
    recompute: str = "none",
    sequence_parallel: bool | None = None,
    schedule: str | None = None,
    chunks: int = 1,
) -> Layout:
    """A :class:`Layout` with its own sizes checked; :func:`check` holds it against a model and a cluster.

    Args:
        sequence_parallel: by default on when ``tensor`` is above 1.
        schedule: by default 1f1b, or interleaved-1f1b when ``chunks`` is above 1.
        others: as in :class:`Layout`.

    Raises:
        ValueError: a degree is not a whole number from 1, or a name is unknown.
    """
    pieces = count("chunks", chunks)
    kind = (
        ("interleaved-1f1b" if pieces > 1 else "1f1b")
        if schedule is None
        else choice("schedule", schedule, SCHEDULES)
    )
    if kind in V_SCHEDULES:
        if pieces not in (1, 2):
            raise ValueError(
                f"chunks must be 2 for schedule {kind!r}, which folds the model once, not {pieces}"
            )
        pieces = 2
    elif pieces > 1 and kind != "interleaved-1f1b":
        raise ValueError(
            f"chunks must be 1 for schedule {kind!r}: only interleaved-1f1b takes more, not {pieces}"
        )
    ranks = count("tensor", tensor)
    return Layout(
        data=count("data", data),
        tensor=ranks,
        pipeline=count("pipeline", pipeline),
        context=count("context", context),
        expert=count("expert", expert),
        zero_stage=count("zero_stage", zero_stage, least=0, most=3),
        micro_batch=count("micro_batch", micro_batch),
        recompute=choice("recompute", recompute, RECOMPUTATIONS),
        sequence_parallel=ranks > 1 if sequence_parallel is None else bool(sequence_parallel) and ranks > 1,
        schedule=kind,
        chunks=pieces,
    )


# ---------------------------------------------------------------- what does not divide


def problem(
    model: Transformer, gpus: int, global_batch: int, sequence: int, key: Any
) -> tuple[str, str] | None:
    """(reason, message) if the layout cannot run, else None. Memory is another matter."""
    data, tensor, pipeline, context, expert, _, micro_batch, _, sequence_parallel, schedule, chunks = key
    product = data * tensor * pipeline * context
    if product != gpus:
        return (
            "degrees",
            f"data x tensor x pipeline x context must be the {gpus} GPUs of the cluster, not "
            f"{data} x {tensor} x {pipeline} x {context} = {product}",
        )
    if model.heads % tensor:
        return (
            "attention heads",
            f"tensor must divide heads = {model.heads}, as whole heads are dealt to the ranks, not {tensor}",
        )
    if model.kv_heads % tensor and tensor % model.kv_heads:
        return (
            "key/value heads",
            f"tensor must divide kv_heads = {model.kv_heads} or be a multiple of it (heads are then copied), not {tensor}",
        )
    for label, width in (("ffn", model.ffn), ("expert_ffn", model.expert_ffn)):
        if width % tensor:
            return ("MLP width", f"tensor must divide {label} = {width}, not {tensor}")
    if model.layers % (pipeline * chunks):
        return (
            "layers",
            f"pipeline x chunks must divide layers = {model.layers}, not {pipeline} x {chunks} = {pipeline * chunks}",
        )
    if pipeline == 1 and chunks > 1:
        return ("schedule", f"chunks must be 1 without pipeline parallelism, not {chunks}")
    if sequence % context:
        return ("sequence", f"context must divide sequence = {sequence}, not {context}")
    if sequence_parallel and (sequence // context) % tensor:
        return (
            "sequence",
            f"tensor must divide sequence / context = {sequence // context} for sequence parallelism, not {tensor}",
        )
    if model.experts:
        if model.experts % expert:
            return ("experts", f"expert must divide experts = {model.experts}, not {expert}")
        if data % expert:
            return (
                "experts",
                f"expert must divide data = {data}, from whose ranks it is taken, not {expert}",
            )
    elif expert > 1:
        return ("experts", f"expert must be 1 for a dense model, not {expert}")
    if global_batch % (data * micro_batch):
        return (
            "batch",
            f"data x micro_batch must divide global_batch = {global_batch}, not {data} x {micro_batch} = "
            f"{data * micro_batch}",
        )
    batches = global_batch // (data * micro_batch)
    if schedule == "interleaved-1f1b" and chunks > 1 and batches % pipeline:
        return (
            "micro-batches",
            f"micro-batches must be a multiple of pipeline = {pipeline} for interleaved-1f1b, not {batches} "
            f"(= {global_batch} / ({data} x {micro_batch}))",
        )
    return None


def check(model: Transformer, cluster: Cluster, layout: Layout, global_batch: int, sequence: int) -> None:
    """Say what does not divide, as a ValueError; return None when the layout can run (if it fits in memory).

    Fewer micro-batches than stages is allowed: :func:`predict` warns and shows the bubble.

    Raises:
        ValueError: degrees that do not multiply to the GPUs; heads, key/value heads or MLP width that the tensor degree
            does not divide; layers and stages x chunks; sequence and context; experts; batch; micro-batches of an
            interleaved schedule.
    """
    found = problem(
        model, cluster.gpus, count("global_batch", global_batch), count("sequence", sequence), layout.key
    )
    if found is not None:
        raise ValueError(found[1])
