"""One rank of a lab: what a worker is given, and how it reports back.

A worker is an importable function of one argument::

    def worker(ctx):
        x = torch.ones(4) * ctx.rank
        dist.all_reduce(x)
        return x.tolist()  # anything that JSON can hold

It runs once on every rank, with the default process group ready: gloo on CPUs, NCCL when every rank has a GPU of its
own (that path was not run where this book was made: its machines have no GPU). What its file imports, the ranks
share where they start by fork: a slow import belongs at the file's top.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from shardlab.labs.machine import in_notebook

# How torchrun, Slurm's and Kubernetes' launchers tell a process which rank it is.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Job:
    """What the caller asks the launcher to run; it travels as a JSON file.

    Attributes:
        worker: ``"module:function"``.
        ranks: number of ranks.
        params: what the worker finds in ``ctx.params``.
        limit_s: time limit of the whole run, seconds.
        start: ``"auto"``, ``"fork"`` or ``"spawn"``.
        threads: threads of one rank.
        run_id: the mark in the environment of every process of the run.
        directory: the run's own folder: job, rendezvous file, logs.
        preload: modules to import before the ranks fork.
    """

    worker: str
    ranks: int
    params: dict[str, Any]
    limit_s: float
    start: str
    threads: int
    run_id: str
    directory: str
    preload: tuple[str, ...] = ()

    def log(self, rank: int) -> Path:
        """The file that takes what rank ``rank`` and its libraries write to the standard error."""
        return Path(self.directory) / f"rank{rank}.log"


def load_worker(name: str) -> Callable[[Context], Any]:
    """The function behind ``"module:function"``."""
    module, _, function = name.partition(":")
    worker: Callable[[Context], Any] = getattr(importlib.import_module(module), function)
    return worker


class Context:
    """What a worker knows and can do beside ``torch.distributed``.

    Attributes:
        rank: this rank, 0 to ``ranks - 1``.
        ranks: number of ranks (the world size).
        threads: threads that this rank computes with.
        params: the settings given to ``run``.
        backend: ``"gloo"`` or ``"nccl"``.
        device: the ``torch.device`` to put tensors on.
        store: the ``torch.distributed`` store of the run, for small messages off the measured wire.
        rendezvous_port: the store's TCP port, or None when the store is a file.
    """

    def __init__(
        self,
        *,
        rank: int,
        ranks: int,
        threads: int,
        params: dict[str, Any],
        backend: str,
        device: Any,
        store: Any,
        limit_s: float,
        send: Callable[..., None],
        rendezvous_port: int | None = None,
    ) -> None:
        self.rank, self.ranks, self.threads = rank, ranks, threads
        self.params, self.backend, self.device = params, backend, device
        self.store, self.rendezvous_port = store, rendezvous_port
        self._send = send
        self._patience = timedelta(seconds=limit_s + 60)
        self._meetings = 0
        self._teams: dict[int, Any] = {}

    def progress(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show one line of progress, with ``done`` of ``total`` parts finished. Only rank 0's is shown."""
        if self.rank == 0:
            self._send("progress", text=text, done=done, total=total)

    def keep(self, name: str, value: Any) -> None:
        """Hand a part of the result over at once, under a name: it survives whatever happens to the run later."""
        self._send("keep", name=name, value=value)

    def barrier(self) -> None:
        """Wait for all ranks, through the store: it sends nothing over the connections that are being measured."""
        self._meetings += 1
        key = f"barrier/{self._meetings}"
        if self.store.add(key, 1) == self.ranks:
            self.store.set(f"{key}/open", "1")
        self.store.wait([f"{key}/open"], self._patience)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's ``value`` (JSON), in the order of ranks, on every rank, through the store."""
        self._meetings += 1
        keys = [f"gather/{self._meetings}/{rank}" for rank in range(self.ranks)]
        self.store.set(keys[self.rank], json.dumps(value, default=plain))
        self.store.wait(keys, self._patience)
        return [json.loads(self.store.get(key)) for key in keys]

    def team(self, n: int) -> Any:
        """The process group of ranks 0 to ``n - 1``; None on a rank outside it. Every rank must ask, in the same order."""
        import torch.distributed as dist

        if n not in self._teams:
            self._teams[n] = dist.new_group(list(range(n)))
        return self._teams[n] if self.rank < n else None


def plain(value: Any) -> Any:
    """JSON's fallback: a tensor, an array or a number of theirs as Python numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result must be made of numbers, text, lists and dicts, not {type(value).__name__}")


def launched_elsewhere() -> bool:
    """Whether ``torchrun`` or a cluster's launcher started this process as one rank. Never true in a notebook."""
    return all(name in os.environ for name in LAUNCHER_VARIABLES) and not in_notebook()


# ---- a rank of the local runner ----


class Channel:
    """The one-way pipe to the launcher: one JSON object a line, whole lines only."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        line = memoryview(json.dumps({"kind": kind, **fields}, default=plain).encode() + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


class _Prints(io.TextIOBase):
    """A worker's ``print``, handed on line by line."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rest = ""

    def writable(self) -> bool:
        return True

    def end_line(self) -> None:
        """Hand on what came after the last line end."""
        if self._rest:
            self.write("\n")

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._channel.send("print", text=line)
        return len(text)


def main(job: Job, rank: int, messages: int, lifeline: int) -> int:
    """Run the worker as rank ``rank`` and return the exit status; the caller leaves with ``os._exit``.

    Args:
        job: what to run.
        rank: which rank this process is.
        messages: descriptor that the launcher reads our messages from.
        lifeline: descriptor that reads as ended when the launcher is gone; a byte on it asks where we are.
    """
    channel = Channel(messages)
    sys.stdout = prints = _Prints(channel)
    threading.Thread(target=_watch, args=(lifeline, channel), daemon=True).start()
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.ranks), LOCAL_WORLD_SIZE=str(job.ranks)
    )
    try:
        worker = load_worker(job.worker)
        context = _join(job, rank, channel)
        result = worker(context)
        prints.end_line()
        channel.send("result", value=result)
        # Nobody closes connections that another rank may still be reading from.
        context.barrier()
    except BaseException as error:
        channel.send("error", time=time.time(), **_describe_error(error))
        return 1
    return 0


def _join(job: Job, rank: int, channel: Channel) -> Context:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(job.threads)
    backend, device = _backend(rank, job.ranks)
    # A file meets no port in use and opens nothing to the network; a TCPStore listens on every interface.
    store = dist.FileStore(str(Path(job.directory) / "rendezvous"), job.ranks)
    # The launcher enforces the limit, because it can say who hung where: torch's own timeout comes after it.
    patience = timedelta(seconds=job.limit_s + 60)
    dist.init_process_group(backend, store=store, rank=rank, world_size=job.ranks, timeout=patience)
    return Context(
        rank=rank,
        ranks=job.ranks,
        threads=job.threads,
        params=job.params,
        backend=backend,
        device=device,
        store=dist.PrefixStore("shardlab", store),
        limit_s=job.limit_s,
        send=channel.send,
    )


def _backend(local_rank: int, local_ranks: int) -> tuple[str, Any]:
    import torch
    import torch.distributed as dist

    if torch.cuda.device_count() >= local_ranks and dist.is_nccl_available():
        torch.cuda.set_device(local_rank)
        return "nccl", torch.device("cuda", local_rank)
    return "gloo", torch.device("cpu")


def _describe_error(error: BaseException) -> dict[str, Any]:
    """The error with its traceback from the worker on, without the runner's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return {"type": type(error).__name__, "message": str(error), "traceback": text}


# ---- where a rank is, when the limit strikes ----


def _watch(lifeline: int, channel: Channel) -> None:
    main_thread = threading.main_thread().ident
    while os.read(lifeline, 1):
        frame = sys._current_frames().get(main_thread or 0)
        channel.send("where", text=f"{_place(frame)}; {_collective()}")
    # The launcher is gone: nobody waits for us.
    os._exit(1)


def _place(frame: FrameType | None) -> str:
    """The innermost line that is not torch's, Python's or the runner's own: ``my_lab.py line 12, dist.barrier()``."""
    own = [entry for entry in traceback.extract_stack(frame) if not _is_foreign(entry.filename)]
    if not own:
        return "before the worker's first line"
    return f"{os.path.basename(own[-1].filename)} line {own[-1].lineno}, {own[-1].line}"


def _is_foreign(filename: str) -> bool:
    here = os.path.dirname(__file__)
    runner = [os.path.join(here, name) for name in ("rank.py", "launcher.py", "__main__.py")]
    torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or here)
    library = filename.startswith(sysconfig.get_path("stdlib")) and "-packages" not in filename
    return library or filename in runner or filename.startswith(("<", os.path.join(torch, "")))


def _collective() -> str:
    """The collective that this rank waits in, from torch's flight recorder: ``waits in all_reduce #5 of 100 elements``.

    The number counts the calls within a process group, so ranks that wait in different numbers have lost step.
    """
    # Not an import: the main thread may be in the middle of importing torch, and we would wait for it.
    recorder = sys.modules.get("torch._C._distributed_c10d")
    if recorder is None:
        return "has called no collective"
    try:
        entries = json.loads(recorder._dump_fr_trace_json()).get("entries", [])
        waiting = [entry for entry in entries if not entry["retired"]]
        if waiting:
            return f"waits in {_collective_name(waiting[0])}"
        if entries:
            return f"waits in no collective, its last one was {_collective_name(entries[-1])}"
        return "has called no collective"
    except (AttributeError, KeyError, ValueError, TypeError):
        # The recorder is not a public interface: the line of code has to do.
        return "its collective is unknown"


def _collective_name(entry: dict[str, Any]) -> str:
    name = str(entry["profiling_name"]).rpartition(":")[2]
    number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    shapes = "+".join(["×".join(map(str, shape)) or "scalar" for shape in entry["input_sizes"]])
    return f"{name} #{number}" + (f" of {shapes} elements" if shapes else "")


# ---- a rank that someone else started ----


def run_launched(worker: str, params: dict[str, Any], limit_s: float, threads: int | None) -> list[Any]:
    """Run the worker as the rank that ``torchrun`` (or a cluster's launcher) made of this process.

    Returns every rank's result, on every rank. The launcher kills the other ranks when one fails.
    """
    import faulthandler

    import torch
    import torch.distributed as dist

    if threads is not None:
        torch.set_num_threads(threads)
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    backend, device = _backend(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])), local_ranks)
    # With its trace of every thread, torchrun's log shows where each rank was.
    faulthandler.dump_traceback_later(limit_s, exit=True)
    dist.init_process_group(backend, timeout=timedelta(seconds=limit_s + 60))

    def send(kind: str, **fields: Any) -> None:
        if kind == "progress":
            print(fields["text"], file=sys.stderr, flush=True)

    context = Context(
        rank=dist.get_rank(),
        ranks=dist.get_world_size(),
        threads=torch.get_num_threads(),
        params=params,
        backend=backend,
        device=device,
        store=dist.PrefixStore("shardlab", dist.distributed_c10d._get_default_store()),
        limit_s=limit_s,
        send=send,
        rendezvous_port=int(os.environ["MASTER_PORT"]),
    )
    results = context.gather(load_worker(worker)(context))
    context.barrier()
    faulthandler.cancel_dump_traceback_later()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    return results
