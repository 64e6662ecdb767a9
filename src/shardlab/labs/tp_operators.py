"""The two operators of tensor parallelism, which the labs on tensor parallelism and on meshes rest on.

Each one's backward is the other one's forward.

Source: Shoeybi et al., Megatron-LM (arXiv 1909.08053), section 3, figure 3.
"""

# torch is untyped to mypy.
# mypy: allow-subclassing-any

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class CopyIn(torch.autograd.Function):
    """Megatron-LM's f, before the split part. Forward: nothing.
    Backward: every rank holds a part of the gradient; add them up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_over_ranks(grad, ctx.group), None


class AddUp(torch.autograd.Function):
    """Megatron-LM's g, after the split part. Forward: every rank holds
    partial sums; add them up. Backward: nothing."""

    @staticmethod
    def forward(ctx: Any, partial_sums: Tensor, group: Any) -> Tensor:
        return sum_over_ranks(partial_sums, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def sum_over_ranks(x: Tensor, group: Any) -> Tensor:
    """All-reduce into a new tensor: autograd may still need the old one.

    ``group`` None: this rank has nobody to talk to, and the sum is a copy of ``x``.
    """
    total = x.clone(memory_format=torch.contiguous_format)
    if group is not None:
        dist.all_reduce(total, group=group)
    return total
