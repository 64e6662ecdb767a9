"""What a program of :func:`run_ranks` would take on a network whose links have a latency and a bandwidth.

The run remembers what each rank sends and receives, in order; from that the times of all messages follow, for any
latency and bandwidth. A message of n bytes takes ``latency + n / bandwidth``. A rank sends one message at a time and
receives one at a time, both at once; calculating takes no time. This is the model of
:mod:`shardlab.models.collectives`, held against a program instead of a formula.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.checks import non_negative, positive
from shardlab.classroom.network import Endpoint, Program, Run, Wire, run_ranks


@dataclass(frozen=True)
class Event:
    """One call of a rank: a message sent to ``peer``, or (``n_bytes`` is None) the next one received from it."""

    peer: int
    n_bytes: int | None


@dataclass(frozen=True)
class TimedRun:
    """A finished run and what each rank did in it.

    Attributes:
        run: the run.
        events: for each rank its sends and receives, in order.
    """

    run: Run
    events: list[list[Event]]

    @property
    def rounds(self) -> int:
        """Messages that follow each other on the longest path: the time if each takes 1, whatever its size."""
        return round(self.time_s(1.0, math.inf))

    def time_s(self, latency_s: float, bandwidth: float) -> float:
        """Seconds until the last message has arrived.

        Args:
            latency_s: fixed cost of one message, seconds.
            bandwidth: of a rank in each direction, bytes/s; may be infinite.

        Raises:
            ValueError: an argument is out of range.
        """
        latency = non_negative("latency_s", latency_s, "seconds")
        speed = bandwidth if bandwidth == math.inf else positive("bandwidth", bandwidth, "bytes/s")
        return _Clock(self.events, latency, speed).finish()


@dataclass(frozen=True, order=True)
class _Transfer:
    """A message on its way: when it arrives if the receiver's link is free, a number that is its own, and the rest."""

    arrives: float
    number: int
    source: int
    destination: int
    duration: float


class _Clock:
    """Lets the messages of a run arrive, one after the other."""

    def __init__(self, events: list[list[Event]], latency_s: float, bandwidth: float) -> None:
        n_ranks = len(events)
        self._events = events
        self._latency_s = latency_s
        self._bandwidth = bandwidth
        self._next = [0] * n_ranks
        # When a rank has all that it has waited for, and when its link is free again, out and in.
        self._ready = [0.0] * n_ranks
        self._free_out = [0.0] * n_ranks
        self._free_in = [0.0] * n_ranks
        self._order: list[_Transfer] = []
        # Of each pair of ranks: what is under way, and when what has arrived and isn't read yet arrived.
        self._under_way: dict[tuple[int, int], deque[_Transfer]] = {}
        self._arrived: dict[tuple[int, int], deque[float]] = {}
        self._delivered: set[int] = set()
        self._sent = 0

    def finish(self) -> float:
        """Let every rank go as far as it can, message after message; the end is the last arrival."""
        for rank in range(len(self._events)):
            self._go_on(rank)
        while self._order:
            transfer = heapq.heappop(self._order)
            while transfer.number not in self._delivered:
                self._deliver(self._first(transfer))
        return max(self._free_in, default=0.0)

    def _slot_s(self, transfer: _Transfer) -> float:
        """When a message has arrived, if it is the next one on its receiver's link."""
        return max(transfer.arrives, self._free_in[transfer.destination] + transfer.duration)

    def _first(self, transfer: _Transfer) -> _Transfer:
        """This message, or the one that its receiver waits for, if that is there as soon."""
        rank = transfer.destination
        if self._next[rank] < len(self._events[rank]):
            queue = self._under_way.get((self._events[rank][self._next[rank]].peer, rank))
            if queue and queue[0].arrives <= self._slot_s(transfer):
                return queue[0]
        return transfer

    def _deliver(self, transfer: _Transfer) -> None:
        pair = (transfer.source, transfer.destination)
        # Messages of a pair arrive in the order in which they were sent.
        self._under_way[pair].popleft()
        self._delivered.add(transfer.number)
        self._free_in[transfer.destination] = self._slot_s(transfer)
        self._arrived.setdefault(pair, deque()).append(self._free_in[transfer.destination])
        self._go_on(transfer.destination)

    def _go_on(self, rank: int) -> None:
        """Follow a rank's events until it waits for a message that hasn't arrived."""
        while self._next[rank] < len(self._events[rank]):
            event = self._events[rank][self._next[rank]]
            if event.n_bytes is None:
                arrived = self._arrived.get((event.peer, rank))
                if not arrived:
                    return
                self._ready[rank] = max(self._ready[rank], arrived.popleft())
            else:
                self._send(rank, event.peer, event.n_bytes)
            self._next[rank] += 1

    def _send(self, rank: int, destination: int, n_bytes: int) -> None:
        duration = self._latency_s + n_bytes / self._bandwidth
        self._free_out[rank] = max(self._ready[rank], self._free_out[rank]) + duration
        self._sent += 1
        transfer = _Transfer(self._free_out[rank], self._sent, rank, destination, duration)
        self._under_way.setdefault((rank, destination), deque()).append(transfer)
        heapq.heappush(self._order, transfer)


class _Remembered(Wire):
    """A rank's end of the network that writes down what passes."""

    def __init__(self, net: Endpoint, events: list[Event]) -> None:
        self._net = net
        self._events = events

    def send(self, source: int, destination: int, payload: tuple[Any, ...]) -> None:
        self._net.send(destination, payload)
        self._events.append(Event(peer=destination, n_bytes=len(payload) * self._net.element_bytes))

    def recv(self, rank: int, source: int) -> tuple[Any, ...]:
        payload = self._net.recv(source)
        self._events.append(Event(peer=source, n_bytes=None))
        return tuple(payload)


def run_timed(
    program: Program, inputs: Sequence[Any], *, element_bytes: int = 4, time_limit_s: float = 10.0
) -> TimedRun:
    """Run ``program(net, inputs[rank])`` as :func:`run_ranks` does, and remember what every rank did.

    Args and errors as in :func:`run_ranks`.
    """
    events: list[list[Event]] = [[] for _ in inputs]

    def remembered(net: Endpoint, value: Any) -> Any:
        wire = _Remembered(net, events[net.rank])
        return program(Endpoint(net.rank, net.n_ranks, net.element_bytes, wire), value)

    run = run_ranks(remembered, inputs, element_bytes=element_bytes, time_limit_s=time_limit_s)
    return TimedRun(run=run, events=events)
