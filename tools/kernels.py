"""Kernels that talk through files.

By default a kernel is told free ports and takes them a second later: what starts meanwhile may have them by then.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traitlets.config import Config

# A busy machine of two cores imports for a while.
START_S = 200


@contextlib.contextmanager
def through_files() -> Iterator[Config]:
    """Settings of a kernel manager, as ``NotebookClient`` and ``KernelManager`` take them: ``config``."""
    from traitlets.config import Config

    settings = Config()
    if sys.platform == "win32":  # ZeroMQ has no such sockets there.
        yield settings
        return
    # Not below a test's own folder: a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="kernel-", dir="/tmp") as folder:
        settings.KernelManager.transport = "ipc"
        settings.KernelManager.ip = f"{folder}/socket"
        yield settings
