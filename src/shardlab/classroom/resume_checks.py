"""Checks of assignment 10, "come back as the same run".

The training run itself is a class in the notebook, ``Training``. Here it is interrupted: pieces are left out, states
are put back and compared, the power of a small disk fails at every operation. Without torch the module can be imported,
and tasks 1, 4 and 5 checked.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import reprlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shardlab.classroom.attempt import Carry, attempt, first_fault, name_of, silent
from shardlab.classroom.by_hand import ByHand, entry
from shardlab.classroom.network import NotWritten, describe, text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.torch_ranks import RanksOutcome, try_on_ranks
from shardlab.labs.rank import Context
from shardlab.models.checkpoint import (
    CONTENTS,
    checkpoint_bytes,
    checkpoint_cost,
    cluster_mtbf_s,
    transfer_time_s,
    young_interval_s,
)
from shardlab.units import GB, format_bytes, format_time

with contextlib.suppress(ImportError):
    # An optimizer's first step would import it, and it wraps torch's functions, torch.manual_seed among them: while
    # work is graded that would look like tampering.
    import torch._dynamo  # noqa: F401

ASSIGNMENT = "10_resume"

# ---- task 1: by hand ----


@dataclass(frozen=True)
class ResumeNumbers(ByHand):
    """One student's numbers for task 1.

    Attributes:
        n_params: parameters of the model.
        contents: what is saved of each, a name of :data:`shardlab.models.checkpoint.CONTENTS`.
        storage: bandwidth of the storage for all ranks together, bytes/s.
        n_gpus: GPUs of the job; any of them stops it.
        gpu_mtbf_s: mean time between failures of one GPU, seconds.
        restart_s: from a failure until training goes on, seconds.
    """

    n_params: float
    contents: str
    storage: float
    n_gpus: int
    gpu_mtbf_s: float
    restart_s: float

    @property
    def bytes_per_param(self) -> float:
        """Bytes that are saved of each parameter."""
        return next(width for name, width, _ in CONTENTS if name == self.contents)

    @property
    def write_s(self) -> float:
        """Seconds that one checkpoint stops training."""
        return transfer_time_s(self.key("size_bytes"), self.storage)

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        saved = {
            "adam-12": "fp32 parameters and both of Adam's fp32 moments",
            "adam-14": "16-bit parameters, fp32 parameters, and both of Adam's fp32 moments",
        }
        return [
            f"Ψ  {self.n_params / 1e9:g} billion parameters",
            f"   saved: {saved[self.contents]}",
            f"B  {self.storage / GB:g} GB/s, the storage for all ranks together; training stops meanwhile",
            f"n  {self.n_gpus} GPUs",
            f"M₁ {self.gpu_mtbf_s / 86400:g} days: a GPU fails once in that time, on average",
            f"R  {self.restart_s:g} s from a failure until training goes on",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        if quantity == "size_bytes":
            return checkpoint_bytes(self.n_params, self.contents)
        if quantity == "mtbf_s":
            return cluster_mtbf_s(self.gpu_mtbf_s, self.n_gpus)
        if quantity == "interval_s":
            return young_interval_s(self.write_s, self.key("mtbf_s"))
        if quantity == "lost_fraction":
            interval = self.key("interval_s")
            cost = checkpoint_cost(interval, self.write_s, self.key("mtbf_s"), self.restart_s)
            return cost.first_order_waste
        raise ValueError(
            f"quantity must be one of size_bytes, mtbf_s, interval_s, lost_fraction, not {quantity!r}"
        )

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        key, mtbf = self.key(quantity), self.key("mtbf_s")
        write, interval = self.write_s, self.key("interval_s")
        if quantity == "size_bytes":
            return [
                (self.n_params * 2, "those are 16-bit parameters alone; what else is saved?"),
                (self.n_params * 4, "those are the fp32 parameters alone; what else is saved?"),
                (self.n_params * 8, "that leaves something out; Adam has two moments, 4 bytes each"),
                (self.n_params * 16, "nobody saves gradients: between two steps there are none"),
                (
                    self.n_params * (14 if self.contents == "adam-12" else 12),
                    "read again whether 16-bit parameters are saved beside the fp32 ones",
                ),
                (key / 1e9, "that is in GB; the answer is in bytes"),
                (key * 8, "those are bits; the answer is in bytes"),
            ]
        if quantity == "mtbf_s":
            return [
                (self.gpu_mtbf_s, "that is one GPU; any of them stops the job"),
                (self.gpu_mtbf_s * self.n_gpus, "more GPUs fail more often, not more rarely"),
                (key / 3600, "that is in hours; the answer is in seconds"),
                (key / 86400, "that is in days; the answer is in seconds"),
            ]
        if quantity == "interval_s":
            return [
                (math.sqrt(write * mtbf), "there is a 2 under the root: half an interval is lost"),
                (2 * math.sqrt(write * mtbf), "the 2 belongs under the root"),
                (
                    math.sqrt(2 * write * self.gpu_mtbf_s),
                    "M is the job's time between failures, not one GPU's",
                ),
                (math.sqrt(2 * self.restart_s * mtbf), "δ is the time of a write; the restart is R"),
                (key / 60, "that is in minutes; the answer is in seconds"),
            ]
        if quantity == "lost_fraction":
            parts = write / interval, interval / 2 / mtbf, self.restart_s / mtbf
            return [
                (100 * key, "that is in per cent; the answer is a fraction"),
                (parts[0], "that is the writing alone; what does a failure cost?"),
                (parts[0] + parts[1], "that leaves out the restart"),
                (parts[1] + parts[2], "that leaves out the writing"),
                (
                    parts[0] + 2 * parts[1] + parts[2],
                    "a failure loses half an interval on average, not a whole one",
                ),
                (1 - key, "that is the part that is not lost"),
            ]
        return []


def by_hand_numbers(student: str) -> ResumeNumbers:
    """A student's numbers for task 1: a write of some seconds to a minute, hours between failures."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")

    def propose() -> ResumeNumbers:
        return ResumeNumbers(
            student=name,
            complaint=complaint,
            n_params=draw.pick((7, 8, 13, 20, 30, 34, 40, 65, 70, 110, 180, 405)) * 1e9,
            contents=draw.pick(("adam-12", "adam-14")),
            storage=draw.pick((40, 50, 80, 100, 125, 160, 200)) * GB,
            n_gpus=draw.pick((512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)),
            gpu_mtbf_s=draw.pick((1200, 1500, 1800, 2000, 2400, 2500, 3000)) * 86400.0,
            restart_s=float(draw.pick((120, 180, 240, 300, 400, 480, 600, 900))),
        )

    # At one per cent lost, "per cent" and "what is not lost" would be the same number.
    drawn: ResumeNumbers = draw.until(propose, lambda one: one.key("lost_fraction") > 0.012)
    return drawn


# ---- task 2: which piece is missing? ----

PIECES = ("optimizer", "scheduler", "random state", "data position")
RUNS = "ABCD"
STEPS_AFTER = 10


@dataclass(frozen=True)
class ResumedRun:
    """What the log of a resumed run shows, against the uninterrupted one.

    Attributes:
        first_loss: relative gap of the first loss, dropout on.
        still_loss: relative gap of the loss of the same batch before the step, dropout off.
        update: length of the first change of the parameters, over that of the uninterrupted run.
        later: relative gap of all parameters after :data:`STEPS_AFTER` steps.
    """

    first_loss: float
    still_loss: float
    update: float
    later: float


@dataclass(frozen=True)
class MissingPieces:
    """One student's four resumed runs, each without one piece.

    Attributes:
        seed: of the training run.
        steps_before: steps until the checkpoint, in the middle of an epoch and after the warm-up.
        order: what runs A, B, C and D lack.
        complaint: as in :class:`~shardlab.classroom.by_hand.ByHand`.
    """

    seed: int
    steps_before: int
    order: tuple[str, ...]
    complaint: str | None

    def log(self, training: Callable[..., Any], run: str) -> ResumedRun:
        """What run ``"A"`` to ``"D"`` shows."""
        return _resumed_without(training, self.seed, self.steps_before, self.order[RUNS.index(run)])

    def table(self, training: Callable[..., Any]) -> str:
        """The logs of all four runs, side by side."""
        rows = [
            [
                "run",
                "1st loss off by",
                "same batch, no dropout",
                "1st update",
                f"parameters after {STEPS_AFTER}",
            ]
        ]
        for run in RUNS:
            seen = self.log(training, run)
            rows.append(
                [
                    run,
                    _percent(seen.first_loss),
                    _percent(seen.still_loss),
                    f"× {seen.update:.3f}",
                    _percent(seen.later),
                ]
            )
        return f"checkpoint after {self.steps_before} steps; each run against the uninterrupted one\n{text_table(rows)}"

    def fault(self, run: str, answers: Any) -> str | None:
        """What is wrong with the answer for one run, or None."""
        answer = entry("missing", "runs to pieces", answers, run, PIECES)
        if answer.fault or answer.value == self.order[RUNS.index(run)]:
            return answer.fault
        return self.complaint or f"run {run} does not lack the {answer.value}: {_EXPECTED[answer.value]}"


_EXPECTED = {
    "optimizer": "without the moments the first loss would be exact, and the first update another one, longer here",
    "scheduler": "without it the first loss would be exact, and the first update shorter by just the ratio of the "
    "two learning rates",
    "random state": "without it the first loss would be off, but not that of the same batch with dropout off",
    "data position": "without it the batch would be another one, so both losses would be off",
}


def missing_pieces(student: str) -> MissingPieces:
    """A student's four runs."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "missing pieces")
    return MissingPieces(
        seed=1 + draw.below(10_000),
        # Twelve steps are an epoch: from the fourth to the ninth of it.
        steps_before=12 * draw.pick((2, 3, 4)) + 3 + draw.below(6),
        order=tuple(draw.shuffled(PIECES)),
        complaint=complaint,
    )


def forget(run: Any, piece: str) -> None:
    """Set one piece of a training run back to how a new process has it."""
    import torch

    if piece == "optimizer":
        run.optimizer.state.clear()
    elif piece == "scheduler":
        factor = run.scheduler.lr_lambdas[0]
        run.scheduler.last_epoch = 0
        for group, base in zip(run.optimizer.param_groups, run.scheduler.base_lrs, strict=True):
            group["lr"] = base * factor(0)
    elif piece == "random state":
        torch.manual_seed(987_654_321)
    elif piece == "data position":
        run.epoch, run.offset = 0, 0
    elif piece:
        raise ValueError(f"piece must be one of {PIECES} or '', not {piece!r}")


def _resumed_without(training: Callable[..., Any], seed: int, steps_before: int, piece: str) -> ResumedRun:
    whole, other = [_trail(training, seed, steps_before, forgotten) for forgotten in ("", piece)]
    return ResumedRun(
        first_loss=abs(other.first_loss / whole.first_loss - 1),
        still_loss=abs(other.still_loss / whole.still_loss - 1),
        update=float(other.update / whole.update),
        later=float((other.parameters - whole.parameters).norm() / whole.parameters.norm()),
    )


@dataclass(frozen=True)
class _Trail:
    first_loss: float
    still_loss: float
    update: float
    parameters: Any


def _trail(training: Callable[..., Any], seed: int, steps_before: int, forgotten: str) -> _Trail:
    # A whole run from its start: torch's random state belongs to the process, and this way it is the run's own.
    run = training(seed)
    for _ in range(steps_before):
        run.step()
    forget(run, forgotten)
    still = _loss_without_dropout(run)
    before = _vector(run)
    first = run.step()
    update = float((_vector(run) - before).norm())
    for _ in range(STEPS_AFTER - 1):
        run.step()
    return _Trail(first, still, update, _vector(run))


def _loss_without_dropout(run: Any) -> float:
    """The next batch's loss with dropout off; the run stays where it is."""
    import torch
    import torch.nn.functional as F

    position = run.epoch, run.offset
    x, y = run.next_batch()
    run.epoch, run.offset = position
    run.model.eval()
    with torch.no_grad():
        loss = float(F.cross_entropy(run.model(x), y))
    run.model.train()
    return loss


def _vector(run: Any) -> Any:
    """All parameters as one vector, a copy."""
    import torch

    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.2g} %"


# ---- task 3: state_of and put_back, save_job and load_job ----

STOPPED_AT = 17
GOES_ON = 12
# The interrupted run and the process that comes back start from different seeds, as in real life.
_SEEDS = 3, 8


@dataclass(frozen=True)
class ResumeTrial:
    """Faults of task 3, None where there is none.

    Attributes:
        optimizer, scheduler, random, position: of the pieces right after ``put_back``.
        same: of the steps after it.
        snapshot: whether the state stays what it was when training goes on.
        plain: whether it is made of what ``torch.load`` reads by default.
        ranks: of two ranks that come back.
        layout: whether a checkpoint of two ranks is refused on one.
    """

    optimizer: str | None
    scheduler: str | None
    random: str | None
    position: str | None
    same: str | None
    snapshot: str | None
    plain: str | None
    ranks: str | None
    layout: str | None


def try_resume(
    training: Callable[..., Any],
    state_of: Callable[..., Any],
    put_back: Callable[..., Any],
    save_job: Callable[..., Any],
    load_job: Callable[..., Any],
    carry: Carry | None = None,
) -> ResumeTrial:
    """Interrupt ``training`` on one rank and on two, and compare what comes back.

    ``carry`` may hold working versions of ``state_of`` and ``put_back``; the two ranks are tried with the student's
    own first, and with these if that has faults.

    Raises:
        NotWritten: ``state_of`` or ``put_back`` isn't written yet.
        shardlab.classroom.NeedsTorch: PyTorch isn't installed.
    """
    own = [training, state_of, put_back, save_job, load_job]
    names = ["training", "state_of", "put_back", "save_job", "load_job"]
    spare = list((carry or {}).values())
    with tempfile.TemporaryDirectory() as folder:
        outcome = try_on_ranks(
            f"{__name__}:resume_trial",
            [*own, *spare],
            2,
            {
                "names": dict(zip(names, map(name_of, own), strict=True)),
                "carry": {name: name_of(function) for name, function in (carry or {}).items()},
                "folder": folder,
            },
            time_limit_s=45.0,
        )
    return _resume_trial_of(outcome)


def _resume_trial_of(outcome: RanksOutcome) -> ResumeTrial:
    fields = list(ResumeTrial.__dataclass_fields__)
    if outcome.fault:
        return ResumeTrial(**dict.fromkeys(fields, outcome.fault))
    return ResumeTrial(
        **{field: first_fault(rank.get(field) for rank in outcome.results) for field in fields}
    )


_ALONE = ("optimizer", "scheduler", "random", "position", "same", "snapshot", "plain")


def resume_trial(ctx: Context, functions: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """One rank of :func:`try_resume`: rank 0 tries one process alone, then both come back together."""
    mine = {name: functions[called] for name, called in params["names"].items()}
    found: dict[str, Any] = {}
    missing = None
    if ctx.rank == 0:
        try:
            found |= _one_process(mine["training"], mine["state_of"], mine["put_back"])
        except NotImplementedError as error:
            missing = error
        except Exception as error:
            found |= dict.fromkeys(_ALONE, describe(error))
    # The other rank must not wait for one that has nothing to try.
    if any(ctx.gather(missing is not None)):
        if missing is not None:
            raise missing
        return found
    own = _two_ranks(ctx, mine, Path(params["folder"]) / "own")
    if params["carry"] and any(any(faults.values()) for faults in ctx.gather(own)):
        where = mine["save_job"].__globals__
        where |= {name: functions[called] for name, called in params["carry"].items()}
        right = _two_ranks(ctx, mine, Path(params["folder"]) / "carried")
        faulty = [
            sum(fault is not None for faults in ctx.gather(one) for fault in faults.values())
            for one in (own, right)
        ]
        own = right if faulty[1] < faulty[0] else own
    return found | own


def _one_process(training: Any, state_of: Any, put_back: Any) -> dict[str, str | None]:
    import torch

    run = training(_SEEDS[0])
    for _ in range(STOPPED_AT):
        run.step()
    random = torch.get_rng_state()
    state = state_of(run)
    if state is None:
        fault = f"{name_of(state_of)} returned None: return the state"
        return dict.fromkeys(_ALONE, fault)
    written = _through_a_file(state)
    wanted = _read(written)
    moments, lr = _nested_copy(run.optimizer.state_dict()["state"]), run.optimizer.param_groups[0]["lr"]
    at, position = run.scheduler.last_epoch, _position(run)
    torch.set_rng_state(random)
    losses = [run.step() for _ in range(GOES_ON)]
    end = _vector(run)
    snapshot = _same_fault(state, wanted, "the state")
    faults: dict[str, str | None] = {
        "snapshot": snapshot
        and f"{snapshot}: it changed while training went on after {name_of(state_of)}. Copy what is in it",
        "plain": _plain_fault(written),
    }
    back = training(_SEEDS[1])
    for _ in range(2):
        back.step()
    put_back(back, _read(written))
    faults["optimizer"] = _optimizer_fault(back, moments, lr)
    if back.scheduler.last_epoch != at:
        faults["scheduler"] = (
            f"the schedule goes on from its step {back.scheduler.last_epoch}, not from {at}: other learning rates"
        )
    if not torch.equal(torch.get_rng_state(), random):
        faults["random"] = "torch's random state is not the saved one: dropout draws other masks"
    if _position(back) != position:
        faults["position"] = (
            f"order_seed, epoch and offset are {_position(back)}, not {position}: the next batches are other samples"
        )
    again = [back.step() for _ in range(GOES_ON)]
    faults["same"] = _steps_fault(again, losses, _vector(back), end)
    return faults


def _position(run: Any) -> tuple[int, int, int]:
    return run.order_seed, run.epoch, run.offset


def _optimizer_fault(run: Any, moments: Any, lr: float) -> str | None:
    have = run.optimizer.state_dict()["state"]
    if not have:
        return "the optimizer comes back without its moments and its step count"
    fault = _same_fault(have, moments, "the optimizer's state")
    if fault is None and run.optimizer.param_groups[0]["lr"] != lr:
        return f"the optimizer's learning rate is {run.optimizer.param_groups[0]['lr']:.6g}, not {lr:.6g}"
    return fault and f"{fault}: it isn't what was saved"


def _steps_fault(ours: list[float], theirs: list[float], vector: Any, end: Any) -> str | None:
    import torch

    for number, (mine, whole) in enumerate(zip(ours, theirs, strict=True), 1):
        if mine != whole:
            return f"loss {number} after the resume is {mine:.8g}, in the uninterrupted run {whole:.8g}"
    if not torch.equal(vector, end):
        return f"all {len(ours)} losses agree, but the parameters at the end don't"
    return None


def _two_ranks(ctx: Context, mine: dict[str, Any], folder: Path) -> dict[str, str | None]:
    """Both ranks save, come back from other seeds, and go on; every rank meets every barrier, whatever happens."""
    import torch

    if ctx.rank == 0:
        folder.mkdir(parents=True)
    ctx.barrier()
    run = mine["training"](_SEEDS[0], ctx.rank, ctx.ranks)
    for _ in range(STOPPED_AT):
        run.step()
    random = torch.get_rng_state()
    fault = _tried(mine["save_job"], run, folder)
    randoms = ctx.gather(random.tolist())
    torch.set_rng_state(random)
    losses, end = [run.step() for _ in range(GOES_ON)], _vector(run)
    back = mine["training"](_SEEDS[1], ctx.rank, ctx.ranks)
    fault = fault or _tried(mine["load_job"], back, folder)
    now = torch.get_rng_state().tolist()
    # One that failed must not leave the other waiting in a step.
    if any(ctx.gather(fault)):
        return {"ranks": fault, "layout": fault}
    again = [back.step() for _ in range(GOES_ON)]
    stray = None
    if now != randoms[ctx.rank]:
        whose = [f"rank {rank}'s" for rank, state in enumerate(randoms) if state == now]
        stray = f"rank {ctx.rank} came back with {whose[0] if whose else 'another'} random state, not its own"
    # One rank's wrong masks make every rank's losses wrong: only the cause is worth saying.
    if any(ctx.gather(stray)):
        fault = stray
    else:
        fault = _steps_fault(again, losses, _vector(back), end)
        fault = fault and f"on rank {ctx.rank} of {ctx.ranks}: {fault}"
    ctx.barrier()
    layout = None
    if ctx.rank == 0:
        layout = _layout_fault(mine["load_job"], mine["training"](_SEEDS[1]), folder)
    ctx.barrier()
    return {"ranks": fault, "layout": layout}


def _tried(function: Any, run: Any, folder: Path) -> str | None:
    try:
        function(run, folder)
    except NotImplementedError as error:
        return str(NotWritten.from_error(error))
    except Exception as error:
        return f"{name_of(function)} on rank {run.rank} stopped with {describe(error)}"
    return None


def _layout_fault(load_job: Any, lone: Any, folder: Path) -> str | None:
    try:
        load_job(lone, folder)
    except ValueError:
        return None
    except Exception as error:
        return f"a checkpoint of 2 ranks on 1 must be refused with a ValueError, not with {describe(error)}"
    return "a checkpoint of 2 ranks was loaded on 1 rank without a word"


def _through_a_file(state: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _read(written: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(written), weights_only=False)


def _plain_fault(written: bytes) -> str | None:
    import torch

    try:
        torch.load(io.BytesIO(written))
    except Exception as error:
        named = [
            line.strip() for line in str(error).splitlines() if "Unsupported" in line or "GLOBAL" in line
        ]
        return (
            "torch.load refuses the state by default: put tensors, numbers, text, lists and dicts into it, no "
            f"objects{': ' + named[0][:150] if named else ''}"
        )
    return None


def _nested_copy(value: Any) -> Any:
    import copy

    return copy.deepcopy(value)


def _same_fault(have: Any, wanted: Any, where: str) -> str | None:
    """Where two nested states differ first, or None if they are equal bit by bit."""
    import torch

    if isinstance(wanted, torch.Tensor):
        alike = isinstance(have, torch.Tensor) and have.shape == wanted.shape and torch.equal(have, wanted)
        return None if alike else f"{where} differs"
    if isinstance(wanted, dict):
        if not isinstance(have, dict) or have.keys() != wanted.keys():
            return f"{where} has other keys"
        return first_fault(_same_fault(have[key], wanted[key], f"{where}[{key!r}]") for key in wanted)
    if isinstance(wanted, (list, tuple)):
        if not isinstance(have, (list, tuple)) or len(have) != len(wanted):
            return f"{where} has another length"
        return first_fault(
            _same_fault(one, other, f"{where}[{index}]")
            for index, (one, other) in enumerate(zip(have, wanted, strict=True))
        )
    if isinstance(wanted, (bool, int, float, str, bytes)) or wanted is None:
        return None if have == wanted else f"{where} is {reprlib.repr(have)}, not {reprlib.repr(wanted)}"
    # An object of the student's own: what is inside it can't be told.
    return None


# ---- task 4: whole, or not there ----


class PowerCut(BaseException):
    """The power failed. No Exception, so that no ``except Exception`` of a program survives it."""


class Disk:
    """A small disk, and a machine whose power can fail at any operation.

    A file is a name and a text. What is written may still be in the machine's memory: it is safe after ``flush``.
    A rename is atomic, and safe at once.
    """

    def __init__(self, files: dict[str, str] | None = None, dies_at: int | None = None) -> None:
        self._files = dict(files or {})
        self._unsafe: set[str] = set()
        self._dies_at = dies_at
        self.operations: list[str] = []

    def write(self, name: str, text: str) -> None:
        """Write a whole file anew. A power cut in the middle leaves a part of the text."""
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"write takes a name and a text, not {name!r} and {reprlib.repr(text)}")
        dying = self._begin(f"write({name!r}, …)")
        self._files[name] = text[: len(text) // 2] if dying else text
        self._unsafe.add(name)
        self._end(dying)

    def flush(self, name: str) -> None:
        """Wait until a file is safe on the disk."""
        dying = self._begin(f"flush({name!r})")
        self._known(name)
        if not dying:
            self._unsafe.discard(name)
        self._end(dying)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a file that had that name is gone. All or nothing."""
        dying = self._begin(f"rename({old!r}, {new!r})")
        self._known(old)
        if not dying and old != new:
            self._files[new] = self._files.pop(old)
            self._unsafe.discard(new)
            if old in self._unsafe:
                self._unsafe.remove(old)
                self._unsafe.add(new)
        self._end(dying)

    def delete(self, name: str) -> None:
        """Remove a file."""
        dying = self._begin(f"delete({name!r})")
        self._known(name)
        if not dying:
            del self._files[name]
            self._unsafe.discard(name)
        self._end(dying)

    def read(self, name: str) -> str:
        """A file's text.

        Raises:
            FileNotFoundError: there is no such file.
        """
        self._known(name)
        return self._files[name]

    def names(self) -> list[str]:
        """The names of all files, sorted."""
        return sorted(self._files)

    def after_a_power_cut(self, lucky: bool) -> Disk:
        """What the machine finds when it comes back: of unsafe files all (``lucky``) or the first half."""
        return Disk(
            {
                name: text if lucky or name not in self._unsafe else text[: len(text) // 2]
                for name, text in self._files.items()
            }
        )

    def dying_at(self, operation: int) -> Disk:
        """A copy whose power fails in the operation with this number, from 0."""
        return Disk(self._files, dies_at=operation)

    def _known(self, name: str) -> None:
        if name not in self._files:
            raise FileNotFoundError(f"no file {name!r}; there are {self.names()}")

    def _begin(self, words: str) -> bool:
        if self._dies_at is not None and len(self.operations) > self._dies_at:
            raise PowerCut
        self.operations.append(words)
        return len(self.operations) - 1 == self._dies_at

    def _end(self, dying: bool) -> None:
        if dying:
            raise PowerCut


Checkpoint = tuple[int, list[str]]

_OLD: Checkpoint = (100, ["rank 0 at step 100", "rank 1 at step 100", "rank 2 at step 100"])
_NEW: Checkpoint = (200, ["rank 0 at step 200, longer", "rank 1 at step 200, longer", "rank 2, longer"])
_NEXT: Checkpoint = (300, ["rank 0 of two at step 300", "rank 1 of two at step 300"])


@dataclass(frozen=True)
class SaveTrial:
    """Faults of task 4, None where there is none.

    Attributes:
        plain: without any power cut.
        whole: with a power cut in every operation of the second save.
        safe: with a power cut after it.
        first: with a power cut in every operation of the first save of all.
        later: of the save after such a power cut, with another power cut in every operation of it.
    """

    plain: str | None
    whole: str | None
    safe: str | None
    first: str | None
    later: str | None


def try_save(save: Callable[..., Any], load: Callable[..., Any]) -> SaveTrial:
    """Try ``save(disk, step, shards)`` and ``load(disk)`` with a power cut at every operation.

    Raises:
        NotWritten: one of them isn't written yet.
    """
    plain = first_fault(_plain_saves(save, load))
    if plain is not None:
        words = "save and load must work without a power cut first"
        return SaveTrial(plain, words, words, words, words)
    return SaveTrial(
        plain=None,
        whole=first_fault(_cuts(save, load, _disk_with(save, _OLD), _OLD, _NEW)),
        safe=first_fault(_safe(save, load)),
        first=first_fault(_cuts(save, load, Disk(), None, _NEW)),
        later=first_fault(_later(save, load)),
    )


def _plain_saves(save: Callable[..., Any], load: Callable[..., Any]) -> Iterator[str | None]:
    disk = Disk()
    for checkpoint in (_OLD, _NEW, _NEXT):
        yield _saved(save, disk, checkpoint)
        yield _loads_fault(load, disk, [checkpoint], f"after a save of step {checkpoint[0]}")
    yield _loads_fault(load, Disk(), [None], "on an empty disk")


def _disk_with(save: Callable[..., Any], checkpoint: Checkpoint) -> Disk:
    """A disk with one checkpoint, everything safe."""
    disk = Disk()
    _saved(save, disk, checkpoint)
    return disk.after_a_power_cut(lucky=True)


def _cuts(
    save: Callable[..., Any],
    load: Callable[..., Any],
    start: Disk,
    old: Checkpoint | None,
    new: Checkpoint,
) -> Iterator[str | None]:
    """A power cut in each operation of one save: the old checkpoint or the new one must be there."""
    for disk, where in _interrupted(save, start, new):
        for lucky in (False, True):
            yield _loads_fault(load, disk.after_a_power_cut(lucky), [old, new], where)


def _interrupted(save: Callable[..., Any], start: Disk, new: Checkpoint) -> Iterator[tuple[Disk, str]]:
    """The disk after a power cut in operation 0, 1, … of a save, until the save has no more operations."""
    # Far more than a save needs; one without end must not keep the check.
    for number in range(60):
        disk = start.dying_at(number)
        _saved(save, disk, new)
        if len(disk.operations) <= number:
            return
        yield (
            disk,
            f"the power fails in {disk.operations[number]}, operation {number + 1} of the save of step {new[0]}",
        )


def _safe(save: Callable[..., Any], load: Callable[..., Any]) -> Iterator[str | None]:
    for start, new in ((_disk_with(save, _OLD), _NEW), (Disk(), _OLD)):
        _saved(save, start, new)
        where = f"the power fails right after the save of step {new[0]} has returned"
        yield _loads_fault(load, start.after_a_power_cut(lucky=False), [new], where)


def _later(save: Callable[..., Any], load: Callable[..., Any]) -> Iterator[str | None]:
    for first, _ in _interrupted(save, _disk_with(save, _OLD), _NEW):
        start = first.after_a_power_cut(lucky=False)
        found = _load(load, start)
        old = found if isinstance(found, tuple) else None
        yield from _cuts(save, load, start, old, _NEXT)
        _saved(save, start, _NEXT)
        yield _loads_fault(
            load, start, [_NEXT], "after a power cut, and then a save of step 300 with two shards"
        )


def _saved(save: Callable[..., Any], disk: Disk, checkpoint: Checkpoint) -> str | None:
    step, shards = checkpoint
    try:
        with silent():
            save(disk, step, list(shards))
    except PowerCut:
        return None
    except NotImplementedError as error:
        raise NotWritten.from_error(error) from None
    except Exception as error:
        return f"{name_of(save)} of step {step} stopped with {describe(error)}"
    return None


def _load(load: Callable[..., Any], disk: Disk) -> Any:
    """What ``load`` returns, as (step, shards) or None; otherwise words about it."""
    answer = attempt(load, disk)
    if answer.fault:
        return answer.fault
    found = answer.value
    if found is None:
        return None
    try:
        step, shards = found
        return int(step), [str(shard) for shard in shards]
    except (TypeError, ValueError):
        return f"{name_of(load)} must return (step, shards) or None, not {reprlib.repr(found)}"


def _loads_fault(
    load: Callable[..., Any], disk: Disk, allowed: Sequence[Checkpoint | None], where: str
) -> str | None:
    found = _load(load, disk)
    if isinstance(found, str):
        return f"{where}: {found}"
    if found in allowed:
        return None
    wanted = " or ".join("nothing" if one is None else f"step {one[0]}, whole" for one in allowed)
    return f"{where}: {name_of(load)} finds {_found_words(found)}, where it should find {wanted}"


def _found_words(found: Checkpoint | None) -> str:
    if found is None:
        return "nothing"
    step, shards = found
    whole = {one[0]: one[1] for one in (_OLD, _NEW, _NEXT)}.get(step)
    if shards == whole:
        return f"step {step}"
    if whole is None or len(shards) != len(whole):
        return f"step {step} with {len(shards)} shards"
    broken = next(index for index, shard in enumerate(shards) if shard != whole[index])
    return f"step {step} with shard {broken} = {reprlib.repr(shards[broken])}"


# ---- task 5: other numbers of ranks ----

SHARDED = ("parameters", "exp_avg", "exp_avg_sq")
# What a padded place holds is nobody's business: a resharded state must not carry it along.
_PADDING = -7.0


def sharded_checkpoint(n_elements: int, n_ranks: int, step: int = 30) -> list[dict[str, Any]]:
    """A checkpoint of ``n_ranks`` ranks: padded, equal shards, the step, and each rank's random state."""
    size = -(-n_elements // n_ranks)
    ranks: list[dict[str, Any]] = []
    for rank in range(n_ranks):
        shards = {
            key: [
                1000.0 * place + element + 1 if element < n_elements else _PADDING
                for element in range(rank * size, (rank + 1) * size)
            ]
            for place, key in enumerate(SHARDED)
        }
        ranks.append({**shards, "step": step, "random": f"the random state of rank {rank} of {n_ranks}"})
    return ranks


def reshard_fault(
    function: Callable[..., Any], n_elements: int, old_ranks: int, new_ranks: int
) -> str | None:
    """What is wrong with the shards of ``function(checkpoint, n_elements, n_ranks)``, or None."""
    made = _resharded(function, n_elements, old_ranks, new_ranks)
    if isinstance(made, str):
        return made
    size = -(-n_elements // new_ranks)
    for rank, state in enumerate(made):
        for place, key in enumerate(SHARDED):
            wanted = [
                1000.0 * place + element + 1 if element < n_elements else 0.0
                for element in range(rank * size, (rank + 1) * size)
            ]
            have = state.get(key)
            if isinstance(have, (list, tuple)) and list(have) == wanted:
                continue
            words = f"{old_ranks} to {new_ranks} ranks, {n_elements} elements: {key} of new rank {rank} is {_short(have)}, not {_short(wanted)}"
            if isinstance(have, (list, tuple)) and _PADDING in have:
                words += f". {_PADDING:g} is what the old padding held: it is no element"
            return words
    return None


def beside_fault(function: Callable[..., Any]) -> str | None:
    """What is wrong with the step and the random states after resharding, or None."""
    made = _resharded(function, 8, 4, 2)
    if isinstance(made, str):
        return made
    for rank, state in enumerate(made):
        if state.get("step") != 30:
            return f"new rank {rank} has step {state.get('step')!r}, not 30: Adam's step count is the same on all ranks"
        if state.get("random", ...) is not None:
            return (
                f"new rank {rank} has random {_short(state.get('random'))}, not None: a random stream belongs to a "
                "rank of the old layout, and can't be cut"
            )
    return None


def _resharded(
    function: Callable[..., Any], n_elements: int, old_ranks: int, new_ranks: int
) -> list[dict[str, Any]] | str:
    given = sharded_checkpoint(n_elements, old_ranks)
    answer = attempt(function, given, n_elements, new_ranks)
    if answer.fault:
        return answer.fault
    made = answer.value
    if (
        not isinstance(made, (list, tuple))
        or len(made) != new_ranks
        or not all(isinstance(state, dict) for state in made)
    ):
        return f"{name_of(function)} must return a list of {new_ranks} dicts, one for each new rank, not {_short(made)}"
    return list(made)


def _short(value: Any) -> str:
    return reprlib.repr(value)


# ---- task 6: what there is to explain ----


def measured(
    training: Callable[..., Any],
    state_of: Callable[..., Any],
    widths: Sequence[int] = (32, 512, 8192, 65_536),
) -> str:
    """A table of real files: their size against 12 bytes a parameter, and how long writing and a step take here."""
    rows = [["parameters", "file", "bytes/parameter", "beyond 12", "write", "write + flush", "one step"]]
    for width in widths:
        run = training(1, width=width)
        run.step()
        step_s = min(_timed(run.step) for _ in range(3))
        n_params = sum(parameter.numel() for parameter in run.model.parameters())
        try:
            state = state_of(run)
        except NotImplementedError as error:
            raise NotWritten.from_error(error) from None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.pt"
            plain_s, safe_s = [
                min(_timed(partial(_write, path, state, flushed)) for _ in range(3))
                for flushed in (False, True)
            ]
            size = path.stat().st_size
        rows.append(
            [
                f"{n_params:,}",
                format_bytes(size, 3),
                f"{size / n_params:.2f}",
                format_bytes(max(size - 12 * n_params, 0), 3),
                format_time(plain_s, 3),
                format_time(safe_s, 3),
                format_time(step_s, 3),
            ]
        )
    return text_table(rows)


def _write(path: Path, state: Any, flushed: bool) -> None:
    import torch

    with path.open("wb") as file:
        torch.save(state, file)
        if flushed:
            file.flush()
            os.fsync(file.fileno())


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
