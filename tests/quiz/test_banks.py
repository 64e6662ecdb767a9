"""The answer keys: worked out again from what the reader is shown, with formulas written down anew.

The chapter's own numbers are checked against the table of the audit; every drawn variant, for many seeds, by an
independent solver that reads the numbers out of the texts and tables of the question.
"""

from __future__ import annotations

import re

import pytest

from shardlab.quiz import registry
from shardlab.quiz.misconceptions import MISCONCEPTIONS
from shardlab.quiz.model import fill, tolerance, variant_texts

SEEDS = (None, 0, 1, 2, 5, 7, 11, 42, 99, 1234, 99991, 2**32 - 1)
# The seven questions of the source, and the quizzes of chapters that have none of those.
SEVEN = tuple([f"q{number}" for number in range(1, 8)])
NAMES = registry.names()
CHAPTERS = tuple([name for name in NAMES if name not in SEVEN])
FRESH = [
    ("q3", "table"),
    ("q3", "bandwidth"),
    ("q3", "strong"),
    ("q3", "overlap"),
    ("q3", "remedies"),
    ("q3", "latency"),
    ("q4", "ranks"),
    ("q4", "bandwidth"),
    ("q4", "tables"),
    ("q4", "overlap"),
    ("q4", "accumulate"),
    ("q4", "bits"),
]
# What an order goes down from; every other one goes up.
DOWN = ("highest", "most", "largest", "longest")
UNITS = {
    "ms": 1e-3,
    "s": 1,
    "µs": 1e-6,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "Gb/s": 1e9 / 8,
    "": 1,
}


def variant_of(name, variant, seed=None):
    return next(each for each in registry.load(name, seed).variants if each.id == variant)


def part_of(variant, part):
    return next(each for each in variant.parts if each.id == part)


class Shown:
    """What the reader sees of a variant, as numbers in SI units."""

    def __init__(self, variant):
        self.variant = variant
        self.scenario = fill(variant.scenario, variant.values)
        for row in variant.given:
            text = fill(row.value, variant.values)
            match = re.fullmatch(r"([\d.]+) ?(\D*)", text)
            if match:
                setattr(self, "alpha" if row.symbol == "α" else row.symbol, float(match[1]) * UNITS[match[2]])
        if variant.table:
            self.rows = [[float(cell) for cell in row] for row in variant.table.rows]

    def prompt(self, part):
        return fill(part_of(self.variant, part).prompt, self.variant.values)

    def numbers(self, part):
        return [float(found) for found in re.findall(r"\d+(?:\.\d+)?", self.prompt(part))]

    def ring(self, n, p=None, b=None):
        return 2 * (n - 1) / n * (p or self.P) / (b or self.B) + 2 * (n - 1) * self.alpha

    def needed(self, n, seconds):
        return 2 * (n - 1) / n * self.P / (seconds - 2 * (n - 1) * self.alpha)


def solve(name, variant):
    """Every number of a variant, in the unit that it is asked for."""
    see = Shown(variant)
    key = f"{name}/{variant.id}"
    if key == "q3/table":
        few, many = map(int, see.numbers("growth"))
        step = {int(row[0]): row[2] for row in see.rows}
        size = float(re.search(r"all-reduces ([\d.]+) (GB|MB)", see.scenario)[1])
        size *= 1e9 if " GB of" in see.scenario else 1e6
        return {
            "growth": (many / step[many]) / (few / step[few]),
            "speedup": many * step[1] / step[many],
            "bandwidth": 2 * (few - 1) / few * size / ((step[few] - step[1]) * 1e-3) / 1e9,
        }
    if key == "q3/bandwidth":
        target = float(re.search(r"at least ([\d.]+) %", see.scenario)[1]) / 100
        allowed = see.C / target - see.C
        needed = see.needed(see.N, allowed)
        return {"allowed": allowed * 1e3, "needed": needed / 1e9, "bits": needed * 8 / 1e9}
    if key == "q3/strong":
        return {"speedup": see.C / (see.C / see.N + see.ring(see.N)), "cap": see.B * see.C / (2 * see.P)}
    if key == "q3/overlap":
        ring = see.ring(see.N)
        measured = see.numbers("hidden")[0] * 1e-3
        return {
            "lower": max(ring, see.C) * 1e3,
            "speedup": see.N * see.C / (see.C / 3 + max(2 * see.C / 3, ring)),
            "hidden": 100 * (1 - (measured - see.C) / ring),
        }
    if key == "q3/remedies":
        compute = see.numbers("gathered")[0] * see.C
        return {"gathered": 100 * see.ring(see.N) / (compute + see.ring(see.N))}
    if key == "q3/latency":
        hops = 2 * (see.N - 1) * see.alpha
        return {
            "ring-time": see.ring(see.N) * 1e3,
            "share": 100 * hops / see.ring(see.N),
            "even": see.P / see.B / see.alpha,
        }
    if key == "q4/ranks":
        even = next(n for n in range(2, 10_000) if n * see.C / (see.C + see.ring(n)) > 1)
        hours, fleet = see.numbers("hours")[0], int(see.numbers("hours")[1])
        if see.numbers("hours")[1] == 1:
            fleet = int(see.numbers("hours")[2])
        return {"even": even, "hours": hours * (see.C + see.ring(fleet)) / (fleet * see.C)}
    if key == "q4/bandwidth":
        weak = see.needed(see.N, (see.N - 1) * see.C)
        strong = see.needed(see.N, see.C - see.C / see.N)
        return {"weak": weak / 1e9, "strong": strong / 1e9, "bits": weak * 8 / 1e9}
    if key == "q4/tables":
        column = 1 if " team A" in see.prompt("strong") else 2
        asked = see.numbers("strong")[0]
        return {"strong": see.rows[0][column] / next(row for row in see.rows if row[0] == asked)[column]}
    if key == "q4/overlap":
        ring = see.ring(see.N)
        return {
            "none": see.N * see.C / (see.C + ring),
            "full": see.N * see.C / max(see.C, ring),
            "needed": 100 * (ring - (see.N - 1) * see.C) / see.C,
        }
    if key == "q4/accumulate":
        ring = see.ring(see.N)
        micro = next(k for k in range(1, 1000) if see.N * k * see.C > k * see.C + ring)
        ample = see.numbers("efficiency")[0] * see.C
        return {"micro": micro, "efficiency": 100 * ample / (ample + ring)}
    assert key == "q4/bits"
    millions = float(re.search(r"([\d.]+) million parameters", see.scenario)[1])
    see.P = millions * 1e6 * (4 if "in fp32" in see.scenario else 2)
    even = see.needed(see.N, (see.N - 1) * see.C)
    return {
        "size": see.P / 1e9,
        "speedup": see.N * see.C / (see.C + see.ring(see.N)),
        "even": even * 8 / 1e9,
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "variant"), FRESH)
def test_every_key_follows_from_what_the_reader_is_shown(name, variant, seed):
    built = variant_of(name, variant, seed)
    worked_out = solve(name, built)
    asked = {part.id: part for part in built.parts if part.kind == "number"}
    assert worked_out.keys() == asked.keys()
    for part_id, part in asked.items():
        # Half the tolerance is left to a reader who rounds on the way.
        margin = tolerance(part.relative, part.absolute, part.key) / 2
        assert worked_out[part_id] == pytest.approx(part.key, abs=max(margin, 1e-9)), part_id


# The audit's recomputed table and its questions Q3 and Q4 (facts A5 and A11).
@pytest.mark.parametrize(
    ("name", "part", "key", "shown"),
    [
        ("q3", "ring-time", 175.14, "175.1"),
        ("q3", "speedup", 2.9076, "2.91"),
        ("q4", "step", 975.14, "975.1"),
        ("q4", "speedup", 0.8204, "0.82"),
        ("q4", "even", 11, "11"),
    ],
)
def test_the_chapters_keys_are_those_of_the_audit(name, part, key, shown):
    variant = variant_of(name, "chapter")
    found = part_of(variant, part)
    assert found.key == pytest.approx(key, abs=5e-5)
    assert any(shown in fill(step, variant.values) for step in found.solution)


@pytest.mark.parametrize(
    ("name", "part", "expected"),
    [
        (
            "q3",
            "ring-time",
            {
                "full-2p": 200.14,
                "one-phase": 87.57,
                "single-copy": 100,
                "whole-cluster": 1400,
                "bits-for-bytes": 22.015,
            },
        ),
        (
            "q3",
            "speedup",
            {
                "step-inflation": 2.7514,
                "strong-for-weak": 0.53294,
                "efficiency-for-speedup": 0.36345,
                "full-overlap": 4.5678,
                "full-2p": 2.6654,
                "free-lunch": 8,
            },
        ),
        ("q4", "even", {"tie-is-a-gain": 10, "full-2p": 12, "off-by-one": 9}),
        ("q4", "step", {"no-compute": 875.14, "full-2p": 1100, "other-network": 275.14, "one-phase": 537.57}),
        (
            "q4",
            "speedup",
            {"step-inflation": 9.7514, "strong-for-weak": 0.11266, "efficiency-for-speedup": 0.10255},
        ),
    ],
)
def test_typical_slips_at_the_chapters_numbers(name, part, expected):
    found = {each.misconception: each.value for each in part_of(variant_of(name, "chapter"), part).mistakes}
    for misconception, value in expected.items():
        assert found[misconception] == pytest.approx(value, rel=1e-4), misconception


@pytest.mark.parametrize(
    ("name", "variant", "part", "right"),
    [
        ("q3", "chapter", "reason", {"wait"}),
        ("q3", "chapter", "helps", {"double", "half", "backward"}),
        ("q3", "table", "flat", {"epoch"}),
        ("q3", "strong", "share", {"all"}),
        ("q3", "overlap", "statements", {"bytes", "floor", "cap"}),
        ("q3", "remedies", "bytes", {"half", "gathered"}),
        ("q3", "remedies", "price", {"batch"}),
        ("q3", "latency", "remedy", {"nimble"}),
        ("q4", "chapter", "rule", {"gain"}),
        ("q4", "chapter", "statements", {"strong", "accumulate"}),
        ("q4", "ranks", "strong", {"never"}),
        ("q4", "bandwidth", "ratio", {"batches"}),
        ("q4", "tables", "which", {"weak"}),
        ("q4", "overlap", "rule", {"all"}),
        ("q4", "accumulate", "effects", {"bytes", "batch"}),
        ("q4", "bits", "check", {"allreduce"}),
    ],
)
def test_the_right_options(name, variant, part, right):
    for seed in SEEDS:
        options = part_of(variant_of(name, variant, seed), part).options
        assert {option.id for option in options if option.correct} == right


@pytest.mark.parametrize("seed", SEEDS)
def test_the_right_link_is_the_slowest_that_suffices(seed):
    variant = variant_of("q3", "bandwidth", seed)
    needed = solve("q3", variant)["bits"]
    links = {}
    for option in part_of(variant, "link").options:
        links[float(fill(option.text, variant.values).split()[0])] = option
    enough = min(speed for speed in links if speed >= needed)
    for speed, option in links.items():
        assert option.correct == (speed == enough)
        if not option.correct:
            assert (option.misconception == "oversized") == (speed > enough)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_weak_team_is_faster_exactly_where_its_table_says_so(seed):
    variant = variant_of("q4", "tables", seed)
    see = Shown(variant)
    column = 1 if "team A" in see.prompt("faster") else 2
    other = 3 - column
    assert all(row[column] > row[other] for row in see.rows[1:])
    one = see.rows[0][column]
    for option in part_of(variant, "faster").options:
        n = float(option.text.split()[0])
        step = next(row for row in see.rows if row[0] == n)[column]
        assert option.correct == (n * one / step > 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_orders_are_those_of_the_figures_in_the_solution(seed):
    for name in NAMES:
        for variant in registry.load(name, seed).variants:
            for part in variant.parts:
                if part.kind != "order":
                    continue
                notes = [re.match(r"([\d.]+) ?(\D*)", fill(item.note, variant.values)) for item in part.items]
                # A chapter's quiz may ask for an order of steps, which no figure proves.
                if name in CHAPTERS and not all(notes):
                    assert not any(notes), (name, variant.id)
                    continue
                figures = [float(note[1]) * UNITS.get(note[2], 1) for note in notes]
                assert figures == sorted(figures, reverse=part.first.startswith(DOWN)), (name, variant.id)
                assert len(set(figures)) == len(figures), (name, variant.id)


def test_the_order_of_the_remedies_by_an_independent_model():
    for seed in SEEDS:
        variant = variant_of("q3", "remedies", seed)
        see = Shown(variant)
        n, c, ring = see.N, see.C, see.ring(see.N)
        faster = float(variant.values["faster"])
        micro = see.numbers("gathered")[0]
        efficiency = {
            "base": c / (c + ring),
            "half": c / (c + see.ring(n, p=see.P / 2)),
            "faster": c / (c + see.ring(n, b=see.B * faster)),
            "backward": c / (c / 3 + max(2 * c / 3, ring)),
            "gathered": micro * c / (micro * c + ring),
        }
        expected = sorted(efficiency, key=efficiency.get, reverse=True)
        assert [item.id for item in part_of(variant, "ranking").items] == expected


def kinds_of(quiz):
    return {part.kind for variant in quiz.variants for part in variant.parts}


@pytest.mark.parametrize("name", SEVEN)
def test_each_of_the_seven_has_the_sources_question_and_at_least_four_fresh_variants(name):
    quiz = registry.load(name)
    assert len(quiz.variants) >= 5
    assert kinds_of(quiz) == {"number", "choice", "several", "order", "open"}


def test_every_chapter_has_a_quiz():
    assert tuple([name for name in NAMES if re.fullmatch(r"c\d\d", name)]) == CHAPTERS
    assert {"c05", "c07", "c08", "c09", "c11", "c12", "c13"} == set(CHAPTERS)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapters_quiz_begins_with_its_own_case_and_has_at_least_three_fresh_variants(name):
    quiz = registry.load(name)
    assert quiz.id == name
    assert len(quiz.variants) >= 4
    assert 3 <= len(quiz.variants[0].parts) <= 5
    assert [part.kind for part in quiz.variants[0].parts].count("open") == 1
    kinds = kinds_of(quiz)
    assert {"number", "open"} <= kinds
    assert kinds & {"choice", "several"}
    # Whoever knows the chapter's case by heart still has to work the others out.
    for variant in quiz.variants[1:]:
        assert any(part.kind in ("number", "order") for part in variant.parts), variant.id


@pytest.mark.parametrize("name", NAMES)
def test_the_variants_of_a_quiz_ask_different_things(name):
    quiz = registry.load(name)
    assert quiz.variants[0].id == "chapter"
    prompts = [part.prompt for variant in quiz.variants for part in variant.parts]
    repeated = [prompt for prompt in set(prompts) if prompts.count(prompt) > 1]
    assert len(repeated) <= 1, repeated


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_changes_the_fresh_variants_and_only_them(name):
    first, same, other = registry.load(name, 7), registry.load(name, 7), registry.load(name, 8)
    assert first == same
    assert first.variants[0] == other.variants[0]
    changed = [
        one.values != two.values for one, two in zip(first.variants[1:], other.variants[1:], strict=True)
    ]
    assert sum(changed) >= len(changed) - 1  # two draws may agree by chance


def test_every_seed_has_a_quiz():
    for seed in range(120):
        for name in registry.names():
            registry.load(name, seed)


def test_every_misconception_is_met_somewhere():
    met = set()
    for name in registry.names():
        for seed in SEEDS:
            for variant in registry.load(name, seed).variants:
                for part in variant.parts:
                    met |= {each.misconception for each in getattr(part, "mistakes", ())}
                    met |= {each.misconception for each in getattr(part, "options", ()) if not each.correct}
                    met |= {each.misconception for each in getattr(part, "traps", ())}
    assert met == set(MISCONCEPTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_whole(name):
    for seed in SEEDS:
        for variant in registry.load(name, seed).variants:
            for _, template in variant_texts(variant):
                text = fill(template, variant.values)
                assert not re.search(r"[{}$\\]|nan|None|  ", text), text
                assert text.count("*") % 2 == 0, text


@pytest.mark.parametrize("name", NAMES)
def test_units_can_be_typed(name):
    """What is shown as an answer can be typed as one: the page reads a unit of letters, "×" and "%"."""
    for variant in registry.load(name).variants:
        for part in variant.parts:
            if part.kind == "number":
                assert re.fullmatch(r"[×%]|[A-Za-zµ][A-Za-z /-]*", part.unit), (
                    variant.id,
                    part.id,
                    part.unit,
                )


@pytest.mark.parametrize("name", ["q3", "q4"])
def test_texts_say_weak_or_strong(name):
    for variant in registry.load(name).variants:
        texts = [fill(template, variant.values) for _, template in variant_texts(variant)]
        assert re.search(r"weak scaling|strong scaling|batch per rank|global batch", " ".join(texts), re.I), (
            variant.id
        )


def test_every_value_is_used_by_a_text():
    for name in registry.names():
        for variant in registry.load(name).variants:
            templates = " ".join([template for _, template in variant_texts(variant)])
            shared = set(variant.values) - set(re.findall(r"\{(\w+)\}", templates))
            # The worked ring all-reduce brings its texts as one set.
            assert shared <= {
                "N",
                "C",
                "P",
                "B",
                "hops",
                "factor",
                "sent",
                "latency",
                "transfer",
                "T",
            }, (
                name,
                variant.id,
            )


def test_unknown_names_and_seeds_are_refused():
    with pytest.raises(ValueError, match=r"name must be one of 'c05', .*'q1', 'q2'"):
        registry.load("q99")
    with pytest.raises(ValueError, match="seed must be a whole number"):
        registry.load("q3", -1)


def test_a_new_bank_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "q9.py").write_text(
        "from shardlab.quiz.model import number, quiz_of, variant\n"
        "def build(seed=1):\n"
        "    part = number(id='n', prompt='1 + 1?', key=2, unit='ranks', solution=('2',), relative=0.0)\n"
        "    only = variant(id='v', title='T', scenario='S', parts=(part,), values={})\n"
        "    return quiz_of('q9', 'T', 'Q', (only,), {}, seed)\n"
    )
    from shardlab.quiz import banks

    monkeypatch.setattr(banks, "__path__", [*banks.__path__, str(tmp_path)])
    assert registry.names() == (*NAMES, "q9")
    assert registry.load("q9", 5).seed == 5
