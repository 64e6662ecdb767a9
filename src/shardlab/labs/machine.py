"""What a measurement needs to say about where it was taken, and what a run may use of this machine."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import math
import os
import platform
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from shardlab import __version__


@dataclass(frozen=True)
class Stamp:
    """When and on what a run was measured.

    Attributes:
        date: day of the run, ISO 8601 (UTC).
        system: operating system and architecture.
        processor: its name, as the system gives it.
        cores: cores that this process may use.
        python, torch, shardlab: versions.
    """

    date: str
    system: str
    processor: str
    cores: int
    python: str
    torch: str
    shardlab: str

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return (
            f"{self.date}, {self.processor}, {cores}, {self.system}, "
            f"Python {self.python}, torch {self.torch}, shardlab {self.shardlab}"
        )


def stamp() -> Stamp:
    """The stamp of this machine, today."""
    return Stamp(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=usable_cores(),
        python=platform.python_version(),
        torch=torch_version(),
        shardlab=__version__,
    )


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "unknown processor"


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, with a cell to show things in."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def installed(module: str) -> bool:
    """Whether a module can be found, without importing it (torch takes seconds)."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def torch_installed() -> bool:
    """Whether torch can be found."""
    return installed("torch")


def torch_version() -> str:
    """The version of torch as installed, or ``"none"``."""
    # Here, since every rank imports this file and few ask: it brings an e-mail parser with it.
    import importlib.metadata

    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def usable_cores() -> int:
    """Cores that this process may use: its affinity and its container's quota count, not the machine's size."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


def loopback_interface() -> str | None:
    """The name of the loopback interface (``lo``, ``lo0``), or None where none shows (Windows)."""
    if sys.platform == "win32":
        return None
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), None)
