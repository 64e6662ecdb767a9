"""Logs of nccl-tests: formats of several versions, launcher prefixes, and what should not be trusted."""

from __future__ import annotations

import pytest

from shardlab.models import nccl_log as n
from shardlab.models.collectives import busbw, busbw_factor
from shardlab.models.fit import fit_link

PROGRAMS = {
    "all-reduce": "all_reduce_perf",
    "all-gather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf",
    "all-to-all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
}
TITLES = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"


def short(value):
    """Seven columns, as nccl-tests prints times: fewer decimals for larger numbers."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= 7:
            return text
    return text


def row(n_bytes, us, ranks, collective="all-reduce", wrong="0", in_place_us=None, redop="sum", root="-1"):
    columns = [f"{n_bytes:12d}", f"{n_bytes // 4:12d}", "float", redop, root]
    for time in (us, in_place_us or us):
        algbw = n_bytes / time / 1e3
        columns += [short(time), f"{algbw:.2f}", f"{algbw * busbw_factor(collective, ranks):.2f}", wrong]
    return "  ".join(columns)


def log(
    collective="all-reduce",
    hosts=("node-a", "node-b"),
    per_host=8,
    points=None,
    titles=(TITLES, UNITS),
    tail=(),
):
    ranks = len(hosts) * per_host
    points = points or [(8, 25.0), (1048576, 120.0), (1073741824, 12000.0)]
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
        f"# Collective test starting: {PROGRAMS[collective]}",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank:6d} on {hosts[rank // per_host]:>10} device {rank % per_host:2d} "
        "[0000:0f:00] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]
    lines += ["#", *titles]
    lines += [row(size, us, ranks, collective) for size, us in points]
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 52.9753", "#", *tail]
    return "\n".join(lines)


def test_a_log_of_today():
    table = n.parse(log())
    assert (table.collective, table.n_ranks, table.n_nodes) == ("all-reduce", 16, 2)
    assert [line.n_bytes for line in table.rows] == [8, 1048576, 1073741824]
    last = table.rows[-1].best
    assert last.time_s == pytest.approx(12e-3)
    assert last.algbw == pytest.approx(1073741824 / 12e-3)
    assert last.busbw == pytest.approx(busbw("all-reduce", 1073741824, 12e-3, 16))
    assert table.peak_busbw == last.busbw
    assert table.least_time_s == pytest.approx(25e-6)
    assert table.average_busbw == pytest.approx(52.9753e9)
    assert table.warnings == []
    assert "16 ranks on 2 nodes" in table.text()


@pytest.mark.parametrize("collective", list(PROGRAMS))
def test_every_program_is_told_from_the_others(collective):
    table = n.parse(log(collective))
    assert table.collective == collective
    assert table.warnings == []


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", " 3: ", "2024-05-01T10:00:00.123Z ", "node-a | "]
)
def test_prefixes_of_launchers_are_skipped(prefix):
    plain = log()
    table = n.parse("\n".join([prefix + line for line in plain.split("\n")]))
    assert table.rows == n.parse(plain).rows


def test_the_faster_of_out_of_place_and_in_place_counts():
    text = log(points=[(1073741824, 12000.0)]).replace(
        row(1073741824, 12000.0, 16), row(1073741824, 12000.0, 16, in_place_us=11000.0)
    )
    table = n.parse(text)
    assert table.rows[0].out_of_place.time_s == pytest.approx(12e-3)
    assert table.rows[0].in_place.time_s == pytest.approx(11e-3)
    assert table.rows[0].best is table.rows[0].in_place


def test_an_old_log_without_root_and_with_an_error_column():
    text = "\n".join(
        [
            "# nThread 1 nGpus 2 minBytes 33554432 maxBytes 134217728 step: 2(factor) warmup iters: 20 iters: 100 validation: 0",
            "#   Rank  0 Pid  29565 on      server device  0 [0x01] A40",
            "#   Rank  1 Pid  29565 on      server device  1 [0x25] A40",
            "#                                                     out-of-place                       in-place",
            "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
            "    33554432       8388608   float     sum   2000.0   16.78   16.78  0e+00   2100.0   15.98   15.98  0e+00",
            "   134217728      33554432   float     sum   7000.0   19.17   19.17    N/A   7100.0   18.90   18.90    N/A",
        ]
    )
    table = n.parse(text, collective="all-reduce")
    assert (table.n_ranks, table.n_nodes) == (2, 1)
    assert [line.best.time_s for line in table.rows] == pytest.approx([2e-3, 7e-3])
    assert table.rows[0].out_of_place.n_wrong == 0
    assert table.rows[1].out_of_place.n_wrong is None


def test_a_blank_reduction_column_does_not_shift_the_numbers():
    text = log("all-gather").replace("  sum  -1", "             ")
    assert n.parse(text).rows[-1].best.time_s == pytest.approx(12e-3)


def test_rows_alone_are_enough_when_ranks_follow_from_the_ratio():
    table = n.parse("\n".join([row(1073741824, 35215, 16), row(536870912, 18000, 16)]))
    assert (table.collective, table.n_ranks, table.n_nodes) == ("all-reduce", 16, None)
    assert "16 ranks follow from busbw / algbw" in table.warnings[0]
    assert [line.n_bytes for line in table.rows] == [536870912, 1073741824]


def test_ranks_that_do_not_follow_must_be_said():
    text = row(1073741824, 35215, 8, "broadcast")
    with pytest.raises(ValueError, match="say how many ranks ran with n_ranks="):
        n.parse(text, collective="broadcast")
    assert n.parse(text, collective="broadcast", n_ranks=8).n_ranks == 8


def test_processes_that_each_ran_alone_are_noticed():
    text = log().replace("Rank  0", "Rank  X")
    for rank in range(1, 16):
        text = text.replace(f"Rank {rank:2d}", "Rank  0")
    table = n.parse(text.replace("Rank  X", "Rank  0"))
    assert table.n_ranks == 1
    assert "did not communicate. Build nccl-tests with MPI=1" in table.warnings[0]
    assert table.samples() == []


def test_wrong_results_make_the_speeds_worthless():
    text = log().replace(row(1048576, 120.0, 16), row(1048576, 120.0, 16, wrong="12"))
    assert any("WRONG" in warning for warning in n.parse(text).warnings)
    assert any("WRONG" in warning for warning in n.parse(log().replace(": 0 OK", ": 4 FAILED")).warnings)


def test_times_in_another_unit_are_noticed_and_the_numbers_recomputed():
    text = log(points=[(1073741824, 12000.0)]).replace("12000.0", "12.0")
    table = n.parse(text)
    assert any("algbw is not size over time" in warning for warning in table.warnings)
    assert table.rows[0].best.algbw == pytest.approx(1073741824 / 12e-6)


def test_a_bus_bandwidth_of_another_number_of_ranks_is_noticed():
    table = n.parse(log(points=[(1073741824, 12000.0)]), n_ranks=2)
    assert any("busbw is not that of a all-reduce on 2 ranks" in warning for warning in table.warnings)


def test_small_buffers_only_are_noticed():
    assert any(
        "too small to see the bandwidth" in w
        for w in n.parse(log(points=[(8, 25.0), (65536, 40.0)])).warnings
    )


def test_several_runs_are_told_apart():
    both = log(hosts=("a",)) + "\n" + log(hosts=("a", "b"))
    with pytest.raises(ValueError, match="one run, and it holds several: parse the parts of split_runs"):
        n.parse(both)
    assert [n.parse(part).n_ranks for part in n.split_runs(both)] == [8, 16]
    with pytest.raises(ValueError, match="names all-reduce, all-gather"):
        n.parse(log() + "\n" + log("all-gather"), n_ranks=16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text must be the output of an nccl-tests program, not ''"),
        (None, "text must be the output of an nccl-tests program, not None"),
        ("all is well", "no such row was found"),
        ('{"config": {"nthreads": 1}}', "JSON output is not read"),
        ("# sendrecv_perf\n" + row(1073741824, 35215, 2), "text is the output of sendrecv_perf"),
        (row(1073741824, 35215, 16, "all-gather"), "say which collective it is"),
    ],
)
def test_what_cannot_be_read_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        n.parse(text)


def test_an_unknown_collective_lists_what_there_is():
    with pytest.raises(ValueError, match=r"collective must be one of all-reduce, .*, not 'allreduce'"):
        n.parse(log(), collective="allreduce")


def test_times_between_rows():
    table = n.parse(log(points=[(1000000, 100.0), (3000000, 200.0), (100000000, 5000.0)]))
    assert table.time_s(1) == pytest.approx(100e-6), "latency does not shrink below the smallest row"
    assert table.time_s(2000000) == pytest.approx(150e-6)
    assert table.time_s(3000000) == pytest.approx(200e-6)
    assert table.time_s(1e9) == pytest.approx(50e-3), "beyond the largest row its bandwidth holds"


def test_samples_fit():
    points = [(4 * 10**k, 30 + 4e-4 * 10**k) for k in range(1, 9)]
    link = fit_link(n.parse(log(points=points)).samples())
    assert link.latency_s == pytest.approx(1e-6, rel=0.02)
    assert link.bandwidth == pytest.approx(1.875 * 1e4 * 1e6, rel=0.02)
