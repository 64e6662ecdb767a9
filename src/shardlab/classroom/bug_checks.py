"""Checks of assignment 11, "find the bug": reports to read, programs to mend, and checks to choose.

The programs with their faults are in the notebook. Here each is tried on real ranks: for every case all ranks draw
the same whole, each takes its own part of it, and what comes back is compared with one process that has the whole.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from shardlab.classroom.attempt import name_of
from shardlab.classroom.by_hand import ByHand, entry
from shardlab.classroom.network import NotWritten, describe, text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.torch_ranks import try_on_ranks
from shardlab.labs.rank import Context
from shardlab.models import diagnose
from shardlab.units import GB, MB, MS, format_time

ASSIGNMENT = "11_find_the_bug"

# ---- task 1: by hand ----


@dataclass(frozen=True)
class ReportNumbers(ByHand):
    """One student's scaling report for task 1.

    Attributes:
        scaling: ``"weak"`` (the batch per rank was kept) or ``"strong"`` (the global batch was).
        n_ranks: N; the base run has one rank.
        base_step_s, step_s: measured steps on 1 and on N ranks, seconds.
        n_params: parameters, each with a gradient of ``gradient_width`` bytes.
        gradient_width: 2 for bf16, 4 for fp32.
    """

    scaling: str
    n_ranks: int
    base_step_s: float
    step_s: float
    n_params: float
    gradient_width: int

    @property
    def n_bytes(self) -> float:
        """P: bytes of the gradients on one rank."""
        return self.n_params * self.gradient_width

    @property
    def diagnosis(self) -> diagnose.DataParallelDiagnosis:
        """What the book's diagnosis makes of it."""
        return diagnose.data_parallel(
            self.base_step_s, self.step_s, self.n_ranks, scaling=self.scaling, gradient_bytes=self.n_bytes
        )

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        kept = "each rank kept its batch" if self.scaling == "weak" else "the global batch was kept"
        kind = "bf16: 2" if self.gradient_width == 2 else "fp32: 4"
        return [
            f"N    {self.n_ranks} ranks, compared with 1; {kept} ({self.scaling} scaling)",
            f"t₁   {self.base_step_s / MS:g} ms, the step on 1 rank",
            f"t_N  {self.step_s / MS:g} ms, the step on {self.n_ranks} ranks",
            f"P    the gradient of {self.n_params / 1e6:g} million parameters, in {kind} bytes each",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        said = self.diagnosis
        assert said.implied_bandwidth is not None
        low, high = said.implied_bandwidth
        values = {
            "efficiency": said.efficiency,
            "sent_bytes": said.sent_bytes,
            "low_bandwidth": low,
            "high_bandwidth": high,
        }
        if quantity not in values:
            raise ValueError(f"quantity must be one of {', '.join(values)}, not {quantity!r}")
        value = values[quantity]
        assert value is not None
        return value

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        n, size, key = self.n_ranks, self.n_bytes, self.key(quantity)
        weak, strong = self.base_step_s / self.step_s, self.base_step_s / self.step_s / n
        sent, exposed = self.key("sent_bytes"), self.diagnosis.exposed_s
        if quantity == "efficiency":
            other = strong if self.scaling == "weak" else weak
            return [
                (other, f"that would be so in {'strong' if self.scaling == 'weak' else 'weak'} scaling"),
                (1 / key, "that is upside down"),
                (n * weak, "that is a speedup; the efficiency is per rank"),
                (100 * key, "that is in per cent; the answer is a fraction"),
            ]
        if quantity == "sent_bytes":
            return [
                (size, "that is the gradient once; an all-reduce has two phases"),
                (2 * size, "that is the ceiling 2P, which no finite ring reaches"),
                (sent / 2, "that is one phase; an all-reduce has two"),
                (n * sent, "that is what all ranks send together; the question is about one"),
                (
                    self.n_params * (6 - self.gradient_width) * 2 * (n - 1) / n,
                    "look at the width of a gradient",
                ),
                (sent * 8, "those are bits; the answer is in bytes"),
            ]
        if quantity == "low_bandwidth":
            return [
                (self.key("high_bandwidth"), "that is the upper end: nothing hidden"),
                (size / self.step_s, "a rank sends more than its gradient; use the bytes that it sent"),
                (key * 8, "those are bits per second; the answer is in bytes per second"),
                (key / GB, "that is in GB/s; the answer is in bytes per second"),
            ]
        if quantity == "high_bandwidth":
            return [
                (self.key("low_bandwidth"), "that is the lower end: everything hidden"),
                (
                    sent / abs(self.step_s - self.base_step_s),
                    "in strong scaling each rank computes 1/N of the base step",
                )
                if self.scaling == "strong"
                else (
                    sent / (self.step_s - self.base_step_s / n),
                    "in weak scaling a rank computes as long as before",
                ),
                (size / exposed, "a rank sends more than its gradient; use the bytes that it sent"),
                (key * 8, "those are bits per second; the answer is in bytes per second"),
                (key / GB, "that is in GB/s; the answer is in bytes per second"),
            ]
        return []


def by_hand_numbers(student: str) -> ReportNumbers:
    """A student's report for task 1."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")
    scaling = draw.pick(("weak", "strong"))
    n_ranks = draw.pick((4, 6, 8, 10, 12, 16))
    compute_ms = 100 + 10 * draw.below(31)
    # The step loses 20 to 120 % of its compute.
    lost_ms = round(compute_ms * (20 + draw.below(101)) / 100)
    return ReportNumbers(
        student=name,
        complaint=complaint,
        scaling=scaling,
        n_ranks=n_ranks,
        base_step_s=(compute_ms if scaling == "weak" else compute_ms * n_ranks) * MS,
        step_s=(compute_ms + lost_ms) * MS,
        n_params=(50 + 10 * draw.below(96)) * 1e6,
        gradient_width=draw.pick((2, 4)),
    )


# ---- task 2: which factor is to blame? ----

VERDICTS = ("scales-well", "data-loading", "network-bound", "communication-exposed", "below-nominal")
REPORTS = "ABCDE"


@dataclass(frozen=True)
class Report:
    """One report of a hundred steps, weak scaling against one rank.

    Attributes:
        n_ranks: ranks.
        base_step_s, step_s: median steps on one rank and on all, seconds.
        gradient_bytes: of one rank.
        link_bits_per_s: what the link is sold as, bits per second.
        data_s: of the step on all ranks, waiting for data.
    """

    n_ranks: int
    base_step_s: float
    step_s: float
    gradient_bytes: float
    link_bits_per_s: float
    data_s: float

    @property
    def verdict(self) -> str:
        """What the book's diagnosis says, as its short name."""
        return self.diagnosis.verdict.code

    @property
    def diagnosis(self) -> diagnose.DataParallelDiagnosis:
        """The whole diagnosis."""
        return diagnose.data_parallel(
            self.base_step_s,
            self.step_s,
            self.n_ranks,
            scaling="weak",
            gradient_bytes=self.gradient_bytes,
            nominal_bandwidth=f"{self.link_bits_per_s / GB:g} Gb/s",
            data_s=max(self.data_s, 1e-6),
        )

    @property
    def clear(self) -> bool:
        """Whether no number is so near a limit that rounding decides."""
        said = self.diagnosis
        assert said.fraction_of_nominal is not None
        assert said.communication_at_nominal_s is not None
        high = said.fraction_of_nominal[1] or math.inf
        near = (
            0.85 < said.weak_efficiency < 0.92,
            0.4 < self.data_s / max(said.exposed_s, 1e-9) < 0.6,
            0.4 < high < 0.6,
            0.85 < said.communication_at_nominal_s / said.compute_s < 1.15,
        )
        return not any(near)


@dataclass(frozen=True)
class Reports:
    """One student's five reports, one for each verdict.

    Attributes:
        reports: A to E.
        complaint: as in :class:`~shardlab.classroom.by_hand.ByHand`.
    """

    reports: tuple[Report, ...]
    complaint: str | None

    def table(self) -> str:
        """The five reports, side by side."""
        rows = [["report", "ranks", "1 rank", "all ranks", "of it waiting for data", "gradients", "link"]]
        for name, one in zip(REPORTS, self.reports, strict=True):
            rows.append(
                [
                    name,
                    str(one.n_ranks),
                    f"{one.base_step_s / MS:g} ms",
                    f"{one.step_s / MS:g} ms",
                    f"{one.data_s / MS:g} ms",
                    f"{one.gradient_bytes / MB:g} MB",
                    f"{one.link_bits_per_s / GB:g} Gb/s",
                ]
            )
        return text_table(rows)

    def fault(self, name: str, answers: Any) -> str | None:
        """What is wrong with the answer for one report, or None."""
        answer = entry("verdicts", "reports to verdicts", answers, name, VERDICTS)
        report = self.reports[REPORTS.index(name)]
        if answer.fault or answer.value == report.verdict:
            return answer.fault
        return self.complaint or f"report {name} is not {answer.value}: {_against(answer.value, report)}"


def _against(answer: str, report: Report) -> str:
    """The number that speaks against a wrong verdict."""
    said = report.diagnosis
    assert said.fraction_of_nominal is not None
    assert said.communication_at_nominal_s is not None
    if answer == "scales-well":
        return f"its efficiency is {100 * said.weak_efficiency:.0f} %"
    if said.weak_efficiency >= 0.9:
        return f"its efficiency is {100 * said.weak_efficiency:.0f} %, there is nothing to repair"
    waits = f"of {format_time(said.exposed_s, 3)} lost, {format_time(report.data_s, 3)} are waiting for data"
    if answer == "data-loading" or report.verdict == "data-loading":
        return waits
    high = said.fraction_of_nominal[1]
    reached = "all" if high is None else f"{100 * high:.0f} %"
    if answer == "below-nominal" or report.verdict == "below-nominal":
        return f"with nothing hidden, the link delivered {reached} of what it is sold as"
    return (
        f"at the link's full speed the gradients need {format_time(said.communication_at_nominal_s, 3)}, "
        f"and a step computes for {format_time(said.compute_s, 3)}"
    )


def reports(student: str) -> Reports:
    """A student's five reports."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "reports")
    drawn = [
        draw.until(
            lambda verdict=verdict: _propose(draw, verdict),
            lambda one, verdict=verdict: one.verdict == verdict and one.clear,
        )
        for verdict in draw.shuffled(VERDICTS)
    ]
    return Reports(tuple(drawn), complaint)


def _propose(draw: Any, verdict: str) -> Report:
    n_ranks = draw.pick((8, 16, 24, 32, 64))
    size = draw.pick((200, 400, 600, 800, 1200, 1600, 2400)) * MB
    link = draw.pick((10, 25, 40, 100, 200, 400)) * GB
    base_s = (200 + 20 * draw.below(71)) * MS
    at_nominal_s = 2 * (n_ranks - 1) / n_ranks * size * 8 / link
    if verdict == "scales-well":
        lost_s = base_s * (2 + draw.below(6)) / 100
    elif verdict == "data-loading":
        lost_s = base_s * (40 + draw.below(100)) / 100
    elif verdict == "below-nominal":
        lost_s = at_nominal_s * 100 / (10 + draw.below(21))
    else:
        lost_s = at_nominal_s * 100 / (65 + draw.below(31))
    share = 70 + draw.below(26) if verdict == "data-loading" else 3 + draw.below(13)
    return Report(
        n_ranks=n_ranks,
        base_step_s=base_s,
        step_s=round((base_s + lost_s) / MS) * MS,
        gradient_bytes=size,
        link_bits_per_s=link,
        data_s=round(lost_s * share / 100 / MS) * MS,
    )


# ---- tasks 3 and 4: the programs ----

# fp32 sums in another order; a fault shows at a hundred times as much.
SAME = 1e-4
# Right programs take a tenth of it, and the rest is for the ranks to start on a busy machine.
_LIMIT_S = 25.0
_SEEDS = 5, 17, 61


@dataclass(frozen=True)
class Case:
    """One rank's part of one case.

    Attributes:
        words: what the case is.
        arguments: of the program, on this rank.
        wanted: what it must return, as tensors; a program that returns one value has one.
        names: what these are.
        shared: which of them must be the same on all ranks.
        budget: the most numbers that a rank hands to collectives.
    """

    words: str
    arguments: tuple[Any, ...]
    wanted: tuple[Any, ...]
    names: tuple[str, ...]
    shared: tuple[int, ...]
    budget: int


class _Draw:
    """Sizes and numbers from one seed, the same on every rank."""

    def __init__(self, seed: int) -> None:
        import torch

        self._sizes = random.Random(seed)
        self._numbers = torch.Generator().manual_seed(seed)

    def size(self, least: int, most: int) -> int:
        return self._sizes.randint(least, most)

    def normal(self, *shape: int) -> Any:
        import torch

        return torch.randn(shape, generator=self._numbers)


def _accuracy(rank: int, ranks: int, draw: _Draw, kind: str) -> Case:
    import torch

    samples = ranks * draw.size(5, 12)
    if kind == "awkward":
        samples += draw.size(1, max(ranks - 1, 1))
    elif kind == "edge":
        samples = draw.size(1, ranks)
    correct = [1.0 if draw.size(0, 2) else 0.0 for _ in range(samples)]
    # The first samples are the ones that come twice: unlike the rest, so that it shows.
    correct[:ranks] = [1.0] * min(ranks, samples)
    correct[-1] = 0.0
    places = range(rank, -(-samples // ranks) * ranks, ranks)
    mine = torch.tensor([correct[place % samples] for place in places])
    return Case(
        f"{samples} samples, {len(mine)} on each rank",
        (mine, samples),
        (torch.tensor(sum(correct) / samples),),
        ("the accuracy",),
        (0,),
        4,
    )


def _average_gradients(rank: int, ranks: int, draw: _Draw, kind: str) -> Case:
    side = draw.size(3, 6)
    shapes: list[tuple[int, ...]] = [(side, side)] * 4
    if kind == "awkward":
        shapes = [(side, side + 1), (side + 1,), (2, side), (2,)]
    elif kind == "edge":
        shapes = [(side,), (1,), (side, 0), (2, 3)]
    whole = [draw.normal(ranks, *shape) for shape in shapes]
    return Case(
        f"{len(shapes)} layers of shapes {', '.join(map(str, shapes))}",
        ([one[rank].clone() for one in whole],),
        tuple(one.mean(0) for one in whole),
        tuple(f"the gradient of layer {layer}" for layer in range(len(shapes))),
        tuple(range(len(shapes))),
        sum(one[0].numel() for one in whole),
    )


def _scaled_step(rank: int, ranks: int, draw: _Draw, kind: str) -> Case:
    import torch

    size, scale, lr = draw.size(3, 8), 2.0 ** draw.size(4, 12), 0.1
    weights, gradients = draw.normal(ranks, size), draw.normal(ranks, size) * scale
    words = "no overflow"
    if kind != "even":
        where = draw.size(0, ranks - 1)
        bad = float("inf") if kind == "awkward" else float("nan")
        gradients[where, draw.size(0, size - 1)] = bad
        words = f"{bad} in the shard of rank {where}"
        wanted = weights[rank], torch.tensor(scale / 2)
    else:
        wanted = weights[rank] - lr * gradients[rank] / scale, torch.tensor(scale)
    return Case(
        words,
        (weights[rank].clone(), gradients[rank].clone(), scale, lr),
        wanted,
        ("the new shard", "the new scale"),
        (1,),
        4,
    )


def _parallel_cross_entropy(rank: int, ranks: int, draw: _Draw, kind: str) -> Case:
    import torch
    import torch.nn.functional as F

    tokens, width = draw.size(3, 7), draw.size(2, 6)
    logits = 2 * draw.normal(tokens, ranks * width)
    if kind == "awkward":
        logits += 20 * draw.normal(1, ranks).repeat_interleave(width, 1)
    elif kind == "edge":
        # Their exponentials are infinite in fp32, on one rank only.
        logits[:, draw.size(0, ranks - 1) * width] += 300.0
    targets = torch.tensor([draw.size(0, ranks * width - 1) for _ in range(tokens)])
    truth = F.cross_entropy(logits.double(), targets, reduction="none").float()
    return Case(
        f"{tokens} tokens, {width} of {ranks * width} columns on each rank",
        (logits[:, rank * width : (rank + 1) * width].clone(), targets),
        (truth,),
        ("the list of losses",),
        (0,),
        3 * tokens,
    )


def _gradient_norm(rank: int, ranks: int, draw: _Draw, kind: str) -> Case:
    import torch

    split = [draw.normal(ranks, draw.size(2, 9)) for _ in range(2)]
    whole = [draw.normal(draw.size(2, 9)) for _ in range(2)]
    if kind == "edge":
        split, whole = ([], whole) if draw.size(0, 1) else (split, [])
    square = sum(float(one.double().square().sum()) for one in [*split, *whole])
    return Case(
        f"{len(split)} sharded and {len(whole)} replicated gradients",
        ([one[rank].clone() for one in split], [one.clone() for one in whole]),
        (torch.tensor(math.sqrt(square)),),
        ("the norm",),
        (0,),
        2,
    )


CASES: dict[str, Callable[[int, int, _Draw, str], Case]] = {
    "accuracy": _accuracy,
    "average_gradients": _average_gradients,
    "scaled_step": _scaled_step,
    "parallel_cross_entropy": _parallel_cross_entropy,
    "gradient_norm": _gradient_norm,
}
PROGRAMS = tuple(CASES)


@dataclass(frozen=True)
class ProgramTrial:
    """Faults of one program, None where there is none.

    Attributes:
        same: whether it returns what one process does.
        edge: the same in cases at the edge of what is allowed.
        traffic: whether it hands more numbers to collectives than it needs.
    """

    same: str | None
    edge: str | None
    traffic: str | None


_FIELDS = ("same", "edge", "traffic")


def try_programs(
    functions: Sequence[Callable[..., Any]],
    n_ranks: int,
    before: dict[str, ProgramTrial] | None = None,
) -> dict[str, ProgramTrial]:
    """Run mended programs on ``n_ranks`` ranks; each is named as in :data:`PROGRAMS`.

    One that keeps its ranks waiting costs itself: those that were still to come are tried without it.

    Args:
        functions: the programs.
        n_ranks: number of ranks.
        before: an earlier trial; what was not the same as on one process there is not tried again.

    Raises:
        shardlab.classroom.NeedsTorch: PyTorch isn't installed.
    """
    from shardlab.classroom.rank_cases import try_cases

    trials = {name: trial for name, trial in (before or {}).items() if trial.same is not None}
    left = {name_of(function): function for function in functions if name_of(function) not in trials}
    while left:
        tried = try_cases(
            f"{__name__}:programs_trial", list(left.values()), n_ranks, {}, time_limit_s=_LIMIT_S
        )
        over = {*tried.finished, tried.trying} if tried.stopped and tried.trying else {*left}
        for name in over & left.keys():
            trials[name] = ProgramTrial(*[tried.fault(name, field) for field in _FIELDS])
            del left[name]
    return trials


def programs_trial(ctx: Context, functions: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """One rank of :func:`try_programs`: every program is a case."""
    from shardlab.classroom.rank_cases import Cases

    cases = Cases(ctx)
    for name, function in functions.items():
        cases.run(name, partial(_try_program, ctx, name, function))
    return cases.faults


def _try_program(ctx: Context, name: str, function: Any) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(_FIELDS)
    wrong = False
    for field, kinds in (("same", ("even", "awkward")), ("edge", ("edge",))):
        for seed, kind in itertools.product(_SEEDS, kinds):
            case = CASES[name](ctx.rank, ctx.ranks, _Draw(seed), kind)
            where = f"on {ctx.ranks} ranks, {case.words}"
            made = _call(function, case)
            stopped = isinstance(made, str)
            fault = made if isinstance(made, str) else _result_fault(made[0], case)
            words = fault if fault is None or fault.endswith("not written yet") else f"{where}: {fault}"
            # What one rank finds ends it for all, or the others would wait in the next case.
            everyone = ctx.gather([fault is not None, stopped])
            if field == "same" and any(one_stopped for _, one_stopped in everyone):
                return dict.fromkeys(found, words)
            if any(faulty for faulty, _ in everyone):
                found[field] = words
                wrong = wrong or field == "same"
                break
            if not isinstance(made, str) and made[1] > case.budget and found["traffic"] is None:
                found["traffic"] = (
                    f"{where}: rank {ctx.rank} hands {made[1]} numbers to collectives; {case.budget} are enough"
                )
    if wrong:
        found["traffic"] = "it must return what one process does first"
    return found


def _call(function: Any, case: Case) -> tuple[list[Any], int] | str:
    """What the program returned, as tensors, and how many numbers it handed to collectives; or what stopped it."""
    from shardlab.classroom.rank_cases import CallLog

    try:
        with CallLog() as log:
            value = function(*case.arguments)
    except NotImplementedError as error:
        return str(NotWritten.from_error(error))
    except Exception as error:
        return f"it stopped with {describe(error)}"
    tensors = _tensors(value, len(case.wanted))
    if tensors is None:
        wanted = "1 value" if len(case.wanted) == 1 else f"{len(case.wanted)} values"
        return f"it must return {wanted}, not {reprlib.repr(value)}"
    return tensors, sum(call.numbers for call in log.calls)


def _tensors(value: Any, n_values: int) -> list[Any] | None:
    import torch

    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) != n_values:
        return None
    try:
        return [torch.as_tensor(one).detach().float() for one in values]
    except (TypeError, ValueError, RuntimeError):
        return None


def _result_fault(made: list[Any], case: Case) -> str | None:
    for name, ours, wanted in zip(case.names, made, case.wanted, strict=True):
        if ours.numel() != wanted.numel() or (wanted.dim() and ours.shape != wanted.shape):
            return f"{name} has the shape {tuple(ours.shape)}, not {tuple(wanted.shape)}"
        if not wanted.numel():
            continue
        ours = ours.reshape(wanted.shape)
        gap = float((ours - wanted).abs().max() / max(float(wanted.abs().max()), 1e-12))
        # NaN is not within anything.
        if not gap <= SAME:
            if wanted.dim() == 0:
                return f"{name} is {float(ours):.6g}; on one process it is {float(wanted):.6g}"
            place = int((ours - wanted).abs().nan_to_num(math.inf).argmax())
            if place < 3:
                return f"{name}: it starts with {_some(ours)}; on one process with {_some(wanted)}"
            mine, whole = (float(one.flatten()[place]) for one in (ours, wanted))
            return f"{name}: number {place} is {mine:.6g}; on one process it is {whole:.6g}"
    return None


def _some(tensor: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in tensor.flatten()[:3].tolist())


# ---- task 5: which check catches which fault? ----

CHECKS = ("one rank", "ranks agree", "even", "awkward")
_FOUND = "_as_found"
_SET_SIZES = (1000, 1001, 1002, 1003)
_REPLICATED = (0.0, 0.1, 0.5)
_CURVE = (1, 5, 20, 60)


@dataclass(frozen=True)
class Evidence:
    """What the programs as found show on four ranks.

    Attributes:
        caught: for each check, the programs whose fault it catches.
        accuracy: pairs of what was reported and what is true, for each of the set's sizes.
        norm: reported over true norm, for each share of the squared norm that is replicated.
        losses: pairs of a training run's loss as found and on one process, at some steps.
        fault: None, or what stopped the run.
    """

    caught: dict[str, set[str]]
    accuracy: list[tuple[float, float]]
    norm: list[float]
    losses: list[tuple[float, float]]
    fault: str | None = None


def evidence(functions: Sequence[Callable[..., Any]]) -> Evidence:
    """Try the programs as found, all five, on four ranks with every check. The same programs are tried once."""
    return _evidence(tuple(functions))


@functools.lru_cache(maxsize=4)
def _evidence(functions: tuple[Callable[..., Any], ...]) -> Evidence:
    outcome = try_on_ranks(f"{__name__}:evidence_trial", functions, 4, time_limit_s=45.0)
    if outcome.fault:
        return Evidence({}, [], [], [], outcome.fault)
    caught = {
        check: {name for name in PROGRAMS if any(name in rank["caught"][check] for rank in outcome.results)}
        for check in CHECKS
    }
    first = outcome.results[0]
    return Evidence(
        caught,
        [(ours, true) for ours, true in first["accuracy"]],
        first["norm"],
        [(ours, true) for ours, true in first["losses"]],
    )


def check_fault(functions: Sequence[Callable[..., Any]], check: str, answers: Any) -> str | None:
    """What is wrong with the answer for one check, or None; the key is what the check really catches."""
    given = entry("caught", "checks to sets of programs", answers, check)
    if given.fault:
        return given.fault
    answer = given.value
    if isinstance(answer, str) or not isinstance(answer, (set, frozenset, list, tuple)):
        return f"caught[{check!r}] must be a set of programs, not {reprlib.repr(answer)}"
    unknown = [name for name in answer if name not in PROGRAMS]
    if unknown:
        return f"caught[{check!r}] must hold names among {', '.join(PROGRAMS)}, not {unknown[0]!r}"
    seen = evidence(functions)
    if seen.fault:
        return seen.fault
    key = seen.caught[check]
    if set(answer) == key:
        return None
    for name in PROGRAMS:
        if name in set(answer) - key:
            return f"{check!r} was run on {name}{_FOUND}, and it passes: why does its fault not show there?"
    missed = next(name for name in PROGRAMS if name in key - set(answer))
    return f"{check!r} was run on {missed}{_FOUND}, and it fails: what is different there?"


def evidence_table(functions: Sequence[Callable[..., Any]]) -> str:
    """How large the faults are, measured on four ranks."""
    seen = evidence(functions)
    if seen.fault:
        return seen.fault
    sets = [["samples in the set", "accuracy as found", "on one process"]]
    for size, (ours, true) in zip(_SET_SIZES, seen.accuracy, strict=True):
        sets.append([str(size), f"{ours:.6f}", f"{true:.6f}"])
    norms = [["replicated share of the squared norm", "norm as found / on one process"]]
    norms += [
        [f"{100 * share:.0f} %", f"{ratio:.4f}"] for share, ratio in zip(_REPLICATED, seen.norm, strict=True)
    ]
    losses = [["training step", "loss with average_gradients as found", "on one process"]]
    losses += [
        [str(step), f"{ours:.4f}", f"{true:.4f}"]
        for step, (ours, true) in zip(_CURVE, seen.losses, strict=True)
    ]
    return "\n\n".join(text_table(rows) for rows in (sets, norms, losses))


def evidence_trial(ctx: Context, functions: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """One rank of :func:`evidence`."""
    programs = {name: functions[name + _FOUND] for name in PROGRAMS}
    caught: dict[str, list[str]] = {check: [] for check in CHECKS}
    for name, program in programs.items():
        alone = agree = even = awkward = True
        for seed in _SEEDS:
            for kind in ("even", "awkward"):
                with _one_rank():
                    one = CASES[name](0, 1, _Draw(seed), kind)
                    alone = alone and _is_right(program, one)[0]
                case = CASES[name](ctx.rank, ctx.ranks, _Draw(seed), kind)
                right, made = _is_right(program, case)
                everyone = ctx.gather([made[place].tolist() for place in case.shared])
                agree = agree and all(other == everyone[0] for other in everyone)
                if kind == "even":
                    even = even and right
                awkward = awkward and right
        for check, passed in zip(CHECKS, (alone, agree, even, awkward), strict=True):
            if not passed:
                caught[check].append(name)
    return {
        "caught": caught,
        "accuracy": [_set_accuracy(ctx, programs["accuracy"], size) for size in _SET_SIZES],
        "norm": [_norm_ratio(ctx, programs["gradient_norm"], share) for share in _REPLICATED],
        "losses": _loss_curves(ctx, programs["average_gradients"]),
    }


def _is_right(program: Any, case: Case) -> tuple[bool, list[Any]]:
    made = _call(program, case)
    if isinstance(made, str):
        raise RuntimeError(f"the program as found must run: {made}")
    return _result_fault(made[0], case) is None, made[0]


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    """Let ``torch.distributed`` look like a run of one rank: a sum over one rank is what it was."""
    import torch.distributed as dist

    with (
        patch.object(dist, "all_reduce", lambda *_, **__: None),
        patch.object(dist, "get_rank", lambda *_: 0),
        patch.object(dist, "get_world_size", lambda *_: 1),
    ):
        yield


def _set_accuracy(ctx: Context, program: Any, size: int) -> tuple[float, float]:
    import torch

    # Sorted by difficulty, as validation sets often are: nine of ten are right, and the first ones all are.
    correct = [0.0 if place >= 0.9 * size else 1.0 for place in range(size)]
    places = range(ctx.rank, -(-size // ctx.ranks) * ctx.ranks, ctx.ranks)
    ours = program(torch.tensor([correct[place % size] for place in places]), size)
    return float(ours), sum(correct) / size


def _norm_ratio(ctx: Context, program: Any, share: float) -> float:
    import torch

    split = torch.full((25,), math.sqrt((1 - share) / (25 * ctx.ranks)))
    whole = torch.full((25,), math.sqrt(share / 25))
    return float(program([split], [whole]))


def _loss_curves(ctx: Context, program: Any) -> list[tuple[float, float]]:
    """Losses of the global batch while a small network trains: with the program's gradients, and on one process."""
    import torch
    from torch import nn

    draw = _Draw(7)
    x, noise = draw.normal(16 * ctx.ranks, 8), draw.normal(16 * ctx.ranks, 8)
    y = torch.tanh(x) + 0.1 * noise

    def train(average: bool) -> list[float]:
        torch.manual_seed(3)
        # Equal layers, so that a gradient fits wherever it lands.
        layers = [nn.Linear(8, 8, bias=False) for _ in range(3)]
        model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        mine = slice(16 * ctx.rank, 16 * (ctx.rank + 1)) if average else slice(None)
        losses = []
        for _ in range(max(_CURVE)):
            with torch.no_grad():
                losses.append(float((model(x) - y).square().mean()))
            gradients = torch.autograd.grad(
                (model(x[mine]) - y[mine]).square().mean(), list(model.parameters())
            )
            means = program(list(gradients)) if average else gradients
            with torch.no_grad():
                for parameter, mean in zip(model.parameters(), means, strict=True):
                    parameter -= 0.3 * mean
        return losses

    found, whole = train(True), train(False)
    return [(found[step - 1], whole[step - 1]) for step in _CURVE]
