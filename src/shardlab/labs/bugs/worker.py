"""What every rank of the bug lab runs: programs from files, each in its trial, with several seeds."""

from __future__ import annotations

import importlib.util
import time
from functools import partial
from pathlib import Path
from typing import Any

from shardlab.labs.bugs.trials import TRIALS, Case, worst
from shardlab.labs.measure import Stage, run_stages
from shardlab.labs.rank import Context

# Sizes and numbers are drawn from these: a program that fits one of them only is not right.
SEEDS = (11, 23, 47, 95)


def worker(ctx: Context) -> dict[str, Any] | None:
    """Try every program of ``ctx.params["jobs"]``; rank 0 returns what was seen, worst over ranks and seeds."""
    began = time.monotonic()
    stages = [
        Stage("programs", f"{job['bug']}, {job['version']}", partial(run_trials, ctx, job))
        for job in ctx.params["jobs"]
    ]
    measured = run_stages(ctx, stages)
    return None if measured is None else {**measured, "worker_s": time.monotonic() - began}


def run_trials(ctx: Context, job: dict[str, str]) -> list[dict[str, Any]]:
    """Try one program, once for each seed; all ranks see all sights."""
    program = load_program(Path(job["file"]))
    trial = TRIALS[job["bug"]]
    sights = []
    for seed in SEEDS:
        mine = trial(program, Case(ctx, seed))
        sights.extend(ctx.gather([sight.value for sight in mine]))
    values = [worst(column) for column in zip(*sights, strict=True)]
    seen = [
        {"words": sight.words, "value": value, "allowed": sight.allowed}
        for sight, value in zip(mine, values, strict=True)
    ]
    return [{**job, "sights": seen}]


def load_program(file: Path) -> Any:
    """The file as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"program_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program
