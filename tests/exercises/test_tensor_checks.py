"""Checks of assignment 05: everybody's numbers, parts that differ, and the tables of the last task."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from submission import assignments

from shardlab.classroom import tensor_checks

STUDENTS = [f"student-{number}" for number in range(300)]
QUANTITIES = ("weight_bytes", "sent_bytes", "kept_bytes", "kept_sequence_bytes", "ratio")


# ---- task 1 ----


def test_everybody_has_a_layer_that_can_be_cut():
    drawn = [tensor_checks.by_hand_numbers(student) for student in STUDENTS]
    for one in drawn:
        assert one.heads % one.n_ranks == 0
        assert 0.03 < one.key("ratio") < 0.8
        assert one.micro_batch > 1
    assert {one.n_ranks for one in drawn} == {4, 8, 16}


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_the_key_is_the_formula_of_the_chapter(quantity):
    for student in STUDENTS:
        one = tensor_checks.by_hand_numbers(student)
        h, s, t = one.hidden, one.sequence, one.n_ranks
        sbh = s * one.micro_batch * h
        sent = 8 * sbh * 2 * (t - 1) / t
        key = {
            "weight_bytes": 24 * h * h / t,
            "sent_bytes": sent,
            "kept_bytes": sbh * (10 + 24 / t),
            "kept_sequence_bytes": sbh * 34 / t,
            "ratio": sent / one.bandwidth / (72 * sbh * (h + s / 6) / t / one.flops_per_s),
        }[quantity]
        assert one.key(quantity) == pytest.approx(key)


# ---- task 2: what the parts are compared with ----


def test_a_cut_along_the_wrong_dim_is_told_from_one_that_skips():
    def every_nth(weight, rank, n):
        return weight[rank::n].clone()

    def other_dim(weight, rank, n):
        return weight.chunk(n, dim=1)[rank].clone()

    assert "every n-th one" in str(tensor_checks.cut_fault(every_nth, 8, 12, 4, 0))
    assert "along the other dim" in str(tensor_checks.cut_fault(other_dim, 8, 12, 4, 0))
    assert tensor_checks.cut_fault(other_dim, 12, 8, 4, 1) is None


def test_copies_of_a_head_belong_to_neighbours():
    def interleaved(weight, n_heads, rank, n):
        return weight.chunk(n_heads)[rank % n_heads].clone()

    assert "ranks that share a head must be neighbours" in str(
        tensor_checks.heads_fault(interleaved, 2, 2, 4)
    )


def test_the_gate_comes_before_up():
    def up_first(fused, rank, n):
        gate, up = fused.chunk(2)
        return torch.cat([up.chunk(n)[rank], gate.chunk(n)[rank]])

    assert "up comes before the gate" in str(tensor_checks.gate_up_fault(up_first, 8, 3, 4))


# ---- task 5 ----


@pytest.mark.torch
def test_the_table_shows_the_numbers_that_the_model_answer_tells(tmp_path):
    cells = assignments()["05_tensor_parallel"].cells()
    # As the notebook runs it: functions are taken along by their source, from the main module.
    script = "\n".join(
        ["from shardlab.classroom import tensor_checks", "import torch", "import torch.distributed as dist"]
        # A student waits less for ranks that hang; these don't, and the machine may be busy.
        + ["tensor_checks.comparison.__defaults__ = (200.0,)"]
        + [cells[name].source for name in ("task-3-code", "silu", "task-4-code", "task-5-table")]
    )
    path = tmp_path / "table.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "stopped" not in done.stdout
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines() if line.strip()]
    table = {row[0]: row[1:] for row in rows}
    mine, deaf, rows_first = (
        table[name] for name in ("your MLP", "without the sum backward", "rows first, then columns")
    )
    # y, grad_x, sent forward, sent backward, saved whole, saved 1/4
    assert mine[:2] == ["0%", "0%"]
    assert mine[4:] == ["1.00", "2.25"]
    assert deaf[0] == "0%"
    assert int(deaf[1].rstrip("%")) > 50
    assert rows_first[:2] == ["0%", "-"]
    assert rows_first[4:] == ["10.00", "0.00"]
    if "not counted" not in done.stdout:
        assert [float(cell) for cell in mine[2:4]] == pytest.approx([1, 1], rel=0.05)
        assert float(deaf[3]) < 0.01
        # Six times the all-reduce, and an all-gather.
        assert float(rows_first[2]) == pytest.approx(6.5, rel=0.05)


def test_by_degree_halves_weights_and_hardly_changes_traffic():
    lines = [line.split() for line in tensor_checks.by_degree(8192, 4096, (8, 16, 32)).splitlines()[1:]]
    weights, sent = ([float(line[column]) for line in lines] for column in (1, 3))
    assert weights[0] / weights[2] == pytest.approx(4, rel=1e-3)
    assert sent[2] / sent[0] < 1.11
