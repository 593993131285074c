"""What a pipeline is created with, stored beside its state and read back, never made again."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsqlp.entropy.secret import SECRET_BYTES, Secret
from dpsqlp.errors import SecretError, StateError
from dpsqlp.plan import Plan
from dpsqlp.sql.plan import make_plan
from dpsqlp.sql.query import Query
from dpsqlp.state.sealed import seal, unseal
from dpsqlp.state.storage import Storage

SECRET_VARIABLE = "DPSQLP_SECRET"  # noqa: S105  its name
_NAME = "pipeline.json"


@dataclass(frozen=True, slots=True)
class Created:
    """A pipeline instance: its plan and secret, when it was created, and its number of shards."""

    plan: Plan
    secret: Secret
    created: int
    shards: int


def open_pipeline(storage: Storage, query: Query, key: bytes, now: int, shards: int) -> Created:
    """The pipeline in a storage, or a new one. A stored plan is read back, never refitted."""
    body = unseal(storage.get(_NAME), _NAME)
    if body is not None:
        plan = Plan.restore(body["plan"])
        if plan.query != query.normal_form:
            raise StateError(
                "The query or its parameters are not those this state was made with. Run the"
                " original query, or begin a new pipeline with a state of its own, which spends"
                " again."
            )
        secret = Secret(key, bytes.fromhex(body["instance"]))
        return Created(plan, secret, body["created"], body["shards"])
    plan = make_plan(query)
    secret = Secret(key, Secret.new().instance)
    body = {
        "plan": plan.describe(),
        "instance": secret.instance.hex(),
        "created": now,
        "shards": shards,
    }
    storage.put(_NAME, [seal(body)])
    return Created(plan, secret, now, shards)


def load_secret(path: Path, storage_is_new: bool) -> bytes:
    """The secret from the environment or its file; made, for a new state, if there is none."""
    text = os.environ.get(SECRET_VARIABLE)
    if text is None and path.exists():
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SecretError(f"The secret {path} can be read by others. Run: chmod 600 {path}")
        text = path.read_text()
    if text is None:
        if not storage_is_new:
            raise SecretError(
                f"The secret {path} is missing, and the state was made with it. Bring it back, or"
                f" set {SECRET_VARIABLE}; a lost secret cannot be replaced inside open windows."
            )
        return _make_secret(path)
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != SECRET_BYTES:
        raise SecretError(
            f"A secret is {2 * SECRET_BYTES} hexadecimal digits; what {path} or {SECRET_VARIABLE}"
            " holds is not. Bring back the original."
        )
    return key


def _make_secret(path: Path) -> bytes:
    key = Secret.new().key
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return key


def description(storage: Storage) -> dict[str, Any] | None:
    """What is stored of a pipeline, for inspection."""
    return unseal(storage.get(_NAME), _NAME)
