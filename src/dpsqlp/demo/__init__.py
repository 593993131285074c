"""`dpsqlp demo`: the real pipeline over a generated day, half an hour per second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live

from dpsqlp.dashboard.attach import Dashboard
from dpsqlp.demo.data import DAY_US, FINAL, START_US, TICKET, Day, generate
from dpsqlp.demo.view import Row, Snapshot, show
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.script import open_engine
from dpsqlp.errors import DpsqlpError, StateError
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sql import compile_script, explain_text

_TRIGGER_SECONDS = 0.7
SQL = """\
CREATE SOURCE page_views (url TEXT, user_id BIGINT, ts TIMESTAMP)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular WITH (connector = 'parquet', path = 'popular') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-7, privacy_unit_column = user_id,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 4)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 30 MINUTES
  ON EVENT TIME FROM TIMESTAMP '2024-05-01 00:00:00' TO TIMESTAMP '2024-05-02 00:00:00';
"""


def run_demo(
    *, fast: bool, keep: Path | None, dashboard: bool = False, console: Console | None = None
) -> None:
    """Generate a day, run the query over it, show the releases, and explain the promise."""
    console = console or Console()
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(keep))
        watching = _watching(folder, console) if dashboard else None
        console.print("[bold]The query[/bold]\n")
        console.print(SQL, highlight=False)
        with console.status("Generating a day of page views"):
            day = generate()
            day.write(folder / "events" / "day.parquet")
            (folder / "views.sql").write_text(SQL)
        with console.status("Opening the pipeline; the first run compiles kernels (20 s)"):
            engine = _open(folder, watching)
            stack.callback(engine.close)
            page = watching and stack.enter_context(watching.serve({"popular": engine}))
            snapshot = _step(engine, day, folder)
        if page:
            console.print(f"Dashboard, while this runs: [bold]{page}[/bold]\n")
        appeared = {row.page: snapshot.clock for row in snapshot.rows}
        live = stack.enter_context(_live(console, snapshot))
        while not engine.finished:
            due = time.monotonic() + (0 if fast or live is None else _TRIGGER_SECONDS)
            snapshot = _step(engine, day, folder)
            for row in snapshot.rows:
                appeared.setdefault(row.page, snapshot.clock)
            time.sleep(max(due - time.monotonic(), 0))
            if live is not None:
                live.update(show(snapshot, console.width), refresh=True)
        if live is not None:
            live.stop()
        else:
            console.print(show(snapshot, console.width))
        if watching is not None:
            watching.end({"popular": engine})
        _conclude(console, engine, day, appeared)
        _say_where(console, keep, watching is not None)


def _watching(folder: Path, console: Console) -> Dashboard | None:
    """The dashboard, if its packages are installed; otherwise only the terminal."""
    try:
        return Dashboard(folder / "views.state")
    except DpsqlpError as missing:
        console.print(f"{missing}\n", highlight=False, markup=False)
        return None


def _open(folder: Path, watching: Dashboard | None) -> LocalEngine:
    sink = compile_script(SQL, folder=str(folder)).sinks[0]
    output = make_sink(sink.name, sink.options, folder)
    return open_engine(
        sink,
        state=folder / "views.state",
        secret=folder / "views.secret",
        folder=folder,
        output=output if watching is None else watching.archive(sink.name, output),
    )


def _step(engine: LocalEngine, day: Day, folder: Path) -> Snapshot:
    """Run a trigger, and read its release from the sink's files."""
    progress = engine.step()
    schedule = engine.schedule
    assert schedule.last is not None
    until = schedule.due(progress.trigger)
    counts = day.counts(until)
    truth = dict(zip(day.pages, counts.tolist(), strict=True))
    release = pq.read_table(folder / "popular" / f"trigger-{progress.trigger:012d}.parquet")
    rows = tuple(
        Row(row["url"], row["views"], row["views_sd"], truth[row["url"]])
        for row in release.to_pylist()
    )
    return Snapshot(
        clock=_clock(until),
        trigger=progress.trigger - schedule.first + 1,
        triggers=schedule.last - schedule.first + 1,
        rows=rows,
        pages_seen=int((counts > 0).sum()),
    )


def _clock(time_us: int) -> str:
    """The time of day at the end of an interval."""
    minutes = (time_us - START_US) // 60_000_000
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _conclude(console: Console, engine: LocalEngine, day: Day, appeared: dict[str, str]) -> None:
    """Say what became of two pages and of the last table, then print the promise."""
    ticket = int(day.counts(START_US + DAY_US)[day.pages.index(TICKET)])
    seen = f"appeared at {appeared[TICKET]}" if TICKET in appeared else "never appeared"
    late = sum(time == "24:00" for time in appeared.values())
    console.print(
        f"\n[bold]{FINAL}[/bold] kicked off at 19:30 and appeared at"
        f" {appeared.get(FINAL, 'no time')}: keys need not be known in advance.\n"
        f"[bold]{TICKET}[/bold] had {ticket} views from two users and {seen}: a page with so few"
        " visitors would reveal them.\n"
        f"{late:,} pages appeared only at 24:00: what users have not spent of their budget by the"
        " end of the day selects further pages.\n",
        highlight=False,
    )
    console.print("[bold]The promise[/bold]\n")
    console.print(explain_text("popular", engine.query, engine.plan), highlight=False)


def _say_where(console: Console, keep: Path | None, watched: bool) -> None:
    if keep is None:
        text = (
            "The output was one Parquet file per trigger, in popular/ next to the query. It was"
            " deleted. To keep everything: dpsqlp demo --keep demo"
        )
    else:
        text = (
            f"The output is in {keep / 'popular'}, one Parquet file per trigger. See also:"
            f" dpsqlp inspect {keep / 'views.state'}"
        )
        text += f", dpsqlp serve {keep / 'views.state'}" if watched else ""
    console.print(text, highlight=False)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="dpsqlp-demo-") as folder:
            yield Path(folder)
        return
    if keep.exists() and any(keep.iterdir()):
        raise StateError(f"{keep} is not empty. Give a new folder.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


@contextmanager
def _live(console: Console, snapshot: Snapshot) -> Iterator[Live | None]:
    """A table that is redrawn in place; without a terminal, None."""
    if not console.is_terminal:
        yield None
        return
    with Live(show(snapshot, console.width), console=console, auto_refresh=False) as live:
        yield live
