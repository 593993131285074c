"""Workers, executors and drivers that die, tasks that fail or dawdle: the same bytes come out."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dpsqlp.entropy.secret import Secret
from spark.parity import ALL, begin, local_engine, published, run, step, tables
from spark.queries import CASES
from spark.servers import Driver, cluster
from support.fake_clock import START
from support.pipelines import SECRET
from support.processes import descendants, kill

pytestmark = pytest.mark.needs("java")
TRIGGERS = 30 if ALL else 6
CASE = replace(CASES["closing"], triggers=TRIGGERS)
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.2",
    "spark.speculation.minTaskRuntime": "200ms",
}
DAEMON = "pyspark.daemon"
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline to disturb, and the same instance undisturbed."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))
    begin(tmp_path, CASE.sql, local=4, spark=4)
    local = local_engine(tmp_path, "local")
    run(CASE, tmp_path, lambda now, triggers: step(local, now, triggers))
    local.close()
    return tmp_path


class Killer:
    """Lets a driver run, and every few triggers kills a process below some others."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.folder, self.dice, self.killed = folder, random.Random(seed), 0

    def run(
        self,
        driver: Driver,
        roots: list[int],
        named: str,
        every: int,
        until: int = TRIGGERS,
    ) -> None:
        """Until the run ends, or so many triggers are published; then the driver is killed."""
        while self._published() < min(until, TRIGGERS - every):
            self._ask(driver, every)
            self._kill_below(roots, named)
            assert driver.answer() is None
        self._ask(driver, None)
        self._kill_below(roots, named)
        if until == TRIGGERS:
            assert driver.answer() is None
        else:
            kill(driver.process.pid)

    def _ask(self, driver: Driver, triggers: int | None) -> None:
        driver.ask(folder=str(self.folder), name="spark", now=START, triggers=triggers)

    def _kill_below(self, roots: list[int], named: str) -> None:
        time.sleep(self.dice.uniform(0, 1))
        victims = [pid for root in roots for pid in descendants(root, named)]
        if victims:
            kill(self.dice.choice(victims))
            self.killed += 1

    def _published(self) -> int:
        return len(list((self.folder / "spark-out").glob("*.arrow")))


def undisturbed(folder: Path) -> None:
    """What came out is what the local engine publishes."""
    expected = published(folder, "local")
    assert published(folder, "spark") == expected
    assert not list((folder / "spark" / "units").rglob("*.*"))  # all windows are over
    assert len(expected) == TRIGGERS
    assert sum(release.num_rows for release in tables(expected)) > 10


def test_failing_tasks_and_killed_processes_on_one_machine(begun: Path) -> None:
    """Tasks fail at their first attempt, Python workers and drivers are killed. And the secret is
    neither in Spark's settings nor in its logs of events and plans."""
    events = begun / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    killer = Killer(begun)
    stops = [3, 8, 13, 19, 24] if ALL else [3]
    for until in [*stops, TRIGGERS]:
        with ExitStack() as stack:
            driver = Driver(
                stack, begun / "driver.log", master="local[2,4]", conf=conf, flaky="yes"
            )
            killer.run(driver, [driver.process.pid], DAEMON, every=2, until=until)
            if until == TRIGGERS:
                driver.ask()
                settings = str(driver.answer())
                assert "spark.eventLog.dir" in settings
                assert SECRET.key.hex() not in settings
    undisturbed(begun)
    assert killer.killed >= len(stops)
    assert len(list((begun / "marks").glob("*.again"))) >= TRIGGERS
    for stage in ("LayTask", "CloseTask"):
        assert list((begun / "marks").glob(f"{stage}-*.again"))
    logs = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert b"MapInArrow" in b"".join(logs)
    for log in (*logs, (begun / "driver.log").read_bytes()):
        assert SECRET.key.hex().encode() not in log.lower()
        assert SECRET.key not in log


if ALL:  # a few minutes: `make parity`

    def test_failing_tasks_and_killed_processes_on_a_cluster(begun: Path) -> None:
        """Executors are killed, slow tasks have copies elsewhere, and tasks fail."""
        with ExitStack() as stack:
            url, workers = stack.enter_context(cluster(begun))
            driver = Driver(stack, begun / "driver.log", master=url, conf=SPECULATION, flaky="slow")
            killer = Killer(begun)
            killer.run(driver, workers, EXECUTOR, every=4)
        undisturbed(begun)
        assert killer.killed >= 4
        assert len(list((begun / "marks").glob("*.again"))) > TRIGGERS
