"""What the page's engine runs: the installed files of shardlab, word for word."""

from __future__ import annotations

import ast
from pathlib import Path

from shardlab.experiments.engine import load

_PACKAGE = Path(__file__).resolve().parents[1]
_SHIM = _PACKAGE / "experiments" / "shim"


def experiment_names() -> list[str]:
    """The names of all experiments, sorted."""
    files = (_PACKAGE / "experiments" / "gallery").glob("*.py")
    return sorted([file.stem.replace("_", "-") for file in files if not file.stem.startswith("_")])


def _module_file(module: str) -> Path | None:
    """The file of a shardlab module, or None if the name is no module (a function, say)."""
    stem = _PACKAGE.joinpath(*module.split(".")[1:])
    for file in (stem / "__init__.py", stem.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _imports(file: Path) -> list[str]:
    """Modules of shardlab that a file imports when it is itself imported, their packages included."""
    named = []
    for statement in ast.parse(file.read_text("utf-8")).body:
        if isinstance(statement, ast.Import):
            named += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            named += [statement.module, *[f"{statement.module}.{alias.name}" for alias in statement.names]]
    parents = [".".join(name.split(".")[:depth]) for name in named for depth in range(1, name.count(".") + 2)]
    return [name for name in parents if name.split(".")[0] == "shardlab"]


def python_files(name: str) -> dict[str, str]:
    """Path in the browser's file system to source text: all that one experiment imports, and the shim beside it."""
    load(name)
    waiting = ["shardlab.experiments.engine", "shardlab.experiments.gallery." + name.replace("-", "_")]
    files = {file.name: file for file in _SHIM.glob("*.py") if file.stem != "__init__"}
    while waiting:
        module = waiting.pop()
        file = _module_file(module)
        if file is None:
            continue
        path = f"shardlab/{file.relative_to(_PACKAGE).as_posix()}"
        if path not in files:
            files[path] = file
            # Importing a.b.c runs a/__init__.py and a/b/__init__.py too.
            waiting += [module.rsplit(".", 1)[0], *_imports(file)]
    return {path: files[path].read_text("utf-8") for path in sorted(files)}
