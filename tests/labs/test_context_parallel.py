"""The context-parallel lab: ring attention and Ulysses against one process, work and bytes against the model."""

import dataclasses

import pytest

from shardlab import labs
from shardlab.labs.context_parallel import SAME, SPLITS, ContextParallelRun
from shardlab.models.context import ring_work

SEQUENCE, HEADS, WIDTH = 384, 4, 32


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.context_parallel(ranks=4, sequence=SEQUENCE, heads=HEADS, repeats=1, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.context_parallel.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_split_attention_equals_one_process(measured):
    assert [(row.ranks, row.method, row.split) for row in measured.equality] == [
        (n, *method)
        for n in (1, 2, 4)
        for method in (("ring", "contiguous"), ("ring", "zigzag"), ("ulysses", "contiguous"))
    ]
    for row in measured.equality:
        assert row.output_gap <= 5e-6
        assert row.gradient_gap <= SAME
        # The comparison can tell: ranks that see their own tokens only are far off.
        assert (row.silent_gap > 0.1) is (row.ranks > 1)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("split", SPLITS)
def test_the_work_counted_is_the_models(measured, ranks, split):
    rows = measured.work_rows(ranks, split)
    model = ring_work(SEQUENCE, ranks, split)
    assert [row.rank for row in rows] == list(range(ranks))
    assert [sum(row.counted) for row in rows] == model.per_rank
    assert [list(step) for step in zip(*[row.counted for row in rows], strict=True)] == model.pairs
    assert sum(sum(row.counted) for row in rows) == SEQUENCE * (SEQUENCE + 1) // 2
    for row in rows:
        assert all(low <= high for low, high in zip(row.counted, row.computed, strict=True))
        # Tiles that the mask hides whole are skipped, not computed and thrown away.
        assert all(bool(low) is bool(high) for low, high in zip(row.counted, row.computed, strict=True))
    assert measured.balance(ranks, split).slowdown == pytest.approx(model.slowdown, rel=1e-12)


@pytest.mark.torch
def test_bytes_on_the_wire_are_the_models(measured):
    whole = 2 * SEQUENCE * HEADS * WIDTH * 4
    for n in (2, 4):
        expected = {
            ("ring", "one hop"): whole / n,
            ("ring", "forward"): (n - 1) * whole / n,
            ("ring", "backward"): (2 * n - 1) * whole / n,
            ("ulysses", "forward"): 2 * whole * (n - 1) / n**2,
            ("ulysses", "backward"): 2 * whole * (n - 1) / n**2,
        }
        for (method, part), size in expected.items():
            row = measured.traffic_row(n, method, part)
            assert row.predicted_bytes == (size,) * n
            if measured.reading is not None:
                assert list(row.kernel_bytes) == pytest.approx([size] * n, rel=0.02)
                assert min(row.kernel_bytes) >= size


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    assert ContextParallelRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
def test_heads_that_do_not_divide_leave_the_ring_alone(family):
    run = labs.context_parallel(
        ranks=2, sequence=128, heads=3, repeats=1, limit_s=600, start="spawn", show=False
    )
    assert run.failed_checks() == []
    assert {row.method for row in run.equality if row.ranks == 2} == {"ring"}
    assert {row.method for row in run.traffic if row.ranks == 2} == {"ring"}
    assert "Ulysses can't run on 2 ranks here" in " ".join(run.explanation())
    assert len(run.table().tables) == 4


# ---- what can be said of any result ----


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    assert recorded.balance(4, "contiguous").slowdown == pytest.approx(1.75, abs=0.001)
    assert recorded.balance(4, "zigzag").slowdown == 1
    assert "the last rank computes 516,288 pairs and the first 73,920: 7.0 times as many" in words
    assert "1.75 times as long as fair shares would" in words
    assert "each hop moves 786.4 kB of K and V" in words
    assert "2.33 times as much" in words
    assert "Ulysses sends 2.359 MB where the ring sends 7.864 MB: 3.3 times less" in words
    assert "4 ranks on 2 cores hide the imbalance" in words


def test_with_cores_for_all_the_critical_path_sets_the_least_time(recorded):
    wide = dataclasses.replace(recorded, stamp=dataclasses.replace(recorded.stamp, cores=16))
    one = recorded.work_rows(1, "contiguous")[0].seconds
    assert wide.balance(4, "contiguous").least_s == pytest.approx(one * 1.75 / 4, rel=1e-3)
    assert recorded.balance(4, "contiguous").least_s == pytest.approx(one / 2)
    assert "hide the imbalance" not in " ".join(wide.explanation())


def test_one_rank_has_nothing_to_split(recorded):
    alone = dataclasses.replace(recorded, equality=recorded.equality[:3])
    assert alone.explanation() == ["With one rank nothing is split: run the lab with more ranks."]


def test_without_a_reading_the_prediction_stands_alone_and_says_so(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        traffic=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.traffic]),
    )
    assert "can't be read here" in str(blind.table("traffic"))
    assert blind.failed_checks() == []
    assert "kernel counts" not in " ".join(blind.explanation())
    assert ContextParallelRun.from_json(blind.to_json()) == blind


def _with_last(rows, **changes):
    return (*rows[:-1], dataclasses.replace(rows[-1], **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: {"equality": _with_last(run.equality, gradient_gap=1e-3)},
            "4 ranks, ulysses, contiguous: not equal to one process (output 0.0e+00, gradients 1.0e-03",
        ),
        (
            lambda run: {"equality": _with_last(run.equality, output_gap=float("nan"))},
            "not equal to one process (output nan",
        ),
        (
            lambda run: {"work": _with_last(run.work, counted=(1, 2, 3, 4))},
            "rank 3 of 4, zigzag: computed [1, 2, 3, 4] pairs, predicted [73920, 73728, 73728, 73728]",
        ),
        (
            lambda run: {"traffic": _with_last(run.traffic, kernel_bytes=(1179648.0 * 1.02,) * 4)},
            "4 ranks, ulysses, backward: the ranks send 1,203,241 /",
        ),
        (
            lambda run: {"traffic": _with_last(run.traffic, kernel_bytes=(1179648.0,) * 3 + (1179647.0,))},
            "/ 1,179,647 B, predicted 1,179,648 /",
        ),
    ],
)
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_rows_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="traffic must be asked for one of"):
        recorded.traffic_row(3, "ring", "forward")


def test_the_picture_has_a_panel_for_each_split(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        panels = recorded.plot(dark=dark).axes
        assert [axes.get_title(loc="left").split(":")[0] for axes in panels] == list(SPLITS)
        assert "(query, key) pairs" in panels[-1].get_xlabel()
        ends = [max(bar.get_x() + bar.get_width() for bar in axes.patches) for axes in panels]
        assert ends == [ring_work(1536, 4, split).critical_pairs for split in SPLITS]


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": 3, "sequence": 1024}, "by twice each number of ranks ([2, 4, 6]), not 1024"),
        ({"sequence": 1540}, "by twice each number of ranks ([2, 4, 8]), not 1540"),
        ({"sequence": 0}, "sequence must be a whole number of at least 1, not 0"),
        ({"heads": 0}, "heads must be a whole number of at least 1, not 0"),
        ({"repeats": 1.5}, "repeats must be a whole number of at least 1, not 1.5"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.context_parallel(**arguments)
    assert message in str(caught.value)


# ---- the code to read ----


def test_the_source_shown_is_short_and_whole():
    source = str(labs.context_parallel.source())
    assert source.startswith("def ring_forward(")
    assert "def add_keys(" in source
    for name in ("ring_forward", "add_keys", "ulysses"):
        lines = str(labs.context_parallel.source(name)).splitlines()
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 80
