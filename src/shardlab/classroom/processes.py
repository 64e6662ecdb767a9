"""The same program on real processes: gloo ranks that talk over TCP, started by the runner of the book's labs.

Without torch :func:`run_processes` runs the program on the simulated network instead; ``Run.backend`` says which
it was. No mark ever depends on it.
"""

from __future__ import annotations

import dis
import inspect
import linecache
import types
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shardlab.checks import count
from shardlab.classroom.network import Endpoint, Message, Program, Run, Wire, run_ranks
from shardlab.labs import wire
from shardlab.labs.machine import torch_installed
from shardlab.labs.rank import Context
from shardlab.labs.run import run

_FILE = "<the notebook's functions>"
_ELEMENT_BYTES = 4


def run_processes(program: Program, inputs: Sequence[Any], *, time_limit_s: float = 60.0) -> Run:
    """Run ``program(net, inputs[rank])`` on one gloo process per input, if torch is installed.

    It runs on the simulated network first: what deadlocks there would hang here until the time limit.
    Numbers travel as fp32, so whole numbers are exact up to 16,777,216. A message takes a header of 8 bytes that
    ``n_bytes`` leaves out. Messages that nobody receives keep their sender waiting until the time limit.

    Args:
        program: a function typed into a notebook or imported; it takes along the functions that it calls.
        inputs: one value for each rank, made of what JSON can hold.
        time_limit_s: time limit of the whole run, seconds.

    Returns:
        The finished run; its ``backend`` is ``"gloo"``, or ``"simulated"`` without torch. ``wire_bytes`` holds what
        the kernel counted on each rank's connections, where it can be read (Linux).

    Raises:
        ValueError: the program uses something that can't be taken to another process.
        shardlab.classroom.NetworkError: the program fails on the simulated network.
        shardlab.labs.run.LabError: a rank failed, or the time limit was reached.
    """
    n_ranks = count("number of inputs", len(inputs), least=1, most=64)
    rehearsal = run_ranks(program, inputs)
    if not torch_installed():
        return rehearsal
    params = {"source": portable_source(program), "name": program.__name__, "inputs": list(inputs)}
    outcome = run(f"{__name__}:rank_program", n_ranks, params, limit_s=time_limit_s, show=False)
    return Run(
        n_ranks=n_ranks,
        results=[rank["result"] for rank in outcome.results],
        messages=[Message(**message) for rank in outcome.results for message in rank["messages"]],
        backend="gloo",
        wire_bytes=[rank["wire_bytes"] for rank in outcome.results],
    )


def rank_program(ctx: Context) -> dict[str, Any]:
    """One rank: the worker that the runner starts. Not called by hand."""
    source = ctx.params["source"]
    # So that a traceback shows the student's lines.
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    namespace: dict[str, Any] = {}
    exec(compile(source, _FILE, "exec"), namespace)
    mail = _Gloo()
    net = Endpoint(ctx.rank, ctx.ranks, _ELEMENT_BYTES, mail)
    method = wire.reading_method()
    ctx.barrier()
    before = wire.sent_bytes(method) if method else 0
    result = namespace[ctx.params["name"]](net, ctx.params["inputs"][ctx.rank])
    mail.wait()
    ctx.barrier()
    on_wire = wire.sent_bytes(method) - before if method else None
    return {"result": result, "messages": [asdict(message) for message in mail.sent], "wire_bytes": on_wire}


class _Gloo(Wire):
    """Messages through ``torch.distributed``: a header with the length, then the numbers."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self._pending: list[Any] = []

    def send(self, source: int, destination: int, payload: tuple[Any, ...]) -> None:
        import torch
        import torch.distributed as dist

        n_bytes = len(payload) * _ELEMENT_BYTES
        self.sent.append(
            Message(source=source, destination=destination, n_bytes=n_bytes, index=len(self.sent))
        )
        for tensor in (torch.tensor([len(payload)]), torch.tensor([float(item) for item in payload])):
            if tensor.numel():
                # A tensor must stay alive until it is sent, and ranks that all send first must not wait.
                self._pending.append((dist.isend(tensor, destination), tensor))

    def recv(self, rank: int, source: int) -> tuple[Any, ...]:
        import torch
        import torch.distributed as dist

        header = torch.zeros(1, dtype=torch.int64)
        dist.recv(header, source)
        numbers = torch.zeros(int(header.item()), dtype=torch.float32)
        if numbers.numel():
            dist.recv(numbers, source)
        return tuple(numbers.tolist())

    def wait(self) -> None:
        """Until everything is sent."""
        for request, _ in self._pending:
            request.wait()


# ---- a notebook's function in another process ----


def portable_source(program: Program) -> str:
    """Source text that defines ``program`` and all that it uses from its notebook, for another process to run.

    Raises:
        ValueError: it uses something that can't be written down: a class or an object made in the notebook.
    """
    if not isinstance(program, types.FunctionType) or program.__name__ == "<lambda>":
        raise ValueError(f"program must be a function made with def, not {program!r}")
    parts: dict[str, str] = {}
    _collect(program.__name__, program, parts)
    # Functions look names up when they are called: imports and constants first is order enough.
    return "\n\n".join(sorted(parts.values(), key=lambda text: text.startswith("def ")))


def _collect(name: str, value: Any, parts: dict[str, str]) -> None:
    if name in parts:
        return
    if isinstance(value, types.ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif isinstance(value, types.FunctionType) and value.__module__ == "__main__":
        parts[name] = _function_source(name, value)
        for used in sorted(_global_names(value.__code__)):
            if used in value.__globals__:
                _collect(used, value.__globals__[used], parts)
    elif _is_plain(value):
        parts[name] = f"{name} = {value!r}"
    elif getattr(value, "__module__", "__main__") != "__main__" and hasattr(value, "__qualname__"):
        parts[name] = f"from {value.__module__} import {value.__qualname__} as {name}"
    else:
        raise ValueError(
            f"the function uses {name!r}, a {type(value).__name__} that can't go to another process"
        )


def _function_source(name: str, function: types.FunctionType) -> str:
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(function))
    except (OSError, TypeError):
        raise ValueError(f"the source of {name!r} can't be found: define it in a cell or a file") from None
    return source if function.__name__ == name else f"{source}\n\n{name} = {function.__name__}"


def _global_names(code: types.CodeType) -> set[str]:
    # co_names would bring the names of attributes along.
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
