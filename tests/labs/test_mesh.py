"""The mesh lab: groups, equality with one process, bytes of each axis, and gradients over the wrong group."""

import dataclasses

import pytest

from shardlab import labs
from shardlab.labs.mesh import (
    AXES,
    POSSIBLE_RANKS,
    SAME,
    MeshRun,
    group_of,
    layouts,
    place_of,
)

FOUR = [(1, 2, 2), (2, 1, 2), (2, 2, 1)]
P = 4 * 4 * (4 * 192**2 + 2 * 192 * 768)


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.mesh(ranks=4, steps=2, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.mesh.load_recording()


# ---- the rule for groups ----


def test_layouts_use_as_many_axes_as_possible():
    assert layouts(1) == [(1, 1, 1)]
    assert layouts(4) == FOUR
    assert layouts(8) == [(2, 2, 2)]
    assert layouts(5) == []
    assert POSSIBLE_RANKS == (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)


def test_places_and_groups_of_a_mesh_of_eight():
    assert [place_of((2, 2, 2), rank) for rank in (0, 1, 2, 4, 7)] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 0),
        (1, 1, 1),
    ]
    assert [group_of((2, 2, 2), 5, axis) for axis in range(3)] == [(1, 5), (5, 7), (4, 5)]


@pytest.mark.parametrize("layout", [(2, 1, 2), (3, 2, 2), (4, 2, 4)])
def test_groups_of_an_axis_are_a_partition(layout):
    ranks = range(layout[0] * layout[1] * layout[2])
    for axis, degree in enumerate(layout):
        groups = {group_of(layout, rank, axis) for rank in ranks}
        assert all(len(group) == degree for group in groups)
        assert sorted(rank for group in groups for rank in group) == list(ranks)
        assert all(rank in group_of(layout, rank, axis) for rank in ranks)


# ---- measured here ----


@pytest.mark.torch
def test_the_mesh_has_the_predicted_groups(measured):
    assert [(row.layout, row.rank) for row in measured.groups] == [
        (x, rank) for x in FOUR for rank in range(4)
    ]
    for row in measured.groups:
        assert row.place == row.predicted_place == place_of(row.layout, row.rank)
        assert row.groups == row.predicted_groups
    assert measured.groups[4].groups == ((0, 2), (0,), (0, 1))


@pytest.mark.torch
@pytest.mark.parametrize("layout", FOUR)
def test_training_on_a_mesh_equals_one_process(measured, layout):
    right, wrong = measured.trained(layout), measured.trained(layout, right=False)
    assert right.loss_gap <= SAME
    assert right.parameter_gap <= 1e-6
    # The wrong group raises nothing, but the comparison can tell.
    assert wrong.reduced_over == ("tensor" if layout[2] > 1 else "pipeline")
    assert wrong.parameter_gap > 100 * SAME
    assert abs(wrong.last_loss - wrong.alone_loss) > 100 * SAME


@pytest.mark.torch
@pytest.mark.parametrize("layout", FOUR)
def test_bytes_of_each_axis_are_the_models(measured, layout):
    data, pipeline, tensor = layout
    assert 4 * measured.parameters == P
    micro_batch = 24 // data // 2 * 32 * 192 * 4
    expected = {
        "data": 2 * (data - 1) / data * P / pipeline / tensor,
        "pipeline": 2 * (pipeline - 1) * micro_batch,
        "tensor": 2 * (tensor - 1) / tensor * 4 * (4 // pipeline) * 2 * micro_batch,
    }
    expected["all"] = sum(expected.values())
    for axis, size in expected.items():
        row = measured.traffic_row(layout, axis)
        assert list(row.predicted_bytes) == pytest.approx([size] * 4)
        if measured.reading is not None:
            assert list(row.kernel_bytes) == pytest.approx([size] * 4, rel=0.01)
    if measured.reading is not None:
        alone = [
            sum(sent)
            for sent in zip(*[measured.traffic_row(layout, axis).kernel_bytes for axis in AXES], strict=True)
        ]
        assert alone == pytest.approx(list(measured.traffic_row(layout, "all").kernel_bytes), rel=0.001)


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    assert MeshRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
def test_one_axis_with_two_ranks(family):
    run = labs.mesh(ranks=2, steps=1, limit_s=600, show=False)
    assert run.layouts == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert run.failed_checks() == []
    assert "2 ranks can't fill more axes than 1" in " ".join(run.explanation())
    assert len(run.table().tables) == 4


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.layouts == FOUR


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    assert "On 1 x 2 x 2 rank 0 talks along pipeline with rank 2, along tensor with rank 1" in words
    assert "2 x 1 x 2: 3.539 MB along data, 4.719 MB along tensor" in words
    assert "2 x 2 x 1: 3.539 MB along data, 294.9 kB along pipeline" in words
    assert "runs to the end without an error" in words
    assert "ranks=8" in words
    assert "and the last loss is" in words


def test_words_for_one_rank_and_for_one_step(recorded):
    alone = dataclasses.replace(recorded, settings={**recorded.settings, "ranks": 1})
    assert alone.explanation() == ["With one rank there is nobody to talk to: run the lab with more ranks."]
    short = dataclasses.replace(recorded, settings={**recorded.settings, "steps": 1})
    assert "last loss" not in " ".join(short.explanation())


def test_without_a_reading_the_prediction_stands_alone_and_says_so(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        traffic=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.traffic]),
    )
    assert "can't be read here" in str(blind.table("traffic"))
    assert blind.failed_checks() == []
    assert "kernel counts" not in " ".join(blind.explanation())
    assert MeshRun.from_json(blind.to_json()) == blind


def _with_first(rows, **changes):
    return (dataclasses.replace(rows[0], **changes), *rows[1:])


def _with_last(rows, **changes):
    return (*rows[:-1], dataclasses.replace(rows[-1], **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: {"groups": _with_first(run.groups, groups=((0, 1), (0, 2), (0, 3)))},
            "1 x 2 x 2: rank 0 is at (0, 0, 0) with ((0, 1), (0, 2), (0, 3)), not at (0, 0, 0) with ((0,),",
        ),
        (
            lambda run: {"groups": _with_last(run.groups, place=(0, 0, 0))},
            "2 x 2 x 1: rank 3 is at (0, 0, 0)",
        ),
        (
            lambda run: {"equality": _with_first(run.equality, loss_gap=1e-3)},
            "1 x 2 x 2: not equal to one process (loss 1.0e-03",
        ),
        (
            lambda run: {"equality": _with_first(run.equality, parameter_gap=float("nan"))},
            "1 x 2 x 2: not equal to one process (loss 2.4e-07, parameters nan",
        ),
        (
            lambda run: {"traffic": _with_last(run.traffic, kernel_bytes=(3833856.0 * 1.02,) * 4)},
            "2 x 2 x 1, all: the ranks send 3,910,533 /",
        ),
        (
            lambda run: {"traffic": _with_first(run.traffic, kernel_bytes=(0.0, 0.0, 0.0, 1.0))},
            "1 x 2 x 2, data: the ranks send 0 / 0 / 0 / 1 B, predicted 0 / 0 / 0 / 0 B",
        ),
    ],
)
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_rows_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="traffic must be asked for one of"):
        recorded.traffic_row((4, 1, 1), "data")
    with pytest.raises(ValueError, match="equality must be asked for one of"):
        recorded.trained((4, 1, 1))


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number of at least 1, not 0"),
        ({"ranks": 5}, "ranks must be one of 1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, to be 1 to 4 data"),
        ({"ranks": 64}, "tensor ranks, not 64"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.mesh(**arguments)
    assert message in str(caught.value)


# ---- the code to read ----


def test_the_source_shown_is_short_and_whole():
    source = str(labs.mesh.source())
    assert source.startswith("def training_step(")
    assert "def layer(" in source
    for name in ("training_step", "layer", "update"):
        lines = str(labs.mesh.source(name)).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 80
