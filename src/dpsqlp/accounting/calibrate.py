"""Calibration: (epsilon, delta, caps) to every noise scale and threshold.

Implements: nu from (epsilon, delta_0) by the exact Gaussian profile; nu^2 shared out, a part to key
selection and the rest equally over the processes that have noise of their own; each sigma from its
part (see `privacy_loss` for the cost of a sigma); thresholds at failure beta per vote, and the
closing's at beta_c (see `closing`). Diagnostics take their share of nu^2 first, in four equal
parts; all else, the closing included, is made with what remains:

    delta = delta_0 + Cs beta + beta_c

delta_0 is half of delta (public keys: all of it); the closing, if there is one, takes half of the
rest.

Privacy contract: with the caps and bounds enforced, every vote within its cap, and public time, the
whole output is (epsilon, delta)-DP per unit (docs/proof.md, Theorem and Lemmas 11 to 16, 19, 36). A
thousandth of epsilon is set aside for float error in the noise; a sum's quantum is chosen so that
this suffices, and plans for which it cannot suffice are refused.

Not covered: composition with other pipelines over the same units (nu^2 and the failures add up).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dpsqlp.accounting.closing import CLOSING_QUANTA, calibrate_closing, closing_costs
from dpsqlp.accounting.gdp import nu_of
from dpsqlp.accounting.model import (
    DIAGNOSTICS,
    SELECTION,
    CalibratedProcess,
    Calibration,
    ContributionBounds,
    Diagnostics,
    Process,
    ReleasePolicy,
    Selection,
    Spending,
)
from dpsqlp.accounting.privacy_loss import FLOAT_SHARE, charge, closing_float_charge, float_charge
from dpsqlp.accounting.thresholds import thresholds
from dpsqlp.accounting.validate import (
    check_budget,
    check_caps,
    check_closing,
    check_diagnostics_share,
    check_minimum,
    check_policies,
    check_processes,
    check_selection_share,
)
from dpsqlp.errors import PlanError

if TYPE_CHECKING:  # importing the mechanisms would load numba
    from dpsqlp.mechanisms.base import Mechanism

_LARGEST_VALUE = 2.0**22  # quanta per record: a total wraps only after 2^40 records
_LARGEST_PATH = 2.0**53  # quanta of noise: 9 deviations stay inside int64
_ROWS_COUNTED_MAX = 255  # [K, D] at most: more rows of one unit would drown the others in noise


def calibrate(
    *,
    epsilon: float,
    delta: float,
    caps: ContributionBounds,
    mechanism: Mechanism,
    processes: Sequence[Process],
    release: ReleasePolicy,
    minimum: int = 0,
    private_keys: bool = True,
    selection_share: float = 0.5,
    selection_spending: Spending = "even",
    closing: bool = False,
    shorter: Sequence[Mechanism] = (),
    diagnostics_share: float = 0.0,
) -> Calibration:
    """The noise that makes the whole output (epsilon, delta)-DP.

    `minimum` is mu; `selection_share` is the part of nu^2 for key selection when processes need
    the rest; `selection_spending` is how a vote's failure is spent over the triggers; `closing`
    tells whether what units have left at a window's end selects further keys. Where they never have
    anything left there is no closing. `diagnostics_share` is the part of nu^2 for diagnostics; at 0
    there are none. `shorter` are the mechanisms of windows with fewer triggers: the quanta and the
    float error are right for them too (see `calibrate_shorter`).
    """
    check_budget(epsilon, delta)
    check_caps(caps)
    check_minimum(minimum)
    check_processes(processes)
    check_policies(release, selection_spending)
    check_closing(closing, private_keys, release)
    check_diagnostics_share(diagnostics_share)
    charges = [charge(process, caps, release, private_keys) for process in processes]
    charged = sum(squares > 0 for squares in charges)
    share = _selection_share(selection_share, charged, private_keys)

    closing_failure = delta / 4 if closing else 0.0  # [beta_c]
    failure = (delta / 2 - closing_failure) / caps.selections if private_keys else 0.0  # [beta]
    delta_threshold = caps.selections * failure + closing_failure
    delta_gaussian = delta - delta_threshold  # [delta_0]; with the above exactly delta
    epsilon_gaussian = epsilon * (1 - FLOAT_SHARE)
    nu = nu_of(epsilon_gaussian, delta_gaussian * math.exp(epsilon_gaussian - epsilon))
    told = len(DIAGNOSTICS) if diagnostics_share else 0
    # for each noise process
    allowance = epsilon * FLOAT_SHARE / (charged + private_keys + closing + told)
    remaining_nu = nu * math.sqrt(1 - diagnostics_share)  # what all but diagnostics is made with

    selection = None
    if private_keys:
        sigma = mechanism.sensitivity * math.sqrt(caps.selections / share) / remaining_nu
        for other in (mechanism, *shorter):
            scaled = _scaled(sigma, mechanism, other)
            check_noise(SELECTION, scaled, caps.selections, other, allowance)
        limits = thresholds(
            sigma=sigma,
            variance=mechanism.variance,
            minimum=minimum,
            failure=failure,
            spending=selection_spending,
        )
        selection = Selection(minimum, sigma, limits, failure)

    calibrated = []
    for position, (process, squares) in enumerate(zip(processes, charges, strict=True)):
        if selection is not None and squares == 0:
            calibrated.append(CalibratedProcess(process, SELECTION, selection.sigma, 1.0))
            continue
        part = (1 - share) / charged
        sigma = process.bound * mechanism.sensitivity * math.sqrt(squares / part) / remaining_nu
        touched = caps.records * process.depth
        quantum = max(
            quantum_of(process, _scaled(sigma, mechanism, other), touched, other, allowance)
            for other in (mechanism, *shorter)
        )
        calibrated.append(CalibratedProcess(process, f"process/{position}", sigma, quantum))

    closed = None
    if closing:
        assert selection is not None
        closed = calibrate_closing(
            nu=remaining_nu,
            costs=closing_costs(selection, calibrated, mechanism),
            caps=caps,
            minimum=minimum,
            failure=closing_failure,
            quantum=_closing_quantum(allowance),
        )
        if closed is None:
            return calibrate(
                epsilon=epsilon,
                delta=delta,
                caps=caps,
                mechanism=mechanism,
                processes=processes,
                release=release,
                minimum=minimum,
                selection_share=selection_share,
                selection_spending=selection_spending,
                shorter=shorter,
                diagnostics_share=diagnostics_share,
            )

    return Calibration(
        epsilon=float(epsilon),
        delta=float(delta),
        nu=nu,
        epsilon_gaussian=epsilon_gaussian,
        delta_gaussian=delta_gaussian,
        delta_threshold=delta_threshold,
        selection=selection,
        processes=tuple(calibrated),
        closing=closed,
        diagnostics=_diagnostics(diagnostics_share, nu, caps, (mechanism, *shorter), allowance),
    )


def calibrate_shorter(
    calibration: Calibration, longest: Mechanism, mechanism: Mechanism, spending: Spending
) -> Calibration:
    """The calibration of windows with fewer triggers, from that of the longest: every sigma is the
    same multiple of the sensitivity, so a contribution costs the same in each window, and beta is
    divided over the window's own triggers. What units have left, and with it the closing, is common
    (docs/proof.md, Lemma 35).
    """
    selection = calibration.selection
    if selection is not None:
        sigma = _scaled(selection.sigma, longest, mechanism)
        limits = thresholds(
            sigma=sigma,
            variance=mechanism.variance,
            minimum=selection.minimum,
            failure=selection.failure,
            spending=spending,
        )
        selection = replace(selection, sigma=sigma, thresholds=limits)
    processes = tuple(
        replace(process, sigma=_scaled(process.sigma, longest, mechanism))
        for process in calibration.processes
    )
    told = calibration.diagnostics
    if told is not None:
        sigmas = tuple(_scaled(sigma, longest, mechanism) for sigma in told.sigmas)
        told = replace(told, sigmas=sigmas)
    return replace(calibration, selection=selection, processes=processes, diagnostics=told)


def _scaled(sigma: float, longest: Mechanism, mechanism: Mechanism) -> float:
    """The sigma that costs as much under another sensitivity."""
    return sigma * (mechanism.sensitivity / longest.sensitivity)


def _diagnostics(
    share: float,
    nu: float,
    caps: ContributionBounds,
    mechanisms: Sequence[Mechanism],
    allowance: float,
) -> Diagnostics | None:
    """The noise of diagnostics, whose numbers have equal parts of their share of nu^2. The first
    mechanism is that of the longest windows.
    """
    if share == 0:
        return None
    rows = min(caps.records, caps.squared_norm, _ROWS_COUNTED_MAX)
    diagnostics = Diagnostics(share, rows, rows, ())
    part = share / len(DIAGNOSTICS)
    sigmas = []
    for name, most in zip(DIAGNOSTICS, diagnostics.counted_max, strict=True):
        sigma = most * mechanisms[0].sensitivity / math.sqrt(part) / nu
        for other in mechanisms:
            check_noise(name, _scaled(sigma, mechanisms[0], other), most, other, allowance)
        sigmas.append(sigma)
    return replace(diagnostics, sigmas=tuple(sigmas))


def _closing_quantum(allowance: float) -> float:
    """The finest grid of the closing whose float error is within its allowance, or infinity."""
    return next((q for q in CLOSING_QUANTA if closing_float_charge(q) <= allowance), math.inf)


def quantum_of(
    process: Process, sigma: float, touched: int, mechanism: Mechanism, allowance: float
) -> float:
    """The smallest power of two that keeps values small and float error within its allowance.

    Values are truncated towards zero, so a larger quantum is more bias. Counts have 1.
    """
    quantum = 1.0
    if process.kind in ("sum", "squares"):
        per_deviation = float_charge(1 / FLOAT_SHARE, touched, mechanism) * FLOAT_SHARE
        quantum = _power_of_two(
            max(process.bound / _LARGEST_VALUE, per_deviation * sigma / allowance)
        )
    check_noise(process.name, sigma / quantum, touched, mechanism, allowance)
    return quantum


def check_noise(
    name: str, deviation: float, touched: int, mechanism: Mechanism, allowance: float
) -> None:
    """Refuse noise whose float error exceeds its allowance, or that int64 might not hold."""
    path = deviation * mechanism.path_deviation_max
    error = float_charge(deviation, touched, mechanism)
    if not (error <= allowance and path <= _LARGEST_PATH):
        raise PlanError(
            f"The noise of {name!r} is too large for exact arithmetic; got a deviation of"
            f" {path:g} quanta, whose float error may cost epsilon {error:g}; {allowance:g} is set"
            " aside. Raise epsilon, or lower the caps or the number of triggers."
        )


def _selection_share(selection_share: float, charged: int, private_keys: bool) -> float:
    """The part of nu^2 for selection: all of it if no process is charged, none with public keys."""
    if not private_keys:
        if charged == 0:
            raise PlanError(
                "There is nothing to release: with public keys, processes must not be empty; got"
                " none. Add an aggregate, or let keys be selected privately."
            )
        return 0.0
    if charged == 0:
        return 1.0
    check_selection_share(selection_share)
    return selection_share


def _power_of_two(value: float) -> float:
    """The smallest power of two that is at least `value`."""
    mantissa, exponent = math.frexp(value)  # value = mantissa * 2^exponent, 1/2 <= mantissa < 1
    return math.ldexp(1.0, exponent - (mantissa == 0.5))
