"""The task of a run: a stream of files, and a query over it with the options of a preset.

Presets:

- `paper`: the paper's mechanism and its calibration (`accounting.paper_calibration`), which carries
  no promise; C = c = Cs.
- `tree`: the paper's mechanism, policy and caps under this package's accounting.
- `best`: options tuned for the synthetic day. A unit rarely has a key twice and almost never three
  times, so c = 2 loses almost nothing and divides the noise of counts by sqrt(C / 2). Two votes per
  unit are enough to find the keys, since selected keys take none. Errors are measured at the end of
  the day, so thresholds are lowest there: `late`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from glob import escape
from pathlib import Path
from typing import Any, Literal

import duckdb

from dpsqlp.accounting import ContributionBounds, ReleasePolicy, Spending, paper_calibration
from dpsqlp.errors import SourceError
from dpsqlp.experiments.data import DAY_US, START_US
from dpsqlp.plan import Plan
from dpsqlp.sql import make_plan
from dpsqlp.sql.query import MechanismName, Query
from dpsqlp.sql.quoting import quote_text

PresetName = Literal["paper", "tree", "best"]
PRESETS: tuple[PresetName, ...] = ("paper", "tree", "best")
CONTRIBUTIONS = 32
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
    """The privacy options of a run."""

    epsilon: float
    delta: float
    caps: ContributionBounds
    mechanism: MechanismName = "blt"
    release: ReleasePolicy = "every_trigger"
    selection_share: float = 0.5
    selection_spending: Spending = "even"
    minimum: int = 0  # [mu]
    unit: str = "user_id"
    counts: bool = True  # else keys only
    published: bool = False  # with the paper's calibration

    def describe(self) -> dict[str, Any]:
        """The settings of a result, by their mathematical names."""
        return {
            "mechanism": self.mechanism,
            "release": self.release,
            "C": self.caps.records,
            "c": self.caps.records_per_key,
            "Cs": self.caps.selections,
            "selection_share": None if self.published else self.selection_share,
            "selection_spending": None if self.published else self.selection_spending,
        }


def preset(name: PresetName, epsilon: float, delta: float, contributions: int) -> Options:
    """The options of a preset at [C] contributions."""
    if name == "best":
        few = min(2, contributions)
        caps = ContributionBounds(contributions, few, few)
        return Options(epsilon, delta, caps, selection_share=0.45, selection_spending="late")
    caps = ContributionBounds(contributions, contributions, contributions)
    return Options(
        epsilon, delta, caps, mechanism="tree", release="threshold", published=name == "paper"
    )


def script(stream: Stream, options: Options, triggers: int, output: Path) -> str:
    """The SQL of a run: the whole stream is one window, with triggers at equal intervals."""
    interval = -(-stream.span_us // triggers)
    start = datetime(1970, 1, 1) + timedelta(microseconds=stream.start_us)
    caps = options.caps
    return f"""
CREATE SOURCE stream (user_id {stream.user_type}, key {stream.key_type}, ts TIMESTAMP)
  WITH (connector = 'files', path = {quote_text(stream.files)});
CREATE SINK {SINK} WITH (connector = 'parquet', path = {quote_text(str(output))}) AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = {options.epsilon!r}, delta = {options.delta!r},
           privacy_unit_column = {options.unit}, timestamp_column = ts,
           max_rows_contributed = {caps.records}, max_rows_per_group = {caps.records_per_key},
           max_selections_contributed = {caps.selections},
           min_privacy_units_per_group = {options.minimum + 1},
           group_selection_share = {options.selection_share!r},
           group_selection_spending = '{options.selection_spending}',
           mechanism = '{options.mechanism}', release = '{options.release}')
  key{", COUNT(*) AS n" if options.counts else ""}
FROM stream GROUP BY key
EMIT EVERY INTERVAL {interval} MICROSECOND
  ON EVENT TIME FROM TIMESTAMP '{start.isoformat(" ")}' FOR {triggers} TRIGGERS;
"""


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
