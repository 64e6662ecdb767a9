"""Blocks that scroll are stops of the Tab key, with a name, as long as they scroll."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "src/shardlab/web"
AXE = ROOT / "frontend/node_modules/axe-core/axe.min.js"
WIDE = "<span style='display: block; width: 40rem'>a line of forty rem</span>"
BLOCKS = {
    "equation": f'<mjx-container display="true">{WIDE}</mjx-container>',
    "code": f"<div class='highlight'><pre>{WIDE}</pre></div>",
    "printed": f"<div class='cell_output'><pre>{WIDE}</pre></div>",
    "tall": "<div class='cell_output'><pre style='height: 4rem'>1\n2\n3\n4\n5\n6\n7\n8\n9\n</pre></div>",
    "table": f"<div class='pst-scrollable-table-container'>{WIDE}</div>",
    "figure": f"<div class='cell_output'><div class='output'><figure class='sl-figure'>{WIDE}</figure></div></div>",
    "named": f"<div class='shardlab-table' role='region' aria-label='Times' tabindex='0'>{WIDE}</div>",
    "short": "<div class='highlight'><pre>one line</pre></div>",
}
NAMES = ["Equation", "Code", "Output", "Output", "Table", "Figure", "Times", None]
SCROLLERS = "mjx-container, pre, .pst-scrollable-table-container, .output, .shardlab-table"
PAGE = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Wide</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<style>{SCROLLERS} {{ display: block; overflow: auto; margin: 0 0 1rem; }}</style>
<script defer src="page.js"></script></head>
<body><main><h1>Wide blocks</h1>{"".join(BLOCKS.values())}</main></body></html>"""
STATE = f"""() => [...document.querySelectorAll("{SCROLLERS}")].map((block) =>
  [block.getAttribute("tabindex"), block.getAttribute("role"), block.getAttribute("aria-label")])"""


@pytest.fixture(scope="module")
def site(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text(PAGE, encoding="utf-8")
    (folder / "page.js").write_bytes((WEB / "page.js").read_bytes())
    return serve(folder)


def wait_for_stops(page, count):
    page.wait_for_function(
        "(count) => document.querySelectorAll('[tabindex=\"0\"]').length === count", arg=count
    )


def test_what_scrolls_is_a_stop_with_a_name_and_what_does_not_is_none(site, open_page):
    page = open_page(site, width=360)
    wait_for_stops(page, 7)
    state = page.evaluate(STATE)
    assert [tab for tab, _, _ in state] == ["0"] * 7 + [None]
    assert [role for _, role, _ in state] == ["group"] * 6 + ["region", None]
    assert [name and name.split(",")[0] for _, _, name in state] == NAMES
    assert [name and name.partition(", ")[2] for _, _, name in state] == [
        *["scrolls sideways"] * 3,
        "scrolls",
        *["scrolls sideways"] * 2,
        "",
        None,
    ]
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []

    # Wide enough for all: only the tall one still scrolls, and what brought its name along keeps it.
    page.set_viewport_size({"width": 1000, "height": 740})
    wait_for_stops(page, 1)
    state = page.evaluate(STATE)
    assert [name for _, _, name in state if name] == ["Output, scrolls", "Times"]
    page.set_viewport_size({"width": 360, "height": 740})
    wait_for_stops(page, 7)


def test_an_equation_that_comes_later_is_reached_by_tab_and_moved_by_the_arrows(site, open_page):
    page = open_page(site, width=360)
    wait_for_stops(page, 7)
    page.evaluate(
        """() => {
          const late = document.querySelector("mjx-container").cloneNode(true);
          for (const name of ["tabindex", "role", "aria-label"]) late.removeAttribute(name);
          document.querySelector("h1").after(late);
        }"""
    )
    wait_for_stops(page, 8)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement === document.querySelector('h1').nextElementSibling")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")


@pytest.mark.parametrize("page_name", ["glossary", "errata"])
def test_long_tables_of_text_are_paragraphs_on_a_phone(serve, open_page, page_name):
    page = open_page(f"{serve(ROOT / '_build' / 'html')}/book/{page_name}.html", width=360)
    widest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('article td')].map((cell) => cell.getBoundingClientRect().right))"
    )
    assert 200 < widest <= 360
    # The theme looks at its tables again a third of a second after each change, and writes what it thinks.
    page.wait_for_function(
        "document.querySelectorAll('article .pst-scrollable-table-container[tabindex]').length === 0"
    )


def test_a_block_stays_settled_after_the_theme_has_looked_at_it_again(serve, open_page):
    page = open_page(f"{serve(ROOT / '_build' / 'html')}/book/glossary.html", width=360)
    page.wait_for_load_state("networkidle")
    seen = page.evaluate(
        """async () => {
          const table = document.querySelector("article .pst-scrollable-table-container");
          const records = [];
          new MutationObserver((found) => records.push(...found)).observe(table, {attributeFilter: ["tabindex"]});
          document.querySelector("article").append("a change");
          for (let tenths = 0; tenths < 50 && !records.length; tenths += 1)
            await new Promise((resolve) => setTimeout(resolve, 100));
          await new Promise((resolve) => setTimeout(resolve, 100));
          const first = records.length;
          await new Promise((resolve) => setTimeout(resolve, 300));
          return [first, records.length, table.getAttribute("tabindex")];
        }"""
    )
    # Written by the theme, taken back by the page, and then at rest.
    assert seen == [2, 2, None]
