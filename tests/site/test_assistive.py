"""Experiment, quiz and prediction for those who do not see them, or see them in their own colours, sizes and spacing."""

import json
from pathlib import Path

import pytest

from shardlab.experiments.controls import description
from shardlab.experiments.engine import load, run_json
from shardlab.palette import css
from shardlab.predictions import html as prediction_html
from shardlab.quiz import html as quiz_html

pytestmark = pytest.mark.browser

WEB = Path(__file__).resolve().parents[2] / "src/shardlab/web"
FILES = ("experiment.js", "experiment.css", "predict.js", "predict.css", "quiz.js", "quiz.css")
ELEMENTS = ("main", "book-predict", "book-quiz")
# WCAG 2.2, 1.4.12: what a reader may ask for, and the page must bear.
SPACING = """* { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important }
p { margin-bottom: 2em !important }"""
ROOTS = """[document, ...[...document.querySelectorAll("book-predict, book-quiz")].map(({ shadowRoot }) => shadowRoot)]"""
SPACE_OUT = f"""(css) => {ROOTS}.forEach((root) => {{
  const style = document.createElement("style");
  style.textContent = css;
  (root.head ?? root).append(style);
}})"""
# What holds text and hides a part of it.
CUT = f"""() => {ROOTS}.flatMap((root) => [...root.querySelectorAll("button, label, legend, p, li, dt, dd, h3, h4, strong")])
  .filter((block) => block.clientWidth && !block.closest(".sl-hidden, .sr") && getComputedStyle(block).display !== "inline")
  .filter((block) => {{
    const {{ overflowX, overflowY }} = getComputedStyle(block);
    return (overflowX !== "visible" && block.scrollWidth > block.clientWidth + 1)
      || (overflowY !== "visible" && block.scrollHeight > block.clientHeight + 1)
      || block.getBoundingClientRect().right > innerWidth + 1;
  }}).map((block) => block.textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def site(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in FILES:
        (folder / name).write_bytes((WEB / name).read_bytes())
    name = "scaling-explorer"
    charts = {ranks: json.loads(run_json(name, json.dumps({"ranks": ranks}))) for ranks in (8, 64)}
    given = json.dumps({"spec": description(load(name)), "charts": charts}).replace("<", "\\u003c")
    links = "".join([f'<link rel="stylesheet" href="{file}">' for file in FILES if file.endswith(".css")])
    scripts = "".join([f'<script src="{file}"></script>' for file in FILES if file.endswith(".js")])
    (folder / "index.html").write_text(
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>All three</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{css()} body {{ font: 16px/1.5 system-ui, sans-serif; }}</style>{links}{scripts}</head>"
        f"<body><h1>All three</h1><h2>Play</h2><main></main>{prediction_html('c03')}{quiz_html('q3')}"
        f"<script>const given = {given};\n"
        "const engine = { compute: async ({ ranks }) => given.charts[ranks] };\n"
        'const view = shardlabExperiment.renderExperiment(document.querySelector("main"), given.spec, engine, {});\n'
        "view.ask();</script></body></html>",
        encoding="utf-8",
    )
    return serve(folder)


@pytest.fixture
def page_of(site, open_page):
    def start(**options):
        page = open_page(site, **options)
        page.locator(".sl-panel svg text").first.wait_for()
        page.locator("book-quiz legend").first.wait_for()
        return page

    return start


def accessible(page, selector):
    """The nodes of an element's accessibility tree that a screen reader is given, as dicts."""
    session = page.context.new_cdp_session(page)
    session.send("DOM.enable")
    session.send("Accessibility.enable")
    root = session.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    node = session.send("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
    backend = session.send("DOM.describeNode", {"nodeId": node})["node"]["backendNodeId"]
    nodes = {each["nodeId"]: each for each in session.send("Accessibility.getFullAXTree")["nodes"]}
    start = next(each for each in nodes.values() if each.get("backendDOMNodeId") == backend)
    found, todo = [], [start]
    while todo:
        each = todo.pop()
        todo += [nodes[child] for child in each.get("childIds", []) if child in nodes]
        if not each.get("ignored"):
            properties = {one["name"]: one["value"].get("value") for one in each.get("properties", [])}
            name = each.get("name", {}).get("value", "")
            found.append({"role": each["role"]["value"], "name": name, **properties})
    session.detach()
    return found


def test_what_takes_the_focus_has_a_name_and_regions_are_there_before_they_speak(page_of):
    page = page_of()
    for selector in ELEMENTS:
        nodes = accessible(page, selector)
        stops = [node for node in nodes if node.get("focusable")]
        assert len(stops) >= 4
        assert [node for node in stops if not node["name"].strip()] == []
        assert any(node.get("live") == "polite" for node in nodes), selector
    assert any(node["role"] == "alert" for node in accessible(page, "main"))


def test_an_experiment_says_what_the_reader_changed_and_nothing_before(page_of):
    page = page_of()
    region = page.locator("main [role=status]")
    page.wait_for_timeout(1500)  # it speaks after 700 ms of quiet
    assert region.inner_text() == ""
    page.locator("main .sl-value").first.fill("64")
    page.keyboard.press("Enter")
    words = page.evaluate("given.charts[64].words.slice(0, 2).join(' ')")
    page.wait_for_function(
        "(words) => document.querySelector('main [role=status]').textContent === words", arg=words
    )
    # Whoever walks through the page later finds them once, in the text.
    page.wait_for_function("document.querySelector('main [role=status]').textContent === ''", timeout=60_000)
    assert page.locator("main .sl-words").inner_text().startswith(words.split(".")[0])


def test_a_number_that_cannot_be_read_is_marked_in_its_field(page_of):
    page = page_of()
    part = page.locator('book-quiz [data-part$="/speedup"]')
    field = part.locator("input")
    field.fill("many")
    part.get_by_role("button", name="Check").click()
    assert field.get_attribute("aria-invalid") == "true"
    field.fill("2.91")
    part.get_by_role("button", name="Check").click()
    assert field.get_attribute("aria-invalid") == "false"


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (640, 400), (360, 740)])
def test_wider_spacing_and_twice_the_size_cut_nothing(width, height, page_of):
    """640 pixels are a screen of 1280 at 200 %."""
    page = page_of(width=width, height=height)
    page.evaluate(SPACE_OUT, SPACING)
    page.wait_for_function("document.fonts.status === 'loaded'")
    assert page.evaluate(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_systems_colours_leave_keys_and_the_chosen_preset(site, page_of):
    page = page_of()
    page.emulate_media(forced_colors="active")
    key = "getComputedStyle(document.querySelector('.sl-key .sl-key-band'), '::before').backgroundColor"
    canvas = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.evaluate(key) != canvas
    pressed, other = (
        page.locator(f'main button[aria-pressed="{state}"]').first.evaluate(
            "(button) => getComputedStyle(button).borderTopWidth"
        )
        for state in ("true", "false")
    )
    assert (pressed, other) == ("3px", "1px")
