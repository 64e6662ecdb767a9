"""Checks of assignment 01, "the budget of a training step": bytes, FLOPs, seconds, and which of them runs out first.

Every key comes from the book's models; a wrong answer is compared with what known slips would give, so that a check
can say "the key and value projections of all heads were counted" and not only "wrong".
"""

from __future__ import annotations

import itertools
import reprlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shardlab.classroom.attempt import Answer, Carry, attempt, name_of, with_carry
from shardlab.classroom.by_hand import ByHand, as_number, close
from shardlab.classroom.network import text_table
from shardlab.classroom.student import owner, student_draw
from shardlab.hardware import accelerator
from shardlab.labs.machine import installed
from shardlab.models import memory
from shardlab.models.scaling import data_parallel
from shardlab.transformer import (
    FLOPS_PER_PARAMETER_AND_TOKEN,
    Transformer,
    from_hf_config,
    gpt,
    layer_attention_flops_per_token,
    parameters,
    preset,
    training_flops,
)
from shardlab.units import GB, format_bandwidth, format_bytes

ASSIGNMENT = "01_step_budget"
DAY_S = 86_400.0
RESOURCES = ("memory", "time", "bandwidth")

# FLOP for a weight and a token: one forward pass; a step with full recomputation, which adds another one.
_FORWARD = 2
_STEP_RECOMPUTED = FLOPS_PER_PARAMETER_AND_TOKEN + _FORWARD


# ---- task 1: by hand ----

# In words, so that the widths of the formats are the student's to know.
_RECIPE_WORDS = {
    "mixed-adam-16": "bf16 weights and gradients, an fp32 copy of the weights, two fp32 moments",
    "megatron-18": "bf16 weights, fp32 gradients, an fp32 copy of the weights, two fp32 moments",
    "deepspeed-20": "bf16 weights and gradients, fp32 copies of both, two fp32 moments",
    "mixed-moment-12": "bf16 weights and gradients, an fp32 copy of the weights, one fp32 moment",
    "bf16-adam-8": "everything in bf16: weights, gradients, two moments",
}


@dataclass(frozen=True)
class StepNumbers(ByHand):
    """One student's numbers for task 1: a GPT with dropout, trained on some GPUs.

    Attributes:
        layers: L.
        hidden: h.
        heads: a.
        n_params: Ψ, rounded to ten million.
        recipe: name of the recipe, one of ``memory.RECIPE_NAMES``.
        sequence: s, tokens.
        micro_batch: b, sequences.
        batch_tokens: tokens of one step, over all GPUs.
        n_steps: steps of the whole run.
        n_gpus: N.
        peak_flops: dense peak of one GPU, FLOP/s.
        mfu: share of the peak that goes into the model, 0 to 1.
    """

    layers: int
    hidden: int
    heads: int
    n_params: int
    recipe: str
    sequence: int
    micro_batch: int
    batch_tokens: int
    n_steps: int
    n_gpus: int
    peak_flops: float
    mfu: float

    @property
    def _model(self) -> Transformer:
        return gpt(self.layers, self.hidden, self.heads)

    @property
    def _run_flop(self) -> float:
        return self.key("step_flop") * self.n_steps

    def lines(self) -> list[str]:
        """The numbers, one a line."""
        return [
            f"Ψ      {self.n_params / 1e9:g} billion parameters: a GPT of {self.layers} layers, "
            f"h = {self.hidden}, a = {self.heads} heads",
            f"state  {_RECIPE_WORDS[self.recipe]}",
            f"b, s   micro-batches of {self.micro_batch} sequences of {self.sequence} tokens, activations in bf16",
            f"D      {self.batch_tokens / 1e6:g} million tokens in a step, all GPUs together",
            f"steps  {self.n_steps:,}",
            f"N      {self.n_gpus} GPUs with a dense peak of {self.peak_flops / 1e12:g} TFLOP/s each",
            f"MFU    {100 * self.mfu:g} %",
        ]

    def key(self, quantity: str) -> float:
        """The right answer, from the book's models."""
        if quantity == "state_bytes":
            return memory.model_states(self.n_params, recipe=self.recipe).total_bytes
        if quantity == "activation_bytes":
            layer = memory.layer_activations(self.sequence, self.micro_batch, self.hidden, self.heads)
            return self.layers * layer.kept_bytes
        if quantity == "step_flop":
            return training_flops(self.n_params, self.batch_tokens)
        if quantity == "attention_flop":
            forward = layer_attention_flops_per_token(self._model, self.sequence)
            return FLOPS_PER_PARAMETER_AND_TOKEN / _FORWARD * self.layers * forward * self.batch_tokens
        if quantity == "run_s":
            return self._run_flop / (self.n_gpus * self.mfu * self.peak_flops)
        raise ValueError(
            "quantity must be one of state_bytes, activation_bytes, step_flop, attention_flop, run_s, "
            f"not {quantity!r}"
        )

    def misconceptions(self, quantity: str) -> list[tuple[float, str]]:
        """Wrong answers that have a name, with words that lead on."""
        right = self.key(quantity)
        if quantity == "state_bytes":
            return self._state_slips(right)
        if quantity == "activation_bytes":
            tokens, width = self.sequence * self.micro_batch, self.hidden
            return [
                (right / self.layers, "that is one layer; all of them keep theirs until the backward pass"),
                (right / self.micro_batch, "that is one sequence; a micro-batch has several"),
                (
                    34.0 * tokens * width * self.layers,
                    "that leaves out the attention scores, one for every pair of tokens",
                ),
                (right / GB, "that is in GB; the answer is in bytes"),
            ]
        if quantity == "step_flop":
            return [
                (right / 3, "that is the forward pass; the backward pass does two products of the same size"),
                (right * 2 / 3, "that is the backward pass; the forward pass comes on top"),
                (right / 2, "a multiplication and an addition are two FLOP"),
                (
                    right * _STEP_RECOMPUTED / FLOPS_PER_PARAMETER_AND_TOKEN,
                    "that is with full recomputation; here nothing is recomputed",
                ),
                (self._run_flop, "that is the whole run; the question is about one step"),
                (right / self.n_gpus, "that is the part of one GPU; the question is about all of them"),
                (right / 1e12, "that is in TFLOP; the answer is in FLOP"),
            ]
        if quantity == "attention_flop":
            return [
                (right / 3, "that is the forward pass; the backward pass computes twice as much"),
                (right / 2, "there are two products: queries with keys, and scores with values"),
                (right / 6, "there are two products, and the backward pass computes twice as much again"),
                (right / self.layers, "that is one layer"),
                (right * self.heads, "the heads share the width h: a heads of h/a columns each"),
                (right / self.batch_tokens, "that is for one token; a step has D of them"),
            ]
        return self._run_slips(right)

    def _state_slips(self, right: float) -> list[tuple[float, str]]:
        recipe, size = memory.recipe_named(self.recipe), self.n_params
        wide = recipe.stage1_bytes
        return [
            (size * recipe.parameters, "those are the weights alone, one of the copies"),
            (
                size * (recipe.parameters + recipe.gradients),
                "that leaves out the optimizer state and the copies that it works on",
            ),
            (size * (recipe.parameters + wide), "that leaves out the gradients"),
            (size * wide, "that leaves out the weights and gradients that the two passes use"),
            (
                right - 4.0 * size,
                "4 bytes are missing for each parameter: was one of the fp32 numbers left out?",
            ),
            (16.0 * size, "16 bytes is another recipe; add up the copies of yours"),
            (right / GB, "that is in GB; the answer is in bytes"),
        ]

    def _run_slips(self, right: float) -> list[tuple[float, str]]:
        return [
            (right * self.mfu, "that is at the peak; only the MFU's share of it goes into the model"),
            (right * self.mfu**2, "a lower MFU makes the run longer: divide by it"),
            (right * self.n_gpus, "that is on one GPU"),
            (right / self.n_steps, "that is one step; the question is about the run"),
            (right / 3, "that counts the forward pass only"),
            (
                right * _STEP_RECOMPUTED / FLOPS_PER_PARAMETER_AND_TOKEN,
                "that is with full recomputation; here nothing is recomputed",
            ),
            (right / 3600, "that is in hours; the answer is in seconds"),
            (right / DAY_S, "that is in days; the answer is in seconds"),
        ]


# layers, hidden, heads: from one to twenty billion parameters.
_SHAPES = (
    (24, 2304, 24),
    (30, 3072, 32),
    (32, 4096, 32),
    (36, 4096, 32),
    (40, 5120, 40),
    (40, 6144, 48),
    (48, 6144, 64),
    (28, 3584, 28),
)


def by_hand_numbers(student: str) -> StepNumbers:
    """A student's numbers for task 1."""
    name, complaint = owner(student)
    draw = student_draw(ASSIGNMENT, name, "by hand")
    layers, hidden, heads = draw.pick(_SHAPES)
    card = accelerator(draw.pick(("A100-80GB", "H100-80GB", "B200-180GB")))
    exact = parameters(gpt(layers, hidden, heads))
    return StepNumbers(
        student=name,
        complaint=complaint,
        layers=layers,
        hidden=hidden,
        heads=heads,
        n_params=round(exact / 1e7) * 10**7,
        recipe=draw.pick(tuple(_RECIPE_WORDS)),
        sequence=draw.pick((2048, 3072, 4096)),
        micro_batch=draw.pick((2, 3, 4, 5, 6)),
        batch_tokens=100_000 * (15 + draw.below(66)),
        n_steps=10_000 * (6 + draw.below(45)),
        n_gpus=draw.pick((48, 64, 96, 128, 160, 192, 256, 320, 384)),
        peak_flops=card.peak_flops,
        mfu=0.01 * (31 + draw.below(19)),
    )


# ---- task 2: the bytes of the state ----

Recipe = dict[str, float]


def recipes() -> dict[str, Recipe]:
    """The book's recipes as a student sees them: for each name, bytes per parameter of every copy that it has."""
    return {name: _copies(name) for name in memory.RECIPE_NAMES}


def _copies(name: str) -> Recipe:
    per = memory.recipe_named(name)
    every = {
        "weights": per.parameters,
        "gradients": per.gradients,
        "master weights": per.master_weights,
        "master gradients": per.master_gradients,
        "optimizer": per.optimizer,
    }
    return {kind: n_bytes for kind, n_bytes in every.items() if n_bytes}


def recipe_table() -> str:
    """The recipes, one a line."""
    rows = [["", "weights", "gradients", "master weights", "master gradients", "optimizer"]]
    for name, copies in recipes().items():
        rows.append([name, *[f"{copies[kind]:.3g}" if kind in copies else "·" for kind in rows[0][1:]]])
    return text_table(rows)


def state_fault(
    function: Callable[..., Any],
    recipe: str = memory.DEFAULT_RECIPE,
    n_params: int = 7_000_000_000,
    n_frozen: int = 0,
) -> str | None:
    """What is wrong with ``function(n_params, recipe, n_frozen)`` as the bytes of every copy."""
    copies = _copies(recipe)
    answer = attempt(function, n_params, dict(copies), n_frozen)
    if answer.fault:
        return answer.fault
    where = f"{name_of(function)} for {n_params:,} parameters, {n_frozen:,} of them frozen, with {recipe}"
    if not isinstance(answer.value, dict) or set(answer.value) != set(copies):
        return f"{where} must return a dict with the copies {', '.join(copies)}, not {reprlib.repr(answer.value)}"
    trained = n_params - n_frozen
    for kind, wanted in _state_key(n_params, n_frozen, recipe).items():
        value = as_number(answer.value[kind])
        if value is None:
            return f"{where}: {kind} must be a number of bytes, not {reprlib.repr(answer.value[kind])}"
        if close(value, wanted):
            continue
        words = f"{where}: {kind} = {value:g} bytes is not right"
        if kind == "weights" and close(value, trained * copies[kind]):
            return f"{words}: frozen weights are still needed in both passes"
        if kind != "weights" and close(value, n_params * copies[kind]):
            return f"{words}: what never changes has no {kind}"
        if n_params and close(value, copies[kind]):
            return f"{words}: those are the bytes of one parameter"
        return words
    return None


def _state_key(n_params: int, n_frozen: int, recipe: str) -> dict[str, float]:
    """Bytes of every copy that the recipe has; what is frozen has weights and nothing else."""
    trained = n_params - n_frozen
    copies = _copies(recipe)
    if not trained:
        return {kind: n_params * copies[kind] if kind == "weights" else 0.0 for kind in copies}
    # The library's names for the same copies, in the same order.
    states = memory.model_states(trained, recipe=recipe)
    every = dict(
        zip(
            ("weights", "gradients", "master weights", "master gradients", "optimizer"),
            [n_bytes for _, n_bytes in states.items],
            strict=True,
        )
    )
    every["weights"] += n_frozen * copies["weights"]
    return {kind: every[kind] for kind in copies}


# ---- task 3: count the parameters ----


def parameters_fault(function: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> str | None:
    """What is wrong with ``function(config)`` as the number of parameters of a ``config.json``; it must be exact."""
    answer = attempt(function, dict(config))
    if answer.fault:
        return answer.fault
    label = config.get("name", config["model_type"])
    value = as_number(answer.value)
    if value is None:
        return f"{label}: {name_of(function)} must return a number, not {reprlib.repr(answer.value)}"
    model = from_hf_config(config)
    wanted = parameters(model)
    if value == wanted:
        return None
    off = value - wanted
    words = f"{label}: {value:,.0f} is not right"
    slip = _parts_in(off, _slips(model))
    return f"{words}: {slip}" if slip else f"{words}; it is {'too many' if off > 0 else 'too few'}"


def _slips(model: Transformer) -> list[tuple[int, str]]:
    """What known slips add to the number of parameters (or take away), with words that lead on."""
    layers, hidden, words = model.layers, model.hidden, model.vocabulary
    norm = 2 if model.norm == "layernorm" else 1
    found = [
        (-layers * 2 * norm * hidden, "the two norms of every layer are missing"),
        (-norm * hidden, "the norm after the last layer is missing"),
        (-layers * norm * hidden, "every layer has two norms"),
    ]
    if norm == 2:
        found.append((-(2 * layers + 1) * hidden, "a LayerNorm has a weight and a bias"))
    if model.tied:
        found.append((words * hidden, "the output head is the same matrix as the embedding: count it once"))
        found.append((-words * hidden, "the embedding is missing"))
    else:
        found.append((-words * hidden, "embedding and output head are two matrices here: one is missing"))
    if model.positions:
        found.append((-model.positions * hidden, "the learned positions are missing, a row for each"))
    if model.gated:
        found.append((-layers * hidden * model.ffn, "a gated MLP has three matrices: gate, up, down"))
    if model.kv_width < model.query_width:
        found.append(
            (
                layers * 2 * hidden * (model.query_width - model.kv_width),
                "the key and value projections have only num_key_value_heads heads",
            )
        )
    if model.query_width != hidden:
        square = 4 * hidden * hidden if model.kv_width == model.query_width else None
        grouped = 2 * hidden * hidden + 2 * hidden * (hidden // model.heads) * model.kv_heads
        have = 2 * hidden * model.query_width + 2 * hidden * model.kv_width
        found.append(
            (
                layers * ((square or grouped) - have),
                "the heads have head_dim columns, not hidden_size / heads",
            )
        )
    if model.qkv_bias:
        attention = model.query_width + 2 * model.kv_width
        biases = attention + hidden + model.ffn + hidden
        found += [
            (-layers * biases, "every matrix of a GPT-2 layer has a bias, as wide as its output"),
            (-layers * attention, "the biases of query, key and value are missing"),
            (-layers * (attention + hidden), "the biases of the attention are missing"),
            (-layers * (model.ffn + hidden), "the biases of the MLP are missing"),
        ]
    return found


def _parts_in(off: float, slips: list[tuple[int, str]]) -> str | None:
    """The one slip, or the two, that explain a difference."""
    for amount, words in slips:
        if amount == off:
            return words
    for (one, first), (two, second) in itertools.combinations(slips, 2):
        if one + two == off:
            return f"{first}; and {second}"
    return None


# ---- tasks 4 and 5: what runs out ----


@dataclass(frozen=True)
class TrainingRun:
    """A run to plan, in SI units.

    Attributes:
        name: a label.
        n_params: Ψ.
        recipe: bytes per parameter of every copy.
        recipe_name: the recipe's name.
        activation_bytes: what one sequence keeps on its GPU.
        batch_tokens: tokens of one step, over all GPUs.
        batch_sequences: sequences of one step; a GPU needs at least one.
        n_steps: steps of the run.
        deadline_s: seconds that the run may take.
        memory_bytes: of one GPU.
        peak_flops: dense peak of one GPU, FLOP/s.
        mfu: share of the peak that goes into the model, 0 to 1.
        bandwidth: of one GPU's network port in each direction, bytes/s.
    """

    name: str
    n_params: int
    recipe: Recipe
    recipe_name: str
    activation_bytes: float
    batch_tokens: int
    batch_sequences: int
    n_steps: int
    deadline_s: float
    memory_bytes: float
    peak_flops: float
    mfu: float
    bandwidth: float

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def text(self) -> str:
        """The run as a student reads it."""
        return (
            f"{self.name}: {self.n_params / 1e9:.2f} billion parameters, {self.n_steps:,} steps of "
            f"{self.batch_sequences:,} sequences in {self.deadline_s / DAY_S:g} days, on GPUs with "
            f"{format_bytes(self.memory_bytes)} and {format_bandwidth(self.bandwidth)} of network each"
        )


def _run(
    name: str,
    model: str,
    sequence: int,
    batch_sequences: int,
    n_steps: int,
    days: float,
    card: str,
    bandwidth: float,
    recompute: str = "none",
    recipe: str = memory.DEFAULT_RECIPE,
) -> TrainingRun:
    sizes, chip = preset(model), accelerator(card)
    kept = memory.stage_activations(
        sizes.layers,
        sequence,
        1,
        sizes.hidden,
        sizes.heads,
        ffn=sizes.ffn,
        kv_heads=sizes.kv_heads,
        gated=sizes.gated,
        dropout=sizes.dropout,
        flash_attention=True,
        recompute=recompute,
    )
    return TrainingRun(
        name=name,
        n_params=parameters(sizes),
        recipe=_copies(recipe),
        recipe_name=recipe,
        activation_bytes=kept.total_bytes,
        batch_tokens=sequence * batch_sequences,
        batch_sequences=batch_sequences,
        n_steps=n_steps,
        deadline_s=days * DAY_S,
        memory_bytes=chip.memory_bytes,
        peak_flops=chip.peak_flops,
        mfu=0.4,
        bandwidth=bandwidth,
    )


def runs() -> dict[str, TrainingRun]:
    """The runs of tasks 4 and 5, by name."""
    hdr = 25 * GB
    made = (
        _run("llama2-7b", "llama2-7b", 4096, 1024, 476_837, 30, "A100-80GB", hdr),
        _run("llama2-7b, tuned", "llama2-7b", 4096, 64, 4_000, 14, "A100-80GB", hdr),
        _run("llama2-13b, 10 Gb/s", "llama2-13b", 4096, 1024, 240_000, 60, "A100-80GB", 1.25 * GB, "full"),
        _run("gpt3-175b", "gpt3-175b", 2048, 1536, 95_367, 34, "A100-80GB", hdr, "full"),
    )
    return {run.name: run for run in made}


def more_runs() -> list[TrainingRun]:
    """Further runs for grading: other cards, recipes and reasons to fail."""
    ndr = 50 * GB
    return [
        # One GPU is enough.
        _run("gpt2-xl", "gpt2-xl", 1024, 64, 2_000, 30, "H200-141GB", ndr),
        # There are too few sequences for the GPUs that the deadline asks for.
        _run("llama3-8b, small batch", "llama3-8b", 8192, 64, 500_000, 5, "H100-80GB", 450 * GB, "full"),
        # Another recipe, and memory decides.
        _run(
            "7.5B, fp32 gradients", "sc21-7.5b", 2048, 256, 3_000, 60, "H100-80GB", ndr, "full", "megatron-18"
        ),
        _run("llama2-13b", "llama2-13b", 4096, 1024, 240_000, 60, "H100-80GB", ndr, "full"),
    ]


def _compute_s(run: TrainingRun) -> float:
    return training_flops(run.n_params, run.batch_tokens) / (run.mfu * run.peak_flops)


def _step_key(run: TrainingRun, n_gpus: int) -> tuple[float, float]:
    """Seconds of a step, and the share of it that is communication."""
    step = data_parallel(
        n_gpus, _compute_s(run), run.recipe["gradients"] * run.n_params, run.bandwidth, scaling="strong"
    )
    return step.step_time_s, step.communication_share


def _held_key(run: TrainingRun, n_gpus: int) -> float:
    """Bytes on one GPU: ZeRO-1's share of the state, and one sequence's activations."""
    states = memory.model_states(run.n_params, n_gpus, zero_stage=1, recipe=run.recipe_name)
    return states.total_bytes + run.activation_bytes


def _out_key(run: TrainingRun, n_gpus: int) -> list[str]:
    step_s, share = _step_key(run, n_gpus)
    short = (_held_key(run, n_gpus) > run.memory_bytes, run.n_steps * step_s > run.deadline_s, share > 0.5)
    return [name for name, out in zip(RESOURCES, short, strict=True) if out]


def _smallest_key(run: TrainingRun) -> int | None:
    return next((n for n in range(1, run.batch_sequences + 1) if not _out_key(run, n)), None)


def step_time_fault(function: Callable[..., Any], run: TrainingRun, sizes: Iterable[int]) -> str | None:
    """What is wrong with ``function(run, n_gpus)`` as the seconds of one step."""
    for n_gpus in sizes:
        answer = attempt(function, run, n_gpus)
        if answer.fault:
            return answer.fault
        value, (wanted, share) = as_number(answer.value), _step_key(run, n_gpus)
        where = f"{name_of(function)} for {run.name} on {n_gpus} GPUs"
        if value is None:
            return f"{where} must return a number of seconds, not {reprlib.repr(answer.value)}"
        if not close(value, wanted):
            words = f"{where}: {value:g} s is not right"
            compute, sent = wanted * (1 - share), wanted * share
            slips = [
                (compute, "that leaves out the all-reduce"),
                (compute * run.mfu + sent, "the GPU computes at the MFU's share of its peak"),
                (compute * n_gpus + sent, "the GPUs share the batch, each computes 1/N of it"),
                (
                    compute + sent * n_gpus / max(n_gpus - 1, 1),
                    "a ring sends 2(N−1)/N · P, on one GPU nothing",
                ),
                (compute + sent / 2, "an all-reduce has two phases, each sends (N−1)/N · P"),
                (compute + 8 * sent, "run.bandwidth is in bytes per second, not in bits"),
                (compute + 2 * sent, "the gradients have run.recipe['gradients'] bytes per parameter"),
                (max(compute, sent), "here nothing overlaps: first compute, then the all-reduce"),
                (compute / 3 + sent, "that counts the forward pass only"),
                (wanted * run.n_steps, "that is the whole run; the question is about one step"),
            ]
            slip = next((why for wrong, why in slips if close(value, wrong)), None)
            return f"{words}: {slip}" if slip else words
    return None


def runs_out_fault(
    function: Callable[..., Any],
    run: TrainingRun,
    sizes: Iterable[int],
    resource: str | None = None,
    carry: Carry | None = None,
) -> str | None:
    """What is wrong with ``function(run, n_gpus)`` as the list of what runs out.

    Args:
        function: the student's.
        run: the run to plan.
        sizes: numbers of GPUs to ask about.
        resource: look at this one only; None compares the whole list, order included.
        carry: a working ``step_time_s``. The student's own is tried too, and the better trial counts.
    """
    asked = list(sizes)
    return with_carry(function, carry, lambda: _runs_out_fault(function, run, asked, resource), _is_fault)


def _is_fault(fault: str | None) -> int:
    return int(fault is not None)


def _runs_out_fault(
    function: Callable[..., Any],
    run: TrainingRun,
    sizes: list[int],
    resource: str | None,
) -> str | None:
    for n_gpus in sizes:
        answer = attempt(function, run, n_gpus)
        if answer.fault:
            return answer.fault
        found, wanted = answer.value, _out_key(run, n_gpus)
        where = f"{name_of(function)} for {run.name} on {n_gpus} GPUs"
        if not isinstance(found, (list, tuple)) or not set(found) <= set(RESOURCES):
            return (
                f"{where} must return a list of the words 'memory', 'time', 'bandwidth', "
                f"not {reprlib.repr(found)}"
            )
        for one in RESOURCES if resource is None else (resource,):
            if (one in found) != (one in wanted):
                return f"{where}: {_verdict(one, run, n_gpus, one in wanted)}"
        if resource is None and list(found) != wanted:
            return f"{where} returned {list(found)!r}; each once, in the order memory, time, bandwidth"
    return None


def _verdict(resource: str, run: TrainingRun, n_gpus: int, out: bool) -> str:
    """What the models say about one resource, with the numbers that decide."""
    runs_out = "runs out" if out else "does not run out"
    if resource == "memory":
        held = _held_key(run, n_gpus)
        return (
            f"memory {runs_out}: a GPU holds {format_bytes(held)} and has {format_bytes(run.memory_bytes)}. "
            "Weights and gradients are whole on each GPU, the rest of the state is shared out, "
            "and a sequence's activations come on top"
        )
    step_s, share = _step_key(run, n_gpus)
    if resource == "time":
        return (
            f"time {runs_out}: the run takes {run.n_steps * step_s / DAY_S:.1f} days "
            f"and has {run.deadline_s / DAY_S:g}"
        )
    return f"bandwidth {runs_out}: the all-reduce is {100 * share:.1f} % of a step"


class _TooMany(RuntimeError):
    """A search went past the last number of GPUs that makes sense."""


def smallest_fault(function: Callable[..., Any], run: TrainingRun, carry: Carry | None = None) -> str | None:
    """What is wrong with ``function(run)`` as the smallest number of GPUs with which nothing runs out.

    A search that never ends is stopped by what it calls: ``what_runs_out`` refuses to go far beyond one sequence
    for each GPU. ``carry`` as in :func:`runs_out_fault`.
    """
    return with_carry(function, carry, lambda: _smallest_fault(function, run), _is_fault)


def _smallest_fault(function: Callable[..., Any], run: TrainingRun) -> str | None:
    answer = _search(function, run)
    if answer.fault:
        return answer.fault
    found, wanted = answer.value, _smallest_key(run)
    if found is wanted or (as_number(found) is not None and found == wanted):
        return None
    where = f"{name_of(function)} for {run.name} returned {reprlib.repr(found)}"
    number = as_number(found)
    if found is not None and (number is None or number != int(number) or number < 1):
        return f"{where}: return a whole number from 1, or None if no number will do"
    if number is None:
        return f"{where}, but with some number of GPUs nothing runs out: look at every number from 1 on"
    if number > run.batch_sequences:
        return f"{where}, but a step has {run.batch_sequences} sequences, and every GPU needs one"
    short = _out_key(run, int(number))
    if short:
        return f"{where}, but with so many GPUs {' and '.join(short)} runs out"
    return f"{where}: with {int(number) - 1} GPUs nothing runs out either"


def _search(function: Callable[..., Any], run: TrainingRun) -> Answer:
    """Call a student's search; one without an end is stopped."""
    asked = getattr(function, "__globals__", {}).get("what_runs_out")

    def guarded(run: TrainingRun, n_gpus: int) -> Any:
        if n_gpus > 4 * run.batch_sequences:
            raise _TooMany(
                f"asked about {n_gpus} GPUs, but a step of {run.name} has {run.batch_sequences} sequences: "
                "where does the search stop?"
            )
        return asked(run, n_gpus) if asked else None

    # Whatever the search calls what_runs_out for goes through the guard.
    return attempt(function, run, carry={"what_runs_out": guarded} if asked else None)


def overview(smallest: Callable[..., Any], runs_out: Callable[..., Any], plans: Iterable[TrainingRun]) -> str:
    """A table of runs: the smallest number of GPUs, what runs out with one fewer, and what with four times as many."""
    rows = [["", "GPUs", "out with one fewer", "out with four times as many", "out with batch_sequences"]]
    for run in plans:
        answer = _search(smallest, run)
        found = answer.value
        cells = ["·", "·"]
        if isinstance(found, int) and found > 0:
            cells = [
                _listed(runs_out, run, found - 1) if found > 1 else "·",
                _listed(runs_out, run, 4 * found),
            ]
        most = _listed(runs_out, run, run.batch_sequences)
        rows.append([run.name, "?" if answer.fault else str(found), *cells, most])
    return text_table(rows)


def _listed(runs_out: Callable[..., Any], run: TrainingRun, n_gpus: int) -> str:
    found = attempt(runs_out, run, n_gpus).value
    if not isinstance(found, (list, tuple)):
        return "?"
    return ", ".join(map(str, found)) or "nothing"


# ---- task 6: measured ----


def measured_rates() -> str:
    """Time products and a sum on this machine: FLOP, seconds and FLOP/s of each, with the bytes that they touch.

    Lists of Python always; with NumPy, if it is installed, fp32 matrices from tiny to large. About a second.
    """
    rows = [["", "FLOP", "time, ms", "GFLOP/s", "FLOP per byte"]]
    size = 48
    left = [[float(row + column) for column in range(size)] for row in range(size)]
    seconds = _best_s(lambda: _python_product(left, left))
    rows.append(
        _rate_row(f"Python lists, {size} x {size} product", _product_flop(size), seconds, 3 * 8 * size**2)
    )
    if not installed("numpy"):
        return text_table(rows) + "\nWith NumPy installed there are more rows."
    import numpy

    for size in (16, 64, 256, 1024):
        matrix = numpy.ones((size, size), dtype=numpy.float32)
        seconds = _best_s(lambda matrix=matrix: matrix @ matrix)  # type: ignore[misc]
        rows.append(
            _rate_row(f"NumPy, {size} x {size} product", _product_flop(size), seconds, 3 * 4 * size**2)
        )
    for length in (4_000, 4_000_000):
        one, two, out = (numpy.ones(length, dtype=numpy.float32) for _ in range(3))
        seconds = _best_s(lambda one=one, two=two, out=out: numpy.add(one, two, out=out))  # type: ignore[misc]
        rows.append(_rate_row(f"NumPy, sum of two vectors of {length:,}", length, seconds, 3 * 4 * length))
    return text_table(rows)


def _product_flop(size: int) -> float:
    """FLOP of a square product: the rows of one matrix are the tokens, the other one is the weights."""
    return 2.0 * size**3


def _python_product(left: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    columns = list(zip(*right, strict=True))
    return [[sum([a * b for a, b in zip(row, column, strict=True)]) for column in columns] for row in left]


def _best_s(work: Callable[[], object]) -> float:
    """The shortest of several times: what disturbs a measurement only makes it longer."""
    # The first time also finds memory, and loads what it calls.
    work()
    best, end = float("inf"), time.perf_counter() + 0.05
    while True:
        started = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - started)
        if now > end:
            return best


def _rate_row(what: str, flop: float, seconds: float, n_bytes: float) -> list[str]:
    return [
        what,
        f"{flop:.3g}",
        f"{seconds * 1e3:.3g}",
        f"{flop / seconds / 1e9:.3g}",
        f"{flop / n_bytes:.2g}",
    ]
