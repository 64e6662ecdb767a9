"""Each bug's trial: run a program's function on real ranks, and compare with one process that has all the data.

A trial is called on every rank with the program and a :class:`Case`; the case's random numbers are the same on all
ranks, so each can compute the truth by itself. It returns what is seen from outside, as :class:`Sight` rows.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.labs.measure import largest_gap
from shardlab.labs.rank import Context

# fp32 sums in another order; a fault shows at a hundred times as much.
SAME = 1e-4
STEPS = 3


@dataclass(frozen=True)
class Sight:
    """One thing that can be seen.

    Attributes:
        words: what it is.
        value: on this rank; right if at most ``allowed``. NaN is wrong.
        allowed: see ``value``.
    """

    words: str
    value: float
    allowed: float = SAME


class Case:
    """Sizes and numbers drawn from one seed, the same on every rank."""

    def __init__(self, ctx: Context, seed: int) -> None:
        self.ctx, self.rank, self.ranks = ctx, ctx.rank, ctx.ranks
        self._sizes = random.Random(seed)
        self._numbers = torch.Generator().manual_seed(seed)

    def size(self, least: int, most: int) -> int:
        """A whole number."""
        return self._sizes.randint(least, most)

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers, on this rank's device."""
        return torch.randn(shape, generator=self._numbers).to(self.ctx.device)

    def share(self, whole: Tensor) -> Tensor:
        """This rank's equal part of the first dim, a copy."""
        return whole.chunk(self.ranks)[self.rank].clone()

    def everyone(self, value: Any) -> list[Any]:
        """Every rank's value."""
        return self.ctx.gather(value)


def tensor(value: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """``value``, if it is a tensor of this shape: otherwise an error that the author of the program understands."""
    if not isinstance(value, Tensor) or tuple(value.shape) != tuple(shape):
        found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{what} must be a tensor of shape {tuple(shape)}, not {found}")
    return value.detach()


def pair(value: Any, what: str) -> tuple[Any, Any]:
    """``value``, if it is two things."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{what} must be a pair, not {value!r}")
    return value[0], value[1]


def gap(ours: Tensor, truth: Tensor) -> float:
    """Largest difference, relative to the largest number of the truth; NaN if there is one."""
    return float(largest_gap([ours], [truth]) / max(truth.abs().max().item(), 1e-12))


# ---- data parallelism ----


def missing_all_reduce(program: Any, case: Case) -> list[Sight]:
    inputs, outputs, samples = case.size(3, 20), case.size(2, 9), case.size(2, 12)
    weight = truth = case.normal(outputs, inputs)
    loss_gap = 0.0
    for _ in range(STEPS):
        x, y = case.normal(samples * case.ranks, inputs), case.normal(samples * case.ranks, outputs)
        weight, loss = pair(
            program.training_step(weight.clone(), case.share(x), case.share(y), 0.3), "training_step's result"
        )
        weight = tensor(weight, (outputs, inputs), "the new weight")
        error = x @ truth.T - y
        loss_gap = max(loss_gap, gap(tensor(loss, (), "the loss"), error.square().mean()))
        truth = truth - 0.3 * 2 * error.T @ x / error.numel()
    return [
        Sight("weights against one process", gap(weight, truth)),
        Sight("loss against one process", loss_gap),
    ]


def wrong_gradient_scale(program: Any, case: Case) -> list[Sight]:
    inputs, outputs = case.size(3, 20), case.size(2, 9)
    samples, micro_batches = case.size(1, 8), case.size(2, 5)
    weight = case.normal(outputs, inputs)
    size = samples * micro_batches * case.ranks
    x, y = case.normal(size, inputs), case.normal(size, outputs)
    mine = list(zip(case.share(x).split(samples), case.share(y).split(samples), strict=True))
    ours = tensor(program.accumulated_gradient(weight.clone(), mine), (outputs, inputs), "the gradient")
    error = x @ weight.T - y
    truth = 2 * error.T @ x / error.numel()
    return [
        Sight("gradient against one process", gap(ours, truth)),
        Sight("its length against one process, less 1", abs((ours.norm() / truth.norm()).item() - 1)),
    ]


def forgotten_broadcast(program: Any, case: Case) -> list[Sight]:
    features, seed = case.size(2, 9), case.size(1, 10**6)
    # Ranks come here with different random states, as in any program that has done something before.
    torch.manual_seed(case.rank)
    model = program.build_model(features, seed)
    if not isinstance(model, nn.Module):
        raise TypeError(f"build_model must return the model, not {model!r}")
    own = torch.rand(8).tolist()
    torch.manual_seed(seed)
    truth = nn.Sequential(nn.Linear(features, 4 * features), nn.ReLU(), nn.Linear(4 * features, features))
    twins = sum(other == own for other in case.everyone(own)) - 1
    return [
        Sight(
            "parameters against one process",
            largest_gap([p.cpu() for p in model.parameters()], truth.parameters()),
            0.0,
        ),
        Sight("ranks that drop the same units as this one", twins, 0.0),
    ]


def unequal_collectives(program: Any, case: Case) -> list[Sight]:
    features = case.size(2, 9)
    shapes = {"trunk": (features, features), "gate": (features,), "expert": (features, features)}
    # Of a plain dict it would sort the names.
    zeros = OrderedDict([(name, nn.Parameter(torch.zeros(shape))) for name, shape in shapes.items()])
    model = nn.ParameterDict(zeros)
    model.to(case.ctx.device)
    gaps = []
    # One rank leaves out the last parameter: whoever waits for it there waits for ever. Then others are left out.
    some = case.size(0, case.ranks - 1)
    plans: tuple[dict[str, set[int]], ...] = (
        {"expert": {some}},
        {"trunk": {some}, "expert": set(range(1, case.ranks))},
        {},
    )
    for left_out in plans:
        whole = {name: case.normal(case.ranks, *shape) for name, shape in shapes.items()}
        for name, gradients in whole.items():
            unused = left_out.get(name, set())
            gradients[list(unused)] = 0
            model[name].grad = None if case.rank in unused else gradients[case.rank].clone()
        program.average_gradients(model)
        # A rank that is ahead must not meet the others in the next round's collectives.
        case.ctx.barrier()
        gaps += [
            gap(tensor(model[name].grad, shapes[name], f"the gradient of {name}"), gradients.mean(0))
            for name, gradients in whole.items()
        ]
    return [Sight("gradients against one process", worst(gaps))]


def step_before_sync(program: Any, case: Case) -> list[Sight]:
    inputs, outputs, samples = case.size(3, 20), case.size(2, 9), case.size(2, 12)
    truth = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    for parameter in truth.parameters():
        parameter.data = 0.3 * case.normal(*parameter.shape).cpu()
    truth = truth.to(case.ctx.device)
    model = copy.deepcopy(truth)
    # Not linear in the gradient: the mean of the ranks' own steps is another step. A large eps keeps fp32 apart.
    ours, its = [torch.optim.Adam(net.parameters(), lr=0.05, eps=1e-3) for net in (model, truth)]
    loss_gap = 0.0
    for _ in range(STEPS):
        x, y = case.normal(samples * case.ranks, inputs), case.normal(samples * case.ranks, outputs)
        loss = tensor(program.training_step(model, ours, case.share(x), case.share(y)), (), "the loss")
        its.zero_grad()
        whole = F.mse_loss(truth(x), y)
        whole.backward()
        its.step()
        loss_gap = max(loss_gap, gap(loss, whole.detach()))
    return [
        Sight("weights against one process", largest_gap(model.parameters(), truth.parameters())),
        Sight("loss against one process", loss_gap),
    ]


def shard_overlap(program: Any, case: Case) -> list[Sight]:
    samples = case.size(5 * case.ranks, 30 * case.ranks)
    epochs = [program.my_samples(samples, epoch) for epoch in range(3)]
    for mine in epochs:
        if not isinstance(mine, list) or not all(type(i) is int and 0 <= i < samples for i in mine):
            raise TypeError(f"my_samples must return a list of sample numbers below {samples}, not {mine!r}")
    everyone = case.everyone(epochs)
    share = samples // case.ranks
    whole = [[i for mine in one for i in mine] for one in zip(*everyone, strict=True)]
    again = sum(
        whole[0] == later or set(epochs[0]) == set(mine)
        for later, mine in zip(whole[1:], epochs[1:], strict=True)
    )
    ordered = sum(mine == sorted(mine) for mine in epochs)
    return [
        Sight("samples used twice in an epoch", max(len(one) - len(set(one)) for one in whole), 0.0),
        Sight(
            "samples never used, beyond what is left over",
            max(samples - len(set(one)) - samples % case.ranks for one in whole),
            0.0,
        ),
        Sight("samples more or fewer than a share", max(abs(len(mine) - share) for mine in epochs), 0.0),
        Sight("epochs that repeat the first, or are not shuffled", again + ordered, 0.0),
    ]


def batch_norm_statistics(program: Any, case: Case) -> list[Sight]:
    channels = case.size(2, 9)
    sizes = [case.size(1, 12) for _ in range(case.ranks)]
    # Ranks around different means, far from 0.
    parts = [case.normal(size, channels) + 5 + 3 * case.normal(channels) for size in sizes]
    mean, variance = pair(program.batch_statistics(parts[case.rank].clone()), "batch_statistics' result")
    whole = torch.cat(parts)
    return [
        Sight("mean against one process", gap(tensor(mean, (channels,), "the mean"), whole.mean(0))),
        Sight(
            "variance against one process",
            gap(tensor(variance, (channels,), "the variance"), whole.var(0, unbiased=False)),
        ),
    ]


def unequal_tokens(program: Any, case: Case) -> list[Sight]:
    texts, length = case.size(1, 5), case.size(4, 16)
    losses = case.normal(case.ranks, texts, length).exp()
    empty = case.size(0, case.ranks - 1)
    mask = torch.zeros(case.ranks, texts, length, device=case.ctx.device)
    for rank in range(case.ranks):
        for text in range(texts):
            mask[rank, text, : 0 if rank == empty else case.size(1, length)] = 1
    ours = program.mean_loss(losses[case.rank].clone(), mask[case.rank].clone())
    truth = (losses * mask).sum() / mask.sum()
    return [Sight("loss against one process", gap(tensor(ours, (), "the loss"), truth))]


# ---- tensor parallelism, and sharded state ----


def wrong_group(program: Any, case: Case) -> list[Sight]:
    gradient_gap = strangers = 0.0
    for width in [n for n in range(1, case.ranks + 1) if case.ranks % n == 0]:
        group = program.gradient_group(width)
        whole = case.normal(case.ranks, case.size(2, 9))
        if group is None:
            # To torch it would mean all ranks, and those in a group would wait for this one.
            gradient_gap = float("nan")
            continue
        mine = whole[case.rank].clone()
        dist.all_reduce(mine, group=group)
        mine /= dist.get_world_size(group)
        alike = [rank for rank in range(case.ranks) if rank % width == case.rank % width]
        gradient_gap = worst([gradient_gap, gap(mine, whole[alike].mean(0))])
        members = dist.get_process_group_ranks(group)
        strangers = max(strangers, len(set(members) - set(alike)))
    return [
        Sight("gradient against one process", gradient_gap),
        Sight("ranks in the group that hold other parameters", strangers, 0.0),
    ]


def dropout_seed(program: Any, case: Case) -> list[Sight]:
    samples, inputs, outputs, hidden = (
        case.size(16, 24),
        case.size(4, 9),
        case.size(12, 24),
        case.size(12, 20),
    )
    p = (0.2, 0.35, 0.5)[case.size(0, 2)]
    x = case.normal(samples, inputs).abs()
    # Positive everywhere, so that a zero has been dropped.
    a = case.normal(inputs, case.ranks * hidden).abs()
    b = case.normal(case.ranks * hidden, outputs)
    slices = a.chunk(case.ranks, 1)[case.rank], b.chunk(case.ranks, 0)[case.rank]
    first, second = [
        [
            tensor(value, shape, what)
            for value, shape, what in zip(
                pair(program.mlp(x.clone(), slices[0].clone(), slices[1].clone(), p, seed), "mlp's result"),
                ((samples, hidden), (samples, outputs)),
                ("the hidden units", "the output"),
                strict=True,
            )
        ]
        for seed in (case.size(0, 2**15), case.size(0, 2**15))
    ]
    units, out = first
    own, kept = (units == 0), out == 0
    everyone = torch.tensor(case.everyone(units.tolist()), device=case.ctx.device)
    # What one process gets with these very masks.
    parts = zip(everyone, b.chunk(case.ranks, 0), strict=True)
    truth = torch.stack([part @ rows for part, rows in parts]).sum(0) / (1 - p)
    masks = torch.relu(x @ slices[0]) * (~own) / (1 - p)
    outs = case.everyone(out.tolist())
    others = [mask == 0 for rank, mask in enumerate(everyone) if rank != case.rank]
    return [
        Sight("output against one process with the same masks", gap(out, truth * (~kept))),
        Sight("hidden units against one process with the same masks", gap(units, masks)),
        Sight("outputs of other ranks that differ", sum(other != outs[case.rank] for other in outs), 0.0),
        Sight(
            "likeness of two ranks' masks (0 by chance, 1 equal)",
            max(likeness(own, mask) for mask in others),
            0.35,
        ),
        Sight("likeness of two steps' masks", likeness(own, second[0] == 0), 0.35),
        Sight("likeness of two steps' output masks", likeness(kept, second[1] == 0), 0.35),
        Sight(
            "rate of dropping, off by",
            worst([abs(mask.float().mean().item() - p) for mask in (own, kept)]),
            0.15,
        ),
    ]


def likeness(one: Tensor, other: Tensor) -> float:
    """Absolute correlation of two masks; 1 if either is all the same, which no mask should be."""
    centred = [mask.double() - mask.double().mean() for mask in (one, other)]
    norms = centred[0].norm() * centred[1].norm()
    return abs(((centred[0] * centred[1]).sum() / norms).item()) if norms > 0 else 1.0


def local_clip(program: Any, case: Case) -> list[Sight]:
    gaps, norm_gaps = [], []
    # Clipped hard, clipped a little, not clipped.
    for factor in (0.1, 0.8, 1.5):
        sizes = [case.size(1, 20) for _ in range(2)]
        whole = [case.normal(case.ranks, size) * (1 + 3 * case.normal(case.ranks, 1).abs()) for size in sizes]
        norm = torch.stack([part.square().sum() for part in whole]).sum().sqrt()
        shards = [part[case.rank].clone() for part in whole]
        limit = factor * norm.item()
        ours = tensor(program.clip_gradient(shards, limit), (), "the norm")
        norm_gaps.append(gap(ours, norm))
        gaps += [
            gap(tensor(shard, part[case.rank].shape, "a shard"), part[case.rank] * min(1.0, factor))
            for shard, part in zip(shards, whole, strict=True)
        ]
    return [
        Sight("clipped gradient against one process", worst(gaps)),
        Sight("norm against one process", worst(norm_gaps)),
    ]


def worst(values: Sequence[float]) -> float:
    """The largest; NaN if there is one."""
    return float("nan") if any(value != value for value in values) else max(values)


TRIALS: dict[str, Callable[[Any, Case], list[Sight]]] = {
    trial.__name__: trial
    for trial in (
        missing_all_reduce,
        wrong_gradient_scale,
        forgotten_broadcast,
        unequal_collectives,
        wrong_group,
        shard_overlap,
        dropout_seed,
        step_before_sync,
        batch_norm_statistics,
        unequal_tokens,
        local_clip,
    )
}
