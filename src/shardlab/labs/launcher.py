"""The process between the caller and the ranks: it starts them, listens, and never leaves one behind.

It leads a session of its own, so a Ctrl-C in the caller's terminal doesn't reach it and one signal ends it with all
its ranks. It ends when the caller does. It enforces the limit, because at the limit it can still ask each
rank where it is.

Ranks start by fork from here where that is safe (Linux, no GPU): torch is imported once, and 4 ranks are there
in a tenth of a second instead of several. Elsewhere each rank is a fresh Python (spawn).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from shardlab.labs import processes, rank
from shardlab.labs.rank import Channel, Job, load_worker

_TICK_S = 0.1
_ANSWER_S = 4.0
_ABANDON_S = 60.0
_SETTLE_S = 0.5
_LOG_LINES = 12


def main(job: Job) -> int:
    """Run ``job`` and report to the caller: JSON lines on what was the standard output. Returns the exit status."""
    deadline = time.monotonic() + job.limit_s
    caller_end, lifeline = os.dup(1), os.dup(0)
    caller = Channel(caller_end)
    # What libraries print goes to the launcher's log, never between our messages.
    os.dup2(2, 1)
    ranks: list[_Rank] = []
    abandon = functools.partial(_abandon, job, ranks)
    signal.signal(signal.SIGTERM, lambda *_: abandon())
    processes.die_with_parent(at_once=False)
    if _has_hung_up(lifeline):
        # The caller went before Linux could be asked for a signal.
        abandon()
    try:
        try:
            how = _start(job, ranks, [caller_end, lifeline])
        except Exception as error:
            caller.send("failed", cause="start", text="".join(traceback.format_exception(error)).rstrip())
            return 1
        # A thread only after the forks: a forked process has none but the thread that forked.
        threading.Thread(target=_watch_caller, args=(lifeline, abandon), daemon=True).start()
        return _Supervisor(ranks, caller, how, deadline).run(job)
    except BrokenPipeError:
        # The caller went before anything could watch it.
        abandon()
    finally:
        for process in ranks:
            process.kill()


def _start(job: Job, ranks: list[_Rank], ours: list[int]) -> str:
    """Start the ranks into ``ranks``, one by one: if a start fails, those before it can still be killed."""
    how = _start_method(job)
    for number in range(job.ranks):
        started = _fork(job, number, ours) if how == "fork" else _spawn(job, number)
        ranks.append(started)
    return how


def _start_method(job: Job) -> str:
    """``"fork"`` or ``"spawn"``; for fork, torch and the worker's module are imported here, once for all ranks."""
    if job.start == "spawn" or (job.start == "auto" and sys.platform != "linux"):
        return "spawn"
    # Counting GPUs through NVML leaves CUDA untouched; a process that has touched it must not fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    if torch.cuda.device_count() > 0 and job.start == "auto":
        return "spawn"
    load_worker(job.worker)
    for module in job.preload:
        importlib.import_module(module)
    # Shared pages stay shared when nothing collects them.
    gc.collect()
    gc.freeze()
    return "fork"


@dataclass
class _Rank:
    """A started rank, as the launcher sees it.

    ``reported`` holds its latest message of each kind; ``"end"`` once nothing more can come.
    """

    number: int
    pid: int
    messages: int
    lifeline: int
    popen: subprocess.Popen[bytes] | None = None
    status: int | None = None
    ended_at: float = 0.0
    reported: dict[str, dict[str, Any]] = field(default_factory=dict)

    def poll(self) -> int | None:
        """The exit status once the rank has ended, negative for a signal."""
        if self.status is None:
            if self.popen is not None:
                self.status = self.popen.poll()
            else:
                pid, code = os.waitpid(self.pid, os.WNOHANG)
                self.status = os.waitstatus_to_exitcode(code) if pid else None
            self.ended_at = time.monotonic()
        return self.status

    @property
    def died(self) -> bool:
        """Ended without a result, with nothing of it left in the pipe."""
        if self.poll() is None or "result" in self.reported:
            return False
        # A process that the rank has started may hold the pipe open after it.
        return "end" in self.reported or time.monotonic() > self.ended_at + _SETTLE_S

    def ask(self) -> None:
        """Ask where it is."""
        with contextlib.suppress(OSError):
            os.write(self.lifeline, b"?")

    def kill(self) -> None:
        """Kill it if it still runs, and take its exit status: nobody else would, and it would stay as a zombie.

        Safe in a signal handler and in two threads at once: it waits for no lock (``Popen.wait`` would, and the
        interrupted code may hold it).
        """
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self.poll() is not None:
                return
            if sys.platform == "win32" and self.popen is not None:
                self.popen.kill()
                return
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _fork(job: Job, number: int, ours: list[int]) -> _Rank:
    """Start a rank by fork; ``ours`` are the launcher's descriptors, which the rank must not keep."""
    messages, messages_in = os.pipe()
    lifeline_out, lifeline = os.pipe()
    ours.extend([messages, lifeline])
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(messages_in)
        os.close(lifeline_out)
        return _Rank(number, pid, messages, lifeline)
    status = 1
    try:
        processes.die_with_parent(at_once=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A sister's lifeline held open here would keep her alive after the launcher.
        for descriptor in ours:
            os.close(descriptor)
        _redirect(job.log(number))
        status = rank.main(job, number, messages_in, lifeline_out)
    finally:
        # Not sys.exit: the launcher's own clean-up must not run here.
        os._exit(status)


def _redirect(log: Path) -> None:
    """Nothing on the standard input, the log as standard output and error."""
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, log, os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)


def _spawn(job: Job, number: int) -> _Rank:
    command = [sys.executable, "-P", "-m", "shardlab.labs", "--job", job.directory, "--rank", str(number)]
    with job.log(number).open("ab") as log:
        popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert popen.stdin is not None
    assert popen.stdout is not None
    return _Rank(number, popen.pid, popen.stdout.fileno(), popen.stdin.fileno(), popen)


def main_of_spawned_rank(job: Job, number: int) -> NoReturn:
    """The other end of :func:`_spawn`."""
    processes.die_with_parent(at_once=True)
    messages, lifeline = os.dup(1), os.dup(0)
    _redirect(job.log(number))
    os._exit(rank.main(job, number, messages, lifeline))


class _Supervisor:
    """Collects what the ranks say until all have finished, one has failed, or the limit strikes."""

    def __init__(self, ranks: list[_Rank], caller: Channel, how: str, deadline: float) -> None:
        self._ranks, self._caller, self._how, self._deadline = ranks, caller, how, deadline
        self._inbox: queue.Queue[tuple[_Rank, dict[str, Any]]] = queue.Queue()

    def run(self, job: Job) -> int:
        for process in self._ranks:
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        while not all("result" in process.reported for process in self._ranks):
            self._take(_TICK_S)
            if any("error" in process.reported or process.died for process in self._ranks):
                self._blame(job)
                return 1
            if time.monotonic() > self._deadline:
                self._strike()
                return 1
        results = [process.reported["result"]["value"] for process in self._ranks]
        self._caller.send("done", results=results, start=self._how)
        return 0

    def _listen(self, process: _Rank) -> None:
        with os.fdopen(os.dup(process.messages), "rb") as lines:
            for line in lines:
                # A rank killed in the middle of a line leaves half of one.
                with contextlib.suppress(ValueError):
                    self._inbox.put((process, json.loads(line)))
        self._inbox.put((process, {"kind": "end"}))

    def _take(self, patience_s: float) -> None:
        """Wait for a message, then take all that are there."""
        with contextlib.suppress(queue.Empty):
            process, message = self._inbox.get(timeout=patience_s)
            while True:
                kind = message.pop("kind")
                if kind in ("progress", "keep", "print"):
                    self._caller.send(kind, rank=process.number, **message)
                else:
                    process.reported.setdefault(kind, message)
                process, message = self._inbox.get_nowait()

    def _blame(self, job: Job) -> None:
        """Name the rank that failed first: when one goes, its peers fail too, of a closed connection."""
        # Let the others' last words arrive before choosing.
        settled = time.monotonic() + _SETTLE_S
        while time.monotonic() < settled:
            self._take(_TICK_S)
        silent = [process for process in self._ranks if process.died and "error" not in process.reported]
        if silent:
            culprit = silent[0]
            words, text = processes.exit_words(culprit.status or 0), _tail(job.log(culprit.number))
            self._caller.send("failed", cause="died", rank=culprit.number, words=words, text=text)
            return
        failed = [process for process in self._ranks if "error" in process.reported]
        culprit = min(failed, key=lambda process: _suspicion(process.reported["error"]))
        self._caller.send(
            "failed", cause="error", rank=culprit.number, text=culprit.reported["error"]["traceback"]
        )

    def _strike(self) -> None:
        """The limit: ask every rank where it is, and tell."""
        waiting = [process for process in self._ranks if "result" not in process.reported]
        for process in waiting:
            process.ask()
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline and not all("where" in process.reported for process in waiting):
            self._take(_TICK_S)
        places = []
        for process in self._ranks:
            if process not in waiting:
                places.append("has finished")
            elif "where" in process.reported:
                places.append(process.reported["where"]["text"])
            else:
                places.append("doesn't answer: stopped, or busy outside Python")
        self._caller.send("failed", cause="limit", places=places)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").rstrip().splitlines()
        # faulthandler ends with a list of all loaded C modules, hundreds of characters that help nobody.
        lines = [line for line in lines if not line.startswith("Extension modules:")]
        return "\n".join(lines[-_LOG_LINES:]).strip()
    return ""


def _suspicion(error: dict[str, Any]) -> tuple[bool, float]:
    """Sort key: errors of a rank's own before those that a dead peer causes, then the earliest."""
    echoes = ("closed by peer", "reset by peer", "Broken pipe", "DistNetworkError", "Socket closed")
    return any(echo in error["traceback"] for echo in echoes), error["time"]


def _has_hung_up(lifeline: int) -> bool:
    """Whether the caller's end of the pipe is closed already; where that can't be asked, False."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(lifeline, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _watch_caller(lifeline: int, abandon: Callable[[], NoReturn]) -> None:
    """End everything when the caller is gone, however it went: its end of our pipe closes."""
    if sys.platform != "win32":
        threading.Thread(target=_watch_parent, args=(os.getppid(), abandon), daemon=True).start()
    with contextlib.suppress(OSError):
        while os.read(lifeline, 1):
            pass
    abandon()


def _watch_parent(parent: int, abandon: Callable[[], NoReturn]) -> None:
    """The same when a sister of ours has inherited the caller's end of the pipe and keeps it open."""
    while os.getppid() == parent:
        time.sleep(1.0)
    abandon()


def _abandon(job: Job, ranks: list[_Rank]) -> NoReturn:
    """End the ranks, whatever they have started, and ourselves."""
    # Should anything below get stuck, this ends us all the same, and the ranks with us.
    faulthandler.dump_traceback_later(_ABANDON_S, exit=True)
    for process in ranks:
        process.kill()
    processes.kill_marked(job.run_id)
    shutil.rmtree(job.directory, ignore_errors=True)
    # The caller started us in a session of our own: this ends what is left in it, us included.
    processes.kill_group(os.getpid())
    os._exit(1)


def read_job(directory: str) -> Job:
    """The job that :func:`shardlab.labs.run.run` wrote into the run's folder."""
    return Job(**json.loads((Path(directory) / "job.json").read_text()))
