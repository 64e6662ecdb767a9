"""Pictures of chapter 05: an MLP cut over two ranks, where a layer's collectives stand, and what a rank keeps."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from shardlab.experiments import figure, style
from shardlab.figures.common import INK, ink_on, labelled_bar
from shardlab.models.memory_activations import layer_activations
from shardlab.palette import color
from shardlab.units import MB

# Light enough for dark letters on a light and on a dark page.


def _block(
    axes: Any, x: float, y: float, height: float, role: str, label: str, below: str, letters: float
) -> None:
    """A matrix as a box with its name in it and its shape beneath."""
    box = Rectangle((x, y), 0.9, height, facecolor=color(role), edgecolor=color("text"), linewidth=0.8)
    axes.add_patch(box)
    axes.text(x + 0.45, y + height / 2, label, ha="center", va="center", fontsize=10, color=ink_on(role))
    axes.text(x + 0.45, y - 0.1, below, ha="center", va="top", fontsize=letters, color=color("muted"))


def _sign(axes: Any, x: float, y: float, text: str, size: float = 12) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color=color("text"))


# A rank's row from left to right: matrices (name, role, height, shape) and the signs between them (text, size).
_MLP: tuple[tuple[Any, ...], ...] = (
    ("X", "memory-activations", 0.7, "s·b × h"),
    ("·", 12),
    ("A{}", "memory-parameters", 0.9, "h × 4h/2"),
    ("→ GELU →", 9),
    ("H{}", "memory-activations", 0.7, "s·b × 4h/2"),
    ("·", 12),
    ("B{}", "memory-parameters", 0.9, "4h/2 × h"),
    ("=", 12),
    ("Z{}", "memory-activations", 0.7, "partial sum"),
    ("→", 12),
    ("Z", "memory-activations", 0.7, "s·b × h"),
)


def mlp_split() -> Any:
    """An MLP on two ranks: A by columns, GELU, B by rows, one all-reduce; matrices as boxes."""

    def drawn(size: tuple[float, float], places: tuple[float, ...], reduce: float, narrow: bool) -> Canvas:
        """``places`` are left edges of matrices and middles of signs, ``reduce`` is the left edge of the all-reduce."""
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots()
        for rank, y in ((0, 2.0), (1, 0.0)):
            # Beside its row, or above it.
            axes.text(
                0.0 if narrow else -0.15,
                y + (1.03 if narrow else 0.5),
                f"rank {rank}",
                ha="left" if narrow else "right",
                va="bottom" if narrow else "center",
                fontsize=10,
                color=color("text"),
            )
            for x, (name, *look) in zip(places, _MLP, strict=True):
                if len(look) == 1:
                    _sign(axes, x, y + 0.5, name.replace("→ GELU ", "GELU\n") if narrow else name, look[0])
                    continue
                role, height, shape = look
                below = shape.replace(" ", "\n", 1) if narrow else shape
                letters = 8.8 if narrow else 8
                _block(axes, x, y + 0.5 - height / 2, height, role, name.format(rank), below, letters)
        axes.add_patch(
            Rectangle(
                (reduce, 0.05),
                0.7,
                2.9,
                facecolor=color("communication"),
                edgecolor=color("text"),
                linewidth=0.8,
            )
        )
        axes.text(
            reduce + 0.35, 1.5, "all-reduce", ha="center", va="center", rotation=90, fontsize=10, color=INK
        )
        axes.set_xlim(-0.02 if narrow else -0.9, places[-1] + (0.92 if narrow else 1.0))
        axes.set_ylim(-0.5 if narrow else -0.45, 3.3 if narrow else 3.1)
        axes.axis("off")
        return canvas

    with style():
        places = (0.0, 1.05, 1.2, 2.75, 3.4, 4.45, 4.6, 5.73, 5.95, 8.05, 8.3)
        wide = drawn((7.2, 3.1), places, 7.15, narrow=False)
        places = (0.0, 1.02, 1.14, 2.48, 2.92, 3.93, 4.05, 5.15, 5.35, 7.31, 7.5)
        narrow = drawn((4.4, 3.2), places, 6.42, narrow=True)
    return figure(
        wide,
        narrow=narrow,
        alt="Two ranks, one row each. Both hold the whole input X. Rank 0 multiplies by A0, the left half of the columns "
        "of A, applies GELU, multiplies by B0, the upper half of the rows of B, and gets a partial sum Z0. Rank 1 does "
        "the same with A1 and B1. One all-reduce adds Z0 and Z1, and both ranks hold Z.",
        caption="An MLP on two ranks: A by columns, B by rows. The wide tensor H is never whole anywhere, and only the "
        "narrow output is sent.",
    )


_TENSOR = (
    ("norm", "memory-activations", 0.7),
    ("attention, own heads", "compute", 2.0),
    ("all-reduce", "communication", 1.1),
    ("norm", "memory-activations", 0.7),
    ("MLP, own part", "compute", 2.0),
    ("all-reduce", "communication", 1.1),
)
_SEQUENCE = (
    ("norm", "memory-activations", 0.35),
    ("all-gather", "communication", 1.0),
    ("attention, own heads", "compute", 2.0),
    ("reduce-\nscatter", "communication", 0.8),
    ("norm", "memory-activations", 0.35),
    ("all-gather", "communication", 1.0),
    ("MLP, own part", "compute", 2.0),
    ("reduce-\nscatter", "communication", 0.8),
)


def layer_collectives_line() -> Any:
    """One layer's forward pass on a rank, tensor and sequence parallel: what is whole, what is split, what is sent."""

    def drawn(size: tuple[float, float], lines: int, along: str) -> Canvas:
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots()
        apart = 1.3 + 0.9 * (lines - 1)
        for top, pieces in ((0.0, _TENSOR), (apart, _SEQUENCE)):
            length = len(pieces) // lines
            for index, (label, role, width) in enumerate(pieces):
                row = top + 0.9 * (index // length)
                if index % length == 0:
                    start = 0.0
                labelled_bar(axes, row, start, start + width, role, label if width > 0.4 else "", height=0.75)
                start += width
        middle = 0.45 * (lines - 1)
        axes.set_yticks([middle, apart + middle], ["tensor\nparallel", "sequence\nparallel"])
        axes.set_ylim(2 * apart - 0.6, -0.6)
        axes.set_xlim(0, 8.3 / lines + 0.05)
        axes.set_xticks([])
        axes.set_xlabel(along)
        axes.grid(visible=False)
        return canvas

    with style():
        wide = drawn((7.2, 2.2), 1, "forward pass of one layer, not to scale")
        # Attention's half of the layer above the MLP's.
        narrow = drawn((4.4, 3.2), 2, "forward pass of one layer,\nline by line, not to scale")
    return figure(
        wide,
        narrow=narrow,
        alt="Two rows. Tensor parallel: norm on all tokens, attention on the rank's own heads, all-reduce, norm on all "
        "tokens, the rank's part of the MLP, all-reduce. Sequence parallel: norm on the rank's own tokens, all-gather, "
        "attention, reduce-scatter, norm on own tokens, all-gather, MLP, reduce-scatter.",
        caption="Sequence parallelism opens each all-reduce into its two halves and lets the norms (and dropouts) run on a "
        "rank's own tokens in between. The backward pass runs the line from right to left, with the two halves exchanged.",
    )


def kept_activations(
    sequence: int = 2048, micro_batch: int = 1, hidden: int = 12_288, heads: int = 96, ranks: int = 8
) -> Any:
    """Bytes that one rank keeps of one layer, the part that tensor parallelism leaves whole apart from the rest."""
    cases = (
        ("1 rank", 1, False, "none"),
        ("tensor", ranks, False, "none"),
        ("tensor,\nselective", ranks, False, "selective"),
        ("sequence", ranks, True, "none"),
        ("sequence,\nselective", ranks, True, "selective"),
    )
    sizes, rows = (sequence, micro_batch, hidden, heads), []
    for name, t, split, recompute in cases:
        layer = layer_activations(*sizes, tensor_parallel=t, sequence_parallel=split, recompute=recompute)
        # norms, both inputs and the dropout masks: 10 of the 34 bytes per token and column
        whole = 10.0 * sequence * micro_batch * hidden / (t if split else 1)
        rows.append((name, whole, layer.kept_bytes - whole))

    def drawn(width: float) -> Canvas:
        canvas = Canvas(figsize=(width, 2.7), layout="constrained")
        axes = canvas.subplots()
        for index, (_, whole, rest) in enumerate(rows):
            labelled_bar(axes, index, 0, (whole + rest) / MB, "memory-activations")
            edge = color("memory-text")
            axes.barh(
                index, whole / MB, height=0.62, facecolor="none", edgecolor=edge, hatch="////", linewidth=0
            )
            text = f"{(whole + rest) / MB:.0f} MB"
            axes.text((whole + rest) / MB + 30, index, text, va="center", fontsize=9, color=color("text"))
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, (rows[0][1] + rows[0][2]) / MB * 1.15)
        axes.set_xlabel("kept by one rank for one layer, MB")
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.2), drawn(4.4)
    listed = ", ".join(
        [f"{name} {(whole + rest) / MB:.0f} MB".replace("\n", " ") for name, whole, rest in rows]
    )
    return figure(
        wide,
        narrow=narrow,
        alt=f"Bars: activations of one layer on one rank of {ranks}, h = {hidden}, s = {sequence}, b = {micro_batch}: {listed}.",
        caption=f"Activations of one GPT-3 layer on one of {ranks} ranks. Striped: norms, layer inputs and "
        "dropout masks. Tensor parallelism alone leaves that part "
        f"whole, {rows[1][1] / MB:.0f} MB on every rank; sequence parallelism splits it too.",
    )
