"""Predictions in a real browser: typed, chosen, drawn; compared, kept, and guessed anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlab.palette import css
from shardlab.predictions import html, names

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "src/shardlab/web"
AXE = ROOT / "frontend/node_modules/axe-core/axe.min.js"
STYLE = (
    "body{margin:0 auto;max-width:46rem;padding:0 1rem;font:17px/1.6 system-ui,sans-serif;"
    "background:var(--sl-surface);color:var(--sl-text)}"
)
GUESS = {8: 8.0, 64: 64.0, 512: 512.0}


def document(body, lang="en", theme="light"):
    return (
        f'<!doctype html><html lang="{lang}" data-theme="{theme}"><head><meta charset="utf-8"><title>Predict</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f'<style>{css()}{STYLE}</style><link rel="stylesheet" href="predict.css">'
        '<script defer src="predict.js"></script></head>'
        f"<body><main><h1>Data parallel</h1><h2>Predict</h2>{body}</main></body></html>"
    )


@pytest.fixture(scope="module")
def site(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in ("predict.js", "predict.css"):
        (folder / name).write_bytes((WEB / name).read_bytes())
    everything = "".join([html(name) for name in names()])
    pages = {
        "one": document(html("c03", GUESS)),
        "mixed": document(html("c08") + html("c06")),
        "light": document(everything),
        "dark": document(everything, theme="dark"),
        "chinese": document(html("c03"), lang="zh_CN"),
        "broken": document(html("c03").replace('{"id"', '{"id', 1)),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return serve(folder)


@pytest.fixture
def page_of(site, open_page):
    """Opens a page. Nothing may fail, and no request may leave its host."""
    opened = []

    def start(name, **options):
        page = open_page(f"{site}/{name}.html", **options)
        opened.append(page)
        return page

    yield start
    for page in opened:
        assert page.foreign == []
        assert page.faults == []


def answers(page):
    return [text.replace("\u00a0", " ") for text in page.locator("book-predict .answer").all_inner_texts()]


def test_by_keyboard_from_the_first_field_to_the_answers(page_of):
    page = page_of("one")
    fields = page.locator("book-predict input")
    assert fields.nth(0).get_attribute("placeholder") == "such as 8"
    assert answers(page) == ["", "", ""]
    assert "2.91" not in page.locator("book-predict").inner_text()
    fields.nth(0).focus()
    page.keyboard.type("8")
    page.keyboard.press("Tab")
    page.keyboard.type("21")
    page.keyboard.press("Enter")
    first, second, third = answers(page)
    assert first.startswith("The model: 2.91×. You said 8×: 2.8 times the answer.")
    assert second.startswith("The model: 21.5×. You said 21×: well predicted.")
    assert third.startswith("The model: 165×. You left this one out.")
    assert page.evaluate("document.activeElement.shadowRoot.activeElement.className") == "answer"
    assert fields.nth(0).get_attribute("readonly") is not None


def test_a_reload_keeps_guesses_and_answers_and_guessing_again_clears_both(page_of):
    page = page_of("one")
    page.locator("book-predict input").nth(0).fill("1,5")
    page.reload()
    assert page.locator("book-predict input").nth(0).input_value() == "1,5"
    page.get_by_role("button", name="Compare with the model").click()
    assert answers(page)[0].startswith("The model: 2.91×. You said 1.5×: the answer is 1.9 times that.")
    page.reload()
    assert answers(page)[0].startswith("The model: 2.91×.")
    page.get_by_role("button", name="Guess again").click()
    assert answers(page) == ["", "", ""]
    assert page.locator("book-predict input").nth(0).input_value() == ""
    page.reload()
    assert answers(page) == ["", "", ""]


def test_drawn_in_the_chart(page_of, settle):
    page = page_of("one")
    settle(page)
    chart = page.locator("book-predict svg")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.2, steps=20)
    page.mouse.up()
    drawn = [
        float(value)
        for value in page.locator("book-predict input").evaluate_all("all => all.map(one => one.value)")
    ]
    assert 5 < drawn[0] < 200
    assert drawn[0] < drawn[1] < drawn[2] <= 1000
    assert chart.locator("circle").count() == 3
    page.get_by_role("button", name="Compare with the model").click()
    assert chart.locator("circle").count() == 6
    assert chart.get_attribute("aria-label").endswith("beside the model's answers (2.91, 21.5, 165).")
    # What is compared stays as it was drawn.
    page.mouse.click(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.9)
    assert float(page.locator("book-predict input").nth(0).input_value()) == drawn[0]


def test_choices_and_an_answer_of_zero(page_of):
    page = page_of("mixed")
    composing, pipeline = page.locator("#predict-c08"), page.locator("#predict-c06")
    composing.get_by_role("radio", name="data").check()
    composing.get_by_role("button", name="Compare").click()
    assert composing.locator(".answer").first.inner_text().startswith("The model: tensor. You said: data.")
    fields = pipeline.locator("input")
    fields.nth(0).fill("46.7 %")
    fields.nth(2).fill("10")
    pipeline.get_by_role("button", name="Compare").click()
    told = [text.replace("\u00a0", " ") for text in pipeline.locator(".answer").all_inner_texts()]
    assert told[0].startswith("The model: 46.7 %. You said 46.7 %: well predicted.")
    assert told[1].startswith("The model: 63 micro-batches. You left this one out.")
    assert told[2].startswith("The model: 0 points. You said 10 points: 10 off.")


def test_what_cannot_be_read_is_named_and_nothing_is_told(page_of):
    page = page_of("one")
    button = page.get_by_role("button", name="Compare with the model")
    button.click()
    page.get_by_text("Type a guess first").wait_for()
    fields = page.locator("book-predict input")
    fields.nth(0).fill("many")
    fields.nth(1).fill("3 GB")
    button.click()
    page.get_by_text("“many” can't be read as a number.").wait_for()
    page.get_by_text("“GB” is not a unit of what is asked. The guess is in ×.").wait_for()
    assert fields.nth(0).get_attribute("aria-invalid") == "true"
    assert answers(page) == ["", "", ""]
    assert page.evaluate("document.activeElement.shadowRoot.activeElement.value") == "many"


def test_what_was_kept_and_cannot_be_read_counts_as_nothing(page_of):
    page = page_of("one")
    page.evaluate("localStorage.setItem('shardlab.predict/c03', '{broken')")
    page.reload()
    assert page.locator("book-predict input").nth(0).input_value() == ""


def test_without_data_or_scripts_the_text_stays(site, open_page, page_of):
    page = page_of("one", scripts=False)
    assert page.get_by_text("512 GPUs: how many times").is_visible()
    assert not page.get_by_text("A step processes eight batches").is_visible()
    broken = open_page(f"{site}/broken.html")
    assert broken.get_by_text("512 GPUs: how many times").is_visible()
    assert any("no readable data" in fault for fault in broken.faults)


def test_it_speaks_the_pages_language(page_of):
    page = page_of("chinese")
    page.get_by_role("button", name="与模型比较").wait_for()
    assert page.locator("book-predict label").first.get_attribute("lang") == "en"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_from_axe_and_it_fits(theme, width, page_of, settle):
    page = page_of(theme, width=width, scheme=theme)
    for element in page.locator("book-predict").all():
        element.locator("input[type=text]").first.fill("7")
        element.get_by_role("button").click()
    settle(page)
    assert page.locator(".answer p").count() > 50
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found["violations"]] == []
