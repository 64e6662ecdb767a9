"""The one executor behind every pipeline schedule: lists of entries in, start times out.

An entry starts when its rank has finished the entry before and every result it needs has arrived. A result that
crosses to another rank arrives one transfer later; the transfer holds up neither sender nor receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import non_negative
from shardlab.models.pipeline_schedules import B, F, W, entry_text, operation_text, stage_of


@dataclass(frozen=True)
class PipelineModel:
    """A pipeline's sizes and times.

    Attributes:
        stages: pipeline ranks p.
        micro_batches: ``m``.
        chunks: model chunks per rank v; the model has p·v chunks in all.
        placement: ``"loop"`` or ``"v"``, see :func:`shardlab.models.pipeline_schedules.stage_of`.
        durations_s: three lists (F, B, W) of p·v seconds, in model order, for one micro-batch.
        hops_s: seconds from model chunk i to i+1 and back, p·v-1 of them; 0 between chunks of one rank.
        stages_of: per rank its model chunks, by chunk number.
        rank_of: per model chunk the rank that holds it.
    """

    stages: int
    micro_batches: int
    chunks: int
    placement: str
    durations_s: tuple[list[float], list[float], list[float]]
    hops_s: list[float]
    stages_of: list[list[int]]
    rank_of: list[int]


def _values(name: str, value: Any) -> list[float] | None:
    """A list of checked seconds, or None for a single number."""
    if isinstance(value, (int, float, str)):
        return None
    try:
        items = list(value)
    except TypeError:
        return None
    return [non_negative(f"{name}[{index}]", item, "seconds") for index, item in enumerate(items)]


def _stage_seconds(name: str, value: Any, stages: int, chunks: int, placement: str) -> list[float]:
    """Seconds of every model chunk from one number, one per rank, or one per model chunk."""
    total = stages * chunks
    values = _values(name, value)
    if values is None:
        return [non_negative(name, value, "seconds") / chunks] * total
    if len(values) == total:
        return values
    if len(values) != stages:
        allowed = f"one number or {stages} numbers (one per rank)"
        if chunks > 1:
            allowed += f" or {total} numbers (one per model chunk, in model order)"
        raise ValueError(f"{name} must be {allowed}, not {len(values)} numbers")
    spread = [0.0] * total
    for rank in range(stages):
        for chunk in range(chunks):
            spread[stage_of(rank, chunk, stages, placement)] = values[rank] / chunks
    return spread


def _hop_seconds(transfer_s: Any, stages: int, chunks: int, placement: str) -> list[float]:
    hops = stages * chunks - 1
    values = _values("transfer_s", transfer_s)
    if values is None:
        values = [non_negative("transfer_s", transfer_s, "seconds")] * hops
    elif len(values) != hops:
        allowed = f"one number or {hops} numbers (one per hop between model chunks)"
        raise ValueError(f"transfer_s must be {allowed}, not {len(values)} numbers")
    if stages == 1:
        return [0.0] * hops
    if placement == "v":
        values[stages - 1] = 0.0
    return values


def pipeline_model(
    stages: int, micro_batches: int, chunks: int, placement: str, times: tuple[Any, Any, Any], transfer_s: Any
) -> PipelineModel:
    """Check times and transfer and spread them over the model chunks.

    Raises:
        ValueError: a time is negative or not finite, a sequence has the wrong length, or a rank has nothing to do.
    """
    names = ("forward_s", "backward_input_s", "backward_weight_s")
    forward, backward, weight = [
        _stage_seconds(name, value, stages, chunks, placement) for name, value in zip(names, times)
    ]
    for stage in range(stages * chunks):
        if forward[stage] + backward[stage] + weight[stage] <= 0:
            raise ValueError(
                "forward_s, backward_input_s and backward_weight_s must not all be 0 for the same stage; "
                f"they are for stage {stage}"
            )
    stages_of = [
        [stage_of(rank, chunk, stages, placement) for chunk in range(chunks)] for rank in range(stages)
    ]
    rank_of = [0] * (stages * chunks)
    for rank, own in enumerate(stages_of):
        for stage in own:
            rank_of[stage] = rank
    return PipelineModel(
        stages=stages,
        micro_batches=micro_batches,
        chunks=chunks,
        placement=placement,
        durations_s=(forward, backward, weight),
        hops_s=_hop_seconds(transfer_s, stages, chunks, placement),
        stages_of=stages_of,
        rank_of=rank_of,
    )


@dataclass(frozen=True)
class Timeline:
    """What the executor was given and what it found out.

    Attributes:
        model: sizes and times.
        orders: per rank the list of entries.
        starts: start of every entry, seconds, per rank in the rank's order (as far as the rank got).
        ends: end of each rank's last entry, seconds.
        wants: per rank the ``(kind, model chunk, micro-batch)`` that its next entry waits for in vain, None if the
            rank finished.
        built: whatever later readers of the timeline worked out and want to keep.
    """

    model: PipelineModel
    orders: list[list[Any]]
    starts: list[list[float]]
    ends: list[float]
    wants: list[tuple[int, int, int] | None]
    built: dict[str, Any]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end, seconds."""
        return max(self.ends)

    def entry_end_s(self, rank: int, position: int) -> float:
        """End of an entry, added up in the executor's order so that it agrees to the last bit."""
        end = self.starts[rank][position]
        stages = self.model.stages_of[rank]
        for slot, _ in self.orders[rank][position]:
            kind, chunk = divmod(slot, self.model.chunks)
            end += self.model.durations_s[kind][stages[chunk]]
        return end

    def free_at_s(self, rank: int, position: int) -> float:
        """When the rank is done with the entry before this position; 0 for the first."""
        return self.entry_end_s(rank, position - 1) if position else 0.0


def _slot_tables(model: PipelineModel, done: list[list[list[float]]]) -> list[list[Any]]:
    """Per rank and slot: duration, the list to read its input from, the delay of that input, the list to note its
    end in, and the rank that may be waiting for it (-1 for nobody)."""
    last = model.stages * model.chunks - 1
    tables = []
    for rank in range(model.stages):
        table: list[Any] = [None] * (3 * model.chunks)
        for chunk, stage in enumerate(model.stages_of[rank]):
            forward, backward, weight = [durations[stage] for durations in model.durations_s]
            before, after = stage > 0, stage < last
            table[F * model.chunks + chunk] = (
                forward,
                done[F][stage - 1] if before else None,
                model.hops_s[stage - 1] if before else 0.0,
                done[F][stage],
                model.rank_of[stage + 1] if after else -1,
            )
            # The last stage's backward needs its own forward, which stands earlier in the same list.
            table[B * model.chunks + chunk] = (
                backward,
                done[B][stage + 1] if after else None,
                model.hops_s[stage] if after else 0.0,
                done[B][stage],
                model.rank_of[stage - 1] if before else -1,
            )
            table[W * model.chunks + chunk] = (weight, None, 0.0, None, -1)
        tables.append(table)
    return tables


def run_orders(orders: list[list[Any]], model: PipelineModel) -> Timeline:
    """Run every rank's list as early as it can.

    Each rank runs until it lacks an input and is taken up again when exactly that input is noted, so every entry
    is looked at once, and once more if it had to wait: linear in the number of operations.
    """
    unknown = -1.0
    blank = [unknown] * model.micro_batches
    total = model.stages * model.chunks
    done = [[blank[:] for _ in range(total)] for _ in (F, B)]
    tables = _slot_tables(model, done)
    ranks = range(model.stages)
    starts: list[list[float]] = [[] for _ in ranks]
    clocks = [0.0 for _ in ranks]
    watched: list[Any] = [None for _ in ranks]
    watched_batch = [0 for _ in ranks]
    ready = list(ranks)
    while ready:
        rank = ready.pop()
        table, order, rank_starts, clock = tables[rank], orders[rank], starts[rank], clocks[rank]
        watched[rank] = None
        position, length = len(rank_starts), len(order)
        while position < length:
            entry = order[position]
            start = clock
            for slot, batch in entry:
                _, source, delay, _, _ = table[slot]
                if source is not None:
                    arrival = source[batch]
                    if arrival < 0:
                        watched[rank] = source
                        watched_batch[rank] = batch
                        break
                    arrival += delay
                    if arrival > start:
                        start = arrival
            if watched[rank] is not None:
                break
            rank_starts.append(start)
            clock = start
            for slot, _ in entry:
                clock += table[slot][0]
            for slot, batch in entry:
                _, _, _, own, reader = table[slot]
                if own is not None:
                    own[batch] = clock
                    if reader >= 0 and watched[reader] is own and watched_batch[reader] == batch:
                        ready.append(reader)
            position += 1
        clocks[rank] = clock
    return Timeline(
        model=model,
        orders=orders,
        starts=starts,
        ends=clocks,
        wants=[_want(done, watched[rank], watched_batch[rank]) for rank in ranks],
        built={},
    )


def _want(done: list[list[list[float]]], watched: Any, batch: int) -> tuple[int, int, int] | None:
    """The operation whose end would be noted in the list that a stuck rank watches."""
    if watched is not None:
        for kind in (F, B):
            for stage, ends in enumerate(done[kind]):
                if ends is watched:
                    return kind, stage, batch
    return None


def deadlock_words(timeline: Timeline) -> str:
    """The cycle of ranks that wait for each other, in words; empty if every rank finished.

    Every stuck rank wants an operation that another stuck rank lists later, so following the wants runs into a cycle.
    """
    model, orders = timeline.model, timeline.orders
    stuck = [rank for rank, want in enumerate(timeline.wants) if want is not None]
    if not stuck:
        return ""
    # Where no W stands by itself, the author wrote B for the whole backward: show it so.
    alone = [True for order in orders for entry in order if entry[0][0] >= W * model.chunks]
    path: list[int] = []
    sentences: list[str] = []
    rank = stuck[0]
    while rank not in path:
        path.append(rank)
        kind, stage, batch = timeline.wants[rank] or (0, 0, 0)
        owner = model.rank_of[stage]
        slot = kind * model.chunks + model.stages_of[owner].index(stage)
        stands = []
        for one in (rank, owner):
            entry = orders[one][len(timeline.starts[one])]
            shown = [pair for pair in entry if alone or pair[0] < W * model.chunks]
            stands.append(entry_text(shown, model.chunks))
        there = orders[owner][len(timeline.starts[owner])]
        place = f"joined with its {stands[1]}" if (slot, batch) in there else f"only after its {stands[1]}"
        sentences.append(
            f"rank {rank} stands at {stands[0]} and waits for the {operation_text(slot, batch, model.chunks)} "
            f"that rank {owner} lists {place}"
        )
        rank = owner
    return "deadlock: " + "; ".join(sentences[path.index(rank) :]) + "; so none of them can go on"
