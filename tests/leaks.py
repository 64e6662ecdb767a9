"""Searches built pages and releases for what students must not see.

A page writes a line of code as a row of coloured pieces, JSON escapes it, Markdown marks it up: so only letters,
digits and underscores are compared.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path

from shardlab.classroom.assignments import (
    SECRETS,
    notebooks_in,
    read_cells,
    regions,
    secret_lines,
    shown,
    source_of,
)

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "exercises" / "source"
SEARCHED = {".html", ".json", ".js", ".txt", ".ipynb", ".md", ".py", ".csv", ".inv"}
# A shorter line, such as "else:" or "return total", tells nothing and stands everywhere.
LEAST = 16
# A region is looked for as a whole from this length on.
WHOLE = 3 * LEAST


def squeezed(text: str) -> str:
    """Letters, digits and underscores of a text, without the numbers of a list: a page draws those."""
    return re.sub(r"\W+", "", re.sub(r"^\s*\d+\.\s", "", text, flags=re.MULTILINE))


def page_text(path: Path) -> str:
    """What a file says, squeezed."""
    text = path.read_text(encoding="utf-8", errors="replace")
    # A quiz escapes its tags, since it is a script of the page; a notebook escapes it once more.
    text = re.sub(r"\\+u003c", "<", text)
    if path.suffix == ".html":
        text = html.unescape(re.sub(r"<[^>]*>", "", text))
    else:
        # The letter of an escaped line end, as in JSON, would join the words around it.
        text = re.sub(r"\\[nrt\"]", " ", text)
        if path.suffix == ".ipynb":
            text = html.unescape(re.sub(r"</?\w+[^<>]*>", "", text))
    return squeezed(text)


def files(folder: Path) -> list[Path]:
    """All files of a folder that hold text, without MathJax, which is somebody else's."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in SEARCHED and "mathjax" not in path.parts
    ]


def public_text() -> str:
    """What the chapters and the book's pages say, and the code that experiments and quizzes run in the page.

    A single line that stands there, such as a loop over ranks, is no secret.
    """
    paths = [path for path in (ROOT / "book").rglob("*.md") if "teacher" not in path.parts]
    paths += (ROOT / "notebooks").glob("*.ipynb")
    for name in ("models", "experiments", "quiz"):
        paths += (ROOT / "src" / "shardlab" / name).rglob("*.py")
    return "\n".join(page_text(path) for path in paths)


def secret_pieces() -> dict[str, str]:
    """Squeezed line, or whole region, of a solution or a hidden check: the assignment that it is from.

    What some assignment gives away itself, in a hint or in given code, is left out. Single lines are also left out
    when the public text holds them; whole regions are not.
    """
    public = public_text()
    cells = {path: [source_of(cell) for cell in read_cells(path)] for path in notebooks_in(SOURCE)}
    given = squeezed("\n".join(shown(source) for sources in cells.values() for source in sources))
    found: dict[str, str] = {}
    for path, sources in cells.items():
        for line in secret_lines(path):
            piece = squeezed(line)
            if len(piece) >= LEAST and piece not in given and piece not in public:
                found[piece] = path.parent.name
        for source in sources:
            for kind in SECRETS:
                for region in regions(source, kind):
                    piece = squeezed("\n".join(region))
                    if len(piece) >= WHOLE and piece not in given:
                        found[piece] = path.parent.name
    return found


def leaks(paths: Iterable[Path], pieces: Iterable[str]) -> list[tuple[str, str]]:
    """(file, piece) for everything that is found."""
    wanted = list(pieces)
    return [
        (str(path), piece)
        for path in paths
        for text in [page_text(path)]
        for piece in wanted
        if piece in text
    ]
