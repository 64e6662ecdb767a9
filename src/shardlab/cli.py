"""The command line: ``shardlab plan`` predicts, ``measure`` measures a cluster for it, ``diagnose`` explains, ``lab``
runs a lab, ``progress`` reads your assignments, ``serve`` shows a built book.

Exit status: 0 all is well, 1 something failed, a check does not hold or no layout fits, 2 wrong usage, 3 nothing was measured
because torch or a lab's own package is missing (a lab showed its recorded run), 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import io
import json
import os
import signal
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main
from rich.console import Console
from rich.table import Table as ScreenTable

from shardlab import __version__, cli_models, labs
from shardlab.labs import Lab, LabError, LabInterrupted
from shardlab.labs.machine import stamp, torch_installed
from shardlab.labs.result import LabRun

FAILED, USAGE, NOT_MEASURED, INTERRUPTED = 1, 2, 3, 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The price of every way of splitting a training run: predict it, play with it, measure it.",
)


class _LabCommands(Mapping[str, Any]):
    """Name to command of every lab. A lab is imported when its command is asked for."""

    def __iter__(self) -> Iterator[str]:
        return iter(labs.LAB_NAMES)

    def __len__(self) -> int:
        return len(labs.LAB_NAMES)

    def __getitem__(self, name: str) -> Any:
        if name not in labs.LAB_NAMES:
            raise KeyError(name)
        lab = getattr(labs, name)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name, help=f"{lab.title}.", short_help=f"{lab.title}.")(_command(lab))
        return typer.main.get_command(alone)


class _LabGroup(typer.core.TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _LabCommands()})


labs_app = typer.Typer(
    cls=_LabGroup,
    help="Run a lab: a real distributed program on this machine. Without a name: list the labs.",
)
app.add_typer(labs_app, name="lab", invoke_without_command=True)
cli_models.register(app)


def main() -> None:
    """The ``shardlab`` command, once everything is imported."""
    for stream in (sys.stdout, sys.stderr):
        # What an old terminal or a pipe on Windows can't spell becomes "?"; else a Σ would end a finished lab.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="shardlab")
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        sys.exit(f"The output could not be written: {error.strerror}")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardlab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


# ---- shardlab lab ----


@labs_app.callback()
def _list_labs(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    screen = Console()
    table = ScreenTable("Lab", "What it shows", "Time", "Needs", box=None, pad_edge=False)
    for lab in labs.LABS:
        # Short; the rest of a title is told by the lab's help.
        table.add_row(lab.name, lab.title.partition(":")[0], f"about {lab.seconds} s", lab.needs)
    screen.print(table)
    screen.print(
        "\nRun one with: shardlab lab NAME    Its settings: shardlab lab NAME --help", highlight=False
    )
    if not torch_installed():
        screen.print(
            "torch is not installed: a lab shows the run that was recorded for the book.", highlight=False
        )


def _run_lab(lab: Lab[Any, Any], arguments: dict[str, Any], json_file: Path | None) -> None:
    # Under torchrun every rank gets here: one of them speaks.
    speaks = os.environ.get("RANK", "0") == "0"
    try:
        if speaks:
            # Told now rather than after the measurement.
            cli_models.check_folder(json_file)
        run = lab(**arguments)
    except ValueError as error:
        _fail(str(error), USAGE)
    except LabError as error:
        if error.cause == "missing":
            # Nothing was tried, and this lab has no recorded run to show instead.
            _fail(str(error), NOT_MEASURED)
        _keep_partial(lab, json_file, str(error), error.partial)
        _fail(str(error), FAILED)
    except KeyboardInterrupt as error:
        partial = error.partial if isinstance(error, LabInterrupted) else {}
        _keep_partial(lab, json_file, "interrupted", partial)
        _fail("Stopped. Nothing is left running.", INTERRUPTED)
    if not speaks:
        return
    # The file first: a screen that fails doesn't cost the run.
    unsaved = None if json_file is None else cli_models.save(json_file, run.to_json())
    _print_run(run)
    if unsaved is not None:
        _fail(unsaved, FAILED)
    if json_file is not None:
        print(f"Written to {json_file}")
    failed = run.failed_checks()
    if failed:
        _fail("\n".join(["These checks do not hold:", *failed]), FAILED)
    if run.recorded:
        raise typer.Exit(NOT_MEASURED)


def _print_run(run: LabRun) -> None:
    screen = Console(highlight=False, markup=False)
    if not screen.is_terminal:
        # A pipe or a file gets whole lines.
        print(run.table(), *run.explanation(), sep="\n\n")
        return
    for table in run.table().tables:
        shown = ScreenTable(title=table.caption, title_justify="left", box=None, pad_edge=False)
        for index, name in enumerate(table.columns):
            shown.add_column(name, justify="left" if table.is_left(index) else "right", vertical="bottom")
        for row in table.rows:
            shown.add_row(*row)
        screen.print(shown)
        for note in table.notes:
            screen.print(note, style="dim")
        screen.print()
    screen.print("\n\n".join(run.explanation()))


def _keep_partial(lab: Lab[Any, Any], json_file: Path | None, error: str, partial: dict[str, Any]) -> None:
    """Write what was ready when a lab stopped; ``complete`` is false in it."""
    if json_file is None:
        return
    kept = {"lab": lab.name, "complete": False, "error": error, "stamp": asdict(stamp()), "partial": partial}
    unsaved = cli_models.save(json_file, json.dumps(kept, indent=1))
    print(unsaved or f"What was ready is in {json_file}", file=sys.stderr)


def _fail(text: str, status: int) -> typing.NoReturn:
    print(text, file=sys.stderr)
    raise typer.Exit(status)


def _command(lab: Lab[Any, Any]) -> Callable[..., None]:
    """A typer command with one option for each argument of the lab that has a sentence of help."""
    parameters = inspect.signature(lab.function).parameters
    types = typing.get_type_hints(lab.function)

    def command(json_file: Path | None = None, **arguments: Any) -> None:
        _run_lab(lab, arguments, json_file)

    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=parameters[name].default,
            annotation=Annotated[_option_type(types[name]), typer.Option(help=words)],
        )
        for name, words in lab.options.items()
    ]
    json_option = inspect.Parameter(
        "json_file",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")],
    )
    command.__signature__ = inspect.Signature([*options, json_option])  # type: ignore[attr-defined]
    return command


def _option_type(annotation: Any) -> Any:
    """A sequence becomes an option that may be repeated."""
    if typing.get_origin(annotation) is Sequence:
        return list[typing.get_args(annotation)[0]]  # type: ignore[misc]
    return annotation


# ---- shardlab measure ----


@app.command()
def measure(
    ranks: Annotated[
        int | None, typer.Option(help="Ranks: those that torchrun launched, or else 4 on this machine.")
    ] = None,
    smallest: Annotated[
        str, typer.Option(help="Smallest buffer; each further one has four times the bytes.")
    ] = "4 KiB",
    largest: Annotated[
        str | None,
        typer.Option(
            help="Largest buffer, such as '16 MiB'; 64 MiB on CPUs and 1 GiB on GPUs if you don't say."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Repeats of each measurement; their median counts.")] = 9,
    limit_s: Annotated[
        float,
        typer.Option(help="Time limit of all of it, seconds; sizes that would take too long are left out."),
    ] = 300.0,
    start: Annotated[str, typer.Option(help="How local ranks start: auto, fork or spawn.")] = "auto",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the file that plan and diagnose read.")
    ] = None,
) -> None:
    """Measure what the cost models need of these ranks: links by size, matrix products, memory.

    On this machine: shardlab measure --ranks 4 --json cluster.json

    On a cluster, on every node: torchrun ... -m shardlab measure --json cluster.json
    """
    from shardlab.labs.measure_cluster import measure as lab

    settings = {
        "ranks": ranks,
        "smallest": smallest,
        "largest": largest,
        "repeats": repeats,
        "limit_s": limit_s,
        "start": start,
        "keep_in": None if json_file is None else str(json_file),
    }
    _run_lab(lab, settings, json_file)


# ---- shardlab progress ----


@app.command()
def progress(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Holds a folder for each assignment; found by itself in a copy of the book."),
    ] = None,
) -> None:
    """Show how far your own assignments have come, from the notebooks as saved; nothing is run."""
    from shardlab.classroom.progress import report

    try:
        text, broken = report(folder)
    except ValueError as error:
        _fail(str(error), USAGE)
    print(text)
    if broken:
        raise typer.Exit(FAILED)


# ---- shardlab serve ----


@app.command()
def serve(
    directory: Annotated[Path, typer.Argument(help="The folder of a built book.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 0,
) -> None:
    """Serve a built book on this machine and print its address; Ctrl-C stops it."""
    if not (directory / "index.html").is_file():
        _fail(
            f"DIRECTORY must be the folder of a built book, with an index.html in it, not {str(directory)!r}",
            USAGE,
        )
    try:
        server = BookServer(directory, port)
    except OSError as error:
        _fail(f"--port must be a free port (0 takes one), not {port}: {error.strerror}", FAILED)
    # A plain `kill` ends it as cleanly as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server, contextlib.suppress(KeyboardInterrupt):
        typer.echo(f"The book is at {server.address}  (Ctrl-C stops)")
        server.serve_forever()
    typer.echo("Stopped.")


class _BookHandler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Python asks the system for these, and not every system knows them; browsers refuse a module of another type.
    extensions_map = {  # noqa: RUF012
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".json": "application/json",
        ".svg": "image/svg+xml",
        ".wasm": "application/wasm",
        ".woff2": "font/woff2",
    }

    def end_headers(self) -> None:
        # The book may be built anew under the same address.
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class BookServer(ThreadingHTTPServer):
    """Serves a folder on the loopback interface only; port 0 takes a free one."""

    # Ctrl-C doesn't wait for a browser's open connections.
    daemon_threads = True

    def __init__(self, directory: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), functools.partial(_BookHandler, directory=str(directory)))

    @property
    def address(self) -> str:
        """The address to open."""
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet when a browser hangs up in the middle of an answer; anything else is an error to see."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
