"""How often should a job save? Time lost over the checkpoint interval, and what one failure costs."""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, decades, slider, toggle
from shardlab.models.checkpoint import (
    checkpoint_cost,
    cluster_mtbf_s,
    daly_interval_s,
    expected_segment_time_s,
    optimal_interval_s,
    transfer_time_s,
    young_interval_s,
)

SHORTEST_S, LONGEST_S = 10.0, 172800.0
_HOUR_S, _DAY_S = 3600.0, 86400.0
# Ten seconds to two days.
_GUESSES = (
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1200,
    1800,
    3600,
    5400,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
)
_RESTARTS = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
_GPU_DAYS = (50, 100, 200, 500, 1000, 2000, 5000, 10000)
_POINTS = 48
# From this factor on Young's interval is called wrong.
_APART = 1.25


class Losses:
    """Where the wall time of one interval goes, as fractions of it that add up to 1 with the useful part.

    Attributes:
        writing: δ / E, with E the expected time of a segment.
        restarting: ``1 - exp(-R/M)``: failures come at a rate of 1/M in all of E, and a restart lasts R unless the
            next failure cuts it short, so M (1 - exp(-R/M)) on average.
        redoing: the rest: computing and writing that a failure threw away.
        total: their sum, the model's exact waste.
    """

    def __init__(self, interval_s: float, write_s: float, mtbf_s: float, restart_s: float) -> None:
        segment = expected_segment_time_s(interval_s, write_s, mtbf_s, restart_s)
        self.total = checkpoint_cost(interval_s, write_s, mtbf_s, restart_s).waste_fraction
        self.writing = write_s / segment
        self.restarting = 1 - math.exp(-restart_s / mtbf_s)
        self.redoing = max(self.total - self.writing - self.restarting, 0.0)


class _Setting:
    """What the reader has set, and the models' answers to it, each computed once."""

    def __init__(
        self, gpus: int, gpu_mtbf_s: float, n_bytes: float, bandwidth: float, restart_s: float, guess_s: float
    ) -> None:
        self.gpus, self.restart_s, self.guess_s = gpus, restart_s, guess_s
        self.mtbf_s = cluster_mtbf_s(gpu_mtbf_s, gpus)
        self.write_s = transfer_time_s(n_bytes, bandwidth)
        self.best_s = optimal_interval_s(self.write_s, self.mtbf_s)
        self.young_s = young_interval_s(self.write_s, self.mtbf_s)
        self.daly_s = daly_interval_s(self.write_s, self.mtbf_s)
        self.guess = self.losses(guess_s)
        self.best = self.losses(self.best_s)

    def losses(self, interval_s: float) -> Losses:
        return Losses(interval_s, self.write_s, self.mtbf_s, self.restart_s)


def picture(
    guess_s: float,
    show_answer: bool,
    gpus: int,
    gpu_mtbf_s: float,
    checkpoint_bytes: float,
    bandwidth: float,
    restart_s: float,
) -> dict[str, Any]:
    """Time lost over the interval with the reader's guess on it, one failure, and where the time goes."""
    setting = _Setting(gpus, gpu_mtbf_s, checkpoint_bytes, bandwidth, restart_s, guess_s)
    panels = [_waste_panel(setting, show_answer)]
    if show_answer:
        panels.append(_split_panel(setting))
    panels.append(_failure_panel(setting))
    return chart.chart(
        panels=panels,
        words=_sentences(setting) if show_answer else _question(setting),
        readouts=_readouts(setting, show_answer),
    )


def _intervals() -> list[float]:
    ratio = LONGEST_S / SHORTEST_S
    return [SHORTEST_S * ratio ** (index / (_POINTS - 1)) for index in range(_POINTS)]


def _stopped(setting: _Setting, interval_s: float) -> float:
    """Share of the time in which training stands still for a write, failures left out."""
    return setting.write_s / (setting.write_s + interval_s)


def _waste_panel(setting: _Setting, show_answer: bool) -> dict[str, Any]:
    intervals = _intervals()
    writing = [(interval, _stopped(setting, interval)) for interval in intervals]
    curves = [chart.series("writing", "communication", writing)]
    # Until the answer is shown, the reader sees the price that is certain, and not the price of failures.
    height = _stopped(setting, setting.guess_s)
    marks = []
    if SHORTEST_S <= setting.mtbf_s <= LONGEST_S:
        marks.append(chart.mark(setting.mtbf_s, 0.0, "M", "muted"))
    if show_answer:
        height = setting.guess.total
        lost = [(interval, setting.losses(interval).total) for interval in intervals]
        curves.append(chart.series("all losses", "compute", lost, "strong"))
        marks += _named_intervals(setting)
    marks.append(chart.mark(setting.guess_s, height, "you", "text"))
    ticks = [
        (10.0, "10 s"),
        (60.0, "1 min"),
        (600.0, "10 min"),
        (3600.0, "1 h"),
        (21600.0, "6 h"),
        (86400.0, "1 d"),
    ]
    said = f"At your guess of {words.seconds(setting.guess_s)} writing alone takes {words.percent(_stopped(setting, setting.guess_s))}."
    if show_answer:
        said = (
            f"Short intervals lose time to writing, long ones to work done again. The least loss is "
            f"{words.percent(setting.best.total)} at {words.seconds(setting.best_s)}; your guess of "
            f"{words.seconds(setting.guess_s)} loses {words.percent(setting.guess.total)}."
        )
    return chart.lines(
        title="Time lost (%)",
        x=chart.axis("interval τ", (SHORTEST_S, LONGEST_S), ticks, scale="log", control="guess_s"),
        y=chart.axis("", (0.0, 1.0), chart.even_ticks(1.0, 0.01)),
        curves=curves,
        marks=marks,
        alt="Share of the time that is lost, over the checkpoint interval on a log scale. " + said,
    )


def _named_intervals(setting: _Setting) -> list[dict[str, Any]]:
    """The optimum, and what the two formulas say as rings."""
    marks = []
    for interval in (setting.young_s, setting.daly_s):
        if SHORTEST_S <= interval <= LONGEST_S:
            height = setting.losses(interval).total
            marks.append(chart.mark(interval, height, "Young's and Daly's formulas", shape="ring"))
    if SHORTEST_S <= setting.best_s <= LONGEST_S:
        marks.append(chart.mark(setting.best_s, setting.best.total, "best", "compute"))
    return marks


def _split_panel(setting: _Setting) -> dict[str, Any]:
    both = (setting.guess, setting.best)
    most = min(1.0, 1.35 * max([losses.total for losses in both]))
    return chart.bars(
        title="Where the lost time goes (%)",
        categories=["you", "best"],
        value=chart.axis("share of the wall time (%)", (0.0, most), chart.even_ticks(most, 0.01)),
        stacks=[
            chart.stack("writing", "communication", [losses.writing for losses in both]),
            chart.stack("restarting", "idle", [losses.restarting for losses in both], "hatch"),
            chart.stack("computing again", "compute", [losses.redoing for losses in both], "light"),
        ],
        texts=[words.percent(losses.total) for losses in both],
        alt=f"Your guess loses {words.percent(setting.guess.writing)} to writing, "
        f"{words.percent(setting.guess.restarting)} to restarts and {words.percent(setting.guess.redoing)} to work done "
        f"again; the best interval {words.percent(setting.best.writing)}, {words.percent(setting.best.restarting)} and "
        f"{words.percent(setting.best.redoing)}.",
    )


def _failure_panel(setting: _Setting) -> dict[str, Any]:
    """One failure in the middle of an interval: what the clock shows until training is back where it was."""
    compute, write, restart = setting.guess_s, setting.write_s, setting.restart_s
    lost = (compute + write) / 2
    fails = compute + write + lost
    again = fails + restart
    most = 1.25 * (again + lost)
    return chart.timeline(
        title="One failure, half way through your interval",
        lanes=["saved", "lost", "to recover"],
        time=chart.time_axis("time", most),
        spans=[
            chart.span(0, 0.0, compute, "compute"),
            chart.span(0, compute, compute + write, "communication"),
            chart.span(1, compute + write, fails, "compute", "", "light"),
            chart.span(2, fails, again, "idle", "", "hatch"),
            chart.span(2, again, again + lost, "compute", "as before"),
        ],
        limits=[chart.limit(fails, "failure", align="end" if fails > most / 2 else "start")],
        alt=f"After {words.seconds(compute)} of computing and a write of {words.seconds(write)} a failure half way through "
        f"the next interval throws away {words.seconds(lost)}; restarting takes {words.seconds(restart)}, and the "
        "lost work is done again.",
    )


def _readouts(setting: _Setting, show_answer: bool) -> list[dict[str, Any]]:
    rows = [
        chart.readout(
            "M: a failure every",
            words.seconds(setting.mtbf_s),
            f"{words.amount(_DAY_S / setting.mtbf_s)} a day",
        ),
        chart.readout(
            "one write", words.seconds(setting.write_s), "training stands still", "communication-text"
        ),
    ]
    if not show_answer:
        rows.append(chart.readout("best interval", "?", "show the answer"))
        return rows
    rows.append(chart.readout("best interval", words.seconds(setting.best_s), "exact", "compute-text"))
    rows.append(chart.readout("Young", words.seconds(setting.young_s), "√(2δM)"))
    rows.append(chart.readout("Daly", words.seconds(setting.daly_s), "higher order"))
    yours = f"you {words.percent(setting.guess.total)}"
    rows.append(chart.readout("lost at the best", words.percent(setting.best.total), yours))
    return rows


def _question(setting: _Setting) -> list[str]:
    return [
        f"You save every {words.seconds(setting.guess_s)}: training stands still for a write of "
        f"{words.seconds(setting.write_s)}, {words.percent(_stopped(setting, setting.guess_s))} of the time.",
        f"With {words.plural(setting.gpus, 'GPU')} the job fails once in {words.seconds(setting.mtbf_s)} on average, "
        f"takes {words.seconds(setting.restart_s)} to restart, and throws away what came after the last checkpoint. "
        "Move your guess to where the sum is smallest, then show the answer.",
    ]


def _sentences(setting: _Setting) -> list[str]:
    return [_verdict(setting), _failures(setting), _floor(setting)]


def _verdict(setting: _Setting) -> str:
    guess, best = setting.guess.total, setting.best.total
    opening = (
        f"The best interval is {words.seconds(setting.best_s)} and loses {words.percent(best)} of the time; "
        f"yours of {words.seconds(setting.guess_s)} loses {words.percent(guess)}"
    )
    if guess - best < 0.005:
        return f"{opening}: as good as it gets, because the curve is flat around its lowest point."
    longer = setting.guess_s > setting.best_s
    return f"{opening}: it saves too {'rarely' if longer else 'often'}."


def _failures(setting: _Setting) -> str:
    failing = (
        f"{words.plural(setting.gpus, 'GPU')} fail once in {words.seconds(setting.mtbf_s)}; a write takes "
        f"{words.seconds(setting.write_s)}, a restart {words.seconds(setting.restart_s)}."
    )
    ratio = setting.young_s / setting.best_s
    if ratio > _APART:
        return (
            f"{failing} Young's formula says {words.seconds(setting.young_s)}, {words.ratio(ratio)} the optimum: it "
            "takes the write to be far shorter than the time between failures, and here it is not."
        )
    return f"{failing} Young's formula, {words.seconds(setting.young_s)}, is close to the optimum."


def _floor(setting: _Setting) -> str:
    if setting.best.total > 0.5:
        return "Even the best interval loses more than half of the time: write faster, restart faster, or use fewer GPUs."
    return (
        f"Restarts cost {words.percent(setting.best.restarting)} whatever the interval is. Failures are taken as "
        "independent and equally likely at any time; a write that goes on behind the training costs less than this."
    )


def _preset(name: str, label: str, source: str, **values: Any) -> Preset:
    return Preset(name=name, label=label, values=values, source=source)


# 419 unexpected interruptions of 16,384 GPUs in 54 days.
LLAMA_GPU_MTBF_S = 54 * _DAY_S * 16384 / 419
_LLAMA_RATE = "One failure per GPU in 2,112 days: 419 in 54 days on 16,384 GPUs (Llama 3, arXiv 2407.21783, section 3.3.4)"

EXPERIMENT = Experiment(
    name="checkpoint-interval",
    title="Checkpoint interval",
    question="How often should a job save its state, when saving stops it and a failure throws away what was not saved?",
    controls=(
        slider("guess_s", "Your guess: interval τ", _GUESSES, _HOUR_S, "seconds"),
        toggle("show_answer", "Show the answer", False),
        slider("gpus", "GPUs", tuple([2**exponent for exponent in range(3, 18)]), 16384, whole=True),
        slider(
            "gpu_mtbf_s",
            "One GPU fails once in",
            tuple([days * _DAY_S for days in _GPU_DAYS]),
            2000 * _DAY_S,
            "seconds",
        ),
        slider("checkpoint_bytes", "Checkpoint", decades(1e9, 2e13), 5e12, "bytes"),
        slider("bandwidth", "Storage, all writers", decades(1e9, 5e12), 2e12, "bytes/s"),
        slider("restart_s", "Restart", _RESTARTS, 600, "seconds"),
    ),
    presets=(
        _preset(
            "llama3",
            "Llama 3 405B, 16,384 GPUs",
            _LLAMA_RATE
            + "; 12 bytes for each of 405 billion parameters; storage 2 TB/s sustained (section 3.3.1). "
            "The restart of 600 s is assumed.",
            gpus=16384,
            gpu_mtbf_s=LLAMA_GPU_MTBF_S,
            checkpoint_bytes=4.86e12,
            bandwidth=2e12,
            restart_s=600,
        ),
        _preset(
            "bloom",
            "BLOOM 176B, 384 GPUs",
            "BLOOM's training log: 2.3 TB written in 40 s every 3 h, 1 to 2 GPU failures a week on about 400 GPUs, "
            "taken as 1.5. The restart of 1800 s is assumed.",
            gpus=384,
            gpu_mtbf_s=7 * _DAY_S * 384 / 1.5,
            checkpoint_bytes=2.3e12,
            bandwidth=57.5e9,
            restart_s=1800,
            guess_s=3 * _HOUR_S,
        ),
        _preset(
            "megatron-1t",
            "Megatron 1T, 3,072 GPUs",
            "13.8 TB saved at 273 GB/s (Narayanan et al., arXiv 2104.04473, section 5.10). The rate of failures is "
            "Llama 3's, the restart of 600 s is assumed.",
            gpus=3072,
            gpu_mtbf_s=LLAMA_GPU_MTBF_S,
            checkpoint_bytes=13.8e12,
            bandwidth=273e9,
            restart_s=600,
        ),
        _preset(
            "one-node",
            "8B model, one node",
            "An 8B model with its optimizer on 8 GPUs in 27.34 s (NVIDIA-NeMo/Automodel, PR 635, which names no size: "
            "12 bytes for each of 8.03 billion parameters are 96.4 GB). The rate of "
            "failures is Llama 3's, the restart of 300 s is assumed.",
            gpus=8,
            gpu_mtbf_s=LLAMA_GPU_MTBF_S,
            checkpoint_bytes=96.4e9,
            bandwidth=96.4e9 / 27.34,
            restart_s=300,
        ),
        _preset(
            "many-gpus",
            "131,072 GPUs, what if",
            "A thought experiment: eight times the GPUs of Llama 3 at the same rate of failures per GPU, same checkpoint, "
            "same storage.",
            gpus=131072,
            gpu_mtbf_s=LLAMA_GPU_MTBF_S,
            checkpoint_bytes=4.86e12,
            bandwidth=2e12,
            restart_s=600,
        ),
    ),
    picture=picture,
)
