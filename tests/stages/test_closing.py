"""The closing on its own: what units lay, exactly, and that it is theirs to lay."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpsqlp.accounting.calibrate import calibrate
from dpsqlp.accounting.model import ContributionBounds, Process
from dpsqlp.core import Core
from dpsqlp.mechanisms import Tree
from dpsqlp.plan import Plan
from dpsqlp.stages.admit import Records, admit
from dpsqlp.stages.bound import bound
from dpsqlp.stages.closing import lay
from dpsqlp.tables.table import Table
from dpsqlp.tables.units import UnitTable
from support.plans import SECRET, make_batch, make_closing, make_plan


def admitted(plan: Plan, rows: list[tuple[int, int]]) -> Records:
    """Records of (unit, key), in this order."""
    core = Core(plan, SECRET)
    batch = make_batch([(unit, key, 0, time) for time, (unit, key) in enumerate(rows)])
    return admit(plan, batch, 1, core.units, core.keys, None)


def bounded(plan: Plan, records: Records) -> UnitTable:
    table = UnitTable()
    bound(plan, table, records, np.arange(len(records)), np.zeros(len(records), np.bool_))
    return table


@cache
def calibrated(squared_norm: int, votes: int, processes: int) -> Plan:
    """A real plan: its numbers are those of a query."""
    caps = ContributionBounds(squared_norm, squared_norm, votes, squared_norm)
    mechanism = Tree(4)
    counts = [Process("count", "count"), Process("sum", "sum", 0, -1.0, 2.0)]
    calibration = calibrate(
        epsilon=2.0,
        delta=1e-6,
        caps=caps,
        mechanism=mechanism,
        processes=counts[:processes],
        release="every_trigger",
        closing=True,
    )
    plan = make_plan(4, closing=make_closing(1))
    return replace(plan, caps=caps, mechanism=mechanism, calibration=calibration)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    squared_norm=st.sampled_from([2, 3, 8, 64, 200]),
    votes=st.sampled_from([1, 2, 8]),
    processes=st.integers(0, 2),
    keys=st.lists(st.integers(0, 60), min_size=1, max_size=70),
    out=st.sets(st.integers(0, 60)),
)
def test_a_unit_never_spends_more_than_nu_squared(
    squared_norm: int, votes: int, processes: int, keys: list[int], out: set[int]
) -> None:
    """Votes, rows and weights together, in exact arithmetic, whatever it has and whatever is out.
    No weight is above that of a unit with as many open keys and no other costs.
    """
    assume(processes or votes > 1)  # else the first vote is all of it
    plan = calibrated(squared_norm, min(votes, squared_norm), processes)
    selection, closing = plan.calibration.selection, plan.calibration.closing
    assert selection is not None
    assert closing is not None
    batch = make_batch([(1, key, 0, time, 1.0) for time, key in enumerate(keys)])
    if processes < 2:
        batch = replace(batch, values=())
    core = Core(plan, SECRET)
    records = admit(plan, batch, 1, core.units, core.keys, None)
    table = bounded(plan, records)
    selected = Table()
    selected.insert(records.key[[key in out for key in keys]])
    weights = lay(closing, table, selected)
    unit = table.rows[0]
    sensitivity = Fraction(plan.mechanism.sensitivity)
    spent = int(unit["votes"]) * (sensitivity / Fraction(selection.sigma)) ** 2
    for process in plan.calibration.processes:
        cost = Fraction(process.process.bound) * sensitivity / Fraction(process.sigma)
        spent += int(unit["squares"]) * cost**2
    laid = [Fraction(weight) * Fraction(closing.quantum) for weight in weights.weight.tolist()]
    assert not laid or spent + sum(w**2 for w in laid) <= Fraction(plan.calibration.nu) ** 2
    assert len(laid) <= len(closing.weights_max)
    assert all(weight <= closing.weights_max[len(laid) - 1] for weight in weights.weight.tolist())
    assert (selected.find(weights.key) < 0).all()


def test_weights_are_laid_by_units_alone() -> None:
    """What a table's units lay is the sum of what each of them lays in a table of its own."""
    plan = make_plan(4, squared_norm=30, closing=make_closing(1, vote=1e6, square=2e6, keys=3))
    closing = plan.calibration.closing
    assert closing is not None
    dice = np.random.default_rng(3)
    rows = [(int(unit), int(key)) for unit, key in dice.integers(0, [9, 14], (60, 2))]
    selected = Table()
    selected.insert(admitted(plan, [(0, 3), (0, 5)]).key)
    rows += [(unit, 20 + unit) for unit in range(9)]
    together = lay(closing, bounded(plan, admitted(plan, rows)), selected)
    found: dict[tuple[int, ...], list[int]] = {}
    for unit in range(9):
        own = admitted(plan, [row for row in rows if row[0] == unit])
        weights = lay(closing, bounded(plan, own), selected)
        assert set(weights.units.tolist()) <= {1}
        for key, weight in zip(weights.key.tolist(), weights.weight.tolist(), strict=True):
            found.setdefault(tuple(key), []).append(weight)
    assert len(together) == len(found) > 8
    for key, units, weight in zip(
        together.key.tolist(), together.units.tolist(), together.weight.tolist(), strict=True
    ):
        assert (units, weight) == (len(found[tuple(key)]), sum(found[tuple(key)]))


@pytest.mark.parametrize("keys", [7, 8, 9, 13, 200])
def test_every_open_key_of_a_block_is_found(keys: int) -> None:
    """In lists and hash tables of any size, the first row of the table of keys included."""
    plan = make_plan(4, caps=(300, 300, 300), closing=make_closing(1, keys=300))
    closing = plan.calibration.closing
    assert closing is not None
    records = admitted(plan, [(1, key) for key in range(keys)])
    weights = lay(closing, bounded(plan, records), Table())
    assert sorted(weights.key.tolist()) == sorted(records.key.tolist())
    assert set(weights.weight.tolist()) == {int((1e8 / keys) ** 0.5)}
