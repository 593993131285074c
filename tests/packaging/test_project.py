"""Files that GitHub and citation managers read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = ["bug.yml", "feature.yml"]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert citation["repository-code"] == project["urls"]["Homepage"]
    assert citation["references"][0]["url"] == project["urls"]["Paper"]


@pytest.mark.parametrize("name", FORMS)
def test_issue_forms_are_complete(name: str) -> None:
    """A form that GitHub cannot read is not offered."""
    form = read(f".github/ISSUE_TEMPLATE/{name}")
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input"}
    assert all(field["attributes"]["label"] for field in fields)
    names = [field["id"] for field in fields]
    assert len(set(names)) == len(names)


def test_privacy_bugs_are_reported_in_private() -> None:
    """The chooser and the form for bugs lead to a private report."""
    address = "/security/advisories/new"
    assert address in read(".github/ISSUE_TEMPLATE/config.yml")["contact_links"][0]["url"]
    assert address in read(".github/ISSUE_TEMPLATE/bug.yml")["body"][0]["attributes"]["value"]
