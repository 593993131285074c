"""Speed of the core in one thread. One JSON object per line.

Kernels are warm. Work is divided into batches and the median batch is reported, since a shared
machine is slow at times. `--quick` uses small tables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dpsqlp.accounting import ContributionBounds, Process, calibrate
from dpsqlp.core import Core, State
from dpsqlp.entropy.canonical import encode
from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms import fit_blt
from dpsqlp.plan import Plan
from dpsqlp.schedule import WindowSchedule
from dpsqlp.stages.admit import MicroBatch
from dpsqlp.stages.advance import advance
from dpsqlp.stages.bound import bound
from dpsqlp.stages.combine import Groups
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.units import UnitTable

SECRET = Secret(bytes(range(32)), bytes(range(16)))


def report(name: str, **figures: Any) -> None:
    print(json.dumps({"benchmark": name, **figures}), flush=True)


def seconds(action: Callable[..., Any], *arguments: Any) -> float:
    begin = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - begin


def plan(triggers: int) -> Plan:
    """The query of the synthetic day with its best options: COUNT(*) per key."""
    mechanism = fit_blt(triggers)
    caps = ContributionBounds(32, 1, 8)
    calibration = calibrate(
        epsilon=6.0,
        delta=1e-9,
        caps=caps,
        mechanism=mechanism,
        processes=[Process("views", "count")],
        release="every_trigger",
        selection_share=0.7,
    )
    return Plan(
        query="SELECT key, COUNT(*)",
        unit_kinds=("integer",),
        key_kinds=("integer",),
        windows=WindowSchedule(triggers),
        periods=None,
        release="every_trigger",
        caps=caps,
        mechanism=mechanism,
        calibration=calibration,
    )


def groups(pipeline: Core, numbers: np.ndarray) -> Groups:
    """One vote and one record for each of these keys."""
    text = encode([pa.array(numbers)], len(numbers))
    ones = np.ones(len(numbers), np.int64)
    zeros = np.zeros(len(numbers), np.int64)
    order = np.arange(len(numbers))
    return Groups(pipeline.keys.identify(text), text, order, zeros, zeros, ones, ones[:, None])


def batch(units: np.ndarray, keys: np.ndarray) -> MicroBatch:
    zeros = pa.array(np.zeros(len(units), np.int64))
    return MicroBatch((pa.array(units),), (pa.array(keys),), zeros, zeros)


def bench_normals() -> None:
    noise = Noise(SECRET, b"", "selection")
    keys, draws, rounds = 128, 128, 500
    ids = np.arange(2 * keys, dtype=np.uint64).reshape(-1, 2)
    seeds = noise.seeds(ids, 0, np.ones(keys, np.int64))
    first, last = np.zeros(keys, np.int64), np.full(keys, draws)
    noise.draw(seeds, first, last)
    times = [
        seconds(lambda: [noise.draw(seeds, first, last) for _ in range(rounds)]) for _ in range(9)
    ]
    report("normals", normals_per_second=round(rounds * keys * draws / np.median(times)))


def bench_advance(triggers: int, keys: int) -> None:
    pipeline = Core(plan(triggers), SECRET)
    numbers = np.arange(keys)

    def run(table: KeyTable, numbers: np.ndarray, index: int) -> float:
        """Ten times the seconds of the median tenth."""
        parts = [groups(pipeline, part) for part in np.array_split(numbers, 10)]
        times = [
            seconds(advance, pipeline.plan, pipeline.noises, table, part, 0, index)
            for part in parts
        ]
        return 10 * float(np.median(times))

    run(pipeline.new_key_table(0, 0, 1), numbers[:1000], 1)  # compile
    table = pipeline.new_key_table(0, 0, 1)
    first = run(table, numbers, 1)
    again = run(table, np.random.default_rng(3).permutation(numbers), 2)
    report(
        "advance",
        triggers=triggers,
        keys=keys,
        first_seen_keys_per_second=round(keys / first),
        seen_again_keys_per_second=round(keys / again),
        bytes_per_key=round(table.nbytes / keys, 1),
    )


def bench_bound(units: int, batches: int, records: int) -> None:
    pipeline = Core(plan(100), SECRET)
    rng = np.random.default_rng(1)
    table = UnitTable()
    per_fill = 1_000_000
    kept = 0

    def run(numbers: np.ndarray, keys: np.ndarray, trigger: int) -> None:
        nonlocal kept
        arrived = pipeline.admit(batch(numbers, keys), trigger)
        members, settled = np.arange(len(arrived)), np.zeros(len(arrived), np.bool_)
        kept += len(bound(pipeline.plan, table, arrived, members, settled).kept)

    for begin in range(0, units, per_fill):
        numbers = np.arange(begin, min(begin + per_fill, units))
        run(numbers, rng.integers(0, 10**6, len(numbers)), 1)
    times = []
    for trigger in range(2, batches + 2):
        numbers, keys = rng.integers(0, units, records), rng.integers(0, 10**6, records)
        times.append(seconds(run, numbers, keys, trigger))
    pairs = int(table.rows["pairs"][: len(table)].astype(np.int64).sum())
    slab = table.slab[: table.slab_used[0]].nbytes
    fixed = table.nbytes - slab
    report(
        "bound",
        units=len(table),
        kept_records=kept,
        records_per_second=round(records / np.median(times)),
        bytes_per_unit=round(fixed / len(table), 1),
        bytes_per_kept_record=round(slab / pairs, 1),
        total_bytes=table.nbytes,
    )


def bench_trigger(sizes: list[int], touched: int) -> None:
    """A whole trigger (admit to releases) on tables of growing size."""
    rng = np.random.default_rng(2)
    median = []
    for size in sizes:
        pipeline, state = Core(plan(10), SECRET), State()
        table = pipeline.new_key_table(0, 0, 1)
        state.keys[0] = [table]
        for begin in range(0, size, 500_000):
            numbers = np.arange(begin, min(begin + 500_000, size))
            advance(pipeline.plan, pipeline.noises, table, groups(pipeline, numbers), 0, 1)
        times = []
        for trigger in range(2, 11):
            state.trigger = trigger - 1
            arrived = batch(
                rng.integers(0, 10**6, touched), rng.choice(size, touched, replace=False)
            )
            times.append(seconds(pipeline.run, state, arrived, trigger))
        median.append(float(np.median(times)))
        report(
            "trigger",
            keys_in_table=size,
            touched_keys=touched,
            milliseconds=round(1000 * median[-1], 1),
            ratio_to_first=round(median[-1] / median[0], 2),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small tables")
    scale = 100 if parser.parse_args().quick else 1
    bench_normals()
    bench_advance(100, 1_000_000 // scale)
    bench_advance(1000, 200_000 // scale)
    bench_bound(10_000_000 // scale, 20, 600_000 // scale)
    bench_trigger([1_000_000 // scale, 50_000_000 // scale], 100_000 // scale)


if __name__ == "__main__":
    main()
