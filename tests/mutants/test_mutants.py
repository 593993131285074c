"""Four of the deliberate breaks, one for each of four stages; `make mutants` runs them all."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from mutants.breaks import BREAKS, Break
from mutants.run import PROJECT, StaleError, apply, copy_tree, try_break

QUICK = ("beta not over T", "Cs ignored", "selection noise from first appearance", "no upper clamp")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_break_is_caught(name: str) -> None:
    """The test named for the break fails on the broken copy."""
    [brk] = [brk for brk in BREAKS if brk.name == name]
    outcome = try_break(brk)
    assert outcome.caught, outcome.text


def test_every_break_has_a_name_of_its_own() -> None:
    """Two breaks of one name could not be told apart in the report."""
    assert len(BREAKS) >= 20
    names = Counter(brk.name for brk in BREAKS)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("brk", BREAKS, ids=lambda brk: brk.name)
def test_every_break_applies_and_names_a_test(brk: Break) -> None:
    """Its text occurs once in its file, it changes something, and its catcher exists."""
    assert (PROJECT / "src" / "dpsqlp" / brk.file).read_text().count(brk.old) == 1
    assert brk.old != brk.new
    catcher = re.fullmatch(r"([\w/]+\.py)::(\w+)(\[.*\])?", brk.catcher)
    assert catcher is not None
    assert f"def {catcher[2]}(" in (PROJECT / "tests" / catcher[1]).read_text()


def test_a_break_that_no_longer_applies_is_said_out_loud(tmp_path: Path) -> None:
    """It counts as not caught, and says why and where its text has gone."""
    tree = copy_tree(tmp_path)
    (tree / "src" / "dpsqlp" / "moved.py").write_text("# no such text\n")
    gone = Break("gone", "", "plan.py", "no such text", "", "test_invariants.py")
    with pytest.raises(StaleError, match=r"occurs 0 times in plan\.py.* occurs in moved\.py\."):
        apply(gone, tree)
    assert not try_break(gone).caught
