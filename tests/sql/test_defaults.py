"""What a user gets who gives only epsilon, delta and one bound (docs/experiments.md says why)."""

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
    """Without further caps the norm is the number of rows."""
    assert caps("k, COUNT(*)", f"max_rows_contributed = {rows}") == ContributionBounds(
        rows, rows, votes, rows * rows
    )


@pytest.mark.parametrize(
    ("select", "options", "bounds"),
    [
        ("k, COUNT(DISTINCT u) AS n", "max_contribution_norm = 4", (16, 1, 16, 16)),
        ("k, COUNT(DISTINCT u) AS n", "max_rows_contributed = 4", (4, 1, 4, 4)),
        (
            "k, COUNT(DISTINCT u) AS n",
            "max_contribution_norm = 4, max_selections_contributed = 3, max_rows_per_group = 2",
            (16, 1, 3, 16),
        ),
        (
            "k, COUNT(DISTINCT u) AS n",
            "max_rows_contributed = 4, mechanism = 'tree', release = 'threshold'",
            (4, 4, 4, 16),
        ),
        ("k, COUNT(DISTINCT u) AS n, COUNT(*) AS m", "max_contribution_norm = 4", (16, 4, 16, 16)),
        ("k", "max_contribution_norm = 4", (16, 4, 2, 16)),
    ],
)
def test_people_are_bounded_by_their_groups(
    select: str, options: str, bounds: tuple[int, int, int, int]
) -> None:
    """One row in each, where nothing else is counted and one vote is enough."""
    assert caps(select, options) == ContributionBounds(*bounds)


@pytest.mark.parametrize(
    ("norm", "squared_norm", "rows_per_group", "votes"),
    [
        ("1", 1, 1, 1),
        ("1.4142135623730951", 2, 1, 2),
        ("1.99", 3, 1, 2),
        ("2", 4, 2, 2),
        ("4", 16, 4, 2),
        ("4.0001", 16, 4, 2),
        ("4.2", 17, 4, 3),
        ("6.928203230275509", 48, 6, 3),
        ("6.99", 48, 6, 3),
        ("8", 64, 8, 3),
        ("9.0", 81, 9, 3),
        ("65535", 65535**2, 65535, 256),
    ],
)
def test_one_norm_bounds_everything(
    norm: str, squared_norm: int, rows_per_group: int, votes: int
) -> None:
    """Its square is rounded down, and its root up. The root of 48, written out, is exact."""
    assert caps("k, COUNT(*)", f"max_contribution_norm = {norm}") == ContributionBounds(
        squared_norm, rows_per_group, votes, squared_norm
    )


def test_caps_bound_further_than_a_norm() -> None:
    """Noise is for what a unit can reach within all of them."""
    given = "max_contribution_norm = 8, max_rows_contributed = 40"
    assert caps("k, COUNT(*)", given) == ContributionBounds(40, 8, 3, 64)
    given += ", max_rows_per_group = 1"
    assert caps("k, COUNT(*)", given) == ContributionBounds(40, 1, 3, 40)
    given += ", max_selections_contributed = 5"
    assert caps("k, COUNT(*)", given) == ContributionBounds(40, 1, 5, 40)


@pytest.mark.parametrize(
    ("options", "closing"),
    [
        ("", False),
        (", privacy_unit_period = INTERVAL 12 HOURS", False),
        (", privacy_unit_period = INTERVAL 1 DAY", True),
        (", privacy_unit_period = INTERVAL 24 HOURS, mechanism = 'tree'", True),
        (", privacy_unit_period = INTERVAL 2 DAYS", False),
        (", privacy_unit_period = INTERVAL 1 DAY, release = 'threshold'", False),
        (", privacy_unit_period = INTERVAL 1 DAY, group_selection_closing = false", False),
        (", privacy_unit_period = INTERVAL 1 DAY, group_selection_closing = true", True),
    ],
)
def test_a_window_ends_with_a_closing_wherever_units_end_with_it(
    options: str, closing: bool
) -> None:
    assert query("k, COUNT(*)", f"max_contribution_norm = 8{options}").closing is closing


def test_a_count_of_units_leaves_out_none() -> None:
    select = "k, COUNT(DISTINCT u)"
    assert caps(select, "max_rows_contributed = 32") == ContributionBounds(32, 1, 32)
    assert caps(select, "max_contribution_norm = 8") == ContributionBounds(64, 1, 64, 64)
    given = "max_rows_contributed = 32, max_selections_contributed = 5"
    assert caps(select, given) == ContributionBounds(32, 1, 5)


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
