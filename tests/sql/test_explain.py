"""The audit surface: explain in words and numbers, as written down beside the scripts.

`DPSQLP_GOLDEN=write pytest tests/sql/test_explain.py` writes the expectations anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dpsqlp.sql import compile_script, explain, explain_text, explain_total, make_plan

FILES = sorted((Path(__file__).parent / "explained").glob("*.sql"))
WRITE = os.environ.get("DPSQLP_GOLDEN") == "write"


def rounded(value: Any) -> Any:
    """Six digits: the last ones belong to the machine's mathematics library."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items() if name != "fingerprint"}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


@pytest.mark.parametrize("script", FILES, ids=lambda path: path.stem)
def test_explained(script: Path) -> None:
    """Words and numbers of every sink, and what they add up to."""
    sinks = compile_script(script.read_text(), folder=str(script.parent)).sinks
    plans = [(sink.name, sink.query, make_plan(sink.query)) for sink in sinks]
    words = "\n".join(explain_text(*plan) for plan in plans) + explain_total(plans, "")
    numbers = [rounded(explain(query, plan)) for _, query, plan in plans]
    for suffix, got in ((".txt", words), (".json", json.dumps(numbers, indent=1) + "\n")):
        expected = script.with_suffix(suffix)
        if WRITE:
            expected.write_text(got)
        assert got == expected.read_text()


def test_the_numbers_are_all_there() -> None:
    """The keys that tools rely on."""
    sink = compile_script(FILES[0].read_text()).sinks[0]
    plan = make_plan(sink.query)
    numbers = explain(sink.query, plan)
    assert {"epsilon", "delta", "nu", "triggers", "unit", "caps", "selection", "columns"} <= set(
        numbers
    )
    assert set(numbers["caps"]) == {
        "max_rows_contributed", "max_rows_per_group", "max_selections_contributed",
    }  # fmt: skip
    selection, columns = numbers["selection"], numbers["columns"]
    wanted = {
        "mechanism",
        "sensitivity",
        "sigma",
        "delta_gaussian",
        "delta_threshold",
        "thresholds",
    }
    assert wanted <= set(selection)
    assert len(selection["thresholds"]) == numbers["triggers"]
    assert all(isinstance(threshold, int) for threshold in selection["thresholds"])
    for column in columns:
        wanted = {"name", "mechanism", "sensitivity", "sigma", "quantum", "standard_deviation"}
        assert wanted <= set(column)
        assert len(column["standard_deviation"]) == numbers["triggers"]
    assert json.loads(json.dumps(numbers)) == numbers


def test_the_account_adds_up() -> None:
    """nu^2 is the sum of what selection and columns spend, by the definitions of explain."""
    sink = compile_script(FILES[0].read_text()).sinks[0]
    plan = make_plan(sink.query)
    numbers = explain(sink.query, plan)
    caps = numbers["caps"]
    spent = caps["max_selections_contributed"] / numbers["selection"]["sigma"] ** 2
    squares = caps["max_rows_contributed"] * caps["max_rows_per_group"]
    for column in numbers["columns"]:
        if column["noise"] != "selection":
            spent += squares * (max(map(abs, column["bounds"])) / column["sigma"]) ** 2
    spent *= numbers["selection"]["sensitivity"] ** 2
    assert spent == pytest.approx(numbers["nu"] ** 2)
