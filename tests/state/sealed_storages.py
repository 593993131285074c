"""Sealed storages as tests open them."""

from __future__ import annotations

from pathlib import Path

from dpsqlp.core import Core
from dpsqlp.engines.instance import read_instance
from dpsqlp.entropy.secret import Secret
from dpsqlp.state.journal import MANIFEST, Journal, Manifest, begin_journal, read_manifest
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage, Storage


def unlocked(storage: Storage, secret: Secret) -> SealedStorage:
    """The storage, for one instance."""
    sealed = SealedStorage(storage)
    sealed.unlock(secret)
    return sealed


def opened_journal(storage: Storage, pipeline: Core, secret: Secret, shards: int) -> Journal:
    """The journal in a storage; begun, as a pipeline's creation does, if there is none."""
    sealed = unlocked(storage, secret)
    if MANIFEST not in sealed.list():
        begin_journal(sealed, pipeline.plan, secret, shards)
    return Journal(sealed, pipeline)


def opened_folder(folder: Path, key: bytes) -> SealedStorage:
    """The folder of a pipeline that is there."""
    sealed = SealedStorage(LocalStorage(folder))
    assert read_instance(sealed, key) is not None
    return sealed


def committed(folder: Path, key: bytes) -> Manifest:
    """What is committed in the folder of a pipeline."""
    return read_manifest(opened_folder(folder, key))
