"""Finds the question banks."""

from __future__ import annotations

import importlib
import json
import pkgutil
from importlib.resources import files

from shardlab.checks import choice, count
from shardlab.quiz import banks
from shardlab.quiz.model import Quiz
from shardlab.quiz.render import LANGUAGES, Catalogue


def names() -> tuple[str, ...]:
    """The quizzes there are, ``"c05"``, ``"q1"`` and so on: one per module in ``shardlab.quiz.banks``."""
    return tuple(sorted([module.name for module in pkgutil.iter_modules(banks.__path__)]))


def load(name: str, seed: int | None = None) -> Quiz:
    """The quiz called ``name``; ``seed`` draws other numbers for its fresh variants.

    Raises:
        ValueError: there is no such quiz, or ``seed`` is not a whole number from 0 to 2**32 - 1.
    """
    module = importlib.import_module(f"shardlab.quiz.banks.{choice('name', name, names())}")
    built: Quiz = (
        module.build() if seed is None else module.build(count("seed", seed, least=0, most=2**32 - 1))
    )
    return built


def catalogue(name: str, language: str) -> Catalogue:
    """The translations of a quiz's texts that are there; empty for English and where nobody has translated.

    Raises:
        ValueError: ``language`` is not known.
    """
    path = files("shardlab.quiz") / "locale" / f"{name}.{choice('language', language, LANGUAGES)}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
