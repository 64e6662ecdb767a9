"""Checks of assignment 03, "write the ring all-reduce".

The inputs are labelled (:mod:`shardlab.classroom.labels`), so that a check can say "rank 2's chunk 3 lacks the
numbers of rank 0" and not only "wrong".
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.checks import count
from shardlab.classroom.attempt import Carry, attempt, carried, name_of, silent, with_carry
from shardlab.classroom.by_hand import ByHand
from shardlab.classroom.labels import Layout, label, rank_words
from shardlab.classroom.network import (
    Endpoint,
    NetworkError,
    Program,
    Run,
    run_ranks,
    text_table,
)
from shardlab.classroom.student import owner, student_draw
from shardlab.models.collectives import (
    RingSimulation,
    ring_allreduce_sent_bytes,
    ring_allreduce_time_s,
    simulate_ring_allreduce,
)

ASSIGNMENT = "03_ring_allreduce"
ELEMENT_BYTES = 4
# A correct program needs a hundredth of this; a loop without end must not use up the cell's time.
TIME_LIMIT_S = 1.0


# ---- trials: one run, judged by three questions ----


@dataclass(frozen=True)
class Trial:
    """One run of a student's function; each attribute is None, or says what is wrong.

    Attributes:
        sums: are the numbers right?
        neighbours: does every rank send to its right-hand neighbour, and to nobody else?
        economy: does every rank send as many messages and bytes as the ring needs, no fewer and no more?
    """

    sums: str | None
    neighbours: str | None
    economy: str | None

    @property
    def faults(self) -> int:
        """How many of the three are wrong."""
        return sum(fault is not None for fault in (self.sums, self.neighbours, self.economy))


def try_reduce_scatter(
    function: Callable[..., Any], n_ranks: int = 4, sizes: Sequence[int] | None = None
) -> Trial:
    """Run ``function(net, chunks)``, the reduce-scatter phase, on ``n_ranks`` ranks.

    Afterwards rank r must hold chunk ``(r + 1) % n_ranks`` summed over all ranks; its other chunks don't matter.
    ``sizes`` are those of the chunks, two numbers each if they aren't given.
    """
    layout = _layout(n_ranks, sizes)
    inputs = [[layout.partial(chunk, [rank]) for chunk in range(n_ranks)] for rank in range(n_ranks)]

    def sums(run: Run) -> str | None:
        for rank, chunks in enumerate(run.results):
            own = (rank + 1) % n_ranks
            fault = _chunks_fault(chunks, n_ranks) or layout.fault(chunks[own], layout.elements(own))
            if fault:
                return (
                    f"on {n_ranks} ranks, rank {rank} must end with chunk {own} summed over all ranks; "
                    f"its chunk {own} {fault}"
                )
        return None

    def economy(run: Run) -> str | None:
        wanted = [layout.n_elements - layout.sizes[(rank + 1) % n_ranks] for rank in range(n_ranks)]
        return _economy_fault(run, "the reduce-scatter", n_ranks - 1, wanted)

    return _trial(function, _in_place(function), inputs, layout, sums, economy)


def try_all_gather(
    function: Callable[..., Any], n_ranks: int = 4, sizes: Sequence[int] | None = None
) -> Trial:
    """Run ``function(net, chunks)``, the all-gather phase, from the state that a reduce-scatter leaves.

    Before, rank r holds chunk ``(r + 1) % n_ranks`` summed over all ranks and partial sums elsewhere. Afterwards
    every rank must hold every chunk summed over all ranks.
    """
    layout = _layout(n_ranks, sizes)
    inputs = [
        # Chunk c starts on rank c and gathers rank after rank: on rank r it holds those from c to r.
        [
            layout.partial(chunk, [(chunk + step) % n_ranks for step in range((rank - chunk) % n_ranks + 1)])
            for chunk in range(n_ranks)
        ]
        for rank in range(n_ranks)
    ]

    def sums(run: Run) -> str | None:
        for rank, chunks in enumerate(run.results):
            for chunk in range(n_ranks):
                fault = _chunks_fault(chunks, n_ranks) or layout.fault(chunks[chunk], layout.elements(chunk))
                if fault:
                    return f"on {n_ranks} ranks, rank {rank} must end with every chunk finished; its chunk {chunk} {fault}"
        return None

    def economy(run: Run) -> str | None:
        wanted = [layout.n_elements - layout.sizes[(rank + 2) % n_ranks] for rank in range(n_ranks)]
        return _economy_fault(run, "the all-gather", n_ranks - 1, wanted)

    return _trial(function, _in_place(function), inputs, layout, sums, economy)


def try_allreduce(
    function: Callable[..., Any], n_ranks: int = 4, n_elements: int = 12, carry: Carry | None = None
) -> Trial:
    """Run ``function(net, buffer)``, the whole all-reduce, on buffers of ``n_elements`` numbers.

    ``carry`` holds working versions of functions from earlier tasks, by name. When there are any, the function is
    tried with these, and with the student's own only if it has faults with them; the better trial counts. So an
    earlier mistake is paid for once.
    """
    return with_carry(
        function, carry, lambda: _try_allreduce(function, n_ranks, n_elements), lambda trial: trial.faults
    )


def _try_allreduce(function: Callable[..., Any], n_ranks: int, n_elements: int) -> Trial:
    layout = Layout(_model(n_ranks, n_elements).chunk_sizes)
    inputs = [[label(rank, element, n_ranks) for element in range(n_elements)] for rank in range(n_ranks)]
    where = f"with {n_elements} numbers on {n_ranks} ranks"

    def sums(run: Run) -> str | None:
        for rank, result in enumerate(run.results):
            if result is None:
                return f"{name_of(function)} returned None on rank {rank}: return the summed buffer"
            fault = layout.fault(result, range(n_elements))
            if fault:
                return f"{where}, the result of rank {rank} {fault}"
        return None

    def economy(run: Run) -> str | None:
        sizes = (n_elements // n_ranks, -(-n_elements // n_ranks))
        for message in run.messages:
            carried_numbers = message.n_bytes // ELEMENT_BYTES
            if not sizes[0] <= carried_numbers <= sizes[1]:
                allowed = " or ".join(str(size) for size in sorted(set(sizes)))
                return (
                    f"rank {message.source} sent {carried_numbers} numbers in one message; {where}, "
                    f"a chunk has {allowed}"
                )
        return _economy_fault(run, "the all-reduce", 2 * (n_ranks - 1), None)

    return _trial(function, function, inputs, layout, sums, economy)


def _model(n_ranks: int, n_elements: int) -> RingSimulation:
    """The book's own ring, run on zeros: chunk sizes, steps and bytes don't depend on the numbers."""
    return simulate_ring_allreduce([[0.0] * n_elements] * n_ranks, ELEMENT_BYTES)


def _layout(n_ranks: int, sizes: Sequence[int] | None) -> Layout:
    ranks = count("n_ranks", n_ranks, least=1, most=16)
    lengths = [2] * ranks if sizes is None else list(sizes)
    if len(lengths) != ranks:
        raise ValueError(f"sizes must hold {ranks} chunk sizes, not {lengths!r}")
    return Layout(lengths)


def _in_place(function: Callable[..., Any]) -> Program:
    """A phase changes its chunks in place; if it returns something instead, that counts."""

    def program(net: Endpoint, chunks: Any) -> Any:
        returned = function(net, chunks)
        return chunks if returned is None else returned

    return program


def _trial(
    function: Callable[..., Any],
    program: Program,
    inputs: list[Any],
    layout: Layout,
    sums: Callable[[Run], str | None],
    economy: Callable[[Run], str | None],
) -> Trial:
    try:
        with silent():
            run = run_ranks(program, inputs, element_bytes=ELEMENT_BYTES, time_limit_s=TIME_LIMIT_S)
    except NetworkError as error:
        stopped = f"on {layout.n_ranks} ranks: {error}"
        return Trial(sums=stopped, neighbours="the run did not finish", economy="the run did not finish")
    return Trial(sums=sums(run), neighbours=_neighbour_fault(run, layout), economy=economy(run))


def _neighbour_fault(run: Run, layout: Layout) -> str | None:
    for message in run.messages:
        right = (message.source + 1) % run.n_ranks
        if message.destination != right:
            return (
                f"rank {message.source} sent {layout.payload_words(message.payload)} to rank {message.destination} "
                f"in its step {message.index}; in the ring it sends only to rank {right}"
            )
    idle = [rank for rank, sent in enumerate(run.sent_messages) if sent == 0]
    if idle and run.n_ranks > 1:
        return f"{rank_words(idle)} sent nothing at all"
    return None


def _economy_fault(run: Run, phase: str, n_messages: int, n_elements: list[int] | None) -> str | None:
    for rank in range(run.n_ranks):
        if run.sent_messages[rank] != n_messages:
            return (
                f"rank {rank} sent {run.sent_messages[rank]} messages; "
                f"{phase} on {run.n_ranks} ranks takes {n_messages} from each"
            )
        if n_elements is not None and run.sent_bytes[rank] != n_elements[rank] * ELEMENT_BYTES:
            return (
                f"rank {rank} sent {run.sent_bytes[rank]} bytes; "
                f"{phase} takes {n_elements[rank] * ELEMENT_BYTES} bytes from it, every chunk but one"
            )
    if run.unread:
        lost = run.unread[0]
        return f"rank {lost.destination} never received a message that rank {lost.source} sent it"
    return None


def _chunks_fault(chunks: Any, n_ranks: int) -> str | None:
    if not isinstance(chunks, (list, tuple)) or len(chunks) != n_ranks:
        return f"can't be found: chunks must stay a list of {n_ranks} chunks, not {reprlib.repr(chunks)}"
    return None


# ---- task 5: count the bytes and predict them ----


def count_fault(
    function: Callable[[int, int], Any], n_ranks: int, n_elements: int, carry: Carry | None = None
) -> str | None:
    """What is wrong with ``function(n_ranks, n_elements)`` as the measured bytes that each rank sends.

    ``carry`` as in :func:`try_allreduce`.
    """
    with carried(function, carry or {}):
        return _bytes_fault(function, n_ranks, n_elements, "counted", "are sent")


def predict_fault(function: Callable[[int, int], Any], n_ranks: int, n_elements: int) -> str | None:
    """What is wrong with ``function(n_ranks, n_elements)`` as the calculated bytes that each rank sends."""

    def no_run(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a prediction comes before the run: calculate it without run_ranks")

    with carried(function, {"run_ranks": no_run}):
        return _bytes_fault(function, n_ranks, n_elements, "predicted", "will be sent")


def _bytes_fault(
    function: Callable[[int, int], Any], n_ranks: int, n_elements: int, done: str, are_sent: str
) -> str | None:
    where = f"{name_of(function)}({n_ranks}, {n_elements})"
    attempted = attempt(function, n_ranks, n_elements)
    if attempted.fault:
        return attempted.fault
    answer = attempted.value
    key = _model(n_ranks, n_elements).sent_bytes
    if not isinstance(answer, (list, tuple)) or len(answer) != n_ranks:
        return (
            f"{where} must return a list of {n_ranks} numbers, one for each rank, not {reprlib.repr(answer)}"
        )
    if list(answer) == key:
        return None
    rank = next(rank for rank in range(n_ranks) if answer[rank] != key[rank])
    words = f"{where}: {answer[rank]} bytes {done} for rank {rank}, but {key[rank]} {are_sent}"
    if [value * ELEMENT_BYTES for value in answer] == key:
        return f"{words}: these are numbers, and each has {ELEMENT_BYTES} bytes"
    if all(value == ring_allreduce_sent_bytes(ELEMENT_BYTES * n_elements, n_ranks) for value in answer):
        return f"{words}: 2(N−1)/N · P is exact only if N divides the length; which two chunks does this rank never send?"
    return words


# ---- task 6: what there is to explain ----


def comparison(ring: Program, star: Program, n_elements: int, ranks: Sequence[int]) -> str:
    """A table of what the two all-reduces send, in buffers P, for each number of ranks."""
    rows = [
        [
            "N",
            "ring: one rank",
            "2(N−1)/N · P",
            "ring: messages",
            "star: rank 0",
            "ring: all ranks",
            "star: all ranks",
        ]
    ]
    for n_ranks in ranks:
        inputs = [[1] * n_elements] * n_ranks
        runs = [run_ranks(program, inputs, element_bytes=ELEMENT_BYTES) for program in (ring, star)]
        ring_sent, star_sent = [
            [sent / (n_elements * ELEMENT_BYTES) for sent in run.sent_bytes] for run in runs
        ]
        shares = (max(ring_sent), 2 * (n_ranks - 1) / n_ranks, star_sent[0], sum(ring_sent), sum(star_sent))
        one, model, rank_0, ring_all, star_all = [f"{share:g} P" for share in shares]
        rows.append([str(n_ranks), one, model, str(max(runs[0].sent_messages)), rank_0, ring_all, star_all])
    return text_table(rows)


# ---- task 1: by hand ----


@dataclass(frozen=True)
class RingNumbers(ByHand):
    """One student's numbers for task 1.

    Attributes:
        n_ranks: N.
        n_params: parameters of the model; a gradient is one fp32 number for each.
        link_bits_per_s: bandwidth of a rank's link in each direction, **bits** per second.
        latency_s: fixed cost of one message, seconds.
    """

    n_ranks: int
    n_params: int
    link_bits_per_s: float
    latency_s: float

    @property
    def n_bytes(self) -> int:
        """P: bytes of the gradient on one rank."""
        return self.n_params * ELEMENT_BYTES

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"N  {self.n_ranks} ranks",
            f"P  the gradient of {self.n_params / 1e6:g} million parameters, in fp32: 4 bytes each",
            f"B  {self.link_bits_per_s / 1e9:g} Gb/s in each direction",
            f"α  {self.latency_s * 1e3:g} ms for each message",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        n, size = self.n_ranks, self.n_bytes
        if quantity == "sent_bytes":
            return ring_allreduce_sent_bytes(size, n)
        if quantity == "n_messages":
            return float(_model(n, n).n_steps)
        if quantity == "rank0_bytes":
            return float((n - 1) * size)
        if quantity == "time_s":
            return ring_allreduce_time_s(size, n, self.link_bits_per_s / 8, self.latency_s)
        raise ValueError(
            f"quantity must be one of sent_bytes, n_messages, rank0_bytes, time_s, not {quantity!r}"
        )

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        n, size, ring = self.n_ranks, self.n_bytes, self.key("sent_bytes")
        bandwidth, latency = self.link_bits_per_s / 8, self.latency_s
        if quantity == "sent_bytes":
            return [
                (ring / 2, "that is one phase; an all-reduce has two"),
                (2.0 * size, "that is the ceiling 2P, which no finite ring reaches"),
                (
                    float(size),
                    "that is the whole buffer once; how many chunks does a rank send, in both phases?",
                ),
                (n * ring, "that is what all ranks send together; the question is about one"),
                (
                    (n - 1) * size,
                    "that is what a rank sends that sends its whole buffer to each of the others",
                ),
                (ring / ELEMENT_BYTES, "that counts numbers; each has 4 bytes"),
                (ring * 8, "those are bits; the answer is in bytes"),
                (ring / 1e6, "that is in MB; the answer is in bytes"),
                (ring / 1e9, "that is in GB; the answer is in bytes"),
            ]
        if quantity == "n_messages":
            return [
                (n - 1.0, "that is one phase; an all-reduce has two"),
                (2.0 * n, "each phase ends one step before a chunk is back where it started"),
                (2.0 * n * (n - 1), "that is what all ranks send together; the question is about one"),
            ]
        if quantity == "rank0_bytes":
            return [
                (float(size), "that is the sum sent to one rank; rank 0 sends it to all others"),
                (float(n * size), "rank 0 needs no message to itself"),
                (2.0 * (n - 1) * size, "that is sent and received together; the question is about sent"),
                (ring, "that is the ring; here everything goes through rank 0"),
            ]
        if quantity == "time_s":
            hops = 2 * (n - 1) * latency
            return [
                (
                    ring / self.link_bits_per_s + hops,
                    "the link is given in bits per second; a byte has 8 bits",
                ),
                (ring / bandwidth, "that leaves out α, once for each message"),
                (ring / bandwidth + latency, "α is paid for every message, one after the other"),
                ((ring / bandwidth + hops) / 2, "that is one phase; an all-reduce has two"),
                ((ring / bandwidth + hops) * 1e3, "that is in milliseconds; the answer is in seconds"),
            ]
        return []


def by_hand_numbers(student: str) -> RingNumbers:
    """A student's numbers for task 1. N divides the gradient, and latency is neither all of the time nor none."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")
    n_ranks = draw.pick((5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18, 20, 24))
    # One message: 0.5 to 2 million parameters, 2 to 8 MB.
    per_chunk = 500_000 + 10_000 * draw.below(151)
    link = draw.pick((10e9, 20e9, 25e9, 40e9, 50e9, 80e9, 100e9))
    latency = draw.pick((0.1e-3, 0.15e-3, 0.2e-3, 0.25e-3, 0.3e-3, 0.4e-3, 0.5e-3))
    return RingNumbers(
        student=name,
        complaint=complaint,
        n_ranks=n_ranks,
        n_params=n_ranks * per_chunk,
        link_bits_per_s=link,
        latency_s=latency,
    )
