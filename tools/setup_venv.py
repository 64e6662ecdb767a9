"""Create a virtual environment and install a lock file and this package into it, with one line of progress.

Usage: python tools/setup_venv.py VENV STAMP LOCKFILE. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

LEAST = (3, 11)
LIMIT_S = 1800
# What a shell reports of a command that Ctrl-C ended.
INTERRUPTED = 130
# What a log shows, and what to do about it.
HINTS = (
    (
        "Failed to establish a new connection|name resolution|Read timed out|Max retries exceeded|ProxyError",
        "The package index could not be reached. Is there a network, and does it need a proxy or an index of its own "
        "(pip config set global.index-url ADDRESS)? Run it again to go on.",
    ),
    ("No space left on device", "The disk is full. Run it again when there is space."),
)
# Holds the folder that the environment was made in: its programs know no other. The Makefile reads it.
PLACE = ".place"


def run(words: str, command: list[str], log: Path) -> None:
    """Run one command, its output in ``log``; show a line with the seconds, and the log's end if it fails."""
    started = time.monotonic()
    done = threading.Event()
    lively = sys.stderr.isatty()

    def tick() -> None:
        while not done.wait(0.5):
            print(f"\r  {words} … {time.monotonic() - started:.0f} s", end="", file=sys.stderr, flush=True)

    if lively:
        threading.Thread(target=tick, daemon=True).start()
    else:
        print(f"  {words} …", file=sys.stderr, flush=True)
    try:
        with log.open("w") as out:
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    except KeyboardInterrupt:
        done.set()
        print(f"\n  {words}: stopped. Run it again to go on.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    done.set()
    print(
        f"{chr(13) if lively else ''}  {words}: {time.monotonic() - started:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    if code:
        text = log.read_text(errors="replace")
        # pip's retries would fill the screen.
        lines = [line for line in text.splitlines() if "WARNING: Retrying" not in line]
        tail = "\n".join(lines[-15:])
        hints = "".join(f"\n{hint}" for sign, hint in HINTS if re.search(sign, text))
        raise SystemExit(f"{tail}\n\n{words} failed (the whole log: {log}).{hints}")


def is_whole(venv: Path) -> bool:
    """Whether an environment was made to its end, here, and its Python is still there."""
    place = venv / PLACE
    if place.exists() and place.read_text().strip() != str(venv.resolve().parent):
        return False
    # pip comes last when an environment is made.
    with contextlib.suppress(OSError):
        pip = [str(venv / "bin" / "python"), "-c", "import pip"]
        return subprocess.run(pip, capture_output=True, timeout=60).returncode == 0
    return False


def make_venv(venv: Path, log: Path) -> None:
    """Make the environment, unless a whole one is there; one that was interrupted is finished."""
    if is_whole(venv):
        return
    if (venv / PLACE).exists():
        # It is ours. Its programs name a folder or a Python that isn't there any more.
        print(f"  {venv} was made in another folder, or for another Python: made anew", file=sys.stderr)
        shutil.rmtree(venv)
    venv.mkdir(exist_ok=True)
    run(f"create {venv}", [sys.executable, "-m", "venv", str(venv)], log)
    (venv / PLACE).write_text(f"{venv.resolve().parent}\n")


def main() -> None:
    """Install the lock file; write the stamp only when everything went well."""
    venv, stamp, lock = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if sys.version_info < LEAST:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SystemExit(
            f"Python {LEAST[0]}.{LEAST[1]} or newer is needed, this is {found}: make PYTHON=python3.11 …"
        )
    if importlib.util.find_spec("ensurepip") is None:
        raise SystemExit(
            "This Python comes without ensurepip. On Debian and Ubuntu: apt install python3-venv"
        )
    log = venv / f"install-{stamp}.log"
    make_venv(venv, log)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install"]
    pip += ["--quiet", "--disable-pip-version-check", "--no-input"]
    run(f"install {lock}", [*pip, "-r", lock], log)
    run("install shardlab", [*pip, "--no-deps", "--editable", "."], log)
    (venv / f".{stamp}").touch()


if __name__ == "__main__":
    main()
