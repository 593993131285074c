"""The same releases through Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from dpsqlp.entropy.secret import Secret
from spark.parity import ALL, equal
from spark.queries import CASES, THREE
from spark.servers import Driver, connect_server
from support.pipelines import SECRET

pytestmark = pytest.mark.needs("java")


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("connect")
    with ExitStack() as stack:
        url = stack.enter_context(connect_server(folder))
        yield Driver(stack, folder / "driver.log", remote=url)


@pytest.mark.parametrize("name", THREE if ALL else THREE[2:])
@pytest.mark.parametrize("shards", [1, 4, 16] if ALL else [4])
def test_connect_equals_local(name: str, shards: int, driver: Driver, tmp_path: Path) -> None:
    """The driver has no JVM; the server has Spark."""
    equal(CASES[name], tmp_path, shards, partial(driver.step, tmp_path, "spark"))
