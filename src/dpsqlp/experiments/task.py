"""The task of a run: a stream of files, and a query over it with the options of a preset.

Presets:

- `paper`: the paper's mechanism and its calibration (`accounting.paper_calibration`), which carries
  no promise; C = c = Cs.
- `tree`: the paper's mechanism, policy and caps under this package's accounting.
- `default`: epsilon, delta and one number, the norm; every other option is left out.
- `best`: the same norm, with options tuned for the synthetic day. Two votes per unit are enough to
  find the keys, since selected keys take none, and what units do not spend goes to the closing.
  Before the closing, thresholds are lowest at the end of the day: `late`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from glob import escape
from math import floor, sqrt
from pathlib import Path
from typing import Any, Literal

import duckdb

from dpsqlp.accounting import ReleasePolicy, Spending, paper_calibration
from dpsqlp.errors import SourceError
from dpsqlp.experiments.data import DAY_US, START_US
from dpsqlp.plan import Plan
from dpsqlp.sql import compile_script, make_plan
from dpsqlp.sql.query import MechanismName, Query
from dpsqlp.sql.quoting import quote_text

PresetName = Literal["paper", "tree", "default", "best"]
PRESETS: tuple[PresetName, ...] = ("paper", "tree", "default", "best")
CONTRIBUTIONS = 32  # [C] of `paper` and `tree`: the paper's
NORM = 8.0  # of `default` and `best`
SINK = "counts"


@dataclass(frozen=True, slots=True)
class Stream:
    """Parquet files of user_id, key and ts, with the public span of time of their replay."""

    files: str  # a pattern
    records: int
    start_us: int = START_US
    span_us: int = DAY_US
    user_type: str = "BIGINT"
    key_type: str = "BIGINT"

    @property
    def rows(self) -> str:
        """The records with a unit, as a DuckDB relation."""
        files = f"read_parquet({quote_text(self.files)})"
        return f"(SELECT user_id, key, ts::TIMESTAMP AS ts FROM {files} WHERE user_id IS NOT NULL)"


@dataclass(frozen=True, slots=True)
class Options:
    """The privacy options of a run. Those that are None are left out of its SQL."""

    epsilon: float
    delta: float
    norm: float | None = None
    records: int | None = None  # [C]
    records_per_key: int | None = None  # [c]
    selections: int | None = None  # [Cs]
    selection_share: float | None = None
    selection_spending: Spending | None = None
    closing: bool | None = None
    mechanism: MechanismName | None = None
    release: ReleasePolicy | None = None
    minimum: int = 0  # [mu]
    unit: str = "user_id"
    counts: bool = True  # else keys only
    published: bool = False  # with the paper's calibration


def preset(
    name: PresetName,
    epsilon: float,
    delta: float,
    *,
    contributions: int = CONTRIBUTIONS,
    norm: float = NORM,
) -> Options:
    """The options of a preset: at C for `paper` and `tree`, at the norm for the others."""
    if name == "default":
        return Options(epsilon, delta, norm)
    if name == "best":
        selections = min(2, floor(norm * norm))
        return Options(
            epsilon,
            delta,
            norm,
            selections=selections,
            selection_share=0.45,
            selection_spending="late",
        )
    return Options(
        epsilon,
        delta,
        records=contributions,
        records_per_key=contributions,
        selections=contributions,
        mechanism="tree",
        release="threshold",
        published=name == "paper",
    )


def script(stream: Stream, options: Options, triggers: int, output: Path) -> str:
    """The SQL of a run: the whole stream is one window, with triggers at equal intervals."""
    interval = -(-stream.span_us // triggers)
    start = datetime(1970, 1, 1) + timedelta(microseconds=stream.start_us)
    return f"""
CREATE SOURCE stream (user_id {stream.user_type}, key {stream.key_type}, ts TIMESTAMP)
  WITH (connector = 'files', path = {quote_text(stream.files)});
CREATE SINK {SINK} WITH (connector = 'parquet', path = {quote_text(str(output))}) AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = {options.epsilon!r}, delta = {options.delta!r},
           privacy_unit_column = {options.unit}, timestamp_column = ts{_given(options)})
  key{", COUNT(*) AS n" if options.counts else ""}
FROM stream GROUP BY key
EMIT EVERY INTERVAL {interval} MICROSECOND
  ON EVENT TIME FROM TIMESTAMP '{start.isoformat(" ")}' FOR {triggers} TRIGGERS;
"""


def _given(options: Options) -> str:
    """The SQL options that are given, each after a comma."""
    values = {
        "max_contribution_norm": options.norm,
        "max_rows_contributed": options.records,
        "max_rows_per_group": options.records_per_key,
        "max_selections_contributed": options.selections,
        "min_privacy_units_per_group": options.minimum + 1 if options.minimum else None,
        "group_selection_share": options.selection_share,
        "group_selection_spending": options.selection_spending,
        "group_selection_closing": options.closing,
        "mechanism": options.mechanism,
        "release": options.release,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return "".join(f", {name} = {_literal(value)}" for name, value in given.items())


def _literal(value: float | str) -> str:
    return quote_text(value) if isinstance(value, str) else str(value).lower()


def query_of(stream: Stream, options: Options, triggers: int) -> Query:
    """The query of a run, validated."""
    [sink] = compile_script(script(stream, options, triggers, Path("output"))).sinks
    return sink.query


def describe(stream: Stream, options: Options, triggers: int) -> dict[str, Any]:
    """The settings that a run has, given or by default, by their mathematical names."""
    query = query_of(stream, options, triggers)
    ours = not options.published
    return {
        "mechanism": query.mechanism,
        "release": query.release,
        "norm": sqrt(query.caps.squared_norm),
        "C": query.caps.records,
        "c": query.caps.records_per_key,
        "Cs": query.caps.selections,
        "selection_share": query.selection_share if ours else None,
        "selection_spending": query.selection_spending if ours else None,
        "closing": _closing(query),
    }


def _closing(query: Query) -> str | None:
    if query.release == "threshold":
        return None
    return "on" if query.closing else "off"


def plan_of(query: Query, options: Options) -> Plan:
    """The plan of a run's query, with the paper's calibration if the options ask for it."""
    plan = make_plan(query)
    if not options.published:
        return plan
    calibration = paper_calibration(
        epsilon=query.epsilon,
        delta=query.delta,
        records=query.caps.records,
        mechanism=plan.mechanism,
        processes=query.processes,
        minimum=query.minimum,
    )
    return replace(plan, calibration=calibration)


def read_stream(file: Path) -> Stream:
    """A file of user_id, key and ts. Taking its span from the data is only for experiments."""
    rows = f"read_parquet({quote_text(escape(str(file)))})"
    with duckdb.connect() as database:
        try:
            columns = database.sql(f"DESCRIBE FROM {rows}").fetchall()
            found = database.sql(
                "SELECT count(*), epoch_us(min(ts)::TIMESTAMP), epoch_us(max(ts)::TIMESTAMP)"
                f" FROM (SELECT user_id, key, ts FROM {rows}) WHERE user_id IS NOT NULL"
            ).fetchall()
        except duckdb.Error as error:
            raise SourceError(
                f"{file} cannot be used: {error}. Give a Parquet file with the columns user_id, key"
                " and ts."
            ) from None
    types = {name: kind for name, kind, *_ in columns}
    [(records, first, last)] = found
    if first is None:
        raise SourceError(f"{file} has no record with a user_id and a ts. Give another file.")
    return Stream(
        files=escape(str(file.resolve())),
        records=records,
        start_us=first,
        span_us=last - first + 1,
        user_type=types["user_id"],
        key_type=types["key"],
    )
