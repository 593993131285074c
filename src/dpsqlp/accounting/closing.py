"""Closing: what a unit has left at the window's last trigger goes to keys that are not out.

Implements the weights and the threshold of the closing selection. `nu` is that of the plan less
the cost of diagnostics, which units may have spent in full. With the noise scales given, a
vote costs v = s^2 / sigma_k^2 and a sum of squared rows per group of 1 costs
d = sum_m L_m^2 s^2 / sigma_m^2. A unit with `votes` votes and a sum of squares n^2 has left

    rho = nu^2 - v votes - d n^2

and lays sqrt(rho / m) on each of its first m <= M open keys. A unit with m open keys has left at
most R(m) = nu^2 - v min(Cs, m) - d m: each of them had a vote, or the votes had run out, and a
kept record. A key is closed in iff more than mu units laid on it and the sum of their weights plus
one standard normal, on a grid of q, reaches

    tau = mu w(1) + max over m of (w(m) + z(beta_c / m)) + q / 2,    w(m) = sqrt(R(m) / m)

with Pr[N > z(b)] = b. Weights are rounded down to the grid, tau up.

Privacy contract: the squared weights of a unit add up to at most rho, so that the unit's whole
cost stays within nu^2 on every history; and keys that only this unit lifts above mu are selected
with probability at most beta_c together (docs/proof.md, Lemmas 30 to 32). Unit state must end with
the window, and keys must be matched exactly.

Not covered: that votes and squares were counted right (see `bound`), and float error in the normal,
which `calibrate` charges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsqlp.accounting.model import CalibratedProcess, Closing, ContributionBounds, Selection

if TYPE_CHECKING:  # importing the mechanisms would load numba
    from dpsqlp.mechanisms.base import Mechanism

KEYS_MAX = 32  # [M]: further open keys of a unit get no weight
CLOSING_QUANTA = tuple(2.0**k for k in range(-20, -3))  # [q]: finer would change hardly any key
_NUDGE = 2.0**-40  # relative: far more than the rounding of these few operations


def closing_costs(
    selection: Selection, processes: Sequence[CalibratedProcess], mechanism: Mechanism
) -> tuple[float, float]:
    """What a vote costs, and what a sum of squared rows per group of 1 costs, rounded up."""
    sensitivity = mechanism.sensitivity
    vote = (sensitivity / selection.sigma) ** 2
    charged = (p for p in processes if p.process.kind != "distinct")
    square = math.fsum((p.process.bound * sensitivity / p.sigma) ** 2 for p in charged)
    return vote * (1 + _NUDGE), square * (1 + _NUDGE)


def calibrate_closing(
    *,
    nu: float,
    costs: tuple[float, float],
    caps: ContributionBounds,
    minimum: int,
    failure: float,
    quantum: float,
) -> Closing | None:
    """The weights and the threshold; None if no unit has as much as a quantum left.

    `failure` is beta_c; `quantum` is q, a power of two; `minimum` is mu.
    """
    # Imported late: scipy.special would be most of the cost of importing this package.
    from scipy.special import ndtri

    vote_cost, square_cost = costs
    budget = nu * nu * (1 - _NUDGE)
    weights = []
    for keys in range(1, KEYS_MAX + 1):
        left = budget - vote_cost * min(caps.selections, keys) - square_cost * keys
        weights.append(math.floor(math.sqrt(max(0.0, left) / keys) / quantum))
    if weights[0] == 0:
        return None
    threshold = max(
        minimum * weights[0] + weight - float(ndtri(failure / keys)) / quantum
        for keys, weight in enumerate(weights, 1)
    )
    return Closing(
        budget=budget,
        vote_cost=vote_cost,
        square_cost=square_cost,
        quantum=quantum,
        weights_max=tuple(weights),
        threshold=math.ceil(threshold * (1 + _NUDGE) + 0.5 + _NUDGE / quantum),
        failure=failure,
    )
