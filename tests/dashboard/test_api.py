"""The API's responses, compared with what the sinks received."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from dashboard.api_client import NOW, SINK, ask, client
from dashboard.pipelines import HOSTILE, SQL, replay, write_events
from dpsqlp.dashboard import key_series
from dpsqlp.dashboard.api import Api
from dpsqlp.dashboard.app import make_app
from dpsqlp.dashboard.archive import ArchivingSink
from dpsqlp.dashboard.guard import Policy
from dpsqlp.dashboard.history import History
from dpsqlp.dashboard.key_index import KeyIndex
from dpsqlp.dashboard.key_series import KeySeries
from dpsqlp.dashboard.metadata import Metadata
from dpsqlp.dashboard.release import key_id
from dpsqlp.dashboard.release_reader import ReleaseReader
from dpsqlp.dashboard.release_sources import ParquetFolder, find_sources
from dpsqlp.dashboard.statement import guess_percent
from dpsqlp.engines.script import open_engine
from dpsqlp.errors import SinkError, StateError
from dpsqlp.sql import compile_script, explain_text
from support.fake_clock import FakeClock
from support.pipelines import Collected, step
from support.processes import until

pytestmark = pytest.mark.slow

HOUR = 3_600_000_000
WINDOWS = [1_714_521_600_000_000 + n * HOUR for n in range(3)]


def released(folder: Path, window: int) -> dict[str, dict[str, Any]]:
    """The last rows of a window, by page, from the sink's own files."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "out").glob("*.parquet")):
        table = pq.read_table(path)
        starts = table.column("window_start").cast(pa.int64()).to_pylist()
        for start, row in zip(starts, table.to_pylist(), strict=True):
            if start == window:
                found[row["url"]] = row
    return found


def all_rows(asked: Any, **parameters: Any) -> list[dict[str, Any]]:
    rows, page = [], 1
    while True:
        answer = ask(asked, f"{SINK}/keys", page=page, size=13, **parameters)
        rows += answer["rows"]
        if page == answer["pages"]:
            assert len(rows) == answer["total"]
            return rows
        page += 1


@pytest.mark.parametrize("window", WINDOWS)
def test_pages_of_keys_hold_what_the_sink_was_given(ran: Path, window: int) -> None:
    expected = released(ran, window)
    rows = all_rows(client(ran / "state"), window=window)
    assert set(HOSTILE) <= {row["key"][0] for row in rows}
    found = {row["key"][0]: row["values"] for row in rows}
    assert found == {
        url: [
            {"value": row["views"], "sd": row["views_sd"]},
            {"value": row["seconds"], "sd": row["seconds_sd"]},
            {"value": row["people"], "sd": row["people_sd"]},
        ]
        for url, row in expected.items()
    }
    values = [row["values"][0]["value"] for row in rows]
    assert values == sorted(values, reverse=True)


def test_order_search_and_the_newest_window(ran: Path) -> None:
    asked = client(ran / "state")
    newest = ask(asked, f"{SINK}/keys")
    assert newest["window"]["start_us"] == WINDOWS[-1]
    assert newest["due"] == "2024-05-01T03:00:00Z"
    seconds = [r["values"][1]["value"] for r in all_rows(asked, order="seconds", direction="asc")]
    assert seconds == sorted(seconds)
    names = [row["key"][0] for row in all_rows(asked, order="key", direction="asc")]
    assert names == sorted(names, key=lambda name: name.encode())
    for search, expected in (("PAGE/00", 10), ("<script", 1), ("%2f", 1), ("مرحبا", 1)):
        assert ask(asked, f"{SINK}/keys", search=search)["total"] == expected
    assert ask(asked, f"{SINK}/keys", search="/rare")["rows"] == []
    low, high = newest["scale"][0]
    cells = [row["values"][0] for row in all_rows(asked)]
    assert high == max(cell["value"] + 2 * cell["sd"] for cell in cells)
    assert low == min(0, *(cell["value"] - 2 * cell["sd"] for cell in cells))


@pytest.mark.parametrize("page", ["/news", HOSTILE[0], HOSTILE[2], HOSTILE[5], ""])
def test_a_series_has_every_release_of_a_key(ran: Path, page: str) -> None:
    expected = [
        (row["trigger"], row["views"], row["views_sd"])
        for path in sorted((ran / "out").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
        if row["url"] == page and row["window_start"].hour == 1
    ]
    series = ask(client(ran / "state"), f"{SINK}/key", id=key_id((page,)), window=WINDOWS[1])
    assert series["key"] == [page]
    points = zip(series["triggers"], series["values"][0], series["sd"][0], strict=True)
    assert list(points) == expected
    thresholds = ask(client(ran / "state"), f"{SINK}/statement")["numbers"]["selection"]
    assert series["threshold"][0] is None  # a count of records is not what is compared
    assert series["threshold"][2] == thresholds["thresholds"][-len(expected) :]


def test_a_series_grows_with_new_triggers(tmp_path: Path) -> None:
    write_events(tmp_path)
    state = replay(tmp_path, triggers=2)
    asked = client(state)
    name = key_id(("/",))
    assert len(ask(asked, f"{SINK}/key", id=name, window=WINDOWS[0])["triggers"]) == 2
    replay(tmp_path, triggers=1)
    assert len(ask(asked, f"{SINK}/key", id=name, window=WINDOWS[0])["triggers"]) == 3
    assert ask(asked, f"{SINK}/keys")["trigger"] == ask(asked, SINK)["last_trigger"]


def test_windows_are_listed_and_compared(ran: Path) -> None:
    asked = client(ran / "state")
    windows = ask(asked, f"{SINK}/windows")["windows"]
    assert [window["start_us"] for window in windows] == WINDOWS[::-1]
    assert all(window["closed"] for window in windows)
    compared = ask(asked, f"{SINK}/compare", windows=2, size=100)
    assert [window["start_us"] for window in compared["windows"]] == WINDOWS[:0:-1]
    first, second = (released(ran, start) for start in WINDOWS[:0:-1])
    for row in compared["rows"]:
        url = row["key"][0]
        values = [cells and cells[0]["value"] for cells in row["windows"]]
        assert values == [first[url]["views"], second[url]["views"] if url in second else None]
    assert len(ask(asked, "/api/v1/sinks/total/compare")["rows"]) == 1


def test_the_statement_is_that_of_explain(ran: Path) -> None:
    text = SQL.format(sink="connector = 'parquet', path = 'out'")
    sink = compile_script(text, folder=str(ran)).sinks[0]
    statement = ask(client(ran / "state"), f"{SINK}/statement")
    metadata = Metadata.read(ran / "state" / "popular.releases")
    assert metadata is not None
    engine = open_engine(
        sink, state=ran / "state", secret=ran / "secret", folder=ran, output=Collected()
    )
    with_plan = explain_text("popular", engine.query, engine.plan)
    engine.close()
    assert statement["text"] == with_plan
    assert statement["numbers"] == json.loads(json.dumps(metadata.numbers))
    assert (statement["numbers"]["epsilon"], statement["numbers"]["delta"]) == (8, 1e-4)
    assert f"{guess_percent(metadata.numbers)} %" in json.dumps(statement["plain"])


def test_a_guess_is_bounded_by_the_profile_at_epsilon_zero() -> None:
    numbers = {"nu": 1.0, "delta_threshold": 0.0, "epsilon_float": 0.0}
    assert guess_percent(numbers) == 70  # Phi(1/2) = 0.6915
    assert guess_percent(numbers | {"delta_threshold": 0.1}) == 75
    assert guess_percent(numbers | {"nu": 100.0}) == 100


@pytest.mark.parametrize(
    ("sink", "path"),
    [
        ("connector = 'parquet', path = 'out'", "out"),
        ("connector = 'jsonl', path = 'out'", "out"),
        ("connector = 'duckdb', path = 'out.duckdb'", "out.duckdb"),
    ],
)
def test_a_sink_is_served_like_the_state(tmp_path: Path, sink: str, path: str) -> None:
    """For every connector, and while the pipeline keeps writing."""
    write_events(tmp_path)
    state = replay(tmp_path, sink, triggers=5)
    from_sink, from_state = client(tmp_path / path), client(state)
    (found,) = ask(from_sink, "/api/v1/sinks")["sinks"]
    base = f"/api/v1/sinks/{found['name']}"

    def same() -> None:
        assert found["keys"] == ["url"]
        assert found["aggregates"] == ["views", "seconds", "people"]
        for window in (WINDOWS[0], WINDOWS[1]):
            left, right = (
                ask(asked, f"{where}/keys", window=window, size=100)
                for asked, where in ((from_sink, base), (from_state, SINK))
            )
            assert left["rows"] == right["rows"] != []
            assert left["window"] == right["window"]
        identity = {"id": key_id(("/",)), "window": WINDOWS[1]}
        left = ask(from_sink, f"{base}/key", **identity)
        right = ask(from_state, f"{SINK}/key", **identity)
        assert left["values"] == right["values"]

    same()
    replay(tmp_path, sink, triggers=2)
    same()
    assert len(ask(from_sink, f"{base}/key", id=key_id(("/",)), window=WINDOWS[1])["due"]) == 3
    answer = from_sink.get(f"{base}/statement")
    assert answer.status_code == 404
    assert "do not contain the privacy guarantee" in answer.json()["error"]
    (health,) = ask(from_sink, "/api/v1/health")["sinks"]
    assert health["status"] == "unknown"


def test_a_duckdb_file_is_not_held(tmp_path: Path) -> None:
    """A pipeline can write to it while it is served."""
    write_events(tmp_path)
    sink = "connector = 'duckdb', path = 'out.duckdb'"
    replay(tmp_path, sink, triggers=1)
    asked = client(tmp_path / "out.duckdb")
    ask(asked, "/api/v1/sinks")
    with duckdb.connect(str(tmp_path / "out.duckdb")) as database:
        database.execute("CREATE TABLE other (x INTEGER)")
    assert [s["name"] for s in ask(asked, "/api/v1/sinks")["sinks"]] == ["popular"]


def test_keys_of_every_type(tmp_path: Path) -> None:
    """Keys of every type, and NULL, have a series."""
    sql = """
    CREATE SOURCE s (unit BIGINT, a BIGINT, b DATE, c DOUBLE, d BOOLEAN, e TEXT);
    CREATE SINK t AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-3,
      privacy_unit_column = unit, max_rows_contributed = 1, mechanism = 'tree')
      a, b, c, d, e AS "odd "" name", COUNT(*) AS n FROM s GROUP BY a, b, c, d, e
      EMIT EVERY INTERVAL 1 SECOND FOR 3 TRIGGERS;
    """
    (sink,) = compile_script(sql).sinks
    kept = ArchivingSink(Collected(), tmp_path / "state", "t")
    engine = open_engine(
        sink,
        state=tmp_path / "state",
        secret=tmp_path / "secret",
        folder=tmp_path,
        output=kept,
        clock=FakeClock(),
    )
    made = duckdb.sql(
        "SELECT range AS unit, [-7, NULL][1 + range % 2] AS a, [DATE '2024-02-29', NULL][1 +"
        " range % 2] AS b, [0.1, NULL][1 + range % 2] AS c, [true, NULL][1 + range % 2] AS d,"
        " ['x', NULL][1 + range % 2] AS e FROM range(200)"
    )
    assert made is not None
    engine.source.push(made.to_arrow_table())  # type: ignore[attr-defined]
    kept.write_metadata(engine)
    step(engine)
    engine.close()
    asked = client(tmp_path / "state")
    page = ask(asked, "/api/v1/sinks/t/keys")
    assert page["window"]["start_us"] is None
    keys = [row["key"] for row in page["rows"]]
    assert sorted(keys, key=str) == [["-7", "2024-02-29", "0.1", "true", "x"], [None] * 5]
    for row in page["rows"]:
        series = ask(client(tmp_path / "state"), "/api/v1/sinks/t/key", id=row["id"])
        assert series["values"][0] == [row["values"][0]["value"]]


def test_answers_are_tagged_until_the_next_release(tmp_path: Path) -> None:
    write_events(tmp_path)
    asked = client(replay(tmp_path, triggers=2))
    first = asked.get(f"{SINK}/keys")
    again = asked.get(f"{SINK}/keys", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    replay(tmp_path, triggers=1)
    new = asked.get(f"{SINK}/keys", headers={"If-None-Match": first.headers["etag"]})
    assert new.status_code == 200
    assert asked.head(f"{SINK}/keys").status_code == 200


def test_health_follows_public_time(tmp_path: Path) -> None:
    write_events(tmp_path)
    state = replay(tmp_path, triggers=5)
    (sink, _) = ask(client(state), "/api/v1/health")["sinks"]
    assert sink["status"] == "stopped"
    assert (sink["triggers_run"], sink["triggers_in_all"]) == (5, 12)
    assert sink["last_due"] == "2024-05-01T01:15:00Z"
    metadata = state / "popular.releases" / "metadata.json"
    body = json.loads(metadata.read_bytes())
    body["trigger_grid"]["on_event_time"] = False
    metadata.write_text(json.dumps(body))
    (metadata.parent / "status.json").write_text('{"status": "running"}')
    due = 1_714_526_100_000_000
    for after, status in ((0, "running"), (29 * 60, "running"), (31 * 60, "late")):
        asked = client(state, now=due + after * 1_000_000)
        (sink, _) = ask(asked, "/api/v1/health")["sinks"]
        assert (sink["status"], sink["seconds_since_due"]) == (status, after)
        assert sink["next_due"] == "2024-05-01T01:30:00Z"
    (metadata.parent / "status.json").write_text('{"status": "failed"}')
    assert ask(client(state), "/api/v1/health")["status"] == "failed"


def test_health_is_as_old_as_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sink(tmp_path / "s", [row("a", 1)])
    clock, made = FakeClock(NOW), list[int]()
    api = Api(find_sources(tmp_path / "s", tmp_path), clock.now)
    health = api.health

    def counted() -> Any:
        made.append(clock.now())
        return health()

    monkeypatch.setattr(api, "health", counted)
    asked = TestClient(make_app(api, Policy()), base_url="http://127.0.0.1")
    until(lambda: api.version() is not None)
    shown = []
    for later in (0, 400_000, 599_999, 1, 0):
        clock.time += later
        shown.append(ask(asked, "/api/v1/health")["now"][-3:])
    assert (shown, made) == (["00Z", "00Z", "00Z", "01Z", "01Z"], [NOW, NOW + 10**6])


def test_metrics_are_prometheus_text(ran: Path) -> None:
    answer = client(ran / "state").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    rows = len(released(ran, WINDOWS[-1]))
    assert f'dpsqlp_released_rows{{sink="popular"}} {rows}' in lines
    assert 'dpsqlp_epsilon{sink="popular"} 8.0' in lines
    assert 'dpsqlp_late{sink="total"} 0' in lines
    for line in lines:
        assert line.startswith(("# HELP dpsqlp_", "# TYPE dpsqlp_", "dpsqlp_"))


@pytest.mark.parametrize(
    "query",
    [
        "page=0",
        "page=x",
        "page=1e3",
        "size=101",
        "size=-1",
        "direction=up",
        "window=now",
        "unknown=1",
        "page=1&page=2",
        "search=" + "x" * 201,
    ],
)
def test_wrong_parameters_are_refused_without_repeating_them(ran: Path, query: str) -> None:
    answer = client(ran / "state").get(f"{SINK}/keys?{query}")
    assert answer.status_code == 400
    given = query.split("=")[1]
    assert len(given) < 4 or given not in answer.json()["error"]


def test_what_is_not_there_is_said(ran: Path) -> None:
    asked = client(ran / "state")
    for address in (
        "/api/v1/sinks/none/keys",
        f"{SINK}/keys?window=5",
        f"{SINK}/keys?order=nothing",
        f"{SINK}/key?id={'0' * 32}",
        f"{SINK}/operator",
        "/nothing",
    ):
        assert asked.get(address).status_code == 404, address
    assert asked.get(f"{SINK}/key?id=XYZ").status_code == 400
    assert ask(asked, f"{SINK}/keys", page=999)["rows"] == []


def test_what_cannot_be_served_is_refused(ran: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="contains no releases"):
        find_sources(tmp_path, tmp_path)
    (tmp_path / "x.duckdb").write_text("no database")
    with pytest.raises(StateError, match="cannot be read as a DuckDB file"):
        find_sources(tmp_path / "x.duckdb", tmp_path)
    shutil.copytree(ran / "state" / "popular", tmp_path / "state" / "popular")
    with pytest.raises(StateError, match="has no archive"):
        find_sources(tmp_path / "state", tmp_path)
    assert len(find_sources(ran / "state" / "popular", tmp_path)) == 1
    assert len(find_sources(ran / "state" / "popular.releases", tmp_path)) == 1


def test_releases_of_two_pipelines_are_not_mixed(tmp_path: Path) -> None:
    write_events(tmp_path)
    state = replay(tmp_path, triggers=1)
    shutil.rmtree(state / "popular")
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(StateError, match="another pipeline"):
        replay(tmp_path, triggers=1)


def test_a_release_that_comes_again_replaces_its_file(tmp_path: Path) -> None:
    write_events(tmp_path)
    kept = replay(tmp_path, triggers=2) / "popular.releases"
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    replay(tmp_path, triggers=0)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert len([name for name in before if name.startswith("trigger-")]) == 2


def test_a_release_that_cannot_be_kept_stops_the_run(tmp_path: Path) -> None:
    """At the next trigger, or at the end."""
    (tmp_path / "t.releases").write_text("in the way")
    kept = ArchivingSink(Collected(), tmp_path, "t")
    kept.emit(1, pa.table({"trigger": [1]}))
    with pytest.raises(StateError, match="could not be written"):
        kept.emit(2, pa.table({"trigger": [2]}))
    with pytest.raises(StateError, match="could not be written"):
        kept.close()


@pytest.mark.parametrize("again", [True, False])
def test_a_release_that_could_not_be_kept_is_tried_again(tmp_path: Path, again: bool) -> None:
    """A full disk has room again: the archive has every release."""
    (tmp_path / "t.releases").write_text("in the way")
    kept = ArchivingSink(Collected(), tmp_path, "t")
    kept.emit(1, pa.table({"trigger": [1]}))
    with pytest.raises(StateError, match="could not be written"):
        kept.emit(2, pa.table({"trigger": [2]}))
    (tmp_path / "t.releases").unlink()
    if again:
        kept.emit(3, pa.table({"trigger": [3]}))
    kept.close()
    found = [pq.read_table(path)["trigger"].to_pylist() for path in sorted(kept.folder.iterdir())]
    assert found == [[1], [2], [3]][: 2 + again]


def test_a_kept_release_is_not_replaced(tmp_path: Path) -> None:
    """Given again, as after a restart, it stays; another is refused."""

    def kept(*values: int) -> None:
        sink = ArchivingSink(Collected(), tmp_path, "t")
        sink.emit(1, pa.table({"trigger": [1] * len(values), "n": values}))
        sink.close()

    kept(1, 2)
    [file] = (tmp_path / "t.releases").glob("trigger-*")
    before = file.read_bytes(), file.stat().st_mtime_ns
    kept(1, 2)
    with pytest.raises(SinkError, match=r"different rows.*Nothing was replaced"):
        kept(1, 3)
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


def test_the_dashboard_starts_before_the_first_trigger(tmp_path: Path) -> None:
    write_events(tmp_path)
    asked = client(replay(tmp_path, triggers=0))
    assert ask(asked, f"{SINK}/keys")["rows"] == []
    assert ask(asked, f"{SINK}/windows")["windows"] == []
    assert ask(asked, f"{SINK}/compare")["windows"] == []
    assert ask(asked, SINK)["aggregates"] == ["views", "seconds", "people"]
    assert asked.get(f"{SINK}/key?id={'0' * 32}").status_code == 404
    assert asked.get("/metrics").status_code == 200
    replay(tmp_path, triggers=1)
    assert ask(asked, f"{SINK}/keys")["total"] > 0


@pytest.mark.parametrize(("name", "neighbour"), [("views=7", "x"), ("x[1]", "x1"), ("x*", "xy")])
def test_a_folder_is_read_whatever_its_name(tmp_path: Path, name: str, neighbour: str) -> None:
    """DuckDB derives columns from folder names, and reads names as glob patterns."""
    key = key_id(("a",))
    for folder, views in ((name, 1), (neighbour, 2)):
        write_sink(tmp_path / folder / "state", [{"url": "a", "views": views, "views_sd": 1.0}])
    asked = client(tmp_path / name / "state")
    assert ask(asked, "/api/v1/sinks/state")["keys"] == ["url"]
    (row,) = ask(asked, "/api/v1/sinks/state/keys")["rows"]
    assert row["values"] == [{"value": 1, "sd": 1.0}]
    assert ask(asked, "/api/v1/sinks/state/key", id=key)["values"] == [[1]]


def write_sink(folder: Path, *releases: list[dict[str, Any]], first: int = 1) -> None:
    """What a parquet sink without windows writes."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("window_start", "window_end", "released_at")
    fixed = {**dict.fromkeys(names), "final": False}
    times = [(name, pa.timestamp("us")) for name in names]
    for trigger, rows in enumerate(releases, first):
        table = pa.Table.from_pylist(
            [fixed | {"trigger": trigger, "window_trigger": trigger} | row for row in rows]
        )
        for name, kind in times:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table.column(name).cast(kind))
        pq.write_table(table, folder / f"trigger-{trigger:012d}.parquet")


def row(url: str, views: int) -> dict[str, Any]:
    return {"url": url, "views": views, "views_sd": 1.0}


def test_an_unknown_name_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sink(tmp_path / "s", [row("a", 1), row("b", 2)], [row("a", 3)])
    asked = client(tmp_path / "s")
    made: list[int] = []
    read = KeyIndex._read_prefixes

    def counted(self: KeyIndex, trigger: int) -> Any:
        made.append(trigger)
        return read(self, trigger)

    monkeypatch.setattr(KeyIndex, "_read_prefixes", counted)
    for n in range(3):
        for _ in range(2):
            assert asked.get(f"/api/v1/sinks/s/key?id={n:032x}").status_code == 404
    assert sorted(made) == [1, 2]  # each release once, whatever is asked


def test_every_key_is_found_by_its_name(tmp_path: Path) -> None:
    """Python computes the ids of a page, DuckDB those of a whole release."""
    texts = [*(f"a{chr(code)}b" for code in range(0x21)), "", '"', "\\", "\\u000B", "\\u000b"]
    texts += ["</script>", "\x7f", "\u2028", "\U0001f600", "\u05d0\u202e", "\uffff", "x" * 10_000]
    keys = [(text, other) for text in (*texts, None) for other in (None, text)][:-1]
    write_sink(
        tmp_path / "s",
        [
            {"url": url, "code": code, "views": n, "views_sd": 1.0}
            for n, (url, code) in enumerate(keys)
        ],
    )
    asked = client(tmp_path / "s")  # which has listed none of them
    for n, key in enumerate(keys):
        found = ask(asked, "/api/v1/sinks/s/key", id=key_id(key))
        assert (found["key"], found["values"]) == (list(key), [[n]])


def test_seriess_that_are_watched_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file is read once for all requested keys, and not for others."""
    read: list[int] = []
    points = ReleaseReader.points

    def counted(self: ReleaseReader, keys: Any, *rest: Any) -> Any:
        read.append(len(keys))
        return points(self, keys, *rest)

    monkeypatch.setattr(ReleaseReader, "points", counted)
    folder, asked = tmp_path / "s", client_of_keys(tmp_path / "s", "a", "b", "c")
    assert read == [1, 1, 1]
    for trigger, rows in ((2, [row("b", 5), row("c", 6), row("d", 7)]), (3, [row("a", 8)])):
        write_sink(folder, rows, first=trigger)
        for name in "ab":
            series_of(asked, name)
    # Trigger 2: three were requested. Trigger 3: two, of which one is released again.
    assert read == [1, 1, 1, 3, 2]
    assert series_of(asked, "a") == ([1, 3], [[1, 8]])
    assert series_of(asked, "b") == ([1, 2], [[1, 5]])
    assert series_of(asked, "c") == ([1, 2], [[1, 6]])
    assert read == [1, 1, 1, 3, 2, 1]  # the third is extended at its next request


def test_watching_keys_of_two_columns_reads_no_other_combinations(tmp_path: Path) -> None:
    names = ["a", "b", None]
    rows = [{"x": x, "y": y, "views": 1, "views_sd": 1.0} for x in names for y in names]
    write_sink(tmp_path / "s", rows)
    history = History(ParquetFolder(tmp_path / "s"), 0.0)
    series = KeySeries(history)
    watched = [("a", "b"), ("b", None), (None, "a"), (None, None)]
    fetched: list[int] = []

    class Counting:
        def __init__(self, database: Any) -> None:
            self._database = database

        def execute(self, *query: Any) -> Counting:
            return Counting(self._database.execute(*query))

        def fetchall(self) -> list[Any]:
            found: list[Any] = self._database.fetchall()
            fetched.append(len(found))
            return found

    for last in (1, 2):
        history.refresh()
        window = history.windows()[0]
        history.columns()
        database, reader = history.reader._database, history.reader
        reader._database = Counting(database)  # type: ignore[assignment]
        for key in watched:
            points = series.points(key, window)
            assert [point.trigger for point in points] == list(range(1, last + 1))
        reader._database = database
        write_sink(tmp_path / "s", rows, first=last + 1)
    assert fetched == [1, 1, 1, 1, len(watched)]


def test_a_key_that_a_window_lacks_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {WINDOWS[0]: ["a"], WINDOWS[1]: ["a", "b", "c"]}
    rows = [row(name, 1) | {"window_start": w} for w, names in pairs.items() for name in names]
    write_sink(tmp_path / "s", rows)
    asked = client(tmp_path / "s")
    assert ask(asked, "/api/v1/sinks/s/keys")["total"] == 3
    read: list[int] = []
    points = History.points

    def counted(self: History, *what: Any) -> Any:
        read.append(1)
        return points(self, *what)

    monkeypatch.setattr(History, "points", counted)
    for _ in range(3):
        for name in "bc":
            lacking: dict[str, Any] = {"id": key_id((name,)), "window": WINDOWS[0]}
            assert asked.get("/api/v1/sinks/s/key", params=lacking).status_code == 404
    assert len(read) == 2


def test_a_trigger_that_comes_late_is_in_the_series(tmp_path: Path) -> None:
    """A folder that is being copied."""
    folder, asked = tmp_path / "s", client_of_keys(tmp_path / "s", "a", "b")
    write_sink(folder, [row("a", 3)], first=3)
    assert (series_of(asked, "a"), series_of(asked, "b")) == (([1, 3], [[1, 3]]), ([1], [[1]]))
    assert asked.get(f"/api/v1/sinks/s/key?id={key_id(('z',))}").status_code == 404
    write_sink(folder, [row("a", 2), row("b", 2), row("z", 2)], first=2)
    assert series_of(asked, "a") == ([1, 2, 3], [[1, 2, 3]])
    assert series_of(asked, "b") == ([1, 2], [[1, 2]])
    assert series_of(asked, "z") == ([2], [[2]])


def test_a_series_has_the_newest_triggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_series, "POINTS_MAX", 3)
    folder, asked = tmp_path / "s", client_of_keys(tmp_path / "s", "a")
    for trigger in range(2, 8):
        write_sink(folder, [row("a", trigger)], first=trigger)
        if trigger in (2, 7):
            expected = [n for n in range(1, trigger + 1) if n > trigger - 3]
            assert series_of(asked, "a") == (expected, [expected])


@pytest.mark.parametrize("value", [math.nan, -0.0, 0.0, math.inf, 1.5])
def test_keys_that_are_numbers_have_a_series(tmp_path: Path, value: float) -> None:
    kinds = [{"x": x, "views": 1, "views_sd": 1.0} for x in (-1.0, value, 9.0)]
    write_sink(tmp_path / "s", kinds, kinds)
    asked = client(tmp_path / "s")
    for listed in ask(asked, "/api/v1/sinks/s/keys")["rows"]:
        found = ask(asked, "/api/v1/sinks/s/key", id=listed["id"])
        assert (found["key"], found["triggers"]) == (listed["key"], [1, 2])


def client_of_keys(folder: Path, *names: str) -> Any:
    write_sink(folder, [row(name, 1) for name in names])
    asked = client(folder)
    for name in names:
        assert series_of(asked, name) == ([1], [[1]])
    return asked


def series_of(asked: Any, name: str) -> tuple[list[int], list[list[int]]]:
    found = ask(asked, "/api/v1/sinks/s/key", id=key_id((name,)))
    return found["triggers"], found["values"]


def test_a_key_that_the_newest_release_lacks_has_its_series(tmp_path: Path) -> None:
    """HAVING and LIMIT drop keys that were released before."""
    write_sink(tmp_path / "s", [row("b", 2)], [row("b", 4), row("a", 1)], [row("a", 3)])
    assert series_of(client(tmp_path / "s"), "b") == ([1, 2], [[2, 4]])


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
@pytest.mark.parametrize("trigger", [1, 3])
def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path, damage: str, trigger: int) -> None:
    write_sink(tmp_path / "s", *([row("a", n)] for n in (1, 2, 3)))
    path = tmp_path / "s" / f"trigger-{trigger:012d}.parquet"
    whole = path.read_bytes()
    if damage == "foreign":
        pq.write_table(pa.table({"x": [1]}), path)
    else:
        path.write_bytes(whole[:-9] if damage == "truncated" else b"")
    asked = client(tmp_path / "s")
    rest = [n for n in (1, 2, 3) if n != trigger]
    assert ask(asked, "/api/v1/sinks/s/keys")["trigger"] == rest[-1]
    assert series_of(asked, "a") == (rest, [rest])
    assert ask(asked, "/api/v1/health")["sinks"][0]["triggers_unreadable"] == 1
    assert asked.get("/metrics").status_code == 200
    path.unlink()
    path.write_bytes(whole)
    assert ask(asked, "/api/v1/sinks/s/keys")["trigger"] == 3
    assert series_of(asked, "a") == ([1, 2, 3], [[1, 2, 3]])  # the one that was mended too
    assert ask(asked, "/api/v1/health")["sinks"][0]["triggers_unreadable"] == 0


def test_lines_that_cannot_be_read_are_left_out(ran: Path, tmp_path: Path) -> None:
    shutil.copytree(ran / "total", tmp_path / "total")
    newest = max((tmp_path / "total").glob("*.jsonl"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-9])
    asked = client(tmp_path / "total")
    before = ask(asked, "/api/v1/sinks/total/keys")["trigger"]
    assert ask(asked, "/api/v1/health")["sinks"][0]["triggers_unreadable"] == 1
    placeholder = {path: path.stat() for path in tmp_path.rglob("trigger-*.parquet")}
    (tmp_path / "total" / "other").touch()  # the folder is listed again
    assert ask(asked, "/api/v1/sinks/total/keys")["trigger"] == before
    assert {path: path.stat() for path in placeholder} == placeholder  # and nothing is mended
    newest.write_bytes(whole.replace(b'"trigger":', b'"x": 9223372036854775808, "trigger":'))
    assert ask(asked, "/api/v1/sinks/total/keys")["trigger"] == before  # no number of Arrow's
    newest.unlink()
    newest.write_bytes(whole)
    assert ask(asked, "/api/v1/sinks/total/keys")["trigger"] == before + 1


def test_triggers_before_1970_are_found(tmp_path: Path) -> None:
    write_sink(tmp_path / "s", [row("a", 1)], [row("a", 2)], first=-94)
    assert series_of(client(tmp_path / "s"), "a") == ([-94, -93], [[1, 2]])


def test_a_key_may_be_called_window(tmp_path: Path) -> None:
    write_sink(tmp_path / "s", [{"window": "w", "views": 1, "views_sd": 1.0}])
    asked = client(tmp_path / "s")
    assert ask(asked, "/api/v1/sinks/s")["keys"] == ["window"]
    assert ask(asked, "/api/v1/sinks/s/keys")["rows"][0]["key"] == ["w"]


def test_the_folder_one_is_in_is_served(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, path in ((ran / "out", "."), (ran / "state" / "popular", "..")):
        monkeypatch.chdir(folder)
        assert {o.name for o in find_sources(Path(path), folder)} in (
            {"out"},
            {"popular", "total"},
        )
