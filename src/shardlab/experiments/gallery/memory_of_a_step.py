"""What fills the memory of one GPU in a training step, kind by kind, against the memory of real accelerators."""

from __future__ import annotations

import math
from typing import Any

from shardlab import hardware
from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.models.memory import StageActivations, model_states, recipe_named, stage_activations
from shardlab.transformer import parameters, preset

RECOMPUTATIONS = ("none", "selective", "full")

_MODELS = (
    ("gpt2-xl", "GPT-2 XL, 1.6B"),
    ("llama2-7b", "Llama 2 7B"),
    ("llama3-8b", "Llama 3 8B"),
    ("llama2-13b", "Llama 2 13B"),
    ("llama3-70b", "Llama 3 70B"),
    ("gpt3-175b", "GPT-3 175B"),
    ("llama3-405b", "Llama 3 405B"),
)
_RECIPES = (
    ("mixed-adam-16", "2+2+12: 16-bit, Adam in fp32"),
    ("megatron-18", "2+4+12: gradients in fp32"),
    ("deepspeed-20", "2+2+16: fp32 copy of gradients"),
    ("fp32-adam-16", "4+4+8: all in fp32"),
    ("mixed-adam8bit-10", "2+2+6: 8-bit moments"),
    ("bf16-adam-8", "2+2+4: all in bf16"),
    ("frozen-2", "2+0+0: frozen weights"),
)
_CARDS = (
    ("A100-40GB", "A100, 40 GB"),
    ("A100-80GB", "A100, 80 GB"),
    ("H100-80GB", "H100, 80 GB"),
    ("H200-141GB", "H200, 141 GB"),
    ("B200-180GB", "B200, 180 GB"),
)
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
# Lines closer together than this share of the axis would write their names over each other.
_APART = 0.16
# And this much of it is what the text at the end of a bar takes.
_TEXT = 0.22


def picture(
    model: str,
    recipe: str,
    micro_batch: int,
    sequence: int,
    recompute: str,
    flash: bool,
    card: str,
) -> dict[str, Any]:
    """Bytes of one step by kind, and the total under each recomputation, beside the memory of accelerators."""
    setting = _Setting(model, recipe, micro_batch, sequence, recompute, flash, card)
    return chart.chart(
        panels=[_kinds_panel(setting), _total_panel(setting)],
        words=[_verdict(setting), _activations(setting), _advice(setting)],
        readouts=_readouts(setting),
    )


class _Setting:
    """What the reader has set, and the models' answers to it."""

    def __init__(
        self,
        model: str,
        recipe: str,
        micro_batch: int,
        sequence: int,
        recompute: str,
        flash: bool,
        card: str,
    ) -> None:
        self.model = preset(model)
        self.params = float(parameters(self.model))
        self.recipe = recipe_named(recipe)
        self.micro_batch = micro_batch
        self.sequence = sequence
        self.recompute = recompute
        self.flash = flash
        self.memory_bytes = hardware.accelerator(card).memory_bytes
        states = model_states(self.params, recipe=self.recipe)
        self.weights = states.parameters
        self.gradients = states.gradients
        self.optimizer = states.master_weights + states.master_gradients + states.optimizer
        self.states = states.total_bytes
        self.activations = self.activations_of(recompute).total_bytes
        self.total = self.states + self.activations

    def activations_of(self, recompute: str) -> StageActivations:
        model = self.model
        return stage_activations(
            model.layers,
            self.sequence,
            self.micro_batch,
            model.hidden,
            model.heads,
            model.vocabulary,
            ffn=model.ffn,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            gated=model.gated,
            recompute=recompute,
            flash_attention=self.flash,
            dropout=model.dropout,
        )

    @property
    def fits(self) -> bool:
        return self.total <= self.memory_bytes

    @property
    def largest_micro_batch(self) -> int:
        """Sequences whose activations still fit beside the states; activations grow evenly with them."""
        room = self.memory_bytes - self.states
        return max(math.floor(room / (self.activations / self.micro_batch)), 0)


def _limits(setting: _Setting, ends: list[float], most: float) -> list[dict[str, Any]]:
    """The chosen card's memory, and that of others whose line crosses no text and whose name stands free."""
    shown = [setting.memory_bytes]
    for size in (80e9, 141e9, 180e9, 40e9):
        apart = all(abs(size - other) > _APART * most for other in shown)
        clear = not any(end < size < end + _TEXT * most for end in ends)
        if size < most and apart and clear:
            shown.append(size)
    return [chart.limit(size, _short(size), align="end" if size > 0.8 * most else "start") for size in shown]


def _kinds(setting: _Setting) -> list[tuple[str, str, float]]:
    return [
        ("parameters", "memory-parameters", setting.weights),
        ("gradients", "memory-gradients", setting.gradients),
        ("optimizer", "memory-optimizer", setting.optimizer),
        ("activations", "memory-activations", setting.activations),
    ]


def _kinds_panel(setting: _Setting) -> dict[str, Any]:
    kinds = _kinds(setting)
    stacks = [
        chart.stack(name, role, [size if row == index else 0.0 for row in range(len(kinds))])
        for index, (name, role, size) in enumerate(kinds)
    ]
    return chart.bars(
        title="One step, by kind",
        categories=[name for name, _, _ in kinds],
        value=chart.size_axis("bytes", 1.36 * max([size for _, _, size in kinds]), about=3),
        stacks=stacks,
        texts=[_short(size) if size else "0" for _, _, size in kinds],
        alt="Bars: memory of one GPU in a step: "
        + ", ".join([f"{name} {words.n_bytes(size)}" for name, _, size in kinds])
        + ".",
    )


def _total_panel(setting: _Setting) -> dict[str, Any]:
    activations = [setting.activations_of(kind).total_bytes for kind in RECOMPUTATIONS]
    totals = [setting.states + size for size in activations]
    # Up to the card's memory, so that the total stands beyond its line.
    free = [max(setting.memory_bytes - total, 0.0) for total in totals]
    ends = [max(setting.memory_bytes, total) for total in totals]
    most = 1.36 * max(ends)
    stacks = [
        chart.stack(name, role, [size for _ in RECOMPUTATIONS]) for name, role, size in _kinds(setting)[:-1]
    ]
    stacks.append(chart.stack("activations", "memory-activations", activations))
    stacks.append(chart.stack("free", "grid", free))
    return chart.bars(
        title="All of it, by what is recomputed",
        categories=list(RECOMPUTATIONS),
        value=chart.size_axis("bytes", most, about=3),
        stacks=stacks,
        limits=_limits(setting, ends, most),
        texts=[_short(total) for total in totals],
        alt="Bars: the total with recomputation "
        + ", ".join([f"{kind} {words.n_bytes(total)}" for kind, total in zip(RECOMPUTATIONS, totals)])
        + f", beside the {words.n_bytes(setting.memory_bytes)} of the chosen card.",
    )


def _short(value: float) -> str:
    """A size in three digits: the ends of bars have little room."""
    for factor, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if value >= 0.9995 * factor:
            digits = words.amount(value / factor)
            digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
            return f"{digits}\u00a0{unit}"
    return words.n_bytes(value)


def _readouts(setting: _Setting) -> list[dict[str, Any]]:
    per_parameter = words.plain_number(round(setting.recipe.bytes_per_parameter, 2))
    return [
        chart.readout("needed", _short(setting.total), f"of {_short(setting.memory_bytes)}"),
        chart.readout("states", _short(setting.states), f"{per_parameter} B per parameter", "memory-text"),
        chart.readout(
            "activations",
            _short(setting.activations),
            f"{words.plural(setting.micro_batch, 'sequence')} of {setting.sequence}",
            "memory-text",
        ),
        chart.readout("largest micro-batch", str(setting.largest_micro_batch), "that fits"),
        chart.readout(
            "GPUs for the states",
            str(math.ceil(setting.states / setting.memory_bytes)),
            "if split evenly",
        ),
    ]


def _verdict(setting: _Setting) -> str:
    needed, room = words.n_bytes(setting.total), words.n_bytes(setting.memory_bytes)
    if setting.fits:
        share = words.percent(setting.total / setting.memory_bytes)
        return f"It fits: the step needs {needed} of {room}, {share}."
    if setting.states > setting.memory_bytes:
        return f"It does not fit, whatever the batch: the states alone take {words.n_bytes(setting.states)}, and there are {room}."
    return (
        f"It does not fit because of the activations: the states take {words.n_bytes(setting.states)}, "
        f"the activations {words.n_bytes(setting.activations)} more, and there are {room}."
    )


def _activations(setting: _Setting) -> str:
    share = words.percent(setting.activations / setting.total)
    growth = f"Activations are {share} of the total. They grow with the micro-batch and the sequence; the states do not."
    if setting.flash and setting.recompute == "selective":
        return growth + " Flash attention keeps no scores, so selective recomputation has nothing to save."
    return growth


def _advice(setting: _Setting) -> str:
    end = " The CUDA context (about 1 GB), buffers and fragmentation come on top."
    if setting.states > setting.memory_bytes:
        gpus = math.ceil(setting.states / setting.memory_bytes)
        return (
            f"{gpus} such GPUs could hold the states if each held an equal part, before any activation." + end
        )
    if setting.largest_micro_batch == 0:
        more = "recompute more, or " if setting.recompute != "full" else ""
        return f"Not one sequence fits: {more}use a shorter sequence or a leaner recipe." + end
    if setting.largest_micro_batch == 1:
        return "A micro-batch of one sequence fits, and no larger one." + end
    return f"Up to {setting.largest_micro_batch} sequences would fit as one micro-batch." + end


_LLAMA2 = "Llama 2 (arXiv 2307.09288): 4,096 tokens, A100 of 80 GB"

EXPERIMENT = Experiment(
    name="memory-of-a-step",
    title="Memory of a step",
    question="What fills one GPU in a training step, and what would make it fit?",
    controls=(
        choice("model", "Model", _MODELS, "llama2-7b"),
        choice("recipe", "Bytes per parameter", _RECIPES, "mixed-adam-16"),
        slider("micro_batch", "Micro-batch, sequences", _MICRO_BATCHES, 1, whole=True),
        slider("sequence", "Sequence, tokens", _SEQUENCES, 4096, whole=True),
        choice(
            "recompute",
            "Recomputation",
            (("none", "none"), ("selective", "selective: attention scores"), ("full", "full: whole layers")),
            "none",
        ),
        toggle("flash", "Flash attention", True),
        choice("card", "GPU", _CARDS, "A100-80GB"),
    ),
    presets=(
        Preset(
            name="llama2-7b",
            label="Llama 2 7B, as trained",
            values={"model": "llama2-7b", "sequence": 4096, "card": "A100-80GB"},
            source=f"{_LLAMA2}. Flash attention and the recipe are this book's.",
        ),
        Preset(
            name="bf16-tuning",
            label="7B tuned in bf16",
            values={"model": "llama2-7b", "recipe": "bf16-adam-8", "sequence": 4096, "card": "A100-80GB"},
            source=f"{_LLAMA2}; all in bf16 is common for fine-tuning on one card.",
        ),
        Preset(
            name="gpt2-scores",
            label="GPT-2 XL, scores kept",
            values={
                "model": "gpt2-xl",
                "micro_batch": 8,
                "sequence": 1024,
                "flash": False,
                "card": "A100-80GB",
            },
            source="GPT-2 (2019): 1,024 tokens, 25 heads. Attention scores stored, as before flash attention.",
        ),
        Preset(
            name="long-context",
            label="8B, 131,072 tokens",
            values={"model": "llama3-8b", "sequence": 131072, "recompute": "full", "card": "H200-141GB"},
            source="Llama 3 (arXiv 2407.21783): context of 128K tokens. One sequence, everything recomputed.",
        ),
        Preset(
            name="gpt3",
            label="GPT-3 on one GPU?",
            values={"model": "gpt3-175b", "sequence": 2048, "recompute": "full", "card": "B200-180GB"},
            source="GPT-3 (arXiv 2005.14165): 2,048 tokens; card by the data sheet.",
        ),
    ),
    picture=picture,
)
