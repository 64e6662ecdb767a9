"""Checks of assignment 07, "write ring attention".

The parts of a softmax are compared with torch's own attention, the deal of the tokens with the book's models, and
the ring runs on real ranks: beside the attention over the whole sequence, with its sends logged.
"""

from __future__ import annotations

import math
import reprlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardlab.checks import choice, count
from shardlab.classroom.attempt import Carry, attempt, name_of, silent
from shardlab.classroom.by_hand import ByHand
from shardlab.classroom.network import text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.classroom.torch_ranks import require_torch, try_on_ranks
from shardlab.labs.rank import Context
from shardlab.models.context import (
    RingWork,
    key_value_bytes,
    rank_tokens,
    ring_traffic,
    ring_work,
)
from shardlab.units import GB, MB

if TYPE_CHECKING:
    # It needs torch, which tasks 1 and 3 do without.
    from torch import Tensor

    from shardlab.classroom.rank_cases import CaseFaults, Faults

    State = tuple[Tensor, Tensor, Tensor]

ASSIGNMENT = "07_ring_attention"
ELEMENT_BYTES = 2
# fp32 keeps 7 digits; sums in another order stay far below this.
_SAME = 1e-4


# ---- task 2: a softmax in parts ----


@dataclass(frozen=True)
class _Block:
    """Queries, keys and values, and which key each query sees."""

    q: Tensor
    k: Tensor
    v: Tensor
    visible: Tensor

    def of_keys(self, start: int, stop: int) -> _Block:
        """The same queries, with some of the keys."""
        return _Block(self.q, self.k[start:stop], self.v[start:stop], self.visible[:, start:stop])

    @property
    def scores(self) -> Tensor:
        hidden = ~self.visible
        return (self.q @ self.k.T / math.sqrt(self.q.shape[1])).masked_fill(hidden, float("-inf"))

    @property
    def attention(self) -> Tensor:
        """Torch's own; rows that see nothing are 0."""
        from torch.nn.functional import scaled_dot_product_attention

        out = scaled_dot_product_attention(self.q[None], self.k[None], self.v[None], self.visible[None])[0]
        return out.masked_fill(~self.visible.any(1, keepdim=True), 0.0)

    @property
    def state(self) -> State:
        """What is known of the queries after these keys, worked out from the finished softmax."""
        scores = self.scores
        top = scores.max(1).values
        total = (scores.logsumexp(1) - top).exp().nan_to_num(0.0)
        return top, total, total[:, None] * self.attention


def _block(
    queries: int, keys: int, width: int, seed: int, *, scale: float = 1.0, double: bool = False
) -> _Block:
    import torch

    generator = torch.Generator().manual_seed(seed)
    kind = torch.float64 if double else torch.float32
    q, k, v = (torch.randn(rows, width, generator=generator, dtype=kind) for rows in (queries, keys, keys))
    return _Block(scale * q, k, v, torch.ones(queries, keys, dtype=torch.bool))


def _causal(block: _Block, first_query: int) -> _Block:
    """The block with a causal mask: query i stands at ``first_query + i`` and sees the keys up to there."""
    import torch

    places = first_query + torch.arange(len(block.q))
    visible = places[:, None] >= torch.arange(len(block.k))[None]
    return _Block(block.q, block.k, block.v, visible)


def part_fault(function: Callable[..., Any], case: str) -> str | None:
    """What is wrong with ``function(q, k, v, visible)`` as the state after one block of keys.

    ``case``: ``"all visible"``, ``"causal"``, ``"blind"`` (two of the queries see no key, and only they are looked
    at) or ``"other sizes"``.
    """
    blocks = {
        "all visible": lambda: [_block(3, 4, 4, 1)],
        "causal": lambda: [_causal(_block(5, 5, 4, 2), 0)],
        "blind": lambda: [_causal(_block(4, 3, 4, 3), -2)],
        "other sizes": lambda: [
            _block(1, 1, 3, 4),
            _block(7, 2, 16, 5, double=True),
            _causal(_block(2, 6, 1, 6), 3),
        ],
    }
    for block in blocks[choice("case", case, tuple(blocks))]():
        n, m = block.visible.shape
        where = f"{name_of(function)} of {_many(n, 'query', 'queries')} and {_many(m, 'key', 'keys')}"
        attempted = attempt(function, block.q, block.k, block.v, block.visible)
        fault = attempted.fault or _part_words(attempted.value, block, blind=case == "blind")
        if fault:
            return f"{where}: {fault}"
    return None


def _part_words(value: Any, block: _Block, blind: bool) -> str | None:
    fault = _state_fault(value, block)
    if fault:
        return fault
    found, wanted = value, block.state
    if blind:
        rows = ~block.visible.any(1)
        if any(bool(tensor[rows].isnan().any()) for tensor in found):
            return "NaN for a query that sees no key of this block: −inf minus −inf is no number"
        if not all(_close(one[rows], other[rows]) for one, other in zip(found, wanted, strict=True)):
            return "a query that sees no key of this block must have top −inf, total 0 and out 0"
        return None
    if _close(found[0], block.scores.max(1).values):
        if not _close(found[1], wanted[1]):
            return "total is not the sum of exp(score − top) over the keys that the query sees"
        if _close(found[2], block.attention) and not _close(found[2], wanted[2]):
            return "out is already divided by total; leave it a sum, or parts can't be merged"
        return None if _close(found[2], wanted[2]) else "out is not the sum of exp(score − top) · v"
    if _close(found[0], block.scores.max(1).values * math.sqrt(block.q.shape[1])):
        return "top is the largest q · k; a score is q · k divided by the square root of d"
    if _close(found[0], (block.q @ block.k.T).max(1).values / math.sqrt(block.q.shape[1])):
        return "top is the largest score of all keys; a hidden key must not count"
    return "top is not the largest score of the keys that the query sees"


def merge_fault(function: Callable[..., Any], case: str) -> str | None:
    """What is wrong with ``function(one, other)`` as the state after both parts.

    ``case``: ``"two parts"``, ``"large scores"``, ``"any order"`` (parts that some queries, or all, don't see, in
    every order) or ``"other sizes"``.
    """
    merges: dict[str, Callable[[], list[tuple[_Block, Sequence[tuple[int, int]]]]]] = {
        "two parts": lambda: [(_block(3, 6, 4, 7), [(0, 2), (2, 6)])],
        "large scores": lambda: [(_block(4, 6, 4, 8, scale=300.0), [(0, 3), (3, 6)])],
        "any order": lambda: [
            (_causal(_block(3, 6, 4, 9), 2), parts)
            for parts in (
                [(0, 2), (2, 4), (4, 6)],
                [(4, 6), (2, 4), (0, 2)],
                # After two parts that nobody saw something must still come out.
                [(5, 6), (5, 6), (0, 5)],
            )
        ],
        "other sizes": lambda: [
            (_block(1, 2, 1, 10), [(0, 1), (1, 2)]),
            (_block(9, 8, 16, 11, double=True), [(6, 8), (0, 6)]),
        ],
    }
    for block, parts in merges[choice("case", case, tuple(merges))]():
        state = block.of_keys(*parts[0]).state
        for bounds in parts[1:]:
            copies = [
                tuple(tensor.clone() for tensor in one) for one in (state, block.of_keys(*bounds).state)
            ]
            attempted = attempt(function, *copies)
            fault = attempted.fault or _state_fault(attempted.value, block)
            if fault:
                return f"{name_of(function)}: {fault}"
            state = attempted.value
        fault = _merged_words(state, block)
        if fault:
            return f"{name_of(function)} of {len(parts)} parts: {fault}"
    return None


def _merged_words(found: State, block: _Block) -> str | None:
    wanted = block.state
    if any(bool(tensor.isnan().any()) for tensor in found):
        return (
            "NaN: does it work out exp(top), which overflows above 88, or −inf minus −inf, for a query that saw "
            "nothing yet?"
        )
    if not _close(found[0], wanted[0]):
        return "top is not the larger one of both"
    for name, one, other in zip(("total", "out"), found[1:], wanted[1:], strict=True):
        if not _close(one, other):
            return (
                f"{name} is wrong: what was summed up under a smaller top must be multiplied by "
                "exp(its own top − the new top) before it is added"
            )
    return None


def _state_fault(value: Any, block: _Block) -> str | None:
    import torch

    n, width = block.q.shape
    wanted = f"return (top, total, out), tensors of shapes [{n}], [{n}] and [{n}, {width}]"
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        return f"{wanted}, not {reprlib.repr(value)}"
    if not all(isinstance(tensor, torch.Tensor) for tensor in value):
        return f"{wanted}, not {', '.join(type(tensor).__name__ for tensor in value)}"
    shapes = [list(tensor.shape) for tensor in value]
    return None if shapes == [[n], [n], [n, width]] else f"{wanted}, not {', '.join(map(str, shapes))}"


def _close(one: Tensor, other: Tensor) -> bool:
    """Equal up to rounding; −inf equals −inf, a NaN equals nothing."""
    import torch

    same = one.shape == other.shape and torch.allclose(one.to(other.dtype), other, rtol=_SAME, atol=_SAME)
    return bool(same)


def _many(n: int, one: str, more: str) -> str:
    return f"{n} {one if n == 1 else more}"


# ---- task 3: who holds which tokens, and who has how much to do ----

SPLITS = {"in order": "contiguous", "zigzag": "zigzag", "striped": "striped"}


def deal(split: str, sequence: int, ranks: int) -> list[list[int]]:
    """Per rank the positions of its tokens: ``"in order"``, ``"zigzag"`` or ``"striped"``."""
    kind = SPLITS[choice("split", split, tuple(SPLITS))]
    return [
        [place for bounds in rank_tokens(sequence, ranks, rank, kind) for place in range(*bounds)]
        for rank in range(ranks)
    ]


def zigzag_fault(function: Callable[[int, int], Any], sequence: int, ranks: int) -> str | None:
    """What is wrong with ``function(sequence, ranks)`` as the positions of each rank's tokens."""
    attempted = attempt(function, sequence, ranks)
    if attempted.fault:
        return attempted.fault
    where = f"{name_of(function)}({sequence}, {ranks})"
    key = deal("zigzag", sequence, ranks)
    found = _lists(attempted.value)
    if found is None or len(found) != ranks:
        return f"{where} must return {ranks} lists of positions, not {reprlib.repr(attempted.value)}"
    if found == key:
        return None
    dealt = sorted(place for places in found for place in places)
    if dealt != list(range(sequence)):
        return (
            f"{where}: every position from 0 to {sequence - 1} must be dealt once, not {reprlib.repr(dealt)}"
        )
    rank = next(rank for rank in range(ranks) if found[rank] != key[rank])
    words = f"{where}: rank {rank} has {reprlib.repr(found[rank])}, not {reprlib.repr(key[rank])}"
    if sorted(found[rank]) == key[rank]:
        return f"{words}: in the order of the sequence"
    return f"{words}: piece r and the r-th from the end, of 2N pieces"


def work_fault(function: Callable[..., Any], dealt: Sequence[Sequence[int]]) -> str | None:
    """What is wrong with ``function(deal)`` as the (query, key) pairs of each step and rank."""
    attempted = attempt(function, [list(places) for places in dealt])
    if attempted.fault:
        return attempted.fault
    ranks = len(dealt)
    key = _counted_pairs(dealt)
    where = f"{name_of(function)} with {_many(ranks, 'rank', 'ranks')}"
    found = _lists(attempted.value)
    if found is None or [len(row) for row in found] != [ranks] * ranks:
        return (
            f"{where} must return {_many(ranks, 'list', 'lists')} (one for each step) of "
            f"{_many(ranks, 'number', 'numbers')}, not {reprlib.repr(attempted.value)}"
        )
    if found == key:
        return None
    step, rank = next((s, r) for s in range(ranks) for r in range(ranks) if found[s][r] != key[s][r])
    held = (rank - step) % ranks
    words = (
        f"{where}: in step {step}, rank {rank} (with the keys of rank {held}) has {key[step][rank]} pairs, "
        f"not {found[step][rank]!r}"
    )
    everything = len(dealt[rank]) * len(dealt[held])
    if found[step][rank] == everything:
        return f"{words}: a query sees only keys at its own position or before"
    if found[step][rank] == _pairs(dealt[rank], dealt[(rank + step) % ranks]):
        return f"{words}: the keys come from the left, so those of rank (r − step) mod N are there"
    own = len(set(dealt[rank]) & set(dealt[held]))
    if found[step][rank] == key[step][rank] - own:
        return f"{words}: a query also sees the key at its own position"
    return words


def _pairs(queries: Sequence[int], keys: Sequence[int]) -> int:
    return sum(key <= query for query in queries for key in keys)


def _counted_pairs(dealt: Sequence[Sequence[int]]) -> list[list[int]]:
    """Pairs per step and rank, from the model where it knows the deal."""
    ranks, sequence = len(dealt), sum(map(len, dealt))
    for split, kind in SPLITS.items():
        if sequence % (2 * ranks) == 0 and [list(places) for places in dealt] == deal(split, sequence, ranks):
            return ring_work(sequence, ranks, kind).pairs
    return [
        [_pairs(dealt[rank], dealt[(rank - step) % ranks]) for rank in range(ranks)] for step in range(ranks)
    ]


def _lists(value: Any) -> list[list[Any]] | None:
    """Lists of lists out of what a student made of it: ranges, tuples, tensors."""
    try:
        rows = [list(row) for row in value]
        return [[int(item) if int(item) == item else item for item in row] for row in rows]
    except (TypeError, ValueError, RuntimeError):
        return None


# ---- task 4: the ring, on real ranks ----

WIDTH = 8
RANKS = 4
_TOKENS_PER_RANK = 4
# A correct program needs three seconds, most of them to start. While a class is graded, more ranks than cores start.
_LIMIT_S = 40.0


@dataclass(frozen=True)
class RingCase:
    """One case of task 4: how the tokens are dealt, the mask, a factor on the queries, and how many ranks take part."""

    split: str = "zigzag"
    causal: bool = True
    scale: float = 1.0
    ranks: int = RANKS


CASES = {
    "no mask": RingCase("in order", causal=False),
    "causal, in order": RingCase("in order"),
    "causal, zigzag": RingCase(),
    "causal, striped": RingCase("striped"),
    "causal, any deal": RingCase("any"),
    "large scores": RingCase(scale=200.0),
    # The last one: the fourth rank leaves.
    "3 ranks": RingCase(ranks=3),
}


def try_ring(function: Callable[..., Any], cases: Sequence[str], carry: Carry | None = None) -> CaseFaults:
    """Run ``function(q, k, v, deal, causal)`` on gloo ranks; per case the criteria are ``"result"`` and ``"hops"``.

    Args:
        function: the student's.
        cases: names out of :data:`CASES`, ``"3 ranks"`` last.
        carry: working versions of functions from earlier tasks, by name.

    Raises:
        NeedsTorch: PyTorch isn't installed.
        NotWritten: the function isn't written yet.
    """
    require_torch()
    from shardlab.classroom.rank_cases import try_cases

    names = [choice("cases", case, tuple(CASES)) for case in cases]
    params = {"name": name_of(function), "cases": names}
    return try_cases(f"{__name__}:ring_trial", [function], RANKS, params, carry, _LIMIT_S)


def ring_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> dict[str, Faults]:
    """One rank of task 4: per case the faults of ``result`` and ``hops``. Not called by hand."""
    from shardlab.classroom.rank_cases import Cases

    cases = Cases(ctx)
    for name in params["cases"]:
        cases.run(name, partial(_ring_case, ctx, functions[params["name"]], CASES[name]))
    return cases.faults


def _ring_case(ctx: Context, function: Callable[..., Any], case: RingCase) -> Faults:
    import torch

    from shardlab.classroom.send_log import logged_sends

    if case.ranks < ctx.ranks:
        _go_on_with(ctx, case.ranks)
        if ctx.rank >= case.ranks:
            return {"result": None, "hops": None}
    sequence = _TOKENS_PER_RANK * case.ranks
    if case.split == "any":
        places = torch.randperm(sequence, generator=torch.Generator().manual_seed(1)).tolist()
        starts = range(0, sequence, _TOKENS_PER_RANK)
        dealt = [sorted(places[start : start + _TOKENS_PER_RANK]) for start in starts]
    else:
        dealt = deal(case.split, sequence, case.ranks)
    whole = _block(sequence, sequence, WIDTH, 20, scale=case.scale)
    own = dealt[ctx.rank]
    q, k, v = (tensor[own].clone() for tensor in (whole.q, whole.k, whole.v))
    with logged_sends() as log, silent():
        found = function(q, k, v, [list(places) for places in dealt], case.causal)
    return {
        "result": _result_fault(found, whole, dealt, ctx.rank, case.causal),
        "hops": _hops_fault(log.sent, log.collectives, ctx.rank, case.ranks, 2 * k.numel()),
    }


def _go_on_with(ctx: Context, ranks: int) -> None:
    """Make a default group of the first ranks alone: starting fewer processes would take seconds."""
    import torch.distributed as dist

    # Nobody may still be reading from a connection that another one closes.
    ctx.barrier()
    dist.destroy_process_group()
    if ctx.rank < ranks:
        store = dist.PrefixStore(f"the first {ranks}", ctx.store)
        dist.init_process_group("gloo", store=store, rank=ctx.rank, world_size=ranks)


def _result_fault(found: Any, whole: _Block, dealt: list[list[int]], rank: int, causal: bool) -> str | None:
    import torch

    own, width = dealt[rank], whole.q.shape[1]
    if not isinstance(found, torch.Tensor) or list(found.shape) != [len(own), width]:
        shown = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        return f"must return a tensor of shape [{len(own)}, {width}], not {shown}"
    masked = _causal(whole, 0)
    block = masked if causal else whole
    if _close(found, block.attention[own]):
        return None
    if bool(found.isnan().any()):
        return "the result holds NaN: what becomes of a query that sees no key of a block?"
    alone = _Block(whole.q[own], whole.k[own], whole.v[own], block.visible[own][:, own])
    here = torch.arange(len(own))
    n = len(dealt)
    by_index = (here[:, None] >= here[None]).repeat(1, n)
    order = [place for step in range(n) for place in dealt[(rank - step) % n]]
    local = _Block(whole.q[own], whole.k[order], whole.v[order], by_index)
    named = [
        (alone.attention, "the attention to this rank's own keys only"),
        (whole.attention[own], "the attention without a mask"),
        (masked.attention[own], "the attention with a causal mask, which this case doesn't have"),
        (local.attention, "masked by the place within a block: compare positions in the sequence"),
    ]
    for wrong, words in named:
        if _close(found, wrong):
            return f"the result is {words}"
    return (
        "the result is not the attention over the whole sequence: do the keys, the values and the positions of a "
        "step belong together?"
    )


def _hops_fault(
    sent: list[tuple[int, int]], others: list[str], rank: int, ranks: int, block: int
) -> str | None:
    if others:
        return f"calls {others[0]}; in the ring keys and values only go from neighbour to neighbour"
    right = (rank + 1) % ranks
    for destination, numbers in sent:
        if destination != right:
            return f"sent {numbers} numbers to rank {destination}; in the ring it sends only to rank {right}"
    total, wanted = sum(numbers for _, numbers in sent), (ranks - 1) * block
    if total == wanted:
        return None
    words = f"sent {total} numbers; N − 1 = {ranks - 1} hops of keys and values take {wanted}"
    if total == ranks * block:
        return f"{words}: after the last step nobody needs them any more"
    return f"{words}: both have to travel" if 2 * total == wanted else words


# ---- task 5: what there is to explain ----

# How long the pairs of one block without a mask take.
FULL_BLOCK_S = 0.12
_SEQUENCE = 4096
_COLUMN_S = 0.02


@dataclass(frozen=True)
class MeasuredDeal:
    """One pass of the ring under one deal.

    Attributes:
        split: how the tokens were dealt.
        work: the model's count.
        spans: per rank and step the begin and end of its work, seconds since all began.
        ends_s: per rank when it was through with all steps.
    """

    split: str
    work: RingWork
    spans: list[list[tuple[float, float]]]
    ends_s: list[float]

    @property
    def busy_s(self) -> list[float]:
        """Seconds of work, per rank."""
        return [sum(end - begin for begin, end in spans) for spans in self.spans]

    @property
    def slowdown(self) -> float:
        """How many times a fair share the ring took."""
        return max(self.ends_s) / (sum(self.busy_s) / len(self.busy_s))


def measure_balance(ranks: int = 4, splits: Sequence[str] = tuple(SPLITS)) -> list[MeasuredDeal]:
    """Let blocks go round a ring of gloo ranks that sleep as long as each step's work would take.

    A machine with fewer cores than ranks can't compute on all of them at once, but all of them can sleep at once:
    who waits for whom doesn't depend on what fills the time. A block without a mask takes :data:`FULL_BLOCK_S`.

    Raises:
        NeedsTorch: PyTorch isn't installed.
        RuntimeError: the ranks were stopped.
    """
    n_ranks = count("ranks", ranks, least=2, most=8)
    works = {split: ring_work(_SEQUENCE, n_ranks, SPLITS[split]) for split in splits}
    full = (_SEQUENCE // n_ranks) ** 2
    params = {
        "seconds": [
            [[pairs / full * FULL_BLOCK_S for pairs in row] for row in work.pairs] for work in works.values()
        ]
    }
    outcome = try_on_ranks(f"{__name__}:balance_trial", [], n_ranks, params)
    if outcome.fault:
        raise RuntimeError(outcome.fault)
    measured = []
    for index, (split, work) in enumerate(works.items()):
        rows = [rank[index] for rank in outcome.results]
        began = min(row["began"] for row in rows)
        spans = [[(begin - began, end - began) for begin, end in row["spans"]] for row in rows]
        measured.append(MeasuredDeal(split, work, spans, [row["ended"] - began for row in rows]))
    return measured


def balance_trial(
    ctx: Context, functions: dict[str, Callable[..., Any]], params: dict[str, Any]
) -> list[dict[str, Any]]:
    """One rank of :func:`measure_balance`: per deal when it began, worked and ended. Not called by hand."""
    import torch
    import torch.distributed as dist

    right, left = (ctx.rank + 1) % ctx.ranks, (ctx.rank - 1) % ctx.ranks

    def one_pass(seconds: list[list[float]]) -> dict[str, Any]:
        block = torch.zeros(1024)
        # The clock of the machine, the same for all its processes.
        began, spans = time.monotonic(), []
        for step, row in enumerate(seconds):
            work = None if step == ctx.ranks - 1 else dist.isend(block, right)
            begin = time.monotonic()
            time.sleep(row[ctx.rank])
            spans.append((begin, time.monotonic()))
            if work is not None:
                arriving = torch.empty_like(block)
                dist.recv(arriving, left)
                work.wait()
                block = arriving
        return {"began": began, "spans": spans, "ended": time.monotonic()}

    # Connections open on the first pass.
    one_pass([[0.0] * ctx.ranks] * ctx.ranks)
    passes = []
    for seconds in params["seconds"]:
        ctx.barrier()
        passes.append(one_pass(seconds))
    return passes


def balance_table(measured: Sequence[MeasuredDeal]) -> str:
    """The measured passes as a table."""
    ranks = len(measured[0].ends_s)
    head = [
        "deal",
        *[f"rank {rank} works" for rank in range(ranks)],
        "all done",
        "of a fair share",
        "predicted",
    ]
    rows = [
        [
            one.split,
            *[f"{seconds * 1e3:.0f} ms" for seconds in one.busy_s],
            f"{max(one.ends_s) * 1e3:.0f} ms",
            f"{one.slowdown:.2f}",
            f"{one.work.slowdown:.2f}",
        ]
        for one in measured
    ]
    return text_table([head, *rows])


def balance_timeline(one: MeasuredDeal) -> str:
    """Who works when: the digit of the step, a dot while a rank waits; one column for 20 ms."""
    columns = math.ceil(max(one.ends_s) / _COLUMN_S)
    lines = [f"{one.split}: a column is {_COLUMN_S * 1e3:g} ms"]
    for rank, spans in enumerate(one.spans):
        cells = ["."] * columns
        for step, (begin, end) in enumerate(spans):
            first, last = (math.ceil(at / _COLUMN_S - 0.5) for at in (begin, end))
            cells[first:last] = [str(step)] * (last - first)
        lines.append(f"rank {rank}  {''.join(cells[:columns])}")
    return "\n".join(lines)


# ---- task 1: by hand ----

QUANTITIES = ("hop_bytes", "forward_bytes", "rank_pairs", "zigzag_pairs", "slowdown")


@dataclass(frozen=True)
class AttentionNumbers(ByHand):
    """One student's numbers for task 1.

    Attributes:
        sequence: s, tokens.
        ranks: c, ranks that share the sequence.
        heads, kv_heads: query heads, and heads of keys and values.
        head_dim: d.
        rank: the rank that ``rank_pairs`` is about.
    """

    sequence: int
    ranks: int
    heads: int
    kv_heads: int
    head_dim: int
    rank: int

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"s  {self.sequence} tokens, one sequence",
            f"c  {self.ranks} ranks, each with s/c tokens",
            f"a  {self.heads} heads of queries",
            f"g  {self.kv_heads} heads of keys and of values",
            f"d  {self.head_dim} numbers in each head, in bf16: {ELEMENT_BYTES} bytes each",
            f"r  {self.rank}: the rank that rank_pairs is about",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        if quantity == "hop_bytes":
            everything = key_value_bytes(self.sequence, 1, self.kv_heads, self.head_dim, ELEMENT_BYTES)
            return everything / self.ranks
        if quantity == "forward_bytes":
            return ring_traffic(
                self.sequence, 1, self.kv_heads, self.head_dim, self.ranks, ELEMENT_BYTES
            ).forward_bytes
        if quantity == "rank_pairs":
            return float(ring_work(self.sequence, self.ranks, "contiguous").per_rank[self.rank])
        if quantity == "zigzag_pairs":
            return float(ring_work(self.sequence, self.ranks, "zigzag").per_rank[self.rank])
        if quantity == "slowdown":
            return ring_work(self.sequence, self.ranks, "contiguous").slowdown
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}, not {quantity!r}")

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        c, r = self.ranks, self.rank
        n = self.sequence / c
        hop, forward = self.key("hop_bytes"), self.key("forward_bytes")
        if quantity == "hop_bytes":
            return [
                (hop / 2, "keys and values both travel, and each number has 2 bytes"),
                (hop * c, "that is the whole sequence; a rank holds the keys and values of s/c tokens"),
                (
                    hop * self.heads / self.kv_heads,
                    "the queries stay where they are: count the heads of keys and values",
                ),
                (hop / self.kv_heads, "that is one head; there are g of them"),
                (hop * 8, "those are bits; the answer is in bytes"),
                (hop / MB, "that is in MB; the answer is in bytes"),
            ]
        if quantity == "forward_bytes":
            return [
                (hop * c, "a part makes c − 1 hops: after the last step nobody needs it any more"),
                (hop, "that is one hop"),
                (forward * c, "that is what all ranks send together; the question is about one"),
                (
                    forward * self.heads / self.kv_heads,
                    "the queries stay where they are: count the heads of keys and values",
                ),
                (forward / 2, "keys and values both travel, and each number has 2 bytes"),
                (forward / MB, "that is in MB; the answer is in bytes"),
                (forward / GB, "that is in GB; the answer is in bytes"),
            ]
        if quantity == "rank_pairs":
            return [
                (c * n * n, "that is without a mask"),
                ((r + 1) * n * n, "half of the pairs of its own block are masked"),
                (r * n * n, "its own block is missing, of which half is left"),
                ((c - 1 - r + 0.5) * n * n, "counted from the wrong end: the last tokens see the most"),
                (c * n * n / 2, "that is a fair share; in order the shares differ"),
                (n * n / 2, "that is its own block alone; it also sees those of all ranks before it"),
            ]
        if quantity == "zigzag_pairs":
            return [
                (c * n * n, "that is without a mask"),
                (c * c * n * n / 2, "that is the work of all ranks together"),
                (c * n * n / 4, "the pieces are half as long, but a rank has two of them"),
                ((c - 0.5) * n * n, "that is the last rank in order"),
            ]
        if quantity == "slowdown":
            right = self.key(quantity)
            return [
                (2.0, "that is the limit for many ranks"),
                (float(c), "that would be one rank that does everything"),
                (c - 0.5, "that is in blocks; divide by a fair share, c/2 blocks"),
                (1 / right, "that is the fair share over the busiest rank's work; turn it round"),
                (1 - 1 / right, "that is the share of the time that is idle"),
                (2 - 2 / c, "the busiest rank also has half of its own block"),
            ]
        return []


def by_hand_numbers(student: str) -> AttentionNumbers:
    """A student's numbers for task 1: a long sequence, an even number of ranks, and a rank in between."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")
    # With an even c no rank is as far from the front as from the back.
    ranks = draw.pick((4, 6, 8, 10, 12, 16))
    return AttentionNumbers(
        student=name,
        complaint=complaint,
        # Two halves for a zigzag; 2048 to 8192 tokens on each rank.
        sequence=ranks * 256 * (8 + draw.below(25)),
        ranks=ranks,
        heads=draw.pick((24, 32, 40, 48, 64)),
        kv_heads=draw.pick((4, 8)),
        head_dim=draw.pick((64, 96, 128, 160)),
        rank=1 + draw.below(ranks - 2),
    )
