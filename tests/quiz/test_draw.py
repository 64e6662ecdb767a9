"""The seeded generator: its own sequence, the same everywhere."""

from __future__ import annotations

import pytest

from shardlab.quiz.draw import Draw


def reference(seed: int, n: int) -> list[int]:
    """The generator of Numerical Recipes, high 16 bits, written down again."""
    state, found = seed, []
    for _ in range(n + 1):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        found.append(state >> 16)
    return found[1:]


@pytest.mark.parametrize("seed", [0, 1, 4, 2**32 - 1])
def test_it_is_the_published_generator(seed):
    draw = Draw(seed)
    assert [draw.below(2**16) for _ in range(20)] == reference(seed, 20)


def test_streams_of_one_seed_differ_and_repeat():
    first, other = Draw(3, "q3/table"), Draw(3, "q3/strong")
    numbers = [first.below(1000) for _ in range(10)]
    assert numbers != [other.below(1000) for _ in range(10)]
    again = Draw(3, "q3/table")
    assert numbers == [again.below(1000) for _ in range(10)]


def test_every_value_comes_up_about_as_often():
    draw = Draw(7)
    counts = [0] * 6
    for _ in range(6000):
        counts[draw.below(6)] += 1
    assert all(850 < count < 1150 for count in counts)


def test_out_of_order_never_returns_the_given_order():
    orders = [tuple(Draw(seed).out_of_order("abc")) for seed in range(200)]
    assert ("a", "b", "c") not in orders
    assert len(set(orders)) == 5


def test_until_returns_a_proposal_that_fits_or_says_that_none_does():
    draw = Draw(1)
    assert draw.until(lambda: draw.below(100), lambda value: value > 90) > 90
    with pytest.raises(RuntimeError, match="no fitting numbers in 10 draws"):
        draw.until(lambda: 1, lambda value: False, tries=10)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "3"])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be a whole number from 0"):
        Draw(seed)
