"""Thresholds of private key selection.

Implements thr(i) = ceil(mu + 1 + 1/2 + sigma b(i) z(i)) with Pr[N > z(i)] = beta(i) and the sum of
beta(i) over the T triggers at most beta, spent one of two ways:

    even    beta(i) = beta / T
    late    beta(i) = beta / (H (T - i + 1)),  H = 1 + 1/2 + ... + 1/T

`late` lowers the thresholds at the end of a window, where keys have the most units, and raises
those at its start.

Privacy contract: a key with a single unit above the minimum (count = mu + 1) is selected at any of
its T triggers with probability at most beta. It is selected at trigger i only if
mu + 1 + rint(noise) >= thr(i), so only if the noise is at least thr(i) - mu - 1 - 1/2, and the T
probabilities add up (union bound; docs/proof.md, Lemma 13). A later round of the policy `threshold`
begins at step 1 again and has fewer triggers left: a part of the sum, so at most beta too. The
charge is per selection vote: the caller multiplies it by the votes.
Everything rounds up. Before the ceiling, the real-valued threshold is raised by a relative 2^-40
for rounding in this computation, and by 2^-45 sqrt(T) of the largest deviation for rounding in the
noise: a path is off by some 2^-50 sqrt(T) of it, and by several times as much in its far tail.

Not covered: the Gaussian cost of the noisy counts themselves (see `calibrate`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dpsqlp.accounting.model import Spending
from dpsqlp.errors import PlanError

_NUDGE = 1 + 2.0**-40
_PATH_NUDGE = 2.0**-45
_LARGEST = 2.0**53


def thresholds(
    *,
    sigma: float,
    variance: Iterable[float],
    minimum: int,
    failure: float,
    spending: Spending = "even",
) -> tuple[int, ...]:
    """[thr(i)] for i = 1..T; `variance` is b^2(i), `failure` is beta over all triggers."""
    # Imported late: scipy.special would be most of the cost of importing this package.
    from scipy.special import ndtri

    deviations = [sigma * math.sqrt(value) for value in variance]
    quantiles = (-ndtri(_spent(failure, len(deviations), spending))).tolist()
    exact = [
        minimum + 1.5 + deviation * quantile
        for deviation, quantile in zip(deviations, quantiles, strict=True)
    ]
    if not max(exact) <= _LARGEST:
        raise PlanError(
            f"The selection threshold would exceed 2^53; got {max(exact):g} from sigma = {sigma:g}"
            f" and failure = {failure:g}. Raise epsilon or delta, or lower minimum."
        )
    path_error = _PATH_NUDGE * math.sqrt(len(deviations)) * max(deviations)
    return tuple(math.ceil(max(value * _NUDGE, value) + path_error) for value in exact)


def _spent(failure: float, triggers: int, spending: Spending) -> list[float]:
    """[beta(i)] for i = 1..T."""
    if spending == "even":
        return [failure / triggers] * triggers
    left = range(triggers, 0, -1)
    harmonic = math.fsum(1 / n for n in left)
    return [failure / (_NUDGE * harmonic * n) for n in left]  # the sum stays below beta
