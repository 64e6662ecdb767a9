"""An all-to-all with a gradient, for the labs whose ranks exchange tokens or heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]
    """Rows to ranks; the gradient takes the way back, so it is the same exchange with the sizes swapped."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
        ctx.way_back = receive, send, group
        arrived = rows.new_empty((sum(receive), *rows.shape[1:]))
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return all_to_all_rows(grad, *ctx.way_back), None, None, None


def all_to_all_rows(rows: Tensor, send: Sequence[int], receive: Sequence[int], group: Any) -> Tensor:
    """Send the first ``send[0]`` rows to rank 0, the next ``send[1]`` to rank 1, ...; autograd goes through it.

    Every rank of ``group`` must call it, in the backward pass too.

    Args:
        rows: ``[sum(send), ...]``.
        send: rows for each rank of the group; own rows stay here.
        receive: rows that come from each rank of the group.
        group: the process group.

    Returns:
        What came, in the order of ranks: ``[sum(receive), ...]``.
    """
    result: Tensor = _AllToAll.apply(rows, list(send), list(receive), group)
    return result
