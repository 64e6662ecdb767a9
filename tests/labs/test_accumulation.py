"""The accumulation lab: the right way equals one large batch, each wrong way is off as the model of DDP predicts."""

import dataclasses
import itertools
import json

import pytest

from shardlab.labs.accumulation import (
    RIGHT_WAYS,
    WAYS,
    WEIGHTINGS,
    AccumulationRun,
    accumulation,
)
from shardlab.models.batch import token_average

PARAMETERS = 2 * (384 * 384 + 384)
P = 4 * PARAMETERS


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return accumulation.function(ranks=2, micro_steps=3, steps=2, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return accumulation.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_the_right_ways_equal_one_process(measured):
    assert [row.way for row in measured.ways] == list(WAYS)
    for way in RIGHT_WAYS:
        row = measured.way(way)
        assert row.gradient_factor == pytest.approx(1, abs=1e-6)
        assert row.gradient_error <= 1e-6
        assert row.sgd_error <= 1e-5
        assert row.adam_error <= 1e-4
        assert row.sgd_apart == row.adam_apart == 0


@pytest.mark.torch
def test_the_flag_set_late_averages_the_first_micro_batch_alone(measured):
    row = measured.way("flag_late")
    # Wrong, and ranks that differ; yet what each rank holds is the model's, to fp32.
    assert row.gradient_error > 0.1
    assert row.sgd_apart > 0.1
    assert row.adam_apart > 0.1
    assert row.prediction_gap <= 1e-6
    # On every 61st parameter only: near, not equal.
    assert row.predicted_error == pytest.approx(row.gradient_error, rel=0.1)
    # The traffic does not tell.
    assert measured.wire_row("flag_late").payload_bytes == measured.wire_row("no_sync").payload_bytes == P


@pytest.mark.torch
def test_a_loss_that_is_not_divided_is_m_times_the_gradient_and_hides_in_adam(measured):
    row = measured.way("undivided")
    assert row.gradient_factor == pytest.approx(3, rel=1e-5)
    assert row.gradient_error == pytest.approx(2, rel=1e-5)
    assert row.predicted_error == pytest.approx(2, rel=1e-5)
    assert row.sgd_error > 1
    assert row.adam_error < 0.1
    assert row.sgd_apart == 0


@pytest.mark.torch
def test_clipping_and_stepping_in_the_loop_are_wrong(measured):
    assert measured.way("clip_every").gradient_error > 0.05
    every, quiet = measured.way("step_every"), measured.way("step_quiet")
    # SGD hardly notices, Adam's steps add up; with no_sync the ranks part.
    assert every.sgd_error < 0.2 < every.adam_error
    assert every.sgd_apart == 0
    assert quiet.sgd_apart > 0.1
    assert every.gradient_error is every.gradient_factor is quiet.prediction_gap is None


@pytest.mark.torch
def test_bytes_per_optimizer_step(measured):
    assert measured.parameters == PARAMETERS
    assert measured.n_bytes == P
    for way, allreduces in (("no_sync", 1), ("every", 3), ("backward_only", 3), ("flag_late", 1)):
        row = measured.wire_row(way)
        assert row.payload_bytes == allreduces * P
        # On two ranks 2 (N-1)/N is 1.
        assert row.predicted_bytes == allreduces * P
        if measured.reading is not None:
            assert list(row.kernel_bytes) == pytest.approx([allreduces * P] * 2, rel=0.01)


@pytest.mark.torch
def test_tokens_are_weighted_right_by_the_sum_over_all_ranks_alone(measured):
    assert [row.weighting for row in measured.tokens] == list(WEIGHTINGS)
    right = measured.weighting("global_tokens")
    assert right.gradient_error <= 1e-5
    assert right.error <= 1e-5
    missing = measured.weighting("world_missing")
    assert missing.gradient_factor == pytest.approx(1 / 2, rel=1e-5)
    assert missing.gradient_error == pytest.approx(1 / 2, rel=1e-5)
    for name in ("mean_of_means", "rank_tokens"):
        assert measured.weighting(name).gradient_error > 0.01
    for row in measured.tokens:
        assert row.prediction_gap <= 1e-6
        assert row.loss == pytest.approx(row.predicted_loss, rel=1e-6)
        assert row.apart == 0


@pytest.mark.torch
def test_predicted_losses_are_the_models(measured):
    sizes = list(itertools.chain(*measured.text_tokens))
    losses = list(itertools.chain(*measured.text_losses))
    assert len(sizes) == 6
    average = token_average(sizes, losses)
    assert measured.weighting("global_tokens").predicted_loss == pytest.approx(average.per_token, rel=1e-12)
    assert measured.weighting("mean_of_means").predicted_loss == pytest.approx(
        average.mean_of_means, rel=1e-12
    )
    assert measured.weighting("world_missing").predicted_loss == pytest.approx(
        average.per_token / 2, rel=1e-12
    )


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    again = AccumulationRun.from_json(measured.to_json())
    assert again == measured
    assert json.loads(measured.to_json())["complete"] is True


@pytest.mark.torch
def test_one_rank_has_nothing_to_average(family):
    run = accumulation.function(ranks=1, micro_steps=2, steps=1, limit_s=600, show=False)
    assert run.failed_checks() == []
    assert run.way("flag_late").gradient_error <= 1e-6
    assert run.wire_row("every").predicted_bytes == 0
    assert "With one rank nothing is averaged" in str(run)
    # What needs no second rank is as wrong.
    assert run.way("undivided").gradient_factor == pytest.approx(2, rel=1e-5)


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.settings == {"ranks": 4, "micro_steps": 4, "steps": 3}


def test_the_words_carry_the_numbers(recorded):
    for text in (str(recorded), recorded._repr_html_()):
        assert f"{recorded.way('flag_late').gradient_error:.0%}" in text
        assert "4.00 times as long" in text
        assert "0.25 times as long" in text
        assert "1,182,720" in text


def _with(rows, key, value, **changes):
    return tuple([dataclasses.replace(row, **changes) if getattr(row, key) == value else row for row in rows])


NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "key", "value", "changes", "message"),
    [
        ("ways", "way", "no_sync", {"gradient_error": 1e-3}, "the gradient is not one process's"),
        ("ways", "way", "no_sync", {"gradient_error": None}, "the gradient is not one process's"),
        (
            "ways",
            "way",
            "clip_once",
            {"gradient_error": NAN},
            "clip once, after the last: the gradient is not",
        ),
        ("ways", "way", "every", {"sgd_error": NAN}, "without no_sync: the parameters are not one process's"),
        ("ways", "way", "every", {"adam_apart": 0.1}, "not the same on all ranks"),
        (
            "ways",
            "way",
            "flag_late",
            {"prediction_gap": 0.1},
            "sync flag set after forward: the ranks don't hold",
        ),
        ("ways", "way", "undivided", {"prediction_gap": NAN}, "the model of DDP predicts"),
        ("wire", "way", "no_sync", {"payload_bytes": 4.0 * P}, "not 1,182,720 B"),
        ("wire", "way", "flag_late", {"kernel_bytes": (1.5 * P * 1.02,) * 4}, "+2.00% against"),
        ("tokens", "weighting", "global_tokens", {"gradient_error": 0.1}, "not equal to one process"),
        ("tokens", "weighting", "global_tokens", {"apart": NAN}, "not equal to one process"),
        ("tokens", "weighting", "mean_of_means", {"loss": 4.0}, "the loss is 4.000000, predicted 4.18"),
        (
            "tokens",
            "weighting",
            "rank_tokens",
            {"prediction_gap": 1e-3},
            "sum / tokens of this rank: the ranks",
        ),
    ],
)
def test_checks_can_fail(recorded, field, key, value, changes, message):
    rows = _with(getattr(recorded, field), key, value, **changes)
    failed = dataclasses.replace(recorded, **{field: rows}).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_rows_that_do_not_exist(recorded):
    for ask in (recorded.way, recorded.wire_row, recorded.weighting):
        with pytest.raises(ValueError, match="must be asked for one of"):
            ask("never")
    with pytest.raises(ValueError, match="name must be one of ways, wire, tokens, not 'ring'"):
        recorded.table("ring")


def test_the_source_shown_fits_the_page():
    source = str(accumulation.source())
    for name in ("accumulate", "flag_late", "token_step", "weights_global_tokens"):
        assert f"def {name}(" in source
    assert max(len(line) for line in source.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": "4"}, "ranks must be a whole number from 1 to 64, not '4'"),
        ({"micro_steps": 1}, "micro_steps must be a whole number of at least 2, not 1"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"limit_s": -1}, "limit_s must be a finite number above 0 seconds, not -1"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        accumulation(**arguments)
    assert message in str(caught.value)
