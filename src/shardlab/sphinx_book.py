"""Sphinx extension for the book's own blocks: price tags and the ledger, written from one source."""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from shardlab import __version__
from shardlab.price_tags import ledger_html, price_tag


class PriceTagDirective(SphinxDirective):  # type: ignore[misc]
    """``{price-tag} data`` writes one tag."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        try:
            html = price_tag(self.arguments[0])._repr_html_()
        except ValueError as error:
            raise self.error(str(error)) from None
        return [nodes.raw("", html, format="html")]


class LedgerDirective(SphinxDirective):  # type: ignore[misc]
    """``{ledger}`` writes all tags side by side."""

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", ledger_html(), format="html")]


def _name_folded_cells_as_they_read(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """myst-nb gives the summary of a folded cell another name than the one it shows: speech input then misses it."""
    if context.get("body"):
        context["body"] = context["body"].replace(' aria-label="Toggle hidden content"', "")


_NAMES = r"[a-z_0-9]+(?:, [a-z_0-9]+)*"


def _one_argument_a_line(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings may describe several arguments on one line, which napoleon takes for the first one's words.

    Each gets a line of its own here; a description such as ``N.`` is kept from being read as a list's number.
    """
    known = set(getattr(obj, "__annotations__", {}))
    if callable(obj):
        with contextlib.suppress(TypeError, ValueError):
            known |= set(inspect.signature(obj).parameters)
    inside = False
    written: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            inside = line in {"Args:", "Attributes:"}
        start = 0
        for match in re.finditer(rf"[.;] (?=({_NAMES}): )", line if inside else ""):
            if known.issuperset(match[1].split(", ")):
                part = line[start : match.end()].rstrip()
                written.append(f"    {part}" if start else part)
                start = match.end()
        written.append(f"    {line[start:]}" if start else line)
    lines[:] = [re.sub(rf"^(    {_NAMES}: )(?=[A-Za-z]\.(?: |$))", r"\1\\", line) for line in written]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    # jupyter-book always sets this; the extension that owns it is left out, as it reaches for other hosts.
    app.add_config_value("comments_config", {}, "html")
    app.add_directive("price-tag", PriceTagDirective)
    app.add_directive("ledger", LedgerDirective)
    app.connect("html-page-context", _name_folded_cells_as_they_read)
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _one_argument_a_line, priority=400)  # before napoleon
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
