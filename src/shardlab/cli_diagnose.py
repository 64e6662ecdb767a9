"""``shardlab diagnose``: from what someone measured, in their own units, to a verdict in words and what to check next.

Without a subcommand it takes step times, or samples per second, of few ranks and of many. Each subcommand takes another
measurement. The models name their arguments; here every option knows which argument it is, so that errors and advice
speak of what was typed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shardlab.cli_models import USAGE, check_folder, option_first, write


@dataclass(frozen=True)
class _Option:
    """An option of the command line and the model's argument that it fills."""

    argument: str
    flag: str
    kind: Any
    words: str
    required: bool = False

    def parameter(self) -> inspect.Parameter:
        """The option as Typer reads it."""
        kind, default = (self.kind, inspect.Parameter.empty) if self.required else (self.kind | None, None)
        return inspect.Parameter(
            self.argument,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, typer.Option(self.flag, help=self.words)],
        )

    def read(self, typed: Any) -> Any:
        """The argument's value for what was typed."""
        return typed


class _Word(_Option):
    """One of a few words, in any case."""

    def read(self, typed: str) -> str:
        return typed.lower()


class _Log(_Option):
    """A log of nccl-tests."""

    def read(self, typed: Path) -> Any:
        from shardlab.models import nccl_log

        try:
            return nccl_log.parse(typed.read_text("utf-8", errors="replace"))
        except OSError as error:
            raise ValueError(
                f"{self.flag} must name a file that can be read, not {str(typed)!r}: {error}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{self.flag} {str(typed)!r} is no log of nccl-tests: {error}") from None


@dataclass(frozen=True)
class _Pairs(_Option):
    """An option that is repeated, each time with ``width`` values between commas; ``?`` is an unknown one."""

    width: int = 2

    def read(self, typed: list[str]) -> list[tuple[Any, ...]]:
        """The values of each time; whole numbers and numbers as such, the rest as text with its unit."""
        return [self._row(text) for text in typed]

    def _row(self, text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != self.width or "" in parts:
            raise ValueError(
                f"{self.flag} must look like {self.words.rpartition('such as ')[2]}, not {text!r}"
            )
        return tuple(None if part == "?" else _number(part) for part in parts)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_LINK = "What the link should do, such as '25 Gb/s' (bits) or '10 GB/s' (bytes)."
_JSON = _Option("json_file", "--json", Path, "Write the whole result to this file.")

_RUNS = (
    _Option("n_ranks", "--ranks", int, "Ranks of the larger run."),
    _Option("step_s", "--step", str, "Its step time, such as '975 ms'."),
    _Option("base_step_s", "--base-step", str, "Step time of the smaller run, such as '100 ms'."),
    _Option("base_ranks", "--base-ranks", int, "Ranks of the smaller run; 1 if you don't say."),
    _Option("samples_per_s", "--samples-per-s", float, "Instead of --step: samples per second, all ranks."),
    _Option(
        "base_samples_per_s", "--base-samples-per-s", float, "Instead of --base-step: of the smaller run."
    ),
    _Option(
        "batch_per_rank", "--batch-per-rank", float, "Samples of one rank in a step; with samples per second."
    ),
    _Option("base_batch_per_rank", "--base-batch-per-rank", float, "In the smaller run, if another."),
    _Word(
        "scaling",
        "--scaling",
        str,
        "weak: the batch per rank is the same in both; strong: the global batch is. Both are shown if you don't say.",
    ),
    _Option("gradient_bytes", "--gradients", str, "Bytes of gradients on one rank, such as '1 GB'."),
    _Option("n_params", "--params", str, "Parameters instead of bytes, such as '110M'."),
    _Option("bytes_per_param", "--bytes-per-param", float, "4 for fp32 gradients, the default; 2 for bf16."),
    _Option("nominal_bandwidth", "--link", str, _LINK),
    _Option("n_nodes", "--nodes", int, "Nodes of the larger run."),
    _Option("compute_s", "--compute", str, "Forward and backward of the larger run, if measured."),
    _Option("communication_s", "--communication", str, "Its communication, if measured."),
    _Option("data_s", "--data", str, "Its waiting for data in a step, if measured."),
    _Option("accumulation_steps", "--accumulation", int, "Micro-steps of an optimizer step."),
    _Option(
        "smaller_model_helped",
        "--smaller-model-helped/--smaller-model-as-slow",
        bool,
        "Did a model with fewer parameters slow down less?",
    ),
    _Word("backend", "--backend", str, "nccl, gloo or mpi."),
    _Option("cores_per_node", "--cores-per-node", int, "CPU cores, for ranks that compute on the CPU."),
    _Log("log", "--log", Path, "An nccl-tests log of the same cluster."),
    _Option(
        "measured",
        "--measured",
        Path,
        "A file of shardlab measure, instead of --link and --log: what this cluster can do.",
    ),
    _JSON,
)


@dataclass(frozen=True)
class _Command:
    """A subcommand: its name, the function of :mod:`shardlab.models.diagnose` behind it, and its options."""

    name: str
    function: str
    words: str
    options: tuple[_Option, ...]


_COMMANDS = (
    _Command(
        "step",
        "breakdown",
        "One profiled step and its parts: communication, compute or data?",
        (
            _Option("step_s", "--step", str, "The whole step, such as '4.4 ms'.", True),
            _Option("communication_s", "--communication", str, "Time in collectives.", True),
            _Option("compute_s", "--compute", str, "Forward and backward."),
            _Option("data_s", "--data", str, "Waiting for or loading data."),
            _Option("sent_bytes", "--sent", str, "Bytes that one rank sends in the step."),
            _Option("nominal_bandwidth", "--link", str, _LINK),
        ),
    ),
    _Command(
        "collective",
        "collective",
        "One timing of a collective: how much of the link did it reach?",
        (
            _Option("n_bytes", "--size", str, "The buffer, as nccl-tests counts it, such as '1 GiB'.", True),
            _Option("time_s", "--time", str, "Its time, such as '8143 us'.", True),
            _Option("n_ranks", "--ranks", int, "Ranks.", True),
            _Word("name", "--collective", str, "all-reduce, the default, all-gather, reduce-scatter, …"),
            _Option("nominal_bandwidth", "--link", str, _LINK),
            _Option("n_nodes", "--nodes", int, "Nodes."),
            _Word("backend", "--backend", str, "nccl, the default, gloo or mpi."),
            _Option("cores_per_rank", "--cores-per-rank", int, "CPU cores that each process may use."),
        ),
    ),
    _Command(
        "nodes",
        "collective_by_nodes",
        "Bus bandwidth by number of nodes: should it fall?",
        (
            _Pairs(
                "points",
                "--busbw",
                list[str],
                "Nodes and bus bandwidth, once each, such as '3,70 GB/s'",
                True,
            ),
            _Option(
                "nominal_bandwidth", "--link", str, "All ports of a node together, such as '8x100 Gb/s'."
            ),
            _Option("ranks_per_node", "--ranks-per-node", int, "8 if you don't say."),
        ),
    ),
    _Command(
        "log",
        "benchmark",
        "An nccl-tests log: its best row, latency and bandwidth.",
        (
            _Log("log", "--log", Path, "The file.", True),
            _Option("nominal_bandwidth", "--link", str, _LINK),
        ),
    ),
    _Command(
        "accumulation",
        "accumulation",
        "Does gradient accumulation skip the synchronisation?",
        (
            _Option(
                "step_1_s", "--one", str, "An optimizer step without accumulation, such as '22.2 s'.", True
            ),
            _Option("step_k_s", "--many", str, "One of k micro-steps.", True),
            _Option("k", "--micro-steps", int, "k.", True),
            _Option("compute_s", "--compute", str, "Forward and backward of a micro-step, if measured."),
            _Option("sync_s", "--sync", str, "The synchronisation, if measured."),
        ),
    ),
    _Command(
        "sharded",
        "sharded",
        "ZeRO-3 or FSDP: what it sends, and whether something else would be faster.",
        (
            _Option("n_ranks", "--ranks", int, "Ranks that the weights are sharded over.", True),
            _Option("n_params", "--params", str, "All weights, such as '8B'."),
            _Option(
                "weight_bytes", "--weight-bytes", float, "Bytes of a weight on the wire; 2 if you don't say."
            ),
            _Option("trainable_params", "--trainable", str, "If not all are, such as '21M' for adapters."),
            _Option("accumulation_steps", "--accumulation", int, "Micro-steps of an optimizer step."),
            _Option("global_batch", "--global-batch", int, "Instead of --accumulation, with --micro-batch."),
            _Option("micro_batch", "--micro-batch", int, "Of one rank."),
            _Option("base_step_s", "--base-step", str, "A step of a run that the slow link does not slow."),
            _Option("step_s", "--step", str, "A step of this run."),
            _Option("nominal_bandwidth", "--link", str, "The slowest link, all ports of a node together."),
            _Option("n_nodes", "--nodes", int, "Nodes of the throughputs."),
            _Option("replicated_throughput", "--replicated", float, "Throughput with replicas (DDP)."),
            _Option("full_throughput", "--full", float, "Throughput fully sharded, in the same measure."),
            _Option("hybrid_throughput", "--hybrid", float, "Sharded inside the node, replicated across."),
            _Option("one_node_throughput", "--one-node", float, "Of one node."),
        ),
    ),
    _Command(
        "pipeline",
        "pipeline",
        "Does the bubble explain what a pipeline delivers?",
        (
            _Pairs(
                "runs",
                "--run",
                list[str],
                "Stages, micro-batches and throughput, ? if unknown, once for each run, such as '8,16,7987'",
                True,
                width=3,
            ),
            _Option(
                "reference_throughput",
                "--reference",
                float,
                "Throughput of the same ranks without a pipeline.",
            ),
            _Option("chunks", "--chunks", int, "Model chunks on a rank, for interleaved schedules."),
        ),
    ),
    _Command(
        "tensor",
        "tensor",
        "The link that tensor parallelism saw.",
        (
            _Option("tokens", "--tokens", float, "Tokens of one run.", True),
            _Option("layers", "--layers", int, "Layers of the model.", True),
            _Option("hidden", "--hidden", int, "Its width.", True),
            _Option("n_ranks", "--ranks", int, "Tensor-parallel ranks.", True),
            _Option("tensor_tokens_per_s", "--tokens-per-s", float, "With tensor parallelism.", True),
            _Option(
                "baseline_tokens_per_s",
                "--base-tokens-per-s",
                float,
                "With the layers dealt out, or one rank.",
                True,
            ),
            _Option("element_bytes", "--element-bytes", float, "Of an activation; 2 if you don't say."),
            _Option("training", "--training", bool, "Forward and backward; else forward only."),
            _Option("nominal_bandwidth", "--link", str, _LINK),
        ),
    ),
    _Command(
        "memory",
        "memory",
        "Memory at several numbers of ranks: is anything sharded?",
        (
            _Option("n_params", "--params", str, "Parameters of the model, such as '6B'.", True),
            _Pairs(
                "readings",
                "--used",
                list[str],
                "Ranks and memory of one rank, twice or more, such as '4,13 GB'",
                True,
            ),
        ),
    ),
)


def spoken(text: str, options: Iterable[_Option]) -> str:
    """``text`` with the options that were typed in place of the model's arguments."""
    flags = {option.argument: option.flag for option in options}
    # "name", "log" or "k" are words as well: they are meant where a message begins with them.
    return re.sub(r"\b\w+_\w+\b", lambda found: flags.get(found[0], found[0]), option_first(text, flags))


def _refuse(message: str, options: tuple[_Option, ...]) -> typer.Exit:
    for option in options:
        if isinstance(option, _Pairs):
            message = message.replace(f" in {option.argument} ", f" in {option.flag} ")
    typer.echo(spoken(message, options), err=True)
    return typer.Exit(USAGE)


def _given(options: Iterable[_Option], typed: dict[str, Any]) -> dict[str, Any]:
    """The model's arguments that were typed."""
    values = {option: typed.get(option.argument) for option in options}
    return {option.argument: option.read(value) for option, value in values.items() if value is not None}


def _subcommand(command: _Command) -> Callable[..., None]:
    def run(**typed: Any) -> None:
        from shardlab.models import diagnose

        json_file = typed.pop("json_file")
        try:
            check_folder(json_file)
            result = getattr(diagnose, command.function)(**_given(command.options, typed))
        except ValueError as error:
            raise _refuse(str(error), command.options) from None
        write(result, spoken(result.text(), command.options), json_file)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [option.parameter() for option in (*command.options, _JSON)]
    )
    run.__doc__ = command.words
    return run


def _diagnose(context: typer.Context, **typed: Any) -> None:
    if context.invoked_subcommand is not None:
        before = [option.flag.split("/")[0] for option in _RUNS if typed[option.argument] is not None]
        if before:
            name = context.invoked_subcommand
            raise _refuse(f"{before[0]} must stand after the command: shardlab diagnose {name} …", ())
        return
    try:
        _compare_runs(typed)
    except ValueError as error:
        raise _refuse(str(error), _RUNS) from None


def _compare_runs(typed: dict[str, Any]) -> None:
    from shardlab.models import diagnose

    json_file, measured = typed.pop("json_file"), typed.pop("measured")
    check_folder(json_file)
    if typed["n_ranks"] is None:
        raise ValueError(
            "--ranks must be given, with --step and --base-step: shardlab diagnose --help lists what else can be"
        )
    if typed["gradient_bytes"] is not None and typed["n_params"] is not None:
        raise ValueError(
            "give --gradients or --params, not both: the gradients' bytes follow from the parameters"
        )
    given, words = _given(_RUNS, typed), ""
    if measured is not None:
        from shardlab import measured_cluster

        if "nominal_bandwidth" in given or "log" in given:
            raise ValueError(
                "give --measured, or --link and --log, not both: which should the verdict hold it against?"
            )
        cluster = measured_cluster.read(measured)
        found = measured_cluster.link_of_run(cluster, given["n_ranks"], given.get("n_nodes"), str(measured))
        given["nominal_bandwidth"], given["log"], given["n_nodes"] = found.bandwidth, found.log, found.n_nodes
        words = found.words
    result = diagnose.data_parallel(**given)
    text = spoken(result.text(), _RUNS)
    if words:
        write({"link": words, **asdict(result)}, f"{words}\n\n{text}", json_file)
    else:
        write(result, text, json_file)


_diagnose.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *[option.parameter() for option in _RUNS],
    ]
)


_HELP = """Say what measured step times imply: bandwidth, efficiency, a verdict, and what to check next.

It needs --ranks with --step and --base-step, or with samples per second and the batch. The commands take other \
measurements: a profile, a benchmark, accumulation, sharding, a pipeline, memory.
"""


def register(app: typer.Typer) -> None:
    """Add the command and its subcommands to the command line."""
    group = typer.Typer(
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        callback=_diagnose,
        help=_HELP,
        short_help="Say what measured step times imply: bandwidth, efficiency, a verdict, and what to check next.",
    )
    for command in _COMMANDS:
        group.command(command.name)(_subcommand(command))
    app.add_typer(group, name="diagnose")
