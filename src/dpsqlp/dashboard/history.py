"""One sink's releases over time: which there are, one in memory, one key's course.

A release never changes, so what was read of it is kept; a folder is listed again when its time of
change says so.
"""

from __future__ import annotations

import bisect
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpsqlp.dashboard.about import WINDOWS_MAX, About, Window
from dpsqlp.dashboard.origins import Origin, Stamp, stamp, trigger_files
from dpsqlp.dashboard.release import WHOLE, Columns, Key, Release, identify, mark_of
from dpsqlp.sql.release import FIXED

COURSE_MAX = 1000  # triggers in one key's course, the newest
_SCANNED_MAX = 500  # files looked at for windows, where nothing says which there are
_RELEASES = 8  # in memory, of one sink
_COURSES = 256
_KEYS = 20_000  # remembered by their short names
_MARKED = 33  # releases whose short names are in memory: 16 bytes a row
_MARKED_ROWS_MAX = 100_000  # looked at for a key that the newest release of a window lacks
_MISSES = 10_000
_SETTLED_NS = 50_000_000  # a folder's time of change may be coarser than two changes
_ROWS = "read_parquet(?, hive_partitioning = false)"  # a folder's name is no column
_HEXADECIMAL = r"\\u[0-9a-fA-F]{4}"  # DuckDB escapes with capital letters, `identify` with small
_WHOLE = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT", "UBIGINT", "UINTEGER", "HUGEINT")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class UnreadableError(Exception):
    """A file that cannot be read was left out. Ask again."""


class Remembered(OrderedDict[K, V]):
    """A dictionary that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def recall(self, key: K) -> V | None:
        """What is known, which is then the newest."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: K, value: V) -> V:
        """Remember, and forget the oldest."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._size:
            self.popitem(last=False)
        return value


@dataclass(frozen=True, slots=True)
class Point:
    """A key's values at a trigger."""

    trigger: int
    values: tuple[float, ...]
    deviations: tuple[float | None, ...]


@dataclass(slots=True)
class Course:
    """A key's points in a window, up to a trigger, and whether it was asked for since."""

    points: list[Point]
    seen: int
    asked: bool


class History:
    """The releases of one sink. Used by one thread at a time."""

    def __init__(self, origin: Origin, look_seconds: float) -> None:
        """Looks for something new at most once in `look_seconds`."""
        self.name = origin.name
        self._origin = origin
        self._database = duckdb.connect(config={"threads": 1, "memory_limit": "512MB"})
        self._database.execute("SET TimeZone = 'UTC'")
        # Loads Arrow, and what it loads when it is first used, now: not beside a pipeline.
        self._database.sql("SELECT 1").to_arrow_table().column(0).to_numpy()
        self.folder: Path | None = None
        self._look_seconds = look_seconds
        self._looked = -math.inf
        self._change: int | None = None
        self._listed: int | None = None
        self._files: dict[int, Path] = {}
        self._columns: Columns | None = None
        self._about: About | None = None
        self._releases: Remembered[int, Release] = Remembered(_RELEASES)
        self._courses: Remembered[tuple[Key, int], Course] = Remembered(_COURSES)
        self._scanned: dict[int, list[tuple[int, int, bool]]] = {}
        self._keys: Remembered[str, Key] = Remembered(_KEYS)
        self._marks: Remembered[int, tuple[NDArray[np.uint64], NDArray[np.int64]]]
        self._marks = Remembered(_MARKED)
        self._misses: Remembered[tuple[str, int, int], bool] = Remembered(_MISSES)
        self._unreadable: dict[int, Stamp | None] = {}
        self.triggers: list[int] = []  # in order

    @property
    def about(self) -> About | None:
        """What is public of the pipeline, where it was kept."""
        return self._about

    @property
    def unreadable(self) -> int:
        """How many triggers are left out."""
        return len(self._unreadable)

    def changed(self) -> int | None:
        """When something new came; None if that was just now, and more may be coming."""
        now = time.monotonic()
        if self._change is None or now - self._looked > self._look_seconds:
            found = self._origin.watched().stat().st_mtime_ns
            settled = time.time_ns() - found > _SETTLED_NS
            self._change, self._looked = found if settled else None, now
        return self._change

    def refresh(self) -> int | None:
        """See what is there now; the last trigger."""
        changed = self.changed()
        if changed is None or changed != self._listed:
            folder = self.folder = self._origin.folder()
            before = self.triggers
            self._files = trigger_files(folder, "parquet")
            for trigger, seen in list(self._unreadable.items()):
                if trigger in self._files and stamp(self._files[trigger]) == seen:
                    del self._files[trigger]
                else:  # gone, or mended
                    del self._unreadable[trigger]
            self.triggers = sorted(self._files)
            if before and {t for t in self.triggers if t < before[-1]} - set(before):
                self._courses.clear()  # what was passed over is there now
                self._misses.clear()
            self._about = About.read(folder)
            self.name = self._origin.name if self._about is None else self._about.name
            self._listed = changed
        return self.triggers[-1] if self.triggers else None

    def windows(self) -> list[Window]:
        """The windows there are, newest first."""
        if self._about is not None:
            return self._about.windows(self.triggers)
        found: dict[int, Window] = {}
        for trigger in reversed(self.triggers[-_SCANNED_MAX:]):
            for start, end, final in self._windows_of(trigger):
                whole = start == WHOLE
                window = Window(None if whole else start, None if whole else end, trigger, final)
                found.setdefault(start, window)
        newest = sorted(found.items(), key=lambda item: -item[0])
        return [window for _, window in newest[:WINDOWS_MAX]]

    def release(self, trigger: int) -> Release:
        """A trigger's release, in memory."""
        release = self._releases.recall(trigger)
        if release is None:
            release = self._read(trigger, lambda: self._load(trigger))
            self._releases.keep(trigger, release)
        return release

    def columns(self) -> Columns:
        """What the released columns are; before the first row, what the plan says."""
        if self._columns is None and self.triggers:
            last = self.triggers[-1]
            self._columns = self._read(last, lambda: self._describe(self._files[last]))
        return self._columns or _planned(self._about)

    def name_key(self, key: Key) -> str:
        """A short name for a key, which is remembered."""
        name = identify(key)
        self._keys.keep(name, key)
        return name

    def key_named(self, name: str, window: Window) -> Key | None:
        """The key with a short name, if a release of the window has it.

        HAVING and LIMIT may have dropped it from the newest: those before are looked at too.
        """
        key = self._keys.recall(name)
        if key is not None or self._misses.recall((name, *_place(window))):
            return key
        looked = 0
        for trigger in [window.trigger, *self._before(window)]:
            marks, rows = self._marked(trigger)
            low, high = (np.searchsorted(marks, mark_of(name), side) for side in ("left", "right"))
            for key in self.release(trigger).keys_of(rows[low:high]) if low < high else ():
                if identify(key) == name:
                    return self._keys.keep(name, key)
            looked += 0 if trigger == window.trigger else len(rows)
            if looked >= _MARKED_ROWS_MAX:
                break
        self._misses.keep((name, *_place(window)), True)
        return None

    def _before(self, window: Window) -> list[int]:
        """The triggers of a window before its newest, newest first."""
        first, _ = self._span(window)
        low, high = (bisect.bisect_left(self.triggers, at) for at in (first, window.trigger))
        return self.triggers[low:high][:-_MARKED:-1]

    def _marked(self, trigger: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The beginnings of the short names of a release in order, and their rows."""
        known = self._marks.recall(trigger)
        if known is None:
            marks = self._read(trigger, lambda: self._name_all(trigger))
            order = np.argsort(marks, kind="stable")
            known = self._marks.keep(trigger, (marks[order], order))
        return known

    def _name_all(self, trigger: int) -> NDArray[np.uint64]:
        """`mark_of` the short names of all rows of a release."""
        texts = ", ".join(_texts(self.columns()))
        found = self._database.execute(
            "SELECT ('0x' || left(sha256(json), 16))::UBIGINT AS mark,"
            f" regexp_matches(json, '{_HEXADECIMAL}') AS unsure"
            f" FROM (SELECT to_json([{texts}]::VARCHAR[])::VARCHAR AS json FROM {_ROWS})",
            [_exact(self._files[trigger])],
        ).fetchnumpy()
        marks: NDArray[np.uint64] = found["mark"]
        unsure = np.flatnonzero(found["unsure"])
        if len(unsure):
            release = self._releases.recall(trigger) or self._load(trigger)
            names = [identify(key) for key in release.keys_of(unsure)]
            marks[unsure] = [mark_of(name) for name in names]
        return marks

    def course(self, key: Key, window: Window) -> list[Point]:
        """A key's values in a window, trigger by trigger.

        Only new files are read, and once for all keys that were asked for since the last ones.
        """
        start = as_number(window.start_us)
        first, last = self._span(window)
        low, high = (bisect.bisect_left(self.triggers, at) for at in (first, last + 1))
        shown = self.triggers[low:high][-COURSE_MAX:]
        missed = (identify(key), *_place(window))
        if not shown or self._misses.recall(missed):
            return []
        known = self._courses.recall((key, start))
        if known is None:
            points = self._points_of([key], start, shown)[key]
            if not points:
                self._misses.keep(missed, True)
                return []
            known = self._courses.keep((key, start), Course(points, shown[-1], True))
        elif known.seen < shown[-1]:
            self._go_on(known, start, shown)
        known.asked = True
        return known.points

    def _go_on(self, known: Course, start: int, shown: Sequence[int]) -> None:
        """Read what is new for a course, and for those that had seen as much and are watched."""
        watched = {
            key: course
            for (key, begin), course in self._courses.items()
            if (begin, course.seen) == (start, known.seen) and (course.asked or course is known)
        }
        new = shown[bisect.bisect_right(shown, known.seen) :]
        found = self._points_of(list(watched), start, new)
        for key, course in watched.items():
            still = [point for point in course.points if point.trigger >= shown[0]]
            course.points, course.seen, course.asked = [*still, *found[key]], shown[-1], False

    def _span(self, window: Window) -> tuple[int, int]:
        if self._about is None:
            return self.triggers[0], window.trigger
        return self._about.span(window.start_us)

    def _points_of(
        self, keys: Sequence[Key], start: int, triggers: Sequence[int]
    ) -> dict[Key, list[Point]]:
        files = {trigger: _exact(self._files[trigger]) for trigger in triggers}
        try:
            return self._points(keys, start, list(files.values()))
        except duckdb.Error:
            for trigger, file in files.items():  # which one is it?
                self._read(trigger, lambda file=file: self._points(keys, start, [file]))  # type: ignore[misc]
            raise

    def _points(
        self, keys: Sequence[Key], start: int, files: Sequence[str]
    ) -> dict[Key, list[Point]]:
        columns = self.columns()
        values, deviations = _selected(columns)
        where = ["window_start IS NULL" if start == WHOLE else "window_start = make_timestamp(?)"]
        bound: list[object] = [files] if start == WHOLE else [files, start]
        for number, (name, kind) in enumerate(zip(columns.keys, columns.key_types, strict=True)):
            texts = sorted({text for key in keys if (text := key[number]) is not None})
            ways = [f"{_quoted(name)} IS NULL"] if any(key[number] is None for key in keys) else []
            if texts and kind in ("FLOAT", "DOUBLE"):  # a file's statistics leave out NaN
                ways.append(f"{_text(name)} IN ({', '.join('?' for _ in texts)})")
            elif texts:
                listed = ", ".join(f"TRY_CAST(? AS {kind})" for _ in texts)
                ways.append(f"{_quoted(name)} IN ({listed})")
            bound += texts
            where.append(f"({' OR '.join(ways)})")
        if len(columns.keys) > 1 and len(keys) > 1:  # not every combination of their columns
            where.append(f"list_contains(?::VARCHAR[][], [{', '.join(_texts(columns))}])")
            bound.append([list(key) for key in keys])
        selected = ["trigger", *_texts(columns), *values, *deviations]
        rows = self._database.execute(
            f"SELECT {', '.join(selected)} FROM {_ROWS} WHERE {' AND '.join(where)}"
            " ORDER BY trigger",
            bound,
        ).fetchall()
        found: dict[Key, list[Point]] = {key: [] for key in keys}
        begin, many = 1 + len(columns.keys), len(values)
        for row in rows:
            if row[1:begin] in found:  # equal values may have other texts
                parts = (row[at : at + many] for at in (begin, begin + many))
                found[row[1:begin]].append(Point(row[0], *parts))
        return found

    def _load(self, trigger: int) -> Release:
        columns = self.columns()
        values, deviations = _selected(columns)
        parts = ["epoch_us(window_start) AS window"]
        parts += [f"{text} AS key_{n}" for n, text in enumerate(_texts(columns))]
        parts += [f"{value} AS value_{n}" for n, value in enumerate(values)]
        parts += [f"{deviation} AS sd_{n}" for n, deviation in enumerate(deviations)]
        rows = (
            self._database.sql(
                f"SELECT {', '.join(parts)} FROM {_ROWS}",
                params=[_exact(self._files[trigger])],
            )
            .to_arrow_table()
            .combine_chunks()
        )

        def numbers(name: str) -> NDArray[np.float64]:
            column = rows.column(name).cast(pa.float64(), safe=False)
            filled: NDArray[np.float64] = pc.fill_null(column, np.nan).to_numpy()
            return filled

        return Release(
            trigger=trigger,
            window=pc.fill_null(rows.column("window"), WHOLE).to_numpy(),
            keys=tuple(rows.column(f"key_{n}") for n in range(len(columns.keys))),
            values=tuple(numbers(f"value_{n}") for n in range(len(values))),
            deviations=tuple(
                numbers(f"sd_{n}") if has else None for n, has in enumerate(columns.has_deviation)
            ),
            columns=columns,
        )

    def _windows_of(self, trigger: int) -> list[tuple[int, int, bool]]:
        if trigger not in self._scanned:
            query = (
                "SELECT coalesce(epoch_us(window_start), ?), coalesce(epoch_us(window_end), 0),"
                f" bool_or(final) FROM {_ROWS} GROUP BY 1, 2"
            )
            bound = [int(WHOLE), _exact(self._files[trigger])]
            self._scanned[trigger] = self._read(
                trigger, lambda: self._database.execute(query, bound).fetchall()
            )
        return self._scanned[trigger]

    def _read(self, trigger: int, read: Callable[[], V]) -> V:
        """Read a trigger's file. One that is no release is left out from then on."""
        try:
            return read()
        except duckdb.OutOfMemoryException:
            raise
        except (duckdb.Error, pa.ArrowException, KeyError) as error:
            path = self._files.pop(trigger)
            self.triggers.remove(trigger)
            self._unreadable[trigger] = stamp(path)
            # The kind of error alone: its text names the file, and may hold what was asked for.
            text = f"The page leaves out a release that cannot be read: {type(error).__name__}."
            print(text, file=sys.stderr)
            raise UnreadableError from error

    def _describe(self, file: Path) -> Columns:
        found = self._database.execute(f"DESCRIBE FROM {_ROWS}", [_exact(file)]).fetchall()
        types = {name: str(kind) for name, kind, *_ in found}
        if not types.keys() >= set(FIXED):
            raise KeyError("no release")
        if self._about is not None:
            keys, aggregates = self._about.keys, self._about.aggregates
        else:
            others = [name for name in types if name not in FIXED]
            aggregates = tuple(name for name in others if f"{name}_sd" in types)
            deviations = {f"{name}_sd" for name in aggregates}
            keys = tuple(name for name in others if name not in {*aggregates, *deviations})
        return Columns(
            keys=keys,
            key_types=tuple(types[name] for name in keys),
            aggregates=aggregates,
            has_deviation=tuple(f"{name}_sd" in types for name in aggregates),
            is_whole=tuple(types[name] in _WHOLE for name in aggregates),
        )


def as_number(start_us: int | None) -> int:
    """A window's start among numbers."""
    return int(WHOLE) if start_us is None else start_us


def _place(window: Window) -> tuple[int, int]:
    """A window as of its newest release."""
    return as_number(window.start_us), window.trigger


def _planned(about: About | None) -> Columns:
    keys, aggregates = ((), ()) if about is None else (about.keys, about.aggregates)
    return Columns(
        keys,
        tuple("VARCHAR" for _ in keys),
        aggregates,
        tuple(True for _ in aggregates),
        tuple(False for _ in aggregates),
    )


def _texts(columns: Columns) -> list[str]:
    """The SQL of a key's columns as texts."""
    return [_text(name) for name in columns.keys]


def _text(name: str) -> str:
    return f"CAST({_quoted(name)} AS VARCHAR)"


def _selected(columns: Columns) -> tuple[list[str], list[str]]:
    """The SQL of values and of their deviations."""
    values = [_quoted(name) for name in columns.aggregates]
    deviations = [
        _quoted(f"{name}_sd") if has else "NULL::DOUBLE"
        for name, has in zip(columns.aggregates, columns.has_deviation, strict=True)
    ]
    return values, deviations


def _exact(path: Path) -> str:
    """A file's name for DuckDB, which takes any name for a pattern."""
    return escape(str(path))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
