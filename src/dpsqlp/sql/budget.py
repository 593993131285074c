"""CREATE BUDGET, and the sinks that name it.

Privacy contract: a ledger charges a pipeline for each of a person's units that meet a ledger
period. That adds up only if no window has two units of one person: they would move the same noisy
sum together, by twice as much, and stand for two people where a key is selected. So with a unit
period, windows are tumbling and divide it. Without ledger periods, the number of units is finite.
With them, a replay has its timestamps from a column of the source.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sqlglot import exp

from dpsqlp.accounting.validate import check_budget
from dpsqlp.errors import PlanError
from dpsqlp.sql.dialect import CreateBudget, CreateSink, Option, PrivacyClause
from dpsqlp.sql.lengths import duration, interval_us, length_text
from dpsqlp.sql.location import Text
from dpsqlp.sql.options import literal, read_options
from dpsqlp.sql.query import Account, BudgetDef, Calendar, Query, Tumble

_SPENT = ("epsilon", "delta", "per")


def read_budget(text: Text, statement: CreateBudget, folder: str) -> BudgetDef:
    """A CREATE BUDGET, checked."""
    given: dict[str, Option] = {}
    for option in statement.expressions:
        if option.name not in _SPENT:
            raise text.refuse(
                option,
                f"A budget has no {option.name}",
                "It has epsilon, delta, and per = INTERVAL ... for a budget that is renewed.",
            )
        if option.name in given:
            raise text.refuse(option, f"{option.name} is given twice", "Leave one out.")
        given[option.name] = option
    for name, example in (("epsilon", "3"), ("delta", "1e-8")):
        if name not in given:
            raise text.refuse(
                statement.this,
                f"The budget has no {name}",
                f"Say what all its pipelines may spend together: {name} = {example}.",
            )
    epsilon, delta = (_number(text, given[name]) for name in ("epsilon", "delta"))
    try:
        check_budget(epsilon, delta)
    except PlanError as problem:
        raise text.refuse(statement.this, str(problem), "Change the value.") from None
    options = read_options(text, statement, "budget")
    table = str(options.get("table", "."))
    if "." not in table and "${" not in table:
        raise text.refuse(
            next(option for option in statement.args["options"] if option.name == "table"),
            f"The ledger's table {table!r} has no schema, and search_path may choose another one"
            " for each user",
            f"Write table = 'public.{table}', or another schema.",
        )
    return BudgetDef(
        name=statement.name,
        epsilon=epsilon,
        delta=delta,
        per_us=interval_us(text, given["per"].expression) if "per" in given else None,
        options=options,
        folder=str(Path(folder).resolve()),
    )


def ledger_place(budget: BudgetDef) -> tuple[str, ...]:
    """Where its ledger is, as the script has it."""
    options = budget.options
    if options.get("connector") == "postgres":
        return str(options.get("dsn", "")), str(options["table"])
    return (os.path.realpath(Path(budget.folder) / str(options["path"])),)


def _number(text: Text, option: Option) -> float:
    value = literal(option.expression)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise text.refuse(option.expression, f"{option.name} is a number", "Change the value.")
    return float(value)


def read_account(
    text: Text, statement: CreateSink, query: Query, budgets: Mapping[str, BudgetDef]
) -> Account | None:
    """The budget that a sink names, if it does and its units can be counted."""
    clause = statement.expression.args["hint"]
    assert isinstance(clause, PrivacyClause)
    node = next((option for option in clause.expressions if option.name == "budget"), None)
    if node is None:
        return None
    name = node.expression.name
    if not isinstance(node.expression, exp.Column) or name.lower() not in budgets:
        raise text.refuse(
            node.expression,
            f"There is no budget {name}",
            "Define it with CREATE BUDGET name (epsilon = ..., delta = ...) WITH (path = ...).",
        )
    budget = budgets[name.lower()]
    _check_units(text, node, query, budget)
    if budget.per_us is not None and query.emit.on_event_time and query.event_column is None:
        raise text.refuse(
            node,
            "The replay's timestamp is not a TIMESTAMP column read directly from the source, so its"
            f" records could be paid for again, in other periods of the budget {budget.name}",
            "Select from the source itself and use its column in the window, or name a budget"
            " without per.",
        )
    return Account(statement.name, budget)


def _check_units(text: Text, node: Option, query: Query, budget: BudgetDef) -> None:
    period, window = query.period, query.window
    if period is None:
        return
    assert window is not None, "a unit period needs a window"
    if isinstance(period, Calendar):
        raise text.refuse(
            node,
            f"Units have a period of {length_text(period)}, whose length differs, and a ledger"
            " counts those of one length",
            "Give a privacy_unit_period and windows of fixed length, for example INTERVAL 30 DAYS,"
            " or no period: the unit is then charged once in each ledger period.",
        )
    if not isinstance(window, Tumble) or period % window.size_us:
        size = window if isinstance(window, Calendar) else window.size_us
        raise text.refuse(
            node,
            f"A window may hold several units of one person: windows have"
            f" {length_text(size)}, units a period of {duration(period)}. Their losses are"
            " more than a sum, and a budget only adds up",
            "Give a privacy_unit_period that is a multiple of a tumbling window, or none: the unit"
            " is then charged once in each ledger period.",
        )
    if budget.per_us is None and not query.emit.on_event_time:
        raise text.refuse(
            node,
            f"The pipeline has no end and a new unit of each person every {duration(period)}, so"
            f" its spending has no bound; the budget {budget.name} is never renewed",
            "Add per = INTERVAL ... to CREATE BUDGET, or leave privacy_unit_period out.",
        )
