"""Pictures of chapter 01: memory over the course of one step, and what each way of splitting cuts."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from shardlab.experiments import figure, style
from shardlab.figures.common import INK, ink_on
from shardlab.models.memory import model_states, stage_activations
from shardlab.palette import color
from shardlab.transformer import Transformer, parameters, preset
from shardlab.units import GB


def _kept_per_layer(model: Transformer, sequence: int) -> tuple[float, float]:
    """Bytes that one layer keeps for the backward pass, and that the output head keeps."""
    kept = stage_activations(
        model.layers,
        sequence,
        1,
        model.hidden,
        model.heads,
        model.vocabulary,
        ffn=model.ffn,
        kv_heads=model.kv_heads,
        gated=model.gated,
        flash_attention=True,
        dropout=model.dropout,
    )
    return kept.layers / model.layers, kept.head


def memory_over_a_step(name: str = "llama2-7b", sequence: int = 4096) -> Any:
    """Bytes on one GPU while a step runs: states stay, activations rise and fall, gradients come with the backward pass."""
    model = preset(name)
    states = model_states(float(parameters(model)))
    layer, head = _kept_per_layer(model, sequence)
    depth = model.layers
    activations = [0.0, depth * layer, depth * layer + head, depth * layer, 0.0, 0.0]
    gradients = [0.0, 0.0, 0.0, 0.0, states.gradients, states.gradients]
    parts = (
        ("optimizer", "memory-optimizer", [states.master_weights + states.optimizer] * 6),
        ("parameters", "memory-parameters", [states.parameters] * 6),
        ("gradients", "memory-gradients", gradients),
        ("activations", "memory-activations", activations),
    )
    peak = (states.total_bytes - states.gradients + depth * layer + head) / GB

    def drawn(width: float, height: float, end: float) -> Canvas:
        # Forward takes one unit of time, backward two, the update a short one.
        times = [0.0, 0.94, 1.0, 1.12, 3.0, end]
        canvas = Canvas(figsize=(width, height))
        axes = canvas.subplots()
        base = [0.0] * len(times)
        for _, role, values in parts:
            top = [low + value / GB for low, value in zip(base, values, strict=True)]
            axes.fill_between(times, base, top, color=color(role), linewidth=0)
            base = top
        optimizer, weights = (states.master_weights + states.optimizer) / GB, states.parameters / GB
        for x, y, text, ink in (
            (1.7, optimizer / 2, "optimizer state", INK),
            (1.7, optimizer + weights / 2, "parameters", color("surface")),
            (2.75, optimizer + weights + 5, "gradients", color("surface")),
            (1.07, optimizer + weights + 6, "activations", ink_on("memory-activations")),
        ):
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color=ink)
        for x, text in ((0.5, "forward"), (2.0, "backward"), ((3.0 + end) / 2, "update")):
            axes.text(x, 1.2 * peak, text, ha="center", va="center", fontsize=10, color=color("muted"))
        for x in (1.0, 3.0):
            axes.axvline(x, color=color("muted"), linewidth=0.75, linestyle=(0, (2, 3)))
        axes.set(xlim=(0, end), ylim=(0, 1.28 * peak), xticks=[])
        axes.set_xlabel("time in the step, not to scale")
        axes.set_ylabel("GB")
        return canvas

    with style():
        wide = drawn(7.2, 3.2, 3.4)
        # The update is longer there, for its name.
        narrow = drawn(4.4, 3.2, 3.7)
        narrow.subplots_adjust(left=0.14, right=0.99, top=0.97, bottom=0.1)
    after = states.total_bytes / GB
    return figure(
        wide,
        narrow=narrow,
        alt=f"Stacked areas of memory over one step of {name}. Optimizer state and parameters stay the same. Activations "
        f"rise through the forward pass and fall through the backward pass, while gradients grow. "
        f"The total is {peak:.1f} GB at the end of the forward pass and {after:.1f} GB at the update.",
        caption=f"One step of Llama 2 7B with one sequence of {sequence} tokens. When activations are at their largest "
        f"({peak:.1f} GB in all) there are no gradients yet; at the update ({after:.1f} GB) there are no activations any more.",
    )


_SPLITS = (
    # name, what travels, share of the batch per rank, (layers, width) that each of two ranks holds
    ("data parallel", "gradients", 2, ((0, 4, 0.0, 1.0), (0, 4, 0.0, 1.0))),
    ("ZeRO-3, FSDP", "weights and gradients", 2, ((0, 4, 0.0, 0.5), (0, 4, 0.5, 1.0))),
    ("tensor parallel", "activations, in every layer", 4, ((0, 4, 0.0, 0.5), (0, 4, 0.5, 1.0))),
    ("pipeline parallel", "activations, at the cut", 4, ((0, 2, 0.0, 1.0), (2, 4, 0.0, 1.0))),
)


def what_is_split() -> Any:
    """Two ranks, four layers, four samples: which part each rank holds under four ways of splitting."""

    def drawn(width: float, height: float, rows: int, letters: float) -> Canvas:
        canvas = Canvas(figsize=(width, height))
        for index, axes in enumerate(canvas.subplots(rows, 4 // rows).flat):
            name, travels, samples, held = _SPLITS[index]
            for rank in range(2):
                _rank(axes, 1.45 * rank, rank, samples, held[rank], letters)
            axes.set(xlim=(-0.1, 2.6), ylim=(6.7, -1.0), xticks=[], yticks=[])
            axes.spines["bottom"].set_visible(False)
            axes.set_title(name, fontsize=10)
            axes.text(1.22, 6.3, travels, ha="center", fontsize=letters, color=color("communication-text"))
        return canvas

    with style():
        wide = drawn(7.2, 3.0, rows=1, letters=8)
        wide.subplots_adjust(left=0.01, right=0.99, top=0.88, bottom=0.02, wspace=0.12)
        narrow = drawn(4.4, 5.2, rows=2, letters=9)
        narrow.subplots_adjust(left=0.01, right=0.99, top=0.94, bottom=0.01, wspace=0.12, hspace=0.22)
    return figure(
        wide,
        narrow=narrow,
        alt="Four diagrams of two ranks with four layers and four samples. Data parallel: each rank has all layers and half "
        "of the samples. ZeRO-3: each rank keeps half of every layer and works on half of the samples. Tensor "
        "parallel: each rank keeps half of every layer and works on all samples. Pipeline parallel: each rank keeps "
        "half of the layers, and all samples pass through both.",
        caption="What each of two ranks keeps (green) of four layers, and which of four samples (blue) it works on; what "
        "travels is in orange. ZeRO-3 and tensor parallel keep the same halves: the one gathers the weights and "
        "splits the samples, the other leaves the weights and sends activations.",
    )


def _rank(
    axes: Any, left: float, rank: int, samples: int, held: tuple[int, int, float, float], letters: float
) -> None:
    axes.text(left + 0.5, -0.6, f"rank {rank}", ha="center", fontsize=letters, color=color("muted"))
    for sample in range(4):
        mine = samples == 4 or sample // 2 == rank
        axes.add_patch(
            Rectangle(
                (left + 0.25 * sample + 0.02, -0.2),
                0.21,
                0.55,
                facecolor=color("compute") if mine else "none",
                edgecolor=color("compute") if mine else color("idle"),
            )
        )
    first, last, start, end = held
    for layer in range(4):
        top = 0.75 + 1.25 * layer
        axes.add_patch(
            Rectangle((left, top), 1, 1.0, facecolor="none", edgecolor=color("muted"), linewidth=0.8)
        )
        if first <= layer < last:
            axes.add_patch(
                Rectangle(
                    (left + start, top), end - start, 1.0, facecolor=color("memory-gradients"), linewidth=0
                )
            )
