"""The prediction in a notebook: an ipywidget through anywidget, and the same element as HTML for the published page."""

from __future__ import annotations

import itertools
from typing import Any

import anywidget
import traitlets

from shardlab.embed import es_module
from shardlab.palette import css
from shardlab.predictions.model import Choice, Guess, Prediction
from shardlab.predictions.render import element, payload, with_unit
from shardlab.quiz.text import to_plain

# One counter for all predictions of a kernel: the id stands in the notebook's stored output, and one that is
# counted, not drawn, comes out the same in every run.
_serial = itertools.count(1)


def _put(into: Any, at: tuple[object, ...], value: Any) -> Any:
    """``into`` with ``value`` at a place; a tuple on the way becomes a new tuple."""
    first, *rest = at
    new = _put(into[first], tuple(rest), value) if rest else value
    if isinstance(into, tuple) and isinstance(first, int):
        return (*into[:first], new, *into[first + 1 :])
    into[first] = new
    return into


class PredictionWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """A prediction to show as the last expression of a cell.

    Traits:
        prediction: the questions, as the page's element reads them.
        guesses: what the reader typed, by the question's name: a number in the question's unit, or an option's name.
    """

    _esm = es_module("predict.js", "shardlabPredict")
    _css = css()
    prediction = traitlets.Dict().tag(sync=True)
    guesses = traitlets.Dict().tag(sync=True)

    def __init__(self, prediction: Prediction, notebook: dict[Any, Any] | None = None) -> None:
        super().__init__(
            prediction=payload(prediction, notebook),
            model_id=f"shardlab-predict-{prediction.id}-{next(_serial)}",
        )
        self._html = element(prediction, notebook)
        self._items = {item.id: item for item in prediction.items}
        self._notebook = notebook
        self.observe(self._write, "guesses")

    def _write(self, change: dict[str, Any]) -> None:
        """Put what was typed where the chapter's cells look for it."""
        if self._notebook is None:
            return
        for name, guess in change["new"].items():
            item = self._items.get(name)
            if item is None or not item.at:
                continue
            if isinstance(item, Guess) and isinstance(guess, (int, float)):
                _put(self._notebook, item.at, guess * item.scale)
            elif isinstance(item, Choice) and guess in dict(item.options):
                _put(self._notebook, item.at, guess)

    def __repr__(self) -> str:
        questions = " ".join(
            [
                f"{to_plain(item.prompt)}" + (f" ({with_unit('', item.unit).strip()})" if item.unit else "")
                if isinstance(item, Guess)
                else to_plain(item.prompt)
                for item in self._items.values()
            ]
        )
        return f"Your prediction: {questions}"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self._html}, metadata
