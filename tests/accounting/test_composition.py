"""Composition: what several pipelines spend together, against arbitrary precision arithmetic.

See docs/proof.md, lemmas 25 and 31.
"""

from __future__ import annotations

from typing import Any

import mpmath
import pytest

from dpsqlp.accounting import Calibration, ContributionBounds, Process, calibrate
from dpsqlp.accounting.composition import compose
from dpsqlp.mechanisms import fit_blt


def calibration(**changes: Any) -> Calibration:
    defaults: dict[str, Any] = {
        "epsilon": 2.0,
        "delta": 1e-6,
        "caps": ContributionBounds(16, 4, 4, 16),
        "mechanism": fit_blt(10),
        "processes": [Process("views", "count")],
        "release": "every_trigger",
    }
    return calibrate(**defaults | changes)


def exact_delta(epsilon: Any, nu: float) -> Any:
    """The Gaussian profile."""
    upper = mpmath.ncdf(mpmath.mpf(nu) / 2 - epsilon / nu)
    return upper - mpmath.exp(epsilon) * mpmath.ncdf(-mpmath.mpf(nu) / 2 - epsilon / nu)


CLOSING = calibration(closing=True)
OTHER = calibration(closing=True, epsilon=0.5, delta=1e-9, processes=[])
OPEN = calibration(epsilon=1.0)
PUBLIC = calibration(private_keys=False, delta=1e-8)


@pytest.mark.parametrize(
    "pipelines",
    [[CLOSING], [OPEN], [CLOSING, CLOSING], [CLOSING, OPEN], [CLOSING, OTHER, OPEN, PUBLIC]],
    ids=len,
)
def test_the_joint_epsilon_is_that_of_the_joint_nu(pipelines: list[Calibration]) -> None:
    """nu^2 and delta add up. At the sum of the parts delta_0, less the factor of all float error,
    the joint nu has the epsilon that is stated, from above: what thresholds and closings may fail
    is not there to be spent again."""
    nu, epsilon, delta = compose(pipelines)
    with mpmath.workdps(40):
        assert nu**2 == pytest.approx(float(mpmath.fsum(p.nu**2 for p in pipelines)), rel=1e-14)
        assert delta == pytest.approx(sum(p.delta for p in pipelines), rel=1e-14)
        left = mpmath.fsum(p.delta_gaussian for p in pipelines)
        error = mpmath.fsum(p.epsilon - p.epsilon_gaussian for p in pipelines)
        used = exact_delta(epsilon - error, nu) * mpmath.exp(error)
        assert left * (1 - mpmath.mpf("1e-7")) <= used <= left * (1 + mpmath.mpf("1e-13"))
    assert max(p.epsilon for p in pipelines) <= epsilon * (1 + 1e-6)
    assert epsilon <= sum(p.epsilon for p in pipelines) * (1 + 1e-6)


def test_a_closing_leaves_less_delta_for_the_noise_to_compose() -> None:
    """Its failure is part of what is taken from delta before epsilon is found."""
    for closed in (CLOSING, OTHER):
        assert closed.closing is not None
        assert closed.selection is not None
        votes = closed.delta_threshold - closed.closing.failure
        assert votes == pytest.approx(closed.delta / 4, rel=1e-14)
        assert closed.closing.failure == closed.delta / 4
        assert closed.delta - closed.delta_threshold == closed.delta_gaussian
