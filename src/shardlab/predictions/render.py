"""A prediction for a page: the data that the ``<book-predict>`` element reads, and HTML that reads well without it."""

from __future__ import annotations

import hashlib
import itertools
import json
from html import escape
from importlib.resources import files
from typing import Any

from shardlab.embed import json_script
from shardlab.experiments.chart import even_ticks, log_ticks
from shardlab.predictions.model import Choice, Guess, Prediction
from shardlab.quiz.model import decimal
from shardlab.quiz.text import to_html

LANGUAGE = "en"


def place(item: Guess | Choice, guesses: dict[Any, Any] | None) -> Any:
    """What stands in the notebook's dictionary for an item, in the item's unit; None where it has no place.

    Raises:
        ValueError: the dictionary lacks the place, or holds there what is no number or none of the options.
    """
    if guesses is None or not item.at:
        return None
    found: Any = guesses
    for key in item.at:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            raise ValueError(
                f"guesses must have a value at {''.join([f'[{key!r}]' for key in item.at])}, as in the chapter, "
                f"not {guesses!r}"
            ) from None
    if isinstance(item, Choice):
        names = [name for name, _ in item.options]
        if found not in names:
            raise ValueError(f"guesses[{item.at[0]!r}] must be one of {', '.join(names)}, not {found!r}")
        return found
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"guesses[{item.at[0]!r}] must be a number, not {found!r}")
    return found / item.scale


def written(value: float) -> str:
    """A guess as a reader would write it: ``8``, ``0.95``, ``100000``."""
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def _version(item: Guess | Choice) -> str:
    """Changes when the question or its answer does: a kept guess belongs to a version."""
    return hashlib.sha256(f"{item.prompt}\n{item.key!r}".encode()).hexdigest()[:8]


def _item(item: Guess | Choice, guesses: dict[Any, Any] | None) -> dict[str, Any]:
    example = place(item, guesses)
    data: dict[str, Any] = {
        "id": item.id,
        "version": _version(item),
        "prompt": to_html(item.prompt),
        "why": to_html(item.why),
        "key": item.key,
    }
    if isinstance(item, Choice):
        data.update(
            kind="choice",
            options=[{"id": name, "text": to_html(text)} for name, text in item.options],
            shown=to_html(dict(item.options)[item.key]),
        )
    else:
        data.update(
            kind="number",
            unit=item.unit,
            shown=decimal(item.key, item.digits),
            tick=item.tick,
            example="" if example is None else written(example),
        )
    return data


def payload(prediction: Prediction, guesses: dict[Any, Any] | None = None) -> dict[str, Any]:
    """What the ``<book-predict>`` element reads: plain data, texts as HTML."""
    items = [_item(item, guesses) for item in prediction.items]
    # One sentence for several answers stands under the last of them.
    for item, following in itertools.pairwise(items):
        if item["why"] == following["why"]:
            item["why"] = ""
    data: dict[str, Any] = {"id": prediction.id, "language": LANGUAGE, "items": items}
    sketch = prediction.sketch
    if sketch is not None:
        ticks = (
            log_ticks(sketch.low, sketch.high)
            if sketch.scale == "log"
            else [tick for tick in even_ticks(sketch.high) if tick[0] >= sketch.low]
        )
        data["sketch"] = {
            "x": sketch.x,
            "y": sketch.y,
            "low": sketch.low,
            "high": sketch.high,
            "scale": sketch.scale,
            "ticks": [list(tick) for tick in ticks],
        }
    return data


def words() -> dict[str, str]:
    """The words of the element's own controls, in English; the page's script holds those of other languages too."""
    path = files("shardlab.predictions") / "locale" / f"{LANGUAGE}.json"
    strings: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return strings


def with_unit(shown: str, unit: str) -> str:
    """``"2.91×"``, ``"46.7 %"``, ``"63"``."""
    return shown + (unit if unit in ("×", "") else f"\u00a0{unit}")


def _static(data: dict[str, Any]) -> str:
    said = words()
    questions = "".join([f"<li>{item['prompt']}</li>" for item in data["items"]])
    answers = "".join(
        [
            f"<li><strong>{with_unit(item['shown'], item.get('unit', ''))}</strong> {item['why']}".rstrip()
            + "</li>"
            for item in data["items"]
        ]
    )
    return (
        f"<p><strong>{said['title']}</strong></p><ol>{questions}</ol>"
        f'<details class="predict-answers"><summary>{said["answers"]}</summary><ol>{answers}</ol></details>'
    )


def element(prediction: Prediction, guesses: dict[Any, Any] | None = None) -> str:
    """The ``<book-predict>`` element with its data and its text; the same bytes every time.

    The page's ``predict.js`` brings it to life. Without scripts and on paper the text stays.
    """
    data = payload(prediction, guesses)
    return (
        f'<book-predict id="predict-{escape(prediction.id)}" lang="{LANGUAGE}" class="tex2jax_ignore mathjax_ignore">'
        f"{json_script(data)}"
        f'<div class="predict-static">{_static(data)}</div></book-predict>'
    )
