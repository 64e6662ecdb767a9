"""What nbval cannot see: cells never run, outputs missing, numbers in the prose that no cell printed."""

import ast
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ERRATA = ROOT / "book" / "errata.md"
VERDICTS = {"right", "with a condition", "loose", "wrong"}

pytestmark = pytest.mark.filterwarnings("error")


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def output_text(cell):
    parts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            parts.append(output.text)
        data = output.get("data", {})
        parts += [str(data[kind]) for kind in ("text/plain", "text/html") if kind in data]
    return "\n".join(parts)


def shows_something(source):
    """Whether a cell must leave an output: it prints, or its last line is an expression other than None."""
    tree = ast.parse(source)
    prints = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        for statement in tree.body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for node in ast.walk(statement)
    )
    return prints or isinstance(tree.body[-1], ast.Expr)


def prose(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def plain(markdown):
    """Prose without code, maths, links' targets, labels, citations and tables' rulers."""
    text = re.sub(r"```.*?```", " ", markdown, flags=re.S)
    text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", " ", text, flags=re.S)
    text = re.sub(r"\{cite:[a-z]\}|\(claim-\d+\)=|\]\([^)]*\)", " ", text)
    return re.sub(r"^\([a-z-]+\)=$", " ", text, flags=re.M)


def numbers(text):
    """Numbers worth a proof: with a decimal point, or of three digits and more."""
    found = re.findall(r"(?<![\w.])(\d+\.\d+|\d{3,})(?![\w])", text)
    return [number for number in found if not re.fullmatch(r"(19|20)\d\d", number)]


def proven_numbers(text):
    """Every number in what cells say and print, a unit behind it or not."""
    return set(re.findall(r"(?<![\d.])(?:\d+\.\d+|\d{3,})", text))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestEveryNotebook:
    def test_ran_whole_and_clean(self, path):
        notebook = read(path)
        nbformat.validate(notebook)
        for cell in code_cells(notebook):
            assert cell.execution_count is not None, f"cell {cell.id} was never run"
            assert all(output.output_type != "error" for output in cell.outputs), (
                f"cell {cell.id} stores an error"
            )
            streams = [output.get("name") for output in cell.outputs]
            assert "stderr" not in streams, f"cell {cell.id} stores a warning: {output_text(cell)[:200]}"
        counts = [cell.execution_count for cell in code_cells(notebook)]
        assert counts == list(range(1, len(counts) + 1)), "cells did not run once, in order"

    def test_outputs_are_there(self, path):
        for cell in code_cells(read(path)):
            if shows_something(cell.source):
                assert output_text(cell).strip(), f"cell {cell.id} should show something and doesn't"

    def test_ignored_outputs_are_bounded(self, path):
        notebook = read(path)
        cells = code_cells(notebook)
        ignored = [
            i for i, cell in enumerate(cells) if "nbval-ignore-output" in cell.metadata.get("tags", [])
        ]
        assert len(ignored) <= len(cells) / 5, "nbval ignores more than a fifth of the outputs"
        for index in ignored:
            following = "\n".join(cell.source for cell in cells[index : index + 2])
            assert "assert " in following, f"cell {cells[index].id} is exempt from nbval and asserts nothing"

    def test_no_state_and_no_pictures_without_words(self, path):
        notebook = read(path)
        assert set(notebook.metadata) == {"kernelspec", "language_info"}
        for cell in code_cells(notebook):
            for output in cell.outputs:
                kinds = set(output.get("data", {}))
                assert not {"image/png", "image/jpeg", "image/svg+xml"} & kinds, (
                    f"{cell.id}: use shardlab's figure()"
                )
                for drawing in re.findall(r"<svg[^>]*>", str(output.get("data", {}).get("text/html", ""))):
                    assert "aria-label" in drawing or "aria-hidden" in drawing, (
                        f"{cell.id}: a drawing without words"
                    )

    def test_cells_are_short(self, path):
        lengths = [len(cell.source.splitlines()) for cell in code_cells(read(path))]
        assert max(lengths) <= 25
        assert statistics.median(lengths) <= 8

    def test_numbers_in_the_prose_were_printed(self, path):
        notebook = read(path)
        proven = "\n".join(cell.source + "\n" + output_text(cell) for cell in code_cells(notebook))
        known = proven_numbers(proven)
        missing = [number for number in numbers(plain(prose(notebook))) if number not in known]
        assert not missing, f"no cell prints {missing}"

    def test_one_sentence_a_line(self, path):
        for line in plain(prose(read(path))).splitlines():
            if not line.startswith("|"):
                assert not re.search(r"[a-z)\"*][.!?] [A-Z]", line), f"two sentences on a line: {line!r}"

    def test_roles_are_there(self, path):
        text = prose(read(path))
        for role in (
            "## Predict",
            "### Play",
            "## Where the model breaks",
            "Takeaway",
            "## Self-check",
            "further reading",
        ):
            assert role in text, f"the chapter lacks {role!r}"


def errata_rows():
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in ERRATA.read_text().splitlines()
        if re.match(r"\| \d", line)
    ]


def test_errata_rows_have_verdict_and_a_cell_that_ran():
    rows = errata_rows()
    targets = {}
    for path in NOTEBOOKS:
        cells = read(path).cells
        for index, cell in enumerate(cells):
            for label in re.findall(r"^\((claim-\d+)\)=$", cell.source, flags=re.M):
                following = [later for later in cells[index:] if later.cell_type == "code"]
                targets[label] = any(output_text(later).strip() for later in following[:2])
    for row in rows:
        assert len(row) == 5, row
        assert row[2] in VERDICTS, row
        label = re.search(r"\]\(#(claim-\d+)\)", row[4])
        assert label, f"row {row[0]} has no link"
        assert targets.get(label[1]), f"row {row[0]} links to {label[1]}, which has no cell with an output"


def test_errata_numbers_were_printed():
    known = set()
    for path in NOTEBOOKS:
        known |= proven_numbers("\n".join(cell.source + output_text(cell) for cell in code_cells(read(path))))
    rows = "\n".join(" ".join(row[1:4]) for row in errata_rows())
    assert not [number for number in numbers(plain(rows)) if number not in known]


def test_all_120_claims_are_listed_once_and_in_order():
    listed = []
    for row in errata_rows():
        first, _, last = row[0].partition("–")
        listed += range(int(first), int(last or first) + 1)
    # 36 is about a version of a programming language: a sentence of its own.
    assert listed == [claim for claim in range(1, 121) if claim != 36]


@pytest.mark.parametrize(
    ("change", "code"), [(None, 0), (("2.91", "2.92"), 1)], ids=["as committed", "one digit off"]
)
def test_nbval_notices_a_changed_number(tmp_path, change, code):
    notebook = read(ROOT / "notebooks" / "03_data_parallel.ipynb")
    wanted = {"imports", "table-10"}
    notebook.cells = [cell for cell in notebook.cells if cell.get("id") in wanted]
    assert len(notebook.cells) == 2
    text = json.dumps(notebook)
    if change:
        assert change[0] in text
        text = text.replace(*change)
    copy = tmp_path / "copy.ipynb"
    copy.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", str(copy)]
    command += ["-p", "tests.notebooks.conftest", "--nbval-kernel-startup-timeout", "280"]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    run = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True, timeout=800)
    assert run.returncode == code, run.stdout[-2000:]
