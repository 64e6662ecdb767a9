"""The built book as a reader meets it: every page, network cut off, light and dark, wide and narrow."""

import json
import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = sorted(
    str(path.relative_to(HTML))
    for path in [
        *HTML.glob("book/*.html"),
        *HTML.glob("book/instructor/*.html"),
        *HTML.glob("notebooks/*.html"),
        HTML / "index.html",
    ]
    if path.exists()
)

CHAPTERS = [Path(page).stem for page in PAGES if page.startswith("notebooks/")]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def site(serve):
    assert PAGES, "build the book first: make html"
    return serve(HTML)


def test_all_pages_of_the_toc_are_built():
    import yaml

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [toc["root"]] + [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    assert {f"{name}.html" for name in files} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
class TestEveryPage:
    def test_is_clean_and_local(self, name, scheme, site, open_page):
        page = open_page(f"{site}/{name}", scheme=scheme)
        page.wait_for_timeout(300)
        assert page.foreign == []
        assert page.faults == []
        broken = page.evaluate(
            "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        )
        assert broken == []

    def test_nothing_serious_from_axe(self, name, scheme, site, open_page):
        page = open_page(f"{site}/{name}", scheme=scheme)
        page.wait_for_timeout(300)
        page.add_script_tag(path=str(AXE))
        # Ours is the article, without the list of references, whose markup is docutils'.
        area = "{include: [['.bd-article']], exclude: [['.citation-list']]}"
        if page.locator(".bd-article").count() == 0:
            pytest.skip("a page that only sends the reader on")
        found = page.evaluate(f"axe.run({area}, {{resultTypes: ['violations']}})")
        serious = [
            (violation["id"], [node["target"] for node in violation["nodes"]][:5])
            for violation in found["violations"]
            if violation["impact"] in {"serious", "critical"}
        ]
        assert serious == []

    def test_fits_a_phone(self, name, scheme, site, open_page):
        page = open_page(f"{site}/{name}", width=360, height=740, scheme=scheme)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_links_lead_somewhere(site):
    """Every link inside the site has a page, and every fragment an element with that id."""
    ids = {}
    pages = {path: path.read_text() for path in HTML.rglob("*.html") if "_static" not in path.parts}
    for path, text in pages.items():
        ids[path] = set(re.findall(r"\bid=[\"']([^\"']+)[\"']", text))
    lost = []
    for path, text in pages.items():
        for link in re.findall(r"<a\b[^>]*\bhref=\"([^\"]+)\"", text):
            parts = urlsplit(link)
            if parts.scheme or link in {"#", "#top"}:
                continue
            target = (path.parent / parts.path).resolve() if parts.path else path
            if not target.exists() or (
                parts.fragment and target in ids and parts.fragment not in ids[target]
            ):
                lost.append(f"{path.relative_to(HTML)} -> {link}")
    assert lost == []


def test_the_site_loads_nothing_of_others():
    """No page names a script, style, font or picture on another host."""
    for path in HTML.rglob("*.html"):
        for tag, address in re.findall(
            r"<(script|link|img|iframe)\b[^>]*?(?:src|href)=\"(https?://[^\"]+)\"", path.read_text()
        ):
            assert (tag, "canonical" in address) == ("link", True), (
                f"{path.relative_to(HTML)}: <{tag}> {address}"
            )


def test_works_below_a_sub_path(tmp_path_factory, serve, open_page):
    """Published sites often live at /name/: nothing may be fetched from the root."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "book-name").symlink_to(HTML)
    base = serve(folder)
    page = open_page(urljoin(base, "/book-name/notebooks/03_data_parallel.html"))
    page.wait_for_timeout(300)
    assert page.faults == []
    assert page.foreign == []


def test_maths_is_set(site, open_page):
    page = open_page(f"{site}/notebooks/03_data_parallel.html")
    page.wait_for_selector("mjx-container", timeout=15_000)
    assert page.evaluate("document.querySelectorAll('mjx-container').length") > 20
    assert page.evaluate("document.querySelectorAll('mjx-merror').length") == 0


def test_search_finds_the_chapter(site, open_page):
    page = open_page(f"{site}/search.html?q=reduce-scatter")
    # Results come in one by one.
    page.locator("#search-results li a", has_text="Data parallel").first.wait_for(timeout=15_000)
    assert page.foreign == []


def test_no_solution_is_published():
    """Nothing of the assignments' solutions or hidden checks is in the site."""
    marks = ("BEGIN SOLUTION", "BEGIN HIDDEN TESTS")
    for path in HTML.rglob("*"):
        if path.suffix in {".html", ".json", ".js", ".txt", ".ipynb", ".md"}:
            text = path.read_text(errors="replace")
            assert not [mark for mark in marks if mark in text], path


def test_the_page_source_is_the_notebook():
    """The download button gives the notebook itself."""
    sources = list((HTML / "_sources" / "notebooks").glob("03_data_parallel.ipynb*"))
    assert sources
    assert json.loads(sources[0].read_text())["nbformat"] == 4


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_experiment_fits_a_laptop_screen_at_every_preset(site, open_page, chapter):
    page = open_page(f"{site}/notebooks/{chapter}.html", width=1280, height=800)
    drawn = """(element) => new Promise((done, failed) => {
      setTimeout(() => failed(new Error("nothing was drawn")), 60000);
      element.addEventListener("sl-drawn", () => requestAnimationFrame(done), { once: true });
    })"""
    for experiment in page.locator("live-experiment").all():
        for button in experiment.locator(".sl-presets button").all():
            handle = experiment.element_handle()
            page.evaluate(f"(element) => {{ window.drawing = ({drawn})(element); }}", handle)
            button.click()
            page.evaluate("() => window.drawing.then(() => true)")
            box = experiment.locator(".sl-experiment").bounding_box()
            assert box["height"] <= 800, (experiment.get_attribute("name"), button.inner_text())
            assert experiment.evaluate("(all) => all.scrollWidth <= all.clientWidth")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_phone_shows_no_letters_too_small_to_read(site, open_page, chapter):
    page = open_page(f"{site}/notebooks/{chapter}.html", width=360, height=740)
    small = page.evaluate(
        """() => [...document.querySelectorAll(".bd-article svg[role=img] text")]
          .filter((text) => text.getClientRects().length && text.textContent.trim())
          .map((text) => {
            const matrix = text.getScreenCTM();
            const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
            return [size, text.textContent, text.closest("svg").getAttribute("aria-label").slice(0, 60)];
          })
          .filter(([size]) => size < 8.9)"""
    )
    assert small == []
