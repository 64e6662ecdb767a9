"""What the assignments stand on: a network that remembers every message, and checklists that turn work into marks.

``run_ranks`` runs one program on every rank of a small in-process network; ``Checklist`` is a task's list of
criteria. Each assignment has a module of its own checks here (``ring_checks`` for assignment 03), so that a
student needs nothing but ``pip install shardlab``. Solutions and hidden tests are not in this package: they live
in ``exercises/source``.
"""

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

__all__ = [
    "Checklist",
    "Deadlock",
    "Endpoint",
    "Message",
    "NetworkError",
    "NotWritten",
    "RankFailed",
    "Run",
    "TooLong",
    "run_processes",
    "run_ranks",
]
