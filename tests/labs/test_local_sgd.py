"""The local-SGD lab: the same training where it should be, H times fewer bytes, and a loss that is told as it is."""

import dataclasses
import importlib

import pytest

from shardlab import labs

# The module: shardlab.labs.local_sgd is the lab, and hides it.
LocalSgdRun = importlib.import_module("shardlab.labs.local_sgd").LocalSgdRun

P = 4 * (64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10)


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.local_sgd(ranks=4, intervals=[4, 16], steps=32, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.local_sgd.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_what_should_be_the_same_training_is(measured):
    gaps = {row.pair: row.parameter_gap for row in measured.equality}
    for pair in ("one process", "local, H = 1", "plain outer step"):
        assert gaps[pair] <= 1e-6
    # The comparison can tell: four steps alone lead elsewhere.
    assert gaps["local, H > 1"] > 1e-3


@pytest.mark.torch
def test_bytes_fall_by_exactly_h(measured):
    assert measured.n_bytes == P
    for shards in ("mixed", "sorted"):
        for method, every in (("synchronous SGD", 1), ("local SGD", 4), ("local SGD", 16), ("DiLoCo", 16)):
            row = measured.row(method, every, shards)
            assert row.predicted_bytes == 1.5 * P / every
            if measured.reading is not None:
                assert list(row.kernel_bytes) == pytest.approx([1.5 * P / every] * 4, rel=0.01)
        alone = measured.row("alone, SGD", 0, shards)
        assert alone.predicted_bytes == 0
        assert alone.kernel_bytes in (None, (0.0,) * 4)


@pytest.mark.torch
def test_losses_are_held_out_and_on_the_way(measured):
    for row in measured.training:
        assert [step for step, _ in row.losses] == [16, 32]
    # log 10 is what guessing among ten classes costs.
    assert measured.row("synchronous SGD", 1).loss < 2.3
    # Synchronous SGD doesn't see how the global batch is dealt out.
    mixed, by_class = (measured.row("synchronous SGD", 1, shards).loss for shards in ("mixed", "sorted"))
    assert mixed == pytest.approx(by_class, abs=1e-4)
    # Ranks that see few classes and never speak know only those.
    assert measured.row("alone, SGD", 0, "sorted").loss > measured.row("synchronous SGD", 1, "sorted").loss


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert LocalSgdRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
@pytest.mark.filterwarnings("error")
def test_one_rank_spawned(family):
    alone = labs.local_sgd(ranks=1, intervals=[2], steps=2, limit_s=600, start="spawn", show=False)
    assert alone.failed_checks() == []
    assert alone.explanation() == ["With one rank there is nothing to send: run the lab with more ranks."]
    assert str(alone)
    family.assert_all_gone()


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.settings["ranks"] == 4
    assert recorded.settings["intervals"] == [8, 64]


def test_the_recorded_run_tells_what_is_lost(recorded):
    def loss(method, every, shards):
        return recorded.row(method, every, shards).loss

    # Alike samples: local SGD stays near; unlike ones: the longer alone, the worse.
    assert loss("local SGD", 64, "mixed") < loss("alone, SGD", 0, "mixed")
    assert (
        loss("synchronous SGD", 1, "sorted")
        < loss("local SGD", 8, "sorted")
        < loss("local SGD", 64, "sorted")
        < loss("alone, SGD", 0, "sorted")
    )


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    assert ": 64 times less" in words
    for row in recorded.training:
        assert f"{row.loss:.3f}" in words
    assert "rate 0.7 and momentum 0.9" in words
    assert "looks back over about 10 rounds: H = 64 leaves it 4 in all" in words


def test_without_a_reading_the_prediction_stands_and_says_so(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        training=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.training]),
    )
    assert blind.failed_checks() == []
    assert "can't be read here" in str(blind.table("training"))
    assert "Sent (kernel)" not in str(blind.table("training"))


def _with(rows, place, **changes):
    changed = list(rows)
    changed[place] = dataclasses.replace(rows[place], **changes)
    return tuple(changed)


def _more(row):
    return tuple([2 * sent for sent in row.kernel_bytes])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: {"equality": _with(run.equality, 1, parameter_gap=1e-3)},
            "local SGD with H = 1 and synchronous SGD are not equal (parameters differ by 1.0e-03",
        ),
        (
            lambda run: {"equality": _with(run.equality, 0, parameter_gap=float("nan"))},
            "synchronous SGD and one process on the global batch are not equal",
        ),
        (lambda run: {"equality": _with(run.equality, 3, parameter_gap=0.0)}, "the comparison can't tell"),
        (
            lambda run: {"training": _with(run.training, 2, kernel_bytes=_more(run.training[2]))},
            "local SGD, H = 64, mixed shards: a rank sends",
        ),
        (
            lambda run: {"training": _with(run.training, 3, losses=((256, float("nan")),))},
            "alone, SGD, mixed shards: the loss is nan",
        ),
        (
            lambda run: {"training": _with(run.training, 0, losses=((256, 9.0),))},
            "synchronous SGD ends at different losses with mixed and sorted shards",
        ),
    ],
)
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_a_worse_loss_is_never_a_failed_check(recorded):
    worse = _with(recorded.training, 2, losses=((256, 2.2),))
    assert dataclasses.replace(recorded, training=worse).failed_checks() == []


def test_rows_and_texts_that_do_not_fit(recorded):
    with pytest.raises(ValueError, match="training must be asked for one of"):
        recorded.row("local SGD", 5)
    with pytest.raises(ValueError, match="text must be the JSON of a complete local_sgd lab"):
        LocalSgdRun.from_json('{"lab": "ddp", "complete": true}')


def test_the_picture_shows_loss_against_bytes(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        panels = recorded.plot(dark=dark).axes
        assert panels[0].get_ylabel() == "held-out loss"
        for axes, shards in zip(panels, ("mixed", "sorted"), strict=True):
            assert "bytes" in axes.get_xlabel()
            drawn = [list(line.get_ydata()) for line in axes.lines]
            assert [loss for _, loss in recorded.row("local SGD", 64, shards).losses] in drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"steps": 100}, "steps must be a multiple of each of intervals, [8, 64], not 100"),
        ({"intervals": 8}, "intervals must be a list of whole numbers of steps, not 8"),
        ({"intervals": "8"}, "intervals must be a list of whole numbers of steps, not '8'"),
        ({"intervals": []}, "intervals must hold at least one H, all different, not []"),
        ({"intervals": [8, 8]}, "intervals must hold at least one H, all different, not [8, 8]"),
        ({"intervals": [1]}, "each of intervals must be a whole number of at least 2, not 1"),
        ({"outer_lr": 0}, "outer_lr must be a finite number above 0, not 0"),
        ({"outer_momentum": 1.0}, "outer_momentum must be from 0 to below 1, not 1.0"),
        ({"outer_momentum": -0.1}, "outer_momentum must be"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.local_sgd(**arguments)
    assert message in str(caught.value)


def test_the_code_to_read_fits_a_page():
    text = str(labs.local_sgd.source("synchronous", "local_sgd", "diloco"))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert len(text.splitlines()) <= 45
    assert str(labs.local_sgd.source()).startswith(text)
