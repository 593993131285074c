"""`dpsqlp inspect`: what a state has released and spent.

Privacy contract: everything shown comes from the plan, the public clock or the last release. Sizes
of tables and files, digests of the input and offsets depend on unreleased data: they are sealed and
not read. Only with the secret can the public part be verified; without it, the output says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpsqlp.accounting.composition import compose
from dpsqlp.cli.progress import count, moment
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.engines.instance import description, read_instance
from dpsqlp.engines.secret_file import SECRET_VARIABLE, load_secret
from dpsqlp.errors import StateError
from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule
from dpsqlp.sql import unit_text
from dpsqlp.state.journal import MANIFEST, read_manifest
from dpsqlp.state.sealed import SealedStorage, missing_or_damaged, read_public
from dpsqlp.state.storage import LocalStorage

_UNVERIFIED = "no: anybody who can write here could have changed it. To verify, give --secret"
Public = dict[str, Any]  # the public part of a manifest


def inspection(state: Path, given_secret: Path | None = None) -> str:
    """The summary of every sink in a state folder, or of one sink's folder."""
    folders = [folder for folder in (state, *sorted(state.iterdir())) if folder.is_dir()]
    found = {f.resolve().name: (LocalStorage(f), description(LocalStorage(f))) for f in folders}
    sinks = {name: (storage, body) for name, (storage, body) in found.items() if body is not None}
    if not sinks:
        raise StateError(
            f"{state} holds no state. Give the state folder of `dpsqlp run`, FILE.state."
        )
    key = _secret(state, given_secret)
    parts = []
    for name, (storage, body) in sinks.items():
        try:
            lines = _lines(body, _manifest(storage, key))
        except (
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # without the secret, the files are not verified
            raise missing_or_damaged(f"{name}/pipeline.json or {MANIFEST}", "damaged") from error
        lines.append(("verified", _UNVERIFIED if key is None else "with the secret"))
        parts.append("\n".join([name, *(f"  {label:<13}{text}" for label, text in lines)]))
    parts += _together([(name, body) for name, (_, body) in sinks.items()])
    return "\n\n".join(parts) + "\n"


def _secret(state: Path, given: Path | None) -> bytes | None:
    """The given secret, else the one in the environment or next to the state, if any."""
    if given is not None or SECRET_VARIABLE in os.environ:
        return load_secret(given or state, storage_is_new=False)
    for folder in (state.resolve(), state.resolve().parent):
        beside = folder.with_suffix(".secret")
        if folder.suffix == ".state" and os.access(beside, os.R_OK):
            return load_secret(beside, storage_is_new=False)
    return None


def _manifest(storage: LocalStorage, key: bytes | None) -> Public:
    """The public part of the manifest. With the secret, the manifest and the description are
    verified.
    """
    if key is not None:
        sealed = SealedStorage(storage)
        read_instance(sealed, key)
        read_manifest(sealed)
    public = read_public(storage, MANIFEST)
    if public is None:
        raise missing_or_damaged(MANIFEST, "missing")
    return public


def _lines(body: dict[str, Any], manifest: Public) -> list[tuple[str, str]]:
    plan = Plan.restore(body["plan"])
    return [
        ("promise", _promise([plan], body)),
        ("created", moment(body["created"])),
        *_time(plan, body, manifest),
        *_release(manifest),
        *_left_behind(manifest),
        ("plan", plan.fingerprint.hex()),
    ]


def _promise(plans: Sequence[Plan], body: dict[str, Any]) -> str:
    _, epsilon, delta = compose([plan.calibration for plan in plans])
    if len(plans) == 1:  # as requested, not as it adds up
        epsilon, delta = plans[0].calibration.epsilon, plans[0].calibration.delta
    public = body["public"]
    unit = unit_text(public["unit"], public["period"])
    return f"({epsilon:.4g}, {delta:.4g})-DP for each {unit}"


def _time(plan: Plan, body: dict[str, Any], manifest: Public) -> list[tuple[str, str]]:
    """Budget, triggers and windows, all from public time."""
    public = body["public"]
    schedule = TriggerGrid(**public["schedule"])
    trigger = manifest["trigger"]
    if trigger is None:
        return [("spent", "nothing: no trigger has run"), ("triggers", "none")]
    ran = count(trigger - schedule.first + 1, "trigger")
    if schedule.last is not None:
        ran += f" of {schedule.last - schedule.first + 1}"
    clock = "event time" if schedule.on_event_time else "the clock"
    lines = [
        ("spent", "the whole budget: it covers all releases, past and future"),
        ("triggers", f"{ran}, the last at {moment(schedule.due(trigger))} by {clock}"),
    ]
    if plan.windows.single:
        return [*lines, ("windows", f"one for the whole stream, {plan.triggers} triggers")]
    begun = plan.windows.open(schedule.first).start, plan.windows.open(trigger).stop
    still = plan.windows.open(trigger + 1)
    closed = max(min(still.start, begun[1]) - begun[0], 0)
    text = f"{closed} closed, {begun[1] - begun[0] - closed} open"
    starts = plan.windows.starts if isinstance(plan.windows, CalendarSchedule) else None
    start = moment(begun[0] * public["hop_us"] if starts is None else starts[begun[0]])
    return [*lines, ("windows", f"{text}; each {public['size']}, the first from {start}")]


def _release(manifest: Public) -> list[tuple[str, str]]:
    """The size and the columns of the last release."""
    if manifest["rows"] is None:
        return []
    return [
        ("last release", count(manifest["rows"], "row")),
        ("columns", ", ".join(manifest["columns"])),
    ]


def _left_behind(manifest: Public) -> list[tuple[str, str]]:
    """Inputs that the operator left behind, which the promise does not cover."""
    inputs = manifest["inputs_left_behind"]
    if not inputs:
        return []
    return [("left behind", f"{count(inputs, 'input')} that could not be read: not protected")]


def _together(sinks: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """The total privacy loss of sinks over one source and unit."""
    groups: dict[tuple[Any, ...], list[tuple[str, dict[str, Any]]]] = {}
    for name, body in sinks:
        public = body["public"]
        key = (public["source"], tuple(public["unit"]), public["period"])
        groups.setdefault(key, []).append((name, body))
    lines = []
    for members in groups.values():
        if len(members) > 1:
            names = ", ".join(name for name, _ in members)
            plans = [Plan.restore(body["plan"]) for _, body in members]
            lines.append(f"Together {names} are {_promise(plans, members[0][1])}.")
    return lines
