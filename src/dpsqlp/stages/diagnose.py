"""diagnose: noisy numbers of units and rows in each open window, as running totals.

Implements four continual sums for each window, whatever its keys: units seen, units bounded, rows
kept and rows dropped (`DIAGNOSTICS`).

Privacy contract: `bound` has counted a unit once as seen and once as bounded, and of its rows the
first K kept and the first D dropped over the life of its state, each in the window of the record.
Each number has noise of a purpose of its own, indexed by the window's trigger, and is released at
every trigger of every open window, with or without records (docs/proof.md, Lemma 36).

Not covered: records that the bounds never see, because admission drops them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import DIAGNOSTICS
from dpsqlp.entropy.noise import Noise
from dpsqlp.mechanisms.paths import path_ends
from dpsqlp.plan import Plan

_KEY = np.zeros((1, 2), np.uint64)  # the numbers have no key: their purposes tell them apart
_ROUND = np.zeros(1, np.int64)


class Tally:
    """The true numbers of one window, and from where their noise continues."""

    __slots__ = ("at", "paths", "totals")

    def __init__(self, totals: NDArray[np.int64], path_size: int) -> None:
        self.totals = totals
        self.at = 0  # the step that the paths have reached; 0 after a restart
        self.paths = [np.zeros((1, path_size)) for _ in DIAGNOSTICS]


def diagnose(
    plan: Plan,
    noises: Mapping[str, Noise],
    tallies: dict[int, Tally],
    counted: NDArray[np.int64],
    trigger: int,
) -> NDArray[np.int64]:
    """The noisy numbers of each open window, after adding what this trigger has `counted` there."""
    windows = plan.windows.open(trigger)
    values = np.empty((len(windows), len(DIAGNOSTICS)), np.int64)
    for row, window in enumerate(windows):
        tally = tallies.setdefault(window, new_tally(plan, window))
        tally.totals = tally.totals + counted[row]  # modulo 2^64
        step = trigger - plan.windows.first(window)
        values[row] = tally.totals + _noise(plan, noises, tally, window, step)
    return values


def new_tally(plan: Plan, window: int, totals: list[int] | None = None) -> Tally:
    """The tally of a window with these totals, 0 if it opens."""
    numbers = np.zeros(len(DIAGNOSTICS), np.int64) if totals is None else np.array(totals, np.int64)
    return Tally(numbers, plan.noise_of(window).mechanism.state_size)


def _noise(
    plan: Plan, noises: Mapping[str, Noise], tally: Tally, window: int, step: int
) -> NDArray[np.int64]:
    """The noise of a window's numbers at a step, in whole units and rows."""
    mechanism = plan.noise_of(window).mechanism
    diagnostics = plan.noise_of(window).calibration.diagnostics
    assert diagnostics is not None
    start, stop = np.array([tally.at]), np.array([step])
    assert (start < stop).all(), "a number has one value of noise for each trigger"
    noised = np.empty(len(DIAGNOSTICS), np.int64)
    for number, (name, sigma) in enumerate(zip(DIAGNOSTICS, diagnostics.sigmas, strict=True)):
        noise, path = noises[name], tally.paths[number]
        seeds = noise.seeds(_KEY, window, _ROUND)
        [xi] = path_ends(mechanism, noise, seeds, start, stop, path)
        noised[number] = np.rint(xi * sigma)
    tally.at = step
    return noised
