"""No function of DuckDB's stops a run, ends the process or changes what others release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "functions.py"
ALL = os.environ.get("DPSQLP_FUNCTIONS") == "all"  # a quarter of an hour or more


@pytest.mark.slow
def test_no_function_stops_a_run() -> None:
    """All that the catalogue lists and the compiler accepts, on hostile rows beside others'."""
    arguments = ["5", "every", "24"] if ALL else ["1", "some", "24"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    *batches, last = ran.stdout.splitlines() or [""]
    assert ran.returncode == 0, f"{ran.stderr[-2000:]}\nafter {last[:2000]}"
    counts = json.loads(last)
    print(counts)
    assert counts["functions"] > 450
    assert counts["accepted"] > 380
    assert counts["dropped"] > 0
    assert len(batches) > 10
