"""The health of a pipeline, from its schedule, its last release and the status of its run.

Privacy contract: scheduled times only. How long a trigger took is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, get_args

from dpsqlp.dashboard.archive import STATUS, Status
from dpsqlp.dashboard.encoding import encode_due, encode_time
from dpsqlp.dashboard.history import History

_LATE_US = 10_000_000
_WORST_FIRST = ("failed", "waiting", "late", "stopped", "running", "finished", "unknown")


def worst_status(sinks: Iterable[dict[str, Any]]) -> str:
    """The status of the sink that needs attention most."""
    return min((sink["status"] for sink in sinks), key=_WORST_FIRST.index, default="unknown")


def sink_health(history: History, now_us: int) -> dict[str, Any]:
    """The last and next trigger of a sink, and its status."""
    metadata = history.metadata
    last = history.triggers[-1] if history.triggers else None
    health: dict[str, Any] = {
        "name": history.name,
        "status": "unknown",
        "last_trigger": last,
        "last_due": None if last is None else encode_due(metadata, last),
        "next_due": None,
        "seconds_since_due": None,
        "triggers_run": None,
        "triggers_in_all": None,
        "triggers_unreadable": history.unreadable,
    }
    if metadata is None:
        return health
    grid = metadata.trigger_grid
    status = _run_status(history)
    health["triggers_run"] = 0 if last is None else last - grid.first + 1
    if grid.last is not None:
        health["triggers_in_all"] = grid.last - grid.first + 1
    if last is not None and last == grid.last:
        return health | {"status": "finished"}
    if not grid.on_event_time:
        next_due = grid.due(grid.first if last is None else last + 1)
        health["next_due"] = encode_time(next_due)
        if last is not None:
            health["seconds_since_due"] = max(now_us - grid.due(last), 0) // 10**6
        late = now_us > next_due + max(grid.interval, _LATE_US)
        status = "late" if late and status == "running" else status
    return health | {"status": status}


def _run_status(history: History) -> str:
    """The status that the run last wrote."""
    if history.folder is None:
        return "unknown"
    try:
        status = json.loads((history.folder / STATUS).read_bytes())["status"]
    except (FileNotFoundError, ValueError, KeyError):
        return "unknown"
    return status if status in get_args(Status) else "unknown"
