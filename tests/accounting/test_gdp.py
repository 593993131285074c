"""The Gaussian profile against arbitrary precision arithmetic."""

from __future__ import annotations

import itertools
import subprocess
import sys

import mpmath
import pytest

from dpsqlp.accounting import delta_of, epsilon_of, nu_of

EPSILONS = (1e-9, 1e-6, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 50.0, 200.0)
DELTAS = (1e-300, 1e-30, 1e-20, 1e-12, 1e-9, 1e-5, 1e-2, 0.3, 0.9, 0.999999)
GRID = list(itertools.product(EPSILONS, DELTAS))


def exact_delta(epsilon: float, nu: float) -> mpmath.mpf:
    with mpmath.workdps(80):
        e, n = mpmath.mpf(epsilon), mpmath.mpf(nu)

        def tail(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return tail(e / n - n / 2) - mpmath.exp(e) * tail(e / n + n / 2)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_nu_is_the_largest_that_keeps_delta(epsilon: float, delta: float) -> None:
    """nu_of keeps delta exactly, for the computed and the true profile, and wastes 1e-9 of it."""
    nu = nu_of(epsilon, delta)
    assert delta_of(epsilon, nu) <= delta
    assert delta * (1 - 1e-9) <= exact_delta(epsilon, nu) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_delta_is_exact_to_eleven_digits(epsilon: float, delta: float) -> None:
    """delta_of neither cancels nor overflows, from delta 1e-300 to nearly 1."""
    nu = nu_of(epsilon, delta)
    for factor in (0.5, 1.0, 2.0):
        truth = exact_delta(epsilon, nu * factor)
        if truth > 1e-300:
            assert abs(delta_of(epsilon, nu * factor) / truth - 1) < 1e-11


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_epsilon_is_the_smallest_that_keeps_delta(epsilon: float, delta: float) -> None:
    """epsilon_of keeps delta exactly, and one part in a million less epsilon would not."""
    nu = nu_of(epsilon, delta)
    spent = epsilon_of(nu, delta)
    assert spent <= epsilon
    assert delta_of(spent, nu) <= delta
    assert exact_delta(spent, nu) <= delta
    if spent > 0 and delta < min(epsilon / 10, 0.5):  # elsewhere delta alone nearly pays for nu
        assert exact_delta(spent * (1 - 1e-6), nu) > delta


def test_no_noise_ratio_costs_nothing() -> None:
    """nu = 0 is perfect privacy, and so is a nu that delta alone pays for."""
    assert delta_of(0.0, 0.0) == 0.0
    assert delta_of(1.0, 0.0) == 0.0
    assert epsilon_of(0.0, 1e-9) == 0.0
    assert epsilon_of(1e-12, 1e-9) == 0.0


def test_zero_epsilon_is_total_variation() -> None:
    """At epsilon 0 the profile is 2 Phi(nu / 2) - 1."""
    for nu in (1e-6, 1e-3, 0.1, 1.0, 5.0, 60.0):
        truth = mpmath.erf(mpmath.mpf(nu) / 2 / mpmath.sqrt(2))
        assert abs(delta_of(0.0, nu) / truth - 1) < 1e-11


def test_importing_accounting_loads_neither_scipy_nor_numba() -> None:
    """Importing the package stays cheap."""
    program = (
        "import sys, dpsqlp.accounting;print([m for m in ('scipy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
