"""Which ZeRO stage fits, what it sends, and what a step then takes."""

from __future__ import annotations

import math
from typing import Any

from shardlab import hardware
from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.models.communication import DataTraffic, data_traffic
from shardlab.models.memory import ModelStates, model_states, unsharded_bytes
from shardlab.transformer import training_flops
from shardlab.units import GB

STAGES = (0, 1, 2, 3)
WIRE_BYTES = 2.0
PEAK_SHARE = 0.5
"""Share of the data sheet's peak at which ranks compute; SC21's Table 1 has 43 to 52 % on A100."""

_CARDS = (
    ("A100-40GB", "A100, 40 GB"),
    ("A100-80GB", "A100, 80 GB"),
    ("H100-80GB", "H100, 80 GB"),
    ("H200-141GB", "H200, 141 GB"),
    ("B200-180GB", "B200, 180 GB"),
)
_BILLIONS = (0.1, 0.34, 0.56, 1, 1.5, 3, 5, 7.5, 8, 13, 20, 30, 40, 70, 100, 128, 175, 300, 530, 1000)
_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 1536)
_OTHER_BYTES = (0.0, 1e9, 2e9, 5e9, 10e9, 20e9, 40e9, 60e9)
_BANDWIDTHS = (
    0.125e9,
    0.5e9,
    1.25e9,
    2.5e9,
    5e9,
    12.5e9,
    15.7e9,
    25e9,
    50e9,
    69e9,
    100e9,
    150e9,
    250e9,
    450e9,
)
_TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
# Longer bars than this many memories are cut: beside 16 TB nobody sees 80 GB.
_CUT = 2.4


def picture(
    billions: float,
    ranks: int,
    card: str,
    other_bytes: float,
    bandwidth: float,
    micro_batches: int,
    tokens: int,
    keep_weights: bool,
) -> dict[str, Any]:
    """Memory of one rank, bytes it sends and time of a step, for each stage."""
    setting = _Setting(billions, ranks, card, other_bytes, bandwidth, micro_batches, tokens, keep_weights)
    return chart.chart(
        panels=[_memory_panel(setting), _volume_panel(setting), _time_panel(setting)],
        words=_sentences(setting),
        readouts=_readouts(setting),
    )


class _Setting:
    """What the reader has set, and the models' answers to it, one of each for each stage."""

    def __init__(
        self,
        billions: float,
        ranks: int,
        card: str,
        other_bytes: float,
        bandwidth: float,
        micro_batches: int,
        tokens: int,
        keep_weights: bool,
    ) -> None:
        self.params = billions * 1e9
        self.ranks = ranks
        self.memory_bytes = hardware.accelerator(card).memory_bytes
        self.flops = PEAK_SHARE * hardware.accelerator(card).peak_flops
        self.other_bytes = other_bytes
        self.bandwidth = bandwidth
        self.micro_batches = micro_batches
        self.tokens = tokens
        self.keep_weights = keep_weights
        self.states: list[ModelStates] = [model_states(self.params, ranks, stage) for stage in STAGES]
        # Weights kept whole from the forward to the backward pass lie beside the shards.
        self.kept_bytes = unsharded_bytes(self.params, WIRE_BYTES, 0) if keep_weights and ranks > 1 else 0.0
        self.totals = [
            self.states[stage].total_bytes + (self.kept_bytes if stage == 3 else 0.0) + other_bytes
            for stage in STAGES
        ]
        self.traffic: list[DataTraffic] = [
            data_traffic(
                self.params,
                ranks,
                stage,
                micro_batches,
                WIRE_BYTES,
                WIRE_BYTES,
                reshard_after_forward=not keep_weights,
            )
            for stage in STAGES
        ]
        self.compute_s = micro_batches * training_flops(self.params, tokens) / self.flops
        self.sent_s = [traffic.total_bytes / bandwidth for traffic in self.traffic]
        fitting = [stage for stage in STAGES if self.totals[stage] <= self.memory_bytes]
        # Volumes never fall from one stage to the next, so the lowest stage that fits is the cheapest.
        self.best = fitting[0] if fitting else None

    def step_s(self, stage: int) -> tuple[float, float]:
        """The step with everything overlapped, and with nothing."""
        return max(self.compute_s, self.sent_s[stage]), self.compute_s + self.sent_s[stage]

    @property
    def hiding_tokens(self) -> float:
        """Tokens per micro-batch and rank from which stage 3's traffic takes no longer than the compute."""
        per_token_s = training_flops(self.params, 1) / self.flops
        return self.sent_s[3] / (self.micro_batches * per_token_s)


def _stage_names() -> list[str]:
    return [f"stage {stage}" for stage in STAGES]


def _cut(columns: list[list[float]], most: float) -> list[list[float]]:
    """The parts of each bar, cut where the bar reaches ``most``: ``columns[part][bar]``."""
    room = [most for _ in columns[0]]
    kept = []
    for column in columns:
        shown = [min(value, left) for value, left in zip(column, room)]
        room = [left - value for left, value in zip(room, shown)]
        kept.append(shown)
    return kept


def _memory_panel(setting: _Setting) -> dict[str, Any]:
    most = min(max(setting.totals), _CUT * setting.memory_bytes)
    parts = [
        [states.parameters for states in setting.states],
        [0.0, 0.0, 0.0, setting.kept_bytes],
        [states.gradients for states in setting.states],
        [states.master_weights + states.master_gradients + states.optimizer for states in setting.states],
        [setting.other_bytes for _ in STAGES],
    ]
    weights, kept, gradients, optimizer, others = _cut(parts, most)
    stacks = [chart.stack("parameters", "memory-parameters", weights)]
    if setting.kept_bytes:
        stacks.append(chart.stack("whole weights", "memory-parameters", kept, texture="light"))
    stacks += [
        chart.stack("gradients", "memory-gradients", gradients),
        chart.stack("optimizer", "memory-optimizer", optimizer),
    ]
    if setting.other_bytes:
        stacks.append(chart.stack("activations etc.", "memory-activations", others))
    # Up to the memory's end, so that the total stands beyond its line.
    free = [max(setting.memory_bytes - total, 0.0) for total in setting.totals]
    stacks.append(chart.stack("free", "grid", free))
    fits = [total <= setting.memory_bytes for total in setting.totals]
    return chart.bars(
        title="Memory of one rank",
        categories=_stage_names(),
        value=chart.size_axis("bytes", 1.36 * max(most, setting.memory_bytes), about=3),
        stacks=stacks,
        limits=[chart.limit(setting.memory_bytes, f"HBM {words.n_bytes(setting.memory_bytes)}", align="end")],
        texts=[_short_bytes(total) for total in setting.totals],
        alt="Bars: memory of one rank. "
        + "; ".join(
            [
                f"stage {stage} {words.n_bytes(setting.totals[stage])}, {'fits' if fits[stage] else 'does not fit'}"
                for stage in STAGES
            ]
        )
        + f" in {words.n_bytes(setting.memory_bytes)}.",
    )


def _short_bytes(value: float) -> str:
    """A size in three digits: the ends of bars have little room."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if value >= 0.9995 * factor:
            return f"{words.amount(value / factor)}\u00a0{unit}"
    return words.n_bytes(value)


def _volume_panel(setting: _Setting) -> dict[str, Any]:
    # An all-reduce is a reduce-scatter and an all-gather of the gradients.
    half = [traffic.all_reduce_bytes / 2 for traffic in setting.traffic]
    totals = [traffic.total_bytes for traffic in setting.traffic]
    return chart.bars(
        title="Sent by one rank per step",
        categories=_stage_names(),
        value=chart.size_axis("bytes", 1.36 * max(totals) if max(totals) else GB, about=3),
        stacks=[
            chart.stack(
                "reduce-scatter",
                "communication",
                [traffic.reduce_scatter_bytes + part for traffic, part in zip(setting.traffic, half)],
            ),
            chart.stack(
                "all-gather",
                "communication",
                [traffic.all_gather_bytes + part for traffic, part in zip(setting.traffic, half)],
                texture="light",
            ),
        ],
        texts=[_short_bytes(total) if total else "0" for total in totals],
        alt="Bars: bytes that one rank sends per optimizer step: "
        + ", ".join([f"stage {stage} {words.n_bytes(totals[stage])}" for stage in STAGES])
        + ".",
    )


def _time_panel(setting: _Setting) -> dict[str, Any]:
    steps = [setting.step_s(stage) for stage in STAGES]
    return chart.bars(
        title="A step, nothing overlapped",
        categories=_stage_names(),
        value=chart.time_axis("time", 1.36 * max([slow for _, slow in steps]), about=3),
        stacks=[
            chart.stack("compute", "compute", [setting.compute_s for _ in STAGES]),
            chart.stack("communication", "communication", setting.sent_s),
        ],
        texts=[_short_time(slow) for _, slow in steps],
        alt="Bars: time of a step: "
        + ", ".join(
            [
                f"stage {stage} {words.seconds(steps[stage][0])} to {words.seconds(steps[stage][1])}"
                for stage in STAGES
            ]
        )
        + ", from everything overlapped to nothing.",
    )


def _short_time(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= 0.9995 * factor:
            return f"{words.amount(value / factor)}\u00a0{unit}"
    return words.seconds(value)


def _readouts(setting: _Setting) -> list[dict[str, Any]]:
    shown = 3 if setting.best is None else setting.best
    fast, slow = setting.step_s(shown)
    plain = setting.traffic[0].total_bytes
    times = setting.traffic[shown].total_bytes / plain if plain else 1.0
    return [
        chart.readout(
            "cheapest stage that fits",
            "none" if setting.best is None else str(setting.best),
            f"of {words.n_bytes(setting.memory_bytes)}",
        ),
        chart.readout(
            f"memory at stage {shown}", _short_bytes(setting.totals[shown]), "on one rank", "memory-text"
        ),
        chart.readout(
            f"sent at stage {shown}",
            _short_bytes(setting.traffic[shown].total_bytes) if plain else "0",
            f"{words.ratio(times)} plain data parallel",
            "communication-text",
        ),
        chart.readout(
            f"step at stage {shown}",
            f"{_short_time(fast)} to {_short_time(slow)}",
            "all or nothing overlapped",
        ),
        chart.readout(
            "stage 3 can hide from",
            f"{words.amount(setting.hiding_tokens)} tokens",
            "per micro-batch and rank",
            "compute-text",
        ),
    ]


def _sentences(setting: _Setting) -> list[str]:
    if setting.ranks == 1:
        return [
            _verdict(setting),
            "One rank has nobody to share with: every stage holds the same and sends nothing.",
        ]
    return [_verdict(setting), _volumes(setting), _time(setting)]


def _verdict(setting: _Setting) -> str:
    memory = words.n_bytes(setting.memory_bytes)
    if setting.best is None:
        return (
            f"No stage fits: stage 3 needs {words.n_bytes(setting.totals[3])}, and there are {memory}. "
            + _way_out(setting)
        )
    opening = f"Stage {setting.best} is the cheapest that fits: {words.n_bytes(setting.totals[setting.best])} of {memory}"
    if setting.best == 0:
        return f"{opening}. Plain data parallelism is enough; a higher stage buys room for more activations."
    below = setting.best - 1
    return f"{opening}, where stage {below} needs {words.n_bytes(setting.totals[below])}."


def _way_out(setting: _Setting) -> str:
    room = setting.memory_bytes - setting.other_bytes - setting.kept_bytes
    if room <= 0:
        return "Activations and whole weights alone fill the memory: recompute, keep fewer weights, or split the model."
    needed = math.ceil(setting.states[0].total_bytes / room)
    return f"It would take {words.plural(needed, 'rank')}, tensor or pipeline parallelism, or CPU memory."


def _volumes(setting: _Setting) -> str:
    plain = setting.traffic[0].total_bytes
    second, third = [setting.traffic[stage].total_bytes / plain for stage in (2, 3)]
    gathers = "once" if setting.keep_weights else "twice"
    last = f"stage 3 sends {words.ratio(third)} that, as it gathers the weights {gathers}"
    if setting.micro_batches == 1:
        return (
            f"Plain data parallelism, stage 1 and stage 2 each send {words.n_bytes(plain)} per step; {last}."
        )
    return (
        f"Over {setting.micro_batches} micro-batches plain data parallelism and stage 1 send {words.n_bytes(plain)}; "
        f"stage 2 sends {words.ratio(second)} that, as it reduces gradients after each one; {last} for each one."
    )


def _time(setting: _Setting) -> str:
    taken, sent = words.seconds(setting.compute_s), words.seconds(setting.sent_s[3])
    hides = " and can hide under" if setting.sent_s[3] <= setting.compute_s else ", longer than"
    return (
        f"Stage 3's traffic takes {sent} at {words.bandwidth(setting.bandwidth)}{hides} the {taken} of compute; "
        f"with {words.amount(setting.hiding_tokens)} tokens per micro-batch and rank the two are equal. Ranks compute at "
        "half of the data sheet's peak; latency, gathered layers and fragmentation are not counted."
    )


_H100 = "H100 by the data sheet"

EXPERIMENT = Experiment(
    name="zero-stage-chooser",
    title="Which ZeRO stage?",
    question="What does each stage hold, send and take, and which is the cheapest that fits?",
    controls=(
        slider("billions", "Model, billion parameters", _BILLIONS, 7.5),
        slider("ranks", "Ranks N", _RANKS, 64, whole=True),
        choice("card", "GPU", _CARDS, "A100-40GB"),
        slider("other_bytes", "Activations, buffers, context", _OTHER_BYTES, 10e9, "bytes"),
        slider("bandwidth", "Bandwidth per rank", _BANDWIDTHS, 25e9, "bytes/s"),
        slider("micro_batches", "Micro-batches per step G", (1, 2, 4, 8, 16, 32, 64), 1, whole=True),
        slider("tokens", "Tokens per micro-batch and rank", _TOKENS, 4096, whole=True),
        toggle("keep_weights", "Stage 3 keeps weights after forward", False),
    ),
    presets=(
        Preset(
            name="zero-paper",
            label="ZeRO paper, 7.5B on 64",
            values={
                "billions": 7.5,
                "ranks": 64,
                "card": "A100-40GB",
                "other_bytes": 10e9,
                "bandwidth": 25e9,
            },
            source="Model and ranks: ZeRO (arXiv 1910.02054), Figure 1: 120, 31.4, 16.6 and 1.9 GB of states. The card, "
            "its 25 GB/s (one HDR port each) and 10 GB of activations are this book's.",
        ),
        Preset(
            name="llama-8b-node",
            label="8B on one H100 node",
            values={"billions": 8, "ranks": 8, "card": "H100-80GB", "other_bytes": 20e9, "bandwidth": 250e9},
            source=f"Llama 3 8B (arXiv 2407.21783) on 8 H100: 250 GB/s of all-gather measured in one node "
            f"(Ultra-Scale Playbook, 2025); {_H100}; 20 GB of activations are this book's.",
        ),
        Preset(
            name="llama-70b-8-nodes",
            label="70B on 8 H100 nodes",
            values={"billions": 70, "ranks": 64, "card": "H100-80GB", "other_bytes": 20e9, "bandwidth": 69e9},
            source=f"Llama 3 70B on 64 H100: 69 GB/s of all-gather measured across 8 nodes (Ultra-Scale Playbook, "
            f"2025); {_H100}; 20 GB of activations are this book's.",
        ),
        Preset(
            name="accumulated-1b",
            label="1B on 4, 32 micro-batches",
            values={
                "billions": 1,
                "ranks": 4,
                "card": "H100-80GB",
                "other_bytes": 20e9,
                "bandwidth": 250e9,
                "micro_batches": 32,
                "tokens": 4096,
            },
            source="Model, ranks and 32 micro-batches of two samples: a public report (allenai/OLMo, issue 762), where "
            "FSDP was 4.6 times slower than DDP; card, link and 2,048 tokens a sample are assumed.",
        ),
        Preset(
            name="gpt3-1536",
            label="GPT-3 on 1,536 A100",
            values={
                "billions": 175,
                "ranks": 1536,
                "card": "A100-80GB",
                "other_bytes": 20e9,
                "bandwidth": 15.7e9,
                "tokens": 2048,
            },
            source="SC21 (arXiv 2104.04473), Table 2: ZeRO-3, micro-batch 1 of 2,048 tokens, 67 s a step. 15.7 GB/s is what "
            "the traffic and those 67 s imply, not a measurement; 20 GB of activations are this book's.",
        ),
    ),
    picture=picture,
)
