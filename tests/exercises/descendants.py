"""What a test has started, and what that started: also where what was between them has died.

Never a look at all processes of the machine: another test worker may grade at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator

import psutil


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], list[str]]]:
    """Gives a function that lists what lives of what was started since; at the end it is killed."""
    # Orphans come to us, not to init.
    adopt_orphans(True)
    here = psutil.Process()
    before = set(here.children(recursive=True))

    def living() -> list[str]:
        found = []
        for process in set(here.children(recursive=True)) - before:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.cmdline()}")
        return found

    try:
        yield living
    finally:
        for process in set(here.children()) - before:
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(20)
        adopt_orphans(False)


def after_patience(living: Callable[[], list[str]], patience_s: float = 60.0) -> list[str]:
    """What still lives after so many seconds; at once, if nothing does: the end of a sandbox takes a moment."""
    deadline = time.monotonic() + patience_s
    while (left := living()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def adopt_orphans(yes: bool) -> None:
    """See prctl(2), PR_SET_CHILD_SUBREAPER."""
    assert ctypes.CDLL(None, use_errno=True).prctl(36, int(yes), 0, 0, 0) == 0
