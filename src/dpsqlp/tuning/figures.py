"""Figures of an outcome: keys, errors of each aggregate split into noise and cap bias, by size too.

The released values, the totals that were kept and the true totals all go through the query's own
formulas, so an average's bias is that of the average. A group that is not released counts as 0 in
the norms l1 and l2, and not at all in medians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.plan import Plan
from dpsqlp.sql import connect
from dpsqlp.sql.query import Query
from dpsqlp.sql.released import NoisyColumns
from dpsqlp.tuning.sample import Sample
from dpsqlp.tuning.simulate import Outcome, Shown

Floats = NDArray[np.float64]
_TINY = 1e-300
Goal = Literal["live", "l2", "l1", "records", "keys", "half"]


@dataclass(frozen=True, slots=True)
class Values:
    """One aggregate of the released groups."""

    name: str
    released: Floats
    sd: Floats
    noise: Floats
    bias: Floats
    truth: Floats


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one aggregate. Medians and 90 % quantiles are of sizes, over released groups."""

    name: str
    sd: float  # the median
    error: tuple[float, float]  # median, 90 %
    noise: tuple[float, float]
    bias: tuple[float, float]
    coverage: float  # share of released values within 2 sd of the truth
    l1: float  # over all groups
    l2: float
    relative_l1: float  # to the same norm of the truth
    relative_l2: float  # with the noise's variance for its square, which is less a matter of luck
    half_relative_l2: float  # the same half way through a window


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Groups of low..high records, and the errors of one aggregate in those that are released."""

    low: int
    high: int
    groups: int
    released: int
    truth: float  # median size
    sd: float
    noise: float  # median size
    bias: float  # median, with its sign
    error: float  # 90 % of sizes are below
    coverage: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a plan would release. Keys are means over windows."""

    half_keys: float
    keys: float
    true_keys: float
    records: float  # share of the records that are in released groups
    columns: tuple[Errors, ...]


class Formulas:
    """A query's aggregates, from totals in quanta: as the release query computes them."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.outputs = [
            element
            for output in query.outputs
            if output.kind == "aggregate"
            for element in output.elements
        ]
        self._database = connect(config={"threads": 1})

    def __enter__(self) -> Formulas:
        """Close the database at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the database."""
        self._database.close()

    def values_of(self, plan: Plan, shown: Shown) -> list[Values]:
        """The aggregates of the released groups, with their errors."""
        released, kept, truth = (
            self.evaluate(plan, totals, shown.step)
            for totals in (shown.released, shown.kept, shown.truth)
        )
        deviations = self.evaluate(plan, shown.released, shown.step, deviations=True)
        return [
            Values(output.name, value, sd, value - exact, exact - true, true)
            for output, value, sd, exact, true in zip(
                self.outputs, released, deviations, kept, truth, strict=True
            )
        ]

    def evaluate(
        self, plan: Plan, totals: NDArray[np.int64], step: int, *, deviations: bool = False
    ) -> list[Floats]:
        """Each aggregate, or its standard deviation, at a step of the window."""
        if not self.outputs:
            return []
        columns = NoisyColumns(self._query, plan).of(
            totals, np.full(len(totals), step), np.full(len(totals), plan.triggers)
        )
        chosen = [output.sd_sql if deviations else output.sql for output in self.outputs]
        parts = ", ".join(
            f"coalesce(CAST({sql} AS DOUBLE), 0) AS c{n}" for n, sql in enumerate(chosen)
        )
        self._database.register("released", pa.table(columns))
        found = self._database.sql(f"SELECT {parts} FROM released").to_arrow_table()
        return [column.to_numpy() for column in found.columns]


def figures_of(query: Query, sample: Sample, outcome: Outcome) -> Figures:
    """The figures of an outcome."""
    plan, windows = outcome.plan, len(np.unique(sample.window))
    known = outcome.end.group[outcome.end.group >= 0]
    public = query.public_keys
    with Formulas(query) as formulas:
        (half, half_truth), (end, truth) = (
            (
                formulas.values_of(plan, shown),
                formulas.evaluate(plan, sample.truth(plan, shown.step), shown.step),
            )
            for shown in (outcome.half, outcome.end)
        )
    half_l2 = [_relative_l2(values, true) for values, true in zip(half, half_truth, strict=True)]
    return Figures(
        half_keys=len(outcome.half) / windows,
        keys=len(outcome.end) / windows,
        true_keys=len(sample.window) / windows if public is None else len(public),
        records=float(sample.group_rows[known].sum() / sample.group_rows.sum()),
        columns=tuple(map(_errors, end, truth, half_l2)),
    )


def values_of(query: Query, plan: Plan, shown: Shown) -> list[Values]:
    """The aggregates of the released groups, with their errors."""
    with Formulas(query) as formulas:
        return formulas.values_of(plan, shown)


def by_size(sample: Sample, end: Shown, values: Values) -> list[SizeClass]:
    """The errors of an aggregate by the number of records of a group: 1 to 9, 10 to 99, and on."""
    sizes = sample.group_rows
    rows = np.where(end.group >= 0, sizes[end.group], 0)
    classes = []
    for digits in range(len(str(sizes.max()))):
        low, high = 10**digits, 10 ** (digits + 1) - 1
        groups = int(((sizes >= low) & (sizes <= high)).sum())
        if not groups:
            continue
        members = (rows >= low) & (rows <= high)
        error, sd = np.abs(values.noise + values.bias)[members], values.sd[members]
        classes.append(
            SizeClass(
                low,
                high,
                groups,
                int(members.sum()),
                _quantile(np.abs(values.truth[members]), 0.5),
                _quantile(sd, 0.5),
                _quantile(np.abs(values.noise[members]), 0.5),
                _quantile(values.bias[members], 0.5),
                _quantile(error, 0.9),
                _coverage(error, sd),
            )
        )
    return classes


def score(figures: Figures, goal: Goal) -> tuple[float, float]:
    """What the search makes small: the goal, then the error."""
    error = _mean([column.relative_l2 for column in figures.columns])
    match goal:
        case "live":
            half = _mean([column.half_relative_l2 for column in figures.columns])
            return (error + half) / 2, -figures.keys
        case "keys":
            return -figures.keys, error
        case "half":
            return -figures.half_keys, error
        case "records":
            return -figures.records, error
        case "l1":
            return _mean([column.relative_l1 for column in figures.columns]), error
        case "l2":
            return error, -figures.keys


def _norms(values: Values, truth: Floats) -> tuple[float, float]:
    """l1 and l2 of the error over all groups; `truth` is theirs."""
    error, found = np.abs(values.noise + values.bias), np.abs(values.truth)
    l1 = error.sum() + max(np.abs(truth).sum() - found.sum(), 0.0)
    return float(l1), math.sqrt((error**2).sum() + _missing(values, truth))


def _relative_l2(values: Values, truth: Floats) -> float:
    """The l2 error that is expected of the released groups, relative to the truth."""
    squares = (values.sd**2 + values.bias**2).sum() + _missing(values, truth)
    return math.sqrt(squares) / max(_length(truth), _TINY)


def _missing(values: Values, truth: Floats) -> float:
    """The sum of the squares of groups that are not released."""
    return max(float((truth**2).sum() - (values.truth**2).sum()), 0.0)


def _errors(values: Values, truth: Floats, half_relative_l2: float) -> Errors:
    """`truth` is that of all groups."""
    error = np.abs(values.noise + values.bias)
    l1, l2 = _norms(values, truth)
    return Errors(
        values.name,
        _quantile(values.sd, 0.5),
        (_quantile(error, 0.5), _quantile(error, 0.9)),
        (_quantile(np.abs(values.noise), 0.5), _quantile(np.abs(values.noise), 0.9)),
        (_quantile(np.abs(values.bias), 0.5), _quantile(np.abs(values.bias), 0.9)),
        _coverage(error, values.sd),
        l1,
        l2,
        l1 / max(float(np.abs(truth).sum()), _TINY),
        _relative_l2(values, truth),
        half_relative_l2,
    )


def _length(vector: Floats) -> float:
    return float(np.sqrt((vector**2).sum()))


def _coverage(error: Floats, sd: Floats) -> float:
    return float((error <= 2 * sd).mean()) if len(error) else float("nan")


def _quantile(sizes: Floats, share: float) -> float:
    return float(np.quantile(sizes, share)) if len(sizes) else float("nan")


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
