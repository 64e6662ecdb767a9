"""The quiz in a real browser: every kind of question by keyboard, answers that stay, and a page that reads well."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shardlab.palette import css
from shardlab.quiz import html, registry
from shardlab.quiz.text import to_plain
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "src/shardlab/web/quiz.js"
SHEET = ROOT / "src/shardlab/web/quiz.css"
AXE = ROOT / "frontend/node_modules/axe-core/axe.min.js"
STYLE = (
    "body{margin:0 auto;max-width:46rem;padding:0 1rem;font:17px/1.6 system-ui,sans-serif;"
    "background:var(--sl-surface);color:var(--sl-text)}"
)


def document(body, *, lang="en", theme="light", head="", script=True):
    tag = '<script defer src="quiz.js"></script>' if script else ""
    return (
        f'<!doctype html><html lang="{lang}" data-theme="{theme}"><head><meta charset="utf-8"><title>Quiz</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f'<style>{css()}{STYLE}</style><link rel="stylesheet" href="quiz.css">{head}{tag}</head>'
        f"<body><main><h1>Data parallel</h1><h2>Self-check</h2>{body}</main></body></html>"
    )


@pytest.fixture(scope="module")
def site(serve, tmp_path_factory):
    """Pages with both quizzes, in light, dark and Chinese, and a frame that may store nothing."""
    folder = tmp_path_factory.mktemp("site")
    for file in (SCRIPT, SHEET):
        (folder / file.name).write_bytes(file.read_bytes())
    both = html("q3") + html("q4")
    pages = {
        "all": document("".join([html(name) for name in registry.names()])),
        "light": document(both),
        "dark": document(both, theme="dark"),
        "chinese": document(html("q3"), lang="zh_CN"),
        "early": document(html("q3"), script=False, head='<script src="quiz.js"></script>'),
        "bare": document(html("q3")).replace(css(), ""),
        "broken": document(html("q3").replace('{"id"', '{"id', 1)),
        "frame": document(
            '<iframe sandbox="allow-scripts allow-downloads" src="light.html" width="700" height="900"></iframe>',
            script=False,
        ),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return serve(folder)


@pytest.fixture
def quiz(site, open_page):
    """Opens a page; returns it and its first quiz. Nothing may fail, and no request may leave the page's host."""
    opened = []

    def start(name="light", which="q3", **options):
        page = open_page(f"{site}/{name}.html", **options)
        opened.append(page)
        return page, page.locator(f"#quiz-{which}")

    yield start
    for page in opened:
        assert page.foreign == []
        assert page.faults == []


def part(element, key):
    return element.locator(f'[data-part="{key}"]')


def status(form):
    return form.locator(".status")


def seen(locator):
    """What is seen, with plain spaces between numbers and units."""
    return locator.inner_text().replace("\u00a0", " ")


ACTIVE = """() => {
  let active = document.activeElement;
  while (active?.shadowRoot?.activeElement) active = active.shadowRoot.activeElement;
  return active;
}"""


def tab_to(page, target, key="Tab"):
    """Presses Tab until the target has the focus."""
    wanted = target.element_handle()
    for _ in range(120):
        page.keyboard.press(key)
        if page.evaluate(f"(wanted) => ({ACTIVE})() === wanted", wanted):
            return
    pytest.fail(f"{key} never reaches {target}")


def type_and_check(page, form, text):
    field = form.locator("input[type=text]")
    tab_to(
        page,
        field,
        "Tab"
        if not page.evaluate(f"(f) => f.contains(({ACTIVE})())", form.element_handle())
        else "Shift+Tab",
    )
    page.keyboard.press("Control+A")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


# Grading, in the script as it ships.


@pytest.mark.parametrize(
    ("text", "unit", "values"),
    [
        ("175.1", "ms", [175.1]),
        ("  0,82 ", "×", [0.82]),
        ("0.82x", "×", [0.82]),
        ("82 %", "×", [0.82]),
        ("1.5e3", "ms", [1500]),
        ("1,5E+3 ms", "ms", [1500]),
        ("1.5×10³ ms", "ms", [1500]),
        ("15·10^-1", "ms", [1.5]),
        ("−3", "ms", [-3]),
        ("0.1751 s", "ms", [175.1]),
        ("175100 µs", "ms", [175.1]),
        ("19 Gbit/s", "GB/s", [2.375]),
        ("2.375 GB/s", "Gb/s", [19]),
        ("1,008", "ms", [1.008, 1008]),
        ("1,008.3", "ms", [1008.3]),
        ("1.008,3", "ms", [1008.3]),
        ("1 008,3", "ms", [1008.3]),
        ("1’008.3", "ms", [1008.3]),
        ("1,234,567", "ms", [1234567]),
        ("１７５．１", "ms", [175.1]),
        ("63.6%", "%", [63.6]),
        ("11 GPUs", "ranks", [11]),
        (".5", "×", [0.5]),
        ("175.", "ms", [175]),
    ],
)
def test_numbers_are_read_as_people_write_them(number_reader, text, unit, values):
    found = number_reader(text, unit)
    assert found.get("values") == pytest.approx(values), found


@pytest.mark.parametrize(
    ("text", "unit", "error"),
    [
        ("", "ms", "empty"),
        ("   ", "ms", "empty"),
        ("abc", "ms", "unreadable"),
        ("1.2.3", "ms", "unreadable"),
        ("1,2,3", "ms", "unreadable"),
        ("12 34x5", "ms", "unreadable"),
        ("1..2", "ms", "unreadable"),
        ("3×100", "ms", "unreadable"),
        ("Infinity", "ms", "unreadable"),
        ("175 GB", "ms", "unit"),
        ("175 foo", "ms", "unit"),
        ("11 ms", "ranks", "unit"),
    ],
)
def test_what_is_no_number_is_said_to_be_none(number_reader, text, unit, error):
    assert number_reader(text, unit).get("error") == error


@pytest.fixture(scope="module")
def number_reader(chromium, site):
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    page.goto(f"{site}/light.html")
    yield lambda text, unit: page.evaluate(
        "([text, unit]) => shardlabQuiz.parseNumber(text, unit)", [text, unit]
    )
    context.close()


def test_every_key_is_right_and_every_typical_slip_is_named_as_itself(site, open_page):
    page = open_page(f"{site}/all.html")
    wrong = page.evaluate(
        """() => {
          const found = [];
          for (const element of document.querySelectorAll("book-quiz")) for (const variant of element.data.variants)
            for (const part of variant.parts) {
              const grade = (response) => shardlabQuiz.grade(part, response);
              const expect = (ok, ...what) => { if (!ok) found.push([variant.id, part.id, ...what]); };
              if (part.kind === "number") {
                expect(grade(String(part.key)).state === "right", "key");
                expect(grade(part.shown + " " + part.unit).state === "right", "as shown");
                for (const mistake of part.mistakes) {
                  const result = grade(String(mistake.value));
                  expect(result.state === "wrong" && result.mistakes[0]?.why === mistake.why, mistake.misconception);
                }
              } else if (part.kind === "order") {
                const right = part.items.map((item) => item.id);
                expect(grade(right).state === "right", "order");
                expect(grade([...right].reverse()).state === "wrong", "reverse");
                expect(grade(part.start).state === "wrong", "start");
                for (const trap of part.traps) {
                  const swapped = right.map((id) => (id === trap.above ? trap.below : id === trap.below ? trap.above : id));
                  expect(grade(swapped).mistakes.some((each) => each.why === trap.why), trap.misconception);
                }
              } else if (part.kind !== "open") {
                const right = part.options.filter((option) => option.correct).map((option) => option.id);
                expect(grade(right).state === "right", "options");
                for (const option of part.options.filter((each) => !each.correct)) {
                  const result = grade(part.kind === "choice" ? [option.id] : [...right, option.id]);
                  expect(result.state === "wrong" && result.mistakes[0].name && result.mistakes[0].why, option.id);
                }
              }
            }
          return found;
        }"""
    )
    assert wrong == []


# Every kind of question, by keyboard alone.


def test_a_number_by_keyboard(quiz):
    page, element = quiz()
    form = part(element, "chapter/speedup")
    assert form.get_by_role("button", name="Show solution").count() == 0
    type_and_check(page, form, "275.1 / 100")
    assert "can't be read as a number" in seen(status(form))
    assert form.get_by_role("button", name="Show solution").count() == 0
    type_and_check(page, form, "2.75")
    told = seen(status(form))
    assert "✗ 2.75 is not it yet." in told
    assert "Step inflation read as speedup." in told
    type_and_check(page, form, "7")
    assert "It is too large." in seen(status(form))
    type_and_check(page, form, "3.0")
    assert "It is close, but outside the tolerance" in seen(status(form))
    type_and_check(page, form, "2907")
    assert "off by a factor of 1000" in seen(status(form))
    tab_to(page, form.get_by_role("button", name="Show solution"))
    page.keyboard.press("Enter")
    assert "Speedup = N·C/(C+T) = 8 · 100 ms / 275.1 ms = 2.91×." in seen(
        form.get_by_role("group", name="Solution")
    )
    assert form.get_by_role("button", name="Hide solution").get_attribute("aria-expanded") == "true"
    type_and_check(page, form, "2,91")
    assert seen(status(form)).strip() == "✓ Right: 2.91×."
    assert status(form).get_attribute("role") == "status"
    assert "1 of 6 right" in seen(element.locator("section"))


def test_a_share_may_be_typed_as_a_fraction(quiz):
    page, element = quiz(which="q4")
    element.get_by_role("combobox", name="Variant").select_option(index=5)
    form = part(element, "accumulate/efficiency")
    key = next(v for v in registry.load("q4").variants if v.id == "accumulate").parts[1].key
    type_and_check(page, form, f"{key / 100:.4f}")
    assert "✓ Right" in seen(status(form))
    assert "as a share is" in seen(status(form))


def test_a_single_choice_by_keyboard(quiz):
    page, element = quiz()
    form = part(element, "chapter/reason")
    tab_to(page, form.get_by_role("button", name="Check"))
    page.keyboard.press("Enter")
    assert "Choose an answer first." in seen(status(form))
    # The focus is on the first option now: down to the fourth.
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    told = seen(status(form))
    assert "Not yet." in told
    assert "A cap on efficiency read as a cap on speedup." in told
    for _ in range(2):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert "✓ Right." in seen(status(form))
    assert "63.7 % of the step" in seen(status(form))


def test_several_choices_by_keyboard(quiz):
    page, element = quiz()
    form = part(element, "chapter/helps")
    boxes = form.get_by_role("checkbox")
    for index in (0, 1):
        tab_to(page, boxes.nth(index))
        page.keyboard.press("Space")
    page.keyboard.press("Enter")
    told = seen(status(form))
    assert "Sharding taken for compression." in told
    assert "Right answers still missing: 2." in told
    tab_to(page, boxes.nth(1), "Shift+Tab") if not boxes.nth(1).evaluate(
        "(b) => b.matches(':focus')"
    ) else None
    page.keyboard.press("Space")
    for index in (2, 4):
        tab_to(page, boxes.nth(index))
        page.keyboard.press("Space")
    page.keyboard.press("Enter")
    told = seen(status(form))
    assert "✓ Right." in told
    assert told.count("It rises to") == 3


def test_an_order_by_keyboard(quiz):
    page, element = quiz()
    form = part(element, "chapter/ranking")

    def lines():
        return [line.split("\n")[0] for line in form.locator(".order li").all_inner_texts()]

    assert lines()[0] == "64 ranks in place of 8"
    tab_to(page, form.get_by_role("button", name="Check"))
    page.keyboard.press("Enter")
    assert "1 of 5 in place." in seen(status(form))
    assert "More ranks taken to raise the efficiency." in seen(status(form))
    down = form.get_by_role("button", name="Move down: 64 ranks in place of 8")
    tab_to(page, down, "Shift+Tab")
    for position in range(2, 6):
        page.keyboard.press("Enter")
        assert lines()[position - 1] == "64 ranks in place of 8"
        assert down.evaluate("(button) => button.matches(':focus')")  # stays, so that Enter moves on
    assert "64 ranks in place of 8: now 5 of 5." in seen(form.locator(".sr[role=status]"))
    assert down.get_attribute("aria-disabled") == "true"
    page.keyboard.press("Enter")
    assert lines()[4] == "64 ranks in place of 8"
    for name, ups in (("twice the bandwidth", 3), ("four micro-batches", 2)):
        tab_to(page, form.get_by_role("button", name=f"Move up: {name}"), "Shift+Tab")
        for _ in range(ups):
            page.keyboard.press("Space")
    tab_to(page, form.get_by_role("button", name="Check"))
    page.keyboard.press("Enter")
    assert "✓ Right." in seen(status(form)), lines()
    assert "(69.5 %)" in seen(status(form))


def test_an_open_question_by_keyboard(quiz):
    page, element = quiz()
    form = part(element, "chapter/explain")
    tab_to(page, form.get_by_role("button", name="Compare with a model answer"))
    page.keyboard.press("Enter")
    assert "Write your own answer first." in seen(status(form))
    assert form.get_by_role("group", name="A model answer").count() == 0
    page.keyboard.type("Every step waits 175 ms.\nThat is longer than it computes.")
    tab_to(page, form.get_by_role("button", name="Compare with a model answer"))
    page.keyboard.press("Enter")
    panel = form.get_by_role("group", name="A model answer")
    assert panel.evaluate("(panel) => panel.matches(':focus')")
    assert "A step processes 8 batches" in seen(panel)
    assert "0 of 4 points ticked" in seen(status(form))
    boxes = panel.get_by_role("checkbox")
    for index in range(4):
        tab_to(page, boxes.nth(index))
        page.keyboard.press("Space")
    assert "All 4 points ticked." in seen(status(form))
    assert "1 of 6 right" in seen(element.locator("section"))


# Variants, and answers that stay.


def test_another_variant_cycles_through_all_and_back(quiz):
    _, element = quiz()
    variants = registry.load("q3").variants
    button = element.get_by_role("button", name="Show another variant")
    titles = [seen(element.locator("h4"))]
    for _ in variants:
        button.click()
        titles.append(seen(element.locator("h4")))
        assert element.locator("h4").evaluate("(title) => title.matches(':focus')")
    assert titles == [to_plain(variant.title) for variant in variants] + [titles[0]]


def answer_all_kinds(page, element):
    type_and_check(page, part(element, "chapter/ring-time"), "200")
    part(element, "chapter/reason").get_by_role("radio").nth(1).check()
    part(element, "chapter/reason").get_by_role("button", name="Check").click()
    part(element, "chapter/helps").get_by_role("checkbox").nth(3).check()  # ticked, not checked
    part(element, "chapter/ranking").get_by_role("button", name="Move down: 64 ranks").click()
    part(element, "chapter/ranking").get_by_role("button", name="Check").click()
    part(element, "chapter/ranking").get_by_role("button", name="Show solution").click()
    form = part(element, "chapter/explain")
    form.get_by_role("textbox").fill("My own words")
    form.get_by_role("button", name="Compare").click()
    form.get_by_role("checkbox").nth(2).check()


def check_all_kinds(element):
    form = part(element, "chapter/ring-time")
    assert form.locator("input").input_value() == "200"
    assert "2P in place of 2(N−1)/N·P" in seen(status(form))
    form = part(element, "chapter/reason")
    assert form.get_by_role("radio").nth(1).is_checked()
    assert "✓ Right." in seen(status(form))
    form = part(element, "chapter/helps")
    assert form.get_by_role("checkbox").nth(3).is_checked()
    assert seen(status(form)) == ""
    form = part(element, "chapter/ranking")
    assert seen(form.locator(".order li").nth(1)).startswith("64 ranks")
    assert " in place." in seen(status(form))
    assert "(69.5 %)" in seen(form.get_by_role("group", name="Solution"))
    form = part(element, "chapter/explain")
    assert form.get_by_role("textbox").input_value() == "My own words"
    assert [box.is_checked() for box in form.get_by_role("checkbox").all()] == [False, False, True, False]
    assert "1 of 4 points ticked" in seen(status(form))
    assert "1 of 6 right" in seen(element.locator("section"))


def test_answers_feedback_and_words_are_kept_across_a_reload(quiz):
    page, element = quiz()
    answer_all_kinds(page, element)
    page.reload()
    check_all_kinds(element)
    element.get_by_role("combobox", name="Variant").select_option(index=2)
    page.reload()
    assert seen(element.locator("h4")) == "The bandwidth for an efficiency"
    element.get_by_role("combobox", name="Variant").select_option(index=0)
    check_all_kinds(element)
    # The other quiz keeps its own.
    assert "0 of 7 right" in seen(page.locator("#quiz-q4 section"))


def test_a_question_that_changed_starts_anew_but_keeps_the_readers_words(quiz):
    page, element = quiz()
    answer_all_kinds(page, element)
    page.evaluate(
        """() => {
          const quiz = document.querySelector("#quiz-q3");
          const data = structuredClone(quiz.data);
          for (const part of data.variants[0].parts) part.version = "changed";
          const fresh = document.createElement("book-quiz");
          fresh.id = "fresh";
          fresh.use(data);
          quiz.replaceWith(fresh);
        }"""
    )
    fresh = page.locator("#fresh")
    assert part(fresh, "chapter/ring-time").locator("input").input_value() == ""
    assert seen(status(part(fresh, "chapter/ring-time"))) == ""
    assert part(fresh, "chapter/explain").get_by_role("textbox").input_value() == "My own words"
    page.reload()
    check_all_kinds(element)  # the old version's answers are still there


def test_a_second_tab_shows_what_the_first_one_stores(quiz):
    page, element = quiz()
    other = page.context.new_page()
    other.goto(page.url)
    answer_all_kinds(page, element)
    there = other.locator("#quiz-q3")
    other.wait_for_function(
        "() => document.querySelector('#quiz-q3').shadowRoot.textContent.includes('1 of 4 points')"
    )
    check_all_kinds(there)


def test_clearing_asks_first_and_clears_every_variant(quiz):
    page, element = quiz()
    answer_all_kinds(page, element)
    clear = element.get_by_role("button", name="Clear my answers")
    tab_to(page, clear)
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # "No, keep them" has the focus
    check_all_kinds(element)
    assert clear.evaluate("(button) => button.matches(':focus')")
    page.keyboard.press("Enter")
    tab_to(page, element.get_by_role("button", name="Yes, clear them"), "Shift+Tab")
    page.keyboard.press("Enter")
    assert "All answers of this quiz are cleared." in seen(element.locator("footer [role=status]"))
    for _ in range(2):
        assert part(element, "chapter/ring-time").locator("input").input_value() == ""
        assert part(element, "chapter/explain").get_by_role("textbox").input_value() == ""
        assert "0 of 6 right" in seen(element.locator("section"))
        page.reload()


def test_answers_are_saved_as_a_file_that_says_what_was_asked(quiz):
    page, element = quiz()
    answer_all_kinds(page, element)
    with page.expect_download() as waiting:
        element.get_by_role("button", name="Save my answers to a file").click()
    assert waiting.value.suggested_filename == "shardlab-q3-answers.json"
    saved = json.loads(Path(waiting.value.path()).read_text("utf-8"))
    assert saved["title"] == "Why do 8 ranks give 2.91×, not 8×?"
    questions = {question["id"]: question for question in saved["variants"][0]["questions"]}
    assert questions["ring-time"]["response"] == "200"
    assert questions["ring-time"]["unit"] == "ms"
    assert questions["ring-time"]["misconception"] == "full-2p"
    assert questions["reason"]["right"] is True
    assert questions["explain"]["response"]["text"] == "My own words"
    assert questions["explain"]["question"].startswith("A colleague bought 8 GPUs")


def test_a_browser_that_stores_nothing_is_told_and_loses_nothing_while_open(quiz):
    page, _ = quiz("frame")
    frame = page.frame_locator("iframe")
    element = frame.locator("#quiz-q3")
    assert "This browser lets the page store nothing" in seen(element.locator("footer"))
    form = part(element, "chapter/ring-time")
    form.locator("input").fill("175.1")
    form.get_by_role("button", name="Check").click()
    assert "✓ Right: 175 ms." in seen(status(form))
    for _ in registry.load("q3").variants:
        element.get_by_role("button", name="Show another variant").click()
    assert form.locator("input").input_value() == "175.1"
    assert "✓ Right" in seen(status(form))


def test_storage_that_fails_later_is_told_when_it_does(quiz):
    page, element = quiz()
    assert "Your answers stay in this browser." in seen(element.locator("footer"))
    page.evaluate(
        "() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; }"
    )
    part(element, "chapter/ring-time").locator("input").fill("175")
    assert "This browser lets the page store nothing" in seen(element.locator("footer"))


# The page around it.


def test_a_chinese_page_has_chinese_controls_and_marks_the_language_of_the_questions(quiz):
    _, element = quiz("chinese")
    assert element.locator("section.quiz").get_attribute("lang") == "zh-CN"
    form = part(element, "chapter/speedup")
    form.locator("input").fill("2.75")
    form.get_by_role("button", name="检查").click()
    assert "还不对" in seen(status(form))
    assert element.locator("h3").get_attribute("lang") == "en"
    assert element.get_by_role("button", name="换一个变体").is_visible()


def test_a_script_in_the_head_waits_for_the_questions(quiz):
    _, element = quiz("early")
    assert part(element, "chapter/ring-time").is_visible()


def test_unreadable_data_leaves_the_text(site, open_page):
    page = open_page(f"{site}/broken.html")
    assert any("no readable data" in fault for fault in page.faults)
    assert page.get_by_text("How long does the all-reduce take?").first.is_visible()
    assert page.get_by_text("Answers", exact=True).first.is_visible()


def test_without_the_books_colours_it_takes_the_systems(quiz):
    _, element = quiz("bare")
    form = part(element, "chapter/ring-time")
    colors = form.locator("legend").evaluate("(node) => getComputedStyle(node).color")
    assert colors == "rgb(0, 0, 0)"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(quiz, width):
    page, _ = quiz(width=width)
    for which in ("q3", "q4"):
        element = page.locator(f"#quiz-{which}")
        for _ in registry.load(which).variants:
            for button in element.locator(".part .primary").all():
                button.click()
            title = seen(element.locator("h4"))
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), title
            wide = element.evaluate(
                """(quiz) => [...quiz.shadowRoot.querySelectorAll("*")]
                  .filter((node) => !node.closest(".scroll, .sr") && node.getBoundingClientRect().right > innerWidth + 1)
                  .map((node) => node.outerHTML.slice(0, 80))"""
            )
            assert wide == [], title
            element.get_by_role("button", name="Show another variant").click()


def test_targets_are_large_enough_to_hit(quiz):
    _, element = quiz(width=360)
    sizes = element.evaluate(
        """(quiz) => [...quiz.shadowRoot.querySelectorAll("button, select, input[type=text], .options label")]
          .filter((node) => node.offsetParent).map((node) => node.getBoundingClientRect())
          .map((box) => Math.min(box.width, box.height))"""
    )
    assert min(sizes) >= 24


def test_the_focus_is_seen(quiz):
    page, element = quiz()
    for target in (element.get_by_role("combobox"), part(element, "chapter/ring-time").locator("input")):
        tab_to(page, target)
        outline = target.evaluate(
            "(node) => [getComputedStyle(node).outlineStyle, getComputedStyle(node).outlineWidth]"
        )
        assert outline == ["solid", "3px"]


def test_with_scripts_off_the_questions_read_as_text_and_the_answers_open(quiz):
    page, element = quiz(scripts=False)
    assert page.get_by_text("How long does the all-reduce take?").first.is_visible()
    assert element.get_by_text(
        "Eight ranks send eight times the gradients over each link."
    ).first.is_visible()
    answer = element.get_by_text("2(N−1) = 14 hops add 0.14 ms")
    assert not answer.is_visible()
    element.get_by_text("Answers", exact=True).first.click()
    assert answer.is_visible()
    more = element.get_by_text("You plan", exact=False).first
    assert not more.is_visible()
    element.get_by_text("More variants").click()
    assert more.is_visible()


@pytest.mark.parametrize("scripts", [True, False])
def test_paper_has_questions_first_and_answers_after_them(quiz, scripts):
    page, element = quiz(scripts=scripts)
    page.emulate_media(media="print")
    question = element.locator(".quiz-static").get_by_text("How long does the all-reduce take?").first
    answer = element.locator(".quiz-static > .quiz-answers").get_by_text("hops add 0.14 ms")
    assert question.is_visible()
    assert answer.is_visible()
    last = element.locator(".quiz-static > ol > li").last
    assert last.bounding_box()["y"] < answer.bounding_box()["y"]
    assert not element.locator(".quiz-more").is_visible()
    if scripts:
        assert not part(element, "chapter/ring-time").is_visible()
        page.pdf()
        # What printing opened is closed again.
        page.emulate_media(media="screen")
        page.wait_for_function("document.querySelectorAll('details[open]').length === 0")


RULES = """async () => {
  const result = await axe.run(document, {resultTypes: ["violations"]});
  return result.violations.map(({id, impact, nodes}) => [id, impact, nodes.map((node) => node.target.join(" "))]);
}"""


def violations(page):
    """What axe-core finds, other than matters of the page around the quiz."""
    page.evaluate(AXE.read_text("utf-8"))
    return [found for found in page.evaluate(RULES) if found[1] in ("serious", "critical", "moderate")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(quiz, settle, theme):
    page, element = quiz(theme)
    settle(page)
    assert violations(page) == []
    answer_all_kinds(page, element)
    type_and_check(page, part(element, "chapter/speedup"), "2.91")
    while element.get_by_role("button", name="Show solution").count():
        element.get_by_role("button", name="Show solution").first.click()
    settle(page)
    assert violations(page) == []


def test_axe_finds_nothing_in_any_variant(quiz, settle):
    page, _ = quiz(width=360)
    longest = max(len(registry.load(name).variants) for name in ("q3", "q4"))
    for _ in range(longest - 1):
        for button in page.get_by_role("button", name="Show another variant").all():
            button.click()
        settle(page)
        assert violations(page) == []


def test_axe_finds_nothing_in_the_text_version(site, open_page):
    page = open_page(f"{site}/light.html")
    page.evaluate(
        "() => document.querySelectorAll('book-quiz').forEach((quiz) => quiz.replaceWith(...quiz.childNodes))"
    )
    page.evaluate("() => document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert violations(page) == []


def test_the_shipped_script_is_small_and_asks_for_nothing():
    text = SCRIPT.read_text("utf-8")
    assert len(text) < 45_000
    assert not re.search(r"https?://|fetch\(|XMLHttpRequest|import\(", text)
