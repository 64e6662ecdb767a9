"""What every rank of the data order lab runs: real samplers, loaders and DDP; who reads which sample, and when.

Start with :func:`read_epochs`, :func:`mean_without_padding` and :func:`train_uneven`. The raw measurements, without
the lab's tables::

    python -m shardlab.labs shardlab.labs.data_order_worker:worker --ranks 4 --params \
        '{"teams": [1, 2, 4], "samples": 101, "eval_samples": 21, "epochs": 3}'
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch._dynamo  # DDP imports it on first use, over a second: here all ranks share that
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from shardlab.labs.measure import Stage, largest_gap, members, run_stages
from shardlab.labs.rank import Context
from shardlab.labs.result import ranks_words
from shardlab.labs.vectors import along, flat_gradient, worst_rank
from shardlab.models.batch import rank_samples

Batch = tuple[Tensor, Tensor]

SEED = 7
BATCH = 8
FEATURES = 8
LEARNING_RATE = 0.1
# Each rank's seed where ranks differ: far apart, so that seed + epoch of one is never that of another.
SEED_STRIDE = 1000
SEED_EPOCHS = 40
# Batches of even and odd ranks where they differ: as when files of unequal length are dealt out.
UNEVEN = (4, 2)
LOADER_WORKERS = 2
DRAWS = 8  # of one rank and epoch
AUGMENTED_EPOCHS = 2


class Samples(Dataset):  # type: ignore[misc]
    """Numbered samples of a noisy linear rule: ``(index, x [FEATURES], y)``."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.x = torch.randn(n, FEATURES, generator=generator)
        self.y = self.x.sum(dim=1) + torch.randn(n, generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        return index, self.x[index], self.y[index]


# ---- the code to read ----


def read_epochs(
    dataset: Dataset,
    n_ranks: int,
    rank: int,
    epochs: int,
    set_epoch: bool,
) -> list[list[int]]:
    """The samples that one rank reads, epoch by epoch, in order."""
    sampler = DistributedSampler(dataset, n_ranks, rank, seed=SEED)  # shuffles
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    read = []
    for epoch in range(epochs):
        if set_epoch:
            sampler.set_epoch(epoch)  # forgotten, every epoch is epoch 0
        read.append([int(i) for indices, _, _ in loader for i in indices])
    return read


def mean_of_means(hits: Tensor, n_ranks: int, group: Any) -> float:
    """Biased: repeats of padding count twice, and every rank counts the same."""
    mean = hits.mean()  # hits: [samples of this rank], 0 or 1
    dist.all_reduce(mean, group=group)
    return float(mean / n_ranks)


def mean_without_padding(
    hits: Tensor,
    n_samples: int,
    n_ranks: int,
    rank: int,
    group: Any,
) -> float:
    """Exact: add up hits and counts over the ranks, padding left out."""
    # This rank's places in the padded order, where the repeats come last.
    places = torch.arange(len(hits), device=hits.device) * n_ranks + rank
    real = places < n_samples
    total = torch.stack([hits[real].sum(), real.sum()])  # [2]: hits, samples
    dist.all_reduce(total, group=group)
    return float(total[0] / total[1])


def mean_of_distinct(hits: Tensor, indices: list[int], n_ranks: int, group: Any) -> float:
    """Exact: collect every sample's hit by its number, so repeats fall together."""
    by_rank: list[Any] = [None] * n_ranks
    mine = dict(zip(indices, hits.tolist(), strict=True))
    dist.all_gather_object(by_rank, mine, group=group)
    every = {index: hit for one in by_rank for index, hit in one.items()}
    return float(sum(every.values()) / len(every))


def train_uneven(
    model: DDP,
    batches: list[Batch],
    divide_by_initial_world_size: bool,
) -> list[Tensor]:
    """Ranks with fewer batches go on answering all-reduces, with zeros."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    gradients = []
    with model.join(divide_by_initial_world_size=divide_by_initial_world_size):
        for x, y in batches:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            gradients.append(flat_gradient(model))
    return gradients


def train_until_it_hangs(ctx: Context, model: DDP, batches: list[Batch]) -> None:
    """The same without ``join``: a rank with more batches waits for ever."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        ctx.keep(f"rank{ctx.rank}", step + 1)
    # The epoch's end: some ranks wait here, others above.
    ctx.barrier()


# ---- the lab ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    began = time.time()
    teams = ctx.params["teams"]
    several = [n for n in teams if n > 1]
    stages = [
        *[
            Stage("epochs", f"orders of epochs, {ranks_words(n)}", partial(compare_epochs, ctx, n, set_epoch))
            for n in teams
            for set_epoch in (True, False)
        ],
        *[Stage("padding", f"who reads what, {ranks_words(n)}", partial(count_reads, ctx, n)) for n in teams],
        *[
            Stage("seeds", f"a seed per rank, {ranks_words(n)}", partial(count_misses, ctx, n))
            for n in several
        ],
        *[Stage("metric", f"evaluation, {ranks_words(n)}", partial(evaluate, ctx, n)) for n in teams],
        Stage("augmentation", "random numbers of loader workers", partial(augment, ctx)),
        *[
            Stage("join", "uneven batches, joined", partial(join, ctx, divide))
            for divide in (True, False)
            if ctx.ranks > 1
        ],
    ]
    return run_stages(ctx, stages, began=began, hits=hits_of_all(ctx.params["eval_samples"]).tolist())


def hang_worker(ctx: Context) -> None:
    """Uneven batches without ``join``; ends at the runner's limit."""
    model = DDP(build_model().to(ctx.device))
    train_until_it_hangs(ctx, model, uneven_batches(ctx)[ctx.rank])


def torch_order(n: int, epoch: int, shuffle: bool = True) -> list[int]:
    """The order of all samples that DistributedSampler makes for an epoch, before it deals them out."""
    if not shuffle:
        return list(range(n))
    order: list[int] = torch.randperm(n, generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
    return order


def compare_epochs(ctx: Context, n: int, set_epoch: bool) -> list[dict[str, Any]]:
    """How different the orders of epochs are, and whether each rank reads what the model of the sampler says."""
    samples, epochs = ctx.params["samples"], ctx.params["epochs"]
    mine = None
    if ctx.rank < n:
        mine = read_epochs(Samples(samples), n, ctx.rank, epochs, set_epoch)
    # [rank][epoch][position]
    reads = members(ctx, mine)
    orders = [_interleave([read[epoch] for read in reads])[:samples] for epoch in range(epochs)]
    same = [
        sum([one == other for one, other in zip(orders[epoch], orders[epoch + 1], strict=True)]) / samples
        for epoch in range(epochs - 1)
    ]
    batches = [_batches([read[epoch] for read in reads]) for epoch in range(epochs)]
    expected = [torch_order(samples, epoch if set_epoch else 0) for epoch in range(epochs)]
    row = {
        "ranks": n,
        "set_epoch": set_epoch,
        "distinct_orders": len({tuple(order) for order in orders}),
        "same_position": sum(same) / len(same),
        "repeated_batches": len(batches[0] & batches[1]) / len(batches[0]),
        "as_predicted": all(
            reads[rank][epoch] == rank_samples(expected[epoch], n, rank)
            for rank in range(n)
            for epoch in range(epochs)
        ),
    }
    return [row]


def _interleave(shares: list[list[int]]) -> list[int]:
    """The order that was dealt out one by one."""
    return [index for turn in zip(*shares, strict=True) for index in turn]


def _batches(shares: list[list[int]]) -> set[frozenset[int]]:
    return {
        frozenset(share[start : start + BATCH]) for share in shares for start in range(0, len(share), BATCH)
    }


def count_reads(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Which samples are read twice and which never, padded and cut, shuffled and not, and where N divides."""
    samples = ctx.params["samples"]
    cases = [(samples, False, True)]
    if n > 1:
        cases += [(samples, False, False), (samples, True, True), (samples // n * n, False, True)]
    return [_count_reads(ctx, n, *case) for case in cases]


def _count_reads(ctx: Context, n: int, samples: int, drop_last: bool, shuffle: bool) -> dict[str, Any]:
    mine = None
    if ctx.rank < n:
        dataset = Samples(samples)
        sampler = DistributedSampler(dataset, n, ctx.rank, shuffle=shuffle, seed=SEED, drop_last=drop_last)
        loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
        mine = [int(i) for indices, _, _ in loader for i in indices]
    reads = members(ctx, mine)
    order = torch_order(samples, 0, shuffle)
    predicted = [rank_samples(order, n, rank, drop_last) for rank in range(n)]
    return {
        "ranks": n,
        "samples": samples,
        "drop_last": drop_last,
        "shuffle": shuffle,
        **_tally(reads, samples),
        "as_predicted": reads == predicted,
    }


def _tally(reads: list[list[int]], samples: int) -> dict[str, Any]:
    times = Counter([index for read in reads for index in read])
    return {
        "once": sum([times[index] == 1 for index in range(samples)]),
        "more": [index for index in range(samples) if times[index] > 1],
        "never": [index for index in range(samples) if times[index] == 0],
    }


def count_misses(ctx: Context, n: int) -> list[dict[str, Any]]:
    """Samples that nobody and that several ranks read, when each rank shuffles with a seed of its own."""
    samples = ctx.params["samples"]
    mine = None
    if ctx.rank < n:
        seed = SEED + SEED_STRIDE * ctx.rank
        sampler = DistributedSampler(Samples(samples), n, ctx.rank, shuffle=True, seed=seed)
        mine = []
        for epoch in range(SEED_EPOCHS):
            sampler.set_epoch(epoch)
            mine.append(list(sampler))
    reads = members(ctx, mine)
    tallies = [_tally([read[epoch] for read in reads], samples) for epoch in range(SEED_EPOCHS)]
    row = {
        "ranks": n,
        "epochs": SEED_EPOCHS,
        "never": sum([len(tally["never"]) for tally in tallies]) / SEED_EPOCHS,
        "more": sum([len(tally["more"]) for tally in tallies]) / SEED_EPOCHS,
    }
    return [row]


def hits_of_all(n: int) -> Tensor:
    """Whether the rule without its noise comes within 1 of each sample, hardest first: ``[n]``, 0 or 1.

    Evaluation sets often come sorted: by length, by class, by difficulty.
    """
    dataset = Samples(n)
    return (dataset.x.sum(dim=1) - dataset.y).abs().sort(descending=True).values.lt(1).float()


def evaluate(ctx: Context, n: int) -> list[dict[str, Any]]:
    """The mean over an evaluation set, averaged over ``n`` ranks in four ways."""
    samples, group, mine = ctx.params["eval_samples"], ctx.team(n), None
    if group is not None:
        every, dataset = hits_of_all(samples).to(ctx.device), Samples(samples)
        # The metric needs the samples' numbers only; a real loop would run the model on them.
        padded = list(DistributedSampler(dataset, n, ctx.rank, shuffle=False))
        cut = list(DistributedSampler(dataset, n, ctx.rank, shuffle=False, drop_last=True))
        mine = {
            "padded": mean_of_means(every[padded], n, group),
            "drop_last": mean_of_means(every[cut], n, group),
            "weighted": mean_without_padding(every[padded], samples, n, ctx.rank, group),
            "distinct": mean_of_distinct(every[padded], padded, n, group),
        }
    means = members(ctx, mine)
    return [{"ranks": n, "way": way, "mean": mean} for way, mean in means[0].items()]


# ---- uneven inputs ----


def build_model() -> nn.Module:
    """A linear model; the seed gives every rank the same start."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(start_dim=0))


def uneven_batches(ctx: Context) -> list[list[Batch]]:
    """Every rank's batches, fewer on odd ranks: ``[rank][step]`` of ``x [BATCH, FEATURES]`` and ``y [BATCH]``."""
    counts = [UNEVEN[rank % 2] for rank in range(ctx.ranks)]
    dataset = Samples(BATCH * sum(counts))
    x, y = dataset.x.to(ctx.device).split(BATCH), dataset.y.to(ctx.device).split(BATCH)
    pairs = iter(zip(x, y, strict=True))
    return [[next(pairs) for _ in range(steps)] for steps in counts]


def join(ctx: Context, divide_by_initial_world_size: bool) -> list[dict[str, Any]]:
    """What ``join`` divides the sum of gradients by, step by step; the parameters against one process that does so."""
    batches = uneven_batches(ctx)
    model = DDP(build_model().to(ctx.device))
    gradients = train_uneven(model, batches[ctx.rank], divide_by_initial_world_size)
    alone = build_model().to(ctx.device)
    sums = train_alone(alone, batches, ctx.ranks if divide_by_initial_world_size else None)
    gap = worst_rank(ctx, largest_gap(model.parameters(), alone.parameters()))
    # Rank 0 has a batch in every step.
    measured = zip(gradients, sums, strict=False)
    divisors = [1 / along(gradient, total) for gradient, total in measured]
    row = {
        "divide_by_initial_world_size": divide_by_initial_world_size,
        "batches": [len(mine) for mine in batches],
        "divisors": ctx.gather(divisors)[0],
        "parameter_gap": gap,
    }
    return [row]


def train_alone(model: nn.Module, batches: list[list[Batch]], divisor: int | None) -> list[Tensor]:
    """One process that adds up the gradients of all ranks that have a batch; divides by them, or by ``divisor``.

    Returns the sums, ``[step]`` of ``[parameters]``.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    sums = []
    for step in range(max(len(mine) for mine in batches)):
        active = [mine[step] for mine in batches if step < len(mine)]
        optimizer.zero_grad()
        for x, y in active:
            F.mse_loss(model(x), y).backward()
        sums.append(flat_gradient(model))
        for parameter in model.parameters():
            parameter.grad /= divisor or len(active)
        optimizer.step()
    return sums


# ---- random numbers in loader workers ----


class OwnGenerator(Dataset):  # type: ignore[misc]
    """Augments with a generator made once, with the dataset: every loader worker gets the same copy of it."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)

    def __len__(self) -> int:
        return DRAWS

    def __getitem__(self, index: int) -> int:
        return int(self.rng.integers(2**62))


class GlobalState(OwnGenerator):
    """Augments with numpy's global generator, which torch seeds in each worker from this rank's torch seed."""

    def __getitem__(self, index: int) -> int:
        return int(np.random.randint(2**62, dtype=np.int64))


def seed_worker(worker_id: int, rank: int, epoch: int) -> None:
    """Mends it: a generator for each rank, epoch and worker."""
    get_worker_info().dataset.rng = np.random.default_rng([SEED, epoch, rank, worker_id])


def augment(ctx: Context) -> list[dict[str, Any]]:
    """How many different random numbers loader workers draw, of all that they draw; on two ranks.

    Only where workers start by fork: elsewhere each imports torch anew, for seconds.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return []
    n = min(2, ctx.ranks)
    ways: dict[str, tuple[type[OwnGenerator], int, bool]] = {
        "own_generator": (OwnGenerator, 0, False),
        "same_torch_seed": (GlobalState, 0, False),
        "rank_torch_seed": (GlobalState, SEED_STRIDE * ctx.rank, False),
        "seeded_worker": (OwnGenerator, 0, True),
    }
    rows = []
    for way, (make, torch_seed, mended) in ways.items():
        mine = None
        if ctx.rank < n:
            torch.manual_seed(torch_seed)
            mine = draw(make(), partial(seed_worker, rank=ctx.rank) if mended else None)
        draws = [number for numbers in members(ctx, mine) for number in numbers]
        row = {"way": way, "ranks": n, "workers": LOADER_WORKERS, "epochs": AUGMENTED_EPOCHS}
        rows.append(row | {"draws": len(draws), "distinct": len(set(draws))})
    return rows


def draw(dataset: Dataset, seed: Callable[..., None] | None) -> list[int]:
    """All random numbers of this rank's loader workers, over the epochs."""
    numbers: list[int] = []
    for epoch in range(AUGMENTED_EPOCHS):
        loader = DataLoader(
            dataset,
            batch_size=1,
            num_workers=LOADER_WORKERS,
            collate_fn=_first,
            worker_init_fn=partial(seed, epoch=epoch) if seed else None,
            multiprocessing_context="fork",
        )
        numbers.extend(loader)
    return numbers


def _first(batch: list[int]) -> int:
    """A batch of one, without a tensor around it."""
    return batch[0]
