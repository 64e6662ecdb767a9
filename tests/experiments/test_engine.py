"""The one entry point: values in, chart out, bad input named."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from experiment_grid import control_grid, random_values

from shardlab.experiments import engine
from shardlab.experiments.bundle import experiment_names
from shardlab.experiments.controls import checked, resolved
from shardlab.palette import ROLES

NAMES = experiment_names()
PANEL_KEYS = {
    "lines": {"x", "y", "series", "bands", "limits", "marks"},
    "bars": {"categories", "value", "stacks", "limits", "texts"},
    "timeline": {"lanes", "time", "spans", "limits", "brackets"},
    "graph": {"nodes", "arrows", "middle"},
    "matrix": {"columns", "rows", "texts", "levels", "role", "marks", "column_label", "row_label"},
    "table": {"columns", "rows", "strong_rows"},
}
# Names that ipywidgets takes for itself.
RESERVED = {
    "layout",
    "keys",
    "comm",
    "model_id",
    "spec",
    "chart",
    "values",
    "presets",
    "plot",
    "set_values",
    "tooltip",
}


def _strings(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in _strings(item, name)]
    if isinstance(value, list):
        return [found for item in value for found in _strings(item, key)]
    return [(key, value)] if isinstance(value, str) else []


def assert_is_a_chart(answer: dict[str, Any]) -> None:
    """Everything that the two drawers rely on."""
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["words"]
    assert all(sentence.strip() for sentence in answer["words"])
    assert 1 <= len(answer["panels"]) <= 4
    for panel in answer["panels"]:
        assert panel.keys() == PANEL_KEYS[panel["kind"]] | {"kind", "title", "alt"}
        assert panel["title"]
        assert panel["alt"] or panel["kind"] == "table"
    for key, text in _strings(answer):
        if key in ("role", "text_role"):
            assert text in ROLES or (key == "text_role" and text == ""), text
        assert "#" not in text, "colours are roles, never hex"
    for panel in answer["panels"]:
        for name in ("x", "y", "value", "time"):
            axis = panel.get(name)
            if axis is None:
                continue
            low, high = axis["domain"]
            assert low < high
            assert axis["scale"] == "linear" or low > 0
            assert 2 <= len(axis["ticks"]) <= 7
            for value, label in axis["ticks"]:
                assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
                assert label
        for curve in panel.get("series", []):
            places = [point[0] for point in curve["points"]]
            assert places == sorted(places)
            assert all(math.isfinite(point[1]) for point in curve["points"])
            assert 0 <= curve["label_place"] <= 1 or len(panel["series"]) > 10
        for band in panel.get("bands", []):
            assert all(low <= high * (1 + 1e-12) for _, low, high in band["points"])


def test_an_experiment_that_lacks_something_is_not_called_unknown(tmp_path, monkeypatch):
    """What the file imports and can't is the fault to tell; the reader's name was right."""
    from shardlab.experiments import gallery

    (tmp_path / "half_made.py").write_text("import no_such_library\n")
    monkeypatch.setattr(gallery, "__path__", [*gallery.__path__, str(tmp_path)])
    with pytest.raises(ImportError, match="no_such_library"):
        engine.load("half-made")
    with pytest.raises(ValueError, match="not 'half-madd'"):
        engine.load("half-madd")


@pytest.mark.parametrize("name", NAMES)
def test_charts_are_whole_over_the_grid(name: str) -> None:
    experiment = engine.load(name)
    for values in [*control_grid(experiment), *random_values(experiment, 60)]:
        answer = engine.run(name, values)
        assert_is_a_chart(answer)
        assert answer["values"].keys() == {control.name for control in experiment.controls}
        assert answer["texts"].keys() == answer["values"].keys()


@pytest.mark.parametrize("name", NAMES)
def test_descriptions_are_what_a_front_end_needs(name: str) -> None:
    spec = json.loads(engine.spec_json(name))
    assert spec["name"] == name
    assert spec["title"]
    assert spec["question"]
    names = [control["name"] for control in spec["controls"]]
    assert len(set(names)) == len(names)
    assert not RESERVED & set(names)
    for control in spec["controls"]:
        assert control["name"].isidentifier()
        assert control["label"]
        assert len(control["labels"]) == len(control["stops"]) >= 2
        assert len(set(control["labels"])) == len(control["labels"])
        assert control["default"] in control["stops"]
        if control["kind"] in ("slider", "stepper"):
            assert control["stops"] == sorted(control["stops"])
            assert (control["least"], control["most"]) == (control["stops"][0], control["stops"][-1])
    labels = [preset["label"] for preset in spec["presets"]]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_valid_and_says_where_it_comes_from(name: str) -> None:
    experiment = engine.load(name)
    assert experiment.presets
    for preset in experiment.presets:
        values = resolved(experiment, preset.values)
        assert engine.run(name, {"preset": preset.name})["values"] == values
        assert preset.source.endswith((".", "…"))
        assert len(preset.source) > 20


@pytest.mark.parametrize("name", NAMES)
def test_the_words_change_with_the_controls(name: str) -> None:
    experiment = engine.load(name)
    # A control may say nothing while an answer is hidden, or belong to one of several choices: some start shows it.
    shown = {control.name: True for control in experiment.controls if control.kind == "toggle"}
    presets = [{}, *[preset.values for preset in experiment.presets], *random_values(experiment, 10)]
    starts = [*presets, *[{**values, **shown} for values in presets]]
    for control in experiment.controls:
        ends = control.stops[0], control.stops[-1]
        pairs = [[engine.run(name, {**start, control.name: stop}) for stop in ends] for start in starts]
        assert any(one["panels"] != other["panels"] for one, other in pairs), control.name
        if control.kind != "toggle":
            assert any(one["words"] != other["words"] for one, other in pairs), control.name


@pytest.mark.parametrize("name", NAMES)
def test_a_text_leads_back_to_its_value(name: str) -> None:
    """What the box beside a slider shows can be typed back."""
    for control in engine.load(name).controls:
        if control.kind not in ("slider", "stepper"):
            continue
        for stop, label in zip(control.stops, control.labels, strict=True):
            typed = label if control.si_unit else float(label)
            assert checked(control, typed) == pytest.approx(stop, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 4096, not 0"),
        ({"ranks": 1.5}, "ranks must be a whole number from 1 to 4096, not 1.5"),
        ({"ranks": True}, "ranks must be a whole number"),
        ({"bandwidth": 0}, "bandwidth must be a finite number above 0 bytes/s, not 0"),
        ({"bandwidth": "2 TB/s"}, "bandwidth must be from 100 MB/s to 1 TB/s, not 2 TB/s"),
        ({"bandwidth": "2 GB"}, "bandwidth"),
        ({"latency_s": "1 parsec"}, "latency_s: time '1 parsec'"),
        ({"overlap": 1.5}, "overlap must be from 0 to 1, not 1.5"),
        ({"overlap": float("nan")}, "overlap must be"),
        ({"scaling": "Weak"}, "scaling must be one of 'weak', 'strong', not 'Weak'"),
        ({"source_points": "yes"}, "source_points must be True or False, not 'yes'"),
        ({"speed": 3}, "control must be one of ranks, "),
        ({"preset": "moon"}, "preset must be one of 'source', "),
    ],
)
def test_bad_values_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(
        ValueError, match=r"^(ranks|bandwidth|latency_s|overlap|scaling|source_points|control|preset)"
    ) as caught:
        engine.run("scaling-explorer", given)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["", "Scaling", "../engine", "scaling_explorer", "os", "no-such", None, 3])
def test_unknown_experiments_are_named(name: Any) -> None:
    with pytest.raises(ValueError, match="name must be the name of an experiment"):
        engine.load(name)


def test_json_in_and_out() -> None:
    assert json.loads(engine.run_json("ring-stepper", "{}"))["values"]["ranks"] == 4
    for text in ("[1]", "3", "{", ""):
        assert list(json.loads(engine.run_json("ring-stepper", text))) == ["error"]
    assert "error" in json.loads(engine.spec_json("no-such"))


def test_a_preset_can_be_changed_in_part() -> None:
    values = engine.run("scaling-explorer", {"preset": "h100-nvlink", "ranks": 4})["values"]
    assert (values["ranks"], values["bandwidth"]) == (4, 436e9)
