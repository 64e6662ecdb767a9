"""A JupyterLab for a test: on a port that it takes itself, with settings of its own, ended with all its kernels."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.kernels import through_files

START_S = 250
PLACES = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)
OPTIONS = ("--no-browser", "--allow-root", "--port=0", "--IdentityProvider.token=")


@contextlib.contextmanager
def jupyter_lab(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Runs a command that starts JupyterLab, and gives the server's address once it answers.

    Args:
        command: what starts JupyterLab; options for a test are added.
        folder: an empty folder for settings, logs and the file in which the server tells its port.
    """
    folder.mkdir()
    environment = {**os.environ, **{name: str(folder / name) for name in PLACES}}
    with (folder / "log").open("w") as log, through_files() as settings:
        kernels = [f"--KernelManager.{name}={value}" for name, value in settings.KernelManager.items()]
        server = subprocess.Popen(
            [*command, *OPTIONS, *kernels],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield _answering(server, folder)
        finally:
            _end(server)


def _answering(server: subprocess.Popen[bytes], folder: Path) -> str:
    """The address of a server that has started."""
    told = folder / "JUPYTER_RUNTIME_DIR" / f"jpserver-{server.pid}.json"
    until = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            address = f"http://127.0.0.1:{json.loads(told.read_text())['port']}"
            urllib.request.urlopen(f"{address}/api", timeout=30).close()
            return address
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start: {(folder / 'log').read_text()[-2000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """Asks the server to end, which ends its kernels, and sees to it that it does."""
    server.terminate()
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
