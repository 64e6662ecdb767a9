"""The file of ``shardlab measure``: kept, refused when bad, and used by ``plan`` and ``diagnose``."""

import dataclasses
import importlib
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from shardlab import hardware, measured_cluster
from shardlab.cli import app
from shardlab.labs import LabError, measure_cluster
from shardlab.labs.machine import stamp
from shardlab.labs.measure_result import (
    COLLECTIVES,
    POINT_TO_POINT,
    Copy,
    Device,
    LeftOut,
    MeasuredCluster,
    Product,
    Software,
    Timing,
    Wire,
)
from shardlab.labs.sent import Sent
from shardlab.models import plan
from shardlab.models.collectives import busbw, collective_time_s
from shardlab.models.kernels import CONSTANTS, group_bandwidth, rates
from shardlab.transformer import preset

SIZES = [2**12 * 4**step for step in range(10)]
ALGORITHMS = {
    "all-reduce": "ring",
    "all-gather": "ring",
    "reduce-scatter": "ring",
    "all-to-all": "direct",
}
# Scope: (ranks of a group, bandwidth, latency of a message).
TWO_NODES = {"node": (8, 300e9, 4e-6), "across": (2, 40e9, 15e-6), "all": (16, 280e9, 6e-6)}
ONE_NODE = {"node": (8, 300e9, 4e-6)}


def timings(scopes):
    rows = []
    for scope, (ranks, bandwidth, latency_s) in scopes.items():
        for name in COLLECTIVES:
            for size in SIZES:
                if name == POINT_TO_POINT:
                    seconds = latency_s + size / bandwidth
                else:
                    seconds = collective_time_s(name, ALGORITHMS[name], size, ranks, bandwidth, latency_s)
                rows.append(
                    Timing(
                        scope=scope,
                        collective=name,
                        ranks=ranks,
                        n_bytes=size,
                        seconds=seconds,
                        low_s=0.9 * seconds,
                        high_s=1.2 * seconds,
                        repeats=9,
                        calls=20,
                        correct=True,
                    )
                )
    return tuple(rows)


def product(seconds, dtype="bf16", slowest=1.0):
    return Product(
        dtype=dtype, m=8192, k=8192, n=8192, slowest_s=slowest * seconds, slowest_rank=3, middle_s=seconds,
        fastest_s=0.99 * seconds,
    )  # fmt: skip


def cluster(scopes=None, **changes):
    """A file as two nodes of eight H100 would leave it."""
    scopes = TWO_NODES if scopes is None else scopes
    nodes = 2 if "across" in scopes else 1
    made = MeasuredCluster(
        settings={"ranks": 8 * nodes, "smallest": "4 KiB", "largest": None, "repeats": 9},
        stamp=stamp(),
        backend="nccl",
        reading=None,
        threads=1,
        elapsed_s=61.5,
        time="2026-11-30T20:00:00+00:00",
        ranks=8 * nodes,
        nodes=nodes,
        ranks_per_node=8,
        device=Device(name="NVIDIA H100 80GB HBM3", kind="cuda", memory_bytes=85.0e9, others=(), gpus_seen=8),
        software=Software(cuda="12.8", nccl="2.27.3", settings={"NCCL_SOCKET_IFNAME": "eth0"}),
        timings=timings(scopes),
        left_out=(),
        wire=(),
        matmul=(product(1.7e-3), product(2.4e-3), product(25e-3, "fp32")),
        copy=(Copy(n_bytes=2**30, slowest_s=0.75e-3, slowest_rank=0, middle_s=0.74e-3, fastest_s=0.73e-3),),
    )
    return dataclasses.replace(made, **changes)


ON_CPU = {
    "backend": "gloo",
    "device": Device(name="AMD EPYC", kind="cpu", memory_bytes=16e9, others=(), gpus_seen=0),
}


@pytest.fixture
def keep(tmp_path):
    """Write a file and return its path."""

    def write(made=None, **changes):
        file = tmp_path / "cluster.json"
        file.write_text((cluster(**changes) if made is None else made).to_json())
        return file

    return write


def shardlab(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# ---- what a file says ----


def test_bus_bandwidths_are_those_of_nccl_tests():
    for row in cluster().timings:
        assert row.algbw == row.n_bytes / row.seconds
        if row.collective == POINT_TO_POINT:
            assert row.busbw == row.algbw
        else:
            assert row.busbw == busbw(row.collective, row.n_bytes, row.seconds, row.ranks)


def test_the_line_behind_the_times_is_found_again():
    made = cluster()
    for scope, (_, bandwidth, latency_s) in TWO_NODES.items():
        for name in COLLECTIVES:
            fitted = made.fit(scope, name)
            assert fitted.latency_s == pytest.approx(latency_s, rel=1e-6), (scope, name)
            assert fitted.bandwidth == pytest.approx(bandwidth, rel=1e-6), (scope, name)


def test_a_link_is_the_fit_where_that_is_good_and_what_was_measured_where_not():
    link = cluster().link("node")
    # Fourteen messages follow each other in a ring of eight.
    assert link.fixed_s == pytest.approx(14 * 4e-6, rel=1e-6)
    assert link.bandwidth == pytest.approx(300e9, rel=1e-6)
    assert "α–β fit" in link.how
    # A library that changes its protocol: every time from 1 MiB on is three times the line's.
    bent = tuple(
        [
            dataclasses.replace(row, seconds=row.seconds * (3 if row.n_bytes in SIZES[3:6] else 1))
            for row in cluster().timings
        ]
    )
    made = cluster(timings=bent)
    link = made.link("node")
    largest = made.rows("node", "all-reduce")[-1]
    assert link.bandwidth == largest.busbw
    assert link.fixed_s == min(row.seconds for row in made.rows("node", "all-reduce"))
    assert "no α–β line describes it" in link.how
    assert "do not describe the times: all-reduce inside a node" in "\n".join(made.explanation())


def test_what_the_sizes_do_not_show_is_not_made_up():
    # The smallest buffer is bound by bandwidth; or the largest by latency.
    quick = timings({"node": (8, 300e9, 1e-6)})
    large = tuple([row for row in quick if row.n_bytes >= 2**26])
    assert cluster(timings=large).link("node").fixed_s is None
    small = tuple([row for row in cluster().timings if row.n_bytes <= 2**16])
    assert cluster(timings=small).link("node").bandwidth is None
    words = "\n".join(cluster(timings=small).explanation())
    assert "do not show both a latency and a bandwidth" in words


def test_the_report_names_latency_bandwidth_and_what_to_type_next():
    made = cluster(scopes=ONE_NODE)
    words = "\n".join(made.explanation())
    assert (
        "A call costs 56 µs whatever its size, and then 300 GB/s (2.4 Tb/s) per rank and direction" in words
    )
    # 56 µs at 300 GB/s and 7/4 of the buffer on the wire: 9.6 MB.
    assert "Up to about 9.6 MB the start takes longer than the bytes" in words
    # 2 * 8192^3 in 1.7 ms, and the median of that and of 2.4 ms.
    assert "647 TFLOP/s at best in bf16, 552 TFLOP/s typically (median of 2 shapes)" in words
    assert "shardlab plan --measured FILE" in words
    text = str(made.table())
    assert [caption in text for caption in ("Collectives by size", "The α–β line", "One device")] == [
        True
    ] * 3
    assert len(made.table("node").tables[0].rows) == len(COLLECTIVES) * len(SIZES)


def test_the_report_names_what_is_wrong():
    slow = cluster(matmul=(product(1.7e-3, slowest=1.12),))
    assert "Rank 3 is 12% slower than the middle rank" in "\n".join(slow.explanation())
    mixed = cluster(device=dataclasses.replace(cluster().device, others=("NVIDIA A100",)))
    assert "The devices differ: NVIDIA H100 80GB HBM3 and NVIDIA A100" in "\n".join(mixed.explanation())
    hidden = cluster(**{**ON_CPU, "device": dataclasses.replace(ON_CPU["device"], gpus_seen=1)})
    assert "Rank 0 sees 1 GPU, but each rank of its node needs" in "\n".join(hidden.explanation())
    assert "Rank 0 sees" not in "\n".join(cluster(**ON_CPU).explanation())
    left = LeftOut(scope="all", collective="all-to-all", ranks=16, n_bytes=2**26)
    assert "all-to-all over all ranks from 67.11 MB on" in "\n".join(cluster(left_out=(left,)).explanation())
    rows = cluster().timings
    broken = cluster(timings=(dataclasses.replace(rows[0], correct=False), *rows[1:]))
    assert broken.failed_checks() == [
        "all-reduce, inside a node, 4.096 kB: a wrong result on at least one rank"
    ]
    assert cluster().failed_checks() == []


def test_a_collective_that_sends_more_than_its_name_says_is_named():
    sent = Sent(messages=3, predicted_bytes=(3e6,) * 4, kernel_bytes=(6.001e6,) * 4)
    made = cluster(**ON_CPU, reading="ss", wire=(Wire("reduce-scatter", 4_000_000, sent),))
    words = "\n".join(made.explanation())
    assert "gloo's reduce-scatter puts 2.00 times the textbook's bytes on the wire" in words
    assert "+100.03%" in str(made.table("wire"))


def test_one_rank_has_devices_and_no_link():
    alone = cluster(timings=(), ranks=1, nodes=1, ranks_per_node=1)
    assert list(alone.make_tables()) == ["devices"]
    assert "With one rank there is no link to measure" in alone.explanation()[0]
    assert MeasuredCluster.from_json(alone.to_json()) == alone


# ---- reading it ----


def test_a_file_is_read_as_it_was_written(keep):
    for made in (cluster(), cluster(scopes=ONE_NODE, **ON_CPU)):
        assert measured_cluster.read(keep(made)) == made
    written = json.loads(keep().read_text())
    assert (written["lab"], written["schema"], written["complete"]) == ("measure", 1, True)
    # For other programs.
    assert {"scope": "node", "collective": "all-reduce", "ranks": 8}.items() <= written["links"][0].items()


def changed(path, value):
    """The file's text with one entry set; a value of ... deletes it."""
    data = json.loads(cluster().to_json())
    *way, last = path
    inner = data
    for step in way:
        inner = inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "and is no JSON"),
        ("[1, 2]", "its field lab must be 'measure'"),
        (changed(["lab"], "ring"), "its field lab must be 'measure'"),
        (changed(["complete"], False), "complete must be true"),
        (changed(["schema"], 0), "schema must be 1, not 0: another version of shardlab wrote it"),
        (changed(["schema"], ...), "schema must be 1, not None"),
        (changed(["ranks"], ...), "required field missing @ {file}.ranks"),
        (changed(["speed"], 3), "extra fields found (speed) @ {file}"),
        (changed(["timings", 3, "seconds"], "fast"), "expected float @ {file}.timings[3].seconds"),
        (changed(["timings", 3, "seconds"], -1.0), "seconds must be a finite number above 0 seconds, not -1.0 @ {file}.timings[3]"),
        (changed(["timings", 0, "high_s"], float("inf")), "high_s must be a finite number above 0 seconds, not inf @ {file}.timings[0]"),
        (changed(["timings", 0, "scope"], "rack"), "scope must be one of 'node', 'across', 'all', not 'rack' @ {file}.timings[0]"),
        (changed(["timings", 0, "ranks"], 1), "ranks must be a whole number of at least 2, not 1"),
        (changed(["device", "kind"], "tpu"), "kind must be one of 'cpu', 'cuda', not 'tpu' @ {file}.device"),
        (changed(["backend"], "mpi"), "backend must be one of 'gloo', 'nccl', not 'mpi'"),
        (changed(["ranks_per_node"], 5), "ranks_per_node must be ranks / nodes = 16/2"),
        (changed(["matmul"], []), "matmul must hold at least one row of bf16"),
        (changed(["copy"], []), "copy must hold at least one row"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_name_the_field_and_what_is_allowed(tmp_path, text, words):
    file = tmp_path / "cluster.json"
    file.write_text(text)
    answer = shardlab(*DIAGNOSE, "--measured", file)
    assert answer.exit_code == 2
    assert str(file) in answer.stderr
    assert words.format(file=file) in answer.stderr
    assert "Traceback" not in answer.output


def test_a_missing_file_is_named():
    for command in (DIAGNOSE, PLAN):
        answer = shardlab(*command, "--measured", "no-such.json")
        assert answer.exit_code == 2
        assert "--measured must name a file that can be read, not 'no-such.json'" in answer.stderr


# ---- plan ----

PLAN = ["plan", "--model", "llama3-8b", "--node", "dgx-h100", "--gpus", "16", "--global-batch", "64"]
PLAN += ["--sequence", "4096", "--top", "2"]


def test_the_planner_gets_back_what_was_measured():
    made = measured_cluster.node_with(cluster(), hardware.node("dgx-h100"))
    assert made.doubts == ()
    measured = hardware.cluster_of(made.node, 16)
    # A tensor-parallel group that fills the node: the ring's bandwidth, and its fixed cost.
    speed, latency = group_bandwidth(measured, 8, 1, CONSTANTS.network_efficiency)
    assert speed == pytest.approx(300e9, rel=1e-6)
    assert latency == pytest.approx(14 * 4e-6, rel=1e-6)
    # Eight groups of one rank a node, all at once: what each of them reached, where the start costs two messages.
    speed, latency = group_bandwidth(measured, 2, 8, CONSTANTS.network_efficiency)
    assert speed == pytest.approx(40e9, rel=1e-6)
    assert latency == pytest.approx(max(2 * 15e-6, latency), rel=1e-6)
    assert rates(measured).matmul == pytest.approx(
        2 * 8192**3 / 1.7e-3 * 0.85 * CONSTANTS.matmul_efficiency, rel=1e-9
    )
    before = hardware.node("dgx-h100").accelerator
    for name in ("peak_flops", "sustained", "memory_bytes", "memory_bandwidth"):
        assert getattr(made.node.accelerator, name) == getattr(before, name)


def test_the_latency_of_the_network_is_what_the_node_does_not_explain():
    scopes = {**TWO_NODES, "across": (2, 40e9, 100e-6)}
    made = measured_cluster.node_with(cluster(scopes=scopes), hardware.node("dgx-h100"))
    _, latency = group_bandwidth(hardware.cluster_of(made.node, 16), 2, 8, CONSTANTS.network_efficiency)
    assert latency == pytest.approx(2 * 100e-6, rel=1e-6)


def test_plan_says_where_each_number_is_from_and_ranks_by_it(keep, tmp_path):
    out = tmp_path / "plan.json"
    file = keep()
    answer = shardlab(*PLAN, "--measured", file, "--json", out)
    assert answer.exit_code == 0, answer.output
    node = measured_cluster.node_with(cluster(), hardware.node("dgx-h100")).node
    expected = plan.search(preset("llama3-8b"), hardware.cluster_of(node, 16), 64, 4096, top=2)
    assert expected.text in answer.stdout
    unmeasured = plan.search(preset("llama3-8b"), hardware.cluster("dgx-h100", 16), 64, 4096, top=2)
    assert expected.best.step_time_s > 1.1 * unmeasured.best.step_time_s
    for words in (
        "16 ranks on 2 nodes",
        "measured  matrix products 647 TFLOP/s",
        "preset 795 TFLOP/s",
        "measured  link in the node 319 GB/s (so that 8 ranks reach 300 GB/s)",
        "measured  network 2.56 Tb/s a node in collectives",
        "preset    memory 80 GB, its bandwidth 3.35 TB/s (copies were measured at 2.86 TB/s, 85 % of it",
    ):
        assert words in answer.stdout, words
    assert "WARNING" not in answer.output
    written = json.loads(out.read_text())
    assert written["tried"] == expected.tried
    assert any("measured  network" in line for line in written["origins"])


def test_what_was_not_measured_stays_the_presets(keep):
    answer = shardlab(*PLAN, "--measured", keep(scopes=ONE_NODE))
    assert answer.exit_code == 0, answer.output
    assert "preset    network 8 x 400 Gb/s: the file is of one node" in answer.stdout
    made = measured_cluster.node_with(cluster(scopes=ONE_NODE), hardware.node("dgx-h100"))
    assert made.node.nic == hardware.node("dgx-h100").nic
    # One rank on each of two nodes: the other way round, and seven GPUs that did not send.
    apart = cluster(scopes={"across": (2, 40e9, 15e-6)}, ranks=2, nodes=2, ranks_per_node=1)
    made = measured_cluster.node_with(apart, hardware.node("dgx-h100"))
    assert made.node.intra == hardware.node("dgx-h100").intra
    assert "measured with 1 of 8 GPUs a node, so the ports may carry more" in "\n".join(made.origins)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (ON_CPU, "it was measured with gloo on a CPU (AMD EPYC)"),
        (
            {
                "device": Device(
                    name="NVIDIA A100-SXM4-80GB", kind="cuda", memory_bytes=85e9, others=(), gpus_seen=8
                )
            },
            "it was measured on NVIDIA A100-SXM4-80GB, and dgx-h100 has H100-80GB",
        ),
        (
            {
                "device": Device(
                    name="NVIDIA H100 NVL", kind="cuda", memory_bytes=101e9, others=(), gpus_seen=8
                )
            },
            "its GPUs have 101 GB, and those of dgx-h100 80 GB",
        ),
        ({"matmul": (product(1e-3),)}, "more than the dense peak of H100-80GB, 989 TFLOP/s"),
        ({"ranks": 32, "ranks_per_node": 16}, "it has 16 ranks a node, and dgx-h100 has 8 GPUs"),
    ],
)
def test_a_file_of_other_hardware_is_refused_unless_asked_for(keep, changes, words):
    file = keep(**changes)
    answer = shardlab(*PLAN, "--measured", file)
    assert answer.exit_code == 2
    assert words in answer.stderr
    assert "--measured-anyway" in answer.stderr
    assert "layouts tried" not in answer.stdout
    answer = shardlab(*PLAN, "--measured", file, "--measured-anyway")
    assert answer.exit_code == 0, answer.output
    warning = next(line for line in answer.stdout.splitlines() if "WARNING" in line)
    assert "this ranking is not of dgx-h100" in warning
    assert words in warning


@pytest.mark.parametrize(
    ("name", "memory_bytes", "node", "fits"),
    [
        ("NVIDIA H100 80GB HBM3", 85.0e9, "dgx-h100", True),
        ("NVIDIA A100-SXM4-80GB", 85.1e9, "dgx-a100", True),
        ("NVIDIA A100-SXM4-40GB", 42.3e9, "p4d", True),
        ("NVIDIA A100-SXM4-40GB", 42.3e9, "dgx-a100", False),
        ("NVIDIA H200", 150.1e9, "dgx-h200", True),
        ("NVIDIA B200", 191.5e9, "dgx-b200", True),
        # Its name holds B200, and it is another chip.
        ("NVIDIA GB200", 191.5e9, "dgx-b200", False),
    ],
)
def test_a_devices_name_and_memory_tell_the_chip(name, memory_bytes, node, fits):
    made = cluster(device=Device(name=name, kind="cuda", memory_bytes=memory_bytes, others=(), gpus_seen=8))
    # Slow enough for the slowest of these chips.
    made = dataclasses.replace(made, matmul=(product(4e-3),))
    assert (measured_cluster.doubts(made, hardware.node(node)) == ()) is fits


def test_the_flag_needs_a_file():
    answer = shardlab(*PLAN, "--measured-anyway")
    assert answer.exit_code == 2
    assert "--measured-anyway needs --measured" in answer.stderr


# ---- diagnose ----

DIAGNOSE = ["diagnose", "--ranks", "16", "--step", "130 ms", "--base-step", "100 ms", "--scaling", "weak"]
DIAGNOSE += ["--gradients", "4 GB"]


def test_diagnose_holds_the_run_against_what_this_cluster_can_do(keep, tmp_path):
    out = tmp_path / "diagnosis.json"
    answer = shardlab(*DIAGNOSE, "--measured", keep(), "--json", out)
    assert answer.exit_code == 0, answer.output
    written = json.loads(out.read_text())
    assert written["nominal_bandwidth"] == pytest.approx(280e9, rel=1e-6)
    assert written["benchmark_busbw"] == pytest.approx(280e9, rel=0.03)
    assert "all-reduce on 16 ranks, over all ranks: α–β fit" in written["link"]
    assert (
        '"nominal" and "the link you named" mean this, and "benchmark" the all-reduce times' in answer.stdout
    )
    # 27 ms of benchmark hide under 100 ms of compute, but 30 ms were lost.
    assert written["verdict"]["code"] == "communication-exposed"


def test_a_run_in_one_node_is_held_against_the_nodes_link(keep, tmp_path):
    out = tmp_path / "diagnosis.json"
    arguments = [*DIAGNOSE[:2], "8", *DIAGNOSE[3:], "--json", out]
    assert shardlab(*arguments, "--measured", keep()).exit_code == 0
    assert json.loads(out.read_text())["nominal_bandwidth"] == pytest.approx(300e9, rel=1e-6)
    # The same ranks on two nodes: the link over all ranks, and no benchmark of just as many.
    assert shardlab(*arguments, "--nodes", "2", "--measured", keep()).exit_code == 0
    written = json.loads(out.read_text())
    assert written["nominal_bandwidth"] == pytest.approx(280e9, rel=1e-6)
    assert written["benchmark_s"] is None
    assert "The run has 8 ranks: a ring of other length may get less or more" in written["link"]


def test_one_node_says_nothing_about_several(keep):
    file = keep(scopes=ONE_NODE)
    for nodes in ([], ["--nodes", "2"]):
        answer = shardlab(*DIAGNOSE, *nodes, "--measured", file)
        assert answer.exit_code == 2
        assert "says nothing about links between nodes" in answer.stderr
    answer = shardlab(*DIAGNOSE, "--nodes", "1", "--measured", file)
    assert answer.exit_code == 0, answer.output
    assert "measured by" in answer.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"timings": (), "ranks": 1, "nodes": 1, "ranks_per_node": 1}, "was measured on one rank and shows no link"),
        (
            {"timings": tuple([row for row in cluster().timings if row.n_bytes <= 2**16])},
            "does not show the bandwidth over all ranks",
        ),
    ],
)  # fmt: skip
def test_a_file_that_does_not_show_the_link_is_refused(keep, changes, words):
    answer = shardlab(*DIAGNOSE, "--measured", keep(**changes))
    assert answer.exit_code == 2
    assert words in answer.stderr


def test_a_cpu_file_is_marked_as_one(keep):
    answer = shardlab(*DIAGNOSE, "--measured", keep(**ON_CPU))
    assert answer.exit_code == 0
    assert "gloo on CPUs was measured: compare a run on gloo" in answer.stdout


@pytest.mark.parametrize("other", [["--link", "10 GB/s"], ["--log", "nccl.log"]])
def test_two_links_at_once_are_refused(keep, other, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl.log").write_text("#  size  time\n")
    answer = shardlab(*DIAGNOSE, "--measured", keep(), *other)
    assert answer.exit_code == 2


# ---- measure ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "0"], "ranks must be a whole number from 1 to 64, not 0"),
        (["--ranks", "65"], "ranks must be a whole number from 1 to 64, not 65"),
        (["--repeats", "2"], "repeats must be a whole number from 3 to 1000, not 2"),
        (["--smallest", "4 Gb"], "smallest"),
        (["--smallest", "1 MiB", "--largest", "4 MiB"], "largest must be at least 16 times smallest"),
        (["--limit-s", "-1"], "limit_s must be a finite number above 0 seconds, not -1"),
        (
            ["--json", "/no/such/folder/out.json"],
            "--json must name a file in a folder that can be written to",
        ),
    ],
)
def test_wrong_usage_of_measure_is_told(arguments, words):
    answer = shardlab("measure", *arguments)
    assert answer.exit_code == 2
    assert words in answer.stderr


def test_without_torch_nothing_is_measured_and_nothing_is_shown_instead(tmp_path):
    out = tmp_path / "cluster.json"
    code = "import sys\nsys.modules['torch'] = None\nfrom shardlab.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, "measure", "--ranks", "2", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 3
    assert "torch is not installed, so no process was started" in done.stderr
    assert done.stdout == ""
    assert not out.exists()


@pytest.fixture
def launched(monkeypatch):
    """As rank 70 of 128 that torchrun has started."""
    settings = {"RANK": "70", "WORLD_SIZE": "128", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def test_launched_ranks_may_be_as_many_as_there_are(launched, monkeypatch):
    asked = {}

    def stop(worker, params, limit_s, threads):
        asked.update(params)
        raise LabError("seen", cause="measurement")

    # The module: shardlab.labs.run is the function, and hides it.
    runner = importlib.import_module("shardlab.labs.run")
    monkeypatch.setattr(runner, "run_launched", stop)
    monkeypatch.setattr(runner.machine, "torch_installed", lambda: True)
    with pytest.raises(LabError, match="seen"):
        measure_cluster.measure(largest="1 GiB", keep_in="/shared/cluster.json")
    assert (asked["largest"], asked["keep_in"]) == (2**30, "/shared/cluster.json")
    with pytest.raises(ValueError, match="ranks must be 128, the number of ranks that were launched, not 64"):
        measure_cluster.measure(ranks=64)
