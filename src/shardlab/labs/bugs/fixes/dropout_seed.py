"""Tensor parallelism with dropout inside and after a pair of layers."""

import torch
import torch.distributed as dist
from torch import Tensor


def mlp(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    p: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """dropout(relu(x @ a)) @ b, summed over the ranks, then dropout again.

    x  [samples, in]     the same on every rank
    a  [in, hidden/N]    this rank's columns
    b  [hidden/N, out]   this rank's rows
    p  probability of dropping an element
    seed                 the same on every rank, another one in every step
    returns this rank's hidden units after dropout [samples, hidden/N], and the
    output [samples, out], the same on every rank
    """
    # One stream for what all ranks hold alike, one for what they share out.
    common = torch.Generator().manual_seed(seed)
    own = torch.Generator().manual_seed(seed + 2**20 * (1 + dist.get_rank()))
    hidden = drop(torch.relu(x @ a), p, own)
    out = hidden @ b
    dist.all_reduce(out)
    return hidden, drop(out, p, common)


def drop(x: Tensor, p: float, draw: torch.Generator) -> Tensor:
    keep = torch.rand(x.shape, generator=draw) >= p
    return x * keep.to(x.device) / (1 - p)
