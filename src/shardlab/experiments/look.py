"""The book's look in matplotlib, and pictures that follow the page: SVG whose colours are the palette's CSS variables."""

from __future__ import annotations

import hashlib
import io
import re
from html import escape
from types import TracebackType
from typing import Any
from xml.etree import ElementTree

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

from shardlab.palette import ROLES

_RC: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": ROLES["muted"][0],
    "axes.grid": True,
    "axes.labelcolor": ROLES["text"][0],
    "axes.labelsize": 11,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.prop_cycle": cycler(
        color=[ROLES[role][0] for role in ("compute", "communication", "memory-gradients")]
    ),
    "figure.dpi": 100,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "grid.color": ROLES["grid"][0],
    "grid.linewidth": 0.8,
    "hatch.linewidth": 1.0,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "savefig.facecolor": "none",
    "text.color": ROLES["text"][0],
    "xtick.color": ROLES["muted"][0],
    "xtick.labelsize": 11,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": ROLES["muted"][0],
    "ytick.labelsize": 11,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}
# What makes the same figure the same bytes: no date, ids from a fixed salt, text kept as text.
_SVG_RC = {"svg.fonttype": "none", "svg.hashsalt": "shardlab", "path.simplify": True}

_CSS_PIXELS_PER_INCH = 96


class style:
    """The book's matplotlib look: ``style()`` sets it for the session, ``with style():`` for a block.

    Colours come from :mod:`shardlab.palette`; backgrounds are transparent, so that a figure suits a dark page.
    """

    def __init__(self) -> None:
        self._before = {name: matplotlib.rcParams[name] for name in _RC}
        matplotlib.rcParams.update(_RC)

    def __enter__(self) -> style:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        matplotlib.rcParams.update(self._before)


HALO = "halo"
"""A text artist with this gid stands on the page's colour, so that lines behind it do not cross it."""

_SVG_NAMESPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_NUMBER = re.compile(r"-?\d+\.\d+")
_PLAIN_COLOR = re.compile(r"(?<!, )#[0-9a-fA-F]{6}\b")


def _variable(shade: str, is_text: bool) -> str:
    """``var(--sl-role, #hex)`` for a palette colour; roles that share a hex are told apart by what is drawn."""
    roles = [role for role, pair in ROLES.items() if pair[0] == shade.lower()]
    if not roles:
        return shade
    # Text has roles of its own, because it needs more contrast.
    order = ("text", "muted") if is_text else ("limit", "muted")
    rank = {role: (role not in order, role.endswith("-text") != is_text) for role in roles}
    return f"var(--sl-{min(roles, key=lambda role: rank[role])}, {shade.lower()})"


def _short_number(found: re.Match[str]) -> str:
    return f"{float(found.group(0)):.2f}".rstrip("0").rstrip(".")


def _restyle(element: ElementTree.Element, halo: bool) -> None:
    is_text = element.tag == "text"
    style = dict(
        [part.strip().split(": ", 1) for part in element.get("style", "").split(";") if part.strip()]
    )
    if is_text:
        # Text keeps its size, weight and slant, and takes the page's font.
        font = style.pop("font", "")
        size = re.search(r"[\d.]+px", font + style.get("font-size", ""))
        bold = re.search(r"\b(bold|700)\b", font + style.get("font-weight", ""))
        italic = re.search(r"\b(italic|oblique)\b", font + style.get("font-style", ""))
        style = {name: value for name, value in style.items() if not name.startswith("font")}
        style["font-size"] = size.group(0) if size else "10px"
        if bold:
            style["font-weight"] = "bold"
        if italic:
            style["font-style"] = "italic"
        if halo:
            style.update(
                {"paint-order": "stroke", "stroke": "var(--sl-halo, #ffffff)", "stroke-width": "3px"}
            )
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
    if style:
        declared = "; ".join([f"{name}: {value}" for name, value in style.items()])
        element.set("style", _PLAIN_COLOR.sub(lambda found: _variable(found.group(0), is_text), declared))
    for name in ("fill", "stroke"):
        if name in element.attrib:
            element.set(
                name, _PLAIN_COLOR.sub(lambda found: _variable(found.group(0), is_text), element.attrib[name])
            )
    for name in ("d", "transform", "x", "y", "width", "height", "style"):
        if name in element.attrib:
            element.set(name, _NUMBER.sub(_short_number, " ".join(element.attrib[name].split())))


def _tidy(element: ElementTree.Element, halo: bool = False) -> None:
    """Strip what matplotlib writes for editors, and give every shape its place in the page's theme."""
    element.tag = element.tag.replace(_SVG_NAMESPACE, "")
    element.text = (element.text or "").strip() if element.tag != "text" else element.text
    _restyle(element, halo)
    inside = halo or element.get("id", "").startswith(HALO)
    children: list[ElementTree.Element] = []
    for child in list(element):
        _tidy(child, inside)
        child.tail = None
        unseen = child.get("style") == "fill: none" and child.tag == "path"
        if child.tag in ("metadata", "style") or unseen or (child.tag in ("g", "defs") and len(child) == 0):
            continue
        bare = child.tag == "g" and not set(child.attrib) - {"id"}
        children += list(child) if bare else [child]
    element[:] = children


def _rename_ids(root: ElementTree.Element, salt: str) -> None:
    """Drop ids that nothing refers to; prefix the others, so that several pictures can share a page."""
    used = set(
        _REFERENCE.findall(" ".join([value for item in root.iter() for value in item.attrib.values()]))
    )
    used |= {item.attrib[_LINK][1:] for item in root.iter() if _LINK in item.attrib}
    stem = "sl" + hashlib.sha256((ElementTree.tostring(root, "unicode") + salt).encode()).hexdigest()[:10]
    for item in root.iter():
        if item.get("id") not in used:
            item.attrib.pop("id", None)
        for name, value in item.attrib.items():
            if name == "id":
                item.set(name, f"{stem}-{value}")
            elif name == _LINK:
                item.set(name, f"#{stem}-{value[1:]}")
            elif "url(#" in value:
                item.set(name, value.replace("url(#", f"url(#{stem}-"))


def svg_of(figure: Figure, alt: str, salt: str = "") -> str:
    """A figure as an accessible inline SVG, the same bytes every time.

    Args:
        figure: any matplotlib figure; colours of the palette become CSS variables and follow the page's theme.
        alt: what the picture shows, in words; it becomes the accessible name.
        salt: makes ids unique where the same picture stands twice on a page.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(_SVG_RC):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    box = root.attrib["viewBox"]
    _tidy(root)
    _rename_ids(root, salt)
    root.attrib.clear()
    root.attrib.update({"xmlns": _SVG_NAMESPACE[1:-1], "viewBox": box, "role": "img", "aria-label": alt})
    # HTML knows links inside SVG without their namespace.
    return (
        ElementTree.tostring(root, "unicode")
        .replace(" xmlns:ns0=", " xmlns:xlink=")
        .replace("ns0:href", "href")
    )


class Picture:
    """A figure that a notebook shows as inline SVG with a caption, in JupyterLab and on the page.

    Attributes:
        figure: the matplotlib figure.
        alt: what it shows, in words.
        caption: the line beneath it, or ``""``.
        narrow: the same drawn for a phone, which the page shows there in its place, or None.
    """

    def __init__(self, figure: Figure, alt: str, caption: str = "", narrow: Figure | None = None) -> None:
        if not alt.strip():
            raise ValueError("alt must say in words what the figure shows, not be empty")
        self.figure = figure
        self.alt = alt
        self.caption = caption
        self.narrow = narrow

    def __repr__(self) -> str:
        return f"Picture: {self.alt}"

    def svg(self) -> str:
        """The figure as inline SVG."""
        return svg_of(self.figure, self.alt)

    def save(self, path: Any, **options: Any) -> None:
        """Write the figure to a file (``.svg``, ``.pdf``, ``.png``)."""
        self.figure.savefig(path, **options)

    def _repr_html_(self) -> str:
        width = self.figure.get_figwidth() * _CSS_PIXELS_PER_INCH
        # A dark notebook knows none of the page's colours: there the figure brings its white ground along.
        look = f"max-width: {width:.0f}px; background: var(--sl-surface, #ffffff); color: var(--sl-text, #22262b)"
        caption = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        narrow = ""
        if self.narrow is not None:
            # It stays hidden where no style sheet knows it.
            narrow = f'<div class="sl-narrow" hidden>{svg_of(self.narrow, self.alt, "narrow")}</div>'
        return f'<figure class="sl-figure" style="{look}">{narrow}{self.svg()}{caption}</figure>'


def figure(fig: Figure, alt: str, caption: str = "", narrow: Figure | None = None) -> Picture:
    """Wrap a matplotlib figure so that the notebook and the page show it as inline SVG.

    Args:
        fig: a matplotlib figure (of ``plt.subplots()`` or ``matplotlib.figure.Figure``).
        alt: what it shows, in words, for readers who do not see it.
        caption: the line beneath it.
        narrow: the same, 4.4 inches wide and so readable on a phone; without it a phone scrolls the figure.

    Raises:
        ValueError: ``alt`` is empty.
    """
    if hasattr(fig, "number"):
        import matplotlib.pyplot as plt

        # pyplot would show the figure a second time at the end of the cell.
        plt.close(fig)
    return Picture(fig, alt, caption, narrow)
