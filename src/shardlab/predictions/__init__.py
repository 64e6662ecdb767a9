"""Predict first: a chapter's questions, to be answered before it tells, in a notebook and on the page.

::

    from shardlab.predictions import predict

    my_guess = {8: 8.0, 64: 64.0, 512: 512.0}
    predict("c03", my_guess)   # the last expression of a cell; what is typed goes into my_guess
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardlab.checks import choice

if TYPE_CHECKING:
    from shardlab.predictions.model import Prediction
    from shardlab.predictions.widget import PredictionWidget

__all__ = ["html", "load", "names", "predict"]


def names() -> tuple[str, ...]:
    """The predictions there are: ``("c01", ..., "c13")``, one for each chapter."""
    from shardlab.predictions.chapters import PREDICTIONS

    return tuple(PREDICTIONS)


def load(name: str) -> Prediction:
    """The prediction called ``name``, its answers computed.

    Raises:
        ValueError: there is no such prediction.
    """
    from shardlab.predictions.chapters import PREDICTIONS

    return PREDICTIONS[choice("name", name, names())]()


def predict(name: str, guesses: dict[Any, Any] | None = None) -> PredictionWidget:
    """The prediction called ``name`` as a widget.

    Args:
        name: one of :func:`names`, the chapter that asks.
        guesses: the notebook's own dictionary of guesses. Its values stand in the fields as examples, and what the
            reader types is written into it.

    Raises:
        ValueError: there is no such prediction, or ``guesses`` lacks one of its places.
        ImportError: anywidget is missing (``pip install shardlab[notebook]``).
    """
    built = load(name)
    try:
        from shardlab.predictions.widget import PredictionWidget
    except ModuleNotFoundError as error:
        raise ImportError(
            f"a prediction in a notebook needs {error.name}: pip install 'shardlab[notebook]'"
        ) from None
    return PredictionWidget(built, guesses)


def html(name: str, guesses: dict[Any, Any] | None = None) -> str:
    """The prediction as a ``<book-predict>`` element with its data and a text version, for a page.

    Args and errors as in :func:`predict`; nothing beyond the standard library is needed.
    """
    from shardlab.predictions.render import element

    return element(load(name), guesses)
