"""What must be refused, dropped or survived, with the state unchanged where it is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dpsqlp.accounting.model import ContributionBounds
from dpsqlp.core import Core, State
from dpsqlp.errors import BatchError, PlanError, TriggerError
from dpsqlp.schedule import WindowSchedule
from support.plans import (
    COUNT,
    SECRET,
    make_batch,
    make_closing,
    make_plan,
    readable,
    run,
    snapshot,
    total,
)

GOOD = make_batch([(1, 7, 0, 0), (2, 7, 0, 0)])


def test_an_empty_micro_batch_is_a_trigger_like_any_other() -> None:
    """It runs, counts, and releases what is due."""
    assert run(make_plan(3), [GOOD, make_batch(), make_batch()]) == [[(0, 7, (2,))]] * 3


@pytest.mark.parametrize("trigger", [1, 3, 0, -1, 5])
def test_a_trigger_out_of_turn_is_refused(trigger: int) -> None:
    """After trigger 1 only trigger 2 may run; the state stays as it was."""
    pipeline, state = Core(make_plan(4), SECRET), State()
    pipeline.run(state, GOOD, 1)
    before = snapshot(state)
    with pytest.raises(TriggerError, match="Trigger 2 is next"):
        pipeline.run(state, GOOD, trigger)
    assert snapshot(state) == before


def test_more_triggers_than_paid_for_are_refused() -> None:
    """Trigger T + 1 of a stream without windows does not run."""
    pipeline, state = Core(make_plan(1), SECRET), State()
    assert readable(pipeline.run(state, GOOD, 1)) == [(0, 7, (2,))]
    with pytest.raises(TriggerError, match="pays for triggers 1 to 1"):
        pipeline.run(state, GOOD, 2)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"unit": (pa.array(["x", "y"]),)}, "unit"),
        ({"unit": ()}, "unit"),
        ({"key": (pa.array([1.5, 2.5]),)}, "key"),
        ({"key": (pa.array([1, 2]), pa.array([1, 2]))}, "key"),
        ({"key": (pa.array([[1], [2]]),)}, "list"),
        ({"values": (pa.array([1, 2]),)}, "value columns"),
        ({"period": pa.array([0, 0])}, "period"),
        ({"window": pa.array(["a", "b"])}, "window"),
        ({"window": pa.array([0, 2**63], pa.uint64())}, "window"),
        ({"timestamp": pa.array([0.5, 1.5])}, "timestamp"),
        ({"window": pa.array([0])}, "length"),
        ({"key": (pa.array([1, 2, 3]),)}, "length"),
    ],
)
def test_a_micro_batch_of_another_schema_is_refused(change: dict[str, object], names: str) -> None:
    """The error names the column and the state stays as it was."""
    pipeline, state = Core(make_plan(4), SECRET), State()
    pipeline.run(state, GOOD, 1)
    before = snapshot(state)
    with pytest.raises(BatchError, match=names):
        pipeline.run(state, replace(GOOD, **change), 2)  # type: ignore[arg-type]
    assert snapshot(state) == before
    assert readable(pipeline.run(state, GOOD, 2)) == [(0, 7, (4,))]


def test_a_value_column_must_be_numeric() -> None:
    """Text is not summed."""
    pipeline = Core(make_plan(1, processes=[total(0, 1)]), SECRET)
    with pytest.raises(BatchError, match="numeric"):
        pipeline.run(State(), make_batch([(1, 7, 0, 0, "a")]), 1)


@pytest.mark.parametrize(
    ("value", "added"),
    [
        (None, 0),
        (math.nan, 0),
        (math.inf, 8),
        (-math.inf, -2),
        (7.999, 7),
        (-1.999, -1),
        (1e300, 8),
        (2**63 - 1, 8),
        (-(2**63), -2),
    ],
)
def test_values_are_clamped_and_quantised_towards_zero(value: object, added: int) -> None:
    """NaN and null add nothing; infinities and int64's edge are clamped."""
    plan = make_plan(1, processes=[total(-2, 8)])
    assert run(plan, [make_batch([(1, 7, 0, 0, value)])]) == [[(0, 7, (added,))]]


UNITS = [("text", pa.string(), "x"), ("integer", pa.int64(), 5)]  # a kind, its type, a value


@pytest.mark.parametrize(("kind", "arrow", "unit"), UNITS)
def test_null_units_are_dropped_and_null_keys_are_a_group(
    kind: str, arrow: pa.DataType, unit: object
) -> None:
    """A record without a unit cannot be bounded; a null key is a key."""
    pipeline = Core(replace(make_plan(1), unit_kinds=(kind,)), SECRET)
    batch = make_batch([(0, 7, 0, 0), (1, None, 0, 0)])
    batch = replace(batch, unit=(pa.array([None, unit], arrow),))
    releases = pipeline.run(State(), batch, 1)
    assert releases.key_text.to_arrow().to_pylist() == [b"\0"]
    assert releases.values.tolist() == [[1]]


@pytest.mark.parametrize(("kind", "arrow", "unit"), UNITS)
def test_null_units_hidden_in_a_dictionary_are_dropped_too(
    kind: str, arrow: pa.DataType, unit: object
) -> None:
    """Arrow's null count does not see a null among a dictionary's values."""
    batch, plan = make_batch([(0, 7, 0, 0), (1, 7, 0, 0)]), make_plan(1)
    plan = replace(plan, unit_kinds=(kind,))
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([None, unit], arrow))
    for units in (hidden, pa.chunked_array([hidden])):
        assert run(plan, [replace(batch, unit=(units,))]) == [[(0, 7, (1,))]]


def test_late_and_far_future_records_spend_nothing() -> None:
    """Records outside the open windows are dropped before they use up a unit's cap."""
    plan = make_plan(2, stride=2, caps=(1, 1, 1))
    outside = [(1, 7, window, 0) for window in (-1, 1, 2**62, -(2**63), None)]
    released = run(plan, [make_batch(outside), make_batch([(1, 7, 0, 0)])])
    assert released == [[], [(0, 7, (1,))]]


def test_one_giant_unit_keeps_its_first_records() -> None:
    """Of 100,000 records the C earliest are kept, whatever the order of arrival."""
    dice = np.random.default_rng(3)
    rows = [
        (1, int(k), 0, int(t))
        for k, t in zip(dice.permutation(100_000), dice.permutation(100_000), strict=True)
    ]
    kept = sorted(row[1] for row in sorted(rows, key=lambda row: row[3])[:50])
    [released] = run(make_plan(1, caps=(50, 1, 50)), [make_batch(rows)])
    assert [key for _, key, _ in released] == kept


def test_one_giant_key_counts_every_unit_once() -> None:
    """100,000 units with two records each."""
    rows = [(unit, 7, 0, unit) for unit in range(100_000)] * 2
    assert run(make_plan(1, threshold=100_000), [make_batch(rows)]) == [[(0, 7, (200_000,))]]
    assert run(make_plan(1, threshold=100_001), [make_batch(rows)]) == [[]]


def test_sums_wrap_modulo_two_to_the_64() -> None:
    """Totals past int64 wrap instead of saturating: a homomorphism."""
    pipeline, state = Core(make_plan(2), SECRET), State()
    pipeline.run(state, GOOD, 1)
    state.keys[0][0].totals[0, 0] = 2**63 - 1
    assert readable(pipeline.run(state, make_batch([(3, 7, 0, 0)]), 2)) == [(0, 7, (-(2**63),))]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            {"caps": ContributionBounds(2**20, 2**20, 1, 2**31), "windows": WindowSchedule(4, 4)},
            None,
        ),
        ({"caps": ContributionBounds(2**31, 2**31, 1)}, "32 bits"),
        ({"caps": ContributionBounds(2**20, 2**20, 1)}, "cap"),
        ({"caps": ContributionBounds(1, 0, 1)}, "cap"),
        ({"caps": ContributionBounds(2**32, 1, 1)}, "cap"),
        ({"windows": WindowSchedule(5)}, "triggers"),
        ({"periods": WindowSchedule(4)}, "period"),
        ({"periods": WindowSchedule(2, 3)}, "period"),
        ({"public_keys": ()}, "public"),
        ({"calibration": None}, None),
    ],
)
def test_plans_that_do_not_fit_together_are_refused(
    change: dict[str, object], names: str | None
) -> None:
    """A PlanError names the misfit."""
    plan = make_plan(4)
    if change == {"calibration": None}:
        twice = (COUNT, replace(COUNT, process=replace(COUNT.process, name="other")))
        change = {"calibration": replace(plan.calibration, processes=twice)}
        names = "share their noise"
    if names is None:
        assert replace(plan, **change).fingerprint != plan.fingerprint  # type: ignore[arg-type]
        return
    with pytest.raises(PlanError, match=names):
        replace(plan, **change)  # type: ignore[arg-type]


def test_the_fingerprint_sees_the_last_bit_of_every_number() -> None:
    """Another sigma, threshold, cap, norm, center or quantum is another plan."""
    plan = make_plan(4, processes=[total(0, 1)], closing=make_closing(9))
    calibration = plan.calibration
    assert calibration.selection is not None
    closing = calibration.closing
    assert closing is not None
    [process] = calibration.processes
    changed = [
        replace(plan, query="other"),
        replace(plan, caps=ContributionBounds(100, 100, 99)),
        replace(plan, caps=ContributionBounds(100, 100, 100, 9_999)),
        replace(plan, windows=WindowSchedule(4, 4), periods=WindowSchedule(4, 4)),
        *(
            replace(plan, calibration=replace(calibration, **change))
            for change in (
                {"selection": replace(calibration.selection, sigma=math.nextafter(1e-9, 1))},
                {"selection": replace(calibration.selection, thresholds=(1, 1, 1, 2))},
                {"processes": (replace(process, sigma=math.nextafter(1e-9, 1)),)},
                {"processes": (replace(process, quantum=0.5),)},
                {"processes": (replace(process, process=replace(process.process, center=0.5)),)},
                {"closing": None},
                {"closing": replace(closing, budget=math.nextafter(1e8, 0))},
                {"closing": replace(closing, vote_cost=math.nextafter(0, 1))},
                {"closing": replace(closing, square_cost=math.nextafter(0, 1))},
                {"closing": replace(closing, quantum=0.5)},
                {"closing": replace(closing, weights_max=closing.weights_max[:-1])},
                {"closing": replace(closing, threshold=10)},
            )
        ),
    ]
    alone = replace(plan, calibration=replace(calibration, closing=None))
    changed.append(replace(alone, release="threshold"))
    assert len({plan.fingerprint, *(other.fingerprint for other in changed)}) == len(changed) + 1
