"""The DDP lab: equal results, honest bytes, no_sync, strong scaling; and what readers without torch get."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from shardlab import labs
from shardlab.labs.ddp import DdpRun, EqualityRow, ScalingRow
from shardlab.labs.fit import Line
from shardlab.labs.lab import Source
from shardlab.labs.run import LabError, Outcome
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.fit import LinkFit
from tools.kernels import START_S, through_files

PARAMETERS = 2 * (1024 * 1024 + 1024)
P = 4 * PARAMETERS


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.ddp(ranks=4, steps=3, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.ddp.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_ddp_equals_one_process(measured):
    assert [row.ranks for row in measured.equality] == [1, 2, 4]
    for row in measured.equality:
        assert row.loss_gap <= 1e-6
        assert row.parameter_gap <= 1e-6
    # The comparison can tell: ranks that never speak drift apart.
    for row in measured.equality[1:]:
        assert row.silent_gap > 1e-4


@pytest.mark.torch
def test_bytes_on_the_wire_are_the_textbooks(measured):
    assert measured.parameters == PARAMETERS
    assert measured.n_bytes == P
    assert sum(measured.buckets) == P
    for ranks, factor in ((1, 0), (2, 1), (4, 1.5)):
        row = measured.wire_row(ranks)
        assert row.payload_bytes == P
        assert row.predicted_bytes == factor * P
        if measured.reading is not None:
            assert len(row.kernel_bytes) == ranks
            assert list(row.kernel_bytes) == pytest.approx([factor * P] * ranks, rel=0.01)
    assert all(row.gap is None or 0 <= row.gap < 0.01 for row in measured.wire)


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counters are Linux'")
def test_on_linux_there_is_a_reading(measured):
    assert measured.reading in ("ss", "TCP_INFO")


@pytest.mark.torch
def test_no_sync_saves_exactly_the_micro_batches(measured):
    for ranks in (1, 2, 4):
        every, last = measured.wire_row(ranks, 4, "every"), measured.wire_row(ranks, 4, "last")
        assert every.payload_bytes == 4 * last.payload_bytes == 4 * P
        if ranks > 1:
            assert every.sent_bytes / last.sent_bytes == pytest.approx(4, rel=0.01)
    assert measured.no_sync_factor == 4
    assert measured.accumulation_gap <= 1e-6


@pytest.mark.torch
def test_predictions_come_from_one_rank_and_an_allreduce_alone(measured):
    assert [(row.batch, row.ranks) for row in measured.scaling] == [
        (b, n) for b in (64, 512) for n in (1, 2, 4)
    ]
    assert [sample.n_ranks for sample in measured.link.samples] == [2] * 5
    for row in measured.scaling:
        assert row.step_s > 0
        assert row.speedup == measured.scaling_row(row.batch, 1).step_s / row.step_s
        ring = sum(
            ring_allreduce_time_s(size, row.ranks, measured.link.bandwidth, measured.link.latency_s)
            for size in measured.buckets
        )
        apart = measured.compute.fixed_s + measured.compute.per_unit_s * row.batch / row.ranks + ring
        assert row.one_core_each_s == pytest.approx(apart, rel=1e-9)
        oversubscribed = max(1, row.ranks * measured.threads / measured.stamp.cores)
        assert row.predicted_s == pytest.approx(apart * oversubscribed, rel=1e-9)


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    assert measured.elapsed_s > 0
    again = DdpRun.from_json(measured.to_json())
    assert again == measured
    assert json.loads(measured.to_json())["complete"] is True


@pytest.mark.torch
def test_in_a_notebook(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [
        "from shardlab import labs",
        "run = labs.ddp(ranks=1, steps=1, limit_s=600)\nrun.table('wire')",
        "labs.ddp.source()",
        "labs.ddp(ranks='4')",
        "labs.run('no_such_module:worker', ranks=1)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with through_files() as config:
        nbclient.NotebookClient(
            notebook,
            timeout=600,
            startup_timeout=START_S,
            allow_errors=True,
            resources={"metadata": {"path": tmp_path}},
            config=config,
        ).execute()
    _, run, source, bad, failed = [cell.outputs for cell in notebook.cells]
    # One line of progress that has renewed itself, then the table.
    assert [output.output_type for output in run] == ["display_data", "execute_result"]
    assert run[0].data["text/plain"] == "1 rank: finished"
    assert "<caption" in run[1].data["text/html"]
    assert source[0].data["text/markdown"].startswith("```python\ndef training_step(")
    assert "ranks must be a whole number from 1 to 64, not '4'" in bad[-1].evalue
    assert failed[0].data["text/plain"] == "1 rank: stopped"
    # The reader sees the sentence, not the runner's frames.
    assert failed[1].traceback[0].startswith("LabError: the ranks could not be started.")


# ---- what can be said of any result ----


def test_more_ranks_are_slower_in_the_recorded_run(recorded):
    small = recorded.scaling_row(64, 4)
    assert small.speedup < 1
    assert small.predicted_speedup < 1
    assert recorded.scaling_row(512, 2).speedup > recorded.scaling_row(64, 2).speedup


def test_the_whole_run_shows_tables_and_words(recorded):
    for text in (str(recorded), recorded._repr_html_()):
        assert "8,396,800" in text
        assert "12,595,200" in text
        assert "more ranks are slower" in text
        assert "no_sync" in text
    assert recorded._repr_html_().count("<table") == 3


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    small = recorded.scaling_row(64, 4)
    assert f"a speedup of {small.speedup:.2f}: more ranks are slower" in words
    assert "sends 4 times less" in words
    # Two cores for four ranks: the recording was made on such a machine.
    assert recorded.stamp.cores == 2
    assert "4 ranks share 2 cores" in words
    assert "2 times as long" in words


def test_words_and_prediction_without_shared_cores(recorded):
    wide = dataclasses.replace(recorded, stamp=dataclasses.replace(recorded.stamp, cores=16))
    assert "share" not in " ".join(wide.explanation()).replace("share of", "").replace("smaller share", "")


def test_without_a_reading_the_payload_stands_in_and_says_so(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        wire=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.wire]),
    )
    table = blind.table("wire")
    assert "Payload × 2(N-1)/N, B" in str(table)
    assert "(kernel)" not in str(table)
    assert "can't be read here" in str(table)
    assert blind.wire_row(4).sent_bytes == 1.5 * P
    assert blind.wire_row(4).gap == 0
    assert blind.failed_checks() == []
    assert DdpRun.from_json(blind.to_json()) == dataclasses.replace(blind)
    assert "headers" not in blind.explanation()[0]


def test_one_rank_has_nothing_to_send(recorded):
    alone = dataclasses.replace(recorded, link=None)
    assert alone.explanation() == ["With one rank there is nothing to send: run the lab with more ranks."]


def _with_first(rows, **changes):
    return (dataclasses.replace(rows[0], **changes), *rows[1:])


def _with_last(rows, **changes):
    return (*rows[:-1], dataclasses.replace(rows[-1], **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: {"equality": _with_first(run.equality, loss_gap=1e-3)}, "not equal to one process"),
        (
            lambda run: {"equality": _with_last(run.equality, parameter_gap=float("nan"))},
            "4 ranks: DDP is not equal",
        ),
        (lambda run: {"wire": _with_last(run.wire, kernel_bytes=(12595200.0 * 1.02,) * 4)}, "+2.00% against"),
        (
            lambda run: {"wire": _with_last(run.wire, payload_bytes=2.0 * P)},
            "no_sync saves a factor of 2.0, not 4",
        ),
        (lambda run: {"accumulation_gap": 0.1}, "no_sync changes the result"),
    ],
)
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_times_are_never_a_failed_check(recorded):
    slow = tuple([dataclasses.replace(row, step_s=row.step_s * 9) for row in recorded.scaling])
    assert dataclasses.replace(recorded, scaling=slow).failed_checks() == []


@pytest.mark.parametrize(
    "text", ['{"lab": "ring", "complete": true}', '{"lab": "ddp", "complete": false, "partial": {}}']
)
def test_only_a_complete_ddp_run_can_be_read_back(text):
    with pytest.raises(ValueError, match="text must be the JSON of a complete ddp lab"):
        DdpRun.from_json(text)


def test_rows_and_tables_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="wire must be asked for one of"):
        recorded.wire_row(3)
    with pytest.raises(ValueError, match="scaling must be asked for one of"):
        recorded.scaling_row(65, 2)
    with pytest.raises(ValueError, match="name must be one of equality, wire, scaling, not 'ring'"):
        recorded.table("ring")


def test_the_picture_names_its_axes_and_lines(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        axes = recorded.plot(dark=dark).axes[0]
        assert axes.get_xlabel() == "ranks"
        assert "speedup, strong scaling" in axes.get_ylabel()
        measured = [line for line in axes.lines if line.get_marker() in ("o", "s")]
        assert [list(line.get_ydata()) for line in measured] == [
            [recorded.scaling_row(batch, ranks).speedup for ranks in (1, 2, 4)] for batch in (64, 512)
        ]


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": "4"}, "ranks must be a whole number from 1 to 64, not '4'"),
        ({"ranks": True}, "ranks must be a whole number from 1 to 64, not True"),
        ({"ranks": 3}, "batches must be divisible by each number of ranks"),
        ({"steps": -1}, "steps must be a whole number of at least 1, not -1"),
        ({"steps": 1.5}, "steps must be a whole number of at least 1, not 1.5"),
        ({"micro_steps": 1}, "micro_steps must be a whole number of at least 2, not 1"),
        ({"batches": [64]}, "batches must hold at least two sizes, all different, not [64]"),
        ({"batches": [64, 64]}, "batches must hold at least two sizes, all different, not [64, 64]"),
        ({"batches": [64, 0]}, "each of batches must be a whole number of at least 1, not 0"),
        ({"batches": [64, 66]}, "batches must be divisible by each number of ranks ([1, 2, 4]), not 66"),
        ({"batches": "64"}, "batches must be a list of global batch sizes, not '64'"),
        ({"batches": 64}, "batches must be a list of global batch sizes, not 64"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.ddp(**arguments)
    assert message in str(caught.value)


# ---- the code to read ----


def test_the_source_shown_is_the_code_that_runs():
    source = labs.ddp.source()
    worker_file = (labs.ddp.recording.parents[1] / "ddp_worker.py").read_text()
    assert str(source) in worker_file
    assert str(source).startswith("def training_step(")
    assert "no_sync" in str(source)
    assert len(str(source).splitlines()) <= 25
    both = labs.ddp.source("make_batch", "shard")
    assert str(both).count("\ndef ") + 1 == 2
    assert source._repr_markdown_() == f"```python\n{source}\n```"
    assert isinstance(source, Source)
    with pytest.raises(ValueError, match=r"names must be among .*training_step.*, not 'nonsense'"):
        labs.ddp.source("nonsense")


# ---- without torch ----

BLOCKED = "import sys; sys.modules['torch'] = None\n"


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_without_torch_the_recorded_run_is_shown_and_said_so():
    done = python(
        BLOCKED
        + "from shardlab import labs\nrun = labs.ddp(ranks=2)\nassert run.recorded\nprint(run.table())"
    )
    assert done.returncode == 0, done.stderr
    assert "torch is not installed" in done.stderr
    assert "pip install torch" in done.stderr
    assert "What you see instead is the run that came with the book" in done.stderr
    # It was recorded with other settings than asked for: it says with which.
    assert "ranks=4" in done.stderr
    assert "Recorded earlier, not measured here" in done.stdout


def test_without_torch_bad_input_is_still_bad_input():
    done = python(BLOCKED + "from shardlab import labs\nlabs.ddp(ranks=0)")
    assert done.returncode != 0
    assert "ranks must be a whole number from 1 to 64, not 0" in done.stderr


def test_without_torch_a_worker_of_your_own_fails_clearly():
    done = python(BLOCKED + "from shardlab import labs\nlabs.run('some:worker', ranks=2)")
    assert "LabError: torch is not installed, so no process was started." in done.stderr


def test_without_torch_and_without_a_recording_the_error_stays(monkeypatch, tmp_path):
    monkeypatch.setattr("shardlab.labs.lab.FOLDER", tmp_path)
    monkeypatch.setattr("shardlab.labs.machine.torch_installed", lambda: False)
    with pytest.raises(LabError, match="torch is not installed") as caught:
        labs.ddp()
    assert caught.value.cause == "missing"


def test_other_failures_never_turn_into_a_recording(monkeypatch):
    def broken(*_, **__):
        raise LabError("rank 1 fell", cause="died", rank=1)

    # Not by its dotted name: shardlab.labs.ddp is the lab, and hides the module it is made in.
    monkeypatch.setattr(sys.modules["shardlab.labs.ddp"], "run", broken)
    with pytest.raises(LabError, match="rank 1 fell"):
        labs.ddp()


def test_a_measurement_that_fits_nothing_is_no_usage_error(monkeypatch):
    times = {64: 0.01, 512: 0.05}
    measured = {
        "steps": [{"batch": b, "ranks": n, "seconds": [s]} for b, s in times.items() for n in (1, 2)],
        "allreduce": [
            {"ranks": 2, "n_bytes": n_bytes, "seconds": 0.001} for n_bytes in (2**16, 2**20, 2**22)
        ],
    }
    outcome = Outcome(results=[measured, None], elapsed_s=1.0, start="fork")
    monkeypatch.setattr(sys.modules["shardlab.labs.ddp"], "run", lambda *_, **__: outcome)
    with pytest.raises(
        LabError, match="no prediction can be fitted: samples must show a time that grows"
    ) as caught:
        labs.ddp(ranks=2)
    assert caught.value.partial == measured


def test_types_of_rows(recorded):
    assert all(isinstance(row, EqualityRow) for row in recorded.equality)
    assert all(isinstance(row, ScalingRow) for row in recorded.scaling)
    assert isinstance(recorded.compute, Line)
    assert isinstance(recorded.link, LinkFit)
