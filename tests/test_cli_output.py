"""The command line where its output can't go: old encodings, full disks, files that may not be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab import cli, cli_models

DIAGNOSE = ["diagnose", "--ranks", "8", "--step", "975 ms", "--base-step", "100 ms"]
full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")


def shardlab(
    *arguments: str, encoding: str = "utf-8", **settings: object
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    return subprocess.run(
        [sys.executable, "-m", "shardlab", *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        encoding=encoding,
        timeout=120,
        **{"stdout": subprocess.PIPE, **settings},  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_encoding_without_the_marks_of_progress_shows_the_rest(tmp_path: Path, encoding: str) -> None:
    source = Path(__file__).parents[1] / "exercises/source/03_ring_allreduce/ring_allreduce.ipynb"
    started = tmp_path / "03_ring_allreduce" / source.name
    started.parent.mkdir()
    notebook = json.loads(source.read_text("utf-8"))
    (check,) = [cell for cell in notebook["cells"] if cell["id"] == "task-1-check"]
    check["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["4 of 4 marks\n"]}]
    check["execution_count"] = 1
    started.write_text(json.dumps(notebook), encoding="utf-8")

    done = shardlab("progress", str(tmp_path), encoding=encoding)

    assert done.returncode == 0, done.stderr
    assert "  ? 1  Calculate by hand, with numbers of your own     4 of 4" in done.stdout
    assert "Next: 03_ring_allreduce, task 2" in done.stdout


def test_a_lab_is_written_to_its_file_before_anything_can_fail_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardlab import labs

    kept = tmp_path / "ring.json"
    run = labs.ring.load_recording()
    monkeypatch.setattr(cli, "_print_run", _full)

    with pytest.raises(OSError, match="No space"):
        cli._run_lab(_Returns(run), {}, kept)  # type: ignore[arg-type]

    assert json.loads(kept.read_text("utf-8"))["lab"] == "ring"


class _Returns:
    """A lab that is done at once."""

    def __init__(self, run: object) -> None:
        self.name = "ring"
        self.run = run

    def __call__(self) -> object:
        return self.run


def _full(run: object) -> None:
    raise OSError(28, "No space left on device")


@full_disk
@pytest.mark.parametrize("arguments", [DIAGNOSE, ["lab"], ["--help"]])
def test_a_full_disk_is_told_in_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = shardlab(*arguments, stdout=full)

    assert done.returncode == 1
    assert done.stderr.splitlines() == ["The output could not be written: No space left on device"]


@full_disk
def test_a_json_file_on_a_full_disk_is_told_in_one_line() -> None:
    done = shardlab(*DIAGNOSE, "--json", "/dev/full")

    assert done.returncode == 1
    assert done.stderr.splitlines() == ["--json: '/dev/full' could not be written: No space left on device"]
    assert "Verdict: " in done.stdout


def test_a_json_file_that_may_not_be_written_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    # Root may write everything, so the system's answer is given here.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != kept)

    with pytest.raises(ValueError, match="--json must name a file in a folder that can be written to"):
        cli_models.check_folder(kept)
    cli_models.check_folder(tmp_path / "new.json")


def test_any_other_error_of_the_system_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "part of shardlab")

    monkeypatch.setattr(cli, "app", missing)
    with pytest.raises(FileNotFoundError):
        cli.main()
