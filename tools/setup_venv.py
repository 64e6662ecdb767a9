"""Create a virtual environment and install a lock file and this package into it, with one line of progress.

Usage: python tools/setup_venv.py VENV STAMP LOCKFILE. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from pathlib import Path

LEAST = (3, 11)
LIMIT_S = 1800


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
    done.set()
    print(
        f"{chr(13) if lively else ''}  {words}: {time.monotonic() - started:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SystemExit(f"{tail}\n\n{words} failed (the whole log: {log}).")


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
    python = venv / "bin" / "python"
    venv.mkdir(exist_ok=True)
    log = venv / f"install-{stamp}.log"
    if not python.exists():
        run(f"create {venv}", [sys.executable, "-m", "venv", str(venv)], log)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    run(f"install {lock}", [*pip, "-r", lock], log)
    run("install shardlab", [*pip, "--no-deps", "--editable", "."], log)
    (venv / f".{stamp}").touch()


if __name__ == "__main__":
    main()
