"""A Slurm cluster of two nodes on this machine, for as long as a test: munged, slurmctld, two slurmd.

State, logs, keys and sockets are in one folder, ports are free ones, and nothing of the system's own Slurm, if there
is one, is read or written. By hand, with a shell in which ``sbatch`` and ``squeue`` mean this cluster::

    python tests/launch/slurm/cluster.py bash
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
NODES = ("node1", "node2")
_PATIENCE_S = 180.0
_FAREWELL_S = 10.0


def missing() -> str | None:
    """Why there can be no cluster here, or None."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "a temporary Slurm cluster needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return (
        f"apt install slurmctld slurmd slurm-client munge; not found: {', '.join(absent)}" if absent else None
    )


class Cluster:
    """The running cluster, asked through Slurm's own commands.

    Attributes:
        folder: everything that belongs to it.
        environment: in which ``sbatch`` and the others mean this cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def ask(self, *command: str, limit_s: float = 60.0) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}\n{self.logs()}")
        return done.stdout

    def job(self, number: int) -> dict[str, str]:
        """What ``scontrol show job`` says of a job, by name."""
        words = self.ask("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict([word.split("=", 1) for word in words if "=" in word])

    def wait_for(self, number: int, states: tuple[str, ...], patience_s: float) -> str:
        """Until a job is in one of ``states``; returns it."""
        deadline = time.monotonic() + patience_s
        while True:
            state = self.job(number)["JobState"]
            if state in states:
                return state
            if time.monotonic() > deadline:
                raise RuntimeError(f"job {number} is {state}, not {states}\n{self.logs()}")
            time.sleep(0.3)

    def logs(self) -> str:
        """The last lines of every log."""
        texts = []
        for log in sorted(self.folder.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-15:]
            texts.append("\n".join([f"== {log.name}", *lines]))
        return "\n".join(texts)


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster with both nodes idle; on leaving, its jobs are cancelled and its daemons ended."""
    # Not where TMPDIR says: a socket's path has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="shardlab-slurm-", dir="/tmp"))
    folder.chmod(0o755)  # munged trusts no folder that others can write to, and clients must reach its socket
    cluster = Cluster(folder)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        write_configuration(folder)
        daemons.append(_start(cluster, "munged", *_munged(folder)))
        _wait_until(lambda: (folder / "munge.socket").exists(), cluster, "munged's socket")
        daemons.append(_start(cluster, "slurmctld", "slurmctld", "-D", "-c"))
        daemons += [_start(cluster, f"slurmd-{node}", "slurmd", "-D", "-N", node) for node in NODES]
        _wait_until(lambda: _idle_nodes(cluster) == len(NODES), cluster, "both nodes idle")
        yield cluster
    finally:
        with contextlib.suppress(Exception):
            cluster.ask("scancel", "--user", "root", limit_s=15)
            _wait_until(lambda: not cluster.ask("squeue", "--noheader").strip(), cluster, "no job")
        for daemon in reversed(daemons):
            _end(daemon)
        shutil.rmtree(folder, ignore_errors=True)


def write_configuration(folder: Path) -> None:
    """slurm.conf, cgroup.conf and munge's key, in ``folder``."""
    control, *ports = free_ports(1 + len(NODES))
    nodes = [
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"
        for name, port in zip(NODES, ports, strict=True)
    ]
    lines = [
        "ClusterName=shardlab",
        f"SlurmctldHost={socket.gethostname().split('.')[0]}(127.0.0.1)",
        f"SlurmctldPort={control}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.socket",
        "SlurmUser=root",
        "SlurmdUser=root",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        # Without cgroups: a container may have none of its own.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        # Four processors a node, whatever this machine has.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "KillWait=10",
        # slurm.sbatch makes the port of its ranks from the job's number.
        f"FirstJobId={free_ports(1, 20001, 29999)[0] - 20000}",
        *nodes,
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


def _munged(folder: Path) -> list[str]:
    files = {"key": "key", "socket": "socket", "pid": "pid", "log": "daemon.log", "seed": "seed"}
    options = [
        f"--{name}{'' if name == 'socket' else '-file'}={folder}/munge.{end}" for name, end in files.items()
    ]
    return ["munged", "--foreground", "--force", "--num-threads=2", *options]


def _start(cluster: Cluster, name: str, *command: str) -> subprocess.Popen[bytes]:
    with (cluster.folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            # Not to outlive us, however we end.
            ["setpriv", "--pdeathsig", "TERM", *command],
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _idle_nodes(cluster: Cluster) -> int:
    with contextlib.suppress(RuntimeError):
        return cluster.ask("sinfo", "--noheader", "--Node", "--format=%T").split().count("idle")
    return 0


def _wait_until(holds: object, cluster: Cluster, what: str) -> None:
    assert callable(holds)
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {_PATIENCE_S:g} s\n{cluster.logs()}")
        time.sleep(0.2)


def free_ports(n: int, least: int = 10000, most: int = 19999) -> list[int]:
    """So many different TCP ports that nobody listens on.

    They are taken seconds later. So they are none of those that the system hands out by itself meanwhile
    (``ip_local_port_range``), and two workers of one test run choose from different ones.
    """
    worker, workers = (
        int(re.sub(r"\D", "", os.environ.get(name, "")) or default)
        for name, default in (("PYTEST_XDIST_WORKER", 0), ("PYTEST_XDIST_WORKER_COUNT", 1))
    )
    candidates = list(range(least, most + 1))[worker % workers :: workers]
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if len(found) == n:
            break
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            found.append(port)
    if len(found) < n:
        raise RuntimeError(f"no {n} free ports from {least} to {most}")
    return found


if __name__ == "__main__":
    with running() as made:
        subprocess.run(sys.argv[1:] or ["sinfo"], env=made.environment, check=False)
