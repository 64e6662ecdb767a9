"""Live experiments: move a control, see the model's answer, in a notebook and on the published page.

An experiment is a file in ``gallery/``: controls, presets, and a pure function from their values to a chart.
The functions here are what a notebook calls; they load matplotlib and anywidget only when they are used,
because this package also runs in the reader's browser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardlab.experiments.look import Picture
    from shardlab.experiments.look import style as Style
    from shardlab.experiments.widget import ExperimentWidget


def experiment(name: str, **controls: Any) -> ExperimentWidget:
    """A live experiment as an ipywidget: every control is a trait that can be set, observed and linked.

    Args:
        name: such as ``"scaling-explorer"`` or ``"ring-stepper"``.
        controls: values to start with; ``preset="h100-nvlink"`` starts from a preset. Values are SI, or text with a
            unit such as ``bandwidth="100 Gb/s"``.

    Raises:
        ValueError: an unknown experiment, control or preset, or a value out of range.
    """
    from shardlab.experiments.widget import make_widget

    return make_widget(name, controls)


def plot(name: str, **controls: Any) -> Picture:
    """The same chart as :func:`experiment`, drawn by matplotlib; arguments and errors are the same."""
    from shardlab.experiments.engine import run
    from shardlab.experiments.look import Picture
    from shardlab.experiments.static import chart_figure

    answer = run(name, controls)
    alt = " ".join([panel["alt"] for panel in answer["panels"]])
    return Picture(chart_figure(answer), alt, " ".join(answer["words"]))


def figure(fig: Figure, alt: str, caption: str = "", narrow: Figure | None = None) -> Picture:
    """A matplotlib figure as inline SVG that follows the page's theme.

    Args:
        fig: any matplotlib figure; colours of :mod:`shardlab.palette` become CSS variables.
        alt: what it shows, in words, for readers who do not see it.
        caption: the line beneath it.
        narrow: the same, 4.4 inches wide and so readable on a phone; without it a phone scrolls the figure.

    Raises:
        ValueError: ``alt`` is empty.
    """
    from shardlab.experiments.look import figure as wrap

    return wrap(fig, alt, caption, narrow)


def style() -> Style:
    """The book's matplotlib look: ``style()`` sets it for the session, ``with style():`` for a block."""
    from shardlab.experiments.look import style as look

    return look()
