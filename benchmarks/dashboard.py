"""The dashboard with 100,000 keys and 100 triggers, and its cost to a pipeline.

    first_view   time to the first rows in Chromium after the server started; then the JavaScript
                 heap after every view was opened and pages were turned
    api          milliseconds of a response, the first time and again
    trigger      seconds of a trigger of a pipeline that replays a day as fast as possible, with and
                 without a dashboard: without requests, and with 100 per second

One JSON object per line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pipeline import SECONDS, SQL, TRIGGERS

if TYPE_CHECKING:
    from dpsqlp.dashboard.attach import Dashboard
    from dpsqlp.engines.engine import Engine

SCRIPT = """
CREATE SOURCE s (user_id BIGINT, url TEXT, ts TIMESTAMP)
  WITH (connector = 'files', path = 'none/*.parquet');
CREATE SINK popular WITH (connector = 'parquet', path = 'out') AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id,
  max_rows_contributed = 8, max_rows_per_group = 1) url, COUNT(*) AS views
FROM s GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 864 SECONDS ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-01-02';
"""
DAY_US = 1_704_067_200_000_000  # 2024-01-01
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
BLOCK = 25  # triggers, some seconds: the dashboard polls every two
VIEWS = {"windows": "table.compared tbody tr", "privacy": ".chart canvas", "health": "dl"}


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def write_releases(state: Path, keys: int, triggers: int) -> None:
    """An archive as a run would write it."""
    from dpsqlp.dashboard.archive import ArchivingSink
    from dpsqlp.dashboard.metadata import METADATA, Metadata
    from dpsqlp.sinks.base import Sink
    from dpsqlp.sql import compile_script, make_plan

    (sink,) = compile_script(SCRIPT).sinks
    metadata = Metadata.of("popular", sink.query, make_plan(sink.query), DAY_US)

    class Nowhere(Sink):
        def emit(self, trigger: int, release: pa.Table) -> None:
            pass

    kept = ArchivingSink(Nowhere(), state, "popular")
    dice = np.random.default_rng(1)
    names = pa.array([f"/archive/{n % 97:02d}/{n:07d}" for n in range(keys)]).sort()
    rate = dice.pareto(1.2, keys) + 1
    start = pa.array(np.full(keys, DAY_US), pa.timestamp("us"))
    end = pa.array(np.full(keys, DAY_US + 86_400_000_000), pa.timestamp("us"))
    for number in range(1, triggers + 1):
        views = np.rint(rate * number + dice.normal(0, 8, keys)).astype(np.int64)
        trigger = metadata.trigger_grid.first + number - 1
        columns = {"window_start": start, "window_end": end, "trigger": np.full(keys, trigger)}
        columns |= {"released_at": end, "window_trigger": np.full(keys, number)}
        columns |= {"final": np.full(keys, number == triggers), "url": names, "views": views}
        kept.emit(trigger, pa.table(columns | {"views_sd": np.full(keys, 8.0)}))
    kept.close()
    (kept.folder / METADATA).write_bytes(metadata.to_json())
    kept.write_status("finished")


@contextmanager
def served(state: Path) -> Iterator[str]:
    command = [sys.executable, "-c", "from dpsqlp.cli import main; main()", "serve", str(state)]
    server = subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    found = re.search(r"http://\S+", server.stderr.readline())
    assert found is not None
    try:
        yield found[0]
    finally:
        server.terminate()
        server.wait()


def bench_view(state: Path, keys: int, triggers: int) -> None:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        times, heaps = [], []
        for _ in range(5):
            with served(state) as address:
                page = browser.new_context().new_page()
                page.add_init_script(
                    "new MutationObserver(() => { if (!window.shownAt && document.querySelector("
                    "'table.keys tbody tr')) window.shownAt = performance.now(); })"
                    ".observe(document, {childList: true, subtree: true});"
                )
                page.goto(address)
                times.append(page.wait_for_function("() => window.shownAt").json_value())
                page.locator("th.key a").first.click()
                page.wait_for_selector(".chart canvas")
                for view, wanted in VIEWS.items():
                    page.click(f"header nav a[data-view={view}]")
                    page.wait_for_selector(wanted)
                page.click("header nav a[data-view=keys]")
                for number in range(2, 22):
                    page.wait_for_selector(".pager")
                    page.click("[data-focus=next]")
                    page.wait_for_function(
                        "n => document.querySelector('.pager input').value == n", arg=number
                    )
                session = page.context.new_cdp_session(page)
                session.send("Performance.enable")
                found = session.send("Performance.getMetrics")["metrics"]
                heaps.append(next(m["value"] for m in found if m["name"] == "JSHeapUsedSize"))
                page.context.close()
        browser.close()
    say(
        benchmark="first_view",
        keys=keys,
        triggers=triggers,
        first_view_ms_median=round(statistics.median(times)),
        first_view_ms_max=round(max(times)),
        js_heap_mb_max=round(max(heaps) / 1e6, 1),
    )


def bench_api(state: Path) -> None:
    def timed(address: str) -> float:
        begin = time.perf_counter()
        with urllib.request.urlopen(address) as answer:
            answer.read()
        return round((time.perf_counter() - begin) * 1000, 1)

    with served(state) as address:
        base = f"{address}api/v1/sinks/popular"
        begun = timed(f"{base}/keys")
        with urllib.request.urlopen(f"{base}/keys") as answer:
            row = json.load(answer)["rows"][7]
        for name, asked in {
            "keys, another page": f"{base}/keys?page=1000",
            "keys, a search": f"{base}/keys?search=0042",
            "keys, by name": f"{base}/keys?order=key&direction=asc",
            "one key's course": f"{base}/key?id={row['id']}",
            "compare": f"{base}/compare",
            "statement": f"{base}/statement",
            "health": f"{address}api/v1/health",
        }.items():
            say(benchmark="api", asked=name, first_ms=timed(asked), again_ms=timed(asked))
        say(benchmark="api", asked="keys, of a new release", first_ms=begun)


def load(address: str, rate: int, asking: Any, ended: Any, counted: Any) -> None:
    """Viewers with `rate` requests per second in total: each polls for news, and requests a page, a
    search or a key. They run in a niced process, as if on other machines.
    """
    os.nice(19)
    host, port = address.removeprefix("http://").strip("/").split(":")

    async def ask(reader: Any, writer: Any, path: str) -> bytes:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        body = await reader.readexactly(length)
        counted.value += 1
        return bytes(body) if head.startswith(b"HTTP/1.1 200") else b""

    async def worker(number: int, workers: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        dice, base, watched = random.Random(number), "/api/v1/sinks/counts", "0" * 32
        due = 0.0
        while not ended.is_set():
            if not asking.is_set():
                due = 0.0
                await asyncio.sleep(0.02)
                continue
            due = due + workers / rate if due else time.monotonic() + number / rate
            await asyncio.sleep(max(due - time.monotonic(), 0))
            choice = dice.random()
            if choice < 0.5:
                await ask(reader, writer, "/api/v1/health")
            elif choice < 0.75:
                body = await ask(reader, writer, f"{base}/keys?page={dice.randrange(1, 20)}")
                rows = json.loads(body or b'{"rows":[]}')["rows"]
                if rows and watched == "0" * 32:
                    watched = dice.choice(rows)["id"]
            elif choice < 0.85:
                await ask(reader, writer, f"{base}/keys?search={dice.randrange(10)}")
            elif choice < 0.95:
                await ask(reader, writer, f"{base}/key?id={watched}")
            else:
                await ask(reader, writer, f"{base}/windows")

    async def main() -> None:
        await asyncio.gather(*(worker(number, 10) for number in range(10)))

    asyncio.run(main())


def children() -> set[int]:
    return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}


def make_engine(files: Path, work: Path, watching: Dashboard | None) -> Engine:
    from dpsqlp.engines.script import open_engine
    from dpsqlp.sinks.factory import make_sink
    from dpsqlp.sql import compile_script

    text = SQL.format(files=files, output=work / "output", seconds=SECONDS)
    [sink] = compile_script(text).sinks
    output = make_sink(sink.name, sink.options, work)
    if watching is not None:
        output = watching.archive(sink.name, output)
    return open_engine(
        sink, state=work / "state", secret=work / "secret", folder=work, output=output
    )


def run_both(files: Path, rate: int) -> dict[str, Any]:
    """The same day by two pipelines, alternating blocks of triggers in the order 1 2 2 1: one with
    the dashboard's process stopped, and one with the dashboard and `rate` requests per second. If
    the machine is slow for a while, both are affected.
    """
    from dpsqlp.dashboard.attach import Dashboard

    with tempfile.TemporaryDirectory() as folder:
        works = [Path(folder) / name for name in ("alone", "watched")]
        watching = Dashboard(works[1] / "state", port=0)
        _, watched = engines = [
            make_engine(files, work, beside)
            for work, beside in zip(works, (None, watching), strict=True)
        ]
        asking, ended = multiprocessing.Event(), multiprocessing.Event()
        counted = multiprocessing.Value("q")
        seconds: list[list[float]] = [[], []]
        asked = rows = 0
        lasted = 0.0
        before = children()
        with watching.serve({"counts": watched}) as address:
            (page,) = children() - before
            urllib.request.urlopen(f"{address}api/v1/health").read()  # it is up
            asker = multiprocessing.Process(
                target=load, args=(address, rate, asking, ended, counted)
            )
            if rate:
                asker.start()
            for block in range(2 * TRIGGERS // BLOCK):
                which = (0, 1, 1, 0)[block % 4]
                if which == 1:
                    os.kill(page, signal.SIGCONT)
                    asking.set()
                count, begin = counted.value, time.perf_counter()
                for _ in range(BLOCK):
                    began = time.perf_counter()
                    rows = engines[which].step().rows
                    seconds[which].append(time.perf_counter() - began)
                if which == 1:
                    asked += counted.value - count
                    lasted += time.perf_counter() - begin
                    asking.clear()
                    time.sleep(0.2)  # the last are answered
                    os.kill(page, signal.SIGSTOP)
            os.kill(page, signal.SIGCONT)
            ended.set()
            if rate:
                asker.join(5)
                asker.kill()
        for engine in engines:
            assert engine.finished
            engine.close()
    first, second = (statistics.fmean(each[5:]) for each in seconds)
    return {"alone": first, "watched": second, "rows": rows, "rate": asked / lasted}


def bench_trigger(files: Path, records: int, rate: int, rounds: int) -> None:
    runs = [run_both(files, rate) for _ in range(rounds)]
    ratios = sorted(run["watched"] / run["alone"] for run in runs)
    say(
        benchmark="trigger",
        records=records,
        released_rows=runs[0]["rows"],
        requests_per_second=round(min(run["rate"] for run in runs), 1),
        seconds_alone=round(statistics.median(run["alone"] for run in runs), 4),
        seconds_watched=round(statistics.median(run["watched"] for run in runs), 4),
        ratio=round(statistics.median(ratios), 3),
        ratios=[round(ratio, 3) for ratio in ratios],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--triggers", type=int, default=100)
    parser.add_argument("--units", type=int, default=4_000_000)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    from dpsqlp.experiments.data import write_day

    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        write_releases(state, options.keys, options.triggers)
        bench_api(state)
        bench_view(state, options.keys, options.triggers)
        files = Path(folder) / "day"
        records = write_day(files, options.units, 10**5, TRIGGERS)
        run_both(files, 0)  # compiles what is not in the cache
        for rate in (0, options.rate):
            bench_trigger(files, records, rate, options.rounds)


if __name__ == "__main__":
    assert threading.current_thread() is threading.main_thread()
    main()
