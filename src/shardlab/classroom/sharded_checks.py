"""Checks of assignment 04, "shard the optimizer".

The ranks' gradients are those of a quadratic loss around a target of each rank's own, a thousandth of it, so that
they are about as large as Adam's epsilon: with a tiny epsilon Adam divides a gradient by its own size, and a sum in
place of a mean would hardly show.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.classroom.attempt import Carry, attempt, name_of
from shardlab.classroom.by_hand import ByHand
from shardlab.classroom.network import NotWritten, describe, text_table
from shardlab.classroom.rank_cases import (
    CallLog,
    CaseFaults,
    Cases,
    Faults,
    storage_bytes,
    tensors_in,
    try_cases,
)
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.torch_ranks import try_on_ranks
from shardlab.labs.measure import count_sent, relative_gap
from shardlab.labs.rank import Context
from shardlab.models.collectives import busbw_factor
from shardlab.models.communication import data_traffic
from shardlab.models.memory import model_states
from shardlab.units import GB

ASSIGNMENT = "04_sharded_optimizer"
RECIPE = "fp32-adam-16"
N_RANKS = 3
TABLE_RANKS = 4
TABLE_MICRO_BATCHES = 4
STEPS = 3
# Gradients of about Adam's epsilon, which the notebook has at 1e-3.
GRADIENT_SCALE = 1e-3
# Sums in another order differ by a millionth of the way that the parameters go.
GAP = 1e-3
# A header or a flag is no second pass.
PASSES_TOLERANCE = 0.02

Shapes = Sequence[Sequence[int]]
Step = Callable[..., Any]


# ---- task 2: one flat buffer ----


def model_tensors(shapes: Shapes, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Parameters of these shapes with the numbers 1, 2, 3, ... in order."""
    tensors, start = [], 1
    for shape in shapes:
        size = torch.Size(shape).numel()
        tensors.append(nn.Parameter(torch.arange(start, start + size, dtype=dtype).reshape(tuple(shape))))
        start += size
    return tensors


def padded(n_numbers: int, n_ranks: int) -> int:
    """The length rounded up to a multiple of the ranks."""
    return -(-n_numbers // n_ranks) * n_ranks


def flatten_fault(function: Callable[..., Any], tensors: Sequence[Tensor], n_ranks: int) -> str | None:
    """What is wrong with ``function(tensors, n_ranks)`` as one flat, padded copy of the tensors."""
    where = f"{name_of(function)} of {_size_words(tensors)} for {n_ranks} ranks"
    attempted = attempt(function, list(tensors), n_ranks)
    if attempted.fault:
        return f"{where}: {attempted.fault}"
    flat = attempted.value
    if not isinstance(flat, Tensor):
        return f"{where} must return a tensor, not {reprlib.repr(flat)}"
    numbers = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    length = padded(len(numbers), n_ranks)
    if flat.dim() != 1 or len(flat) != length:
        shape = tuple(flat.shape)
        extra = ""
        if shape == (len(numbers),):
            extra = ": add zeros at the end until the ranks divide it"
        elif shape == (length + n_ranks,):
            extra = ": the ranks divide it already, so nothing is to be added"
        return f"{where} must have the shape ({length},), not {shape}{extra}"
    if flat.requires_grad:
        return f"{where} is part of the autograd graph: take the numbers alone, with detach()"
    if flat.dtype != numbers.dtype:
        return f"{where} must stay {numbers.dtype}, not {flat.dtype}"
    if not torch.equal(flat[: len(numbers)], numbers):
        at = int((flat[: len(numbers)] != numbers).nonzero()[0])
        return f"{where}: number {at} is {flat[at]:g}, but the tensors' number {at}, in order, is {numbers[at]:g}"
    if bool((flat[len(numbers) :] != 0).any()):
        return f"{where}: behind the last number stand {flat[len(numbers) :].tolist()}, not zeros"
    return None


def copy_back_fault(function: Callable[..., Any], tensors: Sequence[Tensor], n_ranks: int) -> str | None:
    """What is wrong with ``function(flat, tensors)``, which writes a flat buffer's numbers into the tensors."""
    where = f"{name_of(function)} into {_size_words(tensors)}"
    numbers = sum(tensor.numel() for tensor in tensors)
    shapes = [tensor.shape for tensor in tensors]
    flat = -torch.arange(1.0, padded(numbers, n_ranks) + 1).to(tensors[0].dtype)
    attempted = attempt(function, flat, list(tensors))
    if attempted.fault:
        hint = (
            ": inside `with torch.no_grad():` it may"
            if "leaf Variable that requires grad" in attempted.fault
            else ""
        )
        return f"{where}: {attempted.fault}{hint}"
    if [tensor.shape for tensor in tensors] != shapes:
        return f"{where}: the tensors' shapes must stay {_shapes(shapes)}, not {_shapes([t.shape for t in tensors])}"
    found = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    if torch.equal(found, flat[:numbers]):
        return None
    if bool((found > 0).all()):
        return f"{where}: the tensors haven't changed; a new tensor in the list doesn't change the model's"
    at = int((found != flat[:numbers]).nonzero()[0])
    return f"{where}: the tensors' number {at}, in order, is {found[at]:g}, but the buffer's is {flat[at]:g}"


def _size_words(tensors: Sequence[Tensor]) -> str:
    return f"tensors of shapes {_shapes([tensor.shape for tensor in tensors])}"


def _shapes(shapes: Iterable[Sequence[int]]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)


# ---- tasks 3 and 4: on ranks ----


@dataclass
class Job:
    """A model on this rank, and what its ranks' gradients are.

    Attributes:
        parameters: the model's, the same on every rank at the start.
        targets: ``[rank][micro-batch][parameter]``, where each loss has its minimum.
    """

    parameters: list[nn.Parameter]
    targets: list[list[list[Tensor]]]

    @property
    def n_numbers(self) -> int:
        """Numbers of the model."""
        return sum(parameter.numel() for parameter in self.parameters)

    def backward(self, rank: int, micro_batch: int) -> None:
        """What the backward pass of one micro-batch leaves: a gradient in each parameter, added to what is there."""
        for parameter, target in zip(self.parameters, self.targets[rank][micro_batch], strict=True):
            gradient = GRADIENT_SCALE * (parameter.detach() - target)
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def flat(self) -> Tensor:
        """All numbers of the model, in order."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters]).clone()

    def flat_target(self, rank: int, micro_batch: int) -> Tensor:
        """One target, flat."""
        return torch.cat([target.reshape(-1) for target in self.targets[rank][micro_batch]])


def new_job(shapes: Shapes, n_ranks: int, n_micro: int) -> Job:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(len(shapes) + n_micro)

    def draw() -> list[Tensor]:
        return [torch.randn(tuple(shape), generator=generator) for shape in shapes]

    return Job(
        parameters=[nn.Parameter(tensor) for tensor in draw()],
        targets=[[draw() for _ in range(n_micro)] for _ in range(n_ranks)],
    )


def plain_adam(
    adam_step: Step, start: Tensor, gradient: Callable[[Tensor, int], Tensor], steps: int
) -> Tensor:
    """Where unsharded Adam takes ``start``; ``gradient(weights, step)`` as each step finds it."""
    weights, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, steps + 1):
        adam_step(weights, gradient(weights, step), m, v, step)
    return weights


def _steps_fault(job: Job, start: Tensor, mistakes: dict[str, Tensor], right: Tensor) -> str | None:
    """What is wrong with the job's parameters, which should be ``right``; ``mistakes`` have names."""
    found = job.flat()
    if found.shape != right.shape:
        return f"the parameters have {len(found)} numbers, not {len(right)}"
    way = float((right - start).abs().max())

    def same(one: Tensor, other: Tensor) -> bool:
        return float((one - other).abs().max()) <= GAP * way

    if same(found, right):
        return None
    if not bool(torch.isfinite(found).all()):
        return "the parameters are no longer numbers (inf or nan)"
    for words, wrong in mistakes.items():
        if same(found, wrong) and not same(wrong, right):
            return words
    gap = relative_gap([found - start], [right - start])
    return f"the parameters differ from plain Adam's by {gap:.0%} of the way that those have gone"


def _part(flat: Tensor, rank: int, n_ranks: int) -> slice:
    size = padded(len(flat), n_ranks) // n_ranks
    return slice(rank * size, (rank + 1) * size)


def _stitched(parts: Sequence[Tensor]) -> Tensor:
    """Part r of the r-th tensor, put together."""
    n = len(parts)
    return torch.cat([flat[_part(flat, rank, n)] for rank, flat in enumerate(parts)])


def state_fault(job: Job, state: Any, n_ranks: int, copies: int) -> str | None:
    """Whether a rank's state takes more than ``copies`` fp32 numbers for each number of its shard."""
    held = storage_bytes(tensors_in(state), without=[parameter.data for parameter in job.parameters])
    whole = padded(job.n_numbers, n_ranks)
    states = model_states(whole, n_ranks, 2, RECIPE)
    allowed = states.optimizer + (states.gradients if copies == 3 else 0)
    logical = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(state))
    # A step counter or two is no moment.
    if held <= allowed + 32:
        return None
    words = (
        f"the state holds {held} bytes; {copies} fp32 numbers for each of the shard's are {allowed:.0f} bytes"
    )
    if logical <= allowed + 32:
        return f"{words}: a slice is a view, and keeps the whole buffer alive; clone it, or make it small at once"
    if held >= 8 * job.n_numbers:
        return f"{words}: are these for all {job.n_numbers} numbers of the model?"
    return words


def traffic_fault(log: CallLog, n_numbers: int, n_ranks: int, steps: int, passes: int) -> str | None:
    """Whether more than ``passes`` passes over the model were sent per step; ``log`` has all steps."""
    one_pass = busbw_factor("all-gather", n_ranks) * padded(n_numbers, n_ranks)
    sent = log.sent / one_pass / steps
    if sent <= passes + PASSES_TOLERANCE:
        return None
    one = CallLog()
    one.calls = log.calls[: -(-len(log.calls) // steps)]
    reason = ": an all-reduce is two passes" if log.count("all-reduce") else ""
    return f"one step sends {sent:.2g} passes over the parameters, not {passes} ({one.words()}){reason}"


# ---- task 3: ZeRO-1 ----


def try_zero1(functions: Sequence[Callable[..., Any]], cases: Sequence[Shapes], carry: Carry) -> CaseFaults:
    """Try task 3 on :data:`N_RANKS` gloo ranks, one model (its shapes) after another.

    Args:
        functions: ``mean_of_my_shard``, ``new_state``, ``zero1_step``, ``adam_step``.
        cases: shapes of each model; :func:`case_name` tells their names.
        carry: working versions of task 2, by name.
    """
    return try_cases(f"{__name__}:zero1_trial", functions, N_RANKS, {"cases": cases}, carry)


def case_name(shapes: Shapes, n_micro: int = 1) -> str:
    """The name of a case: its size."""
    size = sum(torch.Size(shape).numel() for shape in shapes)
    of = f", {n_micro} micro-batches" if n_micro > 1 else ""
    return f"{size} parameters on {N_RANKS} ranks{of}"


def zero1_trial(ctx: Context, functions: dict[str, Step], params: dict[str, Any]) -> dict[str, Faults]:
    """One rank of task 3."""
    cases = Cases(ctx)
    cases.run("mean_of_my_shard", lambda: {"mean": _mean_fault(ctx, functions["mean_of_my_shard"])})
    for shapes in params["cases"]:
        cases.run(case_name(shapes), partial(_zero1_case, ctx, functions, shapes))
    return cases.faults


def _mean_fault(ctx: Context, function: Step) -> str | None:
    """``function(flat)`` must give this rank's part of the mean over the ranks."""
    n, size = ctx.ranks, 4
    # Rank r has 1000 r² + position: no rank's own numbers are the mean.
    source = 1000.0 * ctx.rank**2 + torch.arange(float(n * size))
    found = function(source.clone())
    if not isinstance(found, Tensor):
        return f"must return a tensor, not {reprlib.repr(found)}"
    if found.shape != (size,):
        return (
            f"of {n * size} numbers on {n} ranks it must have the shape ({size},), not {tuple(found.shape)}"
        )
    mean = 1000.0 * sum(rank**2 for rank in range(n)) / n + torch.arange(float(n * size))
    right = mean[_part(mean, ctx.rank, n)]
    if torch.allclose(found, right):
        return None
    for rank in range(n):
        part = mean[_part(mean, rank, n)]
        if torch.allclose(found, n * part):
            return "it gives the sum over the ranks: divide by their number"
        if rank != ctx.rank and torch.allclose(found, part):
            return f"it gives part {rank}; rank {ctx.rank} owns part {ctx.rank}"
    if torch.allclose(found, source[_part(mean, ctx.rank, n)]):
        return "it gives this rank's own numbers: nothing has come from the others"
    return f"it gives {found.tolist()}, but the mean of part {ctx.rank} is {right.tolist()}"


def _zero1_case(ctx: Context, functions: dict[str, Step], shapes: Shapes) -> Faults:
    n, rank = ctx.ranks, ctx.rank
    job = new_job(shapes, n, 1)
    start = job.flat()
    state = functions["new_state"](job.parameters)
    held = state_fault(job, state, n, copies=2)
    log = CallLog()
    for step in range(1, STEPS + 1):
        for parameter in job.parameters:
            parameter.grad = None
        job.backward(rank, 0)
        with log:
            functions["zero1_step"](job.parameters, state, step)
    held = held or state_fault(job, state, n, copies=2)

    def go(of: Callable[[Tensor], Tensor]) -> Tensor:
        return plain_adam(functions["adam_step"], start, lambda weights, _: of(weights), STEPS)

    def own(which: int) -> Callable[[Tensor], Tensor]:
        return lambda weights: GRADIENT_SCALE * (weights - job.flat_target(which, 0))

    def total(weights: Tensor) -> Tensor:
        return torch.stack([own(which)(weights) for which in range(n)]).sum(0)

    right = go(lambda weights: total(weights) / n)
    alone = start.clone()
    alone[_part(start, rank, n)] = right[_part(start, rank, n)]
    mistakes = {
        "the parameters haven't changed: are the new numbers written back?": start,
        "this looks like plain Adam with the sum of the gradients, where the mean belongs: Adam hides much of that, "
        "because it divides by the gradient's size": go(total),
        "each shard was updated with its owner's own gradient: those of the other ranks are missing": _stitched(
            [go(own(which)) for which in range(n)]
        ),
        "the parameters are what this rank alone would make of them: nothing has come from the others": go(
            own(rank)
        ),
        "only this rank's own shard has changed: the other shards' new numbers never arrived here": alone,
    }
    return {
        "held": held,
        "equal": _steps_fault(job, start, mistakes, right),
        "traffic": traffic_fault(log, job.n_numbers, n, STEPS, passes=2),
    }


# ---- task 4: ZeRO-2 ----


def try_zero2(
    functions: Sequence[Callable[..., Any]], cases: Sequence[tuple[Shapes, int]], carry: Carry
) -> CaseFaults:
    """Try task 4 on :data:`N_RANKS` gloo ranks, one model and number of micro-batches after another.

    Args:
        functions: ``zero2_accumulate``, ``zero2_step``, ``adam_step``.
        cases: shapes and micro-batches of each case; :func:`case_name` tells their names.
        carry: working versions of tasks 2 and 3, by name.
    """
    return try_cases(f"{__name__}:zero2_trial", functions, N_RANKS, {"cases": cases}, carry)


def zero2_trial(ctx: Context, functions: dict[str, Step], params: dict[str, Any]) -> dict[str, Faults]:
    """One rank of task 4."""
    cases = Cases(ctx)
    for shapes, n_micro in params["cases"]:
        cases.run(case_name(shapes, n_micro), partial(_zero2_case, ctx, functions, shapes, n_micro))
    return cases.faults


def fresh_state(n_numbers: int, n_ranks: int) -> dict[str, Tensor]:
    """Adam's moments of one shard before the first step."""
    size = padded(n_numbers, n_ranks) // n_ranks
    return {"m": torch.zeros(size), "v": torch.zeros(size)}


def _zero2_case(ctx: Context, functions: dict[str, Step], shapes: Shapes, n_micro: int) -> Faults:
    n, rank = ctx.ranks, ctx.rank
    job = new_job(shapes, n, n_micro)
    start = job.flat()
    state = fresh_state(job.n_numbers, n)
    held = None
    log = CallLog()
    for step in range(1, STEPS + 1):
        for micro in range(n_micro):
            job.backward(rank, micro)
            with log:
                functions["zero2_accumulate"](job.parameters, state)
            held = held or _left_fault(job) or state_fault(job, state, n, copies=3)
        with log:
            functions["zero2_step"](job.parameters, state, step, n_micro)
        # What a step leaves in the gradients belongs to that step; the next one starts clean here.
        for parameter in job.parameters:
            parameter.grad = None

    everyone = range(n)
    micros = range(n_micro)

    def mean(weights: Tensor, ranks: Iterable[int] = everyone, batches: Iterable[int] = micros) -> Tensor:
        parts = [weights - job.flat_target(which, micro) for which in ranks for micro in batches]
        return GRADIENT_SCALE * torch.stack(parts).mean(0)

    def go(gradient: Callable[[Tensor, int], Tensor]) -> Tensor:
        return plain_adam(functions["adam_step"], start, gradient, STEPS)

    def of_one(which: int, weights: Tensor, _: int) -> Tensor:
        return mean(weights, ranks=[which])

    seen: list[Tensor] = []

    def piled_up(weights: Tensor, _: int) -> Tensor:
        seen.append(mean(weights))
        return torch.stack(seen).sum(0)

    right = go(lambda weights, _: mean(weights))
    alone = start.clone()
    alone[_part(start, rank, n)] = right[_part(start, rank, n)]
    mistakes = {
        "the parameters haven't changed: are the new numbers written back?": start,
        "the gradients of the micro-batches are added up, and their mean belongs there: divide by n_micro_batches": go(
            lambda weights, _: n_micro * mean(weights)
        ),
        "only the last micro-batch counts: add to what is there, don't replace it": go(
            lambda weights, _: mean(weights, batches=[n_micro - 1])
        ),
        "only the last micro-batch counts, divided by the number of all: add to what is there": go(
            lambda weights, _: mean(weights, batches=[n_micro - 1]) / n_micro
        ),
        "only the first micro-batch counts, divided by the number of all: add the others to it": go(
            lambda weights, _: mean(weights, batches=[0]) / n_micro
        ),
        "a step starts with the gradients of the step before: empty the sum after each step": go(piled_up),
        "this looks like the sum of the ranks' gradients, where their mean belongs": go(
            lambda weights, _: n * mean(weights)
        ),
        "each shard was updated with its owner's own gradients: those of the other ranks are missing": _stitched(
            [go(partial(of_one, which)) for which in everyone]
        ),
        "only this rank's own shard has changed: the other shards' new numbers never arrived here": alone,
    }
    return {
        "held": held,
        "equal": _steps_fault(job, start, mistakes, right),
        "traffic": traffic_fault(log, job.n_numbers, n, STEPS, passes=n_micro + 1),
    }


def _left_fault(job: Job) -> str | None:
    left = [index for index, parameter in enumerate(job.parameters) if parameter.grad is not None]
    if left:
        return (
            f"after zero2_accumulate, {len(left)} of {len(job.parameters)} parameters still have a gradient; "
            "set each p.grad to None"
        )
    return None


# ---- task 5: what there is to explain ----

_COLLECTIVES = ("all-reduce", "reduce-scatter", "all-to-all", "all-gather")


def comparison(functions: Sequence[Callable[..., Any]], time_limit_s: float = 40.0) -> str:
    """Tables of what collectives send and what plain Adam, ZeRO-1 and ZeRO-2 hold and send, measured on four ranks.

    Args:
        functions: ``new_state``, ``zero1_step``, ``zero2_accumulate``, ``zero2_step``, ``adam_step``.
        time_limit_s: time limit of the whole run, seconds.

    Raises:
        NeedsTorch: PyTorch isn't installed.
    """
    outcome = try_on_ranks(f"{__name__}:table_trial", functions, TABLE_RANKS, {}, time_limit_s=time_limit_s)
    rows = outcome.results[0] if outcome.results else outcome.kept
    texts = [_sent_table(rows.get("collectives", [])), _held_table(rows.get("steps", []))]
    if outcome.fault:
        texts.append(f"the ranks were stopped: {outcome.fault}")
    return "\n\n".join(texts)


def table_trial(ctx: Context, functions: dict[str, Step], params: dict[str, Any]) -> dict[str, Any]:
    """One rank of the tables."""
    rows: dict[str, Any] = {"collectives": [_count_collective(ctx, kind) for kind in _COLLECTIVES]}
    ctx.keep("collectives", rows["collectives"])
    rows["steps"] = []
    for name, micro, step in (
        ("plain data parallel", 1, _plain_step),
        ("your ZeRO-1", 1, _zero1_table_step),
        (f"your ZeRO-2, {TABLE_MICRO_BATCHES} micro-batches", TABLE_MICRO_BATCHES, _zero2_table_step),
    ):
        rows["steps"].append(_count_step(ctx, functions, name, micro, step))
        ctx.keep("steps", rows["steps"])
    return rows


def _count_collective(ctx: Context, kind: str) -> dict[str, Any]:
    n = ctx.ranks
    whole, part = torch.ones(50_000 * n), torch.ones(50_000)
    spare = torch.empty_like(whole)
    action: Callable[[], object] = {
        "all-reduce": lambda: dist.all_reduce(spare),
        "reduce-scatter": lambda: dist.reduce_scatter(part, list(whole.chunk(n))),
        "all-to-all": lambda: dist.all_to_all_single(spare, whole),
        "all-gather": lambda: dist.all_gather(list(spare.chunk(n)), part),
    }[kind]
    action()
    sent = count_sent(ctx, action)
    share = None if sent is None else sum(sent) / n / (4 * len(whole))
    return {"kind": kind, "textbook": busbw_factor(kind, n), "sent": share}


def _plain_step(functions: dict[str, Step], job: Job, state: dict[str, Any], rank: int, step: int) -> None:
    """Plain data parallelism: all gradients to all ranks, and Adam of everything on each."""
    for parameter in job.parameters:
        parameter.grad = None
    job.backward(rank, 0)
    state.setdefault("m", torch.zeros(job.n_numbers))
    state.setdefault("v", torch.zeros(job.n_numbers))
    gradient = torch.cat([p.grad.reshape(-1) for p in job.parameters if p.grad is not None])
    dist.all_reduce(gradient)
    weights = job.flat()
    functions["adam_step"](weights, gradient / dist.get_world_size(), state["m"], state["v"], step)
    start = 0
    for parameter in job.parameters:
        parameter.data.copy_(weights[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()


def _zero1_table_step(
    functions: dict[str, Step], job: Job, state: dict[str, Any], rank: int, step: int
) -> None:
    for parameter in job.parameters:
        parameter.grad = None
    if not state:
        state.update(functions["new_state"](job.parameters))
    job.backward(rank, 0)
    functions["zero1_step"](job.parameters, state, step)


def _zero2_table_step(
    functions: dict[str, Step], job: Job, state: dict[str, Any], rank: int, step: int
) -> None:
    if not state:
        state.update(fresh_state(job.n_numbers, dist.get_world_size()))
    for micro in range(TABLE_MICRO_BATCHES):
        job.backward(rank, micro)
        functions["zero2_accumulate"](job.parameters, state)
    # The most that it holds, before the step may free it.
    state["held"] = _held_bytes(job, state)
    functions["zero2_step"](job.parameters, state, step, TABLE_MICRO_BATCHES)


def _held_bytes(job: Job, state: dict[str, Any]) -> int:
    parameters = [parameter.data for parameter in job.parameters]
    gradients = [parameter.grad for parameter in job.parameters if parameter.grad is not None]
    return storage_bytes([*parameters, *gradients, *tensors_in(state)])


def _count_step(
    ctx: Context, functions: dict[str, Step], name: str, n_micro: int, step: Any
) -> dict[str, Any]:
    n = ctx.ranks
    job = new_job([[400, 300], [79_990], [10]], n, n_micro)
    state: dict[str, Any] = {}
    row: dict[str, Any] = {"name": name, "held": None, "called": None, "sent": None, "words": None}
    log = CallLog()
    try:
        with log:
            step(functions, job, state, ctx.rank, 1)
    except NotImplementedError as error:
        return {**row, "words": str(NotWritten.from_error(error))}
    except Exception as error:
        # All ranks run the same code: what one of them can't do, none can. If not, the time limit ends it.
        return {**row, "words": describe(error)}
    held = state.pop("held", None) or _held_bytes(job, state)
    sent = count_sent(ctx, lambda: step(functions, job, state, ctx.rank, 2))
    size = job.n_numbers
    one_pass = busbw_factor("all-gather", n) * size
    row["held"] = max(ctx.gather(held)) / size
    row["called"] = log.sent / one_pass
    row["sent"] = None if sent is None else sum(sent) / n / (4 * one_pass)
    return row


def _sent_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [[f"one call over P bytes, {TABLE_RANKS} ranks", "textbook", "sent by a rank"]]
    for row in rows:
        sent = "not counted" if row["sent"] is None else f"{row['sent']:.2f} P"
        cells.append([row["kind"], f"{row['textbook']:.2f} P", sent])
    return text_table(cells)


def _held_table(rows: Sequence[dict[str, Any]]) -> str:
    n = TABLE_RANKS
    cells = [["one step", "held, B/parameter", "formula", "passes called", "passes sent", "formula"]]
    remarks = []
    for stage, row in enumerate(rows):
        micro = TABLE_MICRO_BATCHES if stage == 2 else 1
        held = model_states(1.0, n, stage, RECIPE).total_bytes
        traffic = data_traffic(1.0, n, stage, micro, 4.0, 4.0).total_bytes
        passes = traffic / (4.0 * busbw_factor("all-gather", n))
        if row["words"]:
            cells.append([row["name"], "-", f"{held:.2f}", "-", "-", f"{passes:.2f}"])
            remarks.append(f"{row['name']}: {row['words']}")
            continue
        sent = "not counted" if row["sent"] is None else f"{row['sent']:.2f}"
        cells.append(
            [
                row["name"],
                f"{row['held']:.2f}",
                f"{held:.2f}",
                f"{row['called']:.2f}",
                sent,
                f"{passes:.2f}",
            ]
        )
    return "\n".join([text_table(cells), *remarks])


# ---- task 1: by hand ----


@dataclass(frozen=True)
class ShardNumbers(ByHand):
    """One student's numbers for task 1: mixed-precision Adam, 2 + 2 + 12 bytes for each parameter.

    Attributes:
        n_params: Ψ.
        n_ranks: N.
        micro_batches: G, per optimizer step.
        memory_bytes: of one rank.
        other_bytes: what activations and buffers need of it.
    """

    n_params: int
    n_ranks: int
    micro_batches: int
    memory_bytes: float
    other_bytes: float

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"Ψ  {self.n_params / 1e9:g} billion parameters",
            f"N  {self.n_ranks} ranks",
            f"G  {self.micro_batches} micro-batches in one optimizer step",
            f"M  {self.memory_bytes / GB:g} GB on each rank; "
            f"activations and buffers take {self.other_bytes / GB:g} GB of it",
        ]

    def held(self, stage: int) -> float:
        """Bytes of parameters, gradients and optimizer state on one rank."""
        return model_states(self.n_params, self.n_ranks, stage).total_bytes

    def sent(self, stage: int) -> float:
        """Bytes that one rank sends in one optimizer step."""
        return data_traffic(self.n_params, self.n_ranks, stage, self.micro_batches).total_bytes

    def lowest_stage(self, room: float) -> int | None:
        """The lowest stage whose states fit into ``room`` bytes."""
        return next((stage for stage in range(4) if self.held(stage) <= room), None)

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        if quantity in ("stage_1_bytes", "stage_2_bytes", "stage_3_bytes"):
            return self.held(int(quantity[6]))
        if quantity == "lowest_stage":
            stage = self.lowest_stage(self.memory_bytes - self.other_bytes)
            assert stage is not None
            return float(stage)
        if quantity in ("sent_1_bytes", "sent_2_bytes"):
            return self.sent(int(quantity[5]))
        raise ValueError(
            "quantity must be one of stage_1_bytes, stage_2_bytes, stage_3_bytes, lowest_stage, sent_1_bytes, "
            f"sent_2_bytes, not {quantity!r}"
        )

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        key = self.key(quantity)
        if quantity == "lowest_stage":
            return self._stage_misconceptions()
        units = [
            (key / GB, "that is in GB; the answer is in bytes"),
            (key / 2**30, "that is in GiB; the answer is in bytes"),
            (key * 8, "those are bits; the answer is in bytes"),
            (key * self.n_ranks, "that is all ranks together; the question is about one"),
        ]
        if quantity.startswith("stage"):
            return [*self._held_misconceptions(quantity), *units]
        return [*self._sent_misconceptions(quantity), *units]

    def _held_misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        n, psi, asked = self.n_ranks, self.n_params, int(quantity[6])
        others = [
            (self.held(stage), f"that is stage {stage}" if stage else "that is without sharding")
            for stage in range(4)
            if stage != asked
        ]
        # The recipe without its fp32 master copy: 2 + 2 + 8.
        replicated, sharded = {1: (4, 8), 2: (2, 10), 3: (0, 12)}[asked]
        others.append(
            (
                psi * (replicated + sharded / n),
                "the fp32 master copy of the parameters is missing: K = 12, not 8",
            )
        )
        if asked == 1:
            others.append((psi * 12 / n, "the parameters and gradients, which stay whole, are missing"))
            others.append((psi * (2 + 12 / n), "the gradients, which stay whole at stage 1, are missing"))
        if asked == 2:
            others.append((psi * (2 + 12 / n), "the gradient's shard is missing: 2 + K bytes are shared out"))
            others.append((psi * 14 / n, "the parameters, which stay whole at stage 2, are missing"))
        return others

    def _stage_misconceptions(self) -> list[tuple[float, str]]:
        free, asked = self.memory_bytes - self.other_bytes, self.key("lowest_stage")
        words = []
        careless = self.lowest_stage(self.memory_bytes)
        if careless is not None and careless != asked:
            words.append(
                (
                    float(careless),
                    "that fits only if nothing else needs memory: activations and buffers need some",
                )
            )
        for stage in range(4):
            if stage > asked:
                words.append((float(stage), "that fits, and so does a lower stage"))
            elif stage < asked and stage != careless:
                words.append(
                    (
                        float(stage),
                        f"that takes {self.held(stage) / GB:.1f} GB, and {free / GB:g} GB are free",
                    )
                )
        return words

    def _sent_misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        n, psi, g = self.n_ranks, self.n_params, self.micro_batches
        one_pass = (n - 1) / n * 2 * psi
        key = self.key(quantity)
        shared = [
            (key * n / (n - 1), "a rank keeps its own part: each pass sends (N − 1)/N of the buffer"),
            (key / 2, "that counts numbers; each has 2 bytes, or one pass is missing"),
            (key * 2, "both parameters and gradients travel in 16 bits, 2 bytes each"),
        ]
        if quantity == "sent_1_bytes":
            return [
                (2 * g * one_pass, "stage 1 reduces once per step, after the last micro-batch"),
                ((g + 1) * one_pass, "that is stage 2; stage 1 reduces once per step"),
                (
                    3 * one_pass,
                    "that is one pass too many: gradients are reduced once, new parameters gathered once",
                ),
                *shared,
            ]
        return [
            (
                2 * one_pass,
                "that is stage 1; stage 2 keeps no whole gradients from one micro-batch to the next",
            ),
            (2 * g * one_pass, "new parameters are gathered once per step, not after each micro-batch"),
            (g * one_pass, "the new parameters are missing: they are gathered once per step"),
            (3 * g * one_pass, "that is stage 3"),
            *shared,
        ]


def by_hand_numbers(student: str) -> ShardNumbers:
    """A student's numbers for task 1. Each lowest stage, 1 to 3, is as likely as the others, and none fits narrowly."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")
    wanted = draw.pick((1, 2, 3))

    def propose() -> ShardNumbers:
        memory = draw.pick((24, 32, 40, 48, 64, 80, 96, 141, 192))
        return ShardNumbers(
            student=name,
            complaint=complaint,
            n_params=100_000_000 * (10 + draw.below(400)),
            n_ranks=draw.pick((8, 12, 16, 24, 32, 48, 64)),
            micro_batches=draw.pick((3, 4, 5, 6, 8, 10, 12, 16)),
            memory_bytes=memory * GB,
            other_bytes=round(memory * (20 + draw.below(21)) / 100) * GB,
        )

    def fits(one: ShardNumbers) -> bool:
        free = one.memory_bytes - one.other_bytes
        return one.held(wanted) <= 0.95 * free and one.held(wanted - 1) >= 1.05 * free

    found: ShardNumbers = draw.until(propose, fits)
    return found
