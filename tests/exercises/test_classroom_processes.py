"""The students' ring on real gloo processes, and without torch."""

from __future__ import annotations

import pytest
from submissions.ring import ALL_GATHER, ALLREDUCE, REDUCE_SCATTER

from shardlab.classroom import Deadlock, NotWritten, processes, run_processes, run_ranks
from shardlab.labs.machine import torch_installed
from shardlab.labs.run import LabError
from shardlab.models.collectives import simulate_ring_allreduce

RING = REDUCE_SCATTER + ALL_GATHER + ALLREDUCE


def test_a_function_takes_along_what_it_uses_and_nothing_else(notebook):
    names = notebook(
        "import math as m\nfrom statistics import fmean\nSCALE = [2, 3]\nunused = open\nclass Odd: pass\nrank = Odd()\n"
        "def helper(x):\n    return m.floor(x) * SCALE[0]\n"
        "def program(net, value):\n    return [helper(fmean(value)) for _ in range(net.rank + 1)]\n"
    )
    source = processes.portable_source(names["program"])
    again: dict = {}
    exec(source, again)
    assert again["helper"](3.5) == 6
    assert again["SCALE"] == [2, 3]
    # net.rank is an attribute: the notebook's own variable of that name stays behind.
    assert "rank" not in again
    assert "unused" not in again


def test_what_cannot_be_taken_along_is_named(notebook):
    names = notebook("class Odd: pass\nodd = Odd()\ndef program(net, value):\n    return odd\n")
    with pytest.raises(ValueError, match="uses 'odd', a Odd that can't go to another process"):
        processes.portable_source(names["program"])
    with pytest.raises(ValueError, match="program must be a function made with def"):
        processes.portable_source(lambda net, value: value)


def test_without_torch_it_runs_on_the_simulated_network(notebook, monkeypatch):
    monkeypatch.setattr(processes, "torch_installed", lambda: False)
    ring = notebook(RING)["ring_allreduce"]
    run = run_processes(ring, [[1.0] * 10] * 4)
    assert run.backend == "simulated"
    assert run == run_ranks(ring, [[1.0] * 10] * 4)


@pytest.mark.torch
class TestGloo:
    """With torch: ``make test`` installs it before these run."""

    @pytest.fixture(autouse=True)
    def _torch(self):
        if not torch_installed():
            pytest.skip("torch is not installed: `make torch` installs it")

    def test_the_ring_sends_on_gloo_what_the_model_says(self, notebook):
        buffers = [[float(rank * 7 + place) for place in range(4001)] for rank in range(4)]
        run = run_processes(notebook(RING)["ring_allreduce"], buffers)
        model = simulate_ring_allreduce(buffers)
        assert run.backend == "gloo"
        assert run.results == model.results
        assert run.sent_bytes == model.sent_bytes
        assert {(m.source, m.destination) for m in run.messages} == {(0, 1), (1, 2), (2, 3), (3, 0)}
        for sent, on_wire in zip(run.sent_bytes, run.wire_bytes, strict=True):
            # None where the system can't count; headers come on top.
            assert on_wire is None or sent < on_wire < 1.2 * sent + 4096

    def test_a_mistake_on_a_real_rank_is_told_with_the_students_own_line(self, notebook):
        program = notebook(
            "import os\ndef program(net, value):\n    return value[9 if 'RANK' in os.environ else 0]\n"
        )["program"]
        with pytest.raises(LabError, match="IndexError") as caught:
            run_processes(program, [[1.0]] * 2)
        assert "return value[9 if 'RANK' in os.environ else 0]" in str(caught.value)


def test_what_fails_on_the_simulated_network_starts_no_process(notebook, monkeypatch):
    monkeypatch.setattr(processes, "run", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(Deadlock):
        run_processes(
            notebook("def program(net, value):\n    return net.recv(1 - net.rank)\n")["program"], [1, 2]
        )
    with pytest.raises(NotWritten):
        run_processes(
            notebook("def program(net, value):\n    raise NotImplementedError\n")["program"], [1, 2]
        )
