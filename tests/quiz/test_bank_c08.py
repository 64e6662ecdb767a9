"""C08: every key worked out again from what the reader is shown, by a mesh that is listed rank by rank."""

from __future__ import annotations

import math
import re

import pytest

from shardlab.quiz import registry
from shardlab.quiz.model import fill, tolerance
from tests.quiz.test_bank_solutions import Seen
from tests.quiz.test_banks import SEEDS, part_of, variant_of

FRESH = ("weights", "ports", "links", "bill")
NODE = 8


def coordinates(number, sizes):
    """The digits of a rank, the fastest axis first."""
    digits = []
    for size in sizes:
        digits.append(number % size)
        number //= size
    return digits


def group(rank, along, sizes):
    """Ranks that differ from this one along these axes (by position) only."""
    fixed = [axis for axis in range(len(sizes)) if axis not in along]
    own = coordinates(rank, sizes)
    return [
        each
        for each in range(math.prod(sizes))
        if all(coordinates(each, sizes)[axis] == own[axis] for axis in fixed)
    ]


def leaving(stride, members):
    """Ranks of a full node whose next one in the ring sits elsewhere; members of a group lie ``stride`` apart."""
    out = {}
    for first in range(stride):
        ring = [first + stride * each for each in range(members)]
        for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
            if here // NODE != there // NODE:
                out[here // NODE] = out.get(here // NODE, 0) + 1
    return max(out.values(), default=0)


def solve_chapter(see):
    return {"strewn": see["Bᵢ"] / (see["Bₙ"] / leaving(stride=4, members=8))}


def weights_shown(see):
    tensor, context, data, stages = [int(size) for size in re.findall(r"\((\d+)", see.scenario)[:4]]
    sizes = [tensor, context, data, stages]
    assert math.prod(sizes) == see.numbers()[0]
    return sizes, int(re.search(r"Look at rank (\d+)", see.scenario)[1])


def solve_weights(see):
    sizes, rank = weights_shown(see)
    stage = group(rank, [3], sizes)
    return {
        "average": len(group(rank, [1, 2], sizes)),
        "before": stage[stage.index(rank) - 1],
        "groups": len({tuple(group(each, [0], sizes)) for each in range(math.prod(sizes))}),
    }


def solve_ports(see):
    stride = int(re.search(r"lie (\d+) apart", see.scenario)[1])
    out = leaving(stride, int(see["t"]))
    ring = see["Bₙ"] / out
    return {"leave": out, "ring": ring / 1e9, "factor": see["Bᵢ"] / ring}


def solve_links(see):
    sequence = int(re.search(r"one sequence of (\d+) tokens", see.scenario)[1])
    hidden = int(re.search(r"hidden size (\d+)", see.scenario)[1])
    d, local = see["d"], see["L"] / see["p"]
    tensor = local * 8 * 7 / 8 * sequence * hidden * 2 / see["Bᵢ"]
    one_pass = (d - 1) / d * 2 * see["Ψ"] / NODE / see["p"] / (see["Bₙ"] / NODE)
    return {
        "tensor": 1e3 * tensor,
        "data": 2e3 * one_pass,
        "even": math.ceil(2 * one_pass / tensor),
        "wide": 3e3 * one_pass,
    }


def bill_shown(see):
    """(step, tensor, pipeline) of the rows that fit, the fastest first."""
    capacity = float(re.search(r"([\d.]+) GB each", see.scenario)[1])
    rows = [[float(cell) for cell in row] for row in see.variant.table.rows]
    return sorted([(step, t, p) for t, p, memory, step in rows if memory <= capacity])


def solve_bill(see):
    fitting = bill_shown(see)
    filled = min([row for row in fitting if row[1] == NODE], key=lambda row: row[2])
    return {
        "least": min(t * p for _, t, p in fitting),
        "rule": 100 * (filled[0] / fitting[0][0] - 1),
    }


SOLVERS = {
    "chapter": solve_chapter,
    "weights": solve_weights,
    "ports": solve_ports,
    "links": solve_links,
    "bill": solve_bill,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SOLVERS)
def test_every_key_follows_from_what_the_reader_is_shown(name, seed):
    variant = variant_of("c08", name, seed)
    worked_out = SOLVERS[name](Seen(variant))
    asked = {part.id: part for part in variant.parts if part.kind == "number"}
    assert worked_out.keys() == asked.keys()
    for part_id, part in asked.items():
        # Half the tolerance is left to a reader who rounds on the way.
        margin = max(tolerance(part.relative, part.absolute, part.key) / 2, 1e-9)
        assert worked_out[part_id] == pytest.approx(part.key, abs=margin), part_id


def test_every_fresh_variant_is_solved_here():
    assert tuple(each.id for each in registry.load("c08").variants[1:]) == FRESH


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_with_the_same_weights(seed):
    variant = variant_of("c08", "weights", seed)
    sizes, rank = weights_shown(Seen(variant))
    same = group(rank, [1, 2], sizes)
    options = part_of(variant, "same").options
    shown = [int(fill(option.text, variant.values)) for option in options]
    assert len(set(shown)) == len(shown)
    assert rank not in shown
    assert all(0 <= number < math.prod(sizes) for number in shown)
    assert [option.correct for option in options] == [number in same for number in shown]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_layout_to_run_is_the_fastest_that_fits(seed):
    variant = variant_of("c08", "bill", seed)
    fitting = bill_shown(Seen(variant))
    assert len(fitting) < len(variant.table.rows)
    filled = min([row for row in fitting if row[1] == NODE], key=lambda row: row[2])
    for option in part_of(variant, "best").options:
        t, p = [float(each) for each in re.findall(r"\d+", option.text)]
        assert option.correct == ((t, p) == fitting[0][1:])
        if not option.correct:
            fits = (t, p) in [row[1:] for row in fitting]
            slug = "rule-for-prediction" if (t, p) == filled[1:] else "slower-layout"
            assert option.misconception == (slug if fits else "does-not-fit")


# The chapter prints these; the times by hand: bytes of the mesh's formulas over 450, 100 and 50 GB/s.
def test_the_chapters_case_by_hand():
    variant = variant_of("c08", "chapter")
    assert part_of(variant, "strewn").key == pytest.approx(4.5)
    activation, share = 2048 * 12288 * 2, 7 / 8
    tensor = 64 * 48 * 8 * share * activation
    # 175 billion parameters, as the table of the layout counts them, on 16 GPUs.
    data, pipeline = 2 * 2 * 0.5 * 174.6e9 / 16, 64 * activation / 8
    seconds = {
        "tensor-in": tensor / 450e9,
        "tensor-out": tensor / 100e9,
        "data-in": data / 450e9,
        "data-out": data / 50e9,
        "pipeline": pipeline / 50e9,
    }
    items = part_of(variant, "times").items
    assert [item.id for item in items] == sorted(seconds, key=seconds.get)
    units = {"s": 1, "ms": 1e-3}
    for item in items:
        value, unit = fill(item.note, variant.values).split()
        assert float(value) * units[unit] == pytest.approx(seconds[item.id], rel=2e-3)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            "strewn",
            {
                "numbering-is-free": 1,
                "every-rank-leaves": 9,
                "port-not-shared": 1.125,
                "nodes-for-hops": 4,
                "inverted": 2 / 9,
            },
        )
    ],
)
def test_typical_slips_at_the_chapters_numbers(part, expected):
    found = {each.misconception: each.value for each in part_of(variant_of("c08", "chapter"), part).mistakes}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_slips_of_the_fresh_variants(seed):
    def slips(name, part):
        variant = variant_of("c08", name, seed)
        return Seen(variant), {each.misconception: each.value for each in part_of(variant, part).mistakes}

    see, found = slips("weights", "average")
    sizes, rank = weights_shown(see)
    assert found["context-forgotten"] == len(group(rank, [2], sizes))
    see, found = slips("weights", "groups")
    assert found.get("size-for-number", sizes[0]) == sizes[0]
    see, found = slips("ports", "ring")
    assert found["numbering-is-free"] == pytest.approx(see["Bᵢ"] / 1e9)
    assert found.get("port-not-shared", see["Bₙ"] / 1e9) == pytest.approx(see["Bₙ"] / 1e9)
    see, found = slips("links", "tensor")
    assert found["one-layer"] == pytest.approx(solve_links(see)["tensor"] / (see["L"] / see["p"]), rel=1e-6)
    see, found = slips("links", "data")
    # The billions of parameters are shown with four digits.
    assert found["port-not-shared"] == pytest.approx(solve_links(see)["data"] / 8, rel=1e-3)
    assert found["one-phase"] == pytest.approx(solve_links(see)["data"] / 2, rel=1e-3)
    see, found = slips("bill", "rule")
    rule = 1 + solve_bill(see)["rule"] / 100
    assert found["rule-for-prediction"] == 0
    assert found["wrong-whole"] == pytest.approx(100 * rule)


@pytest.mark.parametrize(
    ("variant", "part", "right"),
    [
        ("chapter", "double", {"tensor", "pipeline", "zero3"}),
        ("chapter", "wrong-group", {"quiet"}),
        ("weights", "same", {"context", "data", "both"}),
        ("ports", "long", {"ports"}),
    ],
)
def test_the_right_options(variant, part, right):
    for seed in SEEDS:
        options = part_of(variant_of("c08", variant, seed), part).options
        assert {option.id for option in options if option.correct} == right
