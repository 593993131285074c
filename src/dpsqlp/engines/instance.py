"""A pipeline instance: its plan, identity and time of creation, stored once and read back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpsqlp.engines.account import check_room
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SecretError, StateError
from dpsqlp.plan import Plan
from dpsqlp.sql.changes import changes
from dpsqlp.sql.lengths import length_text, size_text
from dpsqlp.sql.plan import make_plan
from dpsqlp.sql.query import Hop, Query, Tumble
from dpsqlp.state.journal import MANIFEST, begin_journal, has_run, secret_check
from dpsqlp.state.sealed import DAMAGED, SealedStorage, missing_or_damaged, read_public
from dpsqlp.state.storage import TEMPORARY, Storage

_NAME = "pipeline.json"


@dataclass(frozen=True, slots=True)
class Instance:
    """A pipeline instance: its plan and secret, when it was created, and its number of shards."""

    plan: Plan
    secret: Secret
    created: int
    shards: int


def open_instance(
    storage: SealedStorage, query: Query, key: bytes, now: int, shards: int
) -> Instance:
    """The pipeline in a storage, or a new one. A stored plan is read back, never refitted."""
    created = read_instance(storage, key)
    if created is None:
        plan = make_plan(query, created=now)
        check_room([(query, plan)], now)
        return create_instance(storage, query, plan, key, now, shards)
    if created.plan.query != query.normal_form:
        raise StateError(
            "The query or its parameters are not those this state was made with:"
            f" {changes(created.plan.query, query.normal_form)}. Run the original query, or begin a"
            " new pipeline with a state of its own, which spends its own budget."
        )
    return created


def read_instance(storage: SealedStorage, key: bytes) -> Instance | None:
    """The pipeline in a storage, if there is one. Unlocks the storage."""
    public = description(storage.plain)
    if public is None:
        return None
    try:
        secret, check = Secret(key, bytes.fromhex(public["instance"])), public["secret_check"]
    except (KeyError, TypeError, ValueError, SecretError) as error:
        raise missing_or_damaged(_NAME, DAMAGED) from error
    if check != secret_check(secret):
        raise StateError(
            "The secret is not the one this state was made with, or pipeline.json was changed."
            " Restore the original; a lost secret cannot be replaced inside open windows: begin"
            " a new pipeline, which spends its own budget."
        )
    storage.unlock(secret)
    found = storage.get_public(_NAME)
    assert found is not None, "it is replaced, never deleted"
    body, _ = found
    return Instance(Plan.restore(body["plan"]), secret, body["created"], body["shards"])


def create_instance(
    storage: SealedStorage, query: Query, plan: Plan, key: bytes, now: int, shards: int
) -> Instance:
    """Create a pipeline with this plan in an empty storage.

    The manifest is written before the description, so a description without a manifest proves that
    files were lost. A crash between the two leaves the manifest of an instance that never ran.
    """
    names = {name for name in storage.list() if not name.endswith(TEMPORARY)}
    if names - {MANIFEST} or has_run(storage.plain):
        raise StateError(
            f"The state file {_NAME} is missing, but other files exist. Nothing was changed."
            " Restore the whole folder from a copy made since the last trigger, or begin a new"
            " pipeline in an empty one, which spends its own budget."
        )
    schedule = TriggerGrid.of(query, plan, now)
    secret = Secret(key, Secret.new().instance)
    body = {
        "plan": plan.describe(),
        "instance": secret.instance.hex(),
        "secret_check": secret_check(secret),
        "created": now,
        "shards": shards,
        "public": {
            "source": query.source.name,
            "unit": query.unit_names,
            "period": None if query.period is None else length_text(query.period),
            "size": None if query.window is None else size_text(query.window),
            "hop_us": query.window.hop_us if isinstance(query.window, Tumble | Hop) else None,
            "schedule": asdict(schedule),
        },
    }
    storage.unlock(secret)
    begin_journal(storage, plan, secret, shards)
    storage.put_public(_NAME, body, {})
    return Instance(plan, secret, now, shards)


def description(storage: Storage) -> dict[str, Any] | None:
    """The public description of a pipeline. Without the secret it is not verified."""
    return read_public(storage, _NAME)
