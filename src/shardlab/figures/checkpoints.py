"""Pictures of chapter 10: what a checkpoint holds, and a save that cannot be half done."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas

from shardlab.experiments import figure, style
from shardlab.figures.common import ink_on, labelled_bar
from shardlab.palette import color

# Name, bytes per parameter, role.
_PER_PARAMETER = (
    ("16-bit\nweights", 2, "memory-parameters"),
    ("fp32 weights", 4, "memory-gradients"),
    ("Adam m", 4, "memory-optimizer"),
    ("Adam v", 4, "memory-optimizer"),
)
_SMALL = (
    "scheduler · step and samples consumed · data position",
    "random state of every rank · loss scale (fp16)",
    "layout, arguments, version",
)


def checkpoint_contents() -> Any:
    """Bytes per parameter of a checkpoint to scale, and what is small and just as necessary."""

    def drawn(width: float, height: float, letters: float) -> Canvas:
        canvas = Canvas(figsize=(width, height), layout="constrained")
        axes = canvas.subplots()
        start = 0
        for name, size, role in _PER_PARAMETER:
            axes.barh(
                0,
                size,
                left=start,
                height=0.62,
                color=color(role),
                edgecolor=color("surface"),
                linewidth=0.8,
            )
            axes.text(
                start + size / 2,
                0,
                name,
                ha="center",
                va="center",
                fontsize=letters if size < 4 else 9,
                color=ink_on(role),
            )
            start += size
        axes.plot([2, 14], [-0.5, -0.5], color=color("limit"), linewidth=1)
        axes.text(
            8, -0.62, "12 bytes: enough to resume", ha="center", va="bottom", fontsize=9, color=color("text")
        )
        for row, text in enumerate(_SMALL):
            axes.text(0, 1.15 + 0.42 * row, text, va="center", fontsize=9, color=color("text"))
        axes.text(0, 0.72, "and kilobytes:", va="center", fontsize=9, color=color("muted"))
        axes.set_ylim(2.4, -1.0)
        axes.set_xlim(0, 14.2)
        axes.set_xticks(range(0, 15, 2))
        axes.set_yticks([])
        axes.set_xlabel("bytes per parameter")
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.2, 2.5, letters=8), drawn(4.4, 2.5, letters=8.7)
    return figure(
        wide,
        narrow=narrow,
        alt="A bar of 14 bytes per parameter: 2 of 16-bit weights, then 4 each of fp32 weights, Adam's first and second "
        "moment. Beneath it, without size: " + "; ".join(_SMALL).replace(" · ", ", ") + ".",
        caption="What a checkpoint holds. The bar decides how long a save takes; the kilobytes beneath it decide "
        "whether the run that comes back is the same run.",
    )


def atomic_save() -> Any:
    """The order of a save, and what a crash in each phase leaves behind."""
    phases = (
        ("every rank writes\nits file to a draft", "communication", "a draft,\nrefused"),
        ("manifest: sizes\nand checksums", "memory-optimizer", "a draft, where\nnobody looks"),
        ("rename the\nfolder", "compute", "whole, but not\nyet the latest"),
        ("move the pointer\n“latest”", "compute", "old or new:\nboth are whole"),
    )
    label = "time, not to scale"

    def across() -> Canvas:
        canvas = Canvas(figsize=(7.2, 2.2), layout="constrained")
        axes = canvas.subplots()
        for index, (name, role, after) in enumerate(phases):
            labelled_bar(axes, 0, index, index + 0.94, role, name, height=0.8)
            axes.text(index + 0.47, 0.95, after, ha="center", va="center", fontsize=9, color=color("text"))
        axes.set_yticks([0, 0.95], ["save", "a crash\nleaves"])
        axes.set_ylim(1.4, -0.5)
        axes.set_xlim(0, 4)
        axes.set_xticks([])
        axes.set_xlabel(label)
        axes.grid(visible=False)
        return canvas

    def down() -> Canvas:
        canvas = Canvas(figsize=(4.4, 3.0), layout="constrained")
        axes = canvas.subplots()
        for index, (name, role, after) in enumerate(phases):
            labelled_bar(axes, index, 0, 1, role, name, height=0.92)
            axes.text(1.5, index, after, ha="center", va="center", fontsize=9, color=color("text"))
        axes.xaxis.tick_top()
        axes.set_xticks([0.5, 1.5], ["save", "a crash leaves"])
        axes.spines["bottom"].set_visible(False)
        axes.set_ylim(len(phases) - 0.5, -0.5)
        axes.set_xlim(0, 2)
        axes.set_yticks([])
        axes.set_ylabel(f"{label} →", rotation=270, labelpad=14)
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = across(), down()
    return figure(
        wide,
        narrow=narrow,
        alt="A save in four phases: every rank writes its file to a draft folder; a manifest of sizes and checksums is "
        "added; the folder is renamed; the pointer to the latest checkpoint is moved. A crash in the first leaves a "
        "draft that is refused, in the second a draft that nobody looks at, in the third a whole checkpoint that is "
        "not yet the latest, in the last the old pointer or the new one.",
        caption="A save that cannot be half done: whenever it is interrupted, “latest” names a checkpoint that is whole.",
    )
