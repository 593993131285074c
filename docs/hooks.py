"""What the documentation site needs beyond MkDocs: pages from outside `docs/`, and their links.

Documents are written for the repository, where a link is a path. On the site a link to another
page stays one, and a link to any other file leads to the repository. A link to nothing fails the
build.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
_REPOSITORY = "https://github.com/dpsqlp/dpsqlp"
_OUTSIDE = {
    "index.md": "README.md",
    "examples.md": "examples/README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
    "changelog.md": "CHANGELOG.md",
    "favicon.svg": "src/dpsqlp/dashboard/static/favicon.svg",
}
_FENCED = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)
_FENCE_MARK = re.compile(r"^(```[a-z]+) refused$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
_INDENT = re.compile(r"^ +", re.MULTILINE)
_ITEM = r"(?:[-*]|\d+\.) "
_LATE_ITEM = re.compile(rf"(\A|\n\n)(?!{_ITEM})((?:.+\n)+?)(?={_ITEM})")

log = logging.getLogger("mkdocs.hooks.dpsqlp")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures whose files are outside `docs/`."""
    for uri, path in _OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(_ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate GitHub's Markdown to Python-Markdown's, and paths to links of the site."""
    uri = page.file.src_uri
    folder = (_ROOT / _OUTSIDE.get(uri, f"docs/{uri}")).parent
    pages = {str((_ROOT / path).resolve()): name for name, path in _OUTSIDE.items()}
    pages |= {str(_ROOT / "docs" / file.src_uri): file.src_uri for file in files}

    def link(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        if not path.exists():
            log.warning("%s links to %s, which does not exist.", uri, found[1])
        if str(path) in pages:
            return os.path.relpath(pages[str(path)], Path(uri).parent)
        kind = "tree" if path.is_dir() else "blob"
        return f"{_REPOSITORY}/{kind}/main/{path.relative_to(_ROOT)}"

    def prose(text: str) -> str:
        # Python-Markdown wants an empty line between a paragraph and a list, and the contents of
        # an item four spaces in, where GitHub is content with two.
        text = _LATE_ITEM.sub(r"\1\2\n", _LINK.sub(link, text))
        return _INDENT.sub(lambda found: 2 * found[0], text)

    def fence(text: str) -> str:
        return _FENCE_MARK.sub(r"\1", text)

    steps: list[Callable[[str], str]] = [prose, fence]
    parts = _FENCED.split(markdown)
    return "".join(steps[number % 2](part) for number, part in enumerate(parts))
