"""The clinic: sixteen anti-patterns, each a healthy run beside a broken one, with a severity to turn."""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.hardware import accelerator
from shardlab.models import antipatterns
from shardlab.models.antipatterns import (
    ANTI_PATTERNS,
    DEVICE,
    LEVELS,
    MODELS,
    NAMES,
    AntiPattern,
    Comparison,
    Row,
    Setting,
)
from shardlab.models.memory import model_states

_RANK_STOPS = tuple([2**exponent for exponent in range(1, 11)])
_TOKEN_STOPS = tuple([2**exponent for exponent in range(9, 17)])
# 1, 10, 25, 50, 100, 200, 400, 800 Gb/s, and NVLink's speed.
_BANDWIDTHS = (0.125e9, 1.25e9, 3.125e9, 6.25e9, 12.5e9, 25e9, 50e9, 100e9, 400e9)
# Below this much damage the sentences say that there is none to speak of.
_SLIGHT = 0.05
_TEXTURES = {"idle": "hatch", "communication": "solid", "compute": "solid"}


class _Case:
    """What the reader has set, and what the models say to it."""

    def __init__(
        self, pattern: str, fault: bool, severity: int, ranks: int, bandwidth: float, model: str, tokens: int
    ) -> None:
        self.run: Setting = antipatterns.setting(ranks, bandwidth, model, tokens)
        self.pattern: AntiPattern = antipatterns.anti_pattern(pattern)
        self.fault, self.severity = fault, severity
        self.found: Comparison = antipatterns.compare(pattern, self.run, severity)
        self.damages: list[float] = antipatterns.damages(pattern, self.run) if fault else []
        self.rows = [row for row in self.found.rows if fault or not row.broken]


def picture(
    pattern: str, fault: bool, severity: int, ranks: int, bandwidth: float, model: str, tokens: int
) -> dict[str, Any]:
    """Healthy beside broken, the damage over severity, and the symptom, the test and the mend in words."""
    case = _Case(pattern, fault, severity, ranks, bandwidth, model, tokens)
    panels = [_curves_panel(case) if case.found.curves else _bars_panel(case)]
    if fault:
        panels.append(_damage_panel(case))
    return chart.chart(
        panels=panels,
        words=_broken_words(case) if fault else _healthy_words(case),
        readouts=_readouts(case),
        bounds=_bounds(case),
    )


def _bounds(case: _Case) -> dict[str, dict[str, Any]]:
    """Controls that change nothing here are switched off, and on again where they do."""
    used = case.pattern.needs + (("severity",) if case.fault else ())
    return {name: {"enabled": name in used} for name in ("severity", "ranks", "bandwidth", "model", "tokens")}


# ---------------------------------------------------------------- values as text


def _value(unit: str, value: float) -> str:
    if unit == "seconds":
        return words.seconds(value)
    if unit == "bytes":
        return words.n_bytes(value)
    if unit == "loss":
        return words.amount(value)
    return f"{words.amount(value)} {unit}" if value != int(value) else words.plural(int(value), unit[:-1])


def _damage(kind: str, value: float) -> str:
    if kind == "ratio":
        return words.ratio(value)
    return words.percent(value) if kind == "share" else "+" + words.amount(value)


def _knob(kind: str, value: float) -> str:
    if kind == "slower":
        return "full" if value == 1 else f"1/{int(value)}"
    if kind == "share":
        return words.percent(value)
    return words.plain_number(value) + ("×" if kind == "times" else "")


def _knob_text(case: _Case) -> str:
    value = case.found.knob
    if case.pattern.name == "one-big-unit":
        value = min(value, case.run.model.layers)  # a unit holds at most the whole model
    return f"{case.pattern.knob}: {_knob(case.pattern.knob_kind, value)}"


def _total(values: tuple[float, ...]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


# ---------------------------------------------------------------- panels


def _bars_panel(case: _Case) -> dict[str, Any]:
    found = case.found
    totals = [_total(row.values) for row in case.rows]
    texts = [_row_text(found, row) for row in case.rows]
    stacks = [
        chart.stack(
            name,
            role,
            [row.values[index] for row in case.rows],
            _TEXTURES.get(role, "solid"),
        )
        for index, (name, role) in enumerate(found.parts)
        if max([row.values[index] for row in case.rows]) > 0
    ]
    said = [f"{row.name}: {text}" for row, text in zip(case.rows, texts)]
    return chart.bars(
        title="Healthy beside broken" if case.fault else "Healthy",
        categories=[row.name for row in case.rows],
        # Room for the text behind the longest bar.
        value=_value_axis(found.unit, (1.7 if found.unit in ("samples", "steps") else 1.3) * max(totals)),
        stacks=stacks,
        texts=texts,
        alt="Bars. " + "; ".join(said) + ".",
    )


def _value_axis(unit: str, most: float) -> dict[str, Any]:
    if unit == "seconds":
        return chart.time_axis("time", most)
    if unit == "bytes":
        return chart.size_axis("memory of one rank", most)
    name = {"samples": "samples of an epoch", "steps": "steps", "loss": "loss"}[unit]
    return chart.axis(name, (0.0, most), chart.even_ticks(most))


def _curves_panel(case: _Case) -> dict[str, Any]:
    shown = [curve for curve in case.found.curves if case.fault or not curve[1]]
    last = shown[0][2][-1][0]
    most = max([loss for _, _, points in shown for _, loss in points])
    ends = [f"{name} ends at {words.amount(points[-1][1])}" for name, _, points in shown]
    roles = {True: "text", False: "compute"}
    return chart.lines(
        title="Loss over batches read",
        x=chart.axis("batches", (0.0, last), chart.even_ticks(last)),
        y=chart.axis("", (0.0, most), chart.even_ticks(most)),
        curves=[
            chart.series(name, roles[broken], list(points), "strong" if broken else "normal", "×" in name)
            for name, broken, points in shown
        ],
        alt="Loss curves: " + "; ".join(ends) + ".",
    )


def _damage_panel(case: _Case) -> dict[str, Any]:
    pattern, values = case.pattern, case.damages
    least = antipatterns.no_harm(pattern.damage_kind)
    most = max(1.1 * max(values), least + _SLIGHT)
    log = pattern.damage_kind == "ratio" and most > 5
    if log:
        top = 10.0 ** math.ceil(math.log10(most))
        y = chart.axis("", (1.0, top), chart.log_ticks(1.0, top), scale="log")
    else:
        factor = 0.01 if pattern.damage_kind == "share" else 1.0
        y = chart.axis("", (0.0, most), chart.even_ticks(most, factor))
    unit = {"ratio": "× ", "share": "% ", "loss": "rise "}[pattern.damage_kind]
    here = values[case.severity - 1]
    return chart.lines(
        title=f"Damage: {unit}{pattern.damage_name}",
        x=chart.axis(
            "severity",
            (1, LEVELS),
            [(level, str(level)) for level in (1, 2, 4, 6, 8)],
            control="severity",
        ),
        y=y,
        curves=[
            chart.series("", "text", [(level + 1, value) for level, value in enumerate(values)], "strong")
        ],
        limits=[chart.limit(least, "healthy", align="end", side="below" if least and not log else "above")],
        marks=[chart.mark(case.severity, here, _damage(pattern.damage_kind, here), "text")],
        alt=f"Damage over severity 1 to {LEVELS}: from {_damage(pattern.damage_kind, values[0])} to "
        f"{_damage(pattern.damage_kind, values[-1])}; at severity {case.severity} "
        f"{_damage(pattern.damage_kind, here)} {pattern.damage_name}.",
    )


# ---------------------------------------------------------------- readouts and words


def _readouts(case: _Case) -> list[dict[str, Any]]:
    pattern, found = case.pattern, case.found
    healthy, worst = found.rows[0], _worst(found)
    shown = [chart.readout("healthy", _row_text(found, healthy), healthy.name, "compute-text")]
    if not case.fault:
        shown.append(chart.readout("broken", "?", "switch the fault on"))
        return shown
    shown.append(chart.readout("broken", _row_text(found, worst), worst.name))
    shown.append(
        chart.readout("damage", _damage(pattern.damage_kind, found.damage), pattern.damage_name, "bad-text")
    )
    shown.append(chart.readout("severity", str(case.severity), _knob_text(case)))
    extra = _extra(case)
    return shown + ([extra] if extra else [])


def _worst(found: Comparison) -> Row:
    return next(row for row in found.rows if row.broken)


def _row_text(found: Comparison, row: Row) -> str:
    """What a bar says; where all bars are equally long, its first part counts."""
    if found.unit in ("samples", "steps"):
        return f"{_value(found.unit, row.values[0])} {found.parts[0][0]}"
    return _value(found.unit, _total(row.values))


def _extra(case: _Case) -> dict[str, Any] | None:
    """The one number more that some cases turn on."""
    if case.pattern.name == "busy-is-not-working":
        broken = _total(case.found.rows[1].values)
        mfu = antipatterns.model_flops_utilisation(case.run, broken)
        return chart.readout("MFU", words.percent(mfu), "the meter says 100 %")
    if case.pattern.name == "needless-zero3":
        needed = model_states(case.run.params, case.run.ranks, 1).total_bytes
        held = accelerator(DEVICE).memory_bytes
        fits = "fits" if needed < held else "does not fit"
        return chart.readout("states, ZeRO-1", words.n_bytes(needed), f"{fits} into {words.n_bytes(held)}")
    if case.pattern.name == "few-micro-batches":
        values = case.found.rows[1].values
        return chart.readout(
            "bubble", words.percent(values[1] / _total(values)), "idle over total", "idle-text"
        )
    if case.pattern.name == "averaged-away":
        mean = case.found.rows[3].values[0] / case.found.rows[0].values[0]
        return chart.readout("mean compute", "+" + words.percent(mean - 1), "all that the average shows")
    return None


def _healthy_words(case: _Case) -> list[str]:
    return [
        f"This run is healthy. The fault to come: {_lower(case.pattern.title)}.",
        "Guess the damage, and which control makes it worse; then switch the fault on.",
    ]


def _lower(title: str) -> str:
    """A title inside a sentence; names in capitals stay."""
    return title if title[1].isupper() or "-" in title.split(" ")[0] else title[0].lower() + title[1:]


def _broken_words(case: _Case) -> list[str]:
    pattern = case.pattern
    size = case.found.damage - antipatterns.no_harm(pattern.damage_kind)
    amount = _damage(pattern.damage_kind, case.found.damage)
    excused = _excused(case)
    if excused:
        first = "No anti-pattern here: without sharding more than the optimizer the states do not fit into one GPU."
    elif size < _SLIGHT:
        # One batch too few hangs the job: the number is small, the damage is not.
        opening = "A small number" if pattern.name == "uneven-ranks" else "Hardly any damage at this setting"
        first = f"{opening}: {amount} {pattern.damage_name}. {pattern.harmless}"
    else:
        first = (
            f"Damage: {amount} {pattern.damage_name}, {_row_text(case.found, _worst(case.found))} against "
            f"{_row_text(case.found, case.found.rows[0])} ({_knob_text(case)})."
        )
    found = [first]
    if not excused:  # no memory is half empty where the states need it
        found.append(f"Symptom: {pattern.symptom}")
    found.append(f"How to tell: {pattern.tell}")
    found.append(f"The mend: {pattern.mend}")
    return found


def _excused(case: _Case) -> bool:
    """Whether ZeRO-3 is needed after all."""
    if case.pattern.name != "needless-zero3":
        return False
    needed = model_states(case.run.params, case.run.ranks, 1).total_bytes
    return needed > accelerator(DEVICE).memory_bytes


EXPERIMENT = Experiment(
    name="antipatterns",
    title="The clinic: healthy beside broken",
    question="What does each anti-pattern cost in this run, and under which conditions does it cost nothing?",
    controls=(
        choice(
            "pattern", "Anti-pattern", tuple([(item.name, item.title) for item in ANTI_PATTERNS]), NAMES[0]
        ),
        toggle("fault", "The fault", True),
        slider("severity", "Severity, 1 to 8", tuple(range(1, LEVELS + 1)), 4, whole=True),
        slider("ranks", "Ranks N", _RANK_STOPS, 64, whole=True),
        slider("bandwidth", "Network of one rank", _BANDWIDTHS, 50e9, "bytes/s"),
        choice(
            "model",
            "Model",
            tuple(zip(MODELS, ("GPT-2 XL, 1.6 B", "Llama 3 8B", "Llama 3 70B"))),
            "llama3-8b",
        ),
        slider("tokens", "Tokens a micro-batch", _TOKEN_STOPS, 8192, whole=True),
    ),
    presets=(
        Preset(
            name="dgx-h100",
            label="Healthy: 64 H100",
            values={"fault": False},
            source="8 ports of 400 Gb/s for 8 GPUs (DGX H100 data sheet); compute: 430 TFLOP/s, Llama 3, Table 4.",
        ),
        Preset(
            name="two-boxes-10gbe",
            label="ZeRO-3 over 10 Gb/s",
            values={"pattern": "needless-zero3", "ranks": 16, "bandwidth": 1.25e9, "severity": 3},
            source="As in LlamaFactory issue 5014: an 8B model under ZeRO-3 on two boxes with 10 Gb/s between them.",
        ),
        Preset(
            name="eight-stages",
            label="8 stages, 8 micro-batches",
            values={"pattern": "few-micro-batches", "ranks": 8, "severity": 4},
            source="The source text's pipeline: a bubble of 7/15 of the total time.",
        ),
        Preset(
            name="64-nodes",
            label="64 nodes, measured",
            values={"ranks": 512, "bandwidth": 32.9e9, "severity": 1},
            source="32.9 GB/s: all-reduce bus bandwidth measured across 64 nodes of 8 H100 (Ultra-Scale Playbook, 2025).",
        ),
        Preset(
            name="slow-one",
            label="One slow rank of 512",
            values={"pattern": "averaged-away", "ranks": 512, "severity": 3},
            source="A rank at 1.1 times the others' time, the spread that FlagScale's pull request 938 reports.",
        ),
    ),
    picture=picture,
)
