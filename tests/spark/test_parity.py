"""Spark's releases are the local engine's, bit for bit, at every trigger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsqlp.engines.spark.engine import SparkEngine
from dpsqlp.entropy.secret import Secret
from spark.parity import (
    ALL,
    Kept,
    begin,
    equal,
    local_engine,
    published,
    run,
    spark_engine,
    step,
    tables,
)
from spark.queries import CASES, ENDING, LATE, QUARTER, SPARED, THREE, YEAR, Case, records
from support.fake_clock import START
from support.pipelines import SECRET


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


def alike(case: Case, spark: Any, folder: Path) -> None:
    """Every release and every digest of the bounded input."""
    begin(folder, case.sql, local=4, spark=4)
    local, other = local_engine(folder, "local"), spark_engine(spark, folder, "spark")

    def compared(now: int, triggers: int | None) -> None:
        for engine in (local, other):
            step(engine, now, triggers)
        assert other.journal.manifest.input_digest == local.journal.manifest.input_digest

    run(case, folder, compared)
    for engine in (local, other):
        engine.close()
    expected = published(folder, "local")
    assert published(folder, "spark") == expected
    assert sum(release.num_rows for release in tables(expected)) >= 3
    told = [Kept(folder / f"{name}-out").diagnostics().releases() for name in ("local", "spark")]
    assert told[0] == told[1]
    assert bool(told[0]) == ("diagnostics_share" in case.sql)


@pytest.mark.parametrize("name", CASES if ALL else [name for name in CASES if name not in SPARED])
def test_spark_equals_local(name: str, spark: Any, tmp_path: Path) -> None:
    """Whatever the query is, and however hard its records are to read."""
    alike(CASES[name], spark, tmp_path)


@dataclass(frozen=True)
class Silent(Case):
    """Records at the first and the fifth of six triggers, and one of a year ahead at the third."""

    group: str = "k, TUMBLE(ts, INTERVAL 1 HOUR)"
    triggers: int = 6

    def files(self, seed: int = 1) -> list[pa.Table]:
        some = [
            records(START + number * QUARTER, START + (number + 1) * QUARTER, seed + number)
            for number in (0, 4)
        ]
        ahead = records(START + YEAR, START + YEAR + 1, seed, 200).slice(3, 1)
        none = ahead.slice(0, 0)
        return [some[0], none, ahead, none, some[1], none]


@pytest.mark.parametrize("kind", ["by the clock", "replayed"] if ALL else ["by the clock"])
def test_silence_and_a_record_of_next_year(kind: str, spark: Any, tmp_path: Path) -> None:
    """Triggers without records run as well, and nobody's window closes for one record's time."""
    silent = Silent(emit=LATE, arrive=True) if kind == "by the clock" else Silent()
    alike(silent, spark, tmp_path)
    released = [rows.num_rows for rows in tables(published(tmp_path, "spark"))]
    assert len(released) == (6 if silent.arrive else 8)
    assert all(released)


def test_a_trigger_that_spark_knows_to_be_empty_runs(spark: Any, tmp_path: Path) -> None:
    """Spark leaves out the tasks of a plan in which it sees that there are no rows. The second
    trigger has a closing.
    """
    case = Case(rows="FROM s WHERE 1 = 2", options=ENDING, triggers=2)
    begin(tmp_path, case.sql, spark=4)
    engine = spark_engine(spark, tmp_path, "spark")
    run(case, tmp_path, partial(step, engine))
    engine.close()
    assert [release.num_rows for release in tables(published(tmp_path, "spark"))] == [0, 0]


MOVED = ("late, threshold", "closing, late", "late")


@pytest.mark.parametrize("name", MOVED if ALL else MOVED[:2])
def test_a_pipeline_moves_to_spark_and_back(name: str, spark: Any, tmp_path: Path) -> None:
    """One state, carried on by either engine."""
    case = replace(CASES[name], triggers=6, missed=())
    begin(tmp_path, case.sql, local=4, moved=4)
    turns = iter(["local", "spark", "spark", "local", "local", "spark"])

    def moved(now: int, triggers: int | None) -> None:
        on_spark = next(turns) == "spark"
        engine = (
            spark_engine(spark, tmp_path, "moved") if on_spark else local_engine(tmp_path, "moved")
        )
        step(engine, now, triggers)
        engine.close()

    local = local_engine(tmp_path, "local")
    run(case, tmp_path, partial(step, local), moved)
    local.close()
    assert published(tmp_path, "moved") == published(tmp_path, "local")
    assert len(published(tmp_path, "moved")) == 6


@pytest.mark.parametrize(
    ("name", "shards"),
    [(name, shards) for name in CASES for shards in (1, 16)]
    if ALL
    else [(THREE[1], 16), ("closing, late", 3)],
)
def test_shards_change_nothing(name: str, shards: int, spark: Any, tmp_path: Path) -> None:
    """One shard, three or sixteen, on any engine."""
    engines: list[SparkEngine] = []

    def other(now: int, triggers: int | None) -> None:
        if not engines:
            engines.append(spark_engine(spark, tmp_path, "spark"))
        step(engines[0], now, triggers)

    equal(CASES[name], tmp_path, shards, other)
    engines[0].close()
