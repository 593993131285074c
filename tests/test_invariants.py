"""One short test for each thing that privacy rests on, on streams worked out by hand.

Rows are (unit, key, window, timestamp, *values); noise rounds to nothing where none is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dpsqlp.accounting.model import (
    CLOSING,
    DIAGNOSTICS,
    SELECTION,
    CalibratedProcess,
    Closing,
    Process,
    ReleasePolicy,
)
from dpsqlp.core import Core, State
from dpsqlp.entropy.canonical import encode
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import PlanError, TriggerError
from dpsqlp.mechanisms import Blt
from dpsqlp.plan import Plan
from dpsqlp.schedule import WindowSchedule
from dpsqlp.stages.admit import MicroBatch
from reference.streams import Stream, run_core, run_twin
from reference.twin import Row
from support.plans import (
    COUNT,
    SECRET,
    SILENT,
    make_batch,
    make_closing,
    make_plan,
    readable,
    run,
    total,
    with_thresholds,
)

BOTH = pytest.mark.parametrize("release", ["every_trigger", "threshold"])
EMPTY = make_batch()
EMPTY_PERIODS = make_batch(periods=[])


def process(kind: str, column: int | None = None, sigma: float = SILENT) -> CalibratedProcess:
    return CalibratedProcess(Process(kind, kind, column), "process/0", sigma, 1.0)  # type: ignore[arg-type]


def keys(released: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[int]:
    return [key for _, key, _ in released]


# Bounding one unit.


def test_caps_hold_to_the_record_and_across_triggers() -> None:
    """C = 6 and c = 2: the third record of a key and the seventh of a unit are dropped, though the
    squares that the caps imply, 12, would allow both.
    """
    rows = [(1, key, 0, time) for time, key in enumerate([7, 7, 7, 8, 9, 10, 11, 12])]
    kept = [(0, 7, (2,)), *((0, key, (1,)) for key in range(8, 12))]
    plan = make_plan(8, caps=(6, 2, 6))
    assert run(plan, [make_batch(rows)]) == [kept]
    assert run(plan, [make_batch([row]) for row in rows])[-1] == kept


def test_caps_hold_across_windows() -> None:
    """C = 2: the third window of one unit gets nothing."""
    plan = make_plan(3, stride=1, caps=(2, 1, 2))
    assert run(plan, [make_batch([(1, 7, n, 0)]) for n in range(3)])[-1] == [
        (0, 7, (1,)),
        (1, 7, (1,)),
    ]


def test_a_unit_has_one_state_however_many_shards() -> None:
    """C = 5 of forty keys are kept with seven shards too."""
    batch = make_batch([(1, key, 0, key) for key in range(40)])
    plan = make_plan(1, caps=(5, 5, 5))
    assert keys(run(plan, [batch], shards=7)[0]) == [0, 1, 2, 3, 4]


@BOTH
def test_votes_are_capped(release: ReleasePolicy) -> None:
    """Cs = 2: the third key, in the same trigger or a later one, gets the records but no vote."""
    rows = [(1, 7, 0, 0), (1, 8, 0, 1), (1, 9, 0, 2)]
    plan = make_plan(3, caps=(9, 9, 2), release=release)
    assert keys(run(plan, [make_batch(rows)])[0]) == [7, 8]
    assert 9 not in keys(run(plan, [make_batch([row]) for row in rows])[2])


def test_a_key_that_was_selected_takes_no_votes() -> None:
    """Cs = 1, two are needed. Unit 2 meets key 7 when it is out and keeps its vote for key 8. What
    is selected in the same trigger, or in another window, is not out: there a vote is spent.
    """
    plan = make_plan(4, stride=2, threshold=2, caps=(9, 9, 1))
    first = make_batch([(0, 7, 0, 0), (1, 7, 0, 0)])
    spared = make_batch([(2, 7, 0, 0), (2, 8, 0, 1), (3, 8, 0, 1)])
    assert keys(run(plan, [first, spared])[1]) == [7, 8]
    together = make_batch([(0, 7, 0, 0), (1, 7, 0, 0), (2, 7, 0, 0), (2, 8, 0, 1), (3, 8, 0, 1)])
    assert keys(run(plan, [together])[0]) == [7]
    elsewhere = make_batch([(2, 7, 1, 0), (2, 8, 1, 1), (3, 8, 1, 1)])
    assert keys(run(plan, [first, make_batch(), elsewhere])[2]) == [7]


def test_what_decides_about_votes_has_been_released() -> None:
    """A key that is not out takes every unit's vote, however near its threshold it is: who else
    is there must not show in what a unit's votes do elsewhere.
    """
    plan = make_plan(2, threshold=3, caps=(9, 9, 1))
    near = make_batch([(0, 7, 0, 0), (1, 7, 0, 0)])
    later = make_batch([(2, 7, 0, 0), (2, 8, 0, 1), (3, 8, 0, 1), (4, 8, 0, 1)])
    assert keys(run(plan, [near, later])[1]) == [7]


def test_votes_that_are_a_value_are_cast_for_selected_keys_too() -> None:
    """COUNT(DISTINCT unit) goes on after selection."""
    selection = make_plan(1).calibration.selection
    assert selection is not None
    counted = CalibratedProcess(Process("n", "distinct"), SELECTION, selection.sigma, 1.0)
    plan = make_plan(2, processes=[counted])
    batches = [make_batch([(unit, 7, 0, 0)]) for unit in (1, 2)]
    assert run(plan, batches) == [[(0, 7, (1,))], [(0, 7, (2,))]]


@BOTH
def test_a_unit_counts_once_in_a_round(release: ReleasePolicy) -> None:
    """Two are needed; one unit with two records in each of three triggers is not two."""
    batch = make_batch([(1, 7, 0, 0), (1, 7, 0, 1)])
    assert run(make_plan(3, threshold=2, release=release), [batch] * 3) == [[], [], []]


def test_a_unit_counts_again_in_the_next_round() -> None:
    """A vote at the trigger of the release belongs to the round that it ended."""
    batch = make_batch([(1, 7, 0, 0)])
    released = run(make_plan(2, release="threshold"), [batch] * 2)
    assert released == [[(0, 7, (1,))], [(0, 7, (2,))]]


@pytest.mark.parametrize("needed", [2, 3])
def test_votes_with_another_history_are_counted_apart(needed: int) -> None:
    """At trigger 2 unit 1 has counted and unit 2 has not: two units, not one and not three."""
    batches = [make_batch([(1, 7, 0, 0)]), make_batch([(1, 7, 0, 0), (2, 7, 0, 0)])]
    plan = make_plan(2, threshold=needed, release="threshold")
    assert run(plan, batches) == [[], [(0, 7, (3,))] if needed == 2 else []]


def test_a_public_distinct_count_is_capped_by_votes() -> None:
    """Its sensitivity is Cs: with Cs = 1 a unit is counted for one key."""
    plan = make_plan(1, caps=(9, 9, 1), processes=[process("distinct")], public=[7, 8])
    batch = make_batch([(1, 7, 0, 0), (1, 8, 0, 1), (1, 7, 0, 2)])
    assert run(plan, [batch]) == [[(0, 7, (1,)), (0, 8, (0,))]]


def test_a_distinct_count_adds_a_unit_once_over_all_rounds() -> None:
    """Its sensitivity is one per (key, window), whatever the number of votes."""
    plan = make_plan(3, release="threshold", processes=[process("distinct")])
    batch = make_batch([(1, 7, 0, 0), (1, 7, 0, 0)])
    assert run(plan, [batch] * 3) == [[(0, 7, (1,))]] * 3


def test_a_unit_is_remembered_until_the_last_trigger_of_its_period() -> None:
    """C = 1, period 0 is open at triggers 1 to 3: one record in all three."""
    plan = make_plan(4, caps=(1, 1, 1), periods=WindowSchedule(3, 3))
    batch = make_batch([(1, 7, 0, 0)], periods=[0])
    assert run(plan, [batch] * 4) == [[(0, 7, (1,))]] * 4


def test_records_that_tie_are_kept_by_their_contents() -> None:
    """Of equal timestamps C = 1 keeps the smaller key, then the smaller value, null first."""
    plan = make_plan(1, caps=(1, 1, 1), processes=[total(-8, 8)])
    for rows, kept in (
        ([(1, 8, 0, 0, 1.0), (1, 7, 0, 0, 2.0)], (0, 7, (2,))),
        ([(1, 7, 0, 0, 2.0), (1, 7, 0, 0, -1.0)], (0, 7, (-1,))),
        ([(1, 7, 0, 0, -1.0), (1, 7, 0, 0, None)], (0, 7, (0,))),
    ):
        assert run(plan, [make_batch(rows)]) == run(plan, [make_batch(rows[::-1])]) == [[kept]]


def test_a_count_and_a_vote_fit_the_unit_state_to_the_bit() -> None:
    """Three bits for T = 4 leave 29 for c; at 30 the count would spill into the vote."""
    assert make_plan(4, caps=(2**29 - 1, 2**29 - 1, 1), squared_norm=2**32 - 1)
    with pytest.raises(PlanError, match="32 bits"):
        make_plan(4, caps=(2**29, 2**29, 1), squared_norm=2**32 - 1)


def test_a_squared_norm_fits_the_unit_state_to_the_bit() -> None:
    """It has 32 bits."""
    with pytest.raises(PlanError, match=r"below 2\^32"):
        make_plan(4, caps=(2**29 - 1, 2**29 - 1, 1), squared_norm=2**32)


# One norm per unit.


def test_a_record_that_repeats_costs_more() -> None:
    """P = 9 is nine keys with a record each, or one key with three: 1 + 3 + 5. Of P = 8 the third
    would take what is not there.
    """
    plan = make_plan(5, squared_norm=9)
    rows = [(1, 7, 0, time) for time in range(5)]
    assert keys(run(plan, [make_batch([(1, key, 0, key) for key in range(12)])])[0]) == [*range(9)]
    assert run(plan, [make_batch(rows)]) == [[(0, 7, (3,))]]
    assert run(plan, [make_batch([row]) for row in rows])[-1] == [(0, 7, (3,))]
    assert run(make_plan(5, squared_norm=8), [make_batch(rows)]) == [[(0, 7, (2,))]]


def test_a_norm_holds_to_the_record_and_across_triggers() -> None:
    """P = 7: two records of key 7 cost 4, and the third would be 5 more; the second of key 8 would
    be one too much. What is dropped uses up nothing: keys 9 and 10 are what is left, not key 11.
    """
    rows = [(1, key, 0, time) for time, key in enumerate([7, 7, 7, 8, 8, 9, 10, 11])]
    kept = [(0, 7, (2,)), (0, 8, (1,)), (0, 9, (1,)), (0, 10, (1,))]
    plan = make_plan(8, squared_norm=7)
    assert run(plan, [make_batch(rows)]) == [kept]
    assert run(plan, [make_batch([row]) for row in rows])[-1] == kept


def test_a_norm_holds_across_windows() -> None:
    """P = 2: a key of two windows is two keys, and the third window gets nothing."""
    plan = make_plan(3, stride=1, squared_norm=2)
    assert run(plan, [make_batch([(1, 7, n, 0)]) for n in range(3)])[-1] == [
        (0, 7, (1,)),
        (1, 7, (1,)),
    ]


def test_norms_and_caps_hold_together() -> None:
    """P = 6, C = 4 and c = 1: two keys more would be within the norm."""
    plan = make_plan(1, caps=(4, 1, 4), squared_norm=6)
    rows = [(1, key, 0, key) for key in (1, 1, 2, 3, 4, 5)]
    assert keys(run(plan, [make_batch(rows)])[0]) == [1, 2, 3, 4]


def test_a_text_cannot_look_like_two() -> None:
    """Zero bytes and tags inside a text are told from where the next scalar begins."""
    left, right = pa.array(["a\0\x06b", "a"]), pa.array(["", "b\0\x06"])
    first, second = encode([left, right], 2).to_arrow().to_pylist()
    assert first != second


# What a record may be.


@pytest.mark.parametrize(("value", "added"), [(9.0, 8), (-3.0, -2)])
def test_a_value_just_past_its_bound_is_clamped(value: float, added: int) -> None:
    """Either bound holds by itself."""
    plan = make_plan(1, processes=[total(-2, 8)])
    assert run(plan, [make_batch([(1, 7, 0, 0, value)])]) == [[(0, 7, (added,))]]


@pytest.mark.parametrize("kind", ["sum", "squares"])
def test_null_is_absent_from_a_centred_sum(kind: str) -> None:
    """It is not a zero, which would be the center's distance from the middle."""
    amount = CalibratedProcess(Process(kind, kind, 0, 0.0, 8.0, 4.0), "process/0", SILENT, 1.0)  # type: ignore[arg-type]
    plan = make_plan(1, processes=[amount])
    absent = [(1, 7, 0, 0, None), (1, 7, 0, 1, math.nan)]
    assert run(plan, [make_batch(absent)]) == [[(0, 7, (0,))]]
    added = 8 - 4 if kind == "sum" else (8 - 4) ** 2 - 8
    assert run(plan, [make_batch([*absent, (1, 7, 0, 2, 9.0)])]) == [[(0, 7, (added,))]]


def test_a_count_of_values_leaves_out_nan_and_null() -> None:
    """COUNT(x) counts what is there, infinities included."""
    plan = make_plan(1, processes=[process("count", 0)])
    values = [math.nan, None, math.inf, 0.0]
    batch = make_batch([(1, 7, 0, n, value) for n, value in enumerate(values)])
    assert run(plan, [batch]) == [[(0, 7, (2,))]]


def test_one_record_from_the_future_closes_nobodys_window() -> None:
    """Windows follow the clock, not the largest window seen."""
    plan = make_plan(2, stride=2)
    batch = make_batch([(1, 7, 0, 0), (2, 7, 50, 0)])
    assert run(plan, [batch, EMPTY]) == [[(0, 7, (1,))]] * 2


def test_a_key_that_is_not_public_uses_up_nothing() -> None:
    """C = 1 is left for the public key that comes after."""
    plan = make_plan(1, caps=(1, 1, 1), public=[7])
    assert run(plan, [make_batch([(1, 8, 0, 0), (1, 7, 0, 1)])]) == [[(0, 7, (1,))]]


# Which keys are released, and when.


def test_public_keys_are_released_at_every_trigger_of_every_window() -> None:
    """With or without records, in this window or in any."""
    plan = make_plan(2, stride=1, public=[7, 8])
    batches = [EMPTY, make_batch([(1, 8, 1, 0)]), EMPTY]
    seen = [
        [(window, key) for window, key, _ in released] for released in run(plan, batches, first=1)
    ]
    assert seen == [[(w, key) for w in (n - 1, n) for key in (7, 8)] for n in range(3)]


def test_a_window_has_the_triggers_that_were_paid_for() -> None:
    """T = 2 releases of each window, indexes 1 and 2, and none later."""
    plan = make_plan(2, stride=3, public=[7])
    pipeline, state = Core(plan, SECRET), State()
    seen: list[tuple[int, int]] = []
    for trigger in range(1, 7):
        released = pipeline.run(state, EMPTY, trigger)
        seen += zip(released.window.tolist(), released.step.tolist(), strict=True)
    assert seen == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_key_needs_more_units_than_the_minimum() -> None:
    """With a minimum of 1 a single unit is not eligible, whatever the threshold."""
    batches = [make_batch([(unit, 7, 0, 0)]) for unit in (1, 2)]
    assert run(make_plan(2, minimum=1), batches) == [[], [(0, 7, (2,))]]


def test_a_key_needs_the_whole_threshold() -> None:
    """One unit less is not enough, one after another or at once."""
    one, two, three = (make_batch([(unit, 7, 0, 0)]) for unit in (1, 2, 3))
    both = make_batch([(1, 7, 0, 0), (2, 7, 0, 0)])
    assert run(make_plan(3, threshold=3), [one, two, three]) == [[], [], [(0, 7, (3,))]]
    assert run(make_plan(3, threshold=3), [both, three]) == [[], [(0, 7, (3,))]]


def test_a_key_is_released_when_it_is_due_without_records() -> None:
    """One unit passes at trigger 2 only, when nothing arrives."""
    plan = with_thresholds(make_plan(3), 9, 1, 9)
    batches = [make_batch([(1, 7, 0, 0)]), EMPTY, EMPTY]
    assert run(plan, batches) == [[], [(0, 7, (1,))], [(0, 7, (1,))]]


@pytest.mark.parametrize(
    ("others", "trigger", "due"),
    [
        (10, 2, 5),
        (11, 2, 3),
        (15, 2, 3),
        (16, 2, 3),
        (28, 2, 3),
        (29, 2, 2),
        (29, 3, 3),
        (11, 4, 5),
        (40, 4, 5),
    ],
)
def test_a_due_key_comes_out_earlier_when_many_others_join(
    others: int, trigger: int, due: int
) -> None:
    """One unit is due at trigger 5; thirty pass at trigger 2, and twelve at trigger 3. What the
    path has told about a few units more is not taken for what it would tell about many.
    """
    plan = with_thresholds(make_plan(5), 99, 30, 12, 99, 1)
    batches = [make_batch([(1, 7, 0, 0)]), EMPTY, EMPTY, EMPTY, EMPTY]
    batches[trigger - 1] = make_batch([(2 + unit, 7, 0, 0) for unit in range(others)])
    assert [bool(rows) for rows in run(plan, batches)] == [step >= due for step in range(1, 6)]


def test_triggers_without_records_count() -> None:
    """One unit passes at trigger 3 of the grid, whenever its record came."""
    plan = with_thresholds(make_plan(3), 9, 9, 1)
    one = make_batch([(1, 7, 0, 0)])
    assert run(plan, [one, EMPTY, EMPTY]) == [[], [], [(0, 7, (1,))]]
    assert run(plan, [EMPTY, EMPTY, one]) == [[], [], [(0, 7, (1,))]]


def test_no_trigger_runs_twice() -> None:
    """Where nothing was released yet, too."""
    pipeline, state = Core(make_plan(3, threshold=9), SECRET), State()
    pipeline.run(state, make_batch([(1, 7, 0, 0)]), 1)
    with pytest.raises(TriggerError, match="Trigger 2 is next"):
        pipeline.run(state, EMPTY, 1)


def test_a_key_that_could_not_pass_alone_passes_when_others_join() -> None:
    """The best trigger ahead decides whether a key is looked at again, up to equality."""
    plan = with_thresholds(make_plan(3), 9, 2, 9)
    batches = [make_batch([(1, 7, 0, 0)]), make_batch([(2, 7, 0, 0)]), EMPTY]
    assert run(plan, batches) == [[], [(0, 7, (2,))], [(0, 7, (2,))]]


def test_a_later_round_begins_at_index_one_with_nothing_counted() -> None:
    """Five units end round 1 at trigger 3; at trigger 4 one unit meets the first threshold."""
    five = make_batch([(unit, 7, 0, 0) for unit in range(1, 6)])
    one = make_batch([(1, 7, 0, 0)])
    plan = with_thresholds(make_plan(5, release="threshold"), 1, 5, 5, 5, 5)
    assert run(plan, [EMPTY, one, five, one, EMPTY]) == [[], [], [(0, 7, (6,))], [(0, 7, (7,))], []]
    plan = with_thresholds(make_plan(5, release="threshold"), 5, 5, 5, 1, 1)
    assert run(plan, [five, one, EMPTY]) == [[(0, 7, (5,))], [], []]
    plan = with_thresholds(make_plan(5, release="threshold"), 5, 1, 9, 9, 9)
    assert run(plan, [five, EMPTY, EMPTY]) == [[(0, 7, (5,))], [], []]


# The closing. No trigger selects, unless a threshold is given; weights are thousands.


def closing_plan(triggers: int = 1, threshold: float = 9000, **more: Any) -> Plan:
    """A plan whose closing selects what one unit has laid all of its budget on: 10,000. Weights are
    not capped: what is left alone decides about them.
    """
    names = {"vote", "square", "keys"} & set(more)
    closing = make_closing(threshold, **{name: more.pop(name) for name in names})
    closing = replace(closing, weights_max=(1_000_000,) * len(closing.weights_max))
    options: dict[str, Any] = {"threshold": 99, "closing": closing} | more
    return make_plan(triggers, **options)


def closed(plan: Plan, *batches: Sequence[tuple[Any, ...]]) -> list[int]:
    """The keys of the last of these triggers; rows are (unit, key, window)."""
    made = [
        make_batch(
            [(*row, time) for time, row in enumerate(rows)],
            periods=None if plan.periods is None else [row[2] for row in rows],
        )
        for rows in batches
    ]
    return keys(run(plan, made)[-1])


def test_a_closing_is_at_the_last_trigger_with_or_without_records() -> None:
    """Whenever the record came."""
    plan, one = closing_plan(3), make_batch([(1, 7, 0, 0)])
    for place in range(3):
        batches = [one if n == place else EMPTY for n in range(3)]
        assert run(plan, batches) == [[], [], [(0, 7, (1,))]]


def test_a_closing_is_at_the_last_trigger_of_each_window() -> None:
    """Of windows that overlap in time too, and if the pipeline begins at that trigger."""
    plan = closing_plan(3, stride=2)
    one, two = (make_batch([(1, 7, n, 0)], periods=[n]) for n in (0, 1))
    released = run(plan, [one, EMPTY_PERIODS, two, EMPTY_PERIODS, EMPTY_PERIODS])
    assert released == [[], [], [(0, 7, (1,))], [], [(1, 7, (1,))]]
    assert run(plan, [one], first=3) == [[(0, 7, (1,))]]


def test_a_key_that_is_out_is_not_closed_in() -> None:
    """It is released once, and its units lay on others: one with keys 7 and 8 all on key 8, if key
    7 was selected before, or at the last trigger itself.
    """
    for selecting in ((2, 99), (99, 2)):
        plan = with_thresholds(closing_plan(2), *selecting)
        assert closed(plan, [(1, 7, 0), (2, 7, 0), (1, 8, 0)], []) == [7, 8]
    assert closed(closing_plan(2), [(1, 7, 0), (2, 7, 0), (1, 8, 0)], []) == [7]


def test_a_closed_key_has_its_total_and_its_count_of_units() -> None:
    """What COUNT(DISTINCT unit) releases is what was voted."""
    selection = make_plan(1).calibration.selection
    assert selection is not None
    counted = CalibratedProcess(Process("n", "distinct"), SELECTION, selection.sigma, 1.0)
    plan = closing_plan(2, processes=[counted, COUNT])
    one, two = make_batch([(1, 7, 0, 0)]), make_batch([(1, 7, 0, 0), (2, 7, 0, 0)])
    assert run(plan, [one, two]) == [[], [(0, 7, (2, 3))]]


def test_what_is_left_is_shared_over_the_open_keys() -> None:
    """Two keys get 10,000 / sqrt(2) each: half of the squares."""
    both = [(1, 7, 0), (1, 8, 0)]
    assert closed(closing_plan(threshold=7100), both) == []
    assert closed(closing_plan(threshold=7040), both) == [7, 8]


def test_weights_go_where_nobody_else_is() -> None:
    """A unit with keys 7 and 8 gives half of its squares to key 8, which it alone has."""
    rows = [(1, 7, 0), (1, 8, 0), (2, 7, 0)]
    assert closed(closing_plan(threshold=18_000), rows) == []
    assert closed(closing_plan(threshold=17_000), rows) == [7]
    assert closed(closing_plan(threshold=7000), rows) == [7, 8]


@pytest.mark.parametrize(("rows", "squares"), [([7], 1), ([7, 7], 4), ([7, 8], 2)])
def test_kept_records_are_spent(rows: list[int], squares: int) -> None:
    """Squared per key, and a fifth of the budget each."""
    left = 1e8 * (1 - squares / 5) / len(set(rows))
    for threshold, found in ((left**0.5 + 50, []), (left**0.5 - 50, sorted(set(rows)))):
        plan = closing_plan(threshold=threshold, square=2e7)
        assert closed(plan, [(1, key, 0) for key in rows]) == found


def test_votes_are_spent_whether_they_selected_a_key_or_not() -> None:
    """A third of the budget each: for key 7, which is out, and for key 8, which is not. The record
    of key 9 came when no vote was left.
    """
    rows = [(1, 7, 0), (2, 7, 0), (1, 8, 0), (1, 9, 0)]
    for threshold, found in ((4200, [7]), (4000, [7, 8, 9])):
        plan = closing_plan(threshold=threshold, vote=1e8 / 3, caps=(9, 9, 2))
        assert closed(with_thresholds(plan, 2), rows) == found


def test_a_vote_that_was_spared_is_not_spent() -> None:
    """Key 7 is out when unit 2 meets it."""
    for threshold, found in ((7150, [7]), (6950, [7, 8])):
        plan = closing_plan(2, threshold, vote=5e7)
        batches = [[(0, 7, 0), (1, 7, 0)], [(2, 7, 0), (2, 8, 0)]]
        assert closed(with_thresholds(plan, 2, 99), *batches) == found


def test_a_unit_with_nothing_left_lays_nothing() -> None:
    """Nor does it count as a unit: of two a key needs both."""
    plan = closing_plan(threshold=100, square=5e7, minimum=1)
    spent = [(1, 7, 0), (1, 8, 0)]
    assert closed(plan, [*spent, (2, 7, 0)]) == []
    assert closed(plan, [(1, 7, 0), (2, 7, 0)]) == [7]


def test_a_weight_is_at_most_what_a_unit_with_as_many_open_keys_can_have_left() -> None:
    """The plan says how much; a threshold counts on it."""
    plan = closing_plan()
    closing = plan.calibration.closing
    assert closing is not None
    for weight, found in ((8900, []), (9100, [7])):
        capped = replace(closing, weights_max=(weight, 1, 1))
        changed = replace(plan, calibration=replace(plan.calibration, closing=capped))
        assert closed(changed, [(1, 7, 0)]) == found


def test_a_unit_lays_on_as_many_keys_as_the_plan_says() -> None:
    """M = 3 of 20: the weights are those of three keys, and the keys do not follow the data."""
    plan = closing_plan(threshold=5700, keys=3)
    rows = [(1, key, 0) for key in range(20)]
    found = closed(plan, rows)
    assert len(found) == 3
    assert closed(plan, rows[::-1]) == found
    assert closed(plan, [(unit, key, 0) for unit in range(9) for key in range(20)]) == found


def test_a_closing_needs_more_units_than_the_minimum() -> None:
    """However much weight there is: unit 1 lays 7,071 on each of its keys."""
    plan = closing_plan(threshold=5000, minimum=1)
    assert closed(plan, [(1, 7, 0), (1, 8, 0), (2, 8, 0)]) == [8]


def test_a_closing_sees_its_window_alone() -> None:
    """What a unit did in another window is spent there, and the keys there are other keys."""
    plan = closing_plan(3, stride=2, square=2e7, threshold=8900)
    rows = [(1, 7, 0), *[(1, key, 1) for key in (7, 8, 9)], (2, 8, 1)]
    assert closed(plan, [], [], rows) == [7]


def test_a_record_of_another_period_is_dropped_where_there_is_a_closing() -> None:
    """The unit's state would end before, or live longer."""
    plan = closing_plan(3, stride=2)
    batch = make_batch([(1, 7, 0, 0), (1, 8, 1, 0), (1, 9, 0, 0)], periods=[1, 0, 0])
    released = run(plan, [EMPTY_PERIODS, EMPTY_PERIODS, batch, EMPTY_PERIODS, EMPTY_PERIODS])
    assert [keys(rows) for rows in released] == [[], [], [9], [], []]


@pytest.mark.parametrize(
    "change",
    [
        {"periods": None},  # units that are never forgotten
        {"periods": WindowSchedule(4, 2)},  # or a trigger later
        {"periods": WindowSchedule(3, 3)},  # or other periods
        {"release": "threshold"},
    ],
)
def test_a_closing_needs_units_that_end_with_the_window(change: dict[str, Any]) -> None:
    """And keys that stay selected."""
    with pytest.raises(PlanError, match="unit state that ends with the window"):
        replace(closing_plan(3, stride=2), **change)


def noisy_closings() -> Stream:
    """Four windows with forty keys each, of which about half are closed in. Units 1 to 3 have more
    keys than they lay on.
    """
    weights = tuple(math.floor(2**10 / math.sqrt(m)) for m in range(1, 6))
    closing = Closing(1.0, 0.001, 0.001, 2.0**-10, weights, 1000, 0.01)
    plan = make_plan(3, stride=2, threshold=4, sigma=1.5, closing=closing)
    plan = replace(plan, mechanism=Blt(3, (0.3, 0.1), (0.5, 0.9)))

    def batch(trigger: int) -> tuple[Row, ...]:
        return tuple(
            Row((unit,), (key,), window, key, period=window)
            for window in plan.windows.open(trigger)
            for key in range(40)
            for unit in (100 * trigger + key, *((key % 3 + 1,) if key > 20 else ()))
            if key % 3 != trigger % 3
        )

    return Stream(plan, 1, tuple(batch(trigger) for trigger in range(1, 10)))


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_a_closing_has_noise_of_its_own(shards: int) -> None:
    """For each key and window, whatever the number of shards: what the twin draws."""
    stream = noisy_closings()
    core = run_core(stream, shards, lambda rows: integers(rows, periods=True))
    assert core == run_twin(stream)
    last = [{row[:3] for row in core[n] if row[1] == 3} for n in (2, 4, 6, 8)]
    before = [{(w, 3, key) for w, i, key, _ in core[n] if i == 2} for n in (1, 3, 5, 7)]
    assert all(len(rows - known) > 10 for rows, known in zip(last, before, strict=True))


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_releases_are_in_the_order_of_window_and_key(shards: int) -> None:
    """Not in that of arrival, table or shard."""
    rows = [(n, key, window, 0) for n, key in enumerate([9, 3, 8, 4]) for window in (1, 0)]
    [_, released] = run(make_plan(2, stride=1), [EMPTY, make_batch(rows)], shards=shards)
    assert [(window, key) for window, key, _ in released] == sorted(
        (window, key) for _, key, window, _ in rows
    )


# Noise.


def integers(rows: tuple[Row, ...], *, periods: bool = False) -> MicroBatch:
    return make_batch(
        [(row.unit[0], row.key[0], row.window, row.timestamp) for row in rows],
        periods=[row.period for row in rows] if periods else None,
    )


@BOTH
@pytest.mark.parametrize("kind", ["tree", "blt"])
def test_noise_is_indexed_by_the_grid(kind: str, release: ReleasePolicy) -> None:
    """Keys that appear late, windows that begin empty, triggers without records, later rounds and
    continued paths have the noise of a twin that draws all of it for every key from the start."""
    counted = replace(COUNT, sigma=30.0)
    plan = make_plan(6, stride=2, release=release, threshold=4, sigma=1.5, processes=[counted])
    if kind == "blt":
        plan = replace(plan, mechanism=Blt(6, (0.3, 0.1), (0.5, 0.9)))

    def batch(trigger: int) -> tuple[Row, ...]:
        units = () if trigger in (1, 4) else range(3 if trigger < 6 else 6)
        return tuple(
            Row((unit,), (key,), window, 0)
            for unit in units
            for key in range(trigger)
            for window in plan.windows.open(trigger)
        )

    stream = Stream(plan, 1, tuple(batch(trigger) for trigger in range(1, 10)))
    core = run_core(stream, 1, integers)
    assert core == run_twin(stream)
    assert sum(map(len, core)) > 30


def loud(number: int, sigma: float = 1e12) -> list[CalibratedProcess]:
    return [
        CalibratedProcess(Process(f"p{n}", "count"), f"process/{n}", sigma, 1.0)
        for n in range(number)
    ]


def values(plan: Plan, secret: Secret = SECRET) -> list[int]:
    """Noise alone: public keys, no records."""
    pipeline, state = Core(plan, secret), State()
    return [
        value
        for trigger in (1, 2, 3)
        for _, _, row in readable(pipeline.run(state, EMPTY, trigger))
        for value in row
    ]


def test_no_two_releases_share_noise() -> None:
    """Columns, keys, windows and triggers differ in all of it, and so do plans and instances."""
    plan = make_plan(3, stride=1, processes=loud(2), public=[7, 8])
    drawn = values(plan)
    drawn += values(replace(plan, query="another"))
    drawn += values(plan, Secret(SECRET.key, bytes(16)))
    drawn += values(plan, Secret(bytes(32), SECRET.instance))
    assert len(drawn) == 4 * 3 * 3 * 4
    assert len(set(drawn)) == len(drawn)


def test_a_retry_has_the_same_noise() -> None:
    """A second pipeline from the same plan and secret releases the same."""
    plan = make_plan(3, processes=loud(1), public=[7])
    assert values(plan) == values(plan)


@pytest.mark.parametrize("purpose", ["process/0", CLOSING, *DIAGNOSTICS])
def test_two_processes_may_not_name_one_purpose(purpose: str) -> None:
    """A plan in which a column would have the noise of another, or the closing's, is refused."""
    with pytest.raises(PlanError, match="share their noise"):
        make_plan(1, processes=[loud(1)[0], replace(loud(2)[1], purpose=purpose)])


def test_totals_are_not_rounded_before_the_noise() -> None:
    """Total and noise are added as integers: past 2^53 the last digit of the total still counts."""
    plan = make_plan(1, caps=(9, 9, 9), processes=loud(1, 2.0**55), public=[7])
    first, second = (
        run(plan, [make_batch([(unit, 7, 0, 0) for unit in range(n)])])[0][0][2][0] for n in (1, 2)
    )
    assert second - first == 1
