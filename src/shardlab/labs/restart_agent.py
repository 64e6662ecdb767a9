"""Starts torchrun, kills one of its ranks, and watches it recover. Runs as the one rank of a run of its own.

That way torchrun and all that it starts carry the run's mark, and the runner ends them whatever happens: an error,
the limit, Ctrl-C, a killed kernel. Two more ropes (see :mod:`shardlab.labs.processes`): torchrun gets a signal when
this process dies, and its ranks are killed when torchrun does.

The file has two more ways in, both started from here: ``agent`` is torchrun itself, ``rank`` is what it starts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shardlab.labs import processes
from shardlab.labs.rank import LAUNCHER_VARIABLES, Context

TRAINING = "shardlab.labs.restart_worker:worker"
LOOK_S = 0.01
LOG_LINES = 15


def worker(ctx: Context) -> dict[str, Any]:
    """Train under torchrun, kill a rank when it has done ``kill_after`` steps, wait for the end; what was seen."""
    from shardlab.labs.restart_worker import own_folder

    given = ctx.params
    folder = own_folder(ctx) / "training"
    folder.mkdir()
    log = folder / "torchrun.log"
    ctx.progress(f"training under torchrun, {given['ranks']} ranks", 0, 3)
    with log.open("wb") as output:
        torchrun = subprocess.Popen(command(given, folder), env=environment(), stdout=output, stderr=output)
    try:
        pid = wait_for_step(folder, given["victim"], given["kill_after"], torchrun, log)
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        ctx.progress(f"rank {given['victim']} killed, process {pid}", 1, 3)
        status = torchrun.wait()
    finally:
        torchrun.kill()
    if status:
        raise RuntimeError(f"torchrun {processes.exit_words(status)}:\n{tail(log)}")
    ctx.progress("training finished", 2, 3)
    return {
        "backend": ctx.backend,
        "killed_at": killed_at,
        "journals": [read_attempts(folder, rank) for rank in range(given["ranks"])],
    }


def command(given: dict[str, Any], folder: Path) -> list[str]:
    """torchrun's command line."""
    own = [sys.executable, "-P", "-m", "shardlab.labs.restart_agent", "agent"]
    params = {key: given[key] for key in ("steps", "every", "step_s", "limit_s")}
    params["port"] = free_ports(given["max_restarts"] + 1)
    return [
        *own,
        "--standalone",
        "--nproc-per-node",
        str(given["ranks"]),
        "--max-restarts",
        str(given["max_restarts"]),
        "--monitor-interval",
        str(given["monitor_s"]),
        "-m",
        "shardlab.labs.restart_agent",
        "rank",
        json.dumps({**params, "folder": str(folder)}),
    ]


def free_ports(n: int) -> int:
    """The first of ``n`` neighbouring free ports, below those that systems hand out by themselves.

    The port that torchrun finds for its ranks is free when it looks; until rank 0 has imported torch and listens,
    any program that connects somewhere may have been given it.
    """
    for first in random.sample(range(20000, 32000), 1000):
        if all(_is_free(first + index) for index in range(n)):
            return first
    raise RuntimeError("no free port from 20000 to 32000")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def environment() -> dict[str, str]:
    """This process' environment without its own rank, which torchrun must not take for its ranks'."""
    ours = {key: value for key, value in os.environ.items() if key not in (*LAUNCHER_VARIABLES, "LOCAL_RANK")}
    return {
        **ours,
        "OMP_NUM_THREADS": "1",
        # Torch keeps the rendezvous' store for the ranks, too; a restart then often hung or failed (torch 2.13).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def wait_for_step(folder: Path, rank: int, step: int, torchrun: subprocess.Popen[bytes], log: Path) -> int:
    """The process id of ``rank`` once it has done ``step`` steps of its first attempt."""
    while torchrun.poll() is None:
        for entry in read_journal(folder, rank, 0):
            if entry["event"] == "step" and entry["step"] >= step:
                return int(entry["pid"])
        time.sleep(LOOK_S)
    raise RuntimeError(
        f"torchrun {processes.exit_words(torchrun.returncode)} before step {step} was done:\n{tail(log)}"
    )


def read_attempts(folder: Path, rank: int) -> list[list[dict[str, Any]]]:
    """A rank's journals, attempt by attempt."""
    attempts: list[list[dict[str, Any]]] = []
    while entries := read_journal(folder, rank, len(attempts)):
        attempts.append(entries)
    return attempts


def read_journal(folder: Path, rank: int, attempt: int) -> list[dict[str, Any]]:
    """The whole lines of one journal; none if it isn't there yet."""
    path = folder / f"rank{rank}-attempt{attempt}.jsonl"
    if not path.exists():
        return []
    # Killed in the middle of a line, or not yet at its end: what follows the last line end is no line.
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def tail(log: Path) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-LOG_LINES:])


# ---- the other two ways in ----


def be_agent(arguments: list[str]) -> None:
    """torchrun, which ends its ranks and itself when this lab dies."""
    processes.die_with_parent(at_once=False)
    from torch.distributed.run import main

    main(arguments)


def be_rank(params: str) -> None:
    """One rank: it notes when it was born, before torch is imported, and trains."""
    born = time.monotonic()
    processes.die_with_parent(at_once=True)
    from shardlab.labs.run import run

    given = {**json.loads(params), "born": born}
    port = given["port"] + int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    run(TRAINING, int(os.environ["WORLD_SIZE"]), given, limit_s=given["limit_s"], threads=1)


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        be_agent(sys.argv[2:])
    else:
        be_rank(sys.argv[2])
