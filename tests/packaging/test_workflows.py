"""What outsiders' forks run, and what a contributor's commit runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.components import actionlint

ROOT = Path(__file__).parents[2]


@pytest.mark.needs("actionlint")
def test_the_workflow_is_valid() -> None:
    """actionlint finds nothing to say."""
    program = actionlint()
    assert program is not None
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert files
    checked = subprocess.run(
        [program, "-no-color", *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_the_hooks_are_valid() -> None:
    """pre-commit accepts its configuration, and every hook is a tool that `make check` has."""
    words = [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"]
    checked = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    entries = [line.split(".venv/bin/")[1] for line in hooks.splitlines() if "entry:" in line]
    checks = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    assert len(entries) == 3
    assert all(f"$(BIN)/{entry}" in checks for entry in entries)
