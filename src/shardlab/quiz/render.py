"""A quiz for a page: the data that the ``<book-quiz>`` element reads, and HTML that reads well without it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from shardlab.embed import json_script
from shardlab.quiz.misconceptions import MISCONCEPTIONS
from shardlab.quiz.model import (
    Number,
    Open,
    Order,
    Quiz,
    Selection,
    Variant,
    decimal,
    fill,
    part_texts,
    variant_texts,
)
from shardlab.quiz.text import to_html

LANGUAGES = ("en", "zh_CN")

Catalogue = Mapping[str, str]
Part = Number | Selection | Order | Open


def ui_strings(language: str) -> dict[str, str]:
    """The words of the quiz's own controls in one of :data:`LANGUAGES`."""
    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    path = files("shardlab.quiz") / "locale" / f"{language}.json"
    strings: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return strings


def templates(quiz: Quiz) -> list[str]:
    """Every text of a quiz that a translator translates, once each, in reading order; ``{name}`` stays as it is."""
    found = [quiz.title, quiz.question]
    used = []
    for variant in quiz.variants:
        found += [template for _, template in variant_texts(variant)]
        for part in variant.parts:
            used += [slug for slug in _slugs(part) if slug not in used]
    for slug in used:
        found += MISCONCEPTIONS[slug]
    return list(dict.fromkeys(found))


def _slugs(part: Part) -> list[str]:
    if isinstance(part, Number):
        return [mistake.misconception for mistake in part.mistakes]
    if isinstance(part, Selection):
        return [option.misconception for option in part.options if option.misconception]
    return [trap.misconception for trap in part.traps] if isinstance(part, Order) else []


def _version(part: Part, variant: Variant) -> str:
    """Changes when the question does, not when its translation does: kept answers belong to a version."""
    content = [fill(template, variant.values) for _, template in part_texts(part)]
    if isinstance(part, Number):
        content.append(repr((part.key, part.relative, part.absolute)))
    elif isinstance(part, Selection):
        content += [f"{option.id}={option.correct}" for option in part.options]
    elif isinstance(part, Order):
        content += [item.id for item in part.items]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:8]


def _rich(values: Mapping[str, str], catalogue: Catalogue) -> Callable[[str], str]:
    """Translate, fill, and turn the marks into HTML."""
    return lambda template: to_html(fill(catalogue.get(template, template), dict(values)))


def _mistake(slug: str, why: str, rich: Callable[[str], str]) -> dict[str, str]:
    name, text = MISCONCEPTIONS[slug]
    return {"misconception": slug, "name": rich(name), "why": rich(why or text)}


def _part(part: Part, variant: Variant, rich: Callable[[str], str]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": part.id,
        "kind": part.kind,
        "version": _version(part, variant),
        "prompt": rich(part.prompt),
    }
    if isinstance(part, Open):
        data.update(answer=rich(part.answer), points=[rich(point) for point in part.points])
        return data
    if isinstance(part, Number):
        data.update(
            key=part.key,
            shown=decimal(part.key, part.digits),
            unit=rich(part.unit),
            relative=part.relative,
            absolute=part.absolute,
            mistakes=[
                {"value": each.value, **_mistake(each.misconception, each.why, rich)}
                for each in part.mistakes
            ],
        )
    elif isinstance(part, Selection):
        data["options"] = [
            {"id": each.id, "text": rich(each.text), "correct": True, "why": rich(each.why)}
            if each.correct
            else {"id": each.id, "text": rich(each.text), **_mistake(each.misconception, each.why, rich)}
            for each in part.options
        ]
    else:
        data.update(
            first=rich(part.first),
            last=rich(part.last),
            items=[{"id": each.id, "text": rich(each.text), "note": rich(each.note)} for each in part.items],
            start=list(part.start),
            traps=[
                {"above": each.above, "below": each.below, **_mistake(each.misconception, each.why, rich)}
                for each in part.traps
            ],
        )
    data["solution"] = [rich(step) for step in part.solution]
    return data


def payload(quiz: Quiz, catalogue: Catalogue | None = None, language: str = "en") -> dict[str, Any]:
    """What the ``<book-quiz>`` element reads: plain data, texts as HTML.

    Args:
        quiz: the quiz.
        catalogue: translations of its :func:`templates`; a text that is missing stays English.
        language: the language of the texts, a BCP 47 tag with ``_`` or ``-``.
    """
    known = catalogue or {}
    heading = _rich(quiz.values, known)
    variants = []
    for variant in quiz.variants:
        rich = _rich(variant.values, known)
        data: dict[str, Any] = {
            "id": variant.id,
            "title": rich(variant.title),
            "scenario": rich(variant.scenario),
            "given": [[each.symbol, rich(each.meaning), rich(each.value)] for each in variant.given],
            "parts": [_part(part, variant, rich) for part in variant.parts],
        }
        if variant.table is not None:
            data["table"] = {
                "caption": rich(variant.table.caption),
                "columns": [rich(column) for column in variant.table.columns],
                "rows": [list(row) for row in variant.table.rows],
            }
        variants.append(data)
    return {
        "id": quiz.id,
        "seed": quiz.seed,
        "language": language.replace("_", "-"),
        "title": heading(quiz.title),
        "question": heading(quiz.question),
        "variants": variants,
    }


def _list(tag: str, items: list[str]) -> str:
    return f"<{tag}>{''.join([f'<li>{item}</li>' for item in items])}</{tag}>"


def _static_question(part: dict[str, Any]) -> str:
    html = f"<p>{part['prompt']}</p>"
    if part["kind"] in ("choice", "several"):
        return html + _list("ul", [option["text"] for option in part["options"]])
    if part["kind"] == "order":
        texts = {item["id"]: item["text"] for item in part["items"]}
        ends = f"<p>{part['first']} … {part['last']}</p>"
        return html + ends + _list("ul", [texts[name] for name in part["start"]])
    return html


def _static_answer(part: dict[str, Any], ui: Mapping[str, str]) -> str:
    if part["kind"] == "open":
        return f"<p>{part['answer']}</p>"
    steps = "".join([f"<p>{step}</p>" for step in part["solution"]])
    if part["kind"] == "number":
        space = "" if part["unit"] == "×" else "\u00a0"
        return f"<p><strong>{part['shown']}{space}{part['unit']}</strong></p>{steps}"
    if part["kind"] == "order":
        return _list("ol", [f"{item['text']} ({item['note']})" for item in part["items"]]) + steps
    lines = []
    for option in part["options"]:
        if option.get("correct"):
            lines.append(f"<strong>{ui['rightOption']}: {option['text']}</strong> {option['why']}")
        else:
            lines.append(f"{ui['wrongOption']}: {option['text']} <em>{option['name']}.</em> {option['why']}")
    return _list("ul", lines) + steps


def _static_variant(variant: dict[str, Any]) -> str:
    html = f"<p><strong>{variant['title']}.</strong> {variant['scenario']}</p>"
    if variant["given"]:
        html += _list(
            "ul", [f"<em>{symbol}</em> ({meaning}): {value}" for symbol, meaning, value in variant["given"]]
        )
    if "table" in variant:
        table = variant["table"]
        head = "".join([f'<th scope="col">{column}</th>' for column in table["columns"]])
        rows = "".join(
            [
                f'<tr><th scope="row">{row[0]}</th>{"".join([f"<td>{cell}</td>" for cell in row[1:]])}</tr>'
                for row in table["rows"]
            ]
        )
        html += f"<table><caption>{table['caption']}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return html + _list("ol", [_static_question(part) for part in variant["parts"]])


def _static_answers(variant: dict[str, Any], ui: Mapping[str, str]) -> str:
    answers = _list("ol", [_static_answer(part, ui) for part in variant["parts"]])
    return f'<details class="quiz-answers"><summary>{ui["answers"]}</summary>{answers}</details>'


def static_html(data: dict[str, Any], ui: Mapping[str, str]) -> str:
    """The quiz as text: the first variant with its answers at the end, the others folded away."""
    first, *others = data["variants"]
    more = "".join([_static_variant(variant) + _static_answers(variant, ui) for variant in others])
    folded = (
        f'<details class="quiz-more"><summary>{ui["moreVariants"]}</summary>{more}</details>'
        if others
        else ""
    )
    return (
        f"<p><strong>{ui['selfCheck']}: {data['title']}</strong> {data['question']}</p>"
        f"{_static_variant(first)}{_static_answers(first, ui)}{folded}"
    )


def element(quiz: Quiz, catalogue: Catalogue | None = None, language: str = "en") -> str:
    """The ``<book-quiz>`` element with its data and its text; the same bytes every time.

    The page's ``quiz.js`` brings it to life. Without scripts and on paper the text stays.
    """
    data = payload(quiz, catalogue, language)
    return (
        f'<book-quiz id="quiz-{escape(quiz.id)}" lang="{escape(data["language"])}" class="tex2jax_ignore mathjax_ignore">'
        f"{json_script(data)}"
        f'<div class="quiz-static">{static_html(data, ui_strings(language))}</div></book-quiz>'
    )
