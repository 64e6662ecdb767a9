"""What a token counts on the page: weights, losses and words, against averages computed in the order of a program."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery.token_weighting import MEDIAN_LOSS, MEDIAN_TOKENS, TEXTS, _Setting
from shardlab.models.batch import token_average

NAME = "token-weighting"
DEFAULTS: dict[str, Any] = {
    "guess": 1.1,
    "weighting": "mean_of_means",
    "deal": "samples",
    "ranks": 8,
    "micro_steps": 4,
    "spread": 0.7,
    "short_loss": 1.1,
}


def run(**given: Any) -> dict[str, Any]:
    return engine.run(NAME, {"show_answer": True, **given})


def setting(**given: Any) -> _Setting:
    return _Setting(**{**DEFAULTS, **given})


def readouts(answer: dict[str, Any]) -> dict[str, str]:
    return {one["label"]: one["value"] for one in answer["readouts"]}


def losses(answer: dict[str, Any]) -> list[float]:
    """All tokens, mean of means, mean of ranks, without the factor N."""
    stacks = answer["panels"][2]["stacks"]
    return [sum(stack["values"][row] for stack in stacks) for row in range(4)]


@pytest.mark.parametrize("deal", ["samples", "tokens"])
@pytest.mark.parametrize(("ranks", "micro_steps"), [(1, 8), (8, 1), (3, 5)])
def test_the_bars_are_the_averages_that_a_program_takes(deal: str, ranks: int, micro_steps: int) -> None:
    here = setting(deal=deal, ranks=ranks, micro_steps=micro_steps)
    means = [sum(mine) / micro_steps for mine in here.losses]
    own = [token_average(sizes, mine).per_token for sizes, mine in zip(here.tokens, here.losses, strict=True)]
    # The right one from the single texts, whatever micro-batch they are in.
    right = sum(length * here.text_loss(length) for length in here.lengths) / sum(here.lengths)
    expected = [right, sum(means) / ranks, sum(own) / ranks, right / ranks]
    shown = losses(run(deal=deal, ranks=ranks, micro_steps=micro_steps))
    assert shown == pytest.approx(expected)


@pytest.mark.parametrize("deal", ["samples", "tokens"])
def test_every_text_is_dealt_once(deal: str) -> None:
    here = setting(deal=deal)
    assert len(here.lengths) == TEXTS * 8 * 4
    assert here.total == sum(here.lengths) == sum(sum(mine) for mine in here.tokens)
    assert [len(mine) for mine in here.tokens] == [4] * 8
    bars = run(deal=deal)["panels"][0]["stacks"]
    assert bars[0]["values"] == here.loads
    assert {a + b for a, b in zip(bars[0]["values"], bars[1]["values"], strict=True)} == {max(here.loads)}


def test_the_loss_of_a_text_changes_by_the_factor_with_each_halving() -> None:
    here = setting(short_loss=1.2)
    assert here.text_loss(MEDIAN_TOKENS) == MEDIAN_LOSS
    assert here.text_loss(MEDIAN_TOKENS // 4) == pytest.approx(1.44 * MEDIAN_LOSS)
    assert here.text_loss(2 * MEDIAN_TOKENS) == pytest.approx(MEDIAN_LOSS / 1.2)


def test_the_right_way_weighs_all_tokens_alike() -> None:
    answer = run(weighting="global_tokens", spread=1.2)
    assert {text for row in answer["panels"][1]["texts"] for text in row} == {"1.0"}
    assert readouts(answer)["on the wrong tokens"] == "0.0\u00a0%"
    assert "however they are dealt" in answer["words"][0]


def test_a_short_micro_batchs_tokens_weigh_too_much() -> None:
    """A token's weight is all tokens over micro-batches times its micro-batch's tokens."""
    here = setting()
    texts = run()["panels"][1]["texts"]
    for rank in range(8):
        for step in range(4):
            weight = here.total / (32 * here.tokens[rank][step])
            assert float(texts[rank][step]) == pytest.approx(weight, rel=0.05)
    most = max(here.total / (32 * size) for mine in here.tokens for size in mine)
    assert f"The largest weight is {most:.2f}× the right one" in run()["words"][1]


def test_short_texts_with_a_higher_loss_make_the_logged_loss_too_high_and_a_lower_one_too_low() -> None:
    high, alike, low = (losses(run(short_loss=factor)) for factor in (1.2, 1.0, 0.8))
    assert high[1] > 1.03 * high[0]
    assert alike[1] == pytest.approx(alike[0])
    assert low[1] < 0.97 * low[0]


def test_a_loss_that_looks_right_hides_a_wrong_gradient() -> None:
    answer = run(short_loss=1.0)
    assert "gives nothing away, and the gradient is wrong" in answer["words"][0]
    assert float(readouts(answer)["on the wrong tokens"].split("\u00a0")[0]) > 10


def test_equal_lengths_hide_all_but_the_forgotten_factor() -> None:
    shown = losses(run(preset="packed"))
    assert shown == pytest.approx([MEDIAN_LOSS, MEDIAN_LOSS, MEDIAN_LOSS, MEDIAN_LOSS / 8])
    assert "equal lengths hide the mistake" in run(preset="packed")["words"][1]


def test_the_repair_on_each_rank_is_whole_on_one_rank_only() -> None:
    one = run(preset="accumulation-2024", weighting="rank_tokens")
    assert readouts(one)["on the wrong tokens"] == "0.0\u00a0%"
    assert readouts(run(preset="accumulation-2024"))["on the wrong tokens"] != "0.0\u00a0%"
    assert readouts(run(preset="ranks-left"))["on the wrong tokens"] != "0.0\u00a0%"


@pytest.mark.parametrize(("ranks", "part"), [(2, "a half"), (3, "a third"), (8, "an eighth")])
def test_without_the_factor_everything_is_divided_by_the_ranks_again(ranks: int, part: str) -> None:
    answer = run(weighting="world_missing", ranks=ranks)
    shown = losses(answer)
    assert shown[3] == pytest.approx(shown[0] / ranks)
    assert f", {part} of " in answer["words"][0]
    assert f"by {ranks}/{setting(ranks=ranks).total}, not" in answer["words"][1]
    assert readouts(answer)["on the wrong tokens"] == "0.0\u00a0%"


def test_dealing_by_tokens_evens_weights_and_waiting_out() -> None:
    by_samples, by_tokens = setting(), setting(deal="tokens")
    assert by_tokens.answer.misplaced < 0.1 * by_samples.answer.misplaced
    assert by_tokens.waiting < 0.5 * by_samples.waiting
    assert by_tokens.waiting == pytest.approx(1 - by_tokens.total / (8 * max(by_tokens.loads)))
    assert by_tokens.right == pytest.approx(by_samples.right)


def test_before_the_answer_neither_panels_nor_words_give_it_away() -> None:
    for preset in engine.load(NAME).presets:
        hidden = engine.run(NAME, {"preset": preset.name})
        here = setting(**preset.values)
        assert losses(hidden) == pytest.approx([here.right, 0, 0, 0])
        assert hidden["panels"][2]["texts"][1:4] == ["?", "?", "?"]
        mean = here.total / (here.ranks * here.micro_steps)
        for texts, sizes in zip(hidden["panels"][1]["texts"], here.tokens, strict=True):
            assert [float(text) for text in texts] == pytest.approx([s / mean for s in sizes], rel=0.06)
        said = " ".join([*hidden["words"], *[panel["alt"] for panel in hidden["panels"]]])
        if f"{here.logged:.3f}" != f"{here.right:.3f}":
            assert f"{here.logged:.3f}" not in said
        assert readouts(hidden)["logged"] == "?"


@pytest.mark.parametrize("guess", [0.25, 1.2])
def test_the_guess_is_drawn_where_it_lies_and_said(guess: float) -> None:
    here = setting(guess=guess)
    for show in (False, True):
        answer = engine.run(NAME, {"guess": guess, "show_answer": show})
        bars = [stack["values"][4] for stack in answer["panels"][2]["stacks"]]
        assert bars == pytest.approx([0, 0, guess * here.right])
    assert f"You said {guess:.2f}×" in run(guess=guess)["words"][0]
