"""The local engine against the twin: replays, scripted clocks, silence, and records out of time."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from dpsqlp.engines.clock import SystemClock
from dpsqlp.engines.engine import Progress
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.release_query import serialise
from dpsqlp.engines.runner import run_side_by_side
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import (
    PlanError,
    SourceError,
    SqlError,
    StateError,
    TriggerError,
    UnavailableError,
)
from dpsqlp.sinks.base import Sink
from dpsqlp.sources import memory_limit
from dpsqlp.sources.base import GridTime
from dpsqlp.sources.python_frames import PythonSource
from dpsqlp.sources.standard_input import StandardInput
from dpsqlp.sql import standard_deviations
from dpsqlp.state.journal import MANIFEST, Intent, Journal
from dpsqlp.state.sealed import read_public
from dpsqlp.state.storage import LocalStorage
from support.fake_clock import START, FakeClock
from support.pipelines import (
    HOUR,
    MINUTE,
    SECRET,
    Collected,
    Record,
    as_twin,
    made,
    replay,
    run_all,
    run_engines,
    script,
    step,
    table,
    twin_run,
    write,
)

QUARTER = 15 * MINUTE
FIRST = START // QUARTER + 1
PUSHED = "connector = 'python'"


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


def records(
    seed: int, start: int, stop: int, count: int = 400, keys: str = "abcdef"
) -> list[Record]:
    """Records of 60 units between two moments, and a few that are hard to read."""
    dice = random.Random(seed)
    made: list[Record] = [
        (
            f"u{dice.randrange(60)}",
            dice.choice([*keys, *keys[:2] * 3]),
            dice.choice([0.5, 1.25, 3.0, -1.0, 100.0, -100.0, float("nan"), None]),
            dice.randrange(start, stop),
        )
        for _ in range(count)
    ]
    return [*made, (None, "a", 1.0, start), ("u1", None, 1.0, start), ("u2", "a", 1.0, None)]


def by_span(
    given: Sequence[Record], first: int, last: int, interval: int = QUARTER
) -> dict[int, Sequence[Record]]:
    """The records of each trigger of a replay, found one by one."""
    return {
        trigger: [
            record
            for record in given
            if record[3] is not None and (trigger - 1) * interval <= record[3] < trigger * interval
        ]
        for trigger in range(first, last + 1)
    }


# Keys that are not the first of their units need the closing.
ONE_VOTE = ", max_selections_contributed = 1, min_privacy_units_per_group = 4"
REPLAYS = {
    "tumbling": {},
    "hopping": {"window": "HOP(ts, INTERVAL 30 MINUTES, INTERVAL 2 HOURS)"},
    "threshold": {"options": ", release = 'threshold'"},
    "blt": {"options": ", min_privacy_units_per_group = 3", "mechanism": "blt"},
    "period": {"options": ", privacy_unit_period = INTERVAL 1 HOUR"},
    "closing": {
        "options": f", privacy_unit_period = INTERVAL 1 HOUR{ONE_VOTE}",
        "mechanism": "blt",
    },
}


@pytest.mark.parametrize("kind", REPLAYS)
def test_a_replay_equals_the_twin(kind: str, tmp_path: Path) -> None:
    """Every row of every trigger, from Parquet files to the sink, is what the twin releases."""
    options = dict(REPLAYS[kind])
    sql = script(emit=replay(START, START + 3 * HOUR), **options_without(options))
    sql = sql.replace("'tree'", f"'{options.get('mechanism', 'tree')}'")
    given = records(1, START - HOUR, START + 5 * HOUR, 700)
    for part in range(3):
        write(tmp_path / "in" / f"{part}.parquet", given[part::3])
    engine = made(tmp_path, sql)
    last = engine.schedule.last
    assert engine.schedule.first == FIRST
    assert last is not None
    got = run_all(engine)
    wanted = twin_run(engine, by_span(given, FIRST, last))
    assert as_twin(engine.query, got) == wanted
    assert sum(map(len, got.values())) > 20
    finals = [row for rows in got.values() for row in rows if row["final"]]
    assert finals or kind == "threshold"
    before = {
        (row["window_start"], row["k"]) for rows in got.values() for row in rows if not row["final"]
    }
    closed = [row for row in finals if (row["window_start"], row["k"]) not in before]
    assert len(closed) >= (3 if kind == "closing" else 0)


FRAMES = "connector = 'python'"


def fed(folder: Path, sql: str, given: Sequence[Record]) -> LocalEngine:
    """An engine with all records of a replay, in three frames."""
    engine = made(folder, sql)
    for part in range(3):
        engine.source.push(table(given[part::3]))  # type: ignore[attr-defined]
    return engine


def test_a_replay_of_frames_equals_the_twin(tmp_path: Path) -> None:
    """By each record's own time. Another process goes on with the frames of the state, which has
    them no longer once the last trigger has run.
    """
    sql = script(source=FRAMES, emit=replay(START, START + 3 * HOUR))
    given = records(1, START - HOUR, START + 5 * HOUR, 700)
    got = run_all(fed(tmp_path, sql, given), 5)
    assert list((tmp_path / "state").rglob("spool/*"))
    engine = made(tmp_path, sql)
    last = engine.schedule.last
    assert last is not None
    got |= run_all(engine)
    assert as_twin(engine.query, got) == twin_run(engine, by_span(given, FIRST, last))
    assert sum(map(len, got.values())) > 20
    assert not list((tmp_path / "state").rglob("spool/*"))


def test_a_replay_of_frames_that_had_begun_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its first commit, it needs no frame again."""
    sql = script(source=FRAMES, emit=replay(START, START + HOUR))
    given = records(3, START, START + HOUR)
    engine = fed(tmp_path, sql, given)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "commit", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.close()
    engine = made(tmp_path, sql)
    last = engine.schedule.last
    assert last is not None
    got = run_all(engine)
    assert as_twin(engine.query, got) == twin_run(engine, by_span(given, FIRST, last))


def test_the_frames_of_a_replay_do_not_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its last commit, it deletes them when it is opened again."""
    sql = script(source=FRAMES, emit=replay(START, START + HOUR))
    engine = fed(tmp_path, sql, records(3, START, START + HOUR))
    with monkeypatch.context() as patched:
        patched.setattr("dpsqlp.engines.engine.sweep_spools", Mock(side_effect=KeyboardInterrupt))
        for _ in range(3):
            engine.step()
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.close()
    assert list((tmp_path / "state").rglob("spool/*"))
    made(tmp_path, sql).close()
    assert not list((tmp_path / "state").rglob("spool/*"))


def test_a_replay_of_frames_has_all_of_them_first(tmp_path: Path) -> None:
    """A frame that comes later would change spans that have been released."""
    sql = script(source=FRAMES, emit=replay(START, START + HOUR))
    engine = made(tmp_path, sql)
    with pytest.raises(SourceError, match="No records were fed"):
        engine.step()
    engine.close()
    engine = fed(tmp_path, sql, records(3, START, START + HOUR))
    engine.step()
    with pytest.raises(SourceError, match="before its first trigger"):
        engine.source.push(table([]))  # type: ignore[attr-defined]
    engine.close()


@pytest.mark.parametrize("public", [False, True])
def test_people_are_counted_however_many_rows_they_have(public: bool, tmp_path: Path) -> None:
    """A norm of 2 is one row in each of 4 groups: the others of a group use up nothing, at the same
    trigger or later.
    """
    keys = "abcd"
    given = [
        (f"u{unit}", key, 1.0, START + trigger * QUARTER + unit)
        for unit in range(40)
        for key in keys
        for trigger in range(4)
        for _ in range(3)
    ]
    options = ", group_selection_strategy = PUBLIC_GROUPS, public_groups = p" if public else ""
    sql = script(
        select="k, COUNT(DISTINCT unit) AS n",
        emit=replay(START, START + HOUR),
        options=options,
        public="CREATE PUBLIC TABLE p AS SELECT UNNEST(['a', 'b', 'c', 'd']) AS k;" * public,
    ).replace("max_rows_contributed = 6, max_rows_per_group = 3", "max_contribution_norm = 2")
    write(tmp_path / "in" / "all.parquet", given)
    engine = made(tmp_path, sql)
    noise = max(standard_deviations(engine.plan)[0])
    *_, last = run_all(engine).values()
    assert {row["k"]: row["n"] for row in last} == pytest.approx(
        dict.fromkeys(keys, 40), abs=6 * noise
    )
    assert 6 * noise < 20  # by rows, a unit would count in a single group


def options_without(options: dict[str, str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "mechanism"}


def released(folder: Path, given: list[list[Record]], threads: int) -> list[bytes]:
    for number, part in enumerate(given):
        write(folder / "in" / f"{number}.parquet", part)
    engine = made(folder, script(emit=replay(START, START + 2 * HOUR)), threads=threads)
    run_all(engine)
    assert isinstance(engine.sink, Collected)
    return [serialise(rows) for rows in engine.sink.releases]


def test_threads_files_and_order_change_nothing(tmp_path: Path) -> None:
    """The same records in other files, another order and other shards are released bit for bit."""
    given = records(2, START, START + 2 * HOUR)
    expected = released(tmp_path / "one", [given], 1)
    assert any(pa.ipc.open_stream(release).read_all().num_rows for release in expected)
    dice = random.Random(3)
    for threads, files in ((2, 1), (5, 4)):
        shuffled = dice.sample(given, len(given))
        parts = [shuffled[part::files] for part in range(files)]
        assert released(tmp_path / str(threads), parts, threads) == expected


def test_the_machines_time_zone_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dates and truncation are in UTC wherever the machine is."""
    sql = script(
        select="STRFTIME(CAST(ts AS TIMESTAMPTZ), '%H') AS k, COUNT(*) AS n",
        group="STRFTIME(CAST(ts AS TIMESTAMPTZ), '%H')",
        emit=replay(START, START + 2 * HOUR),
    )
    for zone in ("UTC", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        folder = tmp_path / zone.replace("/", "-")
        write(folder / "in" / "a.parquet", records(2, START, START + 2 * HOUR))
        rows = run_all(made(folder, sql))
        assert {row["k"] for batch in rows.values() for row in batch} == {"00", "01"}


def test_public_tables_can_be_joined(tmp_path: Path) -> None:
    """The row query finds the public tables where it runs."""
    (tmp_path / "names.csv").write_text("code,name\na,Alpha\nb,Beta\n")
    sql = script(
        public="CREATE PUBLIC TABLE names AS SELECT * FROM 'names.csv';",
        select="name AS k, COUNT(*) AS n",
        group="name",
        emit=replay(START, START + HOUR),
    ).replace("FROM s", "FROM s JOIN names ON s.k = names.code")
    write(tmp_path / "in" / "a.parquet", records(2, START, START + HOUR))
    rows = run_all(made(tmp_path, sql))
    assert {row["k"] for batch in rows.values() for row in batch} == {"Alpha", "Beta"}


def test_the_timestamp_may_be_computed(tmp_path: Path) -> None:
    """A replay goes by the window's timestamp, not by a column that happens to be called so."""
    sql = script(emit=replay(START, START + HOUR))
    shifted = sql.replace("FROM s", "FROM (SELECT unit, k, x, ts + INTERVAL 1 HOUR AS ts FROM s)")
    given = records(2, START, START + HOUR)
    earlier = [(u, k, x, None if at is None else at - HOUR) for u, k, x, at in given]
    write(tmp_path / "in" / "a.parquet", earlier)
    engine = made(tmp_path, shifted)
    got = run_all(engine)
    assert as_twin(engine.query, got) == twin_run(engine, by_span(given, FIRST, FIRST + 3))
    assert got[FIRST + 3]


class Pushing:
    """A pipeline on a scripted clock whose records are pushed at given times."""

    def __init__(self, folder: Path, sql: str, arrivals: Sequence[tuple[int, Sequence[Record]]]):
        self.clock = FakeClock(
            START + 1, [(at, partial(self.push, given)) for at, given in arrivals]
        )
        self.engine = made(folder, sql, clock=self.clock)

    def push(self, given: Sequence[Record]) -> None:
        assert isinstance(self.engine.source, PythonSource)
        self.engine.source.push(table(given))

    def run(self, triggers: int | None = None) -> dict[int, list[dict[str, Any]]]:
        return run_all(self.engine, triggers)


def crowd(key: str, at: int, units: int = 12, value: float = 1.0) -> list[Record]:
    """One record each of some units."""
    return [(f"u{number}", key, value, at) for number in range(units)]


def test_the_clock_runs_every_trigger(tmp_path: Path) -> None:
    """The first trigger is the first one after creation; silent ones release what is due."""
    arrivals = [(START + 5 * MINUTE, crowd("a", START + MINUTE))]
    pipeline = Pushing(tmp_path, script(source=PUSHED), arrivals)
    got = pipeline.run(6)
    assert list(got) == list(range(FIRST, FIRST + 6))
    batches: dict[int, Sequence[Record]] = dict.fromkeys(got, ())
    batches[FIRST] = arrivals[0][1]
    assert as_twin(pipeline.engine.query, got) == twin_run(pipeline.engine, batches)
    assert [len(rows) for rows in got.values()] == [1, 1, 1, 1, 0, 0]
    assert [row["final"] for rows in got.values() for row in rows] == [False] * 3 + [True]


def test_missed_triggers_run_empty_and_the_next_takes_their_records(tmp_path: Path) -> None:
    """After a stop of 40 minutes each missed trigger has its own number and no records."""
    sql = script(source=PUSHED)
    first = Pushing(tmp_path, sql, [(START + MINUTE, crowd("a", START))])
    before = first.run(1)
    again = Pushing(tmp_path, sql, [])
    again.clock.time = START + 48 * MINUTE
    again.push(crowd("b", START + 20 * MINUTE))
    after = again.run(3)
    assert [*before, *after] == list(range(FIRST, FIRST + 4))
    batches: dict[int, Sequence[Record]] = {
        FIRST: crowd("a", START),
        FIRST + 1: (),
        FIRST + 2: (),  # its time had passed
        FIRST + 3: crowd("b", START + 20 * MINUTE),
    }
    assert as_twin(again.engine.query, before | after) == twin_run(again.engine, batches)
    assert [[row["k"] for row in rows] for rows in after.values()] == [["a"], ["a"], ["a", "b"]]


@pytest.mark.parametrize("missed", [False, True])
def test_a_window_closes_at_a_trigger_without_records(missed: bool, tmp_path: Path) -> None:
    """Or at one that was missed: each unit's vote goes to key a, and key b comes out at the end."""
    sql = script(
        source=PUSHED,
        window=None,
        emit="EMIT EVERY INTERVAL 15 MINUTES FOR 4 TRIGGERS",
        options=ONE_VOTE,
    )
    given = [*crowd("a", 0), *crowd("b", 1)]
    pipeline = Pushing(tmp_path, sql, [(START + MINUTE, given)])
    got = pipeline.run(2)
    again = Pushing(tmp_path, sql, [])
    if missed:
        again.clock.time = START + 24 * HOUR
    got |= again.run()
    batches: dict[int, Sequence[Record]] = {1: given, 2: (), 3: (), 4: ()}
    assert as_twin(again.engine.query, got) == twin_run(again.engine, batches)
    assert [[row["k"] for row in got[n]] for n in range(1, 5)] == [["a"], ["a"], ["a"], ["a", "b"]]


OUT_OF_TIME = {
    "a year ahead": START + 365 * 24 * HOUR,
    "an hour ahead": START + HOUR,
    "late": START - 1,
    "1677": -(2**62),
    "without a time": None,
}


@pytest.mark.parametrize("what", OUT_OF_TIME)
def test_a_record_out_of_time_changes_nothing(what: str, tmp_path: Path) -> None:
    """It is dropped before bounding: no window opens, closes or moves, no cap is used up."""
    stray: list[Record] = [("u0", "a", 1.0, OUT_OF_TIME[what])] * 9
    got = []
    for name, extra in (("with", stray), ("without", [])):
        arrivals = [
            (START + MINUTE, [*extra, *crowd("a", START)]),
            (START + 17 * MINUTE, crowd("a", START + 16 * MINUTE)),
        ]
        got.append(Pushing(tmp_path / name, script(source=PUSHED), arrivals).run(5))
    assert got[0] == got[1]
    assert [len(rows) for rows in got[0].values()] == [1, 1, 1, 1, 0]


def test_lateness_keeps_a_window_open(tmp_path: Path) -> None:
    """Records up to the lateness count at the trigger they arrive for; after it they are late."""
    emit = "EMIT EVERY INTERVAL 15 MINUTES ALLOW LATENESS INTERVAL 30 MINUTES"
    late = crowd("late", START + 59 * MINUTE)
    too_late = crowd("too late", START + 59 * MINUTE)
    arrivals = [(START + 80 * MINUTE, late), (START + 91 * MINUTE, too_late)]
    pipeline = Pushing(tmp_path, script(source=PUSHED, emit=emit), arrivals)
    got = pipeline.run(8)
    batches: dict[int, Sequence[Record]] = dict.fromkeys(got, ())
    batches |= {FIRST + 5: late, FIRST + 6: too_late}
    assert as_twin(pipeline.engine.query, got) == twin_run(pipeline.engine, batches)
    assert [[row["k"] for row in rows] for rows in got.values()][4:] == [[], ["late"], [], []]
    assert [row["final"] for row in got[FIRST + 5]] == [True]


def test_hopping_windows_by_the_clock(tmp_path: Path) -> None:
    """A record counts in each open window that contains it."""
    sql = script(source=PUSHED, window="HOP(ts, INTERVAL 15 MINUTES, INTERVAL 45 MINUTES)")
    given = crowd("a", START + 14 * MINUTE)
    pipeline = Pushing(tmp_path, sql, [(START + 14 * MINUTE, given)])
    got = pipeline.run(5)
    batches: dict[int, Sequence[Record]] = dict.fromkeys(got, ()) | {FIRST: given}
    assert as_twin(pipeline.engine.query, got) == twin_run(pipeline.engine, batches)
    assert [len(rows) for rows in got.values()] == [3, 2, 1, 0, 0]


def test_no_window_ends_after_its_triggers(tmp_path: Path) -> None:
    """FOR n TRIGGERS: n run, the last is final, and nothing brings out another."""
    sql = script(source=PUSHED, window=None, emit="EMIT EVERY INTERVAL 15 MINUTES FOR 3 TRIGGERS")
    given = crowd("a", 0)
    pipeline = Pushing(tmp_path, sql, [(START + MINUTE, given)])
    got = pipeline.run()
    assert list(got) == [1, 2, 3]
    batches: dict[int, Sequence[Record]] = {1: given, 2: (), 3: ()}
    assert as_twin(pipeline.engine.query, got) == twin_run(pipeline.engine, batches)
    assert [row["final"] for rows in got.values() for row in rows] == [False, False, True]
    again = Pushing(tmp_path, sql, [])
    assert again.engine.finished
    with pytest.raises(TriggerError, match="spends its own budget"):
        step(again.engine)
    assert again.run() == {}


def test_a_unit_may_contribute_again_in_its_next_period(tmp_path: Path) -> None:
    """Bounds are per unit and period; a period's state goes when its records can no longer come."""
    options = ", privacy_unit_period = INTERVAL 1 HOUR"
    sql = script(source=PUSHED, options=options)
    batches = {
        FIRST + step: [
            record
            for _ in range(4)
            for record in crowd("a", START + step * QUARTER + MINUTE, value=0.5 * step)
        ]
        for step in range(12)
    }
    arrivals = [(START + step * QUARTER + 2 * MINUTE, batches[FIRST + step]) for step in range(12)]
    pipeline = Pushing(tmp_path, sql, arrivals)
    got = pipeline.run(12)
    assert as_twin(pipeline.engine.query, got) == twin_run(pipeline.engine, batches)
    assert (
        list(pipeline.engine.state.units) == [START // HOUR + 3] or not pipeline.engine.state.units
    )


@pytest.mark.parametrize("data", [True, False])
def test_public_keys_are_released_at_every_trigger(data: bool, tmp_path: Path) -> None:
    """Every public key of every window, with or without records, and no other."""
    sql = script(
        source=PUSHED,
        public="CREATE PUBLIC TABLE p AS SELECT * FROM (VALUES ('a'), ('b'), ('')) AS t(k);",
        options=", group_selection_strategy = PUBLIC_GROUPS, public_groups = p",
    )
    given = [*crowd("a", START), *crowd("z", START)] if data else []
    pipeline = Pushing(tmp_path, sql, [(START + MINUTE, given)] if data else [])
    got = pipeline.run(9)
    batches: dict[int, Sequence[Record]] = dict.fromkeys(got, ()) | {FIRST: given}
    assert as_twin(pipeline.engine.query, got) == twin_run(pipeline.engine, batches)
    assert [[row["k"] for row in rows] for rows in got.values()] == [["", "a", "b"]] * 9


def test_a_clock_that_goes_backwards_neither_repeats_nor_skips(tmp_path: Path) -> None:
    """The number of the next trigger comes from the state; the engine waits until it is due, and
    what arrives meanwhile is that trigger's."""
    sql = script(source=PUSHED)
    first = Pushing(tmp_path, sql, [(START + MINUTE, crowd("a", START))])
    before = first.run(2)
    again = Pushing(tmp_path, sql, [])
    again.clock.time = START - 3 * HOUR
    back = START - 2 * HOUR
    again.clock.happenings = [(back, lambda: again.push(crowd("b", START + MINUTE)))]
    after = again.run(1)
    assert again.clock.time == START + 3 * QUARTER
    batches: dict[int, Sequence[Record]] = {
        FIRST: crowd("a", START),
        FIRST + 1: (),
        FIRST + 2: crowd("b", START + MINUTE),
    }
    assert as_twin(again.engine.query, before | after) == twin_run(again.engine, batches)


def test_a_clock_that_jumps_back_while_running(tmp_path: Path) -> None:
    """Every trigger still runs once."""
    pipeline = Pushing(tmp_path, script(source=PUSHED), [])

    def back() -> None:
        pipeline.clock.time -= 50 * MINUTE

    pipeline.clock.happenings = [(START + 32 * MINUTE, back)]
    assert list(pipeline.run(6)) == list(range(FIRST, FIRST + 6))


def test_a_replay_needs_public_bounds(tmp_path: Path) -> None:
    """Without FROM and TO the triggers would come from the data."""
    sql = script(emit="EMIT EVERY INTERVAL 15 MINUTES ON EVENT TIME")
    with pytest.raises(Exception, match=r"public bounds|FROM TIMESTAMP"):
        made(tmp_path, sql)


def test_a_stop_ends_after_the_trigger(tmp_path: Path) -> None:
    """A stop while waiting runs nothing more, and the state can be opened again."""
    stop = threading.Event()
    engine = made(tmp_path, script(source=PUSHED, emit="EMIT EVERY INTERVAL 15 MINUTES"))
    threading.Timer(0.05, stop.set).start()
    ran: list[Any] = []
    run_side_by_side({"t": engine}, stop, lambda *it: ran.append(it))
    engine.close()
    assert ran == []
    assert engine.cuts.waiting == []
    made(tmp_path, script(source=PUSHED)).close()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Else nobody knows which to restore as it was."""
    path = tmp_path / "in" / "a.parquet"
    write(path, records(2, START, START + HOUR))
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)  # pages, not the footer
    path.write_bytes(data)
    engine = made(tmp_path, script(source="connector = 'files', path = 'in/*.parquet'"))
    with pytest.raises(SourceError, match=r"cannot be read") as refused:
        step(engine)
    engine.close()
    assert str(path) in str(refused.value)


class Away(Collected):
    """A sink whose server is away for its first calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def emit(self, trigger: int, release: pa.Table) -> None:
        self.calls -= 1
        if self.calls >= 0:
            raise UnavailableError("The server is away.")
        super().emit(trigger, release)


def replayed(
    folder: Path, name: str = "state", sink: Sink | None = None, clock: FakeClock | None = None
) -> LocalEngine:
    """An hour of records, replayed."""
    if not (folder / "in").exists():
        write(folder / "in" / "a.parquet", records(2, START, START + HOUR))
    sql = script(emit=replay(START, START + HOUR))
    return made(folder, sql, state=name, output=sink, clock=clock)


def test_a_server_that_is_away_is_asked_again(tmp_path: Path) -> None:
    """Nothing is left out, and another sink goes on in the meantime."""
    clock, away, there = FakeClock(START), Away(3), Collected()
    engines = {
        "away": replayed(tmp_path, "a", away, clock),
        "there": replayed(tmp_path, "b", there, clock),
    }
    said: list[tuple[str, type]] = []
    clock.expect(1)  # the other has nothing to wait for
    run_side_by_side(engines, threading.Event(), lambda *it: said.append((it[0], type(it[1]))))
    for engine in engines.values():
        engine.close()
    assert said.count(("away", UnavailableError)) == 3
    assert said.count(("there", Progress)) == said.count(("away", Progress)) == 4
    assert len(away.releases) == len(there.releases) == 4
    assert clock.now() == START + 250_000 + 500_000 + 1_000_000  # longer each time


def test_a_source_that_is_away_is_asked_at_every_grid_time_and_between(tmp_path: Path) -> None:
    """Less and less often within an interval; a trigger it did not answer for runs empty."""
    clock, stop = FakeClock(START), threading.Event()
    engine = made(tmp_path, script(source=PUSHED), clock=clock)
    asked: list[int] = []
    ran: list[Progress] = []

    def away(offset: Any, at: GridTime) -> Any:
        asked.append(clock.time - START - QUARTER)
        raise UnavailableError("The server is away.")

    def report(name: str, what: Progress | UnavailableError) -> None:
        if isinstance(what, Progress):
            ran.append(what)
            stop.set()

    engine.source.cut = away  # type: ignore[method-assign]
    run_engines({"t": engine}, stop, report)
    engine.close()
    assert asked[:6] == [0, 250_000, 750_000, 1_750_000, 3_750_000, 7_750_000]
    assert [later - before for before, later in pairwise(asked[7:17])] == [10_000_000] * 9
    assert QUARTER in asked  # the next grid time
    assert [(progress.trigger, progress.missed) for progress in ran[:1]] == [(FIRST, True)]


def test_an_answer_after_the_next_grid_time_is_of_no_use(tmp_path: Path) -> None:
    """It would have the next trigger's records; they stay for that one."""
    clock = FakeClock(START)
    engine = made(tmp_path, script(source=PUSHED), clock=clock)
    original, slow = engine.source.cut, [True]
    assert isinstance(engine.source, PythonSource)
    engine.source.push(table(crowd("a", START + QUARTER)))

    def late(offset: Any, at: GridTime) -> Any:
        if slow:
            slow.clear()
            clock.time += QUARTER
            return {"spool": "spool/none"}
        return original(offset, at)

    engine.source.cut = late  # type: ignore[method-assign]
    ran: list[Progress] = []
    stop = threading.Event()

    def report(name: str, what: Progress | UnavailableError) -> None:
        if isinstance(what, Progress):
            ran.append(what)
            if len(ran) == 2:
                stop.set()

    run_engines({"t": engine}, stop, report)
    engine.close()
    assert [(progress.missed, progress.rows) for progress in ran] == [(True, 0), (False, 1)]


def test_the_last_release_is_not_left_unpublished(tmp_path: Path) -> None:
    """A pipeline whose last trigger has run is finished only when its release is out."""
    sink = Away(0)
    engine = replayed(tmp_path, sink=sink)
    while engine.next_trigger != engine.schedule.last:
        engine.step()
    sink.calls = 1
    with pytest.raises(UnavailableError):
        engine.step()
    assert not engine.finished
    assert engine.ready
    assert engine.step().trigger == engine.schedule.last
    assert engine.finished
    engine.close()


def test_standard_input_is_done_when_its_last_release_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when its last trigger has run."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    sink = Away(2)
    sql = script(source="connector = 'stdin'")
    engine = made(tmp_path, sql, clock=FakeClock(START), output=sink)
    assert isinstance(engine.source, StandardInput)
    engine.source.ended.wait(10)
    said: list[type] = []
    run_engines({"t": engine}, threading.Event(), lambda _, it: said.append(type(it)))
    engine.close()
    assert said == [UnavailableError, UnavailableError, Progress]
    assert len(sink.releases) == 1


def test_a_sink_that_is_away_at_the_start_does_not_stop_it(tmp_path: Path) -> None:
    """The last release of the state is given when the server is back."""
    engine = replayed(tmp_path)
    trigger = engine.step().trigger
    engine.close()
    again = replayed(tmp_path, sink=Away(1))
    assert again.step().trigger == trigger
    assert again.step().trigger == trigger + 1
    again.close()


def test_options_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """${NAME} is filled in when the script is run, and is no part of the query."""
    monkeypatch.delenv("INPUT", raising=False)
    sql = script(
        emit=replay(START, START + HOUR), source="connector = 'files', path = '${INPUT}/*.parquet'"
    )
    with pytest.raises(PlanError, match="environment has no variable INPUT"):
        made(tmp_path, sql)
    write(tmp_path / "in" / "a.parquet", records(2, START, START + HOUR))
    monkeypatch.setenv("INPUT", "in")
    assert run_all(made(tmp_path, sql)) == run_all(replayed(tmp_path, "other"))


def test_the_machines_clock() -> None:
    """It waits, and it stops waiting when told."""
    clock, stop = SystemClock(), threading.Event()
    until = clock.now() + 20_000
    clock.wait(until, stop)
    assert clock.now() >= until
    stop.set()
    clock.wait(clock.now() + HOUR, stop)


class Failing(Collected):
    """A sink that cannot be reached for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False

    def emit(self, trigger: int, release: pa.Table) -> None:
        if self.down:
            raise ConnectionError
        super().emit(trigger, release)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_release_that_was_not_published_is_not_stepped_over(
    tmp_path: Path, reopened: bool
) -> None:
    """After a failed sink its release comes first, from memory or from the disk."""
    given = crowd("a", START)
    sql = script(source=PUSHED)
    sink = Failing()
    pipeline = Pushing(tmp_path, sql, [])
    pipeline.engine.sink = sink
    pipeline.push(given)
    sink.down = True
    for _ in range(2):
        with pytest.raises(ConnectionError):
            step(pipeline.engine)
    if reopened:
        pipeline.engine.close()
        with pytest.raises(ConnectionError):
            made(tmp_path, sql, clock=FakeClock(START + QUARTER), output=sink)
    sink.down = False
    engine = pipeline.engine
    if reopened:
        engine = made(tmp_path, sql, clock=FakeClock(START + QUARTER), output=sink)
    else:
        assert step(engine).trigger == FIRST
    assert step(engine).trigger == FIRST + 1
    engine.close()
    assert [rows.column("trigger").to_pylist() for rows in sink.releases] == [
        [FIRST],
        [FIRST + 1],
    ]


def test_a_batch_larger_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not split by count: the trigger has not run, and runs where there is room."""
    monkeypatch.setattr(memory_limit, "BATCH_BYTES_MAX", 10)
    sql = script(source=PUSHED)
    pipeline = Pushing(tmp_path, sql, [])
    pipeline.push(crowd("a", START))
    with pytest.raises(SourceError, match="has not run"):
        step(pipeline.engine)
    pipeline.engine.close()
    monkeypatch.undo()
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))
    again = Pushing(tmp_path, sql, [])
    assert len(again.run(1)[FIRST]) == 1


def test_spools_do_not_outlive_their_trigger(tmp_path: Path) -> None:
    """Raw records stay no longer than they may have to be read again."""
    sql = script(source=PUSHED)
    pipeline = Pushing(tmp_path, sql, [(START + MINUTE, crowd("a", START))])
    pipeline.run(2)
    spools = tmp_path / "state" / "t" / "spool"
    assert list(spools.iterdir()) == []
    (spools / "7.arrow").write_bytes(b"left by a crash")
    made(tmp_path, sql).close()
    assert list(spools.iterdir()) == []


def test_the_script_says_what_is_wrong(tmp_path: Path) -> None:
    """Unknown connectors are refused with the known ones."""
    for wrong in (script(source="connector = 'fax'"), script(sink="connector = 'fax'")):
        with pytest.raises(SqlError, match=r"Use one of .*python"):
            made(tmp_path, wrong)


def test_what_was_read_ahead_for_another_intent_is_refused(tmp_path: Path) -> None:
    """A trigger computes on the records that its durable intent names, and on no others."""
    rows = records(2, START, START + HOUR)
    write(tmp_path / "in" / "a.parquet", rows)
    sql = script(emit=replay(START, START + HOUR))
    engine = made(tmp_path, sql)
    engine.step()
    intent, reading = engine._ahead[0]
    offsets: Any = intent.offsets
    low, high = offsets["span"]
    engine._ahead[0] = Intent(intent.trigger, offsets | {"span": [low, low]}), reading
    for _ in range(2):
        with pytest.raises(StateError, match="Open the pipeline again"):
            engine.step()
    engine.close()
    engine = made(tmp_path, sql)
    assert engine.step().trigger == intent.trigger
    expected = sum(at is not None and low <= at < high for *_, at in rows)
    assert expected > 0
    assert engine.records == expected
    engine.close()


def test_a_range_that_could_not_be_read_ahead_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trigger fails, with nothing computed; the next attempt releases the same rows."""
    sinks = Collected(), Collected()
    engine, undisturbed = replayed(tmp_path, "a", sinks[0]), replayed(tmp_path, "b", sinks[1])
    failures, read = [engine.next_trigger + 1], engine._read_and_admit

    def failing(intent: Intent) -> Any:
        if intent.trigger in failures:
            failures.remove(intent.trigger)
            raise SourceError("The disk is away.")
        return read(intent)

    monkeypatch.setattr(engine, "_read_and_admit", failing)
    engine.step()
    with pytest.raises(SourceError, match="is away"):
        engine.step()
    for one in (engine, undisturbed):
        while not one.finished:
            one.step()
        one.close()
    assert sinks[0].releases == sinks[1].releases
    assert len(sinks[0].releases) == 4


def test_nothing_is_published_before_it_is_committed(tmp_path: Path) -> None:
    """When a sink gets a trigger, the manifest on disk already vouches for it."""
    seen = []

    class Watching(Sink):
        def emit(self, trigger: int, release: pa.Table) -> None:
            public = read_public(LocalStorage(tmp_path / "state" / "t"), MANIFEST)
            seen.append((trigger, None if public is None else public["trigger"]))

    sql = script(emit=replay(START, START + HOUR))
    write(tmp_path / "in" / "a.parquet", records(2, START, START + HOUR))
    engine = made(tmp_path, sql, output=Watching())
    while not engine.finished:
        engine.step()
    engine.close()
    assert len(seen) >= 4
    assert all(trigger == committed for trigger, committed in seen)
