"""What a user gets who gives only epsilon, delta and C (docs/experiments.md says why)."""

from __future__ import annotations

import pytest

from dpsqlp.accounting import ContributionBounds
from dpsqlp.sql import Query, compile_script


def query(select: str, options: str) -> Query:
    script = f"""
    CREATE SOURCE s (u TEXT, k TEXT, ts TIMESTAMP) WITH (connector = 'files', path = '*.csv');
    CREATE SINK t WITH (connector = 'stdout') AS
    SELECT WITH DIFFERENTIAL_PRIVACY
      OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = u, {options}) {select}
    FROM s GROUP BY k, TUMBLE(ts, INTERVAL 1 DAY) EMIT EVERY INTERVAL 1 HOUR
    """
    [sink] = compile_script(script).sinks
    return sink.query


def caps(select: str, options: str) -> ContributionBounds:
    return query(select, options).caps


@pytest.mark.parametrize(("rows", "votes"), [(1, 1), (2, 2), (4, 2), (5, 3), (32, 6), (100, 10)])
def test_votes_are_the_root_of_rows(rows: int, votes: int) -> None:
    assert caps("k, COUNT(*)", f"max_rows_contributed = {rows}") == ContributionBounds(
        rows, rows, votes
    )


def test_a_count_of_units_leaves_out_none() -> None:
    select = "k, COUNT(DISTINCT u)"
    assert caps(select, "max_rows_contributed = 32") == ContributionBounds(32, 32, 32)
    given = "max_rows_contributed = 32, max_selections_contributed = 5"
    assert caps(select, given) == ContributionBounds(32, 32, 5)


@pytest.mark.parametrize(
    ("option", "spending"),
    [
        ("", "even"),
        (", group_selection_spending = 'even'", "even"),
        (", group_selection_spending = 'LATE'", "late"),
    ],
)
def test_failures_are_spent_evenly_unless_asked(option: str, spending: str) -> None:
    asked = query("k, COUNT(*)", f"max_rows_contributed = 8{option}")
    assert asked.selection_spending == spending
