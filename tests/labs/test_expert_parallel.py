"""The expert-parallel lab: a routed layer against a dense one, load, bytes, dropped tokens, the balance loss."""

import dataclasses

import pytest

from shardlab import labs
from shardlab.labs.expert_parallel import SAME, ExpertParallelRun, by_rank
from shardlab.models.expert import expert_capacity, expert_load

TOKENS, EXPERTS, TOP_K, HIDDEN = 256, 8, 2, 64
ROUTERS = ("even", "uniform", "skewed")


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.expert_parallel(ranks=4, tokens=TOKENS, factors=(1.0, 2.0), steps=30, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.expert_parallel.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_experts_on_ranks_equal_the_dense_layer(measured):
    assert [(row.ranks, row.top_k, row.dispatch) for row in measured.equality] == [
        (n, k, dispatch) for n in (1, 2, 4) for k in (1, 2) for dispatch in ("dropless", "padded")
    ]
    for row in measured.equality:
        assert row.output_gap <= SAME
        assert row.gradient_gap <= SAME


@pytest.mark.torch
def test_an_even_router_sends_what_the_model_says(measured):
    for n in (1, 2, 4):
        size = 2 * TOP_K * TOKENS * HIDDEN * 4 * (n - 1) / n
        for part in ("forward", "backward"):
            row = measured.traffic_row(n, "even", part)
            assert row.balanced_bytes == size
            assert row.predicted_bytes == (size,) * n
            if measured.reading is not None:
                assert list(row.kernel_bytes) == pytest.approx([size] * n, rel=0.02)


@pytest.mark.torch
def test_a_skewed_router_makes_one_rank_send_more(measured):
    row = measured.traffic_row(4, "skewed")
    assert row.predicted_bytes[0] == max(row.predicted_bytes)
    assert row.predicted_bytes[0] > 1.2 * row.balanced_bytes
    if measured.reading is not None:
        assert list(row.kernel_bytes) == pytest.approx(list(row.predicted_bytes), rel=0.02)


@pytest.mark.torch
def test_load_is_counted_where_tokens_arrive(measured):
    for n in (1, 2, 4):
        for router in ROUTERS:
            row = measured.load_row(n, router)
            assert sum(row.experts) == sum(row.here) == n * TOKENS * TOP_K
            assert list(row.here) == by_rank(row.experts, n)
            assert row.rank_imbalance == expert_load(list(row.here)).imbalance
            # The model was asked before any token was routed; chance is all that is between them.
            assert row.expert_imbalance == pytest.approx(row.predicted_expert_imbalance, rel=0.15)
            assert row.rank_imbalance == pytest.approx(row.predicted_rank_imbalance, rel=0.15)
    assert measured.load_row(4, "even").expert_imbalance == 1
    assert measured.load_row(4, "skewed").rank_imbalance > 1.5


@pytest.mark.torch
def test_a_capacity_drops_what_the_model_says(measured):
    for router in ("uniform", "skewed"):
        tight, wide = measured.capacity_row(router, 1.0), measured.capacity_row(router, 2.0)
        for row in (tight, wide):
            assert row.capacity == expert_capacity(TOKENS, EXPERTS, TOP_K, row.factor)
            assert row.dropped == row.model_dropped
            assert row.touched_tokens == row.dropped_tokens
            assert row.kept_gap <= SAME
            assert row.dropped / row.assignments == pytest.approx(row.expected_fraction, abs=0.04)
        assert tight.dropped > wide.dropped
        assert wide.predicted == 2 * tight.predicted
    assert measured.capacity_row("skewed", 1.0).dropped > 2 * measured.capacity_row("uniform", 1.0).dropped


@pytest.mark.torch
def test_the_balance_loss_balances(measured):
    plain, balanced = measured.training_rows(0.0), measured.training_rows(0.1)
    assert len(plain) == len(balanced) == 30
    assert plain[0].sizes == balanced[0].sizes
    assert balanced[-1].imbalance < 0.75 * plain[-1].imbalance
    assert balanced[-1].imbalance < 0.6 * balanced[0].imbalance
    assert balanced[-1].dead < plain[-1].dead
    # Both learn the task.
    assert max(plain[-1].loss, balanced[-1].loss) < 0.5 * plain[0].loss


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert not measured.recorded
    assert ExpertParallelRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
def test_one_rank_with_one_expert_per_token(family):
    run = labs.expert_parallel(
        ranks=1, tokens=32, experts=4, top_k=1, factors=[1.0], steps=2, limit_s=600, show=False
    )
    assert run.failed_checks() == []
    assert [row.top_k for row in run.equality] == [1, 1]
    assert all(row.predicted == 0 for row in run.traffic)
    assert run.explanation()[0].startswith("With one rank there is nothing to send")
    assert len(run.table().tables) == 5


# ---- what can be said of any result ----


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    skewed = recorded.load_row(4, "skewed")
    assert "each rank sends 393.2 kB forward, as the model says" in words
    assert f"{skewed.rank_imbalance:.2f} times, predicted {skewed.predicted_rank_imbalance:.2f}" in words
    drop = recorded.capacity_row("uniform", 1.0)
    assert f"loses {drop.dropped / drop.assignments:.1%} of its assignments (expected" in words
    plain, balanced = (recorded.training_rows(weight)[-1] for weight in (0.0, 0.1))
    assert (
        f"it is {plain.imbalance:.2f} without the balance loss, with {plain.dead} of 8 experts dead" in words
    )
    assert f"and {balanced.imbalance:.2f} with it (times 0.1)" in words
    assert ("balance is not free" in words) is (balanced.loss > plain.loss)


def test_without_a_reading_the_prediction_stands_alone_and_says_so(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        traffic=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.traffic]),
        capacity=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.capacity]),
    )
    assert "can't be read here" in str(blind.table("traffic"))
    assert blind.failed_checks() == []
    assert "kernel counts" not in " ".join(blind.explanation())
    assert ExpertParallelRun.from_json(blind.to_json()) == blind


def _with_last(rows, **changes):
    return (*rows[:-1], dataclasses.replace(rows[-1], **changes))


def _with_first(rows, **changes):
    return (dataclasses.replace(rows[0], **changes), *rows[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: {"equality": _with_last(run.equality, gradient_gap=1e-3)},
            "4 ranks, top-2, padded: not equal to one process",
        ),
        (
            lambda run: {"equality": _with_last(run.equality, output_gap=float("nan"))},
            "not equal to one process (output nan",
        ),
        (
            lambda run: {"traffic": _with_last(run.traffic, kernel_bytes=(1.0,) * 4)},
            "4 ranks, skewed router, backward: the ranks send 1 / 1 / 1 / 1 B",
        ),
        (
            lambda run: {"traffic": _with_first(run.traffic, balanced_bytes=7.0)},
            "1 rank, even router: 0 B of tokens leave a rank, the model says 7 B",
        ),
        (
            lambda run: {"load": _with_last(run.load, here=(1, 2, 3, 4))},
            "4 ranks, skewed router: ranks got [1, 2, 3, 4] tokens",
        ),
        (lambda run: {"capacity": _with_last(run.capacity, dropped=0)}, "0 assignments of"),
        (lambda run: {"capacity": _with_last(run.capacity, touched_tokens=5)}, "and 5 outputs changed"),
        (
            lambda run: {"capacity": _with_last(run.capacity, kept_gap=float("nan"))},
            "tokens that were not dropped change by nan",
        ),
        (
            lambda run: {"capacity": _with_last(run.capacity, kernel_bytes=(900000.0,) * 4)},
            "skewed router, capacity factor 2: the ranks send 900,000",
        ),
    ],
)
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert len(failed) == 1
    assert message in failed[0]


def test_the_picture_names_its_axes_and_lines(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        axes = recorded.plot(dark=dark).axes[0]
        assert axes.get_xlabel() == "training step"
        assert "over the mean" in axes.get_ylabel()
        lines = [list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) > 2]
        assert lines == [[row.imbalance for row in recorded.training_rows(w)] for w in (0.0, 0.1)]


# ---- bad input, before anything starts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": 3}, "experts must be divisible by expert_parallel = 3"),
        ({"experts": 1}, "experts must be a whole number from 2 to 64, not 1"),
        ({"experts": 6}, "experts must be divisible by expert_parallel = 4"),
        ({"tokens": 100}, "tokens must be divisible by experts = 8, for an even router, not 100"),
        ({"tokens": 10**6}, "tokens must be a whole number from 1 to 25000, not 1000000"),
        ({"top_k": 9}, "top_k must be a whole number from 1 to 8, not 9"),
        ({"skew": -1}, "skew must be a finite number of at least 0, not -1"),
        ({"factors": []}, "factors must be a list of capacity factors, not []"),
        ({"factors": "1"}, "factors must be a list of capacity factors, not '1'"),
        ({"factors": [1, 1]}, "factors must be all different, not [1, 1]"),
        ({"factors": [0]}, "each of factors must be a finite number above 0, not 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"balance_weight": 0}, "balance_weight must be a finite number above 0, not 0"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.expert_parallel(**arguments)
    assert message in str(caught.value)


# ---- the code to read ----


def test_the_source_shown_is_short_and_whole():
    source = str(labs.expert_parallel.source())
    assert source.startswith("def mixture(")
    assert "def through_experts(" in source
    for name in ("mixture", "through_experts", "route", "balance_loss"):
        lines = str(labs.expert_parallel.source(name)).splitlines()
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 80
