"""The same releases on a standalone cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from dpsqlp.entropy.secret import Secret
from spark.parity import ALL, equal
from spark.queries import CASES, THREE
from spark.servers import Driver, cluster
from support.pipelines import SECRET

pytestmark = pytest.mark.needs("java")


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        url, _ = stack.enter_context(cluster(folder))
        yield Driver(stack, folder / "driver.log", master=url)


@pytest.mark.parametrize("name", THREE if ALL else THREE[:1])
@pytest.mark.parametrize("shards", [1, 4, 16] if ALL else [4])
def test_a_cluster_equals_local(name: str, shards: int, driver: Driver, tmp_path: Path) -> None:
    """Two workers, which share the state's folder."""
    equal(CASES[name], tmp_path, shards, partial(driver.step, tmp_path, "spark"))
