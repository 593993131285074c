"""Joins of the row part: which of them keep each output row with one row of the stream."""

from __future__ import annotations

from sqlglot import exp

from dpsqlp.sql.location import Text
from dpsqlp.sql.relations import Relation

_JOIN_ARGS = {"this", "on", "side", "kind", "using"}


def check_join(text: Text, join: exp.Join, before: bool, relation: Relation) -> tuple[str, str]:
    """Side and kind of a join; refused where a row would belong to no unit or to several."""
    side = str(join.args.get("side") or "").upper()
    kind = str(join.args.get("kind") or "").upper()
    if {k for k, v in join.args.items() if v} - _JOIN_ARGS:
        method = join.args.get("method")
        raise text.refuse(
            join,
            f"{method or 'This kind of'} join is not supported",
            "Write JOIN ... ON or JOIN ... USING.",
        )
    if before and relation.stream:
        raise text.refuse(
            join.this,
            "The stream is joined with itself, which couples rows of different units",
            "Read the stream once; attributes of other rows cannot be joined to it.",
        )
    hidden = (before and side in ("RIGHT", "FULL")) or (
        relation.stream and (side in ("LEFT", "FULL") or kind in ("SEMI", "ANTI"))
    )
    if hidden:
        raise text.refuse(
            join,
            f"A {' '.join(filter(None, (side, kind)))} join here gives rows that belong to no"
            " unit but depend on the stream",
            "Put the stream first and use JOIN or LEFT JOIN. For groups without rows use"
            " group_selection_strategy = PUBLIC_GROUPS with public_groups.",
        )
    if side not in ("", "LEFT", "RIGHT", "FULL") or kind not in (
        "", "INNER", "OUTER", "CROSS", "SEMI", "ANTI",
    ):  # fmt: skip
        raise text.refuse(
            join, f"{side} {kind} join is not supported", "Write JOIN ... ON or USING."
        )
    return side, kind


def refused_relation(text: Text, node: exp.Expr) -> Exception:
    """Why an item of a FROM cannot be read."""
    if isinstance(node, exp.Table) and node.args.get("sample"):
        return text.refuse(
            node, "A sample varies between evaluations", "Filter with WHERE on a column."
        )
    if isinstance(node, exp.Lateral):
        return text.refuse(
            node, "LATERAL is not supported", "Use UNNEST, or a join to a public table."
        )
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Func):
        return text.refuse(
            node,
            "A table function cannot be read here",
            "Read it once with CREATE PUBLIC TABLE.",
        )
    return text.refuse(
        node,
        "This kind of relation is not supported",
        "Select from a source, public tables, WITH queries and UNNEST, joined one by one.",
    )
