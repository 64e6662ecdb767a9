"""Sphinx extension for the book's own blocks: price tags and the ledger, written from one source."""

from __future__ import annotations

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


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    # jupyter-book always sets this; the extension that owns it is left out, as it reaches for other hosts.
    app.add_config_value("comments_config", {}, "html")
    app.add_directive("price-tag", PriceTagDirective)
    app.add_directive("ledger", LedgerDirective)
    app.connect("html-page-context", _name_folded_cells_as_they_read)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
