"""Calibration: (epsilon, delta, caps) to every noise scale and threshold.

Implements: nu from (epsilon, delta_0) by the exact Gaussian profile; nu^2 shared out, a part to key
selection and the rest equally over the processes that have noise of their own; each sigma from its
part (see `inverse` for the cost of a sigma); thresholds at failure beta per vote;

    delta = delta_0 + Cs beta,    delta_0 = delta / 2 (public keys: all of delta)

Privacy contract: with the caps and bounds enforced, every vote within its cap, and public time, the
whole output is (epsilon, delta)-DP per unit. A thousandth of epsilon is set aside for float error
in the noise; a sum's quantum is chosen so that it suffices, and plans where it cannot are refused.

Not covered: composition with other pipelines over the same units (nu^2 and the failures add up).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from dpsqlp.accounting.gdp import nu_of
from dpsqlp.accounting.model import (
    SELECTION,
    CalibratedProcess,
    Calibration,
    ContributionBounds,
    Process,
    ReleasePolicy,
    Selection,
    Spending,
)
from dpsqlp.accounting.privacy_loss import FLOAT_SHARE, charge, float_charge
from dpsqlp.accounting.thresholds import thresholds
from dpsqlp.errors import PlanError

if TYPE_CHECKING:  # importing the mechanisms would load numba
    from dpsqlp.mechanisms.base import Mechanism

_LARGEST_EPSILON = 1000
_SMALLEST_DELTA = 1e-24  # draws are of 128 bits: below some 1e-30 their grid would show
_LARGEST_VALUE = 2.0**22  # quanta per record: a total wraps only after 2^40 records
_LARGEST_PATH = 2.0**53  # quanta of noise: 9 deviations stay inside int64


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
) -> Calibration:
    """The noise that makes the whole output (epsilon, delta)-DP.

    `minimum` is mu, `selection_share` the part of nu^2 that key selection gets when there are
    processes to share with, `selection_spending` how a vote's failure is spent over the triggers.
    """
    check_budget(epsilon, delta)
    check_caps(caps)
    check_minimum(minimum)
    check_processes(processes)
    if release not in ("every_trigger", "threshold"):
        _refuse("release is 'every_trigger' or 'threshold'", release, "Give one of the two.")
    if selection_spending not in ("even", "late"):
        _refuse("selection_spending is 'even' or 'late'", selection_spending, "Try 'even'.")
    charges = [charge(process, caps, release, private_keys) for process in processes]
    charged = sum(squares > 0 for squares in charges)
    share = _selection_share(selection_share, charged, private_keys)

    failure = delta / (2 * caps.selections) if private_keys else 0.0  # [beta]
    delta_threshold = caps.selections * failure
    delta_gaussian = delta - delta_threshold  # [delta_0]; with the above exactly delta
    epsilon_gaussian = epsilon * (1 - FLOAT_SHARE)
    nu = nu_of(epsilon_gaussian, delta_gaussian * math.exp(epsilon_gaussian - epsilon))
    allowance = epsilon * FLOAT_SHARE / (charged + private_keys)  # one noise process's part

    selection = None
    if private_keys:
        sigma = mechanism.sensitivity * math.sqrt(caps.selections / share) / nu
        check_noise(SELECTION, sigma, caps.selections, mechanism, allowance)
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
        sigma = process.bound * mechanism.sensitivity * math.sqrt(squares / part) / nu
        quantum = quantum_of(process, sigma, caps.records, mechanism, allowance)
        calibrated.append(CalibratedProcess(process, f"process/{position}", sigma, quantum))

    return Calibration(
        epsilon=float(epsilon),
        delta=float(delta),
        nu=nu,
        epsilon_gaussian=epsilon_gaussian,
        delta_gaussian=delta_gaussian,
        delta_threshold=delta_threshold,
        selection=selection,
        processes=tuple(calibrated),
    )


def quantum_of(
    process: Process, sigma: float, touched: int, mechanism: Mechanism, allowance: float
) -> float:
    """The smallest power of two that keeps values small and float error within its allowance.

    The smallest, because values are truncated towards zero, which is bias. Counts have 1.
    """
    quantum = 1.0
    if process.kind == "sum":
        per_deviation = float_charge(1 / FLOAT_SHARE, touched, mechanism) * FLOAT_SHARE
        quantum = _power_of_two(
            max(process.bound / _LARGEST_VALUE, per_deviation * sigma / allowance)
        )
    check_noise(process.name, sigma / quantum, touched, mechanism, allowance)
    return quantum


def check_noise(
    name: str, deviation: float, touched: int, mechanism: Mechanism, allowance: float
) -> None:
    """Refuse noise whose float error exceeds its allowance or that could leave int64."""
    path = deviation * math.sqrt(max(mechanism.variance))
    error = float_charge(deviation, touched, mechanism)
    if not (error <= allowance and path <= _LARGEST_PATH):
        raise PlanError(
            f"The noise of {name!r} is too large for exact arithmetic; got a deviation of"
            f" {path:g} quanta, whose float error may cost epsilon {error:g} of {allowance:g} set"
            " aside. Raise epsilon, or lower the caps or the number of triggers."
        )


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an epsilon or delta that promises nothing."""
    if not (_is_number(epsilon) and 0 < epsilon <= _LARGEST_EPSILON):
        _refuse(
            f"epsilon must be above 0 and at most {_LARGEST_EPSILON}",
            epsilon,
            "Typical is 0.1 to 10; far above that nothing is promised.",
        )
    if not (_is_number(delta) and _SMALLEST_DELTA <= delta < 1):
        _refuse(
            f"delta must be at least {_SMALLEST_DELTA} and below 1",
            delta,
            "Take far less than one over the units.",
        )


def check_minimum(minimum: int) -> None:
    """Refuse a negative minimum."""
    if not _is_integer(minimum, 0):
        _refuse("minimum must be an integer of at least 0", minimum, "Give 0 for no minimum.")


def check_processes(processes: Sequence[Process]) -> None:
    """Refuse processes whose sensitivity is unknown or whose noise could be confused."""
    names = [process.name for process in processes]
    if len(set(names)) != len(names):
        _refuse("The name of a process must be unique", names, "Rename one of them.")
    for process in processes:
        _check_process(process)


def _check_process(process: Process) -> None:
    name = f"process {process.name!r}"
    if process.kind not in ("count", "sum", "distinct"):
        _refuse(
            f"The kind of {name} is unknown", process.kind, "Give 'count', 'sum' or 'distinct'."
        )
    if process.kind == "distinct" and process.column is not None:
        _refuse(
            f"column of {name} must be None: it counts units", process.column, "Leave column out."
        )
    if process.column is not None and not _is_integer(process.column, 0):
        _refuse(
            f"column of {name} must be an integer of at least 0",
            process.column,
            "Give the number of a value column.",
        )
    if process.kind != "sum":
        if (process.lower, process.upper) != (0, 1):
            _refuse(
                f"bounds of {name} are fixed: a {process.kind} adds 0 or 1",
                (process.lower, process.upper),
                "Leave lower and upper out.",
            )
        return
    if process.column is None:
        _refuse(f"column of {name} is missing", None, "Give the number of a value column.")
    bounds = (process.lower, process.upper)
    if not all(_is_number(bound) for bound in bounds):
        _refuse(f"bounds of {name} must be finite", bounds, "Give finite lower and upper.")
    if process.lower > process.upper:
        _refuse(f"bounds of {name} are reversed", bounds, "Exchange lower and upper.")
    if process.bound == 0:
        _refuse(f"bounds of {name} leave only the value 0", bounds, "Widen lower or upper.")


def check_caps(caps: ContributionBounds) -> None:
    """Refuse caps that bound nothing or that no unit can reach."""
    for name in ("records", "records_per_key", "selections"):
        value = getattr(caps, name)
        if not _is_integer(value, 1):
            _refuse(f"caps.{name} must be an integer of at least 1", value, "Give such a cap.")
        if value > caps.records:
            _refuse(
                f"caps.{name} above caps.records ({caps.records}) is pointless: a unit never"
                " reaches it, and pays for it",
                value,
                f"Lower caps.{name} or raise caps.records.",
            )


def _selection_share(selection_share: float, charged: int, private_keys: bool) -> float:
    """The part of nu^2 for selection; all or nothing if there is nobody to share with."""
    if not private_keys:
        if charged == 0:
            raise PlanError(
                "There is nothing to release: with public keys, processes must not be empty; got"
                " none. Add an aggregate, or let keys be selected privately."
            )
        return 0.0
    if charged == 0:
        return 1.0
    if not (_is_number(selection_share) and 0 < selection_share < 1):
        _refuse("selection_share must be above 0 and below 1", selection_share, "Try 0.5.")
    return selection_share


def _power_of_two(value: float) -> float:
    """The smallest power of two that is at least `value`."""
    mantissa, exponent = math.frexp(value)  # value = mantissa * 2^exponent, 1/2 <= mantissa < 1
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _refuse(fact: str, got: object, advice: str) -> NoReturn:
    raise PlanError(f"{fact}; got {got!r}. {advice}")
