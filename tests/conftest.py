"""Fixtures that several folders use; which tests run where; what is left out and why."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from support.components import COMPONENTS, FIXTURES, KAFKA, on_ci

_GROUPS = {  # what shares a server, or what is costly to make, has one worker; the longest first
    "spark": re.compile(r"tests/spark/(?!test_tasks)|/test_spark"),
    "kafka": re.compile(r"tests/kafka/"),
    "postgres": re.compile(r"tests/(postgres|ledgers)/"),
    "browser": re.compile(r"tests/dashboard/test_browser"),
    "site": re.compile(r"tests/docs/test_site"),
    "mechanisms": re.compile(r"tests/mechanisms/"),
}
_LEFT_OUT = "left out"


def _group(nodeid: str) -> str | None:
    return next((name for name, of_group in _GROUPS.items() if of_group.search(nodeid)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all tests of a group, and has its server. A mark xdist_group does it no more:
    with this pytest, xdist cannot write it into the names of tests."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Grouped(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid) or str(super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # the order is that of the collection
    return Grouped(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a component; with several workers, what takes longest begins first."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if needed := {FIXTURES[name] for name in fixtures if name in FIXTURES}:
            item.add_marker(pytest.mark.needs(*sorted(needed)))
    if "PYTEST_XDIST_WORKER" in os.environ:
        groups = [*_GROUPS, None]
        items.sort(
            key=lambda item: (
                groups.index(_group(item.nodeid)),
                item.get_closest_marker("slow") is None,
            )
        )


@cache
def _is_here(component: str) -> bool:
    return bool(COMPONENTS[component].found())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test whose component is missing; on CI it fails."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if not _is_here(name):
                component = COMPONENTS[name]
                text = f"{component.name} is not installed. Get {component.how}."
                if on_ci():
                    pytest.fail(text, pytrace=False)
                item.user_properties.append((_LEFT_OUT, name))
                pytest.skip(text)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """End with what was left out, and how to get it."""
    skipped = terminalreporter.stats.get("skipped", [])
    counts = Counter(
        name for report in skipped for reason, name in report.user_properties if reason == _LEFT_OUT
    )
    if counts:
        terminalreporter.section("Left out")
        for name, count in sorted(counts.items()):
            component = COMPONENTS[name]
            tests = "1 test" if count == 1 else f"{count} tests"
            terminalreporter.line(f"{tests} for want of {component.name}: get {component.how}.")
        terminalreporter.line("With CI=true these tests fail.")


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
            .config("spark.jars", ",".join(map(str, sorted((KAFKA / "spark").glob("*.jar")))))
            .getOrCreate()
        )
    yield session
    session.stop()
