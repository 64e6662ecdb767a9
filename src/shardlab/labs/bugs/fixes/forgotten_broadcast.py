"""The start of a data-parallel run."""

import torch
import torch.distributed as dist
from torch import nn


def build_model(features: int, seed: int) -> nn.Module:
    """One model for all ranks: what a single process builds from this seed.

    Afterwards each rank draws random numbers of its own, as dropout must: the
    ranks see different samples, so they drop different units.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(features, 4 * features),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(4 * features, features),
    )
    # The seed alone would do; a broadcast holds whatever the ranks did before.
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    torch.manual_seed(seed + 1 + dist.get_rank())
    return model
