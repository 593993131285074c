"""Where a program is missing its tests are left out, and the run says so; on CI they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
NEEDY = (  # one test of each way to need a component: by a mark, by a fixture
    "tests/deploy/test_deploy.py::test_the_systemd_unit",
    "tests/sql/test_spark_rows.py::test_relations",
)


def run(command: list[str], programs: Path, ci: str) -> subprocess.CompletedProcess[str]:
    """Run a command that finds no programs but those of a folder."""
    mine = ("PYTEST_", "MAKE", "MFLAGS")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
    return subprocess.run(
        command,
        cwd=PROJECT,
        env=environment | {"PATH": str(programs), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_run_ends_with_what_was_left_out(workers: list[str], tmp_path: Path) -> None:
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers]
    ran = run([*pytest_, *NEEDY, "tests/deploy/test_deploy.py"], tmp_path, "")
    assert ran.returncode == 0, ran.stdout
    end = ran.stdout[ran.stdout.index("Left out") :]
    assert "1 test for want of systemd-analyze: get the package systemd." in end
    assert "1 test for want of Java 17 or 21: get the package openjdk-17-jre-headless." in end
    assert "1 test for want of docker compose" in end
    assert "3 passed, 3 skipped" in end


@pytest.mark.slow
def test_on_ci_what_is_missing_is_a_failure(tmp_path: Path) -> None:
    ran = run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *NEEDY], tmp_path, "true")
    assert ran.returncode == 1
    assert "systemd-analyze is not installed. Get the package systemd." in ran.stdout
    assert "2 errors" in ran.stdout
    assert "Left out" not in ran.stdout


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 2)])
def test_packages_that_cannot_be_installed_stop_only_ci(ci: str, code: int, tmp_path: Path) -> None:
    """As where somebody is not root, or the system is not Debian."""
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho 'E: are you root?'\nexit 100\n")
    apt.chmod(0o755)
    make = shutil.which("make")
    assert make is not None
    ran = run([make, "packages"], tmp_path, ci)
    assert ran.returncode == code
    assert "openjdk-17-jre-headless" in ran.stdout
    assert "chromium (Debian's names)" in ran.stdout
