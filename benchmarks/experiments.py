"""How fast and how light is the page's engine? MicroPython beside a Pyodide core worker, in one run.

    .venv/bin/python benchmarks/experiments.py [--rounds 5] [--json out.json]

Both run the same page in the same headless Chromium with the same Python files; only the worker differs.
Needs `npm ci` in frontend/ (for Pyodide) and Chromium. Every request is local; the server compresses with gzip
and counts the bytes that it sends. Each round starts with an empty cache. Prints, for each engine:

- first result: from the first touch (focus on a control) to the first chart drawn by the engine;
- bytes: what the browser fetched for that, compressed, the script that draws included (it is the same for both);
- update, three seconds later: from a moved control to the new chart in the page with its layout done, the median over a sweep.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import mimetypes
import statistics
import tempfile
import threading
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from shardlab import palette
from shardlab.experiments.page import experiment_html
from shardlab.sphinx_ext import write_assets

ROOT = Path(__file__).resolve().parents[1]
PYODIDE = ROOT / "frontend" / "node_modules" / "pyodide"
CHROMIUM = "/usr/bin/chromium"
ARGS = ["--no-sandbox", "--disable-quic", "--disable-background-networking"]
NAME = "scaling-explorer"
# A reader looks at the first picture; the engines use the time, each in its way, to compile what runs often.
LOOK_MS = 3000

PYODIDE_WORKER = """
import { loadPyodide } from "./pyodide/pyodide.mjs";
let engine;
const starting = loadPyodide({ indexURL: new URL("pyodide/", location.href).href });
self.onmessage = async ({ data }) => {
  const python = await starting;
  if (data.files) {
    for (const [path, text] of Object.entries(data.files)) {
      if (!path.startsWith("shardlab/")) continue; // CPython needs no shim
      const file = `/book/${path}`;
      python.FS.mkdirTree(file.slice(0, file.lastIndexOf("/")));
      python.FS.writeFile(file, text);
    }
  } else if (data.name) {
    engine ??= python.runPython(
      "import sys; sys.path.insert(0, '/book')\\nfrom shardlab.experiments import engine; engine.run_json");
    self.postMessage({ result: JSON.parse(engine(data.name, JSON.stringify(data.values))) });
  }
};
"""

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ max-width: 940px; margin: auto; font-family: sans-serif }}</style>
<link rel="stylesheet" href="palette.css"><link rel="stylesheet" href="experiment.css">
<script defer src="experiments/{name}.js"></script>{swap}<script defer src="experiment.js"></script>
{body}"""

# Runs in the page: touches the experiment and waits for the first chart.
FIRST = """() => new Promise((done, failed) => {
  const start = performance.now();
  setTimeout(() => failed(new Error("no chart within two minutes")), 120000);
  addEventListener("sl-drawn", () => done(performance.now() - start), { once: true });
  document.querySelector("live-experiment input[type=range]").focus();
})"""

# Moves two sliders to and fro; a reply is complete when the layout of the new chart is.
SWEEP = """async (rounds) => {
  const times = [];
  const ranges = [...document.querySelectorAll("live-experiment input[type=range]")].slice(0, 2);
  for (let round = 0; round < rounds; round += 1) {
    for (const range of ranges) {
      for (let stop = 2; stop < Number(range.max); stop += 2) {
        const drawn = new Promise((done) => addEventListener("sl-drawn", ({ detail }) => {
          const before = performance.now();
          document.body.getBoundingClientRect();
          done([detail.compute, detail.draw + performance.now() - before]);
        }, { once: true }));
        range.value = stop;
        range.dispatchEvent(new Event("input", { bubbles: true }));
        times.push(await drawn);
      }
    }
  }
  return times;
}"""


@lru_cache
def compressed(path: str) -> bytes:
    return gzip.compress(Path(path).read_bytes(), 9)


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder, compressed, and counts what it sends."""

    def __init__(self, folder: Path) -> None:
        self.sent: dict[str, int] = {}
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        body = compressed(str(path))
        self.server.sent[path.name] = len(body)
        self.send_response(200)
        kind = "text/javascript" if path.suffix == ".mjs" else mimetypes.guess_type(path.name)[0]
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def write_pages(folder: Path) -> None:
    write_assets(folder)
    (folder / "palette.css").write_text(palette.css(), "utf-8")
    (folder / "pyodide-worker.js").write_text(PYODIDE_WORKER, "utf-8")
    (folder / "pyodide").symlink_to(PYODIDE)
    body = experiment_html(NAME, {})
    swap = '<script defer src="swap.js"></script>'
    # Pyodide runs in module workers only.
    (folder / "swap.js").write_text(
        f"shardlabExperiments[{NAME!r}].worker = 'pyodide-worker.js';\n"
        "globalThis.Worker = class extends Worker { constructor(url) { super(url, { type: 'module' }); } };\n",
        "utf-8",
    )
    for title, extra in (("micropython", ""), ("pyodide", swap)):
        page = PAGE.format(title=title, name=NAME, swap=extra, body=body)
        (folder / f"{title}.html").write_text(page, "utf-8")


def measure(page: Page, server: Server, title: str, sweeps: int) -> dict[str, Any]:
    page.goto(f"{server.address}{title}.html")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    drawing = dict(server.sent)
    server.sent.clear()
    first = page.evaluate(FIRST)
    engine = sum(server.sent.values())
    files = dict(server.sent)
    server.sent.clear()
    page.wait_for_timeout(LOOK_MS)
    updates = page.evaluate(SWEEP, sweeps)
    script = drawing.get("experiment.js", 0)
    return {
        "first_ms": first,
        "engine_bytes": engine,
        "total_bytes": engine + script,
        "updates": updates,
        "files": files,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not PYODIDE.is_dir():
        raise SystemExit("Pyodide is missing: run `npm ci` in frontend/")
    results: dict[str, list[dict[str, Any]]] = {"micropython": [], "pyodide": []}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        write_pages(Path(folder))
        server = Server(Path(folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        for _ in range(options.rounds):
            # Turn by turn, so that a busy machine slows both.
            for title, found in results.items():
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                found.append(measure(context.new_page(), server, title, options.sweeps))
                context.close()
        browser.close()
        server.shutdown()
    summary = {
        title: {
            "first_ms": statistics.median([run["first_ms"] for run in runs]),
            "engine_bytes": runs[0]["engine_bytes"],
            "total_bytes": runs[0]["total_bytes"],
            "compute_ms": statistics.median([compute for run in runs for compute, _ in run["updates"]]),
            "draw_ms": statistics.median([draw for run in runs for _, draw in run["updates"]]),
            "update_ms": statistics.median([sum(times) for run in runs for times in run["updates"]]),
            "update_ms_90": statistics.quantiles(
                [sum(times) for run in runs for times in run["updates"]], n=10
            )[-1],
            "files": runs[0]["files"],
        }
        for title, runs in results.items()
    }
    for title, row in summary.items():
        print(
            f"{title:12} first result {row['first_ms']:7.0f} ms   engine {row['engine_bytes'] / 1e3:7.0f} kB gz "
            f"(with the drawing script {row['total_bytes'] / 1e3:.0f})   "
            f"update {row['update_ms']:5.1f} ms median, {row['update_ms_90']:.1f} ms 90 % "
            f"(compute {row['compute_ms']:.1f}, draw and layout {row['draw_ms']:.1f})"
        )
    ours, theirs = summary["micropython"], summary["pyodide"]
    print(
        f"Pyodide / MicroPython: first result {theirs['first_ms'] / ours['first_ms']:.1f}×, "
        f"engine bytes {theirs['engine_bytes'] / ours['engine_bytes']:.1f}×, "
        f"all bytes {theirs['total_bytes'] / ours['total_bytes']:.1f}×, "
        f"update {theirs['update_ms'] / ours['update_ms']:.2f}×"
    )
    print(f"aims: first result ≥ 10×, bytes ≥ 10×, update < 16 ms (here {ours['update_ms']:.1f} ms)")
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1), "utf-8")


if __name__ == "__main__":
    main()
