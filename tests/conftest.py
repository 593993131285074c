"""Fixtures that several folders use."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_KAFKA = Path(__file__).parents[1] / ".services" / "kafka" / "spark"
_GROUPS = {  # what shares a server is run by one worker
    "spark": re.compile(r"tests/spark/(?!test_tasks)|/test_spark"),
    "kafka": re.compile(r"tests/kafka/"),
    "postgres": re.compile(r"tests/postgres/"),
    "browser": re.compile(r"tests/dashboard/test_browser"),
    "site": re.compile(r"tests/docs/"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all tests of a group, and has its server. A mark xdist_group does it no more:
    with this pytest, xdist cannot write it into the names of tests."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Grouped(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            names = [name for name, of_group in _GROUPS.items() if of_group.search(nodeid)]
            return names[0] if names else str(super()._split_scope(nodeid))

    return Grouped(config, log)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Spark in this process, as the Spark engine sets it up."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # its Python workers have the tests
        session = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "OFF")
            .config("spark.driver.memory", "4g")
            # A session of a thousand queries: by default Spark keeps the plans of all of them.
            .config("spark.sql.ui.retainedExecutions", "1")
            .config("spark.ui.retainedJobs", "1")
            .config("spark.ui.retainedStages", "1")
            .config("spark.ui.retainedTasks", "1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.ansi.enabled", "true")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.jars", ",".join(map(str, sorted(_KAFKA.glob("*.jar")))))
            .getOrCreate()
        )
    yield session
    session.stop()
