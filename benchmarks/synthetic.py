"""The paper's synthetic day as Parquet files in time order.

Records per unit: Zipf-Mandelbrot on 1..10^5, p(x) ~ (x + 26)^-6.738. Key of each record: 1..keys,
p(x) ~ (x + 1000)^-1.4. Records are spread uniformly over the day.
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
    dice: np.random.Generator, size: int, values: int, shift: float, power: float
) -> NDArray[np.int64]:
    """Draws from 1..values with p(x) ~ (x + shift)^-power."""
    weights = (np.arange(1, values + 1) + shift) ** -power
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative, dice.random(size) * cumulative[-1]) + 1


def write_day(folder: Path, units: int, keys: int, files: int, seed: int = 1) -> int:
    """Write the day; returns the number of records."""
    dice = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    records_per_unit = zipf_mandelbrot(dice, units, 10**5, 26, 6.738)
    unit = np.repeat(np.arange(units), records_per_unit)
    dice.shuffle(unit)
    edges = np.linspace(0, len(unit), files + 1).astype(int)
    for number, (begin, end) in enumerate(pairwise(edges)):
        span = DAY_US / files
        times = np.sort(dice.random(end - begin)) * span + number * span
        table = pa.table(
            {
                "user_id": unit[begin:end],
                "key": zipf_mandelbrot(dice, end - begin, keys, 1000, 1.4),
                "ts": pa.array(START_US + times.astype(np.int64), pa.timestamp("us")),
            }
        )
        pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=1 << 18)
    return len(unit)
