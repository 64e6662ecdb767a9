"""Argument checks: what passes, and messages that name the argument, the value and what is allowed."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab import checks

UNTIMED = settings(deadline=None)

BAD_NUMBERS = [
    None,
    "3",
    b"3",
    bytearray(b"3"),
    True,
    [1],
    object(),
    1j,
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    -(10**400),
]


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=lambda value: type(value).__name__ + repr(value)[:8])
@pytest.mark.parametrize("check", [checks.positive, checks.non_negative, checks.fraction, checks.count])
def test_what_is_no_finite_number_is_refused_with_its_name(check, bad):
    with pytest.raises(ValueError, match=r"^width must be ") as error:
        check("width", bad)
    assert len(str(error.value)) < 250, "a huge value must not fill the screen"


@pytest.mark.parametrize(
    ("check", "bad", "allowed"),
    [
        (checks.positive, 0, "a finite number above 0"),
        (checks.positive, -2.5, "a finite number above 0"),
        (checks.non_negative, -1e-9, "a finite number of at least 0"),
        (checks.fraction, 1.0000001, "a number from 0 to 1"),
        (checks.fraction, -0.1, "a number from 0 to 1"),
        (checks.count, 0, "a whole number of at least 1"),
        (checks.count, 2.5, "a whole number of at least 1"),
        (checks.count, -3, "a whole number of at least 1"),
    ],
)
def test_out_of_range_says_what_is_allowed_and_what_came(check, bad, allowed):
    with pytest.raises(ValueError, match=f"^n must be {re.escape(allowed)}, not {re.escape(repr(bad))}$"):
        check("n", bad)


def test_the_unit_stands_in_the_message():
    with pytest.raises(ValueError, match="bandwidth must be a finite number above 0 bytes/s, not 0"):
        checks.positive("bandwidth", 0, "bytes/s")


@UNTIMED
@given(st.floats(min_value=1e-300, max_value=1e300))
def test_good_numbers_come_back_unchanged(value):
    assert checks.positive("x", value) == value
    assert checks.non_negative("x", value) == value


@UNTIMED
@given(st.integers(min_value=1, max_value=10**15))
def test_counts_come_back_as_ints(value):
    assert checks.count("n", value) == value
    assert checks.count("n", float(value)) == value
    assert type(checks.count("n", float(value))) is int


def test_count_keeps_integers_that_a_float_would_round():
    assert checks.count("n", 2**53 + 1) == 2**53 + 1


def test_count_bounds():
    assert checks.count("n", 0, least=0) == 0
    assert checks.count("n", 7, least=7, most=7) == 7
    with pytest.raises(ValueError, match="n must be a whole number from 2 to 6, not 7"):
        checks.count("n", 7, least=2, most=6)


def test_choice():
    assert checks.choice("mode", "b", ("a", "b")) == "b"
    for bad in ("c", None, 1, ["a"]):
        with pytest.raises(ValueError, match="mode must be one of 'a', 'b', not "):
            checks.choice("mode", bad, ("a", "b"))
