"""The log of a run on standard error: sentences, or one JSON object per line.

Privacy contract: callers pass only public time, released rows and the plan.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any, Protocol


class Log(Protocol):
    """Receives events, as a message and as values."""

    def say(self, event: str, message: str, **values: Any) -> None:
        """Log an event."""


class TextLog:
    """Messages only."""

    def say(self, event: str, message: str, **values: Any) -> None:
        """Print the message."""
        print(message, file=sys.stderr, flush=True)


class JsonLog:
    """One object per line: time, event, message, and the values of the event."""

    def say(self, event: str, message: str, **values: Any) -> None:
        """Print a line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "event": event, "message": message} | values
        print(json.dumps(line, ensure_ascii=False), file=sys.stderr, flush=True)
