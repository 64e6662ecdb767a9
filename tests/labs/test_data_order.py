"""The data order lab: who reads what, biased and exact means, uneven batches; predicted and counted."""

import dataclasses
import itertools
import json
import multiprocessing
import sys

import pytest

from shardlab.labs.data_order import (
    AUGMENTATIONS,
    EXACT_METRICS,
    DataOrderRun,
    data_order,
    expected_never_read,
    expected_read_repeatedly,
    never_read_deviation,
)
from shardlab.labs.run import LabError

NAN = float("nan")


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    for _ in range(3):
        run = data_order.function(ranks=4, limit_s=600, show=False)
        # When the time was up, one may still have been on its way into the collective: once more.
        if all("waits in all_reduce" in place for place in run.hang.places[::2]):
            break
    return run


@pytest.fixture(scope="module")
def recorded():
    return data_order.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_without_set_epoch_every_epoch_has_the_same_order(measured):
    for ranks in (1, 2, 4):
        told, not_told = measured.epoch_row(ranks, True), measured.epoch_row(ranks, False)
        assert told.distinct_orders == told.predicted_orders == 3
        assert told.same_position < 0.1
        assert told.repeated_batches == 0
        assert not_told.distinct_orders == not_told.predicted_orders == 1
        assert not_told.same_position == not_told.repeated_batches == 1
        assert told.as_predicted
        assert not_told.as_predicted


@pytest.mark.torch
def test_padding_and_drop_last_hit_exactly_the_predicted_samples(measured):
    # 101 samples: padded to 102 and 104, cut to 100.
    for ranks, more, never in ((1, 0, 0), (2, 1, 1), (4, 3, 1)):
        padded = measured.padding_row(ranks)
        assert (len(padded.more), len(padded.never), padded.once) == (more, 0, 101 - more)
        if ranks > 1:
            cut = measured.padding_row(ranks, drop_last=True)
            assert (len(cut.more), len(cut.never), cut.once) == (0, never, 101 - never)
            # Unshuffled, the repeats are the first samples, every time.
            assert measured.padding_row(ranks, shuffle=False).more == tuple(range(more))
            even = measured.padding_row(ranks, samples=100)
            assert (even.once, even.more, even.never) == (100, (), ())
    assert all(row.as_predicted for row in measured.padding)


@pytest.mark.torch
def test_a_seed_per_rank_misses_as_many_as_chance_says(measured):
    assert [(row.ranks, row.per_rank) for row in measured.seeds] == [(2, 51), (4, 26)]
    for row in measured.seeds:
        assert row.never == pytest.approx(row.expected_never, abs=5 * row.standard_error)
        assert row.never > 15
        assert row.more == pytest.approx(row.expected_more, rel=0.2)


@pytest.mark.torch
def test_padding_biases_the_mean_and_both_mends_are_exact(measured):
    for ranks in (1, 2, 4):
        for way in EXACT_METRICS:
            row = measured.metric_row(ranks, way)
            assert row.mean == pytest.approx(row.single, abs=1e-6)
    padded = measured.metric_row(4, "padded")
    assert padded.bound == 3 / 24
    # The repeats are the three hardest: 13 of 24 hits instead of 13 of 21.
    assert padded.single == pytest.approx(13 / 21)
    assert padded.mean == pytest.approx(13 / 24)
    assert measured.metric_row(4, "drop_last").mean == pytest.approx(12 / 20)


@pytest.mark.torch
def test_loader_workers_draw_as_many_numbers_as_predicted(measured):
    if "fork" not in multiprocessing.get_all_start_methods():
        assert measured.augmentation == ()
        return
    assert [row.way for row in measured.augmentation] == list(AUGMENTATIONS)
    assert [row.distinct for row in measured.augmentation] == [4, 16, 32, 32]
    assert all(row.draws == 32 for row in measured.augmentation)


@pytest.mark.torch
def test_uneven_batches_hang_and_say_where(measured):
    assert measured.batches == (4, 2, 4, 2)
    assert measured.hang.hung
    assert measured.hang.steps == (2, 2, 2, 2)
    for rank, place in enumerate(measured.hang.places):
        assert ("loss.backward()" if rank % 2 == 0 else "ctx.barrier()") in place
        assert ("waits in all_reduce" in place) == (rank % 2 == 0)


@pytest.mark.torch
def test_join_divides_by_all_ranks_or_by_the_active_ones(measured):
    every, active = measured.join_row(True), measured.join_row(False)
    assert every.active == active.active == (4, 4, 2, 2)
    assert every.divisors == pytest.approx((4, 4, 4, 4), rel=1e-5)
    assert active.divisors == pytest.approx((4, 4, 2, 2), rel=1e-5)
    assert every.parameter_gap <= 1e-6
    assert active.parameter_gap <= 1e-6


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    assert DataOrderRun.from_json(measured.to_json()) == measured
    assert json.loads(measured.to_json())["complete"] is True


@pytest.mark.torch
def test_one_rank_has_no_one_to_wait_for(family):
    run = data_order.function(ranks=1, samples=16, epochs=2, limit_s=600, show=False)
    assert run.failed_checks() == []
    assert run.hang is None
    assert run.join == run.seeds == run.batches == ()
    assert list(run.make_tables()) == ["epochs", "padding", "metric", "augmentation"]
    assert "With one rank nothing is dealt out" in str(run)


# ---- chance, counted out ----


@pytest.mark.parametrize(("samples", "per_rank", "ranks"), [(4, 2, 2), (5, 2, 3), (4, 4, 2), (6, 1, 2)])
def test_expectations_by_counting_every_case(samples, per_rank, ranks):
    shares = list(itertools.combinations(range(samples), per_rank))
    never, more = [], []
    for dealt in itertools.product(shares, repeat=ranks):
        times = [sum([index in share for share in dealt]) for index in range(samples)]
        never.append(times.count(0))
        more.append(sum([count > 1 for count in times]))
    mean = sum(never) / len(never)
    assert expected_never_read(samples, per_rank, ranks) == pytest.approx(mean)
    assert expected_read_repeatedly(samples, per_rank, ranks) == pytest.approx(sum(more) / len(more))
    variance = sum([(one - mean) ** 2 for one in never]) / len(never)
    assert never_read_deviation(samples, per_rank, ranks) == pytest.approx(variance**0.5, abs=1e-9)


def test_many_ranks_miss_one_in_e():
    assert expected_never_read(64_000, 1_000, 64) / 64_000 == pytest.approx(0.3679, rel=0.01)
    assert never_read_deviation(1, 1, 1) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), "samples must be a whole number of at least 1, not 0"),
        ((4, 5, 1), "per_rank must be a whole number from 1 to 4, not 5"),
        ((4, 2, 0), "ranks must be a whole number of at least 1, not 0"),
    ],
)
def test_expectations_refuse_bad_input(arguments, message):
    for expect in (expected_never_read, expected_read_repeatedly, never_read_deviation):
        with pytest.raises(ValueError, match="must") as caught:
            expect(*arguments)
        assert message in str(caught.value)


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    assert recorded.settings == {"ranks": 4, "samples": 101, "eval_samples": 21, "epochs": 3}
    assert recorded.hang.hung


def test_the_words_carry_the_numbers(recorded):
    for text in (str(recorded), recorded._repr_html_()):
        assert "54.2% instead of 61.9%" in text
        assert "after 2 steps ranks 1, 3 are done and ranks 0, 2 wait" in text
        assert "2 times as much as the first" in text


def _with_last(rows, **changes):
    return (*rows[:-1], dataclasses.replace(rows[-1], **changes))


def _with_first(rows, **changes):
    return (dataclasses.replace(rows[0], **changes), *rows[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: {"epochs": _with_first(run.epochs, distinct_orders=1)}, "1 different orders, predicted 3"),
        (lambda run: {"epochs": _with_last(run.epochs, as_predicted=False)}, "4 ranks: a rank did not read"),
        (lambda run: {"padding": _with_last(run.padding, never=(5,))}, "0 read more than once and 1 never, predicted 0 and 0"),
        (lambda run: {"padding": _with_first(run.padding, as_predicted=False)}, "1 rank: a rank did not read"),
        (lambda run: {"seeds": _with_last(run.seeds, never=NAN)}, "a seed per rank: nan samples are never read"),
        (lambda run: {"seeds": _with_first(run.seeds, never=0.0)}, "0.00 samples are never read"),
        (lambda run: {"metric": _with_last(run.metric, predicted=0.5)}, "predicted 0.500000"),
        (lambda run: {"metric": _with_last(run.metric, single=0.5)}, "is not one process's 0.500000"),
        (lambda run: {"metric": _with_first(run.metric, single=0.5)}, "more than the bound of 0.0000"),
        (lambda run: {"join": _with_last(run.join, divisors=(4.0, 4.0, 4.0, NAN))}, "join, divide_by_initial_world_size=False"),
        (lambda run: {"join": _with_first(run.join, parameter_gap=NAN)}, "not equal to one process"),
        (lambda run: {"hang": dataclasses.replace(run.hang, hung=False)}, "should hang and did not"),
        (lambda run: {"hang": dataclasses.replace(run.hang, steps=(2, 2, 3, 2))}, "finished 2, 2, 3, 2 steps, predicted 2, 2, 2, 2"),
        (lambda run: {"augmentation": _with_first(run.augmentation, distinct=32)}, "drew 32 different random numbers, predicted 4"),
    ],
)  # fmt: skip
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


# ---- the hang's own errors ----


def _errors(monkeypatch, *outcomes):
    """Let the run that hangs end so, one after the other; returns the limits that it was given."""
    limits, left = [], list(outcomes)

    def run(*_, limit_s, **__):
        limits.append(limit_s)
        if left[0] is not None:
            raise left.pop(0)

    monkeypatch.setattr(sys.modules["shardlab.labs.data_order"], "run", run)
    return limits


def _limit(partial):
    return LabError("stopped\n  rank 0: here\n  rank 1: there", cause="limit", partial=partial)


def _hang(deadline_in=1000.0):
    module = sys.modules["shardlab.labs.data_order"]
    return module._hang(2, 2, 5.0, module.time.monotonic() + deadline_in, "auto", {"epochs": "kept"})


def test_ranks_that_start_slowly_get_more_time(monkeypatch):
    limits = _errors(
        monkeypatch, _limit({}), _limit({"rank0": 2, "rank1": 1}), _limit({"rank0": 2, "rank1": 2})
    )
    hang = _hang()
    assert limits == [5.0, 10.0, 20.0]
    assert (hang.hung, hang.limit_s, hang.steps, hang.places) == (True, 20.0, (2, 2), ("here", "there"))


def test_a_hang_that_never_comes_that_far_keeps_the_rest(monkeypatch):
    limits = _errors(monkeypatch, _limit({"rank0": 1}))
    with pytest.raises(LabError, match="stopped") as caught:
        _hang(deadline_in=5.0)
    assert limits == [5.0]
    assert (caught.value.cause, caught.value.partial) == ("limit", {"epochs": "kept"})


def test_another_error_in_the_hang_is_an_error(monkeypatch):
    _errors(monkeypatch, LabError("rank 1 fell", cause="died", rank=1))
    with pytest.raises(LabError, match="rank 1 fell") as caught:
        _hang()
    assert (caught.value.cause, caught.value.rank) == ("died", 1)


def test_a_run_that_does_not_hang_is_seen(monkeypatch, recorded):
    _errors(monkeypatch, None)
    failed = dataclasses.replace(recorded, hang=_hang()).failed_checks()
    assert any("should hang and did not" in sentence for sentence in failed)
    assert "hang" in dataclasses.replace(recorded, hang=_hang()).make_tables()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 65}, "ranks must be a whole number from 1 to 64, not 65"),
        ({"samples": 7}, "samples must be a whole number from 8 to 10000, not 7"),
        ({"ranks": 16, "samples": 15}, "samples must be a whole number from 16 to 10000, not 15"),
        ({"eval_samples": 3}, "eval_samples must be a whole number from 4 to 10000, not 3"),
        ({"epochs": 1}, "epochs must be a whole number of at least 2, not 1"),
        ({"hang_limit_s": 0}, "hang_limit_s must be a finite number above 0 seconds, not 0"),
        ({"limit_s": "long"}, "limit_s must be a finite number above 0 seconds, not 'long'"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        data_order(**arguments)
    assert message in str(caught.value)


def test_the_source_shown_fits_the_page():
    source = str(data_order.source())
    assert source.startswith("def read_epochs(")
    assert "set_epoch(epoch)" in source
    assert "model.join(" in source
    assert max(len(line) for line in source.splitlines()) <= 80
