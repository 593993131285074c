"""What a run says on standard error: sentences for people, or a JSON object a line.

Privacy contract: all of it is public time, released rows and the plan. Nothing else is handed in.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any, Protocol


class Log(Protocol):
    """Takes what happened, in words and as values."""

    def say(self, event: str, message: str, **values: Any) -> None:
        """Something happened."""


class Sentences:
    """The words alone."""

    def say(self, event: str, message: str, **values: Any) -> None:
        """Print the words."""
        print(message, file=sys.stderr, flush=True)


class JsonLog:
    """One object a line: time, event, message, and the values of the event."""

    def say(self, event: str, message: str, **values: Any) -> None:
        """Print a line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "event": event, "message": message} | values
        print(json.dumps(line, ensure_ascii=False), file=sys.stderr, flush=True)
