"""The published calibration (DP-SQLP), to reproduce the paper's tables. Not for a promise.

Implements the paper's accounting: half of epsilon and a third of delta to the aggregation columns,
the rest to key selection, of whose delta half is for its Gaussian part and half for the threshold;
rho-zCDP by the tight conversion of Canonne, Kamath and Steinke (2020, Corollary 13); sensitivity
C L by group privacy for a column; C-fold composition for selection; thresholds at the quantile of
each trigger by itself,

    thr(i) = ceil(mu + lambda(i) z),    Pr[N > z] = beta = (delta_k / 2) / ((e^epsilon_k + 1) C)

Without columns selection gets everything. Several columns share the columns' rho equally.

Privacy contract: none. A quantile for each trigger by itself **does not bound the failure over all
triggers**, which is up to T times larger, so the published (epsilon, delta) need not hold. Use
`calibrate` for a promise. `Calibration.epsilon` and `.delta` are the requested values; nu, failure,
delta_gaussian and delta_threshold follow from the noise by this package's accounting, so the two
deltas do not add up to delta.

Not covered: policies other than `threshold`, caps other than C = c = Cs, public keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dpsqlp.accounting.calibrate import check_noise, quantum_of
from dpsqlp.accounting.gdp import bisect, delta_of
from dpsqlp.accounting.model import (
    SELECTION,
    CalibratedProcess,
    Calibration,
    ContributionBounds,
    Process,
    Selection,
)
from dpsqlp.accounting.privacy_loss import FLOAT_SHARE, charge, squared_nu
from dpsqlp.accounting.validate import (
    check_budget,
    check_caps,
    check_minimum,
    check_processes,
)

if TYPE_CHECKING:  # importing the mechanisms would load numba
    from dpsqlp.mechanisms.base import Mechanism


def zcdp_delta_of(epsilon: float, rho: float) -> float:
    """The delta of a rho-zCDP mechanism: the least over alpha > 1 of
    exp((alpha - 1)(alpha rho - epsilon)) / (alpha - 1) * (1 - 1/alpha)^alpha."""
    if rho == 0:
        return 0.0

    def falling(excess: float) -> bool:  # the logarithm is convex in alpha = 1 + excess
        return (2 * excess + 1) * rho - epsilon + math.log(excess / (1 + excess)) < 0

    excess = bisect(falling)[1]  # any alpha is valid; this end is never 0
    alpha = 1 + excess
    exponent = excess * (alpha * rho - epsilon) + alpha * math.log(excess / alpha)
    return min(1.0, math.exp(exponent) / excess)


def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho for which rho-zCDP implies (epsilon, delta)-DP by that conversion."""
    return bisect(lambda rho: zcdp_delta_of(epsilon, rho) <= delta)[0]


def paper_calibration(
    *,
    epsilon: float,
    delta: float,
    records: int,
    mechanism: Mechanism,
    processes: Sequence[Process],
    minimum: int = 0,
) -> Calibration:
    """The noise and thresholds of the paper. They do not bound the failure over all triggers and
    carry no promise; see the module.
    """
    check_budget(epsilon, delta)
    caps = ContributionBounds(records, records, records)
    check_caps(caps)
    check_minimum(minimum)
    check_processes(processes)

    column_epsilon, column_delta = (epsilon / 2, delta / 3) if processes else (0.0, 0.0)
    selection_epsilon, selection_delta = epsilon - column_epsilon, delta - column_delta
    allowance = epsilon * FLOAT_SHARE / (1 + len(processes))

    # rho = C s^2 / (2 sigma^2)
    rho = rho_of(selection_epsilon, selection_delta / 2)
    sigma = mechanism.sensitivity * math.sqrt(records / (2 * rho))
    check_noise(SELECTION, sigma, records, mechanism, allowance)
    beta = selection_delta / 2 / ((math.exp(selection_epsilon) + 1) * records)
    limits = _thresholds(sigma, mechanism, minimum, beta)
    failure = _failure(sigma, mechanism, minimum, limits)

    calibrated = []
    for position, process in enumerate(processes):
        # rho = (C L s)^2 / (2 sigma^2), C instead of C^2 for distinct
        rho = rho_of(column_epsilon, column_delta) / len(processes)
        squares = charge(process, caps, "threshold", private_keys=True)
        scale = process.bound * mechanism.sensitivity * math.sqrt(squares / (2 * rho))
        quantum = quantum_of(process, scale, records, mechanism, allowance)
        calibrated.append(CalibratedProcess(process, f"process/{position}", scale, quantum))

    epsilon_gaussian = epsilon * (1 - FLOAT_SHARE)
    calibration = Calibration(
        epsilon=float(epsilon),
        delta=float(delta),
        nu=0.0,
        epsilon_gaussian=epsilon_gaussian,
        delta_gaussian=0.0,
        delta_threshold=records * failure,
        selection=Selection(minimum, sigma, limits, failure),
        processes=tuple(calibrated),
    )
    nu = math.sqrt(squared_nu(calibration, caps, mechanism, "threshold"))
    delta_gaussian = delta_of(epsilon_gaussian, nu) * math.exp(epsilon - epsilon_gaussian)
    return replace(calibration, nu=nu, delta_gaussian=min(1.0, delta_gaussian))


def _thresholds(sigma: float, mechanism: Mechanism, minimum: int, beta: float) -> tuple[int, ...]:
    """ceil(mu + lambda(i) z), each trigger by itself."""
    from scipy.special import ndtri

    quantile = -float(ndtri(beta))
    return tuple(
        math.ceil(minimum + sigma * math.sqrt(value) * quantile) for value in mechanism.variance
    )


def _failure(sigma: float, mechanism: Mechanism, minimum: int, limits: Sequence[int]) -> float:
    """The failure of these thresholds per vote, by a union bound over the triggers."""
    from scipy.special import ndtr

    margins = (limit - minimum - 1.5 for limit in limits)
    tails = (
        float(ndtr(-margin / (sigma * math.sqrt(value))))
        for margin, value in zip(margins, mechanism.variance, strict=True)
    )
    return min(1.0, math.fsum(tails))
