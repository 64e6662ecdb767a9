"""Workers for the runner's tests: some behave, most don't."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from shardlab.labs import wire


def total(ctx):
    """Sum of the ranks, by all-reduce, with what else the tests ask about."""
    x = torch.full((4,), float(ctx.rank))
    dist.all_reduce(x)
    print(f"sum {x[0].item():g}")
    return {
        "sum": x.tolist(),
        "params": ctx.params,
        "backend": ctx.backend,
        "device": str(ctx.device),
        "threads": torch.get_num_threads(),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "rank": os.environ["RANK"],
        "pid": os.getpid(),
        "parent": os.getppid(),
    }


def gather(ctx):
    ctx.barrier()
    everyone = ctx.gather({"rank": ctx.rank, "tensor": torch.tensor([ctx.rank, 2])})
    team = ctx.team(2)
    x = torch.ones(1)
    if team is not None:
        dist.all_reduce(x, group=team)
    ctx.barrier()
    return {"everyone": everyone, "in_team": team is not None, "x": x.item()}


def announce(ctx):
    """Tell the test, through files, that this rank is up."""
    Path(ctx.params["up"], str(ctx.rank)).write_text(str(os.getpid()))


def sleep(ctx):
    announce(ctx)
    ctx.keep("before the sleep", ctx.rank)
    time.sleep(600)


def hang(ctx):
    """Rank 2 never comes to the collective that the others wait in."""
    ctx.keep("first part", [1, 2])
    if ctx.rank == 2:
        time.sleep(600)
    dist.all_reduce(torch.zeros(3, 5))


def mismatch(ctx):
    """Two ranks in different collectives, one in the lab's own barrier, one that has stopped."""
    if ctx.rank == 0:
        dist.all_reduce(torch.zeros(7))
    elif ctx.rank == 1:
        dist.barrier()
    elif ctx.rank == 2:
        ctx.barrier()
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def fail(ctx):
    if ctx.rank == 1:
        raise RuntimeError("rank 1 has had enough")
    dist.all_reduce(torch.zeros(5))


def leave(ctx):
    ctx.keep("half", 0.5)
    if ctx.rank == 1:
        os._exit(7)
    dist.all_reduce(torch.zeros(5))


def leave_quietly(ctx):
    if ctx.rank == 0:
        os._exit(0)
    dist.all_reduce(torch.zeros(5))


def killed(ctx):
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(5))


def crash(ctx):
    if ctx.rank == 1:
        ctypes.string_at(0)
    dist.all_reduce(torch.zeros(5))


def unreadable(ctx):
    return {"a": object()}


def child_in_its_own_session(ctx):
    """A process that has left the run's process group and outlives the worker."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


def endpoints(ctx):
    """Local addresses of every internet socket of this process, listening ones included, after real traffic."""
    x = torch.zeros(2**16)
    dist.all_reduce(x)
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table, family, width in (("tcp", socket.AF_INET, 8), ("tcp6", socket.AF_INET6, 32)):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                raw = bytes.fromhex(fields[1].split(":")[0])
                assert len(raw) * 2 == width
                words = b"".join([raw[i : i + 4][::-1] for i in range(0, len(raw), 4)])
                found.append(socket.inet_ntop(family, words))
    return found


def count_bytes(ctx):
    """One all-reduce, counted by both of the kernel's interfaces."""
    x = torch.zeros(ctx.params["n_bytes"] // 4)
    dist.all_reduce(x)
    counts = {}
    ctx.barrier()
    before = {method: wire.sent_bytes(method) for method in (wire.SS, wire.TCP_INFO)}
    dist.all_reduce(x)
    ctx.barrier()
    for method, count in before.items():
        counts[method] = wire.sent_bytes(method) - count
    return counts
