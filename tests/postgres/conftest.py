"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postgres.cluster import Cluster
from support.components import postgres_programs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A server."""
    programs = postgres_programs()
    assert programs is not None
    made = Cluster(programs)
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
def server(cluster: Cluster) -> Cluster:
    """The server, running and without tables of other tests."""
    cluster.start()
    cluster.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return cluster
