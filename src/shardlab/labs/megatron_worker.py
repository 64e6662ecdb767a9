"""What every rank of the Megatron-core lab runs: its parallel linears, and a small GPT under several layouts.

Read :func:`build` and :func:`train_step`: that is how one asks Megatron-core for a layout. :class:`CpuTorch` and
:func:`run_on_cpu` are what it takes to do so without a GPU. The raw measurements, without the lab's tables::

    python -m shardlab.labs shardlab.labs.megatron_worker:worker --ranks 4 --params \
        '{"layouts": [[1, 1], [2, 1], [1, 2], [2, 2]], "layers": 4, "hidden": 128, "heads": 4, "sequence": 64,
          "vocabulary": 256, "micro_batch": 4, "micro_batches": 4, "steps": 3}'
"""

# torch and Megatron-core are untyped to mypy.
# mypy: allow-subclassing-any, disable-error-code="import-not-found"

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

with warnings.catch_warnings():
    # Megatron-core says at length that Transformer Engine and Apex are not there: they need a GPU.
    warnings.simplefilter("ignore")
    import megatron.core
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.transformer_config import TransformerConfig

from shardlab.labs.measure import Stage, count_sent, relative_gap, run_stages, worst_of_ranks
from shardlab.labs.rank import Context

LEARNING_RATE = 0.5


# ---- Megatron-core without a GPU ----


class CpuTorch:
    """torch for Megatron's schedules, whose counters are made on "cuda"."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **kwargs: Any) -> Tensor:
        """On the CPU where the schedule says "cuda"."""
        return torch.zeros(*size, device=None if device == "cuda" else device, **kwargs)


class NoStreams:
    """Dropout's random streams, which live on the GPU: without dropout none is drawn from."""

    def fork(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def run_on_cpu() -> None:
    """Let Megatron-core run in this process without a GPU, with dropout 0."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    schedules.torch = CpuTorch()
    tensor_parallel.get_cuda_rng_tracker = NoStreams


# ---- the model ----


def build(ctx: Context, tensor: int, pipeline: int) -> nn.Module:
    """This rank's part of the GPT; Megatron's process groups decide which."""
    sizes = ctx.params
    config = TransformerConfig(
        num_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        num_attention_heads=sizes["heads"],
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # What needs a GPU:
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        batch_p2p_sync=ctx.device.type == "cuda",
    )
    torch.manual_seed(0)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=sizes["vocabulary"],
        max_sequence_length=sizes["sequence"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )
    model.to(ctx.device)
    return model


def train_step(
    ctx: Context,
    model: nn.Module,
    step: int,
    learn: bool = True,
) -> list[float]:
    """One optimizer step by Megatron's schedule (1F1B); the losses.

    Only ranks of the last stage see losses, one per micro-batch.
    """
    sizes = ctx.params
    run_schedule = schedules.get_forward_backward_func()
    losses = run_schedule(
        forward_step_func=forward_step,
        data_iterator=micro_batches(ctx, step),
        model=model,
        num_microbatches=sizes["micro_batches"],
        seq_length=sizes["sequence"],
        micro_batch_size=sizes["micro_batch"],
        forward_only=not learn,
    )
    if learn:
        for parameter in model.parameters():
            parameter.data.sub_(LEARNING_RATE * parameter.grad)
            parameter.grad = None
    return [float(loss["loss"]) for loss in losses]


def forward_step(batches: Iterator[dict[str, Tensor]], model: nn.Module) -> Any:
    """What Megatron calls for each micro-batch: the stage's output, and
    how the last stage turns that into a loss."""
    return model(**next(batches)), mean_loss


def mean_loss(losses: Tensor) -> tuple[Tensor, dict[str, float]]:
    """The mean over the tokens; the schedule divides by the micro-batches in place, so its report is a number."""
    loss = losses.mean()
    return loss, {"loss": loss.item()}


def micro_batches(ctx: Context, step: int) -> Iterator[dict[str, Tensor]]:
    """The global batch of one step, the same on every rank: as many micro-batches of ``[b, s]`` tokens as asked for."""
    sizes, generator = ctx.params, torch.Generator().manual_seed(step)
    length = sizes["sequence"]
    hidden_from_view = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    for _ in range(sizes["micro_batches"]):
        shape = sizes["micro_batch"], length + 1
        text = torch.randint(sizes["vocabulary"], shape, generator=generator)
        batch = {
            "input_ids": text[:, :-1],
            "position_ids": torch.arange(length).expand(sizes["micro_batch"], -1),
            "attention_mask": hidden_from_view,
            "labels": text[:, 1:],
        }
        yield {name: tensor.to(ctx.device) for name, tensor in batch.items()}


def set_weights(model: nn.Module) -> None:
    """Give every parameter values that depend on its name in the whole
    model only, so that all layouts start from the same weights."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    for name, parameter in named_in_whole(model):
        whole = list(parameter.shape)
        dim = split_dim(parameter)
        if dim is not None:
            whole[dim] *= ranks
        seed = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(whole, generator=seed) * 0.05
        if "layernorm.weight" in name:
            values += 1
        parameter.data.copy_(part_of(values, parameter))


def part_of(whole: Tensor, parameter: Tensor) -> Tensor:
    """This tensor-parallel rank's part of a parameter's whole values."""
    dim = split_dim(parameter)
    if dim is None:
        return whole
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    return whole.chunk(ranks, dim=dim)[parallel_state.get_tensor_model_parallel_rank()]


def split_dim(parameter: Tensor) -> int | None:
    """The dim along which Megatron has cut a parameter; None if every rank holds it whole."""
    return parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None


def named_in_whole(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters with their names in the whole model: a pipeline stage counts its layers from 0."""
    first = model.decoder.layers[0].layer_number - 1
    for name, parameter in model.named_parameters():
        before, layers, after = name.partition("decoder.layers.")
        if layers:
            number, _, rest = after.partition(".")
            name = f"{before}{layers}{int(number) + first}.{rest}"
        yield name, parameter


# ---- the stages ----


def worker(ctx: Context) -> dict[str, Any] | None:
    """All measurements of the lab, one stage after another; rank 0 returns them."""
    if ctx.device.type == "cpu":
        run_on_cpu()
    layouts = [tuple(layout) for layout in ctx.params["layouts"]]
    trained: dict[str, Tensor] = {}
    stages = [
        *[
            Stage(
                "linears", f"parallel linears, tensor parallel {tensor}", partial(check_linears, ctx, tensor)
            )
            for tensor, pipeline in layouts
            if pipeline == 1
        ],
        *[
            Stage(
                "layouts",
                f"GPT, tensor parallel {tensor}, pipeline parallel {pipeline}",
                partial(train, ctx, tensor, pipeline, trained),
            )
            for tensor, pipeline in layouts
        ],
    ]
    return run_stages(ctx, stages, version=megatron.core.__version__)


@contextlib.contextmanager
def process_groups(ctx: Context, tensor: int, pipeline: int) -> Iterator[None]:
    """Megatron's process groups for a layout; ranks left over are data-parallel copies, which here never speak."""
    parallel_state.initialize_model_parallel(tensor, pipeline)
    if ctx.device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(0)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


def check_linears(ctx: Context, tensor: int) -> list[dict[str, Any]]:
    """ColumnParallelLinear, GELU, RowParallelLinear against the same two matrices whole."""
    sizes = ctx.params
    hidden, tokens = sizes["hidden"], (sizes["sequence"], sizes["micro_batch"])
    with process_groups(ctx, tensor, 1):
        config = ModelParallelConfig(use_cpu_initialization=True, gradient_accumulation_fusion=False)
        options = {"config": config, "init_method": nn.init.xavier_normal_, "bias": True}
        up = ColumnParallelLinear(hidden, 4 * hidden, gather_output=False, **options)
        down = RowParallelLinear(4 * hidden, hidden, input_is_parallel=True, skip_bias_add=False, **options)
        whole = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
        generator = torch.Generator().manual_seed(0)
        x, grad = (torch.randn(*tokens, hidden, generator=generator) for _ in range(2))
        pairs = [(up.weight, whole[0].weight), (up.bias, whole[0].bias)]
        pairs += [(down.weight, whole[2].weight), (down.bias, whole[2].bias)]
        for mine, full in pairs:
            full.data.copy_(torch.randn(full.shape, generator=generator) * 0.05)
            mine.data.copy_(part_of(full.data, mine))
        for module in (up, down, whole):
            module.to(ctx.device)
        x, grad = x.to(ctx.device), grad.to(ctx.device)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = down(F.gelu(up(ours)[0]))[0], whole(theirs)
        y.backward(grad)
        expected.backward(grad)
        gradients = [(mine.grad, part_of(full.grad, mine)) for mine, full in pairs]
        gaps = {
            "output_gap": relative_gap([y], [expected]),
            "input_gap": relative_gap([ours.grad], [theirs.grad]),
            "weight_gap": relative_gap(*zip(*gradients, strict=True)),
        }
    return [{"tensor": tensor, **worst_of_ranks(ctx, gaps)}]


def train(ctx: Context, tensor: int, pipeline: int, trained: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Train the GPT under one layout; the first, on one rank each, leaves its parameters in ``trained``.

    Before that, one forward pass from Megatron's own start; after that, one more step with its bytes counted.
    """
    with process_groups(ctx, tensor, pipeline):
        model = build(ctx, tensor, pipeline)
        own = train_step(ctx, model, 0, learn=False)
        set_weights(model)
        losses = [train_step(ctx, model, step) for step in range(ctx.params["steps"])]
        if (tensor, pipeline) == (1, 1):
            trained.update({name: values.detach().clone() for name, values in named_in_whole(model)})
        pairs = [(values, part_of(trained[name], values)) for name, values in named_in_whole(model)]
        gaps = worst_of_ranks(ctx, {"parameter_gap": relative_gap(*zip(*pairs, strict=True))})
        sent = count_sent(ctx, partial(train_step, ctx, model, ctx.params["steps"]))
        mine = {
            "stage": parallel_state.get_pipeline_model_parallel_rank(),
            "layers": [layer.layer_number for layer in model.decoder.layers],
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "losses": losses,
            "own": own,
        }
    ranks = ctx.gather(mine)
    last = next(rank for rank in ranks if rank["stage"] == pipeline - 1)
    return [
        {
            "tensor": tensor,
            "pipeline": pipeline,
            "losses": [_mean(step) for step in last["losses"]],
            "own_loss": _mean(last["own"]),
            **gaps,
            "stages": [rank["stage"] for rank in ranks],
            "layers": [rank["layers"] for rank in ranks],
            "parameters": [rank["parameters"] for rank in ranks],
            "kernel": sent,
        }
    ]


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)
