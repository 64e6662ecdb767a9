"""Quiz c12: every key worked out again from what the reader is shown, with formulas written down anew."""

from __future__ import annotations

import re

import pytest

from shardlab.quiz import registry
from tests.quiz.test_bank_c11 import assert_slips, assert_told_apart, differing, prompt, spoilt
from tests.quiz.test_bank_solutions import Seen
from tests.quiz.test_banks import SEEDS, part_of, variant_of

FRESH = ("waits", "bubble", "meter", "uneven")


def waits(see):
    """Milliseconds of each rank, from the table: in the all-reduce, and computing."""
    step = see.numbers()[0]
    inside = [float(row[1]) for row in see.variant.table.rows]
    return step, inside, [step - each for each in inside]


def idle(p, m):
    return (p - 1) / (m + p - 1)


def solve(see):
    kind = see.variant.id
    if kind == "waits":
        _, inside, compute = waits(see)
        slowest = max(compute)
        return {
            "compute": slowest,
            "mended": sorted(compute)[-2] + min(inside),
            "lost": 100 * (1 - sum(compute) / len(compute) / slowest),
        }
    if kind == "bubble":
        reference, p, _, few, first, many, second = bubble_numbers(see)
        assert idle(p, few) > idle(p, many)
        assert first > 0
        assert second > 0
        return {
            "ceiling": reference * (1 - idle(p, few)),
            "expected": (1 - idle(p, many)) / (1 - idle(p, few)),
        }
    if kind == "meter":
        n = int(re.search(r"on (\d+) GPUs", see.scenario)[1])
        fast, slow = [float(found) for found in re.findall(r"([\d.]+) GB/s", see.scenario)]
        sent = 2 * (n - 1) / n * see["P"]
        before, after = [see["C"] + sent / (each * 1e9) for each in (fast, slow)]
        peak = float(see.variant.values["peak"]) * 1e12
        work = 6 * see["Ψ"] * see["D"]
        return {
            "step": after,
            "before": 100 * work / (before * peak),
            "after": 100 * work / (after * peak),
        }
    assert kind == "uneven"
    samples, n = int(see["n"]), int(see["N"])
    slice_ = -(-samples // n)
    counts = [len(range(samples)[rank * slice_ : (rank + 1) * slice_]) for rank in range(n)]
    return {
        "steps": min(counts),
        "waiting": len([count for count in counts if count > min(counts)]),
        "twice": -samples % n,
        "left": samples % n,
    }


def bubble_numbers(see):
    # "runs at R tokens/s on p GPUs without ... With p equal stages and m micro-batches (1F1B) it runs at X, with m' at Y"
    text = see.scenario.replace("1F1B", "")
    return [float(found) for found in re.findall(r"\d+", text)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", FRESH)
def test_every_key_follows_from_what_the_reader_is_shown(variant, seed):
    assert differing(solve, variant_of("c12", variant, seed)) == []


@pytest.mark.parametrize("variant", FRESH)
def test_a_wrong_key_is_noticed(variant):
    built = variant_of("c12", variant)
    asked = [part.id for part in built.parts if part.kind == "number"]
    assert differing(solve, spoilt(built)) == asked


def test_every_fresh_variant_is_solved_here():
    assert tuple([each.id for each in registry.load("c12").variants[1:]]) == FRESH


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_numbers_are_closer_than_the_tolerance(seed):
    assert_told_apart("c12", seed)


def test_the_chapters_case_by_hand():
    """63 ranks of 100 ms and one of 150: a mean of 100.78 ms; 63 x 50 of 64 x 150 rank-milliseconds are waited."""
    chapter = variant_of("c12", "chapter")
    assert part_of(chapter, "mean").key == pytest.approx(100 * (63 * 100 + 150) / 64 / 100 - 100)
    assert part_of(chapter, "waiting").key == pytest.approx(100 * 63 * 50 / (64 * 150))
    assert_slips(
        chapter, "mean", {"slow-rank-for-mean": 50, "step-inflation": 2.34375, "other-share": 32.8125}
    )
    assert_slips(chapter, "waiting", {"wrong-whole": 50, "other-share": 0.78125})


@pytest.mark.parametrize("seed", SEEDS)
def test_typical_slips_of_fresh_numbers(seed):
    built = variant_of("c12", "waits", seed)
    step, inside, compute = waits(Seen(built))
    assert_slips(built, "compute", {"long-wait-is-slow": min(compute), "whole-step": step})
    assert_slips(built, "mended", {"free-lunch": sorted(compute)[-2], "gain-denied": step})
    assert_slips(built, "lost", {"whole-step": 100 * sum(inside) / len(inside) / step})
    built = variant_of("c12", "bubble", seed)
    reference, p, _, few, *_ = bubble_numbers(Seen(built))
    assert_slips(built, "ceiling", {"no-bubble": reference, "hidden-exposed": reference * idle(p, few)})
    assert_slips(built, "expected", {"bubble-is-everything": 2})
    built = variant_of("c12", "meter", seed)
    see = Seen(built)
    right = solve(see)
    assert_slips(built, "before", {"forward-only": part_of(built, "before").key / 3})
    assert_slips(built, "after", {"busy-is-working": part_of(built, "before").key})
    assert part_of(built, "after").key == pytest.approx(right["after"], rel=2e-3)
    built = variant_of("c12", "uneven", seed)
    see = Seen(built)
    samples, n = int(see["n"]), int(see["N"])
    assert_slips(built, "steps", {"longest-for-shortest": -(-samples // n), "dealt-evenly": samples // n})
    assert_slips(built, "waiting", {"all-ranks-wait": n, "roles-swapped": 1})
    assert_slips(built, "twice", {"rest-for-padding": samples % n, "one-a-rank": n})
    assert_slips(built, "left", {"padding-for-rest": -samples % n})


@pytest.mark.parametrize("seed", SEEDS)
def test_the_slow_rank_is_the_one_with_the_shortest_all_reduce(seed):
    see = Seen(variant_of("c12", "waits", seed))
    _, inside, compute = waits(see)
    assert see.right("slow") == [f"rank{inside.index(min(inside))}"]
    arrivals = [int(item.id[4:]) for item in part_of(see.variant, "arrivals").items]
    assert arrivals == sorted(range(len(compute)), key=compute.__getitem__)
    assert len(set(compute)) == len(compute)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bubble_is_convicted_exactly_where_its_gain_came(seed):
    see = Seen(variant_of("c12", "bubble", seed))
    reference, p, _, few, first, many, second = bubble_numbers(see)
    came = second / first - 1 > 0.8 * (solve(see)["expected"] - 1)
    near = first > 0.9 * reference * (1 - idle(p, few))
    assert came == near
    assert see.right("verdict") == ["bubble" if came else "other"]
    assert f"{many:.0f} micro-batches" in prompt(see, "expected")


def test_seeds_bring_guilty_and_innocent_bubbles():
    verdicts = {Seen(variant_of("c12", "bubble", seed)).right("verdict")[0] for seed in SEEDS}
    assert verdicts == {"bubble", "other"}


@pytest.mark.parametrize(
    ("variant", "part", "right"),
    [
        ("chapter", "which", {"shortest"}),
        ("chapter", "shows", {"most", "collectives"}),
        ("meter", "shown", {"full"}),
        ("meter", "count", {"exchanges"}),
        ("uneven", "looks", {"hang"}),
    ],
)
def test_the_right_options(variant, part, right):
    for seed in SEEDS:
        options = part_of(variant_of("c12", variant, seed), part).options
        assert {option.id for option in options if option.correct} == right
