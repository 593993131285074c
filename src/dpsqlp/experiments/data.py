"""Generated streams as Parquet files, in order of time. They contain no real data.

The paper's synthetic day: records per unit Zipf-Mandelbrot on 1..10^5, p(x) ~ (x + 26)^-6.738; key
of each record on 1..keys, p(x) ~ (x + 1000)^-1.4; records spread uniformly over the day.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

DAY_US = 86_400_000_000
START_US = 1_704_067_200_000_000  # 2024-01-01


def zipf_mandelbrot(
    rng: np.random.Generator, size: int, values: int, shift: float, power: float
) -> NDArray[np.int64]:
    """Draws from 1..values with p(x) ~ (x + shift)^-power."""
    weights = (np.arange(1, values + 1) + shift) ** -power
    cumulative = np.cumsum(weights)
    drawn: NDArray[np.int64] = np.searchsorted(cumulative, rng.random(size) * cumulative[-1])
    return drawn + 1


def write_day(folder: Path, units: int, keys: int, files: int, seed: int = 1) -> int:
    """Write the paper's day; returns the number of records."""
    rng = np.random.default_rng(seed)
    records_per_unit = zipf_mandelbrot(rng, units, 10**5, 26, 6.738)
    return _write(folder, rng, np.repeat(np.arange(units), records_per_unit), keys, files)


def write_visits(folder: Path, units: int, keys: int, files: int, seed: int = 1) -> int:
    """Write a day on which every unit has one record; returns the number of records."""
    return _write(folder, np.random.default_rng(seed), np.arange(units), keys, files)


def _write(
    folder: Path, rng: np.random.Generator, unit: NDArray[np.int64], keys: int, files: int
) -> int:
    rng.shuffle(unit)
    edges = np.linspace(0, len(unit), files + 1).astype(int)
    span = DAY_US / files
    for number, (begin, end) in enumerate(pairwise(edges)):
        times = np.sort(rng.random(end - begin)) * span + number * span
        key = zipf_mandelbrot(rng, end - begin, keys, 1000, 1.4)
        write_part(folder, number, unit[begin:end], key, START_US + times.astype(np.int64))
    return len(unit)


def write_part(
    folder: Path,
    number: int,
    unit: NDArray[np.int64],
    key: NDArray[np.int64],
    times_us: NDArray[np.int64],
) -> None:
    """Write one file of a stream."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"user_id": unit, "key": key, "ts": pa.array(times_us, pa.timestamp("us"))})
    pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=1 << 18)
