"""The one function that both engines call: ``run_json(name, params_json) -> json``."""

from __future__ import annotations

import json
from typing import Any

from shardlab.experiments.controls import Experiment, description, resolved, value_text

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def load(name: str) -> Experiment:
    """The experiment of that name: ``"ring-stepper"`` is the file ``gallery/ring_stepper.py``.

    Raises:
        ValueError: there is no such experiment.
    """
    if not isinstance(name, str) or not name or name.strip(_LETTERS + "-"):
        raise ValueError(f"name must be the name of an experiment, such as 'scaling-explorer', not {name!r}")
    module = name.replace("-", "_")
    path = "shardlab.experiments.gallery." + module
    try:
        package = __import__(path)
    except ImportError as error:
        if path not in str(error):
            raise  # the file is there, and what it imports is not
        raise ValueError(
            f"name must be the name of an experiment, such as 'scaling-explorer', not {name!r}"
        ) from None
    experiment: Experiment = getattr(package.experiments.gallery, module).EXPERIMENT
    return experiment


def run(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The chart of an experiment for some or all of its control values; ``"values"`` holds all of them, ``"texts"`` as text.

    Raises:
        ValueError: an unknown experiment, control or preset, or a value out of range.
    """
    experiment = load(name)
    values = resolved(experiment, given)
    answer = experiment.picture(**values)
    for control, bound in answer["bounds"].items():
        if "most" in bound and values[control] > bound["most"]:
            values[control] = bound["most"]
    answer["values"] = values
    answer["texts"] = {
        control.name: value_text(control, values[control.name]) for control in experiment.controls
    }
    return answer


def run_json(name: str, params_json: str) -> str:
    """:func:`run` with JSON in and out; bad input gives ``{"error": "..."}`` with the message of the ValueError."""
    try:
        given = json.loads(params_json)
        if not isinstance(given, dict):
            raise ValueError("params must be a JSON object of control names and values")
        return json.dumps(run(name, given))
    except ValueError as error:
        return json.dumps({"error": str(error)})


def spec_json(name: str) -> str:
    """The description of an experiment's controls and presets as JSON, or ``{"error": "..."}``."""
    try:
        return json.dumps(description(load(name)))
    except ValueError as error:
        return json.dumps({"error": str(error)})
