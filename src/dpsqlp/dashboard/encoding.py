"""Times, windows and numbers as the API's JSON has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dpsqlp.dashboard.metadata import Metadata, Window
from dpsqlp.dashboard.release import number


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


def encode_number(value: Any, integer: bool = False) -> float | int | None:
    """A number, or null for null and for anything not finite."""
    return None if value is None else number(float(value), integer)
