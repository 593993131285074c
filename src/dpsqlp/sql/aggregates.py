"""Aggregates: the noise processes that they need, and their formulas over released columns.

Implements COUNT(*), COUNT(x), COUNT(DISTINCT unit), SUM, HISTOGRAM as processes; APPROX_QUANTILE
and MEDIAN from a histogram, see `quantiles`; AVG from a sum and a count of
the rows that have a value; VARIANCE and STDDEV also from a sum of squares. These sums are centred:
a value counts as its distance from the middle of its bounds, which is at most half their width; a
square of that less half of the largest. A SUM beside them is the centred sum plus middle times
count. Equal processes are shared. The standard deviation of a quotient is a first-order
(delta-method) estimate from released values; the noises of different processes are independent.

Privacy contract: every value column is bounded by its process; a value without bounds is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsqlp.accounting.model import Process, ProcessKind
from dpsqlp.sql.bins import as_number, read_edges, read_fractions
from dpsqlp.sql.dialect import Bounded, Histogram
from dpsqlp.sql.expressions import Expressions, missing_column
from dpsqlp.sql.functions import function_kind
from dpsqlp.sql.location import Text
from dpsqlp.sql.quantiles import coarse_size
from dpsqlp.sql.query import Quantiles
from dpsqlp.sql.relations import Scope, safe, sql

_BOUNDS = "contribution_bounds_per_row"
_LEAST_BOUND, _LARGEST_BOUND = 1e-70, 1e70  # fourth powers are finite, and larger than 0
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_UNSIGNED = tuple(f"U{kind}" for kind in _INTEGERS)
_NUMERIC = (*_INTEGERS, *_UNSIGNED, "BOOLEAN", "DECIMAL", "DOUBLE", "FLOAT")
_NAMES: dict[type[exp.Expr], str] = {
    exp.Count: "COUNT",
    exp.Sum: "SUM",
    exp.Avg: "AVG",
    exp.Variance: "VARIANCE",
    exp.VariancePop: "VAR_POP",
    exp.Stddev: "STDDEV",
    exp.StddevSamp: "STDDEV_SAMP",
    exp.StddevPop: "STDDEV_POP",
    Histogram: "HISTOGRAM",
    exp.ApproxQuantile: "APPROX_QUANTILE",
    exp.Median: "MEDIAN",
}
_QUANTILES = (exp.Quantile, exp.PercentileCont, exp.PercentileDisc)
_WRAPPERS = (Bounded, exp.Filter, exp.Window, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


@dataclass(frozen=True, slots=True)
class Formula:
    """An aggregate in terms of the released columns p0, p0_sd, p1, ..., q0, q0_sd, ..."""

    sql: str
    sd_sql: str
    processes: tuple[int, ...]
    edges_sql: str | None = None
    length: int = 0  # of a list


@dataclass(slots=True)
class Aggregates:
    """The aggregates of one query, read one after another."""

    text: Text
    expressions: Expressions
    scope: Scope
    unit: tuple[exp.Column, ...]
    values: list[str] = field(default_factory=list)  # DuckDB SQL of the value columns
    processes: list[Process] = field(default_factory=list)
    quantiles: list[Quantiles] = field(default_factory=list)

    def read(self, node: exp.Expr, name: str) -> Formula:
        """The formula of an aggregate; its processes are named after `name`."""
        place, condition, named = node, None, []
        if isinstance(node, exp.Filter):
            condition = node.expression.this
            node = node.this
        if isinstance(node, Bounded):
            named = node.expressions
            node = node.this
        kind = _NAMES.get(type(node))
        if kind is None:
            raise self._refuse_kind(place)
        if condition is not None:
            self.expressions.check(condition, self.scope)
        if kind == "COUNT":
            for argument in named:
                raise self._refuse_argument(argument, kind)
            return self._count(node, condition, name)
        if isinstance(node.this, exp.Distinct):
            raise self.text.refuse(
                place, f"{kind}(DISTINCT ...) is not supported", f"Leave DISTINCT out of {kind}."
            )
        if kind in ("HISTOGRAM", "APPROX_QUANTILE", "MEDIAN"):
            return self._from_bins(place, node, condition, named, name)
        lower, upper = self._bounds(place, node, kind, named)
        column = self._value(node.this, condition, kind)
        if kind == "SUM":
            return self._sum(column, lower, upper, name)
        if lower == upper:
            raise self.text.refuse(
                place, f"With these bounds every value counts as {lower:g}", "Widen the bounds."
            )
        return self._moments(kind, column, lower, upper, name)

    def _sum(self, column: int, lower: float, upper: float, name: str) -> Formula:
        """From the processes of an AVG that was read before, if there is one."""
        middle = _middle(lower, upper)
        centred = self._find("sum", column, lower, upper, middle)
        if centred is None or middle == 0:
            total = self._process(name, "sum", column, lower, upper)
            return Formula(f"p{total}", f"p{total}_sd", (total,))
        number = self._process(name, "count", column)
        s, n = f"p{centred}", f"p{number}"
        m = f"CAST({middle!r} AS DOUBLE)"  # a product of decimals may overflow
        deviation = f"SQRT({s}_sd * {s}_sd + {m} * {m} * {n}_sd * {n}_sd)"
        return Formula(f"({s} + {m} * {n})", deviation, (centred, number))

    def _count(self, node: exp.Expr, condition: exp.Expr | None, name: str) -> Formula:
        this = node.this
        if node.expressions:
            raise self.text.refuse(node, "COUNT takes one argument", "Count one column at a time.")
        if isinstance(this, exp.Distinct):
            index = self._distinct(node, this, condition, name)
        elif isinstance(this, exp.Star) and condition is None:
            index = self._process(name, "count", None)
        else:
            counted = exp.Literal.number(1) if isinstance(this, exp.Star) else this
            index = self._process(name, "count", self._value(counted, condition, "COUNT"))
        return Formula(f"TRY_CAST(p{index} AS BIGINT)", f"p{index}_sd", (index,))

    def _distinct(
        self, node: exp.Expr, distinct: exp.Expr, condition: exp.Expr | None, name: str
    ) -> int:
        counted = distinct.expressions
        if len(counted) == 1 and isinstance(counted[0], exp.Tuple | exp.Paren):
            counted = counted[0].expressions or [counted[0].this]
        names = sorted(c.name.lower() if isinstance(c, exp.Column) else "" for c in counted)
        unit = ", ".join(column.name for column in self.unit)
        if names != sorted(column.name.lower() for column in self.unit):
            for column in counted:
                if isinstance(column, exp.Column) and not self.scope.has(column.parts[0].name):
                    raise missing_column(self.text, column, self.scope.columns)
            raise self.text.refuse(
                node,
                "Only the unit can be counted with DISTINCT",
                f"Write COUNT(DISTINCT {unit if len(self.unit) == 1 else f'({unit})'}), or group by"
                " what you want to tell apart.",
            )
        if condition is not None:
            raise self.text.refuse(
                node, "COUNT(DISTINCT unit) has no FILTER", "Filter with WHERE, in its own sink."
            )
        return self._process(name, "distinct", None)

    def _moments(self, kind: str, column: int, lower: float, upper: float, name: str) -> Formula:
        """AVG, VARIANCE and STDDEV from s = sum, n = count, q = sum of squares, centred: `mean` is
        the distance of the mean from the middle, and q has lost h for each row.
        """
        middle = _middle(lower, upper)
        total = self._process(f"{name}_sum", "sum", column, lower, upper, middle)
        number = self._process(f"{name}_count", "count", column)
        s, n = f"p{total}", f"p{number}"
        mean = f"({s} / {n})"
        if kind == "AVG":
            variance = f"{s}_sd * {s}_sd + {mean} * {mean} * {n}_sd * {n}_sd"
            average = f"({middle!r}) + {mean}"
            return Formula(
                f"CASE WHEN {n} >= 1 THEN LEAST(GREATEST({average}, {lower!r}), {upper!r}) END",
                f"CASE WHEN {n} >= 1 THEN SQRT({variance}) / {n} END",
                (total, number),
            )
        squares = self._process(f"{name}_squares", "squares", column, lower, upper, middle)
        q, h = f"p{squares}", f"{self.processes[squares].half_square!r}"
        sample = not kind.endswith("_POP")
        m = f"({n} - 1)" if sample else n
        spread = f"(({q} + {h} * {n} - {s} * {mean}) / {m})"
        # d/dq = 1/m, d/ds = -2 mean/m; d/dn = (h + mean^2 - spread)/m, for both divisors
        slope = f"({h} + {mean} * {mean} - {spread})"
        deviation = (
            f"SQRT({q}_sd * {q}_sd + 4 * {mean} * {mean} * {s}_sd * {s}_sd"
            f" + {slope} * {slope} * {n}_sd * {n}_sd) / {m}"
        )
        least = f"{n} >= {2 if sample else 1}"
        used = (total, number, squares)
        if kind.startswith("VAR"):
            return Formula(
                f"CASE WHEN {least} THEN GREATEST({spread}, 0) END",
                f"CASE WHEN {least} THEN {deviation} END",
                used,
            )
        return Formula(
            f"CASE WHEN {least} THEN SQRT(GREATEST({spread}, 0)) END",
            f"CASE WHEN {least} AND {spread} > 0 THEN {deviation} / (2 * SQRT({spread})) END",
            used,
        )

    def _from_bins(
        self,
        place: exp.Expr,
        node: exp.Expr,
        condition: exp.Expr | None,
        named: list[exp.Expr],
        name: str,
    ) -> Formula:
        """HISTOGRAM, APPROX_QUANTILE and MEDIAN. Of equal bins there is one process: a histogram,
        or the coarser one that quantiles make if they are alone.
        """
        kind, asked = _NAMES[type(node)], self._fractions(node)
        edges = read_edges(self.text, named, lambda rest: self._bounds(place, node, kind, rest))
        column = self._value(node.this, condition, kind)
        known = [
            number
            for number, process in enumerate(self.processes)
            if (process.column, process.edges) == (column, edges) and (asked or not process.coarse)
        ]
        if known:
            number = known[0]
        else:
            coarse = coarse_size(len(edges) - 1) if asked else 0
            process = Process("", "histogram", column, edges=edges, coarse=coarse)
            number = self._add(name, process)
        if not asked:
            listed = f"[{', '.join(map(repr, edges))}]::DOUBLE[]"
            counts = f"TRY_CAST(p{number} AS BIGINT[])"
            return Formula(counts, f"p{number}_sd", (number,), listed, len(edges) - 1)
        if (number, asked) not in self.quantiles:
            self.quantiles.append((number, asked))
        q = f"q{self.quantiles.index((number, asked))}"
        is_list = isinstance(node.args.get("quantile"), exp.Array | exp.Tuple)
        if is_list:
            return Formula(q, f"{q}_sd", (number,), length=len(asked))
        return Formula(f"{q}[1]", f"{q}_sd[1]", (number,))

    def _fractions(self, node: exp.Expr) -> tuple[float, ...]:
        """The quantiles that are asked for; of a histogram none."""
        if isinstance(node, Histogram):
            return ()
        if isinstance(node, exp.Median):
            return (0.5,)
        for surplus in (node.args.get("accuracy"), node.args.get("weight")):
            if surplus is not None:
                raise self.text.refuse(
                    surplus, "APPROX_QUANTILE takes a value and a fraction", "Leave the rest out."
                )
        return read_fractions(self.text, node.args["quantile"])

    def _value(self, node: exp.Expr, condition: exp.Expr | None, kind: str) -> int:
        """The value column of an argument. Numbers are doubles; COUNT of anything else is 1."""
        self.expressions.check(node, self.scope)
        value = node.copy()
        if condition is not None:
            held = exp.cast(condition.copy(), exp.DType.BOOLEAN)
            value = exp.Case(ifs=[exp.If(this=held, true=value)])
        value = safe(value)
        (found,) = self.expressions.types(self.scope, [value], node)
        if found.startswith(_NUMERIC) and not found.endswith("]"):
            return self._column(f"TRY_CAST({sql(value)} AS DOUBLE)")
        if kind == "COUNT":
            return self._column(f"CASE WHEN {sql(value)} IS NOT NULL THEN 1 END")
        raise self.text.refuse(
            node,
            f"{kind} needs a number; this is {found}",
            "Convert it, for example with TRY_CAST(x AS DOUBLE).",
        )

    def _column(self, value: str) -> int:
        if value not in self.values:
            self.values.append(value)
        return self.values.index(value)

    def _process(
        self,
        name: str,
        kind: ProcessKind,
        column: int | None,
        lower: float = 0.0,
        upper: float = 1.0,
        center: float = 0.0,
    ) -> int:
        found = self._find(kind, column, lower, upper, center)
        if found is not None:
            return found
        return self._add(name, Process("", kind, column, lower, upper, center))

    def _add(self, name: str, process: Process) -> int:
        """A new process, with a name that no other has."""
        name = name.lower()  # the fingerprint covers it, and case does not matter
        taken = {process.name for process in self.processes}
        names = (name, *(f"{name}_{n}" for n in range(2, len(taken) + 2)))
        unique = next(n for n in names if n not in taken)
        self.processes.append(replace(process, name=unique))
        return len(self.processes) - 1

    def _find(
        self, kind: ProcessKind, column: int | None, lower: float, upper: float, center: float
    ) -> int | None:
        """A process that adds the same."""
        for index, known in enumerate(self.processes):
            if known == Process(known.name, kind, column, lower, upper, center):
                return index
        return None

    def _bounds(
        self, place: exp.Expr, node: exp.Expr, kind: str, named: list[exp.Expr]
    ) -> tuple[float, float]:
        for argument in named:
            if argument.name.lower() != _BOUNDS:
                raise self._refuse_argument(argument, kind)
        given = [node.args.get("this"), node.args.get("quantile")]
        argument_sql = ", ".join(sql(part) for part in given if part is not None)
        way_out = f"Write {kind}({argument_sql}, {_BOUNDS} => (lower, upper)) with public numbers."
        if not named:
            raise self.text.refuse(
                place,
                f"{kind} has no bounds, so one row could move it by any amount",
                way_out,
            )
        if len(named) > 1:
            raise self.text.refuse(named[1], f"{_BOUNDS} is given twice", "Leave one out.")
        pair = named[0].expression
        numbers = pair.expressions if isinstance(pair, exp.Tuple) else []
        bounds = [value for value in map(as_number, numbers) if value is not None]
        if len(numbers) != 2 or len(bounds) != 2:
            raise self.text.refuse(pair, "Bounds are a pair of numbers", way_out)
        lower, upper = bounds
        size = max(abs(lower), abs(upper))
        if size and not _LEAST_BOUND <= size <= _LARGEST_BOUND:
            raise self.text.refuse(
                pair,
                f"Bounds need a size between {_LEAST_BOUND:g} and {_LARGEST_BOUND:g}",
                "Choose another unit for the values.",
            )
        if lower > upper or lower == upper == 0:
            raise self.text.refuse(
                pair,
                "The bounds are reversed" if lower > upper else "The bounds leave only 0",
                "Give (lower, upper) with lower <= upper, not both 0.",
            )
        return lower, upper

    def _refuse_argument(self, argument: exp.Expr, kind: str) -> Exception:
        name = argument.name.lower()
        if name == "contribution_bounds_per_group":
            pair = argument.expression.expressions
            low, high = [sql(item) for item in pair] if len(pair) == 2 else ["lower", "upper"]
            way_out = (
                f"The equivalent is max_rows_per_group = {high}: at most that many rows of a"
                " unit count in each group."
                if kind == "COUNT"
                else f"The equivalent is {kind}(x, {_BOUNDS} => ({low} / r, {high} / r)) with"
                " max_rows_per_group = r."
            )
            return self.text.refuse(
                argument.expression,
                "contribution_bounds_per_group is not supported: a stream cannot clamp a group's"
                " total before it is over",
                way_out,
            )
        if kind == "COUNT" and name == _BOUNDS:
            return self.text.refuse(
                argument.expression,
                "COUNT adds one per row, so it takes no bounds",
                "Leave them out; max_rows_per_group says how many rows of a unit count.",
            )
        near = difflib.get_close_matches(name, [_BOUNDS], 1, 0.5)
        return self.text.refuse(
            argument.expression,
            f"{kind} has no argument {argument.name}",
            f"Did you mean {near[0]}?" if near else "Leave it out.",
        )

    def _refuse_kind(self, node: exp.Expr) -> Exception:
        if isinstance(node, exp.Window) or node.find(exp.Window):
            return self.text.refuse(
                node,
                "An analytic function (OVER) is not supported",
                "Aggregate with GROUP BY; HAVING, ORDER BY and LIMIT act on released rows.",
            )
        inner = node.find(exp.Func) or node
        placed = inner.meta.get("start") is not None
        name = self.text.written(inner).upper() if placed else inner.key.upper()
        inner = inner if placed else node
        quantile = f"APPROX_QUANTILE(x, {{}}, {_BOUNDS} => (lower, upper))"
        if name in ("MAX", "MIN"):
            fact = f"{name} depends on single rows, so no bounded noise hides one"
            way_out = f"Write {quantile.format('0.99' if name == 'MAX' else '0.01')}."
        elif node.find(*_QUANTILES):
            fact = f"{name} gives the value of a single row, which no bounded noise hides"
            way_out = (
                f"Write {quantile.format('0.5')}, which reads quantiles off a noisy histogram."
            )
        else:
            fact = f"The aggregate {name} is not supported"
            way_out = (
                "COUNT, SUM, AVG, VARIANCE, STDDEV, HISTOGRAM, APPROX_QUANTILE and MEDIAN are"
                " supported."
            )
        return self.text.refuse(inner, fact, way_out)


def find_aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """The outermost aggregates in an expression, supported or not."""
    if is_aggregate(node):
        yield node
        return
    for below in node.iter_expressions():
        yield from find_aggregates(below)


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is an aggregate, with whatever is wrapped around it."""
    if isinstance(node, _WRAPPERS):
        return True
    if isinstance(node, exp.Anonymous):
        return function_kind(str(node.this), len(node.expressions)) == "aggregate"
    return isinstance(node, exp.AggFunc)


def default_name(node: exp.Expr) -> str | None:
    """The name of an aggregate without an alias: count, sum_dwell; None if it is unclear."""
    node = node.this if isinstance(node, Bounded) else node
    kind = _NAMES.get(type(node))
    if kind is None:
        return None
    if isinstance(node.this, exp.Star):
        return "count"
    if isinstance(node.this, exp.Column):
        return f"{kind.lower()}_{node.this.name}"
    return "count_units" if isinstance(node.this, exp.Distinct) else None


def _middle(lower: float, upper: float) -> float:
    return lower / 2 + upper / 2
