"""The ZeRO lab: equal results, memory by kind, honest bytes, accumulation; and checks that can fail."""

import dataclasses
import json

import pytest

from shardlab import labs
from shardlab.labs.zero import COLLECTIVES, WAYS, Held, ZeroRun, _padding, _way_row
from shardlab.models.communication import data_traffic, hybrid_shard_traffic

FEATURES = 384
LAYERS = (
    2 * FEATURES * FEATURES + 2 * FEATURES,
    2 * FEATURES * FEATURES + FEATURES,
    FEATURES * FEATURES + FEATURES,
)
PARAMETERS = sum(LAYERS)
P = 4 * PARAMETERS


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.zero(ranks=4, micro_steps=2, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.zero.load_recording()


def per_parameter(held):
    return [held.parameters / PARAMETERS, held.gradients / PARAMETERS, held.optimizer / PARAMETERS]


# ---- measured here ----


@pytest.mark.torch
def test_every_way_equals_one_process(measured):
    cells = [(row.way, row.ranks) for row in measured.ways]
    assert cells == [
        *[(way, ranks) for ranks in (1, 2) for way in WAYS if way != "hybrid"],
        *[(way, 4) for way in WAYS],
    ]
    for row in measured.ways:
        assert row.loss_gap <= 1e-6
        assert row.parameter_gap <= 1e-6
        assert row.gradient_gap <= 1e-5
        assert row.moved > 1e-3


@pytest.mark.torch
@pytest.mark.parametrize(
    ("way", "ranks", "expected"),
    [
        ("ddp", 1, [4, 4, 8]),
        ("ddp", 4, [4, 4, 8]),
        ("zero1", 2, [4, 4, 4]),
        ("zero1", 4, [4, 4, 2]),
        ("fsdp", 1, [4, 4, 8]),
        ("fsdp", 2, [2, 2, 4]),
        ("fsdp", 4, [1, 1, 2]),
        ("fsdp_kept", 4, [1, 1, 2]),
        ("fsdp_mended", 4, [1, 1, 2]),
        ("hybrid", 4, [2, 2, 4]),
    ],
)
def test_memory_by_kind_is_the_formulas_exactly(measured, way, ranks, expected):
    row = measured.way(way, ranks)
    assert len(row.held) == ranks
    assert [per_parameter(held) for held in row.held] == [expected] * ranks
    assert per_parameter(row.predicted) == expected


@pytest.mark.torch
def test_whole_tensors_make_uneven_shards(measured):
    row = measured.way("torch_zero1", 4)
    optimizer = [held.optimizer for held in row.held]
    assert sum(optimizer) == 8 * PARAMETERS
    # The two large matrices can't be cut: each makes its rank the fullest.
    assert max(optimizer) == 8 * 2 * FEATURES * FEATURES
    assert min(optimizer) < 0.01 * max(optimizer)
    assert row.predicted.optimizer == 2 * PARAMETERS


@pytest.mark.torch
def test_whole_weights_come_and_go(measured):
    for ranks in (1, 2, 4):
        freed, kept = measured.way("fsdp", ranks), measured.way("fsdp_kept", ranks)
        assert (freed.whole_peak, freed.whole_after) == (4 * max(LAYERS), 0)
        assert (kept.whole_peak, kept.whole_after) == (P, P)


@pytest.mark.torch
def test_gloos_reduce_scatter_sends_an_all_reduce(measured):
    assert [(row.collective, row.ranks) for row in measured.collectives] == [
        (name, ranks) for ranks in (2, 4) for name in COLLECTIVES
    ]
    assert all(row.gap == 0 for row in measured.collectives)
    if measured.reading is None or measured.backend != "gloo":
        pytest.skip("the kernel's count can't be read here")
    for ranks in (2, 4):
        share = (ranks - 1) / ranks * P
        for name, factor in {
            "all_reduce": 2,
            "reduce_scatter": 2,
            "reduce_scatter_list": 2,
            "all_to_all_sum": 1,
            "all_gather": 1,
        }.items():
            row = measured.collective(name, ranks)
            assert list(row.kernel_bytes) == pytest.approx([factor * share] * ranks, rel=0.01), name


@pytest.mark.torch
def test_bytes_of_a_step(measured):
    if measured.reading is None or measured.backend != "gloo":
        pytest.skip("the kernel's count can't be read here")
    for ranks in (2, 4):
        share = (ranks - 1) / ranks * P
        passes = {way: measured.way(way, ranks).sent_bytes / share for way in WAYS if way != "hybrid"}
        assert passes == pytest.approx(
            {"ddp": 2, "zero1": 2, "torch_zero1": 3, "fsdp": 4, "fsdp_kept": 3, "fsdp_mended": 3}, rel=0.01
        )
    # 3 passes over half of the ranks, and an all-reduce of half of the gradients between two replicas.
    assert measured.way("hybrid", 4).sent_bytes == pytest.approx(3 * P / 2 + P / 2, rel=0.01)


@pytest.mark.torch
def test_accumulation_trades_memory_for_bytes(measured):
    assert [(row.ranks, row.sync) for row in measured.accumulation] == [
        (ranks, sync) for ranks in (2, 4) for sync in ("every", "last")
    ]
    for ranks in (2, 4):
        every, last = measured.accumulated("every", ranks), measured.accumulated("last", ranks)
        assert every.gradient_bytes == P / ranks
        assert last.gradient_bytes == P
        # Two micro-batches: 4 all-gathers and 2 or 1 reduce-scatters.
        share = (ranks - 1) / ranks * P
        assert (every.expected_bytes, last.expected_bytes) == (6 * share, 5 * share)
        assert last.gap_to_every <= 1e-6


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    assert measured.parameters == PARAMETERS
    assert measured.padding == 0
    assert ZeroRun.from_json(measured.to_json()) == measured
    assert json.loads(measured.to_json())["complete"] is True


@pytest.mark.torch
def test_one_rank_and_nothing_left_running(family):
    alone = labs.zero(ranks=1, limit_s=600, show=False)
    assert alone.failed_checks() == []
    assert list(alone.make_tables()) == ["equality", "memory", "whole"]
    assert alone.explanation() == [
        "With one rank there is nothing to shard or to send: run the lab with more ranks."
    ]
    family.assert_all_gone()


def broken_worker(ctx):
    """ZeRO-1 by hand with one of its three lines left out."""
    from shardlab.labs import zero_worker

    right = zero_worker.zero1_step

    def sums(weights, gradients, adam, group):
        # As if the mean had been forgotten: the gradients are twice as large.
        gradients *= 2
        right(weights, gradients, adam, group)

    def never_gathers(weights, gradients, adam, group):
        before = weights.clone()
        right(weights, gradients, adam, group)
        [shard] = adam.param_groups[0]["params"]
        mine = shard.detach().clone()
        weights.copy_(before)
        shard.data.copy_(mine)

    rows = {}
    for name, step in (("right", right), ("sums", sums), ("never_gathers", never_gathers)):
        zero_worker.zero1_step = step
        [rows[name]] = zero_worker.measure_way(ctx, 2, "zero1")
    return rows


@pytest.mark.torch
def test_a_broken_step_is_seen(recorded):
    rows = labs.run(broken_worker, 2, limit_s=600, show=False).results[0]
    facts = {"parameters": PARAMETERS, "largest_unit": max(LAYERS), "backend": "gloo"}
    failed = {
        name: dataclasses.replace(recorded, ways=(_way_row(cell, facts),)).failed_checks()
        for name, cell in rows.items()
    }
    assert failed["right"] == []
    for name in ("sums", "never_gathers"):
        assert len(failed[name]) == 1
        assert failed[name][0].startswith("ZeRO-1 by hand, 2 ranks: not equal to one process")


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.settings == {"ranks": 4, "micro_steps": 4}
    assert recorded.reading is not None


def test_predictions_are_the_models(recorded):
    traffic = data_traffic(PARAMETERS, 4, 3, 1, 4, 4)
    assert recorded.way("fsdp").textbook_bytes == traffic.total_bytes
    assert recorded.way("fsdp").expected_bytes == traffic.total_bytes + traffic.reduce_scatter_bytes
    assert recorded.way("fsdp_mended").expected_bytes == traffic.total_bytes
    hybrid = hybrid_shard_traffic(PARAMETERS, 4, 2, 3, 1, 4, 4)
    assert recorded.way("hybrid").textbook_bytes == hybrid.total_bytes
    assert WAYS["fsdp"].expected_bytes(PARAMETERS, 4, "nccl") == traffic.total_bytes


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    assert "DDP holds 16.00 bytes per parameter on every rank, ZeRO-1 by hand 10.00 and FSDP2 4.00" in words
    fullest = recorded.way("torch_zero1").fullest.optimizer / PARAMETERS
    assert f"its fullest rank holds {fullest:.2f} bytes of optimizer state" in words
    assert "gloo's reduce-scatter sends 2.00" in words
    assert "1.00 bytes per parameter between micro-batches" in words
    assert "4.00 bytes per parameter on every rank, and sends 25% less" in words
    assert "Nothing here is a time" in words


def test_without_a_reading_nothing_is_claimed_of_bytes(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        **{
            name: tuple([dataclasses.replace(row, kernel_bytes=None) for row in getattr(recorded, name)])
            for name in ("collectives", "ways", "accumulation")
        },
    )
    assert blind.failed_checks() == []
    assert "can't be read here" in str(blind.table("wire"))
    words = " ".join(blind.explanation())
    assert "gloo's" not in words
    assert "The parameters are the same." in words
    assert ZeroRun.from_json(blind.to_json()) == blind


def with_row(rows, wanted, **changes):
    """The rows, the last one that has the attributes ``wanted`` changed."""
    last = [row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())][-1]
    return tuple([dataclasses.replace(row, **changes) if row is last else row for row in rows])


NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "wanted", "changes", "message"),
    [
        ("ways", {"way": "fsdp"}, {"loss_gap": 1e-3}, "FSDP2, 4 ranks: not equal to one process"),
        ("ways", {"way": "zero1"}, {"parameter_gap": NAN}, "ZeRO-1 by hand, 4 ranks: not equal"),
        ("ways", {"way": "ddp"}, {"gradient_gap": 0.5}, "DDP, 4 ranks: not equal"),
        ("ways", {"way": "ddp"}, {"moved": 0.0}, "the comparison with one process says nothing"),
        ("ways", {"way": "fsdp"}, {"whole_peak": P}, "B of whole weights in the forward pass, not"),
        ("ways", {"way": "fsdp_kept"}, {"whole_after": 0}, "0 B of whole weights in the forward pass, not"),
        (
            "ways",
            {"way": "fsdp"},
            {"held": (Held(P, P / 4, P / 2),) * 4},
            f"FSDP2, 4 ranks: {P:,} B of parameters on a rank, not {P / 4:,.0f} B",
        ),
        (
            "ways",
            {"way": "torch_zero1"},
            {"held": (Held(P, P, 2 * P),) * 4},
            f"{2 * P:,} B of optimizer on a rank",
        ),
        ("ways", {"way": "fsdp"}, {"kernel_bytes": (6649344.0,) * 4}, "FSDP2, 4 ranks: a rank sends -25.00%"),
        (
            "collectives",
            {"ranks": 2},
            {"kernel_bytes": (9e6, 1477632.0)},
            "all-gather, 2 ranks: a rank sends",
        ),
        ("collectives", {"ranks": 4}, {"gap": NAN}, "all-gather, 4 ranks: the result is off by nan"),
        ("accumulation", {"sync": "last"}, {"gap_to_every": NAN}, "the parameters differ by nan"),
        ("accumulation", {"sync": "last"}, {"gradient_bytes": P / 4}, "B of gradients between micro-batches"),
        ("accumulation", {"sync": "every"}, {"kernel_bytes": (1.0,) * 4}, "accumulation, every, 4 ranks"),
    ],
)
def test_checks_can_fail(recorded, field, wanted, changes, message):
    rows = with_row(getattr(recorded, field), wanted, **changes)
    failed = dataclasses.replace(recorded, **{field: rows}).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_rows_that_do_not_divide_are_padded():
    assert _padding(384, [1, 2, 3, 4, 6, 8]) == 0
    assert _padding(384, [1, 2, 4, 5]) == pytest.approx(1 / 384)


@pytest.mark.parametrize("text", ['{"lab": "ddp", "complete": true}', '{"lab": "zero", "complete": false}'])
def test_only_a_complete_run_can_be_read_back(text):
    with pytest.raises(ValueError, match="text must be the JSON of a complete zero lab"):
        ZeroRun.from_json(text)


def test_rows_and_tables_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="ways must be asked for one of"):
        recorded.way("fsdp", 3)
    with pytest.raises(ValueError, match="collectives must be asked for one of"):
        recorded.collective("broadcast")
    with pytest.raises(ValueError, match="accumulation must be asked for one of"):
        recorded.accumulated("never")
    with pytest.raises(ValueError, match="name must be one of equality, memory, whole, collectives"):
        recorded.table("ring")


def test_the_picture_stacks_the_kinds(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        axes = recorded.plot(dark=dark).axes[0]
        assert "bytes per parameter" in axes.get_xlabel()
        assert [label.get_text() for label in axes.get_yticklabels()] == [way.title for way in WAYS.values()]
        widths = [sum(container[place].get_width() for container in axes.containers) for place in range(7)]
        assert widths == pytest.approx(
            [recorded.way(way).fullest.total_bytes / PARAMETERS for way in WAYS], rel=1e-9
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": "4"}, "ranks must be a whole number from 1 to 64, not '4'"),
        ({"micro_steps": 1}, "micro_steps must be a whole number of at least 2, not 1"),
        ({"micro_steps": 2.5}, "micro_steps must be a whole number of at least 2, not 2.5"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.zero(**arguments)
    assert message in str(caught.value)


def test_the_source_shown_is_short_and_narrow():
    text = str(labs.zero.source())
    assert text.startswith("def zero1_step(")
    for name in ("zero1_step", "reduce_scatter_by_all_to_all", "shard_with_fsdp"):
        lines = str(labs.zero.source(name)).splitlines()
        assert len(lines) <= 30
        assert max(len(line) for line in lines) <= 80


def test_without_torch_the_recorded_run_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("shardlab.labs.machine.torch_installed", lambda: False)
    run = labs.zero(ranks=2)
    assert run.recorded
    assert "torch is not installed" in capsys.readouterr().err
