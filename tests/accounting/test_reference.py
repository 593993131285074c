"""Calibration against an independent accountant: privacy loss distributions."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from dpsqlp.accounting import Calibration, ContributionBounds, Process, ReleasePolicy, calibrate
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt

pytestmark = pytest.mark.slow

COUNT = Process("views", "count")
SUM = Process("seconds", "sum", 0, -20.0, 600.0)
DISTINCT = Process("people", "distinct")

# caps, mechanism, T, processes, release, private keys, share
SHAPES = [
    (ContributionBounds(1, 1, 1), "blt", 150, [], "every_trigger", True, 0.5),
    (ContributionBounds(1, 1, 1), "tree", 1, [COUNT], "every_trigger", True, 0.5),
    (ContributionBounds(32, 32, 32), "tree", 100, [COUNT], "threshold", True, 0.5),
    (ContributionBounds(32, 1, 8), "blt", 100, [COUNT], "every_trigger", True, 0.7),
    (ContributionBounds(32, 2, 6), "tree", 1000, [COUNT, SUM], "every_trigger", True, 0.85),
    (ContributionBounds(12, 3, 4), "blt", 100, [SUM, DISTINCT], "threshold", True, 0.3),
    (ContributionBounds(12, 4, 12), "tree", 63, [COUNT, DISTINCT], "every_trigger", True, 0.5),
    (ContributionBounds(12, 3, 4), "blt", 150, [COUNT, SUM, DISTINCT], "every_trigger", False, 0.5),
    (ContributionBounds(5, 5, 2), "tree", 64, [DISTINCT], "every_trigger", False, 0.5),
]
INTERVAL = 1e-4
BUDGETS = list(itertools.product((0.3, 1.0, 6.0), (1e-5, 1e-9)))


@cache
def mechanism(name: str, triggers: int) -> Mechanism:
    return Tree(triggers) if name == "tree" else fit_blt(triggers)


def shifts(
    calibration: Calibration, caps: ContributionBounds, release: ReleasePolicy, sensitivity: float
) -> list[tuple[float, int]]:
    """(noise multiplier, how often) of a worst unit: c records to each of C / c keys."""
    selection = calibration.selection
    found = []
    if selection is not None:
        found.append((selection.sigma / sensitivity, caps.selections))
    for calibrated in calibration.processes:
        process = calibrated.process
        if process.kind != "distinct":
            size = caps.records_per_key * max(abs(process.lower), abs(process.upper))
            times = caps.records // caps.records_per_key
        elif selection is not None and release == "every_trigger":
            continue  # released from the selection process
        else:
            size, times = 1.0, caps.records if selection is not None else caps.selections
        found.append((calibrated.sigma / (size * sensitivity), times))
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_epsilon_agrees_with_composed_privacy_loss_distributions(
    epsilon: float,
    delta: float,
    shape: tuple[ContributionBounds, str, int, list[Process], ReleasePolicy, bool, float],
) -> None:
    """The worst unit's mechanisms, composed one by one, spend epsilon to within 0.1 %."""
    caps, name, triggers, processes, release, private_keys, share = shape
    factorisation = mechanism(name, triggers)
    calibration = calibrate(
        epsilon=epsilon,
        delta=delta,
        caps=caps,
        mechanism=factorisation,
        processes=processes,
        release=release,
        private_keys=private_keys,
        selection_share=share,
    )
    composed = pld.identity(value_discretization_interval=INTERVAL)
    for multiplier, times in shifts(calibration, caps, release, factorisation.sensitivity):
        one = pld.from_gaussian_mechanism(
            multiplier, value_discretization_interval=INTERVAL, log_mass_truncation_bound=-60
        )
        composed = composed.compose(one.self_compose(times, 1e-16), 1e-16)
    found = composed.get_epsilon_for_delta(calibration.delta_gaussian)
    assert found == pytest.approx(calibration.epsilon_gaussian, rel=0.001)
