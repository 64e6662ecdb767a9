"""Pictures of chapter 07: who computes which part of causal attention, and the way of tokens to experts and back."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from shardlab.experiments import figure, style
from shardlab.figures.common import INK
from shardlab.models.context import rank_tokens
from shardlab.palette import color

# Light enough for dark letters on a light and on a dark page.
_SPLITS = (("contiguous", "in order"), ("zigzag", "in a zigzag"))


def _owners(ranks: int, split: str) -> list[int]:
    """The rank that holds each of 2 N pieces of the sequence."""
    owners = [0] * (2 * ranks)
    for rank in range(ranks):
        for start, stop, step in rank_tokens(2 * ranks, ranks, rank, split):
            for piece in range(start, stop, step):
                owners[piece] = rank
    return owners


def causal_deal(ranks: int = 4) -> Any:
    """The causal triangle in 2 N pieces, dealt in order and in a zigzag: whose tile is each, rank 0's filled."""
    counts: dict[str, list[int]] = {}
    for split, name in _SPLITS:
        counts[name] = [0] * ranks
        for query, owner in enumerate(_owners(ranks, split)):
            counts[name][owner] += query + 1

    def drawn(width: float, height: float, space: str) -> Canvas:
        canvas = Canvas(figsize=(width, height), layout="constrained")
        for axes, (split, name) in zip(canvas.subplots(1, 2), _SPLITS, strict=True):
            for query, owner in enumerate(_owners(ranks, split)):
                for key in range(query + 1):
                    mine = owner == 0
                    box = Rectangle(
                        (key + 0.05, query + 0.05),
                        0.9,
                        0.9,
                        facecolor=color("compute" if mine else "idle"),
                        linewidth=0,
                    )
                    axes.add_patch(box)
                    ink = color("surface" if mine else "text")
                    axes.text(
                        key + 0.5, query + 0.5, str(owner), ha="center", va="center", fontsize=9, color=ink
                    )
            axes.set(xlim=(0, 2 * ranks), ylim=(2 * ranks, 0), aspect="equal")
            axes.set_title(f"{name}:{space}{', '.join(map(str, counts[name]))} tiles", fontsize=10)
            axes.set_xlabel("keys, piece")
            axes.set_ylabel("queries, piece")
            ticks = range(2 * ranks)
            axes.set_xticks([piece + 0.5 for piece in ticks], [str(piece) for piece in ticks])
            axes.set_yticks([piece + 0.5 for piece in ticks], [str(piece) for piece in ticks])
            axes.tick_params(length=0)
            axes.spines[["left", "bottom"]].set_visible(False)
            axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.2, 3.5, " "), drawn(4.4, 2.8, "\n")
    listed = "; ".join([f"{name} {', '.join(map(str, tiles))}" for name, tiles in counts.items()])
    plain = counts["in order"]
    return figure(
        wide,
        narrow=narrow,
        alt=f"Two triangles of {2 * ranks} by {2 * ranks} tiles, each tile with the rank that computes it. Tiles of ranks 0 "
        f"to {ranks - 1}: {listed}.",
        caption=f"Causal attention in {2 * ranks} pieces of a sequence on {ranks} ranks. A tile belongs to the rank that holds "
        f"its queries; rank 0's are blue. In order the last rank has {max(plain)} tiles and the first {min(plain)}, in a "
        "zigzag all have the same.",
    )


# The expert that each token of each rank chooses.
_CHOICES = ((0, 1, 0, 2), (0, 2, 1, 0), (2, 0, 1, 0))


def token_round_trip() -> Any:
    """Tokens of three ranks, dispatched to three experts by an all-to-all, and combined by another."""
    ranks = len(_CHOICES)
    loads = [sum(row.count(expert) for row in _CHOICES) for expert in range(ranks)]

    def drawn(
        size: tuple[float, float], lines: int, letters: float, places: tuple[float, ...], end: float
    ) -> Canvas:
        name, sent, dispatch, expert, combine, home = places
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots()
        for rank, row in enumerate(_CHOICES):
            for left in (sent, home):
                _tokens(axes, left, rank, [(rank, chosen) for chosen in row], len(row), lines, letters)
            arrived = [(source, rank) for source in range(ranks) for e in _CHOICES[source] if e == rank]
            _tokens(axes, expert, rank, arrived, max(loads), lines, letters)
            # Beside one line of tokens, or above two.
            beside = lines == 1
            axes.text(
                name,
                rank if beside else rank - 0.42,
                f"rank {rank}",
                ha="right" if beside else "left",
                va="center" if beside else "bottom",
                fontsize=10,
                color=color("text"),
            )
            axes.text(
                expert,
                rank - 0.42,
                f"expert {rank}: {loads[rank]} tokens",
                fontsize=letters,
                va="bottom",
                color=color("muted"),
            )
        for left, what in ((dispatch, "dispatch"), (combine, "combine")):
            axes.add_patch(Rectangle((left, -0.45), 0.7, ranks - 0.1, facecolor=color("communication")))
            axes.text(
                left + 0.35,
                ranks / 2 - 0.5,
                what,
                ha="center",
                va="center",
                rotation=90,
                fontsize=10,
                color=INK,
            )
        axes.set(xlim=(-1.6 if lines == 1 else 0, end), ylim=(ranks - 0.5, -0.75))
        axes.axis("off")
        return canvas

    with style():
        wide = drawn((7.2, 2.9), 1, 8, (-0.3, 0.0, 2.85, 4.0, 8.0, 9.6), 12.1)
        narrow = drawn((4.4, 3.4), 2, 9, (0.0, 0.0, 1.5, 2.5, 4.7, 5.7), 6.88)
    return figure(
        wide,
        narrow=narrow,
        alt="Three ranks with four tokens each, every token marked with the rank it comes from and the expert it chose. An "
        f"all-to-all brings them to experts 0, 1 and 2, which get {', '.join(map(str, loads))} tokens; a second one brings "
        "the results back to the tokens' own ranks.",
        caption="Tokens written as rank → expert. One all-to-all brings them to their experts, a second one brings results "
        f"home. Expert 0 has {loads[0]} tokens where a fair share is {sum(loads) // ranks}: both other ranks wait for it.",
    )


def _tokens(
    axes: Any, left: float, row: int, tokens: list[tuple[int, int]], most: int, lines: int, letters: float
) -> None:
    """Tokens as boxes, in lines that hold ``most`` together."""
    columns, height = most // lines, 0.48 if lines == 1 else 0.28
    for index, (source, expert) in enumerate(tokens):
        x = left + 0.63 * (index % columns)
        y = row + (index // columns - (lines - 1) / 2) * (height + 0.05)
        axes.add_patch(Rectangle((x, y - height / 2), 0.55, height, facecolor=color("idle"), linewidth=0))
        axes.text(
            x + 0.275,
            y,
            f"{source}→{expert}",
            ha="center",
            va="center",
            fontsize=letters,
            color=color("text"),
        )
