"""What trials on gloo ranks share: cases that are tried one by one, and a log of the collectives that were called.

A trial of cases looks like this::

    def trial(ctx, functions, params):
        cases = Cases(ctx)
        for size in params["sizes"]:
            cases.run(f"{size} numbers", lambda: {"sum": sum_fault(functions["my_sum"], size)})
        return cases.faults

and in the notebook's process ``try_cases`` starts the ranks once and tells for each case what is wrong. What stops
the ranks costs the case that they were in and those after it, never those before.
"""

# torch is untyped to mypy.
# mypy: allow-subclassing-any

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from shardlab.classroom.attempt import Carry, carried
from shardlab.classroom.network import NotWritten
from shardlab.classroom.torch_ranks import try_on_ranks
from shardlab.labs.rank import Context
from shardlab.models.collectives import busbw_factor

Faults = dict[str, str | None]
TIME_LIMIT_S = 30.0


# ---- on the ranks ----


class Cases:
    """A trial's cases: each one is tried on all ranks and its result handed over before the next begins.

    Attributes:
        faults: what was found so far, by case and criterion; None where nothing is wrong.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.faults: dict[str, Faults] = {}

    def run(self, name: str, case: Callable[[], Faults]) -> None:
        """Try one case; ``case`` returns this rank's faults, the same criteria on every rank."""
        self.ctx.keep("trying", name)
        self.faults[name] = _merged(self.ctx.gather(case()))
        # Every rank keeps it, not only rank 0: what one rank writes arrives in order, before its last words.
        self.ctx.keep("faults", self.faults)


def _merged(rows: Sequence[Faults]) -> Faults:
    """For each criterion the fault of the first rank that has one."""
    merged: Faults = {}
    for criterion in rows[0]:
        found = [
            f"rank {rank}: {row[criterion]}" for rank, row in enumerate(rows) if row[criterion] is not None
        ]
        merged[criterion] = found[0] if found else None
    return merged


_KINDS = {
    "allreduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "allgather": "all-gather",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}


@dataclass(frozen=True)
class Call:
    """One call of a collective on this rank.

    Attributes:
        kind: such as ``"all-reduce"``.
        numbers: length of the whole buffer: what a reduce-scatter takes, what an all-gather gives.
        sent: numbers that a rank sends in it if the collective does no more than it must, mean over the ranks.
    """

    kind: str
    numbers: int
    sent: float

    def __str__(self) -> str:
        return f"{self.kind} of {self.numbers} numbers"


class CallLog(TorchDispatchMode):
    """Logs the collectives of the default group that are called inside ``with CallLog() as log``, in ``log.calls``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here. The default imports the compiler, on every rank, for seconds.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._note(func.name().partition("::")[2], args)
        return func(*args, **(kwargs or {}))

    def count(self, kind: str) -> int:
        """Calls of one kind."""
        return sum(call.kind == kind for call in self.calls)

    @property
    def sent(self) -> float:
        """Numbers that a rank sends in all of them."""
        return sum(call.sent for call in self.calls)

    def words(self) -> str:
        """``all-reduce of 24 numbers, all-gather of 24 numbers``."""
        return ", ".join(map(str, self.calls)) or "no collective at all"

    def _note(self, operator: str, args: Sequence[Any]) -> None:
        stem = operator.strip("_").removesuffix("_coalesced")
        kind = next((kind for start, kind in _KINDS.items() if stem.startswith(start)), stem)
        if kind in ("barrier", "recv"):
            return
        first = _numbers(args[0])
        second = _numbers(args[1]) if len(args) > 1 else 0
        n = dist.get_world_size()
        if kind in ("gather", "scatter"):
            # Outputs come first; only the root has a whole buffer.
            whole, part = (first, second) if kind == "gather" else (second, first)
            root = whole > 0
            sends = (whole * (n - 1) / n if root else 0.0) if kind == "scatter" else (0.0 if root else part)
            self.calls.append(Call(kind, max(whole, part), sends))
            return
        size = max(first, second)
        if kind in ("broadcast", "reduce"):
            share = (n - 1) / n
        else:
            share = 1.0 if kind not in _KINDS.values() or kind == "send" else busbw_factor(kind, n)
        self.calls.append(Call(kind, size, share * size))


def _numbers(argument: Any) -> int:
    if isinstance(argument, torch.Tensor):
        return int(argument.numel())
    if isinstance(argument, (list, tuple)):
        return sum(map(_numbers, argument))
    return 0


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of a state, however it is nested in dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def storage_bytes(tensors: Sequence[torch.Tensor], without: Sequence[torch.Tensor] = ()) -> int:
    """Bytes that some tensors keep alive: of a view, the whole buffer. Buffers of ``without`` don't count."""
    others = {tensor.untyped_storage().data_ptr() for tensor in without}
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.numel()
    }
    return sum(size for address, size in storages.items() if address not in others)


# ---- in the notebook's process ----


@dataclass(frozen=True)
class CaseFaults:
    """What came of a trial of cases.

    Attributes:
        finished: faults by case and criterion, of the cases that were finished.
        stopped: None, or what stopped the ranks.
        trying: the case that they were in then.
    """

    finished: dict[str, Faults] = field(default_factory=dict)
    stopped: str | None = None
    trying: str | None = None

    def fault(self, case: str, criterion: str) -> str | None:
        """What is wrong with a criterion of a case; None if nothing is.

        Raises:
            KeyError: the trial has no such case or criterion.
        """
        if self.stopped is None or case in self.finished:
            words = self.finished[case][criterion]
            return None if words is None else f"{case}: {words}"
        if self.trying is None or case == self.trying:
            return f"{case}: {self.stopped}"
        return f"{case}: not tried, the ranks were stopped before"

    @property
    def score(self) -> tuple[int, int]:
        """More is better: cases finished, then criteria without a fault."""
        met = [words is None for faults in self.finished.values() for words in faults.values()]
        return len(self.finished), sum(met) - len(met)


def try_cases(
    trial: str,
    functions: Sequence[Callable[..., Any]],
    n_ranks: int,
    params: dict[str, Any],
    carry: Carry | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> CaseFaults:
    """Run a trial of cases on gloo ranks.

    Args:
        trial, functions, n_ranks, params, time_limit_s: as for :func:`shardlab.classroom.try_on_ranks`.
        carry: working versions of functions from earlier tasks, by name. When there are any, the functions are
            tried with these, and with the student's own only if there are faults; the better trial counts.

    Raises:
        NeedsTorch: PyTorch isn't installed.
        NotWritten: one of the functions raised NotImplementedError.
    """
    began = time.monotonic()
    with carried(functions[0], carry or {}):
        forward = _try_once(trial, functions, n_ranks, params, time_limit_s)
    # Who waits for ever with working functions will wait for ever with others.
    waited = time.monotonic() - began >= time_limit_s
    if not carry or waited or (forward.stopped is None and forward.score[1] == 0):
        return forward
    try:
        own = _try_once(trial, functions, n_ranks, params, time_limit_s)
    except NotWritten:
        return forward
    return own if own.score > forward.score else forward


def _try_once(
    trial: str,
    functions: Sequence[Callable[..., Any]],
    n_ranks: int,
    params: dict[str, Any],
    time_limit_s: float,
) -> CaseFaults:
    outcome = try_on_ranks(trial, functions, n_ranks, params, time_limit_s=time_limit_s)
    if outcome.fault is None:
        return CaseFaults(finished=outcome.results[0])
    return CaseFaults(
        finished=outcome.kept.get("faults", {}), stopped=outcome.fault, trying=outcome.kept.get("trying")
    )
