"""C07: every key worked out again from what the reader is shown, with formulas and counts written down anew."""

from __future__ import annotations

import re

import pytest

from shardlab.quiz.model import fill, tolerance
from tests.quiz.test_banks import SEEDS, part_of, variant_of

UNITS = {"": 1, "MB/s": 1e6, "GB/s": 1e9}


class Seen:
    """The given quantities of a variant in SI units, and its texts."""

    def __init__(self, variant):
        self.variant = variant
        self.scenario = fill(variant.scenario, variant.values)
        for row in variant.given:
            number, unit = re.fullmatch(r"([\d.]+) ?(\D*)", fill(row.value, variant.values)).groups()
            setattr(self, row.symbol, float(number) * UNITS[unit])

    def numbers(self, pattern):
        return [float(each) for each in re.search(pattern, self.scenario).groups()]

    def asked(self, part):
        text = fill(part_of(self.variant, part).prompt, self.variant.values)
        return [float(each) for each in re.findall(r"\d+(?:\.\d+)?", text)]


def block_pairs(query_block, key_block):
    """Work of two equal blocks of a long causal sequence, in full blocks."""
    return 1.0 if key_block < query_block else 0.5 if key_block == query_block else 0.0


def ring_steps(deal):
    """What each rank computes in each step of the ring, in full blocks; ``deal`` is the blocks of each rank."""
    c = len(deal)
    return [
        [sum(block_pairs(q, k) for q in deal[rank] for k in deal[(rank - step) % c]) for rank in range(c)]
        for step in range(c)
    ]


def solve_chapter(variant):
    see = Seen(variant)
    c = int(see.c)
    steps = ring_steps([[rank] for rank in range(c)])
    waited_for = sum(map(max, steps))
    rate = see.numbers(r"computes ([\d.]+) TFLOP/s")[0] * 1e12
    # 2 n² a d FLOP over F' against 2 n g d e bytes over B.
    n = 2 * see.g / see.B * rate / see.a
    return {"waits": 100 * (1 - sum(step[0] for step in steps) / waited_for), "hides": c * n}


def solve_deal(variant):
    see = Seen(variant)
    c = int(see.c)
    tokens = see.numbers(r"causal sequence of (\d+) tokens")[0]
    rank = int(see.asked("relative")[0])
    work = [sum(block_pairs(mine, theirs) for theirs in range(c)) for mine in range(c)]
    return {
        "relative": work[rank] / (sum(work) / c),
        # Pieces from rank + 1 to 2c - 2 - rank.
        "between": 2 * c - 2 - 2 * rank,
        "pairs": tokens * (tokens + 1) / 2 / c / 1e6,
    }


def solve_hop(variant):
    see = Seen(variant)
    c, n = see.numbers(r"ring of (\d+) ranks, (\d+) tokens")
    rate = getattr(see, "F′") * 1e12
    sent = 2 * n * see.g * see.d * 2
    send, compute = sent / see.B, 2 * n**2 * see.a * see.d / rate
    return {
        "send": 1e3 * send,
        "total": 1e3 * ((c - 1) * max(send, compute) + compute),
        "least": sent / compute / 1e9,
    }


def ways(variant):
    """Bytes of one layer that a rank sends, both passes, by way."""
    see = Seen(variant)
    tokens = see.numbers(r"over (\d+) tokens")[0]
    a, g, d, c = see.a, see.g, see.d, see.c
    keys = 2 * tokens * g * d  # numbers in all keys and values
    leave = (c - 1) / c
    return {
        "ring": 2 * leave * keys * 2 + keys * 4,
        "gather": 3 * leave * keys * 2,
        # q and the output have a heads, k and v at least one for each rank; all-to-alls before and after, two passes.
        "ulysses": 2 * leave * tokens / c * (2 * a + 2 * max(g, c)) * d * 2,
        "tensor": 4 * 2 * leave * tokens * a * d * 2,
    }, leave * keys * 2


def solve_ways(variant):
    a, g = int(Seen(variant).a), int(Seen(variant).g)
    most = max(ranks for ranks in range(1, a + 1) if a % ranks == 0 and g % ranks == 0)
    return {"forward": ways(variant)[1] / 1e6, "most": most}


def solve_busiest(variant):
    see = Seen(variant)
    copies = [int(row[2]) for row in variant.table.rows]
    ranks = {}
    for _, rank, size in variant.table.rows:
        ranks[rank] = ranks.get(rank, 0) + int(size)
    tokens, experts = see.numbers(r"sent (\d+) tokens to 2 of (\d+) experts")
    factor, slots = see.asked("dropped")
    assert sum(copies) == 2 * tokens
    assert len(copies) == experts
    assert factor * 2 * tokens / experts <= slots < factor * 2 * tokens / experts + 1
    stay = sum(min(size, slots) for size in copies)
    return {
        "imbalance": max(ranks.values()) * len(ranks) / sum(copies),
        "dropped": 100 * (1 - stay / sum(copies)),
        "empty": 100 * (1 - stay / (slots * len(copies))),
    }


def solve_exchange(variant):
    see = Seen(variant)
    chosen, tokens = see.numbers(r"goes to (\d+) of them. A rank has (\d+) tokens")
    rate = see.numbers(r"computes ([\d.]+) TFLOP/s")[0] * 1e12
    leave = (see.N - 1) / see.N
    ratio = 2 * see.h * 2 * leave / see.B / (6 * see.h * see.f / rate)
    factor = see.asked("padded")[0]
    return {
        "ratio": ratio,
        "width": see.f * ratio * 2,
        "padded": factor * 4 * chosen * tokens * see.h * 2 * leave / 1e6,
    }


SOLVERS = {
    "chapter": solve_chapter,
    "deal": solve_deal,
    "hop": solve_hop,
    "ways": solve_ways,
    "busiest": solve_busiest,
    "exchange": solve_exchange,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SOLVERS)
def test_every_key_follows_from_what_the_reader_is_shown(name, seed):
    variant = variant_of("c07", name, seed)
    worked_out = SOLVERS[name](variant)
    asked = {part.id: part for part in variant.parts if part.kind == "number"}
    assert worked_out.keys() == asked.keys()
    for part_id, part in asked.items():
        # Half the tolerance is left to a reader who rounds on the way.
        margin = tolerance(part.relative, part.absolute, part.key) / 2
        assert worked_out[part_id] == pytest.approx(part.key, abs=max(margin, 1e-9)), part_id


@pytest.mark.parametrize("seed", SEEDS)
def test_a_zigzag_gives_all_the_same_in_every_step(seed):
    variant = variant_of("c07", "deal", seed)
    c = int(Seen(variant).c)
    rank = int(Seen(variant).asked("relative")[0])
    steps = ring_steps([[each, 2 * c - 1 - each] for each in range(c)])
    assert all(len(set(step)) == 1 for step in steps)
    # The wrong pieces don't: whoever takes them does not have the work of the others.
    fair = sum(step[rank] for step in steps)
    for mistake in part_of(variant, "between").mistakes:
        piece = rank + 1 + int(mistake.value)
        own = sum(block_pairs(q, k) for q in (rank, piece) for k in range(2 * c))
        assert own != fair, mistake


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_the_ways(seed):
    variant = variant_of("c07", "ways", seed)
    found, _ = ways(variant)
    part = part_of(variant, "order")
    assert [item.id for item in part.items] == sorted(found, key=found.get)
    for item in part.items:
        shown = float(fill(item.note, variant.values).split()[0])
        assert shown * 1e6 == pytest.approx(found[item.id], rel=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hop_is_clearly_hidden_or_clearly_not(seed):
    variant = variant_of("c07", "hop", seed)
    see, found = Seen(variant), solve_hop(variant)
    shown = float(re.search(r"([\d.]+) ms", fill(part_of(variant, "total").prompt, variant.values))[1])
    assert not 0.9 < shown / found["send"] < 1.1
    assert found["least"] * 1e9 / see.B == pytest.approx(found["send"] / shown, rel=0.01)


def test_the_chapters_keys_are_those_of_the_notebook():
    variant = variant_of("c07", "chapter")
    assert part_of(variant, "waits").key == pytest.approx(93.333, abs=0.01)
    assert part_of(variant, "hides").key == pytest.approx(139_832, rel=1e-3)
    assert variant.values["slowdown"] == "1.875"


def slips_of(name, part, seed=None):
    """The first value of each misconception."""
    found = {}
    for each in part_of(variant_of("c07", name, seed), part).mistakes:
        found.setdefault(each.misconception, each.value)
    return found


def test_typical_slips_at_the_chapters_numbers():
    assert slips_of("chapter", "waits") == pytest.approx(
        {"diagonal-forgotten": 87.5, "mean-for-worst": 46.667, "hidden-exposed": 6.667, "mask-forgotten": 50},
        abs=0.01,
    )
    assert slips_of("chapter", "hides") == pytest.approx(
        {
            "one-rank-tokens": 17_480,
            "mask-forgotten": 69_920,
            "query-heads-travel": 559_360,
            "keys-twice": 279_680,
        },
        rel=1e-4,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_slips_of_the_fresh_variants(seed):
    found = slips_of("deal", "pairs", seed)
    key = part_of(variant_of("c07", "deal", seed), "pairs").key
    assert found["mask-forgotten"] == pytest.approx(2 * key)
    variant = variant_of("c07", "ways", seed)
    see, forward = Seen(variant), ways(variant)[1] / 1e6
    found = slips_of("ways", "forward", seed)
    assert found["keys-only"] == pytest.approx(forward / 2)
    if see.a > see.g:
        assert found.get("query-heads-travel", forward * see.a / see.g) == pytest.approx(
            forward * see.a / see.g
        )
    variant = variant_of("c07", "busiest", seed)
    copies = [int(row[2]) for row in variant.table.rows]
    expected = max(copies) * len(copies) / sum(copies)
    assert slips_of("busiest", "imbalance", seed)["experts-for-ranks"] == pytest.approx(expected)
    solved = solve_busiest(variant)
    assert slips_of("busiest", "dropped", seed)["dropped-for-empty"] == pytest.approx(solved["empty"])
    ratio = solve_exchange(variant_of("c07", "exchange", seed))["ratio"]
    assert slips_of("exchange", "ratio", seed)["gate-forgotten"] == pytest.approx(1.5 * ratio)


@pytest.mark.parametrize(
    ("name", "part", "right"),
    [
        ("chapter", "way", {"gather"}),
        ("chapter", "lowers", {"wide", "link"}),
        ("deal", "no-mask", {"any"}),
        ("hop", "hides", {"hide"}),
        ("ways", "doubled", {"ulysses"}),
        ("busiest", "larger", {"trade"}),
        ("exchange", "mend", {"node"}),
    ],
)
def test_the_right_options(name, part, right):
    for seed in SEEDS:
        options = part_of(variant_of("c07", name, seed), part).options
        assert {option.id for option in options if option.correct} == right
