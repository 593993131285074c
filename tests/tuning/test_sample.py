"""Samples: whole units, and the triggers that their rows belong to."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpsqlp.tuning.sample import Sample
from tuning.samples import START, script, simulation, write_rows

FOR = "EMIT EVERY INTERVAL 1 HOUR FOR 24 TRIGGERS"
UNTIMED = script(window=None, emit=FOR, options="max_contribution_norm = 3")
TIMED = script(window=None, emit=FOR, options="max_contribution_norm = 3, timestamp_column = ts")


def rows_of_units(sample: Sample) -> Counter[tuple[tuple[int, ...], ...]]:
    """How many units have the same rows."""
    rows = np.stack(
        [sample.trigger, sample.records.text, sample.records.timestamp, sample.unit], axis=1
    )
    return Counter(
        tuple(sorted(map(tuple, rows[sample.unit == unit, :3].tolist())))
        for unit in np.unique(sample.unit)
    )


def test_resampling_keeps_whole_units(tmp_path: Path) -> None:
    """Each drawn unit has all rows of one unit of the sample, and an identity of its own."""
    write_rows(tmp_path / "sample" / "a.parquet", units=60)
    whole = simulation(script(), tmp_path).sample
    drawn = simulation(script(), tmp_path, units=500).sample
    assert set(rows_of_units(drawn)) <= set(rows_of_units(whole))
    assert sum(rows_of_units(drawn).values()) == drawn.units == 500
    assert len(np.unique(drawn.records.unit, axis=0)) == 500
    assert not set(map(tuple, drawn.records.unit)) & set(map(tuple, whole.records.unit))
    assert (np.diff(drawn.trigger) >= 0).all()


def test_a_part_has_whole_units_and_smaller_ones_lie_in_it(tmp_path: Path) -> None:
    """One seed gives nested parts."""
    write_rows(tmp_path / "sample" / "a.parquet", units=60)
    whole = simulation(script(), tmp_path).sample
    half, quarter = whole.part(0.5, 3), whole.part(0.25, 3)
    assert set(quarter.unit) <= set(half.unit)
    assert len(set(half.unit)) == 30
    assert not rows_of_units(half) - rows_of_units(whole)


def test_rows_without_timestamps_are_spread_over_the_triggers(tmp_path: Path) -> None:
    """By the clock alone there is no telling when they arrive."""
    write_rows(tmp_path / "sample" / "a.parquet")
    simulated = simulation(UNTIMED, tmp_path)
    assert set(simulated.sample.trigger) == set(range(1, 25))
    assert "spread evenly over the 24 triggers" in simulated.facts.replay


def test_timestamps_decide_the_triggers_of_a_clock(tmp_path: Path) -> None:
    """As in a replay that begins with the first row."""
    write_rows(tmp_path / "sample" / "a.parquet", days=1)
    simulated = simulation(TIMED, tmp_path)
    sample = simulated.sample
    hour = sample.records.timestamp // 3_600_000_000
    assert (sample.trigger == hour - hour.min() + 1).all()
    assert "as in a replay" in simulated.facts.replay


@pytest.mark.parametrize("moment", ["2024-05-01", "2019-01-01"])
def test_a_sample_of_another_time_is_moved(tmp_path: Path, moment: str) -> None:
    """A replay from another year begins with the sample's first row; the report says so."""
    write_rows(tmp_path / "sample" / "a.parquet", days=1)
    begin = START.replace("2024-05-01", moment)
    sql = TIMED.replace("FOR 24", f"ON EVENT TIME FROM {begin} FOR 24")
    facts = simulation(sql, tmp_path).facts
    assert facts.counted == facts.rows
    assert ("from another time" in facts.replay) == (moment != "2024-05-01")


def test_windows_of_another_time_are_simulated_as_they_are(tmp_path: Path) -> None:
    """A window follows from the row's own timestamp."""
    write_rows(tmp_path / "sample" / "a.parquet", days=3)
    sql = script(
        emit="EMIT EVERY INTERVAL 6 HOURS ON EVENT TIME FROM TIMESTAMP '2019-01-01 00:00:00' TO"
        " TIMESTAMP '2019-01-02 00:00:00'"
    )
    facts = simulation(sql, tmp_path).facts
    assert (facts.windows, facts.counted) == (3, facts.rows)


def test_values_of_few_plans_are_kept(tmp_path: Path) -> None:
    """A search has as many quanta as candidates: the values of the last two stay in memory."""
    write_rows(tmp_path / "sample" / "a.parquet", units=60)
    select = "k, SUM(x, contribution_bounds_per_row => (-2, 8)) AS total"
    simulated = simulation(script(select=select), tmp_path)
    query = simulated.query
    plans = [simulated.plan(replace(query, epsilon=e)) for e in (0.01, 0.1, 0.5, 1.0)]
    kept = []
    for plan in plans:
        first = next(simulated.sample.batches(plan)).values
        kept.append(weakref.ref(first if first.base is None else first.base))
        del first
    assert len({plan.calibration.processes[-1].quantum for plan in plans}) == len(plans)
    assert [one() is not None for one in kept] == [False, False, True, True]


def test_a_sample_may_be_text(tmp_path: Path) -> None:
    """CSV files go through the source's own schema, like Parquet files."""
    write_rows(tmp_path / "sample" / "a.parquet")
    parquet = simulation(script(), tmp_path).facts
    pq.read_table(tmp_path / "sample" / "a.parquet").to_pandas().to_csv(
        tmp_path / "sample" / "a.csv", index=False
    )
    (tmp_path / "sample" / "a.parquet").unlink()
    assert simulation(script(), tmp_path).facts == parquet
