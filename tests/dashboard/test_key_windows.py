"""The values of a key over windows, and the changes from window to window."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard.api_client import SINK, ask, client
from dpsqlp.dashboard.encoding import encode_changes
from dpsqlp.dashboard.history import History
from dpsqlp.dashboard.metadata import Window
from dpsqlp.dashboard.release import key_id
from dpsqlp.dashboard.statement import bounds_note


def cell(value: float | None, sd: float | None = 3.0) -> list[dict[str, Any]]:
    return [{"value": value, "sd": sd}]


def span(start: int, *, closed: bool = True, size: int = 10) -> Window:
    return Window(start, start + size, start + size, closed)


def changes(*cells: list[dict[str, Any]] | None, windows: list[Window] | None = None) -> Any:
    given = windows or [span(10 * n) for n in reversed(range(len(cells)))]
    return encode_changes(cells, given)


def test_the_noise_of_two_windows_adds_up() -> None:
    assert changes(cell(7, 3.0), cell(12, 4.0)) == [[{"value": -5, "sd": 5.0}], None]


def test_a_change_needs_both_values() -> None:
    assert changes(cell(7), None, cell(5)) == [None, None, None]
    assert changes(cell(None), cell(5)) == [[None], None]
    assert changes(cell(7, None), cell(5)) == [[{"value": 2, "sd": None}], None]
    assert changes() == []


def test_a_change_is_between_final_windows_that_follow_each_other() -> None:
    opened = [span(10, closed=False), span(0)]
    apart = [span(20), span(0)]
    overlapping = [span(5), span(0)]
    for windows, known in ((opened, False), (apart, False), (overlapping, True)):
        found = changes(cell(7), cell(5), windows=windows)
        assert (found[0] is not None) == known


@pytest.mark.slow
def test_each_window_has_its_last_value(ran: Path) -> None:
    asked = client(ran / "state")
    files = sorted((ran / "out").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    final = [row for row in rows if row["final"] and row["url"] == "/sport"][::-1]
    oldest = ask(asked, f"{SINK}/windows")["windows"][-1]["start_us"]
    for window in ({}, {"window": oldest}):
        found = ask(asked, f"{SINK}/key/windows", id=key_id(("/sport",)), **window)
        assert found["key"] == ["/sport"]
        assert [values[0] for values in found["values"]] == [
            {"value": row["views"], "sd": row["views_sd"]} for row in final
        ]
        late, early = final[:2]
        assert found["changes"][0][0]["value"] == late["views"] - early["views"]
        expected = math.hypot(late["views_sd"], early["views_sd"])
        assert found["changes"][0][0]["sd"] == pytest.approx(expected)
    compared = ask(asked, f"{SINK}/compare", search="/sport", windows=2)["rows"][0]
    assert compared["changes"] == found["changes"][:2]  # the last with the window that is not shown


def write(folder: Path, trigger: int, *rows: tuple[str, int, int, bool]) -> None:
    """A release of windows of ten microseconds: key, start, value, whether it is final."""
    folder.mkdir(exist_ok=True)
    table = pa.table(
        {
            "window_start": pa.array([row[1] for row in rows], pa.timestamp("us")),
            "window_end": pa.array([row[1] + 10 for row in rows], pa.timestamp("us")),
            "trigger": [trigger] * len(rows),
            "released_at": pa.array([trigger] * len(rows), pa.timestamp("us")),
            "window_trigger": [trigger] * len(rows),
            "final": [row[3] for row in rows],
            "url": [row[0] for row in rows],
            "views": [row[2] for row in rows],
            "views_sd": [1.0] * len(rows),
        }
    )
    pq.write_table(table, folder / f"trigger-{trigger:012d}.parquet")


def test_only_new_windows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows are open at each trigger; an open one has another value at the next."""
    folder = tmp_path / "s"
    write(folder, 1, ("a", 0, 1, False))
    write(folder, 2, ("a", 0, 2, True), ("a", 10, 3, False), ("b", 10, 9, False))
    asked = client(folder)
    read: list[int] = []
    points = History.points

    def counted(self: History, keys: Any, starts: Any, triggers: Any) -> Any:
        read.append(len(starts))
        return points(self, keys, starts, triggers)

    monkeypatch.setattr(History, "points", counted)

    def values() -> list[int | None]:
        found = ask(asked, "/api/v1/sinks/s/key/windows", id=key_id(("a",)))
        return [cells and cells[0]["value"] for cells in found["values"]]

    assert values() == [3, 2]
    write(folder, 3, ("a", 10, 4, True), ("b", 20, 7, False))
    assert values() == [None, 4, 2]
    assert read == [2, 2]  # the window that has ended, and the new one


def test_a_stream_without_windows_has_one_value(tmp_path: Path) -> None:
    write(tmp_path / "s", 1, ("a", 0, 1, False))
    path = tmp_path / "s" / f"trigger-{1:012d}.parquet"
    table = pq.read_table(path)
    for name in ("window_start", "window_end"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.nulls(1, pa.timestamp("us")))
    pq.write_table(table, path)
    found = ask(client(tmp_path / "s"), "/api/v1/sinks/s/key/windows", id=key_id(("a",)))
    assert found["values"] == [[{"value": 1, "sd": 1.0}]]
    assert found["changes"] == [None]
    address = f"/api/v1/sinks/s/key/windows/download?id={key_id(('a',))}"
    assert client(tmp_path / "s").get(address).content.count(b"\n") == 2


def test_what_bounds_do_to_values_is_said() -> None:
    numbers = {"unit": ["user", "day"], "columns": [{"kind": "count"}]}
    note = bounds_note(numbers)
    assert "the bounds on each user and day are dropped. Counts" in note
    assert "biased down" in note
    summed = bounds_note(numbers | {"columns": [{"kind": "sum"}]})
    assert "dropped, and values that are summed are clamped." in summed
    assert "each unit" in bounds_note(None)
