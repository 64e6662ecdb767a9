"""Progress in folders as they are on somebody's disk: copies of a notebook, and other people's beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from shardlab.classroom import progress

SOURCE = Path(__file__).parents[2] / "exercises/source"
RING = "03_ring_allreduce/ring_allreduce.ipynb"


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """A folder with one assignment, one notebook of another course and one that is broken."""
    (tmp_path / "03_ring_allreduce").mkdir()
    shutil.copy(SOURCE / RING, tmp_path / RING)
    (tmp_path / "other course").mkdir()
    cells = [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Cats"}]
    (tmp_path / "other course/cats.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return tmp_path


def test_notebooks_beside_an_assignment_are_passed_over_where_nobody_named_the_folder(downloads, monkeypatch):
    monkeypatch.chdir(downloads / "03_ring_allreduce")
    text, broken = progress.report()
    assert broken == 0
    assert "cats" not in text
    assert "Together 0 of 30 marks" in text

    (downloads / "other course/torn.ipynb").write_text("{", encoding="utf-8")
    text, broken = progress.report()
    assert broken == 1
    assert "torn.ipynb is no notebook: it isn't JSON" in text


def test_in_a_folder_that_is_named_every_notebook_counts(downloads):
    text, broken = progress.report(downloads)
    assert broken == 1
    assert "cats.ipynb is no assignment" in text


def test_a_copy_of_a_notebook_is_told_apart_and_counts_once(downloads):
    ring = downloads / RING
    notebook = json.loads(ring.read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["id"] == "task-1-check":
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["4 of 4 marks\n"]}]
            cell["execution_count"] = 5
    (ring.parent / "ring_allreduce-Copy1.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    shutil.rmtree(downloads / "other course")

    text, broken = progress.report(downloads)

    assert broken == 0
    assert "ring_allreduce.ipynb in 03_ring_allreduce: write the ring all-reduce   0 of 30" in text
    assert "ring_allreduce-Copy1.ipynb in 03_ring_allreduce: write the ring all-reduce   4 of 30" in text
    assert "Together 4 of 30 marks" in text
    assert "Next: 03_ring_allreduce, task 2" in text
