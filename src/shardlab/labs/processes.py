"""Processes that never outlive the one that started them.

Three ropes, because each one can slip: Linux sends a signal when the parent dies, a pipe from the parent
reads as ended when it is gone (every system), and every process of a run carries the run's mark in its
environment, so that a last sweep finds what left its process group (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

MARK = "SHARDLAB_RUN"
_PR_SET_PDEATHSIG = 1


def die_with_parent(*, at_once: bool) -> None:
    """Ask Linux to end this process when the thread that started it ends; elsewhere do nothing.

    ``at_once`` kills it; otherwise it gets a SIGTERM and may put its own children to rest first.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            number = signal.SIGKILL if at_once else signal.SIGTERM
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def marked(run_id: str) -> list[int]:
    """Process ids, other than our own, whose environment carries the mark of run ``run_id`` (Linux; else none)."""
    needle = f"{MARK}={run_id}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end while we look, or belong to someone else.
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def kill_marked(run_id: str) -> None:
    """Kill every process of run ``run_id`` but this one, also those in a process group of their own (Linux)."""
    for pid in marked(run_id):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill the process group that ``pid`` leads, or on Windows the process and its descendants.

    Call it before ``pid`` is waited for: until then its number can't be given to anyone else.
    """
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def exit_words(status: int) -> str:
    """Words for the exit status of a process, negative for a signal: ``was killed by signal 9 (SIGKILL)``."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    hint = "; the system does this when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by signal {-status} ({name}{hint})"
