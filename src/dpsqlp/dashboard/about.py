"""What is public of a pipeline, kept beside its releases: columns, public time, the promise."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.errors import StateError
from dpsqlp.plan import Plan, WindowSchedule
from dpsqlp.sql import explain, explain_text
from dpsqlp.sql.query import Query

ABOUT = "about.json"
WINDOWS_MAX = 1000  # newest first; older ones are in the files


@dataclass(frozen=True, slots=True)
class Window:
    """A window, and the newest release that has it."""

    start_us: int | None  # None: one window for the whole stream
    end_us: int | None
    trigger: int
    closed: bool


@dataclass(frozen=True, slots=True)
class About:
    """Everything here is public: the instance and the secret have no place in it."""

    name: str
    created: int
    keys: tuple[str, ...]  # released columns
    aggregates: tuple[str, ...]
    schedule: TriggerGrid
    grid: WindowSchedule
    hop_us: int | None
    size_us: int | None
    numbers: dict[str, Any]  # of `dpsqlp explain`
    text: str  # of `dpsqlp explain`

    @classmethod
    def of(cls, name: str, query: Query, plan: Plan, created: int) -> About:
        """What is public of a sink's pipeline."""
        return cls(
            name=name,
            created=created,
            keys=tuple(o.name for o in query.outputs if o.kind == "key"),
            aggregates=tuple(o.name for o in query.outputs if o.kind == "aggregate"),
            schedule=TriggerGrid.of(query, plan.triggers, created),
            grid=plan.windows,
            hop_us=None if query.window is None else query.window.hop_us,
            size_us=None if query.window is None else query.window.size_us,
            numbers=explain(query, plan),
            text=explain_text(name, query, plan),
        )

    @classmethod
    def read(cls, folder: Path) -> About | None:
        """What a folder of releases says about itself, if it does."""
        try:
            body = json.loads((folder / ABOUT).read_bytes())
            return cls(
                **body
                | {
                    "keys": tuple(body["keys"]),
                    "aggregates": tuple(body["aggregates"]),
                    "schedule": TriggerGrid(**body["schedule"]),
                    "grid": WindowSchedule(**body["grid"]),
                }
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{folder / ABOUT} is damaged. Delete it; `dpsqlp run --dashboard` writes it anew."
            ) from error

    def describe(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    def windows(self, triggers: Sequence[int]) -> list[Window]:
        """The windows that kept triggers have, newest first, by public time alone."""
        if not triggers:
            return []
        first, last = triggers[0], triggers[-1]
        if self.hop_us is None or self.size_us is None:
            return [Window(None, None, last, last >= self.grid.triggers)]
        numbers = range(self.grid.open(first).start, self.grid.open(last).stop)
        found = []
        for number in reversed(numbers[-WINDOWS_MAX:]):
            end = self.grid.first(number) + self.grid.triggers
            place = bisect.bisect_right(triggers, end) - 1
            if place >= 0 and triggers[place] > self.grid.first(number):
                start = number * self.hop_us
                found.append(Window(start, start + self.size_us, triggers[place], last >= end))
        return found

    def span(self, start_us: int | None) -> tuple[int, int]:
        """The first and last trigger of a window."""
        before = 0
        if start_us is not None and self.hop_us is not None:
            before = self.grid.first(start_us // self.hop_us)
        return before + 1, before + self.grid.triggers
