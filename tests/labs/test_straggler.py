"""The straggler lab: equal gradients, seeded draws, who waits for whom, and the models beside the measurement."""

import dataclasses
import math

import pytest

from shardlab.labs.straggler import StragglerRun, straggler
from shardlab.models.stragglers import expected_max_standard_normal, harmonic_number

SMALL = {"base_s": 0.003, "delays_s": [0.01], "jitter_s": 0.001, "steps": 4, "limit_s": 600, "show": False}


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return straggler(4, **SMALL)


@pytest.fixture(scope="module")
def recorded():
    return straggler.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_averaged_gradients_are_those_of_one_process(measured):
    rows = [*measured.slow, *measured.without, *measured.jitter]
    assert all(row.gradient_gap <= 1e-6 for row in rows)
    assert measured.failed_checks() == []


@pytest.mark.torch
def test_what_was_run(measured):
    assert [row.delay_s for row in measured.slow] == [0.0, 0.01]
    assert [row.ranks for row in measured.without] == [3]
    assert [(row.kind, row.ranks) for row in measured.jitter] == [
        (kind, n) for kind in ("normal", "exponential") for n in (1, 2, 4)
    ]
    slow = measured.slow_row(0.01)
    assert slow.asked_s == pytest.approx((0.003, 0.003, 0.003, 0.013))
    assert slow.asked_max_s == pytest.approx(0.013)
    for row in (*measured.slow, *measured.without, *measured.jitter):
        assert len(row.compute_s) == len(row.collective_s) == len(row.asked_s) == row.ranks
        # A sleep is never shorter than asked, a step never shorter than its slowest rank.
        assert all(done >= asked - 1e-4 for done, asked in zip(row.compute_s, row.asked_s, strict=True))
        assert row.step_s >= row.asked_max_s - 1e-4


@pytest.mark.torch
def test_the_draws_are_seeded_and_a_ranks_draws_stay_its_own(measured):
    for kind in ("normal", "exponential"):
        one, two, four = (measured.jitter_row(kind, n) for n in (1, 2, 4))
        assert four.asked_s[:2] == two.asked_s
        assert two.asked_s[:1] == one.asked_s
        # The maximum of more draws is never smaller.
        assert one.asked_max_s <= two.asked_max_s <= four.asked_max_s
        assert len(set(four.asked_s)) == 4


@pytest.mark.torch
def test_a_run_survives_json(measured):
    assert StragglerRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
def test_one_rank_started_by_spawn(family):
    run = straggler(1, **SMALL, start="spawn")
    assert run.failed_checks() == []
    assert run.without == ()
    assert run.explanation() == ["One rank waits for nobody: run the lab with more ranks."]
    assert run.slow[0].shortest_in_collective is None
    assert "-" in str(run.table("waiting"))
    family.assert_all_gone()


# ---- what can be said of any result ----


def test_the_recorded_run(recorded):
    assert recorded.recorded
    assert recorded.failed_checks() == []
    assert recorded.settings["ranks"] == 4
    # These numbers are kept: what they show can be asserted.
    for delay in (0.05, 0.2):
        row = recorded.slow_row(delay)
        assert row.shortest_in_collective == 3
        assert row.step_s > recorded.slow_row(0.0).step_s + 0.8 * delay
        assert min(row.collective_s[:3]) > 0.8 * delay
    text = str(recorded)
    for words in (
        "Expected maximum, ms",
        "Maximum of the draws, ms",
        "the shortest is rank 3's",
        "weak scaling",
    ):
        assert words in text
    assert recorded._repr_html_().count("<table") == 3


def test_predictions_are_the_models(recorded):
    base, spread = recorded.settings["base_s"], recorded.settings["jitter_s"]
    for n in (1, 2, 4):
        normal = recorded.predicted_jitter(recorded.jitter_row("normal", n)).expected_step_s
        assert normal == pytest.approx(base + spread * expected_max_standard_normal(n))
        tailed = recorded.predicted_jitter(recorded.jitter_row("exponential", n)).expected_step_s
        assert tailed == pytest.approx(base + spread * harmonic_number(n))
    slow = recorded.slow_row(0.2)
    assert recorded.predicted_slow_s(slow) == pytest.approx(base + 0.2 + recorded.overhead_s)
    assert recorded.predicted_slow_s(recorded.slow_row(0.0)) == pytest.approx(recorded.slow_row(0.0).step_s)


def test_the_draws_come_near_their_expectation(recorded):
    for row in recorded.jitter:
        expected = recorded.predicted_jitter(row).expected_step_s
        # Thirty seeded draws: their mean is off by a few of its standard errors at most.
        assert abs(row.asked_max_s - expected) < 4 * recorded.settings["jitter_s"] / math.sqrt(row.steps)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "slow",
            math.nan,
            "slower by 0 ms, 4 ranks: the averaged gradients are not those of one process (nan",
        ),
        ("without", 1e-3, "slow rank left out, 3 ranks: the averaged gradients"),
        ("jitter", 1.0, "normal jitter, 1 rank: the averaged gradients"),
    ],
)
def test_checks_can_fail(recorded, field, value, message):
    first, *others = getattr(recorded, field)
    broken = dataclasses.replace(first, gradient_gap=value)
    failed = dataclasses.replace(recorded, **{field: (broken, *others)}).failed_checks()
    assert len(failed) == 1
    assert failed[0].startswith(message)


def test_who_is_accused_follows_from_the_shortest_wait(recorded):
    row = dataclasses.replace(recorded.slow[-1], collective_s=(0.2, 0.01, 0.2, 0.2))
    assert row.shortest_in_collective == 1
    run = dataclasses.replace(recorded, slow=(*recorded.slow[:-1], row))
    assert "the shortest is rank 1's, and rank 3 is the slow one" in str(run)
    assert run.failed_checks() == []


def test_rows_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="slow must be asked for one of"):
        recorded.slow_row(1.0)
    with pytest.raises(ValueError, match="jitter must be asked for one of"):
        recorded.jitter_row("normal", 3)


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 65}, "ranks must be a whole number from 1 to 64, not 65"),
        ({"base_s": 0}, "base_s must be a finite number above 0 seconds, not 0"),
        ({"delays_s": []}, "delays_s must be a list of seconds, not []"),
        ({"delays_s": 0.1}, "delays_s must be a list of seconds, not 0.1"),
        ({"delays_s": [0.1, -1]}, "each of delays_s must be a finite number above 0 seconds, not -1"),
        ({"jitter_s": 0.04}, "jitter_s must be at most a third of base_s = 0.05, not 0.04"),
        ({"steps": 1}, "steps must be a whole number of at least 2, not 1"),
        ({"seed": 0.5}, "seed must be a whole number of at least 0, not 0.5"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        straggler(**arguments)
    assert message in str(caught.value)


def test_the_code_to_read_is_short():
    source = str(straggler.source())
    assert "all_reduce" in source
    assert len(source.splitlines()) <= 25
    assert max(len(line) for line in source.splitlines()) <= 80
