"""Resolve the locks in requirements/ from pyproject.toml, for every platform, with uv.

The widest lock comes first and bounds the others, so that one environment can hold them all.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILE = [
    "uv",
    "pip",
    "compile",
    "--quiet",
    "--universal",
    "--python-version",
    "3.11",
    "--no-header",
    "--no-annotate",
]


# Which build of torch is installed decides about these: torch itself brings what its build needs.
BUILD_OF_TORCH = ("cuda-", "nvidia-", "triton")

# (lock, what goes into it, the lock that bounds it)
LOCKS = (
    ("dev", ("--group", "dev", "--extra", "notebook"), None),
    ("lab", ("--group", "lab", "--extra", "notebook"), "dev"),
    ("book", ("--group", "book", "--extra", "notebook"), "dev"),
    ("grade", ("--group", "grade", "--extra", "notebook"), None),
    ("extras", ("--group", "extras", "--extra", "extras"), "torch"),
)


def main() -> None:
    """Write requirements/NAME.txt for each of LOCKS."""
    try:
        for name, wanted, bound in LOCKS:
            lock = f"requirements/{name}.txt"
            command = [*COMPILE, "pyproject.toml", *wanted, "--output-file", lock]
            command += ["--constraint", f"requirements/{bound}.txt"] if bound else []
            subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, check=True, timeout=600)
            lines = (ROOT / lock).read_text().splitlines(keepends=True)
            (ROOT / lock).write_text("".join([line for line in lines if not line.startswith(BUILD_OF_TORCH)]))
    except FileNotFoundError:
        raise SystemExit("uv is needed to resolve the locks: pip install uv") from None


if __name__ == "__main__":
    main()
