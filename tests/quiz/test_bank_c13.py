"""Quiz c13: every key worked out again from what the reader is shown, with formulas written down anew."""

from __future__ import annotations

import math
import re

import pytest

from shardlab.quiz import registry
from shardlab.quiz.model import fill
from tests.quiz.test_bank_c11 import assert_slips, assert_told_apart, differing, prompt, spoilt
from tests.quiz.test_bank_solutions import Seen
from tests.quiz.test_banks import SEEDS, part_of, variant_of

FRESH = ("run", "bought", "rows", "month")
TERA = 1e12


def shown(see, pattern):
    """The numbers of the scenario that ``pattern`` catches."""
    return [float(found) for found in re.search(pattern, see.scenario).groups()]


def teraflops(see, symbol):
    row = next(row for row in see.variant.given if row.symbol == symbol)
    return TERA * float(fill(row.value, see.variant.values).split()[0])


def run_causes(see):
    """Ranks of the data axis, then seconds: arithmetic, inside layers, bubble, across replicas."""
    psi, layers, hidden = shown(see, r"of ([\d.]+) billion parameters, (\d+) layers of hidden size (\d+)")
    world, t, p = shown(see, r"on (\d+) GPUs with (\d+) tensor.*?, (\d+) equal stages")
    m, s = shown(see, r"gets (\d+) micro-batches of one sequence of (\d+) tokens")
    d = world / t / p
    local = psi * 1e9 / t / p
    work = 6 * local * m * s / teraflops(see, "F′")
    # Two all-reduces forward and two backward, each of s x h numbers of 2 bytes.
    layer = 4 * 2 * (t - 1) / t * (s * hidden * 2)
    tensor = layer * (layers / p) * m / see["Bᵢₙ"]
    bubble = (work + tensor) * (p - 1) / m
    data = 2 * (d - 1) / d * 2 * local / see["B"]
    return d, local, m * s, (work, tensor, bubble, data)


def steps(see):
    """The step as it is, and with compute, links inside a node, the network, and the chunks doubled."""
    work, tensor, data, x = see["w"], see["c"], see["d"], see["x"]

    def step(work, tensor, data, x):
        return work + tensor + x * (work + tensor) + data

    return {
        "now": step(work, tensor, data, x),
        "chip": step(work / 2, tensor, data, x),
        "inside": step(work, tensor / 2, data, x),
        "network": step(work, tensor, data / 2, x),
        "chunks": step(work, tensor, data, x / 2),
    }


def errors(see):
    """Step name to (error over the measurement, whether it was fitted)."""
    return {
        name: (float(predicted) / float(measured) - 1, fitted == "yes")
        for name, predicted, measured, fitted in see.variant.table.rows
    }


def month(see):
    tokens, batch = shown(see, r"reads ([\d.]+) · 10\^12\^ tokens in steps of ([\d.]+) million")
    step, gpus = shown(see, r"takes ([\d.]+) s on (\d+) GPUs")
    useful = tokens * TERA / (batch * 1e6) * step
    between, write, restart = see["M"], see["δ"], see["R"]
    interval = math.sqrt(2 * write * between)
    waste = write / interval + (interval / 2 + restart) / between
    # Each interval and its write succeed with exp(-(tau + delta) / M); a failure costs R and the work since the last.
    segment = between * math.exp(restart / between) * math.expm1((interval + write) / between)
    return useful, gpus, interval, waste, useful / interval * segment


def solve(see):
    kind = see.variant.id
    if kind == "run":
        d, local, tokens, (work, tensor, bubble, data) = run_causes(see)
        step = work + tensor + bubble + data
        return {
            "data-ranks": d,
            "held": local * (4 + 12 / d) / 1e9,
            "work": work,
            "tensor": tensor,
            "bubble": bubble,
            "data": data,
            # The model is cut into pieces of `local` parameters, one a rank.
            "mfu": 100 * 6 * local * tokens / (step * teraflops(see, "F")),
        }
    if kind == "bought":
        return {name: seconds for name, seconds in steps(see).items() if name in ("now", "chip", "network")}
    if kind == "rows":
        worst = re.search(r"of step (\w)", prompt(see, "worst"))[1]
        held = [abs(error) for error, fitted in errors(see).values() if not fitted]
        return {"worst": 100 * abs(errors(see)[worst][0]), "mean": 100 * sum(held) / len(held)}
    assert kind == "month"
    useful, gpus, interval, waste, total = month(see)
    price = shown(see, r"costs (\d+) dollars")[0]
    return {
        "days": useful / 86400,
        "interval": interval / 60,
        "waste": 100 * waste,
        "bill": total / 3600 * gpus * price / 1e6,
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", FRESH)
def test_every_key_follows_from_what_the_reader_is_shown(variant, seed):
    assert differing(solve, variant_of("c13", variant, seed)) == []


@pytest.mark.parametrize("variant", FRESH)
def test_a_wrong_key_is_noticed(variant):
    built = variant_of("c13", variant)
    asked = [part.id for part in built.parts if part.kind == "number"]
    assert differing(solve, spoilt(built)) == asked


def test_every_fresh_variant_is_solved_here():
    assert tuple([each.id for each in registry.load("c13").variants[1:]]) == FRESH


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_numbers_are_closer_than_the_tolerance(seed):
    assert_told_apart("c13", seed)


def test_the_chapters_envelope_by_hand():
    """Llama 3 (arXiv 2407.21783, Tables 3 and 4): 126 layers of hidden size 16384, 128 x 16 sequences of 8192 tokens."""
    chapter = variant_of("c13", "chapter")
    see = Seen(chapter)
    rate = float(chapter.values["rate"]) * TERA
    work = float(chapter.values["flops"]) * 1e18 / 16384 / rate
    tensor = 16 * 126 / 16 * 8 * 8192 * 16384 * 2 * 7 / 8 / 450e9
    psi = see["Ψ"]
    assert psi == pytest.approx(405e9, rel=0.02)
    # 6 FLOP per parameter and token, and attention's products on top.
    assert 1 < float(chapter.values["flops"]) * 1e18 / (6 * psi * 2048 * 8192) < 1.15
    assert part_of(chapter, "work").key == pytest.approx(work, rel=2e-3)
    assert part_of(chapter, "bubble").key == pytest.approx((work + tensor) * 15 / 128, rel=2e-3)
    assert part_of(chapter, "data").key == pytest.approx(psi / 128 * 6 / 50e9, rel=2e-3)
    assert_slips(chapter, "work", {"forward-only": part_of(chapter, "work").key / 3})
    assert_slips(chapter, "bubble", {"interleaving-ignored": 8 * part_of(chapter, "bubble").key})
    assert_slips(chapter, "data", {"axis-forgotten": 128 * part_of(chapter, "data").key})


@pytest.mark.parametrize("seed", SEEDS)
def test_typical_slips_of_fresh_numbers(seed):
    built = variant_of("c13", "run", seed)
    keys = {part.id: part.key for part in built.parts if part.kind == "number"}
    assert_slips(built, "work", {"forward-only": keys["work"] / 3})
    assert_slips(built, "tensor", {"forward-only": keys["tensor"] / 2})
    assert_slips(built, "data", {"one-phase": keys["data"] / 2})
    built = variant_of("c13", "bought", seed)
    see = Seen(built)
    assert_slips(built, "now", {"no-bubble": see["w"] + see["c"] + see["d"]})
    assert_slips(built, "chip", {"amdahl-forgotten": steps(see)["now"] / 2})
    built = variant_of("c13", "rows", seed)
    found = errors(Seen(built))
    every = 100 * sum(abs(error) for error, _ in found.values()) / len(found)
    signed = 100 * abs(sum(error for error, fitted in found.values() if not fitted)) / 4
    assert_slips(built, "mean", {"fit-is-no-prediction": every})
    if abs(signed - every) > 0.5:
        assert_slips(built, "mean", {"signs-cancel": signed})
    built = variant_of("c13", "month", seed)
    see = Seen(built)
    _, _, interval, _, _ = month(see)
    without = 100 * (see["δ"] / interval + interval / 2 / see["M"])
    found = {each.misconception: each.value for each in part_of(built, "waste").mistakes}
    assert found["restart-forgotten"] == pytest.approx(without, rel=0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_orders_by_an_independent_model(seed):
    built = variant_of("c13", "run", seed)
    *_, causes = run_causes(Seen(built))
    names = dict(zip(("work", "tensor", "bubble", "data"), causes, strict=True))
    items = [item.id for item in part_of(built, "losses").items]
    assert items == sorted(names, key=names.get, reverse=True)
    built = variant_of("c13", "bought", seed)
    offered = steps(Seen(built))
    del offered["chip"]
    assert [item.id for item in part_of(built, "best").items] == sorted(offered, key=offered.get)
    built = variant_of("c13", "rows", seed)
    sizes = {name.lower(): abs(error) for name, (error, fitted) in errors(Seen(built)).items() if not fitted}
    assert [item.id for item in part_of(built, "order").items] == sorted(sizes, key=sizes.get)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_plan_holds_exactly_where_the_run_ends_in_time(seed):
    see = Seen(variant_of("c13", "month", seed))
    wanted = float(re.search(r"in (\d+) days", prompt(see, "deadline"))[1])
    assert see.right("deadline") == ["holds" if month(see)[-1] < wanted * 86400 else "late"]


def test_seeds_bring_plans_that_hold_and_plans_that_do_not():
    verdicts = {Seen(variant_of("c13", "month", seed)).right("deadline")[0] for seed in SEEDS}
    assert verdicts == {"holds", "late"}


@pytest.mark.parametrize(
    ("variant", "part", "right"),
    [
        ("chapter", "bracket", {"overlap"}),
        ("bought", "hidden", {"nothing"}),
        ("rows", "said", {"fitted", "open", "largest"}),
    ],
)
def test_the_right_options(variant, part, right):
    for seed in SEEDS:
        options = part_of(variant_of("c13", variant, seed), part).options
        assert {option.id for option in options if option.correct} == right
