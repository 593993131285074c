"""Both kinds of store; a server for the one that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpsqlp.ledgers.base import LedgerStore
from dpsqlp.ledgers.file import LedgerFile
from dpsqlp.ledgers.postgres import LedgerTable
from postgres.conftest import cluster, server

__all__ = ["cluster", "server"]


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], LedgerStore]]:
    """Opens one store, each time as another process would."""
    stores: list[LedgerStore] = []
    dsn = None if request.param == "file" else request.getfixturevalue("server").dsn

    def open_store() -> LedgerStore:
        store: LedgerStore = LedgerFile(tmp_path / "people.ledger")
        stores.append(store if dsn is None else LedgerTable(dsn, "public.people"))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()
