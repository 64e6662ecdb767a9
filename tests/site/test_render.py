"""An experiment whose number of panels changes: a panel that comes back is drawn again."""

import json
from pathlib import Path

import pytest

from shardlab.experiments.engine import run_json
from tests.experiment_page import FILES, experiment_page

pytestmark = pytest.mark.browser

WEB = Path(__file__).resolve().parents[2] / "src/shardlab/web"
NAME = "antipatterns"
PANELS = (
    "[...document.querySelectorAll('.sl-panel')].map((panel) => Boolean(panel.querySelector('svg, table')))"
)


@pytest.fixture(scope="module")
def site(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in FILES:
        (folder / name).write_bytes((WEB / name).read_bytes())
    charts = {str(on).lower(): json.loads(run_json(NAME, json.dumps({"fault": on}))) for on in (True, False)}
    page = experiment_page(NAME, {"charts": charts}, "({ fault }) => given.charts[fault]")
    (folder / "index.html").write_text(page, encoding="utf-8")
    return serve(folder)


def test_a_panel_that_comes_back_is_drawn(site, open_page):
    page = open_page(site)
    switch = page.locator("main input[type=checkbox]").first
    for panels in (2, 1, 2):
        page.wait_for_function(f"() => document.querySelectorAll('.sl-panel').length === {panels}")
        page.wait_for_function(f"() => {PANELS}.every(Boolean)")
        switch.click()
    assert page.faults == []
