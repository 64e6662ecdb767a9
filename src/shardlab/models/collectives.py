"""What it costs to agree: collectives as time, bytes on the wire, and chunk-by-chunk simulations.

Times follow the alpha-beta-gamma model: a message of ``n`` bytes over one link takes ``latency + n / bandwidth``,
and adding ``n`` received bytes to one's own takes ``n * reduce_s_per_byte``. Sizes are bytes, bandwidths bytes/s
per rank and direction, times seconds. A rank sends and receives at the same time.

A buffer's size is the one that nccl-tests prints: the whole buffer of one rank. For an all-gather that is the
output, for a reduce-scatter and an all-to-all the input.

Names: ``<algorithm>_<collective>_cost(n_bytes, n_ranks)`` is a :class:`Cost`; :data:`ALGORITHMS` lists them all,
:func:`fastest` picks one, :func:`crossovers` says from which size on which one wins, :func:`simulate` runs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardlab.checks import choice, count, non_negative, positive
from shardlab.measured import NCCL_TUNING
from shardlab.models import collective_schedules as schedules
from shardlab.models.collective_schedules import (
    Schedule,
    Simulation,
    is_power_of_two,
    log2_ceil,
    log2_floor,
)
from shardlab.models.collective_schedules import chunk_sizes as chunk_sizes

if TYPE_CHECKING:  # MicroPython has no collections.abc
    from collections.abc import Callable, Sequence


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
    return ring_allreduce_times_s(n_bytes, (n_ranks,), bandwidth, latency_s)[0]


def ring_allreduce_times_s(
    n_bytes: float, ranks: Sequence[int], bandwidth: float, latency_s: float = 0.0
) -> list[float]:
    """:func:`ring_allreduce_time_s` for each number of ranks, for a curve: the arguments are checked once."""
    speed = positive("bandwidth", bandwidth, "bytes/s")
    latency = non_negative("latency_s", latency_s, "seconds")
    size = non_negative("n_bytes", n_bytes, "bytes")
    checked = [count("n_ranks", n_ranks) for n_ranks in ranks]
    return [2 * (n - 1) / n * size / speed + 2 * (n - 1) * latency for n in checked]


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
        n_ranks: ``N``.
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


def _flat_buffer(rank: int, buffer: Any, n_ranks: int) -> tuple[list[float], list[int]]:
    """One rank's numbers and chunk sizes, from a flat sequence of numbers or from N sequences of numbers."""
    items = list(buffer)
    if not items or not hasattr(items[0], "__len__"):
        return items, chunk_sizes(len(items), n_ranks)
    if len(items) != n_ranks:
        raise ValueError(f"chunks[{rank}] must hold {n_ranks} chunks, one per rank, not {len(items)}")
    return [element for chunk in items for element in chunk], [len(chunk) for chunk in items]


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

    Chunks never meet on the ring, so each is followed on its whole way round before the next: the same messages
    and additions as :meth:`RingSimulation.sends` lists step by step, in another order.
    """
    n_ranks = count("number of buffers in chunks", len(chunks), least=1, most=1024)
    width = count("element_bytes", element_bytes)
    buffers: list[list[float]] = []
    sizes: list[int] = []
    for rank in range(n_ranks):
        numbers, own = _flat_buffer(rank, chunks[rank], n_ranks)
        buffers.append(numbers)
        sizes = sizes or own
        if own != sizes:
            raise ValueError(f"chunks[{rank}] must have chunk sizes {sizes} like chunks[0], not {own}")
    sums: list[float] = []
    skipped_sends, skipped_receives = [0] * n_ranks, [0] * n_ranks
    columns = zip(*buffers)
    for chunk in range(n_ranks):
        # Reduce-scatter: the chunk starts at the rank of its number and every rank it passes adds its own part.
        for _ in range(sizes[chunk]):
            column = next(columns)
            path = column[chunk:] + column[:chunk]
            so_far = path[0]
            for mine in path[1:]:
                so_far = mine + so_far
            sums.append(so_far)
        # Every rank on the path passes it on but the last; the all-gather starts there and ends one rank short of it.
        n_bytes = sizes[chunk] * width
        last, before_last = (chunk - 1) % n_ranks, (chunk - 2) % n_ranks
        skipped_sends[last] += n_bytes
        skipped_sends[before_last] += n_bytes
        skipped_receives[chunk] += n_bytes
        skipped_receives[last] += n_bytes
    both_phases = 2 * len(sums) * width
    return RingSimulation(
        n_ranks=n_ranks,
        chunk_sizes=sizes,
        element_bytes=width,
        results=[list(sums) for _ in range(n_ranks)],
        sent_bytes=[both_phases - skipped for skipped in skipped_sends],
        received_bytes=[both_phases - skipped for skipped in skipped_receives],
    )


# Cost formulas -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one collective costs: ``time = rounds * alpha + wire_bytes / B + reduced_bytes * gamma``.

    Attributes:
        rounds: latencies on the critical path (messages that follow each other).
        wire_bytes: bytes on the critical path: the busiest rank's, round by round.
        reduced_bytes: bytes added on the critical path.
        sent_bytes: bytes that the busiest rank sends in all. Below ``wire_bytes`` where ranks wait for each other.
        total_bytes: bytes that all ranks send together.
    """

    rounds: int
    wire_bytes: float
    reduced_bytes: float
    sent_bytes: float
    total_bytes: float

    def time_s(self, bandwidth: float, latency_s: float = 0.0, reduce_s_per_byte: float = 0.0) -> float:
        """Seconds on links of ``bandwidth`` bytes/s, ``latency_s`` seconds a message, and gamma for the additions.

        Raises:
            ValueError: an argument is out of range.
        """
        speed = positive("bandwidth", bandwidth, "bytes/s")
        latency = non_negative("latency_s", latency_s, "seconds")
        gamma = non_negative("reduce_s_per_byte", reduce_s_per_byte, "seconds/byte")
        return self.rounds * latency + self.wire_bytes / speed + self.reduced_bytes * gamma


def _checked(n_bytes: float, n_ranks: int) -> tuple[float, int]:
    return non_negative("n_bytes", n_bytes, "bytes"), count("n_ranks", n_ranks)


def _checked_power(algorithm: str, n_bytes: float, n_ranks: int) -> tuple[float, int]:
    size, ranks = _checked(n_bytes, n_ranks)
    if not is_power_of_two(ranks):
        raise ValueError(f"n_ranks must be a power of two for {algorithm}, not {n_ranks!r}")
    return size, ranks


def ring_allreduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Ring reduce-scatter and all-gather: ``2 (N-1)`` messages of 1/N of the buffer; half as much to add.

    Source: Patarasuk and Yuan (2009); Thakur, Rabenseifner and Gropp, "Optimization of collective communication
    operations in MPICH", IJHPCA 19 (2005).
    """
    size, ranks = _checked(n_bytes, n_ranks)
    share = (ranks - 1) / ranks * size
    return Cost(
        rounds=2 * (ranks - 1),
        wire_bytes=2 * share,
        reduced_bytes=share,
        sent_bytes=2 * share,
        total_bytes=2 * (ranks - 1) * size,
    )


def binomial_tree_allreduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Binomial reduce to rank 0 and broadcast from it: ``2 ceil(lg N)`` messages of the whole buffer.

    Rank 0 is the busiest: it sends and receives ``ceil(lg N)`` buffers.

    Source: MPICH, src/mpi/coll/reduce and bcast (cost comments); Thakur et al. (2005).
    """
    size, ranks = _checked(n_bytes, n_ranks)
    depth = log2_ceil(ranks)
    return Cost(
        rounds=2 * depth,
        wire_bytes=2 * depth * size,
        reduced_bytes=depth * size,
        sent_bytes=depth * size,
        total_bytes=2 * (ranks - 1) * size,
    )


def double_tree_allreduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """NCCL's double binary tree with perfect pipelining: ``2 ceil(lg N)`` latencies and at most two buffers.

    Each tree carries half of the buffer; an inner node of one is a leaf of the other, so from N = 4 on the busiest
    rank sends and receives 2 buffers (N = 3: 1.5, N = 2: 1), and the root of a tree fewer. The pieces that follow
    the first are taken to hide behind the wire: a lower bound that large buffers approach.

    Source: NVIDIA/nccl, src/graph/trees.cc and tuning.cc (``2 log2(nodes)`` latencies, bandwidth ratio 1/2).
    """
    size, ranks = _checked(n_bytes, n_ranks)
    halves = (0, 2, 3)[ranks - 1] if ranks < 4 else 4
    added = (0, 1, 2)[ranks - 1] if ranks < 4 else 2
    return Cost(
        rounds=2 * log2_ceil(ranks),
        wire_bytes=halves / 2 * size,
        reduced_bytes=added / 2 * size,
        sent_bytes=halves / 2 * size,
        total_bytes=2 * (ranks - 1) * size,
    )


def recursive_doubling_allreduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Partners exchange whole buffers: ``lg N (alpha + n beta + n gamma)``; two more messages if N is no power of two.

    Source: MPICH, src/mpi/coll/allreduce/allreduce_intra_recursive_doubling.c (cost comment).
    """
    size, ranks = _checked(n_bytes, n_ranks)
    steps = log2_floor(ranks)
    taking_part = 1 << steps
    extra = ranks - taking_part
    folds = 1 if extra else 0
    return Cost(
        rounds=steps + 2 * folds,
        wire_bytes=(steps + 2 * folds) * size,
        reduced_bytes=(steps + folds) * size,
        sent_bytes=(steps + folds) * size,
        total_bytes=(taking_part * steps + 2 * extra) * size,
    )


def rabenseifner_allreduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Recursive halving, then doubling: ``2 lg N alpha + 2 (N-1)/N n beta + (N-1)/N n gamma`` for a power of two.

    Otherwise N' = 2**floor(lg N) ranks take part and the rest hand over their buffers before and get the sum
    after: ``(2 lg N' + 2) alpha + (2 (N'-1)/N' + 2) n beta + (1 + (N'-1)/N') n gamma``. MPICH's comment writes
    N for N' in the fractions (:func:`rabenseifner_allreduce_mpich_cost`), which is a little more.

    Source: MPICH, src/mpi/coll/allreduce/allreduce_intra_reduce_scatter_allgather.c (cost comment).
    """
    size, ranks = _checked(n_bytes, n_ranks)
    steps = log2_floor(ranks)
    taking_part = 1 << steps
    return _rabenseifner(size, ranks, steps, (taking_part - 1) / taking_part)


def rabenseifner_allreduce_mpich_cost(n_bytes: float, n_ranks: int) -> Cost:
    """The same with N in the fractions, as MPICH's comment has it; equal for a power of two, an upper bound else."""
    size, ranks = _checked(n_bytes, n_ranks)
    return _rabenseifner(size, ranks, log2_floor(ranks), (ranks - 1) / ranks)


def _rabenseifner(size: float, ranks: int, steps: int, share: float) -> Cost:
    folds = 0 if is_power_of_two(ranks) else 1
    return Cost(
        rounds=2 * steps + 2 * folds,
        wire_bytes=(2 * share + 2 * folds) * size,
        reduced_bytes=(share + folds) * size,
        sent_bytes=(2 * share + folds) * size,
        total_bytes=2 * (ranks - 1) * size,
    )


def switch_allreduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Reduction inside the network (InfiniBand SHARP): every rank sends its buffer once and receives the sum once.

    ``2 alpha + n beta`` with alpha one way through the switches, streamed: half of what point-to-point links need.

    Source: Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COM-HPC 2016; the streaming of large
    buffers in Graham et al., "SHARP Streaming-Aggregation Hardware Design and Evaluation", ISC 2020.
    """
    size, ranks = _checked(n_bytes, n_ranks)
    sent = size if ranks > 1 else 0.0
    return Cost(
        rounds=2 if ranks > 1 else 0,
        wire_bytes=sent,
        reduced_bytes=0.0,
        sent_bytes=sent,
        total_bytes=ranks * sent,
    )


def switch_multicast_allreduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """NVLink SHARP (NVLS): each rank fetches the sum of its 1/N from the switch and stores it to all through it.

    A rank's link carries the whole buffer to the switch for the others' fetches and its own 1/N for the store,
    ``(N+1)/N`` buffers each way, in four one-way trips (request and answer, twice).

    Source: NCCL's maintainer in NVIDIA/nccl-tests pull request 239 (``algbw = busbw * n / (n+1)``).
    """
    size, ranks = _checked(n_bytes, n_ranks)
    sent = (ranks + 1) / ranks * size if ranks > 1 else 0.0
    return Cost(
        rounds=4 if ranks > 1 else 0,
        wire_bytes=sent,
        reduced_bytes=0.0,
        sent_bytes=sent,
        total_bytes=ranks * sent,
    )


def _half_ring_cost(n_bytes: float, n_ranks: int, reduces: bool) -> Cost:
    size, ranks = _checked(n_bytes, n_ranks)
    share = (ranks - 1) / ranks * size
    return Cost(
        rounds=ranks - 1,
        wire_bytes=share,
        reduced_bytes=share if reduces else 0.0,
        sent_bytes=share,
        total_bytes=(ranks - 1) * size,
    )


def ring_reduce_scatter_cost(n_bytes: float, n_ranks: int) -> Cost:
    """``(N-1) alpha + (N-1)/N n (beta + gamma)``, n the input of one rank. Source: Thakur et al. (2005)."""
    return _half_ring_cost(n_bytes, n_ranks, reduces=True)


def ring_allgather_cost(n_bytes: float, n_ranks: int) -> Cost:
    """``(N-1) alpha + (N-1)/N n beta``, n the output of one rank. Source: Thakur et al. (2005)."""
    return _half_ring_cost(n_bytes, n_ranks, reduces=False)


def _log_half_cost(size: float, ranks: int, reduces: bool) -> Cost:
    share = (ranks - 1) / ranks * size
    return Cost(
        rounds=log2_ceil(ranks),
        wire_bytes=share,
        reduced_bytes=share if reduces else 0.0,
        sent_bytes=share,
        total_bytes=(ranks - 1) * size,
    )


def recursive_halving_reduce_scatter_cost(n_bytes: float, n_ranks: int) -> Cost:
    """``lg N alpha + (N-1)/N n (beta + gamma)``; N a power of two. Source: Thakur et al. (2005)."""
    size, ranks = _checked_power("recursive halving", n_bytes, n_ranks)
    return _log_half_cost(size, ranks, reduces=True)


def recursive_doubling_allgather_cost(n_bytes: float, n_ranks: int) -> Cost:
    """``lg N alpha + (N-1)/N n beta``; N a power of two. Source: Thakur et al. (2005)."""
    size, ranks = _checked_power("recursive doubling", n_bytes, n_ranks)
    return _log_half_cost(size, ranks, reduces=False)


def bruck_allgather_cost(n_bytes: float, n_ranks: int) -> Cost:
    """``ceil(lg N) alpha + (N-1)/N n beta`` for any N. Source: Bruck et al., IEEE TPDS 8 (1997)."""
    size, ranks = _checked(n_bytes, n_ranks)
    return _log_half_cost(size, ranks, reduces=False)


def direct_alltoall_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Every pair exchanges its chunk: ``(N-1) alpha + (N-1)/N n beta``, n the input of one rank, its own part too.

    Source: MPICH, src/mpi/coll/alltoall/alltoall_intra_pairwise.c.
    """
    size, ranks = _checked(n_bytes, n_ranks)
    share = (ranks - 1) / ranks * size
    return Cost(
        rounds=ranks - 1,
        wire_bytes=share,
        reduced_bytes=0.0,
        sent_bytes=share,
        total_bytes=(ranks - 1) * size,
    )


def bruck_alltoall_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Store and forward: ``ceil(lg N) alpha`` and ``n/2 lg N beta`` for a power of two.

    A chunk that travels d ranks moves once for every bit set in d, so any N sends ``n/N`` times the number of
    bits set in 0 to N-1.

    Source: Bruck et al. (1997); MPICH, src/mpi/coll/alltoall/alltoall_intra_brucks.c.
    """
    size, ranks = _checked(n_bytes, n_ranks)
    moves = _bits_set_below(ranks)
    sent = moves / ranks * size
    return Cost(
        rounds=log2_ceil(ranks), wire_bytes=sent, reduced_bytes=0.0, sent_bytes=sent, total_bytes=moves * size
    )


def binomial_tree_broadcast_cost(n_bytes: float, n_ranks: int) -> Cost:
    """``ceil(lg N) (alpha + n beta)``. Source: MPICH, bcast (cost comment)."""
    size, ranks = _checked(n_bytes, n_ranks)
    depth = log2_ceil(ranks)
    return Cost(
        rounds=depth,
        wire_bytes=depth * size,
        reduced_bytes=0.0,
        sent_bytes=depth * size,
        total_bytes=(ranks - 1) * size,
    )


def scatter_allgather_broadcast_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Binomial scatter and ring all-gather: ``(ceil(lg N) + N-1) alpha + 2 (N-1)/N n beta``. Source: MPICH, bcast."""
    size, ranks = _checked(n_bytes, n_ranks)
    share = (ranks - 1) / ranks * size
    # In a binomial scatter a chunk moves once for every bit set in its rank.
    scattered = _bits_set_below(ranks) / ranks * size
    return Cost(
        rounds=log2_ceil(ranks) + ranks - 1,
        wire_bytes=2 * share,
        reduced_bytes=0.0,
        sent_bytes=2 * share,
        total_bytes=scattered + (ranks - 1) * size,
    )


def _bits_set_below(number: int) -> int:
    """Bits set in 0, 1, ..., number - 1, together."""
    total, bit = 0, 1
    while bit < number:
        total += number // (2 * bit) * bit + max(number % (2 * bit) - bit, 0)
        bit *= 2
    return total


def chain_broadcast_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Pieces down a chain with perfect pipelining, as NCCL's ring broadcast: ``(N-1) alpha + n beta``.

    The pieces that follow the first are taken to hide behind the wire: a lower bound that large buffers approach.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md (broadcast, factor 1).
    """
    size, ranks = _checked(n_bytes, n_ranks)
    sent = size if ranks > 1 else 0.0
    return Cost(
        rounds=ranks - 1, wire_bytes=sent, reduced_bytes=0.0, sent_bytes=sent, total_bytes=(ranks - 1) * size
    )


def binomial_tree_reduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """``ceil(lg N) (alpha + n beta + n gamma)``. Source: MPICH, reduce (cost comment)."""
    size, ranks = _checked(n_bytes, n_ranks)
    depth = log2_ceil(ranks)
    return Cost(
        rounds=depth,
        wire_bytes=depth * size,
        reduced_bytes=depth * size,
        sent_bytes=size if ranks > 1 else 0.0,
        total_bytes=(ranks - 1) * size,
    )


def chain_reduce_cost(n_bytes: float, n_ranks: int) -> Cost:
    """Pieces up a chain with perfect pipelining: ``(N-1) alpha + n (beta + gamma)``, a lower bound as the broadcast."""
    size, ranks = _checked(n_bytes, n_ranks)
    sent = size if ranks > 1 else 0.0
    return Cost(
        rounds=ranks - 1, wire_bytes=sent, reduced_bytes=sent, sent_bytes=sent, total_bytes=(ranks - 1) * size
    )


# The table of algorithms, and choosing among them ---------------------------------------------------------------


@dataclass(frozen=True)
class Algorithm:
    """One way to run a collective.

    Attributes:
        collective: what it computes, one of :data:`COLLECTIVES`.
        name: how, unique within the collective.
        cost: ``(n_bytes, n_ranks) -> Cost``.
        schedule: ``(n_ranks) -> Schedule`` of the same algorithm.
        pipelined: the cost is the limit of many small pieces; the schedule of few pieces is slower.
        powers_of_two_only: it exists for 1, 2, 4, 8, ... ranks only.
        in_network: it needs switches that reduce.
    """

    collective: str
    name: str
    cost: Callable[[float, int], Cost]
    schedule: Callable[[int], Schedule]
    pipelined: bool
    powers_of_two_only: bool
    in_network: bool

    def runs_on(self, n_ranks: int, in_network: bool = False) -> bool:
        """Whether it exists for ``n_ranks`` ranks on this network."""
        return (in_network or not self.in_network) and (
            not self.powers_of_two_only or is_power_of_two(n_ranks)
        )


def _entry(
    collective: str,
    name: str,
    cost: Callable[[float, int], Cost],
    schedule: Callable[..., Schedule],
    trait: str = "",
) -> Algorithm:
    return Algorithm(
        collective=collective,
        name=name,
        cost=cost,
        schedule=schedule,
        pipelined=trait in ("pipelined", "in network"),
        powers_of_two_only=trait == "powers of two",
        in_network=trait == "in network",
    )


COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce")

ALGORITHMS = (
    _entry("all-reduce", "ring", ring_allreduce_cost, schedules.ring_allreduce),
    _entry("all-reduce", "binomial tree", binomial_tree_allreduce_cost, schedules.binomial_tree_allreduce),
    _entry(
        "all-reduce", "double tree", double_tree_allreduce_cost, schedules.double_tree_allreduce, "pipelined"
    ),
    _entry(
        "all-reduce",
        "recursive doubling",
        recursive_doubling_allreduce_cost,
        schedules.recursive_doubling_allreduce,
    ),
    _entry("all-reduce", "rabenseifner", rabenseifner_allreduce_cost, schedules.rabenseifner_allreduce),
    _entry("all-reduce", "switch", switch_allreduce_cost, schedules.switch_allreduce, "in network"),
    _entry(
        "all-reduce",
        "switch multicast",
        switch_multicast_allreduce_cost,
        schedules.switch_multicast_allreduce,
        "in network",
    ),
    _entry("reduce-scatter", "ring", ring_reduce_scatter_cost, schedules.ring_reduce_scatter),
    _entry(
        "reduce-scatter",
        "recursive halving",
        recursive_halving_reduce_scatter_cost,
        schedules.recursive_halving_reduce_scatter,
        "powers of two",
    ),
    _entry("all-gather", "ring", ring_allgather_cost, schedules.ring_allgather),
    _entry(
        "all-gather",
        "recursive doubling",
        recursive_doubling_allgather_cost,
        schedules.recursive_doubling_allgather,
        "powers of two",
    ),
    _entry("all-gather", "bruck", bruck_allgather_cost, schedules.bruck_allgather),
    _entry("all-to-all", "direct", direct_alltoall_cost, schedules.direct_alltoall),
    _entry("all-to-all", "bruck", bruck_alltoall_cost, schedules.bruck_alltoall),
    _entry("broadcast", "binomial tree", binomial_tree_broadcast_cost, schedules.binomial_tree_broadcast),
    _entry(
        "broadcast",
        "scatter all-gather",
        scatter_allgather_broadcast_cost,
        schedules.scatter_allgather_broadcast,
    ),
    _entry("broadcast", "chain", chain_broadcast_cost, schedules.chain_broadcast, "pipelined"),
    _entry("reduce", "binomial tree", binomial_tree_reduce_cost, schedules.binomial_tree_reduce),
    _entry("reduce", "chain", chain_reduce_cost, schedules.chain_reduce, "pipelined"),
)
"""Every algorithm modelled here. Where two cost the same, the earlier one is preferred."""


def algorithms(collective: str) -> list[Algorithm]:
    """The algorithms of one collective, in the order of :data:`ALGORITHMS`.

    Raises:
        ValueError: ``collective`` is unknown.
    """
    name = choice("collective", collective, COLLECTIVES)
    return [entry for entry in ALGORITHMS if entry.collective == name]


def algorithm(collective: str, name: str) -> Algorithm:
    """One algorithm by its names.

    Raises:
        ValueError: the collective or the algorithm is unknown; the message lists those there are.
    """
    entries = algorithms(collective)
    wanted = choice(f"algorithm of {collective}", name, tuple([entry.name for entry in entries]))
    return next(entry for entry in entries if entry.name == wanted)


def collective_time_s(
    collective: str,
    name: str,
    n_bytes: float,
    n_ranks: int,
    bandwidth: float,
    latency_s: float = 0.0,
    reduce_s_per_byte: float = 0.0,
) -> float:
    """Seconds of one collective with one algorithm; see :meth:`Cost.time_s`."""
    return algorithm(collective, name).cost(n_bytes, n_ranks).time_s(bandwidth, latency_s, reduce_s_per_byte)


@dataclass(frozen=True)
class Choice:
    """The fastest algorithm for one size and number of ranks.

    Attributes:
        algorithm: its name.
        time_s: its time, seconds.
        times_s: ``(name, seconds)`` of all that exist for this number of ranks, fastest first.
    """

    algorithm: str
    time_s: float
    times_s: list[tuple[str, float]]


def fastest(
    collective: str,
    n_bytes: float,
    n_ranks: int,
    bandwidth: float,
    latency_s: float = 0.0,
    reduce_s_per_byte: float = 0.0,
    in_network: bool = False,
) -> Choice:
    """The algorithm with the least modelled time.

    Args:
        collective: one of :data:`COLLECTIVES`.
        n_bytes: the buffer, bytes.
        n_ranks: number of ranks N.
        bandwidth: bytes/s per rank and direction.
        latency_s: seconds per message.
        reduce_s_per_byte: seconds per byte added.
        in_network: whether the switches can reduce.

    Raises:
        ValueError: an argument is out of range or the collective is unknown.
    """
    ranks = count("n_ranks", n_ranks)
    timed = [
        (entry.name, entry.cost(n_bytes, ranks).time_s(bandwidth, latency_s, reduce_s_per_byte))
        for entry in algorithms(collective)
        if entry.runs_on(ranks, in_network)
    ]
    # Insertion into place keeps the table's order among equals; MicroPython's sort is not stable.
    ordered: list[tuple[str, float]] = []
    for item in timed:
        place = len(ordered)
        while place and ordered[place - 1][1] > item[1]:
            place -= 1
        ordered.insert(place, item)
    return Choice(algorithm=ordered[0][0], time_s=ordered[0][1], times_s=ordered)


def crossover_bytes(
    collective: str,
    first: str,
    second: str,
    n_ranks: int,
    bandwidth: float,
    latency_s: float,
    reduce_s_per_byte: float = 0.0,
) -> float | None:
    """The buffer size at which two algorithms take the same time, or None if one is never slower than the other.

    Every cost here is ``a + b * n_bytes``, so the size is ``(a2 - a1) / (b1 - b2)``.

    Raises:
        ValueError: an argument is out of range, or a name is unknown.
    """
    one = _line(algorithm(collective, first), n_ranks, bandwidth, latency_s, reduce_s_per_byte)
    two = _line(algorithm(collective, second), n_ranks, bandwidth, latency_s, reduce_s_per_byte)
    if one[1] == two[1]:
        return None
    size = (two[0] - one[0]) / (one[1] - two[1])
    return size if size > 0 else None


def _line(
    entry: Algorithm, n_ranks: int, bandwidth: float, latency_s: float, reduce_s_per_byte: float
) -> tuple[float, float]:
    """Seconds at size 0, and seconds per byte."""
    at_zero = entry.cost(0.0, n_ranks).time_s(bandwidth, latency_s, reduce_s_per_byte)
    return at_zero, entry.cost(1.0, n_ranks).time_s(bandwidth, 0.0, reduce_s_per_byte)


def crossovers(
    collective: str,
    n_ranks: int,
    bandwidth: float,
    latency_s: float,
    reduce_s_per_byte: float = 0.0,
    in_network: bool = False,
) -> list[tuple[float, str]]:
    """From which buffer size on which algorithm is the fastest: ``[(0.0, name), (bytes, name), ...]``, rising.

    Solved, not scanned: times are straight lines in the size, and the fastest are the lower edge of those lines.

    Raises:
        ValueError: an argument is out of range or the collective is unknown.
    """
    ranks = count("n_ranks", n_ranks)
    lines = []
    for entry in algorithms(collective):
        if entry.runs_on(ranks, in_network):
            start, slope = _line(entry, ranks, bandwidth, latency_s, reduce_s_per_byte)
            lines.append((start, slope, entry.name))
    return [(size, name) for size, (_, _, name) in lower_edge(lines)]


def lower_edge(lines: list[tuple[float, float, Any]]) -> list[tuple[float, tuple[float, float, Any]]]:
    """From which place on which line is the lowest: ``[(0.0, line), (place, line), ...]``, rising.

    Args:
        lines: one or more of (height at 0, slope, whatever belongs to it).
    """
    current = lines[0]
    for line in lines[1:]:
        if line[:2] < current[:2]:
            current = line
    place, found = 0.0, []
    while True:
        found.append((place, current))
        following = None
        for line in lines:
            if line[1] < current[1]:
                meets = (line[0] - current[0]) / (current[1] - line[1])
                if following is None or (meets, line[1]) < (place, following[1]):
                    place, following = meets, line
        if following is None:
            return found
        current = following


# Simulations of all of them -------------------------------------------------------------------------------------


def simulate(collective: str, name: str, buffers: Any, element_bytes: int = 4) -> Simulation:
    """Run one algorithm on real numbers, message by message, and count what every rank sends.

    Args:
        collective, name: as in :data:`ALGORITHMS`.
        buffers: one flat sequence of numbers per rank. All-reduce, reduce-scatter, reduce and all-to-all: the
            input of each rank, of one length, cut into chunks here. All-gather: the shard of each rank, whose
            lengths may differ. Broadcast: only rank 0's is read.
        element_bytes: bytes of one element on the wire.

    Returns:
        The finished :class:`Simulation`. ``results[r]`` is the sum (all-reduce), rank r's part of it
        (reduce-scatter), all shards in order (all-gather), the chunks meant for rank r (all-to-all), rank 0's
        buffer (broadcast), or the sum at rank 0 and nothing elsewhere (reduce).

    Raises:
        ValueError: unknown names, buffers of different lengths, or a number of ranks the algorithm has no form for.
    """
    entry = algorithm(collective, name)
    n_ranks = count("number of buffers", len(buffers))
    width = count("element_bytes", element_bytes)
    if not entry.runs_on(n_ranks, in_network=True):
        raise ValueError(f"number of buffers must be a power of two for {name}, not {n_ranks}")
    schedule = entry.schedule(n_ranks)
    rows = [list(buffers[rank]) for rank in range(n_ranks)]
    if collective == "all-gather":
        return schedules.run(schedule, [[row] for row in rows], width)
    if collective != "broadcast":
        for rank in range(n_ranks):
            if len(rows[rank]) != len(rows[0]):
                raise ValueError(
                    f"buffers[{rank}] must hold {len(rows[0])} numbers like buffers[0], not {len(rows[rank])}"
                )
    pieces = n_ranks if collective == "all-to-all" else schedule.n_chunks
    return schedules.run(
        schedule,
        [_cut(rows[rank], pieces) if schedule.starts[rank] else [] for rank in range(n_ranks)],
        width,
    )


def _cut(row: list[float], pieces: int) -> list[list[float]]:
    chunks, start = [], 0
    for size in chunk_sizes(len(row), pieces):
        chunks.append(row[start : start + size])
        start += size
    return chunks


def simulate_hierarchical_allreduce(buffers: Any, ranks_per_node: int, element_bytes: int = 4) -> Simulation:
    """Run :func:`hierarchical_allreduce` on real numbers; rank ``node * ranks_per_node + place``.

    Raises:
        ValueError: the ranks do not fill whole nodes, or buffers differ in length.
    """
    n_ranks = count("number of buffers", len(buffers))
    per_node = count("ranks_per_node", ranks_per_node)
    width = count("element_bytes", element_bytes)
    if n_ranks % per_node:
        raise ValueError(f"number of buffers must be a multiple of ranks_per_node {per_node}, not {n_ranks}")
    rows = [list(buffers[rank]) for rank in range(n_ranks)]
    for rank in range(n_ranks):
        if len(rows[rank]) != len(rows[0]):
            raise ValueError(
                f"buffers[{rank}] must hold {len(rows[0])} numbers like buffers[0], not {len(rows[rank])}"
            )
    schedule = schedules.hierarchical_allreduce(per_node, n_ranks // per_node)
    return schedules.run(schedule, [_cut(row, n_ranks) for row in rows], width)


def simulated_cost(simulation: Simulation) -> Cost:
    """The :class:`Cost` that a simulation counted, to hold against a formula."""
    return Cost(
        rounds=simulation.n_rounds,
        wire_bytes=sum(simulation.round_bytes),
        reduced_bytes=sum(simulation.round_reduced_bytes),
        sent_bytes=max(simulation.sent_bytes),
        total_bytes=sum(simulation.sent_bytes),
    )


# Two levels of links --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HierarchicalAllReduce:
    """One all-reduce over k nodes of g ranks: reduce-scatter inside, all-reduce across, all-gather inside.

    Attributes:
        intra_time_s: both phases inside the node; ``inter_time_s``: the phase between nodes.
        time_bracket_s: pieces of the buffer flowing through all phases at once (the slower level alone), and one
            phase after the other (their sum).
        intra_sent_bytes: bytes a rank sends inside its node; ``inter_sent_bytes``: through its share of the NICs.
        node_sent_bytes: bytes that one node sends through all its NICs.
        busbw_bracket: what nccl-tests would print as bus bandwidth, bytes/s, for the slow and fast end.
    """

    intra_time_s: float
    inter_time_s: float
    time_bracket_s: tuple[float, float]
    intra_sent_bytes: float
    inter_sent_bytes: float
    node_sent_bytes: float
    busbw_bracket: tuple[float, float]


def hierarchical_allreduce(
    n_bytes: float,
    ranks_per_node: int,
    n_nodes: int,
    intra_bandwidth: float,
    nic_bandwidth: float,
    nics_per_node: int = 1,
    intra_latency_s: float = 0.0,
    inter_latency_s: float = 0.0,
    inter_algorithm: str = "ring",
) -> HierarchicalAllReduce:
    """All-reduce over two levels of links.

    Inside a node every rank reduce-scatters over ``intra_bandwidth``, so it holds 1/g of the buffer; the ranks
    with the same place in all nodes all-reduce that over their g-th of the node's NICs; the node gathers.
    Between nodes a rank sends ``2 (k-1)/k * n_bytes/g``.

    Args:
        n_bytes: buffer of one rank, bytes.
        ranks_per_node: ``g``.
        n_nodes: ``k``.
        intra_bandwidth: bytes/s per rank and direction inside the node.
        nic_bandwidth: bytes/s per NIC and direction.
        nics_per_node: shared evenly by the g ranks.
        intra_latency_s, inter_latency_s: seconds per message.
        inter_algorithm: any all-reduce algorithm for the phase between nodes.

    Raises:
        ValueError: an argument is out of range.

    Assumes equal nodes and that all NICs of a node are used evenly. Source: the scheme of Horovod's hierarchical
    all-reduce (horovod pull request 411: NCCL reduce-scatter, MPI all-reduce, NCCL all-gather).
    """
    size, per_node = _checked(n_bytes, ranks_per_node)
    nodes = count("n_nodes", n_nodes)
    nics = count("nics_per_node", nics_per_node)
    nic = positive("nic_bandwidth", nic_bandwidth, "bytes/s")
    inside = ring_reduce_scatter_cost(size, per_node)
    back = ring_allgather_cost(size, per_node)
    across = algorithm("all-reduce", inter_algorithm).cost(size / per_node, nodes)
    intra = inside.time_s(intra_bandwidth, intra_latency_s) + back.time_s(intra_bandwidth, intra_latency_s)
    inter = across.time_s(nic * nics / per_node, inter_latency_s)
    bracket = (max(intra, inter), intra + inter)
    ranks = per_node * nodes
    return HierarchicalAllReduce(
        intra_time_s=intra,
        inter_time_s=inter,
        time_bracket_s=bracket,
        intra_sent_bytes=inside.sent_bytes + back.sent_bytes,
        inter_sent_bytes=across.sent_bytes,
        node_sent_bytes=across.sent_bytes * per_node,
        busbw_bracket=(
            _busbw_or_zero("all-reduce", size, bracket[1], ranks),
            _busbw_or_zero("all-reduce", size, bracket[0], ranks),
        ),
    )


def _busbw_or_zero(collective: str, n_bytes: float, time_s: float, n_ranks: int) -> float:
    return busbw(collective, n_bytes, time_s, n_ranks) if time_s > 0 else 0.0


def wire_rate_from_busbw(busbw: float, n_ranks: int, n_nodes: int) -> float:
    """Bytes/s that one rank of a hierarchical all-reduce sends between nodes: ``busbw * (k-1) / (n-1)``.

    A bus bandwidth over several nodes mixes two levels of links. With the reduction done inside the node first,
    a rank sends ``2 (k-1)/n`` of the buffer between nodes, against the ``2 (n-1)/n`` that the bus bandwidth
    assumes. Times the ranks of a node, it is what the node's NICs carry.

    Raises:
        ValueError: an argument is out of range, or the ranks do not fill whole nodes.
    """
    rate = non_negative("busbw", busbw, "bytes/s")
    ranks = count("n_ranks", n_ranks, least=2)
    nodes = count("n_nodes", n_nodes, most=ranks)
    if ranks % nodes:
        raise ValueError(f"n_ranks must be a multiple of n_nodes {nodes}, not {ranks}")
    return rate * (nodes - 1) / (ranks - 1)


# Bandwidths as benchmarks print them ----------------------------------------------------------------------------


def algbw(n_bytes: float, time_s: float) -> float:
    """Algorithm bandwidth, bytes/s: size over time. The size is that of the whole buffer (see the module's top).

    Raises:
        ValueError: an argument is out of range.
    """
    return non_negative("n_bytes", n_bytes, "bytes") / positive("time_s", time_s, "seconds")


def busbw_factor(collective: str, n_ranks: int, in_network: bool = False) -> float:
    """What nccl-tests multiplies the algorithm bandwidth by to get the bus bandwidth.

    All-reduce ``2 (n-1)/n``; reduce-scatter, all-gather and all-to-all ``(n-1)/n``; broadcast and reduce 1. With it
    the bus bandwidth of point-to-point algorithms compares with the speed of a link, whatever the number of ranks.

    ``in_network`` gives the ``(n-1)/(n+1)`` that the document lists for an all-reduce reduced in the network. The
    benchmark itself never applies it, and NCCL's maintainer has since withdrawn it: what a link of a rank carries
    is ``(n+1)/n`` of the buffer (:func:`in_network_wire_factor`). No rank can send less than its buffer.

    Raises:
        ValueError: unknown collective, fewer than one rank, or ``in_network`` for anything but an all-reduce.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md; pull request 239 there for the correction.
    """
    kind = choice("collective", collective, COLLECTIVES)
    ranks = count("n_ranks", n_ranks)
    if in_network:
        if kind != "all-reduce":
            raise ValueError(f"in_network has a factor for all-reduce only, not {collective!r}")
        return (ranks - 1) / (ranks + 1)
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("broadcast", "reduce"):
        return 1.0
    return (ranks - 1) / ranks


def in_network_wire_factor(n_ranks: int) -> float:
    """Buffers that a rank's link carries each way in an NVLink SHARP all-reduce: ``(n+1)/n``, 0 for one rank."""
    return switch_multicast_allreduce_cost(1.0, n_ranks).sent_bytes


def busbw(collective: str, n_bytes: float, time_s: float, n_ranks: int) -> float:
    """Bus bandwidth, bytes/s: :func:`algbw` times :func:`busbw_factor`.

    Raises:
        ValueError: an argument is out of range or the collective is unknown.
    """
    return algbw(n_bytes, time_s) * busbw_factor(collective, n_ranks)


# NCCL's own cost model ------------------------------------------------------------------------------------------


def nccl_allreduce_latency_s(
    name: str, protocol: str, n_ranks: int, n_nodes: int = 1, intra: str = "NVLink", n_bytes: float = 0.0
) -> float:
    """The latency that NCCL's tuning model adds to an all-reduce, seconds.

    Ring: a base, ``2 (k-1)`` steps over the network and the rest of the ``2 (n-1)`` inside nodes. Tree: a base and
    ``2 ((n/k - 1) intra + floor(lg k) network)``. Between nodes the LL protocol's inner steps count 1.8 times, and
    the Simple ring 1.9 times in all from ``n/16 * 64 KiB`` on.

    Args:
        name: ``"ring"`` or ``"tree"``.
        protocol: ``"LL"``, ``"LL128"`` or ``"Simple"``.
        n_ranks, n_nodes: n and k.
        intra: ``"NVLink"`` or ``"PCI"``.
        n_bytes: the buffer, bytes.

    Raises:
        ValueError: an argument is out of range.

    Source: the constants and their commit are in :data:`shardlab.measured.NCCL_TUNING`; later versions differ.
    """
    kind = choice("name", name, ("ring", "tree"))
    column = ("LL", "LL128", "Simple").index(choice("protocol", protocol, ("LL", "LL128", "Simple")))
    inner_link = choice("intra", intra, ("NVLink", "PCI"))
    ranks = count("n_ranks", n_ranks)
    nodes = count("n_nodes", n_nodes, most=ranks)
    size = non_negative("n_bytes", n_bytes, "bytes")
    if ranks == 1:
        return 0.0
    table = NCCL_TUNING.ring_latency_us if kind == "ring" else NCCL_TUNING.tree_latency_us
    base = (NCCL_TUNING.ring_base_us if kind == "ring" else NCCL_TUNING.tree_base_us)[column]
    intra_us, network_us = table[inner_link][column], table["network"][column]
    if nodes > 1 and protocol == "LL":
        intra_us *= NCCL_TUNING.ll_inter_node_factor
    if kind == "ring":
        between = 2 * (nodes - 1)
        latency = base + (2 * (ranks - 1) - between) * intra_us + between * network_us
        if protocol == "Simple" and nodes > 1 and size >= ranks / 16 * 65536:
            latency *= NCCL_TUNING.ring_plateau_factor
    else:
        latency = base + 2 * ((ranks // nodes - 1) * intra_us + log2_floor(nodes) * network_us)
    return latency * 1e-6
