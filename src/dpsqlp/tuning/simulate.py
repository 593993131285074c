"""A plan over a sample, through the real core in memory: what is released, kept and true.

    error = released - truth = noise + bias,  noise = released - kept,  bias = kept - truth

for every released group, in whole quanta: `kept` is the exact total after bounding, which the
core's tables hold and only a simulation may look at. Simulated releases equal, bit for bit, those
of an engine with the same secret over the same records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import SELECTION
from dpsqlp.core import Core, State
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.secret import Secret
from dpsqlp.plan import Plan
from dpsqlp.stages.advance import ShardRelease
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tuning.sample import Sample

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shown:
    """What is released at one step of every window of the sample. Numbers are (groups, totals), in
    quanta.
    """

    step: int
    group: Ints  # of the sample; -1 for a public key without records
    window: Ints
    key_text: Encoded
    released: Ints
    kept: Ints
    truth: Ints  # of the records up to this step

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plan releases from a sample half way through its windows, and at their ends."""

    plan: Plan
    half: Shown
    end: Shown


def half_way(plan: Plan) -> int:
    """The step of the release in the middle of a window."""
    return (plan.triggers + 1) // 2


def simulate(plan: Plan, sample: Sample, secret: Secret) -> Outcome:
    """Run every trigger of a sample. `plan` has the sample's grid and units."""
    core, state = Core(plan, secret), State()
    parts: dict[int, list[Shown]] = {half_way(plan): [], plan.triggers: []}
    truth = {step: sample.truth(plan, step) for step in parts}
    sampled = set(sample.window.tolist())
    for records in sample.batches(plan):
        steps = {
            window: records.trigger - plan.windows.first(window)
            for window in plan.windows.open(records.trigger)
        }
        steps = {w: step for w, step in steps.items() if step in parts and w in sampled}
        for window in steps:  # the core drops the table when the window closes
            state.keys.setdefault(window, [core.new_key_table(window, 0, 1)])
        tables = {window: state.keys[window][0] for window in steps}
        result = core.compute(state, records)
        for window, step in steps.items():
            shown = _shown(plan, sample, tables[window], result.keys[window, 0], window, step)
            true = np.where((shown.group >= 0)[:, None], truth[step][shown.group], 0)
            parts[step].append(replace(shown, truth=true))
    half, end = half_way(plan), plan.triggers
    return Outcome(plan, _together(plan, half, parts[half]), _together(plan, end, parts[end]))


def _shown(
    plan: Plan, sample: Sample, table: KeyTable, release: ShardRelease, window: int, step: int
) -> Shown:
    """A window's release beside the totals in its table; the truth is still to come."""
    rows = table.released.rows[table.released.in_order()]  # as they were released
    assert len(rows) == len(release.key_text)
    kept = table.totals[rows]
    for span, calibrated in zip(plan.spans, plan.calibration.processes, strict=True):
        if calibrated.purpose == SELECTION:
            kept[:, span.start] = table.rows["count"][rows]
    return Shown(
        step,
        sample.find_groups(window, table.ids(rows)),
        np.full(len(rows), window),
        release.key_text,
        release.values,
        kept,
        kept,
    )


def _together(plan: Plan, step: int, parts: list[Shown]) -> Shown:
    """The releases of all windows."""
    nobody = np.empty(0, np.int64)
    none = np.empty((0, plan.width), np.int64)
    parts = [Shown(step, nobody, nobody, Encoded.from_list(()), none, none, none), *parts]
    return Shown(
        step,
        np.concatenate([part.group for part in parts]),
        np.concatenate([part.window for part in parts]),
        Encoded.concatenate([part.key_text for part in parts]),
        np.concatenate([part.released for part in parts]),
        np.concatenate([part.kept for part in parts]),
        np.concatenate([part.truth for part in parts]),
    )
