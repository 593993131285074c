"""What the API answers: plain values from released rows, public numbers and the clock."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np

from dpsqlp.dashboard.about import About, Window
from dpsqlp.dashboard.archive import OPERATOR, STATUS, Status
from dpsqlp.dashboard.history import History, UnreadableError, as_number
from dpsqlp.dashboard.origins import Origin
from dpsqlp.dashboard.release import Selection, number
from dpsqlp.dashboard.statement import guess_percent, plain_words

PAGE_SIZES = (1, 100)
WINDOWS_BESIDE_MAX = 8
_LATE_US = 10_000_000
T = TypeVar("T")


class MissingError(Exception):
    """What was asked for does not exist; the text says what does."""


class WrongError(Exception):
    """A question that cannot be answered; the text says why, without repeating it."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A question for keys."""

    window: int | None = None  # start in microseconds; None: the newest
    search: str = ""
    order: str | None = None  # None: the first aggregate
    descending: bool = True
    page: int = 1
    size: int = 50


class Answers:
    """All answers, from the histories of the sinks. Used by one thread at a time."""

    def __init__(
        self,
        origins: list[Origin],
        now: Callable[[], int],
        operator_state: Path | None = None,
        look_seconds: float = 0.0,
    ) -> None:
        """`now` gives microseconds; `operator_state` is where operator metrics may be read; what is
        new is looked for at most once in `look_seconds`."""
        self._histories = [History(origin, look_seconds) for origin in origins]
        self._now = now
        self._operator_state = operator_state

    def version(self, live: bool = False) -> tuple[int, ...] | None:
        """Changes when there is something new to answer, where `live` every second of the clock;
        None while something is coming in.

        Unlike all else here, it may be asked for at any time.
        """
        changes = [history.changed() for history in self._histories]
        left_out = [history.unreadable for history in self._histories]
        second = [self._now() // 10**6] if live else []
        known = [change for change in changes if change is not None]
        return (*known, *left_out, *second) if len(known) == len(changes) else None

    def warm(self) -> None:
        """Read what is asked for first."""
        for name in self.names():
            self.settled(lambda name=name: self.keys(name, Listing()))  # type: ignore[misc]

    def settled(self, answer: Callable[[], T]) -> T:
        """An answer from the releases that can be read: each time one more is left out."""
        while True:
            try:
                return answer()
            except UnreadableError:
                continue

    def names(self) -> list[str]:
        """The sinks."""
        return [history.name for history in self._fresh()]

    def sinks(self) -> dict[str, Any]:
        """All sinks in short."""
        return {"sinks": [self.sink(name) for name in self.names()]}

    def sink(self, name: str) -> dict[str, Any]:
        """One sink: columns, public time, the promise in two numbers."""
        history = self._history(name)
        columns, about = history.columns(), history.about
        return {
            "name": name,
            "keys": list(columns.keys),
            "aggregates": list(columns.aggregates),
            "last_trigger": history.triggers[-1] if history.triggers else None,
            "kept_triggers": len(history.triggers),
            "interval_us": None if about is None else about.schedule.interval,
            "on_event_time": None if about is None else about.schedule.on_event_time,
            "epsilon": None if about is None else about.numbers["epsilon"],
            "delta": None if about is None else about.numbers["delta"],
            "unit": None if about is None else about.numbers["unit"],
        }

    def windows(self, name: str) -> dict[str, Any]:
        """The windows of a sink, newest first."""
        history = self._history(name)
        return {"windows": [_window(window) for window in history.windows()]}

    def keys(self, name: str, listing: Listing) -> dict[str, Any]:
        """A page of keys of one window, with error bars."""
        history = self._history(name)
        columns = history.columns()
        window = self._choose(history, listing.window)
        if window is None:
            return _no_keys(listing)
        release = history.release(window.trigger)
        start = as_number(window.start_us)
        order = listing.order or next(iter(columns.aggregates), "key")
        if order != "key" and order not in columns.aggregates:
            raise MissingError("There is no aggregate of this name to order by.")
        selection = Selection(start, listing.search, order, listing.descending)
        rows = release.select(selection)
        first = (listing.page - 1) * listing.size
        shown = rows[first : first + listing.size]
        return {
            "trigger": window.trigger,
            "due": _due(history.about, window.trigger),
            "window": _window(window),
            "total": len(rows),
            "page": listing.page,
            "pages": max(math.ceil(len(rows) / listing.size), 1),
            "scale": release.scale(start),
            "rows": [
                {"id": history.name_key(key), "key": list(key), "values": release.cells(row)}
                for key, row in zip(release.keys_of(shown), shown.tolist(), strict=True)
            ],
        }

    def beside(self, name: str, listing: Listing, count: int) -> dict[str, Any]:
        """A page of keys of one window, with their values in the windows before it."""
        history = self._history(name)
        answer = self.keys(name, listing)
        if answer["window"] is None:
            return answer | {"windows": []}
        windows = history.windows()
        place = [_window(window) for window in windows].index(answer["window"])
        chosen = windows[place : place + count]
        wanted = [tuple(row["key"]) for row in answer["rows"]]
        for row in answer["rows"]:
            row["windows"] = []
            del row["values"]
        scales = []
        for window in chosen:
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
        return answer | {"windows": [_window(window) for window in chosen]}

    def key(self, name: str, identity: str, start_us: int | None) -> dict[str, Any]:
        """One key's course over the triggers of a window."""
        history = self._history(name)
        window = self._choose(history, start_us)
        key = None if window is None else history.key_named(identity, window)
        points = [] if key is None or window is None else history.course(key, window)
        if key is None or window is None or not points:
            raise MissingError("No such key was released in this window.")
        columns = history.columns()
        several = range(len(columns.aggregates))
        whole = columns.is_whole
        return {
            "id": identity,
            "key": list(key),
            "window": _window(window),
            "triggers": [point.trigger for point in points],
            "due": [_due(history.about, point.trigger) for point in points],
            "values": [[_finite(p.values[n], whole[n]) for p in points] for n in several],
            "sd": [[_finite(p.deviations[n], False) for p in points] for n in several],
            "threshold": self._thresholds(history, window, [point.trigger for point in points]),
        }

    def statement(self, name: str) -> dict[str, Any]:
        """The promise, in words and numbers."""
        about = self._history(name).about
        if about is None:
            raise MissingError(
                "Releases alone do not say what they promise. Serve a state that was run with"
                " --dashboard, or see `dpsqlp explain FILE.sql`."
            )
        return {
            "plain": plain_words(name, about.numbers),
            "guess_percent": guess_percent(about.numbers),
            "numbers": about.numbers,
            "text": about.text,
        }

    def health(self) -> dict[str, Any]:
        """Last commit, next trigger, whether it runs: by public time."""
        sinks = [self._health(history) for history in self._fresh()]
        order = ["failed", "waiting", "late", "stopped", "running", "finished", "unknown"]
        worst = min((sink["status"] for sink in sinks), key=order.index, default="unknown")
        operator = self._operator_state is not None
        now = _iso(self._now())
        return {"status": worst, "now": now, "operator_metrics": operator, "sinks": sinks}

    def operator(self, name: str) -> dict[str, Any]:
        """What the operator switched on. Not private."""
        self._history(name)
        if self._operator_state is None:
            raise MissingError(
                "Operator metrics are off. They are not private: --operator-metrics."
            )
        try:
            body: dict[str, Any] = json.loads((self._operator_state / name / OPERATOR).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise MissingError("No run has written operator metrics here.") from None
        return {"not_private": True, **body}

    def released_rows(self) -> Mapping[str, int]:
        """Rows in the last release of each sink."""
        return {
            history.name: len(history.release(history.triggers[-1]).window)
            for history in self._fresh()
            if history.triggers
        }

    def _fresh(self) -> list[History]:
        for history in self._histories:
            history.refresh()
        return self._histories

    def _history(self, name: str) -> History:
        for history in self._fresh():
            if history.name == name:
                return history
        raise MissingError("There is no sink of this name.")

    def _choose(self, history: History, start_us: int | None) -> Window | None:
        """The window asked for, or the newest that has rows in the last release."""
        windows = history.windows()
        if start_us is not None:
            for window in windows:
                if window.start_us == start_us:
                    return window
            raise MissingError("There is no window that starts then.")
        if not windows:
            return None
        newest = history.release(windows[0].trigger).window
        starts = set(np.unique(newest).tolist()) if len(windows) > 1 else set()
        return next((w for w in windows if as_number(w.start_us) in starts), windows[0])

    def _thresholds(self, history: History, window: Window, triggers: list[int]) -> list[Any]:
        """Where an aggregate is the selection's own count: what a key had to reach."""
        about = history.about
        if about is None or about.numbers["selection"] is None:
            return [None for _ in history.columns().aggregates]
        free = {c["name"] for c in about.numbers["columns"] if c["noise"] == "selection"}
        first, _ = about.span(window.start_us)
        thresholds = [about.numbers["selection"]["thresholds"][t - first] for t in triggers]
        return [thresholds if name in free else None for name in history.columns().aggregates]

    def _health(self, history: History) -> dict[str, Any]:
        about = history.about
        last = history.triggers[-1] if history.triggers else None
        answer: dict[str, Any] = {
            "name": history.name,
            "status": "unknown",
            "last_trigger": last,
            "last_due": None if last is None else _due(about, last),
            "next_due": None,
            "seconds_since_due": None,
            "triggers_run": None,
            "triggers_in_all": None,
            "triggers_unreadable": history.unreadable,
        }
        if about is None:
            return answer
        schedule = about.schedule
        status = _status(history)
        answer["triggers_run"] = 0 if last is None else last - schedule.first + 1
        if schedule.last is not None:
            answer["triggers_in_all"] = schedule.last - schedule.first + 1
        if last is not None and last == schedule.last:
            return answer | {"status": "finished"}
        if not schedule.on_event_time:
            following = schedule.due(schedule.first if last is None else last + 1)
            answer["next_due"] = _iso(following)
            if last is not None:
                answer["seconds_since_due"] = max(self._now() - schedule.due(last), 0) // 10**6
            late = self._now() > following + max(schedule.interval, _LATE_US)
            status = "late" if late and status == "running" else status
        return answer | {"status": status}


def _no_keys(listing: Listing) -> dict[str, Any]:
    nothing = {"trigger": None, "due": None, "window": None, "total": 0, "pages": 1}
    return nothing | {"page": listing.page, "scale": [], "rows": []}


def _status(history: History) -> str:
    """What the run last said of itself."""
    if history.folder is None:
        return "unknown"
    try:
        status = json.loads((history.folder / STATUS).read_bytes())["status"]
    except (FileNotFoundError, ValueError, KeyError):
        return "unknown"
    return status if status in get_args(Status) else "unknown"


def _window(window: Window) -> dict[str, Any]:
    return {
        "start_us": window.start_us,
        "start": None if window.start_us is None else _iso(window.start_us),
        "end": None if window.end_us is None else _iso(window.end_us),
        "trigger": window.trigger,
        "closed": window.closed,
    }


def _due(about: About | None, trigger: int) -> str | None:
    return None if about is None else _iso(about.schedule.due(trigger))


def _iso(time_us: int) -> str:
    """A time on the public clock."""
    seconds, rest = divmod(time_us, 10**6)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    return f"{text}.{rest:06d}Z" if rest else f"{text}Z"


def _finite(value: Any, whole: bool) -> float | int | None:
    return None if value is None else number(float(value), whole)
