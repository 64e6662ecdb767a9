"""``shardlab measure`` on real ranks: everything measured, bytes as the textbook has them, and a clean end."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from shardlab import hardware, measured_cluster
from shardlab.labs import LabError
from shardlab.labs.measure_cluster import measure
from shardlab.labs.measure_result import COLLECTIVES, POINT_TO_POINT, MeasuredCluster
from shardlab.labs.netns import is_root, require_namespaces
from shardlab.models.collectives import ring_allreduce_sent_bytes
from tests.launch.slurm.cluster import free_ports

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

SIZES = [2**12, 2**14, 2**16, 2**18, 2**20]
SMALL = ["--largest", "1 MiB", "--repeats", "3", "--limit-s", "600"]
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def measured():
    """One measurement for all tests that look at a result."""
    return measure(ranks=2, largest="1 MiB", repeats=5, limit_s=600, show=False)


# ---- what two ranks measure ----


def test_every_collective_has_every_size_and_the_right_result(measured):
    found = {(row.scope, row.collective, row.n_bytes) for row in measured.timings}
    assert found == {("node", name, size) for name in COLLECTIVES for size in SIZES}
    assert measured.left_out == ()
    assert measured.failed_checks() == []
    for row in measured.timings:
        assert row.ranks == 2
        assert 0 < row.low_s <= row.seconds <= row.high_s < 60
        assert 3 <= row.repeats <= 5
        assert 1 <= row.calls <= 20
    assert (measured.ranks, measured.nodes, measured.ranks_per_node) == (2, 1, 2)
    assert (measured.backend, measured.device.kind, measured.device.others) == ("gloo", "cpu", ())


def test_bytes_on_the_wire_are_the_rings(measured):
    if measured.reading is None:
        pytest.skip("the kernel's count can't be read here")
    wire = {row.collective: row for row in measured.wire}
    assert set(wire) == set(COLLECTIVES)
    assert wire["all-reduce"].sent.predicted_bytes == (ring_allreduce_sent_bytes(MEBIBYTE, 2),) * 2
    assert wire["all-gather"].sent.predicted_bytes == (MEBIBYTE / 2,) * 2
    for name in ("all-reduce", "all-gather", "all-to-all", POINT_TO_POINT):
        assert wire[name].sent.as_predicted, (name, wire[name])
    # The name says half as much.
    assert wire["reduce-scatter"].sent.gap == pytest.approx(1, abs=0.02)
    assert "gloo's reduce-scatter puts 2.00 times the textbook's bytes" in "\n".join(measured.explanation())


def test_a_line_that_is_found_is_a_plausible_one(measured):
    fitted = 0
    for name in COLLECTIVES:
        try:
            line = measured.fit("node", name)
        except ValueError:
            # A machine that is busy enough: the report says so.
            assert f"{name} inside a node" in "\n".join(measured.explanation())
            continue
        fitted += 1
        assert 0 <= line.latency_s < 1
        assert 1e5 < line.bandwidth < 1e13
        assert [sample.n_bytes for sample in line.samples] == SIZES
    assert fitted >= 1


def test_products_and_copies_are_of_this_machine(measured):
    assert {row.dtype for row in measured.matmul} == {"bf16", "fp32"}
    for row in measured.matmul:
        assert 1e6 < row.flops < 1e14
        assert row.fastest_s <= row.middle_s <= row.slowest_s
        assert row.slowest_rank in (0, 1)
    assert 1e7 < measured.copy[0].bandwidth < 1e13


def test_a_measurement_survives_json_and_shows_itself(measured):
    assert MeasuredCluster.from_json(measured.to_json()) == measured
    text = str(measured)
    assert text.count("point-to-point") > len(SIZES)
    assert "gloo on one machine: here the cores are the wire" in text


def test_sizes_that_would_not_fit_the_limit_are_left_out_and_named():
    short = measure_with_budget(0.05)
    # The first size of each is always there.
    assert {row.collective for row in short.timings if row.n_bytes == 2**12} == set(COLLECTIVES)
    left = {(row.collective, row.n_bytes) for row in short.left_out}
    assert left
    assert not left & {(row.collective, row.n_bytes) for row in short.timings}
    assert "Left out, since the time limit would not have held" in "\n".join(short.explanation())


def measure_with_budget(budget_s):
    """The worker with less time than it would like."""
    from shardlab.labs.measure_cluster import WORKER, evaluate
    from shardlab.labs.run import run

    params = {
        "smallest": 2**12,
        "largest": 2**24,
        "growth": 4,
        "repeats": 3,
        "budget_s": budget_s,
        "keep_in": None,
    }
    outcome = run(WORKER, 2, params, limit_s=600, show=False)
    return evaluate(outcome.results[0], {"ranks": 2}, outcome.elapsed_s)


def test_three_ranks_of_which_one_has_no_neighbour():
    odd = measure(ranks=3, smallest="1 KiB", largest="16 KiB", repeats=3, limit_s=600, show=False)
    assert odd.failed_checks() == []
    # Rounded up to what divides by three ranks' fp32 numbers.
    assert {row.n_bytes for row in odd.timings} == {1032, 4104, 16392}
    if odd.reading is not None:
        alone = next(row for row in odd.wire if row.collective == POINT_TO_POINT)
        assert alone.sent.predicted_bytes[2] == alone.sent.kernel_bytes[2] == 0


def test_one_rank_measures_its_device():
    alone = measure(ranks=1, repeats=3, limit_s=600, show=False)
    assert alone.timings == ()
    assert alone.best_matmul.slowest_rank == 0
    assert "With one rank there is no link to measure" in str(alone)


# ---- from the command line ----


def start(*arguments):
    command = [sys.executable, "-m", "shardlab", "measure", "--ranks", "2", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(process, words, patience_s=200):
    """Read the standard error up to a line with these words."""
    deadline = time.monotonic() + patience_s
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return
        assert time.monotonic() < deadline
    raise AssertionError("".join(lines))


def ranks_of(process):
    """The rank processes: children of the launcher, which is the child of the command."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        launchers = psutil.Process(process.pid).children()
        ranks = [rank for launcher in launchers for rank in launcher.children()]
        # Something that a library asks, such as uname, may be there for a moment.
        if (len(launchers), len(ranks)) == (1, 2):
            return ranks
        time.sleep(0.1)
    raise AssertionError(f"{launchers} with {ranks}")


LONG = ["--largest", "64 MiB", "--repeats", "9", "--limit-s", "600"]


def test_a_killed_rank_ends_it_with_a_sentence_and_what_was_ready(family, tmp_path):
    file = tmp_path / "cluster.json"
    process = start(*LONG, "--json", str(file))
    until(process, "all-reduce, node")
    ranks_of(process)[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    out, err = process.communicate(timeout=600)
    # Long before the limit.
    assert time.monotonic() - began < 120
    assert process.returncode == 1
    assert out == ""
    assert "rank 1 of 2 was killed by signal 9 (SIGKILL" in err
    assert "Nothing is left running" in err
    family.assert_all_gone()
    kept = json.loads(file.read_text())
    assert (kept["lab"], kept["complete"]) == ("measure", False)
    assert len(kept["partial"]["matmul"]) == 6
    with pytest.raises(ValueError, match="complete must be true: that measurement did not finish"):
        measured_cluster.read(file)


def test_ctrl_c_ends_it_and_keeps_what_was_ready(family, tmp_path):
    file = tmp_path / "cluster.json"
    process = start(*LONG, "--json", str(file))
    until(process, "all-reduce, node")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Stopped. Nothing is left running." in err
    assert "copy" in json.loads(file.read_text())["partial"]


# ---- ranks that torchrun started ----


@pytest.fixture
def torchrun(family, monkeypatch):
    """Start torchrun for two ranks on one of two "nodes" of this machine; ended at the test's end."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    port, started = str(free_ports(1)[0]), []

    def launch(node, *arguments):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)]
        command += ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
        process = subprocess.Popen(
            [*command, "-m", "shardlab", "measure", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)


def test_two_nodes_are_measured_apart_and_together(torchrun, tmp_path):
    file = tmp_path / "cluster.json"
    nodes = [torchrun(node, *SMALL, "--json", str(file)) for node in (0, 1)]
    (first, errors), (second, others) = [process.communicate(timeout=600) for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], errors + others
    # Rank 0 speaks for all.
    assert "Collectives by size" in first
    assert second == ""
    made = measured_cluster.read(file)
    assert (made.ranks, made.nodes, made.ranks_per_node) == (4, 2, 2)
    assert made.failed_checks() == []
    groups = {(row.scope, row.ranks) for row in made.timings}
    assert groups == {("node", 2), ("across", 2), ("all", 4)}
    for scope in ("node", "across"):
        assert made.collectives(scope) == list(COLLECTIVES)
    assert POINT_TO_POINT not in made.collectives("all")
    assert made.software.settings["GLOO_SOCKET_IFNAME"] == "lo"
    if made.reading is not None:
        wire = {row.collective: row for row in made.wire}
        assert wire["all-reduce"].sent.predicted == pytest.approx(1.5 * MEBIBYTE)
        assert wire["all-reduce"].sent.as_predicted


# Two namespaces of their own, joined by a cable that carries 200 Mb/s each way; all of it goes with the last process.
SLOW_CABLE = """
set -euo pipefail
mount -t tmpfs tmpfs /run
for node in 0 1; do
  ip netns add node$node
done
ip link add card0 netns node0 type veth peer name card1 netns node1
for node in 0 1; do
  ip -n node$node address add 10.77.0.$((node + 1))/24 dev card$node
  ip -n node$node link set card$node up
  ip -n node$node link set lo up
  tc -n node$node qdisc add dev card$node root tbf rate 200mbit burst 64kb latency 400ms
done
pids=()
for node in 0 1; do
  GLOO_SOCKET_IFNAME=card$node ip netns exec node$node "$1" -m torch.distributed.run --nnodes 2 --node-rank $node \\
    --nproc-per-node 2 --master-addr 10.77.0.1 --master-port 29500 -m shardlab measure --largest '4 MiB' --repeats 3 \\
    --limit-s 600 --json "$2" &
  pids+=($!)
done
for pid in "${pids[@]}"; do
  wait "$pid"
done
"""


def test_ranks_of_a_node_share_its_slow_port(family, monkeypatch, tmp_path):
    try:
        require_namespaces()
    except LabError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # Both ranks of a node send at once: neither has the port of 25 MB/s alone, and together they fill it, unless
    # the processors are so busy with something else that they can't.
    for attempt in range(4):
        made = measured_on_a_slow_cable(tmp_path / f"cluster{attempt}.json")
        across = made.rows("across", "all-reduce")[-1]
        assert 2 * across.busbw < 1.1 * 25e6
        if 2 * across.busbw > 0.6 * 25e6 and made.rows("node", "all-reduce")[-1].busbw > 3 * across.busbw:
            break
    assert 2 * across.busbw > 0.6 * 25e6
    assert made.rows("node", "all-reduce")[-1].busbw > 3 * across.busbw
    # The planner's port, of which collectives get 95 %.
    node = measured_cluster.node_with(made, hardware.node("dgx-h100")).node
    assert node.network_bandwidth == pytest.approx(2 * made.link("across").bandwidth / 0.95)


def measured_on_a_slow_cable(file):
    own = [] if is_root() else ["--map-root-user"]
    command = ["unshare", *own, "--mount", "--net", "bash", "-c", SLOW_CABLE, "measure"]
    done = subprocess.run([*command, sys.executable, str(file)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return measured_cluster.read(file)


def test_of_launched_ranks_that_are_ended_the_file_keeps_what_was_ready(torchrun, tmp_path):
    file = tmp_path / "cluster.json"
    nodes = [torchrun(node, *LONG, "--json", str(file)) for node in (0, 1)]
    until(nodes[0], "all-reduce, node, 16,384")
    rank = next(child for child in psutil.Process(nodes[1].pid).children() if "measure" in child.cmdline())
    rank.send_signal(signal.SIGKILL)
    for process in nodes:
        process.communicate(timeout=600)
        assert process.returncode == 1
    kept = json.loads(file.read_text())
    assert kept["complete"] is False
    assert {"matmul", "copy", "timings", "nodes"} <= set(kept["partial"])
