"""A folder as a store: who may read it, and what survives a power cut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpsqlp.errors import StateError
from dpsqlp.state import storage as module
from dpsqlp.state.storage import LocalStorage


def test_a_states_folder_is_its_owners_alone(tmp_path: Path) -> None:
    """Totals in it are true. Releases beside it are for whoever may read the folder above."""
    os.umask(umask := os.umask(0o022))
    state, kept = LocalStorage(tmp_path / "state" / "s"), LocalStorage(tmp_path / "state" / "kept")
    with state.lock():
        state.put("units/0", [b"1"])
    kept.put("release", [b"2"])
    assert (tmp_path / "state" / "s").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "kept").stat().st_mode & 0o777 == 0o777 & ~umask
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o777 & ~umask


def test_the_names_of_new_folders_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could take a whole state and leave what was published from it."""
    synced: list[Path] = []
    monkeypatch.setattr(module, "_fsync", synced.append)
    state = LocalStorage(tmp_path / "new" / "s")
    with state.lock():
        state.put("x", [b"1"])
    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "s"} <= set(synced)


def test_a_lock_that_is_no_longer_ours_stops_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was moved, a lock deleted by hand, a process that was forked: whoever else
    writes would use the same noise on other records."""
    for number, happens in enumerate(("moved", "deleted", "forked")):
        root = tmp_path / str(number)
        storage = LocalStorage(root)
        with storage.lock(), monkeypatch.context() as patched:
            storage.put("before", [b""])
            if happens == "moved":
                root.rename(tmp_path / "elsewhere")
            elif happens == "deleted":
                (root / "lock").unlink()
            else:
                patched.setattr(os, "getpid", lambda: -1)
            with pytest.raises(StateError, match=r"has lost the lock.*Open"):
                storage.put("after", [b""])
        assert not (root / "after").exists()


def test_another_lock_of_the_same_name_is_not_ours(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with storage.lock():
        (tmp_path / "lock").rename(tmp_path / "old")
        with LocalStorage(tmp_path).lock(), pytest.raises(StateError, match="has lost the lock"):
            storage.put("after", [b""])
