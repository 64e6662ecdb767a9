"""A table that reads the same in a terminal, in a notebook and on the page."""

from __future__ import annotations

import html
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under a caption.

    Attributes:
        caption: what the table shows, with how it was got.
        columns: column heads, units included.
        rows: one tuple of cells per row, as long as ``columns``.
        notes: sentences below the table.
        label_columns: how many columns on the left name the row; they are set left, the others right.
        text_columns: how many columns on the right hold text instead of numbers; they are set left and wrap.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    label_columns: int = 1
    text_columns: int = 0

    def is_left(self, index: int) -> bool:
        """Whether this column is set left."""
        return index < self.label_columns or index >= len(self.columns) - self.text_columns

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        text = [
            "  ".join([self._pad(line, index, widths[index]) for index in range(len(widths))])
            for line in lines
        ]
        text.insert(1, "  ".join(["-" * width for width in widths]))
        return "\n".join([self.caption, "", *[line.rstrip() for line in text], *self._note_lines()])

    __repr__ = __str__

    def _pad(self, line: tuple[str, ...], index: int, width: int) -> str:
        return line[index].ljust(width) if self.is_left(index) else line[index].rjust(width)

    def _note_lines(self) -> list[str]:
        return ["", *self.notes] if self.notes else []

    def _repr_html_(self) -> str:
        head = "".join(
            [f'<th scope="col"{_align(self, i)}>{_safe(name)}</th>' for i, name in enumerate(self.columns)]
        )
        body = "".join(
            [f"<tr>{''.join([self._cell(row, i) for i in range(len(row))])}</tr>" for row in self.rows]
        )
        notes = "".join([f"<p>{_safe(note)}</p>" for note in self.notes])
        return (
            '<div class="shardlab-table" style="overflow-x:auto" tabindex="0" role="region" '
            f'aria-label="{_safe(self.caption)}"><table>'
            f'<caption style="caption-side:top;text-align:left">{_safe(self.caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
        )

    def _cell(self, row: tuple[str, ...], index: int) -> str:
        if index < self.label_columns:
            return f'<th scope="row" style="text-align:left">{_safe(row[index])}</th>'
        if self.is_left(index):
            return f'<td style="text-align:left;white-space:normal;min-width:14em">{_safe(row[index])}</td>'
        return f'<td style="text-align:right">{_safe(row[index])}</td>'


@dataclass(frozen=True)
class Tables:
    """Several tables, one below the other."""

    tables: tuple[Table, ...]

    def __str__(self) -> str:
        return "\n\n".join([str(table) for table in self.tables])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join([table._repr_html_() for table in self.tables])


def _align(table: Table, index: int) -> str:
    return f' style="text-align:{"left" if table.is_left(index) else "right"}"'


def _safe(text: str) -> str:
    return html.escape(text, quote=True)
