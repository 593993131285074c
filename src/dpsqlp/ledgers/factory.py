"""The store of a CREATE BUDGET."""

from __future__ import annotations

from pathlib import Path

from dpsqlp.ledgers.base import LedgerStore
from dpsqlp.ledgers.file import LedgerFile
from dpsqlp.sql.options import from_environment
from dpsqlp.sql.query import BudgetDef


def make_store(budget: BudgetDef) -> LedgerStore:
    """Where the ledger of a budget is kept. Paths are relative to the script."""
    options = from_environment(budget.options)
    if options.get("connector") == "postgres":
        from dpsqlp.ledgers.postgres import LedgerTable

        return LedgerTable(str(options.get("dsn", "")), str(options["table"]))
    return LedgerFile(Path(budget.folder) / str(options["path"]))
