"""Pictures of chapter 03: one step of data parallelism, and overlap bucket by bucket."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas

from shardlab.experiments import figure, style
from shardlab.figures.common import labelled_bar
from shardlab.models import overlap
from shardlab.palette import color
from shardlab.units import GB, MIB, MS, US


def data_parallel_step(n_ranks: int = 4) -> Any:
    """One step on every rank: forward, backward, all-reduce, update, in the order in which they happen."""
    phases = [(0, 1.0, "compute", "forward"), (1.0, 3.0, "compute", "backward")]
    phases += [(3.0, 4.6, "communication", "all-reduce"), (4.6, 5.0, "memory-optimizer", "update")]

    def drawn(width: float) -> Canvas:
        canvas = Canvas(figsize=(width, 0.55 * n_ranks + 0.7), layout="constrained")
        axes = canvas.subplots()
        for rank in range(n_ranks):
            for start, end, role, label in phases:
                labelled_bar(axes, rank, start, end, role, label if end - start > 0.5 else "")
        axes.text(4.8, -0.62, "update", ha="center", va="center", fontsize=9, color=color("memory-text"))
        axes.set_yticks(range(n_ranks), [f"rank {rank}\nshare {rank + 1}" for rank in range(n_ranks)])
        axes.set_ylim(n_ranks - 0.4, -0.95)
        axes.set_xlim(0, 5.02)
        axes.set_xticks([])
        axes.set_xlabel("time, not to scale")
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.2), drawn(4.4)
    return figure(
        wide,
        narrow=narrow,
        alt=f"Timeline of one step on {n_ranks} ranks. Each computes forward and backward on its own share of the "
        "batch; then all take part in one all-reduce at the same time, and each updates its own copy.",
        caption="One step of data parallelism. Compute is private, the all-reduce is joint: nobody updates "
        "before everybody's gradients have arrived.",
    )


def overlap_timeline(n_ranks: int = 8, bandwidth: float = 25 * GB, bucket_bytes: float = 100 * MIB) -> Any:
    """The same step without overlap and with buckets, on one time axis."""
    forward, backward, n_bytes = 100 * MS / 3, 200 * MS / 3, 1 * GB
    whole = overlap.bucketed_step(
        n_ranks, forward, backward, n_bytes, bandwidth, 10 * US, bucket_bytes=n_bytes
    )
    parts = overlap.bucketed_step(
        n_ranks, forward, backward, n_bytes, bandwidth, 10 * US, bucket_bytes=bucket_bytes
    )

    def drawn(width: float) -> Canvas:
        canvas = Canvas(figsize=(width, 2.9), layout="constrained")
        axes = canvas.subplots()
        for row, step in ((0.0, whole), (2.4, parts)):
            labelled_bar(axes, row, 0, forward / MS, "compute", "forward")
            labelled_bar(axes, row, forward / MS, (forward + backward) / MS, "compute", "backward")
            for index, bucket in enumerate(step.buckets):
                # The last bucket may be too thin for its number.
                room = bucket.end_s - bucket.start_s >= 0.75 * (
                    step.buckets[0].end_s - step.buckets[0].start_s
                )
                label = "all-reduce" if len(step.buckets) == 1 else str(index + 1) if room else ""
                labelled_bar(axes, row + 0.75, bucket.start_s / MS, bucket.end_s / MS, "communication", label)
            end = step.step_time_s / MS
            axes.plot([end, end], [row - 0.4, row + 1.15], color=color("limit"), linewidth=1)
            axes.text(end + 1.5, row + 0.35, f"{end:.0f} ms", va="center", fontsize=9, color=color("text"))
        axes.set_yticks([0.37, 2.77], ["one bucket", f"buckets of\n{bucket_bytes / MIB:.0f} MiB"])
        axes.set_ylim(3.7, -0.6)
        axes.set_xlim(0, whole.step_time_s / MS * 1.12)
        axes.set_xlabel("time in the step, ms")
        axes.grid(visible=False)
        return canvas

    with style():
        wide, narrow = drawn(7.2), drawn(4.4)
    return figure(
        wide,
        narrow=narrow,
        alt=f"Two timelines of a step on {n_ranks} ranks at {bandwidth / GB:.0f} GB/s. With one bucket the all-reduce "
        f"starts after the backward pass and the step takes {whole.step_time_s / MS:.0f} ms. With buckets of "
        f"{bucket_bytes / MIB:.0f} MiB most of it runs during the backward pass and the step takes "
        f"{parts.step_time_s / MS:.0f} ms.",
        caption=f"The same bytes, sent late or early ({n_ranks} ranks, {bandwidth / GB:.0f} GB/s). Buckets take the step "
        f"from {whole.step_time_s / MS:.0f} to {parts.step_time_s / MS:.0f} ms; the last bucket has no compute left to hide under.",
    )
