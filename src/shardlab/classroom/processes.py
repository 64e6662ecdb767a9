"""The same program on real processes: gloo ranks that talk over TCP, started by the runner of the book's labs.

Without torch :func:`run_processes` runs the program on the simulated network instead; ``Run.backend`` says which
it was. No mark ever depends on it.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import marshal
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from shardlab.checks import count
from shardlab.classroom.network import Endpoint, Message, Program, Run, Wire, run_ranks
from shardlab.labs import wire
from shardlab.labs.machine import torch_installed
from shardlab.labs.rank import Context
from shardlab.labs.run import run

# Without angle brackets: when ranks hang, the runner shows the line of a file with a name.
_FILE = "the notebook's functions"
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
    namespace = load_source(ctx.params["source"])
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


def load_source(source: str) -> dict[str, Any]:
    """Run a notebook's functions, as :func:`portable_source` wrote them down, and return all that they define."""
    # So that a traceback shows the student's lines.
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    namespace: dict[str, Any] = {}
    exec(compile(source, _FILE, "exec"), namespace)
    return namespace


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


def portable_source(*programs: Callable[..., Any]) -> str:
    """Source text that defines ``programs`` and all that they use from their notebook, for another process to run.

    Raises:
        ValueError: they use something that can't be written down, such as an object made in the notebook.
    """
    parts: dict[str, str] = {}
    for program in programs:
        named = isinstance(program, types.FunctionType) and program.__name__ != "<lambda>"
        if not (named or _is_own_class(program)):
            raise ValueError(f"program must be a function made with def, or a class, not {program!r}")
        _collect(program.__name__, program, parts)
    # Functions look names up when they are called, a class looks its bases up when it is made.
    order = {"import ": 0, "from ": 0, "class ": 2, "@": 2, "def ": 3}
    return "\n\n".join(
        sorted(
            parts.values(),
            key=lambda text: next((rank for start, rank in order.items() if text.startswith(start)), 1),
        )
    )


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
    elif _is_own_class(value):
        text = parts[name] = _class_source(name, value)
        there = next(iter(_methods(value))).__globals__
        names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        for used in sorted(names & there.keys() - {value.__name__}):
            _collect(used, there[used], parts)
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
        return _compiled_source(name, function)
    return source if function.__name__ == name else f"{source}\n\n{name} = {function.__name__}"


def _compiled_source(name: str, function: types.FunctionType) -> str:
    """A line that makes the function from its compiled code: a grader keeps no source of its hidden checks."""
    defaults = (function.__defaults__ or (), function.__kwdefaults__ or {})
    plain = _is_plain(defaults[0]) and all(map(_is_plain, defaults[1].values()))
    if function.__closure__ or not plain:
        raise ValueError(f"the source of {name!r} can't be found: define it in a cell or a file")
    return (
        f"from {__name__} import compiled_function as _compiled_function\n\n"
        f"{name} = _compiled_function({marshal.dumps(function.__code__)!r}, globals(), {defaults!r})"
    )


def compiled_function(
    code: bytes, namespace: dict[str, Any], defaults: tuple[tuple[Any, ...], dict[str, Any]]
) -> types.FunctionType:
    """The function that :func:`portable_source` took along compiled; the ranks run the same Python."""
    made = types.FunctionType(marshal.loads(code), namespace, argdefs=defaults[0])
    made.__kwdefaults__ = defaults[1] or None
    return made


def _is_own_class(value: Any) -> bool:
    return isinstance(value, type) and value.__module__ == "__main__" and any(_methods(value))


def _methods(value: type) -> Iterator[types.FunctionType]:
    for member in vars(value).values():
        function = getattr(member, "__func__", member)
        # What decorators such as dataclass write has no lines of its own.
        if isinstance(function, types.FunctionType) and linecache.getlines(function.__code__.co_filename):
            yield function


def _class_source(name: str, value: type) -> str:
    # inspect finds a class through its module's file, and a notebook has none.
    text = "".join(linecache.getlines(next(iter(_methods(value))).__code__.co_filename))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name == value.__name__:
            first = min([node.lineno, *[decorator.lineno for decorator in node.decorator_list]])
            source = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
            return source if value.__name__ == name else f"{source}\n\n{name} = {value.__name__}"
    raise ValueError(f"the source of {name!r} can't be found: define it at the left edge of a cell")


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
