"""Takes the screenshots in docs/images: the dashboard of the demonstration."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from dpsqlp.demo import run_demo
from dpsqlp.demo.data import FINAL

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PICTURES = (  # name, size, theme, route, selector to wait for
    ("keys", (1080, 720), "light", "#/keys", "table.keys tbody tr"),
    ("key", (1080, 640), "dark", f"#/keys?search={FINAL}", ".chart canvas"),
    ("privacy", (1080, 720), "light", "#/privacy", ".chart canvas"),
    ("phone", (360, 700), "dark", "#/keys", "table.keys tbody tr"),
)


def main() -> None:
    """Run the demonstration, serve its state, take the screenshots."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "demo"
        run_demo(fast=True, keep=kept, dashboard=True, console=Console(file=io.StringIO()))
        command = [sys.executable, "-c", "from dpsqlp.cli import main; main()", "serve"]
        server = subprocess.Popen(
            [*command, str(kept / "views.state"), "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        assert found is not None
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            for name, (width, height), theme, where, wanted in PICTURES:
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,  # type: ignore[arg-type]
                )
                page = context.new_page()
                page.goto(found[0] + where)
                if name == "key":
                    page.locator("td.key a").click()
                page.wait_for_selector(wanted)
                page.screenshot(path=IMAGES / f"{name}.png")
                context.close()
            browser.close()
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
