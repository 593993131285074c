"""Reports: a page of its own, numbers as JSON, and what must be said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpsqlp.sql import SinkDef, compile_script
from dpsqlp.tuning.figures import SizeClass
from dpsqlp.tuning.preview import preview_query
from dpsqlp.tuning.report import bars, preview_tables, tuning_tables
from dpsqlp.tuning.tune import Tuning, tune_query
from tuning.samples import sample_rows, script, write_rows

TWO = 'k, COUNT(*) AS n, AVG(x, contribution_bounds_per_row => (-2, 8)) AS "<b>mean</b>"'


@pytest.fixture(scope="module", params=[TWO, "k"], ids=["values", "keys alone"])
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    folder = tmp_path_factory.mktemp("tuned")
    write_rows(folder / "sample" / "a.parquet", units=800)
    sql = script(select=request.param)
    rows = sample_rows(sql, folder, units=900)
    goal = "live" if request.param == TWO else "keys"
    return tune_query(
        sql,
        compile_script,
        SinkDef("t", {}, rows.query),
        rows,
        goal,  # type: ignore[arg-type]
        candidates=8,
        seed=1,
        threads=2,
        epsilons=[2.0],
        report=lambda *_: None,
    )


class Loads(HTMLParser):
    """What a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note scripts, and attributes that name a resource."""
        if tag in ("script", "link", "img", "iframe", "object", "b"):
            self.found.append(tag)
        self.found += [name for name, _ in attrs if name in ("src", "href", "data", "srcset")]


def test_a_page_needs_nothing_else(tuned: Tuning) -> None:
    """No script, no link, no picture, no address; names are escaped."""
    page = tuned.to_html()
    loads = Loads()
    loads.feed(page)
    assert loads.found == []
    assert not re.search(r"https?:|url\(|@import", page)
    assert "OPTIONS (" in page


def test_what_must_be_said_is_said(tuned: Tuning) -> None:
    """That the private stream is no sample, that drawing units adds no groups, what bias is."""
    said = " ".join(tuned.notes)
    assert "outside the promise" in said
    assert "no new groups" in said
    assert "the cap bias, from rows that the unit's budget drops, is in no error bar" in said


def test_numbers_are_json(tuned: Tuning) -> None:
    """With the recommended clause, and the options as they stand."""
    body = json.loads(json.dumps(tuned.to_dict(), allow_nan=False))
    assert body["recommended"]["clause"] == tuned.clause
    assert body["recommended"]["options"] == tuned.options
    assert body["now"]["options"]["max_contribution_norm"] == "3"
    assert body["steps"][0]["epsilon"] == "2"
    assert body["sample"]["resampled"] == 900


def test_tables_have_a_row_for_each_candidate_shown(tuned: Tuning) -> None:
    """The best first; the options as they stand are among them."""
    first = tuning_tables(tuned)[0]
    assert first.rows[0][0].startswith("recommended")
    assert any("as it stands" in row[0] for row in first.rows)
    for table in tuning_tables(tuned):
        assert {len(row) for row in table.rows} == {len(table.heads)}


def test_bars_are_parts_of_the_true_value() -> None:
    """Also of sums far from the number of rows; an error that is larger fills its bar."""
    size = SizeClass(10, 99, 3, 2, 5000.0, 1.0, 500.0, -1000.0, 0.0, 1.0)
    sums, zero = bars([size, replace(size, truth=0.0, noise=0.0)])
    assert (sums.noise, sums.bias) == (0.1, 0.2)
    assert (zero.noise, zero.bias) == (0.0, 1.0)


def test_a_preview_shows_groups_and_sizes(tmp_path: Path) -> None:
    """A table of groups, one by size for each aggregate, and bars within their limits."""
    write_rows(tmp_path / "sample" / "a.parquet", units=800)
    rows = sample_rows(script(select=TWO), tmp_path)
    preview = preview_query(SinkDef("t", {}, rows.query), rows)
    groups, *sizes = preview_tables(preview)
    assert len(sizes) == 2
    assert groups.heads[:4] == ("window_start", "k", "true_rows", "n")
    for column in preview.sizes.values():
        for bar in bars(column):
            assert 0 <= bar.noise <= 1
            assert 0 <= bar.bias <= 1
    json.dumps(preview.to_dict(), allow_nan=False, default=str)
