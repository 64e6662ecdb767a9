"""Look at a submission's names and files before anything reads them: links, devices, and more than anybody hands in."""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 20_000_000
MOST_NOTEBOOK = 10_000_000
MOST_FILES = 200
MOST_CELLS = 500
_SKIPPED = {".ipynb_checkpoints", "__pycache__"}
# nbgrader looks folders up by pattern, so none of * ? [ may be in a name; what people are called may.
STUDENT_FOLDER = re.compile(r"\w[\w.,@+ '’·-]*")


def is_student(name: str) -> bool:
    """Whether a folder may be named so for a student. A Mac writes ü as two characters; they count as one letter."""
    return STUDENT_FOLDER.fullmatch(unicodedata.normalize("NFC", name)) is not None


def fault(folder: Path) -> str | None:
    """Why a submission's folder can't be graded, or None. Follows no link and opens nothing but small notebooks."""
    total = 0
    for number, (path, status) in enumerate(_walk(folder)):
        shown = path.relative_to(folder)
        name = str(shown) if path != folder else folder.name
        if stat.S_ISLNK(status.st_mode):
            return f"{name} is a link; hand in the file itself"
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            return f"{name} is neither a file nor a folder"
        if number > MOST_FILES:
            return f"more than {MOST_FILES} files"
        if not stat.S_ISREG(status.st_mode):
            continue
        total += status.st_size
        if path.suffix == ".ipynb" and status.st_size > MOST_NOTEBOOK:
            return f"{name} has {status.st_size / 1e6:.0f} MB; a notebook may have {MOST_NOTEBOOK / 1e6:g} MB"
        if total > MOST_BYTES:
            return f"the files have more than {MOST_BYTES / 1e6:g} MB"
    for path in sorted(folder.glob("*.ipynb")):
        words = _notebook_fault(path)
        if words:
            return f"{path.name} {words}"
    return None


def _notebook_fault(path: Path) -> str | None:
    """What nbgrader would choke on for minutes; what it refuses at once is left to it."""
    try:
        cells = json.loads(path.read_bytes()).get("cells", [])
    except RecursionError:
        return "is nested too deeply"
    except (ValueError, AttributeError):
        return None
    if isinstance(cells, list) and len(cells) > MOST_CELLS:
        return f"has {len(cells)} cells; it may have {MOST_CELLS}"
    return None


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """A folder and all below it, with what each is; links aren't followed."""
    status = folder.lstat()
    yield folder, status
    if stat.S_ISDIR(status.st_mode):
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            if entry.name not in _SKIPPED:
                yield from _walk(Path(entry.path))


def other_files(folder: Path) -> dict[str, str]:
    """What lies beside the notebooks, name to content in base 64: a submission finds it in its working folder."""
    return {
        str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode()
        for path, status in _walk(folder)
        if stat.S_ISREG(status.st_mode) and path.suffix != ".ipynb" and path.name != "timestamp.txt"
    }
