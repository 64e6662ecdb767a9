"""``shardlab plan``: the planner for someone with a cluster bill. It takes a file of ``shardlab measure``; without one,
the presets' numbers. And what it shares with ``shardlab diagnose``.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

FAILED, USAGE = 1, 2


def register(app: typer.Typer) -> None:
    """Add both commands to the command line."""
    from shardlab import cli_diagnose

    app.command("plan")(plan)
    cli_diagnose.register(app)


def option_first(message: str, flags: dict[str, str]) -> str:
    """A message that begins with an argument of ours, with the option that was typed for it."""
    return re.sub(r"^\w+", lambda name: flags.get(name[0], name[0]), message)


def _refuse(error: ValueError) -> typer.Exit:
    """Tell what is wrong in the words of the command line."""
    flags = {name: f"--{name.replace('_', '-')}" for name in inspect.signature(plan).parameters}
    typer.echo(option_first(str(error), flags), err=True)
    return typer.Exit(USAGE)


def check_folder(json_file: Path | None) -> None:
    """Raise a ValueError if ``--json`` names a file that can't be written."""
    if json_file is None:
        return
    place = json_file if json_file.exists() else json_file.parent
    if json_file.is_dir() or not os.access(place, os.W_OK):
        raise ValueError(
            f"--json must name a file in a folder that can be written to, not {str(json_file)!r}"
        )


def save(json_file: Path, text: str) -> str | None:
    """Write ``--json``'s file; the sentence to show if that fails, as on a full disk."""
    try:
        json_file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        return f"--json: {str(json_file)!r} could not be written: {error.strerror}"
    return None


def _known(option: str, name: str, names: Iterable[str], or_else: str = "") -> str:
    """The name as it is written, whatever its case.

    Raises:
        ValueError: there is none; the message starts with the nearest ones.
    """
    by_case = {known.lower(): known for known in names}
    wanted = name.lower()
    if wanted in by_case:
        return by_case[wanted]
    near = [known for lowered, known in by_case.items() if len(wanted) > 1 and wanted in lowered]
    near += [by_case[lowered] for lowered in difflib.get_close_matches(wanted, by_case)]
    meant = f" Did you mean {' or '.join(dict.fromkeys(near[:3]))}?" if near else ""
    raise ValueError(f"{option} must be one of {', '.join(by_case.values())}{or_else}, not {name!r}.{meant}")


def write(result: Any, text: str, json_file: Path | None) -> None:
    """Print what was found and, if ``--json`` names a file, write all of it there."""
    typer.echo(text)
    if json_file is not None:
        fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
        failure = save(json_file, json.dumps(fields, indent=1, default=str))
        if failure:
            typer.echo(failure, err=True)
            raise typer.Exit(FAILED)
        typer.echo(f"Written to {json_file}")


def _model(name: str) -> Any:
    """A preset's name, or the path of a Hugging Face config.json."""
    from shardlab import transformer

    path = Path(name)
    if path.suffix != ".json":
        other = ", or the path of a Hugging Face config.json"
        return transformer.preset(_known("--model", name, transformer.PRESETS, other))
    try:
        fields = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(
            f"--model must name a preset or a config.json that can be read, not {name!r}: {error}"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"--model must name valid JSON, and {name!r} is not: {error}") from None
    return transformer.from_hf_config(fields, name=path.parent.name or path.stem)


def plan(
    model: Annotated[
        str, typer.Option(help="A preset, such as llama3-70b, or the path of a Hugging Face config.json.")
    ],
    node: Annotated[str, typer.Option(help="The kind of server, such as dgx-h100.")],
    gpus: Annotated[int, typer.Option(help="How many GPUs.")],
    global_batch: Annotated[int, typer.Option(help="Sequences in one optimizer step, over all ranks.")],
    sequence: Annotated[int, typer.Option(help="Tokens in one sequence.")],
    top: Annotated[int, typer.Option(help="How many layouts to list.")] = 10,
    measured: Annotated[
        Path | None,
        typer.Option(help="A file of shardlab measure: its links and matrix products replace the preset's."),
    ] = None,
    measured_anyway: Annotated[
        bool,
        typer.Option("--measured-anyway", help="Take that file even if it was measured on other hardware."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the whole result to this file.")
    ] = None,
) -> None:
    """Rank every layout of a model on a cluster, with step time, memory, reasons and what would help.

    The exit status is 1 where no layout fits.
    """
    from shardlab import hardware
    from shardlab.models import plan as planner

    try:
        check_folder(json_file)
        kind = hardware.node(_known("--node", node, hardware.NODES))
        origins: tuple[str, ...] = ()
        if measured is not None:
            kind, origins = _measured_node(measured, kind, measured_anyway)
        elif measured_anyway:
            raise ValueError("--measured-anyway needs --measured: the file to take")
        cluster = hardware.cluster_of(kind, gpus)
        result = planner.search(_model(model), cluster, global_batch, sequence, top=top)
    except ValueError as error:
        raise _refuse(error) from None
    if origins:
        write({"origins": origins, **asdict(result)}, "\n".join([*origins, "", result.text]), json_file)
    else:
        write(result, result.text, json_file)
    if not result.fitting:
        raise typer.Exit(FAILED)


def _measured_node(file: Path, kind: Any, anyway: bool) -> tuple[Any, tuple[str, ...]]:
    """The node with the file's numbers, and lines that say where each number is from.

    A file of other hardware is refused rather than warned about: a warning scrolls away, and a bill follows the ranking.
    """
    from shardlab import measured_cluster
    from shardlab.models.diagnose_common import plural

    measurement = measured_cluster.read(file)
    made = measured_cluster.node_with(measurement, kind)
    if made.doubts and not anyway:
        raise ValueError(
            f"--measured must be a file of {kind.name}, and {file} is not: {'; '.join(made.doubts)}. Measure on such nodes, "
            "name the node that was measured with --node, or add --measured-anyway to put these numbers in all the same"
        )
    when = measurement.stamp.date
    title = (
        f"{file}: measured {when} on {measurement.device.name}, {measurement.backend}, {plural(measurement.ranks, 'rank')} on "
        f"{plural(measurement.nodes, 'node')}. Where the numbers of {kind.name} come from:"
    )
    warned = [f"  WARNING: this ranking is not of {kind.name}: {doubt}" for doubt in made.doubts]
    return made.node, (title, *warned, *[f"  {line}" for line in made.origins])
