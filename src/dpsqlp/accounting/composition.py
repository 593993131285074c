"""Composition: what several pipelines over the same units spend together.

Implements the sum over instances in the accounting: nu^2 adds up, so do the deltas and the parts of
epsilon that are set aside for float error. The joint epsilon follows from the joint nu at the
summed delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpsqlp.accounting.gdp import epsilon_of
from dpsqlp.accounting.model import Calibration


def compose(calibrations: Sequence[Calibration]) -> tuple[float, float, float]:
    """nu, epsilon and delta of pipelines over the same units."""
    nu = math.sqrt(math.fsum(each.nu**2 for each in calibrations))
    delta = math.fsum(each.delta for each in calibrations)
    failure = math.fsum(each.delta_threshold for each in calibrations)
    float_error = math.fsum(each.epsilon - each.epsilon_gaussian for each in calibrations)
    epsilon = epsilon_of(nu, (delta - failure) * math.exp(-float_error)) + float_error
    return nu, epsilon, delta
