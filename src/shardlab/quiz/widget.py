"""The quiz in a notebook: an ipywidget through anywidget, and the same element as HTML for the published page."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import anywidget
import traitlets

from shardlab.embed import es_module
from shardlab.palette import css
from shardlab.quiz.model import Quiz
from shardlab.quiz.render import Catalogue, element, payload
from shardlab.quiz.text import to_plain

# One counter for all quizzes of a kernel: see QuizWidget.__init__.
_serial = itertools.count(1)


@dataclass(frozen=True)
class Progress:
    """How far a reader is in one variant: parts answered right, parts checked or compared, all parts."""

    right: int
    tried: int
    total: int


class QuizWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """A quiz to show as the last expression of a cell.

    Traits:
        quiz: the questions, as the page's element reads them.
        answers: what the reader answered, by ``"variant/part"``; each with ``response``, ``right`` (None for an
            open question), ``tries``, and the ``misconception`` that the last wrong answer points to. Set it
            to ``{}`` to start over.
    """

    _esm = es_module("quiz.js", "shardlabQuiz")
    _css = css()
    quiz = traitlets.Dict().tag(sync=True)
    answers = traitlets.Dict().tag(sync=True)

    def __init__(self, quiz: Quiz, catalogue: Catalogue | None = None, language: str = "en") -> None:
        # The id stands in the notebook's stored output: one that is counted, not drawn, comes out the same in
        # every run. A quiz that is shown again has to get a new one, or closing the first would close both.
        super().__init__(
            quiz=payload(quiz, catalogue, language), model_id=f"shardlab-quiz-{quiz.id}-{next(_serial)}"
        )
        self._html = element(quiz, catalogue, language)

    def progress(self) -> dict[str, Progress]:
        """Progress per variant."""
        result = {}
        for variant in self.quiz["variants"]:
            found = [self.answers.get(f"{variant['id']}/{part['id']}", {}) for part in variant["parts"]]
            result[variant["id"]] = Progress(
                right=len([answer for answer in found if answer.get("right")]),
                tried=len([answer for answer in found if answer.get("tries")]),
                total=len(found),
            )
        return result

    def __repr__(self) -> str:
        titles = ", ".join([to_plain(variant["title"]) for variant in self.quiz["variants"]])
        return f"Quiz {self.quiz['id']}: {self.quiz['title']} Variants: {titles}."

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self._html}, metadata
