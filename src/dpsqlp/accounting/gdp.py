"""Gaussian differential privacy: conversion between nu, epsilon and delta.

Implements the exact profile of a nu-GDP mechanism (Dong, Roth, Su 2022, Corollary 2.13; Balle and
Wang 2018, Theorem 8):

    delta(epsilon) = Phi(nu/2 - epsilon/nu) - e^epsilon Phi(-nu/2 - epsilon/nu)

With a = epsilon/nu - nu/2, b = a + nu and e^epsilon phi(b) = phi(a), this is phi(a) (R(a) - R(b)),
R the Mills ratio: neither e^epsilon nor the tails are formed, so nothing overflows or cancels.

Privacy contract: `nu_of` and `epsilon_of` err towards privacy (docs/proof.md, Lemma 12). They use a
delta smaller by a relative 2^-30 and 2^-31, far more than the error of `delta_of` (some 1e-11), so
their results hold for the exact profile too, and
`epsilon_of(nu_of(epsilon, delta), delta) <= epsilon`.

Not covered: anything that is not Gaussian (see `thresholds`), and composition (nu^2 adds up).
"""

from __future__ import annotations

import math
from collections.abc import Callable

_NU_SLACK = 1 - 2.0**-30
_EPSILON_SLACK = 1 - 2.0**-31
_SMALL_NU = 2.0**-10  # below, R(a) - R(b) loses digits: its Taylor series is used
_FAR_LEFT = -20.0  # below, R(a) is close to overflow


def delta_of(epsilon: float, nu: float) -> float:
    """The smallest delta at which a nu-GDP mechanism is (epsilon, delta)-DP."""
    # Imported late: scipy.special would be most of the cost of importing this package.
    from scipy.special import erfcx, ndtr

    if nu == 0.0:
        return 0.0

    def mills(x: float) -> float:
        return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))

    middle = epsilon / nu
    a, b = middle - nu / 2, middle + nu / 2
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a < _FAR_LEFT:
        return float(ndtr(-a)) - density * mills(b)
    if density == 0.0:
        return 0.0
    if nu < _SMALL_NU:  # R' = x R - 1, R''' = (x^3 + 3 x) R - x^2 - 2, at the middle
        ratio = mills(middle)
        first = 1 - middle * ratio
        third = middle**2 + 2 - (middle**3 + 3 * middle) * ratio
        return density * nu * (first + third * nu * nu / 24)
    return density * (mills(a) - mills(b))


def nu_of(epsilon: float, delta: float) -> float:
    """The largest nu that is (epsilon, delta)-DP: `delta_of(epsilon, nu) <= delta`, exactly."""
    target = delta * _NU_SLACK
    return bisect(lambda nu: delta_of(epsilon, nu) <= target)[0]


def epsilon_of(nu: float, delta: float) -> float:
    """The smallest epsilon of a nu-GDP mechanism: `delta_of(epsilon, nu) <= delta`, exactly."""
    target = delta * _EPSILON_SLACK
    if delta_of(0.0, nu) <= target:
        return 0.0
    return bisect(lambda epsilon: delta_of(epsilon, nu) > target)[1]


def bisect(below: Callable[[float], bool]) -> tuple[float, float]:
    """Neighbouring floats around the point where `below` turns false, true side first.

    `below` is true near 0 and false for large numbers. It was evaluated at both floats returned,
    so rounding inside it cannot make the result wrong.
    """
    low, high = 0.0, 1.0
    while below(high):
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low, high
        if below(middle):
            low = middle
        else:
            high = middle
