"""Write a folder for a USB stick: the built book, notebooks, assignments, and every wheel that they need.

    python tools/usb_stick.py              into _build/usb, for this kind of computer
    python tools/usb_stick.py --torch      PyTorch too, for labs on real processes

On the stick, ``python3 install.py`` then installs without a network. Wheels are for the system, processor and Python
that this runs on; run it on each kind of computer with the same folder, and they add up. `make usb` first builds the
book and the release of the assignments.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("lab", "torch")
LIMIT_S = 1800
START = """The Price of Parallelism, without a network

The book: open site/index.html in a browser. Experiments and quizzes run from the disk.

Notebooks, assignments and labs: Python {python}, then

    python3 install.py          (Windows: py install.py)

It installs from this stick alone, into a folder price-of-parallelism in your home, and says how to start.
"""


def copy_book(stick: Path) -> None:
    """The site, the notebooks, the release and the installer.

    Raises:
        SystemExit: the site or the release isn't built.
    """
    parts = {
        "site": ROOT / "_build" / "html",
        "notebooks": ROOT / "notebooks",
        "exercises": ROOT / "exercises" / "release",
    }
    for name, source in parts.items():
        if not any(source.glob("*")):
            raise SystemExit(f"{source} is missing: make usb builds it first.")
        shutil.rmtree(stick / name, ignore_errors=True)
        shutil.copytree(source, stick / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    (stick / "wheels").mkdir(exist_ok=True)
    for lock in LOCKS:
        shutil.copy(ROOT / "requirements" / f"{lock}.txt", stick)
    shutil.copy(ROOT / "tools" / "usb_install.py", stick / "install.py")
    least = re.search(r'requires-python = "(.+)"', (ROOT / "pyproject.toml").read_text())
    assert least is not None
    (stick / "START.txt").write_text(START.format(python=least[1]))


def fetch_wheels(stick: Path, torch: bool) -> None:
    """Every wheel of the locks, and this package's own.

    Raises:
        SystemExit: pip can't find one.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    wheels = str(stick / "wheels")
    commands = [
        # The locks are complete: nothing has to be resolved. Sources would need a compiler on the student's side.
        [*pip, "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", wheels]
        + [part for lock in LOCKS if torch or lock != "torch" for part in ("-r", str(stick / f"{lock}.txt"))],
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, str(ROOT)],
    ]
    for command in commands:
        if subprocess.run(command, timeout=LIMIT_S).returncode:
            raise SystemExit("The wheels could not be fetched; pip says why above.")


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        prog="usb_stick.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=ROOT / "_build" / "usb", help="the folder to write")
    parser.add_argument("--torch", action="store_true", help="add PyTorch")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    copy_book(options.to)
    fetch_wheels(options.to, options.torch)
    size = sum(path.stat().st_size for path in options.to.rglob("*") if path.is_file())
    print(f"{options.to}: {len(list((options.to / 'wheels').iterdir()))} wheels, {size / 1e6:.0f} MB in all")


if __name__ == "__main__":
    main()
