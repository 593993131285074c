"""A broker for all tests of this folder, which one worker runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka.broker import Broker, Registry, running


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.close()
