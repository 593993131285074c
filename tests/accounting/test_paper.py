"""The published calibration: its formulas, and that it says what it does not promise."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy.stats import norm

from dpsqlp.accounting import ContributionBounds, Process, calibrate, delta_of, paper_calibration
from dpsqlp.accounting.paper import rho_of, zcdp_delta_of
from dpsqlp.errors import PlanError
from dpsqlp.mechanisms import Tree, fit_blt

COUNT = Process("views", "count")


@cache
def tree(triggers: int) -> Tree:
    return Tree(triggers)


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-12])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0])
def test_the_conversion_agrees_with_renyi_accounting(epsilon: float, delta: float) -> None:
    """A rho-zCDP mechanism is (alpha, rho alpha)-RDP for all alpha; its epsilon is the same."""
    rho = rho_of(epsilon, delta)
    assert zcdp_delta_of(epsilon, rho) <= delta
    assert zcdp_delta_of(epsilon, rho) == pytest.approx(delta, rel=1e-9)
    orders = 1 + np.geomspace(1e-2, 1e5, 20_000)
    found, _ = rdp.compute_epsilon(orders, rho * orders, delta)
    assert found == pytest.approx(epsilon, rel=0.001)


def test_the_conversion_minimises_over_alpha() -> None:
    """No alpha of a fine grid is better than the one found."""
    for epsilon, rho in [(0.1, 1e-4), (1.0, 0.02), (6.0, 0.3), (1.0, 5.0), (100.0, 1000.0)]:
        alpha = 1 + np.geomspace(1e-6, 1e5, 50_000)
        exponent = (alpha - 1) * (alpha * rho - epsilon) + alpha * np.log1p(-1 / alpha)
        grid = np.exp(np.min(exponent - np.log(alpha - 1)))
        assert zcdp_delta_of(epsilon, rho) <= grid * (1 + 1e-9)
        assert zcdp_delta_of(epsilon, rho) >= min(grid, 1) * (1 - 1e-5)
    assert zcdp_delta_of(1.0, 0.0) == 0.0


def test_the_conversion_is_valid_for_a_gaussian() -> None:
    """A Gaussian mechanism with nu^2 = 2 rho never has more delta than the conversion says."""
    for epsilon in (0.1, 1.0, 6.0):
        for rho in (1e-4, 1e-2, 0.1, 1.0):
            assert delta_of(epsilon, math.sqrt(2 * rho)) <= zcdp_delta_of(epsilon, rho)


@pytest.mark.parametrize("triggers", [100, 1000])
def test_the_synthetic_experiment(triggers: int) -> None:
    """epsilon 6, delta 1e-9, C = 32, a tree: sigmas and thresholds written out once more."""
    mechanism = tree(triggers)
    calibration = paper_calibration(
        epsilon=6.0, delta=1e-9, records=32, mechanism=mechanism, processes=[COUNT], minimum=3
    )
    depth = math.ceil(math.log2(triggers))
    (count,) = calibration.processes
    selection = calibration.selection
    assert selection is not None
    assert count.purpose == "process/0"
    assert count.quantum == 1.0
    # rho = (C L)^2 depth / (2 sigma^2) at (3, delta / 3) for both: delta_k = 2 delta / 3, halved.
    orders = 1 + np.geomspace(1e-2, 1e5, 20_000)
    for shift, sigma in ((32.0, count.sigma), (math.sqrt(32), selection.sigma)):
        rho = shift**2 * depth / (2 * sigma**2)
        epsilon, _ = rdp.compute_epsilon(orders, rho * orders, 1e-9 / 3)
        assert epsilon == pytest.approx(3.0, rel=0.001)
    beta = 1e-9 / 3 / ((math.exp(3) + 1) * 32)
    deviations = selection.sigma * np.sqrt(mechanism.variance)
    assert selection.thresholds == tuple(
        np.ceil(3 + deviations * norm.isf(beta)).astype(int).tolist()
    )


def test_keys_only_gives_selection_everything() -> None:
    """Without columns selection has all of epsilon and delta."""
    calibration = paper_calibration(
        epsilon=2.0, delta=1e-10, records=1, mechanism=tree(150), processes=[], minimum=50
    )
    selection = calibration.selection
    assert selection is not None
    assert 8 / (2 * selection.sigma**2) == pytest.approx(rho_of(2.0, 0.5e-10))


def test_columns_share_rho_and_distinct_is_charged_c() -> None:
    """Two columns have half the rho each; a distinct column shifts C trees by one."""
    processes = [COUNT, Process("people", "distinct"), Process("x", "sum", 0, -4.0, 1.0)]
    calibration = paper_calibration(
        epsilon=6.0, delta=1e-9, records=32, mechanism=tree(100), processes=processes
    )
    part = rho_of(3.0, 1e-9 / 3) / 3
    for calibrated, shift in zip(calibration.processes, (32, math.sqrt(32), 128), strict=True):
        assert (shift**2 * 7) / (2 * calibrated.sigma**2) == pytest.approx(part)


def test_the_fields_are_honest_about_the_failure_over_all_triggers() -> None:
    """The failure is the union bound of these thresholds, above the delta that was asked for."""
    for mechanism in (tree(1000), fit_blt(1000)):
        calibration = paper_calibration(
            epsilon=6.0, delta=1e-9, records=32, mechanism=mechanism, processes=[COUNT]
        )
        selection = calibration.selection
        assert selection is not None
        margins = np.array(selection.thresholds) - 1.5
        tails = norm.sf(margins / (selection.sigma * np.sqrt(mechanism.variance)))
        assert selection.failure == pytest.approx(float(tails.sum()), rel=1e-9)
        assert calibration.delta_threshold == 32 * selection.failure
        assert calibration.delta_threshold > calibration.delta
        assert calibration.delta_gaussian == pytest.approx(
            delta_of(5.994, calibration.nu) * math.exp(0.006), rel=1e-14, abs=0
        )


def test_the_joint_accounting_needs_less_noise() -> None:
    """With the paper's caps and policy, calibrate adds less noise than the paper to both."""
    given = {"epsilon": 6.0, "delta": 1e-9, "mechanism": tree(100), "processes": [COUNT]}
    paper = paper_calibration(records=32, **given)  # type: ignore[arg-type]
    ours = calibrate(caps=ContributionBounds(32, 32, 32), release="threshold", **given)  # type: ignore[arg-type]
    assert paper.selection is not None
    assert ours.selection is not None
    assert ours.selection.sigma < 0.8 * paper.selection.sigma
    assert ours.processes[0].sigma < 0.8 * paper.processes[0].sigma
    assert np.mean(ours.selection.thresholds) < np.mean(paper.selection.thresholds)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"records": 0}, "caps.records"),
        ({"minimum": -1}, "minimum"),
        ({"processes": [COUNT, COUNT]}, "name"),
        ({"epsilon": 1e-11}, "'selection'"),
    ],
)
def test_the_same_options_are_refused(changes: dict[str, object], named: str) -> None:
    """The paper's calibration refuses what calibrate refuses."""
    given: dict[str, object] = {
        "epsilon": 6.0,
        "delta": 1e-9,
        "records": 32,
        "mechanism": tree(100),
        "processes": [COUNT],
    }
    with pytest.raises(PlanError, match=named):
        paper_calibration(**(given | changes))  # type: ignore[arg-type]
