"""Whole models as one vector: gradients and parameters, their lengths and distances. Runs on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from shardlab.labs.measure import worst
from shardlab.labs.rank import Context


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements in one vector, a copy."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def flat_gradient(model: nn.Module) -> Tensor:
    """The gradient that the model holds, in one vector."""
    return flat([parameter.grad for parameter in model.parameters()])


def gradient_of(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """The gradient of ``loss()``, in one vector; the model's own stays as it is."""
    return flat(torch.autograd.grad(loss(), list(model.parameters())))


def norm(vector: Tensor) -> float:
    """2-norm."""
    return float(torch.linalg.vector_norm(vector.double()))


def relative_gap(vector: Tensor, wanted: Tensor) -> float:
    """``|vector - wanted| / |wanted|``, 2-norms."""
    return norm(vector - wanted) / norm(wanted)


def along(vector: Tensor, wanted: Tensor) -> float:
    """How many times ``wanted`` there is in ``vector``: 1 if they are equal, k if it is k times as long."""
    return float(vector.double() @ wanted.double() / (wanted.double() @ wanted.double()))


def worst_rank(ctx: Context, mine: float) -> float:
    """The largest of all ranks' values; NaN if there is one."""
    return worst(ctx.gather(mine))
