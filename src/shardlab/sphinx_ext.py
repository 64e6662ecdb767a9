"""Sphinx extension for the book: live experiments, predictions, quizzes and MathJax from the site's own files.

Add ``shardlab.sphinx_ext`` to ``extensions``. It

- writes ``_static/shardlab/`` into the built site: scripts, styles, the palette, the WebAssembly engine, and for
  each experiment its description and the Python files that it runs;
- loads scripts of experiments, predictions and quizzes only on pages that hold one;
- points MathJax to the copy in the package, so that no page reaches for another host;
- lets notebooks' live experiments appear as plain elements instead of widgets;
- adds a directive for Markdown pages::

      ```{experiment} scaling-explorer
      :preset: h100-nvlink
      :values: ranks=64, bandwidth=100 Gb/s
      ```
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from shardlab import __version__, palette
from shardlab.experiments.bundle import experiment_names, python_files
from shardlab.experiments.controls import description
from shardlab.experiments.engine import load
from shardlab.experiments.page import experiment_html

WEB = Path(__file__).parent / "web"
FOLDER = "shardlab"
_COPIED = (
    "experiment.js",
    "experiment.css",
    "page.js",
    "predict.js",
    "predict.css",
    "quiz.js",
    "quiz.css",
    "worker.js",
    "micropython.wasm",
    "LICENSES.txt",
)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:10]


def _write(file: Path, content: bytes) -> None:
    """Write what is new; leave the time stamp of what is the same."""
    if not file.is_file() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _spec_script(name: str, python_path: str) -> str:
    """Tells the page about one experiment: its controls, and where its engine's files are.

    Addresses carry a hash of the content, so that a browser never mixes files of two versions of the book.
    """
    entry = {
        "spec": description(load(name)),
        "python": python_path,
        "worker": f"worker.js?v={_hash((WEB / 'worker.js').read_bytes())}",
        "wasm": f"micropython.wasm?v={_hash((WEB / 'micropython.wasm').read_bytes())}",
    }
    text = json.dumps(entry, ensure_ascii=False, sort_keys=True)
    return f"(globalThis.shardlabExperiments ??= {{}})[{json.dumps(name)}] = {text};\n"


def write_assets(folder: Path) -> None:
    """Write everything that the pages load into ``folder``."""
    for name in _COPIED:
        if (WEB / name).is_file():
            _write(folder / name, (WEB / name).read_bytes())
    shutil.copytree(WEB / "mathjax", folder / "mathjax", dirs_exist_ok=True)
    _write(folder / "palette.css", palette.css().encode())
    bundles = {name: python_files(name) for name in experiment_names()}
    shutil.rmtree(folder / "python", ignore_errors=True)
    for name, files in bundles.items():
        content = json.dumps(files, ensure_ascii=False, sort_keys=True).encode()
        path = f"python/{name}.{_hash(content)}.json"
        _write(folder / path, content)
        _write(folder / "experiments" / f"{name}.js", _spec_script(name, path).encode())
    # A page opened from a disk may run scripts beside it but not fetch files: one script holds the whole engine.
    offline = {
        "source": (WEB / "worker.js").read_text("utf-8"),
        "wasm": base64.b64encode((WEB / "micropython.wasm").read_bytes()).decode(),
        "python": bundles,
    }
    text = json.dumps(offline, ensure_ascii=False, sort_keys=True)
    _write(folder / "offline.js", f"globalThis.shardlabOffline = {text};\n".encode())


def _values_option(argument: str) -> dict[str, Any]:
    """``ranks=64, scaling=strong, source_points=false`` as control values; numbers and booleans are read as such."""
    values: dict[str, Any] = {}
    for part in argument.split(","):
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"values must look like 'ranks=64, bandwidth=2 GB/s', not {argument!r}")
        text = text.strip()
        try:
            values[name.strip()] = json.loads(text)
        except ValueError:
            values[name.strip()] = text
    return values


class ExperimentDirective(SphinxDirective):  # type: ignore[misc]
    """``{experiment} name`` with optional ``:preset:`` and ``:values:``."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"preset": directives.unchanged, "values": _values_option}

    def run(self) -> list[nodes.Node]:
        given = dict(self.options.get("values", {}))
        if "preset" in self.options:
            given["preset"] = self.options["preset"]
        salt = f"{self.env.docname}-{self.env.new_serialno('experiment')}"
        try:
            html = experiment_html(self.arguments[0], given, salt)
        except ValueError as error:
            raise self.error(str(error)) from None
        for path in python_files(self.arguments[0]):
            # The still picture on the page is renewed when the model behind it changes.
            if path.startswith("shardlab/"):
                self.env.note_dependency(str(WEB.parents[1] / path))
        return [nodes.raw("", html, format="html")]


def _configure(app: Sphinx, config: Any) -> None:
    if config.mathjax_path.startswith(("http:", "https:", "//")):
        config.mathjax_path = f"{FOLDER}/mathjax/tex-chtml.js"
        settings = config.mathjax3_config or {}
        # The menu would load renderers and a speech engine that the site does not carry, and it makes every
        # formula a stop for the Tab key. Screen readers get MathML.
        settings.setdefault("options", {}).setdefault("enableMenu", False)
        config.mathjax3_config = settings
    if "nb_mime_priority_overrides" in config and not config.nb_mime_priority_overrides:
        # An experiment's output holds a widget view and an element: without a kernel the element is the one that lives.
        config.nb_mime_priority_overrides = [("html", "text/html", 0)]


def _write_into_site(app: Sphinx) -> None:
    # Before the pages are written, because Sphinx puts a checksum of each file into the pages' links.
    if app.builder.format == "html":
        write_assets(Path(app.outdir) / "_static" / FOLDER)


def _load_what_the_page_uses(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    body = context.get("body") or ""
    app.add_css_file(f"{FOLDER}/palette.css")
    app.add_js_file(f"{FOLDER}/page.js", loading_method="defer")
    if "<live-experiment" in body or "sl-figure" in body:
        app.add_css_file(f"{FOLDER}/experiment.css")
    if "<live-experiment" in body:
        for name in experiment_names():
            if f'<live-experiment name="{name}"' in body:
                app.add_js_file(f"{FOLDER}/experiments/{name}.js", loading_method="defer")
        app.add_js_file(f"{FOLDER}/experiment.js", loading_method="defer")
    for element in ("predict", "quiz"):
        if f"<book-{element}" in body:
            app.add_css_file(f"{FOLDER}/{element}.css")
            app.add_js_file(f"{FOLDER}/{element}.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("sphinx.ext.mathjax")
    app.add_directive("experiment", ExperimentDirective)
    app.connect("config-inited", _configure)
    app.connect("builder-inited", _write_into_site)
    app.connect("html-page-context", _load_what_the_page_uses)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
