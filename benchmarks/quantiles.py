"""Quantiles of every key against the truth: `python benchmarks/quantiles.py FILE`.

The file has the columns user_id, key, value and ts. Its rows run through the core in memory, in the
order of ts, in so many triggers; errors are those of the last release. `noise` is against the
quantiles of the same bins without noise and without bounds on units, `bins` is of those against the
exact quantiles, `error` is of both together. `sd` is the released one; `within` is how often the
truth is within two of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.core import Core, State
from dpsqlp.entropy.decode import decode
from dpsqlp.entropy.secret import Secret
from dpsqlp.sql import compile_script, make_plan
from dpsqlp.sql.quantiles import quantiles
from dpsqlp.sql.released import NoisyColumns
from dpsqlp.stages.admit import MicroBatch

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)
SCRIPT = """
CREATE SOURCE rows (user_id BIGINT, key TEXT, value DOUBLE, ts TIMESTAMP);
CREATE SINK quantiles WITH (connector = 'stdout') AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {epsilon}, delta = {delta},
  privacy_unit_column = user_id, max_contribution_norm = {norm}, timestamp_column = ts)
  key, APPROX_QUANTILE(value, {fractions}, contribution_bounds_per_row => (0, {upper}),
                       bins => {bins}) AS q
FROM rows GROUP BY key EMIT EVERY INTERVAL 1 HOUR FOR {triggers} TRIGGERS
"""


def measure(rows: pa.Table, options: dict[str, Any], triggers: int) -> dict[str, Any]:
    """Run all triggers; the errors of the last release, by the size of keys."""
    text = SCRIPT.format(**options | {"triggers": triggers}, fractions=list(FRACTIONS))
    [sink] = compile_script(text).sinks
    plan = make_plan(sink.query)
    core, state = Core(plan, Secret(bytes(range(32)), bytes([triggers] * 16))), State()
    edges = np.linspace(0, len(rows), triggers + 1).astype(int)
    began = time.process_time()
    for trigger, (begin, end) in enumerate(pairwise(edges), 1):
        part = rows.slice(begin, end - begin).combine_chunks()
        unit, key, value, ts = (part.column(n).combine_chunks() for n in range(4))
        zeros = pa.array(np.zeros(len(part), np.int64))
        batch = MicroBatch((unit,), (key,), zeros, ts, (value,))
        release = core.run(state, batch, trigger)
    seconds = time.process_time() - began
    columns = NoisyColumns(sink.query, plan).of(
        release.values, release.step, np.full(len(release), triggers)
    )
    found, spread = (np.array(columns[name].to_pylist(), object) for name in ("q0", "q0_sd"))
    [keys] = decode(release.key_text, [pa.string()])
    process = plan.calibration.processes[0].process
    truth, sizes, binned = true_quantiles(rows, keys, process)
    known = np.array([row is not None for row in found]) & (sizes >= options["least"])
    values, sds = (np.array(list(part[known]), float) for part in (found, spread))
    error = values - truth[known]
    return {
        "triggers": triggers,
        "keys": len(release),
        "measured": int(known.sum()),
        "error": percentiles(error),
        "noise": percentiles(values - binned[known]),
        "bins": percentiles(binned[known] - truth[known]),
        "sd": percentiles(sds),
        "within": round(float((np.abs(error) <= 2 * sds).mean()), 3),
        "cpu_seconds": round(seconds, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def true_quantiles(rows: pa.Table, keys: pa.Array, process: Any) -> tuple[Any, Any, Any]:
    """Exact quantiles and sizes of keys, and the quantiles of their bins without noise."""
    with duckdb.connect() as database:
        database.register("rows", rows)
        database.register("released", pa.table({"key": keys, "n": np.arange(len(keys))}))
        joined = "released JOIN rows USING (key)"
        exact = database.sql(
            f"SELECT quantile_cont(value, {list(FRACTIONS)}), count(*) FROM {joined}"
            " GROUP BY n ORDER BY n"
        ).fetchall()
        pairs = database.sql(f"SELECT n, value FROM {joined}").fetchnumpy()
    bins = np.searchsorted(process.edges[1:-1], pairs["value"], side="right")
    totals = np.zeros((len(keys), process.width))
    np.add.at(totals, (pairs["n"], bins), 1)
    np.add.at(totals, (pairs["n"], process.bins + bins // process.coarse), 1)
    binned, _ = quantiles(totals, process, np.zeros(len(keys)), FRACTIONS)
    return np.array([row[0] for row in exact]), np.array([row[1] for row in exact]), binned


def percentiles(sizes: Any) -> list[float]:
    """The median and the 90 % quantile of the sizes of errors."""
    return [round(float(np.quantile(np.abs(sizes), share)), 1) for share in (0.5, 0.9)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--triggers", type=int, nargs="+", default=[1, 24, 100])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-9)
    parser.add_argument("--norm", type=float, default=4)
    parser.add_argument("--upper", type=float, default=1000)
    parser.add_argument("--bins", type=int, default=32)
    parser.add_argument("--least", type=int, default=1000, help="records of a key that is measured")
    options = vars(parser.parse_args())
    with duckdb.connect() as database:
        rows = database.sql(
            "SELECT user_id::BIGINT AS user_id, key::VARCHAR AS key, value::DOUBLE AS value,"
            " epoch_us(ts) AS ts FROM read_parquet(?) WHERE value IS NOT NULL"
            " ORDER BY ts, key, user_id, value",
            params=[str(options["file"])],
        ).to_arrow_table()
    for triggers in options["triggers"]:
        print(json.dumps(measure(rows, options, triggers)), flush=True)


if __name__ == "__main__":
    main()
