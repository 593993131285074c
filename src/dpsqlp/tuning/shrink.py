"""A plan for a part of a sample's units, whose outcome is that of the whole in small.

With a fraction f of the units, totals are f times as large. If noise, thresholds and the minimum
are f times as large too, the same groups are selected and errors are f times as large, apart from
the luck of which units are there and from rounding to whole units: so candidates keep their order.
f is a power of two, so that the closing's grid stays one.

Such a plan protects nobody. It only ranks candidates.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dpsqlp.accounting.model import Calibration, Closing, Selection
from dpsqlp.plan import Plan


def shrink(plan: Plan, fraction: float) -> Plan:
    """The plan for a fraction of the units."""
    if fraction == 1:
        return plan
    calibration = plan.calibration
    processes = tuple(
        replace(process, sigma=fraction * process.sigma) for process in calibration.processes
    )
    return replace(plan, calibration=_shrunk(replace(calibration, processes=processes), fraction))


def _shrunk(calibration: Calibration, fraction: float) -> Calibration:
    selection, closing = calibration.selection, calibration.closing
    return replace(
        calibration,
        selection=None if selection is None else _selection(selection, fraction),
        closing=None if closing is None else _closing(closing, fraction),
    )


def _selection(selection: Selection, fraction: float) -> Selection:
    return replace(
        selection,
        minimum=math.floor(fraction * selection.minimum),
        sigma=fraction * selection.sigma,
        thresholds=tuple(math.ceil(fraction * limit) for limit in selection.thresholds),
    )


def _closing(closing: Closing, fraction: float) -> Closing:
    """Weights stay as they are in quanta; noise and threshold shrink."""
    return replace(
        closing,
        quantum=closing.quantum / fraction,
        budget=closing.budget / fraction**2,
        vote_cost=closing.vote_cost / fraction**2,
        square_cost=closing.square_cost / fraction**2,
        threshold=math.ceil(fraction * closing.threshold),
    )
