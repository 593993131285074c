"""The closing's numbers against their formulas, written out once more, and against brute force.

See docs/proof.md, lemmas 30 and 31.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import mpmath
import pytest
from scipy.stats import norm

from dpsqlp.accounting import (
    Calibration,
    Closing,
    ContributionBounds,
    Process,
    calibrate,
    epsilon_spent,
)
from dpsqlp.accounting.closing import calibrate_closing
from dpsqlp.errors import PlanError
from dpsqlp.mechanisms import fit_blt

COUNT = Process("views", "count")
DISTINCT = Process("people", "distinct")
AVERAGE = [Process("sum", "sum", 0, 0.0, 600.0, 300.0), Process("number", "count", 0)]
VARIANCE = [*AVERAGE, Process("squares", "squares", 0, 0.0, 600.0, 300.0)]
MOST_KEYS = 32

mechanism = cache(fit_blt)


def options(**changes: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "epsilon": 6.0,
        "delta": 1e-9,
        "caps": ContributionBounds(64, 8, 2, 64),
        "mechanism": mechanism(100),
        "processes": [COUNT],
        "release": "every_trigger",
        "selection_share": 0.45,
        "closing": True,
    }
    return defaults | changes


def closed(calibration: Calibration) -> Closing:
    assert calibration.closing is not None
    return calibration.closing


SETTINGS = [
    options(epsilon=epsilon, delta=delta, caps=caps, processes=processes, minimum=minimum)
    for (epsilon, delta), caps, processes, minimum in itertools.product(
        [(0.3, 1e-5), (6.0, 1e-9), (50.0, 1e-24)],
        [
            ContributionBounds(64, 8, 2, 64),
            ContributionBounds(32, 2, 7),
            ContributionBounds(2, 1, 1),
            ContributionBounds(100, 10, 40, 99),
        ],
        [[COUNT], [COUNT, DISTINCT], VARIANCE],
        [0, 3],
    )
] + [options(processes=processes, minimum=3) for processes in ([], [DISTINCT])]


def share_left(given: dict[str, Any], keys: int) -> Any:
    """[r(m)]: of nu^2, what a unit with so many open keys can have left at most."""
    caps = given["caps"]
    # without processes of their own noise, selection has all of nu^2
    share = mpmath.mpf(1 if given["processes"] in ([], [DISTINCT]) else given["selection_share"])
    votes = share * min(caps.selections, keys) / caps.selections
    return max(mpmath.mpf(0), 1 - votes - (1 - share) * keys / caps.squared_norm)


def tail(x: Any) -> Any:
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


@cache
def quantile(failure: float, keys: int = 1) -> Any:
    """[z(failure / keys)]: a standard normal exceeds it with this probability."""
    with mpmath.workdps(40):
        part = mpmath.mpf(failure) / keys
        return mpmath.findroot(lambda x: mpmath.log(tail(x) / part), float(norm.isf(failure)))


def test_weights_are_those_of_the_formula_rounded_down() -> None:
    """nu sqrt(r(m) / m) for m = 1..M, in quanta, and never above it."""
    for given in SETTINGS:
        calibration = calibrate(**given)
        closing = closed(calibration)
        assert len(closing.weights_max) == MOST_KEYS
        with mpmath.workdps(60):
            for keys, weight in enumerate(closing.weights_max, 1):
                left, slack = share_left(given, keys), mpmath.mpf(2) ** -37
                exact, less = (
                    calibration.nu * mpmath.sqrt(max(0, part) / keys) / closing.quantum
                    for part in (left, left - slack)
                )
                assert math.floor(less) <= weight <= exact
        assert closing.weights_max[0] > 0
        assert list(closing.weights_max) == sorted(closing.weights_max, reverse=True)


def test_the_threshold_is_that_of_the_formula_rounded_up() -> None:
    """q ceil((mu nu sqrt(r(1)) + max_m (nu sqrt(r(m) / m) + z(beta_c / m)) + q / 2) / q), with the
    weights rounded down: mu + 1 quanta less at most, and one more for rounding at most."""
    for given in SETTINGS:
        calibration = calibrate(**given)
        closing, minimum = closed(calibration), given["minimum"]
        with mpmath.workdps(60):
            weights = [
                calibration.nu * mpmath.sqrt(share_left(given, m) / m)
                for m in range(1, MOST_KEYS + 1)
            ]
            needs = (w + quantile(closing.failure, m) for m, w in enumerate(weights, 1))
            exact = (minimum * weights[0] + max(needs)) / closing.quantum + mpmath.mpf("0.5")
            assert exact - (minimum + 1) <= closing.threshold <= exact + 2
            needs = (
                w + quantile(closing.failure, m) / closing.quantum
                for m, w in enumerate(closing.weights_max, 1)
            )
            exact = minimum * closing.weights_max[0] + max(needs) + mpmath.mpf("0.5")
            assert exact <= closing.threshold <= exact + 1.001


@pytest.mark.parametrize("bits", [2, 4, 10])
@pytest.mark.parametrize("minimum", [0, 1, 20])
@pytest.mark.parametrize("failure", [0.2, 1e-5, 2.5e-10])
@pytest.mark.parametrize(
    ("caps", "share"),
    [
        (ContributionBounds(64, 8, 2, 64), 0.45),
        (ContributionBounds(64, 8, 40, 64), 1.0),
        (ContributionBounds(4, 2, 1), 0.9),
    ],
)
def test_keys_of_one_unit_above_the_minimum_fail_with_at_most_beta(
    caps: ContributionBounds, share: float, failure: float, minimum: int, bits: int
) -> None:
    """Exactly, from the integers alone, also where the grid is coarse: each of the m keys that a
    unit and mu others lay on is selected with probability at most beta_c / m; for one m it is not
    much less."""
    quantum = 2.0**-bits
    nu = 1.3
    costs = share * nu**2 / caps.selections, (1 - share) * nu**2 / caps.squared_norm
    closing = calibrate_closing(
        nu=nu, costs=costs, caps=caps, minimum=minimum, failure=failure, quantum=quantum
    )
    assert closing is not None
    with mpmath.workdps(50):
        spent = []
        for keys, weight in enumerate(closing.weights_max, 1):
            others = minimum * closing.weights_max[0]  # at most: they have one open key each
            # selected iff weights + rint(N / q) >= tau, so only if N / q is within 1/2 of the rest
            need = closing.threshold - others - weight - mpmath.mpf("0.5")
            spent.append(keys * tail(need * quantum))
        assert max(spent) <= failure
        # at most a quantum and a bit is lost to rounding up
        assert max(spent) >= failure * mpmath.exp(-(quantile(failure, MOST_KEYS) + 1) * quantum)


def units(caps: ContributionBounds) -> Iterator[tuple[int, ...]]:
    """All numbers of kept records per key that the bounds allow, the largest first."""

    def more(start: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if start:
            yield start
        for n in range(1, (start[-1] if start else caps.records_per_key) + 1):
            numbers = (*start, n)
            if (
                sum(numbers) <= caps.records
                and sum(k * k for k in numbers) <= caps.squared_norm
                and len(numbers) <= 12
            ):
                yield from more(numbers)

    return more(())


@pytest.mark.parametrize(
    ("caps", "processes"),
    [
        (ContributionBounds(12, 4, 3, 12), [COUNT]),
        (ContributionBounds(6, 2, 6), [COUNT, DISTINCT]),
        (ContributionBounds(4, 4, 1), VARIANCE),
        (ContributionBounds(9, 3, 2), []),
    ],
)
def test_no_unit_spends_more_than_nu_squared(
    caps: ContributionBounds, processes: list[Process]
) -> None:
    """Every unit that the bounds allow, every set of its keys that is open: what its votes, records
    and weights cost, from the sigmas alone, is at most nu^2, and some unit spends nearly all.

    With that, the largest weights are just those of a unit that has the most left."""
    given = options(caps=caps, processes=processes)
    calibration = calibrate(**given)
    closing, selection = closed(calibration), calibration.selection
    assert selection is not None
    charged = [p for p in calibration.processes if p.process.kind != "distinct"]
    with mpmath.workdps(40):
        sensitivity, budget = mpmath.mpf(given["mechanism"].sensitivity), mpmath.mpf(calibration.nu)
        vote = (sensitivity / selection.sigma) ** 2
        square = mpmath.fsum((p.process.bound * sensitivity / p.sigma) ** 2 for p in charged)
        most = mpmath.mpf(0)
        largest = [0] * MOST_KEYS
        for numbers in units(caps):
            squares = sum(n * n for n in numbers)
            for keys in range(1, len(numbers) + 1):
                votes_max = min(caps.selections, len(numbers))
                for votes in range(min(caps.selections, keys), votes_max + 1):
                    left = closing.budget - closing.vote_cost * votes
                    left = max(0.0, left - closing.square_cost * squares)
                    weight = math.floor(math.sqrt(left / keys) / closing.quantum)
                    largest[keys - 1] = max(largest[keys - 1], weight)
                    laid = keys * (weight * mpmath.mpf(closing.quantum)) ** 2
                    most = max(most, vote * votes + square * squares + laid)
        # the caps used up cost nu^2 to the last digits of the sigmas
        assert budget**2 * (1 - mpmath.mpf(2) ** -15) <= most <= budget**2 * (1 + 2.0**-48)
        for found, stated in zip(largest, closing.weights_max, strict=True):
            assert found in (stated, 0)  # 0: no unit of so many keys was listed, or none is left


def test_costs_are_those_of_the_noise_scales_rounded_up() -> None:
    """A vote costs s^2 / sigma_k^2; squared rows cost the sum over all processes with noise of
    their own, which AVG has two of and VARIANCE three; the budget is nu^2, rounded down."""
    for given in SETTINGS:
        calibration = calibrate(**given)
        closing, selection = closed(calibration), calibration.selection
        assert selection is not None
        with mpmath.workdps(40):
            s = mpmath.mpf(given["mechanism"].sensitivity)
            own = [p for p in calibration.processes if p.purpose.startswith("process/")]
            assert len(own) == len([p for p in given["processes"] if p is not DISTINCT])
            up = 1 + mpmath.mpf(2) ** -39
            vote = (s / selection.sigma) ** 2
            assert vote <= closing.vote_cost <= vote * up
            square = mpmath.fsum((p.process.bound * s / p.sigma) ** 2 for p in own)
            assert square <= closing.square_cost <= square * up
            nu_squared = mpmath.mpf(calibration.nu) ** 2
            assert nu_squared / up <= closing.budget <= nu_squared
        caps = given["caps"]
        full = closing.vote_cost * caps.selections + closing.square_cost * caps.squared_norm
        assert full == pytest.approx(closing.budget, rel=1e-11)


def test_delta_is_shared_between_noise_thresholds_and_closing() -> None:
    """delta_0 + Cs beta + beta_c = delta, exactly: a half and two quarters."""
    for given in SETTINGS:
        calibration = calibrate(**given)
        closing, selection = closed(calibration), calibration.selection
        assert selection is not None
        assert closing.failure == given["delta"] / 4
        votes = given["caps"].selections * selection.failure
        assert votes == pytest.approx(given["delta"] / 4, rel=1e-15, abs=0)
        assert calibration.delta_threshold == votes + closing.failure
        assert calibration.delta_gaussian + calibration.delta_threshold == given["delta"]


def test_a_closing_leaves_the_noise_as_it_is() -> None:
    """Only the thresholds rise, since a vote may fail half as often."""
    for given in SETTINGS:
        with_it, without = calibrate(**given), calibrate(**given | {"closing": False})
        assert without.closing is None
        assert with_it.nu == pytest.approx(without.nu, rel=1e-14)
        assert with_it.selection is not None
        assert without.selection is not None
        assert with_it.selection.sigma == pytest.approx(without.selection.sigma, rel=1e-14)
        assert with_it.selection.failure == without.selection.failure / 2
        pairs = zip(with_it.selection.thresholds, without.selection.thresholds, strict=True)
        assert all(higher >= lower for higher, lower in pairs)


@pytest.mark.parametrize("epsilon", [0.0003, 0.003, 0.03, 6.0])
def test_the_quantum_is_the_finest_whose_float_error_is_set_aside(epsilon: float) -> None:
    """32 normals, each off by 2^-48 + 2^-50 deviations, are charged to the closing's part of
    epsilon / 1000, the others having as much; a finer grid than 2^-20 is not tried."""
    given = options(epsilon=epsilon, mechanism=mechanism(4), caps=ContributionBounds(4, 2, 2))
    closing = closed(calibrate(**given))

    def error(quantum: float) -> float:
        return 4 * 32 * (2.0**-48 + 2.0**-50) / quantum

    allowance = epsilon / 1000 / 3
    assert error(closing.quantum) <= allowance
    assert closing.quantum == 2.0**-20 or error(closing.quantum / 2) > allowance
    assert (closing.quantum == 2.0**-20) == (epsilon >= 0.003)


def test_what_is_spent_contains_the_closing() -> None:
    """Its failure and the float error of its normals; a finer grid or a larger failure costs more
    than was given, and a failure of delta costs everything."""
    given = options()
    calibration = calibrate(**given)
    closing = closed(calibration)

    def spent(**changes: Any) -> float:
        changed = replace(calibration, closing=replace(closing, **changes))
        return epsilon_spent(changed, given["caps"], given["mechanism"], given["release"])

    assert 6 * (1 - 1e-6) <= spent() <= 6
    assert spent(failure=closing.failure * 1.01) > 6
    assert spent(failure=given["delta"] * 0.75) == math.inf
    finer = 2.0**-36  # by far more than the others have set aside
    error = 4 * 32 * (2.0**-48 + 2.0**-50) / finer
    assert spent(quantum=finer) == pytest.approx(6 * 0.999 + error, rel=0.005)
    assert spent(quantum=2.0**-60) == math.inf


@pytest.mark.parametrize(
    "changes",
    [
        {"caps": ContributionBounds(1, 1, 1)},
        {"caps": ContributionBounds(8, 8, 1, 1)},
        {"caps": ContributionBounds(8, 8, 1), "processes": []},
        {"caps": ContributionBounds(8, 8, 1), "processes": [DISTINCT]},
        {"caps": ContributionBounds(2, 2, 1), "selection_share": 1 - 1e-13},
        {"epsilon": 1e-8, "delta": 0.1, "mechanism": mechanism(1)},
        {"epsilon": 1e-9, "delta": 0.1, "mechanism": mechanism(1), "processes": []},
        {"caps": ContributionBounds(1, 1, 1), "minimum": 3, "selection_spending": "late"},
    ],
)
def test_there_is_no_closing_where_nothing_is_left(changes: dict[str, Any]) -> None:
    """A unit's first vote and record cost everything, or all but what the grid would show; or float
    error leaves no grid. Nothing is set aside for it then."""
    changes = {"caps": ContributionBounds(2, 2, 2)} | changes
    assert calibrate(**options(**changes)) == calibrate(**options(closing=False, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"caps": ContributionBounds(2, 1, 1)},
        {"caps": ContributionBounds(8, 8, 1, 2)},
        {"caps": ContributionBounds(2, 1, 2), "processes": []},
        {"epsilon": 1e-3, "mechanism": mechanism(4), "caps": ContributionBounds(4, 2, 2)},
    ],
)
def test_there_is_a_closing_where_something_is_left(changes: dict[str, Any]) -> None:
    """After the first vote and record there may have been a second vote, or a second record."""
    assert calibrate(**options(**changes)).closing is not None


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"private_keys": False}, "public keys"), ({"release": "threshold"}, "threshold")],
)
def test_a_closing_without_keys_to_select_is_refused(changes: dict[str, Any], named: str) -> None:
    """Public keys are all out, and under `threshold` a key may be selected again."""
    with pytest.raises(PlanError, match="closing") as refusal:
        calibrate(**options(**changes))
    assert f"; got {named!r}." in str(refusal.value)
    calibrate(**options(closing=False, **changes))


def test_each_further_unit_of_the_minimum_raises_the_threshold_by_the_largest_weight() -> None:
    closings = [closed(calibrate(**options(minimum=minimum))) for minimum in (0, 1, 7)]
    none, one, seven = (closing.threshold for closing in closings)
    weight = closings[0].weights_max[0]
    assert [closing.weights_max[0] for closing in closings] == [weight] * 3
    assert abs(one - none - weight) <= 1
    assert abs(seven - none - 7 * weight) <= 1


def test_mechanism_matters_only_through_the_noise() -> None:
    """Costs are ratios of s and sigma, so the number of triggers changes no weight by more than
    rounding."""
    few, many = (closed(calibrate(**options(mechanism=mechanism(t)))) for t in (4, 100))
    assert few.quantum == many.quantum
    pairs = zip(few.weights_max, many.weights_max, strict=True)
    assert all(abs(one - other) <= 1 for one, other in pairs)
    assert abs(few.threshold - many.threshold) <= 1
