"""C09: every key worked out again from what the reader is shown, with formulas written down anew."""

from __future__ import annotations

import math
import random
import re

import pytest

from shardlab.quiz import registry
from shardlab.quiz.model import fill, tolerance
from tests.quiz.test_bank_solutions import Seen
from tests.quiz.test_banks import SEEDS, part_of, variant_of

FRESH = ("skip", "batch", "waiting", "deal", "tokens")


def rows(see):
    return [[float(cell) for cell in row] for row in see.variant.table.rows]


def ring_s(n):
    """The cluster of chapter 03: 1 GB, 10 GB/s, 10 µs a hop."""
    return 2 * (n - 1) / n * 0.1 + 2 * (n - 1) * 10e-6


def solve_chapter(see):
    n, g = 8, 4
    return {"speedup": n * g * 0.1 / (g * 0.1 + ring_s(n))}


def solve_skip(see):
    (_, single), (_, _) = rows(see)
    compute = 1e3 * see["c"]
    sync = single - compute
    more = see.numbers("should")[0]
    return {"sync": sync, "should": (more * compute + sync) / 1e3, "limit": single / compute}


def batches(see):
    old_ranks, old_g, old_b, ranks, g, b = see.numbers()[:6]
    return old_ranks * old_g * old_b, ranks * g * b


def solve_batch(see):
    old, new = batches(see)
    k = new / old
    return {
        "size": new,
        "linear": k * see["ηₛ"],
        "root": math.sqrt(k) * see["ηₐ"],
        "beta": 1 - k * (1 - see["β₂"]),
    }


def computes(see):
    """Compute time of each rank, ms, and the all-reduce's own."""
    step = float(re.search(r"takes ([\d.]+) ms on every rank", see.scenario)[1])
    own = float(re.search(r"the all-reduce takes ([\d.]+) ms", see.scenario)[1])
    return [step - inside for _, inside in rows(see)], own


def solve_waiting(see):
    compute, own = computes(see)
    assert max(compute) + own == float(re.search(r"takes ([\d.]+) ms on every rank", see.scenario)[1])
    waits = [max(compute) - each for each in compute]
    return {
        "who": compute.index(max(compute)),
        "compute": max(compute),
        "lost": 100 * sum(waits) / len(waits) / max(compute),
        "healed": sorted(compute)[-2] + own,
    }


def solve_deal(see):
    n, w = int(see["n"]), int(see["W"])
    rounds = -(-n // w)
    return {"twice": rounds * w - n, "dropped": n % w, "missed": 100 * (1 - 1 / w) ** w}


def solve_tokens(see):
    tokens = [row[2] for row in rows(see)]
    on_zero = [row for row in rows(see) if row[0] == 0]
    return {
        "weight": sum(tokens) / 4 / min(tokens),
        "fed": sum(row[2] * row[3] for row in on_zero) * 2 / sum(tokens),
    }


SOLVERS = {
    "chapter": solve_chapter,
    "skip": solve_skip,
    "batch": solve_batch,
    "waiting": solve_waiting,
    "deal": solve_deal,
    "tokens": solve_tokens,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SOLVERS)
def test_every_key_follows_from_what_the_reader_is_shown(name, seed):
    variant = variant_of("c09", name, seed)
    worked_out = SOLVERS[name](Seen(variant))
    asked = {part.id: part for part in variant.parts if part.kind == "number"}
    assert worked_out.keys() == asked.keys()
    for part_id, part in asked.items():
        # Half the tolerance is left to a reader who rounds on the way.
        margin = max(tolerance(part.relative, part.absolute, part.key) / 2, 1e-9)
        assert worked_out[part_id] == pytest.approx(part.key, abs=margin), part_id


def test_every_fresh_variant_is_solved_here():
    assert tuple(each.id for each in registry.load("c09").variants[1:]) == FRESH


def test_the_verdict_is_that_of_the_table():
    seen = set()
    for seed in (*SEEDS, *range(20, 30)):
        variant = variant_of("c09", "skip", seed)
        (_, single), (g, measured) = rows(Seen(variant))
        in_force = measured < 0.999 * g * single
        seen.add(in_force)
        right = [option.id for option in part_of(variant, "verdict").options if option.correct]
        assert right == ["yes" if in_force else "no"]
        assert measured == pytest.approx(
            g * (single - 1e3 * Seen(variant)["c"]) + g * 1e3 * Seen(variant)["c"]
            if not in_force
            else single + (g - 1) * 1e3 * Seen(variant)["c"],
            abs=0.6,
        )
    assert seen == {True, False}


def test_the_share_that_seeds_of_their_own_miss_by_drawing_it():
    see = Seen(variant_of("c09", "deal"))
    n, w = int(see["n"]), int(see["W"])
    draw, shares = random.Random(0), []
    for _ in range(20):
        read = set()
        for rank in range(w):
            order = draw.sample(range(n), n)
            read |= set((order + order[: -n % w])[rank::w])
        shares.append(1 - len(read) / n)
    assert 100 * sum(shares) / 20 == pytest.approx(solve_deal(see)["missed"], abs=1)


def expected_maximum(ranks, distribution):
    """Mean of the largest of N draws over the midpoints of N equal slices of probability of the maximum."""
    slices = 4000
    total = 0.0
    for index in range(slices):
        total += distribution(((index + 0.5) / slices) ** (1 / ranks))
    return total / slices


def test_the_order_of_the_steps_by_another_way():
    """Quantiles of the largest of N, in place of the order statistics' integrals and harmonic numbers."""
    from statistics import NormalDist

    normal = NormalDist(100, 10).inv_cdf
    step = {
        "aligned": 100 + 0.01 * 100,
        "slow": 110,
        "eight": expected_maximum(8, normal),
        "many": expected_maximum(1024, normal),
        "tail": expected_maximum(1024, lambda share: 100 - 10 * math.log(1 - share)),
        "stalls": 100 + (1 - 0.99**512) * 100,
    }
    variant = variant_of("c09", "chapter")
    items = part_of(variant, "steps").items
    assert [item.id for item in items] == sorted(step, key=step.get)
    for item in items:
        shown = float(fill(item.note, variant.values).split()[0])
        assert shown == pytest.approx(step[item.id], abs=0.15), item.id


def test_typical_slips_at_the_chapters_numbers():
    found = {
        each.misconception: each.value for each in part_of(variant_of("c09", "chapter"), "speedup").mistakes
    }
    expected = {
        "bytes-per-micro-batch": 2.9076,
        "efficiency-for-speedup": 0.69549,
        "free-lunch": 8,
        "step-inflation": 1.43785,
    }
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_slips_of_the_fresh_variants(seed):
    def slips(name, part):
        variant = variant_of("c09", name, seed)
        return Seen(variant), {each.misconception: each.value for each in part_of(variant, part).mistakes}

    see, found = slips("skip", "should")
    single, more = rows(see)[0][1], see.numbers("should")[0]
    assert found["bytes-per-micro-batch"] == pytest.approx(more * single / 1e3)
    assert found["free-lunch"] == pytest.approx(more * see["c"])
    see, found = slips("batch", "linear")
    numbers = see.numbers()
    assert found["rate-kept"] == see["ηₛ"]
    assert found["ranks-for-batch"] == pytest.approx(see["ηₛ"] * numbers[3] / numbers[0])
    see, found = slips("waiting", "who")
    inside = [row[1] for row in rows(see)]
    assert found == {"longest-all-reduce": inside.index(max(inside))}
    see, found = slips("waiting", "healed")
    assert found["loss-stays"] == max(inside) + min(computes(see)[0])
    see, found = slips("deal", "twice")
    assert found.get("padding-for-dropping", see["n"] % see["W"]) == see["n"] % see["W"]
    see, found = slips("tokens", "fed")
    right = solve_tokens(see)["fed"]
    assert found["ranks-divide"] == pytest.approx(right / 2)
    mine = sum(row[2] for row in rows(see) if row[0] == 0)
    alone = right * sum(row[2] for row in rows(see)) / 2 / mine
    assert found.get("rank-for-all", alone) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("variant", "part", "right"),
    [
        ("chapter", "ways", {"skip", "every"}),
        ("skip", "sharded", {"gathers"}),
        ("chapter", "who", {"late"}),
        ("deal", "epoch", {"repeat"}),
        ("deal", "evaluate", {"sums"}),
        ("tokens", "adam", {"little"}),
    ],
)
def test_the_right_options(variant, part, right):
    for seed in SEEDS:
        options = part_of(variant_of("c09", variant, seed), part).options
        assert {option.id for option in options if option.correct} == right
