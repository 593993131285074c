"""Benchmarks are not timed here, but they start: their types are checked, their imports here."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import WAIT_SECONDS

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("script", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_a_benchmark_starts(script: str) -> None:
    ended = subprocess.run(
        [sys.executable, BENCHMARKS / script, "--help"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_core_is_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "core.py"), "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("records_per_second") == 1
