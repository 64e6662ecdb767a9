"""What pipeline experiments share: a run of the executor as bars of a timeline."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.models.pipeline_executor import Timeline

LANES_TITLE = "Who works when: forward solid, gradients striped, idle grey. Right: most in flight"
ROOM = 1.14
"""How much longer than the step the axis is, for the texts at its end."""

CHOSEN = "▸ "
"""Stands before the name of what the reader has chosen."""

_TEXTURES = ("solid", "light", "hatch")
_OPERATIONS = ("forward", "input gradient", "weight gradient")
_MOST_BARS = 200


def batches(number: int) -> str:
    """``1 micro-batch``, ``8 micro-batches``."""
    return "1 micro-batch" if number == 1 else f"{number} micro-batches"


class Bar:
    """Something that a rank does without a break: one operation, or a backward in one go.

    Attributes:
        name: in the field's words. texture: of its bar. start_s, end_s: seconds.
    """

    def __init__(self, name: str, texture: str, start_s: float, end_s: float) -> None:
        self.name = name
        self.texture = texture
        self.start_s = start_s
        self.end_s = end_s


def bars(timeline: Timeline, rank: int) -> list[Bar]:
    """What a rank ran, in order; in a deadlock, as far as it came."""
    model = timeline.model
    found = []
    for position, start in enumerate(timeline.starts[rank]):
        entry = timeline.orders[rank][position]
        kind, chunk = divmod(entry[0][0], model.chunks)
        name = _OPERATIONS[kind] if len(entry) == 1 else "backward"
        place = f", chunk {chunk}" if model.chunks > 1 else ""
        end = timeline.entry_end_s(rank, position)
        found.append(Bar(f"{name} of micro-batch {entry[0][1]}{place}", _TEXTURES[kind], start, end))
    return found


def spans(
    timeline: Timeline, until_s: float, texts: list[str], text_roles: list[str]
) -> list[dict[str, Any]]:
    """All ranks' bars, with the idle time up to ``until_s`` between them, and a text at the end of every lane.

    Where there are very many, neighbours of a kind are drawn as one.
    """
    join = len([1 for starts in timeline.starts for _ in starts]) > _MOST_BARS
    noise = 1e-9 * until_s
    found: list[dict[str, Any]] = []
    for rank in range(timeline.model.stages):
        free = 0.0
        for bar in bars(timeline, rank):
            idle = bar.start_s - free > noise
            if idle:
                found.append(chart.span(rank, free, bar.start_s, "idle", texture="hatch"))
            if join and free > 0 and not idle and found[-1]["texture"] == bar.texture:
                found[-1]["end"] = bar.end_s
            else:
                found.append(chart.span(rank, bar.start_s, bar.end_s, "compute", texture=bar.texture))
            free = bar.end_s
        if until_s - free > noise:
            found.append(chart.span(rank, free, until_s, "idle", texture="hatch"))
        found[-1]["label"] = texts[rank]
        found[-1]["text_role"] = text_roles[rank]
    return found


def ledger(names: list[str], runs: list[tuple[float, float] | None], work_s: float) -> dict[str, Any]:
    """The table of several schedules on the same work, a row for each.

    Args:
        names: of the schedules; the reader's begins with ``CHOSEN``.
        runs: (step in seconds, in flight on rank 0) of each, or None where there is no run.
        work_s: work of a rank in the step, seconds, mean.
    """
    rows = []
    for name, run in zip(names, runs):
        row = [name, "–", "–", "–"]
        if run:
            idle_s = max(run[0] - work_s, 0.0)
            row = [
                name,
                words.percent(idle_s / run[0]),
                words.percent(idle_s / work_s),
                words.plain_number(run[1]),
            ]
        rows.append(row)
    return chart.table(
        title="The same work under other schedules. In flight: rank 0, peak",
        columns=["", "idle/total", "idle/ideal", "in flight"],
        rows=rows,
        strong_rows=[index for index, name in enumerate(names) if name.startswith(CHOSEN)],
    )
