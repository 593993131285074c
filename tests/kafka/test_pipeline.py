"""Whole pipelines from a topic: the clock's triggers, a broker that is away, what is released."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpsqlp.clients import kafka as clients
from dpsqlp.engines.engine import Progress
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SqlError, UnavailableError
from kafka.broker import Broker
from support.fake_clock import START, FakeClock
from support.pipelines import (
    MINUTE,
    SECRET,
    Collected,
    Record,
    made,
    replay,
    run_all,
    run_engines,
    script,
    step,
    table,
)

QUARTER = 15 * MINUTE


@pytest.fixture(autouse=True)
def the_same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


def crowds(trigger: int) -> list[Record]:
    """Records of a trigger: another page, and more people, each time."""
    at = START + trigger * QUARTER - MINUTE
    return [(f"u{n}", f"k{trigger % 3}", float(n % 3), at) for n in range(10 + trigger)]


def bodies(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [
        {"unit": u, "k": k, "x": x, "ts": f"{datetime.fromtimestamp((at or 0) / 1e6, UTC):%F %T}"}
        for u, k, x, at in records
    ]


def from_topic(broker: Broker, topic: str) -> str:
    source = f"connector = 'kafka', brokers = '{broker.address}', topic = '{topic}'"
    return script(source=source)


def undisturbed(folder: Path, arrivals: Sequence[tuple[int, list[Record]]], triggers: int) -> Any:
    """What the same records give when a program pushes them."""
    engine: Any = None

    def push(given: list[Record]) -> None:
        engine.source.push(table(given))

    clock = FakeClock(
        START + 1,
        [(at, partial(push, given)) for at, given in arrivals],
    )
    engine = made(folder, script(source="connector = 'python'"), state="pushed", clock=clock)
    return run_all(engine, triggers)


def test_releases_are_those_of_the_same_records(broker: Broker, topic: str, tmp_path: Path) -> None:
    """With silent triggers, undecodable values, and a stop and a start in between."""
    broker.create(topic, 3)
    arrivals = [(START + n * QUARTER - 1, crowds(n)) for n in (1, 2, 5, 6)]

    def send(given: list[Record]) -> None:
        for partition in range(3):
            broker.send(topic, [*bodies(given[partition::3]), b"no record", None], partition)

    clock = FakeClock(
        START + 1,
        [(at, partial(send, given)) for at, given in arrivals],
    )
    sql = from_topic(broker, topic)
    got = run_all(made(tmp_path, sql, clock=clock), 4)
    got |= run_all(made(tmp_path, sql, clock=clock), 4)
    assert got == undisturbed(tmp_path, arrivals, 8)
    assert sum(map(len, got.values())) > 8


def test_a_broker_that_is_killed_and_comes_back(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triggers it is away for run empty, under their own numbers; their records come next."""
    broker.create(topic)
    first = (START + QUARTER - 1, lambda: broker.send(topic, bodies(crowds(1))))
    clock = FakeClock(START + 1, [first])
    engine = made(tmp_path, from_topic(broker, topic), clock=clock)
    stop = threading.Event()
    waited: list[str] = []
    ran: list[int] = []

    def report(name: str, progress: Progress | UnavailableError) -> None:
        if isinstance(progress, UnavailableError):
            waited.append(str(progress))
            if len(waited) == 2:
                broker.start()
                monkeypatch.setattr(clients, "SECONDS", 30.0)
                broker.send(topic, bodies(crowds(2)))
                clock.time = START + 3 * QUARTER + MINUTE  # the second trigger has passed
            return
        ran.append(progress.trigger)
        if len(ran) == 1:
            monkeypatch.setattr(clients, "SECONDS", 1.0)
            broker.kill()
        if len(ran) == 5:
            stop.set()

    try:
        run_engines({"t": engine}, stop, report)
    finally:
        engine.close()
    assert isinstance(engine.sink, Collected)
    got = {t: rows.to_pylist() for t, rows in zip(ran, engine.sink.releases, strict=True)}
    arrivals = [(START + QUARTER - 1, crowds(1)), (START + 3 * QUARTER - 1, crowds(2))]
    assert len(waited) >= 2
    assert "do not answer" in waited[0]
    assert ran == list(range(ran[0], ran[0] + 5))
    assert got == undisturbed(tmp_path, arrivals, 5)


def test_a_topic_is_no_finished_history(broker: Broker, topic: str, tmp_path: Path) -> None:
    source = f"connector = 'kafka', brokers = '{broker.address}', topic = '{topic}'"
    with pytest.raises(SqlError, match="replays finished history"):
        made(tmp_path, script(source=source, emit=replay(START, START + 4 * QUARTER)))


def test_what_is_read_later_is_not_in_an_earlier_trigger(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends after its intent reads the same range again, whatever came since."""
    broker.create(topic)
    sql = from_topic(broker, topic)
    clock = FakeClock(START + 1)
    broker.send(topic, bodies(crowds(1)))
    engine = made(tmp_path, sql, clock=clock)
    clock.time = START + QUARTER
    monkeypatch.setattr(engine, "_compute", lambda *words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step(engine)
    engine.close()
    broker.send(topic, bodies(crowds(2)))
    clock.time += MINUTE
    again = made(tmp_path, sql, clock=clock)
    trigger = step(again).trigger
    assert isinstance(again.sink, Collected)
    (release,) = again.sink.releases
    again.close()
    fresh = undisturbed(tmp_path, [(START + QUARTER, crowds(1))], 1)
    assert release.to_pylist() == fresh[trigger]
