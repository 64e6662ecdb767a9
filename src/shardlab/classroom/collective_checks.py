"""Checks of assignment 02, "what does it cost to agree?": trees, butterflies, all-to-all, and when each one pays.

Inputs are labelled (:mod:`shardlab.classroom.labels`), and every run is timed (:mod:`shardlab.classroom.timed`), so
that a check can say whose numbers are missing and how many messages had to wait for each other. Costs that a run is
held against come from :mod:`shardlab.models.collectives`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.checks import count
from shardlab.classroom.attempt import Carry, attempt, name_of, silent, with_carry
from shardlab.classroom.by_hand import ByHand, as_number, close
from shardlab.classroom.labels import Layout, label, rank_words, read_label
from shardlab.classroom.network import NetworkError, Program, Run, text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.timed import TimedRun, run_timed
from shardlab.models import collectives
from shardlab.models.collective_schedules import chunk_sizes
from shardlab.units import GB, KB, MB, US, format_bytes, format_time

ASSIGNMENT = "02_collectives"
ELEMENT_BYTES = 4
# A correct program needs a hundredth of this; a loop without end must not use up the cell's time.
TIME_LIMIT_S = 1.0


# ---- trials: one run, judged by three questions ----


@dataclass(frozen=True)
class Trial:
    """One run of a student's function; each attribute is None, or says what is wrong.

    Attributes:
        result: is what every rank returned right?
        messages: does every rank send as many messages and bytes as the algorithm needs, no fewer and no more?
        rounds: do no more messages wait for each other than the algorithm needs?
    """

    result: str | None
    messages: str | None
    rounds: str | None

    @property
    def faults(self) -> int:
        """How many of the three are wrong."""
        return sum(fault is not None for fault in (self.result, self.messages, self.rounds))


def _trial(
    function: Program,
    inputs: list[Any],
    result: Callable[[Run], str | None],
    messages: Callable[[Run], str | None],
    rounds: Callable[[TimedRun], str | None],
) -> Trial:
    try:
        with silent():
            timed = run_timed(function, inputs, element_bytes=ELEMENT_BYTES, time_limit_s=TIME_LIMIT_S)
    except NetworkError as error:
        unfinished = "the run did not finish"
        return Trial(result=f"on {len(inputs)} ranks: {error}", messages=unfinished, rounds=unfinished)
    unread = _unread_fault(timed.run)
    return Trial(
        result=result(timed.run), messages=messages(timed.run) or unread, rounds=rounds(timed) or unread
    )


def _unread_fault(run: Run) -> str | None:
    if not run.unread:
        return None
    lost = run.unread[0]
    return f"rank {lost.destination} never received a message that rank {lost.source} sent it"


def _rounds_fault(timed: TimedRun, what: str, most: int) -> str | None:
    if timed.rounds <= most:
        return None
    sent = timed.run.sent_messages
    busiest = max(range(timed.run.n_ranks), key=sent.__getitem__)
    return (
        f"{what} on {timed.run.n_ranks} ranks takes {most} rounds, and here {timed.rounds} messages follow each "
        f"other; rank {busiest} alone sends {sent[busiest]}"
    )


def _sizes_fault(run: Run, n_bytes: int, whole: str) -> str | None:
    """Whether every message has the one size that it should have."""
    for message in run.messages:
        if message.n_bytes != n_bytes:
            return (
                f"rank {message.source} sent {message.n_bytes} bytes to rank {message.destination}; "
                f"here every message is {whole}, {n_bytes} bytes"
            )
    return None


def _ranks(n_ranks: int) -> int:
    # Labels are exact as floats up to here.
    return count("n_ranks", n_ranks, least=1, most=16)


# ---- task 2: the tree ----


def try_broadcast(function: Program, n_ranks: int = 8, n_elements: int = 3) -> Trial:
    """Run ``function(net, buffer)``: rank 0 has a buffer, the others None, and all must end with it."""
    ranks = _ranks(n_ranks)
    buffer = [label(0, element, ranks) for element in range(n_elements)]
    cost = collectives.binomial_tree_broadcast_cost(n_elements * ELEMENT_BYTES, ranks)

    def result(run: Run) -> str | None:
        for rank, found in enumerate(run.results):
            if found is None:
                return f"{name_of(function)} returned None on rank {rank} of {ranks}: return the buffer"
            fault = _broadcast_fault(found, buffer)
            if fault:
                return f"on {ranks} ranks, what rank {rank} returned {fault}"
        return None

    def messages(run: Run) -> str | None:
        received = [0] * ranks
        for message in run.messages:
            received[message.destination] += 1
        if received[0]:
            return f"rank 0 has the buffer and was sent {received[0]} messages all the same"
        for rank in range(1, ranks):
            if received[rank] != 1:
                return f"rank {rank} of {ranks} was sent {received[rank]} messages; one brings it the buffer"
        return _sizes_fault(run, n_elements * ELEMENT_BYTES, "the whole buffer")

    def rounds(timed: TimedRun) -> str | None:
        return _rounds_fault(timed, "a binomial tree", cost.rounds) or _nothing_sent(timed.run)

    return _trial(function, [buffer, *[None] * (ranks - 1)], result, messages, rounds)


def _nothing_sent(run: Run) -> str | None:
    return "no rank sent anything" if run.n_ranks > 1 and not run.messages else None


def _broadcast_fault(found: Any, buffer: list[int]) -> str | None:
    try:
        values = list(found)
    except TypeError:
        return f"is {reprlib.repr(found)}, not a list of numbers"
    if len(values) != len(buffer):
        return f"has {len(values)} numbers, not {len(buffer)}"
    try:
        same = values == buffer
    # Arrays in the places of numbers.
    except Exception:
        same = False
    return None if same else "is not the buffer of rank 0"


# ---- task 3: recursive doubling ----


def try_doubling(function: Program, n_ranks: int = 8, n_elements: int = 16) -> Trial:
    """Run ``function(net, buffer)``, an all-reduce by recursive doubling, on buffers of ``n_elements`` numbers.

    If N is no power of two, every algorithm is right that stays within two rounds more than the largest power of two
    below N needs, with whole buffers in every message.
    """
    ranks = _ranks(n_ranks)
    cost = collectives.recursive_doubling_allreduce_cost(n_elements * ELEMENT_BYTES, ranks)
    power = ranks & (ranks - 1) == 0

    def messages(run: Run) -> str | None:
        if power:
            for rank, sent in enumerate(run.sent_messages):
                if sent != cost.rounds:
                    return (
                        f"rank {rank} sent {sent} messages; recursive doubling on {ranks} ranks takes "
                        f"{cost.rounds} from each, to partners at distance 1, 2, 4, …"
                    )
        return _sizes_fault(run, n_elements * ELEMENT_BYTES, "a whole buffer") or _nothing_sent(run)

    def rounds(timed: TimedRun) -> str | None:
        return _rounds_fault(timed, "recursive doubling", cost.rounds) or _nothing_sent(timed.run)

    return _try_sum(function, ranks, n_elements, messages, rounds)


def _try_sum(
    function: Program,
    ranks: int,
    n_elements: int,
    messages: Callable[[Run], str | None],
    rounds: Callable[[TimedRun], str | None],
) -> Trial:
    layout = Layout(chunk_sizes(n_elements, ranks))
    inputs = [[label(rank, element, ranks) for element in range(n_elements)] for rank in range(ranks)]

    def result(run: Run) -> str | None:
        for rank, found in enumerate(run.results):
            if found is None:
                return (
                    f"{name_of(function)} returned None on rank {rank} of {ranks}: return the summed buffer"
                )
            fault = layout.fault(found, range(n_elements))
            if fault:
                return f"with {n_elements} numbers on {ranks} ranks, the result of rank {rank} {fault}"
        return None

    return _trial(function, inputs, result, messages, rounds)


# ---- task 4: all-to-all, and an all-reduce made of two ----


def try_all_to_all(function: Program, n_ranks: int = 4, sizes: Sequence[int] | None = None) -> Trial:
    """Run ``function(net, parts)``: ``parts[d]`` goes to rank d, and place s of the result comes from rank s.

    ``sizes[d]`` is the number of elements of every part that goes to rank d, two if no sizes are given.
    """
    ranks = _ranks(n_ranks)
    lengths = [2] * ranks if sizes is None else list(sizes)
    if len(lengths) != ranks:
        raise ValueError(f"sizes must hold {ranks} sizes, one for each rank, not {lengths!r}")
    layout = Layout(lengths)
    inputs = [[layout.partial(chunk, [rank]) for chunk in range(ranks)] for rank in range(ranks)]
    cost = collectives.direct_alltoall_cost(layout.n_elements * ELEMENT_BYTES, ranks)

    def result(run: Run) -> str | None:
        for rank, found in enumerate(run.results):
            if not isinstance(found, (list, tuple)) or len(found) != ranks:
                return (
                    f"{name_of(function)} must return a list of {ranks} parts on every rank, "
                    f"not {reprlib.repr(found)} as on rank {rank}"
                )
            for source in range(ranks):
                fault = _part_fault(found[source], source, rank, layout)
                if fault:
                    return f"on {ranks} ranks, place {source} of what rank {rank} returned {fault}"
        return None

    def messages(run: Run) -> str | None:
        pairs = {(message.source, message.destination) for message in run.messages}
        for rank, sent in enumerate(run.sent_messages):
            if sent != ranks - 1:
                return f"rank {rank} sent {sent} messages; one to each other rank makes {ranks - 1}"
            missed = [other for other in range(ranks) if other != rank and (rank, other) not in pairs]
            if missed:
                return f"rank {rank} sent nothing to {rank_words(missed)}"
        for message in run.messages:
            wanted = lengths[message.destination] * ELEMENT_BYTES
            if message.n_bytes != wanted:
                return (
                    f"rank {message.source} sent {message.n_bytes} bytes to rank {message.destination}, "
                    f"whose part has {wanted}"
                )
        return None

    def rounds(timed: TimedRun) -> str | None:
        fault = _rounds_fault(timed, "an all-to-all", cost.rounds) or _nothing_sent(timed.run)
        if fault is None or not timed.run.messages or max(timed.run.sent_messages) > cost.rounds:
            return fault
        first = [message.destination for message in timed.run.messages if message.index == 0]
        crowded = max(set(first), key=first.count)
        if first.count(crowded) > 1:
            return f"{fault}. {first.count(crowded)} ranks send to rank {crowded} first, which takes one at a time"
        return fault

    return _trial(function, inputs, result, messages, rounds)


def _part_fault(part: Any, source: int, rank: int, layout: Layout) -> str | None:
    wanted = layout.partial(rank, [source])
    fault = _broadcast_fault(part, wanted)
    if fault is None or not fault.startswith(("is not", "has")):
        return fault
    reads = [read_label(value, layout.n_ranks, layout.n_elements) for value in part]
    if not reads or None in reads:
        return fault if fault.startswith("has") else "has numbers that are no rank's"
    element, times = next(read for read in reads if read is not None)
    senders = [other for other, often in enumerate(times) if often]
    if senders == [source] and layout.chunk_of(element) == rank:
        return fault if fault.startswith("has") else "has its numbers in another order"
    return (
        f"holds the part of {rank_words(senders)} for rank {layout.chunk_of(element)}, "
        f"not that of rank {source} for rank {rank}"
    )


def try_two_phase(
    function: Program, n_ranks: int = 4, n_elements: int = 12, carry: Carry | None = None
) -> Trial:
    """Run ``function(net, buffer)``, the all-reduce in two phases, on buffers of ``n_elements`` numbers.

    It sends what a ring sends, in as many rounds, to everybody instead of to a neighbour. ``carry`` as in
    :func:`shardlab.classroom.attempt.with_carry`.
    """
    ranks = _ranks(n_ranks)
    # The ring's bytes of one rank are exact only if N divides the length, those of all ranks always.
    cost = collectives.ring_allreduce_cost(n_elements * ELEMENT_BYTES, ranks)

    def messages(run: Run) -> str | None:
        for rank, sent in enumerate(run.sent_messages):
            if sent != cost.rounds:
                return (
                    f"rank {rank} sent {sent} messages; two all-to-alls on {ranks} ranks take {cost.rounds}"
                )
        if sum(run.sent_bytes) != cost.total_bytes:
            return (
                f"all ranks together sent {sum(run.sent_bytes)} bytes; in two phases it takes "
                f"{cost.total_bytes:.0f}, 2(N−1) · P"
            )
        return None

    def rounds(timed: TimedRun) -> str | None:
        return _rounds_fault(timed, "an all-reduce in two phases", cost.rounds)

    return with_carry(
        function,
        carry,
        lambda: _try_sum(function, ranks, n_elements, messages, rounds),
        lambda trial: trial.faults,
    )


# ---- task 5: costs ----

_DOUBLING, _TWO_PHASE = "recursive doubling", "ring"


def time_fault(
    function: Callable[..., Any], algorithm: str, cases: Iterable[tuple[float, int]]
) -> str | None:
    """What is wrong with ``function(n_bytes, n_ranks, latency_s, bandwidth)`` as the seconds of an all-reduce.

    Args:
        function: the student's.
        algorithm: ``"doubling"`` or ``"two phases"``, which costs what the ring costs.
        cases: pairs (bytes of a buffer, number of ranks).
    """
    name = {"doubling": _DOUBLING, "two phases": _TWO_PHASE}[algorithm]
    latency, bandwidth = 10 * US, 25 * GB
    for n_bytes, n_ranks in cases:
        answer = attempt(function, n_bytes, n_ranks, latency, bandwidth)
        if answer.fault:
            return answer.fault
        value = as_number(answer.value)
        where = f"{name_of(function)} for {format_bytes(n_bytes)} on {n_ranks} ranks"
        if value is None:
            return f"{where} must return a number of seconds, not {reprlib.repr(answer.value)}"
        cost = collectives.algorithm("all-reduce", name).cost(n_bytes, n_ranks)
        if close(value, cost.time_s(bandwidth, latency)):
            continue
        words = f"{where}: {value:g} s is not right"
        for wrong, why in _time_slips(name, cost, n_bytes, n_ranks, latency, bandwidth):
            if close(value, wrong):
                return f"{words}: {why}"
        return words
    return None


def _time_slips(
    name: str, cost: collectives.Cost, n_bytes: float, n_ranks: int, latency: float, bandwidth: float
) -> list[tuple[float, str]]:
    wire = cost.wire_bytes / bandwidth
    found = [
        (wire, "that leaves out the latency, once for every round"),
        (wire + latency, "the rounds follow each other: each of them pays the latency"),
        (cost.rounds * latency, "that leaves out the bytes"),
        (cost.rounds * latency + n_bytes / bandwidth, "that counts one buffer; how many does a rank send?"),
        (cost.rounds * latency + wire / 8, "the bandwidth is in bytes per second already"),
    ]
    if name == _DOUBLING:
        down = math.log2(n_ranks)
        found.append(
            (down * (latency + n_bytes / bandwidth), "log₂ N must be whole: what do the other ranks do?")
        )
        found.append(
            (2 * (cost.rounds * latency + wire), "recursive doubling has no way back: both partners add")
        )
        lower = math.floor(down)
        found.append(
            (lower * (latency + n_bytes / bandwidth), "the ranks beyond the power of two add two rounds")
        )
    else:
        found.append(((cost.rounds * latency + wire) / 2, "that is one phase; there are two"))
        found.append(
            (cost.rounds * (latency + n_bytes / bandwidth), "a message of the two phases carries P/N, not P")
        )
    return found


def crossover_fault(function: Callable[..., Any], cases: Iterable[int]) -> str | None:
    """What is wrong with ``function(n_ranks, latency_s, bandwidth)`` as the size at which both take the same time."""
    latency, bandwidth = 10 * US, 25 * GB
    for n_ranks in cases:
        answer = attempt(function, n_ranks, latency, bandwidth)
        if answer.fault:
            return answer.fault
        wanted = collectives.crossover_bytes("all-reduce", _DOUBLING, _TWO_PHASE, n_ranks, bandwidth, latency)
        where, value = f"{name_of(function)} for {n_ranks} ranks", as_number(answer.value)
        if wanted is None:
            if answer.value is not None:
                return (
                    f"{where} returned {reprlib.repr(answer.value)}: both send the same bytes, so two phases are "
                    "never faster, and there is no such size: return None"
                )
        elif value is None:
            return f"{where} must return a number of bytes, not {reprlib.repr(answer.value)}"
        elif not close(value, wanted):
            words = f"{where}: {value:g} bytes is not right"
            if close(value, -wanted):
                return f"{words}: a size is positive; which one pays more rounds?"
            if close(value * n_ranks, wanted) or close(value, wanted * n_ranks):
                return f"{words}: the size of the whole buffer is asked for, not of a part"
            return f"{words}; put both times equal and solve for P"
    return None


# ---- task 6: what there is to explain ----

# Buffers of so many numbers, each as wide as it must be: times depend on bytes alone.
_TABLE_ELEMENTS = 40


def comparison(
    doubling: Program,
    two_phase: Program,
    n_ranks: int = 8,
    latency_s: float = 10 * US,
    bandwidth: float = 1.25 * GB,
    sizes: Sequence[float] = (400, 4 * KB, 40 * KB, 400 * KB, 4 * MB, 40 * MB),
) -> str:
    """A table of two all-reduces, run and timed on the simulated network, for buffers from small to large."""
    rows = [["buffer", "doubling", "two phases", "faster", "algbw of the faster", "busbw"]]
    for size in sizes:
        width = round(size / _TABLE_ELEMENTS)
        inputs = [[1] * _TABLE_ELEMENTS] * n_ranks
        times = [
            run_timed(program, inputs, element_bytes=width).time_s(latency_s, bandwidth)
            for program in (doubling, two_phase)
        ]
        best = min(times)
        n_bytes = width * _TABLE_ELEMENTS
        rows.append(
            [
                format_bytes(n_bytes),
                *[format_time(seconds, 3) for seconds in times],
                "doubling" if times[0] < times[1] else "two phases",
                format_bytes(collectives.algbw(n_bytes, best), 3) + "/s",
                format_bytes(collectives.busbw("all-reduce", n_bytes, best, n_ranks), 3) + "/s",
            ]
        )
    return text_table(rows)


def measured_table(results: Sequence[Sequence[Sequence[float]]], sizes: Sequence[int]) -> str:
    """A table of measured times: ``results[rank][size]`` holds the seconds of both all-reduces on one rank."""
    rows = [["numbers", "bytes", "doubling", "two phases", "two phases / doubling"]]
    for place, size in enumerate(sizes):
        # The slowest rank is the one that the others wait for.
        slowest = [max(times) for times in zip(*[rank[place] for rank in results], strict=True)]
        shown = [format_time(seconds, 3) for seconds in slowest]
        n_bytes = format_bytes(size * ELEMENT_BYTES)
        rows.append([f"{size:,}", n_bytes, *shown, f"{slowest[1] / slowest[0]:.2f}"])
    return text_table(rows)


# ---- task 1: by hand ----

_QUANTITIES = ("half_bytes", "doubling_s", "ring_s", "crossover_bytes", "busbw")


@dataclass(frozen=True)
class CollectiveNumbers(ByHand):
    """One student's numbers for task 1.

    Attributes:
        n_ranks: N, a power of two.
        latency_s: α, seconds.
        link_bits_per_s: bandwidth of a rank in each direction, **bits** per second.
        n_bytes: P, bytes of the buffer.
        collective: the one that was measured.
        measured_ranks: on so many ranks.
        measured_bytes: size that the benchmark printed, bytes.
        measured_s: time that it printed, seconds.
    """

    n_ranks: int
    latency_s: float
    link_bits_per_s: float
    n_bytes: int
    collective: str
    measured_ranks: int
    measured_bytes: int
    measured_s: float

    @property
    def bandwidth(self) -> float:
        """B: bytes/s of a rank in each direction."""
        return self.link_bits_per_s / 8

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"N         {self.n_ranks} ranks",
            f"α         {self.latency_s / US:g} µs for each message",
            f"B         {self.link_bits_per_s / 1e9:g} Gb/s in each direction",
            f"P         {format_bytes(self.n_bytes)}",
            f"measured  {self.collective} of {format_bytes(self.measured_bytes)} on {self.measured_ranks} ranks "
            f"in {self.measured_s * 1e3:g} ms",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        if quantity == "half_bytes":
            return self.latency_s * self.bandwidth
        if quantity in ("doubling_s", "ring_s"):
            return self._cost(quantity).time_s(self.bandwidth, self.latency_s)
        if quantity == "crossover_bytes":
            size = collectives.crossover_bytes(
                "all-reduce", _DOUBLING, "ring", self.n_ranks, self.bandwidth, self.latency_s
            )
            if size is None:
                raise ValueError(f"n_ranks must be at least 4 for a crossover, not {self.n_ranks}")
            return size
        if quantity == "busbw":
            return collectives.busbw(
                self.collective, self.measured_bytes, self.measured_s, self.measured_ranks
            )
        raise ValueError(f"quantity must be one of {', '.join(_QUANTITIES)}, not {quantity!r}")

    def _cost(self, quantity: str) -> collectives.Cost:
        name = _DOUBLING if quantity == "doubling_s" else "ring"
        return collectives.algorithm("all-reduce", name).cost(self.n_bytes, self.n_ranks)

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        n, right, latency, bandwidth = self.n_ranks, self.key(quantity), self.latency_s, self.bandwidth
        if quantity == "half_bytes":
            return [
                (8 * right, "the link is given in bits per second; a byte has 8 bits"),
                (right / 2, "at that size the message takes 1.5 α, and gets a third of the link"),
                (2 * right, "at that size the message takes 3 α, and gets two thirds of the link"),
                (right / US, "α is in microseconds; a second has a million"),
            ]
        if quantity == "crossover_bytes":
            return [
                (8 * right, "the link is given in bits per second; a byte has 8 bits"),
                (latency * bandwidth, "that is α · B; rounds and bytes of the two decide how many times"),
                (right / n, "that is a chunk of the ring; the size of the whole buffer is asked for"),
                (right / 2, "a ring all-reduce has two phases: 2(N − 1) rounds"),
            ]
        if quantity == "busbw":
            return self._busbw_slips()
        cost = self._cost(quantity)
        wire = cost.wire_bytes / bandwidth
        found = [
            (cost.rounds * latency + 8 * wire, "a byte has 8 bits: divide the bits per second by 8, once"),
            (cost.rounds * latency + wire / 8, "the link is given in bits per second; a byte has 8 bits"),
            (wire, "that leaves out α, once for every round"),
            (wire + latency, "α is paid in every round, one after the other"),
            (cost.rounds * latency, "that leaves out the bytes"),
            (right / US, "that is in microseconds; the answer is in seconds"),
            (right * 1e3, "that is in milliseconds; the answer is in seconds"),
        ]
        if quantity == "ring_s":
            found.append((right / 2, "that is one phase; an all-reduce has two"))
            found.append(
                (
                    cost.rounds * (latency + self.n_bytes / bandwidth),
                    "in the ring a message carries P/N, not P",
                )
            )
        else:
            found.append((2 * right, "there is no way back: after log₂ N rounds all ranks have the sum"))
            found.append(
                (cost.rounds * latency + self.n_bytes / bandwidth, "every round carries a whole buffer")
            )
        return found

    def _busbw_slips(self) -> list[tuple[float, str]]:
        n, rate = self.measured_ranks, collectives.algbw(self.measured_bytes, self.measured_s)
        words = {
            1.0: "that is the algorithm bandwidth; what must a rank send of the buffer?",
            2 * (n - 1) / n: "that is the factor of an all-reduce",
            (n - 1) / n: "that is the factor of one phase; an all-reduce has two",
            n - 1.0: "with N − 1 for (N − 1)/N it is far above any wire",
            float(n): "the size is that of the whole buffer already",
            1 / n: "the size is that of the whole buffer, and the factor is that of what a rank sends of it",
        }
        factor = collectives.busbw_factor(self.collective, n)
        found = [(rate * wrong, why) for wrong, why in words.items() if wrong != factor]
        return [
            *found,
            (rate * factor * 8, "that is in bits per second; the answer is in bytes"),
            (rate * factor / 1e3, "that takes milliseconds for seconds"),
            (rate * factor / GB, "that is in GB/s; the answer is in bytes per second"),
            (rate / factor, "multiply by the factor"),
        ]


def by_hand_numbers(student: str) -> CollectiveNumbers:
    """A student's numbers for task 1. P lies where neither latency nor bytes are all of the time."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")
    n_ranks = draw.pick((32, 64, 128))
    latency_s = draw.pick((5, 6, 8, 10, 12, 15, 20, 25)) * US
    link = draw.pick((25e9, 40e9, 50e9, 100e9, 200e9))
    half = latency_s * link / 8
    # Above α · B, where recursive doubling pays for bytes, and below N · α · B, where the ring pays for messages.
    n_bytes = round(half * n_ranks**0.5 * (100 + draw.below(101)) / 100 / KB) * int(KB)
    collective = draw.pick(("all-reduce", "all-gather", "reduce-scatter", "all-to-all"))
    # A large buffer at half to nine tenths of the link. With few ranks (N − 1)/N is not yet 1.
    measured_ranks = draw.pick((4, 5, 6, 10, 12, 20, 24))
    measured_bytes = int(draw.pick((128, 256, 400, 500, 640, 800)) * MB)
    share = (50 + draw.below(41)) / 100
    ideal = collectives.busbw_factor(collective, measured_ranks) * measured_bytes / (link / 8)
    return CollectiveNumbers(
        student=name,
        complaint=complaint,
        n_ranks=n_ranks,
        latency_s=latency_s,
        link_bits_per_s=link,
        n_bytes=n_bytes,
        collective=collective,
        measured_ranks=measured_ranks,
        measured_bytes=measured_bytes,
        # As a benchmark prints it.
        measured_s=round(ideal / share * 1e3, 2) / 1e3,
    )
