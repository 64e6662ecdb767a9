"""Checks of assignment 06, "write a pipeline schedule".

A schedule is judged by what it does, not by how it looks: the book's executor runs it, and says what keeps it from
running, how long its step takes and how many micro-batches each rank keeps. The last task to write runs on real
ranks, beside the unsplit model.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardlab.classroom.attempt import attempt, first_fault, name_of, silent
from shardlab.classroom.by_hand import ByHand, close
from shardlab.classroom.network import text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.torch_ranks import require_torch
from shardlab.labs.pipeline import PipelineLabRun
from shardlab.labs.rank import Context
from shardlab.models import pipeline
from shardlab.units import GB, MB, format_time

if TYPE_CHECKING:
    # It needs torch, which all tasks but one do without.
    from shardlab.classroom.rank_cases import CaseFaults, Faults

ASSIGNMENT = "06_pipeline_schedule"

# A forward takes 10 ms and a whole backward 20 ms on every rank.
UNIT_S = 0.01
TIMES = (UNIT_S, UNIT_S, UNIT_S)
# Sending is free with one chunk. With several it isn't: with free sending, half the forwards that an interleaved
# schedule runs first would do.
TRANSFER_S = 0.001
_ROUNDING = 1e-9
# A schedule of these sizes has far fewer; a list that grew without end must not use up the cell's time.
_MOST_OPERATIONS = 20_000
_SHOWN = 2


# ---- a schedule, judged by the executor ----


@dataclass(frozen=True)
class ScheduleTrial:
    """What came of one call of a student's function; every question is answered with None or with what is wrong.

    Attributes:
        where: the call, for a sentence.
        legal: None, or why the schedule can't run.
        orders: what the function returned, per rank a list of texts; empty if it can't run.
        run: the executor's run, None if it can't run.
    """

    where: str
    legal: str | None
    orders: tuple[tuple[str, ...], ...] = ()
    run: pipeline.PipelineRun | None = None

    def as_fast_as(self, schedule: str) -> str | None:
        """Does the step take no longer than that of a published schedule of the same size?"""
        if self.run is None:
            return _CANT_RUN
        run = self.run
        transfer_s = max(run.timeline.model.hops_s, default=0.0)
        limit_s = pipeline.makespan_s(
            schedule, run.stages, run.micro_batches, *TIMES, transfer_s, chunks=run.chunks
        )
        if run.makespan_s <= limit_s * (1 + _ROUNDING):
            return None
        words = (
            f"{self.where}: the step takes {format_time(run.makespan_s)}; {format_time(limit_s)} are possible"
        )
        gap = max(run.idle_gaps, key=lambda one: one.duration_s)
        return f"{words}. The longest gap: {gap.explanation}"

    def keeps_at_most(self, limits: Sequence[float]) -> str | None:
        """Does no rank have more micro-batches in flight than its limit?"""
        if self.run is None:
            return _CANT_RUN
        for rank, (peak, limit) in enumerate(zip(self.run.in_flight_peak, limits, strict=True)):
            if peak > limit * (1 + _ROUNDING):
                return (
                    f"{self.where}: rank {rank} keeps {peak:g} micro-batches at one time, and {limit:g} are "
                    "enough: which forward could wait until a backward has freed one?"
                )
        return None

    def forwards_first(self) -> str | None:
        """Does every rank run all its forwards before its first backward?"""
        if self.run is None:
            return _CANT_RUN
        for rank, order in enumerate(self.orders):
            kinds = [text[:1] for text in order]
            last_forward = len(kinds) - 1 - kinds[::-1].index("F")
            if kinds.index("B") < last_forward:
                return (
                    f"{self.where}: rank {rank} runs {order[kinds.index('B')]} before {order[last_forward]}; "
                    "in GPipe every forward comes before the first backward"
                )
        return None


_CANT_RUN = "the schedule can't run yet"
# The first few tell what is wrong; the others would push the timeline's own cell off the screen.
MOST_PROBLEMS = 6


def try_schedule(
    function: Callable[..., Any], stages: int, micro_batches: int, chunks: int | None = None
) -> ScheduleTrial:
    """Call ``function(stages, micro_batches)`` and run the result.

    With ``chunks``, the function gets them as a third argument, and a message takes :data:`TRANSFER_S`.
    """
    sizes = (stages, micro_batches) if chunks is None else (stages, micro_batches, chunks)
    where = f"{name_of(function)}({', '.join(map(str, sizes))})"
    attempted = attempt(function, *sizes)
    if attempted.fault:
        return ScheduleTrial(where, attempted.fault)
    orders, fault = read_schedule(attempted.value, stages)
    if fault:
        return ScheduleTrial(where, f"{where} {fault}")
    problems = pipeline.schedule_problems(orders, chunks or 1, micro_batches=micro_batches)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        return ScheduleTrial(where, f"{where}: {'; '.join(problems[:_SHOWN])}{more}")
    transfer_s = 0.0 if chunks is None else TRANSFER_S
    run = pipeline.execute(orders, TIMES, transfer_s, chunks or 1, micro_batches=micro_batches)
    return ScheduleTrial(where, None, tuple(map(tuple, orders)), run)


def read_schedule(value: Any, stages: int) -> tuple[list[list[str]], str | None]:
    """One list of texts per rank, or what is wrong with the form of it."""
    wanted = f"must return a list of {stages} lists, one for each rank"
    if not isinstance(value, (list, tuple)):
        return [], f"{wanted}, not {reprlib.repr(value)}"
    if len(value) != stages:
        return [], f"{wanted}, not {len(value)} of them"
    orders = []
    for rank, order in enumerate(value):
        if not isinstance(order, (list, tuple)) or not all(isinstance(entry, str) for entry in order):
            return (
                [],
                f"{wanted}, each of texts such as 'F0'; that of rank {rank} is {reprlib.repr(order)}",
            )
        if len(order) > _MOST_OPERATIONS:
            return [], f"gives rank {rank} {len(order)} operations"
        orders.append(list(order))
    return orders, None


def one_f_one_b_fault(function: Callable[..., Any], sizes: Sequence[tuple[int, int]]) -> str | None:
    """The first fault of ``function(stages, micro_batches)`` in these sizes: legal, as fast as GPipe, rank r keeps
    at most p - r."""
    for stages, micro_batches in sizes:
        trial = try_schedule(function, stages, micro_batches)
        limits = pipeline.published_in_flight_peak("1f1b", stages, micro_batches)
        fault = trial.legal or trial.as_fast_as("gpipe") or trial.keeps_at_most(limits)
        if fault:
            return fault
    return None


def gpipe_fault(function: Callable[..., Any], sizes: Sequence[tuple[int, int]]) -> str | None:
    """The first fault of ``function(stages, micro_batches)`` as GPipe in these sizes."""
    for stages, micro_batches in sizes:
        trial = try_schedule(function, stages, micro_batches)
        fault = trial.legal or trial.forwards_first() or trial.as_fast_as("gpipe")
        if fault:
            return fault
    return None


def interleaved_fault(function: Callable[..., Any], sizes: Sequence[tuple[int, int, int]]) -> str | None:
    """The first fault of ``function(stages, micro_batches, chunks)`` in these sizes, memory included."""
    for stages, micro_batches, chunks in sizes:
        trial = try_schedule(function, stages, micro_batches, chunks)
        limits = pipeline.published_in_flight_peak("interleaved-1f1b", stages, micro_batches, chunks)
        fault = trial.legal or trial.as_fast_as("interleaved-1f1b") or trial.keeps_at_most(limits)
        if fault:
            return fault
    return None


# ---- timelines as text ----


def timeline(orders: Sequence[Sequence[str]], chunks: int = 1) -> str:
    """A schedule's step as text: one line a rank, one column for the forward of one chunk; a dot is idle.

    What keeps the schedule from running stands there instead, if something does.
    """
    problems = pipeline.schedule_problems(orders, chunks)
    if problems:
        more = [f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
        return "\n".join(["this schedule can't run:", *problems[:MOST_PROBLEMS], *more])
    run = pipeline.execute(orders, TIMES, TRANSFER_S if chunks > 1 else 0.0, chunks)
    whole = not any("W" in text for order in orders for text in order)
    rows: list[list[tuple[str, float, float]]] = [[] for _ in orders]
    for done in run.operations:
        kind = "B" if whole and done.kind == "W" else done.kind
        text = f"{kind}{done.micro_batch}" + (f".{done.chunk}" if chunks > 1 else "")
        rows[done.rank].append((text, done.start_s, done.end_s))
    peaks = ", ".join(f"{peak:g}" for peak in run.in_flight_peak)
    return "\n".join(
        [
            *_drawn(rows, UNIT_S / chunks),
            f"step {format_time(run.makespan_s)}, idle {run.bubble_of_total:.1%} of the total time, "
            f"in flight at most {peaks}",
        ]
    )


def measured_timeline(run: PipelineLabRun, schedule: str) -> str:
    """One measured step of the pipeline lab as text, a column for the time that one forward was to take."""
    row = run.row(schedule)
    rows = [
        [
            (text.partition("+")[0], start, end)
            for text, start, end in zip(order.split(), starts, ends, strict=True)
        ]
        for order, starts, ends in zip(row.orders, row.starts_s, row.ends_s, strict=True)
    ]
    unit_s = run.settings["forward_s"] / row.chunks
    return "\n".join([f"{schedule}, measured: a column is {format_time(unit_s)}", *_drawn(rows, unit_s)])


def measured_table(run: PipelineLabRun) -> str:
    """The pipeline lab's steps as a table: predicted and measured time, idle time, and what each rank keeps."""
    rows = [
        [
            "schedule",
            "step predicted",
            "measured",
            "idle/total predicted",
            "measured",
            "in flight, rank by rank",
        ]
    ]
    for row in run.schedules:
        predicted = run.prediction(row.name)
        rows.append(
            [
                row.name,
                f"{predicted.makespan_s * 1e3:.0f} ms",
                f"{row.makespan_s * 1e3:.0f} ms",
                f"{predicted.bubble_of_total:.3f}",
                f"{row.bubble_of_total:.3f}",
                ", ".join(f"{peak:g}" for peak in row.in_flight),
            ]
        )
    return text_table(rows)


def _drawn(rows: Sequence[Sequence[tuple[str, float, float]]], unit_s: float) -> list[str]:
    """A line for each rank; a column shows what runs in its middle."""
    columns = math.ceil(max(end for row in rows for _, _, end in row) / unit_s - 1e-6)
    width = max(len(text) for row in rows for text, _, _ in row)
    lines = []
    for rank, row in enumerate(rows):
        cells = ["."] * columns
        for text, start, end in row:
            first, last = (math.ceil(at / unit_s - 0.5 - 1e-6) for at in (start, end))
            cells[first:last] = [text] * (last - first)
        lines.append(f"rank {rank}  " + " ".join(cell.ljust(width) for cell in cells[:columns]).rstrip())
    return lines


# ---- task 5: a rank's own program, on real ranks ----

RANKS = 3
FEATURES = 8
SAMPLES = 2
# fp32 keeps 7 digits; sums over a few micro-batches in another order stay far below this.
_SAME = 1e-5
# A correct program needs three seconds, most of them to start. While a class is graded, more ranks than cores start.
_LIMIT_S = 40.0


def orders_to_run(schedule: str, micro_batches: int) -> list[list[str]]:
    """What the ranks of task 5 run: ``"gpipe"``, ``"1f1b"``, or ``"backwards last-first"``."""
    if schedule == "backwards last-first":
        batches = range(micro_batches)
        return [[f"F{i}" for i in batches] + [f"B{i}" for i in reversed(batches)]] * RANKS
    return [list(order) for order in pipeline.schedule_operations(schedule, RANKS, micro_batches)]


Case = tuple[str, int]


@dataclass(frozen=True)
class RunTrial:
    """What came of task 5 on real ranks; a case is a schedule and its micro-batches, as :func:`try_run` was given.

    Attributes:
        outcome: the faults of every case.
    """

    outcome: CaseFaults

    def gradients(self, *cases: Case) -> str | None:
        """Are all ranks' gradients those of the unsplit model? The first fault in these cases."""
        return self._first(cases, "gradients")

    def order(self, *cases: Case) -> str | None:
        """Did every rank run forwards and backwards in the order of its list?"""
        return self._first(cases, "order")

    def counted(self, *cases: Case) -> str | None:
        """Did every rank return the most micro-batches that it kept?"""
        return self._first(cases, "counted")

    def _first(self, cases: Sequence[Case], question: str) -> str | None:
        return first_fault(self.outcome.fault(_case_words(case), question) for case in cases)


def _case_words(case: Case) -> str:
    schedule, micro_batches = case
    return f"{schedule}, {micro_batches} micro-batch{'es' if micro_batches > 1 else ''}"


def try_run(function: Callable[..., Any], cases: Sequence[Case]) -> RunTrial:
    """Run ``function(order, stage, inputs, targets, shape)`` on three gloo ranks, case after case.

    Args:
        function: the student's.
        cases: ``(schedule, micro_batches)`` each, a schedule as in :func:`orders_to_run`.

    Raises:
        NeedsTorch: PyTorch isn't installed.
        NotWritten: the function isn't written yet.
    """
    require_torch()
    from shardlab.classroom.rank_cases import try_cases

    params = {"name": name_of(function), "cases": [list(case) for case in cases]}
    outcome = try_cases(f"{__name__}:run_trial", [function], RANKS, params, time_limit_s=_LIMIT_S)
    return RunTrial(outcome)


def run_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> dict[str, Faults]:
    """One rank of task 5: per case the faults of ``gradients``, ``order`` and ``counted``. Not called by hand."""
    from shardlab.classroom.rank_cases import Cases

    cases = Cases(ctx)
    for schedule, micro_batches in params["cases"]:
        order = orders_to_run(schedule, micro_batches)[ctx.rank]
        case = partial(_run_case, ctx, functions[params["name"]], order, micro_batches)
        cases.run(_case_words((schedule, micro_batches)), case)
    return cases.faults


def _run_case(ctx: Context, function: Callable[..., Any], order: list[str], micro_batches: int) -> Faults:
    import torch
    from torch import nn
    from torch.nn.functional import mse_loss

    from shardlab.classroom.send_log import logged_sends

    def build(rank: int) -> nn.Module:
        torch.manual_seed(rank)
        return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())

    generator = torch.Generator().manual_seed(len(order))
    inputs, targets = torch.randn(2, micro_batches, SAMPLES, FEATURES, generator=generator)
    whole = nn.Sequential(*[build(rank) for rank in range(ctx.ranks)])
    mse_loss(whole(inputs.flatten(0, 1)), targets.flatten(0, 1)).backward()
    wanted = [parameter.grad for parameter in whole[ctx.rank].parameters()]

    stage = build(ctx.rank)
    ran: list[str] = []

    def watch(_module: nn.Module, _inputs: Any, out: torch.Tensor) -> None:
        ran.append("F")
        if out.requires_grad:
            out.register_hook(lambda _gradient: ran.append("B"))

    stage.register_forward_hook(watch)
    with logged_sends(), silent():
        counted = function(
            list(order),
            stage,
            list(inputs) if ctx.rank == 0 else None,
            list(targets) if ctx.rank == ctx.ranks - 1 else None,
            (SAMPLES, FEATURES),
        )
    kinds = [entry[0] for entry in order]
    peak = max(kinds[:end].count("F") - kinds[:end].count("B") for end in range(len(kinds) + 1))
    return {
        "gradients": gradient_fault(
            [parameter.grad for parameter in stage.parameters()], wanted, micro_batches
        ),
        "order": None
        if ran == kinds
        else f"ran {' '.join(ran) or 'nothing'}, the list says {' '.join(order)}",
        "counted": None if _is_number(counted, peak) else _count_words(counted, peak, len(kinds) // 2),
    }


def gradient_fault(found: Sequence[Any], wanted: Sequence[Any], micro_batches: int) -> str | None:
    """What is wrong with a stage's gradients; None if they equal the unsplit model's up to rounding."""
    if any(gradient is None for gradient in found):
        return "its stage has no gradients: does its backward run, from the stage's output?"

    def far(scale: float) -> bool:
        # Written so that a NaN is far.
        return not all(
            float((one / scale - other).abs().max()) <= _SAME
            for one, other in zip(found, wanted, strict=True)
        )

    if not far(1.0):
        return None
    if micro_batches > 1 and not far(float(micro_batches)):
        return (
            f"its gradients are {micro_batches} times as large as the unsplit model's: the loss of a step is the "
            "mean over its micro-batches"
        )
    return (
        "its gradients are not the unsplit model's: does the gradient that arrives for micro-batch i meet what was "
        "kept of micro-batch i, and are the gradients of all micro-batches added up?"
    )


def _is_number(value: Any, wanted: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == wanted


def _count_words(counted: Any, peak: int, micro_batches: int) -> str:
    words = f"returned {reprlib.repr(counted)}; it kept {peak} micro-batches at the most"
    if counted is None:
        return f"{words}: return that number"
    return f"{words}, not all {micro_batches} of them" if counted == micro_batches else words


# ---- task 1: by hand ----

QUANTITIES = ("step_s", "idle_of_total", "idle_of_ideal", "held_bytes", "micro_batches")


@dataclass(frozen=True)
class ScheduleNumbers(ByHand):
    """One student's numbers for task 1.

    Attributes:
        stages: p.
        n_micro_batches: m.
        forward_s: seconds of one micro-batch's forward on one rank.
        backward_s: seconds of its whole backward.
        kept_bytes: activations of one micro-batch on one rank, bytes.
        rank: the rank that ``held_bytes`` is about.
        target: the largest share of idle in total time that ``micro_batches`` is about.
    """

    stages: int
    n_micro_batches: int
    forward_s: float
    backward_s: float
    kept_bytes: float
    rank: int
    target: float

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"p    {self.stages} ranks, one stage on each",
            f"m    {self.n_micro_batches} micro-batches in a step",
            f"t_F  {self.forward_s * 1e3:g} ms: the forward of one micro-batch on one rank",
            f"t_B  {self.backward_s * 1e3:g} ms: its whole backward",
            f"A    {self.kept_bytes / MB:g} MB: what one rank keeps of one micro-batch until its backward",
            f"r    {self.rank}: the rank that held_bytes is about",
            f"t    {self.target:g}: the share of the total time that micro_batches is about",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        p, m = self.stages, self.n_micro_batches
        if quantity == "step_s":
            half_s = self.backward_s / 2
            return pipeline.makespan_s("gpipe", p, m, self.forward_s, half_s, half_s)
        if quantity == "idle_of_total":
            return pipeline.bubble_of_total(p, m)
        if quantity == "idle_of_ideal":
            return pipeline.bubble_of_ideal(p, m)
        if quantity == "held_bytes":
            return pipeline.published_in_flight_peak("1f1b", p, m)[self.rank] * self.kept_bytes
        if quantity == "micro_batches":
            return float(pipeline.micro_batches_for_bubble(p, self.target))
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}, not {quantity!r}")

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        p, m, both_s = self.stages, self.n_micro_batches, self.forward_s + self.backward_s
        total, ideal = pipeline.bubble_of_total(p, m), pipeline.bubble_of_ideal(p, m)
        if quantity == "step_s":
            step_s = self.key(quantity)
            return [
                (m * both_s, "that is what one rank works; the pipeline also has to fill and to drain"),
                ((m + p) * both_s, "the last rank starts p − 1 stages late, not p"),
                ((m + p - 1) * self.forward_s, "that leaves the backwards out"),
                (m * both_s + (p - 1) * self.forward_s, "it fills with forwards and drains with backwards"),
                (m * p * both_s, "that is one rank at a time; ranks work at the same time"),
                (step_s * 1e3, "that is in milliseconds; the answer is in seconds"),
            ]
        if quantity == "idle_of_total":
            return [
                (ideal, "that is idle over ideal time; the total time also holds the idle time"),
                ((p - 1) / (m + p), "each rank idles p − 1 of m + p − 1 times"),
                (1 - total, "that is the share in which a rank works"),
                (total * 100, "that is in per cent; answer with the fraction"),
            ]
        if quantity == "idle_of_ideal":
            return [
                (total, "that is idle over total time; the ideal time is the work alone"),
                (p / m, "the first result reaches the last rank p − 1 stages late, not p"),
                (ideal * 100, "that is in per cent; answer with the fraction"),
            ]
        if quantity == "held_bytes":
            kept = self.kept_bytes
            return [
                (m * kept, "that is GPipe, which keeps all micro-batches"),
                (p * kept, "that is rank 0; the ranks behind it keep fewer"),
                ((self.rank + 1) * kept, "that counts from the wrong end: rank 0 keeps the most"),
                (
                    (p - self.rank - 1) * kept,
                    "the forward that runs before the first backward counts as well",
                ),
                (kept, "that is one micro-batch"),
                (self.key(quantity) / MB, "that is in MB; the answer is in bytes"),
                (self.key(quantity) / GB, "that is in GB; the answer is in bytes"),
            ]
        if quantity == "micro_batches":
            exact = (p - 1) * (1 - self.target) / self.target
            return [
                (
                    float(pipeline.micro_batches_for_bubble(p, self.target, ratio="ideal")),
                    "that brings idle over ideal time down to t; here it is the total time",
                ),
                (exact, "it is a whole number"),
                (float(math.floor(exact)), "with so many it is still above t"),
                (1 / self.target, "solve (p − 1)/(m + p − 1) = t for m"),
            ]
        return []


def by_hand_numbers(student: str) -> ScheduleNumbers:
    """A student's numbers for task 1: an even p, at least twice as many micro-batches, a rank in between, and a target
    that no whole number of micro-batches meets exactly."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")
    # With an even p no rank is as far from the front as from the back.
    stages = draw.pick((4, 6, 8, 10))
    # Times of 10 to 30 ms; a backward takes 1.5 to 2.4 times as long as its forward.
    forward_ms = 10 + draw.below(21)

    def needs_rounding(target: float) -> bool:
        exact = (stages - 1) * (1 - target) / target
        return not close(exact, pipeline.micro_batches_for_bubble(stages, target))

    return ScheduleNumbers(
        student=name,
        complaint=complaint,
        stages=stages,
        n_micro_batches=2 * stages + draw.below(3 * stages + 1),
        forward_s=forward_ms / 1e3,
        backward_s=forward_ms * draw.pick((1.5, 1.6, 1.8, 2.0, 2.2, 2.4)) / 1e3,
        kept_bytes=(50 + 5 * draw.below(91)) * MB,
        rank=1 + draw.below(stages - 2),
        target=draw.until(lambda: draw.pick((0.07, 0.08, 0.09, 0.11, 0.12, 0.13, 0.15)), needs_rounding),
    )
