"""Downloads hold released rows alone, and no text that a spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard.api_client import SINK, ask, client
from dpsqlp.dashboard import download
from dpsqlp.dashboard.download import TooLargeError, make_download, to_csv
from dpsqlp.dashboard.release import key_id

FORMULAS = [
    "=1+1",
    '=HYPERLINK("http://x";"y")',
    "+1",
    "-1+2",
    "@SUM(A1)",
    "  =1",
    "\t=1",
    "\r=1",
    "\n-1",
    "\x00=1",
    'quoted",=1',
    "a;=1",
    "a; @x",
    "a|=1",
    "a\tb\t+1",
    "a\r\n=1",
    "＝1",
    "＋1",
    "－1",
    "＠x",
]
PLAIN = ["/page", "a-b", "x=y", "a@b", "", "a,b", '"', "2024-05-01", "١", "a; b", "'"]
HOUR = 3_600_000_000


def written(texts: list[str | None], name: str = "url") -> bytes:
    return to_csv(pa.table({name: pa.array(texts, pa.string()), "n": range(len(texts))}))


def cells(body: bytes, separator: str) -> list[str]:
    """Every cell, as a program reads it that takes this for the end of a cell."""
    rows = csv.reader(io.StringIO(body.decode(), newline=""), delimiter=separator)
    return [cell for row in rows for cell in row]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_key_is_a_formula_in_csv(separator: str) -> None:
    """Wherever a program has cells end: quotes hold only where a cell begins with one."""
    for formula in FORMULAS:
        for cell in cells(written([formula]), separator):
            assert not re.match(r"[\s\x00]*[=+\-@＝＋－＠]", cell), (formula, cell)


def test_other_keys_and_numbers_are_unchanged_in_csv() -> None:
    rows = list(csv.reader(io.StringIO(written([*PLAIN, None]).decode(), newline="")))
    assert [row[0] for row in rows] == ["url", *PLAIN, ""]
    numbers = to_csv(pa.table({"n": [-5, 7], "x": [-0.5, 1e300], "final": [True, False]}))
    assert numbers.decode().splitlines()[1:] == ["-5,-0.5,true", "7,1e+300,false"]
    assert written(["=1"], "@x").decode().splitlines() == ['"\'@x","n"', '"\'=1",0']


def test_null_and_the_empty_text_differ_in_csv() -> None:
    assert written([None, ""]).decode().splitlines()[1:] == [",0", '"",1']


def test_a_download_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"url": ["x" * 1000]})
    monkeypatch.setattr(download, "BYTES_MAX", 1000)
    with pytest.raises(TooLargeError, match="search for part of a key"):
        make_download(rows, "s", "keys", "csv")


def test_a_file_name_has_nothing_of_a_header() -> None:
    made = make_download(pa.table({"n": [1]}), 'a"\r\nX: y/../ü' + "z" * 200, "keys", "csv")
    assert re.fullmatch(r"a_X_y_z+-keys\.csv", made.name)
    assert len(made.name) < 100


def rows_of(asked: Any, address: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = asked.get(address, params={**parameters, "format": "parquet"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith('attachment; filename="popular-')
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(answer.content)).to_pylist()
    return found


def published(folder: Path) -> list[dict[str, Any]]:
    """All rows that the sink was given."""
    files = sorted((folder / "out").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.slow
def test_a_download_has_the_rows_of_the_sink(ran: Path) -> None:
    asked, rows = client(ran / "state"), published(ran)
    windows = ask(asked, f"{SINK}/windows")["windows"]
    start = rows[0]["window_start"]
    newest = max(row["window_start"] for row in rows)
    final = [row for row in rows if row["final"]]
    by_views = sorted((r for r in final if r["window_start"] == newest), key=lambda r: r["views"])
    found = rows_of(asked, f"{SINK}/keys/download")
    assert found == sorted(found, key=lambda row: -row["views"])
    assert sorted(found, key=str) == sorted(by_views, key=str)
    some = rows_of(asked, f"{SINK}/keys/download", search="page/00", order="key", direction="asc")
    assert [row["url"] for row in some] == [f"/page/00{n}" for n in range(10)]
    assert len(rows_of(asked, f"{SINK}/keys/download", size=7, page=2)) == 7
    two = rows_of(asked, f"{SINK}/compare/download", windows=2, search="/news")
    assert two == [row for row in final[::-1] if row["url"] == "/news"][:2]
    key = {"id": key_id(("/news",)), "window": windows[-1]["start_us"]}
    expected = [row for row in rows if row["url"] == "/news" and row["window_start"] == start]
    assert rows_of(asked, f"{SINK}/key/download", **key) == expected
    over = rows_of(asked, f"{SINK}/key/windows/download", **key)
    assert over == [row for row in final if row["url"] == "/news"]


@pytest.mark.slow
def test_csv_and_parquet_have_the_same_rows(ran: Path, tmp_path: Path) -> None:
    """But for the guarded texts."""
    asked = client(ran / "state")
    answer = asked.get(f"{SINK}/keys/download")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["cache-control"] == "private, no-store"
    (tmp_path / "download.csv").write_bytes(answer.content)
    relation = duckdb.read_csv(str(tmp_path / "download.csv"), all_varchar=True)
    read = relation.to_arrow_table()
    rows = rows_of(asked, f"{SINK}/keys/download")
    assert read.column_names == list(rows[0])
    assert read["views"].to_pylist() == [str(row["views"]) for row in rows]
    assert read["views_sd"].cast(pa.float64()).to_pylist() == [row["views_sd"] for row in rows]


@pytest.mark.slow
def test_a_download_of_nothing_is_said(ran: Path) -> None:
    asked = client(ran / "state")
    for query, status in (
        ("/keys/download?format=xlsx", 400),
        ("/keys/download?size=100001", 400),
        ("/keys/download?window=5", 404),
        (f"/key/download?id={'0' * 32}", 404),
        ("/key/windows/download?id=x", 400),
        ("/keys/download?search=nothing-like-it", 200),
    ):
        assert asked.get(SINK + query).status_code == status, query
