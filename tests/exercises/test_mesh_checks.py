"""Assignment 08: everyone's own numbers and question, and the run that is explained."""

from __future__ import annotations

import pytest

from shardlab.classroom import mesh_checks
from shardlab.labs.machine import torch_installed
from shardlab.models.mesh import mesh

CLASS = [f"student {number}" for number in range(300)]


@pytest.fixture(scope="module")
def drawn():
    return [mesh_checks.by_hand_numbers(student) for student in CLASS]


def test_the_numbers_make_sense(drawn):
    for numbers in drawn:
        assert numbers.laid.ranks <= 128
        assert numbers.key("data_place") >= 1
        assert numbers.rank < numbers.key("next_stage") < numbers.laid.ranks
        # Some hops of the data rings leave the node, and some don't.
        assert 1 < numbers.key("leaving_ranks") < numbers.node_gpus
        assert 0.01 < numbers.key("data_s") < 30
        assert numbers.key("data_s") > numbers.n_bytes / numbers.inside_bandwidth


def test_the_answers_are_those_of_the_formulas(drawn):
    for numbers in drawn:
        sizes, stride, strides = dict(numbers.order), 1, {}
        for axis, size in numbers.order:
            strides[axis], stride = stride, stride * size
        assert numbers.key("data_place") == numbers.rank // strides["data"] % sizes["data"]
        assert numbers.key("next_stage") == numbers.rank + strides["pipeline"]
        assert numbers.key("leaving_ranks") == strides["data"]


@pytest.mark.parametrize("student", CLASS[:60])
def test_each_question_has_one_clear_answer(student):
    asked = mesh_checks.drawn_question(student)
    best = asked.best()
    layouts = []
    for tensor in range(1, asked.gpus + 1):
        for pipeline in range(1, asked.gpus // tensor + 1):
            try:
                layouts.append(asked.predict(asked.gpus // tensor // pipeline, tensor, pipeline))
            except ValueError:
                continue
    fitting = sorted([made for made in layouts if made.fits], key=lambda made: made.step_time_s)
    # The search of the key and trying everything find the same layout.
    assert best.layout.key[:3] == fitting[0].layout.key[:3]
    assert best.step_time_s == pytest.approx(fitting[0].step_time_s)
    assert fitting[1].step_time_s > 1.01 * fitting[0].step_time_s
    # No shortcut finds it: neither ignoring the memory nor using least of it.
    assert not min(layouts, key=lambda made: made.step_time_s).fits
    assert min(layouts, key=lambda made: made.memory.total_bytes).step_time_s > 1.05 * best.step_time_s
    # The example that the notebook prints can run.
    assert asked.predict(asked.gpus // 8, 8, 1).step_time_s > 0


def test_a_layout_that_cannot_run_is_named():
    asked = mesh_checks.question("llama2-13b", "dgx-a100", 32, 64)
    assert "must be the 32 GPUs of the cluster" in mesh_checks.try_choose(lambda _: (1, 1, 1), asked).fits
    assert "must be (data, tensor, pipeline)" in mesh_checks.try_choose(lambda _: 8, asked).fits
    assert "there is a layout that fits" in mesh_checks.try_choose(lambda _: None, asked).fits
    assert "data must be a whole number" in mesh_checks.try_choose(lambda _: ("a", 1, 1), asked).fits


def test_what_is_wrong_with_a_group_is_said():
    order = (("tensor", 2), ("data", 2))
    laid = mesh(order)

    def fault(change):
        return mesh_checks.group_fault(
            lambda rank, along, _: change(laid.group(rank, along), rank), order, ("data",)
        )

    assert fault(lambda ranks, _: ranks) is None
    assert fault(lambda ranks, _: list(ranks)) is None
    assert "must be in the order of the ranks" in fault(lambda ranks, _: ranks[::-1])
    assert "a rank is in its own group" in fault(
        lambda ranks, rank: tuple(one for one in ranks if one != rank)
    )
    assert "is not all of it" in fault(lambda _, rank: (rank,))
    assert "must be a tuple of ranks" in fault(lambda *_: None)


@pytest.mark.torch
class TestOnRanks:
    @pytest.fixture(autouse=True)
    def _torch(self, monkeypatch):
        if not torch_installed():
            pytest.skip("torch is not installed: `make torch` installs it")
        # A student waits less for ranks that hang; these don't, and the machine may be busy.
        monkeypatch.setattr(mesh_checks, "TIME_LIMIT_S", 250.0)

    def test_the_run_that_is_explained_shows_what_the_answer_says(self, tmp_path):
        from submissions.mesh import GROUPS

        # A file, so that the source can be found again.
        path = tmp_path / "cell.py"
        path.write_text("import torch.distributed as dist\n" + GROUPS)
        names: dict = {"__name__": "__main__"}
        exec(compile(path.read_text(), str(path), "exec"), names)
        said = mesh_checks.wrong_groups(names["make_groups"])
        loss = {
            over: float(next(line for line in said.splitlines() if line.strip().startswith(over)).split()[-2])
            for over in ("the data group", "the tensor group", "all ranks")
        }
        assert f"{loss['the data group']:.2f}" == "3.92"
        assert f"{loss['the tensor group']:.2f}" == "3.99"
        assert f"{loss['all ranks']:.2f}" == "3.98"
        sent = {
            axis: next(line for line in said.splitlines() if line.strip().startswith(axis)).split()[1:3]
            for axis in ("tensor ", "data ")
        }
        # Without Linux' count there is nothing to compare.
        if "not" not in sent["data "]:
            assert [unit for _, unit in sent.values()] == ["MB", "MB"]
            # With headers, of which there may be a few more.
            assert [float(value) for value, _ in sent.values()] == pytest.approx([4.7, 3.5], abs=0.06)
