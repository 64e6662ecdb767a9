"""Leave a part out of a checkpoint and resume: a small training run, played twice in plain Python."""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, slider, toggle
from shardlab.models.batch import resume_coverage
from shardlab.models.lehmer import Lehmer

# The training: a linear model of 24 weights learns a noisy linear teacher with Adam, one pass over 48 batches.
STEPS, BATCH, WEIGHTS = 48, 4, 24
TEACHER_SCALE = 0.5
_WARMUP = 4
_BETA1, _BETA2, _EPSILON = 0.9, 0.95, 1e-8
_DATA_SEED, _DROPOUT_SEED = 7, 1000
# How many steps after the resume are averaged for the readouts.
WINDOW = 8
PARTS = ("optimizer", "scheduler", "random", "position")
_NAMES = {
    "optimizer": "the optimizer state",
    "scheduler": "the scheduler",
    "random": "the random state",
    "position": "the data position",
}
_DATA: list[Any] = []


def _data() -> tuple[list[float], list[Any]]:
    """The teacher's weights and all batches, drawn once: each batch is a list of (inputs, target)."""
    if not _DATA:
        generator = Lehmer(_DATA_SEED)
        teacher = [TEACHER_SCALE * (2 * generator.uniform() - 1) for _ in range(WEIGHTS)]
        batches = []
        for _ in range(STEPS):
            batch = []
            for _ in range(BATCH):
                inputs = [2 * generator.uniform() - 1 for _ in range(WEIGHTS)]
                target = 2 * generator.uniform() - 1
                for weight, value in zip(teacher, inputs):
                    target += weight * value
                batch.append((inputs, target))
            batches.append(batch)
        _DATA.extend([teacher, batches])
    return _DATA[0], _DATA[1]


def fresh_state() -> dict[str, Any]:
    """All that a step reads or writes, before the first step."""
    return {
        "weights": [0.0] * WEIGHTS,
        "optimizer": ([0.0] * WEIGHTS, [0.0] * WEIGHTS, 0),
        "scheduler": 0,
        "random": 0,
        "position": 0,
    }


def learning_rate(updates: int, peak: float) -> float:
    """Linear warm-up over 4 updates, then linear decay to 0 at the end of the run."""
    return peak * min((updates + 1) / _WARMUP, 1.0) * (1 - updates / STEPS)


def new_data_loss(weights: list[float]) -> float:
    """The expected squared error on samples never seen, exactly: inputs and noise have a variance of 1/3."""
    total = 1.0
    for weight, wanted in zip(weights, _data()[0]):
        total += (weight - wanted) * (weight - wanted)
    return total / 3


def _dropped(batch: list[Any], dropout: float, draws: int) -> list[Any]:
    """The batch with inputs dropped and the rest scaled up, as the random state says."""
    if dropout == 0:
        return batch
    generator = Lehmer(_DROPOUT_SEED + draws)
    scale = 1 / (1 - dropout)
    return [
        ([value * scale if generator.uniform() >= dropout else 0.0 for value in inputs], target)
        for inputs, target in batch
    ]


def _gradient(batch: list[Any], weights: list[float]) -> tuple[float, list[float]]:
    """Mean squared error of a batch and its gradient."""
    loss, gradient = 0.0, [0.0] * WEIGHTS
    for inputs, target in batch:
        error = -target
        for weight, value in zip(weights, inputs):
            error += weight * value
        loss += error * error
        pull = 2 * error / BATCH
        gradient = [slope + pull * value for slope, value in zip(gradient, inputs)]
    return loss / BATCH, gradient


class Trail:
    """A run: at each step its training loss, then the loss on new data and the weights after the update."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.new_losses: list[float] = []
        self.weights: list[list[float]] = []
        self.state: dict[str, Any] = {}


def train(state: dict[str, Any], steps: int, peak: float, dropout: float) -> Trail:
    """So many steps of Adam from ``state``; the state after them is in the trail."""
    batches = _data()[1]
    weights = state["weights"]
    first, second, updates = state["optimizer"]
    scheduled, draws, position = state["scheduler"], state["random"], state["position"]
    power1 = power2 = 1.0
    for _ in range(updates):
        power1, power2 = power1 * _BETA1, power2 * _BETA2
    trail = Trail()
    for _ in range(steps):
        loss, gradient = _gradient(_dropped(batches[position], dropout, draws), weights)
        power1, power2 = power1 * _BETA1, power2 * _BETA2
        first = [_BETA1 * old + (1 - _BETA1) * slope for old, slope in zip(first, gradient)]
        second = [_BETA2 * old + (1 - _BETA2) * slope * slope for old, slope in zip(second, gradient)]
        pace = learning_rate(scheduled, peak) * math.sqrt(1 - power2) / (1 - power1)
        weights = [
            weight - pace * one / (math.sqrt(two) + _EPSILON)
            for weight, one, two in zip(weights, first, second)
        ]
        updates, scheduled, draws, position = updates + 1, scheduled + 1, draws + 1, position + 1
        trail.losses.append(loss)
        trail.new_losses.append(new_data_loss(weights))
        trail.weights.append(weights)
    trail.state = {
        "weights": weights,
        "optimizer": (first, second, updates),
        "scheduler": scheduled,
        "random": draws,
        "position": position,
    }
    return trail


def distance(weights: list[float], reference: list[float]) -> float:
    """``|a - b| / |b|``."""
    apart = size = 0.0
    for one, other in zip(weights, reference):
        apart += (one - other) * (one - other)
        size += other * other
    return math.sqrt(apart / size)


def _mean(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


class _Runs:
    """The run up to the checkpoint, and from there twice: nothing interrupted it, and resumed from what was saved."""

    def __init__(self, saved: dict[str, bool], resume_step: int, peak: float, dropout: float) -> None:
        left = STEPS - resume_step
        self.resume_step, self.peak, self.dropout = resume_step, peak, dropout
        self.missing = [part for part in PARTS if not saved[part]]
        self.before = train(fresh_state(), resume_step, peak, dropout)
        restored = dict(self.before.state)
        fresh = fresh_state()
        for part in self.missing:
            restored[part] = fresh[part]
        self.whole = train(self.before.state, left, peak, dropout)
        self.resumed = train(restored, left, peak, dropout)
        self.gaps = [distance(one, two) for one, two in zip(self.resumed.weights, self.whole.weights)]
        self.exact = self.resumed.weights == self.whole.weights
        self.first_gap = abs(self.resumed.losses[0] - self.whole.losses[0])
        # The random state is there to be lost only where something draws.
        self.felt = [part for part in self.missing if part != "random" or dropout > 0]


def picture(
    optimizer: bool,
    scheduler: bool,
    random: bool,
    position: bool,
    resume_step: int,
    peak_lr: float,
    dropout: float,
) -> dict[str, Any]:
    """Training loss, loss on new data and distance of the parameters, resumed against uninterrupted."""
    saved = {"optimizer": optimizer, "scheduler": scheduler, "random": random, "position": position}
    runs = _Runs(saved, resume_step, peak_lr, dropout)
    return chart.chart(
        panels=[_training_panel(runs), _new_data_panel(runs), _distance_panel(runs)],
        words=_sentences(runs),
        readouts=_readouts(runs),
    )


def _steps_axis() -> dict[str, Any]:
    return chart.axis("step", (0.0, float(STEPS)), [(step, str(step)) for step in (0, 16, 32, 48)])


def _loss_panel(
    runs: _Runs, title: str, before: list[float], whole: list[float], resumed: list[float]
) -> Any:
    start = runs.resume_step
    most = 1.08 * max(before + whole + resumed)
    return chart.lines(
        title=title,
        x=_steps_axis(),
        y=chart.axis("", (0.0, most), chart.even_ticks(most)),
        curves=[
            chart.series(
                "uninterrupted", "muted", [(step + 1, loss) for step, loss in enumerate(before + whole)]
            ),
            chart.series(
                "resumed",
                "compute",
                [(start + step + 1, loss) for step, loss in enumerate(resumed)],
                "strong",
            ),
        ],
        marks=[chart.mark(start, before[-1], "saved", "text")],
        alt=f"{title} over {STEPS} steps, saved after step {start}. In the {WINDOW} steps after it the resumed run has "
        f"{words.amount(_mean(resumed[:WINDOW]))} on average, the uninterrupted one "
        f"{words.amount(_mean(whole[:WINDOW]))}.",
    )


def _training_panel(runs: _Runs) -> Any:
    return _loss_panel(runs, "Training loss", runs.before.losses, runs.whole.losses, runs.resumed.losses)


def _new_data_panel(runs: _Runs) -> Any:
    return _loss_panel(
        runs, "Loss on new data", runs.before.new_losses, runs.whole.new_losses, runs.resumed.new_losses
    )


def _distance_panel(runs: _Runs) -> dict[str, Any]:
    most = 1.1 * max(0.1, max(runs.gaps))
    points = [(float(runs.resume_step), 0.0)]
    points += [(runs.resume_step + step + 1, gap) for step, gap in enumerate(runs.gaps)]
    return chart.lines(
        title="Parameters off by (%)",
        x=_steps_axis(),
        y=chart.axis("", (0.0, most), chart.even_ticks(most, 0.01)),
        curves=[chart.series("resumed", "compute", points, "strong")],
        alt=f"Distance of the parameters from the uninterrupted run's: {words.percent(runs.gaps[0])} one step after the "
        f"resume, {words.percent(runs.gaps[-1])} at the end.",
    )


def _readouts(runs: _Runs) -> list[dict[str, Any]]:
    restarted = "scheduler" in runs.missing
    kept = learning_rate(runs.resume_step, runs.peak)
    rate = learning_rate(0, runs.peak) if restarted else kept
    return [
        chart.readout(
            "first loss",
            words.amount(runs.resumed.losses[0]),
            f"should be {words.amount(runs.whole.losses[0])}",
        ),
        chart.readout(
            f"training loss, next {WINDOW}",
            words.amount(_mean(runs.resumed.losses[:WINDOW])),
            f"should be {words.amount(_mean(runs.whole.losses[:WINDOW]))}",
        ),
        chart.readout(
            "new data, at the end",
            words.amount(runs.resumed.new_losses[-1]),
            f"should be {words.amount(runs.whole.new_losses[-1])}",
        ),
        chart.readout("learning rate", words.amount(rate), f"should be {words.amount(kept)}"),
        chart.readout("parameters off by", words.percent(runs.gaps[-1]), "at the end", "compute-text"),
    ]


def _listed(parts: list[str]) -> str:
    names = [_NAMES[part] for part in parts]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _sentences(runs: _Runs) -> list[str]:
    setting = (
        f"Saved after step {runs.resume_step} of {STEPS}, peak learning rate {words.plain_number(runs.peak)}, dropout "
        f"{words.plain_number(runs.dropout)}."
    )
    if runs.exact:
        return [_exact(runs), setting + " A resumed run can be checked to the last bit, so check it."]
    return [_verdict(runs), _warning(runs), _reasons(runs), setting]


def _exact(runs: _Runs) -> str:
    if runs.missing:
        return (
            "The random state is missing and nobody notices: without dropout nothing draws random numbers, and the run "
            "is the uninterrupted one bit by bit."
        )
    return "Everything is there: the resumed run is the uninterrupted one, bit by bit."


def _verdict(runs: _Runs) -> str:
    return (
        f"Without {_listed(runs.felt)} this is another run: its parameters are {words.percent(runs.gaps[0])} off after "
        f"one step and {words.percent(runs.gaps[-1])} at the end."
    )


def _warning(runs: _Runs) -> str:
    if runs.first_gap == 0:
        return "Nothing warns you: the first loss is the same to the last bit, because the parameters are."
    return f"The first loss is off by {words.amount(runs.first_gap, 2)}, among losses that jump from batch to batch anyway."


def _reasons(runs: _Runs) -> str:
    found = []
    if "optimizer" in runs.felt:
        found.append(
            "Adam starts without moments: its first step moves every weight by the whole learning rate."
        )
    if "scheduler" in runs.felt:
        found.append(
            "The learning rate begins again with its warm-up and is then too high for the rest of the run."
        )
    if "random" in runs.felt:
        found.append("Other inputs drop out.")
    if "position" in runs.felt:
        never = resume_coverage(STEPS, runs.resume_step, STEPS, position_saved=False).never_read
        found.append(
            f"The run begins again with batches that it has seen, so its training loss over the next {WINDOW} steps, "
            f"{words.amount(_mean(runs.resumed.losses[:WINDOW]))}, no longer tells the loss on new data, "
            f"{words.amount(_mean(runs.resumed.new_losses[:WINDOW]))}; {never} of {STEPS} "
            "batches are never read."
        )
    return " ".join(found)


def _preset(name: str, label: str, source: str, *saved: str) -> Preset:
    return Preset(name=name, label=label, values={part: part in saved for part in PARTS}, source=source)


_SAME_LAB = "The lab `checkpoint` does the same with a network on real ranks."

EXPERIMENT = Experiment(
    name="resume-without",
    title="Resume without …",
    question="Which part of a checkpoint can you leave out, and would the first loss tell you?",
    controls=(
        toggle("optimizer", "Optimizer state saved", False),
        toggle("scheduler", "Scheduler saved", False),
        toggle("random", "Random state saved", False),
        toggle("position", "Data position saved", False),
        slider("resume_step", "Saved after step", tuple(range(4, 41, 4)), 24, whole=True),
        slider("peak_lr", "Peak learning rate", (0.05, 0.1, 0.2, 0.3), 0.1),
        slider("dropout", "Dropout", (0.0, 0.1, 0.2, 0.3), 0.1),
    ),
    presets=(
        _preset(
            "parameters-only",
            "Parameters only",
            "The source's anti-pattern: nothing but parameters is saved.",
        ),
        _preset("no-optimizer", "All but the optimizer", _SAME_LAB, "scheduler", "random", "position"),
        _preset("no-scheduler", "All but the scheduler", _SAME_LAB, "optimizer", "random", "position"),
        _preset(
            "no-position",
            "All but the data position",
            "As in a public case where shard index and epoch were not saved (paiml/entrenar, issue 294).",
            "optimizer",
            "scheduler",
            "random",
        ),
        _preset(
            "everything",
            "Everything",
            "What a checkpoint should hold; every bit of the run comes back.",
            *PARTS,
        ),
    ),
    picture=picture,
)
