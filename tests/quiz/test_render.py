"""The element on the page: its data, its text version, its translations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from shardlab import quiz as quizzes
from shardlab.quiz import model, registry, render
from shardlab.quiz.text import to_html, to_plain


def data_of(html):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])


class Tags(HTMLParser):
    """Checks that every element that needs one has its end tag."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] not in ("script", "style"):
            self.text.append(data)


@pytest.mark.parametrize(
    ("text", "html", "plain"),
    [
        ("*N*−1 < 2 & **so**", "<em>N</em>−1 &lt; 2 &amp; <strong>so</strong>", "N−1 < 2 & so"),
        (
            "`no_sync` *T*~c~ 10^9^",
            "<code>no_sync</code> <em>T</em><sub>c</sub> 10<sup>9</sup>",
            "no_sync Tc 109",
        ),
        ("<script>", "&lt;script&gt;", "<script>"),
        (
            "1.75 GB in 175 ms, 64 %, 8 ranks",
            "1.75\u00a0GB in 175\u00a0ms, 64\u00a0%, 8 ranks",
            "1.75 GB in 175 ms, 64 %, 8 ranks",
        ),
    ],
)
def test_marks(text, html, plain):
    assert to_html(text) == html
    assert to_plain(text) == plain


@pytest.mark.parametrize("name", ["q3", "q4"])
def test_the_element_holds_readable_questions_and_answers(name):
    html = quizzes.html(name)
    parser = Tags()
    parser.feed(html)
    assert parser.open == []
    text = " ".join("".join(parser.text).split())
    data = data_of(html)
    for variant in data["variants"]:
        for part in variant["parts"]:
            plain = Tags()
            plain.feed(f"<p>{part['prompt']}</p>")
            assert " ".join("".join(plain.text).split()) in text
            if part["kind"] == "number":
                assert f"{part['shown']}" in text
    assert html.index('class="quiz-answers"') > html.index(data["variants"][0]["parts"][-1]["prompt"])
    assert "tex2jax_ignore" in html
    assert "http" not in html


def test_the_same_bytes_in_every_process():
    code = "import hashlib; from shardlab.quiz import html; print(hashlib.sha256((html('q3') + html('q4')).encode()).hexdigest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=280,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def small(prompt="How many?", key=2.0, value="8"):
    part = model.number(id="n", prompt=prompt, key=key, unit="ranks", solution=("so",))
    only = model.variant(id="v", title="T", scenario="With {N}", parts=(part,), values={"N": value})
    return model.quiz_of("tiny", "T", "Q", (only,), {}, 1)


def test_a_text_cannot_end_the_script_element():
    quiz = small(prompt="</script><b>*x*")
    html = render.element(quiz)
    assert html.count("</script>") == 1
    assert data_of(html)["variants"][0]["parts"][0]["prompt"] == "&lt;/script&gt;&lt;b&gt;<em>x</em>"


def test_a_question_has_a_version_of_its_content_not_of_its_translation():
    def version(quiz, catalogue=None):
        return render.payload(quiz, catalogue)["variants"][0]["parts"][0]["version"]

    base = version(small())
    assert version(small(), {"How many?": "多少？"}) == base
    assert version(small(prompt="How many ranks?")) != base
    assert version(small(key=3.0)) != base


def test_every_text_goes_through_the_catalogue():
    quiz = registry.load("q4")
    catalogue = {template: "⟦" + template + "⟧" for template in quizzes.texts("q4")}
    data = render.payload(quiz, catalogue, "zh_CN")
    assert data["language"] == "zh-CN"
    verbatim = {
        "id",
        "kind",
        "version",
        "misconception",
        "shown",
        "above",
        "below",
        "start",
        "language",
        "rows",
    }

    def check(value, key=""):
        if key in verbatim:
            return
        if isinstance(value, dict):
            for name, each in value.items():
                check(each, name)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                # The first of a given quantity is its symbol.
                check(
                    each, "id" if key == "quantity" and index == 0 else "quantity" if key == "given" else ""
                )
        elif isinstance(value, str):
            assert value.startswith("⟦"), value
            assert value.endswith("⟧"), value

    check(data)


def test_a_translation_is_found_by_its_file_and_keeps_its_numbers(tmp_path, monkeypatch):
    (tmp_path / "locale").mkdir()
    words = {
        "How long does a step take?": "一步需要多长时间？",
        "*C* + *T* = {C} + {T} = {step}.": "合计：{step}。",
    }
    (tmp_path / "locale" / "q4.zh_CN.json").write_text(json.dumps(words), encoding="utf-8")
    monkeypatch.setattr(registry, "files", lambda package: tmp_path)
    catalogue = registry.catalogue("q4", "zh_CN")
    part = render.payload(registry.load("q4"), catalogue)["variants"][0]["parts"][0]
    assert part["prompt"] == "一步需要多长时间？"
    assert part["solution"][-1] == "合计：975.1\u00a0ms。"
    assert registry.catalogue("q4", "en") == {}
    with pytest.raises(ValueError, match="language must be one of 'en', 'zh_CN'"):
        registry.catalogue("q4", "fr")


def test_the_words_of_the_controls_are_complete_in_every_language():
    english = render.ui_strings("en")
    for language in render.LANGUAGES:
        words = render.ui_strings(language)
        assert words.keys() == english.keys()
        for key, text in words.items():
            assert text.strip(), key
            assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", english[key])), key
    with pytest.raises(ValueError, match="language must be one of en, zh_CN"):
        render.ui_strings("xx")


def test_the_text_version_speaks_the_language_it_is_written_in():
    html = quizzes.html("q3", language="zh_CN")
    assert 'lang="zh-CN"' in html
    assert "<summary>答案</summary>" in html
    assert "Answers" not in html
