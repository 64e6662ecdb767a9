"""Model states of one rank, by the memory model, and what typical slips give for them."""

from __future__ import annotations

from typing import Any

from shardlab.models.memory import model_states

# What ZeRO-1 and ZeRO-2 tend to for ever more ranks, with 2 + 2 + 12 bytes per parameter.
_LIMITS = (1, 4, 8)
_READ_AS = ("nothing-sharded", "other-stage", "other-stage", "all-sharded")


def states(params: float, ranks: int = 1, stage: int = 0, recipe: str = "mixed-adam-16") -> float:
    """Bytes of parameters, gradients and optimizer on one rank, sharded as ZeRO's ``stage`` says."""
    return model_states(params, ranks, stage, recipe).total_bytes


def state_slips(params: float, ranks: int, stage: int) -> list[tuple[Any, ...]]:
    """What typical slips give for :func:`states` with 16 bytes per parameter, in GB."""
    slips: list[tuple[Any, ...]] = []
    if stage in (1, 2):
        slips.append((states(params) / _LIMITS[stage] / 1e9, "limit-at-finite-n"))
    slips += [
        (states(params, ranks, other) / 1e9, _READ_AS[other]) for other in (0, 1, 2, 3) if other != stage
    ]
    slips.append((2 * params / 1e9, "weights-only"))
    return slips
