"""The programs beside Python that tests need: which tests, whether they are here, how to get them.

A test needs a component through a fixture of `FIXTURES` or by the mark `needs`. Where a component
is missing, its tests are left out and a run ends with the list of them; on CI they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SERVICES = Path(__file__).parents[2] / ".services"
KAFKA = SERVICES / "kafka"
FIXTURES = {"spark": "java", "broker": "kafka", "cluster": "postgres", "browser": "chromium"}


@dataclass(frozen=True)
class Component:
    """A program that tests start."""

    name: str
    found: Callable[[], object]
    how: str  # to get it


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's server programs."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "postgres").exists()), None)


def chromium() -> str | None:
    """The distribution's browser."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def compose() -> list[str] | None:
    """Docker's compose command: the plugin, or the older program."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version"], capture_output=True, check=False)
            if asked.returncode == 0:
                return command
    return None


def actionlint() -> str | None:
    """The program that checks GitHub's workflows."""
    return shutil.which("actionlint", path=f"{SERVICES / 'bin'}{os.pathsep}{os.environ['PATH']}")


def _kafka() -> bool:
    return shutil.which("java") is not None and (KAFKA / ".fetched").exists()


COMPONENTS = {
    "java": Component(
        "Java 17 or 21", lambda: shutil.which("java"), "the package openjdk-17-jre-headless"
    ),
    "kafka": Component(
        "a Kafka broker", _kafka, "Java, then `make services`, which fetches it from Maven Central"
    ),
    "postgres": Component("PostgreSQL", postgres_programs, "the package postgresql"),
    "chromium": Component("Chromium", chromium, "the package chromium"),
    "compose": Component("docker compose", compose, "the package docker-compose"),
    "actionlint": Component("actionlint", actionlint, "Go, then `make services`, which builds it"),
    "systemd": Component(
        "systemd-analyze", lambda: shutil.which("systemd-analyze"), "the package systemd"
    ),
}


def on_ci() -> bool:
    """Whether a missing component is a failure."""
    return os.environ.get("CI") == "true"
