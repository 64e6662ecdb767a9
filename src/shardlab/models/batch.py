"""Batch, learning rate, accumulation and the order of data: the arithmetic that data parallelism asks of you.

Small pure functions, each the size of one question: how large is the global batch, how often does the
scheduler step, which rank reads which sample, what is averaged over what.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.checks import choice, count, non_negative, positive
from shardlab.models.lehmer import Lehmer

# ---------------------------------------------------------------- batch size and accumulation


def global_batch(micro_batch: int, accumulation: int, data_parallel: int) -> int:
    """Samples per optimizer step: ``micro_batch * accumulation * data_parallel``.

    Raises:
        ValueError: a factor is not a whole number from 1.
    """
    samples = count("micro_batch", micro_batch) * count("accumulation", accumulation)
    return samples * count("data_parallel", data_parallel)


def accumulation_steps(global_batch_size: int, micro_batch: int, data_parallel: int) -> int:
    """Micro-batches per rank and optimizer step: ``global_batch / (micro_batch * data_parallel)``.

    Raises:
        ValueError: the division leaves a remainder (the message names the nearest global batches that work).
    """
    samples = count("global_batch_size", global_batch_size)
    at_once = count("micro_batch", micro_batch) * count("data_parallel", data_parallel)
    if samples % at_once:
        below = samples // at_once * at_once
        near = f"{below} or {below + at_once}" if below else f"{at_once}"
        raise ValueError(
            f"global_batch_size must be a multiple of micro_batch x data_parallel = {at_once} "
            f"(nearest: {near}), not {samples}"
        )
    return samples // at_once


def accumulated_step_time_s(
    compute_s: float, sync_s: float, accumulation: int, sync_every_micro_batch: bool = False
) -> float:
    """Seconds of one optimizer step without overlap: ``k compute + sync``, or ``k (compute + sync)``.

    If a step with k micro-batches takes k times a step with one, accumulation is not skipping the
    synchronisation (``no_sync``).

    Args:
        compute_s: forward and backward of one micro-batch.
        sync_s: one gradient synchronisation.
        accumulation: ``k``.
        sync_every_micro_batch: True when every micro-batch synchronises.

    Raises:
        ValueError: an argument is out of range.
    """
    micro_batches = count("accumulation", accumulation)
    compute = non_negative("compute_s", compute_s, "seconds")
    sync = non_negative("sync_s", sync_s, "seconds")
    return micro_batches * compute + sync * (micro_batches if sync_every_micro_batch else 1)


# ---------------------------------------------------------------- learning rate

LR_RULES = ("linear", "sqrt", "none")


def scaled_learning_rate(base_lr: float, base_batch: float, new_batch: float, rule: str = "linear") -> float:
    """The learning rate for another global batch: ``lr k`` (linear), ``lr sqrt(k)`` (sqrt) or ``lr`` (none).

    k = new global batch / old global batch, accumulation included. Linear with warm-up is a rule for SGD (0.1
    at 256 images in Goyal et al.); the square root is derived for Adam, where beta1, beta2 and epsilon move too
    (:func:`adam_sqrt_scaling`). Both are starting points to be tested. If accumulation keeps the global
    batch, k is 1 and nothing changes.

    Raises:
        ValueError: a size is not above 0 or the rule is unknown.

    Source: linear: Goyal et al. (arXiv 1706.02677), section 2.1; square root: Krizhevsky (arXiv 1404.5997)
    and, derived for Adam, Malladi et al. (arXiv 2205.10287).
    """
    rate = positive("base_lr", base_lr)
    ratio = positive("new_batch", new_batch, "samples") / positive("base_batch", base_batch, "samples")
    kind = choice("rule", rule, LR_RULES)
    if kind == "none":
        return rate
    return rate * ratio if kind == "linear" else rate * math.sqrt(ratio)


@dataclass(frozen=True)
class AdamSettings:
    """Adam's settings: learning rate, the two decay rates and epsilon."""

    lr: float
    beta1: float
    beta2: float
    epsilon: float


def adam_sqrt_scaling(
    lr: float, beta1: float, beta2: float, epsilon: float, base_batch: float, new_batch: float
) -> AdamSettings:
    """Adam's settings for another batch: ``lr sqrt(k)``, ``1 - k (1 - beta)`` for both betas, ``epsilon / sqrt(k)``.

    Raises:
        ValueError: a number is out of range, or k is so large that a beta would fall to 0.

    Source: Malladi et al., On the SDEs and Scaling Rules for Adaptive Gradient Algorithms (arXiv 2205.10287),
    the square-root scaling rule for Adam.
    """
    ratio = positive("new_batch", new_batch, "samples") / positive("base_batch", base_batch, "samples")
    betas = []
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        decay = non_negative(name, value)
        if decay >= 1:
            raise ValueError(f"{name} must be a number from 0 to below 1, not {value!r}")
        scaled = 1 - ratio * (1 - decay)
        if scaled < 0:
            raise ValueError(
                f"new_batch must be at most base_batch / (1 - {name}) = {float(base_batch) / (1 - decay):.6g}: "
                f"the square-root rule would make {name} negative, not {new_batch!r}"
            )
        betas.append(scaled)
    return AdamSettings(
        lr=positive("lr", lr) * math.sqrt(ratio),
        beta1=betas[0],
        beta2=betas[1],
        epsilon=non_negative("epsilon", epsilon) / math.sqrt(ratio),
    )


def warmup_learning_rate(update: int, warmup_updates: int, peak_lr: float, start_lr: float = 0.0) -> float:
    """Learning rate after ``update`` optimizer steps of a linear warm-up: from ``start_lr`` to ``peak_lr``.

    ``start + (peak - start) * min(update / warmup_updates, 1)``. With no warm-up it is the peak.

    Raises:
        ValueError: a number is out of range.

    Source: gradual warm-up, Goyal et al. (arXiv 1706.02677), section 2.2.
    """
    done = count("update", update, least=0)
    ramp = count("warmup_updates", warmup_updates, least=0)
    peak = positive("peak_lr", peak_lr)
    start = non_negative("start_lr", start_lr)
    return peak if done >= ramp else start + (peak - start) * done / ramp


@dataclass(frozen=True)
class SchedulerPlan:
    """How many times things happen in a run with accumulation.

    Attributes:
        micro_steps: forward and backward passes per rank.
        optimizer_steps: updates; the scheduler should be built for this number and step once per update.
        warmup_updates: updates of warm-up.
        warmup_ends_after_updates: when it really ends, with ``scheduler_steps_per_update`` steps per update.
        global_batch: samples per update.
    """

    micro_steps: int
    optimizer_steps: int
    warmup_updates: float
    warmup_ends_after_updates: float
    global_batch: int


def scheduler_plan(
    batches_per_epoch: int,
    epochs: int,
    accumulation: int,
    warmup_fraction: float,
    micro_batch: int = 1,
    data_parallel: int = 1,
    scheduler_steps_per_update: int = 1,
) -> SchedulerPlan:
    """Optimizer steps, warm-up and global batch of a run, and what a scheduler that steps too often does to it.

    Count updates everywhere (build for ``optimizer_steps``, step once per update) or micro-steps everywhere; a
    scheduler built for updates that steps k times per update (once per micro-batch, or once per process) ends
    its warm-up k times too early. An incomplete group of micro-batches at the end of an epoch is dropped.

    Args:
        batches_per_epoch: micro-batches that one rank sees per epoch.
        warmup_fraction: share of all updates, 0 to 1.
        scheduler_steps_per_update: k; 1 is right.

    Raises:
        ValueError: a number is out of range, or an epoch has fewer batches than one update needs.
    """
    batches = count("batches_per_epoch", batches_per_epoch)
    rounds = count("epochs", epochs)
    group = count("accumulation", accumulation)
    if group > batches:
        raise ValueError(f"accumulation must be at most batches_per_epoch = {batches}, not {group}")
    share = non_negative("warmup_fraction", warmup_fraction)
    if share > 1:
        raise ValueError(f"warmup_fraction must be a number from 0 to 1, not {warmup_fraction!r}")
    updates = batches // group * rounds
    too_often = count("scheduler_steps_per_update", scheduler_steps_per_update)
    return SchedulerPlan(
        micro_steps=batches * rounds,
        optimizer_steps=updates,
        warmup_updates=share * updates,
        warmup_ends_after_updates=share * updates / too_often,
        global_batch=global_batch(micro_batch, group, data_parallel),
    )


# ---------------------------------------------------------------- averages


def _finite(name: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return number


@dataclass(frozen=True)
class TokenAverage:
    """The loss of one optimizer step, averaged three ways.

    Attributes:
        per_token: sum of all token losses / all tokens: what a single large batch computes.
        mean_of_means: every micro-batch counts the same: short ones weigh too much.
        relative_error: ``mean_of_means / per_token - 1``.
        tokens: all tokens.
    """

    per_token: float
    mean_of_means: float
    relative_error: float
    tokens: int


def token_average(tokens: list[int], mean_losses: list[float]) -> TokenAverage:
    """Average the losses of micro-batches (over accumulation and over ranks) by tokens, and by micro-batch.

    Args:
        tokens: tokens that count in the loss, per micro-batch.
        mean_losses: their mean loss.

    Raises:
        ValueError: lists of different length or empty, no tokens, or losses that are not finite.
    """
    if not tokens or len(tokens) != len(mean_losses):
        raise ValueError(
            f"tokens and mean_losses must be two lists of the same length, not {len(tokens)} and {len(mean_losses)}"
        )
    all_tokens = 0
    weighted = plain = 0.0
    for position in range(len(tokens)):
        size = count(f"tokens[{position}]", tokens[position], least=0)
        loss = _finite(f"mean_losses[{position}]", mean_losses[position])
        all_tokens += size
        weighted += size * loss
        plain += loss
    if not all_tokens:
        raise ValueError("tokens must hold at least one token, not 0 in every micro-batch")
    right = weighted / all_tokens
    naive = plain / len(tokens)
    return TokenAverage(
        per_token=right,
        mean_of_means=naive,
        relative_error=naive / right - 1 if right else 0.0,
        tokens=all_tokens,
    )


def token_loss_scale(global_tokens: int, data_parallel: int, averages: bool = True) -> float:
    """What to multiply a rank's SUM of token losses by, so that the averaged gradient is per token of the whole step.

    ``data_parallel / global_tokens`` where the framework averages over ranks, as DDP does; ``1 / global_tokens``
    where it sums. Forgetting the factor shrinks the gradient ``data_parallel`` times.

    Raises:
        ValueError: a number is not a whole number from 1.
    """
    ranks = count("data_parallel", data_parallel)
    tokens = count("global_tokens", global_tokens)
    return (ranks if averages else 1) / tokens


TOKEN_WEIGHTINGS = ("global_tokens", "mean_of_means", "rank_tokens", "world_missing")


@dataclass(frozen=True)
class TokenWeighting:
    """What a token counts in the gradient of one optimizer step, in units of the right ``1 / all tokens``.

    Attributes:
        weights: ``weights[rank][k]``, of every token of micro-batch k; 1 is right.
        gradient_factor: all weight handed out, over the right amount: the factor on the whole gradient.
        least, most: the extremes of ``weights``.
        misplaced: share of the weight handed out that lies on other tokens than it should, 0 to 1.
    """

    weights: list[list[float]]
    gradient_factor: float
    least: float
    most: float
    misplaced: float


def token_weighting(tokens: list[list[int]], weighting: str = "global_tokens") -> TokenWeighting:
    """The weight of each token under one of :data:`TOKEN_WEIGHTINGS`, on N ranks whose gradients DDP averages.

    With t tokens in a micro-batch, t_r on its rank, T in all and G micro-batches on the rank, a token's weight is

    ===============  ==========================================================  =================
    global_tokens    sums times ``N / T`` (:func:`token_loss_scale`): right      ``1``
    mean_of_means    the mean over each micro-batch, over G, over ranks          ``T / (N G t)``
    rank_tokens      all of a rank's micro-batches together, then over ranks     ``T / (N t_r)``
    world_missing    sums times ``1 / T``, and DDP still averages                ``1 / N``
    ===============  ==========================================================  =================

    Args:
        tokens: ``tokens[rank][k]``, tokens that count in the loss. A mean over none is 0/0, so none may be empty.
        weighting: how the loss is averaged.

    Raises:
        ValueError: no ranks, a rank without micro-batches, a micro-batch without tokens, or an unknown weighting.
    """
    kind = choice("weighting", weighting, TOKEN_WEIGHTINGS)
    if not tokens:
        raise ValueError("tokens must hold a list per rank, not 0 lists")
    ranks = len(tokens)
    on_rank = []
    for rank in range(ranks):
        if not tokens[rank]:
            raise ValueError(f"tokens[{rank}] must hold at least one micro-batch, not none")
        on_rank.append(0)
        for step in range(len(tokens[rank])):
            on_rank[rank] += count(f"tokens[{rank}][{step}]", tokens[rank][step])
    total = sum(on_rank)
    scale = token_loss_scale(total, ranks, averages=kind != "world_missing")
    weights = []
    for rank in range(ranks):
        mine = tokens[rank]
        if kind == "mean_of_means":
            weights.append([total / (ranks * len(mine) * size) for size in mine])
        elif kind == "rank_tokens":
            weights.append([total / (ranks * on_rank[rank]) for _ in mine])
        else:
            # DDP divides what each rank has by the number of ranks.
            weights.append([scale / ranks * total for _ in mine])
    handed_out = moved = 0.0
    factor = 1 / ranks if kind == "world_missing" else 1.0
    for shares, sizes in zip(weights, tokens):
        for weight, size in zip(shares, sizes):
            handed_out += weight * size
            moved += abs(weight - factor) * size
    return TokenWeighting(
        weights=weights,
        gradient_factor=handed_out / total,
        least=min([min(mine) for mine in weights]),
        most=max([max(mine) for mine in weights]),
        # What some tokens have too much, others have too little: half of all differences is what moved.
        misplaced=moved / 2 / handed_out,
    )


def weighted_loss(
    tokens: list[list[int]], mean_losses: list[list[float]], weighting: str = "global_tokens"
) -> float:
    """The loss of a step as a program with this weighting logs it: each token's loss times its weight, over T.

    Args:
        tokens: ``tokens[rank][k]``, as in :func:`token_weighting`.
        mean_losses: mean loss of each micro-batch.

    Raises:
        ValueError: as :func:`token_weighting`, or losses that are not finite or of another shape.
    """
    weights = token_weighting(tokens, weighting).weights
    if [len(mine) for mine in mean_losses] != [len(mine) for mine in tokens]:
        raise ValueError("mean_losses must hold one number for each micro-batch of each rank, as tokens does")
    total, loss = 0, 0.0
    for rank in range(len(tokens)):
        for step in range(len(tokens[rank])):
            mean = _finite(f"mean_losses[{rank}][{step}]", mean_losses[rank][step])
            total += tokens[rank][step]
            loss += weights[rank][step] * tokens[rank][step] * mean
    return loss / total


def ddp_gradients(micro_gradients: list[list[float]], synchronised: list[bool] | None = None) -> list[float]:
    """The gradient that each rank holds after accumulation under DDP, one number per rank.

    ``micro_gradients[rank][k]`` is rank's own gradient of micro-batch k. It is added to what the rank has; in a
    synchronised micro-batch the sums so far are then averaged over ranks. The right use of ``no_sync`` is
    ``[False, ..., False, True]``, the default. With the last one not synchronised, ranks keep different gradients and
    drift apart without an error.

    Raises:
        ValueError: no ranks, or lists of different lengths.
    """
    ranks = len(micro_gradients)
    if not ranks:
        raise ValueError("micro_gradients must hold a list per rank, not 0 lists")
    steps = len(micro_gradients[0])
    for rank, mine in enumerate(micro_gradients):
        if len(mine) != steps:
            raise ValueError(
                f"micro_gradients[{rank}] must hold {steps} numbers like rank 0, not {len(mine)}"
            )
    flags = [step == steps - 1 for step in range(steps)] if synchronised is None else synchronised
    if len(flags) != steps:
        raise ValueError(f"synchronised must hold one flag per micro-batch, {steps}, not {len(flags)}")
    held = [0.0] * ranks
    for step in range(steps):
        for rank in range(ranks):
            # Not ``+=``: a tensor or an array would change in place, and with it all ranks that share it.
            held[rank] = held[rank] + micro_gradients[rank][step]
        if flags[step]:
            total = 0.0
            for value in held:
                total = total + value
            held = [total / ranks for _ in range(ranks)]
    return held


# ---------------------------------------------------------------- who reads which sample


@dataclass(frozen=True)
class ShardPlan:
    """How n samples are dealt to W ranks so that all run the same number of steps.

    Attributes:
        samples, ranks: n and W.
        per_rank: samples that each rank reads.
        used: samples read by all ranks together, repeats included.
        duplicates: samples read twice (padding).
        dropped: samples never read.
        metric_bias: duplicates / used: the most that a mean over the padded set can be moved by repeats, for a
            metric between 0 and 1.
    """

    samples: int
    ranks: int
    per_rank: int
    used: int
    duplicates: int
    dropped: int
    metric_bias: float


def shard_plan(samples: int, ranks: int, drop_last: bool = False) -> ShardPlan:
    """How PyTorch's DistributedSampler deals samples: pad to a multiple of W by repeating, or drop the rest.

    Raises:
        ValueError: a number is out of range, or ``drop_last`` would leave no sample.

    Source: PyTorch, torch/utils/data/distributed.py.
    """
    n = count("samples", samples)
    world = count("ranks", ranks)
    if drop_last and n < world:
        raise ValueError(
            f"samples must be at least ranks = {world} with drop_last, or no rank gets any, not {n}"
        )
    per_rank = n // world if drop_last else (n + world - 1) // world
    used = per_rank * world
    duplicates = max(used - n, 0)
    return ShardPlan(
        samples=n,
        ranks=world,
        per_rank=per_rank,
        used=used,
        duplicates=duplicates,
        dropped=max(n - used, 0),
        metric_bias=duplicates / used,
    )


def epoch_order(samples: int, seed: int, epoch: int, set_epoch: bool = True) -> list[int]:
    """The order of all samples in an epoch: a permutation seeded by ``seed + epoch``.

    Without ``set_epoch`` the sampler keeps thinking it is epoch 0 and every epoch repeats the same order. All
    ranks must use the same seed, or they read overlapping parts of different orders.

    Raises:
        ValueError: a number is out of range.

    Source: PyTorch, DistributedSampler.set_epoch. The permutation is a Fisher-Yates shuffle with
    :class:`shardlab.models.lehmer.Lehmer`, not PyTorch's.
    """
    order = list(range(count("samples", samples)))
    number = count("epoch", epoch, least=0) if set_epoch else 0
    generator = Lehmer(count("seed", seed, least=0) + number)
    for last in range(len(order) - 1, 0, -1):
        other = generator.below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def rank_samples(order: list[int], ranks: int, rank: int, drop_last: bool = False) -> list[int]:
    """The samples of one rank: every W-th of the order, padded from its start or cut.

    Raises:
        ValueError: a number is out of range.

    Source: PyTorch, torch/utils/data/distributed.py.
    """
    plan = shard_plan(len(order), ranks, drop_last)
    place = count("rank", rank, least=0, most=plan.ranks - 1)
    return [order[position % plan.samples] for position in range(place, plan.used, plan.ranks)]


@dataclass(frozen=True)
class UnevenSteps:
    """What happens when ranks have different numbers of batches.

    Attributes:
        safe_steps: steps that all ranks can run.
        hangs: True when ranks disagree: the next step waits for ranks that have finished.
        waiting_ranks: the ranks that wait.
        finished_ranks: the ones that left.
        padded_steps: steps when the short ranks repeat samples.
    """

    safe_steps: int
    hangs: bool
    waiting_ranks: list[int]
    finished_ranks: list[int]
    padded_steps: int


def uneven_steps(batches: list[int]) -> UnevenSteps:
    """Predict a hang from the number of batches on each rank: the ranks with more wait in their next collective.

    Raises:
        ValueError: no ranks, or a negative number of batches.
    """
    if not batches:
        raise ValueError("batches must hold one number per rank, not none")
    sizes = [count(f"batches[{rank}]", size, least=0) for rank, size in enumerate(batches)]
    least, most = min(sizes), max(sizes)
    return UnevenSteps(
        safe_steps=least,
        hangs=least != most,
        waiting_ranks=[rank for rank, size in enumerate(sizes) if size > least],
        finished_ranks=[rank for rank, size in enumerate(sizes) if size == least] if least != most else [],
        padded_steps=most,
    )


def contiguous_counts(samples: int, ranks: int) -> list[int]:
    """Samples per rank when rank r takes the r-th slice of ``ceil(n/W)``: the last ranks may get fewer, or none.

    Raises:
        ValueError: a number is not a whole number from 1.
    """
    n = count("samples", samples)
    world = count("ranks", ranks)
    size = (n + world - 1) // world
    return [max(min(n - rank * size, size), 0) for rank in range(world)]


# ---------------------------------------------------------------- texts of unequal length


def log_normal_lengths(samples: int, median: float, spread: float, seed: int) -> list[int]:
    """Lengths in tokens, ``median * exp(spread * z)`` with z normal: at least 1, the same in every engine.

    Args:
        median: half of the lengths are longer, tokens.
        spread: standard deviation of the logarithm; 0: all are alike.
        seed: of :class:`shardlab.models.lehmer.Lehmer`.

    Raises:
        ValueError: a number is out of range.
    """
    middle = positive("median", median, "tokens")
    width = non_negative("spread", spread)
    generator = Lehmer(seed)
    return [
        max(int(middle * math.exp(width * generator.normal()) + 0.5), 1)
        for _ in range(count("samples", samples))
    ]


def deal_by_tokens(lengths: list[int], places: int) -> list[list[int]]:
    """Which samples each place gets when the longest is dealt first, always to the place with the fewest tokens.

    No place then has more than ``4/3 - 1/(3 places)`` of what the best possible deal gives its fullest place.

    Args:
        lengths: tokens of each sample.
        places: ranks, or ranks times micro-batches.

    Returns:
        Positions in ``lengths``, a list per place; with fewer samples than places some are empty.

    Raises:
        ValueError: no samples, a length below 1, or no places.

    Source: Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17(2), 1969, theorem 2.
    """
    if not lengths:
        raise ValueError("lengths must hold at least one sample, not none")
    sizes = [count(f"lengths[{position}]", lengths[position]) for position in range(len(lengths))]
    loads = [0] * count("places", places)
    dealt: list[list[int]] = [[] for _ in loads]
    # Equal lengths in their order: MicroPython's sort is not stable.
    for position in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        place = loads.index(min(loads))
        dealt[place].append(position)
        loads[place] += sizes[position]
    return dealt


# ---------------------------------------------------------------- resume


@dataclass(frozen=True)
class DataPosition:
    """Where in the data a run stands: what a checkpoint has to carry besides the seed.

    Attributes:
        epoch: which order to rebuild (seed + epoch).
        offset: batches of that epoch already used.
    """

    epoch: int
    offset: int


def data_position(step: int, steps_per_epoch: int) -> DataPosition:
    """Epoch and offset after ``step`` steps: ``divmod(step, steps_per_epoch)``.

    Raises:
        ValueError: a number is out of range.
    """
    epoch, offset = divmod(count("step", step, least=0), count("steps_per_epoch", steps_per_epoch))
    return DataPosition(epoch=epoch, offset=offset)


@dataclass(frozen=True)
class ResumeCoverage:
    """Which of the planned steps' data a resumed run has read when it stops.

    Attributes:
        read_once, read_twice, never_read: in steps' worth of data; they add up to the plan.
        finished_fraction: steps done / steps planned.
    """

    read_once: int
    read_twice: int
    never_read: int
    finished_fraction: float


def resume_coverage(
    planned_steps: int, resume_step: int, stop_step: int, position_saved: bool
) -> ResumeCoverage:
    """What a resume does to the data: continue where it stopped, or start again at the first shard.

    Without the position, the data of the first ``resume_step`` steps comes a second time: the training
    loss drops for the wrong reason.

    Args:
        planned_steps: length of the run.
        resume_step: step of the checkpoint.
        stop_step: last step done (counted on).

    Raises:
        ValueError: steps out of order.
    """
    plan = count("planned_steps", planned_steps)
    stop = count("stop_step", stop_step, most=plan)
    resume = count("resume_step", resume_step, least=0, most=stop)
    if position_saved:
        once, twice = stop, 0
    else:
        again = stop - resume
        twice = min(again, resume)
        once = max(again, resume) - twice
    return ResumeCoverage(
        read_once=once, read_twice=twice, never_read=plan - once - twice, finished_fraction=stop / plan
    )
