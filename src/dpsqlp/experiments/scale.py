"""The time of a trigger by records in its micro-batch, by shards and by keys in state.

Every figure is the median trigger of a whole run (files in, durable state, files out). Keys are
uniform, as in the paper's largest test, and few are ever released. The state is filled with one
record of a new unit per key, so the bytes per key include a unit with one record.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dpsqlp.experiments import subprocesses
from dpsqlp.experiments.data import START_US, write_part
from dpsqlp.experiments.replay import ReportProgress, replay, working_folder
from dpsqlp.experiments.result import Result
from dpsqlp.experiments.task import Stream, preset

EPSILON, DELTA = 6.0, 1e-9
PAPER_KEYS, PAPER_RECORDS = 10**9, 6 * 10**9
_MEASURED = 8  # triggers of a run whose median counts
_FILL_MAX = 10**6  # records of a trigger that fills the table
_SECOND_US = 10**6


def run_scale(keys: int, records: int, seed: int, threads: int, report: ReportProgress) -> Result:
    """Latency up to `records` in a micro-batch and `keys` in state."""
    rows = []
    for share in (8, 4, 2, 1):
        size = records // share
        row = _run([], size, keys, seed, threads, partial(report, f"{size:,} records"))
        rows.append({"by": "records", "records": size, "keys_in_state": None, **row})
    for shards in sorted({1, threads, os.cpu_count() or 1}):
        row = _run([], records, keys, seed, shards, partial(report, f"{shards} shards"))
        rows.append({"by": "shards", "records": records, "keys_in_state": None, **row})
    touched = max(records // 10, 1)
    chunk = min(_FILL_MAX, keys // 16)  # one size for all runs, so that its memory is the same
    for share in (16, 4, 2, 1):
        size = keys // share
        fill = [min(chunk, size - begin) for begin in range(0, size, chunk)]
        row = _run(fill, touched, size, seed, threads, partial(report, f"{size:,} keys"))
        rows.append({"by": "keys", "records": touched, "keys_in_state": size, **row})
    settings: dict[str, Any] = {"key_space": keys, "triggers_measured": _MEASURED, "seed": seed}
    beyond = extrapolate(rows)
    return Result("scale", "scale", settings | beyond, rows, [in_words(beyond)])


def extrapolate(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Linear extrapolation of these figures to the paper's largest test, on one machine."""
    by_keys = [row for row in rows if row["by"] == "keys"]
    size = np.array([row["keys_in_state"] for row in by_keys], float)
    slope, base = np.polyfit(size, [row["trigger_seconds"] for row in by_keys], 1)
    bytes_per_key, memory = np.polyfit(size, [row["peak_memory_bytes"] for row in by_keys], 1)
    largest = max((row for row in rows if row["by"] == "records"), key=lambda row: row["records"])
    return {
        "bytes_per_key": float(bytes_per_key),
        "paper_keys": PAPER_KEYS,
        "memory_bytes_at_paper_keys": float(memory + bytes_per_key * PAPER_KEYS),
        "trigger_seconds_at_paper_keys": float(base + max(slope, 0.0) * PAPER_KEYS),
        "touched": by_keys[-1]["records"],
        "paper_records": PAPER_RECORDS,
        "hours_for_paper_records": PAPER_RECORDS / largest["records_per_second"] / 3600,
    }


def in_words(beyond: dict[str, Any]) -> str:
    """The extrapolation as a sentence."""
    return (
        f"Extrapolated linearly to the paper's {PAPER_KEYS:,} keys: a key and its unit"
        f" take {beyond['bytes_per_key']:,.0f} bytes,"
        f" {beyond['memory_bytes_at_paper_keys'] / 2**30:,.0f} GiB in total; a trigger that touches"
        f" {beyond['touched']:,} keys takes {beyond['trigger_seconds_at_paper_keys']:,.2f} s; the"
        f" {PAPER_RECORDS:,} records take {beyond['hours_for_paper_records']:,.1f} hours on this"
        " machine, if it had the memory. The paper: 306 s for a micro-batch of 1 GB on 5,500"
        " workers."
    )


def _run(
    fill: list[int],
    size: int,
    keys: int,
    seed: int,
    threads: int,
    on_progress: subprocesses.OnProgress,
) -> dict[str, Any]:
    """Fill the table in triggers of these sizes, then measure triggers of `size` records."""
    triggers = len(fill) + 1 + _MEASURED  # the first one of a size also loads kernels: not measured
    with working_folder() as work:
        _write(work / "stream", fill, size, keys, seed)
        stream = Stream(
            f"{work}/stream/*.parquet",
            sum(fill) + size * (1 + _MEASURED),
            span_us=triggers * _SECOND_US,
        )
        options = preset("best", EPSILON, DELTA)
        ran = subprocesses.run_in_subprocess(
            replay, stream, options, triggers, work, threads, on_progress=on_progress
        )
    seconds = median(ran.trigger_seconds[-_MEASURED:])
    return {
        "shards": threads,
        "trigger_seconds": seconds,
        "records_per_second": size / seconds,
        "peak_memory_bytes": ran.peak_memory_bytes,
    }


def _write(folder: Path, fill: list[int], size: int, keys: int, seed: int) -> None:
    """Write one file per trigger; triggers are a second apart."""
    rng = np.random.default_rng(seed)
    begin = 0
    for number, records in enumerate(fill + [size] * (1 + _MEASURED)):
        if number < len(fill):
            key = unit = np.arange(begin, begin + records)
            begin += records
        else:
            key = rng.integers(0, keys, records)
            unit = rng.integers(0, max(10 * size, begin), records)
        times = START_US + number * _SECOND_US + np.arange(records) * _SECOND_US // max(records, 1)
        write_part(folder, number, unit, key, times)
