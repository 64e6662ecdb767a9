"""One layout predicted: step time by cause with its bracket, memory, MFU and HFU, warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardlab.checks import choice, count
from shardlab.hardware import Cluster
from shardlab.models.kernels import CONSTANTS, Constants
from shardlab.models.memory import MemoryBudget, MemoryItem, Recipe, recipe_named
from shardlab.models.plan_layout import Layout, check, layout, problem
from shardlab.models.software import DEFAULT_SOFTWARE, Software, software_named
from shardlab.models.steptime import MEMORY_LABELS, TIME_LABELS, Evaluator
from shardlab.transformer import Transformer
from shardlab.units import GB, format_time

if TYPE_CHECKING:
    from shardlab.models.published import PublishedStep

_MEMORY_CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "activations",
    "activations",
    "other",
    "other",
)


@dataclass(frozen=True)
class Prediction:
    """What one layout costs. Times in seconds, for one optimizer step.

    Attributes:
        layout: the layout.
        micro_batches: per pipeline and step.
        step_time_s: the best estimate.
        step_time_bracket_s: with all communication hidden, and with none.
        items: (cause, seconds), adding up to ``step_time_s``; the causes are
            :data:`shardlab.models.steptime.TIME_LABELS`.
        memory: the bill of the fullest device, with its capacity.
        mfu: model FLOP / (time x dense bf16 peak).
        hfu: the same with recomputed FLOP.
        tokens_per_s: of the whole cluster.
        model_flops_per_gpu: model FLOP/s of one GPU.
        bubble_of_total: pipeline bubble / (bubble + work of a stage's layers).
        bubble_of_ideal: bubble / that work.
        warnings: sentences.
    """

    layout: Layout
    micro_batches: int
    step_time_s: float
    step_time_bracket_s: tuple[float, float]
    items: tuple[tuple[str, float], ...]
    memory: MemoryBudget
    mfu: float
    hfu: float
    tokens_per_s: float
    model_flops_per_gpu: float
    bubble_of_total: float
    bubble_of_ideal: float
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the memory bill is within the device."""
        return self.memory.fits

    def seconds(self, label: str) -> float:
        """Seconds of one cause."""
        return self.items[TIME_LABELS.index(choice("label", label, TIME_LABELS))][1]

    @property
    def text(self) -> str:
        """The layout, the step with its bracket, where the time goes, MFU and HFU, memory and warnings, as lines."""
        low, high = self.step_time_bracket_s
        lines = [
            self.layout.text,
            f"step {format_time(self.step_time_s)} (all communication hidden {format_time(low)}, none hidden "
            f"{format_time(high)}), {self.micro_batches} micro-batches",
            f"MFU {100 * self.mfu:.1f} %, HFU {100 * self.hfu:.1f} % of dense bf16 peak, "
            f"{self.model_flops_per_gpu / 1e12:.0f} model TFLOP/s per GPU, {self.tokens_per_s:.0f} tokens/s",
        ]
        for label, seconds in self.items:
            if seconds > 0:
                share = 100 * seconds / self.step_time_s
                lines.append(f"  {label:32s} {right_aligned(format_time(seconds), 10)} {share:5.1f} %")
        lines.append(self.memory.text())
        lines += ["warning: " + words for words in self.warnings]
        return "\n".join(lines)

    @property
    def communication_s(self) -> float:
        """Exposed communication of all kinds."""
        total = 0.0
        for label, seconds in self.items:
            if label.endswith("communication") or label == "pipeline transfers":
                total += seconds
        return total


def right_aligned(text: str, width: int) -> str:
    # Format widths count bytes under MicroPython, and µ has two.
    return " " * (width - len(text)) + text


def evaluator_for(
    model: Transformer,
    cluster: Cluster,
    global_batch: int,
    sequence: int,
    software: str | Software,
    recipe: str | Recipe | None,
    constants: Constants,
) -> Evaluator:
    stack = software_named(software)
    return Evaluator(
        model,
        cluster,
        stack,
        recipe_named(stack.recipe if recipe is None else recipe),
        constants,
        count("global_batch", global_batch),
        count("sequence", sequence),
    )


def predict(
    model: Transformer,
    cluster: Cluster,
    layout: Layout,
    global_batch: int,
    sequence: int,
    software: str | Software = DEFAULT_SOFTWARE,
    recipe: str | Recipe | None = None,
    constants: Constants = CONSTANTS,
) -> Prediction:
    """Step time (bracket, best estimate, items), memory, MFU and HFU of one layout.

    Args:
        model: from :mod:`shardlab.transformer`.
        cluster: from :mod:`shardlab.hardware`.
        layout: from :func:`layout`.
        global_batch: sequences per optimizer step over all ranks.
        sequence: tokens per sequence.
        software: what overlaps and what is fused, a name of :data:`shardlab.models.software.SOFTWARE`.
        recipe: bytes per parameter, a name of :data:`shardlab.models.memory.RECIPES`; the software's by default.
        constants: the fitted constants of :mod:`shardlab.models.kernels`.

    Raises:
        ValueError: the layout cannot run (:func:`check`), or a name is unknown.

    Assumes equal stages but for the output head, equal devices, balanced routing, and nothing else on the network.
    Accuracy against published steps: see ``tools/fit_constants.py``.
    """
    check(model, cluster, layout, global_batch, sequence)
    return prediction_of(
        evaluator_for(model, cluster, global_batch, sequence, software, recipe, constants), layout
    )


def prediction_of(evaluator: Evaluator, plan: Layout) -> Prediction:
    numbers = evaluator.times(*plan.key)
    bill = evaluator.memory(*plan.key)
    total, low, high = numbers[0], numbers[1], numbers[2]
    items = tuple([(label, numbers[3 + index]) for index, label in enumerate(TIME_LABELS)])
    memory = MemoryBudget(
        items=tuple(
            [
                MemoryItem(label=label, category=_MEMORY_CATEGORIES[index], n_bytes=bill[index])
                for index, label in enumerate(MEMORY_LABELS)
                if bill[index] > 0
            ]
        ),
        capacity_bytes=evaluator.capacity,
    )
    work = 0.0
    for index in (0, 1, 3, 4, 5):
        work += items[index][1]
    bubble = items[6][1]
    batches = evaluator.global_batch // (plan.data * plan.micro_batch)
    return Prediction(
        layout=plan,
        micro_batches=batches,
        step_time_s=total,
        step_time_bracket_s=(low, high),
        items=items,
        memory=memory,
        mfu=evaluator.model_flops / (total * evaluator.peak),
        hfu=evaluator.hardware_flops[plan.recompute] / (total * evaluator.peak),
        tokens_per_s=evaluator.global_batch * evaluator.sequence / total,
        model_flops_per_gpu=evaluator.model_flops / (total * evaluator.cluster.gpus),
        bubble_of_total=bubble / (bubble + work),
        bubble_of_ideal=bubble / work,
        warnings=_warnings(evaluator, plan, batches, memory, bubble / (bubble + work), items),
    )


def _warnings(
    evaluator: Evaluator,
    plan: Layout,
    batches: int,
    memory: MemoryBudget,
    bubble_of_total: float,
    items: tuple[tuple[str, float], ...],
) -> tuple[str, ...]:
    node = evaluator.cluster.node
    found = []
    if not memory.fits:
        found.append(
            f"does not fit: needs {memory.total_bytes / GB:.1f} GB, {node.accelerator.name} has "
            f"{evaluator.capacity / GB:.0f} GB, short by {-memory.headroom_bytes / GB:.1f} GB"
        )
    elif memory.total_bytes > 0.92 * evaluator.capacity:
        found.append(
            f"within 8 % of the device's memory ({memory.total_bytes / GB:.1f} of {evaluator.capacity / GB:.0f} GB): "
            "fragmentation may not leave that much"
        )
    if plan.pipeline > 1 and batches < plan.pipeline:
        found.append(
            f"{batches} micro-batches do not fill {plan.pipeline} stages: the bubble is {100 * bubble_of_total:.0f} % "
            "of total time"
        )
    if plan.tensor * plan.context > node.gpus and plan.tensor > 1:
        what = "tensor-parallel" if plan.tensor > node.gpus else "context-parallel"
        found.append(
            f"{what} groups span nodes of {node.gpus} GPUs: their traffic of every layer crosses the network"
        )
    if plan.zero_stage >= 2 and batches > 1 and plan.data * plan.context > 1:
        found.append(
            f"ZeRO-{plan.zero_stage} communicates in each of the {batches} micro-batches; stages 0 and 1 once per step"
        )
    if plan.zero_stage >= 2 and plan.pipeline > 1:
        found.append(
            f"ZeRO-{plan.zero_stage} with a pipeline: DeepSpeed refuses it and Megatron's distributed optimizer is "
            "stage 1; FSDP allows it, and Llama 3 ran stage 2 so"
        )
    if plan.pipeline > evaluator.model.layers // 2 and plan.pipeline > 1:
        found.append("one layer per stage: the last stage, which adds the output head, sets the pace")
    if items[8][1] > 0.1 * (items[0][1] + items[1][1]):
        found.append(
            f"data-parallel communication takes {format_time(items[8][1])} that nothing hides: "
            "a larger batch per rank, or fewer ranks, would share it out"
        )
    return tuple(found)


def predict_published(
    step: PublishedStep, software: str | Software | None = None, constants: Constants = CONSTANTS
) -> Prediction:
    """The prediction for a published step; where micro-batch or chunks are not printed, the fastest that fits.

    Raises:
        ValueError: no candidate of the step can run.
    """
    stack = software_named(step.software if software is None else software)
    evaluator = evaluator_for(
        step.model, step.cluster, step.global_batch, step.sequence, stack, None, constants
    )
    single = len(step.micro_batches) * len(step.chunks) == 1
    best: Prediction | None = None
    for micro_batch in step.micro_batches:
        for chunks in step.chunks:
            candidate = layout(
                data=step.data,
                tensor=step.tensor,
                pipeline=step.pipeline,
                context=step.context,
                zero_stage=step.zero_stage,
                micro_batch=micro_batch,
                recompute=step.recompute,
                sequence_parallel=step.sequence_parallel,
                chunks=chunks,
            )
            if problem(step.model, step.cluster.gpus, step.global_batch, step.sequence, candidate.key):
                continue
            made = prediction_of(evaluator, candidate)
            if not (single or made.fits):
                continue
            if best is None or made.step_time_s < best.step_time_s:
                best = made
    if best is None:
        raise ValueError(
            f"step {step.label!r} must have a micro-batch and chunks that divide and fit; none does"
        )
    return best
