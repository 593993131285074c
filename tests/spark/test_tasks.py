"""What runs on executors, driven without Spark: orders, retries, workers that come and go."""

from __future__ import annotations

import pickle
import random
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from dpsqlp import core
from dpsqlp.engines.clock import Clock
from dpsqlp.engines.spark import tasks
from dpsqlp.engines.spark.files import SparkFiles
from dpsqlp.engines.spark.tasks import AdvanceTask, BoundTask, CloseTask, LayTask
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SecretError, StateError
from dpsqlp.sql import compile_script
from dpsqlp.stages.advance import release_also
from dpsqlp.state import shards, storage
from dpsqlp.state.journal import Journal, secret_check
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.shards import Held, Shard, Shards, TableLog
from spark.fake_spark import Batches, Executors, FramesEngine, frames_engine
from spark.parity import ALL, begin, local_engine, published, run, step, tables
from spark.queries import CASES, QUARTER, Case, records
from state.sealed_storages import committed
from support import slow_unit
from support.fake_clock import START
from support.pipelines import SECRET, Collected

pytestmark = pytest.mark.slow

LONG = "k, TUMBLE(ts, INTERVAL 3 HOURS)"
KINDS = {
    "every trigger": replace(CASES["sums"], group=LONG, triggers=12),
    "every trigger, blt": replace(CASES["blt"], group=LONG, triggers=12),
    "few votes": CASES["few votes"],
    "threshold": replace(CASES["threshold"], group=LONG, triggers=12),
    "late": replace(CASES["late, threshold"], triggers=12),
    "periods": replace(CASES["late, periods, missed"], triggers=9),
    "public keys": replace(CASES["public keys"], group=LONG, triggers=8),
    "closing": replace(CASES["closing"], triggers=6),
    "closing, late": CASES["closing, late"],
    "closing, once": CASES["closing, once"],
}
CLOSING = ("closing", "closing, late", "closing, once")


def kinds(*quick: str) -> Any:
    """These, or all of them."""
    return pytest.mark.parametrize("kind", KINDS if ALL else quick)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same instance everywhere; workers are the test's; snapshots come now and then."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))
    monkeypatch.setattr(tasks, "_WORKERS", {})
    monkeypatch.setattr(tasks, "_partition", None)
    monkeypatch.setattr(shards, "_SNAPSHOT_FILES", 4)
    monkeypatch.setattr(storage, "_fsync", lambda path: None)


def manifest(folder: Path, name: str) -> Any:
    """What is committed: the files of every shard with their digests, and the release's."""
    return committed(folder / name, SECRET.key)


def files(folder: Path) -> set[str]:
    """The files of tables and releases that are there."""
    kinds = ("units", "keys", "selected", "releases")
    paths = [path for kind in kinds for path in (folder / kind).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix() for path in paths}


def equal(case: Case, folder: Path, executors: Executors) -> None:
    """Tasks on these executors leave the same files as on one worker in one order, trigger by
    trigger, and no others, and release what the local engine does."""
    begin(folder, case.sql, local=4, plain=4, other=4)
    local = local_engine(folder, "local")
    engines = {
        "plain": frames_engine(folder, "plain", Executors()),
        "other": frames_engine(folder, "other", executors),
    }

    def compared(now: int, triggers: int | None) -> None:
        while not local.finished and triggers != 0:
            for engine in (local, *engines.values()):
                step(engine, now, 1)
            triggers = None if triggers is None else triggers - 1
            assert manifest(folder, "other") == manifest(folder, "plain")
            assert files(folder / "other") == manifest(folder, "other").files()

    run(case, folder, compared)
    for engine in (local, *engines.values()):
        engine.close()
    assert published(folder, "other") == published(folder, "local")
    assert sum(release.num_rows for release in tables(published(folder, "local"))) > 10


@kinds("few votes", "late", "periods", *CLOSING)
def test_the_order_of_rows_changes_no_byte(kind: str, tmp_path: Path) -> None:
    """Rows and payloads in any order and any batches give the same files."""
    equal(KINDS[kind], tmp_path, Executors(dice=random.Random(1)))


def test_a_driver_that_starts_again_knows_what_was_selected(tmp_path: Path) -> None:
    """Which keys need no more votes is the driver's to keep."""
    case = KINDS["few votes"]
    begin(tmp_path, case.sql, local=4, other=4)
    local = local_engine(tmp_path, "local")

    def selected(name: str) -> dict[str, int]:
        logs = manifest(tmp_path, name).tables
        return {table: log.rows for table, log in logs.items() if table.startswith("selected/")}

    def compared(now: int, triggers: int | None) -> None:
        while not local.finished and triggers != 0:
            step(local, now, 1)
            engine = frames_engine(tmp_path, "other", Executors())
            step(engine, now, 1)
            engine.close()
            assert selected("other") == selected("local")
            triggers = None if triggers is None else triggers - 1

    run(case, tmp_path, compared)
    local.close()
    assert published(tmp_path, "other") == published(tmp_path, "local")


class Spied(Shards):
    """Counts the tables that were held, and had missed something."""

    behind = 0

    def load(self, name: str, log: TableLog, trigger: int, held: Held | None = None) -> Shard:
        if held is not None and held.log.files != log.files:
            Spied.behind += log.files[: len(held.log.files)] == held.log.files
        return super().load(name, log, trigger, held)


@kinds("every trigger", "threshold", "late", "public keys", "closing, late")
def test_a_worker_that_missed_triggers_catches_up(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards go from worker to worker; older tables and the deltas since are as good as files."""
    monkeypatch.setattr(shards, "_SNAPSHOT_FILES", 6)
    monkeypatch.setattr(tasks, "Shards", Spied)
    monkeypatch.setattr(Spied, "behind", 0)
    equal(KINDS[kind], tmp_path, Executors(workers=2, dice=random.Random(2)))
    assert Spied.behind > 5


class Retrying(Executors):
    """Every task is run again on the same worker: after it was done, or failed as it wrote."""

    def attempt(
        self, worker: dict[Any, Any], task: tasks.Task, shard: int, batches: Batches
    ) -> Batches:
        assert self.dice is not None
        if self.dice.random() < 0.5:
            once = super().attempt(worker, task, shard, batches)
            again = super().attempt(worker, task, shard, batches)
            assert content(once) == content(again)
            return again
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Shards, "save", _full)
            with suppress(StateError):  # a table that closes is not written
                super().attempt(worker, task, shard, batches)
        return super().attempt(worker, task, shard, batches)


def _full(*_: Any, **__: Any) -> TableLog:
    raise StateError("The disk is full.")


def content(batches: Batches) -> list[Any]:
    return [batch.to_pylist() for batch in batches]


@kinds("every trigger", "every trigger, blt", "late", "closing")
def test_a_retried_task_does_not_count_twice(kind: str, tmp_path: Path) -> None:
    """A table that has gone ahead of the manifest is not gone on from."""
    equal(KINDS[kind], tmp_path, Retrying(workers=2, dice=random.Random(3)))


class Twice(Executors):
    """Every task is done twice by the same worker, and the second one counts."""

    def attempt(
        self, worker: dict[Any, Any], task: tasks.Task, shard: int, batches: Batches
    ) -> Batches:
        super().attempt(worker, task, shard, batches)
        return super().attempt(worker, task, shard, batches)


@dataclass(frozen=True)
class Silent(Case):
    """All records come before the first trigger."""

    def files(self, seed: int = 1) -> list[pa.Table]:
        return [records(START, START + QUARTER, seed)]


def test_a_retried_task_without_records_goes_on_with_the_noise_once(tmp_path: Path) -> None:
    """Released keys move on in memory where no file says so."""
    equal(Silent(group=LONG, triggers=12), tmp_path, Twice())


class Anew(Executors):
    """Every task runs on a worker that has nothing in memory."""

    def attempt(
        self, worker: dict[Any, Any], task: tasks.Task, shard: int, batches: Batches
    ) -> Batches:
        return super().attempt({}, task, shard, batches)


@kinds(*CLOSING)
@pytest.mark.parametrize("executors", [Twice, Anew])
def test_a_closing_goes_on_from_the_tables_of_its_trigger(
    kind: str, executors: type[Executors], tmp_path: Path
) -> None:
    """Not from what an attempt has made of them since, nor from what was committed before."""
    equal(KINDS[kind], tmp_path, executors())


@kinds("closing, late")
def test_a_payload_is_not_too_large(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one shard sends another comes in several payloads."""
    monkeypatch.setattr(tasks, "_PAYLOAD_ROWS", 1)
    equal(KINDS[kind], tmp_path, Executors(dice=random.Random(4)))


@kinds(*CLOSING)
@pytest.mark.parametrize(
    ("owner", "broken"), [(Journal, "commit"), (SealedStorage, "delete")], ids=["before", "after"]
)
def test_a_driver_that_dies_about_a_commit_leaves_no_files(
    owner: type[Any], broken: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it, the same workers run the trigger again; after it, old files are still there."""
    case, executors = KINDS[kind], Executors()
    begin(tmp_path, case.sql, local=4, other=4)
    local = local_engine(tmp_path, "local")

    def compared(now: int, triggers: int | None) -> None:
        while not local.finished and triggers != 0:
            step(local, now, 1)
            with monkeypatch.context() as dying:
                dying.setattr(owner, broken, _full)
                with (
                    suppress(StateError),
                    closing(frames_engine(tmp_path, "other", executors)) as e,
                ):
                    step(e, now, 1)
            engine = frames_engine(tmp_path, "other", executors)
            if engine.next_trigger < local.next_trigger:
                step(engine, now, 1)
            engine.close()
            assert files(tmp_path / "other") == manifest(tmp_path, "other").files()
            triggers = None if triggers is None else triggers - 1

    run(case, tmp_path, compared)
    local.close()
    assert published(tmp_path, "other") == published(tmp_path, "local")


def test_closings_add_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of the cases here, so that they compare something."""
    found: list[int] = []

    def counted(*given: Any) -> Any:
        found[-1] += len(given[4])
        return release_also(*given)

    monkeypatch.setattr(core, "release_also", counted)
    for kind in CLOSING:
        found.append(0)
        begin(tmp_path / kind, KINDS[kind].sql, local=4)
        local = local_engine(tmp_path / kind, "local")
        run(KINDS[kind], tmp_path / kind, partial(step, local))
        local.close()
    assert all(found)


SHORT = replace(CASES["sums"], triggers=4)
ENDS = replace(CASES["closing"], triggers=4)  # windows end at the second and the fourth trigger


class Recorded(Executors):
    """Keeps what was run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[tasks.Task, int, Batches]] = []

    def run(self, task: tasks.Task, shard: int, batches: Batches) -> Batches:
        self.ran.append((task, shard, batches))
        return super().run(task, shard, batches)


def test_a_straggler_is_refused(tmp_path: Path) -> None:
    """A task of an earlier trigger, or one too early, does nothing; on old workers and new ones."""
    executors = Recorded()
    begin(tmp_path, ENDS.sql, state=4)
    engine = frames_engine(tmp_path, "state", executors)
    run(ENDS, tmp_path, lambda now, _: step(engine, now, 2))
    before = contents(tmp_path / "state")
    early = [
        (replace(task, trigger=task.trigger + 2, committed=task.committed + 2), shard, batches)
        for task, shard, batches in executors.ran
        if task.committed is not None
    ]
    assert {type(task) for task, *_ in early} == {BoundTask, AdvanceTask, LayTask, CloseTask}
    for task, shard, batches in [*executors.ran, *early]:
        for worker in (executors.workers[0], {}):
            with pytest.raises(StateError, match="came too late"):
                executors.attempt(worker, task, shard, batches)
    assert contents(tmp_path / "state") == before
    engine.close()


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_another_state_is_refused(tmp_path: Path) -> None:
    """A worker that sees another pipeline under the same path, or none."""
    begin(tmp_path, SHORT.sql, state=4)
    other = Secret(SECRET.key, bytes([255] * 16))
    args = (str(tmp_path / "secret"), other.instance.hex(), secret_check(other), 1, None)
    for state in ("state", "nowhere"):
        task = BoundTask(str(tmp_path / state), *args)
        with pytest.raises(StateError, match="is not the driver's"):
            Executors().attempt({}, task, 0, [])


def test_another_secret_is_refused(tmp_path: Path) -> None:
    """A worker that finds another secret than the driver: its noise and its units are others."""
    begin(tmp_path, SHORT.sql, state=4)
    (tmp_path / "secret").write_text("ab" * 32)
    instance, check = SECRET.instance.hex(), secret_check(SECRET)
    task = BoundTask(str(tmp_path / "state"), str(tmp_path / "secret"), instance, check, 1, None)
    with pytest.raises(SecretError, match="is not the driver's"):
        Executors().attempt({}, task, 0, [])


def refused(case: Case, folder: Path, executors: Executors, words: str) -> None:
    """A trigger that goes wrong commits and publishes nothing; run again, it is as it should be."""
    begin(folder, case.sql, local=4, state=4)
    local, engine = local_engine(folder, "local"), frames_engine(folder, "state", Executors())
    run(case, folder, partial(step, local), lambda now, _: step(engine, now, 3))
    before, engine.executors = manifest(folder, "state"), executors
    with pytest.raises(StateError, match=words):
        engine.step()
    assert manifest(folder, "state") == before
    assert len(published(folder, "state")) == 3
    with pytest.raises(StateError, match="did not finish"):
        engine.step()
    for each in (local, engine):
        each.close()
    again = frames_engine(folder, "state", Executors())
    step(again, 0, None)
    again.close()
    assert published(folder, "state") == published(folder, "local")


class Misrouted(Executors):
    """One unit's hash is another here than on Spark."""

    def home(self, unit: int, shards: int) -> int:
        return (unit + 1) % shards


def test_records_of_another_shard_are_refused(tmp_path: Path) -> None:
    """Their unit would be counted in two places."""
    refused(SHORT, tmp_path, Misrouted(), "gave shard . records of another")


class Losing(Executors):
    """A shard that did not run, or ran twice, as far as the driver can see."""

    def __init__(self, stage: type[tasks.Task], times: int) -> None:
        super().__init__()
        self.stage, self.times = stage, times

    def run(self, task: tasks.Task, shard: int, batches: Batches) -> Batches:
        times = self.times if shard == 2 and isinstance(task, self.stage) else 1
        return [batch for _ in range(times) for batch in Executors.run(self, task, shard, batches)]


@pytest.mark.parametrize(
    ("stage", "case"),
    [
        *((stage, SHORT) for stage in (BoundTask, AdvanceTask)),
        *((stage, ENDS) for stage in (BoundTask, AdvanceTask, LayTask, CloseTask)),
    ],
)
@pytest.mark.parametrize("times", [0, 2])
def test_missing_and_doubled_shards_are_refused(
    stage: type[tasks.Task], case: Case, times: int, tmp_path: Path
) -> None:
    """Each shard of every stage is heard of exactly once."""
    refused(case, tmp_path, Losing(stage, times), "did not run every shard")


@pytest.mark.parametrize("stage", [BoundTask, AdvanceTask, LayTask, CloseTask])
def test_a_task_does_not_carry_the_secret(stage: type[tasks.Task], tmp_path: Path) -> None:
    """It says where it is: neither pickled nor printed nor in its output is it to be found."""
    executors = Recorded()
    begin(tmp_path, ENDS.sql, state=4)
    engine = frames_engine(tmp_path, "state", executors)
    run(ENDS, tmp_path, lambda now, _: step(engine, now, 2))
    engine.close()
    ran = [item for item in executors.ran[-16:] if isinstance(item[0], stage)]
    assert len(ran) == 4
    for task, _, batches in ran:
        given = [batch.serialize().to_pybytes() for batch in batches]
        shipped = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
        for text in (pickle.dumps(task), shipped, repr(task).encode(), *given):
            assert SECRET.key not in text
            assert SECRET.key.hex().encode() not in text.lower()


class ParquetFiles(slow_unit.Feed):
    """Parquet files that appear in a folder, for the Spark engine without Spark."""

    clause = "connector = 'files', path = 'in/*.parquet', follow = true"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "in"
        self._folder.mkdir()

    def opened(self, folder: Path, sql: str, clock: Clock) -> Any:
        (sink,) = compile_script(sql, folder=str(folder)).sinks
        engine = FramesEngine(
            SimpleNamespace(),  # type: ignore[arg-type]
            sink.query,
            folder / "state",
            folder / "secret",
            SparkFiles(sink.query.source, None, folder),
            Collected(),
            clock=clock,
            shards=2,
        )
        engine.executors = Executors()
        return engine

    def deliver(self, rows: list[slow_unit.Row]) -> None:
        number = len(list(self._folder.iterdir()))
        path = self._folder / f".{number}"
        pq.write_table(pa.Table.from_pylist(rows), path)
        path.rename(self._folder / f"{number}.parquet")


@pytest.mark.parametrize("killed", [False, True])
def test_a_slow_unit_moves_nobody_on_spark(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver cuts its source at grid times, whatever a trigger takes."""
    made = slow_unit.script

    def plain(*given: Any) -> str:
        return made(*given).replace("LEVENSHTEIN(x, REVERSE(x)) >= 0", "x IS NOT NULL")

    monkeypatch.setattr(slow_unit, "script", plain)
    slow_unit.check_virtual(tmp_path, ParquetFiles, killed=killed)
