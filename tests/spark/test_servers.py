"""The same releases on a standalone cluster, through Spark Connect, and with other shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpsqlp.entropy.secret import Secret
from running import SECRET
from spark.pairs import ALL, begin, local_engine, published, run, spark_engine, step, tables
from spark.queries import CASES
from spark.servers import Driver, cluster, connect_server

pytestmark = pytest.mark.xdist_group("spark")
THREE = ("sums", "late, threshold", "public table")


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.fixture(scope="module")
def on_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        url, _ = stack.enter_context(cluster(folder))
        yield Driver(stack, folder / "driver.log", master=url)


@pytest.fixture(scope="module")
def on_connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("connect")
    with ExitStack() as stack:
        url = stack.enter_context(connect_server(folder))
        yield Driver(stack, folder / "driver.log", remote=url)


def equal(name: str, folder: Path, shards: int, other: Any) -> None:
    """Releases do not depend on where the shards run, nor on how many there are."""
    case = CASES[name]
    begin(folder, case.sql, local=2, spark=shards)
    local = local_engine(folder, "local")
    run(case, folder, partial(step, local), other(folder, "spark"))
    local.close()
    expected = published(folder, "local")
    assert published(folder, "spark") == expected
    assert sum(release.num_rows for release in tables(expected)) > 4


@pytest.mark.parametrize("name", THREE if ALL else THREE[:1])
@pytest.mark.parametrize("shards", [1, 4, 16] if ALL else [4])
def test_a_cluster_equals_local(name: str, shards: int, on_cluster: Driver, tmp_path: Path) -> None:
    equal(name, tmp_path, shards, lambda *place: partial(on_cluster.step, *place))


@pytest.mark.parametrize("name", THREE if ALL else THREE[2:])
@pytest.mark.parametrize("shards", [1, 4, 16] if ALL else [4])
def test_connect_equals_local(name: str, shards: int, on_connect: Driver, tmp_path: Path) -> None:
    equal(name, tmp_path, shards, lambda *place: partial(on_connect.step, *place))


@pytest.mark.parametrize(
    ("name", "shards"),
    [(name, shards) for name in CASES for shards in (1, 16)] if ALL else [(THREE[1], 16)],
)
def test_shards_change_nothing(name: str, shards: int, spark: Any, tmp_path: Path) -> None:
    with ExitStack() as stack:

        def other(folder: Path, name: str) -> Any:
            engine = spark_engine(spark, folder, name)
            stack.callback(engine.close)
            return partial(step, engine)

        equal(name, tmp_path, shards, other)
