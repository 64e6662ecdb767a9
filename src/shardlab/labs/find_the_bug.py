"""The bug lab: distributed programs with one silent fault each, tried on real ranks against one process.

>>> from shardlab import labs
>>> labs.find_the_bug.story("missing_all_reduce")
>>> labs.find_the_bug.source("missing_all_reduce")
>>> labs.find_the_bug.check("missing_all_reduce", "my_fix.py")
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import os
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, ParamSpec

from shardlab.checks import count, positive
from shardlab.labs import machine
from shardlab.labs.bugs import BUGS, NAMES, Bug, bug_named
from shardlab.labs.lab import RUN_OPTIONS, Lab, Source, lab
from shardlab.labs.rank import launched_elsewhere
from shardlab.labs.result import LabRun, only, ranks_words
from shardlab.labs.run import LabError, Outcome, run
from shardlab.labs.table import Table

WORKER = "shardlab.labs.bugs.worker:worker"
AS_FOUND, REFERENCE, YOURS = "as found", "reference fix", "yours"
HINTS = 3
MOST_RANKS = 16

# A program takes well under a second; what remains is the ranks' start on a busy machine.
PROGRAM_LIMIT_S = 30.0
# For the program that hangs by design: a multiple of the start-up time just seen, and some.
HANG_FACTOR, HANG_MARGIN_S = 3.0, 4.0


@dataclass(frozen=True)
class Sight:
    """One thing that can be seen of a program from outside.

    Attributes:
        words: what it is.
        value: the worst over ranks and seeds; right if at most ``allowed``. NaN is wrong.
        allowed: see ``value``.
    """

    words: str
    value: float
    allowed: float

    @property
    def right(self) -> bool:
        """Whether it is as on one process."""
        return self.value <= self.allowed

    def __str__(self) -> str:
        return f"{self.words}: {_number(self.value)} (allowed {_number(self.allowed)})"


@dataclass(frozen=True)
class ProgramRow:
    """One program in its trial.

    Attributes:
        bug: its name.
        version: ``"as found"``, ``"reference fix"`` or ``"yours"``.
        ranks: on how many ranks.
        sights: what was seen; empty if it did not finish.
        stopped: why it did not finish, or could not start; None if it did.
    """

    bug: str
    version: str
    ranks: int
    sights: tuple[Sight, ...] = ()
    stopped: str | None = None

    @property
    def right(self) -> bool:
        """Whether it finished and everything is as on one process."""
        return self.stopped is None and bool(self.sights) and all(sight.right for sight in self.sights)

    @property
    def symptoms(self) -> tuple[Sight, ...]:
        """What is not as on one process."""
        return tuple([sight for sight in self.sights if not sight.right])


@dataclass(frozen=True, kw_only=True)
class FindTheBugRun(LabRun):
    """Programs, tried.

    Attributes:
        programs: one row for each program, version and number of ranks.
    """

    lab: ClassVar[str] = "find_the_bug"

    programs: tuple[ProgramRow, ...]

    # ---- reading it ----

    def program_row(self, bug: str, version: str = AS_FOUND) -> ProgramRow:
        """The first row of :attr:`programs` with this bug and version."""
        return only(self.programs, "programs", bug=bug, version=version)

    @property
    def passed(self) -> bool:
        """Whether every program that should be right is."""
        return all(row.right for row in self.programs if row.version != AS_FOUND)

    def failed_checks(self) -> list[str]:
        """Sentences about programs that are not what they should be: a fix that is wrong, a fault that goes unseen."""
        failed = []
        for row in self.programs:
            if row.version == AS_FOUND and row.right:
                failed.append(f"{row.bug}: the trial does not see the fault on {ranks_words(row.ranks)}")
            elif row.version != AS_FOUND and not row.right:
                failed.append(f"{row.bug}, {row.version}, {ranks_words(row.ranks)}: {_what_is_wrong(row)}")
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"programs"``, and ``"yours"`` where a reader's file was tried."""
        tables: dict[str, Callable[[], Table]] = {}
        if any(row.version == AS_FOUND for row in self.programs):
            tables["programs"] = self._programs_table
        if any(row.version == YOURS for row in self.programs):
            tables["yours"] = self._yours_table
        return tables

    def _programs_table(self) -> Table:
        rows = []
        for row in [row for row in self.programs if row.version == AS_FOUND]:
            fix = self.program_row(row.bug, REFERENCE)
            symptom, bad, good = _side_by_side(row, fix)
            verdicts = ("yes" if not row.right else "NO", "yes" if fix.right else "NO")
            rows.append((row.bug, symptom, bad, good, *verdicts))
        return Table(
            caption=f"Programs with one fault each, on {ranks_words(self.programs[0].ranks)} against one process",
            columns=("Program", "Symptom", "As found", "Fixed", "Detected", "Fix passes"),
            rows=tuple(rows),
            notes=(
                "Each value is the worst over all ranks and several seeds and sizes. 0 is no difference.",
            ),
            label_columns=2,
        )

    def _yours_table(self) -> Table:
        rows = []
        for row in [row for row in self.programs if row.version == YOURS]:
            if row.stopped is not None:
                rows.append((str(row.ranks), "did not finish", "-", "-", "no"))
            rows += [
                (
                    str(row.ranks),
                    sight.words,
                    _number(sight.value),
                    _number(sight.allowed),
                    "yes" if sight.right else "no",
                )
                for sight in row.sights
            ]
        return Table(
            caption=f"Your {self.settings['bug']} against one process, seeds and sizes drawn anew",
            columns=("Ranks", "What is seen", "Yours", "Allowed", "Right"),
            rows=tuple(rows),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the programs show, in words; the solutions stay where they are."""
        words = [_verdict(self.settings["bug"], self._of(YOURS))] if self._of(YOURS) else []
        if self.settings.get("bug") is not None:
            bug = bug_named(self.settings["bug"])
            words += [
                f"Seen: {bug.story}",
                *[f"Hint {n + 1}: {bug.hints[n]}" for n in range(self.settings.get("hints", 0))],
            ]
            if not self._of(YOURS):
                words.append(
                    f"Mend {bug.function} in a copy of {_near(bug.program)}, and try it with: "
                    f"shardlab lab find_the_bug --bug {bug.name} --fix FILE"
                )
        waiting = [row for row in self._of(AS_FOUND) if row.stopped is not None]
        words += [f"{row.bug}, as found, does not finish: {row.stopped}" for row in waiting]
        if len(self._of(AS_FOUND)) > 1:
            loud = len(waiting)
            silent = len(self._of(AS_FOUND)) - loud
            words.append(
                f"{silent} of {silent + loud} programs finish without an error, with losses that look like losses. What "
                "finds them is the comparison with one process that has all the data, on more than one number of "
                "ranks: the loss curve alone finds none."
            )
        return words

    def _of(self, version: str) -> list[ProgramRow]:
        return [row for row in self.programs if row.version == version]


def _number(value: float) -> str:
    whole = math.isfinite(value) and value == round(value) and abs(value) < 1e6
    return f"{value:.0f}" if whole else f"{value:.2g}"


def _side_by_side(row: ProgramRow, fix: ProgramRow) -> tuple[str, str, str]:
    """The first symptom, its value as found and fixed."""
    if row.stopped is not None:
        return "ranks wait for each other", "never ends", "ends" if fix.stopped is None else "never ends"
    seen = (row.symptoms or row.sights)[0]
    return seen.words, _number(seen.value), _number(only(fix.sights, "sights", words=seen.words).value)


def _what_is_wrong(row: ProgramRow) -> str:
    return row.stopped or "; ".join([str(sight) for sight in row.symptoms]) or "nothing was seen"


def _near(path: Path) -> str:
    """A path as its reader would type it: from the current folder, unless that is far away."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.path.join("..", "..")) else relative


def _verdict(name: str, rows: list[ProgramRow]) -> str:
    wrong = [row for row in rows if not row.right]
    tried = " and ".join([str(row.ranks) for row in rows])
    if not wrong:
        return f"{name}: right. On {tried} ranks your function does what one process does."
    first = wrong[0]
    return f"{name}: not right yet. On {ranks_words(first.ranks)}: {_what_is_wrong(first)}"


# ---- the lab, with what a reader asks it ----

P = ParamSpec("P")


class BugLab(Lab[P, FindTheBugRun]):
    """The bug lab: called, it tries all programs; by name, it tells, shows, hints and checks."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> FindTheBugRun:
        if kwargs.get("fix") is not None:
            # Without torch, the recorded run would tell nothing of this file.
            return self.function(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    @property
    def names(self) -> tuple[str, ...]:
        """The programs' names."""
        return NAMES

    def story(self, bug: str) -> str:
        """What was seen."""
        return bug_named(bug).story

    def hint(self, bug: str, number: int) -> str:
        """One of three hints, each of which says more than the one before."""
        return bug_named(bug).hints[count("number", number, most=HINTS) - 1]

    def source(self, *names: str) -> Source:
        """The programs with these names, as found; without a name, the code that tries them."""
        if not set(names) & set(NAMES):
            return super().source(*names)
        return Source("\n\n".join([bug_named(name).program.read_text(encoding="utf-8") for name in names]))

    def check(
        self,
        bug: str,
        fix: str | Path | Callable[..., Any],
        *,
        ranks: int = 4,
        limit_s: float = 90.0,
        show: bool = True,
    ) -> FindTheBugRun:
        """Try your version: ``result.passed`` tells whether it is right, and the result shows what is not.

        Args:
            bug: the program's name.
            fix: a file that defines the function, or the function itself (then the program's imports are at hand).
            ranks: the largest number of ranks; 2 and 3 are tried as well.
            limit_s: time limit, seconds.
            show: show progress.

        Raises:
            ValueError: an argument is out of range, or the file can't be read.
            LabError: torch is missing.
        """
        with _as_file(bug_named(bug), fix) as file:
            measure: Callable[..., FindTheBugRun] = self.function
            return measure(ranks, bug=bug, fix=str(file), limit_s=limit_s, show=show)


def _with_helpers(plain: Lab[P, FindTheBugRun]) -> BugLab[P]:
    made: BugLab[P] = BugLab(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    vars(made).update({"__wrapped__": plain.function, "__doc__": plain.__doc__})
    return made


@_with_helpers
@lab(
    title="Find the bug: distributed programs with one silent fault each, to be mended and checked",
    seconds=30,
    needs="torch",
    options={
        "ranks": "Number of ranks; a fix is also tried on 2 and 3.",
        "bug": f"Only this program: {', '.join(NAMES)}.",
        "fix": "Your file for it, to be checked.",
        "hints": "How many hints to show for it, 0 to 3.",
        **RUN_OPTIONS,
    },
    worker_file="bugs/worker.py",
    shown=("run_trials",),
    result=FindTheBugRun,
)
def find_the_bug(
    ranks: int = 4,
    *,
    bug: str | None = None,
    fix: str | None = None,
    hints: int = 0,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> FindTheBugRun:
    """Try programs with one fault each, beside a fixed version or your own, on real ranks against one process.

    Args:
        ranks: number of ranks, 2 to 16.
        bug: a program's name; None for all.
        fix: a file with your version of its function: only that is tried then, on 2, 3 and ``ranks`` ranks.
        hints: how many of the bug's three hints to show.
        limit_s: time limit of the whole lab, seconds. A program that hangs is stopped after 30 s at most.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range, ``fix`` or ``hints`` come without ``bug``, or the file can't be read.
        LabError: torch is missing, or one of the book's own programs failed.

    A file of yours that hangs, dies or is not Python is no error of the lab: the result says so. It runs with your
    rights, as any program that you start. With a GPU for each rank the lab uses NCCL; that path was not run for this
    book. Under torchrun the numbers of ranks are the launcher's, and the program that hangs is left out.
    """
    n_ranks = count("ranks", ranks, least=2, most=MOST_RANKS)
    chosen = BUGS if bug is None else (bug_named(bug),)
    n_hints = count("hints", hints, least=0, most=HINTS)
    if bug is None and (fix is not None or n_hints):
        raise ValueError(f"bug must be given with fix or hints, one of {', '.join(NAMES)}, not None")
    tries = _Tries(positive("limit_s", limit_s, "seconds"), start, show)
    if fix is None:
        programs = tries.reference(chosen, n_ranks)
    else:
        programs = tries.yours(chosen[0], _readable(fix), n_ranks)
    settings = {"ranks": n_ranks, "bug": bug, "fix": fix, "hints": n_hints}
    return FindTheBugRun(
        settings=settings,
        stamp=machine.stamp(),
        elapsed_s=time.monotonic() - tries.began,
        programs=tuple(programs),
        **tries.facts,
    )


class _Tries:
    """Runs of programs within one time limit."""

    def __init__(self, limit_s: float, start: str, show: bool) -> None:
        self.began, self.limit_s, self.start, self.show = time.monotonic(), limit_s, start, show
        # Of the last run that finished; a file that never ran has measured nothing.
        self.facts: dict[str, Any] = {"backend": "gloo", "reading": None, "threads": 1}

    def reference(self, bugs: tuple[Bug, ...], ranks: int) -> list[ProgramRow]:
        """Each program as found, and fixed. Those that hang run last, each by itself."""
        jobs = [_job(bug, AS_FOUND, bug.program) for bug in bugs if not bug.hangs]
        jobs += [_job(bug, REFERENCE, bug.reference_fix) for bug in bugs]
        began = time.monotonic()
        outcome = self._run(jobs, ranks, self.limit_s)
        rows = _rows(outcome, ranks)
        start_s = time.monotonic() - began - outcome.results[0]["worker_s"]
        if outcome.start != "launched":
            patience = math.ceil(HANG_MARGIN_S + HANG_FACTOR * start_s)
            rows += [self._hanging(bug, ranks, patience) for bug in bugs if bug.hangs]
        order = [bug.name for bug in bugs]
        return sorted(rows, key=lambda row: (order.index(row.bug), row.version))

    def _hanging(self, bug: Bug, ranks: int, patience_s: float) -> ProgramRow:
        [row] = self._try([_job(bug, AS_FOUND, bug.program)], ranks, patience_s)
        return row

    def yours(self, bug: Bug, file: Path, ranks: int) -> list[ProgramRow]:
        """The reader's file, on several numbers of ranks, up to the first on which it does not finish."""
        trouble = _trouble(file, bug)
        if trouble is not None:
            return [ProgramRow(bug.name, YOURS, ranks, stopped=trouble)]
        rows: list[ProgramRow] = []
        counts = {ranks} if launched_elsewhere() else {n for n in (2, 3, ranks) if n <= ranks}
        for n in sorted(counts):
            rows += self._try([_job(bug, YOURS, file)], n, PROGRAM_LIMIT_S)
            if rows[-1].stopped is not None:
                break
        return rows

    def _try(self, jobs: list[dict[str, str]], ranks: int, limit_s: float) -> list[ProgramRow]:
        """One program; that it does not finish is a result."""
        [job] = jobs
        try:
            return _rows(self._run(jobs, ranks, limit_s), ranks)
        except LabError as error:
            if error.cause not in ("limit", "error", "died"):
                raise
            return [ProgramRow(job["bug"], job["version"], ranks, stopped=_last_words(error))]

    def _run(self, jobs: list[dict[str, str]], ranks: int, limit_s: float) -> Outcome:
        left = self.limit_s - (time.monotonic() - self.began)
        outcome = run(
            WORKER,
            ranks,
            {"jobs": jobs},
            # A limit that has passed still gets the runner's own sentence.
            limit_s=max(round(min(left, limit_s), 1), 0.1),
            start=self.start,
            show=self.show,
        )
        self.facts = {name: outcome.results[0][name] for name in self.facts}
        return outcome


def _last_words(error: LabError) -> str:
    """What the runner says, without its last line, on what was kept."""
    said = str(error).rpartition("\n")[0]
    if error.cause != "died":
        return said
    # Its log ends in the runner's own frames.
    words = said.splitlines()[0]
    if "SIGABRT" in words:
        words += " gloo aborts when ranks meet in one collective with tensors of different sizes."
    return words


def _job(bug: Bug, version: str, file: Path) -> dict[str, str]:
    return {"bug": bug.name, "version": version, "file": str(file)}


def _rows(outcome: Outcome, ranks: int) -> list[ProgramRow]:
    return [
        ProgramRow(row["bug"], row["version"], ranks, tuple([Sight(**sight) for sight in row["sights"]]))
        for row in outcome.results[0]["programs"]
    ]


# ---- the reader's file ----


def _readable(fix: str) -> Path:
    file = Path(fix).expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"fix must be a Python file with your version, not {fix!r}: there is no such file")
    return file


def _trouble(file: Path, bug: Bug) -> str | None:
    """Why no rank needs to start: the file is not Python, or the function is not in it."""
    try:
        tree = ast.parse(file.read_bytes(), filename=file.name)
    except SyntaxError as error:
        return f"{file.name} is not valid Python: {error.msg} (line {error.lineno})."
    except ValueError as error:
        return f"{file.name} is not valid Python: {error}."
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if bug.function not in defined:
        return (
            f"{file.name} must define the function {bug.function}; it defines {', '.join(defined) or 'none'}."
        )
    return None


@contextlib.contextmanager
def _as_file(bug: Bug, fix: str | Path | Callable[..., Any]) -> Iterator[Path]:
    """A file as it is; a function's source, below the program's imports, in a temporary one."""
    if not callable(fix):
        yield Path(fix)
        return
    try:
        text = textwrap.dedent(inspect.getsource(fix))
    except (OSError, TypeError):
        raise ValueError(f"fix must be a file, or a function whose source can be read, not {fix!r}") from None
    program = bug.program.read_text(encoding="utf-8")
    imports = [
        ast.get_source_segment(program, node)
        for node in ast.parse(program).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    with tempfile.TemporaryDirectory(prefix="shardlab-fix-") as folder:
        file = Path(folder) / f"your_{bug.name}.py"
        file.write_text("\n".join([*[line or "" for line in imports], "", "", text]), encoding="utf-8")
        yield file
