"""--write changes the OPTIONS clause of one sink, and no other byte.

Golden pairs: rewritten/<name>.sql becomes <name>.out. `DPSQLP_GOLDEN=write` writes them anew.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from dpsqlp.sql import compile_script
from dpsqlp.tuning.rewrite import rewrite

FILES = sorted((Path(__file__).parent / "rewritten").glob("*.sql"))
OPTIONS = {
    "max_contribution_norm": "2.83",
    "max_selections_contributed": "3",
    "group_selection_share": "0.3",
    "group_selection_spending": "'late'",
}
DROPPED = ("max_rows_contributed", "max_rows_per_group")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_scripts_become_what_stands_beside_them(file: Path) -> None:
    """And still compile."""
    text = file.read_bytes().decode()
    changed = rewrite(text, "popular", OPTIONS, DROPPED)
    golden = file.with_suffix(".out")
    if os.environ.get("DPSQLP_GOLDEN") == "write":
        golden.write_bytes(changed.text.encode())
    assert changed.text == golden.read_bytes().decode()
    assert changed.clause in changed.text
    queries = {sink.name: sink.query for sink in compile_script(changed.text).sinks}
    assert queries["popular"].caps.squared_norm == 8
    assert queries["popular"].selection_spending == "late"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_only_the_clause_changes(file: Path) -> None:
    """What differs lies between the parentheses of the clause."""
    text = file.read_bytes().decode()
    changed = rewrite(text, "popular", OPTIONS, DROPPED)
    start = changed.text.index(changed.clause)
    end = len(changed.text) - start - len(changed.clause)
    for tag, low, high, *_ in difflib.SequenceMatcher(
        None, text, changed.text, autojunk=False
    ).get_opcodes():
        if tag != "equal":
            assert start < low <= high < len(text) - end
    assert rewrite(changed.text, "popular", OPTIONS, DROPPED).text == changed.text
