"""Install the book's notebooks, assignments and labs from this stick, without a network.

    python3 install.py              into the folder price-of-parallelism in your home
    python3 install.py FOLDER       somewhere else

Standard library only. Work that is in the folder already stays as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

STICK = Path(__file__).resolve().parent
LEAST = (3, 11)
LIMIT_S = 1800


def has_wheels_for(lock: Path) -> bool:
    """Whether the stick carries what this lock asks for: PyTorch's is left out where space is short."""
    first = next(line for line in reversed(lock.read_text().splitlines()) if line.strip())
    name = first.partition("==")[0].replace("-", "_").lower()
    return any(path.name.lower().startswith(f"{name}-") for path in (STICK / "wheels").iterdir())


def main() -> None:
    """Install, copy, and say how to start."""
    if sys.version_info < LEAST:
        raise SystemExit(
            f"Python {LEAST[0]}.{LEAST[1]} or newer is needed, this is {sys.version.split()[0]}."
        )
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path.home() / "price-of-parallelism"
    venv = folder / ".venv"
    programs = venv / ("Scripts" if sys.platform == "win32" else "bin")
    python = programs / ("python.exe" if sys.platform == "win32" else "python")
    if not python.exists():
        print(f"  create {venv} …", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=LIMIT_S)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-index", "--find-links", str(STICK / "wheels")]
    locks = [STICK / "lab.txt"] + ([STICK / "torch.txt"] if has_wheels_for(STICK / "torch.txt") else [])
    print("  install from the stick …", flush=True)
    for arguments in ([part for lock in locks for part in ("-r", str(lock))], ["--no-deps", "shardlab"]):
        if subprocess.run([*pip, *arguments], timeout=LIMIT_S).returncode:
            raise SystemExit(
                "That didn't work: pip says why above. The wheels on a stick are for one system, processor and "
                f"Python; this is Python {sys.version_info[0]}.{sys.version_info[1]} on {sys.platform}."
            )
    for source, target in (("notebooks", "notebooks"), ("exercises", "exercises/work")):
        for path in sorted((STICK / source).rglob("*")):
            copy = folder / target / path.relative_to(STICK / source)
            if path.is_file() and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
    jupyter = programs / ("jupyter.exe" if sys.platform == "win32" else "jupyter")
    print(f'Start it with:  "{jupyter}" lab "--ServerApp.root_dir={folder}"')


if __name__ == "__main__":
    main()
