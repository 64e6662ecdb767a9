"""Run one training step of a pipeline under a schedule: who works when, both bubbles, memory, and why a rank idles."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider
from shardlab.experiments.gallery._pipeline_bars import (
    CHOSEN,
    LANES_TITLE,
    ROOM,
    bars,
    batches,
    ledger,
    spans,
)
from shardlab.models.pipeline import (
    PipelineRun,
    makespan_s,
    published_in_flight_peak,
    simulate,
)

MOST_STAGES = 8
OPERATION_S = 0.01
"""Seconds of one micro-batch's forward on one rank, and of its input gradient, and of its weight gradient."""

_SCHEDULES = (
    ("gpipe", "GPipe"),
    ("1f1b", "1F1B"),
    ("interleaved-1f1b", "Interleaved 1F1B"),
    ("zb-h1", "Zero bubble H1"),
    ("zb-h2", "Zero bubble H2"),
    ("zb-v", "Zero bubble V"),
)
_SHORT = ("GPipe", "1F1B", "Interl.", "ZB-H1", "ZB-H2", "ZB-V")
_NAMES = dict(_SCHEDULES)


def picture(
    schedule: str,
    stages: int,
    micro_batches: int,
    chunks: int,
    slow: float,
    transfer_s: float,
    rank: int,
    moment: float,
) -> dict[str, Any]:
    """One step as a timeline, the same work under every schedule, and what every rank holds in memory."""
    setting = _Setting(
        schedule, stages, micro_batches, chunks, slow, transfer_s, min(rank, stages - 1), moment
    )
    return chart.chart(
        panels=[_timeline_panel(setting), _schedules_panel(setting)],
        words=_sentences(setting),
        bounds={"rank": {"most": stages - 1}, "chunks": {"enabled": schedule == "interleaved-1f1b"}},
    )


class _Setting:
    """What the reader has set, and the run that comes of it."""

    def __init__(
        self,
        schedule: str,
        stages: int,
        micro_batches: int,
        chunks: int,
        slow: float,
        transfer_s: float,
        rank: int,
        moment: float,
    ) -> None:
        self.schedule = schedule
        self.stages = stages
        self.asked = micro_batches
        self.chunks = chunks
        self.slow = slow
        self.transfer_s = transfer_s
        self.rank = rank
        interleaved = schedule == "interleaved-1f1b"
        # Interleaving deals micro-batches in groups of p: take the next multiple.
        self.micro_batches = -(-micro_batches // stages) * stages if interleaved else micro_batches
        self.run = self.simulated(schedule)
        self._steps_s = {schedule: self.run.makespan_s}
        self.at_s = moment * self.run.makespan_s

    def arguments(self, schedule: str) -> tuple[Any, ...]:
        """Arguments of ``simulate`` and ``makespan_s``: the last rank's work takes ``slow`` times as long."""
        seconds: Any = OPERATION_S
        if self.slow != 1 and self.stages > 1:
            seconds = [OPERATION_S] * (self.stages - 1) + [OPERATION_S * self.slow]
        pieces = self.chunks if schedule == "interleaved-1f1b" else 1
        return schedule, self.stages, self.micro_batches, seconds, seconds, seconds, self.transfer_s, pieces

    def simulated(self, schedule: str) -> PipelineRun:
        """The run of a schedule at these settings."""
        return simulate(*self.arguments(schedule))

    def step_s(self, schedule: str) -> float:
        """Seconds of a schedule's step: worked out once, for the table and the words."""
        if schedule not in self._steps_s:
            self._steps_s[schedule] = makespan_s(*self.arguments(schedule))
        return self._steps_s[schedule]

    def fits(self, schedule: str) -> bool:
        """Whether the schedule can deal out this number of micro-batches."""
        return schedule != "interleaved-1f1b" or self.micro_batches % self.stages == 0

    @property
    def work_s(self) -> float:
        """Seconds of work per rank, mean."""
        total = 0.0
        for busy in self.run.busy_s:
            total += busy
        return total / self.stages


def _timeline_panel(setting: _Setting) -> dict[str, Any]:
    run = setting.run
    return chart.timeline(
        title=LANES_TITLE,
        lanes=[f"{CHOSEN if rank == setting.rank else ''}rank {rank}" for rank in range(run.stages)],
        time=chart.time_axis("time", ROOM * run.makespan_s, about=6),
        spans=spans(
            run.timeline,
            run.makespan_s,
            [words.plain_number(peak) for peak in run.in_flight_peak],
            ["memory-text"] * run.stages,
        ),
        limits=[
            chart.limit(
                setting.at_s,
                f"rank {setting.rank}, {words.seconds(setting.at_s)}",
                align="end" if setting.at_s > run.makespan_s / 2 else "start",
            )
        ],
        alt=f"Timeline of {words.plural(run.stages, 'rank')} under {_NAMES[run.schedule]} with "
        f"{batches(run.micro_batches)}: the step takes {words.seconds(run.makespan_s)}, of which "
        f"{words.percent(run.bubble_of_total)} is idle, all ranks together. In flight at the peak, rank by rank: "
        + ", ".join([words.plain_number(peak) for peak in run.in_flight_peak])
        + ".",
    )


def _schedules_panel(setting: _Setting) -> dict[str, Any]:
    runs: list[tuple[float, float] | None] = []
    names = []
    for (name, _), short in zip(_SCHEDULES, _SHORT):
        names.append((CHOSEN if name == setting.schedule else "") + short)
        if not setting.fits(name):
            runs.append(None)
        elif name == setting.schedule:
            runs.append((setting.run.makespan_s, setting.run.in_flight_peak[0]))
        elif name == "zb-v":
            # With few micro-batches its published peak is an upper bound.
            other = setting.simulated(name)
            runs.append((other.makespan_s, other.in_flight_peak[0]))
        else:
            pieces = setting.arguments(name)[-1]
            peaks = published_in_flight_peak(name, setting.stages, setting.micro_batches, pieces)
            runs.append((setting.step_s(name), peaks[0]))
    return ledger(names, runs, setting.work_s)


def _held_at(run: PipelineRun, rank: int, at_s: float) -> float:
    """Micro-batches in flight on a rank at a time."""
    held = 0.0
    for when, amount in run.activation_timeline(rank):
        if when <= at_s:
            held = amount
    return held


def _messages(run: PipelineRun) -> int:
    """Activations and gradients sent in a step, all ranks together."""
    rank_of = run.timeline.model.rank_of
    hops = len([stage for stage in range(len(rank_of) - 1) if rank_of[stage] != rank_of[stage + 1]])
    return 2 * run.micro_batches * hops


def _sentences(setting: _Setting) -> list[str]:
    run = setting.run
    if run.stages == 1:
        return ["One rank has nobody to wait for: it works all the time, and there is no bubble."]
    texts = [_bubble_words(setting), _memory_words(setting), _moment_words(setting)]
    if not setting.fits("interleaved-1f1b"):
        texts.append(
            f"Interleaving is not possible here: it takes a multiple of p = {run.stages} micro-batches."
        )
    if run.micro_batches != setting.asked:
        texts.append(
            f"Interleaving deals micro-batches in groups of p = {run.stages}: {run.micro_batches} are run instead of "
            f"{setting.asked}."
        )
    if run.micro_batches < run.stages:
        texts.append("With fewer micro-batches than stages the pipeline never fills: some rank always idles.")
    return texts


def _bubble_words(setting: _Setting) -> str:
    run = setting.run
    opening = (
        f"Each rank works {words.seconds(setting.work_s)} of the {words.seconds(run.makespan_s)} and idles for "
        f"{words.percent(run.bubble_of_total)} of the total time, {words.percent(run.bubble_of_ideal)} of the ideal"
    )
    if setting.slow != 1:
        return opening + ", on average; all wait for the slower last rank."
    if run.schedule in ("zb-h2", "zb-v"):
        own = words.percent(run.bubble_of_longest_span)
        return opening + f"; {own} between a rank's own first and last operation."
    return opening + "."


def _memory_words(setting: _Setting) -> str:
    run = setting.run
    peak = words.plain_number(run.in_flight_peak[0])
    sent = _messages(run)
    if run.schedule == "gpipe":
        held = "its one micro-batch" if run.micro_batches == 1 else f"all {batches(run.micro_batches)}"
        idles = _idles(setting, "1f1b")
        return f"Rank 0 holds {held}; 1F1B {idles} and holds at most p. Messages: {sent}."
    if run.schedule == "1f1b":
        idles = _idles(setting, "gpipe")
        return f"Rank 0 holds {peak} of {batches(run.micro_batches)}; GPipe {idles} and holds all. Messages: {sent}."
    if run.schedule == "interleaved-1f1b":
        return _interleaved_words(setting, sent)
    return f"Weight gradients, which nobody waits for, fill gaps; rank 0 holds {peak}. Messages: {sent}."


def _gap_s(setting: _Setting, other: str) -> float:
    """Seconds by which the step is longer under another schedule; rounding counts as nothing."""
    gap = setting.step_s(other) - setting.run.makespan_s
    return gap if abs(gap) > 1e-9 * setting.run.makespan_s else 0.0


def _idles(setting: _Setting, other: str) -> str:
    """How long another schedule idles: messages that take time cost 1F1B a round trip for every p micro-batches."""
    gap = _gap_s(setting, other)
    if gap == 0:
        return "idles as long"
    return f"idles {'longer' if gap > 0 else 'less'} with these transfers"


def _interleaved_words(setting: _Setting, sent: int) -> str:
    run = setting.run
    if run.chunks == 1:
        return f"With one chunk a rank this is 1F1B: {sent} messages. Give each rank more chunks."
    plain = 2 * run.micro_batches * (run.stages - 1)
    gap = _gap_s(setting, "1f1b")
    gain = "Less idle time"
    if gap <= 0:
        gain = f"{'More' if gap < 0 else 'No less'} idle time than 1F1B with these transfers,"
    return f"{gain} for more traffic: {sent} messages instead of {plain}. A chunk in flight counts 1/{run.chunks}."


def _moment_words(setting: _Setting) -> str:
    """What the chosen rank does at the chosen time, or which operation it waits for."""
    run, rank, at_s = setting.run, setting.rank, setting.at_s
    # A chunk counts a fraction of a micro-batch: thirds need rounding, halves stay as they are.
    held = words.plain_number(round(words.settled(_held_at(run, rank, at_s)), 2))
    opening = f"At {words.seconds(at_s)}, {held} in flight: "
    for bar in bars(run.timeline, rank):
        if bar.start_s <= at_s < bar.end_s:
            return (
                opening
                + f"rank {rank} works on the {bar.name}. Move the moment to a grey slot to ask why it is idle."
            )
    for gap in run.idle_gaps:
        if gap.rank == rank and gap.start_s <= at_s <= gap.end_s:
            return opening + gap.explanation + "."
    if at_s >= run.makespan_s * (1 - 1e-9):
        return opening + "the step is over."
    return opening + f"rank {rank} passes from one operation to the next."


EXPERIMENT = Experiment(
    name="schedule-lab",
    title="Schedule lab",
    question="Which order of forwards and backwards idles least, what does it hold in memory, and why is a slot idle?",
    controls=(
        choice("schedule", "Schedule", _SCHEDULES, "1f1b"),
        slider("stages", "Stages p", tuple(range(1, MOST_STAGES + 1)), 4, whole=True),
        slider("micro_batches", "Micro-batches m", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 8, whole=True),
        slider("chunks", "Chunks per rank v", (1, 2, 3), 2, whole=True),
        slider("slow", "Last rank's work, ×", (1, 1.1, 1.25, 1.5, 2), 1),
        slider("transfer_s", "Transfer", (0.0, 0.001, 0.002, 0.005, 0.01), 0.0, "seconds"),
        slider("rank", "Ask rank", tuple(range(MOST_STAGES)), 0, whole=True),
        slider("moment", "at, share of the step", tuple([n / 20 for n in range(21)]), 0.2),
    ),
    presets=(
        Preset(
            name="alternating",
            label="1F1B, 4 stages",
            values={},
            source="4 ranks, 8 micro-batches: the setting of the lab. Every operation takes 10 ms a rank.",
        ),
        Preset(
            name="source",
            label="The source's 8 and 8",
            values={"schedule": "gpipe", "stages": 8, "micro_batches": 8, "rank": 0, "moment": 0.5},
            source="The source text's example: 8 stages, 8 micro-batches, 7/15 of the time idle.",
        ),
        Preset(
            name="gpipe-paper",
            label="GPipe paper, 8 and 32",
            values={"schedule": "gpipe", "stages": 8, "micro_batches": 32, "rank": 0, "moment": 0.35},
            source="m = 4p, which the GPipe paper (2019, section 2.3) calls a negligible bubble.",
        ),
        Preset(
            name="interleaved",
            label="Interleaved, v = 2",
            values={"schedule": "interleaved-1f1b", "chunks": 2, "rank": 3, "moment": 0.9},
            source="The same 4 ranks and 8 micro-batches, two chunks per rank, as SC21 (2021, section 2.2) introduces it.",
        ),
        Preset(
            name="zero-bubble",
            label="Zero bubble H2",
            values={"schedule": "zb-h2", "rank": 3, "moment": 0.05},
            source="The same 4 ranks and 8 micro-batches under H2 of the Zero Bubble paper (2023, section 2).",
        ),
    ),
    picture=picture,
)
