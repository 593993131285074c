"""Small scripts for the tests of sql/."""

from __future__ import annotations

from dpsqlp.sql import Query, compile_script

SOURCE = (
    "CREATE SOURCE s (unit TEXT, a INTEGER, b DOUBLE, c TEXT, ts TIMESTAMP, e BOOLEAN)"
    " WITH (connector = 'files', path = 'x');\n"
)
OPTIONS = (
    "epsilon = 1, delta = 1e-6, privacy_unit_column = unit, max_rows_contributed = 4,"
    " mechanism = 'tree'"
)


def sink(
    select: str = "c, COUNT(*) AS n",
    *,
    rows: str = "FROM s",
    group: str = "GROUP BY c, TUMBLE(ts, INTERVAL 1 DAY)",
    emit: str = "EMIT EVERY INTERVAL 1 HOUR",
    options: str = "",
    ctes: str = "",
    name: str = "t",
) -> str:
    clause = f"WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}{options})"
    return f"CREATE SINK {name} AS {ctes} SELECT {clause} {select} {rows} {group} {emit};\n"


def query(*args: str, **kwargs: str) -> Query:
    return compile_script(SOURCE + sink(*args, **kwargs)).sinks[0].query
