"""Memory, time or bandwidth: how many GPUs does each of them ask for, and which one decides?"""

from __future__ import annotations

import math
from typing import Any

from shardlab import hardware
from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.memory import model_states
from shardlab.transformer import parameters, preset, training_flops

GRADIENT_BYTES = 2.0
PEAK_SHARE = 0.4
"""Share of the data sheet's peak at which a GPU computes; Llama 2 reached 0.38 to 0.43 over whole runs."""

DAY = 86_400.0
MOST_GPUS = 65_536

_GPUS = tuple([2**exponent for exponent in range(17)])
_MODELS = (
    ("gpt2-xl", "GPT-2 XL, 1.6B"),
    ("llama2-7b", "Llama 2 7B"),
    ("llama2-13b", "Llama 2 13B"),
    ("llama2-70b", "Llama 2 70B"),
    ("gpt3-175b", "GPT-3 175B"),
    ("llama3-405b", "Llama 3 405B"),
)
_CARDS = (
    ("A100-80GB", "A100, 80 GB"),
    ("H100-80GB", "H100, 80 GB"),
    ("H200-141GB", "H200, 141 GB"),
    ("B200-180GB", "B200, 180 GB"),
)
_TOKENS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 15.6)
_BATCHES = (0.25, 0.5, 1, 2, 3.2, 4, 8, 16, 32)
_BANDWIDTHS = (0.125e9, 1.25e9, 3.125e9, 12.5e9, 25e9, 50e9, 100e9, 450e9)
# In days: hours, days and years on one axis.
_TICKS = (
    (1 / 24, "1 h"),
    (1.0, "1 d"),
    (30.0, "30 d"),
    (365.25, "1 y"),
    (3652.5, "10 y"),
    (36_525.0, "100 y"),
)
_DAYS = (1, 7, 14, 30, 60, 90, 180, 365)


def picture(
    guess: int,
    reveal: bool,
    model: str,
    trillions: float,
    card: str,
    batch_millions: float,
    bandwidth: float,
    days: float,
) -> dict[str, Any]:
    """Days of a run over the number of GPUs, what memory and the deadline ask for, what the network allows."""
    setting = _Setting(guess, model, trillions, card, batch_millions, bandwidth, days)
    panels = [_days_panel(setting, reveal), _step_panel(setting, reveal)]
    if reveal:
        return chart.chart(panels=panels, words=_sentences(setting), readouts=_readouts(setting))
    return chart.chart(panels=panels, words=_question(setting), readouts=_hidden_readouts(setting))


class _Setting:
    """What the reader has set, and the answers to it."""

    def __init__(
        self,
        guess: int,
        model: str,
        trillions: float,
        card: str,
        batch_millions: float,
        bandwidth: float,
        days: float,
    ) -> None:
        chip = hardware.accelerator(card)
        self.guess = guess
        self.params = float(parameters(preset(model)))
        self.memory_bytes = chip.memory_bytes
        self.bandwidth = bandwidth
        self.deadline_s = days * DAY
        batch_tokens = batch_millions * 1e6
        self.steps = math.ceil(trillions * 1e12 / batch_tokens)
        self.states = model_states(self.params).total_bytes
        # One GPU's compute for a whole global batch, which N GPUs share: strong scaling.
        self.compute_s = training_flops(self.params, batch_tokens) / (PEAK_SHARE * chip.peak_flops)
        self.for_memory = math.ceil(self.states / self.memory_bytes)

    def all_reduce_s(self, gpus: int) -> float:
        return ring_allreduce_time_s(GRADIENT_BYTES * self.params, gpus, self.bandwidth)

    def run_s(self, gpus: int) -> tuple[float, float]:
        """The whole run with everything overlapped, and with nothing."""
        compute, sent = self.compute_s / gpus, self.all_reduce_s(gpus)
        return self.steps * max(compute, sent), self.steps * (compute + sent)

    @property
    def traffic_s(self) -> float:
        """2P/B: what the all-reduce tends to, however many GPUs."""
        return 2 * GRADIENT_BYTES * self.params / self.bandwidth

    @property
    def for_deadline(self) -> int | None:
        """GPUs with which compute and all-reduce, one after the other, meet the deadline; None: no number does."""
        step = self.deadline_s / self.steps
        if self.compute_s <= step:
            return 1
        if step <= self.traffic_s:
            return None
        return math.ceil((self.compute_s - self.traffic_s) / (step - self.traffic_s))

    @property
    def balance(self) -> float:
        """GPUs at which the all-reduce takes as long as the compute: C/N = 2(N-1)/N P/B."""
        return 1 + self.compute_s / self.traffic_s


def _trimmed(value: float) -> str:
    """Three digits, without zeros behind the point."""
    text = words.amount(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _span(seconds: float) -> str:
    """A duration as people plan it: hours, days, years."""
    for unit, name in ((365.25 * DAY, "years"), (DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{_trimmed(seconds / unit)}\u00a0{name}"
    return f"{_trimmed(seconds)}\u00a0s" if seconds >= 1 else words.seconds(seconds)


def _gpus(count: float) -> str:
    return f"{_trimmed(count / 1e6)}\u00a0million" if count >= 1e6 else _trimmed(count)


def _days_panel(setting: _Setting, reveal: bool) -> dict[str, Any]:
    curve = [(gpus, setting.run_s(gpus)) for gpus in _GPUS]
    alone = setting.steps * setting.compute_s / DAY
    deadline = setting.deadline_s / DAY
    low = min(deadline, min([fast for _, (fast, _) in curve]) / DAY) / 2
    high = max(2 * deadline, 1.5 * max([slow for _, (_, slow) in curve]) / DAY)
    # An axis needs two ticks to be read: a short one goes up to the second.
    high = max(high, 1.01 * [day for day, _ in _TICKS if day > low][1])
    ticks = [tick for tick in _TICKS if low < tick[0] < high]
    guessed = setting.run_s(setting.guess)[1] / DAY
    # Before the answer: the deadline, and the reader's guess on it.
    curves = [chart.series("", "limit", [(1, deadline), (MOST_GPUS, deadline)], "thin")]
    bands = []
    marks = [chart.mark(setting.guess, deadline, "your guess", "compute")]
    if reveal:
        curves = [
            chart.series("", "muted", [(1, alone), (MOST_GPUS, alone / MOST_GPUS)], "thin", dashed=True),
            chart.series("", "compute", [(gpus, slow / DAY) for gpus, (_, slow) in curve], "strong"),
        ]
        bands = [
            chart.band(
                "no overlap to full overlap",
                "compute",
                [(gpus, fast / DAY, slow / DAY) for gpus, (fast, slow) in curve],
            )
        ]
        marks = [chart.mark(setting.guess, guessed, _span(guessed * DAY), "compute")]
        if setting.for_memory <= MOST_GPUS:
            least = setting.run_s(setting.for_memory)[1] / DAY
            marks.insert(0, chart.mark(setting.for_memory, least, "states fit", shape="ring"))
    alt = f"Length of the run over the number of GPUs, both on log scales, with a deadline of {_span(setting.deadline_s)}."
    if reveal:
        alt += f" One GPU takes {_span(alone * DAY)}, {setting.guess} take {_span(guessed * DAY)}."
    return chart.lines(
        title="Length of the run",
        x=chart.axis(
            "GPUs N",
            (1, MOST_GPUS),
            [(count, str(count)) for count in (1, 16, 256, 4096)],
            scale="log",
            control="guess",
        ),
        y=chart.axis("", (low, high), ticks, scale="log"),
        curves=curves,
        bands=bands,
        limits=[chart.limit(deadline, "deadline", align="end")],
        marks=marks,
        alt=alt,
    )


def _step_panel(setting: _Setting, reveal: bool) -> dict[str, Any]:
    compute, sent = setting.compute_s / setting.guess, setting.all_reduce_s(setting.guess)
    shown = (compute, sent) if reveal else (0.0, 0.0)
    return chart.bars(
        title=f"One step on {words.plural(setting.guess, 'GPU')}",
        categories=["compute", "all-reduce"],
        value=chart.time_axis("time", 1.36 * max(compute, sent), about=3),
        stacks=[
            chart.stack("compute", "compute", [shown[0], 0.0]),
            chart.stack("all-reduce", "communication", [0.0, shown[1]]),
        ],
        texts=[_span(compute), _span(sent) if sent else "none"] if reveal else ["?", "?"],
        alt=f"Bars: on {words.plural(setting.guess, 'GPU')} a step computes for {_span(compute)} and its all-reduce takes "
        f"{_span(sent)}."
        if reveal
        else "Two bars that appear with the answer: compute and all-reduce of one step.",
    )


def _readouts(setting: _Setting) -> list[dict[str, Any]]:
    needed = setting.for_deadline
    return [
        chart.readout("one GPU", _span(setting.steps * setting.compute_s), "of compute", "compute-text"),
        chart.readout(
            "memory asks for",
            _gpus(setting.for_memory),
            f"{words.n_bytes(setting.states)} of states",
            "memory-text",
        ),
        chart.readout(
            "the deadline asks for", "no number" if needed is None else _gpus(needed), "without overlap"
        ),
        chart.readout(
            "the network balances at",
            _gpus(setting.balance),
            "all-reduce = compute",
            "communication-text",
        ),
    ]


def _hidden_readouts(setting: _Setting) -> list[dict[str, Any]]:
    return [chart.readout(item["label"], "?", "", item["role"]) for item in _readouts(setting)]


def _question(setting: _Setting) -> list[str]:
    return [
        f"Predict first: is {words.plural(setting.guess, 'GPU')} your answer? Then show the answer.",
        f"The run is {setting.steps} steps of a model with {_trimmed(setting.params / 1e9)} billion parameters, "
        f"and the deadline is {_span(setting.deadline_s)}.",
    ]


def _sentences(setting: _Setting) -> list[str]:
    return [_verdict(setting), _guess(setting), _network(setting)]


def _verdict(setting: _Setting) -> str:
    needed = setting.for_deadline
    memory = setting.for_memory
    if needed is None:
        return (
            f"Bandwidth runs out: the deadline leaves {_span(setting.deadline_s / setting.steps)} a step, and the "
            f"all-reduce alone tends to {_span(setting.traffic_s)}, however many GPUs there are."
        )
    if needed == 1 and memory == 1:
        return "Nothing runs out: one GPU holds the states and meets the deadline."
    if memory >= needed:
        return f"Memory runs out first: the states ask for {words.plural(memory, 'GPU')}, the deadline for {_gpus(needed)}."
    tail = f"the states for {_gpus(memory)}."
    if needed > setting.balance:
        return (
            f"Time runs out first, and then bandwidth: the deadline asks for {_gpus(needed)} GPUs, more than the "
            f"{_gpus(setting.balance)} at which communication takes half of a step; {tail}"
        )
    return f"Time runs out first: the deadline asks for {_gpus(needed)} GPUs, {tail}"


def _guess(setting: _Setting) -> str:
    fast, slow = setting.run_s(setting.guess)
    verdict = (
        "in time whatever overlaps"
        if slow <= setting.deadline_s
        else "in time if enough overlaps"
        if fast <= setting.deadline_s
        else "too late"
    )
    room = "" if setting.guess >= setting.for_memory else " The states would not fit, even split evenly."
    if setting.guess == 1:
        return f"One GPU takes {_span(slow)}: {verdict}.{room}"
    return f"{setting.guess} GPUs take {_span(slow)} with nothing overlapped, {_span(fast)} with everything: {verdict}.{room}"


def _network(setting: _Setting) -> str:
    return (
        f"The balance of {_gpus(setting.balance)} depends on batch, bandwidth and GPU, not on the model: compute and "
        f"gradients both grow with its parameters. This is plain data parallelism at {words.percent(PEAK_SHARE)} of the data "
        "sheet's peak; other splits send less over the slow link. Latency, activations and the smallest batch that "
        "keeps a GPU busy are not counted."
    )


EXPERIMENT = Experiment(
    name="which-runs-out",
    title="Which runs out first?",
    question="How many GPUs do memory and the deadline ask for, and how many does the network carry?",
    controls=(
        slider("guess", "Your guess: GPUs", _GPUS, 64, whole=True),
        toggle("reveal", "Show the answer", True),
        choice("model", "Model", _MODELS, "llama2-7b"),
        slider("trillions", "Training tokens, trillions", _TOKENS, 2),
        choice("card", "GPU", _CARDS, "A100-80GB"),
        slider("batch_millions", "Global batch, million tokens", _BATCHES, 4),
        slider("bandwidth", "Bandwidth per GPU", _BANDWIDTHS, 25e9, "bytes/s"),
        slider("days", "Deadline, days", _DAYS, 30),
    ),
    # A preset hides the answer again: the reader is to guess each time.
    presets=(
        Preset(
            name="llama2-7b",
            label="Llama 2 7B",
            values={
                "reveal": False,
                "model": "llama2-7b",
                "trillions": 2,
                "batch_millions": 4,
                "bandwidth": 25e9,
            },
            source="Llama 2 (arXiv 2307.09288): 2 trillion tokens, batches of 4 million, A100 with 200 Gb/s each. "
            "The deadline is this book's.",
        ),
        Preset(
            name="gpt3-1024",
            label="GPT-3 in 34 days",
            values={
                "guess": 1024,
                "reveal": False,
                "model": "gpt3-175b",
                "trillions": 0.3,
                "batch_millions": 3.2,
                "bandwidth": 25e9,
                "days": 34,
            },
            source="SC21 (arXiv 2104.04473), section 5.1: 300 billion tokens, 1,024 A100 with 200 Gb/s each, 34 days; batch "
            "of 3.2 million tokens from GPT-3 (arXiv 2005.14165).",
        ),
        Preset(
            name="llama3-405b",
            label="Llama 3 405B",
            values={
                "guess": 16384,
                "reveal": False,
                "model": "llama3-405b",
                "trillions": 15.6,
                "card": "H100-80GB",
                "batch_millions": 16,
                "bandwidth": 50e9,
                "days": 90,
            },
            source="Llama 3 (arXiv 2407.21783): 15.6 trillion tokens, 16,384 H100 with 400 Gb/s each, 16 million tokens a "
            "batch. The deadline is this book's.",
        ),
        Preset(
            name="office",
            label="Office network",
            values={
                "guess": 8,
                "reveal": False,
                "model": "gpt2-xl",
                "trillions": 0.01,
                "batch_millions": 0.5,
                "bandwidth": 0.125e9,
                "days": 1,
            },
            source="1 Gb/s of line rate is 0.125 GB/s. Model: GPT-2 (2019); tokens, batch and deadline are this book's.",
        ),
    ),
    picture=picture,
)
