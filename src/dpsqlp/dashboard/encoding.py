"""Times, windows and numbers as the API's JSON has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from dpsqlp.dashboard.metadata import Metadata, Window
from dpsqlp.dashboard.release import Cell, number
from dpsqlp.dashboard.release_reader import Point


def encode_window(window: Window) -> dict[str, Any]:
    """A window as a JSON object."""
    return {
        "start_us": window.start_us,
        "start": None if window.start_us is None else encode_time(window.start_us),
        "end": None if window.end_us is None else encode_time(window.end_us),
        "trigger": window.trigger,
        "closed": window.closed,
    }


def encode_due(metadata: Metadata | None, trigger: int) -> str | None:
    """The scheduled time of a trigger, if the schedule is known."""
    return None if metadata is None else encode_time(metadata.trigger_grid.due(trigger))


def encode_time(time_us: int) -> str:
    """Microseconds since 1970 in ISO 8601."""
    seconds, rest = divmod(time_us, 10**6)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    return f"{text}.{rest:06d}Z" if rest else f"{text}Z"


def encode_cells(point: Point, integer: tuple[bool, ...]) -> list[Cell]:
    """The values of a key and their standard deviations."""
    return [
        {"value": encode_number(value, whole), "sd": encode_number(sd)}
        for value, sd, whole in zip(point.values, point.deviations, integer, strict=True)
    ]


def encode_changes(
    cells: Sequence[list[Cell] | None], windows: Sequence[Window]
) -> list[list[Cell | None] | None]:
    """The change of each value of a key since the window before. Newest first, like `windows`.

    Null unless both windows are final and have the key, and none between them is missing. Windows
    have independent noise, so the variances of the two values add up.
    """
    changes: list[list[Cell | None] | None] = []
    for (late, early), (now, before) in zip(pairwise(windows), pairwise(cells), strict=True):
        comparable = late.closed and early.closed and _meet(early, late)
        if now is None or before is None or not comparable:
            changes.append(None)
        else:
            changes.append([_change(*pair) for pair in zip(now, before, strict=True)])
    return [*changes, *([None] if windows else [])]


def _meet(early: Window, late: Window) -> bool:
    """Whether one window begins before the other has ended, or as it ends."""
    return early.end_us is not None and late.start_us is not None and early.end_us >= late.start_us


def _change(now: Cell, before: Cell) -> Cell | None:
    if now["value"] is None or before["value"] is None:
        return None
    lacks_noise = now["sd"] is None or before["sd"] is None
    sd = None if lacks_noise else math.hypot(now["sd"], before["sd"])
    return {"value": now["value"] - before["value"], "sd": sd}


def encode_number(value: Any, integer: bool = False) -> float | int | None:
    """A number, or null for null and for anything not finite."""
    return None if value is None else number(float(value), integer)
