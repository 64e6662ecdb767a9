"""Every model module imports and computes the same in the browser's Python as in CPython."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "src" / "shardlab"
MODELS = sorted(file.stem for file in (PACKAGE / "models").glob("*.py") if file.stem != "__init__")

PROBE = """
def show(label, *values):
    print(label, " ".join(["%.10e" % value if isinstance(value, float) else str(value) for value in values]))

from shardlab import hardware, transformer, units
from shardlab.models import batch, checkpoint, collectives, communication, context, diagnose, expert, fit, memory
from shardlab.models import overlap, pipeline, plan, scaling, stragglers, tensor

for kind in ("weak", "strong"):
    for n in (1, 2, 8, 64, 512):
        step = scaling.data_parallel(n, 0.1, 1e9, 10e9, 1e-5, scaling=kind, overlap=0.5)
        show("scaling", n, step.step_time_s, step.speedup, step.communication_share, step.bottleneck)
show("break-even", scaling.break_even_ranks(0.1, 1e9, 2e9, 1e-5))
ring = collectives.simulate_ring_allreduce([[rank + item for item in range(7)] for rank in range(3)])
show("ring", ring.sent_bytes, ring.results[0])
for size in (1e3, 1e6, 1e9):
    show("fastest", collectives.fastest("all-reduce", size, 64, 10e9, 1e-5).algorithm)
points = [fit.sample(size, 2e-5 + size / 9e9, 8) for size in (1e4, 1e5, 1e6, 1e7)]
show("fit", fit.fit_link(points).bandwidth)
show("buckets", overlap.bucketed_step(8, 0.03, 0.07, 1e9, 10e9, 1e-5).step_time_s)
for stage in (0, 1, 2, 3):
    show("states", stage, float(memory.model_states(7.5e9, 64, stage).total_bytes))
for schedule in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"):
    run = pipeline.simulate(schedule, 4, 8, 1.0, 1.1, 0.9, 0.05, chunks=2 if schedule == "interleaved-1f1b" else 1)
    show("pipeline", schedule, run.makespan_s, run.bubble_of_total, run.bubble_of_ideal, list(run.in_flight_peak))
    show("gap", run.idle_gaps[0].explanation)
try:
    pipeline.execute(["F0 B0", "B0 F0"], (1, 1, 1))
except ValueError as error:
    show("illegal", error)
show("young", checkpoint.young_interval_s(60.0, 3.09 * 3600), checkpoint.daly_interval_s(60.0, 3.09 * 3600))
show("straggler", stragglers.expected_max_standard_normal(1024))
model, machine = transformer.preset("llama3-70b"), hardware.cluster("dgx-h100", 64)
found = plan.search(model, machine, global_batch=256, sequence=4096)
show("plan", found.best.layout.tensor, found.best.layout.pipeline, found.best.layout.data, found.best.step_time_s, found.best.mfu)
report = diagnose.data_parallel(0.1, 0.975, 8, scaling="weak", gradient_bytes=1e9, nominal_bandwidth="16 Gb/s")
show("diagnose", report.verdict.code)
for text in ("100 Gb/s", "12.5 GB/s"):
    show("units", units.parse_bandwidth(text))
"""


def package_files() -> dict[str, str]:
    """The package as it is installed, without what needs more than the standard library, and the shim."""
    files = [*PACKAGE.glob("*.py"), *(PACKAGE / "models").glob("*.py")]
    found = {f"shardlab/{file.relative_to(PACKAGE).as_posix()}": file for file in files}
    found |= {
        file.name: file for file in (PACKAGE / "experiments" / "shim").glob("*.py") if file.stem != "__init__"
    }
    return {path: file.read_text("utf-8") for path, file in found.items()}


def in_micropython(code: str) -> list[str]:
    node = shutil.which("node")
    assert node, "node is needed to run MicroPython's WebAssembly (Debian: apt install nodejs)"
    done = subprocess.run(
        [node, str(HERE / "micropython_run.mjs")],
        input=json.dumps({"files": package_files(), "code": code}),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_every_model_module_imports():
    code = "".join(f"import shardlab.models.{name}\nprint({name!r})\n" for name in MODELS)
    assert in_micropython(code) == MODELS


def test_the_probe_agrees():
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(PROBE, {})
    ours, theirs = output.getvalue().splitlines(), in_micropython(PROBE)
    assert len(ours) == len(theirs)
    assert len(ours) > 30
    number = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?")
    for one, other in zip(ours, theirs, strict=True):
        assert number.sub("#", one) == number.sub("#", other)
        for left, right in zip(number.findall(one), number.findall(other), strict=True):
            assert math.isclose(float(left), float(right), rel_tol=1e-9), (one, other)


def test_the_probe_can_fail():
    with pytest.raises(AssertionError):
        in_micropython("raise ValueError('no')")
