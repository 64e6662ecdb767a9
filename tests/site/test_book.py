"""The built book as a reader meets it: every page, network cut off, light and dark, wide and narrow."""

import json
import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from shardlab.experiments import engine

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = sorted(
    str(path.relative_to(HTML))
    for path in [
        *HTML.glob("book/*.html"),
        *HTML.glob("book/api/*.html"),
        *HTML.glob("book/instructor/*.html"),
        *HTML.glob("notebooks/*.html"),
    ]
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


def test_the_sites_address_leads_to_the_first_page(site, open_page):
    import yaml

    root = yaml.safe_load((ROOT / "_toc.yml").read_text())["root"]
    page = open_page(f"{site}/index.html")
    page.wait_for_url(f"{site}/{root}.html")
    assert page.foreign == []
    assert page.faults == []


# What a dark page can do wrong that a light one can't: the elements are the same.
COLOUR_RULES = ["color-contrast", "link-in-text-block"]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_clean_and_local_and_axe_finds_nothing_serious(name, scheme, site, open_page, settle):
    page = open_page(f"{site}/{name}", scheme=scheme)
    settle(page)
    assert page.foreign == []
    assert page.faults == []
    broken = page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
    assert broken == []
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.add_script_tag(path=str(AXE))
    # Ours is the article, without the list of references, whose markup is docutils'.
    area = "{include: [['.bd-article']], exclude: [['.citation-list']]}"
    options = {"resultTypes": ["violations"], "preload": False}
    if scheme == "dark":
        options["runOnly"] = {"type": "rule", "values": COLOUR_RULES}
    found = page.evaluate(f"(options) => axe.run({area}, options)", options)
    serious = [
        (violation["id"], [node["target"] for node in violation["nodes"]][:5])
        for violation in found["violations"]
        if violation["impact"] in {"serious", "critical"}
    ]
    assert serious == []


# Blocks of the article that scroll sideways, and are no stop of the Tab key or have no name.
WITHOUT_A_STOP = """() => [...document.querySelectorAll(".bd-article *")].filter((block) =>
  block.scrollWidth > block.clientWidth + 1 && block.clientWidth && !block.closest("svg, mjx-assistive-mml")
  && /auto|scroll/.test(getComputedStyle(block).overflowX)
  && !(block.tabIndex === 0 && block.getAttribute("aria-label"))).map((block) => block.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_a_phone_and_its_letters_can_be_read_there(name, scheme, site, open_page, settle):
    page = open_page(f"{site}/{name}", width=360, height=740, scheme=scheme)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    # What scrolls can be reached without a mouse. The page's script looks anew whenever an equation is set.
    page.wait_for_function(f"({WITHOUT_A_STOP})().length === 0 || performance.now() > 100_000")
    assert page.evaluate(WITHOUT_A_STOP) == []
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


def test_works_below_a_sub_path(tmp_path_factory, serve, open_page, settle):
    """Published sites often live at /name/: nothing may be fetched from the root."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "book-name").symlink_to(HTML)
    base = serve(folder)
    page = open_page(urljoin(base, "/book-name/notebooks/03_data_parallel.html"))
    settle(page)
    assert page.faults == []
    assert page.foreign == []


def test_maths_is_set(site, open_page, settle):
    page = open_page(f"{site}/notebooks/03_data_parallel.html")
    settle(page)
    assert page.evaluate("document.querySelectorAll('mjx-container').length") > 20
    assert page.evaluate("document.querySelectorAll('mjx-merror').length") == 0


def test_search_finds_the_chapter(site, open_page):
    page = open_page(f"{site}/search.html?q=reduce-scatter")
    # Results come in one by one.
    page.locator("#search-results li a", has_text="Data parallel").first.wait_for()
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
def test_every_experiment_fits_a_laptop_screen_at_every_preset(site, open_page, settle, chapter):
    page = open_page(f"{site}/notebooks/{chapter}.html", width=1280, height=800)
    drawn = """(element) => new Promise((done) => {
      element.addEventListener("sl-drawn", ({ detail }) => requestAnimationFrame(() => done(detail.values)), { once: true });
    })"""
    for experiment in page.locator("live-experiment").all():

        def after(action, experiment=experiment):
            """The values of the chart that an action brings."""
            experiment.evaluate(f"(element) => {{ window.drawing = ({drawn})(element); }}")
            action()
            return page.evaluate("() => window.drawing")

        name = experiment.get_attribute("name")
        after(experiment.locator("input, button, select").first.focus)
        for preset in engine.load(name).presets:
            values = after(experiment.get_by_role("button", name=preset.label, exact=True).click)
            assert {key: values[key] for key in preset.values} == preset.values, (name, preset.label)
            # The theme's margin folds away where a wide experiment wants to be.
            settle(page)
            box = experiment.locator(".sl-experiment").bounding_box()
            assert box["height"] <= 800, (name, preset.label)
            assert experiment.evaluate("(all) => all.scrollWidth <= all.clientWidth")
