"""Histograms: a value is in one bin, all bins are charged once, and each has noise of its own."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.accounting import Calibration, ContributionBounds, Process, calibrate
from dpsqlp.accounting.model import CalibratedProcess
from dpsqlp.accounting.privacy_loss import charge, epsilon_spent, float_charge, squared_nu
from dpsqlp.errors import PlanError
from dpsqlp.mechanisms import Tree, fit_blt
from support.plans import SILENT, make_batch, make_plan, run
from support.quick import QUICK

EDGES = (0.0, 1.0, 2.0, 5.0, 10.0)
CAPS = ContributionBounds(9, 9, 2, 30)
COUNT = Process("n", "count", 0)
NOBODY = make_batch([(None, 7, 0, 0, 1.0)])


def histogram(
    sigma: float = SILENT, edges: tuple[float, ...] = EDGES, coarse: int = 0
) -> CalibratedProcess:
    process = Process("h", "histogram", 0, edges=edges, coarse=coarse)
    return CalibratedProcess(process, "process/0", sigma, 1.0)


def totals(values: list[Any], coarse: int = 0) -> tuple[int, ...]:
    """The totals of one key whose records have these values."""
    rows = [(unit, 7, 0, 0, value) for unit, value in enumerate(values)]
    [[(_, _, found)]] = run(
        make_plan(1, processes=[histogram(coarse=coarse)], public=[7]), [make_batch(rows)]
    )
    return found


def test_a_value_is_in_one_bin() -> None:
    """On an inner edge it is in the bin above; the last edge is in the last bin."""
    assert totals([0.0, 0.5, 1.0, 1.999, 2.0, 4.0, 5.0, 10.0]) == (2, 2, 2, 2)


def test_outliers_are_in_the_bins_at_the_ends() -> None:
    """However far off a value is, it is counted."""
    assert totals([-0.1, -math.inf, 10.1, 1e300, math.inf]) == (2, 0, 0, 3)


def test_null_is_in_no_bin() -> None:
    """Nor is NaN."""
    assert totals([None, math.nan, 3.0]) == (0, 0, 1, 0)


def test_a_coarse_bin_holds_what_its_bins_hold() -> None:
    """Three bins and the last one by itself."""
    assert totals([0.5, 1.5, 1.5, 3.0, 7.0, None], coarse=3) == (1, 2, 1, 1, 4, 1)


@pytest.mark.parametrize("coarse", [0, 2])
def test_every_bin_has_noise_of_its_own(coarse: int) -> None:
    """No two totals of any key, window or trigger agree."""
    plan = make_plan(
        3, stride=1, processes=[histogram(1e9, coarse=coarse)], public=[7, 8, 9], sigma=1e9
    )
    released = [row for rows in run(plan, [NOBODY] * 4, first=3) for row in rows]
    noise = [value for _, _, values in released for value in values]
    assert len(noise) > 3 * 4 * 3
    assert len(set(noise)) == len(noise)


@settings(max_examples=20 if QUICK else 100, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_unit_moves_all_bins_by_no_more_than_is_charged(data: st.DataObject) -> None:
    """Whatever bins and keys its records are in, at whatever triggers: the squares of all that it
    adds are at most P L^2, and all records in one bin of one key reach that.
    """
    squared_norm, coarse = data.draw(st.integers(1, 30)), data.draw(st.sampled_from([0, 2]))
    process = histogram(coarse=coarse)
    plan = make_plan(
        3, caps=(30, 30, 30), squared_norm=squared_norm, processes=[process], public=[7, 8, 9]
    )
    row = st.tuples(st.sampled_from([7, 8, 9]), st.sampled_from([0.5, 1.5, 3.0, 7.0, 99.0]))
    batches = [
        make_batch([(1, key, 0, n, value) for n, (key, value) in enumerate(rows)])
        if (rows := data.draw(st.lists(row, max_size=20)))
        else NOBODY
        for _ in range(3)
    ]
    moved = sum(value**2 for _, _, values in run(plan, batches)[-1] for value in values)
    charged = charge(process.process, plan.caps, "every_trigger", private_keys=False)
    assert charged == squared_norm
    assert moved <= charged * process.process.bound**2 * (1 + 1e-12)
    together = make_batch([(1, 7, 0, 0, 1.5)] * 30)
    [[(_, _, worst), *_]] = run(plan, [together])
    most = math.isqrt(squared_norm)
    assert sum(value**2 for value in worst) == most**2 * process.process.depth


def calibrated(process: Process, **options: Any) -> Any:
    return calibrate(
        epsilon=1.0,
        delta=1e-8,
        caps=CAPS,
        mechanism=fit_blt(10),
        processes=[process],
        release="every_trigger",
        **options,
    )


def test_all_bins_together_cost_what_a_count_costs() -> None:
    """The noise of each bin is that of COUNT(x), however many bins there are, and so are nu, the
    float error and the closing's cost of a record; with coarse bins it is the root of 2 more.
    """
    count = calibrated(COUNT, closing=True)
    for bins in (2, 64):
        edges = tuple(float(edge) for edge in range(bins + 1))
        flat = calibrated(Process("h", "histogram", 0, edges=edges), closing=True)
        assert flat.processes[0].sigma == count.processes[0].sigma
        assert flat.processes[0].quantum == 1.0
        assert flat.closing == count.closing
        spent = [epsilon_spent(made, CAPS, fit_blt(10), "every_trigger") for made in (flat, count)]
        assert spent[0] == spent[1]
    edges = tuple(float(edge) for edge in range(65))
    coarse = calibrated(Process("h", "histogram", 0, edges=edges, coarse=8), closing=True)
    assert coarse.processes[0].sigma == pytest.approx(math.sqrt(2) * count.processes[0].sigma)
    assert squared_nu(coarse, CAPS, fit_blt(10), "every_trigger") == pytest.approx(coarse.nu**2)
    assert coarse.closing is not None
    assert count.closing is not None
    assert coarse.closing.square_cost == pytest.approx(count.closing.square_cost)


def test_float_error_is_charged_for_the_totals_that_a_unit_touches() -> None:
    """Each record touches one bin, and the coarse bin around it: not all that there are."""
    edges = tuple(float(edge) for edge in range(65))
    tree = Tree(64)

    def error(process: Process) -> float:
        """What is spent at noise so large that rounding is most of it."""
        made = CalibratedProcess(process, "process/0", 1e9 * process.bound, 1.0)
        calibration = Calibration(1.0, 0.1, 1.0, 1.0, 0.1, 0.0, None, (made,))
        return epsilon_spent(calibration, CAPS, tree, "every_trigger")

    one = error(COUNT)
    assert one == pytest.approx(float_charge(1e9, CAPS.records, tree), rel=0.01)
    assert error(Process("h", "histogram", 0, edges=edges)) == one
    two = error(Process("h", "histogram", 0, edges=edges, coarse=8))
    assert two == pytest.approx(2 * math.sqrt(2) * one, rel=0.01)


@pytest.mark.parametrize(
    ("edges", "coarse"),
    [((), 0), ((1.0,), 0), ((1.0, 1.0), 0), ((2.0, 1.0), 0), ((0.0, math.inf), 0), (EDGES, 4)],
)
def test_edges_that_are_no_bins_are_refused(edges: tuple[float, ...], coarse: int) -> None:
    """Fail closed, also where the SQL has not been."""
    with pytest.raises(PlanError):
        calibrated(Process("h", "histogram", 0, edges=edges, coarse=coarse))


def test_edges_of_a_sum_are_refused() -> None:
    with pytest.raises(PlanError, match="edges"):
        calibrated(Process("s", "sum", 0, edges=EDGES))


def test_noise_of_all_bins_is_independent_and_has_the_right_size() -> None:
    """Sample correlations and variances of 20,000 keys, over bins and coarse bins."""
    keys, sigma = (2_000 if QUICK else 20_000), 1000.0
    plan = make_plan(1, processes=[histogram(sigma, coarse=2)], public=range(keys))
    [released] = run(plan, [NOBODY])
    noise = np.array([values for _, _, values in released]) / sigma
    excess = noise.T @ noise / keys - np.eye(noise.shape[1])
    assert noise.shape == (keys, 6)
    assert np.abs(excess).max() < 6 * math.sqrt(2 / keys)
    assert all(a < b for a, b in pairwise(EDGES))
