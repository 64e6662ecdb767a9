"""Run a worker on N processes, from a notebook or a script, and leave nothing behind.

::

    outcome = run("my_lab:worker", ranks=4)
    outcome.results[0]  # what rank 0's worker returned

The worker is a function in a file (see :mod:`shardlab.labs.rank`), never one typed into a cell: its process can't see
the notebook. The caller's own process starts no rank and joins no process group; results come back as JSON.
Whatever happens (an error, the limit, Ctrl-C, a killed kernel), every process of the run ends.

The same worker runs under ``torchrun``::

    torchrun --nproc-per-node 4 -m shardlab.labs my_lab:worker
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.checks import choice, count, positive
from shardlab.labs import machine, processes, progress
from shardlab.labs.rank import LAUNCHER_VARIABLES, Job, launched_elsewhere, run_launched

START_METHODS = ("auto", "fork", "spawn")
MOST_RANKS = 64

# The launcher enforces the limit and tells where each rank was; past this it must be stuck itself.
_GRACE_S = 10.0
_FAREWELL_S = 10.0
_TRACEBACK_LINES = 15


class LabError(Exception):
    """A lab that didn't finish. Its text says what happened, in which rank, and what was kept.

    Attributes:
        cause: ``"error"`` (a rank raised), ``"died"`` (a rank ended without a word), ``"limit"``,
            ``"start"`` (the ranks never started), ``"measurement"`` (what was measured can't be used)
            or ``"missing"`` (a package, a program or a right that the lab needs).
        rank: the rank that failed first, or None.
        partial: what the ranks had handed over with ``ctx.keep``, by name.
    """

    def __init__(
        self, text: str, *, cause: str, rank: int | None = None, partial: dict[str, Any] | None = None
    ):
        super().__init__(text)
        self.cause, self.rank, self.partial = cause, rank, partial or {}

    def _render_traceback_(self) -> list[str]:
        # In a notebook the runner's own frames would bury the sentence that matters.
        return [f"LabError: {self}"]


class LabInterrupted(KeyboardInterrupt):
    """Ctrl-C, or "interrupt the kernel", during a lab; ``partial`` as in :class:`LabError`."""

    def __init__(self, partial: dict[str, Any]) -> None:
        super().__init__("the lab was interrupted; nothing is left running")
        self.partial = partial


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        results: what the worker returned on each rank.
        elapsed_s: seconds from the call to the last result, start-up included.
        start: how the ranks were started: ``"fork"``, ``"spawn"``, or ``"launched"`` (by torchrun or a cluster).
    """

    results: list[Any]
    elapsed_s: float
    start: str


def run(
    worker: str | Callable[..., Any],
    ranks: int,
    params: dict[str, Any] | None = None,
    *,
    limit_s: float = 60.0,
    start: str = "auto",
    threads: int | None = None,
    show: bool = True,
    preload: Sequence[str] = (),
) -> Outcome:
    """Run ``worker`` on ``ranks`` processes of this machine and return what each of them returned.

    Args:
        worker: ``"module:function"``, or an importable function of one argument (``ctx``).
        ranks: number of ranks, 1 to 64; of ranks that were launched, as many as there are.
        params: settings for the worker, made of what JSON can hold: ``ctx.params``.
        limit_s: time limit of the whole run, seconds; at the limit every rank is killed.
        start: ``"fork"`` (Linux: fast, one import of torch for all ranks), ``"spawn"`` (everywhere), or ``"auto"``.
        threads: threads that one rank computes with; by default its share of the cores, at least 1.
        show: show progress and what the ranks print.
        preload: modules that the worker will import: where ranks start by fork, they are imported once for all.

    Raises:
        ValueError: an argument is out of range, or the worker is not importable by another process.
        LabError: torch is missing, a rank failed, or the limit was reached.
        LabInterrupted: Ctrl-C.

    In a process that ``torchrun`` or a cluster's launcher started as one rank, the worker runs right here as that
    rank, and every rank gets all results.
    """
    name = _worker_name(worker)
    n_ranks = count("ranks", ranks, least=1, most=None if launched_elsewhere() else MOST_RANKS)
    limit = positive("limit_s", limit_s, "seconds")
    method = choice("start", start, START_METHODS)
    if method == "fork" and not hasattr(os, "fork"):
        raise ValueError("start must be 'auto' or 'spawn' on this system, not 'fork'")
    n_threads = None if threads is None else count("threads", threads)
    settings = json.loads(json.dumps(params or {}))
    if not machine.torch_installed():
        raise LabError(
            "torch is not installed, so no process was started. Install it with `make torch` in the book's folder, "
            "or with `pip install torch`.",
            cause="missing",
        )
    began = time.monotonic()
    if launched_elsewhere():
        world = int(os.environ["WORLD_SIZE"])
        if n_ranks != world:
            raise ValueError(f"ranks must be {world}, the number of ranks that were launched, not {n_ranks}")
        results = run_launched(name, settings, limit, n_threads)
        return Outcome(results, time.monotonic() - began, "launched")
    directory = tempfile.mkdtemp(prefix="shardlab-")
    try:
        job = Job(
            worker=name,
            ranks=n_ranks,
            params=settings,
            limit_s=limit,
            start=method,
            threads=n_threads or max(1, machine.usable_cores() // n_ranks),
            run_id=uuid.uuid4().hex,
            directory=directory,
            preload=tuple(preload),
        )
        (Path(directory) / "job.json").write_text(json.dumps(dataclasses.asdict(job)))
        with _launcher(job) as process:
            final = _follow(process, job, began, show)
        return Outcome(final["results"], time.monotonic() - began, final["start"])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def require(package: str, extra: str, module: str | None = None) -> None:
    """Stop before any process starts if a lab's extra isn't installed.

    Args:
        package: its name for the reader.
        extra: the install extra that brings it: ``pip install 'shardlab[extra]'``.
        module: the module to look for; by default ``package``.

    Raises:
        LabError: with cause ``"missing"``; a lab then shows its recorded run.
    """
    if not machine.installed(module or package):
        raise LabError(
            f"{package} is not installed, so no process was started. Install it with `pip install 'shardlab[{extra}]'`; "
            "in the book's folder, `make extras` does that in .venv-extras, and .venv-extras/bin/shardlab runs the lab.",
            cause="missing",
        )


def _worker_name(worker: str | Callable[..., Any]) -> str:
    allowed = 'an importable function, as "module:function" or itself; put it in a .py file and import it'
    if isinstance(worker, str):
        name, importable = worker, True
    else:
        name = f"{getattr(worker, '__module__', '')}:{getattr(worker, '__qualname__', '')}"
        importable = callable(worker) and not name.startswith("__main__:")
    module, _, function = name.partition(":")
    if not importable or not all(part.isidentifier() for part in [*module.split("."), function]):
        raise ValueError(f"worker must be {allowed}, not {worker!r}")
    return name


@contextlib.contextmanager
def _launcher(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher process; on leaving, for whatever reason, it and all its descendants are killed."""
    command = [sys.executable, "-P", "-m", "shardlab.labs", "--job", job.directory]
    own_group: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        own_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    with (Path(job.directory) / "launcher.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(job),
            **own_group,
        )
    try:
        yield process
    finally:
        _end(process, job)


def _end(process: subprocess.Popen[bytes], job: Job) -> None:
    """Let the launcher end its ranks; kill whatever is still there after a moment."""
    assert process.stdin is not None
    assert process.stdout is not None
    # Its lifeline: the launcher ends its ranks, takes their exit status and goes.
    process.stdin.close()
    if sys.platform != "win32":
        # Not process.terminate(): that would take the exit status of a launcher that has gone already, and then its
        # number, and its group's, could belong to someone else by the time we kill the group.
        os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline and not _has_ended(process.pid):
            time.sleep(0.01)
    processes.kill_group(process.pid)
    processes.kill_marked(job.run_id)
    process.wait()
    process.stdout.close()


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, leaving its exit status to be taken."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _environment(job: Job) -> dict[str, str]:
    # A launcher's leftovers would make libraries believe that they are some other rank.
    ours = {key: value for key, value in os.environ.items() if key not in (*LAUNCHER_VARIABLES, "LOCAL_RANK")}
    ours.update(
        {
            processes.MARK: job.run_id,
            "PYTHONPATH": os.pathsep.join([os.path.abspath(entry) for entry in sys.path]),
            # A crash in C leaves its Python lines in the rank's log.
            "PYTHONFAULTHANDLER": "1",
            # Four ranks with a full thread pool each would fight for the cores.
            "OMP_NUM_THREADS": str(job.threads),
            "MKL_NUM_THREADS": str(job.threads),
            # torch's record of recent collectives: it says which one a hung rank waits in.
            "TORCH_FR_BUFFER_SIZE": "256",
            # Some imports make the compiler's cache folder, which would be left in the temporary folder.
            "TORCHINDUCTOR_CACHE_DIR": str(Path(job.directory) / "inductor"),
            # torch for Windows is built without libuv.
            **({"USE_LIBUV": "0"} if sys.platform == "win32" else {}),
        }
    )
    interface = machine.loopback_interface()
    if interface is not None:
        # Without it gloo looks up the machine's own name, which need not resolve and need not be this machine.
        ours["GLOO_SOCKET_IFNAME"] = interface
    return ours


def _follow(process: subprocess.Popen[bytes], job: Job, began: float, show: bool) -> dict[str, Any]:
    """Read the launcher's messages to the last one and return it; raise what it means if it means failure."""
    partial: dict[str, Any] = {}
    inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_read, args=(process, inbox), daemon=True).start()
    with progress.display(f"{job.ranks} ranks" if job.ranks > 1 else "1 rank", show) as view:
        try:
            while True:
                patience = began + job.limit_s + _GRACE_S - time.monotonic()
                try:
                    message = inbox.get(timeout=max(patience, 0.0))
                except queue.Empty:
                    raise _failure({"cause": "stuck"}, job, partial) from None
                if message is None:
                    raise _failure({"cause": "launcher"}, job, partial)
                if message["kind"] == "done":
                    return message
                if message["kind"] == "failed":
                    raise _failure(message, job, partial)
                if message["kind"] == "keep":
                    partial[message["name"]] = message["value"]
                elif message["kind"] == "progress":
                    view.update(message["text"], message["done"], message["total"])
                elif message["kind"] == "print":
                    view.write(f"[rank {message['rank']}] {message['text']}")
        except KeyboardInterrupt:
            raise LabInterrupted(partial) from None


def _read(process: subprocess.Popen[bytes], inbox: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    # The caller closes the pipe under us when it is done.
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout:
            inbox.put(json.loads(line))
    inbox.put(None)


def _failure(message: dict[str, Any], job: Job, partial: dict[str, Any]) -> LabError:
    cause, rank = message["cause"], message.get("rank")
    text = _last_lines(message.get("text", ""))
    limit = f"the limit of {job.limit_s:g} s"
    if cause == "error":
        what = f"rank {rank} of {job.ranks} raised an error; the lab was stopped.\n{text}"
    elif cause == "died":
        what = (
            f"rank {rank} of {job.ranks} {message['words']} before it returned a result; the lab was stopped."
        )
        what += f"\nThe end of its log:\n{text}" if text else ""
    elif cause == "limit":
        places = [f"  rank {number}: {place}" for number, place in enumerate(message["places"])]
        what = "\n".join([f"the lab reached {limit} and was stopped. Where the ranks were:", *places])
    elif cause == "start":
        what = f"the ranks could not be started.\n{text}"
    else:
        log = _last_lines((Path(job.directory) / "launcher.log").read_text(errors="replace"))
        ended = (
            f"did not start the ranks within {limit}"
            if cause == "stuck"
            else "ended before the ranks had finished"
        )
        what = f"the process that starts the ranks {ended}." + (
            f"\nThe end of its log:\n{log}" if log else ""
        )
        cause = "limit" if cause == "stuck" else "start"
    kept = f"Kept so far: {', '.join(partial)}." if partial else "No part of the result was ready."
    return LabError(f"{what}\n{kept} Nothing is left running.", cause=cause, rank=rank, partial=partial)


def _last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_TRACEBACK_LINES:])
