"""Relations of a FROM, and where their columns come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from dpsqlp.sql.dialect import Stream

STREAM, PUBLIC, UNNEST, UNKNOWN = "stream", "public", "unnest", "unknown"


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of a FROM: where each of its columns comes from (lower-case names)."""

    name: str
    columns: Mapping[str, frozenset[str]]
    stream: bool


@dataclass(slots=True)
class Scope:
    """A FROM with its joins, ready to be selected from."""

    select: exp.Select  # with, from, joins and where; no projections
    relations: list[Relation] = field(default_factory=list)

    def origin(self, column: exp.Column) -> frozenset[str]:
        """What a column is made of."""
        names = [part.name.lower() for part in column.parts]
        for relation in self.relations:
            if len(names) > 1 and names[0] == relation.name and names[1] in relation.columns:
                return relation.columns[names[1]]
        for relation in self.relations:
            if names[0] in relation.columns:  # the rest, if any, are fields of a struct
                return relation.columns[names[0]]
        return frozenset([UNKNOWN])

    def origins(self, node: exp.Expr) -> frozenset[str]:
        """What an expression is made of."""
        columns = node.find_all(exp.Column)
        return frozenset().union(*(self.origin(column) for column in columns))

    def has(self, name: str) -> bool:
        """Whether there is a column or a relation of this name."""
        name = name.lower()
        return any(name == r.name or name in r.columns for r in self.relations)

    @property
    def columns(self) -> set[str]:
        """The names of all columns."""
        return {name for relation in self.relations for name in relation.columns}

    def query(self, projections: list[exp.Expr]) -> str:
        """DuckDB SQL that selects these."""
        select = self.select.copy()
        select.set("expressions", [projection.copy() for projection in projections])
        return sql(select)


def safe(node: exp.Expr) -> exp.Expr:
    """The expression, NULL where it fails."""
    if isinstance(node, exp.Column | exp.Literal | exp.Null | exp.Boolean):
        return node.copy()
    return exp.Try(this=node.copy())


def sql(node: exp.Expr) -> str:
    """DuckDB SQL of a rewritten tree."""
    return Stream().generate(node, comments=False)
