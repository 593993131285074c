"""The bounds that a process states against what it adds, as floats."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpsqlp.accounting import ContributionBounds, Process

BOUNDS = [(0.0, 1.0), (0.1, 0.7), (-3.3, 10.1), (1e-9, 1.1e9), (-0.3, -0.1), (5e-324, 1e-300)]
CENTERS = [0.0, 0.1, -7.7, 1e8]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("center", [None, *CENTERS])
def test_no_value_is_further_from_the_center_than_the_reach(
    bounds: tuple[float, float], center: float | None
) -> None:
    """As floats subtract, for the bounds and values between them; the middle is nearly half as far
    as it can be. With squares, less half of the largest, none is larger than half of it."""
    low, high = bounds
    middle = low + (high - low) / 2 if center is None else center
    total = Process("x", "sum", 0, low, high, middle)
    squares = Process("x", "squares", 0, low, high, middle)
    values = np.array([low, high, middle, *np.random.default_rng(0).uniform(low, high, 1000)])
    off = np.clip(values, low, high) - middle
    assert np.abs(off).max() == total.reach == total.bound
    assert np.abs(off * off - squares.half_square).max() <= squares.bound
    assert squares.bound == total.reach**2 / 2
    if center is None:
        assert total.reach <= (high - low) / 2 * (1 + 1e-15) + abs(middle) * 2.0**-52


@pytest.mark.parametrize("bounds", BOUNDS)
def test_without_a_center_the_bound_is_the_largest_value(bounds: tuple[float, float]) -> None:
    """L = max(|lo|, |hi|), on either side."""
    low, high = bounds
    assert Process("x", "sum", 0, low, high).bound == max(abs(low), abs(high))
    assert Process("x", "sum", 0, -high, -low).bound == max(abs(low), abs(high))
    assert Process("x", "count").bound == Process("x", "distinct").bound == 1


def test_a_norm_is_at_most_what_the_other_bounds_imply() -> None:
    """floor(C / c) keys with c records and one with the rest; 0 stands for that."""
    for records, per_key in itertools.product(range(1, 40), range(1, 40)):
        most = (records // per_key) * per_key**2 + (records % per_key) ** 2
        for given in (0, 1, most - 1, most, most + 1, 10**9):
            norm = ContributionBounds(records, per_key, 1, given).squared_norm
            assert norm == (min(given, most) or most)
    assert ContributionBounds(32, 32, 8, 64).squared_norm == 64
    assert math.isqrt(ContributionBounds(10**6, 1000, 1).squared_norm) == 31622
