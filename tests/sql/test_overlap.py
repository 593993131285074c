"""Which sources may read the same records: in doubt they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsqlp.errors import SqlError
from dpsqlp.sql import compile_script
from dpsqlp.sql.overlap import may_share, shared_groups
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
        ("in/*.csv", "{folder}/in/*.csv", True),
        ("in/a.csv", "file://{folder}/in/a.csv", True),
        ("../{name}/in/a.csv", "in/*.csv", True),
        ("in/*.csv", "link/b.csv", True),
        ("in/*.csv", "copies/*.csv", True),
        ("in/*.csv", "copies/x*.csv", False),
        ("*/../in/b.csv", "in/b.csv", True),
        ("${SET}/b.csv", "in/b.csv", True),
        ("${SET}/b.csv", "in/c.csv", False),
        ("${NOT_SET}/b.csv", "in/c.csv", True),
    ],
)
def test_patterns_of_files(
    one: str, other: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the folder, through links, with variables; its name may look like a pattern."""
    folder = tmp_path / "[x]"
    for name in ("in", "copies"):
        (folder / name).mkdir(parents=True)
    (folder / "in" / "a.csv").touch()
    (folder / "link").symlink_to("in")
    (folder / "copies" / "y.csv").symlink_to("../in/a.csv")
    monkeypatch.setenv("SET", "in")
    paths = [
        path.replace("{folder}", str(folder)).replace("{name}", "[[]x]") for path in (one, other)
    ]
    first, second = (files(name, path) for name, path in zip("ab", paths, strict=True))
    assert may_share(first, second, str(folder)) is same
    assert may_share(second, first, str(folder)) is same


@pytest.mark.parametrize(("connector", "named"), [("kafka", "topic"), ("postgres", "table")])
def test_topics_and_tables_have_one_name(
    connector: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster or server may have several addresses."""
    monkeypatch.setenv("SET", "events")

    def at(name: str, value: str) -> SourceDef:
        options = {"brokers": f"{name}:1", "dsn": f"host={name}", named: value}
        return source(name, connector=connector, **options)

    events = at("a", "events")
    for same in ("events", "${SET}", "${NOT_SET}"):
        assert may_share(events, at("b", same), "")
    assert not may_share(events, at("b", "others"), "")
    assert may_share(events, at("b", "public.events"), "") is (connector == "postgres")


@pytest.mark.parametrize("connector", ["stdin", "python"])
def test_records_without_a_name_may_be_the_same(connector: str) -> None:
    """One standard input, and any batches from Python."""
    assert may_share(source("a", connector=connector), source("b", connector=connector), "")
    assert not may_share(source("a", connector=connector), files("b", "in/*"), "")


def test_sources_are_shared_through_others() -> None:
    """The first and the last have no record in common, and both may share with the second."""
    sources = [files("a", "in/a.csv"), files("b", "in/*"), files("c", "in/b.csv")]
    for order in ([0, 1, 2], [0, 2, 1], [2, 0, 1]):
        assert len(set(shared_groups([sources[index] for index in order], ""))) == 1
    assert shared_groups([sources[0], sources[2], sources[0]], "") == [0, 1, 0]


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
