"""Live experiments on a built page, in a real Chromium, served from a sub-path with every other host refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest

from shardlab.experiments import engine, experiment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"

CONF = """
project = "mini"
extensions = ["myst_nb", "shardlab.sphinx_ext"]
html_theme = "sphinx_book_theme"
html_context = {"default_mode": "light"}
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
"""
PAGES = {
    "index.md": """
# Explorer

Cost is $2(N-1)/N$ times the buffer.

```{experiment} scaling-explorer
```

```{toctree}
ring
plain
notebook
```
""",
    "ring.md": """
# Ring

```{experiment} ring-stepper
```

## Again

```{experiment} ring-stepper
:preset: half-way
```

```{experiment} scaling-explorer
:values: ranks=64, bandwidth=100 Gb/s, scaling=strong
```
""",
    "plain.md": "# Plain\n\nNothing lives here.\n",
}


def _notebook() -> nbformat.NotebookNode:
    """A notebook with the output that the widget gives to the kernel."""
    widget = experiment("scaling-explorer", ranks=512)
    data, metadata = widget._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    cell = nbformat.v4.new_code_cell(
        'experiment("scaling-explorer", ranks=512)', outputs=[output], execution_count=1
    )
    cells = [nbformat.v4.new_markdown_cell("# Notebook"), cell]
    language = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=language)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small site built with the extension, under a sub-folder as on a project's pages."""
    source = tmp_path_factory.mktemp("source")
    (source / "conf.py").write_text(CONF, "utf-8")
    for name, text in PAGES.items():
        (source / name).write_text(text, "utf-8")
    nbformat.write(_notebook(), source / "notebook.ipynb")
    out = tmp_path_factory.mktemp("site") / "repo"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(source),
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.fixture(scope="session")
def site(built: Path, serve: Any) -> str:
    return f"{serve(built.parent)}/repo"


@pytest.fixture
def visit(open_page: Any) -> Any:
    """Opens a page. After the test: none asked another host, and nothing failed on it unless the test says so."""
    pages: list[tuple[Any, bool]] = []

    def start(address: str, faults: bool = False, **options: Any) -> Any:
        page = open_page(address, **options)
        pages.append((page, faults))
        return page

    yield start
    for page, faults in pages:
        assert page.foreign == []
        assert faults or page.faults == []


DRAWN = """(element) => new Promise((done, failed) => {
  setTimeout(() => failed(new Error("nothing was drawn")), 120000);
  element.addEventListener("sl-drawn", ({ detail }) => done(detail.values), { once: true });
})"""


def drawn_after(page: Any, action: Any, index: int = 0) -> dict[str, Any]:
    """Do something to an experiment; wait for the chart that follows and return its values."""
    element = page.locator("live-experiment").nth(index).element_handle()
    promise = page.evaluate_handle(
        f"(element) => {{ window.drawing = ({DRAWN})(element); return 1; }}", element
    )
    action()
    promise.dispose()
    values: dict[str, Any] = page.evaluate("() => window.drawing")
    return values


def wake(page: Any, index: int = 0) -> dict[str, Any]:
    first = page.locator("live-experiment").nth(index).locator("input[type=range]").first
    return drawn_after(page, first.focus, index)


def words(page: Any, index: int = 0) -> list[str]:
    paragraphs = page.locator("live-experiment").nth(index).locator(".sl-words p")
    return [text.strip() for text in paragraphs.all_inner_texts()]


def readouts(page: Any, index: int = 0) -> list[str]:
    found: list[str] = (
        page.locator("live-experiment").nth(index).locator(".sl-readouts strong").all_inner_texts()
    )
    return found


def assert_shows(page: Any, name: str, values: dict[str, Any], index: int = 0) -> None:
    """What stands on the page is what Python computes for these values."""
    answer = engine.run(name, values)
    assert words(page, index) == answer["words"]
    assert readouts(page, index) == [readout["value"] for readout in answer["readouts"]]
    labels = page.locator("live-experiment").nth(index).locator(".sl-panel svg[role=img]:visible")
    expected = [panel["alt"] for panel in answer["panels"]]
    assert labels.evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))") == expected


def noted_after(page: Any, action: Any) -> str:
    """What stands beside the buttons after an action: it goes away by itself, so it is kept as it comes."""
    page.evaluate("""() => {
      const note = document.querySelector(".sl-note");
      window.noted = new Promise((done) => {
        new MutationObserver(() => note.textContent && done(note.textContent)).observe(note, { childList: true });
      });
    }""")
    action()
    text: str = page.evaluate("() => window.noted")
    return text


def control(page: Any, label: str, index: int = 0) -> Any:
    return page.locator("live-experiment").nth(index).get_by_label(label, exact=True)


# Before the touch ---------------------------------------------------------------------------------------------


def test_a_picture_stands_before_the_touch_and_nothing_is_fetched(visit: Any, site: str, settle: Any) -> None:
    page = visit(f"{site}/index.html")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    settle(page)
    assert_shows(page, "scaling-explorer", {})
    picture = page.locator("live-experiment .sl-panel svg[role=img]:visible")
    assert picture.count() == 3
    # The still picture is matplotlib's, coloured by the page.
    assert "var(--sl-compute, #14549c)" in picture.first.evaluate("(svg) => svg.outerHTML")
    assert not [url for url in asked if "worker" in url or "wasm" in url or "python/" in url]
    assert page.locator("live-experiment input[type=range]").count() == 6


def test_scripts_off_leaves_picture_and_words(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html", scripts=False)
    assert_shows(page, "scaling-explorer", {})
    assert page.locator("live-experiment .sl-panel svg").first.bounding_box()["width"] > 200
    assert page.locator("live-experiment :is(input, button)").count() == 0


def test_only_pages_that_use_them_load_the_scripts(built: Path) -> None:
    explorer = (built / "index.html").read_text("utf-8")
    assert "experiments/scaling-explorer.js" in explorer
    assert "experiments/ring-stepper.js" not in explorer
    ring = (built / "ring.html").read_text("utf-8")
    assert "experiments/ring-stepper.js" in ring
    assert "experiments/scaling-explorer.js" in ring
    plain = (built / "plain.html").read_text("utf-8")
    assert "shardlab/experiment" not in plain
    assert "shardlab/palette.css" in plain


def test_mathjax_is_the_sites_own(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    page.wait_for_selector("mjx-container mjx-math")
    assert page.evaluate("MathJax.version") == "3.2.2"
    # A formula is no stop for the Tab key, and a screen reader finds MathML.
    assert page.locator("mjx-container[tabindex]").count() == 0
    assert page.locator("mjx-assistive-mml math").count() == 1


def test_a_notebooks_experiment_is_an_element_not_a_widget(visit: Any, site: str) -> None:
    page = visit(f"{site}/notebook.html")
    source = page.content()
    assert "require.js" not in source
    assert "widget-view" not in source
    assert_shows(page, "scaling-explorer", {"ranks": 512})
    assert wake(page)["ranks"] == 512
    assert readouts(page)[0] == "165×"


# After the touch ----------------------------------------------------------------------------------------------


def test_the_first_touch_draws_the_same_values(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    values = wake(page)
    assert values == engine.run("scaling-explorer", {})["values"]
    assert_shows(page, "scaling-explorer", values)
    assert page.locator("live-experiment svg.sl-pick").count() == 2
    assert page.url == f"{site}/index.html"  # touching is not changing


def test_keyboard_moves_every_slider_and_python_agrees(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)
    for name in (
        "Ranks N",
        "Bandwidth B",
        "Gradients P",
        "Latency per hop",
        "Compute C, one rank",
        "Overlap, 0 to 1",
    ):
        slider = control(page, name)
        slider.focus()
        before = slider.get_attribute("aria-valuetext")
        values = drawn_after(page, lambda: page.keyboard.press("ArrowRight"))
        assert slider.get_attribute("aria-valuetext") != before
        assert_shows(page, "scaling-explorer", values)
    assert values["ranks"] == 12
    assert values["overlap"] == 0.05
    strong = control(page, "strong: global batch fixed")
    strong.focus()
    values = drawn_after(page, lambda: page.keyboard.press("Space"))
    assert values["scaling"] == "strong"
    assert_shows(page, "scaling-explorer", values)
    check = control(page, "Show the source's table")
    values = drawn_after(page, lambda: check.press("Space"))
    assert values["source_points"] is False


def test_tab_reaches_every_control(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)  # what an answer locks or draws is there before the count
    expected = page.locator("live-experiment :is(button, input:not([type=radio]), summary):enabled").count()
    expected += page.locator("live-experiment summary").count() + 1
    page.locator("live-experiment button").first.focus()
    reached = 0
    while page.evaluate("document.activeElement.closest('live-experiment') !== null"):
        reached += 1
        assert (
            page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none" or reached == 1
        )
        page.keyboard.press("Tab")
        assert reached < 60
    assert reached == expected


def test_every_preset_button(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)
    for preset in engine.load("scaling-explorer").presets:
        button = page.get_by_role("button", name=preset.label, exact=True)
        if button.get_attribute("aria-pressed") == "false":
            drawn_after(page, button.click)
        assert button.get_attribute("aria-pressed") == "true"
        assert page.locator(".sl-presets [aria-pressed=true]").count() == 1
        assert page.locator(".sl-source").inner_text() == preset.source
        assert_shows(page, "scaling-explorer", {"preset": preset.name})


def test_a_value_with_a_unit_can_be_typed(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)
    box = control(page, "Bandwidth B: type a value")
    box.fill("100 Gb/s")
    assert drawn_after(page, lambda: box.press("Enter"))["bandwidth"] == 12.5e9
    assert box.input_value() == "12.5 GB/s"
    box.fill("33")  # the unit that stood there
    assert drawn_after(page, lambda: box.press("Enter"))["bandwidth"] == 33e9
    ranks = control(page, "Ranks N: type a value")
    ranks.fill("11")
    values = drawn_after(page, lambda: ranks.press("Enter"))
    assert values["ranks"] == 11
    assert_shows(page, "scaling-explorer", values)


def test_a_wrong_value_is_named_and_changes_nothing(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    values = wake(page)
    box = control(page, "Bandwidth B: type a value")
    for typed in ("2 TB/s", "5 furlongs", "-1"):
        page.evaluate("document.querySelector('.sl-problem').textContent = ''")
        box.fill(typed)
        box.press("Enter")
        page.wait_for_function("document.querySelector('.sl-problem').textContent.includes('bandwidth')")
        assert box.get_attribute("aria-invalid") == "true"
        assert_shows(page, "scaling-explorer", values)
    box.fill("2 GB/s")
    assert drawn_after(page, lambda: box.press("Enter"))["bandwidth"] == 2e9
    assert page.locator(".sl-problem").inner_text() == ""


def test_the_latest_of_many_moves_wins(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)
    charts = page.evaluate("""async () => {
      const element = document.querySelector("live-experiment");
      const range = element.querySelector("input[type=range]");
      const seen = [];
      element.addEventListener("sl-drawn", ({ detail }) => seen.push(detail.values.ranks));
      for (let round = 0; round < 8; round += 1)
        for (let stop = 0; stop <= Number(range.max); stop += 1) {
          if (stop === Number(range.max) && round < 7) continue; // the last stop comes once, at the end
          range.value = stop;
          range.dispatchEvent(new Event("input", { bubbles: true }));
          if (stop % 4 === 0) await new Promise(requestAnimationFrame);
        }
      const start = performance.now();
      while (seen.at(-1) !== 4096 && performance.now() - start < 120000) await new Promise((go) => setTimeout(go, 50));
      return seen;
    }""")
    assert charts[-1] == 4096
    assert charts.count(4096) == 1
    assert len(charts) < 8 * 24  # overtaken questions are not drawn
    assert_shows(page, "scaling-explorer", {"ranks": 4096})


def test_pointing_into_the_chart_sets_the_ranks(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)
    chart = page.locator("live-experiment svg.sl-pick").first
    box = chart.bounding_box()
    values = drawn_after(
        page, lambda: chart.click(position={"x": box["width"] * 0.75, "y": box["height"] / 2})
    )
    assert values["ranks"] > 64
    assert_shows(page, "scaling-explorer", values)


def test_the_numbers_behind_the_picture(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)
    page.locator(".sl-numbers summary").click()
    page.locator(".sl-tables table").first.wait_for()
    rows = page.locator(".sl-tables table").first.locator("tbody tr").all_inner_texts()
    found = {row.split("\t")[0]: row.split("\t")[1:] for row in rows}
    assert found["8"][2] == "2.908"  # weak, four digits
    assert found["64"][2] == "21.47"


def test_a_screen_reader_hears_the_words_once_it_is_quiet(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    wake(page)
    drawn_after(page, page.get_by_role("button", name="10 GbE").click)
    expected = " ".join(engine.run("scaling-explorer", {"preset": "ethernet-10"})["words"][:2])
    region = page.locator("live-experiment [role=status]")
    assert region.get_attribute("aria-live") == "polite"
    page.wait_for_function(
        "(text) => document.querySelector('live-experiment [role=status]').textContent === text", arg=expected
    )


# State in the address -----------------------------------------------------------------------------------------


def test_the_link_restores_the_state(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wake(page)
    drawn_after(page, page.get_by_role("button", name="64 nodes of 8×H100").click)
    ranks = control(page, "Ranks N: type a value")
    ranks.fill("100")
    values = drawn_after(page, lambda: ranks.press("Enter"))
    assert noted_after(page, page.get_by_role("button", name="Copy link").click) == "Copied."
    link = page.evaluate("navigator.clipboard.readText()")
    page.wait_for_function("location.search.includes('ranks=100')")  # the address follows
    assert page.url == link
    other = visit(link)
    other.wait_for_selector("live-experiment svg.sl-pick")
    assert_shows(other, "scaling-explorer", values)
    other.wait_for_function("scrollY > 50")  # it is scrolled to
    # Reset leaves the link's state for the page's own, and cleans the address.
    assert drawn_after(other, other.get_by_role("button", name="Reset").click)["ranks"] == 8
    assert_shows(other, "scaling-explorer", {})
    other.wait_for_function("location.search === ''")


def test_the_python_that_is_copied_gives_the_same_experiment(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wake(page)
    values = drawn_after(page, page.get_by_role("button", name="8×H100 NVLink").click)
    assert noted_after(page, page.get_by_role("button", name="Copy Python").click) == "Copied."
    code = page.evaluate("navigator.clipboard.readText()")
    assert eval(code, {"experiment": lambda name, **given: engine.run(name, given)["values"]}) == values


def test_several_experiments_share_an_address(visit: Any, site: str) -> None:
    page = visit(f"{site}/ring.html")
    ids = page.locator("live-experiment").evaluate_all("(all) => all.map((one) => one.id)")
    assert ids == ["live-ring-stepper", "live-ring-stepper-2", "live-scaling-explorer"]
    for index in range(3):
        wake(page, index)
    drawn_after(page, page.get_by_role("button", name="Step", exact=True).first.click)
    slider = control(page, "Ranks N", 2)
    slider.focus()
    drawn_after(page, lambda: page.keyboard.press("ArrowRight"), 2)
    page.wait_for_function("location.search.includes('scaling-explorer.ranks')")
    query = parse_qs(urlsplit(page.url).query)
    assert query["live-ring-stepper.step"] == ["1"]
    assert query["live-scaling-explorer.ranks"] == ["96"]
    assert not [name for name in query if name.startswith("live-ring-stepper-2.")]
    other = visit(page.url)
    other.wait_for_selector("#live-ring-stepper [data-kind=graph] svg:not([xmlns])")
    other.wait_for_selector("#live-scaling-explorer svg.sl-pick")
    assert_shows(other, "ring-stepper", {"step": 1}, 0)
    assert_shows(other, "ring-stepper", {"preset": "half-way"}, 1)
    assert_shows(other, "scaling-explorer", {"ranks": 96, "bandwidth": "100 Gb/s", "scaling": "strong"}, 2)


def test_a_link_with_nonsense_says_so_and_the_picture_stays(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html?live-scaling-explorer.ranks=many")
    page.wait_for_function("document.querySelector('.sl-problem').textContent.includes('ranks')")
    assert_shows(page, "scaling-explorer", {})


# The stepper --------------------------------------------------------------------------------------------------


def test_the_player_steps_back_and_forth(visit: Any, site: str) -> None:
    page = visit(f"{site}/ring.html")
    wake(page)

    def press(name: str) -> None:
        page.locator("live-experiment").first.get_by_role("button", name=name, exact=True).click()

    for position in (1, 2, 3):
        assert drawn_after(page, lambda: press("Step"))["step"] == position
        assert_shows(page, "ring-stepper", {"step": position})
    assert drawn_after(page, lambda: press("Back"))["step"] == 2
    assert drawn_after(page, lambda: press("Start"))["step"] == 0
    back = page.locator("live-experiment").first.get_by_role("button", name="Back", exact=True)
    assert back.get_attribute("aria-disabled") == "true"


def test_play_runs_to_the_end_and_pause_stops(visit: Any, site: str) -> None:
    page = visit(f"{site}/ring.html")
    wake(page)
    play = page.locator("live-experiment").first.locator(".sl-main")
    page.wait_for_timeout(1500)
    assert words(page) == engine.run("ring-stepper", {})["words"]  # nothing moves unless asked
    # Pressed while the first step is drawn: a slow driver of the browser might come after the last one.
    page.evaluate("""() => {
      const play = document.querySelector("live-experiment .sl-main");
      document.querySelector("live-experiment").addEventListener("sl-drawn", () => {
        window.labels = [play.textContent];
        play.click();
        window.labels.push(play.textContent);
      }, { once: true });
    }""")
    drawn_after(page, play.click)
    assert page.evaluate("window.labels") == ["Pause", "Play"]
    # A step may have been asked for before the pause: once a later one is drawn, none is under way.
    box = control(page, "Step: type a value").first
    box.fill("3")
    box.press("Enter")
    stood = engine.run("ring-stepper", {"step": 3})["words"]
    page.locator(".sl-words p", has_text=stood[0]).first.wait_for()
    page.wait_for_timeout(1500)
    assert words(page) == stood
    assert play.inner_text() == "Play"
    play.click()
    page.wait_for_function("document.querySelector('.sl-main').textContent === 'Play'")
    # The button knows of the last step before its chart is drawn.
    finished = engine.run("ring-stepper", {"step": 6})["words"][0]
    page.locator(".sl-words p", has_text=finished).first.wait_for()
    assert_shows(page, "ring-stepper", {"step": 6})


def test_fewer_ranks_shorten_the_run(visit: Any, site: str) -> None:
    page = visit(f"{site}/ring.html")
    wake(page)
    drawn_after(page, page.get_by_role("button", name="16 ranks, done").first.click)
    ranks = control(page, "Ranks N: type a value")
    ranks.fill("2")
    values = drawn_after(page, lambda: ranks.press("Enter"))
    assert values == {"step": 2, "ranks": 2, "buffer_bytes": 1e9}
    assert control(page, "Step").first.get_attribute("max") == "2"


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_chunks_travel_unless_motion_is_unwanted(visit: Any, site: str, settle: Any, motion: str) -> None:
    page = visit(f"{site}/ring.html", motion=motion)
    wake(page)
    settle(page)  # the theme's margin may still be folding away
    step = page.locator("live-experiment").first.get_by_role("button", name="Step", exact=True)
    moving = page.evaluate(
        """(button) => new Promise((done) => {
          addEventListener("sl-drawn", () => done(
            document.getAnimations().filter((one) => one.effect.target.closest("live-experiment")).length), { once: true });
          button.click();
        })""",
        step.element_handle(),
    )
    assert moving == (4 if motion == "no-preference" else 0)


# Looks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["index", "ring"])
def test_a_whole_experiment_fits_a_laptop_screen(visit: Any, site: str, settle: Any, name: str) -> None:
    page = visit(f"{site}/{name}.html", width=1280, height=800)
    wake(page)
    header = 48  # the theme's bar that stays on top
    for button in page.locator("live-experiment").first.locator(".sl-presets button").all():
        drawn_after(page, button.click) if button.get_attribute("aria-pressed") == "false" else None
        settle(page)
        box = page.locator(".sl-experiment").first.bounding_box()
        assert box["height"] <= 800 - header, button.inner_text()
        assert box["x"] + box["width"] <= 1280


@pytest.mark.parametrize("name", ["index", "ring", "notebook"])
def test_a_phone_needs_no_sideways_scrolling(visit: Any, site: str, settle: Any, name: str) -> None:
    page = visit(f"{site}/{name}.html", width=360, height=740)
    settle(page)
    wide = "document.scrollingElement.scrollWidth"
    assert page.evaluate(wide) == 360
    wake(page)
    settle(page)
    assert page.evaluate(wide) == 360
    outside = page.locator("live-experiment :is(button, input, svg)").evaluate_all(
        "(all) => all.filter((one) => one.getBoundingClientRect().right > 361).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert outside == []
    texts = (
        page.locator("live-experiment")
        .first.locator(".sl-panel svg text")
        .evaluate_all(
            "(all) => all.filter((one) => one.getBoundingClientRect().right > 360).map((one) => one.textContent)"
        )
    )
    assert texts == []


def test_dark_needs_no_new_drawing(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    fills = """() => [...document.querySelectorAll("live-experiment .sl-panel svg :is(text, path, rect)")]
      .map((one) => getComputedStyle(one).fill + getComputedStyle(one).stroke).join()"""
    for touch in (False, True):
        if touch:
            wake(page)
        light = page.evaluate(fills)
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        dark = page.evaluate(fills)
        page.evaluate("document.documentElement.dataset.theme = 'light'")
        assert "20, 84, 156" in light  # compute blue
        assert "20, 84, 156" not in dark
        assert "74, 144, 217" in dark


@pytest.mark.parametrize("name", ["index", "ring"])
def test_axe_finds_nothing_serious(visit: Any, site: str, settle: Any, name: str) -> None:
    assert AXE.is_file(), "axe-core is missing: run `npm ci` in frontend/"
    page = visit(f"{site}/{name}.html")
    page.add_script_tag(path=str(AXE))
    for touch in (False, True):
        if touch:
            wake(page)
            page.locator(".sl-numbers summary").first.click()
            page.locator(".sl-tables table").first.wait_for()
        # The elements are the same in light and dark; their colours are not.
        for theme, options in (
            ("light", {}),
            ("dark", {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}),
        ):
            page.evaluate("(theme) => document.documentElement.dataset.theme = theme", theme)
            settle(page)
            found = page.evaluate("(options) => axe.run('live-experiment', options)", options)
            bad = [
                item for item in found["violations"] if item["impact"] in ("serious", "critical", "moderate")
            ]
            assert bad == [], [(theme, item["id"], item["nodes"][0]["html"][:200]) for item in bad]
            assert "color-contrast" in {item["id"] for item in found["passes"]}
            assert options or len(found["passes"]) > 10


def test_print_shows_the_picture_without_controls(visit: Any, site: str) -> None:
    page = visit(f"{site}/index.html")
    page.emulate_media(media="print")
    assert page.locator("live-experiment .sl-panel svg").first.is_visible()
    assert page.locator("live-experiment .sl-words").is_visible()
    for part in (".sl-presets", ".sl-controls", ".sl-foot"):
        assert not page.locator(f"live-experiment {part}").is_visible()


# When something is in the way ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["worker.js", "micropython.wasm", "python/"])
def test_a_lost_engine_is_named_and_a_second_try_works(visit: Any, site: str, lost: str) -> None:
    page = visit(f"{site}/index.html", faults=True)
    page.context.route(f"**/*{lost}*", lambda route: route.abort())
    page.locator("live-experiment input[type=range]").first.focus()
    page.wait_for_function("document.querySelector('.sl-problem').textContent.includes('could not start')")
    assert_shows(page, "scaling-explorer", {})
    page.context.unroute_all()
    values = drawn_after(page, lambda: page.keyboard.press("ArrowRight"))
    assert_shows(page, "scaling-explorer", values)
    assert page.locator(".sl-problem").inner_text() == ""


def test_a_page_opened_from_a_disk_lives_too(open_page: Any, built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "stick"
    shutil.copytree(built, copy)
    page = open_page(f"file://{copy}/index.html")
    values = wake(page)
    assert_shows(page, "scaling-explorer", values)
    slider = control(page, "Ranks N")
    slider.focus()
    assert drawn_after(page, lambda: page.keyboard.press("ArrowRight"))["ranks"] == 12
    page.wait_for_selector("mjx-container mjx-math")
    assert page.foreign == []


def test_the_state_in_the_page_is_the_experiments(built: Path) -> None:
    text = (built / "ring.html").read_text("utf-8")
    states = [part.split('"')[0] for part in text.split('state="')[1:]]
    values = [json.loads(state.replace("&quot;", '"').replace("&#34;", '"')) for state in states]
    assert values[1] == engine.run("ring-stepper", {"preset": "half-way"})["values"]
    assert values[2]["bandwidth"] == 12.5e9
