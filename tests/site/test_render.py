"""An experiment whose number of panels changes: a panel that comes back is drawn again."""

import json
from pathlib import Path

import pytest

from shardlab.experiments.controls import description
from shardlab.experiments.engine import load, run_json
from shardlab.palette import css

pytestmark = pytest.mark.browser

WEB = Path(__file__).resolve().parents[2] / "src/shardlab/web"
NAME = "antipatterns"
PANELS = (
    "[...document.querySelectorAll('.sl-panel')].map((panel) => Boolean(panel.querySelector('svg, table')))"
)


@pytest.fixture(scope="module")
def site(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in ("experiment.js", "experiment.css"):
        (folder / name).write_bytes((WEB / name).read_bytes())
    charts = {str(on).lower(): json.loads(run_json(NAME, json.dumps({"fault": on}))) for on in (True, False)}
    given = json.dumps({"spec": description(load(NAME)), "charts": charts}).replace("<", "\\u003c")
    (folder / "index.html").write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{NAME}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{css()} body {{ font: 16px/1.5 system-ui, sans-serif; }}</style>"
        '<link rel="stylesheet" href="experiment.css"><script src="experiment.js"></script></head>'
        f"<body><main></main><script>const given = {given};\n"
        "const engine = { compute: async ({ fault }) => given.charts[fault] };\n"
        'shardlabExperiment.renderExperiment(document.querySelector("main"), given.spec, engine, {}).ask();\n'
        "</script></body></html>",
        encoding="utf-8",
    )
    return serve(folder)


def test_a_panel_that_comes_back_is_drawn(site, open_page):
    page = open_page(site)
    switch = page.locator("main input[type=checkbox]").first
    for panels in (2, 1, 2):
        page.wait_for_function(f"() => document.querySelectorAll('.sl-panel').length === {panels}")
        page.wait_for_function(f"() => {PANELS}.every(Boolean)")
        switch.click()
    assert page.faults == []
