"""Calibration against an independent accountant: privacy loss distributions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from dpsqlp.accounting import Calibration, ContributionBounds, Process, ReleasePolicy, calibrate
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt

pytestmark = pytest.mark.slow

COUNT = Process("views", "count")
SUM = Process("seconds", "sum", 0, -20.0, 600.0)
AVERAGE = Process("seconds", "sum", 0, -20.0, 600.0, 290.0)
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
    (ContributionBounds(32, 5, 6), "blt", 100, [COUNT], "every_trigger", True, 0.5),
    (ContributionBounds(64, 64, 2, 64), "blt", 100, [COUNT], "every_trigger", True, 0.45),
    (ContributionBounds(30, 7, 4, 48), "tree", 63, [COUNT, AVERAGE], "threshold", True, 0.3),
]
INTERVAL = 1e-4
BUDGETS = list(itertools.product((0.3, 1.0, 6.0), (1e-5, 1e-9)))


@cache
def mechanism(name: str, triggers: int) -> Mechanism:
    return Tree(triggers) if name == "tree" else fit_blt(triggers)


def worst_unit(caps: ContributionBounds) -> list[int]:
    """As many records for one key as the bounds allow, then for the next."""
    numbers: list[int] = []
    while True:
        most = min(
            caps.records - sum(numbers),
            caps.records_per_key,
            math.isqrt(caps.squared_norm - sum(n * n for n in numbers)),
        )
        if most == 0:
            return numbers
        numbers.append(most)


def shifts(
    calibration: Calibration,
    caps: ContributionBounds,
    release: ReleasePolicy,
    sensitivity: float,
    numbers: list[int],
    votes: int,
) -> list[tuple[float, int]]:
    """(noise multiplier, how often) of a unit with so many records per key, and votes."""
    selection = calibration.selection
    found = []
    if selection is not None:
        found.append((selection.sigma / sensitivity, votes))
    for calibrated in calibration.processes:
        process = calibrated.process
        if process.kind != "distinct":
            ends = process.lower - process.center, process.upper - process.center
            size = max(abs(end) for end in ends) * sensitivity
            for number, times in Counter(numbers).items():
                found.append((calibrated.sigma / (number * size), times))
        elif selection is None or release == "threshold":  # else released from the selection
            times = votes if selection is None else caps.records
            found.append((calibrated.sigma / sensitivity, times))
    return found


def epsilon_of(calibration: Calibration, multipliers: list[tuple[float, int]]) -> float:
    """Of the Gaussian mechanisms together, at delta_0."""
    composed = pld.identity(value_discretization_interval=INTERVAL)
    for multiplier, times in multipliers:
        one = pld.from_gaussian_mechanism(
            multiplier, value_discretization_interval=INTERVAL, log_mass_truncation_bound=-60
        )
        composed = composed.compose(one.self_compose(times, 1e-16), 1e-16)
    return float(composed.get_epsilon_for_delta(calibration.delta_gaussian))


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
    numbers = worst_unit(caps)
    assert sum(n * n for n in numbers) == caps.squared_norm
    s = factorisation.sensitivity
    found = epsilon_of(calibration, shifts(calibration, caps, release, s, numbers, caps.selections))
    assert found == pytest.approx(calibration.epsilon_gaussian, rel=0.001)


@pytest.mark.parametrize(
    ("numbers", "votes", "open_keys"),
    [([1], 1, 1), ([5], 1, 1), ([1] * 20, 2, 19), ([3, 3, 1, 1], 2, 2), ([1] * 40, 2, 40)],
)
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_a_unit_spends_in_the_closing_what_it_had_left(
    epsilon: float, delta: float, numbers: list[int], votes: int, open_keys: int
) -> None:
    """Its votes, its records and its weights, composed one by one, spend epsilon."""
    caps, factorisation = ContributionBounds(64, 64, 2, 64), mechanism("blt", 100)
    calibration = calibrate(
        epsilon=epsilon,
        delta=delta,
        caps=caps,
        mechanism=factorisation,
        processes=[COUNT, AVERAGE],
        release="every_trigger",
        selection_share=0.45,
        closing=True,
    )
    closing = calibration.closing
    assert closing is not None
    s = factorisation.sensitivity
    multipliers = shifts(calibration, caps, "every_trigger", s, numbers, votes)
    laid = min(open_keys, 32)
    used = 0.45 * votes / 2 + 0.55 * sum(n * n for n in numbers) / 64
    weight = math.floor(math.sqrt(calibration.nu**2 * (1 - used) / laid) / closing.quantum)
    assert weight <= closing.weights_max[laid - 1] + 1
    multipliers.append((1 / (weight * closing.quantum), laid))
    found = epsilon_of(calibration, multipliers)
    assert found == pytest.approx(calibration.epsilon_gaussian, rel=0.001)
