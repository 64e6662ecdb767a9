"""What every rank of the accumulation lab runs: one optimizer step over several micro-batches, right and wrong.

Start with :func:`accumulate`, then read each wrong way beside it. The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.accumulation_worker:worker --ranks 4 --params \
        '{"micro_steps": 4, "steps": 3}'
"""

# Without "from __future__ import annotations": DDP compares a hook's annotations with the types themselves.
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo  # DDP imports it on first use, over a second: here all ranks share that
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from shardlab.labs.ddp_worker import Batch, global_batch, shard, training_step
from shardlab.labs.measure import Stage, count_sent, run_stages
from shardlab.labs.rank import Context
from shardlab.labs.vectors import along, flat, flat_gradient, gradient_of, norm, relative_gap, worst_rank
from shardlab.models.batch import ddp_gradients, token_loss_scale

# A step of one way: model, optimizer, this rank's micro-batches, the norm to clip at.
Step = Callable[[nn.Module, Optimizer, list[Batch], float], object]
# Inputs and targets of one text, token ids, [tokens] each.
Text = tuple[Tensor, Tensor]

# Narrower than the DDP lab's: nine ways, two optimizers, and still above 1 MiB of gradients.
FEATURES = 384
SAMPLES = 4  # of one micro-batch
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.5),
    "adam": partial(torch.optim.Adam, lr=1e-3),
}
# Predicted gradients are compared on every 61st parameter, a prime: samples then lie in all rows and columns.
SAMPLED = 61
# A threshold that bites: this share of the first step's gradient norm.
CLIP_SHARE = 0.5
# DDP orders its buckets anew after its first step, and tells the ranks: don't count that.
WARM_UP_STEPS = 2

VOCABULARY = 64
WIDTH = 64
TOKEN_LEARNING_RATE = 0.5
SHORT_TEXT = 64  # tokens
LONGEST_TEXT = 512


# ---- the right way ----


def accumulate(model: DDP, micro_batches: list[Batch]) -> None:
    """Gradient of the mean over all micro-batches of all ranks."""
    for index, (x, y) in enumerate(micro_batches):  # [samples, features] each
        last = index == len(micro_batches) - 1
        # Forward and backward both inside: DDP decides in forward.
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(x), y) / len(micro_batches)
            loss.backward()


def one_batch(model: nn.Module, optimizer: Optimizer, batch: Batch, max_norm: float | None) -> None:
    """The same step in one process: all samples at once, nothing to accumulate."""
    x, y = batch
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    if max_norm is not None:
        clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


def clip_once(model: DDP, optimizer: Optimizer, micro_batches: list[Batch], max_norm: float) -> None:
    """Clip the gradient of the whole batch, when it is complete and the same on all ranks."""
    optimizer.zero_grad()
    accumulate(model, micro_batches)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


# ---- the wrong ways ----


def backward_only(model: DDP, optimizer: Optimizer, micro_batches: list[Batch], max_norm: float) -> None:
    """Costly: DDP has already prepared to all-reduce when forward ends."""
    optimizer.zero_grad()
    for index, (x, y) in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        loss = F.mse_loss(model(x), y) / len(micro_batches)
        with contextlib.nullcontext() if last else model.no_sync():
            loss.backward()
    optimizer.step()


def flag_late(
    model: DDP,
    optimizer: Optimizer,
    micro_batches: list[Batch],
    max_norm: float,
) -> None:
    """Wrong: forward reads the flag as the micro-batch before left it."""
    optimizer.zero_grad()
    for index, (x, y) in enumerate(micro_batches):
        loss = F.mse_loss(model(x), y) / len(micro_batches)
        model.require_backward_grad_sync = index == len(micro_batches) - 1
        loss.backward()
    optimizer.step()


def undivided(model: DDP, optimizer: Optimizer, micro_batches: list[Batch], max_norm: float) -> None:
    """Wrong: a sum of means, so the gradient is as many times too long as there are micro-batches."""
    optimizer.zero_grad()
    for index, (x, y) in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            F.mse_loss(model(x), y).backward()
    optimizer.step()


def clip_every(model: DDP, optimizer: Optimizer, micro_batches: list[Batch], max_norm: float) -> None:
    """Wrong: clips an unfinished sum, on each rank by another factor."""
    optimizer.zero_grad()
    for index, (x, y) in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            (F.mse_loss(model(x), y) / len(micro_batches)).backward()
        clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


def step_every(
    model: DDP, optimizer: Optimizer, micro_batches: list[Batch], max_norm: float, quiet: bool = False
) -> None:
    """Wrong: many small steps instead of one. With ``quiet`` (``no_sync`` kept) also other steps on each rank."""
    for index, (x, y) in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        optimizer.zero_grad()
        with model.no_sync() if quiet and not last else contextlib.nullcontext():
            (F.mse_loss(model(x), y) / len(micro_batches)).backward()
        optimizer.step()


def plain_step(
    model: nn.Module, optimizer: Optimizer, micro_batches: list[Batch], max_norm: float, sync: str
) -> float:
    """The DDP lab's step."""
    return training_step(model, optimizer, micro_batches, sync)


@dataclass(frozen=True)
class Way:
    """A way to make one optimizer step of several micro-batches.

    Attributes:
        step: the code.
        clips: compared with a single process that clips.
        flags: which micro-batches DDP averages, as a function of how many there are; None: the gradient left at the
            end is no sum over them, so there is none to predict.
        divided: each loss is divided by the number of micro-batches.
    """

    step: Step
    clips: bool = False
    flags: Callable[[int], list[bool]] | None = None
    divided: bool = True


def _last(n: int) -> list[bool]:
    return [index == n - 1 for index in range(n)]


def _first(n: int) -> list[bool]:
    return [index == 0 for index in range(n)]


def _all(n: int) -> list[bool]:
    return [True] * n


WAYS = {
    "no_sync": Way(partial(plain_step, sync="last"), flags=_last),
    "every": Way(partial(plain_step, sync="every"), flags=_all),
    "backward_only": Way(backward_only, flags=_all),
    "clip_once": Way(clip_once, clips=True),
    "flag_late": Way(flag_late, flags=_first),
    "undivided": Way(undivided, flags=_last, divided=False),
    "clip_every": Way(clip_every, clips=True),
    "step_every": Way(step_every),
    "step_quiet": Way(partial(step_every, quiet=True)),
}
COUNTED_WAYS = ("no_sync", "every", "backward_only", "flag_late")


# ---- tokens: micro-batches of unequal size ----


def token_step(
    model: DDP,
    optimizer: Optimizer,
    texts: list[Text],
    weights: list[float],
) -> float:
    """One step over unequal texts: each SUM of token losses times a weight."""
    optimizer.zero_grad()
    total = 0.0
    for index, (text, weight) in enumerate(zip(texts, weights, strict=True)):
        last = index == len(texts) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = token_loss_sum(model, text) * weight
            loss.backward()  # DDP divides by the number of ranks in here
        total += loss.item()
    optimizer.step()
    return total


def token_loss_sum(model: nn.Module, text: Text) -> Tensor:
    """Cross-entropy of every next token, summed."""
    tokens, following = text  # [tokens] each
    return F.cross_entropy(model(tokens), following, reduction="sum")  # logits [tokens, vocabulary]


def weights_mean_of_means(sizes: list[int]) -> list[float]:
    """Wrong: every text counts the same, so a token of a short text counts more."""
    return [1 / (size * len(sizes)) for size in sizes]


def weights_rank_tokens(sizes: list[int]) -> list[float]:
    """Wrong between ranks: every rank counts the same, however few tokens it has."""
    return [1 / sum(sizes) for _ in sizes]


def weights_world_missing(sizes: list[int]) -> list[float]:
    """Wrong: a sum over all tokens of all ranks, which DDP then divides by the number of ranks."""
    scale = 1 / tokens_of_all_ranks(sizes)
    return [scale for _ in sizes]


def weights_global_tokens(sizes: list[int]) -> list[float]:
    """Right: every token counts the same; times N, because DDP divides by N."""
    scale = dist.get_world_size() / tokens_of_all_ranks(sizes)
    return [scale for _ in sizes]


def tokens_of_all_ranks(sizes: list[int]) -> int:
    """Tokens of the whole optimizer step; one small all-reduce before it."""
    tokens = torch.tensor(sum(sizes), device=_device())
    dist.all_reduce(tokens)
    return int(tokens)


WEIGHTINGS: dict[str, Callable[[list[int]], list[float]]] = {
    "global_tokens": weights_global_tokens,
    "mean_of_means": weights_mean_of_means,
    "rank_tokens": weights_rank_tokens,
    "world_missing": weights_world_missing,
}


# ---- the lab ----


@dataclass(frozen=True)
class Reference:
    """What one process does with the whole batch.

    Attributes:
        gradient: of the first step, flat.
        parameters: after the last step, flat.
        moved: how far they are from where they started (2-norm).
    """

    gradient: Tensor
    parameters: Tensor
    moved: float


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    first = whole_batch(ctx, 0)
    max_norm = ctx.gather(CLIP_SHARE * gradient_norm(ctx, first))[0]
    predicted = sampled_micro_gradients(ctx, first)
    # References are made when they are first asked for, and kept.
    references: dict[tuple[str, bool], Reference] = {}
    texts = make_texts(ctx)
    stages = [
        *[
            Stage(
                "ways",
                f"accumulated, {name}",
                partial(measure_way, ctx, name, max_norm, references, predicted),
            )
            for name in WAYS
        ],
        *[Stage("wire", f"bytes, {name}", partial(count_way, ctx, name, max_norm)) for name in COUNTED_WAYS],
        *[
            Stage("tokens", f"token weights, {name}", partial(measure_weighting, ctx, name, texts))
            for name in WEIGHTINGS
        ],
    ]
    return run_stages(
        ctx,
        stages,
        parameters=sum(parameter.numel() for parameter in build_model().parameters()),
        max_norm=max_norm,
        text_tokens=[[len(text[0]) for text in mine] for mine in texts],
        text_losses=text_losses(ctx, texts),
    )


def measure_way(
    ctx: Context,
    name: str,
    max_norm: float,
    references: dict[tuple[str, bool], Reference],
    micro_gradients: list[list[Tensor]],
) -> list[dict[str, Any]]:
    """One way against one process: the gradient of the first step, then the parameters after all steps."""
    way = WAYS[name]
    row: dict[str, Any] = {"way": name}
    for kind, make_optimizer in OPTIMIZERS.items():
        if (kind, way.clips) not in references:
            references[kind, way.clips] = train_alone(ctx, kind, max_norm if way.clips else None)
        reference = references[kind, way.clips]
        model = DDP(build_model().to(ctx.device))
        optimizer = make_optimizer(model.parameters())
        for step in range(ctx.params["steps"]):
            way.step(model, optimizer, micro_batches(ctx, whole_batch(ctx, step)), max_norm)
            if step == 0 and kind == "sgd":
                row |= compare_gradient(ctx, way, flat_gradient(model), reference, micro_gradients)
        after = flat(model.parameters())
        row[f"{kind}_error"] = worst_rank(ctx, norm(after - reference.parameters) / reference.moved)
        row[f"{kind}_apart"] = apart(ctx, after, reference.moved)
    return [row]


def compare_gradient(
    ctx: Context, way: Way, gradient: Tensor, reference: Reference, micro_gradients: list[list[Tensor]]
) -> dict[str, float | None]:
    """A gradient against the single process's, and against what the model of DDP says this rank must hold."""
    held = way.flags is not None
    row: dict[str, float | None] = dict.fromkeys(
        ("gradient_factor", "gradient_error", "predicted_error", "prediction_gap")
    )
    if held or way.clips:
        row["gradient_factor"] = along(gradient, reference.gradient)
        row["gradient_error"] = worst_rank(ctx, relative_gap(gradient, reference.gradient))
    if way.flags is not None:
        micro_steps = len(micro_gradients[0])
        scale = 1 / micro_steps if way.divided else 1.0
        scaled = [[scale * one for one in mine] for mine in micro_gradients]
        row |= compare_prediction(ctx, scaled, way.flags(micro_steps), gradient, reference)
    return row


def compare_prediction(
    ctx: Context,
    micro_gradients: list[list[Tensor]],
    flags: list[bool],
    gradient: Tensor,
    reference: Reference,
) -> dict[str, float | None]:
    """What the model of DDP says that this rank holds, against what it holds; on the sampled parameters.

    Args:
        micro_gradients: ``[rank][micro-batch]``, each ``[sampled parameters]``.
        flags: which micro-batches DDP averages.
        gradient: what this rank holds, all parameters.
        reference: the single process.
    """
    # One parameter at a time, as the model has it: [parameter][rank][micro-batch].
    numbers = torch.stack([torch.stack(mine) for mine in micro_gradients]).permute(2, 0, 1).tolist()
    predicted = torch.tensor([ddp_gradients(one, flags)[ctx.rank] for one in numbers], device=ctx.device)
    wanted = reference.gradient[::SAMPLED]
    return {
        "predicted_error": worst_rank(ctx, relative_gap(predicted, wanted)),
        "prediction_gap": worst_rank(ctx, norm(predicted - gradient[::SAMPLED]) / norm(wanted)),
    }


def train_alone(ctx: Context, kind: str, max_norm: float | None) -> Reference:
    """Train one process on the whole batches."""
    model = build_model().to(ctx.device)
    optimizer = OPTIMIZERS[kind](model.parameters())
    start, gradient = flat(model.parameters()), None
    for step in range(ctx.params["steps"]):
        one_batch(model, optimizer, whole_batch(ctx, step), max_norm)
        gradient = flat_gradient(model) if gradient is None else gradient
    assert gradient is not None
    after = flat(model.parameters())
    return Reference(gradient, after, norm(after - start))


def count_way(ctx: Context, name: str, max_norm: float) -> list[dict[str, Any]]:
    """Bytes that DDP hands to all-reduce, and bytes that the kernel sends, in one optimizer step."""
    payload: list[int] = []

    def count_and_average(process_group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        payload.append(bucket.buffer().nbytes)
        return allreduce_hook(process_group, bucket)

    model = DDP(build_model().to(ctx.device))
    model.register_comm_hook(None, count_and_average)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    step = partial(WAYS[name].step, model, optimizer, micro_batches(ctx, whole_batch(ctx, 0)), max_norm)
    for _ in range(WARM_UP_STEPS):
        step()
    payload.clear()
    sent = count_sent(ctx, step)
    return [{"way": name, "payload": max(ctx.gather(sum(payload))), "kernel": sent}]


def measure_weighting(ctx: Context, name: str, texts: list[list[Text]]) -> list[dict[str, Any]]:
    """One weighting of texts of unequal length against one process: loss, gradient, parameters."""
    sizes = [[len(text[0]) for text in mine] for mine in texts]
    reference = train_alone_on_texts(ctx, texts)
    model = DDP(build_token_model().to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=TOKEN_LEARNING_RATE)
    weights = WEIGHTINGS[name](sizes[ctx.rank])
    losses, gradient = [], None
    for _ in range(ctx.params["steps"]):
        losses.append(token_step(model, optimizer, texts[ctx.rank], weights))
        gradient = flat_gradient(model) if gradient is None else gradient
    assert gradient is not None
    after = flat(model.parameters())
    row = {
        "weighting": name,
        # What is logged: the mean over the ranks, as for gradients.
        "loss": sum(ctx.gather(losses[0])) / ctx.ranks,
        "gradient_factor": along(gradient, reference.gradient),
        "gradient_error": worst_rank(ctx, relative_gap(gradient, reference.gradient)),
        "error": worst_rank(ctx, norm(after - reference.parameters) / reference.moved),
        "apart": apart(ctx, after, reference.moved),
    }
    scaled = scaled_text_gradients(ctx, name, texts, sizes)
    return [row | compare_prediction(ctx, scaled, _last(len(scaled[0])), gradient, reference)]


def scaled_text_gradients(
    ctx: Context, name: str, texts: list[list[Text]], sizes: list[list[int]]
) -> list[list[Tensor]]:
    """Gradient of each text's loss under a weighting, sampled: ``[rank][micro-batch]``; the right scales are the models'."""
    model = build_token_model().to(ctx.device)
    tokens = sum([sum(mine) for mine in sizes])
    scales = {
        "global_tokens": lambda _: [token_loss_scale(tokens, ctx.ranks)] * len(sizes[0]),
        "world_missing": lambda _: [token_loss_scale(tokens, ctx.ranks, averages=False)] * len(sizes[0]),
        "mean_of_means": weights_mean_of_means,
        "rank_tokens": weights_rank_tokens,
    }
    rows = []
    for mine, my_sizes in zip(texts, sizes, strict=True):
        weighted = zip(mine, scales[name](my_sizes), strict=True)
        rows.append(
            [
                scale * sampled_gradient(model, partial(token_loss_sum, model, text))
                for text, scale in weighted
            ]
        )
    return rows


def train_alone_on_texts(ctx: Context, texts: list[list[Text]]) -> Reference:
    """One process, all tokens in one batch, their mean loss."""
    model = build_token_model().to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=TOKEN_LEARNING_RATE)
    every = [text for mine in texts for text in mine]
    whole = torch.cat([text[0] for text in every]), torch.cat([text[1] for text in every])
    start, gradient = flat(model.parameters()), None
    for _ in range(ctx.params["steps"]):
        optimizer.zero_grad()
        (token_loss_sum(model, whole) / len(whole[0])).backward()
        optimizer.step()
        gradient = flat_gradient(model) if gradient is None else gradient
    assert gradient is not None
    after = flat(model.parameters())
    return Reference(gradient, after, norm(after - start))


# ---- data and models ----


def build_model() -> nn.Module:
    """A small MLP; the seed gives every rank the same start."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))


def whole_batch(ctx: Context, step: int) -> Batch:
    """The global batch of one step: ranks × micro-batches × ``SAMPLES`` samples, the same on every rank."""
    x, y = global_batch(ctx, step, ctx.ranks * ctx.params["micro_steps"] * SAMPLES)
    return x[:, :FEATURES], y[:, :FEATURES]


def micro_batches(ctx: Context, whole: Batch, rank: int | None = None) -> list[Batch]:
    """One rank's share of a global batch (None: this one's), cut into micro-batches."""
    mine = shard(whole, ctx.rank if rank is None else rank, ctx.ranks)
    return [shard(mine, index, ctx.params["micro_steps"]) for index in range(ctx.params["micro_steps"])]


def gradient_norm(ctx: Context, whole: Batch) -> float:
    """2-norm of the gradient of a whole batch, at the start."""
    model = build_model().to(ctx.device)
    return norm(gradient_of(model, partial(batch_loss, model, whole)))


def sampled_micro_gradients(ctx: Context, whole: Batch) -> list[list[Tensor]]:
    """Gradient of each micro-batch of each rank at the start, every ``SAMPLED``-th parameter: ``[rank][micro-batch]``."""
    model = build_model().to(ctx.device)
    return [
        [
            sampled_gradient(model, partial(batch_loss, model, batch))
            for batch in micro_batches(ctx, whole, rank)
        ]
        for rank in range(ctx.ranks)
    ]


def batch_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error."""
    x, y = batch
    return F.mse_loss(model(x), y)


def build_token_model() -> nn.Module:
    """Predicts the next token from this one; the seed gives every rank the same start."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Linear(WIDTH, 4 * WIDTH),
        nn.ReLU(),
        nn.Linear(4 * WIDTH, VOCABULARY),
    )


def make_texts(ctx: Context) -> list[list[Text]]:
    """Texts of unequal length, ``[rank][micro-batch]``: short ones follow another rule than long ones.

    As short answers read otherwise than long essays. Were all texts alike, weighting them wrongly would only add noise.
    """
    generator = torch.Generator().manual_seed(0)
    n_texts = ctx.ranks * ctx.params["micro_steps"]
    # Evenly spread in the logarithm, from 8 tokens on.
    exponents = 3 + 6 * torch.rand(n_texts, generator=generator)
    sizes = (2**exponents).int().clamp(max=LONGEST_TEXT).tolist()
    texts = []
    for size in sizes:
        tokens = torch.randint(VOCABULARY, (size,), generator=generator)
        following = (tokens + (1 if size < SHORT_TEXT else 7)) % VOCABULARY
        texts.append((tokens.to(ctx.device), following.to(ctx.device)))
    each = ctx.params["micro_steps"]
    return [texts[rank * each : (rank + 1) * each] for rank in range(ctx.ranks)]


def text_losses(ctx: Context, texts: list[list[Text]]) -> list[list[float]]:
    """Mean loss of each text at the start, in one process."""
    model = build_token_model().to(ctx.device)
    with torch.no_grad():
        return [[(token_loss_sum(model, text) / len(text[0])).item() for text in mine] for mine in texts]


# ---- small things ----


def sampled_gradient(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """Every ``SAMPLED``-th element of :func:`gradient_of`."""
    # A copy: a view would keep all the others alive.
    return gradient_of(model, loss)[::SAMPLED].clone()


def apart(ctx: Context, mine: Tensor, moved: float) -> float:
    """How far any rank's parameters are from rank 0's, in units of ``moved``."""
    first = mine.clone()
    dist.broadcast(first, src=0)
    return worst_rank(ctx, norm(mine - first) / moved)


def _device() -> torch.device:
    """Where collectives of the default group want their tensors."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if dist.get_backend() == "nccl"
        else torch.device("cpu")
    )
