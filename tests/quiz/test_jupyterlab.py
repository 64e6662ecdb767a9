"""Quiz and prediction in a real JupyterLab: they keep the notebook's shortcuts out, and the kernel knows the answers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import nbformat
import pytest

pytestmark = pytest.mark.browser

LIMIT_S = 120
CELLS = [
    "from shardlab.quiz import quiz\nq = quiz('q3')\nq",
    "print(q.progress()['chapter'].right, q.answers['chapter/speedup']['misconception'])\n"
    "print(repr(q.answers['chapter/explain']['response']['text']))",
    "q.answers = {}",
    "from shardlab.predictions import predict\nmine = {8: 8.0, 64: 64.0, 512: 512.0}\npredict('c03', mine)",
    "print(mine)",
]


@pytest.fixture
def lab(tmp_path):
    """A JupyterLab on a free port, with one notebook; gives its address and stops it whatever happens."""
    work = tmp_path / "work"
    work.mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, work / "quiz.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTERLAB_SETTINGS_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
    )
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={work}", "--ServerApp.port_retries=0"]
    with open(tmp_path / "lab.log", "w") as log:
        server = subprocess.Popen(
            command,
            env={**os.environ, **{name: str(tmp_path / name) for name in places}},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            until = time.monotonic() + LIMIT_S
            while True:
                try:
                    urllib.request.urlopen(f"{address}/api", timeout=5).close()
                    break
                except (urllib.error.URLError, OSError):
                    if server.poll() is not None or time.monotonic() > until:
                        pytest.fail((tmp_path / "lab.log").read_text()[-2000:])
                    time.sleep(0.2)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


@pytest.mark.timeout(600)
def test_a_quiz_and_a_prediction_in_jupyterlab(lab, open_page):
    page = open_page(f"{lab}/lab/tree/quiz.ipynb?reset")
    page.set_default_timeout(LIMIT_S * 1000)
    # The server starts a kernel; a cell run before it is ready would wait for it.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()

    def run(cell):
        page.locator(".jp-CodeCell .cm-content").nth(cell).click()
        page.keyboard.press("Shift+Enter")

    def output(cell):
        return page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output")

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
    page.wait_for_timeout(1000)  # answers are sent after a pause in typing
    run(1)
    output(1).get_by_text("0 step-inflation").wait_for()
    assert r"'add bb dd\nxx m y 0 0'" in output(1).inner_text()

    speedup.locator("input").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("2,91")
    page.keyboard.press("Enter")
    told.get_by_text("Right: 2.91×.").wait_for()
    page.wait_for_timeout(1000)
    run(1)
    output(1).get_by_text("1 None").wait_for()

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
    page.wait_for_timeout(500)
    run(4)
    output(4).get_by_text("{8: 8.0, 64: 20.5, 512: 512.0}").wait_for()
    guess.get_by_role("button", name="Compare with the model").click()
    guess.get_by_text("You said 20.5×: well predicted.").wait_for()
    assert page.foreign == []
