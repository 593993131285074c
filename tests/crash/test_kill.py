"""Killed at every step and at random moments, a pipeline's output is that of an undisturbed run."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from crash.crashes import ALL, BERLIN, CLOSING, HOPPING, Worker, begun, copied, outputs, steps
from support import slow_unit
from support.fake_clock import START, FakeClock
from support.pipelines import HOUR, MINUTE, made

pytestmark = pytest.mark.slow

KILLED = -signal.SIGKILL
OBJECTS = ("intent.json", "units", "keys", "selected", "releases", "manifest.json", "out")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


@pytest.mark.parametrize("options", [HOPPING, CLOSING], ids=["hopping", "closing"])
def test_killed_at_every_step(options: dict[str, str], worker: Worker, tmp_path: Path) -> None:
    """Before each write, sync, rename, folder sync and delete, and half way through each write."""
    pipeline = begun(tmp_path, 1, **options)
    whole = copied(pipeline, "whole")
    assert worker.run(whole) == 0
    expected, kinds = outputs(whole), steps(whole)
    assert len(expected) == (6 if options == HOPPING else 4)
    assert options == HOPPING or closes(whole)
    every = {
        f"{do} {what}" for do in ("write", "sync", "rename", "sync_folder") for what in OBJECTS
    }
    every |= {"remove units", "remove keys", "remove selected", "remove releases"}
    assert set(kinds) == every
    chosen = range(1, len(kinds) + 1) if ALL else _sample(kinds)
    for number, kill_at in enumerate(chosen):
        folder = copied(pipeline, "killed")
        assert worker.run(folder, kill_at=kill_at) == KILLED
        if number % 5 == 0:  # and again while it recovers
            assert worker.run(folder, kill_at=1 + kill_at % 5) == KILLED
        assert worker.run(folder) == 0
        assert outputs(folder) == expected, f"killed before step {kill_at}, {kinds[kill_at - 1]}"


def test_killed_in_days_of_25_and_24_hours(worker: Worker, tmp_path: Path) -> None:
    """The calendar's table, and the noise of each T, are those of the state."""
    start = START + 22 * 24 * HOUR + 22 * HOUR  # 27 October 2024 in Berlin
    emit = (
        "EMIT EVERY INTERVAL 1 HOUR ON EVENT TIME FROM TIMESTAMP '2024-10-27' TO TIMESTAMP"
        " '2024-10-29'"
    )
    pipeline = begun(tmp_path, 49, start, emit=emit, **BERLIN)
    whole = copied(pipeline, "whole")
    assert worker.run(whole) == 0
    expected, kinds = outputs(whole), steps(whole)
    rows = [pq.read_table(whole / "out" / name).to_pylist() for name in expected]
    ends = [number for number, part in enumerate(rows, 1) if part and part[0]["final"]]
    assert ends == [25, 49]
    for kill_at in _sample(kinds):
        folder = copied(pipeline, "killed")
        assert worker.run(folder, kill_at=kill_at) == KILLED
        assert worker.run(folder) == 0
        assert outputs(folder) == expected, f"killed before step {kill_at}, {kinds[kill_at - 1]}"


def closes(folder: Path) -> bool:
    """Whether each window has keys in its last release that it had not before."""
    rows = [pq.read_table(folder / "out" / name).to_pylist() for name in outputs(folder)]
    keys = [{row["k"] for row in part if row["final"]} for part in rows]
    before = [{row["k"] for row in part if not row["final"]} for part in rows]
    return all(keys[n] > before[n - 1] for n in range(1, len(rows), 2))


def test_killed_while_cuts_wait(worker: Worker, tmp_path: Path) -> None:
    """Each trigger reads what had come by its own cut, however often the process ends and whatever
    has come since.
    """
    pipeline, feed = tmp_path / "begun", slow_unit.Files(tmp_path)
    pipeline.mkdir()
    sql = slow_unit.script(feed.clause.replace("in/", f"{tmp_path}/in/"), "15 MINUTES")
    sql = sql.replace("connector = 'python'", "connector = 'parquet', path = 'out'")
    (pipeline / "query.sql").write_text(sql)
    engine = made(pipeline, sql, clock=FakeClock(START))
    for trigger in (1, 2, 4):  # the third was missed
        feed.deliver(slow_unit.crowd(trigger))
        engine.cut(trigger)
    engine.close()
    now = START + 4 * 15 * MINUTE
    whole = copied(pipeline, "whole")
    assert worker.run(whole, now=now) == 0
    expected, kinds = outputs(whole), steps(whole)
    assert len(expected) == 4
    feed.deliver(slow_unit.crowd(5))
    assert "remove cuts" in kinds
    for kill_at in range(1, len(kinds) + 1) if ALL else _sample(kinds):
        folder = copied(pipeline, "killed")
        assert worker.run(folder, now=now, kill_at=kill_at) == KILLED
        assert worker.run(folder, now=now) == 0
        assert outputs(folder) == expected, f"killed before step {kill_at}, {kinds[kill_at - 1]}"


def test_killed_while_it_is_created(worker: Worker, tmp_path: Path) -> None:
    """A pipeline that is half there is created again; one that is there keeps its instance."""
    empty = begun(tmp_path, 1)
    shutil.rmtree(empty / "state")
    shutil.rmtree(empty / "out")
    whole = copied(empty, "whole")
    assert worker.run(whole) == 0
    kinds = steps(whole)
    files = [kind.split(" ")[1] for kind in kinds[:8]]
    assert files == ["manifest.json"] * 4 + ["pipeline.json"] * 4
    for kill_at in range(1, kinds.index("write intent.json") + 2):
        folder = copied(empty, "killed")
        assert worker.run(folder, kill_at=kill_at) == KILLED
        described = folder / "state" / "t" / "pipeline.json"
        before = described.read_bytes() if described.exists() else None
        assert worker.run(folder) == 0
        assert before in (None, described.read_bytes())
        assert (before is None) == (kill_at <= 7)
        assert len(outputs(folder)) == 6


def _sample(kinds: list[str]) -> list[int]:
    """Each kind of step once, at some trigger."""
    dice = random.Random(5)
    places: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds, 1):
        places.setdefault(kind, []).append(number)
    return sorted(dice.choice(numbers) for numbers in places.values())


def test_killed_at_random_moments(worker: Worker, tmp_path: Path) -> None:
    """Run, kill, run on, kill again; where a run has come to its end its output is compared."""
    kills = 400 if ALL else 40
    pipeline = begun(tmp_path, 4)
    whole = copied(pipeline, "whole")
    assert worker.run(whole) == 0  # the first loads caches
    whole = copied(pipeline, "whole")
    began = time.monotonic()
    assert worker.run(whole) == 0
    seconds = time.monotonic() - began
    expected = outputs(whole)
    dice = random.Random(11)
    killed = finished = 0
    while killed < kills or not finished:
        folder = copied(pipeline, "killed")
        for begun_before in range(12):
            if worker.kill_after(dice.uniform(0.1, 0.9) * seconds, folder) == 0:
                if begun_before == 0:  # the run that was timed was a slow one
                    seconds *= 0.8
                break
            killed += 1
        assert worker.run(folder) == 0
        finished += 1
        assert outputs(folder) == expected
    assert finished > 2
