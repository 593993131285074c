"""Small JSON files that know when they are damaged."""

from __future__ import annotations

import json
from typing import Any

from dpsqlp.errors import StateError
from dpsqlp.state.arrays import digest


def seal(body: dict[str, Any]) -> bytes:
    """A JSON object with its checksum."""
    text = json.dumps(body, sort_keys=True)
    return json.dumps({"body": text, "sha256": digest([text.encode()])}).encode()


def unseal(data: bytes | None, name: str) -> dict[str, Any] | None:
    """The object, if there is one; refused if it is damaged."""
    if data is None:
        return None
    try:
        outer = json.loads(data)
        if digest([outer["body"].encode()]) != outer["sha256"]:
            raise ValueError("checksum")
        body: dict[str, Any] = json.loads(outer["body"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"The state file {name} is damaged. Nothing was released or changed. Restore the whole"
            " folder from a copy made since the last trigger, or begin a new pipeline, which"
            " spends again."
        ) from error
    return body
