"""The columns of the table `released` that hold noise: what the release query computes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.plan import Plan
from dpsqlp.sql.plan import standard_deviations
from dpsqlp.sql.quantiles import quantiles
from dpsqlp.sql.query import Query

Floats = NDArray[np.float64]


class NoisyColumns:
    """p0, p0_sd, p1, ... of a plan's processes, q0, q0_sd, ... of the quantiles of a query."""

    def __init__(self, query: Query, plan: Plan) -> None:
        self._query, self._plan = query, plan
        self._deviations = {
            noise.mechanism.triggers: standard_deviations(noise) for noise in plan.noises
        }

    def of(
        self, totals: NDArray[np.int64], step: NDArray[np.int64], triggers: NDArray[np.int64]
    ) -> dict[str, Any]:
        """The columns of rows with these totals, in quanta, at these steps of windows with so many
        triggers.
        """
        columns: dict[str, Any] = {}
        calibrated, spans = self._plan.calibration.processes, self._plan.spans
        values: list[Floats] = [
            np.multiply(totals[:, span.start : span.stop], each.quantum, dtype=np.float64)
            for each, span in zip(calibrated, spans, strict=True)
        ]
        deviations = np.empty((len(calibrated), len(totals)))
        for length, of_length in self._deviations.items():
            own = triggers == length
            deviations[:, own] = of_length[:, step[own] - 1]
        for number, each in enumerate(calibrated):
            is_list = each.process.kind == "histogram"
            columns[f"p{number}"] = _lists(values[number]) if is_list else values[number][:, 0]
            columns[f"p{number}_sd"] = deviations[number]
        for number, (index, fractions) in enumerate(self._query.quantiles):
            process = calibrated[index].process
            found = quantiles(values[index], process, deviations[index], fractions)
            columns[f"q{number}"], columns[f"q{number}_sd"] = map(_lists, found)
        return columns


def _lists(rows: Floats) -> pa.Array:
    """A list for each row; null for a row of NaN."""
    offsets = pa.array(np.arange(len(rows) + 1) * rows.shape[1], pa.int32())
    missing = pa.array(np.isnan(rows).any(axis=1))
    return pa.ListArray.from_arrays(offsets, pa.array(rows.ravel()), mask=missing)
