"""Quiz c11: every key worked out again from what the reader is shown, with formulas written down anew."""

from __future__ import annotations

import dataclasses
import re

import pytest

from shardlab.quiz import registry
from shardlab.quiz.model import fill, tolerance
from tests.quiz.test_bank_solutions import Seen
from tests.quiz.test_banks import SEEDS, part_of, variant_of

FRESH = ("kept", "bracket", "places", "back")


def differing(solve, variant):
    """Ids of the figures whose key is not what ``solve`` finds in what the reader sees."""
    worked_out = solve(Seen(variant))
    asked = {part.id: part for part in variant.parts if part.kind == "number"}
    assert worked_out.keys() == asked.keys()
    # Half the tolerance is left to a reader who rounds on the way.
    return [
        part_id
        for part_id, part in asked.items()
        if abs(worked_out[part_id] - part.key)
        > max(tolerance(part.relative, part.absolute, part.key) / 2, 1e-9)
    ]


def spoilt(variant):
    """The variant with every figure's key a little off."""
    parts = [
        dataclasses.replace(part, key=part.key * 1.04 + 1) if part.kind == "number" else part
        for part in variant.parts
    ]
    return dataclasses.replace(variant, parts=tuple(parts))


def slip(variant, part):
    """Wrong values of a figure: pairs (misconception, value)."""
    return [(each.misconception, each.value) for each in part_of(variant, part).mistakes]


def assert_slips(variant, part, expected):
    """Each expected misconception is there, with its value."""
    found = slip(variant, part)
    for misconception, value in expected.items():
        assert any(name == misconception and one == pytest.approx(value, rel=1e-4) for name, one in found), (
            misconception,
            found,
        )


def assert_told_apart(name, seed):
    """No two numbers of a figure lie within its tolerance, and each names at least two slips."""
    for variant in registry.load(name, seed).variants:
        for part in variant.parts:
            if part.kind != "number":
                continue
            taken = [part.key] + [mistake.value for mistake in part.mistakes]
            assert len(taken) > 2, (variant.id, part.id)
            for place, value in enumerate(taken):
                for other in taken[:place]:
                    margin = tolerance(part.relative, part.absolute, other)
                    assert abs(value - other) > margin, (variant.id, part.id, value, other)


def solve(see):
    kind = see.variant.id
    if kind == "kept":
        few, many = see["tₖ"], see["tₙ"]
        k, n = re.search(r"on (\d+) ranks, .* on (\d+) ranks", see.scenario).groups()
        growth = int(n) / int(k)
        return {"weak": 100 * few / many, "gain": growth * few / many, "strong": 100 * few / many / growth}
    if kind == "bracket":
        n, step = see["N"], see["tₙ"]
        sent = 2 * (n - 1) / n * see["P"]
        compute = see["t₁"] / n
        return {"compute": compute, "least": sent / step / 1e9, "most": sent / (step - compute) / 1e9}
    if kind == "places":
        gpu, node = map(int, re.search(r"GPU (\d+) of node (\d+)", prompt(see, "rank")).groups())
        return {"rank": node * see["g"] + gpu, "restarted": see["n"] * see["g"]}
    assert kind == "back"
    room = see["M"] - see["A"]
    ranks = next(n for n in range(1, 10_000) if 16 * see["Ψ"] / n <= room)
    every, last, old = map(
        int, re.search(r"every (\d+) steps; the last (\d+) .* every (\d+)th", see.scenario).groups()
    )
    step = int(re.search(r"Step (\d+)", prompt(see, "kept"))[1])
    saved = range(every, step + 1, every)
    kept = {one for one in saved if one % old == 0} | set(saved[-last:])
    return {
        "fewest": ranks,
        "held": 16 * see["Ψ"] / ranks / 1e9,
        "kept": len(kept),
        "storage": len(kept) * 14 * see["Ψ"] / 1e12,
    }


def prompt(see, part):
    return fill(part_of(see.variant, part).prompt, see.variant.values)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", FRESH)
def test_every_key_follows_from_what_the_reader_is_shown(variant, seed):
    assert differing(solve, variant_of("c11", variant, seed)) == []


@pytest.mark.parametrize("variant", FRESH)
def test_a_wrong_key_is_noticed(variant):
    built = variant_of("c11", variant)
    asked = [part.id for part in built.parts if part.kind == "number"]
    assert differing(solve, spoilt(built)) == asked


def test_every_fresh_variant_is_solved_here():
    assert tuple([each.id for each in registry.load("c11").variants[1:]]) == FRESH


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_numbers_are_closer_than_the_tolerance(seed):
    assert_told_apart("c11", seed)


def test_the_chapters_case_by_hand():
    """1 GB over 16 ranks: 1.875 GB sent, in the 200 ms by which 500 exceeds 300."""
    chapter = variant_of("c11", "chapter")
    assert part_of(chapter, "efficiency").key == pytest.approx(60)
    assert part_of(chapter, "most").key == pytest.approx(9.375)
    assert_slips(chapter, "efficiency", {"strong-for-weak": 3.75, "hidden-exposed": 40})
    assert_slips(
        chapter,
        "most",
        {
            "whole-step": 3.75,
            "algorithm-bandwidth": 5,
            "one-phase": 4.6875,
            "bits-for-bytes": 75,
            "full-2p": 10,
        },
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_typical_slips_of_fresh_numbers(seed):
    kept = variant_of("c11", "kept", seed)
    see = Seen(kept)
    right = solve(see)
    assert_slips(kept, "weak", {"strong-for-weak": right["strong"]})
    assert_slips(kept, "strong", {"weak-for-strong": right["weak"]})
    assert_slips(kept, "gain", {"efficiency-for-speedup": right["weak"] / 100})
    bracket = variant_of("c11", "bracket", seed)
    see = Seen(bracket)
    right = solve(see)
    assert_slips(bracket, "least", {"no-overlap": right["most"], "bits-for-bytes": 8 * right["least"]})
    assert_slips(bracket, "most", {"whole-step": right["least"], "one-phase": right["most"] / 2})
    assert_slips(bracket, "compute", {"weak-for-strong": see["t₁"]})
    places = variant_of("c11", "places", seed)
    right = solve(Seen(places))
    assert_slips(places, "rank", {"counted-from-one": right["rank"] + 1})
    assert_slips(places, "restarted", {"only-the-dead": 1, "off-by-one": right["restarted"] - 1})
    back = variant_of("c11", "back", seed)
    see = Seen(back)
    right = solve(see)
    without = next(n for n in range(1, 10_000) if 16 * see["Ψ"] / n <= see["M"])
    assert_slips(back, "fewest", {"activations-sharded": without})
    assert_slips(back, "held", {"nothing-sharded": 16 * see["Ψ"] / 1e9})
    assert_slips(back, "storage", {"gradients-are-state": right["kept"] * 16 * see["Ψ"] / 1e12})


@pytest.mark.parametrize("seed", SEEDS)
def test_the_link_is_convicted_exactly_where_it_delivered_less_than_half(seed):
    see = Seen(variant_of("c11", "bracket", seed))
    broken = solve(see)["most"] * 1e9 < 0.5 * see["B"]
    assert see.right("verdict") == ["repair" if broken else "bytes"]


def test_seeds_bring_broken_and_sound_links():
    verdicts = {Seen(variant_of("c11", "bracket", seed)).right("verdict")[0] for seed in SEEDS}
    assert verdicts == {"repair", "bytes"}


@pytest.mark.parametrize(
    ("variant", "part", "right"),
    [
        ("chapter", "blame", {"open"}),
        ("chapter", "back", {"weights", "moments", "rate"}),
        ("kept", "slower", {"strong"}),
        ("places", "launcher", {"place", "meet"}),
        ("back", "exploded", {"old"}),
    ],
)
def test_the_right_options(variant, part, right):
    for seed in SEEDS:
        options = part_of(variant_of("c11", variant, seed), part).options
        assert {option.id for option in options if option.correct} == right


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ladder_climbs_by_ranks(seed):
    ladder = part_of(variant_of("c11", "places", seed), "ladder")
    assert [item.id for item in ladder.items] == ["one", "pair", "node", "nodes", "all"]
