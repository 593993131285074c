"""Every statement of golden/ compiles to what stands beside it, or is refused with that text.

`DPSQLP_GOLDEN=write pytest tests/sql/test_golden.py` writes the expectations anew.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpsqlp.errors import SqlError
from dpsqlp.schedule import CalendarSchedule, Schedule, WindowSchedule
from dpsqlp.sql import Query, SinkDef, compile_script
from dpsqlp.sql.plan import period_grid, window_grid
from dpsqlp.sql.query import no_closing
from support.fake_clock import START

FILES = sorted((Path(__file__).parent / "golden").glob("*.sql"))
WRITE = os.environ.get("DPSQLP_GOLDEN") == "write"


def outcome(script: Path) -> str:
    """What a script means, in words; or why it is refused."""
    try:
        program = compile_script(script.read_text(), folder=str(script.parent))
    except SqlError as error:
        return f"{error}\n"
    return "\n".join(summary(sink) for sink in program.sinks)


def summary(sink: SinkDef) -> str:
    query = sink.query
    lines = [
        f"sink {sink.name} {sink.options or ''}".rstrip(),
        f"source {query.source.name} {query.source.options or ''}".rstrip(),
        f"unit {typed(query.unit_names, query.unit_types, query.unit_kinds)}",
        f"keys {typed(query.key_names, query.key_types, query.key_kinds)}",
        f"window {query.window}",
        f"{query.emit}",
        *grids(query),
        f"epsilon {query.epsilon}, delta {query.delta}, {query.caps}, minimum {query.minimum}",
        f"{query.mechanism}, {query.release}, share {query.selection_share}, {closing(query)}",
        *public(query),
        *budget(query),
        *(f"process p{n}: {process}" for n, process in enumerate(query.processes)),
        "rows:",
        f"  {query.row_sql}",
        "releases:",
        f"  {query.release_sql}",
        "normal form:",
        *(f"  {line}" for line in query.normal_form.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def grids(query: Query) -> list[str]:
    """The windows and the periods. Of a calendar's tables, how many items of which T."""
    windows = window_grid(query, START)
    periods = period_grid(query, windows, START)
    if isinstance(windows, WindowSchedule) and not isinstance(periods, CalendarSchedule):
        return [f"T = {windows.triggers}, windows {windows}, periods {periods}"]
    period = query.period if periods != windows else "as the windows"
    return [f"triggers {query.emit.calendar}", table("windows", windows), f"period {period}"] + (
        [] if periods in (None, windows) else [table("periods", periods)]
    )


def table(name: str, grid: Schedule | None) -> str:
    if not isinstance(grid, CalendarSchedule):
        return f"{name} {grid}"
    items = Counter(map(grid.length, range(len(grid.begins))))
    start, stop = (datetime.fromtimestamp(grid.starts[at] / 1e6, UTC) for at in (0, -1))
    return f"{name} from {start} to {stop}, by T: {dict(sorted(items.items()))}"


def closing(query: Query) -> str:
    obstacle = no_closing(query.release, query.public_keys, query.window, query.period)
    assert not (query.closing and obstacle)
    return "closing" if query.closing else f"no closing: {obstacle or 'switched off'}"


def typed(names: tuple[str, ...], types: tuple[str, ...], kinds: tuple[str, ...]) -> str:
    return ", ".join(
        f"{name} {kind} ({canonical})"
        for name, kind, canonical in zip(names, types, kinds, strict=True)
    )


def public(query: Query) -> list[str]:
    lines = [f"public table {table.name}" for table in query.public_tables]
    if query.public_keys is not None:
        lines.append(f"public keys {[key.hex() for key in query.public_keys]}")
    return lines


def budget(query: Query) -> list[str]:
    """Without the folder, which is the machine's."""
    if query.account is None:
        return []
    named = query.account.budget
    per = f"({named.epsilon}, {named.delta}) per {named.per_us}"
    return [f"account {query.account.sink} of {named.name} {per} {named.options}"]


@pytest.mark.parametrize("script", FILES, ids=lambda path: path.stem)
def test_statement(script: Path) -> None:
    """A statement is accepted or refused exactly as written down."""
    expected = script.with_suffix(".txt")
    got = outcome(script)
    if WRITE:
        expected.write_text(got)
    assert got == expected.read_text()
    assert got.startswith("sink") == script.stem.startswith("ok_"), "the file's name says which"


def test_enough_statements() -> None:
    """At least sixty statements, both kinds well covered."""
    accepted = [script for script in FILES if script.stem.startswith("ok_")]
    assert len(FILES) >= 60
    assert len(accepted) >= 25
    assert len(FILES) - len(accepted) >= 60
