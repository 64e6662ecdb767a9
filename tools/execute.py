"""Run every notebook in a fresh kernel and write its outputs, without times and without widget state.

Usage: python tools/execute.py [NOTEBOOK ...]. A notebook is written only when all of its cells ran.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import nbformat
from kernels import START_S, through_files
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
CELL_LIMIT_S = 180


def execute(path: Path) -> None:
    """Run one notebook and write it back, outputs renewed and metadata reduced to what is needed."""
    notebook = nbformat.read(path, as_version=4)
    with through_files() as config:
        client = NotebookClient(
            notebook,
            timeout=CELL_LIMIT_S,
            startup_timeout=START_S,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,
            resources={"metadata": {"path": str(path.parent)}},
            config=config,
        )
        client.execute()
    notebook.metadata = nbformat.NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode(
            {key: cell.metadata[key] for key in ("tags",) if key in cell.metadata}
        )
        for output in cell.get("outputs", []):
            # A model id of a dead kernel: the page and JupyterLab both use the element beside it.
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    nbformat.write(notebook, path)


def main() -> None:
    """Execute the named notebooks, or all chapters."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "notebook", nargs="*", type=Path, help="a file; without one all chapters are executed"
    )
    named = parser.parse_args().notebook
    paths = [path.resolve() for path in named] or sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path in paths:
        started = time.monotonic()
        print(f"  {path.name} …", end="", flush=True)
        try:
            execute(path)
        except KeyboardInterrupt:
            print(" stopped; the notebook stays as it was")
            raise SystemExit(130) from None
        print(f" {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
