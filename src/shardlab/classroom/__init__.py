"""What the assignments stand on: a network that remembers every message, and checklists that turn work into marks.

``run_ranks`` runs one program on every rank of a small in-process network; ``Checklist`` is a task's list of
criteria. Each assignment has a module of its own checks here (``ring_checks`` for assignment 03), so that a
student needs nothing but ``pip install shardlab``. Solutions and hidden tests are not in this package: they live
in ``exercises/source``.
"""

from shardlab.classroom.attempt import attempt, first_fault
from shardlab.classroom.checklist import Checklist
from shardlab.classroom.network import (
    Deadlock,
    Endpoint,
    Message,
    NetworkError,
    NotWritten,
    RankFailed,
    Run,
    TooLong,
    run_ranks,
)
from shardlab.classroom.processes import run_processes
from shardlab.classroom.torch_ranks import NeedsTorch, RanksOutcome, require_torch, try_on_ranks

__all__ = [
    "Checklist",
    "Deadlock",
    "Endpoint",
    "Message",
    "NeedsTorch",
    "NetworkError",
    "NotWritten",
    "RankFailed",
    "RanksOutcome",
    "Run",
    "TooLong",
    "attempt",
    "first_fault",
    "require_torch",
    "run_processes",
    "run_ranks",
    "try_on_ranks",
]
