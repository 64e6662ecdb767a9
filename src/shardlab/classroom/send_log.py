"""What one rank sends from process to process, logged and guarded while a student's code runs. Needs torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

# What torch.distributed's functions call, of a process group's methods, beside send and recv.
_COLLECTIVES = (
    "allreduce",
    "allgather",
    "_allgather_base",
    "all_gather_single",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "scatter",
)


@dataclass(frozen=True)
class SendLog:
    """What was called.

    Attributes:
        sent: (destination, numbers) of every send, in order.
        collectives: names of the collectives that were called.
    """

    sent: list[tuple[int, int]] = field(default_factory=list)
    collectives: list[str] = field(default_factory=list)


@contextlib.contextmanager
def logged_sends() -> Iterator[SendLog]:
    """Log what this rank sends inside ``with logged_sends() as log``.

    A rank that doesn't exist is an error here; gloo itself would crash the process. The methods of the process group
    are watched, as a dispatch mode would import for more than a second on every rank.
    """
    log = SendLog()

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if name in ("send", "recv"):
                _guard(name, int(args[1]), group.size())
            if name == "send":
                log.sent.append((int(args[1]), sum(tensor.numel() for tensor in args[0])))
            elif name != "recv":
                log.collectives.append(name.strip("_"))
            return method(group, *args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name in ("send", "recv", *_COLLECTIVES):
            method = getattr(dist.ProcessGroup, name, None)
            if method is not None:
                stack.enter_context(patch.object(dist.ProcessGroup, name, watched(name, method)))
        yield log


def _guard(name: str, other: int, ranks: int) -> None:
    if not 0 <= other < ranks:
        does = "sends to" if name == "send" else "receives from"
        raise ValueError(f"it {does} rank {other}, and there are only ranks 0 to {ranks - 1}")
