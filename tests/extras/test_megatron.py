"""The Megatron-core lab: the library's linears equal whole ones, one GPT under every layout, bytes by the models."""

import ast
import dataclasses
import json
import sys

import pytest

from shardlab import labs
from shardlab.labs import machine
from shardlab.labs.megatron import SIZES, MegatronRun
from shardlab.labs.run import LabError
from shardlab.models.tensor import layer_sent_bytes, vocabulary_sent_bytes

P = 4 * SIZES["sequence"] * SIZES["micro_batch"] * SIZES["hidden"]
LAYOUTS = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4)]
MODULE = sys.modules["shardlab.labs.megatron"]

needs_megatron = pytest.mark.skipif(
    not machine.installed("megatron.core"), reason="megatron-core is not installed"
)


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.megatron.function(ranks=4, limit_s=290, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.megatron.load_recording()


# ---- measured here ----


@needs_megatron
@pytest.mark.torch
def test_megatrons_linears_equal_whole_ones(measured):
    assert [row.tensor for row in measured.linears] == [1, 2, 4]
    for row in measured.linears:
        assert max(row.output_gap, row.input_gap, row.weight_gap) <= 2e-6


@needs_megatron
@pytest.mark.torch
def test_all_layouts_train_the_same_model(measured):
    assert [(row.tensor, row.pipeline) for row in measured.layouts] == LAYOUTS
    names = ["one rank", "TP2", "PP2", "TP4", "TP2×PP2", "PP4"]
    assert [row.name for row in measured.layouts] == names
    for row in measured.layouts:
        assert len(row.losses) == 3
        assert row.loss_gap <= 1e-6
        assert row.parameter_gap <= 1e-6
    # It learns, so equal losses say something.
    losses = measured.layout(1, 1).losses
    assert losses[0] > losses[1] > losses[2]
    # A pipeline adds nothing up in another order.
    assert measured.layout(1, 4).parameter_gap == 0


@needs_megatron
@pytest.mark.torch
def test_each_rank_holds_its_part(measured):
    assert measured.layout(1, 1).layers == (4, 4, 4, 4)
    assert measured.layout(2, 2).layers == (2, 2, 2, 2)
    assert measured.layout(1, 4).layers == (1, 1, 1, 1)
    whole = measured.layout(1, 1).parameters[0]
    assert sum(measured.layout(1, 4).parameters) == whole
    half = measured.layout(2, 1).parameters[0]
    assert whole / 2 < half < 0.51 * whole


@needs_megatron
@pytest.mark.torch
def test_megatrons_own_start_depends_on_the_pipeline(measured):
    assert all(measured.layout(tensor, 1).own_gap <= 1e-6 for tensor in (2, 4))
    assert measured.layout(1, 2).own_gap > 1e-5
    assert measured.layout(2, 2).own_gap == pytest.approx(measured.layout(1, 2).own_gap, rel=0.01)


@needs_megatron
@pytest.mark.torch
def test_bytes_are_the_models(measured):
    sizes = SIZES["sequence"], SIZES["micro_batch"], SIZES["hidden"]
    one_step = 4 * (
        4 * layer_sent_bytes(*sizes, 2, element_bytes=4) + vocabulary_sent_bytes(*sizes, 2, element_bytes=4)
    )
    assert measured.layout(2, 1).predicted_bytes == (one_step,) * 4
    assert measured.layout(1, 2).predicted_bytes == (4 * P,) * 4
    assert measured.layout(1, 4).predicted_bytes == (4 * P, 8 * P, 8 * P, 4 * P)
    # The two stages of TP2×PP2 share the layers and the vocabulary, and each sends over the hop between them.
    both = measured.layout(2, 2).predicted_bytes
    assert both[0] == both[1]
    assert both[2] == both[3]
    assert both[0] + both[2] == pytest.approx(one_step + 2 * 4 * P)
    if measured.reading is not None:
        for row in measured.layouts:
            for sent, predicted in zip(row.kernel_bytes, row.predicted_bytes, strict=True):
                assert 0 <= sent - predicted <= 256 * row.messages


@needs_megatron
@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert measured.version
    assert MegatronRun.from_json(measured.to_json()) == measured
    assert json.loads(measured.to_json())["lab"] == "megatron"


@needs_megatron
@pytest.mark.torch
def test_layouts_that_start_from_other_weights_are_noticed(monkeypatch, family):
    monkeypatch.setattr(MODULE, "WORKER", "tests.extras.megatron_own_start:worker")
    run = labs.megatron.function(ranks=2, steps=1, limit_s=250, show=False)
    (failed,) = run.failed_checks()
    assert failed.startswith("PP2: not equal to one rank (losses ")


# ---- what can be said of any result ----


def test_the_recorded_run_is_marked_and_sound(recorded):
    assert recorded.recorded
    assert recorded.failed_checks() == []
    assert recorded.settings["ranks"] == 4
    assert [(row.tensor, row.pipeline) for row in recorded.layouts] == LAYOUTS


@pytest.mark.parametrize("name", ["linears", "layouts", "wire"])
def test_each_table_says_where_its_numbers_are_from(recorded, name):
    (table,) = recorded.table(name).tables
    assert recorded.provenance() in str(table)
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_words_carry_the_numbers(recorded):
    words = "\n".join(recorded.explanation())
    assert "All 6 layouts train the same model: after 3 steps the loss is 5.648157" in words
    assert "TP2 sends 9.498 MB per rank and PP2 524.9 kB, 18.0 times less" in words
    assert "proves nothing until the start is the same" in words


def test_one_rank_has_one_layout(recorded):
    alone = dataclasses.replace(recorded, layouts=recorded.layouts[:1], linears=recorded.linears[:1])
    assert alone.explanation() == ["With one rank there is one layout: run the lab with more ranks."]
    assert list(alone.make_tables()) == ["linears", "layouts"]
    assert alone.failed_checks() == []


def test_without_a_reading_the_prediction_stands_alone_and_says_so(recorded):
    rows = tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.layouts])
    blind = dataclasses.replace(recorded, reading=None, layouts=rows)
    assert "can't be read here" in str(blind.table("wire"))
    assert "TP2 sends 9.449 MB per rank" in "\n".join(blind.explanation())
    assert blind.failed_checks() == []


NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "index", "changes", "message"),
    [
        ("linears", 1, {"output_gap": 1e-3}, "tensor parallel 2: Megatron's linears are not equal"),
        ("linears", 2, {"weight_gap": NAN}, "tensor parallel 4: Megatron's linears are not equal"),
        ("layouts", 4, {"loss_gap": 1e-3}, "TP2×PP2: not equal to one rank (losses 1.0e-03"),
        ("layouts", 5, {"parameter_gap": NAN}, "PP4: not equal to one rank"),
        ("layouts", 1, {"own_gap": 0.1}, "TP2: Megatron's own start depends on tensor parallelism"),
        ("layouts", 2, {"kernel_bytes": (2.0 * P,) * 4}, "PP2: the ranks send 262,144 / 262,144"),
    ],
)
def test_checks_can_fail(recorded, field, index, changes, message):
    rows = list(getattr(recorded, field))
    rows[index] = dataclasses.replace(rows[index], **changes)
    (failed,) = dataclasses.replace(recorded, **{field: tuple(rows)}).failed_checks()
    assert message in failed


def test_rows_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="layouts must be asked for one of"):
        recorded.layout(3, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": 3}, "ranks must be 1, 2 or 4 (the model has four heads and four layers), not 3"),
        ({"ranks": 8}, "ranks must be 1, 2 or 4"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"limit_s": -1}, "limit_s must be a finite number above 0 seconds, not -1"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.megatron(**arguments)
    assert message in str(caught.value)


def test_without_megatron_the_recorded_run_is_shown_and_said_so(monkeypatch, capsys):
    # Nothing of that name: find_spec then fails on the parent, as it does where the package is missing.
    monkeypatch.setitem(sys.modules, "megatron", None)
    run = labs.megatron(ranks=2)
    assert run.recorded
    said = capsys.readouterr().err
    assert "megatron-core is not installed, so no process was started" in said
    assert "What you see instead is the run that came with the book" in said


def test_without_megatron_and_without_a_recording_the_error_stays(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "megatron", None)
    monkeypatch.setattr("shardlab.labs.lab.FOLDER", tmp_path)
    with pytest.raises(LabError, match="megatron-core is not installed") as caught:
        labs.megatron()
    assert caught.value.cause == "missing"


def test_the_source_shown_is_short_and_is_the_code_that_runs():
    source = str(labs.megatron.source())
    worker_file = (labs.megatron.recording.parents[1] / "megatron_worker.py").read_text()
    parts = source.split("\n\n\n")
    assert [ast.parse(part).body[0].name for part in parts] == ["train_step", "forward_step", "set_weights"]
    for part in parts:
        assert part in worker_file
        assert len(part.splitlines()) <= 40
        assert max(len(line) for line in part.splitlines()) <= 80
