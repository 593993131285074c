"""A pipeline's account: its entry in the ledger of the budget that its script names.

Each step is durable before the next: the instance, its entry in the ledger, the state's note of
which ledger that is, the first trigger. A crash between two of them costs an entry at most.

Privacy contract: no trigger of a pipeline with a budget begins unless its instance is entered and
not retired. A state that has been entered opens with no other ledger, and not without one: a new
ledger in the place of one that was deleted would let everything be spent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from dpsqlp.accounting.ledger import Budget, Entry, Ledger
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.entropy.secret import new_name
from dpsqlp.errors import BudgetError
from dpsqlp.ledgers.base import LedgerStore, read_ledger, update_ledger
from dpsqlp.ledgers.factory import make_store
from dpsqlp.ledgers.text import ledger_of
from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule
from dpsqlp.sql.lengths import duration
from dpsqlp.sql.query import BudgetDef, Calendar, Query
from dpsqlp.state.sealed import SealedStorage

_NAME = "budget.json"


@dataclass(slots=True)
class OpenAccount:
    """The account of an open pipeline."""

    store: LedgerStore
    ledger: str  # its id
    entry: Entry
    made: bool  # the ledger did not exist before
    _checked: str | None = None  # the ledger's text that was checked last

    def check(self) -> None:
        """Refuse to go on unless the instance is entered, and not retired."""
        text = self.store.read()
        if text is not None and text == self._checked:
            return
        ledger = None if text is None else ledger_of(text, self.store.name)
        if ledger is None or ledger.id != self.ledger or ledger.find(self.entry.instance) is None:
            raise BudgetError(
                f"The ledger {self.store.name} no longer has the entry of {self.entry.sink}: it was"
                " deleted, or replaced by another or an older one. No trigger has begun. Restore"
                " the ledger, then run again."
            )
        ledger.enter(self.entry)
        self._checked = text

    def close(self) -> None:
        """Close the ledger."""
        self.store.close()


def open_account(
    storage: SealedStorage, query: Query, plan: Plan, instance: str, created: int, now: int
) -> OpenAccount | None:
    """Enter a pipeline in its ledger, once; None if its script names no budget."""
    note = storage.get_public(_NAME)
    known = None if note is None else str(note[0]["ledger"])
    if query.account is None:
        if known is not None:
            raise BudgetError(
                "This state is entered in a ledger, and its sink names no budget. Nothing was"
                " released. Write CREATE BUDGET and budget = ... as they were, or begin a new"
                " pipeline with a state of its own."
            )
        return None
    budget = query.account.budget
    entry = entry_of(query, plan, instance, created, now)
    store = make_store(budget)
    try:
        before: list[Ledger | None] = []

        def enter(old: Ledger | None) -> Ledger:
            before.append(old)
            return _known(old, budget, store, known).enter(entry)

        ledger = update_ledger(store, enter)
        if known is None:
            storage.put_public(_NAME, {"ledger": ledger.id}, {})
    except BaseException:
        store.close()
        raise
    return OpenAccount(store, ledger.id, entry, made=before[-1] is None)


def check_room(pipelines: Iterable[tuple[Query, Plan]], now: int) -> None:
    """Refuse new pipelines that do not fit together, before they have states. Nothing is
    entered.
    """
    ledgers: dict[str, Ledger] = {}  # by the budget's name
    for query, plan in pipelines:
        if query.account is None:
            continue
        budget = query.account.budget
        if budget.name not in ledgers:
            store = make_store(budget)
            try:
                ledgers[budget.name] = ledger_of_budget(read_ledger(store), budget, store.name)
            finally:
                store.close()
        entry = entry_of(query, plan, new_name(), now, now)
        ledgers[budget.name] = ledgers[budget.name].enter(entry)


def ledger_of_budget(ledger: Ledger | None, budget: BudgetDef, name: str) -> Ledger:
    """The ledger of a CREATE BUDGET, or a new one. What it may spend is fixed when it is made."""
    wanted = Budget(budget.epsilon, budget.delta, budget.per_us)
    if ledger is None:
        return Ledger(new_name(), wanted)
    if ledger.budget != wanted:
        raise BudgetError(
            f"The ledger {name} was made for {budget_text(ledger.budget)}; got CREATE BUDGET"
            f" {budget.name} with {budget_text(wanted)}. Nothing was entered in it. Write the"
            " numbers of the ledger, or give the budget a ledger of its own."
        )
    return ledger


def budget_text(budget: Budget) -> str:
    """What may be spent, in words."""
    per = "" if budget.per_us is None else f", per = INTERVAL {duration(budget.per_us).upper()}"
    return f"(epsilon = {budget.epsilon!r}, delta = {budget.delta!r}{per})"


def entry_of(query: Query, plan: Plan, instance: str, created: int, now: int) -> Entry:
    """What a pipeline enters. All but the time of entry follows from its state."""
    assert query.account is not None
    calibration = plan.calibration
    start, stop = _span(query, plan, created)
    hop, size = (None, None) if query.emit.on_event_time else _lengths(query, plan)
    assert not isinstance(query.period, Calendar), "a ledger has periods of one length"
    return Entry(
        instance=instance,
        sink=query.account.sink,
        unit=query.unit_names,
        epsilon=calibration.epsilon,
        delta=calibration.delta,
        squared_nu=calibration.nu**2,
        failures=calibration.delta_threshold,
        float_error=calibration.epsilon - calibration.epsilon_gaussian,
        period_us=query.period,
        start_us=start,
        stop_us=stop,
        hop_us=hop,
        size_us=size,
        entered_us=now,
    )


def _lengths(query: Query, plan: Plan) -> tuple[int | None, int | None]:
    """At what multiples windows start, and the length of the longest."""
    if isinstance(plan.windows, CalendarSchedule):
        starts = plan.windows.starts
        return 1, max(after - start for start, after in pairwise(starts))
    if query.window is None or isinstance(query.window, Calendar):
        return None, None
    return query.window.hop_us, query.window.size_us


def _span(query: Query, plan: Plan, created: int) -> tuple[int | None, int | None]:
    """Between which timestamps records may count.

    On event time those that a trigger reads. By the clock, those from the first window on that is
    open at the first trigger. Without a window a record counts by the clock whatever its timestamp.
    """
    grid = TriggerGrid.of(query, plan, created)
    if grid.on_event_time:
        assert grid.last is not None, "a replay has an end"
        return grid.span(grid.first)[0], grid.due(grid.last)
    if query.window is None:
        return None, None
    first = plan.windows.open(grid.first).start
    if isinstance(plan.windows, CalendarSchedule):
        return plan.windows.starts[first], None
    assert not isinstance(query.window, Calendar)
    return first * query.window.hop_us, None


def _known(
    ledger: Ledger | None, budget: BudgetDef, store: LedgerStore, known: str | None
) -> Ledger:
    """The ledger of a budget, if it is the one that the state knows."""
    found = ledger_of_budget(ledger, budget, store.name)
    if known not in (None, found.id):
        raise BudgetError(
            f"The ledger {store.name} is not the one that this state is entered in: that was"
            " deleted or moved, or the script names another. The state was not entered in this one."
            " Restore its own from the latest copy, or name it."
        )
    return found
