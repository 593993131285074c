"""The whole pipeline, from Parquet files to Parquet releases, with durable state.

The paper's synthetic day, by default a tenth of it, runs through the private pipeline and through
its non-private twin (`plain.py`), each in a process of its own. Then a trigger is measured on a
small and a large table of cold keys. One JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SQL = """
CREATE SOURCE day (user_id BIGINT, key BIGINT, ts TIMESTAMP)
  WITH (connector = 'files', path = '{files}/*.parquet');
CREATE SINK counts WITH (connector = 'parquet', path = '{output}') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 8)
  key, COUNT(*) AS n
FROM day GROUP BY key, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL {seconds} SECOND
  ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-01-02';
"""
TRIGGERS = 100
SECONDS = 86_400 // TRIGGERS


def run_private(files: Path, work: Path) -> int:
    """The released keys at the end of the day."""
    from dpsqlp.engines.script import open_engine
    from dpsqlp.sql import compile_script

    text = SQL.format(files=files, output=work / "output", seconds=SECONDS)
    [sink] = compile_script(text).sinks
    engine = open_engine(sink, state=work / "state", secret=work / "secret", folder=work)
    while not engine.finished:
        rows = engine.step().rows
    engine.close()
    return rows


def run_plain(files: Path, work: Path) -> int:
    import plain

    from dpsqlp.experiments.data import START_US

    plain.run(files, work / "state", work / "output", START_US, SECONDS * 10**6, TRIGGERS)
    return 0


def in_process(kind: str, files: Path) -> dict[str, float]:
    """Seconds and peak memory of one run, in a process of its own."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--child", kind, str(files), work]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, float] = json.loads(printed.splitlines()[-1])
    return result


def child(kind: str, files: Path, work: Path) -> None:
    begin = time.perf_counter()
    keys = {"private": run_private, "plain": run_plain}[kind](files, work)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - begin,
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "keys": keys,
            }
        )
    )


def bench_day(units: int, files: Path) -> None:
    from dpsqlp.experiments.data import write_day

    records = write_day(files, units, 10**6, TRIGGERS)
    in_process("private", files)  # compiles what is not in the cache
    private, plain = in_process("private", files), in_process("plain", files)
    print(
        json.dumps(
            {
                "benchmark": "day",
                "units": units,
                "records": records,
                "triggers": TRIGGERS,
                "keys_released": private["keys"],
                "records_per_second": round(records / private["seconds"]),
                "peak_memory_bytes": private["peak_memory_bytes"],
                "plain_records_per_second": round(records / plain["seconds"]),
                "ratio_to_plain": round(plain["seconds"] / private["seconds"], 2),
            }
        ),
        flush=True,
    )


def bench_cold_keys(sizes: list[int], touched: int) -> None:
    """The same micro-batch as a trigger, with its commit, on tables of cold keys."""
    from core import SECRET, batch, groups, plan

    from dpsqlp.core import Core, State
    from dpsqlp.stages.advance import advance
    from dpsqlp.state.journal import Journal, begin_journal
    from dpsqlp.state.sealed import SealedStorage
    from dpsqlp.state.storage import LocalStorage

    first = 0.0
    for size in sizes:
        rng = np.random.default_rng(2)
        pipeline, state = Core(plan(20), SECRET), State(1, 1)
        table = pipeline.new_key_table(0, 0, 1)
        state.keys[0] = [table]
        for begin in range(0, size, 500_000):
            cold = groups(pipeline, np.arange(begin, min(begin + 500_000, size)))
            advance(pipeline.plan, pipeline.noises, table, cold, 0, 1)
        with tempfile.TemporaryDirectory() as folder:
            storage = SealedStorage(LocalStorage(Path(folder)))
            storage.unlock(SECRET)
            begin_journal(storage, pipeline.plan, SECRET, 1)
            journal = Journal(storage, pipeline)
            times = []
            for trigger in range(2, 21):
                keys = rng.choice(sizes[0], touched, replace=False)
                arrived = batch(rng.integers(0, 10**6, touched), keys)
                begin_time = time.perf_counter()
                step = pipeline.compute(state, pipeline.admit(arrived, trigger))
                if trigger > 2:  # the first delta would hold the whole table
                    journal.commit(journal.save(state, step), b"", None)
                    times.append(time.perf_counter() - begin_time)
                else:
                    journal.commit(journal.save(state, step), b"", None)
        milliseconds = 1000 * float(np.median(times))
        first = first or milliseconds
        print(
            json.dumps(
                {
                    "benchmark": "cold_keys",
                    "keys_in_state": size,
                    "touched_keys": touched,
                    "milliseconds": round(milliseconds, 1),
                    "ratio_to_first": round(milliseconds / first, 2),
                }
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=1_000_000, help="10000000 is the paper's day")
    parser.add_argument("--cold", type=int, default=30_000_000, help="keys of the large table")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, files, work = arguments.child
        child(kind, Path(files), Path(work))
        return
    with tempfile.TemporaryDirectory() as files:
        bench_day(arguments.units, Path(files))
    bench_cold_keys([1_000_000, arguments.cold], 100_000)


if __name__ == "__main__":
    main()
