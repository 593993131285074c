"""What a store of a ledger does, and reading and changing the ledger in it.

Privacy contract: a change is made under a lock, from what the lock protects, and is durable when
`update` returns, also where another process made it. Whatever is read back is checked in full; a
ledger that was cut short or edited is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dpsqlp.accounting.ledger import Ledger
from dpsqlp.ledgers.text import ledger_of, text_of

Change = Callable[[str | None], str]


class LedgerStore(Protocol):
    """One text, changed by one process at a time."""

    name: str  # in messages

    def read(self) -> str | None:
        """The text; None before the first."""

    def update(self, change: Change) -> None:
        """Replace the text by what `change` makes of it, durably, or leave it if that raises."""

    def close(self) -> None:
        """Close the connection, if there is one."""


def read_ledger(store: LedgerStore) -> Ledger | None:
    """The ledger in a store, if there is one."""
    text = store.read()
    return None if text is None else ledger_of(text, store.name)


def update_ledger(store: LedgerStore, change: Callable[[Ledger | None], Ledger]) -> Ledger:
    """Change the ledger in a store, and return it. It is durable."""
    changed: list[Ledger] = []

    def apply(text: str | None) -> str:
        changed.append(change(None if text is None else ledger_of(text, store.name)))
        return text_of(changed[-1])

    store.update(apply)
    return changed[-1]
