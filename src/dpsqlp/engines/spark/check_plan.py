"""Checks of a user's streaming DataFrame, before it is started.

Privacy contract: a batch is everything that has arrived. Limits on its size and watermarks would
let data decide about time. Operators that look at several records, which Python functions may do
too, would let one unit change another's records. All of them are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpsqlp.engines.spark.session import WHOLE_FILES
from dpsqlp.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BY_ROW = (
    *("StreamingRelation", "StreamingRelationV2", "Project", "Filter", "SubqueryAlias", "Union"),
    "View",
    *("Read", "DataSource", "WithColumns", "WithColumnsRenamed", "Drop", "ToDF"),  # Connect's names
)
_LIMITS = re.compile(
    r"(max|min)[\w-]*per|per-?(micro-?)?batch|maxtriggerdelay|maxcachedfiles|maxfileage|latestfirst"
)
_BY_ROWS = re.compile(
    "kafka|rate|socket|csv|json|text|xml|avro", re.I
)  # formats without statistics
_CHANGING = (
    *("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle"),
    *("monotonically_increasing_id", "spark_partition_id", "reflect", "java_method"),
)
_CALLED = r"\([^()]*#\d[^()]*\)+#\d"  # Python functions, in Spark's text of a plan
_NESTED = r"-subquery#\d|\b(exists|list)#\d+ \["  # subqueries there


def check_plan(frame: DataFrame) -> None:
    """Refuse a frame whose batches depend on counts, or whose records depend on each other."""
    if not frame.isStreaming:
        raise SourceError(
            "The DataFrame is not a stream. Give one that spark.readStream made; to replay finished"
            " history, run a query over files with EMIT ... ON EVENT TIME."
        )
    nodes = list(_nodes(frame))
    for name, options in nodes:
        if name not in _ROW_BY_ROW:
            raise SourceError(
                f"The DataFrame has the operation {name}, which may let one record decide about"
                " another. Give the stream as it is read, with selected columns and filters at"
                " most, and write the rest as SQL in the query."
            )
        limits = [option for option in options if _LIMITS.search(option.lower())]
        if limits:
            raise SourceError(
                f"The stream is read with {limits[0]}: the number of records would decide about"
                " time. Leave the option out. A trigger reads everything that has arrived."
            )
        said = {option.lower(): str(value).lower() for option, value in options.items()}
        if said.get("failondataloss") == "false":
            raise SourceError(
                "The stream is read with failOnDataLoss = false: records that are deleted before"
                " they are read would be skipped, and which ones depends on how many there were."
                " Leave the option out."
            )
        if said.get("mode") == "failfast":
            raise SourceError(
                "The stream is read with mode = FAILFAST: one malformed record would stop the query"
                " for good. Leave the option out; the record then has nulls."
            )
    conf = frame.sparkSession.conf
    pushed = [name for name in WHOLE_FILES if conf.get(name) != WHOLE_FILES[name]]
    formats = [options["format"] for _, options in nodes if "format" in options]
    skipping = any(_BY_ROWS.search(kind) is None for kind in formats)
    if pushed and skipping and any(name == "Filter" for name, _ in nodes):
        raise SourceError(
            "The DataFrame filters files, and Spark would skip rows by a file's statistics, which"
            " come from other records. Write the filter as WHERE in the query, or set"
            f" {' and '.join(pushed)} to false."
        )


def _nodes(frame: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The operations of a frame's plan, with the options and the format of its readers."""
    connect = not hasattr(frame, "_jdf")
    plans = [frame._plan if connect else frame._jdf.queryExecution().analyzed()]
    if connect:  # only the server knows the expressions
        text = frame._explain_string(extended=True)
        changing = any(re.search(rf"\b{name}\(", text) for name in _CHANGING)
        python = "python_udf" in str(plans[0].to_proto(frame.sparkSession.client))
        python = python or bool(re.search(_CALLED, text))
        nested = bool(re.search(_NESTED, text))
    else:
        changing = not plans[0].deterministic()
        pattern = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        python = plans[0].containsPattern(pattern.PYTHON_UDF())
        nested = plans[0].containsPattern(pattern.PLAN_EXPRESSION())
    if changing:
        yield "that is not deterministic", {}
    if python:
        yield "of a Python function", {}
    if nested:
        yield "of a subquery", {}
    while plans:
        plan = plans.pop()
        if connect:
            options = dict(getattr(plan, "_options", None) or {})
            if hasattr(plan, "_format"):
                options["format"] = plan._format or "parquet"
            yield type(plan).__name__, options
            plans += [part for part in vars(plan).values() if hasattr(type(part), "to_proto")]
            continue
        name = plan.nodeName()
        options = {}
        if name == "StreamingRelation":
            java = frame.sparkSession._jvm.scala.jdk.javaapi.CollectionConverters
            options = dict(java.asJava(plan.dataSource().options()))
            options["format"] = plan.dataSource().className()
        elif name == "StreamingRelationV2":
            options = dict(plan.extraOptions().asCaseSensitiveMap())
        yield name, options
        children = plan.children()
        plans += [children.apply(place) for place in range(children.size())]
