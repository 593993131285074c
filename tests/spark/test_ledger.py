"""A budget on Spark: the same account, entered by the driver before its first trigger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsqlp.accounting.ledger import Ledger
from dpsqlp.errors import BudgetError
from dpsqlp.ledgers.base import read_ledger, update_ledger
from dpsqlp.ledgers.file import LedgerFile
from spark.parity import begin, local_engine, published, spark_engine, step, write
from support.fake_clock import START
from support.pipelines import MINUTE, script, table

QUARTER = 15 * MINUTE


def budgeted(epsilon: int = 60) -> str:
    create = f"CREATE BUDGET people (epsilon = {epsilon}, delta = 0.01, per = INTERVAL 1 DAY)"
    return script(
        source="connector = 'files', path = 'in/*.parquet', follow = true",
        public=f"{create} WITH (path = 'people.ledger');",
        options=", budget = people",
    )


def known(folder: Path) -> Ledger:
    found = read_ledger(LedgerFile(folder / "people.ledger"))
    assert found is not None
    return found


def test_a_pipeline_is_entered_once_on_either_engine(spark: Any, tmp_path: Path) -> None:
    """Made on Spark, gone on with locally, retired while it runs on Spark."""
    begin(tmp_path, budgeted())
    write(tmp_path, 1, table([(f"u{n}", "k", 1.0, START) for n in range(500)]))
    engine = spark_engine(spark, tmp_path, "state")
    (entry,) = known(tmp_path).entries
    assert entry.instance == engine.journal.manifest.instance
    step(engine, START + QUARTER, 1)
    assert len(published(tmp_path, "state")) == 1
    engine.close()
    local = local_engine(tmp_path, "state", now=START + QUARTER)
    local.close()
    engine = spark_engine(spark, tmp_path, "state", START + QUARTER)
    assert known(tmp_path).entries == (entry,)
    retired = known(tmp_path).retire(entry.instance, START + QUARTER)
    update_ledger(LedgerFile(tmp_path / "people.ledger"), lambda _: retired)
    with pytest.raises(BudgetError, match="was retired from the ledger"):
        step(engine, START + 2 * QUARTER, 1)
    engine.close()
    assert len(published(tmp_path, "state")) == 1
    with pytest.raises(BudgetError, match="was retired from the ledger"):
        spark_engine(spark, tmp_path, "state", START + 2 * QUARTER)


def test_what_does_not_fit_has_no_state(spark: Any, tmp_path: Path) -> None:
    begin(tmp_path, budgeted(30))
    with pytest.raises(BudgetError, match=r"t does not fit the budget of \(30, 0.01\)"):
        spark_engine(spark, tmp_path, "state")
    assert not (tmp_path / "state" / "pipeline.json").exists()
    assert not (tmp_path / "people.ledger").exists()
