"""The experiment as an ipywidget, with the comm to the browser replaced by a list."""

from __future__ import annotations

from typing import Any

import comm
import pytest
import traitlets
from comm.base_comm import BaseComm

from shardlab.experiments import engine, experiment
from shardlab.experiments.bundle import experiment_names


class Recorder(BaseComm):
    """Keeps what would go to the browser."""

    sent: list[tuple[str, dict[str, Any]]]

    def publish_msg(self, msg_type: str, data: Any = None, **options: Any) -> None:
        self.sent.append((msg_type, data or {}))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    messages: list[tuple[str, dict[str, Any]]] = []
    Recorder.sent = messages
    monkeypatch.setattr(comm, "create_comm", Recorder)
    return messages


def updates(messages: list[tuple[str, dict[str, Any]]], name: str) -> list[Any]:
    states = [
        data["state"] for kind, data in messages if kind == "comm_msg" and data.get("method") == "update"
    ]
    return [state[name] for state in states if name in state]


def from_browser(widget: Any, values: dict[str, Any], asked: str = "view.1") -> None:
    widget._handle_custom_msg({"values": values, "asked": asked}, [])


@pytest.mark.parametrize("name", experiment_names())
def test_every_control_is_a_synced_trait(name: str, sent: list[Any]) -> None:
    widget = experiment(name)
    for control in engine.load(name).controls:
        assert widget.has_trait(control.name)
        assert widget.trait_metadata(control.name, "sync")
        assert getattr(widget, control.name) == control.default
    assert widget.values == engine.run(name, {})["values"]
    assert widget.chart["words"] == engine.run(name, {})["words"]
    assert widget.spec == {**widget.spec, "name": name}


def test_setting_a_trait_computes_and_pushes_the_chart(sent: list[Any]) -> None:
    widget = experiment("scaling-explorer")
    seen: list[int] = []
    widget.observe(lambda change: seen.append(change["new"]), names=["ranks"])
    sent.clear()
    widget.ranks = 64
    assert seen == [64]
    assert updates(sent, "ranks") == [64]
    charts = updates(sent, "chart")
    assert [chart["readouts"][0]["value"] for chart in charts] == ["21.5×"]
    assert widget.chart == charts[-1]


def test_text_with_a_unit_is_read(sent: list[Any]) -> None:
    widget = experiment("scaling-explorer", bandwidth="100 Gb/s", latency_s="5 us")
    assert widget.bandwidth == 12.5e9
    assert widget.latency_s == pytest.approx(5e-6)
    widget.gradient_bytes = "25 MiB"
    assert widget.gradient_bytes == 25 * 2**20


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ranks", 0, "ranks must be a whole number from 1 to 4096, not 0"),
        ("ranks", "many", "ranks must be a whole number"),
        ("scaling", "sideways", "scaling must be one of 'weak', 'strong', not 'sideways'"),
        ("bandwidth", "2 TB/s", "bandwidth must be from 100 MB/s to 1 TB/s, not 2 TB/s"),
        ("overlap", -0.1, "overlap must be"),
        ("source_points", 1, "source_points must be True or False, not 1"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: Any, message: str, sent: list[Any]) -> None:
    widget = experiment("scaling-explorer")
    before, chart = widget.values, widget.chart
    with pytest.raises(traitlets.TraitError) as caught:
        setattr(widget, name, value)
    assert message in str(caught.value)
    assert widget.values == before
    assert widget.chart == chart


def test_bad_starts_are_value_errors(sent: list[Any]) -> None:
    with pytest.raises(ValueError, match="control must be one of ranks"):
        experiment("scaling-explorer", speed=3)
    with pytest.raises(ValueError, match="preset must be one of"):
        experiment("scaling-explorer", preset="moon")
    with pytest.raises(ValueError, match="name must be the name of an experiment"):
        experiment("no-such")


def test_presets_and_several_values_at_once(sent: list[Any]) -> None:
    widget = experiment("scaling-explorer", preset="h100-nvlink", ranks=4)
    assert (widget.ranks, widget.bandwidth) == (4, 436e9)
    sent.clear()
    widget.set_values(preset="source-2gb")
    assert widget.values == widget.presets()["source-2gb"]
    assert len(updates(sent, "chart")) == 1  # one computation for all of them
    before = widget.values
    with pytest.raises(ValueError, match="ranks must be"):
        widget.set_values(bandwidth=5e9, ranks=0)
    assert widget.values == before


def test_the_browser_sets_traits_and_gets_one_chart(sent: list[Any]) -> None:
    widget = experiment("scaling-explorer")
    seen: list[str] = []
    widget.observe(lambda change: seen.append(change["name"]), names=["ranks", "bandwidth"])
    sent.clear()
    from_browser(widget, {**widget.values, "ranks": 512, "bandwidth": "2 GB/s"}, "view.7")
    assert (widget.ranks, widget.bandwidth) == (512, 2e9)
    assert sorted(seen) == ["bandwidth", "ranks"]
    charts = updates(sent, "chart")
    assert [(chart["asked"], chart["values"]["bandwidth"]) for chart in charts] == [("view.7", 2e9)]


def test_the_browser_is_told_what_is_wrong(sent: list[Any]) -> None:
    widget = experiment("scaling-explorer")
    before = widget.values
    sent.clear()
    from_browser(widget, {**before, "bandwidth": "5 furlongs"}, "view.3")
    answers = [data["content"] for kind, data in sent if data.get("method") == "custom"]
    assert [answer["asked"] for answer in answers] == ["view.3"]
    assert "furlongs" in answers[0]["error"]
    assert widget.values == before
    assert updates(sent, "chart") == []


def test_one_control_limits_another(sent: list[Any]) -> None:
    widget = experiment("ring-stepper", ranks=16, step=30)
    widget.ranks = 4
    assert widget.step == 6
    assert widget.chart["values"] == widget.values


def test_traits_link_with_other_widgets(sent: list[Any]) -> None:
    first, second = experiment("scaling-explorer"), experiment("scaling-explorer")
    traitlets.link((first, "ranks"), (second, "ranks"))
    first.ranks = 100
    assert second.chart["values"]["ranks"] == 100


def test_the_display_holds_the_widget_and_the_element(sent: list[Any]) -> None:
    widget = experiment("scaling-explorer", ranks=64)
    data, _ = widget._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id
    assert data["text/html"].startswith('<live-experiment name="scaling-explorer"')
    assert "21.5×" in data["text/html"]
    assert data["text/plain"].startswith("experiment('scaling-explorer', ranks=64,")
    assert data["text/html"] == widget._repr_mimebundle_()[0]["text/html"]


def test_the_module_that_the_notebook_loads_has_a_default_export(sent: list[Any]) -> None:
    widget = experiment("ring-stepper")
    assert widget._esm.rstrip().endswith("export default shardlabExperiment.default;")
    assert "var shardlabExperiment=" in widget._esm
    assert '[data-jp-theme-light="false"]' in widget._css
    assert "--sl-compute: #14549c" in widget._css


def test_plot_is_at_the_present_values(sent: list[Any]) -> None:
    widget = experiment("scaling-explorer", ranks=64)
    assert "21.5×" in widget.plot().svg()
    assert "165×" in widget.plot(ranks=512).svg()
    assert widget.ranks == 64
