"""Checks of assignment 04: everybody's numbers, calls counted as what they send, and the tables of the last task."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from submission import assignments

from shardlab.classroom import rank_cases, sharded_checks
from shardlab.models.communication import data_traffic

STUDENTS = [f"student-{number}" for number in range(300)]
QUANTITIES = (
    "stage_1_bytes",
    "stage_2_bytes",
    "stage_3_bytes",
    "lowest_stage",
    "sent_1_bytes",
    "sent_2_bytes",
)


# ---- task 1 ----


def test_each_stage_is_somebodys_answer():
    drawn = [sharded_checks.by_hand_numbers(student) for student in STUDENTS]
    stages = Counter(one.key("lowest_stage") for one in drawn)
    assert set(stages) == {1, 2, 3}
    assert min(stages.values()) > 60


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_the_key_is_the_formula_of_the_paper(quantity):
    for student in STUDENTS:
        one = sharded_checks.by_hand_numbers(student)
        psi, n, g = one.n_params, one.n_ranks, one.micro_batches
        held = [16 * psi, (4 + 12 / n) * psi, (2 + 14 / n) * psi, 16 / n * psi]
        room = one.memory_bytes - one.other_bytes
        key = {
            "stage_1_bytes": held[1],
            "stage_2_bytes": held[2],
            "stage_3_bytes": held[3],
            "lowest_stage": next((stage for stage in range(4) if held[stage] <= room), None),
            "sent_1_bytes": 2 * (n - 1) / n * 2 * psi,
            "sent_2_bytes": (g + 1) * (n - 1) / n * 2 * psi,
        }[quantity]
        assert one.key(quantity) == pytest.approx(key)


# ---- what a rank holds ----


def test_a_view_weighs_as_much_as_what_it_keeps_alive():
    whole = torch.zeros(30)
    assert rank_cases.storage_bytes([whole[:10], whole[20:]]) == 120
    assert rank_cases.storage_bytes([whole[:10].clone()]) == 40
    assert rank_cases.storage_bytes([whole[:10]], without=[whole]) == 0


# ---- tasks 3 to 5, on ranks ----


def calls_trial(ctx, functions, params):
    """Every collective over 12 numbers on this rank, as the log counts it."""
    n = ctx.ranks
    whole, part = torch.ones(12), torch.ones(12 // n)
    parts = list(whole.chunk(n))
    with rank_cases.CallLog() as log:
        dist.all_reduce(whole)
        dist.reduce_scatter(part, parts)
        dist.all_to_all_single(torch.empty_like(whole), whole)
        dist.all_gather([torch.empty_like(part) for _ in range(n)], part)
        dist.broadcast(whole, 0)
        dist.reduce(whole, 0)
        dist.gather(part, [torch.empty_like(part) for _ in range(n)] if ctx.rank == 0 else None)
        dist.barrier()
    return [(call.kind, call.numbers, call.sent) for call in log.calls]


def nothing():
    """A trial needs at least one function."""


@pytest.mark.torch
def test_calls_are_logged_with_what_they_must_send(monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    outcome = rank_cases.try_on_ranks("test_sharded_checks:calls_trial", [nothing], 3, time_limit_s=250)
    assert outcome.fault is None
    both = [
        ["all-reduce", 12, 16],
        ["reduce-scatter", 12, 8],
        ["all-to-all", 12, 8],
        ["all-gather", 12, 8],
        ["broadcast", 12, 8],
        ["reduce", 12, 8],
    ]
    assert outcome.results[0] == [*both, ["gather", 12, 0]]
    assert outcome.results[1] == [*both, ["gather", 4, 4]]


@pytest.mark.torch
def test_the_tables_show_the_numbers_that_the_model_answer_tells(tmp_path):
    assignment = assignments()["04_sharded_optimizer"]
    cells = assignment.cells()
    # As the notebook runs it: functions are taken along by their source, from the main module.
    script = "\n".join(
        ["from shardlab.classroom import sharded_checks"]
        # A student waits less for ranks that hang; these don't, and the machine may be busy.
        + ["sharded_checks.comparison.__defaults__ = (200.0,)"]
        + ["import torch", "import torch.distributed as dist"]
        + [cells[name].source for name in ("task-2-code", "adam", "task-3-code", "task-4-code")]
        + [cells["task-5-table"].source]
    )
    path = tmp_path / "tables.py"
    path.write_text(script)
    done = _python(path)
    assert "stopped" not in done
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.splitlines() if line.strip()]
    table = {row[0]: row[1:] for row in rows}
    # Held and its formula, passes as called.
    assert table["plain data parallel"][:3] == ["16.00", "16.00", "2.00"]
    assert table["your ZeRO-1"][:3] == ["10.00", "10.00", "2.00"]
    assert table["your ZeRO-2, 4 micro-batches"][:3] == ["7.00", "7.00", "5.00"]
    if "not counted" not in done:
        sent = {name: float(table[name][1].split()[0]) for name in ("all-reduce", "reduce-scatter")}
        assert sent["all-reduce"] == pytest.approx(1.5, rel=0.02)
        assert sent["reduce-scatter"] == pytest.approx(1.5, rel=0.02)
        assert float(table["your ZeRO-1"][3]) == pytest.approx(3, rel=0.02)


def _python(path) -> str:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_stage_2_over_32_micro_batches_sends_what_the_model_answer_says():
    sent = [data_traffic(1.0, 1000, stage, 32).total_bytes for stage in (1, 2)]
    assert sent[1] / sent[0] == pytest.approx(16.5)
