"""What the book's elements need in a page or a notebook: their script as a module, their data beside it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def es_module(script: str, exports: str) -> str:
    """A page's script as an ES module, for anywidget.

    Args:
        script: name of a file in ``shardlab/web``: a classic script, so that pages opened from a disk work as well.
        exports: the global in which it puts its exports.
    """
    text = (files("shardlab") / "web" / script).read_text(encoding="utf-8")
    return f"{text}\nexport default {exports}.default;\n"


def json_script(data: Any) -> str:
    """Data as a ``<script type="application/json">`` element; the same bytes every time."""
    # "<" would let a text end the script element.
    encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{encoded}</script>'
