"""Counting bytes: by ss, by TCP_INFO, and what a listing of ss says."""

import shutil
import socket
import sys

import pytest

from shardlab.labs import wire
from shardlab.labs.run import run
from shardlab.models.collectives import ring_allreduce_sent_bytes

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counters are Linux'")

# Two sockets of ours (one of them a torchrun store's, one with retransmissions), one of another process, one without bytes.
LISTING = "\n".join(
    [
        'ESTAB 0 0 127.0.0.1:41000 127.0.0.1:42000 users:(("python",pid=77,fd=9)) cubic bytes_sent:1000 bytes_retrans:24 '
        "bytes_acked:976 bytes_received:5",
        'ESTAB 0 0 [::ffff:127.0.0.1]:29500 [::ffff:127.0.0.1]:42001 users:(("python",pid=77,fd=10)) cubic bytes_sent:7',
        'ESTAB 0 0 127.0.0.1:42002 127.0.0.1:29500 users:(("python",pid=77,fd=12)) cubic bytes_sent:90',
        'ESTAB 0 0 127.0.0.1:41001 127.0.0.1:42003 users:(("python",pid=771,fd=9)) cubic bytes_sent:5000',
        'ESTAB 0 0 127.0.0.1:41002 127.0.0.1:42004 users:(("python",pid=77,fd=13)) cubic bytes_received:3',
        "",
    ]
)


def test_a_listing_is_summed_by_process_without_retransmissions():
    assert wire.sent_bytes_in_listing(LISTING, 77) == 976 + 7 + 90
    assert wire.sent_bytes_in_listing(LISTING, 771) == 5000
    assert wire.sent_bytes_in_listing(LISTING, 7) == 0


def test_the_rendezvous_port_is_left_out_at_either_end():
    assert wire.sent_bytes_in_listing(LISTING, 77, exclude_port=29500) == 976
    assert wire.sent_bytes_in_listing(LISTING, 77, exclude_port=2950) == 976 + 7 + 90


@linux
@pytest.mark.parametrize("method", [wire.SS, wire.TCP_INFO])
def test_a_connection_of_our_own(method):
    if method == wire.SS and not shutil.which("ss"):
        pytest.skip("ss (iproute2) is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as other:
            before, before_without = wire.sent_bytes(method), wire.sent_bytes(method, exclude_port=port)
            client.sendall(b"x" * 12345)
            other.sendall(b"y" * 55)
            assert len(_receive(other, 12345)) == 12345
            assert len(_receive(client, 55)) == 55
            assert wire.sent_bytes(method) - before == 12345 + 55
            assert wire.sent_bytes(method, exclude_port=port) == before_without
            # The reading hasn't closed our sockets.
            client.sendall(b"z")
            assert other.recv(1) == b"z"


def _receive(connection, n_bytes):
    received = b""
    while len(received) < n_bytes:
        received += connection.recv(n_bytes - len(received))
    return received


@pytest.mark.torch
@linux
@pytest.mark.skipif(not shutil.which("ss"), reason="ss (iproute2) is not installed")
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_allreduce_sends_what_the_ring_says_by_both_readings(ranks):
    n_bytes = 3 * 2**20
    outcome = run("lab_workers:count_bytes", ranks, {"n_bytes": n_bytes}, limit_s=100, show=False)
    predicted = ring_allreduce_sent_bytes(n_bytes, ranks)
    for counts in outcome.results:
        assert counts[wire.SS] == counts[wire.TCP_INFO]
        assert counts[wire.SS] == pytest.approx(predicted, rel=0.01)
        assert counts[wire.SS] >= predicted


def test_how_this_machine_counts(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/ss")
    assert wire.reading_method() == "ss"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert wire.reading_method() == "TCP_INFO"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert wire.reading_method() is None


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="method must be one of 'ss', 'TCP_INFO', not 'netstat'"):
        wire.sent_bytes("netstat")
