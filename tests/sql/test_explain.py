"""The audit surface: explain in words and numbers, as written down beside the scripts.

`DPSQLP_GOLDEN=write pytest tests/sql/test_explain.py` writes the expectations anew.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from dpsqlp.accounting import epsilon_of
from dpsqlp.errors import SqlError
from dpsqlp.sql import compile_script, explain, explain_text, explain_total, make_plan
from dpsqlp.sql.explain import units_needed
from sql.scripts import SOURCE, sink

EXPLAINED = Path(__file__).parent / "explained"
FILES = sorted(EXPLAINED.glob("*.sql"))
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
        "max_contribution_norm", "max_rows_contributed", "max_rows_per_group",
        "max_selections_contributed",
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
        assert wanted | {"contribution_max"} <= set(column)
        assert len(column["standard_deviation"]) == numbers["triggers"]
    assert json.loads(json.dumps(numbers)) == numbers


ACCOUNTS = {
    (script.stem, sink.name): sink.query
    for script in FILES
    for sink in compile_script(script.read_text(), folder=str(script.parent)).sinks
}


@pytest.mark.parametrize("name", ACCOUNTS, ids="-".join)
def test_the_account_adds_up(name: tuple[str, str]) -> None:
    """nu^2 is the sum of what selection and columns spend, and delta that of its parts, by the
    definitions of explain.
    """
    query = ACCOUNTS[name]
    numbers = explain(query, make_plan(query))
    caps, selection = numbers["caps"], numbers["selection"]
    parts = [numbers[part] for part in ("delta_gaussian", "delta_votes", "delta_closing")]
    assert math.fsum(parts) == pytest.approx(numbers["delta"], rel=1e-12)
    assert parts[1] + parts[2] == numbers["delta_threshold"]
    spent = 0.0
    if selection is not None:
        votes = caps["max_selections_contributed"]
        spent = votes * (selection["sensitivity"] / selection["sigma"]) ** 2
        assert parts[1] == pytest.approx(votes * selection["failure_per_vote"], rel=1e-12)
    for column in numbers["columns"]:
        if column["noise"] == "selection":
            continue
        squares = caps["max_contribution_norm"] ** 2
        if column["kind"] == "distinct":
            squares = caps["max_selections_contributed"]
        moved = column["contribution_max"] * column["sensitivity"] / column["sigma"]
        spent += squares * moved**2
    told = numbers["diagnostics"]
    if told is not None:
        sensitivity = numbers["selection"]["sensitivity"]
        costs = [(n["counted_max"] * sensitivity / n["sigma"]) ** 2 for n in told["numbers"]]
        assert math.fsum(costs) == pytest.approx(told["share"] * numbers["nu"] ** 2)
        spent += math.fsum(costs)
    assert spent == pytest.approx(numbers["nu"] ** 2)
    assert (numbers["closing"] is None) == (numbers["no_closing"] is not None)
    assert (numbers["closing"] is None) == (numbers["delta_closing"] == 0)


def test_the_closing_follows_from_the_account() -> None:
    """What units have left, and the threshold for it, from the other numbers of explain."""
    query = ACCOUNTS["closing", "popular"]
    numbers = explain(query, make_plan(query))
    closing, selection, caps = numbers["closing"], numbers["selection"], numbers["caps"]
    votes = caps["max_selections_contributed"]
    vote = (selection["sensitivity"] / selection["sigma"]) ** 2
    row = (numbers["nu"] ** 2 - votes * vote) / caps["max_contribution_norm"] ** 2
    assert closing["budget"] == pytest.approx(numbers["nu"] ** 2)
    assert (closing["vote_cost"], closing["square_cost"]) == pytest.approx((vote, row))
    assert len(closing["weights_max"]) == closing["keys_max"] == 32
    most = 0.0
    for keys, weight in enumerate(closing["weights_max"], 1):
        left = numbers["nu"] ** 2 - vote * min(votes, keys) - row * keys
        assert weight == pytest.approx(math.sqrt(max(left, 0) / keys), abs=closing["quantum"])
        quantile = NormalDist().inv_cdf(closing["failure"] / keys)
        most = max(most, weight - quantile)
    assert closing["threshold"] == pytest.approx(most, rel=1e-4)
    assert closing["failure"] == numbers["delta_closing"] == numbers["delta"] / 4


def test_the_failures_of_closings_add_up() -> None:
    """Sinks together: every part of delta counts, those of closings too."""
    numbers = [
        explain(query, make_plan(query)) for (script, _), query in ACCOUNTS.items()
        if script == "closing"
    ]  # fmt: skip
    nu = math.sqrt(sum(each["nu"] ** 2 for each in numbers))
    noise = 2e-8 - sum(each["delta_votes"] + each["delta_closing"] for each in numbers)
    assert noise == pytest.approx(1e-8)
    spare = sum(each["epsilon_float"] for each in numbers)
    epsilon = epsilon_of(nu, noise * math.exp(-spare)) + spare
    text = (Path(__file__).parent / "explained/closing.txt").read_text()
    assert f"Together the sinks popular, pages over page_views are ({epsilon:.4g}, 2e-08)" in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("switched_off", "it is switched off"),
        ("hopping", "the windows overlap"),
        ("living_on", "units outlive a window, since privacy_unit_period is not set to its length"),
        ("nothing_left", "a unit's first vote and row use up all that a unit has"),
    ],
)
def test_why_there_is_no_closing(name: str, reason: str) -> None:
    query = ACCOUNTS["no_closing", name]
    assert explain(query, make_plan(query))["no_closing"] == reason


@pytest.mark.parametrize("per_group", [None, 1, 2, 5])
@pytest.mark.parametrize("rows", [None, 3, 20])
@pytest.mark.parametrize("norm", ["1", "1.5", "2", "3", "6.93", "8", "100"])
def test_examples_of_a_budget_are_within_it(
    norm: str, rows: int | None, per_group: int | None
) -> None:
    """A unit may have what explain says that it may have, and not in one group more."""
    options = f", max_rows_contributed = {rows}" if rows else ""
    options += f", max_rows_per_group = {per_group}" if per_group else ""
    script = SOURCE + sink().replace(
        "max_rows_contributed = 4", f"max_contribution_norm = {norm}{options}"
    )
    square = math.floor(float(norm) ** 2)
    if (rows or 1) > square or (per_group or 1) > min(rows or square, math.isqrt(square)):
        with pytest.raises(SqlError, match="a unit never reaches it"):
            compile_script(script)
        return
    compiled = compile_script(script).sinks[0].query
    text = explain_text("t", compiled, make_plan(compiled))
    found = re.findall(r"(one row|\d+ rows) in (?:each of (\d+)|one) group", text)
    assert 1 <= len(found) <= 2
    caps = compiled.caps
    for count, groups in found:
        per = 1 if count == "one row" else int(count.removesuffix(" rows"))
        many = int(groups or 1)
        assert per * per * many <= caps.squared_norm
        assert per * many <= caps.records
        assert per <= caps.records_per_key
        more = many + 1
        assert more * per * per > caps.squared_norm or more * per > caps.records


def test_the_units_that_a_group_needs_follow_from_the_noise() -> None:
    """One unit fewer is not enough for the probability; noise is rounded to whole units."""
    plan = make_plan(compile_script((EXPLAINED / "closing.sql").read_text()).sinks[0].query)
    selection = plan.calibration.selection
    assert selection is not None
    needed = units_needed(plan)
    assert [row["trigger"] for row in needed] == [1, 2, 4]
    for row in needed:
        deviation = selection.sigma * math.sqrt(plan.mechanism.variance[row["trigger"] - 1])
        threshold = selection.thresholds[row["trigger"] - 1]
        for name, probability in (("half", 0.5), ("sure", 0.99)):
            reached = [
                NormalDist(0, deviation).cdf(units - threshold + 0.5)
                for units in (row[name] - 1, row[name])
            ]
            assert reached[0] < probability <= reached[1]
