"""The banks under the browser's Python: the same questions and, but for the last bits, the same keys."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from shardlab.quiz import registry

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "shardlab"
SEEDS = (3, 0, 12345)

DUMP = """
for name in NAMES:
    bank = __import__("shardlab.quiz.banks." + name, None, None, ["build"])
    for seed in SEEDS:
        for variant in bank.build(seed).variants:
            for part in variant.parts:
                print(bank.__name__, seed, variant.id, part.id, part.kind)
                if part.kind == "number":
                    print("%.11e" % part.key)
                    for mistake in part.mistakes:
                        print(mistake.misconception, "%.11e" % mistake.value)
                elif part.kind == "order":
                    print([item.id for item in part.items], part.start)
                elif part.kind != "open":
                    print([(option.id, option.correct, option.misconception) for option in part.options])
"""

RUN = """async ({files, code}) => {
  const {loadMicroPython} = await import(location.origin + "/micropython.mjs");
  const lines = [];
  const python = await loadMicroPython({heapsize: 16 * 1024 * 1024, url: location.origin + "/micropython.wasm",
                                        stdout: (line) => lines.push(line)});
  for (const [path, text] of files) {
    const folders = ["quiz-bank", ...path.split("/").slice(0, -1)];
    folders.forEach((_, depth) => {
      try { python.FS.mkdir("/" + folders.slice(0, depth + 1).join("/")); } catch { /* is there */ }
    });
    python.FS.writeFile("/quiz-bank/" + path, text);
  }
  python.runPython("import sys\\nsys.path.insert(0, '/quiz-bank')");
  python.runPython(code);
  return lines.join("\\n");
}"""


def sources() -> list[list[str]]:
    """Package files as they are installed, and the shim for what MicroPython lacks."""
    found = [
        [f"shardlab/{file.relative_to(PACKAGE).as_posix()}", file.read_text("utf-8")]
        for pattern in ("*.py", "models/*.py", "quiz/*.py", "quiz/banks/*.py")
        for file in sorted(PACKAGE.glob(pattern))
    ]
    shim = [
        file for file in sorted((PACKAGE / "experiments" / "shim").glob("*.py")) if file.stem != "__init__"
    ]
    return found + [[file.name, file.read_text("utf-8")] for file in shim]


def rows(text: str) -> list[list[object]]:
    return [
        [float(word) if re.fullmatch(r"-?\d\.\d+e[-+]\d+", word) else word for word in line.split(" ")]
        for line in text.splitlines()
    ]


@pytest.mark.browser
def test_the_banks_are_the_same_in_micropython(serve, open_page, tmp_path):
    for name in ("micropython.mjs", "micropython.wasm"):
        (tmp_path / name).write_bytes((PACKAGE / "web" / name).read_bytes())
    (tmp_path / "index.html").write_text("<!doctype html><title>engine</title><link rel=icon href=data:,>")
    code = f"NAMES = {registry.names()!r}\nSEEDS = {SEEDS!r}\n{DUMP}"
    page = open_page(serve(tmp_path))
    theirs = rows(page.evaluate(RUN, {"files": sources(), "code": code}))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "dump", "exec"), {})
    ours = rows(out.getvalue().rstrip("\n"))
    assert len(theirs) == len(ours) > 500
    for one, other in zip(theirs, ours, strict=True):
        assert len(one) == len(other)
        for their, our in zip(one, other, strict=True):
            if isinstance(our, float):
                assert their == pytest.approx(our, rel=1e-10)
            else:
                assert their == our
