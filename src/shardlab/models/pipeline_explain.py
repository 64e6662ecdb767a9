"""Who waits for whom: the operations with their times, the critical path, and the reason of every idle gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.models.pipeline_executor import Timeline
from shardlab.models.pipeline_schedules import KINDS, B, F, W
from shardlab.units import format_time

# Float sums taken along two paths differ in the last bits: such a difference is no idle time.
_NOISE = 1e-9
# CPython and MicroPython round a tie such as 28.625 differently; a nudge settles it.
_UP = 1 + 1e-12


def time_text(seconds: float) -> str:
    """Seconds for a sentence, the same text under every Python."""
    return format_time(seconds * _UP)


def ratio_text(ratio: float) -> str:
    """Four decimals, the same text under every Python."""
    return f"{ratio * _UP:.4f}"


@dataclass(frozen=True)
class Operation:
    """One operation of one micro-batch.

    Attributes:
        rank: pipeline rank that runs it.
        stage: position in the model of the chunk it belongs to, 0 to p·v-1; the rank itself when v = 1.
        chunk: number of that chunk on its rank, 0 to v-1.
        kind: ``"F"`` forward, ``"B"`` input gradient, ``"W"`` weight gradient.
        micro_batch: 0 to m-1.
        start_s, end_s: seconds since the first operation of all.
        leaves_s: when its result can leave the rank: ``end_s``, or the end of the entry it is joined to. In a whole
            backward (``B`` joined with ``W``) the gradient leaves when ``W`` ends. It is drawn as B then W;
            a real backward pass mixes the two layer by layer, and only its end matters to the others.
    """

    rank: int
    stage: int
    chunk: int
    kind: str
    micro_batch: int
    start_s: float
    end_s: float
    leaves_s: float

    @property
    def duration_s(self) -> float:
        """Seconds it takes."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class IdleGap:
    """A time in which a rank has nothing to run.

    Attributes:
        rank: the idle rank.
        start_s, end_s: seconds.
        phase: ``"warm-up"`` (before the rank's first backward), ``"cool-down"`` (after its last forward),
            ``"turn-around"`` (between the two, as in gpipe) or ``"steady"``.
        waits_for: the operation whose result ends the gap; None in the gap after the rank's last operation.
        explanation: a sentence.
    """

    rank: int
    start_s: float
    end_s: float
    phase: str
    waits_for: Operation | None
    explanation: str

    @property
    def duration_s(self) -> float:
        """Seconds of idling."""
        return self.end_s - self.start_s


def entry_operations(timeline: Timeline, rank: int, position: int) -> list[Operation]:
    """The operations of one entry, back to back."""
    clock = timeline.starts[rank][position]
    leaves = timeline.entry_end_s(rank, position)
    stages = timeline.model.stages_of[rank]
    found = []
    for slot, batch in timeline.orders[rank][position]:
        kind, chunk = divmod(slot, timeline.model.chunks)
        end = clock + timeline.model.durations_s[kind][stages[chunk]]
        found.append(
            Operation(
                rank=rank,
                stage=stages[chunk],
                chunk=chunk,
                kind=KINDS[kind],
                micro_batch=batch,
                start_s=clock,
                end_s=end,
                leaves_s=leaves,
            )
        )
        clock = end
    return found


def operations(timeline: Timeline) -> tuple[Operation, ...]:
    """Every operation, rank by rank in the order run."""
    found = []
    for rank, order in enumerate(timeline.orders):
        for position in range(len(order)):
            found.extend(entry_operations(timeline, rank, position))
    return tuple(found)


@dataclass(frozen=True)
class _Input:
    """The input that reached an entry last: an operation of another entry, and how long it travelled."""

    rank: int
    position: int
    kind: int
    chunk: int
    micro_batch: int
    transfer_s: float


def _positions(timeline: Timeline) -> list[list[list[int]]]:
    """``[kind][model chunk][micro-batch]`` -> position of its entry on its rank, for F and B."""
    if "positions" not in timeline.built:
        model = timeline.model
        found = [[[-1] * model.micro_batches for _ in range(model.stages * model.chunks)] for _ in (F, B)]
        for rank, order in enumerate(timeline.orders):
            stages = model.stages_of[rank]
            for position, entry in enumerate(order):
                for slot, batch in entry:
                    kind, chunk = divmod(slot, model.chunks)
                    if kind != W:
                        found[kind][stages[chunk]][batch] = position
        timeline.built["positions"] = found
    positions: list[list[list[int]]] = timeline.built["positions"]
    return positions


def _last_input(timeline: Timeline, rank: int, position: int) -> _Input | None:
    """What reached this entry last from another model chunk; None if it needs nothing from one."""
    model, positions = timeline.model, _positions(timeline)
    last = model.stages * model.chunks - 1
    stages = model.stages_of[rank]
    latest, latest_arrival = None, -1.0
    for slot, batch in timeline.orders[rank][position]:
        kind, chunk = divmod(slot, model.chunks)
        stage = stages[chunk]
        if kind == F and stage > 0:
            source, transfer = stage - 1, model.hops_s[stage - 1]
        elif kind == B and stage < last:
            source, transfer = stage + 1, model.hops_s[stage]
        else:
            continue
        source_rank, source_position = model.rank_of[source], positions[kind][source][batch]
        arrival = timeline.entry_end_s(source_rank, source_position) + transfer
        if arrival > latest_arrival:
            latest_arrival = arrival
            latest = _Input(
                rank=source_rank,
                position=source_position,
                kind=kind,
                chunk=model.stages_of[source_rank].index(source),
                micro_batch=batch,
                transfer_s=transfer,
            )
    return latest


def _held_up_by(timeline: Timeline, rank: int, position: int) -> _Input | None:
    """The input that fixed an entry's start; None if its own rank did, or if nothing held it up."""
    if position and timeline.free_at_s(rank, position) == timeline.starts[rank][position]:
        return None
    return _last_input(timeline, rank, position)


def critical_path(timeline: Timeline) -> tuple[Operation, ...]:
    """A chain of operations that fixes the makespan: back from the last to end, along what held each of them up."""
    rank = timeline.ends.index(timeline.makespan_s)
    position = len(timeline.orders[rank]) - 1
    backwards = [(rank, position)]
    while True:
        cause = _held_up_by(timeline, rank, position)
        if cause is not None:
            rank, position = cause.rank, cause.position
        elif position:
            position -= 1
        else:
            break
        backwards.append((rank, position))
    path: list[Operation] = []
    for rank, position in reversed(backwards):
        path.extend(entry_operations(timeline, rank, position))
    return tuple(path)


def _root(timeline: Timeline, rank: int, position: int) -> tuple[int, int]:
    """The entry at the end of the chain "waited for its input, which waited for its input, ...".

    Roots are kept for the whole chain, so that all gaps together cost no more than there are entries.
    """
    if "roots" not in timeline.built:
        timeline.built["roots"] = {}
    roots: dict[tuple[int, int], tuple[int, int]] = timeline.built["roots"]
    chain = []
    here = (rank, position)
    while here not in roots:
        chain.append(here)
        cause = _held_up_by(timeline, here[0], here[1])
        if cause is None:
            roots[here] = here
        else:
            here = (cause.rank, cause.position)
    for entry in chain:
        roots[entry] = roots[here]
    return roots[here]


def _place(timeline: Timeline, rank: int, chunk: int) -> str:
    return f"stage {rank}" if timeline.model.chunks == 1 else f"rank {rank} (chunk {chunk})"


def _named(timeline: Timeline, entry: Any, kind: int, chunk: int, batch: int) -> str:
    """An operation in the field's words: a B joined with its W is the backward, alone the input gradient."""
    name = ("forward", "input gradient", "weight gradient")[kind]
    if kind == B and (W * timeline.model.chunks + chunk, batch) in entry:
        name = "backward"
    return f"{name} of micro-batch {batch}"


def _input_named(timeline: Timeline, awaited: _Input) -> str:
    entry = timeline.orders[awaited.rank][awaited.position]
    name = _named(timeline, entry, awaited.kind, awaited.chunk, awaited.micro_batch)
    return f"the {name} from {_place(timeline, awaited.rank, awaited.chunk)}"


def _why_late(timeline: Timeline, awaited: _Input) -> str:
    """Why the awaited operation did not start sooner: its own rank was busy, or the delay came from further away."""
    chunks = timeline.model.chunks
    root = _root(timeline, awaited.rank, awaited.position)
    if root[1]:
        before = timeline.orders[root[0]][root[1] - 1]
        kind, chunk = divmod(before[0][0], chunks)
        reason = f"which had the {_named(timeline, before, kind, chunk, before[0][1])} to run first"
    else:
        reason = "where the run begins"
    cause = _held_up_by(timeline, awaited.rank, awaited.position)
    if cause is None:
        return reason
    words = f"which itself waited for {_input_named(timeline, cause)}"
    if (cause.rank, cause.position) == root:
        return f"{words}, {reason}"
    chunk = timeline.orders[root[0]][root[1]][0][0] % chunks
    return f"{words}, and so on back to {_place(timeline, root[0], chunk)}, {reason}"


def _paired_with(timeline: Timeline, awaited: _Input) -> str:
    """Words for another micro-batch whose operations the awaited result has to leave with; empty if there is none."""
    entry = timeline.orders[awaited.rank][awaited.position]
    for slot, batch in entry:
        if batch != awaited.micro_batch:
            kind, chunk = divmod(slot, timeline.model.chunks)
            return f"; it leaves together with the {_named(timeline, entry, kind, chunk, batch)} that it is paired with"
    return ""


def _waiting_gap(timeline: Timeline, rank: int, position: int, phase: str) -> IdleGap:
    """The gap before an entry that starts later than its rank is free."""
    free, start = timeline.free_at_s(rank, position), timeline.starts[rank][position]
    awaited = _last_input(timeline, rank, position)
    assert awaited is not None, "an entry that needs nothing starts as soon as its rank is free"
    chunk = timeline.orders[rank][position][0][0] % timeline.model.chunks
    words = (
        f"{_place(timeline, rank, chunk)} waits {time_text(start - free)} for {_input_named(timeline, awaited)}, "
        f"{_why_late(timeline, awaited)}{_paired_with(timeline, awaited)}"
    )
    if awaited.transfer_s > 0:
        words += f"; {time_text(min(awaited.transfer_s, start - free))} of the wait is the transfer"
    slots = [slot for slot, _ in timeline.orders[awaited.rank][awaited.position]]
    source = entry_operations(timeline, awaited.rank, awaited.position)[
        slots.index(awaited.kind * timeline.model.chunks + awaited.chunk)
    ]
    return IdleGap(
        rank=rank,
        start_s=free,
        end_s=start,
        phase=phase,
        waits_for=source,
        explanation=f"{words} ({phase})",
    )


def _final_gap(timeline: Timeline, rank: int, end_s: float) -> IdleGap:
    """The gap after a rank's last entry."""
    name = "stage" if timeline.model.chunks == 1 else "rank"
    last = timeline.ends.index(timeline.makespan_s)
    left = time_text(timeline.makespan_s - end_s)
    return IdleGap(
        rank=rank,
        start_s=end_s,
        end_s=timeline.makespan_s,
        phase="cool-down",
        waits_for=None,
        explanation=f"{name} {rank} has done its work {left} before {name} {last} ends the training step (cool-down)",
    )


def idle_gaps(timeline: Timeline) -> tuple[IdleGap, ...]:
    """Every gap with the reason for it, rank by rank in order of time."""
    noise = _NOISE * timeline.makespan_s
    gaps = []
    for rank, order in enumerate(timeline.orders):
        kinds = [[slot // timeline.model.chunks for slot, _ in entry] for entry in order]
        first_backward = [B in entry for entry in kinds].index(True)
        last_forward = max([position for position, entry in enumerate(kinds) if F in entry])
        for position in range(len(order)):
            if timeline.starts[rank][position] - timeline.free_at_s(rank, position) > noise:
                if position <= first_backward:
                    phase = "turn-around" if position > last_forward else "warm-up"
                else:
                    phase = "cool-down" if position > last_forward else "steady"
                gaps.append(_waiting_gap(timeline, rank, position, phase))
        if timeline.makespan_s - timeline.ends[rank] > noise:
            gaps.append(_final_gap(timeline, rank, timeline.ends[rank]))
    return tuple(gaps)
