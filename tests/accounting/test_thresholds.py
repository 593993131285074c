"""Thresholds against the exact normal tail."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
from scipy.stats import norm

from dpsqlp.accounting import Spending, thresholds
from dpsqlp.errors import PlanError

VARIANCES = (
    (1.0,),
    (1.0, 2.0, 1.5, 0.571),
    tuple(1 + 0.318 * mpmath.log(i + 1) for i in range(150)),
)
SETTINGS = list(
    itertools.product((0.01, 0.7, 3.0, 250.0), VARIANCES, (0, 1, 50), (0.4, 1e-5, 1e-10, 1e-31))
)


def tail(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def parts(triggers: int, spending: Spending) -> list[mpmath.mpf]:
    """Of the failure, by trigger: they add up to 1."""
    if spending == "even":
        return [1 / mpmath.mpf(triggers)] * triggers
    harmonic = mpmath.harmonic(triggers)
    return [1 / (harmonic * left) for left in reversed(range(1, triggers + 1))]


@pytest.mark.parametrize("spending", ["even", "late"])
@pytest.mark.parametrize(("sigma", "variance", "minimum", "failure"), SETTINGS)
def test_thresholds_are_the_smallest_that_keep_the_union_bound(
    sigma: float, variance: tuple[float, ...], minimum: int, failure: float, spending: Spending
) -> None:
    """Each trigger's probability is at most its part of the failure; one less would break it."""
    variance = tuple(float(value) for value in variance)
    limits = thresholds(
        sigma=sigma, variance=variance, minimum=minimum, failure=failure, spending=spending
    )
    assert len(limits) == len(variance)
    with mpmath.workdps(50):
        for limit, value, part in zip(
            limits, variance, parts(len(variance), spending), strict=True
        ):
            assert isinstance(limit, int)
            deviation = mpmath.mpf(sigma) * mpmath.sqrt(value)
            # A count of minimum + 1 passes iff the rounded noise is at least limit - minimum - 1.
            need = limit - minimum - 1 - mpmath.mpf("0.5")
            assert tail(need / deviation) <= part * failure
            assert tail((need - 1) / deviation) > part * failure


@pytest.mark.parametrize("spending", ["even", "late"])
@pytest.mark.parametrize("triggers", [1, 2, 3, 100, 1000])
def test_all_of_the_failure_is_spent_and_no_more(triggers: int, spending: Spending) -> None:
    """So much noise that rounding up hides nothing: the probabilities add up to the failure."""
    sigma, failure = 1e11, 1e-10
    limits = thresholds(
        sigma=sigma, variance=[1.0] * triggers, minimum=0, failure=failure, spending=spending
    )
    with mpmath.workdps(50):
        spent = mpmath.fsum(tail((limit - mpmath.mpf("1.5")) / sigma) for limit in limits)
        assert failure * (1 - mpmath.mpf("1e-8")) <= spent <= failure


@pytest.mark.parametrize("triggers", [10, 11, 64, 100, 1000])
@pytest.mark.parametrize("failure", [0.1, 1e-5, 1e-10, 1e-31])
def test_late_spending_lowers_the_end_and_raises_the_start(triggers: int, failure: float) -> None:
    variance = [1 + math.log(i) / 3 for i in range(1, triggers + 1)]
    even, late = (
        thresholds(sigma=20.0, variance=variance, minimum=3, failure=failure, spending=spending)
        for spending in ("even", "late")
    )
    assert late[-1] < even[-1]
    assert late[0] > even[0]
    differences = [more - less for more, less in zip(late, even, strict=True)]
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(differences))


def test_even_spending_is_the_default() -> None:
    """Written down: a stored plan's thresholds come out the same today."""
    given = {"sigma": 7.5, "variance": [1.0, 1.5, 1.25, 2.0], "minimum": 2, "failure": 1e-10}
    assert thresholds(**given) == (53, 64, 59, 74)  # type: ignore[arg-type]
    assert thresholds(**given, spending="even") == (53, 64, 59, 74)  # type: ignore[arg-type]
    assert thresholds(**given, spending="late") == (54, 65, 59, 73)  # type: ignore[arg-type]


def test_thresholds_grow_with_what_should_raise_them() -> None:
    """More noise, minimum, triggers or confidence never lowers a threshold."""
    base = {"sigma": 3.0, "variance": [1.0, 1.5, 2.0], "minimum": 2, "failure": 1e-9}
    low = thresholds(**base)  # type: ignore[arg-type]
    assert list(low) == sorted(low)
    for change in (
        {"sigma": 4.0},
        {"variance": [1.5, 2.0, 2.5]},
        {"minimum": 3},
        {"failure": 1e-10},
        {"variance": [1.0, 1.5, 2.0] * 10},
    ):
        high = thresholds(**(base | change))  # type: ignore[arg-type]
        assert all(more >= less for more, less in zip(high, low, strict=False))
        assert high != low


def test_an_exact_integer_is_rounded_up() -> None:
    """Where float error could decide, the ceiling goes up: 1.5 + z sigma just at an integer."""
    from scipy.special import ndtri

    sigma = 10.5 / -float(ndtri(1e-9))
    assert thresholds(sigma=sigma, variance=[1.0], minimum=0, failure=1e-9) == (13,)
    assert thresholds(sigma=sigma * (1 - 1e-9), variance=[1.0], minimum=0, failure=1e-9) == (12,)


def test_thresholds_leave_room_for_float_error_of_long_paths() -> None:
    """A path of T triggers may be off by 2^-50 sqrt(T) of its largest deviation, also where its own
    deviation is small: the union bound holds for noise that much nearer to the threshold."""
    triggers, largest = 4096, 1000.0
    variance = [1.0] * (triggers - 1) + [largest**2]
    quantile = float(norm.isf(0.01 / triggers))
    for part in (0.0, 0.5, 1.0, 2.0):  # of the error, by which the exact threshold is below 12
        sigma = 10.5 / quantile
        error = 2.0**-50 * math.sqrt(triggers) * sigma * largest
        sigma = (10.5 - part * error) / quantile
        limit, *_ = thresholds(sigma=sigma, variance=variance, minimum=0, failure=0.01)
        with mpmath.workdps(50):
            need = mpmath.mpf(limit) - mpmath.mpf("1.5") - mpmath.mpf(error)
            assert triggers * tail(need / sigma) <= 0.01


def test_a_threshold_beyond_exact_integers_is_refused() -> None:
    """Thresholds past 2^53, or from a failure of nothing, are refused."""
    with pytest.raises(PlanError, match="epsilon"):
        thresholds(sigma=1e16, variance=[1.0], minimum=0, failure=1e-9)
    with pytest.raises(PlanError, match="delta"):
        thresholds(sigma=1.0, variance=[1.0], minimum=0, failure=0.0)
