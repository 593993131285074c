"""What every store of a ledger does, and what only one of them can do wrong."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpsqlp.accounting.ledger import Budget, Ledger
from dpsqlp.errors import BudgetError, PlanError, StateError, UnavailableError
from dpsqlp.ledgers import file as file_module
from dpsqlp.ledgers.base import LedgerStore, read_ledger, update_ledger
from dpsqlp.ledgers.file import LedgerFile
from dpsqlp.ledgers.postgres import LedgerTable
from dpsqlp.ledgers.text import ledger_of, text_of
from postgres.cluster import Cluster, bad_line
from state.disks import Crash, FakeDisk
from support.ledgers import entry, ledger

Opened = Callable[[], LedgerStore]
WIDE = Ledger("f" * 32, Budget(500.0, 0.5, None))


def entered(store: LedgerStore, number: int, begin: Ledger = WIDE) -> Ledger:
    return update_ledger(store, lambda old: (old or begin).enter(entry(number)))


# --- both ---


def test_a_ledger_is_kept(opened: Opened) -> None:
    """Bit for bit, whoever opens it; entering again changes nothing."""
    assert read_ledger(opened()) is None
    first = opened()
    made = entered(first, 1)
    first.close()
    assert read_ledger(opened()) == made == WIDE.enter(entry(1))
    assert entered(opened(), 1) == made
    assert entered(opened(), 2) == made.enter(entry(2))
    retired = update_ledger(opened(), lambda old: (old or WIDE).retire(entry(1).instance, 1))
    assert read_ledger(opened()) == retired


def test_a_refusal_changes_nothing(opened: Opened) -> None:
    """Neither the first nor a later one leaves anything behind."""
    small = ledger(0.5)
    store = opened()
    with pytest.raises(BudgetError):
        entered(store, 1, small)
    assert read_ledger(opened()) is None
    made = update_ledger(store, lambda old: small.enter(entry(2, epsilon=0.3)))
    with pytest.raises(BudgetError):
        entered(store, 1)
    assert read_ledger(opened()) == made
    assert read_ledger(store) == made


def test_many_starters_at_once_forget_nobody(opened: Opened) -> None:
    """Each changes what the one before has written."""
    problems: list[BaseException] = []

    def start(first: int) -> None:
        store = opened()
        try:
            for number in range(first, first + 5):
                entered(store, number)
        except BaseException as problem:
            problems.append(problem)
        finally:
            store.close()

    threads = [threading.Thread(target=start, args=(1 + 5 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    found = read_ledger(opened())
    assert found is not None
    assert {e.sink for e in found.entries} == {f"s{n}" for n in range(1, 31)}


def test_a_change_sees_the_ledger_under_the_lock(opened: Opened) -> None:
    """One that waits for another decides on what the other has left."""
    began, inside, order = threading.Event(), threading.Event(), []

    def slow(old: Ledger | None) -> Ledger:
        inside.set()
        assert began.wait(30)
        order.append("slow")
        return (old or WIDE).enter(entry(1))

    thread = threading.Thread(target=lambda: update_ledger(opened(), slow))
    thread.start()
    assert inside.wait(30)
    threading.Timer(0.3, began.set).start()
    found = entered(opened(), 2)
    thread.join()
    assert [e.sink for e in found.entries] == ["s1", "s2"]


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut short": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "one number": lambda text: text.replace('"delta": 1e-09', '"delta": 1e-10', 1),
    "written otherwise": lambda text: json.dumps(json.loads(text)),
    "an entry left out": lambda text: text.replace('"sink": "s1"', '"sink": "s3"'),
    "not a number": lambda text: text.replace('"epsilon": 500.0', '"epsilon": NaN'),
    "a list": lambda text: "[]",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_ledger_is_refused(opened: Opened, damage: Callable[[str], str]) -> None:
    """To read and to change, and it stays as it is."""
    store = opened()
    entered(store, 1)
    entered(store, 2)
    broken = damage(store.read() or "")
    store.update(lambda text: broken)
    with pytest.raises(StateError, match=r"The ledger .* is damaged"):
        read_ledger(opened())
    with pytest.raises(StateError, match=r"The ledger .* is damaged"):
        entered(opened(), 3)
    assert opened().read() == broken


# --- the text ---


def resealed(changes: Callable[[dict[str, Any]], Any]) -> str:
    """A ledger that was edited, with its checksum made anew."""
    whole = json.loads(text_of(WIDE.enter(entry(1)).enter(entry(2))))
    changes(whole["ledger"])
    body = json.dumps(whole["ledger"]).encode()
    whole["checksum"] = hashlib.sha256(body).hexdigest()
    return json.dumps(whole, indent=1) + "\n"


def test_the_text_is_resealed_as_it_was() -> None:
    """So that the refusals below are for what was edited."""
    assert ledger_of(resealed(lambda body: None), "x") == WIDE.enter(entry(1)).enter(entry(2))


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "negative": lambda body: body["entries"][0].update(squared_nu=-1.0),
    "zero": lambda body: body["entries"][0].update(squared_nu=0.0),
    "infinite": lambda body: body["budget"].update(epsilon=float("inf")),
    "a text": lambda body: body["entries"][0].update(delta="1e-9"),
    "true": lambda body: body["entries"][0].update(entered_us=True),
    "an integer": lambda body: body["budget"].update(epsilon=500),
    "a field more": lambda body: body["entries"][0].update(more=1),
    "a field less": lambda body: body["entries"][0].pop("retired_us"),
    "no unit": lambda body: body["entries"][0].update(unit=[]),
    "another unit": lambda body: body["entries"][1].update(unit=["member"]),
    "an instance twice": lambda body: body["entries"].append(body["entries"][0]),
    "no instance": lambda body: body["entries"][0].update(instance="1"),
    "no id": lambda body: body.update(id="F" * 32),
    "a span reversed": lambda body: body["entries"][0].update(stop_us=0),
    "a period without end": lambda body: body["entries"][0].update(period_us=1),
    "half a window": lambda body: body["entries"][0].update(hop_us=None),
    "null": lambda body: body["entries"][0].update(epsilon=None),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_ledger_is_refused(edit: Callable[[dict[str, Any]], Any]) -> None:
    """Whatever no program writes."""
    with pytest.raises(StateError, match="is damaged"):
        ledger_of(resealed(edit), "x")


def test_another_format_is_refused() -> None:
    text = text_of(WIDE).replace('"format": 1', '"format": 2')
    with pytest.raises(StateError, match=r"has another format than 1\. Use the version"):
        ledger_of(text, "x")


def test_numbers_are_kept_to_the_last_bit() -> None:
    odd = replace(entry(1), squared_nu=0.1 + 0.2, delta=5e-324)
    kept = WIDE.enter(odd)
    assert ledger_of(text_of(kept), "x") == kept


# --- the file ---


def test_a_link_is_the_ledger_that_it_leads_to(tmp_path: Path) -> None:
    """One lock and one file, under both names."""
    (tmp_path / "elsewhere").mkdir()
    entered(LedgerFile(tmp_path / "people.ledger"), 1)
    link = tmp_path / "elsewhere" / "same.ledger"
    link.symlink_to(tmp_path / "people.ledger")
    entered(LedgerFile(link), 2)
    assert link.is_symlink()
    found = read_ledger(LedgerFile(tmp_path / "people.ledger"))
    assert found is not None
    assert len(found.entries) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "elsewhere", "people.ledger", "people.ledger.lock",
    ]  # fmt: skip


def test_the_folder_of_a_ledger_is_not_made(tmp_path: Path) -> None:
    """It may be a mount that is missing, and the ledger in it."""
    with pytest.raises(StateError, match="could not be locked: No such file"):
        entered(LedgerFile(tmp_path / "mount" / "people.ledger"), 1)
    assert not (tmp_path / "mount").exists()


def test_a_lock_that_is_held_for_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "_PATIENCE_SECONDS", 0.05)
    store, other = (LedgerFile(tmp_path / "people.ledger") for _ in range(2))

    def meanwhile(old: Ledger | None) -> Ledger:
        with pytest.raises(UnavailableError, match="holds the lock of the ledger"):
            entered(other, 2)
        return WIDE.enter(entry(1))

    assert update_ledger(store, meanwhile) == read_ledger(other)


def test_a_lock_that_was_deleted_is_no_lock(tmp_path: Path) -> None:
    """Another process may hold a new one by now."""
    store = LedgerFile(tmp_path / "people.ledger")

    def delete(old: Ledger | None) -> Ledger:
        (tmp_path / "people.ledger.lock").unlink()
        return WIDE.enter(entry(1))

    with pytest.raises(StateError, match="was deleted while it was held"):
        update_ledger(store, delete)
    assert read_ledger(store) is None


def test_a_ledger_keeps_its_mode(tmp_path: Path) -> None:
    """Who may read and write it stays as it was set."""
    store = LedgerFile(tmp_path / "people.ledger")
    entered(store, 1)
    (tmp_path / "people.ledger").chmod(0o660)
    entered(store, 2)
    assert (tmp_path / "people.ledger").stat().st_mode & 0o777 == 0o660


def test_an_entry_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any step of the disk: what was told to be entered is there, and the file is whole."""
    for crash_at in range(1, 20):
        disk, told = FakeDisk(), []
        path = tmp_path / f"{crash_at}.ledger"
        monkeypatch.setattr(
            LedgerFile,
            "read",
            lambda self, disk=disk, path=path: (
                None if (data := disk.contents.get(path)) is None else data.decode()
            ),
        )

        def opened(disk: FakeDisk = disk, path: Path = path) -> LedgerFile:
            store = LedgerFile(path)
            store._disk = disk  # type: ignore[assignment]
            return store

        entered(opened(), 1)
        disk.crash_at = disk.steps + crash_at
        try:
            for number in (2, 2, 3, 4):
                entered(opened(), number)
                told.append(number)
        except Crash:
            pass
        disk.crash()
        found = read_ledger(opened())
        assert found is not None
        assert {f"s{n}" for n in (1, *told)} <= {e.sink for e in found.entries}
        for before, after in pairwise(found.entries):
            assert before.sink < after.sink
        monkeypatch.undo()


def test_an_entry_that_another_process_made_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed between the rename and the sync of the folder."""
    store = LedgerFile(tmp_path / "people.ledger")
    entered(store, 1)
    steps: list[str] = []
    for name in ("sync", "sync_folder"):
        monkeypatch.setattr(store._disk, name, lambda path, name=name: steps.append(name))
    entered(store, 1)
    assert steps == ["sync", "sync_folder"]


# --- the table ---

Table = Callable[..., LedgerTable]


@pytest.fixture
def table(server: Cluster) -> Iterator[Table]:
    """Opens a table of the server."""
    stores: list[LedgerTable] = []

    def open_table(name: str, dsn: str = server.dsn) -> LedgerTable:
        stores.append(LedgerTable(dsn, name))
        return stores[-1]

    yield open_table
    for store in stores:
        store.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_line_that_breaks_at_commit(server: Cluster, table: Table, when: str) -> None:
    """The next attempt finds the entry, or makes it; it is there once."""
    with bad_line(server) as (line, dsn):
        line.breaks = iter([when])
        with pytest.raises(UnavailableError, match="is entered once, however often it tries"):
            entered(table("public.people", dsn), 1)
        assert line.broke == 1
        assert entered(table("public.people", dsn), 1) == WIDE.enter(entry(1))


@pytest.mark.parametrize("name", ["people", "a.b.people"])
def test_a_table_without_a_schema_is_refused(name: str) -> None:
    """search_path may be another for each user, and so may the ledger."""
    with pytest.raises(PlanError, match=r"has no schema|is not the name of a table"):
        LedgerTable("", name)


def test_another_table_is_refused(server: Cluster, table: Table) -> None:
    server.run("CREATE TABLE other (x int)")
    with pytest.raises(StateError, match="42703"):
        entered(table("public.other"), 1)


def test_reading_makes_no_table(server: Cluster, table: Table) -> None:
    assert read_ledger(table("public.people")) is None
    assert server.run("SELECT to_regclass('people') IS NULL") == [(True,)]


def test_a_server_that_is_away_is_unavailable(server: Cluster, table: Table) -> None:
    store = table("public.people")
    entered(store, 1)
    server.kill()
    with pytest.raises(UnavailableError, match="PostgreSQL does not answer"):
        read_ledger(store)
    server.start()
    found = read_ledger(store)
    assert found is not None
    assert len(found.entries) == 1
