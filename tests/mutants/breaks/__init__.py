"""The deliberate breaks: what each does to the package, and which test must notice.

A break replaces one piece of text that occurs exactly once in its file. Where the code has moved
on, the runner says so: the break is then rewritten or dropped by hand, never silently. Each package
of the source has a module of breaks here, and so have the diagnostics, which run through several.
"""

from __future__ import annotations

from mutants.breaks import (
    accounting,
    cli,
    clients,
    core,
    dashboard,
    diagnostics,
    engines,
    entropy,
    ledgers,
    mechanisms,
    sinks,
    sources,
    spark,
    sql,
    stages,
    state,
    tables,
    tuning,
)
from mutants.breaks.base import Break

__all__ = ["BREAKS", "Break"]

BREAKS: list[Break] = [
    *accounting.BREAKS,
    *mechanisms.BREAKS,
    *entropy.BREAKS,
    *tables.BREAKS,
    *stages.BREAKS,
    *core.BREAKS,
    *state.BREAKS,
    *clients.BREAKS,
    *ledgers.BREAKS,
    *sources.BREAKS,
    *sinks.BREAKS,
    *sql.BREAKS,
    *engines.BREAKS,
    *spark.BREAKS,
    *dashboard.BREAKS,
    *diagnostics.BREAKS,
    *tuning.BREAKS,
    *cli.BREAKS,
]
