"""Takes the screenshots in docs/images: the demonstration, and four weeks of a key."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import duckdb
from playwright.sync_api import sync_playwright
from rich.console import Console

from dpsqlp.dashboard.archive import ArchivingSink
from dpsqlp.demo import run_demo
from dpsqlp.engines.script import open_engine
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sql import compile_script

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
DEMO = (  # name, size, theme, route, selector to wait for
    ("keys", (1080, 720), "light", "#/keys", "table.keys tbody tr"),
    ("privacy", (1080, 720), "light", "#/privacy", ".chart canvas"),
    ("phone", (360, 700), "dark", "#/keys", "table.keys tbody tr"),
)
WEEKS = (("key", (1080, 760), "dark", "#/keys?search=tea", "#over-windows canvas"),)
ORDERS = """
CREATE SOURCE purchases (product TEXT, customer BIGINT, ts TIMESTAMP)
  WITH (connector = 'files', path = 'in/*.parquet');
CREATE SINK orders WITH (connector = 'parquet', path = 'out') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = customer,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 2)
  product, COUNT(*) AS orders FROM purchases GROUP BY product, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 12 HOURS ON EVENT TIME FROM TIMESTAMP '2024-04-01 00:00:00'
  TO TIMESTAMP '2024-04-29 00:00:00';
"""
PURCHASES = """
COPY (SELECT product, row_number() OVER () AS customer,
        TIMESTAMP '2024-04-01' + day * INTERVAL 1 DAY + number * INTERVAL 2 MINUTES AS ts
      FROM range(28) days(day), (VALUES ('tea', 300), ('coffee', 420), ('cocoa', 160))
        products(product, usual),
        range(600) numbers(number)
      WHERE number < usual + 3 * day + 90 * sin(day * 2 * pi() / 7) + hash(day, usual) % 40)
TO '{file}'
"""


def main() -> None:
    """Run the pipelines, serve their states, take the screenshots."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "demo"
        run_demo(fast=True, keep=kept, dashboard=True, console=Console(file=io.StringIO()))
        take(kept / "views.state", DEMO)
        take(run_weeks(Path(folder)), WEEKS)


def run_weeks(folder: Path) -> Path:
    """Four weeks of purchases, a window for each day; returns the state."""
    (folder / "in").mkdir()
    duckdb.sql(PURCHASES.format(file=folder / "in" / "weeks.parquet"))
    (sink,) = compile_script(ORDERS, folder=str(folder)).sinks
    state = folder / "state"
    archive = ArchivingSink(make_sink(sink.name, sink.options, folder), state, sink.name)
    engine = open_engine(sink, state=state, secret=folder / "secret", folder=folder, output=archive)
    archive.write_metadata(engine)
    while not engine.finished:
        engine.step()
    engine.close()
    archive.write_status("finished")
    return state


def take(state: Path, pictures: Iterable[tuple[str, tuple[int, int], str, str, str]]) -> None:
    """Serve a state and take pictures of it."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    command = [sys.executable, "-c", "from dpsqlp.cli import main; main()", "serve"]
    server = subprocess.Popen(
        [*command, str(state), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    found = re.search(r"http://\S+", server.stderr.readline())
    assert found is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for name, (width, height), theme, where, wanted in pictures:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=theme,  # type: ignore[arg-type]
            )
            page = context.new_page()
            page.goto(found[0] + where)
            if name == "key":
                page.locator("th.key a").click()
            page.wait_for_selector(wanted)
            page.screenshot(path=IMAGES / f"{name}.png")
            context.close()
        browser.close()
    server.terminate()
    server.wait()


if __name__ == "__main__":
    main()
