"""The clinic's numbers are the other models' and those of the public cases, and each fault gets worse with severity."""

from __future__ import annotations

import dataclasses

import pytest

from shardlab.models import antipatterns
from shardlab.models.batch import epoch_order, rank_samples
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.pipeline import bubble_of_total, simulate
from shardlab.models.stragglers import slow_rank_step

RUN = antipatterns.setting(ranks=64, bandwidth=50e9)
# One seed decides these two: more of the fault may hurt less by chance.
BY_CHANCE = {"own-shuffles"}


def totals(found: antipatterns.Comparison) -> list[float]:
    return [sum(row.values) for row in found.rows]


def test_setting_is_in_si_and_by_the_published_rate() -> None:
    assert RUN.params == pytest.approx(8.03e9, rel=1e-3)
    assert RUN.gradient_bytes == 2 * RUN.params
    assert RUN.compute_s == pytest.approx(6 * RUN.params * 8192 / 430e12)
    # 430 of 989 TFLOP/s, nothing but compute.
    assert antipatterns.model_flops_utilisation(RUN, RUN.compute_s) == pytest.approx(430 / 989)


@pytest.mark.parametrize("name", antipatterns.NAMES)
class TestEveryAntiPattern:
    def test_has_words_and_eight_levels(self, name: str) -> None:
        pattern = antipatterns.anti_pattern(name)
        assert len(pattern.levels) == antipatterns.LEVELS
        assert list(pattern.levels) == sorted(pattern.levels)
        for words in (pattern.symptom, pattern.tell, pattern.mend, pattern.harmless):
            assert words.endswith(".")

    def test_damage_is_there_and_grows(self, name: str) -> None:
        pattern = antipatterns.anti_pattern(name)
        values = antipatterns.damages(name, RUN)
        assert values[-1] > values[0] >= antipatterns.no_harm(pattern.damage_kind) - 1e-12
        if name not in BY_CHANCE:
            assert values == sorted(values)

    def test_rows_are_complete_and_damage_follows_from_them(self, name: str) -> None:
        found = antipatterns.compare(name, RUN, 5)
        assert {row.broken for row in found.rows} == {False, True} or found.curves
        assert not found.rows[0].broken
        assert all(len(row.values) == len(found.parts) for row in found.rows)
        if antipatterns.anti_pattern(name).damage_kind == "ratio":
            worst = max(sum(row.values) for row in found.rows if row.broken)
            assert found.damage == pytest.approx(worst / sum(found.rows[0].values))

    def test_what_it_does_not_need_does_not_matter(self, name: str) -> None:
        needs = antipatterns.anti_pattern(name).needs
        changed = {"ranks": 4, "bandwidth": 1.25e9, "model": "gpt2-xl", "tokens": 1024}
        start = {"ranks": 64, "bandwidth": 50e9, "model": "llama3-8b", "tokens": 8192}
        before = antipatterns.compare(name, antipatterns.setting(**start), 5)
        for key, value in changed.items():
            after = antipatterns.compare(name, antipatterns.setting(**{**start, key: value}), 5)
            assert (after == before) == (key not in needs), key


def test_traffic_is_the_rings() -> None:
    found = antipatterns.compare("uncounted-traffic", RUN, 3)
    ring = ring_allreduce_time_s(RUN.gradient_bytes, 64, 50e9 / 4)
    assert found.rows[1].values == pytest.approx((RUN.compute_s, ring))


def test_zero3_sends_half_as_much_again_for_every_micro_batch() -> None:
    for level, micro_batches in ((1, 1), (3, 4), (6, 32)):
        rows = antipatterns.compare("needless-zero3", RUN, level).rows
        assert rows[1].values[1] / rows[0].values[1] == pytest.approx(1.5 * micro_batches)


def test_zero3_is_harmless_on_a_fast_link_with_a_large_batch() -> None:
    fast = antipatterns.setting(64, 400e9, tokens=65536)
    assert antipatterns.compare("needless-zero3", fast, 8).damage < 1.05


def test_pipeline_agrees_with_the_executor_and_with_the_sources_bubble() -> None:
    run = antipatterns.setting(8, 50e9)
    for level in (1, 4, 6):
        found = antipatterns.compare("few-micro-batches", run, level)
        m = int(found.knob)
        assert found.rows[1].values[1] / totals(found)[1] == pytest.approx(bubble_of_total(8, m))
        part = run.compute_s / 8 / 3
        played = simulate("1f1b", 8, m, part, part, part)
        assert totals(found)[1] == pytest.approx(played.makespan_s / m)
    assert antipatterns.compare("few-micro-batches", run, 4).knob == 8
    assert bubble_of_total(8, 8) == pytest.approx(7 / 15)


def test_half_the_time_is_bubble_exactly_below_stages_less_one() -> None:
    assert bubble_of_total(8, 6) > 0.5
    assert bubble_of_total(8, 7) == 0.5


def test_mean_over_ranks_hides_what_the_step_shows() -> None:
    rows = antipatterns.compare("averaged-away", RUN, 5).rows
    step = slow_rank_step(RUN.compute_s, 1.5, 64)
    assert sum(rows[1].values) == sum(rows[2].values) == step.expected_step_s
    assert rows[3].values[0] / rows[0].values[0] == pytest.approx(1 + 0.5 / 64)


def test_own_shuffles_count_what_ranks_read() -> None:
    found = antipatterns.compare("own-shuffles", RUN, 8)
    once, more, never = found.rows[1].values
    assert found.rows[0].values == (32.0, 0.0, 0.0)
    assert once + more + never == 32
    # All eight ranks, each with an order of its own: about (7/8)**8 are missed.
    orders = [epoch_order(32, seed, 0) for seed in (0, *range(2, 9))]
    read = set()
    for rank, order in enumerate(orders):
        read |= set(rank_samples(order, 8, rank))
    assert abs(never / 32 - (7 / 8) ** 8) < 0.15
    assert len(read) < 32


def test_forgotten_memory_starts_at_the_crash() -> None:
    found = antipatterns.compare("weights-only", RUN, 5)
    (_, _, kept), (_, _, lost) = found.curves
    crash = int(found.knob)
    assert kept[: crash + 1] == lost[: crash + 1]
    assert kept[crash + 1] != lost[crash + 1]
    assert found.damage == pytest.approx(max(b[1] - a[1] for a, b in zip(kept, lost, strict=True)))


def test_kept_rate_is_late_and_not_abnormal() -> None:
    for level in range(2, 9):
        small, scaled, kept = antipatterns.compare("same-learning-rate", RUN, level).curves
        losses = [loss for _, loss in kept[2]]
        assert losses == sorted(losses, reverse=True)
        assert kept[2][-1][1] > small[2][-1][1]
        assert scaled[2][-1][1] < kept[2][-1][1]


def test_unused_rate_of_the_public_case() -> None:
    """Cosmos issue 161: 10.8 s of compute and 11.4 s of synchronisation: 88.8 s instead of 54.6 s."""
    run = dataclasses.replace(RUN, compute_s=10.8, ranks=2, bandwidth=RUN.gradient_bytes / 11.4)
    found = antipatterns.compare("sync-every-time", run, 3)
    assert totals(found) == pytest.approx([54.6, 88.8])
    assert found.damage == pytest.approx(1.63, abs=0.005)


def test_one_writer_is_bounded_by_its_own_speed() -> None:
    found = antipatterns.compare("rank-0-writes", RUN, 8)
    assert found.damage == pytest.approx(64)
    assert totals(found)[1] == pytest.approx(14 * RUN.params / antipatterns.WRITER_BANDWIDTH)


def test_mean_of_means_reaches_half_again() -> None:
    assert antipatterns.damages("mean-of-means", RUN)[0] == 0
    # One token of loss 2 beside 1024 of loss 1: 1.5 against just above 1.
    assert antipatterns.damages("mean-of-means", RUN)[-1] == pytest.approx(1.5 / (1040 / 1032) - 1, rel=1e-6)


def test_gpipe_holds_all_micro_batches() -> None:
    assert antipatterns.damages("gpipe-memory", RUN) == pytest.approx([1, 2, 3, 4, 6, 8, 12, 16])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: antipatterns.setting(1, 50e9), "ranks must"),
        (lambda: antipatterns.setting(8, 0), "bandwidth must"),
        (lambda: antipatterns.setting(8, 50e9, "bloom"), "model must"),
        (lambda: antipatterns.setting(8, 50e9, tokens=0), "tokens must"),
        (lambda: antipatterns.anti_pattern("laziness"), "name must"),
        (lambda: antipatterns.compare("weights-only", RUN, 9), "level must"),
        (lambda: antipatterns.no_harm("much"), "kind must"),
        (lambda: antipatterns.model_flops_utilisation(RUN, 0), "step_s must"),
        (lambda: antipatterns.sgd_losses(0, 0.5), "accumulation must"),
    ],
)
def test_bad_input_is_named(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
