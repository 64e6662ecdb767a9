"""Reading and checking a schedule that somebody wrote."""

from __future__ import annotations

from typing import Any

from shardlab.models.pipeline_schedules import KINDS, B, W, operation_text


class ScheduleError(ValueError):
    """A list of operations that can't run; ``problems`` holds one sentence per fault."""

    def __init__(self, problems: list[str]) -> None:
        shown = problems[:10]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown)} more")
        super().__init__("orders must be a schedule that can run: " + "; ".join(shown))
        self.problems = problems


def _digits(text: str) -> int:
    """The whole number that ``text`` spells, or -1."""
    return int(text) if text and all(letter in "0123456789" for letter in text) else -1


def _operation(item: Any) -> tuple[int, int, int] | None:
    """``(kind, micro_batch, chunk)`` from ``'F3'``, ``'F3.1'``, ``('F', 3)``, ``('F', 3, 1)``; None from anything else."""
    if isinstance(item, str):
        head, dot, tail = item.strip().partition(".")
        item = (head[:1], _digits(head[1:]), _digits(tail) if dot else 0)
    if not isinstance(item, (tuple, list)) or len(item) not in (2, 3) or item[0] not in KINDS:
        return None
    numbers = list(item[1:]) + [0] * (3 - len(item))
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            return None
    return KINDS.index(item[0]), numbers[0], numbers[1]


def read_orders(orders: Any, chunks: int) -> tuple[list[list[Any]], int, list[str]]:
    """Lists of text (or tuples) as entries, the micro-batches they mention, and what could not be read.

    A rank's list may be one text with spaces between the entries.
    """
    problems: list[str] = []
    ranks: list[list[Any]] = []
    most = 0
    for rank, order in enumerate(orders):
        entries: list[Any] = []
        if not isinstance(order, (str, list, tuple)):
            problems.append(f"rank {rank}: {order!r} is not a list of operations")
            order = ()
        for position, item in enumerate(order.split() if isinstance(order, str) else order):
            entry = []
            for part in item.split("+") if isinstance(item, str) else [item]:
                found = _operation(part)
                if found is None:
                    problems.append(
                        f"rank {rank}, position {position}: {part!r} is not an operation; "
                        "write F, B or W and the micro-batch, such as 'F0', with chunks 'F0.1'"
                    )
                elif found[2] >= chunks:
                    problems.append(
                        f"rank {rank}, position {position}: {part!r} names chunk {found[2]}, "
                        f"but chunks={chunks} allows 0 to {chunks - 1}"
                    )
                else:
                    kind, batch, chunk = found
                    most = max(most, batch + 1)
                    entry.append((kind * chunks + chunk, batch))
            if entry:
                entries.append(tuple(entry))
        ranks.append(entries)
    return ranks, most, problems


def _splits_backward(orders: list[list[Any]], chunks: int) -> bool:
    """Whether a weight gradient is mentioned anywhere."""
    return any(slot // chunks == W for order in orders for entry in order for slot, _ in entry)


def with_whole_backwards(orders: list[list[Any]], chunks: int) -> list[list[Any]]:
    """If no ``W`` occurs anywhere, every ``B`` is the whole backward: join its W to it."""
    if _splits_backward(orders, chunks):
        return orders
    return [[_with_weights(entry, chunks) for entry in order] for order in orders]


def _with_weights(entry: Any, chunks: int) -> Any:
    joined = []
    for slot, batch in entry:
        joined.append((slot, batch))
        if slot // chunks == B:
            joined.append((slot + chunks, batch))
    return tuple(joined)


def order_problems(orders: list[list[Any]], micro_batches: int, chunks: int) -> list[str]:
    """What is missing, double, unknown, or before its time on its own rank. Linear in the operations."""
    problems = []
    slots = (3 if _splits_backward(orders, chunks) else 2) * chunks
    for rank, order in enumerate(orders):
        seen = [[False] * micro_batches for _ in range(slots)]
        for entry in order:
            for slot, batch in entry:
                text = operation_text(slot, batch, chunks)
                if batch >= micro_batches:
                    problems.append(
                        f"rank {rank}: {text} is beyond the {micro_batches} micro-batches (0 to {micro_batches - 1})"
                    )
                    continue
                if seen[slot][batch]:
                    problems.append(f"rank {rank}: {text} occurs twice")
                elif slot >= chunks and not seen[slot - chunks][batch]:
                    problems.append(
                        f"rank {rank}: {text} stands before {operation_text(slot - chunks, batch, chunks)}"
                    )
                seen[slot][batch] = True
        for slot in range(slots):
            problems.extend(
                [
                    f"rank {rank}: {operation_text(slot, batch, chunks)} is missing"
                    for batch in range(micro_batches)
                    if not seen[slot][batch]
                ]
            )
    return problems
