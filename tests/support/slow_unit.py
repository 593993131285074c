"""One unit whose record takes long to read, and what everybody else sees of it: nothing.

The same records arrive by the same clock at two pipelines, one of which has that unit too. A way
for records to arrive is a `Feed`; files and standard input are here, servers beside their tests.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import Mock

import pyarrow as pa
import pytest

from dpsqlp.engines.clock import Clock, SystemClock, TriggerGrid
from dpsqlp.engines.engine import Progress
from dpsqlp.engines.local import LocalEngine
from dpsqlp.errors import UnavailableError
from dpsqlp.sql import connect
from dpsqlp.state.journal import Cut, Intent
from support.fake_clock import START, FakeClock
from support.pipelines import MINUTE, Collected, made, run_engines

TRIGGERS = 10
SLOW_AT = 3  # the trigger of the slow unit's record
SLOW = "slow"
Row = dict[str, Any]


class KilledError(Exception):
    """The process has ended here."""


class Feed(Protocol):
    """A source's clause in SQL, and how records get there."""

    clause: str

    def opened(self, folder: Path, sql: str, clock: Clock) -> LocalEngine:
        """An engine that reads it."""
        return made(folder, sql, clock=clock)

    def close(self) -> None:
        """No more records come."""
        return

    @abstractmethod
    def deliver(self, rows: list[Row]) -> None:
        """Records arrive, all of them, before this returns."""


class Files(Feed):
    """Files that appear in a folder."""

    clause = "connector = 'files', path = 'in/*.jsonl', follow = true"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "in"
        self._folder.mkdir()

    def deliver(self, rows: list[Row]) -> None:
        number = len(list(self._folder.iterdir()))
        path = self._folder / f".{number}"
        path.write_bytes(lines(rows))
        path.rename(self._folder / f"{number}.jsonl")


class Pipe:
    """A stream whose writer knows when what it wrote was taken in."""

    def __init__(self) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue()
        self._taken = threading.Semaphore(0)
        self._reads = 0

    def read(self, _: int) -> bytes:
        if self._reads:
            self._taken.release()  # whoever asks for more has dealt with what was before
        self._reads += 1
        return self._chunks.get()

    def write(self, data: bytes) -> None:
        self._chunks.put(data)
        if data:
            assert self._taken.acquire(timeout=60)


class Lines(Feed):
    """Lines on standard input."""

    clause = "connector = 'stdin'"

    def opened(self, folder: Path, sql: str, clock: Clock) -> LocalEngine:
        """A process that starts has a pipe of its own."""
        self._pipe = Pipe()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", Mock(buffer=self._pipe))
            return super().opened(folder, sql, clock)

    def deliver(self, rows: list[Row]) -> None:
        self._pipe.write(lines(rows))

    def close(self) -> None:
        self._pipe.write(b"")


def lines(rows: list[Row]) -> bytes:
    """Rows as JSON Lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def script(clause: str, interval: str, triggers: int = TRIGGERS) -> str:
    """A query whose row part takes as long as a record says."""
    return (
        f"CREATE SOURCE s (unit TEXT, k TEXT, x TEXT) WITH ({clause});"
        "CREATE SINK t WITH (connector = 'python') AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
        " (epsilon = 40, delta = 1e-3, privacy_unit_column = unit, max_rows_contributed = 10,"
        " max_rows_per_group = 4, max_selections_contributed = 3)"
        " k, COUNT(*) AS c FROM s"
        " WHERE LEVENSHTEIN(x, REVERSE(x)) >= 0"  # takes the square of its length
        f" GROUP BY k EMIT EVERY INTERVAL {interval} FOR {triggers} TRIGGERS"
    )


def crowd(trigger: int) -> list[Row]:
    """What others do before a trigger."""
    return [{"unit": f"u{n}", "k": f"k{trigger % 3}", "x": ""} for n in range(30 + trigger)]


def seen_by_others(releases: list[pa.Table]) -> list[list[Row]]:
    """Released rows of the keys that the slow unit has nothing to do with."""
    return [[row for row in r.to_pylist() if row["k"] != SLOW] for r in releases]


def run_virtual(folder: Path, feed: Feed, *, slow: bool, killed: bool = False) -> list[list[Row]]:
    """A pipeline in virtual time; reading the slow record takes more than three intervals of it."""
    quarter = 15 * MINUTE

    def arrive(trigger: int) -> Callable[[], None]:
        return lambda: feed.deliver(crowd(trigger))

    halves = [
        (START + trigger * quarter - quarter // 2, arrive(trigger))
        for trigger in range(1, TRIGGERS + 1)
    ]
    one: list[Row] = [{"unit": SLOW, "k": SLOW, "x": ""}]
    if slow:
        halves.append((START + SLOW_AT * quarter - quarter // 2 - 1, lambda: feed.deliver(one)))
    clock = FakeClock(START, halves)
    sql = script(feed.clause, "15 MINUTES")
    releases: list[pa.Table] = []
    for ends_early in [True, False] if killed else [False]:
        engine = feed.opened(folder, sql, clock)
        if slow and (ends_early or not killed):
            _slow_down(engine, clock, 34 * quarter // 10, ends_early)
        try:
            run_engines({"t": engine}, threading.Event(), lambda *_: None)
        except KilledError:
            assert engine.cuts.waiting == [3, 4, 5, 6]
        finally:
            feed.close()
            engine.close()
        assert isinstance(engine.sink, Collected)
        releases += engine.sink.releases[1 if releases else 0 :]  # the last one comes again
    assert len(releases) == TRIGGERS
    return seen_by_others(releases)


def _slow_down(engine: LocalEngine, clock: FakeClock, time: int, ends: bool) -> None:
    """Let reading the slow record take that long, and perhaps end with the process."""
    read = engine._read

    def takes_long(intent: Intent) -> Any:
        if intent.trigger == SLOW_AT:
            clock.wait(clock.now() + time, threading.Event())
            if ends:
                raise KilledError
        return read(intent)

    engine._read = takes_long  # type: ignore[method-assign]


def check_virtual(folder: Path, make_feed: Callable[[Path], Feed], *, killed: bool) -> None:
    """Others see the same in virtual time."""
    seen = []
    for name, is_slow in (("with", True), ("without", False)):
        (folder / name).mkdir()
        feed = make_feed(folder / name)
        seen.append(run_virtual(folder / name, feed, slow=is_slow, killed=is_slow and killed))
    assert seen[0] == seen[1]
    assert all(seen[1])


class DisturbedError(Exception):
    """The machine was so busy that something did not happen in the middle of an interval."""


class Opening(SystemClock):
    """The machine's clock, but for the moment at which pipelines are created."""

    def __init__(self, created: int) -> None:
        self.created: int | None = created

    def now(self) -> int:
        return super().now() if self.created is None else self.created


def run_real(
    folder: Path, make_feed: Callable[[Path], Feed], seconds: int
) -> tuple[list[list[Row]], list[list[Row]], float]:
    """Two pipelines in one process by the machine's clock, one with the slow unit: what others see
    of each, and how many seconds after its grid time the last of the cuts was there.
    """
    clock = Opening(SystemClock().now() + 6_000_000 * seconds)
    engines, feeds = [], []
    for name in ("with", "without"):
        (folder / name).mkdir(parents=True)
        feeds.append(make_feed(folder / name))
        sql = script(feeds[-1].clause, f"{seconds} SECONDS")
        engines.append(feeds[-1].opened(folder / name, sql, clock))
    clock.created = None
    schedule, delays, ran = engines[0].schedule, list[int](), dict[int, int]()
    if clock.now() > schedule.due(0):
        raise DisturbedError
    for engine in engines:
        keep = engine.journal.keep_cut

        def noted(cut: Cut, keep: Callable[[Cut], None] = keep) -> None:
            delays.append(clock.now() - schedule.due(cut.trigger))
            keep(cut)

        engine.journal.keep_cut = noted  # type: ignore[method-assign]

    def report(name: str, what: Progress | UnavailableError) -> None:
        if isinstance(what, UnavailableError):  # a server that did not answer in time
            late.append(max(ran, default=0) + 1)
        elif name == "with":
            ran[what.trigger] = clock.now() - schedule.due(what.trigger)

    stop, late = threading.Event(), list[int]()
    feeding = threading.Thread(
        target=_deliver, args=(feeds, schedule, clock, _slow_length(3 * seconds), stop, late)
    )
    feeding.start()
    try:
        run_engines(dict(zip(("with", "without"), engines, strict=True)), stop, report)
    finally:
        stop.set()
        feeding.join()
        for feed, engine in zip(feeds, engines, strict=True):
            feed.close()
            engine.close()
    if late or max(delays) > 0.4 * schedule.interval or ran[SLOW_AT] < 2 * schedule.interval:
        raise DisturbedError
    with_it, without = (seen_by_others(engine.sink.releases) for engine in engines)  # type: ignore[attr-defined]
    return with_it, without, max(delays) / 1e6


def _deliver(
    feeds: list[Feed],
    schedule: TriggerGrid,
    clock: SystemClock,
    length: int,
    stop: threading.Event,
    late: list[int],
) -> None:
    """The same records for both in the middle of each interval, and before them the slow one."""
    for trigger in range(1, TRIGGERS + 1):
        begin, due = schedule.span(trigger)
        clock.wait((begin + due) // 2, stop)
        if trigger == SLOW_AT:
            feeds[0].deliver([{"unit": SLOW, "k": SLOW, "x": "ab" * length}])
        for feed in feeds:
            feed.deliver(crowd(trigger))
        if clock.now() > due - schedule.interval // 10:
            late.append(trigger)


def _slow_length(seconds: float) -> int:
    """How many pairs of letters take so long."""
    tried = 5_000
    with connect(config={"threads": 1}) as database:
        began = time.process_time()
        database.execute("SELECT LEVENSHTEIN(x, REVERSE(x)) FROM (SELECT ? AS x)", ["ab" * tried])
    return int(tried * math.sqrt(seconds / (time.process_time() - began)))


def check_real(folder: Path, make_feed: Callable[[Path], Feed]) -> float:
    """Others see the same by the machine's clock; slower where the machine is busy."""
    for seconds in (1, 2, 4, 8, 16, 32, 64):
        try:
            found, expected, delay = run_real(folder / str(seconds), make_feed, seconds)
        except DisturbedError:
            continue
        assert found == expected
        assert sum(map(len, expected)) > 2 * TRIGGERS
        return delay
    raise AssertionError("the machine is too busy for intervals of 64 seconds")
