"""SQL: text to validated queries, plans and explanations."""

from dpsqlp.sql.compile import compile_budgets, compile_script, read_file
from dpsqlp.sql.database import connect
from dpsqlp.sql.explain import explain
from dpsqlp.sql.explain_text import (
    explain_text,
    explain_total,
    period_text,
    unit_text,
)
from dpsqlp.sql.plan import diagnostics_deviations, make_plan, standard_deviations
from dpsqlp.sql.query import (
    Emit,
    Hop,
    Program,
    Query,
    SinkDef,
    Tumble,
)
from dpsqlp.sql.warnings import find_warnings

__all__ = [
    "Emit",
    "Hop",
    "Program",
    "Query",
    "SinkDef",
    "Tumble",
    "compile_budgets",
    "compile_script",
    "connect",
    "diagnostics_deviations",
    "explain",
    "explain_text",
    "explain_total",
    "find_warnings",
    "make_plan",
    "period_text",
    "read_file",
    "standard_deviations",
    "unit_text",
]
