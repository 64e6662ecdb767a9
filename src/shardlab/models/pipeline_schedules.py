"""Pipeline schedules as lists: what each rank runs, in which order. No times here.

Three kinds of operation: ``F`` forward, ``B`` the backward's input gradient, ``W`` its weight gradient.
An entry is one or more operations that run back to back and whose results leave the rank together: a whole
backward is the entry ``B`` joined with ``W``, and DualPipe's overlapped pair is ``F`` joined with ``B`` and ``W``.

Inside this package an entry is a tuple of ``(slot, micro_batch)`` pairs with ``slot = kind * chunks + chunk``.
People write and read text: ``F3``, ``B3``, ``W3``, with chunks ``F3.1``, joined ``F7.0+B3.1+W3.1``.
"""

from __future__ import annotations

from typing import Any

from shardlab.checks import choice, count

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")
PLACEMENTS = ("loop", "v")
KINDS = ("F", "B", "W")
F, B, W = 0, 1, 2

_IN_V = ("zb-v", "dualpipe-v")
_WHOLE_BACKWARD = ("gpipe", "1f1b", "interleaved-1f1b")


def stage_of(rank: int, chunk: int, stages: int, placement: str) -> int:
    """Position in the model (0 is the input side) of one rank's chunk.

    ``"loop"`` deals the chunks round: chunk c of rank r is c·p + r. ``"v"`` goes down the ranks and back up:
    chunk 0 of rank r is r, chunk 1 is 2p-1-r, so the last rank turns round and rank 0 ends the model.
    """
    if placement == "v":
        return rank if chunk == 0 else 2 * stages - 1 - rank
    return chunk * stages + rank


def placement_of(schedule: str) -> str:
    """``"v"`` for zb-v and dualpipe-v, else ``"loop"``."""
    return "v" if schedule in _IN_V else "loop"


def checked_sizes(schedule: Any, stages: Any, micro_batches: Any, chunks: Any) -> tuple[str, int, int, int]:
    """The schedule, p, m and the chunks per rank that will be used.

    Raises:
        ValueError: an unknown schedule, a size that is not a whole number from 1, ``chunks`` for a schedule that
            takes none, or (interleaved) micro-batches that are not a multiple of the stages.
    """
    name = choice("schedule", schedule, SCHEDULES)
    ranks = count("stages", stages)
    batches = count("micro_batches", micro_batches)
    per_rank = count("chunks", chunks)
    if name in _IN_V:
        if per_rank > 2:
            raise ValueError(
                f"chunks must be 2 for {name}, whose ranks hold two chunks placed in a V, not {chunks!r}"
            )
        return name, ranks, batches, 2
    if name != "interleaved-1f1b":
        if per_rank != 1:
            raise ValueError(f"chunks must be 1 for {name}, not {chunks!r}; only interleaved-1f1b takes more")
    elif batches % ranks:
        raise ValueError(
            f"micro_batches must be a multiple of stages ({ranks}) for interleaved-1f1b, not {micro_batches!r}: "
            f"take {batches - batches % ranks or ranks} or {batches + ranks - batches % ranks}"
        )
    return name, ranks, batches, per_rank


def schedule_warnings(schedule: str, stages: int, micro_batches: int, chunks: int) -> tuple[str, ...]:
    """What a reader of the result should know about this choice of sizes; empty when all is well."""
    found = []
    if micro_batches < stages:
        found.append(
            f"micro_batches ({micro_batches}) is below stages ({stages}): the pipeline never fills, so part of it "
            "always idles. The bubble given is the true one; training frameworks refuse such a run or hang"
        )
    if schedule == "dualpipe-v" and micro_batches < 2 * stages:
        found.append(
            f"dualpipe-v is published for at least 2 x stages = {2 * stages} micro-batches; "
            f"this is its order with all but {micro_batches} left out"
        )
    if schedule == "interleaved-1f1b" and chunks == 1:
        found.append("interleaved-1f1b with 1 chunk per rank is 1f1b: give chunks=2 or more to interleave")
    return tuple(found)


def _alternate(
    forwards: list[Any], backwards: list[Any], weights: list[Any], warm_up: int, weight_delay: int
) -> list[Any]:
    """Warm-up forwards, then forward and backward in turn, then the backwards that are left.

    The k-th weight gradient follows backward ``k + weight_delay``; those still owed come at the end.
    """
    order = forwards[:warm_up]
    for index, backward in enumerate(backwards):
        if warm_up + index < len(forwards):
            order.append(forwards[warm_up + index])
        order.append(backward)
        if weights and index >= weight_delay:
            order.append(weights[index - weight_delay])
    if weights:
        order.extend(weights[max(len(weights) - weight_delay, 0) :])
    return order


class _Entries:
    """The entries that ranks share: each single operation, and each whole backward. Made once per schedule."""

    def __init__(self, micro_batches: int, chunks: int) -> None:
        batches = range(micro_batches)
        self.micro_batches = micro_batches
        self.single = [[((slot, batch),) for batch in batches] for slot in range(3 * chunks)]
        self.whole_backward = [
            [((B * chunks + chunk, batch), (W * chunks + chunk, batch)) for batch in batches]
            for chunk in range(chunks)
        ]


def _one_chunk(schedule: str, rank: int, stages: int, entries: _Entries) -> list[Any]:
    """gpipe, 1f1b, zb-h1 and zb-h2: one rule with two numbers, warm-up forwards and delay of the weight gradient."""
    ahead, behind = stages - 1 - rank, rank
    warm_up, delay = {
        "gpipe": (entries.micro_batches, 0),
        "1f1b": (ahead, 0),
        "zb-h1": (ahead, behind),
        "zb-h2": (2 * ahead, 2 * behind),
    }[schedule]
    if schedule in _WHOLE_BACKWARD:
        return _alternate(entries.single[F], entries.whole_backward[0], [], warm_up, 0)
    return _alternate(entries.single[F], entries.single[B], entries.single[W], warm_up, delay)


def _interleaved(rank: int, stages: int, chunks: int, entries: _Entries) -> list[Any]:
    """interleaved-1f1b: p micro-batches through chunk 0, the same p through chunk 1, ...; backwards in reverse.

    The warm-up is p forwards for every chunk but the last and 2 for every rank still ahead. One chunk is 1f1b,
    whose warm-up is 1 for every rank ahead.
    """
    if chunks == 1:
        return _one_chunk("1f1b", rank, stages, entries)
    forwards, backwards = [], []
    for first in range(0, entries.micro_batches, stages):
        for chunk in range(chunks):
            forwards.extend(entries.single[F * chunks + chunk][first : first + stages])
            backwards.extend(entries.whole_backward[chunks - 1 - chunk][first : first + stages])
    warm_up = (chunks - 1) * stages + 2 * (stages - 1 - rank)
    return _alternate(forwards, backwards, [], warm_up, 0)


class _Order:
    """Builds one rank's order of a two-chunk schedule: each slot counts its own micro-batches upwards.

    The rules are stated for enough micro-batches; with fewer, those that don't exist are left out.
    """

    def __init__(self, entries: _Entries) -> None:
        self.entries = entries
        self.next = [0] * 6
        self.order: list[Any] = []
        self.owed: list[tuple[int, int]] = []

    def add(self, slot: int) -> None:
        """The next micro-batch of a slot, by itself."""
        self._append(slot, self.next[slot])
        self.next[slot] += 1

    def add_backward(self, chunk: int) -> None:
        """The next whole backward of a chunk."""
        batch = self.next[2 * B + chunk]
        if batch < self.entries.micro_batches:
            self.order.append(self.entries.whole_backward[chunk][batch])
        self.next[2 * B + chunk] += 1
        self.next[2 * W + chunk] += 1

    def add_pair(self, forward_chunk: int) -> None:
        """The next forward of one chunk, joined with the next whole backward of the other."""
        slot, backward_chunk = 2 * F + forward_chunk, 1 - forward_chunk
        forward, backward = self.next[slot], self.next[2 * B + backward_chunk]
        start = len(self.order)
        self.add(slot)
        self.add_backward(backward_chunk)
        if max(forward, backward) < self.entries.micro_batches:
            self.order[start:] = [self.order[start] + self.order[start + 1]]

    def owe_weight(self, chunk: int) -> None:
        """An input gradient whose weight gradient comes later."""
        slot = 2 * W + chunk
        self.owed.append((slot, self.next[slot]))
        self.next[slot] += 1
        self.add(2 * B + chunk)

    def pay_weight(self, position: int) -> None:
        """The weight gradient that was owed first, second, ..."""
        slot, batch = self.owed[position]
        self._append(slot, batch)

    def _append(self, slot: int, batch: int) -> None:
        if batch < self.entries.micro_batches:
            self.order.append(self.entries.single[slot][batch])


# Slots of a two-chunk schedule: kind * 2 + chunk.
_F0, _F1, _B0, _B1, _W0, _W1 = 0, 1, 2, 3, 4, 5


def _zb_v(rank: int, stages: int, entries: _Entries) -> list[Any]:
    """zb-v. Micro-batch 0 is back at rank r as chunk 1 after 2(p-1-r) hops, so 2(p-r)-1 forwards of chunk 0 fit in.

    Then the chunks take turns, each backward followed at once by its weight gradient, until the last r input
    gradients of each chunk, which hurry on so that the ranks before can finish; their weight gradients fill the end.
    """
    order = _Order(entries)
    enough = max(entries.micro_batches, 2 * stages - 1)
    for _ in range(2 * (stages - rank) - 1):
        order.add(_F0)
    for _ in range(rank):
        order.add(_F1)
        order.add(_F0)
    for _ in range(stages - rank):
        for slot in (_F1, _B1, _W1):
            order.add(slot)
    for _ in range(enough - stages):
        if order.next[_F0] < enough:
            order.add(_F0)
        for slot in (_B0, _W0, _F1, _B1, _W1):
            order.add(slot)
    for _ in range(rank):
        order.add(_B0)
        order.add(_B1)
    for _ in range(stages - rank):
        order.add(_B0)
        order.add(_W0)
    for slot in (_W1, _W0):
        for _ in range(rank):
            order.add(slot)
    return order.order


def _dualpipe_v(rank: int, stages: int, entries: _Entries) -> list[Any]:
    """dualpipe-v: the published eight phases, with r the rank, p the stages and n the micro-batches (at least 2p).

    1. 2(p-1-r) forwards of chunk 0. 2. r+1 times forward of both chunks. 3. p-1-r times input gradient and weight
    gradient of chunk 1, then its forward. 4. n-2p+r+1 times the pairs F0 with backward of chunk 1, F1 with backward
    of chunk 0 (the last rank runs the first pair apart). 5. p-1-r times backward of chunk 1, then the pair F1 with
    backward of chunk 0. 6. 2(r+1) backwards of the chunks in turn, the first half whole, the second half without
    weight gradient. 7. p-1-r times a weight gradient owed, then an input gradient of chunk 0. 8. The weight gradients
    still owed.
    """
    order = _Order(entries)
    enough = max(entries.micro_batches, 2 * stages)
    later = stages - 1 - rank
    for _ in range(2 * later):
        order.add(_F0)
    for _ in range(rank + 1):
        order.add(_F0)
        order.add(_F1)
    for _ in range(later):
        for slot in (_B1, _W1, _F1):
            order.add(slot)
    for index in range(enough - 2 * stages + rank + 1):
        if index == 0 and later == 0:
            order.add(_F0)
            order.add_backward(1)
        else:
            order.add_pair(0)
        order.add_pair(1)
    for _ in range(later):
        order.add_backward(1)
        order.add_pair(1)
    for index in range(2 * (rank + 1)):
        chunk = 1 - index % 2
        if index <= rank:
            order.add_backward(chunk)
        else:
            order.owe_weight(chunk)
    for index in range(later):
        order.pay_weight(index)
        order.owe_weight(0)
    for index in range(later, len(order.owed)):
        order.pay_weight(index)
    return order.order


def rank_orders(schedule: str, stages: int, micro_batches: int, chunks: int) -> list[list[Any]]:
    """Every rank's list of entries, for sizes that :func:`checked_sizes` has passed."""
    entries = _Entries(micro_batches, chunks)
    ranks = range(stages)
    if schedule == "interleaved-1f1b":
        return [_interleaved(rank, stages, chunks, entries) for rank in ranks]
    if schedule == "zb-v":
        return [_zb_v(rank, stages, entries) for rank in ranks]
    if schedule == "dualpipe-v":
        return [_dualpipe_v(rank, stages, entries) for rank in ranks]
    return [_one_chunk(schedule, rank, stages, entries) for rank in ranks]


def operation_text(slot: int, micro_batch: int, chunks: int) -> str:
    """``F3``, or with chunks ``F3.1``."""
    kind, chunk = divmod(slot, chunks)
    return f"{KINDS[kind]}{micro_batch}" if chunks == 1 else f"{KINDS[kind]}{micro_batch}.{chunk}"


def entry_text(entry: Any, chunks: int) -> str:
    """An entry as text, its operations joined by ``+``."""
    return "+".join([operation_text(slot, batch, chunks) for slot, batch in entry])


def schedule_operations(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> list[list[str]]:
    """What each rank runs, in order, as text that :func:`shardlab.models.pipeline.execute` takes back.

    ``F3`` is the forward of micro-batch 3, ``B3`` its input gradient, ``W3`` its weight gradient. In gpipe, 1f1b and
    interleaved-1f1b, which have no ``W``, ``B3`` is the whole backward. With chunks, ``F3.1`` belongs to the rank's
    chunk 1. ``F7.0+B3.1+W3.1`` is one joined entry: its results leave the rank together, at its end.

    Args:
        schedule: one of ``SCHEDULES``.
        stages: pipeline ranks p, 1 or more.
        micro_batches: m, 1 or more; a multiple of p for interleaved-1f1b.
        chunks: model chunks per rank v for interleaved-1f1b; zb-v and dualpipe-v always have 2, the others 1.

    Raises:
        ValueError: see :func:`checked_sizes`.

    Sources: gpipe: Huang et al. 2019 (arXiv 1811.06965), section 2.3. 1f1b and interleaved-1f1b: Narayanan et al.,
    SC21 (arXiv 2104.04473), section 2.2. zb-h1, zb-h2: Qi et al. (arXiv 2401.10241), section 2. zb-v: the same,
    section 6, and as V-ZB in Qi et al. (arXiv 2405.15362). dualpipe-v: DeepSeek-V3 report (arXiv 2412.19437),
    section 3.2.1, and the DualPipe repository, which cuts DualPipe in half.
    """
    name, ranks, batches, per_rank = checked_sizes(schedule, stages, micro_batches, chunks)
    orders = rank_orders(name, ranks, batches, per_rank)
    if name in _WHOLE_BACKWARD:
        return [[entry_text(entry[:1], per_rank) for entry in order] for order in orders]
    return [[entry_text(entry, per_rank) for entry in order] for order in orders]
