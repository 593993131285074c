"""What a pipeline is created with, stored beside its state and read back, never made again."""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsqlp.engines.clock import Schedule
from dpsqlp.entropy.secret import SECRET_BYTES, Secret
from dpsqlp.errors import SecretError, StateError
from dpsqlp.plan import Plan
from dpsqlp.sql.plan import make_plan
from dpsqlp.sql.query import Query
from dpsqlp.state.sealed import seal, unseal
from dpsqlp.state.storage import TEMPORARY, Storage

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
    created = read_pipeline(storage, key)
    if created is None:
        return create_pipeline(storage, query, make_plan(query), key, now, shards)
    if created.plan.query != query.normal_form:
        raise StateError(
            "The query or its parameters are not those this state was made with. Run the"
            " original query, or begin a new pipeline with a state of its own, which spends"
            " again."
        )
    return created


def read_pipeline(storage: Storage, key: bytes) -> Created | None:
    """The pipeline in a storage, if there is one."""
    body = unseal(storage.get(_NAME), _NAME)
    if body is None:
        return None
    secret = Secret(key, bytes.fromhex(body["instance"]))
    return Created(Plan.restore(body["plan"]), secret, body["created"], body["shards"])


def create_pipeline(
    storage: Storage, query: Query, plan: Plan, key: bytes, now: int, shards: int
) -> Created:
    """A new pipeline with this plan, in an empty storage. The engine reads it back."""
    if any(not name.endswith(TEMPORARY) for name in storage.list()):
        raise StateError(
            f"The state file {_NAME} is missing, and others are there. Nothing was changed. Restore"
            " the whole folder from a copy made since the last trigger, or begin a new pipeline in"
            " an empty one, which spends again."
        )
    schedule = Schedule.of(query, plan.triggers, now)
    secret = Secret(key, Secret.new().instance)
    body = {
        "plan": plan.describe(),
        "instance": secret.instance.hex(),
        "created": now,
        "shards": shards,
        "public": {
            "source": query.source.name,
            "unit": query.unit_names,
            "period_us": query.period_us,
            "size_us": None if query.window is None else query.window.size_us,
            "hop_us": None if query.window is None else query.window.hop_us,
            "schedule": asdict(schedule),
        },
    }
    storage.put(_NAME, [seal(body)])
    return Created(plan, secret, now, shards)


def load_secret(path: Path, storage_is_new: bool) -> bytes:
    """The secret from the environment or its file; made, for a new state, if there is none."""
    text = os.environ.get(SECRET_VARIABLE)
    if text is None and path.exists():
        if path.is_dir():
            raise SecretError(f"The secret {path} is a folder. Give --secret a file.")
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
    """A new secret, whole and durable before anything is made with it."""
    key = Secret.new().key
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(key.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, never in place of another
    finally:
        os.unlink(temporary)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return key


def description(storage: Storage) -> dict[str, Any] | None:
    """What is stored of a pipeline, for inspection."""
    return unseal(storage.get(_NAME), _NAME)
