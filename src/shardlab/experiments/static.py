"""Draws a chart with matplotlib: the still picture of an experiment, and its ``plot``."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle, Wedge
from matplotlib.ticker import NullLocator

from shardlab.experiments.chart import place_on
from shardlab.experiments.look import HALO, style, svg_of
from shardlab.palette import color

PIXELS_PER_INCH = 72
INK = "#1b1e22"  # on a filled colour, in light and dark alike
_MOST_FILL = 0.5
_WIDTHS = {"strong": 2.6, "normal": 1.4, "thin": 1.0}
# About the width of one letter of a label, in pixels
_LETTER = 6.9
_BOLD_LETTER = 7.6
_TEXT_LETTER = 6.2  # of a bar's text, which is smaller
_SMALLEST = 9  # letters, in pixels
_MOST_TEXTS = 8  # more bars are too thin for a text each
_LEAST_AXIS = 0.62  # of its length without what is written behind bars
_MOST_GROWTH = (1.2, 1.5)  # of a still picture; of a time line, which has a row of its own
_WIDE = 620  # of a panel that has a row of its own
_NARROW = 300  # of such a panel on a phone


def are_short(kinds: list[str]) -> bool:
    """Whether a chart's panels are drawn less high: they stand in more than one row, and should fit a screen."""
    wide = [kind for kind in kinds if kind in ("timeline", "table")]
    return (len(wide) > 0 and len(kinds) > 1) or kinds.count("lines") > 2


def _cell(panel: dict[str, Any], short: bool = False) -> float:
    """Side of a matrix's cells in pixels."""
    return min(46.0, 170 / len(panel["columns"]), (152 if short else 240) / len(panel["rows"]))


def _size(panel: dict[str, Any], short: bool = False) -> tuple[float, float]:
    """Width and height of a panel in pixels, about those that the page's script gives it."""
    kind = panel["kind"]
    if kind == "lines":
        return 310, 165 if short else 188
    if kind == "bars":
        most, every = (24, 108) if short else (40, 184)
        rows = len(panel["categories"])
        return 220, 62 + rows * max(11.5, min(most, every / rows))
    if kind == "timeline":
        return _WIDE, 58 + (22 if short else 26) * len(panel["lanes"])
    if kind == "table":
        return 340, 22 * (len(panel["rows"]) + 1)
    if kind == "matrix":
        return 210, 38 + _cell(panel, short) * len(panel["rows"])
    return 210, 210


def _text_role(role: str) -> str:
    return role if role in ("muted", "text", "limit") or role.endswith("text") else f"{role}-text"


def _set_axes(axes: Axes, x: dict[str, Any], y: dict[str, Any] | None) -> None:
    for on, name in ((x, "x"), (y, "y")):
        if on is None:
            continue
        axes.set(**{f"{name}scale": on["scale"], f"{name}lim": on["domain"]})
        getattr(axes, f"set_{name}ticks")(
            [value for value, _ in on["ticks"]], [text for _, text in on["ticks"]]
        )
        getattr(axes, f"{name}axis").set_minor_locator(NullLocator())
    axes.set_xlabel(x["label"], color=color("muted"))


def _note(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **look: Any) -> None:
    options: dict[str, Any] = {"fontsize": 11, "va": "center", "color": color("text"), **look}
    axes.annotate(text, at, shift, textcoords="offset points", annotation_clip=False, gid=HALO, **options)


def _place_value(place: float, on: dict[str, Any]) -> float:
    low, high = on["domain"]
    return float(low * (high / low) ** place if on["scale"] == "log" else low + (high - low) * place)


def draw_lines(axes: Axes, panel: dict[str, Any]) -> None:
    """Curves, bands, named limits and marks."""
    x, y = panel["x"], panel["y"]
    _set_axes(axes, x, y)
    if y["label"]:
        above: dict[str, Any] = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "fontsize": 10,
            "color": color("muted"),
        }
        axes.annotate(y["label"], (0, 1), (-34, 10), **above)
    for band in panel["bands"]:
        at, low, high = zip(*band["points"], strict=True)
        axes.fill_between(at, low, high, color=color(band["role"]), alpha=0.16, linewidth=0)
    for limit in panel["limits"]:
        axes.axhline(limit["value"], color=color("limit"), linewidth=0.75)
        end = limit["align"] == "end"
        shift = (-3 if end else 4, -8 if limit["side"] == "below" else 8)
        _note(
            axes,
            limit["label"],
            (x["domain"][1 if end else 0], limit["value"]),
            shift,
            ha="right" if end else "left",
            fontsize=10,
        )
    for curve in panel["series"]:
        at, values = zip(*curve["points"], strict=True)
        axes.plot(
            at,
            values,
            color=color(curve["role"]),
            linewidth=_WIDTHS[curve["weight"]],
            linestyle=(0, (4, 3)) if curve["dashed"] else "-",
        )
        _note(
            axes,
            curve["label"],
            (x["domain"][1], _place_value(curve["label_place"], y)),
            (6, 0),
            color=color(_text_role(curve["role"])),
            fontweight="bold" if curve["weight"] == "strong" else "normal",
        )
    for mark in panel["marks"]:
        hollow = mark["shape"] == "ring"
        role = mark["role"]
        axes.plot(
            [mark["x"]],
            [mark["y"]],
            "o",
            markersize=7.5 if hollow else 9,
            markerfacecolor=color("panel" if hollow else role),
            markeredgecolor=color("text" if hollow else "panel"),
            markeredgewidth=1.2,
            clip_on=False,
            zorder=5,
        )
        if hollow:
            continue
        axes.plot(
            [mark["x"]] * 2,
            [y["domain"][0], mark["y"]],
            color=color("muted"),
            linewidth=1,
            linestyle=(0, (2, 3)),
        )
        left = mark["x"] > _place_value(0.62, x)
        _note(
            axes,
            mark["label"],
            (mark["x"], mark["y"]),
            (-8 if left else 8, 11),
            ha="right" if left else "left",
            color=color(_text_role(role)),
            fontsize=12,
            fontweight="bold",
            zorder=6,
        )


def _draw_bar(axes: Axes, item: dict[str, Any], row: float, start: float, end: float, height: float) -> None:
    """A bar in the fill of its role: solid, or pale with stripes, so that roles differ in grey as well."""
    shade = color(item["role"])
    if item["texture"] == "solid":
        axes.barh(row, end - start, height, left=start, color=shade, linewidth=0)
        return
    axes.barh(row, end - start, height, left=start, color=shade, alpha=0.3, linewidth=0)
    # matplotlib draws a hatch in the colour of the edge. Idle time is paler than any other role: stripes of its own
    # colour could not be seen on a light page.
    edge = color("idle-text") if item["role"] == "idle" else shade
    axes.barh(
        row, end - start, height, left=start, facecolor="none", edgecolor=edge, hatch="////", linewidth=0
    )


def _rgb(shade: str) -> tuple[float, float, float]:
    red, green, blue = [int(shade[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return red, green, blue


def _top_limits(axes: Axes, limits: list[dict[str, Any]]) -> None:
    for limit in limits:
        axes.axvline(limit["value"], color=color("limit"), linewidth=0.75)
        end = limit["align"] == "end"
        axes.annotate(
            limit["label"],
            (limit["value"], 1),
            (3 if end else -3, 6),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if end else "left",
            fontsize=10,
        )


def _width_px(axes: Axes) -> float:
    return float(axes.figure.bbox.width) * PIXELS_PER_INCH / axes.figure.dpi


def _place_px(axes: Axes, value: float) -> float:
    """Where ``value`` of the x axis lies, in pixels from the figure's left."""
    box, (low, high) = axes.get_position(), axes.get_xlim()
    return float(_width_px(axes) * (box.x0 + box.width * (value - low) / (high - low)))


def _beside(axes: Axes, value: float, gap: float, length: float) -> float:
    """How far right of ``value`` a label may start, in pixels: less than ``gap`` where it would leave the picture."""
    return min(gap, _width_px(axes) - length - _place_px(axes, value))


def draw_bars(axes: Axes, panel: dict[str, Any]) -> None:
    """Horizontal stacked bars with named limits."""
    rows = len(panel["categories"])
    _set_axes(axes, panel["value"], None)
    ends = [0.0] * rows
    for stack in panel["stacks"]:
        for row, size in enumerate(stack["values"]):
            if size > 0:
                _draw_bar(axes, stack, row, ends[row], ends[row] + size, 0.78)
            ends[row] += size
    axes.set_yticks(range(rows), panel["categories"])
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    _top_limits(axes, panel["limits"])
    if rows <= _MOST_TEXTS:
        for row, (end, text) in enumerate(zip(ends, panel["texts"], strict=True)):
            _note(axes, text, (end, row), (_beside(axes, end, 5, _TEXT_LETTER * len(text)), 0), fontsize=10)


def draw_timeline(axes: Axes, panel: dict[str, Any]) -> None:
    """Lanes over time."""
    lanes = len(panel["lanes"])
    _set_axes(axes, panel["time"], None)
    for item in panel["spans"]:
        _draw_bar(axes, item, item["lane"], item["start"], item["end"], 0.72)
        role = item["text_role"] or _text_role(item["role"])
        label = item["label"]
        shift = _beside(axes, item["end"], 5, _LETTER * len(label))
        # On a bar of its own colour a label could not be read.
        role = "text" if shift < 0 else role
        _note(axes, label, (item["end"], item["lane"]), (shift, 0), color=color(role))
    for item in panel["brackets"]:
        lane = item["lane"]
        axes.plot(
            [item["low"], item["high"]],
            [lane, lane],
            color=color("muted"),
            linewidth=1.5,
            marker="|",
            markersize=12,
        )
        axes.plot([item["at"]], [lane], "o", color=color("text"), markersize=8)
        length = _BOLD_LETTER * len(item["label"])
        # The dot may lie outside its bracket, and the label belongs to the dot.
        first, last = min(item["low"], item["at"]), max(item["high"], item["at"])
        shift = _beside(axes, last, 9, length)
        if shift < 9 and _place_px(axes, first) - _place_px(axes, axes.get_xlim()[0]) > length + 9:
            _note(axes, item["label"], (first, lane), (-9, 0), fontweight="bold", ha="right")
        else:
            _note(axes, item["label"], (last, lane), (shift, 0), fontweight="bold")
    axes.set_yticks(range(lanes), panel["lanes"], color=color("text"))
    axes.set_ylim(lanes - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    _top_limits(axes, panel["limits"])


def draw_graph(axes: Axes, panel: dict[str, Any]) -> None:
    """Nodes and arrows."""
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axes.axis("off")
    nodes = panel["nodes"]
    radius = min(0.17, 0.42 / len(nodes) ** 0.5)
    for arrow in panel["arrows"]:
        start, end = [(nodes[arrow[key]]["x"], nodes[arrow[key]]["y"]) for key in ("source", "target")]
        length = max(((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5, 1e-9)
        unit = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
        both = any(
            other["source"] == arrow["target"] and other["target"] == arrow["source"]
            for other in panel["arrows"]
        )
        aside = (0.08 * unit[1], -0.08 * unit[0]) if both else (0.0, 0.0)

        def at(
            distance: float, start: Any = start, unit: Any = unit, aside: Any = aside
        ) -> tuple[float, float]:
            return start[0] + unit[0] * distance + aside[0], start[1] + unit[1] * distance + aside[1]

        axes.add_patch(
            FancyArrowPatch(
                at(radius + 0.02),
                at(length - radius - 0.01),
                arrowstyle="-|>",
                mutation_scale=9,
                shrinkA=0,
                shrinkB=0,
                color=color(arrow["role"]),
                linewidth=1.8 if arrow["label"] else 1.2,
            )
        )
        if arrow["label"]:
            side = radius * 1.35
            x, y = at(length * 0.58)
            axes.add_patch(
                FancyBboxPatch(
                    (x - side / 2, y - side / 2),
                    side,
                    side,
                    boxstyle="round,pad=0,rounding_size=0.02",
                    facecolor=color(arrow["role"]),
                    edgecolor=color("panel"),
                    zorder=3,
                )
            )
            axes.text(
                x,
                y,
                arrow["label"],
                ha="center",
                va="center",
                fontsize=side * 52,
                fontweight="bold",
                color=INK,
                zorder=4,
            )
    for item in nodes:
        place = (item["x"], item["y"])
        axes.add_patch(
            Circle(place, radius, facecolor=color("surface"), edgecolor=color("muted"), linewidth=1, zorder=2)
        )
        if item["level"] > 0:
            start = 90 - 360 * item["level"]
            axes.add_patch(
                Wedge(
                    place, radius, start, 90, width=0.04, facecolor=color(item["role"]), linewidth=0, zorder=2
                )
            )
        axes.text(
            *place, item["label"], ha="center", va="center", fontsize=radius * 72, fontweight="bold", zorder=3
        )
    for index, line in enumerate(panel["middle"]):
        height = 0.09 - 0.18 * index
        axes.text(
            0,
            height,
            line,
            ha="center",
            va="center",
            fontsize=11,
            fontweight="normal" if index else "bold",
            color=color("muted" if index else "text"),
        )


def draw_matrix(axes: Axes, panel: dict[str, Any]) -> None:
    """Cells in rows and columns."""
    rows, columns = len(panel["rows"]), len(panel["columns"])
    axes.set(
        xlim=(0, columns),
        ylim=(rows, 0),
        aspect="equal",
        xlabel=panel["column_label"],
        ylabel=panel["row_label"],
    )
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([column + 0.5 for column in range(columns)], panel["columns"])
    axes.set_yticks([row + 0.5 for row in range(rows)], panel["rows"])
    axes.tick_params(labelsize=min(10, _cell(panel) / 2))
    longest = max([1, *[len(text) for line in panel["texts"] for text in line]])
    # A frame may lie on a cell's rim.
    inside = max(_SMALLEST, (_cell(panel) - 6) / (_BOLD_LETTER / 12 * longest))
    for row in range(rows):
        for column in range(columns):
            level = panel["levels"][row][column]
            full = level >= 1
            axes.add_patch(
                Rectangle(
                    (column + 0.04, row + 0.04),
                    0.92,
                    0.92,
                    facecolor=(*_rgb(color(panel["role"])), _MOST_FILL * level),
                    edgecolor=color(panel["role"] if full else "grid"),
                    linewidth=1.2 if full else 0.8,
                )
            )
            axes.text(
                column + 0.5,
                row + 0.5,
                panel["texts"][row][column],
                ha="center",
                va="center",
                fontsize=min(12, _cell(panel) / 2, inside),
                fontweight="bold" if full else "normal",
            )
    for row, column, kind in panel["marks"]:
        axes.add_patch(
            Rectangle(
                (column + 0.1, row + 0.1),
                0.8,
                0.8,
                fill=False,
                edgecolor=color("communication"),
                linewidth=2.4 if kind == "to" else 1.2,
                linestyle="-" if kind == "to" else (0, (3, 2)),
            )
        )


def draw_table(axes: Axes, panel: dict[str, Any]) -> None:
    """Text in rows and columns."""
    axes.axis("off")
    lines = [panel["columns"], *panel["rows"]]
    longest = [max([len(line[column]) for line in lines]) + 2 for column in range(len(panel["columns"]))]
    grid = axes.table(
        cellText=panel["rows"],
        colLabels=panel["columns"],
        colWidths=[length / sum(longest) for length in longest],
        loc="upper left",
        edges="horizontal",
    )
    grid.auto_set_font_size(False)
    grid.set_fontsize(10)
    for (row, _), cell in grid.get_celld().items():
        cell.set_edgecolor(color("grid"))
        if row == 0 or row - 1 in panel["strong_rows"]:
            cell.get_text().set_fontweight("bold")


_DRAWERS = {
    "lines": draw_lines,
    "bars": draw_bars,
    "timeline": draw_timeline,
    "graph": draw_graph,
    "matrix": draw_matrix,
    "table": draw_table,
}


def _margins(panel: dict[str, Any], width: float) -> tuple[float, float, float, float]:
    """Left, right, top, bottom, in pixels, of a panel that is ``width`` pixels wide."""
    kind = panel["kind"]
    if kind == "lines":
        return (
            40,
            12 + 6.4 * max([len(curve["label"]) for curve in panel["series"]]),
            24 if panel["y"]["label"] else 12,
            36,
        )
    if kind == "bars":
        left = 14.0 + 7 * max([len(name) for name in panel["categories"]])
        return left, _right_margin(panel["value"], left, 10, width, _bar_texts(panel)), 20, 36
    if kind == "timeline":
        left = 14.0 + 6.4 * max([len(name) for name in panel["lanes"]])
        wanted = [(item["end"], 5 + _LETTER * len(item["label"])) for item in panel["spans"] if item["label"]]
        wanted += [
            (max(item["high"], item["at"]), 9 + _BOLD_LETTER * len(item["label"]))
            for item in panel["brackets"]
        ]
        return left, _right_margin(panel["time"], left, 12, width, wanted), 20, 36
    if kind == "matrix":
        return 36, 4, 36, 4
    return 2, 2, 2, 2


def _bar_texts(panel: dict[str, Any]) -> list[tuple[float, float]]:
    """Where each bar ends, and the pixels that its text takes behind it."""
    if len(panel["categories"]) > _MOST_TEXTS:
        return []
    ends = [sum(values) for values in zip(*[stack["values"] for stack in panel["stacks"]], strict=True)]
    return [
        (end, 5 + _TEXT_LETTER * len(text)) for end, text in zip(ends, panel["texts"], strict=True) if text
    ]


def _right_margin(
    axis: dict[str, Any], left: float, least: float, width: float, wanted: list[tuple[float, float]]
) -> float:
    """A margin in which what is written behind bars fits, as in the page's script; the axis keeps most of its length."""
    end = width - least
    for value, pixels in wanted:
        part = place_on(value, axis)
        if part > 0:
            end = min(end, left + (width - pixels - left) / part)
    return width - max(end, left + _LEAST_AXIS * (width - least - left))


def panel_figure(
    panel: dict[str, Any], short: bool = False, alone: bool = False, narrow: bool = False
) -> Figure:
    """One panel as a figure of its own, without its title.

    Args:
        panel: a panel of an experiment's answer.
        short: draw it less high, as one of a chart in several rows.
        alone: draw bars as wide as a row.
        narrow: draw it as wide as a phone.
    """
    width, height = _size(panel, short)
    width = _NARROW if narrow else _WIDE if alone else width
    left, right, top, bottom = _margins(panel, width)
    with style():
        figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH)
        axes = figure.add_axes(
            (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
        )
        _DRAWERS[panel["kind"]](axes, panel)
    return figure


def panel_svg(
    panel: dict[str, Any], salt: str = "", short: bool = False, alone: bool = False, narrow: bool = False
) -> str:
    """One panel as accessible inline SVG, see :func:`panel_figure`."""
    figure = panel_figure(panel, short, alone, narrow)
    text = svg_of(figure, panel["alt"] or panel["title"], salt)
    # A wide place does not blow letters up.
    most = _MOST_GROWTH[panel["kind"] == "timeline"] * PIXELS_PER_INCH * figure.get_figheight()
    return text.replace("<svg ", f'<svg style="max-height: {most:.0f}px" ', 1)


def chart_figure(answer: dict[str, Any]) -> Figure:
    """All panels of a chart in one figure, two beside each other, for a notebook or a paper."""
    rows = _rows_of([panel["kind"] for panel in answer["panels"]])
    heights = [max([_size(answer["panels"][index])[1] for index in row]) + 36 for row in rows]
    width, height = 720.0, float(sum(heights))
    with style():
        figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH), dpi=100)
        top = height
        for row, row_height in zip(rows, heights, strict=True):
            share = width / len(row)
            for column, index in enumerate(row):
                panel = answer["panels"][index]
                left, right, above, below = _margins(panel, share)
                box = (
                    (column * share + left) / width,
                    (top - row_height + below) / height,
                    (share - left - right) / width,
                    (row_height - 26 - above - below) / height,
                )
                axes = figure.add_axes(box)
                _DRAWERS[panel["kind"]](axes, panel)
                figure.text(
                    column * share / width + 0.005,
                    (top - 14) / height,
                    panel["title"],
                    fontweight="bold",
                    fontsize=12,
                )
            top -= row_height
    return figure


def _rows_of(kinds: list[str]) -> list[list[int]]:
    """Indices of panels row by row: wide kinds stand alone, the others share a row by up to three."""
    rows: list[list[int]] = []
    for index, kind in enumerate(kinds):
        wide = kind in ("timeline", "table")
        joins = rows and not wide and kinds[rows[-1][0]] not in ("timeline", "table") and len(rows[-1]) < 3
        if joins:
            rows[-1].append(index)
        else:
            rows.append([index])
    return rows
