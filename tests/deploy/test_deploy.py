"""The files in deploy/: what can be checked of them without a container engine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dpsqlp.sql import compile_script
from support.components import compose

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def config(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = compose()
    assert command is not None
    words = [*command, "-f", str(DEPLOY / "compose.yaml"), "config"]
    return subprocess.run(
        words, capture_output=True, text=True, env=os.environ | environment, check=False
    )


@pytest.mark.needs("compose")
def test_the_compose_file() -> None:
    """It is valid, keeps secret and state apart, and has no password of its own."""
    checked = config({"POSTGRES_PASSWORD": "given"})
    assert checked.returncode == 0, checked.stderr
    for service in ("kafka", "topic", "postgres", "pipeline"):
        assert re.search(rf"^  {service}:", checked.stdout, re.M)
    assert "given" in checked.stdout
    refused = config({"POSTGRES_PASSWORD": ""})
    assert refused.returncode != 0
    assert "POSTGRES_PASSWORD" in refused.stderr


def test_the_pipeline_compiles() -> None:
    (sink,) = compile_script((DEPLOY / "pipeline.sql").read_text()).sinks
    assert sink.options["connector"] == "postgres"
    assert sink.query.source.connector == "kafka"


def test_the_image_has_what_the_pipeline_needs() -> None:
    """Its extras exist, and its command names options that exist."""
    text = (DEPLOY / "Dockerfile").read_text()
    extras = re.search(r"\[([\w,]+)\]", text)
    assert extras is not None
    known = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{name} = \[", known, re.M) for name in extras[1].split(","))
    assert '"--log", "json"' in text


@pytest.mark.needs("systemd")
def test_the_systemd_unit() -> None:
    words = ["systemd-analyze", "verify", str(DEPLOY / "dpsqlp@.service")]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    problems = [line for line in checked.stderr.splitlines() if "dpsqlp" in line]
    assert [p for p in problems if "is not executable" not in p] == []


def test_every_event_of_the_log_is_documented() -> None:
    said = re.compile(r"\.say\(\s*\"(\w+)\"")
    sources = (ROOT / "src" / "dpsqlp" / "cli").glob("*.py")
    events = {event for file in sources for event in said.findall(file.read_text())}
    table = (ROOT / "docs" / "deployment.md").read_text()
    assert events >= {"open", "trigger", "waiting", "back", "refused"}
    assert [event for event in sorted(events) if f"`{event}`" not in table] == []
