"""N ranks in one process, joined by a network that remembers who sent what to whom.

A program is a function ``program(net, value)`` that runs once on every rank, like the script of a real
distributed run. ``net`` is the rank's end of the network::

    def pass_to_the_right(net, value):
        net.send((net.rank + 1) % net.n_ranks, [value])
        return net.recv((net.rank - 1) % net.n_ranks)

    run = run_ranks(pass_to_the_right, [10, 20, 30])
    run.results      # [[30], [10], [20]]
    run.sent_bytes   # [4, 4, 4]

The ranks take turns in a fixed order, so a run is the same every time: a rank runs until it waits for a message
that is not there yet. When all that are left wait, that is a deadlock, and it is reported at once.
"""

from __future__ import annotations

import copy
import ctypes
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from shardlab.checks import count, positive

Program = Callable[["Endpoint", Any], Any]

# A ring all-reduce on 100 ranks sends 19,800.
MOST_MESSAGES = 50_000
MOST_RANKS = 256
_TICK_S = 0.02
# How often a thread is told to stop.
_PATIENCE = 25
# A sleeping program uses no processor time, a loaded machine stretches it: the clock on the wall gets more.
_WALL_FACTOR = 6
_MOST_LINES = 8


class NetworkError(RuntimeError):
    """A run that could not be finished. Its message is meant for the person who wrote the program."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message alone, with the program's own traceback where there is one."""
        shown = [f"{type(self).__name__}: {self}"]
        if self.__cause__ is not None:
            shown = [program_traceback(self.__cause__), "", *shown]
        return shown


class NotWritten(NotImplementedError):
    """The program, or a function that it calls, isn't written yet."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message alone."""
        return [f"NotImplementedError: {self}"]

    @classmethod
    def from_error(cls, error: NotImplementedError) -> NotWritten:
        """The same, with the name of the function that is missing."""
        frames = _own_frames(error)
        return cls(f"{frames[-1].name if frames else 'the program'} is not written yet")


class Deadlock(NetworkError):
    """Every rank that has not finished waits for a message that nobody has sent."""


class TooLong(NetworkError):
    """The run used up its time or its messages: most likely a loop without end."""


class RankFailed(NetworkError):
    """A rank raised an exception; it is the ``__cause__``."""


class _Stop(SystemExit):
    """Ends a rank's thread. No Exception, so that ``except Exception`` in a program lets it through; a SystemExit,
    because a thread that ends with one says nothing on the error stream."""


@dataclass(frozen=True)
class Message:
    """One message of a run.

    Attributes:
        source: rank that sent it.
        destination: rank that it was sent to.
        n_bytes: size, bytes.
        index: how many messages ``source`` had sent before this one.
        payload: the numbers (empty when the ranks were processes of their own).
    """

    source: int
    destination: int
    n_bytes: int
    index: int
    payload: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        n_ranks: number of ranks.
        results: what the program returned on each rank.
        messages: every message, in the order of sending (of each rank, when the ranks were real processes).
        unread: the messages that nobody received.
        backend: ``"simulated"``, or the backend of the real processes, such as ``"gloo"``.
        wire_bytes: for real processes, what the kernel counted on each rank's connections, headers included
            (None where it can't be read).
    """

    n_ranks: int
    results: list[Any]
    messages: list[Message]
    unread: list[Message] = field(default_factory=list)
    backend: str = "simulated"
    wire_bytes: list[int | None] = field(default_factory=list)

    @property
    def sent_bytes(self) -> list[int]:
        """Bytes that each rank sent."""
        return self._per_rank([(message.source, message.n_bytes) for message in self.messages])

    @property
    def received_bytes(self) -> list[int]:
        """Bytes that were sent to each rank."""
        return self._per_rank([(message.destination, message.n_bytes) for message in self.messages])

    @property
    def sent_messages(self) -> list[int]:
        """Messages that each rank sent."""
        return self._per_rank([(message.source, 1) for message in self.messages])

    def _per_rank(self, amounts: list[tuple[int, int]]) -> list[int]:
        totals = [0] * self.n_ranks
        for rank, amount in amounts:
            totals[rank] += amount
        return totals

    def link_bytes(self, source: int, destination: int) -> int:
        """Bytes from ``source`` to ``destination``."""
        return sum(
            message.n_bytes
            for message in self.messages
            if (message.source, message.destination) == (source, destination)
        )

    def table(self) -> str:
        """Who sent how many bytes to whom: one row for each sender, one column for each receiver."""
        ranks = range(self.n_ranks)
        rows = [["bytes", *[f"to {rank}" for rank in ranks], "sent"]]
        for source in ranks:
            cells = [self.link_bytes(source, destination) for destination in ranks]
            rows.append([f"rank {source}", *[str(cell) if cell else "·" for cell in cells], str(sum(cells))])
        rows.append(
            ["received", *[str(total) for total in self.received_bytes], str(sum(self.received_bytes))]
        )
        return text_table(rows)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length as text, each column as wide as it must be and aligned to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


class Endpoint:
    """One rank's end of the network: what a program calls ``net``.

    Attributes:
        rank: this rank, 0 to ``n_ranks - 1``.
        n_ranks: number of ranks.
        element_bytes: bytes of one number on the wire.
    """

    def __init__(self, rank: int, n_ranks: int, element_bytes: int, wire: Wire) -> None:
        self.rank = rank
        self.n_ranks = n_ranks
        self.element_bytes = element_bytes
        self._wire = wire

    def send(self, destination: int, payload: Sequence[Any]) -> None:
        """Send a list of numbers to rank ``destination``. Never waits; what is sent is a copy.

        Raises:
            ValueError: there is no such rank, it is this rank itself, or ``payload`` is no list of numbers.
        """
        self._wire.send(self.rank, self._peer("destination", destination), numbers(payload))

    def recv(self, source: int) -> list[Any]:
        """Wait for the next message from rank ``source`` and return its numbers as a list.

        Messages from one rank arrive in the order in which it sent them.

        Raises:
            ValueError: there is no such rank, or it is this rank itself.
        """
        return list(self._wire.recv(self.rank, self._peer("source", source)))

    def _peer(self, name: str, rank: object) -> int:
        peer = count(name, rank, least=0, most=self.n_ranks - 1)
        if peer == self.rank:
            raise ValueError(f"{name} must be another rank, not {rank!r}: that is this rank itself")
        return peer

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.n_ranks}>"


class Wire:
    """What carries an endpoint's messages: the ranks of :func:`run_ranks`, or real processes."""

    def send(self, source: int, destination: int, payload: tuple[Any, ...]) -> None:
        """Hand over a message without waiting."""
        raise NotImplementedError

    def recv(self, rank: int, source: int) -> tuple[Any, ...]:
        """Wait for the next message from ``source`` to ``rank``."""
        raise NotImplementedError


def numbers(payload: object) -> tuple[Any, ...]:
    """``payload`` as a tuple, if it is a sequence of numbers.

    Raises:
        ValueError: it isn't. A nested list would travel at the price of its outer length.
    """
    wanted = "payload must be a list of numbers, such as chunks[0]"
    if isinstance(payload, (str, bytes, dict, set)) or not hasattr(payload, "__len__"):
        raise ValueError(f"{wanted}, not {payload!r}")
    items: tuple[Any, ...] = tuple(payload)  # type: ignore[arg-type]
    for item in items:
        if not isinstance(item, Real):
            raise ValueError(f"{wanted}; it holds {item!r}")
    return items


def run_ranks(
    program: Program, inputs: Sequence[Any], *, element_bytes: int = 4, time_limit_s: float = 10.0
) -> Run:
    """Run ``program(net, inputs[rank])`` on ``len(inputs)`` ranks and return the finished :class:`Run`.

    Args:
        program: the function that every rank runs. Each rank gets a copy of its own input.
        inputs: one value for each rank.
        element_bytes: bytes of one number on the wire (4 for fp32).
        time_limit_s: processor time that the run may use, seconds.

    Raises:
        ValueError: an argument is out of range.
        Deadlock: all ranks that are left wait for messages that are not on their way.
        NotWritten: the program raised NotImplementedError.
        RankFailed: a rank raised another exception.
        TooLong: the time limit, or the limit on messages, was reached.
    """
    n_ranks = count("number of inputs", len(inputs), least=1, most=MOST_RANKS)
    width = count("element_bytes", element_bytes)
    limit = positive("time_limit_s", time_limit_s, "seconds")
    return _Simulation(program, inputs, n_ranks, width).run(limit)


class _Simulation(Wire):
    """Threads that take turns. Only the rank whose turn it is touches the state, so there is nothing to lock."""

    def __init__(self, program: Program, inputs: Sequence[Any], n_ranks: int, element_bytes: int) -> None:
        self._program = program
        self._inputs = [copy.deepcopy(value) for value in inputs]
        self._n_ranks = n_ranks
        self._element_bytes = element_bytes
        self._queues: dict[tuple[int, int], deque[Message]] = {}
        self._messages: list[Message] = []
        self._sent = [0] * n_ranks
        self._results: list[Any] = [None] * n_ranks
        self._waiting_for: list[int | None] = [None] * n_ranks
        self._finished = [False] * n_ranks
        self._turns = [threading.Semaphore(0) for _ in range(n_ranks)]
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._threads = [
            threading.Thread(target=self._rank_main, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(n_ranks)
        ]

    def run(self, limit_s: float) -> Run:
        started_cpu, started = time.process_time(), time.monotonic()
        for thread in self._threads:
            thread.start()
        self._turns[0].release()
        try:
            while not self._over.wait(_TICK_S):
                if (
                    time.process_time() - started_cpu > limit_s
                    or time.monotonic() - started > _WALL_FACTOR * limit_s
                ):
                    self._fail(
                        TooLong(f"stopped after {limit_s:g} s: does a loop never end? {self._progress()}")
                    )
        finally:
            # Also when the person at the keyboard interrupts us.
            self._over.set()
            self._stop_threads()
        if self._failure is not None:
            raise self._failure
        return Run(
            n_ranks=self._n_ranks,
            results=self._results,
            messages=self._messages,
            unread=[message for queue in self._queues.values() for message in queue],
        )

    # ---- a rank's own thread ----

    def _rank_main(self, rank: int) -> None:
        try:
            self._take_turn(rank)
            net = Endpoint(rank, self._n_ranks, self._element_bytes, self)
            self._results[rank] = self._program(net, self._inputs[rank])
            self._finished[rank] = True
            self._pass_turn(rank)
        except _Stop:
            pass
        except NotImplementedError as error:
            # Not a failure of the rank: the program isn't there yet.
            self._fail(NotWritten.from_error(error))
        except BaseException as error:
            failure = RankFailed(f"rank {rank} stopped with {describe(error)}")
            failure.__cause__ = error
            self._fail(failure)

    def send(self, source: int, destination: int, payload: tuple[Any, ...]) -> None:
        if self._over.is_set():
            raise _Stop
        if len(self._messages) >= MOST_MESSAGES:
            self._fail(
                TooLong(f"stopped after {MOST_MESSAGES:,} messages: does a loop around send never end?")
            )
            raise _Stop
        message = Message(
            source=source,
            destination=destination,
            n_bytes=len(payload) * self._element_bytes,
            index=self._sent[source],
            payload=payload,
        )
        self._sent[source] += 1
        self._messages.append(message)
        self._queues.setdefault((source, destination), deque()).append(message)

    def recv(self, rank: int, source: int) -> tuple[Any, ...]:
        if not self._queues.get((source, rank)):
            self._waiting_for[rank] = source
            self._pass_turn(rank)
            self._take_turn(rank)
            self._waiting_for[rank] = None
        return self._queues[source, rank].popleft().payload

    def _take_turn(self, rank: int) -> None:
        self._turns[rank].acquire()
        if self._over.is_set():
            raise _Stop

    def _pass_turn(self, rank: int) -> None:
        """Give the turn to the next rank that can go on; without one, the run is over."""
        for step in range(1, self._n_ranks + 1):
            other = (rank + step) % self._n_ranks
            if not self._finished[other] and self._can_go_on(other):
                self._turns[other].release()
                return
        if not all(self._finished):
            self._fail(Deadlock(self._deadlock_words()))
            raise _Stop
        self._over.set()

    def _can_go_on(self, rank: int) -> bool:
        source = self._waiting_for[rank]
        return source is None or bool(self._queues.get((source, rank)))

    # ---- how a run ends ----

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        self._over.set()

    def _stop_threads(self) -> None:
        """Wake the waiting ranks and interrupt a busy one; a thread that resists is left behind as a daemon."""
        for turn in self._turns:
            turn.release()
        for _ in range(_PATIENCE):
            for thread in self._threads:
                thread.join(_TICK_S)
            alive = [thread for thread in self._threads if thread.is_alive()]
            if not alive:
                return
            for thread in alive:
                if thread.ident is not None:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop)
                    )

    def _progress(self) -> str:
        busy = [
            rank
            for rank in range(self._n_ranks)
            if not self._finished[rank] and self._waiting_for[rank] is None
        ]
        where = f"Rank {busy[0]} was busy" if busy else "No rank was busy"
        return f"{where}, after {len(self._messages)} messages in all."

    def _deadlock_words(self) -> str:
        lines = ["deadlock: every rank that is left waits for a message that nobody has sent."]
        for rank, source in enumerate(self._waiting_for):
            if source is None or self._finished[rank]:
                continue
            then = "has finished" if self._finished[source] else f"waits for rank {self._waiting_for[source]}"
            lines.append(f"  rank {rank} waits for rank {source}, which {then}")
        for (source, destination), queue in sorted(self._queues.items()):
            if queue:
                lines.append(f"  rank {source} sent to rank {destination}, which never received it")
        if len(lines) > _MOST_LINES:
            lines = [*lines[:_MOST_LINES], f"  … and {len(lines) - _MOST_LINES} more like these"]
        return "\n".join(lines)


# ---- words about a program's exception ----

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def describe(error: BaseException) -> str:
    """An exception in one line, with the program's line that raised it."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = _own_frames(error)
    if not frames:
        return words
    innermost = frames[-1]
    code = f": {innermost.line}" if innermost.line else ""
    return f"{words}\n  at line {innermost.lineno} of {innermost.name}{code}"


def program_traceback(error: BaseException) -> str:
    """The exception's traceback from the program's first line on, as text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the program, without those of this package and of libraries that it called."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames


def _is_ours(filename: str) -> bool:
    return filename.startswith(_PACKAGE)
