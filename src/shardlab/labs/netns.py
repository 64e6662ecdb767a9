"""A slow network on one machine: a network namespace for each rank, a cable from each to a switch, a rate on each cable.

Linux alone has this. Every rank leaves the machine's network for a namespace of its own, which has one network card,
``eth0``: one end of a ``veth`` pair, whose other end is a port of a bridge in one more namespace. A token bucket
(``tc ... tbf``) holds each cable to a rate in both directions. Nothing has a name on the machine, and nothing of the
machine's own network is touched: namespaces, cables and bridge live as long as the ranks, and end with them, however
they end.

It takes root, or a user namespace in which one is root: ``unshare --user --map-root-user``.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardlab.labs.run import LabError, LabInterrupted

if TYPE_CHECKING:
    from shardlab.labs.rank import Context

CARD = "eth0"
_CLONE_NEWNET = 0x40000000
# Seconds of traffic that may pass at once. Shorter, and the timer can't refill the bucket in time; longer, and small
# messages feel no limit.
_BURST_S = 0.0025
# A full-sized packet of a veth pair is handed over whole, up to 64 kB.
_LEAST_BURST = 2**15
_QUEUE = "50ms"
_PATIENCE_S = 30.0
_FAREWELL_S = 10.0

_TRIAL = (
    f"ip link add {CARD} type veth peer name port0 && ip link add switch type bridge && "
    f"tc qdisc add dev {CARD} root tbf rate 200mbit burst 64kb latency {_QUEUE}"
)


def is_root() -> bool:
    """Whether this process is root, here or in its user namespace."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def require_namespaces() -> None:
    """Stop before any rank starts where a slow network can't be made: the try is made in a namespace that ends at once.

    Raises:
        LabError: with cause ``"missing"``: the system, a program, a right or the kernel's ``tbf``.
    """
    if sys.platform != "linux":
        raise LabError("a slow network needs Linux: its network namespaces and tc.", cause="missing")
    programs = ["unshare", "nsenter", "ip", "tc", *([] if is_root() else ["setpriv"])]
    absent = [name for name in programs if shutil.which(name) is None]
    if absent:
        raise LabError(
            f"a slow network needs the programs {', '.join(programs)}; not found: {', '.join(absent)}. On Debian and "
            "Ubuntu: apt install util-linux iproute2.",
            cause="missing",
        )
    words = _try(["--net"], "true")
    if words is not None:
        raise LabError(
            "a slow network needs the right to make network namespaces: be root, or allow user namespaces "
            f"(in a container: --cap-add SYS_ADMIN,NET_ADMIN). unshare says: {words}",
            cause="missing",
        )
    words = _try(["--net"], _TRIAL)
    if words is not None:
        raise LabError(
            f"a slow network needs the kernel's veth, bridge and sch_tbf. ip and tc say: {words}",
            cause="missing",
        )


def _try(flags: Sequence[str], script: str) -> str | None:
    """Run a shell script in namespaces that end with it; what it complains of if it fails."""
    user = [] if is_root() else ["--user", "--map-root-user"]
    done = _run(["unshare", *user, *flags, "sh", "-c", script], check=False)
    return None if done.returncode == 0 else " ".join((done.stderr or "nothing").split())


def burst_bytes(rate: float) -> int:
    """Bytes that may pass at once through a cable of ``rate`` bytes/s."""
    return max(int(rate * _BURST_S), _LEAST_BURST)


# ---- what a rank does ----


@dataclass(frozen=True)
class Network:
    """The slow network as one rank sees it.

    Attributes:
        rank, ranks: which rank this is, of how many.
        switch: rank 0's descriptor of the switch's namespace; None elsewhere.
    """

    rank: int
    ranks: int
    switch: int | None

    def set_rate(self, rate: float) -> None:
        """Hold every cable to ``rate`` bytes/s in each direction, from now on. Every rank must call it."""
        _tc([CARD], rate, None)
        if self.switch is not None:
            _tc([f"port{rank}" for rank in range(self.ranks)], rate, self.switch)


def join_network(ctx: Context) -> Network:
    """Leave the machine's network for a namespace of this rank's own, with a cable to the others. Every rank must call it.

    What is connected already stays connected. What is opened from now on goes through the cable: process groups made
    after this, with gloo told to use :data:`CARD`.
    """
    switch = None
    if ctx.rank == 0:
        _leave_network()
        switch = os.open("/proc/self/ns/net", os.O_RDONLY)
    _leave_network()
    # Everyone has left before rank 0 lays a cable to where they are.
    processes = ctx.gather(os.getpid())
    if switch is not None:
        _ip(_switch_lines(processes), switch)
    ctx.barrier()
    # Without an IPv6 address gloo has nothing to choose from, and nothing waits for one to settle.
    _ip(
        [
            "link set lo up",
            f"link set {CARD} addrgenmode none",
            f"addr add 10.0.0.{ctx.rank + 1}/24 dev {CARD}",
            f"link set {CARD} up",
        ]
    )
    os.environ["GLOO_SOCKET_IFNAME"] = CARD
    ctx.barrier()
    return Network(ctx.rank, ctx.ranks, switch)


def _switch_lines(processes: Sequence[int]) -> list[str]:
    """A bridge, and one cable from it to the namespace of each process."""
    lines = ["link add switch type bridge", "link set switch up"]
    for rank, process in enumerate(processes):
        lines += [
            f"link add {CARD} netns {process} type veth peer name port{rank}",
            f"link set port{rank} addrgenmode none",
            f"link set port{rank} master switch up",
        ]
    return lines


def _leave_network() -> None:
    """Move the calling thread, and the threads and processes it starts from now on, into a new network namespace."""
    if sys.version_info >= (3, 12):
        os.unshare(os.CLONE_NEWNET)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare(CLONE_NEWNET): {os.strerror(number)}")


def _ip(lines: Sequence[str], switch: int | None = None) -> None:
    _run([*_there(switch), "ip", "-batch", "-"], text="\n".join(lines), switch=switch)


def _tc(cards: Sequence[str], rate: float, switch: int | None) -> None:
    shape = f"root tbf rate {rate * 8:.0f}bit burst {burst_bytes(rate)} latency {_QUEUE}"
    lines = [f"qdisc replace dev {card} {shape}" for card in cards]
    _run([*_there(switch), "tc", "-batch", "-"], text="\n".join(lines), switch=switch)


def _there(switch: int | None) -> list[str]:
    return [] if switch is None else ["nsenter", f"--net=/proc/self/fd/{switch}"]


def _run(
    command: Sequence[str], *, text: str = "", switch: int | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
        pass_fds=[] if switch is None else [switch],
    )
    if check and done.returncode:
        raise OSError(f"{' '.join(command)} failed: {done.stderr.strip()}; it was given:\n{text}")
    return done


# ---- without root ----


def run_as_own_root(
    worker: str, ranks: int, params: dict[str, Any], *, limit_s: float, start: str
) -> list[Any]:
    """As :func:`shardlab.labs.run.run`, by a Python that is root in a user namespace of its own; returns the results.

    Raises:
        LabError: as there. LabInterrupted: Ctrl-C.
    """
    command = [
        # setpriv: this Python ends when the caller does, and the ranks with it. After unshare, which would undo it.
        *("unshare", "--user", "--map-root-user", "--", "setpriv", "--pdeathsig", "KILL", "--"),
        *(sys.executable, "-P", "-m", "shardlab.labs", worker, "--ranks", str(ranks)),
        *("--params", json.dumps(params), "--limit", str(limit_s), "--start", start),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.path.abspath(entry) for entry in sys.path]),
    }
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s + _PATIENCE_S)
        except KeyboardInterrupt:
            _end(process)
            raise LabInterrupted({}) from None
        except subprocess.TimeoutExpired:
            raise LabError(f"the lab did not end within {limit_s:g} s.", cause="limit") from None
        finally:
            _end(process)
    if process.returncode:
        raise LabError(errors.strip(), cause="limit" if "reached the limit" in errors else "error")
    results: list[Any] = json.loads(output)
    return results


def _end(process: subprocess.Popen[str]) -> None:
    """Let it stop its ranks, as on Ctrl-C; then kill it: its launcher sees that and ends the rest."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        process.kill()
