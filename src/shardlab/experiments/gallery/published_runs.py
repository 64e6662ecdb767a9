"""Training steps that others paid for: guess one, see the prediction beside the measurement, and where the time goes."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.models import published
from shardlab.models.plan_predict import Prediction, predict_published
from shardlab.models.plan_search import scaled_cluster
from shardlab.models.published import PublishedStep
from shardlab.transformer import parameters

PAPERS = ("sc21", "sc21-strong", "korthikanti", "megascale", "llama3", "mt-nlg", "zero3")
_PAPER_NAMES = (
    ("sc21", "SC21 Table 1, 2021"),
    ("sc21-strong", "SC21 Table 2, PTD-P"),
    ("korthikanti", "Korthikanti Table 5, 2022"),
    ("megascale", "MegaScale Table 2, 2024"),
    ("llama3", "Llama 3 Table 4, 2024"),
    ("mt-nlg", "MT-NLG, 2022 (a miss)"),
    ("zero3", "SC21 Table 2, ZeRO-3 (a miss)"),
)
MOST_ROWS = 10
_GUESSES = tuple([number / 100 for number in range(10, 72, 3)])
_CHANGES = (
    ("none", "none: as it ran"),
    ("matmul rate", "matrix products 2×"),
    ("memory bandwidth", "HBM bandwidth 2×"),
    ("link in the node", "NVLink 2×"),
    ("network", "network 2×"),
)
# label, role, texture, causes of shardlab.models.steptime.TIME_LABELS that it adds up
_PARTS = (
    ("layers and head", "compute", "solid", ("layers", "output head")),
    ("recomputation", "compute", "light", ("recomputation",)),
    (
        "tensor parallel",
        "communication",
        "solid",
        ("tensor-parallel communication", "context-parallel communication", "expert-parallel communication"),
    ),
    ("data parallel", "communication", "light", ("data-parallel communication",)),
    ("pipeline transfers", "communication", "hatch", ("pipeline transfers",)),
    ("pipeline bubble", "idle", "hatch", ("pipeline bubble",)),
    ("everything else", "muted", "solid", ("optimizer", "fixed overhead", "shared-node slowdown")),
)


def steps_of(paper: str) -> tuple[PublishedStep, ...]:
    """The published steps of one table."""
    if paper == "sc21":
        return published.sc21_steps()
    if paper == "sc21-strong":
        return published.sc21_table2_steps()
    if paper == "korthikanti":
        steps = list(published.korthikanti_steps())
        steps.append(published.korthikanti_data_parallel_step())
        return tuple(steps)
    if paper == "megascale":
        return published.megascale_steps()
    if paper == "llama3":
        return published.llama3_steps()
    if paper == "mt-nlg":
        return published.mt_nlg_steps()
    return published.sc21_zero3_steps()


def picture(paper: str, row: int, guess: float, change: str, reveal: bool) -> dict[str, Any]:
    """Predicted, measured and guessed step time of one row, and the prediction by cause."""
    setting = _Setting(paper, row, guess, change)
    return chart.chart(
        panels=[_step_panel(setting, reveal), _causes_panel(setting, reveal)],
        words=_sentences(setting) if reveal else _question(setting),
        readouts=_readouts(setting, reveal),
        bounds={"row": {"most": setting.rows}},
    )


class _Setting:
    """The step that the reader has chosen, and the model's prediction of it."""

    def __init__(self, paper: str, row: int, guess: float, change: str) -> None:
        steps = steps_of(paper)
        self.paper = paper
        self.rows = len(steps)
        self.step = steps[min(row, self.rows) - 1]
        self.as_run = predict_published(self.step)
        self.change = change
        self.made = self.as_run if change == "none" else _changed(self.step, change)
        # MFU times step time is the same for any step of this model on this cluster.
        self.mfu_seconds = self.as_run.mfu * self.as_run.step_time_s
        self.guess = guess
        self.guess_s = self.mfu_seconds / guess
        self.measured_mfu = self.mfu_seconds / self.step.step_s
        self.error = self.as_run.step_time_s / self.step.step_s - 1

    @property
    def parts(self) -> list[tuple[str, str, str, float]]:
        found = []
        for label, role, texture, causes in _PARTS:
            total = 0.0
            for cause in causes:
                total += self.made.seconds(cause)
            found.append((label, role, texture, total))
        return found


def _changed(step: PublishedStep, resource: str) -> Prediction:
    """The same step on a cluster with twice one resource."""
    return predict_published(
        PublishedStep(
            label=step.label,
            model=step.model,
            cluster=scaled_cluster(step.cluster, resource, 2.0),
            sequence=step.sequence,
            global_batch=step.global_batch,
            software=step.software,
            data=step.data,
            tensor=step.tensor,
            pipeline=step.pipeline,
            context=step.context,
            micro_batches=step.micro_batches,
            chunks=step.chunks,
            recompute=step.recompute,
            sequence_parallel=step.sequence_parallel,
            zero_stage=step.zero_stage,
            step_s=step.step_s,
            source=step.source,
        )
    )


def _seconds(value: float) -> str:
    return f"{words.amount(value)}\u00a0s" if value >= 0.9995 else words.seconds(value)


def _time_axis(most: float) -> dict[str, Any]:
    """In seconds for every step, as in the papers and in the texts beside the bars."""
    return chart.axis("time (s)", (0.0, most), chart.even_ticks(most, about=3))


def _step_panel(setting: _Setting, reveal: bool) -> dict[str, Any]:
    categories = ["your guess", "measured", "predicted" if setting.change == "none" else "what if"]
    stacks = [chart.stack("guess", "grid", [setting.guess_s, 0.0, 0.0])]
    texts = [_seconds(setting.guess_s), "?", "?"]
    most = setting.guess_s
    if reveal:
        texts = [
            _seconds(value) for value in (setting.guess_s, setting.step.step_s, setting.made.step_time_s)
        ]
        most = max(setting.guess_s, setting.step.step_s, setting.made.step_time_s)
        stacks.append(chart.stack("measured", "muted", [0.0, setting.step.step_s, 0.0]))
        stacks += [
            chart.stack(label, role, [0.0, 0.0, seconds], texture=texture)
            for label, role, texture, seconds in setting.parts
            if seconds > 0
        ]
    else:
        stacks.append(chart.stack("measured", "muted", [0.0, 0.0, 0.0]))
    alt = f"Bars: your guess of {words.percent(setting.guess)} of the peak is a step of {_seconds(setting.guess_s)}"
    if reveal:
        alt += f"; measured {_seconds(setting.step.step_s)}, predicted {_seconds(setting.made.step_time_s)}"
    return chart.bars(
        title="One step",
        categories=categories,
        value=_time_axis(1.36 * most),
        stacks=stacks,
        texts=texts,
        alt=alt + ".",
    )


def _causes_panel(setting: _Setting, reveal: bool) -> dict[str, Any]:
    parts = setting.parts
    most = max([seconds for _, _, _, seconds in parts])
    return chart.bars(
        title="The prediction, by cause",
        categories=[label for label, _, _, _ in parts],
        value=_time_axis(1.36 * most),
        stacks=[
            chart.stack(
                label,
                role,
                [part if reveal and place == index else 0.0 for place, (_, _, _, part) in enumerate(parts)],
                texture=texture,
            )
            for index, (label, role, texture, _) in enumerate(parts)
        ],
        texts=[
            (words.percent(seconds / setting.made.step_time_s) if seconds > 0 else "0") if reveal else "?"
            for _, _, _, seconds in parts
        ],
        alt=(
            "Bars: "
            + ", ".join([f"{label} {_seconds(seconds)}" for label, _, _, seconds in parts if seconds > 0])
            if reveal
            else "Bars that appear with the answer: the predicted step by cause"
        )
        + ".",
    )


def _readouts(setting: _Setting, reveal: bool) -> list[dict[str, Any]]:
    rate = setting.step.cluster.node.accelerator.peak_flops / 1e12
    guessed = chart.readout(
        "your guess",
        words.percent(setting.guess),
        f"MFU, {words.amount(setting.guess * rate)} TFLOP/s",
    )
    if not reveal:
        return [guessed] + [chart.readout(name, "?") for name in ("measured MFU", "predicted MFU", "error")]
    return [
        guessed,
        chart.readout(
            "measured MFU",
            words.percent(setting.measured_mfu),
            f"{words.amount(setting.measured_mfu * rate)} TFLOP/s, {_seconds(setting.step.step_s)}",
        ),
        chart.readout(
            "predicted MFU",
            words.percent(setting.as_run.mfu),
            f"{words.amount(setting.as_run.mfu * rate)} TFLOP/s, {_seconds(setting.as_run.step_time_s)}",
            "compute-text",
        ),
        chart.readout("error", _signed(setting.error), "predicted against measured"),
    ]


def _signed(fraction: float) -> str:
    return ("+" if fraction >= 0 else "−") + words.percent(abs(fraction))


def _what(setting: _Setting) -> str:
    step, layout = setting.step, setting.as_run.layout
    return (
        f"{step.label}: {words.amount(parameters(step.model) / 1e9)} billion parameters on {step.cluster.gpus} "
        f"{step.cluster.node.accelerator.name}, {step.global_batch} sequences of {step.sequence} a step; "
        f"data {layout.data}, tensor {layout.tensor}, pipeline {layout.pipeline}."
    )


def _question(setting: _Setting) -> list[str]:
    return [
        f"Which share of the peak went into the model? Your {words.percent(setting.guess)} would be a step of "
        f"{_seconds(setting.guess_s)}. Then show the answer.",
        _what(setting),
    ]


def _sentences(setting: _Setting) -> list[str]:
    found = [_verdict(setting), _what(setting), _notes(setting)]
    if setting.change != "none":
        gain = 1 - setting.made.step_time_s / setting.as_run.step_time_s
        names = dict(_CHANGES)
        found.insert(
            1,
            f"With {names[setting.change]} the predicted step is {words.percent(gain)} shorter: "
            f"{_seconds(setting.made.step_time_s)}.",
        )
    return found


def _verdict(setting: _Setting) -> str:
    yours = abs(setting.guess_s / setting.step.step_s - 1)
    closer = "Your guess is closer" if yours < abs(setting.error) else "The model is closer"
    return (
        f"Measured {_seconds(setting.step.step_s)}, predicted {_seconds(setting.as_run.step_time_s)}, an error of "
        f"{_signed(setting.error)}. {closer}: yours is off by {words.percent(yours)}."
    )


def _notes(setting: _Setting) -> str:
    step = setting.step
    told = []
    if len(step.micro_batches) * len(step.chunks) > 1:
        told.append(
            f"Micro-batch or chunks are not printed; the model took its fastest, {setting.as_run.layout.micro_batch} and "
            f"{setting.as_run.layout.chunks}."
        )
    if setting.paper == "mt-nlg":
        told.append(
            "A known miss: with as many tensor-parallel ranks and stages SC21 needs at least a fifth less GPU time a "
            "sequence."
        )
    if setting.paper == "zero3":
        told.append("A known miss: the software of that time did not reach the network's rate.")
    if setting.paper == "llama3":
        told.append(
            "Modelled with 128 layers. Row 1 set the H100's sustained rate, so only row 2 is a prediction."
        )
    if step.label == "korthikanti-530b x8":
        told.append("This row was fitted on.")
    if setting.paper == "megascale":
        told.append("Recomputation and micro-batch are not printed; taken as was usual.")
    low, high = setting.as_run.step_time_bracket_s
    told.append(f"All communication hidden: {_seconds(low)}; none: {_seconds(high)}. Source: {step.source}.")
    return " ".join(told)


EXPERIMENT = Experiment(
    name="published-runs",
    title="Published runs",
    question="Can you guess a step that others paid for, and can the model?",
    controls=(
        choice("paper", "Published in", _PAPER_NAMES, "llama3"),
        slider("row", "Row of the table", tuple(range(1, MOST_ROWS + 1)), 2, whole=True),
        slider("guess", "Your guess: MFU, 0 to 1", _GUESSES, 0.4),
        choice("change", "What if", _CHANGES, "none"),
        toggle("reveal", "Show the answer", True),
    ),
    presets=(
        Preset(
            name="llama3",
            label="Llama 3 405B",
            values={"paper": "llama3", "row": 2},
            source="Llama 3 (arXiv 2407.21783), Table 4: 16,384 H100, 8,192 tokens.",
        ),
        Preset(
            name="gpt3-scale",
            label="145.6B, pipeline of 8",
            values={"paper": "sc21", "row": 7},
            source="SC21 (arXiv 2104.04473), Table 1: 1,536 A100; seconds follow from the printed 148 TFLOP/s.",
        ),
        Preset(
            name="trillion",
            label="1T, selective recomputation",
            values={"paper": "korthikanti", "row": 8},
            source="Korthikanti et al. (arXiv 2205.05198), Table 5: 512 A100, 71.49 s.",
        ),
        Preset(
            name="megascale",
            label="175B on 12,288",
            values={"paper": "megascale", "row": 8},
            source="MegaScale (arXiv 2402.15627), Table 2, Megatron-LM row: 8.57 s.",
        ),
        Preset(
            name="miss",
            label="A miss",
            values={"paper": "mt-nlg", "row": 1},
            source="MT-NLG (arXiv 2201.11990), section 2.4: 2,240 A100, 60.1 s.",
        ),
    ),
    picture=picture,
)
