"""Try a student's PyTorch code on real ranks: gloo processes, started by the runner of the book's labs.

A *trial* is a function of a checks module, ``trial(ctx, functions, params)``, that runs on every rank next to the
student's functions, with the process group ready, and returns what JSON can hold::

    outcome = try_on_ranks("shardlab.classroom.zero_checks:trial", [sharded_step], n_ranks=4)
    outcome.fault or outcome.results[0]

One call starts the ranks once (about three seconds): a trial should try all of a task's cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardlab.checks import count
from shardlab.classroom.attempt import name_of
from shardlab.classroom.network import NetworkError, NotWritten, RankFailed, describe
from shardlab.classroom.processes import load_source, portable_source
from shardlab.labs.machine import torch_installed
from shardlab.labs.rank import Context, load_worker
from shardlab.labs.run import LabError, run


class NeedsTorch(NetworkError):
    """PyTorch isn't installed, and this task can't be tried without."""


@dataclass(frozen=True)
class RanksOutcome:
    """What came of a trial.

    Attributes:
        results: what the trial returned on each rank; empty if there is a fault.
        fault: None, or what stopped the ranks, with the student's own line where one raised.
        kept: what the trial had handed over with ``ctx.keep`` before the ranks were stopped, by name.
    """

    results: list[Any] = field(default_factory=list)
    fault: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)


def require_torch() -> None:
    """Say what to do if PyTorch isn't installed.

    Raises:
        NeedsTorch: it isn't.
    """
    if not torch_installed():
        raise NeedsTorch(
            "this task needs PyTorch: run `make torch` in the book's folder, or `pip install torch`, "
            "and restart the kernel"
        )


def try_on_ranks(
    trial: str,
    functions: Sequence[Callable[..., Any]],
    n_ranks: int,
    params: dict[str, Any] | None = None,
    *,
    time_limit_s: float = 40.0,
) -> RanksOutcome:
    """Run ``trial`` on ``n_ranks`` gloo ranks, with a notebook's functions and classes.

    Args:
        trial: ``"module:function"``; the function takes ``(ctx, functions, params)``.
        functions: what the student wrote, and given code that the trial needs; each takes along what it uses.
        n_ranks: number of ranks, 1 to 16.
        params: settings of the trial, made of what JSON can hold.
        time_limit_s: time limit of the whole run, seconds. A rank that waits for ever ends there.

    Raises:
        NeedsTorch: PyTorch isn't installed.
        NotWritten: one of the functions raised NotImplementedError.
        ValueError: an argument is out of range.
    """
    ranks = count("n_ranks", n_ranks, least=1, most=16)
    require_torch()
    try:
        source = portable_source(*functions)
    except ValueError as error:
        return RanksOutcome(fault=str(error))
    job = {
        "trial": trial,
        "source": source,
        "names": [name_of(function) for function in functions],
        "params": params or {},
    }
    try:
        done = run(
            f"{__name__}:trial_on_a_rank",
            ranks,
            job,
            limit_s=time_limit_s,
            show=False,
            preload=[trial.partition(":")[0]],
        )
    except LabError as error:
        return RanksOutcome(fault=_words(error), kept=error.partial)
    missing = next((result["not_written"] for result in done.results if "not_written" in result), None)
    if missing is not None:
        raise NotWritten(missing)
    return RanksOutcome(results=[result["value"] for result in done.results])


def tensors_near(ones: Sequence[Any], others: Sequence[Any], atol: float) -> bool:
    """Whether tensors are the same up to rounding, one by one: 1e-4 of each number, and ``atol``; None is near none."""
    import torch

    return all(
        one is not None and one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=atol)
        for one, other in zip(ones, others, strict=True)
    )


def trial_on_a_rank(ctx: Context) -> dict[str, Any]:
    """One rank: the worker that the runner starts. Not called by hand."""
    namespace = load_source(ctx.params["source"])
    functions = {name: namespace[name] for name in ctx.params["names"]}
    try:
        value = load_worker(ctx.params["trial"])(ctx, functions, ctx.params["params"])  # type: ignore[call-arg]
    except NotImplementedError as error:
        return {"not_written": str(NotWritten.from_error(error))}
    except Exception as error:
        raise RankFailed(describe(error)) from None
    return {"value": value}


def _words(error: LabError) -> str:
    """The runner's words, without what only a lab's reader needs: of a traceback, the student's own line."""
    kept = [
        line
        for line in str(error).splitlines()
        if not line.startswith(("Kept so far", "No part of the result"))
    ]
    text = "\n".join(kept)
    _, marked, own = text.partition("RankFailed: ")
    return f"rank {error.rank} stopped with {own}" if marked else text
