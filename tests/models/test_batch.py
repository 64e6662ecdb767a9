"""Batch arithmetic: against PyTorch's own sampler and DDP where they exist, and against first principles."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import batch
from shardlab.models.lehmer import Lehmer

# ---------------------------------------------------------------- generator


def test_generator_is_the_one_it_says() -> None:
    """x <- 48271 x mod 2^31 - 1, and known to visit uniform values: mean 1/2, variance 1/12."""
    generator = Lehmer(0)
    values = [generator.uniform() for _ in range(20000)]
    steps = [round(value * 2147483647) for value in values]
    assert all(after == before * 48271 % 2147483647 for before, after in pairwise(steps))
    mean = math.fsum(values) / 20000
    assert mean == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 20000))
    assert math.fsum((value - mean) ** 2 for value in values) / 20000 == pytest.approx(1 / 12, rel=0.03)
    assert min(values) > 0
    assert max(values) < 1


def test_neighbouring_seeds_differ_at_once() -> None:
    first = [Lehmer(seed).below(1000) for seed in range(200)]
    assert len(set(first)) > 150


# ---------------------------------------------------------------- batch


def test_global_batch_and_back() -> None:
    assert batch.global_batch(2, 32, 4) == 256
    assert batch.accumulation_steps(256, 2, 4) == 32


@settings(deadline=None)
@given(micro=st.integers(1, 64), steps=st.integers(1, 256), ranks=st.integers(1, 4096))
def test_accumulation_undoes_the_global_batch(micro: int, steps: int, ranks: int) -> None:
    assert batch.accumulation_steps(batch.global_batch(micro, steps, ranks), micro, ranks) == steps


def test_accumulated_step_time() -> None:
    assert batch.accumulated_step_time_s(1.0, 0.5, 8) == 8.5
    assert batch.accumulated_step_time_s(1.0, 0.5, 8, sync_every_micro_batch=True) == 12


# ---------------------------------------------------------------- learning rate


def test_goyal_linear_rule() -> None:
    """0.1 at 256 becomes 3.2 at 8192, reached by warm-up."""
    peak = batch.scaled_learning_rate(0.1, 256, 8192)
    assert peak == pytest.approx(3.2)
    ramp = [batch.warmup_learning_rate(step, 4, peak, 0.1) for step in range(6)]
    assert ramp == pytest.approx([0.1, 0.875, 1.65, 2.425, 3.2, 3.2])
    assert batch.warmup_learning_rate(0, 0, 1e-3) == 1e-3


def test_square_root_rule_for_adam() -> None:
    """k = 4: lr x2, betas 1 - 4 (1 - beta), epsilon / 2."""
    new = batch.adam_sqrt_scaling(1e-3, 0.9, 0.999, 1e-8, 256, 1024)
    assert (new.lr, new.beta1, new.beta2, new.epsilon) == pytest.approx((2e-3, 0.6, 0.996, 5e-9))
    assert new.lr == pytest.approx(batch.scaled_learning_rate(1e-3, 256, 1024, "sqrt"))
    back = batch.adam_sqrt_scaling(new.lr, new.beta1, new.beta2, new.epsilon, 1024, 256)
    assert (back.lr, back.beta1, back.beta2, back.epsilon) == pytest.approx((1e-3, 0.9, 0.999, 1e-8))
    assert batch.scaled_learning_rate(1e-3, 256, 1024, "none") == 1e-3


def test_linear_rule_reproduces_small_steps_of_sgd() -> None:
    """Where the gradient hardly changes, k steps of lr equal one step of k lr: that is all the rule says."""

    def slope(weight: float) -> float:
        return 2 * (weight - 3)

    small = 0.0
    for _ in range(4):
        small -= 1e-4 * slope(small)
    large = 0.0 - batch.scaled_learning_rate(1e-4, 64, 256) * slope(0.0)
    assert large == pytest.approx(small, rel=1e-3)


def test_scheduler_plan_drops_incomplete_groups() -> None:
    plan = batch.scheduler_plan(10, 3, 4, 0.5)
    assert (plan.micro_steps, plan.optimizer_steps) == (30, 6)
    assert plan.warmup_updates == 3


# ---------------------------------------------------------------- texts of unequal length


def test_normal_numbers_are_normal() -> None:
    generator = Lehmer(5)
    drawn = [generator.normal() for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0, abs=0.03)
    assert sum(x * x for x in drawn) / len(drawn) == pytest.approx(1, abs=0.04)
    assert sum(x < 1 for x in drawn) / len(drawn) == pytest.approx(0.8413, abs=0.01)


def test_lengths_have_their_median_and_their_spread() -> None:
    lengths = batch.log_normal_lengths(4001, 256, 0.7, seed=1)
    assert sorted(lengths)[2000] == pytest.approx(256, rel=0.05)
    logs = [math.log(length / 256) for length in lengths]
    assert math.sqrt(sum(x * x for x in logs) / len(logs)) == pytest.approx(0.7, rel=0.04)
    assert lengths == batch.log_normal_lengths(4001, 256, 0.7, seed=1)
    assert lengths != batch.log_normal_lengths(4001, 256, 0.7, seed=2)
    assert batch.log_normal_lengths(5, 256, 0, seed=1) == [256] * 5
    assert min(batch.log_normal_lengths(500, 2, 2, seed=1)) == 1


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=60), places=st.integers(1, 12))
def test_dealt_by_tokens_nothing_is_lost_and_no_place_is_far_above_its_share(
    lengths: list[int], places: int
) -> None:
    """Graham's bound holds against the best deal; what is certain of that one is its longest text and the mean."""
    dealt = batch.deal_by_tokens(lengths, places)
    assert len(dealt) == places
    assert sorted(at for mine in dealt for at in mine) == list(range(len(lengths)))
    loads = [sum(lengths[at] for at in mine) for mine in dealt]
    # The fullest place got its last text when it had least, so at most the mean.
    assert max(loads) <= sum(lengths) / places + (1 - 1 / places) * max(lengths) + 1e-9
    for load, mine in zip(loads, dealt, strict=True):
        assert load - (lengths[mine[-1]] if mine else 0) <= min(loads)


def test_longest_first_on_grahams_own_case() -> None:
    """5, 5, 4, 4, 3, 3, 3 on 3: the best deal has 9 each, longest first 11, exactly 4/3 - 1/9 of it."""
    dealt = batch.deal_by_tokens([5, 5, 4, 4, 3, 3, 3], 3)
    assert dealt == [[0, 4, 6], [1, 5], [2, 3]]


# ---------------------------------------------------------------- averages


@settings(deadline=None)
@given(
    data=st.lists(st.tuples(st.integers(1, 5000), st.floats(0.01, 20)), min_size=1, max_size=32),
    ranks=st.integers(1, 64),
)
def test_scaled_sums_average_to_the_per_token_loss(data: list[tuple[int, float]], ranks: int) -> None:
    answer = batch.token_average([tokens for tokens, _ in data], [loss for _, loss in data])
    scale = batch.token_loss_scale(answer.tokens, ranks)
    sums = [0.0] * ranks
    for position, (tokens, loss) in enumerate(data):
        sums[position % ranks] += tokens * loss
    averaged = batch.ddp_gradients([[value * scale] for value in sums])
    assert averaged == pytest.approx([answer.per_token] * ranks)


def test_equal_lengths_hide_the_bug() -> None:
    answer = batch.token_average([50, 50], [2.0, 1.0])
    assert answer.per_token == answer.mean_of_means
    assert answer.relative_error == 0


TEXTS = st.integers(1, 6).flatmap(
    lambda steps: st.lists(
        st.lists(st.tuples(st.integers(1, 5000), st.floats(0.01, 20)), min_size=steps, max_size=steps),
        min_size=1,
        max_size=8,
    )
)


@settings(deadline=None)
@given(texts=TEXTS)
def test_each_weighting_logs_what_its_averages_say(texts: list[list[tuple[int, float]]]) -> None:
    """The weights give the same losses as averaging in the order in which a program does it."""
    tokens = [[size for size, _ in mine] for mine in texts]
    losses = [[loss for _, loss in mine] for mine in texts]
    whole = batch.token_average(
        [size for mine in tokens for size in mine], [loss for mine in losses for loss in mine]
    )
    per_rank = [
        batch.token_average(sizes, means).per_token for sizes, means in zip(tokens, losses, strict=True)
    ]
    expected = {
        "global_tokens": whole.per_token,
        "mean_of_means": whole.mean_of_means,
        "rank_tokens": sum(per_rank) / len(per_rank),
        "world_missing": whole.per_token / len(per_rank),
    }
    assert tuple(expected) == batch.TOKEN_WEIGHTINGS
    for weighting, loss in expected.items():
        assert batch.weighted_loss(tokens, losses, weighting) == pytest.approx(loss)


@settings(deadline=None)
@given(texts=TEXTS)
def test_all_weight_is_handed_out_and_some_of_it_to_the_wrong_tokens(
    texts: list[list[tuple[int, float]]],
) -> None:
    tokens = [[size for size, _ in mine] for mine in texts]
    for weighting in batch.TOKEN_WEIGHTINGS:
        answer = batch.token_weighting(tokens, weighting)
        factor = 1 / len(tokens) if weighting == "world_missing" else 1
        assert answer.gradient_factor == pytest.approx(factor)
        assert answer.least <= answer.gradient_factor * (1 + 1e-12)
        assert answer.most >= answer.gradient_factor * (1 - 1e-12)
        assert 0 <= answer.misplaced < 1
        if weighting in ("global_tokens", "world_missing"):
            assert answer.misplaced == pytest.approx(0)
            assert answer.least == pytest.approx(answer.most)


def test_ten_and_ninety_tokens() -> None:
    """Means over 10 and over 90 tokens count half each: 5 and 5/9 of the right weight, and 40 % of it has moved."""
    for tokens in ([[10], [90]], [[10, 90]]):
        answer = batch.token_weighting(tokens, "mean_of_means")
        assert [weight for mine in answer.weights for weight in mine] == pytest.approx([5, 5 / 9])
        assert (answer.least, answer.most, answer.misplaced) == pytest.approx((5 / 9, 5, 0.4))
    # One rank that adds up its own tokens is right; two are not.
    assert batch.token_weighting([[10, 90]], "rank_tokens").weights == [[1, 1]]
    assert batch.token_weighting([[10], [90]], "rank_tokens").misplaced == pytest.approx(0.4)
    assert batch.token_weighting([[10], [90]], "world_missing").weights == [[0.5], [0.5]]


@settings(deadline=None)
@given(
    gradients=st.integers(1, 6).flatmap(
        lambda steps: st.lists(
            st.lists(st.integers(-50, 50).map(float), min_size=steps, max_size=steps), min_size=1, max_size=8
        )
    ),
    data=st.data(),
)
def test_synchronised_or_not_no_gradient_is_lost(gradients: list[list[float]], data: st.DataObject) -> None:
    """The sum over ranks is always all gradients; ranks agree, on the mean, exactly when the last step averages."""
    steps = len(gradients[0])
    flags = data.draw(st.lists(st.booleans(), min_size=steps, max_size=steps))
    everything = math.fsum(value for mine in gradients for value in mine)
    held = batch.ddp_gradients(gradients, flags)
    assert math.fsum(held) == pytest.approx(everything, abs=1e-9)
    if flags[-1]:
        assert held == pytest.approx([everything / len(gradients)] * len(gradients), abs=1e-9)
    if not any(flags):
        assert held == [math.fsum(mine) for mine in gradients]


class _Vector(list[float]):
    """Adds in place with ``+=``, as tensors and arrays do."""

    def __add__(self, other: object) -> _Vector:
        return _Vector([a + b for a, b in zip(self, _spread(other, len(self)), strict=True)])

    __radd__ = __add__

    def __iadd__(self, other: object) -> _Vector:  # type: ignore[misc]
        self[:] = self + other
        return self

    def __truediv__(self, divisor: float) -> _Vector:
        return _Vector([a / divisor for a in self])


def _spread(value: object, size: int) -> list[float]:
    return [float(value)] * size if isinstance(value, (int, float)) else list(value)  # type: ignore[call-overload]


@pytest.mark.parametrize("flags", [None, [True, True], [True, False], [False, False]])
def test_whole_gradients_give_what_their_numbers_give(flags: list[bool] | None) -> None:
    """Ranks that share an object after an average must not add to it for one another."""
    numbers = [[[1.0, 2.0], [3.0, 5.0]], [[7.0, 11.0], [13.0, 17.0]]]
    given_ones = [[_Vector(step) for step in mine] for mine in numbers]
    held = batch.ddp_gradients(given_ones, flags)  # type: ignore[arg-type]
    for position in range(2):
        one = [[step[position] for step in mine] for mine in numbers]
        assert [mine[position] for mine in held] == pytest.approx(batch.ddp_gradients(one, flags))  # type: ignore[index]
    assert given_ones == numbers
    assert held[0] is not held[1]


# ---------------------------------------------------------------- data order


@settings(deadline=None)
@given(samples=st.integers(1, 500), ranks=st.integers(1, 32), drop=st.booleans())
def test_every_rank_gets_the_same_number(samples: int, ranks: int, drop: bool) -> None:
    if drop and samples < ranks:
        return
    plan = batch.shard_plan(samples, ranks, drop)
    order = list(range(samples))
    shards = [batch.rank_samples(order, ranks, rank, drop) for rank in range(ranks)]
    assert {len(shard) for shard in shards} == {plan.per_rank}
    read = [sample for shard in shards for sample in shard]
    assert len(read) == plan.used
    assert len(read) - len(set(read)) == plan.duplicates
    assert samples - len(set(read)) == plan.dropped


@pytest.mark.parametrize(("samples", "ranks"), [(10, 3), (21, 2), (7, 2), (3, 8), (16, 4)])
@pytest.mark.parametrize("drop", [False, True])
def test_shards_equal_torch_distributed_sampler(samples: int, ranks: int, drop: bool) -> None:
    data = pytest.importorskip("torch.utils.data.distributed", reason="torch is an optional dependency")
    if drop and samples < ranks:
        with pytest.raises(ValueError, match="samples must be at least"):
            batch.shard_plan(samples, ranks, drop)
        return
    for rank in range(ranks):
        sampler = data.DistributedSampler(
            range(samples), num_replicas=ranks, rank=rank, shuffle=False, drop_last=drop
        )
        assert list(sampler) == batch.rank_samples(list(range(samples)), ranks, rank, drop)
        assert len(sampler) == batch.shard_plan(samples, ranks, drop).per_rank


@settings(deadline=None, max_examples=50)
@given(samples=st.integers(1, 300), seed=st.integers(0, 10**6), epoch=st.integers(0, 100))
def test_order_is_a_permutation_and_repeats(samples: int, seed: int, epoch: int) -> None:
    order = batch.epoch_order(samples, seed, epoch)
    assert sorted(order) == list(range(samples))
    assert order == batch.epoch_order(samples, seed, epoch)


def test_shuffle_is_fair() -> None:
    """Over 6,000 seeds every one of the 6 orders of 3 samples comes up 1,000 times, within 5 standard deviations."""
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(batch.epoch_order(3, seed, 0))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    for size in counts.values():
        assert abs(size - 1000) < 5 * math.sqrt(6000 * 1 / 6 * 5 / 6)


@settings(deadline=None)
@given(samples=st.integers(1, 1000), ranks=st.integers(1, 64))
def test_contiguous_slices_lose_nothing(samples: int, ranks: int) -> None:
    counts = batch.contiguous_counts(samples, ranks)
    assert sum(counts) == samples
    assert len(counts) == ranks
    answer = batch.uneven_steps(counts)
    assert answer.hangs == (len(set(counts)) > 1)
    assert answer.safe_steps == min(counts)


@settings(deadline=None)
@given(step=st.integers(0, 10**6), length=st.integers(1, 10**4))
def test_position_points_back_to_the_step(step: int, length: int) -> None:
    position = batch.data_position(step, length)
    assert position.epoch * length + position.offset == step
    assert 0 <= position.offset < length


@settings(deadline=None)
@given(plan=st.integers(1, 500), stop=st.integers(1, 500), resume=st.integers(0, 500), saved=st.booleans())
def test_coverage_against_a_tape(plan: int, stop: int, resume: int, saved: bool) -> None:
    """Read the data step by step, as the run does, and count."""
    stop = min(stop, plan)
    resume = min(resume, stop)
    reads = [0] * plan
    for step in range(stop):
        reads[step if saved or step < resume else step - resume] += 1
    answer = batch.resume_coverage(plan, resume, stop, saved)
    assert [answer.never_read, answer.read_once, answer.read_twice] == [reads.count(n) for n in range(3)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: batch.accumulation_steps(100, 8, 4),
            r"global_batch_size must be a multiple .* = 32 \(nearest: 96 or 128\), not 100",
        ),
        (lambda: batch.accumulation_steps(10, 8, 4), r"nearest: 32\)"),
        (lambda: batch.global_batch(0, 1, 1), "micro_batch"),
        (
            lambda: batch.scaled_learning_rate(0.1, 256, 512, "cube"),
            "rule must be one of 'linear', 'sqrt', 'none'",
        ),
        (
            lambda: batch.adam_sqrt_scaling(1e-3, 0.9, 0.999, 1e-8, 256, 4096),
            "new_batch must be at most base_batch",
        ),
        (
            lambda: batch.adam_sqrt_scaling(1e-3, 1.0, 0.999, 1e-8, 256, 512),
            "beta1 must be a number from 0 to below 1",
        ),
        (lambda: batch.scheduler_plan(3, 1, 4, 0.1), "accumulation must be at most batches_per_epoch = 3"),
        (lambda: batch.scheduler_plan(8, 1, 4, 10), "warmup_fraction must be a number from 0 to 1"),
        (lambda: batch.token_average([1], [1.0, 2.0]), "two lists of the same length"),
        (lambda: batch.token_average([0, 0], [1.0, 2.0]), "at least one token"),
        (lambda: batch.token_average([1], [math.nan]), r"mean_losses\[0\] must be a finite number"),
        (lambda: batch.token_weighting([[1]], "by_heart"), "weighting must be one of 'global_tokens', "),
        (lambda: batch.token_weighting([]), "tokens must hold a list per rank"),
        (lambda: batch.token_weighting([[1], []]), r"tokens\[1\] must hold at least one micro-batch"),
        (
            lambda: batch.token_weighting([[1, 0]]),
            r"tokens\[0\]\[1\] must be a whole number of at least 1, not 0",
        ),
        (lambda: batch.weighted_loss([[1], [1]], [[1.0]]), "one number for each micro-batch of each rank"),
        (lambda: batch.weighted_loss([[1]], [[math.inf]]), r"mean_losses\[0\]\[0\] must be a finite number"),
        (lambda: batch.log_normal_lengths(0, 1, 1, 1), "samples must be a whole number of at least 1"),
        (lambda: batch.log_normal_lengths(1, 0, 1, 1), "median must be a finite number above 0 tokens"),
        (lambda: batch.log_normal_lengths(1, 1, -1, 1), "spread must be a finite number of at least 0"),
        (lambda: batch.deal_by_tokens([], 1), "lengths must hold at least one sample"),
        (lambda: batch.deal_by_tokens([0], 1), r"lengths\[0\] must be a whole number of at least 1"),
        (lambda: batch.deal_by_tokens([1], 0), "places must be a whole number of at least 1"),
        (lambda: batch.ddp_gradients([[1.0], [1.0, 2.0]]), r"micro_gradients\[1\] must hold 1 numbers"),
        (lambda: batch.ddp_gradients([[1.0]], [True, True]), "one flag per micro-batch"),
        (lambda: batch.ddp_gradients([]), "a list per rank"),
        (lambda: batch.shard_plan(2, 4, drop_last=True), "samples must be at least ranks = 4"),
        (lambda: batch.uneven_steps([]), "one number per rank"),
        (
            lambda: batch.resume_coverage(100, 60, 50, False),
            "resume_step must be a whole number from 0 to 50",
        ),
        (lambda: batch.data_position(5, 0), "steps_per_epoch"),
        (lambda: Lehmer(-1), "seed"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
