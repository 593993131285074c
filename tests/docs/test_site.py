"""The documentation site: it builds without a warning, and needs nothing but itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dpsqlp
from dpsqlp import errors

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. A dead link, a dead anchor or a page that is in no menu fails the build."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    ran = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, and the text of its paragraphs, without code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.prose = ""
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what the browser fetches by itself; a link waits for a click."""
        given = {name: value or "" for name, value in attributes}
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given["href"])
        if tag not in ("a", "link"):
            self.loads += [given[name] for name in ("src", "srcset", "data") if name in given]
        if tag in ("p", "code"):
            self._inside.append(tag)
            self.prose += "\n" if tag == "p" else ""

    def handle_endtag(self, tag: str) -> None:
        """Leave a paragraph, or code in it."""
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if self._inside == ["p"]:
            self.prose += data


def pages(site: Path) -> Iterator[tuple[str, Page]]:
    for file in sorted(site.rglob("*.html")):
        yield str(file.relative_to(site)), Page(file.read_text())


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Neither pages nor style sheets name another server, and nothing asks GitHub for stars."""
    loaded = {target for _, page in pages(site) for target in page.loads}
    assert any(target.endswith(".js") for target in loaded)
    assert any(target.endswith("keys.png") for target in loaded)
    assert [target for target in loaded if re.match(r"(\w+:)?//", target)] == []
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()) == []
    assert 'data-md-component="source"' not in (site / "index.html").read_text()


def test_markdown_is_understood(site: Path) -> None:
    """No table, list or fence is left as it was typed."""
    left = re.compile(r"^\s*(?:\|.*|[-*] .*|\d+\. .*|```.*|:::.*)$", re.MULTILINE)
    assert {name: found for name, page in pages(site) if (found := left.findall(page.prose))} == {}


def test_the_reference_has_the_public_interface(site: Path) -> None:
    """Every public name and every error has an entry."""
    entries = set(re.findall(r'id="(dpsqlp\.[\w.]+)"', (site / "api" / "index.html").read_text()))
    assert {f"dpsqlp.{name}" for name in dpsqlp.__all__} | {"dpsqlp.spark.start"} <= entries
    kinds = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert {f"dpsqlp.errors.{name}" for name in kinds} <= entries


def test_the_site_is_searchable(site: Path) -> None:
    """The search index has every document."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    names = {f"{file.stem}/" for file in ROOT.glob("docs/*.md")}
    assert names | {"", "security/", "changelog/"} <= found
