"""Checks of assignment 09, "buckets": gradients packed, all-reduced during the backward pass, and weighted by tokens.

Keys come from :mod:`shardlab.models.overlap`, :mod:`shardlab.models.collectives`, :mod:`shardlab.models.communication`
and :mod:`shardlab.models.batch`. The functions that end in ``_trial`` run on every gloo rank beside the student's
functions; nothing else here needs PyTorch.
"""

from __future__ import annotations

import contextlib
import copy
import reprlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from shardlab.checks import choice
from shardlab.classroom.attempt import attempt, name_of
from shardlab.classroom.by_hand import ByHand, close
from shardlab.classroom.network import NotWritten, describe, text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.torch_ranks import RanksOutcome, tensors_near, try_on_ranks
from shardlab.labs.rank import Context
from shardlab.models.batch import token_average
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.communication import data_traffic
from shardlab.models.overlap import bucketed_step
from shardlab.units import format_bytes

ASSIGNMENT = "09_gradient_buckets"
# Gradients that are the same up to the order of sums.
ATOL = 1e-6
QUANTITIES = ("bucket_s", "exposed_s", "sent_bytes", "token_loss")
ELEMENT_BYTES = 4
# A correct trial takes two seconds on an idle machine, and ten times as long on a crowded one.
TIME_LIMIT_S = 40.0

Buckets = list[list[int]]


# ---- task 1: by hand ----


@dataclass(frozen=True)
class BucketNumbers(ByHand):
    """One student's numbers for task 1.

    Attributes:
        n_ranks: N.
        bucket_bytes: size of every bucket, bytes.
        n_buckets: buckets that the gradients fill.
        backward_s: the backward pass of one micro-batch, seconds.
        bandwidth: of a rank's link in each direction, bytes/s.
        latency_s: fixed cost of one message, seconds.
        micro_batches: G, micro-batches per optimizer step.
        tokens, losses: tokens of some micro-batches, and their mean losses.
    """

    n_ranks: int
    bucket_bytes: int
    n_buckets: int
    backward_s: float
    bandwidth: float
    latency_s: float
    micro_batches: int
    tokens: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def n_bytes(self) -> int:
        """P: all gradients of one rank, bytes."""
        return self.bucket_bytes * self.n_buckets

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        texts = zip(self.tokens, self.losses, strict=True)
        return [
            f"N  {self.n_ranks} ranks",
            f"P  {self.n_bytes / 1e6:g} MB of gradients, in {self.n_buckets} buckets of {self.bucket_bytes / 1e6:g} MB",
            f"   the backward pass takes {self.backward_s * 1e3:g} ms",
            f"B  {self.bandwidth / 1e9:g} GB/s in each direction",
            f"α  {self.latency_s * 1e6:g} µs for each message",
            f"G  {self.micro_batches} micro-batches per optimizer step",
            "   texts: " + "; ".join(f"{size} tokens with mean loss {loss:g}" for size, loss in texts),
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        kind = choice("quantity", quantity, QUANTITIES)
        if kind == "bucket_s":
            return ring_allreduce_time_s(self.bucket_bytes, self.n_ranks, self.bandwidth, self.latency_s)
        if kind == "exposed_s":
            return bucketed_step(
                self.n_ranks,
                0.0,
                self.backward_s,
                self.n_bytes,
                self.bandwidth,
                self.latency_s,
                self.bucket_bytes,
            ).exposed_communication_s
        if kind == "sent_bytes":
            params = self.n_bytes / ELEMENT_BYTES
            return data_traffic(
                params, self.n_ranks, 0, self.micro_batches, gradient_bytes=ELEMENT_BYTES
            ).total_bytes
        return token_average(list(self.tokens), list(self.losses)).per_token

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        n, size, bandwidth, latency = self.n_ranks, self.bucket_bytes, self.bandwidth, self.latency_s
        one = self.key("bucket_s")
        if quantity == "bucket_s":
            bare = ring_allreduce_time_s(size, n, bandwidth)
            return [
                (one / 2, "that is one phase; an all-reduce has two"),
                (bare, "that leaves out α, once for each of the 2(N − 1) messages"),
                (bare + latency, "α is paid for every message, one after the other"),
                (size / bandwidth, "that sends the bucket once; a ring sends nearly twice as much"),
                (self.n_buckets * one, "that is all buckets; the question is about one"),
                (one * 1e3, "that is in milliseconds; the answer is in seconds"),
            ]
        if quantity == "exposed_s":
            every, exposed = self.n_buckets * one, self.key("exposed_s")
            found = [
                (every, "that is all communication; most of it runs under the backward pass"),
                (0.0, "the last bucket is full only when the backward pass ends"),
                (
                    every - self.backward_s,
                    "the first bucket can't start with the backward pass: it has to fill",
                ),
                (self.backward_s + exposed, "that is counted from the start of the backward pass"),
                (exposed * 1e3, "that is in milliseconds; the answer is in seconds"),
            ]
            if exposed > 1.01 * one:
                found.append(
                    (
                        one,
                        "that is right if the link is free when the last bucket is full; here earlier ones wait for it",
                    )
                )
            return found
        if quantity == "sent_bytes":
            sent = self.key("sent_bytes")
            return [
                (
                    sent * self.micro_batches,
                    "that is sent if each micro-batch is synchronised; one is enough",
                ),
                (sent / 2, "that is one phase; an all-reduce has two"),
                (float(self.n_bytes), "that is the gradients themselves; what does a ring send of them?"),
                (2.0 * self.n_bytes, "that is the ceiling 2P, which no finite ring reaches"),
                (sent * n, "that is what all ranks send together; the question is about one"),
                (sent / self.n_buckets, "that is one bucket; the question is about all"),
                (sent / 1e6, "that is in MB; the answer is in bytes"),
            ]
        return [
            (
                token_average(list(self.tokens), list(self.losses)).mean_of_means,
                "that is the mean of the means: a token of a short text counts more in it",
            ),
            (sum(self.losses), "that is the sum of the means"),
        ]


def by_hand_numbers(student: str) -> BucketNumbers:
    """A student's numbers for task 1: for one half of them the link keeps up with the backward pass, for the other not."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")

    def propose() -> BucketNumbers:
        tokens = tuple(draw.pick((10, 20, 40, 50, 80, 120, 150, 200, 300, 400)) for _ in range(3))
        return BucketNumbers(
            student=name,
            complaint=complaint,
            n_ranks=draw.pick((4, 5, 8, 10, 16, 20)),
            bucket_bytes=draw.pick((10, 15, 20, 25, 30, 40, 50)) * 10**6,
            n_buckets=draw.pick((4, 5, 6, 8, 10, 12, 15, 20)),
            backward_s=(20 + draw.below(181)) * 1e-3,
            bandwidth=draw.pick((5e9, 6.25e9, 10e9, 12.5e9, 20e9)),
            latency_s=draw.pick((20e-6, 30e-6, 50e-6, 100e-6)),
            micro_batches=draw.pick((2, 3, 4, 6, 8)),
            tokens=tokens,
            losses=tuple(draw.pick((0.5, 0.8, 1.0, 1.2, 1.5, 1.8, 2.0, 2.5, 3.0)) for _ in range(3)),
        )

    drawn: BucketNumbers = draw.until(propose, _teaches)
    return drawn


def _teaches(numbers: BucketNumbers) -> bool:
    busy = numbers.n_buckets * numbers.key("bucket_s") / numbers.backward_s
    if not (0.4 < busy < 0.85 or 1.3 < busy < 3) or len(set(numbers.tokens)) < 3:
        return False
    return not any(
        close(wrong, numbers.key(quantity))
        for quantity in QUANTITIES
        for wrong, _ in numbers.misconceptions(quantity)
    )


# ---- task 2: which gradient goes into which bucket ----


@dataclass(frozen=True)
class Packing:
    """Judgement of one packing; each attribute is None, or says what is wrong.

    Attributes:
        complete: is every gradient in exactly one bucket?
        reverse: do the gradients come in reverse order?
        full: is every bucket closed as soon as it is full, and not before?
    """

    complete: str | None
    reverse: str | None
    full: str | None

    @property
    def fault(self) -> str | None:
        """The first of them."""
        return self.complete or self.reverse or self.full


def try_packing(make_buckets: Callable[..., Any], sizes: Sequence[int], cap_bytes: int) -> Packing:
    """Judge ``make_buckets(sizes, cap_bytes)``, by what a packing must be: there is one that is all of it."""
    answer = attempt(make_buckets, list(sizes), cap_bytes)
    where = f"{name_of(make_buckets)}({reprlib.repr(list(sizes))}, {cap_bytes})"
    if answer.fault:
        return Packing(answer.fault, "there are no buckets to judge", "there are no buckets to judge")
    try:
        buckets = [[int(index) for index in bucket] for bucket in answer.value]
    except (TypeError, ValueError):
        words = (
            f"{where} must return lists of indices, such as [[2, 1], [0]], not {reprlib.repr(answer.value)}"
        )
        return Packing(words, "there are no buckets to judge", "there are no buckets to judge")
    packed = [index for bucket in buckets for index in bucket]
    complete = _complete_fault(packed, buckets, len(sizes))
    reverse = None
    later = next((step for step in range(1, len(packed)) if packed[step] > packed[step - 1]), None)
    if later is not None:
        reverse = (
            f"{where}: gradient {packed[later - 1]} comes before gradient {packed[later]}; the backward pass has the "
            "last gradients first"
        )
    full = _full_fault(buckets, sizes, cap_bytes)
    return Packing(
        f"{where}: {complete}" if complete else None,
        # An empty answer is in any order.
        reverse if packed or not sizes else "there are no gradients in the buckets",
        f"{where}: {full}" if full else None,
    )


def _complete_fault(packed: Sequence[int], buckets: Buckets, n_gradients: int) -> str | None:
    if [] in buckets:
        return f"bucket {buckets.index([])} is empty"
    for index in packed:
        if not 0 <= index < n_gradients:
            return f"there is no gradient {index}"
        if packed.count(index) > 1:
            return f"gradient {index} is packed {packed.count(index)} times"
    missing = sorted(set(range(n_gradients)) - set(packed))
    return f"gradient {missing[0]} is in no bucket" if missing else None


def _full_fault(buckets: Buckets, sizes: Sequence[int], cap_bytes: int) -> str | None:
    if not buckets and sizes:
        return "there is no bucket"
    for number, bucket in enumerate(buckets):
        known = [sizes[index] for index in bucket if 0 <= index < len(sizes)]
        if sum(known) < cap_bytes and number < len(buckets) - 1:
            return f"bucket {number} holds {sum(known)} bytes: it is closed before it holds {cap_bytes}"
        if sum(known[:-1]) >= cap_bytes:
            return (
                f"bucket {number} holds {sum(known[:-1])} bytes before its last gradient: it was full already"
            )
    return None


# ---- what the ranks' all-reduces are, seen from a trial ----


@dataclass
class _Calls:
    """The all-reduces of one rank, in order.

    Attributes:
        sizes: numbers in each. started: whether it came back at once (``async_op``).
        done: gradients that were finished when each was started.
        events: ``("start", n)`` and ``("wait", n)`` as they came.
    """

    sizes: list[int] = field(default_factory=list)
    started: list[bool] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)


class _Work:
    """A running all-reduce that notes when it is waited for."""

    def __init__(self, work: Any, number: int, calls: _Calls) -> None:
        self._work, self._number, self._calls = work, number, calls

    def wait(self, *args: Any) -> Any:
        self._calls.events.append(("wait", self._number))
        return self._work.wait(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextlib.contextmanager
def _watched(functions: Sequence[Callable[..., Any]], finished: Sequence[int] = ()) -> Iterator[_Calls]:
    """Note every all-reduce meanwhile; ``finished`` is a list that grows by one with each gradient."""
    import torch.distributed as dist

    real, calls = dist.all_reduce, _Calls()

    def all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        number = len(calls.sizes)
        calls.sizes.append(tensor.numel())
        calls.started.append(bool(async_op))
        calls.done.append(len(finished))
        calls.events.append(("start", number))
        work = real(tensor, op=op, group=group, async_op=async_op)
        return work if work is None else _Work(work, number, calls)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(dist, "all_reduce", all_reduce))
        for function in functions:
            # Where a notebook says "from torch.distributed import all_reduce".
            names = getattr(function, "__globals__", {})
            direct = {name: all_reduce for name, value in names.items() if value is real}
            stack.enter_context(patch.dict(names, direct))
        yield calls


def _try_parts(parts: dict[str, Callable[[], str | None]], where: str) -> dict[str, str | None]:
    """Each part's fault; what one raises costs the others nothing, as long as all ranks raise it."""
    found: dict[str, str | None] = {}
    for part, find in parts.items():
        try:
            fault = find()
        except NotImplementedError:
            raise
        except Exception as error:
            fault = f"stopped with {describe(error)}"
        found[part] = f"{where}: {fault}" if fault else None
    return found


def _guess(found: Sequence[Any], guesses: Sequence[tuple[Sequence[Any], str]], words: str) -> str:
    """``words``, and what the numbers are instead if one of the guesses is met."""
    return next((f"{words}: {hint}" for guess, hint in guesses if tensors_near(found, guess, ATOL)), words)


def _first(outcome: RanksOutcome, case: int, part: str) -> str | None:
    if outcome.fault:
        return outcome.fault
    return next((rank[case][part] for rank in outcome.results if rank[case][part]), None)


def _on_ranks(
    trial: str,
    functions: Sequence[Callable[..., Any]],
    n_ranks: int,
    params: dict[str, Any],
) -> RanksOutcome:
    """Try functions and classes on ranks.

    Raises:
        NotWritten: one isn't written yet; the message names the class where it is a method.
    """
    names = [name_of(one) for one in functions]
    try:
        return try_on_ranks(
            f"{__name__}:{trial}",
            functions,
            n_ranks,
            {**params, "names": names},
            time_limit_s=TIME_LIMIT_S,
        )
    except NotWritten as error:
        missing = str(error).split()[0]
        classes = [name_of(one) for one in functions if isinstance(one, type)]
        if missing in names or not classes:
            raise
        method = "" if missing == "__init__" else f".{missing}"
        raise NotWritten(f"{classes[0]}{method} is not written yet") from None


# ---- task 3: all-reduce the buckets ----


@dataclass(frozen=True)
class AverageTrial:
    """One run of ``average_in_buckets``; each attribute is None, or says what is wrong.

    Attributes:
        mean: is every gradient the mean over the ranks?
        calls: is there one all-reduce for each bucket?
        early: are all of them started before the first is waited for?
    """

    mean: str | None
    calls: str | None
    early: str | None


# Shapes of gradients, buckets of them, and whether matrices lie in memory column by column.
AVERAGE_CASES: dict[str, tuple[list[list[int]], Buckets, bool]] = {
    "plain": ([[4, 3], [4], [2, 4], [2]], [[3, 2], [1, 0]], False),
    "each": ([[5], [3, 2], [1]], [[2], [1], [0]], False),
    "one": ([[5], [3, 2], [7]], [[2, 1, 0]], False),
    "odd": ([[3, 4], [], [2, 2, 2], [5, 2]], [[3, 2], [1, 0]], True),
}


def try_average(average_in_buckets: Callable[..., Any], cases: Sequence[str]) -> list[AverageTrial]:
    """Try ``average_in_buckets(gradients, buckets)`` on three gloo ranks, on some of :data:`AVERAGE_CASES`."""
    for case in cases:
        choice("cases", case, tuple(AVERAGE_CASES))
    outcome = _on_ranks("average_trial", [average_in_buckets], 3, {"cases": list(cases)})
    parts = ("mean", "calls", "early")
    return [AverageTrial(*[_first(outcome, index, part) for part in parts]) for index in range(len(cases))]


def average_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> list[dict[str, str | None]]:
    """One rank of :func:`try_average`."""
    average_in_buckets = functions[params["names"][0]]
    rows: list[dict[str, str | None]] = []
    for case in params["cases"]:
        shapes, buckets, transposed = AVERAGE_CASES[case]
        gradients = _gradients(shapes, ctx.rank, transposed)
        every = [_gradients(shapes, rank, transposed) for rank in range(ctx.ranks)]
        where = f"gradients of shapes {shapes} in buckets {buckets}, rank {ctx.rank}"
        try:
            with _watched([average_in_buckets]) as calls:
                average_in_buckets(gradients, [list(bucket) for bucket in buckets])
        except NotImplementedError:
            raise
        except Exception as error:
            stopped = f"{where}: stopped with {describe(error)}"
            rows.append(
                {"mean": stopped, "calls": "the run did not finish", "early": "the run did not finish"}
            )
            continue
        sizes = [sum(gradients[index].numel() for index in bucket) for bucket in buckets]
        faults = {
            "mean": _mean_fault(gradients, every),
            "calls": _calls_fault(calls, sizes),
            "early": _early_fault(calls),
        }
        rows.append({part: f"{where}: {fault}" if fault else None for part, fault in faults.items()})
    return rows


def _gradients(shapes: list[list[int]], rank: int, transposed: bool) -> list[Any]:
    """A rank's gradients of these shapes; ``transposed`` ones lie in memory in another order."""
    import torch

    generator = torch.Generator().manual_seed(1000 + rank)
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    if not transposed:
        return made
    return [one.t().contiguous().t() if one.dim() == 2 else one for one in made]


def _mean_fault(gradients: Sequence[Any], every: Sequence[Sequence[Any]]) -> str | None:
    sums = [sum(column) for column in zip(*every, strict=True)]
    if tensors_near(gradients, [total / len(every) for total in sums], ATOL):
        return None
    guesses = (
        (sums, "that is the sum: divide by the number of ranks"),
        ([total / 2 for total in sums], "that is the sum divided by 2, and there are 3 ranks"),
        *[(held, "they are as a rank had them: copy the result back into the gradients") for held in every],
    )
    return _guess(gradients, guesses, "the gradients are not the mean over the ranks")


def _calls_fault(calls: _Calls, sizes: Sequence[int]) -> str | None:
    if calls.sizes == list(sizes):
        return None
    if not calls.sizes:
        return "no all_reduce was called"
    if len(calls.sizes) == len(sizes) and sorted(calls.sizes) == sorted(sizes):
        return f"the buckets were sent in another order: {calls.sizes} numbers, not {list(sizes)}"
    return (
        f"all_reduce was called {len(calls.sizes)} times, with {calls.sizes} numbers; "
        f"one for each bucket has {list(sizes)}"
    )


def _early_fault(calls: _Calls) -> str | None:
    if not calls.sizes:
        return "no all_reduce was called"
    if not all(calls.started):
        return f"all-reduce {calls.started.index(False)} is waited for at once: start it with async_op=True"
    waits = [place for place, (kind, _) in enumerate(calls.events) if kind == "wait"]
    starts = [place for place, (kind, _) in enumerate(calls.events) if kind == "start"]
    never = sorted(set(range(len(calls.sizes))) - {number for kind, number in calls.events if kind == "wait"})
    if never:
        return f"all-reduce {never[0]} is never waited for: its numbers may not be there yet"
    if waits[0] < starts[-1]:
        return "an all-reduce is waited for before the last one is started: start them all, then wait"
    return None


# ---- task 4: overlap with the backward pass ----


@dataclass(frozen=True)
class ReducerTrial:
    """One run of a ``Reducer``; each attribute is None, or says what is wrong.

    Attributes:
        average: after ``finish`` every gradient is the mean over the ranks.
        overlap: every bucket is started once, in the backward pass, when its last gradient is there.
        quiet: with ``sync = False`` nothing is sent, and the gradients stay the rank's own.
        accumulated: after some quiet micro-batches and one with ``sync = True`` the sums are averaged.
        again: it works step after step.
    """

    average: str | None
    overlap: str | None
    quiet: str | None
    accumulated: str | None
    again: str | None


REDUCER_CASES: dict[str, Buckets] = {
    "three": [[7, 6], [5, 4, 3, 2], [1, 0]],
    "each layer": [[7, 6], [5, 4], [3, 2], [1, 0]],
    "one": [[7, 6, 5, 4, 3, 2, 1, 0]],
}


def try_reducer(reducer: Callable[..., Any], cases: Sequence[str]) -> list[ReducerTrial]:
    """Try a class ``Reducer(parameters, buckets)`` on two gloo ranks, on some of :data:`REDUCER_CASES`."""
    for case in cases:
        choice("cases", case, tuple(REDUCER_CASES))
    outcome = _on_ranks("reducer_trial", [reducer], 2, {"cases": list(cases)})
    parts = ("average", "overlap", "quiet", "accumulated", "again")
    return [ReducerTrial(*[_first(outcome, index, part) for part in parts]) for index in range(len(cases))]


def reducer_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> list[dict[str, str | None]]:
    """One rank of :func:`try_reducer`."""
    return [_try_reducer(ctx, functions[params["names"][0]], REDUCER_CASES[case]) for case in params["cases"]]


def _try_reducer(ctx: Context, reducer: Callable[..., Any], buckets: Buckets) -> dict[str, str | None]:
    def step(held: _Held, micro_steps: Sequence[tuple[int, bool]]) -> _Calls:
        held.model.zero_grad()
        with _watched([], held.finished) as calls:
            for micro, sync in micro_steps:
                held.finished.clear()
                held.reducer.sync = sync
                _loss(held.model, ctx.rank, micro).backward()
            if micro_steps[-1][1]:
                held.reducer.finish()
        return calls

    def average() -> str | None:
        held = _hold(reducer, buckets)
        step(held, [(0, True)])
        return _reduced_fault(held.gradients, ctx.ranks, [0])

    def overlap() -> str | None:
        held = _hold(reducer, buckets)
        return _overlap_fault(step(held, [(0, True)]), held, buckets)

    def quiet() -> str | None:
        held = _hold(reducer, buckets)
        calls = step(held, [(0, False), (1, False)])
        if calls.sizes:
            return f"with sync = False nothing must be sent; all_reduce was called {len(calls.sizes)} times"
        own = _summed([ctx.rank], [0, 1])
        return (
            None
            if tensors_near(held.gradients, own, ATOL)
            else "with sync = False the gradients must stay the rank's own sums"
        )

    def accumulated() -> str | None:
        held = _hold(reducer, buckets)
        step(held, [(0, False), (1, False), (2, True)])
        return _reduced_fault(held.gradients, ctx.ranks, [0, 1, 2])

    def again() -> str | None:
        held = _hold(reducer, buckets)
        for micro in range(3):
            calls = step(held, [(micro, True)])
            fault = _reduced_fault(held.gradients, ctx.ranks, [micro]) or _overlap_fault(calls, held, buckets)
            if fault:
                return f"step {micro + 1}: {fault}"
        return None

    parts = {
        "average": average,
        "overlap": overlap,
        "quiet": quiet,
        "accumulated": accumulated,
        "again": again,
    }
    return _try_parts(parts, f"buckets {buckets}, rank {ctx.rank}")


@dataclass
class _Held:
    """A model with a student's reducer on it, and a list that grows with every gradient that is finished."""

    model: Any
    reducer: Any
    finished: list[int]

    @property
    def gradients(self) -> list[Any]:
        return [parameter.grad for parameter in self.model.parameters()]


def _hold(reducer: Callable[..., Any], buckets: Buckets) -> _Held:
    model = _build_model()
    finished: list[int] = []
    # Before the student's hooks: those of one parameter run in the order in which they were made.
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(partial(_note, finished))
    return _Held(model, reducer(list(model.parameters()), copy.deepcopy(buckets)), finished)


def _note(finished: list[int], _: Any) -> None:
    """A hook: one more gradient is there."""
    finished.append(1)


def _build_model() -> Any:
    """Four linear layers, eight parameters; the seed gives every rank the same start."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    widths = (6, 8, 8, 8, 3)
    layers: list[Any] = []
    for inside, outside in pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _loss(model: Any, rank: int, micro: int) -> Any:
    """The loss of one micro-batch of one rank."""
    import torch

    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + micro))
    return model(x).pow(2).mean()


def _summed(ranks: Sequence[int], micros: Sequence[int]) -> list[Any]:
    """Gradients of some ranks' micro-batches, added up in one process."""
    model = _build_model()
    for rank in ranks:
        for micro in micros:
            _loss(model, rank, micro).backward()
    return [parameter.grad for parameter in model.parameters()]


def _reduced_fault(gradients: Sequence[Any], n_ranks: int, micros: Sequence[int]) -> str | None:
    sums = _summed(range(n_ranks), micros)
    if tensors_near(gradients, [total / n_ranks for total in sums], ATOL):
        return None
    last = [total / n_ranks for total in _summed(range(n_ranks), micros[-1:])]
    guesses = (
        (sums, "that is the sum over the ranks: divide by their number"),
        (last, "that is the last micro-batch alone"),
        *[
            (_summed([rank], micros), "they are as a rank had them: copy the result back into the gradients")
            for rank in range(n_ranks)
        ],
    )
    return _guess(gradients, guesses, "after finish() the gradients are not the mean over the ranks")


def _overlap_fault(calls: _Calls, held: _Held, buckets: Buckets) -> str | None:
    sizes = [parameter.numel() for parameter in held.model.parameters()]
    fault = _calls_fault(calls, [sum(sizes[index] for index in bucket) for bucket in buckets])
    if fault:
        return fault
    filled = 0
    for number, bucket in enumerate(buckets):
        filled += len(bucket)
        if calls.done[number] > filled:
            return (
                f"bucket {number} was started when {calls.done[number]} of {len(sizes)} gradients were there; "
                f"its last one is number {filled}: start it then"
            )
        if calls.done[number] < filled:
            return f"bucket {number} was started before all its gradients were there"
    return _early_fault(calls)


# ---- task 5: accumulate, weighted by tokens ----


@dataclass(frozen=True)
class TokenTrial:
    """One run of ``accumulate``; each attribute is None, or says what is wrong.

    Attributes:
        gradient: is it that of the mean over all tokens of all ranks and micro-batches?
        calls: is each gradient sent once in the step?
    """

    gradient: str | None
    calls: str | None


PADDING = -1
_VOCABULARY = 11
# Tokens of each micro-batch that count, [rank][micro-batch], and how many more are padding.
TOKEN_CASES: dict[str, tuple[list[list[int]], int]] = {
    "unequal": ([[3, 9, 4], [20, 2, 6]], 0),
    "padded": ([[12, 5], [2, 1]], 4),
    "equal": ([[6, 6], [6, 6]], 0),
    "single": ([[15], [3]], 2),
}


class _WholeReducer:
    """A reducer as ``accumulate`` needs one, without buckets and without overlap: each gradient by itself, in ``finish``."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.sync = True
        self._due: list[Any] = []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: Any) -> None:
        if self.sync:
            self._due.append(parameter)

    def finish(self) -> None:
        """Average what was finished while ``sync`` was true."""
        import torch.distributed as dist

        for parameter in self._due:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        self._due.clear()


def try_accumulate(accumulate: Callable[..., Any], cases: Sequence[str]) -> list[TokenTrial]:
    """Try ``accumulate(model, micro_batches, reducer)`` on two gloo ranks, on some of :data:`TOKEN_CASES`.

    The reducer works, whatever the student's own does.
    """
    for case in cases:
        choice("cases", case, tuple(TOKEN_CASES))
    outcome = _on_ranks("token_trial", [accumulate], 2, {"cases": list(cases)})
    return [
        TokenTrial(_first(outcome, index, "gradient"), _first(outcome, index, "calls"))
        for index in range(len(cases))
    ]


def token_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> list[dict[str, str | None]]:
    """One rank of :func:`try_accumulate`."""
    accumulate = functions[params["names"][0]]
    rows: list[dict[str, str | None]] = []
    for case in params["cases"]:
        lengths, padding = TOKEN_CASES[case]
        every = [
            [_text(rank, micro, size, padding) for micro, size in enumerate(mine)]
            for rank, mine in enumerate(lengths)
        ]
        where = f"{lengths} tokens on the ranks, rank {ctx.rank}"
        model = _build_token_model()
        try:
            with _watched([accumulate]) as calls:
                accumulate(model, every[ctx.rank], _WholeReducer(list(model.parameters())))
        except NotImplementedError:
            raise
        except Exception as error:
            stopped = f"{where}: stopped with {describe(error)}"
            rows.append({"gradient": stopped, "calls": "the run did not finish"})
            continue
        faults = {
            "gradient": _token_fault(model, every),
            "calls": _once_fault(calls, model, len(lengths[0])),
        }
        rows.append({part: f"{where}: {fault}" if fault else None for part, fault in faults.items()})
    return rows


def _build_token_model() -> Any:
    """Predicts a token from the one before it; three parameters."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(_VOCABULARY, 6), nn.Linear(6, _VOCABULARY))


def _text(rank: int, micro: int, size: int, padding: int) -> tuple[Any, Any]:
    """Tokens and the tokens that follow them, ``[size + padding]`` each; what follows padding is :data:`PADDING`."""
    import torch

    generator = torch.Generator().manual_seed(100 * rank + micro)
    x = torch.randint(_VOCABULARY, (size + padding,), generator=generator)
    # Short texts follow another rule than long ones: were they alike, weights would hardly matter.
    y = (x + (1 if size < 8 else 4)) % _VOCABULARY
    y[size:] = PADDING
    return x, y


def _token_gradients(weighted: Sequence[tuple[tuple[Any, Any], float]]) -> list[Any]:
    """The gradient of the sums of token losses of some texts, each times its weight, in one process."""
    import torch.nn.functional as F

    model = _build_token_model()
    for (x, y), weight in weighted:
        loss = F.cross_entropy(model(x), y, ignore_index=PADDING, reduction="sum")
        (weight * loss).backward()
    return [parameter.grad for parameter in model.parameters()]


def _token_fault(model: Any, every: Sequence[Sequence[tuple[Any, Any]]]) -> str | None:
    gradients = [parameter.grad for parameter in model.parameters()]
    texts = [text for mine in every for text in mine]
    sizes = [[int((y != PADDING).sum()) for _, y in mine] for mine in every]
    total, n_ranks, n_micro = sum(map(sum, sizes)), len(every), len(every[0])
    if tensors_near(gradients, _token_gradients([(text, 1 / total) for text in texts]), ATOL):
        return None
    flat = [size for mine in sizes for size in mine]
    of_rank = [sum(mine) for mine in sizes for _ in mine]
    padded = sum(y.numel() for _, y in texts)

    def weights(values: Sequence[float]) -> list[Any]:
        return _token_gradients(list(zip(texts, values, strict=True)))

    guesses = (
        (
            weights([1 / (size * n_micro * n_ranks) for size in flat]),
            "that is the mean of the means: a token of a short text counts more than one of a long text",
        ),
        (
            weights([1 / (size * n_ranks) for size in of_rank]),
            "that is right on each rank alone: a token of a rank with few tokens counts more",
        ),
        (
            weights([1 / (total * n_ranks)] * len(flat)),
            "it is too short by the number of ranks: the reducer divides by it, too",
        ),
        (weights([1 / (n_ranks * size) for size in flat]), "the means of the micro-batches are added up"),
        (weights([1 / n_ranks] * len(flat)), "the sums of the losses are nowhere divided by the tokens"),
        (weights([1 / padded] * len(flat)), "padding was counted as tokens"),
    )
    return _guess(gradients, guesses, "the gradient is not that of one process with all tokens in one batch")


def _once_fault(calls: _Calls, model: Any, n_micro: int) -> str | None:
    wanted = sorted(parameter.numel() for parameter in model.parameters())
    # The count of tokens travels as well, and it is small.
    found = sorted(size for size in calls.sizes if size >= wanted[0])
    if found == wanted:
        return None
    if not found:
        return "no gradient was sent: with sync = True in a backward pass, finish() sends them"
    words = f"{len(found)} gradients were sent in one step, and the model has {len(wanted)}"
    if len(found) == n_micro * len(wanted):
        return f"{words}: only the last micro-batch synchronises"
    return words


# ---- task 6: what there is to explain ----

_WIDTH = 384
_LAYERS = 6
_BATCH = 32
_REPEATS = 5


def measured(make_buckets: Callable[..., Any], reducer: Callable[..., Any]) -> str:
    """Steps on two gloo ranks with buckets of several sizes, by a student's packing and reducer; a table as text.

    Raises:
        NotWritten: one of the two isn't written yet.
    """
    outcome = _on_ranks("measured_trial", [make_buckets, reducer], 2, {})
    if outcome.fault:
        return f"The ranks stopped: {outcome.fault}"
    table = [
        ["bucket", "micro-batches", "synced", "all-reduces", "all-reduced", "in the backward pass", "step"]
    ]
    table += [
        [
            format_bytes(row["cap"]) if row["cap"] else "each its own",
            str(row["micro"]),
            row["sync"],
            str(row["calls"]),
            format_bytes(row["payload"]),
            f"{100 * row['early']:.0f} %",
            f"{1e3 * row['seconds']:.1f} ms",
        ]
        for row in outcome.results[0]
    ]
    return (
        f"two gloo ranks, {_LAYERS} layers of {_WIDTH} x {_WIDTH}; 'in the backward pass': the share of the bytes "
        f"whose all-reduce starts before the last gradient is there\n{text_table(table)}"
    )


def measured_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> list[dict[str, Any]]:
    """One rank of :func:`measured`."""
    import torch
    from torch import nn

    make_buckets, reducer = (functions[name] for name in params["names"])
    x = torch.randn(_BATCH, _WIDTH, generator=torch.Generator().manual_seed(ctx.rank))
    everything = _LAYERS * (_WIDTH + 1) * _WIDTH * ELEMENT_BYTES
    rows = []
    settings = [(cap, 1, "each") for cap in (0, 10**6, 2 * 10**6, everything)]
    for cap, n_micro, sync in [*settings, (10**6, 4, "each"), (10**6, 4, "the last")]:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)])
        sizes = [parameter.numel() * ELEMENT_BYTES for parameter in model.parameters()]
        finished: list[int] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(partial(_note, finished))
        held = reducer(list(model.parameters()), make_buckets(sizes, cap))
        times = []
        for _ in range(1 + _REPEATS):
            model.zero_grad()
            ctx.barrier()
            began = time.perf_counter()
            with _watched([make_buckets], finished) as calls:
                for micro in range(n_micro):
                    finished.clear()
                    held.sync = sync == "each" or micro == n_micro - 1
                    model(x).pow(2).mean().backward()
                    if held.sync:
                        held.finish()
            times.append(time.perf_counter() - began)
        early = [size for size, done in zip(calls.sizes, calls.done, strict=True) if done < len(sizes)]
        rows.append(
            {
                "cap": cap,
                "micro": n_micro,
                "sync": sync,
                "calls": len(calls.sizes),
                "payload": sum(calls.sizes) * ELEMENT_BYTES,
                "early": sum(early) / max(1, sum(calls.sizes)),
                # The first step opens connections.
                "seconds": statistics.median(times[1:]),
            }
        )
    return rows
