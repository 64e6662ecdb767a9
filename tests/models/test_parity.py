"""MicroPython on the page and CPython in the kernel give the same chart, over the whole control grid of every experiment."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from experiment_grid import control_grid, pair_grid, random_values

from shardlab.experiments import engine
from shardlab.experiments.bundle import experiment_names, python_files

HERE = Path(__file__).parent
TOLERANCE = 1e-12
PAIRS = {"ring-stepper": [("ranks", "step")]}
BAD = [
    ("scaling-explorer", '{"ranks": 0}'),
    ("scaling-explorer", '{"ranks": 2.5}'),
    ("scaling-explorer", '{"bandwidth": "2 GB"}'),
    ("scaling-explorer", '{"bandwidth": "2 TB/s"}'),
    ("scaling-explorer", '{"bandwidth": -1}'),
    ("scaling-explorer", '{"scaling": "sideways"}'),
    ("scaling-explorer", '{"source_points": 1}'),
    ("scaling-explorer", '{"speed": 1}'),
    ("scaling-explorer", '{"preset": "moon"}'),
    ("scaling-explorer", "[]"),
    ("no-such-thing", "{}"),
    ("../checks", "{}"),
    ("", "{}"),
]


def micropython(cases: list[tuple[str, str | None]], names: list[str]) -> list[Any]:
    """The answers of MicroPython under Node to (name, params) pairs; params None asks for the description."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing: MicroPython's WebAssembly cannot run here")
    question = {"files": {name: python_files(name) for name in names}, "cases": cases}
    done = subprocess.run(
        [node, str(HERE / "micropython.mjs")],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    answers: list[Any] = json.loads(done.stdout)
    assert len(answers) == len(cases)
    return answers


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ by more than the tolerance."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            yield f"{path}: keys {sorted(ours)} and {sorted(theirs)}"
            return
        for key in ours:
            yield from differences(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{path}: {len(ours)} and {len(theirs)} items"
            return
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(ours, bool) or isinstance(theirs, bool):
        if ours is not theirs:
            yield f"{path}: {ours!r} and {theirs!r}"
    elif isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        if not math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=1e-15):
            yield f"{path}: {ours!r} and {theirs!r}"
    elif ours != theirs:
        yield f"{path}: {ours!r} and {theirs!r}"


@pytest.mark.parametrize("name", experiment_names())
def test_same_chart_in_both_engines(name: str) -> None:
    experiment = engine.load(name)
    values = list(control_grid(experiment)) + list(random_values(experiment))
    for first, second in PAIRS.get(name, []):
        values += pair_grid(experiment, first, second)
    unique = sorted({json.dumps(item, sort_keys=True) for item in values})
    assert len(unique) > sum(len(control.stops) for control in experiment.controls) / 2
    cases: list[tuple[str, str | None]] = [(name, text) for text in unique]
    found = []
    for (_, text), theirs in zip(cases, micropython(cases, [name]), strict=True):
        ours = json.loads(engine.run_json(name, str(text)))
        assert "error" not in ours, (text, ours)
        found += [f"{text}: {difference}" for difference in differences(ours, theirs)]
    assert not found, f"{len(found)} differences, first: {found[:3]}"


def test_same_description_in_both_engines() -> None:
    names = experiment_names()
    for name, theirs in zip(names, micropython([(name, None) for name in names], names), strict=True):
        assert not list(differences(json.loads(engine.spec_json(name)), theirs))


def test_same_refusal_in_both_engines() -> None:
    names = experiment_names()
    for (name, params), theirs in zip(BAD, micropython(list(BAD), names), strict=True):
        ours = json.loads(engine.run_json(name, params))
        assert list(ours) == ["error"], (name, params)
        assert theirs == ours


def test_differences_are_seen() -> None:
    assert not list(differences({"a": [1.0, "x"]}, {"a": [1.0 + 1e-14, "x"]}))
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.0 + 1e-9, "x"]}))
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.0, "y"]}))
    assert list(differences({"a": True}, {"a": 1}))


def test_the_page_gets_the_installed_files_and_no_others() -> None:
    package = Path(engine.__file__).resolve().parents[1]
    for name in experiment_names():
        files = python_files(name)
        for path, text in files.items():
            folder = package.parent if path.startswith("shardlab/") else package / "experiments" / "shim"
            assert (folder / path).read_text("utf-8") == text
        assert {
            "dataclasses.py",
            "typing.py",
            "__future__.py",
            "shardlab/experiments/engine.py",
        } <= files.keys()
        heavy = ("widget.py", "static.py", "look.py", "page.py", "sphinx_ext.py")
        assert not [path for path in files if path.endswith(heavy)]
