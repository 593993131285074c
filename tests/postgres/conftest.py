"""One server for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from postgres.cluster import Cluster, binaries


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A server; where there is none the tests are skipped, and say so."""
    programs = binaries()
    if programs is None:
        said = "PostgreSQL is not installed: `make services` gets it"
        if os.environ.get("CI") == "true":
            pytest.fail(said)
        pytest.skip(said)
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
