"""The student release of every assignment, searched for every line of every solution, hidden check and model answer."""

from __future__ import annotations

import shutil

import nbformat
import pytest
from submission import REPOSITORY

from shardlab.classroom.assignments import SECRETS, notebooks_in, read_cells, regions, source_of
from tests.leaks import SOURCE, WHOLE, files, leaks, secret_pieces, squeezed


@pytest.fixture(scope="module")
def pieces() -> dict[str, str]:
    """What must not be found, with the assignment that it is from."""
    return secret_pieces()


def test_every_assignment_has_secrets_to_look_for(pieces):
    assert set(pieces.values()) == {path.parent.name for path in notebooks_in(SOURCE)}


def test_nearly_every_long_region_is_looked_for_whole(pieces):
    """Only a hint may give a whole region away, and few do."""
    long, missed = 0, []
    for path in notebooks_in(SOURCE):
        for cell in read_cells(path):
            for kind in SECRETS:
                for region in regions(source_of(cell), kind):
                    whole = squeezed("\n".join(region))
                    long += len(whole) >= WHOLE
                    if len(whole) >= WHOLE and whole not in pieces:
                        missed.append((path.parent.name, region))
    assert len(missed) <= long / 10, missed


def test_the_release_holds_no_solution(released, pieces):
    found = files(released.root / "release")
    assert len(found) >= len(notebooks_in(SOURCE))
    assert leaks(found, pieces) == []


def test_the_marks_of_regions_are_not_released(released):
    for path in files(released.root / "release"):
        text = path.read_text()
        assert not [kind for kind in SECRETS if f"BEGIN {kind}" in text or f"END {kind}" in text], path


@pytest.mark.parametrize("path", notebooks_in(SOURCE), ids=lambda path: path.parent.name)
def test_the_search_finds_one_line_that_is_let_through(path, pieces, tmp_path):
    """A release that kept a single hidden line of one cell would fail the test above."""
    mine = {piece for piece, name in pieces.items() if name == path.parent.name}
    notebook = nbformat.read(path, as_version=4)
    line = next(
        line
        for cell in notebook.cells
        for kind in SECRETS
        for region in regions(cell.source, kind)
        for line in region
        if squeezed(line) in mine
    )
    copy = tmp_path / path.name
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"x = 1\n{line}\ny = 2")]), copy)
    assert [piece for _, piece in leaks([copy], mine)] == [squeezed(line)]


def test_the_package_holds_no_solution(pieces, tmp_path):
    """Students install the package: no whole region may stand in it."""
    whole = [piece for piece in pieces if len(piece) >= 3 * WHOLE]
    assert whole
    package = tmp_path / "package"
    shutil.copytree(
        REPOSITORY / "src" / "shardlab",
        package,
        ignore=shutil.ignore_patterns("__pycache__", "web", "recorded"),
    )
    assert leaks(files(package), whole) == []
