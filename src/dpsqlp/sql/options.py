"""The privacy options, and the options of sources and sinks, as values."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import quote

from sqlglot import exp

from dpsqlp.accounting.model import ContributionBounds, ReleasePolicy, Spending
from dpsqlp.errors import PlanError
from dpsqlp.sql.dialect import Option, PrivacyClause
from dpsqlp.sql.location import Text
from dpsqlp.sql.query import MechanismName, OptionValue

_KNOWN = (
    "epsilon",
    "delta",
    "privacy_unit_column",
    "privacy_unit_period",
    "max_contribution_norm",
    "max_rows_contributed",
    "max_rows_per_group",
    "max_selections_contributed",
    "min_privacy_units_per_group",
    "group_selection_share",
    "group_selection_spending",
    "group_selection_closing",
    "diagnostics_share",
    "group_selection_strategy",
    "public_groups",
    "timestamp_column",
    "mechanism",
    "release",
    "budget",
)
_REQUIRED = {
    "epsilon": "Say how much privacy loss is allowed, for example epsilon = 1.",
    "delta": "Give far less than one over the number of units, for example delta = 1e-9.",
    "privacy_unit_column": "Say whose data is protected: privacy_unit_column = user_id.",
}
_NORM_MAX = 2**16 - 1


@dataclass(frozen=True, slots=True)
class PrivacyOptions:
    """OPTIONS (...) as values; columns and tables still as syntax."""

    epsilon: float
    delta: float
    unit: tuple[exp.Column, ...]
    unit_node: exp.Expr
    period_node: Option | None
    caps: ContributionBounds
    selections_given: bool
    minimum: int
    selection_share: float
    selection_spending: Spending
    closing: bool | None  # None: where it is possible
    closing_node: exp.Expr | None
    diagnostics_share: float
    public_groups: exp.Expr | None  # the name of a public table
    timestamp: exp.Column | None
    mechanism: MechanismName
    release: ReleasePolicy


_KAFKA: dict[str, type] = {"brokers": str, "topic": str, "format": str, "schema_registry": str}
_CONNECTORS: dict[str, dict[str, dict[str, type]]] = {
    "source": {
        "files": {"path": str, "follow": bool},
        "stdin": {},
        "python": {},
        "kafka": _KAFKA
        | {"schema": str, "start": str, "expired": str}
        | {"dead_letters": str, "dead_letter_topic": str},
        "postgres": {"dsn": str, "table": str, "column": str},
    },
    "sink": {
        "parquet": {"path": str},
        "jsonl": {"path": str},
        "duckdb": {"path": str, "table": str},
        "stdout": {},
        "python": {},
        "kafka": _KAFKA | {"markers": str},
        "postgres": {"dsn": str, "table": str},
    },
    "budget": {"file": {"path": str}, "postgres": {"dsn": str, "table": str}},
}
_DEFAULT_CONNECTOR = {"source": "python", "sink": "python", "budget": "file"}
_PASSED_ON = {"kafka": ("kafka.", "registry.")}  # to the client, as they are
_NEEDED = {
    ("source", "files"): {"path": "path = 'events/*.parquet'; it is relative to the script"},
    ("source", "kafka"): {"brokers": "brokers = 'host:9092'", "topic": "topic = 'events'"},
    ("source", "postgres"): {
        "table": "table = 'public.events'",
        "column": "column = 'id'; it grows with every insert",
    },
    ("sink", "kafka"): {"brokers": "brokers = 'host:9092'"},
    ("budget", "file"): {"path": "path = 'people.ledger'; it is relative to the script"},
    ("budget", "postgres"): {"table": "table = 'public.people_ledger'"},
}
_CHOICES = {
    "format": ("json", "avro"),
    "start": ("earliest", "latest"),
    "expired": ("refuse", "skip_unprotected"),
}


def read_options(text: Text, statement: exp.Expr, role: str) -> dict[str, OptionValue]:
    """The options of a source, a sink or a budget: literals by name, of a known connector."""
    options: dict[str, OptionValue] = {}
    nodes: dict[str, exp.Expr] = {}
    for option in statement.args.get("options") or []:
        value = literal(option.expression)
        if value is None:
            raise text.refuse(
                option.expression,
                f"The value of {option.name} must be a text, a number, true or false",
                "Quote texts: path = 'events/*.parquet'.",
            )
        if option.name in options:
            raise text.refuse(option, f"{option.name} is given twice", "Leave one out.")
        options[option.name] = value
        nodes[option.name] = option
    known = _CONNECTORS[role]
    connector = options.get("connector", _DEFAULT_CONNECTOR[role])
    if connector not in known:
        raise text.refuse(
            nodes["connector"].expression,
            f"There is no connector {connector!r} for a {role}",
            _nearest(str(connector), known),
        )
    for name, value in options.items():
        if name == "connector":
            continue
        if name.startswith(_PASSED_ON.get(str(connector), ())):
            continue
        if name not in known[str(connector)]:
            names = ["connector", *known[str(connector)]]
            raise text.refuse(
                nodes[name],
                f"The connector {connector!r} has no option {name}",
                _nearest(name, names),
            )
        kind = known[str(connector)][name]
        if not isinstance(value, kind):
            wanted = "true or false" if kind is bool else "a text in quotes"
            raise text.refuse(
                nodes[name].expression,
                f"The value of {name} must be {wanted}",
                f"Write {name} = ....",
            )
        if name in _CHOICES and value not in _CHOICES[name]:
            raise text.refuse(
                nodes[name].expression,
                f"{name} has no value {value!r}",
                f"Use one of {', '.join(_CHOICES[name])}.",
            )
    for name, example in _NEEDED.get((role, str(connector)), {}).items():
        if name not in options:
            raise text.refuse(
                statement.this,
                f"The connector {connector!r} needs the option {name}",
                f"Add {example}.",
            )
    return options


def from_environment(options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """The options with ${NAME} replaced from the environment: where passwords come from."""

    def filled(name: str, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                raise PlanError(
                    f"An option refers to {match[0]}, and the environment has no variable"
                    f" {match[1]}. Set it."
                )
            found = os.environ[match[1]]
            return _in_dsn(found, text, match.start()) if name == "dsn" else found

        return re.sub(r"\$\{(\w+)\}", value, text)

    return {
        name: filled(name, text) if isinstance(text, str) else text
        for name, text in options.items()
    }


def _in_dsn(value: str, dsn: str, place: int) -> str:
    """A value as a part of a connection string, so that it stays one value."""
    if dsn.endswith("}") and dsn.startswith("${") and dsn.count("${") == 1:
        return value  # all of it
    if "://" in dsn:
        return quote(value, safe="")
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return escaped if dsn[:place].endswith("'") else f"'{escaped}'"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(known)}."


def read_privacy(text: Text, clause: PrivacyClause) -> PrivacyOptions:
    """The privacy options with their defaults."""
    given: dict[str, Option] = {}
    for option in clause.expressions:
        _check_name(text, option)
        if option.name in given:
            raise text.refuse(option, f"{option.name} is given twice", "Leave one out.")
        given[option.name] = option
    for name, way_out in _REQUIRED.items():
        if name not in given:
            raise text.refuse(clause, f"The option {name} is missing", way_out)

    reader = _Reader(text, given)
    caps = _caps(text, clause, reader)
    unit = reader.columns("privacy_unit_column")
    timestamp = reader.columns("timestamp_column") if "timestamp_column" in given else (None,)
    return PrivacyOptions(
        epsilon=reader.number("epsilon", None, 0.0, math.inf),
        delta=reader.number("delta", None, 0.0, 1.0),
        unit=cast(tuple[exp.Column, ...], unit),
        unit_node=given["privacy_unit_column"],
        period_node=given.get("privacy_unit_period"),
        caps=caps,
        selections_given="max_selections_contributed" in given,
        minimum=reader.integer("min_privacy_units_per_group", 1, None) - 1,
        selection_share=reader.number("group_selection_share", 0.5, 0.0, 1.0),
        selection_spending=cast(
            Spending, reader.choice("group_selection_spending", ("even", "late"))
        ),
        closing=reader.boolean("group_selection_closing"),
        closing_node=given.get("group_selection_closing"),
        diagnostics_share=reader.number("diagnostics_share", 0.0, 0.0, 1.0),
        public_groups=reader.public_groups(),
        timestamp=timestamp[0],
        mechanism=cast(MechanismName, reader.choice("mechanism", ("blt", "tree"))),
        release=cast(ReleasePolicy, reader.choice("release", ("every_trigger", "threshold"))),
    )


def _caps(text: Text, clause: PrivacyClause, reader: _Reader) -> ContributionBounds:
    """The bounds on a unit: a norm, caps, or both. Caps alone imply a norm.

    A unit that fills its norm with one row in each group needs most votes, but a vote for each of
    them would make every vote too noisy: by default it has the root of the norm.
    """
    norm, rows = "max_contribution_norm", "max_rows_contributed"
    if norm not in reader.given and rows not in reader.given:
        raise text.refuse(
            clause,
            f"The option {norm} is missing",
            "Say how much one unit may contribute: the squares of its numbers of rows per group add"
            f" up to at most the square of the norm. With {norm} = 8 a unit may have one row in"
            " each of 64 groups, or 4 rows in each of 4 groups; further rows are dropped.",
        )
    squared_norm = reader.squared_norm(norm)
    square = None if squared_norm is None else (squared_norm, f"the square of {norm}")
    records = reader.integer(rows, squared_norm or 1, square)
    most = (records, rows) if square is None or rows in reader.given else square
    per_group = most
    if squared_norm is not None and math.isqrt(squared_norm) < records:
        per_group = (math.isqrt(squared_norm), norm)
    bounds = ContributionBounds(
        records,
        reader.integer("max_rows_per_group", per_group[0], per_group),
        1,
        squared_norm or 0,
    )
    if bounds.squared_norm >= (_NORM_MAX + 1) ** 2:
        raise text.refuse(
            clause,
            "The caps allow a unit a norm of 65536 or more, which noise cannot be made for",
            f"Give {norm}, or a lower max_rows_per_group.",
        )
    votes = math.isqrt(math.isqrt(bounds.squared_norm - 1)) + 1  # the norm's root, rounded up
    return replace(bounds, selections=reader.integer("max_selections_contributed", votes, most))


def _check_name(text: Text, option: Option) -> None:
    name = option.name
    if name == "max_groups_contributed":
        if isinstance(option.expression, exp.Null):
            raise text.refuse(
                option,
                "max_groups_contributed = NULL protects only what a unit does in one group, not"
                " the unit",
                "Bound the whole unit: max_contribution_norm = ....",
            )
        raise text.refuse(
            option,
            "max_groups_contributed is not supported: a stream bounds rows, over all its windows",
            _groups_as_norm(option.expression),
        )
    if name in ("contribution_bounds_per_group", "contribution_bounds_per_row"):
        raise text.refuse(
            option,
            f"{name} is an argument of an aggregate, not an option",
            "Write SUM(x, contribution_bounds_per_row => (lower, upper)).",
        )
    if name not in _KNOWN:
        near = difflib.get_close_matches(name, _KNOWN, 1, 0.5)
        raise text.refuse(
            option,
            f"There is no option {name}",
            f"Did you mean {near[0]}?" if near else f"The options are {', '.join(_KNOWN)}.",
        )


def _groups_as_norm(bound: exp.Expr) -> str:
    """The options that allow a unit as many groups, with up to r rows in each."""
    value, written = literal(bound), bound.sql()
    root = f"SQRT({written})"
    if isinstance(value, int) and value > 0:
        root = f"{math.ceil(1e4 * math.sqrt(value)) / 1e4:.10g}"
    return (
        f"The equivalent for {written} groups with up to r rows each is max_contribution_norm ="
        f" {root} * r, max_rows_per_group = r, max_selections_contributed = {written}."
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one option by name."""

    text: Text
    given: dict[str, Option]

    def integer(self, name: str, default: int, most: tuple[int, str] | None) -> int:
        if name not in self.given:
            return default
        node = self.given[name].expression
        value = literal(node)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._refuse_bound(name, node, f"{name} is a whole number of at least 1")
        if most is not None and value > most[0]:
            raise self.text.refuse(
                node,
                f"{name} is above {most[1]} ({most[0]}); a unit never reaches it",
                f"Give at most {most[0]}, or raise {most[1].removeprefix('the square of ')}.",
            )
        return value

    def squared_norm(self, name: str) -> int | None:
        """The square of a norm, rounded down; None if it is not given."""
        if name not in self.given:
            return None
        node = self.given[name].expression
        value = literal(node)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 1 <= value <= _NORM_MAX
        ):
            fact = f"{name} is a number from 1 (one row in one group) to {_NORM_MAX}"
            raise self._refuse_bound(name, node, fact)
        return square_of_norm(value)

    def _refuse_bound(self, name: str, node: exp.Expr, fact: str) -> Exception:
        if isinstance(node, exp.Null):
            fact = f"{name} = NULL would leave a unit's influence unbounded"
        return self.text.refuse(node, fact, "Give a number.")

    def number(self, name: str, default: float | None, above: float, below: float) -> float:
        if name not in self.given and default is not None:
            return default
        node = self.given[name].expression
        value = literal(node)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not above < value < below
        ):
            limit = "" if below == math.inf else f" and below {below:g}"
            raise self.text.refuse(
                node, f"{name} must be a number above {above:g}{limit}", "Change the value."
            )
        return float(value)

    def boolean(self, name: str) -> bool | None:
        if name not in self.given:
            return None
        node = self.given[name].expression
        value = literal(node)
        if not isinstance(value, bool):
            raise self.text.refuse(node, f"{name} is true or false", "Give one of the two.")
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        if name not in self.given:
            return known[0]
        node = self.given[name].expression
        value = str(literal(node) if not isinstance(node, exp.Column) else node.name).lower()
        if value not in known:
            listed = " or ".join(f"'{k}'" for k in known)
            raise self.text.refuse(node, f"{name} must be {listed}", _nearest(value, known))
        return value

    def columns(self, name: str) -> tuple[exp.Column | None, ...]:
        node = self.given[name].expression
        inner = node.this if isinstance(node, exp.Paren) else node
        nodes = inner.expressions if isinstance(inner, exp.Tuple) else [inner]
        if name == "timestamp_column" and len(nodes) != 1:
            nodes = []
        if not nodes or not all(isinstance(n, exp.Column) for n in nodes):
            several = " or several: (user_id, query)" if name == "privacy_unit_column" else ""
            raise self.text.refuse(
                node,
                f"{name} is the name of a column{several}",
                "Compute it in a WITH query first and name it here.",
            )
        return tuple(nodes)

    def public_groups(self) -> exp.Expr | None:
        strategy = self.given.get("group_selection_strategy")
        table = self.given.get("public_groups")
        if strategy is not None:
            node = strategy.expression
            value = (node.name if isinstance(node, exp.Column) else str(literal(node))).upper()
            if value == "LAPLACE_THRESHOLD":
                raise self.text.refuse(
                    node,
                    "Groups are selected with Gaussian noise over all triggers, not with"
                    " LAPLACE_THRESHOLD",
                    "Leave group_selection_strategy out; min_privacy_units_per_group and"
                    " group_selection_share adjust the selection.",
                )
            if value != "PUBLIC_GROUPS":
                raise self.text.refuse(
                    node,
                    "group_selection_strategy is PUBLIC_GROUPS, or left out",
                    "Leave it out to have groups selected privately.",
                )
            if table is None:
                raise self.text.refuse(
                    strategy,
                    "PUBLIC_GROUPS does not say which groups are public",
                    "Add public_groups = t, where CREATE PUBLIC TABLE t AS ... has a column for"
                    " each key, by name. It replaces GoogleSQL's RIGHT OUTER JOIN.",
                )
        elif table is not None:
            raise self.text.refuse(
                table,
                "public_groups goes with group_selection_strategy = PUBLIC_GROUPS",
                "Add that option: it says that the list of groups is not protected.",
            )
        return None if table is None else table.expression


def square_of_norm(norm: float) -> int:
    """The square of a norm, rounded down."""
    squares = norm * norm
    written_root = math.isclose(squares, round(squares), rel_tol=1e-12)  # of 48, for example
    return round(squares) if written_root else math.floor(squares)


def literal(node: exp.Expr) -> OptionValue | None:
    """The value of a literal; None for anything else."""
    negative = isinstance(node, exp.Neg)
    inner = node.this if isinstance(node, exp.Neg) else node
    if isinstance(inner, exp.Boolean) and not negative:
        return bool(inner.this)
    if not isinstance(inner, exp.Literal):
        return None
    if inner.is_string:
        return None if negative else str(inner.this)
    value: int | float
    try:
        value = int(inner.this)
    except ValueError:
        value = float(inner.this)
    return -value if negative else value
