"""Build the book into _build/html from the committed outputs; warnings are errors. Shows one line of progress.

Sphinx sees changes in pages, not in our own package: a change there, in the assets or in the settings
makes every page anew.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
LIMIT_S = 900


def fingerprint() -> str:
    """A hash over all that shapes every page."""
    digest = hashlib.sha256()
    files = [ROOT / "_config.yml", ROOT / "_toc.yml", ROOT / "requirements" / "book.txt"]
    files += sorted((ROOT / "book" / "assets").rglob("*"))
    files += sorted(path for path in (ROOT / "src").rglob("*") if "__pycache__" not in path.parts)
    for path in files:
        if path.is_file():
            digest.update(str(path.relative_to(ROOT)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    """Build; exit with 1 and the warnings when anything is wrong."""
    BUILD.mkdir(exist_ok=True)
    stamp, log = BUILD / ".inputs", BUILD / "build.log"
    inputs = fingerprint()
    fresh = not stamp.exists() or stamp.read_text() != inputs
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", "-n", "-W", "--keep-going"]
    command += ["--all"] if fresh else []
    command.append(str(ROOT))
    started = time.monotonic()
    lively = sys.stderr.isatty()
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            step = re.match(
                r"(reading sources|writing output|copying)\D*\[ *(\d+)%\]", re.sub(r"\x1b\[[^m]*m", "", line)
            )
            if step and lively:
                print(f"\r  build the book: {step[1]} {step[2]} %   ", end="", file=sys.stderr, flush=True)
            if time.monotonic() - started > LIMIT_S:
                process.kill()
                raise SystemExit(f"The build took more than {LIMIT_S} s and was ended; see {log}.")
    code = process.wait()
    print(
        f"{chr(13) if lively else ''}  build the book: {time.monotonic() - started:.0f} s            ",
        file=sys.stderr,
    )
    if code or not (BUILD / "html" / "index.html").exists():
        stamp.unlink(missing_ok=True)
        lines = re.sub(r"\x1b\[[^m]*m", "", log.read_text()).splitlines()
        warnings = [line for line in lines if "WARNING" in line or "ERROR" in line] or lines[-20:]
        raise SystemExit("\n".join(warnings) + f"\n\nThe book was not built cleanly (the whole log: {log}).")
    stamp.write_text(inputs)


if __name__ == "__main__":
    main()
