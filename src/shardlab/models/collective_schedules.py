"""Collectives as lists of messages, and one executor that runs any of them on real numbers.

A schedule is a list of rounds; all messages of a round are under way at the same time, and a message carries
whole chunks of the buffer. The executor counts what every rank sends, receives and adds, so a cost formula can
be held against it. :mod:`shardlab.models.collectives` has the formulas and names the schedules.

Ranks are 0 to N-1. A node N, where there is one, is the switch that reduces inside the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import count


@dataclass(frozen=True)
class Message:
    """``source`` sends the chunks ``chunks`` to ``destination``, which adds them (``reduces``) or keeps them."""

    source: int
    destination: int
    chunks: tuple[int, ...]
    reduces: bool


@dataclass(frozen=True)
class Round:
    """Messages that are under way together. ``phase`` says what they do, such as ``"reduce-scatter"``."""

    phase: str
    messages: list[Message]


@dataclass(frozen=True)
class Schedule:
    """A collective for N ranks as rounds of messages over a buffer of ``n_chunks`` chunks.

    Attributes:
        n_ranks: ``N``.
        n_chunks: chunks the buffer is cut into, numbered in buffer order.
        rounds: in the order in which they run.
        starts: for each rank, the chunks it holds at the start.
        ends: for each rank, the chunks that are its result, in order.
    """

    n_ranks: int
    n_chunks: int
    rounds: list[Round]
    starts: list[list[int]]
    ends: list[list[int]]


def chunk_sizes(n_elements: int, n_ranks: int) -> list[int]:
    """Sizes of the N chunks of a buffer, as equal as they can be: the first ``n_elements % N`` are one longer."""
    elements = count("n_elements", n_elements, least=0)
    ranks = count("n_ranks", n_ranks)
    return [elements // ranks + (1 if chunk < elements % ranks else 0) for chunk in range(ranks)]


def log2_floor(number: int) -> int:
    """The largest whole ``k`` with ``2**k <= number``."""
    power = 0
    while 2 << power <= number:
        power += 1
    return power


def log2_ceil(number: int) -> int:
    """The smallest whole ``k`` with ``2**k >= number``."""
    power = log2_floor(number)
    return power if 1 << power == number else power + 1


def is_power_of_two(number: int) -> bool:
    """Whether ``number`` is 1, 2, 4, 8, ..."""
    return number & (number - 1) == 0


def _all_chunks(n_ranks: int, n_chunks: int) -> list[list[int]]:
    return [list(range(n_chunks)) for _ in range(n_ranks)]


def _own_chunk(n_ranks: int) -> list[list[int]]:
    return [[rank] for rank in range(n_ranks)]


# Rings ---------------------------------------------------------------------------------------------------------


def ring_reduce_scatter_rounds(ranks: list[int], groups: list[tuple[int, ...]], phase: str) -> list[Round]:
    """N-1 rounds after which ``ranks[i]`` holds the sum of the chunks ``groups[i]``; each rank talks to the next."""
    n = len(ranks)
    return [
        Round(
            phase=phase,
            messages=[
                Message(
                    source=ranks[place],
                    destination=ranks[(place + 1) % n],
                    chunks=groups[(place - step - 1) % n],
                    reduces=True,
                )
                for place in range(n)
            ],
        )
        for step in range(n - 1)
    ]


def ring_allgather_rounds(ranks: list[int], groups: list[tuple[int, ...]], phase: str) -> list[Round]:
    """N-1 rounds that pass ``groups[i]``, held by ``ranks[i]`` at the start, once around the ring."""
    n = len(ranks)
    return [
        Round(
            phase=phase,
            messages=[
                Message(
                    source=ranks[place],
                    destination=ranks[(place + 1) % n],
                    chunks=groups[(place - step) % n],
                    reduces=False,
                )
                for place in range(n)
            ],
        )
        for step in range(n - 1)
    ]


def _singles(n_ranks: int) -> list[tuple[int, ...]]:
    return [(chunk,) for chunk in range(n_ranks)]


def ring_reduce_scatter(n_ranks: int) -> Schedule:
    """Ring reduce-scatter: rank r ends with the sum of chunk r."""
    rounds = ring_reduce_scatter_rounds(list(range(n_ranks)), _singles(n_ranks), "reduce-scatter")
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_ranks,
        rounds=rounds,
        starts=_all_chunks(n_ranks, n_ranks),
        ends=_own_chunk(n_ranks),
    )


def ring_allgather(n_ranks: int) -> Schedule:
    """Ring all-gather: rank r starts with chunk r, and all end with every chunk."""
    rounds = ring_allgather_rounds(list(range(n_ranks)), _singles(n_ranks), "all-gather")
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_ranks,
        rounds=rounds,
        starts=_own_chunk(n_ranks),
        ends=_all_chunks(n_ranks, n_ranks),
    )


def ring_allreduce(n_ranks: int) -> Schedule:
    """Ring reduce-scatter, then ring all-gather."""
    scatter, gather = ring_reduce_scatter(n_ranks), ring_allgather(n_ranks)
    return _allreduce(n_ranks, n_ranks, scatter.rounds + gather.rounds)


def _allreduce(n_ranks: int, n_chunks: int, rounds: list[Round]) -> Schedule:
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_chunks,
        rounds=rounds,
        starts=_all_chunks(n_ranks, n_chunks),
        ends=_all_chunks(n_ranks, n_chunks),
    )


# Trees ---------------------------------------------------------------------------------------------------------


def _binomial_broadcast_rounds(n_ranks: int, chunks: tuple[int, ...]) -> list[Round]:
    """Round j doubles the informed ranks: each of the first 2**j sends to the rank 2**j above it."""
    return [
        Round(
            phase="broadcast",
            messages=[
                Message(source=rank, destination=rank + (1 << step), chunks=chunks, reduces=False)
                for rank in range(1 << step)
                if rank + (1 << step) < n_ranks
            ],
        )
        for step in range(log2_ceil(n_ranks))
    ]


def _binomial_reduce_rounds(n_ranks: int, chunks: tuple[int, ...]) -> list[Round]:
    """The broadcast backwards."""
    rounds = _binomial_broadcast_rounds(n_ranks, chunks)
    return [
        Round(
            phase="reduce",
            messages=[
                Message(source=message.destination, destination=message.source, chunks=chunks, reduces=True)
                for message in rounds[len(rounds) - 1 - step].messages
            ],
        )
        for step in range(len(rounds))
    ]


def _from_root(n_ranks: int, n_chunks: int, rounds: list[Round]) -> Schedule:
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_chunks,
        rounds=rounds,
        starts=[list(range(n_chunks)) if rank == 0 else [] for rank in range(n_ranks)],
        ends=_all_chunks(n_ranks, n_chunks),
    )


def _to_root(n_ranks: int, n_chunks: int, rounds: list[Round]) -> Schedule:
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_chunks,
        rounds=rounds,
        starts=_all_chunks(n_ranks, n_chunks),
        ends=[list(range(n_chunks)) if rank == 0 else [] for rank in range(n_ranks)],
    )


def binomial_tree_broadcast(n_ranks: int) -> Schedule:
    """Binomial tree from rank 0, the whole buffer in every message."""
    return _from_root(n_ranks, 1, _binomial_broadcast_rounds(n_ranks, (0,)))


def binomial_tree_reduce(n_ranks: int) -> Schedule:
    """Binomial tree to rank 0, the whole buffer in every message."""
    return _to_root(n_ranks, 1, _binomial_reduce_rounds(n_ranks, (0,)))


def binomial_tree_allreduce(n_ranks: int) -> Schedule:
    """Binomial reduce to rank 0, then binomial broadcast."""
    rounds = _binomial_reduce_rounds(n_ranks, (0,)) + _binomial_broadcast_rounds(n_ranks, (0,))
    return _allreduce(n_ranks, 1, rounds)


def binary_tree_parents(n_ranks: int) -> list[int]:
    """NCCL's binary tree: the parent of each rank, -1 for the root, rank 0.

    The lowest set bit of a rank is its height; the parent has the next bit set instead, or, where that rank does
    not exist, the lowest bit cleared. Odd ranks are leaves. Depth ``ceil(log2 N)``.

    Source: NVIDIA/nccl, src/graph/trees.cc, ``ncclGetBtree``.
    """
    parents = [-1]
    for rank in range(1, n_ranks):
        bit = rank & -rank
        above = (rank ^ bit) | (bit << 1)
        parents.append(above if above < n_ranks else rank ^ bit)
    return parents


def double_tree_parents(n_ranks: int) -> list[list[int]]:
    """NCCL's two complementary trees: a rank that is an inner node of one is a leaf (or root) of the other.

    The second is the first mirrored (N even) or shifted by one rank (N odd).

    Source: NVIDIA/nccl, src/graph/trees.cc, ``ncclGetDtree``; the idea in Sanders, Speck and Träff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009).
    """
    first = binary_tree_parents(n_ranks)
    second = [-1] * n_ranks
    for rank in range(n_ranks):
        image = (rank + 1) % n_ranks if n_ranks % 2 else n_ranks - 1 - rank
        parent = first[rank]
        if parent >= 0:
            second[image] = (parent + 1) % n_ranks if n_ranks % 2 else n_ranks - 1 - parent
    return [first, second]


def _depths(parents: list[int]) -> list[int]:
    depths = []
    for rank in range(len(parents)):
        depth, above = 0, parents[rank]
        while above >= 0:
            depth, above = depth + 1, parents[above]
        depths.append(depth)
    return depths


def _heights(parents: list[int]) -> list[int]:
    heights = [0] * len(parents)
    for rank in range(len(parents)):
        height, below = 0, rank
        while parents[below] >= 0:
            height, below = height + 1, parents[below]
            heights[below] = max(heights[below], height)
    return heights


def double_tree_allreduce(n_ranks: int, pieces: int = 8) -> Schedule:
    """Each of two trees reduces and broadcasts half of the buffer, in ``pieces`` pieces that follow each other.

    A rank may talk in both trees, up and down, in one round; that is how the trees fill every link.
    """
    if n_ranks == 1:
        return _allreduce(1, 1, [])
    trees = double_tree_parents(n_ranks)
    height = max(_heights(trees[0]))
    n_rounds = pieces - 1 + 2 * height
    rounds: list[list[Message]] = [[] for _ in range(n_rounds)]
    for tree in range(2):
        parents = trees[tree]
        heights, depths = _heights(parents), _depths(parents)
        for piece in range(pieces):
            chunk = (tree * pieces + piece,)
            for rank in range(n_ranks):
                above = parents[rank]
                if above < 0:
                    continue
                up = Message(source=rank, destination=above, chunks=chunk, reduces=True)
                down = Message(source=above, destination=rank, chunks=chunk, reduces=False)
                rounds[piece + heights[rank]].append(up)
                rounds[piece + height + depths[above]].append(down)
    return _allreduce(n_ranks, 2 * pieces, [Round(phase="tree", messages=sends) for sends in rounds])


def chain_broadcast(n_ranks: int, pieces: int = 8) -> Schedule:
    """Pieces follow each other from rank 0 down the chain 0, 1, ..., N-1, as in NCCL's ring broadcast."""
    if n_ranks == 1:
        return _from_root(1, 1, [])
    rounds = [
        Round(
            phase="broadcast",
            messages=[
                Message(source=rank, destination=rank + 1, chunks=(step - rank,), reduces=False)
                for rank in range(n_ranks - 1)
                if 0 <= step - rank < pieces
            ],
        )
        for step in range(n_ranks - 2 + pieces)
    ]
    return _from_root(n_ranks, pieces, rounds)


def chain_reduce(n_ranks: int, pieces: int = 8) -> Schedule:
    """Pieces follow each other up the chain N-1, ..., 1, 0, each rank adding its own."""
    if n_ranks == 1:
        return _to_root(1, 1, [])
    rounds = [
        Round(
            phase="reduce",
            messages=[
                Message(
                    source=rank, destination=rank - 1, chunks=(step - (n_ranks - 1 - rank),), reduces=True
                )
                for rank in range(1, n_ranks)
                if 0 <= step - (n_ranks - 1 - rank) < pieces
            ],
        )
        for step in range(n_ranks - 2 + pieces)
    ]
    return _to_root(n_ranks, pieces, rounds)


def scatter_allgather_broadcast(n_ranks: int) -> Schedule:
    """Binomial scatter from rank 0, then ring all-gather."""
    rounds = []
    span = 1 << log2_ceil(n_ranks)
    while span > 1:
        half = span // 2
        messages = [
            Message(
                source=rank,
                destination=rank + half,
                chunks=tuple(range(rank + half, min(rank + span, n_ranks))),
                reduces=False,
            )
            for rank in range(0, n_ranks, span)
            if rank + half < n_ranks
        ]
        rounds.append(Round(phase="scatter", messages=messages))
        span = half
    rounds += ring_allgather_rounds(list(range(n_ranks)), _singles(n_ranks), "all-gather")
    return _from_root(n_ranks, n_ranks, rounds)


# Halving and doubling ------------------------------------------------------------------------------------------


def _aligned(place: int, span: int) -> tuple[int, ...]:
    """The chunks of the aligned block of ``span`` chunks that contains ``place``."""
    start = place - place % span
    return tuple(range(start, start + span))


def _halving_rounds(ranks: list[int]) -> list[Round]:
    """Recursive halving among ``ranks`` (a power of two): ``ranks[i]`` ends with the sum of chunk i."""
    rounds = []
    distance = len(ranks) // 2
    while distance:
        messages = [
            Message(
                source=ranks[place],
                destination=ranks[place ^ distance],
                chunks=_aligned(place ^ distance, distance),
                reduces=True,
            )
            for place in range(len(ranks))
        ]
        rounds.append(Round(phase="reduce-scatter", messages=messages))
        distance //= 2
    return rounds


def _doubling_rounds(ranks: list[int]) -> list[Round]:
    """Recursive doubling among ``ranks`` (a power of two), ``ranks[i]`` starting with chunk i."""
    rounds = []
    distance = 1
    while distance < len(ranks):
        messages = [
            Message(
                source=ranks[place],
                destination=ranks[place ^ distance],
                chunks=_aligned(place, distance),
                reduces=False,
            )
            for place in range(len(ranks))
        ]
        rounds.append(Round(phase="all-gather", messages=messages))
        distance *= 2
    return rounds


def _folded(n_ranks: int, n_chunks: int) -> tuple[list[Round], list[int], list[Round]]:
    """What MPICH does when N is no power of two: the first 2r ranks pair up, and the odd ones stand for both.

    Returns the round before, the ``2**floor(log2 N)`` ranks that take part, and the round after.
    """
    extra = n_ranks - (1 << log2_floor(n_ranks))
    if extra == 0:
        return [], list(range(n_ranks)), []
    whole = tuple(range(n_chunks))
    before = [
        Message(source=2 * pair, destination=2 * pair + 1, chunks=whole, reduces=True)
        for pair in range(extra)
    ]
    after = [
        Message(source=2 * pair + 1, destination=2 * pair, chunks=whole, reduces=False)
        for pair in range(extra)
    ]
    ranks = [2 * pair + 1 for pair in range(extra)] + list(range(2 * extra, n_ranks))
    return [Round(phase="fold", messages=before)], ranks, [Round(phase="unfold", messages=after)]


def recursive_doubling_allreduce(n_ranks: int) -> Schedule:
    """Partners at distance 1, 2, 4, ... exchange and add whole buffers."""
    before, ranks, after = _folded(n_ranks, 1)
    rounds = list(before)
    distance = 1
    while distance < len(ranks):
        messages = [
            Message(source=ranks[place], destination=ranks[place ^ distance], chunks=(0,), reduces=True)
            for place in range(len(ranks))
        ]
        rounds.append(Round(phase="exchange", messages=messages))
        distance *= 2
    return _allreduce(n_ranks, 1, rounds + after)


def _bits_reversed(ranks: list[int]) -> list[int]:
    """``ranks`` (a power of two) in the order of their places' reversed bits: 0, 2, 1, 3 for four."""
    places = [0]
    distance = len(ranks) // 2
    while distance:
        places = places + [place + distance for place in places]
        distance //= 2
    return [ranks[place] for place in places]


def rabenseifner_allreduce(n_ranks: int) -> Schedule:
    """Recursive-halving reduce-scatter, then recursive-doubling all-gather, the nearest partner first and last.

    The largest pieces go to the neighbour and the smallest across the machine. A reduce-scatter by itself has to
    begin with the farthest partner, so that rank r ends with part r; inside an all-reduce it doesn't matter who
    has which part in between.

    Source: MPICH, src/mpi/coll/allreduce/allreduce_intra_reduce_scatter_allgather.c (recursive halving, beginning
    with processes at distance 1).
    """
    taking_part = 1 << log2_floor(n_ranks)
    before, ranks, after = _folded(n_ranks, taking_part)
    order = _bits_reversed(ranks)
    rounds = before + _halving_rounds(order) + _doubling_rounds(order) + after
    return _allreduce(n_ranks, taking_part, rounds)


def recursive_halving_reduce_scatter(n_ranks: int) -> Schedule:
    """Recursive halving; N must be a power of two."""
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_ranks,
        rounds=_halving_rounds(list(range(n_ranks))),
        starts=_all_chunks(n_ranks, n_ranks),
        ends=_own_chunk(n_ranks),
    )


def recursive_doubling_allgather(n_ranks: int) -> Schedule:
    """Recursive doubling; N must be a power of two."""
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_ranks,
        rounds=_doubling_rounds(list(range(n_ranks))),
        starts=_own_chunk(n_ranks),
        ends=_all_chunks(n_ranks, n_ranks),
    )


def bruck_allgather(n_ranks: int) -> Schedule:
    """Bruck: in round j every rank passes all it holds, up to 2**j chunks, to the rank 2**j below; any N."""
    rounds = []
    held = 1
    while held < n_ranks:
        passed = min(held, n_ranks - held)
        messages = [
            Message(
                source=rank,
                destination=(rank - held) % n_ranks,
                chunks=tuple([(rank + place) % n_ranks for place in range(passed)]),
                reduces=False,
            )
            for rank in range(n_ranks)
        ]
        rounds.append(Round(phase="all-gather", messages=messages))
        held += passed
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_ranks,
        rounds=rounds,
        starts=_own_chunk(n_ranks),
        ends=_all_chunks(n_ranks, n_ranks),
    )


# All-to-all: chunk (source * N + destination) -------------------------------------------------------------------


def _alltoall(n_ranks: int, rounds: list[Round]) -> Schedule:
    return Schedule(
        n_ranks=n_ranks,
        n_chunks=n_ranks * n_ranks,
        rounds=rounds,
        starts=[[rank * n_ranks + other for other in range(n_ranks)] for rank in range(n_ranks)],
        ends=[[other * n_ranks + rank for other in range(n_ranks)] for rank in range(n_ranks)],
    )


def direct_alltoall(n_ranks: int) -> Schedule:
    """In round s every rank sends one chunk straight to the rank s above it."""
    rounds = [
        Round(
            phase="all-to-all",
            messages=[
                Message(
                    source=rank,
                    destination=(rank + step) % n_ranks,
                    chunks=(rank * n_ranks + (rank + step) % n_ranks,),
                    reduces=False,
                )
                for rank in range(n_ranks)
            ],
        )
        for step in range(1, n_ranks)
    ]
    return _alltoall(n_ranks, rounds)


def bruck_alltoall(n_ranks: int) -> Schedule:
    """Bruck: a chunk that must travel d ranks upwards moves 2**j of them in every round j whose bit is set in d."""
    rounds = []
    bit = 1
    while bit < n_ranks:
        messages = []
        for rank in range(n_ranks):
            chunks = []
            for travel in range(bit, n_ranks):
                if travel & bit:
                    source = (rank - travel % bit) % n_ranks
                    chunks.append(source * n_ranks + (source + travel) % n_ranks)
            messages.append(
                Message(source=rank, destination=(rank + bit) % n_ranks, chunks=tuple(chunks), reduces=False)
            )
        rounds.append(Round(phase="all-to-all", messages=messages))
        bit *= 2
    return _alltoall(n_ranks, rounds)


# In the network ------------------------------------------------------------------------------------------------


def switch_allreduce(n_ranks: int) -> Schedule:
    """Every rank sends its buffer to the switch (node N), which adds them and sends the sum back to all."""
    if n_ranks == 1:
        return _allreduce(1, 1, [])
    up = [Message(source=rank, destination=n_ranks, chunks=(0,), reduces=True) for rank in range(n_ranks)]
    down = [Message(source=n_ranks, destination=rank, chunks=(0,), reduces=False) for rank in range(n_ranks)]
    return _allreduce(
        n_ranks, 1, [Round(phase="reduce", messages=up), Round(phase="multicast", messages=down)]
    )


def switch_multicast_allreduce(n_ranks: int) -> Schedule:
    """NVLink SHARP: rank r fetches the sum of chunk r from the switch and stores it to all through the switch."""
    if n_ranks == 1:
        return _allreduce(1, 1, [])
    whole = tuple(range(n_ranks))
    up = [Message(source=rank, destination=n_ranks, chunks=whole, reduces=True) for rank in range(n_ranks)]
    fetch = [
        Message(source=n_ranks, destination=rank, chunks=(rank,), reduces=False) for rank in range(n_ranks)
    ]
    store = [
        Message(source=rank, destination=n_ranks, chunks=(rank,), reduces=False) for rank in range(n_ranks)
    ]
    down = [Message(source=n_ranks, destination=rank, chunks=whole, reduces=False) for rank in range(n_ranks)]
    phases = (("reduce", up), ("fetch", fetch), ("store", store), ("multicast", down))
    return _allreduce(n_ranks, n_ranks, [Round(phase=phase, messages=sends) for phase, sends in phases])


# Two levels ----------------------------------------------------------------------------------------------------


def hierarchical_allreduce(ranks_per_node: int, n_nodes: int) -> Schedule:
    """Reduce-scatter in each node, all-reduce of each shard across nodes, all-gather in each node; all rings.

    Rank ``node * ranks_per_node + place``. Phases ``"intra reduce-scatter"``, ``"inter reduce-scatter"``,
    ``"inter all-gather"``, ``"intra all-gather"``.
    """
    shards = [tuple(range(place * n_nodes, (place + 1) * n_nodes)) for place in range(ranks_per_node)]
    nodes = [[node * ranks_per_node + place for place in range(ranks_per_node)] for node in range(n_nodes)]
    rails = [[node * ranks_per_node + place for node in range(n_nodes)] for place in range(ranks_per_node)]
    pieces: list[list[tuple[int, ...]]] = [[(chunk,) for chunk in shard] for shard in shards]
    within = [ring_reduce_scatter_rounds(node, shards, "intra reduce-scatter") for node in nodes]
    across = [
        ring_reduce_scatter_rounds(rails[place], pieces[place], "inter reduce-scatter")
        + ring_allgather_rounds(rails[place], pieces[place], "inter all-gather")
        for place in range(ranks_per_node)
    ]
    back = [ring_allgather_rounds(node, shards, "intra all-gather") for node in nodes]
    rounds = _side_by_side(within) + _side_by_side(across) + _side_by_side(back)
    return _allreduce(ranks_per_node * n_nodes, ranks_per_node * n_nodes, rounds)


def _side_by_side(schedules: list[list[Round]]) -> list[Round]:
    """Several groups of ranks, each with as many rounds, running at the same time."""
    merged = []
    for step in range(len(schedules[0])):
        messages: list[Message] = []
        for rounds in schedules:
            messages += rounds[step].messages
        merged.append(Round(phase=schedules[0][step].phase, messages=messages))
    return merged


# The executor --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulation:
    """A finished collective.

    Attributes:
        schedule: what was run.
        chunk_bytes: bytes of each chunk.
        results: for each rank its result, a flat list.
        sent_bytes: bytes sent by each rank; ``received_bytes`` and ``reduced_bytes`` (added to its own) likewise.
        round_bytes: for each round, the most that one rank sends or receives.
        round_reduced_bytes: for each round, the most that one rank adds.
    """

    schedule: Schedule
    chunk_bytes: list[int]
    results: list[list[float]]
    sent_bytes: list[int]
    received_bytes: list[int]
    reduced_bytes: list[int]
    round_bytes: list[int]
    round_reduced_bytes: list[int]

    @property
    def n_rounds(self) -> int:
        """Rounds, each of which costs one latency."""
        return len(self.schedule.rounds)

    def message_bytes(self, message: Message) -> int:
        """Bytes on the wire of one message of the schedule."""
        return sum([self.chunk_bytes[chunk] for chunk in message.chunks])

    def phase_bytes(self, phase: str) -> int:
        """What the busiest rank sends or receives in all rounds whose phase starts with ``phase``."""
        return sum(
            [
                self.round_bytes[step]
                for step in range(self.n_rounds)
                if self.schedule.rounds[step].phase.startswith(phase)
            ]
        )


def run(schedule: Schedule, chunks: list[list[list[float]]], element_bytes: int) -> Simulation:
    """Run a schedule. ``chunks[rank]`` are the numbers of the chunks in ``schedule.starts[rank]``, in that order.

    A round's messages are read before any is applied, since they are under way together. Links carry both
    directions at once, so a rank's round lasts as long as the larger of what it sends and what it receives.
    """
    n_nodes = schedule.n_ranks + 1
    sizes = [0] * schedule.n_chunks
    state: list[dict[int, list[float]]] = [{} for _ in range(n_nodes)]
    for rank in range(schedule.n_ranks):
        for place in range(len(schedule.starts[rank])):
            chunk = schedule.starts[rank][place]
            state[rank][chunk] = chunks[rank][place]
            sizes[chunk] = len(chunks[rank][place]) * element_bytes
    sent, received, reduced = [0] * n_nodes, [0] * n_nodes, [0] * n_nodes
    round_bytes, round_reduced = [], []
    for step in schedule.rounds:
        payloads = [[state[message.source][chunk] for chunk in message.chunks] for message in step.messages]
        out, into, added = [0] * n_nodes, [0] * n_nodes, [0] * n_nodes
        for index in range(len(payloads)):
            message, payload = step.messages[index], payloads[index]
            mine = state[message.destination]
            for place in range(len(payload)):
                chunk, numbers = message.chunks[place], payload[place]
                out[message.source] += sizes[chunk]
                into[message.destination] += sizes[chunk]
                if message.reduces and chunk in mine:
                    mine[chunk] = [a + b for a, b in zip(mine[chunk], numbers)]
                    added[message.destination] += sizes[chunk]
                else:
                    mine[chunk] = numbers
        # The switch (the last node) has a link to every rank: it is never the one that the others wait for.
        round_bytes.append(max(max(out[:-1]), max(into[:-1])))
        round_reduced.append(max(added[:-1]))
        for node in range(n_nodes):
            sent[node] += out[node]
            received[node] += into[node]
            reduced[node] += added[node]
    results = []
    for rank in range(schedule.n_ranks):
        result: list[float] = []
        for chunk in schedule.ends[rank]:
            result += state[rank][chunk]
        results.append(result)
    return Simulation(
        schedule=schedule,
        chunk_bytes=sizes,
        results=results,
        sent_bytes=sent[:-1],
        received_bytes=received[:-1],
        reduced_bytes=reduced[:-1],
        round_bytes=round_bytes,
        round_reduced_bytes=round_reduced,
    )
