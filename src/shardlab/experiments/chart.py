"""What an experiment shows, as plain JSON: the one description that the page, the notebook and matplotlib draw.

A chart holds panels (pictures), readouts (key numbers), words (sentences) and an ``alt`` text. Every text
that is drawn, tick labels included, is in the chart, so all engines show the same and a translation reaches it.
Colours are roles of :mod:`shardlab.palette`, never hex. Panels are made by the functions below:

========  =======================================================================
lines     curves over a linear or log axis, with bands, named limits and marks
bars      horizontal stacked bars, with named limits
timeline  bars in lanes over time (a Gantt chart), with named limits and ranges
graph     nodes and arrows at given places; :func:`ring_places` puts them on a ring
matrix    cells in rows and columns, each with a text, a level of fill and a mark
table     rows of text
========  =======================================================================
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shardlab.experiments.words import plain_number

if TYPE_CHECKING:
    from collections.abc import Sequence


def axis(
    label: str,
    domain: tuple[float, float],
    ticks: list[tuple[float, str]],
    scale: str = "linear",
    control: str = "",
) -> dict[str, Any]:
    """An axis: its label with unit, ``"linear"`` or ``"log"``, the range, and ticks as (value, text).

    ``control`` names the slider that a reader may also set by pointing into the panel (x axis only).
    """
    return {
        "label": label,
        "scale": scale,
        "domain": list(domain),
        "ticks": [list(tick) for tick in ticks],
        "control": control,
    }


def even_ticks(most: float, factor: float = 1.0, about: int = 4) -> list[tuple[float, str]]:
    """Round ticks from 0 to ``most``, about ``about`` steps, written in units of ``factor``."""
    step_least = most / factor / about
    exponent = math.floor(math.log10(step_least))
    for digit in (1, 2, 2.5, 5, 10):
        step = digit * 10.0**exponent
        if step >= step_least * 0.999:
            break
    return [
        (index * step * factor, plain_number(index * step))
        for index in range(int(most / factor / step + 1e-6) + 1)
    ]


def log_ticks(least: float, most: float) -> list[tuple[float, str]]:
    """Powers of ten from ``least`` to ``most``; every second one where there would be more than six."""
    values = [float(f"1e{exponent}") for exponent in range(-12, 16)]
    inside = [value for value in values if least * 0.999 <= value <= most * 1.001]
    if len(inside) > 6:
        inside = [value for index, value in enumerate(inside) if index % 2 == len(inside) % 2]
    return [(value, plain_number(value)) for value in inside]


_TIME_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def _unit_for(most: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    for factor, name in units:
        if most >= factor:
            return factor, name
    return units[-1]


def time_axis(label: str, most: float, about: int = 4) -> dict[str, Any]:
    """A linear axis from 0 to ``most`` seconds in the unit that suits."""
    factor, unit = _unit_for(most, _TIME_UNITS)
    return axis(f"{label} ({unit})", (0.0, most), even_ticks(most, factor, about))


def size_axis(label: str, most: float, about: int = 4) -> dict[str, Any]:
    """A linear axis from 0 to ``most`` bytes in the decimal unit that suits."""
    factor, unit = _unit_for(most, _SIZE_UNITS)
    return axis(f"{label} ({unit})", (0.0, most), even_ticks(most, factor, about))


def series(
    label: str,
    role: str,
    points: Sequence[tuple[float, float]],
    weight: str = "normal",
    dashed: bool = False,
) -> dict[str, Any]:
    """A curve named at its right end; ``weight`` is ``"strong"``, ``"normal"`` or ``"thin"``."""
    return {
        "label": label,
        "role": role,
        "weight": weight,
        "dashed": dashed,
        "points": [list(point) for point in points],
    }


def band(label: str, role: str, points: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """The area between a low and a high curve: points are (x, low, high)."""
    return {"label": label, "role": role, "points": [list(point) for point in points]}


def limit(value: float, label: str, side: str = "above", align: str = "start") -> dict[str, Any]:
    """A thin line at ``value`` of the value axis with its name on it.

    ``side`` says whether the name stands ``"above"`` or ``"below"`` a horizontal line, ``align`` at which end.
    """
    return {"value": value, "label": label, "side": side, "align": align}


def mark(x: float, y: float, label: str = "", role: str = "text", shape: str = "dot") -> dict[str, Any]:
    """A point: ``"dot"`` (filled, where the reader is, its label beside it) or ``"ring"`` (hollow, a reference)."""
    return {"x": x, "y": y, "label": label, "role": role, "shape": shape}


def place_on(value: float, on: dict[str, Any]) -> float:
    """Where a value lies on an axis, 0 to 1."""
    low: float
    high: float
    low, high = on["domain"]
    if on["scale"] == "log":
        return math.log(max(value, low * 1e-6) / low) / math.log(high / low)
    return (value - low) / (high - low)


def spread(places: list[float], gap: float) -> list[float]:
    """Places moved as little as keeps them ``gap`` apart, in their order, inside 0 to 1 where that is possible."""
    # Near ties in the order of the list: MicroPython's sort is not stable, and logarithms differ in the last bit.
    order = sorted(range(len(places)), key=lambda index: (int(places[index] * 1e6), index))
    moved = list(places)
    floor = -1e9
    for index in order:
        moved[index] = max(moved[index], floor)
        floor = moved[index] + gap
    ceiling = 1.0
    for index in reversed(order):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    return moved


def lines(
    title: str,
    x: dict[str, Any],
    y: dict[str, Any],
    curves: list[dict[str, Any]],
    bands: list[dict[str, Any]] | None = None,
    limits: list[dict[str, Any]] | None = None,
    marks: list[dict[str, Any]] | None = None,
    alt: str = "",
) -> dict[str, Any]:
    """A panel of curves. Their names stand at the right ends, moved apart where they would meet."""
    # A curve that leaves the panel keeps its name at the edge.
    ends = [min(max(place_on(curve["points"][-1][1], y), 0.0), 1.0) for curve in curves]
    for curve, place in zip(curves, spread(ends, 0.09)):
        curve["label_place"] = place
    return {
        "kind": "lines",
        "title": title,
        "x": x,
        "y": y,
        "series": curves,
        "bands": bands or [],
        "limits": limits or [],
        "marks": marks or [],
        "alt": alt,
    }


def stack(label: str, role: str, values: list[float], texture: str = "solid") -> dict[str, Any]:
    """One part of every bar; ``texture`` is ``"solid"``, ``"light"`` or ``"hatch"`` (idle)."""
    return {"label": label, "role": role, "values": list(values), "texture": texture}


def bars(
    title: str,
    categories: list[str],
    value: dict[str, Any],
    stacks: list[dict[str, Any]],
    limits: list[dict[str, Any]] | None = None,
    texts: list[str] | None = None,
    alt: str = "",
) -> dict[str, Any]:
    """A panel of horizontal stacked bars, one for each category, with a text at the end of each bar."""
    return {
        "kind": "bars",
        "title": title,
        "categories": list(categories),
        "value": value,
        "stacks": stacks,
        "limits": limits or [],
        "texts": texts or ["" for _ in categories],
        "alt": alt,
    }


def span(
    lane: int,
    start: float,
    end: float,
    role: str,
    label: str = "",
    texture: str = "solid",
    text_role: str = "",
) -> dict[str, Any]:
    """One bar of a timeline: something that runs in a lane from ``start`` to ``end``."""
    return {
        "lane": lane,
        "start": start,
        "end": end,
        "role": role,
        "label": label,
        "texture": texture,
        "text_role": text_role,
    }


def bracket(lane: int, low: float, high: float, at: float, label: str) -> dict[str, Any]:
    """A range in a lane of a timeline (from the best to the worst case) and where in it the answer lies."""
    return {"lane": lane, "low": low, "high": high, "at": at, "label": label}


def timeline(
    title: str,
    lanes: list[str],
    time: dict[str, Any],
    spans: list[dict[str, Any]],
    limits: list[dict[str, Any]] | None = None,
    brackets: list[dict[str, Any]] | None = None,
    alt: str = "",
) -> dict[str, Any]:
    """A panel of lanes over time: what runs when."""
    return {
        "kind": "timeline",
        "title": title,
        "lanes": list(lanes),
        "time": time,
        "spans": spans,
        "limits": limits or [],
        "brackets": brackets or [],
        "alt": alt,
    }


def ring_places(n_nodes: int) -> list[tuple[float, float]]:
    """Places on a circle, clockwise from the top, in a square from -1 to 1 (y points up)."""
    return [
        (math.sin(2 * math.pi * index / n_nodes), math.cos(2 * math.pi * index / n_nodes))
        for index in range(n_nodes)
    ]


def node(label: str, place: tuple[float, float], role: str = "text", level: float = 0.0) -> dict[str, Any]:
    """A node of a graph; ``level`` (0 to 1) says how far it is filled with the colour of its role."""
    return {"label": label, "x": place[0], "y": place[1], "role": role, "level": level}


def arrow(source: int, target: int, role: str = "communication", label: str = "") -> dict[str, Any]:
    """An arrow between two nodes; ``label`` is what travels along it."""
    return {"source": source, "target": target, "role": role, "label": label}


def graph(
    title: str,
    nodes: list[dict[str, Any]],
    arrows: list[dict[str, Any]],
    middle: list[str] | None = None,
    alt: str = "",
) -> dict[str, Any]:
    """A panel of nodes and arrows, with lines of text in the middle."""
    return {
        "kind": "graph",
        "title": title,
        "nodes": nodes,
        "arrows": arrows,
        "middle": middle or [],
        "alt": alt,
    }


def matrix(
    title: str,
    columns: list[str],
    rows: list[str],
    column_label: str,
    row_label: str,
    texts: list[list[str]],
    levels: list[list[float]],
    role: str,
    marks: list[tuple[int, int, str]] | None = None,
    alt: str = "",
) -> dict[str, Any]:
    """A panel of cells: ``texts[row][column]``, filled to ``levels[row][column]`` (0 to 1) of the role's colour.

    Marks are (row, column, kind): ``"from"`` and ``"to"`` frame the two ends of a move.
    """
    return {
        "kind": "matrix",
        "title": title,
        "columns": list(columns),
        "rows": list(rows),
        "column_label": column_label,
        "row_label": row_label,
        "texts": texts,
        "levels": levels,
        "role": role,
        "marks": [list(item) for item in marks or []],
        "alt": alt,
    }


def table(
    title: str, columns: list[str], rows: list[list[str]], strong_rows: list[int] | None = None
) -> dict[str, Any]:
    """A panel of text in rows and columns; the first column names the row."""
    return {
        "kind": "table",
        "title": title,
        "columns": list(columns),
        "rows": rows,
        "strong_rows": strong_rows or [],
        "alt": "",
    }


def readout(label: str, value: str, note: str = "", role: str = "text") -> dict[str, Any]:
    """A key number with its name; ``note`` is a few words beneath it."""
    return {"label": label, "value": value, "note": note, "role": role}


def chart(
    panels: list[dict[str, Any]],
    words: list[str],
    readouts: list[dict[str, Any]] | None = None,
    bounds: dict[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """All that is seen: panels, key numbers, sentences.

    Args:
        panels: one to four; time lines and tables take a row of their own, others stand side by side.
        words: sentences that say what is seen and change with the controls; the first one carries the point.
        readouts: key numbers.
        bounds: control name to ``{"most": ...}`` or ``{"enabled": False}``, where one control limits another.
    """
    return {"panels": panels, "readouts": readouts or [], "words": words, "bounds": bounds or {}}
