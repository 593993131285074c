"""Samples and queries that tune and preview refuse, with the words they are refused with.

Golden texts: refused.txt. `DPSQLP_GOLDEN=write` writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsqlp.errors import DpsqlpError
from dpsqlp.sql import compile_script
from dpsqlp.tuning.tune import check_goal, with_epsilon, with_interval
from tuning.samples import START, sample_rows, script, simulation, write_rows

GOLDEN = Path(__file__).parent / "refused.txt"
CLOCK = "EMIT EVERY INTERVAL 1 HOUR FOR 24 TRIGGERS"
PUBLIC = script(
    public="CREATE PUBLIC TABLE p AS SELECT 'k1' AS k;",
    options="max_contribution_norm = 1, group_selection_strategy = PUBLIC_GROUPS,"
    " public_groups = p",
)


def own_files(folder: Path) -> None:
    write_rows(folder / "sample" / "a.parquet")
    sample_rows(script(source="connector = 'files', path = 'sample/*.parquet'"), folder)


def files_of_another_source(folder: Path) -> None:
    write_rows(folder / "sample" / "a.parquet")
    other = "CREATE SOURCE o (a TEXT) WITH (connector = 'files', path = 'sample/*.parquet');"
    sample_rows(other + script(), folder)


def files_of_a_path_that_is_not_known(folder: Path) -> None:
    write_rows(folder / "sample" / "a.parquet")
    sample_rows(script(source="connector = 'files', path = '${NOT_SET}/*.parquet'"), folder)


def linked_files(folder: Path) -> None:
    write_rows(folder / "in" / "a.parquet")
    (folder / "sample").mkdir()
    (folder / "sample" / "b.parquet").symlink_to(folder / "in" / "a.parquet")
    sample_rows(script(), folder)


def missing_files(folder: Path) -> None:
    sample_rows(script(), folder)


def missing_columns(folder: Path) -> None:
    (folder / "sample").mkdir()
    pq.write_table(pa.table({"unit": ["a"], "ts": ["x"]}), folder / "sample" / "a.parquet")
    sample_rows(script(), folder)


def numbers_as_times(folder: Path) -> None:
    (folder / "sample").mkdir()
    columns = {"unit": ["a"], "k": ["b"], "x": [1.0], "ts": [1]}
    pq.write_table(pa.table(columns), folder / "sample" / "a.parquet")
    sample_rows(script(), folder)


def nothing_counts(folder: Path) -> None:
    (folder / "sample").mkdir()
    columns = {"unit": [None], "k": ["b"], "x": [1.0], "ts": ["2024-05-01 10:00:00"]}
    kinds = {"unit": pa.string(), "k": pa.string(), "x": pa.float64(), "ts": pa.string()}
    rows = pa.table(columns, schema=pa.schema(kinds))
    pq.write_table(rows, folder / "sample" / "a.parquet")
    simulation(script(), folder)


def no_rows(folder: Path) -> None:
    write_rows(folder / "sample" / "a.parquet")
    sample_rows(script().replace("FROM s", "FROM s WHERE x > 1e9"), folder)


def no_timestamps(folder: Path) -> None:
    (folder / "sample").mkdir()
    (folder / "sample" / "a.csv").write_text("unit,k,x,ts\nu,k,1,never\n")
    simulation(script(), folder)


def too_long(folder: Path) -> None:
    (folder / "sample").mkdir()
    lines = "unit,k,x,ts\nu,k,1,1970-01-01 00:00:01\nu,k,1,2024-05-01 00:00:01\n"
    (folder / "sample" / "a.csv").write_text(lines)
    simulation(script(emit="EMIT EVERY INTERVAL 1 HOUR"), folder)


def too_many_units(folder: Path) -> None:
    write_rows(folder / "sample" / "a.parquet")
    simulation(script(), folder, units=1_000_000_000)


def rounds(folder: Path) -> None:
    write_rows(folder / "sample" / "a.parquet")
    sample_rows(script(options="max_contribution_norm = 3, release = 'threshold'"), folder)


def months(folder: Path) -> None:
    write_rows(folder / "sample" / "a.parquet")
    window, options = "DATE_TRUNC('month', ts)", "max_contribution_norm = 3"
    sample_rows(script(window=window, options=options), folder)


def nothing_to_select(folder: Path) -> None:
    [sink] = compile_script(PUBLIC, folder=str(folder)).sinks
    check_goal(sink.query, "keys")


def no_values(folder: Path) -> None:
    [sink] = compile_script(script(select="k"), folder=str(folder)).sinks
    check_goal(sink.query, "l2")


def no_such_interval(folder: Path) -> None:
    [sink] = compile_script(script(), folder=str(folder)).sinks
    with_interval(sink.query, "7 hours")


def unreadable_interval(folder: Path) -> None:
    [sink] = compile_script(script(), folder=str(folder)).sinks
    with_interval(sink.query, "soon")


def too_many_triggers(folder: Path) -> None:
    emit = f"EMIT EVERY INTERVAL 1 HOUR ON EVENT TIME FROM {START} FOR 1000 TRIGGERS"
    options = "max_contribution_norm = 3, timestamp_column = ts"
    sql = script(window=None, emit=emit, options=options)
    [sink] = compile_script(sql, folder=str(folder)).sinks
    with_interval(sink.query, "1 second")


def no_epsilon(folder: Path) -> None:
    [sink] = compile_script(script(), folder=str(folder)).sinks
    with_epsilon(sink.query, 0.0)


CASES: list[Callable[[Path], None]] = [
    own_files,
    files_of_another_source,
    files_of_a_path_that_is_not_known,
    linked_files,
    missing_files,
    missing_columns,
    numbers_as_times,
    nothing_counts,
    no_rows,
    no_timestamps,
    too_long,
    too_many_units,
    rounds,
    months,
    nothing_to_select,
    no_values,
    no_such_interval,
    unreadable_interval,
    too_many_triggers,
    no_epsilon,
]


def refused(case: Callable[[Path], None], folder: Path) -> str:
    """What a case is refused with; the folder of the test is written as /here."""
    with pytest.raises(DpsqlpError) as error:
        case(folder)
    return f"{case.__name__}: {error.value}".replace(str(folder), "/here")


def test_refused_cases_say_why(tmp_path: Path) -> None:
    """What is wrong, and what to do."""
    texts = []
    for case in CASES:
        folder = tmp_path / case.__name__
        folder.mkdir()
        texts.append(refused(case, folder).replace(f"/here/{case.__name__}", "/here"))
    shown = "\n\n".join(texts) + "\n"
    if os.environ.get("DPSQLP_GOLDEN") == "write":
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()
