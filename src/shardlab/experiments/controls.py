"""What a reader can set: controls, presets, and the experiment that holds them.

An experiment is a list of controls and a pure function from their values to a chart. Nothing here draws:
the page, the notebook widget and matplotlib all read the same description.
Values are SI (bytes, bytes/s, seconds); a control also has them as text with a unit that suits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardlab.checks import choice as one_of
from shardlab.checks import count, non_negative, positive
from shardlab.experiments import words
from shardlab.units import parse_bandwidth, parse_bytes, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Control:
    """One thing a reader can set.

    Attributes:
        name: argument of the experiment's function, and trait of the widget.
        kind: ``"slider"``, ``"stepper"`` (a slider with play, pause, step, back), ``"choice"`` or ``"toggle"``.
        label: what it is, in words.
        default: value before the reader does anything.
        si_unit: unit of the value: ``"bytes"``, ``"bytes/s"``, ``"seconds"``, or ``""`` for a plain number.
        least, most: smallest and largest value allowed, both included; any number between them may be typed.
        whole: only whole numbers.
        stops: the values at which the slider stops, rising, or the options of a choice.
        labels: one text for each stop or option.
    """

    name: str
    kind: str
    label: str
    default: Any
    si_unit: str
    least: float
    most: float
    whole: bool
    stops: tuple[Any, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Preset:
    """Values that belong together, and where they come from.

    Attributes:
        name: short key, such as ``"h100-nvlink"``.
        label: what the button says.
        values: control name to value; controls that are not named go back to their default.
        source: where the numbers come from, one sentence.
    """

    name: str
    label: str
    values: dict[str, Any]
    source: str


@dataclass(frozen=True)
class Experiment:
    """Controls, presets and the function that answers.

    Attributes:
        name: key, such as ``"scaling-explorer"``: the file ``gallery/scaling_explorer.py``.
        title: heading.
        question: what a reader can find out with it, one or two sentences.
        controls: in the order in which they are shown.
        presets: the first of them are the first thing a reader meets.
        picture: pure function of all control values, by keyword, that returns the chart: a plain JSON object
            made by :func:`shardlab.experiments.chart.chart`.
    """

    name: str
    title: str
    question: str
    controls: tuple[Control, ...]
    presets: tuple[Preset, ...]
    picture: Callable[..., dict[str, Any]]


def decades(least: float, most: float, digits: tuple[float, ...] = (1, 2, 5)) -> tuple[float, ...]:
    """Rising values ``digit * 10**k`` from ``least`` to ``most``, both powers of ten times a digit."""
    found = []
    for exponent in range(-15, 16):
        for digit in digits:
            # Read from text, because a product of powers of ten is off in the last bit.
            value = float(f"{digit}e{exponent}")
            if least <= value <= most:
                found.append(value)
    return tuple(found)


_PARSERS = {"bytes": parse_bytes, "bytes/s": parse_bandwidth, "seconds": parse_time}
_FORMATS: dict[str, Callable[[float], str]] = {
    "": words.plain_number,
    "bytes": words.n_bytes,
    "bytes/s": words.bandwidth,
    "seconds": words.seconds,
}

R10 = (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)
"""Ten preferred numbers per decade (ISO 3); 1.25, 2.5 and 5 are 10, 100 and 400 Gb/s in GB/s."""


def number_text(value: float, si_unit: str) -> str:
    """A value as a person reads it: ``"10 GB/s"``, ``"100 ms"``, ``"64"``."""
    # A plain space, because a reader edits this text and sends it back.
    return _FORMATS[si_unit](value).replace("\u00a0", " ")


def slider(
    name: str,
    label: str,
    stops: tuple[float, ...],
    default: float,
    si_unit: str = "",
    whole: bool = False,
    kind: str = "slider",
) -> Control:
    """A slider over ``stops``. Values between the stops can be typed, or set from Python.

    Log scale is a matter of the stops: give them with :func:`decades`, or as powers of two.
    """
    return Control(
        name=name,
        kind=kind,
        label=label,
        default=default,
        si_unit=si_unit,
        least=stops[0],
        most=stops[-1],
        whole=whole,
        stops=tuple(stops),
        labels=tuple([number_text(stop, si_unit) for stop in stops]),
    )


def stepper(name: str, label: str, most: int) -> Control:
    """A position from 0 to ``most`` that a reader can step through and play."""
    return slider(name, label, tuple(range(most + 1)), 0, whole=True, kind="stepper")


def choice(name: str, label: str, options: tuple[tuple[str, str], ...], default: str) -> Control:
    """One of a few options, each a value and the text shown for it."""
    return Control(
        name=name,
        kind="choice",
        label=label,
        default=default,
        si_unit="",
        least=0.0,
        most=0.0,
        whole=False,
        stops=tuple([value for value, _ in options]),
        labels=tuple([text for _, text in options]),
    )


def toggle(name: str, label: str, default: bool) -> Control:
    """Something that is on or off."""
    return Control(
        name=name,
        kind="toggle",
        label=label,
        default=default,
        si_unit="",
        least=0.0,
        most=1.0,
        whole=False,
        stops=(False, True),
        labels=("off", "on"),
    )


def checked(control: Control, value: Any) -> Any:
    """The value as the experiment takes it.

    Text with a unit (``"2 GB/s"``, ``"10 us"``) is read where the control has one.

    Raises:
        ValueError: names the control, the value and what is allowed.
    """
    if control.kind == "choice":
        return one_of(control.name, value, control.stops)
    if control.kind == "toggle":
        if not isinstance(value, bool):
            raise ValueError(f"{control.name} must be True or False, not {value!r}")
        return value
    if isinstance(value, str) and control.si_unit:
        try:
            value = _PARSERS[control.si_unit](value)
        except ValueError as error:
            message = str(error)
            raise ValueError(
                message if message.startswith(control.name) else f"{control.name}: {message}"
            ) from None
    if control.whole:
        return count(control.name, value, least=int(control.least), most=int(control.most))
    check = positive if control.least > 0 else non_negative
    number = check(control.name, value, control.si_unit)
    if not control.least <= number <= control.most:
        low, high, given = [
            number_text(item, control.si_unit) for item in (control.least, control.most, number)
        ]
        raise ValueError(f"{control.name} must be from {low} to {high}, not {given}")
    return number


def value_text(control: Control, value: Any) -> str:
    """A control's value as a person reads it."""
    if control.kind in ("choice", "toggle"):
        return control.labels[control.stops.index(value)]
    return number_text(value, control.si_unit)


def preset_named(experiment: Experiment, name: Any) -> Preset:
    """The preset of that name.

    Raises:
        ValueError: there is none.
    """
    one_of("preset", name, tuple([preset.name for preset in experiment.presets]))
    return next(preset for preset in experiment.presets if preset.name == name)


def resolved(experiment: Experiment, given: dict[str, Any]) -> dict[str, Any]:
    """All control values: those given, then those of the preset ``given["preset"]``, then the defaults.

    Raises:
        ValueError: an unknown control or preset, or a value out of range.
    """
    known = [control.name for control in experiment.controls]
    for name in given:
        if name != "preset" and name not in known:
            raise ValueError(f"control must be one of {', '.join(known)} or preset, not {name!r}")
    start = preset_named(experiment, given["preset"]).values if "preset" in given else {}
    values = {}
    for control in experiment.controls:
        value = given.get(control.name, start.get(control.name, control.default))
        values[control.name] = checked(control, value)
    return values


def description(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a JSON object: all that a front end needs to draw the controls before any value is computed."""
    return {
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "controls": [
            {
                "name": control.name,
                "kind": control.kind,
                "label": control.label,
                "default": control.default,
                "si_unit": control.si_unit,
                "least": control.least,
                "most": control.most,
                "whole": control.whole,
                "stops": list(control.stops),
                "labels": list(control.labels),
            }
            for control in experiment.controls
        ],
        "presets": [
            {
                "name": preset.name,
                "label": preset.label,
                "values": resolved(experiment, preset.values),
                "source": preset.source,
            }
            for preset in experiment.presets
        ],
    }
