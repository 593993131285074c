"""Which sources may read the same records: in doubt they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsqlp.errors import SqlError
from dpsqlp.sql import compile_script
from dpsqlp.sql.overlap import may_share
from dpsqlp.sql.query import SourceDef


def source(name: str, **options: Any) -> SourceDef:
    return SourceDef(name, (("u", "TEXT"),), options)


def files(name: str, path: str) -> SourceDef:
    return source(name, connector="files", path=path)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("in/*.parquet", "in/*.parquet", True),
        ("in/*.parquet", "./in//*.parquet", True),
        ("in/*.parquet", "in/may.parquet", True),
        ("in/**/*.parquet", "in/2024/may-*.parquet", True),
        ("in/*", "in/a?.csv", True),
        ("in/[ab].csv", "in/b.csv", True),
        ("in/may-*.csv", "in/june-*.csv", False),
        ("in/*.parquet", "in/*.csv", False),
        ("in/a.csv", "in/b.csv", False),
        ("in/*.csv", "out/*.csv", False),
    ],
)
def test_patterns_of_files(one: str, other: str, same: bool) -> None:
    assert may_share(files("a", one), files("b", other)) is same
    assert may_share(files("b", other), files("a", one)) is same


@pytest.mark.parametrize(("connector", "named"), [("kafka", "topic"), ("postgres", "table")])
def test_topics_and_tables_have_one_name(connector: str, named: str) -> None:
    """Of a broker or server there may be several."""
    first = source("a", connector=connector, brokers="x:1", dsn="host=x", **{named: "events"})
    second = source("b", connector=connector, brokers="y:1", dsn="host=y", **{named: "events"})
    third = source("c", connector=connector, brokers="x:1", dsn="host=x", **{named: "others"})
    assert may_share(first, second)
    assert not may_share(first, third)
    assert not may_share(source("a", connector="python"), source("b", connector="python"))


@pytest.mark.parametrize(
    "read",
    [
        "read_csv('in/a.csv')",
        "'in/a.csv'",
        "read_csv(['public.csv', 'in/*.csv'])",
        "(SELECT * FROM read_csv('{folder}/link.csv'))",
        "read_csv('file://{folder}/in/a.csv')",
    ],
)
def test_a_public_table_of_private_files_is_refused(read: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("u\nann\n")
    (tmp_path / "public.csv").write_text("u\nann\n")
    (tmp_path / "link.csv").symlink_to("in/a.csv")
    sql = (
        "CREATE SOURCE s (u TEXT, k TEXT) WITH (connector = 'files', path = 'in/*.csv');"
        "CREATE PUBLIC TABLE p AS SELECT u AS k FROM {read};"
        "CREATE SINK t AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9,"
        " privacy_unit_column = u, max_rows_contributed = 1,"
        " group_selection_strategy = PUBLIC_GROUPS, public_groups = p)"
        " k, COUNT(*) AS n FROM s GROUP BY k EMIT EVERY INTERVAL 1 HOUR FOR 2 TRIGGERS"
    )
    with pytest.raises(SqlError, match=r"not protected, and .*has files of s.*private stream"):
        compile_script(sql.replace("{read}", read.format(folder=tmp_path)), folder=str(tmp_path))
    compile_script(sql.replace("{read}", "'public.csv'"), folder=str(tmp_path))
