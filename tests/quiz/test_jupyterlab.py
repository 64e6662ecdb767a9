"""Quiz, prediction and experiment in a real JupyterLab: they keep its shortcuts out, and the kernel knows what was typed."""

from __future__ import annotations

import sys
import time

import nbformat
import pytest

from tests.jupyter_server import jupyter_lab

pytestmark = pytest.mark.browser

LIMIT_S = 240
CELLS = [
    "from shardlab.quiz import quiz\nq = quiz('q3')\nq",
    "print(q.progress()['chapter'].right, q.answers['chapter/speedup']['misconception'])\n"
    "print(repr(q.answers['chapter/explain']['response']['text']))",
    "q.answers = {}",
    "from shardlab.predictions import predict\nmine = {8: 8.0, 64: 64.0, 512: 512.0}\npredict('c03', mine)",
    "print(mine)",
    "from shardlab.experiments import experiment\nlive = experiment('scaling-explorer')\nlive",
    "print(live.ranks, 'ranks')",
]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab with one notebook."""
    work = tmp_path / "work"
    work.mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, work / "quiz.ipynb")
    command = [sys.executable, "-m", "jupyter", "lab", f"--ServerApp.root_dir={work}"]
    with jupyter_lab(command, tmp_path / "jupyter") as address:
        yield address


@pytest.mark.timeout(1200)
def test_a_quiz_a_prediction_and_an_experiment_in_jupyterlab(lab, open_page):
    page = open_page(f"{lab}/lab/tree/quiz.ipynb?reset")
    page.set_default_timeout(LIMIT_S * 1000)
    # The server starts a kernel; a cell run before it is ready would wait for it.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()

    def run(cell):
        page.locator(".jp-CodeCell .cm-content").nth(cell).click()
        page.keyboard.press("Shift+Enter")

    def output(cell):
        return page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output")

    def told_by(cell, text):
        """Runs a cell until it tells a text: what the page sends, the kernel gets after a pause in typing."""
        prompt = page.locator(".jp-CodeCell").nth(cell).locator(".jp-InputPrompt")
        until = time.monotonic() + LIMIT_S
        while True:
            before = prompt.inner_text()
            run(cell)
            while prompt.inner_text() in (before, "[*]:"):
                assert time.monotonic() < until, f"cell {cell} does not end"
                page.wait_for_timeout(100)
            if text in output(cell).inner_text():
                return
            assert time.monotonic() < until, output(cell).inner_text()
            page.wait_for_timeout(500)

    run(0)
    element = page.locator("book-quiz")
    element.locator("section").wait_for()
    assert "in the notebook's kernel" in element.locator("footer").inner_text()

    speedup = element.locator('[data-part="chapter/speedup"]')
    told = speedup.locator(".status")
    speedup.locator("input").click()
    page.keyboard.type("2.75")
    page.keyboard.press("Enter")
    told.get_by_text("Step inflation read as speedup").wait_for()

    # Keys that would delete, insert or turn cells, and a line break, which JupyterLab would swallow.
    words = element.locator('[data-part="chapter/explain"] textarea')
    words.click()
    page.keyboard.type("add bb dd", delay=150)
    page.keyboard.press("Enter")
    page.keyboard.type("xx m y 0 0")
    assert words.input_value() == "add bb dd\nxx m y 0 0"
    assert page.locator(".jp-Cell").count() == len(CELLS)

    # What the kernel knows, while the wrong answer stands.
    told_by(1, r"'add bb dd\nxx m y 0 0'")
    assert "0 step-inflation" in output(1).inner_text()

    speedup.locator("input").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("2,91")
    page.keyboard.press("Enter")
    told.get_by_text("Right: 2.91×.").wait_for()
    told_by(1, "1 None")

    # Shown anew it has the same answers; the kernel can clear them.
    run(0)
    told.get_by_text("Right: 2.91×.").wait_for()
    run(2)
    told.get_by_text("Right").wait_for(state="detached")
    assert speedup.locator("input").input_value() == ""
    assert words.input_value() == ""

    # A guess typed into a prediction is the kernel's guess, too.
    run(3)
    guess = page.locator("book-predict")
    guess.locator("input").nth(1).click()
    page.keyboard.type("20.5")
    told_by(4, "{8: 8.0, 64: 20.5, 512: 512.0}")
    guess.get_by_role("button", name="Compare with the model").click()
    guess.get_by_text("You said 20.5×: well predicted.").wait_for()

    # So do an experiment's fields, sliders and buttons, which stand in the page itself.
    run(5)
    live = page.locator(".sl-experiment")
    box = live.locator(".sl-value").first
    box.click()
    page.keyboard.press("Control+A")
    page.keyboard.type("bb dd", delay=150)
    assert box.input_value() == "bb dd"
    page.keyboard.press("Control+A")
    page.keyboard.type("64")
    page.keyboard.press("Enter")
    live.get_by_text("One step at N = 64").wait_for()
    live.get_by_role("slider").first.press("ArrowLeft")
    live.get_by_text("One step at N = 64").wait_for(state="detached")
    page.keyboard.press("ArrowRight")
    live.get_by_text("One step at N = 64").wait_for()
    live.get_by_role("button", name="Reset").focus()
    page.keyboard.type("ddbbx", delay=150)
    assert page.locator(".jp-Cell").count() == len(CELLS)
    told_by(6, "64 ranks")
    assert page.foreign == []
