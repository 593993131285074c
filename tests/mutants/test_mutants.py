"""Four of the deliberate breaks, one for each of four stages; `make mutants` runs them all."""

from __future__ import annotations

import re

import pytest

from mutants.breaks import BREAKS, Break
from mutants.run import PROJECT, StaleError, apply, copy_tree, try_break

QUICK = ("beta not over T", "Cs ignored", "selection noise from first appearance", "no upper clamp")


@pytest.mark.parametrize("name", QUICK)
def test_a_break_is_caught(name: str) -> None:
    """The test named for the break fails on the broken copy."""
    [brk] = [brk for brk in BREAKS if brk.name == name]
    outcome = try_break(brk)
    assert outcome.caught, outcome.text


def test_every_break_applies_and_names_a_test() -> None:
    """Its text occurs once, it changes something, and its catcher is in its file."""
    assert len(BREAKS) >= 20
    assert len({brk.name for brk in BREAKS}) == len(BREAKS)
    for brk in BREAKS:
        text = (PROJECT / "src" / "dpsqlp" / brk.file).read_text()
        assert text.count(brk.old) == 1, brk.name
        assert brk.old != brk.new, brk.name
        file, test = re.fullmatch(r"([\w/]+\.py)::(\w+)(\[.*\])?", brk.catcher).group(1, 2)  # type: ignore[union-attr]
        assert f"def {test}(" in (PROJECT / "tests" / file).read_text(), brk.name


def test_a_break_that_no_longer_applies_is_said_out_loud(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """It counts as not caught, and says why."""
    gone = Break("gone", "", "plan.py", "no such text", "", "test_invariants.py")
    with pytest.raises(StaleError, match="occurs 0 times"):
        apply(gone, copy_tree(tmp_path))
    assert not try_break(gone).caught
