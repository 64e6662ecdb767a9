"""The stepper multiplies the same small matrices that numpy multiplies, and sends what the models say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import split_a_matmul as split
from shardlab.models.collectives import ring_allgather_cost, ring_allreduce_sent_bytes

CUTS = [value for value, _ in split.CUTS]
X, A, B = np.array(split.INPUT), np.array(split.A), np.array(split.B)
HIDDEN = np.maximum(X @ A, 0)


def run(**given: Any) -> dict[str, Any]:
    return engine.run("split-a-matmul", given)


def expected(cut: str, backward: bool) -> np.ndarray:
    single = cut in ("columns", "rows")
    if backward:
        if single:
            return np.array(split.WIDE_GRADIENT) @ A.T
        return (np.array(split.GRADIENT) @ B.T * (X @ A > 0)) @ A.T
    return X @ A if single else HIDDEN @ B


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_ends_with_the_uncut_product(cut: str, backward: bool, ranks: int) -> None:
    last = split.play(cut, backward, ranks, early=False)[-1]
    for held in last.held:
        assert np.array_equal(np.array(held), expected(cut, backward))
    assert np.array_equal(np.array(last.whole), expected(cut, backward))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("backward", [False, True])
def test_partial_sums_add_up_and_columns_are_right(cut: str, backward: bool) -> None:
    for state in split.play(cut, backward, 3, early=False):
        whole = np.array(state.whole)
        if state.partial:
            assert np.array_equal(sum(np.array(held) for held in state.held), whole)
            assert not any(np.array_equal(np.array(held), whole) for held in state.held)
        else:
            for held in state.held:
                for row, cells in enumerate(held):
                    assert all(v is None or v == whole[row][c] for c, v in enumerate(cells))


def test_one_all_reduce_each_way_for_the_good_order_and_more_for_the_other() -> None:
    narrow, wide = 3 * 4 * 2, 3 * 8 * 2
    for backward in (False, True):
        good = split.play("columns-rows", backward, 4, early=False)[-1]
        assert good.collectives == ["all-reduce"]
        assert good.sent == ring_allreduce_sent_bytes(narrow, 4)
        other = split.play("rows-columns", backward, 4, early=False)[-1]
        assert other.collectives == ["all-reduce", "all-gather"]
        assert other.sent == ring_allreduce_sent_bytes(wide, 4) + ring_allgather_cost(narrow, 4).sent_bytes


def test_relu_before_the_sum_is_wrong_and_said_to_be() -> None:
    answer = run(preset="spoilt", step=5)
    assert answer["readouts"][3]["value"] == "0 of 12"
    assert "wrong" in " ".join(answer["words"])
    right = run(preset="other-order", step=5)
    assert right["readouts"][3]["value"] == "12 of 12"
    assert "wrong" not in " ".join(right["words"])
    spoilt = split.play("rows-columns", False, 2, early=True)[-1]
    assert not np.array_equal(np.array(spoilt.held[0]), HIDDEN @ B)


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut != "rows-columns"])
def test_the_mistake_is_offered_only_where_it_can_be_made(cut: str) -> None:
    assert run(cut=cut)["bounds"]["early"] == {"enabled": False}
    assert run(cut=cut, early=True, step=5) == {
        **run(cut=cut, step=5),
        "values": {**run(cut=cut, step=5)["values"], "early": True},
        "texts": {**run(cut=cut, step=5)["texts"], "early": "on"},
    }


def test_partial_sums_do_not_count_as_right() -> None:
    answer = run(cut="columns-rows", step=3)
    assert answer["readouts"][3]["value"] == "0 of 12"
    assert "partial sum" in answer["words"][0]


def test_each_rank_holds_its_part_of_the_matrix() -> None:
    for ranks in (2, 3, 4):
        filled = np.zeros((4, 8))
        for rank in range(ranks):
            filled += np.array(run(cut="columns", ranks=ranks, rank=rank)["panels"][0]["levels"])
        assert (filled == 1).all()


def test_a_step_beyond_the_end_is_the_end() -> None:
    answer = run(cut="rows", step=5, ranks=2, rank=3)
    assert answer["values"]["step"] == 2
    assert answer["values"]["rank"] == 1
