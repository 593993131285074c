"""A pipeline's storage, sealed: every file is encrypted and authenticated.

It is locked until it is given the secret. A public file is JSON with a part that everybody can
read, authenticated like the rest, and a sealed part.

Privacy contract: nothing that depends on data reaches the storage below in the clear. A file that
was written without the secret, renamed, or taken from another instance is refused.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dpsqlp.entropy.seal import BrokenSeal, Sealer
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import StateError
from dpsqlp.state.storage import Storage

FORMAT = 6


class SealedStorage:
    """A storage whose files are sealed."""

    def __init__(self, storage: Storage) -> None:
        self.plain = storage  # only for public parts
        self._sealer: Sealer | None = None

    def unlock(self, secret: Secret) -> None:
        """Give the secret of the instance."""
        self._sealer = Sealer(secret)

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Store the concatenation of parts under a name, atomically and durably."""
        self.seal(name, list(parts))

    def seal(self, name: str, parts: Sequence[bytes | memoryview]) -> str:
        """Store an object; returns its seal, which no other contents have."""
        seal, file = self._unlocked().seal(name, parts)
        self.plain.put(name, file)
        return seal.hex()

    def get(self, name: str, seal: str | None = None) -> bytes | None:
        """The object, or None. Refused if it is damaged, or has another seal than the given one."""
        data = self.plain.get(name)
        if data is None:
            return None
        found, contents = self._opened(name, data, b"")
        if seal not in (None, found.hex()):
            raise missing_or_damaged(name, DAMAGED)
        return contents

    def put_public(self, name: str, public: dict[str, Any], sealed: dict[str, Any]) -> None:
        """Store a public and a sealed part in one file."""
        text = json.dumps(public, sort_keys=True)
        parts = [json.dumps(sealed, sort_keys=True).encode()]
        _, file = self._unlocked().seal(name, parts, text.encode())
        self.plain.put(name, [_public_bytes(text, b"".join(file))])

    def get_public(self, name: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Both parts, or None. Refused if either is damaged."""
        found = _public_file(self.plain, name)
        if found is None:
            return None
        text, data = found
        _, sealed = self._opened(name, data, text.encode())
        return json.loads(text), json.loads(sealed)

    def list(self) -> list[str]:
        """All names."""
        return self.plain.list()

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""
        self.plain.delete(name)

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep out a second writer while the context lasts."""
        return self.plain.lock()

    def _unlocked(self) -> Sealer:
        assert self._sealer is not None, "nothing is stored before the instance is known"
        return self._sealer

    def _opened(self, name: str, data: bytes, public: bytes) -> tuple[bytes, bytes]:
        try:
            return self._unlocked().open(name, data, public)
        except BrokenSeal as error:
            raise missing_or_damaged(name, DAMAGED) from error


DAMAGED = "damaged, or was not written under this name by this pipeline"


def read_public(storage: Storage, name: str) -> dict[str, Any] | None:
    """The public part of a file, if it exists. Without the secret it is not verified."""
    found = _public_file(storage, name)
    if found is None:
        return None
    try:
        body: dict[str, Any] = json.loads(found[0])
    except ValueError as error:
        raise missing_or_damaged(name, DAMAGED) from error
    return body


def _public_file(storage: Storage, name: str) -> tuple[str, bytes] | None:
    """The text of the public part, and the sealed part."""
    data = storage.get(name)
    if data is None:
        return None
    try:
        body = json.loads(data)
        if body.get("format") != FORMAT:
            raise StateError(
                f"The state has another format than {FORMAT}. Use the version of dpsqlp that wrote"
                " the state."
            )
        text, sealed = body["public"], base64.b64decode(body["sealed"])
        if data != _public_bytes(text, sealed):  # the same JSON, written differently
            raise ValueError("encoding")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise missing_or_damaged(name, DAMAGED) from error
    return text, sealed


def _public_bytes(text: str, sealed: bytes) -> bytes:
    body = {"format": FORMAT, "public": text, "sealed": base64.b64encode(sealed).decode()}
    return json.dumps(body).encode()


def missing_or_damaged(name: str, what: str) -> StateError:
    """The error for a state file that is missing or damaged."""
    return StateError(
        f"The state file {name} is {what}. Nothing was released or changed. Restore the whole"
        " folder from a copy made since the last trigger, or begin a new pipeline, which spends"
        " its own budget."
    )
