"""The line behind a prediction."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardlab.labs.fit import Line, fit_line

times = st.floats(1e-6, 1e-1)


# How long it takes says how busy the machine is.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    fixed=times, slope=st.floats(1e-12, 1e-8), sizes=st.sets(st.integers(1, 2**24), min_size=2, max_size=6)
)
def test_a_line_is_found_again(fixed, slope, sizes):
    truth = Line(fixed, slope)
    line = fit_line([(size, truth.at(size)) for size in sizes])
    for size in sizes:
        assert line.at(size) == pytest.approx(truth.at(size), rel=1e-6)


def test_the_fit_weighs_relative_errors():
    # The largest point is off by 10 %; in absolute terms it would drag the small ones along.
    line = fit_line([(0, 1.0), (1, 2.0), (2, 3.0), (1000, 1101.0)])
    assert line.at(0) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 3.0), (2, 2.0), (3, 1.0)], Line(pytest.approx(1.3469, rel=1e-3), 0.0)),
        ([(1, 1.0), (2, 4.0)], Line(0.0, pytest.approx(1.2, rel=1e-9))),
    ],
)
def test_neither_part_is_ever_negative(points, expected):
    assert fit_line(points) == expected


@pytest.mark.parametrize(
    "points", [[], [(1, 1.0)], [(1, 1.0), (1, 2.0)], [(1, 1.0), (2, 0.0)], [(1, 1.0), (2, -1.0)]]
)
def test_points_that_fix_no_line_are_refused(points):
    with pytest.raises(ValueError, match="points must hold at least two different sizes"):
        fit_line(points)
