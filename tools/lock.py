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


def main() -> None:
    """Write requirements/{dev,lab,book,grade}.txt."""
    try:
        for group, bound in (("dev", None), ("lab", "dev"), ("book", "dev"), ("grade", None)):
            command = [
                *COMPILE,
                "pyproject.toml",
                "--group",
                group,
                "--output-file",
                f"requirements/{group}.txt",
            ]
            command += ["--extra", "notebook"]
            command += ["--constraint", f"requirements/{bound}.txt"] if bound else []
            subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, check=True, timeout=600)
    except FileNotFoundError:
        raise SystemExit("uv is needed to resolve the locks: pip install uv") from None


if __name__ == "__main__":
    main()
