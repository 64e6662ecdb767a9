"""A pipeline run as a trace file that Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

from shardlab.models.pipeline_result import PipelineRun
from shardlab.models.pipeline_schedules import KINDS, operation_text

_TRACE_KINDS = {
    "F": ("forward", "thread_state_running"),
    "B": ("input gradient", "thread_state_iowait"),
    "W": ("weight gradient", "thread_state_runnable"),
}


def chrome_trace(run: PipelineRun) -> dict[str, Any]:
    """The run as a Chrome trace: ``json.dump`` it to a file and open that in Perfetto or chrome://tracing.

    One process named after the schedule, one thread per rank, one complete event per operation (microseconds), and
    one counter per rank with the micro-batches in flight. Operations that take no time are left out.

    Source: Trace Event Format (Google), phases M, X and C.
    """
    title = f"{run.schedule}: {run.stages} stages, {run.micro_batches} micro-batches, {run.chunks} chunks per rank"
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": title}}]
    for rank in range(run.stages):
        label = {"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
        place = {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": rank, "args": {"sort_index": rank}}
        events.extend([label, place])
    for operation in run.operations:
        if operation.end_s <= operation.start_s:
            continue
        category, colour = _TRACE_KINDS[operation.kind]
        slot = KINDS.index(operation.kind) * run.chunks + operation.chunk
        events.append(
            {
                "ph": "X",
                "name": operation_text(slot, operation.micro_batch, run.chunks),
                "cat": category,
                "cname": colour,
                "pid": 0,
                "tid": operation.rank,
                "ts": operation.start_s * 1e6,
                "dur": operation.duration_s * 1e6,
                "args": {
                    "micro_batch": operation.micro_batch,
                    "stage": operation.stage,
                    "chunk": operation.chunk,
                },
            }
        )
    for rank in range(run.stages):
        for when, amount in run.activation_timeline(rank):
            events.append(
                {
                    "ph": "C",
                    "name": f"micro-batches in flight, rank {rank}",
                    "pid": 0,
                    "ts": when * 1e6,
                    "args": {"in flight": amount},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
