"""The examples do what their page says, as far as that needs no container."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from dpsqlp.sql import compile_script
from support.components import compose

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(folder: Path, *words: str) -> str:
    """What a Python program prints."""
    environment = {k: v for k, v in os.environ.items() if k != "DPSQLP_SECRET"}
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_web_analytics(tmp_path: Path) -> None:
    """Popular articles and all countries are released, near the truth."""
    folder = tmp_path / "web-analytics"
    shutil.copytree(EXAMPLES / "web-analytics", folder, ignore=lambda *_: {"events"})
    dpsqlp = ("-c", "from dpsqlp.cli import main; main()")
    assert "60000 views" in run(folder, "make_events.py")
    assert "Together the sinks articles, audience" in run(
        folder, *dpsqlp, "explain", "analytics.sql"
    )
    run(folder, *dpsqlp, "run", "analytics.sql")
    report = run(folder, "report.py")
    assert "/article/0 " in report
    readers = {name: float(n) for name, n in re.findall(r"^  (\w\w) +(\d+) ±", report, re.M)}
    assert sorted(readers) == ["de", "fr", "jp", "us"]
    assert all(1_900 < n < 2_100 for n in readers.values())


@pytest.mark.needs("compose")
def test_kafka_to_postgres_services() -> None:
    """The compose file is valid beside deploy's; it brings the query and the readers."""
    folder = EXAMPLES / "kafka-to-postgres"
    files = ["-f", str(ROOT / "deploy" / "compose.yaml"), "-f", str(folder / "compose.yaml")]
    command = compose()
    assert command is not None
    checked = subprocess.run(
        [*command, *files, "config"],
        capture_output=True,
        text=True,
        env=os.environ | {"POSTGRES_PASSWORD": "given"},
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    for service in ("kafka", "topic", "postgres", "pipeline", "readers"):
        assert re.search(rf"^  {service}:", checked.stdout, re.M)
    for name in ("pipeline.sql", "readers.py"):
        assert str(folder / name) in checked.stdout
    assert str(ROOT / "deploy" / "pipeline.sql") not in checked.stdout


def test_kafka_to_postgres_query() -> None:
    """The query compiles, and the readers send the columns that it declares."""
    folder = EXAMPLES / "kafka-to-postgres"
    (sink,) = compile_script((folder / "pipeline.sql").read_text()).sinks
    source = sink.query.source
    assert (source.connector, sink.options["connector"]) == ("kafka", "postgres")
    readers: dict[str, Any] = runpy.run_path(str(folder / "readers.py"))
    now = datetime(2024, 5, 1, 12, tzinfo=UTC)
    sent = json.loads(readers["view"](np.random.default_rng(1), now))
    assert list(sent) == [name for name, _ in source.columns]
    assert sent["ts"] == "2024-05-01 12:00:00"


@pytest.mark.slow
def test_notebook() -> None:
    """It is kept without outputs, and runs to its end with both plots."""
    path = EXAMPLES / "notebook" / "live_counts.ipynb"
    notebook = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in cells if cell.outputs or cell.execution_count] == []
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
