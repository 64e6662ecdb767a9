"""``shardlab plan`` and ``shardlab diagnose``: the cost models for someone with a cluster bill."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

USAGE = 2


def register(app: typer.Typer) -> None:
    """Add both commands to the command line."""
    app.command("plan")(plan)
    app.command("diagnose")(diagnose)


def _write(result: Any, text: str, json_file: Path | None) -> None:
    typer.echo(text)
    if json_file is not None:
        fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
        json_file.write_text(json.dumps(fields, indent=1, default=str) + "\n", encoding="utf-8")
        typer.echo(f"Written to {json_file}")


def _model(name: str) -> Any:
    """A preset's name, or the path of a Hugging Face config.json."""
    from shardlab import transformer

    path = Path(name)
    if path.suffix != ".json":
        return transformer.preset(name)
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
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the whole result to this file.")
    ] = None,
) -> None:
    """Rank every layout of a model on a cluster, with step time, memory, reasons and what would help."""
    from shardlab import hardware
    from shardlab.models import plan as planner

    try:
        cluster = hardware.cluster(node, gpus)
        result = planner.search(_model(model), cluster, global_batch, sequence, top=top)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from None
    _write(result, result.text, json_file)


def diagnose(
    ranks: Annotated[int, typer.Option(help="Ranks of the larger run.")],
    step: Annotated[str, typer.Option(help="Its step time, such as '975 ms'.")],
    base_step: Annotated[str, typer.Option(help="Step time of the smaller run, such as '100 ms'.")],
    base_ranks: Annotated[int, typer.Option(help="Ranks of the smaller run.")] = 1,
    scaling: Annotated[
        str | None,
        typer.Option(
            help="weak: the batch per rank is the same in both; strong: the global batch is. Both are shown if you don't say."
        ),
    ] = None,
    gradients: Annotated[
        str | None, typer.Option(help="Bytes of gradients on one rank, such as '1 GB'.")
    ] = None,
    params: Annotated[str | None, typer.Option(help="Parameters instead of bytes, such as '110M'.")] = None,
    bytes_per_param: Annotated[float, typer.Option(help="4 for fp32 gradients, 2 for bf16.")] = 4.0,
    link: Annotated[
        str | None,
        typer.Option(help="What the link should do, such as '25 Gb/s' (bits) or '10 GB/s' (bytes)."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes of the larger run.")] = None,
    log: Annotated[Path | None, typer.Option(help="An nccl-tests log of the same cluster.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the whole result to this file.")
    ] = None,
) -> None:
    """Say what measured step times imply: bandwidth, efficiency, a verdict, and what to check next."""
    from shardlab.models import diagnose as models
    from shardlab.models import nccl_log

    try:
        measured = nccl_log.parse(log.read_text("utf-8")) if log is not None else None
        result = models.data_parallel(
            base_step,
            step,
            ranks,
            base_ranks,
            scaling,
            gradient_bytes=gradients,
            n_params=params,
            bytes_per_param=bytes_per_param,
            nominal_bandwidth=link,
            n_nodes=nodes,
            log=measured,
        )
    except OSError as error:
        typer.echo(f"--log must name a file that can be read, not {str(log)!r}: {error}", err=True)
        raise typer.Exit(USAGE) from None
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from None
    _write(result, result.text(), json_file)
