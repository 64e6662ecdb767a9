"""Texts of unequal length on several ranks: how much does each token count, and what does the logged loss show of it?"""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.models.batch import (
    TOKEN_WEIGHTINGS,
    deal_by_tokens,
    log_normal_lengths,
    token_weighting,
    weighted_loss,
)
from shardlab.models.stragglers import straggler_ratios

TEXTS = 4
"""Texts in a micro-batch, if they are dealt as they come."""
MEDIAN_TOKENS = 256
MEDIAN_LOSS = 2.0
"""Mean loss of a text of median length."""
SEED = 0

_RANKS = tuple(range(1, 9))
_STEPS = tuple(range(1, 9))
_SPREADS = (0.0, 0.25, 0.5, 0.7, 1.0, 1.2)
_SHORT = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3)
_GUESSES = (0.125, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 2.0)
_WEIGHTINGS = (
    ("mean_of_means", "mean of micro-batches' means"),
    ("rank_tokens", "mean of ranks' means"),
    ("world_missing", "all tokens, × N forgotten"),
    ("global_tokens", "all tokens: right"),
)
_BARS = {
    "global_tokens": "all tokens",
    "mean_of_means": "mean of means",
    "rank_tokens": "mean of ranks",
    "world_missing": "no × N",
}
_DEALS = (("samples", "as they come"), ("tokens", "by tokens, longest first"))


class _Setting:
    """What the reader has set, and the models' answers to it; lists are ``[rank][micro-step]``."""

    def __init__(
        self,
        guess: float,
        weighting: str,
        deal: str,
        ranks: int,
        micro_steps: int,
        spread: float,
        short_loss: float,
    ) -> None:
        self.guess, self.weighting, self.deal = guess, weighting, deal
        self.ranks, self.micro_steps, self.short_loss = ranks, micro_steps, short_loss
        places = ranks * micro_steps
        self.lengths = log_normal_lengths(TEXTS * places, MEDIAN_TOKENS, spread, SEED)
        if deal == "tokens":
            dealt = deal_by_tokens(self.lengths, places)
        else:
            dealt = [list(range(place * TEXTS, (place + 1) * TEXTS)) for place in range(places)]
        self.tokens: list[list[int]] = [[] for _ in range(ranks)]
        self.losses: list[list[float]] = [[] for _ in range(ranks)]
        for place in range(places):
            size, loss = 0, 0.0
            for text in dealt[place]:
                size += self.lengths[text]
                loss += self.lengths[text] * self.text_loss(self.lengths[text])
            self.tokens[place % ranks].append(size)
            self.losses[place % ranks].append(loss / size)
        self.loads = [sum(mine) for mine in self.tokens]
        self.total = sum(self.loads)
        self.shown = {name: weighted_loss(self.tokens, self.losses, name) for name in TOKEN_WEIGHTINGS}
        self.right, self.logged = self.shown["global_tokens"], self.shown[weighting]
        self.answer = token_weighting(self.tokens, weighting)
        self.error = self.logged / self.right - 1
        self.waiting = straggler_ratios(min(self.loads), self.total / ranks, max(self.loads)).lost_fraction

    def text_loss(self, length: int) -> float:
        """Mean loss of a text: a factor for each halving of its length."""
        return MEDIAN_LOSS * math.pow(self.short_loss, math.log2(MEDIAN_TOKENS / length))

    @property
    def uneven(self) -> bool:
        """Whether any token counts visibly more than another."""
        return self.answer.misplaced > 0.0005


def picture(
    guess: float,
    show_answer: bool,
    weighting: str,
    deal: str,
    ranks: int,
    micro_steps: int,
    spread: float,
    short_loss: float,
) -> dict[str, Any]:
    """Tokens of each rank, the weight of a token in each micro-batch, and the loss logged by four ways of averaging."""
    setting = _Setting(guess, weighting, deal, ranks, micro_steps, spread, short_loss)
    return chart.chart(
        panels=[
            _tokens_panel(setting),
            _weights_panel(setting) if show_answer else _micro_batches_panel(setting),
            _loss_panel(setting, show_answer),
        ],
        words=_sentences(setting) if show_answer else _question(setting),
        readouts=_readouts(setting, show_answer),
    )


def _names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _tokens_panel(setting: _Setting) -> dict[str, Any]:
    most, mean = max(setting.loads), setting.total / setting.ranks
    return chart.bars(
        title="Tokens of each rank",
        categories=_names(setting.ranks),
        value=chart.axis("tokens of a step", (0.0, 1.28 * most), chart.even_ticks(1.28 * most, about=3)),
        stacks=[
            chart.stack("tokens", "compute", [float(load) for load in setting.loads]),
            chart.stack("waiting", "idle", [float(most - load) for load in setting.loads], "hatch"),
        ],
        limits=[chart.limit(mean, "mean", align="end" if mean > 0.64 * most else "start")],
        texts=[str(load) for load in setting.loads],
        alt=f"Bars: tokens of each of {words.plural(setting.ranks, 'rank')} in a step, {min(setting.loads)} to {most}; the "
        "others wait for the rank with the most.",
    )


def _matrix(
    setting: _Setting, title: str, texts: list[list[str]], levels: list[list[float]], alt: str
) -> dict[str, Any]:
    return chart.matrix(
        title=title,
        columns=_names(setting.micro_steps),
        rows=_names(setting.ranks),
        column_label="micro-step",
        row_label="rank",
        texts=texts,
        levels=levels,
        role="compute",
        alt=alt,
    )


def _micro_batches_panel(setting: _Setting) -> dict[str, Any]:
    """Before the answer: what it follows from."""
    mean = setting.total / (setting.ranks * setting.micro_steps)
    most = max([max(mine) for mine in setting.tokens])
    least = min([min(mine) for mine in setting.tokens])
    return _matrix(
        setting,
        "Tokens of a micro-batch, mean = 1",
        [[words.amount(size / mean, 2) for size in mine] for mine in setting.tokens],
        [[min(size / max(most, 2 * mean), 1.0) for size in mine] for mine in setting.tokens],
        f"Table of {setting.ranks} by {setting.micro_steps} micro-batches, with {least} to {most} tokens.",
    )


def _weights_panel(setting: _Setting) -> dict[str, Any]:
    # Right weights are half filled, so that too much and too little both show.
    full = max(setting.answer.most, 2.0)
    return _matrix(
        setting,
        "Weight of a token, right = 1",
        [[words.amount(weight, 2) for weight in mine] for mine in setting.answer.weights],
        [[weight / full for weight in mine] for mine in setting.answer.weights],
        f"Table of {setting.ranks} by {setting.micro_steps} micro-batches: how much one token of each counts, from "
        f"{words.amount(setting.answer.least, 2)} to {words.amount(setting.answer.most, 2)} where 1 is right.",
    )


def _loss_panel(setting: _Setting, show_answer: bool) -> dict[str, Any]:
    names = list(TOKEN_WEIGHTINGS)
    hidden = [not show_answer and name != "global_tokens" for name in names]
    values = [0.0 if hide else setting.shown[name] for name, hide in zip(names, hidden)]
    chosen = [name == setting.weighting for name in names]
    guessed = setting.guess * setting.right
    most = 1.3 * max([guessed, max([setting.shown[name] for name in names])])
    # The guess is a bar of its own: as a line it would cross the numbers beside the others.
    stacks = [
        chart.stack("chosen", "compute", [v if one else 0.0 for v, one in zip(values, chosen)]),
        chart.stack("others", "compute", [0.0 if one else v for v, one in zip(values, chosen)], "light"),
        chart.stack("your guess", "muted", [0.0 for _ in names]),
    ]
    for part, value in zip(stacks, (0.0, 0.0, guessed)):
        part["values"].append(value)
    texts = ["?" if hide else words.amount(setting.shown[name], 4) for name, hide in zip(names, hidden)]
    texts.append(words.amount(guessed, 4))
    said = ", ".join([f"{_BARS[name]} {words.amount(setting.shown[name], 4)}" for name in names])
    return chart.bars(
        title="Loss that is logged",
        categories=[_BARS[name] for name in names] + ["you"],
        value=chart.axis("loss", (0.0, most), chart.even_ticks(most, about=3)),
        stacks=stacks,
        texts=texts,
        alt=f"Bars: the loss that each way of averaging logs: {said}. Your guess was {words.amount(guessed, 4)}."
        if show_answer
        else f"Bars: the mean over all tokens is {words.amount(setting.right, 4)}; three other ways appear with the answer. "
        f"Your guess is {words.amount(guessed, 4)}.",
    )


def _error_note(setting: _Setting) -> str:
    if abs(setting.error) < 0.0005:
        return "as it should be"
    return f"{words.percent(abs(setting.error))} too {'high' if setting.error > 0 else 'low'}"


def _readouts(setting: _Setting, show_answer: bool) -> list[dict[str, Any]]:
    answer = setting.answer
    right = chart.readout("mean over all tokens", words.amount(setting.right, 4), f"{setting.total} tokens")
    waiting = chart.readout(
        "waiting", words.percent(setting.waiting), "if time goes with tokens", "idle-text"
    )
    if not show_answer:
        return [
            right,
            chart.readout("logged", "?", f"you {words.amount(setting.guess * setting.right, 4)}"),
            waiting,
        ]
    weights = words.amount(answer.least, 2)
    if setting.uneven:
        weights += f" to {words.amount(answer.most, 2)}"
    return [
        right,
        chart.readout("logged", words.amount(setting.logged, 4), _error_note(setting), "compute-text"),
        chart.readout("weight of a token", weights, "right: 1"),
        chart.readout("on the wrong tokens", words.percent(answer.misplaced), "of the weight"),
        waiting,
    ]


def _texts_words(setting: _Setting) -> str:
    shortest, longest = min(setting.lengths), max(setting.lengths)
    if shortest == longest:
        return f"The step has {len(setting.lengths)} texts of {shortest} tokens each."
    opening = f"The step has {len(setting.lengths)} texts of {shortest} to {longest} tokens"
    if setting.short_loss == 1:
        return f"{opening}; the loss per token does not depend on the length."
    return f"{opening}; half the length makes the loss per token {words.ratio(setting.short_loss)} as high."


def _way_words(setting: _Setting) -> str:
    return {
        "global_tokens": "adds up the losses of all tokens and divides by their number",
        "mean_of_means": "takes the mean of each micro-batch, and the mean of these means over micro-steps and ranks",
        "rank_tokens": "takes the mean over each rank's own tokens, and DDP the mean of the ranks",
        "world_missing": "divides each rank's sum by the number of all tokens, and DDP takes the mean of the ranks",
    }[setting.weighting]


def _question(setting: _Setting) -> list[str]:
    return [
        f"The mean over all tokens is {words.amount(setting.right, 4)}. The program {_way_words(setting)}. What does it log? You "
        f"say {words.ratio(setting.guess)} as much, {words.amount(setting.guess * setting.right, 4)}.",
        _texts_words(setting) + " Which token counts for most? Then show the answer.",
        _deal_words(setting),
    ]


def _sentences(setting: _Setting) -> list[str]:
    return [_verdict(setting), _weight_words(setting), _deal_words(setting)]


def _verdict(setting: _Setting) -> str:
    logged, said = words.amount(setting.logged, 4), f"You said {words.ratio(setting.guess)}."
    if setting.weighting == "world_missing" and setting.ranks > 1:
        return (
            f"The program logs {logged}, {_part_name(setting.ranks)} of {words.amount(setting.right, 4)}: the sums are "
            f"divided by all tokens, and DDP then divides by the ranks as well. {said}"
        )
    if abs(setting.error) >= 0.0005:
        return (
            f"The program logs {logged} where the mean over all tokens is {words.amount(setting.right, 4)}, "
            f"{_error_note(setting)}: it {_way_words(setting)}. {said}"
        )
    if setting.uneven:
        return (
            f"The logged loss of {logged} gives nothing away, and the gradient is wrong: the program {_way_words(setting)}. "
            f"{said}"
        )
    if setting.weighting == "global_tokens":
        return f"The program logs {logged}, the mean over all tokens, however they are dealt. {said}"
    return f"The program logs {logged}, as it should, although it {_way_words(setting)}: here that is the same. {said}"


def _part_name(ranks: int) -> str:
    name = ("half", "third", "quarter", "fifth", "sixth", "seventh", "eighth")[ranks - 2]
    return f"{'an' if ranks == 8 else 'a'} {name}"


def _weight_words(setting: _Setting) -> str:
    answer, texts = setting.answer, _texts_words(setting)
    if setting.weighting == "world_missing" and setting.ranks > 1:
        return (
            f"All tokens count alike, and all {setting.ranks} times too little. SGD learns as if its learning rate were "
            f"divided by {setting.ranks}; Adam hides most of it, and clipping sets in too late. Multiply each rank's sum by "
            f"{setting.ranks}/{setting.total}, not by 1/{setting.total}. {texts}"
        )
    if not setting.uneven:
        if min(setting.lengths) == max(setting.lengths):
            return f"{texts} All ways that keep the factor N agree: equal lengths hide the mistake."
        return f"{texts} Every token counts the same."
    return (
        f"The largest weight is {words.ratio(answer.most)} the right one ({_place(setting, answer.most)}), the smallest "
        f"{words.ratio(answer.least)} ({_place(setting, answer.least)}): {words.percent(answer.misplaced)} of the weight lies "
        f"on the wrong tokens. {texts}"
    )


def _place(setting: _Setting, weight: float) -> str:
    """The first micro-batch, or rank, whose tokens have this weight."""
    for rank in range(setting.ranks):
        for step in range(setting.micro_steps):
            if setting.answer.weights[rank][step] == weight:
                if setting.weighting == "rank_tokens" or setting.micro_steps == 1:
                    return f"rank {rank}"
                if setting.ranks == 1:
                    return f"micro-step {step}"
                return f"rank {rank}, micro-step {step}"
    raise ValueError(f"weight must be one of the setting's weights, not {weight!r}")


def _deal_words(setting: _Setting) -> str:
    if setting.ranks == 1:
        return "One rank waits for nobody; how the texts are dealt decides which of them share a micro-batch."
    waits = f"{words.percent(setting.waiting)} of the ranks' time is waiting, if time goes with tokens"
    fullest = words.ratio(max(setting.loads) * setting.ranks / setting.total)
    if setting.deal == "tokens":
        return (
            f"Dealt by tokens, the longest text first and always to the micro-batch with the fewest tokens, the fullest rank "
            f"has {fullest} the mean, and {waits}."
        )
    return f"Dealt as they come, {TEXTS} texts to a micro-batch, the fullest rank has {fullest} the mean, and {waits}."


def _preset(name: str, label: str, source: str, **values: Any) -> Preset:
    return Preset(name=name, label=label, values=values, source=source)


EXPERIMENT = Experiment(
    name="token-weighting",
    title="What a token counts",
    question="Ranks and micro-batches hold unequal numbers of tokens. How much does each token count, and does the loss show it?",
    controls=(
        slider("guess", "Your guess: logged over right (×)", _GUESSES, 1.1),
        toggle("show_answer", "Show the answer", False),
        choice("weighting", "Loss averaged", _WEIGHTINGS, "mean_of_means"),
        choice("deal", "Texts dealt", _DEALS, "samples"),
        slider("ranks", "Ranks N", _RANKS, 8, whole=True),
        slider("micro_steps", "Micro-steps G", _STEPS, 4, whole=True),
        slider("spread", "Spread of the lengths (σ of ln)", _SPREADS, 0.7),
        slider("short_loss", "Loss in a text half as long (×)", _SHORT, 1.1),
    ),
    presets=(
        _preset(
            "means",
            "Mean of means",
            "torchtitan took the mean of each micro-batch on each rank until its pull request 2206 (2026). Lengths, losses and "
            "ranks are this book's example.",
        ),
        _preset(
            "accumulation-2024",
            "Accumulation in 2024",
            "One GPU and micro-batches of unequal length: Unsloth found losses that changed with the number of micro-steps, "
            "and transformers mended it in October 2024 (pull request 34191). The numbers are an example.",
            ranks=1,
            micro_steps=8,
        ),
        _preset(
            "ranks-left",
            "Mended on each rank only",
            "After that repair each rank still took the mean of its own tokens (transformers, issue 34242, pull request "
            "34373). The numbers are an example.",
            weighting="rank_tokens",
        ),
        _preset(
            "forgotten",
            "× N forgotten",
            "torchtune divided by all tokens, and DDP and FSDP divided by the ranks on top (pull request 2172, December "
            "2024). The numbers are an example.",
            weighting="world_missing",
        ),
        _preset(
            "short-answers",
            "Chat with short answers",
            "Only the tokens of answers count, and answers of 11 and of 101 tokens are in one data set (the case of "
            "transformers, issue 24725). That short ones have the higher loss is an assumption.",
            micro_steps=1,
            spread=1.2,
            short_loss=1.2,
        ),
        _preset(
            "by-tokens",
            "Dealt by tokens",
            "The same texts, the longest first to whoever has least (Graham, SIAM J. Appl. Math. 17(2), 1969).",
            deal="tokens",
        ),
        _preset(
            "packed",
            "Packed rows",
            "Short texts packed into rows of equal length (Krell et al., arXiv 2107.02027): nothing is left to weigh.",
            spread=0.0,
        ),
    ),
    picture=picture,
)
