"""Spark's releases are the local engine's, bit for bit, at every trigger."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpsqlp.entropy.secret import Secret
from running import SECRET
from spark.pairs import begin, local_engine, published, run, spark_engine, step, tables
from spark.queries import CASES

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.mark.parametrize("name", CASES)
def test_spark_equals_local(name: str, spark: Any, tmp_path: Path) -> None:
    """Every release and every digest of the bounded input."""
    case = CASES[name]
    begin(tmp_path, case.sql, local=4, spark=4)
    local, other = local_engine(tmp_path, "local"), spark_engine(spark, tmp_path, "spark")
    run(case, tmp_path, partial(step, local), partial(step, other))
    assert other.journal.manifest.input_digest == local.journal.manifest.input_digest
    for engine in (local, other):
        engine.close()
    expected = published(tmp_path, "local")
    print({t: r.num_rows for t, r in zip(expected, tables(expected))})
    assert published(tmp_path, "spark") == expected
    assert sum(release.num_rows for release in tables(expected)) > 4
