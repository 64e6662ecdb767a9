"""The tensor-parallel lab: equal to the uncut layer, honest bytes, activations by the formula, wrong orders shown."""

import ast
import dataclasses
import json
import sys

import pytest

from shardlab import labs
from shardlab.labs.run import LabError, Outcome
from shardlab.labs.tensor_parallel import (
    BY_HAND,
    DTENSOR,
    ORDERS,
    SEEDS,
    UNPREPARED,
    Calls,
    TensorParallelRun,
)
from shardlab.models.memory_activations import layer_activations
from shardlab.models.tensor import layer_collectives, layer_sent_bytes, vocabulary_sent_bytes

SMALL = {"hidden": 64, "heads": 4, "sequence": 64, "micro_batch": 2}
P = 4 * 64 * 2 * 64


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.tensor_parallel(ranks=4, **SMALL, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.tensor_parallel.load_recording()


def replaced(rows, changes, **where):
    """``rows`` with ``changes`` made in the one row where these fields have these values."""
    hits = [row for row in rows if all(getattr(row, key) == value for key, value in where.items())]
    assert len(hits) == 1
    return tuple([dataclasses.replace(row, **changes) if row is hits[0] else row for row in rows])


# ---- measured here ----


@pytest.mark.torch
def test_every_cut_equals_the_uncut_layer(measured):
    ways = [(BY_HAND, "tensor"), (DTENSOR, "tensor"), (UNPREPARED, "tensor")]
    ways += [(BY_HAND, "sequence"), (DTENSOR, "sequence")]
    seen = [(row.ranks, row.how, row.layout) for row in measured.layers]
    alone = [(1, BY_HAND, "tensor"), (1, BY_HAND, "sequence")]
    assert seen == alone + [(n, *way) for n in (2, 4) for way in ways]
    for row in measured.layers:
        assert max(row.output_gap, row.input_gap, row.weight_gap) <= 2e-6


@pytest.mark.torch
def test_collectives_are_the_models(measured):
    plain, sequence = layer_collectives(), layer_collectives(sequence_parallel=True)
    for n in (2, 4):
        assert measured.layer(n).calls == Calls(all_reduce=plain.all_reduce) == Calls(all_reduce=4)
        assert measured.layer(n, DTENSOR).calls == Calls(all_reduce=4)
        assert measured.layer(n, UNPREPARED).calls == Calls(all_reduce=6)
        kept = Calls(all_gather=sequence.all_gather, reduce_scatter=sequence.reduce_scatter)
        assert measured.layer(n, DTENSOR, "sequence").calls == kept == Calls(all_gather=4, reduce_scatter=4)
        by_hand = measured.layer(n, layout="sequence").calls
        assert by_hand == dataclasses.replace(kept, all_gather=kept.all_gather + sequence.regather)


@pytest.mark.torch
def test_bytes_are_the_models_and_gloos_reduce_scatter_is_an_all_reduce(measured):
    assert measured.n_bytes == P
    for n in (2, 4):
        model = layer_sent_bytes(64, 2, 64, n, element_bytes=4)
        unit = (n - 1) / n * P
        for how, layout, textbook, gloo in (
            (BY_HAND, "tensor", 8, 8),
            (DTENSOR, "tensor", 8, 8),
            (UNPREPARED, "tensor", 12, 12),
            (BY_HAND, "sequence", 10, 14),
            (DTENSOR, "sequence", 8, 12),
        ):
            row = measured.layer(n, how, layout)
            assert row.textbook_bytes == pytest.approx(textbook * unit)
            assert row.textbook_bytes >= model == 8 * unit
            assert row.predicted == pytest.approx(gloo * unit)
            if measured.reading is not None:
                assert len(row.kernel_bytes) == n
                # Small tensors: what the headers add is known by the message.
                assert 0 <= row.sent - row.predicted <= 256 * row.messages


@pytest.mark.torch
def test_activations_follow_the_formula(measured):
    one = layer_activations(64, 2, 64, 4, element_bytes=4).kept_bytes
    assert measured.layer(1).predicted_saved_bytes == one
    norms = measured.norm_bytes
    for n in (2, 4):
        sequence = measured.layer(n, layout="sequence")
        assert sequence.predicted_saved_bytes == one / n
        assert sequence.saved_bytes == one / n + norms / n
        tensor = measured.layer(n)
        assert tensor.saved_bytes == tensor.predicted_saved_bytes + norms
        # Tokens that stay whole: norm inputs, layer inputs, dropout masks.
        assert tensor.saved_bytes > one / n
        # DTensor keeps two gathered inputs, by hand a rank's own tokens of them.
        extra = measured.layer(n, DTENSOR, "sequence").saved_bytes - sequence.saved_bytes
        assert extra == 2 * P * (n - 1) / n


@pytest.mark.torch
def test_wrong_orders_are_wrong_and_the_costly_one_is_right(measured):
    assert list(ORDERS) == [row.order for row in measured.orders if row.ranks == 2]
    for n in (2, 4):
        right, forgot, reverse, wrong = (measured.order(n, order) for order in ORDERS)
        for row in (right, reverse):
            assert max(row.output_gap, row.input_gap) <= 2e-6
        assert forgot.output_gap <= 2e-6
        assert forgot.input_gap > 0.05
        assert wrong.output_gap > 0.05
        assert reverse.predicted == pytest.approx(4.5 * right.predicted)
        assert forgot.predicted == pytest.approx(right.predicted / 2)


@pytest.mark.torch
def test_dropout_seeds(measured):
    assert [row.seeds for row in measured.dropout] == [*SEEDS, *SEEDS]
    for row in measured.dropout:
        assert (row.apart == 0) == (row.whole == "shared")
        assert (row.alike == 1) == (row.split == "shared")
        # The scores' mask of each rank but the first: b, heads/N, s, s.
        assert row.entries == (row.ranks - 1) * 2 * 4 // row.ranks * 64 * 64
    assert measured.dropout[0].predicted_alike == pytest.approx(0.82)


@pytest.mark.torch
def test_the_split_loss_sends_three_numbers_per_token(measured):
    for row in measured.loss:
        assert max(row.loss_gap, row.gradient_gap) <= 1e-6
        n = row.ranks
        # The model counts two all-reduces of the hidden width beside it; at width 1 they are two numbers per token.
        numbers = vocabulary_sent_bytes(row.tokens, 1, 1, n, element_bytes=4)
        assert row.predicted == pytest.approx(numbers * 3 / 5)
        assert row.gather_bytes == (n - 1) / n * row.tokens * row.vocabulary * 4


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    assert TensorParallelRun.from_json(measured.to_json()) == measured
    assert json.loads(measured.to_json())["lab"] == "tensor_parallel"


@pytest.mark.torch
def test_one_spawned_rank_cuts_nothing_and_leaves_nothing(family):
    run = labs.tensor_parallel(ranks=1, **SMALL, start="spawn", limit_s=600, show=False)
    assert run.failed_checks() == []
    assert [len(rows) for rows in (run.layers, run.orders, run.dropout, run.loss)] == [2, 0, 0, 0]
    assert run.explanation() == ["With one rank nothing is cut: run the lab with more ranks."]
    assert list(run.make_tables()) == ["equality", "activations"]


@pytest.mark.torch
def test_an_operator_that_forgets_its_sum_is_noticed(monkeypatch):
    monkeypatch.setattr(
        sys.modules["shardlab.labs.tensor_parallel"], "WORKER", "tests.labs.tensor_parallel_broken:worker"
    )
    failed = labs.tensor_parallel(ranks=2, **SMALL, limit_s=600, show=False).failed_checks()
    by_hand = [words for words in failed if words.startswith("2 ranks, layer by hand, tensor parallel: ")]
    assert len(by_hand) >= 2
    assert "not equal to the uncut layer" in by_hand[0]
    assert "Calls(all_reduce=2" in by_hand[1]
    assert any("MLP columns, then rows: the input's gradient is not equal" in words for words in failed)
    # What doesn't use it stays right.
    assert not any("DTensor" in words or "sequence" in words for words in failed)


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.settings == {"ranks": 4, "hidden": 256, "heads": 8, "sequence": 256, "micro_batch": 4}


def test_the_words_carry_the_numbers(recorded):
    words = "\n".join(recorded.explanation())
    assert "a layer all-reduces 4 times" in words
    assert "6 all-reduces and 9.448 MB" in words
    assert "its reduce-scatter is an all-reduce" in words
    assert "144 B of header for each message" in words
    assert "sequence parallelism keeps 9.048 MB, 0.250 of it" in words
    assert "sends 4.5 times as much" in words
    assert "82.0% of the entries agree by chance" in words
    assert "No time is shown" in words
    assert words in str(recorded).replace("\n\n", "\n")


def test_without_a_reading_the_prediction_stands_alone_and_says_so(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        **{
            name: tuple([dataclasses.replace(row, kernel_bytes=None) for row in getattr(recorded, name)])
            for name in ("layers", "orders", "loss")
        },
    )
    assert "can't be read here" in str(blind.table("wire"))
    assert blind.failed_checks() == []
    words = "\n".join(blind.explanation())
    assert "gloo sends 9.437 MB and 11.01 MB" in words
    assert "header" not in words


def test_nothing_is_said_of_gloo_when_it_was_not_used(recorded):
    words = "\n".join(dataclasses.replace(recorded, backend="nccl").explanation())
    assert "gloo" not in words
    assert "the textbook volume stays 6.291 MB" in words


NAN = float("nan")
HAND_4 = {"ranks": 4, "how": BY_HAND, "layout": "tensor"}


@pytest.mark.parametrize(
    ("field", "where", "changes", "message"),
    [
        ("layers", HAND_4, {"output_gap": 1e-3}, "4 ranks, layer by hand, tensor parallel: not equal"),
        ("layers", HAND_4, {"input_gap": NAN}, "not equal to the uncut layer"),
        ("layers", HAND_4, {"weight_gap": 0.1}, "weights' gradients 1.0e-01"),
        ("layers", HAND_4, {"calls": Calls(all_reduce=6)}, "all_reduce=6"),
        ("layers", HAND_4, {"calls": Calls(all_reduce=4, other=1)}, "other=1"),
        ("layers", HAND_4, {"saved_bytes": 12_900_000}, "keeps +2.5"),
        ("layers", HAND_4, {"kernel_bytes": (6_500_000.0,) * 4}, "the ranks send 6,500,000"),
        (
            "orders",
            {"ranks": 2, "order": "rows, then columns"},
            {"output_gap": 0.2},
            "the output is not equal",
        ),
        (
            "orders",
            {"ranks": 2, "order": "columns, then rows"},
            {"input_gap": NAN},
            "input's gradient is not",
        ),
        (
            "orders",
            {"ranks": 4, "order": "columns, then rows, without f"},
            {"input_gap": 1e-7},
            "should be visibly wrong and is off by 1.0e-07 only",
        ),
        (
            "orders",
            {"ranks": 4, "order": "rows, then columns, GELU before the sum"},
            {"output_gap": NAN},
            "should be visibly wrong",
        ),
        ("orders", {"ranks": 2, "order": "rows, then columns"}, {"kernel_bytes": (9.0, 9.0)}, "send 9 / 9 B"),
        ("dropout", {"ranks": 4, "seeds": SEEDS[0]}, {"apart": 0.1}, "the ranks' outputs are apart by"),
        ("dropout", {"ranks": 4, "seeds": SEEDS[0]}, {"alike": 0.99}, "dropped alike, not 0.8200"),
        ("dropout", {"ranks": 2, "seeds": SEEDS[1]}, {"alike": NAN}, "dropped alike, not 1.0000"),
        ("dropout", {"ranks": 2, "seeds": SEEDS[2]}, {"apart": 0.0}, "should come apart"),
        ("loss", {"ranks": 4}, {"loss_gap": NAN}, "split cross-entropy: not equal to the uncut one"),
        ("loss", {"ranks": 2}, {"gradient_gap": 1e-3}, "gradient 1.0e-03"),
        (
            "loss",
            {"ranks": 2},
            {"kernel_bytes": (16e6, 16e6)},
            "2 ranks, split cross-entropy: the ranks send",
        ),
    ],
)
def test_checks_can_fail(recorded, field, where, changes, message):
    broken = {field: replaced(getattr(recorded, field), changes, **where)}
    failed = dataclasses.replace(recorded, **broken).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_rows_and_tables_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="layers must be asked for one of"):
        recorded.layer(3)
    with pytest.raises(ValueError, match="orders must be asked for one of"):
        recorded.order(2, "sideways")
    with pytest.raises(
        ValueError, match="name must be one of equality, activations, wire, orders, dropout, loss"
    ):
        recorded.table("ring")


def test_only_a_complete_run_can_be_read_back():
    with pytest.raises(ValueError, match="text must be the JSON of a complete tensor_parallel lab"):
        TensorParallelRun.from_json('{"lab": "ddp", "complete": true}')


def test_the_picture_shows_measured_beside_predicted(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        axes = recorded.plot(dark=dark).axes[0]
        assert axes.get_xlabel() == "ranks"
        assert "MB per rank" in axes.get_ylabel()
        points = [list(line.get_ydata()) for line in axes.lines if line.get_marker() in ("o", "s")]
        assert points == [
            [recorded.layer(n, layout=layout).saved_bytes / 1e6 for n in (1, 2, 4)]
            for layout in ("tensor", "sequence")
        ]
        assert [text.get_text() for text in axes.texts] == ["tensor parallel", "sequence parallel"]


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": "4"}, "ranks must be a whole number from 1 to 64, not '4'"),
        ({"ranks": 16}, "heads must be divisible by tensor_parallel = 16"),
        ({"ranks": 3}, "heads must be divisible by tensor_parallel = 3"),
        ({"heads": 0}, "heads must be a whole number of at least 1, not 0"),
        ({"heads": 7}, "hidden must be divisible by heads = 7, not 256"),
        ({"hidden": 1.5}, "hidden must be a whole number of at least 1, not 1.5"),
        (
            {"ranks": 2, "sequence": 255},
            "sequence must be divisible by each number of ranks ([1, 2]), not 255",
        ),
        ({"micro_batch": 0}, "micro_batch must be a whole number of at least 1, not 0"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.tensor_parallel(**arguments)
    assert message in str(caught.value)


# ---- the code to read ----


def test_the_source_shown_is_short_and_is_the_code_that_runs():
    source = str(labs.tensor_parallel.source())
    folder = labs.tensor_parallel.recording.parents[1]
    operators, worker_file = (
        (folder / name).read_text() for name in ("tp_operators.py", "tensor_parallel_worker.py")
    )
    assert "from shardlab.labs.tp_operators import AddUp, CopyIn\n" in worker_file
    parts = source.split("\n\n\n")
    assert [ast.parse(part).body[0].name for part in parts] == ["CopyIn", "AddUp", "SplitLayer"]
    for part in parts:
        assert part in (worker_file if "SplitLayer" in part else operators)
        assert len(part.splitlines()) <= 40
        assert max(len(line) for line in part.splitlines()) <= 80


def test_what_the_worker_names_the_lab_knows():
    tree = ast.parse((labs.tensor_parallel.recording.parents[1] / "tensor_parallel_worker.py").read_text())
    assigned = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    assert tuple(name for name, *_ in ast.literal_eval(assigned["SEEDS"])) == SEEDS
    assert [key.value for key in assigned["ORDERS"].keys] == list(ORDERS)
    assert {how for how, _ in ast.literal_eval(assigned["WAYS"])} == {BY_HAND, DTENSOR, UNPREPARED}


def test_a_rank_that_fails_is_reported_and_never_turned_into_the_recording(monkeypatch):
    def broken(*_, **__):
        raise LabError("rank 1 fell", cause="died", rank=1)

    monkeypatch.setattr(sys.modules["shardlab.labs.tensor_parallel"], "run", broken)
    with pytest.raises(LabError, match="rank 1 fell"):
        labs.tensor_parallel()


def test_what_a_worker_gets_wrong_reaches_the_checks(monkeypatch):
    """Raw measurements of a broken worker, from the way they come in to the sentence."""
    layer = {
        "ranks": 2,
        "how": BY_HAND,
        "layout": "tensor",
        "output_gap": 0.3,
        "input_gap": 0.0,
        "weight_gap": 0.0,
        "calls": {"all_reduce": 3, "all_gather": 0, "reduce_scatter": 0, "other": 0},
        "kernel": [2_097_152, 2_097_152],
        "saved": 20_463_616,
    }
    measured = {"backend": "gloo", "threads": 1, "reading": "ss", "dropout_rate": 0.1, "layers": [layer]}
    outcome = Outcome(results=[measured, None], elapsed_s=1.0, start="fork")
    monkeypatch.setattr(sys.modules["shardlab.labs.tensor_parallel"], "run", lambda *_, **__: outcome)
    failed = labs.tensor_parallel(ranks=2).failed_checks()
    assert len(failed) == 3
    assert "not equal to the uncut layer (output 3.0e-01" in failed[0]
    assert "Calls(all_reduce=3" in failed[1]
    assert "the ranks send 2,097,152 / 2,097,152 B, predicted 4,194,304" in failed[2]
