"""Privacy loss: what a set of noise scales costs.

Implements the squared ratio of one unit's shift to the noise, over the whole output,

    nu^2 = Cs s^2 / sigma_k^2 + sum over processes m of charge_m L_m^2 s^2 / sigma_m^2
         + sum over numbers d of diagnostics of most_d^2 s^2 / sigma_d^2

and the charge for float error in the noise, which moves probabilities by a factor e^error, so
epsilon by error and delta_0 by the factor. A unit with n_k records in (key, window) k, each of
size at most L, shifts that process by at most n_k L s, and the sum of n_k^2 is at most P, the
square of the unit's norm. The totals of a histogram are one vector, which is shifted by no more:
they are charged once. `distinct` adds one per (key, window), or one per vote with public keys.
Because nu^2 caps every history of adaptively chosen inputs, the composition is nu-GDP (Smith and
Thakurta 2022; Koskela et al. 2023). A closing spends what the unit has left of nu^2 less the cost
of diagnostics, and no more.

Privacy contract: earlier stages must have enforced the caps and the bounds, and each process must
have noise of its own. A `distinct` process released from the selection process is charged there.
See docs/proof.md, Lemmas 9 to 11, 16, 19 and 36.

Not covered: that a threshold fails with the stated probability (see `thresholds`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpsqlp.accounting.closing import KEYS_MAX
from dpsqlp.accounting.gdp import bisect, delta_of
from dpsqlp.accounting.model import Calibration, ContributionBounds, Process, ReleasePolicy

if TYPE_CHECKING:  # importing the mechanisms would load numba
    from dpsqlp.mechanisms.base import Mechanism

FLOAT_SHARE = 1 / 1000  # of epsilon, set aside for float error in the noise
_DRAW_ERROR = 2.0**-48  # of a draw within 9 deviations
_PATH_ERROR = 2.0**-50  # of a path, relative to its deviation, times sqrt(T): rounding adds up
_TAIL = 4.5  # deviations; in the tail beyond, a shift changes probabilities more
_LARGEST_ERROR = 100.0  # of float error: above it, e^error leaves nothing to promise


def charge(
    process: Process, caps: ContributionBounds, release: ReleasePolicy, private_keys: bool
) -> int:
    """The largest sum over (key, window) of squared contributions, for L = 1.

    0: the process is released from the selection process.
    """
    if process.kind != "distinct":
        return caps.squared_norm
    if not private_keys:
        return caps.selections
    return 0 if release == "every_trigger" else caps.records


def float_charge(deviation: float, touched: int, mechanism: Mechanism) -> float:
    """The epsilon of float error in one noise process.

    `deviation` is sigma in quanta; `touched` is how many totals one unit can change.
    """
    relative = _DRAW_ERROR + _PATH_ERROR * math.sqrt(mechanism.triggers + 1)  # draws at most
    path = relative * mechanism.path_deviation_max * max(deviation, _TAIL)
    return 4 * mechanism.triggers * touched * path


def closing_float_charge(quantum: float) -> float:
    """The epsilon of float error in the closing's normals, one for each key a unit lays on."""
    return 4 * KEYS_MAX * (_DRAW_ERROR + _PATH_ERROR) * max(1 / quantum, _TAIL)


def squared_nu(
    calibration: Calibration, caps: ContributionBounds, mechanism: Mechanism, release: ReleasePolicy
) -> float:
    """[nu^2] of the whole output, from the sigmas."""
    selection = calibration.selection
    terms = []
    if selection is not None:
        terms.append(caps.selections / selection.sigma**2)
    for calibrated in calibration.processes:
        squares = charge(calibrated.process, caps, release, selection is not None)
        terms.append(squares * (calibrated.process.bound / calibrated.sigma) ** 2)
    if calibration.diagnostics is not None:
        told = calibration.diagnostics
        pairs = zip(told.counted_max, told.sigmas, strict=True)
        terms += [(most / sigma) ** 2 for most, sigma in pairs]
    return mechanism.sensitivity**2 * math.fsum(terms)


def epsilon_spent(
    calibration: Calibration, caps: ContributionBounds, mechanism: Mechanism, release: ReleasePolicy
) -> float:
    """The epsilon at `calibration.delta`, from the sigmas and the thresholds' failure.

    Infinite if the thresholds alone use up delta, or if the noise is negligible.
    """
    selection, closing = calibration.selection, calibration.closing
    failure = 0.0 if selection is None else caps.selections * selection.failure
    failure += 0.0 if closing is None else closing.failure
    if failure >= calibration.delta:
        return math.inf
    nu = math.sqrt(squared_nu(calibration, caps, mechanism, release))
    float_error = 0.0
    if selection is not None:
        float_error += float_charge(selection.sigma, caps.selections, mechanism)
    if closing is not None:
        float_error += closing_float_charge(closing.quantum)
    for calibrated in calibration.processes:
        if charge(calibrated.process, caps, release, selection is not None):
            deviation = calibrated.sigma / calibrated.quantum
            touched = caps.records * calibrated.process.depth
            float_error += float_charge(deviation, touched, mechanism)
    if calibration.diagnostics is not None:
        told = calibration.diagnostics
        for most, sigma in zip(told.counted_max, told.sigmas, strict=True):
            float_error += float_charge(sigma, most, mechanism)

    def too_small(epsilon: float) -> bool:
        error = max(float_error, epsilon * FLOAT_SHARE)  # at least the share set aside
        target = (calibration.delta - failure) * math.exp(-error)
        return epsilon <= error or delta_of(epsilon - error, nu) > target

    if float_error > _LARGEST_ERROR or too_small(_LARGEST_ERROR / FLOAT_SHARE):
        return math.inf
    return bisect(too_small)[1]
