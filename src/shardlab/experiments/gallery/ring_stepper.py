"""Watch the chunks of a ring all-reduce move, and count the bytes that every rank sends."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, decades, slider, stepper
from shardlab.models.collectives import chunk_sizes, ring_allreduce_sent_bytes, ring_sends

ELEMENT_BYTES = 4
MOST_RANKS = 16
# 40 bytes are ten numbers: few enough to see that four ranks cannot share them evenly.
_BUFFERS = tuple(sorted({40.0}.union(decades(100, 1e11))))


def _chunk_name(index: int) -> str:
    return f"chunk {index}"


def _play(n_ranks: int, position: int) -> list[list[int]]:
    """How many ranks' contributions each rank's chunk sums after ``position`` steps: ``held[rank][chunk]``."""
    held = [[1] * n_ranks for _ in range(n_ranks)]
    for step in range(position):
        # All ranks send at once: read every message before applying any.
        messages = [
            (target, chunk, held[source][chunk]) for source, target, chunk in ring_sends(step, n_ranks)
        ]
        for target, chunk, summed in messages:
            held[target][chunk] = held[target][chunk] + summed if step < n_ranks - 1 else summed
    return held


def _sent_bytes(n_ranks: int, position: int, sizes: list[int]) -> tuple[list[float], list[float]]:
    """Bytes that each rank has sent in the reduce-scatter and in the all-gather, counted message by message."""
    reducing, gathering = [0.0] * n_ranks, [0.0] * n_ranks
    for step in range(position):
        sent = reducing if step < n_ranks - 1 else gathering
        for source, _, chunk in ring_sends(step, n_ranks):
            sent[source] += sizes[chunk] * ELEMENT_BYTES
    return reducing, gathering


def picture(ranks: int, buffer_bytes: float, step: int) -> dict[str, Any]:
    """The ring, what every rank holds, and the bytes sent after ``step`` of its 2 (N-1) steps."""
    last = 2 * (ranks - 1)
    position = min(step, last)
    elements = int(buffer_bytes / ELEMENT_BYTES + 0.5)
    n_bytes = float(elements * ELEMENT_BYTES)
    sizes = chunk_sizes(elements, ranks)
    held = _play(ranks, position)
    reducing, gathering = _sent_bytes(ranks, position, sizes)
    arrived = ring_sends(position - 1, ranks) if position else []
    phase = _phase(position, ranks)
    return chart.chart(
        panels=[
            _ring_panel(ranks, position, held, arrived, phase),
            _holdings_panel(ranks, position, held, arrived),
            _bytes_panel(ranks, n_bytes, reducing, gathering),
        ],
        words=_sentences(ranks, position, n_bytes, sizes, reducing, gathering, arrived, held),
        readouts=_readouts(ranks, position, n_bytes, reducing, gathering),
        bounds={"step": {"most": last}},
    )


def _phase(position: int, ranks: int) -> str:
    if position == 0:
        return "before the first step"
    return "reduce-scatter" if position < ranks else "all-gather"


def _ring_panel(
    ranks: int, position: int, held: list[list[int]], arrived: list[tuple[int, int, int]], phase: str
) -> dict[str, Any]:
    places = chart.ring_places(ranks)
    nodes = []
    for rank in range(ranks):
        finished = len([summed for summed in held[rank] if summed == ranks])
        nodes.append(chart.node(str(rank), places[rank], role="memory-gradients", level=finished / ranks))
    idle_links = (
        [chart.arrow(rank, (rank + 1) % ranks, role="grid") for rank in range(ranks)] if not arrived else []
    )
    return chart.graph(
        title="Who sends which chunk",
        nodes=nodes,
        arrows=idle_links
        + [chart.arrow(source, target, label=str(chunk)) for source, target, chunk in arrived],
        middle=[f"step {position} of {2 * (ranks - 1)}", phase],
        alt=f"Ring of {ranks} ranks after step {position}. "
        + (
            f"Each rank has just sent one chunk to the next rank ({phase})."
            if arrived
            else "Nothing is sent yet."
        ),
    )


def _holdings_panel(
    ranks: int, position: int, held: list[list[int]], arrived: list[tuple[int, int, int]]
) -> dict[str, Any]:
    marks = [(chunk, source, "from") for source, _, chunk in arrived]
    marks += [(chunk, target, "to") for _, target, chunk in arrived]
    finished = len([1 for rank in range(ranks) for summed in held[rank] if summed == ranks])
    return chart.matrix(
        title=f"Contributions summed, of {ranks}",
        columns=[str(rank) for rank in range(ranks)],
        rows=[str(chunk) for chunk in range(ranks)],
        column_label="rank",
        row_label="chunk",
        texts=[[str(held[rank][chunk]) for rank in range(ranks)] for chunk in range(ranks)],
        levels=[[held[rank][chunk] / ranks for rank in range(ranks)] for chunk in range(ranks)],
        role="memory-gradients",
        marks=marks,
        alt=f"Table of {ranks} chunks on {ranks} ranks after step {position}: "
        f"{finished} of {ranks * ranks} cells hold the finished sum.",
    )


def _bytes_panel(ranks: int, n_bytes: float, reducing: list[float], gathering: list[float]) -> dict[str, Any]:
    total = ring_allreduce_sent_bytes(n_bytes, ranks)
    sent = [reducing[rank] + gathering[rank] for rank in range(ranks)]
    return chart.bars(
        title="Bytes sent by each rank",
        categories=[str(rank) for rank in range(ranks)],
        value=chart.size_axis("sent", 2.3 * n_bytes),
        stacks=[
            chart.stack("reduce-scatter", "communication", reducing),
            chart.stack("all-gather", "communication", gathering, texture="light"),
        ],
        limits=[
            chart.limit(total, "2(N−1)/N·P", align="end"),
            chart.limit(2 * n_bytes, "2P", align="start"),
        ],
        texts=[words.n_bytes(value) if value else "" for value in sent],
        alt=f"Bars: bytes sent so far by {ranks} ranks, the largest {words.n_bytes(max(sent))}, beside the "
        f"formula's {words.n_bytes(total)}.",
    )


def _readouts(
    ranks: int, position: int, n_bytes: float, reducing: list[float], gathering: list[float]
) -> list[dict[str, Any]]:
    sent = reducing[0] + gathering[0]
    total = ring_allreduce_sent_bytes(n_bytes, ranks)
    return [
        chart.readout("step", f"{position} of {2 * (ranks - 1)}", _phase(position, ranks)),
        chart.readout(
            "rank 0 has sent", words.n_bytes(sent), "counted message by message", "communication-text"
        ),
        chart.readout("2(N−1)/N·P", words.n_bytes(total), "formula, whole all-reduce", "communication-text"),
        chart.readout(
            "all ranks together", words.n_bytes(2 * (ranks - 1) * n_bytes), "2(N−1)·P, grows with N"
        ),
    ]


def _sentences(
    ranks: int,
    position: int,
    n_bytes: float,
    sizes: list[int],
    reducing: list[float],
    gathering: list[float],
    arrived: list[tuple[int, int, int]],
    held: list[list[int]],
) -> list[str]:
    last = 2 * (ranks - 1)
    sent = [reducing[rank] + gathering[rank] for rank in range(ranks)]
    total = ring_allreduce_sent_bytes(n_bytes, ranks)
    texts = [_what_happened(ranks, position, sizes, arrived, held)]
    if position == last:
        texts.append(
            f"The all-reduce is done: each rank has sent {_range_of_bytes(sent)}; "
            f"the formula 2(N−1)/N·P gives {words.n_bytes(total)}, {words.amount(total / n_bytes)} times the buffer. "
            "More ranks bring that closer to 2P and never to it."
        )
    else:
        texts.append(
            f"So far each rank has sent {_range_of_bytes(sent)} "
            f"of the {words.n_bytes(total)} that the whole all-reduce takes."
        )
    if min(sizes) != max(sizes):
        texts.append(
            f"{ranks} does not divide {sum(sizes)} numbers, so chunks hold {min(sizes)} or {max(sizes)} of them "
            "and the ranks send slightly different amounts."
        )
    return texts


def _what_happened(
    ranks: int, position: int, sizes: list[int], arrived: list[tuple[int, int, int]], held: list[list[int]]
) -> str:
    if not arrived:
        return (
            f"Every one of the {ranks} ranks holds its own buffer, cut into {ranks} chunks of "
            f"{_range_of_bytes([size * ELEMENT_BYTES for size in sizes])}; nothing is summed yet."
        )
    source, target, chunk = arrived[0]
    opening = (
        f"Step {position} of {2 * (ranks - 1)}: every rank sent one chunk to its neighbour; "
        f"rank {source} sent {_chunk_name(chunk)} to rank {target}, which "
    )
    summed = held[target][chunk]
    if position > ranks - 1:
        return opening + "kept it as it is (all-gather): it is the finished sum."
    if position == ranks - 1:
        return (
            opening + f"added it and now holds the finished sum of all {ranks}: the reduce-scatter is done."
        )
    return opening + f"added it (reduce-scatter) and now holds the sum of {summed} of {ranks}."


def _range_of_bytes(values: list[float] | list[int]) -> str:
    low, high = words.n_bytes(min(values)), words.n_bytes(max(values))
    return low if low == high else f"{low} to {high}"


EXPERIMENT = Experiment(
    name="ring-stepper",
    title="Ring all-reduce, step by step",
    question="First the chunks are summed, then they are handed on. What does each rank send in all?",
    controls=(
        stepper("step", "Step", 2 * (MOST_RANKS - 1)),
        slider("ranks", "Ranks N", tuple(range(2, MOST_RANKS + 1)), 4, whole=True),
        slider("buffer_bytes", "Buffer P on each rank", _BUFFERS, 1e9, "bytes"),
    ),
    presets=(
        Preset(
            name="four-ranks",
            label="4 ranks, 1 GB",
            values={"ranks": 4, "buffer_bytes": 1e9},
            source="The buffer is the source text's gradient: 1 GB, 250 million fp32 numbers.",
        ),
        Preset(
            name="half-way",
            label="8 ranks, half-way",
            values={"ranks": 8, "buffer_bytes": 1e9, "step": 7},
            source="After N−1 steps the reduce-scatter is done: each rank holds one finished chunk.",
        ),
        Preset(
            name="finished",
            label="16 ranks, done",
            values={"ranks": 16, "buffer_bytes": 1e9, "step": 30},
            source="After 2(N−1) steps every rank holds every finished chunk.",
        ),
        Preset(
            name="uneven",
            label="10 numbers on 4 ranks",
            values={"ranks": 4, "buffer_bytes": 40.0, "step": 6},
            source="40 bytes are 10 fp32 numbers: N does not divide them, so chunks hold 3, 3, 2 and 2.",
        ),
    ),
    picture=picture,
)
