"""Diagnostics: what one unit can change in them, what they cost, and when they are released."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsqlp
from dpsqlp.accounting.calibrate import calibrate, calibrate_shorter
from dpsqlp.accounting.model import (
    DIAGNOSTICS,
    Calibration,
    ContributionBounds,
    Diagnostics,
    Process,
)
from dpsqlp.accounting.privacy_loss import epsilon_spent, squared_nu
from dpsqlp.core import Core, State
from dpsqlp.engines import micro_batch as module
from dpsqlp.engines.micro_batch import admit_batches
from dpsqlp.errors import PlanError, SinkError
from dpsqlp.mechanisms import Tree, fit_blt
from dpsqlp.plan import Plan
from dpsqlp.sinks.base import Sink
from dpsqlp.stages.diagnose import diagnose
from dpsqlp.state import shards as shards_module
from dpsqlp.state.storage import LocalStorage
from engines.test_micro_batch import as_batches
from reference.streams import Stream, micro_batch, streams
from reference.twin import Row
from state.disks import FakeDisk
from state.sealed_storages import opened_journal
from support.plans import SECRET, SILENT, make_batch, make_plan
from support.quick import QUICK

EXACT = (SILENT,) * 4  # sigmas whose noise rounds to nothing


def numbers(plan: Plan, batches: Sequence[Any], first: int = 1, shards: int = 2) -> list[Any]:
    """The numbers of each open window at each trigger."""
    core, state = Core(plan, SECRET), State(shards)
    released = [core.run(state, batch, n).diagnostics for n, batch in enumerate(batches, first)]
    return [None if told is None else told.tolist() for told in released]


# What one unit can change.


def test_a_unit_counts_once_and_of_its_rows_the_first_ones() -> None:
    """C = 5, c = 2, K = 3 and D = 2. Of ten rows of unit 1 the cap per key drops the third and the
    fourth, the cap of all rows the last three; over two triggers.
    """
    plan = make_plan(3, caps=(5, 2, 5), diagnostics=Diagnostics(0.1, 3, 2, EXACT))
    keys = [7, 7, 7, 7, 8, 8, 9, 10, 11, 12]
    rows = [(1, key, 0, time) for time, key in enumerate(keys)]
    others = [(2, 7, 0, 0), (3, 7, 0, 0)]
    whole = [3, 1, 5, 2]  # units seen, units bounded, rows kept, rows dropped
    assert numbers(plan, [make_batch(rows + others)]) == [[whole]]
    apart = [make_batch(rows[:3] + others), make_batch(rows[3:]), make_batch()]
    assert numbers(plan, apart) == [[[3, 1, 4, 1]], [whole], [whole]]
    wide = make_plan(3, caps=(5, 2, 5), diagnostics=Diagnostics(0.1, 9, 9, EXACT))
    assert numbers(wide, [make_batch(rows + others)]) == [[[3, 1, 7, 5]]]


def test_a_unit_counts_in_the_windows_of_its_first_rows() -> None:
    """Without a period a unit is new in one window only, and K and D hold for all windows."""
    plan = make_plan(3, stride=1, caps=(3, 1, 3), diagnostics=Diagnostics(0.1, 2, 1, EXACT))
    rows = [(1, key, window, 0) for key, window in [(7, 0), (8, 0), (7, 1), (8, 1), (7, 2)]]
    windows = [make_batch([row for row in rows if row[2] == n]) for n in range(3)]
    assert numbers(plan, windows)[-1] == [[1, 0, 2, 0], [0, 1, 0, 1], [0, 0, 0, 0]]


def test_dropped_rows_that_no_bound_has_seen_do_not_count() -> None:
    """A row without a unit, or outside the open windows, is not a row that a bound has dropped."""
    plan = make_plan(2, caps=(1, 1, 1), diagnostics=Diagnostics(0.1, 1, 1, EXACT))
    assert numbers(plan, [make_batch([(None, 7, 0, 0), (1, 7, 5, 0)])]) == [[[0, 0, 0, 0]]]


@settings(max_examples=60 if QUICK else 400, deadline=None, derandomize=True)
@given(stream=streams(), kept=st.integers(1, 4), dropped=st.integers(1, 4))
def test_no_unit_changes_more_than_is_charged(stream: Stream, kept: int, dropped: int) -> None:
    """The audit of the sensitivity, exact: what a unit adds to a number, over all windows and
    triggers, is at most what it is charged for, and it takes nothing away.
    """
    told = Diagnostics(0.1, kept, dropped, EXACT)
    plan = replace(stream.plan, calibration=replace(stream.plan.calibration, diagnostics=told))

    def unit_of(row: Row) -> Any:
        return row.unit, None if plan.periods is None else row.period

    units = {unit_of(row) for rows in stream.batches for row in rows}
    for unit in sorted(units, key=repr)[:3]:
        totals = []
        for world in (True, False):
            batches = [
                micro_batch(plan, tuple(row for row in rows if world or unit_of(row) != unit))
                for rows in stream.batches
            ]
            totals.append(numbers(plan, batches, stream.first))
        added = increments(plan, stream.first, totals[0]) - increments(
            plan, stream.first, totals[1]
        )
        assert (added >= 0).all()
        assert (added.sum(axis=0) <= told.counted_max).all()


def increments(plan: Plan, first: int, told: list[Any]) -> Any:
    """What each trigger adds to the numbers of each window, as rows."""
    before: dict[int, Any] = {}
    added = [np.zeros((1, 4), np.int64)]
    for trigger, rows in enumerate(told, first):
        for window, row in zip(plan.windows.open(trigger), rows, strict=True):
            added.append(np.array([row]) - before.get(window, 0))
            before[window] = np.array([row])
    return np.concatenate(added)


@settings(max_examples=40 if QUICK else 150, deadline=None, derandomize=True)
@given(stream=streams(), piece=st.integers(1, 9))
def test_early_bounding_hides_no_dropped_row(stream: Stream, piece: int) -> None:
    """The first D dropped rows of a unit count in their windows, whatever was dropped early."""
    told = Diagnostics(0.1, 3, 2, EXACT)
    plan = replace(stream.plan, calibration=replace(stream.plan.calibration, diagnostics=told))
    core, state, released = Core(plan, SECRET), State(2), []
    with patch.multiple(module, PIECE_ROWS=piece, _HELD_BYTES=0, _TEXT_BYTES=-1):
        for trigger, rows in enumerate(stream.batches, stream.first):
            _, records = admit_batches(core, as_batches(plan, rows), trigger)
            told_now = core.compute(state, records).diagnostics
            released.append(None if told_now is None else told_now.tolist())
    batches = [micro_batch(plan, rows) for rows in stream.batches]
    assert released == numbers(plan, batches, stream.first)


def test_early_bounding_keeps_the_first_dropped_rows_of_many() -> None:
    """A unit's 1,000 rows of one key in pieces, the earliest last: its window has D of them."""
    plan = make_plan(2, stride=1, caps=(2, 1, 2), diagnostics=Diagnostics(0.1, 2, 2, EXACT))
    plan = replace(plan, key_kinds=("text",))
    rows = tuple(
        Row((1,), ("a",), window=int(time > 3), timestamp=time) for time in reversed(range(1000))
    )
    core, state = Core(plan, SECRET), State()
    core.run(state, micro_batch(plan, ()), 1)
    with patch.multiple(module, PIECE_ROWS=50, _HELD_BYTES=0):
        _, records = admit_batches(core, as_batches(plan, rows), 2)
    assert len(records) < 20
    told = core.compute(state, records).diagnostics
    assert told is not None
    assert told.tolist() == [[1, 1, 1, 2], [0, 0, 1, 0]]


# What they cost.


@pytest.mark.parametrize("closing", [False, True])
def test_diagnostics_and_all_else_cost_nu_squared(closing: bool) -> None:
    """Diagnostics cost their share of nu^2, in four equal parts, and all else the rest; a closing
    lays no more than the rest.
    """
    for mechanism in (Tree(5), fit_blt(100)):
        for caps in (ContributionBounds(9, 3, 2), ContributionBounds(400, 20, 5, 400)):
            for share in (0.001, 0.1, 0.5):
                made = calibrate(
                    epsilon=2,
                    delta=1e-8,
                    caps=caps,
                    mechanism=mechanism,
                    processes=[Process("n", "count"), Process("x", "sum", 0, -1.0, 3.0)],
                    release="every_trigger",
                    closing=closing,
                    diagnostics_share=share,
                )
                told = made.diagnostics
                assert told is not None
                rows = min(caps.records, caps.squared_norm, 255)
                most = (1, 1, rows, rows)
                s = mechanism.sensitivity
                parts = [(m * s / sigma) ** 2 for m, sigma in zip(most, told.sigmas, strict=True)]
                assert parts == pytest.approx([share / 4 * made.nu**2] * 4)
                spent = squared_nu(made, caps, mechanism, "every_trigger")
                assert spent == pytest.approx(made.nu**2)
                epsilon = epsilon_spent(made, caps, mechanism, "every_trigger")
                assert epsilon == pytest.approx(2, rel=1e-3)
                if made.closing is not None:
                    assert made.closing.budget <= (1 - share) * made.nu**2


def calibrated(share: float, *, closing: bool = False) -> Calibration:
    """One record of a unit, one vote."""
    return calibrate(
        epsilon=2,
        delta=1e-8,
        caps=ONE,
        mechanism=Tree(5),
        processes=[Process("n", "count")],
        release="every_trigger",
        closing=closing,
        diagnostics_share=share,
    )


ONE = ContributionBounds(1, 1, 1)


def test_diagnostics_stay_where_there_is_nothing_left_for_a_closing() -> None:
    """A unit of one record and one vote has nothing left, so there is no closing."""
    made = calibrated(0.1, closing=True)
    assert made.closing is None
    assert made.diagnostics is not None
    assert squared_nu(made, ONE, Tree(5), "every_trigger") == pytest.approx(made.nu**2)


def test_float_error_of_diagnostics_is_charged() -> None:
    """Noise too large for its float error is refused, and what it costs counts as spent."""
    with pytest.raises(PlanError, match=r"noise of 'units_seen' is too large"):
        calibrated(1e-40)
    made = calibrated(0.1)
    assert made.diagnostics is not None
    large = replace(made, diagnostics=replace(made.diagnostics, sigmas=(1e12,) * 4))
    spent = [epsilon_spent(each, ONE, Tree(5), "every_trigger") for each in (made, large)]
    assert spent[1] > 1.1 * spent[0]


def test_a_number_costs_the_same_in_shorter_windows() -> None:
    """Windows of a calendar have scales in proportion to their sensitivity."""
    longest, shorter = fit_blt(31), fit_blt(28)
    made = calibrate(
        epsilon=2,
        delta=1e-8,
        caps=ContributionBounds(9, 3, 2),
        mechanism=longest,
        processes=[Process("n", "count")],
        release="every_trigger",
        diagnostics_share=0.1,
        shorter=[shorter],
    )
    other = calibrate_shorter(made, longest, shorter, "even")
    assert made.diagnostics is not None
    assert other.diagnostics is not None
    costs = [longest.sensitivity / sigma for sigma in made.diagnostics.sigmas]
    assert [shorter.sensitivity / sigma for sigma in other.diagnostics.sigmas] == pytest.approx(
        costs, rel=1e-12
    )


def test_without_diagnostics_nothing_changes() -> None:
    """At a share of 0 every sigma is what it was, and there is no second table."""
    plan = make_plan(2)
    assert numbers(plan, [make_batch([(1, 7, 0, 0)])]) == [None]


@pytest.mark.parametrize("share", [-0.1, 1, math.nan, True])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    """A share is at least 0 and below 1."""
    with pytest.raises(PlanError, match="diagnostics_share must be at least 0 and below 1"):
        calibrate(
            epsilon=1,
            delta=1e-6,
            caps=ContributionBounds(4, 2, 2),
            mechanism=Tree(2),
            processes=[],
            release="every_trigger",
            diagnostics_share=share,
        )


@pytest.mark.parametrize("most", [0, 256])
def test_a_plan_counts_as_many_rows_as_a_unit_can_remember(most: int) -> None:
    """The number of a unit's dropped rows is a byte."""
    with pytest.raises(PlanError, match="Diagnostics count 1 to 255"):
        make_plan(2, diagnostics=Diagnostics(0.1, 1, most, EXACT))


# When they are released, and with which noise.


def test_numbers_come_at_every_trigger_of_every_open_window() -> None:
    """With or without rows: windows of three triggers, one of which begins at each trigger."""
    plan = make_plan(3, stride=1, diagnostics=Diagnostics(0.1, 4, 4, EXACT))
    batches = [make_batch(), make_batch([(1, 7, 1, 0)]), make_batch(), make_batch()]
    released = numbers(plan, batches)
    assert all(told is not None for told in released)
    zero, one = [0, 0, 0, 0], [1, 0, 1, 0]
    assert released == [[zero] * 3, [zero, zero, one], [zero, one, zero], [one, zero, zero]]


def test_the_noise_has_its_deviation_and_is_shared_by_no_two_numbers() -> None:
    """The noise alone, over 3,000 windows: at each trigger of a window its deviation is sigma b(i)
    within 4 %, which a scale 10 % off is not; numbers and windows are uncorrelated.
    """
    sigmas = (30.0, 50.0, 70.0, 90.0)
    plan = make_plan(3, stride=1, diagnostics=Diagnostics(0.1, 4, 4, sigmas))
    plan = replace(plan, mechanism=fit_blt(3))
    core, state = Core(plan, SECRET), State()
    counted = np.zeros((3, 4), np.int64)
    steps: list[list[Any]] = [[], [], []]
    for trigger in range(1, 3001):
        released = core.diagnose(state, counted, trigger)
        assert released is not None
        core.close_trigger(state, trigger, ())
        for step in range(1, 4):
            steps[step - 1].append(released[3 - step])
    for step, rows in enumerate(steps):
        noise = np.array(rows, float) / np.array(sigmas) / np.sqrt(plan.mechanism.variance[step])
        assert np.sqrt((noise**2).mean()) == pytest.approx(1, abs=0.04)
        assert np.abs(np.corrcoef(noise.T) - np.eye(4)).max() < 0.1
        following = [np.corrcoef(noise[1:, n], noise[:-1, n])[0, 1] for n in range(4)]
        assert np.abs(following).max() < 0.1


def test_a_number_has_one_value_of_noise_for_each_trigger() -> None:
    """Noise that was released is not drawn again for other numbers."""
    plan = make_plan(3, diagnostics=Diagnostics(0.1, 4, 4, (9.0,) * 4))
    core, state = Core(plan, SECRET), State()
    counted = np.zeros((1, 4), np.int64)
    diagnose(plan, core.noises, state.tallies, counted, 1)
    with pytest.raises(AssertionError):
        diagnose(plan, core.noises, state.tallies, counted, 1)


@pytest.mark.parametrize("files", [2, 64])
def test_a_restart_remembers_what_was_counted(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals, noise, and each unit's kept and dropped rows, from deltas and from snapshots."""
    monkeypatch.setattr(shards_module, "_SNAPSHOT_FILES", files)
    monkeypatch.setattr(shards_module, "_SNAPSHOT_BYTES", 1 << 30 if files > 2 else 1)
    plan = make_plan(8, caps=(3, 1, 3), diagnostics=Diagnostics(0.1, 2, 4, (0.4,) * 4))
    batches = [make_batch([(unit, 7, 0, n) for unit in (1, 2)]) for n in range(8)]
    storage, released = LocalStorage(Path("/state"), FakeDisk()), []
    for trigger, batch in enumerate(batches, 1):
        core = Core(plan, SECRET)
        journal = opened_journal(storage, core, SECRET, 2)
        state = journal.load()
        step = core.compute(state, core.admit(batch, trigger))
        journal.commit(journal.save(state, step), b"", None)
        assert step.diagnostics is not None
        released.append(step.diagnostics.tolist())
    assert released == numbers(plan, batches)
    assert released[-1][0] == pytest.approx([2, 2, 2, 8], abs=6)


@pytest.mark.parametrize("connector", ["parquet", "jsonl", "duckdb"])
def test_the_second_table_is_beside_the_first(connector: str, tmp_path: Path) -> None:
    """One row for each open window at each trigger, across a restart, and given twice it is there
    once.
    """
    path = tmp_path / "views.sql"
    path.write_text(
        "CREATE SOURCE s (url TEXT, person BIGINT);\n"
        f"CREATE SINK views WITH (connector = '{connector}', path = 'out') AS\n"
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 5, delta = 1e-6, privacy_unit_column ="
        " person, max_contribution_norm = 2, diagnostics_share = 0.1)\n"
        "url, COUNT(*) AS n FROM s GROUP BY url EMIT EVERY INTERVAL 1 MINUTE FOR 2 TRIGGERS;\n"
    )
    released = []
    for _ in range(2):
        with dpsqlp.open(path) as stream:
            stream.feed({"url": ["a"] * 3, "person": [1, 2, 3]})
            released.append(stream.trigger().diagnostics)
    dpsqlp.open(path).close()  # the last release is given to the sink again
    expected = (
        pa.concat_tables(released).drop(["window_start", "window_end", "released_at"]).to_pylist()
    )
    where = f"'{tmp_path}/out_diagnostics/*.{connector}'"
    attached = tmp_path / "out" if connector == "duckdb" else ":memory:"
    with duckdb.connect(str(attached)) as database:
        source = "views_diagnostics" if connector == "duckdb" else where
        found = database.sql(f"FROM {source} ORDER BY trigger").to_arrow_table()
    assert found.drop(["window_start", "window_end", "released_at"]).to_pylist() == expected
    assert found.column_names[6:8] == ["units_seen", "units_seen_sd"]


def test_a_sink_with_one_table_is_refused() -> None:
    """A sink that cannot take a second table says so."""

    class One(Sink):
        def emit(self, trigger: int, release: Any) -> None:
            return

    with pytest.raises(SinkError, match="diagnostics_share needs a second one"):
        One().diagnostics()


def test_the_names_are_those_of_the_noise() -> None:
    """Each number has a purpose of its own."""
    assert len(set(DIAGNOSTICS)) == 4
    assert {*DIAGNOSTICS} <= Core(make_plan(1), SECRET).noises.keys()
