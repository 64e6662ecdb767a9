"""The slow-network lab: namespaces that leave nothing behind, cables held to a rate, and where more ranks lose."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from shardlab import labs
from shardlab.labs import netns
from shardlab.labs.run import LabError
from shardlab.labs.slow_network import SlowNetworkRun
from shardlab.models.collectives import ring_allreduce_sent_bytes, ring_allreduce_time_s

pytestmark = pytest.mark.timeout(1200)
P = 4 * 8 * (512 * 512 + 512)
MODULE = sys.modules["shardlab.labs.slow_network"]
QUICK = {"mbit_s": (800, 200), "batch": 24, "compute_s": 0.05, "steps": 2, "limit_s": 600, "show": False}


def require_namespaces():
    try:
        netns.require_namespaces()
    except LabError as error:
        pytest.skip(str(error))


def own_devices():
    """The machine's own network devices of the names that the lab gives: others may come and go meanwhile."""
    listing = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    names = [line.split(":")[1].strip().partition("@")[0] for line in listing.splitlines()]
    return [name for name in names if re.fullmatch(rf"{netns.CARD}|switch|port\d+", name)]


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    require_namespaces()
    before = own_devices()
    run = labs.slow_network.function(4, **QUICK)
    # The machine's own network has nothing more than before.
    assert own_devices() == before
    return run


@pytest.fixture(scope="module")
def recorded():
    return labs.slow_network.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_training_equals_one_process_at_every_rate(measured):
    assert [(row.mbit_s, row.ranks) for row in measured.steps] == [
        (None, 1), (None, 2), (None, 4), (800, 2), (800, 4), (200, 2), (200, 4),
    ]  # fmt: skip
    assert all(row.parameter_gap <= 1e-6 for row in measured.steps)
    assert measured.steps[1].parameter_gap > 0
    assert measured.failed_checks() == []


@pytest.mark.torch
def test_the_rate_changes_no_byte(measured):
    assert measured.n_bytes == P
    for row in measured.steps:
        assert row.predicted_bytes == ring_allreduce_sent_bytes(P, row.ranks)
        assert len(row.kernel_bytes) == row.ranks
        assert list(row.kernel_bytes) == pytest.approx([row.predicted_bytes] * row.ranks, rel=0.01)


@pytest.mark.torch
def test_nothing_passes_faster_than_the_cable_lets_it(measured):
    # A law of the token bucket, whatever else the machine does: no statement about how slow it may be.
    for row in measured.link:
        rate = row.mbit_s * 1e6 / 8
        sent = ring_allreduce_sent_bytes(row.n_bytes, row.ranks)
        assert sent <= 1.1 * (rate * row.seconds + netns.burst_bytes(rate))


@pytest.mark.torch
def test_the_link_is_fitted_on_part_and_predicts_the_rest(measured):
    assert {row.ranks for row in measured.link} == {2, 3, 4}
    assert {row.ranks for row in measured.link if row.fitted} == {2, 4}
    assert len([row for row in measured.link if row.fitted]) == 2 * 2 * 3
    assert len(measured.link) == 2 * 3 * 5
    for row in measured.link:
        link = measured.rate(row.mbit_s)
        predicted = ring_allreduce_time_s(row.n_bytes, row.ranks, link.bandwidth, link.latency_s)
        assert row.predicted_s == pytest.approx(predicted, rel=1e-9)


@pytest.mark.torch
def test_a_run_survives_json(measured):
    assert SlowNetworkRun.from_json(measured.to_json()) == measured
    assert json.loads(measured.to_json())["complete"] is True
    assert measured.reading in ("ss", "TCP_INFO")


@pytest.mark.torch
def test_who_is_not_root_becomes_root_of_a_user_namespace(family, monkeypatch):
    monkeypatch.setattr(netns, "is_root", lambda: False)
    require_namespaces()
    run = labs.slow_network.function(2, **{**QUICK, "mbit_s": [400], "steps": 1})
    assert [(row.mbit_s, row.ranks) for row in run.steps] == [(None, 1), (None, 2), (400, 2)]
    assert run.failed_checks() == []


@pytest.mark.torch
def test_without_root_what_a_rank_says_arrives(family, monkeypatch):
    monkeypatch.setattr(netns, "is_root", lambda: False)
    require_namespaces()
    with pytest.raises(LabError, match="KeyError: 'teams'") as caught:
        netns.run_as_own_root(MODULE.WORKER, 2, {}, limit_s=600, start="fork")
    assert caught.value.cause == "error"


@pytest.mark.torch
@pytest.mark.parametrize("root", [True, False])
def test_a_killed_caller_leaves_neither_process_nor_device(family, root):
    require_namespaces()
    before = own_devices()
    script = (
        "import sys; from shardlab.labs import netns, slow_network\n"
        f"netns.is_root = lambda: {root}\n"
        "print('up', flush=True); slow_network.function(2, compute_s=500.0, limit_s=600, show=False)"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with caller:
        assert caller.stdout.readline() == "up\n"
        wait_for_namespaces(family, 2)
        os.kill(caller.pid, signal.SIGKILL)
    family.assert_all_gone()
    assert own_devices() == before


def wait_for_namespaces(family, n):
    """Until ``n`` processes of the test are in network namespaces other than ours and than each other's."""
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        found = set()
        for entry in family.living():
            try:
                found.add(os.readlink(f"/proc/{entry.split()[0]}/ns/net"))
            except OSError:
                continue
        if len(found - {own}) >= n:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {n} namespaces came up")


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.settings["ranks"] == 4
    assert recorded.settings["mbit_s"] == [2000, 200]


def test_more_ranks_are_slower_where_the_cables_are_slow(recorded):
    assert recorded.step_row(None, 4).speedup > 1
    slow = recorded.step_row(200, 4)
    assert slow.speedup < 1
    assert slow.predicted_speedup < 1
    assert f"a speedup of {slow.speedup:.2f}: more ranks are slower" in " ".join(recorded.explanation())


@pytest.mark.parametrize("name", ["steps", "link", "wire"])
def test_each_table_says_where_its_numbers_are_from(recorded, name):
    table = recorded.table(name)
    assert recorded.provenance() in str(table)
    assert "200 Mbit/s" in str(table)
    assert "2 Gbit/s" in str(table)


def test_the_bracket_holds_the_prediction(recorded):
    for row in recorded.steps:
        assert row.fastest_s <= row.predicted_s * (1 + 1e-9)
        assert row.predicted_s <= row.slowest_s * 1.1


def _first(rows, **changes):
    return (dataclasses.replace(rows[0], **changes), *rows[1:])


def _last(rows, **changes):
    return (*rows[:-1], dataclasses.replace(rows[-1], **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: {"steps": _first(run.steps, parameter_gap=1e-3)},
            "No limit, 1 rank: training is not equal to one process",
        ),
        (
            lambda run: {"steps": _last(run.steps, parameter_gap=float("nan"))},
            "200 Mbit/s, 4 ranks: training is not equal",
        ),
        (
            lambda run: {"steps": _last(run.steps, kernel_bytes=(1.5 * P, 1.53 * P, 1.5 * P, 1.5 * P))},
            "200 Mbit/s, 4 ranks: each rank sends +2.00% against",
        ),
        (
            lambda run: {"link": _last(run.link, seconds=0.01)},
            "the cables were not held to it",
        ),
    ],
)
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_without_a_reading_nothing_is_claimed(recorded):
    steps = tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.steps])
    blind = dataclasses.replace(recorded, reading=None, steps=steps)
    assert "not read" in str(blind.table("wire"))
    assert blind.failed_checks() == []


def test_the_picture_names_its_axes_and_lines(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        axes = recorded.plot(dark=dark).axes[0]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("ranks", "speedup, strong scaling")
        lines = [line for line in axes.lines if line.get_marker() in ("o", "s", "D")]
        assert [list(line.get_ydata())[-1] for line in lines] == [
            recorded.step_row(rate, 4).speedup for rate in (None, 2000, 200)
        ]


# ---- what may be missing ----


@pytest.mark.parametrize(
    ("system", "programs", "message"),
    [
        ("darwin", "all", "a slow network needs Linux"),
        ("linux", "none", "not found: unshare, nsenter, ip, tc"),
    ],
)
def test_what_is_missing_is_said_and_the_recorded_run_shown(monkeypatch, capsys, system, programs, message):
    monkeypatch.setattr(netns.sys, "platform", system)
    monkeypatch.setattr(netns, "is_root", lambda: True)
    if programs == "none":
        monkeypatch.setattr(netns.shutil, "which", lambda name: None)
    run = labs.slow_network(ranks=2)
    assert run.recorded
    said = capsys.readouterr().err
    assert message in said
    assert "the run that came with the book" in said


@pytest.mark.parametrize(
    ("refuses", "message"),
    [("unshare: Operation not permitted", "the right to make network namespaces"), ("tbf", "sch_tbf")],
)
def test_a_refusal_is_told_in_the_systems_words(monkeypatch, refuses, message):
    require_namespaces()

    def refuse(flags, script):
        return None if refuses == "tbf" and script == "true" else refuses

    monkeypatch.setattr(netns, "_try", refuse)
    with pytest.raises(LabError, match=message) as caught:
        netns.require_namespaces()
    assert caught.value.cause == "missing"
    assert refuses in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="starts unshare")
def test_the_try_can_fail():
    require_namespaces()
    assert netns._try(["--net"], "true") is None
    assert "nonsense" in netns._try(["--net"], "echo nonsense >&2; false")
    assert netns._try(["--net"], netns._TRIAL.replace("tbf", "no_such_discipline"))


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 1}, "ranks must be a whole number from 2 to 4, not 1"),
        ({"ranks": 5}, "ranks must be a whole number from 2 to 4, not 5"),
        ({"mbit_s": 200}, "mbit_s must be a list of rates in Mbit/s, not 200"),
        ({"mbit_s": []}, "mbit_s must be a list of rates in Mbit/s, not []"),
        ({"mbit_s": [200, 200]}, "mbit_s must hold different rates from 10 to 10000 Mbit/s, not [200, 200]"),
        ({"mbit_s": [5]}, "mbit_s must hold different rates from 10 to 10000 Mbit/s, not [5]"),
        ({"mbit_s": ["fast"]}, "each of mbit_s must be a finite number above 0 Mbit/s, not 'fast'"),
        ({"batch": 50}, "batch must be divisible by each number of ranks ([1, 2, 4]), not 50"),
        ({"ranks": 3, "batch": 4}, "batch must be divisible by each number of ranks ([1, 2, 3]), not 4"),
        ({"compute_s": 0}, "compute_s must be a finite number above 0 seconds, not 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"limit_s": -1}, "limit_s must be a finite number above 0 seconds, not -1"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.slow_network(**arguments)
    assert message in str(caught.value)


def test_a_measurement_that_fits_nothing_is_no_usage_error():
    link = [{"mbit_s": 200.0, "ranks": 2, "n_bytes": size, "seconds": 0.001} for size in MODULE.SIZES]
    settings = {"ranks": 2, "mbit_s": [200.0]}
    with pytest.raises(LabError, match="no prediction can be fitted") as caught:
        MODULE._evaluate({"link": link}, settings, 1.0)
    assert caught.value.cause == "measurement"


def test_the_source_shown_is_the_code_that_runs():
    source = str(labs.slow_network.source())
    assert source.startswith("class Accelerator(")
    assert "class Model(" in source
    assert max(len(line) for line in source.splitlines()) <= 82
