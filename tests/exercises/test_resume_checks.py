"""Assignment 10: the drawn numbers, the four resumed runs, and the disk whose power fails."""

from __future__ import annotations

import json

import pytest

from shardlab.classroom import NotWritten, resume_checks
from shardlab.classroom.resume_checks import Disk, PowerCut, by_hand_numbers, missing_pieces

QUANTITIES = ("size_bytes", "mtbf_s", "interval_s", "lost_fraction")
CLASS = [f"s{number:03}" for number in range(300)]


# ---- task 1 ----


def test_the_numbers_of_a_class_are_sane():
    drawn = [by_hand_numbers(student) for student in CLASS]
    for one in drawn:
        assert 0.3 < one.write_s < 200
        assert 3600 < one.key("mtbf_s") < 6e5
        assert 0.001 < one.key("lost_fraction") < 0.25
        # Young's formula is for writes far below the time between failures.
        assert one.write_s < one.key("mtbf_s") / 50


def test_keys_are_the_formulas_of_the_chapter():
    for student in CLASS[:50]:
        one = by_hand_numbers(student)
        size = one.n_params * (12 if one.contents == "adam-12" else 14)
        mtbf, write = one.gpu_mtbf_s / one.n_gpus, size / one.storage
        tau = (2 * write * mtbf) ** 0.5
        answers = size, mtbf, tau, write / tau + (tau / 2 + one.restart_s) / mtbf
        for quantity, answer in zip(QUANTITIES, answers, strict=True):
            assert one.fault(quantity, answer) is None


# ---- task 2 ----


def test_every_order_of_pieces_is_drawn_and_the_resume_is_after_the_warm_up_in_the_middle_of_an_epoch():
    drawn = [missing_pieces(student) for student in CLASS]
    assert len({one.order for one in drawn}) == 24
    for one in drawn:
        assert sorted(one.order) == sorted(resume_checks.PIECES)
        assert one.steps_before > 20
        assert 3 <= one.steps_before % 12 <= 8


def test_what_is_no_answer_is_told_apart():
    runs = missing_pieces("ada")
    assert runs.fault("A", None) == "missing must be a dict from runs to pieces, not None"
    assert runs.fault("A", {}) == "missing['A'] has no answer yet"
    assert "missing['A'] must be one of 'optimizer'" in (runs.fault("A", {"A": "moments"}) or "")
    answers = dict(zip("ABCD", runs.order, strict=True))
    assert all(runs.fault(run, answers) is None for run in "ABCD")


# ---- task 4 ----


def save(disk, step, shards):
    disk.write("draft", json.dumps([step, shards]))
    disk.flush("draft")
    disk.rename("draft", "latest")


def load(disk):
    return tuple(json.loads(disk.read("latest"))) if "latest" in disk.names() else None


def test_a_file_that_was_not_flushed_is_cut_by_a_power_cut():
    disk = Disk()
    disk.write("a", "12345678")
    assert disk.after_a_power_cut(lucky=True).read("a") == "12345678"
    assert disk.after_a_power_cut(lucky=False).read("a") == "1234"
    disk.rename("a", "b")
    assert disk.after_a_power_cut(lucky=False).read("b") == "1234"
    disk.flush("b")
    assert disk.after_a_power_cut(lucky=False).read("b") == "12345678"
    disk.delete("b")
    assert disk.names() == []
    with pytest.raises(FileNotFoundError, match="no file 'b'"):
        disk.read("b")


def test_the_power_fails_where_it_should_and_stays_off():
    for number, operation in enumerate(("write('draft', …)", "flush('draft')", "rename('draft', 'latest')")):
        disk = Disk().dying_at(number)
        with pytest.raises(PowerCut):
            save(disk, 1, ["x"])
        assert disk.operations[-1] == operation
        with pytest.raises(PowerCut):
            disk.write("later", "x")
        assert "later" not in disk.names()
        assert load(disk.after_a_power_cut(lucky=True)) is None


def test_a_right_save_has_no_fault_and_a_save_that_is_not_written_says_so():
    trial = resume_checks.try_save(save, load)
    assert trial == resume_checks.SaveTrial(None, None, None, None, None)

    def later(disk, step, shards):
        raise NotImplementedError

    with pytest.raises(NotWritten, match="later is not written yet"):
        resume_checks.try_save(later, load)


def test_a_save_that_never_ends_is_given_up():
    def restless(disk, step, shards):
        save(disk, step, shards)
        for _ in range(500):
            disk.flush("latest")

    assert resume_checks.try_save(restless, load).whole is None


def test_a_load_that_returns_something_else_is_a_fault_and_no_crash():
    for value in (7, "ab", [1], {"step": 1}):
        trial = resume_checks.try_save(save, lambda disk, value=value: value if disk.names() else None)
        assert trial.plain is not None
        assert trial.whole is not None


# ---- task 5 ----


@pytest.mark.parametrize("made", [None, [], [1, 2], [{}, {}], [{"parameters": 3}] * 2])
def test_what_is_no_resharded_checkpoint_is_a_fault_and_no_crash(made):
    assert resume_checks.reshard_fault(lambda *_: made, 8, 4, 2) is not None
    assert resume_checks.beside_fault(lambda *_: made) is not None
