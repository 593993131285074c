"""`dpsqlp ledger`: what the pipelines of a budget have entered, and what is left.

A ledger in a database is named by a script, as CREATE BUDGET has it: there is one way to write
where a ledger is, and no password on a command line.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpsqlp.accounting.ledger import Entry, Ledger, Spending, down
from dpsqlp.cli.progress import moment
from dpsqlp.engines.account import ledger_of_budget
from dpsqlp.errors import BudgetError, PlanError
from dpsqlp.ledgers.base import LedgerStore, read_ledger, update_ledger
from dpsqlp.ledgers.factory import make_store
from dpsqlp.ledgers.file import LedgerFile
from dpsqlp.sql import compile_budgets, read_file, unit_text
from dpsqlp.sql.lengths import duration
from dpsqlp.sql.query import BudgetDef


def balance_of(path: Path, name: str | None, retire: str | None, as_json: bool) -> str:
    """The balance of a ledger for the current period; an instance is retired first."""
    chosen = _budget(path, name) if path.suffix.lower() == ".sql" else None
    if chosen is None and name is not None:
        raise PlanError(f"--budget {name} goes with a script; got {path}. Leave it out.")
    store = LedgerFile(path) if chosen is None else make_store(chosen)
    try:
        ledger = _read(store, chosen)
        if retire is not None:
            ledger = update_ledger(store, lambda old: _known(old, store).retire(retire, _now()))
    finally:
        store.close()
    now = _now()
    return _as_json(ledger, now) if as_json else _text(store.name, ledger, now)


def _now() -> int:
    return time.time_ns() // 1000


def _read(store: LedgerStore, chosen: BudgetDef | None) -> Ledger:
    ledger = _known(read_ledger(store), store)
    return ledger if chosen is None else ledger_of_budget(ledger, chosen, store.name)


def _known(ledger: Ledger | None, store: LedgerStore) -> Ledger:
    if ledger is None:
        raise BudgetError(
            f"There is no ledger {store.name} yet. The first run of a pipeline that names the"
            " budget makes it."
        )
    return ledger


def _budget(script: Path, name: str | None) -> BudgetDef:
    budgets = compile_budgets(read_file(script), folder=str(script.parent))
    if name is None and len(budgets) == 1:
        return next(iter(budgets.values()))
    if name is None or name.lower() not in budgets:
        got = "none was named" if name is None else f"got {name!r}"
        known = ", ".join(budget.name for budget in budgets.values()) or "none"
        raise PlanError(f"Budgets of the script: {known}; {got}. Give one with --budget.")
    return budgets[name.lower()]


def _text(name: str, ledger: Ledger, now: int) -> str:
    budget, period = ledger.budget, ledger.period(now)
    spent = ledger.spending(period)
    whole = f"({budget.epsilon:g}, {budget.delta:g})-DP"
    if ledger.entries:
        whole += f" for each {_unit_text(ledger.entries[0].unit, budget.per_us)}"
    lines = [("budget", whole)]
    if budget.per_us is not None:
        start = period * budget.per_us
        lines.append(("period", f"{moment(start)} to {moment(start + budget.per_us)}"))
    lines.append(("spent", f"epsilon {_up(spent.epsilon_at(budget.delta))}, {_measures(spent)}"))
    lines.append(("left", f"epsilon {down(spent.left(budget))} for one Gaussian mechanism"))
    parts = ["\n".join([name, *(f"  {label:<8}{text}" for label, text in lines)])]
    current = ledger.entries_in(period)
    parts += [_entry_text(entry, entry in current, ledger) for entry in ledger.entries]
    return "\n\n".join(parts) + "\n"


def _unit_text(names: Sequence[str], period_us: int | None) -> str:
    return unit_text(names, None if period_us is None else duration(period_us))


def _entry_text(entry: Entry, current: bool, ledger: Ledger) -> str:
    """Who has spent what, and when it is charged."""
    per_us = ledger.budget.per_us
    spent, units = entry.spending(per_us), entry.units(per_us)
    times = "" if units == 1 else f", for {units} of them in a period of the ledger"
    unit = _unit_text(entry.unit, entry.period_us)
    each = f"({entry.epsilon:g}, {entry.delta:g})-DP for each {unit}"
    lines = [
        ("instance", entry.instance),
        ("promise", each + times),
        ("spends", f"epsilon {_up(spent.epsilon_at(ledger.budget.delta))}, {_measures(spent)}"),
        ("entered", moment(entry.entered_us)),
    ]
    if entry.retired_us is not None:
        lines.append(("retired", moment(entry.retired_us)))
    charged = "charged in this period" if current else "not charged in this period"
    return "\n".join([f"{entry.sink}, {charged}", *(f"  {a:<10}{text}" for a, text in lines)])


def _measures(spent: Spending) -> str:
    """As zero-concentrated and as Gaussian DP, and what those do not cover."""
    failures = f", failures {spent.failures:.4g}" if spent.failures else ""
    return f"rho {spent.squared_nu / 2:.4g}, nu {math.sqrt(spent.squared_nu):.4g}{failures}"


def _up(number: float) -> str:
    """Four digits; all of delta may be used up."""
    return "without a bound" if math.isinf(number) else f"{number:.4g}"


def _as_json(ledger: Ledger, now: int) -> str:
    budget, period = ledger.budget, ledger.period(now)
    spent = ledger.spending(period)
    current = ledger.entries_in(period)
    answer = {
        "id": ledger.id,
        "budget": asdict(budget),
        "period": period,
        "spent": _numbers(spent, budget.delta),
        "left": {"epsilon": spent.left(budget), "delta": budget.delta},
        "entries": [
            asdict(entry)
            | {
                "units": entry.units(budget.per_us),
                "charged": entry in current,
                "spent": _numbers(entry.spending(budget.per_us), budget.delta),
            }
            for entry in ledger.entries
        ],
    }
    return json.dumps(answer, indent=2) + "\n"


def _numbers(spent: Spending, delta: float) -> dict[str, Any]:
    epsilon = spent.epsilon_at(delta)
    return {
        "epsilon": None if math.isinf(epsilon) else epsilon,
        "delta": delta,
        "rho": spent.squared_nu / 2,
        "nu": math.sqrt(spent.squared_nu),
        "failures": spent.failures,
        "epsilon_float": spent.float_error,
    }
