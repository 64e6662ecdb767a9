"""Assignment 07: the numbers that are drawn, and the checks of parts, deals and work."""

from __future__ import annotations

import pytest
from submissions.attention import MERGE, PART, WORK, ZIGZAG

from shardlab.classroom import attention_checks
from shardlab.models.context import ring_work

torch = pytest.importorskip("torch")

CLASS = [f"s{number:03}" for number in range(300)]
REFERENCE: dict = {"torch": torch}
exec(PART + MERGE + ZIGZAG + WORK, REFERENCE)


# ---- the numbers of task 1 ----


def test_everybody_has_the_same_work():
    for student in CLASS:
        numbers = attention_checks.by_hand_numbers(student)
        assert 0 < numbers.rank < numbers.ranks - 1
        assert numbers.sequence % (2 * numbers.ranks) == 0
        assert 2048 <= numbers.sequence // numbers.ranks <= 8192
        assert numbers.heads % numbers.kv_heads == 0
        # So long that an answer with n²/2 instead of n (n + 1)/2 counts.
        tokens = numbers.sequence / numbers.ranks
        assert numbers.fault("rank_pairs", (numbers.rank + 0.5) * tokens**2) is None
        assert numbers.fault("slowdown", 2 - 1 / numbers.ranks) is None
        assert len(numbers.lines()) == 6


# ---- parts of a softmax ----


@pytest.mark.parametrize("case", ["all visible", "causal", "blind", "other sizes"])
def test_a_right_part_has_no_fault(case):
    assert attention_checks.part_fault(REFERENCE["part"], case) is None


@pytest.mark.parametrize("case", ["two parts", "large scores", "any order", "other sizes"])
def test_a_right_merge_has_no_fault(case):
    assert attention_checks.merge_fault(REFERENCE["merge"], case) is None


def wrong_part(source: str, replacement: str):
    """The reference with one piece of its source replaced."""
    assert source in PART
    found: dict = {"torch": torch}
    exec(PART.replace(source, replacement), found)
    return found["part"]


@pytest.mark.parametrize(
    ("source", "replacement", "case", "words"),
    [
        (
            "weights.sum(1), weights @ v",
            "weights.sum(1), weights @ v / weights.sum(1)[:, None]",
            "causal",
            "already divided",
        ),
        (
            "torch.where(visible, torch.exp",
            "torch.where(visible, 2 * torch.exp",
            "causal",
            "total is not the sum",
        ),
        ("weights @ v", "weights @ (2 * v)", "causal", "out is not the sum of exp(score − top) · v"),
        (
            'torch.where(visible, q @ k.T / q.shape[1] ** 0.5, float("-inf"))',
            "q @ k.T / q.shape[1] ** 0.5",
            "causal",
            "a hidden key must not count",
        ),
        ("scores.amax(1)", "scores.amin(1)", "all visible", "top is not the largest score"),
        (
            "return top,",
            "return top[:, None],",
            "all visible",
            "of shapes [3], [3] and [3, 4], not [3, 1], [3], [3, 4]",
        ),
        (
            "return top, weights.sum(1), weights @ v",
            "return weights @ v",
            "all visible",
            "return (top, total, out)",
        ),
        (
            "return top, weights.sum(1), weights @ v",
            "return top, 1, 2",
            "all visible",
            "not Tensor, int, int",
        ),
        ("scores.amax(1)", "scores.amax(7)", "all visible", "stopped with IndexError"),
    ],
)
def test_a_wrong_part_says_what_is_wrong(source, replacement, case, words):
    assert words in attention_checks.part_fault(wrong_part(source, replacement), case)


def test_a_merge_that_changes_what_it_is_given_changes_nothing_else():
    def in_place(one, other):
        result = REFERENCE["merge"](one, other)
        for tensor in (*one, *other):
            tensor.zero_()
        return result

    assert attention_checks.merge_fault(in_place, "two parts") is None


# ---- deals and work ----


@pytest.mark.parametrize("split", attention_checks.SPLITS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_right_deal_and_work_have_no_fault(split, ranks):
    dealt = attention_checks.deal(split, 6 * ranks, ranks)
    assert sorted(place for places in dealt for place in places) == list(range(6 * ranks))
    assert attention_checks.work_fault(REFERENCE["work"], dealt) is None
    assert attention_checks.zigzag_fault(REFERENCE["zigzag"], 6 * ranks, ranks) is None


def test_the_key_of_any_deal_is_counted_as_the_model_counts():
    for split, kind in attention_checks.SPLITS.items():
        dealt = attention_checks.deal(split, 24, 4)
        counted = [
            [
                sum(key <= query for query in dealt[rank] for key in dealt[(rank - step) % 4])
                for rank in range(4)
            ]
            for step in range(4)
        ]
        assert ring_work(24, 4, kind).pairs == counted


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "must return 2 lists of positions, not None"),
        ([[0, 1, 2, 3]], "must return 2 lists of positions"),
        ([[0, 1, 2, 3], [4, 5, 6, 6]], "every position from 0 to 7 must be dealt once"),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], "piece r and the r-th from the end, of 2N pieces"),
        ([[6, 7, 0, 1], [2, 3, 4, 5]], "in the order of the sequence"),
    ],
)
def test_a_wrong_zigzag_says_what_is_wrong(answer, words):
    assert words in attention_checks.zigzag_fault(lambda sequence, ranks: answer, 8, 2)


def test_ranges_and_tensors_are_lists_too():
    assert (
        attention_checks.zigzag_fault(lambda s, n: torch.tensor([[0, 1, 6, 7], [2, 3, 4, 5]]), 8, 2) is None
    )
    assert attention_checks.zigzag_fault(lambda s, n: (range(2),), 2, 1) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "must return 2 lists (one for each step) of 2 numbers, not None"),
        ([[3, 3], [0]], "must return 2 lists"),
        (
            [[3, 3], [4, 0]],
            "in step 1, rank 0 (with the keys of rank 1) has 0 pairs, not 4: a query sees only",
        ),
        (
            [[1, 3], [0, 4]],
            "in step 0, rank 0 (with the keys of rank 0) has 3 pairs, not 1: a query also sees",
        ),
    ],
)
def test_wrong_work_says_what_is_wrong(answer, words):
    wrong = attention_checks.work_fault(lambda deal: answer, [[0, 1], [2, 3]])
    assert words in (wrong or "")


# ---- the ring ----


def test_hops_are_judged_by_destination_and_amount():
    right = [(1, 32), (1, 32), (1, 32)]
    assert attention_checks._hops_fault(right, [], 0, 4, 32) is None
    assert "rank 3; in the ring it sends only to rank 1" in attention_checks._hops_fault(
        [(3, 32)], [], 0, 4, 32
    )
    assert "calls allgather" in attention_checks._hops_fault([], ["allgather"], 0, 4, 32)
    assert "both have to travel" in attention_checks._hops_fault([(1, 48)], [], 0, 4, 32)


def test_the_model_answers_numbers():
    work = ring_work(4096, 4, "contiguous")
    block_ms = attention_checks.FULL_BLOCK_S * 1e3 / 1024**2
    last = [row[3] * block_ms for row in work.pairs]
    assert last == pytest.approx([60, 120, 120, 120], rel=1e-3)
    assert sum(last) == pytest.approx(420, rel=1e-3)
    assert work.balanced_pairs * block_ms == pytest.approx(240, rel=1e-3)
    assert work.slowdown == pytest.approx(1.75, rel=1e-3)
    assert len({tuple(row) for row in ring_work(4096, 4, "zigzag").pairs[1:]}) == 1
