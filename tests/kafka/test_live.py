"""Kafka to PostgreSQL, as deployed: everything is killed in turn, and nothing shows of it."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kafka.broker import Broker
from postgres.cluster import Cluster, in_sql
from postgres.conftest import cluster, server
from support.processes import end, launch

__all__ = ["cluster", "server"]  # fixtures

DEPLOYED = Path(__file__).parents[2] / "deploy" / "pipeline.sql"
HOUR = 3_600_000_000
START = 20_000 * 24 * HOUR
DAYS, STEP = 2, 6  # a trigger every six hours
CHANGES = {
    "brokers = 'kafka:9092'": "brokers = '{broker}'",
    "topic = 'page-views'": "topic = '{topic}'",
    "dead_letters = '/state/dead-letters'": "dead_letters = 'dead'",
    "dsn = 'host=postgres dbname=stats user=dpsqlp'": "dsn = {dsn}, table = '{table}'",
    "epsilon = 2, delta = 1e-9": "epsilon = 40, delta = 1e-3",
    "INTERVAL 15 MINUTES ALLOW LATENESS INTERVAL 1 HOUR": (
        "INTERVAL 6 HOURS ALLOW LATENESS INTERVAL 6 HOURS"
    ),
}


def query(**values: Any) -> str:
    """The deployed script at another address, with a budget that shows small crowds."""
    text = DEPLOYED.read_text()
    for before, after in CHANGES.items():
        assert before in text, before
        text = text.replace(before, after.format(**values))
    return text


class Process:
    """The pipeline's process, started again whenever it was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start()

    def _start(self) -> None:
        words = [sys.executable, str(Path(__file__).with_name("worker.py")), str(self._folder)]
        with (self._folder / "errors").open("ab") as errors:
            self._process = launch(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={"PYTHONPATH": ":".join(sys.path)},
            )
        self._tell(START + 1)

    def _tell(self, at: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{at}\n")
        self._process.stdin.flush()

    def run(self, at: int, kill_after: float | None = None) -> int:
        """Run what is due at a time; killed on the way, and started again, if so told."""
        self._tell(at)
        if kill_after is not None:
            time.sleep(kill_after)
            end(self._process)
            self._start()
            self._tell(at)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, (self._folder / "errors").read_text()[-3000:]
        return int(answer)

    def close(self) -> None:
        """End it, wherever it is."""
        end(self._process)


def views(trigger: int) -> Iterator[dict[str, Any]]:
    """What arrives before a trigger: views of that day, some late, one far ahead."""
    dice = random.Random(trigger)
    at = START + (trigger * STEP - 1) * HOUR
    for number in range(120):
        moment = at - dice.choice([0, 1, 7]) * HOUR + (365 * 24 * HOUR if number == 5 else 0)
        yield {
            "url": f"/{dice.randrange(4)}",
            "user_id": f"u{dice.randrange(60)}",
            "ts": f"{datetime.fromtimestamp(moment / 1e6, UTC):%F %T}",
        }


def run(folder: Path, broker: Broker, server: Cluster, name: str, disturbed: bool) -> Any:
    """Some days; the tables at the end."""
    topic, table = f"live-{name}", name
    folder.mkdir()
    values = {"broker": broker.address, "topic": topic, "dsn": in_sql(server.dsn), "table": table}
    (folder / "query.sql").write_text(query(**values))
    broker.create(topic, 2)
    ran, dice = [], random.Random(7)
    with closing(Process(folder)) as process:
        for trigger in range(1, DAYS * 24 // STEP + 2):
            bodies = list(views(trigger))
            broker.send(topic, [*bodies[::2], b"no view"], 0)
            broker.send(topic, bodies[1::2], 1)
            backs: list[threading.Timer] = []
            if disturbed and trigger % 6 == 3:
                broker.kill()
                backs.append(threading.Timer(1.5, broker.start))
            if disturbed and trigger % 4 == 2:
                server.kill()
                backs.append(threading.Timer(1.5, server.start))
            for back in backs:
                back.start()
            killed = dice.uniform(0, 0.4) if disturbed and trigger % 2 else None
            try:
                ran.append(process.run(START + trigger * STEP * HOUR, killed))
            finally:
                for back in backs:
                    back.join()
    assert ran == list(range(ran[0], ran[0] + len(ran)))
    letters = sorted(file.name for file in (folder / "dead").iterdir())
    assert len(letters) == len(ran)
    return [
        sorted(server.run(f"SELECT * FROM {relation}"), key=repr)
        for relation in (table, f"{table}_current")
    ]


@pytest.mark.usefixtures("cluster")
def test_broker_database_and_process_are_killed(
    broker: Broker, server: Cluster, tmp_path: Path
) -> None:
    """A daily window, Kafka to PostgreSQL: equal, row by row, to a run that nobody disturbed."""
    whole, current = run(tmp_path / "calm", broker, server, "calm", disturbed=False)
    assert len({row[0] for row in whole}) == DAYS + 2  # and one before, one after
    assert len(whole) > len(current) > 10
    assert run(tmp_path / "wild", broker, server, "wild", disturbed=True) == [whole, current]
