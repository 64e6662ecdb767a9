"""Run one submission's notebook for grading: in the sandbox, as its owner, and with no marks for silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from exercises_intake import other_files
from exercises_sandbox import (
    LeakedError,
    Limits,
    Sandbox,
    SandboxError,
    Session,
    TamperedError,
    default_pythons,
    find_python,
)
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Float, Integer, Unicode

_CLASSROOM = Path(__file__).resolve().parents[1] / "src" / "shardlab" / "classroom"
# Shorter lines, such as `carry = {}`, are anybody's.
_TELLING = 16

# With and without PyTorch, each made when it is first needed and kept warm.
_sandboxes: dict[bool, Sandbox] = {}
# nbgrader takes any exception for the submission's fault; this one is the teacher's to solve.
trouble: SandboxError | None = None


def close_sandboxes() -> None:
    """End this process's sandboxes."""
    for sandbox in _sandboxes.values():
        sandbox.close(gently=True)


class RestoreCells(NbGraderPreprocessor):
    """Before nbgrader reads a submission: cells that are missing come back, and cells that are made up lose their name.

    nbgrader breaks off when a cell with marks is gone, when a name is there twice (a copied cell), or when it knows
    none by that name.
    """

    def preprocess(self, nb: NotebookNode, resources: Any = None) -> tuple[NotebookNode, Any]:
        """The first cell of each name stays; what is missing is put behind the one before it in the release."""
        about = resources["nbgrader"]
        released = Path(self.config.CourseDirectory.root, "release", about["assignment"])
        cells = nbformat.read(released / f"{about['notebook']}.ipynb", as_version=4).cells
        names = [_settings(cell).get("grade_id") for cell in cells]
        seen: set[str] = set()
        for cell in nb.cells:
            name = _settings(cell).get("grade_id")
            if name not in names or name in seen:
                cell.metadata.pop("nbgrader", None)
            else:
                seen.add(name)
        for number, name in enumerate(names):
            if name is None or name in seen:
                continue
            before = set(filter(None, names[:number]))
            places = [
                place for place, cell in enumerate(nb.cells) if _settings(cell).get("grade_id") in before
            ]
            nb.cells.insert(places[-1] + 1 if places else 0, cells[number])
            seen.add(name)
        return nb, resources


class ExecuteSubmission(NbGraderPreprocessor):
    """Runs the cells in the sandbox, in place of nbgrader's ``Execute``.

    What a cell is (the student's own, given, or a check) and what a given cell or a check says is taken from the
    source notebook. What the submission says about itself, in its metadata, counts for nothing.
    """

    timeout = Integer(60, help="Seconds that one cell may take.").tag(config=True)
    submission_timeout = Integer(300, help="Seconds that a whole submission may take.").tag(config=True)
    memory_gib = Float(2.0, help="Memory of all processes of a submission, GiB.").tag(config=True)
    isolation = Bool(True, help="Whether submissions run in bubblewrap.").tag(config=True)
    kernel_python = Unicode(
        "", help="The Python that runs submissions; by default the book's, if it has PyTorch, else this one."
    ).tag(config=True)

    def sandbox(self, torch: bool) -> Sandbox:
        """This process's sandbox, with or without PyTorch."""
        if torch not in _sandboxes:
            candidates = [Path(self.kernel_python)] if self.kernel_python else default_pythons()
            limits = Limits(memory_bytes=int(self.memory_gib * 2**30), cpu_s=self.submission_timeout + 60)
            _sandboxes[torch] = Sandbox(find_python(candidates), limits, self.isolation, torch)
        return _sandboxes[torch]

    def preprocess(self, nb: NotebookNode, resources: Any = None) -> tuple[NotebookNode, Any]:
        """Run every cell, and put its outputs into the notebook."""
        global trouble
        about = resources["nbgrader"]
        root = Path(self.config.CourseDirectory.root)
        source = nbformat.read(
            root / "source" / about["assignment"] / f"{about['notebook']}.ipynb", as_version=4
        )
        files = other_files(root / "submitted" / about["student"] / about["assignment"])
        try:
            sandbox = self.sandbox(wants_torch(source, nb))
            if needs_torch(source) and not sandbox.python.has_torch:
                raise SandboxError(
                    f"{about['assignment']} runs ranks on PyTorch, which {sandbox.python.path} doesn't have. "
                    "Run: make torch, or name a Python that has it with --kernel-python"
                )
            with sandbox.session(about["student"], files, self.submission_timeout) as session:
                self._run_all(nb, source, session)
        except SandboxError as error:
            trouble = error
            raise
        _refuse_leaks(nb, source)
        return nb, resources

    def _run_all(self, nb: NotebookNode, source: NotebookNode, session: Session) -> None:
        known = {cell.metadata["nbgrader"]["grade_id"]: cell for cell in source.cells if _settings(cell)}
        seen: set[str] = set()
        for number, cell in enumerate([one for one in nb.cells if one.cell_type == "code"], start=1):
            name = _settings(cell).get("grade_id")
            original = known.get(name)
            if original is None:
                cell.metadata.pop("nbgrader", None)
            elif name in seen:
                raise TamperedError(f"two cells are named {name}")
            seen.add(str(name))
            cell.execution_count = number
            if original is not None and is_check(original):
                cell.outputs = self._check(session, original, number)
                continue
            given = original is not None and not _settings(original).get("solution", False)
            text = original.source if original is not None and given else cell.source
            found = session.run(text, "given" if given else "own", self.timeout)
            cell.outputs = [_output(one, number) for one in found]

    def _check(self, session: Session, cell: NotebookNode, number: int) -> list[NotebookNode]:
        settings = _settings(cell)
        result = session.check(settings["grade_id"], cell.source, self.timeout)
        outputs = [{"output_type": "stream", "name": "stdout", "text": result.text}] if result.text else []
        if result.error is not None:
            outputs.append(result.error)
        elif result.value is None:
            # nbgrader gives full marks to a check that says nothing.
            words = "the check gave no result"
            outputs.append(
                {
                    "output_type": "error",
                    "ename": "NoResult",
                    "evalue": words,
                    "traceback": [f"NoResult: {words}"],
                }
            )
        elif not 0 <= result.value <= float(settings["points"]):
            raise TamperedError(
                f"{settings['grade_id']}: a result of {result.value:g}, where {settings['points']} marks are the most"
            )
        else:
            text = repr(float(result.value))
            outputs.append({"output_type": "execute_result", "data": {"text/plain": text}, "metadata": {}})
        return [_output(one, number) for one in outputs]


def _settings(cell: NotebookNode) -> dict[str, Any]:
    return dict(cell.metadata.get("nbgrader", {}))


def is_check(cell: NotebookNode) -> bool:
    """Whether a cell of the source is a check: it has marks, and no student writes in it."""
    settings = _settings(cell)
    return cell.cell_type == "code" and settings.get("grade", False) and not settings.get("solution", False)


def _output(output: dict[str, Any], number: int) -> NotebookNode:
    extra = {"execution_count": number} if output["output_type"] == "execute_result" else {}
    return nbformat.from_dict({**output, **extra})


# ---- PyTorch, where it is needed ----


def needs_torch(source: NotebookNode) -> bool:
    """Whether an assignment's checks start real ranks.

    The notebook's metadata say so (``"shardlab": {"needs_torch": true}``), or a check, or a module of
    ``shardlab.classroom`` that a check names, imports torch or starts ranks.
    """
    declared = source.metadata.get("shardlab", {}).get("needs_torch")
    if declared is not None:
        return bool(declared)
    texts = [cell.source for cell in source.cells if is_check(cell)]
    named = {word for text in texts for word in re.findall(r"\w+_checks\b", text)}
    texts += [path.read_text() for name in sorted(named) if (path := _CLASSROOM / f"{name}.py").is_file()]
    return any(
        re.search(r"\brun_processes\(|\btry_on_ranks\b|\b(import|from) torch\b|\blabs\.run\b", text)
        for text in texts
    )


def wants_torch(source: NotebookNode, submission: NotebookNode) -> bool:
    """Whether a submission gets to see PyTorch: the checks need it, or the student's own code asks for it.

    Otherwise a given cell that shows something on real ranks takes the simulated network: it has no marks, and
    starting four ranks takes longer than all checks together.
    """
    asked = any(re.search(r"\btorch\b", cell.source) for cell in submission.cells if cell.cell_type == "code")
    return asked or needs_torch(source)


# ---- hidden checks stay hidden ----


def hidden_lines(source: NotebookNode) -> set[str]:
    """Lines that stand in hidden checks and nowhere that a student can read."""
    hidden, public, inside = set(), set(), False
    for cell in source.cells:
        for line in map(str.strip, cell.source.splitlines()):
            if re.match(r"### (BEGIN|END) HIDDEN TESTS", line):
                inside = line.startswith("### BEGIN")
            elif len(line) >= _TELLING:
                (hidden if inside else public).add(line)
    return hidden - public


def _refuse_leaks(nb: NotebookNode, source: NotebookNode) -> None:
    own = {line.strip() for cell in nb.cells for line in cell.source.splitlines() if not _is_given(cell)}
    # A printed representation has its quotation marks and line ends escaped.
    secret = [line.replace("\\", "") for line in hidden_lines(source) - own]
    for cell in nb.cells:
        texts = []
        for output in cell.get("outputs", []):
            texts += [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
            texts.append(output.get("data", {}).get("text/plain", ""))
        text = "\n".join(texts).replace("\\", "")
        if any(line in text for line in secret):
            raise LeakedError("an output holds lines of the hidden checks")


def _is_given(cell: NotebookNode) -> bool:
    settings = _settings(cell)
    return bool(settings) and not settings.get("solution", False)
