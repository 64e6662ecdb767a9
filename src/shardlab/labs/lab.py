"""What all labs have in common: a name, what they need, the code to read, and a recorded run to fall back on.

A lab is two files. ``<name>_worker.py`` runs on every rank, imports torch at its top, holds the code to read, and
measures with what :mod:`shardlab.labs.measure` has for all labs. ``<name>.py`` never imports torch: a function
decorated with :func:`lab` checks its arguments, calls :func:`shardlab.labs.run.run` and turns the measurements into a
:class:`shardlab.labs.result.LabRun` with predictions beside them. Named in :data:`shardlab.labs.LAB_NAMES`, it is
on the command line, with an option for each of its ``options``; recorded once with
``python -m shardlab.labs.record <name>``, it has something to show without torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar

from shardlab.labs import progress
from shardlab.labs.result import LabRun
from shardlab.labs.run import LabError

FOLDER = Path(__file__).parent

# The sentences for the two arguments that nearly every lab hands on to the runner.
RUN_OPTIONS = {
    "limit_s": "Time limit of the whole lab, seconds.",
    "start": "How ranks start: auto, fork or spawn.",
}

P = ParamSpec("P")
R = TypeVar("R", bound=LabRun)


class Source:
    """Program text that shows itself: as code in a notebook, as text elsewhere."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}\n```"


@dataclass(frozen=True)
class Lab(Generic[P, R]):
    """A lab: call it to run it.

    Attributes:
        name: how the command line calls it.
        title: what it shows, one line.
        seconds: how long it takes with its default settings on two quiet cores.
        needs: what must be installed.
        options: one sentence for each argument.
        worker_file: the file that every rank runs.
        shown: the functions worth reading: in that file, or imported by it from another file of the labs.
        result: the class of what it returns.
        function: measures; raises :class:`LabError` when it can't.
    """

    name: str
    title: str
    seconds: int
    needs: str
    options: Mapping[str, str]
    worker_file: str
    shown: tuple[str, ...]
    result: type[R]
    function: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return self.function(*args, **kwargs)
        except LabError as error:
            if error.cause != "missing" or not self.recording.exists():
                raise
            run = self.load_recording()
            settings = ", ".join([f"{name}={value}" for name, value in run.settings.items()])
            progress.say(
                f"{error}\nWhat you see instead is the run that came with the book, measured {run.stamp}, "
                f"with {settings}."
            )
            return run

    def __repr__(self) -> str:
        return f"labs.{self.name}(): {self.title} (about {self.seconds} s, needs {self.needs})"

    @property
    def recording(self) -> Path:
        """The file with the recorded run."""
        return FOLDER / "recorded" / f"{self.name}.json"

    def load_recording(self) -> R:
        """The recorded run, marked as such."""
        run = self.result.from_json(self.recording.read_text(encoding="utf-8"))
        return replace(run, recorded=True)

    def source(self, *names: str) -> Source:
        """The code that every rank runs: the functions worth reading, or those named. Doesn't need torch."""
        functions = _definitions(FOLDER / self.worker_file)
        for name in names:
            if name not in functions:
                raise ValueError(f"names must be among {', '.join(functions)}, not {name!r}")
        return Source("\n\n\n".join([functions[name] for name in names or self.shown]))


def _definitions(file: Path, imported: bool = True) -> dict[str, str]:
    """Name to text of the functions and classes of a file, and of those that it imports from other files of the labs."""
    text = file.read_text(encoding="utf-8")
    body = ast.parse(text).body
    found = {
        node.name: ast.get_source_segment(text, node) or ""
        for node in body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    for node in body if imported else []:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardlab.labs."):
            other = FOLDER.joinpath(*str(node.module).split(".")[2:]).with_suffix(".py")
            theirs = _definitions(other, imported=False) if other.is_file() else {}
            found.update({alias.name: theirs[alias.name] for alias in node.names if alias.name in theirs})
    return found


def lab(
    *,
    title: str,
    seconds: int,
    needs: str,
    options: Mapping[str, str],
    worker_file: str,
    shown: tuple[str, ...],
    result: type[R],
) -> Callable[[Callable[P, R]], Lab[P, R]]:
    """Make a :class:`Lab` of the function that measures; its signature and docstring stay."""

    def wrap(function: Callable[P, R]) -> Lab[P, R]:
        made = Lab(
            name=function.__name__,
            title=title,
            seconds=seconds,
            needs=needs,
            options=options,
            worker_file=worker_file,
            shown=shown,
            result=result,
            function=function,
        )
        # help(), tab completion and the command line read these; a frozen dataclass lets only its __dict__ take them.
        vars(made).update({"__wrapped__": function, "__doc__": function.__doc__})
        return made

    return wrap
