"""What it costs to agree: collectives as time, bytes on the wire, and chunk-by-chunk simulations.

Times follow the alpha-beta model: a message of ``n`` bytes over one link takes ``latency + n / bandwidth``.
Sizes are bytes, bandwidths bytes/s per rank and direction, times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import count, non_negative, positive


def ring_allreduce_sent_bytes(n_bytes: float, n_ranks: int) -> float:
    """Bytes that each rank sends (and receives) in one ring all-reduce: ``2 (N-1)/N * n_bytes``.

    The factor is 0 for one rank and rises towards 2 without reaching it. For point-to-point links this
    is the least any all-reduce can send per rank; reduction inside the switch can go below it.

    Args:
        n_bytes: size of the buffer on one rank, bytes.
        n_ranks: number of ranks N, 1 or more.

    Raises:
        ValueError: a size is negative or not finite, or ``n_ranks`` is not a whole number from 1.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    J. Parallel Distrib. Comput. 69 (2009); nccl-tests, doc/PERFORMANCE.md.
    """
    size = non_negative("n_bytes", n_bytes, "bytes")
    ranks = count("n_ranks", n_ranks)
    return 2 * (ranks - 1) / ranks * size


def ring_allreduce_time_s(n_bytes: float, n_ranks: int, bandwidth: float, latency_s: float = 0.0) -> float:
    """Seconds of one ring all-reduce: ``2 (N-1)/N * n_bytes/bandwidth + 2 (N-1) * latency_s``.

    The first term levels off at ``2 * n_bytes/bandwidth``; the second grows with every rank.

    Args:
        n_bytes: size of the buffer on one rank, bytes.
        n_ranks: number of ranks N, 1 or more.
        bandwidth: bytes/s that a rank can send while it receives as much.
        latency_s: fixed cost of one hop, seconds.

    Raises:
        ValueError: an argument is out of range.

    Assumes equal links, no contention, reduction at no cost, and buffers that N divides.
    Source: Patarasuk and Yuan (2009); step count as in NCCL, src/graph/tuning.cc.
    """
    speed = positive("bandwidth", bandwidth, "bytes/s")
    latency = non_negative("latency_s", latency_s, "seconds")
    sent = ring_allreduce_sent_bytes(n_bytes, n_ranks)
    return sent / speed + 2 * (int(n_ranks) - 1) * latency


def chunk_sizes(n_elements: int, n_ranks: int) -> list[int]:
    """Sizes of the N chunks of a buffer, as equal as they can be: the first ``n_elements % N`` are one longer."""
    elements = count("n_elements", n_elements, least=0)
    ranks = count("n_ranks", n_ranks)
    return [elements // ranks + (1 if chunk < elements % ranks else 0) for chunk in range(ranks)]


@dataclass(frozen=True)
class Send:
    """One message of a simulated collective: ``source`` sends chunk ``chunk`` to ``destination``."""

    source: int
    destination: int
    chunk: int
    n_bytes: int
    phase: str


def ring_sends(step: int, n_ranks: int) -> list[tuple[int, int, int]]:
    """The N messages ``(source, destination, chunk)`` of step 0 to 2N-3 of a ring all-reduce.

    Steps below N-1 are the reduce-scatter: the receiver adds. The rest are the all-gather: it overwrites.
    """
    ranks = count("n_ranks", n_ranks)
    index = count("step", step, least=0, most=max(2 * ranks - 3, 0))
    if ranks == 1:
        return []
    shift = index if index < ranks - 1 else index - ranks
    return [(rank, (rank + 1) % ranks, (rank - shift) % ranks) for rank in range(ranks)]


@dataclass(frozen=True)
class RingSimulation:
    """A finished ring all-reduce, chunk by chunk.

    Attributes:
        n_ranks: N.
        chunk_sizes: elements in each of the N chunks.
        element_bytes: bytes of one element.
        results: one buffer per rank after the last step, a flat list of numbers.
        sent_bytes: bytes sent by each rank; ``received_bytes`` likewise.
    """

    n_ranks: int
    chunk_sizes: list[int]
    element_bytes: int
    results: list[list[float]]
    sent_bytes: list[int]
    received_bytes: list[int]

    @property
    def n_steps(self) -> int:
        """2 (N-1): N-1 steps of reduce-scatter, N-1 of all-gather."""
        return 2 * (self.n_ranks - 1)

    def sends(self, step: int) -> list[Send]:
        """The messages of one step, 0 to ``n_steps - 1``, all under way at the same time."""
        if not 0 <= step < self.n_steps:
            raise ValueError(f"step must be a whole number from 0 to {self.n_steps - 1}, not {step!r}")
        phase = "reduce-scatter" if step < self.n_ranks - 1 else "all-gather"
        return [
            Send(
                source=source,
                destination=destination,
                chunk=chunk,
                n_bytes=self.chunk_sizes[chunk] * self.element_bytes,
                phase=phase,
            )
            for source, destination, chunk in ring_sends(step, self.n_ranks)
        ]

    @property
    def steps(self) -> list[list[Send]]:
        """All steps in order, each a list of its messages (2 (N-1) lists of N)."""
        return [self.sends(step) for step in range(self.n_steps)]


def _split_buffer(rank: int, buffer: Any, n_ranks: int) -> list[list[float]]:
    """One rank's buffer as N chunks, from a flat sequence of numbers or from N sequences of numbers."""
    items = list(buffer)
    if items and all([hasattr(item, "__len__") for item in items]):
        if len(items) != n_ranks:
            raise ValueError(f"chunks[{rank}] must hold {n_ranks} chunks, one per rank, not {len(items)}")
        return [[element for element in chunk] for chunk in items]
    pieces, start = [], 0
    for size in chunk_sizes(len(items), n_ranks):
        pieces.append(items[start : start + size])
        start += size
    return pieces


def simulate_ring_allreduce(chunks: Any, element_bytes: int = 4) -> RingSimulation:
    """Run a ring all-reduce (sum) chunk by chunk and count what every rank sends.

    Args:
        chunks: one buffer per rank (N buffers, 1 to 1024). A buffer is a flat sequence of numbers, split here
            into N chunks that differ by at most one element, or a sequence of N chunks, each a sequence of numbers.
        element_bytes: bytes of one element on the wire (4 for fp32).

    Returns:
        The finished :class:`RingSimulation`; ``results`` holds the same sum on every rank.

    Raises:
        ValueError: no ranks or more than 1024, or buffers that differ in length.

    In every step all ranks send at once, so a step's messages are read before any is applied.
    """
    n_ranks = count("number of buffers in chunks", len(chunks), least=1, most=1024)
    width = count("element_bytes", element_bytes)
    state = [_split_buffer(rank, buffer, n_ranks) for rank, buffer in enumerate(chunks)]
    sizes = [len(chunk) for chunk in state[0]]
    for rank, pieces in enumerate(state):
        if [len(piece) for piece in pieces] != sizes:
            raise ValueError(
                f"chunks[{rank}] must have chunk sizes {sizes} like chunks[0], not {[len(piece) for piece in pieces]}"
            )
    sent = [0] * n_ranks
    received = [0] * n_ranks
    for step in range(2 * (n_ranks - 1)):
        reducing = step < n_ranks - 1
        messages = [
            (source, destination, chunk, state[source][chunk])
            for source, destination, chunk in ring_sends(step, n_ranks)
        ]
        for source, destination, chunk, payload in messages:
            if reducing:
                payload = [mine + theirs for mine, theirs in zip(state[destination][chunk], payload)]
            state[destination][chunk] = payload
            sent[source] += sizes[chunk] * width
            received[destination] += sizes[chunk] * width
    return RingSimulation(
        n_ranks=n_ranks,
        chunk_sizes=sizes,
        element_bytes=width,
        results=[[element for piece in pieces for element in piece] for pieces in state],
        sent_bytes=sent,
        received_bytes=received,
    )
