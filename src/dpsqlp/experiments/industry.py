"""The paper's two applications, on generated streams: the paper's own are not public.

Shopping: page views of products, a unit is a user's day with one record, T = 150. The paper gives
the selection's "equivalent threshold" at three epsilons. Here it is the plain threshold that would
have kept as many keys at the end of the day. The share of views retained depends on the stream.

Trends: search queries, a unit is a user and a query with one record, keys only, mu = 50, released
every 15 minutes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.experiments import subprocesses
from dpsqlp.experiments.data import write_day, write_visits
from dpsqlp.experiments.histogram import keys_by, released_keys, true_histogram
from dpsqlp.experiments.replay import ReportProgress, RunCost, replay, working_folder
from dpsqlp.experiments.result import Result
from dpsqlp.experiments.task import PRESETS, Options, Stream, plan_of, preset, query_of

SHOPPING_TRIGGERS, SHOPPING_DELTA = 150, 1e-9
SHOPPING_PAPER = {1.0: 120, 3.0: 43, 10.0: 16}  # equivalent threshold by epsilon
TRENDS_TRIGGERS, TRENDS_EPSILON, TRENDS_DELTA, TRENDS_MINIMUM = 96, 2.0, 1e-10, 50
_STAND_IN = "The stream is generated: the paper's is not public."


def run_shopping(units: int, keys: int, seed: int, threads: int, report: ReportProgress) -> Result:
    """Equivalent thresholds next to the paper's, from a day of views through the pipeline."""
    rows = []
    with working_folder() as folder:
        report("writing the day", 0, 1)
        records = write_visits(folder / "day", units, keys, SHOPPING_TRIGGERS, seed)
        stream = Stream(f"{folder}/day/*.parquet", records)
        truth = true_histogram(stream)
        for epsilon, published in SHOPPING_PAPER.items():
            for name in PRESETS:
                chosen = preset(name, epsilon, SHOPPING_DELTA, contributions=1, norm=1)
                options = replace(chosen, counts=False)
                on_progress = partial(report, f"{name}, epsilon {epsilon:g}")
                work = folder / f"{name}-{epsilon:g}"
                released = _run(stream, options, SHOPPING_TRIGGERS, threads, work, on_progress)[1]
                rows.append(
                    {
                        "epsilon": epsilon,
                        "preset": name,
                        "published": published,
                        "equivalent": equivalent_threshold(truth, released.num_rows),
                        "threshold": fmean(thresholds(stream, options, SHOPPING_TRIGGERS)),
                        "keys": released.num_rows,
                        "half_day_keys": keys_by(released, SHOPPING_TRIGGERS // 2),
                        **_retained(truth, released),
                    }
                )
    settings = {
        "units": units,
        "key_space": keys,
        "records": records,
        "triggers": SHOPPING_TRIGGERS,
        "delta": SHOPPING_DELTA,
        "seed": seed,
    }
    return Result("shopping", "shopping", settings, rows, [_STAND_IN])


def run_trends(units: int, keys: int, seed: int, threads: int, report: ReportProgress) -> Result:
    """The selected queries among those that more than 50 users made."""
    options = Options(
        TRENDS_EPSILON,
        TRENDS_DELTA,
        norm=1,
        minimum=TRENDS_MINIMUM,
        unit="(user_id, key)",
        counts=False,
    )
    with working_folder() as folder:
        report("writing the day", 0, 1)
        records = write_day(folder / "day", units, keys, TRENDS_TRIGGERS, seed)
        stream = Stream(f"{folder}/day/*.parquet", records)
        on_progress = partial(report, "trends")
        ran, released = _run(stream, options, TRENDS_TRIGGERS, threads, folder, on_progress)
        found = _found(stream, released)
        limits = thresholds(stream, options, TRENDS_TRIGGERS)
    settings: dict[str, Any] = {
        "units": units,
        "key_space": keys,
        "records": records,
        "triggers": TRENDS_TRIGGERS,
        "epsilon": TRENDS_EPSILON,
        "delta": TRENDS_DELTA,
        "minimum": TRENDS_MINIMUM,
        "seed": seed,
    }
    row = {
        "keys": released.num_rows,
        "half_day_keys": keys_by(released, TRENDS_TRIGGERS // 2),
        **found,
        "threshold": fmean(limits),
        "seconds": ran.seconds,
        "records_per_second": records / ran.seconds,
        "peak_memory_bytes": ran.peak_memory_bytes,
    }
    return Result("trends", "trends", settings | row, [row], [_STAND_IN])


def equivalent_threshold(truth: pa.Table, keys: int) -> int | None:
    """The largest true count that at least this many keys reach."""
    counts = np.sort(truth.column("n").to_numpy())[::-1]
    return int(counts[keys - 1]) if keys else None


def thresholds(stream: Stream, options: Options, triggers: int) -> tuple[int, ...]:
    """The selection's threshold at each trigger."""
    selection = plan_of(query_of(stream, options, triggers), options).calibration.selection
    assert selection is not None
    return selection.thresholds


def _run(
    stream: Stream,
    options: Options,
    triggers: int,
    threads: int,
    work: Path,
    on_progress: subprocesses.OnProgress,
) -> tuple[RunCost, pa.Table]:
    """Run a query of keys only; returns its cost and the keys it released."""
    work.mkdir(exist_ok=True)
    ran = subprocesses.run_in_subprocess(
        replay, stream, options, triggers, work, threads, on_progress=on_progress
    )
    return ran, released_keys(work / "output", counts=False)


def _retained(truth: pa.Table, released: pa.Table) -> dict[str, float | None]:
    """The share of views whose page was released, over all pages and over those with many views."""
    with duckdb.connect() as database:
        database.register("truth", truth)
        database.register("released", released)
        shares = database.sql(
            """
            WITH page AS (
                SELECT n, CASE WHEN key IN (SELECT key FROM released) THEN n ELSE 0 END AS kept
                FROM truth
            )
            SELECT sum(kept) / sum(n),
                   sum(kept) FILTER (n >= 24) / sum(n) FILTER (n >= 24),
                   sum(kept) FILTER (n >= 1440) / sum(n) FILTER (n >= 1440)
            FROM page
            """
        ).fetchall()
    names = ("views_retained", "retained_1_per_hour", "retained_60_per_hour")
    return dict(zip(names, shares[0], strict=True))


def _found(stream: Stream, released: pa.Table) -> dict[str, Any]:
    """Released queries among those above the minimum, and the fewest users of a released one."""
    with duckdb.connect() as database:
        database.register("released", released)
        figures = database.sql(
            f"""
            WITH query AS (
                SELECT key, count(*) AS users
                FROM (SELECT DISTINCT user_id, key FROM {stream.rows}) GROUP BY key
            ), chosen AS (SELECT users FROM query WHERE key IN (SELECT key FROM released))
            SELECT (SELECT count(*) FROM query WHERE users > {TRENDS_MINIMUM}),
                   (SELECT min(users) FROM chosen)
            """
        ).fetchall()
    above, fewest = figures[0]
    return {
        "keys_above_minimum": above,
        "share_of_them": released.num_rows / max(above, 1),
        "fewest_users": fewest,
    }
