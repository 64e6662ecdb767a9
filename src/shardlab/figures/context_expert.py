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
    with style():
        canvas = Canvas(figsize=(7.2, 3.5), layout="constrained")
        for axes, (split, name) in zip(canvas.subplots(1, 2), _SPLITS, strict=True):
            owners = _owners(ranks, split)
            tiles = counts.setdefault(name, [0] * ranks)
            for query, owner in enumerate(owners):
                for key in range(query + 1):
                    tiles[owner] += 1
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
            axes.set_title(f"{name}: {', '.join(map(str, tiles))} tiles", fontsize=10)
            axes.set_xlabel("keys, piece")
            axes.set_ylabel("queries, piece")
            ticks = range(2 * ranks)
            axes.set_xticks([piece + 0.5 for piece in ticks], [str(piece) for piece in ticks])
            axes.set_yticks([piece + 0.5 for piece in ticks], [str(piece) for piece in ticks])
            axes.tick_params(length=0)
            axes.spines[["left", "bottom"]].set_visible(False)
            axes.grid(visible=False)
    listed = "; ".join([f"{name} {', '.join(map(str, tiles))}" for name, tiles in counts.items()])
    plain = counts["in order"]
    return figure(
        canvas,
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
    with style():
        canvas = Canvas(figsize=(7.2, 2.9), layout="constrained")
        axes = canvas.subplots()
        for rank, row in enumerate(_CHOICES):
            for left in (0.0, 9.6):
                _tokens(axes, left, rank, [(rank, expert) for expert in row])
            arrived = [(source, rank) for source in range(ranks) for e in _CHOICES[source] if e == rank]
            _tokens(axes, 4.0, rank, arrived)
            axes.text(-0.3, rank, f"rank {rank}", ha="right", va="center", fontsize=10, color=color("text"))
            axes.text(
                4.0,
                rank - 0.42,
                f"expert {rank}: {loads[rank]} tokens",
                fontsize=8,
                va="bottom",
                color=color("muted"),
            )
        for left, name in ((2.85, "dispatch"), (8.0, "combine")):
            axes.add_patch(Rectangle((left, -0.45), 0.7, ranks - 0.1, facecolor=color("communication")))
            axes.text(
                left + 0.35,
                ranks / 2 - 0.5,
                name,
                ha="center",
                va="center",
                rotation=90,
                fontsize=10,
                color=INK,
            )
        axes.set(xlim=(-1.6, 12.1), ylim=(ranks - 0.5, -0.75))
        axes.axis("off")
    return figure(
        canvas,
        alt="Three ranks with four tokens each, every token marked with the rank it comes from and the expert it chose. An "
        f"all-to-all brings them to experts 0, 1 and 2, which get {', '.join(map(str, loads))} tokens; a second one brings "
        "the results back to the tokens' own ranks.",
        caption="Tokens written as rank → expert. One all-to-all brings them to their experts, a second one brings results "
        f"home. Expert 0 has {loads[0]} tokens where a fair share is {sum(loads) // ranks}: both other ranks wait for it.",
    )


def _tokens(axes: Any, left: float, row: int, tokens: list[tuple[int, int]]) -> None:
    for index, (source, expert) in enumerate(tokens):
        x = left + 0.63 * index
        axes.add_patch(Rectangle((x, row - 0.24), 0.55, 0.48, facecolor=color("idle"), linewidth=0))
        axes.text(
            x + 0.275, row, f"{source}→{expert}", ha="center", va="center", fontsize=8, color=color("text")
        )
