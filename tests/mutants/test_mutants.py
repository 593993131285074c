"""Four of the deliberate breaks, one for each of four stages; `make mutants` runs them all."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
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


@cache
def _text(path: Path) -> str:
    return path.read_text()


def _fault(brk: Break) -> str | None:
    """Why the break cannot be tried, if so."""
    if _text(PROJECT / "src" / "dpsqlp" / brk.file).count(brk.old) != 1:
        return f"its text does not occur once in {brk.file}"
    if brk.old == brk.new:
        return "it changes nothing"
    catcher = re.fullmatch(r"([\w/]+\.py)::(\w+)(\[.*\])?", brk.catcher)
    if catcher is None or f"def {catcher[2]}(" not in _text(PROJECT / "tests" / catcher[1]):
        return f"there is no test {brk.catcher}"
    return None


def test_every_break_applies_and_names_a_test() -> None:
    """Its text occurs once in its file, it changes something, and its catcher exists."""
    faults = {brk.name: fault for brk in BREAKS if (fault := _fault(brk)) is not None}
    assert faults == {}


def test_a_break_that_no_longer_applies_is_said_out_loud(tmp_path: Path) -> None:
    """It counts as not caught, and says why and where its text has gone."""
    tree = copy_tree(tmp_path)
    (tree / "src" / "dpsqlp" / "moved.py").write_text("# no such text\n")
    gone = Break("gone", "", "plan.py", "no such text", "", "test_invariants.py")
    with pytest.raises(StaleError, match=r"occurs 0 times in plan\.py.* occurs in moved\.py\."):
        apply(gone, tree)
    assert not try_break(gone).caught
