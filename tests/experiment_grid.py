"""The values at which experiments are checked: every stop of every control around every preset, and a random few."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from shardlab.experiments.controls import Control, Experiment, resolved

RANDOM_CASES = 30


def control_grid(experiment: Experiment) -> Iterator[dict[str, Any]]:
    """Every stop of every control, the others as the defaults and then as each preset have them."""
    for start in [{}, *[preset.values for preset in experiment.presets]]:
        values = resolved(experiment, start)
        yield values
        for control in experiment.controls:
            for stop in control.stops:
                yield {**values, control.name: stop}


def pair_grid(experiment: Experiment, first: str, second: str) -> Iterator[dict[str, Any]]:
    """Every pair of stops of two controls, the others at their defaults."""
    stops = {control.name: control.stops for control in experiment.controls}
    for one in stops[first]:
        for other in stops[second]:
            yield resolved(experiment, {first: one, second: other})


def _typed(control: Control, source: random.Random) -> Any:
    """A value as a reader might type it, between the stops too."""
    if control.kind in ("choice", "toggle"):
        return source.choice(control.stops)
    if control.whole:
        return source.randint(int(control.least), int(control.most))
    if control.least > 0:
        return math.exp(source.uniform(math.log(control.least), math.log(control.most)))
    return source.uniform(control.least, control.most)


def random_values(experiment: Experiment, count: int = RANDOM_CASES) -> Iterator[dict[str, Any]]:
    """Values off the stops, the same ones every time."""
    source = random.Random(experiment.name)
    for _ in range(count):
        yield {control.name: _typed(control, source) for control in experiment.controls}
