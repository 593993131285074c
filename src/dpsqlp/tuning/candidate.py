"""A candidate: the options that are searched, as values and as SQL."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count

from dpsqlp.accounting.model import ContributionBounds, Spending
from dpsqlp.sql.options import square_of_norm
from dpsqlp.sql.query import Query


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """Norm, votes, and the share and spending of selection."""

    squared_norm: int
    selections: int
    share: float
    spending: Spending

    @classmethod
    def of(cls, query: Query) -> Candidate:
        """The options as they stand."""
        return cls(
            query.caps.squared_norm,
            query.caps.selections,
            query.selection_share,
            query.selection_spending,
        )

    def query(self, query: Query) -> Query:
        """The query with these options. Its further caps stay, if they bind as it stands."""
        squares = self.squared_norm
        records, per_key = binding_caps(query)
        records = min(records or squares, squares)
        caps = ContributionBounds(
            records,
            min(per_key or records, records, math.isqrt(squares)),
            self.selections,
            squares,
        )
        return replace(
            query,
            caps=caps,
            selection_share=self.share,
            selection_spending=self.spending,
        )

    def options(self, query: Query) -> dict[str, str]:
        """The SQL options, by name; those of a query with public groups are its norm alone."""
        options = {"max_contribution_norm": norm_text(self.squared_norm)}
        if query.public_keys is None:
            options |= {
                "max_selections_contributed": str(self.selections),
                "group_selection_share": repr(self.share),
                "group_selection_spending": f"'{self.spending}'",
            }
        return options


def binding_caps(query: Query) -> tuple[int | None, int | None]:
    """Rows in all, and rows per group, where they restrict a unit beyond its norm.

    Where units alone are counted, one row per group is no cap that anybody gave.
    """
    caps = query.caps
    per_key = min(caps.records, math.isqrt(caps.squared_norm))
    if query.counts_units_alone:
        per_key = 1
    return (
        caps.records if caps.records < caps.squared_norm else None,
        caps.records_per_key if caps.records_per_key < per_key else None,
    )


def dropped_caps(query: Query, candidate: Query) -> list[str]:
    """The options of further caps that a candidate does not have: it would be refused with them."""
    before, after = binding_caps(query), binding_caps(candidate)
    names = ("max_rows_contributed", "max_rows_per_group")
    return [
        name
        for name, was, now in zip(names, before, after, strict=True)
        if was is None or now != was
    ]


def norm_text(squares: int) -> str:
    """The norm of the fewest decimals whose square is read as this."""
    return next(
        text
        for decimals in count()
        for text in _around(math.isqrt(squares * 100**decimals), decimals)
        if square_of_norm(float(text)) == squares
    )


def _around(root: int, decimals: int) -> tuple[str, str]:
    """Two neighbouring numbers of some decimals."""
    low, high = (f"{number / 10**decimals:.{decimals}f}" for number in (root, root + 1))
    return low, high
