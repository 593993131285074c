"""`dpsqlp explain`: what a script promises."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsqlp.accounting.ledger import down
from dpsqlp.engines.account import entry_of, ledger_of_budget
from dpsqlp.entropy.secret import new_name
from dpsqlp.errors import BudgetError, DpsqlpError
from dpsqlp.ledgers.base import read_ledger
from dpsqlp.ledgers.factory import make_store
from dpsqlp.plan import Plan
from dpsqlp.sql import compile_script, explain, explain_text, explain_total, make_plan, read_file
from dpsqlp.sql.budget import ledger_place
from dpsqlp.sql.query import BudgetDef, Query

_Sinks = Sequence[tuple[str, Query, Plan]]


def explanation(file: Path, as_json: bool) -> str:
    """The promise of every sink of a script, and their total."""
    program = compile_script(read_file(file), folder=str(file.parent))
    sinks = [(sink.name, sink.query, make_plan(sink.query)) for sink in program.sinks]
    together = explain_total(sinks, str(file.parent))
    accounts = _accounts(sinks)
    if not as_json:
        parts = [explain_text(*sink) for sink in sinks] + ([together] if together else [])
        return "\n\n".join(parts + ([_account_text(accounts, sinks)] if accounts else []))
    numbers: dict[str, Any] = {name: explain(query, plan) for name, query, plan in sinks}
    for name, account in accounts.items():
        numbers[name]["budget"] = account
    answer = {"sinks": numbers, "together": together.strip() or None}
    if len(sinks) == 1:
        answer = next(iter(numbers.values()))
    return json.dumps(answer, indent=2) + "\n"


def _accounts(sinks: _Sinks) -> dict[str, dict[str, Any]]:
    """What each sink would enter in its ledger as a new pipeline, one after the other."""
    budgets: dict[str, BudgetDef] = {}
    for _, query, _ in sinks:
        if query.account is not None:
            budgets[query.account.budget.name] = query.account.budget
    return {
        name: account
        for budget in budgets.values()
        for name, account in _entries(budget, sinks).items()
    }


def _entries(budget: BudgetDef, sinks: _Sinks) -> dict[str, dict[str, Any]]:
    now, known, problem = time.time_ns() // 1000, None, None
    place = ledger_place(budget)[-1]
    try:
        store = make_store(budget)
        place = store.name
        try:
            known = read_ledger(store)
        finally:
            store.close()
    except DpsqlpError as error:
        problem = str(error)
    ledger = ledger_of_budget(known, budget, place)
    found: dict[str, dict[str, Any]] = {}
    for name, query, plan in sinks:
        if query.account is None or query.account.budget != budget:
            continue
        entry = entry_of(query, plan, new_name(), now, now)
        spent = entry.spending(budget.per_us)
        refused = None
        if problem is None:
            try:
                ledger = ledger.enter(entry)
            except BudgetError as refusal:
                refused = str(refusal)
        found[name] = {
            "name": budget.name,
            "ledger": place,
            "exists": None if problem else known is not None,
            "not_read": problem,
            "units": entry.units(budget.per_us),
            "squared_nu": spent.squared_nu,
            "failures": spent.failures,
            "epsilon_float": spent.float_error,
            "left": None if problem else ledger.left(entry),
            "refused": refused,
        }
    return found


def _account_text(accounts: Mapping[str, dict[str, Any]], sinks: _Sinks) -> str:
    """The entries in words."""
    ledgers = {account["name"]: _ledger_text(account) for account in accounts.values()}
    lines = list(ledgers.values())
    for sink, account in accounts.items():
        if account["refused"] is not None:
            lines.append(f"A new pipeline {sink} would be refused. {account['refused']}")
            continue
        left = ""
        if account["left"] is not None:
            left = f" Left would be epsilon {down(account['left'])} for one Gaussian mechanism."
        units = account["units"]
        times = "" if units == 1 else f", for {units} units in each ledger period"
        lines.append(
            f"A new pipeline {sink} would enter nu^2 = {account['squared_nu']:.4g} and failures of"
            f" {account['failures']:.4g}{times} in the budget {account['name']}.{left} Nothing was"
            " entered."
        )
    outside = [name for name, _, _ in sinks if name not in accounts]
    if outside:
        lines.append(f"WARNING: no budget bounds what {', '.join(outside)} would spend.")
    return "\n".join(lines) + "\n"


def _ledger_text(account: Mapping[str, Any]) -> str:
    """Which ledger a budget has."""
    text = f"The ledger of the budget {account['name']} is {account['ledger']}"
    if account["not_read"] is not None:
        return f"{text}. The ledger was not read: {account['not_read']}"
    return f"{text}." if account["exists"] else f"{text}, which does not exist yet: a run makes it."
