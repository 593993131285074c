"""The Python interface: open, feed, trigger, read, go on."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsqlp
from dpsqlp.engines import clock
from dpsqlp.errors import (
    DpsqlpError,
    PlanError,
    SinkError,
    SourceError,
    StateError,
    TriggerError,
    UnavailableError,
)

OPTIONS = "epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1"
PRIVATE = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}) url, COUNT(*) AS views"
SOURCE = "CREATE SOURCE page_views (url TEXT, user_id BIGINT, ts TIMESTAMP)"
SQL = f"""{SOURCE};
CREATE SINK popular AS {PRIVATE} FROM page_views GROUP BY url
EMIT EVERY INTERVAL 1 SECOND FOR 4 TRIGGERS;
"""
WINDOWED = f"""{SOURCE};
CREATE SINK popular AS {PRIVATE} FROM page_views GROUP BY url, TUMBLE(ts, INTERVAL 1 HOUR)
EMIT EVERY INTERVAL 10 MINUTES;
"""
REPLAY = f"""{SOURCE} WITH (connector = 'files', path = 'events/*.parquet');
CREATE SINK popular WITH (connector = 'jsonl', path = 'out') AS
{PRIVATE} FROM page_views GROUP BY url, TUMBLE(ts, INTERVAL 1 HOUR)
EMIT EVERY INTERVAL 10 MINUTES
ON EVENT TIME FROM TIMESTAMP '2024-01-01 00:00:00' TO TIMESTAMP '2024-01-01 01:00:00';
"""
USERS = 200


def views(trigger: int, url: str = "/home") -> dict[str, list[Any]]:
    """Views of one page, each by a user of its own, and one of a rare page."""
    users = list(range(trigger * 1000, trigger * 1000 + USERS + 1))
    return {
        "url": [url] * USERS + ["/rare"],
        "user_id": users,
        "ts": [pd.Timestamp("2024-01-01")] * (USERS + 1),
    }


def counts(release: dpsqlp.Release) -> dict[str, int]:
    return {row["url"]: row["views"] for row in release.table.to_pylist()}


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "numba pyarrow scipy duckdb numpy sqlglot typer rich"
    code = f"import sys, dpsqlp; print([m for m in '{heavy}'.split() if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
    names = {"open", "read", "Stream", "Release", "History", "preview", "tune"}
    assert names <= set(dir(dpsqlp))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpsqlp.nothing


@pytest.mark.parametrize("closing", [True, False])
def test_the_last_release_has_keys_that_were_never_shown(tmp_path: Path, closing: bool) -> None:
    """At the last trigger, what units have not spent selects pages too small for votes."""
    given = OPTIONS.replace("max_rows_contributed = 1", "max_contribution_norm = 8")
    given += f", max_selections_contributed = 32, group_selection_closing = {closing}"
    with dpsqlp.open(SQL.replace(OPTIONS, given), state=tmp_path / "state") as stream:
        stream.feed(views(1))
        small = [(f"/page/{n}", 5000 + 12 * n + user) for n in range(10) for user in range(12)]
        urls, users = zip(*small, strict=True)
        stream.feed({"url": urls, "user_id": users, "ts": [None] * len(urls)})
        releases = [stream.trigger() for _ in range(4)]
        assert stream.finished
    first, *_, before, last = (set(counts(release)) for release in releases)
    assert first == before == {"/home"}
    assert "/rare" not in last
    assert ("/page/0" in last and len(last) > 5) is closing
    deviations = [release.table["views_sd"][0].as_py() for release in releases]
    assert deviations[-1] < deviations[-2]


def test_frames_of_every_kind_are_fed_and_releases_read_as_every_kind(tmp_path: Path) -> None:
    with dpsqlp.open(SQL, state=tmp_path / "state") as stream:
        assert "next_trigger=1" in repr(stream)
        stream.feed(views(1))
        first = stream.trigger()
        stream.feed(pa.table(views(2)))
        second = stream.trigger()
        stream.feed(pd.DataFrame(views(3)))
        third = stream.trigger()
        stream.feed(pl.DataFrame(views(4)))
        fourth = stream.trigger()
        assert stream.finished
        with pytest.raises(TriggerError, match="has run"):
            stream.trigger()
        assert [release.trigger for release in stream.releases()] == [1, 2, 3, 4]
    for number, release in enumerate([first, second, third, fourth], 1):
        assert release.trigger == number
        (key,) = counts(release)
        assert key == "/home"
        assert abs(counts(release)[key] - number * USERS) < 30
    assert list(first.to_pandas()["url"]) == ["/home"]
    assert first.to_polars()["url"].to_list() == ["/home"]
    assert "rows=1" in repr(first)


def test_records_fed_late_are_not_lost_without_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program calls for a trigger; the clock does not make it a missed one."""
    with dpsqlp.open(SQL, state=tmp_path / "state") as stream:
        now = stream._engine.clock.now()
        monkeypatch.setattr(clock.SystemClock, "now", lambda self: now + 3_600_000_000)
        stream.feed(views(1))
        assert counts(stream.trigger())["/home"] > USERS / 2


def test_a_stream_goes_on_with_its_state(tmp_path: Path) -> None:
    file = tmp_path / "views.sql"
    file.write_text(SQL)
    with dpsqlp.open(file) as stream:
        stream.run([views(1), views(2)])
        with pytest.raises(StateError, match="This process has the state"):
            dpsqlp.open(file)
        last = stream.releases()[-1]
    assert (tmp_path / "views.secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "views.state").is_dir()
    with pytest.raises(StateError, match="closed"):
        stream.trigger()
    with dpsqlp.open(str(file)) as stream:
        assert stream.next_trigger == 3
        assert [release.trigger for release in stream.releases()] == [2]
        assert stream.releases()[0].table == last.table
        stream.feed(views(3))
        assert abs(counts(stream.trigger())["/home"] - 3 * USERS) < 30


def test_a_second_open_of_one_program_is_told_so(tmp_path: Path) -> None:
    """As in a notebook whose cell runs twice; it is not the fault of another process."""
    with (
        dpsqlp.open(SQL, state=tmp_path / "state"),
        pytest.raises(StateError, match=r"This process has .* open already.*close that one first"),
    ):
        dpsqlp.open(SQL, state=tmp_path / "state")
    dpsqlp.open(SQL, state=tmp_path / "state").close()


def test_a_failed_trigger_is_finished_after_opening_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may be ahead of the disk, so the stream refuses to go on from it."""
    stream = dpsqlp.open(SQL, state=tmp_path / "state")
    stream.feed(views(1))

    def fail(*args: Any, **shown: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(stream._engine.journal, "commit", fail)
    with pytest.raises(OSError, match="no space"):
        stream.trigger()
    with pytest.raises(StateError, match="Open the stream again"):
        stream.trigger()
    with dpsqlp.open(SQL, state=tmp_path / "state") as stream:
        assert stream.next_trigger == 2
        assert abs(counts(stream.releases()[0])["/home"] - USERS) < 30


def test_a_session_has_one_release_of_a_trigger(tmp_path: Path) -> None:
    """Given again it is the same; another is refused."""
    with dpsqlp.open(SQL, state=tmp_path / "state") as stream:
        stream.feed(views(1))
        release = stream.trigger()
        assert len(release) > 0
        stream._session.emit(1, pa.table(release.table.to_pydict(), release.table.schema))
        with pytest.raises(SinkError, match="different rows"):
            stream._session.emit(1, release.table.slice(1))
        assert stream.releases()[0].table == release.table


def test_windows_on_the_clock_run_every_trigger_that_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = 1_704_067_200_000_000  # 2024-01-01 00:00:00 UTC
    monkeypatch.setattr(clock.SystemClock, "now", lambda self: time)
    with dpsqlp.open(WINDOWED, state=tmp_path / "state") as stream:
        stream.feed(views(1))
        with pytest.raises(TriggerError, match="next one is at 2024-01-01 00:10:00 UTC"):
            stream.trigger()
        assert stream.next_trigger_at == datetime(2024, 1, 1, 0, 10, tzinfo=UTC)
        with pytest.raises(TriggerError, match="by the clock"):
            stream.run()
        time += 1_800_000_000
        release = stream.trigger()
        assert [r.trigger for r in stream.releases()] == [release.trigger - n for n in (2, 1, 0)]
        assert [len(r) for r in stream.releases()] == [0, 0, 1]
        assert "/home" in counts(release)


def test_a_release_that_was_not_taken_is_published_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when another trigger is due."""
    time = 1_704_067_200_000_000  # 2024-01-01 00:00:00 UTC
    monkeypatch.setattr(clock.SystemClock, "now", lambda self: time)
    with dpsqlp.open(WINDOWED, state=tmp_path / "w.state") as stream:
        stream.feed(views(1))
        time += 600_000_000
        with monkeypatch.context() as patched:
            patched.setattr(stream._session, "emit", Mock(side_effect=UnavailableError("away")))
            with pytest.raises(UnavailableError):
                stream.trigger()
        release = stream.trigger()
        assert release.trigger == stream.next_trigger - 1
        assert len(release) == 1
        with pytest.raises(TriggerError, match="No trigger is due"):
            stream.trigger()


def test_files_are_run_to_the_end_and_releases_also_go_to_the_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").mkdir()
    pq.write_table(pa.table(views(1)), tmp_path / "events" / "a.parquet")
    with dpsqlp.open(REPLAY, state="views.state", sink="POPULAR") as stream:
        with pytest.raises(SourceError, match="reads its records itself"):
            stream.feed(views(1))
        releases = stream.run()
        assert len(releases) == 6
        assert stream.finished
        assert "differentially private for each user_id" in stream.explain()
        assert [len(r) for r in releases] == [1] * 6
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 6


def test_a_release_is_shown_as_html() -> None:
    table = pa.table({"url": ["<b>"] + ["/"] * 30, "views": [1.5] * 31})
    text = dpsqlp.Release(table, 3)._repr_html_()
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert "and 11 more rows" in text
    assert len(dpsqlp.Release(table, 3)) == 31


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ([1], "got list"),
        ({"url": ["/"]}, "lack the columns"),
        ({"url": ["/", "/"], "user_id": [1], "ts": [None]}, "no table"),
    ],
)
def test_bad_frames_are_refused_without_showing_them(
    frame: Any, message: str, tmp_path: Path
) -> None:
    with dpsqlp.open(SQL, state=tmp_path / "state") as stream:
        with pytest.raises(SourceError, match=message) as caught:
            stream.feed(frame)
        assert "confidential" not in str(caught.value)


def test_what_cannot_be_opened_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StateError, match="needs a folder"):
        dpsqlp.open(SQL)
    with pytest.raises(PlanError, match="Check the path"):
        dpsqlp.open(tmp_path / "missing.sql")
    with pytest.raises(PlanError, match="sinks popular; got 'other'"):
        dpsqlp.open(SQL, state=tmp_path / "state", sink="other")
    two = SQL + SQL.partition(";")[2].replace("popular", "second")
    with pytest.raises(PlanError, match="none was named"):
        dpsqlp.open(two, state=tmp_path / "state")
    with pytest.raises(DpsqlpError, match="inside the state"):
        dpsqlp.open(SQL, state=tmp_path / "state", secret=tmp_path / "state" / "secret")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(DpsqlpError, match="pip install polars"):
        dpsqlp.Release(pa.table({}), 1).to_polars()


def test_public_tables_come_from_python(tmp_path: Path) -> None:
    joined = SQL.replace("FROM page_views", "FROM page_views JOIN known USING (url)")
    known = pd.DataFrame({"url": ["/home"]})
    with dpsqlp.open(joined, state=tmp_path / "state", tables={"known": known}) as stream:
        stream.feed(views(1))
        assert list(counts(stream.trigger())) == ["/home"]


def test_one_thread_at_a_time_runs_triggers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dpsqlp.open(SQL, state=tmp_path / "state") as stream:
        stream.feed(views(1))
        step, refused = stream._engine.step, []

        def meanwhile() -> Any:
            with pytest.raises(TriggerError, match="Another thread"):
                stream.trigger()
            refused.append(True)
            return step()

        monkeypatch.setattr(stream._engine, "step", meanwhile)
        assert "/home" in counts(stream.trigger())
        assert refused


def test_tune_and_preview_from_python(tmp_path: Path) -> None:
    """As on the command line: options and a script with them; a table beside the truth."""
    users = [user for user in range(600) for _ in range(3)]
    table = pa.table({"url": [f"/{user % 3}" for user in users], "user_id": users, "ts": users})
    table = table.set_column(2, "ts", table.column("ts").cast(pa.timestamp("s")))
    pq.write_table(table, tmp_path / "sample.parquet")
    sql = SQL.replace("max_rows_contributed = 1", "max_contribution_norm = 1")
    sample = tmp_path / "sample.parquet"
    tuning = dpsqlp.tune(sql, sample, candidates=24, epsilons=[1.0])
    assert tuning.clause in tuning.script
    assert tuning.best.candidate.squared_norm > 1
    before, after = (dpsqlp.preview(text, sample) for text in (sql, tuning.script))
    assert after.figures.columns[0].bias[0] < before.figures.columns[0].bias[0]
    assert before.table.column("views_truth").to_pylist() == [600.0] * 3
