"""Small pipelines for the dashboard, with hostile keys among their releases."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.dashboard.archive import ArchivingSink
from dpsqlp.engines.script import open_engine
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sql import compile_script
from support.processes import WAIT_SECONDS, started, until

COMMAND = [sys.executable, "-c", "from dpsqlp.cli import main; main()"]
ADDRESS = re.compile(r"http://\S+(?=\s)")
START = datetime(2024, 5, 1)
HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "x" * 10_000,
    "🎉👩‍👩‍👧‍👦 emoji",
    "مرحبا بالعالم",
    "abc\u202edcba\u0007\n\ttail",
    "",
    "\"quoted\" & 'single' \\ back",
    "a?b&c=d#e/../f%2f",
]
PAGES = ["/", "/news", "/sport", *(f"/page/{n:03d}" for n in range(60)), *HOSTILE]
SQL = """
CREATE SOURCE views (url TEXT, country TEXT, user_id BIGINT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'in/*.parquet');
CREATE SINK popular WITH ({sink}) AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 8, delta = 1e-4, privacy_unit_column = user_id, max_rows_contributed = 2,
           max_rows_per_group = 1, mechanism = 'tree')
  url, COUNT(*) AS views, SUM(dwell, contribution_bounds_per_row => (0, 60)) AS seconds,
  COUNT(DISTINCT user_id) AS people
FROM views GROUP BY url, TUMBLE(ts, INTERVAL 1 HOUR)
EMIT EVERY INTERVAL 15 MINUTES ON EVENT TIME FROM TIMESTAMP '2024-05-01 00:00:00'
  TO TIMESTAMP '2024-05-01 03:00:00';
CREATE SINK total WITH (connector = 'jsonl', path = 'total') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 2)
  COUNT(*) AS views FROM views GROUP BY TUMBLE(ts, INTERVAL 1 HOUR)
EMIT EVERY INTERVAL 15 MINUTES ON EVENT TIME FROM TIMESTAMP '2024-05-01 00:00:00'
  TO TIMESTAMP '2024-05-01 03:00:00';
"""
LIVE = """
CREATE SOURCE views (url TEXT, user_id BIGINT, ts TIMESTAMP) WITH (connector = 'stdin');
CREATE SINK live WITH (connector = 'stdout') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 20, delta = 1e-3, privacy_unit_column = user_id, max_rows_contributed = 1,
           mechanism = 'tree')
  url, COUNT(*) AS views FROM views GROUP BY url, TUMBLE(ts, INTERVAL 4 SECONDS)
EMIT EVERY INTERVAL 1 SECOND ALLOW LATENESS INTERVAL 4 SECONDS;
"""


def write_events(folder: Path, rare: Sequence[str] = ()) -> None:
    """Three hours of views, a user for each; the pages of `rare` have one view each."""
    urls, moments = [], []
    for hour in range(3):
        for rank, url in enumerate(PAGES):
            for n in range(max(120 - 3 * rank, 30)):
                urls.append(url)
                moments.append(START + timedelta(hours=hour, minutes=(7 * n + rank) % 60))
    urls += rare
    moments += [START + timedelta(minutes=1)] * len(rare)
    table = pa.table(
        {
            "url": urls,
            "country": ["de"] * len(urls),
            "user_id": list(range(len(urls))),
            "ts": pa.array(moments, pa.timestamp("us")),
            "dwell": [float(n % 60) for n in range(len(urls))],
        }
    )
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(table, folder / "in" / "a.parquet")


def replay(
    folder: Path,
    sink: str = "connector = 'parquet', path = 'out'",
    triggers: int | None = None,
    names: Sequence[str] = ("popular", "total"),
) -> Path:
    """Run sinks of the script over the events and archive their releases; returns the state."""
    state = folder / "state"
    for chosen in compile_script(SQL.format(sink=sink), folder=str(folder)).sinks:
        if chosen.name not in names:
            continue
        archive = ArchivingSink(make_sink(chosen.name, chosen.options, folder), state, chosen.name)
        engine = open_engine(
            chosen, state=state, secret=folder / "secret", folder=folder, output=archive
        )
        archive.write_metadata(engine)
        archive.write_status("running")
        ran = 0
        while not engine.finished and ran != triggers:
            engine.step()
            ran += 1
        archive.write_status("finished" if engine.finished else "stopped")
        engine.close()
    return state


@contextmanager
def live_run(folder: Path, *options: str, **environment: str) -> Iterator[str]:
    """`dpsqlp run --dashboard` on a live stream; yields the address."""
    (folder / "live.sql").write_text(LIVE)
    command = [*COMMAND, "run", str(folder / "live.sql"), "--dashboard", "--port", "0", *options]
    ended, said = threading.Event(), folder / "said"
    with (
        said.open("w") as log,
        started(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=os.environ | environment,
            text=True,
        ) as process,
    ):
        until(lambda: ADDRESS.search(said.read_text()), process)
        feeding = threading.Thread(target=_feed, args=(process, ended))
        feeding.start()
        try:
            yield ADDRESS.findall(said.read_text())[0]
        finally:
            ended.set()
            process.terminate()
            try:
                process.wait(WAIT_SECONDS)
            finally:
                process.kill()
                feeding.join()


def _feed(process: subprocess.Popen[str], ended: threading.Event) -> None:
    user = 0
    with suppress(OSError, ValueError):
        while not ended.wait(0.2):
            now = datetime.fromtimestamp(time.time(), UTC).replace(tzinfo=None).isoformat()
            lines = []
            for rank, url in enumerate(["/", "/news", *HOSTILE]):
                for _ in range(40 - 2 * rank):
                    user += 1
                    lines.append(json.dumps({"url": url, "user_id": user, "ts": now}) + "\n")
            assert process.stdin is not None
            process.stdin.write("".join(lines))
            process.stdin.flush()
