"""The review page as a reader meets it: a list without scripts, and with them what was answered in the chapters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from shardlab.quiz import html, registry
from shardlab.quiz.model import Quiz, decimal, fill, part_texts
from shardlab.quiz.text import to_plain

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "book" / "review.md"
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
# The source's seven questions first, then the chapters that have none of them.
SEVEN = tuple(f"q{number}" for number in range(1, 8))
NAMES = SEVEN + tuple(name for name in registry.names() if name not in SEVEN)
CONF = """
project = "mini"
extensions = ["myst_nb", "shardlab.sphinx_ext"]
html_theme = "sphinx_book_theme"
html_context = {"default_mode": "auto"}
nb_execution_mode = "off"
root_doc = "book/review"
"""


def items() -> dict[str, str]:
    """The source of each question's line, by the name of its quiz."""
    sections = SOURCE.read_text("utf-8").split("\n## ")
    lines = [line for part in sections[:2] for line in re.split(r"\n(?=- \*\*)", part)[1:]]
    return {re.search(r'quiz="(\w+)"', line)[1]: line for line in lines}  # type: ignore[index]


def called(name: str) -> str:
    """What a line begins with: the question's number, or the chapter's."""
    return name.upper() if name in SEVEN else f"Chapter {name[1:]}"


def link_text(name: str) -> str:
    """What the link into a quiz says."""
    return f"Go to quiz {name.upper()}" if name in SEVEN else f"Go to the quiz of chapter {name[1:]}"


def chapter_of(name: str) -> str:
    """The label that a question's line links to."""
    found = re.search(r"\{ref\}`[^`]*<(ch-[\w-]+)>`", items()[name])
    assert found, name
    return found[1]


def heading(quiz: Quiz) -> tuple[str, str]:
    """A quiz's title and question as plain text."""
    return to_plain(fill(quiz.title, quiz.values)), to_plain(fill(quiz.question, quiz.values))


def test_the_page_lists_all_questions_in_their_own_words() -> None:
    assert tuple(items()) == NAMES
    for name, line in items().items():
        title, question = heading(registry.load(name))
        assert f"**{called(name)}. {title}**" in line
        assert question in line


def test_every_chapter_that_has_a_quiz_is_the_one_linked() -> None:
    met: list[str] = []
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        found = re.findall(r'^quiz\("(\w+)"', text, re.M)
        assert found, f"{notebook.name} ends without a quiz"
        met += found
        for name in found:
            assert f"({chapter_of(name)})=" in text, f"{name} is in {notebook.name}"
            assert name in SEVEN or name == f"c{notebook.name[:2]}"
    assert sorted(met) == sorted(NAMES)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with stand-ins for the chapters, each with its quizzes, built as the book is."""
    source = tmp_path_factory.mktemp("source")
    for folder in ("book", "notebooks"):
        (source / folder).mkdir()
    (source / "conf.py").write_text(CONF, "utf-8")
    labels = list(dict.fromkeys(chapter_of(name) for name in NAMES))
    toc = "\n".join(
        ["", "```{toctree}", ":hidden:", *[f"../notebooks/{label}" for label in labels], "```", ""]
    )
    (source / "book/review.md").write_text(SOURCE.read_text("utf-8") + toc, "utf-8")
    for label in labels:
        quizzes = [html(name) for name in NAMES if chapter_of(name) == label]
        blocks = "\n\n".join(f"```{{raw}} html\n{quiz}\n```" for quiz in quizzes)
        (source / f"notebooks/{label}.md").write_text(f"({label})=\n# {label}\n\n{blocks}\n", "utf-8")
    out = tmp_path_factory.mktemp("site") / "repo"
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(source), str(out)], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def site(built: Path, serve: Any) -> str:
    return f"{serve(built.parent)}/repo"


@pytest.fixture
def review(site: str, open_page: Any) -> Any:
    """Opens the review page. No request may leave its host, and nothing may fail on it unless the test says so."""
    pages = []

    def start(faults: bool = False, **options: Any) -> Any:
        page = open_page(f"{site}/book/review.html", **options)
        pages.append((page, faults))
        return page

    yield start
    for page, faults in pages:
        assert page.foreign == []
        assert faults or page.faults == []


def line(page: Any, name: str) -> Any:
    """The list item of one quiz."""
    return page.locator("li", has=page.locator(f'book-quiz-progress[quiz="{name}"]')).last


def told(page: Any, name: str | None = None) -> str:
    """What the element says of one quiz, or of all."""
    chosen = f'[quiz="{name}"]' if name else ":not([quiz])"
    text: str = page.locator(f"book-quiz-progress{chosen}").evaluate("(element) => element.body.innerText")
    return " ".join(text.split())


def answer(page: Any, name: str, part: str, text: str) -> None:
    """Types a number into a quiz's first variant and checks it."""
    form = page.locator(f'#quiz-{name} [data-part="chapter/{part}"]')
    form.locator("input[type=text]").fill(text)
    form.get_by_role("button", name="Check").click()


def chapter(review_page: Any, name: str) -> Any:
    """The quiz's chapter in a second tab of the same browser."""
    page = review_page.context.new_page()
    page.goto(line(review_page, name).get_by_role("link", name="Go to").get_attribute("href"))
    return page


def hear(page: Any, other: Any) -> None:
    """Waits until a page has been told all that another tab has stored so far: such news comes in order."""
    page.evaluate("""() => {
      window.heard = new Promise((done) => {
        addEventListener("storage", ({ key, newValue }) => key === "of-the-test" && newValue && setTimeout(done));
      });
    }""")
    other.evaluate("localStorage.setItem('of-the-test', 'now')")
    page.evaluate("() => window.heard")
    other.evaluate("localStorage.removeItem('of-the-test')")


class Words(HTMLParser):
    """The text of a page without scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.text = 0, ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.hidden += tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.text += data


def leaks(text: str) -> list[str]:
    """Answers that stand in a text: keys with their units, options, worked steps, model answers."""
    text = text.replace("’", "'")
    for name in NAMES:
        for each in heading(registry.load(name)):
            text = text.replace(each, "")
    found = []
    for name in NAMES:
        for variant in registry.load(name).variants:
            for part in variant.parts:
                words = [to_plain(fill(template, variant.values)) for _, template in part_texts(part)[1:]]
                answers = [each for each in words if len(each) > 12]
                if part.kind == "number":
                    space = "" if part.unit == "×" else " "
                    answers.append(decimal(part.key, part.digits) + space + part.unit)
                found += [each for each in answers if each in text]
    return found


def test_no_answer_stands_in_the_page(built: Path) -> None:
    page = (built / "book/review.html").read_text("utf-8")
    assert "application/json" not in page
    words = Words()
    words.feed(page)
    assert "Which of the two ratios is meant" in words.text
    assert leaks(words.text) == []
    # The check itself sees an answer where there is one.
    assert set(leaks(words.text + " It takes 275.1 ms, of which the wait is 175 ms.")) == {"175 ms"}


def test_without_scripts_it_is_a_list_with_links(review: Any, site: str) -> None:
    page = review(scripts=False)
    for name in NAMES:
        item = line(page, name)
        # The page sets apostrophes as a printer would.
        assert heading(registry.load(name))[0] in item.inner_text().replace("’", "'")
        target = item.get_by_role("link").get_attribute("href")
        assert target == f"../notebooks/{chapter_of(name)}.html#{chapter_of(name)}"
    assert page.locator("book-quiz-progress").last.inner_text() == ""


def test_it_shows_what_was_answered_in_the_chapters(review: Any) -> None:
    page = review()
    for name in NAMES:
        assert told(page, name) == f"Not started yet. {link_text(name)}"
    assert told(page) == "You have not checked an answer on this device yet."
    assert page.get_by_role("button", name="Start over").count() == 0
    other = chapter(page, "q3")
    assert other.url.endswith("#quiz-q3")
    count = sum(len(variant.parts) for variant in registry.load("q3").variants)
    answer(other, "q3", "ring-time", "175.1")
    answer(other, "q3", "speedup", "2.75")
    hear(page, other)
    assert told(page, "q3") == (
        f"1 of {count} right so far. Look again at: Step inflation read as speedup Go to quiz Q3"
    )
    assert told(page) == f"1 of {len(NAMES)} quizzes started, 1 of their {count} questions right so far."
    details = line(page, "q3").locator("summary")
    details.focus()
    page.keyboard.press("Enter")
    assert "The chapter's cluster (1 of 6 right)" in told(page, "q3")
    # What was mended is no longer to be looked at; an answer that waits unchecked does not count.
    answer(other, "q3", "speedup", "2.91")
    hear(page, other)
    assert "Look again" not in told(page, "q3")
    assert "The chapter's cluster (2 of 6 right)" in told(page, "q3")
    other.goto(line(page, "q5").get_by_role("link", name="Go to quiz").get_attribute("href"))
    other.locator('[data-part="chapter/stage1"] input[type=text]').fill("31.4")
    hear(page, other)
    assert told(page, "q5").startswith("Not started yet.")
    page.reload()
    assert told(page, "q3").startswith(f"2 of {count} right so far.")


def test_going_back_shows_what_happened_since(review: Any) -> None:
    page = review()
    line(page, "q2").get_by_role("link", name="Go to quiz").click()
    page.wait_for_url("**/ch-collectives.html#quiz-q2")
    answer(page, "q2", "total", "1.75 GB")
    page.go_back()
    page.wait_for_function(
        "() => document.querySelector('[quiz=q2]')?.body?.innerText.includes('right so far')"
    )


def test_start_over_asks_first_and_clears_every_quiz(review: Any) -> None:
    page = review()
    one, two, three = chapter(page, "q1"), chapter(page, "q7"), chapter(page, "c05")
    answer(one, "q1", "zero1", "38.5")
    answer(two, "q7", "bytes", "98")
    answer(three, "c05", "sent", "352")
    for tab in (one, two, three):
        hear(page, tab)
    started = f"3 of {len(NAMES)} quizzes started"
    assert told(page).startswith(started)
    # A chapter's quiz tells what its own mistakes are, as the seven do.
    assert told(page, "c05").endswith(
        "Look again at: The repeated forward pass left out Go to the quiz of chapter 05"
    )
    page.evaluate("localStorage.setItem('of-another-page', 'stays')")
    button = page.get_by_role("button", name="Start over")
    button.focus()
    page.keyboard.press("Enter")
    no = page.get_by_role("button", name="No, keep them")
    assert no.evaluate("(node) => node.getRootNode().activeElement === node")
    page.keyboard.press("Enter")
    assert told(page).startswith(started)
    assert button.evaluate("(node) => node.getRootNode().activeElement === node")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert told(page) == "You have not checked an answer on this device yet."
    status = page.get_by_role("status").filter(has_text="All answers are cleared.")
    assert status.evaluate("(node) => node.getRootNode().activeElement === node")
    assert page.get_by_role("button", name="Start over").count() == 0
    assert told(page, "q1").startswith("Not started yet.")
    assert page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('shardlab.quiz/'))") == []
    assert page.evaluate("localStorage.getItem('of-another-page')") == "stays"
    # The open chapter has noticed, too.
    one.wait_for_function(
        "() => document.querySelector('#quiz-q1').shadowRoot.querySelector('.progress').textContent.startsWith('0 of')"
    )


def test_what_cannot_be_read_counts_as_nothing(review: Any) -> None:
    page = review()
    page.evaluate(
        "localStorage.setItem('shardlab.quiz/q4', '{broken'); localStorage.setItem('shardlab.quiz/q6', 'null')"
    )
    page.reload()
    assert told(page, "q4").startswith("Not started yet.")
    assert told(page, "q6").startswith("Not started yet.")


def test_a_browser_that_keeps_nothing_says_so(review: Any, site: str) -> None:
    # The theme's own scripts complain about the frame; ours is what is looked at here.
    page = review(faults=True)
    page.evaluate(
        'document.body.innerHTML = \'<iframe sandbox="allow-scripts" src="review.html" width=800 height=900></iframe>\''
    )
    frame = page.frame_locator("iframe")
    notice = frame.locator("book-quiz-progress:not([quiz])").get_by_text(
        "so there is no progress to show here"
    )
    notice.wait_for()


def test_it_speaks_the_pages_language(review: Any) -> None:
    page = review()
    page.evaluate(
        """() => {
          document.documentElement.lang = "zh_CN";
          for (const element of document.querySelectorAll("book-quiz-progress")) element.replaceWith(element.cloneNode());
        }"""
    )
    assert told(page, "q1") == "尚未开始。 前往测验 Q1"
    assert told(page, "c05") == "尚未开始。 前往第 05 章的测验"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_from_axe_and_it_fits_a_phone(scheme: str, review: Any, settle: Any) -> None:
    page = review(scheme=scheme, width=360, height=740)
    other = chapter(page, "q3")
    answer(other, "q3", "speedup", "2.75")
    hear(page, other)
    other.close()
    assert "Look again" in told(page, "q3")
    line(page, "q3").locator("summary").click()
    page.get_by_role("button", name="Start over").click()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run({include: [['.bd-article']]}, {resultTypes: ['violations']})")
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found["violations"]] == []
