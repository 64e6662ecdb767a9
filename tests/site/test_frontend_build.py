"""The committed browser files are what the lock file and the sources build, byte for byte."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRONTEND = ROOT / "frontend"
WEB = ROOT / "src" / "shardlab" / "web"


def _files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


@pytest.mark.timeout(900)
def test_committed_files_rebuild_byte_for_byte(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("node is missing: the browser files cannot be rebuilt here")
    copy = tmp_path / "frontend"
    shutil.copytree(FRONTEND, copy, ignore=shutil.ignore_patterns("node_modules"))
    # The translations of the controls are part of the package.
    for name in ("predictions", "quiz"):
        shutil.copytree(WEB.parent / name / "locale", tmp_path / "src" / "shardlab" / name / "locale")
    install = [npm, "ci", "--omit=dev", "--prefer-offline", "--no-audit", "--no-fund"]
    done = subprocess.run(install, cwd=copy, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    out = tmp_path / "web"
    done = subprocess.run(
        [node, "build.mjs", "--out", str(out)], cwd=copy, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    built, committed = _files(out), _files(WEB)
    assert sorted(built) == sorted(committed)
    changed = [name for name in built if built[name] != committed[name]]
    assert changed == [], "run `make frontend` and commit the result"


def test_the_lock_pins_every_package_with_its_hash() -> None:
    lock = json.loads((FRONTEND / "package-lock.json").read_text("utf-8"))
    packages = {path: entry for path, entry in lock["packages"].items() if path}
    assert len(packages) > 5
    assert [path for path, entry in packages.items() if not entry.get("integrity")] == []
    wanted = json.loads((FRONTEND / "package.json").read_text("utf-8"))
    for versions in (wanted["dependencies"], wanted["devDependencies"]):
        assert [
            name for name, version in versions.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)
        ] == []


def test_what_ships_of_others_carries_its_licence() -> None:
    text = (WEB / "LICENSES.txt").read_text("utf-8")
    assert "mathjax 3.2.2 (Apache-2.0)" in text
    assert "@micropython/micropython-webassembly-pyscript 1.27.0 (MIT)" in text
    assert "Damien P. George" in text
    assert "Apache License" in text


def test_nothing_that_ships_names_another_host() -> None:
    for name in ("experiment.js", "experiment.css", "quiz.js", "quiz.css"):
        if (WEB / name).is_file():
            text = (WEB / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://", text), name
