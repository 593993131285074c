"""The normal form of a query: equal for SQL that differs in formatting alone."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsqlp.sql.dialect import EmitClause, PrivacyClause, Stream
from dpsqlp.sql.query import PublicTable, SourceDef


def normal_form(select: exp.Select, source: SourceDef, tables: Sequence[PublicTable]) -> str:
    """The computation: the source's columns, public data by digest, the query, when it is emitted.

    Where records come from, where releases go and where spending is entered is left out: it shapes
    none of this. Letter case stays:
    fields of JSON, and of lines of it, are other ones in other letters.
    """
    columns = ", ".join(f"{name} {kind}" for name, kind in source.columns)
    lines = [f"source {source.name} ({columns})"]
    lines += [f"public table {table.name} {table.digest}" for table in tables]
    lines.append(_text(select))
    emit = select.args["emit"]
    assert isinstance(emit, EmitClause)
    parts = {name: value for name, value in sorted(emit.args.items()) if value}
    lines.append("emit " + ", ".join(f"{name} {_text(value)}" for name, value in parts.items()))
    return "\n".join(lines)


def same(left: exp.Expr, right: exp.Expr) -> bool:
    """Whether two expressions are the same up to formatting and the case of columns' names."""
    return _text(left, fold=True) == _text(right, fold=True)


def _text(node: exp.Expr, *, fold: bool = False) -> str:
    node = node.copy()
    for identifier in node.find_all(exp.Identifier):
        of = identifier.parent
        if fold and isinstance(of, exp.Column) and not of.table:  # else it may be a field
            identifier.set("this", identifier.name.lower())
        identifier.set("quoted", True)
    for clause in node.find_all(PrivacyClause):
        options = [option for option in clause.expressions if option.name != "budget"]
        clause.set("expressions", sorted(options, key=lambda option: option.name))
    for paren in list(node.find_all(exp.Paren)):
        if isinstance(paren.this, exp.Column | exp.Literal) and paren.parent is not None:
            paren.replace(paren.this)
    return Stream().generate(node, comments=False)
