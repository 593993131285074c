"""Spark sessions with the settings that the engine needs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpsqlp.errors import DpsqlpError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A file's statistics leave out NaN and tell -0.0 from 0.0. If Spark skipped rows by them, one
# record would decide whether another is read.
WHOLE_FILES = {
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.orc.filterPushdown": "false",
}
# The row query and the reading of files depend on these. A cluster may have other defaults.
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # it may merge shards, and plans every stage again
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    **WHOLE_FILES,
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}


def start_session(master: str | None = None) -> SparkSession:
    """A session of SPARK_REMOTE, or with this master; on this machine if there is neither."""
    if importlib.util.find_spec("pyspark") is None:
        raise DpsqlpError("Spark is not installed. Run: pip install 'dpsqlp[spark]'")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    if master is None and os.environ.get("SPARK_REMOTE"):
        with redact_errors("connect to SPARK_REMOTE"):
            return SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).getOrCreate()
    _check_java()
    # Four attempts: without this number, Spark on one machine does not retry a task.
    master = master or "local[*,4]"
    handler = signal.getsignal(signal.SIGINT)
    with redact_errors(f"start with the master {master}"):
        session = SparkSession.builder.master(master).appName("dpsqlp").getOrCreate()
    signal.signal(signal.SIGINT, handler)  # Spark's handler would interrupt a trigger
    return session


@contextmanager
def redact_errors(what: str) -> Iterator[None]:
    """Replace the texts of Spark's errors, which may hold a record; keep those of dpsqlp's own."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j", "grpc"):
            raise
        ours = re.search(r"^dpsqlp\.errors\.\w+: (.+)$", str(error), re.M)
        if ours:
            raise SourceError(f"A Spark task failed: {ours[1]}") from None
        raise SourceError(
            f"Spark could not {what}: {type(error).__name__}. Nothing was released. See"
            " Spark's log, which may show records."
        ) from None


def new_session(spark: SparkSession) -> SparkSession:
    """A new session beside the user's, with its own settings and views."""
    session = spark.newSession()
    configure_session(session)
    return session


def configure_session(session: SparkSession) -> None:
    """Give a session the settings that the row query is written for."""
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"{java} is not there" if home else "there is none on the PATH"
        raise DpsqlpError(
            f"Spark needs Java 17 or 21, and {where}. Install one (Debian, Ubuntu: apt install"
            " openjdk-17-jre-headless), or set JAVA_HOME to where it is."
        )
