"""Checks of assignment 05, "cut a layer".

Every rank knows the whole layer, its input and the gradient of its output, and works out with autograd what the
uncut layer gives; what the student's functions make of this rank's part is compared with its part of that.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from shardlab import transformer
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
from shardlab.models import tensor
from shardlab.models.collectives import busbw_factor
from shardlab.models.memory_activations import layer_activations
from shardlab.units import GB, MB

ASSIGNMENT = "05_tensor_parallel"
N_RANKS = 3
TABLE_RANKS = 4
# Sums in another order differ by a millionth.
GAP = 1e-4

Function = Callable[..., Any]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and relative_gap([one], [other]) < GAP


def _shape(value: Any) -> str:
    return str(tuple(value.shape))


# ---- task 2: cut the matrices ----


def _numbered(rows: int, columns: int | None = None) -> Tensor:
    """A matrix in which row 3, column 2 has 302; or a vector of 0, 100, 200, ..."""
    first = 100.0 * torch.arange(rows)
    return first if columns is None else first[:, None] + torch.arange(float(columns))


def cut_fault(function: Function, rows: int, columns: int | None, n: int, dim: int) -> str | None:
    """What is wrong with ``function(weight, rank, n)`` as equal parts of a matrix ``[rows, columns]`` along ``dim``."""
    whole = _numbered(rows, columns)

    def wanted(rank: int) -> Tensor:
        return whole.chunk(n, dim=dim)[rank]

    mistakes = {
        "that is the part along the other dim": lambda rank: whole.chunk(n, dim=1 - dim)[rank],
        "that is every n-th one, and the part must be one piece": lambda rank: (
            whole[rank::n] if dim == 0 else whole[:, rank::n]
        ),
    }
    if columns is None:
        mistakes.pop("that is the part along the other dim")
    return _parts_fault(function, [whole], n, wanted, mistakes)


def gate_up_fault(function: Function, width: int, columns: int, n: int) -> str | None:
    """What is wrong with ``function(fused, rank, n)`` as parts of a gate and an up matrix that are stored as one."""
    whole = _numbered(2 * width, columns)

    def wanted(rank: int) -> Tensor:
        return torch.cat([half.chunk(n)[rank] for half in whole.chunk(2)])

    mistakes: dict[str, Function] = {
        "that is one piece of the whole: a rank must have its part of the gate and the same part of up, not mostly "
        "the one or the other": lambda rank: whole.chunk(n)[rank],
        "up comes before the gate": lambda rank: torch.cat(
            [half.chunk(n)[rank] for half in reversed(whole.chunk(2))]
        ),
    }
    return _parts_fault(function, [whole], n, wanted, mistakes)


def heads_fault(function: Function, n_heads: int, head_width: int, n: int) -> str | None:
    """What is wrong with ``function(weight, n_heads, rank, n)`` as whole heads, copied where there are too few."""
    whole = _numbered(n_heads * head_width, 2)

    def wanted(rank: int) -> Tensor:
        heads = whole.view(n_heads, head_width, 2)
        if n_heads >= n:
            return heads.chunk(n)[rank].flatten(0, 1)
        return heads[rank * n_heads // n]

    mistakes: dict[str, Function] = {}
    if n_heads < n:
        mistakes = {
            "that is a part of a head: heads stay whole, and several ranks get a copy of the same one": (
                lambda rank: whole.chunk(n)[rank]
            ),
            f"ranks that share a head must be neighbours: with {n // n_heads} ranks for each head, ranks 0 to "
            f"{n // n_heads - 1} have head 0": lambda rank: whole.view(n_heads, head_width, 2)[
                rank % n_heads
            ],
        }
    return _parts_fault(function, [whole, n_heads], n, wanted, mistakes)


def _parts_fault(
    function: Function,
    arguments: list[Any],
    n: int,
    wanted: Callable[[int], Tensor],
    mistakes: dict[str, Function],
) -> str | None:
    whole = arguments[0]
    shapes = f"a weight of shape {_shape(whole)}" + "".join(f", {value}" for value in arguments[1:])
    for rank in range(n):
        where = f"{name_of(function)}({shapes}, rank {rank} of {n})"
        attempted = attempt(function, whole.clone(), *arguments[1:], rank, n)
        if attempted.fault:
            return f"{where}: {attempted.fault}"
        found, right = attempted.value, wanted(rank)
        if not isinstance(found, Tensor):
            return f"{where} must return a tensor, not {reprlib.repr(found)}"
        if found.shape == right.shape and torch.equal(found, right):
            continue
        for words, wrong in mistakes.items():
            if found.shape == wrong(rank).shape and torch.equal(found, wrong(rank)):
                return f"{where}: {words}"
        if found.shape != right.shape:
            return f"{where} must have the shape {_shape(right)}, not {_shape(found)}"
        return f"{where} must begin with the number {right.flatten()[0]:g}, not {found.flatten()[0]:g}"
    return None


def own_memory_fault(function: Function, *arguments: Any) -> str | None:
    """Whether the part that ``function(weight, *arguments)`` returns keeps the whole weight alive."""
    weight = _numbered(12, 12)
    attempted = attempt(function, weight, *arguments)
    if attempted.fault:
        return attempted.fault
    part = attempted.value
    if not isinstance(part, Tensor):
        return f"{name_of(function)} must return a tensor, not {reprlib.repr(part)}"
    held, needed = storage_bytes([part]), part.numel() * part.element_size()
    if held > needed:
        return (
            f"{name_of(function)}: the part of {needed} bytes is a view and keeps all {held} bytes alive: no memory is "
            "saved; clone it"
        )
    return None


def refusal_fault(function: Function, *arguments: Any) -> str | None:
    """Whether ``function(weight, *arguments)`` refuses, with a ValueError, a weight of 10 x 10 that n doesn't divide."""
    try:
        found = function(_numbered(10, 10), *arguments)
    except NotImplementedError as error:
        raise NotWritten.from_error(error) from None
    except ValueError:
        return None
    except Exception as error:
        return f"{name_of(function)} must raise a ValueError where n doesn't divide, not {describe(error)}"
    shape = f"a tensor of shape {_shape(found)}" if isinstance(found, Tensor) else reprlib.repr(found)
    return f"{name_of(function)} must raise a ValueError where n doesn't divide; it returned {shape}"


# ---- task 3: linears on ranks ----


@dataclass(frozen=True)
class Linear:
    """A linear with its input, and what the uncut one gives; gradients are those for ``grad`` at the output.

    Attributes:
        x: ``[..., inputs]``. weight: ``[outputs, inputs]``. bias: ``[outputs]`` or None. grad: ``[..., outputs]``.
        y: the output.
        x_grad, weight_grad, bias_grad: gradients.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    grad: Tensor
    y: Tensor
    x_grad: Tensor
    weight_grad: Tensor
    bias_grad: Tensor | None


def new_linear(leading: Sequence[int], inputs: int, outputs: int, with_bias: bool) -> Linear:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(inputs + outputs)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, weight, grad = draw(*leading, inputs), draw(outputs, inputs), draw(*leading, outputs)
    # Far from zero, so that a bias too many can't hide.
    bias = draw(outputs) + 3 if with_bias else None
    leaves = [value.clone().requires_grad_() for value in (x, weight, bias) if value is not None]
    y = F.linear(*leaves)
    y.backward(grad)
    grads = [leaf.grad for leaf in leaves]
    return Linear(x, weight, bias, grad, y.detach(), grads[0], grads[1], grads[2] if with_bias else None)


def try_linears(functions: Sequence[Function], cases: Sequence[dict[str, Any]]) -> CaseFaults:
    """Try task 3 on :data:`N_RANKS` gloo ranks.

    Args:
        functions: ``column_forward``, ``column_backward``, ``row_forward``, ``row_backward``.
        cases: arguments of :func:`new_linear`, with the case's ``name`` beside them. Each function is a case of its
            own: ``f"{name}: column_forward"``.
    """
    return try_cases(f"{__name__}:linears_trial", functions, N_RANKS, {"cases": cases})


def linears_trial(ctx: Context, functions: dict[str, Function], params: dict[str, Any]) -> dict[str, Faults]:
    """One rank of task 3."""
    cases = Cases(ctx)
    for case in params["cases"]:
        sizes = {key: value for key, value in case.items() if key != "name"}
        layer = new_linear(**sizes)
        for name, judge in _JUDGES.items():
            cases.run(f"{case['name']}: {name}", partial(judge, ctx, functions[name], layer))
    return cases.faults


def _mine(ctx: Context, whole: Tensor, dim: int) -> Tensor:
    return whole.chunk(ctx.ranks, dim=dim)[ctx.rank].clone()


def _called(function: Function, arguments: Sequence[Tensor | None]) -> tuple[Any, CallLog, str | None]:
    """What it returns, which collectives it calls, and what is wrong with how it treats its arguments."""
    copies = [None if argument is None else argument.clone() for argument in arguments]
    with CallLog() as log:
        found = function(*arguments)
    changed = [
        index
        for index, (argument, copy) in enumerate(zip(arguments, copies, strict=True))
        if argument is not None and copy is not None and not torch.equal(argument, copy)
    ]
    if changed:
        names = ("x", "the weight", "the last argument")
        return (
            found,
            log,
            f"it changes {names[changed[0]]}: all_reduce writes in place, so give it a new tensor",
        )
    return found, log, None


def _calls_fault(log: CallLog, all_reduces: int) -> str | None:
    called = len(log.calls)
    if called == all_reduces == log.count("all-reduce"):
        return None
    wanted = "one all-reduce" if all_reduces == 1 else "no collective"
    return f"it takes {wanted}, and {log.words()} was called"


def _value_fault(what: str, found: Any, right: Tensor | None, mistakes: dict[str, Tensor]) -> str | None:
    if right is None:
        return None if found is None else f"{what} must be None without a bias, not {reprlib.repr(found)}"
    if not isinstance(found, Tensor):
        return f"{what} must be a tensor, not {reprlib.repr(found)}"
    if found.shape != right.shape:
        return f"{what} must have the shape {_shape(right)}, not {_shape(found)}"
    if _same(found, right):
        return None
    for words, wrong in mistakes.items():
        if _same(found, wrong) and not _same(wrong, right):
            return f"{what} {words}"
    return f"{what} is off by {relative_gap([found], [right]):.0%} of its largest entry"


def _three(found: Any) -> list[Any] | None:
    return list(found) if isinstance(found, (tuple, list)) and len(found) == 3 else None


def _judge_column_forward(ctx: Context, function: Function, layer: Linear) -> Faults:
    bias = None if layer.bias is None else _mine(ctx, layer.bias, 0)
    found, log, touched = _called(function, [layer.x.clone(), _mine(ctx, layer.weight, 0), bias])
    right = _mine(ctx, layer.y, -1)
    mistakes = {"lacks the bias": right - bias} if bias is not None else {}
    return {
        "value": _value_fault("the output", found, right, mistakes),
        "calls": touched or _calls_fault(log, 0),
    }


def _judge_column_backward(ctx: Context, function: Function, layer: Linear) -> Faults:
    weight, grad = _mine(ctx, layer.weight, 0), _mine(ctx, layer.grad, -1)
    found, log, touched = _called(function, [layer.x.clone(), weight, grad.clone()])
    three = _three(found)
    if three is None:
        words = "must return grad_x, grad_weight and grad_bias"
        return {"x": words, "weights": words, "calls": words}
    part = grad @ weight
    weight_grad, bias_grad = _mine(ctx, layer.weight_grad, 0), grad.flatten(0, -2).sum(0)
    return {
        "x": _value_fault(
            "grad_x",
            three[0],
            layer.x_grad,
            {
                "is this rank's part of a sum: each rank knows only its own outputs": part,
                "is the mean over the ranks, and the parts must be added up": layer.x_grad / ctx.ranks,
            },
        ),
        "weights": _value_fault("grad_weight", three[1], weight_grad, {})
        # Without a bias its gradient may be left out or not: nobody uses it.
        or (_value_fault("grad_bias", three[2], bias_grad, {}) if layer.bias is not None else None),
        "calls": touched or _calls_fault(log, 1),
    }


def _judge_row_forward(ctx: Context, function: Function, layer: Linear) -> Faults:
    x, weight = _mine(ctx, layer.x, -1), _mine(ctx, layer.weight, 1)
    bias = None if layer.bias is None else layer.bias.clone()
    found, log, touched = _called(function, [x, weight, bias])
    sums = x @ weight.t()
    mistakes = {"is a partial sum: the other ranks' parts are missing": sums}
    if bias is not None:
        mistakes |= {
            "is a partial sum: the other ranks' parts are missing": sums + bias,
            "is a partial sum without a bias": sums,
            f"has the bias {ctx.ranks} times: add it after the all-reduce": layer.y + (ctx.ranks - 1) * bias,
            "lacks the bias": layer.y - bias,
        }
    return {
        "value": _value_fault("the output", found, layer.y, mistakes),
        "calls": touched or _calls_fault(log, 1),
    }


def _judge_row_backward(ctx: Context, function: Function, layer: Linear) -> Faults:
    x, weight = _mine(ctx, layer.x, -1), _mine(ctx, layer.weight, 1)
    found, log, touched = _called(function, [x, weight, layer.grad.clone()])
    three = _three(found)
    if three is None:
        words = "must return grad_x, grad_weight and grad_bias"
        return {"value": words, "calls": words}
    n = ctx.ranks
    x_grad, weight_grad = _mine(ctx, layer.x_grad, -1), _mine(ctx, layer.weight_grad, 1)
    value = _value_fault(
        "grad_x", three[0], x_grad, {f"is {n} times too large: was it added up over the ranks?": n * x_grad}
    ) or _value_fault("grad_weight", three[1], weight_grad, {})
    if layer.bias_grad is not None:
        value = value or _value_fault(
            "grad_bias",
            three[2],
            layer.bias_grad,
            {
                f"is {n} times too large: every rank knows the whole gradient already": n * layer.bias_grad,
                f"is {n} times too small: every rank holds the whole bias": layer.bias_grad / n,
            },
        )
    return {"value": value, "calls": touched or _calls_fault(log, 0)}


_JUDGES: dict[str, Callable[[Context, Function, Linear], Faults]] = {
    "column_forward": _judge_column_forward,
    "column_backward": _judge_column_backward,
    "row_forward": _judge_row_forward,
    "row_backward": _judge_row_backward,
}


# ---- task 4: the gated MLP ----


@dataclass(frozen=True)
class Mlp:
    """A gated MLP with its input, and what the uncut one gives.

    Attributes:
        x, y, grad: ``[..., h]``; ``grad`` is the gradient of the output.
        gate_up: ``[2 f, h]``, first the gate, then up. down: ``[h, f]``.
        x_grad, gate_up_grad, down_grad: gradients.
    """

    x: Tensor
    gate_up: Tensor
    down: Tensor
    grad: Tensor
    y: Tensor
    x_grad: Tensor
    gate_up_grad: Tensor
    down_grad: Tensor

    def part(self, rank: int, n: int) -> dict[str, Tensor]:
        """What a rank holds."""
        return {"gate_up": _gate_up(self.gate_up, rank, n), "down": self.down.chunk(n, dim=1)[rank].clone()}


def _gate_up(fused: Tensor, rank: int, n: int) -> Tensor:
    return torch.cat([half.chunk(n)[rank] for half in fused.chunk(2)])


def new_mlp(leading: Sequence[int], hidden: int, width: int) -> Mlp:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(hidden + width)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, grad = draw(*leading, hidden), draw(*leading, hidden)
    gate_up, down = draw(2 * width, hidden) / hidden**0.5, draw(hidden, width) / width**0.5
    leaves = [value.clone().requires_grad_() for value in (x, gate_up, down)]
    gate, up = F.linear(leaves[0], leaves[1]).chunk(2, dim=-1)
    y = F.linear(F.silu(gate) * up, leaves[2])
    y.backward(grad)
    grads = [leaf.grad for leaf in leaves]
    return Mlp(x, gate_up, down, grad, y.detach(), grads[0], grads[1], grads[2])


def try_mlp(functions: Sequence[Function], cases: Sequence[dict[str, Any]], carry: Carry) -> CaseFaults:
    """Try task 4 on :data:`N_RANKS` gloo ranks.

    Args:
        functions: ``mlp_forward``, ``mlp_backward``.
        cases: arguments of :func:`new_mlp`, with the case's ``name`` beside them: ``f"{name}: forward"`` and
            ``f"{name}: backward"``.
        carry: working versions of task 3, by name.
    """
    return try_cases(f"{__name__}:mlp_trial", functions, N_RANKS, {"cases": cases}, carry)


def mlp_trial(ctx: Context, functions: dict[str, Function], params: dict[str, Any]) -> dict[str, Faults]:
    """One rank of task 4."""
    cases = Cases(ctx)
    for case in params["cases"]:
        mlp = new_mlp(**{key: value for key, value in case.items() if key != "name"})
        saved: list[Any] = []
        cases.run(f"{case['name']}: forward", partial(_judge_forward, ctx, functions, mlp, saved))
        cases.run(f"{case['name']}: backward", partial(_judge_backward, ctx, functions, mlp, saved))
    return cases.faults


def _judge_forward(ctx: Context, functions: dict[str, Function], mlp: Mlp, saved: list[Any]) -> Faults:
    part = mlp.part(ctx.rank, ctx.ranks)
    with CallLog() as log:
        found = functions["mlp_forward"](mlp.x.clone(), part)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        words = f"mlp_forward must return the output and what it saves, not {reprlib.repr(found)}"
        return {"value": words, "calls": words}
    saved.append(found[1])
    gate, up = F.linear(mlp.x, part["gate_up"]).chunk(2, dim=-1)
    sums = F.linear(F.silu(gate) * up, part["down"])
    mistakes = {
        "is a partial sum: the other ranks' parts are missing": sums,
        "has gate and up the wrong way round: the first half of the rows is the gate": _summed(
            ctx, F.linear(F.silu(up) * gate, part["down"])
        ),
    }
    return {
        "value": _value_fault("the output", found[0], mlp.y, mistakes),
        "calls": _calls_fault(log, 1),
    }


def _judge_backward(ctx: Context, functions: dict[str, Function], mlp: Mlp, saved: list[Any]) -> Faults:
    part = mlp.part(ctx.rank, ctx.ranks)
    if not saved:
        words = "mlp_forward gave nothing to go back from"
        return {"x": words, "weights": words, "calls": words}
    with CallLog() as log:
        found = functions["mlp_backward"](mlp.grad.clone(), part, saved[0])
    good = isinstance(found, (tuple, list)) and len(found) == 2 and isinstance(found[1], dict)
    if not good:
        words = f"mlp_backward must return grad_x and a dict of gradients, not {reprlib.repr(found)}"
        return {"x": words, "weights": words, "calls": words}
    leaf = mlp.x.clone().requires_grad_()
    gate, up = F.linear(leaf, part["gate_up"]).chunk(2, dim=-1)
    F.linear(F.silu(gate) * up, part["down"]).backward(mlp.grad)
    grads = found[1]
    return {
        "x": _value_fault(
            "grad_x",
            found[0],
            mlp.x_grad,
            {"is this rank's part of a sum: each rank knows only its own columns": leaf.grad},
        ),
        "weights": _value_fault(
            'the gradient of "gate_up"',
            grads.get("gate_up"),
            _gate_up(mlp.gate_up_grad, ctx.rank, ctx.ranks),
            {},
        )
        or _value_fault('the gradient of "down"', grads.get("down"), _mine(ctx, mlp.down_grad, 1), {}),
        "calls": _calls_fault(log, 1),
    }


def _summed(ctx: Context, part: Tensor) -> Tensor:
    """The sum over the ranks, through the store: no collective of ours may disturb theirs."""
    rows = ctx.gather(part.flatten().tolist())
    return torch.tensor(rows).sum(0).view_as(part)


# ---- task 5: what there is to explain ----

# A rank's part of the width must not be as long as x is wide, or whole tensors couldn't be told from parts.
_TABLE_TOKENS, _TABLE_HIDDEN, _TABLE_WIDTH = 512, 64, 192


def comparison(functions: Sequence[Function], time_limit_s: float = 40.0) -> str:
    """A table of the student's MLP, of it without the sum in the backward pass, and of one cut by rows first.

    Args:
        functions: ``mlp_forward``, ``mlp_backward``.
        time_limit_s: time limit of the whole run, seconds.

    Raises:
        NeedsTorch: PyTorch isn't installed.
    """
    outcome = try_on_ranks(f"{__name__}:table_trial", functions, TABLE_RANKS, {}, time_limit_s=time_limit_s)
    rows = outcome.results[0] if outcome.results else outcome.kept.get("rows", [])
    cells = [
        [
            "cut over 4 ranks",
            "y off by",
            "grad_x off by",
            "sent forward",
            "sent backward",
            "saved, whole",
            "saved, 1/4",
        ]
    ]
    remarks = []
    for row in rows:
        cells.append([row["name"], *row["cells"]])
        if row["words"]:
            remarks.append(f"{row['name']}: {row['words']}")
    if outcome.fault:
        remarks.append(f"the ranks were stopped: {outcome.fault}")
    return "\n".join([text_table(cells), *remarks])


def table_trial(ctx: Context, functions: dict[str, Function], params: dict[str, Any]) -> list[dict[str, Any]]:
    """One rank of the table."""
    mlp = new_mlp([_TABLE_TOKENS], _TABLE_HIDDEN, _TABLE_WIDTH)
    rows: list[dict[str, Any]] = []
    for name, forward, backward in (
        ("your MLP", functions["mlp_forward"], functions["mlp_backward"]),
        ("without the sum backward", functions["mlp_forward"], _deaf(functions["mlp_backward"])),
        ("rows first, then columns", partial(_rows_first, mlp), None),
    ):
        rows.append(_measure(ctx, name, forward, backward, mlp))
        ctx.keep("rows", rows)
    return rows


def _deaf(function: Function) -> Function:
    """The same function in a world where an all-reduce does nothing."""

    def alone(*arguments: Any) -> Any:
        with patch.object(dist, "all_reduce", lambda *_, **__: None):
            return function(*arguments)

    return alone


def _rows_first(mlp: Mlp, x: Tensor, _: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The reverse order: rows of the wide matrix, a sum of the wide tensor, columns of the narrow one."""
    n, rank = dist.get_world_size(), dist.get_rank()
    wide = F.linear(x.chunk(n, dim=-1)[rank], mlp.gate_up.chunk(n, dim=1)[rank])
    dist.all_reduce(wide)
    gate, up = wide.chunk(2, dim=-1)
    hidden = F.silu(gate) * up
    mine = F.linear(hidden, mlp.down.chunk(n)[rank])
    outputs = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(outputs, mine)
    return torch.cat(outputs, dim=-1), [x, gate, up, hidden]


def _measure(
    ctx: Context, name: str, forward: Function, backward: Function | None, mlp: Mlp
) -> dict[str, Any]:
    part = mlp.part(ctx.rank, ctx.ranks)
    row: dict[str, Any] = {"name": name, "cells": ["-"] * 6, "words": None}
    try:
        y, saved = forward(mlp.x.clone(), part)
        grad_x = None if backward is None else backward(mlp.grad.clone(), part, saved)[0]
    except NotImplementedError as error:
        return {**row, "words": str(NotWritten.from_error(error))}
    except Exception as error:
        # All ranks run the same code: what one of them can't do, none can. If not, the time limit ends it.
        return {**row, "words": describe(error)}
    narrow = 4 * mlp.x.numel()
    sent = [
        _sent(ctx, partial(forward, mlp.x.clone(), part), narrow),
        "-" if backward is None else _sent(ctx, partial(backward, mlp.grad.clone(), part, saved), narrow),
    ]
    row["cells"] = [
        _off(ctx, y, mlp.y),
        "-" if grad_x is None else _off(ctx, grad_x, mlp.x_grad),
        *sent,
        *_saved(saved, mlp),
    ]
    return row


def _off(ctx: Context, found: Any, right: Tensor) -> str:
    gap = relative_gap([found], [right]) if isinstance(found, Tensor) and found.shape == right.shape else 9.99
    return f"{max(ctx.gather(gap)):.0%}"


def _sent(ctx: Context, action: Callable[[], object], narrow: int) -> str:
    """Bytes that a rank sends, in all-reduces of a tensor as large as the input."""
    sent = count_sent(ctx, action)
    if sent is None:
        return "not counted"
    one = busbw_factor("all-reduce", ctx.ranks) * narrow
    return f"{sum(sent) / len(sent) / one:.2f}"


def _saved(saved: Any, mlp: Mlp) -> list[str]:
    """Numbers kept for the backward pass, in units of the input: those as large as whole tensors, those of a part."""
    tensors = tensors_in(saved)
    whole = [tensor for tensor in tensors if tensor.shape[-1] in (mlp.x.shape[-1], mlp.down.shape[1])]
    parts = [tensor for tensor in tensors if not any(tensor is other for other in whole)]
    return [f"{sum(tensor.numel() for tensor in kind) / mlp.x.numel():.2f}" for kind in (whole, parts)]


def by_degree(hidden: int, sequence: int, degrees: Sequence[int]) -> str:
    """A table of a GPT layer's weights and traffic for each number of tensor-parallel ranks, from the book's models."""
    cells = [
        ["t", "weights of a layer", "sent per micro-batch", "kept activations", "with sequence parallelism"]
    ]
    heads = hidden // 128
    for t in degrees:
        sizes: dict[str, Any] = {
            "sequence": sequence,
            "micro_batch": 1,
            "hidden": hidden,
            "heads": heads,
            "tensor_parallel": t,
        }
        kept = [
            layer_activations(**sizes, recompute="selective", sequence_parallel=split).kept_bytes
            for split in (False, True)
        ]
        numbers = (
            matrix_bytes(hidden, heads) / t,
            tensor.layer_sent_bytes(sequence, 1, hidden, t),
            *kept,
        )
        cells.append([str(t), *[f"{number / MB:.1f} MB" for number in numbers]])
    return text_table(cells)


# ---- task 1: by hand ----


def matrix_bytes(hidden: int, heads: int) -> float:
    """Bytes of a GPT layer's matrices in bf16: ``24 h²``, biases and norms left out."""
    # A matrix product takes two FLOP for each weight and token, and each weight has two bytes.
    return transformer.layer_matmul_flops_per_token(transformer.gpt(1, hidden, heads))


@dataclass(frozen=True)
class CutNumbers(ByHand):
    """One student's numbers for task 1: one GPT layer in bf16.

    Attributes:
        hidden: h.
        sequence: s.
        micro_batch: b.
        n_ranks: t.
        flops_per_s: F, what a rank achieves.
        bandwidth: B, bytes/s for each rank and direction.
    """

    hidden: int
    sequence: int
    micro_batch: int
    n_ranks: int
    flops_per_s: float
    bandwidth: float

    @property
    def heads(self) -> int:
        """Heads of width 128."""
        return self.hidden // 128

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"h  {self.hidden} wide, the MLP 4 h",
            f"s  {self.sequence} tokens in a sequence",
            f"b  {self.micro_batch} sequences in a micro-batch",
            f"t  {self.n_ranks} tensor-parallel ranks",
            f"F  {self.flops_per_s / 1e12:g} TFLOP/s, what one rank achieves",
            f"B  {self.bandwidth / GB:g} GB/s for each rank, in each direction",
        ]

    def kept(self, sequence_parallel: bool) -> float:
        """Bytes of activations that a rank keeps of the layer, scores recomputed."""
        return layer_activations(
            sequence=self.sequence,
            micro_batch=self.micro_batch,
            hidden=self.hidden,
            heads=self.heads,
            tensor_parallel=self.n_ranks,
            recompute="selective",
            sequence_parallel=sequence_parallel,
        ).kept_bytes

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        if quantity == "weight_bytes":
            return matrix_bytes(self.hidden, self.heads) / self.n_ranks
        if quantity == "sent_bytes":
            return tensor.layer_sent_bytes(self.sequence, self.micro_batch, self.hidden, self.n_ranks)
        if quantity == "kept_bytes":
            return self.kept(sequence_parallel=False)
        if quantity == "kept_sequence_bytes":
            return self.kept(sequence_parallel=True)
        if quantity == "ratio":
            return tensor.communication_compute_ratio(
                self.hidden, self.sequence, self.n_ranks, self.flops_per_s, self.bandwidth
            )
        raise ValueError(
            "quantity must be one of weight_bytes, sent_bytes, kept_bytes, kept_sequence_bytes, ratio, "
            f"not {quantity!r}"
        )

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        key, t = self.key(quantity), self.n_ranks
        sbh = self.sequence * self.micro_batch * self.hidden
        if quantity == "ratio":
            s, h = self.sequence, self.hidden
            return [
                (1 / key, "that is compute over communication"),
                (key / t, "each rank computes only 1/t of the layer"),
                (key * t / (t - 1), "a ring sends (t − 1)/t of it"),
                (key / 2, "forward and backward have two all-reduces each, and each number has 2 bytes"),
                (key * (h + s / 6) / h, "the attention scores are missing: h + s/6, not h"),
                (key * 3, "72 b s h (h + s/6) is forward and backward; a third of it is forward"),
            ]
        units = [
            (key / MB, "that is in MB; the answer is in bytes"),
            (key / GB, "that is in GB; the answer is in bytes"),
            (key / 2, "each number has 2 bytes"),
            (key * t, "that is all ranks together; the question is about one"),
        ]
        named: dict[str, list[tuple[float, str]]] = {
            "weight_bytes": [
                (key * t, "that is the whole layer; a rank holds 1/t of each matrix"),
                (key * 2, "a weight in bf16 has 2 bytes, not 4"),
                (key * 8 / 12, "that is the MLP alone; attention has four matrices of h by h"),
                (key * 4 / 12, "that is attention alone; the MLP has two matrices of h by 4 h"),
            ],
            "sent_bytes": [
                (key / 2, "that is the forward pass or the backward pass; the layer has both"),
                (key / 4, "that is one all-reduce; forward and backward have two each"),
                (key * t / (t - 1), "a ring sends 2 (t − 1)/t of its buffer"),
                (
                    key / (2 * (t - 1) / t),
                    "a ring all-reduce sends 2 (t − 1)/t of its buffer, not the buffer",
                ),
                (key / self.micro_batch, "that is one sequence; a micro-batch has b"),
            ],
            "kept_bytes": [
                (34.0 * sbh, "that is one rank without any split"),
                (34 / t * sbh, "norms, residuals and the blocks' inputs stay whole: 10, and 24/t"),
                (24 / t * sbh, "what every rank keeps whole is missing: 10 s b h"),
                ((10 + 24 / t) / self.micro_batch * sbh, "that is one sequence; a micro-batch has b"),
            ],
            "kept_sequence_bytes": [
                (34.0 * sbh, "that is one rank without any split"),
                (
                    (10 + 24 / t) * sbh,
                    "that is tensor parallelism alone; with sequence parallelism the 10 are split too",
                ),
                (24 / t * sbh, "the 10 s b h don't vanish: each rank keeps 1/t of them"),
                (34 / t / self.micro_batch * sbh, "that is one sequence; a micro-batch has b"),
            ],
        }
        if quantity not in named:
            return []
        return [*named[quantity], *units]


def by_hand_numbers(student: str) -> CutNumbers:
    """A student's numbers for task 1: at least two sequences, and a ratio that is neither nothing nor everything."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")

    def propose() -> CutNumbers:
        return CutNumbers(
            student=name,
            complaint=complaint,
            hidden=256 * (8 + draw.below(57)),
            sequence=draw.pick((1024, 1536, 2048, 3072, 4096, 6144, 8192)),
            micro_batch=draw.pick((2, 3, 4, 6)),
            n_ranks=draw.pick((4, 8, 16)),
            flops_per_s=10e12 * (12 + draw.below(29)),
            bandwidth=draw.pick((25, 50, 100, 150, 200, 300, 400)) * GB,
        )

    def fits(one: CutNumbers) -> bool:
        # 1/2 < key < 2 leaves the inverse too near; heads must be dealt out evenly.
        ratio = one.key("ratio") if one.heads % one.n_ranks == 0 else 0.0
        return 0.03 < ratio < 0.8

    found: CutNumbers = draw.until(propose, fits)
    return found
