"""Releases in hand: frames that are replayed, all releases as one table, a plot of a key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dpsqlp
from dpsqlp.errors import DpsqlpError, SourceError
from support.databases import shared_database

START = datetime(2024, 1, 1)
REPLAY = """CREATE SOURCE page_views (url TEXT, user_id BIGINT, ts TIMESTAMP);
CREATE SINK popular WITH (connector = '{connector}') AS SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 20, delta = 1e-4, privacy_unit_column = user_id, max_contribution_norm = 2)
  url, COUNT(*) AS views FROM page_views GROUP BY url, TUMBLE(ts, INTERVAL 1 HOUR)
EMIT EVERY INTERVAL 30 MINUTES
ON EVENT TIME FROM TIMESTAMP '2024-01-01 00:00:00' TO TIMESTAMP '2024-01-01 02:00:00';
"""


@pytest.fixture(scope="module", autouse=True)
def one_database() -> Iterator[None]:
    with shared_database():
        yield


def views(first_minute: int, users: int = 300) -> dict[str, list[Any]]:
    """Views of two pages within ten minutes, each by a user of its own."""
    at = START + timedelta(minutes=first_minute)
    people = range(first_minute * 1000, first_minute * 1000 + users)
    return {
        "url": ["/home" if user % 3 else "/news" for user in people],
        "user_id": list(people),
        "ts": [at + timedelta(seconds=user % 600) for user in people],
    }


def opened(folder: Path, connector: str = "python") -> dpsqlp.Stream:
    (folder / "views.sql").write_text(REPLAY.format(connector=connector))
    return dpsqlp.open(folder / "views.sql")


def test_frames_are_replayed_by_their_own_times(tmp_path: Path) -> None:
    """In any order, of any kind. The times of release are those of the grid."""
    with opened(tmp_path) as stream:
        releases = stream.run([pa.table(views(65)), views(5), views(95)])
        assert stream.finished
        history = stream.history()
    first = releases[0].trigger
    assert [release.trigger for release in releases] == [first, first + 1, first + 2, first + 3]
    rows = history.table.to_pylist()
    assert rows == [row for release in releases for row in release.table.to_pylist()]
    assert {row["url"] for row in rows} == {"/home", "/news"}
    for row in rows:
        number = row["trigger"] - first
        assert row["released_at"] == START + timedelta(minutes=30 * (number + 1))
        assert row["window_trigger"] == number % 2 + 1
        assert row["final"] == (row["window_trigger"] == 2)
    home = [row["views"] for row in rows if row["url"] == "/home"]
    assert home == pytest.approx([200, 200, 200, 400], abs=40)


def test_a_history_outlives_the_stream(tmp_path: Path) -> None:
    """Another stream has it too, and frames that come too late are refused."""
    with opened(tmp_path) as stream:
        stream.feed(views(5))
        first = stream.trigger()
    with opened(tmp_path) as stream:
        with pytest.raises(SourceError, match="before its first trigger"):
            stream.feed(views(95))
        stream.run()
        history = stream.history()
        assert len(stream.releases()) == 4
    assert history.table.slice(0, len(first)) == first.table
    read = dpsqlp.read(tmp_path / "views.state")
    assert read.table == dpsqlp.read(tmp_path / "views.state", sink="popular").table
    assert read.table == history.table
    assert read.to_pandas().shape == read.to_polars().shape == read.table.shape
    assert repr(read).startswith(f"History(rows={len(history)}, ")
    assert "released_at" in read._repr_html_()
    with pytest.raises(DpsqlpError, match="releases of popular; got 'other'"):
        dpsqlp.read(tmp_path / "views.state", sink="other")
    with pytest.raises(DpsqlpError, match="has no releases"):
        dpsqlp.read(tmp_path)


@pytest.mark.parametrize("connector", ["parquet", "jsonl", "duckdb"])
def test_a_sink_is_read_as_the_state_is(connector: str, tmp_path: Path) -> None:
    with opened(tmp_path, connector) as stream:
        stream.run([views(5), views(95)])
        history = stream.history()
    assert dpsqlp.read(tmp_path / "popular").table.to_pylist() == history.table.to_pylist()


def test_a_key_is_drawn_with_its_band(tmp_path: Path) -> None:
    """A line for each window; what is no single key is refused."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    with opened(tmp_path) as stream:
        stream.run([views(5), views(35), views(65), views(95)])
        history = stream.history()
    ax = history.plot({"url": "/home"})
    assert [len(line.get_xdata()) for line in ax.lines] == [2, 2]
    assert len(ax.collections) == 2
    assert ax.get_ylabel() == "views"
    assert history.plot({"url": "/news"}, "views", ax=ax) is ax
    assert len(ax.lines) == 4
    for key, value, said in (
        ({"url": "/nowhere"}, None, "No release has this key"),
        ({}, None, "Several keys"),
        ({"page": "/home"}, None, "no column page"),
        ({"url": "/home"}, "vews", "no aggregate vews"),
    ):
        with pytest.raises(DpsqlpError, match=said):
            history.plot(key, value)
