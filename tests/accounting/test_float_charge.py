"""What lemma 19 of docs/proof.md takes from arithmetic: the charge covers narrow noise far out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpsqlp.accounting import ContributionBounds, Process, calibrate
from dpsqlp.accounting.privacy_loss import FLOAT_SHARE, float_charge
from dpsqlp.errors import PlanError
from dpsqlp.mechanisms import Blt, Mechanism, Tree, fit_blt

FAR = 9.0  # deviations
CHARGED_AT_LEAST = 4.5  # quanta: narrower noise is charged like this
EPSILONS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
DELTAS = (1e-12, 1e-6, 0.5)
CAPS = (1, 10, 100, 1_000, 100_000)


def share_left_given_others(mechanism: Mechanism) -> float:
    """A floor of the deviation of one trigger's noise given all the others, over sigma. For blt the
    last trigger has the least; the others have 0.84 at least."""
    base, slope = (3.0, 0.8) if isinstance(mechanism, Tree) else (1.35, 0.145)
    return 1 / math.sqrt(base + slope * math.log2(mechanism.triggers))


def shape(deviation: float, mechanism: Mechanism) -> float:
    """[w] of lemma 19, far out: what the strips of a cell weigh over those of a flat density."""
    half = FAR / (share_left_given_others(mechanism) * deviation) / 2
    return half / math.tanh(half)


def measured_over_charged(triggers: int) -> float:
    """Of the deviation of the largest number that a path adds up."""
    measured = 1.1 * 2.0**-48 + 2.0**-52 * math.sqrt(triggers)
    return measured / (2.0**-48 + 2.0**-50 * math.sqrt(triggers + 1))


@pytest.mark.parametrize("triggers", [1, 2, 3, 8, 33, 64, 100])
@pytest.mark.parametrize("make", [Tree, fit_blt])
def test_the_deviation_given_the_other_triggers_has_its_floor(make, triggers) -> None:  # type: ignore[no-untyped-def]
    """Against the inverse of the covariance matrix."""
    mechanism = make(triggers)
    draws = int(mechanism.draws(np.array([triggers]))[0])
    rows = np.arange(draws + 1) * triggers
    paths = np.empty(draws * triggers)
    state = np.zeros((draws, mechanism.state_size))
    normals = np.eye(draws).reshape(-1)
    mechanism.walk(
        normals, np.arange(draws + 1) * draws, np.zeros(draws, np.int64), state, paths, rows
    )
    covariance = paths.reshape(draws, triggers).T @ paths.reshape(draws, triggers)
    given_others = 1 / np.sqrt(np.linalg.inv(covariance).diagonal())
    assert given_others.min() >= share_left_given_others(mechanism)
    if isinstance(mechanism, Blt):
        assert given_others[:-1].min(initial=1) >= 0.84


@pytest.mark.parametrize("triggers", [1, 2, 3, 8, 33, 64, 100, 1_000, 20_000])
def test_the_last_trigger_of_a_blt_has_its_floor(triggers: int) -> None:
    """Given the others all normals but the last trigger's two are known; theirs are the last two
    coefficients of b'."""
    mechanism = fit_blt(triggers)
    own = 1 - mechanism.final_row[-2], mechanism.final_row[-1]
    assert math.hypot(*own) >= share_left_given_others(mechanism)


@pytest.mark.parametrize("make", [Tree, fit_blt])
@pytest.mark.parametrize("triggers", [1, 10, 100, 1_000, 20_000])
def test_narrow_noise_stays_within_its_allowance_far_out(make, triggers: int) -> None:  # type: ignore[no-untyped-def]
    """Shape times measured error is within what the charge for a flat density leaves."""
    mechanism = make(triggers)
    seen = 0
    for epsilon, delta, most in itertools.product(EPSILONS, DELTAS, CAPS):
        try:
            plan = calibrate(
                epsilon=epsilon,
                delta=delta,
                caps=ContributionBounds(most, 1, 1),
                mechanism=mechanism,
                processes=[Process("n", "count")],
                release="every_trigger",
                private_keys=False,
            )
        except PlanError:
            continue
        sigma = plan.processes[0].sigma
        cost = float_charge(sigma, most, mechanism)
        if sigma < CHARGED_AT_LEAST:
            cost *= sigma / CHARGED_AT_LEAST
        cost *= shape(sigma, mechanism) * measured_over_charged(triggers)
        assert cost <= epsilon * FLOAT_SHARE
        seen += 1
    assert seen > 20
