"""Bytes on the wire, counted by the kernel.

A collective's tensor size is not what it sends, and neither is its name: the kernel keeps, for every TCP socket,
the bytes handed to the network. Read them before and after, with a barrier at each end that sends nothing over
those sockets, and the difference is what was really sent. Segments that the kernel had to send twice are left out:
a busy machine does that even on loopback, and no collective asked for it.

Where to read them, best first:

- ``ss -tinpHO`` (Linux, package iproute2): what you can run yourself in a terminal.
- ``TCP_INFO`` of our own sockets (Linux without ``ss``, such as a slim container): the same counters.
- Elsewhere (macOS, Windows, NCCL over NVLink or shared memory) there is no reading: a lab then shows the payload
  times the textbook factor, and says so.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SS = "ss"
TCP_INFO = "TCP_INFO"

# struct tcp_info in Linux' include/uapi/linux/tcp.h: tcpi_bytes_sent and, right after it, tcpi_bytes_retrans,
# 64 bits each, since Linux 4.19.
_BYTES_SENT_OFFSET = 200


def reading_method() -> str | None:
    """How this machine counts a process's sent bytes: ``"ss"``, ``"TCP_INFO"``, or None if it can't."""
    if sys.platform != "linux":
        return None
    return SS if shutil.which("ss") else TCP_INFO


def sent_bytes(method: str, exclude_port: int | None = None) -> int:
    """Bytes that this process has sent over its open TCP connections so far, retransmissions left out.

    Args:
        method: what :func:`reading_method` returned.
        exclude_port: leave out connections with this port at either end: the rendezvous of ``torchrun``.

    Raises:
        ValueError: ``method`` is unknown.
        OSError: the reading failed.
    """
    if method == SS:
        command = ["ss", "-tinpHO"]
        listing = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if listing.returncode:
            raise OSError(f"{' '.join(command)} failed: {listing.stderr.strip()}")
        return sent_bytes_in_listing(listing.stdout, os.getpid(), exclude_port)
    if method == TCP_INFO:
        return sum(sent for ports, sent in _own_connections() if exclude_port not in ports)
    raise ValueError(f"method must be one of 'ss', 'TCP_INFO', not {method!r}")


def sent_bytes_in_listing(listing: str, pid: int, exclude_port: int | None = None) -> int:
    """Sum ``bytes_sent - bytes_retrans`` of process ``pid`` over the lines of ``ss -tinpHO``, without ``exclude_port``."""
    total = 0
    for line in listing.splitlines():
        if f"pid={pid}," not in line:
            continue
        # State, two queue lengths, local address and peer address; the process and the counters follow.
        ports = [address.rpartition(":")[2] for address in line.split()[3:5]]
        if str(exclude_port) not in ports:
            total += _counter(line, "bytes_sent") - _counter(line, "bytes_retrans")
    return total


def _counter(line: str, name: str) -> int:
    # ss leaves out the counters that are zero.
    found = re.search(rf"\b{name}:(\d+)", line)
    return int(found.group(1)) if found else 0


def _own_connections() -> Iterator[tuple[tuple[int, int], int]]:
    """The (local, peer) ports and the sent bytes of every TCP connection of this process."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            # socket.socket closes the descriptor it is given: hand it a copy.
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.type != socket.SOCK_STREAM:
                    continue
                ports = (connection.getsockname()[1], connection.getpeername()[1])
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            # Not connected (a listening socket), or closed while we looked.
            continue
        if len(info) < _BYTES_SENT_OFFSET + 16:
            raise OSError("this Linux is older than 4.19: its TCP_INFO doesn't count the bytes sent")
        sent, repeated = struct.unpack_from("=QQ", info, _BYTES_SENT_OFFSET)
        yield ports, sent - repeated
