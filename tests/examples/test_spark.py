"""The example on Spark, in the session that the other tests share."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "live_counts.py"


def test_live_counts(spark: Any, tmp_path: Path) -> None:
    """Busy stations are released at every trigger, the lighthouse with its two riders at none."""
    released = runpy.run_path(str(EXAMPLE))["run"](spark, tmp_path, releases=2)
    assert released[:2] == [[f"station {number}" for number in range(5)]] * 2
