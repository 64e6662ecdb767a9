"""A synchronous step takes as long as its slowest rank: how much longer is that than one rank's mean?"""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.models.stragglers import (
    exponential_jitter_step,
    normal_jitter_step,
    rare_stall_step,
    without_slow_ranks_speedup,
)

MOST_RANKS = 16384
_RANKS = tuple([2**exponent for exponent in range(1, 15)])
# What a reader can measure at home: the rest is to be guessed.
_SEEN_RANKS = 8
_SPREADS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
_SLOWDOWNS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
_GUESSES = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
_INTEGRATION_STEPS = 160
_PLOT_STEPS = 60
_MAXIMA: dict[int, float] = {}
_KINDS = (
    ("normal", "normal: a bit more, a bit less"),
    ("exponential", "exponential: a long tail"),
    ("stall", "stalls: rarely, a whole step"),
)


def share_done(kind: str, spread: float, slower: float, time: float) -> float:
    """P(a rank is done by ``time``), in units of a healthy rank's compute; ``slower`` stretches all of it."""
    x = time / slower
    if kind == "normal":
        return 1 - 0.5 * math.erfc((x - 1) / (spread * math.sqrt(2)))
    if kind == "exponential":
        return 1 - math.exp(-(x - 1) / spread) if x > 1 else 0.0
    return 0.0 if x < 1 else 1 - spread if x < 2 else 1.0


def slowest_done(kind: str, spread: float, slower: float, ranks: int, time: float) -> float:
    """P(all ranks are done by ``time``), one of them ``slower`` times as slow as the others."""
    healthy = share_done(kind, spread, 1.0, time)
    return share_done(kind, spread, slower, time) * (healthy ** (ranks - 1) if healthy > 0 else 0.0)


def _range(kind: str, spread: float, slower: float, ranks: int) -> tuple[float, float]:
    """Where times lie: below the first nobody is done, above the second everybody but for one in a million."""
    if kind == "normal":
        return max(1 - 7 * spread, 0.0), slower * (1 + 7 * spread)
    if kind == "exponential":
        return 1.0, slower * (1 + spread * (math.log(ranks) + 16))
    return 1.0, 2 * slower


def expected_step(kind: str, spread: float, slower: float, ranks: int) -> float:
    """Expected time of the slowest rank, in units of a healthy rank's compute.

    Without a slow rank the models' formulas; with one, ``low + integral of P(not all done)``.
    """
    if slower == 1:
        if kind == "normal":
            # One integral for each N, whatever the spread is: they are kept.
            if ranks not in _MAXIMA:
                _MAXIMA[ranks] = normal_jitter_step(1.0, 1.0, ranks).expected_step_s - 1
            return 1 + spread * _MAXIMA[ranks]
        if kind == "exponential":
            return exponential_jitter_step(1.0, spread, ranks).expected_step_s
        return rare_stall_step(1.0, 1.0, spread, ranks).expected_step_s
    if kind == "stall":
        return _expected_with_stalls(spread, slower, ranks)
    low, high = _range(kind, spread, slower, ranks)
    width = (high - low) / _INTEGRATION_STEPS
    total = 0.0
    for index in range(_INTEGRATION_STEPS):
        total += 1 - slowest_done(kind, spread, slower, ranks, low + (index + 0.5) * width)
    return low + total * width


def _expected_with_stalls(chance: float, slower: float, ranks: int) -> float:
    """Four cases: the slow rank stalls or not, one of the others stalls or none."""
    others = 1 - (1 - chance) ** (ranks - 1)
    calm = others * max(2.0, slower) + (1 - others) * slower
    return chance * 2 * slower + (1 - chance) * calm


def mean_time(kind: str, spread: float) -> float:
    """Mean time of a healthy rank, in units of its compute."""
    return 1.0 if kind == "normal" else 1 + spread


class _Setting:
    """What the reader has set, and the answers to it, each computed once. All times are slowdowns of the mean."""

    def __init__(self, guess: float, ranks: int, kind: str, spread: float, slower: float) -> None:
        self.guess, self.ranks, self.kind, self.spread, self.slower = guess, ranks, kind, spread, slower
        self.mean = mean_time(kind, spread)
        self.curve = [(n, expected_step(kind, spread, slower, n) / self.mean) for n in _RANKS]
        self.step = expected_step(kind, spread, slower, ranks) / self.mean
        self.alike = expected_step(kind, spread, 1.0, ranks) / self.mean
        # The slow rank is busy for longer than the others, so less of the step is waiting.
        self.waiting = 1 - (ranks - 1 + slower) / ranks / self.step


def picture(
    guess: float, show_answer: bool, ranks: int, kind: str, spread: float, slower: float
) -> dict[str, Any]:
    """Expected slowdown over N with the reader's guess, and the share of ranks and of steps done over time."""
    setting = _Setting(guess, ranks, kind, spread, slower)
    panels = [_slowdown_panel(setting, show_answer)]
    panels.append(_done_panel(setting, show_answer))
    return chart.chart(
        panels=panels,
        words=_sentences(setting) if show_answer else _question(setting),
        readouts=_readouts(setting, show_answer),
    )


def _slowdown_panel(setting: _Setting, show_answer: bool) -> dict[str, Any]:
    curve = setting.curve if show_answer else [point for point in setting.curve if point[0] <= _SEEN_RANKS]
    highest = max([setting.guess, setting.curve[-1][1], 1.1])
    # Room for the name below the line: above it the curve would cross it.
    low = min(0.9, 1 - 0.16 * (highest - 1))
    most = low + 1.12 * (highest - low)
    # So near the answer, the two names would cover each other.
    near = show_answer and abs(setting.guess - setting.step) < 0.13 * (most - low)
    marks = [chart.mark(setting.ranks, setting.guess, "" if near else "you", "text")]
    if show_answer:
        marks.append(chart.mark(setting.ranks, setting.step, words.ratio(setting.step), "compute"))
    ticks = [(float(count), str(count)) for count in (2, 16, 128, 1024, 16384)]
    # The marks stand over the number of ranks, the name at the other end.
    limits = [
        chart.limit(1.0, "one rank's mean", side="below", align="end" if setting.ranks < 100 else "start")
    ]
    return chart.lines(
        title="Step over one rank's mean (×)",
        x=chart.axis("ranks N", (2, MOST_RANKS), ticks, scale="log", control="ranks"),
        y=chart.axis("", (low, most), _ratio_ticks(most)),
        curves=[chart.series("expected" if show_answer else "to 8 ranks", "compute", curve, "strong")],
        limits=limits,
        marks=marks,
        alt=f"Expected step over one rank's mean against the number of ranks: {words.ratio(curve[0][1])} on "
        f"{curve[0][0]} ranks, {words.ratio(curve[-1][1])} on {curve[-1][0]}. Your guess for {setting.ranks} ranks is "
        f"{words.ratio(setting.guess)}.",
    )


def _ratio_ticks(most: float) -> list[tuple[float, str]]:
    step = 0.1 if most < 1.45 else 0.25 if most < 2.2 else 0.5 if most < 3.5 else 1.0
    found = []
    value = 1.0
    while value <= most:
        found.append((value, words.plain_number(value)))
        value += step
    return found if len(found) > 1 else [(0.9, "0.9"), (1.0, "1")]


def _done_panel(setting: _Setting, show_answer: bool) -> dict[str, Any]:
    kind, spread = setting.kind, setting.spread
    low, high = _range(kind, spread, setting.slower, setting.ranks)
    if kind == "normal":
        low, high = 1 - 4 * spread, setting.slower * (1 + 5 * spread)
    elif kind == "exponential":
        high = setting.slower * (1 + spread * (math.log(setting.ranks) + 4))
    low, high = max(low - 0.05 * (high - low), 0.0), high + 0.05 * (high - low)
    times = [low + (high - low) * index / _PLOT_STEPS for index in range(_PLOT_STEPS + 1)]
    curves = [chart.series("one rank", "muted", [(t, share_done(kind, spread, 1.0, t)) for t in times])]
    if show_answer:
        steps = [(t, slowest_done(kind, spread, setting.slower, setting.ranks, t)) for t in times]
        curves.append(chart.series("the step", "compute", steps, "strong"))
    elif setting.slower > 1:
        slow = [(t, share_done(kind, spread, setting.slower, t)) for t in times]
        curves.append(chart.series("the slow one", "compute", slow))
    middle = words.percent(slowest_done(kind, spread, setting.slower, setting.ranks, setting.mean))
    said = f" By the mean time {middle} of the steps are done." if show_answer else ""
    return chart.lines(
        title="Done by then (%)",
        x=chart.axis("time, compute of one rank = 1", (low, high), _time_ticks(low, high)),
        y=chart.axis("", (0.0, 1.0), chart.even_ticks(1.0, 0.01)),
        curves=curves,
        alt="Share of ranks, and of steps, that are done by a given time: a step is done when its last rank is."
        + said,
    )


def _time_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Round ticks between two numbers, three to six of them."""
    step = 0.01
    for candidate in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        step = candidate
        if (high - low) / step <= 5:
            break
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [(index * step, words.plain_number(index * step)) for index in range(first, last + 1)]


def _readouts(setting: _Setting, show_answer: bool) -> list[dict[str, Any]]:
    one = chart.readout("one rank's mean", words.ratio(setting.mean), "compute of one rank = 1")
    if not show_answer:
        return [one, chart.readout("the step", "?", f"you {words.ratio(setting.guess)}")]
    rows = [
        one,
        chart.readout(
            "the step", words.ratio(setting.step), f"you {words.ratio(setting.guess)}", "compute-text"
        ),
        chart.readout("waiting", words.percent(setting.waiting), "of all rank-seconds", "idle-text"),
    ]
    if setting.slower > 1:
        rows.append(chart.readout("without the slow rank", words.ratio(setting.alike), "the step"))
        gain = without_slow_ranks_speedup(setting.step / setting.alike, setting.ranks)
        rows.append(
            chart.readout(
                "throughput without it", words.ratio(gain), f"on {words.plural(setting.ranks - 1, 'rank')}"
            )
        )
    return rows


def _jitter_words(setting: _Setting) -> str:
    spread = words.percent(setting.spread)
    if setting.kind == "normal":
        return f"Each rank's time varies by {spread} (normal, standard deviation)."
    if setting.kind == "exponential":
        return f"Each rank is delayed by {spread} on average, rarely by much more (exponential)."
    return f"Each rank stalls for a whole step in {spread} of the steps."


def _question(setting: _Setting) -> list[str]:
    slow = f" One of them is always {words.ratio(setting.slower)} as slow." if setting.slower > 1 else ""
    return [
        f"How long is a step on {setting.ranks} ranks, if all wait for the last? You say {words.ratio(setting.guess)} "
        "one rank's mean.",
        _jitter_words(setting) + slow + " Continue the curve in your head, then show the answer.",
    ]


def _sentences(setting: _Setting) -> list[str]:
    return [_verdict(setting), _jitter_words(setting) + " " + _growth(setting), _cure(setting)]


def _verdict(setting: _Setting) -> str:
    fair = (
        "although no rank is worse than another" if setting.slower == 1 else "with one slow rank among them"
    )
    return (
        f"On {setting.ranks} ranks a step takes {words.ratio(setting.step)} one rank's mean, {fair}: "
        f"{words.percent(setting.waiting)} of all rank-seconds are spent waiting. You said {words.ratio(setting.guess)}."
    )


def _growth(setting: _Setting) -> str:
    few = expected_step(setting.kind, setting.spread, 1.0, 8) / setting.mean
    many = expected_step(setting.kind, setting.spread, 1.0, 1024) / setting.mean
    both = f"With ranks alike it is {words.ratio(few)} on 8 ranks and {words.ratio(many)} on 1024"
    if setting.kind == "normal":
        return both + ": the largest of more draws is larger, and grows ever more slowly."
    if setting.kind == "exponential":
        return both + ": with a long tail every doubling of the ranks costs the same again."
    return (
        both
        + ": once somebody stalls in every step, more ranks change nothing. If all stalled together, a step would take one rank's mean."
    )


def _cure(setting: _Setting) -> str:
    if setting.slower == 1:
        return "Nobody is to blame, so nobody can be replaced: calm the ranks, or wait for each other less often."
    without = f"Without the slow rank a step takes {words.ratio(setting.alike)}"
    gain = setting.step / setting.alike - 1
    if gain < 0.01:
        return f"{without}, hardly less: the jitter of the other ranks makes it about as long, so replacing the slow one gains little."
    return (
        f"{without}: with a good rank in its place the job is {words.percent(gain)} faster. The more ranks vary, and the more "
        "of them there are, the less one slow rank matters."
    )


def _preset(name: str, label: str, source: str, **values: Any) -> Preset:
    return Preset(name=name, label=label, values=values, source=source)


EXPERIMENT = Experiment(
    name="stragglers",
    title="Stragglers",
    question="All ranks wait for the slowest. How long is a step on N ranks, when each takes a little more or less time?",
    controls=(
        slider("guess", "Your guess (×)", _GUESSES, 1.1),
        toggle("show_answer", "Show the answer", False),
        slider("ranks", "Ranks N", _RANKS, 1024, whole=True),
        choice("kind", "Jitter", _KINDS, "normal"),
        slider("spread", "Size of the jitter", _SPREADS, 0.1),
        slider("slower", "One rank slower (×)", _SLOWDOWNS, 1.0),
    ),
    presets=(
        _preset(
            "alike",
            "1,024 ranks, all alike",
            "A standard deviation of 10 % is an example, not a measurement; put in your own.",
        ),
        _preset(
            "tail",
            "The same with a long tail",
            "A mean delay of 10 % is an example; page faults, network and other jobs on a host have tails like this.",
            kind="exponential",
        ),
        _preset(
            "garbage",
            "Garbage collection, out of step",
            "Unaligned garbage collection lowered MegaScale's MFU step by step (arXiv 2402.15627, section 6.3); "
            "a stall in 1 % of the steps is an example.",
            kind="stall",
            spread=0.01,
        ),
        _preset(
            "slow-host",
            "A host 10 % slower",
            "MegaScale found about 0.5 % of its machines 10 % slower than the others (arXiv 2402.15627, section 6.3); "
            "the jitter of 1 % is an example.",
            ranks=256,
            spread=0.01,
            slower=1.1,
        ),
        _preset(
            "lab",
            "The lab's 4 ranks",
            "The lab `straggler`: 50 ms of compute and a delay of 10 ms on average, exponential, on 4 ranks.",
            ranks=4,
            kind="exponential",
            spread=0.2,
        ),
    ),
    picture=picture,
)
