"""The content of the API's responses, from releases, public metadata and the clock."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from dpsqlp.dashboard.archive import OPERATOR
from dpsqlp.dashboard.encoding import (
    encode_cells,
    encode_changes,
    encode_due,
    encode_number,
    encode_time,
    encode_window,
)
from dpsqlp.dashboard.health import sink_health, worst_status
from dpsqlp.dashboard.history import History, UnreadableReleaseError
from dpsqlp.dashboard.metadata import Window
from dpsqlp.dashboard.release import Cell, as_number
from dpsqlp.dashboard.release_sources import ReleaseSource
from dpsqlp.dashboard.sink_view import KeysQuery, NotFoundError, Page, SinkView
from dpsqlp.dashboard.statement import bounds_note, guess_percent, plain_words

PAGE_SIZES = (1, 100)
WINDOWS_COMPARED_MAX = 8
T = TypeVar("T")


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
        self._views = [SinkView(source, refresh_seconds) for source in sources]
        self._histories = [view.history for view in self._views]
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
        history = self._view(name).history
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
            "unit_period": None if metadata is None else metadata.numbers["unit_period"],
            "bounds_note": bounds_note(None if metadata is None else metadata.numbers),
        }

    def windows(self, name: str) -> dict[str, Any]:
        """The windows of a sink, newest first."""
        history = self._view(name).history
        return {"windows": [encode_window(window) for window in history.windows()]}

    def keys(self, name: str, query: KeysQuery) -> dict[str, Any]:
        """A page of keys of one window, with the noise of each value."""
        view = self._view(name)
        page = view.page(query)
        if page is None:
            return _no_keys(query)
        return _describe(view, page, query) | {
            "scale": page.release.scale(as_number(page.window.start_us)),
            "rows": [
                {"id": view.index.id_of(key), "key": list(key), "values": page.release.cells(row)}
                for key, row in zip(page.keys, page.rows.tolist(), strict=True)
            ],
        }

    def compare(self, name: str, query: KeysQuery, count: int) -> dict[str, Any]:
        """A page of keys of one window, with their values in that window and the ones before, and
        the changes from window to window."""
        view = self._view(name)
        page = view.page(query)
        if page is None:
            return _no_keys(query) | {"windows": []}
        windows = view.windows_until(page.window, count + 1)  # the last for its change alone
        cells: list[list[list[Cell] | None]] = [[] for _ in page.keys]  # by key and window
        scales = []
        for window in windows:
            release, start = view.history.release(window.trigger), as_number(window.start_us)
            found = release.find(page.keys, start)
            scales.append(release.scale(start))
            for key, row in zip(page.keys, cells, strict=True):
                row.append(release.cells(found[key]) if key in found else None)
        return _describe(view, page, query) | {
            "windows": [encode_window(window) for window in windows[:count]],
            "scale": [
                [min(ends[0] for ends in scale), max(ends[1] for ends in scale)]
                for scale in zip(*scales[:count], strict=True)
            ],
            "rows": [
                {
                    "id": view.index.id_of(key),
                    "key": list(key),
                    "windows": row[:count],
                    "changes": encode_changes(row, windows)[:count],
                }
                for key, row in zip(page.keys, cells, strict=True)
            ],
        }

    def key(self, name: str, identity: str, start_us: int | None) -> dict[str, Any]:
        """The values of one key over the triggers of a window."""
        view = self._view(name)
        key, window = view.find(identity, start_us)
        points = view.points_in(key, window)
        columns, metadata = view.history.columns(), view.history.metadata
        aggregates = range(len(columns.aggregates))
        integer = columns.is_integer
        return {
            "id": identity,
            "key": list(key),
            "window": encode_window(window),
            "triggers": [point.trigger for point in points],
            "due": [encode_due(metadata, point.trigger) for point in points],
            "values": [
                [encode_number(p.values[n], integer[n]) for p in points] for n in aggregates
            ],
            "sd": [[encode_number(p.deviations[n]) for p in points] for n in aggregates],
            "threshold": self._thresholds(
                view.history, window, [point.trigger for point in points]
            ),
        }

    def key_windows(self, name: str, identity: str, start_us: int | None) -> dict[str, Any]:
        """The values of one key in the newest release of each window, and the changes."""
        view = self._view(name)
        key, _ = view.find(identity, start_us)
        windows = view.history.windows()
        integer = view.history.columns().is_integer
        points = view.points_over(key, windows)
        cells = [None if point is None else encode_cells(point, integer) for point in points]
        return {
            "id": identity,
            "key": list(key),
            "windows": [encode_window(window) for window in windows],
            "values": cells,
            "changes": encode_changes(cells, windows),
        }

    def keys_rows(self, name: str, query: KeysQuery, count: int = 1) -> pa.Table:
        """The released rows of a page of keys in its window and the ones before."""
        return self._view(name).rows_of_page(query, count)

    def key_rows(self, name: str, identity: str, start_us: int | None) -> pa.Table:
        """The released rows of one key over the triggers of a window."""
        view = self._view(name)
        return view.rows_in(*view.find(identity, start_us))

    def key_windows_rows(self, name: str, identity: str, start_us: int | None) -> pa.Table:
        """The released rows of one key in the newest release of each window."""
        view = self._view(name)
        key, _ = view.find(identity, start_us)
        return view.rows_over(key, view.history.windows())

    def statement(self, name: str) -> dict[str, Any]:
        """The privacy guarantee, in plain words and in numbers."""
        metadata = self._view(name).history.metadata
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
        self._view(name)
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

    def _view(self, name: str) -> SinkView:
        self._refreshed()
        for view in self._views:
            if view.history.name == name:
                return view
        raise NotFoundError("There is no sink of this name. See /api/v1/sinks.")

    def _thresholds(self, history: History, window: Window, triggers: list[int]) -> list[Any]:
        """For each aggregate: the selection thresholds if it is the count that key selection
        compares with them, else None."""
        metadata = history.metadata
        if metadata is None or metadata.numbers["selection"] is None:
            return [None for _ in history.columns().aggregates]
        compared = {c["name"] for c in metadata.numbers["columns"] if c["noise"] == "selection"}
        first, _ = metadata.trigger_range(window.start_us)
        limits = metadata.thresholds(window.start_us)
        thresholds = [limits[t - first] for t in triggers]
        return [thresholds if name in compared else None for name in history.columns().aggregates]


def _describe(view: SinkView, page: Page, query: KeysQuery) -> dict[str, Any]:
    return {
        "trigger": page.window.trigger,
        "due": encode_due(view.history.metadata, page.window.trigger),
        "window": encode_window(page.window),
        "total": page.total,
        "page": query.page,
        "pages": max(math.ceil(page.total / query.size), 1),
    }


def _no_keys(query: KeysQuery) -> dict[str, Any]:
    nothing = {"trigger": None, "due": None, "window": None, "total": 0, "pages": 1}
    return nothing | {"page": query.page, "scale": [], "rows": []}
