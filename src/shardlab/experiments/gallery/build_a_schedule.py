"""Write a pipeline schedule of your own on four ranks: does it run, how long does it idle, what does it hold?"""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider
from shardlab.experiments.gallery._pipeline_bars import CHOSEN, LANES_TITLE, ROOM, batches, ledger, spans
from shardlab.models.pipeline import PipelineRun, execute, schedule_operations, schedule_problems, simulate
from shardlab.models.pipeline_executor import Timeline, pipeline_model, run_orders
from shardlab.models.pipeline_orders import read_orders, with_whole_backwards
from shardlab.models.pipeline_schedules import F, W

RANKS = 4
MOST_BATCHES = 12
OPERATION_S = 0.01
"""Seconds of a forward, of an input gradient and of a weight gradient of one micro-batch on one rank."""

_TIMES = (OPERATION_S, OPERATION_S, OPERATION_S)
_KNOWN = (("gpipe", "GPipe"), ("1f1b", "1F1B"), ("zb-h1", "ZB-H1"), ("zb-h2", "ZB-H2"))
_AHEAD_STOPS = tuple(range(1, MOST_BATCHES + 1))


def rank_order(
    rank: int, micro_batches: int, forwards_first: int, backward_takes: str, weights: str
) -> list[str]:
    """One rank's list: some forwards, then backward and forward in turn, then the backwards that are left.

    Args:
        rank: 0 to 3.
        micro_batches: m.
        forwards_first: forwards before the first backward, 1 to m.
        backward_takes: ``"oldest"`` or ``"newest"`` of the micro-batches in flight.
        weights: ``"whole"``: the backward in one go; else the weight gradient by itself: ``"at-once"``,
            ``"rank"`` or ``"twice"`` (so many, or twice so many, backwards later as the rank's number), ``"end"``.
    """
    lag = {"whole": 0, "at-once": 0, "rank": rank, "twice": 2 * rank, "end": micro_batches}[weights]
    order = [f"F{batch}" for batch in range(forwards_first)]
    in_flight = list(range(forwards_first))
    done: list[int] = []
    for batch in range(forwards_first, forwards_first + micro_batches):
        done.append(in_flight.pop(0 if backward_takes == "oldest" else -1))
        order.append(f"B{done[-1]}")
        if weights != "whole" and len(done) > lag:
            order.append(f"W{done[len(done) - 1 - lag]}")
        if batch < micro_batches:
            order.append(f"F{batch}")
            in_flight.append(batch)
    if weights != "whole":
        order.extend([f"W{batch}" for batch in done[max(micro_batches - lag, 0) :]])
    return order


class _Built:
    """The reader's schedule, and what came of running it.

    Attributes:
        orders: the four lists. timeline: as far as the ranks came. run: None in a deadlock.
        problem: the sentence about the deadlock, else empty. peaks: in flight, rank by rank.
    """

    def __init__(
        self, micro_batches: int, forwards_first: list[int], backward_takes: str, weights: str, budget: int
    ) -> None:
        self.micro_batches = micro_batches
        self.budget = budget
        self.orders = [
            rank_order(rank, micro_batches, first, backward_takes, weights)
            for rank, first in enumerate(forwards_first)
        ]
        problems = schedule_problems(self.orders)
        self.problem = problems[0] if problems else ""
        self.run: PipelineRun | None = None if problems else execute(self.orders, _TIMES)
        self.timeline = self.run.timeline if self.run else _as_far_as_it_came(self.orders, micro_batches)
        self.peaks = [_peak(order) for order in self.timeline.orders]
        self.name = _name_of(self.orders, micro_batches)
        self.known = [simulate(name, RANKS, micro_batches, *_TIMES) for name, _ in _KNOWN]

    def of(self, name: str) -> PipelineRun:
        """The run of a published schedule on the same work."""
        return self.known[[key for key, _ in _KNOWN].index(name)]

    @property
    def over_budget(self) -> list[int]:
        """Ranks that hold more than the budget."""
        return [rank for rank, peak in enumerate(self.peaks) if peak > self.budget]


def _as_far_as_it_came(orders: list[list[str]], micro_batches: int) -> Timeline:
    entries, _, _ = read_orders(orders, 1)
    model = pipeline_model(RANKS, micro_batches, 1, "loop", _TIMES, 0.0)
    return run_orders(with_whole_backwards(entries, 1), model)


def _peak(order: list[Any]) -> int:
    """Most micro-batches in flight, from F to W: the order alone decides."""
    held = most = 0
    for entry in order:
        for kind, _ in entry:
            held += 1 if kind == F else -1 if kind == W else 0
            most = max(most, held)
    return most


def _name_of(orders: list[list[str]], micro_batches: int) -> str:
    """The published schedule that these lists are, or nothing."""
    for key, name in _KNOWN:
        if orders == schedule_operations(key, RANKS, micro_batches):
            return name
    return ""


def picture(
    micro_batches: int,
    first0: int,
    first1: int,
    first2: int,
    first3: int,
    backward_takes: str,
    weights: str,
    budget: int,
) -> dict[str, Any]:
    """The schedule's timeline beside published ones, and what each rank holds against the budget."""
    chosen = (first0, first1, first2, first3)
    forwards_first = [min(first, micro_batches) for first in chosen]
    built = _Built(micro_batches, forwards_first, backward_takes, weights, budget)
    most = {"most": micro_batches}
    return chart.chart(
        panels=[_timeline_panel(built), _compared_panel(built)],
        words=_sentences(built),
        readouts=_readouts(built),
        bounds={f"first{rank}": most for rank in range(RANKS)},
    )


def _timeline_panel(built: _Built) -> dict[str, Any]:
    end = built.timeline.makespan_s
    stuck = built.run is None
    shown = 1.2 * end if stuck else end
    over = built.over_budget
    return chart.timeline(
        title=LANES_TITLE,
        lanes=[f"rank {rank}" for rank in range(RANKS)],
        time=chart.time_axis("time", (ROOM if not over else 1.22) * shown, about=6),
        spans=spans(
            built.timeline,
            shown,
            [f"{peak}, too many" if rank in over else str(peak) for rank, peak in enumerate(built.peaks)],
            ["bad-text" if rank in over else "memory-text" for rank in range(RANKS)],
        ),
        limits=[chart.limit(end, "deadlock" if stuck else words.seconds(end), align="end")],
        alt=f"Timeline of your schedule on {RANKS} ranks with {batches(built.micro_batches)}: "
        + ("it stops in a deadlock after " if stuck else "it takes ")
        + words.seconds(end)
        + ". In flight at the peak, rank by rank: "
        + ", ".join([str(peak) for peak in built.peaks])
        + f"; the budget is {built.budget}.",
    )


def _compared_panel(built: _Built) -> dict[str, Any]:
    names, runs = [f"{CHOSEN}yours"], [built.run]
    for (_, name), run in zip(_KNOWN, built.known):
        names.append(name)
        runs.append(run)
    return ledger(
        names,
        [(run.makespan_s, run.in_flight_peak[0]) if run else None for run in runs],
        3 * built.micro_batches * OPERATION_S,
    )


def _readouts(built: _Built) -> list[dict[str, Any]]:
    run, alternating = built.run, built.of("1f1b")
    over = built.over_budget
    verdict = ("runs" if not over else "over budget") if run else "deadlock"
    role = "good-text" if run and not over else "bad-text"
    return [
        chart.readout("your schedule", verdict, built.name or "your own", role),
        chart.readout(
            "step",
            words.seconds(run.makespan_s) if run else "never ends",
            f"1F1B: {words.seconds(alternating.makespan_s)}",
        ),
        chart.readout(
            "idle/total",
            words.percent(run.bubble_of_total) if run else "–",
            f"1F1B: {words.percent(alternating.bubble_of_total)}",
            "idle-text",
        ),
        chart.readout(
            "idle/ideal",
            words.percent(run.bubble_of_ideal) if run else "–",
            f"1F1B: {words.percent(alternating.bubble_of_ideal)}",
            "idle-text",
        ),
        chart.readout(
            "most in flight",
            str(max(built.peaks)),
            f"1F1B: {words.plain_number(alternating.in_flight_peak[0])}",
            "memory-text",
        ),
    ]


def _sentences(built: _Built) -> list[str]:
    if built.run is None:
        return [
            "It never ends: " + built.problem[len("deadlock: ") :] + ".",
            "A rank needs from its neighbour below a gradient that the neighbour can't make before it gets another "
            "forward: with backwards of the oldest, no rank may run fewer forwards first than the rank after it.",
        ]
    return [_step_words(built, built.run), _budget_words(built), _hint(built, built.run)]


def _step_words(built: _Built, run: PipelineRun) -> str:
    other = built.of("1f1b")
    opening = f"It runs, and it is {built.name}: " if built.name else "It runs: "
    opening += (
        f"the step takes {words.seconds(run.makespan_s)}, idle/total {words.percent(run.bubble_of_total)}"
    )
    gain = other.makespan_s - run.makespan_s
    if built.name == "1F1B":
        return opening + "."
    if abs(gain) <= 1e-9 * run.makespan_s:
        return opening + ", just as long as 1F1B."
    return opening + f", {words.seconds(abs(gain))} {'less' if gain > 0 else 'more'} than 1F1B."


def _budget_words(built: _Built) -> str:
    over = built.over_budget
    peaks = ", ".join([str(peak) for peak in built.peaks])
    if not over:
        return f"In flight are {peaks} micro-batches at the peak, rank by rank: all within the budget of {built.budget}."
    listed = ("rank " if len(over) == 1 else "ranks ") + ", ".join([str(rank) for rank in over])
    return (
        f"In flight are {peaks} micro-batches at the peak, rank by rank: {listed} would run out of memory with "
        f"{built.budget}."
    )


def _hint(built: _Built, run: PipelineRun) -> str:
    other = built.of("1f1b")
    least = other.makespan_s * (1 - 1e-9)
    if run.makespan_s < least:
        allowed = other.in_flight_peak
        if not [1 for peak, most in zip(built.peaks, allowed) if peak > most]:
            return "You beat 1F1B, and no rank holds more than under 1F1B: only a split backward can do that."
        if max(built.peaks) <= allowed[0]:
            return "You beat 1F1B, and no rank holds more than 1F1B's first; the later ranks hold more than they did."
        return "You beat 1F1B, and hold more: bubble was bought with memory."
    gaps = [gap for gap in run.idle_gaps if gap.waits_for is not None]
    if not gaps:
        return "No rank waits between two operations."
    longest = gaps[0]
    for gap in gaps:
        if gap.duration_s > longest.duration_s + 1e-9:
            longest = gap
    return f"The longest wait: {longest.explanation}."


EXPERIMENT = Experiment(
    name="build-a-schedule",
    title="Build a schedule",
    question="Can you beat 1F1B's bubble while no rank holds more than under 1F1B? And can you make it deadlock?",
    controls=(
        slider("micro_batches", "Micro-batches m", (4, 6, 8, 10, 12), 8, whole=True),
        slider("first0", "Rank 0: forwards first", _AHEAD_STOPS, 4, whole=True),
        slider("first1", "Rank 1: forwards first", _AHEAD_STOPS, 3, whole=True),
        slider("first2", "Rank 2: forwards first", _AHEAD_STOPS, 2, whole=True),
        slider("first3", "Rank 3: forwards first", _AHEAD_STOPS, 1, whole=True),
        choice(
            "backward_takes",
            "A backward takes the",
            (("oldest", "oldest in flight"), ("newest", "newest in flight")),
            "oldest",
        ),
        choice(
            "weights",
            "Weight gradient",
            (
                ("whole", "in one go with the backward"),
                ("at-once", "by itself, at once"),
                ("rank", "r backwards later on rank r"),
                ("twice", "2r backwards later on rank r"),
                ("end", "all at the end"),
            ),
            "whole",
        ),
        slider("budget", "Memory budget", _AHEAD_STOPS, 4, whole=True),
    ),
    presets=(
        Preset(
            name="alternating",
            label="1F1B",
            values={},
            source="One forward first for every rank from here to the end (Narayanan et al., SC21, 2021, section 2.2).",
        ),
        Preset(
            name="gpipe",
            label="GPipe",
            values={"first0": 8, "first1": 8, "first2": 8, "first3": 8},
            source="All forwards first (Huang et al., 2019, section 2.3).",
        ),
        Preset(
            name="hasty",
            label="Backward at once",
            values={"first0": 1, "first1": 1, "first2": 1, "first3": 1},
            source="A backward as soon as there is one: one micro-batch in the pipeline at a time.",
        ),
        Preset(
            name="deadlock",
            label="One rank too eager",
            values={"first0": 3, "first1": 4},
            source="Rank 1 wants a fourth forward before it sends a gradient; rank 0 wants a gradient before its fourth.",
        ),
        Preset(
            name="newest",
            label="Newest first",
            values={"backward_takes": "newest"},
            source="The counts of 1F1B, but every rank takes the newest micro-batch instead of the oldest.",
        ),
    ),
    picture=picture,
)
