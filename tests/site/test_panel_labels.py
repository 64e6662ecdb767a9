"""Words in the live charts: at values at which they used to meet, none lies on another, wide and narrow."""

import json
from pathlib import Path

import pytest

from shardlab.experiments.engine import run_json
from tests.experiment_page import FILES, experiment_page

pytestmark = pytest.mark.browser

WEB = Path(__file__).resolve().parents[2] / "src/shardlab/web"
CASES = [
    ("scaling-explorer", {}),
    ("scaling-explorer", {"bandwidth": 10e9, "ranks": 2}),
    ("scaling-explorer", {"bandwidth": 100e9, "ranks": 64}),
    ("checkpoint-interval", {"guess_s": 10}),
    ("checkpoint-interval", {"guess_s": 600, "gpus": 131072, "gpu_mtbf_s": 4320000, "show_answer": True}),
    ("accumulation", {}),
    ("accumulation", {"accumulation": 64}),
]
# Pairs of words in a chart of curves of which one covers a part of the other, and words that leave the picture.
MEETING = """() => [...document.querySelectorAll('.sl-panel[data-kind="lines"] svg')].flatMap((picture) => {
  const frame = picture.getBoundingClientRect();
  const words = [...picture.querySelectorAll("text")].map((text) => {
    const box = text.getBoundingClientRect();
    const part = 0.2 * box.height; // letters do not fill their line
    return { text: text.textContent, left: box.left, right: box.right, top: box.top + part, bottom: box.bottom - part };
  });
  const bad = words.filter(({ left, right }) => left < frame.left - 1 || right > frame.right + 1).map(({ text }) => [text]);
  words.forEach((one, index) => words.slice(index + 1).forEach((other) => {
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (across > 1 && down > 0) bad.push([one.text, other.text]);
  }));
  return bad;
})"""


@pytest.fixture(scope="module")
def site(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in FILES:
        (folder / name).write_bytes((WEB / name).read_bytes())
    # The charts come from Python as they do in the page's worker; only the worker is left out.
    for number, (name, values) in enumerate(CASES):
        chart = json.loads(run_json(name, json.dumps(values)))
        assert "error" not in chart, chart
        page = experiment_page(name, {"chart": chart}, "() => given.chart")
        (folder / f"{number}.html").write_text(page, encoding="utf-8")
    return serve(folder)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_no_word_lies_on_another(number, width, site, open_page, settle):
    page = open_page(f"{site}/{number}.html", width=width)
    page.locator(".sl-panel[data-kind=lines] svg text").first.wait_for()
    settle(page)
    assert page.evaluate(MEETING) == []
    assert page.faults == []
