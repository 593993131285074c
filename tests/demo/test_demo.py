"""The demonstration runs the real pipeline and shows it beside the truth."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dpsqlp.demo import run_demo
from dpsqlp.demo.data import DAY_US, FINAL, START_US, TICKET, generate
from dpsqlp.demo.view import Row, Snapshot, show
from dpsqlp.errors import StateError

pytestmark = pytest.mark.slow


def test_the_day_is_the_same_every_time_and_within_the_day() -> None:
    day, again = generate(users=500), generate(users=500)
    assert day.pages == again.pages
    assert np.array_equal(day.timestamp, again.timestamp)
    assert START_US <= day.timestamp[0] <= day.timestamp[-1] < START_US + DAY_US
    assert np.all(np.diff(day.timestamp) >= 0)
    assert len(set(day.pages)) == len(day.pages) == 3000
    counts = day.counts(START_US + DAY_US)
    assert counts.sum() == len(day.page)
    assert counts[day.pages.index(TICKET)] == 40
    assert len(set(day.user[day.page == day.pages.index(TICKET)])) == 2


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_the_console(width: int) -> None:
    rows = (Row("/a/rather/long/page", 1_000, 10.0, 1_010), Row("/b", -3, 10.0, 0))
    printed = io.StringIO()
    console = Console(file=printed, width=width)
    console.print(show(Snapshot("12:00", 24, 48, rows, 9), width))
    text = printed.getvalue()
    assert "1,010" in text
    assert "2 pages released of 9" in text
    assert "100%" in text
    if width >= 80:
        assert text.count("◆") == 3  # one in the head


def test_a_page_stands_beside_it(tmp_path: Path) -> None:
    """Its address is printed, and what it showed can be served again."""
    printed = io.StringIO()
    console = Console(file=printed, width=200, force_terminal=False)
    run_demo(fast=True, keep=tmp_path / "kept", dashboard=True, console=console)
    text = printed.getvalue()
    assert "Dashboard, while this runs: http://127.0.0.1:" in text
    assert f"dpsqlp serve {tmp_path / 'kept' / 'views.state'}" in text
    kept = tmp_path / "kept" / "views.state" / "popular.releases"
    assert len(list(kept.glob("*.parquet"))) == 48
    assert (kept / "status.json").read_text() == '{"status": "finished"}'


def test_without_the_packages_of_the_page_the_terminal_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    printed = io.StringIO()
    console = Console(file=printed, width=200, force_terminal=False)
    run_demo(fast=True, keep=tmp_path / "kept", dashboard=True, console=console)
    text = printed.getvalue()
    assert "pip install 'dpsqlp[dashboard]'" in text
    assert "(trigger 48 of 48)" in text
    assert not (tmp_path / "kept" / "views.state" / "popular.releases").exists()


def test_without_a_terminal_it_prints_the_last_table_and_the_promise(tmp_path: Path) -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=120, force_terminal=False)
    run_demo(fast=True, keep=tmp_path / "kept", console=console)
    text = printed.getvalue()
    assert text.count("24:00 UTC") == 1
    assert "(trigger 48 of 48)" in text
    assert f"{FINAL} kicked off at 19:30 and appeared at" in text
    assert "never appeared" in text
    late = re.search(r"(\d+) pages appeared only at 24:00", text)
    assert late is not None
    assert int(late[1]) > 50
    assert "(2, 1e-07)-differentially private" in text
    assert len(list((tmp_path / "kept" / "popular").glob("*.parquet"))) == 48
    with pytest.raises(StateError, match="not empty"):
        run_demo(fast=True, keep=tmp_path / "kept", console=console)
