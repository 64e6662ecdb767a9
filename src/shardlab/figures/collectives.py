"""Pictures of chapter 02: what the six collectives do, how messages travel, and what rounds and bytes trade."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from shardlab.experiments import figure, style
from shardlab.models import collectives
from shardlab.models.collectives import Algorithm
from shardlab.palette import color

_SHADES = ("memory-parameters", "memory-gradients", "memory-optimizer", "memory-activations")
# Six pictures with the algorithm that computes each; any other of the same collective gives the same picture.
_SIX = (
    ("broadcast", "chain"),
    ("reduce", "chain"),
    ("all-reduce", "ring"),
    ("reduce-scatter", "ring"),
    ("all-gather", "ring"),
    ("all-to-all", "direct"),
)
_RANKS = 4


def six_collectives() -> Any:
    """Before and after each collective on four ranks, computed by the models message by message."""

    def drawn(width: float, height: float, rows: int, letters: float) -> Canvas:
        canvas = Canvas(figsize=(width, height))
        for axes, (collective, name) in zip(canvas.subplots(rows, 6 // rows).flat, _SIX, strict=True):
            before, after = _before_and_after(collective, name)
            _draw_holdings(axes, 0.0, before, letters)
            _draw_holdings(axes, 5.8, after, letters)
            axes.annotate(
                "",
                (5.6, 2.0),
                (4.2, 2.0),
                arrowprops={"arrowstyle": "-|>", "color": color("communication"), "linewidth": 2},
            )
            axes.set_title(collective, fontsize=11)
            axes.set(xlim=(-1.0, 10.9), ylim=(4.3, -0.4), aspect="equal")
            axes.axis("off")
        return canvas

    with style():
        wide = drawn(7.2, 3.7, rows=2, letters=8)
        wide.subplots_adjust(left=0.01, right=0.99, top=0.94, bottom=0.01, wspace=0.04, hspace=0.16)
        narrow = drawn(4.4, 4.2, rows=3, letters=8.7)
        narrow.subplots_adjust(left=0.0, right=1.0, top=0.94, bottom=0.01, wspace=0.02, hspace=0.28)
    return figure(
        wide,
        narrow=narrow,
        alt="Six collectives on four ranks, a row a rank, before and after. Broadcast: rank 0's buffer goes to all. Reduce: "
        "rank 0 gets the sum of all. All-reduce: all get the sum. Reduce-scatter: rank r gets the sum of chunk r. "
        "All-gather: rank r brings chunk r, all get all chunks. All-to-all: rank r gets chunk r of every rank.",
        caption="One row a rank, one column a chunk; a, b, c, d are the buffers of ranks 0 to 3, and Σ is a sum over all "
        "ranks. Reduce-scatter followed by all-gather is an all-reduce.",
    )


def _before_and_after(collective: str, name: str) -> tuple[list[list[str]], list[list[str]]]:
    """Cells ``[rank][chunk]`` as texts, run on numbers that tell whose part is in them."""
    # Rank r's chunk c is the bit 4r + c, so any sum says what it was made of.
    whole = [[1 << (_RANKS * rank + chunk) for chunk in range(_RANKS)] for rank in range(_RANKS)]
    if collective == "all-gather":
        given: list[list[int]] = [[whole[rank][rank]] for rank in range(_RANKS)]
    elif collective == "broadcast":
        given = [whole[0], [], [], []]
    else:
        given = whole
    after = collectives.simulate(collective, name, given).results
    apart = collective in ("reduce-scatter", "all-gather")
    return (
        [_cells(numbers, rank if collective == "all-gather" else 0) for rank, numbers in enumerate(given)],
        [_cells(numbers, rank if apart and len(numbers) == 1 else 0) for rank, numbers in enumerate(after)],
    )


def _cells(numbers: list[Any], first: int) -> list[str]:
    texts = [""] * _RANKS
    for place, number in enumerate(numbers):
        texts[first + place] = _text(int(number))
    return texts


def _text(number: int) -> str:
    parts = [bit for bit in range(_RANKS * _RANKS) if number >> bit & 1]
    chunk = parts[0] % _RANKS
    return f"{'abcd'[parts[0] // _RANKS]}{chunk}" if len(parts) == 1 else f"Σ{chunk}"


def _draw_holdings(axes: Any, left: float, cells: list[list[str]], letters: float) -> None:
    for rank, row in enumerate(cells):
        if left == 0.0:
            axes.text(
                -0.25, rank + 0.5, str(rank), ha="right", va="center", fontsize=letters, color=color("muted")
            )
        for chunk, text in enumerate(row):
            summed = text.startswith("Σ")
            role = "communication" if summed else _SHADES["abcd".index(text[0])] if text else "surface"
            axes.add_patch(
                Rectangle(
                    (left + chunk + 0.04, rank + 0.04),
                    0.92,
                    0.92,
                    facecolor=color(role),
                    edgecolor=color("grid"),
                    linewidth=0.8,
                )
            )
            # The darkest and the lightest green trade places on the dark page; the other fills keep their lightness.
            ink = {"memory-parameters": color("surface"), "memory-activations": color("text")}.get(
                role, "#1b1e22"
            )
            place = (left + chunk + 0.5, rank + 0.5)
            axes.text(*place, text, ha="center", va="center", fontsize=letters, color=ink)


_PATTERNS = ("ring", "binomial tree", "recursive doubling", "rabenseifner")


def message_patterns(n_ranks: int = 8) -> Any:
    """The messages of four all-reduce algorithms: rounds from left to right, ranks from top to bottom."""
    entries = [collectives.algorithm("all-reduce", name) for name in _PATTERNS]
    costs = [entry.cost(1.0, n_ranks) for entry in entries]
    counts = [
        f"{name.replace('rab', 'Rab')} {cost.rounds} rounds, {cost.wire_bytes:g} P on the way"
        for name, cost in zip(_PATTERNS, costs, strict=True)
    ]

    def drawn(width: float, height: float, rows: int, letters: float) -> Canvas:
        canvas = Canvas(figsize=(width, height))
        panels = canvas.subplots(rows, 4 // rows).flat
        for axes, name, entry, cost in zip(panels, _PATTERNS, entries, costs, strict=True):
            _draw_pattern(axes, entry, n_ranks, letters)
            shown = name[0].upper() + name[1:]
            axes.set_title(f"{shown}: {cost.rounds} rounds, {cost.wire_bytes:g} P", fontsize=10.5)
        return canvas

    with style():
        wide = drawn(7.2, 4.6, rows=2, letters=8)
        wide.subplots_adjust(left=0.07, right=0.985, top=0.94, bottom=0.09, wspace=0.16, hspace=0.42)
        narrow = drawn(4.4, 8.4, rows=4, letters=9)
        narrow.subplots_adjust(left=0.11, right=0.985, top=0.97, bottom=0.05, hspace=0.48)
    return figure(
        wide,
        narrow=narrow,
        alt=f"Message diagrams of four all-reduce algorithms on {n_ranks} ranks: "
        + "; ".join(counts)
        + ". The ring sends "
        "thin messages to the next rank only; the tree and recursive doubling reach far ranks with thick ones, "
        "Rabenseifner with its thinnest.",
        caption=f"The same all-reduce on {n_ranks} ranks. A line is a message, its width what it carries. P in a title is "
        "what must pass one after the other through the busiest rank. The ring talks to one neighbour; the two butterflies "
        "below finish sooner and reach far across the machine, Rabenseifner with its smallest pieces.",
    )


def _draw_pattern(axes: Any, entry: Algorithm, n_ranks: int, letters: float) -> None:
    schedule = entry.schedule(n_ranks)
    for place, step in enumerate(schedule.rounds):
        for message in step.messages:
            share = len(message.chunks) / schedule.n_chunks
            axes.plot(
                [place, place + 0.86],
                [message.source, message.destination],
                color=color("communication"),
                linewidth=0.5 + 3.0 * share,
                solid_capstyle="round",
            )
    n_rounds = len(schedule.rounds)
    axes.set_xlim(-0.3, n_rounds + 0.1)
    axes.set_ylim(n_ranks - 0.6, -0.4)
    axes.set_yticks(range(n_ranks), [str(rank) for rank in range(n_ranks)], fontsize=letters)
    axes.set_xticks(
        [place + 0.43 for place in range(n_rounds)],
        [str(place + 1) for place in range(n_rounds)],
        fontsize=letters,
    )
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel("rank", fontsize=9)
    axes.grid(visible=False)


# Where the name of a point stands, in points from it, so that names do not meet.
_NAME_PLACES = {
    "ring": (8, 8, "right"),
    "binomial tree": (8, 4, "left"),
    "double tree": (0, 9, "left"),
    "recursive doubling": (8, 4, "left"),
    "rabenseifner": (-4, -16, "left"),
    "switch": (8, 5, "left"),
    "switch multicast": (8, -12, "left"),
}


def rounds_against_bytes(n_ranks: int = 64) -> Any:
    """Every all-reduce algorithm as a point: rounds (latency) across, buffers on the critical path (bandwidth) up."""
    costs = [(entry, entry.cost(1.0, n_ranks)) for entry in collectives.algorithms("all-reduce")]
    points = [f"{entry.name} {cost.rounds} rounds and {cost.wire_bytes:.3g} P" for entry, cost in costs]

    def drawn(width: float, height: float, below: str) -> Canvas:
        canvas = Canvas(figsize=(width, height))
        axes = canvas.subplots()
        for entry, cost in costs:
            role = "muted" if entry.in_network else "communication"
            axes.plot([cost.rounds], [cost.wire_bytes], "o", color=color(role), markersize=8, clip_on=False)
            right, up, side = _NAME_PLACES[entry.name]
            axes.annotate(
                entry.name.replace("rab", "Rab"),
                (cost.rounds, cost.wire_bytes),
                (right, up),
                textcoords="offset points",
                ha=side,
                fontsize=10,
                color=color("text"),
            )
        bound = collectives.busbw_factor("all-reduce", n_ranks)
        axes.axhline(bound, color=color("limit"), linewidth=0.75)
        axes.text(
            1.75,
            bound * 0.94,
            below,
            va="top",
            fontsize=9,
            color=color("text"),
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlim(1.6, 2.6 * n_ranks)
        axes.set_ylim(0.8, 16)
        axes.set_xticks([2, 4, 8, 16, 32, 64, 128], ["2", "4", "8", "16", "32", "64", "128"])
        axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        axes.minorticks_off()
        axes.set_xlabel(f"rounds, {n_ranks} ranks")
        axes.set_ylabel("bytes on the way, in P")
        return canvas

    with style():
        wide = drawn(7.2, 3.4, "no point-to-point all-reduce below")
        wide.subplots_adjust(left=0.1, right=0.98, top=0.96, bottom=0.18)
        narrow = drawn(4.4, 3.4, "no point-to-point\nall-reduce below")
        narrow.subplots_adjust(left=0.14, right=0.97, top=0.96, bottom=0.17)
    return figure(
        wide,
        narrow=narrow,
        alt=f"Rounds against bytes on the critical path for {n_ranks} ranks, both on log scales: "
        + "; ".join(points)
        + ".",
        caption=f"What an all-reduce on {n_ranks} ranks pays: latency to the right, bandwidth upwards. Left and low is good. "
        "Only switches that add (grey) get below the line.",
    )
