"""Still pictures: accessible, coloured by the page, the same bytes every time."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure

from shardlab import figures
from shardlab.experiments import chart, engine, figure, plot, style
from shardlab.experiments.bundle import experiment_names
from shardlab.experiments.look import svg_of
from shardlab.experiments.page import experiment_html
from shardlab.experiments.static import are_short, panel_figure, panel_svg
from shardlab.models import antipatterns
from shardlab.palette import ROLES, color

ONE_OF_EACH = [
    chart.lines(
        "Lines",
        chart.axis("n", (1, 100), chart.log_ticks(1, 100), "log"),
        chart.axis("y", (0, 10), chart.even_ticks(10)),
        [
            chart.series("a", "compute", [(1, 1), (100, 9)], "strong"),
            chart.series("b", "muted", [(1, 2), (100, 9)]),
        ],
        [chart.band("band", "compute", [(1, 0, 2), (100, 8, 10)])],
        [chart.limit(5, "limit")],
        [chart.mark(10, 5, "here", "compute"), chart.mark(1, 1, "there", shape="ring")],
        "lines",
    ),
    chart.bars(
        "Bars",
        ["a", "b"],
        chart.size_axis("size", 3e9),
        [chart.stack("s", "compute", [1e9, 2e9]), chart.stack("t", "idle", [1e9, 0.5e9], "hatch")],
        [chart.limit(2e9, "limit", align="end")],
        ["1", "2"],
        "bars",
    ),
    chart.timeline(
        "Timeline",
        ["a", "b"],
        chart.time_axis("time", 0.01),
        [chart.span(0, 0, 0.004, "compute", "x"), chart.span(1, 0.002, 0.008, "idle", "y", "hatch")],
        [chart.limit(0.009, "end")],
        [chart.bracket(1, 0.004, 0.009, 0.005, "step")],
        "timeline",
    ),
    chart.graph(
        "Graph",
        [chart.node(str(n), place, "memory-gradients", 0.5) for n, place in enumerate(chart.ring_places(3))],
        [chart.arrow(0, 1, label="c"), chart.arrow(1, 0, label="d"), chart.arrow(1, 2)],
        ["one", "two"],
        "graph",
    ),
    chart.matrix(
        "Matrix",
        ["0", "1"],
        ["0", "1"],
        "rank",
        "chunk",
        [["1", "2"], ["2", "1"]],
        [[0.5, 1], [1, 0.5]],
        "memory-gradients",
        [(0, 1, "to"), (0, 0, "from")],
        "matrix",
    ),
    chart.table("Table", ["", "a"], [["x", "1"], ["y", "2"]], [1]),
]


@pytest.mark.parametrize("panel", ONE_OF_EACH, ids=lambda panel: panel["kind"])
def test_every_kind_of_panel_is_drawn(panel: dict) -> None:
    text = panel_svg(panel)
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label") == (panel["alt"] or panel["title"])
    assert text == panel_svg(panel)
    words = "".join(root.itertext())
    for label in re.findall(r'"(?:label|texts?)": "(\w+)"', str(panel).replace("'", '"')):
        if label not in ("there", "band", "s", "t"):  # these are named in the HTML above the panel
            assert label in words
    # Every colour of the palette is a variable with the light hex as its fallback.
    bare = set(re.findall(r"(?<!, )#[0-9a-f]{6}", text)) - {"#1b1e22"}
    assert bare == set()
    assert "var(--sl-" in text


def test_shapes_and_text_of_one_hex_take_different_roles() -> None:
    assert color("compute") == color("compute-text")
    assert ROLES["compute"][1] != ROLES["compute-text"][1]
    text = panel_svg(ONE_OF_EACH[0])
    assert re.search(r"<path[^>]*stroke: var\(--sl-compute, ", text)
    assert re.search(r"<text[^>]*fill: var\(--sl-compute-text, ", text)


def test_two_pictures_share_no_ids() -> None:
    ids = [set(re.findall(r' id="([^"]*)"', panel_svg(ONE_OF_EACH[0], salt))) for salt in ("a", "b")]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text in (panel_svg(ONE_OF_EACH[0]), panel_svg(ONE_OF_EACH[1])):
        named = set(re.findall(r' id="([^"]*)"', text))
        assert named == set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))


@pytest.mark.parametrize("name", experiment_names())
def test_an_experiments_element_is_small_whole_and_stable(name: str) -> None:
    for preset in engine.load(name).presets:
        text = experiment_html(name, {"preset": preset.name})
        answer = engine.run(name, {"preset": preset.name})
        assert text == experiment_html(name, {"preset": preset.name})
        tables = len([panel for panel in answer["panels"] if panel["kind"] == "table"])
        kinds = [panel["kind"] for panel in answer["panels"]]
        # A panel that has a row of its own comes a second time, as wide as a phone.
        narrow = kinds.count("timeline") + (kinds == ["bars", "table"])
        assert text.count('<div class="sl-narrow" hidden><svg') == narrow
        assert text.count("<svg") == len(kinds) - tables + narrow
        assert text.count('<div class="sl-table"') == tables
        for sentence in answer["words"]:
            assert f"<p>{sentence}</p>".replace("'", "&#x27;") in text
        assert "date" not in text.lower().replace("update", "")
    assert len(experiment_html(name, {})) < 60_000  # a time line of eighty bars comes twice


@pytest.mark.parametrize("name", experiment_names())
def test_letters_of_a_still_can_be_read_on_a_phone(name: str) -> None:
    width = 294  # of a panel on a screen of 360 pixels
    answer = engine.run(name, {})
    kinds = [panel["kind"] for panel in answer["panels"]]
    for panel in answer["panels"]:
        if panel["kind"] == "table":
            continue
        narrow = panel["kind"] == "timeline" or kinds == ["bars", "table"]
        text = panel_svg(panel, short=are_short(kinds), narrow=narrow)
        drawn = float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])  # type: ignore[index]
        sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)]
        assert min(sizes) * width / drawn >= 9, panel["title"]


def test_a_value_between_two_stops_brings_its_own_text() -> None:
    text = experiment_html("scaling-report", {"step_s": 0.0123})
    assert 'texts="{&quot;step_s&quot;: &quot;12.3 ms&quot;}"' in text.replace("\xa0", " ").replace(
        "\\u00a0", " "
    )
    assert "texts=" not in experiment_html("scaling-explorer", {})


def test_plot_draws_every_panel() -> None:
    picture = plot("scaling-explorer", preset="source-2gb", ranks=64)
    assert len(picture.figure.axes) == 3
    assert "5.90×" in picture.svg()
    assert "5.90×" in picture.alt
    assert "<figcaption>" in picture._repr_html_()
    with pytest.raises(ValueError, match="ranks must be"):
        plot("scaling-explorer", ranks=0)


def test_plot_writes_files(tmp_path) -> None:
    for suffix in ("png", "pdf", "svg"):
        plot("ring-stepper").save(tmp_path / f"ring.{suffix}")
        assert (tmp_path / f"ring.{suffix}").stat().st_size > 1000


def test_figure_wraps_any_figure() -> None:
    with style():
        fig = Figure(figsize=(4, 2))
        fig.subplots().plot([0, 1], [0, 1], color=color("communication"), label="x")
    html = figure(fig, alt='a <b> & "c"', caption="rises & falls")._repr_html_()
    assert html.startswith('<figure class="sl-figure"')
    assert 'aria-label="a &lt;b&gt; &amp; &quot;c&quot;"' in html
    assert "<figcaption>rises &amp; falls</figcaption>" in html
    assert "var(--sl-communication, #e08214)" in html
    assert html == figure(fig, alt='a <b> & "c"', caption="rises & falls")._repr_html_()
    with pytest.raises(ValueError, match="alt must say"):
        figure(fig, alt=" ")


def test_a_figure_may_bring_a_narrow_drawing_for_phones() -> None:
    wide, narrow = Figure(figsize=(7, 2)), Figure(figsize=(4.4, 3))
    html = figure(wide, alt="a line", narrow=narrow)._repr_html_()
    assert re.search(r'^<figure [^>]*><div class="sl-narrow" hidden><svg [^<]*/></div><svg ', html)
    assert html.count('aria-label="a line"') == 2
    assert "sl-narrow" not in figure(wide, alt="a line")._repr_html_()


def _drawn(name: str) -> Any:
    """A figure of the chapters; two of them take what their chapter computes."""
    if name == "damage_overview":
        return figures.damage_overview(antipatterns.setting(ranks=64, bandwidth=50e9, tokens=8192))
    if name == "pipeline_timelines":
        return figures.pipeline_timelines((("interleaved-1f1b", 8, 2), ("zb-h1", 8, 1)))
    return getattr(figures, name)()


@pytest.mark.parametrize("name", figures.__all__)
def test_letters_of_a_narrow_figure_can_be_read_on_a_phone(name: str) -> None:
    width = 328  # of the text on a screen of 360 pixels
    text = svg_of(_drawn(name).narrow, "alt")
    drawn = float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])  # type: ignore[index]
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)]
    assert min(sizes) * width / drawn >= 9


def test_figure_closes_a_pyplot_figure_so_that_it_is_shown_once() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    fig, axes = plt.subplots()
    axes.plot([1, 2])
    number = fig.number
    figure(fig, alt="a line")
    assert not plt.fignum_exists(number)


def test_style_is_taken_back_after_a_block_and_stays_without_one() -> None:
    before = matplotlib.rcParams["axes.spines.top"]
    with style():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert matplotlib.rcParams["axes.spines.top"] is before
    with matplotlib.rc_context():
        style()
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert matplotlib.rcParams["axes.spines.top"] is before


def test_panels_have_their_titles_outside_the_picture() -> None:
    for panel in ONE_OF_EACH:
        assert not [axes for axes in panel_figure(panel).axes if axes.get_title()]


def test_text_keeps_its_weight_and_its_slant() -> None:
    picture = Figure(figsize=(2, 1))
    for words, look in (("plain", {}), ("slanted", {"style": "italic"}), ("strong", {"weight": "bold"})):
        picture.text(0.1, 0.5, words, **look)
    styles = {
        words: style
        for style, words in re.findall(r'<text style="([^"]*)"[^>]*>(\w+)<', svg_of(picture, "alt"))
    }
    assert "font-style: italic" in styles["slanted"]
    assert "font-weight: bold" in styles["strong"]
    assert "font-style" not in styles["plain"] + styles["strong"]
    assert "font-weight" not in styles["plain"] + styles["slanted"]
