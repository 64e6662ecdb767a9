"""``shardlab measure``: what the cost models need to know of these ranks, measured on them.

>>> from shardlab.labs.measure_cluster import measure
>>> cluster = measure(ranks=2, largest="1 MiB")
>>> cluster.link("node").bandwidth

It is started as the labs are, here or under ``torchrun``; but no recorded run stands in for it where torch is missing:
another machine's numbers would be mistaken for this one's.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from shardlab.checks import count, positive
from shardlab.labs.lab import lab
from shardlab.labs.measure_result import (
    POINT_TO_POINT,
    Copy,
    Device,
    LeftOut,
    MeasuredCluster,
    Product,
    Software,
    Timing,
    Wire,
)
from shardlab.labs.rank import launched_elsewhere
from shardlab.labs.result import common
from shardlab.labs.run import MOST_RANKS, run
from shardlab.labs.sent import Sent
from shardlab.models.collectives import busbw_factor
from shardlab.units import parse_bytes

WORKER = "shardlab.labs.measure_cluster_worker:worker"
LOCAL_RANKS = 4
# From one size to the next.
GROWTH = 4
FEWEST_SIZES = 3
LARGEST_BYTES = 2**36
# The measurement plans for this share of the limit; the rest is for starting up and for slips.
PLANNED_SHARE = 0.6


@lab(
    title="Measure what the cost models need of these ranks: links, matrix products, memory",
    seconds=60,
    needs="torch",
    # The command line has a command of its own for it, with a sentence for each.
    options={},
    worker_file="measure_cluster_worker.py",
    shown=("time_size", "batches", "operation"),
    result=MeasuredCluster,
)
def measure(
    ranks: int | None = None,
    *,
    smallest: str = "4 KiB",
    largest: str | None = None,
    repeats: int = 9,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
    keep_in: str | None = None,
) -> MeasuredCluster:
    """Time collectives over a range of sizes, matrix products and memory copies on ``ranks`` ranks.

    Collectives: all-reduce, all-gather, reduce-scatter, all-to-all and messages to a neighbour, inside nodes, across
    them and over all ranks. Of every repeat the slowest rank counts; the median of the repeats is given, with quartiles.

    Args:
        ranks: N; None takes those that torchrun or a cluster launched, or 4 here.
        smallest, largest: buffers, text with a unit; None takes 64 MiB on CPUs and 1 GiB on GPUs.
        repeats: repeats of each measurement; long ones get fewer, never less than three.
        limit_s: time limit, seconds. 60 % of it are planned for; sizes that would not fit are left out, and named.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.
        keep_in: where ranks launched by others leave what is ready, since the launcher may end them.

    Raises:
        ValueError: an argument is out of range.
        LabError: torch is missing, a rank failed or the limit was reached; what was ready is in its ``partial``.

    NCCL runs where every rank has a GPU. That path was not run where this book was made.
    """
    launched = launched_elsewhere()
    world = int(os.environ["WORLD_SIZE"]) if launched else LOCAL_RANKS
    n_ranks = count("ranks", world if ranks is None else ranks, most=None if launched else MOST_RANKS)
    limit = positive("limit_s", limit_s, "seconds")
    first, last = _size("smallest", smallest), None if largest is None else _size("largest", largest)
    _enough(first, last)
    settings = {
        "ranks": n_ranks,
        "smallest": smallest,
        "largest": largest,
        "repeats": count("repeats", repeats, least=3, most=1000),
    }
    params = {
        "smallest": first,
        "largest": last,
        "growth": GROWTH,
        "repeats": settings["repeats"],
        "budget_s": PLANNED_SHARE * limit,
        "keep_in": keep_in if launched else None,
    }
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    return evaluate(outcome.results[0], settings, outcome.elapsed_s)


def _size(name: str, text: str) -> int:
    return count(name, parse_bytes(text, name), least=4, most=LARGEST_BYTES)


def _enough(smallest: int, largest: int | None) -> None:
    if largest is not None and largest < smallest * GROWTH ** (FEWEST_SIZES - 1):
        raise ValueError(
            f"largest must be at least {GROWTH ** (FEWEST_SIZES - 1)} times smallest = {smallest} bytes, not {largest}: a "
            f"line through fewer than {FEWEST_SIZES} sizes says nothing"
        )


def evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> MeasuredCluster:
    """The result of what the worker's rank 0 returned."""
    # With one rank there is no collective, and not every machine counts bytes.
    rows = measured.get("timings", [])
    device, software = measured["device"], measured["software"]
    return MeasuredCluster(
        **common(measured, settings, elapsed_s),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ranks=measured["ranks"],
        nodes=measured["nodes"],
        ranks_per_node=measured["ranks_per_node"],
        device=Device(**{**device, "others": tuple(device["others"])}),
        software=Software(**software),
        timings=tuple([Timing(**row) for row in rows if row["seconds"] is not None]),
        left_out=tuple(
            [
                LeftOut(**{key: value for key, value in row.items() if key != "seconds"})
                for row in rows
                if row["seconds"] is None
            ]
        ),
        wire=tuple([_wire(row) for row in measured.get("wire", [])]),
        matmul=tuple([Product(**row) for row in measured["matmul"]]),
        copy=tuple([Copy(**row) for row in measured["copy"]]),
    )


def _wire(row: dict[str, Any]) -> Wire:
    """The textbook's bytes beside the kernel's: a ring's, an all-to-all's own, a message's."""
    name, n_bytes, kernel = row["collective"], row["n_bytes"], row["kernel_bytes"]
    ranks = len(kernel)
    if name == POINT_TO_POINT:
        # There from the lower rank and back from the upper one; a last rank without a neighbour sends nothing.
        predicted = [float(n_bytes) if rank ^ 1 < ranks else 0.0 for rank in range(ranks)]
        messages = 1
    else:
        predicted = [busbw_factor(name, ranks) * n_bytes] * ranks
        messages = (2 if name == "all-reduce" else 1) * (ranks - 1)
    sent = Sent(messages=messages, predicted_bytes=tuple(predicted), kernel_bytes=tuple(kernel))
    return Wire(collective=name, n_bytes=n_bytes, sent=sent)
