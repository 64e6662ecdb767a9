"""The inline marks of question texts, as HTML and as plain text."""

from __future__ import annotations

import re
from html import escape

# Longer marks first: ** is not two *.
_MARKS = (
    (re.compile(r"\*\*(.+?)\*\*"), "strong"),
    (re.compile(r"\*(.+?)\*"), "em"),
    (re.compile(r"`(.+?)`"), "code"),
    (re.compile(r"~(.+?)~"), "sub"),
    (re.compile(r"\^(.+?)\^"), "sup"),
)
# A number stays on one line with its unit.
_UNIT = re.compile(r"(?<=\d) (?=%|(?:s|ms|µs|h|B|kB|MB|GB|GB/s|MB/s|Gb/s)\b)")


def to_html(text: str) -> str:
    """HTML with the marks as elements and everything else escaped; numbers stay with their units."""
    html = _UNIT.sub("\u00a0", escape(text, quote=False))
    for pattern, tag in _MARKS:
        html = pattern.sub(rf"<{tag}>\1</{tag}>", html)
    return html


def to_plain(text: str) -> str:
    """The text without its marks."""
    for pattern, _ in _MARKS:
        text = pattern.sub(r"\1", text)
    return text
