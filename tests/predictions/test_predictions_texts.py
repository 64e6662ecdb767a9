"""What the predictions' sentences say: no number in them is typed, and what they say in words holds in the models."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from shardlab import predictions
from shardlab.models import (
    batch,
    checkpoint,
    collectives,
    context,
    memory,
    pipeline_formulas,
    stragglers,
    tensor,
)
from shardlab.predictions import chapters, render
from shardlab.predictions.words import in_words, part_in_words
from shardlab.units import GB, MS, US

WORDS = "two three four five six seven eight nine ten eleven twelve half third quarter fifth sixth seventh eighth ninth tenth"
NUMBER = re.compile(rf"\d|\b(?:{'|'.join(WORDS.split())})\b", re.IGNORECASE)
# A schedule's name, the symbols of a formula such as 2*P*/*B* and *p*−1, and what a test below looks up.
NO_NUMBER = re.compile(r"1F1B|\d+(?=\*[A-Za-z]\*)|(?<=\*[a-z]\*)−1|Adam's two moments|two halves")


def sentences():
    return {
        (name, item.id): item.why for name in predictions.names() for item in predictions.load(name).items
    }


def typed_in_the_source():
    """Every piece of text that stands in the file as it is; of an f-string the pieces between its values."""
    tree = ast.parse(Path(chapters.__file__).read_text("utf-8"))
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_no_number_in_a_sentence_is_typed():
    pieces = {text for text in typed_in_the_source() if NUMBER.search(NO_NUMBER.sub("", text))}
    found = {
        (place, piece)
        for place, why in sentences().items()
        for piece in pieces
        if piece.strip() and piece in why and len(piece) > 3
    }
    assert found == set(), "compute the number from the models"


def test_the_search_for_typed_numbers_finds_them():
    assert NUMBER.search("Six rounds of messages")
    assert NUMBER.search("the 600 s of each restart")
    assert NUMBER.search("take a fifth of the time")
    for formula in ("2*P*/*B*", "(*p*−1)/(*m*+*p*−1)", "what 1F1B lowers"):
        assert not NUMBER.search(NO_NUMBER.sub("", formula))
    said = " ".join(sentences().values())
    assert len(re.findall(r"\d+(?:\.\d+)?", NO_NUMBER.sub("", said))) > 30
    assert any(
        "bytes for each parameter" in piece and not NUMBER.search(piece) for piece in typed_in_the_source()
    )


@pytest.mark.parametrize(
    ("module", "name", "other", "chapter", "item", "said"),
    [
        (chapters, "FLOPS_PER_PARAMETER_AND_TOKEN", 8, "c01", "years", "costs 8 FLOP"),
        (
            tensor,
            "communication_compute_ratio",
            lambda *given, real=tensor.communication_compute_ratio: real(*given) / 2,
            "c05",
            "near",
            "take a tenth of",
        ),
        (
            pipeline_formulas,
            "bubble_of_total",
            lambda p, m, real=pipeline_formulas.bubble_of_total: real(p, m if m > 8 else m + 1),
            "c06",
            "idle",
            "= 7/16 of",
        ),
        (
            stragglers,
            "normal_jitter_step",
            lambda mean, sd, ranks, real=stragglers.normal_jitter_step: real(mean, 2 * sd, ranks),
            "c09",
            "jitter",
            "more than six",
        ),
        (
            checkpoint,
            "observed_mtbf_s",
            lambda run, failures, real=checkpoint.observed_mtbf_s: 2 * real(run, failures),
            "c10",
            "interval",
            "every six hours",
        ),
        (checkpoint, "checkpoint_bytes", lambda params, contents: 14 * params, "c10", "size", "14 bytes"),
    ],
)
def test_a_sentence_follows_its_model(monkeypatch, module, name, other, chapter, item, said):
    assert said not in sentences()[chapter, item]
    monkeypatch.setattr(module, name, other)
    assert said in sentences()[chapter, item]


def test_what_the_sentences_say_without_a_number():
    said = sentences()
    # c01: of the optimizer's bytes, Adam's two moments have four each.
    assert "a master copy and Adam's two moments" in said["c01", "state"]
    recipe = memory.recipe_named(memory.DEFAULT_RECIPE)
    assert (recipe.master_weights, recipe.optimizer) == (4, 2 * 4)
    # c04: the halves of an all-reduce cost as much as the whole.
    halves = [
        collectives.algorithm(each, "ring").cost(1 * GB, 64) for each in ("reduce-scatter", "all-gather")
    ]
    assert "two halves of the all-reduce" in said["c04", "sent1"]
    assert sum(half.sent_bytes for half in halves) == pytest.approx(
        collectives.algorithm("all-reduce", "ring").cost(1 * GB, 64).sent_bytes
    )
    # c02: every rank sends almost the whole buffer twice, and few rounds win for small buffers.
    small, large = (collectives.fastest("all-reduce", size, 64, 25 * GB, 10 * US) for size in (1e3, 1 * GB))
    costs = [collectives.algorithm("all-reduce", each.algorithm).cost(1 * GB, 64) for each in (small, large)]
    assert "almost the whole buffer twice" in said["c02", "large"]
    assert 1.9 * GB < costs[1].sent_bytes < 2 * GB
    assert costs[0].rounds < costs[1].rounds
    assert costs[0].wire_bytes > costs[1].wire_bytes
    # c03: a rank of 64 sends little more than one of 8.
    ring = [collectives.algorithm("all-reduce", "ring").cost(1 * GB, ranks).sent_bytes for ranks in (8, 64)]
    assert "little more" in said["c03", "n64"]
    assert 1 < ring[1] / ring[0] < 1.15
    # c05: over one port the all-reduces take longer than the compute, so that less than half of the speed is left.
    assert "longer than the compute" in said["c05", "far"]
    near, far = predictions.load("c05").items
    assert far.key < 50 < near.key
    # c07: in every step but the first some rank has a whole block.
    work = context.ring_work(131_072, 4, "contiguous")
    whole = (131_072 // 4) ** 2
    assert [max(step) == whole for step in work.pairs] == [False, True, True, True]
    # c09: the loss of most tokens, and the mean of the means is another one.
    assert batch.token_average([10, 90], [2.0, 1.0]).mean_of_means == 1.5
    # c10: seconds to write, minutes between, and restarts are most of the loss.
    size = checkpoint.checkpoint_bytes(405e9, "adam-12")
    mtbf_s = checkpoint.observed_mtbf_s(54 * 86_400, 419)
    write_s = checkpoint.transfer_time_s(size, 2e12)
    best_s = checkpoint.optimal_interval_s(write_s, mtbf_s)
    assert 1 < write_s < 60 < 2 * 60 < best_s < 3600
    whole_loss, without = (
        checkpoint.checkpoint_cost(best_s, write_s, mtbf_s, restart_s).waste_fraction
        for restart_s in (600.0, 0.0)
    )
    assert whole_loss - without > whole_loss / 2
    # c12: one slow rank hardly moves the mean.
    assert stragglers.slow_rank_step(100 * MS, 1.5, ranks=64).mean_s < 1.01 * 100 * MS


def test_a_sentence_for_several_answers_stands_under_the_last():
    whys = [item["why"] for item in render.payload(predictions.load("c07"))["items"]]
    assert whys[:-1] == [""] * (len(whys) - 1)
    text = predictions.html("c07").split('<div class="predict-static">')[1]
    assert text.count("some rank has a whole block") == 1
    assert " </li>" not in text
    assert all(item["why"] for item in render.payload(predictions.load("c03"))["items"])


@pytest.mark.parametrize(("number", "word"), [(1, "one"), (6.0, "six"), (12, "twelve")])
def test_whole_numbers_in_words(number, word):
    assert in_words(number) == word


@pytest.mark.parametrize(
    ("share", "part"), [(0.5, "half"), (0.3226, "a third"), (0.1888, "a fifth"), (0.1, "a tenth")]
)
def test_parts_in_words(share, part):
    assert part_in_words(share) == part


@pytest.mark.parametrize("number", [0, 13, 2.5, -1])
def test_a_number_without_a_word_is_refused(number):
    with pytest.raises(ValueError, match="number must be a whole number from 1 to 12"):
        in_words(number)


@pytest.mark.parametrize("share", [0.0, 0.42, 0.7, 0.01, 1.0])
def test_a_share_far_from_every_part_is_refused(share):
    with pytest.raises(ValueError, match="share must be within 10 % of one of half"):
        part_in_words(share)
