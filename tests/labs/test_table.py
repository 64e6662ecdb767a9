"""The lab's tables: the same cells in text and in accessible HTML."""

from html.parser import HTMLParser

from shardlab.labs.table import Table, Tables

TABLE = Table(
    caption="What <one> rank sends",
    columns=("Ranks", "Sync", "Bytes, B"),
    rows=(("1", "last", "0"), ("12", "every", "1,234")),
    notes=("A & B.",),
    label_columns=2,
)


def test_plain_text_lines_up():
    assert str(TABLE).splitlines() == [
        "What <one> rank sends",
        "",
        "Ranks  Sync   Bytes, B",
        "-----  -----  --------",
        "1      last          0",
        "12     every     1,234",
        "",
        "A & B.",
    ]
    assert repr(TABLE) == str(TABLE)


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.cells = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("th", "td", "caption", "p"):
            self.cells.append("")

    def handle_data(self, data):
        self.cells[-1] += data


def test_html_has_caption_scopes_and_escapes():
    parser = Cells()
    parser.feed(TABLE._repr_html_())
    assert parser.cells == [TABLE.caption, *TABLE.columns, *TABLE.rows[0], *TABLE.rows[1], *TABLE.notes]
    scopes = [attributes["scope"] for tag, attributes in parser.tags if tag == "th"]
    assert scopes == ["col"] * 3 + ["row"] * 4
    assert "<one>" not in TABLE._repr_html_()


def test_several_tables_follow_one_another():
    both = Tables((TABLE, TABLE))
    assert str(both) == f"{TABLE}\n\n{TABLE}"
    assert both._repr_html_().count("<table") == 2
