"""Self-check quizzes: questions whose answers the models compute, for a notebook and for the page.

::

    from shardlab.quiz import quiz

    quiz("q3")           # the last expression of a cell
    quiz("q3", seed=7)   # the same questions with other numbers, for another class
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Banks and models run in the browser's Python too, where the rest does not import: it is imported when used.
if TYPE_CHECKING:
    from shardlab.quiz.widget import QuizWidget

__all__ = ["html", "names", "quiz", "texts"]


def names() -> tuple[str, ...]:
    """The quizzes there are, one for each file in ``shardlab/quiz/banks``.

    ``"q1"`` to ``"q7"`` are the source's questions; ``"c05"`` is the quiz of chapter 05, which has none of them.
    """
    from shardlab.quiz import registry

    return registry.names()


def quiz(name: str, seed: int | None = None, language: str = "en") -> QuizWidget:
    """The quiz called ``name`` as a widget; its answers are kept in the browser and in its ``answers`` trait.

    Args:
        name: such as ``"q3"`` or ``"c05"``: one of :func:`names`.
        seed: draws other numbers for the fresh variants; a whole number.
        language: of the questions, where they are translated (``"en"``, ``"zh_CN"``).

    Raises:
        ValueError: an argument is out of range.
        ImportError: anywidget is missing (``pip install shardlab[notebook]``).
    """
    from shardlab.quiz import registry

    built = registry.load(name, seed)
    words = registry.catalogue(name, language)
    try:
        from shardlab.quiz.widget import QuizWidget
    except ModuleNotFoundError as error:
        raise ImportError(
            f"a quiz in a notebook needs {error.name}: pip install 'shardlab[notebook]'"
        ) from None
    return QuizWidget(built, words, language)


def html(name: str, seed: int | None = None, language: str = "en") -> str:
    """The quiz called ``name`` as a ``<book-quiz>`` element with its data and a text version, for a page.

    Args and errors as in :func:`quiz`; nothing beyond the standard library is needed.
    """
    from shardlab.quiz import registry
    from shardlab.quiz.render import element

    return element(registry.load(name, seed), registry.catalogue(name, language), language)


def texts(name: str) -> list[str]:
    """Every text of a quiz that can be translated, in reading order.

    A translation is a JSON object from these to their counterparts, with the same ``{names}`` and marks,
    in ``shardlab/quiz/locale/<name>.<language>.json``.
    """
    from shardlab.quiz import registry
    from shardlab.quiz.render import templates

    return templates(registry.load(name))
