"""A simulation releases what an engine releases, and its errors are noise and cap bias exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpsqlp.core import TriggerRelease
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.engines.release_query import ReleaseQuery
from dpsqlp.entropy.secret import Secret
from dpsqlp.sql import SinkDef
from dpsqlp.sql.release import FIXED
from dpsqlp.tuning.figures import figures_of, values_of
from dpsqlp.tuning.preview import preview_query
from dpsqlp.tuning.simulate import Shown, half_way, simulate
from support.pipelines import made, run_all
from tuning.samples import SECRET, START, sample_rows, script, simulation, write_rows

SUMS = (
    "k, COUNT(*) AS n, SUM(x, contribution_bounds_per_row => (-2, 8)) AS total,"
    " AVG(x, contribution_bounds_per_row => (-2, 8)) AS mean"
)
LATE = "max_contribution_norm = 4, group_selection_spending = 'late', group_selection_share = 0.3"
PUBLIC = "CREATE PUBLIC TABLE p AS SELECT * FROM (VALUES ('k1'), ('k2'), ('none')) AS t(k);"
QUERIES = {
    "a closing in every window": script(
        select=SUMS, options=f"{LATE}, privacy_unit_period = INTERVAL 1 DAY"
    ),
    "units that live on, and lateness": script(
        emit="EMIT EVERY INTERVAL 6 HOURS ON EVENT TIME FROM TIMESTAMP '2024-05-01 00:00:00' TO"
        " TIMESTAMP '2024-05-04 00:00:00' ALLOW LATENESS INTERVAL 12 HOURS"
    ),
    "overlapping windows": script(window="HOP(ts, INTERVAL 12 HOURS, INTERVAL 1 DAY)"),
    "one window": script(
        window=None,
        options="max_contribution_norm = 3, timestamp_column = ts",
        emit=f"EMIT EVERY INTERVAL 7 HOURS ON EVENT TIME FROM {START} FOR 7 TRIGGERS",
    ),
    "one trigger": script(
        window=None,
        options="max_contribution_norm = 3, timestamp_column = ts",
        emit=f"EMIT EVERY INTERVAL 3 DAYS ON EVENT TIME FROM {START} FOR 1 TRIGGERS",
    ),
    "distinct units, caps and a tree": script(
        select="k, COUNT(DISTINCT unit) AS units, COUNT(*) AS n",
        options="max_rows_contributed = 6, max_rows_per_group = 2, mechanism = 'tree',"
        " min_privacy_units_per_group = 3",
    ),
    "public groups": script(
        public=PUBLIC,
        options="max_contribution_norm = 2, group_selection_strategy = PUBLIC_GROUPS,"
        " public_groups = p",
    ),
    "keys alone": script(select="k", options="max_contribution_norm = 2"),
}


def shown_rows(sql: str, folder: Path, step: str) -> set[tuple[Any, ...]]:
    """Window, key and values of what a simulation shows half way or at the end."""
    rows = replace(sample_rows(sql, folder), secret=SECRET)
    simulated = rows.simulation(rows.query)
    plan = simulated.plan(rows.query)
    outcome = simulate(plan, simulated.sample, SECRET)
    shown: Shown = getattr(outcome, step)
    release = TriggerRelease(
        0, shown.window, np.full(len(shown), shown.step), shown.key_text, shown.released
    )
    with ReleaseQuery(rows.query, plan, TriggerGrid.of(rows.query, plan, 0)) as query:
        table = query.columns(release)
    starts, keys = table.column("window_start").to_pylist(), table.column("key_0").to_pylist()
    columns = [
        value for one in values_of(rows.query, plan, shown) for value in (one.released, one.sd)
    ]
    return set(zip(starts, keys, *(column.tolist() for column in columns), strict=True))


def engine_rows(sql: str, folder: Path) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """The same from an engine over the same records: half way, and at the end."""
    engine = made(folder, sql)
    plan, interval = engine.plan, engine.query.emit.interval_us
    window = engine.query.window
    half, end = set(), set()
    for trigger, rows in run_all(engine).items():
        for row in rows:
            key = (row.pop("window_start"), row.pop("k"))
            first = 0
            if window is not None:
                first = int(np.datetime64(key[0], "us").astype(int)) // interval
            final = row.pop("final")
            # An average of nothing is 0 in a simulation.
            values = tuple(value or 0.0 for name, value in row.items() if name not in FIXED)
            if final:
                end.add((*key, *values))
            if trigger - first == half_way(plan):
                half.add((*key, *values))
    return half, end


@pytest.mark.parametrize("name", QUERIES)
def test_a_simulation_releases_what_an_engine_releases(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with the same secret over the same records."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))
    days = 3 if name == "public groups" else 2  # the simulation shows no window without a row
    write_rows(tmp_path / "in" / "a.parquet", days=days)
    write_rows(tmp_path / "sample" / "a.parquet", days=days)
    half, end = engine_rows(QUERIES[name], tmp_path)
    assert end
    assert shown_rows(QUERIES[name], tmp_path, "half") == half
    assert shown_rows(QUERIES[name], tmp_path, "end") == end


@pytest.mark.parametrize("name", QUERIES)
def test_noise_and_bias_are_the_error(name: str, tmp_path: Path) -> None:
    """In quanta, for every process of every released group."""
    write_rows(tmp_path / "sample" / "a.parquet")
    simulated = simulation(QUERIES[name], tmp_path)
    outcome = simulate(simulated.plan(simulated.query), simulated.sample, simulated.secret)
    for shown in (outcome.half, outcome.end):
        noise, bias = shown.released - shown.kept, shown.kept - shown.truth
        assert (noise + bias == shown.released - shown.truth).all()
    counts = [
        one for one in values_of(simulated.query, outcome.plan, outcome.end) if one.name == "n"
    ]
    for one in counts:
        assert (one.noise + one.bias == one.released - one.truth).all()
        assert (one.bias <= 0).all()


def test_the_truth_is_the_exact_histogram(tmp_path: Path) -> None:
    """Every row counts, before any bounding; half way, those that have come by then."""
    write_rows(tmp_path / "sample" / "a.parquet")
    simulated = simulation(QUERIES["one window"], tmp_path)
    sample, plan = simulated.sample, simulated.plan(simulated.query)
    counted = np.bincount(sample.records.text, minlength=len(sample.keys))
    assert sample.truth(plan, plan.triggers)[:, 0].tolist() == counted.tolist()
    early = sample.records.text[sample.trigger <= 4]
    assert sample.truth(plan, 4)[:, 0].tolist() == np.bincount(early, minlength=12).tolist()


def test_without_caps_that_bind_there_is_no_bias(tmp_path: Path) -> None:
    """Every row fits into a norm of 8, and no value is clamped."""
    write_rows(tmp_path / "sample" / "a.parquet")
    sql = script(options="max_contribution_norm = 8, max_selections_contributed = 8")
    simulated = simulation(sql, tmp_path)
    outcome = simulate(simulated.plan(simulated.query), simulated.sample, simulated.secret)
    [column] = figures_of(simulated.query, simulated.sample, outcome).columns
    assert column.bias == (0.0, 0.0)
    assert column.error == column.noise != (0.0, 0.0)


def test_a_preview_has_every_released_group(tmp_path: Path) -> None:
    """With its errors, those of most rows first; and a summary by size that adds up."""
    write_rows(tmp_path / "sample" / "a.parquet")
    rows = sample_rows(script(select=SUMS), tmp_path)
    shown = preview_query(SinkDef("t", {}, rows.query), rows)
    table = shown.table.to_pandas()
    assert (table["n_noise"] + table["n_bias"] == table["n"] - table["n_truth"]).all()
    assert table["true_rows"].is_monotonic_decreasing
    for sizes in shown.sizes.values():
        assert sum(size.released for size in sizes) == len(table)
        assert sum(size.groups for size in sizes) == shown.facts.groups


def test_windows_without_a_row_of_the_sample_do_not_count(tmp_path: Path) -> None:
    """The query has three windows, and the sample two: all three public keys in each of them."""
    write_rows(tmp_path / "sample" / "a.parquet", days=2)
    rows = sample_rows(QUERIES["public groups"], tmp_path)
    shown = preview_query(SinkDef("t", {}, rows.query), rows)
    assert shown.table.num_rows == 2 * 3
    figures = shown.figures
    assert (figures.half_keys, figures.keys, figures.true_keys) == (3, 3, 3)


def test_a_window_of_the_query_alone_is_simulated(tmp_path: Path) -> None:
    """Rows outside the replay's span are left out, and the report says how many."""
    write_rows(tmp_path / "sample" / "a.parquet", days=9)
    facts = simulation(script(), tmp_path).facts
    assert (facts.windows, facts.counted < facts.rows) == (3, True)
