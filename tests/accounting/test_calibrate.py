"""Calibration: the split, the charges, the quantum, and what is refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest

from dpsqlp.accounting import (
    CLOSING,
    SELECTION,
    Calibration,
    ContributionBounds,
    Process,
    calibrate,
    epsilon_spent,
    squared_nu,
)
from dpsqlp.errors import PlanError
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt
from mechanisms import plain_blt

COUNT = Process("views", "count")
VALUES = Process("rated", "count", 2)  # COUNT(x): records whose value is not null
SUM = Process("seconds", "sum", 0, 0.0, 600.0)
SIGNED = Process("balance", "sum", 1, -3e-5, 1e-5)
DISTINCT = Process("people", "distinct")


@cache
def mechanism(name: str, triggers: int) -> Mechanism:
    return Tree(triggers) if name == "tree" else fit_blt(triggers)


def options(**changes: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "epsilon": 6.0,
        "delta": 1e-9,
        "caps": ContributionBounds(32, 2, 8),
        "mechanism": mechanism("tree", 100),
        "processes": [COUNT],
        "release": "every_trigger",
    }
    return defaults | changes


def spent(calibration: Calibration, given: dict[str, Any]) -> float:
    return epsilon_spent(calibration, given["caps"], given["mechanism"], given["release"])


def exact_delta(epsilon: Any, nu: float) -> Any:
    """The Gaussian profile in 60 digits."""
    with mpmath.workdps(60):
        epsilon, nu = mpmath.mpf(epsilon), mpmath.mpf(nu)
        upper = mpmath.ncdf(nu / 2 - epsilon / nu)
        return upper - mpmath.exp(epsilon) * mpmath.ncdf(-nu / 2 - epsilon / nu)


def float_errors(calibration: Calibration, given: dict[str, Any]) -> dict[str, float]:
    """By purpose, 4 T r for each instance a unit reaches: r = (2^-48 + 2^-50 sqrt(T + 1)) b sigma /
    q grid units, b the deviation of the largest number that a path adds up, is how far a path may
    be off; narrower noise than 4.5 grid units counts as that. A closing has 32 paths of one
    normal."""
    factorisation, caps = given["mechanism"], given["caps"]
    noises = {c.purpose: (c.sigma / c.quantum, caps.records) for c in calibration.processes}
    if calibration.selection is not None:
        noises[SELECTION] = (calibration.selection.sigma, caps.selections)
    triggers = factorisation.triggers
    furthest = (2.0**-48 + 2.0**-50 * (triggers + 1) ** 0.5) * factorisation.path_deviation_max
    errors = {
        purpose: 4 * triggers * touched * furthest * max(deviation, 4.5)
        for purpose, (deviation, touched) in noises.items()
    }
    if calibration.closing is not None:
        errors[CLOSING] = 4 * 32 * (2.0**-48 + 2.0**-50) / calibration.closing.quantum
    return errors


@dataclass(frozen=True)
class Stub:
    """A factorisation of any shape, to reach corners that no real one has."""

    triggers: int
    sensitivity: float
    variance: Any

    @property
    def path_deviation_max(self) -> float:
        """No path adds up more than it releases."""
        return math.sqrt(max(self.variance))


SETTINGS = [
    options(
        epsilon=epsilon,
        delta=delta,
        caps=caps,
        mechanism=mechanism(*shape),
        processes=processes,
        release=release,
        private_keys=private_keys,
        selection_share=share,
        closing=closing,
    )
    for (epsilon, delta), caps, shape, processes, (
        release,
        private_keys,
        closing,
    ), share in itertools.product(
        [(0.06, 1e-9), (0.5, 1e-24), (6.0, 1e-9), (50.0, 1e-5)],
        [
            ContributionBounds(1, 1, 1),
            ContributionBounds(32, 5, 7),
            ContributionBounds(9, 9, 2, 20),
        ],
        [("tree", 1), ("tree", 128), ("blt", 150)],
        [[COUNT], [DISTINCT], [COUNT, SUM, DISTINCT, SIGNED, VALUES]],
        [
            ("every_trigger", True, False),
            ("every_trigger", True, True),
            ("threshold", True, False),
            ("every_trigger", False, False),
        ],
        [0.3, 0.85],
    )
]


def test_what_is_bought_is_what_was_asked_and_never_more() -> None:
    """Recomputed from the sigmas, the epsilon spent is the epsilon given, from below."""
    for given in SETTINGS:
        calibration = calibrate(**given)
        assert given["epsilon"] * (1 - 1e-6) <= spent(calibration, given) <= given["epsilon"]
        squares = squared_nu(calibration, given["caps"], given["mechanism"], given["release"])
        assert math.sqrt(squares) == pytest.approx(calibration.nu, rel=1e-14)


def test_nu_leaves_room_for_float_error_in_epsilon_and_in_delta() -> None:
    """Float error moves probabilities by a factor e^(epsilon / 1000): the exact profile at the rest
    of epsilon, times that factor, is delta_0, from below."""
    for given in SETTINGS:
        calibration = calibrate(**given)
        with mpmath.workdps(60):
            thousandth = mpmath.mpf(given["epsilon"]) / 1000
            used = exact_delta(given["epsilon"] - thousandth, calibration.nu) * mpmath.exp(
                thousandth
            )
        delta_0 = calibration.delta_gaussian
        assert delta_0 * (1 - 1e-8) <= used <= delta_0 * (1 + 1e-13)
        assert calibration.epsilon_gaussian == pytest.approx(given["epsilon"] * 0.999, rel=1e-15)


def test_less_noise_or_a_larger_failure_costs_more() -> None:
    """The inverse convicts a sigma or a failure that was changed after calibration."""
    given = options(processes=[COUNT, SUM])
    calibration = calibrate(**given)
    selection = calibration.selection
    assert selection is not None
    first, second = calibration.processes
    for broken in (
        replace(calibration, selection=replace(selection, sigma=selection.sigma * 0.99)),
        replace(calibration, selection=replace(selection, failure=selection.failure * 1.01)),
        replace(calibration, processes=(replace(first, sigma=first.sigma * 0.99), second)),
        replace(calibration, processes=(first, replace(second, sigma=second.sigma * 0.99))),
        replace(calibration, processes=(first, replace(second, quantum=2.0**-80))),
    ):
        assert spent(broken, given) > given["epsilon"]
    used_up = replace(calibration, selection=replace(selection, failure=1e-9))
    assert spent(used_up, given) == math.inf


@pytest.mark.parametrize("quantum_bits", [0, 3, 7, 11])
def test_more_float_error_than_was_set_aside_is_charged_as_it_is(quantum_bits: int) -> None:
    """With a finer quantum the epsilon spent solves delta(epsilon - error) e^error = delta_0."""
    given = options(processes=[COUNT, SUM], mechanism=mechanism("blt", 150))
    calibration = calibrate(**given)
    first, second = calibration.processes
    finer = replace(second, quantum=second.quantum * 2.0**-quantum_bits)
    changed = replace(calibration, processes=(first, finer))
    float_error = sum(float_errors(changed, given).values())
    assert (float_error > given["epsilon"] / 1000) == (quantum_bits > 0)
    found = spent(changed, given)
    error = max(float_error, found / 1000)
    with mpmath.workdps(60):
        used = exact_delta(mpmath.mpf(found) - error, calibration.nu) * mpmath.exp(error)
        assert abs(used / calibration.delta_gaussian - 1) < 1e-8
    if quantum_bits == 11:  # the error is not lost beside the noise
        assert found > 1.2 * given["epsilon"]


def test_noise_that_is_as_good_as_none_costs_infinitely_much() -> None:
    """Where e^error is beyond floats the inverse says so instead of failing."""
    given = options(processes=[COUNT, SUM])
    calibration = calibrate(**given)
    first, second = calibration.processes
    for broken in (replace(second, quantum=2.0**-80), replace(second, sigma=1e-9)):
        assert spent(replace(calibration, processes=(first, broken)), given) == math.inf


def test_the_parts_of_delta_add_up() -> None:
    """delta_0, Cs beta and beta_c are delta together, exactly; with public keys delta_0 is all."""
    for given in SETTINGS:
        calibration = calibrate(**given)
        assert calibration.delta_gaussian + calibration.delta_threshold == given["delta"]
        selection = calibration.selection
        if given["private_keys"]:
            assert selection is not None
            failure = given["caps"].selections * selection.failure
            if calibration.closing is not None:
                failure += calibration.closing.failure
                assert calibration.closing.failure == given["delta"] / 4
            assert calibration.delta_threshold == failure
            assert calibration.delta_gaussian == pytest.approx(given["delta"] / 2, rel=1e-15, abs=0)
        else:
            assert selection is None
            assert calibration.delta_gaussian == given["delta"]


@pytest.mark.parametrize("spending", ["even", "late"])
@pytest.mark.parametrize("name", ["tree", "blt"])
@pytest.mark.parametrize("triggers", [1, 2, 100, 1000])
def test_thresholds_fail_with_at_most_the_stated_probability(
    triggers: int, name: str, spending: str
) -> None:
    """From the integers alone: a key of minimum + 1 units passes some trigger with probability at
    most beta by the union bound, and with not much less. The inverse agrees on epsilon."""
    given = options(
        mechanism=mechanism(name, triggers), minimum=2, selection_spending=spending, epsilon=0.5
    )
    calibration = calibrate(**given)
    selection = calibration.selection
    assert selection is not None
    deviations = selection.sigma * np.sqrt(given["mechanism"].variance)
    needs = np.array(selection.thresholds) - selection.minimum - 1.5
    with mpmath.workdps(40):
        failure = mpmath.fsum(mpmath.ncdf(-mpmath.mpf(z)) for z in needs / deviations)
        assert selection.failure / 2 <= failure <= selection.failure
    assert selection.failure == 1e-9 / 16
    assert given["epsilon"] * (1 - 1e-6) <= spent(calibration, given) <= given["epsilon"]


def test_spending_changes_the_thresholds_alone() -> None:
    """The noise and the account are the same; by default spending is even."""
    even, late = (calibrate(**options(selection_spending=how)) for how in ("even", "late"))
    assert even == calibrate(**options())
    assert even.selection is not None
    assert late.selection is not None
    assert late.selection.thresholds != even.selection.thresholds
    same = replace(late.selection, thresholds=even.selection.thresholds)
    assert replace(late, selection=same) == even


def test_the_shares_of_squared_nu_are_kept() -> None:
    """Selection gets its share of nu^2, the charged processes the rest in equal parts."""
    given = options(processes=[COUNT, DISTINCT, SUM], selection_share=0.7)
    calibration = calibrate(**given)
    selection = calibration.selection
    assert selection is not None
    sensitivity = given["mechanism"].sensitivity
    nu_squared = calibration.nu**2
    assert 8 * (sensitivity / selection.sigma) ** 2 == pytest.approx(0.7 * nu_squared)
    count, distinct, seconds = calibration.processes
    assert 64 * (sensitivity / count.sigma) ** 2 == pytest.approx(0.15 * nu_squared)
    assert 64 * (600 * sensitivity / seconds.sigma) ** 2 == pytest.approx(0.15 * nu_squared)
    assert (distinct.purpose, distinct.sigma, distinct.quantum) == (SELECTION, selection.sigma, 1.0)
    assert (count.purpose, seconds.purpose) == ("process/0", "process/2")


def test_distinct_is_free_only_with_private_keys_at_every_trigger() -> None:
    """Under threshold distinct is charged C, with public keys Cs."""
    alone = calibrate(**options(processes=[DISTINCT]))
    assert alone == calibrate(**options(processes=[DISTINCT], selection_share=0.1))
    assert alone.selection is not None
    assert alone.selection.sigma == calibrate(**options(processes=[])).selection.sigma  # type: ignore[union-attr]
    for changes, squares, part in (
        ({"release": "threshold"}, 32, 0.5),
        ({"private_keys": False}, 8, 1.0),
        ({"private_keys": False, "release": "threshold"}, 8, 1.0),
    ):
        given = options(processes=[DISTINCT], **changes)
        calibration = calibrate(**given)
        (distinct,) = calibration.processes
        assert distinct.purpose == "process/0"
        cost = squares * (given["mechanism"].sensitivity / distinct.sigma) ** 2
        assert cost == pytest.approx(part * calibration.nu**2)


def test_no_split_of_records_over_keys_costs_more_than_is_charged() -> None:
    """Of all ways to spread C records, at most c to a key, the squares add up to at most P; with a
    norm, of those within it. Some way reaches it."""

    def splits(left: int, largest: int) -> Any:
        yield ()
        for first in range(1, min(left, largest) + 1):
            for rest in splits(left - first, first):
                yield (first, *rest)

    for records in range(1, 13):
        for per_key in range(1, records + 1):
            costs = [sum(n * n for n in split) for split in splits(records, per_key)]
            implied = ContributionBounds(records, per_key, 1).squared_norm
            assert max(costs) == implied
            assert (implied == records * per_key) == (records % per_key == 0)
            for given in range(1, implied + 3):
                norm = ContributionBounds(records, per_key, 1, given).squared_norm
                assert norm == min(given, implied)
                assert max(cost for cost in costs if cost <= norm) <= norm


def test_the_square_of_the_norm_is_what_values_are_charged() -> None:
    """P s^2 L^2 / sigma^2, whatever C and c are; a norm beyond what they imply changes nothing."""

    def sigmas(caps: ContributionBounds) -> list[float]:
        calibration = calibrate(**options(caps=caps, processes=[COUNT, SUM]))
        assert calibration.selection is not None
        return [calibration.selection.sigma, *(p.sigma for p in calibration.processes)]

    implied = sigmas(ContributionBounds(32, 2, 8))
    assert sigmas(ContributionBounds(32, 2, 8, 64)) == implied
    assert sigmas(ContributionBounds(32, 2, 8, 65)) == implied
    assert sigmas(ContributionBounds(64, 64, 8, 64)) == implied
    selection, *values = sigmas(ContributionBounds(32, 2, 8, 16))
    assert selection == implied[0]
    assert values == pytest.approx([sigma / 2 for sigma in implied[1:]], rel=1e-14)
    assert sigmas(ContributionBounds(5, 3, 3)) == sigmas(ContributionBounds(13, 13, 3, 13))


def test_a_count_of_values_is_charged_as_a_count_of_records() -> None:
    """COUNT(x) adds at most 1 per record; it costs P s^2 / sigma^2 and has a quantum of 1."""
    given = options(processes=[VALUES])
    calibration = calibrate(**given)
    (values,) = calibration.processes
    assert (values.process.column, values.quantum) == (2, 1.0)
    cost = 32 * 2 * (given["mechanism"].sensitivity / values.sigma) ** 2
    assert cost == pytest.approx(calibration.nu**2 / 2)
    (records,) = calibrate(**options()).processes
    assert values.sigma == records.sigma


def test_float_error_stays_within_the_thousandth() -> None:
    """The float error of all noise processes together is at most epsilon / 1000."""
    for given in SETTINGS:
        errors = float_errors(calibrate(**given), given)
        assert sum(errors.values()) <= given["epsilon"] / 1000


@pytest.mark.parametrize("sensitivity", [2.0**-20, 4.0])
def test_noise_is_refused_just_where_its_float_error_exceeds_the_thousandth(
    sensitivity: float,
) -> None:
    """The error grows like T sqrt(T), the largest b and the touched instances; noise of less than
    4.5 grid units (here the smaller sensitivity) counts as 4.5."""

    def error_of(given: dict[str, Any]) -> float:
        sigma = sensitivity * math.sqrt(given["caps"].squared_norm) / nu
        assert (sigma < 4.5) == (sensitivity < 1)
        peak = math.sqrt(max(given["mechanism"].variance))
        relative = 2.0**-48 + 2.0**-50 * math.sqrt(given["mechanism"].triggers + 1)
        path = relative * peak * max(sigma, 4.5)
        return float(4 * given["mechanism"].triggers * given["caps"].records * path)

    def plan(triggers: int, peak: float, records: int) -> dict[str, Any]:
        variance = [1.0, peak, 0.5]
        factorisation = Stub(triggers, sensitivity, variance)
        caps = ContributionBounds(records, 3, 2)
        return options(caps=caps, mechanism=factorisation, private_keys=False)

    nu = calibrate(**plan(1, 1.0, 3)).nu  # depends on the budget alone
    accepted, refused = [], []
    for triggers in (2**k for k in range(10, 30)):
        for peak, records in ((1.0, 3), (100.0, 3), (1.0, 300)):
            given = plan(triggers, peak, records)
            error = error_of(given)
            if error <= given["epsilon"] / 1000:
                calibrate(**given)
                accepted.append(error)
            else:
                with pytest.raises(PlanError, match="'views'"):
                    calibrate(**given)
                refused.append(error)
    # within a factor of 2: a missing sqrt(T) or floor would show
    assert max(accepted) * 2 > 0.006
    assert min(refused) / 2 < 0.006


def test_blt_paths_are_off_by_less_than_is_charged_and_by_more_than_without_the_root() -> None:
    """Rounding errors of a path add up: 2^-50 b is exceeded, 2^-50 sqrt(T) b never is."""
    triggers, paths = 8192, 16
    blt = fit_blt(triggers)
    normals = np.random.default_rng(1).standard_normal((paths, triggers + 1))
    out = np.empty(paths * triggers)
    ends = np.arange(paths + 1)
    state = np.zeros((paths, blt.state_size))
    first = np.zeros(paths, np.int64)
    draws = ends * (triggers + 1)
    blt.walk(normals.reshape(-1), draws, first, state, out, ends * triggers)

    exact = plain_blt.recursion(blt, normals[:, :-1], np.longdouble)
    row = blt.final_row.astype(np.longdouble)
    exact[:, -1] -= normals[:, :-1] @ row[:-1] - row[-1] * normals[:, -1]
    off = float(np.abs(out.reshape(paths, triggers) - exact).max())
    unit = 2.0**-50 * blt.path_deviation_max
    assert unit < off < unit * math.sqrt(triggers)


def test_a_sum_has_the_smallest_power_of_two_that_suffices() -> None:
    """Half the quantum would exceed 2^22 quanta per value, or the allowance for float error."""
    limited_by = set()
    for given in SETTINGS:
        calibration = calibrate(**given)
        errors = float_errors(calibration, given)
        allowance = given["epsilon"] / 1000 / len(errors)
        for calibrated in calibration.processes:
            quantum = calibrated.quantum
            if calibrated.process.kind != "sum":
                assert quantum == 1.0
                continue
            assert math.frexp(quantum)[0] == 0.5
            assert calibrated.process.bound / quantum <= 2**22
            error = errors[calibrated.purpose]
            assert error <= allowance
            by_value = calibrated.process.bound / (quantum / 2) > 2**22
            by_error = error * 2 > allowance
            assert by_value or by_error
            limited_by.add((by_value, by_error))
    assert {(True, False), (False, True)} <= limited_by


def test_a_bound_that_is_a_power_of_two_uses_all_its_bits() -> None:
    """L = 2^k gets q = 2^(k - 22) exactly, not twice that."""
    given = options(
        caps=ContributionBounds(1, 1, 1),
        mechanism=mechanism("tree", 4),
        processes=[Process("x", "sum", 0, -1024.0, 0.0)],
    )
    (calibrated,) = calibrate(**given).processes
    assert calibrated.quantum == 2.0**-12


def test_thresholds_and_noise_move_the_right_way() -> None:
    """More epsilon or delta lowers noise and thresholds; larger caps and T raise them."""

    def scales(**changes: Any) -> list[float]:
        calibration = calibrate(**options(processes=[COUNT, SUM], **changes))
        selection = calibration.selection
        assert selection is not None
        sigmas = [calibrated.sigma for calibrated in calibration.processes]
        return [selection.sigma, float(np.mean(selection.thresholds)), *sigmas]

    base = scales()
    for changes in ({"epsilon": 7.0}, {"delta": 1e-8}):
        assert all(less < more for less, more in zip(scales(**changes), base, strict=True))
    assert scales(mechanism=mechanism("tree", 1000)) > base
    assert scales(caps=ContributionBounds(32, 2, 9))[:2] > base[:2]
    assert scales(caps=ContributionBounds(32, 3, 8))[2:] > base[2:]
    assert scales(caps=ContributionBounds(33, 2, 8))[2:] > base[2:]
    assert scales(minimum=5)[1] == base[1] + 5
    more_to_selection = scales(selection_share=0.7)
    assert more_to_selection[:2] < base[:2]
    assert more_to_selection[2:] > base[2:]


@pytest.mark.parametrize(("epsilon", "mean"), [(1.0, 97.0), (3.0, 35.0), (10.0, 13.0)])
def test_the_shopping_thresholds(epsilon: float, mean: float) -> None:
    """One record per unit, keys only, T = 150, delta 1e-9: the known means before rounding up."""
    calibration = calibrate(
        **options(
            epsilon=epsilon,
            caps=ContributionBounds(1, 1, 1),
            processes=[],
            mechanism=mechanism("blt", 150),
        )
    )
    assert calibration.selection is not None
    rounded_up = float(np.mean(calibration.selection.thresholds))
    assert rounded_up - 0.5 == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": "6"}, "epsilon"),
        ({"epsilon": True}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 9e-25}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"caps": ContributionBounds(0, 1, 1)}, "caps.records "),
        ({"caps": ContributionBounds(2.0, 1, 1)}, "caps.records "),  # type: ignore[arg-type]
        ({"caps": ContributionBounds(2, 0, 1)}, "caps.records_per_key"),
        ({"caps": ContributionBounds(2, 3, 1)}, "caps.records_per_key"),
        ({"caps": ContributionBounds(2, 1, 0)}, "caps.selections"),
        ({"caps": ContributionBounds(2, 1, 3)}, "caps.selections"),
        ({"caps": ContributionBounds(2, 1, True)}, "caps.selections"),
        ({"caps": ContributionBounds(2, 1, 1, -1)}, "caps.squared_norm"),
        ({"caps": ContributionBounds(2, 1, 1, 1.5)}, "caps.squared_norm"),  # type: ignore[arg-type]
        ({"minimum": -1}, "minimum"),
        ({"minimum": 1.5}, "minimum"),
        ({"release": "sometimes"}, "release"),
        ({"selection_spending": "early"}, "selection_spending"),
        ({"selection_share": 0.0}, "selection_share"),
        ({"selection_share": 1.0}, "selection_share"),
        ({"selection_share": math.nan}, "selection_share"),
        ({"processes": [], "private_keys": False}, "processes"),
        ({"processes": [COUNT, Process("views", "distinct")]}, "name"),
        ({"processes": [Process("x", "median", 0)]}, "kind"),  # type: ignore[arg-type]
        ({"processes": [Process("x", "sum")]}, "column"),
        ({"processes": [Process("x", "sum", -1)]}, "column"),
        ({"processes": [Process("x", "count", -1)]}, "column"),
        ({"processes": [Process("x", "count", 1.0)]}, "column"),  # type: ignore[arg-type]
        ({"processes": [Process("x", "count", 0, 0.0, 2.0)]}, "bounds"),
        ({"processes": [Process("x", "distinct", 0)]}, "column"),
        ({"processes": [Process("x", "count", None, 0.0, 2.0)]}, "bounds"),
        ({"processes": [Process("x", "sum", 0, 0.0, math.inf)]}, "bounds"),
        ({"processes": [Process("x", "sum", 0, math.nan, 1.0)]}, "bounds"),
        ({"processes": [Process("x", "sum", 0, 2.0, 1.0)]}, "bounds"),
        ({"processes": [Process("x", "sum", 0, 0.0, 0.0)]}, "bounds"),
        ({"epsilon": 1e-12}, "'selection'"),
        ({"epsilon": 0.1, "caps": ContributionBounds(10**5, 10**5, 1)}, "'views'"),
        ({"processes": [Process("x", "sum", 0, 0.0, 1e308)]}, "'x'"),
    ],
)
def test_what_breaks_the_promise_is_refused(changes: dict[str, Any], named: str) -> None:
    """The refusal is a PlanError that names the option, what was got and what to do."""
    with pytest.raises(PlanError) as refusal:
        calibrate(**options(**changes))
    message = str(refusal.value)
    assert named in message
    assert "; got " in message
    assert message.endswith(".")


def test_shares_are_not_asked_for_when_there_is_nobody_to_share_with() -> None:
    """With public keys, or keys only, the selection share is ignored."""
    calibrate(**options(processes=[], selection_share=1.0))
    calibrate(**options(private_keys=False, selection_share=0.0))
