"""A model with a branch that not every rank's samples take."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    """Replace every parameter's gradient by its mean over all ranks.

    A rank whose samples did not take a branch has a gradient of zero there.
    torch spares itself the zeros: the parameter's ``grad`` is then None.
    """
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
