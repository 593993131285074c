"""The content of the API's responses, from releases, public metadata and the clock."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpsqlp.dashboard.archive import OPERATOR
from dpsqlp.dashboard.encoding import encode_due, encode_number, encode_time, encode_window
from dpsqlp.dashboard.health import sink_health, worst_status
from dpsqlp.dashboard.history import History, UnreadableReleaseError
from dpsqlp.dashboard.key_index import KeyIndex
from dpsqlp.dashboard.key_series import KeySeries
from dpsqlp.dashboard.metadata import Window
from dpsqlp.dashboard.release import Selection, as_number
from dpsqlp.dashboard.release_sources import ReleaseSource
from dpsqlp.dashboard.statement import guess_percent, plain_words

PAGE_SIZES = (1, 100)
WINDOWS_COMPARED_MAX = 8
T = TypeVar("T")


class NotFoundError(Exception):
    """The requested resource does not exist."""


@dataclass(frozen=True, slots=True)
class KeysQuery:
    """A request for a page of keys."""

    window: int | None = None  # start in microseconds; None: the newest
    search: str = ""
    order: str | None = None  # None: the first aggregate
    descending: bool = True
    page: int = 1
    size: int = 50


class Api:
    """Builds every response from the histories of the sinks. Not thread-safe."""

    def __init__(
        self,
        sources: list[ReleaseSource],
        now: Callable[[], int],
        operator_state: Path | None = None,
        refresh_seconds: float = 0.0,
    ) -> None:
        """`now` returns microseconds. `operator_state` is the state whose operator metrics are
        served. New releases are looked for at most once in `refresh_seconds`."""
        self._histories = [History(source, refresh_seconds) for source in sources]
        self._indexes = {history: KeyIndex(history) for history in self._histories}
        self._series = {history: KeySeries(history) for history in self._histories}
        self._now = now
        self._operator_state = operator_state

    def version(self, live: bool = False) -> tuple[int, ...] | None:
        """Changes with the responses: at a new release and, if `live`, every second.

        None while releases are being written. Unlike the other methods, it may be called from any
        thread.
        """
        modified = [history.modified() for history in self._histories]
        unreadable = [history.unreadable for history in self._histories]
        second = [self._now() // 10**6] if live else []
        known = [time for time in modified if time is not None]
        return (*known, *unreadable, *second) if len(known) == len(modified) else None

    def warm_up(self) -> None:
        """Read the releases that the first page shows."""
        for name in self.names():
            self.retry_unreadable(lambda name=name: self.keys(name, KeysQuery()))  # type: ignore[misc]

    def retry_unreadable(self, respond: Callable[[], T]) -> T:
        """Call `respond` until no unreadable release interrupts it. Each retry skips one more."""
        while True:
            try:
                return respond()
            except UnreadableReleaseError:
                continue

    def names(self) -> list[str]:
        """The names of the sinks."""
        return [history.name for history in self._refreshed()]

    def sinks(self) -> dict[str, Any]:
        """All sinks."""
        return {"sinks": [self.sink(name) for name in self.names()]}

    def sink(self, name: str) -> dict[str, Any]:
        """One sink: columns, schedule, epsilon and delta."""
        history = self._history(name)
        columns, metadata = history.columns(), history.metadata
        return {
            "name": name,
            "keys": list(columns.keys),
            "aggregates": list(columns.aggregates),
            "last_trigger": history.triggers[-1] if history.triggers else None,
            "kept_triggers": len(history.triggers),
            "interval_us": None if metadata is None else metadata.trigger_grid.interval,
            "on_event_time": None if metadata is None else metadata.trigger_grid.on_event_time,
            "epsilon": None if metadata is None else metadata.numbers["epsilon"],
            "delta": None if metadata is None else metadata.numbers["delta"],
            "unit": None if metadata is None else metadata.numbers["unit"],
        }

    def windows(self, name: str) -> dict[str, Any]:
        """The windows of a sink, newest first."""
        history = self._history(name)
        return {"windows": [encode_window(window) for window in history.windows()]}

    def keys(self, name: str, query: KeysQuery) -> dict[str, Any]:
        """A page of keys of one window, with the noise of each value."""
        history = self._history(name)
        columns = history.columns()
        window = self._choose(history, query.window)
        if window is None:
            return _no_keys(query)
        release = history.release(window.trigger)
        start = as_number(window.start_us)
        order = query.order or next(iter(columns.aggregates), "key")
        if order != "key" and order not in columns.aggregates:
            raise NotFoundError("`order` does not name an aggregate of this sink.")
        rows = release.select(Selection(start, query.search, order, query.descending))
        first = (query.page - 1) * query.size
        shown = rows[first : first + query.size]
        index = self._indexes[history]
        return {
            "trigger": window.trigger,
            "due": encode_due(history.metadata, window.trigger),
            "window": encode_window(window),
            "total": len(rows),
            "page": query.page,
            "pages": max(math.ceil(len(rows) / query.size), 1),
            "scale": release.scale(start),
            "rows": [
                {"id": index.id_of(key), "key": list(key), "values": release.cells(row)}
                for key, row in zip(release.keys_of(shown), shown.tolist(), strict=True)
            ],
        }

    def compare(self, name: str, query: KeysQuery, count: int) -> dict[str, Any]:
        """A page of keys of one window, with their values in that window and the ones before."""
        history = self._history(name)
        answer = self.keys(name, query)
        if answer["window"] is None:
            return answer | {"windows": []}
        windows = history.windows()
        first = [encode_window(window) for window in windows].index(answer["window"])
        compared = windows[first : first + count]
        wanted = [tuple(row["key"]) for row in answer["rows"]]
        for row in answer["rows"]:
            row["windows"] = []
            del row["values"]
        scales = []
        for window in compared:
            release = history.release(window.trigger)
            start = as_number(window.start_us)
            found = release.find(wanted, start)
            scales.append(release.scale(start))
            for key, row in zip(wanted, answer["rows"], strict=True):
                row["windows"].append(release.cells(found[key]) if key in found else None)
        answer["scale"] = [
            [min(ends[0] for ends in scale), max(ends[1] for ends in scale)]
            for scale in zip(*scales, strict=True)
        ]
        return answer | {"windows": [encode_window(window) for window in compared]}

    def key(self, name: str, identity: str, start_us: int | None) -> dict[str, Any]:
        """The values of one key over the triggers of a window."""
        history = self._history(name)
        window = self._choose(history, start_us)
        key = None if window is None else self._indexes[history].find(identity, window)
        points = [] if key is None or window is None else self._series[history].points(key, window)
        if key is None or window is None or not points:
            raise NotFoundError("No key with this id was released in this window.")
        columns = history.columns()
        aggregates = range(len(columns.aggregates))
        integer = columns.is_integer
        return {
            "id": identity,
            "key": list(key),
            "window": encode_window(window),
            "triggers": [point.trigger for point in points],
            "due": [encode_due(history.metadata, point.trigger) for point in points],
            "values": [
                [encode_number(p.values[n], integer[n]) for p in points] for n in aggregates
            ],
            "sd": [[encode_number(p.deviations[n]) for p in points] for n in aggregates],
            "threshold": self._thresholds(history, window, [point.trigger for point in points]),
        }

    def statement(self, name: str) -> dict[str, Any]:
        """The privacy guarantee, in plain words and in numbers."""
        metadata = self._history(name).metadata
        if metadata is None:
            raise NotFoundError(
                "Releases alone do not contain the privacy guarantee. Serve a state that was run"
                " with --dashboard, or see `dpsqlp explain FILE.sql`."
            )
        return {
            "plain": plain_words(name, metadata.numbers),
            "guess_percent": guess_percent(metadata.numbers),
            "numbers": metadata.numbers,
            "text": metadata.text,
        }

    def health(self) -> dict[str, Any]:
        """The health of every sink, and the worst status."""
        sinks = [sink_health(history, self._now()) for history in self._refreshed()]
        operator = self._operator_state is not None
        now, worst = encode_time(self._now()), worst_status(sinks)
        return {"status": worst, "now": now, "operator_metrics": operator, "sinks": sinks}

    def operator(self, name: str) -> dict[str, Any]:
        """The operator metrics of a sink, which are not private."""
        self._history(name)
        if self._operator_state is None:
            raise NotFoundError("Operator metrics are off. To serve them, give --operator-metrics.")
        try:
            body: dict[str, Any] = json.loads((self._operator_state / name / OPERATOR).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(
                "There are no operator metrics. Run the pipeline with --operator-metrics."
            ) from None
        return {"not_private": True, **body}

    def released_rows(self) -> Mapping[str, int]:
        """The number of rows in the last release of each sink."""
        return {
            history.name: len(history.release(history.triggers[-1]).window)
            for history in self._refreshed()
            if history.triggers
        }

    def _refreshed(self) -> list[History]:
        for history in self._histories:
            history.refresh()
        return self._histories

    def _history(self, name: str) -> History:
        for history in self._refreshed():
            if history.name == name:
                return history
        raise NotFoundError("There is no sink of this name. See /api/v1/sinks.")

    def _choose(self, history: History, start_us: int | None) -> Window | None:
        """The requested window, or the newest one that has rows in the last release."""
        windows = history.windows()
        if start_us is not None:
            for window in windows:
                if window.start_us == start_us:
                    return window
            raise NotFoundError("No window starts at this time.")
        if not windows:
            return None
        newest = history.release(windows[0].trigger).window
        starts = set(np.unique(newest).tolist()) if len(windows) > 1 else set()
        return next((w for w in windows if as_number(w.start_us) in starts), windows[0])

    def _thresholds(self, history: History, window: Window, triggers: list[int]) -> list[Any]:
        """For each aggregate: the selection thresholds if it is the count that key selection
        compares with them, else None."""
        metadata = history.metadata
        if metadata is None or metadata.numbers["selection"] is None:
            return [None for _ in history.columns().aggregates]
        compared = {c["name"] for c in metadata.numbers["columns"] if c["noise"] == "selection"}
        first, _ = metadata.trigger_range(window.start_us)
        thresholds = [metadata.numbers["selection"]["thresholds"][t - first] for t in triggers]
        return [thresholds if name in compared else None for name in history.columns().aggregates]


def _no_keys(query: KeysQuery) -> dict[str, Any]:
    nothing = {"trigger": None, "due": None, "window": None, "total": 0, "pages": 1}
    return nothing | {"page": query.page, "scale": [], "rows": []}
