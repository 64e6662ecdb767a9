"""The HTML of an experiment: the element that the page's script brings to life, with the still picture inside."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from shardlab.experiments.controls import Experiment
from shardlab.experiments.engine import load, run
from shardlab.experiments.static import are_short, panel_svg


def _key(panel: dict[str, Any]) -> str:
    """Names what is drawn without a name beside it: parts of bars, bands, reference points."""
    items: list[tuple[str, str, str]] = []
    if panel["kind"] == "bars" and len(panel["stacks"]) > 1:
        items = [(stack["label"], stack["texture"], stack["role"]) for stack in panel["stacks"]]
    elif panel["kind"] == "lines":
        items = [(mark["label"], "ring", mark["role"]) for mark in panel["marks"] if mark["shape"] == "ring"][
            :1
        ]
        items += [(band["label"], "band", band["role"]) for band in panel["bands"]]
    spans = [
        f'<span class="sl-key-{look}" style="--sl-key: var(--sl-{role})">{escape(label)}</span>'
        for label, look, role in items
    ]
    return f'<span class="sl-key">{"".join(spans)}</span>' if spans else ""


def _table(panel: dict[str, Any]) -> str:
    """The same elements as the script makes of a table, so that nothing moves at the first touch."""
    head = "".join([f'<th scope="col">{escape(name)}</th>' for name in panel["columns"]])
    rows = []
    for index, (first, *others) in enumerate(panel["rows"]):
        look = ' class="sl-strong"' if index in panel["strong_rows"] else ""
        cells = "".join([f"<td>{escape(text)}</td>" for text in others])
        rows.append(f'<tr{look}><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="sl-table" tabindex="0" role="region" aria-label="{escape(panel["title"])}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _panel(panel: dict[str, Any], salt: str, short: bool, alone: bool) -> str:
    title = f'<div class="sl-panel-title">{escape(panel["title"])}{_key(panel)}</div>'
    picture = _table(panel) if panel["kind"] == "table" else panel_svg(panel, salt, short, alone)
    if panel["kind"] == "timeline" or alone:
        # At a phone's width the wide one's letters would be half as high; the style sheet shows one of the two.
        narrow = panel_svg(panel, f"{salt}narrow", short, narrow=True)
        picture = f'<div class="sl-narrow" hidden>{narrow}</div>{picture}'
    return f'<div class="sl-panel" data-kind="{panel["kind"]}">{title}{picture}</div>'


def _readout(readout: dict[str, Any]) -> str:
    note = f"<small>{escape(readout['note'])}</small>" if readout["note"] else ""
    return (
        f'<div role="listitem"><span class="sl-label">{escape(readout["label"])}</span>'
        f'<strong style="color: var(--sl-{readout["role"]})">{escape(readout["value"])}</strong>{note}</div>'
    )


def still_html(experiment: Experiment, answer: dict[str, Any], salt: str = "") -> str:
    """The still picture of an experiment at the values of ``answer``."""
    kinds = [panel["kind"] for panel in answer["panels"]]
    panels = ""
    for index, panel in enumerate(answer["panels"]):
        alone = kinds[index : index + 2] == ["bars", "table"]
        panels += _panel(panel, f"{salt}{index}", short=are_short(kinds), alone=alone)
    readouts = "".join([_readout(readout) for readout in answer["readouts"]])
    words = "".join([f"<p>{escape(sentence)}</p>" for sentence in answer["words"]])
    return (
        '<figure class="sl-static">'
        f'<figcaption class="sl-head"><span class="sl-title">{escape(experiment.title)}</span> '
        f'<span class="sl-question">{escape(experiment.question)}</span></figcaption>'
        f'<div class="sl-picture"><div class="sl-panels">{panels}</div>'
        f'<div class="sl-readouts" role="list">{readouts}</div><div class="sl-words">{words}</div></div></figure>'
    )


def experiment_html(name: str, given: dict[str, Any], salt: str = "") -> str:
    """``<live-experiment>`` with its state and its still picture.

    Args:
        name: name of the experiment.
        given: control values, or ``{"preset": ...}``; what is not given has its default.
        salt: makes ids unique where the same experiment stands twice on a page.

    Raises:
        ValueError: an unknown experiment, control or preset, or a value out of range.
    """
    experiment = load(name)
    answer = run(name, given)
    state = escape(json.dumps(answer["values"], sort_keys=True))
    # Sliders know the texts of their stops; a value between two stops brings its own.
    labels = {control.name: control.labels for control in experiment.controls}
    between = {key: text for key, text in answer["texts"].items() if text not in labels[key]}
    texts = f' texts="{escape(json.dumps(between, sort_keys=True))}"' if between else ""
    still = still_html(experiment, answer, salt)
    return f'<live-experiment name="{name}" state="{state}"{texts}>{still}</live-experiment>'
