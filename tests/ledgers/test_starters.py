"""Processes that start at once on one ledger, and are killed: it never holds more than its budget.

DPSQLP_LEDGER=all runs ten times as many.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.crashes import Worker, outputs
from dpsqlp.accounting.ledger import Ledger
from dpsqlp.ledgers.base import LedgerStore, read_ledger
from dpsqlp.ledgers.file import LedgerFile
from dpsqlp.ledgers.postgres import LedgerTable
from dpsqlp.state.sealed import read_public
from dpsqlp.state.storage import LocalStorage
from postgres.cluster import Cluster, in_sql
from support.fake_clock import START
from support.pipelines import HOUR, MINUTE, replay, script, write

pytestmark = pytest.mark.slow

ROUNDS = 200 if os.environ.get("DPSQLP_LEDGER") == "all" else 20
KILLED = -signal.SIGKILL
OPENING_STEPS = 18  # of the disk: manifest, pipeline.json, the ledger, budget.json; and some more


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    with Worker() as first, Worker() as second:
        yield first, second


def pipeline(folder: Path, where: str, number: int) -> Path:
    """A pipeline that has no state yet. The budget has room for one like it."""
    at = folder / f"pipeline{number}"
    at.mkdir(parents=True)
    sql = script(
        source=f"connector = 'files', path = '{folder}/in/*.parquet'",
        sink="connector = 'parquet', path = 'out'",
        emit=replay(START, START + HOUR, 30),
        public=f"CREATE BUDGET people (epsilon = 60, delta = 0.01) WITH ({where});",
        options=", budget = people",
    )
    (at / "query.sql").write_text(sql)
    return at


def instance(folder: Path) -> str:
    description = read_public(LocalStorage(folder / "state" / "t"), "pipeline.json")
    assert description is not None
    return str(description["instance"])


def known(store: LedgerStore) -> Ledger | None:
    """The ledger, which is whole and within its budget whenever it is looked at."""
    found = read_ledger(store)
    assert found is None or found.spending(0).fits(found.budget)
    return found


def check(folders: list[Path], store: LedgerStore) -> list[Path]:
    """What has released is entered; returns those that have."""
    found = known(store)
    entered = set() if found is None else {entry.instance for entry in found.entries}
    released = [folder for folder in folders if outputs(folder)]
    assert {instance(folder) for folder in released} <= entered
    return released


def test_killed_at_every_step_of_its_opening(
    workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    """Nothing is released before it is entered, and one instance has one entry."""
    worker, _ = workers
    write(tmp_path / "in" / "a.parquet", [("u", "k", 1.0, START + MINUTE)])
    for kill_at in range(1, OPENING_STEPS + 1):
        folder = pipeline(tmp_path / str(kill_at), "path = '../people.ledger'", 1)
        sql = (
            (folder / "query.sql").read_text().replace(f"{tmp_path}/{kill_at}/in", f"{tmp_path}/in")
        )
        (folder / "query.sql").write_text(sql)
        store = LedgerFile(tmp_path / str(kill_at) / "people.ledger")
        assert worker.run(folder, kill_at=kill_at) == KILLED
        check([folder], store)
        assert worker.run(folder) == 0, (folder / "error.txt").read_text()
        assert check([folder], store) == [folder]
        found = known(store)
        assert found is not None
        assert [entry.instance for entry in found.entries] == [instance(folder)]


def race(workers: tuple[Worker, Worker], folder: Path, where: str, store: LedgerStore) -> int:
    """Two starters, of which either may be killed while it opens; then both again. How many have
    released: one, or none if the entry of one that was killed has taken the room.
    """
    dice = random.Random(str(folder))
    folders = [pipeline(folder, where, number) for number in (1, 2)]
    write(folder / "in" / "a.parquet", [("u", "k", 1.0, START + MINUTE)])
    for again in (False, False, True):
        for worker, each in zip(workers, folders, strict=True):
            kill_at = None if again else dice.choice([None, dice.randint(1, OPENING_STEPS)])
            worker.start(each, kill_at=kill_at)
            time.sleep(dice.choice([0, dice.uniform(0, 0.02)]))
        codes = [worker.end() for worker in workers]
        assert all(code in ((0, 2) if again else (0, 2, KILLED)) for code in codes)
        released = check(folders, store)
        for code, each in zip(codes, folders, strict=True):
            if code == 2:
                assert "does not fit the budget" in (each / "error.txt").read_text()
        assert len(released) <= 1
    assert codes.count(0) == len(released) == 1
    return len(released)


def test_two_that_start_at_once_do_not_both_fit(
    workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    """With kills at any step of the disk, the ledger's own among them."""
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        store = LedgerFile(folder / "people.ledger")
        assert race(workers, folder, "path = '../people.ledger'", store) == 1
        found = known(store)
        assert found is not None
        assert len(found.entries) == 1


def test_two_that_start_at_once_on_a_server(
    workers: tuple[Worker, Worker], server: Cluster, tmp_path: Path
) -> None:
    """The same in PostgreSQL, also where the table has to be made."""
    for number in range(max(ROUNDS // 4, 5)):
        where = (
            f"connector = 'postgres', dsn = {in_sql(server.dsn)}, table = 'public.people{number}'"
        )
        store = LedgerTable(server.dsn, f"public.people{number}")
        assert race(workers, tmp_path / str(number), where, store) == 1
        store.close()


def test_killed_at_random_moments(workers: tuple[Worker, Worker], tmp_path: Path) -> None:
    """Between the steps of the disk too."""
    write(tmp_path / "in" / "a.parquet", [("u", "k", 1.0, START + MINUTE)])
    dice = random.Random(3)
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folders = [pipeline(folder, "path = '../people.ledger'", n) for n in (1, 2)]
        write(folder / "in" / "a.parquet", [("u", "k", 1.0, START + MINUTE)])
        store = LedgerFile(folder / "people.ledger")
        pids = [worker.start(each) for worker, each in zip(workers, folders, strict=True)]
        time.sleep(dice.uniform(0.0, 0.3))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for worker in workers:
            worker.end()
        assert len(check(folders, store)) <= 1
        codes = [worker.run(each) for worker, each in zip(workers, folders, strict=True)]
        assert sorted(codes) == [0, 2]
        assert len(check(folders, store)) == 1
