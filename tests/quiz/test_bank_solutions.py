"""Q1, Q2, Q5, Q6 and Q7: every key worked out again from what the reader is shown, with formulas written down anew."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from shardlab.quiz import registry
from shardlab.quiz.model import fill, tolerance
from tests.quiz.test_banks import SEEDS, part_of, variant_of

UNITS = {
    "": 1,
    "billion": 1e9,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "min": 60,
    "h": 3600,
    "%": 0.01,
}
FRESH = [
    ("q1", ("fitting", "tensor", "pipeline", "same-share", "mesh")),
    ("q2", ("rounds", "growth", "measured", "tree", "counted")),
    ("q5", ("multiples", "stage", "accumulation", "time", "recipe")),
    ("q6", ("ratios", "needed", "schedules", "unequal", "zero-bubble")),
    ("q7", ("replay", "size", "interval", "asynchronous", "recovery")),
]
CASES = [(name, variant) for name, variants in FRESH for variant in variants]


def quantity(text):
    """A shown quantity in SI units, or None."""
    match = re.fullmatch(r"([\d.]+) ?(\D*)", text)
    return float(match[1]) * UNITS[match[2]] if match and match[2] in UNITS else None


class Seen:
    """What the reader sees: the given quantities by symbol, and the numbers of scenario and prompts."""

    def __init__(self, variant):
        self.variant = variant
        self.scenario = fill(variant.scenario, variant.values)
        self.given = {
            row.symbol: quantity(fill(row.value.format(**variant.values), {})) for row in variant.given
        }

    def __getitem__(self, symbol):
        return self.given[symbol]

    def numbers(self, part=None):
        text = (
            self.scenario if part is None else fill(part_of(self.variant, part).prompt, self.variant.values)
        )
        return [float(found) for found in re.findall(r"\d+(?:\.\d+)?", text)]

    def right(self, part):
        """Ids of the right options."""
        return [option.id for option in part_of(self.variant, part).options if option.correct]


def states(params, n, stage, weights=2, gradients=2, optimizer=12):
    split = {0: (1, 1, 1), 1: (1, 1, n), 2: (1, n, n), 3: (n, n, n)}[stage]
    return params * (weights / split[0] + gradients / split[1] + optimizer / split[2])


def fewest(holds):
    return next(number for number in range(1, 100_000) if holds(number))


def solve_q1(see):
    kind = see.variant.id
    if kind == "fitting":
        room = see["M"] - see["A"]
        stage = next(stage for stage in range(4) if states(see["Ψ"], see["N"], stage) <= room)
        assert see.right("first") == [f"zero{stage}"]
        return {"whole": 16 * see["Ψ"] / 1e9, "held": states(see["Ψ"], see["N"], stage) / 1e9}
    if kind == "tensor":
        activation = 2048 * see.numbers()[2] * 2
        layer = 4 * 2 * (see["t"] - 1) / see["t"] * activation
        assert see["A"] == pytest.approx(activation, rel=1e-3)
        return {
            "layer": layer / 1e6,
            "fast": see["L"] * layer / 300e9 * 1e3,
            "slow": see["L"] * layer / 25e9 * 1e3,
        }
    if kind == "pipeline":
        p, m = see["p"], see["m"]
        layers, hidden = see.numbers()[0], see.numbers()[5]
        activation = 2048 * hidden * 2
        # Inner stages send both ways; of two stages each sends one way.
        sent = activation * m * (1 if p == 2 else 2)
        tensor = m * layers * 8 * (p - 1) / p * activation
        return {"sent": sent / 1e6, "idle": 100 * (p - 1) / (m + p - 1), "ratio": tensor / sent}
    if kind == "same-share":
        n = see["N"]
        return {
            "share": 16 * see["Ψ"] / n / 1e9,
            "working": 2 * see["Ψ"] / see["L"] / 1e9,
            "gathered": 2 * (n - 1) / n * 2 * see["Ψ"] / 1e9,
        }
    assert kind == "mesh"
    d = see["W"] / see["t"] / see["p"]
    local = see["Ψ"] / see["t"] / see["p"]
    return {"data": d, "held": states(local, d, 1) / 1e9, "gradients": 2 * (d - 1) / d * 2 * local / 1e9}


def solve_q2(see):
    kind = see.variant.id
    size = see["P"]
    if kind == "rounds":
        n = see["N"]
        return {"chunk": size / n / 1e6, "rounds": 2 * (n - 1), "sent": 2 * (n - 1) / n * size / 1e9}
    if kind == "growth":
        few, many = see.numbers()[:2]
        # The first numeral of the prompt is the target, the second the 2 of 2P.
        target = see.numbers("near")[0] / 100
        return {
            "growth": 100 * ((many - 1) / many / ((few - 1) / few) - 1),
            "near": fewest(lambda n: (n - 1) / n >= target - 1e-12),
        }
    if kind == "measured":
        bus = 2 * (see["N"] - 1) / see["N"] * size / see["T"]
        return {"bus": bus / 1e9, "used": 100 * bus / see["B"]}
    if kind == "tree":
        n, lg = see["N"], math.log2(see["N"])

        def times(buffer):
            ring = 2 * (n - 1) * (buffer / n / see["B"] + see["α"])
            return ring, 2 * lg * (buffer / see["B"] + see["α"])

        low, high = 1.0, 1e12
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if times(middle)[0] > times(middle)[1] else (low, middle)
        ring, tree = times(size)
        return {"ring": 1e3 * ring, "tree": 1e3 * tree, "even": low / 1e6}
    assert kind == "counted"
    share = (see["N"] - 1) / see["N"] * size
    return {"textbook": share / 1e6, "step": 3 * share / 1e6}


def solve_q5(see):
    kind = see.variant.id
    if kind == "multiples":
        n, target = see["N"], see.numbers("even")[1]
        return {
            "first": 16 / (4 + 12 / n),
            "second": 16 / (2 + 14 / n),
            "even": fewest(lambda ranks: 16 / (4 + 12 / ranks) >= target - 1e-9),
        }
    if kind == "stage":
        room = see["M"] - see["A"]
        stage = next(stage for stage in range(4) if states(see["Ψ"], see["N"], stage) <= room)
        assert see.right("first") == [f"stage{stage}"]
        return {
            "second": states(see["Ψ"], see["N"], 2) / 1e9,
            "largest": room / states(1, see["N"], stage) / 1e9,
        }
    if kind == "accumulation":
        one_pass = (see["N"] - 1) / see["N"] * 2 * see["Ψ"] / 1e9
        g = see["G"]
        return {"one": 2 * one_pass, "two": (g + 1) * one_pass, "three": 3 * g * one_pass}
    if kind == "time":
        one_pass = (see["N"] - 1) / see["N"] * 2 * see["Ψ"]
        two, three = [see["C"] + passes * one_pass / see["B"] for passes in (2, 3)]
        # 3x = 1.1 (C + 2x) - C with x = pass / B
        needed = one_pass * (3 - 2.2) / (0.1 * see["C"])
        return {"two": 1e3 * two, "slower": 100 * (three / two - 1), "bandwidth": needed / 1e9}
    assert kind == "recipe"
    kept = {"16-bit weights, fp32": 6, "16-bit weights and": 4, "fp32 weights and g": 8}
    start = re.search(r"This one keeps (.{18})", see.scenario)[1]
    whole = next(size for text, size in kept.items() if text.startswith(start) or start.startswith(text))
    return {
        "per": whole + see["K"],
        "size": see["Ψ"] * (whole + see["K"] / see["N"]) / 1e9,
        "limit": (whole + see["K"]) / whole,
    }


def solve_q6(see):
    kind = see.variant.id
    p, m = see["p"], see.given.get("m")
    if kind == "ratios":
        return {
            "step": 1e3 * (m + p - 1) * (see["F"] + see["B"]),
            "total": 100 * (p - 1) / (m + p - 1),
            "ideal": 100 * (p - 1) / m,
        }
    if kind == "needed":
        share, chunks = see["x"] + 1e-12, see.numbers("woven")[0]
        return {
            "total": fewest(lambda number: (p - 1) / (number + p - 1) <= share),
            "ideal": fewest(lambda number: (p - 1) / number <= share),
            "woven": p * fewest(lambda rounds: (p - 1) / (chunks * rounds * p + p - 1) <= share),
        }
    if kind == "schedules":
        return {
            "gpipe": m * see["A"] / 1e9,
            "one": p * see["A"] / 1e9,
            "less": 100 * (p - 1) / (see["v"] * m + p - 1),
        }
    if kind == "unequal":
        through = see["L"] + (p - 1) * see["S"]
        step = through + (m - 1) * see["L"]
        even = (m + p - 1) * through / p
        return {"step": 1e3 * step, "idle": 100 * (1 - m * through / (p * step)), "even": step / even}
    assert kind == "zero-bubble"
    times = see["F"], see["B"], see["W"]
    zero = (p - 1) * (times[0] + times[1] - times[2])
    return {
        "one": 1e3 * (p - 1) * sum(times),
        "zero": 1e3 * zero,
        "idle": 100 * zero / (m * sum(times) + zero),
    }


def solve_q7(see):
    kind = see.variant.id
    if kind == "replay":
        steps = see["D"] / see["b"]
        return {
            "again": see["S"] % steps * see["b"],
            "rate": 100 * see["S"] / see["W"],
            "late": see["S"] + see["W"],
        }
    if kind == "size":
        size = 14 * see["Ψ"]
        write, every = size / see["B"], 60 * see.numbers("overhead")[0]
        return {"size": size / 1e9, "write": write, "overhead": 100 * write / (write + every)}
    if kind == "interval":
        between = see["m"] * 86400 / see["n"]
        best = math.sqrt(2 * see["δ"] * between)
        waste = see["δ"] / best + (best / 2 + see["R"]) / between
        return {"mtbf": between / 3600, "best": best / 60, "waste": 100 * waste}
    if kind == "asynchronous":
        period = see["τ"] + see["c"]
        return {
            "overhead": 100 * see["c"] / period,
            "lost": (period / 2 + see["d"]) / 60,
            "worst": (period + see["d"]) / 60,
        }
    assert kind == "recovery"
    load = 14 * see["Ψ"] / see["B"]
    ready = see["t"] + see["r"] + load
    back = {
        "halved": ready + see["τ"] / 4,
        "noticed": ready - see["t"] + see["τ"] / 2,
        "rapid": ready - load / 2 + see["τ"] / 2,
    }
    assert see.right("first") == [min(back, key=back.get)]
    return {"load": load / 60, "ready": ready / 60, "back": (ready + see["τ"] / 2) / 60}


SOLVERS = {"q1": solve_q1, "q2": solve_q2, "q5": solve_q5, "q6": solve_q6, "q7": solve_q7}


def differing(name, variant):
    """Ids of the figures whose key is not what the independent solver finds."""
    worked_out = SOLVERS[name](Seen(variant))
    asked = {part.id: part for part in variant.parts if part.kind == "number"}
    assert worked_out.keys() == asked.keys()
    # Half the tolerance is left to a reader who rounds on the way.
    return [
        part_id
        for part_id, part in asked.items()
        if abs(worked_out[part_id] - part.key)
        > max(tolerance(part.relative, part.absolute, part.key) / 2, 1e-9)
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_every_key_follows_from_what_the_reader_is_shown(name, variant, seed):
    assert differing(name, variant_of(name, variant, seed)) == []


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_wrong_key_is_noticed(name, variant):
    built = variant_of(name, variant)
    parts = [
        dataclasses.replace(part, key=part.key * 1.02 + 1) if part.kind == "number" else part
        for part in built.parts
    ]
    broken = dataclasses.replace(built, parts=tuple(parts))
    assert differing(name, broken) == [part.id for part in built.parts if part.kind == "number"]


@pytest.mark.parametrize("name", SOLVERS)
def test_every_fresh_variant_is_solved_here(name):
    assert [each.id for each in registry.load(name).variants[1:]] == list(dict(FRESH)[name])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SOLVERS)
def test_no_two_numbers_are_closer_than_the_tolerance(name, seed):
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


# The source's own questions: figures of the audit (facts A6, A7, A11 and table B1), of the papers they come from, or
# worked out by hand.
@pytest.mark.parametrize(
    ("name", "part", "key"),
    [
        ("q1", "zero1", 38.5),
        ("q2", "phase", 0.875),
        ("q2", "total", 1.75),
        ("q5", "stage1", 31.40625),
        ("q5", "saving", 7.2113),
        ("q6", "total", 46.6667),
        ("q6", "ideal", 87.5),
        ("q6", "needed", 63),
        ("q6", "held", 8),
        ("q7", "bytes", 98),
    ],
)
def test_the_sources_questions_have_the_audits_answers(name, part, key):
    assert part_of(variant_of(name, "chapter"), part).key == pytest.approx(key, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "part", "expected"),
    [
        ("q2", "total", {"full-2p": 2, "one-phase": 0.875, "single-copy": 1, "whole-cluster": 14}),
        ("q5", "stage1", {"limit-at-finite-n": 30, "nothing-sharded": 120, "all-sharded": 1.875}),
        ("q5", "saving", {"limit-at-finite-n": 8, "all-sharded": 64}),
        ("q6", "total", {"ideal-for-total": 87.5, "stages-for-gaps": 43.75, "turns-for-bubble": 12.5}),
        ("q6", "needed", {"ideal-for-total": 70, "rule-of-four": 32, "tie-is-too-much": 64}),
        ("q6", "held", {"all-in-flight": 32}),
        ("q7", "bytes", {"weights-only": 14, "gradients-are-state": 112, "copy-forgotten": 84}),
    ],
)
def test_typical_slips_at_the_sources_numbers(name, part, expected):
    mistakes = part_of(variant_of(name, "chapter"), part).mistakes
    for misconception, value in expected.items():
        values = [each.value for each in mistakes if each.misconception == misconception]
        assert any(found == pytest.approx(value, rel=1e-4) for found in values), misconception


@pytest.mark.parametrize(
    ("name", "variant", "part", "right"),
    [
        ("q1", "chapter", "one-layer", {"tensor"}),
        ("q1", "chapter", "copies", {"data", "zero1", "zero2"}),
        ("q1", "chapter", "pays", {"idle"}),
        ("q1", "fitting", "further", {"half"}),
        ("q1", "tensor", "place", {"pipeline"}),
        ("q1", "pipeline", "trade", {"idle"}),
        ("q1", "same-share", "differs", {"moves"}),
        ("q1", "mesh", "inner", {"tensor"}),
        ("q2", "chapter", "after", {"chunk"}),
        ("q2", "chapter", "why", {"cancel"}),
        ("q2", "chapter", "statements", {"ceiling", "compute", "hops"}),
        ("q2", "rounds", "double", {"same"}),
        ("q2", "growth", "strong", {"compute"}),
        ("q2", "measured", "compare", {"factor"}),
        ("q2", "tree", "small", {"tree"}),
        ("q2", "counted", "inside", {"allreduce"}),
        ("q5", "chapter", "sharded", {"optimizer", "gradients"}),
        ("q5", "chapter", "volume", {"three"}),
        ("q5", "chapter", "not-best", {"fits"}),
        ("q5", "multiples", "of-what", {"rest"}),
        ("q5", "accumulation", "remedy", {"larger"}),
        ("q5", "time", "worth", {"hidden"}),
        ("q6", "chapter", "remedies", {"many", "interleaved", "zero", "fewer"}),
        ("q6", "ratios", "compare", {"same"}),
        ("q6", "needed", "price", {"batch"}),
        ("q6", "schedules", "price", {"messages"}),
        ("q6", "schedules", "1f1b", {"same"}),
        ("q6", "unequal", "more", {"gap"}),
        ("q6", "zero-bubble", "free", {"memory"}),
        ("q7", "chapter", "contents", {"moments", "master", "schedule", "random", "data"}),
        ("q7", "chapter", "optimizer", {"later"}),
        ("q7", "chapter", "data", {"again"}),
        ("q7", "chapter", "verify", {"twin"}),
        ("q7", "replay", "cure", {"some"}),
        ("q7", "size", "keep", {"some"}),
        ("q7", "interval", "change", {"rises"}),
        ("q7", "asynchronous", "report", {"durable"}),
    ],
)
def test_the_right_options(name, variant, part, right):
    for seed in SEEDS:
        options = part_of(variant_of(name, variant, seed), part).options
        assert {option.id for option in options if option.correct} == right


def test_the_order_of_traffic_by_hand():
    """7 billion parameters of 2 bytes, 8 ranks; activations of 2048 x 4096 x 2 bytes, 32 layers, 8 sequences."""
    one_pass, activation = 7 / 8 * 14e9, 2048 * 4096 * 2
    sent = {
        "data": 2 * one_pass,
        "zero3": 3 * one_pass,
        "tensor": 8 * 32 * 4 * 2 * 7 / 8 * activation,
        "pipeline": 2 * 8 * activation,
    }
    items = part_of(variant_of("q1", "chapter"), "bytes").items
    assert [item.id for item in items] == sorted(sent, key=sent.get)


def test_the_order_of_accumulated_volumes_by_hand():
    passes = {"stage1": 2, "stage2": 5, "kept": 8, "stage3": 12}
    items = part_of(variant_of("q5", "chapter"), "accumulated").items
    assert [item.id for item in items] == sorted(passes, key=passes.get)


def test_the_order_of_schedules_by_hand():
    """Idle slots over all slots, with F = B = W: 7 of 39, 7/3 over 8 + 7/3, 7/2 over 8 + 7/2, 7 of 15."""
    idle = {"many": 7 / 39, "zero": 7 / 3 / (8 + 7 / 3), "interleaved": 3.5 / 11.5, "base": 7 / 15}
    items = part_of(variant_of("q6", "chapter"), "schedules").items
    assert [item.id for item in items] == sorted(idle, key=idle.get)
    shown = [fill(item.note, variant_of("q6", "chapter").values) for item in items]
    assert shown == [f"{100 * idle[item.id]:.1f} %" for item in items]
