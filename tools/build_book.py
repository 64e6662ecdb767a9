"""Build the book into _build/html from the committed outputs; warnings are errors. Shows one line of progress.

Sphinx sees changes in pages, not in our own package: a change there, in the assets or in the settings
makes every page anew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
LIMIT_S = 900
# What a shell reports of a command that Ctrl-C ended.
INTERRUPTED = 130


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


def build_pages(source: Path, words: str, log: Path, everything: bool, limit_s: float = LIMIT_S) -> None:
    """Run jupyter-book over a folder, its output in ``log``, with a line that shows how far it is.

    Args:
        source: the folder with ``_config.yml`` and ``_toc.yml``; the pages go to ``_build/html`` in it.
        words: what is built, for the line of progress.
        log: gets all that jupyter-book prints.
        everything: make every page anew, changed or not.
        limit_s: seconds after which the build is ended.

    Raises:
        SystemExit: with the warnings, or with what stopped it; with status 130 and a word after Ctrl-C.
    """
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", "-n", "-W", "--keep-going", *(["--all"] if everything else [])]
    started = time.monotonic()
    lively = sys.stderr.isatty()
    if not lively:
        print(f"  {words} …", file=sys.stderr, flush=True)
    try:
        process = subprocess.Popen(
            [*command, str(source)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
        )
    except FileNotFoundError:
        raise SystemExit(
            f"{program} can't be started. Was the folder moved since it was installed? "
            f"Remove {program.parent.parent} and run make again."
        ) from None
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    assert process.stdout is not None
    try:
        with log.open("w", encoding="utf-8") as out:
            for line in process.stdout:
                line = _plain(line)
                out.write(line)
                step = re.match(r"(reading sources|writing output|copying)\D*\[ *(\d+)%\]", line)
                if step and lively:
                    shown = f"\r  {words}: {step[1]} {step[2]} %   "
                    print(shown, end="", file=sys.stderr, flush=True)
        code = process.wait()
    except KeyboardInterrupt:
        # Ctrl-C reaches it too; a plain signal to us alone doesn't.
        process.terminate()
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
        print(f"\n  {words}: stopped. Run it again to go on.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    finally:
        timer.cancel()
    print(
        f"{chr(13) if lively else ''}  {words}: {time.monotonic() - started:.0f} s            ",
        file=sys.stderr,
    )
    if late.is_set():
        raise SystemExit(f"The build took more than {limit_s:g} s and was ended; see {log}.")
    if code or not (source / "_build" / "html" / "index.html").exists():
        reasons = what_stopped(log.read_text(encoding="utf-8"))
        raise SystemExit(f"{reasons}\n\nIt was not built cleanly (the whole log: {log}).")


def _plain(text: str) -> str:
    """Text without a terminal's colours."""
    return re.sub(r"\x1b\[[^m]*m", "", text)


def what_stopped(log: str) -> str:
    """The lines of a log that say what is wrong: warnings; else the exception, without jupyter-book's own steps."""
    lines = log.splitlines()
    warnings = [line for line in lines if "WARNING" in line or "ERROR" in line]
    if warnings:
        return "\n".join(warnings)
    if "Exception occurred:" in lines:
        # Sphinx prints the place and the exception, then where it has written more.
        after = lines[lines.index("Exception occurred:") + 1 :]
        end = next((n for n, line in enumerate(after) if line.startswith("The full traceback")), 20)
        return "\n".join(after[:end])
    return "\n".join(lines[-20:])


def main() -> None:
    """Build; exit with 1 and the warnings when anything is wrong."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    BUILD.mkdir(exist_ok=True)
    stamp = BUILD / ".inputs"
    inputs = fingerprint()
    fresh = not stamp.exists() or stamp.read_text() != inputs
    # A build that was stopped may have left half a page: only a whole one counts.
    stamp.unlink(missing_ok=True)
    build_pages(ROOT, "build the book", BUILD / "build.log", everything=fresh)
    stamp.write_text(inputs)


if __name__ == "__main__":
    main()
