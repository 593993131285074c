"""Code blocks in the documents run, and print what the documents say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n<!-- output -->\n```text\n(.*?)```", re.DOTALL)
DOCUMENTS = sorted(
    p for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")] if "```python" in p.read_text()
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_print_what_the_document_shows(document: Path) -> None:
    """Every Python block is followed by its output, and it is the real one."""
    text = document.read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python")
    for code, output in examples:
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert ran.stdout == output
