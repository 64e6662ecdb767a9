"""The experiment as an ipywidget: every control is a trait, the kernel computes, the browser draws."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from shardlab import palette
from shardlab.embed import es_module
from shardlab.experiments.controls import Control, Experiment, checked, description, resolved
from shardlab.experiments.engine import load, run
from shardlab.experiments.look import Picture
from shardlab.experiments.page import experiment_html

_WEB = Path(__file__).resolve().parents[1] / "web"


def _css() -> str:
    return palette.css() + (_WEB / "experiment.css").read_text("utf-8")


class ControlTrait(traitlets.TraitType):  # type: ignore[misc]
    """A control's value: SI numbers, or text with a unit such as ``"100 Gb/s"``."""

    def __init__(self, control: Control) -> None:
        super().__init__(default_value=control.default, help=control.label)
        self.control = control

    def validate(self, obj: Any, value: Any) -> Any:
        """Check the value, naming what is allowed."""
        try:
            return checked(self.control, value)
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from None


class ExperimentWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """A live experiment. Made by :func:`shardlab.experiments.experiment`; each experiment has a class of its own,
    with a synced trait for every control.

    Attributes:
        chart: the answer to the present values, a read-only trait: ``w.chart["words"]``, ``w.chart["readouts"]``.
    """

    _esm = es_module("experiment.js", "shardlabExperiment")
    _css = _css()
    _experiment: Experiment
    spec = traitlets.Dict(read_only=True).tag(sync=True)
    chart = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(self, **values: Any) -> None:
        self._asked = ""
        super().__init__(**values)
        self.set_trait("spec", description(self._experiment))
        self.observe(self._compute, names=list(self.values))
        self.on_msg(self._answer)
        self._compute()

    @property
    def values(self) -> dict[str, Any]:
        """The values of all controls."""
        return {control.name: getattr(self, control.name) for control in self._experiment.controls}

    def set_values(self, **controls: Any) -> None:
        """Set several controls at once, or ``preset="..."``; controls that a preset does not name go to their default.

        Raises:
            ValueError: an unknown control or preset, or a value out of range; then nothing is changed.
        """
        start = {} if "preset" in controls else self.values
        given = resolved(self._experiment, {**start, **controls})
        names = list(given)
        # One computation for all of them.
        self.unobserve(self._compute, names=names)
        try:
            with self.hold_sync():
                for name, value in given.items():
                    setattr(self, name, value)
        finally:
            self.observe(self._compute, names=names)
        self._compute()

    def presets(self) -> dict[str, dict[str, Any]]:
        """Preset name to its control values."""
        return {preset.name: resolved(self._experiment, preset.values) for preset in self._experiment.presets}

    def plot(self, **controls: Any) -> Picture:
        """The chart at the present values, or at those given, drawn by matplotlib."""
        from shardlab.experiments import plot

        start = {} if "preset" in controls else self.values
        return plot(self._experiment.name, **{**start, **controls})

    def _compute(self, change: Any = None) -> None:
        answer = run(self._experiment.name, self.values)
        answer["asked"] = self._asked
        # One control may limit another; the traits say what the chart shows.
        limited = {name: value for name, value in answer["values"].items() if value != getattr(self, name)}
        if limited:
            self.set_values(**limited)
        else:
            self.set_trait("chart", answer)

    def _answer(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        """The reader moved a control: set the traits and send the chart."""
        self._asked = content["asked"]
        try:
            self.set_values(**content["values"])
        except ValueError as error:
            self.send({"error": str(error), "asked": self._asked})

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return None
        data, metadata = bundle
        html = experiment_html(self._experiment.name, self.values)
        return {**data, "text/plain": repr(self), "text/html": html}, metadata

    def __repr__(self) -> str:
        values = ", ".join([f"{name}={value!r}" for name, value in self.values.items()])
        return f"experiment({self._experiment.name!r}, {values})"


@cache
def widget_class(name: str) -> type[ExperimentWidget]:
    """The widget class of an experiment, made once.

    Raises:
        ValueError: there is no such experiment.
    """
    experiment = load(name)
    members: dict[str, Any] = {
        control.name: ControlTrait(control).tag(sync=True) for control in experiment.controls
    }
    members["_experiment"] = experiment
    members["__doc__"] = f"{experiment.title}. {experiment.question}"
    title = "".join([part.capitalize() for part in name.split("-")])
    return type(title, (ExperimentWidget,), members)


def make_widget(name: str, controls: dict[str, Any]) -> ExperimentWidget:
    """A new widget at the given control values.

    Raises:
        ValueError: an unknown experiment, control or preset, or a value out of range.
    """
    return widget_class(name)(**resolved(load(name), controls))
