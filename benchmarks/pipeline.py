"""How fast the pipeline executor is, and whether its time is linear in stages x micro-batches.

    .venv/bin/python benchmarks/pipeline.py

Each size is run several times and the fastest counts. A factor of 4 in operations should cost a factor near 4 in
time; the aim for 64 stages x 1,024 micro-batches x 3 kinds is under 1 s, list and execution together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shardlab.models import pipeline

SIZES = [(4, 64), (8, 128), (16, 256), (32, 512), (64, 1024)]
SCHEDULES = [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 1), ("dualpipe-v", 1)]
TIMES = (10.4, 10.2, 7.7, 0.4)


def fastest_s(call: Callable[[], object], repeats: int) -> float:
    """Least seconds of several calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def executor_rows(schedule: str, chunks: int) -> None:
    """Print one schedule's times for growing sizes."""
    before = None
    for stages, micro_batches in SIZES:
        run = pipeline.simulate(schedule, stages, micro_batches, *TIMES, chunks)
        operations = sum([len(entry) for order in run.timeline.orders for entry in order])
        seconds = fastest_s(
            lambda p=stages, m=micro_batches: pipeline.simulate(schedule, p, m, *TIMES, chunks),  # type: ignore[misc]
            repeats=3 if operations > 50_000 else 10,
        )
        ratio = "" if before is None else f"{operations / before[0]:9.2f}x {seconds / before[1]:8.2f}x"
        print(
            f"{schedule:17} {stages:3} x {micro_batches:4} {operations:9,} {seconds * 1e3:9.1f} ms "
            f"{operations / seconds / 1e6:6.2f} M/s {ratio}"
        )
        before = (operations, seconds)


def main() -> None:
    print(
        f"{'schedule':17} {'p x m':>10} {'operations':>9} {'time':>12} {'speed':>10} {'operations':>10} {'time':>9}"
    )
    for schedule, chunks in SCHEDULES:
        executor_rows(schedule, chunks)
    run = pipeline.simulate("zb-h1", 32, 512, *TIMES)
    print("\nOn request, zb-h1, 32 x 512 (49,152 operations), once each:")
    for name in ("operations", "critical_path", "idle_gaps", "in_flight_peak"):
        seconds = fastest_s(lambda name=name: getattr(run, name), repeats=1)  # type: ignore[misc]
        print(f"  {name:15} {seconds * 1e3:8.1f} ms")
    print(f"  {'chrome_trace':15} {fastest_s(lambda: pipeline.chrome_trace(run), repeats=1) * 1e3:8.1f} ms")
    calls = 2000
    seconds = fastest_s(
        lambda: [pipeline.makespan_s("1f1b", 16, 128, *TIMES) for _ in range(calls)], repeats=5
    )
    print(f"\nMakespan by formula, 1f1b, 16 x 128: {seconds / calls * 1e6:.1f} µs a call")


if __name__ == "__main__":
    main()
