"""The bins of a histogram, and the fractions of quantiles, as they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from sqlglot import exp

from dpsqlp.sql.location import Text

_BINS = 32
_BINS_MAX = 64  # beyond, a tree of bins would be better, see docs/decisions/0015
_LARGEST_EDGE = 1e70
_WAY_OUT = "Write edges => [0, 10, 100] with public numbers."

Bounds = Callable[[list[exp.Expr]], tuple[float, float]]


def read_edges(text: Text, named: Sequence[exp.Expr], bounds: Bounds) -> tuple[float, ...]:
    """The edges of the bins: `edges`, or `bins` of equal width between bounds, which `bounds` reads
    from the other named arguments.
    """
    given = {argument.name.lower(): argument for argument in named}
    for argument in named:
        if given[argument.name.lower()] is not argument:
            raise text.refuse(
                argument.expression, f"{argument.name} is given twice", "Leave one out."
            )
    edges, bins = given.pop("edges", None), given.pop("bins", None)
    if edges is not None:
        for surplus in [*given.values(), *([] if bins is None else [bins])]:
            raise text.refuse(
                surplus.expression,
                f"The edges say where the bins are, so {surplus.name} says it twice",
                "Leave one out.",
            )
        return _listed_edges(text, edges.expression)
    lower, upper = bounds(list(given.values()))
    number = _BINS if bins is None else _number_of_bins(text, bins.expression)
    equal = [lower + (upper - lower) * (k / number) for k in range(number)] + [upper]
    if not all(a < b for a, b in pairwise(equal)):
        place = next(iter(given.values())).expression
        raise text.refuse(place, "These bounds leave no room for bins", "Widen the bounds.")
    return tuple(equal)


def _number_of_bins(text: Text, node: exp.Expr) -> int:
    number = as_number(node)
    if number is None or not 2 <= number <= _BINS_MAX or number != int(number):
        raise text.refuse(
            node,
            f"bins is a whole number from 2 to {_BINS_MAX}",
            f"Write bins => {_BINS}, or group by a bucket such as FLOOR(x / 10).",
        )
    return int(number)


def _listed_edges(text: Text, node: exp.Expr) -> tuple[float, ...]:
    listed = node.expressions if isinstance(node, exp.Array | exp.Tuple) else []
    numbers = [number for number in map(as_number, listed) if number is not None]
    if len(numbers) != len(listed) or not 2 <= len(numbers) - 1 <= _BINS_MAX:
        raise text.refuse(
            node, f"Edges are a list of 3 to {_BINS_MAX + 1} numbers, for 2 bins or more", _WAY_OUT
        )
    if not all(a < b for a, b in pairwise(numbers)) or max(map(abs, numbers)) > _LARGEST_EDGE:
        raise text.refuse(
            node, f"Edges increase, and have a size of at most {_LARGEST_EDGE:g}", _WAY_OUT
        )
    return tuple(numbers)


def read_fractions(text: Text, node: exp.Expr) -> tuple[float, ...]:
    """A fraction between 0 and 1, or a list of them."""
    listed = node.expressions if isinstance(node, exp.Array | exp.Tuple) else [node]
    fractions = [as_number(item) for item in listed]
    good = [number for number in fractions if number is not None and 0 < number < 1]
    if not good or len(good) < len(fractions):
        raise text.refuse(
            node,
            "The fraction of a quantile is a number above 0 and below 1, or a list of them",
            "Write 0.5 for the median, 0.01 or 0.99 near the ends.",
        )
    return tuple(good)


def as_number(node: exp.Expr) -> float | None:
    """A number as it is written; None for anything else."""
    sign, inner = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
    if not isinstance(inner, exp.Literal) or inner.is_string:
        return None
    return sign * float(inner.this)
